"""Hypothesis strategies: shards with any metadata, data with empty inner chunks, selections."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import event
from hypothesis import strategies as st
from reference import ShardMeta
from spec_json import BIG, BYTE, CRC, LITTLE, named, transpose

Array = npt.NDArray[Any]
JSON = dict[str, Any]

# Names that Zarr and NumPy share.
DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


CHECKSUMS = [
    CRC,
    CRC,
    named("numcodecs.fletcher32"),
    named("numcodecs.crc32", location="end"),
    named("numcodecs.adler32", location="start"),
]


class Layout(NamedTuple):
    """A drawn shard: the metadata for zarr.json, and the same for the twin."""

    data_type: str
    fill_json: Any
    meta: ShardMeta


# ---------------------------------------------------------------------------------------------------------
# metadata


def some_bytes(draw: st.DrawFn, itemsize: int) -> JSON:
    return draw(st.sampled_from([LITTLE, BIG] if itemsize > 1 else [LITTLE, BIG, BYTE]))


def transposes(draw: st.DrawFn, ndim: int) -> list[JSON]:
    orders = draw(st.lists(st.permutations(range(ndim)), max_size=2 if ndim > 1 else 0))
    return [transpose(*order) for order in orders]


@st.composite
def compressors(draw: st.DrawFn, itemsize: int) -> JSON:
    name = draw(st.sampled_from(["zstd", "gzip", "blosc", "numcodecs.lz4", "numcodecs.zlib"]))
    conf: JSON
    if name == "zstd":
        conf = {"level": draw(st.sampled_from([-1, 0, 1, 9])), "checksum": draw(st.booleans())}
    elif name == "numcodecs.lz4":
        conf = {"acceleration": draw(st.integers(1, 3))}
    elif name == "blosc":
        conf = {
            "cname": draw(st.sampled_from(["lz4", "lz4hc", "blosclz", "zlib", "zstd"])),
            "clevel": draw(st.sampled_from([0, 1, 5, 9])),
            "shuffle": draw(st.sampled_from(["noshuffle", "shuffle", "bitshuffle"])),
            "typesize": draw(st.sampled_from([itemsize, 1, 3])),
            "blocksize": draw(st.sampled_from([0, 64])),
        }
    else:
        conf = {"level": draw(st.sampled_from([1, 6]))}
    return named(name, **conf)


@st.composite
def chains(draw: st.DrawFn, shape: tuple[int, ...], itemsize: int, depth: int, compress: bool) -> list[JSON]:
    codecs = transposes(draw, len(shape))
    for codec in codecs:
        shape = tuple(shape[axis] for axis in codec["configuration"]["order"])
    if depth and draw(st.integers(0, 4)) == 0:
        inner = tuple(draw(st.sampled_from(divisors(n))) for n in shape)
        nested = draw(configurations(inner, shape, itemsize, depth - 1, compress))
        codecs.append(named("sharding_indexed", **nested))
    else:
        codecs.append(some_bytes(draw, itemsize))
    sums = st.sampled_from(CHECKSUMS)
    rest = draw(st.lists(st.one_of(sums, compressors(itemsize)) if compress else sums, max_size=2))
    if codecs[-1]["name"] == "bytes" and draw(st.integers(0, 3)) == 0:
        rest.insert(0, named("numcodecs.shuffle", elementsize=draw(st.sampled_from([itemsize, 1]))))
    return codecs + rest


@st.composite
def configurations(
    draw: st.DrawFn,
    inner: tuple[int, ...],
    shard: tuple[int, ...],
    itemsize: int,
    depth: int = 1,
    compress: bool = True,
) -> JSON:
    assert all(n % c == 0 for n, c in zip(shard, inner, strict=True))
    index_codecs = transposes(draw, len(inner) + 1) if draw(st.integers(0, 3)) == 0 else []
    index_codecs += [some_bytes(draw, 8), *[CRC] * draw(st.sampled_from([1, 1, 0, 2]))]
    return {
        "chunk_shape": list(inner),
        "codecs": draw(chains(inner, itemsize, depth, compress)),
        "index_codecs": index_codecs,
        "index_location": draw(st.sampled_from(["end", "start"])),
    }


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def layouts(draw: st.DrawFn, compress: bool = True) -> Layout:
    ndim = draw(st.integers(0, 4))
    most = {0: 1, 1: 8, 2: 6, 3: 4, 4: 3}[ndim]
    inner = tuple(draw(st.integers(1, most)) for _ in range(ndim))
    grid = tuple(draw(st.integers(1, most)) for _ in range(ndim))
    shape = tuple(c * n for c, n in zip(inner, grid, strict=True))
    data_type = draw(st.sampled_from(DTYPES))
    dtype = np.dtype(data_type)
    fill_json, fill = draw(fill_values(dtype))
    configuration = draw(configurations(inner, shape, dtype.itemsize, compress=compress))
    event(f"rank {ndim}")
    return Layout(data_type, fill_json, ShardMeta(configuration, shape, dtype, fill))


def fill_values(dtype: np.dtype[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Draw a fill value, as JSON and as NumPy's scalar."""
    choices: list[Any]
    if dtype.kind == "b":
        choices = [False, True]
    elif dtype.kind == "c":
        choices = [[0.0, 0.0], [1.0, -0.0], ["NaN", "Infinity"]]
    elif dtype.kind == "f":
        choices = [0.0, -0.0, 1.5, "NaN", "-Infinity"]
    else:
        choices = [0, 1, int(np.iinfo(dtype).max)]
    return st.sampled_from(choices).map(lambda value: (value, fill_scalar(value, dtype)))


