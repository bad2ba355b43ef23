# test_uploads.py - shards that are stored in parts, on a server behind a proxy that makes faults
# SPDX-License-Identifier: MIT
"""Multipart uploads to a real server (moto): their requests, lost answers, refusals, and what a failure leaves."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from servers.proxy import What
from servers.s3 import SIGNED, S3Bucket, S3Server, missing_for_s3, s3_bucket, s3_server
from spec_json import LITTLE

import shardcodec
from shardcodec.access import streamed_shard
from shardcodec.storage.kinds import store_of
from shardcodec.storage.store import StreamedObject

MISSING = missing_for_s3()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

# S3 accepts no part below 5 MiB, so objects have 20.
SHAPE = (20, 1 << 20)
SPEC = shardcodec.ShardSpec(SHAPE, (1, 1 << 20), "uint8", 0, codecs=[LITTLE])
VALUES = np.arange(SHAPE[0] * SHAPE[1], dtype="uint32").reshape(SHAPE).astype("uint8") | 1
UPLOAD = r"uploadId="


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    monkeypatch.setattr(streamed_shard, "LEAST_NBYTES", 16 << 20)
    with s3_bucket(server) as bucket:
        yield bucket


def new_array(store: Any) -> Any:
    return zarr.create_array(
        store,
        name="array",
        shape=SHAPE,
        chunks=(1, SHAPE[1]),
        shards=SHAPE,
        dtype="uint8",
        compressors=None,
    )


def assign(store: Any, values: Any) -> None:
    """Write a shard by a zarr assignment."""
    shardcodec.attach(new_array(store), strict=True)[...] = values


def by_handle(store: Any, values: Any) -> None:
    """Write a shard by a handle, which held the whole shard in memory: its box had steps of 1."""
    new_array(store)
    shardcodec.open_array(store, "array", mode="r+")[...] = values


def stream(store: Any, values: Any) -> None:
    """Write a shard by a `ShardWriter`."""
    with shardcodec.ShardWriter(store, SPEC, key="array/c/0/0") as writer:
        for row in range(len(values)):
            writer.write_chunk((row, 0), values[row : row + 1])


WAYS = pytest.mark.parametrize("way", [assign, by_handle, stream])


def uploads(s3: S3Bucket, server: S3Server) -> int:
    """Count unfinished uploads."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", f"/{s3.name}?uploads", headers={"Authorization": SIGNED})
    body = connection.getresponse().read()
    connection.close()
    return body.count(b"<UploadId>")


def value(s3: S3Bucket) -> Any:
    """Return the elements of the shard, read without the proxy."""
    return shardcodec.decode(bytes(s3.store(direct=True).get("array/c/0/0").bytes()), SPEC)


@WAYS
def test_parts_are_uploaded_and_completed_once(way: Any, s3: S3Bucket, server: S3Server) -> None:
    way(zarr.storage.ObjectStore(s3.store()), VALUES)
    assert np.array_equal(value(s3), VALUES)
    assert [
        s3.proxy.n_seen(method, "/c/0/0.*" + path)
        for method, path in (("POST", "uploads"), ("PUT", UPLOAD), ("POST", UPLOAD))
    ] == [1, 3, 1]
    assert uploads(s3, server) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "method", "path"),
    [
        (What.REFUSE, "PUT", "partNumber=2"),
        (What.CUT_BEFORE, "PUT", "partNumber=1"),
        (What.CUT_WITHIN, "PUT", "partNumber=3"),
        (What.CUT_AFTER, "PUT", "partNumber=2"),
        (What.REFUSE, "POST", "uploads="),
        (What.CUT_BEFORE, "POST", UPLOAD),
        (What.CUT_AFTER, "POST", UPLOAD),
        (What.REFUSE_AFTER, "POST", UPLOAD),
    ],
)
def test_passing_faults_are_survived(what: What, method: str, path: str, s3: S3Bucket) -> None:
    with s3.proxy.fault(what, method, path, times=1) as fault:
        stream(zarr.storage.ObjectStore(s3.store()), VALUES)
    assert fault.n_done == 1
    assert np.array_equal(value(s3), VALUES)


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/c/0/0.uploads="), ("PUT", "partNumber=2"), ("POST", UPLOAD)]
)
def test_lasting_refusal_keeps_the_old_shard(
    way: Any, method: str, path: str, s3: S3Bucket, server: S3Server
) -> None:
    """The error of the store is raised, and the upload is aborted."""
    import obstore

    store = zarr.storage.ObjectStore(s3.store())
    stream(store, VALUES[:1])
    with (
        s3.proxy.fault(What.REFUSE, method, path, status=403),
        pytest.raises(obstore.exceptions.PermissionDeniedError),
    ):
        way(store, VALUES)
    assert np.array_equal(value(s3)[:1], VALUES[:1])
    assert not value(s3)[1:].any()
    assert uploads(s3, server) == 0


