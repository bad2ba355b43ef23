# test_user_bytes.py - header, footer and alignment through any sequence of updates of one shard
# SPDX-License-Identifier: MIT
"""User bytes stay through every update with strategy append or in_place, and other bytes are never taken for them.

The twin holds the inner chunks. Header and footer are bytes that could be mistaken for something else: zeros, a
mark, inner chunks. The test limits the growth of the file by an update to what the update writes, so that nothing
is copied from one update to the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from folder_machine import FolderMachine
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from spec_json import LITTLE, named

import shardcodec
from shardcodec.access.user_bytes import MAGIC, MARK
from shardcodec.options import override

SHAPE, CHUNK = (8, 12), (4, 3)
GRID = (2, 4)
BLOCK_NBYTES = 4096
CODECS = {
    "raw": [LITTLE],
    "zstd": [LITTLE, named("zstd", level=1, checksum=False)],
}

odd_bytes = st.sampled_from([b"\0", b"\0" * 7 + b"\1", b"\1" + b"\0" * 9, MAGIC, MAGIC * 3 + b"x" * 40])
user_bytes = st.lists(odd_bytes | st.binary(max_size=40), max_size=3).map(b"".join)
footers = user_bytes | st.builds(lambda n, end: b"f" * n + end, st.integers(4000, 9000), user_bytes)
coords = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=4, unique=True)


class UserBytes(FolderMachine):
    @initialize(
        codec=st.sampled_from(sorted(CODECS)),
        location=st.sampled_from(["start", "end"]),
        direct=st.booleans(),
        header=user_bytes,
        footer=footers,
        alignment=st.sampled_from([1, 1, 64, 512, 4096]),
        where=st.just([]) | coords,
    )
    def create(
        self,
        codec: str,
        location: str,
        direct: bool,
        header: bytes,
        footer: bytes,
        alignment: int,
        where: Any,
    ) -> None:
        self.begin(direct=direct)
        index_codecs = [LITTLE, named("crc32c")]
        self.spec = shardcodec.ShardSpec(SHAPE, CHUNK, "int32", -1, CODECS[codec], index_codecs, location)
        self.twin: dict[Any, int] = {}
        path = self.folder / "shard"
        with shardcodec.ShardWriter(path, self.spec, header=header, alignment=alignment) as writer:
            for number, place in enumerate(where):
                writer.write_chunk(place, np.full(CHUNK, number, "int32"))
                self.twin[place] = number
            writer.footer = footer
        self.header, self.footer, self.alignment, self.next = header, footer, alignment, 1000
        # without a mark, offsets can be aligned by chance
        self.is_plain = not header and not footer and alignment == 1

    def opened(self) -> Any:
        return shardcodec.open_shard(self.folder, "shard", self.spec, mode="r+")

    def update(self, strategy: str, compact: bool, where: Any, work: Any) -> None:
        before = self.opened().nbytes
        alignment = self.opened().alignment  # by chance it can be more than requested
        with override({"write_strategy": strategy, "compact": compact}):
            work(self.opened())
        added = self.opened().nbytes - before
        chunks = len(where) * (CHUNK[0] * CHUNK[1] * 4 + 32 + alignment)
        most = chunks + len(self.footer) + self.spec.index_nbytes + MARK.size + 2 * BLOCK_NBYTES
        assert added <= most

    @rule(where=coords, strategy=st.sampled_from(["append", "append", "in_place"]), compact=st.booleans())
    def write(self, where: Any, strategy: str, compact: bool) -> None:
        self.next += 1
        chunks = np.full((len(where), *CHUNK), self.next, "int32")
        chunks[:, 0, :] += np.arange(len(where))[:, None] * (self.next % 3)  # chunks of several encoded sizes
        self.update(strategy, compact, where, lambda shard: shard.write_chunks(where, chunks))
        self.twin.update(zip(where, chunks, strict=True))

    @rule(where=coords, strategy=st.sampled_from(["append", "append", "in_place"]), compact=st.booleans())
    def erase(self, where: Any, strategy: str, compact: bool) -> None:
        if set(self.twin) <= set(where):
            return  # an empty shard is deleted
        self.update(strategy, compact, where, lambda shard: shard.erase(where))
        for place in where:
            self.twin.pop(place, None)

    @rule(where=coords)
    def replace(self, where: Any) -> None:
        self.next += 1
        chunks = np.full((len(where), *CHUNK), self.next, "int32")
        self.opened().write_chunks(where, chunks, keep_user_bytes=True)
        self.twin.update(zip(where, chunks, strict=True))

    @rule(where=coords, footer=footers)
    def replace_footer(self, where: Any, footer: bytes) -> None:
        """Erase inner chunks and store another footer in one step. A shard with a footer may have no inner chunks."""
        if set(self.twin) <= set(where) and not footer:
            return
        self.opened().erase(where, footer=footer)
        self.footer = footer
        for place in where:
            self.twin.pop(place, None)

    @rule()
    def compact(self) -> None:
        self.opened().compact()

    @invariant()
    def every_part_is_stored(self) -> None:
        if not hasattr(self, "twin"):
            return
        shard = self.opened()
        assert shard.header == self.header
        assert shard.footer == self.footer
        assert shard.alignment == self.alignment or self.is_plain
        offsets = shard.index.reshape(-1, 2)[:, 0]
        assert not np.any(offsets[offsets != 2**64 - 1] % np.uint64(self.alignment))
        stored = (self.folder / "shard").read_bytes()
        end = len(stored) - (self.spec.index_nbytes if self.spec.index_location == "end" else 0)
        assert stored[:end].endswith(self.footer)  # where other programs look for it
        places = [(i, j) for i in range(GRID[0]) for j in range(GRID[1])]
        for place, chunk in zip(places, shard.read_chunks(places), strict=True):
            assert (chunk == self.twin.get(place, -1)).all()


def test_alignment_by_chance_is_kept() -> None:
    """The only inner chunk is at offset 0, a multiple of everything. An update that keeps user bytes then keeps an
    alignment of 4096.
    """
    run = UserBytes()
    run.create("raw", "end", direct=False, header=b"", footer=b"", alignment=1, where=[(0, 0)])
    run.replace(where=[(0, 1)])
    run.every_part_is_stored()
    run.write(where=[(0, 0), (0, 1)], strategy="append", compact=False)
    run.every_part_is_stored()
    run.teardown()


def test_mark_counts_only_at_its_own_offset(tmp_path: Path) -> None:
    """The footer is a copy of the shard's own mark; another program has moved a mark to another offset."""
    spec = shardcodec.ShardSpec(SHAPE, CHUNK, "int32", -1, CODECS["raw"])
    with shardcodec.ShardWriter(tmp_path / "shard", spec, header=b"head") as writer:
        writer.write_chunk((0, 0), np.ones(CHUNK, "int32"))
        writer.footer = b"foot"
    shard = shardcodec.open_shard(tmp_path, "shard", spec, mode="r+")
    with shardcodec.options(write_strategy="append"):
        shard.write_chunks([(0, 0)], np.full((1, *CHUNK), 2, "int32"))
        stored = (tmp_path / "shard").read_bytes()
        at = stored.index(MAGIC)
        mark = stored[at : at + MARK.size]
        shard.write_chunks([], np.empty((0, *CHUNK), "int32"), footer=mark)
        for number in range(3, 6):
            shard.write_chunks([(0, 0)], np.full((1, *CHUNK), number, "int32"))
            assert (shard.header, shard.footer) == (b"head", mark)
            assert (shard.read_chunks([(0, 0)]) == number).all()
    blob = (tmp_path / "shard").read_bytes()
    index = blob[len(blob) - spec.index_nbytes :]
    carried = shardcodec.open_shard(blob[: len(blob) - len(index)] + b"more" + index, "shard", spec)
    assert carried.footer.endswith(mark + b"more")
    assert len(carried.footer) > len(mark + b"more")  # everything after the last inner chunk


TestUserBytes = UserBytes.TestCase
TestUserBytes.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
