# test_dask_shards.py - verify, inspect and compact with the workers of a dask cluster
# SPDX-License-Identifier: MIT
"""Two worker processes report what one process reports, in the same order. A worker may be killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bits, bytes_of_files, quiet

import shardcodec
from shardcodec import options
from shardcodec.cli.app import run
from shardcodec.errors import ConflictError
from shardcodec.options import resolve
from shardcodec.storage import files
from shardcodec.tools import compact, inspect, repair, verify
from shardcodec.tools.chunk_check import Level
from shardcodec.tools.compact import CompactTask
from shardcodec.tools.findings import FindingKind
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.jobs.shard_work import ArrayPlace, ShardWorker, unseen
from shardcodec.tools.monitor import Monitor, Stopped
from shardcodec.tools.verify.verify import VerifyTask

dask = pytest.importorskip("dask", reason="dask is not installed")
pytest.importorskip("distributed", reason="distributed is not installed")
from dask_clusters import two_workers  # noqa: E402 - it needs distributed

VALUES = np.random.default_rng(5).integers(0, 50, (64, 96)).astype("int32")
N_SHARDS = 24

# Run in worker processes: each shard takes longer, or one of them ends its worker.
SLOW = """
import time
from shardcodec.tools.{module} import {name} as Work
def slowly(self, shard, *more):
    time.sleep(0.1)
    return Work.original(self, shard, *more)
Work.original, Work.{method} = Work.{method}, slowly
"""
RESTORED = """
from shardcodec.tools.{module} import {name} as Work
if hasattr(Work, "original"):
    Work.{method} = Work.original
    del Work.original
"""
DEADLY = """
import os, signal
from shardcodec.tools.verify.verify import ShardVerifier as Work
def deadly(self, shard):
    if shard.relative == "c/1/2":
        os.kill(os.getpid(), signal.SIGKILL)
    return Work.original(self, shard)
if not hasattr(Work, "original"):  # dask runs the text of a preload twice
    Work.original, Work._look = Work._look, deadly
"""


@pytest.fixture
def settled_times(client: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the change time, which no test can set, for an old one, here and in the workers."""
    change = "import shardcodec.storage.files as files; files.GRAIN_NS = {}"
    original = files.GRAIN_NS
    monkeypatch.setattr(files, "GRAIN_NS", 0)
    client.run(exec, change.format(0), {})
    yield
    client.run(exec, change.format(original), {})


def make(path: Path) -> Path:
    """Make a group of two arrays; half of each shard is dead bytes."""
    with quiet():
        group = zarr.create_group(path)
        for name in ("a", "deep/b"):
            array = group.create_array(
                name, shape=VALUES.shape, chunks=(8, 8), shards=(16, 16), dtype="int32", compressors=[],
            )  # fmt: skip
            array[...] = VALUES
    for name in ("a", "deep/b"):
        with quiet(), options(write_strategy="append", compact=False):
            array = shardcodec.attach(zarr.open_array(path / name))
            array[:, :8] = VALUES[:, :8]
            array[:, 48:56] = VALUES[:, 48:56]
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "g.zarr")


@pytest.fixture
def group(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "g.zarr"))


def damage(group: Path) -> None:
    for name in ("a/c/0/1", "a/c/2/5", "deep/b/c/3/0"):
        file = group / name
        data = bytearray(file.read_bytes())
        data[-10] ^= 1
        file.write_bytes(data)
    file = group / "a/c/3/3"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize("level", ["index", "checksum", "decode"])
def test_workers_verify_as_one_process_does(
    level: str, client: Any, group: Path, small_batches: None, settled_times: None, tmp_path: Path
) -> None:
    damage(group)
    expected = verify(group, level=level, threads=1)
    report = verify(group, level=level, dask=client, manifest=str(tmp_path / "m"))
    assert report == expected and report.n_findings and len(report.shards) == 4
    again = verify(group, level=level, dask=client, since=str(tmp_path / "m"))
    assert sum(one.n_unchanged for one in again.arrays) == 2 * N_SHARDS - 4
    assert again.shards == expected.shards


def test_shards_of_an_array_that_is_gone_are_found(client: Any, group: Path, tmp_path: Path) -> None:
    verify(group, dask=client, manifest=str(tmp_path / "m"))
    shutil.rmtree(group / "deep/b")
    report = verify(group, dask=client, since=str(tmp_path / "m"))
    assert report == verify(group, since=str(tmp_path / "m"))
    assert report.kinds == {FindingKind.MISSING_SHARD: N_SHARDS}


