# test_store.py - key-value store: keys, dictionary, reads, conditional writes
# SPDX-License-Identifier: MIT
"""`shardcodec.kv.ShardedKeyValueStore` on a local file."""

from __future__ import annotations

import itertools
import os
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from helpers import in_child
from hypothesis import given
from hypothesis import strategies as st
from kv_stores import key, open_kv
from spec_json import CHECKED_INDEX, LITTLE

import shardcodec
from shardcodec import native
from shardcodec.errors import ChecksumError, ShardFormatError
from shardcodec.kv import FAILED, NO_VALUE, KeyRange, ShardedKeyValueStore
from shardcodec.kv.keys import Grid, escape
from shardcodec.storage import indexes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard"


@pytest.fixture(params=["end", "start"])
def store(request: pytest.FixtureRequest, path: Path) -> ShardedKeyValueStore:
    return open_kv(path, index_location=request.param)


@pytest.fixture
def trusting() -> Iterator[list[indexes.IndexCache]]:
    """Trust time stamps of new files at once, as those of older files; return the list of created caches."""
    made: dict[tuple[int, int], indexes.IndexCache] = {}

    def shared(max_bytes: int, max_open_files: int) -> indexes.IndexCache:
        size = max_bytes, max_open_files
        if size not in made:
            made[size] = indexes.IndexCache(max_bytes, max_open_files=max_open_files, _grain_ns=0)
            listed.append(made[size])
        return made[size]

    listed: list[indexes.IndexCache] = []
    with mock.patch.object(indexes, "shared", shared):
        yield listed


# ---- keys


def test_kv_module_is_imported_on_first_access() -> None:
    code = "import sys, shardcodec; assert 'shardcodec.kv' not in sys.modules; shardcodec.kv.ShardedKeyValueStore"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (b"abc", "abc"),
        (b"", ""),
        (key(2, 0), r"\x00\x00\x00\x02\x00\x00\x00\x00"),
        (key(0, 3), r"\x00\x00\x00\x00\x00\x00\x00\x03"),
        (key(0, 1, 2), r"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02"),
    ],
)
def test_invalid_key_error_names_key_and_grid(store: ShardedKeyValueStore, bad: bytes, shown: str) -> None:
    calls = [
        lambda: store[bad],
        lambda: store.read(bad),
        lambda: store.write(bad, b"x"),
        lambda: store.delete(bad),
        lambda: bad in store,
        lambda: store.read_many([key(0, 0), bad]),
    ]
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == f'Invalid key (grid_shape={{2, 3}}): "{shown}"'


def test_keys_are_escaped_as_in_tensorstore() -> None:
    assert escape(b"\0ab\"'\\\n\t~\x7f\x80?") == r"\x00\x61\x62\"\'\\\n\t~\x7f\x80?"


@st.composite
def grids_and_bounds(draw: Any) -> tuple[tuple[int, ...], bytes, bytes, bytes]:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    part = st.sampled_from([b"\0", b"\1", b"\2", b"\3", b"\xff", b"\0\0\0"])
    bound = st.lists(part, max_size=12).map(b"".join)
    prefix = draw(st.sampled_from([b"", b"\0\0", b"\0\0\0\1"])) if shape else b""
    return shape, prefix, draw(bound), draw(bound)


@given(grids_and_bounds())
def test_span_equals_comparison_of_bytes(case: tuple[Any, bytes, bytes, bytes]) -> None:
    shape, prefix, low, high = case
    grid = Grid(shape, prefix)
    every = [key(*at) for at in itertools.product(*map(range, shape))]
    assert every == sorted(every)
    found = every[slice(*grid.span(KeyRange(low, high)))]
    wanted = [
        k
        for k in every
        if k.startswith(prefix) and k[len(prefix) :] >= low and (not high or k[len(prefix) :] < high)
    ]
    assert found == wanted


def test_range_of_prefix() -> None:
    assert KeyRange.prefix(b"a\xff") == (b"a\xff", b"b")
    assert KeyRange.prefix(b"\xff") == (b"\xff", b"")


# ---- the dictionary


