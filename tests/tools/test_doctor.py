# test_doctor.py - facts about a place and a process
# SPDX-License-Identifier: MIT
"""`doctor` tells what works in a folder or a store and why, with one line of advice where something should change."""

from __future__ import annotations

import gc
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import OtherMemoryStore, files_below, memory_object_store
from servers.http_objects import serving

import shardcodec
from shardcodec.mounts import Mount
from shardcodec.storage import lock_reach
from shardcodec.storage.file_systems import CLUSTER, NODE, NONE, UNKNOWN
from shardcodec.storage.lock_reach import FileTime, MountScope
from shardcodec.tools import doctor
from shardcodec.tools.doctor import folder_facts as facts
from shardcodec.tools.doctor.process_facts import check_process
from shardcodec.tools.doctor.report import Check, DoctorReport, Status

NFS = Mount(point="/data", file_system="nfs4", source="server:/data", options=("rw", "nolock"))
DISK = Mount(point="/", file_system="ext4", source="/dev/disk", options=("rw",))


def by_name(report: DoctorReport) -> dict[str, Check]:
    found = {one.name: one for one in report.checks}
    assert len(found) == len(report.checks)
    return found


def test_folder_has_all_facts_and_nothing_is_left(tmp_path: Path) -> None:
    report = doctor(tmp_path)
    found = by_name(report)
    place = ["permissions", "file system", "locks", "strategies", "clock", "space", "inodes"]
    assert list(found) == [*place, "versions", "processor", "threads", "options", "pipeline"]
    assert files_below(tmp_path) == []
    assert found["clock"].details["difference_seconds"] < 2
    assert (
        found["space"].details["free_nbytes"] <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    )
    told = json.loads(json.dumps(report.to_json()))
    assert (told["schema"], told["schema_version"]) == ("shardcodec.doctor", 1)
    assert told["checks"][0] == {
        "name": "permissions", "status": "ok", "text": f"{tmp_path} is writable", "advice": None,
        "details": {"is_writable": True},
    }  # fmt: skip


def test_cache_on_disk_is_measured_and_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with shardcodec.options(cache_dir=folder):
        assert by_name(doctor(tmp_path))["cache"].details["objects"] == 0
        folder.mkdir()
        (folder / f"{'0' * 64}.cached").write_bytes(bytes(5000))
        (folder / "mine.txt").write_text("mine")
        found = by_name(doctor(tmp_path, clear_cache=True, probe=False))["cache"]
        assert found.details["objects"] == 1 and found.details["nbytes"] >= 5000, "a dry run removes nothing"
        assert f"{folder}: 1 objects, " in found.text
        found = by_name(doctor(tmp_path, clear_cache=True))["cache"]
        assert found.details["objects"] == 0 and found.text.endswith("(cleared)")
        assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert "cache" not in by_name(doctor(tmp_path))


def test_every_finding_has_one_line_of_advice(tmp_path: Path) -> None:
    for one in doctor(tmp_path, probe=False).checks:
        assert (one.advice is None) == (one.status is Status.OK), one
        assert "\n" not in one.text + (one.advice or "")


@pytest.mark.parametrize("as_store", [False, True])
def test_folder_that_does_not_exist_is_missing_and_no_other_is_tested(as_store: bool, tmp_path: Path) -> None:
    """The folder above was tested, with a file in it; a misspelt path looked fit."""
    place: Any = tmp_path / "new.zarr" / "array"
    before = tmp_path.stat().st_mtime_ns
    found = by_name(doctor(zarr.storage.LocalStore(place) if as_store else place))
    assert list(found) == ["place", "versions", "processor", "threads", "options", "pipeline"]
    assert found["place"].status is Status.PROBLEM and f"{place} does not exist" in found["place"].text
    assert tmp_path.stat().st_mtime_ns == before


