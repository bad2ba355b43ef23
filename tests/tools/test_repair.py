# test_repair.py - repair damaged shards
# SPDX-License-Identifier: MIT
"""`repair` keeps what is whole, takes the rest from a copy, and never changes the only copy."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import elements
from damage import Original, case_spec, cases_of
from faults.test_in_place import Case, Shard, kill_after_the_last_slot
from golden.make_broken import FILL, cases
from helpers import KINDS_OF_STORE, bytes_of_files, checked, files_below, quiet, shard_path, store_of
from spec_json import LITTLE
from tool_sources import CONTENT, filled, flip, get, put, write_array
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import shardcodec
from shardcodec import ShardSpec
from shardcodec.cli.app import run
from shardcodec.storage.undo_journal import pending_journal
from shardcodec.tools import convert, repair, verify
from shardcodec.tools.repair import one_shard
from shardcodec.tools.repair.report import RepairAction
from shardcodec.tools.targets import ArrayTarget


def without_first_chunk() -> np.ndarray[Any, Any]:
    """Return the content without the first inner chunk of shard (0, 1)."""
    expected = CONTENT.copy()
    expected[:4, 12:15] = -1
    return expected


def test_new_array_has_everything_but_the_lost_inner_chunk(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    before = bytes_of_files(tmp_path / "a.zarr")
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr")
    assert (report.n_shards, report.n_damaged, report.n_restored, report.n_lost_chunks) == (4, 1, 0, 1)
    (one,) = report.shards
    assert (one.action, one.n_kept, one.lost) == (RepairAction.REPAIRED, 7, ((0, 0),))
    assert (elements(tmp_path / "b.zarr") == without_first_chunk()).all()
    assert verify(tmp_path / "b.zarr", level="decode").n_findings == 0
    after = bytes_of_files(tmp_path / "b.zarr")
    assert bytes_of_files(tmp_path / "a.zarr") == before
    assert {name: data for name, data in after.items() if name != "c/0/1"} == {
        name: data for name, data in before.items() if name != "c/0/1"
    }


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_stores_of_any_kind(kind: str, tmp_path: Path) -> None:
    store, other = store_of(kind, tmp_path / "a.zarr"), store_of(kind, tmp_path / "b.zarr")
    array = filled(store)
    flip(store, "c/0/1")
    put(store, "c/1/1", get(store, "c/1/1")[:-1])
    repair(store, to=other)
    assert (elements(other) == without_first_chunk()).all()
    done = repair(store, backup=tmp_path / "old")
    assert done.n_restored == 1
    assert (elements(store) == without_first_chunk()).all() and (array[8:] == CONTENT[8:]).all()
    assert sorted(files_below(tmp_path / "old")) == ["c/0/1", "c/1/1"]


def test_group_with_an_array_that_is_not_sharded(tmp_path: Path) -> None:
    with quiet():
        zarr.create_group(tmp_path / "g.zarr", attributes={"a": 1}).create_group("sub", attributes={"b": 2})
        zarr.create_array(tmp_path / "g.zarr/plain", shape=(4,), chunks=(2,), dtype="i4")[...] = 7
    array = filled(tmp_path / "g.zarr/sub/x")
    flip(array.store, "c/0/1")
    repair(tmp_path / "g.zarr", to=tmp_path / "h.zarr")
    with quiet():
        group = zarr.open_group(tmp_path / "h.zarr", mode="r")
        assert dict(group.attrs) == {"a": 1} and dict(group["sub"].attrs) == {"b": 2}
        assert (np.asarray(group["plain"]) == 7).all()
        assert (np.asarray(group["sub/x"]) == without_first_chunk()).all()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    filled(tmp_path / "b.zarr")
    before = bytes_of_files(tmp_path / "b.zarr")
    with pytest.raises(FileExistsError, match=r"b\.zarr: expected a new path"):
        repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr")
    repair(tmp_path / "a.zarr", backup=tmp_path / "old")
    flip(array.store, "c/0/1")
    with pytest.raises(FileExistsError, match="choose an empty folder for the backup"):
        repair(tmp_path / "a.zarr", backup=tmp_path / "old")
    assert bytes_of_files(tmp_path / "b.zarr") == before


@pytest.mark.parametrize(("how", "text"), [
    ({}, r"expected `to` \(--to\), a new place, or `backup` \(--backup\), a folder"),
    ({"to": "b.zarr", "backup": "old"}, r"expected one of `to` \(--to\) and `backup` \(--backup\), got both"),
    ({"backup": "a.zarr/old"}, "expected a folder outside"),
    ({"backup": "old", "order": "hilbert"}, "order: expected one of"),
    ({"backup": "old", "copy": "a.zarr"}, "expected a copy, got the array itself"),
])  # fmt: skip
def test_wrong_arguments_change_nothing(tmp_path: Path, how: dict[str, str], text: str) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    before = bytes_of_files(tmp_path)
    places = {name: value if name == "order" else str(tmp_path / value) for name, value in how.items()}
    with pytest.raises(ValueError, match=text):
        repair(tmp_path / "a.zarr", **places)
    assert bytes_of_files(tmp_path) == before


def test_dry_run_changes_nothing_and_says_what_would_be_done(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    put(array.store, "c/1/1", b"")
    before = bytes_of_files(tmp_path)
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", dry_run=True)
    assert bytes_of_files(tmp_path) == before
    assert [
        (one.action, one.n_kept, one.n_lost) for one in sorted(report.shards, key=lambda one: one.shard)
    ] == [
        (RepairAction.REPAIRED, 7, 1),
        (RepairAction.LEFT, 0, 8),
    ]
    assert repair(tmp_path / "a.zarr", dry_run=True).n_damaged == 2


def test_in_place_backs_up_before_it_replaces(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    damaged = get(array.store, "c/0/1")
    (one,) = repair(tmp_path / "a.zarr", backup=tmp_path / "old").shards
    assert one.backup == str(tmp_path / "old/c/0/1") and Path(one.backup).read_bytes() == damaged
    assert (elements(tmp_path / "a.zarr") == without_first_chunk()).all()
    assert not repair(tmp_path / "a.zarr", backup=tmp_path / "old").n_damaged


def test_shard_without_anything_to_restore_is_not_changed(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    put(array.store, "c/0/1", b"torn")
    (one,) = repair(tmp_path / "a.zarr", backup=tmp_path / "old").shards
    assert one.action is RepairAction.LEFT and get(array.store, "c/0/1") == b"torn"


def test_writer_between_survey_and_replacement_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    original = one_shard.copy_chunks

    def copy(*arguments: Any) -> None:
        original(*arguments)
        array[:4, 12:15] = 5

    monkeypatch.setattr(one_shard, "copy_chunks", copy)
    (one,) = repair(tmp_path / "a.zarr", backup=tmp_path / "old").shards
    assert one.action is RepairAction.UNREADABLE and "another writer has changed it" in one.detail
    expected = CONTENT.copy()
    expected[:4, 12:15] = 5
    assert (elements(tmp_path / "a.zarr") == expected).all()


@pytest.mark.parametrize("kind", ["memory", "conditional"])
def test_shard_that_is_deleted_meanwhile_is_not_made_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store of requests an empty shard was stored: its absent inner chunks hid that a user had erased it."""
    store = store_of(kind, tmp_path)
    filled(store)
    flip(store, "c/0/0", 10)
    change = one_shard.replace_chunks

    def change_late(*arguments: Any) -> Any:
        sync(store.delete("c/0/0"))
        return change(*arguments)

    monkeypatch.setattr(one_shard, "replace_chunks", change_late)
    (one,) = repair(store, backup=tmp_path / "old").shards
    assert one.action is RepairAction.UNREADABLE
    assert "deleted" in one.detail
    assert sync(store.get("c/0/0", default_buffer_prototype())) is None


