# test_unopened_shards.py - shards that a listing shows and no program can open
# SPDX-License-Identifier: MIT
"""A link to nothing in an archive of git-annex or DataLad, or a folder at the key of a shard, is a finding and stops a copy.

zarr reads both as the fill value, so `verify` found no damage, and `convert` made a complete copy of fill values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from spec_json import array_2022
from tool_sources import write_2022

import shardcodec
from shardcodec import ShardFileError
from shardcodec.cli.app import run
from shardcodec.tools import compact, convert, repair, verify
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
def test_each_tool_names_it(spoil: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damaged(tmp_path, spoil)
    for level in ("index", "checksum", "decode"):
        report = verify(path, level=level)
        (shard,) = [one for one in report.shards if one.n_findings]
        assert shard.shard.endswith("c/1") and shard.findings[0].kind == "unreadable"
        assert report.arrays[0].n_damaged == 1
    for command in ("verify", "inspect"):
        assert run([command, str(path)]) == 1
        assert "c/1" in capsys.readouterr().out
    (repaired,) = repair(path, dry_run=True).shards
    assert repaired.shard.endswith("c/1") and repaired.action == "unreadable"
    packed = compact(path)
    assert packed.n_failed == 1 and packed.shards[0].shard.endswith("c/1")


@KINDS
@pytest.mark.parametrize("layout", HOW)
def test_convert_makes_no_copy_of_fill_values(
    spoil: Any, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged(tmp_path, spoil, layout)
    for more in ({}, {"chunks": (4,)}, {"exclude": "@objects"}):
        report = convert(path, tmp_path / f"b{len(more)}{'exclude' in more}.zarr", shards=(20,), **more)
        assert not report.is_complete and report.n_failed == 1 and report.n_written == 1
        assert "c/1" in report.failures[0].detail
    assert run(["convert", str(path), str(tmp_path / "c.zarr")]) == 3
    assert "c/1" in capsys.readouterr().out
    assert not (tmp_path / "c.zarr/zarr.json").exists()


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
    write_2022(tmp_path / "old", {"": document}, {})
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
