# test_convert_xarray.py - convert: xarray reads the same from the copy
# SPDX-License-Identifier: MIT
"""Missing values, names of axes and attributes of data sets of xarray, after a conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from spec_json import array_2022
from tool_sources import write_2022

from shardcodec.tools import convert
from shardcodec.transformer import convert_2022

xarray = pytest.importorskip("xarray", reason="xarray is not installed")

NAN = float("nan")
PACKED = {"scale_factor": 0.0001, "add_offset": -0.1, "dtype": "<u2", "valid_min": 1}
DAYS = {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"}

# dtype and fill value of Zarr v2, attributes, some elements
MASKS: dict[str, tuple[str, Any, dict[str, Any], list[Any]]] = {
    "packed, 0 is missing": ("<u2", 0, PACKED, [1, 0, 65535]),
    "packed, 65535 is missing": ("<u2", 65535, PACKED, [1, 0, 65535]),
    "packed, big-endian": (">i2", -32768, {"scale_factor": 0.1}, [1, 0, -32768]),
    "mask of bits": ("|u1", 0, {"flag_masks": [1, 2, 4], "flag_meanings": "a b c"}, [1, 0, 4]),
    "unsigned in bytes": ("|i1", -1, {"_Unsigned": "true"}, [1, -1, -2]),
    "float NaN": ("<f4", "NaN", {"units": "K"}, [1, NAN, 3]),
    "float": ("<f4", -999.25, {}, [1, -999.25, NAN]),
    "double": ("<f8", 1e20, {}, [1, 1e20, 3]),
    "double 0.1": ("<f8", 0.1, {}, [1, 0.1, 3]),
    "half": ("<f2", -1.5, {}, [1, -1.5, 3]),
    "infinite": ("<f8", "-Infinity", {}, [1, float("-inf"), float("inf")]),
    "time": ("<i8", -(2**63), DAYS, [1, -(2**63), 3]),
    "time, 0 is missing": ("<i8", 0, DAYS, [1, 0, 3]),
    "time as float": ("<f8", "NaN", DAYS, [1.5, NAN, 3]),
    "duration": ("<i8", -(2**63), {"units": "seconds", "dtype": "timedelta64[s]"}, [1, -(2**63), 3]),
    "time of numpy": ("<M8[ns]", 0, {}, [1, 0, -(2**63)]),
    "boolean": ("|b1", False, {}, [True, False, True]),
    "complex": ("<c8", [1.0, 2.0], {}, [1, 1 + 2j, NAN]),
    "text": ("<U3", "", {}, ["a", "", "abc"]),
    "text with a mark": ("<U3", "--", {}, ["a", "", "--"]),
    "no mask": ("<i4", None, {}, [1, 0, 3]),
    "no mask of floats": ("<f8", None, {}, [1, 0, 3]),
    "mask as attribute": ("<f4", None, {"_FillValue": -9999.0}, [1, 0, -9999]),
    "mask as attribute of HDF5": ("<i2", None, {"_FillValue": [-99]}, [1, 0, -99]),
    "two equal masks": ("<f4", -9999.0, {"_FillValue": -9999.0}, [1, 0, -9999]),
    "older name": ("<f4", "NaN", {"missing_value": -9999.0}, [1, NAN, -9999]),
    "older name of text": ("<U3", "--", {"missing_value": "--"}, ["a", "", "--"]),
}


def stored_v2(place: Path, name: str, document: dict[str, Any], attributes: Any, some: list[Any]) -> None:
    """Write two chunks of an array of Zarr v2 whose third chunk is absent."""
    defaults = {
        "zarr_format": 2, "shape": [6], "chunks": [2], "order": "C", "compressor": None, "filters": None,
    }  # fmt: skip
    folder = place / name
    folder.mkdir(parents=True)
    (place / ".zgroup").write_text('{"zarr_format": 2}')
    (folder / ".zarray").write_text(json.dumps(defaults | document))
    (folder / ".zattrs").write_text(json.dumps({**attributes, "_ARRAY_DIMENSIONS": ["x"]}))
    values = np.array([*some, some[0]]).astype(document["dtype"])
    for number in range(2):
        (folder / str(number)).write_bytes(values[2 * number : 2 * number + 2].tobytes())


def seen(place: Path, name: str = "a", **how: Any) -> Any:
    """Return an array as xarray reads it."""
    with quiet(), xarray.open_zarr(place, consolidated=False, **how) as found:
        return found[name].load()


def assert_same(old: Any, new: Any) -> None:
    kept = {
        name: value for name, value in old.attrs.items() if name != "_FillValue"
    }  # of times, which have no mask
    assert (old.dtype, old.dims, kept) == (new.dtype, new.dims, new.attrs)
    xarray.testing.assert_equal(old, new)


@pytest.mark.parametrize("kind", MASKS)
def test_missing_values_of_v2_stay_missing(kind: str, tmp_path: Path) -> None:
    """xarray takes the mask of Zarr v2 from the fill value, and that of v3 from `_FillValue`: a mean of 280.0 became 3.3e19."""
    dtype, fill, attributes, some = MASKS[kind]
    stored_v2(tmp_path / "old", "a", {"dtype": dtype, "fill_value": fill}, attributes, some)
    convert(tmp_path / "old", tmp_path / "new", shards=(4,))
    old, new = seen(tmp_path / "old"), seen(tmp_path / "new")
    assert_same(old, new)
    if fill is not None and dtype[1] not in "MU":
        assert np.array_equal(
            np.asarray(old.encoding["_FillValue"]), new.encoding["_FillValue"], equal_nan=True
        )


def test_attribute_is_the_one_that_xarray_writes(tmp_path: Path) -> None:
    """Our documents have the same `_FillValue` as those of xarray's own conversion, for each type that it can encode."""
    for kind, (dtype, fill, attributes, some) in MASKS.items():
        if fill is not None and dtype[1] in "iufbc" and "_FillValue" not in attributes:
            stored_v2(
                tmp_path / "old", kind.replace(" ", "-"), {"dtype": dtype, "fill_value": fill}, {}, some
            )
    with quiet(), xarray.open_zarr(tmp_path / "old", consolidated=False, decode_cf=False) as old:
        for one in old.variables.values():  # zarr's scalars of complex numbers are a complex64
            one.encoding.clear()
        old.to_zarr(tmp_path / "own", zarr_format=3, consolidated=False)
    convert(tmp_path / "old", tmp_path / "new")
    found = sorted(path.parent.name for path in (tmp_path / "old").glob("*/.zarray"))
    assert len(found) > 12
    for name in found:
        own, new = (
            json.loads((tmp_path / folder / name / "zarr.json").read_text())["attributes"]
            for folder in ("own", "new")
        )
        assert new["_FillValue"] == own["_FillValue"], name


