# test_urls.py - stores that are given as URLs
# SPDX-License-Identifier: MIT
"""`open_array`, `open_shard`, `chunk_state` and the key-value store open what a URL leads to."""

from __future__ import annotations

import importlib.util
import pickle
import struct
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from helpers import letters, letters_spec
from servers.http_objects import Objects, serving
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import conditions
from shardcodec.storage import url_stores as urls
from shardcodec.storage.kinds import at_url, store_of
from shardcodec.storage.url_stores import PlacedOptions, placed_options

needs_obstore = pytest.mark.skipif(
    importlib.util.find_spec("obstore") is None, reason="obstore is not installed"
)
VALUES = np.arange(16 * 24, dtype="int32").reshape(16, 24)
FOUND = importlib.util.find_spec


@pytest.fixture
def s3() -> Iterator[tuple[Objects, dict[str, Any]]]:
    with serving() as objects:
        yield (
            objects,
            {
                "endpoint": objects.url,
                "region": "us-east-1",
                "access_key_id": "a",
                "secret_access_key": "b",
                "virtual_hosted_style_request": False,
                "client_options": {"allow_http": True},
            },
        )


def put_array(store: Any) -> None:
    array = zarr.create_array(store, shape=(16, 24), chunks=(4, 4), shards=(8, 12), dtype="int32")
    array[...] = VALUES


@pytest.fixture
def without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        urls.importlib.util, "find_spec", lambda name: None if name == "obstore" else FOUND(name)
    )


def check_reads(url: str, options: dict[str, Any] | None) -> None:
    """Compare what all entry points read with what zarr wrote."""
    reader = shardcodec.open_array(url, storage_options=options)
    assert np.array_equal(reader[3:9, 5:], VALUES[3:9, 5:])
    folder, name = url.rsplit("/", 1)
    assert np.array_equal(shardcodec.open_array(folder, name, storage_options=options)[:], VALUES)
    state = shardcodec.chunk_state(url, storage_options=options)
    assert state.exists.shape == (4, 6)
    assert state.exists.all()
    assert shardcodec.chunk_state(folder, name, storage_options=options).exists.sum() == 24
    spec = shardcodec.ShardSpec.from_metadata(reader_metadata())
    for where in ((url, "c/1/0"), (f"{url}/c/1/0", None)):
        with shardcodec.open_shard(*where, spec, storage_options=options) as shard:
            assert np.array_equal(shard.read_chunks([(0, 1)])[0], VALUES[8:12, 4:8])


def reader_metadata() -> Any:
    store = zarr.storage.MemoryStore()
    return zarr.create_array(
        store, shape=(16, 24), chunks=(4, 4), shards=(8, 12), dtype="int32"
    ).metadata.to_dict()


def check_writes(url: str, options: dict[str, Any] | None) -> None:
    """Write and read a shard, whole by URL and as folder and key."""
    grid = {"grid_shape": (2, 2), "index_codecs": [LITTLE, CRC]}
    for base in (f"{url}/values", (url, "values")):
        kv = ShardedKeyValueStore(base, storage_options=options, **grid)
        key = struct.pack(">2I", 1, isinstance(base, tuple))
        kv[key] = repr(base).encode()
        assert pickle.loads(pickle.dumps(kv))[key] == repr(base).encode()
    assert len(kv) == 2
    with shardcodec.open_shard(
        f"{url}/letters", None, letters_spec(), mode="r+", storage_options=options
    ) as shard:
        shard.write_encoded([(0, 0)], [b"ABCD"])
    with shardcodec.open_shard(url, "letters", letters_spec(), storage_options=options) as shard:
        assert shard.read_encoded([(0, 0)]) == [b"ABCD"]


@needs_obstore
def test_s3_url(s3: tuple[Objects, dict[str, Any]]) -> None:
    objects, options = s3
    put_array(zarr.storage.StorePath(at_url("s3://bucket/data", options), "a.zarr"))
    check_reads("s3://bucket/data/a.zarr", options)
    check_writes("s3://bucket/data", options)
    assert {"/bucket/data/values", "/bucket/data/letters", "/bucket/data/a.zarr/c/1/1"} <= set(objects.blobs)
    assert store_of(at_url("s3://bucket", options)).identifies_states


