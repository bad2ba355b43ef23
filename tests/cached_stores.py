# cached_stores.py - arrays on a server, read through a cache on the local disk
# SPDX-License-Identifier: MIT
"""A bucket of `servers.http_objects`, whose entity tags are valid in every process, and arrays in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from servers.http_objects import Objects

import shardcodec
from shardcodec.storage import indexes

DATA = np.random.default_rng(0).integers(0, 50, (24, 40, 40)).astype("u2")

# Arguments of zarr for arrays of these data.
LAYOUTS: dict[str, dict[str, Any]] = {
    "zstd": {"chunks": (4, 10, 10), "shards": (12, 20, 20)},
    "raw": {"chunks": (4, 10, 10), "shards": (12, 20, 20), "compressors": None},
    "crc32c": {"chunks": (4, 10, 10), "shards": (12, 20, 20), "compressors": zarr.codecs.Crc32cCodec()},
    "start": {
        "chunks": (12, 20, 20),
        "compressors": None,
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(4, 10, 10), index_location="start"),
    },
    "plain": {"chunks": (12, 20, 20)},
    "nested": {
        "chunks": (12, 20, 40),
        "compressors": None,
        "serializer": zarr.codecs.ShardingCodec(
            chunk_shape=(12, 20, 20), codecs=[zarr.codecs.ShardingCodec(chunk_shape=(4, 10, 10))]
        ),
    },
    "transposed": {
        "chunks": (4, 10, 10),
        "shards": (12, 20, 20),
        "filters": zarr.codecs.TransposeCodec(order=(2, 0, 1)),
    },
}


def bucket_of(objects: Objects) -> Any:
    """Return a store of S3 over the server."""
    from obstore.store import S3Store

    client = S3Store(
        "bucket", endpoint=objects.url, region="x", skip_signature=True, client_options={"allow_http": True}
    )
    return zarr.storage.ObjectStore(client)


def create_in(objects: Objects, layout: str = "zstd", data: Any = DATA, **arguments: Any) -> Any:
    """Store an array as another client would, in place of an old one, and return the store."""
    memory = zarr.storage.MemoryStore()
    zarr.create_array(memory, name="a", data=data, **(arguments or LAYOUTS[layout]))
    with objects.mutex:
        objects.blobs = {f"/bucket/{key}": value.to_bytes() for key, value in memory._store_dict.items()}
    return bucket_of(objects)


def another_process() -> None:
    """Forget what another process would not know."""
    indexes._states.clear()


def numbers() -> dict[str, int]:
    """Return the counters of the cache, and the number of requests."""
    counted = shardcodec.stats()
    return {name.removeprefix("disk_"): n for name, n in counted.items() if "disk_" in name} | {
        "requests": counted["requests"]
    }


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.cached"))
