# test_conditional_memory.py - the memory that a partial write of a large shard in an object store takes
# SPDX-License-Identifier: MIT
"""An update builds the new object in the memory of the old one, so it holds the shard once."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bits, create, letters, letters_spec, random_array, zarrs_view
from servers.http_objects import serving
from spec_json import CRC, LITTLE
from zarr.codecs import ZstdCodec

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.placement import Placement
from shardcodec.access.records import ONTO, OldObject, PlanItem
from shardcodec.access.regions import Box
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import object_store
from shardcodec.storage.store import OwnBytes

pytestmark = pytest.mark.slow

pytest.importorskip("obstore", reason="obstore is not installed")

# Prints by how many MiB the peak of resident memory grows during a small write to a shard of the given size.
CLIENT = """
import os, struct, sys
import numpy as np
import zarr
from obstore.store import S3Store
from zarr.storage import ObjectStore
import shardcodec
from shardcodec.kv import ShardedKeyValueStore

url, mib = sys.argv[1], int(sys.argv[2])
store = ObjectStore(S3Store("bucket", endpoint=url, region="us-east-1", access_key_id="a", secret_access_key="b",
                            virtual_hosted_style_request=False, client_options={"allow_http": True}))
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10

def assign(name):
    array = shardcodec.attach(zarr.open_array(store, path=name, mode="r+"), strict=True)
    array[3:5] = 7
    array[1000, :5] = 8

def sent(name):
    spec = shardcodec.ShardSpec.from_metadata(zarr.open_array(store, path=name, mode="r").metadata.to_dict())
    return spec, (store, name + "/c/0/0")

def write_chunks(name):
    spec, at = sent(name)
    with shardcodec.open_shard(*at, spec, mode="r+") as shard:
        shard.write_chunks([(1, 1)], np.full((1, 64, 1024), 7, "u1"))

def set_values(name):
    spec, at = sent(name)
    codecs = [codec.to_json() for codec in spec.index_codecs]
    kv = ShardedKeyValueStore(at, grid_shape=spec.grid_shape, index_codecs=codecs, index_location=spec.index_location)
    kv[struct.pack(">2I", 1, 1)] = b"7" * (64 << 10)

update = globals()[sys.argv[3]]
update("small")  # first use: imports, threads, connections
open("/proc/self/clear_refs", "w").write("5")
before = peak()
update("large")
print(peak() - before, flush=True)
os._exit(0)  # at a normal exit, a thread of obstore that delivers a result would abort the process
"""


def shards(shape: tuple[int, ...], at_start: bool) -> Any:
    return {"shape": shape, "index_location": "start" if at_start else "end"}


def put_array(objects: Any, name: str, mib: int, *, at_start: bool) -> None:
    """Make an array of one shard, 1 MiB for each 256 rows, in the memory of a server."""
    store = zarr.storage.MemoryStore()
    array = create(
        store,
        own=True,
        shape=(256 * mib, 4096),
        chunks=(64, 1024),
        shards=shards((256 * mib, 4096), at_start),
        dtype="u1",
        fill_value=1,
    )
    values = np.tile(random_array((1024, 4096), "u1"), (mib // 4, 1))
    shardcodec.attach(array, strict=True)[...] = values
    for key, buffer in store._store_dict.items():
        objects.blobs[f"/bucket/{name}/{key}"] = buffer.to_bytes()
    return values


def extra_mib(objects: Any, mib: int, way: str) -> int:
    return int(
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CLIENT), objects.url, str(mib), way],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        ).stdout
    )


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc/self/clear_refs")
@pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
@pytest.mark.parametrize("way", ["assign", "write_chunks", "set_values"])
def test_update_holds_the_shard_once(way: str, at_start: bool) -> None:
    """An update once held the old shard, the new one and a copy made while that grew: three times its size."""
    mib = int(os.environ.get("SHARDCODEC_TEST_SHARD_MIB", "32"))
    with serving() as objects:
        for name, size in (("small", 16), ("large", mib)):
            put_array(objects, name, size, at_start=at_start)
        extra = extra_mib(objects, mib, way)
    assert extra <= mib + 24


@pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
@pytest.mark.parametrize("compressors", [None, [ZstdCodec(level=1)]], ids=["raw", "zstd"])
def test_object_equals_one_made_beside_the_old_one(
    at_start: bool, compressors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are reused, dead bytes packed, inner chunks erased and merged: all in the memory of the old object."""
    import obstore

    stores = [obstore.store.MemoryStore() for _ in range(2)]
    arrays = [
        create(zarr.storage.ObjectStore(store), shards=shards((16, 24), at_start), compressors=compressors)
        for store in stores
    ]
    values = np.full((16, 24), -1, "int32")
    rng = np.random.default_rng(5)
    previous, packed = 0, False
    for step in range(120):
        first, last = np.sort(rng.integers(0, (17, 25), (2, 2)), axis=0)
        box = tuple(slice(int(a), int(b) + 1) for a, b in zip(first, last, strict=True))
        part = rng.integers(0, 1 << (1 + step % 30), values[box].shape, "int32") if step % 7 else -1
        values[box] = part
        blobs = []
        for array, store, own_nbytes in zip(arrays, stores, (1 << 60, 0), strict=True):
            monkeypatch.setattr(object_store, "OWN_NBYTES", own_nbytes)
            array[box] = part
            found = [
                bytes(obstore.get(store, m["path"]).bytes())
                for m in store.list().collect()
                if "c/" in m["path"]
            ]
            blobs.append(found)
        assert blobs[0] == blobs[1]
        nbytes = sum(map(len, blobs[0]))
        packed |= nbytes < previous
        previous = nbytes
    assert packed
    assert bits(arrays[1][...]) == bits(values) == bits(zarrs_view(arrays[1])[...])


@pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
def test_values_equal_those_written_beside_the_old_object(
    at_start: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of a key-value store, also views of the old object, are written into the memory of the old object."""
    import obstore

    grid = {
        "grid_shape": (4, 4),
        "index_codecs": [LITTLE, CRC],
        "index_location": "start" if at_start else "end",
    }
    stores = [obstore.store.MemoryStore() for _ in range(2)]
    kvs = [ShardedKeyValueStore((zarr.storage.ObjectStore(store), "s"), **grid) for store in stores]
    rng, twin = np.random.default_rng(3), {}
    for step in range(200):
        changes = {
            struct.pack(">2I", *divmod(int(at), 4)): None
            if step % 5 == 0
            else rng.bytes(int(rng.integers(0, 40)) * (step % 3))
            for at in rng.integers(0, 16, 3)
        }
        for kv, own_nbytes in zip(kvs, (1 << 60, 0), strict=True):
            monkeypatch.setattr(object_store, "OWN_NBYTES", own_nbytes)
            with kv.transaction(atomic=True) as together:
                for key, value in changes.items():
                    if value is None:
                        together.delete(key)
                    else:
                        together[key] = value
        twin = {k: v for k, v in (twin | changes).items() if v is not None}
        assert dict(kvs[1]) == twin
        blobs = [
            [bytes(obstore.get(store, m["path"]).bytes()) for m in store.list().collect()] for store in stores
        ]
        assert blobs[0] == blobs[1]


def test_failed_update_leaves_the_object_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late error leaves the buffer of the old object changed, but the object in the store is not touched."""
    import obstore

    monkeypatch.setattr(object_store, "OWN_NBYTES", 0)
    store = obstore.store.MemoryStore()
    array = create(zarr.storage.ObjectStore(store), shards=(16, 24), compressors=[ZstdCodec(level=1)])
    array[...] = random_array((16, 24), "int32")
    (name,) = (meta["path"] for meta in store.list().collect() if "c/" in meta["path"])
    blob = bytearray(obstore.get(store, name).bytes())
    blob[8:16] = b"damaged!"
    obstore.put(store, name, bytes(blob))
    with pytest.raises(shardcodec.ShardError):
        array[1:15, 1:23] = 3
    assert bytes(obstore.get(store, name).bytes()) == bytes(blob)


def test_plan_that_writes_outside_the_old_object_is_refused() -> None:
    """The engine checks this itself and does not rely on its caller."""
    chain = compiled(letters_spec().chain)
    old = OwnBytes.of_size(len(letters()))
    old[:] = np.frombuffer(letters(), "u1")
    entries = np.full((4, 2), 2**64 - 1, "u8")
    box = Box((0, 0), (2, 2), None, (0, 0))
    towards = "expected a carried run to move towards the start and to end by"
    for carries, data_offset, match in [
        ([(0, 16, 0)], 1000, "expected new chunks inside the old object of 84 bytes, got offset 1000"),
        ([(0, 16, 4)], 20, f"{towards} 20, got 16 bytes from 0 to 4"),
        ([(0, 16, 0)], 8, f"{towards} 8, got 16 bytes from 0 to 0"),
    ]:
        placement = Placement(np.array(carries, "u8"), entries.copy(), data_offset, compact=True)
        plan = [PlanItem(chain, None, box, None, OldObject(old, old.size, None, entries), placement, ONTO)]
        with pytest.raises(ValueError, match=match):
            native.load().write(plan, np.zeros((2, 2), "u1"), (0, 1))
    placement = Placement(np.empty((0, 3), "u8"), entries.copy(), 0, compact=True)
    plan = [PlanItem(chain, None, box, None, OldObject(bytes(old), old.size, None, entries), placement, ONTO)]
    with pytest.raises((BufferError, ValueError)):
        native.load().write(plan, np.zeros((2, 2), "u1"), (0, 1))
