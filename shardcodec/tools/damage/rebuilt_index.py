# rebuilt_index.py - rebuild a lost index from the inner chunks
# SPDX-License-Identifier: MIT
"""Rebuild the index of a shard from the inner chunks that can be recognised, and what is left of the index.

An entry of a damaged index is no proof, neither that an inner chunk is there nor that it is absent. It is a *hint* if it names
exactly the range of a recognised chunk. A position is proved in one of these ways:

- *Checksum*: an index that is made of hints, and of recognised chunks in the positions that have none, has the stored checksum;
  perhaps with exchanged hints, because chunks of one size are recognised under the entries of each other.
- *Count and order*: the range has only inner chunks, as many as the shard has positions, and they lie in one order. Either the
  caller says in which order, or at least half of the positions have a hint, so many that they do not agree with an order by
  chance, and all hints agree with it. Where several orders agree with all hints, only chunks that have one place in all of
  them are proved.
- *Order*: the index has no checksum that would contradict: its end is missing or was never written, or its writer has made
  none. At least `_MIN_HINTS` hints agree with an order. The range has only inner chunks. Chunks without a hint are proved if
  as many positions are free between their neighbours in that order.
- *Older index*: a whole index from before an append has the same entry in the same position.

Without a checksum the order of columns is no proof: two exchanged entries of a square make it from the order of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import native
from ...access.opened_shard import OpenedShard
from ...access.placement import ABSENT
from ...format.spec import ShardSpec
from ...options import ORDERS
from ..chunk_check import ChunkCheck, Level, read_runs
from .index_layout import CHECKSUM_NBYTES, Entries, encode_entries, is_absent, wrong_sizes
from .index_search import FoundIndex
from .recognise import Slot, Slots, recognise

__all__ = [
    "Rebuilt",
    "rebuild",
    "sequence",
]

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.intp]]

# From positions to the number of a recognised inner chunk.
Places = Mapping[int, int]

# Indexes whose checksum is compared with the stored one, and bytes of all of them.
_MOST_CANDIDATES = 4000
_MOST_CANDIDATE_NBYTES = 256 << 20
# Entries of which all arrangements are compared; of more, those that one or two exchanges make.
_MOST_PERMUTED = 6
# Of fewer arrangements one agrees with an order by chance.
_RARE = 1000
# So many exchanged entries of an index do not agree with an order by chance.
_MIN_HINTS = 8
# Checksums of bytes that were never written, or erased: the true one is missing.
_BLANK = (bytes(CHECKSUM_NBYTES), b"\xff" * CHECKSUM_NBYTES)


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


def rebuild(
    view: OpenedShard,
    found: FoundIndex,
    check: ChunkCheck,
    order: str | None = None,
    inside: Flags | None = None,
) -> Rebuilt:
    """Rebuild the index of a shard.

    Parameters
    ----------
    view : OpenedShard
    found : FoundIndex
        The lost index.
    check : ChunkCheck
    order : {"morton", "lexicographic", "colexicographic"}, optional
        The order of the inner chunks, if the caller knows it.
    inside : ndarray of bool, shape (n_chunks,), optional
        Inner chunks that have elements of the array.

    Returns
    -------
    Rebuilt
    """
    spec = check.spec
    low, high = (found.nbytes, view.nbytes) if spec.index_location == "start" else (0, found.offset)
    slots = recognise(view, low, max(low, high), check) or Slots((), False)
    evidence = _Evidence(spec, slots, high, found, order, inside)
    places = evidence.with_checksum()
    is_complete = places is not None
    if places is None:
        places, is_complete = evidence.with_order()
        if is_complete and not evidence.fits_cut_checksum(places):
            places, is_complete = {}, False
    entries = _proved(view, found, check)
    if not is_complete and slots.found and slots.fills_range:
        known = set(map(tuple, entries.tolist()))
        is_complete = all((slot.offset, slot.nbytes) in known for slot in slots.found)
    is_lost = is_absent(entries) & (not is_complete)
    for position, number in places.items():
        slot = slots.found[number]
        is_lost[position] = not slot.is_whole
        if slot.is_whole:
            entries[position] = slot.offset, slot.nbytes
    return Rebuilt(entries, is_lost, sum(slot.is_whole for slot in slots.found))


def _proved(view: OpenedShard, found: FoundIndex, check: ChunkCheck) -> Entries:
    """Return the proved entries whose inner chunks are whole; absent elsewhere."""
    entries = np.full((check.spec.n_chunks, 2), ABSENT, dtype=np.uint64)
    if found.proved is None:
        return entries
    where = np.flatnonzero(~is_absent(found.proved))
    for position, data in read_runs(view, found.proved, where, check.share.block_nbytes):
        if not isinstance(data, OSError) and check.problem(position, data, Level.DECODE) is None:
            entries[position] = found.proved[position]
    return entries


class _Evidence:
    """What shows the positions of recognised inner chunks.

    Attributes
    ----------
    hinted : dict
        The slot that the entry of a position names exactly; a slot that two entries name is a hint for neither.
    left : list of int
        Slots without a hint.
    open : list of int
        Positions without a hint.
    garbled : list of int
        Those of them whose entry is not absent.
    high : int
        Where the inner chunks end.
    table : ndarray of uint64, shape (n_slots + 1, 2)
        The entries that name the slots, and an absent one.
    """

    def __init__(
        self,
        spec: ShardSpec,
        slots: Slots,
        high: int,
        found: FoundIndex,
        order: str | None,
        inside: Flags | None,
    ) -> None:
        self.spec, self.slots, self.found, self.order, self.inside = spec, slots.found, found, order, inside
        self.high = high
        self.table = np.array(
            [*((slot.offset, slot.nbytes) for slot in slots.found), (ABSENT, ABSENT)], np.uint64
        )
        self.fills_range = slots.fills_range
        hints = found.hints
        self.hinted = {} if hints is None else _hinted(self.slots, hints)
        self.left = sorted(set(range(len(self.slots))) - set(self.hinted.values()))
        self.open = [position for position in range(spec.n_chunks) if position not in self.hinted]
        absent = np.zeros(spec.n_chunks, dtype=np.bool_) if hints is None else is_absent(hints)
        self.garbled = [position for position in self.open if not absent[position]]

    # ---- an index with the stored checksum

    def with_checksum(self) -> Places | None:
        """Return the places of an index that has the stored checksum; None if none has."""
        checksum, n = self.found.checksum, self.spec.index_nbytes
        if not checksum:
            return None
        candidates = itertools.chain(map(self._numbers, self._candidates()), self._exchanged())
        for numbers in itertools.islice(candidates, min(_MOST_CANDIDATES, _MOST_CANDIDATE_NBYTES // n)):
            if self._stored(numbers).endswith(checksum):
                return {position: number for position, number in enumerate(numbers.tolist()) if number >= 0}
        return None

    def _numbers(self, places: Places) -> Numbers:
        """Return the slot of each position, and -1 for none."""
        numbers = np.full(self.spec.n_chunks, -1, dtype=np.intp)
        numbers[list(places)] = list(places.values())
        return numbers

    def _stored(self, numbers: Numbers) -> bytes:
        """Return the bytes of an index with these slots."""
        return encode_entries(self.spec, self.table[numbers])

    def fits_cut_checksum(self, places: Places) -> bool:
        """Return False if the last bytes of the checksum are missing, and the others contradict an index with these places."""
        n_left = CHECKSUM_NBYTES - self.found.n_missing
        if self.spec.n_index_checksums != 1 or not 0 < n_left < CHECKSUM_NBYTES:
            return True
        return self._stored(self._numbers(places))[-CHECKSUM_NBYTES:].startswith(
            self.found.checksum[-n_left:]
        )

    def _candidates(self) -> Iterator[Places]:
        """Yield possible indexes; the likely ones come first."""
        left = self.left
        yield self.hinted
        for order in self._orders():
            for positions in self._present():
                if len(positions) == len(self.slots):
                    yield _in_order(self.spec, order, positions)
        for order in self._orders():
            yield from itertools.islice(self._between(order), _MOST_CANDIDATES // 4)
        yield from self._with_inserted()
        if left and len(left) <= 2:
            some = itertools.permutations(self.open, len(left))
            yield from ({**self.hinted, **dict(zip(one, left, strict=True))} for one in some)
        yield from ({**self.hinted, **filled} for filled in self._filled())

    def _filled(self) -> Iterator[Places]:
        """Yield the places of slots without a hint in the positions with a garbled entry."""
        left, garbled = self.left, self.garbled
        if len(garbled) <= len(left):
            chosen = itertools.permutations(left, len(garbled))
            yield from (dict(zip(garbled, one, strict=True)) for one in chosen)
        else:
            some = itertools.permutations(garbled, len(left))
            yield from (dict(zip(one, left, strict=True)) for one in some)

    def _exchanged(self) -> Iterator[Numbers]:
        """Yield indexes with exchanged entries."""
        if not self.hinted:
            return
        hinted = self._numbers(self.hinted)
        whole = np.setdiff1d(np.arange(self.spec.n_chunks), self.garbled)
        for order in _rearranged(len(whole)):
            for filled in self._filled():
                numbers = self._numbers(filled)
                numbers[whole] = hinted[whole[order]]
                yield numbers

    def _with_inserted(self) -> Iterator[Places]:
        """Yield indexes that had further entries anywhere, if whole entries of the stored one are missing."""
        n_missing, rest = divmod(self.found.n_missing, 16)
        if not n_missing or rest or self.found.hints is None or len(self.left) > n_missing:
            return
        named = _hinted(self.slots, self.found.hints)
        for first in range(self.spec.n_chunks - n_missing + 1):
            moved = {p if p < first else p + n_missing: number for p, number in named.items()}
            for positions in itertools.permutations(range(first, first + n_missing), len(self.left)):
                yield {**moved, **dict(zip(positions, self.left, strict=True))}

    def _orders(self) -> Sequence[str]:
        if self.order is not None:
            return (self.order,)
        return ORDERS if self.spec.n_index_checksums else ORDERS[:2]

    def _present(self) -> Iterator[Sequence[int]]:
        """Yield sets of positions that may be all that are present."""
        yield range(self.spec.n_chunks)
        if self.inside is not None:
            yield np.flatnonzero(self.inside).tolist()
        yield sorted([*self.hinted, *self.garbled])

    def _between(self, order: str) -> Iterator[Places]:
        """Yield indexes in which the slots without a hint have open positions between their neighbours in an order."""
        gaps = self._gaps(order)
        if gaps is None:
            return
        choices = [itertools.combinations(positions, len(numbers)) for positions, numbers in gaps if numbers]
        slots = [number for _, numbers in gaps for number in numbers]
        for chosen in itertools.product(*map(_few, choices)):
            yield {**self.hinted, **dict(zip(itertools.chain(*chosen), slots, strict=True))}

    def _gaps(self, order: str) -> list[tuple[list[int], list[int]]] | None:
        """Return the open positions and the slots between each two hinted neighbours in an order; None if hints contradict it."""
        gaps: list[tuple[list[int], list[int]]] = []
        positions: list[int] = []
        last = -1
        for position in [*sequence(self.spec, order).tolist(), None]:
            if position is not None and position not in self.hinted:
                positions.append(position)
                continue
            number = len(self.slots) if position is None else self.hinted[position]
            numbers = list(range(last + 1, number))
            if number <= last or len(numbers) > len(positions):
                return None
            gaps.append((positions, numbers))
            positions, last = [], number
        return gaps

    # ---- without it

    def with_order(self) -> tuple[Places, bool]:
        """Return the places that count and order prove, and True if they show that nothing else was stored."""
        if not self.fills_range or not self.slots:
            return {}, False
        n = len(self.slots)
        n_hints = sum(self.slots[number].is_whole for number in self.hinted.values())
        if self.order is None and self.spec.n_chunks > 1 and (2 * n_hints < n or self._is_chance(n_hints)):
            return {}, False
        if n == self.spec.n_chunks or (self.order is not None and not self.hinted):
            return self._in_full_order()
        if self._reaches_beyond():
            return {}, False
        if self.spec.n_index_checksums:
            has_none = self.found.n_missing > 0 or self.found.checksum in _BLANK
        else:
            has_none = self.found.is_anchored
        return self._in_some_order() if has_none and n_hints >= _MIN_HINTS else ({}, False)

    def _is_chance(self, n_hints: int) -> bool:
        """Return True if so few hints may agree with an order by chance. One chunk without a hint has the position that is left."""
        n = len(self.slots)
        return n - n_hints > 1 and math.perm(n, min(n_hints, _MIN_HINTS)) < _RARE

    def _reaches_beyond(self) -> bool:
        """Return True if an entry could be right but for its end: bytes of inner chunks are missing, so others are shifted."""
        if self.found.hints is None:
            return False
        entries = self.found.hints[self.garbled]
        limit = np.uint64(4 * self.high)
        could_be = (entries <= limit).all(axis=1) & ~wrong_sizes(entries, self.spec.inner.fixed_nbytes)
        return bool((entries[could_be].sum(axis=1, dtype=np.uint64) > np.uint64(self.high)).any())

    def _in_full_order(self) -> tuple[Places, bool]:
        """Return the places if every position is present, or every one that has elements of the array and the caller knows the order."""
        for positions in itertools.islice(self._present(), 1 + (self.inside is not None)):
            if len(positions) == len(self.slots):
                orders = [_in_order(self.spec, one, positions) for one in self._orders()]
                places = _common([one for one in orders if self.hinted.items() <= one.items()])
                return places, len(places) == len(self.slots)
        return {}, False

    def _in_some_order(self) -> tuple[Places, bool]:
        """Return the places of hints that agree with an order, and of slots that have one place between them."""
        found = []
        for order in self._orders():
            gaps = self._gaps(order)
            if gaps is not None:
                exact = (zip(p, numbers, strict=True) for p, numbers in gaps if len(p) == len(numbers))
                found.append({**self.hinted, **dict(itertools.chain(*exact))})
        places = _common(found)
        return places, len(places) == len(self.slots)


def _rearranged(n: int) -> Iterator[Numbers]:
    """Yield numbers 0 to `n` - 1 with two equal runs exchanged, or three in a cycle; of few numbers, in all orders."""
    if n <= _MOST_PERMUTED:
        yield from (np.array(one, np.intp) for one in itertools.permutations(range(n)))
        return
    numbers = np.arange(n)
    for k in range(1, n // 2 + 1):
        for a in range(n - 2 * k + 1):
            for b in range(a + k, n - k + 1):
                exchanged = numbers.copy()
                exchanged[a : a + k], exchanged[b : b + k] = numbers[b : b + k], numbers[a : a + k]
                yield exchanged
        if k == 1:
            for a, b, c in itertools.permutations(range(n), 3):
                if a < b and a < c:
                    cycle = numbers.copy()
                    cycle[[a, b, c]] = b, c, a
                    yield cycle


def _few(chosen: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list(itertools.islice(chosen, _MOST_CANDIDATES // 4))


def _hinted(slots: Sequence[Slot], hints: Entries) -> dict[int, int]:
    """Return the slot that each entry names exactly, unless two entries name it."""
    number = {(slot.offset, slot.nbytes): i for i, slot in enumerate(slots)}
    named: dict[int, list[int]] = {}
    for position, entry in enumerate(hints.tolist()):
        slot = number.get(tuple(entry))
        if slot is not None:
            named.setdefault(slot, []).append(position)
    return {which[0]: slot for slot, which in named.items() if len(which) == 1}


def _in_order(spec: ShardSpec, order: str, positions: Sequence[int]) -> dict[int, int]:
    """Return the rank of each position among the given ones."""
    wanted = np.zeros(spec.n_chunks, dtype=np.bool_)
    wanted[list(positions)] = True
    laid_out = sequence(spec, order)
    return {position: rank for rank, position in enumerate(laid_out[wanted[laid_out]].tolist())}


def _common(orders: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the positions that have one slot in all orders."""
    if not orders:
        return {}
    return {p: rank for p, rank in orders[0].items() if all(one.get(p) == rank for one in orders)}
