# test_verify.py - verify arrays, groups and shards
# SPDX-License-Identifier: MIT
"""`verify` names damaged shards of any store, skips those of a manifest, and compares two arrays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zarr
from faults.test_in_place import Case, Shard, kill_after_the_last_slot
from helpers import KINDS_OF_STORE, bytes_of_files, checked, create, quiet, shard_path, store_of
from tool_sources import add_unknown_codec, change, filled, flipped

from shardcodec.cli.app import run
from shardcodec.tools import verify
from shardcodec.tools.findings import FindingKind
from shardcodec.tools.monitor import Monitor, Stopped
from shardcodec.tools.verify.verify import ShardFindings, VerifyReport


def cut(data: bytes) -> bytes:
    return data[:-1]


def found(report: VerifyReport) -> list[tuple[str, str, tuple[int, ...] | None]]:
    """Return kind, last part of the key and inner chunk of each finding."""
    listed = [one for shard in report.shards for one in shard.findings]
    return sorted((one.kind.value, one.shard.rpartition("c/")[2], one.chunk) for one in listed)


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_damaged_shards_of_any_store_are_named(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path / "a.zarr")
    filled(store)
    whole = verify(store, level="decode")
    (array,) = whole.arrays
    assert (whole.n_findings, array.n_shards, array.n_damaged) == (0, 4, 0)
    assert array.verified_nbytes == array.data_nbytes > 0 == array.unverifiable_nbytes
    change(store, "c/0/1", flipped(5))
    change(store, "c/1/0", cut)
    report = verify(store)
    assert found(report) == [
        ("bad inner checksum", "0/1", (0, 0)),
        ("truncated tail", "1/0", None),
    ]
    assert report.n_findings == report.arrays[0].n_damaged == 2
    assert found(verify(store, level="index")) == [("truncated tail", "1/0", None)]


def test_level_index_does_not_read_inner_chunks(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    change(array.store, "c/0/1", flipped(5))
    assert verify(tmp_path / "a.zarr", level="index").n_findings == 0
    assert verify(tmp_path / "a.zarr", level="checksum").n_findings == 1


def test_data_without_checksums_are_stated(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    (one,) = verify(tmp_path / "a.zarr").arrays
    assert one.unverifiable_nbytes == one.data_nbytes == 4 * 8 * 48 and one.has_index_checksum


def test_group_one_array_and_one_shard(tmp_path: Path) -> None:
    with quiet():
        zarr.create_group(tmp_path / "g.zarr")
        zarr.create_array(tmp_path / "g.zarr/plain", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
    filled(tmp_path / "g.zarr/a")
    array = filled(tmp_path / "g.zarr/b")
    change(array.store, "c/0/0", cut)
    report = verify(tmp_path / "g.zarr")
    assert [(one.name, one.problem, one.n_damaged) for one in report.arrays] == [
        ("a", None, 0),
        ("b", None, 1),
        ("plain", None, 0),
    ]
    assert verify(tmp_path / "g.zarr", only="a").n_findings == 0
    assert verify(tmp_path / "g.zarr/b/c/0/1").n_findings == 0
    assert verify(tmp_path / "g.zarr/b/c/0/0").n_findings == 1


@pytest.mark.parametrize(("text", "kind", "code"), [
    ("{", "unreadable", 1),
    ('{"zarr_format": 3, "node_type": "array", "shape": [4]}', "unreadable", 1),
    (None, "unsupported", 0),
])  # fmt: skip
def test_array_with_malformed_metadata_is_a_finding(
    tmp_path: Path, text: str | None, kind: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """No program can read it. An unknown codec may be in order, so this is a warning."""
    with quiet():
        zarr.create_group(tmp_path / "g.zarr")
    filled(tmp_path / "g.zarr/a")
    filled(tmp_path / "g.zarr/b")
    file = tmp_path / "g.zarr/b/zarr.json"
    if text is None:
        document = json.loads(file.read_text())
        document["codecs"].insert(0, {"name": "no.such", "configuration": {}})
        text = json.dumps(document)
    file.write_text(text)
    report = verify(tmp_path / "g.zarr")
    assert report.kinds == {kind: 1} and report.n_findings == code
    (one,) = report.shards
    assert one.findings[0].recoverable is (False if code else None)
    assert run(["verify", str(tmp_path / "g.zarr")]) == (code or 5)
    assert "1 array was not verified" in capsys.readouterr().out


def test_foreign_files_are_a_warning(tmp_path: Path) -> None:
    filled(tmp_path / "a.zarr")
    (tmp_path / "a.zarr/c/0/7").write_bytes(b"?")
    report = verify(tmp_path / "a.zarr")
    assert report.n_findings == 0 and report.kinds == {"foreign file": 1}
    (one,) = report.shards
    assert one.shard.endswith("c/0/7") and one.findings[0].is_warning


def test_inner_chunks_outside_the_array_may_have_bad_entries(tmp_path: Path) -> None:
    with quiet():
        array = checked(tmp_path / "a.zarr", shape=(12, 24))
    array[...] = 1
    data = bytearray(shard_path(array, "c/1/0").read_bytes())
    assert verify(tmp_path / "a.zarr").n_findings == 0, "the second row of inner chunks is absent"
    index = len(data) - 8 * 16 - 4
    data[index + 6 * 16 : index + 6 * 16 + 8] = (10**9).to_bytes(8, "little")
    from shardcodec.checksum import crc32c

    data[-4:] = crc32c(data[index:-4]).to_bytes(4, "little")
    shard_path(array, "c/1/0").write_bytes(data)
    report = verify(tmp_path / "a.zarr")
    assert report.n_findings == 0 and report.kinds == {"outside the array": 1}


def test_pending_journal_is_found_and_the_old_shard_is_whole(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = kill_after_the_last_slot(scene)
    report = verify(scene.folder / "a", level="decode")
    assert report.kinds == {"pending journal": 1}
    (one,) = report.shards[0].findings
    assert one.recoverable and str(journal) in one.detail
    assert journal.exists(), "verify changes nothing"


def test_inner_codec_without_native_code_leaves_the_index(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    add_unknown_codec(tmp_path / "a.zarr")
    report = verify(tmp_path / "a.zarr", level="decode")
    assert report.n_findings == 0 and report.kinds == {"unsupported": 1} and report.arrays[0].n_shards == 4
    change(array.store, "c/0/0", cut)
    assert verify(tmp_path / "a.zarr").kinds == {"truncated tail": 1, "unsupported": 1}


def test_store_error_is_a_finding_and_the_other_shards_are_verified(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    shard_path(array).unlink()
    os.mkfifo(shard_path(array))
    report = verify(tmp_path / "a.zarr")
    assert report.kinds == {"unreadable": 1} and report.arrays[0].n_shards == 3


def test_sample_is_the_same_each_time_and_not_empty(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr", shape=(160, 240))
    array[...] = 1
    (first,) = verify(tmp_path / "a.zarr", sample=0.2).arrays
    assert first.n_shards + first.n_not_sampled == 400 and 50 < first.n_shards < 110
    assert verify(tmp_path / "a.zarr", sample=0.2).arrays == (first,)
    assert verify(tmp_path / "a.zarr", sample=1e-9).arrays[0].n_shards == 1
    with pytest.raises(ValueError, match=r"sample: expected a share in \(0, 1\], got 2"):
        verify(tmp_path / "a.zarr", sample=2)


@pytest.fixture
def settled_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the change time, which no test can set, for an old one."""
    import shardcodec.storage.files as files

    monkeypatch.setattr(files, "GRAIN_NS", 0)


