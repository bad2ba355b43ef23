# test_kv_tensorstore.py - the key-value store beside TensorStore's driver, on the same files
# SPDX-License-Identifier: MIT
"""`shardcodec.kv` answers each call like TensorStore's `zarr3_sharding_indexed`, on files of either writer.

The known differences are in docs/key-value.md, and here in `test_documented_differences`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_stores import key
from spec_json import BIG, CRC, LITTLE

from shardcodec.errors import ConflictError, ShardError
from shardcodec.kv import NO_VALUE, KeyRange, ShardedKeyValueStore, Transaction

ts = pytest.importorskip("tensorstore")

GRID = (2, 3)


KEYS = [key(i, j) for i in range(2) for j in range(3)]


class Theirs:
    """TensorStore with the methods of `ShardedKeyValueStore`."""

    def __init__(self, base: Any, *, transaction: Any = None, **how: Any) -> None:
        if isinstance(base, str | Path):
            base = {"driver": "file", "path": str(base)}
        spec = {"driver": "zarr3_sharding_indexed", "base": base, **how}
        self.kv = ts.KvStore.open(spec, transaction=transaction).result()

    def read(self, k: bytes, **how: Any) -> Any:
        return self.kv.read(k, **how).result()

    def write(self, k: bytes, value: Any, **how: Any) -> Any:
        return self.kv.write(k, value, **how).result()

    def list(self, keys: Any = None, **how: Any) -> Any:
        return sorted(self.kv.list(keys and ts.KvStore.KeyRange(*keys), **how).result())

    def delete_range(self, keys: Any) -> None:
        self.kv.delete_range(ts.KvStore.KeyRange(*keys)).result()

    def read_many(self, keys: Any) -> Any:
        with ts.Batch() as batch:
            found = [self.kv.read(k, batch=batch) for k in keys]
        return [f.result() for f in found]

    def __getitem__(self, k: bytes) -> bytes:
        return self.kv[k]

    def __contains__(self, k: bytes) -> bool:
        return k in self.kv


LAYOUTS = {
    "usual": {"index_codecs": [LITTLE, CRC], "index_location": "end"},
    "start": {"index_codecs": [LITTLE, CRC], "index_location": "start"},
    "plain": {"index_codecs": [LITTLE], "index_location": "end"},
    "turned": {
        "index_codecs": [{"name": "transpose", "configuration": {"order": [2, 1, 0]}}, BIG, CRC],
        "index_location": "end",
    },
}


@pytest.fixture(params=LAYOUTS)
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"grid_shape": list(GRID), **LAYOUTS[request.param]}


def answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call in comparable form.

    State and value without the generation; or the kind of the error, with the text that both implementations use.
    """
    try:
        result = call(*arguments)
    except KeyError:
        return "KeyError"
    except ValueError as error:
        text = str(error)
        return "ValueError", text.removeprefix("OUT_OF_RANGE: ").partition(" [")[0]
    if hasattr(result, "state"):
        return result.state, bytes(result.value)
    return result


READS: list[Callable[[Any, bytes], Any]] = [
    lambda s, k: s.read(k),
    lambda s, k: s[k],
    lambda s, k: k in s,
    *[
        lambda s, k, r=r: s.read(k, byte_range=r)
        for r in (
            slice(0, 2),
            slice(-2, None),
            slice(9, None),
            slice(1, 1),
            slice(0, 9),
            slice(2, 1),
            slice(-9, None),
            slice(3, None),
            slice(None, 2),
            slice(0, -1),
            slice(4, 4),
            slice(None),
        )
    ],
]
BAD_KEYS = [b"", b"abc", key(2, 0), key(0, 3), key(0), key(0, 0, 0), b"\xff" * 8, b"\"\n\0a'\\"]
RANGES = [
    (),
    (b"b",),
    (key(0, 1), key(1, 0)),
    (key(1),),
    (b"", key(1)),
    (key(0, 1) + b"\0", key(1, 2)),
    (b"", key(9, 9)),
    (b"", b"\0\0\0\0\0"),
    (key(1, 0), key(0, 1)),
    (b"\0\0\0\0\0\0\1",),
]


