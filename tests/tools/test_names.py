# test_names.py - names that would lead out of a new hierarchy are refused before the first write
# SPDX-License-Identifier: MIT
"""An HDF5 file with a group named ``..`` made `convert` write beside the destination, over other arrays.

Names also come from listings of stores, from entries of zip files, from plans and from arguments.
"""

from __future__ import annotations

import importlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, quiet, store_of
from tool_sources import COPIES, by_convert, by_repair
from zarr.storage import MemoryStore

from shardcodec.cli.app import run
from shardcodec.tools import compact, convert, inspect, plan_convert, repair, verify
from shardcodec.tools.jobs.job_files import PlanFile
from shardcodec.tools.names import node_path

CANNOT = "expected the path of an array or a group that can be written"
WRONG = [
    "..", ".", "...", "a/../b", "/a", "a//b", "a/", "x\0y", "a\\b", "zarr.json", "a/.zarray",
    ".shardcodec-job",
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_path_that_cannot_be_written(name: str) -> None:
    with pytest.raises(ValueError, match=CANNOT):
        node_path(name)


@pytest.mark.parametrize(
    "name", ["", "a", "a/b", "..a", "a..", ".hidden", "__categories", "c/0", "zarr", "é b"]
)
def test_path_that_can_be_written(name: str) -> None:
    assert node_path(name) == name


@pytest.mark.parametrize(
    "name", ["../victim.zarr", "zarr.json", "group/zarr.json", ".shardcodec-job", "a\\b"]
)
@pytest.mark.parametrize("is_group", [True, False])
def test_names_of_an_hdf5_file(name: str, is_group: bool, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fine"] = np.arange(10)
        if is_group:
            file.create_group(name)
        else:
            file[name] = np.arange(20)
    create(tmp_path / "victim.zarr")[...] = 5
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=CANNOT):
        convert(tmp_path / "a.h5", tmp_path / "b.zarr")
    with pytest.raises(ValueError, match=CANNOT):
        plan_convert(tmp_path / "a.h5", tmp_path / "b.zarr", tmp_path / "plan.json", n_parts=1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert convert(tmp_path / "a.h5", tmp_path / "c.zarr", only=["fine"]).is_complete


def listed(kind: str, folder: Path, name: str) -> Any:
    """Return a group with one array whose name an ordinary program does not make."""
    store = store_of("memory", folder)
    with quiet():
        group = zarr.create_group(store)
        group.create_array("x", data=np.arange(64), chunks=(8,), shards=(32,))
    items = {key.replace("x/", f"{name}/", 1): value for key, value in store._store_dict.items()}
    if kind == "memory":
        return MemoryStore(items)
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        for key, value in items.items():
            file.writestr(key, value.to_bytes())
    return folder / "a.zip"


@pytest.mark.parametrize("name", ["..", "a\\b", ".shardcodec-x"])
@pytest.mark.parametrize("kind", ["memory", "zip"])
@pytest.mark.parametrize("only_arrays", [True, False])
def test_names_of_a_listing(name: str, kind: str, only_arrays: bool, tmp_path: Path) -> None:
    source = listed(kind, tmp_path, name)
    assert [one.name for one in verify(source).arrays] == [name]  # to read it is harmless
    new = tmp_path / "to/b.zarr"
    for work in COPIES.values():
        with pytest.raises(ValueError, match=CANNOT):
            work(source, new, only_arrays=only_arrays)
        assert not (tmp_path / "to").exists()


def test_backups_stay_in_their_folder(tmp_path: Path) -> None:
    source = listed("memory", tmp_path, "..")
    key = "../c/0"
    source._store_dict[key] = type(source._store_dict[key]).from_bytes(
        source._store_dict[key].to_bytes()[:-8]
    )
    with pytest.raises(ValueError, match=CANNOT):
        repair(source, backup=tmp_path / "outer/backup")
    assert not (tmp_path / "outer").exists()


@pytest.mark.parametrize("name", ["../other", "a/../../other", "."])
def test_array_outside_of_the_group_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_group(tmp_path / "a.zarr").create_group("a")
    create(tmp_path / "other")[...] = 1
    for work in (inspect, verify, compact):
        with pytest.raises(ValueError, match="array: expected the path of an array in the group"):
            work(tmp_path / "a.zarr", array=name)
    for work in (by_convert, by_repair):
        with pytest.raises(ValueError, match="array: expected the path of an array in the group"):
            work(tmp_path / "a.zarr", tmp_path / "b.zarr", array=name)
    assert run(["verify", str(tmp_path / "a.zarr"), "--array", name]) == 2
    assert "array: expected the path of an array in the group" in capsys.readouterr().err
    assert not (tmp_path / "b.zarr").exists()


@pytest.mark.parametrize("member", ["arrays", "documents", "verbatim"])
def test_names_of_a_plan(member: str, tmp_path: Path) -> None:
    """A checksum protects a plan from accidents only."""
    with quiet():
        zarr.create_group(tmp_path / "a.zarr").create_array("x", data=np.arange(64), chunks=(8,))
    plan_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "plan.json", n_parts=1)
    data = json.loads((tmp_path / "plan.json").read_text())
    if member == "arrays":
        data["plan"]["arrays"][0]["name"] = "../x"
    elif member == "documents":
        data["plan"]["documents"]["../x"] = data["plan"]["documents"].pop("x")
    else:
        data["plan"]["verbatim"] = ["../x"]
    data["checksum"] = importlib.import_module("shardcodec.tools.jobs.job_files")._checksum(data)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=CANNOT):
        PlanFile.read(tmp_path / "plan.json")
