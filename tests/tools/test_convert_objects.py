# test_convert_objects.py - convert: objects of Python, stores of other packages, scalars of text
# SPDX-License-Identifier: MIT
"""An object whose slices are not what it says is refused before anything is written; a store that lists little loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from conversions import SQUARE, elements
from helpers import quiet
from zarr.abc.store import Store
from zarr.storage import MemoryStore, WrapperStore

from shardcodec.cli.app import run
from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert, inspect, verify


class Scaled:
    """An array that declares the integers of its file and returns floats, as those of nibabel and netCDF4."""

    shape, dtype = (3,), np.dtype("int16")

    def __getitem__(self, box: Any) -> Any:
        return np.arange(3)[box] * 0.5


class Sparse(Scaled):
    """A matrix whose slices are matrices again, as those of scipy."""

    def __getitem__(self, box: Any) -> Any:
        return self


class Odd(Scaled):
    """An array whose slices raise."""

    def __getitem__(self, box: Any) -> Any:
        raise IndexError("expected another index")


def nibabel_scaled(path: Path) -> Any:
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    image = nibabel.Nifti1Image(np.linspace(0, 1, 24).reshape(2, 3, 4), np.eye(4))
    image.header.set_data_dtype("int16")
    nibabel.save(image, path / "a.nii")
    return nibabel.load(path / "a.nii").dataobj


def netcdf_scaled(path: Path) -> Any:
    netcdf = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    file = netcdf.Dataset(path / "a.nc", "w")
    file.createDimension("x", 3)
    packed = file.createVariable("packed", "i2", ("x",))
    packed.scale_factor = 0.5
    packed[:] = [1, 2, 3]
    return packed


def scipy_sparse(path: Path) -> Any:
    return pytest.importorskip("scipy.sparse", reason="scipy is not installed").csr_array(np.eye(3))


def dask_unknown(path: Path) -> Any:
    array = pytest.importorskip("dask.array", reason="dask is not installed").arange(9, chunks=3)
    return array[array > 4]


def tensorstore_window(path: Path) -> Any:
    return pytest.importorskip("tensorstore", reason="tensorstore is not installed").array(SQUARE)[4:8]


def text_of_zarr(path: Path) -> Any:
    with quiet():
        return zarr.create_array(MemoryStore(), shape=(3,), dtype="string")


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "another type": (lambda path: Scaled(), UnsupportedError, "Scaled"),
    "no arrays": (lambda path: Sparse(), UnsupportedError, "Sparse"),
    "an error": (lambda path: Odd(), UnsupportedError, "Odd"),
    "a list": (lambda path: [1, 2], TypeError, "list"),
    "objects": (lambda path: np.array(["a", None], object), UnsupportedError, "numpy.ndarray"),
    "nibabel": (nibabel_scaled, UnsupportedError, "get_unscaled"),
    "netCDF4": (netcdf_scaled, UnsupportedError, "set_auto_maskandscale"),
    "scipy": (scipy_sparse, UnsupportedError, "toarray"),
    "dask": (dask_unknown, TypeError, "compute_chunk_sizes"),
    "tensorstore": (tensorstore_window, UnsupportedError, "translate_to"),
    "text of zarr": (text_of_zarr, UnsupportedError, "store_path"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_object_that_does_not_deliver_its_dtype_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    """The mark of a job was there, all shards failed, and the report had `is_complete=False`."""
    make, kind, advice = REFUSED[name]
    with pytest.raises(kind, match=advice):
        convert(make(tmp_path), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_open_tensorstore_is_converted(tmp_path: Path) -> None:
    """Its data types are no types of numpy."""
    tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    convert(tensorstore.array(SQUARE)[4:8].translate_to[0, 0], tmp_path / "new")
    assert (elements(tmp_path / "new") == SQUARE[4:8]).all()


def test_masked_elements_get_the_fill_value(tmp_path: Path) -> None:
    """What numpy holds behind a mask became elements of the array."""
    given = np.ma.masked_greater(np.arange(6), 3)
    convert(given, tmp_path / "new")
    assert elements(tmp_path / "new").tolist() == [0, 1, 2, 3, *2 * [given.fill_value]]


def test_fields_with_gaps_are_packed(tmp_path: Path) -> None:
    given = np.zeros(3, np.dtype([("a", "u1"), ("b", [("c", "u1"), ("d", ">f8")])], align=True))
    given["b"]["d"] = [1, 2, 3]
    convert(given, tmp_path / "new", shards=None)
    with quiet():
        new = zarr.open_array(tmp_path / "new", mode="r")[...]
    assert new.dtype.itemsize == 1 + 1 + 8
    assert new["b"]["d"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("compressor", [numcodecs.BZ2(), numcodecs.Zlib()], ids=str)
@pytest.mark.parametrize(("dtype", "value"), [("<U3", "x"), (">U3", ""), ("S5", b""), ("S5", b"ab")])
def test_scalar_of_text_is_shorter_than_its_type(
    compressor: Any, dtype: str, value: Any, tmp_path: Path
) -> None:
    """A codec of zarr gives a text of one character as one of `<U1`, which failed the array and all of its group."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        group.create_array("crs", shape=(), dtype=dtype, compressors=compressor)[...] = value
        group.create_array("t", shape=(4,), chunks=(2,), dtype="f4")[...] = 1
        for how in ({}, {"shards": 1 << 20}, {"verify": "full"}):
            new = tmp_path / "new" / "-".join(how)
            assert convert(tmp_path / "old", new, **how).is_complete
            assert zarr.open_group(new, mode="r")["crs"][()] == value
            assert not verify(new, against=tmp_path / "old").n_findings


