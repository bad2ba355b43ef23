# test_repair_on_s3.py - shards that are missing on a service of objects come from a copy
# SPDX-License-Identifier: MIT
"""`repair --copy COPY` ignored missing shards on S3: the new hierarchy had fill values there, and the exit code was 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from servers.s3 import S3Bucket, S3Server, missing_for_s3, s3_bucket, s3_server
from zarr.storage import FsspecStore, ObjectStore, StorePath

from shardcodec.tools import repair, verify

NAMES = "v", "g/plain", "g/empty"
VALUES = np.arange(1, 1025, dtype="uint16").reshape(32, 32)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    if (reason := missing_for_s3()) is not None:
        pytest.skip(reason)
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> Iterator[S3Bucket]:
    with s3_bucket(server) as one:
        yield one


def place(bucket: S3Bucket, server: S3Server, client: str, path: str) -> StorePath:
    """Return a path in the bucket, by a client."""
    if client == "obstore":
        return StorePath(ObjectStore(bucket.store(direct=True)), path)
    from obstore.fsspec import FsspecStore as FileSystem

    files = FileSystem(
        "s3",
        config={"endpoint": f"http://127.0.0.1:{server.port}", "region": "us-east-1", "access_key_id": "key"}
        | {"secret_access_key": "secret", "virtual_hosted_style_request": False},
        client_options={"allow_http": True},
        asynchronous=True,
    )
    return StorePath(FsspecStore(files, path=bucket.name), path)


def write(at: StorePath, zarr_format: Any) -> None:
    how: dict[str, Any] = {"shards": (16, 16)} if zarr_format == 3 else {}
    with quiet():
        group = zarr.create_group(at, zarr_format=zarr_format)
        group.create_array("v", data=VALUES, chunks=(8, 8), **how)
        group.create_array("g/plain", data=VALUES, chunks=(16, 16))
        group.create_array(
            "g/empty",
            shape=(32, 32),
            chunks=(16, 16),
            dtype="uint16",
            **({} if zarr_format == 2 else {"shards": (16, 16)}),
        )


@pytest.mark.parametrize(("client", "zarr_format"), [("obstore", 3), ("fsspec", 2)])
def test_missing_and_damaged_shards_come_from_the_copy(
    client: str, zarr_format: int, bucket: S3Bucket, server: S3Server, tmp_path: Path
) -> None:
    old, copy, new = (place(bucket, server, client, path) for path in ("old", "copy", "new"))
    for at in (old, copy):
        write(at, zarr_format)
    raw = bucket.store(direct=True)
    first = "c/0/0" if zarr_format == 3 else "0.0"
    second = "c/1/1" if zarr_format == 3 else "1.1"
    lost = [f"old/v/{first}", f"old/g/plain/{second}", f"old/g/plain/{first}"]
    for key in lost:
        raw.delete(key)
    raw.put(f"old/v/{second}", b"damaged")
    found = verify(old, against=copy)
    assert found.kinds["missing shard"] == 3
    assert sum(one.shard.endswith(tuple(lost)) for one in found.shards) == 3
    planned = repair(old, copy=copy, dry_run=True)
    report = repair(old, to=new, copy=copy)
    for one in (planned, report):
        assert (one.n_damaged, one.n_restored, one.n_lost_chunks) == (4, 4, 0)
    names = bucket.names()
    assert {key.removeprefix("new/") for key in names if key.startswith("new/")} == {
        key.removeprefix("copy/") for key in names if key.startswith("copy/")
    }
    assert not verify(new, against=copy, level="decode").n_findings
    with quiet():
        group = zarr.open_group(new, mode="r")
        for name in ("v", "g/plain"):
            np.testing.assert_array_equal(group[name][...], VALUES)
    with_backup = repair(old, backup=tmp_path / "backup", copy=copy)
    assert (with_backup.n_damaged, with_backup.n_restored) == (4, 4)
    assert not verify(old, against=copy, level="decode").n_findings
    assert not repair(old, copy=copy, dry_run=True).n_damaged
