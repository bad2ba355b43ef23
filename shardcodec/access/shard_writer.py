# shard_writer.py - `ShardWriter`: a new shard, inner chunk by inner chunk
# SPDX-License-Identifier: MIT
"""`ShardWriter`: writes a new shard, inner chunk by inner chunk.

Inner chunks are written at once, so memory holds a few of them and the index. No reader sees the new shard before
`commit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np

from .. import native
from ..arguments import as_buffer, checked, show
from ..compat import StorePath
from ..errors import LockError, UnsupportedError
from ..format.spec import ShardSpec
from ..option_sources import current_options
from ..options import Durability, Options, Order, check
from ..storage.kinds import at_url, is_zarr_store, object_at
from ..storage.store import Store
from ..storage.upload import Upload
from .chunk_writer import ChunkWriter
from .compiled_chains import compiled
from .encoded_chunks import check_size, ordered
from .inner_chunks import positions
from .placement import ABSENT, aligned
from .shard_change import Change, change
from .shard_object import ShardObject
from .slot_writer import SlotHow, SlotWriter, create
from .user_bytes import check_alignment

__all__ = ["ShardWriter", "replace_chunks"]


class ShardWriter(ChunkWriter):
    """Writes one new shard, inner chunk by inner chunk.

    Parameters
    ----------
    store : path-like, URL, zarr store or None
        A local file, created or replaced by `commit`; its URL in an object store, such as ``s3://bucket/a/c/0/0``. With
        `key`, the folder, URL or store that contains the object. None: `commit` returns the bytes of the shard.
    spec : ShardSpec
        Layout and codecs of the shard.
    key : str, optional
        Name of the object in the folder or store.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    header, footer : bytes-like
        User bytes before the first and after the last inner chunk; readers of shards skip them. The attribute `footer`
        may be changed until `commit`.
    alignment : int
        Each inner chunk begins at a multiple of this number of bytes, a power of two: 512 or 4096 for direct I/O and
        memory maps.
    write_empty_chunks : bool
        Store also inner chunks that equal the fill value bit by bit.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Order of the inner chunks of one call. Different calls are written one after the other.
    durability, threads : optional
        As in `shardcodec.options`.
    confirm : callable, optional
        Only for a local file: called by `commit` under the lock of the shard, before the new file replaces the old one. If
        it raises, the old shard stays.

    Raises
    ------
    UnsupportedError
        Codecs follow the sharding, or inner chunks are clipped.
    ValueError
        An option or the alignment is invalid, the store is read-only, or the URL cannot be opened with these options.
    TypeError
        `store` is nothing of this kind, or there are options without a URL.
    ImportError
        No package is installed that can open the URL.
    OSError
        The file cannot be created.

    Notes
    -----
    An object store gets the shard in parts while it is written, so memory holds some parts of 8 MiB or more. It holds the
    whole shard if the index is at the start, and in stores without multipart uploads (`docs/object-stores.md`).

    Several threads may write through one object. An inner chunk that is not written is absent. A shard without inner
    chunks consists of its index, header and footer. A with block commits at its end; an exception that leaves the block
    aborts.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec((4, 6), (2, 3), "uint8", 0)
    >>> with shardcodec.ShardWriter("shard", spec, alignment=512) as writer:
    ...     writer.write_chunk((0, 1), np.ones((2, 3), "uint8"))
    >>> shardcodec.open_shard("shard", None, spec).state().tolist()
    [[False, True], [False, False]]
    """

    _CLOSED = "expected an open shard, but it has been committed or aborted"

    @checked
    def __init__(
        self,
        store: Any,
        spec: ShardSpec,
        *,
        key: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        header: Any = b"",
        footer: Any = b"",
        alignment: int = 1,
        write_empty_chunks: bool = False,
        order: Order | None = None,
        durability: Durability | None = None,
        threads: int | None = None,
        confirm: Callable[[], None] | None = None,
    ) -> None:
        if not spec.supports_partial_access:
            raise UnsupportedError(
                "expected a spec without codecs after sharding_indexed, which encode the shard as a whole; use `encode`"
            )
        if spec.chain.is_clipped:
            raise UnsupportedError(
                "expected a chunk_shape that divides the shard: clipped inner chunks cannot be written one by one; "
                "use `encode`"
            )
        choices = {"order": order, "durability": durability, "threads": threads}
        target = _target(store, key, storage_options)
        full_path = None if target is None else target[0].path(target[1])
        super().__init__(
            spec,
            current_options(argument=check(choices)),
            name=full_path or ("" if target is None else target[1]),
            alignment=check_alignment(alignment),
            header_nbytes=as_buffer(header, "header").nbytes,
            write_empty=write_empty_chunks,
        )
        as_buffer(footer, "footer")
        self.footer = footer
        self._confirm = confirm
        self._path = full_path
        self._entries = np.full((spec.n_chunks, 2), ABSENT, dtype=np.uint64)
        self._end = spec.index_nbytes if spec.index_location == "start" else 0
        # a store takes the bytes of an object in order, so its writers take turns
        self._turn: AbstractContextManager[Any] = nullcontext()
        if target is None:
            self._sink = _MemoryFile()
        elif full_path is not None:
            self._sink = native.load().NewFile(full_path, staging=target[0].staging(target[1]))
        else:
            upload = Upload(*target, self._most_nbytes())
            self._sink = _CollectedObject(upload) if spec.index_location == "start" else upload
            self._turn = native.load().Mutex()
        try:
            self._append(memoryview(header))
        except BaseException:
            self.abort()
            raise

    @property
    def nbytes(self) -> int:
        """Number of bytes so far, which is the offset of the next inner chunk."""
        return aligned(self._end, self._alignment)  # type: ignore[no-any-return]

    def write_joined(self, coords: Any, sizes: Any, data: Any) -> None:
        """Write inner chunks that are already encoded and lie one after the other in a buffer.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions, each at most once.
        sizes : sequence of int, length n
            Size of each encoded inner chunk in bytes.
        data : bytes-like
            The encoded inner chunks.

        Raises
        ------
        ValueError
            The sizes do not add up to the size of `data`, the codecs cannot produce one of them, an inner chunk was
            written before, or the writer is closed.
        IndexError
            A position lies outside the grid.
        OSError
            The file cannot be written.
        """
        where = positions(coords, self.grid_shape)
        view = as_buffer(data, "data")
        ends = np.cumsum(_as_sizes(sizes), dtype=np.uint64)
        total = int(ends[-1]) if len(ends) else 0
        if len(ends) != len(where) or total != view.nbytes:
            raise ValueError(
                f"sizes: expected {len(where)} numbers with a sum of {view.nbytes} bytes, got {len(ends)} numbers with a "
                f"sum of {total} bytes"
            )
        bounds = [0, *ends.tolist()]
        for position, low, high in zip(where, bounds, bounds[1:], strict=False):
            check_size(self._chain, position, high - low)
        self._claim(where)
        try:
            if self._alignment > 1:
                for position, low, high in zip(where, bounds, bounds[1:], strict=False):
                    self._store(position, view[low:high])
            else:
                first = self._append(view)
                self._entries[where, 0] = np.array(bounds[:-1], dtype=np.uint64) + np.uint64(first)
                self._entries[where, 1] = np.asarray(sizes, dtype=np.uint64)
                self._stored[where] = True
        except BaseException:
            self._release(where)
            raise

    def _sequence(self, where: Sequence[int]) -> Sequence[int]:
        return ordered(where, self.grid_shape, self._options.order)

    def _write(self, position: int, data: memoryview) -> None:
        self._entries[position] = self._append(data, self._alignment), data.nbytes

    def _append(self, data: memoryview, alignment: int = 1) -> int:
        """Write bytes at the end of the file; return their offset."""
        with self._turn:
            with self._mutex:
                offset = aligned(self._end, alignment)
                self._end = offset + data.nbytes
            if data.nbytes:
                self._open_sink().write(data, offset)
        return int(offset)

    def _most_nbytes(self) -> int:
        """Estimate the size of the largest shard that can be written."""
        chunk_nbytes = aligned(int(self._chain.inner.nbytes), self._alignment)
        return (
            self._end
            + self._header_nbytes
            + self._spec.n_chunks * int(chunk_nbytes)
            + self._spec.index_nbytes
        )

    def commit(self) -> Any:
        """Write footer and index, and give the shard its name. An object store then shows the new shard to readers.

        Returns
        -------
        bytes or None
            The shard if it has no path, else None.

        Raises
        ------
        ValueError
            The shard has been committed or aborted.
        OSError
            The file cannot be written. The old shard stays.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``. Nothing is lost: call `commit`
            again.
        """
        sink = self._open_sink()
        self._sink = None  # no thread writes from here on
        try:
            self._write_end(sink, self._entries, self._end, self.footer)
            if self._path is None:
                return sink.commit()
            self._put_in_place(sink, self._confirm)
        except LockError:
            sink.truncate(self._end)  # the next commit may have another footer
            self._sink = sink
            raise
        except BaseException:
            sink.abort()
            raise
        return None

    @staticmethod
    def create(path: str | os.PathLike[str], spec: ShardSpec, **how: Unpack[SlotHow]) -> bytes:
        """Begin a shard that several threads, processes or machines write at the same time, without locks.

        Parameters
        ----------
        path : path-like
            A local file, which all writers reach under this path.
        spec : ShardSpec
            Layout and codecs. Encoded inner chunks must have a fixed size: no compressor.
        **how
            header, alignment, write_empty_chunks, order, durability, threads: as for the class. The default alignment is
            4096 bytes, so that no two machines write into the same page.

        Returns
        -------
        bytes
            A token for `join`; send it to the other writers. This process must live until the commit, because the next
            writer removes the temporary files of processes that have ended.

        Raises
        ------
        UnsupportedError
            Encoded inner chunks have no fixed size.
        ValueError, TypeError
            An argument is invalid.
        OSError
            The file cannot be created.

        Examples
        --------
        Here one process writes both parts; a program of MPI sends the token and gathers ``present``.

        >>> spec = shardcodec.ShardSpec((4, 6), (4, 3), "uint8", 0, codecs=["bytes"])
        >>> token = shardcodec.ShardWriter.create("shard", spec)
        >>> present = []
        >>> for rank in range(2):
        ...     with shardcodec.ShardWriter.join(token) as part:
        ...         part.write_chunk((0, rank), np.full((4, 3), rank + 1, "uint8"))
        ...     present.append(part.present)
        >>> shardcodec.ShardWriter.join(token).commit(np.concatenate(present))
        >>> shardcodec.decode(Path("shard").read_bytes(), spec, 0).tolist()
        [1, 1, 1, 2, 2, 2]
        """
        return create(path, spec, **how)

    @staticmethod
    def join(token: bytes) -> SlotWriter:
        """Take part in a shard that was begun with `create`.

        Parameters
        ----------
        token : bytes
            The result of `create`, in any process that can open the file.

        Returns
        -------
        SlotWriter
            The writer of this process.

        Raises
        ------
        ValueError
            `token` is not a token of this version.
        FileNotFoundError
            The shard has been committed or aborted.
        """
        return SlotWriter(token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception; do nothing after the end."""
        if kind is not None:
            self.abort()
        elif self._sink is not None:
            self.commit()