def test_store_is_a_dictionary(store: ShardedKeyValueStore, path: Path) -> None:
    assert list(store) == [] and len(store) == 0 and not path.exists()
    store[key(1, 2)] = b"xyz"
    store[key(0, 1)] = "text"
    store[key(0, 2)] = b""
    assert list(store) == [key(0, 1), key(0, 2), key(1, 2)]
    assert dict(store) == {key(0, 1): b"text", key(0, 2): b"", key(1, 2): b"xyz"}
    assert key(0, 2) in store and key(0, 0) not in store
    assert store[key(0, 1).decode()] == b"text"
    with pytest.raises(KeyError):
        store[key(0, 0)]
    with pytest.raises(KeyError):
        del store[key(0, 0)]
    assert store.pop(key(0, 1)) == b"text"
    store.update({key(0, 0): b"a"})
    assert store.setdefault(key(0, 0), b"b") == b"a"
    store.clear()
    assert not path.exists() and len(store) == 0


def test_deletion_of_last_entry_deletes_object(store: ShardedKeyValueStore, path: Path) -> None:
    store[key(0, 1)] = b"a"
    assert path.exists()
    del store[key(0, 1)]
    assert not path.exists()
    assert store.delete(key(0, 1)).generation == NO_VALUE
    assert not path.exists()


@pytest.mark.parametrize("rank", [0, 1, 31])
def test_grid_of_each_rank(path: Path, rank: int) -> None:
    store = open_kv(path, (1,) * rank)
    only = key(*(0,) * rank)
    store[only] = b"scalar"
    assert path.stat().st_size == 6 + 16 + 4
    assert store.list() == [only] and store[only] == b"scalar"
    assert store.read_many([only])[0].value == b"scalar"


def test_path_is_prefix_of_keys(path: Path) -> None:
    whole = open_kv(path)
    row = open_kv(path, path=key(1))
    row[key(2)] = b"x"
    whole[key(0, 0)] = b"y"
    assert whole[key(1, 2)] == b"x"
    assert list(row) == [key(2)] and len(row) == 1
    assert row.list(strip_prefix_length=2) == [b"\0\2"]
    assert row.read_many([key(2), key(1)])[0].value == b"x"
    row.clear()
    assert dict(whole) == {key(0, 0): b"y"}
    with pytest.raises(ValueError, match=r'"\\x00\\x00\\x00\\x01\\x00\\x00\\x00\\x07"'):
        row[key(7)]


def test_list_of_ranges(store: ShardedKeyValueStore) -> None:
    for at in ((1, 1), (0, 0), (0, 1)):
        store[key(*at)] = b"v"
    assert store.list(KeyRange(b"\0\0\0\1")) == [key(1, 1)]
    assert store.list(KeyRange(b"", b"\0\0\0\1")) == [key(0, 0), key(0, 1)]
    assert store.list(KeyRange(key(0, 1) + b"\0", key(9, 9))) == [key(1, 1)]
    assert store.list(KeyRange(key(1, 0), key(0, 1))) == []
    assert store.list(strip_prefix_length=4) == [key(0), key(1), key(1)]
    assert store.list(strip_prefix_length=40) == [b"", b"", b""]


# ---- reading


def test_byte_ranges_of_values(store: ShardedKeyValueStore) -> None:
    store[key(0, 1)] = b"abc"
    good = {(0, 2): b"ab", (-2, None): b"bc", (1, 1): b"", (None, None): b"abc", (3, None): b"", (3, 3): b""}
    for (a, b), value in good.items():
        assert store.read(key(0, 1), byte_range=slice(a, b)).value == value
        assert store.read(key(0, 0), byte_range=slice(a, b)).state == "missing"
    for a, b, shown in ((99, None, "99, ?"), (0, 10, "0, 10"), (4, 4, "4, 4"), (-5, None, "-5, ?")):
        text = f"Requested byte range [{shown}) is not valid for value of size 3: entry (0, 1) of shard "
        for read in (store, store.transaction()):
            with pytest.raises(ValueError, match=re.escape(text)):
                read.read_many([key(0, 0), key(0, 1)], byte_ranges=[None, slice(a, b)])
            with pytest.raises(ValueError, match=re.escape(text)):
                read.read(key(0, 1), byte_range=slice(a, b))
    for a, b in ((2, 1), (0, -1), (None, -1)):
        with pytest.raises(ValueError, match="Unsupported byte_range slice"):
            store.read(key(0, 0), byte_range=slice(a, b))
    for wrong in (slice(0.5, None), slice("a", "b"), (0, 1)):
        with pytest.raises(TypeError):
            store.read(key(0, 1), byte_range=wrong)  # type: ignore[arg-type]


