# test_interop.py - each implementation reads the shards of the other
# SPDX-License-Identifier: MIT
"""Both directions between shardcodec and every other implementation of Zarr v3 shards, bit by bit.

`SHARDCODEC_INTEROP_PIPELINE=zarr.core.codec_pipeline.BatchedCodecPipeline` puts zarr's pipeline in the place of
shardcodec's: a test that fails then too shows no fault of shardcodec.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .cases import ALL, CODECS, DATA_TYPES, FILLS, LAYOUTS, Array, Case
from .peers import US, Peer

pytestmark = pytest.mark.interop


def over(cases: list[Case]) -> pytest.MarkDecorator:
    """Run a test on each of these arrays."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


def assert_same(got: Array, expected: Array) -> None:
    """Compare all bits, except the payload of a NaN, which no implementation guarantees."""
    np.testing.assert_array_equal(got, expected)
    if expected.dtype.kind in "fc":
        unit = expected.real.dtype
        got, expected = (np.ascontiguousarray(a).view(unit) for a in (got, expected))
        got, expected = (np.where(np.isnan(a), np.nan, a) for a in (got, expected))
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@over(ALL)
def test_box_and_whole_are_read_alike(case: Case, pair: tuple[Peer, Peer], folder: Path) -> None:
    writer, reader = pair
    values = case.values()
    writer.write(case.create(folder), case.whole, values)
    assert_same(reader.read(folder, case.region), values[case.region])
    assert_same(reader.read(folder, case.whole), values)


@pytest.mark.slow  # many short ones
@over([*LAYOUTS, *CODECS])
def test_update_of_foreign_shards_keeps_the_rest(case: Case, pair: tuple[Peer, Peer], folder: Path) -> None:
    writer, updater = pair
    expected = case.values()
    writer.write(case.create(folder), case.whole, expected)
    expected[case.region] = case.values(seed=1)[case.region]
    updater.write(folder, case.region, expected[case.region])
    for reader in pair:
        assert_same(reader.read(folder, case.whole), expected)


@pytest.mark.slow  # many short ones
@over([*LAYOUTS, *FILLS, *DATA_TYPES])
def test_absent_chunks_and_shards_read_as_fill_value(
    case: Case, pair: tuple[Peer, Peer], folder: Path
) -> None:
    writer, reader = pair
    expected = case.fill()
    assert_same(reader.read(case.create(folder), case.whole), expected)
    values = case.values(seed=2)
    expected[case.corner] = values[case.corner]
    writer.write(folder, case.corner, values[case.corner])
    assert_same(reader.read(folder, case.whole), expected)


@pytest.mark.slow  # many short ones
@over([*LAYOUTS, *FILLS])
def test_shards_overwritten_with_fill_value_read_as_fill_value(
    case: Case, pair: tuple[Peer, Peer], folder: Path
) -> None:
    writer, eraser = pair
    expected = case.values()
    writer.write(case.create(folder), case.whole, expected)
    first_shard = tuple(slice(0, min(s, n)) for s, n in zip(case.shard, case.shape, strict=True))
    expected[first_shard] = case.fill()[first_shard]
    eraser.write(folder, first_shard, expected[first_shard])
    for reader in pair:
        assert_same(reader.read(folder, case.whole), expected)


@over(LAYOUTS)
def test_alternating_writers_keep_carried_chunks(case: Case, peer: Peer, folder: Path) -> None:
    """Inner chunks that several updates have copied keep their values."""
    expected = case.fill()
    case.create(folder)
    for turn in range(4):
        ends = [min(n, turn + 1 + c) for n, c in zip(case.shape, case.chunk, strict=True)]
        box = tuple(slice(turn % n, end) for n, end in zip(case.shape, ends, strict=True))
        expected[box] = case.values(seed=turn)[box]
        (US, peer)[turn % 2].write(folder, box, expected[box])
    for reader in (US, peer):
        assert_same(reader.read(folder, case.whole), expected)
