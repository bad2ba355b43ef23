# item_placement.py - place the inner chunks of one item
# SPDX-License-Identifier: MIT
"""Place: the second step of a write (`write_objects`).

`place_item` decides, from an item and from what `old_shard.look` has found, how the new object is made and where each inner
chunk goes. It is pure arithmetic over `placement` and `user_bytes`: nothing is read or written.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..options import Options
from ..storage.store import OwnBytes
from .old_shard import Old, OldObject, OldShard
from .placement import (
    ABSENT,
    DEAD_SHARE,
    Entries,
    NewSizes,
    Placement,
    may_overwrite,
    place,
    place_behind,
    place_in_slots,
    way_to_append,
)
from .user_bytes import Extents, HeaderFooter, UserBytes, lay_out, place_between
from .write_items import Elements, EncodedItem, Item, WriteItem
from .write_plan import NO_OBJECT, ONTO, ChunkBytes, PlanItem, Update

__all__ = ["place_item"]


def place_item(item: Item, old: Old, options: Options, elements: Elements | None) -> PlanItem:
    """Decide where the inner chunks of one item go, and which inner chunks of the old object are carried.

    Parameters
    ----------
    item : WriteItem or EncodedItem
    old : OldObject, OldShard or None
        The old object, as `old_shard.look` returns it; None: the write does not need it.
    options : Options
        ``write_strategy`` and ``compact`` are used.
    elements : Elements or None
        The array that a `WriteItem` takes its values from; None for an `EncodedItem`.

    Returns
    -------
    PlanItem
        Input of the engine.

    Raises
    ------
    UnsupportedError
        Header and footer must be kept, but the old inner chunks overlap the index.
    """
    if isinstance(item, WriteItem):
        return PlanItem(item.chain, item.path, item.box, None, _plan_update(item, old, options, elements))
    update: Update | None
    if item.user is not None and old is not None and item.keeps_old:
        update, footer = _lay_out_all(item, old, item.user)
    else:
        update, footer = _plan_update(item, old, options, None), None
    chunks = ChunkBytes(list(item.chunks), _buffers(item), footer)
    return PlanItem(item.chain, item.path, None, chunks, update)


def _buffers(item: EncodedItem) -> list[Any]:
    """Return the new encoded inner chunks. Copy those that share memory with the old object, which may be reused."""
    if not isinstance(item.old, OwnBytes):
        return list(item.chunks.values())

    def is_apart(chunk: Any) -> bool:
        empty = memoryview(chunk).nbytes == 0
        return empty or not np.may_share_memory(np.frombuffer(chunk, dtype=np.uint8), item.old)

    return [chunk if is_apart(chunk) else bytes(chunk) for chunk in item.chunks.values()]


def _plan_update(item: Item, old: Old, options: Options, elements: Elements | None) -> Update | None:
    """Decide how the engine makes the new object from the old one. Nothing is read or written.

    Parameters
    ----------
    item, old, options, elements
        As for `place_item`.

    Returns
    -------
    Update or None
        For an old shard: in its own file if possible, else as a new object that carries inner chunks. None: the engine
        makes a new object without the old one, and may replace an object that exists.
    """
    if old is None:
        return None
    if old.source is None:
        return None if item.path is None else NO_OBJECT
    if isinstance(old, OldObject):
        return Update(old.source, stamp=old.stamp, data_offset=0)
    dead_share = DEAD_SHARE if options.compact else math.inf
    if old.facts is not None:
        update = _update_in_file(item, old, options, dead_share)
        if update is not None:
            return update
    new_nbytes = _new_sizes(item, elements)
    if old.user is not None:
        placement = place_between(
            old.entries, old.change.replaced, old.user, new_nbytes=new_nbytes, dead_share=dead_share
        )
        return _carry(old, placement, user=old.user)
    chain = item.chain
    placement = place(
        old.entries,
        old.change.replaced,
        shard_nbytes=old.nbytes,
        index_nbytes=chain.index_nbytes,
        index_at_start=chain.index_at_start,
        new_nbytes=new_nbytes,
        dead_share=dead_share,
    )
    first = chain.index_nbytes if chain.index_at_start else 0
    is_own = isinstance(old.source, OwnBytes) and (elements is None or chain.stage is None)
    return _carry(old, placement, ONTO if is_own and placement.only_packs(first) else None)


def _new_sizes(item: Item, elements: Elements | None) -> NewSizes:
    """Return the encoded size of the new inner chunks in bytes, where it is known before they are encoded."""
    if isinstance(item, EncodedItem):
        return item.new_sizes()
    assert elements is not None
    return item.new_sizes(elements)


def _carry(
    old: OldShard, placement: Placement, way: str | None = None, user: HeaderFooter | None = None
) -> Update:
    """Return an update that copies the carried inner chunks into a new object.

    `way` is None or `ONTO`. `user` is the header and footer to keep, if any.
    """
    return _update(old, placement, placement.carries, way, user)


def _update(
    old: OldShard, placement: Placement, carries: Entries | None, way: str | None, user: HeaderFooter | None
) -> Update:
    return Update(
        old.source,
        old.nbytes,
        old.stamp,
        old.entries,
        placement.entries,
        carries,
        placement.data_offset,
        way,
        user,
    )


def _update_in_file(item: Item, old: OldShard, options: Options, dead_share: float) -> Update | None:
    """Decide how the engine updates a shard in its own file, by an append or in place.

    Return None if this is unsafe or impossible, or if so many bytes are dead that the shard should be packed; the
    caller then plans a new object.
    """
    assert old.facts is not None
    chain, user = item.chain, old.user
    way = way_to_append(old.facts)
    sizes: dict[str, Any] = {
        "shard_nbytes": old.nbytes,
        "index_nbytes": chain.index_nbytes,
        "index_at_start": chain.index_at_start,
        "dead_share": dead_share,
        "user_nbytes": 0 if user is None else user.header_nbytes + len(user.footer),
    }
    replaced, gone = old.change.replaced, old.change.gone
    placement, name = None, way
    if options.write_strategy == "in_place":
        name = "in_place" if way is None else f"in_place+{way}"
        if may_overwrite(old.facts):
            placement = place_in_slots(old.entries, replaced, way=way, gone=gone, **sizes)
    elif way is not None:
        placement = place_behind(old.entries, replaced, way=way, **sizes)
    return None if placement is None else _update(old, placement, None, name, user)


def _lay_out_all(item: EncodedItem, old: OldObject | OldShard, user: UserBytes) -> tuple[Update, Any]:
    """Place all inner chunks, old and new, of a new shard for which the caller gave a header, a footer or an alignment.

    Return the update and the bytes of the footer.
    """
    chain = item.chain
    first = chain.index_nbytes if chain.index_at_start else 0
    entries = np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64)
    found: HeaderFooter | None = HeaderFooter(Extents(first, first, first, first), b"", 1)
    if isinstance(old, OldShard):
        entries, found = old.entries, old.user
    if found is None:
        raise UnsupportedError(
            f"shard {item.key!r}: inner chunks that lie in the index leave no header and footer to keep",
            shard=item.key,
        )
    alignment = user.alignment or found.alignment
    placement = lay_out(entries, item.sizes(), item.gone, found.where, user._replace(alignment=alignment))
    footer = found.footer if user.footer is None else memoryview(user.footer).cast("B")
    new = found._replace(footer=footer, alignment=alignment)
    marked = new if new.has_any else None
    if isinstance(old, OldShard):
        return _carry(old, placement, user=marked), footer
    update = Update(None, entries=placement.entries, data_offset=placement.data_offset, user=marked)
    return update, footer
