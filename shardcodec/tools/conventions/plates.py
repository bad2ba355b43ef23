# plates.py - plates of OME-Zarr, which name wells, and wells, which name images
# SPDX-License-Identifier: MIT
"""`Plates`: the group of a plate names its wells, and that of a well its images."""

from __future__ import annotations

from collections.abc import Mapping

from ..nodes import Attributes
from .convention import Convention, IsThere
from .ome_zarr import in_both_places, present

__all__ = ["Plates"]

# The lists of a plate and of a well.
_LISTS = {"plate": "wells", "well": "images"}


class Plates(Convention):
    """The convention of OME-Zarr for plates of wells."""

    def mended(self, group: str, attributes: Attributes, is_there: IsThere) -> Attributes:
        """Return the attributes of a plate or a well with the wells or images that are there."""

        def change(place: Attributes) -> Attributes:
            new = dict(place)
            for name, entries in _LISTS.items():
                if isinstance(new.get(name), Mapping) and isinstance(new[name].get(entries), list):
                    new[name] = {**new[name], entries: present(group, new[name][entries], is_there)}
            return new

        return in_both_places(attributes, change)
