# test_store_names.py - reads and writes call only the read and write methods of a store
# SPDX-License-Identifier: MIT
"""The ``str``, ``repr``, ``==`` and ``hash`` of a store are foreign code, which may wait for a lock with the GIL
held.

`icechunk` does so: eight threads that wrote to one of its stores hung in two of ten runs.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    KINDS_OF_STORE,
    OtherMemoryStore,
    bits,
    checked,
    letters,
    letters_spec,
    run_python,
    store_of,
    text_of,
)
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec import native
from shardcodec.compat import StorePath, buffer_from, default_buffer_prototype, sync
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import object_names
from shardcodec.storage.kinds import store_of as kind_of
from shardcodec.storage.object_names import ByIdentity
from shardcodec.transformer import ShardingStorageTransformer


def forbid_special_methods(store: Any, patch: pytest.MonkeyPatch) -> None:
    """Make formatting, comparing and hashing raise from now on, for the store and for what an ObjectStore wraps."""
    things = [store, store.store] if isinstance(store, zarr.storage.ObjectStore) else [store]
    for thing, name in itertools.product(things, ("__str__", "__repr__", "__eq__", "__hash__")):

        def called(*_: Any, name: str = name) -> Any:
            raise AssertionError(f"{name} of a store was called")

        patch.setattr(type(thing), name, called)


@pytest.fixture(params=KINDS_OF_STORE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return store_of(request.param, tmp_path)


def test_array_calls_no_special_methods_of_its_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    array = checked(store)
    with monkeypatch.context() as patch:
        forbid_special_methods(store, patch)
        array[...] = 1  # whole shards
        array[2:10, 3:15] = 2  # parts of shards
        array.oindex[[0, 15], :] = 3
        found = array[...], array[3, 4], array.vindex[[0, 5], [0, 5]]
        with shardcodec.group_writes():
            array[4:6] = 4
            grouped = array[...]
        exist = shardcodec.chunk_state(array).exists
        array[:8, :12] = -1
    values = np.full((16, 24), 1, "int32")
    values[2:10, 3:15] = 2
    values[[0, 15], :] = 3
    assert bits(found[0]) == bits(values)
    values[4:6] = 4
    assert bits(grouped) == bits(values)
    assert exist.all()


def test_shard_calls_no_special_methods_of_its_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sync(StorePath(store, "s").set(buffer_from(default_buffer_prototype(), letters())))
    shard = shardcodec.open_shard(store, "s", letters_spec(), mode="r+")
    entries = ShardedKeyValueStore((store, "k"), grid_shape=(2, 2), index_codecs=[LITTLE, CRC])
    key = struct.pack(">2I", 0, 1)
    with monkeypatch.context() as patch:
        forbid_special_methods(store, patch)
        shard.write_chunks([(0, 1)], np.full((1, 2, 2), ord("x"), "u1"))
        with shardcodec.group_writes():
            shard.write_chunks([(1, 1)], np.full((1, 2, 2), ord("y"), "u1"))
        shard.erase([(1, 0)])
        text = text_of(shard.read_region())
        entries[key] = b"value"
        value, keys = entries[key], list(entries)
    assert text == "zero xxxx .... yyyy"
    assert value == b"value"
    assert len(keys) == 1


def test_transformer_calls_no_special_methods_of_its_base_store(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ShardingStorageTransformer(store, (2, 2))
    array = shardcodec.attach(
        zarr.create_array(shown, shape=(8, 8), chunks=(2, 2), dtype="u1", compressors=None)
    )
    with monkeypatch.context() as patch:
        forbid_special_methods(store, patch)
        forbid_special_methods(shown, patch)
        array[...] = 7
        array[3:5, 3:5] = 8
        with shardcodec.group_writes():
            array[0] = 9
        found = array[...]
    assert found.sum() == 7 * 64 + 4 * 1 + 8 * 2


def test_open_array_calls_no_special_methods_of_its_store(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = checked(store)
    array[...] = 3
    handle = shardcodec.open_array(store)
    with monkeypatch.context() as patch:
        forbid_special_methods(store, patch)
        assert (handle[2:5, 2:5] == 3).all()


def test_a_file_in_the_top_folder_has_the_name_that_a_link_resolves_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/shard")
    assert object_names.real_paths(["//shard", "/shard", str(tmp_path / "link")]) == ["/shard"] * 3


def test_folders_lead_where_the_links_of_the_system_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are resolved from the top, each once; the answers are those of `os.path.realpath`, also for what is missing."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    for name, target in (
        ("to b", "a/b"),
        ("a/up", ".."),
        ("a/b/top", str(tmp_path)),
        ("nowhere", "missing/x"),
        ("loop", "loop"),
        ("to link", "to b/top"),
    ):
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path / "a")
    names = (
        "a",
        "b",
        "c",
        "to b",
        "up",
        "top",
        "nowhere",
        "loop",
        "to link",
        "missing",
        "file",
        "..",
        ".",
        "",
    )
    roots = (str(tmp_path), "", "..", "/", "b")
    paths = [
        "/".join((root, *between, "0")) for root in roots for between in itertools.product(names, repeat=2)
    ]
    random.Random(0).shuffle(paths)
    for part in (paths, paths[:300], paths):  # the last two find memoised folders
        expected = [os.path.join(os.path.realpath(os.path.dirname(path)), "0") for path in part]
        assert object_names.in_real_folders(part) == expected
    (tmp_path / "to b").unlink()
    (tmp_path / "to b").symlink_to("a")  # a memoised result is not valid any more
    assert object_names.in_real_folders([f"{tmp_path}/to b/b/0"]) == [f"{os.path.realpath(tmp_path)}/a/b/0"]


def test_nothing_is_looked_for_in_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight new files in four new folders asked 44 times one after the other: 152 ms at 5 ms per call, where a rival needed 78."""
    looks: list[str] = []
    look = native.load().look_at_known

    class Engine:
        @staticmethod
        def look_at_known(path: str, **how: bool) -> Any:
            looks.append(path)
            return look(path, **how)

    monkeypatch.setattr(object_names.native, "load", Engine)
    array = f"{os.path.realpath(tmp_path)}/array"
    os.mkdir(array)
    paths = [f"{array}/c/{i}/{j}/{k}" for i in (0, 1) for j in (0, 1) for k in (0, 1)]
    for _ in range(2):  # the folder of the array is memoised, and is looked at again
        looks.clear()
        assert object_names.in_real_folders(paths) == paths
        assert [path for path in looks if path.startswith(array)] == [array, f"{array}/c"]
    assert len(looks) == 2
    assert object_names.known_folder(paths[0]) == array


