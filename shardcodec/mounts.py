# mounts.py - the mounts of open files, paths and devices, as the kernel describes them
# SPDX-License-Identifier: MIT
"""Mounts, from ``/proc/self/fdinfo`` and ``/proc/self/mountinfo`` (proc_pid_mountinfo(5))."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator
from typing import NamedTuple

__all__ = [
    "Descriptor",
    "DescriptorInfo",
    "Mount",
    "descriptor_info",
    "find_mount",
    "find_mount_of",
    "may_reach",
    "mount_of",
    "mount_of_path",
    "names_of_devices",
    "note_use",
    "parse_line",
]

MOUNTINFO = "/proc/self/mountinfo"
# The line of the mount of "/", which is missing below `chroot` in a mount.
ROOT = re.compile(rb"^\S+ \S+ \S+ \S+ / ", re.MULTILINE)
# The line of a folder in which file systems of any type are mounted when they are used. systemd has one below /proc, for binfmt_misc.
AUTOMOUNT = re.compile(rb"^\S+ \S+ \S+ \S+ (?!/proc/)\S+ .* - autofs ", re.MULTILINE)


class Mount(NamedTuple):
    """One mount.

    Parameters
    ----------
    file_system : str
        Type of the file system, as ``"ext4"`` or ``"fuse.sshfs"``.
    number : str
        Its number in the mount table.
    device : str
        Major and minor number of its device, as ``"0:52"``.
    point : str
        The folder where it is mounted; empty if /proc lists only other mounts of the file system, as below `chroot`.
    source : str
        The device or the server.
    options : tuple of str
        Options of the mount, then those of the file system, which several mounts share.
    root : str
        The folder of the file system that is mounted; empty if `point` is.
    """

    file_system: str
    number: str = ""
    device: str = ""
    point: str = ""
    source: str = ""
    options: tuple[str, ...] = ()
    root: str = ""


class DescriptorInfo(NamedTuple):
    """The lines of ``/proc/self/fdinfo`` that matter here.

    Parameters
    ----------
    mount_number : str or None
        Number of the mount; None before Linux 3.15.
    shows_lock : bool
        True if the kernel lists a lock of this open file.
    """

    mount_number: str | None = None
    shows_lock: bool = False


class Descriptor:
    """An open file, folder or other object, as a context manager that returns its descriptor.

    A signal handler may raise between any two steps of Python. So one step opens and keeps the descriptor, and one step takes
    and closes it.

    Parameters
    ----------
    path : str
    flags : int
        As for `os.open`.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    _closing: Iterator[None] = iter(())

    def __init__(self, path: str, flags: int = os.O_RDONLY) -> None:
        self._opened: list[int] = []
        self._closing = map(os.close, self._opened)
        self._opened.extend(map(os.open, (path,), (flags | os.O_CLOEXEC,)))

    def __enter__(self) -> int:
        return self._opened[0]

    def __exit__(self, *unused: object) -> None:
        deque(self._closing, maxlen=0)

    def __del__(self) -> None:
        deque(self._closing, maxlen=0)  # closed already, unless a handler has raised


def mount_of(fd: int) -> Mount | None:
    """Return the mount of an open file; None if /proc does not show it."""
    try:
        return find_mount_of(fd)
    except OSError:
        return None


def find_mount_of(fd: int) -> Mount | None:
    """Return the mount of an open file as `mount_of` does, but raise OSError if /proc cannot be read."""
    number = descriptor_info(fd).mount_number
    return find_mount(_table(), number, _device(os.fstat(fd).st_dev))


