# test_conventions.py - parts of data sets: arrays that come along, and metadata that name only existing nodes
# SPDX-License-Identifier: MIT
"""A part of a data set is a data set: xarray finds its coordinates, and metadata of OME-Zarr and AnnData name nodes that are there.

`convert --only t2m` made a copy without coordinates, and `--only s0` one whose multiscales named levels that were not there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from data_sets import (
    NEEDED_BY_TAS,
    add,
    array_names,
    attributes_of,
    check_consolidated,
    climate,
    image,
    members,
    of_ome,
    plate,
    same_files,
)
from helpers import RecordingStore, bits, bytes_of_files, quiet
from spec_json import array_2022
from tool_sources import write_2022
from zarr.storage import LocalStore

from shardcodec.cli.app import run
from shardcodec.tools import compact, convert, plan_convert, repair, run_part
from shardcodec.tools.conventions.all_conventions import mended, with_needed
from shardcodec.tools.conventions.ome_zarr import with_ome_05
from shardcodec.tools.node_selection import Selection
from shardcodec.tools.nodes import ArrayFacts, KnownNodes

VERSIONS = ["0.4", "0.5"]


def paths(entries: Any) -> list[str]:
    return [entry["path"] for entry in entries]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_only_takes_coordinates_along(zarr_format: int, tmp_path: Path) -> None:
    climate(tmp_path / "old", zarr_format)
    convert(tmp_path / "old", tmp_path / "only", only="tas")
    convert(tmp_path / "old", tmp_path / "array", only="tas")
    convert(tmp_path / "old", tmp_path / "exactly", only=["tas", "lat"], exclude="@needed")
    assert array_names(tmp_path / "only") == array_names(tmp_path / "array") == NEEDED_BY_TAS
    assert array_names(tmp_path / "exactly") == ["lat", "tas"]
    for name in ("only", "array", "exactly"):
        check_consolidated(tmp_path / name)


def test_coordinates_may_be_left_out_and_may_be_in_a_group_above(tmp_path: Path) -> None:
    with quiet():
        group = zarr.create_group(tmp_path / "old")
        below = group.create_group("run/day")
    add(group, "x", np.arange(4), ("x",))
    add(group, "y", np.arange(3), ("y",))
    add(group, "cells", np.arange(4), ("x",))
    add(
        below,
        "v",
        np.ones((3, 4)),
        ("y", "x"),
        cell_measures="area: /cells",
        ancillary_variables="flag ../other",
    )
    add(below, "flag", np.ones((3, 4)), ("y", "x"))
    add(below, "y", np.arange(3), ("y",))
    convert(tmp_path / "old", tmp_path / "new", only="run/day/v")
    assert array_names(tmp_path / "new") == ["cells", "run/day/flag", "run/day/v", "run/day/y", "x"]
    convert(tmp_path / "old", tmp_path / "less", only="run", exclude=["x", "*/flag"])
    assert array_names(tmp_path / "less") == ["cells", "run/day/v", "run/day/y"]


def test_pattern_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    """A misspelt name beside a right one was ignored, and the copy did not have the array."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
        for name in ("tas", "deep/pr"):
            group.create_array(name, data=np.ones((4, 6)))
    for only, unknown in (
        (["tas", "pr"], "'pr'"),
        ("nothing", "'nothing'"),
        (["deep", "deep/x*"], r"'deep/x\*'"),
    ):
        with pytest.raises(
            FileNotFoundError, match=f"matches {unknown}, but there is none; there are deep/pr, tas$"
        ):
            convert(tmp_path / "old", tmp_path / "new", only=only)
    assert not (tmp_path / "new").exists()
    convert(tmp_path / "old", tmp_path / "new", only=["tas", "deep"], exclude="nothing")


