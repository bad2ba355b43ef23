# test_dask_faults.py - a scheduler that is frozen, and a cluster that grows and shrinks
# SPDX-License-Identifier: MIT
"""A scheduler that answers nothing is given up after some time; the job goes on later."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_files import N_SHARDS, SHARDS, check, shards_by_ledger, source_array

from shardcodec.options import resolve
from shardcodec.tools import convert, verify
from shardcodec.tools.chunk_check import Level
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.jobs.batches import Batches
from shardcodec.tools.jobs.shard_work import ArrayPlace
from shardcodec.tools.monitor import Incomplete, Monitor, Stopped
from shardcodec.tools.verify.verify_shards import VerifyTask

dask = pytest.importorskip("dask", reason="dask is not installed")
distributed = pytest.importorskip("distributed", reason="distributed is not installed")
from dask_clusters import cluster_process, local_workers  # noqa: E402 - it needs distributed

from shardcodec.tools.jobs import dask_run  # noqa: E402
from shardcodec.tools.jobs.dask_workers import DaskWorkers  # noqa: E402

SLOW = """
import time
from shardcodec.tools.convert.write_group import GroupWork
def slowly(self, unit):
    time.sleep(0.3)
    return GroupWork.original(self, unit)
if not hasattr(GroupWork, "original"):
    GroupWork.original, GroupWork.run = GroupWork.run, slowly
"""

pytestmark = pytest.mark.usefixtures("small_batches")


class Freeze(Monitor):
    """Freezes the scheduler when two shards are finished, and lets it go on after some seconds."""

    def __init__(self, process: subprocess.Popen[str], job: Path, seconds: float) -> None:
        self._process, self._job, self._seconds = process, job, seconds
        self.since: float | None = None

    def check(self) -> None:
        if self.since is None and sum(map(len, shards_by_ledger(self._job).values())) >= 2:
            self.since = time.monotonic()
            self._process.send_signal(signal.SIGSTOP)
            threading.Timer(self._seconds, self._process.send_signal, [signal.SIGCONT]).start()


@pytest.mark.nightly
def test_frozen_scheduler_is_given_up_and_the_job_goes_on(
    source: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversion waited for ever, and did not look at Ctrl-C."""
    monkeypatch.setattr(dask_run, "SILENT_SECONDS", 6.0)
    with (
        cluster_process(2, SLOW) as (process, address),
        distributed.Client(address, set_as_default=False) as client,
    ):
        freeze = Freeze(process, job, 30.0)
        with pytest.raises(Incomplete, match="was lost"):
            convert(source, new, shards=SHARDS, dask=client, job=job, monitor=freeze)
        assert freeze.since is not None and time.monotonic() - freeze.since < 30  # it was frozen still
        process.send_signal(signal.SIGCONT)
    report = convert(source, new, shards=SHARDS, job=job, resume=True)
    assert report.is_complete and report.n_skipped >= 2
    check(new)


@pytest.mark.nightly
def test_scheduler_that_is_frozen_for_a_moment_loses_nothing(source: Path, new: Path, job: Path) -> None:
    with cluster_process(2, SLOW) as (process, address):
        report = convert(source, new, shards=SHARDS, dask=address, job=job, monitor=Freeze(process, job, 5.0))
    assert report.is_complete and report.n_written == N_SHARDS
    check(new)


@pytest.mark.nightly
def test_cluster_that_grows_and_shrinks(source: Path, new: Path) -> None:
    with (
        dask.config.set({"distributed.worker.preload": [SLOW]}),
        local_workers(0) as client,
    ):
        client.cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=2)
        report = convert(source, new, shards=(8, 8), dask=client)
        assert report.is_complete and report.n_written == 48
        end = time.monotonic() + 60
        while client.scheduler_info()["workers"] and time.monotonic() < end:
            time.sleep(0.1)
        assert verify(new, level="decode", dask=client) == verify(new, level="decode")
    check(new)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_workers(1, processes=False) as client:
        yield client


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """From the time when the event is set, requests to the scheduler get no answer."""
    is_frozen, is_over = threading.Event(), threading.Event()

    def until(original: Any) -> Any:
        def request(*arguments: Any, **choices: Any) -> Any:
            if is_frozen.is_set():
                is_over.wait()
            return original(*arguments, **choices)

        return request

    monkeypatch.setattr(DaskWorkers, "look", until(DaskWorkers.look))
    for name in ("register_plugin", "unregister_worker_plugin"):
        monkeypatch.setattr(distributed.Client, name, until(getattr(distributed.Client, name)))
    monkeypatch.setattr(dask_run, "LOOK_SECONDS", 0.0)
    yield is_frozen
    is_over.set()


class At(Monitor):
    """Freezes the scheduler when a batch is finished; from then on it has little time to answer. Before, it may be slow."""

    def __init__(self, frozen: threading.Event, patch: pytest.MonkeyPatch, *, stops: bool) -> None:
        self._frozen, self._patch, self._stops = frozen, patch, stops

    def check(self) -> None:
        if self._stops and self._frozen.is_set():
            raise Stopped

    def advance(self, n: int = 1) -> None:
        self._frozen.set()
        self._patch.setattr(dask_run, "SILENT_SECONDS", 0.5)


@pytest.mark.parametrize("stops", [False, True])
def test_requests_without_an_answer_have_a_limit_of_time(
    stops: bool, client: Any, frozen: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_run, "STOP_SECONDS", 0.5)
    source = source_array(tmp_path / "a.zarr")
    done = convert(source, tmp_path / "b.zarr", shards=(8, 8))
    assert done.is_complete
    monkeypatch.setattr(dask_run, "WINDOW", 1)
    with pytest.raises(  # without a limit it waits for ever
        Stopped if stops else OSError, match=None if stops else "the scheduler at .* was lost"
    ):
        verify(tmp_path / "b.zarr", dask=client, monitor=At(frozen, monkeypatch, stops=stops))


def test_command_whose_workers_have_all_ended_gives_up(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dask drops a worker of a local cluster that does not start again within 15 s. Without any the command waited for ever."""
    source = source_array(tmp_path / "a.zarr")
    convert(source, tmp_path / "b.zarr", shards=(8, 8))
    (array,) = find_arrays(tmp_path / "b.zarr")
    workers = DaskWorkers(client, is_own=True)
    monkeypatch.setattr(DaskWorkers, "look", lambda self: [])
    monkeypatch.setattr(dask_run, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(dask_run, "JOIN_SECONDS", 0.0)
    place = ArrayPlace.of(array, str(tmp_path / "b.zarr"), None, None)
    batches: Batches[Any, Any] = Batches(
        iter(()), cost=lambda _: 1, n_shards=lambda _: 1, left=0, failed=lambda *_: None
    )
    task = VerifyTask(Level.INDEX, False)
    with pytest.raises(OSError, match=r"all workers of .* have ended"):
        list(workers.in_order(place, task, batches, resolve(), Monitor()))


def test_scheduler_that_is_frozen_from_the_beginning(
    client: Any, frozen: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_run, "SILENT_SECONDS", 0.5)
    frozen.set()
    with pytest.raises(TimeoutError, match="expected a scheduler that answers"):
        convert(source_array(tmp_path / "a.zarr"), tmp_path / "b.zarr", shards=SHARDS, dask=client)
    assert not (tmp_path / "b.zarr").exists() and os.listdir(tmp_path) == ["a.zarr"]
