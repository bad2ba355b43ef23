# verify.py - the command `verify`
# SPDX-License-Identifier: MIT
"""The command `verify`, which checks the objects of arrays."""

from __future__ import annotations

from ..tools.verify.verify import verify as verify_all
from .exit_code import ExitCode
from .flags import Flag, parse_share
from .tool_command import Run, command

__all__ = ["verify"]

ROWS = {
    "level": Flag("Check indexes, all checksums, or decode all chunks."),
    "sample": Flag(
        "Check a share of the shards, such as 1%.", metavar="SHARE", parser=parse_share, show_default="100%"
    ),
    "since": Flag(
        "Skip shards that have not changed since this manifest; OLD.sha256 skips nothing, all hashes are compared.",
        metavar="MANIFEST",
    ),
    "manifest": Flag(
        "Write a manifest to this file; OUT.sha256 is a text for `sha256sum -c`.", metavar="OUT"
    ),
    "against": Flag(
        "Compare all elements, and objects of no array, with this source of `convert`; attributes too, of Zarr.",
        metavar="OTHER",
    ),
}


@command(verify_all, ROWS)
def verify(run: Run) -> ExitCode:
    """Check that shards, chunks, metadata and other objects are whole. Nothing is changed.

    Each finding has its kind, the object, the inner chunk, the bytes, and whether `repair` can restore it without a copy.
    The exit code is 1 if something is damaged, and 5 if nothing is, but a part could not be checked: the report names it.

    Example:

        shardcodec verify images.zarr --level decode --manifest images.manifest
    """
    report = run.report()
    if report.n_findings:
        return ExitCode.FINDINGS
    return ExitCode.UNCHECKED if report.n_unchecked else ExitCode.CLEAN
