# claim.py - the mark of the job that writes a new hierarchy
# SPDX-License-Identifier: MIT
"""`claim` marks a new hierarchy for one job, so that no other one writes into it; `release` removes the mark at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .destination import JobOver, NewTree

__all__ = ["MARK", "claim", "guard", "has_claim", "release"]

# Name of the mark in the folder of the new hierarchy.
MARK = ".shardcodec-job"


def claim(destination: NewTree, job: str, path: str | None, *, is_begun: bool) -> None:
    """Mark an incomplete hierarchy for a job. Several workers of the job may call it.

    Parameters
    ----------
    destination : NewTree
    job : str
        Name of the job, which no other job has.
    path : str or None
        Path of its plan, for messages; None if it has none.
    is_begun : bool
        A ledger shows that the job has written shards; only then may there be objects without the mark.

    Raises
    ------
    FileExistsError
        Another job writes there, or there are objects that are not of this job.
    """
    if has_claim(destination, job):
        return
    if not is_begun:
        try:
            destination.check_free()
        except FileExistsError:
            if has_claim(destination, job):  # another worker was faster
                return
            raise
    mark = json.dumps({"job": job, "plan": path}).encode()
    with _optional(destination):
        if destination.create(MARK, mark):
            return
    if _stored(destination) is not None and not has_claim(destination, job):
        raise FileExistsError(
            f"{destination.place}: expected a place that no other job writes, but one began"
        )


def has_claim(destination: NewTree, job: str) -> bool:
    """Return True if the mark is that of a job, False if there is none.

    Raises
    ------
    FileExistsError
        It is the mark of another job.
    """
    stored = _stored(destination)
    if stored is None:
        return False
    try:
        found = json.loads(stored)
    except ValueError:
        found = None
    if isinstance(found, dict) and found.get("job") == job:
        return True
    plan = found.get("plan") if isinstance(found, dict) else None
    whose = "another conversion" if plan is None else f"the job {plan}"
    raise FileExistsError(
        f"{destination.place}: expected a new place, but {whose} writes there; finish that one, or remove all that is there"
    )


def guard(destination: NewTree, job: str) -> Callable[[], None]:
    """Return a check for the time just before an object is stored: the destination must still be that of the job.

    A worker that was taken for lost may wake up long after others have done its work, and users have written since.

    Returns
    -------
    callable
        Raises `JobOver` if the destination is complete, or has no longer the mark of the job.
    """
    has_mark = has_claim(destination, job)

    def check() -> None:
        try:
            is_ours = not destination.is_complete and (not has_mark or has_claim(destination, job))
        except FileExistsError:
            is_ours = False
        if not is_ours:
            raise JobOver(f"{destination.place}: expected the mark of the job {job}, but the job is over")

    return check


def release(destination: NewTree) -> None:
    """Remove the mark of a complete hierarchy. It is harmless if it stays, because the metadata are there."""
    with _optional(destination):
        destination.remove(MARK)


def _stored(destination: NewTree) -> bytes | None:
    with _optional(destination):
        return destination.get(MARK)
    return None


@contextmanager
def _optional(destination: NewTree) -> Iterator[None]:
    """Ignore errors of a store without files: some, such as that of icechunk, take only keys of Zarr and have no mark."""
    try:
        yield
    except Exception:
        if destination.path is not None:
            raise
