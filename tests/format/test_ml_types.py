# test_ml_types.py - the data types of ml_dtypes: names, fill values, refusals
# SPDX-License-Identifier: MIT
"""bfloat16, float8, int4 and the like, as zarr-extensions and TensorStore spell them."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from helpers import hide_ml_dtypes
from spec_json import BYTE, LITTLE, named

from shardcodec import ShardSpec
from shardcodec.errors import SpecError, UnsupportedError
from shardcodec.format.array_document import parse_document
from shardcodec.format.byte_document import byte_document
from shardcodec.format.dtypes import as_dtype, dtype_to_json, parse_data_type, swap_fields
from shardcodec.format.fill_values import fill_bytes, fill_from_document, fill_from_json, fill_to_json
from shardcodec.format.ml_types import COMPLEX_NBYTES, ML_NBYTES, ml_dtype
from shardcodec.format.spec import ChainSpec

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
FLOATS = [name for name in ML_NBYTES if "float" in name]
# Bits of NaN and of infinity, as the registry of zarr-extensions has them; None: the type does not have it.
NAN = {
    "bfloat16": 0x7FC0,
    "float4_e2m1fn": None,
    "float6_e2m3fn": None,
    "float6_e3m2fn": None,
    "float8_e3m4": 0x78,
    "float8_e4m3": 0x7C,
    "float8_e4m3b11fnuz": 0x80,
    "float8_e4m3fn": 0x7F,
    "float8_e4m3fnuz": 0x80,
    "float8_e5m2": 0x7E,
    "float8_e5m2fnuz": 0x80,
    "float8_e8m0fnu": 0xFF,
}
INFINITY = {"bfloat16": 0x7F80, "float8_e3m4": 0x70, "float8_e4m3": 0x78, "float8_e5m2": 0x7C}


def bits(name: str, fill: bytes) -> int:
    assert len(fill) == ML_NBYTES[name]
    return int.from_bytes(fill, sys.byteorder)


def refuses(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=r"cannot represent|expected"):
        fill_from_json(ml_dtype(name), value)


@pytest.mark.parametrize("name", ML_NBYTES)
def test_names_are_those_of_the_metadata(name: str) -> None:
    dtype = parse_data_type(name)
    assert (
        dtype
        == np.dtype(getattr(ml_dtypes, name))
        == as_dtype(name)
        == as_dtype(dtype)
        == as_dtype(dtype.type)
    )
    assert dtype.itemsize == ML_NBYTES[name] and dtype_to_json(dtype) == name
    assert swap_fields(dtype) == (((0, 2, 1),) if name == "bfloat16" else ())
    spec = ChainSpec((4,), name, 1, [LITTLE if name == "bfloat16" else BYTE])
    assert eval(repr(spec), {"ChainSpec": ChainSpec, **vars(sys.modules["shardcodec.format.codecs"])}) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    document = spec.to_metadata((8,))
    assert json.loads(json.dumps(document))["data_type"] == name and ChainSpec.from_metadata(document) == spec


@pytest.mark.parametrize("name", FLOATS)
def test_nan_and_infinity_have_the_bits_of_the_registry(name: str) -> None:
    for word, expected in ("NaN", NAN[name]), ("Infinity", INFINITY.get(name)):
        if expected is None:
            refuses(name, word)
        else:
            fill = fill_from_json(ml_dtype(name), word)
            assert bits(name, fill) == expected and fill_to_json(ml_dtype(name), fill) == word
    negative = INFINITY.get(name)
    if negative is not None:
        sign = 1 << (8 * ML_NBYTES[name] - 1)
        assert bits(name, fill_from_json(ml_dtype(name), "-Infinity")) == negative | sign
    refuses(name, 1e300)


@pytest.mark.parametrize("name", ML_NBYTES)
def test_every_fill_value_survives_json(name: str) -> None:
    """The bits are kept; above a number of fewer than 8 bits they have no meaning."""
    dtype = ml_dtype(name)
    n_bits = (
        8 * ML_NBYTES[name]
        if "8" in name or name == "bfloat16"
        else int(name.strip("uintfloa").split("_")[0])
    )
    for number in range(1 << n_bits):
        fill = number.to_bytes(dtype.itemsize, sys.byteorder)
        as_json = json.loads(json.dumps(fill_to_json(dtype, fill)))
        again = fill_from_json(dtype, as_json)
        assert bits(name, again) % (1 << n_bits) == number, as_json
        assert (
            fill_from_document(dtype, as_json) == again == fill_bytes(dtype, np.frombuffer(again, dtype)[0])
        )


@pytest.mark.parametrize(
    ("name", "low", "high"), [("int2", -2, 1), ("uint2", 0, 3), ("int4", -8, 7), ("uint4", 0, 15)]
)
def test_integers_have_their_limits(name: str, low: int, high: int) -> None:
    for number in low, high, 0, float(high):
        assert int(np.frombuffer(fill_from_json(ml_dtype(name), number), ml_dtype(name))[0]) == number
    for number in (low - 1, high + 1, 0.5, "1", None, True):
        refuses(name, number)


def test_other_values_are_fill_values_too() -> None:
    bfloat16, int4 = ml_dtype("bfloat16"), ml_dtype("int4")
    one = fill_from_json(bfloat16, 1.0)
    for value in (1, 1.0, True, np.float32(1), np.int8(1), bfloat16.type(1), np.array(1.0)):
        assert fill_bytes(bfloat16, value) == one
    assert fill_bytes(int4, np.int64(-3)) == fill_bytes(int4, -3)
    assert fill_bytes(bfloat16, ml_dtypes.float8_e5m2(1.5)) == fill_bytes(bfloat16, 1.5)
    assert fill_from_json(bfloat16, "0xffc1") == (0xFFC1).to_bytes(2, sys.byteorder)
    assert fill_to_json(bfloat16, (0xFFC1).to_bytes(2, sys.byteorder)) == "0xffc1"
    refuses("bfloat16", "0xffc")


def test_least_number_of_e8m0_stands_for_zero() -> None:
    """The type has no zero, and TensorStore writes 0.0 for its default fill value, whose bits are 0."""
    assert fill_from_json(ml_dtype("float8_e8m0fnu"), 0.0) == b"\0"
    refuses("float8_e8m0fnu", -1.0)


@pytest.mark.parametrize("name", COMPLEX_NBYTES)
def test_complex_numbers_are_refused_with_the_reason(name: str) -> None:
    for function in parse_data_type, as_dtype:
        with pytest.raises(UnsupportedError, match=r"no complex numbers of|other name, complex") as caught:
            function(name)
        assert caught.value.data_type == name
    stored = ChainSpec((4,), f"V{COMPLEX_NBYTES[name]}", b"\0" * COMPLEX_NBYTES[name], [BYTE]).to_metadata(
        (4,)
    )
    parsed = byte_document({**stored, "data_type": name, "fill_value": [0.0, 0.0]})
    assert parsed.data_type == name and parsed.has_fill and parsed.has_item_size


def test_fields_and_types_without_a_name_are_refused() -> None:
    field = {"name": "a", "data_type": "bfloat16"}
    with pytest.raises(UnsupportedError, match="fields of type bfloat16"):
        parse_data_type(named("struct", fields=[field]))
    for dtype in ([("a", ml_dtypes.bfloat16)], [("a", ml_dtypes.float8_e5m2)], ml_dtypes.int1):
        with pytest.raises(UnsupportedError, match="byte layout"):
            as_dtype(dtype)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_ml_dtypes(monkeypatch)
    for function in parse_data_type, as_dtype:
        with pytest.raises(UnsupportedError, match="pip install ml-dtypes") as caught:
            function("float8_e4m3fn")
        assert caught.value.data_type == "float8_e4m3fn"
    spec = ShardSpec((4,), (2,), "u1", 0, ["bytes"])
    document = {**spec.to_metadata((8,)), "data_type": "float8_e4m3fn"}
    for fill, is_known in ((0.0, True), (1.5, False), ("0x3c", True)):
        assert byte_document({**document, "fill_value": fill}).has_fill == is_known
    monkeypatch.undo()
    assert byte_document({**document, "fill_value": 1.5}).document["fill_value"] == 0x3C


def test_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ml_dtypes, "float8_e3m4")
    with pytest.raises(UnsupportedError, match="float8_e3m4 needs a newer version of ml_dtypes than"):
        parse_data_type("float8_e3m4")


@pytest.mark.parametrize(("fill", "expected"), [(None, 0.0), ("NaN", "NaN"), (1.5, 1.5), ("0x3fc0", 1.5)])
def test_documents_of_v2_have_the_same_names(fill: Any, expected: Any) -> None:
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [4],
        "dtype": "bfloat16",
        "fill_value": fill,
        "order": "C",
        "filters": None,
        "compressor": None,
    }
    layout = parse_document(document)
    assert layout.dtype == ml_dtype("bfloat16") and layout.codecs[0].endian == "little"
    assert fill_to_json(layout.dtype, fill_bytes(layout.dtype, layout.fill_value)) == expected
