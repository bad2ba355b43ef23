# data_sets.py - small data sets as people have them: climate, microscopy, single cells
# SPDX-License-Identifier: MIT
"""Hierarchies with the conventions of xarray and CF, OME-Zarr, AnnData and SpatialData, written with zarr alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from helpers import bytes_of_files, quiet
from templates import written_once

DAYS, LATS, LONS = 365, 36, 40
RANDOM = np.random.default_rng(0)


def add(
    group: Any, name: str, values: Any, names: Sequence[str] = (), chunks: Any = None, **attributes: Any
) -> Any:
    """Add an array whose axes have names, as its Zarr format has them."""
    values = np.asarray(values)
    how: dict[str, Any] = {"chunks": chunks or values.shape, "attributes": attributes}
    if names and group.metadata.zarr_format == 3:
        how["dimension_names"] = list(names)
    elif names:
        how["attributes"] = {**attributes, "_ARRAY_DIMENSIONS": list(names)}
    with quiet():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, **how)
        array[...] = values
    return array


@written_once
def climate(place: Path, zarr_format: int = 3) -> None:
    """Write a year of two variables with coordinates, bounds, cell areas and a grid mapping."""
    with quiet():
        group = zarr.create_group(place, zarr_format=zarr_format, attributes={"coordinates": "run site"})
    heat = RANDOM.random((DAYS, LATS, LONS), "f4").round(2)
    axes = ("time", "lat", "lon")
    linked = {"grid_mapping": "crs", "cell_measures": "area: areacella", "coordinates": "height"}
    add(group, "tas", heat, axes, (73, LATS, LONS), **linked, units="K")
    add(group, "pr", heat * 2, axes, (73, LATS, LONS), coordinates="height")
    add(group, "orog", heat[0], axes[1:], (18, 20), cell_measures="area: areacella")
    add(group, "time", np.arange(DAYS), ("time",), bounds="time_bnds", units="days since 2000-01-01")
    add(group, "time_bnds", np.arange(2 * DAYS).reshape(DAYS, 2), ("time", "bnds"))
    for name, n in (("lat", LATS), ("lon", LONS)):
        add(group, name, np.linspace(-80, 80, n), (name,), bounds=f"{name}_bnds")
        add(group, f"{name}_bnds", np.zeros((n, 2)), (name, "bnds"))
    add(group, "areacella", heat[1], axes[1:])
    for name in ("crs", "height", "run"):
        add(group, name, np.array(2))
    add(group, "site", np.arange(3), ("site",))
    with quiet():
        zarr.consolidate_metadata(group.store, zarr_format=zarr_format)


# The arrays that `tas` needs: all but the other variables, and a coordinate of an axis that it does not have.
NEEDED_BY_TAS = [
    "areacella", "crs", "height", "lat", "lat_bnds", "lon", "lon_bnds", "run", "tas", "time", "time_bnds",
]  # fmt: skip


def multiscales(paths: Sequence[str], axes: str) -> list[dict[str, Any]]:
    levels = [
        {"path": path, "coordinateTransformations": [{"type": "scale", "scale": [2.0**n] * len(axes)}]}
        for n, path in enumerate(paths)
    ]
    return [{"name": "image", "axes": [{"name": name, "type": "space"} for name in axes], "datasets": levels}]


def of_ome(version: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes of OME-Zarr, which 0.5 has below ``ome``."""
    return attributes if version == "0.4" else {"ome": {"version": version, **attributes}}


def add_image(group: Any, axes: str, version: str, n_levels: int = 3, **more: Any) -> None:
    """Add levels and their metadata to a group."""
    group.attrs.update(
        of_ome(version, {"multiscales": multiscales([f"s{n}" for n in range(n_levels)], axes), **more})
    )
    for n in range(n_levels):
        shape = {"c": 2, "z": 8 >> n, "y": 256 >> n, "x": 256 >> n}
        values = RANDOM.integers(0, 500, [shape[name] for name in axes]).astype("u2")
        add(
            group,
            f"s{n}",
            values,
            (),
            tuple(min(shape[name], {"c": 1, "z": 4}.get(name, 64)) for name in axes),
        )


