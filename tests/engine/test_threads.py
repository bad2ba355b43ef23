# test_threads.py - native objects that 16 threads use at the same time
# SPDX-License-Identifier: MIT
"""The methods of native objects are atomic for other threads, also in a Python without the GIL (`make free-threaded`)."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import WORDS, letters, letters_spec

from shardcodec import _native
from shardcodec.access.compiled_chains import compiled
from shardcodec.storage.process_locks import LockTable

N_THREADS = 16
CHAIN = compiled(letters_spec().chain)

pytestmark = pytest.mark.threads


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """Call a function in all threads and return the results; its exceptions are results too."""
    results: list[Any] = [None] * N_THREADS
    start = threading.Barrier(N_THREADS)

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    return results


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python is not a free-threaded one"
)
def test_extension_leaves_the_gil_disabled() -> None:
    assert not sys._is_gil_enabled()  # type: ignore[attr-defined,unused-ignore]


def test_lock_is_held_by_one_thread() -> None:
    table, counts = LockTable(), [0, 0]

    def count(_: int) -> None:
        for i in range(200):
            with table.hold([f"{i % 2}"]):
                before = counts[i % 2]
                assert table.calm(f"{i % 2}") is None
                counts[i % 2] = before + 1

    assert at_once(count) == [None] * N_THREADS
    assert counts == [N_THREADS * 100] * 2
    assert len(table) == 0
    assert table.n_taken("0") == table.calm("0")  # a lock that is handed over counts once


def test_shard_is_closed_only_while_no_thread_reads_it(tmp_path: Path) -> None:
    """A read beside `close` returns the stored bytes or raises; it never reads a file descriptor that has another file."""
    path = tmp_path / "shard"
    path.write_bytes(letters())
    for _ in range(20):
        shard = _native.OpenShard(CHAIN, str(path))

        def use(number: int, shard: Any = shard) -> Any:
            if number % 8 == 0:
                return shard.close()
            for position in range(4):
                entry = shard.entry(position)
                assert shard.range(*entry) == WORDS[position]
                places = np.empty((1, 2), np.uint64)
                data, _ = shard.fetch(np.array([position], np.uint64), places, max_nbytes=100)
                offset, nbytes = places[0].tolist()
                assert bytes(memoryview(data)[offset : offset + nbytes]) == WORDS[position]
            return None

        for result in at_once(use):
            assert result is None or (type(result) is ValueError and "shard" in str(result)), result


def test_new_file_is_committed_once_and_whole(tmp_path: Path) -> None:
    for _ in range(20):
        path = tmp_path / "new"
        file = _native.NewFile(str(path))
        file.write(b"-" * N_THREADS, 0)

        def use(number: int, file: Any = file) -> Any:
            if number % 4 == 0:
                return file.commit()
            for _ in range(10):
                file.write(b"x", number)
            return number

        results = at_once(use)
        refused = [one for one in results if isinstance(one, Exception)]
        assert all(type(one) is ValueError and "new file" in str(one) for one in refused), refused
        n_commits = sum(one is True for one in results)
        assert n_commits <= 1
        if not n_commits:  # each attempt met a writer
            file.commit()
        content = path.read_bytes()
        assert all(content[number : number + 1] == b"x" for number in results if type(number) is int)
        path.unlink()
