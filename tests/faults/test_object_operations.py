# test_object_operations.py - every operation on an object store, with every fault of the proxy
# SPDX-License-Identifier: MIT
"""Each operation either does all of its work or raises; whatever it raises, the stored values are the old or the new ones.

A fault that meets one request is cured by the client. A fault that meets all requests ends in an error of the store.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import checked, ours, zarrs_view
from servers.proxy import What
from servers.services import SERVICES, Bucket, Server, bucket_of, service
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec import GroupWriteError
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import conditions
from shardcodec.transformer import ShardingStorageTransformer
from shardcodec.transformer.mapping import ChunkMapping

Values = dict[str, Any]


def store_errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import GenericError

    return GenericError, GroupWriteError


@pytest.fixture(scope="module", params=SERVICES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with service(request.param) as running:
        yield running


@pytest.fixture
def bucket(server: Server) -> Iterator[Bucket]:
    with (
        bucket_of(server) as bucket,
        mock.patch.multiple(conditions, _checked=set(), _told=set()),
    ):
        yield bucket


def store_in(bucket: Bucket, *, direct: bool = False) -> Any:
    return zarr.storage.ObjectStore(bucket.store(direct=direct))


def key_value(store: Any) -> ShardedKeyValueStore:
    return ShardedKeyValueStore((store, "kv"), grid_shape=(4,), index_codecs=[LITTLE, CRC])


def chunks_of(store: Any) -> ChunkMapping:
    return ChunkMapping(ShardingStorageTransformer(store, (2, 2), path="t"))


def number(i: int) -> bytes:
    return struct.pack(">I", i)


def make(bucket: Bucket) -> None:
    """Store an array with one of four shards, a key-value store, and a shard of the transformer."""
    store = store_in(bucket, direct=True)
    checked(store, overwrite=True)[:8, :12] = 1
    key_value(store).update({number(0): b"zero", number(1): b"one"})
    chunks_of(store).update({"t/c/0/0": b"first", "t/c/0/1": b"second"})


def stored(bucket: Bucket) -> Values:
    """Return all values, read without the proxy; those of the array with zarr's own code."""
    store = store_in(bucket, direct=True)
    array = zarrs_view(zarr.open_array(store, mode="r", zarr_format=3))[...]
    return {"array": array.tolist(), "kv": dict(key_value(store)), "chunks": dict(chunks_of(store))}


def write_a_part(store: Any) -> None:
    ours(store)[2:4, 5] = 7


def write_a_shard(store: Any) -> None:
    ours(store)[:8, :12] = np.arange(8 * 12).reshape(8, 12)


def write_grouped(store: Any) -> None:
    array = ours(store)
    with shardcodec.group_writes():
        for row in range(8):
            array[row, 0] = 50 + row


def erase(store: Any) -> None:
    ours(store)[:8, :12] = -1


def write_key(store: Any) -> None:
    key_value(store)[number(1)] = b"new"


def delete_key(store: Any) -> None:
    del key_value(store)[number(0)]


def set_chunk(store: Any) -> None:
    chunks_of(store)["t/c/0/1"] = b"new"


def delete_chunk(store: Any) -> None:
    del chunks_of(store)["t/c/0/0"]


def stream_shard(store: Any) -> None:
    spec = shardcodec.ShardSpec.from_metadata(ours(store).metadata.to_dict())
    with shardcodec.ShardWriter(store, spec, key="c/1/1") as writer:
        for coords in np.ndindex(2, 4):
            writer.write_chunk(coords, np.full((4, 3), 9, dtype="int32"))


WRITES = [
    write_a_part,
    write_a_shard,
    write_grouped,
    erase,
    write_key,
    delete_key,
    set_chunk,
    delete_chunk,
    stream_shard,
]


def read_array(store: Any) -> Any:
    return ours(store, mode="r")[...].tolist()


def read_state(store: Any) -> Any:
    return shardcodec.chunk_state(zarr.open_array(store, mode="r", zarr_format=3)).exists.tolist()


def read_keys(store: Any) -> Any:
    return dict(key_value(store))


def read_chunks(store: Any) -> Any:
    return dict(chunks_of(store))


def read_shard(store: Any) -> Any:
    spec = shardcodec.ShardSpec.from_metadata(ours(store, mode="r").metadata.to_dict())
    return shardcodec.open_shard(store, "c/0/0", spec).read_chunks([(0, 0), (1, 3)]).tolist()


READS = [read_array, read_state, read_keys, read_chunks, read_shard]


def among(faults: list[What]) -> Any:
    """Parametrize with faults; most of them are for the night."""
    marks = {what: [] if what is What.CUT_AFTER else [pytest.mark.nightly] for what in faults}
    return pytest.mark.parametrize(
        "what", [pytest.param(what, marks=marks[what], id=what.name.lower()) for what in faults]
    )


FAULTS = [what for what in What if what not in (What.STRIP, What.DELAY)]

# zarr looks for metadata of format 2, too; the answer that they do not exist has a body.
NOT_V2 = r"^(?!.*/\.z)"

# The answer to a write that succeeded has no body that could be cut.
WRITE_FAULTS = [what for what in FAULTS if what is not What.CUT_ANSWER]


@pytest.fixture(autouse=True)
def _unexpected_warnings_fail() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="partial writes", category=RuntimeWarning)
        yield


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@among(WRITE_FAULTS)
def test_write_with_a_fault(bucket: Bucket, write: Callable[[Any], None], what: What) -> None:
    make(bucket)
    old = stored(bucket)
    with bucket.proxy.fault(what, "PUT|POST|DELETE"), pytest.raises(store_errors()):
        write(store_in(bucket))
    now = stored(bucket)
    make_twin(bucket, write)
    new = stored(bucket)
    assert old != new
    if what in (What.CUT_AFTER, What.REFUSE_AFTER):
        assert now in (old, new)
    else:
        assert now == old


def make_twin(bucket: Bucket, write: Callable[[Any], None]) -> None:
    make(bucket)
    write(store_in(bucket, direct=True))


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@among(FAULTS)
def test_write_with_one_fault(bucket: Bucket, write: Callable[[Any], None], what: What) -> None:
    make_twin(bucket, write)
    new = stored(bucket)
    make(bucket)
    # obstore repeats no request whose answer has begun; the object is deleted then
    is_told = write is erase and what is What.CUT_ANSWER
    with (
        bucket.proxy.fault(what, "PUT|POST|DELETE", times=1) as fault,
        pytest.raises(store_errors()) if is_told else nullcontext(),
    ):
        write(store_in(bucket))
    assert fault.n_done == 1
    assert stored(bucket) == new


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
@among(FAULTS)
def test_read_with_a_fault(bucket: Bucket, read: Callable[[Any], Any], what: What) -> None:
    make(bucket)
    values = read(store_in(bucket, direct=True))
    # obstore does not repeat a listing whose answer has begun
    is_told = read is read_chunks and what is What.CUT_ANSWER
    with (
        bucket.proxy.fault(what, "GET", NOT_V2, times=1) as fault,
        pytest.raises(store_errors()) if is_told else nullcontext(),
    ):
        assert read(store_in(bucket)) == values
    assert fault.n_done == 1
    if what is not What.CUT_ANSWER:
        with bucket.proxy.fault(what, "GET"), pytest.raises(store_errors()):
            read(store_in(bucket))
