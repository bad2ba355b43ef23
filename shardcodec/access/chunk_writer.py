# chunk_writer.py - inner chunks into a new file
# SPDX-License-Identifier: MIT
"""`ChunkWriter`: accepts each inner chunk of a new shard once, encodes it, and writes it to a new file.

The subclasses `ShardWriter` and `SlotWriter` decide where in the file an inner chunk is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..arguments import as_buffer
from ..format.spec import ShardSpec
from ..options import Options
from ..storage import file_locks, lock_reach, process_locks
from ..storage.file_systems import OpenFile
from ..storage.synced_documents import sync_documents
from .compiled_chains import compiled
from .encoded_chunks import check_size
from .inner_chunks import as_array, as_chunks, as_coords, batches, coordinates, encode_chunks, positions
from .placement import ABSENT
from .user_bytes import marked_footer

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ChunkWriter"]


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
        self._mutex = native.load().Mutex()  # refuses a signal handler that would wait for itself
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
        self._stored[position] = True

    def _claim(self, where: list[int]) -> None:
        """Mark inner chunks as passed by a caller; raise ValueError if one was passed before."""

        def passed() -> tuple[None, list[tuple[Any, ...]]]:
            if self._sink is None:
                raise ValueError(self._CLOSED)
            seen: set[int] = set()
            for position in where:
                if self._claimed[position] or position in seen:
                    at = coordinates(position, self.grid_shape)
                    raise ValueError(
                        f"shard {self._name!r}: inner chunk {at} is given a second time; write each inner chunk once"
                    )
                seen.add(position)
            return None, [(self._claimed.__setitem__, where, True)]

        self._mutex.change(passed)

    def _release(self, where: list[int]) -> None:
        """Allow the caller to write inner chunks again after an error, unless they are in the file."""
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
            return bool(sink.commit(sync=sync, only_new=file is file_locks.NO_FILE))

        with process_locks.table().hold([path]):
            file_locks.update(path, self._options, commit, sink.place[0])
        lock_reach.report_unguarded(path)
        if sync:
            sync_documents([path])

    def abort(self) -> None:
        """Discard the new shard; do nothing after the end. An old shard under the same name stays."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()
