# test_interrupt.py - Ctrl-C, cancelled tasks, and the state that they leave
# SPDX-License-Identifier: MIT
"""A long call ends soon after SIGINT, its threads stop, and no file is torn.

Each test starts a child with `WHOLE_SECONDS` of work: reads of many hard links of one shard, or slow compression.
The test compares the time until the child stops with that. Times are processor time, which does not depend on the
load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, files_below, ours

import shardcodec
from shardcodec import native
from shardcodec.native import listen_to
from shardcodec.storage.event_loop import in_thread

pytestmark = pytest.mark.threads

WHOLE_SECONDS = 6.0
SOON_SECONDS = WHOLE_SECONDS / 5
HUNG_SECONDS = 120.0

PREAMBLE = """
import json, os, signal, sys, time
import numpy as np
import zarr
import shardcodec

folder, whole_seconds = sys.argv[1], float(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background

def n_times(work):
    "How often work fits into the time; one of them is done to know."
    work()
    begin = time.process_time()
    work()
    return int(whole_seconds / max(time.process_time() - begin, 1e-4)) + 1

def interrupted(work, **more):
    fds = len(os.listdir("/proc/self/fd"))
    def more_fds():
        "A thread of the plan that gets no processor closes its files late; a leak stays."
        end = time.monotonic() + 10
        while len(os.listdir("/proc/self/fd")) > fds and time.monotonic() < end:
            time.sleep(0.05)
        return len(os.listdir("/proc/self/fd")) - fds
    print("running", flush=True)
    try:
        work()
    except KeyboardInterrupt:
        at = time.process_time()
        busy = 1.0
        while busy > 0.05 and time.process_time() < at + whole_seconds / 5:
            begin = time.process_time()
            time.sleep(0.2)
            busy = time.process_time() - begin
        print(json.dumps({"at": at, "busy": busy,
                          "fds": more_fds(), **more}), flush=True)
        return
    print("not interrupted", flush=True)

def create(path, n, level):
    return zarr.create_array(path, shape=(n * 512, 512), shards=(512, 512), chunks=(64, 64), dtype="u1",
                             compressors=zarr.codecs.GzipCodec(level=level), fill_value=0, overwrite=True)

values = np.random.default_rng(0).integers(0, 20, (512, 512)).astype("u1")
"""


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupt(tmp_path: Path, code: str, *, after: float = 0.4) -> tuple[float, dict[str, Any]]:
    """Run the code in a child and send SIGINT some time after its start. Return the time that it took to stop, and
    its report.
    """
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    program = tmp_path / "child.py"
    program.write_text(PREAMBLE + textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(program), str(tmp_path), str(WHOLE_SECONDS)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        begin = processor_seconds(child.pid)
        while (sent := processor_seconds(child.pid)) < begin + after:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        said = child.stdout.readline()
        try:
            status = child.wait(HUNG_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    assert status == 0
    told = json.loads(said)
    return told["at"] - sent, told


def assert_stopped(latency: float, told: dict[str, Any]) -> None:
    print(f"stopped after {1000 * latency:.0f} ms more of work")
    assert latency < SOON_SECONDS
    assert told["busy"] <= 0.05, "threads are still at work"
    assert told["fds"] <= 0


@pytest.mark.parametrize("threads", [1, 2])
def test_interrupt_stops_a_native_read(tmp_path: Path, threads: int) -> None:
    code = f"""
    from shardcodec.access.regions import whole
    from shardcodec.access.compiled_chains import compiled
    from shardcodec.native import load

    spec = shardcodec.ShardSpec((512, 512), (64, 64), "u1", 0, [{{"name": "bytes"}}, {{"name": "gzip", "configuration": {{"level": 1}}}}])
    blob, chain, out = shardcodec.encode(values, spec), compiled(spec.chain), np.empty((512, 512), "u1")
    read = lambda n: load().read([(chain, blob, whole((512, 512)))] * n, out, (0, 1), n_threads={threads})
    n = n_times(lambda: read(4)) * 4
    interrupted(lambda: read(n))
    """
    assert_stopped(*interrupt(tmp_path, code))


READ = """
probe = create(folder + "/a", 4, 1)
shardcodec.enable(index_cache=0)
probe[...] = np.tile(values, (4, 1))
# at least 64 MiB: less is read on zarr's loop itself, which a sanitizer on a slow machine makes a matter of seconds
n = max(256, 4 * n_times(lambda: zarr.open_array(folder + "/a")[:, ::64]))
for i in range(4, n):
    os.link(f"{folder}/a/c/0/0", f"{folder}/a/c/{i}/0") if os.path.isdir(f"{folder}/a/c/{i}") else (
        os.mkdir(f"{folder}/a/c/{i}"), os.link(f"{folder}/a/c/0/0", f"{folder}/a/c/{i}/0"))
array = zarr.open_array(folder + "/a", mode="r+")
array.resize((n * 512, 512))
interrupted(lambda: array[:, ::64])
"""


def test_interrupt_stops_a_read_through_zarr(tmp_path: Path) -> None:
    """zarr does not cancel the task of an interrupted call; the task would also delay the exit of the process."""
    assert_stopped(*interrupt(tmp_path, READ))


def test_interrupt_stops_a_write_through_zarr(tmp_path: Path) -> None:
    """Each shard is old or new, and no temporary file is left."""
    code = """
    shardcodec.enable(threads=2)
    probe = create(folder + "/probe", 2, 9)
    n = 2 * n_times(lambda: probe.__setitem__(..., np.tile(values, (2, 1))))
    array = create(folder + "/a", n, 9)
    array[:8 * 512] = 7
    everything = np.tile(values, (n, 1))
    interrupted(lambda: array.__setitem__(..., everything))
    """
    latency, told = interrupt(tmp_path, code)
    assert_stopped(latency, told)
    array = ours(tmp_path / "a")
    values = np.random.default_rng(0).integers(0, 20, (512, 512)).astype("u1")
    kinds = [array[i * 512 : (i + 1) * 512] for i in range(8)]
    assert all((kind == values).all() or (kind == 7).all() for kind in kinds)
    assert array.nchunks_initialized < array.shape[0] // 512 * 64
    litter = [name for name in files_below(tmp_path / "a") if "shardcodec" in name]
    assert litter == []


@pytest.mark.slow
def test_interrupt_stops_a_write_of_one_shard_in_pieces(tmp_path: Path) -> None:
    """Many threads take turns, that of the caller among them. The shard stays as it was."""
    code = """
    def shard(path, n):
        return zarr.create_array(path, shape=(n * 512, 512), shards=(n * 512, 512), chunks=(64, 64), dtype="u1",
                                 compressors=zarr.codecs.GzipCodec(level=9), fill_value=0)

    os.environ["SHARDCODEC_IO_LATENCY"] = "0.01"
    shardcodec.enable(threads=2)
    probe = shard(folder + "/probe", 2)
    n = 2 * n_times(lambda: probe.__setitem__(..., np.tile(values, (2, 1))))
    array = shard(folder + "/a", n)
    array[...] = 7
    everything = np.tile(values, (n, 1))
    interrupted(lambda: array.__setitem__(..., everything))
    """
    assert_stopped(*interrupt(tmp_path, code))
    assert np.unique(ours(tmp_path / "a")[...]).tolist() == [7]
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]


def test_cancelled_task_stops_its_plan(tmp_path: Path) -> None:
    """The loop continues at once, and the plan's thread has ended when CancelledError is raised."""
    spec = shardcodec.ShardSpec((512, 512), (64, 64), "u1", 0, [{"name": "bytes"}, {"name": "gzip"}])
    from shardcodec.access.compiled_chains import compiled
    from shardcodec.access.regions import whole
    from shardcodec.native import current

    blob, chain = shardcodec.encode(np.ones((512, 512), "u1"), spec), compiled(spec.chain)
    out = np.empty((512, 512), "u1")
    ended: list[str] = []
    begun = threading.Event()

    def read() -> None:
        begun.set()
        plan = [(chain, blob, whole((512, 512)))] * 200_000
        try:
            native.load().read(plan, out, (0, 1), cancel=current())
        except native.load().Cancelled:
            ended.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.ensure_future(in_thread(read))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]

    asyncio.run(main())


