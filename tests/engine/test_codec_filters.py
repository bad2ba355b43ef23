# test_codec_filters.py - the filters of numcodecs, all pairs of data types, compared with numcodecs
# SPDX-License-Identifier: MIT
"""Any bits, and the boundaries of all types. Where numpy calls a conversion undefined, the result is that of x86-64."""

from __future__ import annotations

import platform
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardcodec
from shardcodec import _native as native
from shardcodec.errors import CodecError, UnsupportedError
from shardcodec.format import codecs as codec_module

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
NUMBERS = INTEGERS + FLOATS
IS_X86 = platform.machine() == "x86_64"
BOUNDARIES = [
    *(0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 128, -129, 255, 256, 65535.5, 8388607.5),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**53 + 2, 2**63, 2**63 - 1025, -(2**63), 2**64, 1e30, -1e30, 1e-40),
]  # fmt: skip
N = 1024  # several blocks of the engine, and whole vectors of numpy


def elements(dtype: str, seed: int, kind: str) -> np.ndarray[Any, Any]:
    """Return N elements: any bits, numbers of many sizes and boundaries, or small numbers."""
    rng = np.random.default_rng(seed)
    bits = np.frombuffer(rng.bytes(N * np.dtype(dtype).itemsize), dtype).copy()
    if kind == "bits":
        return bits
    if kind == "small":
        return rng.integers(0, 100, N).astype(dtype)
    if np.dtype(dtype).kind == "f":
        sizes = rng.choice([1, 100, 1e5, 1e10, 1e19], N)
        bits[:] = (rng.standard_normal(N) * sizes).astype(dtype)
        bits[: len(BOUNDARIES)] = np.array(BOUNDARIES).astype(dtype)
    else:
        info = np.iinfo(dtype)
        bits[:4] = [info.min, info.max, 0, 1]
    return bits


KINDS = ["bits", "boundaries", "small"] if IS_X86 else ["small"]
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(KINDS)


def without_payloads(data: bytes, dtype: Any, inexact: bool) -> bytes:
    """Return the elements with one NaN. numpy keeps signalling ones of float16 on some processors; the sum of two NaNs is one of them.

    Which one, a compiler may choose: a build with other flags chose the other.
    """
    elements = np.frombuffer(data, dtype)
    if not inexact or elements.dtype.kind != "f":
        return data
    return np.where(np.isnan(elements), np.array(np.nan, dtype), elements).tobytes()


