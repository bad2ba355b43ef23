# test_codec_cast.py - cast_value and scale_offset: every number of 16 bits, and the boundaries of wider types
# SPDX-License-Identifier: MIT
"""The engine, a twin made from the specification's text, and zarr's helper `cast_value_rs` give the same numbers.

NaN may have any payload.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from codec_twins import FLOATS, INTEGERS, ROUNDINGS, Refused, cast_number, cast_table
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import _native as native
from shardcodec.errors import CodecError, SpecError, UnsupportedError
from shardcodec.format import codecs as codec_module
from shardcodec.format.codecs import parse_codecs, resolve_codecs

Array = np.ndarray[Any, Any]

REALS = (*INTEGERS, *FLOATS)
SMALL = ("int8", "uint8", "int16", "uint16", "float16")
OUT_OF_RANGE = (None, "clamp", "wrap")


def every(dtype: str) -> Array:
    """Return all numbers of a type of 8 or 16 bits."""
    bits = 8 * np.dtype(dtype).itemsize
    return np.arange(2**bits, dtype=f"uint{bits}").view(dtype)


def params_of(
    source: str, target: str, rounding: str, out_of_range: str | None, **maps: Any
) -> dict[str, Any]:
    codec = codec_module.CastValue(target, rounding, out_of_range, maps or None)
    name, params = codec.resolve((4,), np.dtype(source)).native()
    assert name == "cast_value"
    return params


def encode(values: Array, target: str, **params: Any) -> Array:
    return np.frombuffer(native.codec_encode("cast_value", values, **params), target)


def equal(a: Array, b: Array) -> bool:
    """Compare bits, but NaN with any NaN."""
    if a.dtype.kind == "f":
        a, b = (np.where(np.isnan(x), np.array(np.nan, x.dtype), x) for x in (a, b))
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def backend() -> Any:
    """Return zarr's helper, if it is there; the test extra asks for a version without wrong results."""
    module = pytest.importorskip("cast_value_rs")
    return module.cast_array


def permitted(target: str, out_of_range: str | None) -> bool:
    return out_of_range != "wrap" or target in INTEGERS


@pytest.mark.parametrize("source", SMALL)
@pytest.mark.parametrize("target", REALS)
def test_every_number_of_16_bits_is_cast_as_specified(source: str, target: str) -> None:
    values = every(source)
    for rounding, out_of_range in itertools.product(ROUNDINGS, OUT_OF_RANGE):
        if not permitted(target, out_of_range):
            continue
        params = params_of(source, target, rounding, out_of_range)
        expected, refused = cast_table(values, target, rounding, out_of_range)
        good = np.ascontiguousarray(values[~refused])
        assert equal(encode(good, target, **params), expected[~refused]), (rounding, out_of_range)
        if refused.any():
            with pytest.raises(CodecError) as caught:
                encode(values, target, **params)
            assert caught.value.element == int(np.argmax(refused))


@pytest.mark.parametrize("target", SMALL)
@pytest.mark.parametrize("source", REALS)
def test_every_number_of_16_bits_is_decoded_as_specified(source: str, target: str) -> None:
    """Decoding is the same cast with the types exchanged: `source` is the type of the array."""
    values = every(target)
    for rounding, out_of_range in itertools.product(ROUNDINGS, OUT_OF_RANGE):
        if not permitted(target, out_of_range):
            continue
        params = params_of(source, target, rounding, out_of_range)
        usual = None if out_of_range == "wrap" and source in FLOATS else out_of_range
        expected, refused = cast_table(values, source, rounding, usual)
        good = np.ascontiguousarray(values[~refused])
        decoded = native.codec_decode("cast_value", good, len(good) * np.dtype(source).itemsize, **params)
        assert equal(np.frombuffer(decoded, source), expected[~refused]), (rounding, out_of_range)


@pytest.mark.parametrize("source", SMALL)
def test_every_number_of_16_bits_is_cast_as_zarr_casts_it(source: str) -> None:
    cast_array = backend()
    values = every(source)
    for target, rounding, out_of_range in itertools.product(REALS, ROUNDINGS, OUT_OF_RANGE):
        if not permitted(target, out_of_range):
            continue
        _, refused = cast_table(values, target, rounding, out_of_range)
        good = np.ascontiguousarray(values[~refused])
        theirs = cast_array(good, target_dtype=target, rounding_mode=rounding, out_of_range_mode=out_of_range)
        mine = encode(good, target, **params_of(source, target, rounding, out_of_range))
        assert equal(mine, theirs), (target, rounding, out_of_range)


