# test_xarray_engine.py - `engine="shardcodec"` of xarray against its engine "zarr"
# SPDX-License-Identifier: MIT
"""Data sets of both engines are identical, and the arrays are read by shardcodec, in this process and in others."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import open_and_sum

import shardcodec

xr = pytest.importorskip("xarray", reason="xarray is not installed")

from shardcodec.zarr_plugin.xarray_engine import ShardCodecBackend  # noqa: E402 (it imports xarray)

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


def data_set() -> Any:
    """Return a data set with what xarray decodes: times, a mask, a scale, text, coordinates."""
    generator = np.random.default_rng(7)
    heat = generator.normal(size=(12, 8, 10)).astype("float32")
    heat[3, 2:4] = np.nan
    made = xr.Dataset(
        {
            "heat": (("time", "lat", "lon"), heat, {"units": "K"}),
            "packed": (("lat", "lon"), np.round(generator.normal(size=(8, 10)), 2)),
            "count": (("time",), np.arange(12)),
            "scalar": ((), 3.5),
            "station": (("lat",), np.array(["Bern", "Zürich"] * 4, dtype=object)),
        },
        coords={
            "time": np.arange("2020-01-01", "2020-01-13", dtype="M8[D]").astype("M8[ns]"),
            "lat": np.linspace(-70, 70, 8),
        },
        attrs={"title": "a test"},
    )
    made["packed"].encoding = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}
    return made


@pytest.fixture(params=[2, 3])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    encoding = {"heat": {"chunks": (2, 4, 5)}}
    if request.param == 3:
        encoding["heat"]["shards"] = (6, 8, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # text has no specification in Zarr v3
        data_set().to_zarr(tmp_path / "a.zarr", encoding=encoding, zarr_format=request.param)
    return tmp_path / "a.zarr"


def zarr_array(variable: Any) -> Any:
    """Return the zarr array below a variable that is not loaded."""
    data = variable.variable._data
    while not isinstance(data, zarr.Array):
        data = data._array if hasattr(data, "_array") else data.array
    return data


@pytest.mark.parametrize("chunks", [None, {}, {"time": 6}])
@pytest.mark.parametrize("decode_cf", [True, False])
def test_data_sets_are_those_of_the_engine_zarr(stored: Path, chunks: Any, decode_cf: bool) -> None:
    with (
        xr.open_dataset(stored, engine="zarr", chunks=chunks, decode_cf=decode_cf) as expected,
        xr.open_dataset(stored, engine="shardcodec", chunks=chunks, decode_cf=decode_cf) as opened,
    ):
        for name in expected.variables:
            assert opened[name].chunks == expected[name].chunks
            assert str(opened[name].encoding) == str(expected[name].encoding)
        xr.testing.assert_identical(opened, expected)
        for box in (
            {"time": slice(2, 9, 3)},
            {"lat": [5, 1], "lon": 2},
            {"time": xr.DataArray([1, 4]), "lat": -1},
        ):
            xr.testing.assert_identical(opened.isel(box, missing_dims="ignore"), expected.isel(box))


def test_arrays_are_read_by_shardcodec_with_the_options(stored: Path) -> None:
    with xr.open_dataset(stored, engine="shardcodec", options={"threads": 3}) as opened:
        array = zarr_array(opened["heat"])
        assert isinstance(array.async_array.codec_pipeline, shardcodec.ShardCodecPipeline)
        assert array.async_array.codec_pipeline._options().threads == 3
    with xr.open_dataset(stored, engine="zarr") as other:
        assert not isinstance(
            zarr_array(other["heat"]).async_array.codec_pipeline, shardcodec.ShardCodecPipeline
        )


def test_wrong_options_are_typed_errors(stored: Path) -> None:
    with pytest.raises(TypeError, match="treads"):
        xr.open_dataset(stored, engine="shardcodec", options={"treads": 3})
    with pytest.raises(ValueError, match="threads"):
        xr.open_groups(stored, engine="shardcodec", options={"threads": -3})


def test_a_missing_data_set_is_the_error_of_the_engine_zarr(tmp_path: Path) -> None:
    for engine in ("zarr", "shardcodec"):
        with pytest.raises(FileNotFoundError):
            xr.open_dataset(tmp_path / "none.zarr", engine=engine)


@pytest.mark.parametrize("group", [None, "/x", "x/y"])
def test_groups_and_trees_are_those_of_the_engine_zarr(tmp_path: Path, group: str | None) -> None:
    made = data_set().drop_vars("station")
    tree = xr.DataTree.from_dict({"/": made[["count"]], "/x": made[["heat"]], "/x/y": made, "/z": made})
    tree.to_zarr(tmp_path / "t.zarr", zarr_format=3)
    with (
        xr.open_datatree(tmp_path / "t.zarr", engine="zarr", group=group) as expected,
        xr.open_datatree(tmp_path / "t.zarr", engine="shardcodec", group=group) as opened,
    ):
        array = zarr_array(opened["x/heat" if group is None else "heat"])
        assert isinstance(array.async_array.codec_pipeline, shardcodec.ShardCodecPipeline)
        xr.testing.assert_identical(opened, expected)
    expected = xr.open_groups(tmp_path / "t.zarr", engine="zarr", group=group)
    opened = xr.open_groups(tmp_path / "t.zarr", engine="shardcodec", group=group)
    assert list(opened) == list(expected)
    for name, found in opened.items():
        xr.testing.assert_identical(found, expected[name])


def test_many_files_are_those_of_the_engine_zarr(tmp_path: Path) -> None:
    pytest.importorskip("dask", reason="dask is not installed")
    made = data_set().drop_vars(["station", "packed", "scalar"])
    paths = [tmp_path / f"{i}.zarr" for i in range(3)]
    for i, path in enumerate(paths):
        made.isel(time=slice(4 * i, 4 * i + 4)).to_zarr(path)
    with (
        xr.open_mfdataset(paths, engine="zarr") as expected,
        xr.open_mfdataset(paths, engine="shardcodec") as opened,
    ):
        xr.testing.assert_identical(opened.load(), expected.load())


@pytest.mark.filterwarnings("error:.*consolidated")
def test_consolidated_metadata_are_found_as_by_the_engine_zarr(tmp_path: Path) -> None:
    made = data_set()[["heat"]]
    made.to_zarr(tmp_path / "a.zarr", consolidated=False, zarr_format=3)
    for engine in ("zarr", "shardcodec"):
        with pytest.warns(RuntimeWarning, match="consolidated"):
            xr.open_datatree(tmp_path / "a.zarr", engine=engine)
        with pytest.raises(ValueError, match=r"[Cc]onsolidated"):
            xr.open_dataset(tmp_path / "a.zarr", engine=engine, consolidated=True)
        xr.open_dataset(tmp_path / "a.zarr", engine=engine, consolidated=False)  # no warning


def test_xarray_does_not_choose_the_engine_by_itself(stored: Path) -> None:
    assert not ShardCodecBackend().guess_can_open(str(stored))
    assert "shardcodec" in xr.backends.list_engines()


@pytest.mark.parametrize(
    ("stored", "chunks"),
    [(3, None), (3, {"time": 6}), pytest.param(2, None, marks=pytest.mark.nightly)],
    indirect=["stored"],
)
def test_processes_without_enable_read_with_shardcodec(stored: Path, chunks: Any) -> None:
    """The pipeline travels with the arrays, so a worker that was spawned needs no call of its own."""
    opened = xr.open_dataset(stored, engine="shardcodec", chunks=chunks)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        are_native, total = pool.submit(open_and_sum, pickle.dumps(opened), "heat").result()
    assert are_native and all(are_native)
    assert total == pytest.approx(float(opened["heat"].sum()))
