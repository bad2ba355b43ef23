# test_open_errors.py - errors of open_array and create_array name the array and say what to do
# SPDX-License-Identifier: MIT
"""None of the errors of `open_array` named the array; the commonest was that of an xarray data set, whose path is that of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet, run_checked

import shardcodec
from shardcodec import ShardError, SpecError, UnsupportedError

DAMAGES: dict[str, Any] = {
    "no JSON": "{",
    "a list": "[]",
    "no shape": {"shape": None},
    "another format": {"zarr_format": 4},
    "an unknown data type": {"data_type": "float33"},
    "an unknown codec": {"codecs": [{"name": "nothing"}]},
    "a negative shape": {"shape": [-1]},
    "an unknown grid": {"chunk_grid": {"name": "hexagons"}},
    "a bad fill value": {"fill_value": "much"},
    "no node type": {"node_type": "leaf"},
}


def hierarchy(root: Any, zarr_format: Any = 3, n: int = 2) -> Any:
    group = zarr.open_group(root, mode="w", zarr_format=zarr_format)
    for number in range(n):
        group.create_array(f"heat{number}", shape=(16,), chunks=(4,), dtype="f4")[:] = np.arange(16)
    return group


@pytest.mark.parametrize("damage", DAMAGES)
def test_error_names_the_array(tmp_path: Path, damage: str) -> None:
    hierarchy(tmp_path / "needle.zarr")
    document = tmp_path / "needle.zarr/heat0/zarr.json"
    change = DAMAGES[damage]
    text = change if isinstance(change, str) else json.dumps(json.loads(document.read_text()) | change)
    document.write_text(text)
    with pytest.raises(ShardError) as caught:
        shardcodec.open_array(tmp_path / "needle.zarr/heat0")
    assert caught.value.array == str(tmp_path / "needle.zarr/heat0")
    assert str(caught.value).startswith(f"array {caught.value.array!r}: ")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("kind", ["path", "memory"])
def test_group_is_called_a_group_and_its_arrays_are_named(
    tmp_path: Path, zarr_format: int, consolidated: bool, kind: str
) -> None:
    root: Any = tmp_path / "set.zarr" if kind == "path" else zarr.storage.MemoryStore()
    hierarchy(root, zarr_format, n=8)
    if consolidated:
        zarr.consolidate_metadata(root)
    with pytest.raises((SpecError, FileNotFoundError), match=r"group.*'heat0'.*3 more.*path='heat0'"):
        shardcodec.open_array(root)
    assert shardcodec.open_array(root, "heat0").shape == (16,)


def test_arrays_of_inner_groups_are_named(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "a").create_group("inner").create_array("heat", shape=(1,), dtype="i4")
    with pytest.raises(SpecError, match="path='inner/heat'"):
        shardcodec.open_array(tmp_path / "a")
    zarr.open_group(tmp_path / "empty")
    with pytest.raises(SpecError, match="`path=`"):
        shardcodec.open_array(tmp_path / "empty")


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w"])
def test_mode_in_the_place_of_the_path_is_pointed_out(tmp_path: Path, mode: str) -> None:
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="i4")
    with pytest.raises(FileNotFoundError) as caught:
        shardcodec.open_array(tmp_path / "a", mode)
    assert f"mode={mode!r}" in str(caught.value)


def test_zarr_is_not_recommended_where_it_refuses_too(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="i4")
    document = json.loads((tmp_path / "a/zarr.json").read_text())
    (tmp_path / "a/zarr.json").write_text(json.dumps(document | {"codecs": [{"name": "nothing"}]}))
    with pytest.raises(UnsupportedError, match="zarr cannot open it either") as caught:
        shardcodec.open_array(tmp_path / "a")
    assert "zarr.open_array" not in str(caught.value)


def test_array_that_is_not_created_is_named(tmp_path: Path) -> None:
    lzma = pytest.importorskip("numcodecs.zarr3").LZMA()
    with quiet(), pytest.raises(UnsupportedError) as caught:
        shardcodec.create_array(tmp_path, name="needle", shape=(4,), dtype="i4", compressors=[lzma])
    assert caught.value.array == str(tmp_path / "needle")
    assert not (tmp_path / "needle").exists()


def test_enable_names_arrays_that_were_opened_before(tmp_path: Path) -> None:
    """They go on with zarr's own pipeline, which takes no locks."""
    code = f"""
        import warnings, zarr, shardcodec
        array = zarr.create_array({str(tmp_path / "early")!r}, shape=(4,), dtype="i4")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shardcodec.enable()
            late = zarr.create_array({str(tmp_path / "late")!r}, shape=(4,), dtype="i4")
            shardcodec.enable(threads=2)
        print(*(one.message for one in caught))
    """
    said = run_checked(code).stdout
    assert said.count("early") == 1 and "attach" in said and "late" not in said
