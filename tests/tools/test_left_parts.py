# test_left_parts.py - what a copy does not carry over is in one list, and one wrong node ends no tool
# SPDX-License-Identifier: MIT
"""Arrays, objects and sentences on metadata were three lists, and a part of a plan named none of them.

A malformed document of one array ended `convert`, a group whose folder cannot be listed ended each tool, and a document of another
kind of node hid the nodes below it, while `verify` found nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import as_user, quiet
from spec_json import array_2022
from tool_sources import COPIES, copies, edit, write_2022
from zarr.storage import MemoryStore, WrapperStore

from shardcodec.cli.app import run
from shardcodec.errors import SpecError
from shardcodec.tools import convert, inspect, plan_convert, run_part, verify
from shardcodec.tools.left_parts import MAX_LEFT, NOTHING_LEFT, LeftKind, LeftPart, LeftParts
from shardcodec.tools.monitor import Monitor
from shardcodec.tools.other_objects import copy_objects
from shardcodec.transformer.legacy_2022.open import open_2022

VALUES = np.arange(16, dtype=np.int32) + 1
NAMES = "a", "g/b", "h/c"
DOCUMENT = {3: "zarr.json", 2: ".zarray"}


def hierarchy(place: Any, zarr_format: Any = 3, *, consolidated: bool = False) -> Any:
    how: dict[str, Any] = {"shards": (8,)} if zarr_format == 3 else {}
    with quiet():
        group = zarr.create_group(place, zarr_format=zarr_format)
        for name in NAMES:
            group.create_array(name, shape=(16,), chunks=(4,), dtype="int32", **how)[...] = VALUES
        group["h"].attrs["x"] = 3
        if consolidated:
            zarr.consolidate_metadata(place, zarr_format=zarr_format)
    return place


def arrays_of(place: Any) -> dict[str, bool]:
    """Return the arrays of a hierarchy, and whether their elements are right."""
    with quiet():
        group = zarr.open_group(place, mode="r", use_consolidated=False)
        return {
            name: bool((node[...] == VALUES).all())
            for name, node in group.members(max_depth=None)
            if isinstance(node, zarr.Array)
        }


def test_list_counts_what_it_does_not_list() -> None:
    many = [LeftPart.object(str(i), "x", is_unreadable=i % 2 == 0) for i in range(MAX_LEFT)]
    left = NOTHING_LEFT + many + LeftPart.notes("g", ["y"]) + (NOTHING_LEFT + many[:3])
    assert left.counts == {"object": MAX_LEFT + 3, "metadata": 1} and len(left.parts) == MAX_LEFT
    assert left.unreadable == {"object": MAX_LEFT // 2 + 2} and left.n_unreadable == MAX_LEFT // 2 + 2
    assert list(left.result_facts(would=False))[-1] == ("", "4 further parts left out")


def test_many_left_objects_are_counted_without_a_copy_of_the_list_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each object that was left out copied the list of up to 1,000 parts, so 20,000 of them copied twenty million."""
    n, n_added = 3 * MAX_LEFT + 5, []
    added = LeftParts.__add__

    def counted(self: LeftParts, more: Iterable[LeftPart]) -> LeftParts:
        n_added.append(len(new := list(more)))
        return added(self, new)

    monkeypatch.setattr(LeftParts, "__add__", counted)
    entries: Any = [LeftPart.object(str(i), "x", is_unreadable=i % 2 == 0) for i in range(n)]
    counts = copy_objects(entries, lambda entry: None, Monitor(), 1)
    assert counts.parts.counts == {"object": n} and counts.parts.n_unreadable == (n + 1) // 2
    assert [int(part.name) for part in counts.parts] == list(range(MAX_LEFT))
    assert n_added == [MAX_LEFT, MAX_LEFT, MAX_LEFT, 5]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_convert_goes_on_after_malformed_metadata(
    zarr_format: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = hierarchy(tmp_path / "old", zarr_format)
    edit(old / "g/b" / DOCUMENT[zarr_format], shape="x")
    if zarr_format == 3:
        edit(old / "h/zarr.json", attributes=3)
    else:
        (old / "h/.zattrs").write_text("{")
    assert run(["convert", "--json", str(old), str(tmp_path / "new")]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["is_complete"]
    assert [(one["kind"], one["name"], one["is_unreadable"]) for one in report["left"]["parts"]] == [
        ("array", "g/b", True),
        ("group", "h", True),
    ]
    assert [one["name"] for one in report["left_arrays"]] == ["g/b", "h"]
    assert all(str(old / one["name"]) in one["problem"] for one in report["left_arrays"])
    assert arrays_of(tmp_path / "new") == {"a": True, "h/c": True}
    with pytest.raises(SpecError, match="g/b: shape: expected an array"):
        convert(old, tmp_path / "other", fail_fast=True)
    with pytest.raises(SpecError, match="g/b: shape: expected an array"):
        convert(old, tmp_path / "other", array="g/b")


def test_array_with_a_codec_that_nobody_has_is_left_out(tmp_path: Path) -> None:
    old = hierarchy(tmp_path / "old", 2)
    edit(old / "g/b/.zarray", compressor={"id": "unknown"})
    report = convert(old, tmp_path / "new")
    assert [(one.name, one.is_unreadable) for one in report.left_arrays] == [("g/b", False)]
    assert arrays_of(tmp_path / "new") == {"a": True, "h/c": True}


def test_plan_names_what_is_left(tmp_path: Path) -> None:
    old = hierarchy(tmp_path / "old")
    edit(old / "g/b/zarr.json", shape="x")
    planned = plan_convert(str(old), str(tmp_path / "new"), tmp_path / "plan", n_parts=1)
    assert [(part.kind, part.name) for part in planned.left] == [(LeftKind.ARRAY, "g/b")]
    assert run_part(tmp_path / "plan", 0).is_complete
    assert arrays_of(tmp_path / "new") == {"a": True, "h/c": True} and not (tmp_path / "new/g/b").exists()


def test_metadata_of_arrays_are_in_the_list(tmp_path: Path) -> None:
    old = hierarchy(tmp_path / "old", 2)
    edit(old / "a/.zarray", of_nobody=1)
    (part,) = convert(old, tmp_path / "new").left
    assert (part.kind, part.name) == (LeftKind.OF_ARRAY, "a") and "of_nobody" in part.reason


@pytest.mark.parametrize("place", ["", "g", "g/b", "g/b/c"])
def test_folder_that_cannot_be_listed_ends_no_tool(place: str, tmp_path: Path) -> None:
    old = hierarchy(tmp_path / "old")
    for folder, _, files in os.walk(tmp_path):
        for path in [folder, *(f"{folder}/{name}" for name in files)]:
            os.chmod(path, 0o777)
    (old / place).chmod(0o311)

    def work() -> None:
        assert verify(old).kinds == {"unreadable": 1}
        assert inspect(old).n_findings == 1
        for new, report in copies(old, tmp_path):
            assert report.left.n_unreadable
            known = {"": [], "g": ["a", "h/c"]}.get(place, list(NAMES))
            assert arrays_of(new) == dict.fromkeys(known, True)

    as_user(work)


class Unlisted(WrapperStore[Any]):
    """A store that refuses to list some folders, as a bucket whose policy permits reads only."""

    def list_prefix(self, prefix: str) -> Any:
        return self._refuse(prefix, super().list_prefix(prefix))

    def list_dir(self, prefix: str) -> Any:
        return self._refuse(prefix, super().list_dir(prefix))

    def _refuse(self, prefix: str, listed: Any) -> Any:
        async def names() -> Any:
            if prefix.strip("/").startswith("g"):
                raise PermissionError(f"403: {prefix}")
            async for name in listed:
                yield name

        return names()


def test_prefix_that_a_store_refuses_to_list_ends_no_tool(tmp_path: Path) -> None:
    store = Unlisted(hierarchy(MemoryStore(), consolidated=True))
    assert verify(store).kinds == {"unreadable": 2}  # the group, and the folder of the array in it
    assert {one.name for one in inspect(store).arrays} == {"a", "g", "g/b", "h/c"}
    for new, report in copies(store, tmp_path):
        assert [one.name for one in report.left_arrays if one.is_unreadable] == ["g"]
        assert arrays_of(new) == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("consolidated", [True, False])
def test_array_in_the_place_of_a_group_is_found_and_nothing_is_lost(
    consolidated: bool, tmp_path: Path
) -> None:
    old = hierarchy(tmp_path / "old", consolidated=consolidated)
    shutil.copy(old / "a/zarr.json", old / "g/zarr.json")
    report = verify(old)
    shards = {one.shard for one in report.shards if one.n_findings}
    assert shards == {str(old / "g/b/zarr.json")} | ({str(old / "g/zarr.json")} if consolidated else set())
    assert "consolidate the metadata" not in str(report)  # they have the only document of the group
    for name, copy in COPIES.items():
        notes = copy(old, tmp_path / name).notes
        assert [note.partition(":")[0] for note in notes] == (["'g'"] if consolidated else []) + ["'g/b'"]
        assert (zarr.open_array(tmp_path / name / "g/b", mode="r")[...] == VALUES).all()


def test_group_in_the_place_of_an_array_is_found(tmp_path: Path) -> None:
    old = hierarchy(tmp_path / "old", consolidated=True)
    (old / "g/b/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert verify(old).kinds == {"unreadable": 1}
    for name, copy in COPIES.items():
        assert [note.partition(":")[0] for note in copy(old, tmp_path / name).notes] == ["'g/b'"]
        assert (tmp_path / name / "g/b/c/1").read_bytes() == (old / "g/b/c/1").read_bytes()


@pytest.mark.parametrize(("place", "left", "arrays"), [
    ("data/root/g/a", "data/root/g/a/", ["g/a"]),
    ("meta/root/g", "g", []), ("meta/root/g/a.array.json", "g/a", []), ("meta/root/g.group.json", "g", []),
])  # fmt: skip
def test_closed_place_of_a_hierarchy_of_2022_is_named(
    place: str, left: str, arrays: list[str], tmp_path: Path
) -> None:
    """One folder whose listing is refused, or one document without permission, ended the conversion with a bare error."""
    old = tmp_path / "old"
    write_2022(old, {"g/a": array_2022()}, {"": {}, "g": {}})
    with quiet():
        open_2022(old, "g/a", mode="r+")[...] = 1
    (old / place).chmod(0o311 if (old / place).is_dir() else 0)
    for folder in (tmp_path, old):
        folder.chmod(0o777)

    def work() -> None:
        report = convert(old, tmp_path / "new")
        assert report.is_complete and report.left.n_unreadable
        assert left in {part.name for part in report.left.parts}
        assert [one.name for one in report.arrays] == arrays
        for name in arrays:
            assert (zarr.open_array(tmp_path / "new" / name, mode="r")[...] == 1).all()

    as_user(work)
