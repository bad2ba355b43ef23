# writer.py - boxes of one array into many objects, strategy "replace"
# SPDX-License-Identifier: MIT
"""Writing.

An object is always replaced as a whole: beside the old one, then renamed. A box that does not cover an object needs
what the rest of it holds: inner chunks outside the box are carried over as encoded bytes, never decoded, and every
entry of the old index is checked first, so that damage stops the update instead of being written into a new file.

The caller holds the locks of the objects (`storage.locks`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import cancel, native
from ..errors import ShardError
from ..options import Options
from ..storage import cache
from .boxes import Parts, as_void, covered, covers, is_filled, touched
from .placement import place
from .reader import explain, index_too_short

__all__ = ["WriteItem", "carried", "old_index", "write"]


class WriteItem(NamedTuple):
    """Parts of one object.

    Attributes
    ----------
    chain
        The compiled chain of the object.
    path : str or None
        A local file; None when the new object is to come back as bytes.
    old : buffer or None
        The old object where it is not in a file.
    box : Box, Boxes, Lists or Points
        Where several elements of the array go to one of the object, the last of them counts.
    key : str
        How errors name the object.
    """

    chain: Any
    path: str | None
    old: Any
    box: Parts
    key: str


def write(
    items: Sequence[WriteItem],
    value: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    *,
    write_empty: bool = False,
    keep_empty: bool = False,
) -> list[Any]:
    """Write parts of an array.

    Parameters
    ----------
    items : sequence of WriteItem
        Each object once.
    value : ndarray
        Source; any strides.
    axes : sequence of int
        Which axis of `value` each axis of the chunks is; -1 for an axis along which it is repeated.
    write_empty : bool
        Store chunks that equal the fill value.
    keep_empty : bool
        Make an object also where nothing but fill value is left.

    Returns
    -------
    list
        For each item without a path its new bytes, a buffer; None where nothing but fill value is left, so that the
        object is to be deleted. With a path always None.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        The old object is damaged where it would have been carried over; it is as it was.
    OSError
        A file could not be written; the old one is as it was. Items before it may have been written.
    """
    engine = native.load()
    if not items:
        return []

    def erases(item: WriteItem) -> bool:
        return not write_empty and is_filled(item.box, value, axes, item.chain.fill)

    plan = [
        (item.chain, item.path, item.box, _old_object(position, items, erases, options))
        for position, item in enumerate(items)
    ]
    try:
        results, _ = engine.write(
            plan,
            as_void(value),
            axes,
            order=options.order,
            write_empty=write_empty,
            keep_empty=keep_empty,
            sync=options.durability == "fsync",
            allow_in_index=options.allow_in_index,
            n_threads=options.threads,
            cancel=cancel.current(),
        )
    except ShardError as error:
        raise explain(error, items) from None
    finally:
        cache.drop(item.path for item in items if item.path is not None)
    return results  # type: ignore[no-any-return]


def _old_object(
    position: int, items: Sequence[WriteItem], erases: Callable[[WriteItem], bool], options: Options
) -> tuple[Any, ...] | None:
    """What the engine needs to know of the object that is updated; None where it does not count."""
    item = items[position]
    chain = item.chain
    source = item.old if item.path is None else item.path
    if source is None or covers(item.box, chain.shape):
        return None
    if not chain.is_shard:
        return (source, None, None, None, None, 0)
    if not has_index(item, source):
        return None
    fixed_nbytes = chain.inner.fixed_nbytes
    if fixed_nbytes is not None and erases(item):
        fixed_nbytes = None  # chunks that go need no slots
    replaced = touched(item.box, chain.perm, chain.inner.shape, chain.grid_shape)
    unread = covered(item.box, chain.perm, chain.inner.shape, chain.grid_shape)
    return carried(position, items, source, replaced, unread, fixed_nbytes, options)


def carried(
    position: int,
    items: Sequence[Any],
    source: Any,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    unread: np.ndarray[Any, np.dtype[np.bool_]],
    fixed_nbytes: int | None,
    options: Options,
) -> tuple[Any, ...] | None:
    """Say what a partly rewritten shard keeps, in the form that the engine takes; None when there is none yet.

    Parameters
    ----------
    position : int
        Which of the items the shard is; they have a `chain` and a `key`.
    source : str or buffer
        The old object.
    replaced, fixed_nbytes
        As for `placement.place`.
    unread : ndarray of bool, shape (n_chunks,)
        Those of the replaced inner chunks of which nothing old remains, so that their entries may be damaged.
    """
    chain = items[position].chain
    old = old_index(position, items, source, unread, options)
    if old is None:
        return None
    entries, shard_nbytes = old
    placement = place(
        entries,
        replaced,
        shard_nbytes=shard_nbytes,
        index_nbytes=chain.index_nbytes,
        index_at_start=chain.index_at_start,
        fixed_nbytes=fixed_nbytes,
    )
    return (source, shard_nbytes, entries, placement.carries, placement.entries, placement.data_offset)


def old_index(
    position: int,
    items: Sequence[Any],
    source: Any,
    unread: np.ndarray[Any, np.dtype[np.bool_]],
    options: Options,
) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], int] | None:
    """Read and check the index of a shard that is updated; return it with the shard's size, None without a shard."""
    chain = items[position].chain
    entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
    try:
        shard_nbytes = native.load().read_index(
            chain,
            source,
            entries,
            replaced=unread,
            allow_in_index=options.allow_in_index,
        )
    except ShardError as error:
        error.shard = position
        raise explain(error, items) from None
    return None if shard_nbytes is None else (entries, shard_nbytes)


def has_index(item: Any, source: Any) -> bool:
    """Tell whether there is an old shard, and refuse one that cannot hold its index.

    To be asked before memory is taken for the inner chunks that the metadata promises: a flag for each of a thousand
    million is much, for an object of a few bytes.
    """
    nbytes = _stored_nbytes(source)
    if nbytes is not None and nbytes < item.chain.index_nbytes:
        raise index_too_short(item.key, nbytes, item.chain.index_nbytes)
    return nbytes is not None


def _stored_nbytes(source: Any) -> int | None:
    """Size of the old object; None when there is none."""
    if not isinstance(source, str):
        return memoryview(source).nbytes
    try:
        return os.stat(source).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
