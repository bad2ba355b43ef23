# test_other_objects.py - a new hierarchy has the objects that belong to no array
# SPDX-License-Identifier: MIT
"""SpatialData keeps tables as parquet files in groups, bioformats2raw an XML document, webknossos a JSON document.

`convert`, `repair --to` and `compact --to` copy such objects as they are.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet, store_of
from spec_json import array_2022
from tool_sources import by_compact, by_repair, edit, objects_of, put, write_2022
from zarr.storage import LocalStore, ZipStore

from shardcodec.cli.app import run
from shardcodec.tools import compact, convert, plan_convert, repair, run_part
from shardcodec.tools.hierarchy_copy import HierarchyCopy
from shardcodec.tools.new_hierarchy import NewHierarchy
from shardcodec.transformer import open_2022

OTHERS = {
    "datasource-properties.json": b"{}",
    ".hidden": b"h",
    "empty": b"",
    "OME/METADATA.ome.xml": b"<OME/>" * 10,
    "shapes/cells/part.0.parquet": bytes(range(256)) * 9000,  # several blocks
    "plain folder/array/c/0/0": b"no node is above it",
    "plain folder/array/zarr.json": b"nor here",
    "image/notes.txt": b"in the folder of an array",
    "image/c/0/.DS_Store": b"beside its shards",
}
NBYTES = sum(map(len, OTHERS.values()))


def hierarchy(store: Any, zarr_format: Any = 3) -> None:
    """Make a group with one array in shards, one that only zarr can decode, and other objects."""
    with quiet():
        group = zarr.create_group(store, zarr_format=zarr_format, attributes={"title": "old"})
        how = {"shards": (32, 32)} if zarr_format == 3 else {}
        group.create_array("image", data=np.arange(4096).reshape(64, 64), chunks=(8, 8), **how)
        group.create_group("shapes").create_group("cells")
        group.create_group("OME")
        if zarr_format == 3:
            group.create_array("names", shape=(2,), dtype="string")[:] = np.array(["a", "b"], dtype=object)
    for name, data in OTHERS.items():
        put(store, name, data)


def by_convert(old: Any, new: Any, **how: Any) -> Any:
    return convert(old, new, shards=(64, 64), **how)


Work = Callable[..., Any]
WAYS = pytest.mark.parametrize("work", [by_convert, by_repair, by_compact])


@WAYS
@pytest.mark.parametrize("kind", ["local", "memory", "other", "conditional"])
def test_objects_that_belong_to_no_array_are_copied(work: Work, kind: str, tmp_path: Path) -> None:
    """They were dropped without a word, and programs that need them could not open the copy."""
    old, new = store_of(kind, tmp_path / "a.zarr"), store_of(kind, tmp_path / "b.zarr")
    hierarchy(old)
    plan = work(old, new, dry_run=True)
    assert (plan.others.n_objects, plan.others.nbytes) == (len(OTHERS), NBYTES)
    assert not objects_of(new)
    report = work(old, new)
    assert report.others == plan.others and report.others.n_left == 0
    found = objects_of(new)
    assert {name: found.get(name) for name in OTHERS} == OTHERS
    with quiet():
        group = zarr.open_group(new, mode="r")
        assert (group["image"][...] == np.arange(4096).reshape(64, 64)).all()
        assert group["names"][...].tolist() == ["a", "b"]
    extra = {name for name in found if not name.startswith(("image/c/", "names/c/"))} - set(OTHERS)
    assert extra == {
        f"{node}zarr.json" for node in ("", "image/", "names/", "OME/", "shapes/", "shapes/cells/")
    }


@WAYS
def test_entries_of_a_zip_file_are_copied(work: Work, tmp_path: Path) -> None:
    hierarchy(ZipStore(tmp_path / "a.zip", mode="w"))
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as file:
        file.writestr("folder/", b"")
    report = work(tmp_path / "a.zip", tmp_path / "b.zarr")
    assert (report.others.n_objects, report.others.nbytes) == (len(OTHERS), NBYTES)
    for name, data in OTHERS.items():
        assert (tmp_path / "b.zarr" / name).read_bytes() == data


def test_objects_beside_arrays_of_zarr_v2_are_copied(tmp_path: Path) -> None:
    """Its metadata are translated, so they are none of them."""
    old, new = LocalStore(tmp_path / "a.zarr"), LocalStore(tmp_path / "b.zarr")
    hierarchy(old, 2)
    with quiet():
        zarr.consolidate_metadata(old, zarr_format=2)
    report = by_convert(old, new)
    assert report.others.n_objects == len(OTHERS) and not report.others.left
    found = objects_of(new)
    assert {name: found.get(name) for name in OTHERS} == OTHERS
    assert not any(name.rpartition("/")[2] in (".zarray", ".zgroup", ".zmetadata") for name in found)


def test_chunks_that_only_zarr_decodes_are_no_other_objects(tmp_path: Path) -> None:
    """The chunks of an array with a codec that shardcodec does not have must not come into the new array."""
    import numcodecs

    with quiet():
        group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
        array = group.create_array("a", shape=(40,), chunks=(10,), dtype="i4", compressors=numcodecs.LZMA())
        array[...] = 7
    for name, data in {"notes": b"n", "9": b"a chunk outside"}.items():
        (tmp_path / "a.zarr/a" / name).write_bytes(data)
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(20,))
    assert report.others.n_objects == 1 and [one.name for one in report.others.left] == ["a/9"]
    names = {path.name for path in (tmp_path / "b.zarr/a").iterdir()}
    assert names == {"notes", "c", "zarr.json"}


@pytest.mark.parametrize("path", ["", "group"])
def test_objects_of_a_hierarchy_of_2022_are_copied(path: str, tmp_path: Path) -> None:
    """It has chunks below ``data/root``; a new hierarchy has all in one folder."""
    old = tmp_path / "old"
    write_2022(old, {"group/a": array_2022()}, {"": {}, "group": {}})
    with quiet():
        open_2022(old, path="group/a", mode="r+")[...] = 5
    files = {
        "README": b"r",
        "data/root/group/table": b"t",
        "data/root/group/a/c0/.hidden": b"h",
        "meta/root/x": b"x",
    }
    for name, data in files.items():
        (old / name).write_bytes(data)
    (old / "data/root/group/zarr.json").write_bytes(b"a foreign one")
    report = convert(old / path, tmp_path / "b.zarr")
    wanted = {"group/table": b"t", "group/a/c0/.hidden": b"h"} | ({} if path else {"README": b"r", "x": b"x"})
    wanted = {name.removeprefix(f"{path}/"): data for name, data in wanted.items()}
    assert report.others.n_objects == len(wanted) and report.others.n_left == 1
    for name, data in wanted.items():
        assert (tmp_path / "b.zarr" / name).read_bytes() == data
    with quiet():
        assert (zarr.open_group(tmp_path / "b.zarr")["a" if path else "group/a"][...] == 5).all()
    assert convert(old / path, tmp_path / "c.zarr", exclude="@objects").others.n_objects == 0


@WAYS
def test_only_arrays_leaves_out_the_others(work: Work, tmp_path: Path) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    report = work(tmp_path / "a.zarr", tmp_path / "b.zarr", exclude="@objects")
    assert report.others.n_objects == 0
    assert not any((tmp_path / "b.zarr" / name).exists() for name in OTHERS)


@WAYS
def test_chosen_array_comes_with_the_objects_in_its_folder(work: Work, tmp_path: Path) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    work(tmp_path / "a.zarr", tmp_path / "b.zarr", only="image")
    assert {name for name in OTHERS if (tmp_path / "b.zarr" / name).exists()} == {
        name for name in OTHERS if name.startswith("image/")
    }


@pytest.mark.parametrize("kind", ["local", "memory"])
@WAYS
def test_objects_of_groups_around_a_chosen_array_are_named(work: Work, kind: str, tmp_path: Path) -> None:
    """The groups are in the copy, and their objects were neither in it nor in the report."""
    old = store_of(kind, tmp_path / "old")
    hierarchy(old)
    with quiet():
        zarr.create_array(old, name="shapes/cells/a", data=np.ones((8, 8)), chunks=(4, 4), shards=(8, 8))
        zarr.create_array(old, name="shapes/other", data=np.arange(8), chunks=(4,), shards=(8,))
    put(old, "shapes/notes.txt", b"text")
    report = work(old, tmp_path / "new", only="shapes/cells/a")
    root = [".hidden", "datasource-properties.json", "empty", "plain folder/"]
    assert sorted(one.name for one in report.others.left) == [
        *root, "shapes/cells/part.0.parquet", "shapes/notes.txt",
    ]  # fmt: skip
    if work is by_convert:
        found = convert(old, tmp_path / "only", only="shapes/cells").others
        assert [one.name for one in found.left] == [*root, "shapes/notes.txt"]


@WAYS
def test_shardcodecs_own_files_are_not_copied(work: Work, tmp_path: Path) -> None:
    """A mark of a job in a copy would keep the next conversion away; a journal would roll another file back."""
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    own = (".shardcodec-job", "image/c/0/.shardcodec-host-1-2-3", ".x.zarr.shardcodec/.shardcodec-undo-7")
    for name in own:
        put(LocalStore(tmp_path / "a.zarr"), name, b"own")
    with quiet():
        zarr.create_array(tmp_path / "x.zarr", data=np.arange(100), chunks=(10,))
    plan_convert(tmp_path / "x.zarr", tmp_path / "y.zarr", tmp_path / "a.zarr/my.json", parts=1, shards=(50,))
    run_part(tmp_path / "a.zarr/my.json", 0)
    assert list((tmp_path / "a.zarr/my.json.ledger").iterdir())
    report = work(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert report.others.n_objects == len(OTHERS)
    assert not any((tmp_path / "b.zarr" / name).exists() for name in (*own, "my.json", "my.json.ledger"))


@WAYS
def test_what_is_left_out_is_named(work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk outside of a shrunk array would come back if the copy grew."""
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    (tmp_path / "a.zarr/image/c/7").mkdir()
    shutil.copy(tmp_path / "a.zarr/image/c/0/0", tmp_path / "a.zarr/image/c/7/0")
    report = work(tmp_path / "a.zarr", tmp_path / "b.zarr")
    (left,) = report.others.left
    assert left.name == "image/c/7/0" and "outside of the array" in left.reason
    assert not (tmp_path / "b.zarr/image/c/7").exists()
    assert report.to_json()["others"]["left"][0]["name"] == "image/c/7/0"


