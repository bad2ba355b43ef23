# survey.py - check one shard: which inner chunks are whole, and which are damaged
# SPDX-License-Identifier: MIT
"""`survey`: find the index of a shard, check its entries and inner chunks, and find inner chunks that are not where it says.

`verify` reports the findings, and `repair` copies the inner chunks that are whole and whose position is proved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import native
from ..access.inner_chunks import coordinates
from ..access.opened_shard import NestedShard, OpenedShard, read_runs, try_range
from ..access.placement import ABSENT
from ..access.shard_layout import TAIL_NBYTES, header_and_footer
from .chunk_check import ChunkCheck, Level, Problem
from .damage.displacement import (
    Displacement,
    displacement_of,
    drift_of,
    has_all_chunks,
    prove,
    shifted,
)
from .damage.index_layout import Entries, bad_entries, is_absent, wrong_sizes
from .damage.index_search import IndexStatus, StoredIndex, find_index
from .damage.rebuilt_index import rebuild
from .damage.recognise import (
    HEADER_NBYTES,
    can_recognise,
    has_chunks_between,
    has_header,
    has_sizes_in_headers,
    is_complete,
)
from .findings import Finding, FindingKind, FindingList

__all__ = ["Survey", "survey"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Survey:
    """The result of a check of one shard.

    Attributes
    ----------
    index : StoredIndex
        The index of the shard.
    places : ndarray of uint64, shape (n_chunks, 2)
        Offset and size of each whole inner chunk whose position is proved; absent elsewhere.
    is_lost : ndarray of bool, shape (n_chunks,)
        Inner chunks that were stored, or may have been, and are not in `places`.
    findings : tuple of Finding
        At most `capped.LISTED`.
    n_findings : int
        Number of findings without warnings, listed or not.
    nbytes : int
        Size of the object in bytes.
    data_nbytes : int
        Bytes of the inner chunks.
    verified_nbytes : int
        Bytes of inner chunks that a checksum has verified.
    unverifiable_nbytes : int
        Bytes of inner chunks without a checksum.
    """

    index: StoredIndex
    places: Entries
    is_lost: Flags
    findings: tuple[Finding, ...]
    n_findings: int
    nbytes: int
    data_nbytes: int
    verified_nbytes: int
    unverifiable_nbytes: int

    @property
    def is_whole(self) -> bool:
        """True if nothing is damaged."""
        return not self.n_findings

    def without_entries(self) -> Survey:
        """Return the result without the arrays, which take memory for each inner chunk."""
        index = replace(self.index, entries=None, hints=None)
        return replace(self, index=index, places=self.places[:0].copy(), is_lost=self.is_lost[:0].copy())


def survey(
    view: OpenedShard,
    name: str,
    check: ChunkCheck,
    level: Level,
    *,
    array: str = "",
    is_inside: Flags | None = None,
    order: str | None = None,
) -> Survey:
    """Check one shard.

    Parameters
    ----------
    view : OpenedShard
        The object.
    name : str
        Its path or key, for findings.
    check : ChunkCheck
        Verifies inner chunks of this array.
    level : Level
        How much is checked. The inner chunks of a damaged shard are always read, to say what `repair` can restore.
    array : str
        Path of the array, for findings.
    is_inside : ndarray of bool, shape (n_chunks,), optional
        Inner chunks that have elements of the array; by default all.
    order : str, optional
        The order in which a writer laid out the inner chunks; used only if the index is lost.

    Returns
    -------
    Survey

    Raises
    ------
    UnsupportedError
        An inner chunk is larger than the memory for it.
    """
    if check.is_plain:
        return _survey_plain(view, name, check, level, array)
    shard = _ShardSurvey(view, name, check, level, array, is_inside, order)
    index = find_index(view, check.spec, check.share.block_nbytes, shard.inside)
    if index.entries is None:
        shard.rebuild(index)
    else:
        shard.check_entries(index, index.entries)
    return Survey(
        index,
        shard.places,
        shard.is_lost,
        *shard.list.result(),
        view.nbytes,
        shard.data_nbytes,
        shard.verified_nbytes,
        0 if check.has_checksum else shard.data_nbytes,
    )


def _survey_plain(view: OpenedShard, name: str, check: ChunkCheck, level: Level, array: str) -> Survey:
    """Check the object of a chunk, which is one inner chunk without an index."""
    nbytes = view.nbytes
    entries = np.array([[0, nbytes]], dtype=np.uint64)
    problem = check.size_problem(nbytes)
    if problem is None and level is not Level.INDEX:
        problem = _problem_of_plain(view, name, entries, check, level)
    findings = FindingList(array, name)
    if problem is not None:
        findings.add(problem.kind, problem.detail, 0, nbytes, recoverable=False)
    is_verified = problem is None and check.has_checksum and check.is_checked(level)
    return Survey(
        StoredIndex(IndexStatus.IN_PLACE, entries, nbytes, 0),
        entries if problem is None else np.full_like(entries, ABSENT),
        np.array([problem is not None]),
        *findings.result(),
        nbytes,
        nbytes,
        nbytes if is_verified else 0,
        0 if check.has_checksum else nbytes,
    )


def _problem_of_plain(
    view: OpenedShard, name: str, entries: Entries, check: ChunkCheck, level: Level
) -> Problem | None:
    """Return what is wrong with a chunk; without a checksum, level CHECKSUM finds missing bytes by size or headers, or decodes."""
    inner = check.spec.inner
    if level is Level.CHECKSUM:
        problems = check.checksum_problems(view, entries, np.arange(1))
        if problems is not None:
            return problems.get(0)
        if check.can_decode and not check.has_checksum and inner.fixed_nbytes is not None:
            return None  # any bytes of this size are a chunk
    check.share.check_fits(name, "the chunk", view.nbytes)
    for _, data in read_runs(view, entries, np.arange(1), check.share.block_nbytes):
        if isinstance(data, OSError):
            return Problem(FindingKind.UNREADABLE, str(data))
        if (
            level is Level.CHECKSUM
            and check.can_decode
            and not check.has_checksum
            and is_complete(inner, data)
        ):
            return None
        return check.problem(0, data, level)
    return None


class _ShardSurvey:
    def __init__(
        self,
        view: OpenedShard,
        name: str,
        check: ChunkCheck,
        level: Level,
        array: str,
        is_inside: Flags | None,
        order: str | None,
    ) -> None:
        self.view, self.check, self.level, self.order = view, check, level, order
        self.spec = check.spec
        self.inside = np.ones(self.spec.n_chunks, dtype=np.bool_) if is_inside is None else is_inside
        self.list = FindingList(array, name)
        self.places = np.full((self.spec.n_chunks, 2), ABSENT, dtype=np.uint64)
        self.is_lost = np.zeros(self.spec.n_chunks, dtype=np.bool_)
        self.data_nbytes = self.verified_nbytes = 0

    def rebuild(self, index: StoredIndex) -> None:
        rebuilt = rebuild(self.view, index, self.check, self.order, self.inside)
        self.places, self.is_lost = rebuilt.entries, rebuilt.is_lost & self.inside
        self.data_nbytes = int(self.places[~is_absent(self.places), 1].sum())
        n_proved = int((~is_absent(self.places)).sum())
        detail = f"{index.detail}; {rebuilt.n_recognised} inner chunks are recognised, {n_proved} of them at a proved position"
        assert index.kind is not None
        self.list.add(index.kind, detail, index.offset, index.nbytes, recoverable=not self.is_lost.any())

    def check_entries(self, index: StoredIndex, entries: Entries) -> None:
        spec, nbytes = self.spec, self.view.nbytes
        stored = ~is_absent(entries)
        bad = bad_entries(entries, nbytes, index.offset, index.nbytes)
        wrong = wrong_sizes(entries, spec.inner.fixed_nbytes) & ~bad
        self.data_nbytes = int(entries[stored & ~bad, 1].sum())
        displaced = displacement_of(index, nbytes, spec)
        readable = stored & ~bad & ~wrong
        level = self.level
        if index.status is not IndexStatus.IN_PLACE or (displaced is not None and self.check.has_checksum):
            level = self._level_of_moved
        elif displaced is not None and self._has_sizes_in_headers:
            level = Level.DECODE
        problems = self._read(entries, readable, level)
        whole = readable.copy()
        whole[list(problems)] = False
        if not index.is_anchored and not (whole | ~stored | ~self.inside)[[0, -1]].all():
            # each entry may be its neighbour's: cut or appended bytes shift all entries
            whole[:], stored, displaced = False, np.ones_like(stored), None
        if displaced is not None:
            displaced = self._displace(index, entries, displaced, whole)
        if displaced is None:
            self.places[whole] = entries[whole]
        if displaced is None or displaced.kind is FindingKind.TRUNCATED_TAIL:
            displaced = self._follow_drift(index, entries, stored & ~whole) or displaced
        if index.doubtful is not None:
            stored |= index.doubtful
        is_damaged = bool(
            bad.any() or wrong.any() or problems or displaced is not None or index.kind is not None
        )
        if self._has_unreferenced(index, np.where(bad[:, None], ABSENT, entries), stored, is_damaged):
            stored |= is_damaged
            self._report_unreferenced(int((is_absent(entries) & self.inside).sum()))
        self.is_lost = stored & is_absent(self.places) & self.inside
        self._report(index, entries, displaced, bad, wrong, problems)

    def _read(self, entries: Entries, chosen: Flags, level: Level) -> dict[int, Problem]:
        """Verify the chosen inner chunks at a level; return the problems by position, and add to `verified_nbytes`.

        The chosen entries lie inside the object. A level without checks of inner chunks reads only the indexes of nested
        shards.
        """
        if self.check.nested is not None:
            return self._read_nested(self.check.nested, entries, chosen, level)
        if not self.check.is_checked(level):
            return {}
        positions = np.flatnonzero(chosen)
        if level is Level.CHECKSUM:
            wrong = self.check.checksum_problems(self.view, entries, positions)
            if wrong is not None:
                damaged = sum(int(entries[position, 1]) for position in wrong)
                self.verified_nbytes += int(entries[positions, 1].sum()) - damaged
                return wrong
        self._check_memory(entries, chosen)
        problems: dict[int, Problem] = {}
        for position, data in read_runs(self.view, entries, positions, self.check.share.block_nbytes):
            problem = (
                Problem(FindingKind.UNREADABLE, str(data))
                if isinstance(data, OSError)
                else self.check.problem(position, data, level)
            )
            if problem is not None:
                problems[position] = problem
            elif self.check.has_checksum:
                self.verified_nbytes += memoryview(data).nbytes
        return problems

    def _check_memory(self, entries: Entries, chosen: Flags) -> None:
        """Raise `UnsupportedError` if an inner chunk is larger than the memory for it."""
        sizes = np.where(chosen, entries[:, 1], np.uint64(0))
        largest = int(sizes.argmax())
        what = f"inner chunk {coordinates(largest, self.spec.grid_shape)}"
        self.check.share.check_fits(self.list.shard, what, int(sizes[largest]))

    def _read_nested(
        self, check: ChunkCheck, entries: Entries, chosen: Flags, level: Level
    ) -> dict[int, Problem]:
        """Check inner chunks that are shards; their indexes are read at every level."""
        problems: dict[int, Problem] = {}
        where = np.flatnonzero(chosen)
        for position in where[np.argsort(entries[where, 0], kind="stable")].tolist():
            offset, nbytes = (int(number) for number in entries[position])
            inner = survey(NestedShard(None, self.view, (offset, nbytes)), self.list.shard, check, level)
            self.verified_nbytes += inner.verified_nbytes
            damage = next((finding for finding in inner.findings if not finding.is_warning), None)
            if damage is not None:
                detail = (
                    f"in the shard of this inner chunk: {damage.detail}; {inner.n_findings} findings there"
                )
                nested = () if damage.chunk is None else (damage.chunk, *damage.nested)
                problems[position] = Problem(damage.kind, detail, nested)
        return problems

    @property
    def _level_of_moved(self) -> Level:
        """The level for inner chunks that are not where the index says: at least their checksums prove the place."""
        return max(self.level, Level.CHECKSUM, key=lambda level: level.rank)

    def _displace(
        self, index: StoredIndex, entries: Entries, displaced: Displacement, whole: Flags
    ) -> Displacement | None:
        """Find inner chunks in their shifted places; return None if nothing proves the displacement. Clears flags of `whole` that are not proved."""
        has_sizes = not self.check.has_checksum and self._has_sizes_in_headers
        is_truncated = displaced.kind is FindingKind.TRUNCATED_TAIL
        if not has_sizes and (is_truncated or not self.check.has_checksum):  # no other place is proved
            self.places[whole & is_truncated] = entries[whole & is_truncated]
            return displaced if displaced.is_packed else None
        shift = drift_of(index, self.view.nbytes, self.spec) if is_truncated else displaced.shift
        moved = shifted(entries, shift, index, self.view.nbytes)
        verified = self.verified_nbytes
        in_other = ~is_absent(moved)
        level = Level.DECODE if has_sizes else self._level_of_moved
        in_other[list(self._read(moved, in_other, level))] = False
        self.verified_nbytes = verified
        headers = None
        if has_sizes:
            whole &= self._are_streams(entries, whole)
            in_other = self._are_streams(moved, in_other)
            headers = self._with_header(index, entries), self._with_header(index, moved)
        here, there = prove(entries, shift, whole, in_other, headers)
        if displaced.moves_all:
            here, there = np.zeros_like(whole), in_other
        is_doubtful = self._has_lost_bytes(index, displaced) and bool((whole & ~here).any())
        if has_sizes:
            whole &= here
        if not displaced.is_packed and not there.any() and not is_doubtful:
            return None
        self.places[here] = entries[here]
        self.places[there] = moved[there]
        return displaced

    def _has_lost_bytes(self, index: StoredIndex, displaced: Displacement) -> bool:
        """Return True if bytes are missing, so that a place that is not proved may be wrong.

        An index with a right checksum says this. If more bytes are missing than the object has, a wrong entry is more likely.
        """
        has_lost = displaced.kind is FindingKind.LOST_HEAD and self.spec.n_index_checksums > 0
        return has_lost and -displaced.shift <= index.offset

    @property
    def _has_sizes_in_headers(self) -> bool:
        """True if an inner chunk without a checksum has its size in headers, so that it is not taken for one at another place."""
        return self.check.can_decode and self.check.nested is None and has_sizes_in_headers(self.spec.inner)

    def _are_streams(self, entries: Entries, chosen: Flags, sizes: Any = None) -> Flags:
        """Return which of the chosen entries are streams that end where their entries do, or the headers of streams of these sizes."""
        passed, inner = np.zeros_like(chosen), self.spec.inner
        where, block_nbytes = np.flatnonzero(chosen), self.check.share.block_nbytes
        for at, data in read_runs(self.view, entries, where, block_nbytes):
            if isinstance(data, OSError):
                continue
            is_head = sizes is not None
            passed[at] = has_header(inner, data, int(sizes[at])) if is_head else is_complete(inner, data)
        return passed

    def _with_header(self, index: StoredIndex, entries: Entries) -> Flags:
        """Return which inner chunks begin in their places, whole or not."""
        heads, sizes = entries.copy(), entries[:, 1]
        present = ~is_absent(entries)
        heads[present, 1] = np.minimum(sizes[present], np.uint64(HEADER_NBYTES))
        possible = present & ~bad_entries(heads, self.view.nbytes, index.offset, index.nbytes)
        return self._are_streams(heads, possible, sizes)

    def _follow_drift(self, index: StoredIndex, entries: Entries, missing: Flags) -> Displacement | None:
        """Find inner chunks that are not whole in their places behind a cut or an insertion between inner chunks.

        One chunk at the right distance may be an old one, among dead bytes; two are proof. If the distance is that from one
        inner chunk to another, each whole one behind the first damaged place may be another one, and none is proved.
        """
        drift = drift_of(index, self.view.nbytes, self.spec)
        if not drift or not self.check.has_checksum or not missing.any():
            return None
        if not self.spec.n_index_checksums and not has_all_chunks(entries, self.inside):
            return None  # a damaged entry may name another whole inner chunk at this distance
        if drift > 0 and self._has_mark(entries):
            return None
        moved = shifted(entries, drift, index, self.view.nbytes)
        if drift > 0:
            behind = entries[:, 0] > entries[missing, 0].min()
            self.places[behind & _are_among(entries, moved[~is_absent(moved)])] = ABSENT
        if np.count_nonzero(missing) < 2:
            return None
        there = missing & ~is_absent(moved) & ~_share_bytes(moved, self.places) & ~_are_among(moved, entries)
        there[list(self._read(moved, there, self._level_of_moved))] = False
        if np.count_nonzero(there) < 2 or not _is_explained(entries, missing, there):
            return None
        self.places[there] = moved[there]
        detail = f"{np.count_nonzero(there)} inner chunks are {abs(drift)} bytes {'before' if drift < 0 else 'behind'} their offsets"
        return Displacement(FindingKind.SHIFTED_DATA, drift, detail, is_packed=False)

    def _has_mark(self, entries: Entries) -> bool:
        """Return True if a writer's mark of header and footer is where it says: no bytes were lost or inserted before it."""

        def read(low: int, nbytes: int) -> bytes:
            found = try_range(self.view, low, min(nbytes, TAIL_NBYTES))
            return b"" if isinstance(found, OSError) else bytes(found)

        user = header_and_footer(self.spec, entries, self.view.nbytes, read)
        return user is not None and user.is_marked

    def _has_unreferenced(
        self, index: StoredIndex, entries: Entries, stored: Flags, is_damaged: bool
    ) -> bool:
        """Return True if absent entries prove nothing: the index has no checksum, and an inner chunk has no entry.

        In a shard without other damage, only bytes that certainly are an inner chunk count.
        """
        spec = self.spec
        if spec.n_index_checksums or stored[self.inside].all():
            return False
        is_sure = self.check.has_checksum or spec.inner.fixed_nbytes is None
        if not is_damaged and not (self.level is Level.DECODE and is_sure and can_recognise(self.check)):
            return False
        low, high = (index.nbytes, self.view.nbytes) if index.offset == 0 else (0, index.offset)
        return has_chunks_between(self.view, low, high, entries, self.places, self.check)

    def _report(
        self,
        index: StoredIndex,
        entries: Entries,
        displaced: Displacement | None,
        bad: Flags,
        wrong: Flags,
        problems: dict[int, Problem],
    ) -> None:
        is_recovered = not self.is_lost.any()
        if index.kind is not None:
            self.list.add(index.kind, index.detail, index.offset, index.nbytes, recoverable=is_recovered)
        if displaced is not None:
            self.list.add(displaced.kind, displaced.detail, recoverable=is_recovered)
        for position in np.flatnonzero(
            bad | wrong | self._flags(problems) | (self.is_lost if displaced else bad)
        ).tolist():
            if displaced is not None and not self.is_lost[position]:
                continue  # whole in another place
            self._report_chunk(
                position, entries, displaced, bool(bad[position]), bool(wrong[position]), problems
            )
        if not bad.any():
            self._report_overlaps(entries)

    def _report_unreferenced(self, n_absent: int) -> None:
        detail = (
            f"no entry names some bytes that may be inner chunks, {n_absent} entries are absent, and the index has no "
            "checksum: an update left these bytes, or their entries were damaged; compare the shard with a copy"
        )
        self.list.add(FindingKind.UNREFERENCED, detail)

    def _flags(self, problems: dict[int, Problem]) -> Flags:
        flags = np.zeros(self.spec.n_chunks, dtype=np.bool_)
        flags[list(problems)] = True
        return flags

    def _report_chunk(
        self,
        position: int,
        entries: Entries,
        displaced: Displacement | None,
        is_bad: bool,
        is_wrong: bool,
        problems: dict[int, Problem],
    ) -> None:
        offset, nbytes = (int(number) for number in entries[position])
        detail = f"the entry claims {nbytes} bytes at offset {offset} of {self.view.nbytes}"
        kind = FindingKind.OUT_OF_BOUNDS
        nested: tuple[tuple[int, ...], ...] = ()
        if displaced is not None:
            kind = displaced.kind
        elif position in problems:
            kind, detail, nested = problems[position]
        elif is_wrong:
            kind = FindingKind.WRONG_SIZE
            expected = self.spec.inner.fixed_nbytes
            detail = f"expected an inner chunk of {expected or 'more than 0'} bytes, got {nbytes}"
        if displaced is None and not self.inside[position] and self.check.has_checksum:
            kind = FindingKind.OUTSIDE_ARRAY
        self.list.add(
            kind,
            detail,
            offset,
            nbytes,
            chunk=coordinates(position, self.spec.grid_shape),
            nested=nested,
            recoverable=not self.is_lost[position],
        )

    def _report_overlaps(self, entries: Entries) -> None:
        pairs, n = native.load().index_overlaps(entries, capacity=16)
        for a, b in pairs:
            first, second = (coordinates(position, self.spec.grid_shape) for position in (a, b))
            detail = f"inner chunks {first} and {second} share bytes, which is valid; {n} pairs do"
            offset, nbytes = (int(number) for number in entries[a])
            self.list.add(FindingKind.OVERLAP, detail, offset, nbytes, chunk=first)


