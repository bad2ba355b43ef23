# test_metadata_2022.py - wrong metadata of the 2022 format, and the errors
# SPDX-License-Identifier: MIT
"""Parse array.json without zarr 2: wrong values, hostile values and spellings."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_json import array_2022, hierarchy_2022

from shardcodec.errors import ShardError, SpecError, UnsupportedError
from shardcodec.transformer import open_2022
from shardcodec.transformer.legacy_2022.parse import parse_array, parse_hierarchy
from shardcodec.transformer.legacy_2022.to_v3 import to_v3

ARRAY = array_2022()
HIERARCHY = hierarchy_2022()
SHARDING = "storage_transformers[0]"
CODEC = "compressor.configuration"


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the array with one value replaced; ``...`` removes it."""
    document = copy.deepcopy(ARRAY)
    place: Any = document
    *above, last = path.replace("[", ".").replace("]", "").split(".")
    for name in above:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is ...:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return document


def compressor(name: str, **configuration: Any) -> dict[str, Any]:
    return {"codec": f"https://purl.org/zarr/spec/codec/{name}/1.0", "configuration": configuration}


def extended(kind: Any) -> dict[str, Any]:
    return {"extension": "?", "type": kind, "fallback": None}


REFUSED = [
    ("shape", ..., "shape"),
    ("shape", [21, -1], "shape[1]"),
    ("shape", [21, 1.5], "shape[1]"),
    ("shape", "21", "shape"),
    ("shape", [21], "chunk_grid.chunk_shape"),
    ("data_type", "<i3", "data_type"),
    ("data_type", "<i4,<i4", "data_type"),
    ("data_type", 4, "data_type"),
    ("data_type", extended("|S0"), "data_type.type"),
    ("data_type", extended("|S99999999999"), "data_type.type"),
    ("data_type", extended("<M8[fortnight]"), "data_type.type"),
    ("data_type", extended([]), "data_type.type"),
    ("data_type", extended([["a", "<i4"], ["a", "<i4"]]), "data_type.type"),
    ("data_type", extended([["a", "<i4", [2]]]), "data_type.type[0]"),
    ("data_type", extended([["a", "|O"]]), "data_type.type[0][1]"),
    ("data_type", extended([["a"]]), "data_type.type[0]"),
    ("data_type", {"type": "<c8", "why": 1}, "data_type.why"),
    ("data_type", extended("|O"), "attributes.filters"),
    ("chunk_grid", [], "chunk_grid"),
    ("chunk_grid.type", "rectangular", "chunk_grid.type"),
    ("chunk_grid.chunk_shape", [0, 3], "chunk_grid.chunk_shape[0]"),
    ("chunk_grid.chunk_shape", [2**62, 2**62], "chunk_grid.chunk_shape"),
    ("chunk_grid.separator", "-", "chunk_grid.separator"),
    ("dimension_separator", ".", "dimension_separator"),
    ("chunk_memory_layout", "K", "chunk_memory_layout"),
    ("fill_value", ..., "fill_value"),
    ("fill_value", 2**31, "fill_value"),
    ("fill_value", "NaN", "fill_value"),
    ("extensions", [{"extension": "x"}], "extensions[0]"),
    ("attributes", [], "attributes"),
    ("attributes", {"filters": ["delta"]}, "attributes.filters[0]"),
    ("attributes", {"filters": [{"id": "pickle"}]}, "attributes.filters[0].id"),
    ("attributes", {"filters": [{"id": "delta", "dtype": ">i4"}]}, "attributes.filters[0].dtype"),
    ("attributes", {"filters": [{"id": "delta", "dtype": "?!"}]}, "attributes.filters[0].dtype"),
    ("attributes", {"filters": [{"id": "packbits"}]}, "attributes.filters[0].id"),
    ("compressor", "blosc", "compressor"),
    ("compressor", {"codec": "https://purl.org/zarr/spec/codec/"}, "compressor.configuration"),
    ("compressor", compressor("zfp"), "compressor.codec"),
    ("compressor", {"codec": 3, "configuration": {}}, "compressor.codec"),
    ("compressor", compressor("gzip"), "compressor.configuration.level"),
    ("compressor", compressor("gzip", level=10), f"{CODEC}.level"),
    ("compressor", compressor("zstd", level="3"), f"{CODEC}.level"),
    ("compressor", compressor("bz2", level=1.5), f"{CODEC}.level"),
    ("compressor", compressor("lzma", format=1, filters=3), f"{CODEC}.filters"),
    ("compressor", compressor("lz4", acceleration=1, more=2), f"{CODEC}.more"),
    (f"{CODEC}.cname", "snappy", f"{CODEC}.cname"),
    (f"{CODEC}.cname", "lz5", f"{CODEC}.cname"),
    (f"{CODEC}.clevel", 10, f"{CODEC}.clevel"),
    (f"{CODEC}.shuffle", 3, f"{CODEC}.shuffle"),
    (f"{CODEC}.shuffle", True, f"{CODEC}.shuffle"),
    (f"{CODEC}.blocksize", -1, f"{CODEC}.blocksize"),
    (
        f"{SHARDING}.extension",
        "https://purl.org/zarr/spec/storage_transformers/dummy/1.0",
        f"{SHARDING}.extension",
    ),
    (f"{SHARDING}.type", "morton_order", f"{SHARDING}.type"),
    (f"{SHARDING}.configuration", {}, f"{SHARDING}.configuration.chunks_per_shard"),
    (
        f"{SHARDING}.configuration.chunks_per_shard",
        [2, 0],
        f"{SHARDING}.configuration.chunks_per_shard[0]"[:-2] + "1]",
    ),
    (f"{SHARDING}.configuration.chunks_per_shard", [2, 3, 1], f"{SHARDING}.configuration.chunks_per_shard"),
    (f"{SHARDING}.configuration.chunks_per_shard", [2**40, 2**40], "storage_transformers"),
    (f"{SHARDING}.configuration.chunks_per_shard", "23", f"{SHARDING}.configuration.chunks_per_shard"),
    ("storage_transformers", {"extension": "sharding"}, "storage_transformers"),
    ("codecs", [], "codecs"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED, ids=[f"{p}={v}"[:50] for p, v, _ in REFUSED])
def test_error_names_the_wrong_member(path: str, value: Any, named: str) -> None:
    with pytest.raises((SpecError, UnsupportedError)) as error:
        to_v3(parse_array(changed(path, value)))
    assert error.value.path == named
    assert named in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES = [p for p, value, _ in REFUSED if value is not ... or p == "shape"]


@given(st.sampled_from(PLACES), JSON)
def test_random_json_is_parsed_or_raises(path: str, value: Any) -> None:
    try:
        metadata = to_v3(parse_array(changed(path, value)))
    except ShardError:
        return
    json.dumps(metadata)


def test_errors_name_the_document(tmp_path: Path) -> None:
    (tmp_path / "meta/root").mkdir(parents=True)
    (tmp_path / "meta/root/a.array.json").write_text(json.dumps(changed("data_type", "<i3")))
    with pytest.raises(UnsupportedError, match=r"^meta/root/a\.array\.json: data_type: ") as error:
        open_2022(tmp_path, "a")
    assert error.value.document == "meta/root/a.array.json"
    (tmp_path / "meta/root/a.array.json").write_text("{")
    with pytest.raises(SpecError, match="expected JSON"):
        open_2022(tmp_path, "a")
    with pytest.raises(ValueError, match="expected parts that are neither empty nor dots"):
        open_2022(tmp_path, "../a")
    for rest in ('"node_type": "group"', '"node_type": "array", "shape": [4], "codecs": []'):
        (tmp_path / "zarr.json").write_text(f'{{"zarr_format": 3, {rest}}}')
        with pytest.raises(SpecError, match="final Zarr v3"):
            open_2022(tmp_path, "a")
    with pytest.raises(FileNotFoundError):
        open_2022(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zarr_format", "https://purl.org/zarr/spec/protocol/core/4.0"),
        ("metadata_encoding", "x"),
        ("metadata_key_suffix", 3),
        ("extensions", ["x"]),
        ("more", 1),
    ],
)
def test_hierarchy_of_another_format_raises(key: str, value: Any) -> None:
    with pytest.raises((SpecError, UnsupportedError)) as error:
        parse_hierarchy({**HIERARCHY, key: value})
    assert error.value.path == key