def test_metadata_of_zarr_v2_beside_those_of_v3(tmp_path: Path) -> None:
    """A copy of ``.zarray`` would show an array without chunks; leftovers that name no array are copied."""
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    for name in (".zattrs", ".zmetadata", "image/.zarray", "image/.zattrs"):
        put(LocalStore(tmp_path / "a.zarr"), name, b"{}")
    report = by_convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert sorted(one.name for one in report.others.left) == [".zmetadata", "image/.zarray"]
    assert (tmp_path / "b.zarr/image/.zattrs").exists() and (tmp_path / "b.zarr/.zattrs").exists()
    assert not (tmp_path / "b.zarr/image/.zarray").exists()


@pytest.mark.parametrize("work", [by_repair, by_compact])
@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("only_arrays", [False, True])
def test_documents_of_both_formats_are_copied(
    work: Work, kind: str, only_arrays: bool, tmp_path: Path
) -> None:
    """Only documents that a listing has found are looked for; without a listing all of them are."""
    old, new = store_of(kind, tmp_path / "a.zarr"), store_of(kind, tmp_path / "b.zarr")
    hierarchy(old)
    names = ".zattrs", "image/.zarray", "image/.zattrs", "names/.zarray", "shapes/.zgroup", "OME/.zattrs"
    for name in names:
        put(old, name, b"{}")
    report = work(old, new, exclude=["@objects"] * only_arrays)
    # an array in a folder that is no group is one of the other objects
    named = [] if only_arrays else ["plain folder/array/zarr.json"]
    assert [part.name for part in report.left.parts] == named
    found = objects_of(new)
    assert [found.get(name) for name in names] == [b"{}"] * len(names)


