# test_object_stores.py - S3 behind a proxy that makes faults
# SPDX-License-Identifier: MIT
"""Writes through zarr's `ObjectStore` to a real server (moto): lost answers, refusals, and ignored conditions."""

from __future__ import annotations

import asyncio
import struct
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from shardcodec.storage import conditions
from shardcodec.storage import object_store as entity_store
from shardcodec.storage.object_store import ObjectStore as EntityStore
from shardcodec.storage.store import ObjectChanged

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
    """Create an array of four shards of 4 x 4 inner chunks. Only the first is stored, with ones."""
    array = checked(object_store(s3.store()))
    array[:8, :12] = 1
    return array


# ---- the server and the proxy themselves


def test_one_of_simultaneous_conditional_puts_wins(s3: S3Bucket) -> None:
    """moto compares the ETag and stores the object in two steps, between which other threads stored theirs."""
    import obstore

    store, names = s3.store(direct=True), [b"%d" % i for i in range(8)]

    def put(body: bytes) -> bool:
        try:
            obstore.put(store, "x", body, mode={"e_tag": before}, use_multipart=False)
        except obstore.exceptions.PreconditionError:
            return False
        return True

    with ThreadPoolExecutor(len(names)) as pool:
        for turn in range(20):
            before = obstore.put(store, "x", b"before %d" % turn)["e_tag"]
            won = list(pool.map(put, names))
            assert won.count(True) == 1
            assert bytes(obstore.get(store, "x").bytes()) == names[won.index(True)]


def test_proxy_makes_the_requested_faults(s3: S3Bucket) -> None:
    """A fault test that passes must have met its fault."""
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


def test_range_beyond_the_end_of_a_shorter_object_is_a_change(s3: S3Bucket) -> None:
    """`compact` beside writers ended with the error of obstore. moto looks at the range before the condition, and when the size was
    asked for afterwards, the object had grown again.
    """
    import obstore

    store = EntityStore(object_store(s3.store()))
    obstore.put(s3.store(), "a", bytes(100), use_multipart=False)
    answer = asyncio.run(store.get("a"))
    assert answer is not None
    obstore.put(s3.store(), "a", bytes(10), use_multipart=False)
    with pytest.raises(ObjectChanged):
        asyncio.run(store.get_range("a", 50, 60, answer.state))
    obstore.put(s3.store(), "a", bytes(90), use_multipart=False)
    with s3.proxy.fault(What.REFUSE, "GET", "a$", times=1, status=416), pytest.raises(ObjectChanged):
        asyncio.run(store.get_range("a", 50, 60, answer.state))


def test_range_that_was_beyond_the_end_is_requested_again_if_the_object_has_grown(s3: S3Bucket) -> None:
    import obstore

    store = EntityStore(object_store(s3.store()))
    obstore.put(s3.store(), "a", bytes(range(100)), use_multipart=False)
    for ask in (lambda: store.get_range("a", 90, 100), lambda: store.get_suffix("a", 10)):
        with s3.proxy.fault(What.REFUSE, "GET", "a$", times=1, status=416) as fault:
            answer = asyncio.run(ask())
        assert fault.n_done == 1
        assert answer is not None and bytes(answer.data) == bytes(range(90, 100))
    with s3.proxy.fault(What.REFUSE, "GET", "a$", status=403), pytest.raises(Exception, match="403"):
        asyncio.run(store.get_range("a", 90, 100))


def test_probe_is_sent_while_the_old_object_is_read(s3: S3Bucket) -> None:
    """It took a round trip of its own before the first update of each place."""
    array = array_in(s3)
    s3.proxy.seen.clear()
    with s3.proxy.fault(What.DELAY, "GET", path="c/0/0", seconds=0.5, times=1):
        array[0, 0] = 2
    assert ["probe" in one.path for one in s3.proxy.seen] == [True, False, False]


def test_probe_ends_although_the_read_beside_it_fails(s3: S3Bucket) -> None:
    """A probe that was given up could leave its object on a server that does not look at conditions."""
    from obstore.exceptions import PermissionDeniedError

    array = array_in(s3)
    with (
        s3.proxy.fault(What.DELAY, "PUT", path="probe", seconds=0.5),
        s3.proxy.fault(What.REFUSE, "GET", path="c/0/0", status=403),
        pytest.raises(PermissionDeniedError),
    ):
        array[0, 0] = 2
    assert conditions._checked
    assert not [name for name in s3.names() if "probe" in name]


# ---- errors that a retry does not cure