@pytest.mark.parametrize("probe", [False, True])
def test_bucket_that_does_not_exist_is_missing(probe: bool) -> None:
    """A service answers a conditional write to no bucket as one whose condition does not hold."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    with serving() as objects:
        objects.missing_bucket = "/gone"
        options = {"endpoint": objects.url, "region": "nowhere", "skip_signature": True, "allow_http": True}
        found = by_name(doctor("s3://gone/a.zarr", storage_options=options, probe=probe))
    assert (
        found["place"].status is Status.PROBLEM and "s3://gone/a.zarr does not exist" in found["place"].text
    )
    assert not {"store", "writers"} & set(found)
    assert all(method == "GET" for method, _, _ in objects.requests)


def test_without_a_probe_no_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> MountScope:
        raise AssertionError("a file was made")

    monkeypatch.setattr("shardcodec.storage.lock_reach._probe", refuse)
    found = by_name(doctor(tmp_path, probe=False))
    assert found["clock"].status is Status.NOTE and "no file was made" in found["clock"].text
    assert found["locks"].details["scope"] in (NODE, UNKNOWN)


@pytest.mark.parametrize(
    ("known", "status", "text"),
    [
        (MountScope(NFS, CLUSTER, "default of nfs4"), Status.OK, "reach writers on other nodes"),
        (MountScope(DISK, NODE, "one machine"), Status.OK, "all processes of this machine"),
        (MountScope(NFS, CLUSTER, "default of nfs4"), Status.OK, "longer than its lease (90 s by default) loses them"),
        (MountScope(NFS, CLUSTER, "default of nfs4"), Status.OK, "writers on other nodes wait for them until then, or get LockError after"),
        (MountScope(NFS._replace(file_system="nfs"), CLUSTER, "default of nfs"), Status.OK, "NFS 3 has no lease: a node that is cut off"),
        (MountScope(NFS, NODE, "mount option 'nolock'"), Status.PROBLEM, "do not reach writers on other nodes (mount option"),
        (MountScope(NFS, NONE, "no locks"), Status.PROBLEM, "no other process is excluded"),
        (MountScope(None, UNKNOWN, "not shown"), Status.NOTE, "cannot be told"),
    ],
)  # fmt: skip
def test_locks(known: MountScope, status: Status, text: str) -> None:
    found = facts._locks(known)
    assert found.status is status and text in found.text
    assert (found.advice is None) == (status is Status.OK)


def test_files_that_have_only_a_name_of_nfs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_reach, "scope_at", lambda folder, probe: MountScope(NFS, CLUSTER, ""))
    shards = tmp_path / "a/c/0"
    shards.mkdir(parents=True)
    (shards / "0").touch()
    found = by_name(doctor(tmp_path))["names"]
    assert found.status is Status.OK and found.details == {"paths": [], "is_whole": True}
    (old := shards / ".nfs000000000000000c00000001").touch()
    found = by_name(doctor(tmp_path))["names"]
    assert found.status is Status.NOTE and found.details["paths"] == [str(old)]
    assert repr(str(old)) in found.text and "verify" in str(found.advice)
    monkeypatch.setattr(facts, "MOST_FOLDERS", 2)
    found = by_name(doctor(tmp_path))["names"]
    assert not found.details["is_whole"] and "first 2 folders" in found.text


@pytest.mark.parametrize(("name", "works", "missing"), [
    ("ext4", ["replace", "append", "in_place"], {}),
    ("zfs", ["replace", "in_place"], {"append": "tested with kills and power cuts"}),
    ("nfs4", ["replace"], {"append": "tested with kills", "in_place": "a file system of one machine"}),
])  # fmt: skip
def test_strategies_and_why_not(
    name: str, works: list[str], missing: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardcodec.storage.file_systems.name_of", lambda fd: name)
    found = facts._strategies(str(tmp_path))
    assert found.details["works"] == works
    assert set(found.details["reasons"]) == set(missing)
    assert all(text in found.details["reasons"][strategy] for strategy, text in missing.items())
    assert f"work on {name}" in found.text


@pytest.mark.parametrize(
    ("stamp", "difference", "status"),
    [(100.5, 0, Status.OK), (99.5, 0.5, Status.OK), (90, 10, Status.PROBLEM), (150, 49, Status.PROBLEM)],
)
def test_clock_of_the_server(stamp: float, difference: float, status: Status) -> None:
    """The file was made between 100 s and 101 s of this machine."""
    found = facts._clock(MountScope(NFS, CLUSTER, "", FileTime(stamp, 100, 101)), is_probed=True)
    assert found.details["difference_seconds"] == difference and found.status is status


@pytest.mark.parametrize(
    ("free", "status"), [(50, Status.OK), (9, Status.NOTE), (1, Status.PROBLEM), (0, Status.PROBLEM)]
)
def test_free_space(free: int, status: Status) -> None:
    assert facts._free_share("space", "", free, 100, "Free some.").status is status


def test_read_only_mount_and_unknown_mount_are_notes() -> None:
    mount = Mount(point="/", file_system="squashfs", options=("ro",))
    assert facts._file_system("/x", MountScope(mount, UNKNOWN, "")).status is Status.NOTE
    assert facts._file_system("/x", MountScope(None, UNKNOWN, "")).status is Status.NOTE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_that_is_not_writable_is_only_looked_at(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        found = by_name(doctor(tmp_path))
    finally:
        tmp_path.chmod(0o700)
    assert found["permissions"].status is found["clock"].status is Status.NOTE


def test_local_store_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = by_name(doctor(zarr.storage.LocalStore(tmp_path / "a")))
    assert found["permissions"].text.startswith(str(tmp_path / "a"))


@pytest.mark.parametrize(("make", "status", "text"), [
    (zarr.storage.MemoryStore, Status.OK, "only this process has the objects"),
    (OtherMemoryStore, Status.PROBLEM, "neither locks for other processes nor conditions"),
    (memory_object_store, Status.OK, "writers everywhere exclude each other"),
])  # fmt: skip
def test_writers_of_a_store(make: Any, status: Status, text: str) -> None:
    found = by_name(doctor(make()))
    assert found["writers"].status is status and text in found["writers"].text
    assert (found["writers"].advice is None) == (status is Status.OK)


def test_conditions_of_an_object_store_are_tried_with_a_probe_alone() -> None:
    found = by_name(doctor(memory_object_store(), probe=False))
    assert found["writers"].status is Status.NOTE and "was not tried" in found["writers"].text


def test_server_that_cannot_list() -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    with serving() as objects:
        found = by_name(doctor(f"{objects.url}/a.zarr"))
    assert "cannot list" in found["listing"].text
    assert found["writers"].status is Status.PROBLEM


def test_service_that_refuses_writes_is_a_problem_in_one_line() -> None:
    """obstore's errors have several lines, of which only the first one says what happened."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    with serving() as objects:
        objects.status_of_writes = 400
        options = {"endpoint": objects.url, "region": "nowhere", "skip_signature": True}
        checks = by_name(
            doctor("s3://bucket/a.zarr", storage_options={**options, "client_options": {"allow_http": True}})
        )
    assert checks["place"].status is Status.PROBLEM and "400" in checks["place"].text
    assert "\n" not in checks["place"].text and "versions" in checks


