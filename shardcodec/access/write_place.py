# write_place.py - the second step of a write: place the inner chunks of one item
# SPDX-License-Identifier: MIT
"""`place_item`: the second step of a write (`write.write_objects`).

It decides, from an item and from what `write_look.look` has returned, how the new object is made and where each inner
chunk goes. It is pure arithmetic over `placement` and `user_bytes`: nothing is read or written.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..options import Options
from ..storage.store import OwnBytes
from .placement import (
    ABSENT,
    DEAD_SHARE,
    NewSizes,
    Placement,
    may_overwrite,
    place,
    place_behind,
    place_in_slots,
    way_to_append,
)
from .records import ONTO, ChunkBytes, Elements, EncodedItem, Item, OldObject, PlanItem, WriteItem
from .regions import Box
from .user_bytes import Extents, HeaderFooter, UserBytes, lay_out, place_between

__all__ = ["place_item"]


def place_item(item: Item, old: OldObject | None, options: Options, elements: Elements | None) -> PlanItem:
    """Decide where the inner chunks of an item go, and which inner chunks of the old object are carried.

    old: from `look`. UnsupportedError: header and footer must be kept, but the old inner chunks overlap the index.
    """
    if isinstance(item, WriteItem):
        inside = item.inside
        if inside is not None and not isinstance(item.box, Box):  # the engine looks only at boxes
            inside = (0,) * len(inside) if item.spares_old else None
        return _planned(
            PlanItem(item.chain, item.path, item.box, inside=inside), item, old, options, elements
        )
    plan, footer = PlanItem(item.chain, item.path, None), None
    if item.user is not None and old is not None and item.keeps_old:
        plan, footer = _lay_out_all(plan, item, old, item.user)
    else:
        plan = _planned(plan, item, old, options, None)
    return plan._replace(chunks=ChunkBytes(list(item.chunks), _buffers(item), footer))


def _buffers(item: EncodedItem) -> list[Any]:
    """Return the new encoded inner chunks. Copy those that share memory with the old object, which may be reused."""
    if not isinstance(item.old, OwnBytes):
        return list(item.chunks.values())

    def is_apart(chunk: Any) -> bool:
        empty = memoryview(chunk).nbytes == 0
        return empty or not np.may_share_memory(np.frombuffer(chunk, dtype=np.uint8), item.old)

    return [chunk if is_apart(chunk) else bytes(chunk) for chunk in item.chunks.values()]


def _planned(
    plan: PlanItem, item: Item, old: OldObject | None, options: Options, elements: Elements | None
) -> PlanItem:
    """Decide how the engine makes the new object from the old one. Nothing is read or written.

    An old shard is updated in its own file if possible; else a new object carries inner chunks.
    """
    if old is None or (old.source is None and item.path is None):
        return plan
    plan = plan._replace(old=old)
    if old.entries is None or old.change is None:  # one chunk, or nothing
        return plan
    dead_share = DEAD_SHARE if options.compact else math.inf
    if old.facts is not None:
        update = _update_in_file(item, old, options, dead_share)
        if update is not None:
            placement, way = update
            return plan._replace(placement=placement, way=way, user=old.user)
    new_nbytes = _new_sizes(item, elements)
    if old.user is not None:
        placement = place_between(
            old.entries, old.change.replaced, old.user, new_nbytes=new_nbytes, dead_share=dead_share
        )
        return plan._replace(placement=placement, user=old.user)
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
    return plan._replace(placement=placement, way=ONTO if is_own and placement.only_packs(first) else None)


def _new_sizes(item: Item, elements: Elements | None) -> NewSizes:
    """Return the encoded size of the new inner chunks in bytes, where it is known before they are encoded."""
    if isinstance(item, EncodedItem):
        return item.new_sizes()
    assert elements is not None
    return item.new_sizes(elements)


def _update_in_file(
    item: Item, old: OldObject, options: Options, dead_share: float
) -> tuple[Placement, str | None] | None:
    """Decide how the engine updates a shard in its own file, by an append or in place: where inner chunks go, and the way.

    Return None if this is unsafe or impossible, or if so many bytes are dead that the shard should be packed; the
    caller then plans a new object.
    """
    assert old.facts is not None and old.entries is not None and old.change is not None
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
    return None if placement is None else (placement, name)


def _lay_out_all(plan: PlanItem, item: EncodedItem, old: OldObject, user: UserBytes) -> tuple[PlanItem, Any]:
    """Place all inner chunks, old and new, of a new shard for which the caller gave a header, a footer or an alignment.

    Return the plan and the bytes of the footer.
    """
    chain = item.chain
    first = chain.index_nbytes if chain.index_at_start else 0
    entries = np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64)
    kept: HeaderFooter | None = HeaderFooter(Extents(first, first, first, first), b"", 1)
    if old.entries is not None:
        entries, kept = old.entries, old.user
    if kept is None:
        raise UnsupportedError(
            f"shard {item.key!r}: inner chunks that lie in the index leave no header and footer to keep",
            shard=item.key,
        )
    alignment = user.alignment or kept.alignment
    placement = lay_out(entries, item.sizes(), item.gone, kept.where, user._replace(alignment=alignment))
    footer = kept.footer if user.footer is None else memoryview(user.footer).cast("B")
    new = kept._replace(footer=footer, alignment=alignment)
    return plan._replace(old=old, placement=placement, user=new if new.has_any else None), footer
