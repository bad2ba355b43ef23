# test_http.py - arrays behind HTTP: web servers, and a store with the requests of S3
# SPDX-License-Identifier: MIT
"""Sizes and entity tags come with the answers; requests carry conditions."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import bits, checked, gap_of, python_environment, quiet, random_array, zarrs_view
from servers.http_objects import Objects, serving
from zarr.storage import MemoryStore

import shardcodec
from shardcodec.storage import object_store

obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")

INDEX_NBYTES = 16 * 8 + 4


@pytest.fixture
def web() -> Iterator[Objects]:
    with serving() as objects:
        yield objects


def upload(web: Objects, at_start: bool = False) -> tuple[Any, np.ndarray[Any, Any]]:
    """Put an array on the server. Return the array and its values."""
    store = MemoryStore()
    values = random_array((16, 24), "int32")
    checked(store, at_start=at_start)[...] = values
    for key, blob in store._store_dict.items():
        web.blobs[f"/array/{key}"] = blob.to_bytes()
    return store, values


def over_obstore(web: Objects) -> Any:
    from zarr.storage import ObjectStore

    return ObjectStore(obstore.HTTPStore.from_url(f"{web.url}/array", client_options={"allow_http": True}))


def over_fsspec(web: Objects) -> Any:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    from zarr.storage import FsspecStore

    return FsspecStore.from_url(f"{web.url}/array")


def opened(store: Any) -> Any:
    with quiet():
        return shardcodec.attach(zarr.open_array(store, mode="r"), strict=True)


@pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
@pytest.mark.parametrize("over", [over_obstore, over_fsspec])
@pytest.mark.parametrize("gap", [0, 1 << 20])
def test_reads_over_http_equal_numpy(web: Objects, over: Any, at_start: bool, gap: int) -> None:
    _, values = upload(web, at_start)
    del web.blobs["/array/c/1/1"]
    values[8:, 12:] = -1
    array = opened(over(web))
    with gap_of(gap):
        for wanted in (np.s_[...], np.s_[2:14, 3:20], np.s_[9, 23], np.s_[::5, ::7], np.s_[:8, :12]):
            assert bits(array[wanted]) == bits(values[wanted])


def test_obstore_requests_index_and_chunks_only(web: Objects) -> None:
    """The answer with the index gives the size of the shard, so no byte after the last inner chunk is requested."""
    upload(web)
    array = opened(over_obstore(web))
    web.requests.clear()
    with gap_of(0):
        array[1, 2]
    index, chunk = web.chunk_requests()
    assert index == ("/array/c/0/0", f"bytes=-{INDEX_NBYTES}")
    first, last = (int(n) for n in str(chunk[1]).removeprefix("bytes=").split("-"))
    assert first == 0 and last < 100
    web.requests.clear()
    array[1, 2]  # the index is cached now
    assert web.chunk_requests() == [chunk]
    web.requests.clear()
    array[1, 14]  # a small shard that is not cached
    array[1, 14]
    whole, chunk = web.chunk_requests()
    assert whole == ("/array/c/0/1", None) and chunk[1] is not None


@pytest.mark.parametrize("checks_conditions", [True, False])
def test_shard_replaced_between_index_and_chunks_is_read_again(web: Objects, checks_conditions: bool) -> None:
    """The new shard has the same offsets, other values and no checksum, so only the entity tag shows the change."""
    web.checks_conditions = checks_conditions
    store = MemoryStore()
    with quiet():
        array = zarr.create_array(
            store, shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="u1", compressors=None
        )
    array[...] = 1
    web.blobs.update({f"/array/{key}": blob.to_bytes() for key, blob in store._store_dict.items()})
    old = web.blobs["/array/c/0/0"]
    array = opened(over_obstore(web))
    get_range = object_store.ObjectStore.get_range
    n = 0

    async def exchange_first(self: Any, key: str, start: int, end: int, version: Any = None) -> Any:
        nonlocal n
        n += 1
        web.blobs["/array/c/0/0"] = bytes([1 + n]) * 64 + old[64:]
        return await get_range(self, key, start, end, version)

    with gap_of(0), mock.patch.object(object_store.ObjectStore, "get_range", exchange_first):
        values = array[1:5, 1:8]  # with index and ranges, several times, in the end the whole shard
    assert len(np.unique(values)) == 1 and values[0, 0] == 1 + n
    assert web.n_refused == (n if checks_conditions else 0)


def test_open_array_caches_indexes(web: Objects) -> None:
    _, values = upload(web)
    array = shardcodec.open_array(over_obstore(web))
    web.requests.clear()
    with gap_of(0):
        for _ in range(2):
            assert bits(array[5:7, 1:3]) == bits(values[5:7, 1:3])
    (_, suffix), *ranges = web.chunk_requests()
    assert suffix == f"bytes=-{INDEX_NBYTES}" and len(ranges) == 2


@pytest.mark.parametrize("checks_conditions", [True, False])
def test_shard_replaced_between_two_reads_is_read_again(web: Objects, checks_conditions: bool) -> None:
    """The cached index is used only as long as the object is the same."""
    web.checks_conditions = checks_conditions
    _, values = upload(web)
    array = opened(over_obstore(web))
    with gap_of(0):
        assert bits(array[1:6, 2:9]) == bits(values[1:6, 2:9])
        web.blobs["/array/c/0/0"] = web.blobs["/array/c/1/1"]
        assert bits(array[1:6, 2:9]) == bits(values[9:14, 14:21])
        del web.blobs["/array/c/0/0"]
        assert (array[1:6, 2:9] == -1).all()


def test_object_shorter_than_its_index_is_an_error(web: Objects) -> None:
    for at_start in (False, True):
        upload(web, at_start)
        array = opened(over_obstore(web))
        for n in (0, 1, INDEX_NBYTES - 1):
            web.blobs["/array/c/0/0"] = web.blobs["/array/c/0/0"][:n]
            with gap_of(0), pytest.raises(shardcodec.ShardFormatError) as raised:
                array[1, 2]
            assert raised.value.shard == "c/0/0" and raised.value.limit == INDEX_NBYTES


# ---- a store with conditional writes, shared by processes

S3 = """
    import os, sys
    import numpy as np, obstore.store, zarr
    import shardcodec
    from zarr.storage import ObjectStore

    def store(url):
        options = {"allow_http": True}
        return ObjectStore(obstore.store.S3Store(
            "bucket", endpoint=url, region="nowhere", skip_signature=True, client_options=options))