@pytest.mark.usefixtures("settled_times")
def test_manifest_skips_what_has_not_changed(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    change(array.store, "c/1/1", flipped(5))
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert verify(tmp_path / "a.zarr", manifest=first).n_findings == 1
    again = verify(tmp_path / "a.zarr", since=first, manifest=second)
    assert (again.arrays[0].n_unchanged, again.arrays[0].n_shards, again.n_findings) == (3, 1, 1)
    deeper = verify(tmp_path / "a.zarr", since=first, level="decode")
    assert deeper.arrays[0].n_unchanged == 0, "the manifest is of a lower level"
    array[:8, :12] = 3
    change(array.store, "c/0/1", flipped(5))
    report = verify(tmp_path / "a.zarr", since=second)
    assert (report.arrays[0].n_unchanged, report.arrays[0].n_shards) == (1, 3)
    assert found(report) == [("bad inner checksum", "0/1", (0, 0)), ("bad inner checksum", "1/1", (0, 0))]


@pytest.mark.usefixtures("settled_times")
def test_shard_of_the_manifest_that_is_gone_is_found(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    manifest = str(tmp_path / "manifest")
    verify(tmp_path / "a.zarr", manifest=manifest)
    shard_path(array, "c/0/1").unlink()
    assert found(verify(tmp_path / "a.zarr", since=manifest)) == [("missing shard", "0/1", None)]


def test_other_files_are_no_manifest(tmp_path: Path) -> None:
    filled(tmp_path / "a.zarr")
    (tmp_path / "text").write_text("no manifest")
    with pytest.raises(ValueError, match="expected a manifest of shardcodec verify"):
        verify(tmp_path / "a.zarr", since=str(tmp_path / "text"))
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "a.zarr", since=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "a.zarr", manifest=str(tmp_path / "none/manifest"))


@pytest.mark.parametrize("name", ["zarr.json", "c/0/0", "new", "c/link", "../link"])
def test_manifest_inside_of_a_hierarchy_is_refused_before_any_work(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "g.zarr"
    with quiet():
        group = zarr.create_group(folder)
    filled(group.store, name="a")
    (folder / "a/c/link").symlink_to(tmp_path / "new")
    (tmp_path / "g.zarr/link").symlink_to(folder / "a/new")
    before = bytes_of_files(tmp_path)
    seen: list[ShardFindings] = []
    with pytest.raises(ValueError, match=r"expected a file outside of the zarr hierarchy .*g\.zarr"):
        verify(folder / "a/c/0/1", manifest=str(folder / "a" / name), on_shard=seen.append)
    assert run(["verify", str(folder), "--manifest", str(folder / "a" / name)]) == 2
    assert bytes_of_files(tmp_path) == before and not seen


@pytest.mark.parametrize("kind", ["text", "empty", "another database", "folder", "dangling link"])
def test_manifest_replaces_no_other_file(kind: str, tmp_path: Path) -> None:
    filled(tmp_path / "a.zarr")
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "none")
    elif kind == "another database":
        with contextlib.closing(sqlite3.connect(place)) as rows:
            rows.execute("CREATE TABLE about (name TEXT)")
    else:
        place.write_bytes(b"precious" if kind == "text" else b"")
    before = bytes_of_files(tmp_path)
    with pytest.raises(ValueError, match="expected a new file or an old manifest"):
        verify(tmp_path / "a.zarr", manifest=str(place))
    assert bytes_of_files(tmp_path) == before and os.path.lexists(place)
    assert {path.name for path in tmp_path.iterdir()} == {"a.zarr", "place"}


def test_manifest_replaces_no_file_that_appears_during_the_run(tmp_path: Path) -> None:
    class Writing(Monitor):
        def advance(self, n: int = 1) -> None:
            (tmp_path / "m").write_text("precious")

    filled(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="expected a new file or an old manifest"):
        verify(tmp_path / "a.zarr", manifest=str(tmp_path / "m"), monitor=Writing())
    assert (tmp_path / "m").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"a.zarr", "m"}


