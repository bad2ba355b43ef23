# test_dask.py - convert with the workers of a dask cluster
# SPDX-License-Identifier: MIT
"""Two worker processes write what one process writes. A worker or the scheduler may be killed; a finished shard stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import bytes_of_files, python_environment, quiet
from job_files import N_SHARDS, SHARDS, VALUES, check, files, shards_by_ledger

from shardcodec.cli.app import run
from shardcodec.errors import ConflictError
from shardcodec.tools import convert, status
from shardcodec.tools.convert import run_plan
from shardcodec.tools.job_mark import MARK
from shardcodec.tools.monitor import Incomplete, Monitor, Stopped

dask = pytest.importorskip("dask", reason="dask is not installed")
distributed = pytest.importorskip("distributed", reason="distributed is not installed")
from dask_clusters import cluster_process, two_workers  # noqa: E402 - it needs distributed

from shardcodec.tools.jobs import dask_run, dask_workers  # noqa: E402

METHODS: list[dict[str, Any]] = [{}, {"codecs": ["zstd", "crc32c"]}]

# Run in worker processes: after three groups of shards a process waits, until the test creates a file, or with `ends` until
# its run is stopped. So a test acts on an unfinished job, however slow the machine is: two processes write at most eight of
# the twelve shards.
HELD = """
import logging, os, threading, time
from pathlib import Path
from shardcodec.tools.convert.write_group import GroupWork
from shardcodec.tools.jobs.shard_work import ShardWorker
lock, begun, is_stopped, parent = threading.Lock(), [], threading.Event(), os.getppid()
def held(self, unit):
    with lock:
        begun.append(unit)
    logging.getLogger("distributed.worker").error("the connection of the worker ends")
    while len(begun) > 3 and not Path({opened!r}).exists() and not ({ends} and is_stopped.is_set()):
        time.sleep(0.02)
        if os.getppid() != parent:
            os._exit(1)
    return GroupWork.original(self, unit)
def stop(self):
    is_stopped.set()
    ShardWorker.original(self)
if not hasattr(GroupWork, "original"):  # dask runs the text of a preload twice
    GroupWork.original, GroupWork.run = GroupWork.run, held
    ShardWorker.original, ShardWorker.stop = ShardWorker.stop, stop
"""
DEADLY = """
import os, signal
from shardcodec.tools.convert.write_group import GroupWork
def deadly(self, unit):
    if not any(unit.group):
        os.kill(os.getpid(), signal.SIGKILL)
    return GroupWork.original(self, unit)
if not hasattr(GroupWork, "original"):  # dask runs the text of a preload twice
    GroupWork.original, GroupWork.run = GroupWork.run, deadly
"""
RESTORED = """
from shardcodec.tools.convert.write_group import GroupWork
from shardcodec.tools.jobs.shard_work import ShardWorker
if hasattr(GroupWork, "original"):
    GroupWork.run, ShardWorker.stop = GroupWork.original, ShardWorker.original
    del GroupWork.original, ShardWorker.original