"""

WRITER = (
    S3
    + """
    array = shardcodec.attach(zarr.open_array(store(sys.argv[1]), mode="r+"), strict=True)
    first = int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    for round in range(1, 4):
        for row in range(4):
            box = np.s_[4 * row : 4 * row + 4, first : first + 3]
            array[box] = 1000 * round + 100 * first + row
    os._exit(0)  # an orderly end may abort, see below
    """
)


def test_processes_writing_to_one_shard_lose_no_update(web: Objects) -> None:
    """All updates of three writers are stored.

    The writers exit without the usual shutdown of Python: a thread of obstore that has just delivered the last
    answer may still take the GIL. Before Python 3.14 the interpreter then ends the thread in a way that aborts
    Rust, after all is stored.
    """
    from zarr.storage import ObjectStore

    s3 = obstore.S3Store(
        "bucket",
        endpoint=web.url,
        region="nowhere",
        skip_signature=True,
        client_options={"allow_http": True},
    )
    array = checked(ObjectStore(s3), shape=(16, 9), chunks=(16, 9))  # one shard
    firsts = [0, 3, 6]
    command = [sys.executable, "-P", "-c", textwrap.dedent(WRITER), web.url]
    writers = [
        subprocess.Popen(
            [*command, str(first)],
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in firsts
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        assert [writer.wait(timeout=60) for writer in writers] == [0] * len(writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    expected = np.empty((16, 9), "int32")
    for first in firsts:
        for row in range(4):
            expected[4 * row : 4 * row + 4, first : first + 3] = 3000 + 100 * first + row
    assert bits(array[...]) == bits(zarrs_view(array)[...]) == bits(expected)
