# test_conditional.py - updates of objects that other clients update at the same time, without locks
# SPDX-License-Identifier: MIT
"""An object store refuses a conditional put if the object has changed since it was read; the update starts again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import bits, checked, create, letters, letters_spec, random_array, zarrs_view
from workers import in_threads
from zarr.storage import ObjectStore

import shardcodec
from shardcodec.access.array_request import Request
from shardcodec.access.array_write import write_request
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.read import ObjectSelection
from shardcodec.access.regions import Box
from shardcodec.compat import default_spec
from shardcodec.options import Options
from shardcodec.storage import conditions, object_store, process_locks
from shardcodec.storage.store import Answer, ObjectChanged

# ---- a store with a callback between reading and writing

CHAIN = compiled(letters_spec().chain)


class Store(object_store.ObjectStore):
    """A store in memory: each change of an object increments its version."""

    def __init__(self, **objects: bytes) -> None:
        store = type("MemoryStore", (), {})()  # its conditions need no probe
        self._base = SimpleNamespace(store=store, supports_deletes=True, read_only=False)
        self._inner, self._is_conditional = None, True
        self.objects = {key: (0, blob) for key, blob in objects.items()}
        self.tries: list[str] = []
        self.meanwhile: Any = lambda key: None  # called between reading and writing

    def lock_names(self, keys: Sequence[str]) -> list[str]:
        return [f"{id(self)}/{key}" for key in keys]

    index_names = lock_names

    async def _get(self, key: str, options: Any, *, owns: bool = False) -> Answer | None:
        await asyncio.sleep(0)
        if key not in self.objects:
            return None
        number, blob = self.objects[key]
        return Answer(np.frombuffer(blob, "u1"), len(blob), number)

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        raise AssertionError("an update reads whole objects")

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        raise AssertionError("an update reads whole objects")

    async def put(self, key: str, data: Any, expected: Answer | None) -> None:
        await asyncio.sleep(0)
        self.tries.append(key)
        self.meanwhile(key)
        now = self.objects.get(key)
        if (None if now is None else now[0]) != (None if expected is None else expected.state):
            raise ObjectChanged(key)
        self.replace(key, bytes(data))

    def replace(self, key: str, blob: bytes) -> None:
        number, _ = self.objects.get(key, (0, b""))
        self.objects[key] = (number + 1, blob)

    def words(self, key: str) -> str:
        array = shardcodec.decode(self.objects[key][1], letters_spec())
        return " ".join(array[r : r + 2, c : c + 2].tobytes().decode() for r in (0, 2) for c in (0, 2))


def put_word(
    store: Store, word: str, *keys: str, at: tuple[int, int] = (0, 0), timeout: float = 60.0
) -> None:
    value = np.frombuffer(word.encode(), "u1").reshape(2, 2)
    parts = [ObjectSelection(key, CHAIN, Box(at, (2, 2), None, (0, 0))) for key in keys]
    request = Request(store, parts, range(len(parts)), (0, 1), value, default_spec())
    asyncio.run(write_request(request, Options(threads=1, lock_timeout=timeout)))


def test_update_without_conflict_puts_each_object_once() -> None:
    store = Store(a=letters(), b=letters())
    put_word(store, "ZERO", "a", "b", "new")
    assert store.words("a") == store.words("b") == "ZERO one. two. tres"
    assert store.words("new") == "ZERO .... .... ...."
    assert sorted(store.tries) == ["a", "b", "new"]


def test_update_restarts_if_another_client_was_faster() -> None:
    store = Store(a=letters(), b=letters())
    changed = [letters().replace(b"one.", b"ONE."), letters().replace(b"one.", b"Uno.")]

    def exchange(key: str) -> None:
        if key == "a" and changed:
            store.replace("a", changed.pop())

    store.meanwhile = exchange
    put_word(store, "ZERO", "a", "b")
    assert store.words("a") == "ZERO ONE. two. tres"
    assert store.words("b") == "ZERO one. two. tres"
    assert sorted(store.tries) == ["a", "a", "a", "b"]  # only the changed object is written again


def test_object_that_appears_during_an_update_is_merged() -> None:
    store = Store()
    store.meanwhile = lambda key: store.objects.setdefault(key, (7, letters()))
    put_word(store, "ZERO", "a")
    assert store.words("a") == "ZERO one. two. tres"


def test_object_that_is_deleted_during_an_update_is_created_again() -> None:
    store = Store(a=letters())
    store.meanwhile = lambda key: store.objects.clear() if len(store.tries) == 1 else None
    put_word(store, "ZERO", "a")
    assert store.words("a") == "ZERO .... .... ...."


def test_update_gives_up_after_the_timeout_and_names_the_shard() -> None:
    store = Store(a=letters(), b=letters())
    store.meanwhile = lambda key: store.replace(key, letters()) if key == "b" else None
    with pytest.raises(
        shardcodec.LockError,
        match=r"shard 'b': expected to update it within 0\.05 s, but other writers changed it",
    ) as raised:
        put_word(store, "ZERO", "a", "b", timeout=0.05)
    assert raised.value.shard == "b"
    assert raised.value.n_tries == store.tries.count("b") > 1  # type: ignore[attr-defined]
    assert store.words("b") == "zero one. two. tres"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of deadlines, which stands still unless a test sets `now`."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("shardcodec.storage.store.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_each_group_has_its_own_deadline(clock: SimpleNamespace) -> None:
    """A write of many objects takes longer than `lock_timeout`; losing one race at its end is no error."""
    names = [f"o{i}" for i in range(4)]
    store = Store(**dict.fromkeys(names, letters()))
    lost: set[str] = set()

    def be_slow_and_lose_once(key: str) -> None:
        clock.now += 10
        if key not in lost:
            lost.add(key)
            store.replace(key, letters())

    store.meanwhile = be_slow_and_lose_once
    with mock.patch("shardcodec.storage.store.GROUP_NBYTES", 1):  # as large objects are
        put_word(store, "ZERO", *names, timeout=25)
    assert all(store.words(name) == "ZERO one. two. tres" for name in names)


def test_wait_for_a_lock_of_this_process_does_not_count(clock: SimpleNamespace) -> None:
    store = Store(a=letters())
    store.meanwhile = lambda key: store.replace(key, letters()) if len(store.tries) == 1 else None
    (name,) = store.lock_names(["a"])
    writer = threading.Thread(target=put_word, args=(store, "ZERO", "a"))
    with process_locks.table().hold([name]):
        writer.start()
        while writer.is_alive() and not process_locks.table().n_waiting(name):
            time.sleep(0.01)
        clock.now += 1000
    writer.join(60)
    assert store.words("a") == "ZERO one. two. tres"


def test_erasing_an_absent_chunk_stores_nothing() -> None:
    store = Store()
    put_word(store, "....", "a")
    assert store.tries == [] and store.objects == {}


def test_erasing_the_last_chunk_leaves_an_empty_shard() -> None:
    """Object stores have no conditional delete: a delete could remove an inner chunk of another client."""
    store = Store()
    put_word(store, "ZERO", "a")
    put_word(store, "....", "a")
    assert store.words("a") == ".... .... .... ...."
    assert len(store.objects["a"][1]) == 68
    put_word(store, "tres", "a", at=(2, 2))
    assert store.words("a") == ".... .... .... tres"


def test_damage_stops_an_update() -> None:
    store = Store(a=letters()[:-1], b=letters())
    with pytest.raises(shardcodec.ChecksumError) as raised:
        put_word(store, "ZERO", "a")
    assert raised.value.shard == "a" and store.tries == []


# ---- through zarr, with obstore

obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")


@pytest.fixture
def no_locks() -> Iterator[None]:
    """Switch off the locks of this process, as if each writer ran in its own process."""
    with mock.patch.object(process_locks.LockTable, "hold_async", return_value=contextlib.nullcontext()):
        yield


@pytest.mark.usefixtures("no_locks")
def test_many_writers_lose_no_update() -> None:
    shared = obstore.MemoryStore()
    checked(ObjectStore(shared), shape=(16, 24), chunks=(16, 24))  # one shard of 4 x 8 inner chunks
    values = random_array((16, 24), "int32")

    def write(worker: int) -> None:
        array = shardcodec.attach(zarr.open_array(ObjectStore(shared), mode="r+"), strict=True)
        for row in range(4):
            box = np.s_[4 * row : 4 * row + 4, 3 * worker : 3 * worker + 3]
            array[box] = values[box]

    in_threads(8, write)
    array = zarr.open_array(ObjectStore(shared), mode="r")
    assert bits(array[...]) == bits(values)


@pytest.mark.usefixtures("no_locks")
def test_write_by_zarr_between_read_and_put_is_kept() -> None:
    shared = obstore.MemoryStore()
    array = checked(ObjectStore(shared))
    array[...] = 1
    other = zarrs_view(array)
    put = object_store.ObjectStore.put
    n_tries = 0

    async def put_second(self: Any, key: str, data: Any, expected: Any) -> None:
        nonlocal n_tries
        n_tries += 1
        if n_tries == 1:
            await other.async_array.setitem(np.s_[:4, :3], 2)
        await put(self, key, data, expected)

    with mock.patch.object(object_store.ObjectStore, "put", put_second):
        array[4:8, 3:6] = 3
    assert n_tries == 2
    assert (array[:4, :3] == 2).all() and (array[4:8, 3:6] == 3).all() and array[0, 5] == 1


def test_only_updates_are_conditional() -> None:
    array = checked(ObjectStore(obstore.MemoryStore()))
    with mock.patch.object(object_store.ObjectStore, "put", side_effect=AssertionError):
        array[...] = 1
        array[:8] = 2
    array[4:12] = 3
    array[:, :12] = 4  # two whole shards
    array[6:12, :13] = 5
    expected = np.full((16, 24), 2, "int32")
    expected[8:], expected[4:12], expected[:, :12], expected[6:12, :13] = 1, 3, 4, 5
    assert bits(array[...]) == bits(expected) == bits(zarrs_view(array)[...])


def test_unsharded_chunks_are_updated_and_deleted() -> None:
    shared = obstore.MemoryStore()
    array = create(ObjectStore(shared), shards=None, chunks=(8, 12))
    array[2:14, 3:20] = 7
    array[2:14, 3:20] = -1
    assert (zarrs_view(array)[...] == -1).all()
    array[:8, :12] = -1  # a whole chunk of fill value: the object is deleted
    assert {meta["path"] for meta in shared.list().collect()} == {"c/0/1", "c/1/0", "c/1/1", "zarr.json"}


def test_store_without_conditions_warns_and_the_last_writer_wins(tmp_path: Any) -> None:
    """S3 behaves like this with ``conditional_put="disabled"``."""
    with (
        mock.patch.object(object_store, "CONDITIONAL", ("LocalStore",)),
        mock.patch.multiple(conditions, _checked=set(), _told=set()),
    ):
        array = checked(ObjectStore(obstore.LocalStore(str(tmp_path))))
        with pytest.warns(RuntimeWarning, match="know no conditions"):
            array[3:12, 5:20] = 1
        array[3:12, 5:20] = 2
    expected = np.full((16, 24), -1, "int32")
    expected[3:12, 5:20] = 2
    assert bits(zarrs_view(array)[...]) == bits(expected)


def test_weak_entity_tags_are_not_used_as_conditions() -> None:
    state_of = object_store.state_of
    assert state_of({"e_tag": 'W/"5"', "version": None}) is None
    assert state_of({"e_tag": None, "version": None}) is None
    assert state_of({"e_tag": '"5"', "version": None}) == {"e_tag": '"5"'}
    assert state_of({"e_tag": '"5"', "version": "2"}) == {"e_tag": '"5"', "version": "2"}


def test_event_loops_that_probe_one_store_at_a_time(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `asyncio.Lock` works on one event loop only, but an array is used on several."""
    obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
    store = object_store.ObjectStore(zarr.storage.ObjectStore(obstore.LocalStore(tmp_path)))
    places: list[str] = []

    async def probe(_store: Any, key: str) -> None:
        places.append(key)
        await asyncio.sleep(0.1)

    monkeypatch.setattr(conditions, "_reason_against", probe)
    monkeypatch.setattr(conditions, "_checked", set())

    async def put_all(names: Sequence[str]) -> None:
        await asyncio.wait_for(asyncio.gather(*(store.put(name, b"", None) for name in names)), 30)

    work = [lambda part=part: asyncio.run(put_all([f"{part}{i}" for i in range(3)])) for part in "ab"]
    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(one) for one in work]:
            each.result()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert len(places) <= 2  # one for each event loop