def test_manifest_replaces_an_old_manifest(tmp_path: Path) -> None:
    filled(tmp_path / "a.zarr")
    manifest = tmp_path / "m"
    verify(tmp_path / "a.zarr", level="index", manifest=str(manifest))
    old = manifest.read_bytes()
    verify(tmp_path / "a.zarr", level="decode", since=str(manifest), manifest=str(manifest))
    assert manifest.read_bytes() != old


@pytest.mark.usefixtures("settled_times")
def test_comparison_skips_no_shard_of_the_manifest(tmp_path: Path) -> None:
    filled(tmp_path / "a.zarr")
    manifest = str(tmp_path / "m")
    verify(tmp_path / "a.zarr", manifest=manifest)
    filled(tmp_path / "b.zarr")[15, 23] += 1
    assert verify(tmp_path / "a.zarr", since=manifest).arrays[0].n_unchanged == 4
    report = verify(tmp_path / "a.zarr", since=manifest, against=tmp_path / "b.zarr")
    assert report.arrays[0].n_unchanged == 0
    assert [one[:2] for one in found(report)] == [("different", "1/1")]


def test_shards_of_an_array_that_is_gone_are_found(tmp_path: Path) -> None:
    folder, manifest = tmp_path / "g.zarr", str(tmp_path / "m")
    with quiet():
        group = zarr.create_group(folder)
    for name in ("a", "b/c"):
        filled(group.store, name=name)
    verify(folder, manifest=manifest)
    shutil.rmtree(folder / "b/c")
    report = verify(folder, since=manifest)
    assert [(one.array, one.shard) for one in report.shards] == [
        ("b/c", f"b/c/c/{i}/{j}") for i in range(2) for j in range(2)
    ]
    assert report.kinds == {FindingKind.MISSING_SHARD: 4} and report.n_findings == 4
    assert report.arrays[-1].problem == "it does not exist any more"
    assert run(["verify", str(folder), "--since", manifest]) == 1
    assert verify(folder, since=manifest, only="a").n_findings == 0
    assert verify(folder / "a", since=manifest).n_findings == 0, "the other arrays are outside of the target"
    assert verify(folder, since=manifest, fail_fast=True).n_findings == 1
    shutil.rmtree(folder / "a")
    assert verify(folder, since=manifest).n_findings == 8, "no array is left"


