# test_chunks_in_memory.py - reads of remote objects with decoded inner chunks in memory
# SPDX-License-Identifier: MIT
"""The option ``cache`` in a store of requests: values are those of the store at each read, and requests are counted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cached_stores import DATA, LAYOUTS, create_in
from helpers import gap_of, memory_object_store
from hypothesis import given
from hypothesis import strategies as st
from servers.http_objects import Objects, serving
from zarr.abc.store import RangeByteRequest
from zarr.storage import MemoryStore, WrapperStore

import shardcodec
from shardcodec.storage import indexes

pytest.importorskip("obstore", reason="obstore is not installed")
BOX = np.s_[3:20, 5:33, 1:39]
KEPT = [layout for layout in LAYOUTS if layout in ("zstd", "transposed")]


@pytest.fixture
def server() -> Iterator[Objects]:
    indexes._shared.cache_clear()  # other tests have caches with the same bounds
    with serving() as objects, shardcodec.options(cache="1MiB"):
        yield objects


def handle(store: Any) -> Any:
    return shardcodec.open_array(store, "a")


def attached(store: Any) -> Any:
    return shardcodec.attach(zarr.open_array(store, path="a", mode="r"))


def read(array: Any, server: Objects, box: Any = BOX, data: Any = DATA) -> tuple[list[Any], dict[str, Any]]:
    """Read a box, compare it, and return the ranges that were requested, and the counters."""
    shardcodec.stats.reset()
    server.requests.clear()
    np.testing.assert_array_equal(array[box], data[box])
    return [wanted for _, _, wanted in server.requests], shardcodec.stats()


@pytest.mark.parametrize("opened", [handle, attached])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_equal_at_each_read(layout: str, opened: Any, server: Objects) -> None:
    array = opened(create_in(server, layout))
    for _ in range(4):
        read(array, server)
        read(array, server, np.s_[2, 7:9, 11:13])
        read(array, server, np.s_[::5, 1::7, 3])


def test_texts_are_not_kept(server: Objects) -> None:
    """The memory of texts has no buffer, so the copy of what is kept raised TypeError as soon as the index was cached."""
    data = np.array([["a", "bcd"], ["", "ünï"]], dtype="T")
    array = handle(create_in(server, data=data, chunks=(1, 1), shards=(2, 2)))
    for _ in range(3):
        assert array[1, 0] == "" and array[0, 1] == "bcd"
        read(array, server, np.s_[:1], data)


@pytest.mark.parametrize("layout", KEPT)
def test_second_read_only_compares(layout: str, server: Objects) -> None:
    """One request of one byte for each object, and nothing is decoded."""
    array = handle(create_in(server, layout))
    box = np.s_[5:11, 5:17, 2:9]
    for _ in range(3):
        read(array, server, box)
    requested, done = read(array, server, box)
    assert requested == ["bytes=0-0"]
    assert done["chunk_hits"] > 0 and done["chunk_misses"] == done["chunks_decoded"] == 0


def test_immutable_objects_need_no_request(server: Objects) -> None:
    array = shardcodec.open_array(create_in(server), "a", immutable=True)
    box = np.s_[5:11, 5:17, 2:9]
    for _ in range(3):
        read(array, server, box)
    assert read(array, server, box)[0] == []


def test_only_missing_inner_chunks_are_requested(server: Objects) -> None:
    array = handle(create_in(server))
    for _ in range(2):
        read(array, server, np.s_[1:3, 1:9, 1:9])
    shardcodec.stats.reset()
    read(array, server, np.s_[1:3, 1:9, 1:19])
    assert shardcodec.stats()["chunk_hits"] >= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changed_object_is_read_again(layout: str, server: Objects) -> None:
    array = handle(create_in(server, layout))
    for number in range(1, 4):
        for _ in range(3):
            read(array, server, data=DATA + (number - 1))
        create_in(server, layout, DATA + number)
        read(array, server, data=DATA + number)


def test_own_write_is_read_back(server: Objects) -> None:
    array = shardcodec.open_array(create_in(server), "a", mode="r+")
    data = DATA.copy()
    for number in range(3):
        for _ in range(2):
            read(array, server, data=data)
        array[2:9, 3:12, 30:] = data[2:9, 3:12, 30:] = number
        read(array, server, data=data)


def test_disk_serves_what_memory_lost(server: Objects, tmp_path: Path) -> None:
    box = np.s_[5:11, 5:17, 2:9]
    with shardcodec.options(cache_dir=tmp_path / "cache"):
        array = handle(create_in(server))
        for _ in range(2):
            read(array, server, box)
        assert read(array, server, box)[1]["chunk_hits"] > 0
        array._index_cache.clear()
        indexes._shared(64 << 20, 0, 1 << 20).clear()
        requested, done = read(array, server, box)
        assert requested == ["bytes=0-0"] and done["disk_hits"] > 0
        assert read(array, server, box)[1]["chunks_decoded"] == 0, "they are in memory again"


Steps = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 36), st.integers(0, 36), st.integers(1, 12), st.booleans()),
    max_size=12,
)


@given(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(["2KiB", "9KiB", "1MiB"]), Steps)
def test_random_reads_and_rewrites(layout: str, bound: str, steps: Any) -> None:
    with serving() as objects, shardcodec.options(cache=bound):
        data = DATA
        array = handle(create_in(objects, layout))
        for first, row, column, n, rewrites in steps:
            if rewrites:
                data = data + 1
                create_in(objects, layout, data)
            box = np.s_[first : first + n, row : row + n, column : column + n]
            for _ in range(2):
                np.testing.assert_array_equal(array[box], data[box])


def test_object_with_the_entity_tag_of_another_content_is_read_again(tmp_path: Path) -> None:
    """The tag of obstore's LocalStore has microseconds: both ends of an update in place had one tag, and the old elements stayed."""
    from obstore.store import LocalStore

    codecs = zarr.codecs.ShardingCodec(
        chunk_shape=(4, 10, 10), codecs=[zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec()]
    )
    how: dict[str, Any] = {"chunks": (12, 20, 20), "serializer": codecs, "compressors": None}
    local = zarr.create_array(tmp_path / "a", data=DATA, **how)
    with shardcodec.options(cache="1MiB"):
        array = shardcodec.open_array(zarr.storage.ObjectStore(LocalStore(tmp_path)), "a")
        for number in range(1, 4):
            for _ in range(3):
                np.testing.assert_array_equal(array[1:3, 1:9, 1:9], DATA[1:3, 1:9, 1:9] + (number - 1))
            times = {
                path: path.stat().st_mtime_ns for path in (tmp_path / "a/c").rglob("*") if path.is_file()
            }
            other = zarr.create_array(tmp_path / f"b{number}", data=DATA + number, **how)
            assert other.shape == local.shape
            for path, ns in times.items():
                path.write_bytes((tmp_path / f"b{number}" / path.relative_to(tmp_path / "a")).read_bytes())
                os.utime(path, ns=(ns, ns + 1))