def test_masks_that_cannot_be_kept_are_said(tmp_path: Path) -> None:
    """xarray cannot open a data set of Zarr v3 with a mask of bytes, and an attribute hides another fill value no more."""
    stored_v2(
        tmp_path / "old",
        "bytes",
        {"dtype": "|S2", "fill_value": "eA=="},
        {"_FillValue": "x"},
        [b"x", b"", b"a"],
    )
    stored_v2(tmp_path / "old", "two", {"dtype": "<f4", "fill_value": 0.0}, {"_FillValue": -1.0}, [1, 0, -1])
    stored_v2(tmp_path / "old", "wrong", {"dtype": "<f4", "fill_value": None}, {"_FillValue": {}}, [1, 0, -1])
    report = convert(tmp_path / "old", tmp_path / "new", dry_run=True)
    notes = {one.name: one.notes for one in report.arrays}
    convert(tmp_path / "old", tmp_path / "new")
    assert seen(tmp_path / "new", "bytes").values.tolist()[:3] == [b"x", b"", b"a"]
    assert "no mask of |S2" in notes["bytes"][0]
    assert np.isnan(seen(tmp_path / "new", "two").values).tolist() == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert "masks -1.0" in notes["two"][0]
    assert "the fill value, 0.0" in notes["two"][0]
    assert "left out: the attribute _FillValue" in notes["wrong"][0]


