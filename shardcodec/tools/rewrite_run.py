# rewrite_run.py - one run of a tool that writes shards, over several arrays
# SPDX-License-Identifier: MIT
"""`RewriteRun`: a run of `repair` or `compact` from the arrays to the report. `ReportOfShards`: what their reports share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from ..access.box_reader import Folder
from ..format.spec import ShardSpec
from ..readable import Fact
from .consolidated import notes_on_spare
from .conventions.all_conventions import with_needed
from .documents import Document
from .hierarchy import Hierarchy
from .hierarchy_copy import HierarchyCopy, root_prefix
from .jobs.shard_pool import ShardPool
from .left_parts import NOTHING_LEFT, LeftKind, LeftPart
from .monitor import Stopped
from .node_selection import Selection
from .nodes import ZarrNodes
from .other_objects import NO_OBJECTS, CopyReport, OtherObjects, count_objects, other_objects
from .run_over_arrays import RunOverArrays
from .targets import ArrayTarget, ShardTarget

__all__ = ["ReportOfShards", "RewriteRequest", "RewriteRun", "ShardOutcome"]

R = TypeVar("R")
S = TypeVar("S", bound="ReportOfShards")


@dataclass(frozen=True, kw_only=True)
class ReportOfShards(CopyReport):
    """The common fields of the reports of `repair` and `compact`; `RepairReport` describes the fields."""

    target: str
    to: str | None
    dry_run: bool
    n_shards: int
    shards: tuple[Any, ...]
    left_arrays: tuple[LeftPart, ...] = ()
    is_complete: bool = True

    @property
    def n_unreadable(self) -> int:
        """Number of arrays that no program can read, and of other parts that cannot be read."""
        return sum(array.is_unreadable for array in self.left_arrays) + self.left.n_unreadable

    def facts(self) -> Iterator[Fact]:
        """Yield the listed shards, what is beside them, and the sums.

        Yields
        ------
        name, text : str
        """
        for shard in self.shards:
            yield from shard.result_facts(would=self.dry_run)
        done = "skipped" if self.dry_run or self.to is None else "copied as it is"
        for array in self.left_arrays:
            unreadable = "unreadable, " if array.is_unreadable else ""
            yield "", f"{array.name or self.target}: {unreadable}{done}: {array.reason}"
        yield from self.others.result_facts(would=self.dry_run)
        yield "", self._sums()

    def _sums(self) -> str:
        """Return the last line of the text."""
        raise NotImplementedError


class ShardOutcome(NamedTuple, Generic[R]):
    """The size of an object that was examined, and the result; None if the object needs nothing."""

    nbytes: int
    result: R | None


class RewriteRequest(NamedTuple):
    """The arrays that the caller wants to be written anew, and the place; see `repair` and `compact`."""

    target: Any
    to: Any
    dry_run: bool
    selection: Selection
    spec: ShardSpec | None

    def check(self) -> None:
        """Raise `ValueError` for ``@objects`` without `to`. The tools check their own options."""
        if self.selection.only_arrays and self.to is None:
            raise ValueError(
                "exclude: expected `to` (--to), a new place, with @objects: nothing is copied in place"
            )


class RewriteRun(RunOverArrays[ShardOutcome[R], R], Generic[R, S]):
    """One run over several arrays. A new hierarchy gets the arrays without readable shards as they are.

    Parameters
    ----------
    request : RewriteRequest
    pool : ShardPool
        It works on the shards; not open yet.
    on_shard : callable or None
        Called with each result, which the report does not list then.
    """

    def __init__(
        self, request: RewriteRequest, pool: ShardPool, on_shard: Callable[[R], None] | None
    ) -> None:
        super().__init__(pool, on_shard)
        self._request = request
        self._hierarchy: Hierarchy
        self._last: ArrayTarget | None = None
        self._to: HierarchyCopy | None = None
        self._names: set[str] = set()
        self._n_shards = 0
        self._left: list[LeftPart] = []
        self._others = NO_OBJECTS
        self._spare = pool.spare

    def run(self) -> S:
        """Work on all arrays, write the documents of a new hierarchy, and return the report.

        Raises
        ------
        Stopped
            The monitor stopped the work; the error has the report of what was done.
        """
        arrays, others = self._find()
        with self._pool:
            self._begin()
            try:
                self.run_over(arrays)
                if others is not None and self._to is not None:
                    self._others = self._to.copy_others(others, self._monitor)
            except Stopped as stop:
                stop.report = self._report(is_complete=False)
                raise
        is_complete = self._to is None or self._has_all_shards
        if self._to is not None and is_complete:
            self._to.finish(self._groups(), is_part=self._request.selection.is_part)
        self._end()
        return self._report(is_complete=is_complete)

    def _find(self) -> tuple[Iterable[ArrayTarget], OtherObjects | None]:
        """Return the arrays, and the objects that a new hierarchy gets beside them, which are counted."""
        request, options = self._request, self._pool.run.storage_options
        self._spare.read = None if request.to is None else {}
        self._hierarchy = Hierarchy(request.target, options, spec=request.spec, spare=self._spare)
        found = request.selection.targets(self._hierarchy)
        if request.to is None:
            return self._checked(found), None
        arrays = list(found)
        if self._hierarchy.rest:
            return arrays, None
        if request.selection.only and not request.selection.exactly:
            arrays += self._needed({one.name for one in arrays})
        self._names = {one.name for one in arrays}
        others = other_objects(
            self._hierarchy,
            arrays,
            self._groups(),
            request.selection,
            whole=[array.name for array in arrays if not self._works_on(array)],
        )
        self._others = count_objects(others, self._monitor, self._pool.options.threads)
        return arrays, others

    def _needed(self, names: set[str]) -> Iterator[ArrayTarget]:
        """Yield the arrays that programs need beside those that the caller has named, such as coordinates."""
        for name in sorted(with_needed(names, ZarrNodes(self._hierarchy.folder)) - names):
            if not self._request.selection.leaves(name):
                yield from self._hierarchy.arrays(name)

    def _groups(self) -> list[tuple[str, Folder, Document]]:
        """Return the groups that a new hierarchy gets, besides those above its arrays: path, folder and document."""
        selection = self._request.selection
        if selection.only and self._names.issuperset(
            selection.only
        ):  # arrays alone: nothing else is looked at
            return []
        groups = self._hierarchy.groups()
        if not selection.is_part:
            return groups
        kept = selection.groups([name for name, _, _ in groups], self._names)
        return [one for one in groups if one[0] in kept]

    def _begin(self) -> None:
        """Begin the new hierarchy, if there is one; a dry run only checks its place."""
        if self._request.to is not None and self._request.dry_run:
            self._pool.check_new_place(self._request.to, is_one_shard=bool(self._hierarchy.rest))
        elif self._request.to is not None:
            self._to = self._pool.begin_copy(self._request.to, self._hierarchy)

    def _works_on(self, array: ArrayTarget) -> bool:
        """Return True if the tool works on the objects of an array one by one."""
        return array.is_sharded

    def _checked(self, arrays: Iterable[ArrayTarget]) -> Iterable[ArrayTarget]:
        """Return the arrays whose shards are changed in place, if this is permitted."""
        return arrays

    def _end(self) -> None:
        """Do what comes after all arrays."""

    @property
    def _has_all_shards(self) -> bool:
        """True if the new hierarchy may get its documents."""
        return True

    def _add(self, array: ArrayTarget) -> None:
        self._last = array
        if self._works_on(array):
            self._rewrite(array)
        else:
            self._leave(array)

    @abstractmethod
    def _rewrite(self, array: ArrayTarget) -> None:
        """Work on one array, by `_work_on`."""

    @abstractmethod
    def _sum(self, done: R) -> None:
        """Count a shard with a result."""

    @abstractmethod
    def _report(self, *, is_complete: bool) -> S:
        """Return the report, with `_facts`."""

    def _facts(self) -> dict[str, Any]:
        """Return what all reports have, without `is_complete`."""
        request = self._request
        left = NOTHING_LEFT + ([] if self._to is None else self._to.left)
        root = self._hierarchy.folder
        if self._last is not None:
            root = replace(self._last.folder, prefix=root_prefix(self._last))
        lost = notes_on_spare(self._spare, repr(root))
        return {
            "target": str(request.target),
            "to": None if request.to is None else str(request.to),
            "dry_run": request.dry_run,
            "n_shards": self._n_shards,
            "shards": tuple(self._listed),
            "left_arrays": tuple(self._left),
            "others": replace(self._others, parts=left + lost + self._others.parts),
        }

    def _count(self, shards: Sequence[ShardTarget], outcome: ShardOutcome[R]) -> None:
        self._n_shards += 1
        if outcome.result is not None:
            self._note(outcome.result)
        self._monitor.add_nbytes(outcome.nbytes)

    def _note(self, done: R) -> None:
        self._sum(done)
        self._list(done)

    def _leave(self, array: ArrayTarget) -> None:
        if self._to is not None and array.is_group:  # what is in it comes along with the others
            self._to.add_group(array.name, array.folder)
        elif self._to is not None:
            self._leave_objects(array, self._to.copy_all(array))
        problem = array.problem or "it is not sharded"
        self._left.append(LeftPart(LeftKind.ARRAY, array.name, problem, array.is_malformed))

    def _leave_objects(self, array: ArrayTarget, left: Iterable[LeftPart]) -> None:
        """Note objects of an array that is copied as it is; they cannot be read."""
        assert self._to is not None
        self._to.left += left
