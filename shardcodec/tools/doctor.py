# doctor.py - facts about a place of shards and about this process
# SPDX-License-Identifier: MIT
"""`doctor`: facts about a place and this process, each with one line of advice if something should change."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..access.box_reader import Folder, folder_at
from ..arguments import checked
from ..build_info import build_info, unknown_variables
from ..compat import config, max_workers, pipelines_of_arrays
from ..errors import LockScopeError, ShardError, as_os_error
from ..option_sources import (
    PIPELINE_KEY,
    PIPELINE_PATH,
    selector_of_new_process,
    settings_in_force,
    source_of,
)
from ..options import Setting, thread_limits
from ..readable import Fact, format_nbytes, format_share
from ..storage import file_systems
from ..storage.file_systems import (
    APPEND_TYPES,
    CLUSTER,
    LEASED_TYPES,
    LOCAL_TYPES,
    NODE,
    NONE,
    MountScope,
    is_on_this_machine,
    lease_seconds,
    strategies_at,
)
from ..storage.kinds import at_url, is_url
from ..storage.store import Store
from .report import Record, Report

__all__ = [
    "Check",
    "DoctorReport",
    "Status",
    "check_folder",
    "check_process",
    "doctor",
]


# ---------------------------------------------------------------- the results of `doctor`


class Status(enum.StrEnum):
    """The rating of a fact."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


# How the text shows them.
_MARKS = {Status.OK: " ", Status.NOTE: "-", Status.PROBLEM: "!"}


@dataclass(frozen=True)
class Check(Record):
    """One fact.

    Attributes
    ----------
    name : str
        What was looked at, such as ``"locks"``.
    status : Status
        ``ok``; ``note``: worth knowing; ``problem``: data or work is at risk.
    text : str
        What was found.
    advice : str or None
        One line: what to do.
    details : mapping
        The same as numbers and names.
    """

    name: str
    status: Status
    text: str
    advice: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DoctorReport(Report):
    """The result of `doctor`.

    Parameters
    ----------
    target : str
        The path that was given.
    checks : tuple of Check
        The facts.
    """

    schema: ClassVar[str] = "shardcodec.doctor"
    schema_version: ClassVar[int] = 1

    target: str
    checks: tuple[Check, ...]

    def facts(self) -> Iterator[Fact]:
        """Yield the checks as names and texts, with a mark for problems and notes.

        Yields
        ------
        name, text : str
        """
        for one in self.checks:
            yield f"{_MARKS[one.status]} {one.name}", one.text
            if one.advice is not None:
                yield "  ", f"-> {one.advice}"

    def lines(self) -> Iterator[str]:
        """Yield the checks as lines of text.

        Yields
        ------
        str
        """
        for name, text in self.facts():
            yield f"{name:14} {text}"

    @property
    def n_problems(self) -> int:
        """Number of checks with a problem."""
        return sum(check.status is Status.PROBLEM for check in self.checks)


# ---------------------------------------------------------------- facts about the file system of a folder

# A smaller share of free space or inodes is a note (`LOW`) or a problem (`VERY_LOW`).
LOW, VERY_LOW = 0.1, 0.02
# Difference of clocks in seconds from which times of files mislead: the granularity that the file states allow for.
CLOCK_SECONDS = 2.0

# Why a strategy is not used on a file system.
WHY_NOT_APPEND = "appends are used only on {used}, where they were tested with kills and power cuts: a shard is replaced instead"
WHY_NOT_IN_PLACE = (
    "updates in place need a file system of one machine ({used}), where all processes see the same state: a shard is "
    "replaced instead"
)


def check_folder(folder: str, *, probe: bool) -> Iterator[Check]:
    """Yield facts about a folder: permissions, file system, locks, write strategies, clock, free space and inodes.

    Parameters
    ----------
    folder : str
        The folder. It exists.
    probe : bool
        Make a file with a temporary name in it, lock it, and remove it, to find out how far locks reach and whether the
        clocks agree. Not done in a folder that is not writable.

    Raises
    ------
    OSError
        The folder cannot be read.
    """
    is_writable = os.access(folder, os.W_OK | os.X_OK)
    yield _permissions(folder, is_writable=is_writable)
    known, failed = _known(folder, probe=probe and is_writable)
    if failed is not None:
        yield failed
    yield _file_system(folder, known)
    yield _locks(known)
    yield _strategies(folder)
    yield _clock(known, is_probed=probe and is_writable and failed is None)
    yield from _space(folder)


def _known(folder: str, *, probe: bool) -> tuple[MountScope, Check | None]:
    """Return how far locks reach, and a problem if the file of the probe cannot be made."""
    try:
        return file_systems.scope_at(folder, probe=probe), None
    except OSError as error:
        advice = "Choose a folder that takes new files."
        failed = Check(
            "probe", Status.PROBLEM, f"a file in {folder} cannot be made and locked: {error}", advice
        )
        return file_systems.scope_at(folder, probe=False), failed