@pytest.mark.parametrize("way", ["convert", "convert_2022"])
def test_missing_values_of_2022_stay_missing(way: str, tmp_path: Path) -> None:
    """zarr-python 2.18 wrote the 2022 format for xarray with the mask as fill value, as in Zarr v2."""
    document = array_2022() | {
        "fill_value": -5,
        "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"], "scale_factor": 0.5},
    }
    write_2022(tmp_path / "old", {"a": document})
    (convert if way == "convert" else convert_2022)(tmp_path / "old", tmp_path / "new")
    new = seen(tmp_path / "new")
    assert new.dims == ("y", "x")
    assert new.encoding["_FillValue"] == -5
    assert np.isnan(new.values).all()


def test_arrays_that_are_not_of_xarray_keep_their_attributes(tmp_path: Path) -> None:
    """Without names of axes xarray cannot open an array of Zarr v2, so an image gets no mask."""
    with quiet():
        zarr.create_array(
            tmp_path / "old", shape=(4,), chunks=(2,), dtype="i4", zarr_format=2, attributes={"unit": "m"}
        )[:2] = 1
    convert(tmp_path / "old", tmp_path / "new")
    assert json.loads((tmp_path / "new/zarr.json").read_text())["attributes"] == {"unit": "m"}


def strict(place: Path) -> dict[str, Any]:
    """Return the documents of a hierarchy; raise ValueError for what is no JSON, though Python reads it."""

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return {
        path.parent.relative_to(place).as_posix(): json.loads(path.read_bytes(), parse_constant=no_constant)
        for path in place.rglob("zarr.json")
    }


def write_netcdf(path: Path) -> None:
    """Write a file with dimensions of all kinds: with a coordinate, with one of two axes, without a variable, of a group above."""
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({"title": "wind", "level": np.array([1.5]), "two": np.array([1, 2], "i2")})
        for name, n in (("time", None), ("y", 3), ("x", 4), ("bounds", 2), ("letters", 5)):
            file.createDimension(name, n)
        days = file.createVariable("time", "f8", ("time",))
        days.units = "days since 2000-01-01"
        days[:] = [0, 1, 2]
        for name, axes in (
            ("lat", ("y", "x")),
            ("y", ("y", "x")),
        ):  # the second is the coordinate of its dimension
            file.createVariable(name, "f4", axes)[:] = np.arange(12).reshape(3, 4)
        file.createVariable("bounds", "f4", ("x",))[:] = 0  # has the name of a dimension that is not its own
        packed = file.createVariable("packed", "i2", ("time", "y", "x"), fill_value=-99, zlib=True)
        packed.setncatts({"scale_factor": 0.5, "coordinates": "lat", "missing_value": np.int16(-99)})
        packed.set_auto_maskandscale(False)
        packed[:] = np.arange(36).reshape(3, 3, 4) - 1
        packed[0, 0] = -99
        file.createVariable("time_bounds", "f8", ("time", "bounds"))[:] = 1
        text = file.createVariable("text", "S1", ("time", "letters"))
        text._Encoding = "utf-8"
        text[:] = np.array([list("ab   "), list("cde  "), list("f    ")], "S1")
        file.createVariable("crs", "i4", ())[...] = 7
        float_nan = file.createVariable("heat", "f4", ("x",), fill_value=np.float32("nan"))
        float_nan[:] = [1, np.nan, 3, 4]
        file.createGroup("sub").createVariable("w", "f4", ("time", "x"), fill_value=1e20)[:] = 1e20


