# test_object_stores.py - S3 behind a proxy that makes faults
# SPDX-License-Identifier: MIT
"""Writes through zarr's `ObjectStore` to a real server (moto): lost answers, refusals, and conditions that nothing looks at."""

from __future__ import annotations

import asyncio
import struct
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import checked, letters_spec
from servers.proxy import What
from servers.s3 import S3Bucket, S3Server, missing_for_s3, s3_bucket, s3_server
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec.kv import FAILED, ShardedKeyValueStore
from shardcodec.storage.requests import Changed
from shardcodec.zarr_plugin import conditions, remotes
from shardcodec.zarr_plugin.remotes import ObstoreRemote

MISSING = missing_for_s3()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def s3(server: S3Server) -> Iterator[S3Bucket]:
    with s3_bucket(server) as bucket, mock.patch.multiple(conditions, _checked=set(), _told=set()):
        yield bucket


@pytest.fixture(autouse=True)
def _unexpected_warnings_fail() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="partial writes", category=RuntimeWarning)
        yield


def object_store(store: Any) -> Any:
    from zarr.storage import ObjectStore

    return ObjectStore(store)


def array_in(s3: S3Bucket) -> Any:
    """An array of four shards of 4 x 4 inner chunks; the first is stored, and full of ones."""
    array = checked(object_store(s3.store()))
    array[:8, :12] = 1
    return array


# ---- the proxy itself


def test_the_proxy_makes_the_faults_it_is_told_to(s3: S3Bucket) -> None:
    """So that a fault test which passes has met its fault."""
    import obstore

    store, proxy = s3.store(), s3.proxy
    body = bytes(range(256)) * 1024
    for what, statuses in [
        (What.CUT_BEFORE, [None, 200]),
        (What.CUT_WITHIN, [None, 200]),
        (What.CUT_AFTER, [200, 200]),
        (What.REFUSE, [None, 200]),
        (What.REFUSE_AFTER, [200, 200]),
    ]:
        proxy.seen.clear()
        with proxy.fault(what, "PUT", what.name, times=1) as fault:
            obstore.put(store, f"of/{what.name}", body, use_multipart=False)
        assert fault.n_done == 1
        assert [one.status for one in proxy.seen] == statuses
        assert bytes(obstore.get(store, f"of/{what.name}").bytes()) == body
    with proxy.fault(What.CUT_ANSWER, "GET", times=1) as fault:
        assert bytes(obstore.get(store, "of/REFUSE").bytes()) == body
    assert fault.n_done == 1
    with proxy.fault(What.DELAY, "HEAD", seconds=0.2):
        start = time.monotonic()
        assert obstore.head(store, "of/REFUSE")["e_tag"] is not None
        assert time.monotonic() - start >= 0.2
    with proxy.fault(What.STRIP, headers=("ETag", "Range")):
        assert obstore.head(store, "of/REFUSE")["e_tag"] is None
        with pytest.raises(obstore.exceptions.GenericError, match="partial"):
            obstore.get_range(store, "of/REFUSE", start=1, end=3)
    with proxy.fault(What.REFUSE, "PUT", status=429) as fault, pytest.raises(obstore.exceptions.BaseError):
        obstore.put(store, "refused", b"")
    assert "refused" not in s3.names()


# ---- errors that no new try cures


def test_a_missing_bucket_raises_the_error_of_the_store_at_once(s3: S3Bucket) -> None:
    """A put-if-absent into a missing bucket counted as beaten by another writer, and was tried again for a minute."""
    array = array_in(s3)
    gone = object_store(s3.store(bucket="no-such-bucket"))
    array = zarr.Array(zarr.AsyncArray(array.metadata, zarr.storage.StorePath(gone)))
    shardcodec.attach(array, strict=True)
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        array[0, 0] = 2
    shard = shardcodec.open_shard(gone, "shard", letters_spec(), mode="r+")
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        shard.write_chunks([(0, 0)], [np.frombuffer(b"ZERO", "u1").reshape(2, 2)])
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(("status", "name"), [(403, "PermissionDeniedError"), (401, "UnauthenticatedError")])
def test_a_forbidden_write_raises_the_error_of_the_store_at_once(
    s3: S3Bucket, status: int, name: str
) -> None:
    import obstore

    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.seen.clear()
    with (
        s3.proxy.fault(What.REFUSE, "PUT", status=status),
        pytest.raises(getattr(obstore.exceptions, name)),
    ):
        array[0, 0] = 3
    assert s3.proxy.n_seen("PUT") == 1
    assert array[0, 0] == 2


