# refused_calls.py - programs whose system calls a filter refuses, as an older kernel or the sandbox of a container does
# SPDX-License-Identifier: MIT
"""`refuse` installs a filter of seccomp in this process. It cannot be taken off again, so call it in a child.

A filter sees the number of a call and its arguments, but no memory: commands of `fcntl` and `ioctl` can be refused one by one,
flags of `openat` too.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

__all__ = ["CALLS", "can_refuse", "refuse"]

X86_64, AARCH64 = range(2)
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}

# Each name: the numbers of the call (x86_64, aarch64; None: the architecture does not have it), and what its argument number
# `index`, masked, must be, if not all calls are refused.
OFD_SETLK, FICLONERANGE, GETFLAGS, GETVERSION, TMPFILE = 37, 0x4020940D, 0x80086601, 0x80087601, 0o20000000
CALLS: dict[str, tuple[tuple[int | None, int | None], tuple[int, int, int] | None]] = {
    "statx": ((332, 291), None),
    "renameat2": ((316, 276), None),
    "fallocate": ((285, 47), None),
    "copy_file_range": ((326, 285), None),
    "linkat": ((265, 37), None),
    "pwritev": ((296, 70), None),
    "fadvise64": ((221, 223), None),
    "mincore": ((27, 232), None),
    "fstatfs": ((138, 44), None),
    "utimensat": ((280, 88), None),
    "fchown": ((93, 55), None),
    "flistxattr": ((196, 13), None),
    "listxattr": ((194, 11), None),
    "kill": ((62, 129), None),
    "readlink": ((89, None), None),
    "sched_getaffinity": ((204, 123), None),
    "getrandom": ((318, 278), None),
    "prlimit64": ((302, 261), None),
    "OFD locks": ((72, 25), (1, 0xFFFFFFFF, OFD_SETLK)),
    "FICLONERANGE": ((16, 29), (1, 0xFFFFFFFF, FICLONERANGE)),
    "FS_IOC_GETFLAGS": ((16, 29), (1, 0xFFFFFFFF, GETFLAGS)),
    "FS_IOC_GETVERSION": ((16, 29), (1, 0xFFFFFFFF, GETVERSION)),
    "O_TMPFILE": ((257, 56), (2, TMPFILE, TMPFILE)),
}

LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
REFUSE, ALLOW = 0x00050000, 0x7FFF0000
SET_NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2


def can_refuse() -> bool:
    """Return True if the system has such filters, for an architecture whose numbers of calls are known here."""
    return sys.platform == "linux" and platform.machine() in ARCHITECTURES


def refuse(names: dict[str, int]) -> None:
    """Let the kernel answer calls of this process, and of those that it starts, with an errno. names: names of `CALLS`."""
    lines: list[tuple[int, int, int, int]] = []
    for name, error in names.items():
        numbers, argument = CALLS[name]
        number = numbers[ARCHITECTURES[platform.machine()]]
        if number is None:
            continue
        check = [] if argument is None else _check_argument(*argument)
        lines += [(LOAD, 0, 0, 0), (EQUAL, 0, len(check) + 1, number), *check, (RETURN, 0, 0, REFUSE | error)]
    lines.append((RETURN, 0, 0, ALLOW))
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))

    class Program(ctypes.Structure):
        _fields_ = (("n", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    program = Program(len(lines), ctypes.addressof(text))
    library = ctypes.CDLL(None, use_errno=True)
    for command in (
        (SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0),
    ):
        if library.prctl(*command):
            raise OSError(ctypes.get_errno(), "seccomp")


def _check_argument(index: int, mask: int, wanted: int) -> list[tuple[int, int, int, int]]:
    """Return lines that skip the next line unless the lower half of an argument is the wanted one."""
    return [(LOAD, 0, 0, 16 + 8 * index), (AND, 0, 0, mask), (EQUAL, 0, 1, wanted)]
