# test_group_ends.py - blocks of `group_writes` that are still open when their process ends
# SPDX-License-Identifier: MIT
"""Buffered writes were lost, with exit status 0. Now they are stored, or an error reports the loss."""

from __future__ import annotations

import asyncio
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ours, zarrs_view
from prepared_python import PreparedPython
from zarr.core.sync import sync

from shardcodec import group_writes
from shardcodec.access import buffer as blocks

WRITTEN = [7, 7, 7, 0, 0, 0, 0, 0]
NOTHING = [0] * 8

START = """
import warnings
warnings.simplefilter("ignore")
import asyncio, gc, os, signal, sys, threading, time
import numpy as np
import zarr
import shardcodec
from shardcodec import group_writes

folder = sys.argv[1]
a = shardcodec.attach(zarr.open_array(folder, mode="r+"), strict=True)

def work():
    with group_writes():
        a[:3] = 7
        yield
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    zarr.create_array(tmp_path / "array", shape=(8,), chunks=(2,), shards=(8,), dtype="i4", fill_value=0)
    return tmp_path / "array"


Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(folder: Path, prepared_python: PreparedPython) -> Run:
    """A function that runs a program with the array in another process, to the end of the interpreter."""
    return lambda code: prepared_python.run(START + textwrap.dedent(code), folder)


def stored(folder: Path) -> list[int]:
    values: list[int] = zarrs_view(ours(folder))[...].tolist()
    return values


STORED = {
    "entered": "group_writes().__enter__(); a[:3] = 7",
    "generator": "kept = work(); next(kept)",
    "dropped generator": "kept = work(); next(kept); del kept",
    "generator in a cycle": "kept = [work()]; next(kept[0]); kept.append(kept); del kept",
    "ends with a status": "group_writes().__enter__(); a[:3] = 7; sys.exit(0)",
    "nested": "kept = work(); next(kept); group_writes().__enter__()",
    "daemon": """
        def enter():
            group_writes().__enter__()
            a[:3] = 7
            ready.set()
            time.sleep(100)

        ready = threading.Event()
        threading.Thread(target=enter, daemon=True).start()
        ready.wait()
        """,
    "thread that ends later": """
        def enter():
            with group_writes():
                a[:2] = 7
                entered.set()
                ended.wait()
                time.sleep(0.1)
                a[2] = 7

        entered, ended = threading.Event(), threading.Event()
        threading.Thread(target=enter).start()
        entered.wait()
        threading._register_atexit(ended.set)
        """,
    "thread that exits": """
        def enter():
            kept.append(work())
            next(kept[0])
            sys.exit(3)

        kept = []
        threading.Thread(target=enter).start()
        """,
    "idle thread of a pool": """
        from concurrent.futures import ThreadPoolExecutor

        def enter():
            group_writes().__enter__()
            a[:3] = 7

        ThreadPoolExecutor(1).submit(enter).result()
        """,
    "threads of a pool": """
        from multiprocessing.pool import ThreadPool

        group_writes().__enter__()
        ThreadPool(3).map(lambda i: a.__setitem__(i, 7), range(3))
        """,
    "coroutine that is never resumed": """
        async def enter():
            async with group_writes():
                a[:3] = 7
                await asyncio.Future()

        loop = asyncio.new_event_loop()
        task = loop.create_task(enter())
        loop.call_later(0.1, loop.stop)
        loop.run_forever()
        del task
        loop.close()
        gc.collect()
        """,
    "handle": """
        group_writes().__enter__()
        spec = shardcodec.ShardSpec.from_metadata(a.metadata.to_dict())
        shard = shardcodec.open_shard(folder, "c/0", spec, mode="r+")
        shard.write_chunks([(0,), (1,)], np.array([[7, 7], [7, 0]], "i4"))
        """,
}


# each case needs a process
QUICK = ("generator", "thread that ends later", "coroutine that is never resumed")


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in STORED]
)
def test_open_block_is_stored_at_exit(run: Run, folder: Path, how: str) -> None:
    done = run(STORED[how])
    assert (done.returncode, stored(folder)) == (0, WRITTEN), done.stderr


@pytest.mark.slow
def test_interrupt_stores_earlier_writes(run: Run, folder: Path) -> None:
    # a shell that runs the tests in the background lets its children ignore the signal
    handler = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    done = run(f"{handler}\nwith group_writes(): a[:3] = 7; signal.raise_signal(signal.SIGINT)")
    assert done.returncode == -2 and "KeyboardInterrupt" in done.stderr
    assert stored(folder) == WRITTEN


def test_failure_at_exit_names_arrays_and_counts(run: Run, folder: Path) -> None:
    """A folder is in the place of the shards."""
    (folder / "c/0").mkdir(parents=True)
    done = run("group_writes().__enter__(); a[:3] = 7")
    expected = "1 shard with writes of an open group_writes block was not stored when the process ended"
    assert done.returncode == 120
    assert f"{expected} (1 of {str(folder)!r})" in done.stderr
    assert "Is a directory" in done.stderr


@pytest.mark.slow
def test_open_block_that_drops_on_errors_is_reported(run: Run, folder: Path) -> None:
    done = run("print('out'); group_writes(flush_on_error=False).__enter__(); a[:3] = 7")
    assert (done.returncode, done.stdout, stored(folder)) == (120, "out\n", NOTHING)
    assert "flush_on_error=False) was not left" in done.stderr


@pytest.mark.slow
def test_block_entered_at_exit_is_reported(run: Run, folder: Path) -> None:
    """When `atexit` calls a function, no thread pool accepts work any more."""
    code = """
        import atexit
        atexit.register(lambda: (group_writes().__enter__(), a.__setitem__(0, 7)))
        """
    done = run(code)
    assert (done.returncode, stored(folder)) == (120, NOTHING)
    assert "was not stored when the process ended" in done.stderr


def test_forked_child_leaves_the_block_to_its_parent(run: Run, folder: Path) -> None:
    code = """
        group_writes().__enter__()
        a[:3] = 7
        child = os.fork()
        if not child:
            sys.exit(4)  # all that an interpreter does at its end
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), os.path.exists(f"{folder}/c/0"))
        """
    done = run(code)
    assert (done.returncode, done.stdout.split()) == (0, ["4", "False"]), done.stderr
    assert stored(folder) == WRITTEN


@pytest.mark.slow
def test_block_of_a_forked_child_is_stored_by_the_child(run: Run, folder: Path) -> None:
    code = """
        group_writes().__enter__()
        child = os.fork()
        if not child:
            group_writes().__enter__()
            a[:3] = 7
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), a[:3].tolist())
        """
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "0 [7, 7, 7]\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_open_block_is_stored_at_the_exit_of_a_worker(run: Run, folder: Path, fails: bool) -> None:
    code = f"""
        import multiprocessing

        def enter():
            if {fails}:
                os.makedirs(f"{{folder}}/c/0")
            group_writes().__enter__()
            a[:3] = 7

        worker = multiprocessing.get_context("fork").Process(target=enter)
        worker.start()
        worker.join()
        sys.exit(worker.exitcode)
        """
    done = run(code)
    assert done.returncode == int(fails), done.stderr
    assert ("was not stored" in done.stderr) if fails else stored(folder) == WRITTEN


# ---- in a process that continues


def test_block_on_zarrs_event_loop_is_refused_at_its_start(folder: Path) -> None:
    """The end of the block would wait for the loop that it blocks. It raised there and lost the buffered writes."""
    array = ours(folder)

    async def work() -> None:
        with pytest.raises(RuntimeError, match="async with"), group_writes():
            raise AssertionError
        async with group_writes():
            await array.async_array.setitem(slice(0, 3), np.full(3, 7, "i4"))

    sync(work())
    assert blocks.active_buffer() is None
    assert stored(folder) == WRITTEN


def test_generator_collected_on_zarrs_event_loop_stores_its_block(folder: Path) -> None:
    array = ours(folder)

    def work() -> Any:
        with group_writes():
            array[:3] = 7
            yield

    kept = [work()]
    next(kept[0])

    async def collect() -> None:
        kept.clear()

    sync(collect())
    for _ in range(500):
        if blocks.active_buffer() is None:
            break
        sync(asyncio.sleep(0.01))
    assert blocks.active_buffer() is None
    assert stored(folder) == WRITTEN


def test_writes_left_by_a_cancelled_end_are_stored_by_the_next_block(folder: Path) -> None:
    """The elements were dropped, and only a TimeoutError was raised."""
    array = ours(folder)

    async def work() -> None:
        block = group_writes()
        await block.__aenter__()
        array[:3] = 7
        task = asyncio.ensure_future(block.__aexit__(None, None, None))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())
    assert array[:3].tolist() == [7, 7, 7]
    with pytest.raises(RuntimeError, match="an interrupted block"), group_writes(flush_on_error=False):
        raise AssertionError
    with group_writes():
        pass
    assert blocks.active_buffer() is None
    assert stored(folder) == WRITTEN


def test_closed_coroutine_stores_its_block(folder: Path) -> None:
    """Its end waited for the flush, so `close` raised RuntimeError, and the writes stayed in memory until the process ended."""
    array = ours(folder)

    async def enter(future: asyncio.Future[None]) -> None:
        async with group_writes():
            await future

    async def work() -> None:
        coroutine = enter(asyncio.get_running_loop().create_future())
        coroutine.send(None)
        await array.async_array.setitem(slice(0, 3), np.full(3, 7, "i4"))
        coroutine.close()
        while blocks.active_buffer() is not None:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(work(), 30))
    assert stored(folder) == WRITTEN
