# test_conditional.py - updates of objects that others update at the same time, without locks
# SPDX-License-Identifier: MIT
"""Object stores refuse to exchange an object that is not as it was read; then the update begins anew."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import bits, checked, create, letters, letters_spec, random_array, zarrs_view

import shardcodec
from shardcodec.access.chunk_codec import compiled
from shardcodec.access.conditional_write import update
from shardcodec.access.regions import Box
from shardcodec.access.write import WriteItem
from shardcodec.options import Options
from shardcodec.storage.requests import Answer, Changed
from shardcodec.zarr_plugin import conditions, remotes, write_request

# ---- a store that does what a test tells it

CHAIN = compiled(letters_spec().chain)


class Store:
    """Objects that have a number with each change."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = {key: (0, blob) for key, blob in objects.items()}
        self.tries: list[str] = []
        self.meanwhile: Any = lambda key: None  # between reading and writing

    async def get(self, key: str) -> Answer | None:
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
        if (None if now is None else now[0]) != (None if expected is None else expected.version):
            raise Changed(key)
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
    items = [WriteItem(CHAIN, None, None, Box(at, (2, 2), None, (0, 0)), key) for key in keys]
    asyncio.run(update(items, value, (0, 1), Options(threads=1, lock_timeout=timeout), store, 4))


def test_an_update_of_what_nobody_else_changes() -> None:
    store = Store(a=letters(), b=letters())
    put_word(store, "ZERO", "a", "b", "new")
    assert store.words("a") == store.words("b") == "ZERO one. two. tres"
    assert store.words("new") == "ZERO .... .... ...."
    assert sorted(store.tries) == ["a", "b", "new"]


def test_an_update_begins_anew_when_somebody_was_faster() -> None:
    store = Store(a=letters(), b=letters())
    changed = [letters().replace(b"one.", b"ONE."), letters().replace(b"one.", b"Uno.")]

    def exchange(key: str) -> None:
        if key == "a" and changed:
            store.replace("a", changed.pop())

    store.meanwhile = exchange
    put_word(store, "ZERO", "a", "b")
    assert store.words("a") == "ZERO ONE. two. tres"
    assert store.words("b") == "ZERO one. two. tres"
    assert sorted(store.tries) == ["a", "a", "a", "b"]  # only what was changed is done again


def test_an_object_that_appears_meanwhile() -> None:
    store = Store()
    store.meanwhile = lambda key: store.objects.setdefault(key, (7, letters()))
    put_word(store, "ZERO", "a")
    assert store.words("a") == "ZERO one. two. tres"


def test_an_object_that_is_deleted_meanwhile() -> None:
    store = Store(a=letters())
    store.meanwhile = lambda key: store.objects.clear() if len(store.tries) == 1 else None
    put_word(store, "ZERO", "a")
    assert store.words("a") == "ZERO .... .... ...."


def test_an_update_gives_up_at_last_and_says_where() -> None:
    store = Store(a=letters(), b=letters())
    store.meanwhile = lambda key: store.replace(key, letters()) if key == "b" else None
    with pytest.raises(shardcodec.LockError, match="shard 'b': others changed it") as raised:
        put_word(store, "ZERO", "a", "b", timeout=0.05)
    assert raised.value.shard == "b"
    assert raised.value.n_tries == store.tries.count("b") > 1  # type: ignore[attr-defined]
    assert store.words("b") == "zero one. two. tres"


def test_erasing_what_is_not_there_stores_nothing() -> None:
    store = Store()
    put_word(store, "....", "a")
    assert store.tries == [] and store.objects == {}


def test_the_last_inner_chunk_leaves_an_empty_shard() -> None:
    """There is no deleting under a condition: somebody else's inner chunk could go with it."""
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


# ---- through zarr, with an obstore

obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")


@pytest.fixture
def no_locks() -> Iterator[None]:
    """As in two processes: the writers of one know nothing of the other's locks."""
    with mock.patch.object(write_request, "lock_keys_async", return_value=[]):
        yield


