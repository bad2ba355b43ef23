# test_against.py - `verify --against` takes every source of `convert`, and compares the objects beside the arrays
# SPDX-License-Identifier: MIT
"""A copy was called equal though its tables were missing, and HDF5 files, objects and old formats could not be compared."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import VALUES, hierarchy, source
from helpers import quiet
from spec_json import array_2022
from tool_sources import copies, edit, write_2022

from shardcodec.cli.app import run
from shardcodec.tools import convert, verify
from shardcodec.tools.targets import ArrayTarget
from shardcodec.transformer import open_2022

OTHERS = {".hidden": b"h", "empty": b"", "labels/table.parquet": bytes(3 << 20), "0/notes.txt": b"n"}


def copied(tmp_path: Path, zarr_format: int = 3) -> tuple[Path, Path]:
    """Make a hierarchy with other objects, and a copy of it."""
    old, new = tmp_path / "a.zarr", tmp_path / "b.zarr"
    hierarchy(old, zarr_format)
    for name, data in OTHERS.items():
        (old / name).write_bytes(data)
    convert(old, new)
    return old, new


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_equal_copy_has_no_finding(zarr_format: int, tmp_path: Path) -> None:
    old, new = copied(tmp_path, zarr_format)
    report = verify(new, against=old)
    assert report.n_findings == 0 and report.n_other_objects == len(OTHERS)
    for again, _ in copies(new, tmp_path):
        report = verify(again, against=new)
        assert report.n_findings == 0 and report.n_other_objects == len(OTHERS)


def test_payload_of_a_float16_nan_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    """Python before 3.14 loses it, so an equal copy was called different where zarr reads the elements of the source."""
    old, new = tmp_path / "a.zarr", tmp_path / "b.zarr"
    bz2 = {"name": "numcodecs.bz2", "configuration": {"level": 1}}
    zarr.create_array(old, shape=(4, 4), chunks=(2, 2), dtype="float16", compressors=[bz2], fill_value=1)
    edit(old / "zarr.json", fill_value="0x7e11")
    convert(old, new)
    assert json.loads((new / "zarr.json").read_text())["fill_value"] == "0x7e11"
    assert verify(new, against=old).n_findings == 0
    edit(new / "zarr.json", fill_value=1.5)
    assert verify(new, against=old).n_findings > 0


def missing(path: Path) -> None:
    path.unlink()


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\1")


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("not-here")


@pytest.mark.parametrize(("spoil", "kind"), [
    (missing, "missing object"), (shorter, "different"), (other_byte, "different"), (dangling, "unreadable"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["labels/table.parquet", "0/notes.txt"])
def test_other_object_that_differs_is_found(
    spoil: Any, kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = copied(tmp_path)
    spoil(new / name)
    report = verify(new, against=old)
    findings = [one for shard in report.shards for one in shard.findings if not one.is_warning]
    assert [(one.kind, one.shard) for one in findings] == [(kind, str(new / name))]
    assert run(["verify", str(new), "--against", str(old), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["n_other_objects"] == len(OTHERS)
    assert verify(new, against=old, exclude="@objects").n_findings == 0
    assert verify(new, against=old, only="1").n_findings == 0
    assert verify(new, against=old, only="0").n_findings == name.startswith("0/")
    assert verify(new, exclude="@objects").n_unchecked == 0


@pytest.mark.parametrize("kind", ["folder", "document", "group"])
@pytest.mark.parametrize("other", ["zarr", "hdf5"])
def test_array_that_only_the_other_has_is_found(other: str, kind: str, tmp_path: Path) -> None:
    """A data set without one of its coordinates was called equal to its original: no damage found, exit code 0."""
    sources = {"t": VALUES, "lat": np.arange(33.0), "deep/a": VALUES[0], "deep/b": VALUES[0]}
    if other == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "old", "w") as file:
            for name, values in sources.items():
                file[name] = values
    else:
        with quiet():
            group = zarr.create_group(tmp_path / "old")
            for name, values in sources.items():
                group.create_array(name, data=values)
    new = tmp_path / "new"
    convert(tmp_path / "old", new)
    assert verify(new, against=tmp_path / "old").n_findings == 0
    lost = "deep" if kind == "group" else "lat"
    if kind == "document":
        (new / lost / "zarr.json").unlink()
    else:
        shutil.rmtree(new / lost)
    root = json.loads((new / "zarr.json").read_text())
    root.pop("consolidated_metadata", None)  # it would show what is lost
    (new / "zarr.json").write_text(json.dumps(root))
    report = verify(new, against=tmp_path / "old")
    assert report.kinds == {"missing object": 1}
    (shard,) = report.shards
    assert (shard.array, shard.shard) == (lost, str(new / lost))
    assert verify(new, against=tmp_path / "old", only="t").n_findings == 0
    assert verify(new / "t", against=tmp_path / "old/t").n_findings == 0


def test_against_an_array_in_memory(tmp_path: Path) -> None:
    source(tmp_path / "a.zarr")
    convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(8, 16, 8))
    assert verify(tmp_path / "b.zarr", against=VALUES).n_findings == 0
    other = VALUES.copy()
    other[10, 20, 3] += 1
    (shard,) = verify(tmp_path / "b.zarr", against=other).shards
    assert shard.findings[0].kind == "different" and "(10, 20, 3)" in shard.findings[0].detail


@pytest.mark.parametrize("how", [{"chunks": (4, 8, 4)}, {}])
def test_against_hdf5(how: dict[str, Any], tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("group/x", data=VALUES, **how)
        file["text"] = ["a", "bc", "d"]
    convert(tmp_path / "a.h5", tmp_path / "b.zarr", shards=1 << 20)
    assert verify(tmp_path / "b.zarr", against=tmp_path / "a.h5").n_findings == 0
    assert verify(tmp_path / "b.zarr/group/x", against=tmp_path / "a.h5/group/x").n_findings == 0
    gc.collect()  # h5py keeps a file open for reading as long as an object of it exists
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["group/x"][0, 0, 0] += 1
    assert verify(tmp_path / "b.zarr", against=tmp_path / "a.h5").n_findings == 1
    with pytest.raises(FileNotFoundError, match="against: expected an array 'group/x'"):
        verify(tmp_path / "b.zarr", against=tmp_path / "a.h5/group")


def test_against_the_2022_format_and_codecs_that_only_zarr_has(tmp_path: Path) -> None:
    import numcodecs

    write_2022(tmp_path / "old", {"": array_2022()}, {})
    with quiet():
        open_2022(tmp_path / "old", mode="r+")[...] = np.arange(21 * 13).reshape(21, 13)
    convert(tmp_path / "old", tmp_path / "b.zarr")
    assert verify(tmp_path / "b.zarr", against=tmp_path / "old").n_findings == 0
    with quiet():
        array = zarr.create_array(
            tmp_path / "c.zarr",
            shape=(40,),
            chunks=(10,),
            dtype="i4",
            zarr_format=2,
            compressors=numcodecs.LZMA(),
        )
        array[...] = np.arange(40)
    convert(tmp_path / "c.zarr", tmp_path / "d.zarr", shards=(20,))
    assert verify(tmp_path / "d.zarr", against=tmp_path / "c.zarr").n_findings == 0
    array[25] = 1
    assert verify(tmp_path / "d.zarr", against=tmp_path / "c.zarr").n_findings == 1


def small_hierarchy(path: Path) -> None:
    """Make arrays of several kinds, with attributes and names of axes."""
    with quiet():
        group = zarr.create_group(path, attributes={"title": "first"})
        for name, how in {"plain": {}, "sharded": {"shards": (8, 8)}}.items():
            array = group.create_array(
                name,
                shape=(16, 16),
                chunks=(4, 4),
                dtype="f4",
                attributes={"units": "m"},
                dimension_names=("y", "x"),
                **how,
            )
            array[:8] = np.arange(128).reshape(8, 16) + 1
        group.create_array("text", shape=(3,), dtype="str")[...] = np.array(["a", "b", "c"], dtype=object)
        deep = group.create_group("deep", attributes={"n": 1})
        deep.create_array("a", data=np.arange(3))


PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "attribute of an array": ("plain", {"attributes": {"units": "km"}}),
    "attribute that is missing": ("sharded", {"attributes": {}}),
    "attribute of the root": ("", {"attributes": {"title": "first", "more": None}}),
    "attribute of a group": ("deep", {"attributes": {"n": 1.5}}),
    "name of an axis": ("plain", {"dimension_names": ["y", "z"]}),
    "names of axes": ("sharded", {"dimension_names": None}),
    "member of an extension": ("plain", {"example": {"must_understand": False}}),
    "member of an extension of a group": ("deep", {"example": {"must_understand": False}}),
    "fill value": ("plain", {"fill_value": -0.0}),
    "NaN with other bits": ("sharded", {"fill_value": "0x7fc00001"}),
    "fill value of text": ("text", {"fill_value": "x"}),
    "data type": ("plain", {"data_type": "int32", "fill_value": 0}),
    "shape": ("sharded", {"shape": [16, 15]}),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_metadata_that_differ_are_found(kind: str, tmp_path: Path) -> None:
    """A copy with other attributes was called equal, and one array of another shape ended the comparison of all others."""
    small_hierarchy(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    convert(tmp_path / "old", tmp_path / "new", shards=1 << 20)
    name, members = PLANTED[kind]
    for new in ("copy", "new"):
        assert verify(tmp_path / new, against=tmp_path / "old").n_findings == 0
        edit(tmp_path / new / name / "zarr.json", **members)
        report = verify(tmp_path / new, against=tmp_path / "old")
        assert {shard.array for shard in report.shards} == {name} and report.kinds["different"] >= 1


def test_attributes_of_a_conversion_of_v2_are_compared(tmp_path: Path) -> None:
    hierarchy(tmp_path / "old", 2)
    convert(tmp_path / "old", tmp_path / "new")
    assert verify(tmp_path / "new", against=tmp_path / "old").n_findings == 0
    edit(tmp_path / "new/0/zarr.json", attributes={"other": 1})
    report = verify(tmp_path / "new", against=tmp_path / "old")
    differ = {one.array for shard in report.shards for one in shard.findings if one.kind == "different"}
    assert differ == {"0"}


def test_fill_value_of_text_is_compared_with_that_of_v2(tmp_path: Path) -> None:
    """Only fill values of text in the same format were compared, as they are spelt."""
    with quiet():
        zarr.create_array(tmp_path / "old", shape=(4,), dtype="str", fill_value="a", zarr_format=2)
        convert(tmp_path / "old", tmp_path / "new")
    assert verify(tmp_path / "new", against=tmp_path / "old").n_findings == 0
    edit(tmp_path / "new/zarr.json", fill_value="b")
    report = verify(tmp_path / "new", against=tmp_path / "old")
    assert any("fill value" in one.detail for shard in report.shards for one in shard.findings)


def test_metadata_of_an_array_that_is_not_checked_are_compared(tmp_path: Path) -> None:
    """If the tools do not read the chunks of an array, they compare its attributes and the names of its axes; they called all of them equal."""
    small_hierarchy(tmp_path / "old")
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4, 12], [4, 12]]}}
    edit(tmp_path / "old/plain/zarr.json", chunk_grid=grid)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert verify(tmp_path / "new", against=tmp_path / "old").n_findings == 0
    edit(tmp_path / "new/plain/zarr.json", attributes={}, dimension_names=["y", "z"])
    assert verify(tmp_path / "new", against=tmp_path / "old").kinds["different"] == 2


def test_extra_array_is_found_and_the_others_are_compared(tmp_path: Path) -> None:
    """An array that only the copy has ended `verify`, and damage of the arrays after it was not found."""
    small_hierarchy(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    shutil.copytree(tmp_path / "new/deep/a", tmp_path / "new/b")
    (tmp_path / "new/sharded/c/0/1").unlink()
    report = verify(tmp_path / "new", against=tmp_path / "old")
    assert report.kinds == {"different": 1, "missing shard": 1}
    assert [shard.array for shard in report.shards] == ["b", "sharded"]


def test_copied_bytes_are_equal_though_nothing_decodes_them(tmp_path: Path) -> None:
    """Arrays with a codec that no program here has were called different, though they were copied byte for byte."""
    small_hierarchy(tmp_path / "old")
    edit(tmp_path / "old/plain/zarr.json", codecs=[{"name": "bytes"}, {"name": "unheard.of"}])
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert verify(tmp_path / "new", against=tmp_path / "old").n_findings == 0
    path = tmp_path / "new/plain/c/0/0"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    report = verify(tmp_path / "new", against=tmp_path / "old")
    (shard,) = (one for one in report.shards if one.n_findings)
    assert shard.shard == str(path) and "cannot be compared" in shard.findings[0].detail


@pytest.mark.parametrize(
    "how", [{"only": "deep"}, {"exclude": ["plain", "text"]}, {"only": "sharded", "exclude": "@needed"}]
)
def test_part_of_a_hierarchy_is_compared_as_convert_takes_it(how: dict[str, Any], tmp_path: Path) -> None:
    """`convert --only` made a copy that could not be compared with its source."""
    small_hierarchy(tmp_path / "old")
    (tmp_path / "old/deep/notes.txt").write_text("n")
    convert(tmp_path / "old", tmp_path / "new", **how)
    assert verify(tmp_path / "new", against=tmp_path / "old", **how).n_findings == 0
    assert verify(tmp_path / "new", against=tmp_path / "old").n_findings > 0
    assert len(verify(tmp_path / "old", **how).arrays) == len(verify(tmp_path / "new").arrays)
    with pytest.raises(FileNotFoundError, match="'nowhere'"):
        verify(tmp_path / "new", against=tmp_path / "old", only="nowhere")


def test_array_of_consolidated_metadata_is_missing(tmp_path: Path) -> None:
    """A copy without an array whose document was lost was called equal, though zarr reads it in the original."""
    small_hierarchy(tmp_path / "old")
    with quiet():
        zarr.consolidate_metadata(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    (tmp_path / "old/plain/zarr.json").unlink()
    shutil.rmtree(tmp_path / "new/plain")
    report = verify(tmp_path / "new", against=tmp_path / "old")
    kinds = {one.kind for shard in report.shards for one in shard.findings if one.array == "plain"}
    assert kinds == {"missing shard"}


def test_hdf5_is_opened_once_and_attributes_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was opened and walked again for each of its datasets."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for n in range(20):
            file[f"x{n}"] = np.arange(4)
    convert(tmp_path / "a.h5", tmp_path / "b.zarr")
    opened: list[Any] = []
    init = h5py.File.__init__
    monkeypatch.setattr(
        h5py.File, "__init__", lambda self, *args, **how: opened.append(args) or init(self, *args, **how)
    )
    report = verify(tmp_path / "b.zarr", against=tmp_path / "a.h5")
    assert report.n_findings == 0 and sum(isinstance(args[0], str) for args in opened) == 1
    assert "attributes were not compared" in str(report)


def test_absent_shards_are_not_asked_for_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid was walked, 37 us for each absent shard."""
    with quiet():
        array = zarr.create_array(tmp_path / "old", shape=(100_000,), chunks=(10,), dtype="i4")
        array[500:520] = 1
    convert(tmp_path / "old", tmp_path / "new", chunks=(5,), shards=(50,))
    asked: list[Any] = []
    shard = ArrayTarget.shard
    monkeypatch.setattr(ArrayTarget, "shard", lambda self, at: asked.append(at) or shard(self, at))
    assert verify(tmp_path / "new", against=tmp_path / "old").n_findings == 0 and len(asked) < 20
    (tmp_path / "new/c/10").unlink()
    assert verify(tmp_path / "new", against=tmp_path / "old").kinds == {"missing shard": 1}
