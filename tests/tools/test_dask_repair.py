# test_dask_repair.py - repair, and compact to a new hierarchy, with the workers of a dask cluster
# SPDX-License-Identifier: MIT
"""Two worker processes store and report what one process does, also if one is killed, or both run the same shards."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bytes_of_files, quiet
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from shardcodec.cli.app import run
from shardcodec.options import resolve
from shardcodec.tools import backup, compact, repair, verify
from shardcodec.tools.compact import CompactTask
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.hierarchy_copy import CopyWriter, HierarchyCopy
from shardcodec.tools.job_mark import MARK
from shardcodec.tools.jobs.shard_pool import ShardPool
from shardcodec.tools.jobs.shard_work import ArrayPlace, ShardBatch, ShardTask, ShardWorker
from shardcodec.tools.memory import MemoryBudget
from shardcodec.tools.monitor import LostScheduler
from shardcodec.tools.repair.report import RepairAction
from shardcodec.tools.repair.shards_of_array import RepairTask

dask = pytest.importorskip("dask", reason="dask is not installed")
pytest.importorskip("distributed", reason="distributed is not installed")
import cloudpickle  # noqa: E402 - dask needs it

VALUES = np.random.default_rng(5).integers(0, 50, (64, 48)).astype("int32")
N_SHARDS = 12
LOST = {"a": ["c/0/1", "c/1/2", "c/2/0", "c/2/1"], "deep/b": ["c/3/0", "c/3/2"]}

# Run in worker processes: the first that comes to a step of a chosen shard ends.
DEADLY = """
import os, signal
from shardcodec.tools.{module} import {name} as Work
def deadly(self, *arguments):
    if {before}:
        die(self, arguments)
    found = original(self, *arguments)
    die(self, arguments)
    return found
def die(self, arguments):
    shard = arguments[0] if arguments else self._shard
    if shard.relative == "c/1/2":
        try:
            os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
original, Work.{method} = Work.{method}, deadly
Work.restore = lambda: setattr(Work, {method!r}, original)
"""
RESTORED = """
from shardcodec.tools.{module} import {name} as Work
if hasattr(Work, "restore"):
    Work.restore()
    del Work.restore
"""


def make(path: Path) -> Path:
    """Make a group of two arrays, whose inner chunks have a checksum."""
    codec = ShardingCodec(chunk_shape=(8, 8), codecs=[BytesCodec(), Crc32cCodec()])
    with quiet():
        group = zarr.create_group(path)
        for name in LOST:
            array = group.create_array(
                name, shape=VALUES.shape, chunks=(16, 16), dtype="int32", serializer=codec, compressors=None
            )
            array[...] = VALUES
    return path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sound") / "g.zarr")


@pytest.fixture
def group(sound: Path, tmp_path: Path) -> Path:
    """Some shards have a damaged inner chunk, one has lost its tail, and one everything."""
    path = Path(shutil.copytree(sound, tmp_path / "g.zarr"))
    for name, keys in LOST.items():
        for key in keys:
            data = bytearray((path / name / key).read_bytes())
            data[300] ^= 1
            (path / name / key).write_bytes(data)
    (path / "a/c/2/1").write_bytes((path / "a/c/2/1").read_bytes()[:-40])
    (path / "deep/b/c/3/2").write_bytes(b"torn")
    return path


def arguments(kind: str, folder: Path, sound: Path) -> dict[str, Any]:
    return {"to": folder / "new.zarr"} | ({"copy": sound} if kind == "from copy" else {})


def of_one_process(work: Any, group: Path, **how: Any) -> tuple[Any, dict[str, bytes]]:
    """Return the report of one process and all that it stores, and restore what was there."""
    before = Path(shutil.copytree(group.parent, group.parent.parent / f"{group.parent.name}-before"))
    report, stored = work(group, threads=1, **how), bytes_of_files(group.parent)
    shutil.rmtree(group.parent)
    before.rename(group.parent)
    return report, stored


@pytest.mark.parametrize("kind", ["to", "from copy"])
def test_workers_repair_as_one_process_does(
    kind: str, client: Any, group: Path, sound: Path, tmp_path: Path, small_batches: None
) -> None:
    how = arguments(kind, tmp_path, sound)
    would = repair(group, dry_run=True, copy=how.get("copy"))
    assert repair(group, dry_run=True, copy=how.get("copy"), dask=client) == would and would.n_damaged == 6
    expected, stored = of_one_process(repair, group, **how)
    report = repair(group, dask=client, **how)
    assert report == expected and report.to_json() == expected.to_json()
    assert bytes_of_files(tmp_path) == stored
    assert report.n_damaged == 6 and (report.n_restored == 6) == (kind == "from copy")
    assert verify(how["to"], level="decode").n_findings == 0
    left = [one for one in report.shards if one.action is RepairAction.LEFT]
    assert bool(left) == (kind != "from copy")


def test_workers_pack_to_a_new_hierarchy_as_one_process_does(
    client: Any, group: Path, tmp_path: Path, small_batches: None
) -> None:
    how = {"to": tmp_path / "new.zarr", "order": "lexicographic", "min_dead": 0}
    expected, stored = of_one_process(compact, group, **how)
    assert compact(group, dask=client, **how) == expected and expected.n_packed > 10 < expected.n_shards
    assert expected.n_failed and not expected.is_complete  # so no run writes documents
    assert without_mark(tmp_path) == stored and "new.zarr/zarr.json" not in stored


def without_mark(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, but for the mark of a job of several workers that is not complete."""
    return {name: data for name, data in bytes_of_files(folder).items() if name != f"new.zarr/{MARK}"}