def test_read_many_keeps_order(store: ShardedKeyValueStore) -> None:
    store[key(0, 1)], store[key(1, 2)], store[key(1, 1)] = b"abc", b"defg", b""
    keys = [key(1, 2), key(0, 0), key(0, 1), key(1, 1), key(1, 2)]
    found = store.read_many(keys)
    assert [(r.state, r.value) for r in found] == [
        ("value", b"defg"),
        ("missing", b""),
        ("value", b"abc"),
        ("value", b""),
        ("value", b"defg"),
    ]
    assert len({r.stamp for r in found}) == 1
    parts = [slice(1, 3), slice(0, 1), None, slice(0, 0), slice(-1, None)]
    assert [r.value for r in store.read_many(keys, byte_ranges=parts)] == [b"ef", b"", b"abc", b"", b"g"]
    assert {r.state for r in store.read_many(keys, if_not_equal=found[0].stamp.generation)} == {"unspecified"}
    assert store.read_many([]) == []
    with pytest.raises(ValueError, match="byte_ranges: expected 5 items, one for each key, got 1"):
        store.read_many(keys, byte_ranges=[None])


def test_generation_identifies_state_of_whole_shard(store: ShardedKeyValueStore) -> None:
    nothing = store.read(key(0, 0))
    assert (nothing.state, nothing.stamp.generation) == ("missing", NO_VALUE)
    assert store.read(key(0, 0), if_not_equal=NO_VALUE).state == "missing"
    written = store.write(key(0, 1), b"a")
    assert store.read(key(0, 1)).stamp.generation == written.generation
    assert store.read(key(0, 0)).stamp.generation == written.generation
    assert store.read(key(0, 0), if_not_equal=written.generation).state == "unspecified"
    second = store.write(key(1, 1), b"b")
    assert second.generation != written.generation and second.time >= written.time
    assert store.read(key(0, 1), if_not_equal=written.generation).value == b"a"
    # a deletion of absent entries changes nothing
    assert store.delete(key(0, 0)).generation == second.generation
    store.delete_range(KeyRange(key(0, 2), key(1, 0)))
    assert store.read(key(0, 0)).stamp.generation == second.generation


@pytest.mark.parametrize("strategy", ["replace", "append"])
def test_conditional_writes_need_present_state(store: ShardedKeyValueStore, strategy: str) -> None:
    with shardcodec.options(write_strategy=strategy):
        first = store.write(key(0, 0), b"a", if_equal=NO_VALUE)
        assert store.write(key(0, 0), b"b", if_equal="absent").generation == FAILED
        # "absent" refers to the entry, not to the shard
        second = store.write(key(0, 1), b"b", if_equal="absent")
        assert store.write(key(0, 0), b"c", if_equal=first.generation).generation == FAILED
        third = store.write(key(1, 0), b"c", if_equal=second.generation)
        assert store.delete(key(0, 0), if_equal=second.generation).generation == FAILED
        assert store.delete(key(1, 2), if_equal=third.generation).generation == third.generation
        last = store.delete(key(0, 0), if_equal=third.generation)
        assert dict(store) == {key(0, 1): b"b", key(1, 0): b"c"}
        assert last.generation == store.read(key(0, 1)).stamp.generation
    with pytest.raises(ValueError, match="if_equal: expected a generation, got FAILED"):
        store.write(key(0, 0), b"x", if_equal=b"")
    with pytest.raises(TypeError, match="if_equal"):
        store.write(key(0, 0), b"x", if_equal="a generation")


COUNT = """
import sys, struct
from shardcodec.kv import ShardedKeyValueStore
codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
store = ShardedKeyValueStore(sys.argv[1], grid_shape=(2, 3), index_codecs=codecs)
key = struct.pack(">2I", 1, 1)
for _ in range(int(sys.argv[2])):
    while True:
        seen = store.read(key)
        wanted = b"%06d" % (int(seen.value or 0) + 1)
        if store.write(key, wanted, if_equal=seen.stamp.generation).generation:
            break
"""


