# test_convert_rules.py - convert: shapes by names of axes, by arrays, and as advise proposes
# SPDX-License-Identifier: MIT
"""A rule is for the arrays that have its axes; the others keep their layout, and the report says why.

`convert year.zarr new.zarr --chunks 73,46,45` was refused because of the coordinates beside the variables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from data_sets import DAYS, LATS, LONS, add, climate, image
from helpers import bits, quiet
from tool_sources import edit

import shardcodec
from shardcodec.cli.app import run
from shardcodec.tools import advise, convert, parse_access, plan_convert, run_part
from shardcodec.tools.convert.choice_texts import parse_rules

WHOLE = (DAYS, LATS, LONS)


@pytest.fixture(params=[2, 3])
def year(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    climate(tmp_path / "year", request.param)
    return tmp_path / "year"


def layouts(report: Any) -> dict[str, Any]:
    """Return the shapes of the arrays of a report, those with shards as a pair."""
    return {
        one.name: (one.chunk_shape, one.shard_shape) if one.shard_shape else one.chunk_shape
        for one in report.arrays
    }


def kept(report: Any) -> dict[str, str]:
    return {one.name: one.kept for one in report.arrays if one.kept}


def check_elements(old: Path, new: Path, report: Any) -> None:
    """Check that the new arrays have the shapes of the report, and the elements of the old ones."""
    with quiet():
        source, made = zarr.open_group(old, mode="r"), zarr.open_group(new, mode="r")
        for one in report.arrays:
            array = made[one.name]
            assert (array.chunks, array.shards or ()) == (one.chunk_shape, one.shard_shape)
            assert bits(array[...]) == bits(source[one.name][...])


def test_sizes_by_names_of_axes(year: Path, tmp_path: Path) -> None:
    report = convert(
        year, tmp_path / "new", chunks={"time": 5, "lat": 12}, shards={"time": DAYS}, level="compare"
    )
    check_elements(year, tmp_path / "new", report)
    found = layouts(report)
    assert found["tas"] == found["pr"] == ((5, 12, LONS), (DAYS, 12, LONS))
    assert found["orog"] == (18, 20)  # small, so it keeps its chunks, too
    assert found["time"] == (DAYS,) and found["time_bnds"] == (DAYS, 2)
    reasons = kept(report)
    assert reasons.keys() == found.keys() - {"tas", "pr", "crs", "height", "run"}
    assert reasons["time"] == reasons["lat"] == "it is the coordinate of its axis"
    assert reasons["lon"] == reasons["site"] == "it has no axis time or lat"
    assert reasons["time_bnds"] == "it is small, 5.7 KiB"
    assert all(one.old_shard_shape is None for one in report.arrays)
    assert {one.name: one.old_chunk_shape for one in report.arrays}["tas"] == (73, LATS, LONS)


def test_shards_of_a_year_move_the_chunks(year: Path, tmp_path: Path) -> None:
    """The axes that the rule does not name keep the chunk of the source, so no chunk is decoded."""
    report = convert(year, tmp_path / "new", shards={"time": DAYS})
    check_elements(year, tmp_path / "new", report)
    assert layouts(report)["tas"] == ((73, LATS, LONS), WHOLE)
    assert {one.method for one in report.arrays if one.shard_shape} == {"move"}


def test_other_sides_of_shards_stay(tmp_path: Path) -> None:
    with quiet():
        zarr.create_array(
            tmp_path / "old",
            shape=(64, 64),
            shards=(16, 32),
            chunks=(4, 8),
            dtype="i4",
            dimension_names=["y", "x"],
        )[...] = np.arange(64 * 64).reshape(64, 64)
    (one,) = convert(tmp_path / "old", tmp_path / "a", shards={"y": 64}, dry_run=True).arrays
    assert (one.chunk_shape, one.shard_shape, one.old_shard_shape) == ((4, 8), (64, 32), (16, 32))
    (one,) = convert(tmp_path / "old", tmp_path / "a", chunks={"x": 3}, shards={"y": 64}, dry_run=True).arrays
    assert (one.chunk_shape, one.shard_shape) == ((4, 3), (64, 3))  # 32 is not a multiple of 3


def test_shard_of_all_of_an_axis_has_whole_chunks(tmp_path: Path) -> None:
    """zarr chooses chunks of 183 days for a year, and 365 is not a multiple of 183."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
    add(group, "v", np.ones((365, 8)), ("time", "x"), (183, 8))
    for size, whole in ((365, 366), (400, 549), (366, 366)):
        (one,) = convert(tmp_path / "old", tmp_path / "new", shards={"time": size}, dry_run=True).arrays
        assert one.shard_shape == (whole, 8)
    with pytest.raises(ValueError, match="choose 183 or 366"):
        convert(tmp_path / "old", tmp_path / "new", shards={"time": 200})


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_axes_of_ome_have_names(version: str, tmp_path: Path) -> None:
    """Labels have another rank; a rule by names is for both."""
    image(tmp_path / "old", version)
    report = convert(
        tmp_path / "old", tmp_path / "new", chunks={"z": 1, "y": 128}, shards={"z": 4, "y": 256, "x": 256}
    )
    check_elements(tmp_path / "old", tmp_path / "new", report)
    found = layouts(report)
    assert found["s0"] == ((1, 1, 128, 64), (1, 4, 256, 256))
    assert found["labels/cells/s0"] == ((1, 128, 64), (4, 256, 256))
    assert found["s2"] == (1, 2, 64, 64)  # small
    assert kept(report)["tables/counts/X/data"] == "it has no axis z or y"


