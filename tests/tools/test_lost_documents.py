# test_lost_documents.py - nodes whose document is lost, but which consolidated metadata or a copy have
# SPDX-License-Identifier: MIT
"""zarr and xarray read an array by the consolidated metadata of its group when its own document is lost.

`convert`, `repair --to` and `compact --to` dropped such an array, ended with "complete", and made the consolidated metadata anew
without it: the last copy of its metadata was gone. `verify` advised one of these commands.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import memory_object_store, quiet
from tool_sources import COPIES, by_compact, by_convert, by_repair, copies, edit
from zarr.core.sync import sync

from shardcodec.tools import compact, convert, repair, verify

VALUES = np.arange(8, dtype=np.int32) + 1
LOST = {3: ("a/zarr.json", "g/zarr.json", "g/a/zarr.json"), 2: ("a/.zarray", "g/.zgroup", "g/a/.zarray")}
CASES = [(zarr_format, name) for zarr_format, names in LOST.items() for name in names]


def hierarchy(place: Any, zarr_format: Any = 3, *, consolidated: bool = True) -> None:
    with quiet():
        group = zarr.create_group(place, zarr_format=zarr_format, attributes={"root": 1})
        group.create_group("g", attributes={"in": "g"})
        for name in ("a", "b", "g/a"):
            array = group.create_array(
                name, shape=(8,), chunks=(4,), dtype="int32", attributes={"name": name}
            )
            array[...] = VALUES
        if consolidated:
            zarr.consolidate_metadata(place, zarr_format=zarr_format)


def check_whole(place: Any) -> None:
    """Check the elements and attributes of all nodes by their own documents, and by the consolidated metadata if there are any."""
    for use_consolidated in (False, None):
        with quiet():
            group = zarr.open_group(place, mode="r", use_consolidated=use_consolidated)
        assert dict(group.attrs) == {"root": 1}
        assert dict(group["g"].attrs) == {"in": "g"}
        for name in ("a", "b", "g/a"):
            assert (group[name][...] == VALUES).all()
            assert dict(group[name].attrs) == {"name": name}


WORK = {**COPIES, "repair from a copy": by_repair}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize(("zarr_format", "lost"), CASES)
def test_copies_take_the_document_from_consolidated_metadata(
    work: str, zarr_format: Any, lost: str, tmp_path: Path
) -> None:
    old, copy, new = tmp_path / "old", tmp_path / "copy", tmp_path / "new"
    hierarchy(old, zarr_format)
    shutil.copytree(old, copy)
    (old / lost).unlink()
    report = WORK[work](old, new, **({"copy": copy} if "copy" in work else {}))
    node, _, name = lost.rpartition("/")
    assert report.notes == (
        f"{node!r}: its {name} is lost or damaged; that of the consolidated metadata is taken",
    )
    check_whole(new)
    assert verify(new, against=copy).n_findings == 0


@pytest.mark.parametrize("stored", [b"", b"{", b"\0" * 100])
def test_document_that_is_no_json_counts_as_lost(stored: bytes, tmp_path: Path) -> None:
    hierarchy(tmp_path / "old")
    (tmp_path / "old/a/zarr.json").write_bytes(stored)
    for new, _ in copies(tmp_path / "old", tmp_path):
        check_whole(new)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("stored", [b"", b"{", b"[1]"])
@pytest.mark.parametrize(("zarr_format", "lost"), [*CASES, (3, "zarr.json"), (2, ".zgroup")])
def test_repair_takes_the_copy_of_a_damaged_document(
    zarr_format: Any, lost: str, stored: bytes, in_place: bool, tmp_path: Path
) -> None:
    """Only lost documents were taken from the copy. An empty one, as a power failure leaves it, left out the array, or the hierarchy."""
    hierarchy(tmp_path / "old", zarr_format, consolidated=False)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    (tmp_path / "old" / lost).write_bytes(stored)
    place = {"backup": tmp_path / "backup"} if in_place else {"to": tmp_path / "new"}
    report = repair(tmp_path / "old", copy=tmp_path / "copy", **place)
    (note,) = report.notes
    assert "that of the copy is taken" in note
    new = tmp_path / ("old" if in_place else "new")
    check_whole(new)
    assert verify(new, against=tmp_path / "copy").n_findings == 0
    if in_place:
        assert (tmp_path / "backup" / f"{lost}.old").read_bytes() == stored


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copy_of_a_group_of_another_format_is_still_read(zarr_format: Any, tmp_path: Path) -> None:
    """zarr reads the arrays by the consolidated metadata; the copy had the group in them as it was, and zarr opened none of its nodes."""
    hierarchy(tmp_path / "old", zarr_format)
    edit(tmp_path / "old/g" / ("zarr.json" if zarr_format == 3 else ".zgroup"), zarr_format=7)
    for new, report in copies(tmp_path / "old", tmp_path):
        assert "g" in [one.name for one in report.left_arrays]
        with quiet():
            group = zarr.open_group(new, mode="r")
        for name in ("a", "b", "g/a"):
            assert (group[name][...] == VALUES).all()


@pytest.mark.parametrize("inside", ["g", "g/a"])
@pytest.mark.parametrize(("zarr_format", "lost"), CASES[1:3] + CASES[4:])
def test_part_of_a_consolidated_hierarchy(inside: str, zarr_format: Any, lost: str, tmp_path: Path) -> None:
    """The group or the array is addressed directly: the consolidated metadata are those of a group above."""
    hierarchy(tmp_path / "old", zarr_format)
    (tmp_path / "old" / lost).unlink()
    for new, _ in copies(tmp_path / "old" / inside, tmp_path):
        with quiet():
            array = zarr.open_array(new / "a" if inside == "g" else new, mode="r")
        assert (array[...] == VALUES).all()
        assert dict(array.attrs) == {"name": "g/a"}


@pytest.mark.parametrize(("zarr_format", "lost"), CASES)
def test_one_array_of_a_group(zarr_format: Any, lost: str, tmp_path: Path) -> None:
    hierarchy(tmp_path / "old", zarr_format)
    (tmp_path / "old" / lost).unlink()
    name = "a" if lost.startswith("a") else "g/a"
    convert(tmp_path / "old", tmp_path / "rest", exclude="b")
    for new in (tmp_path / "rest", *(new for new, _ in copies(tmp_path / "old", tmp_path, only=name))):
        with quiet():
            group = zarr.open_group(new, mode="r")
        assert (group[name][...] == VALUES).all()
        if name == "g/a":
            assert dict(group["g"].attrs) == {"in": "g"}


@pytest.mark.parametrize("has_copy", [False, True])
@pytest.mark.parametrize(("zarr_format", "lost"), CASES)
def test_repair_in_place_restores_the_document(
    has_copy: bool, zarr_format: Any, lost: str, tmp_path: Path
) -> None:
    hierarchy(tmp_path / "old", zarr_format)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    stored = json.loads((tmp_path / "old" / lost).read_text())
    (tmp_path / "old" / lost).unlink()
    found = verify(tmp_path / "old")
    assert found.n_findings == 1
    assert "shardcodec repair" in str(found)
    assert "consolidate the metadata" not in str(found)  # this would remove the array
    (note,) = compact(tmp_path / "old").notes
    assert lost.rpartition("/")[0] in note
    repair(tmp_path / "old", backup=tmp_path / "backup", copy=tmp_path / "copy" if has_copy else None)
    assert json.loads((tmp_path / "old" / lost).read_text()).get("attributes") == stored.get("attributes")
    assert verify(tmp_path / "old", against=tmp_path / "copy").n_findings == 0
    check_whole(tmp_path / "old")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("zarr_format", "lost"), [*CASES, (3, "zarr.json"), (2, ".zgroup"), (2, ".zattrs"), (2, "g/a/.zattrs")]
)
def test_repair_takes_documents_that_only_the_copy_has(
    in_place: bool, zarr_format: Any, lost: str, tmp_path: Path
) -> None:
    hierarchy(tmp_path / "old", zarr_format, consolidated=False)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    (tmp_path / "old" / lost).unlink()
    place = {"backup": tmp_path / "backup"} if in_place else {"to": tmp_path / "new"}
    report = repair(tmp_path / "old", copy=tmp_path / "copy", **place)
    result = tmp_path / ("old" if in_place else "new")
    assert any("that of the copy is taken" in note for note in report.notes)
    check_whole(result)
    assert verify(result, against=tmp_path / "copy").n_findings == 0


def test_repair_restores_an_array_of_which_nothing_is_left(tmp_path: Path) -> None:
    hierarchy(tmp_path / "old", consolidated=False)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    shutil.rmtree(tmp_path / "old/g")
    report = repair(tmp_path / "old", copy=tmp_path / "copy", to=tmp_path / "new")
    assert [note.partition(":")[0] for note in report.notes] == ["'g'", "'g/a'"]
    check_whole(tmp_path / "new")


def test_array_that_the_copy_lacks_is_repaired_without_it(tmp_path: Path) -> None:
    """An array that is newer than the copy ended the repair of all others, and left half of a new hierarchy."""
    hierarchy(tmp_path / "old", consolidated=False)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/a")
    for name in ("a", "b"):
        (tmp_path / "old" / name / "c/1").write_bytes(b"torn")
    report = repair(tmp_path / "old", to=tmp_path / "new", copy=tmp_path / "copy")
    assert report.notes == ("'a': the copy has no such array; nothing was taken from it",)
    assert (report.n_damaged, report.n_restored, report.n_lost_chunks) == (2, 1, 1)
    new = zarr.open_group(tmp_path / "new", mode="r")
    assert (new["b"][...] == VALUES).all() and new["a"][...].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    for place in ({"to": tmp_path / "alone", "only": "a"}, {"backup": tmp_path / "backup"}):
        with pytest.raises(FileNotFoundError, match="no array 'a'"):
            repair(tmp_path / "old", copy=tmp_path / "copy", **place)
    assert (tmp_path / "old/a/c/1").read_bytes() == b"torn"
    (tmp_path / "copy/zarr.json").unlink()
    with pytest.raises(FileNotFoundError, match="copy: expected a zarr group"):
        repair(tmp_path / "old", to=tmp_path / "none", copy=tmp_path / "copy")


def test_document_of_a_copy_in_another_format_is_not_taken(tmp_path: Path) -> None:
    """The chunks of the source have the keys of Zarr v2."""
    hierarchy(tmp_path / "old", 2, consolidated=False)
    hierarchy(tmp_path / "copy", 3)
    (tmp_path / "old/a/.zarray").unlink()
    repair(tmp_path / "old", copy=tmp_path / "copy", to=tmp_path / "new")
    assert not (tmp_path / "new/a/zarr.json").exists()


def test_object_store(tmp_path: Path) -> None:
    store = memory_object_store()
    hierarchy(store)
    sync(store.delete("g/a/zarr.json"))
    for work in (by_convert, by_repair):
        new = memory_object_store()
        assert work(store, new).notes
        check_whole(new)


def test_texts_that_only_zarr_reads(tmp_path: Path) -> None:
    """zarr opened such an array by its document, which is lost."""
    texts = np.array(["a", "bc", "", "d"], dtype=object)
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        group.create_array("s", shape=(4,), chunks=(2,), dtype="str")[...] = texts
        zarr.consolidate_metadata(tmp_path / "old", zarr_format=2)
    (tmp_path / "old/s/.zarray").unlink()
    convert(tmp_path / "old", tmp_path / "new")
    with quiet():
        assert zarr.open_array(tmp_path / "new/s", mode="r")[...].tolist() == texts.tolist()


@pytest.mark.parametrize("source", ["consolidated metadata", "copy"])
@pytest.mark.parametrize(("zarr_format", "lost"), [case for case in CASES if "g" in case[1].split("/")[0]])
def test_one_array_is_restored_with_the_groups_above_it(
    zarr_format: Any, lost: str, source: str, tmp_path: Path
) -> None:
    """`repair --only` in place skipped lost documents, and the array stayed lost."""
    old, copy = tmp_path / "old", tmp_path / "copy"
    hierarchy(old, zarr_format, consolidated=source != "copy")
    shutil.copytree(old, copy)
    other = LOST[zarr_format][0]
    for name in (lost, other):
        (old / name).unlink()
    if lost.count("/") == 2 and source != "copy":
        assert verify(old, only="g/a").kinds == {"unreadable": 1}
    report = repair(old, backup=tmp_path / "backup", only="g/a", copy=copy)
    assert any(note.startswith(repr(lost.rpartition("/")[0])) for note in report.notes)
    assert json.loads((old / lost).read_bytes()) == json.loads((copy / lost).read_bytes())
    assert not (old / other).exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_lost_group_of_a_hierarchy_without_arrays_is_named(zarr_format: Any, tmp_path: Path) -> None:
    """The report named it by its path in the file system, and without its first letter."""
    with quiet():
        root = zarr.create_group(tmp_path / "old", zarr_format=zarr_format)
        root.create_group("deep/empty", attributes={"n": 1})
        zarr.consolidate_metadata(tmp_path / "old", zarr_format=zarr_format)
    name = "zarr.json" if zarr_format == 3 else ".zgroup"
    (tmp_path / "old/deep/empty" / name).unlink()
    for tool in (repair, compact):
        (note,) = tool(tmp_path / "old", to=tmp_path / tool.__name__).notes
        assert note.startswith("'deep/empty': ")
    (note,) = repair(tmp_path / "old", backup=tmp_path / "backup").notes
    assert note.startswith("'deep/empty': ")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_nodes_below_a_lost_group_are_named(zarr_format: Any, tmp_path: Path) -> None:
    """Their files were copied without a word; in a copy of Zarr v3 no program finds an array of Zarr v2."""
    hierarchy(tmp_path / "old", zarr_format, consolidated=False)
    (tmp_path / "old" / ("g/zarr.json" if zarr_format == 3 else "g/.zgroup")).unlink()
    for _, report in copies(tmp_path / "old", tmp_path):
        (note,) = report.notes
        assert "'g/a'" in note and "'g' has no document" in note
    named = [part for part in verify(tmp_path / "old").unchecked if "'g' has no document" in part.reason]
    assert [part.name.rpartition("/")[0] for part in named] == ["g/a"]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "kind", ["folder", "folder with a file", "link to a folder", "link to nothing", "FIFO"]
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_document_that_cannot_be_stored_is_named(
    zarr_format: Any, kind: str, in_place: bool, tmp_path: Path
) -> None:
    """A folder named zarr.json ended `repair --copy` with a bare error of the operating system, and `verify` did not find it.

    Documents after it were not restored, and a new hierarchy was left without any.
    """
    hierarchy(tmp_path / "old", zarr_format, consolidated=False)
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    document, later = LOST[zarr_format][0], LOST[zarr_format][2]
    (tmp_path / "old" / later).unlink()
    path = tmp_path / "old" / document
    path.unlink()
    if kind.startswith("folder"):
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        (tmp_path / "folder").mkdir()
        path.symlink_to(tmp_path / ("folder" if kind == "link to a folder" else "nothing"))
    if kind == "folder with a file":
        (path / "file").write_text("text")
    (found,) = (one for shard in verify(tmp_path / "old").shards for one in shard.findings)
    assert found.kind == "unreadable" and found.array == "a"
    place = {"backup": tmp_path / "backup"} if in_place else {"to": tmp_path / "new"}
    report = repair(tmp_path / "old", copy=tmp_path / "copy", **place)
    new = tmp_path / ("old" if in_place else "new")
    assert (zarr.open_array(new / "g/a", mode="r")[...] == VALUES).all()
    told = str(report.left_arrays) + str(report.others.left)
    if in_place:
        assert report.n_unreadable and "a" in told
        assert not any("'a'" in note for note in report.notes)
    else:
        check_whole(new)
    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path / "copy", damaged)
    (damaged / document).unlink()
    (damaged / document).mkdir()
    for copied, done in copies(damaged, tmp_path):
        plain = ["b", "g/a"] if copied.name == "compact" else []
        assert [one.name for one in done.left_arrays] == ["a", *plain]
        assert any(one.is_unreadable for one in done.left_arrays)


def test_nodes_in_the_folder_of_an_array_are_named(tmp_path: Path) -> None:
    """The document of an array in place of that of a group hides all nodes in it; a copy had their files, and its report no word."""
    hierarchy(tmp_path / "old", 3, consolidated=False)
    shutil.copy(tmp_path / "old/a/zarr.json", tmp_path / "old/g/zarr.json")
    for work in (by_convert, by_repair):
        (note,) = work(tmp_path / "old", tmp_path / work.__name__).notes
        assert note.startswith("'g/a': no group leads to this node, because it is in the array 'g'")


MALFORMED = {"shape": "x"}, {"codecs": None}, {"node_type": "x"}, {"zarr_format": None}


@pytest.mark.parametrize("members", [None, *MALFORMED], ids=str)
def test_malformed_document_counts_as_lost(members: dict[str, Any] | None, tmp_path: Path) -> None:
    """It went into the new consolidated metadata, so zarr opened no node of the copy, and the last good document was gone."""
    hierarchy(tmp_path / "old")
    if members is None:
        (tmp_path / "old/g/a/zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    else:
        edit(tmp_path / "old/g/a/zarr.json", **members)
    for new, report in copies(tmp_path / "old", tmp_path):
        assert report.notes == (
            "'g/a': its zarr.json is lost or damaged; that of the consolidated metadata is taken",
        )
        check_whole(new)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_malformed_document_is_in_no_consolidated_metadata(zarr_format: Any, tmp_path: Path) -> None:
    """The list of the source has it too: zarr opened no array of the copy, and that of `--copy` was not taken."""
    hierarchy(tmp_path / "copy", zarr_format)
    hierarchy(tmp_path / "old", zarr_format, consolidated=False)
    name, list_name = ("zarr.json", "zarr.json") if zarr_format == 3 else (".zarray", ".zmetadata")
    edit(tmp_path / "old/a" / name, shape="x")
    known = json.loads((tmp_path / "copy" / list_name).read_text())
    listed = (
        known["consolidated_metadata"]["metadata"]["a"]
        if zarr_format == 3
        else known["metadata"]["a/.zarray"]
    )
    listed["shape"] = "x"
    (tmp_path / "old" / list_name).write_text(json.dumps(known))
    for new, report in copies(tmp_path / "old", tmp_path):
        assert "a" in [one.name for one in report.left_arrays]
        with quiet():
            group = zarr.open_group(new, mode="r")
        for path in ("b", "g/a"):
            assert (group[path][...] == VALUES).all()
    (note,) = repair(tmp_path / "old", copy=tmp_path / "copy", to=tmp_path / "new").notes
    assert note == f"'a': its {name} is lost or damaged; that of the copy is taken"
    check_whole(tmp_path / "new")


def test_malformed_group_is_in_no_consolidated_metadata_and_is_named(tmp_path: Path) -> None:
    """zarr opened no array of the copy, and the report had no word on the group."""
    hierarchy(tmp_path / "old", consolidated=False)
    edit(tmp_path / "old/g/zarr.json", attributes="x")
    edit(
        tmp_path / "old/zarr.json",
        consolidated_metadata={"kind": "inline", "must_understand": False, "metadata": {}},
    )
    for work in (by_repair, by_compact):
        report = work(tmp_path / "old", tmp_path / work.__name__)
        assert report.notes == ("'g': its zarr.json is malformed; no consolidated metadata have it",)
        assert report.n_unreadable
        assert (zarr.open_group(tmp_path / work.__name__, mode="r")["a"][...] == VALUES).all()


def group_in_place_of_array(old: Path, **how: Any) -> None:
    hierarchy(old, **how)
    shutil.copytree(old, old.with_name("copy"))
    (old / "g/a/zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')


def test_group_in_place_of_an_array_is_no_clean_copy(tmp_path: Path) -> None:
    """zarr reads the array by the consolidated metadata; the copy had an empty group and other objects, and nothing counted as lost."""
    group_in_place_of_array(tmp_path / "old")
    for _, report in copies(tmp_path / "old", tmp_path):
        assert report.left.n_unreadable == 1
        (note,) = report.notes
        assert note.startswith(
            "'g/a': its zarr.json is that of another kind of node than in the consolidated"
        )


@pytest.mark.parametrize("in_place", [False, True])
def test_array_in_consolidated_metadata_and_in_the_copy_is_restored(in_place: bool, tmp_path: Path) -> None:
    """`repair --copy` with a whole copy kept the empty group that was in place of the array."""
    group_in_place_of_array(tmp_path / "old")
    place = {"backup": tmp_path / "backup"} if in_place else {"to": tmp_path / "new"}
    report = repair(tmp_path / "old", copy=tmp_path / "copy", **place)
    assert report.n_unreadable == 0
    assert report.notes[0].startswith("'g/a': its zarr.json is lost or damaged")
    check_whole(tmp_path / ("old" if in_place else "new"))


@pytest.mark.parametrize("case", ["no consolidated metadata", "nodes in the group"])
def test_group_stays_if_only_the_copy_says_that_it_is_an_array(case: str, tmp_path: Path) -> None:
    """The group may be newer than the copy."""
    old = tmp_path / "old"
    group_in_place_of_array(old, consolidated=case == "nodes in the group")
    if case == "nodes in the group":
        shutil.copytree(old / "b", old / "g/a/b")
    report = repair(old, copy=tmp_path / "copy", to=tmp_path / "new")
    assert json.loads((tmp_path / "new/g/a/zarr.json").read_text())["node_type"] == "group"
    assert report.n_unreadable == 1
