# rebuilt_index.py - rebuild a lost index from the inner chunks
# SPDX-License-Identifier: MIT
"""Rebuild the index of a shard from recognised inner chunks and the remains of the index.

An entry of a damaged index proves nothing, not even that an inner chunk is absent. It is a *hint* if it names exactly the range
of a recognised chunk. A position is proved in one of these ways:

- *Checksum*: an index of hints, and of recognised chunks in positions without a hint, has the stored checksum. Hints may be
  exchanged, because a chunk is also recognised under the entry of another chunk of its size.
- *Count and order*: the range has only inner chunks, as many as the shard has positions, in one order. Either the caller knows
  the order; or at least half of the positions have a hint, too many to agree with an order by chance, and all hints agree with
  it. If several orders agree with all hints, only chunks with the same place in all of them are proved.
- *Order*: the index has no checksum that could contradict: its end is missing or was never written, or its writer makes none.
  At least `_MIN_HINTS` hints agree with an order. The range has only inner chunks. Chunks without a hint are proved if as many
  positions are free between their neighbours in that order.
- *Older index*: a whole index from before an append has the same entry in the same position.

Without a checksum, the order of columns proves nothing: in a square of four, it is the order of rows with two entries exchanged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import native
from ...access.opened_shard import OpenedShard, read_runs
from ...access.placement import ABSENT
from ...format.spec import ShardSpec
from ...options import ORDERS
from ..chunk_check import ChunkCheck, Level
from .index_layout import CHECKSUM_NBYTES, Entries, encode_entries, is_absent, wrong_sizes
from .index_search import StoredIndex
from .recognise import Slot, Slots, recognise

__all__ = [
    "RebuiltIndex",
    "rebuild",
    "sequence",
]

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.intp]]

# The number of the recognised inner chunk at each position.
Places = Mapping[int, int]

# Maximum number of indexes whose checksum is compared with the stored one, and of bytes of all of them.
_MAX_CANDIDATES = 4000
_MAX_CANDIDATE_NBYTES = 256 << 20
# Up to this number of entries all arrangements are compared; above it, those of one or two exchanges.
_MAX_PERMUTED = 6
# With fewer arrangements, one may agree with an order by chance.
_RARE = 1000
# Number of exchanged entries that do not agree with an order by chance.
_MIN_HINTS = 8
# A checksum that was never written, or erased.
_BLANK = (bytes(CHECKSUM_NBYTES), b"\xff" * CHECKSUM_NBYTES)


@dataclass(frozen=True, eq=False)
class RebuiltIndex:
    """A rebuilt index.

    Attributes
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2)
        Proved places of whole inner chunks; absent elsewhere.
    is_lost : ndarray of bool, shape (n_chunks,)
        Inner chunks that may have been stored and have no proved place, or are damaged in it.
    n_recognised : int
        Number of whole inner chunks in the bytes of the shard.
    """

    entries: Entries
    is_lost: Flags
    n_recognised: int


def sequence(spec: ShardSpec, order: str) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return all positions of inner chunks in the order of the stored chunks."""
    out = np.empty(spec.n_chunks, dtype=np.uint64)
    native.load().order(out, spec.grid_shape, order)
    return out.astype(np.intp)


def rebuild(
    view: OpenedShard,
    lost: StoredIndex,
    check: ChunkCheck,
    order: str | None = None,
    inside: Flags | None = None,
) -> RebuiltIndex:
    """Rebuild a lost index.

    `order` is that of the inner chunks, if the caller knows it. `inside` has the inner chunks with elements of the array.
    """
    spec = check.spec
    low, high = (lost.nbytes, view.nbytes) if spec.index_location == "start" else (0, lost.offset)
    slots = recognise(view, low, max(low, high), check) or Slots((), False)
    evidence = _Evidence(spec, slots, high, lost, order, inside)
    places = evidence.with_checksum()
    is_complete = places is not None
    if places is None:
        places, is_complete = evidence.with_order()
        if is_complete and not evidence.fits_cut_checksum(places):
            places, is_complete = {}, False
    entries = _proved(view, lost, check)
    if not is_complete and slots.chunks and slots.fills_range:
        known = set(map(tuple, entries.tolist()))
        is_complete = all((slot.offset, slot.nbytes) in known for slot in slots.chunks)
    is_lost = is_absent(entries) & (not is_complete)
    for position, number in places.items():
        slot = slots.chunks[number]
        is_lost[position] = not slot.is_whole
        if slot.is_whole:
            entries[position] = slot.offset, slot.nbytes
    return RebuiltIndex(entries, is_lost, sum(slot.is_whole for slot in slots.chunks))


