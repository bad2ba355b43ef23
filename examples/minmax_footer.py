# minmax_footer.py - a table of columns with the smallest and largest value of each inner chunk in the shards' footers
# SPDX-License-Identifier: MIT
"""Range queries on a sorted column that read indexes and footers only.

The columns of a table are 1-D sharded arrays of one group, all with the same shards and inner chunks, so that row i of
every column is in the inner chunk of the same place:

    time          float64, sorted: the column that is searched
    level         float32
    station       text of any length (vlen-utf8); also read as Arrow has it in memory
    hits/ends     a ragged column, any number of values in a row: where in hits/values the values of each row end
    hits/values   the values of all rows, one after the other, with shards of its own

Shards of the column that is searched carry a footer:

    [inner chunks][footer: "minmax01", then lowest and highest value of each inner chunk][index]

Nothing in the Zarr format knows of it: zarr, TensorStore and all others read the arrays as always. `docs/user-bytes.md`
explains; this program makes a table, asks it something, changes it, and checks all that against numpy.

    python examples/minmax_footer.py [folder]
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def find(group: zarr.Group, low: float, high: float) -> tuple[slice, int]:
    """Return the rows with low <= time <= high, and the bytes of indexes and footers that finding them took."""
    first, last, n_read = rows_between(group["time"], low, high)
    if first >= last:
        return slice(0, 0), n_read
    times = group["time"][first:last]  # the inner chunks that can match, and no other
    begin, end = np.searchsorted(times, low), np.searchsorted(times, high, side="right")
    return slice(first + int(begin), first + int(end)), n_read


def read_rows(group: zarr.Group, rows: slice) -> dict[str, Any]:
    """Return all columns of some rows; of the ragged one a list of arrays."""
    found = {name: group[name][rows] for name in ("time", "level", "station")}
    return found | {"hits": read_ragged(group["hits"], rows)}


def read_stations(folder: Path, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return the column of text as Arrow has it in memory: where each element begins, and the bytes of all."""
    return shardcodec.open_array(folder / "station").read_arrow(rows)


def assert_same_in_arrow(offsets: np.ndarray, data: np.ndarray, expected: np.ndarray) -> None:
    """Compare a column of text with numpy's; with pyarrow, which takes it without a copy, if it is installed."""
    assert data.tobytes() == "".join(expected).encode() and len(offsets) == len(expected) + 1
    if importlib.util.find_spec("pyarrow"):
        import pyarrow as pa

        buffers = pa.py_buffer(offsets), pa.py_buffer(data)
        column = pa.LargeStringArray.from_buffers(len(expected), *buffers)
        assert column.to_pylist() == expected.tolist()


def write_ragged(group: zarr.Group, rows: list[np.ndarray]) -> None:
    """Write a ragged column: the ends like any other column, the values as one long array."""
    values = np.concatenate(rows)
    ends = np.cumsum([len(row) for row in rows])
    for name, array in (("ends", ends), ("values", values)):
        group.create_array(name, shape=array.shape, shards=(SHARD,), chunks=(CHUNK,), dtype=array.dtype)[
            :
        ] = array


def read_ragged(group: zarr.Group, rows: slice) -> list[np.ndarray]:
    """Read rows of a ragged column: their ends, then their values in one piece."""
    if rows.start == rows.stop:
        return []
    ends = group["ends"][max(0, rows.start - 1) : rows.stop]
    if rows.start == 0:
        ends = np.concatenate([[0], ends])
    return np.split(group["values"][ends[0] : ends[-1]], ends[1:-1] - ends[0])


def main(folder: Path) -> None:
    """Make a table, ask, change, ask again."""
    shardcodec.enable()
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 1e6, ROWS))
    levels = rng.normal(size=ROWS).astype("float32")

    names = np.array(["Århus", "Ny-Ålesund", "", "Ulaanbaatar", "東京"], dtype=np.dtypes.StringDType())
    stations = names[rng.integers(len(names), size=ROWS)]
    hits = np.split(np.arange(3 * ROWS // 2), np.sort(rng.integers(3 * ROWS // 2, size=ROWS - 1)))

    group = zarr.create_group(folder, overwrite=True)
    for name, dtype in (("time", "float64"), ("level", "float32"), ("station", str)):
        group.create_array(name, shape=ROWS, shards=(SHARD,), chunks=(CHUNK,), dtype=dtype)
    write_column(folder, group["time"], times)
    group["level"][:], group["station"][:] = levels, stations
    write_ragged(group.create_group("hits"), hits)
    size = sum(f.stat().st_size for f in (folder / "time").rglob("*") if f.is_file())

    for low, high in ((250_000.0, 250_900.0), (999_990.0, 2e6), (-5.0, -1.0)):
        rows, n_read = find(group, low, high)
        found, expected = read_rows(group, rows), np.flatnonzero((times >= low) & (times <= high))
        assert np.array_equal(found["time"], times[expected])
        assert np.array_equal(found["level"], levels[expected])
        assert np.array_equal(found["station"], stations[expected])
        assert_same_in_arrow(*read_stations(folder, rows), stations[expected])
        assert list(map(list, found["hits"])) == [list(hits[row]) for row in expected]
        n_hits = sum(map(len, found["hits"]))
        print(
            f"{low:>9} to {high:>9}: {len(expected):5} rows, found with {n_read} of {size} bytes of the column; "
            f"{n_hits} hits"
        )

    # a change of inner chunks and of the footer, in one step: no reader ever sees one without the other
    shard = shards_of(group["time"])[0]
    chunks = shard.read_chunks(np.arange(shard.grid_shape[0])[:, None])
    chunks[0, :10] = -3.0
    shard.write_chunks([(0,)], chunks[:1], footer=minmax_footer(chunks))
    times[:10] = -3.0
    assert find(group, -5.0, -1.0)[0] == slice(0, 10)

    shardcodec.disable()
    plain = zarr.open_group(folder, mode="r")
    assert np.array_equal(plain["time"][:], times)
    assert np.array_equal(plain["station"][-100:], stations[-100:])
    assert list(read_ragged(plain["hits"], slice(0, 1))[0]) == list(hits[0])
    print("after a change: found again; zarr by itself reads the same columns")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary) / "table.zarr")
