# test_array_document.py - the .zarray of Zarr v2, read as the layout of an array, and documents as text
# SPDX-License-Identifier: MIT
"""Values are compared with those that zarr reads from the same document; malformed documents are refused with their place."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import SpecError, UnsupportedError
from shardcodec.format.array_document import encoded_document, parse_document
from shardcodec.format.chunk_keys import KeyEncoding, key_encoding
from shardcodec.format.codecs import Blosc, Bytes, Crc32c, Transpose, Zlib
from shardcodec.format.spec import ChainSpec

NESTED = [["a", ">i2"], ["b", [["c", "|S3"], ["d", ">c8"]]]]


def zarray(**members: Any) -> dict[str, Any]:
    """Return a .zarray, as JSON gives it."""
    document = {
        "zarr_format": 2,
        "shape": [10, 7],
        "chunks": [4, 3],
        "dtype": "<i4",
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "compressor": None,
        "dimension_separator": ".",
    }
    parsed: dict[str, Any] = json.loads(json.dumps(document | members))
    return parsed


def blosc(**members: Any) -> dict[str, Any]:
    return {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0, **members}


def test_members_become_a_layout() -> None:
    layout = parse_document(
        zarray(order="F", dtype=">i4", fill_value=-3, filters=[{"id": "crc32c"}], compressor=blosc())
    )
    assert (layout.shape, layout.edges, layout.dtype) == ((10, 7), ((4,), (3,)), np.dtype("int32"))
    assert layout.fill_value == -3
    assert list(layout.codecs) == [
        Transpose((1, 0)), Bytes("big"), Crc32c(), Blosc("lz4", 5, "shuffle", 1, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shuffle", "expected"),
    [
        ("<i4", -1, Blosc("lz4", 5, "shuffle", 4, 0)),
        ("|u1", -1, Blosc("lz4", 5, "bitshuffle", 1, 0)),
        ("<f8", 2, Blosc("lz4", 5, "bitshuffle", 8, 0)),
        ("|S300", 0, Blosc("lz4", 5, "noshuffle", 300, 0)),
        (NESTED, -1, Blosc("lz4", 5, "shuffle", 13, 0)),
    ],
)
def test_blosc_takes_its_typesize_from_the_elements(dtype: Any, shuffle: int, expected: Blosc) -> None:
    document = zarray(dtype=dtype, fill_value=None, compressor=blosc(shuffle=shuffle))
    assert parse_document(document).codecs[-1] == expected


def test_automatic_shuffle_of_v3_follows_the_typesize_too() -> None:
    for typesize, shuffle in ((1, "bitshuffle"), (4, "shuffle")):
        codec = {"name": "numcodecs.blosc", "configuration": {"shuffle": -1, "typesize": typesize}}
        assert ChainSpec((2,), "uint8", 0, ["bytes", codec]).codecs[-1] == Blosc(
            "lz4", 5, shuffle, typesize, 0
        )


def test_orders_of_one_axis_are_the_same() -> None:
    for shape in ([], [5]):
        document = zarray(shape=shape, chunks=shape, order="F")
        assert list(parse_document(document).codecs) == [Bytes("little")]


def test_unknown_members_are_ignored() -> None:
    """Zarr v2 says so, and zarr's own metadata has the attributes beside the other members."""
    spec = ChainSpec.from_metadata(
        zarray(attributes={"a": 1}, more=2, compressor={"id": "zlib", "level": -1})
    )
    assert spec.codecs == (Bytes("little"), Zlib(6))


@pytest.mark.parametrize(("members", "separator"), [({}, "."), ({"dimension_separator": "/"}, "/")])
def test_keys_have_no_prefix(members: Any, separator: str) -> None:
    keys = key_encoding(zarray(**members))
    assert keys == KeyEncoding(is_default=False, separator=separator)
    assert (keys.key((3, 0)), keys.key(())) == (f"3{separator}0", "0")


def test_separator_is_a_dot_by_default() -> None:
    document = zarray()
    del document["dimension_separator"]
    assert key_encoding(document).separator == "."


FILLS: list[tuple[Any, Any]] = [
    ("|b1", True),
    ("|i1", -3),
    ("<u8", 2**64 - 1),
    ("<f2", "NaN"),
    (">f4", "-Infinity"),
    ("<f8", 0.1),
    ("<f8", -0.0),
    (">c8", [1.5, -2.0]),
    ("<c16", ["NaN", "Infinity"]),
    ("|S5", "YWI="),
    ("|S5", ""),
    (">U3", "äb"),
    ("|V4", "YWJjZA=="),
    ("<M8[ns]", 5),
    (">M8[10us]", -(2**63)),
    ("<m8[s]", "NaT"),
    ([["a", "<i4"], ["b", "<f8"]], "AQAAAAAAAAAAAPg/"),
    ([["a", ">i4"], ["b", ">f8"]], "AAAAAT/4AAAAAAAA"),
    ([["a", "<i4"], ["t", "<M8[s]"]], None),
    *((dtype, None) for dtype in ("|b1", ">i4", "<f8", "<c8", "|S5", "<U3", "|V4", "<M8[ns]", ">m8[D]")),
]


