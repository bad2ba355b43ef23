# rebuilt_index.py - rebuild a lost index from the inner chunks
# SPDX-License-Identifier: MIT
"""Rebuild the index of a shard from the inner chunks that can be recognised, and what is left of the index.

An entry of a damaged index is no proof. It is a *hint* if it names exactly the range of a recognised inner chunk. A position
is proved in one of two ways:

- *Count*: there are as many recognised chunks as positions that may be present, and the hints name different chunks for all
  of these positions, or for all but one.
- *Order and count*: the range has only inner chunks, as many as positions, and they lie in one order. Either the
  caller says in which order, or at least half of the positions have a hint, and all hints agree with the order. Where
  several orders agree with all hints, only chunks that have one place in all of them are proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import native
from ..access.placement import ABSENT
from ..format.spec import ShardSpec
from .chunk_check import ChunkCheck
from .frames import Slot, Slots, recognise
from .index_layout import Entries, is_absent
from .index_search import FoundIndex
from .stored_bytes import StoredBytes

__all__ = ["ORDERS", "Rebuilt", "rebuild", "sequence"]

ORDERS = ("morton", "lexicographic", "colexicographic")

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """A rebuilt index.

    Attributes
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2)
        Proved places of whole inner chunks; absent elsewhere.
    is_lost : ndarray of bool, shape (n_chunks,)
        Inner chunks that may have been stored and have no proved place, or are damaged there.
    n_recognised : int
        Whole inner chunks in the bytes of the shard.
    """

    entries: Entries
    is_lost: Flags
    n_recognised: int


def sequence(spec: ShardSpec, order: str) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return all positions of inner chunks in the order in which a writer lays them out."""
    out = np.empty(spec.n_chunks, dtype=np.uint64)
    native.load().order(out, spec.grid_shape, order)
    return out.astype(np.intp)


def rebuild(view: StoredBytes, found: FoundIndex, check: ChunkCheck, order: str | None = None) -> Rebuilt:
    """Rebuild the index of a shard.

    Parameters
    ----------
    view : StoredBytes
    found : FoundIndex
        The lost index.
    check : ChunkCheck
    order : {"morton", "lexicographic", "colexicographic"}, optional
        The order of the inner chunks, if the caller knows it.

    Returns
    -------
    Rebuilt
    """
    spec = check.spec
    hints = found.hints
    may_be_present = np.ones(spec.n_chunks, dtype=np.bool_) if hints is None else ~is_absent(hints)
    entries = np.full((spec.n_chunks, 2), ABSENT, dtype=np.uint64)
    low, high = (found.nbytes, view.nbytes) if spec.index_location == "start" else (0, found.offset)
    slots = recognise(view, low, max(low, high), check) or Slots((), False)
    positions = np.flatnonzero(may_be_present)
    if len(slots.found) == len(positions):
        for position, slot in _proved(slots, positions, hints, spec, order).items():
            if slot.is_whole:
                entries[position] = slot.offset, slot.nbytes
    n_recognised = sum(slot.is_whole for slot in slots.found)
    return Rebuilt(entries, may_be_present & is_absent(entries), n_recognised)


def _proved(
    slots: Slots, positions: Any, hints: Entries | None, spec: ShardSpec, order: str | None
) -> dict[int, Slot]:
    """Return the proved slot of each position."""
    hinted = {} if hints is None else _hinted(slots.found, positions, hints)
    missing = [position for position in positions.tolist() if position not in hinted]
    if order is None and hinted and len(missing) <= slots.fills_range:
        left = set(range(len(slots.found))) - set(hinted.values())
        return {p: slots.found[i] for p, i in [*hinted.items(), *zip(missing, left, strict=True)]}
    if not slots.fills_range or (order is None and 2 * len(hinted) < len(positions)):
        return {}
    agreeing = [
        ranks
        for one in (ORDERS if order is None else (order,))
        if (ranks := _ranks(spec, one, positions)) and all(ranks[p] == i for p, i in hinted.items())
    ]
    return {p: slots.found[i] for p, i in _common(agreeing).items()}


def _hinted(slots: Sequence[Slot], positions: Any, hints: Entries) -> dict[int, int]:
    """Return the slot that each entry names exactly; a slot that two entries name proves neither."""
    number = {(slot.offset, slot.nbytes): i for i, slot in enumerate(slots)}
    named: dict[int, list[int]] = {}
    for position in positions.tolist():
        slot = number.get(tuple(hints[position].tolist()))
        if slot is not None:
            named.setdefault(slot, []).append(position)
    return {which[0]: slot for slot, which in named.items() if len(which) == 1}


def _ranks(spec: ShardSpec, order: str, positions: Any) -> dict[int, int]:
    """Return the rank of each position among the given ones."""
    wanted = np.zeros(spec.n_chunks, dtype=np.bool_)
    wanted[positions] = True
    laid_out = sequence(spec, order)
    return {position: rank for rank, position in enumerate(laid_out[wanted[laid_out]].tolist())}


def _common(orders: Sequence[dict[int, int]]) -> dict[int, int]:
    """Return the positions that have one rank in all orders."""
    if not orders:
        return {}
    return {p: rank for p, rank in orders[0].items() if all(one[p] == rank for one in orders)}