def assert_same(ours: ShardedKeyValueStore, theirs: Theirs) -> None:
    for k in (*KEYS, *BAD_KEYS):
        for read in READS:
            assert answer(read, ours, k) == answer(read, theirs, k), k
    assert [(r.state, bytes(r.value)) for r in ours.read_many(KEYS)] == [
        (r.state, bytes(r.value)) for r in theirs.read_many(KEYS)
    ]
    for bounds in RANGES:
        mine, other = KeyRange(*bounds), ts.KvStore.KeyRange(*bounds)
        assert ours.list(mine) == sorted(theirs.kv.list(other).result()), bounds
    for n in (2, 4, 8, 40):
        assert ours.list(strip_prefix_length=n) == theirs.list(strip_prefix_length=n)


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_reads_equal_tensorstore(tmp_path: Path, how: dict[str, Any], writer: str) -> None:
    stores = {"ours": ShardedKeyValueStore(tmp_path / "s", **how), "theirs": Theirs(tmp_path / "s", **how)}
    ours, theirs = stores["ours"], stores["theirs"]
    assert_same(ours, theirs)
    for i, value in ((1, b"abc"), (5, b"x" * 1000), (2, b""), (1, b"defg"), (0, b"q")):
        stores[writer].write(KEYS[i], value)
        assert_same(ours, theirs)
    stores[writer].write(KEYS[5], None)
    stores[writer].delete_range((key(0, 0), key(0, 2)))
    assert_same(ours, theirs)
    assert ours.list() == [KEYS[2]]
    stores[writer].delete_range(("", "") if writer == "theirs" else KeyRange())
    assert not (tmp_path / "s").exists()


def test_prefixes_equal_tensorstore(tmp_path: Path, how: dict[str, Any]) -> None:
    ours = ShardedKeyValueStore(tmp_path / "s", path=key(1), **how)
    theirs = Theirs(tmp_path / "s", path="\0\0\0\1", **how)
    ours.write(key(2), b"a")
    theirs.write(key(0), b"b")
    for k in (key(0), key(1), key(2), key(3), b"", b"abc"):
        assert answer(READS[1], ours, k) == answer(READS[1], theirs, k)
    assert ours.list() == theirs.list() == [key(0), key(2)]
    for n in (1, 4, 9):
        assert ours.list(strip_prefix_length=n) == theirs.list(strip_prefix_length=n)
    for bounds in ((key(1),), (b"", key(1)), (b"\0",)):
        assert ours.list(KeyRange(*bounds)) == sorted(theirs.kv.list(ts.KvStore.KeyRange(*bounds)).result())


@pytest.mark.parametrize("rank", [0, 31])
def test_grids_of_any_rank_equal_tensorstore(tmp_path: Path, rank: int) -> None:
    how = {"grid_shape": [1] * rank, "index_codecs": [LITTLE, CRC], "index_location": "end"}
    ours, theirs = ShardedKeyValueStore(tmp_path / "s", **how), Theirs(tmp_path / "s", **how)
    only = key(*(0,) * rank)
    ours[only] = b"scalar"
    assert theirs[only] == b"scalar" and theirs.list() == [only]
    theirs.write(only, b"other")
    assert ours[only] == b"other" and ours.list() == [only]


def test_conditional_writes_equal_tensorstore(tmp_path: Path, how: dict[str, Any]) -> None:
    """The same calls on one file of each store. A generation is the last one, the one before, or that of another
    object.
    """
    ours, theirs = ShardedKeyValueStore(tmp_path / "a", **how), Theirs(tmp_path / "b", **how)
    steps = [
        (0, b"a", "absent"),
        (0, b"b", "absent"),
        (1, b"b", "absent"),
        (0, b"c", "last"),
        (0, b"d", "before"),
        (1, None, "before"),
        (5, None, "last"),
        (5, None, "absent"),
        (1, None, "last"),
        (5, b"e", "last"),
        (5, b"f", "other"),
        (0, None, None),
        (5, None, "last"),
        (5, b"g", "last"),
        (5, b"g", "absent"),
    ]
    foreign = {}
    for store, kind in ((ours, ShardedKeyValueStore), (theirs, Theirs)):
        # TensorStore sets flags in generations of other bytes
        foreign[store] = kind(tmp_path / "foreign", **how).write(KEYS[0], b"x").generation
    past: dict[Any, list[bytes]] = {ours: [b"none"], theirs: [b"none"]}
    for number, (i, value, condition) in enumerate(steps):
        outcome = []
        for store in (ours, theirs):
            last = store.read(KEYS[0]).stamp.generation
            before = past[store][-1]
            named = {"absent": NO_VALUE, "last": last, "before": before, "other": foreign[store], None: None}
            done = store.write(KEYS[i], value, if_equal=named[condition])
            now = store.read(KEYS[0]).stamp.generation
            if now != last:
                past[store].append(last)
            facts = bool(done.generation), done.generation == now, now == last, now == NO_VALUE
            values = [answer(store.read, k) for k in KEYS]
            outcome.append((facts, store.list(), values))
        assert outcome[0] == outcome[1], (number, i, value, condition)