def test_lost_answer_of_a_completed_upload_is_success(s3: S3Bucket) -> None:
    """The id in the metadata tells that the object is stored, although all answers are lost."""
    with s3.proxy.fault(What.REFUSE_AFTER, "POST", UPLOAD, status=403) as fault:
        stream(zarr.storage.ObjectStore(s3.store()), VALUES)
    assert fault.n_done == 1
    assert np.array_equal(value(s3), VALUES)


def test_aborted_writer_aborts_the_upload(s3: S3Bucket, server: S3Server) -> None:
    writer = shardcodec.ShardWriter(zarr.storage.ObjectStore(s3.store()), SPEC, key="aborted")
    writer.write_chunks([(row, 0) for row in range(20)], VALUES[:, None])
    while not s3.proxy.n_seen("POST", "uploads="):
        time.sleep(0.01)
    writer.abort()
    assert uploads(s3, server) == 0
    assert s3.names() == []


async def test_cancelled_upload_is_aborted(s3: S3Bucket, server: S3Server) -> None:
    """obstore itself leaves the upload if its task is cancelled."""
    reached = asyncio.Event()

    async def pieces() -> Any:
        for _ in range(3):
            yield bytes(8 << 20)
        reached.set()
        await asyncio.sleep(0.2)
        yield b"end"

    store = store_of(zarr.storage.ObjectStore(s3.store()))
    task = asyncio.ensure_future(store.put_parts("cancelled", StreamedObject(pieces, 25 << 20)))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert uploads(s3, server) == 0
    assert s3.names() == []


# Prints by how many MiB the peak of resident memory grows while a shard of the given size is written.
CLIENT = """
import os, sys
import numpy as np
import zarr
import shardcodec
from shardcodec.storage.kinds import at_url

port, bucket, mib, way = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
store = at_url(f"s3://{bucket}", dict(
    endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key_id="a", secret_access_key="b",
    virtual_hosted_style_request=False, client_options={"allow_http": True, "timeout": "300s"}))
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10
def write(name, mib):
    array = zarr.create_array(store, name=name, shape=(mib, 1024, 1024), chunks=(1, 256, 1024), shards=(mib, 1024, 1024),
                              dtype="u1", compressors=None)
    if way == "assign":
        shardcodec.attach(array, strict=True)[...] = values[:mib]
        return
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    with shardcodec.ShardWriter(store, spec, key=f"{name}/c/0/0/0") as writer:
        for i in range(mib):
            writer.write_chunks([(i, j, 0) for j in range(4)], values[i].reshape(4, 1, 256, 1024))
values = np.full((mib, 1024, 1024), 3, "u1")
write("small", 4)  # first use: imports, threads, connections
open("/proc/self/clear_refs", "w").write("5")
before = peak()
write("large", mib)
print(peak() - before, flush=True)
os._exit(0)  # at a normal exit, a thread of obstore that delivers a result would abort the process
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc/self/clear_refs")
@pytest.mark.parametrize("way", ["assign", "stream"])
def test_memory_of_a_new_shard_is_some_parts(way: str, server: S3Server) -> None:
    mib = int(os.environ.get("SHARDCODEC_TEST_SHARD_MIB", "512"))
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(CLIENT),
        str(server.port),
        server.make_bucket(),
        str(mib),
        way,
    ]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )
    assert int(done.stdout) <= 200
