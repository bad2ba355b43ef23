# chunk_writer.py - inner chunks into a new file, and into places of a known size
# SPDX-License-Identifier: MIT
"""Inner chunks into a new file, and into places of a known size.

`ChunkWriter`: accepts each inner chunk of a new shard once, encodes it, and writes it to a new file.

The subclasses `ShardWriter` and `SlotWriter` decide where in the file an inner chunk is.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

import numpy as np

from .. import native
from ..arguments import as_buffer, checked
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..option_sources import current_options
from ..options import Durability, Options, Order, check
from ..storage import file_systems, locks
from ..storage.file_systems import OpenFile
from ..storage.files import check_name
from ..storage.staging import staging_for
from ..storage.synced_documents import sync_documents
from .inner_chunks import (
    as_array,
    as_chunks,
    as_coords,
    batches,
    compiled,
    coordinates,
    encode_chunks,
    positions,
)
from .placement import ABSENT, aligned
from .user_bytes import check_alignment, marked_footer
from .write import check_size, ordered

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "ChunkWriter",
    "SlotHow",
    "SlotWriter",
    "create",
]


class ChunkWriter:
    """Common base of the writers of a new shard. Several threads may use one writer.

    Parameters
    ----------
    spec : ShardSpec
        Layout and codecs of the shard.
    options : Options
        Options of the writer.
    name : str
        Name of the shard in errors.
    alignment : int
        Each inner chunk begins at a multiple of this number of bytes.
    header_nbytes : int
        Size of the header.
    write_empty : bool
        Store also inner chunks that equal the fill value bit by bit.
    """

    _CLOSED: str
    """The error for a call after the end."""

    def __init__(
        self,
        spec: ShardSpec,
        options: Options,
        *,
        name: str,
        alignment: int,
        header_nbytes: int,
        write_empty: bool,
    ) -> None:
        self._spec = spec
        self._options = options
        self._sink: Any = None  # a native `NewFile`, set by the subclass; None after the end
        self._name = name
        self._alignment = alignment
        self._header_nbytes = header_nbytes
        self._write_empty = write_empty
        self._chain = compiled(spec.chain)
        self._mutex = threading.Lock()
        # by position: the inner chunk was passed by a caller; it is in the file
        self._claimed = np.zeros(spec.n_chunks, dtype=np.bool_)
        self._stored = np.zeros(spec.n_chunks, dtype=np.bool_)

    @property
    def spec(self) -> ShardSpec:
        """Layout and codecs of the shard."""
        return self._spec

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of inner chunks along each axis."""
        return self._spec.grid_shape

    def write_chunk(self, coords: Iterable[int], chunk: Any) -> None:
        """Encode and write one inner chunk.

        Parameters
        ----------
        coords : tuple of int
            Grid position of the inner chunk.
        chunk : array_like, shape chunk_shape
            The elements. They are cast to the dtype of the spec if numpy calls the cast safe.

        Raises
        ------
        ValueError
            `chunk` has another shape, the inner chunk was written before, or the writer is closed.
        IndexError
            `coords` lies outside the grid.
        TypeError
            The elements cannot be cast safely.
        CodecError
            A codec refuses the elements.
        OSError
            The file cannot be written. The inner chunk may be written again.
        """
        self.write_chunks([as_coords(coords)], as_array(chunk, "chunk")[None])

    def write_chunks(self, coords: Any, chunks: Any) -> None:
        """Encode and write inner chunks with several threads.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions, each at most once.
        chunks : array_like, shape (n, *chunk_shape)
            The elements, as for `write_chunk`.

        Raises
        ------
        ValueError, IndexError, TypeError, CodecError, OSError
            As for `write_chunk`. Inner chunks that were not written yet may be written again.
        """
        where = positions(coords, self.grid_shape)
        array, native_order = as_chunks(chunks, self._spec.dtype, self._spec.chunk_shape, len(where))
        chain = compiled(self._spec.inner, native_order)
        self._claim(where)
        try:
            self._encode(where, chain, array)
        except BaseException:
            self._release(where)
            raise

    def _encode(self, where: list[int], chain: Chain, array: np.ndarray[Any, Any]) -> None:
        sequence = self._sequence(where)
        row_of = {position: row for row, position in enumerate(where)}
        for part in batches(len(where), self._spec.inner.nbytes):
            batch = sequence[part]
            rows = [row_of[position] for position in batch]
            encoded = encode_chunks(
                chain,
                array[part] if rows == list(range(part.start, part.stop)) else array[rows],
                self._options,
                shard=self._name,
                where=batch,
                grid_shape=self.grid_shape,
                write_empty=self._write_empty,
            )
            for position, data in zip(batch, encoded, strict=True):
                if data is not None:
                    self._store(position, memoryview(data))

    def write_encoded(self, coords: Iterable[int], data: Any) -> None:
        """Write one inner chunk that is already encoded. Its bytes are not decoded to check them.

        Parameters
        ----------
        coords : tuple of int
            Grid position of the inner chunk.
        data : bytes-like
            The encoded inner chunk.

        Raises
        ------
        ValueError
            The codecs cannot produce this size, the inner chunk was written before, or the writer is closed.
        IndexError
            `coords` lies outside the grid.
        OSError
            The file cannot be written. The inner chunk may be written again.
        """
        (position,) = positions([as_coords(coords)], self.grid_shape)
        view = as_buffer(data, "data")
        check_size(self._chain, position, view.nbytes)
        self._claim([position])
        try:
            self._store(position, view)
        except BaseException:
            self._release([position])
            raise

    def _sequence(self, where: Sequence[int]) -> Sequence[int]:
        """Return positions in the order in which their inner chunks are written."""
        return where

    def _write(self, position: int, data: memoryview) -> None:
        """Write the bytes of an inner chunk at their place in the file."""
        raise NotImplementedError

    def _store(self, position: int, data: memoryview) -> None:
        self._write(position, data)
        with self._mutex:
            self._stored[position] = True

    def _claim(self, where: list[int]) -> None:
        """Mark inner chunks as passed by a caller; raise ValueError if one was passed before."""
        with self._mutex:
            self._open_sink()
            for i, position in enumerate(where):
                if self._claimed[position]:
                    self._claimed[where[:i]] = False
                    at = coordinates(position, self.grid_shape)
                    raise ValueError(
                        f"shard {self._name!r}: inner chunk {at} is given a second time; write each inner chunk once"
                    )
                self._claimed[position] = True

    def _release(self, where: list[int]) -> None:
        """Allow the caller to write inner chunks again after an error, unless they are in the file."""
        with self._mutex:
            self._claimed[where] = self._stored[where]

    def _open_sink(self) -> Any:
        """Return the file; raise ValueError after the end."""
        if self._sink is None:
            raise ValueError(self._CLOSED)
        return self._sink

    def _write_end(self, sink: Any, entries: np.ndarray[Any, Any], end: int, footer: Any) -> None:
        """Write the footer behind the inner chunks, which end at byte `end`, and the index."""
        tail = marked_footer(end, self._header_nbytes, footer, self._alignment)
        index = np.empty(self._spec.index_nbytes, dtype=np.uint8)
        native.load().store_index(self._chain, entries, index)
        if native.has_checks():
            self._check_entries(entries, end, end + len(tail))
        if tail:
            sink.write(tail, end)
        sink.write(index, 0 if self._spec.index_location == "start" else end + len(tail))

    def _check_entries(self, entries: np.ndarray[Any, Any], end: int, index_end: int) -> None:
        """In a debug build: check that inner chunks lie side by side between the header and `end`."""
        at_start, nbytes = self._spec.index_location == "start", self._spec.index_nbytes
        first = self._header_nbytes + (nbytes if at_start else 0)
        engine = native.load()
        engine.index_check(
            entries, index_end + (0 if at_start else nbytes), 0 if at_start else index_end, nbytes
        )
        stored = entries[(entries[:, 0] != ABSENT) & (entries[:, 1] > 0)]
        inside = (stored[:, 0] >= first) & (stored[:, 0] + stored[:, 1] <= end)
        if not inside.all() or len(engine.index_overlaps(entries)[0]):
            raise AssertionError(
                f"shard {self._name!r}: inner chunks overlap or leave [{first}, {end}): {entries}"
            )

    def _put_in_place(self, sink: Any, confirm: Callable[[], None] | None = None) -> None:
        """Give the new file the name of the shard, under the locks of the shard, after a call of `confirm`."""
        path = os.path.realpath(sink.place[0])  # the file that is replaced, also if a link has changed since
        sync = self._options.durability == "fsync"

        def commit(file: OpenFile | None) -> bool:
            if confirm is not None:
                confirm()
            return bool(sink.commit(sync=sync, only_new=file is locks.NO_FILE))

        with locks.table().hold([path]):
            locks.update(path, self._options, commit, sink.place[0])
        file_systems.report_unguarded(path)
        if sync:
            sync_documents([path])

    def abort(self) -> None:
        """Discard the new shard; do nothing after the end. An old shard under the same name stays."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()


# ---------------------------------------------------------------- one shard that several processes write at the same time
#
# `SlotWriter`: one of several writers of a new shard, in threads, processes or machines, without locks.
#
# If every encoded inner chunk has the same size, its place in the file (its slot) is known before it is written. One
# process creates the file, all write into it, each inner chunk into its slot, and one writes the index and gives the file
# its name:
#
#     rank 0        token = ShardWriter.create(path, spec)
#     every rank    with ShardWriter.join(token) as part: part.write_chunk(coords, chunk)
#     (barrier)     present = gather(part.present)
#     rank 0        ShardWriter.join(token).commit(present)
#
# Slots begin at multiples of a page: a network file system may cache a page in each machine until the file is closed, so two
# machines must not write into the same page.

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
        with self._mutex:
            stored = np.flatnonzero(self._stored)
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
            Another process held the lock of the shard for longer than ``lock_timeout``. Nothing is lost: join again and
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
