# test_shard_threads.py - several shards at the same time
# SPDX-License-Identifier: MIT
"""Threads change neither results nor their order; a stop or an error finishes what was begun, and begins nothing else."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import KINDS_OF_STORE, create, files_below, store_of
from monitors import StopAfter
from resident import run_measuring
from tool_sources import flip, get, put
from zarr.codecs import Crc32cCodec, GzipCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import shardcodec
from shardcodec import tools
from shardcodec.cli.app import run
from shardcodec.tools import shard_threads as threads_module
from shardcodec.tools.monitor import Monitor, Stopped
from shardcodec.tools.shard_threads import in_order

MIB = 1 << 20
verify_module = sys.modules["shardcodec.tools.verify.verify"]  # `tools.verify` is the function


class StopAtCheck(Monitor):
    """Stops after some checks."""

    def __init__(self, n: int) -> None:
        self.left = n

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_results_are_in_the_order_of_the_items(n_threads: int) -> None:
    turns = threading.Semaphore(0)

    def work(number: int) -> int:
        if number == 0 and n_threads > 1:
            assert turns.acquire(timeout=10)  # others are finished before
        turns.release()
        return number * number

    assert list(in_order(range(50), work, n_threads, Monitor())) == [i * i for i in range(50)]
    assert list(in_order((), work, n_threads, Monitor())) == []


def test_several_items_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(3)
    assert list(in_order(range(6), lambda _: together.wait(10) >= 0, 3, Monitor())) == [True] * 6


def test_short_work_is_done_without_a_change_of_threads_until_it_is_long() -> None:
    here = threading.get_ident()

    def work(number: int) -> bool:
        if number >= 40:
            time.sleep(0.002)
        return threading.get_ident() == here

    found = list(in_order(range(100), work, 3, Monitor(), is_short=True))
    n_here = found.index(False)
    assert 40 < n_here < 60 and not any(found[n_here:])
    assert all(in_order(range(100), work, 1, Monitor()))
    assert not any(in_order(range(40), work, 3, Monitor()))


@pytest.mark.parametrize(
    ("codecs", "level", "uses_threads"),
    [
        ([Crc32cCodec()], "checksum", True),
        ([Crc32cCodec()], "index", False),
        ([GzipCodec(level=1)], "checksum", True),
        (None, "checksum", False),  # nothing is read
        (None, "decode", True),
    ],
)
def test_large_chunks_without_shards_are_verified_in_threads(
    codecs: Any, level: Any, uses_threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All chunks of up to 1 MiB were read one after the other, because none of them took half a millisecond."""
    values = np.random.default_rng(0).integers(0, 256, (16, 1 << 19), dtype="u1")
    array = zarr.create_array(
        tmp_path / "a", shape=values.shape, chunks=(1, 1 << 19), dtype="u1", compressors=codecs
    )
    array[...] = values
    idents = set()
    monkeypatch.setattr(threads_module, "_SHORT_SECONDS", 10.0)
    original = verify_module.ShardVerifier._look_once

    def look(self: Any, shard: Any) -> Any:
        idents.add(threading.get_ident())
        return original(self, shard)

    monkeypatch.setattr(verify_module.ShardVerifier, "_look_once", look)
    assert not tools.verify(tmp_path / "a", level=level, threads=2).n_findings
    assert bool(idents - {threading.get_ident()}) == uses_threads


@pytest.mark.parametrize("n_threads", [1, 3])
def test_stop_finishes_what_was_begun_and_yields_it(n_threads: int) -> None:
    begun, ended = [], []

    def work(number: int) -> int:
        begun.append(number)
        ended.append(number)
        return number

    found: list[int] = []
    with pytest.raises(Stopped):
        found.extend(in_order(range(100), work, n_threads, StopAtCheck(9)))
    assert found == sorted(begun) == sorted(ended) == list(range(len(found))) and len(found) < 20


