# test_user_bytes.py - shards with header, footer, alignment and mark in other programs
# SPDX-License-Identifier: MIT
"""Other programs read such shards at every stage like ordinary ones. The shards that they write have no user bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec import ShardSpec, ShardWriter, open_shard
from shardcodec.access.user_bytes import MAGIC

SHAPE, CHUNK = (8, 8), (4, 4)
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CODECS = {
    "raw": [LITTLE],
    "zstd": [LITTLE, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
}
ZARRS = "zarrs.ZarrsCodecPipeline"


def by_zarr(folder: Path) -> Any:
    return zarr.open_array(folder, mode="r+")


def by_zarrs(folder: Path) -> Any:
    pytest.importorskip("zarrs")
    with zarr.config.set({"codec_pipeline.path": ZARRS}):
        return zarr.open_array(folder, mode="r+")


class Tensorstore:
    """An array of TensorStore, indexed like one of zarr."""

    def __init__(self, folder: Path) -> None:
        tensorstore = pytest.importorskip("tensorstore")
        store = {"driver": "file", "path": str(folder)}
        self.array = tensorstore.open({"driver": "zarr3", "kvstore": store}).result()

    def __getitem__(self, selection: Any) -> Any:
        return self.array[selection].read().result()

    def __setitem__(self, selection: Any, value: Any) -> None:
        self.array[selection].write(value).result()


OTHERS = pytest.mark.parametrize(
    "other", [by_zarr, by_zarrs, Tensorstore], ids=["zarr", "zarrs", "tensorstore"]
)
EVERY = pytest.mark.parametrize("codecs", CODECS)
LOCATIONS = pytest.mark.parametrize("location", ["end", "start"])


def make(folder: Path, codecs: str, location: Any, n: int = 3) -> tuple[Any, Any]:
    """Create an array of one shard with n inner chunks. Return the shard and its expected elements."""
    spec = ShardSpec(SHAPE, CHUNK, "uint16", 7, CODECS[codecs], index_location=location)
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps(spec.to_metadata(SHAPE)))
    values = np.full(SHAPE, 7, "uint16")
    with ShardWriter(folder / "c/0/0", spec, header=b"header", footer=b"footer", alignment=64) as writer:
        for r, c in [(0, 1), (1, 1), (0, 0)][:n]:
            chunk = np.arange(16, dtype="uint16").reshape(CHUNK) + 100 * r + 1000 * c
            writer.write_chunk((r, c), chunk)
            values[4 * r : 4 * r + 4, 4 * c : 4 * c + 4] = chunk
    return open_shard(folder / "c/0/0", None, spec, mode="r+"), values


def user_bytes(shard: Any) -> tuple[bytes, bytes, int]:
    shard.refresh()
    return shard.header, shard.footer, shard.alignment


@OTHERS
@EVERY
@LOCATIONS
@pytest.mark.parametrize("n", range(4))
def test_others_read_every_stage(
    tmp_path: Path, other: Callable[[Path], Any], codecs: str, location: str, n: int
) -> None:
    shard, values = make(tmp_path / "a", codecs, location, n)

    def check() -> None:
        assert user_bytes(shard) == (b"header", b"footer", 64)
        assert (other(tmp_path / "a")[...] == values).all()
        assert other(tmp_path / "a")[5, 2] == values[5, 2]

    check()
    for number, strategy in enumerate(["append", "in_place", "replace", "append"]):
        chunk = np.full((1, *CHUNK), number * 3, "uint16")
        shard.write_chunks([(1, 0)], chunk, strategy=strategy, keep_user_bytes=strategy == "replace" or None)
        values[4:, :4] = number * 3
        check()
    shard.compact()
    check()


@OTHERS
@EVERY
@LOCATIONS
def test_shards_rewritten_by_others_have_no_user_bytes(
    tmp_path: Path, other: Callable[[Path], Any], codecs: str, location: str
) -> None:
    """Other programs rewrite the whole shard without the bytes that no entry refers to, the mark included. Then no
    old mark is trusted.
    """
    shard, values = make(tmp_path / "a", codecs, location)
    other(tmp_path / "a")[6, 1] = values[6, 1] = 9
    assert MAGIC not in shard.refresh().tobytes()
    assert user_bytes(shard)[:2] == (b"", b"")
    with shardcodec.options(write_strategy="append"):
        shard.write_chunks([(0, 0)], np.full((1, *CHUNK), 5, "uint16"))
    values[:4, :4] = 5
    assert (other(tmp_path / "a")[...] == values).all()
    assert user_bytes(shard)[:2] == (b"", b"")