def test_chunks_without_a_rule_for_shards_of_these_axes(tmp_path: Path) -> None:
    """A rule for shards that is not for an array leaves it without shards, also if it gets other chunks."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
    add(group, "map", np.ones((600, 600)), ("y", "x"), (60, 60))
    add(group, "series", np.ones(300_000), ("t",), (3000,))
    report = convert(tmp_path / "old", tmp_path / "new", chunks={"x": 100}, shards={"t": 60_000})
    assert layouts(report) == {"map": (60, 100), "series": ((3000,), (60_000,))}
    check_elements(tmp_path / "old", tmp_path / "new", report)


def test_rules_by_paths_of_arrays(year: Path, tmp_path: Path) -> None:
    shapes = {"pr": (1, 36, 40), "t*": {"lon": 10}, "time": (50,)}
    report = convert(year, tmp_path / "new", chunks=shapes, shards={"pr": "1MiB", "time": (100,)})
    check_elements(year, tmp_path / "new", report)
    found = layouts(report)
    assert found["pr"][0] == (1, 36, 40) and found["pr"][1][0] % 64 == 0
    assert found["tas"] == (73, LATS, 10)  # there is a rule for shards, and it is for others
    assert found["time"] == (
        (50,),
        (100,),
    )  # a rule that names an array is for coordinates and small arrays, too
    assert found["time_bnds"] == (DAYS, 2)
    assert kept(report)["time_bnds"] == "it has no axis lon"
    assert kept(report)["orog"] == "no rule for chunks names it"


def test_last_rule_wins_and_one_is_for_all_others(year: Path, tmp_path: Path) -> None:
    shapes = {"*": (73, 18, 20), "p*": (73, 12, 20), "pr": (73, 9, 20)}
    found = layouts(convert(year, tmp_path / "new", chunks=shapes, dry_run=True))
    assert found["tas"][0] == (73, 18, 20)
    assert found["pr"][0] == (73, 9, 20)
    assert found["orog"] == (18, 20)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"chunks": {"tiem": 24}}, "chunks: expected the name of an axis, got 'tiem'; there are bnds, lat, lon, site, time"),
        ({"shards": {"time": 73, "depth": 1}}, "shards: expected the name of an axis, got 'depth'"),
        ({"chunks": {"orog": {"time": 5}}}, "chunks: expected the name of an axis, got 'time'; there are lat, lon"),
        ({"chunks": {"t2m": (1, 2, 3)}}, "expected the path of an array, or a pattern of paths, got 't2m'; there are areacella, crs"),
        ({"chunks": {"tas": (1, 2)}}, "chunks: expected 3 positive numbers"),
        ({"chunks": (1, 2, 3, 4)}, "chunks: expected"),
        ({"chunks": {"*": (1, 2, 3), "time": 4}}, "chunks: expected sizes by names of axes, or shapes"),
        ({"chunks": {}}, "chunks: expected sizes by names of axes, or shapes"),
        ({"chunks": {"time": 0}}, "chunks: expected positive sizes"),
        ({"shards": {"time": 100}}, "shards: expected a multiple of the inner chunk, 73, along the axis time of .*, got 100; choose 73 or 146, or inner"),
        ({"chunks": "auto"}, "chunks of 'auto': expected an access"),
        ({"shards": "auto", "access": "1,1,1,1"}, "shards of 'auto': expected an access"),
        ({"chunks": "1,b"}, "chunks: expected a shape such as"),
        ({"exclude": "@needed"}, "exclude: expected `only`"),
    ],
)  # fmt: skip
def test_rules_that_fit_nothing_are_refused(how: dict[str, Any], text: str, tmp_path: Path) -> None:
    climate(tmp_path / "year")
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        convert(tmp_path / "year", tmp_path / "new", **how)
    assert not (tmp_path / "new").exists()


def test_auto_takes_the_proposal_of_advise(tmp_path: Path) -> None:
    climate(tmp_path / "year")
    series, maps = "lat=1,lon=1", "time=1"
    found = {}
    for access, box in ((series, ":,1,1"), (maps, "1,:,:")):
        report = convert(
            tmp_path / "year", tmp_path / "new", chunks="auto", shards="auto", access=access, dry_run=True
        )
        found[access] = layouts(report)["tas"]
        (best, *_) = advise(WHOLE, "f4", [parse_access(box, WHOLE)]).proposals
        assert found[access] == (best.chunk_shape, best.shard_shape)
        assert "time_bnds" in kept(report) and "lat" in kept(report)
    assert found[series][0][0] > found[maps][0][0]
    mixed = convert(
        tmp_path / "year", tmp_path / "new", chunks={"tas": "auto"}, access=["1,:,:@9", series], dry_run=True
    )
    assert layouts(mixed)["pr"] == (73, LATS, LONS)
    only_shards = convert(tmp_path / "year", tmp_path / "new", shards="auto", access=maps, dry_run=True)
    assert layouts(only_shards)["tas"][0] == (73, LATS, LONS)


def test_box_that_is_larger_than_a_level_is_cut(tmp_path: Path) -> None:
    image(tmp_path / "old")
    how: dict[str, Any] = {"chunks": {"s*": "auto"}, "access": "1,1,200,200", "dry_run": True}
    found = layouts(convert(tmp_path / "old", tmp_path / "new", **how))
    assert found["s2"][0] == (1, 1, 64, 64)


@pytest.mark.parametrize("how", [{}, {"shards": 64 << 20}, {"codecs": ["zstd", "crc32c"]}], ids=str)
def test_small_arrays_beside_large_ones_have_no_shards(
    how: dict[str, Any], year: Path, tmp_path: Path
) -> None:
    """Each coordinate became a shard of one inner chunk, whose index is of no use."""
    report = convert(year, tmp_path / "new", **how, level="compare")
    check_elements(year, tmp_path / "new", report)
    sharded = {one.name for one in report.arrays if one.shard_shape}
    assert sharded == {"tas", "pr"}
    assert kept(report)["lat"].startswith("it is small")
    with quiet():
        codecs = zarr.open_array(tmp_path / "new/lat", mode="r").metadata.codecs
    assert ("Crc32c" in str(codecs)) == ("codecs" in how)
    if not how:
        only = convert(year, tmp_path / "alone", only="lat", exclude="@needed")
        assert only.arrays[0].shard_shape  # there is no larger one


def test_one_chunk_beside_arrays_of_several_has_no_shards(tmp_path: Path) -> None:
    """An array of one chunk beside larger ones gets no shards, also if all are small."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
    add(group, "heat", np.ones((8, 6, 4)), ("time", "lat", "lon"), (1, 6, 4))
    add(group, "lat", np.arange(6.0), ("lat",))
    for how in ({}, {"shards": 1 << 20}, {"shards": {"lat": 6}}):
        report = convert(tmp_path / "old", tmp_path / "new", **how, dry_run=True)
        assert {one.name for one in report.arrays if one.shard_shape} == {"heat"}
        assert kept(report).keys() == {"lat"}