def test_two_stores_with_one_name_share_a_lock(tmp_path: Path) -> None:
    class Named(OtherMemoryStore):
        def __str__(self) -> str:
            return "one place"

    one, other = Named(), Named()
    (key,) = kind_of(one).lock_names(["c/0"])
    assert kind_of(other).lock_names(["c/0"]) == [key]
    assert kind_of(OtherMemoryStore()).lock_names(["c/0"]) != [key]


def test_name_of_a_store_is_memoised_and_freed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(OtherMemoryStore):
        n = 0

        def __str__(self) -> str:
            type(self).n += 1
            return "a store"

    names = ByIdentity(object_names._name_of)
    monkeypatch.setattr(object_names, "_names", names)
    store = Counting()
    array = checked(store)
    n = Counting.n  # zarr itself formats a store when it opens an array
    for _ in range(3):
        array[0] = 1
    assert Counting.n == n
    handle = shardcodec.attach(array, threads=1)
    handle[0] = 2
    assert Counting.n == n
    assert len(names) == 1
    del array, handle, store
    gc.collect()
    assert len(names) == 0


def test_store_that_cannot_be_formatted_has_its_own_lock() -> None:
    """zarr 3.4 itself refuses to open an array in such a store."""

    class Mute(OtherMemoryStore):
        def __str__(self) -> str:
            raise OSError("no name")

        __repr__ = __str__

    one, other = Mute(), Mute()
    shard = shardcodec.open_shard(one, "c", letters_spec(), mode="r+")
    shard.write_chunks([(0, 0)], np.full((1, 2, 2), ord("x"), "u1"))
    assert text_of(shard.read_region()).startswith("xxxx")
    assert kind_of(one).lock_names(["c"]) == kind_of(one).lock_names(["c"])
    assert kind_of(one).lock_names(["c"]) != kind_of(other).lock_names(["c"])


class Slots:
    """An object without weak references."""

    __slots__ = ()


def test_facts_of_objects_without_weak_references_are_bounded() -> None:
    facts = ByIdentity(id)
    things = [Slots() for _ in range(3 * object_names.MAX_KEPT)]
    for thing in things:
        assert facts.of(thing) == facts.of(thing) == id(thing)
    assert len(facts) == object_names.MAX_KEPT
    assert facts.of(things[0]) == id(things[0])


def test_concurrent_threads_get_the_same_fact() -> None:
    barrier = threading.Barrier(8, timeout=30)

    def make(_: Any) -> object:
        barrier.wait()  # all eight threads find no fact yet
        return object()

    facts, thing, found = ByIdentity(make), OtherMemoryStore(), []
    threads = [threading.Thread(target=lambda: found.append(facts.of(thing))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(fact) for fact in found}) == 1


@pytest.mark.slow
def test_threads_writing_to_one_icechunk_store_do_not_deadlock() -> None:
    pytest.importorskip("icechunk", reason="icechunk is not installed")
    result = run_python(
        """
        import faulthandler, threading
        import icechunk, numpy as np, zarr, shardcodec
        faulthandler.dump_traceback_later(60, exit=True)
        store = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main").store
        shardcodec.enable()
        arrays = [
            zarr.create_array(
                store, name=f"a{i}", shape=(64, 64), shards=(32, 32), chunks=(8, 8), dtype="i4", fill_value=-1
            )
            for i in range(8)
        ]

        def work(i):
            for n in range(40):
                row = n % 64
                arrays[i][row] = n
                assert (arrays[i][row] == n).all()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("done")
        """
    )
    assert result.stdout == "done\n", result.stderr


def test_list_that_is_collected_in_the_thread_of_the_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector of garbage closed the rest of a list in the thread of zarr's loop, which cannot wait for itself: `SyncError`."""
    ended = threading.Event()

    class Listing(zarr.storage.MemoryStore):
        async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
            try:
                for n in range(10_000):
                    yield f"{prefix}{n}"
            finally:
                ended.set()

    async def drop(keys: list[Iterator[str]]) -> None:
        keys.clear()

    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    keys = [object_names.zarr_keys(Listing(), "a/")]
    assert next(keys[0]) == "a/0"
    sync(drop(keys))
    assert ended.wait(10)
    assert errors == []