def test_missing_bucket_raises_at_once(s3: S3Bucket) -> None:
    """The engine took the refusal of a put-if-absent in a missing bucket for another writer's success, and retried
    for a minute.
    """
    array = array_in(s3)
    gone = object_store(s3.store(bucket="no-such-bucket"))
    array = zarr.Array(zarr.AsyncArray(array.metadata, zarr.storage.StorePath(gone)))
    shardcodec.attach(array, strict=True)
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        array[0, 0] = 2
    shard = shardcodec.open_shard(gone, "shard", letters_spec(), mode="r+")
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        shard.write_chunks([(0, 0)], [np.frombuffer(b"ZERO", "u1").reshape(2, 2)])
    assert [s3.proxy.n_seen("PUT", f"no-such-bucket/{name}") for name in ("c/0/0", "shard")] == [1, 1]


@pytest.mark.parametrize(("status", "name"), [(403, "PermissionDeniedError"), (401, "UnauthenticatedError")])
def test_forbidden_write_raises_at_once(s3: S3Bucket, status: int, name: str) -> None:
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
def test_update_with_a_lost_answer_is_done_once(s3: S3Bucket, what: What) -> None:
    """The client repeats the put, which is refused because the first one was stored. The engine took the refusal
    for another writer's.
    """
    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.seen.clear()
    with s3.proxy.fault(what, "PUT", "c/0/0", times=1) as fault:
        array[0, 1] = 3
    assert fault.n_done == 1
    assert s3.proxy.n_seen("PUT") == 2  # both by the client; shardcodec does not repeat it
    assert (array[0, :3] == [2, 3, 1]).all()


@LOST
def test_put_if_absent_with_a_lost_answer_is_done_once(s3: S3Bucket, what: What) -> None:
    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.seen.clear()
    with s3.proxy.fault(what, "PUT", "c/1/1", times=1) as fault:
        array[9, 13] = 3
    assert fault.n_done == 1
    assert s3.proxy.n_seen("PUT", "c/1/1") == 2
    assert array[9, 13] == 3


@LOST
def test_conditional_kv_write_with_a_lost_answer_succeeds(s3: S3Bucket, what: What) -> None:
    """The write reported a failed condition, though it had stored the value itself."""
    kv = ShardedKeyValueStore(
        (object_store(s3.store()), "shard"), grid_shape=(4,), index_codecs=[LITTLE, CRC]
    )
    first, second = (struct.pack(">I", i) for i in (0, 1))
    kv[first] = b"old"
    with s3.proxy.fault(what, "PUT", "/shard$", times=1) as fault:
        done = kv.write(second, b"new", if_equal="absent")
    assert fault.n_done == 1
    assert done.generation == kv.read(second).stamp.generation != FAILED
    assert dict(kv) == {first: b"old", second: b"new"}


def test_delete_with_a_lost_answer_is_repeated(s3: S3Bucket) -> None:
    array = array_in(s3)
    with s3.proxy.fault(What.CUT_AFTER, "POST|DELETE", times=1) as fault:
        array[:8, :12] = -1
    assert fault.n_done == 1
    assert s3.names() == ["zarr.json"]
    assert array[0, 0] == -1


def test_equal_object_of_another_writer_is_not_taken_for_the_own(s3: S3Bucket) -> None:
    """Two writers take the same lock with the same bytes. The writer whose repeated put is refused must not assume
    that it has the lock.
    """
    import obstore

    async def race() -> None:
        mine = EntityStore(object_store(s3.store()))
        theirs = EntityStore(object_store(s3.store(direct=True)))
        await theirs.put("lock", b"taken", None)
        with s3.proxy.fault(What.REFUSE, "PUT", "/lock$", times=1), pytest.raises(ObjectChanged):
            await mine.put("lock", b"taken", None)

    asyncio.run(race())
    assert bytes(obstore.get(s3.store(), "lock").bytes()) == b"taken"


