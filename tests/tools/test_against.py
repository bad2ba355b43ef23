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
from spec_json import array_2022, hierarchy_2022

from shardcodec.cli.app import run
from shardcodec.tools import compact, convert, repair, verify
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
    for number, work in enumerate((repair, compact)):
        again = tmp_path / f"c{number}.zarr"
        work(new, to=again)
        report = verify(again, against=new)
        assert report.n_findings == 0 and report.n_other_objects == len(OTHERS)


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


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (missing, "missing object"),
        (shorter, "different"),
        (other_byte, "different"),
        (dangling, "unreadable"),
    ],
)
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
    assert verify(new, against=old, only_arrays=True).n_findings == 0
    assert verify(new, against=old, array="1").n_findings == 0
    assert verify(new, against=old, array="0").n_findings == name.startswith("0/")
    assert verify(new, only_arrays=True).n_unchecked == 0


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
    assert verify(new, against=tmp_path / "old", array="t").n_findings == 0
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

    for folder in ("meta", "data"):
        (tmp_path / "old" / folder).mkdir(parents=True)
    (tmp_path / "old/zarr.json").write_text(json.dumps(hierarchy_2022()))
    (tmp_path / "old/meta/root.array.json").write_text(json.dumps(array_2022()))
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
