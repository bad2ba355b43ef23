# spatialdata.py - images of SpatialData, whose transformations refer to the first level
# SPDX-License-Identifier: MIT
"""`SpatialData`: an image of OME-Zarr, whose transformations change with its first level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from ..nodes import Attributes
from .convention import Convention, IsThere
from .ome_zarr import SPATIALDATA, in_both_places, present

__all__ = ["SpatialData"]

_TRANSFORMATIONS = "coordinateTransformations"


class SpatialData(Convention):
    """The convention of SpatialData for images; what it names otherwise is that of OME-Zarr."""

    def mended(self, group: str, attributes: Attributes, is_there: IsThere) -> Attributes:
        """Return the attributes of an image with the levels that are there, and transformations of the first of them."""
        if SPATIALDATA not in attributes:
            return attributes

        def with_levels(scales: Any) -> Any:
            if not isinstance(scales, Mapping) or not isinstance(scales.get("datasets"), list):
                return scales
            levels = present(group, scales["datasets"], is_there)
            return _rebased(scales, levels) if levels else scales

        def change(place: Attributes) -> Attributes:
            images = place.get("multiscales")
            return (
                {**place, "multiscales": list(map(with_levels, images))}
                if isinstance(images, list)
                else place
            )

        return in_both_places(attributes, change)


def _rebased(scales: Attributes, levels: list[Any]) -> Attributes:
    """Return the metadata of an image of SpatialData with fewer levels.

    SpatialData transforms elements of the first level, whatever scale this level has. So the scale of a new first level goes
    into the transformations of the image; that of each level is then relative to it.
    """
    old, new = (_scale(level) for level in (scales["datasets"][0], levels[0]))
    if (
        old == new
        or len(old) != len(new)
        or 0 in (*old, *new)
        or not isinstance(scales.get(_TRANSFORMATIONS), list)
    ):
        return {**scales, "datasets": levels}
    ratio = [n / o for n, o in zip(new, old, strict=True)]
    return {
        **scales,
        "datasets": [{**level, _TRANSFORMATIONS: _relative(level, ratio)} for level in levels],
        _TRANSFORMATIONS: [_behind_scale(ratio, each) for each in _transformations(scales)],
    }


def _scale(level: Any) -> list[float]:
    """Return the scale of a level; empty if it has none."""
    scales = (each.get("scale") for each in _transformations(level) if each.get("type") == "scale")
    return list(next(filter(_is_numbers, scales), []))


def _transformations(place: Any) -> list[Attributes]:
    given = place.get(_TRANSFORMATIONS) if isinstance(place, Mapping) else None
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []


def _is_numbers(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(isinstance(n, int | float) for n in value)


def _relative(level: Attributes, ratio: list[float]) -> list[Attributes]:
    """Return the transformations of a level; scale and translation are divided by `ratio`."""
    return [
        {
            name: [n / r for n, r in zip(value, ratio, strict=True)]
            if name in ("scale", "translation") and _is_numbers(value) and len(value) == len(ratio)
            else value
            for name, value in each.items()
        }
        for each in _transformations(level)
    ]


def _behind_scale(ratio: list[float], transformation: Attributes) -> Attributes:
    """Return a transformation that begins with a scale."""
    kind, scale = transformation.get("type"), transformation.get("scale")
    ends = {name: value for name, value in transformation.items() if name in ("input", "output")}
    if kind == "identity":
        return {"type": "scale", "scale": ratio, **ends}
    if kind == "scale" and _is_numbers(scale) and len(scale) == len(ratio):
        return {**transformation, "scale": [n * r for n, r in zip(scale, ratio, strict=True)]}
    first = {"type": "scale", "scale": ratio}
    if "input" in ends:
        first |= {"input": ends["input"], "output": ends["input"]}
    return {"type": "sequence", "transformations": [first, transformation], **ends}