def test_manifest_of_another_group_has_no_lost_arrays(tmp_path: Path) -> None:
    """Its arrays have other paths. All of them were reported as lost."""
    folder, manifest = tmp_path / "all.zarr", str(tmp_path / "m")
    with quiet():
        group = zarr.create_group(folder)
        group.create_group("part")
    filled(group.store, name="part/a")
    verify(folder, manifest=manifest)
    assert verify(folder / "part", since=manifest).n_findings == 0


def test_stopped_run_leaves_no_manifest(tmp_path: Path) -> None:
    class Stopping(Monitor):
        def check(self) -> None:
            raise Stopped

    filled(tmp_path / "a.zarr")
    with pytest.raises(Stopped):
        verify(tmp_path / "a.zarr", manifest=str(tmp_path / "manifest"), monitor=Stopping())
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_fail_fast_stops_at_the_first_finding(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    for key in ("c/0/0", "c/0/1", "c/1/0", "c/1/1"):
        change(array.store, key, cut)
    report = verify(tmp_path / "a.zarr", fail_fast=True)
    assert report.n_findings == 1 and not report.is_complete


@pytest.mark.parametrize("shape", [(4, 3), (5, 7), (16, 24)])
def test_equal_elements_in_another_layout(tmp_path: Path, shape: tuple[int, int]) -> None:
    array = filled(tmp_path / "a.zarr")
    with quiet():
        other = zarr.create_array(
            tmp_path / "b.zarr",
            shape=(16, 24),
            chunks=shape,
            dtype="int32",
            zarr_format=2,
            fill_value=array.fill_value,
        )
    other[...] = array[...]
    assert verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr").n_findings == 0
    other[9, 20] = -5
    report = verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr")
    assert found(report) == [("different", "1/1", None)]
    assert "the first one at (9, 20)" in report.shards[0].findings[0].detail


def test_shard_that_only_the_other_array_has_is_missing(tmp_path: Path) -> None:
    filled(tmp_path / "b.zarr")
    array = filled(tmp_path / "a.zarr")
    shard_path(array, "c/0/1").unlink()
    report = verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr")
    assert [(kind, shard) for kind, shard, _ in found(report)] == [("missing shard", "0/1")]


def test_arrays_of_different_shape_cannot_be_compared(tmp_path: Path) -> None:
    filled(tmp_path / "a.zarr")
    checked(tmp_path / "b.zarr", shape=(8, 24))
    with pytest.raises(ValueError, match=r"expected an array of shape \(16, 24\)"):
        verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr")


def test_nan_equals_the_same_nan(tmp_path: Path) -> None:
    for name in ("a.zarr", "b.zarr"):
        create(tmp_path / name, dtype="float32", fill_value=0)[...] = np.nan
    assert verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr").n_findings == 0


def test_memory_does_not_grow_with_the_number_of_shards(tmp_path: Path) -> None:
    def peak(n: int) -> int:
        path = tmp_path / f"{n}.zarr"
        create(path, shape=(8 * n, 12), shards=(8, 12))[...] = 1
        verify(path, level="index")
        tracemalloc.start()
        try:
            verify(path, level="index", threads=2)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(30), peak(600)
    assert many < few + (200 << 10), (few, many)


def test_command_prints_findings_and_the_share_without_checksum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = filled(tmp_path / "a.zarr")
    assert run(["verify", str(tmp_path / "a.zarr")]) == 0
    assert "no damage found" in capsys.readouterr().out
    change(array.store, "c/0/1", flipped(5))
    assert run(["verify", str(tmp_path / "a.zarr"), "--sample", "100%"]) == 1
    text = capsys.readouterr().out
    assert "bad inner checksum: " in text and "inner chunk (0, 0)" in text and "(needs a copy)" in text
    assert run(["verify", str(tmp_path / "a.zarr"), "--sample", "0%"]) == 2
    create(tmp_path / "b.zarr")[...] = 1
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "b.zarr")]) == 0
    assert "(100 %): damage of these bytes cannot be found" in capsys.readouterr().out


def test_findings_are_given_as_soon_as_they_are_known(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    change(array.store, "c/0/1", cut)
    seen: list[ShardFindings] = []
    report = verify(tmp_path / "a.zarr", on_shard=seen.append)
    assert report.shards == () and [one.findings[0].kind for one in seen] == [FindingKind.TRUNCATED_TAIL]
