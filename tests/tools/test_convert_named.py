# test_convert_named.py - a conversion names what differs, and takes objects and stores of other packages
# SPDX-License-Identifier: MIT
"""Codecs, grids and layouts that differ from those of the source, or from what the user wanted, are in the report.

An object whose slices are not what it says is refused before anything is written; a store that lists little loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from conversions import SQUARE, VALUES, elements, same, source
from helpers import ZARR_IS_31, quiet
from tool_sources import edit
from zarr.abc.store import Store
from zarr.storage import MemoryStore, WrapperStore

from shardcodec.cli.app import run
from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert, inspect, verify
from shardcodec.tools.convert.layout import parse_codec_list


@pytest.mark.parametrize(("kind", "name", "wanted"), [("Zlib", "zlib", "gzip"), ("LZ4", "lz4", "zstd")])
def test_codecs_that_others_cannot_read_are_named(kind: str, name: str, wanted: str, tmp_path: Path) -> None:
    """Chunks of Zarr v2 are moved with codecs of numcodecs, which TensorStore does not read; the report said nothing."""
    numcodecs = pytest.importorskip("numcodecs")
    with quiet():
        source(tmp_path / "old", zarr_format=2, compressors=getattr(numcodecs, kind)())
    (one,) = convert(tmp_path / "old", tmp_path / "new", dry_run=True).arrays
    (note,) = one.notes
    assert f"numcodecs.{name}" in note
    assert note.endswith(f"--codecs {wanted}")
    (one,) = convert(tmp_path / "old", tmp_path / "new", codecs=parse_codec_list(wanted)).arrays
    assert one.notes == ()
    same(tmp_path / "new")
    assert f'"name": "{wanted}"' in (tmp_path / "new/zarr.json").read_text()


@pytest.mark.parametrize("kind", ["Fletcher32", "CRC32", "Adler32"])
def test_zarr_opens_arrays_with_checksums_of_v2(kind: str, tmp_path: Path) -> None:
    """A codec of numcodecs without a configuration had none in the new metadata, and zarr did not open the array."""
    numcodecs = pytest.importorskip("numcodecs")
    with quiet():
        source(tmp_path / "old", zarr_format=2, filters=[getattr(numcodecs, kind)()])
        convert(tmp_path / "old", tmp_path / "new")
    same(tmp_path / "new")


def test_text_that_zarr_decodes_keeps_its_fill_value(tmp_path: Path) -> None:
    """Its elements were right, and the fill value of the new array was the empty text."""
    numcodecs = pytest.importorskip("numcodecs")
    with quiet():
        how: dict[str, Any] = {"zarr_format": 2, "compressors": numcodecs.BZ2(), "fill_value": "naïve"}
        old = zarr.create_array(tmp_path / "old", shape=(4,), chunks=(2,), dtype="str", **how)
        old[:2] = np.array(["a", ""], dtype=object)
        convert(tmp_path / "old", tmp_path / "new")
        new = zarr.open_array(tmp_path / "new", mode="r")
    assert new.fill_value == "naïve" and new[...].tolist() == ["a", "", "naïve", "naïve"]


def test_codecs_that_are_not_kept_are_named(tmp_path: Path) -> None:
    """`scale_offset` and `cast_value` were replaced by zstd in silence, and each element took four times the bytes."""
    codecs = pytest.importorskip("zarr.codecs")
    if not hasattr(codecs, "CastValue"):
        pytest.skip("this zarr has no cast_value")
    many = {"encode": [(float(i), i) for i in range(1000, 1257)]}  # the engine has up to 256
    for name, scalar_map, lost in (
        ("native", None, ()),
        (
            "many",
            many,
            (
                "codecs of the source that are not kept: scale_offset, cast_value; elements are stored as float64 with bytes, zstd",
            ),
        ),
    ):
        filters = [
            codecs.ScaleOffset(offset=5.0, scale=10.0),
            codecs.CastValue(data_type="int16", scalar_map=scalar_map),
        ]
        with quiet():
            array = zarr.create_array(tmp_path / name, shape=(10,), chunks=(5,), dtype="f8", filters=filters)
            array[...] = np.arange(10) / 10 + 5
        (one,) = convert(tmp_path / name, tmp_path / f"{name}-new").arrays
        assert one.notes == lost
        same(tmp_path / f"{name}-new", np.asarray(array[...]))


def test_rectilinear_grid_is_said(tmp_path: Path) -> None:
    """`inspect` showed the first size as the shape of all chunks; `convert` copied the objects and blamed the data type."""
    path = tmp_path / "old"
    with quiet():
        array = zarr.create_array(path, shape=(30, 4), chunks=(10, 4), dtype="int32")
        array[...] = np.arange(120).reshape(30, 4)
    if not ZARR_IS_31:
        with quiet(), zarr.config.set({"array.rectilinear_chunks": True}):
            array = zarr.create_array(
                path, shape=(30, 4), chunks=[[10, 15, 5], [4]], dtype="int32", overwrite=True
            )
            array[...] = np.arange(120).reshape(30, 4)
    else:  # it has no such grid, so only the metadata have one
        grid = {"kind": "inline", "chunk_shapes": [[10, 15, 5], 4]}
        edit(path / "zarr.json", chunk_grid={"name": "rectilinear", "configuration": grid})
    layout = inspect(path).arrays[0].layout
    assert layout is not None
    assert layout.chunk_shape is None
    assert layout.grid_sizes == ((10, 15, 5), (4,))
    if ZARR_IS_31:
        assert "rectilinear" in convert(path, tmp_path / "copy").arrays[0].reason
        with pytest.raises(UnsupportedError, match="rectilinear"):
            convert(path, tmp_path / "new", chunks=(5, 2), shards=(20, 4))
        return
    (one,) = convert(path, tmp_path / "new", chunks=(5, 2), shards=(20, 4)).arrays
    assert one.method == "encode"
    assert "the grid of the source is rectilinear, with chunks of ((10, 15, 5), (4,))" in one.notes[0]
    assert same(tmp_path / "new", np.arange(120, dtype="int32").reshape(30, 4)).shards == (20, 4)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("how", ["shapes", "like"])
def test_arrays_with_other_axes_keep_their_layout(zarr_format: int, how: str, tmp_path: Path) -> None:
    """A data set of xarray has coordinates of one axis beside variables of three; shapes for these refused the whole group."""
    sources = {
        "v": {"data": VALUES, "chunks": (4, 8, 4)},
        "x": {"data": np.arange(33.0), "chunks": (8,)},
        "crs": {"data": np.array(7)},
    }
    if zarr_format == 3:
        sources["sharded"] = {"data": VALUES[0], "chunks": (4, 7), "shards": (16, 7)}
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=zarr_format)
        for name, one in sources.items():
            group.create_array(name, **one)
    shapes: dict[str, Any] = {"chunks": (5, 4, 7), "shards": (10, 16, 7)}
    if how == "like":
        with quiet():
            source(tmp_path / "like", **shapes)
        shapes = {"like": tmp_path / "like"}
    dry = convert(tmp_path / "old", tmp_path / "new", **shapes, dry_run=True)
    report = convert(tmp_path / "old", tmp_path / "new", **shapes, level="compare")
    for found in (dry, report):
        notes = {one.name: one.notes for one in found.arrays}
        assert notes["v"] == ()
        assert "the array keeps its layout" in notes["x"][0]
        assert all(notes[name] for name in notes if name in ("x", "sharded"))
    for name, one in sources.items():
        new = same(tmp_path / "new", one["data"], name)
        if name == "v":
            assert (new.chunks, new.shards) == ((5, 4, 7), (10, 16, 7))
        else:
            assert new.shards == one.get("shards")
            assert new.chunks == one.get("chunks", ())
    wrong = {"chunks": (5, 4, 7, 1)} if how == "shapes" else shapes
    with pytest.raises(ValueError, match="expected"):
        convert(tmp_path / "old", tmp_path / "wrong", **wrong, only=["x", "crs"])


@pytest.mark.parametrize("must_understand", [False, True])
def test_extensions_of_groups_are_kept(must_understand: bool, tmp_path: Path) -> None:
    """Further members of the `zarr.json` of a group vanished without a word, those that must be understood too."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", attributes={"k": 1})
        group.create_array("g/a", shape=(8,), chunks=(4,), dtype="int32")[...] = np.arange(8)
        zarr.consolidate_metadata(tmp_path / "old")
    extension = {"must_understand": must_understand, "value": 1}
    for name in ("zarr.json", "g/zarr.json"):
        edit(tmp_path / "old" / name, example=extension)
    convert(tmp_path / "old", tmp_path / "new")
    for name in ("zarr.json", "g/zarr.json"):
        document = json.loads((tmp_path / "new" / name).read_text())
        assert document["example"] == extension
    assert json.loads((tmp_path / "new/zarr.json").read_text())["attributes"] == {"k": 1}