# Where a type ends, and where a mantissa ends.
EDGES = [7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64, 127, 128, -14, -24, -25, -126, -149, -150]


@st.composite
def numbers(draw: st.DrawFn, source: str) -> Array:
    """Draw numbers of a type: near powers of two, between them, with ties, tiny ones, and any bits."""
    n = 80
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = np.dtype(source)
    values = np.frombuffer(rng.bytes(n * dtype.itemsize), dtype).copy()
    for i in range(0, n, 2):
        exponent, steps = int(rng.choice(EDGES)), int(rng.integers(-3, 4))
        sign = int(rng.choice([-1, 1]))
        if dtype.kind == "f":
            with np.errstate(all="ignore"):
                value = np.array(sign * 2.0**exponent).astype(dtype)
                if steps and rng.random() < 0.5:  # neighbours of the source
                    value = (
                        (value.view(f"u{dtype.itemsize}") + np.uint64(steps % 2**64))
                        .astype(f"u{dtype.itemsize}")
                        .view(dtype)
                    )
                else:  # ties of narrower types, and of integers
                    unit = 2.0 ** (exponent - int(rng.choice([10, 11, 12, 23, 24, 25, exponent + 1])))
                    value = np.array(sign * (2.0**exponent + steps * unit)).astype(dtype)
            values[i] = value
        elif exponent >= 0:
            unit = 2 ** max(0, exponent - int(rng.choice([11, 12, 24, 25, 53, 54, 64])))
            info = np.iinfo(dtype)
            values[i] = min(max(sign * (2**exponent + steps * unit), int(info.min)), int(info.max))
    return values


@given(
    st.data(),
    st.sampled_from(REALS),
    st.sampled_from(REALS),
    st.sampled_from(ROUNDINGS),
    st.sampled_from(OUT_OF_RANGE),
)
def test_boundaries_are_cast_as_specified(
    data: st.DataObject, source: str, target: str, rounding: str, out_of_range: str | None
) -> None:
    if not permitted(target, out_of_range):
        return
    values = data.draw(numbers(source))
    params = params_of(source, target, rounding, out_of_range)
    results: list[Any] = []
    for value in values.tolist():
        try:
            results.append(cast_number(value, target, rounding, out_of_range))
        except Refused:
            results.append(None)
    good = np.array([result is not None for result in results])
    if not good.all():
        with pytest.raises(CodecError) as caught:
            encode(values, target, **params)
        assert caught.value.element == int(np.argmin(good))
    if not good.any():
        return
    kept = np.ascontiguousarray(values[good])
    expected = np.array([result for result in results if result is not None], dtype=target)
    assert equal(encode(kept, target, **params), expected)
    params = params_of(target, source, rounding, out_of_range) if permitted(source, out_of_range) else None
    if params is not None:  # the same cast as a decoding
        decoded = native.codec_decode("cast_value", kept, expected.nbytes, **params)
        assert equal(np.frombuffer(decoded, target), expected)


WIDE = ("int64", "uint64", "float32", "float64")


@pytest.mark.parametrize("source", WIDE)
@pytest.mark.parametrize("target", REALS)
def test_numbers_above_the_mantissa_of_a_double_are_cast_as_specified(source: str, target: str) -> None:
    """Integers above 2^53, one by one: no float between source and target may round them."""
    dtype = np.dtype(source)
    exponents = (52, 53, 54, 61, 62, 63, 64)
    if dtype.kind == "f":
        signed = [sign * 2.0**e for e in exponents for sign in (-1, 1)]
        exact = np.array(signed, dtype=dtype)
        values = np.concatenate([exact, np.nextafter(exact, dtype.type(0)), np.nextafter(exact, 2 * exact)])
    else:
        info = np.iinfo(dtype)
        near = {sign * 2**e + step for e in exponents for sign in (-1, 1) for step in range(-3, 4)}
        values = np.array(sorted(n for n in near if info.min <= n <= info.max), dtype=dtype)
    for rounding, out_of_range in itertools.product(ROUNDINGS, OUT_OF_RANGE):
        if not permitted(target, out_of_range):
            continue
        params = params_of(source, target, rounding, out_of_range)
        for value in values:
            try:
                expected = cast_number(value.item(), target, rounding, out_of_range)
            except Refused:
                with pytest.raises(CodecError):
                    encode(np.array([value]), target, **params)
            else:
                got = encode(np.array([value]), target, **params)
                assert equal(got, np.array([expected], dtype=target)), (value, rounding, out_of_range)


