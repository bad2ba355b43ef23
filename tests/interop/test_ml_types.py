# test_ml_types.py - arrays of the data types of ml_dtypes, exchanged with TensorStore
# SPDX-License-Identifier: MIT
"""TensorStore writes bfloat16, float8 and int4; both read what the other has written, with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spec_json import BIG, LITTLE, zstd

import shardcodec

ts = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
pytestmark = pytest.mark.interop

SHAPE, SHARD, CHUNK = (13, 20), (8, 12), (4, 4)
FILLS: dict[str, tuple[Any, ...]] = {
    "bfloat16": (0.0, -0.0, "NaN", "Infinity", "-Infinity", 1.5, 0.1, "0xffc1"),
    "int2": (0, -2, 1),
    "int4": (0, -8, 7),
    "float4_e2m1fn": (0.0, -1.5, "0x0f"),
    "float8_e3m4": (0.0, "NaN", "Infinity", 1.5, "0xf9"),
    "float8_e4m3b11fnuz": (0.0, "NaN", 1.5),
    "float8_e4m3fn": (0.0, "NaN", -1.5, "0xff"),
    "float8_e4m3fnuz": (0.0, "NaN", 1.5),
    "float8_e5m2": (0.0, "NaN", "-Infinity", 0.1, "0xfd"),
    "float8_e5m2fnuz": (0.0, "NaN", 1.5),
    "float8_e8m0fnu": (0.0, "NaN"),  # TensorStore 0.1.86 reads the fill value 2.0 as 2**-63
}
CASES = [(name, fill) for name, fills in FILLS.items() for fill in fills]


def opened(place: Path, driver: str = "zarr3", **metadata: Any) -> Any:
    spec: Any = {"driver": driver, "kvstore": {"driver": "file", "path": str(place)}}
    if metadata:
        return ts.open(spec | {"metadata": metadata}, create=True).result()
    return ts.open(spec).result()


def random_values(name: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return elements with all bits that the type has, the first inner chunk of the second row left out."""
    n_bits = int("".join(filter(str.isdigit, name.split("_", maxsplit=1)[0])))
    raw = np.random.default_rng(seed).integers(0, 1 << n_bits, SHAPE)
    dtype = np.dtype(getattr(ml_dtypes, name))
    return raw.astype(f"u{dtype.itemsize}").view(dtype)


def bits(values: Any) -> np.ndarray[Any, Any]:
    """Return the bits of elements that have a meaning: TensorStore sets others in fill values of int2 and int4."""
    values = np.ascontiguousarray(values)
    n_bits = int("".join(filter(str.isdigit, values.dtype.name.split("_")[0])))
    return values.view(f"u{values.itemsize}") & ((1 << n_bits) - 1)


def sharded(name: str, fill: Any, endian: str) -> dict[str, Any]:
    serializer = {"name": "bytes"} if name != "bfloat16" else LITTLE if endian == "little" else BIG
    grid = {"name": "regular", "configuration": {"chunk_shape": SHARD}}
    inner = {"chunk_shape": CHUNK, "codecs": [serializer, zstd()]}
    codecs = [{"name": "sharding_indexed", "configuration": inner}]
    return {"shape": SHAPE, "data_type": name, "fill_value": fill, "chunk_grid": grid, "codecs": codecs}


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(("name", "fill"), CASES)
def test_both_read_what_the_other_has_written(tmp_path: Path, name: str, fill: Any, endian: str) -> None:
    if endian == "big" and name != "bfloat16":
        pytest.skip("one byte has no order")
    theirs = opened(tmp_path / "a", **sharded(name, fill, endian))
    ours = shardcodec.open_array(tmp_path / "a", mode="r+")
    assert ours.dtype == theirs.dtype.numpy_dtype
    np.testing.assert_array_equal(
        bits(ours[...]), bits(theirs.read().result())
    )  # nothing is stored: the fill value
    values = random_values(name)
    theirs[0:9, 3:20] = values[0:9, 3:20]
    np.testing.assert_array_equal(bits(ours[...]), bits(theirs.read().result()))
    ours[5:13, 0:7] = values[5:13, 0:7]
    expected = bits(np.full(SHAPE, ours.fill_value))
    expected[0:9, 3:20], expected[5:13, 0:7] = bits(values)[0:9, 3:20], bits(values)[5:13, 0:7]
    for array in opened(tmp_path / "a").read().result(), shardcodec.open_array(tmp_path / "a")[...]:
        np.testing.assert_array_equal(bits(array), expected)
    np.testing.assert_array_equal(bits(ours[6:9, ::3]), expected[6:9, ::3])