"""

# A lost scheduler is given up at once.
IMPATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"}


def held(opened: Path, *, ends: bool = True) -> str:
    """Return the text that lets workers wait until a file exists; see `HELD`."""
    return HELD.format(opened=str(opened), ends=ends)


def holding(opened: Path) -> dict[str, str]:
    """Return the environment of such workers."""
    return {"DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps([held(opened)])}


@contextmanager
def held_workers(client: Any, opened: Path) -> Iterator[None]:
    """Let the workers wait in the middle of a job, until it is stopped or a file exists; see `HELD`."""
    client.run(exec, held(opened), {})
    try:
        yield
    finally:
        client.run(exec, RESTORED, {}, on_error="ignore")  # a killed worker may still be listed


class At(Monitor):
    """Calls a function once, when some shards are in the ledgers of a job."""

    def __init__(self, job: Path, n: int, act: Callable[[], object]) -> None:
        self._job, self._n, self._act = job, n, act

    def check(self) -> None:
        if (
            self._n
            and len(shards_by_ledger(self._job))
            and sum(map(len, shards_by_ledger(self._job).values())) >= self._n
        ):
            self._n = 0
            self._act()


def stop() -> None:
    raise Stopped


@pytest.mark.slow
@pytest.mark.parametrize("how", METHODS)
def test_workers_store_the_bytes_that_one_process_stores(
    how: dict[str, Any], client: Any, source: Path, new: Path, job: Path, tmp_path: Path
) -> None:
    local = convert(source, tmp_path / "local.zarr", shards=SHARDS, **how)
    report = convert(source, new, shards=SHARDS, dask=client, job=job, **how)
    assert report.is_complete and report.arrays[0].method == local.arrays[0].method
    assert (report.n_written, report.n_moved_chunks) == (N_SHARDS, local.n_moved_chunks)
    assert (report.read_nbytes, report.written_nbytes) == (local.read_nbytes, local.written_nbytes)
    assert bytes_of_files(new) == bytes_of_files(tmp_path / "local.zarr") and not (new / MARK).exists()
    assert status(job).is_complete
    # the main process has a ledger of its own, in which it notes the end
    written = {pid: shards for pid, shards in shards_by_ledger(job).items() if int(pid) != os.getpid()}
    assert set(map(int, written)) <= set(client.run(os.getpid).values())
    assert sum(map(len, written.values())) == N_SHARDS
    again = convert(source, new, shards=SHARDS, dask=client, job=job, resume=True, **how)
    assert again.is_complete and again.n_skipped == N_SHARDS


@pytest.mark.slow
def test_whole_group_and_default_job_beside_the_destination(client: Any, new: Path, tmp_path: Path) -> None:
    with quiet():
        group = zarr.create_group(tmp_path / "g.zarr", attributes={"k": 1})
        for name in ("x[1]", "deep/y"):
            group.create_array(name, shape=(8, 8), chunks=(4, 4), dtype="u1")[...] = VALUES[40:48, 40:48]
        group.create_array("text", shape=(2,), dtype="str")[...] = ["a", "b"]
    assert convert(tmp_path / "g.zarr", new, shards=(4, 4), dask=client).is_complete
    made = zarr.open_group(new, mode="r")
    assert dict(made.attrs) == {"k": 1} and made["text"][...].tolist() == ["a", "b"]
    for name in ("x[1]", "deep/y"):
        assert (made[name][...] == VALUES[40:48, 40:48]).all()
    assert status(f"{new}.job.json").n_finished == 9  # the text, too


@pytest.mark.slow
def test_window_bounds_the_tasks_in_the_scheduler(
    client: Any, source: Path, new: Path, small_batches: None, tmp_path: Path
) -> None:
    """The workers wait until the window is full."""
    window = 2 * dask_run.WINDOW
    seen = []
    end = time.monotonic() + 60

    class Look(Monitor):
        def check(self) -> None:
            seen.append(sum(state.status == "pending" for state in list(client.futures.values())))
            if max(seen) >= window:
                (tmp_path / "opened").touch()
            else:
                assert time.monotonic() < end, seen[-1]

    with held_workers(client, tmp_path / "opened"):
        report = convert(
            source, new, chunks=(2, 2), shards=(8, 4), dask=client, memory=1 << 20, monitor=Look()
        )
    assert report.is_complete and report.n_written == 8 * 12
    assert max(seen) == window


@pytest.mark.slow
def test_kill_of_a_worker_costs_only_its_own_shards(
    client: Any, source: Path, new: Path, job: Path, tmp_path: Path
) -> None:
    killed: list[str] = []

    def kill() -> None:
        pid = next(pid for pid, shards in shards_by_ledger(job).items() if shards)
        os.kill(int(pid), signal.SIGKILL)
        killed.append(pid)
        (tmp_path / "opened").touch()

    with held_workers(client, tmp_path / "opened"):
        report = convert(source, new, shards=SHARDS, dask=client, job=job, monitor=At(job, 3, kill))
    assert report.is_complete and killed
    found = shards_by_ledger(job)
    written = Counter(shard for shards in found.values() for shard in shards)
    assert len(written) == N_SHARDS
    assert {shard for shard, n in written.items() if n > 1} <= set(found[killed[0]])
    convert(source, tmp_path / "local.zarr", shards=SHARDS)
    assert bytes_of_files(new) == bytes_of_files(tmp_path / "local.zarr")


@pytest.mark.nightly
def test_unit_that_ends_its_workers_has_failed_and_the_others_are_written(
    source: Path, new: Path, job: Path
) -> None:
    """All units of its batch had failed."""
    with (
        dask.config.set(
            {"distributed.scheduler.allowed-failures": 0, "distributed.worker.preload": [DEADLY]}
        ),
        two_workers() as client,
    ):
        report = convert(source, new, shards=SHARDS, dask=client, job=job)
    assert not report.is_complete and (report.n_failed, report.n_written) == (1, N_SHARDS - 1)
    assert "ended several workers" in report.failures[0].detail
    assert report.failures[0].shard == "c/0/0"


@pytest.mark.slow
def test_stop_finishes_begun_shards_and_the_job_goes_on(
    client: Any, source: Path, new: Path, job: Path
) -> None:
    with held_workers(client, new / "never"):
        first = convert(source, new, shards=SHARDS, dask=client, job=job, monitor=At(job, 3, stop))
    assert first.is_stopped and not first.is_complete and 3 <= first.n_written < N_SHARDS
    assert first.n_written == status(job).n_finished
    before = files(new)
    second = convert(source, new, shards=SHARDS, dask=client, job=job, resume=True)
    assert (second.n_written, second.n_skipped) == (N_SHARDS - first.n_written, first.n_written)
    assert second.is_complete
    assert {name: files(new)[name] for name in before} == before
    check(new)


def command(*arguments: str, source: Path, new: Path) -> subprocess.Popen[str]:
    """Start the command; workers of its own wait in the middle of the job, until it is stopped."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "shardcodec", "convert", str(source), str(new), *arguments],
        env=python_environment(**holding(new / "never"), **IMPATIENT), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for_shards(job: Path, n: int, process: subprocess.Popen[str]) -> None:
    while sum(map(len, shards_by_ledger(job).values())) < n:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.nightly
