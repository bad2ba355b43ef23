# test_eopf_products.py - convert: trees like the products of EOPF, as a whole and in part
# SPDX-License-Identifier: MIT
"""Twelve kinds of products of Sentinel-1, -2 and -3 with the groups, axes and attributes that EOPF gives them, in small.

xarray must read an identical tree from the copy. Of a part it must read what is left of the old tree, with its coordinates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import quiet

from shardcodec.tools import convert, verify

xarray = pytest.importorskip("xarray", reason="xarray is not installed")

# For each group lines "names: kind axis=size ...". `axis` is the coordinate of its axis, `place` a coordinate with several axes.
Groups = dict[str, list[str]]

BURST = {
    "conditions/orbit": ["azimuth_time: time azimuth_time=17", "axis: text axis=3", "position velocity: f8 azimuth_time=17 axis=3"],
    "conditions/gcp": [
        "azimuth_time: time azimuth_time=10",
        "ground_range: axis ground_range=21",
        "line: place azimuth_time=10",
        "pixel: place ground_range=21",
        "latitude longitude height: f8 azimuth_time=10 ground_range=21",
    ],
    "quality/calibration": ["azimuth_time: time azimuth_time=27", "sigma_nought: f4 azimuth_time=27 ground_range=40"],
}  # fmt: skip


def radar(kind: str, axes: str, bursts: list[str]) -> Groups:
    """Return a product of Sentinel-1: one whole tree for each burst or polarisation, below the root."""
    image = [
        "azimuth_time: time azimuth_time=96",
        "line: place azimuth_time=96",
        f"measurement: {kind} {axes}",
    ]
    found = {f"{name}/measurements": image for name in bursts}
    return found | {f"{name}/{group}": lines for name in bursts for group, lines in BURST.items()}


def bands(**names: str) -> Groups:
    """Return the reflectances and masks of Sentinel-2, in a group for each resolution."""
    groups: Groups = {}
    for resolution, n in (("r10m", 180), ("r20m", 90), ("r60m", 30)):
        grid = [f"x: axis x={n}", f"y: axis y={n}"]
        groups[f"measurements/reflectance/{resolution}"] = [*grid, f"{names[resolution]}: packed y={n} x={n}"]
        groups[f"conditions/mask/detector_footprint/{resolution}"] = [
            *grid,
            f"{names[resolution]}: flags y={n} x={n}",
        ]
    groups["conditions/geometry"] = [
        "angle: text angle=2",
        "band: text band=13",
        "detector: axis detector=7",
        "sun_angles: f8 angle=2 y=23 x=23",
        "viewing_incidence_angles: f8 band=13 detector=7 angle=2 y=23 x=23",
    ]
    groups["conditions/meteorology/cams"] = [
        "latitude: axis latitude=9", "longitude: axis longitude=9", "number: place", "valid_time: place",
        "aod469 aod1240: f4 latitude=9 longitude=9",
    ]  # fmt: skip
    return groups  # fmt: skip


def swath(measured: str, rows: int, columns: int, *, tie: int = 16) -> Groups:
    """Return a product of a swath: an image, tie points, orphans, and coordinates with two axes in each group."""
    image = f"rows={rows} columns={columns}"
    places = [f"latitude longitude: place {image}", "time_stamp: time rows=" + str(rows)]
    return {
        "measurements": [*places, f"{measured}: packed {image}"],
        "measurements/orphans": [f"latitude longitude: place rows={rows} removed=5", f"{measured}: packed rows={rows} removed=5"],
        "conditions/geometry": [f"latitude longitude: place tie_rows={tie} tie_columns=7", f"sza saa: f4 tie_rows={tie} tie_columns=7"],
        "conditions/meteorology": ["pressure_level: axis pressure_level=25", f"temperature: f4 tie_rows={tie} tie_columns=7 pressure_level=25"],
        "quality": [*places, f"quality_flags: flags {image}"],
    }  # fmt: skip


ALTIMETER: Groups = {
    f"{kind}/{data}": ["time: time time=640", "latitude longitude: place time=640", f"{names}: packed time=640"]
    for kind, names in (("measurements", "range swh sig0"), ("conditions", "iono_cor wind_speed"), ("quality", "range_qual"))
    for data in ("data_01", "data_20/c", "data_20/ku")
} | {"measurements/waveforms": ["time: time time=640", "sample: axis sample=128", "power: u2 time=640 sample=128"]}  # fmt: skip

OCEAN: Groups = {
    "osw/measurements": ["azimuth: axis azimuth=12", "hs: f4 azimuth=12 range=2 partition=5", "spectra: f4 azimuth=12 range=2 direction=72 wavenumber=60"],
    "owi/measurements": ["latitude longitude: place azimuth=90 range=120", "wind_speed wind_direction: f4 azimuth=90 range=120", "mask: flags azimuth=90 range=120"],
    "owi/quality": ["polarisation: text polarisation=2", "nesz: f4 polarisation=2 azimuth=90 range=120"],
    "rvl/measurements": ["latitude longitude: place azimuth=30 range=40 swath=3", "radial_velocity: f4 azimuth=30 range=40 swath=3", "valid: bool azimuth=30 range=40 swath=3"],
}  # fmt: skip

S2_BANDS = {"r10m": "b02 b03 b04 b08", "r20m": "b05 b06 b07 b8a b11 b12", "r60m": "b01 b09 b10"}

# A product, and one of its measured arrays.
PRODUCTS: dict[str, tuple[Groups, str]] = {
    "S01SIWGRD": (radar("u2", "azimuth_time=96 ground_range=200", ["S01SIWGRD_VH", "S01SIWGRD_VV"]), "S01SIWGRD_VV/measurements/measurement"),
    "S01SIWSLC": (radar("c8", "azimuth_time=96 slant_range_time=120", ["S01SIWSLC_VV_IW1_1", "S01SIWSLC_VV_IW2_2"]), "S01SIWSLC_VV_IW2_2/measurements/measurement"),
    "S01SIWOCN": (OCEAN, "owi/measurements/wind_speed"),
    "S02MSIL1C": (bands(**S2_BANDS), "measurements/reflectance/r10m/b04"),
    "S02MSIL2A": (bands(**S2_BANDS) | {"quality/atmosphere/r20m": ["x: axis x=90", "y: axis y=90", "aot wvp: packed y=90 x=90"]}, "quality/atmosphere/r20m/aot"),
    "S03OLCEFR": (swath("oa01_radiance oa02_radiance oa21_radiance", 120, 150), "measurements/oa21_radiance"),
    "S03OLCLFR": (swath("gifapar otci rc681", 120, 150), "measurements/otci"),
    "S03SLSRBT": (swath("s1_radiance_an s4_radiance_an", 160, 200) | {f"conditions/instrument_{view}": ["detectors: axis detectors=4", "bb1: f4 detectors=4 integrators=2 rows=160"] for view in ("an", "bo")}, "measurements/s4_radiance_an"),
    "S03SLSLST": (swath("lst", 100, 130) | {"conditions/auxiliary": ["biome: u1 rows=100 columns=130", "validation: i4 nval=4"]}, "measurements/lst"),
    "S03SLSFRP": (swath("frp_mwir", 60, 80) | {"measurements/fires": ["fires: axis fires=11", "time: time fires=11", "confidence: f4 fires=11"]}, "measurements/fires/confidence"),
    "S03SRALAN": (ALTIMETER, "measurements/data_20/ku/swh"),
    "S03SYNSDR": (swath("sdr_oa01 sdr_s1n sdr_s6o", 90, 110) | {"conditions/slstr_o": ["latitude longitude: place slstr_o_rows=9 slstr_o_columns=5", "vza: f4 slstr_o_rows=9 slstr_o_columns=5"]}, "measurements/sdr_s6o"),
}  # fmt: skip

ROOT = {
    "stac_discovery": {"type": "Feature", "id": "S2B", "bbox": [11.1, 46, -1.5, None], "properties": {"eopf:cloud": 1e-7}},
    "other_metadata": {"band_description": {"01": {"bandwidth": 21}}, "history": [{"type": "Level-1"}], "empty": {}},
}  # fmt: skip


def variable(kind: str, sizes: dict[str, int], random: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Return a variable of xarray and its encoding."""
    shape, axes = tuple(sizes.values()), list(sizes)
    attributes: dict[str, Any] = {"_eopf_attrs": {"dimensions": axes, "coordinates": []}, "long_name": kind}
    encoding: dict[str, Any] = {}
    if kind == "time":
        values = np.datetime64("2025-01-13T10:33:09", "ns") + np.arange(shape[0]) * np.timedelta64(40, "ms")
        encoding = {"units": "microseconds since 2025-01-13T10:33:09"}
    elif kind == "text":
        values = np.array([f"b{i:02}" for i in range(shape[0])])
    elif kind == "axis":
        values = np.arange(shape[0]) * 10 + 5
    elif kind == "packed":
        values = random.integers(1, 9000, shape) / 10000 - 0.1
        values[random.random(shape) < 0.1] = np.nan
        attributes["_eopf_attrs"] |= {
            "scale_factor": 0.0001,
            "add_offset": -0.1,
            "fill_value": 0,
            "dtype": "<u2",
        }
        encoding = {"dtype": "u2", "scale_factor": 0.0001, "add_offset": -0.1, "_FillValue": 0}
    elif kind == "flags":
        values = random.integers(0, 7, shape, dtype="u1")
        attributes |= {"flag_masks": [1, 2, 4], "flag_meanings": "cloud snow water"}
    else:
        values = random.integers(0, 2 if kind == "bool" else 200, shape).astype(
            "f8" if kind == "place" else kind
        )
    if len(shape) > 1 and max(shape) > 50:
        encoding["chunks"] = tuple(min(size, 40) for size in shape)  # does not divide most sizes
    return (axes, values, attributes), encoding  # fmt: skip


