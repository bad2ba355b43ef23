# test_cached_reads.py - reads of remote objects through a cache on the local disk
# SPDX-License-Identifier: MIT
"""The option ``cache_dir``: values are those of the store at each read, whatever is on the disk, and requests are counted."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import google_crc32c
import numpy as np
import pytest
import zarr
from cached_stores import DATA, LAYOUTS, another_process, bucket_of, create_in, files_of, numbers
from helpers import gap_of
from hypothesis import given
from hypothesis import strategies as st
from servers.http_objects import Objects, serving

import shardcodec
from shardcodec.options import resolve
from shardcodec.storage import disk_cache, indexes
from shardcodec.storage.disk_cache import HEAD_NBYTES, CachedObject

pytest.importorskip("obstore", reason="obstore is not installed")
BOX = np.s_[3:20, 5:33, :]
ONE = np.s_[2:9, 3:12, 30:38]  # within one object


@pytest.fixture
def server() -> Iterator[Objects]:
    with serving() as objects:
        yield objects


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the cache, set for the whole test."""
    path = tmp_path / "cache"
    with shardcodec.options(cache_dir=path):
        yield path


def counted(array: Any, box: Any = BOX, data: Any = DATA) -> dict[str, int]:
    """Read a box, compare it, and return the counters."""
    shardcodec.stats.reset()
    np.testing.assert_array_equal(array[box], data[box])
    return numbers()


def pipeline_array(store: Any) -> Any:
    array = zarr.open_array(store, path="a", mode="r")
    return shardcodec.attach(array)


OPENERS = {"open_array": lambda store: shardcodec.open_array(store, "a"), "zarr": pipeline_array}


