"""Rows that open a data set with xarray and compute, and rows that append to it: the time of the whole task.

The variable is float32, by day, latitude and longitude. Everything from the opening of the store to the result in memory is
timed. zarr's pipelines are used through `xarray.open_zarr`, and shardcodec also through its engine for xarray. Handles of
TensorStore and arrays of `attach` are read by dask with the same chunks, and the coordinates come from `xarray.open_zarr`;
xarray-tensorstore is the entrance of TensorStore to xarray.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peers
import suite
from data import Array, Case, wait_until_old
from peers import Peer
from suite import Context, Row

GROUP = "end to end"
PIPELINES = ("shardcodec", "zarr batched", "zarr fused", "zarrs")
HANDLES = ("shardcodec attach", "tensorstore")
ENTRANCES = ("shardcodec engine", "xarray-tensorstore")

DIMS = ("time", "lat", "lon")
N_APPENDED = 50
N_MAPS = 100


@dataclass(frozen=True)
class ClimateCase(Case):
    """The variable `t` of a data set."""

    def slug(self) -> str:
        return f"climate-{super().slug()}"

    def dataset(self, values: Array, first: int = 0) -> Any:
        """Return days of the variable with their coordinates."""
        import pandas as pd
        import xarray as xr

        time = pd.date_range("2001-01-01", periods=first + len(values), freq="D")[first:]
        lat, lon = (np.linspace(-90, 90, n) for n in self.shape[1:])
        return xr.Dataset({"t": (DIMS, values)}, coords={"time": time, "lat": lat, "lon": lon})

    def store(self, values: Array, path: Path) -> Path:
        """Write a new data set."""
        from zarr.codecs import ZstdCodec

        how = {"chunks": self.inner, "shards": self.shard, "compressors": [ZstdCodec(level=1)]}
        days = {"chunks": (4096,)}  # one chunk, also after many days are appended
        with peers.quiet():
            self.dataset(values).to_zarr(
                path, mode="w", zarr_format=3, consolidated=False, encoding={"t": how, "time": days}
            )
        return path


class AsArray:
    """A handle with the attributes that dask expects of an array."""

    def __init__(self, peer: Peer, handle: Any, case: Case) -> None:
        self.shape, self.dtype, self.ndim = case.shape, np.dtype(case.dtype), len(case.shape)
        self._peer, self._handle = peer, handle

    def __getitem__(self, box: Any) -> Array:
        return self._peer.read(self._handle, box)


def open_dataset(peer: Peer, path: Path, case: Case, *, in_dask: bool = True) -> Any:
    """Open the data set, with chunks of dask or without dask; `t` through the handle of a peer that xarray does not know."""
    import xarray as xr
    import zarr

    chunks: dict[str, int] | None = {} if in_dask else None
    if peer.name == "shardcodec engine":
        return xr.open_dataset(path, engine="shardcodec", chunks=chunks, consolidated=False)
    if isinstance(peer, peers.XarrayTensorStore):
        return _open_with_tensorstore(peer, path, case, in_dask=in_dask)
    opened = xr.open_zarr(path, chunks=chunks, consolidated=False)
    if peer.name in PIPELINES:
        return opened
    import dask.array as da

    handle = peer.open(path / "t", case)
    if not isinstance(handle, zarr.Array):
        handle = AsArray(peer, handle, case)
    lazy = da.from_array(handle, chunks=case.inner, name=False, lock=False, asarray=True)
    return opened.assign(t=(DIMS, lazy))


def _open_with_tensorstore(peer: peers.XarrayTensorStore, path: Path, case: Case, *, in_dask: bool) -> Any:
    import tensorstore
    import xarray_tensorstore

    context = tensorstore.Context(peer.context())
    opened = xarray_tensorstore.open_zarr(
        str(path), context=context, mask_and_scale=False, consolidated=False
    )
    return opened.chunk(dict(zip(DIMS, case.inner, strict=True))) if in_dask else opened


def _mean(data: Any) -> Any:
    return data.t.mean("time")


def _series(data: Any) -> Any:
    return data.t.isel(lat=data.sizes["lat"] // 3, lon=data.sizes["lon"] // 2)


def _climatology(data: Any) -> Any:
    return data.t.groupby("time.month").mean()


def _maps(data: Any) -> Any:
    """Read single days, one after another, as a program does that draws them."""
    import xarray as xr

    days = [7 * i % data.sizes["time"] for i in range(N_MAPS)]
    return xr.DataArray(np.stack([data.t.isel(time=day).values for day in days]))


@dataclass(frozen=True)
class Compute(Row):
    """Opens the data set and computes one result."""

    what: Callable[[Any], Any] = _mean
    in_dask: bool = True

    def takes(self, peer: Peer) -> bool:
        return peer.name in (*PIPELINES, *ENTRANCES, *(HANDLES if self.in_dask else ()))

    def source(self, context: Context) -> Path:
        slug = self.case.slug()
        if slug not in context.sources:
            with context.writer.turn():
                assert isinstance(self.case, ClimateCase)
                context.sources[slug] = self.case.store(context.values(self.case), context.folder / slug)
            wait_until_old(context.sources[slug], context.age)
        return context.sources[slug]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        assert isinstance(self.case, ClimateCase)
        chunks = dict(zip(DIMS, self.case.inner, strict=True))  # sums are then added in the same order
        expected = self.what(self.case.dataset(context.values(self.case)).chunk(chunks)).compute()
        suite.assert_equal(peer, self.operate(peer, self.prepare(context, peer, 0)).values, expected.values)
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        return self.source(context)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        return self.what(open_dataset(peer, prepared, self.case, in_dask=self.in_dask)).compute()


@dataclass(frozen=True)
class Append(Row):
    """Appends days to the data set, one after another, with `to_zarr`."""

    most_rounds = 3

    def takes(self, peer: Peer) -> bool:
        return peer.name in PIPELINES

    def _days(self, context: Context) -> Array:
        return context.values(self.case)[: N_APPENDED + 1]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        with context.checker.turn():
            found = context.checker.read(context.checker.open(prepared[0] / "t", self.case), np.s_[:, :, :])
        suite.assert_equal(peer, found, self._days(context))
        self.finish(prepared)
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        assert isinstance(self.case, ClimateCase)
        days = self._days(context)
        path = context.folder / f"appended-{peer.name.replace(' ', '-')}"
        with context.writer.turn():
            self.case.store(days[:1], path)
        return path, days

    def operate(self, peer: Peer, prepared: Any) -> Any:
        assert isinstance(self.case, ClimateCase)
        path, days = prepared
        for i in range(1, len(days)):
            self.case.dataset(days[i : i + 1], i).to_zarr(path, append_dim="time", consolidated=False)

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[0])

    @property
    def nbytes(self) -> int:
        return self.case.nbytes // self.case.shape[0] * N_APPENDED


@dataclass(frozen=True)
class Extend(Append):
    """Makes the array longer and writes the new day, without xarray."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in (*PIPELINES, *HANDLES)

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        path, days = super().prepare(context, peer, number)
        return path, days, peer.open(path / "t", self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        _, days, array = prepared
        for i in range(1, len(days)):
            array = peer.resize(array, (i + 1, *days.shape[1:]))
            peer.write(array, (slice(i, i + 1), slice(None), slice(None)), days[i : i + 1])


def rows(edge: int) -> list[Row]:
    """Return the rows: 720 days of 96 x 192 if `edge` is 512, with three results, and two ways to append."""
    n_lat, n_lon = 3 * edge // 16, 3 * edge // 8
    case = ClimateCase(
        (720, n_lat, n_lon), (240, n_lat, n_lon), (24, n_lat // 3, n_lon // 3), "float32", "zstd 1"
    )
    days = ClimateCase(
        (720, n_lat, n_lon), (64, n_lat, n_lon), (8, n_lat // 3, n_lon // 3), "float32", "zstd 1"
    )
    return [
        Compute(GROUP, "xarray, mean over time", case, _mean),
        Compute(GROUP, "xarray, time series of a point", case, _series),
        Compute(GROUP, "xarray, climatology by month", case, _climatology),
        Compute(GROUP, f"xarray, {N_MAPS} maps without dask", case, _maps, in_dask=False),
        Append(GROUP, f"xarray, {N_APPENDED} days appended by to_zarr", days),
        Extend(GROUP, f"{N_APPENDED} days appended without xarray", days),
    ]