def test_conditional_increments_of_processes_lose_nothing(path: Path) -> None:
    """Values of one size, written within one tick of the file system's clock, must have different generations."""
    counters = [subprocess.Popen([sys.executable, "-c", COUNT, path, "40"]) for _ in range(3)]
    assert [counter.wait() for counter in counters] == [0, 0, 0]
    assert open_kv(path)[key(1, 1)] == b"000120"


def test_delete_range_is_one_write(store: ShardedKeyValueStore) -> None:
    for at in ((0, 0), (0, 2), (1, 0), (1, 2)):
        store[key(*at)] = b"v"
    before = native.load().totals()["opens"]
    store.delete_range(KeyRange(key(0, 1), key(1, 0) + b"\0"))
    assert native.load().totals()["opens"] - before <= 1
    assert list(store) == [key(0, 0), key(1, 2)]


def test_update_checks_all_keys_and_writes_once(store: ShardedKeyValueStore) -> None:
    """The method of the base class wrote the whole shard once for each key."""
    given = {key(i, j): b"%d%d" % (i, j) for i in range(2) for j in range(3)}
    before = native.load().totals()["bytes_written"]
    store.update(given)
    assert native.load().totals()["bytes_written"] - before == os.stat(store.base).st_size
    assert dict(store) == given
    store.update([(key(0, 0), b"a"), (key(0, 0), "b"), (key(1, 1), None)])
    assert store[key(0, 0)] == b"b" and key(1, 1) not in store
    with pytest.raises(ValueError, match="Invalid key"):
        store.update({key(0, 1): b"lost", key(9, 9): b""})
    with pytest.raises(TypeError, match="value: expected bytes or str, got int"):
        store.update({key(0, 1): b"lost", key(0, 2): 5})
    assert store[key(0, 1)] == b"01"
    store.update()
    with store.transaction() as t:
        t.update({key(0, 1): b"new"})
        assert store[key(0, 1)] == b"01"
    assert store[key(0, 1)] == b"new"
    # 'abcd' has the length of a key, but is outside of the grid
    text = open_kv(Path(f"{store.base}.text"), (2**30,))
    with pytest.raises(ValueError, match=r'Invalid key .*: "abcd"'):
        text.update(abcd=b"")


def test_bounds_may_be_text(store: ShardedKeyValueStore) -> None:
    store.update({key(0, 0): b"a", key(1, 0): b"b"})
    assert store.list(KeyRange("\0\0\0\1")) == [key(1, 0)]
    assert store.list(KeyRange.prefix("\0\0\0\0")) == [key(0, 0)]
    with pytest.raises(TypeError, match="inclusive_min: expected bytes or str, got int"):
        store.delete_range(KeyRange(1, b""))  # type: ignore[arg-type]


@pytest.mark.skipif(
    bool(os.environ.get("SHARDCODEC_TEST_SANITIZER")), reason="a sanitizer reserves the whole address space"
)
@pytest.mark.parametrize("blob", [None, b"no shard at all"], ids=["missing", "broken"])
def test_clear_of_largest_grid_reads_no_index(path: Path, blob: bytes | None) -> None:
    """`clear` of the largest grid took 16 GiB of memory and 90 s."""
    if blob is not None:
        path.write_bytes(blob)
    store = open_kv(path, (2**10, 2**10, 2**10))

    def clear() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, hard))
        store.clear()

    in_child(clear)
    assert not path.exists()


# ---- damage


def test_damaged_entry_raises_and_others_can_be_read(path: Path) -> None:
    store = open_kv(path)
    store[key(0, 0)], store[key(0, 1)] = b"good", b"evil"
    blob = bytearray(path.read_bytes())
    first = len(blob) - 100
    struct.pack_into("<QQ", blob, first + 16, 100_000, 5)
    crc = native.load().crc32c(bytes(blob[first : first + 96]))
    struct.pack_into("<I", blob, first + 96, crc)
    path.write_bytes(blob)
    assert list(store) == [key(0, 0), key(0, 1)] and key(0, 1) in store
    with shardcodec.options(allow_in_index=True):
        assert store[key(0, 0)] == b"good"
    for read in (
        lambda: store[key(0, 0)],
        lambda: store[key(0, 1)],
        lambda: store.read_many([key(0, 0)]),
    ):
        with pytest.raises(ShardFormatError, match="100000") as caught:
            read()
        assert caught.value.chunk_coords == (0, 1) and caught.value.shard == str(path)
    with pytest.raises(ShardFormatError, match="100000"):
        store[key(1, 1)] = b"not stored"
    assert path.read_bytes() == blob
    with shardcodec.options(allow_in_index=True):
        store[key(0, 1)] = b"mended"
    assert dict(store) == {key(0, 0): b"good", key(0, 1): b"mended"}