def test_names_with_brackets_choose_themselves(tmp_path: Path) -> None:
    """`--exclude 'band[1]'` left nothing out, and a rule for this name was refused with a list that had it."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
        for name in ("band[1]", "band1", "b*"):
            group.create_array(name, data=np.ones((4, 6)))
    for number, (how, names) in enumerate(
        (
            ({"only": "band[1]"}, {"band[1]", "band1"}),  # it is also a pattern
            ({"exclude": ["band[1]", "b[*]"]}, set()),
            ({"only": "band[[]1]"}, {"band[1]"}),
        )
    ):
        if not names:
            with pytest.raises(FileNotFoundError, match="but there is none"):
                convert(tmp_path / "old", tmp_path / f"{number}", **how)
            continue
        report = convert(tmp_path / "old", tmp_path / f"{number}", **how)
        assert {one.name for one in report.arrays} == names
    rule = {"band[[]1]": (2, 2)}
    for chunks in (rule, {"band[1]": (2, 2)}):
        report = convert(tmp_path / "old", tmp_path / "new", chunks=chunks, only="band[1]", dry_run=True)
        assert {one.name: one.chunk_shape for one in report.arrays}["band[1]"] == (2, 2)


def test_words_of_cf() -> None:
    """A kind before a colon is no variable, except in the longer form of a grid mapping."""
    texts = {
        "grid_mapping": "crs: x y other: lat lon",
        "cell_measures": "area: cells volume: depths",
        "formula_terms": "a: ap ps: ps",
        "coordinates": 5,
        "bounds": "v_bnds",
    }
    names = [
        "v", "crs", "other", "x", "y", "lat", "lon", "area", "cells", "ap", "a", "ps", "v_bnds", "volume",
    ]  # fmt: skip
    facts: Any = {name: lambda: ArrayFacts((), {}) for name in names}
    facts["v"] = lambda: ArrayFacts(("t", None), texts)
    found = with_needed({"v"}, KnownNodes(facts, {}))
    assert found == {"v", "crs", "other", "x", "y", "lat", "lon", "cells", "ap", "ps", "v_bnds"}


def test_coordinates_of_other_formats_come_along(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("x", "t"):
            file.create_dataset(name, data=np.arange(3.0)).make_scale(name)
        for name in ("v", "w"):
            made = file.create_dataset(name, data=np.ones(3))
            made.dims[0].attach_scale(file["x"])
        file["v"].attrs["grid_mapping"] = "crs"
        file["crs"] = 1
        file["broken"] = h5py.SoftLink("/nowhere")
    convert(tmp_path / "a.h5", tmp_path / "new", only="v")
    assert array_names(tmp_path / "new") == ["crs", "v", "x"]
    convert(tmp_path / "a.h5", tmp_path / "alone", only="v", exclude="@needed")
    assert array_names(tmp_path / "alone") == ["v"]
    convert(tmp_path / "a.h5", tmp_path / "rest", exclude=["broken", "w"])
    assert array_names(tmp_path / "rest") == ["crs", "t", "v", "x"]
    axes = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"], "coordinates": "a b"}}
    write_2022(tmp_path / "old", {"a": array_2022() | axes, "b": array_2022(), "c": array_2022()})
    convert(tmp_path / "old", tmp_path / "from-2022", only="a")
    assert array_names(tmp_path / "from-2022") == ["a", "b"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", [{"only": "s1"}, {"exclude": ["s0", "s2", "labels", "tables"]}], ids=str)
def test_metadata_name_the_levels_that_are_there(how: dict[str, Any], version: str, tmp_path: Path) -> None:
    image(tmp_path / "old", version)
    report = convert(tmp_path / "old", tmp_path / "new", **how)
    assert sorted(members(tmp_path / "new")) == ["s1"]
    old, new = attributes_of(tmp_path / "old"), attributes_of(tmp_path / "new")
    assert new["multiscales"][0]["datasets"] == [old["multiscales"][0]["datasets"][1]]  # with its scale
    assert new["omero"] == old["omero"]
    assert new["multiscales"][0]["axes"] == old["multiscales"][0]["axes"]
    check_consolidated(tmp_path / "new")
    assert any("only what the copy has is named" in note for note in report.notes)


@pytest.mark.parametrize("version", VERSIONS)
def test_labels_that_are_left_out_are_not_named(version: str, tmp_path: Path) -> None:
    image(tmp_path / "old", version)
    convert(tmp_path / "old", tmp_path / "new", exclude=["labels/cells", "labels/*/s1", "tables/other"])
    assert attributes_of(tmp_path / "new", "labels")["labels"] == ["nuclei"]
    assert attributes_of(tmp_path / "new", "tables")["tables"] == ["counts"]
    scales = attributes_of(tmp_path / "new", "labels/nuclei")["multiscales"]
    assert paths(scales[0]["datasets"]) == ["s0"]
    assert attributes_of(tmp_path / "new") == attributes_of(tmp_path / "old")
    convert(tmp_path / "old", tmp_path / "labels", only="labels/nuclei")
    assert sorted(members(tmp_path / "labels")) == [
        "labels",
        "labels/nuclei",
        "labels/nuclei/s0",
        "labels/nuclei/s1",
    ]
    assert {"multiscales", "omero"}.isdisjoint(attributes_of(tmp_path / "labels"))
    for name in ("new", "labels"):
        check_consolidated(tmp_path / name)


@pytest.mark.parametrize("version", VERSIONS)
def test_wells_and_images_that_are_left_out_are_not_named(version: str, tmp_path: Path) -> None:
    plate(tmp_path / "old", version)
    convert(tmp_path / "old", tmp_path / "new", only="A/2/1")
    assert paths(attributes_of(tmp_path / "new")["plate"]["wells"]) == ["A/2"]
    assert paths(attributes_of(tmp_path / "new", "A/2")["well"]["images"]) == ["1"]
    assert array_names(tmp_path / "new") == ["A/2/1/s0"]
    assert attributes_of(tmp_path / "new", "A/2/1") == attributes_of(tmp_path / "old", "A/2/1")


@pytest.mark.parametrize("version", VERSIONS)
def test_whole_copy_has_the_same_metadata(version: str, tmp_path: Path) -> None:
    """Names that lead to nothing in the source stay, too: nothing was left out."""
    image(tmp_path / "old", version)
    with quiet():
        group = zarr.open_group(tmp_path / "old/labels", mode="r+", use_consolidated=False)
        group.attrs.update(of_ome(version, {"labels": ["cells", "nuclei", "not there"]}))
    convert(tmp_path / "old", tmp_path / "new", chunks={"z": 1})
    for name, node in members(tmp_path / "old").items():
        if isinstance(node, zarr.Group):
            assert attributes_of(tmp_path / "old", name) == attributes_of(tmp_path / "new", name)
    assert members(tmp_path / "old").keys() == members(tmp_path / "new").keys()


def test_metadata_of_other_forms_stay() -> None:
    """Names are only removed where the convention has them; anything else is data of the user."""
    odd: dict[str, Any] = {
        "multiscales": [5, {"datasets": "x"}, {"axes": []}],
        "labels": ["a"], "plate": {"wells": "none"}, "well": 3, "series": ["0"], "ome": {"labels": "x"},
        "column-order": ["a"],
    }  # fmt: skip
    assert mended("", odd, lambda path: False) == odd
    assert mended("OME", {"series": ["0", "1"]}, {"0"}.__contains__) == {"series": ["0"]}
    assert mended("a/labels", odd, lambda path: False)["labels"] == []


@pytest.mark.parametrize("kind", ["identity", "scale", "affine"])
@pytest.mark.parametrize("is_in_ome", [False, True])
def test_first_level_of_spatialdata_keeps_its_place(kind: str, is_in_ome: bool) -> None:
    """SpatialData does not read the scales of levels: an image without its first level had half of its size."""
    place = {"input": {"name": "yx"}, "output": {"name": "global"}}
    matrix = [[0.0, 1.0, 5.0], [1.0, 0.0, 7.0]]
    given = {
        "type": kind,
        **{"scale": {"scale": [3.0, 5.0]}, "affine": {"affine": matrix}}.get(kind, {}),
        **place,
    }
    levels = [
        {
            "path": f"s{n}",
            "coordinateTransformations": [
                {"type": "scale", "scale": [s, s]},
                {"type": "translation", "translation": [s - 1, 0.0]},
            ],
        }
        for n, s in enumerate((1.0, 2.0, 4.0))
    ]
    image = {"multiscales": [{"datasets": levels, "coordinateTransformations": [given]}]}
    attributes = {**({"ome": image} if is_in_ome else image), "spatialdata_attrs": {"version": "0.3"}}
    new = mended("a", attributes, {"a/s1", "a/s2"}.__contains__)
    (scales,) = new["ome"]["multiscales"] if is_in_ome else new["multiscales"]
    (moved,) = scales["coordinateTransformations"]
    first, second = (level["coordinateTransformations"] for level in scales["datasets"])
    assert (first[0]["scale"], second[0]["scale"]) == ([1.0, 1.0], [2.0, 2.0])
    assert (first[1]["translation"], second[1]["translation"]) == ([0.5, 0.0], [1.5, 0.0])
    assert {name: moved[name] for name in place} == place
    expected = {
        "identity": {"type": "scale", "scale": [2.0, 2.0], **place},
        "scale": {"type": "scale", "scale": [6.0, 10.0], **place},
        "affine": {
            "type": "sequence",
            "transformations": [
                {"type": "scale", "scale": [2.0, 2.0], "input": place["input"], "output": place["input"]},
                given,
            ],
            **place,
        },
    }
    assert moved == expected[kind]
    kept = mended("a", attributes, {"a/s0", "a/s2"}.__contains__)
    (scales,) = (kept["ome"] if is_in_ome else kept)["multiscales"]
    assert scales == {"datasets": [levels[0], levels[2]], "coordinateTransformations": [given]}
    plain = mended("a", image, {"a/s1"}.__contains__)  # OME-Zarr has the scales of levels
    assert plain["multiscales"][0] == {"datasets": [levels[1]], "coordinateTransformations": [given]}


@pytest.mark.parametrize(
    "wrong", [None, 3, "scale", [3], [{"type": "scale", "scale": ["a", 1]}], [{"type": "scale"}], {"type": 1}]
)
def test_malformed_transformations_stay_as_they_are(wrong: Any) -> None:
    levels = [{"path": str(i), "coordinateTransformations": wrong} for i in range(2)]
    scales = {"datasets": levels, "coordinateTransformations": [{"type": "identity"}]}
    attributes = {
        "spatialdata_attrs": {},
        "multiscales": [scales, "text"],
        "plate": {"wells": [3, {"path": 4}, {"path": "A/1"}]},
    }
    expected = {
        **attributes,
        "multiscales": [{**scales, "datasets": levels[1:]}, "text"],
        "plate": {"wells": [3, {"path": 4}]},
    }
    assert mended("image", attributes, {"image/1"}.__contains__) == expected


def test_elements_of_anndata_stay_whole(tmp_path: Path) -> None:
    """A part of a sparse matrix, or of a column of categories, cannot be read; each frame needs its index."""
    image(tmp_path / "old")
    table = tmp_path / "old/tables/counts"
    convert(table, tmp_path / "x", only="X/data")
    index = ["obs/_index", "var/_index"]
    assert array_names(tmp_path / "x") == ["X/data", "X/indices", "X/indptr", *index]
    assert attributes_of(tmp_path / "x", "obs")["column-order"] == []
    convert(tmp_path / "old", tmp_path / "kind", only="tables/counts/obs/kind/codes")
    assert array_names(tmp_path / "kind") == [
        f"tables/counts/{name}"
        for name in ("obs/_index", "obs/kind/categories", "obs/kind/codes", "var/_index")
    ]
    assert attributes_of(tmp_path / "kind", "tables/counts/obs")["column-order"] == ["kind"]
    assert attributes_of(tmp_path / "kind", "tables")["tables"] == ["counts"]
    convert(table, tmp_path / "frame", exclude="obs/kind")
    assert attributes_of(tmp_path / "frame", "obs")["column-order"] == ["size"]


@pytest.mark.parametrize("version", VERSIONS)
def test_store_that_cannot_list_has_the_nodes_of_its_consolidated_metadata(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image(tmp_path / "old", version)
    monkeypatch.setattr(RecordingStore, "supports_listing", False)
    store = RecordingStore(LocalStore(tmp_path / "old", read_only=True))
    convert(store, tmp_path / "new", only=["tables/counts/X/data", "s1"])
    frames = [
        f"tables/counts/{name}" for name in ("X/data", "X/indices", "X/indptr", "obs/_index", "var/_index")
    ]
    assert array_names(tmp_path / "new") == ["s1", *frames]
    assert paths(attributes_of(tmp_path / "new")["multiscales"][0]["datasets"]) == ["s1"]


def test_objects_of_nodes_that_are_left_out_are_not_copied(tmp_path: Path) -> None:
    """SpatialData has tables as parquet files in groups without arrays, which a pattern names, too."""
    image(tmp_path / "old")
    names = [
        "shapes/outer/shapes.parquet", "shapes/inner/shapes.parquet", "labels/cells/note.txt", "s0/note.txt",
        "top.txt",
    ]  # fmt: skip
    for name in names:
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_text(name)
    with quiet():
        for name in ("shapes", "shapes/outer", "shapes/inner"):
            zarr.create_group(tmp_path / "old", path=name)

    def others(new: str, **how: Any) -> list[str]:
        plan_convert(tmp_path / "old", tmp_path / f"{new}-part", tmp_path / f"{new}.json", parts=1, **how)
        run_part(tmp_path / f"{new}.json", 0)
        convert(tmp_path / "old", tmp_path / new, **how)
        same_files(tmp_path / new, tmp_path / f"{new}-part")
        found = (path.relative_to(tmp_path / new).as_posix() for path in (tmp_path / new).rglob("*"))
        return sorted(name for name in found if name.endswith((".txt", ".parquet")))

    assert others("less", exclude=["s0", "labels", "shapes/outer"]) == [
        "shapes/inner/shapes.parquet",
        "top.txt",
    ]
    assert "shapes/outer" not in members(tmp_path / "less")
    assert others("part", only=["s0", "shapes/inner"]) == ["s0/note.txt", "shapes/inner/shapes.parquet"]
    assert sorted(members(tmp_path / "part")) == ["s0", "shapes", "shapes/inner"]
    assert others("alone", only="labels/cells") == ["labels/cells/note.txt"]


@pytest.mark.parametrize(
    "how", [{"only": "nothing"}, {"exclude": "*"}, {"only": "s*", "exclude": "s*"}], ids=str
)
def test_selection_of_nothing_is_refused(how: dict[str, Any], tmp_path: Path) -> None:
    image(tmp_path / "old")
    with pytest.raises(FileNotFoundError, match=r"expected an array (or a group )?that matches"):
        convert(tmp_path / "old", tmp_path / "new", **how)
    assert not (tmp_path / "new").exists()


def test_group_stays_if_it_is_not_excluded_itself() -> None:
    """`--exclude d/z` left out the group `d` too, with its attributes and files, because no other array is in it."""
    groups = ["", "a", "a/empty", "b", "b/c", "d"]
    assert Selection(exclude=("a/x", "b")).groups(groups, ["d/z"]) == {"", "a", "a/empty", "d"}
    assert Selection(exclude=("d/z",)).groups(groups, []) == set(groups)
    assert Selection(only=("b/c/y",)).groups(groups, ["b/c/y"]) == {"", "b", "b/c"}


def test_copy_need_not_have_the_coordinates_of_the_array_that_is_repaired(tmp_path: Path) -> None:
    """`repair --only` was refused because the copy lacked the coordinates of the array."""
    group = zarr.create_group(tmp_path / "old")
    for name in ("t", "x"):
        array = group.create_array(
            name, shape=(8,), shards=(8,), chunks=(4,), dtype="i4", dimension_names=["t"]
        )
        array[:] = 7
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/t")
    repair(tmp_path / "old", to=tmp_path / "new", copy=tmp_path / "copy", only="x")
    assert array_names(tmp_path / "new") == ["t", "x"]
    with pytest.raises(FileNotFoundError, match="no array 't'"):
        repair(tmp_path / "old", to=tmp_path / "alone", copy=tmp_path / "copy", only="t")


@pytest.mark.parametrize("tool", [repair, compact])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_part_that_is_repaired_or_packed_is_consistent(tool: Any, zarr_format: int, tmp_path: Path) -> None:
    climate(tmp_path / "year", zarr_format)
    image(tmp_path / "image", "0.4" if zarr_format == 2 else "0.5")
    tool(tmp_path / "year", to=tmp_path / "tas", only="tas")
    assert array_names(tmp_path / "tas") == NEEDED_BY_TAS
    tool(tmp_path / "year", to=tmp_path / "alone", only="tas", exclude="@needed")
    assert array_names(tmp_path / "alone") == ["tas"]
    with pytest.raises(ValueError, match="exclude: expected"):
        tool(tmp_path / "year", to=tmp_path / "all", exclude="@needed")
    tool(tmp_path / "image", to=tmp_path / "s1", only="s1")
    assert sorted(members(tmp_path / "s1")) == ["s1"]
    scales = attributes_of(tmp_path / "s1")["multiscales"]
    assert paths(scales[0]["datasets"]) == ["s1"]
    tool(tmp_path / "image", to=tmp_path / "cells", only="labels/cells/s0")
    assert attributes_of(tmp_path / "cells", "labels")["labels"] == ["cells"]
    for name in ("tas", "s1", "cells"):
        check_consolidated(tmp_path / name)
    tool(tmp_path / "image", to=tmp_path / "whole")
    old, new = (bytes_of_files(tmp_path / name) for name in ("image", "whole"))
    assert old.keys() == new.keys()
    assert {name for name in old if old[name] != new[name]} <= {"zarr.json", ".zmetadata"}  # other spaces
    assert attributes_of(tmp_path / "image") == attributes_of(tmp_path / "whole")


@pytest.mark.parametrize("tool", [repair, compact])
def test_sharded_coordinates_come_along_too(tool: Any, tmp_path: Path) -> None:
    climate(tmp_path / "year")
    convert(tmp_path / "year", tmp_path / "old", shards={"time": 365, "lat": (36,)})
    report = tool(tmp_path / "old", to=tmp_path / "new", only="tas")
    assert report.n_shards == 2 or tool is repair  # which counts chunks without shards, too
    assert array_names(tmp_path / "new") == NEEDED_BY_TAS
    with quiet():
        old, new = zarr.open_group(tmp_path / "old", mode="r"), zarr.open_group(tmp_path / "new", mode="r")
        for name in NEEDED_BY_TAS:
            assert bits(old[name][...]) == bits(new[name][...])


def test_command_takes_and_leaves_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    climate(tmp_path / "old")
    words = ["convert", str(tmp_path / "old")]
    assert (
        run([*words, str(tmp_path / "a"), "--only", "tas", "--exclude", "areacella", "--exclude", "*_bnds"])
        == 0
    )
    assert array_names(tmp_path / "a") == ["crs", "height", "lat", "lon", "run", "tas", "time"]
    assert run([*words, str(tmp_path / "b"), "--only", "tas", "--exclude", "@needed"]) == 0
    assert array_names(tmp_path / "b") == ["tas"]
    plan = [
        "plan",
        words[1],
        str(tmp_path / "c"),
        str(tmp_path / "p.json"),
        "--only",
        "tas",
        "--exclude",
        "@needed",
    ]
    assert run(plan) == 0
    assert run(["run-part", str(tmp_path / "p.json"), "0"]) == 0
    assert array_names(tmp_path / "c") == ["tas"]


@pytest.mark.parametrize("kind", ["image", "plate"])
def test_ome_zarr_04_becomes_05(kind: str, tmp_path: Path) -> None:
    """Copies had the metadata of 0.4 in Zarr v3, which no version of OME-Zarr has: ome-zarr-models and neuroglancer refused them."""
    {"image": image, "plate": plate}[kind](tmp_path / "old", "0.4")
    versioned = {"multiscales": [{"version": "0.4"}], "plate": {"version": "0.4"}, "well": {"version": "0.4"}}
    with quiet():
        group = zarr.open_group(tmp_path / "old")
        groups = [group, *(node for _, node in group.members(max_depth=None) if isinstance(node, zarr.Group))]
    for one in groups:
        for name in versioned.keys() & dict(one.attrs).keys():
            more = versioned[name]
            given = one.attrs[name]
            one.attrs[name] = [{**given[0], **more[0]}] if isinstance(more, list) else {**given, **more}
    old = {one.path: dict(one.attrs) for one in groups}
    report = convert(tmp_path / "old", tmp_path / "new")
    assert report.notes == ("the metadata of OME-Zarr 0.4, which needs Zarr v2, became those of 0.5",)
    new = {
        path: json.loads((tmp_path / "new" / path / "zarr.json").read_text()).get("attributes", {})
        for path in old
    }
    names = {"multiscales", "omero", "plate", "well", "labels"}
    for path, attributes in old.items():
        if not names & attributes.keys():
            assert new[path] == attributes  # tables and their parts, rows of a plate
            continue
        ome = new[path].pop("ome")
        assert ome.pop("version") == "0.5" and new[path] == {}
        assert "version" not in str(ome) and ome.keys() == attributes.keys()
    level = "s0" if kind == "image" else "A/1/0/s0"
    stored = json.loads((tmp_path / "new" / level / "zarr.json").read_text())
    assert stored["dimension_names"] == list("czyx" if kind == "image" else "yx")


def test_only_groups_of_ome_zarr_04_become_05() -> None:
    image04 = {"multiscales": [{"version": "0.4", "datasets": []}], "omero": {}, "mine": 1}
    assert with_ome_05({"": image04}) == {
        "": {"ome": {"version": "0.5", "multiscales": [{"datasets": []}], "omero": {}}, "mine": 1}
    }
    for attributes in (
        {"multiscales": [{"version": "0.3"}]},
        {"multiscales": [{"version": "0.4"}, {"version": "0.4-dev-spatialdata"}]},
        {"multiscales": "x", "labels": ["a"], "series": 1},
        {"bioformats2raw.layout": 3},
        {**image04, "spatialdata_attrs": {}},
        {**image04, "ome": {}},
    ):
        assert with_ome_05({"": attributes, "labels": {"labels": ["a"]}}) == {}
    layout = {
        "": {"bioformats2raw.layout": 3}, "OME": {"series": ["0"]}, "0": image04, "other": {"labels": ["a"]},
    }  # fmt: skip
    new = with_ome_05(layout)
    assert new.keys() == {"", "OME", "0"}
    assert new[""] == {"ome": {"version": "0.5", "bioformats2raw.layout": 3}}
    assert new["OME"] == {"ome": {"version": "0.5", "series": ["0"]}}


def test_mesh_comes_along() -> None:
    """A variable on a mesh was copied without the mesh, so no program knew where its elements are."""
    mesh = {"node_coordinates": "x y", "face_node_connectivity": "faces", "edge_face_connectivity": "none"}
    facts = {
        "heat": ArrayFacts(("face",), {"mesh": "mesh", "location": "face"}),
        "mesh": ArrayFacts((), {"cf_role": "mesh_topology", **mesh}),
        **{name: ArrayFacts((), {}) for name in ("x", "y", "faces", "other")},
    }
    nodes = KnownNodes({name: lambda one=one: one for name, one in facts.items()}, {})
    assert with_needed(["heat"], nodes) == {"heat", "mesh", "x", "y", "faces"}
