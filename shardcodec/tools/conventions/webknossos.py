# webknossos.py - the properties of a data set of webknossos, of which a part is copied
# SPDX-License-Identifier: MIT
"""`Webknossos`: the layers, magnifications and attachments that a part of a data set has. What is malformed stays unchanged."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ...format.array_document import encoded_document
from ..documents import parsed
from .convention import Convention, Has, MendedObject

__all__ = ["DATA_SET", "Webknossos"]

# The properties are in an object in the folder of the data set.
DATA_SET = "datasource-properties.json"
# The lists of magnifications of a layer, and the steps of each; the second list is older.
_MAGNIFICATIONS = {"mags": "mag", "wkwResolutions": "resolution"}


class Webknossos(Convention):
    """The convention of webknossos."""

    object_name = DATA_SET

    def mended_object(self, folder: str, data: bytes, has: Has) -> MendedObject | None:
        """Return the properties of a data set that name nothing that was left out; None for another or a malformed document."""
        properties = parsed(data)
        layers = None if properties is None else properties.get("dataLayers")
        if properties is None or not isinstance(layers, list):
            return None
        places = _Places(folder, has)
        kept = [_mended_layer(layer, places) for layer in layers]
        new = {**properties, "dataLayers": [layer for layer in kept if layer is not None]}
        notes = [
            f"{place} is outside of the hierarchy: it is not copied, and still named"
            for place in places.outside
        ]
        if new != properties:
            data = encoded_document(new)
            notes.insert(0, "only what the copy has is named")
        name = posixpath.join(folder, DATA_SET)
        return MendedObject(data, tuple(f"{name}: {note}" for note in notes))


class _Places:
    """What the properties of a data set name, by paths in its folder; `outside` gets relative paths that leave the hierarchy."""

    def __init__(self, folder: str, has: Has) -> None:
        self._folder, self._has = folder, has
        self.outside: dict[str, None] = {}

    def have(self, places: tuple[str, ...]) -> bool:
        """Return False if one of the possible places of an entry was left out, and the copy has none of them."""
        answers = [self._answer(place) for place in places]
        return True in answers or False not in answers

    def _answer(self, place: str) -> bool | None:
        if "://" in place or place.startswith("/"):  # programs find it from the copy, too
            return None
        path = posixpath.normpath(posixpath.join(self._folder, place))
        if path.split("/")[0] == "..":
            self.outside[place] = None
            return None
        return self._has("" if path == "." else path)


def _mended_layer(layer: Any, places: _Places) -> Any:
    """Return a layer; None if it was left out."""
    if not isinstance(layer, Mapping) or not isinstance(name := layer.get("name"), str):
        return layer
    given = {key: layer[key] for key in _MAGNIFICATIONS if layer.get(key) is not None}
    if not all(isinstance(mags, list) for mags in given.values()):
        return layer
    kept = {
        key: [mag for mag in mags if places.have(_places_of(mag, name, _MAGNIFICATIONS[key]))]
        for key, mags in given.items()
    }
    if not (any(kept.values()) if any(given.values()) else places.have((name,))):
        return None
    new = {**layer, **kept}
    if isinstance(attachments := layer.get("attachments"), Mapping):
        new["attachments"] = {
            kind: [each for each in entry if places.have(_path_of(each))]
            if isinstance(entry, list)
            else entry
            for kind, entry in attachments.items()
            if isinstance(entry, list) or places.have(_path_of(entry))
        }
    return new


def _path_of(entry: Any) -> tuple[str, ...]:
    """Return the path that an entry has; none without one."""
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return (path,) if isinstance(path, str) else ()


def _places_of(magnification: Any, layer: str, key: str) -> tuple[str, ...]:
    """Return the possible places of a magnification: without a path its folder is, for example, ``2`` or ``2-2-2``; none if malformed."""
    if path := _path_of(magnification):
        return path
    given = magnification.get(key) if isinstance(magnification, Mapping) else None
    steps = given.split("-") if isinstance(given, str) else given if isinstance(given, list) else [given]
    words = [str(step) for step in steps]
    if not words or any(isinstance(step, bool) for step in steps) or not all(map(str.isdecimal, words)):
        return ()
    if len(set(words)) > 1:
        return (f"{layer}/{'-'.join(words)}",)
    return f"{layer}/{words[0]}", f"{layer}/{'-'.join(words[:1] * 3)}"