@pytest.mark.parametrize("way", OPENERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_read_only_compares(layout: str, way: str, server: Objects, folder: Path) -> None:
    """One request of one byte for each object; the third read is that of a process that knows no index."""
    array = OPENERS[way](create_in(server, layout))
    first = counted(array)
    n = len(files_of(folder))
    assert first["hits"] == 0 and first["misses"] > 0 and first["bytes_written"] > 0 and n > 0
    for _ in range(2):
        server.requests.clear()
        again = counted(array)
        assert again["hits"] > 0 and again["misses"] == again["errors"] == 0
        assert 0 < again["bytes_read"] <= first["bytes_written"]
        assert [wanted for _, _, wanted in server.requests] == ["bytes=0-0"] * n
        another_process()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_immutable_objects_need_no_request(layout: str, server: Objects, folder: Path) -> None:
    array = shardcodec.open_array(create_in(server, layout), "a", immutable=True)
    counted(array)
    for _ in range(2):
        assert counted(array)["requests"] == counted(array, ONE)["requests"] == 0
        another_process()


@pytest.mark.parametrize("knows_indexes", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_changed_object_is_read_again(
    layout: str, knows_indexes: bool, server: Objects, folder: Path
) -> None:
    """Another client has rewritten all objects; the old bytes are replaced on the disk, too."""
    array = shardcodec.open_array(create_in(server, layout), "a")
    counted(array)
    n = len(files_of(folder))
    with shardcodec.options(cache_dir_bytes=0):
        create_in(server, layout, DATA + 1)
    if not knows_indexes:
        another_process()
    assert counted(array, data=DATA + 1)["bytes_written"] > 0
    again = counted(array, data=DATA + 1)
    assert again["hits"] > 0 and again["misses"] == 0
    assert len(files_of(folder)) == n


def test_deleted_object_is_missing(server: Objects, folder: Path) -> None:
    for layout in ("zstd", "plain"):
        array = shardcodec.open_array(create_in(server, layout), "a")
        counted(array)
        server.blobs = {path: blob for path, blob in server.blobs.items() if "/c/" not in path}
        assert not array[BOX].any()


def test_own_write_is_read_back(server: Objects, folder: Path) -> None:
    array = shardcodec.open_array(create_in(server), "a", mode="r+")
    counted(array)
    data = DATA.copy()
    array[2:9, 3:12, 30:] = data[2:9, 3:12, 30:] = 7
    counted(array, data=data)
    assert counted(array, data=data)["misses"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_own_write_is_read_back_though_objects_are_immutable(
    layout: str, server: Objects, folder: Path
) -> None:
    """Nothing was compared with the object, so the process read for ever what was on the disk before its own write."""
    array = shardcodec.open_array(create_in(server, layout), "a", immutable=True)
    writer = shardcodec.open_array(bucket_of(server), "a", mode="r+")
    counted(array)
    for box in (ONE, BOX):
        assert counted(array, box)["hits"] > 0
    data = DATA.copy()
    writer[2:9, 3:12, 30:] = data[2:9, 3:12, 30:] = 7
    for _ in range(2):
        counted(array, ONE, data)
        counted(array, data=data)
    writer[...] = data[...] = 9
    counted(array, ONE, data)
    counted(array, data=data)
    with shardcodec.options(immutable=False):
        counted(shardcodec.open_array(bucket_of(server), "a"), data=data)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_byte_of_a_file_may_be_wrong(layout: str, server: Objects, folder: Path) -> None:
    """The engine reads the files itself if nothing is compared; it believes no byte that has no checksum."""
    store = create_in(server, layout)
    with shardcodec.options(immutable=True):
        array = shardcodec.open_array(store, "a")
    pick = random.Random(5)
    for _ in range(60):
        array[BOX]
        file = pick.choice(files_of(folder))
        whole = bytearray(file.read_bytes())
        match pick.choice(("bit", "cut", "zeros", "other")):
            case "bit":
                place = pick.choice((pick.randrange(700), pick.randrange(len(whole))))
                whole[place % len(whole)] ^= 1 << pick.randrange(8)
            case "cut":
                del whole[pick.randrange(len(whole)) :]
            case "zeros":
                place = pick.randrange(len(whole))
                whole[place : place + 64] = bytes(len(whole[place : place + 64]))
            case "other":
                whole[:] = pick.choice(files_of(folder)).read_bytes()
        file.write_bytes(whole)
        for box in pick.sample((ONE, BOX), 2):
            counted(array, box)


@pytest.mark.parametrize("immutable", [True, False])
def test_a_file_that_was_cut_has_no_elements_of_other_chunks(
    immutable: bool, server: Objects, folder: Path
) -> None:
    """The rest of the memory had another chunk, which ends with its checksum. The checksum of both together is always the same."""
    with shardcodec.options(threads=1, immutable=immutable):
        array = shardcodec.open_array(create_in(server, "crc32c"), "a")
    counted(array, np.s_[:12, :20, :20])
    (file,) = files_of(folder)
    whole = file.read_bytes()
    assert len(set(np.frombuffer(whole, "<u4", 2 * 12, HEAD_NBYTES)[::2].tolist())) == 12
    first = HEAD_NBYTES + 8 * 13
    entries = np.frombuffer(whole, "<u8", 2 * 12, first).reshape(3, 2, 2, 2)
    z, y, x = np.unravel_index(entries[..., 0].argmax(), (3, 2, 2))
    for _ in range(8):
        for box in (
            np.s_[:4, :10, :10],
            np.s_[4 * z : 4 * z + 4, 10 * y : 10 * y + 10, 10 * x : 10 * x + 10],
        ):
            os.truncate(file, first + 16 * 12 + int(entries[z, y, x, 0]))
            counted(array, box)


def wait_until_old(folder: Path) -> None:
    """Wait until the times of all files would show another change."""
    changed = max(file.stat().st_ctime for file in files_of(folder))
    time.sleep(max(0.0, changed + 2.1 - time.time()))


@pytest.mark.parametrize("shards", [None, (12, 20, 20)], ids=["plain", "shards"])
def test_bytes_are_compared_once_until_the_file_changes(shards: Any, server: Objects, folder: Path) -> None:
    """Whole inner chunks were read for each part of one, which took twice as long as from local files without checksums."""
    chunks = (12, 20, 20) if shards is None else (4, 10, 10)
    store = create_in(server, chunks=chunks, shards=shards, compressors=None)
    box, row = np.s_[1, 3, :], DATA.dtype.itemsize * 20 if shards is None else DATA.dtype.itemsize * 10
    array = shardcodec.open_array(store, "a", immutable=True)
    counted(array, box)
    whole = counted(array, box)["bytes_read"]
    assert whole > 10 * row
    assert counted(array, box)["bytes_read"] == whole, "the file has just changed"
    wait_until_old(folder)
    assert counted(array, box)["bytes_read"] == whole
    again = counted(array, box)
    assert 0 < again["bytes_read"] <= 4 * row
    assert again["requests"] == again["misses"] == 0
    for file in files_of(folder):
        os.utime(file, ns=(1, file.stat().st_mtime_ns))
    for _ in range(2):  # the time of last use is written, which is no change
        assert counted(array, box)["bytes_read"] == again["bytes_read"]
    for file in files_of(folder):
        damage(file, "flip", file.read_bytes().find(DATA[1, 3, :5].tobytes()))
    wait_until_old(folder)
    changed = counted(array, box)
    assert changed["misses"] > 0 < changed["requests"], "it was noticed, and fetched again"


def test_objects_of_another_shape_are_not_taken_for_it(server: Objects, folder: Path) -> None:
    """The file of an object has the slots of the array that wrote it."""
    counted(shardcodec.open_array(create_in(server, "plain"), "a", immutable=True))
    array = shardcodec.open_array(create_in(server, "zstd"), "a", immutable=True)
    for _ in range(2):
        counted(array)


@pytest.mark.parametrize("options", [{}, {"cache": "1MiB"}, {"open_files": 16}], ids=str)
@pytest.mark.parametrize("layout", ["zstd", "raw", "plain"])
def test_file_that_replaces_another_one_is_read_anew(
    layout: str, options: dict[str, Any], server: Objects, folder: Path
) -> None:
    """An open file, and inner chunks in memory, were taken for those of the new file, which often has the inode of the old one."""
    with shardcodec.options(**options):
        array = shardcodec.open_array(create_in(server, layout), "a", immutable=True)
        for _ in range(3):
            counted(array)
        for number in range(1, 4):
            data = DATA + number
            store = create_in(server, layout, data)
            if number < 3:
                for file in files_of(folder):
                    file.unlink()
            else:  # a read that compares replaces the files
                counted(shardcodec.open_array(store, "a"), data=data)
            for _ in range(3):
                counted(shardcodec.open_array(bucket_of(server), "a", immutable=True), data=data)


def test_index_that_is_not_sound_is_refused_again(server: Objects, folder: Path) -> None:
    """Inner chunks without checksums need a sound index; the one on the disk had been read with `allow_in_index`."""
    store = create_in(server, "raw")
    path = "/bucket/a/c/0/0/0"
    blob = bytearray(server.blobs[path])
    n_index = 16 * 12 + 4
    place = len(blob) - n_index
    blob[place : place + 8] = (len(blob) - 800).to_bytes(8, "little")  # its last bytes are those of the index
    blob[-4:] = google_crc32c.value(bytes(blob[place:-4])).to_bytes(4, "little")
    server.blobs[path] = bytes(blob)
    with shardcodec.options(allow_in_index=True):
        shardcodec.open_array(store, "a", immutable=True)[BOX]
    array = shardcodec.open_array(bucket_of(server), "a", immutable=True)
    for _ in range(2):
        with pytest.raises(shardcodec.ShardFormatError, match="index"):
            array[BOX]


def test_only_errors_of_the_folder_are_passed_over(server: Objects, folder: Path) -> None:
    array = shardcodec.open_array(create_in(server), "a", immutable=True)
    counted(array, ONE)
    file = files_of(folder)[0]
    for make in (file.mkdir, lambda: os.mkfifo(file), lambda: file.symlink_to(file)):
        file.unlink()
        make()
        counted(array, ONE)
        counted(array)
        file.rmdir() if file.is_dir() else file.unlink()
        counted(array)
    shardcodec.open_array(bucket_of(server), "a", mode="r+")[3, 5, 0] = DATA[3, 5, 0]  # one file is old now
    for error in (TimeoutError("of an alarm"), TimeoutError(110, "of an alarm"), KeyboardInterrupt()):
        failing = mock.Mock(**{"read.side_effect": error})
        with mock.patch.object(array._boxes._disk, "_plans", failing), pytest.raises(type(error)):
            array[BOX]


def test_torn_index_is_written_again(server: Objects, folder: Path) -> None:
    array = shardcodec.open_array(create_in(server), "a", immutable=True)
    counted(array)
    for file in files_of(folder):
        whole = bytearray(file.read_bytes())
        whole[HEAD_NBYTES + 8 * 12] ^= 1
        file.write_bytes(whole)
    another_process()
    counted(array)
    assert counted(array)["requests"] == 0


def test_array_that_is_made_anew_is_read(server: Objects, folder: Path) -> None:
    """The objects of the old array had been deleted by this process, which read them from the disk for ever."""
    store = create_in(server)
    counted(shardcodec.open_array(store, "a", immutable=True))
    with mock.patch.object(type(store), "delete_dir", _deleted_by(server)):
        shardcodec.create_array(
            store, "a", shape=DATA.shape, dtype="u2", overwrite=True, fill_value=3, **LAYOUTS["zstd"]
        )
    found = shardcodec.open_array(bucket_of(server), "a", immutable=True)[...]
    assert (found == 3).all()


def _deleted_by(server: Objects) -> Any:
    async def delete_dir(self: Any, prefix: str) -> None:  # the server does not list
        with server.mutex:
            server.blobs = {path: blob for path, blob in server.blobs.items() if "/a/" not in path}

    return delete_dir


def test_notes_of_what_was_compared_count_as_memory(server: Objects, folder: Path) -> None:
    """They were charged after the index had been admitted, so the bound was exceeded by half."""
    store = create_in(server, chunks=(1, 2, 2), shards=(12, 20, 20), compressors=None)
    for bound, is_kept in ((40_000, True), (25_000, False)):  # 1,200 entries, 24 bytes each
        with shardcodec.options(index_cache=bound):
            array = shardcodec.open_array(store, "a", immutable=True)
            cache = indexes.of_options(resolve())
        assert cache is not None
        for _ in range(3):
            counted(array, np.s_[:12, :20, :20])
        assert 0 <= cache.info()["nbytes"] <= bound
        assert (cache.info()["nbytes"] > 20_000) == is_kept


def test_used_files_are_evicted_last(server: Objects, folder: Path) -> None:
    array = shardcodec.open_array(create_in(server), "a", immutable=True)
    counted(array)
    file = files_of(folder)[0]
    os.utime(file, (1, 1))
    counted(array)
    assert time.time() - file.stat().st_atime < 60
    assert file.stat().st_mtime == 1
    os.utime(file, (recent := time.time() - 20, recent))
    changed = file.stat().st_ctime_ns
    counted(array)
    assert file.stat().st_ctime_ns == changed, "a time is not written for each read"
    with shardcodec.options(cache="1MiB"):
        in_memory = shardcodec.open_array(bucket_of(server), "a", immutable=True)
    for _ in range(3):
        counted(in_memory)
    os.utime(file, (1, 1))
    counted(in_memory)  # its index in memory stays the same, and what was decoded with it
    assert shardcodec.stats()["chunk_misses"] == 0


def test_bytes_from_before_an_own_write_are_not_kept_after_it(server: Objects, folder: Path) -> None:
    """The answer to a request of before the write reached the disk after it."""
    array = shardcodec.open_array(create_in(server), "a", immutable=True)
    writer = shardcodec.open_array(bucket_of(server), "a", mode="r+")
    keep = CachedObject.keep

    def written_meanwhile(self: CachedObject, *arguments: Any) -> None:
        with mock.patch.object(CachedObject, "keep", keep):
            writer[2:9, 3:12, 30:] = 7
        keep(self, *arguments)

    with mock.patch.object(CachedObject, "keep", written_meanwhile):
        assert (array[BOX] == DATA[BOX]).all()
    data = DATA.copy()
    data[2:9, 3:12, 30:] = 7
    counted(array, data=data)
    another = shardcodec.open_array(bucket_of(server), "a", immutable=True)
    disk_cache._written.clear()  # as in another process, which reads what was left on the disk
    counted(another, data=data)


def test_part_of_the_inner_chunks_is_on_the_disk(server: Objects, folder: Path) -> None:
    """The others are requested, and the condition of these requests makes another one unnecessary."""
    one, both = np.s_[:4, :10, :10], np.s_[:4, :10, :20]
    with gap_of(0):
        array = shardcodec.open_array(create_in(server), "a")
        counted(array, one)
        server.requests.clear()
        second = counted(array, both)
    assert (second["hits"], second["misses"], len(server.requests)) == (1, 1, 1)


def test_absent_inner_chunks_are_filled(server: Objects, folder: Path) -> None:
    data = np.zeros_like(DATA)
    data[:2, :3, :3] = 1
    for layout in LAYOUTS:
        array = shardcodec.open_array(create_in(server, layout, data), "a")
        counted(array, np.s_[:], data)
        assert counted(array, np.s_[:], data)["bytes_written"] == 0


def test_large_raw_inner_chunks_are_read_in_parts(server: Objects, folder: Path) -> None:
    """Whole ones would take longer than a request; a read that needs all of them caches them."""
    data = np.arange(2 << 20, dtype="u4").reshape(2, -1)
    store = create_in(server, data=data, chunks=(1, 1 << 20), shards=(2, 1 << 20), compressors=None)
    array = shardcodec.open_array(store, "a")
    with shardcodec.options(index_cache=1 << 20):
        part = counted(array, np.s_[:1, 5000:6000], data)
        assert part["misses"] == part["hits"] == 0
        assert counted(array, np.s_[:1], data)["misses"] == 1
        assert counted(array, np.s_[:1], data)["hits"] == 1
        assert counted(array, np.s_[:1, 5000:6000], data)["errors"] == 0


def test_stores_without_lasting_states_are_not_cached(server: Objects, folder: Path) -> None:
    """A HTTP server may name two states by one tag; only a promise of the user makes its objects cached."""
    from obstore.store import HTTPStore, MemoryStore

    create_in(server)
    http = HTTPStore.from_url(f"{server.url}/bucket", client_options={"allow_http": True})
    store = zarr.storage.ObjectStore(http, read_only=True)
    for _ in range(2):
        assert counted(shardcodec.open_array(store, "a"))["misses"] == 0
    assert not files_of(folder)
    kept = shardcodec.open_array(store, "a", immutable=True)
    assert counted(kept)["misses"] > 0
    another_process()
    assert counted(kept)["requests"] == 0
    memory = zarr.storage.ObjectStore(MemoryStore())
    zarr.create_array(memory, name="a", data=DATA, **LAYOUTS["zstd"])
    assert counted(shardcodec.open_array(memory, "a", immutable=True))["misses"] == 0


def test_fsspec_is_cached_if_it_is_immutable(server: Objects, folder: Path) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    for layout in ("zstd", "plain", "raw"):
        create_in(server, layout)
        store = zarr.storage.FsspecStore.from_url(f"{server.url}/bucket", read_only=True)
        assert counted(shardcodec.open_array(store, "a"))["misses"] == 0
        kept = shardcodec.open_array(store, "a", immutable=True)
        with shardcodec.options(cache_dir=folder / layout):
            kept = shardcodec.open_array(store, "a", immutable=True)
            assert counted(kept)["misses"] > 0
            another_process()
            assert counted(kept)["requests"] == 0


def test_buckets_of_one_name_on_two_servers_are_two(server: Objects, folder: Path) -> None:
    counted(shardcodec.open_array(create_in(server), "a", immutable=True))
    with serving() as other:
        store = create_in(other, data=DATA + 1)
        assert counted(shardcodec.open_array(store, "a", immutable=True), data=DATA + 1)["hits"] == 0


def test_bytes_that_cannot_be_decoded_are_requested_again(server: Objects, folder: Path) -> None:
    """Bytes that were damaged on the network are removed from the disk, and requested again."""

    def keep_zeros(self: Any, *arguments: Any) -> None:
        *of_object, data, chunks = arguments
        keep(self, *of_object, bytes(len(data)), chunks)

    keep = CachedObject.keep
    for layout in ("zstd", "plain", "nested"):
        array = shardcodec.open_array(create_in(server, layout), "a")
        with mock.patch.object(CachedObject, "keep", keep_zeros):
            counted(array)
        first, second = counted(array), counted(array)
        assert first["hits"] > 0 and first["misses"] > 0
        assert second["hits"] > 0 and second["misses"] == 0


@given(st.data())
def test_naive_twin(data: Any) -> None:
    """Reads, rewrites by other clients, forgotten indexes, damaged and lost files: each read has the values of the store."""
    choose = lambda *values: data.draw(st.sampled_from(values))  # noqa: E731
    with serving() as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cache"
        layout = choose(*LAYOUTS)
        current = DATA
        bound = choose(16 << 30, 60_000, 200_000)
        with shardcodec.options(cache_dir=folder, cache_dir_bytes=bound):
            array = shardcodec.open_array(create_in(server, layout), "a")
            for _ in range(data.draw(st.integers(2, 8))):
                what = choose("read", "read", "read", "points", "rewrite", "forget", "flip", "cut", "lose")
                if what == "rewrite":
                    current = (current + 1) % 60
                    create_in(server, layout, current)
                elif what == "forget":
                    another_process()
                elif what in ("flip", "cut", "lose"):
                    step, at = choose(1, 2), data.draw(st.integers(0, 2**20))
                    for file in files_of(folder)[::step]:  # their number may depend on the order of answers
                        damage(file, what, at)
                elif what == "points":
                    at = [
                        data.draw(st.lists(st.integers(0, n - 1), min_size=5, max_size=5)) for n in DATA.shape
                    ]
                    np.testing.assert_array_equal(array.vindex[tuple(at)], current[tuple(at)])
                else:
                    starts = [data.draw(st.integers(0, n - 1)) for n in DATA.shape]
                    box = tuple(
                        slice(start, data.draw(st.integers(start + 1, n)))
                        for start, n in zip(starts, DATA.shape, strict=True)
                    )
                    np.testing.assert_array_equal(array[box], current[box])
                used = sum(file.stat().st_blocks * 512 for file in files_of(folder))
                assert used <= bound


def damage(file: Path, what: str, at: int) -> None:
    stored = bytearray(file.read_bytes())
    if what == "lose" or not stored:
        file.unlink()
    elif what == "cut":
        file.write_bytes(stored[: at % len(stored)])
    else:
        stored[at % len(stored)] ^= 1 << at % 8
        file.write_bytes(stored)
