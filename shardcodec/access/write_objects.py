# write_objects.py - writes of many objects: look, place, execute
# SPDX-License-Identifier: MIT
"""The loop that `write` and `write_encoded` share.

Items are written in groups, so that the old indexes of a group fit into memory. Each group goes through three steps, and no
step calls an earlier one:

    look      old_shard.look               read what is stored, under the caller's lock
    place     item_placement.place_item    decide where each inner chunk goes: pure arithmetic
    execute   _execute                     one native call

Some items of a group are written again: those whose object appeared between look and commit, as updates of it; and those
whose file cannot be appended to, by replacing the file.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import native
from ..errors import ShardError
from ..options import Options
from ..storage import indexes
from .item_placement import place_item
from .old_shard import explain_error, look
from .read import is_staged
from .regions import as_void
from .write_items import Elements, Item
from .write_plan import PlanItem

if TYPE_CHECKING:
    from .._native import WriteOutcome

__all__ = ["WriteResult", "write_objects"]

# Objects whose old indexes and descriptors are held at a time, and the bytes that these indexes may take.
GROUP_UPDATES = 256
GROUP_NBYTES = 64 << 20

# Limit for an object that other writers create and remove again and again.
ATTEMPTS = 32
UNSTEADY = f"other writers created and removed the file during each of {ATTEMPTS} attempts to write it"


class WriteResult(NamedTuple):
    """The result of a write.

    Attributes
    ----------
    objects : list
        For each item without a path the new object: a buffer; None if nothing but fill value is left, so that the object
        is to be deleted; or a tuple of contiguous buffers, which reuse the memory of an old object that was `OwnBytes`.
        For an item with a path None.
    appeared : list of int
        Positions of items that are not written, because their object appeared after the caller looked for it.
    states : list of bytes
        For each item the state of its file after the write, as `OpenShard.version`; empty if the file does not exist.
    """

    objects: list[Any]
    appeared: list[int]
    states: list[bytes]


def write_objects(
    items: Sequence[Item],
    options: Options,
    elements: Elements | None = None,
    *,
    keep_empty: bool,
    staging: str | None,
    retry_appeared: bool,
) -> WriteResult:
    """Write items, as many at a time as their old indexes allow.

    Parameters
    ----------
    items : sequence of WriteItem or EncodedItem
        All of one kind; each object once.
    options : Options
    elements : Elements or None
        The values of a `WriteItem`.
    keep_empty, staging, retry_appeared
        As for `write.write`.
    """
    rules: dict[str, Any] = {
        "order": options.order,
        "write_empty": elements is not None and elements.write_empty,
        "keep_empty": keep_empty,
        "sync": options.durability == "fsync",
        "allow_in_index": options.allow_in_index,
        "staging": staging,
        "n_threads": options.threads,
        "cancel": native.current(),
        **options.io_rules,
    }
    objects: list[Any] = [None] * len(items)
    states = [b""] * len(items)
    appeared: list[int] = []
    try:
        for group in _groups(items):
            declined: set[int] = set()
            for _ in range(ATTEMPTS):
                outcome = _write_once(items, group, declined, options, elements, rules)
                for position, new, state in zip(group, outcome.objects, outcome.states, strict=True):
                    objects[position], states[position] = new, state
                again = [group[i] for i in outcome.declined]
                declined.update(again)
                exist = [group[i] for i in outcome.appeared]
                if retry_appeared:
                    again = exist + again
                else:
                    appeared += exist
                group = again
                if not group:
                    break
            else:
                raise FileExistsError(errno.EEXIST, UNSTEADY, items[group[0]].path)
    finally:
        indexes.drop(item.path for item in items if item.path is not None)
    return WriteResult(objects, appeared, states)


def _write_once(
    items: Sequence[Item],
    group: Sequence[int],
    declined: AbstractSet[int],
    options: Options,
    elements: Elements | None,
    rules: dict[str, Any],
) -> WriteOutcome:
    """Look, place, execute, for the items at the positions of a group."""
    some = [items[position] for position in group]
    with contextlib.ExitStack() as files:
        olds = look(some, options, files, {i for i, position in enumerate(group) if position in declined})
        plan = [place_item(item, old, options, elements) for item, old in zip(some, olds, strict=True)]
        try:
            return _execute(plan, elements, options, rules)
        except ShardError as error:
            raise explain_error(error, some, olds) from error.__cause__


def _execute(
    plan: Sequence[PlanItem], elements: Elements | None, options: Options, rules: dict[str, Any]
) -> WriteOutcome:
    outcome: WriteOutcome
    if elements is None:
        outcome = native.load().write(plan, **rules)
    elif is_staged(plan):
        from .staged import write as staged_write  # here, because most arrays have only native codecs

        outcome = staged_write.write(
            plan, elements.value, elements.axes, staging_nbytes=options.staging_nbytes, **rules
        )
    else:
        outcome = native.load().write(plan, as_void(elements.value), elements.axes, **rules)
    return outcome


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