# ---- lost answers

LOST = pytest.mark.parametrize("what", [What.CUT_AFTER, What.REFUSE_AFTER], ids=["cut", "gateway error"])


@LOST
def test_an_update_whose_answer_is_lost_is_done_once(s3: S3Bucket, what: What) -> None:
    """The client repeats the put, which is refused because the first one was stored. It was taken for another writer's then."""
    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.seen.clear()
    with s3.proxy.fault(what, "PUT", "c/0/0", times=1) as fault:
        array[0, 1] = 3
    assert fault.n_done == 1
    assert s3.proxy.n_seen("PUT") == 2  # by the client; not once more by us
    assert (array[0, :3] == [2, 3, 1]).all()


@LOST
def test_a_put_if_absent_whose_answer_is_lost_is_done_once(s3: S3Bucket, what: What) -> None:
    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.seen.clear()
    with s3.proxy.fault(what, "PUT", "c/1/1", times=1) as fault:
        array[9, 13] = 3
    assert fault.n_done == 1
    assert s3.proxy.n_seen("PUT", "c/1/1") == 2
    assert array[9, 13] == 3


@LOST
def test_a_conditional_key_value_write_whose_answer_is_lost_succeeds(s3: S3Bucket, what: What) -> None:
    """It reported that the condition did not hold, though the value was stored, because of that very value."""
    kv = ShardedKeyValueStore(
        (object_store(s3.store()), "shard"), grid_shape=(4,), index_codecs=[LITTLE, CRC]
    )
    first, second = (struct.pack(">I", i) for i in (0, 1))
    kv[first] = b"old"
    with s3.proxy.fault(what, "PUT", "/shard$", times=1) as fault:
        done = kv.write_sync(second, b"new", if_equal="absent")
    assert fault.n_done == 1
    assert done.generation == kv.read_sync(second).stamp.generation != FAILED
    assert dict(kv) == {first: b"old", second: b"new"}


def test_a_delete_whose_answer_is_lost_is_repeated(s3: S3Bucket) -> None:
    array = array_in(s3)
    with s3.proxy.fault(What.CUT_AFTER, "POST|DELETE", times=1) as fault:
        array[:8, :12] = -1
    assert fault.n_done == 1
    assert s3.names() == ["zarr.json"]
    assert array[0, 0] == -1


def test_an_object_of_another_writer_is_not_taken_for_ours(s3: S3Bucket) -> None:
    """Two writers take the same lock by the same bytes. The one whose put is repeated after a refusal must not believe it has it."""
    import obstore

    async def race() -> None:
        mine, theirs = ObstoreRemote(s3.store()), ObstoreRemote(s3.store(direct=True))
        await theirs.put("lock", b"taken", None)
        with s3.proxy.fault(What.REFUSE, "PUT", "/lock$", times=1), pytest.raises(Changed):
            await mine.put("lock", b"taken", None)

    asyncio.run(race())
    assert bytes(obstore.get(s3.store(), "lock").bytes()) == b"taken"


