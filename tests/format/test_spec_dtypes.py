# test_spec_dtypes.py - data types: JSON compared with numpy, and the bytes that a byte order reverses
# SPDX-License-Identifier: MIT
"""Data types: their JSON, their numpy dtypes, and the runs of units in an element."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from spec_checks import any_dtypes, counted_bytes
from spec_json import named, struct

from shardcodec.errors import SpecError, UnsupportedError
from shardcodec.format.dtypes import as_dtype, dtype_repr, dtype_to_json, parse_data_type, swap_fields
from shardcodec.format.spec import ChainSpec

NESTED = struct(("a", "int8"), ("b", struct(("c", "float32"), ("d", named("raw_bytes", length_bytes=3)))))

JSON_TYPES = [
    ("bool", "bool"),
    *((name, name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
    *((name, name) for name in ("float16", "float32", "float64", "complex64", "complex128")),
    (named("fixed_length_utf32", length_bytes=20), "U5"),
    (named("null_terminated_bytes", length_bytes=5), "S5"),
    (named("raw_bytes", length_bytes=7), "V7"),
    (named("numpy.datetime64", unit="ns", scale_factor=1), "M8[ns]"),
    (named("numpy.datetime64", unit="s", scale_factor=10), "M8[10s]"),
    (named("numpy.datetime64", unit="generic", scale_factor=1), "M8"),
    (named("numpy.timedelta64", unit="D", scale_factor=7), "m8[7D]"),
    (struct(("a", "int32"), ("b", "float64")), [("a", "i4"), ("b", "f8")]),
    (NESTED, [("a", "i1"), ("b", [("c", "f4"), ("d", "V3")])]),
]


@pytest.mark.parametrize(("data", "dtype"), JSON_TYPES, ids=lambda value: str(value)[:40])
def test_data_type_survives_json(data: Any, dtype: Any) -> None:
    parsed = parse_data_type(data)
    assert parsed == np.dtype(dtype)
    assert dtype_to_json(parsed) == data
    assert json.loads(json.dumps(dtype_to_json(parsed))) == data
    assert np.dtype(eval(dtype_repr(parsed))) == parsed


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ({"name": "int16"}, "i2"),
        ({"name": "int16", "configuration": {}, "must_understand": True}, "i2"),
        ("r8", "V1"),
        ("r24", "V3"),
        (named("structured", fields=[["a", "int32"], ["b", "bool"]]), [("a", "i4"), ("b", "?")]),
        (named("structured", fields=[{"name": "a", "data_type": "int32"}]), [("a", "i4")]),
        (named("struct", fields=(("a", "int32"),)), [("a", "i4")]),
        (named("numpy.datetime64", unit="\N{GREEK SMALL LETTER MU}s", scale_factor=1), "M8[us]"),
    ],
    ids=str,
)
def test_other_spellings_are_read(data: Any, dtype: Any) -> None:
    assert parse_data_type(data) == np.dtype(dtype)


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (7, "", "expected an object, got 7"),
        ({"configuration": {}}, "name", "missing"),
        ({"name": 7}, "name", "expected a string, got 7"),
        ({"name": "int16", "extra": 1}, "extra", "unknown key"),
        ({"name": "int16", "must_understand": "no"}, "must_understand", "expected true or false, got 'no'"),
        (named("int16", endian="big"), "configuration.endian", "unknown key"),
        (named("r16", endian="big"), "configuration.endian", "unknown key"),
        ("r12", "", "expected a raw type of a positive multiple of 8 bits, got 'r12'"),
        ("r0", "", "expected a raw type of a positive multiple of 8 bits, got 'r0'"),
        ("r" + "8" * 40, "", "expected a raw type of a positive multiple of 8 bits"),
        ("fixed_length_utf32", "configuration.length_bytes", "missing"),
        (
            named("fixed_length_utf32", length_bytes=6),
            "configuration.length_bytes",
            "expected a multiple of 4, the size of a code point, got 6",
        ),
        (named("raw_bytes", length_bytes=0), "configuration.length_bytes", "expected at least 1, got 0"),
        (named("raw_bytes", length_bytes=2.0), "configuration.length_bytes", "expected an integer, got 2.0"),
        (
            named("raw_bytes", length_bytes=True),
            "configuration.length_bytes",
            "expected an integer, got True",
        ),
        (
            named("raw_bytes", length_bytes=2**31),
            "configuration.length_bytes",
            "expected at most 2147483647, got 2147483648",
        ),
        (named("numpy.datetime64", unit="ns"), "configuration.scale_factor", "missing"),
        (named("numpy.datetime64", unit="eon", scale_factor=1), "configuration.unit", "got 'eon'"),
        (named("numpy.datetime64", unit=[], scale_factor=1), "configuration.unit", "got []"),
        (
            named("numpy.timedelta64", unit="s", scale_factor=0),
            "configuration.scale_factor",
            "expected at least 1, got 0",
        ),
        (named("struct", fields=[]), "configuration.fields", "at least one field"),
        (named("struct", fields={"a": "int8"}), "configuration.fields", "expected an array"),
        (named("struct", fields=[["a"]]), "configuration.fields[0]", "expected a name and a data type"),
        (named("struct", fields=[["", "int8"]]), "configuration.fields[0][0]", "expected a name"),
        (
            named("struct", fields=[{"name": "a", "data_type": "r4"}]),
            "configuration.fields[0].data_type",
            "multiple of 8 bits",
        ),
        (
            struct(("a", "int8"), ("a", "int8")),
            "configuration.fields[1]",
            "expected distinct field names, got 'a' a second time",
        ),
        (
            struct(("a", struct(("b", named("raw_bytes", length_bytes=-1))))),
            "configuration.fields[0].data_type.configuration.fields[0].data_type.configuration.length_bytes",
            "expected at least 1, got -1",
        ),
        (
            struct(*((str(i), named("raw_bytes", length_bytes=2**30)) for i in range(2))),
            "configuration.fields",
            "got 2147483648",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_wrong_json_is_refused(data: Any, path: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_data_type(data)
    assert caught.value.path == path
    assert words in str(caught.value)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ("string", None),
        ("variable_length_bytes", None),
        ("bytes", None),
        ("float8", None),
        ("int3", None),
        (named("optional", name="int8"), None),
        (struct(("a", "int8"), ("b", "string")), "configuration.fields[1].data_type"),
    ],
    ids=str,
)
def test_unknown_and_variable_types_are_unsupported(data: Any, path: str | None) -> None:
    with pytest.raises(UnsupportedError, match="shardcodec does not implement data type") as caught:
        parse_data_type(data)
    assert (caught.value.path or None) == path


def test_byte_order_is_dropped() -> None:
    assert as_dtype(">i4") == as_dtype("<i4") == np.dtype("=i4")
    assert as_dtype([("a", ">f8"), ("b", [("c", "<i2"), ("d", ">i2")])]) == np.dtype(
        [("a", "=f8"), ("b", [("c", "=i2"), ("d", "=i2")])]
    )


@pytest.mark.parametrize(
    "dtype", ["O", "T", "g", "G", ("i4", (2,)), [("a", "O")], [("a", [("b", "i4"), ("c", "O")])]], ids=str
)
def test_elements_without_fixed_bytes_are_unsupported(dtype: Any) -> None:
    if dtype == "g" and np.dtype("g") == np.dtype("f8"):
        pytest.skip("long double is the same as double on this machine")
    with pytest.raises(UnsupportedError):
        as_dtype(dtype)


@pytest.mark.parametrize("value", ["foo", "numpy.datetime64", 123, ["i4"]], ids=str)
def test_values_that_are_not_data_types_are_refused(value: Any) -> None:
    """The error was numpy's and named no field."""
    with pytest.raises(SpecError, match="dtype: expected a data type, got") as caught:
        ChainSpec((4,), value, 0, [named("bytes", endian="little")])
    assert caught.value.path == "dtype"


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0", []], ids=str)
def test_elements_of_no_bytes_are_refused(dtype: Any) -> None:
    with pytest.raises(SpecError, match="at least 1 byte"):
        as_dtype(dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        [("a", "i4", (3,))],
        np.dtype([("a", "i1"), ("b", "i8")], align=True),
        np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4], "itemsize": 12}),
    ],
    ids=str,
)
def test_structs_without_a_data_type_in_zarr_cannot_be_written_to_metadata(dtype: Any) -> None:
    """They can be used in a shard nevertheless."""
    spec = ChainSpec((4,), dtype, bytes(np.dtype(dtype).itemsize), [named("bytes", endian="little")])
    assert spec.dtype == np.dtype(dtype)
    assert eval(repr(spec), {**vars(sys.modules[ChainSpec.__module__]), "np": np}) == spec
    with pytest.raises(UnsupportedError, match="Zarr v3 has no data type"):
        spec.to_metadata((4,))


