# test_stores.py - key-value store over zarr stores: requests and entity tags
# SPDX-License-Identifier: MIT
"""`shardcodec.kv` with shards that are objects of a zarr store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, RecordingStore, memory_object_store
from kv_stores import key, open_kv
from spec_json import CRC, LITTLE
from zarr.abc.store import SuffixByteRequest
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, WrapperStore, ZipStore

import shardcodec
from shardcodec import native
from shardcodec.compat import default_buffer_prototype
from shardcodec.errors import ConflictError, ShardFormatError, UnsupportedError
from shardcodec.kv import FAILED, NO_VALUE, UNNAMED, KeyRange
from shardcodec.transformer import ChunkMapping, ShardingStorageTransformer


def test_obstore_folder_has_entity_tags_but_no_conditional_put(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore")
    from zarr.storage import ObjectStore

    kv = open_kv((ObjectStore(obstore.store.LocalStore(tmp_path)), "shard"))
    first = kv.write(key(0, 0), b"a")
    assert first.generation == kv.read(key(0, 0)).stamp.generation
    assert kv.write(key(0, 1), b"b", if_equal=first.generation).generation not in (FAILED, UNNAMED)
    assert kv.write(key(0, 1), b"c", if_equal=first.generation).generation == FAILED
    with pytest.raises(ConflictError), kv.transaction(repeatable_read=True) as t:  # noqa: PT012  # its end raises
        t[key(0, 2)] = t[key(0, 1)] * 2
        kv[key(0, 1)] = b"meanwhile"
    assert dict(kv) == {key(0, 0): b"a", key(0, 1): b"meanwhile"}


class InterferingStore(WrapperStore):  # type: ignore[type-arg]
    """Run a write in this process after each of the first requests for an index."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.meddle: list[Callable[[], Any]] = []

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        found = await super().get(key, prototype, byte_range)
        if isinstance(byte_range, SuffixByteRequest) and self.meddle:
            await asyncio.to_thread(self.meddle.pop())
        return found


@pytest.mark.parametrize("times", [1, 2])
def test_index_and_value_are_of_one_state_without_entity_tags(times: int) -> None:
    store = InterferingStore(MemoryStore())
    kv, spec = (
        open_kv((store, "shard")),
        shardcodec.ShardSpec((2, 3), (1, 1), "uint8", 0, ["bytes", "gzip"], [LITTLE, CRC]),
    )

    def store_both(first: bytes, second: bytes) -> None:  # both values move
        with open_kv((store, "shard")).transaction() as t:
            t.delete_range(KeyRange())
            t[key(0, 0)], t[key(0, 1)] = first, second

    store_both(b"aaaa", b"bbbb")
    store.meddle = [lambda: store_both(b"a", b"bbbb")] * times
    assert kv[key(0, 1)] == b"bbbb"
    assert not store.meddle
    store_both(b"aaaa", b"bbbb")
    store.meddle = [lambda: store_both(b"a", b"bbbb")] * times
    assert [r.value for r in kv.read_many([key(0, 0), key(0, 1)])] == [b"a", b"bbbb"]

    with shardcodec.open_shard(store, "shard", spec) as shard:
        assert shard.read_encoded([(0, 1)]) == [b"bbbb"]
        store_both(b"aaaaaa", b"bbbb")
        with pytest.raises(ShardFormatError, match="taken its place"):
            shard.read_encoded([(0, 1)])
        assert shard.refresh().read_encoded([(0, 1)]) == [b"bbbb"]


def test_stale_index_is_not_used_after_own_write() -> None:
    """The option immutable promises that no other process writes; writes of this process must still be seen."""
    store = OtherMemoryStore()
    with shardcodec.enable(immutable=True, index_cache=1 << 20):
        array = zarr.create_array(
            store, shape=(2048,), chunks=(64,), shards=(2048,), dtype="i8", fill_value=0
        )
        array[:] = np.random.default_rng(0).integers(1 << 60, size=2048)
        assert array[0] != 7
        spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
        shard = shardcodec.open_shard(store, "c/0", spec, mode="r+")
        shard.write_chunks([(0,)], np.full((1, 64), 7))
        assert (array[:64] == 7).all()
        kv = open_kv((store, "c/0"), grid_shape=(32,))
        kv[key(0)] = kv[key(1)]
        assert (array[:64] == array[64:128]).all()