def run_all(place: ArrayPlace, task: ShardTask[Any, Any], names: Any) -> ShardBatch:
    """Run all shards in this worker; the other worker begins at about the same time."""
    return ShardWorker(place, task, resolve(), n_threads=1, memory=1 << 30).run(names, 60.0)


@pytest.mark.parametrize("kind", ["to", "from copy", "compact"])
def test_two_workers_run_the_same_shards_at_the_same_time(
    kind: str, client: Any, group: Path, sound: Path, tmp_path: Path
) -> None:
    (array,) = find_arrays(group, array="a")
    shards = list(array.shards())
    tool = compact if kind == "compact" else repair
    how = (
        {"to": tmp_path / "new.zarr", "order": "lexicographic"}
        if kind == "compact"
        else arguments(kind, tmp_path, sound)
    )
    expected, stored = of_one_process(tool, group, only="a", **how)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    place = ArrayPlace.of(array, str(group), None, None)
    names = [(one.relative, one.coords) for one in shards]
    task: Any
    new = HierarchyCopy(how["to"], None, MemoryBudget(None), group, resolve(), "job")
    new.add(array)
    if kind == "compact":
        task = CompactTask(0.1, "lexicographic", False, False, new.place)
    else:
        task = RepairTask(None, how.get("copy"), None, False, to=new.place)
    found = client.run(run_all, place, task, names)
    if kind != "compact":  # which writes no documents after a failed shard
        new.finish(())
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert len(found) == 2, "both workers run"
    assert without_mark(tmp_path) == stored
    for batch in found.values():
        assert batch.error is None and not batch.missing
        assert tuple(done.result for _, done in batch.results if done.result is not None) == expected.shards


def test_worker_that_goes_on_after_the_end_stores_nothing(group: Path, tmp_path: Path) -> None:
    """A user has written to the new array since."""
    (array,) = find_arrays(group, array="a")
    new = HierarchyCopy(tmp_path / "new.zarr", None, MemoryBudget(None), group, resolve(), "job")
    new.add(array)
    late = CopyWriter(new.place, MemoryBudget(None), resolve())
    shard = next(iter(array.shards()))
    new.finish(())
    with pytest.raises(OSError, match="the job is over"):
        late.copy(array, shard.key)
    with pytest.raises(OSError, match="the job is over"), late.writer(shard, array.shard_spec):
        pass
    assert sorted(bytes_of_files(tmp_path / "new.zarr")) == ["a/zarr.json", "zarr.json"]
    with pytest.raises(
        FileNotFoundError, match="all workers must reach the new hierarchy under the same path"
    ):
        CopyWriter(new.place, MemoryBudget(None), resolve())