def fill_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "c":
        return np.array(complex(float(value[0]), float(value[1])), dtype=dtype)[()]
    return np.array(float(value) if isinstance(value, str) else value, dtype=dtype)[()]


# ---------------------------------------------------------------------------------------------------------
# data and selections


def random_items(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], finite: bool
) -> Array:
    """Draw random bits, so that floats include every kind of NaN. With `finite`, draw small ordinary numbers."""
    if finite or dtype.kind == "b":
        return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return bits.view(dtype).reshape(shape)


def random_array(meta: ShardMeta, shape: tuple[int, ...], seed: int, finite: bool = False) -> Array:
    """Return values for some inner chunks of an array. The others hold the fill value."""
    rng = np.random.default_rng(seed)
    array = random_items(rng, shape, meta.dtype, finite)
    inner = meta.chunk_shape
    keep = rng.integers(0, 2, tuple(-(-n // c) for n, c in zip(shape, inner, strict=True)), dtype=np.int8)
    for axis, extent in enumerate(inner):
        keep = np.repeat(keep, extent, axis)
    keep = keep[tuple(slice(n) for n in shape)]
    out = np.full(shape, meta.fill_value, dtype=meta.dtype)
    np.copyto(out, array, where=np.asarray(keep, dtype=bool))
    return out


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draw integers and slices with steps. The result is never empty, since versions of zarr treat empty ones
    differently.
    """
    axes: list[Any] = []
    for n in shape:
        start = draw(st.integers(0, n - 1))
        if draw(st.integers(0, 3)) == 0:
            axes.append(draw(st.sampled_from([start, start - n])))
        elif draw(st.integers(0, 3)) == 0:
            axes.append(slice(None))
        else:
            stop = draw(st.integers(start + 1, n))
            axes.append(slice(start, stop, draw(st.sampled_from([1, 1, 1, 2, 3, 5]))))
    return tuple(axes)


def assert_same_bits(actual: Any, expected: Array) -> None:
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if actual.tobytes() != expected.tobytes():
        unequal = np.argwhere(as_bytes(actual) != as_bytes(expected))
        raise AssertionError(f"{len(unequal)} bytes differ, the first at {unequal[0]}\n{actual}\n{expected}")


def as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    flat = np.frombuffer(array.tobytes(), dtype=np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def empty_like(expected: Array, how: str) -> Array:
    """Return memory for a result: in C order, in F order, or every second item of a larger array, reversed."""
    if how == "gaps":
        base = np.zeros(tuple(2 * n for n in expected.shape), dtype=expected.dtype)
        reverse: tuple[Any, ...] = tuple(slice(None, None, -2) for _ in expected.shape)
        return base[(*reverse, ...)]
    return np.zeros(expected.shape, dtype=expected.dtype, order="F" if how == "F" else "C")