def test_header_footer_and_alignment_stay(tmp_path: Path) -> None:
    spec = ShardSpec((8,), (2,), "uint8", 0, ["bytes", "crc32c"])
    path = tmp_path / "shard"
    with shardcodec.ShardWriter(path, spec, header=b"head", footer=b"foot", alignment=512) as writer:
        for i in range(4):
            writer.write_chunk((i,), np.full(2, i + 1, np.uint8))
    data = bytearray(path.read_bytes())
    data[512] ^= 1
    path.write_bytes(data)
    (one,) = repair(path, spec=spec, backup=tmp_path / "old").shards
    assert one.lost == ((0,),)
    with shardcodec.open_shard(path, None, spec) as shard:
        assert (shard.header, shard.footer, shard.alignment) == (b"head", b"foot", 512)
        assert shard.read_region().tolist() == [0, 0, 2, 2, 3, 3, 4, 4]


def test_pending_journal_is_rolled_back_after_a_backup(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, mixture = kill_after_the_last_slot(scene)
    new = tmp_path / "new"
    assert [one.action for one in repair(scene.folder / "a", to=new).shards] == [RepairAction.ROLLED_BACK]
    assert journal.exists() and scene.shard.read_bytes() == mixture, "the source is not changed"
    assert (elements(new) == scene.old).all()
    report = repair(scene.folder / "a", backup=tmp_path / "backup")
    (one,) = report.shards
    assert one.action is RepairAction.ROLLED_BACK and report.n_restored == 1
    assert one.backup is not None and Path(one.backup).read_bytes() == mixture
    assert Path(f"{one.backup}.journal").read_bytes() == good
    assert pending_journal(str(scene.shard)) is None and scene.check() == "old"


@pytest.mark.parametrize("layout", ["equal", "other shards", "not sharded", "v2"])
def test_rest_is_taken_from_a_copy_in_any_layout(tmp_path: Path, layout: str) -> None:
    array = filled(tmp_path / "a.zarr")
    with quiet():
        if layout == "equal":
            filled(tmp_path / "copy.zarr")
        else:
            how: dict[str, Any] = {"chunks": (5, 7)}
            if layout == "other shards":
                how = {"chunks": (2, 2), "shards": (4, 6)}
            version: Any = {"zarr_format": 2} if layout == "v2" else {}
            made = zarr.create_array(
                tmp_path / "copy.zarr", shape=(16, 24), dtype="int32", fill_value=-1, **how, **version
            )
            made[...] = CONTENT
    flip(array.store, "c/0/1")
    put(array.store, "c/1/1", b"")
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=tmp_path / "copy.zarr")
    assert (report.n_restored, report.n_lost_chunks) == (2, 0)
    assert sum(one.n_from_copy for one in report.shards) == 9
    assert (elements(tmp_path / "b.zarr") == CONTENT).all()
    repair(tmp_path / "a.zarr", backup=tmp_path / "old", copy=tmp_path / "copy.zarr")
    assert (elements(tmp_path / "a.zarr") == CONTENT).all()


