# write.py - boxes of one array into many objects
# SPDX-License-Identifier: MIT
"""Writing.

An object that is written whole is made beside the old one, then renamed. A box that does not cover an object needs what
the rest of it holds: every entry of the old index is checked first, so that damage stops the update, and inner chunks
outside the box are carried over as encoded bytes, never decoded, into a new object or, where the option
``write_strategy`` and the object allow, by leaving them where they are (`old_shard`).

The caller holds the locks of the objects (`storage.locks`). How old objects are read: `old_shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import cancel, native
from ..options import Options
from ..storage import index_cache
from . import old_shard
from .old_shard import Looker, run
from .read import decoded_nbytes
from .regions import Parts, Positions, as_void, covered, covers, is_filled, touched
from .staged import chunks as staged_chunks
from .staged import write as staged_write

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["WriteItem", "moved_nbytes", "write"]


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
    old_fd : int or None
        The old object in a file, opened (and locked) by the caller; `file_locks.NO_FILE`: the caller has found none, and
        one that is there by now must not be replaced; None: it is opened here.
    chunks : ndarray of uint64 or None
        Positions of inner chunks: `box` is just these, each as a box of its own.
    """

    chain: Chain
    path: str | None
    old: Any
    box: Parts
    key: str
    old_fd: int | None = None
    chunks: Positions | None = None


def write(
    items: Sequence[WriteItem],
    value: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    *,
    write_empty: bool = False,
    keep_empty: bool = False,
    staging: str | None = None,
    exist: list[int] | None = None,
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
    staging : str, optional
        Folder for temporary names (`storage.temp_folder`).
    exist : list, optional
        Gets the positions of items whose object came into being after it was looked for; nothing has been done with
        them. Without it they are done again, as updates: right for who holds no locks on files.

    Returns
    -------
    list
        For each item without a path its new bytes, a buffer; None where nothing but fill value is left, so that the
        object is to be deleted. If its old object is `OwnBytes`, the new bytes may be a tuple of buffers, one behind the
        other, and the old object's memory is theirs. With a path always None.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        The old object is damaged where it would have been carried over; it is as it was.
    OSError
        A file could not be written; the old one is as it was. Items before it may have been written.
    """

    def erases(item: WriteItem) -> bool:
        return not write_empty and is_filled(item.box, value, axes, item.chain.fill)

    is_staged = staged_chunks.is_staged(items)

    def described(looker: Looker, position: int) -> tuple[Any, ...]:
        item = looker.items[position]
        keeps = _keeps(item)
        old = _old_object(looker, position, erases, reuse=not is_staged) if keeps else looker.unread(position)
        return (item.chain, item.path, item.box, old)

    how: dict[str, Any] = {
        "order": options.order,
        "write_empty": write_empty,
        "keep_empty": keep_empty,
        "sync": options.durability == "fsync",
        "allow_in_index": options.allow_in_index,
        "staging": staging,
        "n_threads": options.threads,
        "cancel": cancel.current(),
    }

    def call(plan: list[tuple[Any, ...]]) -> Any:
        if is_staged:
            return staged_write.write(plan, value, axes, staging_nbytes=options.staging_nbytes, **how)
        return native.load().write(plan, as_void(value), axes, **how)

    try:
        return run(items, _keeps, described, call, options, exist)
    finally:
        index_cache.drop(item.path for item in items if item.path is not None)


def moved_nbytes(item: WriteItem, options: Options) -> int:
    """Estimate how many bytes are encoded and copied when an item is written."""
    copied = old_shard.copied_nbytes(item, options) if _keeps(item) else 0
    return copied + decoded_nbytes(item.chain, item.box)


def _keeps(item: WriteItem) -> bool:
    """Tell whether the old object counts."""
    if item.chunks is not None:
        return len(item.chunks) < int(item.chain.n_chunks)
    return not covers(item.box, item.chain.shape)


def _old_object(
    looker: Looker, position: int, erases: Callable[[WriteItem], bool], *, reuse: bool
) -> tuple[Any, ...] | None:
    """What the engine needs to know of the object that is updated; None where it does not count."""
    item = looker.items[position]
    chain = item.chain
    if not chain.is_shard:
        return looker.whole(position)
    fixed_nbytes = chain.inner.fixed_nbytes
    if fixed_nbytes is not None and erases(item):
        fixed_nbytes = None  # chunks that go need no slots
    if item.chunks is not None:
        given = np.zeros(chain.n_chunks, dtype=np.bool_)
        given[item.chunks] = True
        return looker.shard(position, lambda: given, lambda: given, lambda: fixed_nbytes, reuse=reuse)
    return looker.shard(
        position,
        lambda: touched(item.box, chain.perm, chain.inner.shape, chain.grid_shape),
        lambda: covered(item.box, chain.perm, chain.inner.shape, chain.grid_shape),
        lambda: fixed_nbytes,
        reuse=reuse,
    )