def test_workers_compare_elements(client: Any, group: Path, sound: Path) -> None:
    (group / "a/c/0/0").unlink()
    with quiet():
        zarr.open_array(group / "deep/b")[20, 20] += 1
    expected = verify(group, against=sound, threads=1)
    report = verify(group, against=sound, dask=client)
    assert report == expected
    assert report.kinds == {FindingKind.DIFFERENT: 1, FindingKind.MISSING_SHARD: 1}


def test_workers_stop_at_the_first_finding(client: Any, group: Path, small_batches: None) -> None:
    damage(group)
    for tool in (verify, inspect):
        expected = tool(group, fail_fast=True, threads=1)
        assert tool(group, fail_fast=True, dask=client) == expected
        assert expected.n_findings == 1


def test_workers_inspect_as_one_process_does(client: Any, group: Path, small_batches: None) -> None:
    damage(group)
    expected = inspect(group, threads=1)
    assert inspect(group, dask=client) == expected
    assert expected.n_findings == 4 and expected.arrays[0].stored is not None
    assert expected.arrays[0].stored.n_shards == N_SHARDS


def test_workers_pack_as_one_process_does(
    client: Any, group: Path, tmp_path: Path, small_batches: None
) -> None:
    damage(group)
    other = Path(shutil.copytree(group, tmp_path / "other" / "g.zarr"))
    would = compact(group, dask=client, dry_run=True)
    expected = compact(other, threads=1)
    report = compact(group, dask=client)
    assert (would.n_packed, report.n_packed, report.n_failed) == (expected.n_packed, expected.n_packed, 4)
    assert report.freed_nbytes == expected.freed_nbytes > 0 and would.freed_nbytes > 0
    assert [one.shard.removeprefix(str(group)) for one in report.shards] == [
        one.shard.removeprefix(str(other)) for one in expected.shards
    ]
    assert bytes_of_files(group) == bytes_of_files(other)
    assert compact(group, dask=client, only="a").n_packed == 0


def test_single_shard_and_active_client(client: Any, group: Path) -> None:
    with client.as_current():
        report = verify(group / "a/c/1/1", dask=True)
    assert report == verify(group / "a/c/1/1") and report.arrays[0].n_shards == 1


class KillOnce(Monitor):
    """Kills a worker when some shards are done."""

    def __init__(self, pids: list[int], n: int) -> None:
        self._pids, self._left = pids, n

    def advance(self, n: int = 1) -> None:
        self._left -= n
        if self._left <= 0 and self._pids:
            os.kill(self._pids.pop(), signal.SIGKILL)
            self._pids.clear()


@pytest.mark.parametrize(("tool", "module", "name", "method"), [
    (verify, "verify.verify_shards", "ShardVerifier", "_look"),
    (compact, "compact", "ShardPacker", "_treat"),
])  # fmt: skip
def test_shards_of_a_killed_worker_are_done_again(
    tool: Any, module: str, name: str, method: str, client: Any, group: Path, sound: Path, small_batches: None
) -> None:
    expected = tool(Path(shutil.copytree(sound, group.parent / "other/g.zarr")), threads=1)
    client.run(exec, SLOW.format(module=module, name=name, method=method), {})
    pids = list(client.run(os.getpid).values())
    report = tool(group, dask=client, monitor=KillOnce(pids, 5))
    assert not pids
    # the killed worker may still be listed
    client.run(exec, RESTORED.format(module=module, name=name, method=method), {}, on_error="ignore")
    if tool is compact:
        assert report.n_shards == expected.n_shards and not report.n_failed
        # a shard that the killed worker had packed was packed before the second look
        assert expected.n_packed - 2 <= report.n_packed <= expected.n_packed
        assert inspect(group).to_json()["arrays"][0]["stored"]["dead_nbytes"] == 0
    else:
        assert report.arrays == expected.arrays and not report.n_findings
    for array in ("a", "deep/b"):
        with quiet():
            assert bits(zarr.open_array(group / array)[...]) == bits(VALUES)


@pytest.mark.nightly
def test_shard_that_ends_its_workers_is_a_finding_and_the_others_are_verified(group: Path) -> None:
    with (
        dask.config.set(
            {"distributed.scheduler.allowed-failures": 0, "distributed.worker.preload": [DEADLY]}
        ),
        two_workers() as client,
    ):
        report = verify(group, only="a", dask=client)
    assert [one.shard for one in report.shards] == [str(group / "a/c/1/2")]
    assert "ended several workers" in report.shards[0].findings[0].detail
    assert report.arrays[0].n_shards == N_SHARDS - 1


