# minmax_footer.py - a table of columns with the smallest and largest value of each inner chunk in the shards' footers
# SPDX-License-Identifier: MIT
"""Range queries on a sorted column that read indexes and footers only.

The columns of a table are 1-D sharded arrays of one group, all with the same shards and inner chunks, so that row i of
every column is in the inner chunk of the same place. Shards of the column that is searched carry a footer:

    [inner chunks][footer: "minmax01", then lowest and highest value of each inner chunk][index]

Nothing in the Zarr format knows of it: zarr, TensorStore and all others read the arrays as always. `docs/user-bytes.md`
explains; this program makes a table, asks it something, changes it, and checks all that against numpy.

    python examples/minmax_footer.py [folder]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import shardcodec

ROWS, SHARD, CHUNK = 1_000_000, 131_072, 4_096
MAGIC = b"minmax01"


def minmax_footer(chunks: np.ndarray) -> bytes:
    """Make a footer from the inner chunks of a shard, one per row."""
    table = np.stack([chunks.min(axis=1), chunks.max(axis=1)], axis=1)
    return MAGIC + table.astype(table.dtype.newbyteorder("<")).tobytes()


def parse_footer(footer: bytes, dtype: np.dtype) -> np.ndarray | None:
    """Return lowest and highest value of each inner chunk; None for a shard without such a footer."""
    if not footer.startswith(MAGIC):
        return None
    return np.frombuffer(footer, dtype=dtype.newbyteorder("<"), offset=len(MAGIC)).reshape(-1, 2)


def shards_of(column: zarr.Array) -> list[shardcodec.Shard]:
    """Open the shards of a column."""
    spec = shardcodec.ShardSpec.from_metadata(column.metadata.to_dict())
    return [
        shardcodec.open_shard(column.store_path, column.metadata.encode_chunk_key((i,)), spec, mode="r+")
        for i in range(-(-column.shape[0] // SHARD))
    ]


def write_column(folder: Path, column: zarr.Array, values: np.ndarray) -> None:
    """Write a column, shard by shard, with footers; the last shard is filled up with its last value."""
    spec = shardcodec.ShardSpec.from_metadata(column.metadata.to_dict())
    n = -(-len(values) // SHARD)
    padded = np.pad(values, (0, n * SHARD - len(values)), mode="edge").reshape(n, SHARD // CHUNK, CHUNK)
    for i, chunks in enumerate(padded):
        path = folder / column.path / column.metadata.encode_chunk_key((i,))
        footer = minmax_footer(chunks)
        with shardcodec.ShardWriter(path, spec, footer=footer, write_empty_chunks=True) as writer:
            writer.write_chunks(np.arange(len(chunks))[:, None], chunks)


def rows_between(column: zarr.Array, low: float, high: float) -> tuple[int, int, int]:
    """Find the rows of a sorted column that can hold values in [low, high], and count the bytes that it took."""
    first, last, n_read = column.shape[0], 0, 0
    for i, shard in enumerate(shards_of(column)):
        footer = shard.footer
        n_read += len(footer) + shard.spec.index_nbytes
        table = parse_footer(footer, column.dtype)
        if table is None:
            hit = np.arange(shard.grid_shape[0])  # nothing known: all of them can
        else:
            hit = np.flatnonzero((table[:, 1] >= low) & (table[:, 0] <= high))
        if len(hit):
            first = min(first, i * SHARD + int(hit[0]) * CHUNK)
            last = max(last, i * SHARD + (int(hit[-1]) + 1) * CHUNK)
    return first, min(last, column.shape[0]), n_read


def query(group: zarr.Group, low: float, high: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Return time and level of all rows with low <= time <= high, and the bytes that finding them took."""
    time, level = group["time"], group["level"]
    first, last, n_read = rows_between(time, low, high)
    if first >= last:
        return time[:0], level[:0], n_read
    times = time[first:last]  # the inner chunks that can match, and no other
    match = slice(first + np.searchsorted(times, low), first + np.searchsorted(times, high, side="right"))
    return time[match], level[match], n_read


def main(folder: Path) -> None:
    """Make a table, ask, change, ask again."""
    shardcodec.enable()
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 1e6, ROWS))
    levels = rng.normal(size=ROWS).astype("float32")

    group = zarr.create_group(folder, overwrite=True)
    for name, values in (("time", times), ("level", levels)):
        group.create_array(name, shape=ROWS, shards=(SHARD,), chunks=(CHUNK,), dtype=values.dtype)
    write_column(folder, group["time"], times)
    group["level"][:] = levels
    size = sum(f.stat().st_size for f in (folder / "time").rglob("*") if f.is_file())

    for low, high in ((250_000.0, 250_900.0), (999_990.0, 2e6), (-5.0, -1.0)):
        found, level, n_read = query(group, low, high)
        expected = (times >= low) & (times <= high)
        assert np.array_equal(found, times[expected])
        assert np.array_equal(level, levels[expected])
        print(
            f"{low:>9} to {high:>9}: {len(found):5} rows, found with {n_read} of {size} bytes of the column"
        )

    # a change of inner chunks and of the footer, in one step: no reader ever sees one without the other
    shard = shards_of(group["time"])[0]
    chunks = shard.read_chunks(np.arange(shard.grid_shape[0])[:, None])
    chunks[0, :10] = -3.0
    shard.write_chunks([(0,)], chunks[:1], footer=minmax_footer(chunks))
    times[:10] = -3.0
    found, _, _ = query(group, -5.0, -1.0)
    assert np.array_equal(found, times[:10])

    shardcodec.disable()
    assert np.array_equal(zarr.open_group(folder, mode="r")["time"][:], times)
    print("after a change: found again; zarr by itself reads the same column")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary) / "table.zarr")