@pytest.mark.parametrize("n_threads", [1, 3])
def test_first_error_is_raised_and_later_items_that_were_begun_are_yielded(n_threads: int) -> None:
    together = threading.Barrier(n_threads)

    def work(number: int) -> int:
        if number < 6:
            together.wait(10)
        if number in (3, 4):
            raise OSError(f"item {number}")
        return number

    found: list[int] = []
    with pytest.raises(OSError, match="item 3"):
        found.extend(in_order(range(100), work, n_threads, Monitor()))
    # of three threads, the one that has item 5 began it together with the others
    assert found[:3] == [0, 1, 2] and found[3:] == ([] if n_threads == 1 else sorted(found[3:]))
    assert n_threads == 1 or 5 in found
    assert len(found) < 20


def test_items_that_wait_for_a_thread_are_not_begun_after_a_stop() -> None:
    """Two more shards were begun while the first one, whose result comes first, was finished."""
    stopped, begun = threading.Event(), []

    class Stop(Monitor):
        def check(self) -> None:
            if stopped.is_set():
                raise Stopped

    def work(number: int) -> int:
        begun.append(number)
        if number == 0:
            assert stopped.wait(60)
            time.sleep(0.2)
        elif number == 1:
            stopped.set()
        return number

    with pytest.raises(Stopped):
        list(in_order(range(100), work, 2, Stop()))
    assert sorted(begun) == [0, 1]


def test_closing_the_results_begins_nothing_else() -> None:
    begun = []
    results = in_order(range(100), begun.append, 2, Monitor())
    next(results)
    assert isinstance(results, Iterator)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) < 20


def damaged(store: Any) -> list[str]:
    """Make an array of 16 shards with checksums: some have dead bytes, some are damaged; return the keys."""
    content = np.arange(32 * 48, dtype=np.int32).reshape(32, 48)
    array = create(store, shape=(32, 48), compressors=[zarr.codecs.Crc32cCodec()])
    array[...] = content + 1
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    keys = [f"c/{i}/{j}" for i in range(4) for j in range(4)]
    for key in keys[::3]:
        with shardcodec.open_shard(store, key, spec, mode="r+", compact=False) as shard:
            shard.erase([(1, 1)])
    for key in keys[1::4]:
        flip(store, key)
    put(store, keys[2], get(store, keys[2])[:-7])
    return keys


def contents(store: Any, keys: list[str]) -> dict[str, bytes | None]:
    found = {key: sync(store.get(key, default_buffer_prototype())) for key in keys}
    return {key: None if one is None else bytes(one.to_bytes()) for key, one in found.items()}


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
@pytest.mark.parametrize("how", ["compact", "order", "compact to", "repair", "repair to"])
def test_threads_change_neither_bytes_nor_report(kind: str, how: str, tmp_path: Path) -> None:
    results = []
    for threads in (1, 4):
        folder = tmp_path / str(threads)
        store, other = store_of(kind, folder / "a.zarr"), store_of(kind, folder / "b.zarr")
        keys = damaged(store)
        more: dict[str, Any] = {"to": other} if how.endswith("to") else {}
        if how.startswith("repair"):
            more = more or {"backup": folder / "old"}
            report: Any = tools.repair(store, threads=threads, **more)
            assert report.n_damaged == 5
        else:
            order = "lexicographic" if how == "order" else None
            report = tools.compact(store, min_dead=0, order=order, threads=threads, **more)
            assert report.n_packed >= 2 and report.n_failed
        told = json.dumps(report.to_json()).replace(str(folder), "FOLDER")
        told = told.replace(str(store), "STORE").replace(str(other), "OTHER")
        backups = {name: (folder / "old" / name).read_bytes() for name in files_below(folder / "old")}
        results.append((told, contents(store, keys), contents(other, [*keys, "zarr.json"]), backups))
    assert results[0] == results[1]