@written_once
def image(place: Path, version: str = "0.5") -> None:
    """Write an image of OME-Zarr with labels of another rank, and a table of AnnData."""
    zarr_format = 2 if version == "0.4" else 3
    with quiet():
        group = zarr.create_group(place, zarr_format=zarr_format)
        add_image(group, "czyx", version, omero={"channels": [{"label": "a"}, {"label": "b"}]})
        labels = group.create_group("labels", attributes=of_ome(version, {"labels": ["cells", "nuclei"]}))
        for name in ("cells", "nuclei"):
            add_image(labels.create_group(name), "zyx", version, 2)
        tables = group.create_group("tables", attributes={"tables": ["counts", "other"]})
        for name in ("counts", "other"):
            cells(tables.create_group(name))
        zarr.consolidate_metadata(group.store, zarr_format=zarr_format)


@written_once
def plate(place: Path, version: str = "0.5") -> None:
    """Write a plate of two wells with two images each."""
    with quiet():
        group = zarr.create_group(place, zarr_format=2 if version == "0.4" else 3)
        wells = [{"path": f"A/{n}", "rowIndex": 0, "columnIndex": n - 1} for n in (1, 2)]
        columns = [{"name": "1"}, {"name": "2"}]
        group.attrs.update(
            of_ome(version, {"plate": {"rows": [{"name": "A"}], "columns": columns, "wells": wells}})
        )
        for n in (1, 2):
            well = group.create_group(f"A/{n}")
            well.attrs.update(of_ome(version, {"well": {"images": [{"path": "0"}, {"path": "1"}]}}))
            for field in "01":
                add_image(well.create_group(field), "yx", version, 1)


def cells(group: Any, n: int = 30, genes: int = 6) -> None:
    """Write counts of AnnData with data frames, one of them with categories."""
    encoded: dict[str, Any] = {"encoding-version": "0.2.0"}
    group.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    sparse = group.create_group("X")
    sparse.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n, genes]})
    add(sparse, "data", np.ones(2 * n, "f4"))
    add(sparse, "indices", np.tile([0, 3], n).astype("i4"))
    add(sparse, "indptr", np.arange(0, 2 * n + 1, 2).astype("i4"))
    for name, size in (("obs", n), ("var", genes)):
        columns = ["kind", "size"] if name == "obs" else ["size"]
        frame = group.create_group(name)
        frame.attrs.update(
            {"encoding-type": "dataframe", **encoded, "_index": "_index", "column-order": columns}
        )
        add(frame, "_index", np.arange(size), (), None, **{"encoding-type": "array", **encoded})
        add(frame, "size", np.arange(size) * 2.0, (), None, **{"encoding-type": "array", **encoded})
    kind = group.create_group("obs/kind")
    kind.attrs.update({"encoding-type": "categorical", **encoded, "ordered": False})
    add(kind, "codes", (np.arange(n) % 2).astype("i1"))
    add(kind, "categories", np.arange(2))


# ---- looking at a copy


def array_names(place: Any) -> list[str]:
    """Return the paths of all arrays."""
    return sorted(name for name, node in members(place).items() if isinstance(node, zarr.Array))


def members(place: Any) -> dict[str, Any]:
    with quiet():
        return dict(zarr.open_group(place, mode="r", use_consolidated=False).members(max_depth=None))


def attributes_of(place: Any, path: str = "") -> dict[str, Any]:
    """Return the attributes of a group; those of OME-Zarr 0.5 are in 0.4's place."""
    with quiet():
        attributes = dict(zarr.open_group(place, path=path, mode="r", use_consolidated=False).attrs)
    return {**attributes, **attributes.pop("ome", {})}


def check_consolidated(place: Path) -> None:
    """Check that consolidated metadata name the nodes that are there, with their documents."""
    folder = Path(place)
    if (stored := folder / ".zmetadata").exists():
        listed = json.loads(stored.read_text())["metadata"]
        own = {".zarray", ".zgroup", ".zattrs"}
        there = {
            path.relative_to(folder).as_posix(): json.loads(path.read_text())
            for path in folder.rglob(".z*")
            if path.name in own
        }
        assert listed == there
        return
    document = json.loads((folder / "zarr.json").read_text())
    listed = document["consolidated_metadata"]["metadata"]
    there = {
        path.parent.relative_to(folder).as_posix(): json.loads(path.read_text())
        for path in folder.rglob("zarr.json")
        if path.parent != folder
    }
    assert sorted(listed) == sorted(there)
    for name, node in listed.items():
        assert node["attributes"] == there[name]["attributes"], name


def same_files(place: Path, other: Path) -> None:
    assert bytes_of_files(place) == bytes_of_files(other)
