# test_parts.py - the read engine with several parts of one object: boxes, lists, points
# SPDX-License-Identifier: MIT
"""Selections equal numpy indexing; each inner chunk is decoded once and each file opened once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import pairs
from spec_json import BIG, LITTLE, blosc, named, sharding, transpose, zstd

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import Box, Lists, Points, as_void, n_touched, pack_boxes, sorted_list, touched
from shardcodec.access.write import Elements, WriteItem, write_objects
from shardcodec.options import resolve

SHAPE = (12, 20, 16)
CHUNK = (4, 5, 8)
ZSTD = zstd()

# codecs around and inside the shard
CHAINS: dict[str, tuple[Any, ...]] = {
    "raw": (sharding(CHUNK),),
    "zstd": (sharding(CHUNK, [LITTLE, ZSTD]),),
    "big endian": (sharding(CHUNK, [BIG]),),
    "transposed": (transpose(2, 0, 1), sharding((8, 4, 5), [transpose(1, 0, 2), LITTLE, ZSTD])),
    "nested": (sharding(CHUNK, [sharding((2, 5, 4), [LITTLE, ZSTD])]),),
    "no shard": (LITTLE, ZSTD),
    "codec after the shard": (sharding(CHUNK), ZSTD),
    "columns first": (sharding(CHUNK, [transpose(2, 1, 0), LITTLE]),),
    "flat chunks": (sharding((1, 20, 4)),),
    "in blocks": (sharding((12, 20, 8), [LITTLE, blosc("lz4", "noshuffle", 4, clevel=1, blocksize=1024)]),),
}


class Object:
    """An encoded object with some absent inner chunks, and its values."""

    def __init__(self, codecs: Any, dtype: str = "int32") -> None:
        from shardcodec.format.spec import ChainSpec

        self.spec = ChainSpec.from_json(list(codecs), shape=SHAPE, dtype=dtype, fill_value=7)
        rng = np.random.default_rng(0)
        self.values = rng.integers(100, 2**31, SHAPE).astype(dtype)
        self.values[4:8, 5:15] = 7
        self.bytes = bytes(shardcodec.encode(self.values, self.spec))
        self.chain = compiled(self.spec, True)

    def read(self, parts: Any, out: Any, axes: Any, source: Any = "bytes") -> dict[str, int]:
        # where calls seem to cost time, as on a loaded machine, a small shard is read with one call
        item = (self.chain, self.bytes if source == "bytes" else source, parts)
        _, stats = native.load().read([item], as_void(out), axes, n_threads=2, io_latency=0.0)
        return stats  # type: ignore[no-any-return]


@pytest.fixture(params=CHAINS)
def thing(request: pytest.FixtureRequest) -> Object:
    return Object(CHAINS[request.param])


@pytest.fixture(params=["bytes", "file"])
def source(request: pytest.FixtureRequest, thing: Object, tmp_path: Path) -> str:
    """Return the source: bytes, or a path, of which only the wanted bytes may be read."""
    if request.param == "bytes":
        return "bytes"
    (tmp_path / "object").write_bytes(thing.bytes)
    return str(tmp_path / "object")


def positions(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.uint64)


def lists(selection: Any) -> tuple[Lists, tuple[int, ...]]:
    """Return `Lists` for slices and sequences, one per axis, and the shape of the result."""
    start, count, step, froms, tos = [], [], [], [], []
    for part, extent in zip(selection, SHAPE, strict=True):
        if isinstance(part, slice):
            chosen = range(*part.indices(extent))
            start.append(chosen.start)
            count.append(len(chosen))
            step.append(chosen.step)
            froms.append(None)
            tos.append(None)
        else:
            places, to = sorted_list(positions(*part), None)
            start.append(0)
            count.append(len(part))
            step.append(1)
            froms.append(places)
            tos.append(to)
    return Lists(tuple(start), tuple(count), tuple(step), (0, 0, 0), tuple(froms), tuple(tos)), tuple(count)


def grid(selection: Any) -> Any:
    """Return the same selection for numpy."""
    return np.ix_(
        *(range(n)[s] if isinstance(s, slice) else s for s, n in zip(selection, SHAPE, strict=True))
    )


COMBINATIONS = {
    "rows": ([1, 3, 4, 11], slice(None), slice(None)),
    "one row of each": ([0, 4, 8], slice(2, 19), slice(0, 16, 3)),
    "descending": ([11, 9, 7, 2, 0], slice(None), slice(None)),
    "unsorted with repeats": ([9, 0, 9, 4, 0], slice(1, 20, 7), slice(None)),
    "middle": (slice(None), [19, 3, 3, 4, 12], slice(2, 3)),
    "last": (slice(0, 12, 5), slice(None), [15, 0, 2, 3, 4, 9]),
    "two": ([3, 2, 1, 5], slice(4, 16), [7, 8, 0]),
    "all": ([3, 2, 8, 5], [1, 19, 1, 0, 7], [7, 8, 0]),
    "everything": (range(12), range(20), range(16)),
    "every other": (range(0, 12, 2), range(19, -1, -1), range(1, 16, 5)),
    "one element": ([5], [6], [7]),
}


@pairs("case, chain, layout", list(COMBINATIONS), list(CHAINS), ["C", "F", "strided"])
def test_lists_equal_numpy(chain: str, case: str, layout: str, tmp_path: Path) -> None:
    thing = Object(CHAINS[chain])
    (tmp_path / "object").write_bytes(thing.bytes)
    for source in ("bytes", str(tmp_path / "object")):
        check_lists(thing, source, case, layout)


def check_lists(thing: Object, source: str, case: str, layout: str) -> None:
    selection = COMBINATIONS[case]
    parts, shape = lists(selection)
    expected = thing.values[grid(selection)]
    memory = np.zeros((*shape[:-1], 3 * shape[-1]), "int32")
    out = {"C": np.zeros(shape, "int32"), "F": np.zeros(shape, "int32", "F"), "strided": memory[..., ::3]}[
        layout
    ]
    stats = thing.read(parts, out, (0, 1, 2), source)
    assert np.array_equal(out, expected)
    assert (memory[..., 1::3] == 0).all()
    if thing.chain.is_shard:
        n = int(touched(parts, thing.chain.perm, thing.chain.inner.shape, thing.chain.grid_shape).sum())
        assert stats["chunks_decoded"] + stats["chunks_filled"] == n <= n_touched(parts, thing.chain)


@pytest.mark.parametrize("n", [1, 2, 7, 5000])
def test_points_equal_numpy(thing: Object, source: str, n: int) -> None:
    rng = np.random.default_rng(n)
    froms = tuple(rng.integers(0, extent, n).astype(np.uint64) for extent in SHAPE)
    to = rng.permutation(n).astype(np.uint64)
    out = np.zeros(2 * n + 5, "int32")
    stats = thing.read(Points(2, froms, to), out[1::2], (-1, -1, -1), source)
    expected = np.zeros(n, "int32")
    expected[to.astype(int)] = thing.values[tuple(f.astype(int) for f in froms)]
    assert np.array_equal(out[5::2], expected)
    assert (out[::2] == 0).all() and out[1] == out[3] == 0
    if thing.chain.is_shard:
        wanted = touched(
            Points(0, froms, None), thing.chain.perm, thing.chain.inner.shape, thing.chain.grid_shape
        )
        assert stats["chunks_decoded"] + stats["chunks_filled"] == wanted.sum()


def test_points_along_each_axis_equal_numpy(thing: Object, source: str) -> None:
    out = np.zeros(300, "int32")
    for axis, extent in enumerate(SHAPE):
        line = [3 * np.ones(300, np.uint64) for _ in SHAPE]
        line[axis] = np.arange(300, dtype=np.uint64) * np.uint64(7) % np.uint64(extent)
        thing.read(Points(0, tuple(line), None), out, (-1,) * 3, source)
        assert np.array_equal(out, thing.values[tuple(line)])


@pytest.mark.parametrize("n", [1, 3, 40])
def test_boxes_equal_numpy(thing: Object, source: str, n: int) -> None:
    """A data loader reads like this: into an array of samples, whose first axis is not an axis of the object."""
    rng = np.random.default_rng(n)
    size = np.array([3, 7, 4])
    start = np.stack(
        [rng.integers(0, extent - 2 * s + 2, n) for extent, s in zip(SHAPE, size, strict=True)], 1
    )
    step = np.stack([rng.integers(1, 3, n) for _ in SHAPE], 1)
    out = np.zeros((n, *size), "int32")
    at = np.zeros((n, 4), int)
    at[:, 0] = rng.permutation(n)
    parts = pack_boxes(start, size, step, at)
    stats = thing.read(parts, out, (1, 2, 3), source)
    for i in range(n):
        where = tuple(
            slice(a, a + (k - 1) * s + 1, s) for a, k, s in zip(start[i], size, step[i], strict=True)
        )
        assert np.array_equal(out[at[i, 0]], thing.values[where])
    if thing.chain.is_shard:
        wanted = touched(parts, thing.chain.perm, thing.chain.inner.shape, thing.chain.grid_shape)
        assert (
            stats["chunks_decoded"] + stats["chunks_filled"] == wanted.sum() <= n_touched(parts, thing.chain)
        )


@pytest.mark.parametrize("source", [None, "/nowhere/at all"])
def test_absent_object_reads_as_the_fill_value(thing: Object, source: Any) -> None:
    out = np.zeros((3, 4, 16), "int32")
    parts, _ = lists(([5, 1, 9], [0, 2, 1, 2], slice(None)))
    item = (thing.chain, source, parts)
    missing, _ = native.load().read([item], as_void(out), (0, 1, 2))
    assert missing == [0] and (out == 7).all()
    line = np.zeros(4, "int32")
    froms = (positions(1, 2, 3), positions(1, 2, 3), positions(1, 2, 3))
    thing.read(Points(0, froms, positions(3, 0, 1)), line, (-1,) * 3, source)
    assert line.tolist() == [7, 7, 0, 7]
    samples = np.zeros((2, 1, 1, 1), "int32")
    thing.read(pack_boxes([[1, 2, 3]], (1, 1, 1), None, [[1, 0, 0, 0]]), samples, (1, 2, 3), source)
    assert samples.reshape(-1).tolist() == [0, 7]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float64", "complex128"])
@pytest.mark.parametrize("endian", ["little", "big"])
def test_elements_of_every_size_are_read(dtype: str, endian: str) -> None:
    thing = Object((sharding(CHUNK, [named("bytes", endian=endian)]),), dtype)
    parts, shape = lists(COMBINATIONS["all"])
    out = np.zeros(shape, dtype)
    thing.read(parts, out, (0, 1, 2))
    assert np.array_equal(out, thing.values[np.ix_([3, 2, 8, 5], [1, 19, 1, 0, 7], [7, 8, 0])])


def test_file_is_opened_once_and_each_chunk_decoded_once(tmp_path: Path) -> None:
    thing = Object(CHAINS["zstd"])
    path = tmp_path / "shard"
    path.write_bytes(thing.bytes)
    froms = tuple(np.repeat(positions(0, 1, extent - 1), 1000) for extent in SHAPE)
    out = np.zeros(3000, "int32")
    stats = thing.read(Points(0, froms, None), out, (-1,) * 3, str(path))
    assert stats["opens"] == 1
    # chunk (0, 0, 0), which holds two of the three points, and the last chunk
    assert stats["chunks_decoded"] == 2
    assert np.array_equal(
        out[::1000], [thing.values[0, 0, 0], thing.values[1, 1, 1], thing.values[-1, -1, -1]]
    )


def test_whole_chunk_is_decoded_into_the_output(tmp_path: Path) -> None:
    """Lists that select a box of an inner chunk cost as much as a box: here one read each, without a copy."""
    thing = Object((sharding((1, 20, 16)),))
    path = tmp_path / "shard"
    path.write_bytes(thing.bytes)
    out = np.zeros((3, 20, 16), "int32")
    parts, _ = lists(([9, 2, 5], slice(None), slice(None)))
    item = (thing.chain, str(path), parts)
    _, stats = native.load().read([item], as_void(out), (0, 1, 2), max_gap_nbytes=0, io_latency=0.0)
    assert stats["reads"] == 4 and stats["bytes_read"] == thing.chain.index_nbytes + 3 * 20 * 16 * 4
    assert np.array_equal(out, thing.values[[9, 2, 5]])


def test_only_wanted_bytes_of_raw_chunks_are_read(tmp_path: Path) -> None:
    thing = Object((sharding((12, 20, 16)),))
    path = tmp_path / "shard"
    path.write_bytes(thing.bytes)
    out = np.zeros((2, 20, 16), "int32")
    stats = thing.read(lists(([5, 3], slice(None), slice(None)))[0], out, (0, 1, 2), str(path))
    assert np.array_equal(out, thing.values[[5, 3]])
    assert stats["bytes_read"] == thing.chain.index_nbytes + 3 * 20 * 16 * 4  # rows 3 to 5
    line = np.zeros(3, "int32")
    froms = (positions(7, 7, 7), positions(4, 4, 4), positions(9, 2, 9))
    stats = thing.read(Points(0, froms, None), line, (-1,) * 3, str(path))
    assert np.array_equal(line, thing.values[7, 4, [9, 2, 9]])
    assert stats["bytes_read"] == thing.chain.index_nbytes + 8 * 4


def index_of(chain: Any, blob: Any) -> Any:
    stored = np.empty(chain.index_nbytes, np.uint8)
    native.load().read_index(chain, blob, stored)
    return stored[: 16 * chain.n_chunks].view(np.uint64).reshape(-1, 2)


def test_lowest_failing_chunk_is_reported() -> None:
    thing = Object(CHAINS["zstd"])
    entries = index_of(thing.chain, thing.bytes)
    damaged = bytearray(thing.bytes)
    for entry in (0, 2, 23):
        damaged[int(entries[entry, 0])] ^= 255
    froms = (positions(11, 0, 1), positions(19, 5, 6), positions(15, 3, 4))  # entries 23, 2, 2
    for _ in range(20):
        with pytest.raises(shardcodec.CodecError) as caught:
            thing.read(Points(0, froms, None), np.zeros(3, "int32"), (-1,) * 3, bytes(damaged))
        assert caught.value.entry == 2


# ---- writing


def updated(thing: Object, parts: Any, value: Any, axes: Any) -> Any:
    """Return the decoded object after a write."""
    options = resolve()
    item = WriteItem(thing.chain, None, thing.bytes, parts, "k")
    (result,) = write_objects([item], options, Elements(value, axes, write_empty=False)).objects
    return shardcodec.decode(bytes(result), thing.spec)


@pairs("case, chain, layout", list(COMBINATIONS), list(CHAINS), ["C", "F", "strided"])
def test_written_lists_equal_numpy(chain: str, case: str, layout: str) -> None:
    thing, selection = Object(CHAINS[chain]), COMBINATIONS[case]
    parts, shape = lists(selection)
    numbers = np.arange(np.prod(shape), dtype="int32").reshape(shape)
    value = np.zeros((*shape[:-1], 3 * shape[-1]), "int32")[..., ::3]
    value = {"C": numbers.copy(), "F": np.asfortranarray(numbers), "strided": value}[layout]
    value[...] = numbers
    expected = thing.values.copy()
    expected[grid(selection)] = numbers  # the last of several values for one element is kept
    assert np.array_equal(updated(thing, parts, value, (0, 1, 2)), expected)
    expected[grid(selection)] = 5
    assert np.array_equal(updated(thing, parts, np.array(5, "int32"), (-1, -1, -1)), expected)


@pytest.mark.parametrize("n", [1, 2, 7, 5000])
def test_written_points_equal_numpy(thing: Object, n: int) -> None:
    rng = np.random.default_rng(n)
    froms = tuple(rng.integers(0, extent, n).astype(np.uint64) for extent in SHAPE)
    to = rng.permutation(n)
    value = rng.integers(0, 9999, n).astype("int32")
    where = tuple(f.astype(int) for f in froms)
    expected = thing.values.copy()
    expected[where] = value[to]
    parts = Points(0, froms, to.astype(np.uint64))
    assert np.array_equal(updated(thing, parts, value, (-1,) * 3), expected)
    expected = thing.values.copy()
    expected[where] = value
    assert np.array_equal(updated(thing, Points(0, froms, None), value, (-1,) * 3), expected)
    expected[where] = 7  # the fill value
    assert np.array_equal(updated(thing, parts, np.array(7, "int32"), (-1,) * 3), expected)


def test_last_of_overlapping_boxes_is_kept(thing: Object) -> None:
    rng = np.random.default_rng(1)
    start = np.stack([rng.integers(0, n - 3, 30) for n in SHAPE], 1)
    value = rng.integers(0, 9999, (30, 3, 2, 3)).astype("int32")
    at = np.zeros((30, 4), int)
    at[:, 0] = np.arange(30)
    expected = thing.values.copy()
    for i, (a, b, c) in enumerate(start):
        expected[a : a + 3, b : b + 2, c : c + 3] = value[i]
    parts = pack_boxes(start, (3, 2, 3), None, at)
    assert np.array_equal(updated(thing, parts, value, (1, 2, 3)), expected)


def test_written_point_creates_an_absent_object(thing: Object) -> None:
    item = WriteItem(thing.chain, None, None, Points(0, (positions(1),) * 3, None), "k")
    (result,) = write_objects(
        [item], resolve(), Elements(np.array([3], "int32"), (-1,) * 3, write_empty=False)
    ).objects
    expected = np.full(SHAPE, 7, "int32")
    expected[1, 1, 1] = 3
    assert np.array_equal(shardcodec.decode(bytes(result), thing.spec), expected)
    item = WriteItem(thing.chain, None, None, Points(0, (positions(1),) * 3, None), "k")
    assert write_objects(
        [item], resolve(), Elements(np.array([7], "int32"), (-1,) * 3, write_empty=False)
    ).objects == [None]


def test_only_touched_chunks_are_encoded() -> None:
    thing = Object(CHAINS["zstd"])
    before = index_of(thing.chain, thing.bytes)
    where = (positions(0, 11, 1), positions(0, 19, 1), positions(0, 15, 1))
    item = WriteItem(thing.chain, None, thing.bytes, Points(0, where, None), "k")
    (result,) = write_objects(
        [item], resolve(), Elements(np.arange(3, dtype="int32"), (-1,) * 3, write_empty=False)
    ).objects
    after = index_of(thing.chain, result)
    changed_entries = np.flatnonzero((before != after).any(axis=1))
    assert changed_entries.tolist() == [0, 23]
    for offset, nbytes in before[1:23][before[1:23, 0] != 2**64 - 1].tolist():
        assert bytes(result)[offset : offset + nbytes] == thing.bytes[offset : offset + nbytes]


# ---- hostile arguments

GOOD_LISTS = ((0, 0, 0), (2, 20, 16), None, (0, 0, 0), (positions(1, 5), None, None), (None, None, None))
THREE = (positions(1, 2), positions(1, 2), positions(1, 2))


def changed(base: tuple[Any, ...], **fields: Any) -> tuple[Any, ...]:
    names = ("start", "count", "step", "at", "froms", "tos")
    return tuple(fields.get(name, value) for name, value in zip(names, base, strict=True))


HOSTILE: dict[str, tuple[Any, Any, Any]] = {
    "position outside": (changed(GOOD_LISTS, froms=(positions(1, 12), None, None)), (2, 20, 16), (0, 1, 2)),
    "position negative": (
        changed(GOOD_LISTS, froms=(np.array([-1, 3]).view(np.uint64), None, None)),
        (2, 20, 16),
        (0, 1, 2),
    ),
    "not ascending": (changed(GOOD_LISTS, froms=(positions(5, 1), None, None)), (2, 20, 16), (0, 1, 2)),
    "place outside": (changed(GOOD_LISTS, tos=(positions(0, 2), None, None)), (2, 20, 16), (0, 1, 2)),
    "place outside of the rest": (
        changed(GOOD_LISTS, tos=(positions(0, 1), None, None), at=(1, 0, 0)),
        (2, 20, 16),
        (0, 1, 2),
    ),
    "origin far outside": (
        changed(GOOD_LISTS, tos=(positions(0, 1), None, None), at=(2**63, 0, 0)),
        (2, 20, 16),
        (0, 1, 2),
    ),
    "list too long": (changed(GOOD_LISTS, froms=(positions(1, 5, 6), None, None)), (2, 20, 16), (0, 1, 2)),
    "list too short": (changed(GOOD_LISTS, count=(3, 20, 16)), (3, 20, 16), (0, 1, 2)),
    "no list at all": (
        changed(GOOD_LISTS, count=(0, 20, 16), froms=(positions(), None, None)),
        (2, 20, 16),
        (0, 1, 2),
    ),
    "array too small": (GOOD_LISTS, (1, 20, 16), (0, 1, 2)),
    "axis not in the array": (GOOD_LISTS, (20, 16), (-1, 0, 1)),
    "places without positions": (
        changed(GOOD_LISTS, tos=(None, positions(*range(20)), None)),
        (2, 20, 16),
        (0, 1, 2),
    ),
    "too few lists": (changed(GOOD_LISTS, froms=(positions(1, 5),)), (2, 20, 16), (0, 1, 2)),
    "box of the rest outside": (changed(GOOD_LISTS, start=(0, 1, 0)), (2, 20, 16), (0, 1, 2)),
    "numbers of 32 bits": (
        changed(GOOD_LISTS, froms=(np.array([1, 5], "u4"), None, None)),
        (2, 20, 16),
        (0, 1, 2),
    ),
    "point outside": ((0, (positions(1, 12), *THREE[1:]), None), (2,), (-1,) * 3),
    "points of other rank": ((0, THREE[:2], None), (2,), (-1,) * 3),
    "points of unequal number": ((0, (positions(1), *THREE[1:]), None), (2,), (-1,) * 3),
    "no points": ((0, (positions(),) * 3, None), (2,), (-1,) * 3),
    "point to outside": ((0, THREE, positions(0, 2)), (2,), (-1,) * 3),
    "points to outside": ((1, THREE, None), (2,), (-1,) * 3),
    "points from outside": ((2**63, THREE, positions(0, 0)), (2,), (-1,) * 3),
    "points to a plane": ((0, THREE, None), (2, 2), (-1,) * 3),
    "row outside": ((positions(10, 0, 0, 3, 1, 1, 1, 1, 1, 0, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "row far outside": ((positions(2**64 - 1, 0, 0, 3, 1, 1, 1, 1, 1, 0, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "row of nothing": ((positions(1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "row with step 0": ((positions(1, 0, 0, 3, 1, 1, 0, 1, 1, 0, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "row with a huge step": ((positions(1, 0, 0, 3, 1, 1, 2**63, 1, 1, 0, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "row to outside": ((positions(1, 0, 0, 3, 1, 1, 1, 1, 1, 1, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "row to an axis outside": ((positions(1, 0, 0, 1, 1, 1, 1, 1, 1, 4, 0, 0, 0),), (4, 1, 1, 1), (1, 2, 3)),
    "row without its axis": ((positions(1, 0, 0, 3, 1, 1, 1, 1, 1, 0, 0),), (1, 1), (-1, 0, 1)),
    "half a row": ((positions(1, 0, 0, 3, 1, 1, 1, 1, 1, 0, 0),), (3, 1, 1), (0, 1, 2)),
    "no rows": ((positions(),), (3, 1, 1), (0, 1, 2)),
    "two things": ((positions(), None), (3, 1, 1), (0, 1, 2)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_selections_that_reach_outside_are_refused(case: str) -> None:
    parts, shape, axes = HOSTILE[case]
    with pytest.raises((ValueError, OverflowError)):
        Object(CHAINS["zstd"]).read(parts, np.zeros(shape, "int32"), axes)


def test_valid_selections_are_accepted() -> None:
    """These are the arguments from which the hostile ones are made."""
    thing = Object(CHAINS["zstd"])
    thing.read(GOOD_LISTS, np.zeros((2, 20, 16), "int32"), (0, 1, 2))
    thing.read((0, THREE, None), np.zeros(2, "int32"), (-1,) * 3)
    thing.read((positions(9, 0, 0, 3, 1, 1, 1, 1, 1, 0, 0, 0),), np.zeros((3, 1, 1), "int32"), (0, 1, 2))


def test_elements_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="expected elements of 4 bytes, as the chunks have, got 8"):
        Object(CHAINS["zstd"]).read(GOOD_LISTS, np.zeros((2, 20, 16), "int64"), (0, 1, 2))


def test_box_is_accepted() -> None:
    thing = Object(CHAINS["zstd"])
    out = np.zeros((3, 4, 5), "int32")
    thing.read(Box((1, 2, 3), (3, 4, 5), None, (0, 0, 0)), out, (0, 1, 2))
    assert np.array_equal(out, thing.values[1:4, 2:6, 3:8])
