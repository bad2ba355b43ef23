# test_refused_calls.py - system calls that an older kernel or a sandbox does not have
# SPDX-License-Identifier: MIT
"""Kernels before a call was made answer ENOSYS; profiles of seccomp that do not know it answer EPERM (older container runtimes)
or ENOSYS. Where statx is missing every overwrite failed with EINVAL, which glibc's substitute answers to a flag; renameat2 and
fallocate were an error with EPERM. zarr's own pipeline works there. Later: where prlimit64 is refused, each write of several shards
was an error, because it asks how many files may be open.

Each case refuses one call in a forked child, which then does all kinds of writes.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import in_child
from refused_calls import CALLS, can_refuse, refuse
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec import tools
from shardcodec.kv import ShardedKeyValueStore

pytestmark = [
    pytest.mark.skipif(not can_refuse(), reason="needs seccomp, and the numbers of the calls"),
    pytest.mark.slow,
]

SIDE = 96
VALUES = np.random.default_rng(0).integers(0, 1 << 30, (SIDE, SIDE), dtype="i4")


def write_arrays(folder: Path) -> None:
    """Write with each strategy: new shards, whole and partial updates, appends, and the removal of a shard."""
    for strategy in ("replace", "append", "in_place"):
        for durability in ("rename", "fsync"):
            name = str(folder / f"{strategy}-{durability}")
            zarr.create_array(name, shape=(SIDE, SIDE), shards=(48, 48), chunks=(16, 16), dtype="i4")
            expected = np.zeros_like(VALUES)
            with shardcodec.options(write_strategy=strategy, durability=durability):
                array = shardcodec.open_array(name, mode="r+")
                for box in (
                    np.s_[:, :],
                    np.s_[3:20, 5],
                    np.s_[:48, :48],
                    np.s_[16:32, 80:96],
                    np.s_[1:50, 1:95],
                ):
                    array[box] = VALUES[box] + 1
                    array[box] = expected[box] = VALUES[box]
                array[48:, 48:] = 0
            expected[48:, 48:] = 0
            assert np.array_equal(zarr.open_array(name, mode="r")[...], expected), name


def write_stream(folder: Path) -> None:
    name = str(folder / "stream")
    zarr.create_array(name, shape=(1, 8, 8), shards=(8, 8, 8), chunks=(1, 8, 8), dtype="i4")
    with shardcodec.stream(name, max_delay=0, start=0, grow_every=4) as stream:
        for row in range(20):
            stream.append(VALUES[row, :64].reshape(8, 8))
            stream.flush()
    assert np.array_equal(zarr.open_array(name, mode="r")[...], VALUES[:20, :64].reshape(20, 8, 8))


def write_values(folder: Path) -> None:
    store = ShardedKeyValueStore(folder / "values", grid_shape=(20,), index_codecs=[LITTLE, CRC])
    for number in (3, 5, 3):
        store[number.to_bytes(4, "big")] = bytes([number]) * number
    del store[b"\0\0\0\5"]
    assert dict(store) == {b"\0\0\0\3": b"\3\3\3"}


def run_tools(folder: Path) -> None:
    name = str(folder / "tools")
    zarr.create_array(name, data=VALUES, shards=(48, 48), chunks=(16, 16))
    (folder / "tools/c/0/0").write_bytes((folder / "tools/c/0/0").read_bytes()[:-1])
    assert tools.verify(name).n_findings == 1
    tools.repair(name, backup=folder / "backup")
    assert tools.verify(name).n_findings == 0
    tools.compact(name)
    tools.convert(name, folder / "converted", shards=(96, 96))
    assert tools.verify(folder / "converted", against=name, level="decode").n_findings == 0


PARTS: list[Callable[[Path], None]] = [write_arrays, write_stream, write_values, run_tools]

# Answers of one kernel or sandbox: these run always, the others at night.
OFTEN = {"all", "statx", "renameat2", "fallocate", "linkat", "O_TMPFILE", "OFD locks"}
# File systems without an operation answer so, too.
NOT_SUPPORTED = {"fallocate", "copy_file_range", "FICLONERANGE", "O_TMPFILE", "OFD locks", "renameat2"}

ERRORS = errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP


def runs_by_day(call: str, error: int, part: int) -> bool:
    """Each part meets each of these calls with one of two errors, and a system without any of them with both."""
    return call in OFTEN and error in (ERRORS[:2] if call == "all" else [ERRORS[(len(call) + part) % 2]])


CASES = [
    pytest.param(
        call,
        error,
        part,
        id=f"{call}-{errno.errorcode[error]}-{part.__name__}",
        marks=[] if runs_by_day(call, error, number) else pytest.mark.nightly,
    )
    for call in ("all", *CALLS)
    for error in ERRORS
    if error != errno.EOPNOTSUPP or call in NOT_SUPPORTED
    for number, part in enumerate(PARTS)
]


@pytest.mark.parametrize(("call", "error", "part"), CASES)
def test_refused_call_is_done_without(
    call: str, error: int, part: Callable[[Path], None], tmp_path: Path
) -> None:
    def work() -> None:
        if hasattr(
            os, "process_cpu_count"
        ):  # of Python 3.13, whose own thread pools fail where its call is refused
            os.process_cpu_count = os.cpu_count
        refuse(dict.fromkeys(CALLS if call == "all" else [call], error))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if call in ("all", "OFD locks", "linkat", "renameat2"):  # a mount that cannot keep writers apart
                warnings.simplefilter("ignore", shardcodec.LockScopeWarning)
            part(tmp_path)

    in_child(work)
