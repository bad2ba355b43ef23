# test_webknossos.py - parts of data sets of webknossos, whose properties name only what is there
# SPDX-License-Identifier: MIT
"""webknossos finds layers, magnifications and attachments by one JSON document, which belongs to no array."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import OtherMemoryStore

from shardcodec.tools import compact, convert, plan_convert, repair, run_part
from shardcodec.tools.conventions.webknossos import DATA_SET

LAYERS = {"color": ("1", "2-2-1", "4-4-1"), "cells": ("1", "2-2-1")}


def data_set(place: Path, zarr_format: int = 3) -> dict[str, Any]:
    """Write two layers of webknossos, and a mesh of one of them; return the properties."""
    group = zarr.open_group(place, mode="w", zarr_format=zarr_format)
    layers: list[dict[str, Any]] = []
    for name, mags in LAYERS.items():
        for mag in mags:
            array = group.create_array(f"{name}/{mag}", shape=(1, 8, 8, 8), chunks=(1, 4, 4, 4), dtype="u1")
            array[...] = 1
        steps = [[int(step) for step in mag.split("-")] for mag in mags]
        layers.append({"name": name, "category": "color", "dataFormat": f"zarr{zarr_format}"})
        layers[-1]["mags"] = [
            {"mag": step * (3 // len(step)), "axisOrder": {"c": 0}}
            | ({"path": f"./{name}/{mag}"} if name == "cells" else {})
            for mag, step in zip(mags, steps, strict=True)
        ]
    layers[1]["attachments"] = {
        "meshes": [{"name": "all", "path": "./cells/meshes/all.hdf5"}, {"name": "far", "path": "https://host/far"}],
        "segmentIndex": {"name": "index", "path": "cells/index.hdf5"},
    }  # fmt: skip
    properties = {"id": {"name": "a"}, "scale": [1, 1, 2], "dataLayers": layers, "version": 1}
    for path in ("cells/meshes/all.hdf5", "cells/index.hdf5"):
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).write_bytes(b"mesh")
    (place / DATA_SET).write_text(json.dumps(properties))
    return properties


def layers_of(place: Path) -> dict[str, list[Any]]:
    """Return the magnifications of each layer that the properties name; each must be there."""
    properties = json.loads((place / DATA_SET).read_text())
    assert properties["scale"] == [1, 1, 2]
    found = {}
    for layer in properties["dataLayers"]:
        names = ["1" if mag["mag"] == [1, 1, 1] else "-".join(map(str, mag["mag"])) for mag in layer["mags"]]
        assert all((place / layer["name"] / name / "zarr.json").exists() for name in names)
        found[layer["name"]] = names
    return found


@pytest.mark.parametrize(("how", "layers", "has_files"), [
    ({"only": "color"}, {"color": ["1", "2-2-1", "4-4-1"]}, None),
    ({"only": ["color/1", "cells/2-2-1"]}, {"color": ["1"], "cells": ["2-2-1"]}, False),
    ({"only": "cells"}, {"cells": ["1", "2-2-1"]}, True),
    ({"exclude": "color"}, {"cells": ["1", "2-2-1"]}, True),
    ({"exclude": ["*/1", "color/4-4-1"]}, {"color": ["2-2-1"], "cells": ["2-2-1"]}, True),
])  # fmt: skip
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_properties_of_webknossos_name_what_is_there(
    how: dict[str, Any],
    layers: dict[str, list[str]],
    has_files: bool | None,
    zarr_format: int,
    tmp_path: Path,
) -> None:
    """A part had no properties with `only`, and with `exclude` they named layers that were not there: webknossos opened neither."""
    data_set(tmp_path / "old", zarr_format)
    report = convert(tmp_path / "old", tmp_path / "new", **how)
    assert layers_of(tmp_path / "new") == layers
    assert f"{DATA_SET}: only what the copy has is named" in report.notes
    if has_files is not None:
        attachments = json.loads((tmp_path / "new" / DATA_SET).read_text())["dataLayers"][-1]["attachments"]
        assert [mesh["name"] for mesh in attachments["meshes"]] == ["all", "far"][not has_files :]
        assert ("segmentIndex" in attachments) == has_files == (tmp_path / "new/cells/index.hdf5").exists()


def test_properties_of_webknossos_in_a_job_and_after_repair(tmp_path: Path) -> None:
    data_set(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=2, only="*/2-2-1")
    for part in range(2):
        run_part(tmp_path / "plan", part)
    assert layers_of(tmp_path / "new") == {"color": ["2-2-1"], "cells": ["2-2-1"]}
    repair(tmp_path / "old", to=tmp_path / "repaired", only="color/4-4-1")
    assert layers_of(tmp_path / "repaired") == {"color": ["4-4-1"]}


@pytest.mark.parametrize("names", [("1", "2-2-2"), ("1-1-1", "2"), ("1-1-1", "2-2-2")])
@pytest.mark.parametrize("how", [{"only": 1}, {"exclude": 0}])
def test_magnifications_have_two_names(how: dict[str, int], names: tuple[str, ...], tmp_path: Path) -> None:
    """With `only="color/2-2-2"` no layer was named, and `exclude="color/1-1-1"` still named this magnification."""
    old = tmp_path / "old"
    write_properties(old, [{"name": "color", "mags": [{"mag": [n, n, n]} for n in (1, 2)]}])
    for name in names:
        zarr.open_group(old).create_array(f"color/{name}", shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    report = convert(old, tmp_path / "new", **{name: f"color/{names[n]}" for name, n in how.items()})
    (layer,) = properties_of(tmp_path / "new")["dataLayers"]
    assert layer["mags"] == [{"mag": [2, 2, 2]}]
    assert report.notes == (f"{DATA_SET}: only what the copy has is named",)


def write_properties(place: Path, layers: Any) -> None:
    """Write the properties of a data set in a group."""
    zarr.open_group(place)
    (place / DATA_SET).write_text(json.dumps({"dataLayers": layers}))


def properties_of(place: Path) -> dict[str, Any]:
    """Return the properties of a data set."""
    properties: dict[str, Any] = json.loads((place / DATA_SET).read_text())
    return properties


@pytest.mark.parametrize("mags", [
    [1, 2], [[1, 1, 1]], ["2-2-1"], [{"mag": {"x": 1, "y": 1, "z": 1}}], [{"mag": [1.5, 1, 1]}],
    [{"mag": []}], [{}], {"1": [1, 1, 1]}, 5,
])  # fmt: skip
def test_malformed_magnifications_stay(mags: Any, tmp_path: Path) -> None:
    """Their layer was left out, or some of them."""
    old = tmp_path / "old"
    layers = [{"name": "color", "mags": mags}, {"name": "cells", "mags": [{"mag": "1"}, {"mag": 2}]}]
    write_properties(old, layers)
    for name in ("color/1", "cells/1", "cells/2"):
        zarr.open_group(old).create_array(name, shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    convert(old, tmp_path / "new", only="cells/2")
    assert properties_of(tmp_path / "new")["dataLayers"] == [
        layers[0],
        {"name": "cells", "mags": [{"mag": 2}]},
    ]


@pytest.mark.parametrize(
    ("how", "names"), [({"only": "a/ds/color"}, ["color"]), ({"exclude": "a/ds/color"}, ["cells"])]
)
def test_data_set_below_the_root(how: dict[str, str], names: list[str], tmp_path: Path) -> None:
    """With `only` a part had no properties, and with `exclude` no note said that they name less."""
    zarr.open_group(tmp_path / "old").create_group("a/ds")
    data_set(tmp_path / "old/a/ds")
    report = convert(tmp_path / "old", tmp_path / "new", **how)
    assert list(layers_of(tmp_path / "new/a/ds")) == names
    assert report.notes == (f"a/ds/{DATA_SET}: only what the copy has is named",)
    assert convert(tmp_path / "old", tmp_path / "none", dry_run=True, **how).notes == report.notes


@pytest.mark.parametrize("tool", [repair, compact])
def test_repair_and_compact_say_what_is_mended(tool: Any, tmp_path: Path) -> None:
    """Their reports had no notes, though `--only` mends as in `convert`."""
    data_set(tmp_path / "old")
    image = zarr.open_group(tmp_path / "old/image")
    levels = [{"path": name} for name in "01"]
    image.attrs["multiscales"] = [{"datasets": levels}]
    for name in "01":
        image.create_array(name, shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    report = tool(tmp_path / "old", to=tmp_path / "new", only="image/1")
    assert report.notes == (
        "group image: multiscales: only what the copy has is named",
        f"{DATA_SET}: only what the copy has is named",
    )
    assert all(note in str(report) for note in report.notes)
    assert not tool(tmp_path / "old", to=tmp_path / "whole").notes


def test_empty_and_outer_attachments_stay(tmp_path: Path) -> None:
    """A kind of attachments that was null was left out; no note named a place outside, which is not copied."""
    old = tmp_path / "old"
    attachments = {
        "agglomerates": None,
        "meshes": [None, {"path": "../far"}, {"path": "/far"}, {"path": "cells/m"}],
    }
    mags = [{"mag": 1}, {"mag": 2, "path": "../other/2"}]
    write_properties(old, [{"name": "color", "mags": mags, "attachments": attachments}, {"name": "cells"}])
    for name in ("color/1", "cells/1"):
        zarr.open_group(old).create_array(name, shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    report = convert(old, tmp_path / "new", only="color")
    (layer,) = properties_of(tmp_path / "new")["dataLayers"]
    assert layer["mags"] == mags
    assert layer["attachments"] == {**attachments, "meshes": attachments["meshes"][:3]}
    outside = [
        f"{place} is outside of the hierarchy: it is not copied, and still named"
        for place in ("../other/2", "../far")
    ]
    assert report.notes == tuple(
        f"{DATA_SET}: {note}" for note in ("only what the copy has is named", *outside)
    )


def test_whole_copy_and_other_properties_stay_as_they_are(tmp_path: Path) -> None:
    data_set(tmp_path / "old")
    before = (tmp_path / "old" / DATA_SET).read_bytes()
    report = convert(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new" / DATA_SET).read_bytes() == before and not report.notes
    for n, other in enumerate(
        (b"{", b"[1]", b'{"dataLayers": {"a": 1}}', b'{"dataLayers": ["a", {"name": 1}]}')
    ):
        (tmp_path / "old" / DATA_SET).write_bytes(other)
        convert(tmp_path / "old", tmp_path / f"{n}", exclude="color")
        assert (tmp_path / f"{n}" / DATA_SET).read_bytes() == other


class KeysOfZarr(OtherMemoryStore):
    """A store that takes only keys of Zarr, as that of icechunk."""

    async def getsize(self, key: str) -> int:
        if key == DATA_SET:
            raise ValueError(f"invalid zarr key format {key}")
        return await super().getsize(key)


def test_store_that_takes_only_keys_of_zarr_has_no_properties(tmp_path: Path) -> None:
    store = KeysOfZarr()
    zarr.create_group(store).create_array("a", shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    assert convert(store, tmp_path / "new", only="a").is_complete
