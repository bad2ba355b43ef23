# zarr2.py - the work of zarr-python 2 for the tests, in another interpreter
# SPDX-License-Identifier: MIT
"""Run as ``python zarr2.py make FOLDER NAME...`` or ``python zarr2.py read HIERARCHY RESULTS NAME...``."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import cases_2022
import numcodecs
import numpy as np
import zarr
from zarr._storage.v3 import DirectoryStoreV3
from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

warnings.simplefilter("ignore")


def make(folder: str, names: list[str]) -> None:
    """Write cases, and the values that zarr-python itself then reads."""
    store = DirectoryStoreV3(f"{folder}/h")
    for case in map(cases_2022.BY_NAME.get, names):
        array = create(store, case)
        fill(array, case)
        save(folder, case.name, array[...])
    zarr.open_group(store=store, path="group", zarr_version=3, mode="a").attrs["kind"] = "made by zarr 2"
    array = zarr.open_array(store=store, path="plain", zarr_version=3, mode="a")
    array.attrs.update({"title": "plain", "_ARRAY_DIMENSIONS": ["y", "x"]})


def create(store: Any, case: cases_2022.Case) -> Any:
    return zarr.create(
        case.shape,
        chunks=case.chunks,
        dtype=np.dtype(case.dtype),
        compressor=None if case.compressor is None else numcodecs.get_codec(dict(case.compressor)),
        filters=[numcodecs.get_codec(dict(config)) for config in case.filters] or None,
        object_codec=None if case.object_codec is None else numcodecs.get_codec({"id": case.object_codec}),
        fill_value=case.fill,
        order=case.order,
        dimension_separator=case.separator,
        store=store,
        path=case.name,
        zarr_version=3,
        storage_transformers=[
            ShardingStorageTransformer("indexed", chunks_per_shard=n) for n in case.per_shard
        ],
    )


def fill(array: Any, case: cases_2022.Case) -> None:
    """Write the array so that some shards and chunks are absent and replaced or deleted chunks leave gaps."""
    if case.is_written_whole:
        array[...] = case.data()
        return
    expected = np.full(case.shape, array.fill_value, dtype=array.dtype)
    box = tuple(slice(0, 3 * n // 4) for n in case.shape)
    for salt in (1, 2):
        array[box] = expected[box] = case.data(salt)[box]
    first = tuple(slice(0, n) for n in case.chunks)
    del array.chunk_store[array._chunk_key((0,) * len(case.shape))]
    expected[first] = array.fill_value
    found = array[...]
    assert np.all(
        np.isclose(found, expected, equal_nan=True) if found.dtype.kind in "fc" else found == expected
    ), case.name


def save(folder: str, name: str, data: Any) -> None:
    path = Path(folder, f"{name}.npy")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, cases_2022.to_file(np.asarray(data)), allow_pickle=False)


def read(hierarchy: str, results: str, names: list[str]) -> None:
    """Read arrays and their attributes, and store them as results."""
    store = DirectoryStoreV3(hierarchy)
    attributes = {}
    for name in names:
        array = zarr.open_array(store=store, path=name, zarr_version=3, mode="r")
        save(results, name, array[...])
        attributes[name] = dict(array.attrs)
    Path(results, "attributes.json").write_text(json.dumps(attributes))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3:])
    else:
        read(sys.argv[2], sys.argv[3], sys.argv[4:])
