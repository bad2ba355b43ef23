# mpi_slots.py - the ranks of an MPI job write one shard together
# SPDX-License-Identifier: MIT
"""Every rank writes its inner chunks of one shard, at the same time and without locks.

    mpiexec -n 4 python examples/mpi_slots.py FOLDER

The inner chunks are not compressed, so the place of each one (its slot) is known before it is written. Rank 0 creates the
array and the file of the shard, all ranks write their slots, and rank 0 writes the index and gives the file its name.
Until then no reader sees the shard. Needs mpi4py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import zarr
from mpi4py import MPI

import shardcodec

SHARD, CHUNK = (256, 256), (64, 64)


def field(row: int, column: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the elements of one inner chunk: what the rank has computed."""
    rows = np.arange(row * CHUNK[0], (row + 1) * CHUNK[0])
    columns = np.arange(column * CHUNK[1], (column + 1) * CHUNK[1])
    return rows[:, None] * 1000.0 + columns


def create(folder: Path) -> bytes:
    """Create the array and the file of its only shard; return the token of the file."""
    array = zarr.create_array(
        folder, shape=SHARD, shards=SHARD, chunks=CHUNK, dtype="float64", compressors=None, overwrite=True
    )
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    return shardcodec.ShardWriter.create(shard_of(folder), spec)


def shard_of(folder: Path) -> Path:
    """Return the path of the shard."""
    return folder / "c" / "0" / "0"


def main() -> None:
    """Write the shard; rank 0 compares it."""
    ranks = MPI.COMM_WORLD
    folder = Path(sys.argv[1])
    token = ranks.bcast(create(folder) if ranks.rank == 0 else None)
    with shardcodec.ShardWriter.join(token) as part:
        places = list(np.ndindex(*part.grid_shape))
        for row, column in places[ranks.rank :: ranks.size]:
            part.write_chunk((row, column), field(row, column))
    # Also the barrier: every rank has closed its part when rank 0 has all positions.
    present = ranks.gather(part.present)
    if ranks.rank == 0:
        shardcodec.ShardWriter.join(token).commit(np.concatenate(present))
        stored = zarr.open_array(folder, mode="r")[...]
        expected = np.block([[field(row, column) for column in range(4)] for row in range(4)])
        if not np.array_equal(stored, expected):
            sys.exit("WRONG: the shard differs from what the ranks wrote")
        print(f"{ranks.size} ranks wrote {len(places)} inner chunks of one shard: all elements are equal")


if __name__ == "__main__":
    main()