# --- reversed bytes ---


@pytest.mark.parametrize(
    ("dtype", "fields"),
    [
        ("?", ()),
        ("i1", ()),
        ("u1", ()),
        ("S9", ()),
        ("V9", ()),
        ("i2", ((0, 2, 1),)),
        ("f8", ((0, 8, 1),)),
        ("c8", ((0, 4, 2),)),
        ("c16", ((0, 8, 2),)),
        ("U5", ((0, 4, 5),)),
        ("M8[s]", ((0, 8, 1),)),
        ("m8[s]", ((0, 8, 1),)),
        ([("a", "i1"), ("b", "S3")], ()),
        ([("a", "i1"), ("b", "i4"), ("c", "V2"), ("d", "c16")], ((1, 4, 1), (7, 8, 2))),
        ([("a", "i4"), ("b", "f4"), ("c", "U2")], ((0, 4, 4),)),
        ([("a", "i4"), ("b", "f8"), ("c", "i2")], ((0, 4, 1), (4, 8, 1), (12, 2, 1))),
        ([("a", "i4"), ("gap", "S4"), ("b", "f8")], ((0, 4, 1), (8, 8, 1))),
        ([("a", "i4"), ("b", [("x", "i1"), ("y", "u2"), ("z", "u2")])], ((0, 4, 1), (5, 2, 2))),
        ([("a", "i2", (2, 3))], ((0, 2, 6),)),
        ([("a", [("x", "i1"), ("y", "i2")], (2,))], ((1, 2, 1), (4, 2, 1))),
        (np.dtype([("a", "i1"), ("b", "i8")], align=True), ((8, 8, 1),)),
        (np.dtype({"names": ["a", "b"], "formats": ["i2", "i4"], "offsets": [6, 0]}), ((0, 4, 1), (6, 2, 1))),
    ],
    ids=str,
)
def test_swap_fields_are_the_reversed_units(dtype: Any, fields: Any) -> None:
    assert swap_fields(np.dtype(dtype)) == fields