def test_if_not_equal_detects_writes_of_the_other(tmp_path: Path, how: dict[str, Any]) -> None:
    ours, theirs = ShardedKeyValueStore(tmp_path / "s", **how), Theirs(tmp_path / "s", **how)
    for store in (ours, theirs):
        assert store.read(KEYS[0], if_not_equal=b"\2").state == "missing"
    theirs.write(KEYS[0], b"a")
    for store in (ours, theirs):
        known = store.read(KEYS[0]).stamp.generation
        assert store.read(KEYS[0], if_not_equal=known).state == "unspecified"
        assert store.read(KEYS[3], if_not_equal=known).state == "unspecified"
    # a write of either store is a new state for the other
    known = ours.read(KEYS[0]).stamp.generation
    theirs.write(KEYS[1], b"b")
    assert ours.read(KEYS[0], if_not_equal=known).value == b"a"
    assert not ours.write(KEYS[0], b"x", if_equal=known).generation
    known = theirs.read(KEYS[0]).stamp.generation
    ours.write(KEYS[1], b"c")
    assert theirs.read(KEYS[0], if_not_equal=known).value == b"a"
    assert not theirs.write(KEYS[0], b"x", if_equal=known).generation


def test_transaction_equals_tensorstore(tmp_path: Path, how: dict[str, Any]) -> None:
    def run(store: Any, within: Callable[[Any], Any], commit: Callable[[], Any]) -> list[Any]:
        store.write(KEYS[3], b"old")
        t = within(store)
        t.write(KEYS[0], b"1")
        t.write(KEYS[3], b"new")
        t.delete_range((key(0), key(1)))
        t.write(KEYS[2], b"2")
        seen = [t.list(), [answer(t.read, k) for k in KEYS], store.list()]
        store.write(KEYS[5], b"meanwhile")
        commit()
        return [*seen, [answer(store.read, k) for k in KEYS], answer(lambda: t[KEYS[0]])[0]]

    mine, yours = Transaction(), ts.Transaction()
    ours = run(
        ShardedKeyValueStore(tmp_path / "a", **how),
        lambda store: store.with_transaction(mine),
        mine.commit,
    )
    theirs = run(
        Theirs(tmp_path / "b", **how),
        lambda store: Theirs(tmp_path / "b", transaction=yours, **how),
        yours.commit_sync,
    )
    assert ours == theirs


def test_repeatable_reads_and_atomicity_equal_tensorstore(tmp_path: Path, how: dict[str, Any]) -> None:
    for make, error, store, other in (
        (Transaction, ConflictError, ShardedKeyValueStore(tmp_path / "a", **how), tmp_path / "c"),
        (ts.Transaction, ValueError, Theirs(tmp_path / "b", **how), tmp_path / "d"),
    ):
        store.write(KEYS[0], b"1")
        is_ours = make is Transaction

        def within(transaction: Any, path: Any = None, store: Any = store, is_ours: bool = is_ours) -> Any:
            if is_ours:
                return (store if path is None else ShardedKeyValueStore(path, **how)).with_transaction(
                    transaction
                )
            return Theirs(path or tmp_path / "b", transaction=transaction, **how)

        t = make(repeatable_read=True)
        bound = within(t)  # two handles of TensorStore are independent
        assert bound[KEYS[0]] == b"1"
        bound.write(KEYS[1], b"t")
        store.write(KEYS[5], b"meanwhile")
        with pytest.raises(error, match="Generation mismatch"):
            (t.commit if is_ours else t.commit_sync)()
        assert store.list() == [KEYS[0], KEYS[5]]
        t = make(atomic=True)
        within(t).write(KEYS[1], b"t")
        with pytest.raises(ValueError, match="as single atomic transaction"):
            within(t, other).write(KEYS[1], b"t")
        assert t.aborted and not other.exists()


