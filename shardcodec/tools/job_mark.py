# job_mark.py - the mark of the job that writes a new hierarchy
# SPDX-License-Identifier: MIT
"""The mark of the job that writes a new hierarchy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from .new_hierarchy import JobOver, NewHierarchy

__all__ = ["MARK", "claim", "guard", "has_claim", "release"]

# Name of the mark in the folder of the new hierarchy.
MARK = ".shardcodec-job"


def claim(destination: NewHierarchy, job: str, path: str | None, *, is_begun: bool) -> None:
    """Mark an incomplete hierarchy for a job with a plan at `path`, so that no other one writes there. All its workers may call it.

    With `is_begun` a ledger shows that the job has written shards; only then may there be objects without the mark. With a plan the
    destination is guarded, too: other processes may end the job.
    """
    if not has_claim(destination, job):
        _mark(destination, job, path, is_begun=is_begun)
    if path is not None:
        guard(destination, job)


def _mark(destination: NewHierarchy, job: str, path: str | None, *, is_begun: bool) -> None:
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


def has_claim(destination: NewHierarchy, job: str) -> bool:
    """Return True if the mark is that of a job, False if there is none; raise `FileExistsError` for the mark of another job."""
    stored = _stored(destination)
    if stored is None:
        return False
    try:
        mark = json.loads(stored)
    except ValueError:
        mark = None
    if isinstance(mark, dict) and mark.get("job") == job:
        return True
    plan = mark.get("plan") if isinstance(mark, dict) else None
    whose = "another conversion" if plan is None else f"the job {plan}"
    raise FileExistsError(
        f"{destination.place}: expected a new place, but {whose} writes there; finish that one, or remove all that is there"
    )


def guard(destination: NewHierarchy, job: str) -> bool:
    """Store nothing more once the destination is complete, or lacks the mark of the job (`JobOver`); return True if it has the mark now.

    A worker that was taken for lost may wake up long after others have done its work, and users have written since.
    """
    has_mark = has_claim(destination, job)

    def check() -> None:
        try:
            is_ours = not destination.is_complete and (not has_mark or has_claim(destination, job))
        except FileExistsError:
            is_ours = False
        if not is_ours:
            raise JobOver(f"{destination.place}: expected the mark of the job {job}, but the job is over")

    destination.before_store = check
    return has_mark


def release(destination: NewHierarchy) -> None:
    """Remove the mark of a complete hierarchy. It is harmless if it stays, because the metadata are there."""
    with _optional(destination):
        destination.remove(MARK)


def _stored(destination: NewHierarchy) -> bytes | None:
    with _optional(destination):
        return destination.get(MARK)
    return None


@contextmanager
def _optional(destination: NewHierarchy) -> Iterator[None]:
    """Ignore errors of a store without files: some, such as that of icechunk, take only keys of Zarr and have no mark."""
    try:
        yield
    except Exception:
        if destination.path is not None:
            raise