def mount_of_path(path: str) -> Mount | None:
    """Return the mount of a path, or of the nearest folder above it that can be looked up; None if /proc does not show it.

    The file need not be readable.
    """
    while True:
        try:
            opened = Descriptor(path, getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            path, below = os.path.dirname(path), path
            if path == below:
                return None
        else:
            with opened as fd:
                return mount_of(fd)


def may_reach(file_systems: Collection[str]) -> bool:
    """Return False if no path of this process leads to one of several types of file systems, now; no path is looked at."""
    try:
        table = _table()
    except OSError:
        return True
    for name in file_systems:
        if f" - {name} ".encode() in table:
            return True
    return not ROOT.search(table) or bool(AUTOMOUNT.search(table))


# The folder of the mount through which this process has first used a device.
_used: dict[int, str] = {}


def note_use(device: int, mount: Mount | None) -> None:
    """Remember through which mount this process uses a device: several mounts may share it."""
    if mount is not None and mount.point:
        _used.setdefault(device, mount.point)


def names_of_devices(devices: Collection[int]) -> dict[int, str]:
    """Return a name for each of several devices, as `os.stat` numbers them; no two have one name.

    Returns
    -------
    dict of int to str
        The folder of the mount, with the number of the device if another one is mounted on the same folder, as
        ``"/data (0:52)"``. If several mounts have the device, such as the single files that a container gets, the mount that
        `note_use` knows. The number alone if there is none, or no mount has the device, such as that of a subvolume.
    """
    try:
        table = _table()
    except OSError:
        table = b""
    mounted = [mount for line in table.split(b"\n") if (mount := parse_line(line)) is not None]
    points = {}
    for device in devices:
        found = {mount.point for mount in mounted if mount.device == _device(device)}
        if len(found) == 1 or _used.get(device) in found:
            points[device] = _used[device] if _used.get(device) in found else found.pop()
    n_devices = Counter(points.values())
    names = {device: _device(device) for device in devices}
    for device, point in points.items():
        names[device] = point if n_devices[point] == 1 else f"{point} ({names[device]})"
    return names


def _table() -> bytes:
    with open(MOUNTINFO, "rb") as mounts:
        return mounts.read()


def _device(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"


def find_mount(mountinfo: bytes, number: str | None, device: str) -> Mount | None:
    """Find a mount by its number, or by its device if the number is not there.

    Parameters
    ----------
    mountinfo : bytes
        The text of ``/proc/self/mountinfo``. Lines in another format are skipped.
    number : str or None
        Number of the mount. Several mounts may share one folder or one device, so only the number is exact.
    device : str
        Major and minor number of the device of a file. The last mount of the device is taken. A subvolume of btrfs, or a
        file in an overlay, has a different device than its mount.

    Returns
    -------
    Mount or None
        If `number` is not listed, what all mounts of the device share: neither a folder nor options of one mount.
    """
    by_device, line_by_device = None, b""
    for line in mountinfo.split(b"\n"):  # the kernel does not escape a carriage return
        mount = parse_line(line)
        if mount is None:
            continue
        if mount.number == number:
            return mount
        if mount.device == device:
            by_device, line_by_device = mount, line
    if by_device is None or number is None:
        return by_device
    shared = _options(line_by_device.rpartition(b" ")[2])
    return by_device._replace(number=number, point="", options=shared, root="")


def parse_line(line: bytes) -> Mount | None:
    """Parse one line of ``/proc/self/mountinfo``; return None if it has another format."""
    fields = line.split(b" ")
    try:
        after = fields.index(b"-", 6)  # the optional fields before it vary in number
        file_system, source, shared = fields[after + 1 : after + 4]
    except ValueError:
        return None
    return Mount(
        number=_text(fields[0]),
        device=_text(fields[2]),
        root=_text(fields[3]),
        point=_text(fields[4]),
        file_system=_text(file_system),
        source=_text(source),
        options=_options(fields[5]) + _options(shared),
    )


def _options(field: bytes) -> tuple[str, ...]:
    return tuple(_text(option) for option in field.split(b",") if option)


def _text(part: bytes) -> str:
    r"""Decode a field, in which the kernel writes space, tab, newline, backslash and `#` as \040, \011, \012, \134, \043."""
    plain = re.sub(rb"\\([0-3][0-7]{2})", lambda found: bytes([int(found[1], 8)]), part)
    return os.fsdecode(plain)


def descriptor_info(fd: int) -> DescriptorInfo:
    """Return what the kernel tells about an open file.

    Raises
    ------
    OSError
        There is no ``/proc``, or the descriptor is closed.
    """
    number, shows_lock = None, False
    with open(f"/proc/self/fdinfo/{fd}") as info:
        for line in info:
            name, _, value = line.partition(":")
            if name == "mnt_id":
                number = value.strip()
            elif name == "lock":
                shows_lock = True
    return DescriptorInfo(mount_number=number, shows_lock=shows_lock)
