# test_ml_types.py - data types of ml_dtypes through zarr, where a program has told zarr about them, and in the tools
# SPDX-License-Identifier: MIT
"""zarr has none of these types; a program registers a class for one, as zarr's documentation shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import hide_ml_dtypes, ours, quiet
from zarr.dtype import UInt16, data_type_registry

import shardcodec
from shardcodec.errors import UnsupportedError
from shardcodec.tools import compact, convert, inspect, repair, verify

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
VALUES = (np.arange(13 * 20).reshape(13, 20) % 31).astype("f4").astype(BFLOAT16)


class Registered(UInt16):
    """A third party's class for bfloat16."""

    dtype_cls = type(BFLOAT16)
    _zarr_v3_name = "bfloat16"

    @classmethod
    def _check_json_v3(cls, data: Any) -> Any:
        return data == "bfloat16"

    def to_native_dtype(self) -> Any:
        return BFLOAT16

    def to_json(self, zarr_format: int) -> Any:
        return "bfloat16" if zarr_format == 3 else {"name": "bfloat16", "object_codec_id": None}

    def cast_scalar(self, data: Any) -> Any:
        return BFLOAT16.type(data)

    def default_scalar(self) -> Any:
        return BFLOAT16.type(0)

    def to_json_scalar(self, data: Any, *, zarr_format: int) -> Any:
        return float(data)

    def from_json_scalar(self, data: Any, *, zarr_format: int) -> Any:
        return BFLOAT16.type(float(data))


@pytest.fixture
def registered() -> Iterator[None]:
    data_type_registry.register("bfloat16", Registered)
    yield
    data_type_registry.unregister("bfloat16")


def same(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype == BFLOAT16
    np.testing.assert_array_equal(
        np.ascontiguousarray(one).view("u2"), np.ascontiguousarray(other).view("u2")
    )


@pytest.mark.usefixtures("registered")
def test_zarrs_array_is_native(tmp_path: Path) -> None:
    shardcodec.create_array(tmp_path / "a", data=VALUES, shards=(8, 12), chunks=(4, 4), fill_value=1.5)
    array = ours(tmp_path / "a")  # under the option `strict`: zarr does nothing of the work
    same(array[...], VALUES)
    same(array[3:9, ::2], VALUES[3:9, ::2])
    array[2:7, 5:11] = VALUES[0, 3]
    expected = VALUES.copy()
    expected[2:7, 5:11] = VALUES[0, 3]
    same(array[...], expected)
    attached = shardcodec.attach(zarr.open_array(tmp_path / "a"))
    same(attached[1:4, 2:9], expected[1:4, 2:9])
    with shardcodec.group_writes():
        array[0:2] = VALUES[4:6]
        shardcodec.open_array(tmp_path / "a", mode="r+")[11] = VALUES[0]
    expected[0:2], expected[11] = VALUES[4:6], VALUES[0]
    same(shardcodec.open_array(tmp_path / "a")[...], expected)
    with quiet():
        same(zarr.open_array(tmp_path / "a")[...], expected)


def test_without_such_a_class_zarr_refuses_and_open_array_does_not(tmp_path: Path) -> None:
    made = shardcodec.create_array(tmp_path / "a", data=VALUES, chunks=(4, 4))
    with pytest.raises(ValueError, match="bfloat16"):
        zarr.open_array(tmp_path / "a")
    with shardcodec.group_writes():
        made[1:3, 1:3] = 2.0
    expected = VALUES.copy()
    expected[1:3, 1:3] = 2.0
    same(shardcodec.open_array(tmp_path / "a")[...], expected)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shardcodec.create_array(tmp_path / "a", data=VALUES, chunks=(4, 4))
    hide_ml_dtypes(monkeypatch)
    with pytest.raises(UnsupportedError, match="pip install ml-dtypes; `shardcodec convert` moves"):
        shardcodec.open_array(tmp_path / "a")
    with pytest.raises(UnsupportedError, match="pip install ml-dtypes"):
        shardcodec.create_array(tmp_path / "b", shape=(4,), dtype="bfloat16")
    assert not (tmp_path / "b").exists()
    assert not verify(tmp_path / "a", level="decode").n_findings


@pytest.mark.parametrize("name", ["bfloat16", "int4", "float8_e4m3fn", "float8_e8m0fnu"])
def test_tools_take_an_array_and_its_elements(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = VALUES.view("u2").astype(f"u{dtype.itemsize}").view(dtype)
    array = shardcodec.create_array(
        tmp_path / "a", data=values, shards=(8, 12), chunks=(4, 4), fill_value=1.0
    )
    assert not verify(tmp_path / "a", level="decode").n_findings
    (report,) = inspect(tmp_path / "a").arrays
    assert report.layout is not None and report.layout.dtype == name
    convert(tmp_path / "a", tmp_path / "b", chunks=(3, 3), shards=(6, 6), codecs=["zstd"], level="compare")
    convert(array, tmp_path / "c", chunks=(3, 3), shards=(6, 6), level="compare")
    convert(values, tmp_path / "d", chunks=(3, 3), shards=(6, 6), level="compare")
    compact(tmp_path / "a", to=tmp_path / "e")
    repair(tmp_path / "a", to=tmp_path / "f")
    for copy in "bcdef":
        found = verify(tmp_path / copy, against=tmp_path / "a")
        assert found.n_findings == (copy == "d"), (
            "expected another fill value only in the copy of an array of numpy, which has none"
        )
        opened = shardcodec.open_array(tmp_path / copy)
        assert opened.dtype == dtype and opened[...].tobytes() == values.tobytes()
