# test_single_shards.py - shards of ShardWriter and Shard in other implementations, and foreign shards in Shard
# SPDX-License-Identifier: MIT
"""Headers, footers, gaps, alignment and slots are legal, but no other writer makes such shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from spec_json import CRC, LITTLE, zstd

import shardcodec
from shardcodec import ShardSpec, ShardWriter, chunk_state, open_shard

SHAPE, SHARD, CHUNK = (40, 60), (20, 30), (5, 6)
CODECS = {"raw": [LITTLE], "checked": [LITTLE, CRC], "zstd": [LITTLE, zstd()]}

Values = np.ndarray[Any, Any]


def values_of(seed: int = 3) -> Values:
    return np.random.default_rng(seed).integers(0, 60000, SHAPE, dtype=np.uint16)


def by_zarr(folder: Path) -> Values:
    return np.asarray(zarr.open_array(folder, mode="r")[...])


def by_tensorstore(folder: Path) -> Values:
    tensorstore = pytest.importorskip("tensorstore")
    store = {"driver": "file", "path": str(folder)}
    return np.asarray(tensorstore.open({"driver": "zarr3", "kvstore": store}).result().read().result())


READERS = pytest.mark.parametrize("read", [by_zarr, by_tensorstore])
EVERY = pytest.mark.parametrize("codecs", CODECS)
LOCATIONS = pytest.mark.parametrize("location", ["end", "start"])


def make(folder: Path, codecs: str, location: Any) -> ShardSpec:
    """Create an array without shards."""
    spec = ShardSpec(SHARD, CHUNK, "uint16", 0, CODECS[codecs], index_location=location)
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps(spec.to_metadata(SHAPE)))
    return spec


def parts(values: Values, at: tuple[int, int]) -> list[tuple[tuple[int, ...], Values]]:
    """Return the inner chunks of a shard in an order that no writer uses."""
    shard = values[at[0] * 20 : at[0] * 20 + 20, at[1] * 30 : at[1] * 30 + 30]
    cells = [((r, c), shard[r * 5 : r * 5 + 5, c * 6 : c * 6 + 6]) for r, c in np.ndindex(4, 5)]
    return cells[7:] + cells[:7]


@READERS
@EVERY
@LOCATIONS
def test_others_read_streamed_shards(
    tmp_path: Path, codecs: str, location: str, read: Callable[[Path], Values]
) -> None:
    folder, values = tmp_path / "a", values_of()
    spec = make(folder, codecs, location)
    for i, at in enumerate(np.ndindex(2, 2)):
        path = folder / f"c/{at[0]}/{at[1]}"
        extra: dict[str, Any] = {
            "header": b"II*\0" * i,
            "footer": b"tail" * i,
            "alignment": [1, 512, 4096, 8][i],
        }
        with ShardWriter(path, spec, **extra) as writer:
            for where, chunk in parts(values, at):
                writer.write_chunk(where, chunk)
    assert (read(folder) == values).all()
    assert chunk_state(folder).exists.all()


@READERS
@LOCATIONS
def test_others_read_shards_of_several_ranks(
    tmp_path: Path, location: str, read: Callable[[Path], Values]
) -> None:
    folder, values = tmp_path / "a", values_of()
    spec = make(folder, "checked", location)
    for at in np.ndindex(2, 2):
        token = ShardWriter.create(folder / f"c/{at[0]}/{at[1]}", spec, header=b"header")
        ranks = [ShardWriter.join(token) for _ in range(3)]
        for i, (where, chunk) in enumerate(parts(values, at)):
            ranks[i % 3].write_chunk(where, chunk)
        for rank in ranks[1:]:
            rank.close()
        ranks[0].commit(np.concatenate([rank.present for rank in ranks]), footer=b"footer")
    assert (read(folder) == values).all()


@READERS
@EVERY
@LOCATIONS
def test_others_read_updated_shards(
    tmp_path: Path, codecs: str, location: str, read: Callable[[Path], Values]
) -> None:
    folder, values = tmp_path / "a", values_of()
    spec = make(folder, codecs, location)
    zarr.open_array(folder, mode="r+")[...] = values
    rng = np.random.default_rng(8)
    for step in range(12):
        at, where = tuple(rng.integers(0, 2, 2)), tuple(rng.integers(0, (4, 5)))
        shard = open_shard(folder, f"c/{at[0]}/{at[1]}", spec, mode="r+")
        row, column = at[0] * 20 + where[0] * 5, at[1] * 30 + where[1] * 6
        chunk = rng.integers(0, 2 + 5000 * (step % 3), CHUNK, dtype=np.uint16)
        if step % 4 == 3:
            shard.erase([where], keep_user_bytes=True)
            chunk[...] = 0
        else:
            shard.write_chunks([where], chunk[None], footer=b"step %d" % step if step % 2 else None)
        if step % 5 == 4:
            shard.compact()
        values[row : row + 5, column : column + 6] = chunk
        assert (read(folder) == values).all()


@EVERY
@LOCATIONS
def test_foreign_shards_are_read_and_updated(tmp_path: Path, codecs: str, location: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    for name in ("zarr", "tensorstore"):
        folder, values = tmp_path / name, values_of()
        values[:7] = 0
        spec = make(folder, codecs, location)
        if name == "zarr":
            zarr.open_array(folder, mode="r+")[...] = values
        else:
            store = {"driver": "file", "path": str(folder)}
            tensorstore.open({"driver": "zarr3", "kvstore": store}).result().write(values).result()
        state = chunk_state(folder)
        assert (state.exists[0] == 0).all()
        assert state.exists[1:].all()
        shard = open_shard(folder, "c/1/0", spec)
        assert (shard.read_region() == values[20:, :30]).all()
        for where, chunk in parts(values, (1, 0)):
            assert (shard.read_chunks([where])[0] == chunk).all()
            (data,) = shard.read_encoded([where])
            assert (shardcodec.decode(data, spec.inner) == chunk).all()
