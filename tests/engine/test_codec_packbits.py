# test_codec_packbits.py - the codec "packbits" of zarr-extensions, compared with the text of its specification
# SPDX-License-Identifier: MIT
"""`packed` and `unpacked` do what the text says, with one integer for the whole sequence of bits; zarr itself does not have the codec.

Source: zarr-extensions, ``codecs/packbits/README.md``. `tests/interop/test_packbits.py` compares with zarrs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_json import CRC, Json, named, transpose, typed_metadata, zstd

import shardcodec
from shardcodec import _native as native
from shardcodec.errors import CodecError, ShardError, SpecError, UnsupportedError
from shardcodec.format.codecs import RegistryPackBits, parse_codecs, resolve_codecs
from shardcodec.format.spec import ChainSpec
from shardcodec.format.text import text_array

PADDINGS = ["none", "first_byte", "last_byte"]
# data types, the bits of an element, and whether it has a sign
SMALL = {"int2": (2, True), "uint2": (2, False), "int4": (4, True), "uint4": (4, False),
         "float4_e2m1fn": (4, False), "float6_e2m3fn": (6, False), "float6_e3m2fn": (6, False)}  # fmt: skip
WIDE = {f"{kind}{n}": (n, kind == "int") for kind in ("int", "uint") for n in (8, 16, 32, 64)}
WIDE |= {"float16": (16, False), "float32": (32, False), "float64": (64, False)}


def packed(elements: Sequence[int], first: int, last: int, padding: str) -> bytes:
    """Encode elements that are given as numbers of all their bits."""
    n = last - first + 1
    sequence = sum((element >> first & (1 << n) - 1) << i * n for i, element in enumerate(elements))
    n_bytes = -(-len(elements) * n // 8)
    n_padding = bytes([8 * n_bytes - len(elements) * n])
    data = sequence.to_bytes(n_bytes, "little")
    return {"none": data, "first_byte": n_padding + data, "last_byte": data + n_padding}[padding]


def kept(element: int, first: int, last: int, n_bits: int, is_signed: bool) -> int:
    """Return what an element becomes, as a number of all its bits: outside of the stored ones, zeros or the highest of them."""
    stored = element >> first & (1 << last - first + 1) - 1
    is_negative = is_signed and stored >> last - first
    above = (1 << n_bits) - (1 << last + 1) if is_negative else 0
    return stored << first | above


def codec_of(dtype: Any, first: int | None, last: int | None, padding: str) -> dict[str, Any]:
    return RegistryPackBits(padding, first, last).resolve((1,), np.dtype(dtype)).native()[1]


def check(
    raw: np.ndarray[Any, Any], n_bits: int, is_signed: bool, first: int, last: int, padding: str
) -> None:
    """Check both directions; `raw` has the bits of elements as unsigned integers."""
    dtype = f"{'int' if is_signed else 'uint'}{8 * raw.itemsize}"
    params = {**codec_of(dtype, first, last, padding), "n_bits": n_bits}
    numbers = raw.tolist()
    encoded = native.codec_encode("bit_fields", raw, **params)
    assert encoded == packed(numbers, first, last, padding)
    decoded = np.frombuffer(native.codec_decode("bit_fields", encoded, raw.nbytes, **params), raw.dtype)
    assert decoded.tolist() == [kept(number, first, last, n_bits, is_signed) for number in numbers]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("n_bits", [2, 4, 6, 8])
def test_all_elements_of_one_byte_with_all_ranges_of_bits(n_bits: int, is_signed: bool, padding: str) -> None:
    """Any number of elements in the last byte; the bits of a byte that its type does not have are ignored."""
    rng = np.random.default_rng(n_bits)
    everything = np.arange(256, dtype="u1")
    for last in range(n_bits):
        for first in range(last + 1):
            check(everything, n_bits, is_signed, first, last, padding)
            for n in range(1, 18):
                check(rng.choice(everything, n), n_bits, is_signed, first, last, padding)


@given(st.sampled_from([2, 4, 8]), st.booleans(), st.sampled_from(PADDINGS), st.data())
def test_wide_elements(nbytes: int, is_signed: bool, padding: str, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 8 * nbytes - 1))
    last = data.draw(st.integers(first, 8 * nbytes - 1))
    n = data.draw(st.one_of(st.integers(1, 40), st.just(1000)))
    raw = np.frombuffer(np.random.default_rng(data.draw(st.integers(0, 99))).bytes(n * nbytes), f"u{nbytes}")
    check(raw, 8 * nbytes, is_signed, first, last, padding)


@pytest.mark.parametrize("nbytes", [2, 4, 8])
def test_all_ranges_of_bits_of_wide_elements(nbytes: int) -> None:
    raw = np.frombuffer(np.random.default_rng(nbytes).bytes(23 * nbytes), f"u{nbytes}")
    for last in range(8 * nbytes):
        for first in range(last + 1):
            check(raw, 8 * nbytes, bool(first % 2), first, last, PADDINGS[last % 3])


def test_any_byte_but_0_is_true() -> None:
    params = codec_of("bool", None, None, "first_byte")
    assert (
        native.codec_encode("bit_fields", bytes([0, 1, 2, 128, 255, 0, 0, 0, 7]), **params) == b"\x07\x1e\x01"
    )
    assert native.codec_decode("bit_fields", b"\x07\x1e\x01", 9, **params) == bytes(
        [0, 1, 1, 1, 1, 0, 0, 0, 1]
    )


# ---- malformed bytes


@pytest.mark.parametrize(
    ("stream", "padding", "last", "what"),
    [
        (b"", "first_byte", 2, "no number of padding bits"),
        (b"", "last_byte", 2, "no number of padding bits"),
        (b"\x08\x00\x00", "first_byte", 2, "a wrong number of padding bits"),
        (b"\x01", "first_byte", 2, "a wrong number of padding bits"),
        (b"\x00\x00\xff", "last_byte", 2, "a wrong number of padding bits"),
        (b"\x03\x00", "first_byte", 2, "no whole number of elements"),
        (b"\x02\x40", "first_byte", 2, "padding bits that are not 0"),
        (b"\x80\x02", "last_byte", 2, "padding bits that are not 0"),
        (b"\x40", "none", 2, "padding bits that are not 0"),
        (b"\x00" * 3, "none", 15, "no whole number of elements"),
    ],
)  # fmt: skip
def test_malformed_bytes_are_refused(stream: bytes, padding: str, last: int, what: str) -> None:
    params = codec_of("uint16", 0, last, padding)
    with pytest.raises(CodecError, match=f"^packbits: {what}"):
        native.codec_decode("bit_fields", stream, 100, **params)


def test_more_elements_than_expected_are_refused() -> None:
    for padding in PADDINGS:
        params = codec_of("uint8", 0, 2, padding)
        encoded = native.codec_encode("bit_fields", bytes(16), **params)
        with pytest.raises(CodecError, match="at most"):
            native.codec_decode("bit_fields", encoded, 8, **params)


# ---- metadata


@pytest.mark.parametrize(
    ("configuration", "error", "what"),
    [
        ({"padding_encoding": "start_byte"}, SpecError, "one of none, first_byte, last_byte, got 'start_byte'"),
        ({"padding_encoding": None}, SpecError, "padding_encoding: expected a value"),
        ({"first_bit": -1}, SpecError, "first_bit: expected at least 0, got -1"),
        ({"first_bit": 1.0}, SpecError, "first_bit: expected an integer"),
        ({"first_bit": 16}, SpecError, "first_bit: expected at most 15 for int16, got 16"),
        ({"last_bit": 16}, SpecError, "last_bit: expected at most 15 for int16, got 16"),
        ({"first_bit": 5, "last_bit": 4}, SpecError, "last_bit: expected at least first_bit, 5, got 4"),
        ({"start_bit": 5}, SpecError, "start_bit"),
    ],
)  # fmt: skip
def test_invalid_configurations_are_refused(configuration: Json, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        ChainSpec((4,), "int16", 0, [named("packbits", **configuration)])


@pytest.mark.parametrize(
    "dtype", ["S3", "U3", "V4", "datetime64[s]", "timedelta64[s]", [("a", "int16")]], ids=str
)
def test_types_that_the_registry_does_not_list_are_refused(dtype: Any) -> None:
    with pytest.raises(UnsupportedError, match="numbers or truth values for packbits"):
        ChainSpec((4,), dtype, np.zeros((), dtype)[()], ["packbits"])


def test_complex_numbers_of_few_bits_are_refused_with_the_reason() -> None:
    document = ChainSpec((4,), "uint8", 0, ["packbits"]).to_metadata((4,))
    with pytest.raises(UnsupportedError, match="numpy has no complex numbers of float4_e2m1fn"):
        ChainSpec.from_metadata({**document, "data_type": "complex_float4_e2m1fn", "fill_value": [0, 0]})


@pytest.mark.parametrize("data_type", ["string", "variable_length_bytes"])
def test_texts_are_refused(data_type: str) -> None:
    document = ChainSpec((4,), "uint8", 0, ["packbits"]).to_metadata((4,))
    array = text_array({**document, "data_type": data_type, "fill_value": ""})
    assert array is not None
    with pytest.raises(UnsupportedError, match="no packbits with texts"):
        array.spec()


def test_filters_of_numcodecs_and_indexes_do_not_take_it() -> None:
    with pytest.raises(UnsupportedError, match=r"bytes after numcodecs\.delta, got packbits"):
        ChainSpec((4,), "int16", 0, [named("numcodecs.delta", dtype="<i2"), "packbits"])
    with pytest.raises(UnsupportedError, match="codec of fixed size for an index"):
        shardcodec.ShardSpec((4,), (2,), "int16", 0, index_codecs=["packbits"])


def test_defaults_are_left_out_of_the_metadata() -> None:
    """Two specs are equal if their bytes are."""
    explicit = {"padding_encoding": "none", "first_bit": 0, "last_bit": 15}
    spec = ChainSpec((4,), "int16", 0, [named("packbits", **explicit)])
    assert spec == ChainSpec((4,), "int16", 0, [named("packbits", first_bit=None, last_bit=None)])
    assert spec.to_json() == [{"name": "packbits"}]
    given = {"padding_encoding": "last_byte", "first_bit": 1, "last_bit": 0 + 3}
    (codec,) = resolve_codecs(parse_codecs([named("packbits", **given)], ""), (4,), np.dtype("int16"), "")
    assert codec.to_json() == named("packbits", **given)
    assert ChainSpec((5,), "int16", 0, [codec]).fixed_nbytes == 3


# ---- arrays

SHAPE, SHARD, CHUNK = (13, 20), (8, 12), (4, 6)


def bits_of(name: str) -> tuple[int, bool]:
    return (SMALL | WIDE | {"bool": (1, False), "bfloat16": (16, False)})[name]


def dtype_of(name: str) -> np.dtype[Any]:
    if name not in SMALL and name != "bfloat16":
        return np.dtype(name)
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    return np.dtype(getattr(ml_dtypes, name))


def made(folder: Path, name: str, codecs: list[Any], sharded: bool, fill: Any = 0) -> shardcodec.Array:
    fill = bool(fill) if name == "bool" else fill
    document = typed_metadata(name, codecs, SHAPE, CHUNK, SHARD if sharded else None, fill)
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps(document))
    return shardcodec.open_array(folder, mode="r+")


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", ["bool", *SMALL, *WIDE, "bfloat16"])
def test_arrays_are_written_and_read(tmp_path: Path, name: str, sharded: bool) -> None:
    dtype, (n_bits, _) = dtype_of(name), bits_of(name)
    raw = np.random.default_rng(n_bits).integers(0, 1 << n_bits, SHAPE, "u8").astype(f"u{dtype.itemsize}")
    values = raw.view(dtype)
    for i, padding in enumerate(PADDINGS):
        for k, behind in enumerate(([], [zstd(), CRC])):
            codecs = [named("packbits", padding_encoding=padding), *behind]
            array = made(tmp_path / f"{i}{k}", name, codecs, sharded)
            array[...] = values
            array[3:9, 5:17] = values[4:10, 2:14]
            expected = raw.copy()
            expected[3:9, 5:17] = raw[4:10, 2:14]
            again = shardcodec.open_array(tmp_path / f"{i}{k}")
            assert again.dtype == dtype
            for box in np.s_[:, :], np.s_[2:11, 3:4], np.s_[::3, 1::2], np.s_[12, 19]:
                np.testing.assert_array_equal(np.asarray(again[box]).view(raw.dtype), expected[box])
            if not sharded and not behind:
                chunk = (tmp_path / f"{i}{k}/c/1/2").read_bytes()
                assert chunk == packed(expected[4:8, 12:18].ravel().tolist(), 0, n_bits - 1, padding)


def test_complex_numbers_have_two_parts(tmp_path: Path) -> None:
    values = np.array([1.5 - 2j, np.nan + 1j, -0.0 + 3.25j], "c8")
    codec = named("packbits", first_bit=16, padding_encoding="first_byte")
    spec = ChainSpec((3,), "complex64", 0, [codec])
    encoded = bytes(shardcodec.encode(values, spec))
    assert encoded == packed(values.view("u4").tolist(), 16, 31, "first_byte")
    assert shardcodec.decode(encoded, spec).tobytes() == values.tobytes()  # numbers of few bits


@pytest.mark.parametrize("sharded", [False, True])
def test_numbers_are_cast_and_packed(tmp_path: Path, sharded: bool) -> None:
    """12 bits of a sensor: floats become integers, of which the upper 4 bits are always 0."""
    values = np.random.default_rng(0).integers(0, 4096, SHAPE).astype("f8") / 8 - 100
    codecs = [
        named("scale_offset", offset=-100, scale=8),
        transpose(1, 0),
        named("cast_value", data_type="uint16"),
        named("packbits", last_bit=11),
        zstd(),
    ]
    array = made(tmp_path / "a", "float64", codecs, sharded)
    for source in values, np.asfortranarray(values), values.astype(">f8"):
        array[...] = 0
        array[...] = source
        np.testing.assert_array_equal(shardcodec.open_array(tmp_path / "a")[...], values)
    np.testing.assert_array_equal(array[3:11, ::3], values[3:11, ::3])


@pytest.mark.parametrize("sharded", [False, True])
def test_elements_of_any_memory_and_chunks_of_nan(tmp_path: Path, sharded: bool) -> None:
    """The engine packs elements in native order, and does not store a chunk of NaN if that is the fill value."""
    values = np.random.default_rng(1).random(SHAPE, "f4")
    values[4:8, 6:12] = np.nan
    array = made(tmp_path / "a", "float32", [named("packbits", padding_encoding="last_byte")], sharded, "NaN")
    for source in values, np.asfortranarray(values), values.astype(">f4"):
        array[...] = 5
        array[...] = source
        np.testing.assert_array_equal(shardcodec.open_array(tmp_path / "a")[...], values)
        assert sharded or not (tmp_path / "a/c/1/1").exists()


@pytest.mark.parametrize("cut", [0, 1, 11, 13, 40])
def test_chunk_of_a_wrong_size_is_refused(tmp_path: Path, cut: int) -> None:
    for i, behind in enumerate(([], [zstd()])):
        array = made(tmp_path / f"{i}", "uint8", [named("packbits", last_bit=3), *behind], False)
        stored = bytes(cut)
        if behind:
            stored = native.codec_encode("zstd", stored, level=1)
        path = tmp_path / f"{i}/c/0/0"
        path.parent.mkdir(parents=True)
        path.write_bytes(stored)
        with pytest.raises(ShardError):
            array[:4, :6]


def test_damaged_chunks_are_errors_that_name_the_chunk(tmp_path: Path) -> None:
    codec = named("packbits", last_bit=2, padding_encoding="last_byte")
    array = made(tmp_path / "a", "uint8", [codec], True)
    array[...] = 5
    shard = tmp_path / "a/c/0/0"
    data = bytearray(shard.read_bytes())
    data[9] = 8  # 24 elements of 3 bits, and the number of padding bits
    shard.write_bytes(data)
    with pytest.raises(CodecError, match=r"inner chunk \(0, 0\).*packbits: a wrong number of padding bits"):
        array[0, 0]
    np.testing.assert_array_equal(array[:4, 6:12], 5)


def test_fill_values_and_absent_chunks(tmp_path: Path) -> None:
    """A fill value with bits that are not stored is read where no chunk is; a chunk that equals it is not stored."""
    for sharded in False, True:
        array = made(tmp_path / f"{sharded}", "int16", [named("packbits", last_bit=3)], sharded, 300)
        array[:4, :6] = 300
        array[4:8, :6] = -3
        np.testing.assert_array_equal(array[:8, :6], np.repeat([300, -3], 24).reshape(8, 6))
        array[4, 0] = 7
        assert array[4:6, :2].tolist() == [[7, -3], [-3, -3]]


def test_bytes_of_zarrs() -> None:
    """A chunk of 4 x 6 elements with the bits 0 to 23, which zarrs wrote: its repository at cc99c116,

    zarrs/tests/data/codec/packbits_subbyte/packbits_subbyte_test.zarr/c/0/0.
    """
    dtype = dtype_of("float6_e3m2fn")
    stored = bytes.fromhex("40200c44611c48a22c4ce33c50244d54655d")
    spec = ChainSpec((4, 6), dtype, 0, ["packbits"])
    values = np.arange(24, dtype="u1").reshape(4, 6).view(dtype)
    assert bytes(shardcodec.encode(values, spec)) == stored
    assert shardcodec.decode(stored, spec).tobytes() == values.tobytes()


def test_convert_takes_the_codec(tmp_path: Path) -> None:
    """From plain chunks to shards: chunks move if their codecs are equal, and are packed if the user wants it."""
    from shardcodec.tools import convert

    values = np.arange(260, dtype="u2").reshape(SHAPE)
    made(tmp_path / "a", "uint16", [named("packbits", last_bit=8)], False)[...] = values
    convert(tmp_path / "a", tmp_path / "b")
    convert(tmp_path / "b", tmp_path / "c", codecs=("packbits", "zstd"))
    for place in "b", "c":
        array = shardcodec.open_array(tmp_path / place)
        np.testing.assert_array_equal(array[...], values)
    inner = json.loads((tmp_path / "c/zarr.json").read_text())["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in inner] == ["packbits", "zstd"]
