# test_merged_requests.py - zarr's settings for merged ranges reach every way to read a shard
# SPDX-License-Identifier: MIT
"""The number of requests for inner chunks of one shard, with zarr's largest gap and largest merged range."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import RecordingStore, create, merging
from spec_json import CRC, LITTLE
from transformer_stores import values
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from zarr.storage import MemoryStore

import shardcodec
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.transformer import ShardingStorageTransformer

# Bytes of an inner chunk, elements of it without its checksum, and their number in the shard.
NBYTES = 20_000
LENGTH = NBYTES - 4
N = 8
# Every second inner chunk: the gaps are as wide as one.
WANTED = [1, 3, 5, 7]
# No waste of a whole shard is worth a round trip: its unused bytes are more than each gap that the test permits.
DATA = np.random.default_rng(0).integers(1, 255, N * LENGTH, dtype=np.uint8)

Read = Callable[[Any], list[bytes]]


def store_of_shard() -> RecordingStore:
    """Return a store with an array of one shard, whose index comes first, so that no request is needed to prove its size."""
    store = RecordingStore(MemoryStore())
    codec = ShardingCodec(chunk_shape=(LENGTH,), codecs=[BytesCodec(), Crc32cCodec()], index_location="start")
    array = create(
        store,
        own=True,
        shape=DATA.shape,
        chunks=DATA.shape,
        dtype="u1",
        serializer=codec,
        fill_value=0,
        shards=None,
    )
    array[...] = DATA
    store.forget()
    return store


def spec_of(store: Any) -> Any:
    return shardcodec.ShardSpec.from_metadata(shardcodec.open_array(store)._objects.folder.metadata())


def by_handle(store: Any) -> list[bytes]:
    found = shardcodec.open_shard(store, "c/0", spec_of(store)).read_encoded([(i,) for i in WANTED])
    return [part[:-4] for part in found if part is not None]


def by_handle_decoded(store: Any) -> list[bytes]:
    found = shardcodec.open_shard(store, "c/0", spec_of(store)).read_chunks([(i,) for i in WANTED])
    return [part.tobytes() for part in found]


def by_array(store: Any) -> list[bytes]:
    found = shardcodec.open_array(store).read_chunks([(i,) for i in WANTED])
    return [part.tobytes() for part in found]


def kv_of(store: Any) -> ShardedKeyValueStore:
    return ShardedKeyValueStore(
        (store, "c/0"), grid_shape=(N,), index_codecs=[LITTLE, CRC], index_location="start"
    )


def key(i: int) -> bytes:
    return i.to_bytes(4, "big")


def by_keys(store: Any) -> list[bytes]:
    return [found.value[:-4] for found in kv_of(store).read_many([key(i) for i in WANTED])]


def by_key_ranges(store: Any) -> list[bytes]:
    ranges = [slice(0, NBYTES)] * len(WANTED)
    found = kv_of(store).read_many([key(i) for i in WANTED], byte_ranges=ranges)
    return [part.value[:-4] for part in found]


def by_transformer(store: Any) -> list[bytes]:
    view = ShardingStorageTransformer(store, (N,), index_codecs=[LITTLE, CRC], index_location="start")
    found = asyncio.run(values(view, [(f"c/{i}", None) for i in WANTED]))
    return [part[:-4] for part in found if part is not None]


WAYS = [by_handle, by_handle_decoded, by_array, by_keys, by_key_ranges, by_transformer]


@pytest.mark.parametrize(
    ("gap_nbytes", "nbytes", "n_requests"),
    [
        (NBYTES - 1, 16 << 20, 4),
        (3 * NBYTES, 2 * NBYTES, 4),
        (3 * NBYTES, 3 * NBYTES, 2),
        (3 * NBYTES, 16 << 20, 1),
    ],
    ids=["gap is wider", "range is larger", "two and two", "all"],
)
@pytest.mark.parametrize("read", WAYS)
def test_zarrs_settings_decide_how_many_ranges_are_requested(
    read: Read, gap_nbytes: int, nbytes: int, n_requests: int
) -> None:
    """Handles, the key-value store and the transformer merged ranges by constants of their own."""
    store = store_of_shard()
    with merging(gap_nbytes, nbytes), shardcodec.options(index_cache=0):
        found = read(store)
    assert found == [DATA[i * LENGTH : (i + 1) * LENGTH].tobytes() for i in WANTED]
    index = (0, 16 * N + 4)
    ranges = [wanted for name, wanted in store.requests if name == "c/0" and wanted != index]
    assert len(ranges) == n_requests, ranges
