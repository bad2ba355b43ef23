# doctor.py - facts about a place of shards and about this process
# SPDX-License-Identifier: MIT
"""`doctor`: facts about a place and this process, each with one line of advice if something should change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ...access.box_reader import Folder, folder_at
from ...arguments import checked
from ...errors import LockScopeError, ShardError, as_os_error
from ...storage.file_systems import CLUSTER
from ...storage.kinds import at_url
from ...storage.store import Store
from ...storage.url_stores import is_url
from .folder_facts import check_folder
from .process_facts import check_process
from .report import Check, DoctorReport, Status

__all__ = ["doctor"]


@checked
def doctor(
    target: Any,
    *,
    probe: bool = True,
    clear_cache: bool = False,
    storage_options: Mapping[str, Any] | None = None,
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
    clear_cache : bool
        Remove all objects from the folder of the option ``cache_dir``, if `probe` is set. Other processes go on.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Returns
    -------
    DoctorReport

    Raises
    ------
    TypeError, ValueError, ImportError
        An argument is invalid, or no package can open the URL.

    Examples
    --------
    >>> for check in tools.doctor("a.zarr").checks:  # doctest: +SKIP
    ...     print(check.name, check.text)
    """
    checks = *_reached(target, probe, storage_options), *check_process(clear_cache=clear_cache and probe)
    return DoctorReport(str(target), checks)


def _reached(target: Any, probe: bool, storage_options: Mapping[str, Any] | None) -> Iterator[Check]:
    """Yield facts about the place; an error of the place is a problem, and does not end the report."""
    try:
        with as_os_error():
            yield from _place(target, probe, storage_options)
    except (ShardError, OSError) as error:
        # obstore appends the structure of its error, which repeats the message; some of its errors are an `OSError`
        message = str(error).partition("\n\nDebug source:")[0] or type(error).__name__
        advice = "Check that the place exists, can be reached and takes new files, or run it with --dry-run."
        yield Check("place", Status.PROBLEM, f"a check failed: {message}", advice)


def _place(target: Any, probe: bool, storage_options: Mapping[str, Any] | None) -> Iterator[Check]:
    place = at_url(target, storage_options)
    folder = None if isinstance(place, str | os.PathLike) else folder_at(place, "")
    path = os.path.abspath(os.fspath(place)) if folder is None else folder.store.path(folder.prefix)
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
    """Return False if the bucket of a store does not exist. A store that cannot list does not show it."""
    store = folder.store
    if store.is_near or not store.supports_listing:
        return True
    try:
        store.listed(folder.prefix)
    except Exception as error:
        if store.says_missing(error):
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
    """Return the fact whether writers in other processes are excluded."""
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
        scope, reason = store.wait(store.exclusion(f"{prefix}shardcodec-doctor"))
    except LockScopeError as error:
        scope, reason = str(error.context.get("scope")), str(error.context.get("reason"))
    details = {"scope": scope, "reason": reason}
    if scope == CLUSTER:
        return Check("writers", Status.OK, f"writers everywhere exclude each other ({reason})", None, details)
    advice = "Let only one process write each shard, or use a store with conditional writes (docs/object-stores.md)."
    return Check(
        "writers", Status.PROBLEM, f"writers in other processes are not excluded: {reason}", advice, details
    )
