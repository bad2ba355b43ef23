# slot_writer.py - one shard written by several processes at once
# SPDX-License-Identifier: MIT
"""Shards that threads, processes and machines write together, without locks.

Where every encoded inner chunk has the same size, its place in the file is known before it is written. One process
begins the file, all write into it, each inner chunk into a slot of its own, and one writes the index and gives the file
its name:

    rank 0        token = ShardWriter.create(path, spec)
    every rank    with ShardWriter.join(token) as part: part.write_chunk(coords, chunk)
    (barrier)     present = gather(part.present)
    rank 0        ShardWriter.join(token).commit(present)

Slots begin at multiples of a page, so that two machines never write to one page of a network file system, each of which
keeps pages of its own until it closes the file.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from .. import native
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from ..storage import file_locks, locks
from ..storage.files import check_name
from ..storage.temp_folder import staging_for
from .chunk_codec import compiled
from .inner_chunks import as_chunks, batches, coordinates, encode_chunks, positions
from .placement import ABSENT, aligned
from .user_bytes import check_alignment, marked_footer
from .write_encoded import check_size, ordered

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["SlotWriter", "create"]

# A page, on every machine that is likely to take part.
PAGE_NBYTES = 4096

FORMAT = "shardcodec shared shard 1"


class _Layout(NamedTuple):
    """What a token says."""

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

    def token(self) -> bytes:
        fields = self._asdict() | {"spec": self.spec.chain.to_metadata(self.spec.shard_shape)}
        return json.dumps({"format": FORMAT, **fields}).encode()

    @classmethod
    def parse(cls, token: Any) -> _Layout:
        try:
            fields = json.loads(bytes(token))
            if fields.pop("format") != FORMAT:
                raise ValueError
            return cls(**fields | {"spec": ShardSpec.from_metadata(fields["spec"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError("this is no token of a shared shard, or one of another version") from None

    def slot(self, chain: Chain) -> int:
        """Bytes from one slot to the next."""
        return int(aligned(_chunk_nbytes(chain), self.alignment))


def _chunk_nbytes(chain: Chain) -> int:
    """Size of every encoded inner chunk."""
    nbytes = chain.inner.fixed_nbytes
    assert nbytes is not None, "`create` takes no other chains"
    return int(nbytes)


def create(
    path: str | os.PathLike[str],
    spec: ShardSpec,
    *,
    header: Any = b"",
    alignment: int = PAGE_NBYTES,
    write_empty_chunks: bool = False,
    order: str | None = None,
    durability: str | None = None,
    threads: int | None = None,
) -> bytes:
    """Begin a shard that several processes write; see `ShardWriter.create`."""
    chain = compiled(spec.chain)
    if not spec.supports_partial_access or chain.inner.fixed_nbytes is None:
        raise UnsupportedError(
            "only inner chunks of fixed size have slots: no compressor, no codecs behind the sharding"
        )
    choices = check({"order": order, "durability": durability, "threads": threads})
    options = resolve(argument=choices)
    kept = {"order": options.order, "durability": options.durability} | choices
    check_alignment(alignment)
    full = check_name(os.path.abspath(path))
    file = native.load().NewFile(full, staging=staging_for(full), shared=True)
    try:
        start = spec.index_nbytes if spec.index_location == "start" else 0
        head = memoryview(header).cast("B")
        first = int(aligned(start + head.nbytes, alignment))
        place, temp, staging, n_made = file.place
        layout = _Layout(
            spec, place, temp, staging, n_made, first, alignment, write_empty_chunks, kept, head.nbytes
        )
        file.truncate(first + spec.n_chunks * layout.slot(chain))
        if head.nbytes:
            file.write(head, start)
        token = layout.token()
        file.leave(sync=options.durability == "fsync")
    except BaseException:
        file.abort()
        raise
    return token


class SlotWriter:
    """One process's part in a shard that several write; made by `ShardWriter.join`.

    Threads may share one. As a context manager it is closed at the end, after an exception too; only `abort` gives up the
    whole shard.
    """

    def __init__(self, token: Any) -> None:
        self._layout = _Layout.parse(token)
        self._spec = self._layout.spec
        self._chain = compiled(self._spec.chain)
        self._options: Options = resolve(argument=check(self._layout.choices))
        self._slot = self._layout.slot(self._chain)
        sequence = ordered(range(self._spec.n_chunks), self._spec.grid_shape, self._options.order)
        self._rank = np.empty(self._spec.n_chunks, dtype=np.int64)
        self._rank[sequence] = np.arange(self._spec.n_chunks)
        self._given: dict[int, bool] = {}  # False: nothing but fill value
        self._mutex = threading.Lock()
        self._file: Any = native.load().NewFile(
            self._layout.path,
            temp=self._layout.temp,
            staging=self._layout.staging,
            n_made=self._layout.n_made,
        )

    @property
    def spec(self) -> ShardSpec:
        """What the shard is."""
        return self._spec

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of inner chunks along each axis."""
        return self._spec.grid_shape

    @property
    def present(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Coordinates of the inner chunks that were stored through this object, shape (n, ndim)."""
        with self._mutex:
            stored = sorted(position for position, is_stored in self._given.items() if is_stored)
        coords = [coordinates(position, self.grid_shape) for position in stored]
        return np.array(coords, dtype=np.int64).reshape(len(stored), len(self.grid_shape))

    # ---- giving chunks

    def write_chunk(self, coords: Iterable[int], chunk: Any) -> None:
        """Encode and write one inner chunk; see `ShardWriter.write_chunk`."""
        self.write_chunks([tuple(coords)], np.asarray(chunk)[None])

    def write_chunks(self, coords: Any, chunks: Any) -> None:
        """Encode and write inner chunks; see `ShardWriter.write_chunks`."""
        where = positions(coords, self.grid_shape)
        array, native_order = as_chunks(chunks, self._spec.dtype, self._spec.chunk_shape, len(where))
        chain = compiled(self._spec.inner, native_order)
        self._claim(where)
        try:
            self._encode(where, chain, array)
        except BaseException:
            self._unclaim(where)
            raise

    def _encode(self, where: list[int], chain: Chain, array: np.ndarray[Any, Any]) -> None:
        for part in batches(len(where), self._spec.inner.nbytes):
            encoded = encode_chunks(
                chain,
                array[part],
                self._options,
                shard=self._layout.path,
                where=where[part],
                grid_shape=self.grid_shape,
                write_empty=self._layout.write_empty,
            )
            for position, data in zip(where[part], encoded, strict=True):
                if data is not None:
                    self._write(position, data)

    def write_encoded(self, coords: Iterable[int], data: Any) -> None:
        """Write one inner chunk that is encoded already.

        Raises
        ------
        ValueError
            It has not the size that all have, or was given before.
        """
        (position,) = positions([tuple(coords)], self.grid_shape)
        view = memoryview(data).cast("B")
        check_size(self._chain, position, view.nbytes)
        self._claim([position])
        try:
            self._write(position, view)
        except BaseException:
            self._unclaim([position])
            raise

    def _claim(self, where: list[int]) -> None:
        with self._mutex:
            self._opened()
            twice = next((p for i, p in enumerate(where) if p in self._given or p in where[:i]), None)
            if twice is not None:
                raise ValueError(f"inner chunk {coordinates(twice, self.grid_shape)} is given a second time")
            self._given.update(dict.fromkeys(where, False))

    def _unclaim(self, where: list[int]) -> None:
        """After a failure: what has not been written may be given again."""
        with self._mutex:
            for position in where:
                if not self._given[position]:
                    del self._given[position]

    def _write(self, position: int, data: Any) -> None:
        self._opened().write(data, self._offset(position))
        with self._mutex:
            self._given[position] = True

    def _offset(self, position: int) -> int:
        return self._layout.first + int(self._rank[position]) * self._slot

    def _opened(self) -> Any:
        if self._file is None:
            raise ValueError("this part of the shard has been closed")
        return self._file

    # ---- the end

    def close(self) -> None:
        """Hand what was written to the others: on network file systems they see it from then on.

        To be called by every rank before one of them commits.
        """
        file, self._file = self._file, None
        if file is not None:
            file.leave(sync=self._options.durability == "fsync")

    def commit(self, present: Any, *, footer: Any = b"") -> None:
        """Write the index, and give the shard its name. For one rank, when all others have closed their parts.

        Parameters
        ----------
        present : sequence of tuples of int, or integer array of shape (n, ndim)
            The inner chunks that were stored, by whomever: what all ranks have in `present`. All others are absent.
        footer : bytes-like
            Bytes behind the last inner chunk.

        Raises
        ------
        ValueError
            An inner chunk is named twice: two ranks have written it.
        LockError
            Another process writes to the shard that is to be replaced, and did not end in time. Whoever joins again can
            commit what was written.
        """
        where = positions(present, self.grid_shape)
        if len(set(where)) != len(where):
            twice = sorted(where)
            at = next(a for a, b in itertools.pairwise(twice) if a == b)
            raise ValueError(f"inner chunk {coordinates(at, self.grid_shape)} was written by two ranks")
        file = self._opened()
        nbytes = _chunk_nbytes(self._chain)
        entries = np.full((self._spec.n_chunks, 2), ABSENT, dtype=np.uint64)
        for position in where:
            entries[position] = self._offset(position), nbytes
        at_start = self._spec.index_location == "start"
        end = max((self._offset(position) + nbytes for position in where), default=self._layout.first)
        tail = marked_footer(end, self._layout.header_nbytes, footer, self._layout.alignment)
        index = np.empty(self._spec.index_nbytes, dtype=np.uint8)
        native.load().store_index(self._chain, entries, index)
        file.truncate(end)
        if tail:
            file.write(tail, end)
        file.write(index, 0 if at_start else end + len(tail))
        self._file = None
        keys = [os.path.realpath(self._layout.path)]
        sync = self._options.durability == "fsync"
        with locks.table().hold(keys):
            file_locks.update(
                keys[0],
                self._options,
                lambda fd: file.commit(sync=sync, only_new=fd == file_locks.NO_FILE),
                repeats=False,
            )

    def abort(self) -> None:
        """Give up the shard, for all ranks: the file in the making is removed, what was there before stays."""
        file, self._file = self._file, None
        if file is not None:
            file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