def process() -> dict[str, Check]:
    return {one.name: one for one in check_process()}


def test_pipeline_in_use() -> None:
    gc.collect()  # arrays of other tests, which zarr serves
    with zarr.config.set({"codec_pipeline.path": "shardcodec.ShardCodecPipeline"}):
        assert process()["pipeline"].status is Status.OK
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        found = process()["pipeline"]
    assert found.status is Status.NOTE and "shardcodec.enable()" in str(found.advice)


def test_options_and_threads_with_their_sources() -> None:
    with shardcodec.options(durability="fsync", threads=1):
        found = process()
    assert found["options"].details == {"durability": "fsync", "threads": 1}
    assert "durability=fsync (shardcodec.options)" in found["options"].text
    assert found["threads"].details["source"] == "shardcodec.options"
    assert set(found["threads"].details["limits"]) > {"machine", "affinity", "cgroup quota"}


def test_variable_that_nothing_reads_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDCODEC_LOCK", "cluster")
    monkeypatch.setenv("SHARDCODEC_X", "1")
    found = process()["options"]
    assert found.status is Status.NOTE and "nothing reads SHARDCODEC_LOCK, SHARDCODEC_X" in found.text
    assert "SHARDCODEC_LOCKING for SHARDCODEC_LOCK" in str(found.advice)


def test_invalid_option_is_a_problem() -> None:
    with zarr.config.set({"shardcodec.order": "hilbert"}):
        found = process()["options"]
    assert found.status is Status.PROBLEM and "hilbert" in found.text


def test_versions() -> None:
    assert process()["versions"].details["zarr"] == zarr.__version__


def test_probe_that_fails_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = lock_reach.scope_at(str(tmp_path), probe=False)

    def scope_at(folder: str, *, probe: bool) -> MountScope:
        if probe:
            raise FileNotFoundError(2, "No such file or directory", f"{folder}/lock")
        return known

    monkeypatch.setattr(lock_reach, "scope_at", scope_at)
    checks = by_name(doctor(tmp_path))
    assert checks["probe"].status is Status.PROBLEM and "/lock" in checks["probe"].text
    assert {"locks", "clock", "versions"} <= set(checks)


def test_place_that_fails_is_a_problem_and_the_process_is_still_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route to the service")

    monkeypatch.setattr(importlib.import_module("shardcodec.tools.doctor.doctor"), "check_folder", refuse)
    checks = by_name(doctor(tmp_path))
    assert "no route to the service" in checks["place"].text
    assert checks["place"].status is Status.PROBLEM and "versions" in checks