@pytest.mark.interop
@pytest.mark.parametrize(("dtype", "fill"), FILLS, ids=lambda value: str(value)[:25])
def test_fill_value_is_that_of_zarr(dtype: Any, fill: Any) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    from zarr.core.buffer import cpu

    document = zarray(dtype=dtype, fill_value=fill)
    text = cpu.Buffer.from_bytes(json.dumps(document).encode())
    empty = zarr.open_array(zarr.storage.MemoryStore({".zarray": text}), mode="r")[...]
    layout = parse_document(document)
    assert layout.dtype == empty.dtype.newbyteorder("=")
    expected = empty[:1, :1].astype(layout.dtype).tobytes()
    assert np.asarray(layout.fill_value, layout.dtype).tobytes() == expected


MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({"shape": 10}, "shape", "expected an array"),
    ({"shape": [10, -1]}, "shape[1]", "expected at least 0"),
    ({"chunks": [4]}, "chunks", "expected 2 axes"),
    ({"chunks": [4, 0]}, "chunks[1]", "expected at least 1"),
    ({"chunks": [2**62, 2**62]}, "chunks", "expected a chunk of at most"),
    ({"dtype": 3}, "dtype", "expected an array"),
    ({"dtype": []}, "dtype", "expected at least one field"),
    ({"dtype": [["a"]]}, "dtype[0]", "expected a name and a data type"),
    ({"dtype": [["a", "<i4"], ["a", "<i4"]], "fill_value": None}, "dtype", "expected a data type"),
    ({"dtype": [["a", [["", "<i4"]]]]}, "dtype[0][1][0]", "expected a name"),
    ({"dtype": "|S99999999999"}, "dtype", "expected a data type"),
    ({"fill_value": "zero"}, "fill_value", "expected an integer"),
    ({"dtype": [["a", "<i4"]], "fill_value": 0}, "fill_value", "expected base64"),
    ({"dtype": [["a", "<i4"]], "fill_value": "AAA="}, "fill_value", "expected an element of 4 bytes"),
    ({"order": "A"}, "order", 'expected "C" or "F"'),
    ({"compressor": "zlib"}, "compressor", "expected an object"),
    ({"compressor": {"level": 1}}, "compressor.id", "expected the name of a codec"),
    ({"compressor": {"id": "zlib", "level": 99}}, "compressor.level", "expected at most 9"),
    ({"compressor": blosc(shuffle=7)}, "compressor.shuffle", "expected at most 2"),
    ({"compressor": {"id": "zstd", "colour": 1}}, "compressor.colour", "unknown key"),
    ({"filters": {"id": "zlib"}}, "filters", "expected an array"),
    ({"filters": [None]}, "filters[0]", "expected an object"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "path", "reason"), MALFORMED, ids=lambda value: str(value)[:40])
def test_malformed_member_is_named(members: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        parse_document(zarray(**members))
    assert caught.value.path == path


@pytest.mark.parametrize("key", ["shape", "chunks", "dtype", "fill_value", "order"])
def test_missing_member_is_named(key: str) -> None:
    document = zarray()
    del document[key]
    with pytest.raises(SpecError, match=f"{key}: missing required key"):
        parse_document(document)


def test_wrong_separator_is_named() -> None:
    with pytest.raises(SpecError, match=r'dimension_separator: expected "/" or "\.'):
        key_encoding(zarray(dimension_separator="-"))


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"dtype": "|O"}, "dtype"),
        ({"dtype": "<f16"}, "dtype"),
        ({"dtype": "int32"}, "dtype"),
        ({"dtype": "|S0"}, "dtype"),
        ({"dtype": [["a", "<i4"], ["b", ">i4"]]}, "dtype"),
        ({"dtype": [["a", "<i4", [2]]]}, "dtype[0]"),
        ({"filters": [{"id": "jenkins_lookup3", "initval": 1}]}, "filters[0].initval"),
        ({"filters": [{"id": "delta", "dtype": ">i4"}]}, "filters[0].dtype"),
        ({"compressor": {"id": "bz2", "level": 1}}, "compressor.id"),
        ({"compressor": blosc(cname="snappy")}, "compressor.cname"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_zarr_must_do_is_named(members: dict[str, Any], path: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_document(zarray(**members))
    assert caught.value.path == path


def test_deeply_nested_type_is_refused() -> None:
    dtype: Any = "<i4"
    for _ in range(5000):
        dtype = [["a", dtype]]
    document = zarray() | {"dtype": dtype}
    with pytest.raises(SpecError, match="nested too deeply"):
        ChainSpec.from_metadata(document)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), values, max_size=6), st.booleans())
def test_encoded_document_is_what_json_indents(document: dict[str, Any], is_long: bool) -> None:
    if is_long:
        document["sizes"] = list(range(2000))  # a member that is not kept
    for _ in range(2):
        assert encoded_document(document) == json.dumps(document, indent=2).encode()
