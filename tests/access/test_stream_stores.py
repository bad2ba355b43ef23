# test_stream_stores.py - shards written inner chunk by inner chunk into stores
# SPDX-License-Identifier: MIT
"""`ShardWriter` stores the same bytes in any store, whether as a whole or in parts."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import letters_spec, object_of
from spec_json import CRC, LITTLE, zstd
from workers import in_threads

import shardcodec
from shardcodec import ShardWriter
from shardcodec.storage import object_store, upload

obstore = pytest.importorskip("obstore", reason="obstore is not installed")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE_NBYTES", 50)
    monkeypatch.setattr(object_store, "PART_NBYTES", 120)


def memory_url(_: Path) -> Any:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from shardcodec.storage.kinds import at_url

    return at_url(f"memory://{uuid.uuid4().hex}", None)


STORES: dict[str, Callable[[Path], Any]] = {
    "obstore": lambda _: zarr.storage.ObjectStore(obstore.store.MemoryStore()),
    "obstore files": lambda folder: zarr.storage.ObjectStore(obstore.store.LocalStore(folder)),
    "memory": lambda _: zarr.storage.MemoryStore(),
    "files": zarr.storage.LocalStore,
    "fsspec": memory_url,
}


@pytest.fixture(params=STORES.values(), ids=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def write(writer: ShardWriter) -> None:
    rng = np.random.default_rng(3)
    coords = list(np.ndindex(*writer.grid_shape))
    shape = writer.spec.chunk_shape
    writer.write_chunks(coords[:5], rng.integers(1, 99, (5, *shape), "int32"))
    writer.write_chunk(coords[7], rng.integers(1, 99, shape, "int32"))


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("codecs", [[LITTLE], [LITTLE, zstd(), CRC]], ids=["raw", "zstd"])
@pytest.mark.parametrize("around", [{}, {"header": b"head" * 40, "footer": b"foot", "alignment": 64}])
def test_object_has_the_bytes_of_the_shard(store: Any, codecs: Any, location: str, around: Any) -> None:
    spec = shardcodec.ShardSpec((12, 8), (3, 4), "int32", 0, codecs=codecs, index_location=location)
    twin = ShardWriter(None, spec, **around)
    write(twin)
    with ShardWriter(store, spec, key="a/shard", **around) as writer:
        write(writer)
        assert writer.nbytes == twin.nbytes
        assert object_of(store, "a/shard") is None
    assert object_of(store, "a/shard") == twin.commit()
    with ShardWriter(zarr.storage.StorePath(store, "a"), spec, key="shard"):
        pass  # replaces it by an empty shard
    assert object_of(store, "a/shard") == ShardWriter(None, spec).commit()


def test_aborted_object_is_not_stored(store: Any) -> None:
    spec = shardcodec.ShardSpec((12, 8), (3, 4), "int32", 0, codecs=[LITTLE])
    writer = ShardWriter(store, spec, key="aborted")
    write(writer)
    writer.abort()
    writer.abort()
    assert object_of(store, "aborted") is None
    with pytest.raises(ValueError, match="committed or aborted"):
        writer.commit()


def test_threads_take_turns(store: Any) -> None:
    spec = shardcodec.ShardSpec((16, 16), (2, 2), "int32", 0, codecs=[LITTLE])
    values = np.arange(256, dtype="int32").reshape(16, 16) + 1

    def rows(first: int) -> None:
        for i in range(first, 8, 4):
            for j in range(8):
                writer.write_chunk((i, j), values[2 * i : 2 * i + 2, 2 * j : 2 * j + 2])

    with ShardWriter(store, spec, key="threads", alignment=32) as writer:
        in_threads(4, rows)
    assert np.array_equal(shardcodec.decode(object_of(store, "threads"), spec), values)


def test_commit_waits_for_an_update_of_the_shard() -> None:
    """A new shard and an update in this process exclude each other."""
    from shardcodec.storage import process_locks
    from shardcodec.storage.kinds import object_at

    store = zarr.storage.ObjectStore(obstore.store.MemoryStore())
    writer = ShardWriter(store, letters_spec(), key="shard")
    found, key, _ = object_at(store, "shard")
    thread = threading.Thread(target=writer.commit)
    with process_locks.table().hold(found.lock_names([key])):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert object_of(store, "shard") is None
    thread.join()
    assert object_of(store, "shard") is not None


def test_read_only_store_is_refused() -> None:
    store = zarr.storage.ObjectStore(obstore.store.MemoryStore(), read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        ShardWriter(store, letters_spec(), key="shard")


def test_bad_targets_are_refused(tmp_path: Path) -> None:
    for target in (b"bytes", 5):
        with pytest.raises(TypeError, match="expected a path, a URL, a zarr store or None"):
            ShardWriter(target, letters_spec())
    for target in (None, tmp_path / "shard"):
        with pytest.raises(TypeError, match="only with a URL"):
            ShardWriter(target, letters_spec(), storage_options={})
    with pytest.raises(ValueError, match="expected the key of the shard"):
        ShardWriter(zarr.storage.MemoryStore(), letters_spec())


def test_interrupted_write_cannot_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of an object have no gaps, so a write that was cut short spoils the shard."""
    store = zarr.storage.ObjectStore(obstore.store.MemoryStore())
    writer = ShardWriter(store, letters_spec(), key="shard")
    append = upload.Upload._append

    def interrupted(self: Any, view: memoryview) -> None:
        append(self, view[: len(view) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(upload.Upload, "_append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.write_encoded((0, 0), b"ABCD")
    monkeypatch.setattr(upload.Upload, "_append", append)
    with pytest.raises(OSError, match="a write to it has failed"):
        writer.write_encoded((0, 1), b"ABCD")
    with pytest.raises(OSError, match="a write to it has failed"):
        writer.commit()
    assert object_of(store, "shard") is None