def test_sigterm_leads_to_exit_code_4_and_the_job_goes_on(source: Path, new: Path, job: Path) -> None:
    process = command("--shards", "16,16", "--job", str(job), "--dask", "local:2", source=source, new=new)
    wait_for_shards(job, 3, process)
    os.killpg(process.pid, signal.SIGTERM)  # the workers too, as by a terminal or Slurm
    out, err = process.communicate()
    assert process.returncode == 4, err
    # workers write to the same stderr, and a connection may end during a heartbeat
    assert "incomplete" in out and "Traceback" not in err and "distributed" not in err, out + err
    before = files(new)
    assert run(["convert", str(source), str(new), "--shards", "16,16", "--job", str(job), "--resume"]) == 0
    assert {name: files(new)[name] for name in before} == before
    assert len(before) >= 3 and sum(map(len, shards_by_ledger(job).values())) == N_SHARDS
    check(new)


def resumes(source: Path, new: Path, job: Path) -> None:
    """Check that a job of which a part is left goes on, and that no finished shard is written again."""
    before, finished = files(new), status(job).n_finished
    assert 2 <= finished < N_SHARDS and not (new / "zarr.json").exists()
    report = convert(source, new, shards=SHARDS, job=job, resume=True)
    assert report.is_complete and report.n_skipped == finished
    same = [name for name in before if files(new)[name] == before[name]]
    assert len(same) >= finished - 1  # one finished shard has no object
    check(new)