@pytest.mark.parametrize(
    "extension",
    [
        "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",  # zarr-python 2.14 to 2.18
        "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",  # zarr-specs de0ceaf, 2022-11
        "sharding",  # zarr-specs 0610641, 2023-02
    ],
)
def test_every_spelling_of_sharding_is_read(extension: str, tmp_path: Path) -> None:
    (tmp_path / "meta/root").mkdir(parents=True)
    document = changed(f"{SHARDING}.extension", extension)
    (tmp_path / "meta/root/a.array.json").write_text(json.dumps(document))
    data = np.arange(21 * 13).reshape(21, 13)
    open_2022(tmp_path, "a")[...] = data
    assert np.array_equal(open_2022(tmp_path, "a", mode="r")[...], data)
    assert len(list((tmp_path / "data/root/a").rglob("c*"))) == 3
    assert json.loads((tmp_path / "meta/root/a.array.json").read_text()) == document


def test_metadata_with_another_suffix(tmp_path: Path) -> None:
    (tmp_path / "meta/root").mkdir(parents=True)
    (tmp_path / "zarr.json").write_text(json.dumps({**HIERARCHY, "metadata_key_suffix": ".txt"}))
    (tmp_path / "meta/root/a.array.txt").write_text(json.dumps(ARRAY))
    array = open_2022(tmp_path, "a")
    array.attrs["b"] = 1
    assert json.loads((tmp_path / "meta/root/a.array.txt").read_text())["attributes"] == {"b": 1}


def test_chunks_per_shard_may_be_one_number() -> None:
    document = changed(f"{SHARDING}.configuration.chunks_per_shard", 5)
    document["shape"], document["chunk_grid"]["chunk_shape"] = [50], [4]
    assert parse_array(document).stack == ((5,),)