def _as_sizes(sizes: Any) -> np.ndarray[Any, Any]:
    """Return sizes of the caller as an array; TypeError for anything else."""
    try:
        given = np.asarray(sizes)
        if not given.size or (given.ndim == 1 and given.dtype.kind in "iu" and int(given.min()) >= 0):
            return given.astype(np.uint64).ravel()
    except ValueError:  # a ragged list
        pass
    raise TypeError(f"sizes: expected a sequence of whole numbers that are not negative, got {show(sizes)}")


class _MemoryFile:
    """A new file in memory, with the methods of a native `NewFile`."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._mutex = native.load().Mutex()

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


class _CollectedObject(_MemoryFile):
    """An object of a store whose first bytes are known last."""

    def __init__(self, upload: Upload) -> None:
        super().__init__()
        self._upload = upload

    def commit(self) -> None:  # type: ignore[override]
        self._upload.write(self._data, 0)
        self._upload.commit()

    def abort(self) -> None:
        super().abort()
        self._upload.abort()


def _target(
    path: Any, key: str | None, storage_options: Mapping[str, Any] | None
) -> tuple[Store, str] | None:
    """Return the store and the key of an object; None for bytes. TypeError: `path` is neither a path, nor a URL, nor a store."""
    if path is None:
        at_url(path, storage_options)
        return None
    if not isinstance(path, str | os.PathLike | StorePath) and not is_zarr_store(path):
        raise TypeError(f"expected a path, a URL, a zarr store or None, got {type(path).__name__}")
    store, object_key, _ = object_at(path, key, storage_options)
    return store, object_key


def replace_chunks(
    place: ShardObject, spec: ShardSpec, chunks: Callable[[], Mapping[int, Any]], options: Options
) -> None:
    """Replace a shard in any store by one with the encoded inner chunks of a mapping from positions, and no others.

    `chunks` is called under the locks of the shard, again if another writer was faster. If it raises, the old shard stays.
    """
    change(place, compiled(spec.chain), lambda _: Change(chunks(), complete=True, keep_empty=True), options)
