# shard.py - `Shard`: one shard as a map from grid positions to inner chunks; `open_shard`
# SPDX-License-Identifier: MIT
"""`Shard`: one shard as a map from grid positions to inner chunks; `open_shard`.

`Shard`: reads and changes the inner chunks of one shard; the reading half is `shard_reader`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from ..arguments import as_buffer, check_argument, checked, show
from ..format.spec import ShardSpec
from ..options import NOTHING, OptionChoices, Options, WriteStrategy
from ..storage import process_locks
from ..storage.runner import BLOCKING, run_blocking
from .buffer import active_buffer, flush_buffered
from .buffer.buffered import Target
from .buffer.overlay import Overlay
from .compiled_chains import compiled
from .encoded_chunks import check_size
from .inner_chunks import as_chunks, encode_chunks, position_array, positions, sort_unique
from .placement import DEAD_SHARE
from .shard_change import Change, RollBack, StoredShard, change
from .shard_object import StoreObject, shard_object
from .shard_reader import ShardReader
from .user_bytes import UserBytes, check_alignment

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "Shard",
    "open_shard",
]


class WriteHow(TypedDict, total=False):
    """The keywords of `Shard.write_encoded`, for type checkers."""

    footer: Any
    keep_user_bytes: bool | None
    alignment: int | None
    strategy: WriteStrategy | None


class Shard(ShardReader):
    """A handle on one shard; made by `shardcodec.open_shard`.

    All reads return one state of the shard: the handle opens the object at its first use and keeps that state if a writer
    replaces the object. `refresh`, and each write through this handle, makes the handle open the object again.

    An object that does not exist is a shard without inner chunks. A with block closes the handle at its end.

    Use a handle in one thread at a time. Threads that work at the same time open a handle each: after a write through a
    shared handle, another thread's read could mix two states of the shard.

    Parameters
    ----------
    target : StoreObject
        The object with the shard.
    spec : ShardSpec
        Layout and codecs of the shard.
    mode : {"r", "r+"}
        Read only, or read and write.
    choices : mapping, optional
        Options of this handle.

    Raises
    ------
    ValueError, TypeError
        An argument is invalid.
    UnsupportedError
        Codecs follow the sharding, so inner chunks cannot be accessed one by one.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec.from_metadata(zarr.open_array("a.zarr").metadata.to_dict())
    >>> with shardcodec.open_shard("a.zarr", "c/0/0", spec, mode="r+") as shard:
    ...     shard.write_chunks([(0, 1)], np.full((1, 2, 3), 7, "int32"))
    ...     shard.erase([(1, 0)])
    ...     exists, row = shard.state().tolist(), shard.read_region(0).tolist()
    >>> exists, row
    ([[True, True], [False, True]], [0, 1, 2, 7, 7, 7])
    """

    def __init__(
        self, target: StoreObject, spec: ShardSpec, mode: str = "r", choices: Mapping[str, Any] = NOTHING
    ) -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"mode: expected 'r' or 'r+', got {mode!r}")
        super().__init__(target, spec, choices)
        self._object: StoreObject = target
        self._mode = mode

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._object, self._spec, self._mode, self._choices)

    @checked
    def write_chunks(
        self, coords: Any, chunks: Any, *, write_empty_chunks: bool = False, **how: Unpack[WriteHow]
    ) -> None:
        """Encode and store inner chunks in one atomic write. All other inner chunks stay unchanged.

        In a block of `shardcodec.group_writes`, a call without `how` is buffered in memory. It is stored at the end of the
        block, or before the shard is read or changed in another way.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions, each at most once.
        chunks : array_like, shape (n, *chunk_shape)
            The elements. They are cast to the dtype of the spec if numpy calls the cast safe.
        write_empty_chunks : bool
            Store inner chunks that equal the fill value bit by bit; by default they become absent.
        **how
            footer, keep_user_bytes, alignment, strategy: as for `write_encoded`.

        Raises
        ------
        ValueError
            The shard was opened for reading, an inner chunk is named twice, or `chunks` has another shape.
        IndexError
            A position lies outside the grid.
        TypeError
            The elements cannot be cast safely.
        UnsupportedError
            An inner chunk is clipped.
        CodecError
            A codec refuses the elements.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        where = positions(coords, self.grid_shape)
        self._refuse_clipped(where)
        array, native_order = as_chunks(chunks, self._spec.dtype, self._spec.chunk_shape, len(where))
        self._check_write(where)
        options = self._options()
        shard = self._chain if native_order else compiled(self._spec.chain, native_order)
        if not how and self._buffer(shard, where, array, options, write_empty=write_empty_chunks):
            self.refresh()
            return
        chain = compiled(self._spec.inner, native_order)
        encoded = encode_chunks(
            chain,
            array,
            options,
            shard=self.key,
            where=where,
            grid_shape=self.grid_shape,
            write_empty=write_empty_chunks,
        )
        self._write(self._change(where, encoded), **how)

    def write_encoded(self, coords: Any, chunks: Any, **how: Unpack[WriteHow]) -> None:
        """Store inner chunks that are already encoded in one atomic write. All other inner chunks stay unchanged.

        Every entry that the write carries over is checked first.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions, each at most once.
        chunks : sequence of (bytes-like or None)
            The encoded inner chunks; None makes an inner chunk absent.
        **how
            footer : bytes-like, optional
                A new footer, stored in the same write.
            keep_user_bytes : bool, optional
                Keep header, footer and alignment. Default: True if `footer` or `alignment` is given. If False, no entry
                refers to their bytes any more; the next packing removes them.
            alignment : int, optional
                The written inner chunks begin at a multiple of this number of bytes. Default with `keep_user_bytes`: the
                alignment of the shard.
            strategy : {"replace", "append", "in_place"}, optional
                The option ``write_strategy`` for this call. A write that keeps header and footer always replaces the
                object.

        Raises
        ------
        ValueError
            The shard was opened for reading, an inner chunk is named twice, or the codecs cannot produce a size.
        IndexError
            A position lies outside the grid.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        where = positions(coords, self.grid_shape)
        chunks = _as_list(chunks)
        if len(chunks) != len(where):
            raise ValueError(f"chunks: expected {len(where)} items, one for each position, got {len(chunks)}")
        for i, (position, data) in enumerate(zip(where, chunks, strict=True)):
            if data is not None:
                check_size(self._chain, position, as_buffer(data, f"chunks[{i}]").nbytes)
        self._check_write(where)
        self._write(self._change(where, chunks), **how)

    def erase(self, coords: Any, **how: Unpack[WriteHow]) -> None:
        """Make inner chunks absent. If none is left and no footer is given, the object is deleted.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions; repeats allowed.
        **how
            footer, keep_user_bytes, alignment, strategy: as for `write_encoded`.

        Raises
        ------
        ValueError, IndexError, ShardFormatError, ChecksumError, LockError
            As for `write_encoded`.
        """
        self._write(Change({}, sort_unique(position_array(coords, self.grid_shape))), **how)

    def roll_back(self) -> None:
        """Restore the old shard after a writer was killed during an update in place. Without a journal nothing is changed.

        Readers and writers of shardcodec do not need this: readers show the old shard, and every write restores it first.
        Other programs need it.

        Raises
        ------
        ValueError
            The shard was opened for reading.
        OSError
            The old bytes cannot be restored. They are still in the journal.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        self._check_mode()
        path = self._object.path
        if path is None:
            return
        try:
            self._object.update(RollBack(path), self._options())
        finally:
            self.refresh()

    def compact(self) -> int:
        """Pack the inner chunks together. Header, footer and alignment are kept.

        A new file is on the disk before it takes the place of the old one, with any ``durability``, because the old one may be.

        Returns
        -------
        int
            Number of bytes by which the object became smaller.

        Raises
        ------
        ValueError
            The shard was opened for reading.
        ShardFormatError, ChecksumError
            The shard is damaged; it is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        before = self.refresh().nbytes
        if self.exists:
            self._write(Change({}, keep_empty=True), keep_user_bytes=True, durability="fsync", dead_share=0.0)
        return before - self.nbytes

    def _change(self, where: list[int], chunks: Sequence[Any]) -> Change:
        return Change.of(dict(zip(where, chunks, strict=True)), self.grid_shape, self._options().order)

    def _write(
        self,
        new: Change,
        *,
        footer: Any = None,
        keep_user_bytes: bool | None = None,
        alignment: int | None = None,
        strategy: WriteStrategy | None = None,
        durability: str | None = None,
        dead_share: float | None = None,
    ) -> None:
        """Store a change in one atomic write; the handle shows the new state then. `dead_share` needs `keep_user_bytes`."""
        self._check_mode()
        options = self._options(write_strategy=strategy, durability=durability)
        if dead_share is None:
            dead_share = DEAD_SHARE if options.compact else math.inf
        if keep_user_bytes is None:
            keep_user_bytes = footer is not None or alignment is not None
        if alignment is not None:
            check_alignment(alignment)
        if footer is not None:
            as_buffer(footer, "footer")
        check_argument("keep_user_bytes", keep_user_bytes, bool)

        def with_user_bytes(_stored: StoredShard) -> Change:
            self.refresh()
            user = UserBytes(footer, alignment, dead_share) if keep_user_bytes else None
            # a shard that another writer has deleted since `compact` looked stays deleted
            return new._replace(keep_empty=(new.keep_empty and self.exists) or bool(footer), user=user)

        flush_buffered(self._object)
        try:
            change(self._object, self._chain, with_user_bytes, options)
        finally:
            self.refresh()

    def _buffer(
        self, chain: Chain, where: list[int], chunks: Any, options: Options, *, write_empty: bool
    ) -> bool:
        """Buffer inner chunks if a block of `group_writes` is open; return False if they must be stored at once.

        All inner chunks of a shard, and inner chunks with codecs without native code, are not buffered.
        """
        buffer, target = active_buffer(), self._object
        if (
            buffer is None
            or not 0 < len(where) < chain.n_chunks
            or chain.stage is not None
            or not chain.shape
        ):
            return False
        name, kind = buffer.name_of(target), (chain, write_empty)
        if process_locks.table().holds(name.name):  # the caller changes the shard just now
            return False
        place = Target(target.store, target.object_key, chain, options, write_empty, name=target.key)

        def put(overlay: Overlay) -> bool:
            for position, chunk in zip(where, chunks, strict=True):
                overlay.write_chunk(position, chunk)
            return True

        if buffer.put_quickly(name, kind, place, put, chunks.nbytes):
            return True
        added = buffer.add_elements(name, kind, place, chunks.dtype, put, BLOCKING, inline=True)
        return run_blocking(added)

    def _check_mode(self) -> None:
        """Raise ValueError if the shard was opened for reading."""
        if self._mode == "r":
            raise ValueError(f"shard {self.key!r} was opened for reading only; open it with mode='r+'")

    def _check_write(self, where: list[int]) -> None:
        """Raise ValueError if the shard was opened for reading, or if a position is given twice."""
        self._check_mode()
        if len(set(where)) != len(where):
            at = self._coords(next(position for position, n in Counter(where).items() if n > 1))
            raise ValueError(
                f"shard {self.key!r}: inner chunk {at} is given a second time; write each inner chunk once"
            )


def _as_list(chunks: Any) -> list[Any]:
    if isinstance(chunks, str | bytes | bytearray | memoryview) or not isinstance(chunks, Iterable):
        raise TypeError(f"chunks: expected a sequence of buffers, one for each position, got {show(chunks)}")
    return list(chunks)


@checked
def open_shard(
    store: Any,
    key: str | None,
    spec: ShardSpec,
    *,
    mode: Literal["r", "r+"] = "r",
    storage_options: Mapping[str, Any] | None = None,
    **choices: Unpack[OptionChoices],
) -> Shard:
    """Open one shard, which may be absent. The object is opened at the first read, so errors of its bytes come then.

    Parameters
    ----------
    store : path-like, URL, bytes-like, or zarr store
        A folder, or the file of the shard if `key` is None or ""; the same as a URL, such as ``s3://bucket/a``; the bytes
        of a shard; any zarr store or `StorePath`.
    key : str or None
        Name of the object in the folder or store, such as ``"a/c/0/1"``. For bytes, only a name in errors.
    spec : ShardSpec
        The encoding of the shard; `ShardSpec.from_metadata` makes it from a ``zarr.json``.
    mode : {"r", "r+"}
        Read only, or read and write. Bytes are not changed: `Shard.tobytes` returns the new bytes.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    **choices
        Options for this shard, as in `shardcodec.options`.

    Returns
    -------
    Shard

    Raises
    ------
    TypeError
        `store` or `spec` is of another kind, an option is unknown, or `storage_options` come without a URL.
    ValueError
        `mode` or an option is invalid; the store is read-only, but `mode` is "r+"; a zarr store comes without a key; the
        URL is malformed or names no object, its store refuses the options, or the key has a null byte.
    UnsupportedError
        Codecs follow the sharding and hide the inner chunks, or the spec exceeds a limit of the engine.
    ImportError
        No package is installed that can open the URL.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec.from_metadata(zarr.open_array("a.zarr").metadata.to_dict())
    >>> shard = shardcodec.open_shard("a.zarr", "c/0/0", spec)
    >>> shard.grid_shape, shard.read_chunks([(0, 0), (0, 1)])[1, 0].tolist()
    ((2, 2), [3, 4, 5])
    """
    target = shard_object(store, key, storage_options)
    if mode != "r":
        target.store.check_writable()
    return Shard(target, spec, mode, choices)
