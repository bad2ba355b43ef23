# test_rectilinear_arrays.py - arrays whose chunks have several shapes end no tool
# SPDX-License-Identifier: MIT
"""`verify new --against rectilinear` ended with NotImplementedError of zarr, and one of a foreign data type refused a whole group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet

from shardcodec.tools import compact, convert, inspect, repair, verify

LITTLE = [{"name": "bytes", "configuration": {"endian": "little"}}]
needs_grids = pytest.mark.skipif(
    "rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only"
)


def group(path: Path, data_type: str, fill: Any, grid: dict[str, Any]) -> Path:
    """Make a group with an array `r` that has this grid, and a regular one."""
    with quiet():
        zarr.create_group(path).create_array("a", shape=(8,), chunks=(4,), dtype="int32")[...] = 1
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [6], "data_type": data_type, "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill, "codecs": LITTLE,
    }  # fmt: skip
    (path / "r/c").mkdir(parents=True)
    (path / "r/zarr.json").write_text(json.dumps(document))
    return path


RECTILINEAR = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 4]]}}
REGULAR = {"name": "regular", "configuration": {"chunk_shape": [3]}}


@pytest.mark.parametrize("data_type", ["bfloat16", "int4", "float8_e4m3"])
def test_one_with_a_foreign_type_comes_along_as_it_is(data_type: str, tmp_path: Path) -> None:
    path = group(tmp_path / "old", data_type, 0, RECTILINEAR)
    (path / "r/c/0").write_bytes(b"abcd")
    report = convert(path, tmp_path / "new")
    assert report.is_complete
    assert (tmp_path / "new/r/c/0").read_bytes() == b"abcd"
    assert inspect(path).n_arrays == 2 and verify(path).n_unchecked
    assert repair(path, to=tmp_path / "repaired").left_arrays[0].name == "r"
    assert compact(path, to=tmp_path / "packed").is_complete


@needs_grids
def test_elements_are_compared_with_those_of_a_rectilinear_array(tmp_path: Path) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}), quiet():
        old = group(tmp_path / "old", "int32", 0, RECTILINEAR)
        new = group(tmp_path / "new", "int32", 0, REGULAR)
        for path in (old, new):
            zarr.open_array(path / "r", mode="r+")[...] = np.arange(6)
        assert not verify(new, against=old).n_findings
        (new / "r/c/1").unlink()
        assert verify(new, against=old).kinds == {"missing shard": 1}
        report = repair(new, to=tmp_path / "repaired", copy=old)
        assert report.n_restored == 1
        assert (zarr.open_array(tmp_path / "repaired/r", mode="r")[...] == np.arange(6)).all()
        assert verify(old, against=new).n_unchecked