def _permissions(folder: str, *, is_writable: bool) -> Check:
    if is_writable:
        return Check("permissions", Status.OK, f"{folder} is writable", details={"is_writable": True})
    return Check(
        "permissions",
        Status.NOTE,
        f"{folder} is not writable for this user",
        "Reads work. For writes, ask for write permission on the folder: new shards are made beside the old ones.",
        {"is_writable": False},
    )


def _file_system(folder: str, known: MountScope) -> Check:
    mount = known.mount
    if mount is None:
        return Check(
            "file system",
            Status.NOTE,
            f"the mount of {folder} is not shown by /proc/self/mountinfo",
            "The careful ways are used: each update replaces the file.",
        )
    details = {
        "type": mount.file_system,
        "mount_point": mount.point,
        "source": mount.source,
        "options": list(mount.options),
        "is_on_this_machine": is_on_this_machine(mount),
    }
    text = f"{mount.file_system} on {mount.point or 'a mount that /proc does not list'} from {mount.source} ({','.join(mount.options)})"
    if "ro" in mount.options:
        return Check(
            "file system", Status.NOTE, text, "Mounted read-only: mount it with rw to write.", details
        )
    return Check("file system", Status.OK, text, None, details)


def _locks(known: MountScope) -> Check:
    details = {"scope": known.scope, "reason": known.reason}
    if known.scope == CLUSTER:
        text = f"locks reach writers on other nodes ({known.reason})"
        if known.mount is not None and known.mount.file_system in LEASED_TYPES:
            lease = lease_seconds(known.mount)
            details["lease"] = "unknown" if lease is None else str(lease)
            text += (
                f"; a node that is cut off from the server for longer than its lease ({'90 s by default' if lease is None else f'{lease} s'}) "
                "loses them, and its update begins again. Shards are replaced there, never changed in place"
            )
        return Check("locks", Status.OK, text, None, details)
    if known.scope == NODE and is_on_this_machine(known.mount):
        return Check(
            "locks", Status.OK, f"locks reach all processes of this machine ({known.reason})", None, details
        )
    if known.scope == NODE:
        text = f"locks do not reach writers on other nodes ({known.reason})"
        advice = "Let only one node write each shard, or mount with locks for all nodes (docs/cluster.md)."
        return Check("locks", Status.PROBLEM, text, advice, details)
    if known.scope == NONE:
        text = f"this file system has no locks: no other process is excluded ({known.reason})"
        return Check("locks", Status.PROBLEM, text, "Let only one process write each shard.", details)
    text = f"it cannot be told how far locks reach ({known.reason})"
    advice = "Let only one node write each shard; locking='cluster' refuses to write here (docs/cluster.md)."
    return Check("locks", Status.NOTE, text, advice, details)


def _strategies(folder: str) -> Check:
    name, can_append, can_overwrite = strategies_at(folder)
    reasons = {}
    if not can_append:
        reasons["append"] = WHY_NOT_APPEND.format(used=", ".join(sorted(APPEND_TYPES)))
    if not can_overwrite:
        reasons["in_place"] = WHY_NOT_IN_PLACE.format(used=", ".join(sorted(LOCAL_TYPES)))
    works = [strategy for strategy in ("replace", "append", "in_place") if strategy not in reasons]
    text = f"{', '.join(works)} work on {name}"
    text += "".join(f"; not {strategy}: {why}" for strategy, why in reasons.items())
    advice = "Many small updates are cheaper on a file system that can append." if reasons else None
    details = {"works": works, "reasons": reasons}
    return Check("strategies", Status.NOTE if reasons else Status.OK, text, advice, details)


def _clock(known: MountScope, *, is_probed: bool) -> Check:
    if not is_probed or known.file_time is None:
        return Check(
            "clock",
            Status.NOTE,
            "not compared: no file was made",
            "Run it without --dry-run in a writable folder.",
        )
    low, high = known.file_time.before - known.file_time.stamp, known.file_time.after - known.file_time.stamp
    # the file was made between the two looks at the clock of this machine
    difference = max(0.0, low, -high)
    details = {"difference_seconds": difference}
    if difference < CLOCK_SECONDS:
        text = f"the clocks of the file system and of this machine differ by less than {CLOCK_SECONDS:g} s"
        return Check("clock", Status.OK, text, None, details)
    text = f"the clocks of the file system and of this machine differ by {difference:.1f} s"
    advice = "Synchronise the clocks (NTP): chunk_state(cache=) and programs that compare times of files rely on them."
    return Check("clock", Status.PROBLEM, text, advice, details)


def _space(folder: str) -> Iterator[Check]:
    status = os.statvfs(folder)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    yield _free_share(
        "space",
        f"{format_nbytes(free)} of {format_nbytes(total)} free ({format_share(free, total)})",
        free,
        total,
        "Free some space: an update needs room for the new shard beside the old one.",
    )
    if not status.f_files:
        yield Check(
            "inodes", Status.OK, "the file system has no limit of files", None, {"n_free": None, "n": None}
        )
        return
    yield _free_share(
        "inodes",
        f"{status.f_favail:,} of {status.f_files:,} free ({format_share(status.f_favail, status.f_files)})",
        status.f_favail,
        status.f_files,
        "Use larger shards: each one takes an inode.",
    )