@needs_obstore
def test_http_url(s3: tuple[Objects, dict[str, Any]]) -> None:
    objects, options = s3
    put_array(zarr.storage.StorePath(at_url("s3://bucket", options), "a.zarr"))
    check_reads(f"{objects.url}/bucket/a.zarr", None)
    check_reads(f"{objects.url}/bucket/a.zarr", {"client_options": {"user_agent": "test"}})


def test_http_url_with_fsspec(s3: tuple[Objects, dict[str, Any]], without_obstore: None) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    objects, _ = s3
    store = zarr.storage.MemoryStore()
    put_array(store)
    for key, buffer in store._store_dict.items():
        objects.blobs[f"/a.zarr/{key}"] = buffer.to_bytes()
    check_reads(f"{objects.url}/a.zarr", None)


def test_memory_url_is_the_memory_of_zarr() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    url = f"memory://{uuid.uuid4().hex}"
    put_array(f"{url}/a.zarr")
    check_reads(f"{url}/a.zarr", None)
    check_writes(url, None)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_file_url_is_a_path(tmp_path: Path, scheme: str) -> None:
    put_array(tmp_path / "a.zarr")
    check_reads(f"{scheme}://{tmp_path}/a.zarr", None)
    check_writes(f"{scheme}://{tmp_path}", None)
    assert (tmp_path / "letters").exists()
    with pytest.raises(ValueError, match=r"storage_options: expected none for a file, got \['anon'\]"):
        shardcodec.open_array(f"{scheme}://{tmp_path}/a.zarr", storage_options={"anon": True})


def test_options_without_a_url_are_refused(tmp_path: Path) -> None:
    put_array(tmp_path / "a.zarr")
    match = "storage_options: expected them only with a URL, got a "
    grid = {"grid_shape": (2, 2), "index_codecs": [LITTLE, CRC]}
    for call in (
        lambda: shardcodec.open_array(tmp_path / "a.zarr", storage_options={}),
        lambda: shardcodec.chunk_state(str(tmp_path / "a.zarr"), storage_options={}),
        lambda: shardcodec.open_shard(letters(), None, letters_spec(), storage_options={}),
        lambda: ShardedKeyValueStore(tmp_path / "s", storage_options={}, **grid),
    ):
        with pytest.raises(TypeError, match=match):
            call()


@needs_obstore
@pytest.mark.parametrize("url", ["s3://bucket/a", "https://host/a", "az://container/a"])
def test_options_of_the_client_need_no_dictionary(url: str) -> None:
    """`allow_http=true`, which users of MinIO try, ended in a panic of Rust."""
    options = {"allow_http": True, "timeout": "3s", "client_options": {"user_agent": "test"}}
    store = at_url(url, options | ({"account_name": "me"} if url.startswith("az") else {})).store
    given = {name.lower(): value for name, value in store.client_options.items()}
    assert {name: str(given[name]).lower() for name in ("allow_http", "timeout", "user_agent")} == {
        "allow_http": "true",
        "timeout": "3s",
        "user_agent": "test",
    }


@needs_obstore
def test_panic_of_a_store_is_an_error_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> Any:
        raise PanicException("Expected config prefix to start with aws_")

    monkeypatch.setattr("obstore.store.from_url", panic)
    with pytest.raises(ValueError, match=r"with the options \['region'\]: Expected config prefix"):
        at_url("s3://bucket/a", {"region": "x"})


@pytest.mark.parametrize(
    ("places", "reached"),
    [
        (["a", "s3://bucket/a"], ["s3://bucket/a"]),
        (["s3://bucket/a", "/b", None], ["s3://bucket/a"]),
        (["s3://bucket/a", "s3a://other/a", "gs://bucket/a"], ["s3://bucket/a", "s3a://other/a"]),
        (["https://host/a", "https://other/a", "https://host/b"], ["https://host/a", "https://host/b"]),
    ],
)
def test_options_reach_only_the_service_of_the_first_url(places: list[Any], reached: list[Any]) -> None:
    options = placed_options({"region": "x"}, *places)
    assert isinstance(options, PlacedOptions)
    for one in (options, pickle.loads(pickle.dumps(options))):
        assert [place for place in places if one.of(place) == {"region": "x"}] == reached
        assert all(one.of(place) is None for place in places if place not in reached)


