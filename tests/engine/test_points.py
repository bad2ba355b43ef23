# test_points.py - the read engine with very many points and very large coordinates
# SPDX-License-Identifier: MIT
"""Points are assigned to inner chunks by multiplication, and checked in blocks; these tests cover the edges of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spec_json import sharding

from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import Lists, Points
from shardcodec.format.spec import ChainSpec

FILL = 9


def empty_shard(shape: Any, chunk_shape: Any) -> tuple[Any, bytes]:
    """Return a compiled shard without inner chunks, and its bytes."""
    chain = compiled(
        ChainSpec.from_json([sharding(chunk_shape)], shape=shape, dtype="uint8", fill_value=FILL), True
    )
    index = b"\xff" * 16 * chain.n_chunks
    return chain, index + native.load().crc32c(index).to_bytes(4, "little")


@pytest.mark.parametrize("n", [4, 4000], ids=["sorted", "counted"])
@pytest.mark.parametrize(
    "extent", [1, 2, 3, 7, 641, 2**16 + 1, 2**31 + 7, 2**32 - 1, 2**32, 2**32 + 1, 2**40]
)
def test_points_find_their_inner_chunks(extent: int, n: int) -> None:
    """Coordinates at the edges of inner chunks, also those too large for a division by multiplication."""
    n_chunks = 9
    chain, shard = empty_shard((extent * n_chunks,), (extent,))
    rng = np.random.default_rng(n)
    edges = rng.choice([0, 2, 5, 8], n) * extent
    froms = (edges + np.where(rng.random(n) < 0.5, 0, extent - 1)).astype(np.uint64)
    out = np.zeros(n, "uint8")
    _, stats = native.load().read([(chain, shard, Points(0, (froms,), None))], out, (-1,))
    assert (out == FILL).all()
    assert stats["chunks_filled"] == len(np.unique(froms // np.uint64(extent)))


@pytest.mark.parametrize("bad", [0, 1, 1023, 1024, 1025, 2047, 2048, 2499])
def test_first_wrong_position_is_named(bad: int) -> None:
    chain, shard = empty_shard((12, 20), (4, 5))
    out = np.zeros(2500, "uint8")
    numbers = np.full(2500, 5, np.uint64)
    numbers[bad:] = 12
    with pytest.raises(ValueError, match=rf"got position 12 \(number {bad}\)"):
        native.load().read([(chain, shard, Points(0, (numbers, numbers), None))], out, (-1, -1))
    numbers[:bad], numbers[bad:] = 5, 4
    ascending = Lists((0, 0), (2500, 1), None, (0, 0), (numbers, None), (None, None))
    if bad:
        with pytest.raises(ValueError, match=rf"position 4 \(number {bad}\)"):
            native.load().read([(chain, shard, ascending)], out, (0, -1))
    else:
        native.load().read([(chain, shard, ascending)], out, (0, -1))
        assert (out == FILL).all()