@pytest.mark.parametrize("own_nbytes", [0, 8 << 20], ids=["in several buffers", "in one"])
def test_where_no_metadata_is_kept_the_bytes_are_compared(
    s3: S3Bucket, own_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remotes, "OWN_NBYTES", own_nbytes)
    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.add(What.STRIP, headers=("x-amz-meta-shardcodecwrite",))
    s3.proxy.seen.clear()
    with s3.proxy.fault(What.CUT_AFTER, "PUT", times=1) as fault:
        array[0, 1] = 3
    assert fault.n_done == 1
    assert s3.proxy.n_seen("PUT") == 2
    assert (array[0, :3] == [2, 3, 1]).all()


def test_a_write_that_stays_without_answer_reports_the_error_of_the_store(s3: S3Bucket) -> None:
    import obstore

    array = array_in(s3)
    array[0, 0] = 2
    with s3.proxy.fault(What.CUT_BEFORE, "PUT"), pytest.raises(obstore.exceptions.GenericError):
        array[0, 1] = 3
    assert (array[0, :2] == [2, 1]).all()
    with s3.proxy.fault(What.REFUSE_AFTER, "PUT", status=400):  # stored, and no client repeats it
        array[0, 1] = 3
    assert array[0, 1] == 3


# ---- conditions that nothing looks at


def test_a_server_with_conditions_gets_one_probe_and_keeps_nothing_of_it(s3: S3Bucket) -> None:
    array = array_in(s3)
    s3.proxy.seen.clear()
    for column in range(3):
        array[0, column] = 2
    other = shardcodec.attach(zarr.open_array(object_store(s3.store()), mode="r+"), strict=True)
    other[0, 5] = 2  # by a copy of the store
    assert s3.proxy.n_seen("PUT", "probe") == 1
    assert s3.names() == ["c/0/0", "zarr.json"]


def test_a_proxy_that_removes_conditions_is_noticed(s3: S3Bucket) -> None:
    """Updates went through as if nothing else were writing; of two at a time one was lost, without a word."""
    array = array_in(s3)
    s3.proxy.add(What.STRIP, headers=("If-Match", "If-None-Match"))
    with pytest.warns(RuntimeWarning, match=f"{s3.name}.*does not look at the conditions"):
        array[0, 0] = 2
    array[9, 13] = 3  # and no second warning
    assert array[0, 0] == 2 and array[9, 13] == 3
    assert s3.names() == ["c/0/0", "c/1/1", "zarr.json"]


def test_a_probe_that_cannot_be_deleted_is_named(s3: S3Bucket) -> None:
    array = array_in(s3)
    s3.proxy.add(What.STRIP, headers=("If-Match", "If-None-Match"))
    s3.proxy.add(What.REFUSE, "POST|DELETE", status=403)
    with pytest.warns(RuntimeWarning, match=r"'c/0/\.shardcodec-probe-[0-9a-f]+' was left"):
        array[0, 0] = 2


def test_a_proxy_that_removes_entity_tags_is_noticed(s3: S3Bucket) -> None:
    """Without a tag there is no condition to send."""
    array = array_in(s3)
    s3.proxy.add(What.STRIP, "GET", headers=("ETag",))
    with pytest.warns(RuntimeWarning, match="does not name the states of objects"):
        array[0, 0] = 2
    array[0, 1] = 3  # and no second warning
    assert (array[0, :3] == [2, 3, 1]).all()


def test_a_store_that_is_configured_without_conditions_is_noticed(s3: S3Bucket) -> None:
    array = checked(object_store(s3.store(conditional_put="disabled")))
    with pytest.warns(RuntimeWarning, match="configured to know no conditions"):
        array[0, 0] = 2
    array[0, 1] = 3  # and no second warning
    assert (array[0, :3] == [2, 3, -1]).all()


def test_a_probe_that_is_forbidden_proves_nothing(s3: S3Bucket) -> None:
    """Permissions may be for the names of chunks alone. The write is done, and the user knows that nothing is known."""
    array = array_in(s3)
    s3.proxy.add(What.REFUSE, "PUT", "probe", status=403)
    with pytest.warns(RuntimeWarning, match="could not be found out"):
        array[0, 0] = 2
    assert array[0, 0] == 2
