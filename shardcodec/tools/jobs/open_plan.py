# open_plan.py - the source and the destination of a stored plan
# SPDX-License-Identifier: MIT
"""`open_plan`: a worker opens what a plan names, and checks that it is what was planned."""

from __future__ import annotations

import glob

from ...options import Options
from ...storage.kinds import is_url
from ..convert.destination import NewTree
from ..convert.open_source import open_source
from ..convert.plan import check_same_source
from ..convert.source import SourceTree
from .plan_file import PlanFile

__all__ = ["open_plan"]


def open_plan(found: PlanFile, options: Options) -> tuple[SourceTree, NewTree]:
    """Open source and destination of a plan.

    Raises
    ------
    ConflictError
        The source has changed since the plan was made.
    FileNotFoundError, SpecError, UnsupportedError, ImportError
        The source or the destination cannot be opened.
    """
    plan = found.plan
    names = [glob.escape(name) for name in (*(one.name for one in plan.arrays), *plan.verbatim)]
    tree = open_source(
        found.source,
        options,
        only=names if names != [""] else (),
        others=plan.others,
        storage_options=found.storage_options if is_url(found.source) else None,
    )
    new = NewTree(found.destination, found.storage_options)
    check_same_source(plan, tree, new)
    return tree, new
