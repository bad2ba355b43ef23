# test_cast_chains.py - arrays whose codecs change the data type: the examples of the specifications, byte orders, errors
# SPDX-License-Identifier: MIT
"""`scale_offset` and `cast_value` in arrays. zarr 3.1 does not have them; `open_array` reads them there, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import ZARR_IS_31, bits, ours, quiet, zarrs_view
from spec_json import BIG, CRC, LITTLE, named, transpose

import shardcodec
from shardcodec.errors import CodecError, SpecError, UnsupportedError

SHAPE, SHARD, CHUNK = (12, 20), (8, 12), (4, 6)

# The examples of the README of both codecs, and chains around them.
EXAMPLES: dict[str, tuple[str, Any, list[Any]]] = {
    "float32 with scale and offset": ("float32", 5, [named("scale_offset", offset=5, scale=0.1), LITTLE]),
    "uint16 range reduction": (
        "uint16",
        1000,
        [named("scale_offset", offset=1000), named("cast_value", data_type="uint8"), {"name": "bytes"}],
    ),
    "float64 to uint8 with NaN": (
        "float64",
        "NaN",
        [
            named("scale_offset", offset=-10, scale=0.1),
            named("cast_value", data_type="uint8", scalar_map={"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}),
            {"name": "bytes"},
        ],
    ),
    "as numpy casts": (
        "float64",
        0,
        [
            named(
                "cast_value",
                data_type="uint8",
                rounding="towards-zero",
                out_of_range="wrap",
                scalar_map={"encode": [["NaN", 0], ["Infinity", 0], ["-Infinity", 0]]},
            ),
            {"name": "bytes"},
        ],
    ),
    "big-endian, transposed and compressed": (
        "float32",
        0,
        [
            transpose(1, 0),
            named("scale_offset", scale=10),
            named("cast_value", data_type="int16"),
            transpose(1, 0),
            BIG,
            named("zstd", level=1, checksum=False),
            CRC,
        ],
    ),
    "filter of numcodecs behind": (
        "float32",
        0,
        [
            named("cast_value", data_type="int32", rounding="nearest-away"),
            named("numcodecs.delta", dtype="<i4"),
            LITTLE,
        ],
    ),
}  # fmt: skip


def document(dtype: str, fill: Any, codecs: list[Any], sharded: bool) -> dict[str, Any]:
    if sharded:
        codecs = [
            named("sharding_indexed", chunk_shape=list(CHUNK), codecs=codecs, index_codecs=[LITTLE, CRC])
        ]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(SHAPE),
        "data_type": dtype,
        "chunk_grid": named("regular", chunk_shape=list(SHARD if sharded else CHUNK)),
        "chunk_key_encoding": named("default"),
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }


def make(path: Path, *arguments: Any) -> Path:
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(document(*arguments)))
    return path


def values_for(name: str, dtype: str) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(3).integers(1, 250, SHAPE).astype(dtype)
    if name == "uint16 range reduction":
        return values + np.uint16(1000)
    if "NaN" in name:
        values = values * 10 - 10
        values[::3, 1] = np.nan
    if name == "as numpy casts":
        values[0, :4] = [np.nan, np.inf, 300.7, -5.5]
    return values


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_specification(name: str, sharded: bool, tmp_path: Path) -> None:
    dtype, fill, codecs = EXAMPLES[name]
    path = make(tmp_path / "a", dtype, fill, codecs, sharded)
    values = values_for(name, dtype)
    array = shardcodec.open_array(path, mode="r+")
    array[...] = values
    array[3:7, 5:9] = values[3:7, 5:9]
    expected = values.copy()
    if name == "as numpy casts":
        expected[0, :4] = [0, 0, 44, 251]
    got = shardcodec.open_array(path)[...]
    if name.startswith("float"):
        assert np.allclose(got, expected, rtol=1e-6, equal_nan=True)
    else:
        assert bits(got) == bits(expected)
    assert shardcodec.ChainSpec.from_metadata(json.loads((path / "zarr.json").read_text())).to_json()
    if ZARR_IS_31:
        return
    if (
        name == "uint16 range reduction" and sharded
    ):  # zarr encodes 0 in place of the fill value, which it refuses
        with pytest.raises(ValueError, match="outside the range"), quiet():
            zarr.open_array(path)
        return
    with quiet():
        theirs = zarr.open_array(path)[...]
    assert bits(theirs) == bits(got) == bits(ours(path)[...])


def test_a_number_without_a_place_is_named_with_shard_chunk_and_element(tmp_path: Path) -> None:
    codecs = [named("cast_value", data_type="int8"), {"name": "bytes"}]
    path = make(tmp_path / "a", "int16", 0, codecs, True)
    array = shardcodec.open_array(path, mode="r+")
    values = np.zeros(SHAPE, "i2")
    array[...] = values + 1
    values[9, 8] = 300
    with pytest.raises(CodecError, match=r"element \(1, 2\): 300 does not fit int8$") as caught:
        array[...] = values
    error = caught.value
    assert error.shard is not None and error.shard.endswith("c/1/0")
    assert (error.chunk_coords, error.element, error.codec) == ((0, 1), 8, "cast_value")
    assert (error.element_coords, error.actual) == ((1, 2), 300)
    assert array[...].max() == 1


def test_element_is_named_by_axis_also_after_a_transpose(tmp_path: Path) -> None:
    """`element` counts in stored order, `element_coords` by axis of the inner chunk."""
    codecs = [transpose(1, 0), named("cast_value", data_type="int8"), {"name": "bytes"}]
    array = shardcodec.open_array(make(tmp_path / "a", "float64", 0, codecs, True), mode="r+")
    values = np.zeros(SHAPE)
    values[9, 8] = np.nan
    with pytest.raises(
        CodecError, match=r"inner chunk \(0, 1\): cast_value: element \(1, 2\): nan does not fit int8$"
    ) as caught:
        array[...] = values
    assert (caught.value.element, caught.value.element_coords) == (9, (1, 2))


def test_stored_numbers_that_have_no_place_are_named(tmp_path: Path) -> None:
    """Decoding is a cast, too: 300 was stored, and the array has bytes."""
    codecs = [named("cast_value", data_type="int16"), LITTLE]
    path = make(tmp_path / "a", "uint8", 0, codecs, False)
    (path / "c/0").mkdir(parents=True)
    stored = np.zeros(CHUNK, "i2")
    stored[1, 2] = 300
    (path / "c/0/0").write_bytes(stored.tobytes())
    with pytest.raises(CodecError, match=r"element \(1, 2\): 300 does not fit uint8$") as caught:
        shardcodec.open_array(path)[...]
    assert (caught.value.element, caught.value.element_coords) == (8, (1, 2))


@pytest.mark.parametrize(
    ("dtype", "fill", "codecs"),
    [
        ("int16", 300, [named("cast_value", data_type="int8")]),
        ("float32", "NaN", [named("cast_value", data_type="int8")]),
        ("uint8", 0, [named("scale_offset", offset=1)]),
    ],
)
@pytest.mark.parametrize("sharded", [True, False])
def test_a_fill_value_that_cannot_be_encoded_is_refused(
    dtype: str, fill: Any, codecs: list[Any], sharded: bool, tmp_path: Path
) -> None:
    path = make(tmp_path / "a", dtype, fill, [*codecs, LITTLE], sharded)
    with pytest.raises(SpecError, match=r"cannot encode the fill value: (300|nan|0) .*fit (int8|uint8)$"):
        shardcodec.open_array(path)
    if not ZARR_IS_31:
        with pytest.raises(ValueError), quiet():
            zarr.open_array(path, mode="r+")[...] = 1


@pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 does not have the codecs")
def test_what_the_engine_does_not_have_goes_to_zarr(tmp_path: Path) -> None:
    """Codecs before the sharding, and maps of many entries."""
    mapping = {"encode": [[float(i), i] for i in range(300)]}
    many = named("cast_value", data_type="int16", scalar_map=mapping)
    shard = named("sharding_indexed", chunk_shape=list(CHUNK), codecs=[LITTLE], index_codecs=[LITTLE, CRC])
    for i, (codecs, sharded) in enumerate(
        [([many, LITTLE], True), ([many, LITTLE], False), ([named("scale_offset", scale=4), shard], False)]
    ):
        path = make(tmp_path / f"{i}", "float64", 0, codecs, sharded)
        if not sharded and i == 2:
            text = json.loads((path / "zarr.json").read_text())
            text["chunk_grid"] = named("regular", chunk_shape=list(SHARD))
            (path / "zarr.json").write_text(json.dumps(text))
        array = ours(path, strict=False)
        values = np.arange(240.0).reshape(SHAPE)
        array[...] = values
        assert bits(array[...]) == bits(zarrs_view(array)[...]) == bits(values)
        with pytest.raises(UnsupportedError):
            shardcodec.open_array(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("dtype", "filters"),
    [
        (">f4", [numcodecs.FixedScaleOffset(1, 10, ">f4", ">i2")]),
        (">f4", [numcodecs.FixedScaleOffset(1, 10, ">f4", "<i2"), numcodecs.Delta("<i2", ">i4")]),
        (">f8", [numcodecs.FixedScaleOffset(0, 1, ">f8", "|u1"), numcodecs.Delta("|u1")]),
        (">i4", [numcodecs.Delta(">i4"), numcodecs.Zlib(1)]),
        (">i4", [numcodecs.Delta(">i4"), numcodecs.Delta(">i4")]),
        (">i2", [numcodecs.AsType("<f8", ">i2")]),
        (">f8", [numcodecs.Quantize(2, ">f8")]),
        ("<i2", [numcodecs.AsType(">i8", "<i2")]),
        ("<f2", [numcodecs.FixedScaleOffset(1, 2, "<f2", ">i2")]),
    ],
    ids=str,
)
def test_big_endian_filters_of_zarr_v2(dtype: str, filters: list[Any], order: str, tmp_path: Path) -> None:
    """Files of HDF5 and netCDF 3 have such filters. Each pipeline reads what the other one wrote."""
    values = np.random.default_rng(1).integers(0, 90, SHAPE).astype(dtype)
    arrays = []
    for name in ("mine", "theirs"):
        with quiet():
            array = zarr.create_array(
                tmp_path / name, shape=SHAPE, chunks=CHUNK, dtype=np.dtype(dtype), zarr_format=2, order=order,
                filters=filters, compressors=None, fill_value=0,
            )  # fmt: skip
            if name == "theirs":
                array[...] = values
        arrays.append(array)
    shardcodec.open_array(tmp_path / "mine", mode="r+")[...] = values
    for name in ("mine", "theirs"):
        with quiet():
            read = zarr.open_array(tmp_path / name, mode="r")[...]
        assert bits(shardcodec.open_array(tmp_path / name)[...].astype(dtype)) == bits(read.astype(dtype))
        assert np.array_equal(read, values)
    if filters[-1].codec_id != "zlib":  # another library may compress to other bytes
        assert (tmp_path / "mine/0.0").read_bytes() == (tmp_path / "theirs/0.0").read_bytes()


@pytest.mark.parametrize(
    "filters", [[numcodecs.Delta("<i4")], [numcodecs.FixedScaleOffset(0, 1, "<f4", "<i4")]], ids=str
)
def test_filters_of_the_other_byte_order_are_left_to_zarr(filters: list[Any], tmp_path: Path) -> None:
    with quiet():
        zarr.create_array(
            tmp_path / "a",
            shape=(8,),
            chunks=(8,),
            dtype=">i4",
            zarr_format=2,
            filters=filters,
            compressors=None,
        )
    with pytest.raises(UnsupportedError, match="big-endian elements"):
        shardcodec.open_array(tmp_path / "a")


@pytest.mark.filterwarnings("ignore")
def test_filter_with_big_endian_output_before_big_endian_bytes(tmp_path: Path) -> None:
    scale = named("numcodecs.fixedscaleoffset", offset=0, scale=10, dtype="<f4", astype=">i2")
    path = make(tmp_path / "a", "float32", 0, [scale, BIG], False)
    values = np.random.default_rng(1).integers(0, 90, SHAPE).astype("f4")
    with quiet():
        zarr.open_array(path, mode="r+")[...] = values
        theirs = zarr.open_array(path)[...]
    assert bits(shardcodec.open_array(path)[...]) == bits(theirs) == bits(values)
    before = (path / "c/1/1").read_bytes()
    shardcodec.open_array(path, mode="r+")[...] = values
    assert (path / "c/1/1").read_bytes() == before


def test_bitround_has_the_name_of_the_registry(tmp_path: Path) -> None:
    """zarrs writes `bitround`; zarr knows only `numcodecs.bitround`."""
    values = np.random.default_rng(1).random(SHAPE).astype("f4")
    results = []
    for name in ("bitround", "numcodecs.bitround"):
        path = make(tmp_path / name, "float32", 0, [named(name, keepbits=5), LITTLE], True)
        shardcodec.open_array(path, mode="r+")[...] = values
        results.append(shardcodec.open_array(path)[...])
        spec = shardcodec.ChainSpec.from_metadata(json.loads((path / "zarr.json").read_text()))
        assert spec.to_json()[0]["configuration"]["codecs"][0] == named(name, keepbits=5)
    assert bits(results[0]) == bits(results[1]) != bits(values)


MANY = [["NaN", 1], ["NaN", 2], [5, 3], [5, 4], [0.0, 6], [-0.0, 7]]


@pytest.mark.parametrize(
    ("dtype", "values", "codec", "mine", "theirs"),
    [
        ("int64", [2**62, 1], named("scale_offset", scale=4), None, [0, 1]),
        ("int8", [127, 1], named("scale_offset", offset=-1, scale=-1), None, [127, 1]),
        ("float32", [5, 0, np.nan], named("cast_value", data_type="int8", scalar_map={"encode": MANY}), [3, 6, 1], [4, 7, 2]),
    ],
    ids=["wrapped int64", "difference", "equal keys"],
)  # fmt: skip
def test_what_zarr_does_differently(
    dtype: str, values: Any, codec: Any, mine: list[int] | None, theirs: list[int], tmp_path: Path
) -> None:
    """docs/compatibility.md has the list; `mine` is None if the number is refused."""
    text = document(dtype, 1 if dtype[0] == "f" else 0, [codec, LITTLE], False)
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(
            json.dumps(
                text | {"shape": [len(values)], "chunk_grid": named("regular", chunk_shape=[len(values)])}
            )
        )
    array = shardcodec.open_array(tmp_path / "mine", mode="r+")
    if mine is None:
        with pytest.raises(CodecError, match=r"element 0: .* minus offset, times scale, does not fit"):
            array[...] = np.array(values, dtype)
    else:
        array[...] = np.array(values, dtype)
        assert array[...].tolist() == mine
    if not ZARR_IS_31:
        with quiet():
            array = zarr.open_array(tmp_path / "theirs", mode="r+")
            array[...] = np.array(values, dtype)
            assert np.asarray(array[...]).tolist() == theirs


def test_a_fill_value_that_decodes_to_another_number_is_read_as_it_was_given(tmp_path: Path) -> None:
    path = make(tmp_path / "a", "float64", 0.3, [named("cast_value", data_type="int8"), LITTLE], False)
    assert (shardcodec.open_array(path)[...] == 0.3).all()
    if not ZARR_IS_31:
        with quiet():
            assert (np.asarray(zarr.open_array(path)[...]) == 0.3).all()