def test_object_in_the_way_of_a_new_shard_is_refused(tmp_path: Path) -> None:
    """In an array of Zarr v2 ``c/0/0`` is a file like any other; in the new array it would be a shard."""
    hierarchy(LocalStore(tmp_path / "a.zarr"), 2)
    put(LocalStore(tmp_path / "a.zarr"), "image/c/0/0", b"x")
    with pytest.raises(
        ValueError, match="expected no object with the name of a chunk of the new array 'image'"
    ):
        by_convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr").exists()
    by_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", exclude="@objects")


def test_plan_and_its_parts_copy_them_once(tmp_path: Path) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    planned = plan_convert(
        tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "plan.json", parts=2, shards=(32, 64)
    )
    assert planned.others.n_objects == len(OTHERS)
    first, last = (run_part(tmp_path / "plan.json", part) for part in (0, 1))
    assert first.others.n_objects == 0 and last.is_complete
    assert (last.others.n_objects, last.others.nbytes) == (len(OTHERS), NBYTES)
    for name, data in OTHERS.items():
        assert (tmp_path / "b.zarr" / name).read_bytes() == data
    plan_convert(
        tmp_path / "a.zarr",
        tmp_path / "c.zarr",
        tmp_path / "c.json",
        parts=1,
        shards=(64, 64),
        exclude="@objects",
    )
    assert run_part(tmp_path / "c.json", 0).others.n_objects == 0
    assert not (tmp_path / "c.zarr/.hidden").exists()