@pytest.mark.slow
def test_lost_scheduler_leaves_a_job_that_goes_on(source: Path, new: Path, job: Path) -> None:
    with (
        cluster_process(1, held(new / "never", ends=False), **IMPATIENT) as (process, address),
        distributed.Client(address, set_as_default=False, timeout=5) as client,
        pytest.raises(Incomplete, match=r"the scheduler at tcp://.* was lost"),
    ):
        convert(source, new, shards=SHARDS, dask=client, job=job, monitor=At(job, 2, process.kill))
    resumes(source, new, job)


@pytest.mark.nightly
def test_lost_scheduler_leads_to_exit_code_4_and_workers_end(
    source: Path, new: Path, job: Path, tmp_path: Path
) -> None:
    with cluster_process(0, **IMPATIENT) as (scheduler, address):
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny",
             "--no-dashboard", "--local-directory", str(tmp_path)],
            env=python_environment(**holding(new / "never"), **IMPATIENT), stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            process = command(
                "--shards", "16,16", "--job", str(job), "--dask", address, source=source, new=new
            )
            wait_for_shards(job, 2, process)
            scheduler.kill()
            _, err = process.communicate()
            assert process.returncode == 4, err
            assert f"the scheduler at {address} was lost" in err
            worker.wait()  # it ends by itself, after its current shards
        finally:
            worker.kill()
            worker.wait()
    resumes(source, new, job)


def test_incomplete_job_has_exit_code_4(
    source: Path, new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*arguments: object, **choices: object) -> None:
        raise Incomplete("the scheduler was lost")

    monkeypatch.setattr(sys.modules[convert.__module__], "chosen_cluster", lost)
    assert run(["convert", str(source), str(new), "--dask", "tcp://127.0.0.1:1"]) == 4
    assert capsys.readouterr().err == "shardcodec: the scheduler was lost\n"


@pytest.mark.slow
def test_damaged_chunk_fails_its_shard_and_the_others_are_written(
    client: Any, source: Path, new: Path, job: Path
) -> None:
    chunk = source / "c/7/5"
    good = chunk.read_bytes()
    chunk.write_bytes(good[:-2])
    report = convert(source, new, shards=SHARDS, codecs=["gzip"], dask=client, job=job)
    assert (report.n_failed, report.n_written, report.is_complete) == (1, N_SHARDS - 1, False)
    assert report.failures[0].shard == str(new / "c/3/2")
    chunk.write_bytes(good)
    assert (
        convert(source, new, shards=SHARDS, codecs=["gzip"], dask=client, job=job, resume=True).n_written == 1
    )
    check(new)


@pytest.mark.slow
def test_source_that_changed_is_refused_by_a_worker(client: Any, source: Path, new: Path, job: Path) -> None:
    with held_workers(client, new / "never"):
        convert(source, new, shards=SHARDS, dask=client, job=job, monitor=At(job, 3, stop))
    os.utime(source / "c/2/0", ns=(0, 0))
    for row in range(8):
        os.utime(source / f"c/{row}/2", ns=(0, 0))
    with pytest.raises(ConflictError, match=r"the source of shard .* has changed since it was converted"):
        convert(source, new, shards=SHARDS, dask=client, job=job, resume=True)
    assert not (new / "zarr.json").exists()