def test_equal_object_that_another_writer_stores_between_two_looks_is_not_taken_for_the_own(
    s3: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look finds an object without an id, so the bytes are fetched: by then they are those of another writer, and have its id.

    Two writers took one lock, `random/628/579` of the explorer of schedules.
    """
    import obstore

    async def race() -> None:
        await obstore.put_async(s3.store(direct=True), "lock", b"free")
        mine = EntityStore(object_store(s3.store()))
        theirs = EntityStore(object_store(s3.store(direct=True)))
        found = await theirs.get("lock")
        look = obstore.get_async

        async def looked(store: Any, key: str, **more: Any) -> Any:
            answer = await look(store, key, **more)
            if more.get("options") == {"head": True} and answer.meta["size"] == 4:
                await theirs.put("lock", b"taken", found)
            return answer

        with s3.proxy.fault(What.CUT_BEFORE, "PUT", "/lock$"), monkeypatch.context() as patch:
            patch.setattr(obstore, "get_async", looked)
            with pytest.raises(obstore.exceptions.GenericError):
                await mine.put("lock", b"taken", found)

    asyncio.run(race())
    assert bytes(obstore.get(s3.store(), "lock").bytes()) == b"taken"


@pytest.mark.parametrize("own_nbytes", [0, 8 << 20], ids=["several buffers", "one buffer"])
def test_lost_answer_is_compared_by_bytes_without_object_metadata(
    s3: S3Bucket, own_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entity_store, "OWN_NBYTES", own_nbytes)
    array = array_in(s3)
    array[0, 0] = 2
    s3.proxy.add(What.STRIP, headers=("x-amz-meta-shardcodecwrite",))
    s3.proxy.seen.clear()
    with s3.proxy.fault(What.CUT_AFTER, "PUT", times=1) as fault:
        array[0, 1] = 3
    assert fault.n_done == 1
    assert s3.proxy.n_seen("PUT") == 2
    assert (array[0, :3] == [2, 3, 1]).all()


def test_write_without_an_answer_raises_the_error_of_the_store(s3: S3Bucket) -> None:
    import obstore

    array = array_in(s3)
    array[0, 0] = 2
    with s3.proxy.fault(What.CUT_BEFORE, "PUT"), pytest.raises(obstore.exceptions.GenericError):
        array[0, 1] = 3
    assert (array[0, :2] == [2, 1]).all()
    with s3.proxy.fault(What.REFUSE_AFTER, "PUT", status=400):  # stored; a client does not repeat a 400
        array[0, 1] = 3
    assert array[0, 1] == 3


# ---- servers that ignore conditions


def test_server_with_conditions_is_probed_once_and_the_probe_deleted(s3: S3Bucket) -> None:
    array = array_in(s3)
    s3.proxy.seen.clear()
    for column in range(3):
        array[0, column] = 2
    other = shardcodec.attach(zarr.open_array(object_store(s3.store()), mode="r+"), strict=True)
    other[0, 5] = 2  # through a copy of the store
    assert s3.proxy.n_seen("PUT", "probe") == 1
    assert s3.names() == ["c/0/0", "zarr.json"]


def test_removed_conditions_warn_once(s3: S3Bucket) -> None:
    """Updates ran as if there were no other writers: one of two concurrent updates was lost without a warning."""
    array = array_in(s3)
    s3.proxy.add(What.STRIP, headers=("If-Match", "If-None-Match"))
    with pytest.warns(RuntimeWarning, match=f"{s3.name}.*does not look at the conditions"):
        array[0, 0] = 2
    array[9, 13] = 3  # and no second warning
    assert array[0, 0] == 2 and array[9, 13] == 3
    assert s3.names() == ["c/0/0", "c/1/1", "zarr.json"]


def test_probe_that_cannot_be_deleted_is_named(s3: S3Bucket) -> None:
    array = array_in(s3)
    s3.proxy.add(What.STRIP, headers=("If-Match", "If-None-Match"))
    s3.proxy.add(What.REFUSE, "POST|DELETE", status=403)
    with pytest.warns(RuntimeWarning, match=r"'c/0/\.shardcodec-probe-[0-9a-f]+' was left"):
        array[0, 0] = 2


def test_removed_entity_tags_warn_once(s3: S3Bucket) -> None:
    """A conditional put needs an entity tag."""
    array = array_in(s3)
    s3.proxy.add(What.STRIP, "GET", headers=("ETag",))
    with pytest.warns(RuntimeWarning, match="does not name the states of objects"):
        array[0, 0] = 2
    array[0, 1] = 3  # and no second warning
    assert (array[0, :3] == [2, 3, 1]).all()


def test_store_configured_without_conditions_warns_once(s3: S3Bucket) -> None:
    array = checked(object_store(s3.store(conditional_put="disabled")))
    with pytest.warns(RuntimeWarning, match="configured to know no conditions"):
        array[0, 0] = 2
    array[0, 1] = 3  # and no second warning
    assert (array[0, :3] == [2, 3, -1]).all()


def test_forbidden_probe_warns_and_the_write_succeeds(s3: S3Bucket) -> None:
    """Permissions may allow only the names of chunks. The write succeeds, with a warning that conditions are
    unknown.
    """
    array = array_in(s3)
    s3.proxy.add(What.REFUSE, "PUT", "probe", status=403)
    with pytest.warns(RuntimeWarning, match="could not be found out"):
        array[0, 0] = 2
    assert array[0, 0] == 2