def product(groups: Groups) -> tuple[Any, dict[str, Any]]:
    """Return a tree of groups and the encoding of its variables."""
    random = np.random.default_rng(0)
    sets: dict[str, Any] = {"/": xarray.Dataset(attrs=ROOT)}
    encoding: dict[str, Any] = {}
    for group, lines in groups.items():
        data, coordinates, how = {}, {}, {}
        for names, rest in (line.split(": ") for line in lines):
            kind, *axes = rest.split()
            sizes = {name: int(size) for name, size in (axis.split("=") for axis in axes)}
            for name in names.split():
                is_place = kind in ("axis", "place", "text") or (kind == "time" and name in sizes)
                (coordinates if is_place else data)[name], how[name] = variable(kind, sizes, random)
        attributes = {"Conventions": "CF-1.10"} if "meteorology" in group else {}
        sets[f"/{group}"] = xarray.Dataset(data, coordinates, attributes)
        encoding[f"/{group}"] = {name: given for name, given in how.items() if given}
    return xarray.DataTree.from_dict(sets), encoding


def read(place: Path) -> Any:
    """Return the tree that xarray reads."""
    with quiet(), xarray.open_datatree(place, engine="zarr", chunks=None) as tree:
        return tree.load()


# By day each product is written in one of the formats, which the tools read with the same code for every kind.
@pytest.mark.parametrize(
    ("name", "zarr_format"),
    [
        pytest.param(name, 2 + (number + turn) % 2, marks=[pytest.mark.nightly] * turn)
        for turn in (0, 1)
        for number, name in enumerate(PRODUCTS)
    ],
)
def test_tree_and_part_are_identical(name: str, zarr_format: int, tmp_path: Path) -> None:
    groups, measured = PRODUCTS[name]
    tree, encoding = product(groups)
    with quiet():
        tree.to_zarr(tmp_path / "old", zarr_format=zarr_format, consolidated=True, encoding=encoding)
    old = read(tmp_path / "old")
    report = convert(tmp_path / "old", tmp_path / "new", shards={"*measurements*": "16KiB"}, level="compare")
    assert any(array.shard_shape for array in report.arrays) and not report.notes
    assert read(tmp_path / "new").identical(old)
    assert not verify(tmp_path / "new", level="decode").n_findings

    chosen = convert(tmp_path / "old", tmp_path / "part", only=measured)
    part, group = read(tmp_path / "part"), f"/{measured.rpartition('/')[0]}"
    known = {array.name.rpartition("/")[2] for array in chosen.arrays}
    expected = old[group].to_dataset(inherit=False)
    places = {place for place in expected.coords if set(expected[place].dims) <= set(old[measured].dims)}
    assert known == {measured.rpartition("/")[2], *places}
    xarray.testing.assert_identical(
        part[group].to_dataset(inherit=False), expected.drop_vars(set(expected.variables) - known)
    )
    assert part.attrs == old.attrs