def test_damaged_copy_is_not_taken(tmp_path: Path) -> None:
    array, other = filled(tmp_path / "a.zarr"), filled(tmp_path / "copy.zarr")
    for one in (array, other):
        flip(one.store, "c/0/1")
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=tmp_path / "copy.zarr")
    assert report.n_lost_chunks == 1 and (elements(tmp_path / "b.zarr") == without_first_chunk()).all()


def test_copy_without_any_of_the_damaged_inner_chunks_restores_nothing(tmp_path: Path) -> None:
    """The repair says what is lost, in a new hierarchy and in place."""
    array, other = filled(tmp_path / "a.zarr"), filled(tmp_path / "copy.zarr")
    for one in (array, other):
        flip(one.store, "c/0/1")
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=tmp_path / "copy.zarr")
    assert sum(one.n_from_copy for one in report.shards) == 0 and report.n_lost_chunks == 1
    assert (elements(tmp_path / "b.zarr") == without_first_chunk()).all()
    report = repair(tmp_path / "a.zarr", backup=tmp_path / "old", copy=tmp_path / "copy.zarr")
    assert sum(one.n_from_copy for one in report.shards) == 0 and report.n_lost_chunks == 1
    assert (elements(tmp_path / "a.zarr") == without_first_chunk()).all()