@pytest.mark.slow
def test_workers_must_reach_the_destination_and_have_the_same_version(
    client: Any, source: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(FileNotFoundError, match="all workers must reach the destination under the same path"):
        convert(source, "memory://new.zarr", shards=SHARDS, dask=client, job=job)
    assert not job.exists() and not Path(f"{job}.ledger").exists()  # nothing was written
    monkeypatch.setattr(dask_run, "build_info", lambda: {"version": "0.0.1"})
    with pytest.raises(
        ImportError, match=r"expected version 0\.0\.1 on the worker tcp://.*install the same version"
    ):
        convert(source, new, shards=SHARDS, dask=client)


@pytest.mark.slow
def test_memory_of_workers(client: Any, source: Path, new: Path, job: Path) -> None:
    with pytest.raises(ValueError, match="the limit of the worker tcp://"):
        convert(source, new, dask=client, memory=1 << 60)
    report = convert(source, new, dask=client, dry_run=True)
    limits = [one["memory_limit"] for one in client.scheduler_info()["workers"].values()]
    workers = dask_workers.DaskWorkers(client)
    assert workers.memory == min(8 << 30, int(min(limits) * dask_run.MEMORY_SHARE))
    assert (workers.n_threads, workers.n_slots) == (1, 2)
    assert 0 < report.memory_nbytes <= workers.memory and not new.exists() and not job.exists()


def test_job_ends_only_if_the_ledgers_show_all_shards(
    client: Any, source: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If ledgers were on another disk, the job wrote the metadata although shards were missing."""
    original = run_plan.recorded_shards

    def fewer(found: Any) -> Any:
        done = dict(original(found))
        done.popitem() if done else None
        return done

    with monkeypatch.context() as patch:
        patch.setattr(run_plan, "recorded_shards", fewer)
        with pytest.raises(Incomplete, match=r"expected 12 shards in the ledgers of the workers, got 11"):
            convert(source, new, shards=SHARDS, dask=client, job=job)
    assert not (new / "zarr.json").exists()
    assert convert(source, new, shards=SHARDS, dask=client, job=job, resume=True).is_complete
    check(new)


@pytest.mark.slow
def test_active_client_is_used_on_request_only(client: Any, source: Path, new: Path, tmp_path: Path) -> None:
    """The workers may not reach the paths, and a job leaves a plan file and a ledger."""
    with client.as_current():
        assert convert(source, new, shards=SHARDS, dask=True).is_complete
        assert (tmp_path / "b.zarr.job.json").exists()
        for dask in (None, False):
            assert convert(source, tmp_path / f"{dask}.zarr", shards=SHARDS, dask=dask).is_complete
        assert len(list(tmp_path.glob("*.job.json"))) == 1
        assert client.submit(dask_workers.active_client, pure=False).result() is None
    with pytest.raises(ValueError, match="expected a client that this program uses"):
        convert(source, tmp_path / "e.zarr", shards=SHARDS, dask=True)
    check(new)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"source": VALUES}, TypeError, "source: expected a path or a URL, which the workers of dask can open, got ndarray"),
        ({"destination": zarr.storage.MemoryStore()}, TypeError, "destination: .* got MemoryStore"),
        ({"destination": "s3://bucket/new.zarr"}, ValueError, "job: expected a file for the plan"),
        ({"temp": "t"}, ValueError, "temp: expected no intermediate array with dask"),
        ({"dask": "local:0"}, ValueError, "dask: expected an address .* got 'local:0'"),
        ({"dask": "local"}, ValueError, "dask: expected an address"),
        ({"dask": 3}, TypeError, r"dask: expected an address, 'local:N' or a distributed\.Client, got int"),
    ],
)  # fmt: skip
def test_what_workers_cannot_do_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str, source: Path, new: Path
) -> None:
    given = {"source": source, "destination": new, "dask": "local:2", **arguments}
    with pytest.raises(error, match=message):
        convert(**given)
    assert not new.exists()


def test_missing_package_is_named_with_its_extra(
    source: Path, new: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "shardcodec.tools.jobs.dask_workers")
    monkeypatch.delattr("shardcodec.tools.jobs.dask_workers")
    assert run(["convert", str(source), str(new), "--dask", "local:2"]) == 3
    assert (
        "distributed (extra dask); install it with: pip install 'distributed>=2025.5'"
        in capsys.readouterr().err
    )
    assert convert(source, new, shards=SHARDS).is_complete  # without dask it is not needed