def _proved(view: OpenedShard, lost: StoredIndex, check: ChunkCheck) -> Entries:
    """Return the proved entries whose inner chunks are whole; absent elsewhere."""
    entries = np.full((check.spec.n_chunks, 2), ABSENT, dtype=np.uint64)
    if lost.proved is None:
        return entries
    where = np.flatnonzero(~is_absent(lost.proved))
    for position, data in read_runs(view, lost.proved, where, check.share.block_nbytes):
        if not isinstance(data, OSError) and check.problem(position, data, Level.DECODE) is None:
            entries[position] = lost.proved[position]
    return entries


class _Evidence:
    """The evidence for the positions of recognised inner chunks.

    Attributes
    ----------
    hinted : dict
        The slot that the entry of a position names exactly; a slot that two entries name is a hint for neither.
    unhinted : list of int
        Slots without a hint.
    open : list of int
        Positions without a hint.
    garbled : list of int
        Positions without a hint whose entry is not absent.
    high : int
        End of the inner chunks.
    table : ndarray of uint64, shape (n_slots + 1, 2)
        The entry of each slot, then an absent one.
    """

    def __init__(
        self,
        spec: ShardSpec,
        slots: Slots,
        high: int,
        lost: StoredIndex,
        order: str | None,
        inside: Flags | None,
    ) -> None:
        self.spec, self.slots, self.lost, self.order, self.inside = spec, slots.chunks, lost, order, inside
        self.high = high
        self.table = np.array(
            [*((slot.offset, slot.nbytes) for slot in slots.chunks), (ABSENT, ABSENT)], np.uint64
        )
        self.fills_range = slots.fills_range
        hints = lost.hints
        self.hinted = {} if hints is None else _hinted(self.slots, hints)
        self.unhinted = sorted(set(range(len(self.slots))) - set(self.hinted.values()))
        self.open = [position for position in range(spec.n_chunks) if position not in self.hinted]
        absent = np.zeros(spec.n_chunks, dtype=np.bool_) if hints is None else is_absent(hints)
        self.garbled = [position for position in self.open if not absent[position]]

    def with_checksum(self) -> Places | None:
        """Return the places of an index with the stored checksum; None if no candidate has it."""
        checksum, n = self.lost.checksum, self.spec.index_nbytes
        if not checksum:
            return None
        candidates = itertools.chain(map(self._numbers, self._candidates()), self._exchanged())
        for numbers in itertools.islice(candidates, min(_MAX_CANDIDATES, _MAX_CANDIDATE_NBYTES // n)):
            if self._stored(numbers).endswith(checksum):
                return {position: number for position, number in enumerate(numbers.tolist()) if number >= 0}
        return None

    def _numbers(self, places: Places) -> Numbers:
        """Return the slot of each position; -1 without a slot."""
        numbers = np.full(self.spec.n_chunks, -1, dtype=np.intp)
        numbers[list(places)] = list(places.values())
        return numbers

    def _stored(self, numbers: Numbers) -> bytes:
        """Return the bytes of an index with these slots."""
        return encode_entries(self.spec, self.table[numbers])

    def fits_cut_checksum(self, places: Places) -> bool:
        """Return False if the last bytes of the checksum are missing and the others contradict these places."""
        n_stored = CHECKSUM_NBYTES - self.lost.n_missing
        if self.spec.n_index_checksums != 1 or not 0 < n_stored < CHECKSUM_NBYTES:
            return True
        return self._stored(self._numbers(places))[-CHECKSUM_NBYTES:].startswith(
            self.lost.checksum[-n_stored:]
        )

    def _candidates(self) -> Iterator[Places]:
        """Yield possible indexes; the likely ones come first."""
        unhinted = self.unhinted
        yield self.hinted
        for order in self._orders():
            for positions in self._present():
                if len(positions) == len(self.slots):
                    yield _in_order(self.spec, order, positions)
        for order in self._orders():
            yield from itertools.islice(self._between(order), _MAX_CANDIDATES // 4)
        yield from self._with_inserted()
        if unhinted and len(unhinted) <= 2:
            choices = itertools.permutations(self.open, len(unhinted))
            yield from ({**self.hinted, **dict(zip(chosen, unhinted, strict=True))} for chosen in choices)
        yield from ({**self.hinted, **filled} for filled in self._filled())

    def _filled(self) -> Iterator[Places]:
        """Yield the places of slots without a hint in the positions with a garbled entry."""
        unhinted, garbled = self.unhinted, self.garbled
        if len(garbled) <= len(unhinted):
            chosen = itertools.permutations(unhinted, len(garbled))
            yield from (dict(zip(garbled, arrangement, strict=True)) for arrangement in chosen)
        else:
            choices = itertools.permutations(garbled, len(unhinted))
            yield from (dict(zip(arrangement, unhinted, strict=True)) for arrangement in choices)

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
        """Yield indexes with further entries anywhere, if whole entries of the stored index are missing."""
        n_missing, rest = divmod(self.lost.n_missing, 16)
        if not n_missing or rest or self.lost.hints is None or len(self.unhinted) > n_missing:
            return
        named = _hinted(self.slots, self.lost.hints)
        for first in range(self.spec.n_chunks - n_missing + 1):
            moved = {p if p < first else p + n_missing: number for p, number in named.items()}
            for positions in itertools.permutations(range(first, first + n_missing), len(self.unhinted)):
                yield {**moved, **dict(zip(positions, self.unhinted, strict=True))}

    def _orders(self) -> Sequence[str]:
        if self.order is not None:
            return (self.order,)
        return ORDERS if self.spec.n_index_checksums else ORDERS[:2]

    def _present(self) -> Iterator[Sequence[int]]:
        """Yield the sets of positions that may be all present ones."""
        yield range(self.spec.n_chunks)
        if self.inside is not None:
            yield np.flatnonzero(self.inside).tolist()
        yield sorted([*self.hinted, *self.garbled])

    def _between(self, order: str) -> Iterator[Places]:
        """Yield indexes with the slots without a hint in open positions between their neighbours in an order."""
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
            has_none = self.lost.n_missing > 0 or self.lost.checksum in _BLANK
        else:
            has_none = self.lost.is_anchored
        return self._in_some_order() if has_none and n_hints >= _MIN_HINTS else ({}, False)

    def _is_chance(self, n_hints: int) -> bool:
        """Return True if `n_hints` hints may agree with an order by chance. A single chunk without a hint takes the last position."""
        n = len(self.slots)
        return n - n_hints > 1 and math.perm(n, min(n_hints, _MIN_HINTS)) < _RARE

    def _reaches_beyond(self) -> bool:
        """Return True if only the end of an entry is impossible: bytes of inner chunks are missing, so others are shifted."""
        if self.lost.hints is None:
            return False
        entries = self.lost.hints[self.garbled]
        limit = np.uint64(4 * self.high)
        could_be = (entries <= limit).all(axis=1) & ~wrong_sizes(entries, self.spec.inner.fixed_nbytes)
        return bool((entries[could_be].sum(axis=1, dtype=np.uint64) > np.uint64(self.high)).any())

    def _in_full_order(self) -> tuple[Places, bool]:
        """Return the places if all positions are present, or all with elements of the array in an order that the caller knows."""
        for positions in itertools.islice(self._present(), 1 + (self.inside is not None)):
            if len(positions) == len(self.slots):
                orders = [_in_order(self.spec, order, positions) for order in self._orders()]
                places = _common([ranks for ranks in orders if self.hinted.items() <= ranks.items()])
                return places, len(places) == len(self.slots)
        return {}, False

    def _in_some_order(self) -> tuple[Places, bool]:
        """Return the places of hints that agree with an order, and of slots that have one place between them."""
        indexes = []
        for order in self._orders():
            gaps = self._gaps(order)
            if gaps is not None:
                exact = (zip(p, numbers, strict=True) for p, numbers in gaps if len(p) == len(numbers))
                indexes.append({**self.hinted, **dict(itertools.chain(*exact))})
        places = _common(indexes)
        return places, len(places) == len(self.slots)


def _rearranged(n: int) -> Iterator[Numbers]:
    """Yield 0 to `n` - 1 with two equal runs exchanged, or three numbers in a cycle; few numbers in all orders."""
    if n <= _MAX_PERMUTED:
        yield from (np.array(order, np.intp) for order in itertools.permutations(range(n)))
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
    return list(itertools.islice(chosen, _MAX_CANDIDATES // 4))


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
    is_present = np.zeros(spec.n_chunks, dtype=np.bool_)
    is_present[list(positions)] = True
    laid_out = sequence(spec, order)
    return {position: rank for rank, position in enumerate(laid_out[is_present[laid_out]].tolist())}


def _common(orders: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the positions that have one slot in all orders."""
    if not orders:
        return {}
    return {p: rank for p, rank in orders[0].items() if all(order.get(p) == rank for order in orders)}
