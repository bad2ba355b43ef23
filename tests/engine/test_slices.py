# test_slices.py - the native readers of small boxes, compared with numpy
# SPDX-License-Identifier: MIT
"""They accept slices and integers inside one file. For other selections they return None and keep the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_json import LITTLE, sharding, transpose, zstd

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.read import decoded_nbytes, read_nbytes
from shardcodec.access.regions import Box
from shardcodec.format.spec import ChainSpec
from shardcodec.storage.indexes import IndexCache

SHAPE, CHUNK = (12, 20, 16), [4, 5, 8]
ZSTD = zstd()
TRANSPOSE = transpose(2, 0, 1)

CHAINS: dict[str, list[Any]] = {
    "raw": [sharding(CHUNK, [LITTLE])],
    "zstd": [sharding(CHUNK, [LITTLE, ZSTD])],
    "transposed": [TRANSPOSE, sharding([8, 4, 5], [LITTLE, ZSTD])],
    "transposed raw": [TRANSPOSE, sharding([8, 4, 5], [LITTLE])],
    "twice transposed raw": [TRANSPOSE, sharding([8, 4, 5], [TRANSPOSE, LITTLE])],
    "no shard": [LITTLE, ZSTD],
}


class Object:
    """An encoded object with some absent inner chunks, and its values."""

    def __init__(self, codecs: list[Any]) -> None:
        spec = ChainSpec.from_json(codecs, shape=SHAPE, dtype="int32", fill_value=7)
        self.values = np.random.default_rng(0).integers(100, 2**31, SHAPE).astype("int32")
        self.values[4:8, 5:15] = 7
        self.bytes = bytes(shardcodec.encode(self.values, spec))
        self.chain = compiled(spec, True)


EVERYTHING = (slice(None), slice(None), slice(None))
NOTHING_DONE = -99


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Object, str]]:
    folder = tmp_path_factory.mktemp("slices")
    found = {}
    for name, codecs in CHAINS.items():
        path = folder / name.replace(" ", "-")
        path.write_bytes((made := Object(codecs)).bytes)
        found[name] = made, str(path)
    return found


def reader_of(made: Object, **how: Any) -> Any:
    return native.load().SliceReader(made.chain, **{"max_nbytes": 1 << 20, **how})


def axis_selection(extent: int) -> st.SearchStrategy[Any]:
    ends = st.tuples(st.integers(0, extent - 1), st.integers(1, extent)).filter(lambda e: e[0] < e[1])
    return st.integers(0, extent - 1) | st.builds(lambda e, step: slice(*e, step), ends, st.integers(1, 5))


@given(st.data(), st.sampled_from(sorted(CHAINS)), st.sampled_from("CF"))
def test_slices_and_integers_equal_numpy(objects: Any, data: Any, name: str, order: str) -> None:
    made, path = objects[name]
    selection = tuple(data.draw(axis_selection(extent)) for extent in SHAPE)
    expected = made.values[selection]
    before = data.draw(st.tuples(*(st.integers(0, 2) for _ in expected.shape)))
    out = np.full(
        [n + at + 1 for n, at in zip(expected.shape, before, strict=True)], NOTHING_DONE, "i4", order
    )
    places = tuple(slice(at, at + n) for n, at in zip(expected.shape, before, strict=True))
    twin = out.copy()
    twin[places] = expected
    assert reader_of(made).read(path, selection, places, out) is True
    assert np.array_equal(out, twin)


@given(st.data(), st.sampled_from(["raw", "transposed raw", "twice transposed raw", "zstd"]))
def test_cost_of_a_read_is_known_in_advance(objects: Any, data: Any, name: str) -> None:
    made, path = objects[name]
    ends = [sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))) for n in SHAPE]
    box = Box(tuple(a for a, _ in ends), tuple(b + 1 - a for a, b in ends), None, (0, 0, 0))
    out = np.empty(box.count, "i4")
    # where calls seem to cost time, as on a loaded machine, a small shard is read with one call
    _, done = native.load().read([(made.chain, path, box)], out, (0, 1, 2), max_gap_nbytes=0, io_latency=0.0)
    if name != "zstd":  # compressed chunks may be larger than decoded ones
        assert done["bytes_read"] <= read_nbytes(made.chain, box)
    assert read_nbytes(made.chain, box) <= decoded_nbytes(made.chain, box)


@pytest.mark.parametrize(
    ("selection", "places"),
    [
        ([slice(0, 1)] * 3, EVERYTHING),
        (EVERYTHING, list(EVERYTHING)),
        (EVERYTHING[:2], EVERYTHING[:2]),
        ((slice(0, 2), slice(0, 2), slice(0, 3)), (slice(0, 2), slice(0, 2), slice(0, 2))),
        ((slice(0, 2), slice(0, 2), slice(0, 2)), (slice(0, 2), slice(0, 2), slice(15, 17))),
        ((slice(0, 2), slice(0, 2), slice(0, 2)), (slice(0, 2), slice(0, 2), slice(-2, 0))),
        ((slice(0, 2), slice(0, 2), slice(0, 4)), (slice(0, 2), slice(0, 2), slice(0, 4, 2))),
        ((slice(2, 0, -1), slice(0, 2), slice(0, 2)), (slice(0, 2), slice(0, 2), slice(0, 2))),
        ((slice(3, 3), slice(0, 2), slice(0, 2)), (slice(0, 0), slice(0, 2), slice(0, 2))),
        ((slice(0, 2), slice(0, 2), slice(0, 2)), (slice(0, 2), slice(0, 2))),
        ((slice(0, 2), slice(0, 2), 3), (slice(0, 2), slice(0, 2), slice(0, 1))),
        ((slice(0, 2), slice(0, 2), 16), (slice(0, 2), slice(0, 2))),
        ((slice(0, 2), slice(0, 2), -1), (slice(0, 2), slice(0, 2))),
        ((slice(0, 2), slice(0, 2), np.arange(2)), (slice(0, 2), slice(0, 2), slice(0, 2))),
        ((slice(0, 2), slice(0, 2), None), (slice(0, 2), slice(0, 2), slice(0, 2))),
    ],
)
def test_unsupported_selections_are_declined(objects: Any, selection: Any, places: Any) -> None:
    made, path = objects["zstd"]
    out = np.full(SHAPE, NOTHING_DONE, "i4")
    assert reader_of(made).read(path, selection, places, out) is None
    assert (out == NOTHING_DONE).all()


def test_other_element_sizes_and_large_reads_are_declined(objects: Any) -> None:
    made, path = objects["zstd"]
    chunk = 4 * 5 * 8 * 4
    within, across = (slice(0, 4), slice(0, 5), slice(0, 8)), (slice(0, 4), slice(0, 6), slice(0, 8))
    out = np.full(SHAPE, NOTHING_DONE, "i4")
    assert reader_of(made).read(path, within, within, out.astype("i8")) is None
    assert reader_of(made, max_nbytes=chunk).read(path, across, across, out) is None
    assert (out == NOTHING_DONE).all()
    assert reader_of(made, max_nbytes=chunk).read(path, within, within, out) is True
    whole, path = objects["no shard"]
    assert reader_of(whole, max_nbytes=chunk).read(path, within, within, out) is None


def test_large_index_counts_until_it_is_cached(tmp_path: Path) -> None:
    codecs = [sharding([1], ["bytes"], [LITTLE])]
    spec = ChainSpec.from_json(codecs, shape=(64,), dtype="uint8", fill_value=0)
    chain, path = compiled(spec, True), tmp_path / "shard"
    path.write_bytes(shardcodec.encode(values := np.arange(1, 65, dtype="uint8"), spec))
    cache = IndexCache(1 << 20, _grain_ns=0).native
    reader = native.load().SliceReader(chain, cache=cache, max_nbytes=1023)
    element, out = (slice(5, 6),), np.zeros(1, "uint8")
    assert reader.read(str(path), element, (slice(0, 1),), out) is None
    native.load().read([(chain, str(path), ((0,), (1,), None, (0,)))], out, (0,), cache=cache)
    assert reader.read(str(path), element, (slice(0, 1),), out) is True
    assert out[0] == values[5]


def test_missing_file_reads_as_the_fill_value(objects: Any, tmp_path: Path) -> None:
    made, _ = objects["raw"]
    out = np.full(SHAPE, NOTHING_DONE, "i4")
    part = (slice(1, 3),) * 3
    assert reader_of(made).read(str(tmp_path / "none"), part, part, out) is False
    assert (out[part] == 7).all()
    assert (out == NOTHING_DONE).sum() == out.size - 8


def test_read_only_output_is_refused(objects: Any) -> None:
    made, path = objects["raw"]
    out = np.zeros(SHAPE, "i4")
    out.setflags(write=False)
    with pytest.raises((ValueError, BufferError)):
        reader_of(made).read(path, EVERYTHING, EVERYTHING, out)


def array_axis_selection(extent: int) -> st.SearchStrategy[Any]:
    ends = st.none() | st.integers(-extent - 2, extent + 2)
    return st.integers(-extent, extent - 1) | st.builds(slice, ends, ends, st.sampled_from([None, 1, 2]))


@given(st.data(), st.sampled_from(["zstd", "transposed raw"]))
def test_array_slices_within_one_file_equal_numpy(objects: Any, data: Any, name: str) -> None:
    """Two files with the same values, one after the other along the first axis."""
    made, path = objects[name]
    folder = Path(path).parent / f"array of {name}"
    for key in ("0.0.0", "1.0.0"):
        folder.mkdir(exist_ok=True)
        (folder / key).write_bytes(made.bytes)
    values = np.concatenate([made.values, made.values])
    how = {"shape": values.shape, "lead": f"{folder}/", "between": ".", "empty": np.empty, "dtype": "i4"}
    reader = native.load().ArraySlices(made.chain, max_nbytes=1 << 20, **how)
    extents, leading = values.shape, data.draw(st.integers(0, 3))
    parts = [data.draw(array_axis_selection(extent)) for extent in extents[:leading]]
    if data.draw(st.booleans()):
        trailing = extents[data.draw(st.integers(leading, 3)) :]
        parts += [..., *(data.draw(array_axis_selection(extent)) for extent in trailing)]
    selection = parts[0] if len(parts) == 1 and data.draw(st.booleans()) else tuple(parts)
    found = reader.get(selection)
    objects_asked = np.broadcast_to(np.arange(24)[:, None, None] // SHAPE[0], values.shape)[selection]
    if len(np.unique(objects_asked)) == 1:
        assert found.shape == values[selection].shape
        assert np.array_equal(found, values[selection])
    else:
        assert found is None


@pytest.mark.parametrize(
    "selection",
    [
        (..., ...),
        (0, 0, 0, 0),
        (0, ..., 0, 0, 0),
        (12, ...),
        -13,
        2**63,
        -(2**63),
        2**80,
        np.int64(1),
        True,
        None,
        slice(5, 5),
        slice(None, None, -1),
        [0, 1],
    ],
)
def test_array_slices_decline_other_selections(objects: Any, tmp_path: Path, selection: Any) -> None:
    made, _ = objects["zstd"]
    (tmp_path / "0.0.0").write_bytes(made.bytes)
    how = {"shape": SHAPE, "lead": f"{tmp_path}/", "between": ".", "empty": np.empty, "dtype": "i4"}
    reader = native.load().ArraySlices(made.chain, max_nbytes=1 << 20, **how)
    assert reader.get(selection) is None
    assert reader.get((0, ..., -1)).tolist() == made.values[0, ..., -1].tolist()