def test_copy_of_another_shape_is_refused(tmp_path: Path) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    checked(tmp_path / "copy.zarr", shape=(8, 24))
    with pytest.raises(ValueError, match=r"expected an array of shape \(16, 24\)"):
        repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=tmp_path / "copy.zarr")


def test_transposed_array_takes_the_right_elements_of_a_copy(tmp_path: Path) -> None:
    spec = ShardSpec(
        (8, 12), (2, 4), "int32", -1, [LITTLE, "crc32c"],
        before=[{"name": "transpose", "configuration": {"order": [1, 0]}}],
    )  # fmt: skip
    write_array(tmp_path / "a.zarr", spec, (15, 23))
    with quiet():
        array = zarr.open_array(tmp_path / "a.zarr")
        array[...] = CONTENT[:15, :23]
        zarr.create_array(tmp_path / "copy.zarr", shape=(15, 23), chunks=(4, 4), dtype="int32")[...] = (
            CONTENT[:15, :23]
        )
    for key in ("c/0/0", "c/1/1"):
        put(array.store, key, b"")
    repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=tmp_path / "copy.zarr")
    assert (elements(tmp_path / "b.zarr") == CONTENT[:15, :23]).all()


@pytest.mark.parametrize("name", [case.name for case in cases() if case.shard is not None])
def test_case_of_the_page_is_read_after_the_repair(tmp_path: Path, name: str) -> None:
    """The repaired shard is valid, and each of its inner chunks has the right elements or none."""
    case = next(one for one in cases() if one.name == name)
    assert case.shard is not None
    spec, path = case_spec(case), tmp_path / "shard"
    path.write_bytes(bytes.fromhex(case.shard))
    if not verify(path, spec=spec, level="decode").n_findings:
        return
    report = repair(path, spec=spec, to=tmp_path / "new")
    assert report.n_damaged == 1
    if report.shards[0].action is RepairAction.LEFT:
        assert not (tmp_path / "new").exists()
        return
    assert verify(tmp_path / "new", spec=spec, level="decode").n_findings == 0
    with shardcodec.open_shard(tmp_path / "new", None, spec) as shard:
        found = [shard.read_chunks([at]).tobytes().decode() for at in np.ndindex(*spec.grid_shape)]
    expected = [one if "Error" not in one else None for one in case.chunks]
    words = {"zero", "one.", "two.", "tres", "x"}
    for is_now, was in zip(found, expected, strict=True):
        assert is_now == was if was is not None else is_now in words | {FILL, "."}


def check_repair(folder: Path, name: str, one: Original, data: bytes) -> None:
    path, new = folder / "shard", folder / "new"
    path.write_bytes(data)
    report = repair(path, spec=one.spec, to=new)
    assert path.read_bytes() == data, name
    if not new.exists():
        assert report.n_damaged == 1, name
        return
    assert verify(new, spec=one.spec, level="decode").n_findings == 0, name
    coords = list(np.ndindex(*one.spec.grid_shape))
    with shardcodec.open_shard(new, None, one.spec) as shard:
        present, found = shard.state().reshape(-1), shard.read_chunks(coords)
    states = [{p: shardcodec.decode(chunk, one.spec.inner) for p, chunk in s.items()} for s in one.states]
    kept = np.flatnonzero(present).tolist()
    assert any(all(p in state and (found[p] == state[p]).all() for p in kept) for state in states), name
    lost = {position for shard in report.shards for position in shard.lost}
    assert not lost & {coords[p] for p in kept}, name
    for state in states:
        if all(p in state for p in kept) and not report.n_damaged:
            assert set(kept) == set(state), name
    new.unlink()


