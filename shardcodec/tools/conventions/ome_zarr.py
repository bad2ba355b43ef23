# ome_zarr.py - levels of images, lists of labels and series, and the forms of OME-Zarr 0.4 and 0.5
# SPDX-License-Identifier: MIT
"""`OmeZarr`: a group names the levels of its image, its labels and series; `with_ome_05` makes the metadata of 0.5 from those of 0.4.

`plates.py` has plates and wells, `spatialdata.py` what SpatialData adds to an image.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..nodes import Attributes, groups_above, inside, is_below
from .convention import Convention, IsThere

__all__ = ["SPATIALDATA", "OmeZarr", "axes_of_levels", "in_both_places", "present", "with_ome_05"]

# The attribute that a group of SpatialData has.
SPATIALDATA = "spatialdata_attrs"


class OmeZarr(Convention):
    """The convention of OME-Zarr 0.4 and 0.5 for images, their labels, and series of bioformats2raw."""

    def mended(self, group: str, attributes: Attributes, is_there: IsThere) -> Attributes:
        """Return the attributes of a group with the levels, labels, tables and series that are there."""
        return in_both_places(attributes, lambda place: _mended_place(group, place, is_there))


def in_both_places(attributes: Attributes, change: Callable[[Attributes], Attributes]) -> Attributes:
    """Return attributes after a change of the metadata of OME-Zarr: in 0.4 all attributes of a group, in 0.5 those below ``ome``."""
    new = change(attributes)
    return {**new, "ome": change(ome)} if isinstance(ome := new.get("ome"), Mapping) else new


def present(group: str, entries: list[Any], is_there: IsThere) -> list[Any]:
    """Return the entries of a list whose path is there, and those without a path."""
    return [entry for entry in entries if not _has_path(entry) or is_there(inside(group, entry["path"]))]


def _mended_place(group: str, place: Attributes, is_there: IsThere) -> Attributes:
    new = dict(place)

    def with_levels(scales: Any) -> Any:
        if not isinstance(scales, Mapping) or not isinstance(scales.get("datasets"), list):
            return scales
        return {**scales, "datasets": present(group, scales["datasets"], is_there)}

    if isinstance(new.get("multiscales"), list):
        scales = list(map(with_levels, new["multiscales"]))
        new["multiscales"] = [
            entry for entry in scales if not isinstance(entry, Mapping) or entry.get("datasets") != []
        ]
        if not new["multiscales"]:  # `omero` says how its channels are shown
            new = {name: value for name, value in new.items() if name not in ("multiscales", "omero")}
    folder = group.rpartition("/")[2]
    for name, base in (("labels", group), ("tables", group), ("series", posixpath.dirname(group))):
        is_list = isinstance(new.get(name), list)
        if is_list and folder == ("OME" if name == "series" else name):
            new[name] = [each for each in new[name] if is_there(inside(base, str(each)))]
    return new


def axes_of_levels(groups: Mapping[str, Attributes]) -> dict[str, tuple[str | None, ...]]:
    """Return the names of the axes of the arrays that are levels of an image of OME-Zarr, by path."""
    axes = {}
    for group, attributes in groups.items():
        for scales in _multiscales(attributes):
            given = scales.get("axes")
            if not isinstance(given, list):
                continue
            names = [axis.get("name") if isinstance(axis, Mapping) else axis for axis in given]
            for level in _entries(scales, "datasets"):
                axes[inside(group, level["path"])] = tuple(
                    name if isinstance(name, str) else None for name in names
                )
    return axes


def _multiscales(attributes: Attributes) -> Iterator[Attributes]:
    for place in (attributes.get("ome"), attributes):
        given = place.get("multiscales") if isinstance(place, Mapping) else None
        yield from (scales for scales in given or () if isinstance(scales, Mapping))


def _entries(place: Attributes, name: str) -> list[Attributes]:
    """Return the objects of a list that have a path."""
    given = place.get(name)
    return list(filter(_has_path, given)) if isinstance(given, list) else []


def _has_path(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("path"), str)


# Metadata of OME-Zarr, which 0.4 has among the other attributes of a group and 0.5 below ``ome``.
_OF_OME = frozenset(
    {"multiscales", "omero", "image-label", "labels", "plate", "well", "series", "bioformats2raw.layout"}
)


def with_ome_05(groups: Mapping[str, Attributes]) -> dict[str, dict[str, Any]]:
    """Return the attributes of groups whose metadata are those of OME-Zarr 0.4, as 0.5 has them: 0.4 is of Zarr v2 only.

    Groups of SpatialData stay, because it has versions of its own.
    """
    spatial = {path for path, attributes in groups.items() if SPATIALDATA in attributes}
    old = {
        path: attributes
        for path, attributes in groups.items()
        if "ome" not in attributes and spatial.isdisjoint((path, *groups_above(path)))
    }
    found = {path for path, attributes in old.items() if _is_ome_04(attributes)}
    layout = "bioformats2raw.layout"
    found |= {path for path in old if layout in old[path] and any(is_below(one, path) for one in found)}
    found |= {child for path in found for name in ("labels", "OME") if (child := inside(path, name)) in old}
    return {path: _ome_05(old[path]) for path in found}


def _is_ome_04(attributes: Attributes) -> bool:
    """Return True for a group of an image, a plate or a well."""
    images = attributes.get("multiscales")
    parts = [*(images if isinstance(images, list) else ()), attributes.get("plate"), attributes.get("well")]
    versions = [part.get("version") for part in parts if isinstance(part, Mapping)]
    return bool(versions) and set(versions) == {"0.4"}


def _ome_05(attributes: Attributes) -> dict[str, Any]:
    ome = {name: _without_version(value) for name, value in attributes.items() if name in _OF_OME}
    others = {name: value for name, value in attributes.items() if name not in _OF_OME}
    return {"ome": {"version": "0.5", **ome}, **others}


def _without_version(value: Any) -> Any:
    """Return metadata without the version, which 0.5 has once in a group."""
    if isinstance(value, list):
        return list(map(_without_version, value))
    if isinstance(value, Mapping):
        return {name: one for name, one in value.items() if name != "version"}
    return value
