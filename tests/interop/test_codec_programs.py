# test_codec_programs.py - random programs over all codecs and layouts, whose arrays other implementations read
# SPDX-License-Identifier: MIT
"""Random writes and reads of an array with any native codec of `codec_rows`, in shards, in chunks and in Zarr v2.

An array of numpy is the twin. Elements are chosen from those that the chain keeps exactly, as zarr shows, so every reader must
find the twin's. A reader that does not have the codec raises; one that reads must read the same.
"""

from __future__ import annotations

import collections
import functools
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from codec_rows import ROWS as ALL_ROWS
from codec_rows import CodecRow
from helpers import ZARR_IS_31, bits, on_pipeline, quiet, zarr_has_codec
from spec_json import CRC, LITTLE, Json, named, sharding, transpose, typed_metadata, zstd

import shardcodec
from shardcodec.format import codecs as codec_module

from .peers import READERS, Array

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

KINDS = {name: entry.codec.kind for entry in codec_module.ROWS for name in entry.names}
N_PROGRAMS, N_TOGETHER = 4000, 100
# Readers that find other elements than the twin's, by name, with the condition and the reason.
WRONG: dict[str, tuple[Any, str]] = {}


# zarr must read every array
ROWS = [row for row in ALL_ROWS if zarr_has_codec(row.name)]


class Program(NamedTuple):
    """The chain, the data type and the layout of an array."""

    row: CodecRow
    configuration: Json
    dtype: str
    layout: str
    document: Json
    chunk: tuple[int, ...]


@functools.cache
def exact_elements(number: int, at: int, dtype: str) -> Array:
    """Return small numbers that the codec keeps, as zarr's own pipeline shows; the codec is that of `ROWS`."""
    row = ROWS[number]
    numbers = (np.arange(96) % (2 if dtype == "bool" else 96)).astype(dtype)
    codec = named(row.name, **row.configurations[at])
    codecs = [codec, LITTLE] if KINDS[row.name] == "array -> array" else [LITTLE, codec]
    with quiet():
        array = zarr.open_array(
            memory(document_of(numbers.shape, numbers.shape, dtype, 0, codecs)), mode="r+"
        )
        array[...] = numbers
        kept = array[...]
    return np.unique(numbers[kept == numbers])


def memory(document: Json) -> Any:
    from zarr.core.buffer import cpu

    return zarr.storage.MemoryStore({"zarr.json": cpu.Buffer.from_bytes(json.dumps(document).encode())})


def as_fill(dtype: str, number: Any) -> Any:
    if dtype.startswith("complex"):
        return [float(number.real), float(number.imag)]
    return np.asarray(number).item() if dtype != "bool" else bool(number)


def document_of(shape: Any, chunk: Any, dtype: str, fill: Any, codecs: list[Json]) -> Json:
    return typed_metadata(dtype, codecs, shape, chunk, fill=as_fill(dtype, np.asarray(fill, dtype)))


def program(rng: random.Random) -> tuple[Program, Array]:
    """Draw a program and the elements that it writes."""
    number = rng.randrange(len(ROWS))
    row = ROWS[number]
    at = rng.randrange(len(row.configurations))
    dtype = rng.choice(row.dtypes)
    elements = exact_elements(number, at, dtype)
    layout = rng.choice(["shards", "shards", "chunks", *(["v2"] if row.in_v2 else [])])
    ndim = rng.choice((1, 2, 2, 3))
    chunk = tuple(rng.randint(1, 6) for _ in range(ndim))
    if row.name == "numcodecs.shuffle":  # whole elements of 4 and of 12 bytes
        chunk = (*chunk[:-1], 12)
    shard = tuple(extent * rng.randint(1, 3) for extent in chunk) if layout == "shards" else chunk
    shape = tuple(rng.randint(1, 2 * extent + 3) for extent in shard)
    fill = rng.choice(elements)
    if layout == "v2":
        document = document_of_v2(row, row.configurations[at], dtype, shape, chunk, fill, rng)
        return Program(row, row.configurations[at], dtype, layout, document, chunk), elements
    codec = named(row.name, **row.configurations[at])
    is_filter = KINDS[row.name] == "array -> array"
    filters, behind = ([codec], []) if is_filter else ([], [codec])
    if rng.random() < 0.3:
        behind = [*behind, *rng.choice(([zstd(1)], [CRC], [zstd(1), CRC]))]
    # zarr before 3.2 stored elements behind a transpose in another order (gh-3558)
    if rng.random() < 0.3 and not (ZARR_IS_31 and is_filter):
        filters = [transpose(*rng.sample(range(ndim), ndim)), *filters]
    codecs = [*filters, LITTLE, *behind]
    if layout == "shards":
        where = rng.choice(("start", "end"))
        codecs = [sharding(chunk, codecs, index_codecs=[LITTLE, CRC], index_location=where)]
    document = document_of(shape, shard, dtype, fill, codecs)
    return Program(row, row.configurations[at], dtype, layout, document, chunk), elements