def test_random_damage_is_repaired_or_reported(tmp_path: Path) -> None:
    for name, one, data in cases_of(80, seed=4):
        check_repair(tmp_path, name, one, data)


@pytest.mark.nightly
def test_a_thousand_random_damages_are_repaired_or_reported(tmp_path: Path) -> None:
    for name, one, data in cases_of(1000, seed=5):
        check_repair(tmp_path, name, one, data)


def test_command_repairs_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = filled(tmp_path / "a.zarr")
    flip(array.store, "c/0/1")
    path, old = str(tmp_path / "a.zarr"), str(tmp_path / "old")
    assert run(["repair", path, "--in-place"]) == 2
    assert "--in-place was removed: --backup DIR repairs in place" in capsys.readouterr().err
    assert run(["repair", path, "--backup", old, "--dry-run"]) == 1
    assert "would be repaired: 7 inner chunks kept, 0 from the copy, 1 lost" in capsys.readouterr().out
    assert not Path(old).exists()
    assert run(["repair", path, "--backup", old]) == 1
    text = capsys.readouterr().out
    assert "\n  lost          (0, 0)\n" in text and f"\n  old object    {old}/c/0/1\n" in text
    assert run(["repair", path, "--backup", old]) == 0


def test_command_exits_with_0_if_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = filled(tmp_path / "a.zarr")
    put(array.store, "c/0/1", get(array.store, "c/0/1") + struct.pack("<I", 7))
    assert run(["repair", str(tmp_path / "a.zarr"), "--to", str(tmp_path / "b.zarr"), "--jsonl"]) == 0
    first, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["schema"] == "shardcodec.repair.shard" and first["findings"][0]["kind"] == "torn append"
    assert last["n_restored"] == 1
    assert (elements(tmp_path / "b.zarr") == CONTENT).all()
    assert shard_path(array, "c/0/1").exists()


@pytest.mark.parametrize("target", ["g.zarr/x/c/0/1", "g.zarr/x", "link/x/c/0/1"])
@pytest.mark.parametrize("backup", ["g.zarr/x/c/0", "g.zarr/x/old", "g.zarr/old", "link/x/c"])
def test_backup_inside_the_hierarchy_is_refused(tmp_path: Path, target: str, backup: str) -> None:
    zarr.create_group(tmp_path / "g.zarr", zarr_format=3)
    array = filled(tmp_path / "g.zarr/x")
    flip(array.store, "c/0/1")
    (tmp_path / "link").symlink_to(tmp_path / "g.zarr")
    before = bytes_of_files(tmp_path / "g.zarr")
    with pytest.raises(ValueError, match="backup: expected a folder outside of"):
        repair(tmp_path / target, backup=tmp_path / backup)
    assert bytes_of_files(tmp_path / "g.zarr") == before


@pytest.mark.parametrize("in_place", [False, True], ids=["to", "in place"])
@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_shard_that_is_gone_is_taken_from_the_copy(kind: str, in_place: bool, tmp_path: Path) -> None:
    """For a deleted shard, `repair --copy COPY` wrote fill values and said "0 lost", although the copy had the shard."""
    store, copy, new = (store_of(kind, tmp_path / name) for name in ("a.zarr", "copy.zarr", "new.zarr"))
    array = filled(store)
    filled(copy)
    sync(array.store.delete("c/0/1"))
    if in_place:
        report = repair(store, copy=copy, backup=tmp_path / "old")
    else:
        report = repair(store, copy=copy, to=new)
    (one,) = report.shards
    assert (report.n_damaged, report.n_restored, report.n_lost_chunks) == (1, 1, 0)
    assert one.shard.endswith("c/0/1")
    assert (one.n_kept, one.n_from_copy) == (0, 8)
    result = store if in_place else new
    assert (elements(result) == CONTENT).all()
    assert verify(result, against=copy).n_findings == 0