def test_nested_store_equals_tensorstore(tmp_path: Path, how: dict[str, Any]) -> None:
    outer = ShardedKeyValueStore(tmp_path / "s", **how)
    ours = ShardedKeyValueStore((outer, KEYS[4]), **how)
    spec = {
        "driver": "zarr3_sharding_indexed",
        "base": {"driver": "file", "path": str(tmp_path / "s")},
        **how,
    }
    theirs = Theirs({**spec, "path": KEYS[4].decode()}, **how)
    ours[KEYS[1]] = b"ours"
    theirs.write(KEYS[2], b"theirs")
    assert_same(ours, theirs)
    assert ours.to_json()["base"] == {**theirs.kv.spec().to_json()["base"]}
    ours.delete_range(KeyRange())
    assert theirs.list() == [] and not (tmp_path / "s").exists()


def test_json_equals_tensorstore(tmp_path: Path, how: dict[str, Any]) -> None:
    theirs = Theirs(tmp_path / "s", path="\0\0\0\1", **how)
    ours = ShardedKeyValueStore.from_json(theirs.kv.spec().to_json())
    assert ours.to_json() == theirs.kv.spec().to_json()
    again = ts.KvStore.open(ours.to_json()).result()
    ours[key(2)] = b"v"
    assert again[key(2)] == b"v"


@pytest.mark.parametrize(
    "change",
    [
        {"grid_shape": [0, 2]},
        {"grid_shape": [1 << 20, 2048]},
        {"grid_shape": [1] * 32},
        {"grid_shape": "x"},
        {"index_codecs": []},
        {"index_codecs": [CRC]},
        {"index_codecs": [LITTLE, {"name": "gzip", "configuration": {"level": 1}}]},
        {"index_location": "middle"},
        {"foo": 1},
        {"base": 5},
        {"path": 5},
        {"driver": "nothing"},
        {"cache_pool": "cache_pool#x"},
        {"cache_pool": "pool"},
        {"cache_pool": None},
        {"cache_pool": {"total_bytes_limit": 5, "foo": 1}},
        {"data_copy_concurrency": "data_copy_concurrency#x"},
        {"context": 5},
        {"context": {"cache_pool": 5}},
        {"base": {"driver": "file", "path": "x", "foo": 1}},
    ],
)
def test_invalid_spec_is_refused_by_both(tmp_path: Path, how: dict[str, Any], change: dict[str, Any]) -> None:
    spec = {"driver": "zarr3_sharding_indexed", "base": f"file://{tmp_path}/s", **how, **change}
    with pytest.raises(ValueError):  # TensorStore raises no other type
        ts.KvStore.open(spec).result()
    with pytest.raises(ValueError):
        ShardedKeyValueStore.from_json(spec)


@given(st.binary(max_size=140))
def test_damage_is_an_error_for_both(tmp_path_factory: pytest.TempPathFactory, blob: bytes) -> None:
    """Both stores read the same values, and damage is an error for both."""
    path = tmp_path_factory.getbasetemp() / "hostile"
    path.write_bytes(blob)
    how = {"grid_shape": [2, 1], "index_codecs": [LITTLE], "index_location": "end"}
    ours, theirs = ShardedKeyValueStore(path, **how), Theirs(path, **how)
    for k in (key(0, 0), key(1, 0)):
        found = []
        for store in (ours, theirs):
            try:
                found.append(answer(store.read, k))
            except (ShardError, ValueError):
                found.append("error")
        found = ["error" if f == "error" or f[0] == "ValueError" else f for f in found]
        # shardcodec refuses more: an inner chunk that overlaps the index
        assert found[0] == found[1] or found[0] == "error", (k, found)


def test_documented_differences(tmp_path: Path, how: dict[str, Any]) -> None:
    """Intended differences from TensorStore, as documented in docs/key-value.md."""
    ours, theirs = ShardedKeyValueStore(tmp_path / "a", **how), Theirs(tmp_path / "b", **how)
    for store in (ours, theirs):
        store.write(KEYS[0], b"a")
    del theirs.kv[KEYS[1]]
    with pytest.raises(KeyError):
        del ours[KEYS[1]]
    assert theirs.write(KEYS[0], b"b", if_equal=b"").generation
    with pytest.raises(ValueError, match="if_equal: expected a generation, got FAILED"):
        ours.write(KEYS[0], b"b", if_equal=b"")
    beyond = KEYS[0][:4] + b"\0\0\0\x09\x01"  # longer than a key, and after the last key of its row
    for store in (ours, theirs):
        store.write(KEYS[-1][:4] + KEYS[0][4:], b"first of the last row")
    assert ours.list((beyond, b"")) == [KEYS[-1][:4] + KEYS[0][4:]]
    assert theirs.kv.list(ts.KvStore.KeyRange(beyond, b"")).result() == []