def document_of_v2(
    row: CodecRow, configuration: Json, dtype: str, shape: Any, chunk: Any, fill: Any, rng: random.Random
) -> Json:
    codec = {"id": row.name.removeprefix("numcodecs."), **configuration}
    as_filter = KINDS[row.name] == "array -> array" or rng.random() < 0.5
    is_rounded = (
        row.name == "numcodecs.bitround"
    )  # stored in another order by numcodecs, and read back wrongly
    return {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunk),
        "dtype": np.dtype(dtype).str,
        "fill_value": as_fill(dtype, np.asarray(fill, dtype)),
        "order": "C" if is_rounded else rng.choice("CCF"),
        "filters": [codec] if as_filter else None,
        "compressor": (rng.choice((None, {"id": "zlib", "level": 1})) if as_filter else codec),
        "dimension_separator": rng.choice("./"),
    }


def random_box(rng: random.Random, shape: tuple[int, ...], *, steps: bool = False) -> tuple[slice, ...]:
    box = []
    for n in shape:
        first = rng.randrange(n)
        box.append(slice(first, rng.randint(first + 1, n), rng.choice((1, 2, 3)) if steps else 1))
    return tuple(box)


def run(seed: int, folder: Path) -> tuple[Program, Array]:
    """Run a program; every read must find the twin's elements. Return the twin."""
    rng = random.Random(seed)
    made, elements = program(rng)
    folder.mkdir(parents=True)
    (folder / (".zarray" if made.layout == "v2" else "zarr.json")).write_text(json.dumps(made.document))
    with quiet():
        array = on_pipeline(zarr.open_array(folder, mode="r+"))
    handle = shardcodec.open_array(folder, mode="r+")
    fill = array.fill_value
    twin = np.full(array.shape, fill, array.dtype)
    draw = np.random.default_rng(seed)
    for _ in range(rng.randint(2, 6)):
        box = random_box(rng, array.shape, steps=rng.random() < 0.3)
        values = draw.choice(elements, twin[box].shape).astype(twin.dtype)
        target = rng.choice((array, handle))
        match rng.randrange(6):
            case 0:
                target[box] = twin[box] = fill
            case 1:
                rows = sorted(rng.sample(range(array.shape[0]), rng.randint(1, array.shape[0])))
                target.oindex[(rows,)] = twin[rows] = draw.choice(elements, twin[rows].shape).astype(
                    twin.dtype
                )
            case 2:
                with shardcodec.group_writes():
                    target[box] = twin[box] = values
                    other = random_box(rng, array.shape)
                    target[other] = twin[other] = elements[-1]
            case _:
                target[box] = twin[box] = values
        for reader in array, handle:
            box = random_box(rng, array.shape, steps=rng.random() < 0.5)
            assert bits(reader[box]) == bits(twin[box]), (seed, made)
    assert bits(array[...]) == bits(handle[...]) == bits(twin), (seed, made)
    return made, twin


def read_by_others(seed: int, made: Program, folder: Path, twin: Array) -> collections.Counter[str]:
    """Return which readers have read; each must have found the twin's elements."""
    answers: collections.Counter[str] = collections.Counter()
    for reader in READERS:
        if reader.missing() is not None:
            continue
        try:
            with quiet():
                got = reader.read(folder, tuple(slice(0, n) for n in twin.shape))
        except BaseException as error:  # it does not have the codec, the data type or the format
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            continue  # a panic of a reader in Rust is no Exception
        condition, _ = WRONG.get(reader.name, (lambda made: False, ""))
        if condition(made):
            continue
        assert np.array_equal(got, twin), (reader.name, seed, made)
        answers[reader.name] += 1
    return answers


def run_programs(seeds: range, tmp_path: Path) -> None:
    answers: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        made, twin = run(seed, tmp_path / str(seed))
        own = read_by_others(seed, made, tmp_path / str(seed), twin)
        # zarr has all codecs; only cast_value_rs 0.5.1 panics if the bytes of an inner chunk are not aligned
        assert own["zarr"] or made.row.name == "cast_value", (seed, made)
        answers += own
    for reader in READERS:
        assert reader.missing() is not None or answers[reader.name] > 0, answers


def test_some_programs(tmp_path: Path) -> None:
    run_programs(range(60), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(60, N_PROGRAMS + 60, N_TOGETHER))
def test_many_programs(first: int, tmp_path: Path) -> None:
    run_programs(range(first, first + N_TOGETHER), tmp_path)
