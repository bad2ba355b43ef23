# test_object_contention.py - processes that update one shard in an object store, while connections fail
# SPDX-License-Identifier: MIT
"""Eight processes write the 64 inner chunks of one shard, each its own; a reader looks at the shard all the time.

An update that raised may be lost or stored; one that returned is stored. An inner chunk is old or new as a whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ours, zarrs_view
from servers.azurite import AzureContainer
from servers.proxy import What
from servers.services import SERVICES, Bucket, Server, bucket_of, service

import shardcodec

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
SIDE = 16
N_CHUNKS = 64

# A process with its own store. It prints the numbers of the inner chunks whose write returned.
WRITER = """
import json, os, sys
import zarr
import shardcodec
sys.path.insert(0, sys.argv[1])
kind, port, name, first, n, side = sys.argv[2], *map(str, sys.argv[3:])
if kind == "azure":
    from servers.azurite import azure_store as store_at
else:
    from servers.s3 import s3_store as store_at
from obstore.exceptions import BaseError

os.environ["SHARDCODEC_LOCK_TIMEOUT"] = "120"
shardcodec.enable()
array = zarr.open_array(zarr.storage.ObjectStore(store_at(int(port), name)), mode="r+", zarr_format=3)
side, done = int(side), []
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(first), int(first) + int(n)):
    y, x = divmod(i, 8)
    try:
        array[y * side : (y + 1) * side, x * side : (x + 1) * side] = i + 1
    except BaseError:
        continue
    done.append(i)
print(json.dumps(done), flush=True)
"""


@pytest.fixture(scope="module", params=SERVICES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with service(request.param) as running:
        yield running


@pytest.fixture
def bucket(server: Server) -> Iterator[Bucket]:
    with bucket_of(server) as bucket:
        yield bucket


def write_together(bucket: Bucket, n_processes: int) -> list[int]:
    """Run the processes; return the numbers of the inner chunks whose write returned."""
    kind = "azure" if isinstance(bucket, AzureContainer) else "s3"
    n = N_CHUNKS // n_processes
    command = [sys.executable, "-c", WRITER, str(TESTS), kind, str(bucket.proxy.port), bucket.name]
    pipe: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [
        subprocess.Popen([*command, str(i * n), str(n), str(SIDE)], **pipe) for i in range(n_processes)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:  # all start at the same time
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        done = [json.loads(writer.communicate(timeout=240)[0]) for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    return [i for some in done for i in some]


class Reader(threading.Thread):
    """Reads the shard until it is stopped, and keeps what it must not see."""

    def __init__(self, store: Any) -> None:
        super().__init__(daemon=True)
        self._array = ours(store, mode="r")
        self._stopped = threading.Event()
        self.n_reads = 0
        self.wrong: list[Any] = []

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.wrong += mixed(self._array[...])
            except shardcodec.ShardError as error:
                self.wrong.append(error)
            self.n_reads += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def mixed(values: Any) -> list[int]:
    """Return the numbers of inner chunks that are neither old nor new as a whole."""
    cells = values.reshape(8, SIDE, 8, SIDE).transpose(0, 2, 1, 3).reshape(N_CHUNKS, -1)
    return [i for i, cell in enumerate(cells) if not np.isin(cell[0], (0, i + 1)) or (cell != cell[0]).any()]


@pytest.mark.parametrize(
    ("n_processes", "is_faulty"),
    [
        (4, True),
        pytest.param(8, True, marks=pytest.mark.nightly),
        pytest.param(8, False, marks=pytest.mark.nightly),
    ],
)
def test_no_update_is_lost(bucket: Bucket, n_processes: int, is_faulty: bool) -> None:
    store = zarr.storage.ObjectStore(bucket.store(direct=True))
    shape = (8 * SIDE, 8 * SIDE)
    array = zarr.create_array(store, shape=shape, shards=shape, chunks=(SIDE, SIDE), dtype="i4")
    array[...] = 0
    reader = Reader(zarr.storage.ObjectStore(bucket.store(direct=True)))
    reader.start()
    faults = []
    if is_faulty:
        kinds = (What.CUT_BEFORE, What.CUT_WITHIN, What.CUT_AFTER, What.REFUSE, What.REFUSE_AFTER)
        faults = [bucket.proxy.add(what, "PUT", r"c/0/0$", times=n_processes) for what in kinds]
        faults.append(bucket.proxy.add(What.CUT_ANSWER, "GET", r"c/0/0$", times=n_processes))
    try:
        done = write_together(bucket, n_processes)
    finally:
        reader.stop()
    assert all(fault.n_done for fault in faults)
    values = zarrs_view(array)[...]
    assert mixed(values) == []
    stored = {i for i in range(N_CHUNKS) if values[SIDE * (i // 8), SIDE * (i % 8)] == i + 1}
    assert stored >= set(done)
    assert is_faulty or len(done) == N_CHUNKS
    assert reader.n_reads > 0
    assert not reader.wrong
