# write.py - write many objects: look, place, execute
# SPDX-License-Identifier: MIT
"""Write many objects: look, place, execute.

An object that is written whole is made beside the old one, then renamed. A box that does not cover an object needs the rest
of the old object: every entry of the old index is checked first, so that damage stops the update, and inner chunks outside
the box are carried over as encoded bytes, never decoded. They are copied into a new object or, if the option
``write_strategy`` and the object allow it, stay where they are.

The caller holds the locks of the objects (`storage.locks`). Items are written in groups, so that the old indexes of a group fit
into memory. Each group goes through three steps, and no step calls an earlier one:

    look      write_look.look             read what is stored, under the caller's lock
    place     write_place.place_item      decide where each inner chunk goes: pure arithmetic
    execute   _execute                    one native call

Some items of a group are written again: those whose object appeared between look and commit, as updates of it; and those
whose file cannot be appended to, by replacing the file.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from .. import native
from ..errors import ShardError, UnsupportedError
from ..options import Options
from ..storage import indexes
from ..storage.store import Outcome
from .read import decoded_nbytes, is_staged
from .records import NOTHING, Elements, EncodedItem, Item, PlanItem, WriteItem
from .regions import as_void

if TYPE_CHECKING:
    from .._native import Written
from .write_look import copied_nbytes, explain_error, look
from .write_place import place_item

__all__ = ["NOTHING", "Elements", "EncodedItem", "WriteItem", "work_nbytes", "write_objects"]

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