def _is_explained(entries: Entries, missing: Flags, there: Flags) -> bool:
    """Return True if a shift of the whole inner chunks explains all damage behind the first of them.

    Chunks of one size may also be their neighbours, after two damages. Different sizes leave no doubt.
    """
    if len(np.unique(entries[there, 1])) > 1:
        return True
    return not (missing & ~there & (entries[:, 0] > entries[there, 0].min())).any()


def _are_among(entries: Entries, others: Entries) -> Flags:
    """Return which entries are equal to any of the others."""
    known = set(map(tuple, others.tolist()))
    return np.array([tuple(entry) in known for entry in entries.tolist()], dtype=np.bool_)


def _share_bytes(entries: Entries, others: Entries) -> Flags:
    """Return which entries share bytes with any of the others."""
    live = others[~is_absent(others)]
    live = live[np.argsort(live[:, 0], kind="stable")]
    if not len(live):
        return np.zeros(len(entries), dtype=np.bool_)
    reach = np.maximum.accumulate(live[:, 0] + live[:, 1])  # the end of all entries up to this one
    ends = entries[:, 0] + np.where(is_absent(entries), np.uint64(0), entries[:, 1])
    before = np.searchsorted(live[:, 0], ends, side="left")  # number of entries that begin before the end
    return np.asarray((before > 0) & (reach[np.maximum(before, 1) - 1] > entries[:, 0]))
