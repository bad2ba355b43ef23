# test_deep_shards.py - arrays whose shards the engine does not have are left to zarr
# SPDX-License-Identifier: MIT
"""Shards that are nested too deeply, or have too many inner chunks, are left to zarr's pipeline; `open_array` refuses them by type.

The first ones raised a bare ValueError of the engine, and an array with the second ones could not be used while shardcodec was
enabled.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec import SpecError, UnsupportedError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def new(path: Path, levels: int, chunk: int = 2) -> None:
    def shard(codecs: list[Any], _: int) -> list[Any]:
        configuration = {"chunk_shape": [1], "codecs": codecs, "index_codecs": [LITTLE]}
        return [{"name": "sharding_indexed", "configuration": configuration}]

    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2 * chunk],
        "data_type": "int32",
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": functools.reduce(shard, range(levels), [LITTLE]),
        "attributes": {},
    }
    (path / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize("levels", [7, 8, 9, 20])
def test_shards_nested_too_deeply_are_left_to_zarr(levels: int, tmp_path: Path) -> None:
    new(tmp_path, levels)
    zarr.open_array(tmp_path, mode="r+")[:] = np.arange(1, 5, dtype="i4")
    shardcodec.enable()
    try:
        array = zarr.open_array(tmp_path, mode="r+")
        array[0] = 9
        assert array[:].tolist() == [9, 2, 3, 4]
    finally:
        shardcodec.disable()
    assert zarr.open_array(tmp_path)[:].tolist() == [9, 2, 3, 4]
    if levels == 7:
        assert shardcodec.open_array(tmp_path)[:].tolist() == [9, 2, 3, 4]
    else:
        with pytest.raises(UnsupportedError) as info:
            shardcodec.open_array(tmp_path)
        assert info.value.limit == 7


def test_shards_of_too_many_inner_chunks_are_left_to_zarr(tmp_path: Path) -> None:
    new(tmp_path, 1, chunk=2**31)
    with pytest.raises(SpecError) as info:
        shardcodec.open_array(tmp_path)
    assert info.value.actual == 2**31
    shardcodec.enable()
    try:
        array = zarr.open_array(tmp_path)
        assert array.shape == (2**32,)
        assert array[-3:].tolist() == [0, 0, 0]
    finally:
        shardcodec.disable()
