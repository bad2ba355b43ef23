# test_unopened_shards.py - shards that a listing shows and no program can open
# SPDX-License-Identifier: MIT
"""A link to nothing in an archive of git-annex or DataLad, or a folder at the key of a shard, is a finding and stops a copy.

zarr reads both as the fill value, so `verify` found no damage, and `convert` made a complete copy of fill values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from spec_json import array_2022, hierarchy_2022

import shardcodec
from shardcodec import ShardFileError
from shardcodec.cli.app import run
from shardcodec.tools import compact, convert, inspect, repair, verify
from shardcodec.transformer import convert_2022, open_2022

HOW: dict[str, dict[str, Any]] = {
    "shards": {"shards": (20,)}, "plain": {"chunks": (20,)},
    "decoded by zarr": {"chunks": (20,), "compressors": [{"name": "numcodecs.bz2", "configuration": {"level": 1}}]},
}  # fmt: skip


def link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "annex/not-here")


def folder(path: Path) -> None:
    path.mkdir()


def folder_with_file(path: Path) -> None:
    path.mkdir()
    (path / "x").write_bytes(b"x")


def damaged(tmp_path: Path, spoil: Callable[[Path], None], layout: str = "shards") -> Path:
    """Make an array whose second shard cannot be opened."""
    with quiet():
        how = {"chunks": (5,), **HOW[layout]}
        array = zarr.create_array(tmp_path / "a.zarr", shape=(40,), dtype="int32", fill_value=0, **how)
        array[...] = 7
    shard = tmp_path / "a.zarr/c/1"
    shard.unlink()
    spoil(shard)
    return tmp_path / "a.zarr"


KINDS = pytest.mark.parametrize("spoil", [link, folder, folder_with_file])


@KINDS
@pytest.mark.parametrize("level", ["index", "checksum", "decode"])
def test_verify_finds_it(spoil: Any, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damaged(tmp_path, spoil)
    report = verify(path, level=level)
    (shard,) = [one for one in report.shards if one.n_findings]
    assert shard.shard.endswith("c/1") and shard.findings[0].kind == "unreadable"
    assert report.arrays[0].n_damaged == 1
    assert run(["verify", str(path)]) == 1
    assert "c/1" in capsys.readouterr().out


@KINDS
def test_inspect_names_it(spoil: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damaged(tmp_path, spoil)
    assert run(["inspect", str(path)]) == 1
    assert "c/1" in capsys.readouterr().out
    assert inspect(path).n_findings


@KINDS
@pytest.mark.parametrize("layout", HOW)
def test_convert_makes_no_copy_of_fill_values(
    spoil: Any, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged(tmp_path, spoil, layout)
    for more in ({}, {"chunks": (4,)}, {"only_arrays": True}):
        report = convert(path, tmp_path / f"b{len(more)}{'only_arrays' in more}.zarr", shards=(20,), **more)
        assert not report.is_complete and report.n_failed == 1 and report.n_written == 1
        assert "c/1" in report.failures[0].detail
    assert run(["convert", str(path), str(tmp_path / "c.zarr")]) == 3
    assert "c/1" in capsys.readouterr().out
    assert not (tmp_path / "c.zarr/zarr.json").exists()


@KINDS
def test_repair_and_compact_name_it(spoil: Any, tmp_path: Path) -> None:
    path = damaged(tmp_path, spoil)
    (shard,) = repair(path, dry_run=True).shards
    assert shard.shard.endswith("c/1") and shard.action == "unreadable"
    report = compact(path)
    assert report.n_failed == 1 and report.shards[0].shard.endswith("c/1")


@pytest.mark.parametrize("spoil", [link, folder])
def test_plain_array_is_not_copied_as_a_part(spoil: Any, tmp_path: Path) -> None:
    """`compact --to` copies the objects of an array without shards as they are; `repair --to` names the chunk."""
    path = damaged(tmp_path, spoil, "plain")
    report = compact(path, to=tmp_path / "b.zarr")
    assert report.n_failed == 1 and not report.is_complete and report.shards[0].shard.endswith("c/1")
    assert not (tmp_path / "b.zarr/zarr.json").exists()
    (chunk,) = repair(path, to=tmp_path / "c.zarr").shards
    assert chunk.shard.endswith("c/1") and chunk.action == "unreadable"
    assert not (tmp_path / "c.zarr/c/1").exists()


@pytest.mark.parametrize("work", [repair, compact])
def test_other_object_that_is_a_link_to_nothing_is_left_and_named(work: Any, tmp_path: Path) -> None:
    """One such link, in no array, ended a copy of a whole hierarchy; the copy goes on, and its report names the link."""
    with quiet():
        zarr.create_group(tmp_path / "a.zarr")
    (tmp_path / "a.zarr/table.parquet").symlink_to("../annex/not-here")
    for report in (
        work(tmp_path / "a.zarr", to=tmp_path / "b.zarr"),
        convert(tmp_path / "a.zarr", tmp_path / "c.zarr"),
    ):
        assert report.is_complete and report.others.n_unreadable == 1
        assert report.others.left[0].name == "table.parquet"
    assert not (tmp_path / "b.zarr/table.parquet").is_symlink()
    assert run([work.__name__, str(tmp_path / "a.zarr"), "--to", str(tmp_path / "d.zarr")]) == 1


@pytest.mark.parametrize("layout", ["shards", "plain"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("spoil", [link, folder])
def test_reads_through_zarr_raise_where_the_engine_opens_it(
    spoil: Any, strict: bool, layout: str, tmp_path: Path
) -> None:
    path = damaged(tmp_path, spoil, layout)
    attached = shardcodec.attach(zarr.open_array(path, mode="r"), strict=strict)
    with pytest.raises(ShardFileError, match="expected a regular file, got a"):
        attached[...]
    with pytest.raises(ShardFileError, match="expected a regular file, got a"):
        shardcodec.open_array(path)[25]
    assert (np.asarray(attached[:20]) == 7).all()


@pytest.mark.parametrize("is_sharded", [True, False])
def test_conversion_of_the_2022_format_makes_no_copy_of_fill_values(is_sharded: bool, tmp_path: Path) -> None:
    document = array_2022() | ({} if is_sharded else {"storage_transformers": []})
    for folder_name in ("meta", "data"):
        (tmp_path / "old" / folder_name).mkdir(parents=True)
    (tmp_path / "old/zarr.json").write_text(json.dumps(hierarchy_2022()))
    (tmp_path / "old/meta/root.array.json").write_text(json.dumps(document))
    with quiet():
        open_2022(tmp_path / "old", mode="r+")[...] = 5
    chunk = tmp_path / "old/data/root/c1/0"
    chunk.unlink()
    chunk.symlink_to("not-here")
    with pytest.raises(ShardFileError, match="link to a missing file"):
        convert_2022(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new/zarr.json").exists()
    report = convert(tmp_path / "old", tmp_path / "b.zarr")
    assert report.n_failed and not report.is_complete
