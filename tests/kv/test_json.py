# test_json.py - valid and invalid JSON of key-value stores
# SPDX-License-Identifier: MIT
"""JSON and arguments of `shardcodec.kv.ShardedKeyValueStore` (KV-1 to KV-5)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from kv_stores import key, open_kv
from spec_json import CHECKED_INDEX, LITTLE

from shardcodec.errors import SpecError, UnsupportedError
from shardcodec.kv import ShardedKeyValueStore


def test_json_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shard"
    store = open_kv(path, path=key(1), index_location="start", cache_pool=5, data_copy_concurrency=2)
    spec = store.to_json()
    assert spec == {
        "driver": "zarr3_sharding_indexed",
        "base": {"driver": "file", "path": str(path)},
        "grid_shape": [2, 3],
        "index_codecs": CHECKED_INDEX,
        "index_location": "start",
        "path": "\0\0\0\1",
        "cache_pool": {"total_bytes_limit": 5},
        "data_copy_concurrency": {"limit": 2},
    }
    store[key(2)] = b"v"
    spelled = {**spec, "driver": "zarr_sharding_indexed", "kvstore": spec["base"], "context": {}}
    del spelled["base"]
    for again in (ShardedKeyValueStore.from_json(spec), ShardedKeyValueStore.from_json(spelled)):
        assert again.to_json() == spec and again[key(2)] == b"v"
    by_url = ShardedKeyValueStore.from_json({**spec, "base": path.as_uri()})
    assert by_url[key(2)] == b"v"
    other = ShardedKeyValueStore.from_json(spec, base=tmp_path / "other")
    assert not other and other.base == tmp_path / "other"
    assert pickle.loads(pickle.dumps(store))[key(2)] == b"v"
    monkeypatch.chdir(tmp_path)
    relative = pickle.dumps(ShardedKeyValueStore.from_json(spec, base=path.name))
    monkeypatch.chdir("/")
    assert pickle.loads(relative)[key(2)] == b"v"
    assert str(path) in repr(store) and store.grid_shape == (2, 3) and store.path == key(1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"driver": "zarr3"}, "driver: expected"),
        ({"foo": 1}, "Object includes extra members: 'foo'"),
        ({"base": None}, "base: expected an object"),
        ({"kvstore": "file:///x"}, "kvstore: expected either base or kvstore"),
        ({"grid_shape": [0, 2]}, r"grid_shape\[0\]: expected at least 1, got 0"),
        ({"grid_shape": [1 << 20, 2048]}, r"grid_shape: expected at most 1073741824 entries, got 2147483648"),
        ({"grid_shape": [1] * 32}, "grid_shape: expected at most 31 axes, got 32"),
        ({"grid_shape": "x"}, "grid_shape: expected an array"),
        ({"grid_shape": [1.5]}, r"grid_shape\[0\]: expected an integer"),
        ({"index_codecs": []}, "index_codecs"),
        ({"index_codecs": [LITTLE, {"name": "gzip", "configuration": {"level": 1}}]}, "index_codecs"),
        ({"index_location": "middle"}, "index_location: expected 'end' or 'start', got 'middle'"),
        ({"path": 5}, "path: expected a string"),
        ({"cache_pool": {"total_bytes_limit": -1}}, "cache_pool"),
        ({"data_copy_concurrency": {"limit": 0}}, "data_copy_concurrency"),
        ({"cache_pool": None}, "cache_pool: expected an object, got None"),
        (
            {"cache_pool": {"total_bytes_limit": "shared"}},
            "cache_pool.total_bytes_limit: expected an integer",
        ),
        ({"cache_pool": {"total": 5}}, "cache_pool: Object includes extra members: 'total'"),
        ({"cache_pool": "cache_pool#x"}, "cache_pool: Resource not defined: 'cache_pool#x'"),
        (
            {"cache_pool": "pool"},
            "cache_pool: expected 'cache_pool' or a reference 'cache_pool#...', got 'pool'",
        ),
        (
            {"cache_pool": "cache_pool#x", "context": {"cache_pool#x": "cache_pool#x"}},
            "cache_pool: expected a resource, got 'cache_pool#x', which refers to itself",
        ),
        ({"context": 5}, "context: expected an object"),
        ({"context": {"cache_pool": 5}}, "cache_pool: expected an object, got 5"),
        ({"base": {"driver": "file", "path": "x", "foo": 1}}, "base: Object includes extra members: 'foo'"),
    ],
)
def test_wrong_json_names_the_member(change: dict[str, Any], text: str) -> None:
    spec = {
        "driver": "zarr3_sharding_indexed",
        "base": "file:///tmp/x",
        "grid_shape": [2, 3],
        "index_codecs": CHECKED_INDEX,
        **change,
    }
    with pytest.raises(SpecError, match=text):
        ShardedKeyValueStore.from_json(spec)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"context": {"cache_pool": {"total_bytes_limit": 77}}}, (77, None)),
        ({"context": {"cache_pool#a": {"total_bytes_limit": 7}}}, (None, None)),
        ({"cache_pool": "cache_pool#a", "context": {"cache_pool#a": {"total_bytes_limit": 7}}}, (7, None)),
        ({"context": {"cache_pool": "cache_pool#a", "cache_pool#a": {"total_bytes_limit": 0}}}, (0, None)),
        ({"cache_pool": {}, "context": {"cache_pool": {"total_bytes_limit": 77}}}, (None, None)),
        ({"data_copy_concurrency": {"limit": "shared"}}, (None, None)),
        ({"context": {"data_copy_concurrency": {"limit": 3}, "file_io_concurrency": {}}}, (None, 3)),
    ],
)
def test_limits_come_from_context(given: dict[str, Any], limits: tuple[int | None, int | None]) -> None:
    """Limits in the context and undefined references were ignored. The base inherits the context, as in TensorStore."""
    spec: dict[str, Any] = {
        "driver": "zarr3_sharding_indexed",
        "base": "file:///tmp/x",
        "grid_shape": [2],
        "index_codecs": CHECKED_INDEX,
    }
    for whole in (spec | given, spec | given | {"base": {**spec, "path": "\0\0\0\1"}}):
        made = ShardedKeyValueStore.from_json(whole).to_json()
        found = made.get("cache_pool"), made.get("data_copy_concurrency")
        assert found == tuple(
            None if limit is None else {name: limit}
            for name, limit in zip(("total_bytes_limit", "limit"), limits, strict=True)
        )
        base = made["base"]
        if base["driver"] != "file" and "cache_pool" not in given:
            assert base.get("cache_pool") == made.get("cache_pool")


@pytest.mark.parametrize("member", ["driver", "base", "grid_shape", "index_codecs"])
def test_missing_member_raises(member: str) -> None:
    spec = {
        "driver": "zarr3_sharding_indexed",
        "base": "file:///tmp/x",
        "grid_shape": [2, 3],
        "index_codecs": CHECKED_INDEX,
    }
    del spec[member]
    with pytest.raises(SpecError, match=member):
        ShardedKeyValueStore.from_json(spec)


@pytest.mark.parametrize("base", ["s3://bucket/key", {"driver": "gcs", "bucket": "b"}, "file:///x|ocdbt:"])
def test_unsupported_bases_raise(base: Any) -> None:
    spec = {
        "driver": "zarr3_sharding_indexed",
        "base": base,
        "grid_shape": [2],
        "index_codecs": CHECKED_INDEX,
    }
    with pytest.raises(UnsupportedError, match="base"):
        ShardedKeyValueStore.from_json(spec)


def test_constructor_refuses_wrong_bases() -> None:
    for base in (b"bytes", 5, (b"bytes", "key"), ("folder",), ("folder", b"key")):
        with pytest.raises(TypeError, match="base: expected a path or a pair"):
            open_kv(base)