class Slow(WrapperStore):  # type: ignore[type-arg]
    """A store without states, in which something happens between the answer to a request for a range and its arrival."""

    meanwhile: Any = None

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        answer = await super().get(key, prototype, byte_range)
        if isinstance(byte_range, RangeByteRequest) and (meanwhile := self.meanwhile):
            self.meanwhile = None
            await asyncio.to_thread(meanwhile)
        return answer


@pytest.mark.parametrize("kind", ["oindex", "vindex"])
def test_parts_of_uncompressed_chunks_are_not_taken_for_whole_ones(kind: str) -> None:
    """The bytes of a part were given to the cache as a whole inner chunk: ShardFormatError for a sound shard."""
    data = np.arange(40 * 40, dtype="u2").reshape(40, 40)
    store = memory_object_store()
    zarr.create_array(store, name="a", data=data, chunks=(10, 20), shards=(20, 40), compressors=None)
    pick = np.random.default_rng(0)
    with shardcodec.options(cache="1MiB"), gap_of(0):
        array = shardcodec.open_array(store, "a")
        for _ in range(40):
            rows, columns = (np.sort(pick.choice(40, 3, replace=False)) for _ in range(2))
            found, expected = getattr(array, kind)[rows, columns], data[np.ix_(rows, columns)]
            np.testing.assert_array_equal(found, expected if kind == "oindex" else np.diagonal(expected))


def test_answer_from_before_an_own_write_is_not_kept_for_the_reads_after_it() -> None:
    """The number of the cached index was asked for when the answer arrived, and by then it was that of the new index."""
    store = Slow(MemoryStore())
    values = np.arange(1600, dtype="u2").reshape(40, 40)
    zarr.create_array(store, name="a", data=values, chunks=(5, 5), shards=(40, 40))
    box = np.s_[6:9, 6:9]
    with shardcodec.options(cache="1MiB", immutable=True):
        writer = shardcodec.open_array(store, "a", mode="r+")
        array = shardcodec.open_array(store, "a")
        array[1, 1]

        def write_and_read() -> None:
            writer[box] = 7
            assert array[30, 30] == values[30, 30], "it caches the new index"

        store.meanwhile = write_and_read
        array[box]
        assert store.meanwhile is None
        for _ in range(3):
            assert (array[box] == 7).all()