def test_complete_write_replaces_broken_index(path: Path) -> None:
    store = open_kv(path)
    store[key(0, 0)] = b"v"
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)
    for call in (lambda: store[key(0, 0)], lambda: list(store), lambda: store.write(key(0, 1), b"x")):
        with pytest.raises(ChecksumError):
            call()
    assert path.read_bytes() == blob
    with store.transaction() as t:
        for i in range(2):
            for j in range(3):
                t.write(key(i, j), b"new" if j else None)
    assert len(store) == 4
    path.write_bytes(blob)
    store.clear()
    assert not path.exists()
    path.write_bytes(b"short")
    with pytest.raises(ShardFormatError, match="5"):
        store[key(0, 0)]


@given(st.binary(max_size=160))
def test_random_bytes_are_read_or_raise(tmp_path_factory: pytest.TempPathFactory, blob: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for codecs in ([LITTLE], CHECKED_INDEX):
        path.write_bytes(blob)
        store = open_kv(path, index_codecs=codecs, cache_pool=0)
        for call in (lambda s=store: dict(s), lambda s=store: s.write(key(0, 1), b"x")):
            try:
                call()
            except (ShardFormatError, ChecksumError, MemoryError):
                pass


# ---- the cache


def test_cached_index_of_replaced_shard_is_not_used(path: Path, trusting: list[indexes.IndexCache]) -> None:
    store = open_kv(path)
    store[key(0, 0)] = b"old"
    assert store[key(0, 0)] == b"old" and store[key(0, 0)] == b"old"
    code = COUNT.split("for _", maxsplit=1)[0] + "store[struct.pack('>2I', 0, 0)] = b'new value'"
    subprocess.run([sys.executable, "-c", code, path], check=True)
    assert trusting[0].info()["hits"]
    assert store[key(0, 0)] == b"new value"
    path.unlink()
    with pytest.raises(KeyError):
        store[key(0, 0)]


def test_cache_separates_index_locations(path: Path, trusting: list[indexes.IndexCache]) -> None:
    """TensorStore's cache confuses the two locations (KV-6)."""
    n = 1 << 20
    at_end, at_start = open_kv(path, cache_pool=n), open_kv(path, cache_pool=n, index_location="start")
    at_end[key(0, 0)] = b"end"
    assert at_end[key(0, 0)] == b"end"
    with pytest.raises((ShardFormatError, ChecksumError)):
        at_start[key(0, 0)]
    assert at_end[key(0, 0)] == b"end"
    assert len(trusting) == 1


def test_cache_saves_index_reads_and_is_bounded(tmp_path: Path, trusting: list[indexes.IndexCache]) -> None:
    def reads(store: ShardedKeyValueStore) -> tuple[int, int]:
        engine = native.load()
        before = engine.totals()
        assert store[key(0, 0)] == b"x"
        after = engine.totals()
        return after["reads"] - before["reads"], after["bytes_read"] - before["bytes_read"]

    stores = [open_kv(tmp_path / str(i), cache_pool=1000) for i in range(20)]
    for store in stores:
        store[key(0, 0)] = b"x"
    without = open_kv(tmp_path / "0", cache_pool=0)
    assert reads(without) == reads(without) == (2, 101)  # KV-25
    assert reads(stores[0]) == (2, 101) and reads(stores[0]) == (1, 1)
    for store in stores:
        reads(store)

    (kept,) = trusting
    assert 0 < kept.info()["nbytes"] <= 1000 and kept.info()["evictions"] > 10


# ---- documentation


def test_example_of_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "key-value.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "key-value.md", "exec"), {})
    assert (tmp_path / "values.shard").exists()