def test_number_of_requests() -> None:
    """A value takes one index and one range; close ranges are joined; a whole shard takes one request (KV-25, KV-26)."""
    store = RecordingStore(MemoryStore())
    kv = open_kv((store, "shard"))
    everything = [key(i, j) for i in range(2) for j in range(3)]
    with kv.transaction() as t:
        for i, k in enumerate(everything):
            t[k] = b"%d" % i * 10
    assert store.written == ["shard"]
    store.forget()
    assert kv[key(1, 0)] == b"3" * 10
    # to the byte that proves that the object is as long as its entries require
    assert store.requests == [("shard", "last 100"), ("shard", (30, 160))]
    store.forget()
    assert [r.value[:1] for r in kv.read_many([key(0, 0), key(0, 2)])] == [b"0", b"2"]
    assert store.requests == [("shard", "last 100"), ("shard", (0, 160))]
    store.forget()
    kv.read_many([key(1, 2), key(0, 0)], byte_ranges=[slice(-1, None), slice(0, 2)])
    assert store.requests == [("shard", "last 100"), ("shard", (0, 160))]
    store.forget()
    assert kv.read(key(0, 0), byte_range=slice(3, 3)).value == b"" and kv.list() == everything
    assert store.requests == [("shard", "last 100")] * 2
    store.forget()
    assert [r.value[:1] for r in kv.read_many(everything)] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert store.requests == [("shard", "all")]
    store.forget()
    t = kv.transaction()
    t[key(0, 1)], t[key(0, 0)] = b"pending", None
    wanted = [key(0, 1), key(0, 2), key(0, 0), key(1, 0)]
    found = t.read_many(wanted, byte_ranges=[slice(0, 3), None, None, slice(1, None)])
    assert [r.value for r in found] == [b"pen", b"2" * 10, b"", b"3" * 9]
    assert [r.state for r in t.read_many(wanted[:3])] == ["value", "value", "missing"]
    assert store.requests == [
        ("shard", "last 100"),
        ("shard", (20, 160)),
        ("shard", "last 100"),
        ("shard", (20, 160)),
    ]
    t.abort()
    store.forget()
    with pytest.raises(ValueError, match="Invalid key"):
        kv[b"abc"]
    with kv.transaction() as t:
        t.delete_range(KeyRange())
        t[key(0, 0)] = b"only"
    assert store.requests == []  # KV-31
    assert kv.list() == [key(0, 0)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record requests to obstore."""
    from shardcodec.storage.object_store import ObjectStore as EntityStore

    found: list[Any] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, key: str, *rest: Any) -> Any:
            found.append((name, *rest[:2]))
            return call(self, key, *rest)

        return noted

    for name in ("get", "get_range", "get_suffix"):
        monkeypatch.setattr(EntityStore, name, noting(name, getattr(EntityStore, name)))
    return found


INDEX = ("get_suffix", 100)


def exchange(store: Any, values: dict[bytes, bytes] | None) -> None:
    """Replace the object as another process does."""
    if values is None:
        store.store.delete("shard")
    else:
        other = MemoryStore()
        with open_kv((other, "shard")).transaction() as t:
            t.update(values)
        store.store.put("shard", other._store_dict["shard"].to_bytes())


@pytest.mark.parametrize("pool", [None, 1 << 20])
def test_index_is_cached_with_its_entity_tag(pool: int | None, asked: list[Any]) -> None:
    store = memory_object_store()
    exchange(store, {key(0, 0): b"aaa", key(1, 1): b"bbbb"})
    kv = open_kv((store, "shard"), cache_pool=pool)
    with shardcodec.options(index_cache=1 << 20 if pool is None else 0):
        assert [kv[key(0, 0)], kv[key(1, 1)], kv[key(0, 0)]] == [b"aaa", b"bbbb", b"aaa"]
        assert asked == [INDEX, ("get_range", 0, 3), ("get_range", 3, 7), ("get_range", 0, 3)]
        asked.clear()
        assert [r.value for r in kv.read_many([key(0, 0), key(0, 1), key(1, 1)])] == [
            b"aaa",
            b"",
            b"bbbb",
        ]
        # the cached index shows that the second entry is absent in this state
        assert asked == [("get_range", 0, 7)]
        asked.clear()
        assert key(0, 1) not in kv and key(0, 0) in kv and len(kv.list()) == 2
        assert asked == [INDEX] * 3  # only this request shows whether the object was replaced
        asked.clear()
        known = kv.read(key(0, 0)).stamp.generation
        assert kv.read(key(0, 0), if_not_equal=known).state == "unspecified"
        assert asked == [("get_range", 0, 3), INDEX]
    asked.clear()
    if pool is None:
        with shardcodec.options(index_cache=0):
            assert kv[key(0, 0)] == b"aaa"
        assert asked == [INDEX, ("get_range", 0, 3)]


@pytest.mark.parametrize("there", [{}, {key(1, 1): b"."}])
def test_cached_index_of_replaced_object_is_refreshed(there: dict[bytes, bytes]) -> None:
    """Every first request after the replacement returns data of the new object (KV-22)."""
    old, new = {key(0, 0): b"aaa", key(0, 1): b"", **there}, {key(0, 2): b"xx", key(0, 0): b"yyyyy", **there}
    looks: list[Callable[[Any], Any]] = [
        lambda kv: kv[key(0, 0)],
        lambda kv: kv.get(key(0, 1)),
        lambda kv: kv.get(key(0, 2)),
        lambda kv: key(0, 1) in kv,
        lambda kv: kv.list(),
        len,
        lambda kv: [r.value for r in kv.read_many([key(0, 1), key(0, 0)])],
        lambda kv: [r.state for r in kv.read_many([key(0, 1), key(0, 2)])],
        lambda kv: kv.read(key(0, 0), byte_range=slice(4, 5)).value,
        lambda kv: kv.read(key(0, 0), byte_range=slice(2, 2)).stamp.generation,
        lambda kv: kv.transaction(repeatable_read=True).read(key(0, 2)).value,
        lambda kv: kv.transaction(repeatable_read=True).read(key(0, 1)).state,
    ]
    for look in looks:
        for objects in ((old, new), (new, old), (new, None)):
            store = memory_object_store()
            exchange(store, objects[0])
            kv = open_kv((store, "shard"), cache_pool=1 << 20)
            assert dict(kv) == objects[0]
            assert kv.read(key(0, 0)).state == "value"
            exchange(store, objects[1])
            found = expected = None
            with contextlib.suppress(KeyError, ValueError):
                found = look(kv)
            with contextlib.suppress(KeyError, ValueError):
                expected = look(open_kv((store, "shard"), cache_pool=0))
            assert found == expected


def test_cached_damaged_index_is_refreshed() -> None:
    """Every read of a damaged shard raises, and a read after the repair succeeds, although the damaged index was cached."""
    store = memory_object_store()
    exchange(store, {key(0, 0): b"aaa", key(0, 1): b"b"})
    good = bytes(store.store.get("shard").bytes())
    pairs = np.frombuffer(good[4:-4], dtype="<u8").copy()
    pairs[0] = 10**9
    index = pairs.tobytes()
    store.store.put("shard", good[:4] + index + native.load().crc32c(index).to_bytes(4, "little"))
    kv = open_kv((store, "shard"), cache_pool=1 << 20)
    for _ in range(2):
        for k in (key(0, 0), key(0, 1)):
            with pytest.raises(ShardFormatError):
                kv[k]
        with shardcodec.options(allow_in_index=True):
            assert kv[key(0, 1)] == b"b"
    store.store.put("shard", good)
    assert kv[key(0, 0)] == b"aaa"


def test_repeatable_reads_use_present_state_not_cached_index() -> None:
    store = memory_object_store()
    exchange(store, {key(0, 0): b"aaa"})
    kv = open_kv((store, "shard"), cache_pool=1 << 20)
    assert kv[key(0, 0)] == b"aaa"
    exchange(store, {key(0, 0): b"new"})
    with kv.transaction(repeatable_read=True) as t:
        assert t[key(0, 0)] == b"new"
        t[key(0, 1)] = b"written"
    assert dict(kv) == {key(0, 0): b"new", key(0, 1): b"written"}
    t = kv.transaction(repeatable_read=True)
    assert t[key(0, 0)] == b"new"
    exchange(store, {key(0, 0): b"newer"})
    with pytest.raises(ConflictError):
        t[key(0, 0)]


def test_condition_on_a_damaged_object_in_memory_fails() -> None:
    """The state of an object in memory are its bytes, whatever they are: no index is needed to see that it has changed."""
    store = MemoryStore()
    kv = open_kv((store, "shard"))
    old = kv.write(key(0, 0), b"abc")
    store._store_dict["shard"] = default_buffer_prototype().buffer.from_bytes(b"damaged")
    assert kv.write(key(0, 0), b"new", if_equal=old.generation).generation == FAILED


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_store_without_deletes_keeps_an_empty_shard(tmp_path: Path) -> None:
    """The deletion of the last entry in a zip file raised NotImplementedError without a message."""
    zipped = ZipStore(tmp_path / "a.zip", mode="w")
    kv = open_kv((zipped, "shard"))
    kv.clear()
    assert kv.delete(key(0, 0)).generation == NO_VALUE and not sync(zipped.exists("shard"))
    for empty in (lambda: kv.__delitem__(key(0, 1)), kv.clear):
        kv[key(0, 1)] = b"abc"
        empty()
        assert list(kv) == [] and sync(zipped.getsize("shard")) == 100
    chunks = ChunkMapping(ShardingStorageTransformer(zipped, (2,)))
    for empty in (lambda: chunks.erase("c/1"), lambda: chunks.erase_values(["c/0", "c/1"])):
        chunks["c/1"] = b"abc"
        empty()
        assert "c/1" not in chunks and "c/0" not in chunks and sync(zipped.getsize("c/0")) == 32
    chunks.erase_values(["c/8", "c/9"])
    assert not sync(zipped.exists("c/4"))
    zipped.close()


@pytest.mark.parametrize("first", [0, 1])
def test_transaction_with_a_read_only_view_writes_nothing(first: int) -> None:
    store = MemoryStore()
    places = [(store, "a"), (store.with_read_only(True), "b")]
    shards = [open_kv(place) for place in places]
    transaction = shardcodec.kv.Transaction(atomic=True)
    for shard in (shards[first], shards[1 - first]):
        shard.with_transaction(transaction)[key(0, 0)] = b"new"
    with pytest.raises(ValueError, match="read-only"):
        transaction.commit()
    assert not store._store_dict


def test_read_only_store_refuses_writes(tmp_path: Path) -> None:
    open_kv(tmp_path / "shard")[key(0, 0)] = b"a"
    kv = open_kv((LocalStore(tmp_path, read_only=True), "shard"))
    assert kv[key(0, 0)] == b"a"
    with pytest.raises(ValueError, match="read-only"):
        kv[key(0, 0)] = b"b"
    assert kv[key(0, 0)] == b"a"


def test_to_json_needs_local_file(tmp_path: Path) -> None:
    kv = open_kv((LocalStore(tmp_path), "shard"))
    assert kv.to_json()["base"] == {"driver": "file", "path": str(tmp_path / "shard")}
    with pytest.raises(UnsupportedError, match="expected a local file to describe as JSON"):
        open_kv((MemoryStore(), "shard")).to_json()


def test_shard_api_keeps_header_and_footer(tmp_path: Path) -> None:
    """The Shard API keeps user bytes of a file and sees values that the key-value store wrote."""
    path = tmp_path / "shard"
    spec = shardcodec.ShardSpec((4, 6), (2, 2), "uint8", 0, ["bytes"], [LITTLE, CRC])
    shard = shardcodec.open_shard(path, None, spec, mode="r+")
    shard.write_encoded([(0, 0), (1, 2)], [b"aaaa", b"bbbb"], footer=b"a footer")
    kv = open_kv(path)
    assert dict(kv) == {key(0, 0): b"aaaa", key(1, 2): b"bbbb"}
    assert shard.footer == b"a footer"
    shard.write_encoded([(0, 1)], [b"cccc"], keep_user_bytes=True)
    assert kv[key(0, 1)] == b"cccc" and shard.footer == b"a footer"
    kv[key(1, 1)] = b"dddd"
    assert shard.refresh().read_encoded([(0, 0), (1, 1), (1, 0)]) == [b"aaaa", b"dddd", None]
    assert shard.read_chunks([(1, 1)]).tobytes() == b"dddd"