def test_members_that_zarr_v3_has_no_place_for_are_named(tmp_path: Path) -> None:
    """Unknown members of `.zgroup` and `.zarray` are not those of Zarr v3; nothing said that they are gone."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        group.create_array("a", shape=(8,), chunks=(4,), dtype="int32")[...] = np.arange(8)
    for name in (".zgroup", "a/.zarray"):
        edit(tmp_path / "old" / name, example=1)
    report = convert(tmp_path / "old", tmp_path / "new")
    named = "the new metadata do not have example, which Zarr v2 does not define"
    assert report.notes == (f"group /: {named}",)
    assert named in report.arrays[0].notes


def test_documents_of_zarr_v2_beside_an_array_that_is_copied_whole(tmp_path: Path) -> None:
    """The array is copied object by object; the documents of Zarr v2 beside its `zarr.json` vanished."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
        group.create_array("a", shape=(8,), chunks=(4,), dtype="int32")[...] = np.arange(8)
    edit(tmp_path / "old/a/zarr.json", codecs=[{"name": "example.codec"}])
    (tmp_path / "old/a/.zattrs").write_text('{"unit": "m"}')
    (tmp_path / "old/a/.zarray").write_text("{}")
    report = convert(tmp_path / "old", tmp_path / "new")
    assert report.arrays[0].method == "copy"
    assert (tmp_path / "new/a/.zattrs").read_text() == '{"unit": "m"}'
    assert [one.name for one in report.others.left] == ["a/.zarray"]


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
    """The values below the mask of a numpy array were stored as elements of the new array."""
    given = np.ma.masked_greater(np.arange(6), 3)
    report = convert(given, tmp_path / "new")
    assert elements(tmp_path / "new").tolist() == [0, 1, 2, 3, *2 * [given.fill_value]]
    assert report.arrays[0].notes == ("masked elements are written as the fill value 999999",)