@pytest.mark.parametrize(("name", "fill"), CASES)
def test_tensorstore_reads_the_arrays_of_create_array(tmp_path: Path, name: str, fill: Any) -> None:
    values = random_values(name, 1)
    dtype = values.dtype
    array = shardcodec.create_array(
        tmp_path / "a", shape=SHAPE, shards=SHARD, chunks=CHUNK, dtype=name, fill_value=fill
    )
    theirs = opened(tmp_path / "a")
    assert theirs.dtype.numpy_dtype == dtype == array.dtype
    np.testing.assert_array_equal(bits(theirs.read().result()), bits(array[...]))
    with shardcodec.group_writes():
        array[0:5] = values[0:5]
        array[5:13, 2:20] = values[5:13, 2:20]
    np.testing.assert_array_equal(bits(theirs.read().result())[:5], bits(values)[:5])
    np.testing.assert_array_equal(bits(theirs.read().result()), bits(array[...]))
    array.append(values[:3])
    np.testing.assert_array_equal(bits(opened(tmp_path / "a").read().result())[13:], bits(values)[:3])


@pytest.mark.parametrize("name", FILLS)
def test_arrays_of_zarr_v2_are_exchanged(tmp_path: Path, name: str) -> None:
    values = random_values(name)
    metadata = {"shape": SHAPE, "chunks": CHUNK, "dtype": name, "compressor": {"id": "zlib", "level": 1}}
    try:
        theirs = opened(tmp_path / "a", "zarr", **metadata)
    except ValueError as error:
        pytest.skip(f"TensorStore does not have the type in Zarr v2: {error}")
    theirs[...] = values
    ours = shardcodec.open_array(tmp_path / "a", mode="r+")
    np.testing.assert_array_equal(bits(ours[...]), bits(values))
    ours[1:3] = values[4:6]
    made = shardcodec.create_array(tmp_path / "b", data=values, chunks=CHUNK, zarr_format=2, fill_value=None)
    made[1:3] = values[4:6]
    for place in "a", "b":
        expected = bits(opened(tmp_path / place, "zarr").read().result())
        np.testing.assert_array_equal(expected[1:3], bits(values)[4:6])
        np.testing.assert_array_equal(expected[3:], bits(values)[3:])


def test_upper_bits_of_other_writers_are_ignored(tmp_path: Path) -> None:
    array = shardcodec.create_array(tmp_path / "a", shape=(4,), chunks=(4,), dtype="int4", compressors=None)
    array[:] = 1
    (tmp_path / "a/c/0").write_bytes(bytes([0x0F, 0xFF, 0x7E, 0x83]))
    assert array[:].astype(int).tolist() == [-1, -1, -2, 3]
    np.testing.assert_array_equal(opened(tmp_path / "a").read().result().astype(int), [-1, -1, -2, 3])


def test_packed_elements_are_refused_by_tensorstore(tmp_path: Path) -> None:
    """The registry has `packbits` for int4; `test_packbits.py` exchanges it with zarrs."""
    shardcodec.create_array(tmp_path / "a", shape=(4,), chunks=(4,), dtype="int4")
    document = json.loads((tmp_path / "a/zarr.json").read_text())
    (tmp_path / "a/zarr.json").write_text(json.dumps({**document, "codecs": [{"name": "packbits"}]}))
    shardcodec.open_array(tmp_path / "a", mode="r+")[...] = np.arange(4)
    assert (tmp_path / "a/c/0").read_bytes() == b"\x10\x32"
    with pytest.raises(ValueError, match="packbits"):
        opened(tmp_path / "a")
