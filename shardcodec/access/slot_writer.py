# slot_writer.py - one shard that several processes write at the same time
# SPDX-License-Identifier: MIT
"""`SlotWriter`: one of several writers of a new shard, in threads, processes or machines, without locks.

If every encoded inner chunk has the same size, its place in the file (its slot) is known before it is written. One
process creates the file, all write into it, each inner chunk into its slot, and one writes the index and gives the file
its name:

    rank 0        token = ShardWriter.create(path, spec)
    every rank    with ShardWriter.join(token) as part: part.write_chunk(coords, chunk)
    (barrier)     present = gather(part.present)
    rank 0        ShardWriter.join(token).commit(present)

Slots begin at multiples of a page: a network file system may cache a page in each machine until the file is closed, so two
machines must not write into the same page.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

import numpy as np

from .. import native
from ..arguments import as_buffer, checked
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..option_sources import current_options
from ..options import Durability, Order, check
from ..storage.files import check_name
from ..storage.staging import staging_for
from .compiled_chains import compiled
from .encoded_chunks import ordered
from .inner_chunks import coordinates, positions
from .placement import ABSENT, aligned
from .user_bytes import check_alignment

if TYPE_CHECKING:
    from .._native import Chain
from .chunk_writer import ChunkWriter

__all__ = ["SlotHow", "SlotWriter", "create"]

# Size of a page, or a multiple of it, on all machines that are likely to take part.
PAGE_NBYTES = 4096

FORMAT = "shardcodec shared shard 1"


@dataclasses.dataclass(frozen=True)
class _Token:
    """The content of a token: the layout of the new file.

    path, temp, staging, n_made: the new file, see `NewFile.place`. first: offset of the first slot. choices: options of every
    writer.
    """

    spec: ShardSpec
    path: str
    temp: str
    staging: str | None
    n_made: int
    first: int
    alignment: int
    write_empty: bool
    choices: dict[str, Any]
    header_nbytes: int

    def to_bytes(self) -> bytes:
        """Return the layout as bytes for `parse`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["spec"] = self.spec.chain.to_metadata(self.spec.shard_shape)
        return json.dumps({"format": FORMAT, **fields}).encode()

    @classmethod
    def parse(cls, token: Any) -> _Token:
        """Return the layout in a token; raise ValueError if it is not a token of this version."""
        try:
            fields = json.loads(bytes(memoryview(token)))
            if fields.pop("format") != FORMAT:
                raise ValueError
            return cls(**fields | {"spec": ShardSpec.from_metadata(fields["spec"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                "token: expected a token that ShardWriter.create of this version of shardcodec made, got other bytes"
            ) from None

    def slot_nbytes(self, chain: Chain) -> int:
        """Return the distance between two slots in bytes."""
        return int(aligned(_chunk_nbytes(chain), self.alignment))


def _chunk_nbytes(chain: Chain) -> int:
    """Return the size of every encoded inner chunk in bytes."""
    nbytes = chain.inner.fixed_nbytes
    assert nbytes is not None, "`create` accepts only chains of fixed size"
    return int(nbytes)


class SlotHow(TypedDict, total=False):
    """The keywords of `ShardWriter.create`, for type checkers."""

    header: Any
    alignment: int
    write_empty_chunks: bool
    order: Order | None
    durability: Durability | None
    threads: int | None


@checked
def create(
    path: str | os.PathLike[str],
    spec: ShardSpec,
    *,
    header: Any = b"",
    alignment: int = PAGE_NBYTES,
    write_empty_chunks: bool = False,
    order: Order | None = None,
    durability: Durability | None = None,
    threads: int | None = None,
) -> bytes:
    """Create the file of a shard that several processes write, and return its token; see `ShardWriter.create`."""
    chain = compiled(spec.chain)
    if not spec.supports_partial_access or chain.inner.fixed_nbytes is None:
        raise UnsupportedError(
            "expected codecs that encode every inner chunk to a fixed size: no compressor, and no codecs after "
            "sharding_indexed"
        )
    choices = check({"order": order, "durability": durability, "threads": threads})
    options = current_options(argument=choices)
    kept = {"order": options.order, "durability": options.durability} | choices
    check_alignment(alignment)
    full = check_name(os.path.abspath(path))
    file = native.load().NewFile(full, staging=staging_for(full), shared=True)
    try:
        start = spec.index_nbytes if spec.index_location == "start" else 0
        head = as_buffer(header, "header")
        first = int(aligned(start + head.nbytes, alignment))
        place, temp, staging, n_made = file.place
        content = _Token(
            spec, place, temp, staging, n_made, first, alignment, write_empty_chunks, kept, head.nbytes
        )
        file.truncate(first + spec.n_chunks * content.slot_nbytes(chain))
        if head.nbytes:
            file.write(head, start)
        token = content.to_bytes()
        file.leave(sync=options.durability == "fsync")
    except BaseException:
        file.abort()
        raise
    return token


class SlotWriter(ChunkWriter):
    """One of several writers of a new shard; made by `ShardWriter.join`.

    Threads may share an object. A with block closes it, also after an exception; only `abort` discards the shard.

    Parameters
    ----------
    token : bytes
        The result of `ShardWriter.create`.

    Raises
    ------
    ValueError
        `token` is not a token of this version.
    FileNotFoundError
        The shard has been committed or aborted.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec((4, 6), (4, 3), "uint8", 0, codecs=["bytes"])
    >>> token = shardcodec.ShardWriter.create("shard", spec)
    >>> with shardcodec.ShardWriter.join(token) as part:
    ...     part.write_chunk((0, 1), np.ones((4, 3), "uint8"))
    >>> part.present.tolist()
    [[0, 1]]
    >>> shardcodec.ShardWriter.join(token).commit(part.present)
    """

    _CLOSED = "expected an open part of the shard, but it has been closed; call ShardWriter.join again"

    def __init__(self, token: Any) -> None:
        content = _Token.parse(token)
        spec = content.spec
        super().__init__(
            spec,
            current_options(argument=check(content.choices)),
            name=content.path,
            alignment=content.alignment,
            header_nbytes=content.header_nbytes,
            write_empty=content.write_empty,
        )
        self._first = content.first
        self._slot_nbytes = content.slot_nbytes(self._chain)
        sequence = ordered(range(spec.n_chunks), spec.grid_shape, self._options.order)
        self._rank = np.empty(spec.n_chunks, dtype=np.int64)
        self._rank[sequence] = np.arange(spec.n_chunks)
        self._sink = native.load().NewFile(
            content.path, temp=content.temp, staging=content.staging, n_made=content.n_made
        )

    @property
    def present(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Coordinates of the inner chunks that this object has stored, shape (n, ndim)."""
        stored = np.flatnonzero(self._stored.copy())  # numpy raises if a thread changes what it searches
        coords = [coordinates(position, self.grid_shape) for position in stored.tolist()]
        return np.array(coords, dtype=np.int64).reshape(len(stored), len(self.grid_shape))

    def _write(self, position: int, data: memoryview) -> None:
        self._open_sink().write(data, self._offset(position))

    def _offset(self, position: int) -> int:
        return self._first + int(self._rank[position]) * self._slot_nbytes

    def close(self) -> None:
        """Flush the written inner chunks, so that they are visible to the other machines of a network file system.

        Every writer must be closed before one of them calls `commit`.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.leave(sync=self._options.durability == "fsync")

    def commit(self, present: Any, *, footer: Any = b"") -> None:
        """Write the index, and give the shard its name. One writer calls this after all others have been closed.

        Parameters
        ----------
        present : sequence of tuples of int, or integer array of shape (n, ndim)
            The inner chunks that all writers have stored: their attributes `present` together. Other inner chunks are
            absent.
        footer : bytes-like
            User bytes after the last inner chunk.

        Raises
        ------
        ValueError
            `present` names an inner chunk twice, so two writers have stored it; or the writer is closed.
        IndexError
            A position lies outside the grid.
        OSError
            The file cannot be written. The old shard stays.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``. Nothing is lost: join again and
            call `commit`.
        """
        where = positions(present, self.grid_shape, "present")
        if len(set(where)) != len(where):
            at = next(a for a, b in itertools.pairwise(sorted(where)) if a == b)
            raise ValueError(
                f"present: expected each inner chunk once, but {coordinates(at, self.grid_shape)} was written by two ranks"
            )
        sink, footer = self._open_sink(), bytes(as_buffer(footer, "footer"))
        nbytes = _chunk_nbytes(self._chain)
        entries = np.full((self._spec.n_chunks, 2), ABSENT, dtype=np.uint64)
        for position in where:
            entries[position] = self._offset(position), nbytes
        end = max((self._offset(position) + nbytes for position in where), default=self._first)
        sink.truncate(end)
        self._write_end(sink, entries, end, footer)
        self._sink = None
        self._put_in_place(sink)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