def test_cancelled_write_leaves_the_old_objects(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[...] = 1
    cancel = native.load().Cancel()
    cancel.stop()
    with listen_to(cancel), pytest.raises(BaseException) as caught:  # called without asyncio
        array[:8, :12] = 2
    assert type(caught.value).__name__ in ("Cancelled", "CancelledError")
    assert np.unique(ours(tmp_path)[...]).tolist() == [1]
    assert [name for name in files_below(tmp_path) if "shardcodec" in name] == []


def test_end_of_a_call_does_not_stop_other_calls(tmp_path: Path) -> None:
    """The end of a short call in the main thread does not stop the long read of another thread."""
    array = create(tmp_path, shape=(2048, 2048), shards=(512, 512), chunks=(32, 32), dtype="u1", fill_value=0)
    array[...] = np.random.default_rng(0).integers(0, 9, array.shape).astype("u1")
    seen: list[bool] = []

    def reader() -> None:
        for _ in range(5):
            seen.append(bool(array[...].any()))

    thread = threading.Thread(target=reader)
    thread.start()
    while thread.is_alive():
        assert array[0:1200, 0:1200].shape == (1200, 1200)
    thread.join()
    assert seen == [True] * 5


ALARMS = """
import asyncio, json, random, signal, sys, threading, time
import numpy as np
import shardcodec
from shardcodec import native
from shardcodec.storage import process_locks

ENOUGH = 30  # interrupts, however slow the machine is
patience = float(sys.argv[2])
folder = sys.argv[1]
sys.unraisablehook = lambda unraisable: None  # a handler may also raise in a finalizer
armed = False

class Alarm(Exception):
    pass

def raise_alarm(*_):
    if armed:
        raise Alarm

def usual_seconds(work):
    begin = time.perf_counter()
    for _ in range(10):
        work()
    return (time.perf_counter() - begin) / 10

def interrupted(work, look, seconds=0.5):
    "Interrupt work at random; tell how often, and what `look` saw then that should not be."
    global armed
    work()
    signal.signal(signal.SIGALRM, raise_alarm)
    usual, n, seen = usual_seconds(work), 0, set()
    end = time.monotonic() + seconds
    while time.monotonic() < end or (n < ENOUGH and time.monotonic() < end + patience):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.uniform(0, 2 * usual))
            work()
            work()
            armed = False
        except Alarm:
            armed = False
            n += 1
            seen.update(look())
        armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"interrupts": n, "seen": sorted(seen)}), flush=True)

def locks_left():
    return [f"{len(process_locks.table())} locks"] if len(process_locks.table()) or process_locks.table().holds("a") else []
"""


def alarms(tmp_path: Path, code: str) -> dict[str, Any]:
    """Run the code in a child with a timer whose handler raises. Return the child's report."""
    program = tmp_path / "child.py"
    program.write_text(ALARMS + textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # under ThreadSanitizer some attempts take ten seconds
    patience = 600.0 if os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread" else 60.0
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(patience)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        timeout=HUNG_SECONDS + patience,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["interrupts"] > 20
    return told


def test_raising_handler_leaves_no_lock(tmp_path: Path) -> None:
    """The lock was taken and released in Python code: one interrupt in five left a shard locked forever."""
    code = """
    def work():
        with process_locks.table().hold(["a", "b"]):
            pass

    interrupted(work, locks_left)
    """
    assert alarms(tmp_path, code)["seen"] == []


def test_raising_handler_in_a_write_leaves_no_lock(tmp_path: Path) -> None:
    """The exception releases the lock of the file; the lock of this process is free while the exception is handled."""
    code = """
    spec = shardcodec.ShardSpec((64, 64), (32, 32), "u1", 0)
    shard, chunk = shardcodec.open_shard(folder + "/shard", None, spec, mode="r+"), np.ones((32, 32), "u1")
    work = lambda: shard.write_chunks([(0, 1)], [chunk])
    interrupted(work, locks_left)
    assert native.load().file_locks_held() == 0
    work()
    """
    assert alarms(tmp_path, code)["seen"] == []


def test_raising_handler_loses_no_grant(tmp_path: Path) -> None:
    """A coroutine waits for a lock, and the thread that releases it is interrupted. The coroutine still gets the
    lock.
    """
    code = """
    table, served = process_locks.table(), [0]

    async def others():
        while True:
            async with table.hold_async(["a"]):
                served[0] += 1
                await asyncio.sleep(0)

    def work():
        with table.hold(["a"]):
            end = time.monotonic() + 0.01
            while not table.n_waiting("a") and time.monotonic() < end:
                pass

    def check_progress():
        before, end = served[0], time.monotonic() + 10
        while served[0] == before and time.monotonic() < end:
            time.sleep(0.0001)
        return ["the coroutine still waits for the lock"] if served[0] == before else []

    threading.Thread(target=asyncio.run, args=(others(),), daemon=True).start()
    interrupted(work, check_progress)
    """
    assert alarms(tmp_path, code)["seen"] == []