@given(
    st.data(),
    st.sampled_from(REALS),
    st.sampled_from(REALS),
    st.sampled_from(ROUNDINGS),
    st.sampled_from(OUT_OF_RANGE),
)
def test_boundaries_are_cast_as_zarr_casts_them(
    data: st.DataObject, source: str, target: str, rounding: str, out_of_range: str | None
) -> None:
    cast_array = backend()
    if not permitted(target, out_of_range):
        return
    values = data.draw(numbers(source))
    options = {"target_dtype": target, "rounding_mode": rounding, "out_of_range_mode": out_of_range}
    params = params_of(source, target, rounding, out_of_range)
    try:
        expected = cast_array(values, **options)
    except ValueError:
        with pytest.raises(CodecError):
            encode(values, target, **params)
        return
    assert equal(encode(values, target, **params), expected)


# ---- scalar_map

MAPS = [
    ("float32", "int8", [["NaN", -128], ["Infinity", 127], ["-Infinity", -127]], [[-128, "NaN"], [127, "Infinity"]]),
    ("float64", "uint8", [["NaN", 0], [0.0, 255], [1e300, 7]], [[0, "NaN"], [255, -0.0]]),
    ("float16", "uint16", [["NaN", 65535], [-0.0, 3]], [[65535, "0x7e01"]]),
    ("int16", "float32", [[-32768, "NaN"], [5, -0.0], [5, 1.0]], [["NaN", -32768], [0.0, 5]]),
    ("uint64", "int8", [[2**64 - 1, -1], [300, 44]], [[-1, 2**64 - 1]]),
    ("int8", "int8", [[1, 2], [2, 3]], [[2, 1], [3, 2]]),
]  # fmt: skip


def number(dtype: str, json: Any) -> Any:
    from shardcodec.format.fill_values import fill_from_json

    return np.frombuffer(fill_from_json(np.dtype(dtype), json), dtype)[0]


def is_key(value: Any, key: Any) -> bool:
    return bool(value == key or (value != value and key != key))


@pytest.mark.parametrize(("source", "target", "encoding", "decoding"), MAPS)
def test_mapped_numbers_are_not_cast(source: str, target: str, encoding: Any, decoding: Any) -> None:
    """The first of equal keys counts, zeros of both signs are equal, and so are all NaN."""
    params = params_of(source, target, "nearest-even", None, encode=encoding, decode=decoding)
    for direction, pairs, (a, b) in (
        ("encode", encoding, (source, target)),
        ("decode", decoding, (target, source)),
    ):
        keys = [number(a, key) for key, _ in pairs]
        others = np.array([3, 10, 100, 3], dtype=a)
        values = np.concatenate([np.array(keys, dtype=a), others] * 200)
        if np.dtype(a).kind == "f":
            values = (
                np.concatenate([values, np.array([np.nan, 0.0, -0.0], a)])
                if any(map(math.isnan, keys)) and any(k == 0 for k in keys)
                else values
            )
        expected = []
        for value in values:
            mapped = next((number(b, out) for key, out in pairs if is_key(value, number(a, key))), None)
            expected.append(np.array(value).astype(b)[()] if mapped is None else mapped)
        run = native.codec_encode if direction == "encode" else native.codec_decode
        room = () if direction == "encode" else (len(values) * np.dtype(b).itemsize,)
        got = np.frombuffer(run("cast_value", values, *room, **params), b)
        assert got.tobytes() == np.array(expected, dtype=b).tobytes()


def test_what_is_not_mapped_is_refused_at_its_place() -> None:
    params = params_of("float32", "int8", "nearest-even", "clamp", encode=[["NaN", 0]])
    values = np.zeros(1500, "f4")
    values[700] = np.nan
    assert not encode(values, "int8", **params).any()
    values[1300] = np.inf
    with pytest.raises(CodecError, match="element 1300: inf does not fit int8") as caught:
        encode(values, "int8", **params)
    assert (caught.value.codec, caught.value.element) == ("cast_value", 1300)


