# shard_writer.py - a shard written piece by piece
# SPDX-License-Identifier: MIT
"""`ShardWriter`: a new shard, inner chunk by inner chunk.

What is given is written at once, so memory holds a few inner chunks, and the index in the end. Nothing can be seen under
the shard's name before `commit`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .. import native
from ..errors import LockError, UnsupportedError
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from ..storage import file_locks, locks
from ..storage.files import check_name
from ..storage.temp_folder import staging_for
from .chunk_codec import compiled
from .inner_chunks import as_chunks, batches, coordinates, encode_chunks, positions
from .placement import ABSENT, aligned
from .slot_writer import SlotWriter, create
from .user_bytes import check_alignment, marked_footer
from .write_encoded import check_size, ordered

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ShardWriter"]


class ShardWriter:
    """Write one shard, streaming.

    Parameters
    ----------
    path : path-like or None
        A local file, made or replaced when the shard is committed. None: `commit` returns the shard's bytes.
    spec : ShardSpec
    header, footer : bytes-like
        Bytes of the user's before the first and after the last inner chunk; every reader of shards passes over them.
        `footer` may be set until `commit`.
    alignment : int
        Each inner chunk begins at a multiple of this, a power of two: 512 or 4096 for direct input and memory maps.
    write_empty_chunks : bool
        Store inner chunks that equal the fill value bit by bit.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Sequence of inner chunks that are given in one call. Different calls' are laid out as they come.
    durability, threads : optional
        As in `Options`.

    Raises
    ------
    UnsupportedError
        Codecs follow the sharding.

    Notes
    -----
    Several threads may give chunks at a time. An inner chunk that nobody gives is absent. A shard without any inner chunk
    is written all the same: it is an index and nothing else, with header and footer.

    Examples
    --------
    >>> with shardcodec.ShardWriter("c/0/0", spec, alignment=4096) as writer:
    ...     for coords, chunk in chunks:
    ...         writer.write_chunk(coords, chunk)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        spec: ShardSpec,
        *,
        header: Any = b"",
        footer: Any = b"",
        alignment: int = 1,
        write_empty_chunks: bool = False,
        order: str | None = None,
        durability: str | None = None,
        threads: int | None = None,
    ) -> None:
        if not spec.supports_partial_access:
            raise UnsupportedError("codecs that follow the sharding encode the shard as a whole")
        if spec.chain.is_clipped:
            raise UnsupportedError(
                "inner chunks that are clipped are not written one by one; `encode` takes all"
            )
        choices = {"order": order, "durability": durability, "threads": threads}
        self._options: Options = resolve(argument=check(choices))
        self._spec = spec
        self._chain = compiled(spec.chain)
        self._alignment = check_alignment(alignment)
        self._write_empty = write_empty_chunks
        self.footer = footer
        self._header_nbytes = memoryview(header).nbytes
        self._entries = np.full((spec.n_chunks, 2), ABSENT, dtype=np.uint64)
        self._given = np.zeros(spec.n_chunks, dtype=np.bool_)
        self._mutex = threading.Lock()
        self._path = None if path is None else check_name(os.path.abspath(path))
        self._sink: Any = _Memory() if self._path is None else _new_file(self._path)
        self._at = spec.index_nbytes if spec.index_location == "start" else 0
        try:
            self._put(memoryview(header))
        except BaseException:
            self._sink.abort()
            raise

    @property
    def spec(self) -> ShardSpec:
        """What the shard is."""
        return self._spec

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of inner chunks along each axis."""
        return self._spec.grid_shape

    @property
    def nbytes(self) -> int:
        """Bytes so far: where the next inner chunk would go."""
        return aligned(self._at, self._alignment)  # type: ignore[no-any-return]

    # ---- giving chunks

    def write_chunk(self, coords: Iterable[int], chunk: Any) -> None:
        """Encode and write one inner chunk.

        Parameters
        ----------
        coords : tuple of int
            Its place in the grid.
        chunk : array_like
            Of the spec's ``chunk_shape``, cast to its dtype where numpy calls that safe.

        Raises
        ------
        ValueError
            It has another shape, or an inner chunk was given before.
        IndexError
            There is no such place.
        """
        self.write_chunks([tuple(coords)], np.asarray(chunk)[None])

    def write_chunks(self, coords: Any, chunks: Any) -> None:
        """Encode and write inner chunks, several threads at work.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
        chunks : array_like, shape (n, *chunk_shape)
        """
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
        sequence = ordered(where, self.grid_shape, self._options.order)
        place = {position: i for i, position in enumerate(where)}
        for part in batches(len(where), self._spec.inner.nbytes):
            some = sequence[part]
            rows = [place[position] for position in some]
            chosen = array[part] if rows == list(range(part.start, part.stop)) else array[rows]
            encoded = encode_chunks(
                chain,
                chosen,
                self._options,
                shard=self._path or "",
                where=some,
                grid_shape=self.grid_shape,
                write_empty=self._write_empty,
            )
            for position, data in zip(some, encoded, strict=True):
                if data is not None:
                    self._write(position, memoryview(data))

    def write_encoded(self, coords: Iterable[int], data: Any) -> None:
        """Write one inner chunk that is encoded already.

        Raises
        ------
        ValueError
            An encoded inner chunk of this shard cannot have this size, or it was given before.
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

    def write_joined(self, coords: Any, sizes: Any, data: Any) -> None:
        """Write inner chunks that are encoded already and lie one behind the other in a buffer.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
        sizes : sequence of int
            Bytes of each.
        data : bytes-like

        Raises
        ------
        ValueError
            The sizes are not those of the buffer, or none that inner chunks of this shard can have, or one was given before.
        """
        where = positions(coords, self.grid_shape)
        view = memoryview(data).cast("B")
        ends = np.cumsum(np.asarray(sizes, dtype=np.uint64), dtype=np.uint64)
        if len(ends) != len(where) or (int(ends[-1]) if len(ends) else 0) != view.nbytes:
            raise ValueError(f"{len(where)} inner chunks of {len(ends)} sizes in {view.nbytes} bytes")
        bounds = [0, *ends.tolist()]
        for position, low, high in zip(where, bounds, bounds[1:], strict=False):
            check_size(self._chain, position, high - low)
        self._claim(where)
        try:
            if self._alignment > 1:
                for position, low, high in zip(where, bounds, bounds[1:], strict=False):
                    self._write(position, view[low:high])
            else:
                first = self._put(view)
                self._entries[where, 0] = np.array(bounds[:-1], dtype=np.uint64) + np.uint64(first)
                self._entries[where, 1] = np.asarray(sizes, dtype=np.uint64)
        except BaseException:
            self._unclaim(where)
            raise

    def _claim(self, where: list[int]) -> None:
        """Note that these are given, or find that one was before."""
        with self._mutex:
            if self._sink is None:
                raise ValueError("the shard has been committed or aborted")
            for i, position in enumerate(where):
                if self._given[position]:
                    self._given[where[:i]] = False
                    at = coordinates(position, self.grid_shape)
                    raise ValueError(f"inner chunk {at} is given a second time")
                self._given[position] = True

    def _unclaim(self, where: list[int]) -> None:
        """After a failure: what has not been written may be given again."""
        with self._mutex:
            self._given[where] = self._entries[where, 0] != ABSENT

    def _write(self, position: int, data: memoryview) -> None:
        self._entries[position] = self._put(data, self._alignment), data.nbytes

    def _put(self, data: memoryview, alignment: int = 1) -> int:
        """Write bytes behind all others; return where."""
        with self._mutex:
            offset = aligned(self._at, alignment)
            self._at = offset + data.nbytes
        if data.nbytes:
            self._sink.write(data, offset)
        return int(offset)

    # ---- the end

    def commit(self) -> Any:
        """Write footer and index, and give the shard its name.

        Returns
        -------
        bytes or None
            The shard, where it has no path.

        Raises
        ------
        ValueError
            It has been committed or aborted.
        OSError
            The file could not be written. What was there before is there still.
        LockError
            Another process writes to the shard that is to be replaced, and did not end in time. Nothing is lost: the
            shard can be committed again.
        """
        sink = self._sink
        if sink is None:
            raise ValueError("the shard has been committed or aborted")
        self._sink = None  # nobody adds to it meanwhile
        try:
            self._write_end(sink)
            return self._store(sink)
        except LockError:
            sink.truncate(self._at)  # it may end in another way the next time
            self._sink = sink
            raise
        except BaseException:
            sink.abort()
            raise

    def _write_end(self, sink: Any) -> None:
        """Write what follows the inner chunks, and an index before them."""
        tail = marked_footer(self._at, self._header_nbytes, self.footer, self._alignment)
        if tail:
            sink.write(tail, self._at)
        index = np.empty(self._spec.index_nbytes, dtype=np.uint8)
        native.load().store_index(self._chain, self._entries, index)
        sink.write(index, 0 if self._spec.index_location == "start" else self._at + len(tail))

    def _store(self, sink: Any) -> Any:
        """Give the shard its name, under its lock; without a path return it."""
        if self._path is None:
            return sink.commit()
        path = os.path.realpath(sink.place[0])  # what is replaced, also if a link leads elsewhere by now
        sync = self._options.durability == "fsync"
        with locks.table().hold([path]):
            file_locks.update(
                path,
                self._options,
                lambda fd: sink.commit(sync=sync, only_new=fd == file_locks.NO_FILE),
                repeats=False,
            )
        return None

    def abort(self) -> None:
        """Forget the shard; nothing when it has been committed."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()

    # ---- several processes

    @staticmethod
    def create(path: str | os.PathLike[str], spec: ShardSpec, **how: Any) -> bytes:
        """Begin a shard that several threads, processes or machines write at once, without locks.

        Parameters
        ----------
        path : path-like
            A local file, which all of them reach under this name.
        spec : ShardSpec
            Inner chunks have a fixed size: no compressor.
        **how
            header, alignment, write_empty_chunks, order, durability, threads: as for the class. The alignment is 4096
            unless another is given: it keeps machines apart that write through pages of their own.

        Returns
        -------
        bytes
            A token for `join`, to be sent to the others. The process that has it made must live until the commit: what
            dead writers leave is cleaned away.

        Raises
        ------
        UnsupportedError
            Inner chunks have no fixed size.

        Examples
        --------
        >>> token = comm.bcast(ShardWriter.create(path, spec) if comm.rank == 0 else None)
        >>> with ShardWriter.join(token) as part:
        ...     part.write_chunk(coords, chunk)
        >>> present = comm.gather(part.present)
        >>> if comm.rank == 0:
        ...     ShardWriter.join(token).commit(np.concatenate(present))
        """
        return create(path, spec, **how)

    @staticmethod
    def join(token: bytes) -> SlotWriter:
        """Take part in a shard that was begun with `create`.

        Raises
        ------
        ValueError
            This is no token.
        FileNotFoundError
            The shard has been committed or aborted.
        """
        return SlotWriter(token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit; after an exception, abort. Nothing when either has been done."""
        if kind is not None:
            self.abort()
        elif self._sink is not None:
            self.commit()


def _new_file(path: str) -> Any:
    return native.load().NewFile(path, staging=staging_for(path))


class _Memory:
    """A file in memory."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._mutex = threading.Lock()

    def write(self, data: Any, offset: int) -> None:
        view = memoryview(data).cast("B")
        with self._mutex:
            if offset > len(self._data):
                self._data.extend(bytes(offset - len(self._data)))
            self._data[offset : offset + view.nbytes] = view

    def commit(self) -> bytes:
        return bytes(self._data)

    def abort(self) -> None:
        self._data = bytearray()
