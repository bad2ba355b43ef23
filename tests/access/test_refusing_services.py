# test_refusing_services.py - services and servers that refuse requests which others answer
# SPDX-License-Identifier: MIT
"""Some S3 services answer 501 to a write with a condition: the update failed after ten retries, and nothing said what to do.
Some HTTP servers answer a range from the end of an object with an error (rangehttpserver, the viewer of ome-zarr): nothing could
be read, though they have all other ranges.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ours
from servers.http_objects import Objects, serving
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec import LockScopeError, tools
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import conditions
from shardcodec.storage.kinds import store_of

obstore_store = pytest.importorskip("obstore.store", reason="obstore is not installed")

LAYOUT: dict[str, Any] = {"shape": (16,), "chunks": (2,), "shards": (8,), "dtype": "i4", "fill_value": 0}
VALUES = np.arange(1, 65, dtype="i4").reshape(8, 8)


@pytest.fixture(autouse=True)
def unknown_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, empty in (("_checked", set()), ("_told", set()), ("_suffixes", {})):
        monkeypatch.setattr(conditions, name, empty)


def s3(objects: Objects) -> Any:
    options = {"skip_signature": True, "client_options": {"allow_http": True}}
    return zarr.storage.ObjectStore(
        obstore_store.S3Store("bucket", prefix="a", endpoint=objects.url, region="nowhere", **options)
    )


def write_shards(store: Any) -> None:
    array = shardcodec.create_array(store, **LAYOUT)
    array[3] = 5
    array[4:6] = [6, 7]
    assert array[...].tolist() == [0, 0, 0, 5, 6, 7] + 10 * [0]


def write_plain(store: Any) -> None:
    array = shardcodec.create_array(store, **{**LAYOUT, "shards": None})
    array[3] = 5
    array[4:7] = [6, 7, 8]
    assert array[:8].tolist() == [0, 0, 0, 5, 6, 7, 8, 0]


def write_frames(store: Any) -> None:
    shardcodec.create_array(store, **LAYOUT)
    with shardcodec.stream(store, max_delay=0, start=0) as stream:
        for number in range(3):
            stream.append(np.int32(number + 1))
            stream.flush()
    assert shardcodec.open_array(store)[:4].tolist() == [1, 2, 3, 0]


def write_keys(store: Any) -> None:
    values = ShardedKeyValueStore((store, "values"), grid_shape=(4,), index_codecs=[LITTLE, CRC])
    values[b"\0\0\0\1"] = b"one"
    values[b"\0\0\0\2"] = b"two"
    assert dict(values) == {b"\0\0\0\1": b"one", b"\0\0\0\2": b"two"}


def write_attributes(store: Any) -> None:
    array = shardcodec.create_array(store, **LAYOUT)
    array.attrs["a"] = 1
    assert zarr.open_array(store, mode="r").attrs["a"] == 1


@pytest.mark.parametrize("work", [write_shards, write_plain, write_frames, write_keys, write_attributes])
def test_service_without_conditions_is_written_with_a_warning(work: Any) -> None:
    with serving() as objects:
        objects.status_of_conditions = 501
        begin = time.monotonic()
        with pytest.warns(RuntimeWarning, match="501.*conditional_put"):
            work(s3(objects))
        refused = [path for method, path, _ in objects.requests if "probe" in path]
        assert time.monotonic() - begin < 20
        assert len(refused) <= 1


def test_cluster_is_refused_where_conditions_are() -> None:
    with serving() as objects, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        objects.status_of_conditions = 501
        array = shardcodec.create_array(s3(objects), **LAYOUT)
        with shardcodec.options(locking="cluster"), pytest.raises(LockScopeError, match="conditional_put"):
            shardcodec.open_array(s3(objects), mode="r+")[3] = 5
        assert array[3] == 0


@pytest.mark.parametrize("status_of_head", [200, 405])
@pytest.mark.parametrize("status", [200, 400, 405, 416, 501])
@pytest.mark.parametrize("location", ["end", "start"])
def test_server_without_suffix_ranges_is_read(
    tmp_path: Any, location: str, status: int, status_of_head: int
) -> None:
    """The second shard takes no request that fails: what the server lacks is remembered."""
    codec = zarr.codecs.ShardingCodec(chunk_shape=(2, 2), index_location=location)
    array = zarr.create_array(
        tmp_path / "a",
        shape=(8, 8),
        chunks=(4, 8),
        dtype="i4",
        serializer=codec,
        filters=None,
        compressors=None,
    )
    array[...] = VALUES
    with serving() as objects:
        for path in (tmp_path / "a").rglob("*"):
            if path.is_file():
                objects.blobs[f"/a/{path.relative_to(tmp_path / 'a')}"] = path.read_bytes()
        objects.status_of_suffixes, objects.status_of_head = status, status_of_head
        url = f"{objects.url}/a"
        begin = time.monotonic()
        assert shardcodec.chunk_state(url).exists.all()
        n_suffixes = sum((wanted or "").startswith("bytes=-") for _, _, wanted in objects.requests)
        assert n_suffixes <= (2 if location == "end" else 0)  # two shards are asked at the same time
        objects.requests.clear()
        assert shardcodec.chunk_state(url).exists.all()
        assert np.array_equal(shardcodec.open_array(url)[...], VALUES)
        assert tools.verify(url, level="decode").n_findings == 0
        assert not any((wanted or "").startswith("bytes=-") for _, _, wanted in objects.requests)
        assert time.monotonic() - begin < 20


@pytest.mark.parametrize("status", [200, 206, 400, 405, 416, 501])
def test_server_without_suffix_ranges_is_read_through_fsspec(tmp_path: Any, status: int) -> None:
    """zarr opens an address with fsspec: a request that was refused was an error, and a whole object in place of its end a damaged index."""
    layout = LAYOUT | {"shape": (8, 8), "chunks": (2, 2), "shards": (4, 8)}
    shardcodec.create_array(tmp_path / "a", **layout)[...] = VALUES
    with serving() as objects:
        for path in (tmp_path / "a").rglob("*"):
            if path.is_file():
                objects.blobs[f"/a/{path.relative_to(tmp_path / 'a')}"] = path.read_bytes()
        objects.status_of_suffixes = status
        store = zarr.storage.FsspecStore.from_url(f"{objects.url}/a", read_only=True)
        assert np.array_equal(shardcodec.open_array(store)[:3, :3], VALUES[:3, :3])
        assert np.array_equal(ours(store, mode="r")[3:, 3:], VALUES[3:, 3:])
        assert shardcodec.chunk_state(store).exists.all()


@pytest.mark.parametrize("status_of_head", [403, 405, 501])
def test_damage_is_found_behind_a_server_that_refuses_head(tmp_path: Any, status_of_head: int) -> None:
    """`verify` asked for the size with HEAD alone: with 405 it took each shard for a missing one, and with 403 for an unreadable one.

    Addresses that are signed for GET answer 403.
    """
    zarr.create_array(tmp_path / "a", data=VALUES, chunks=(4, 4), shards=(4, 8))
    with serving() as objects:
        for path in (tmp_path / "a").rglob("*"):
            if path.is_file():
                objects.blobs[f"/a/{path.relative_to(tmp_path / 'a')}"] = path.read_bytes()
        objects.status_of_head = status_of_head
        report = tools.verify(f"{objects.url}/a", level="decode")
        assert report.n_findings == 0 and report.arrays[0].n_shards == 2
        blob = objects.blobs["/a/c/1/0"]
        objects.blobs["/a/c/1/0"] = blob[:-1] + bytes([blob[-1] ^ 1])
        assert tools.verify(f"{objects.url}/a", level="decode").n_findings == 1


def test_answer_405_is_no_missing_object() -> None:
    """obstore raises the error of a missing object, so all elements had the fill value."""
    with serving() as objects:
        objects.blobs["/a/x"], objects.status_of_suffixes, objects.status_of_head = b"bytes", 405, 405
        store = zarr.storage.ObjectStore(
            obstore_store.HTTPStore(f"{objects.url}/a", client_options={"allow_http": True})
        )
        answer = store_of(store).wait(store_of(store).get_suffix("x", 3))
        assert answer is not None and bytes(answer.data) == b"tes"
        assert store_of(store).wait(store_of(store).get_suffix("y", 3)) is None


@pytest.mark.parametrize("status", [400, 403, 405])
def test_error_of_a_refused_condition_names_the_option(status: int) -> None:
    """Other services answer 400, 403 or 405 in place of 501: the write failed, and nothing said that a store without conditions works."""
    with serving() as objects:
        array = shardcodec.create_array(s3(objects), **LAYOUT)
        objects.status_of_conditions = status
        with pytest.raises(Exception, match=f"status code: {status}") as caught:
            array[3] = 5
        assert any("conditional_put='disabled'" in note for note in caught.value.__notes__)
