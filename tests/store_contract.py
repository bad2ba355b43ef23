# store_contract.py - what every kind of store must do
# SPDX-License-Identifier: MIT
"""`StoreContract`: the same tests of arrays, entries, chunks and damage on each kind of store in `KINDS`.

`storage/test_store_contract.py` runs it. A new kind of store is one line of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import (
    OtherMemoryStore,
    RecordingStore,
    bits,
    checked,
    create,
    gap_of,
    memory_object_store,
    quiet,
    random_array,
    zarrs_view,
)
from kv_stores import key, open_kv
from zarr.codecs import ZstdCodec
from zarr.core.sync import sync
from zarr.storage import LocalStore, LoggingStore, MemoryStore, WrapperStore, ZipStore

import shardcodec
from shardcodec.compat import default_buffer_prototype
from shardcodec.errors import ChecksumError, ConflictError, ShardFormatError, UnsupportedError
from shardcodec.kv import FAILED, NO_VALUE, UNNAMED, KeyRange
from shardcodec.transformer import ChunkMapping, ShardingStorageTransformer

__all__ = ["KINDS", "Kind", "StoreContract"]

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])


# ---------------------------------------------------------------- the kinds


class Kind(NamedTuple):
    """A kind of store.

    make: returns a new store, given a folder; it may be a generator that closes the store. names_states: answers name the state
    of an object. takes_any_key: an object needs no array around it.
    """

    make: Callable[[Path], Any]
    names_states: bool = False
    takes_any_key: bool = True


class OtherLocalStore(LocalStore):
    """A subclass may override any method, so it counts as another kind of store."""


def _zip(folder: Path) -> Iterator[Any]:
    with ZipStore(folder / "a.zip", mode="w") as zipped:
        yield zipped


def _fsspec(folder: Path) -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fs = fsspec.filesystem("memory", asynchronous=False, skip_instance_cache=True)
    from zarr.storage import FsspecStore

    with quiet():
        yield FsspecStore.from_url(f"memory://{folder.name}")
    if fs.exists(f"/{folder.name}"):
        fs.rm(f"/{folder.name}", recursive=True)


def _fsspec_file(folder: Path) -> Iterator[Any]:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from zarr.storage import FsspecStore

    with quiet():
        yield FsspecStore.from_url(f"file://{folder}", storage_options={"auto_mkdir": True})


def _obstore_file(folder: Path) -> Any:
    obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
    from zarr.storage import ObjectStore

    return ObjectStore(obstore.LocalStore(str(folder)))


def _icechunk(folder: Path) -> Any:
    icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    return repository.writable_session("main").store


KINDS = {
    "memory": Kind(lambda _: MemoryStore(), names_states=True),
    "memory subclass": Kind(lambda _: OtherMemoryStore()),
    "local": Kind(LocalStore, names_states=True),
    "local subclass": Kind(OtherLocalStore),
    "wrapper": Kind(lambda _: WrapperStore(MemoryStore())),
    "recording": Kind(lambda _: RecordingStore(MemoryStore())),
    "logging": Kind(lambda _: LoggingStore(MemoryStore(), log_level="CRITICAL")),
    "zip": Kind(contextmanager(_zip)),
    "fsspec": Kind(contextmanager(_fsspec)),
    "fsspec file": Kind(contextmanager(_fsspec_file)),
    "obstore": Kind(lambda _: memory_object_store(), names_states=True),
    "obstore file": Kind(_obstore_file, names_states=True),
    "icechunk": Kind(_icechunk, takes_any_key=False),
}


def _object(store: Any, name: str) -> bytes:
    return sync(store.get(name, default_buffer_prototype())).to_bytes()  # type: ignore[no-any-return]


def _set_object(store: Any, name: str, data: bytes) -> None:
    sync(store.set(name, default_buffer_prototype().buffer.from_bytes(data)))


# ---------------------------------------------------------------- the contract


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zip files keep the old members
class StoreContract:
    """The tests; each runs on every kind of store."""

    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> Kind:
        return KINDS[request.param]

    @pytest.fixture
    def store(self, kind: Kind, tmp_path: Path) -> Iterator[Any]:
        made = kind.make(tmp_path)
        if hasattr(made, "__enter__") and not hasattr(made, "get"):
            with made as store:
                yield store
        else:
            yield made

    @pytest.fixture
    def free(self, store: Any, kind: Kind) -> Any:
        """A store in which an object needs no array."""
        if not kind.takes_any_key:
            pytest.skip("this store takes only the keys of arrays")
        return store

    # ---- arrays

    @LOCATIONS
    def test_reads_and_writes_equal_numpy(self, store: Any, at_start: bool) -> None:
        array = checked(store, at_start=at_start)
        values = np.full((16, 24), -1, "int32")
        assert bits(array[...]) == bits(values)
        for number, selection in enumerate(
            (np.s_[...], np.s_[3:12, 5:20], np.s_[0, 0], np.s_[::3, 7], np.s_[:8, :12])
        ):
            part = random_array(values[selection].shape, "int32", seed=number)
            array[selection] = part if part.ndim else int(part)
            values[selection] = part
            for wanted in (np.s_[...], np.s_[2:14, 3:20], np.s_[9, 23], np.s_[::5, ::7]):
                assert bits(array[wanted]) == bits(values[wanted])
        assert bits(zarrs_view(array)[...]) == bits(values)

    @LOCATIONS
    def test_emptied_shard_is_deleted(self, store: Any, at_start: bool) -> None:
        array = checked(store, at_start=at_start)
        array[...] = 5
        if not store.supports_deletes:  # as without shardcodec
            with pytest.raises(NotImplementedError):
                array[:8, :12] = -1
            return
        array[:8, :12] = -1
        array[8:, 12:] = 5
        assert (zarrs_view(array)[:8, :12] == -1).all()
        assert array.nchunks_initialized in (3, 24)  # zarr counts shards or their inner chunks

    @LOCATIONS
    def test_index_arrays_equal_numpy(self, store: Any, at_start: bool) -> None:
        array = checked(store, at_start=at_start)
        values = random_array((16, 24), "int32")
        array[...] = values
        rows, columns = np.array([9, 1, 1, 14]), np.array([23, 0, 5])
        points = (np.array([9, 1, 1, 14]), np.array([23, 0, 5, 0]))
        mask = np.arange(384).reshape(16, 24) % 11 == 0
        for gap in (0, 1000):
            with gap_of(gap):
                assert bits(array.oindex[rows, columns]) == bits(values[np.ix_(rows, columns)])
                assert bits(array.oindex[rows, 3]) == bits(values[rows, 3])
                assert bits(array.vindex[points]) == bits(values[points])
                assert bits(array.vindex[mask]) == bits(values[mask])
        array.oindex[rows, columns] = values[np.ix_(rows, columns)] = 8
        array.vindex[points] = values[points] = np.array([1, 2, 3, 4])
        array.vindex[mask] = values[mask] = 0
        assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])

    def test_arrays_without_shards_equal_numpy(self, store: Any) -> None:
        array = create(store, shards=None, chunks=(5, 7), compressors=[ZstdCodec(level=1)])
        values = random_array((16, 24), "int32")
        array[...] = values
        if not isinstance(store, ZipStore):
            array[3:9, 4] = values[3:9, 4] = 2
        assert bits(array[2:14, 3:20]) == bits(values[2:14, 3:20])
        assert bits(zarrs_view(array)[...]) == bits(values)

    def test_arrays_of_one_store_are_independent(self, store: Any) -> None:
        a, b = create(store, name="a"), create(store, name="deeper/b")
        a[...], b[...] = 1, 2
        assert (a[...] == 1).all() and (b[...] == 2).all()

    def test_partial_writes_of_a_block_are_stored_together(self, store: Any) -> None:
        array = checked(store)
        values = np.full((16, 24), -1, "int32")
        with shardcodec.group_writes():
            for number in range(6):
                part = np.s_[number * 2 : number * 2 + 2, 1:23]
                array[part] = values[part] = number
            assert bits(array[1:9, 5:9]) == bits(values[1:9, 5:9])
        assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])

    # ---- one shard

    def test_handle_and_writer_of_one_shard(self, store: Any) -> None:
        array = checked(store)
        array[...] = values = random_array((16, 24), "int32")
        spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
        with shardcodec.open_shard(store, "c/0/1", spec, mode="r+") as shard:
            assert bits(shard.read_chunks([(1, 2)])) == bits(values[4:8, 18:21])
            shard.write_chunks([(1, 2)], np.full((1, 4, 3), 7, "int32"))
            values[4:8, 18:21] = 7
        with shardcodec.ShardWriter(store, spec, key="c/1/1") as writer:
            writer.write_chunk((0, 0), np.full((4, 3), 9, "int32"))
        values[8:, 12:] = -1
        values[8:12, 12:15] = 9
        assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])

    @LOCATIONS
    def test_damage_is_an_error_that_names_the_shard(self, store: Any, at_start: bool) -> None:
        """Elements of other inner chunks and of other shards can be read, and a write that would carry the damage is refused."""
        array = checked(store, at_start=at_start)
        array[...] = values = random_array((16, 24), "int32")
        whole = _object(store, "c/0/0")
        index = 0 if at_start else len(whole) - 16 * 8 - 4
        chunk = 16 * 8 + 4 + 6 if at_start else 6
        flipped = lambda at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]  # noqa: E731
        for data, error, other in (
            (flipped(chunk), ChecksumError, True),
            (flipped(index + 5), ChecksumError, False),
            (whole[:50], ShardFormatError, False),
            (whole[:1], ShardFormatError, False),
        ):
            _set_object(store, "c/0/0", data)
            with pytest.raises(error, match="c/0/0"):
                array[:8, :12]
            if other:
                assert bits(array[4:8, 6:9]) == bits(values[4:8, 6:9])
            else:
                with pytest.raises(error, match="c/0/0"):
                    array[5, 5] = 1
                assert _object(store, "c/0/0") == data
            assert bits(array[:, 12:]) == bits(values[:, 12:])
        array[:8, :12] = values[:8, :12]
        assert bits(array[...]) == bits(values)

    # ---- entries: `shardcodec.kv`

    @LOCATIONS
    def test_entries_are_a_dictionary(self, free: Any, at_start: bool) -> None:
        kv = open_kv((free, "a/c/0/0"), index_location="start" if at_start else "end")
        assert not kv and kv.read(key(0, 0)).stamp.generation == NO_VALUE
        kv[key(0, 1)], kv[key(1, 2)], kv[key(1, 1)] = b"abc", b"defg", b""
        assert dict(kv) == {key(0, 1): b"abc", key(1, 1): b"", key(1, 2): b"defg"}
        assert kv.read(key(1, 2), byte_range=slice(-2, None)).value == b"fg"
        found = kv.read_many([key(1, 2), key(0, 0), key(1, 1)], byte_ranges=[slice(1, 3), None, None])
        assert [(r.state, r.value) for r in found] == [("value", b"ef"), ("missing", b""), ("value", b"")]
        everything = [key(i, j) for i in range(2) for j in range(3)]
        assert [r.value for r in kv.read_many(everything)] == [b"", b"abc", b"", b"", b"", b"defg"]
        with kv.transaction() as t:
            t.delete_range(KeyRange(key(1)))
            t[key(0, 0)] = b"t"
        assert dict(kv) == {key(0, 0): b"t", key(0, 1): b"abc"}
        del kv[key(0, 0)]
        kv.clear()
        assert list(kv) == []
        with pytest.raises(ValueError, match="Invalid key"):
            kv[b"abc"]

    def test_generations(self, free: Any, kind: Kind) -> None:
        kv = open_kv((free, "shard"))
        assert kv.write(key(0, 0), b"a", if_equal="absent").generation != FAILED
        assert kv.write(key(0, 0), b"b", if_equal="absent").generation == FAILED
        assert kv[key(0, 0)] == b"a"
        seen = kv.read(key(0, 0)).stamp.generation
        if not kind.names_states:
            assert seen == UNNAMED
            assert kv.read(key(0, 0), if_not_equal=seen).state == "value"
            with pytest.raises(ValueError, match="does not identify states"):
                kv.write(key(0, 0), b"c", if_equal=seen)
            with pytest.raises(UnsupportedError, match=r"^shard .shard.: its store does not identify states"):
                kv.transaction(repeatable_read=True)[key(0, 0)]
            return
        assert kv.read(key(0, 1), if_not_equal=seen).state == "unspecified"
        done = kv.write(key(0, 1), b"c", if_equal=seen)
        assert done.generation == kv.read(key(0, 1)).stamp.generation != seen
        assert kv.write(key(0, 1), b"d", if_equal=seen).generation == FAILED
        with pytest.raises(ConflictError), kv.transaction(repeatable_read=True) as t:  # noqa: PT012  # its end raises
            assert t[key(0, 1)] == b"c"
            t[key(0, 2)] = b"e"
            kv[key(1, 2)] = b"meanwhile"
        assert list(kv) == [key(0, 0), key(0, 1), key(1, 2)]

    def test_absent_entry_must_be_absent_at_commit(self, free: Any) -> None:
        kv = open_kv((free, "shard"))
        kv[key(1, 1)] = b"other"
        t = kv.transaction()
        assert t.write(key(0, 0), b"mine", if_equal="absent").generation != FAILED
        kv[key(0, 1)] = b"beside"
        t.commit()
        assert kv[key(0, 0)] == b"mine"
        t = kv.transaction()
        assert t.write(key(0, 2), b"mine", if_equal="absent").generation != FAILED
        kv[key(0, 2)] = b"another writer's"
        with pytest.raises(ConflictError):
            t.commit()
        assert kv[key(0, 2)] == b"another writer's"

    # ---- chunks in shards: `shardcodec.transformer`

    def test_chunks_of_a_transformer_are_a_dictionary(self, free: Any) -> None:
        chunks = ChunkMapping(ShardingStorageTransformer(free, (2, 3)))
        names = [f"c/{i}/{j}" for i in range(3) for j in range(4)]
        expected = {name: name.encode() * 9 for name in names}
        chunks.update(expected)
        for name in ("c/0/0", "c/2/3"):
            chunks[name] = expected[name] = b"other"
        chunks["c/1/1"] = expected["c/1/1"] = b""
        for name in ("c/0/1", "c/2/0", "c/2/1", "c/2/2"):
            del chunks[name]
            del expected[name]
        assert dict(chunks) == expected
        assert sorted(chunks) == sorted(expected)
        assert "c/2/0" not in chunks and chunks.get("c/2/0") is None
        with pytest.raises(KeyError):
            chunks["c/9/9"]
        again = ChunkMapping(ShardingStorageTransformer(free, (2, 3)))
        assert dict(again) == expected
