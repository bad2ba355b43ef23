# test_convert.py - random conversions, read by zarr
# SPDX-License-Identifier: MIT
"""The naive twin of a conversion: zarr reads the source, and zarr reads the new array. Both have the same bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import zarr
from helpers import bits, quiet
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from shardcodec.tools import convert

COMPRESSORS = {
    2: [None, "auto"],
    3: [
        None,
        "auto",
        [zarr.codecs.ZstdCodec(level=1, checksum=True)],
        [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()],
    ],
}


@st.composite
def conversions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a source, and the arguments of its conversion."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    zarr_format = draw(st.sampled_from([2, 3]))
    source: dict[str, Any] = {
        "shape": shape,
        "chunks": chunks,
        "dtype": draw(st.sampled_from(["u1", "<i2", ">i4", "f8", "c8", "bool"])),
        "fill_value": draw(st.sampled_from([0, 1])),
        "compressors": draw(st.sampled_from(COMPRESSORS[zarr_format])),
        "zarr_format": zarr_format,
    }
    if zarr_format == 2:
        source["order"] = draw(st.sampled_from(["C", "F"]))
    elif draw(st.booleans()):
        source["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunks)
    how: dict[str, Any] = {"level": draw(st.sampled_from(["none", "checksum", "compare"])), "threads": 1}
    new_chunks = chunks
    if draw(st.booleans()):
        new_chunks = how["chunks"] = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    if draw(st.booleans()):
        how["shards"] = tuple(n * draw(st.integers(1, 4)) for n in new_chunks)
    elif draw(st.booleans()):
        how["shards"] = draw(st.integers(1, 500))
    if draw(st.booleans()):
        how["codecs"] = draw(st.sampled_from([("zstd",), ("crc32c",), ()]))
    if draw(st.booleans()):
        how["memory"] = draw(st.integers(200, 40000))
    seed = draw(st.integers(0, 2**32 - 1))
    return {"source": source, "how": how, "seed": seed, "empty": draw(st.floats(0, 1))}


@given(conversions())
def test_new_array_has_the_elements_of_the_source(case: dict[str, Any]) -> None:
    chance = np.random.default_rng(case["seed"])
    shape = case["source"]["shape"]
    values = chance.integers(0, 3, shape).astype(case["source"]["dtype"])
    values[chance.random(shape) < case["empty"]] = case["source"]["fill_value"]
    old, new = MemoryStore(), MemoryStore()
    with quiet():
        array = zarr.create_array(old, **case["source"])
        array[...] = values
    try:
        report = convert(old, new, **case["how"])
    except ValueError as error:
        assume(not str(error).startswith("memory: expected at least"))
        raise
    with quiet():
        found = zarr.open_array(new, mode="r", zarr_format=3)
        assert bits(found[...]) == bits(array[...].astype(found.dtype))  # only the byte order may differ
        assert found.fill_value == array.fill_value and found.shards is not None
    (one,) = report.arrays
    assert report.is_complete and report.memory_nbytes <= case["how"].get("memory", math.inf)
    if not {"chunks", "codecs"} & set(case["how"]):
        assert one.method == "move"
        n_stored = len(
            [key for key in old._store_dict if not key.rpartition("/")[2].startswith((".", "zarr"))]
        )
        assert "shards" in case["source"] or report.n_moved_chunks == n_stored