def test_masked_elements_of_dask_get_the_fill_value_too_and_the_report_says_so(tmp_path: Path) -> None:
    """Those of dask were stored, and the report did not say that the new array has no mask."""
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    lazy = dask_array.ma.masked_greater(dask_array.arange(6, chunks=3), 3)
    (note,) = convert(lazy, tmp_path / "lazy").arrays[0].notes
    assert note == "masked elements are written as the fill value 0"
    assert elements(tmp_path / "lazy").tolist() == [0, 1, 2, 3, 0, 0]
    for number, mask in enumerate((np.ma.nomask, [False] * 3)):
        new = tmp_path / str(number)
        assert not convert(np.ma.masked_array([1, 2, 3], mask), new).arrays[0].notes
        assert elements(new).tolist() == [1, 2, 3]


@pytest.mark.parametrize("texts", [["a", "bb", "c"], [b"a", b"bb", b"c"]], ids=["U", "S"])
def test_masked_texts_shorter_than_numpys_fill_value(tmp_path: Path, texts: Any) -> None:
    """numpy fills masked texts with "N/A", cut to their length; "expected at most 2 code points, got 3" named no cause."""
    given = np.ma.masked_array(texts, [False, True, False])
    report = convert(given, tmp_path / "new")
    stored = zarr.open_array(tmp_path / "new", mode="r")
    assert np.asarray(stored[...]).tolist() == given.filled().tolist()
    assert report.arrays[0].notes[-1] == f"masked elements are written as the fill value {given.filled()[1]}"


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
        for how in ({}, {"shards": 1 << 20}, {"level": "compare"}):
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