def test_shard_that_is_gone_and_damaged_in_the_copy_is_named(tmp_path: Path) -> None:
    """The copy has the shard, but one inner chunk is damaged there: the others are restored, and the report names this one."""
    array, copy = filled(tmp_path / "a.zarr"), filled(tmp_path / "copy.zarr")
    sync(array.store.delete("c/0/1"))
    flip(copy.store, "c/0/1")
    report = repair(tmp_path / "a.zarr", copy=tmp_path / "copy.zarr", to=tmp_path / "b.zarr")
    (one,) = report.shards
    assert (one.n_from_copy, one.lost, report.n_lost_chunks) == (7, ((0, 0),), 1)
    assert (elements(tmp_path / "b.zarr") == without_first_chunk()).all()


def test_copy_in_another_layout_has_the_shard_that_is_gone(tmp_path: Path) -> None:
    """Shards that only have fill values in the copy are not stored."""
    array = filled(tmp_path / "a.zarr")
    other = zarr.create_array(tmp_path / "copy.zarr", shape=CONTENT.shape, chunks=(5, 7), dtype="int32")
    other[...] = elements(tmp_path / "a.zarr")
    sync(array.store.delete("c/0/1"))
    report = repair(tmp_path / "a.zarr", copy=tmp_path / "copy.zarr", to=tmp_path / "b.zarr")
    assert [one.shard[-5:] for one in report.shards] == ["c/0/1"]
    assert (elements(tmp_path / "b.zarr") == CONTENT).all()


@pytest.mark.parametrize("codec", ["zstd", "blosc"])
@pytest.mark.parametrize("n_lost", [1, 3])
@pytest.mark.parametrize("kind", ["random", "even"])
def test_missing_bytes_cost_only_the_inner_chunks_that_had_them(
    codec: str, n_lost: int, kind: str, tmp_path: Path
) -> None:
    """zarr's default codecs have no checksum, but a frame of zstd has its size: `repair` kept none of 16 inner chunks where one byte was missing."""
    values = np.random.default_rng(1).integers(0, 2**31, (16, 16), dtype=np.int32)
    if kind == "even":
        values = np.arange(256, dtype=np.int32).reshape(16, 16) + 1
    compressor = zarr.codecs.ZstdCodec() if codec == "zstd" else zarr.codecs.BloscCodec()
    with quiet():
        array = zarr.create_array(
            tmp_path / "a",
            shape=(16, 16),
            chunks=(4, 4),
            shards=(16, 16),
            dtype="int32",
            compressors=compressor,
        )
        array[...] = values
    stored = (tmp_path / "a/c/0/0").read_bytes()
    n_data = len(stored) - 16 * 16 - 4
    for number, at in enumerate((2, n_data // 3, n_data // 2, n_data - n_lost)):
        (tmp_path / "a/c/0/0").write_bytes(stored[:at] + stored[at + n_lost :])
        found = verify(tmp_path / "a")
        report = repair(tmp_path / "a", to=tmp_path / f"b{number}")
        assert found.n_findings
        assert 1 <= report.n_lost_chunks <= 2
        new = elements(tmp_path / f"b{number}")
        assert ((new == values) | (new == 0)).all()
        assert (new != values).sum() == 16 * report.n_lost_chunks


def test_absent_shards_are_not_asked_for_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a copy of another layout the grid was walked: 250,000 absent shards took 72 s."""
    with quiet():
        array = zarr.create_array(tmp_path / "old", shape=(100_000,), chunks=(10,), dtype="i4")
        array[500:520] = 1
    convert(tmp_path / "old", tmp_path / "new", chunks=(5,), shards=(50,))
    (tmp_path / "new/c/10").unlink()
    asked: list[Any] = []
    shard = ArrayTarget.shard
    monkeypatch.setattr(ArrayTarget, "shard", lambda self, at: asked.append(at) or shard(self, at))
    report = repair(tmp_path / "new", copy=tmp_path / "old", to=tmp_path / "repaired")
    assert (report.n_damaged, report.n_restored) == (1, 1) and len(asked) < 20
    assert (elements(tmp_path / "repaired") == elements(tmp_path / "old")).all()
