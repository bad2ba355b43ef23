# verify_report.py - the results of verify
# SPDX-License-Identifier: MIT
"""`VerifyReport` and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from .findings import Finding
from .report import Record, Report

__all__ = ["ShardFindings", "VerifiedArray", "VerifyReport"]


@dataclass(frozen=True)
class ShardFindings(Report):
    """The findings of one shard, or one foreign file.

    Attributes
    ----------
    array : str
        Path of the array in the hierarchy.
    shard : str
        Path or key of the object.
    findings : tuple of Finding
        At most `findings.MOST_FINDINGS`.
    n_findings : int
        Number of findings that are no warnings, also of those that are not listed.
    """

    schema: ClassVar[str] = "shardcodec.verify.shard"
    schema_version: ClassVar[int] = 1

    array: str
    shard: str
    findings: tuple[Finding, ...]
    n_findings: int


@dataclass(frozen=True)
class VerifiedArray(Record):
    """What was verified of one array.

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
        Shards with findings that are no warnings.
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


@dataclass(frozen=True)
class VerifyReport(Report):
    """What `verify` found.

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
        Number of findings that are no warnings.
    shards : tuple of ShardFindings
        Shards with findings, the first `MOST_SHARDS` of them; empty if each was reported on its own.
    is_complete : bool
        False after a stop at the first finding.
    n_other_objects : int
        Objects that belong to no array and were compared with those of another hierarchy.
    """

    schema: ClassVar[str] = "shardcodec.verify"
    schema_version: ClassVar[int] = 1

    target: str
    level: str
    arrays: tuple[VerifiedArray, ...]
    kinds: Mapping[str, int]
    n_findings: int
    shards: tuple[ShardFindings, ...]
    is_complete: bool = True
    n_other_objects: int = 0