def reversed_units(element: bytes, fields: tuple[tuple[int, int, int], ...]) -> bytes:
    out = bytearray(element)
    for offset, unit, count in fields:
        for start in range(offset, offset + unit * count, unit):
            out[start : start + unit] = element[start : start + unit][::-1]
    return bytes(out)


@given(any_dtypes)
def test_swap_fields_agree_with_newbyteorder(dtype: np.dtype[Any]) -> None:
    element = counted_bytes(dtype.itemsize)
    other = np.frombuffer(element, dtype).view(dtype.newbyteorder("S"))
    fields = swap_fields(as_dtype(dtype))
    assert all(unit > 1 and count > 0 for _, unit, count in fields)
    ends = [offset + unit * count for offset, unit, count in fields]
    assert all(end <= start for end, (start, _, _) in zip(ends, fields[1:], strict=False))
    # Reversing the bytes and reading in the other byte order cancel each other, so this gives the element back.
    swapped = np.frombuffer(reversed_units(element, fields), dtype.newbyteorder("S"))
    assert_same_values(swapped, np.frombuffer(element, dtype))
    assert_same_values(other, np.frombuffer(reversed_units(element, fields), dtype))


def assert_same_values(one: Any, two: Any) -> None:
    if one.dtype.names:
        for name in one.dtype.names:
            assert_same_values(one[name], two[name])
    elif one.dtype.kind == "U":  # random bytes are not code points, so compare the numbers
        numbers = [np.ascontiguousarray(a).view(a.dtype.str[0] + "u4") for a in (one, two)]
        np.testing.assert_array_equal(*numbers)
    elif one.dtype.kind in "SV?b":
        assert one.tobytes() == two.tobytes()
    else:
        np.testing.assert_array_equal(one, two)


def test_none_is_refused_as_dtype() -> None:
    """numpy itself accepts None as float64."""
    with pytest.raises(SpecError, match="expected a data type, got None"):
        as_dtype(None)
