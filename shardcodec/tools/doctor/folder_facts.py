# folder_facts.py - facts about the file system of a folder
# SPDX-License-Identifier: MIT
"""`check_folder`: facts about the file system of a folder, each with one line of advice if something should change."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from ...readable import format_nbytes, format_share
from ...storage import lock_reach
from ...storage.file_systems import (
    APPEND_TYPES,
    CLUSTER,
    LEASED_TYPES,
    LOCAL_TYPES,
    NFS_3,
    NODE,
    NONE,
    SMB_TYPES,
    is_on_this_machine,
    strategies_at,
)
from ...storage.lock_reach import MountScope, lease_seconds
from ...storage.undo_journal import is_old_name
from .report import Check, Status

__all__ = ["check_folder"]

# A smaller share of free space or inodes is a note (`LOW`) or a problem (`VERY_LOW`).
LOW, VERY_LOW = 0.1, 0.02
# Difference of clocks in seconds from which times of files mislead: the granularity that the file states allow for.
CLOCK_SECONDS = 2.0

# Folders that are listed to find names .nfs...; each is a request or more.
MOST_FOLDERS = 1000

# Why a strategy is not used on a file system.
WHY_NOT_APPEND = (
    "appends are used only on {used}, where they were tested with kills and power cuts: a shard is replaced instead (on NFS another node "
    "sees the size of a file before its last bytes, so it would find no index)"
)
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
    if _is_leased(known):
        yield _old_names(folder)
    yield _strategies(folder)
    yield _clock(known, is_probed=probe and is_writable and failed is None)
    yield from _space(folder)


def _known(folder: str, *, probe: bool) -> tuple[MountScope, Check | None]:
    """Return how far locks reach, and a problem if the file of the probe cannot be made."""
    try:
        return lock_reach.scope_at(folder, probe=probe), None
    except OSError as error:
        advice = "Choose a folder that takes new files."
        failed = Check(
            "probe", Status.PROBLEM, f"a file in {folder} cannot be made and locked: {error}", advice
        )
        return lock_reach.scope_at(folder, probe=False), failed


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
        if known.mount is not None and _is_leased(known):
            lease = lease_seconds(known.mount)
            details["lease"] = "unknown" if lease is None else str(lease)
            text += f"; {_lost_locks(known.mount.file_system, lease)}. Shards are replaced there, never changed in place"
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


def _lost_locks(file_system: str, lease: int | None) -> str:
    if file_system in SMB_TYPES:
        return "SMB has no lease: an update fences and compares before it renames, and begins again if another node has changed the shard"
    if file_system == NFS_3:
        return (
            "NFS 3 has no lease: a node that is cut off from the server, or dies, keeps its locks until it is back, and writers on other "
            "nodes get LockError after SHARDCODEC_LOCK_TIMEOUT. Locks are lost if the server starts again and its notice does not reach a node; "
            "an update begins again then"
        )
    return (
        f"a node that is cut off from the server for longer than its lease ({'90 s by default' if lease is None else f'{lease} s'}) "
        "loses them, and its update begins again; writers on other nodes wait for them until then, or get LockError after SHARDCODEC_LOCK_TIMEOUT"
    )


def _is_leased(known: MountScope) -> bool:
    return known.mount is not None and known.mount.file_system in LEASED_TYPES


def _old_names(folder: str) -> Check:
    """Look for files that have only a name which a client of NFS gives to an open file."""
    found: list[str] = []
    folders = os.walk(folder)
    for inside, _, names in itertools.islice(folders, MOST_FOLDERS):
        found += [f"{inside}/{name}" for name in sorted(names) if is_old_name(name)]
    is_whole = next(folders, None) is None
    looked = "" if is_whole else f", in the first {MOST_FOLDERS} folders"
    details = {"paths": found, "is_whole": is_whole}
    if not found:
        return Check(
            "names", Status.OK, f"no file has only a name .nfs... of an open file{looked}", None, details
        )
    shown = ", ".join(repr(path) for path in found[:3]) + (" and others" if len(found) > 3 else "")
    text = (
        f"{len(found)} with a name of an open file{looked}: {shown}. Each is an old state that a process still has open, or a shard "
        "without another name, if a machine has died while it replaced it"
    )
    advice = f"`shardcodec verify {folder!r}` finds shards whose name is missing, and `shardcodec repair` gives them their names."
    return Check("names", Status.NOTE, text, advice, details)


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
