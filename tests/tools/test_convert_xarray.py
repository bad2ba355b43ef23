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
from spec_json import array_2022, hierarchy_2022

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
        "zarr_format": 2,
        "shape": [6],
        "chunks": [2],
        "order": "C",
        "compressor": None,
        "filters": None,
    }
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
    (tmp_path / "old/meta/root").mkdir(parents=True)
    (tmp_path / "old/zarr.json").write_text(json.dumps(hierarchy_2022()))
    (tmp_path / "old/meta/root.group.json").write_text('{"attributes": {}}')
    (tmp_path / "old/meta/root/a.array.json").write_text(json.dumps(document))
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
