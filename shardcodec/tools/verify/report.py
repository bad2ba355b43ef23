# report.py - the results of verify
# SPDX-License-Identifier: MIT
"""`VerifyReport` and its parts: plain records. ``docs/tools.md`` describes the members of the JSON."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...readable import Fact, format_count, format_nbytes, format_share
from ..capped import NAMED
from ..findings import WARNINGS, Finding, FindingKind
from ..report import Record, Report, ReportOfShard

__all__ = ["NOT_IN_MANIFEST", "ShardFindings", "UncheckedPart", "VerifiedArray", "VerifyReport"]


# Why an object was not compared with a manifest.
NOT_IN_MANIFEST = "the manifest has no hash of it: it is new, or it was damaged then"
_MANY_NOT_IN_MANIFEST = "the manifest has no hash of them: they are new, or they were damaged then"

# Findings that `repair` can do something about.
_REPLACED = frozenset({FindingKind.DIFFERENT, FindingKind.MISSING_OBJECT})
_REPAIRED = frozenset(FindingKind) - WARNINGS - _REPLACED - {FindingKind.STALE_METADATA}


@dataclass(frozen=True)
class ShardFindings(ReportOfShard):
    """The findings of one shard, or one foreign file.

    Attributes
    ----------
    array, shard
        See `ReportOfShard`.
    findings : tuple of Finding
        At most `capped.LISTED`.
    n_findings : int
        Number of findings that are not warnings, also of those that are not listed.
    """

    schema: ClassVar[str] = "shardcodec.verify.shard"

    findings: tuple[Finding, ...]
    n_findings: int

    def facts(self) -> Iterator[Fact]:
        """Yield the findings as lines of text.

        Yields
        ------
        name, text : str
        """
        for one in self.findings:
            yield from one.facts()
        n_more = self.n_findings - sum(not one.is_warning for one in self.findings)
        if n_more > 0:
            yield "", f"{self.shard}: {format_count(n_more, 'further finding')}"


@dataclass(frozen=True)
class UncheckedPart(Record):
    """An array or an object that could not be checked, or not completely.

    Attributes
    ----------
    name : str
        Its path below the target; empty for the array at its root.
    reason : str
    """

    name: str
    reason: str


@dataclass(frozen=True)
class VerifiedArray(Record):
    """The result of one array. The shards of one without shards are its chunks.

    Attributes
    ----------
    name : str
        Path of the array in the hierarchy; empty for its root.
    problem : str or None
        Why its shards cannot be verified; None if they can be.
    n_shards : int
        Shards that were verified.
    n_unchanged : int
        Shards that a manifest shows to be verified already.
    n_not_sampled : int
        Shards that were left out of the sample.
    n_damaged : int
        Shards with findings that are not warnings.
    nbytes : int
        Bytes of the verified shards.
    data_nbytes : int
        Bytes of their inner chunks.
    verified_nbytes : int
        Those of inner chunks whose checksum was verified.
    unverifiable_nbytes : int
        Those of inner chunks without a checksum: damage of them cannot be found.
    has_index_checksum : bool
        The indexes of the shards have a checksum.
    is_sharded : bool
        False if the array has chunks without shards.
    """

    name: str
    problem: str | None = None
    n_shards: int = 0
    n_unchanged: int = 0
    n_not_sampled: int = 0
    n_damaged: int = 0
    nbytes: int = 0
    data_nbytes: int = 0
    verified_nbytes: int = 0
    unverifiable_nbytes: int = 0
    has_index_checksum: bool = True
    is_sharded: bool = True

    def facts(self) -> Iterator[Fact]:
        """Yield the result as names and texts.

        Yields
        ------
        name, text : str
        """
        if self.problem is not None:
            yield "not verified", self.problem
            return
        kind = "shards" if self.is_sharded else "chunks"
        yield (
            kind,
            f"{self.n_shards} verified, {self.n_damaged} of them damaged, {format_nbytes(self.nbytes)}",
        )
        if self.n_unchanged or self.n_not_sampled:
            yield (
                "left out",
                f"{self.n_unchanged} unchanged since the manifest, {self.n_not_sampled} not in the sample",
            )
        if self.is_sharded:
            verified = format_share(self.verified_nbytes, self.data_nbytes)
            yield "inner chunks", f"{format_nbytes(self.data_nbytes)}, {verified} verified by a checksum"
        elif self.verified_nbytes:
            yield (
                "checksums",
                f"{format_share(self.verified_nbytes, self.data_nbytes)} verified by a checksum",
            )
        if self.unverifiable_nbytes:
            share = format_share(self.unverifiable_nbytes, self.data_nbytes)
            text = (
                f"{format_nbytes(self.unverifiable_nbytes)} ({share}): damage of these bytes cannot be found"
            )
            yield "no checksum", text
        if not self.has_index_checksum:
            yield "no checksum", "of the indexes; `shardcodec compact --to` makes an array that has it"


@dataclass(frozen=True)
class VerifyReport(Report):
    """The result of `verify`.

    Parameters
    ----------
    target : str
        The path that was given.
    level : str
        How much was checked: ``"index"``, ``"checksum"`` or ``"decode"``.
    arrays : tuple of VerifiedArray
    kinds : mapping
        From each kind of finding to the number of findings, warnings too.
    n_findings : int
        Number of findings that are not warnings.
    shards : tuple of ShardFindings
        Shards with findings, the first `capped.LISTED` of them; empty if each was reported on its own.
    is_complete : bool
        False after a stop at the first finding.
    n_other_objects : int
        Objects that belong to no array and were compared with those of another hierarchy, or with a manifest.
    n_documents : int
        Documents of arrays and groups that were checked.
    n_unchecked : int
        Arrays and objects that could not be checked, or not completely.
    unchecked : tuple of UncheckedPart
        The first `capped.LISTED` of them.
    notes : tuple of str
        Sentences on what is not compared with this kind of hierarchy.
    """

    schema: ClassVar[str] = "shardcodec.verify"

    target: str
    level: str
    arrays: tuple[VerifiedArray, ...]
    kinds: Mapping[str, int]
    n_findings: int
    shards: tuple[ShardFindings, ...]
    is_complete: bool = True
    n_other_objects: int = 0
    n_documents: int = 0
    n_unchecked: int = 0
    unchecked: tuple[UncheckedPart, ...] = ()
    notes: tuple[str, ...] = ()

    def facts(self) -> Iterator[Fact]:
        """Yield the listed findings, the result as names and texts, and what to do next.

        Yields
        ------
        name, text : str
        """
        for found in self.shards:
            yield from found.facts()
        for one in self.arrays:
            yield "", one.name or self.target
            yield from one.facts()
        if self.n_documents:
            yield "", f"{format_count(self.n_documents, 'document')} of metadata checked"
        if self.n_other_objects:
            yield "", f"{format_count(self.n_other_objects, 'other object')} compared"
        yield from (("", note) for note in self.notes[:NAMED])
        yield from self._unchecked_facts()
        if not self.is_complete:
            yield "", "stopped at the first finding"
        n_left = sum(one.problem is not None for one in self.arrays)
        were = "was" if n_left == 1 else "were"
        left = f"; {format_count(n_left, 'array')} {were} not verified" if n_left else ""
        if self.n_unchecked > n_left:
            left += f"; {format_count(self.n_unchecked, 'part')} could not be checked"
        yield "", (format_count(self.n_findings, "finding") if self.n_findings else "no damage found") + left
        yield from (("next", text) for text in self._next_steps())

    def _unchecked_facts(self) -> Iterator[Fact]:
        """Yield the parts that were not checked; those that a manifest lacks have one line for each array."""
        of_arrays = {one.name for one in self.arrays if one.problem is not None}
        n_more = self.n_unchecked - len(of_arrays)
        parts = [part for part in self.unchecked if part.name not in of_arrays]
        lines = [
            (f"not checked: {part.name or self.target}: {part.reason}", 1)
            for part in parts
            if part.reason != NOT_IN_MANIFEST
        ]
        lines += self._not_in_manifest(parts)
        for text, n_parts in lines[:NAMED]:
            yield "", text
            n_more -= n_parts
        if n_more > 0:
            yield "", f"not checked: {format_count(n_more, 'further part')}"

    def _not_in_manifest(self, parts: list[UncheckedPart]) -> Iterator[tuple[str, int]]:
        """Yield a line and the number of its objects for each array that has objects without a hash in the manifest."""
        arrays, grouped = {one.name for one in self.arrays}, defaultdict(list)
        for part in parts:
            if part.reason == NOT_IN_MANIFEST:
                folders = part.name.split("/")[:-1]
                above = ("/".join(folders[:n]) for n in range(len(folders), -1, -1))
                grouped[next((name for name in above if name in arrays), "")].append(part.name)
        for name, objects in grouped.items():
            first, count = objects[0], len(objects)
            more = f" and {count - 1} more" if count > 1 else ""
            place = f" of {name}" if name else ""
            reason = NOT_IN_MANIFEST if count == 1 else _MANY_NOT_IN_MANIFEST
            yield f"not compared{place}: {first}{more}: {reason}", count

    def _next_steps(self) -> Iterator[str]:
        """Yield commands that help with what was found."""
        path, kinds = shlex.quote(self.target), self.kinds
        if any(kinds.get(kind) for kind in _REPAIRED):
            yield f"`shardcodec repair {path} --to NEW --dry-run` shows what can be restored; `--copy COPY` takes the rest from a copy"
        if any(kinds.get(kind) for kind in _REPLACED):
            yield "`repair` keeps all that decodes: copy objects that differ, or are missing, from the hierarchy that is right"
        # they may have the last copy of a document that cannot be read
        if kinds.get(FindingKind.STALE_METADATA) and not kinds.get(FindingKind.UNREADABLE):
            # the double quotes of JSON, because the shell has the single ones
            place = json.dumps(self.target, ensure_ascii=False)
            program = shlex.quote(f"import zarr; zarr.consolidate_metadata({place})")
            yield f"consolidate the metadata: `python -c {program}`"
        if any("no manifest" in part.reason for part in self.unchecked):
            yield f"`shardcodec verify {path} --manifest OUT.sha256`, and later `--since OUT.sha256`, compares other objects, too"
