# test_cache.py - the index cache and the cache of open files: what is a hit, and what must be a miss
# SPDX-License-Identifier: MIT
"""`storage.index_cache` and csrc/plan/sc_cache.c, tested through the reader."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import CRC, LETTERS, LITTLE, RAW, assemble, in_child, letters, letters_spec, text_of
from spec_json import BIG, transpose
from workers import in_threads

import shardcodec
from shardcodec import IndexCache, native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import whole
from shardcodec.errors import ShardFormatError
from shardcodec.storage import indexes

# Grain 0: every file counts as stable at once. Tests of the grain set another value.
STABLE = 0


def chain_of(spec: Any) -> Any:
    return compiled(spec.chain)


class Reader:
    """A reader of one shard of letters in a file, with a cache."""

    def __init__(self, path: Path, cache: IndexCache, spec: Any = None) -> None:
        self.path = path
        self.cache = cache
        self.chain = chain_of(spec or letters_spec())
        self.done: dict[str, int] = {}

    def text(self, *, immutable: bool = False) -> str:
        out = np.zeros((4, 4), np.uint8)
        _, self.done = native.load().read(
            [(self.chain, str(self.path), whole((4, 4)))],
            out,
            (0, 1),
            cache=self.cache.native,
            immutable=immutable,
            io_latency=0.0,  # where calls seem to cost time, as with a sanitizer, a small shard is read with one call
        )
        return text_of(out)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "letters"
    path.write_bytes(letters())
    return path


def reader_of(path: Path, max_bytes: int = 1 << 20, **arguments: Any) -> Reader:
    return Reader(path, IndexCache(max_bytes, _grain_ns=STABLE, **arguments))


def other_letters() -> bytes:
    """Change the first two inner chunks in place, without changing the size."""
    return assemble(b"twelone.zerotres", [(8, 4), (4, 4), (0, 4), (12, 4)])


OTHER = "zero one. twel tres"


# ---- hits


def test_second_read_does_not_read_the_index(file: Path) -> None:
    reader = reader_of(file)
    assert reader.text() == LETTERS
    assert (reader.done["index_hits"], reader.done["index_misses"], reader.done["reads"]) == (0, 1, 2)
    assert reader.text() == LETTERS
    assert (reader.done["index_hits"], reader.done["index_misses"], reader.done["reads"]) == (1, 0, 1)
    assert reader.cache.info()["hits"] == 1


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_every_index_layout_is_cached(tmp_path: Path, at_start: bool, crc: bool) -> None:
    path = tmp_path / "letters"
    path.write_bytes(letters(at_start=at_start, crc=crc))
    reader = Reader(path, IndexCache(1 << 20, _grain_ns=STABLE), letters_spec(at_start=at_start, crc=crc))
    assert [reader.text(), reader.text()] == [LETTERS, LETTERS]
    assert reader.done["index_hits"] == 1


# An index whose pairs are not in C order, or not in the byte order of this machine.
TURNED = transpose(2, 0, 1)


@pytest.mark.parametrize("index_codecs", [[BIG, CRC], [BIG], [TURNED, LITTLE, CRC], [LITTLE, CRC, CRC]])
def test_cached_index_equals_the_index_as_read(tmp_path: Path, index_codecs: list[Any]) -> None:
    """Pairs in C order are read directly into the cache entry and decoded there; the checksums are dropped then."""
    spec = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 46, RAW, index_codecs)
    values = np.arange(16, dtype=np.uint8).reshape(4, 4)
    path = tmp_path / "letters"
    path.write_bytes(shardcodec.encode(values, spec))
    reader = Reader(path, IndexCache(1 << 20, _grain_ns=STABLE), spec)
    first = reader.text()
    assert first == text_of(values)
    assert reader.done["index_misses"] == 1
    kept = reader.cache.info()["nbytes"]
    assert [reader.text(), reader.text()] == [first, first]
    assert reader.done["index_hits"] == 1
    assert reader.cache.info()["nbytes"] == kept


def test_entries_are_checked_at_each_use(tmp_path: Path) -> None:
    path = tmp_path / "letters"
    path.write_bytes(assemble(b"zeroone.two.tres", [(0, 4), (4, 4), (8, 4), (13, 400)]))
    reader = reader_of(path)
    for _ in range(3):
        with pytest.raises(ShardFormatError, match="claims 400 bytes at offset 13"):
            reader.text()
    assert reader.done == {}
    assert reader.cache.info()["hits"] == 2


def test_damaged_index_is_not_cached(file: Path) -> None:
    blob = bytearray(letters())
    blob[-1] ^= 1
    file.write_bytes(blob)
    reader = reader_of(file)
    for _ in range(2):
        with pytest.raises(shardcodec.ChecksumError):
            reader.text()
    assert reader.cache.info()["n_indexes"] == 0


# ---- misses


def test_replaced_file_is_read_again(file: Path) -> None:
    reader = reader_of(file)
    reader.text()
    stamps = file.stat()
    new = file.with_name("new")
    new.write_bytes(other_letters())
    os.utime(new, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    new.replace(file)
    assert reader.text() == OTHER
    assert reader.done["index_misses"] == 1


def test_file_changed_in_place_is_read_again(file: Path) -> None:
    reader = reader_of(file)
    reader.text()
    time.sleep(0.02)  # longer than a tick of the file system's clock
    stamps = file.stat()
    file.write_bytes(other_letters())
    os.utime(file, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))  # only ctime shows the change
    assert reader.text() == OTHER


def test_file_changed_just_now_is_not_cached(file: Path) -> None:
    """A later change could leave the same time stamps; git calls such a file racy."""
    reader = Reader(file, IndexCache(1 << 20))
    for _ in range(3):
        reader.text()
        assert reader.done["index_misses"] == 1
    assert reader.cache.info()["n_indexes"] == 0


def test_time_stamps_in_the_future_are_not_trusted(file: Path) -> None:
    os.utime(file, (time.time() + 1000, time.time() + 1000))
    reader = reader_of(file)
    reader.text()
    reader.text()
    assert reader.done["index_misses"] == 1


def test_other_index_layout_is_a_miss(tmp_path: Path) -> None:
    """The same file is read with a spec that expects an index without checksum."""
    path = tmp_path / "letters"
    blob = letters(crc=False)
    path.write_bytes(blob)
    cache = IndexCache(1 << 20, _grain_ns=STABLE)
    assert Reader(path, cache, letters_spec(crc=False)).text() == LETTERS
    with pytest.raises(shardcodec.ChecksumError):
        Reader(path, cache, letters_spec()).text()
    assert Reader(path, cache, letters_spec(crc=False)).text() == LETTERS


def test_missing_file_is_not_cached(file: Path) -> None:
    reader = reader_of(file, max_open_files=4)
    assert reader.text() == LETTERS
    file.unlink()
    assert reader.text() == ".... .... .... ...."
    file.write_bytes(letters())
    assert reader.text() == LETTERS


# ---- limits


def test_least_recently_used_index_is_evicted_first(tmp_path: Path) -> None:
    paths = [tmp_path / str(i) for i in range(8)]
    cache = IndexCache(1500, _grain_ns=STABLE)
    readers = [Reader(path, cache) for path in paths]
    for path, reader in zip(paths, readers, strict=True):
        path.write_bytes(letters())
        reader.text()
        readers[0].text()
        assert readers[0].done["index_hits"] == 1, "the index that was just used was evicted"
        assert cache.info()["nbytes"] <= 1500
    info = cache.info()
    assert 0 < info["n_indexes"] < 8
    assert info["evictions"] == 8 - info["n_indexes"]
    readers[1].text()
    assert readers[1].done["index_misses"] == 1


def test_index_larger_than_the_cache_is_not_cached(file: Path) -> None:
    reader = reader_of(file, max_bytes=100)
    reader.text()
    reader.text()
    assert reader.done["index_misses"] == 1
    assert reader.cache.info()["nbytes"] == 0


def test_large_index_is_cached_at_the_second_read(tmp_path: Path) -> None:
    """Otherwise a read of one element from each of many shards would decode every index completely."""
    n = 20_000
    spec = shardcodec.ShardSpec((n,), (1,), "uint8", 7, [{"name": "bytes"}])
    path = tmp_path / "line"
    path.write_bytes(shardcodec.encode(np.arange(n, dtype=np.uint8), spec))
    cache = IndexCache(1 << 20, _grain_ns=STABLE)
    chain = chain_of(spec)

    def element(at: int) -> dict[str, int]:
        out = np.zeros(1, np.uint8)
        _, done = native.load().read(
            [(chain, str(path), ((at,), (1,), None, (0,)))], out, (0,), cache=cache.native, io_latency=0.0
        )
        assert out[0] == at % 256
        return dict(done)

    assert element(5)["index_misses"] == 1
    assert cache.info()["nbytes"] < 1000
    assert element(19_999)["index_misses"] == 1
    assert cache.info()["nbytes"] > 16 * n
    last = element(12_345)
    assert (last["index_hits"], last["bytes_read"]) == (1, 1)


# ---- threads, processes and pickles


@pytest.mark.threads
def test_threads_load_an_index_once(tmp_path: Path) -> None:
    n = 15_000  # the largest index that is cached at the first read
    spec = shardcodec.ShardSpec((n,), (1,), "uint8", 7, [{"name": "bytes"}])
    path = tmp_path / "line"
    path.write_bytes(shardcodec.encode(np.arange(n, dtype=np.uint8), spec))
    chain = chain_of(spec)
    for _ in range(10):
        cache = IndexCache(1 << 22, _grain_ns=STABLE)
        start = threading.Barrier(8)

        def read(number: int, cache: IndexCache = cache, start: threading.Barrier = start) -> None:
            out = np.zeros(1, np.uint8)
            start.wait(30)
            native.load().read(
                [(chain, str(path), ((number,), (1,), None, (0,)))], out, (0,), cache=cache.native
            )
            assert out[0] == number

        in_threads(8, read)
        assert (cache.info()["hits"], cache.info()["misses"]) == (7, 1)


@pytest.mark.threads
@pytest.mark.parametrize("max_open_files", [0, 2])
def test_reads_are_correct_while_a_writer_replaces_files(tmp_path: Path, max_open_files: int) -> None:
    """The versions differ only in offsets: an index of one version gives wrong letters with the bytes of the other."""
    versions = {LETTERS: letters(), OTHER: other_letters()}
    paths = [tmp_path / str(i) for i in range(4)]
    for path in paths:
        path.write_bytes(letters())
    cache = IndexCache(1 << 20, max_open_files=max_open_files, _grain_ns=15_000_000)
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for i in range(80):
                new = tmp_path / "new"
                new.write_bytes(list(versions.values())[i // 4 % 2])
                new.replace(paths[i % 4])
                time.sleep(0.01)
                if i % 7 == 0:
                    cache.drop([str(paths[i % 4])])
            done.set()
            return
        readers = [Reader(path, cache) for path in paths]
        while not done.is_set():
            for reader in readers:
                assert reader.text() in versions

    in_threads(4, work)
    assert cache.info()["hits"] > 0


@pytest.mark.threads
def test_evicted_index_stays_valid_while_in_use(tmp_path: Path) -> None:
    """Threads use more indexes than the cache can hold."""
    paths = [tmp_path / str(i) for i in range(12)]
    for path in paths:
        path.write_bytes(letters())
    cache = IndexCache(800, max_open_files=3, _grain_ns=STABLE)

    def work(number: int) -> None:
        readers = [Reader(path, cache) for path in paths]
        for i in range(300):
            assert readers[(i * (number + 1)) % 12].text() == LETTERS

    in_threads(6, work)
    info = cache.info()
    assert info["evictions"] > 0
    assert info["nbytes"] <= 800
    assert info["n_files"] <= 3


@pytest.mark.threads
def test_forked_child_starts_with_an_empty_cache(file: Path) -> None:
    reader = reader_of(file, max_open_files=4)
    reader.text()
    stop = threading.Event()
    others = [threading.Thread(target=lambda: [read_until(file, reader.cache, stop)]) for _ in range(3)]
    for other in others:
        other.start()

    def child() -> None:
        info = reader.cache.info()
        assert (info["n_indexes"], info["n_files"], info["hits"], info["nbytes"]) == (0, 0, 0, 0)
        again = Reader(file, reader.cache)
        assert [again.text(), again.text()] == [LETTERS, LETTERS]
        assert again.done["index_hits"] == 1
        indexes.drop([str(file)])

    try:
        for _ in range(5):
            in_child(child)
    finally:
        stop.set()
        for other in others:
            other.join(30)
    assert reader.text() == LETTERS


def read_until(path: Path, cache: IndexCache, stop: threading.Event) -> None:
    reader = Reader(path, cache)
    while not stop.is_set():
        reader.text()


def test_pickled_cache_is_empty_and_of_the_same_size(file: Path) -> None:
    reader = reader_of(file, max_bytes=12345, max_open_files=2)
    reader.text()
    copy = pickle.loads(pickle.dumps(reader.cache))
    assert (copy.max_bytes, copy.info()["max_files"], copy.info()["n_indexes"]) == (12345, 2, 0)
    assert repr(copy) == "IndexCache(12345, max_open_files=2)"


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected sizes from 0 to .*, got max_bytes=-1"):
        IndexCache(-1)
    with pytest.raises(ValueError, match=r"expected sizes from 0 to .* max_open_files=-1"):
        IndexCache(1, max_open_files=-1)


# ---- open files


def test_second_call_opens_no_file(file: Path) -> None:
    reader = reader_of(file, max_open_files=2)
    reader.text()
    assert (reader.done["opens"], reader.done["file_hits"]) == (1, 0)
    reader.text()
    assert (reader.done["opens"], reader.done["file_hits"], reader.done["reads"]) == (0, 1, 1)


def test_replaced_file_is_opened_again(file: Path) -> None:
    reader = reader_of(file, max_open_files=2)
    reader.text()
    new = file.with_name("new")
    new.write_bytes(other_letters())
    new.replace(file)
    assert reader.text() == OTHER
    assert reader.done["opens"] == 1


def test_immutable_file_is_not_checked_again(file: Path) -> None:
    """With `immutable`, an open file is read until this process writes it."""
    # with the default grain: the time stamps do not matter
    reader = Reader(file, IndexCache(1 << 20, max_open_files=2))
    reader.text(immutable=True)
    file.unlink()
    assert reader.text(immutable=True) == LETTERS
    assert reader.done["index_hits"] == 1
    reader.cache.drop([str(file)])
    assert reader.text(immutable=True) == ".... .... .... ...."


def test_files_with_relative_names_are_not_cached(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    reader = reader_of(Path(file.name), max_open_files=2)
    assert [reader.text(immutable=True), reader.text(immutable=True)] == [LETTERS, LETTERS]
    assert reader.done["opens"] == 1
    (file.parent / "sub").mkdir()
    monkeypatch.chdir(file.parent / "sub")
    assert reader.text(immutable=True) == ".... .... .... ...."


def test_no_descriptor_is_left_open(file: Path) -> None:
    def n_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc/self/fd")
    before = n_open()
    for _ in range(3):
        reader = reader_of(file, max_open_files=8)
        for i in range(20):
            path = file.with_name(f"{i}")
            path.write_bytes(letters())
            reader.path = path
            reader.text()
        assert n_open() == before + 8
        del reader
    assert n_open() == before


# ---- names


def test_index_of_a_file_is_not_found_by_key(file: Path) -> None:
    reader = reader_of(file)
    reader.text()
    assert reader.cache.get(str(file), reader.chain) is None