def one_by_one(convert: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what numcodecs makes of an array; of uint32 from floats, what it makes of each element alone.

    numpy loses numbers out of the range of uint32 in groups of four elements. In smaller chunks, as in those of the engine, they
    are modulo 2**32, so that fixedscaleoffset of numbers below the offset could not be read back in chunks of 1 to 3.
    """
    together = np.asarray(convert(array))
    if together.dtype != np.uint32 or isinstance(getattr(convert, "__self__", None), numcodecs.Delta):
        return together
    return np.concatenate([np.asarray(convert(array[i : i + 1])) for i in range(len(array))])


def agrees(codec: Any, name: str, array: np.ndarray[Any, Any], **params: Any) -> None:
    """Check both directions against numcodecs."""
    with np.errstate(all="ignore"):
        try:
            stored = one_by_one(codec.encode, array)
            theirs = stored, one_by_one(codec.decode, stored)
            encoded, decoded = (result.tobytes() for result in theirs)
            dtypes = [result.dtype for result in theirs]
        except OverflowError:  # numpy refuses the first element of `delta`
            with pytest.raises(CodecError) as refused:
                native.codec_encode(name, array, **params)
            assert refused.value.element == 0
            return
    has_halves = np.dtype("float16") in (array.dtype, *dtypes) and name != "bitround"
    inexact = has_halves or name == "delta"
    mine = native.codec_decode(name, encoded, array.nbytes, **params)
    assert without_payloads(mine, dtypes[1], inexact) == without_payloads(decoded, dtypes[1], inexact)
    try:
        mine = native.codec_encode(name, array, **params)
        assert without_payloads(mine, dtypes[0], inexact) == without_payloads(encoded, dtypes[0], inexact)
    except CodecError as error:  # numpy stores the first element modulo 2^n
        assert error.element == 0  # noqa: PT017
    for cut in (1, len(encoded) - 1):
        if cut % (len(encoded) // N):
            with pytest.raises(CodecError, match="no whole number of elements"):
                native.codec_decode(name, encoded[:cut], array.nbytes, **params)
    with pytest.raises(CodecError, match="at most"):
        native.codec_decode(name, encoded, array.nbytes - 1, **params)


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), seeds, kinds)
def test_astype_equals_numcodecs(decoded: str, encoded: str, seed: int, kind: str) -> None:
    codec = numcodecs.AsType(encoded, decoded)
    agrees(codec, "astype", elements(decoded, seed, kind), item=decoded, encoded_item=encoded)


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), seeds, kinds)
def test_delta_equals_numcodecs(decoded: str, encoded: str, seed: int, kind: str) -> None:
    resolve = codec_module.Delta(np.dtype(decoded).str, np.dtype(encoded).str).resolve
    try:
        _, params = resolve((N,), np.dtype(decoded)).native()
    except UnsupportedError:
        return
    agrees(numcodecs.Delta(decoded, encoded), "delta", elements(decoded, seed, kind), **params)


@pytest.mark.parametrize(
    ("decoded", "encoded"), [("<i2", "<u2"), ("<i1", "<u1"), ("<i2", "<u4"), ("<i4", "<u4")]
)
def test_negative_numbers_come_back_from_unsigned_differences(decoded: str, encoded: str) -> None:
    """The first element was refused, though numcodecs stores it modulo the size of the type and reads it back."""
    array = np.array([-5, 3, 7, -9, np.iinfo(decoded).min], decoded)
    codec = codec_module.Delta(decoded, encoded).resolve(array.shape, array.dtype)
    stored = native.codec_encode("delta", array, **codec.native()[1])
    assert stored == numcodecs.Delta(decoded, encoded).encode(array).tobytes()
    assert native.codec_decode("delta", stored, array.nbytes, **codec.native()[1]) == array.tobytes()


@pytest.mark.parametrize(
    ("decoded", "encoded"), [("<u8", "<i8"), ("<u8", "<i1"), ("<i8", "<u8"), ("<i2", "<u8")]
)
def test_sums_that_numpy_makes_as_floats_are_left_to_zarr(decoded: str, encoded: str) -> None:
    """numpy decodes 2**64 - 1 after other numbers from int64 as a rounded number; the engine would give the exact one."""
    with pytest.raises(UnsupportedError, match="another data type"):
        codec_module.Delta(decoded, encoded).resolve((N,), np.dtype(decoded))


NUMBER = st.sampled_from([0, 1, -1, 3, 100, 0.5, 2.0, -1.25, 10.0, 1e-3])


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), NUMBER, NUMBER.filter(bool), seeds, kinds)
def test_fixedscaleoffset_equals_numcodecs(
    decoded: str, encoded: str, offset: float, scale: float, seed: int, kind: str
) -> None:
    names = np.dtype(decoded).str, np.dtype(encoded).str
    try:
        codec = codec_module.FixedScaleOffset(offset, scale, *names).resolve((N,), np.dtype(decoded))
    except UnsupportedError:
        return
    _, params = codec.native()
    twin = numcodecs.FixedScaleOffset(offset, scale, *names)
    agrees(twin, "fixedscaleoffset", elements(decoded, seed, kind), **params)


@pytest.mark.parametrize("n", range(1, 18))
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_numbers_below_the_offset_come_back(dtype: str, n: int) -> None:
    """In chunks of every length, modulo the size of the type; numcodecs loses groups of four of uint32."""
    _, params = (
        codec_module.FixedScaleOffset(10, 1, np.dtype(dtype).str).resolve((n,), np.dtype(dtype)).native()
    )
    array = np.arange(n, dtype=dtype)
    stored = native.codec_encode("fixedscaleoffset", array, **params)
    assert native.codec_decode("fixedscaleoffset", stored, array.nbytes, **params) == array.tobytes()


@given(st.sampled_from(FLOATS), st.integers(-3, 12), seeds, kinds)
def test_quantize_equals_numcodecs(dtype: str, digits: int, seed: int, kind: str) -> None:
    _, params = codec_module.Quantize(digits).resolve((N,), np.dtype(dtype)).native()
    agrees(numcodecs.Quantize(digits, dtype), "quantize", elements(dtype, seed, kind), **params)


@given(st.sampled_from([("float16", 10), ("float32", 23), ("float64", 52)]), st.data(), seeds)
def test_bitround_equals_numcodecs(dtype: tuple[str, int], data: st.DataObject, seed: int) -> None:
    keepbits = data.draw(st.integers(0, dtype[1]))
    _, params = codec_module.BitRound(keepbits).resolve((N,), np.dtype(dtype[0])).native()
    agrees(numcodecs.BitRound(keepbits), "bitround", elements(dtype[0], seed, "bits"), **params)


@given(st.binary(min_size=1, max_size=100))
def test_packbits_equals_numcodecs(data: bytes) -> None:
    flags = np.frombuffer(data, "u1") > 127
    packed = numcodecs.PackBits().encode(flags).tobytes()
    assert native.codec_encode("packbits", flags) == packed
    assert native.codec_decode("packbits", packed, len(flags)) == flags.tobytes()


@pytest.mark.parametrize("stream", [b"", b"\x01", b"\x09\xff", b"\xff" * 20])
def test_malformed_bits_are_refused(stream: bytes) -> None:
    with pytest.raises(CodecError, match="unused bits"):
        native.codec_decode("packbits", stream, 1000)


@pytest.mark.parametrize(
    ("codec", "dtype", "what"),
    [
        (codec_module.Delta("<u4"), "int32", "int32, the type of the elements, got <u4"),
        (codec_module.Delta("<i8", "<u8"), "int64", "another data type than uint64"),
        (codec_module.Delta("<f4", "<f8"), "float32", "an integer for integers"),
        (codec_module.Delta(), "complex64", "got complex64"),
        (
            codec_module.FixedScaleOffset(0, 1000, "<f4", "|i1"),
            "float32",
            "a number that int8 can have, got 1000",
        ),
        (codec_module.Quantize(1, "<f4", "<f8"), "float32", "zarr forgets another one"),
        (codec_module.BitRound(24), "float32", "23 bits of float32"),
        (codec_module.PackBits(), "uint8", "type bool, got uint8"),
    ],
    ids=str,
)
def test_what_numcodecs_reinterprets_is_left_to_zarr(codec: Any, dtype: str, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        codec.resolve((4,), np.dtype(dtype))


def test_elements_that_numcodecs_swaps_are_left_to_zarr() -> None:
    with pytest.raises(UnsupportedError, match="int32, the type of the elements, got >i4"):
        codec_module.Delta(">i4").resolve((4,), np.dtype("i4"))
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    with pytest.raises(UnsupportedError, match=r"little-endian bytes after numcodecs\.delta"):
        codec_module.resolve_codecs(
            codec_module.parse_codecs([codec_module.Delta("<i4"), big], "codecs"),
            (4,),
            np.dtype("i4"),
            "codecs",
        )


@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_integers_and_floats_in_a_configuration_have_their_own_chains(scale: float) -> None:
    """1 == 1.0: the array that was opened second computed with the numbers of the first one."""
    values = np.array([0, 3, 200, 255], "u1")
    offsets = (1, 1.0) if scale == 0.5 else (1.0, 1)
    for offset in offsets:
        config = {"offset": offset, "scale": scale, "dtype": "|u1", "astype": "<f4"}
        codecs = [
            {"name": "numcodecs.fixedscaleoffset", "configuration": config},
            codec_module.Bytes("little"),
        ]
        blob = bytes(shardcodec.encode(values, shardcodec.ShardSpec((4,), (4,), "uint8", 0, codecs)))
        with np.errstate(all="ignore"):
            assert blob[:16] == np.asarray(numcodecs.FixedScaleOffset(**config).encode(values)).tobytes()
