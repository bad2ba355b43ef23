# icechunk_commit.py - write shards into an icechunk repository and commit them
# SPDX-License-Identifier: MIT
"""Change parts of shards in a session of icechunk, commit, and read an older version.

    python examples/icechunk_commit.py [FOLDER]

icechunk keeps every version of an object, so each write of a shard stays stored. A block of `group_writes` writes each
shard once for all changes. The versions are compared for equality. FOLDER is a new folder; default: a temporary one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import icechunk
import numpy as np
import zarr

import shardcodec

SHAPE, SHARD, CHUNK = (256, 256), (128, 128), (32, 32)


def main() -> None:
    """Make two versions and compare them."""
    shardcodec.enable()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "repository"
        repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))

        session = repository.writable_session("main")
        values = np.arange(SHAPE[0] * SHAPE[1], dtype="int32").reshape(SHAPE)
        zarr.create_array(session.store, name="map", data=values, shards=SHARD, chunks=CHUNK)
        first = session.commit("the whole map")

        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="map")
        with shardcodec.group_writes():
            for row in range(100, 150):  # in four shards
                array[row] = -row
        second = session.commit("rows 100 to 149")

        changed = values.copy()
        changed[100:150] = -np.arange(100, 150)[:, None]
        for snapshot, expected in ((first, values), (second, changed)):
            store = repository.readonly_session(snapshot_id=snapshot).store
            if not np.array_equal(zarr.open_array(store, path="map", mode="r")[...], expected):
                sys.exit(f"WRONG: version {snapshot} differs from what was committed")
        print("2 versions are equal to what was committed")


if __name__ == "__main__":
    main()