def test_threads_repair_from_a_copy_in_any_layout(tmp_path: Path) -> None:
    results = []
    for threads in (1, 4):
        folder = tmp_path / str(threads)
        keys = damaged(zarr.storage.LocalStore(folder / "a.zarr"))
        original = zarr.create_array(folder / "copy.zarr", shape=(32, 48), chunks=(5, 7), dtype=np.int32)
        original[...] = np.arange(32 * 48, dtype=np.int32).reshape(32, 48) + 1
        report = tools.repair(
            folder / "a.zarr", to=folder / "b.zarr", copy=folder / "copy.zarr", threads=threads
        )
        assert (report.n_damaged, report.n_lost_chunks) == (5, 0)
        assert tools.verify(folder / "b.zarr", level="decode").n_findings == 0
        results.append([(folder / "b.zarr" / key).read_bytes() for key in keys])
    assert results[0] == results[1]


@pytest.mark.parametrize("tool", ["compact", "repair"])
def test_stopped_tool_reports_what_it_changed(tool: str, tmp_path: Path) -> None:
    store = zarr.storage.LocalStore(tmp_path / "a.zarr")
    keys = damaged(store)
    for key in set(keys) - set(keys[1::4]):
        flip(store, key)
    before, listed = contents(store, keys), []
    how: dict[str, Any] = {"monitor": StopAfter(3), "on_shard": listed.append, "threads": 3}
    how |= {"order": "lexicographic"} if tool == "compact" else {"backup": tmp_path / "old"}
    with pytest.raises(Stopped):
        getattr(tools, tool)(store, **how)
    after = contents(store, keys)
    changed = {key for key in keys if before[key] != after[key]}
    told = {
        str(Path(one.shard).relative_to(tmp_path / "a.zarr"))
        for one in listed
        if one.action.value in ("packed", "repaired")
    }
    assert changed == told and 0 < len(changed) < len(keys) - 1


def test_command_takes_threads(tmp_path: Path) -> None:
    damaged(zarr.storage.LocalStore(tmp_path / "a.zarr"))
    arguments = [str(tmp_path / "a.zarr"), "--threads", "3", "--dry-run", "--json"]
    assert run(["compact", *arguments]) == 1
    assert run(["repair", *arguments]) == 1
    assert run(["compact", str(tmp_path / "a.zarr"), "--threads", "0"]) == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the resident memory is read from /proc")
def test_resident_memory_of_several_threads_stays_in_the_budget(tmp_path: Path) -> None:
    """Six shards of 16 MiB are verified, repaired and packed by four threads with 24 MiB."""
    for n, name in ((1, "small"), (4, "large")):
        array = create(
            tmp_path / f"{name}.zarr",
            shape=(24, n * MIB),
            shards=(4, n * MIB),
            chunks=(1, MIB),
            dtype="u1",
            fill_value=0,
            compressors=[zarr.codecs.Crc32cCodec()],
        )
        array[...] = np.broadcast_to(np.arange(1, 25, dtype="u1")[:, None], array.shape)
        shutil.copytree(tmp_path / f"{name}.zarr", tmp_path / f"{name}-copy.zarr")
        for i in range(6):
            with (tmp_path / f"{name}.zarr/c/{i}/0").open("r+b") as file:
                file.seek(2 * MIB)
                file.write(b"\xff")
    results = run_measuring(
        """
        from shardcodec import tools

        folder, how = Path(os.environ["FOLDER"]), {"memory": 24 << 20, "threads": 4}

        def runs(name):
            array, to = folder / f"{name}.zarr", folder / f"{name}-new.zarr"
            yield lambda: tools.verify(array, level="decode", **how).n_findings
            yield lambda: tools.repair(array, to=to, copy=folder / f"{name}-copy.zarr", **how).n_restored
            yield lambda: tools.repair(array, backup=folder / f"{name}-old", **how).n_damaged
            yield lambda: tools.compact(to, order="lexicographic", **how).n_packed

        for one in runs("small"):
            one()
        print(json.dumps([peak_of(one) for one in runs("large")]))
        """,
        FOLDER=str(tmp_path),
    )
    assert [n for n, _ in results] == [6, 6, 6, 6]
    assert all(nbytes <= 24 * MIB for _, nbytes in results), results