def _free_share(name: str, text: str, free: int, total: int, advice: str) -> Check:
    share = free / total if total else 1.0
    status = Status.PROBLEM if share < VERY_LOW else Status.NOTE if share < LOW else Status.OK
    details = {"n_free": free, "n": total} if name == "inodes" else {"free_nbytes": free, "nbytes": total}
    return Check(name, status, text, None if status is Status.OK else advice, details)


# ---------------------------------------------------------------- facts about this process and the installation


def check_process() -> Iterator[Check]:
    """Yield facts about this process. An invalid option is a problem, not an error."""
    facts = build_info()
    versions = {"shardcodec": facts["version"]} | {name: facts[name] for name in ("python", "zarr", "numpy")}
    versions |= facts["libraries"]
    text = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield Check("versions", Status.OK, text, None, {**versions, "platform": facts["platform"]})
    yield _processor(facts)
    try:
        options = settings_in_force()
    except (TypeError, ValueError) as error:
        yield Check(
            "options", Status.PROBLEM, str(error), "Correct this option: every read and write fails with it."
        )
    else:
        yield _threads(options["threads"].value, options["threads"].source)
        yield _options(options)
    yield _pipeline()


def _processor(facts: dict[str, object]) -> Check:
    cpu, crc32c = facts["cpu"], facts["crc32c"]
    assert isinstance(cpu, dict)
    assert isinstance(crc32c, dict)
    text = f"{' '.join(cpu['used']) or 'no special instructions'}; checksums by {crc32c['used']}"
    details = {**cpu, "crc32c": crc32c}
    if cpu["override"]:
        text += f"; SHARDCODEC_CPU={cpu['override']} restricts {' '.join(cpu['detected'])}"
        advice = "Remove SHARDCODEC_CPU from the environment, unless you test with it."
        return Check("processor", Status.NOTE, text, advice, details)
    return Check("processor", Status.OK, text, None, details)


def _options(options: dict[str, Setting]) -> Check:
    changed = {name: setting.value for name, setting in options.items() if setting.source != "default"}
    text = ", ".join(f"{name}={options[name].value} ({options[name].source})" for name in changed)
    text = text or "all have their defaults"
    if unknown := unknown_variables():
        text += f"; nothing reads {', '.join(unknown)}"
        meant = [f"{name} for {variable}" for variable, name in unknown.items() if name is not None]
        advice = f"Correct or remove these environment variables{': ' * bool(meant)}{', '.join(meant)}."
        return Check("options", Status.NOTE, text, advice, changed)
    return Check("options", Status.OK, text, None, changed)


def _threads(threads: int, source: str) -> Check:
    limits = {**thread_limits(), "zarr's threading.max_workers": max_workers()}
    listed = ", ".join(f"{name} {'-' if limit is None else limit}" for name, limit in limits.items())
    text = f"{threads} by {source} ({listed})"
    details = {"threads": threads, "source": source, "limits": limits}
    machine = limits["machine"] or 1
    if threads < machine:
        advice = "Fewer threads than processors: on a cluster, ask the scheduler for more, or set the option threads."
        return Check("threads", Status.NOTE, text, advice, details)
    return Check("threads", Status.OK, text, None, details)


def _pipeline() -> Check:
    path, source = config.get(PIPELINE_KEY), source_of(PIPELINE_KEY)
    details = {"path": path, "source": source}
    text = f"zarr uses {path} ({source})"
    selector = selector_of_new_process()
    if path != PIPELINE_PATH and selector is not None:
        text += f", which has replaced shardcodec's ({selector})"
    if (path == PIPELINE_PATH or selector is not None) and (others := _arrays_with_another_pipeline()):
        text += f"; arrays of this process that use another one: {', '.join(others)}"
        advice = "Open these arrays again, or use shardcodec.attach (docs/how-to/other-packages.md)."
        if path != PIPELINE_PATH:
            advice = f"Call shardcodec.enable(). {advice}"
        return Check("pipeline", Status.NOTE, text, advice, details | {"others": others})
    if path == PIPELINE_PATH:
        return Check("pipeline", Status.OK, text, None, details)
    advice = "Call shardcodec.enable() in each program, or run `shardcodec enable` once for the environment."
    if source != "default":
        advice = f"Remove this setting, or call shardcodec.enable() after it: {source}."
    return Check("pipeline", Status.NOTE, text, advice, details)


def _arrays_with_another_pipeline() -> list[str]:
    own = PIPELINE_PATH.rpartition(".")[2]
    return sorted({name for name, pipeline in pipelines_of_arrays() if type(pipeline).__name__ != own})


# ---------------------------------------------------------------- facts about a place of shards, a folder or a store


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

    Examples
    --------
    >>> for check in tools.doctor("a.zarr").checks:  # doctest: +SKIP
    ...     print(check.name, check.text)
    """
    return DoctorReport(str(target), (*_reached(target, probe, storage_options), *check_process()))


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