@pytest.mark.parametrize("group", [None, "sub"])
def test_netcdf_file_reads_as_its_copy(group: str | None, tmp_path: Path) -> None:
    """The copy of a netCDF4 file could not be opened: axes had no names, and `_FillValue` was a list, or no JSON."""
    pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    write_netcdf(tmp_path / "a.nc")
    convert(tmp_path / "a.nc", tmp_path / "new")
    assert sorted(strict(tmp_path / "new")) == sorted(
        [".", "bounds", "crs", "heat", "lat", "packed", "sub", "sub/w", "text", "time", "time_bounds", "y"]
    )
    with (
        xarray.open_dataset(tmp_path / "a.nc", group=group) as old,
        xarray.open_zarr(tmp_path / "new", group=group, consolidated=False) as new,
    ):
        xarray.testing.assert_equal(old, new.load())
        assert sorted(old.coords) == sorted(new.coords)
        for one, other in ((old, new), *((old[name], new[name]) for name in old.variables)):
            attributes = {name: np.asarray(value).tolist() for name, value in one.attrs.items()}
            assert attributes == other.attrs


def test_scales_of_hdf5_name_the_axes(tmp_path: Path) -> None:
    """A dimension scale of one axis is the coordinate of this axis; an array of one element is a scalar attribute."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        scale = file.create_dataset("x", data=np.arange(3.0))
        scale.make_scale("x")
        made = file.create_dataset("v", data=np.array([-999, 10, 20], "i2"))
        made.dims[0].attach_scale(scale)
        made.attrs.update(
            {"_FillValue": np.array([-999], "i2"), "scale_factor": np.array([0.5]), "units": [b"K"]}
        )
        file["scalar"] = np.float32(1)
        file["scalar"].attrs["_FillValue"] = np.array([np.nan], "f4")
        file["plain"] = np.zeros(2)
        file["plain"].attrs["_FillValue"] = np.nan
    report = convert(tmp_path / "a.h5", tmp_path / "new", only=["x", "v", "scalar"])
    assert not any(one.notes for one in report.arrays)
    new = seen(tmp_path / "new", "v")
    assert new.dims == ("x",)
    assert new.attrs == {"units": "K"}
    assert np.array_equal(new.values, [np.nan, 5, 10], equal_nan=True)
    assert seen(tmp_path / "new", "x").values.tolist() == [0, 1, 2]
    assert seen(tmp_path / "new", "scalar") == 1
    convert(tmp_path / "a.h5/plain", tmp_path / "plain")  # xarray cannot open an array without names
    assert strict(tmp_path / "plain")["."]["attributes"] == {"_FillValue": "NaN"}


def test_attributes_that_json_does_not_have_are_written_and_said(tmp_path: Path) -> None:
    """They were left out in silence, or made documents that zarrs and TensorStore cannot parse."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    given = {
        "complex": (1 + 2j, [1.0, 2.0]),
        "complexes": (np.array([1j, 2]), [[0.0, 1.0], [2.0, 0.0]]),
        "empty text": (h5py.Empty("S10"), ""),
        "empty": (h5py.Empty("f4"), []),
        "latin": (np.bytes_(b"\xb5m"), "\xb5m"),
        "nan": (np.nan, "NaN"),
        "limits": (np.array([-np.inf, 1, np.inf], "f4"), ["-Infinity", 1.0, "Infinity"]),
        "raw": (np.void(b"ab"), "YWI="),
    }
    plain = {
        "struct": (np.array((1, 2.5), [("a", "i4"), ("b", "f8")]), {"a": 1, "b": 2.5}),
        "bool": (np.bool_(True), True),
        "texts": (["a", "b"], ["a", "b"]),
        "ints": (np.arange(3), [0, 1, 2]),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sub/x"] = np.arange(4)
        for node in (file["sub"], file["sub/x"]):
            for name, (value, _) in (given | plain).items():
                node.attrs[name] = value
            node.attrs["reference"] = file["sub/x"].ref
            node.attrs.create("references", [file["sub"].ref, h5py.Reference()], dtype=h5py.ref_dtype)
            node.attrs["region"] = file["sub/x"].regionref[1:2]
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    wanted = {name: found for name, (_, found) in (given | plain).items()}
    wanted |= {"reference": "/sub/x", "references": ["/sub", ""], "region": "/sub/x"}
    documents = strict(tmp_path / "new")
    assert documents["sub"]["attributes"] == wanted
    assert documents["sub/x"]["attributes"] == wanted
    for notes, start in ((report.arrays[0].notes, ""), (report.notes, "group sub: ")):
        for name in (*given, "reference", "references", "region"):
            assert any(note.startswith(f"{start}attribute {name!r}: ") for note in notes)
        assert len(notes) == len(given) + 3


def test_nan_in_attributes_of_v2_is_text_of_json(tmp_path: Path) -> None:
    """Python's JSON has NaN. In Zarr v2 it was in a document of its own, in v3 no other library could open the array."""
    stored_v2(tmp_path / "old", "a", {"dtype": "<f4", "fill_value": "NaN"}, {"limit": NAN}, [1, 2, 3])
    (tmp_path / "old/.zattrs").write_text('{"limit": -Infinity}')
    report = convert(tmp_path / "old", tmp_path / "new")
    documents = strict(tmp_path / "new")
    assert documents["."]["attributes"] == {"limit": "-Infinity"}
    assert documents["a"]["attributes"]["limit"] == "NaN"
    assert "attribute 'limit'" in report.notes[0]
    assert "attribute 'limit'" in report.arrays[0].notes[0]


def cmip_like() -> tuple[Any, dict[str, Any]]:
    """Return a data set as CMIP has them, with bounds, a grid mapping and a scalar coordinate, and its encoding."""
    days = xarray.date_range("2000-01-01", periods=400, freq="D", use_cftime=False)
    heat = np.random.default_rng(0).random((400, 18, 36), "f4")
    bounds = np.stack([np.arange(18) * 10.0 - 90, np.arange(18) * 10.0 - 80], axis=1)
    data = xarray.Dataset(
        {
            "tas": (("time", "lat", "lon"), heat, {"units": "K", "cell_methods": "time: mean"}),
            "pr": (("time", "lat", "lon"), heat / 86400, {"units": "kg m-2 s-1"}),
            "orog": (("lat", "lon"), heat[0]),
            "time_bnds": (("time", "bnds"), np.stack([days, days], axis=1)),
            "lat_bnds": (("lat", "bnds"), bounds),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
        },
        coords={
            "time": ("time", days, {"bounds": "time_bnds", "standard_name": "time"}),
            "lat": ("lat", bounds.mean(axis=1), {"bounds": "lat_bnds"}),
            "lon": ("lon", np.arange(36) * 10.0),
            "height": ((), 2.0, {"units": "m"}),
            "station": ("station", ["a", "b"]),
        },
        attrs={"Conventions": "CF-1.10", "variant": "r1i1p1f1"},
    )
    for name in ("tas", "pr"):
        data[name].attrs["grid_mapping"] = "crs"
    return data, {name: {"chunks": (50, 18, 36)} for name in ("tas", "pr")}


def era5_like() -> tuple[Any, dict[str, Any]]:
    """Return a data set as ERA5 has them, packed in 16 bits, with a mask, and its encoding."""
    hours = xarray.date_range("2020-01-01", periods=480, freq="h", use_cftime=False)
    values = np.random.default_rng(1).integers(-300, 300, (480, 31, 60)) / 10
    values[3, :5] = np.nan
    data = xarray.Dataset(
        {
            name: (("valid_time", "latitude", "longitude"), values + n, {"units": "m s**-1"})
            for n, name in enumerate("uv")
        },
        coords={
            "valid_time": ("valid_time", hours),
            "latitude": ("latitude", np.linspace(75, -75, 31)),
            "longitude": ("longitude", np.arange(60) * 6.0),
            "number": ((), 0),
            "expver": ("valid_time", np.where(np.arange(480) < 400, "0001", "0005")),
        },
    )
    packed = {
        "dtype": "i2", "scale_factor": 0.1, "add_offset": 0.0, "_FillValue": -32768, "chunks": (24, 31, 60),
    }  # fmt: skip
    return data, {"u": packed, "v": packed, "valid_time": {"units": "hours since 1900-01-01"}}


@pytest.mark.parametrize("made", [cmip_like, era5_like])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_data_set_is_identical(made: Any, zarr_format: int, tmp_path: Path) -> None:
    """All variables, coordinates and attributes, also those that `decode_coords="all"` looks for."""
    data, encoding = made()
    with quiet():
        data.to_zarr(tmp_path / "old", encoding=encoding, zarr_format=zarr_format, consolidated=True)
    axis = "time" if "time" in data.dims else "valid_time"
    report = convert(tmp_path / "old", tmp_path / "new", shards={axis: len(data[axis])})
    name = next(iter(encoding))
    assert {one.name: one.n_shards for one in report.arrays if one.shard_shape}[name] == 1
    chosen = convert(tmp_path / "old", tmp_path / "part", only=name)
    arrays = {one.name for one in chosen.arrays}
    for how in ({}, {"decode_coords": "all"}, {"decode_cf": False}):
        with quiet():
            old, new, part = (xarray.open_zarr(tmp_path / place, **how) for place in ("old", "new", "part"))
            xarray.testing.assert_identical(new.load(), old.load())
            left = set(old.variables) - arrays
            xarray.testing.assert_identical(part.load(), old.drop_vars(left))
    assert left == ({"pr", "orog", "station"} if name == "tas" else {"v"})


def test_tree_of_groups_is_identical(tmp_path: Path) -> None:
    """As a product of EOPF: bands of two resolutions in groups of their own, with coordinates in a group above, in Zarr v2."""

    def bands(n: int, *names: str) -> Any:
        values = np.random.default_rng(n).integers(0, 9000, (n, n)).astype("u2")
        attributes = {
            "_eopf_attrs": {"coordinates": ["x", "y"], "dimensions": ["y", "x"]},
            "proj:epsg": 32632,
        }
        data = dict.fromkeys(names, (("y", "x"), values, attributes))
        return xarray.Dataset(data, {"x": np.arange(n) * 10, "y": np.arange(n) * -10.0})

    angles = xarray.Dataset({"sun": (("angle", "tile"), np.ones((2, 23)), {"units": "deg"})})
    tree = xarray.DataTree.from_dict(
        {
            "/": xarray.Dataset(
                attrs={"stac_discovery": {"id": "S2B", "bbox": [1.5, 2]}, "other_metadata": {}}
            ),
            "/conditions/geometry": angles.assign_coords(angle=["zenith", "azimuth"]),
            "/measurements/r10m": bands(1000, "b02", "b03"),
            "/measurements/r20m": bands(500, "b05"),
            "/quality": xarray.Dataset(coords={"tile": np.arange(23)}),
            "/quality/mask": xarray.Dataset({"classes": ("tile", np.arange(23))}),
        }
    )
    with quiet():
        tree.to_zarr(tmp_path / "old", zarr_format=2, consolidated=True)
    convert(tmp_path / "old", tmp_path / "new", chunks={"y": 125, "x": 125}, shards={"y": 500, "x": 500})
    convert(tmp_path / "old", tmp_path / "part", only=["measurements/r10m/b02", "quality/mask"])
    with quiet():
        old, new, part = (
            xarray.open_datatree(tmp_path / name, engine="zarr") for name in ("old", "new", "part")
        )
        assert new.load().identical(old.load())
        part.load()
    assert set(part.groups) == {"/", "/measurements", "/measurements/r10m", "/quality", "/quality/mask"}
    for path in part.groups:
        left = ["b03"] if path == "/measurements/r10m" else []
        xarray.testing.assert_identical(part[path].to_dataset(), old[path].to_dataset().drop_vars(left))
