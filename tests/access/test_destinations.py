# test_destinations.py - the argument `out` of all functions that have it
# SPDX-License-Identifier: MIT
"""An unsuitable `out` is refused before anything is read; the error says what was expected and found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, quiet

import shardcodec
from shardcodec import ShardSpec

Read = Callable[..., Any]

# The shape of `out` for each function: shards of 8 x 12 elements of int32, inner chunks of 4 x 3.
SHAPES = {
    "decode": (8, 12),
    "Shard.read_region": (8, 12),
    "Shard.read_chunks": (1, 4, 3),
    "Array.read_boxes": (1, 4, 3),
    "Array.read_chunks": (1, 4, 3),
}


@pytest.fixture(params=SHAPES)
def function(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Read, tuple[int, ...]]:
    array = create(tmp_path)
    with quiet():
        array[:] = 1
    spec = ShardSpec.from_metadata(json.loads((tmp_path / "zarr.json").read_text()))
    shard = shardcodec.open_shard(tmp_path, "c/0/0", spec)
    reader = shardcodec.open_array(tmp_path)
    data = (tmp_path / "c/0/0").read_bytes()
    functions: dict[str, Read] = {
        "decode": lambda out: shardcodec.decode(data, spec, out=out),
        "Shard.read_region": lambda out: shard.read_region(out=out),
        "Shard.read_chunks": lambda out: shard.read_chunks([(0, 0)], out=out),
        "Array.read_boxes": lambda out: reader.read_boxes([(0, 0)], (4, 3), out=out),
        "Array.read_chunks": lambda out: reader.read_chunks([(0, 0)], out=out),
    }
    return functions[request.param], SHAPES[request.param]


@pytest.mark.parametrize("wrong", [5, "out", [0], {"a": 1}], ids=lambda wrong: type(wrong).__name__)
def test_only_memory_is_a_destination(function: tuple[Read, tuple[int, ...]], wrong: Any) -> None:
    """Four of five functions raised AttributeError."""
    read, _ = function
    with pytest.raises(TypeError, match=f"out: expected an array, .*, got {type(wrong).__name__}"):
        read(wrong)


def test_a_buffer_is_a_destination(function: tuple[Read, tuple[int, ...]]) -> None:
    """It needs the shape and the type of the elements, as an array."""
    read, shape = function
    memory = bytearray(math.prod(shape) * 4)
    with pytest.raises(ValueError, match=r"out: expected shape .*, got \("):
        read(memory)
    read(memoryview(memory).cast("i", shape))
    assert bytes(memory) == np.ones(shape, np.int32).tobytes()


def test_destination_needs_shape_dtype_and_write_access(
    function: tuple[Read, tuple[int, ...]],
) -> None:
    read, shape = function
    with pytest.raises(ValueError, match=r"out: expected shape .*, got \(7,\)"):
        read(np.empty(7, np.int32))
    with pytest.raises(TypeError, match="out: expected dtype int32, got float32"):
        read(np.empty(shape, np.float32))
    fixed = np.zeros(shape, np.int32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="expected a writable array"):
        read(fixed)
    out = np.empty(shape, np.int32)
    assert read(out) is out and (out == 1).all()
