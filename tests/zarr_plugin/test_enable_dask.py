# test_enable_dask.py - the workers of dask use shardcodec, however they were started
# SPDX-License-Identifier: MIT
"""`enable()` before a cluster starts, and `enable(client=client)` for one that runs, whose workers may change."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec

pytest.importorskip("distributed", reason="distributed is not installed")
import dask
import dask.array as da
from dask_clusters import fill, hide, local_workers, make_older, used

pytestmark = pytest.mark.slow

EDGE = 64


OURS = ("ShardCodecPipeline", 1)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two workers that were started without `enable`."""
    with local_workers(2) as client:
        yield client


def in_workers(client: Any) -> set[tuple[str, int | None]]:
    return set(client.run(used).values())


def kill(client: Any, address: str) -> None:
    """Kill a worker, and wait until its nanny has started another one."""
    pids = client.run(os.getpid)
    before = set(pids.values())
    os.kill(pids[address], signal.SIGKILL)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        time.sleep(0.2)
        with suppress(OSError):  # the lost worker may still be in the list
            after = set(client.run(os.getpid).values())
            if after - before and len(after) == len(before):
                return
    raise TimeoutError("no worker has started again")


def test_workers_that_run_join_and_start_again_use_it_until_the_block_ends(client: Any) -> None:
    (before,) = in_workers(client)
    assert before[0] != "ShardCodecPipeline"
    # without children=False, the workers that start meanwhile would have it from this process
    with shardcodec.enable(client=client, threads=1, children=False):
        assert used() == OURS
        assert in_workers(client) == {OURS}
        client.cluster.scale(3)
        client.wait_for_workers(3, timeout=120)
        assert in_workers(client) == {OURS} and len(client.run(used)) == 3
        kill(client, next(iter(client.scheduler_info()["workers"])))
        assert in_workers(client) == {OURS}
    assert in_workers(client) == {before}


def test_disable_undoes_it_in_the_workers(client: Any) -> None:
    shardcodec.enable(client=client, threads=2)
    shardcodec.enable(client=client, threads=1)
    assert in_workers(client) == {OURS}
    shardcodec.disable()
    assert OURS not in in_workers(client)
    shardcodec.disable()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (hide, "cannot import it"),
        pytest.param(make_older, r"got 0\.0\.1; install the same", marks=pytest.mark.nightly),
    ],
)
def test_worker_without_the_same_version_is_an_error_and_changes_nothing(
    client: Any, change: Callable[[], None], message: str
) -> None:
    """Else its tasks would lose elements without a word."""
    first = next(iter(client.scheduler_info()["workers"]))
    client.run(change, workers=[first])
    with pytest.raises(ImportError, match=f"dask: expected shardcodec .* on the worker .*{message}"):
        shardcodec.enable(client=client)
    assert used()[0] != "ShardCodecPipeline"
    kill(client, first)  # the new one would not start, if the plug-in were still there
    assert "ShardCodecPipeline" not in {pipeline for pipeline, _ in in_workers(client)}


def test_client_that_has_been_closed_does_no_harm() -> None:
    with local_workers(1, processes=False) as client:
        call = shardcodec.enable(client=client)
    call.__exit__(None, None, None)
    shardcodec.disable()


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match=r"client: expected a distributed\.Client, got str"):
        shardcodec.enable(client="tcp://127.0.0.1:8786")
    assert used()[0] != "ShardCodecPipeline"


# ---- dask's own ways to write, with many tasks for one shard


def written(folder: Path, way: str) -> int:
    """Let dask write one shard in 64 tasks, and return how many elements are lost."""
    tiles = da.arange(EDGE * EDGE, dtype="int32").reshape((EDGE, EDGE)).rechunk((8, 8)) + 1
    path = str(folder / way)
    array = zarr.create_array(path, shape=(EDGE, EDGE), shards=(EDGE, EDGE), chunks=(8, 8), dtype="int32")
    if way == "to_zarr":
        tiles.to_zarr(array)
    elif way == "store":
        da.store(tiles, array, lock=False)
    else:
        tiles.map_blocks(fill, path, chunks=(0, 0), dtype="int32").compute()
    expected = np.arange(1, EDGE * EDGE + 1).reshape(EDGE, EDGE)
    return int(np.count_nonzero(zarr.open_array(path, mode="r")[...] != expected))


WAYS = ("to_zarr", "store", "map_blocks")


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.nightly)])
def test_schedulers_of_dask_lose_no_element(tmp_path: Path, scheduler: str) -> None:
    with shardcodec.enable(), dask.config.set(scheduler=scheduler, num_workers=4):
        assert {way: written(tmp_path, way) for way in WAYS} == dict.fromkeys(WAYS, 0)


@pytest.mark.parametrize("is_started", ["before", pytest.param("after", marks=pytest.mark.nightly)])
def test_cluster_loses_no_element(client: Any, tmp_path: Path, is_started: str) -> None:
    if is_started == "before":
        with shardcodec.enable(client=client), client.as_current():
            assert {way: written(tmp_path, way) for way in WAYS} == dict.fromkeys(WAYS, 0)
    else:
        with shardcodec.enable(), local_workers(3) as client, client.as_current():
            assert {way: written(tmp_path, way) for way in WAYS} == dict.fromkeys(WAYS, 0)