class StopAt(Monitor):
    def __init__(self, n: int) -> None:
        self.n_done, self._n = 0, n

    def advance(self, n: int = 1) -> None:
        self.n_done += n

    def check(self) -> None:
        if self.n_done >= self._n:
            raise Stopped


def test_stop_reports_the_shards_that_are_packed(client: Any, group: Path, small_batches: None) -> None:
    done: list[str] = []
    n_wanted = compact(group, only="a", threads=1, dry_run=True).n_packed
    with pytest.raises(Stopped):
        compact(group, only="a", dask=client, monitor=StopAt(4), on_shard=lambda one: done.append(one.shard))
    left = compact(group, only="a", threads=1)
    assert 1 <= len(done) < n_wanted and len(done) + left.n_packed == n_wanted


def test_worker_that_does_not_see_a_shard_is_an_error(group: Path) -> None:
    """A local disk of the worker has another copy of the array: no shard was read, and nothing was found."""
    (array,) = find_arrays(group, array="a")
    place = ArrayPlace.of(array, str(group), None, None)
    task = VerifyTask(Level.INDEX, False)
    worker = ShardWorker(place, task, resolve(), n_threads=1, memory=1 << 30)
    shards = list(array.shards())[:3]
    hidden = group / "a" / shards[1].relative
    hidden.rename(group / "hidden")
    found = worker.run([(one.relative, one.coords) for one in shards], 60.0)
    assert found.missing == [1] and len(found.results) == 3 and unseen(shards, found) is None
    (group / "hidden").rename(hidden)
    error = unseen(shards, found)
    assert isinstance(error, FileNotFoundError) and "all workers must reach the array" in str(error)


def test_worker_refuses_another_array(group: Path) -> None:
    (array,) = find_arrays(group, array="a")
    place = ArrayPlace.of(array, str(group), None, None)
    task = CompactTask(0.1, None, False, True)
    text = (group / "a/zarr.json").read_text()
    (group / "a/zarr.json").write_text(text.replace('"attributes": {}', '"attributes": {"k": 1}'))
    with pytest.raises(ConflictError, match="all workers must reach the same array"):
        ShardWorker(place, task, resolve(), n_threads=1, memory=1 << 30).run([], 1.0)
    shutil.rmtree(group)
    with pytest.raises(FileNotFoundError, match="all workers must reach it under the same path"):
        ShardWorker(place, task, resolve(), n_threads=1, memory=1 << 30).run([], 1.0)


@pytest.mark.parametrize("tool", [verify, inspect, compact])
def test_store_in_memory_is_refused(tool: Any) -> None:
    with pytest.raises(
        TypeError, match="target: expected a path or a URL, which the workers of dask can open"
    ):
        tool(zarr.storage.MemoryStore(), dask="local:2")


def test_picture_is_refused(group: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="plot: expected none with dask"):
        inspect(group, only="a", plot=tmp_path / "p.png", dask="local:2")


@pytest.mark.slow
def test_command_with_workers_of_its_own(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(group)
    assert run(["verify", str(group), "--dask", "local:1"]) == 1
    assert "4 findings" in capsys.readouterr().out


def test_chunks_without_shards_are_verified_and_repaired_by_workers(client: Any, tmp_path: Path) -> None:
    group, manifests = tmp_path / "g.zarr", [tmp_path / "one.sha256", tmp_path / "many.sha256"]
    with quiet():
        root = zarr.create_group(group)
        for name in ("a", "b"):
            root.create_array(name, shape=(60, 60), chunks=(9, 9), dtype="i4")[...] = 7
    shutil.copytree(group, tmp_path / "copy.zarr")
    (group / "a/c/1/2").write_bytes(b"damaged")
    (group / "b/c/0/0").unlink()
    alone = verify(group, manifest=manifests[0], against=tmp_path / "copy.zarr")
    assert verify(group, manifest=manifests[1], against=tmp_path / "copy.zarr", dask=client) == alone
    assert alone.kinds == {"decode error": 1, "different": 1, "missing shard": 1}
    assert manifests[0].read_bytes() == manifests[1].read_bytes()
    report = repair(group, to=tmp_path / "new.zarr", copy=tmp_path / "copy.zarr", dask=client)
    assert (report.n_damaged, report.n_restored) == (2, 2)
    assert bytes_of_files(tmp_path / "new.zarr") == bytes_of_files(tmp_path / "copy.zarr")