def test_run_that_ends_during_a_copy_gets_no_object(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark was looked at before the first byte; a worker that slept after it wrote over the objects of users."""
    (array,) = find_arrays(group, array="a")
    new = HierarchyCopy(tmp_path / "new.zarr", None, MemoryBudget(None), group, resolve(), "job")
    new.add(array)
    blocks = backup._blocks

    def slow_blocks(*arguments: Any) -> Iterator[memoryview]:
        yield from blocks(*arguments)
        new.finish(())

    monkeypatch.setattr(backup, "_blocks", slow_blocks)
    with pytest.raises(OSError, match="the job is over"):
        new.objects.copy(array, next(iter(array.shards())).key)
    assert sorted(bytes_of_files(tmp_path / "new.zarr")) == ["a/zarr.json", "zarr.json"]


@pytest.mark.parametrize("tool", [repair, compact])
def test_places_that_workers_cannot_open_are_refused(tool: Any, group: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="to: expected a path or a URL, which the workers of dask can open"):
        tool(group, to=zarr.storage.MemoryStore(), dask="local:2")
    if tool is repair:
        with pytest.raises(TypeError, match="copy: expected a path or a URL"):
            repair(group, to=tmp_path / "new", copy=zarr.storage.MemoryStore(), dask="local:2")
    assert os.listdir(tmp_path) == ["g.zarr"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_repair_in_place_takes_no_workers(
    dry_run: bool, group: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """dask repeats the work of a worker that it has lost, and only one process may change the only copy of a shard."""
    before = bytes_of_files(tmp_path)
    with pytest.raises(
        ValueError, match=r"dask: expected `to` \(--to\).* a repair in place is done by one process"
    ):
        repair(group, backup=tmp_path / "old", dry_run=dry_run, dask="local:2")
    command = ["repair", str(group), "--dask", "local:2", "--backup", str(tmp_path / "old")]
    assert run([*command, *["--dry-run"] * dry_run]) == 2
    assert "a repair in place is done by one process" in capsys.readouterr().err
    assert bytes_of_files(tmp_path) == before


def test_new_hierarchy_in_the_memory_of_this_process_is_an_error(client: Any, group: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(
        FileNotFoundError, match="all workers must reach the new hierarchy under the same path"
    ):
        repair(group, to="memory://repaired.zarr", dask=client)


def test_single_shard_needs_no_workers_for_a_new_object(client: Any, group: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="to: expected a group or an array with dask, got one shard"):
        repair(group / "a/c/1/2", to=tmp_path / "shard", dask=client)
    report = repair(group / "a/c/1/2", dry_run=True, dask=client)
    assert report.n_damaged == 1


def test_lost_scheduler_has_the_exit_code_of_the_other_tools(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: Any) -> Any:
        raise LostScheduler("dask: the scheduler at tcp://127.0.0.1:1 was lost")

    monkeypatch.setattr(ShardPool, "results", lost)
    for command in ("repair", "compact", "verify"):
        more = ["--to", str(tmp_path / f"{command}.zarr")] if command != "verify" else []
        assert run([command, str(group), *more]) == 3
        assert "the scheduler at tcp://127.0.0.1:1 was lost" in capsys.readouterr().err


@pytest.mark.nightly
def test_command_repairs_with_workers_of_its_own(
    group: Path, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, stored = of_one_process(repair, group, **arguments("to", tmp_path, sound))
    command = ["repair", str(group), "--to", str(tmp_path / "new.zarr"), "--json"]
    assert run([*command, "--dask", "local:1"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document == {**json.loads(json.dumps(expected.to_json())), "shards": document["shards"]}
    assert len(document["shards"]) == 6 and bytes_of_files(tmp_path) == stored


# The last test, because a new worker needs some time.
@pytest.mark.parametrize(
    ("kind", "module", "name", "method", "before"),
    [
        ("to", "repair.shards_of_array", "ShardRepairer", "_look", False),  # written, and not answered
    ],
)
def test_kill_of_a_worker_does_not_change_report_and_shards(
    kind: str, module: str, name: str, method: str, before: bool, client: Any, group: Path, sound: Path, tmp_path: Path,
    small_batches: None, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    how = arguments(kind, tmp_path, sound)
    expected, stored = of_one_process(repair, group, only="a", **how)
    flag = tmp_path_factory.mktemp("killed") / "flag"
    text = DEADLY.format(module=module, name=name, method=method, before=before, flag=str(flag))
    client.run(exec, text, {})
    report = repair(group, only="a", dask=client, **how)
    client.run(exec, RESTORED.format(module=module, name=name), {})
    assert flag.exists(), "no worker was killed"
    assert report == expected and bytes_of_files(tmp_path) == stored
