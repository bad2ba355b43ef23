# test_write_regions.py - an array is divided among writers
# SPDX-License-Identifier: MIT
"""The regions cover the array once, respect shards or inner chunks, and are balanced; wrong arguments get typed errors."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ZARR_IS_31, create, quiet
from hypothesis import given
from hypothesis import strategies as st

import shardcodec
from shardcodec import UnsupportedError
from shardcodec.tools import plan_writes
from shardcodec.tools.targets import array_target
from shardcodec.tools.write_regions import WritePlan, _box_counts, _boxes, _runs

Ints = tuple[int, ...]


@st.composite
def grids(draw: st.DrawFn) -> tuple[Ints, Ints]:
    """Return the shape of an array with elements, and of a cell."""
    ndim = draw(st.integers(0, 4))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    return shape, tuple(draw(st.integers(1, 6)) for _ in range(ndim))


def owners(shape: Ints, regions: Any) -> np.ndarray[Any, Any]:
    """Return the worker of each element; fails if one has two workers or none."""
    found = np.full(shape, -1)
    for worker, parts in enumerate(regions):
        for region in parts:
            assert all(0 <= part.start < part.stop <= n for part, n in zip(region, shape, strict=True))
            assert (found[region] == -1).all()
            found[region] = worker
    assert (found >= 0).all()
    return found


def check(shape: Ints, cell: Ints, workers: int, regions: Any, most_elements: float) -> None:
    regions = list(regions)
    found = owners(shape, regions)
    assert len(regions) == workers
    starts = [range(0, n, size) for n, size in zip(shape, cell, strict=True)]
    for corner in itertools.product(*starts):
        inside = found[tuple(slice(i, i + size) for i, size in zip(corner, cell, strict=True))]
        assert (inside == inside.flat[0]).all()
    assert np.bincount(found.reshape(-1)).max() <= most_elements
    assert max(map(len, regions)) <= max(1, 2 * len(shape) - 1)


@given(grid=grids(), workers=st.integers(1, 40))
def test_regions_cover_the_array_once_and_share_no_cell(grid: tuple[Ints, Ints], workers: int) -> None:
    shape, cell = grid
    mean = math.prod(shape) / workers
    check(
        shape, cell, workers, _runs(shape, cell, workers), math.ceil(mean) + math.prod(map(min, shape, cell))
    )
    counts = _box_counts(shape, cell, workers)
    if counts is not None:
        check(shape, cell, workers, _boxes(shape, cell, counts), 1.1 * mean + 1e-6)


@given(grid=grids(), workers=st.integers(1, 24))
def test_boxes_are_found_if_there_are_equal_ones(grid: tuple[Ints, Ints], workers: int) -> None:
    shape, cell = grid
    counts = [-(-n // size) for n, size in zip(shape, cell, strict=True)]
    ways = itertools.product(*([k for k in range(1, n + 1) if workers % k == 0] for n in counts))
    largest = [
        math.prod(
            min(n, -(-spans // k) * size) for n, size, spans, k in zip(shape, cell, counts, way, strict=True)
        )
        for way in ways
        if math.prod(way) == workers
    ]
    is_possible = bool(largest) and min(largest) <= 1.1 * math.prod(shape) / workers + 1e-9
    assert (_box_counts(shape, cell, workers) is not None) == is_possible


@pytest.mark.parametrize(("align", "cell"), [("shard", (8, 12)), ("subchunk", (4, 3))])
def test_workers_write_the_array(tmp_path: Path, align: str, cell: Ints) -> None:
    array = create(tmp_path / "a.zarr", shape=(30, 50))
    plan = plan_writes(array, workers=5, align=align)
    assert (plan.shape, plan.cell_shape, plan.align) == ((30, 50), cell, align)
    expected = owners(plan.shape, plan.regions)
    for rank in range(5):
        for region in plan_writes(tmp_path / "a.zarr", workers=5, align=align).regions[rank]:
            array[region] = rank
    assert (array[...] == expected).all()


def test_each_worker_has_one_large_box_where_this_is_balanced(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr", shape=(80, 120))
    plan = plan_writes(array, workers=4)
    assert [len(parts) for parts in plan.regions] == [1] * 4
    assert plan.regions[0] == ((slice(0, 40), slice(0, 60)),)
    assert plan_writes(array, workers=5).regions[1] == ((slice(16, 32), slice(0, 120)),)


def test_inner_chunks_of_a_transposed_shard_have_the_axes_of_the_array(tmp_path: Path) -> None:
    sharding = zarr.codecs.ShardingCodec(chunk_shape=(2, 4))
    with quiet():
        zarr.create_array(
            tmp_path / "a.zarr",
            shape=(16, 24),
            chunks=(8, 12),
            dtype="u1",
            filters=[zarr.codecs.TransposeCodec(order=(1, 0))],
            serializer=sharding,
            compressors=None,
        )
    assert plan_writes(tmp_path / "a.zarr", workers=2, align="subchunk").cell_shape == (4, 2)


@pytest.mark.parametrize("align", ["shard", "subchunk"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_without_shards_is_divided_by_chunks(tmp_path: Path, align: str, zarr_format: Any) -> None:
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(9, 4), chunks=(2, 3), dtype="u1", zarr_format=zarr_format
    )
    plan = plan_writes(array, workers=3, align=align)
    assert plan.cell_shape == (2, 3)
    owners((9, 4), plan.regions)


@pytest.mark.parametrize(("shape", "n"), [((), 1), ((0, 5), 0)])
def test_scalar_and_empty_arrays(tmp_path: Path, shape: Ints, n: int) -> None:
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=shape, chunks=tuple(max(1, n) for n in shape), dtype="u1"
    )
    plan = plan_writes(array, workers=3)
    assert sum(map(len, plan.regions)) == n and len(plan.regions) == 3
    for parts in plan.regions:
        for region in parts:
            array[region] = 7
    assert (array[...] == 7).all()


def test_more_workers_than_shards_leave_some_without_work(tmp_path: Path) -> None:
    plan = plan_writes(create(tmp_path / "a.zarr"), workers=11)
    assert sorted(map(len, plan.regions)) == [0] * 7 + [1] * 4


def test_time_does_not_depend_on_the_number_of_cells(tmp_path: Path) -> None:
    shape = (2**50 + 1, 2**40 - 3, 10**6 + 7)
    zarr.create_array(tmp_path / "a.zarr", shape=shape, chunks=(3, 5, 7), dtype="u1")
    for workers in (5040, 4099):
        plan = plan_writes(tmp_path / "a.zarr", workers=workers)
        sizes = [
            sum(math.prod(part.stop - part.start for part in region) for region in parts)
            for parts in plan.regions
        ]
        assert sum(sizes) == math.prod(shape)
        assert max(sizes) <= 1.1 * math.prod(shape) / workers


def test_plan_becomes_json(tmp_path: Path) -> None:
    plan = plan_writes(create(tmp_path / "a.zarr"), workers=2)
    found = json.loads(json.dumps(plan.to_json()))
    assert found == {
        "schema": "shardcodec.plan_writes",
        "schema_version": 1,
        "shape": [16, 24],
        "align": "shard",
        "cell_shape": [8, 12],
        "regions": [[[[0, 8], [0, 24]]], [[[8, 16], [0, 24]]]],
    }
    with pytest.raises(AttributeError):
        plan.align = "subchunk"  # type: ignore[misc]
    assert isinstance(plan, WritePlan)


def test_attached_array_is_an_array(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")
    attached = shardcodec.attach(zarr.open_array(tmp_path / "a.zarr"))
    assert plan_writes(attached, workers=2) == plan_writes(tmp_path / "a.zarr", workers=2)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"workers": 0}, ValueError, "workers: expected a number from 1 to 1000000, got 0"),
    ({"workers": -1}, ValueError, "got -1"),
    ({"workers": 10**9}, ValueError, "got 1000000000"),
    ({"workers": 2.5}, TypeError, "workers: expected a whole number, got 2.5"),
    ({"workers": "4"}, TypeError, "expected a whole number, got '4'"),
    ({"workers": None}, TypeError, "expected a whole number"),
    ({"workers": 2, "align": "chunk"}, ValueError, "align: expected one of 'shard', 'subchunk', got 'chunk'"),
    ({"workers": 2, "align": None}, TypeError, "align: expected one of"),
    ({"workers": 2, "storage_options": {"region": "x"}}, (TypeError, ValueError), "storage_options"),
])  # fmt: skip
def test_wrong_arguments_are_told(tmp_path: Path, arguments: Any, error: Any, text: str) -> None:
    create(tmp_path / "a.zarr")
    with pytest.raises(error, match=text):
        plan_writes(tmp_path / "a.zarr", **arguments)


def test_other_things_than_arrays_are_told(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    with pytest.raises(ValueError, match="expected an array, got the group"):
        plan_writes(group, workers=2)
    array = create(tmp_path / "g.zarr", name="a")
    array[...] = 1
    with pytest.raises(ValueError, match="expected an array, got the group"):
        plan_writes(tmp_path / "g.zarr", workers=2)
    with pytest.raises(ValueError, match="expected an array, got one shard of"):
        plan_writes(tmp_path / "g.zarr/a/c/0/0", workers=2)
    with pytest.raises(FileNotFoundError):
        plan_writes(tmp_path / "none.zarr", workers=2)
    with pytest.raises(TypeError, match="expected a path"):
        plan_writes(np.zeros(3), workers=2)
    (tmp_path / "g.zarr/a/zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(UnsupportedError, match="missing required key"):
        plan_writes(tmp_path / "g.zarr/a", workers=2)


def test_array_that_was_resized_meanwhile_is_told(tmp_path: Path) -> None:
    old = create(tmp_path / "a.zarr")
    zarr.open_array(tmp_path / "a.zarr").resize((32, 24))
    with pytest.raises(
        ValueError, match=r"expected the stored shape \(32, 24\), got \(16, 24\); open the array again"
    ):
        plan_writes(old, workers=2)


@pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 has no rectilinear grids")
def test_rectilinear_grid_is_told(tmp_path: Path) -> None:
    document = create(tmp_path / "a.zarr", shape=(16, 24)).metadata.to_dict()
    document["chunk_grid"] = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[8, 4, 4], [12, 12]]},
    }
    assert array_target("", None, document).problem is not None  # type: ignore[arg-type]
    (tmp_path / "a.zarr/zarr.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match="rectilinear grid"):
        plan_writes(tmp_path / "a.zarr", workers=2)


def test_unknown_codec_permits_whole_shards_only(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")
    file = tmp_path / "a.zarr/zarr.json"
    document = json.loads(file.read_text())
    document["codecs"].insert(0, {"name": "no.such", "configuration": {}})
    file.write_text(json.dumps(document))
    assert plan_writes(tmp_path / "a.zarr", workers=2).cell_shape == (8, 12)
    with pytest.raises(UnsupportedError, match=r"no\.such"):
        plan_writes(tmp_path / "a.zarr", workers=2, align="subchunk")