def test_shards_that_do_not_fit_small_arrays(tmp_path: Path) -> None:
    """`--shards time=48` was refused because of `time_bnds`, of one chunk, which has no shards anyway."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
    add(group, "heat", np.ones((120, 6, 4)), ("time", "lat", "lon"), (24, 6, 4))
    add(group, "time_bnds", np.ones((120, 2)), ("time", "bnds"), (120, 2))
    for shards in ({"time": 48}, {"time": 48, "lat": 6}):
        report = convert(tmp_path / "old", tmp_path / "new", shards=shards, dry_run=True)
        assert layouts(report) == {"heat": ((24, 6, 4), (48, 6, 4)), "time_bnds": (120, 2)}
        assert kept(report)["time_bnds"].startswith("it is small")
    with pytest.raises(ValueError, match=r"along the axis time of .*heat, got 100; choose 96 or 120, or"):
        convert(tmp_path / "old", tmp_path / "new", shards={"time": 100})
    with pytest.raises(ValueError, match=r"along the axis time of .*time_bnds, got 48; choose 120, or"):
        convert(tmp_path / "old", tmp_path / "new", shards={"time_bnds": {"time": 48}})


@pytest.mark.parametrize("texts", [["64MiB", "tas:time=146"], ["tas:time=146", "p*:64MiB"]], ids=str)
def test_sizes_of_the_command_stand_beside_rules_for_arrays(
    texts: list[str], year: Path, tmp_path: Path
) -> None:
    """The first ones were refused, and the size of an array was taken for the name of an axis."""
    report = convert(year, tmp_path / "new", shards=parse_rules("shards", texts), dry_run=True)
    shapes = {array.name: (array.shape, array.shard_shape) for array in report.arrays}
    assert shapes["tas"][1][0] == 146 and shapes["pr"][1] >= shapes["pr"][0]


def test_texts_of_rules() -> None:
    assert parse_rules("chunks", ["4,5x6"]) == (4, 5, 6)
    assert parse_rules("chunks", ["time=24, lat=90"]) == {"time": 24, "lat": 90}
    assert parse_rules("chunks", ["time=24", "lat=90", "a/b:auto"]) == {"time": 24, "lat": 90, "a/b": "auto"}
    assert parse_rules("shards", ["64MiB", "tas:time=7", "p*:2,2"]) == {
        "*": 64 << 20,
        "tas": {"time": 7},
        "p*": (2, 2),
    }
    assert parse_rules("shards", ["64MiB"]) == 64 << 20
    assert parse_rules("shards", ["tas:64MiB"]) == {"tas": "64MiB"}
    assert parse_rules("shards", []) is None
    for texts in (
        ["time=0"],
        ["time="],
        ["=3"],
        ["time=2,3"],
        ["a=1,a=2"],
        ["1,2", "3,4"],
        ["a:1", "a:2"],
        ["time=b"],
    ):
        with pytest.raises(ValueError, match="chunks: expected"):
            parse_rules("chunks", texts)


def test_command_shows_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    climate(tmp_path / "year")
    words = [
        "convert", str(tmp_path / "year"), str(tmp_path / "new"), "--chunks", "time=5", "--chunks",
        "pr:1,36,40",
    ]  # fmt: skip
    words += ["--shards", "time=365", "--exclude", "*_bnds", "--exclude", "site"]
    assert run([*words, "--dry-run"]) == 0
    dry = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "new").exists()
    assert run(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    table = {line[0]: line[1:] for line in lines[lines.index([]) :] if line}
    assert table["tas"] == ["365x36x40", "73x36x40", "5x36x40", "in", "365x36x40"]
    assert table["pr"] == ["365x36x40", "73x36x40", "1x36x40", "in", "365x36x40"]
    assert table["lat"] == ["36", "36", "36", *["it", "has", "no", "axis", "time"]]
    assert table["orog"][-1] == "time" and "site" not in table
    assert [line for line in dry if line.startswith("tas ")] == [
        "tas        365x36x40  73x36x40  5x36x40 in 365x36x40"
    ]
    assert run([*words, "--dry-run", "--json", "--job", str(tmp_path / "x")]) != 0  # something is there now
    capsys.readouterr()
    assert run(["convert", str(tmp_path / "year"), str(tmp_path / "b"), "--dry-run", "--json"]) == 0
    arrays = {one["name"]: one for one in json.loads(capsys.readouterr().out)["arrays"]}
    assert arrays["tas"]["old_chunk_shape"] == [73, 36, 40] and arrays["tas"]["kept"] == ""
    assert arrays["lat"]["kept"].startswith("it is small")


def test_printed_report_has_the_table(tmp_path: Path) -> None:
    climate(tmp_path / "year")
    report = convert(tmp_path / "year", tmp_path / "new", shards={"time": 365}, only="pr", dry_run=True)
    lines = str(report).splitlines()
    assert "array      shape      before    after" in str(report)
    assert [line.split() for line in lines if line.startswith("pr ")] == [
        ["pr", "365x36x40", "73x36x40", "73x36x40", "in", "365x36x40"]
    ]
    assert len(lines) < 80 and max(map(len, lines)) < 200


def test_plan_has_rules_and_selection(tmp_path: Path) -> None:
    climate(tmp_path / "year")
    how: dict[str, Any] = {"chunks": {"time": 5}, "shards": {"time": 365}, "only": "tas"}
    plan_convert(tmp_path / "year", tmp_path / "parts", tmp_path / "plan.json", parts=2, **how)
    run_part(tmp_path / "plan.json", 1)
    assert run_part(tmp_path / "plan.json", 0).is_complete
    report = convert(tmp_path / "year", tmp_path / "new", job=tmp_path / "job.json", **how)
    check_elements(tmp_path / "year", tmp_path / "parts", report)
    again = convert(tmp_path / "year", tmp_path / "new", job=tmp_path / "job.json", resume=True, **how)
    assert again.is_complete and again.n_written == 0


@pytest.mark.parametrize(
    "fields", [[("a", "<i4"), ("s", "S3")], [("u", "<U2"), ("b", "?")], [("f", ">f8"), ("s", "S1")]]
)
def test_struct_without_a_fill_value_has_zarrs_default(fields: Any, tmp_path: Path) -> None:
    """zarr 3.1 reads the digit 0 in a field of text where Zarr v2 has the fill value null; the copy had an empty text."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        group.create_array("a", shape=(4,), chunks=(2,), dtype=np.dtype(fields))
        edit(tmp_path / "old/a/.zarray", fill_value=None)
        expected = zarr.open_array(tmp_path / "old/a", mode="r")[...]
        convert(tmp_path / "old", tmp_path / "new")
        actual = zarr.open_array(tmp_path / "new/a", mode="r")[...]
    assert (actual == expected).all()
    assert (shardcodec.open_array(tmp_path / "old/a")[:] == expected).all()
