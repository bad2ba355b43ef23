# doctor.py - facts about a place of shards and about this process
# SPDX-License-Identifier: MIT
"""`doctor`: facts about a place and this process, each with one line of advice if something should change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ..access.box_reader import Folder, folder_at
from ..arguments import checked
from ..compat import on_zarrs_loop
from ..errors import LockScopeError, ShardError
from ..storage.conditions import names_missing_bucket
from ..storage.file_systems import CLUSTER
from ..storage.kinds import at_url, is_url
from ..storage.store import Store
from .check import Check, DoctorReport, Status
from .check_folder import check_folder
from .check_process import check_process

__all__ = ["doctor"]


@checked
def doctor(
    target: Any, *, probe: bool = True, storage_options: Mapping[str, Any] | None = None
) -> DoctorReport:
    """Return facts about the place of arrays and about this process.

    Parameters
    ----------
    target : path-like, URL or zarr store
        The place of arrays: a folder, or a file in it.
    probe : bool
        In a folder: make a file with a temporary name, lock it and remove it. In an object store: send a write whose
        condition does not hold. Only this shows how far locks reach on FUSE, whether the clocks agree, and whether the
        service obeys conditions.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Returns
    -------
    DoctorReport

    Raises
    ------
    TypeError, ValueError, ImportError
        An argument is invalid, or no package can open the URL.
    """
    return DoctorReport(str(target), (*_reached(target, probe, storage_options), *check_process()))


def _reached(target: Any, probe: bool, storage_options: Mapping[str, Any] | None) -> Iterator[Check]:
    """Yield facts about the place; a place that fails is a problem, and the facts about this process follow."""
    try:
        yield from _place(target, probe, storage_options)
    except _failures() as error:
        # obstore appends the structure of its error, which says nothing more
        message = str(error).partition("\n\nDebug source:")[0] or type(error).__name__
        advice = "Check that the place exists, can be reached and takes new files, or run it with --dry-run."
        yield Check("place", Status.PROBLEM, f"a check failed: {message}", advice)


def _failures() -> tuple[type[BaseException], ...]:
    """Return the classes of errors of a place, with those of obstore if it is in use."""
    obstore = sys.modules.get("obstore.exceptions")
    return (ShardError, OSError) if obstore is None else (ShardError, OSError, obstore.BaseError)


def _place(target: Any, probe: bool, storage_options: Mapping[str, Any] | None) -> Iterator[Check]:
    found = at_url(target, storage_options)
    folder = None if isinstance(found, str | os.PathLike) else folder_at(found, "")
    path = os.path.abspath(os.fspath(found)) if folder is None else folder.store.path(folder.prefix)
    if path is not None:
        if not os.path.exists(path):
            yield _missing(
                path.rstrip("/"), "Create the folder, or give the folder in which a new hierarchy is to be."
            )
            return
        yield from check_folder(path if os.path.isdir(path) else os.path.dirname(path), probe=probe)
        return
    assert folder is not None
    name = str(target) if is_url(target) else folder.store.describe("")
    if not _exists(folder):
        yield _missing(
            name, "Create the bucket or the container, or check the name, the endpoint and the region."
        )
        return
    yield from _store(folder, name, probe)


def _missing(name: str, advice: str) -> Check:
    return Check("place", Status.PROBLEM, f"{name} does not exist; nothing else was tested there", advice)


def _exists(folder: Folder) -> bool:
    """Return False if the bucket of a store does not exist. Stores that cannot list have no sign of it."""
    store = folder.store
    if store.is_near or not store.supports_listing:
        return True
    try:
        _ = next(iter(store.keys(folder.prefix)), None)
    except Exception as error:
        if isinstance(error, FileNotFoundError) or names_missing_bucket(error):
            return False
        raise
    return True


def _store(folder: Folder, name: str, probe: bool) -> Iterator[Check]:
    store = folder.store
    facts = {
        "is_near": store.is_near,
        "identifies_states": store.identifies_states,
        "supports_listing": store.supports_listing,
        "is_read_only": store.is_read_only,
        "takes_parts": store.takes_parts,
    }
    can = [
        text
        for is_so, text in (
            (store.is_near, "objects in memory"),
            (store.identifies_states, "entity tags"),
            (store.supports_listing, "listings"),
            (store.takes_parts, "multipart uploads"),
            (store.is_read_only, "read-only"),
        )
        if is_so
    ]
    yield Check("store", Status.OK, f"{name}: {', '.join(can) or 'plain requests'}", None, facts)
    if not store.supports_listing:
        advice = "Give tools the path of an array, and consolidate the metadata of groups."
        yield Check("listing", Status.NOTE, "the store cannot list its objects", advice)
    yield _writers(store, folder.prefix, probe)


def _writers(store: Store, prefix: str, probe: bool) -> Check:
    """Tell whether writers of other processes are excluded."""
    if store.is_near:
        return Check(
            "writers", Status.OK, "only this process has the objects, and its writers exclude each other"
        )
    if store.is_read_only:
        return Check("writers", Status.OK, "the store is read-only")
    if store.identifies_states and not probe:
        advice = "Run it without --dry-run: only a write shows whether the service obeys conditions."
        return Check(
            "writers", Status.NOTE, "whether the service obeys conditional writes was not tried", advice
        )
    try:
        scope, reason = on_zarrs_loop(store.exclusion(f"{prefix}shardcodec-doctor"))
    except LockScopeError as error:
        scope, reason = str(error.context.get("scope")), str(error.context.get("reason"))
    details = {"scope": scope, "reason": reason}
    if scope == CLUSTER:
        return Check("writers", Status.OK, f"writers everywhere exclude each other ({reason})", None, details)
    advice = "Let only one process write each shard, or use a store with conditional writes (docs/object-stores.md)."
    return Check(
        "writers", Status.PROBLEM, f"writers in other processes are not excluded: {reason}", advice, details
    )
