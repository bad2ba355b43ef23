# begin_job.py - the file of a job: begun, resumed, replaced, given up
# SPDX-License-Identifier: MIT
"""`begin_job`: stores the plan of a new job, or resumes one. `give_up`: removes what a failed beginning has left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...errors import ConflictError
from ...storage.kinds import is_url
from ..jobs.ledger import read_ledgers, remove_ledgers
from ..jobs.plan_file import PlanFile
from .claim import MARK, has_claim, release
from .destination import NewTree
from .execute import is_finished
from .plan import ConvertPlan

__all__ = ["begin_job", "give_up", "plan_file"]


def plan_file(
    plan: ConvertPlan,
    path: str,
    source: Any,
    destination: Any,
    n_parts: int,
    options: Mapping[str, Any] | None,
) -> PlanFile:
    """Return the file of a plan, which is not written yet.

    Raises
    ------
    TypeError
        Other processes cannot open source and destination.
    ValueError
        It would lie in the new hierarchy.
    """
    places = []
    for name, place in (("source", source), ("destination", destination)):
        if not isinstance(place, str):
            raise TypeError(
                f"{name}: expected a path or a URL, which other processes can open, got {type(place).__name__}"
            )
        places.append(place)
    if not is_url(places[1]) and path.startswith(places[1].rstrip(os.sep) + os.sep):
        raise ValueError(f"job: expected a file outside of the new hierarchy {places[1]}, got {path}")
    return PlanFile(path, plan, places[0], places[1], n_parts, options)


def begin_job(file: PlanFile, new: NewTree, *, resume: bool) -> tuple[PlanFile, bool]:
    """Store the plan of a new job, or find the one that is resumed.

    A finished job stays until another one takes its file, so that a command that runs once more finds it complete.

    Parameters
    ----------
    file : PlanFile
        The new plan.
    new : NewTree
        Its destination.
    resume : bool
        Go on with the job in the file, if there is one.

    Returns
    -------
    file : PlanFile
        The plan that is carried out.
    is_new : bool
        The job begins with this call.

    Raises
    ------
    FileExistsError
        The file is that of an unfinished job or not a plan, or there is something at the destination.
    ConflictError
        The job in the file is unfinished, and has another source or other options.
    """
    stored = _stored(file.path, resume=resume)
    if stored is None:
        new.check_free()
        file.write()
        return file, True
    is_same = stored.plan.fingerprint == file.plan.fingerprint
    is_over = is_finished(read_ledgers(file.path, stored.plan.fingerprint))
    if resume and is_same:
        return stored, False
    if not is_over and not resume:
        raise FileExistsError(f"{file.path}: the job exists already; resume it, or name a new file")
    if not is_over:
        raise ConflictError(
            f"{file.plan.source}: expected the source and the options with which the job was begun (fingerprint "
            f"{stored.plan.fingerprint}), got others ({file.plan.fingerprint}); begin a new job with a new destination",
            expected=stored.plan.fingerprint,
            actual=file.plan.fingerprint,
        )
    new.check_free()
    _remove(file.path)
    file.write()
    return file, True


def give_up(new: NewTree, owner: str, job: PlanFile | None, *, had_folder: bool) -> None:
    """Remove the file and the mark of a job that has not written anything, so that the next attempt finds nothing.

    Parameters
    ----------
    new : NewTree
    owner : str
        Name of the job.
    job : PlanFile or None
        Its file, if this call has made it.
    had_folder : bool
        The folder of the destination was there before.
    """
    if job is not None and read_ledgers(job.path, job.plan.fingerprint).lines:
        return
    with suppress(OSError):  # a place that cannot be reached has nothing to remove, or keeps it
        if has_claim(new, owner):
            if new.has_objects(besides=MARK):
                return
            release(new)
            if new.path is not None and not had_folder:
                os.rmdir(new.path)
    if job is not None:
        _remove(job.path)


def _stored(path: str, *, resume: bool) -> PlanFile | None:
    try:
        return PlanFile.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if resume:
            raise
        raise FileExistsError(f"{path}: expected a new file for the job, but it exists: {error}") from error


def _remove(path: str) -> None:
    remove_ledgers(
        path
    )  # first, because a plan without ledgers is harmless, but a new plan with old ledgers is not
    with suppress(FileNotFoundError):
        os.unlink(path)