def test_options_for_paths_alone_are_refused() -> None:
    with pytest.raises(TypeError, match=r"expected them only with a URL, got a str$"):
        placed_options({"region": "x"}, "a", "b", None)


def test_unknown_scheme_is_named() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(ValueError, match=r"cannot open 'unheard://of/it' .*Protocol not known: unheard"):
        shardcodec.open_array("unheard://of/it")


@needs_obstore
@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        (
            "s3://bucket/a",
            {"anon": True},
            r"options \['anon'\]: Configuration key: 'anon' is not valid.*s3fs",
        ),
        ("s3://bucket/a", {"client_options": {"colour": 1}}, "Invalid key: colour"),
        ("https://host/a", {"anon": True}, "unexpected keyword argument 'anon'"),
        ("https://me:secret@host/a?signature=secret", None, r"without a query.* 'https://host/a'$"),
        ("s3://", None, "cannot open 's3://'"),
        ("s3://bucket/a", {"colour": 1}, r"options \['colour'\]"),
        ("s3://bucket/a\0b", None, "null bytes"),
    ],
)
def test_refused_options_are_named(url: str, options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        shardcodec.open_array(url, storage_options=options)
    assert "secret" not in str(caught.value)


@needs_obstore
def test_url_of_a_bucket_is_no_object() -> None:
    for url in ("s3://bucket", "s3://bucket/", "s3:///key"):
        with pytest.raises(ValueError, match="expected the URL of an object"):
            shardcodec.open_shard(url, None, letters_spec())


@needs_obstore
@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "gcs", "az", "abfs", "https"])
def test_schemes_that_obstore_opens(scheme: str) -> None:
    options = {"account_name": "account"} if scheme in ("az", "abfs") else None
    found = at_url(f"{scheme}://place/folder", options)
    kinds = {"s": "S3Store", "g": "GCSStore", "a": "AzureStore", "h": "HTTPStore"}
    assert type(found.store).__name__ == kinds[scheme[0]]


def test_missing_packages_are_named(without_obstore: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str, options: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(urls, "store_by_fsspec", missing)
    match = r"cannot open 's3://bucket/a': Install s3fs to access S3; install obstore \(preferred\)"
    with pytest.raises(ImportError, match=match):
        shardcodec.open_array("s3://bucket/a")


def test_first_partial_write_through_fsspec_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a store keeps 31 of 64 updates of 8 processes. Whole writes, reads, and places in memory need no warning."""
    memory = pytest.importorskip("fsspec.implementations.memory", reason="fsspec is not installed")
    wrapper = pytest.importorskip("fsspec.implementations.asyn_wrapper", reason="fsspec is too old")

    class Remote(memory.MemoryFileSystem):
        protocol = "remote"
        store: ClassVar[dict[str, Any]] = {}

    monkeypatch.setattr(conditions, "_told", set())
    for fs, n in ((memory.MemoryFileSystem(), 0), (Remote(), 1)):
        wrapped = wrapper.AsyncFileSystemWrapper(fs, asynchronous=True)
        store = zarr.storage.FsspecStore(wrapped, path=f"/{uuid.uuid4().hex}")
        array = zarr.create_array(store, shape=(16, 24), chunks=(4, 4), shards=(8, 12), dtype="int32")
        array = shardcodec.attach(array, strict=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            array[...] = VALUES
            assert np.array_equal(array[...], VALUES)
            assert not caught
            array[3:5] = 7
            array[3:5] = 8
        assert len(caught) == n
        assert all(
            "fsspec (s3fs, gcsfs, adlfs) has no conditional writes" in str(one.message) for one in caught
        )