def test_job_that_ended_between_two_objects_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    copied: list[str] = []
    copy = NewHierarchy.copy

    def killed(self: NewHierarchy, store: Any, key: str, name: str, *more: Any, **how: Any) -> Any:
        if name in OTHERS and len(copied) == 4:
            raise KeyboardInterrupt
        copied.extend([name] if name in OTHERS else [])
        return copy(self, store, key, name, *more, **how)

    how: dict[str, Any] = {"job": tmp_path / "job.json", "threads": 1}
    monkeypatch.setattr(NewHierarchy, "copy", killed)
    with pytest.raises(KeyboardInterrupt):
        by_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", **how)
    monkeypatch.undo()
    assert not (tmp_path / "b.zarr/zarr.json").exists()
    assert sum((tmp_path / "b.zarr" / name).exists() for name in OTHERS) == 4
    report = by_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True, **how)
    assert report.is_complete and report.n_written == 0 and report.others.n_objects == len(OTHERS)
    for name, data in OTHERS.items():
        assert (tmp_path / "b.zarr" / name).read_bytes() == data


def test_late_worker_writes_no_object_into_a_complete_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts find all shards finished. The slower one must not undo what users have written since."""
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    plan_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "plan.json", parts=2, shards=(32, 64))
    run_part(tmp_path / "plan.json", 0)
    copy = NewHierarchy.copy
    is_late: list[bool] = []

    def overtaken(self: NewHierarchy, store: Any, key: str, name: str, *more: Any, **how: Any) -> Any:
        if not is_late and name in OTHERS:
            is_late.append(True)
            assert run_part(tmp_path / "plan.json", 1).is_complete
            (tmp_path / "b.zarr/.hidden").write_bytes(b"users have written since")
        return copy(self, store, key, name, *more, **how)

    monkeypatch.setattr(NewHierarchy, "copy", overtaken)
    assert run_part(tmp_path / "plan.json", 1, threads=1).is_complete
    assert is_late and (tmp_path / "b.zarr/.hidden").read_bytes() == b"users have written since"


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a//b", "x/./y"])
@WAYS
def test_names_that_lead_elsewhere_are_refused_before_the_first_write(
    work: Work, name: str, tmp_path: Path
) -> None:
    hierarchy(ZipStore(tmp_path / "a.zip", mode="w"))
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as file:
        file.writestr(name, b"x")
    with pytest.raises(ValueError, match="expected the name of an object that can be written"):
        work(tmp_path / "a.zip", tmp_path / "to/b.zarr")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.zip"]
    work(tmp_path / "a.zip", tmp_path / "to/b.zarr", exclude="@objects")


def test_whole_object_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Some stores take only whole objects; then the memory must suffice for one."""
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    put(LocalStore(tmp_path / "a.zarr"), "large", bytes(9 << 20))
    new = store_of("memory", tmp_path)
    with pytest.raises(NotImplementedError, match="permit more memory"):
        by_convert(tmp_path / "a.zarr", new, memory=8 << 20)
    assert by_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", memory=8 << 20).is_complete


