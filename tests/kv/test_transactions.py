# test_transactions.py - transactions of the key-value store
# SPDX-License-Identifier: MIT
"""Transactions of `shardcodec.kv`, compared with a dictionary and run against each other.

In blocks of several statements under pytest.raises (PT012) the commit at the end of the block raises.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import OtherMemoryStore, assemble, entries_of
from hypothesis import given
from hypothesis import strategies as st
from kv_stores import key, open_kv
from spec_json import CRC, LITTLE
from zarr.storage import MemoryStore

import shardcodec
from shardcodec.errors import ConflictError, ShardFormatError
from shardcodec.kv import FAILED, KeyRange, ShardedKeyValueStore, Transaction

SHAPE = (2, 3)


@pytest.fixture
def store(tmp_path: Path) -> ShardedKeyValueStore:
    return open_kv(tmp_path / "shard")


def test_writes_are_isolated_until_commit(store: ShardedKeyValueStore) -> None:
    store[key(0, 0)] = b"old"
    before = os.stat(store.base).st_ino
    with store.transaction() as t:
        t[key(0, 1)], t[key(0, 0)], t[key(1, 2)] = b"a", b"new", b"b"
        del t[key(1, 2)]
        assert t[key(0, 0)] == b"new" and key(1, 2) not in t
        assert t.read(key(0, 1), byte_range=slice(-1, None)).value == b"a"
        assert [r.state for r in t.read_many([key(0, 0), key(1, 2)])] == ["value", "missing"]
        assert list(t) == [key(0, 0), key(0, 1)] and len(t) == 2
        assert dict(store) == {key(0, 0): b"old"} and os.stat(store.base).st_ino == before
        with pytest.raises(KeyError):
            del t[key(1, 2)]
    assert dict(store) == {key(0, 0): b"new", key(0, 1): b"a"}
    assert t.bound_to.committed and not t.bound_to.open
    for use in (lambda: t[key(0, 0)], lambda: t.write(key(0, 0), b"x"), t.commit, lambda: list(t)):
        with pytest.raises(ValueError, match=r"Transaction not open \(committed\)"):
            use()


def test_values_of_equal_size_are_written_in_place(tmp_path: Path) -> None:
    """Such writes doubled the size of a shard, and each of them copied the replaced bytes."""
    store = ShardedKeyValueStore(tmp_path / "s", grid_shape=(300,), index_codecs=[LITTLE, CRC])
    store.update({key(i): bytes([i % 256]) * 100 for i in range(300)})
    nbytes = os.stat(store.base).st_size
    for number in range(5):
        with store.transaction() as t:
            for i in range(number, 300, 3):
                t[key(i)] = bytes([number]) * 100
    assert os.stat(store.base).st_size == nbytes
    assert store[key(4)] == bytes([4]) * 100 and store[key(5)] == bytes([2]) * 100


def test_last_write_of_a_key_wins(store: ShardedKeyValueStore) -> None:
    with store.transaction() as t:
        t[key(0, 0)] = b"1"
        t.delete_range(KeyRange(b"", key(1)))
        t[key(0, 1)] = b"2"
        t[key(1, 0)] = b"3"
        t.delete_range(KeyRange(key(1, 0), key(1, 1)))
        assert list(t) == [key(0, 1)]
    assert dict(store) == {key(0, 1): b"2"}


def test_deleted_range_ends_before_its_last_bound(store: ShardedKeyValueStore) -> None:
    """A transaction reads each key of a range that it has deleted as absent, the first too, and the keys beside it as stored."""
    store.update({key(0, i): str(i).encode() for i in range(3)} | {key(1, 0): b"next"})
    with store.transaction() as t:
        t.delete_range(KeyRange(key(0, 1), key(1, 0)))
        assert [t.get(key(0, i)) for i in range(3)] == [b"0", None, None] and t[key(1, 0)] == b"next"
        assert t.read_many([key(0, 1), key(1, 0)])[0].state == "missing"
    assert dict(store) == {key(0, 0): b"0", key(1, 0): b"next"}


def test_exception_or_abort_discards_writes(store: ShardedKeyValueStore) -> None:
    with pytest.raises(RuntimeError), store.transaction() as t:  # noqa: PT012
        t[key(0, 0)] = b"x"
        raise RuntimeError
    assert t.bound_to.aborted
    t = store.transaction()
    t[key(0, 0)] = b"x"
    t.abort()
    with pytest.raises(ValueError, match="not open"):
        t[key(0, 0)] = b"y"
    assert not os.path.exists(store.base)


def test_damaged_entry_exists_and_can_be_deleted(store: ShardedKeyValueStore) -> None:
    """``in`` and ``del`` in a transaction raised the error of a read; outside of a transaction they did not."""
    store.update({key(0, 0): b"good", key(0, 1): b"evil"})
    path = Path(store.target.path or "")
    blob = path.read_bytes()
    entries = entries_of(blob, 6)
    entries[1] = (100_000, 5)
    path.write_bytes(assemble(blob[: -(6 * 16 + 4)], entries))
    with shardcodec.options(allow_in_index=True), store.transaction() as t:
        assert key(0, 1) in t and list(t) == [key(0, 0), key(0, 1)]
        with pytest.raises(ShardFormatError, match="100000"):
            t[key(0, 1)]
        del t[key(0, 1)]
        assert key(0, 1) not in t
    assert dict(store) == {key(0, 0): b"good"}


def test_complete_write_does_not_read_the_shard(store: ShardedKeyValueStore) -> None:
    Path(store.base).write_bytes(b"no shard at all")
    with store.transaction() as t:
        t.delete_range(KeyRange())
        t[key(1, 1)] = b"only"
    assert dict(store) == {key(1, 1): b"only"}
    Path(store.base).write_bytes(b"no shard at all")
    with store.transaction() as t:
        t.clear()
    assert not os.path.exists(store.base)


def test_repeatable_read_must_hold_at_commit(store: ShardedKeyValueStore) -> None:
    store[key(0, 0)] = b"1"
    with pytest.raises(ConflictError) as caught, store.transaction(repeatable_read=True) as t:  # noqa: PT012
        assert t[key(0, 0)] == b"1"
        t[key(0, 1)] = b"t"
        store[key(1, 1)] = b"another writer"
    assert caught.value.shard == str(store.base) and caught.value.expected != caught.value.actual
    assert t.bound_to.aborted and list(store) == [key(0, 0), key(1, 1)]
    # also in a transaction without writes, and at the second read
    with pytest.raises(ConflictError), store.transaction(repeatable_read=True) as t:  # noqa: PT012
        assert t[key(0, 0)] == b"1"
        store[key(0, 0)] = b"2"
    t = store.transaction(repeatable_read=True)
    assert t[key(0, 0)] == b"2"
    store[key(0, 0)] = b"3"
    with pytest.raises(ConflictError):
        t[key(0, 0)]
    assert t.bound_to.aborted
    # without repeatable_read there is no conflict
    with store.transaction() as t:
        assert t[key(0, 0)] == b"3"
        t[key(0, 1)] = b"t"
        store[key(0, 0)] = b"4"
    assert store[key(0, 0)] == b"4" and store[key(0, 1)] == b"t"


def test_conditions_must_hold_at_commit(store: ShardedKeyValueStore) -> None:
    stamp = store.write(key(0, 0), b"1")
    with store.transaction() as t:
        assert t.write(key(0, 0), b"x", if_equal=b"another").generation == FAILED
        assert t.write(key(0, 0), b"x", if_equal="absent").generation == FAILED
        assert t.write(key(0, 1), b"2", if_equal="absent").generation != FAILED
        assert t.write(key(0, 1), b"3", if_equal="absent").generation == FAILED
        assert t.write(key(1, 0), b"4", if_equal=stamp.generation).generation != FAILED
    assert dict(store) == {key(0, 0): b"1", key(0, 1): b"2", key(1, 0): b"4"}
    with pytest.raises(ConflictError), store.transaction() as t:  # noqa: PT012
        t.write(key(1, 1), b"mine", if_equal="absent")
        store[key(1, 1)] = b"theirs"
    assert store[key(1, 1)] == b"theirs"


def test_transaction_over_several_shards(tmp_path: Path) -> None:
    a, b = open_kv(tmp_path / "a"), open_kv(tmp_path / "b")
    with Transaction() as t:
        a.with_transaction(t)[key(0, 0)] = b"a"
        b.with_transaction(t)[key(0, 0)] = b"b"
        # another handle on the same shard sees the same buffered writes
        assert open_kv(tmp_path / "a").with_transaction(t)[key(0, 0)] == b"a"
    assert a[key(0, 0)] == b"a" and b[key(0, 0)] == b"b"
    t = Transaction(atomic=True)
    a.with_transaction(t)[key(0, 0)] = b"never"
    with pytest.raises(ValueError, match="as single atomic transaction"):
        b.with_transaction(t)[key(0, 0)] = b"never"
    assert t.aborted and a[key(0, 0)] == b"a"
    t = Transaction()
    a.with_transaction(t)[key(0, 0)] = b"x"
    with pytest.raises(ValueError, match="expected the grid and index that the shard has"):
        open_kv(tmp_path / "a", grid_shape=(6,)).with_transaction(t)[key(0)] = b"x"


def test_atomic_commit_of_shards_in_one_memory_store() -> None:
    memory = MemoryStore()
    a, b, c = (open_kv((memory, name)) for name in "abc")
    b[key(0, 0)], c[key(0, 0)] = b"old", b"goes"
    with Transaction(atomic=True) as t:
        a.with_transaction(t)[key(0, 0)] = b"a"
        b.with_transaction(t)[key(0, 1)] = b"b"
        c.with_transaction(t).clear()
    assert dict(a) == {key(0, 0): b"a"} and dict(b) == {key(0, 0): b"old", key(0, 1): b"b"} and not c
    with pytest.raises(ConflictError), Transaction(atomic=True, repeatable_read=True) as t:  # noqa: PT012
        assert b.with_transaction(t)[key(0, 0)] == b"old"
        a.with_transaction(t)[key(1, 0)] = b"never"
        b.with_transaction(t)[key(1, 0)] = b"never"
        b[key(0, 0)] = b"changed"
    assert dict(a) == {key(0, 0): b"a"} and b[key(0, 0)] == b"changed"
    with pytest.raises(ValueError, match="as single atomic"), Transaction(atomic=True) as t:  # noqa: PT012
        a.with_transaction(t)[key(1, 0)] = b"never"
        open_kv((MemoryStore(), "a")).with_transaction(t)[key(1, 0)] = b"never"


def test_conflict_in_inner_shard_is_not_retried(tmp_path: Path) -> None:
    """A conflict is final: the write of the outer shard must not be retried."""
    inner = open_kv((open_kv(tmp_path / "outer"), key(0, 1)))
    inner[key(0, 0)] = b"1"
    with shardcodec.options(lock_timeout=0.5):
        with pytest.raises(ConflictError), inner.transaction(repeatable_read=True) as t:  # noqa: PT012
            t[key(0, 1)] = t[key(0, 0)]
            inner[key(0, 0)] = b"2"
        t = inner.transaction()
        t.write(key(0, 1), b"x", if_equal="absent")
        inner[key(0, 1)] = b"3"
        with pytest.raises(ConflictError):
            t.commit()
    assert dict(inner) == {key(0, 0): b"2", key(0, 1): b"3"}


def test_concurrent_writers_of_inner_and_outer_shards_lose_nothing() -> None:
    """The store of the outer shard does not identify states of its objects."""
    base = OtherMemoryStore(), "outer"

    def count(store: ShardedKeyValueStore, at: bytes) -> None:
        for i in range(15):
            store[at] = b"%d" % i

    outer = open_kv(base)
    stores = [open_kv((open_kv(base), key(0, 1))) for _ in range(2)] + [outer]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, stores, [key(0, 0), key(1, 1), key(1, 2)]))
    assert dict(stores[0]) == {key(0, 0): b"14", key(1, 1): b"14"}
    assert outer[key(1, 2)] == b"14"


def test_atomic_commit_of_inner_shards_of_one_outer_shard(tmp_path: Path) -> None:
    outer = open_kv(tmp_path / "outer")
    a, b = open_kv((outer, key(0, 0))), open_kv((outer, key(1, 1)), index_location="start")
    outer[key(0, 1)] = b"beside"
    with Transaction(atomic=True) as t:
        a.with_transaction(t)[key(0, 0)] = b"a"
        b.with_transaction(t)[key(1, 2)] = b"b"
        assert list(outer) == [key(0, 1)]
    assert dict(a) == {key(0, 0): b"a"} and dict(b) == {key(1, 2): b"b"}
    assert list(outer) == [key(0, 0), key(0, 1), key(1, 1)]
    stamp = a.read(key(0, 0)).stamp
    assert stamp == (outer.read(key(0, 1)).stamp.generation, stamp.time)
    b[key(0, 0)] = b"changes the outer shard"
    assert a.write(key(0, 0), b"x", if_equal=stamp.generation).generation == FAILED
    assert a.write(key(0, 2), b"x", if_equal="absent").generation != FAILED
    again = ShardedKeyValueStore.from_json(a.to_json())
    assert dict(again) == {key(0, 0): b"a", key(0, 2): b"x"}
    b.clear()
    assert list(outer) == [key(0, 0), key(0, 1)]
    with pytest.raises(ValueError, match="Invalid key"):
        open_kv((outer, b"abc"))
    with pytest.raises(TypeError, match="not bound to a transaction"):
        open_kv((outer.transaction(), key(0, 0)))


# ---- a dictionary as twin

KEYS = [key(i, j) for i in range(2) for j in range(3)]
VALUES = st.binary(max_size=20)
BOUND = st.sampled_from([b"", key(1), *KEYS, KEYS[1] + b"\0", key(9, 9)])
STEP = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(KEYS), VALUES),
    st.tuples(st.just("delete"), st.sampled_from(KEYS), st.none()),
    st.tuples(st.just("delete range"), BOUND, BOUND),
)


def step(store: ShardedKeyValueStore, what: str, one: bytes, two: bytes | None) -> None:
    if what == "delete range":
        store.delete_range(KeyRange(one, two or b""))
    else:
        store.write(one, two)


def twin_step(twin: dict[bytes, bytes], what: str, one: bytes, two: bytes | None) -> None:
    if what == "delete range":
        for k in [k for k in twin if k >= one and (not two or k < two)]:
            del twin[k]
    elif two is None:
        twin.pop(one, None)
    else:
        twin[one] = two


@given(
    st.lists(st.one_of(STEP, st.lists(STEP, max_size=5)), max_size=6),
    st.sampled_from(["end", "start"]),
    st.sampled_from(["file", "memory", "nested"]),
)
def test_transactions_match_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, steps: Any, location: str, kind: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "twin"
    path.unlink(missing_ok=True)
    base: Any = {"file": path, "memory": (MemoryStore(), "a"), "nested": None}[kind]
    if kind == "nested":
        base = open_kv(path), key(1, 0)
    store = open_kv(base, index_location=location)
    twin: dict[bytes, bytes] = {}
    for each in steps:
        if isinstance(each, tuple):
            step(store, *each)
            twin_step(twin, *each)
        else:
            with store.transaction() as t:
                for part in each:
                    step(t, *part)
                    twin_step(twin, *part)
                    assert list(t) == sorted(twin)
                assert [t.read(k).value for k in KEYS] == [twin.get(k, b"") for k in KEYS]
        assert dict(store) == twin and list(store) == sorted(twin)
        found = store.read_many(KEYS)
        assert [(r.state == "value", r.value) for r in found] == [(k in twin, twin.get(k, b"")) for k in KEYS]
    if kind == "file":
        assert path.exists() == bool(twin)
