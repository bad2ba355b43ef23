# write.py - write many objects: look, place, execute
# SPDX-License-Identifier: MIT
"""Write many objects: look, place, execute.

An object that is written whole is made beside the old one, then renamed. A box that does not cover an object needs the rest
of the old object: every entry of the old index is checked first, so that damage stops the update, and inner chunks outside
the box are carried over as encoded bytes, never decoded. They are copied into a new object or, if the option
``write_strategy`` and the object allow it, stay where they are.

The caller holds the locks of the objects (`storage.locks`). The steps of a write: `write_objects`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError, ShardFileError, UnsupportedError
from ..options import Options
from ..statistics import stats
from ..storage import absent, indexes
from ..storage.concurrent_calls import call_each
from ..storage.file_systems import OpenFile, appends, appends_directly, is_local, name_of
from ..storage.locks import NO_FILE
from ..storage.store import Outcome, OwnBytes
from .inner_chunks import coordinates
from .placement import (
    ABSENT,
    DEAD_SHARE,
    Facts,
    NewSizes,
    Placement,
    may_overwrite,
    place,
    place_behind,
    place_in_slots,
    way_to_append,
)
from .read import decoded_nbytes, explain, index_too_short, is_damage, is_staged
from .records import (
    MISSING,
    NOTHING,
    ONTO,
    ChunkBytes,
    Elements,
    EncodedItem,
    Item,
    OldObject,
    PlanItem,
    WriteItem,
)
from .regions import Box, as_void
from .user_bytes import Extents, HeaderFooter, UserBytes, find, lay_out, place_between

if TYPE_CHECKING:
    from .._native import Chain, Written

__all__ = [
    "NOTHING",
    "Elements",
    "EncodedItem",
    "WriteItem",
    "check_size",
    "copied_nbytes",
    "explain_error",
    "look",
    "ordered",
    "place_item",
    "work_nbytes",
    "write_objects",
]

# ---------------------------------------------------------------- writes of many objects: look, place, execute
#
# Items are written in groups, so that the old indexes of a group fit into memory. Each group goes through three steps, and no
# step calls an earlier one:
#
#     look      look          read what is stored, under the caller's lock
#     place     place_item    decide where each inner chunk goes: pure arithmetic
#     execute   _execute                     one native call
#
# Some items of a group are written again: those whose object appeared between look and commit, as updates of it; and those
# whose file cannot be appended to, by replacing the file.

# Objects of one group, whose old indexes and descriptors are held, and the bytes that these indexes may take.
GROUP_UPDATES = 256
GROUP_NBYTES = 64 << 20

# Limit for an object that other writers create and remove again and again.
ATTEMPTS = 32
UNSTEADY = f"other writers created and removed the file during each of {ATTEMPTS} attempts to write it"


def write_objects(
    items: Sequence[Item],
    options: Options,
    elements: Elements | None = None,
    *,
    keep_empty: bool = False,
    staging: str | None = None,
    retry_appeared: bool = True,
) -> Outcome:
    """Write items, all of one kind, each object once; group by group, as their old indexes allow.

    elements: the values of `WriteItem`s. keep_empty: make an object even if nothing but fill value is left. staging: folder for
    temporary names. retry_appeared: update objects that appeared after the look, instead of returning their positions in
    `Outcome.appeared`; right for a caller without locks on files. Sizes of encoded inner chunks are not checked: see
    `check_size`.

    In the outcome an object is None for a file, and if nothing is left, so that it is to be deleted. A tuple of buffers reuses
    the memory of an old object that was `OwnBytes`. `states` are those of files, if the items are encoded: as
    `OpenShard.state`, empty if the file does not exist. After an error the old object is unchanged; items before it may have
    been written.
    """
    if elements is None:
        _check_reachable(items)
    rules: dict[str, Any] = {
        "order": options.order,
        "write_empty": elements is not None and elements.write_empty,
        "keep_empty": keep_empty,
        "sync": options.durability == "fsync",
        "tells_states": elements is None,  # only these callers use them
        "allow_in_index": options.allow_in_index,
        "staging": staging,
        "n_threads": options.threads,
        "cancel": native.current(),
        **options.io_rules,
    }
    objects: list[Any] = [None] * len(items)
    states: dict[int, bytes | None] = {}
    appeared: list[int] = []
    try:
        for group in _groups(items):
            refused: set[int] = set()
            for _ in range(ATTEMPTS):
                news, exist, declined, new_states = _write_once(
                    items, group, refused, options, elements, rules
                )
                for position, new, state in zip(group, news, new_states, strict=True):
                    objects[position] = new
                    if elements is None:
                        states[position] = state
                again = [group[i] for i in declined]
                refused.update(again)
                if retry_appeared:
                    again = [group[i] for i in exist] + again
                else:
                    appeared += [group[i] for i in exist]
                group = again
                if not group:
                    break
            else:
                raise FileExistsError(errno.EEXIST, UNSTEADY, items[group[0]].path)
    finally:
        indexes.drop(item.path for item in items if item.path is not None)
    return Outcome(objects, appeared, is_stored=any(item.path is not None for item in items), states=states)


def _check_reachable(items: Sequence[Item]) -> None:
    for item in items:
        if not item.chain.is_shard:
            raise UnsupportedError(
                f"shard {item.key!r}: codecs that follow the sharding hide its inner chunks", shard=item.key
            )


def _write_once(
    items: Sequence[Item],
    group: Sequence[int],
    refused: AbstractSet[int],
    options: Options,
    elements: Elements | None,
    rules: dict[str, Any],
) -> Written:
    """Look, place, execute, for the items at the positions of a group."""
    chosen = [items[position] for position in group]
    with contextlib.ExitStack() as files:
        olds = look(chosen, options, files, {i for i, position in enumerate(group) if position in refused})
        plan = [place_item(item, old, options, elements) for item, old in zip(chosen, olds, strict=True)]
        try:
            return _execute(plan, elements, options, rules)
        except ShardError as error:
            raise explain_error(error, chosen, olds) from error.__cause__


def _execute(
    plan: Sequence[PlanItem], elements: Elements | None, options: Options, rules: dict[str, Any]
) -> Written:
    if elements is None:
        return native.load().write(plan, **rules)  # type: ignore[no-any-return]
    if is_staged(plan):
        from .staged import write as staged_write  # here, because most arrays have only native codecs

        return staged_write.write(
            plan, elements.value, elements.axes, staging_nbytes=options.staging_nbytes, **rules
        )
    return native.load().write(plan, as_void(elements.value), elements.axes, **rules)  # type: ignore[no-any-return]


def _groups(items: Sequence[Item]) -> Iterator[list[int]]:
    """Yield the positions of items in groups: few enough updates, and old indexes that fit into memory."""
    group: list[int] = []
    updates = nbytes = 0
    for position, item in enumerate(items):
        if item.keeps_old:
            index_nbytes = 3 * item.chain.index_nbytes  # old, new, and temporary arrays
            if updates and (updates == GROUP_UPDATES or nbytes + index_nbytes > GROUP_NBYTES):
                yield group
                group, updates, nbytes = [], 0, 0
            updates += 1
            nbytes += index_nbytes
        group.append(position)
    if group:
        yield group


def work_nbytes(item: WriteItem, options: Options) -> int:
    """Estimate how many bytes a write encodes and copies; a small write may run on the event loop."""
    copied = copied_nbytes(item, options) if item.keeps_old else 0
    return copied + decoded_nbytes(item.chain, item.box)


# ---------------------------------------------------------------- encoded inner chunks into shards
#
# `write_objects` stores inner chunks that are already encoded (by another process, another codec, or in another shard) unchanged;
# the rest of the shard is carried over as in every partial write.


def check_size(chain: Chain, position: int, nbytes: int) -> None:
    """Refuse an encoded inner chunk (ValueError) of a size that no inner chunk of this shard can have."""
    due = chain.inner.fixed_nbytes
    if due is not None and nbytes != due:
        at = coordinates(position, chain.grid_shape)
        raise ValueError(
            f"inner chunk {at}: expected {due} bytes, as every encoded inner chunk has, got {nbytes}"
        )


def ordered(positions: Sequence[int], grid_shape: Sequence[int], order: str) -> list[int]:
    """Sort positions of inner chunks into the sequence in which a writer lays them out."""
    if order == "lexicographic" or len(positions) < 2:
        return sorted(positions)
    given = np.asarray(positions, dtype=np.int64)
    coords = np.unravel_index(given, tuple(grid_shape))
    first = [int(axis.min()) for axis in coords]
    last = [int(axis.max()) for axis in coords]
    box = np.empty(int(np.prod([b - a + 1 for a, b in zip(first, last, strict=True)])), dtype=np.uint64)
    native.load().order(box, grid_shape, order, first, last)
    return [int(position) for position in box[np.isin(box, given.astype(np.uint64))]]


# ---------------------------------------------------------------- the first two steps: look at old objects, place inner chunks
#
# Look: the first step of a write (`write_objects`).
#
# `look` reads, under the caller's lock, what the next steps need to know of the old objects: a frozen record for each.
#
# A file is opened once, and everything is read through this descriptor. So a writer that replaces the file meanwhile cannot
# mix two objects. A writer that changes the file in place changes its size or its times, which the engine compares before
# the new object gets the name. A missing object is created under the condition that it is still missing then.


def look(
    items: Sequence[Item],
    options: Options,
    files: contextlib.ExitStack,
    declined: AbstractSet[int] = frozenset(),
) -> list[OldObject | None]:
    """Look at the old objects of items; None for an item that does not need its old object.

    files: closes the descriptors that are opened here. declined: positions of items whose file cannot be appended to, as an
    earlier attempt has shown. Raises for a damaged index, or an entry that is needed.
    """
    return call_each(lambda i: _look_at(items[i], options, files, i in declined), range(len(items)))


def _look_at(
    item: Item, options: Options, files: contextlib.ExitStack, has_declined: bool
) -> OldObject | None:
    if not item.keeps_old:
        return MISSING if item.old_file is NO_FILE else None
    old = _open(item, files, has_declined)
    if old.source is None or not item.chain.is_shard:
        return old
    try:
        return _load(item, old, options, has_declined)
    except ShardError as error:
        if not is_damage(error) or not item.spares_old:
            raise
        return None  # nothing of it is needed


def _open(item: Item, files: contextlib.ExitStack, has_declined: bool) -> OldObject:
    """Find the old object of an item, and open it if the caller has not."""
    if item.path is None:
        return MISSING if item.old is None else OldObject(item.old, memoryview(item.old).nbytes)
    file = item.old_file
    if file is NO_FILE:
        return MISSING
    if file is None:
        fd = _open_file(item.path)
        if fd < 0:
            absent.check(item.path)
            return MISSING
        files.callback(os.close, fd)
        file = OpenFile.seen(fd)
        if file.n_links > 1:  # a caller with a lock has rolled the file back already
            native.load().roll_back(item.path, fd)
            file = OpenFile.seen(fd)
    elif has_declined:  # the attempt may have changed the times of the file
        file = OpenFile.seen(file.fd, file.mount_id, is_guarded=file.is_guarded)
    return OldObject(file.fd, file.nbytes, file)


def _open_file(path: str) -> int:
    """Open the file of an old object; -1 if there is none, also for a link to nothing, which a write replaces."""
    try:
        return int(native.load().open_file(path))
    except ShardFileError:
        if os.path.islink(path) and not os.path.exists(path):
            return -1
        raise


def _load(item: Item, old: OldObject, options: Options, has_declined: bool) -> OldObject:
    """Read and check the index of an old shard, and whatever else the placement needs."""
    chain = item.chain
    if old.nbytes < chain.index_nbytes:  # before memory is allocated for the index and for flags
        raise index_too_short(item.key, old.nbytes, chain.index_nbytes)
    stored = np.empty(chain.index_nbytes, dtype=np.uint8)  # its checksums follow the entries
    entries = stored[: 16 * chain.n_chunks].view(np.uint64).reshape(-1, 2)
    change = item.change()
    try:
        nbytes, n_bad = native.load().read_index(
            chain,
            old.source,
            stored,
            nbytes=old.nbytes,
            replaced=change.covered,
            allow_in_index=options.allow_in_index,
        )
    except ShardError as error:
        error.shard = 0
        raise explain(error, [item]) from None
    user, facts = None, None
    is_laid_out = isinstance(item, EncodedItem) and item.user is not None
    is_in_file = item.path is not None and options.write_strategy != "replace"
    if is_laid_out or is_in_file:
        user = find(entries, nbytes, chain.index_nbytes, chain.index_at_start, old.read)
    # the engine cannot compare what it writes with what is stored if entries are bad: absent in `entries` only
    if is_in_file and old.file is not None and not is_laid_out and not has_declined and not n_bad:
        n_new = int(np.count_nonzero(change.replaced)) - len(change.gone)
        facts = _facts_under_lock(item, options, old.file, n_new * chain.inner.nbytes)
    return old._replace(nbytes=nbytes, entries=entries, change=change, user=user, facts=facts)


def _facts_under_lock(item: Item, options: Options, file: OpenFile, new_nbytes: int) -> Facts | None:
    """Collect the facts of `facts_of`, and whether other writers are excluded; count what the file system refuses."""
    facts = facts_of(item, options, file, new_nbytes)
    if facts is None:
        return None
    if options.write_strategy == "append" and not facts.appends:
        stats.refused("append", name_of(file))
    if options.write_strategy == "in_place" and may_overwrite(facts):
        is_locked = item.old_file is not None or options.locking == "thread"
        if is_locked and is_local(file):
            return facts
        if is_locked:
            stats.refused("in_place", name_of(file))
        return facts._replace(is_exclusive=False)
    return facts


def facts_of(item: Item, options: Options, file: OpenFile, new_nbytes: int) -> Facts | None:
    """Collect the facts that decide how a shard, an open file, is updated in its own file; None: it must be replaced.

    new_nbytes: decoded bytes of the inner chunks that are to be written.
    """
    if options.write_strategy == "replace" or file.is_guarded:
        return None
    return Facts(
        index_nbytes=item.chain.index_nbytes,
        index_at_start=item.chain.index_at_start,
        index_checksum=item.chain.index_checksums > 0,
        new_nbytes=new_nbytes,
        n_links=file.n_links,
        appends=appends(file),
        direct=appends_directly(item.path, file),  # type: ignore[arg-type]  # an open file has a path
        sync=options.durability == "fsync",
    )


def copied_nbytes(item: Item, options: Options) -> int:
    """Estimate how many old bytes a write copies, without reading the index; see `work_nbytes`."""
    if item.old_file is NO_FILE or (item.path is None and item.old is None):
        return 0
    if item.path is None:
        return memoryview(item.old).nbytes
    if item.old_file is None:  # not opened yet
        return int(math.prod(item.chain.shape) * item.chain.itemsize)
    facts = facts_of(item, options, item.old_file, 0) if item.chain.is_shard else None
    if facts is not None:
        overwrites = options.write_strategy == "in_place" and may_overwrite(facts)
        if overwrites or way_to_append(facts) is not None:
            return 0
    return item.old_file.nbytes


def explain_error(
    error: ShardError, items: Sequence[Item], olds: Sequence[OldObject | None]
) -> ShardError | OSError:
    """Return an error of the engine in terms of the items.

    On a network file system the times of a file that was just written change later, when the server has set its own. So
    a file that seems to have changed is stale there: the caller looks again, under its lock.
    """
    position, is_changed = error.shard, getattr(error, "changed", False)
    old = olds[position] if is_changed and isinstance(position, int) else None
    error = explain(error, items)
    if old is None or old.file is None or is_local(old.file):
        return error
    return OSError(errno.ESTALE, str(error), items[position].path)  # type: ignore[index]


# ---------------------------------------------------------------- place the inner chunks of one item
#
# Place: the second step of a write (`write_objects`).
#
# `place_item` decides, from an item and from what `look` has returned, how the new object is made and where each inner
# chunk goes. It is pure arithmetic over `placement` and `user_bytes`: nothing is read or written.


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