def test_objects_of_another_program_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    copy = HierarchyCopy.copy_others

    def late(self: HierarchyCopy, *arguments: Any) -> Any:
        (tmp_path / "b.zarr/.hidden").write_bytes(b"of another program")
        return copy(self, *arguments)

    monkeypatch.setattr(HierarchyCopy, "copy_others", late)
    with pytest.raises(FileExistsError, match="expected no file of this name"):
        repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr")
    assert (tmp_path / "b.zarr/.hidden").read_bytes() == b"of another program"
    assert not (tmp_path / "b.zarr/zarr.json").exists()


@pytest.mark.parametrize("command", ["convert", "repair", "compact"])
def test_command_counts_them(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    old, new = str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")
    words = [command, old, new] if command == "convert" else [command, old, "--to", new]
    assert run([*words, "--dry-run"]) == 0
    assert f"{len(OTHERS)} other objects (2.2 MiB) would be copied" in capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["others"]["n_objects"] == len(OTHERS)
    shutil.rmtree(new)
    assert run([*words, "--exclude", "@objects"]) == 0
    assert "other object" not in capsys.readouterr().out


def test_nothing_is_copied_in_place(tmp_path: Path) -> None:
    hierarchy(LocalStore(tmp_path / "a.zarr"))
    with pytest.raises(ValueError, match="exclude: expected `to`"):
        compact(tmp_path / "a.zarr", exclude="@objects")
    assert compact(tmp_path / "a.zarr").others.n_objects == 0


def test_file_beside_the_chunks_of_an_array_that_is_left_out_is_named(tmp_path: Path) -> None:
    """The report named the array, whose codecs only zarr has and no Zarr v3, and not the notes of a user in its folder."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        group.create_array("b", shape=(4,), chunks=(2,), dtype="int32")[...] = 1
        group.create_array("a", shape=(4,), chunks=(2,), dtype="int32")[...] = 1
    edit(tmp_path / "old/a/.zarray", filters=[{"id": "of-another-program"}])
    (tmp_path / "old/a/notes.txt").write_text("text")
    report = convert(tmp_path / "old", tmp_path / "new")
    assert [one.name for one in report.left_arrays] == ["a"]
    assert [one.name for one in report.others.left] == ["a/notes.txt"]


def test_folder_of_an_array_with_the_name_of_a_chunk_is_kept(tmp_path: Path) -> None:
    """A file in the folder of the array "0" was taken for one in the place of its chunk 0, and left out."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        for name in ("0", "1/0"):
            group.create_array(name, shape=(4,), chunks=(2,), dtype="int32")[...] = 1
            (tmp_path / "old" / name / "notes").mkdir()
            (tmp_path / "old" / name / "notes/text.txt").write_text("text")
    report = repair(tmp_path / "old", to=tmp_path / "new")
    assert report.others.n_objects == 2 and not report.others.left
    assert (tmp_path / "new/1/0/notes/text.txt").read_text() == "text"
