# test_update_sequences.py - any sequence of updates, with every strategy, compared with an array in memory
# SPDX-License-Identifier: MIT
"""Random writes, erasures and reopenings. After each step zarr's own pipeline and TensorStore see the twin's values."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from folder_machine import FolderMachine
from helpers import files_below, ours, quiet, tensorstores_view, zarrs_view
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec

FILL = -1
SHAPE, SHARD, CHUNK = (20, 12), (12, 12), (4, 3)
CODECS = {
    "raw": [BytesCodec()],
    "crc32c": [BytesCodec(), Crc32cCodec()],
    "zstd": [BytesCodec(), ZstdCodec(level=1)],
}


def spans(extent: int) -> st.SearchStrategy[slice]:
    pairs = st.tuples(st.integers(0, extent - 1), st.integers(1, extent))
    return pairs.map(lambda p: slice(p[0], min(extent, p[0] + p[1])))


boxes = st.tuples(*(spans(extent) for extent in SHAPE))


class Updates(FolderMachine):
    @initialize(
        codec=st.sampled_from(sorted(CODECS)),
        location=st.sampled_from(["start", "end"]),
        direct=st.booleans(),
        write_empty=st.booleans(),
    )
    def create(self, codec: str, location: str, direct: bool, write_empty: bool) -> None:
        self.begin(direct=direct)
        sharding = ShardingCodec(chunk_shape=CHUNK, codecs=CODECS[codec], index_location=location)
        with quiet():
            zarr.create_array(
                self.folder / "a",
                shape=SHAPE,
                chunks=SHARD,
                dtype="int32",
                fill_value=FILL,
                serializer=sharding,
                compressors=None,
                config={"write_empty_chunks": write_empty},
            )
        self.twin = np.full(SHAPE, FILL, dtype="int32")
        self.array = ours(self.folder / "a")
        self.next = 0

    def choices(self, strategy: str, durability: str, compact: bool) -> Any:
        return shardcodec.options(write_strategy=strategy, durability=durability, compact=compact)

    @rule(
        box=boxes,
        strategy=st.sampled_from(["replace", "append", "append", "in_place", "in_place"]),
        durability=st.sampled_from(["rename", "rename", "fsync"]),
        compact=st.booleans(),
        scalar=st.booleans(),
    )
    def write(self, box: Any, strategy: str, durability: str, compact: bool, scalar: bool) -> None:
        self.next += 1000
        value: Any = self.next
        if not scalar:
            value = np.arange(self.next, self.next + self.twin[box].size, dtype="int32").reshape(
                self.twin[box].shape
            )
        with self.choices(strategy, durability, compact):
            self.array[box] = value
        self.twin[box] = value

    @rule(box=boxes, strategy=st.sampled_from(["replace", "append", "in_place"]), compact=st.booleans())
    def erase(self, box: Any, strategy: str, compact: bool) -> None:
        with self.choices(strategy, "rename", compact):
            self.array[box] = FILL
        self.twin[box] = FILL

    @rule(box=boxes)
    def zarr_writes(self, box: Any) -> None:
        self.next += 1000
        zarrs_view(self.array)[box] = self.next
        self.twin[box] = self.next

    @rule()
    def reopen(self) -> None:
        self.array = ours(self.folder / "a")

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "array"):
            return
        assert (self.array[...] == self.twin).all()
        assert (zarrs_view(self.array)[...] == self.twin).all()
        theirs = tensorstores_view(self.folder / "a")
        assert theirs is None or (theirs == self.twin).all()
        assert set(files_below(self.folder)) <= {"a/c/0/0", "a/c/1/0", "a/zarr.json"}


TestUpdates = Updates.TestCase
TestUpdates.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
