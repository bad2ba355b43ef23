# write_group.py - write one group of shards: move encoded chunks or encode elements
# SPDX-License-Identifier: MIT
"""Write one group of shards: move encoded chunks or encode elements.

`GroupWork`: writes the shards of a group that are not finished. It keeps no state between groups, as `array_conversion.ArrayConversion`, which
writes and verifies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ...errors import ConflictError, ShardError
from ...options import Options
from ..monitor import Monitor
from ..new_hierarchy import JobOver, NewHierarchy
from .array_conversion import ArrayConversion
from .destination import NewArray
from .plan import ConvertPlan, Unit
from .report import ShardFailure, ShardRecord
from .source import Ints, SourceTree

__all__ = ["Done", "GroupResult", "GroupWork"]

# From array and position to what earlier runs have recorded. Several workers may have written one shard.
Done = Mapping[tuple[str, Ints], Sequence[ShardRecord]]


class GroupResult(NamedTuple):
    """The result of a group of shards; `n_empty` have no stored elements, and no record."""

    records: tuple[ShardRecord, ...]
    failures: tuple[ShardFailure, ...]
    n_skipped: int
    n_empty: int = 0


class GroupWork:
    """The work on the groups of a plan. Several threads may call it.

    Parameters
    ----------
    plan : ConvertPlan
    tree : SourceTree
        The opened source.
    destination : NewHierarchy
    options : Options
    done : mapping
        Shards that earlier runs have recorded.
    records_source : bool
        Look at the state of the source objects, for a ledger of a job. Once the destination of a job has documents,
        nothing is written.
    """

    def __init__(
        self,
        plan: ConvertPlan,
        tree: SourceTree,
        destination: NewHierarchy,
        options: Options,
        done: Done,
        *,
        records_source: bool = True,
    ) -> None:
        self._plan, self._done = plan, done
        self._records_source = records_source
        self._destination = destination
        by_name = {source.name: source for source in tree.arrays}
        self._arrays = [
            ArrayConversion(
                array, by_name[array.name], destination, plan, options, records_source=records_source
            )
            for array in plan.arrays
        ]

    def run(self, unit: Unit) -> GroupResult:
        """Write the shards of a group that are not finished yet.

        Raises
        ------
        ConflictError
            The source has changed since an earlier run.
        """
        conversion = self._arrays[unit.array]
        array, stored = conversion.array, conversion.stored
        of_group = (
            array.coords(unit.group) if stored is None or self._records_source else stored.get(unit.group, ())
        )
        n_empty = array.n_coords(unit.group) - len(of_group)
        wanted: list[Ints] = []
        unseen: list[ShardFailure] = []
        for at in of_group:
            with _noting(conversion.new, [at], unseen):
                if not conversion.is_done(at, self._done.get((array.name, at), ())):
                    wanted.append(at)
        n_skipped = len(of_group) - len(wanted) - len(unseen)
        if wanted and self._records_source and self._destination.is_complete:
            # another worker of the job was faster, and users may have written since
            return GroupResult((), tuple(unseen), n_skipped + len(wanted))
        known = None if stored is None else set(stored.get(unit.group, ()))
        empty = [] if known is None else [at for at in wanted if at not in known]
        wanted = wanted if known is None else [at for at in wanted if at in known]
        records: list[ShardRecord] = []
        failures: list[ShardFailure] = []
        # one by one if they do not need one another, so that one damaged shard does not fail the others
        groups = [[at] for at in wanted]
        if wanted and array.layout.method == "encode" and array.grouping.piece is None:
            groups = [wanted]
        n_wanted = len(wanted) + len(empty)
        try:
            for at in empty:
                with _noting(conversion.new, [at], failures):
                    records.append(conversion.leave_empty(at))
            n_empty_failures = len(failures)
            if len(wanted) > 1 and groups == [wanted]:
                with _noting(conversion.new, wanted, failures):
                    records += conversion.write(unit.group, wanted)
                groups = [[at] for at in wanted] if len(failures) > n_empty_failures else []
                del failures[n_empty_failures:]
            for some in groups:
                with _noting(conversion.new, some, failures):
                    records += conversion.write(unit.group, some)
        except JobOver:
            n_skipped += n_wanted - len(records) - len(failures)
        return GroupResult(tuple(records), (*unseen, *failures), n_skipped, n_empty)

    def stored_units(self) -> tuple[Iterator[Unit], int]:
        """Return the units of the plan that have stored elements, and the number of shards of all others."""
        n_shards = 0
        for conversion in self._arrays:
            array, groups = conversion.array, conversion.stored
            n_shards += array.n_shards if groups is None else sum(map(array.n_coords, groups))

        def units() -> Iterator[Unit]:
            for number, conversion in enumerate(self._arrays):
                if conversion.stored is None:
                    yield from self._plan.units_of(number)
                else:
                    yield from (Unit(number, at) for at in conversion.stored)

        return units(), self._plan.n_shards - n_shards

    def _recorded(self, monitor: Monitor) -> Iterator[tuple[ArrayConversion, Ints, Sequence[ShardRecord]]]:
        """Yield all shards of the plan with their records; the objects of the source are listed again, because new ones are a change too."""
        for conversion in self._arrays:
            if conversion.source.stored is not None:
                conversion.source.stored.forget()
        for unit in self._plan.units():
            monitor.check()
            conversion = self._arrays[unit.array]
            for at in conversion.array.coords(unit.group):
                yield conversion, at, self._done.get((conversion.array.name, at), ())

    def unfinished(self, monitor: Monitor) -> Iterator[ShardFailure]:
        """Yield the shards of the plan that are not stored as the ledgers show them.

        Raises
        ------
        ConflictError
            The source has changed since a shard was written.
        """
        for conversion, at, records in self._recorded(monitor):
            if not conversion.is_done(at, records):
                new = conversion.new
                detail = "it is not stored any more as the ledger shows; run its part again"
                yield ShardFailure(new.name, new.describe(at), detail)

    def check_sources(self, monitor: Monitor) -> None:
        """Raise `ConflictError` if the source of a shard has changed since it was written."""
        for conversion, at, records in self._recorded(monitor):
            if records:
                conversion.check_source(at, records)


@contextmanager
def _noting(new: NewArray, some: Sequence[Ints], failures: list[ShardFailure]) -> Iterator[None]:
    """Note an error as a failure of these shards; only a conflict ends the run."""
    try:
        yield
        return
    except (ConflictError, JobOver):
        raise
    except (ShardError, OSError) as error:
        detail = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a source or a store raises fails these shards only
        detail = f"{type(error).__name__}: {error}"
    failures += [ShardFailure(new.name, new.describe(at), detail) for at in some]
