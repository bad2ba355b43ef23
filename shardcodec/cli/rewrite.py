# rewrite.py - the commands `repair` and `compact`
# SPDX-License-Identifier: MIT
"""The commands that write shards anew from encoded inner chunks: `repair` keeps what is whole, `compact` what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..readable import fact_lines
from ..tools.compact import compact as compact_shards
from ..tools.compact_report import CompactedShard
from ..tools.repair.repair import repair as repair_shards
from ..tools.repair.report import RepairedShard
from .exit_code import ExitCode
from .flags import Flag, parse_share
from .tool_command import Run, command

__all__ = ["compact", "repair"]

REPAIR_ROWS = {
    "to": Flag("Write the repaired hierarchy here.", metavar="NEW"),
    "backup": Flag(
        "Repair in place: replace damaged shards, after a copy of each to this folder.", metavar="DIR"
    ),
    "copy": Flag("Take what is damaged from this copy, in any layout.", metavar="COPY"),
    "order": Flag(
        "Order of inner chunks in shards whose index is lost, if you know it.", metavar="ORDER", kind=str
    ),
}


@command(repair_shards, REPAIR_ROWS)
def repair(run: Run) -> ExitCode:
    """Repair damaged shards: keep what is whole, take the rest from a copy, say what is lost.

    Stop all writers first. The only copy of a shard is never changed: the result is a new hierarchy (--to), or each old
    object is copied to a backup before it is replaced (--backup). The exit code is 1 if something is lost; with
    --dry-run, if something is damaged; and if the metadata of an array cannot be read.

    Example:

        shardcodec repair images.zarr --to repaired.zarr --dry-run
    """
    report = run.report(_shard_lines(run))
    is_clean = not report.n_damaged if report.dry_run else report.n_restored == report.n_damaged
    return ExitCode.CLEAN if is_clean and not report.n_unreadable else ExitCode.FINDINGS


COMPACT_ROWS = {
    "min_dead": Flag(
        "Pack shards with this share of dead bytes.", metavar="SHARE", parser=parse_share, show_default="10%"
    ),
    "order": Flag(
        "Order of inner chunks: morton, lexicographic or colexicographic.", metavar="ORDER", kind=str
    ),
    "to": Flag("Write a new hierarchy, whose indexes have checksums; PATH is not changed.", metavar="NEW"),
}


@command(compact_shards, COMPACT_ROWS)
def compact(run: Run) -> ExitCode:
    """Pack shards: remove dead bytes, order inner chunks, add index checksums (--to). Nothing is decoded.

    Each shard is replaced in one step, or written to a new hierarchy (--to). The exit code is 1 if a shard is damaged and was
    not packed, or the metadata of an array cannot be read.

    Example:

        shardcodec compact images.zarr --min-dead 20% --dry-run
    """
    report = run.report(_shard_lines(run))
    return ExitCode.FINDINGS if report.n_failed or report.n_unreadable else ExitCode.CLEAN


def _shard_lines(run: Run) -> Callable[[RepairedShard | CompactedShard], Iterator[str]]:
    """Return a function for the lines of one shard."""
    return lambda done: fact_lines(done.result_facts(would=run.given["dry_run"]))