@pytest.mark.usefixtures("no_locks")
def test_of_many_writers_none_loses_anything() -> None:
    from zarr.storage import ObjectStore

    shared = obstore.MemoryStore()
    checked(ObjectStore(shared), shape=(16, 24), chunks=(16, 24))  # one shard of 4 x 8 inner chunks
    values = random_array((16, 24), "int32")
    failures: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            array = shardcodec.attach(zarr.open_array(ObjectStore(shared), mode="r+"), strict=True)
            for row in range(4):
                box = np.s_[4 * row : 4 * row + 4, 3 * worker : 3 * worker + 3]
                array[box] = values[box]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    array = zarr.open_array(ObjectStore(shared), mode="r")
    assert bits(array[...]) == bits(values)


@pytest.mark.usefixtures("no_locks")
def test_a_foreign_writer_between_reading_and_writing() -> None:
    from zarr.storage import ObjectStore

    shared = obstore.MemoryStore()
    array = checked(ObjectStore(shared))
    array[...] = 1
    other = zarrs_view(array)
    put = remotes.ObstoreRemote.put
    n_tries = 0

    async def put_second(self: Any, key: str, data: Any, expected: Any) -> None:
        nonlocal n_tries
        n_tries += 1
        if n_tries == 1:
            await other.async_array.setitem(np.s_[:4, :3], 2)
        await put(self, key, data, expected)

    with mock.patch.object(remotes.ObstoreRemote, "put", put_second):
        array[4:8, 3:6] = 3
    assert n_tries == 2
    assert (array[:4, :3] == 2).all() and (array[4:8, 3:6] == 3).all() and array[0, 5] == 1


def test_only_updates_have_a_condition() -> None:
    from zarr.storage import ObjectStore

    array = checked(ObjectStore(obstore.MemoryStore()))
    with mock.patch.object(remotes.ObstoreRemote, "put", side_effect=AssertionError):
        array[...] = 1
        array[:8] = 2
    array[4:12] = 3
    array[:, :12] = 4  # two whole shards
    array[6:12, :13] = 5
    expected = np.full((16, 24), 2, "int32")
    expected[8:], expected[4:12], expected[:, :12], expected[6:12, :13] = 1, 3, 4, 5
    assert bits(array[...]) == bits(expected) == bits(zarrs_view(array)[...])


def test_unsharded_chunks() -> None:
    from zarr.storage import ObjectStore

    shared = obstore.MemoryStore()
    array = create(ObjectStore(shared), shards=None, chunks=(8, 12))
    array[2:14, 3:20] = 7
    array[2:14, 3:20] = -1
    assert (zarrs_view(array)[...] == -1).all()
    array[:8, :12] = -1  # a whole chunk: that is deleted
    assert {meta["path"] for meta in shared.list().collect()} == {"c/0/1", "c/1/0", "c/1/1", "zarr.json"}


def test_a_store_that_turns_out_to_know_no_conditions(tmp_path: Any) -> None:
    """As S3 with ``conditional_put="disabled"``: the last writer wins, and a warning says so."""
    from zarr.storage import ObjectStore

    with (
        mock.patch.object(remotes, "CONDITIONAL", ("LocalStore",)),
        mock.patch.multiple(conditions, _checked=set(), _told=set()),
    ):
        array = checked(ObjectStore(obstore.LocalStore(str(tmp_path))))
        with pytest.warns(RuntimeWarning, match="know no conditions"):
            array[3:12, 5:20] = 1
        array[3:12, 5:20] = 2
    expected = np.full((16, 24), -1, "int32")
    expected[3:12, 5:20] = 2
    assert bits(zarrs_view(array)[...]) == bits(expected)


def test_a_read_only_store() -> None:
    from zarr.storage import ObjectStore

    store = ObjectStore(obstore.MemoryStore())
    array = checked(store)
    array[...] = 1
    array.store._read_only = True
    with pytest.raises(ValueError, match="read-only"):
        array[1, 1] = 2
    assert array[1, 1] == 1


def test_tags_that_name_no_exact_bytes_are_no_condition() -> None:
    version_of = remotes.version_of
    assert version_of({"e_tag": 'W/"5"', "version": None}) is None
    assert version_of({"e_tag": None, "version": None}) is None
    assert version_of({"e_tag": '"5"', "version": None}) == {"e_tag": '"5"'}
    assert version_of({"e_tag": '"5"', "version": "2"}) == {"e_tag": '"5"', "version": "2"}