class Names(MemoryStore):
    """A store that names the members of a folder, and lists no keys, as that of VirtualiZarr."""

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError


class LateNames(MemoryStore):
    """The same with an error at the first key."""

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise NotImplementedError
        yield ""


class Documents(Store):
    """A store that makes its chunks and lists only documents, as that of tifffile: any other key is a KeyError."""

    def __init__(self, base: MemoryStore) -> None:
        super().__init__(read_only=True)
        self._inner = base

    def __eq__(self, other: object) -> bool:
        return self is other

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await self._inner.get(key, prototype, byte_range)
        if found is None and key.rpartition("/")[2] in ("zarr.json", ".zmetadata") and "/" in key:
            raise KeyError(key)
        return found

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        raise NotImplementedError

    async def exists(self, key: str) -> bool:
        return await self._inner.exists(key)

    supports_writes = supports_deletes = supports_partial_writes = False
    supports_listing = True

    async def set(self, key: str, value: Any) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async for key in self._inner.list_prefix(prefix):
            if key.rpartition("/")[2].startswith((".z", "zarr.json")):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async for key in self._inner.list_dir(prefix):
            yield key


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("kind", [Names, LateNames, Documents])
def test_store_that_lists_no_chunks_loses_none(kind: Any, wraps: bool, tmp_path: Path) -> None:
    """Chunks that a listing did not show were taken for absent: the new array had the fill value, and the report was complete."""
    base = MemoryStore()
    with quiet():
        group = zarr.create_group(base, zarr_format=2)
        for path in ("a", "sub/b"):
            group.create_array(path, shape=SQUARE.shape, chunks=(2, 4), dtype="int32")[...] = SQUARE
    store = kind(base) if kind is Documents else kind(base._store_dict)
    store = WrapperStore(store) if wraps else store
    report = convert(store, tmp_path / "new", shards=(16, 16))
    assert report.is_complete and report.n_moved_chunks == 2 * 128
    for path in ("a", "sub/b"):
        assert (elements(tmp_path / "new" / path) == SQUARE).all()
    assert len(inspect(store).arrays) == 2
    assert [array.n_shards for array in verify(store).arrays] == [128, 128]


def test_virtual_data_set_of_virtualizarr(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    parsers = pytest.importorskip("virtualizarr.parsers", reason="virtualizarr is not installed")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("sub/x", data=SQUARE, chunks=(2, 4), compression="gzip")
        file["scalar"] = np.float32(7)
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    report = convert(parsers.HDFParser()(url=f"file://{tmp_path}/a.h5", registry=registry), tmp_path / "new")
    assert report.is_complete
    assert (elements(tmp_path / "new/sub/x") == SQUARE).all()
    assert elements(tmp_path / "new/scalar") == 7


@pytest.mark.parametrize(
    "how",
    [{"tile": (16, 32), "compression": "zlib"}, {"rowsperstrip": 7}, {"bigtiff": True, "byteorder": ">"}],
    ids=["tiles", "strips", "BigTIFF"],
)
def test_tiff_by_way_of_tifffile(how: dict[str, Any], tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    values = np.arange(5 * 100 * 130, dtype="u2").reshape(5, 100, 130)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", **how)
    report = convert(tifffile.imread(tmp_path / "a.tif", aszarr=True), tmp_path / "new", shards=1 << 20)
    assert report.arrays[0].method == "move"
    assert (elements(tmp_path / "new") == values).all()


def test_pyramid_of_ome_tiff(tmp_path: Path) -> None:
    """The store of tifffile has a KeyError for a `zarr.json` of a level."""
    tifffile = pytest.importorskip("tifffile", reason="tifffile is not installed")
    values = np.arange(3 * 100 * 130, dtype="u2").reshape(3, 100, 130)
    how = {"tile": (32, 32), "compression": "zlib", "photometric": "minisblack"}
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as writer:
        writer.write(values, subifds=1, metadata={"axes": "CYX"}, **how)
        writer.write(values[:, ::2, ::2], subfiletype=1, **how)
    convert(tifffile.imread(tmp_path / "a.ome.tif", aszarr=True), tmp_path / "new", shards=1 << 20)
    for level in range(2):
        assert (elements(tmp_path / "new" / str(level)) == values[:, :: 2**level, :: 2**level]).all()


@pytest.mark.parametrize("start", [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"])
def test_tiff_is_named_with_what_opens_it(
    start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scan.svs").write_bytes(start + bytes(60))
    assert run(["convert", str(tmp_path / "scan.svs"), str(tmp_path / "new")]) == 3
    assert "tifffile.imread" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