# ---- scale_offset


def scaled(value: int, offset: int, scale: int, dtype: str) -> int | None:
    info = np.iinfo(dtype)
    steps = (value - offset, (value - offset) * scale)
    return steps[1] if all(info.min <= step <= info.max for step in steps) else None


def unscaled(value: int, offset: int, scale: int, dtype: str) -> int | None:
    info = np.iinfo(dtype)
    if value % scale:
        return None
    steps = (value // scale, value // scale + offset)
    return steps[1] if all(info.min <= step <= info.max for step in steps) else None


def scale_params(dtype: str, offset: Any, scale: Any) -> dict[str, Any]:
    return codec_module.ScaleOffset(offset, scale).resolve((4,), np.dtype(dtype)).native()[1]


def agrees(direction: str, values: Array, expected: list[Any], params: dict[str, Any]) -> None:
    run = native.codec_encode if direction == "encode" else native.codec_decode
    room = () if direction == "encode" else (values.nbytes,)
    good = np.array([result is not None for result in expected])
    if not good.all():
        with pytest.raises(CodecError) as caught:
            run("scale_offset", values, *room, **params)
        assert caught.value.element == int(np.argmin(good))
    kept = np.ascontiguousarray(values[good])
    room = () if direction == "encode" else (kept.nbytes,)
    if len(kept):
        got = np.frombuffer(run("scale_offset", kept, *room, **params), values.dtype)
        assert got.tolist() == [result for result in expected if result is not None]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_integer_of_8_bits_is_scaled_as_specified(dtype: str) -> None:
    values = every(dtype)
    offsets = [0, 1, 100, 127] if dtype == "uint8" else [0, 1, -1, 100, -128, 127]
    scales = [1, 2, 3, 100, 255] if dtype == "uint8" else [1, -1, 2, -3, 100, -128]
    for offset, scale in itertools.product(offsets, scales):
        params = scale_params(dtype, offset, scale)
        agrees("encode", values, [scaled(v, offset, scale, dtype) for v in values.tolist()], params)
        agrees("decode", values, [unscaled(v, offset, scale, dtype) for v in values.tolist()], params)


@given(st.sampled_from(INTEGERS), st.data())
def test_integers_are_scaled_as_specified(dtype: str, data: st.DataObject) -> None:
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    sizes = st.one_of(
        st.integers(low, high),
        st.integers(max(low, -5), 5),
        st.integers(high - 3, high),
        st.integers(low, low + 3),
    )
    offset, scale = data.draw(sizes), data.draw(sizes.filter(bool))
    values = np.array(data.draw(st.lists(sizes, min_size=1, max_size=60)), dtype)
    params = scale_params(dtype, offset, scale)
    agrees("encode", values, [scaled(v, offset, scale, dtype) for v in values.tolist()], params)
    agrees("decode", values, [unscaled(v, offset, scale, dtype) for v in values.tolist()], params)


@given(st.sampled_from(FLOATS), st.data(), st.integers(0, 2**32 - 1))
def test_floats_are_scaled_in_their_own_type(dtype: str, data: st.DataObject, seed: int) -> None:
    """numpy rounds each step; overflows become infinite."""
    ordinary = st.sampled_from([0, 1, 0.1, -10, 1000.5, 3e-5, 6e4, 1e-7, -0.0])
    offset, scale = data.draw(ordinary), data.draw(ordinary.filter(bool))
    rng = np.random.default_rng(seed)
    values = np.frombuffer(rng.bytes(1030 * np.dtype(dtype).itemsize), dtype).copy()
    values[:500] = rng.normal(0, 100, 500)
    params = scale_params(dtype, offset, scale)
    o, s = (np.array(x, dtype)[()] for x in (offset, scale))
    if s == 0:
        return
    with np.errstate(all="ignore"):
        encoded, decoded = (values - o) * s, values / s + o
    assert equal(np.frombuffer(native.codec_encode("scale_offset", values, **params), dtype), encoded)
    got = native.codec_decode("scale_offset", values, values.nbytes, **params)
    assert equal(np.frombuffer(got, dtype), decoded)


# ---- metadata


def resolved(codecs: list[Any], dtype: str) -> Any:
    return resolve_codecs(parse_codecs(codecs, "codecs"), (4, 6), np.dtype(dtype), "codecs")


@pytest.mark.parametrize(
    ("configuration", "dtype", "error", "what"),
    [
        ({"data_type": "complex64"}, "int8", SpecError, "expected one of int8"),
        ({"data_type": "bfloat16"}, "int8", UnsupportedError, "got bfloat16"),
        ({"data_type": "float8_e4m3"}, "int8", UnsupportedError, "got float8_e4m3"),
        ({"data_type": "int8"}, "complex64", UnsupportedError, "got complex64"),
        ({"data_type": "int8", "rounding": "up"}, "int16", SpecError, "nearest-even, towards-zero"),
        ({"data_type": "int8", "out_of_range": "error"}, "int16", SpecError, "clamp, wrap"),
        ({"data_type": "float16", "out_of_range": "wrap"}, "int16", SpecError, "only for integers"),
        ({"data_type": "int8", "more": 1}, "int16", SpecError, "unknown key"),
        ({}, "int16", SpecError, "missing required key"),
        ({"data_type": "int8", "scalar_map": {"both": []}}, "int16", SpecError, "unknown key"),
        ({"data_type": "int8", "scalar_map": {"encode": [[1, 2, 3]]}}, "int16", SpecError, "two numbers"),
        ({"data_type": "int8", "scalar_map": {"encode": [[1, 128]]}}, "int16", SpecError, "at most 127"),
        ({"data_type": "int8", "scalar_map": {"encode": [["NaN", 1]]}}, "int16", SpecError, "expected an integer"),
        ({"data_type": "int8", "scalar_map": {"encode": [[i, 1] for i in range(257)]}}, "int16", UnsupportedError, "256"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_configurations_of_casts_are_refused(
    configuration: Any, dtype: str, error: Any, what: str
) -> None:
    with pytest.raises(error, match=what):
        resolved([{"name": "cast_value", "configuration": configuration}, "bytes"], dtype)


@pytest.mark.parametrize(
    ("configuration", "dtype", "error", "what"),
    [
        ({"offset": 0.5}, "int16", SpecError, "expected an integer"),
        ({"offset": 40000}, "int16", SpecError, "at most 32767"),
        ({"scale": 0}, "int16", SpecError, "another number than 0"),
        ({"scale": 1e-9}, "float16", SpecError, "another number than 0"),
        ({"scale": 1}, "complex64", UnsupportedError, "got complex64"),
        ({"factor": 1}, "int16", SpecError, "unknown key"),
    ],
    ids=str,
)
def test_wrong_configurations_of_scales_are_refused(
    configuration: Any, dtype: str, error: Any, what: str
) -> None:
    with pytest.raises(error, match=what):
        resolved([{"name": "scale_offset", "configuration": configuration}, "bytes"], dtype)


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}}, {"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"],
        [{"name": "scale_offset"}, {"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 2], "codecs": ["bytes"], "index_codecs": ["bytes"]}}],
        [{"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}}, {"name": "scale_offset"}, {"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"],
    ],
    ids=["delta before transpose", "before a shard", "delta before an elementwise filter and transpose"],
)  # fmt: skip
def test_orders_that_the_engine_does_not_have_are_refused(codecs: list[Any]) -> None:
    little = [
        {"name": "bytes", "configuration": {"endian": "little"}} if codec == "bytes" else codec
        for codec in codecs
    ]
    with pytest.raises(UnsupportedError):
        resolved(little, "int16")


def test_numbers_that_compare_equal_are_different_codecs() -> None:
    """Compiled chains are cached by their codecs, and 1 == 1.0, 0.0 == -0.0: two arrays shared the codecs of the first one."""

    def scale(offset: Any) -> Any:
        return codec_module.FixedScaleOffset(offset, 1, "|u1", "|u1").resolve((4,), np.dtype("u1"))

    assert scale(1) != scale(1.0)
    a, b = (codec_module.ScaleOffset(zero).resolve((4,), np.dtype("f4")) for zero in (0.0, -0.0))
    assert a != b
    maps = [{"encode": [["NaN", zero]]} for zero in (0.0, -0.0)]
    a, b = (codec_module.CastValue("float32", scalar_map=m).resolve((4,), np.dtype("f8")) for m in maps)
    assert a != b
