# test_lock_files.py - the tools on arrays with a lock file, and with shards that have only a name of NFS
# SPDX-License-Identifier: MIT
"""On NFS an array has a lock file, `verify` took it for a foreign file, and `convert` left more of them between the new shards. A shard
whose writer had died half way through its replacement was missing, and `verify` found nothing.

The folders are on a local file system that is taken for NFS.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import on_pipeline

from shardcodec import _native, tools
from shardcodec.storage import absent, file_systems
from shardcodec.storage.staging import lock_folder
from shardcodec.tools.findings import FindingKind

SILLY = ".nfs00000000000a4c1200000003"


@pytest.fixture(autouse=True)
def leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each file system for NFS."""
    monkeypatch.setattr(file_systems, "LOCAL_TYPES", frozenset())
    monkeypatch.setattr(file_systems, "network_type", lambda folder: "nfs4")
    monkeypatch.setattr(absent, "SECONDS", 0.2)


@pytest.fixture(params=[3, 2])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a group with the array `x` of four chunks or shards, updated once."""
    root = zarr.open_group(tmp_path / "g", mode="w", zarr_format=request.param)
    more: dict[str, Any] = {"shards": (4, 4), "chunks": (2, 2)} if request.param == 3 else {"chunks": (4, 4)}
    array = root.create_array("x", shape=(8, 8), dtype="i4", **more)
    on_pipeline(array)[...] = np.arange(64).reshape(8, 8)
    assert request.param == 2 or (tmp_path / "g/x/.shardcodec/lock").exists()
    return tmp_path / "g"


def _shard(group: Path) -> Path:
    return next(path for path in (group / "x/c/1/1", group / "x/1.1") if path.exists())


def _findings(group: Path) -> list[Any]:
    return [one for shard in tools.verify(group).shards for one in shard.findings]


def _own_names(folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.name in (".shardcodec", "lock")
    ]


def test_lock_file_is_no_foreign_file(group: Path) -> None:
    assert _findings(group) == []
    assert [array.foreign for array in tools.inspect(group).arrays] == [()]


def test_lock_file_is_no_member_of_the_group(group: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        made = zarr.consolidate_metadata(str(group))
    assert made.metadata.consolidated_metadata is not None
    assert list(made.metadata.consolidated_metadata.metadata) == ["x"]
    assert [name for name, _ in zarr.open_group(group).members(max_depth=None)] == ["x"]


def test_new_hierarchies_have_no_lock_file(group: Path, tmp_path: Path) -> None:
    tools.convert(group, tmp_path / "new")
    assert _own_names(tmp_path / "new") == []
    tools.repair(group, to=tmp_path / "repaired")
    assert _own_names(tmp_path / "repaired") == []


def test_missing_name_is_found_and_given_again(group: Path, tmp_path: Path) -> None:
    shard = _shard(group)
    data = shard.read_bytes()
    shard.rename(shard.with_name(SILLY))
    found = _findings(group)
    assert [(one.kind, one.recoverable) for one in found] == [(FindingKind.MISSING_NAME, True)]
    assert SILLY in found[0].shard and str(shard) in found[0].detail
    assert tools.repair(group, dry_run=True).n_damaged == 1 and not shard.exists()
    tools.repair(group, to=tmp_path / "new")
    assert _shard(tmp_path / "new").read_bytes() == data
    assert tools.repair(group, backup=tmp_path / "backup").n_restored == 1
    assert shard.read_bytes() == data
    assert [one.kind for one in _findings(group)] == [FindingKind.FOREIGN_FILE]


def test_second_name_is_found_and_its_shard_gets_its_name_again(group: Path, tmp_path: Path) -> None:
    """A node was cut off while it replaced the shard, and its client has removed the name (csrc/io/sc_kept.h)."""
    shard = _shard(group)
    data = shard.read_bytes()
    folder = lock_folder(str(shard))
    number = _native.shard_number(folder, str(shard))
    second = Path(folder, f"kept-1-.shardcodec-{number:016x}-{1:016x}-1-1-0")
    os.link(shard, second)
    assert _findings(group) == []
    shard.unlink()
    shard.with_name(shard.name[:-1] + "0").unlink()  # this one was never stored
    found = _findings(group)
    assert [(one.kind, one.recoverable) for one in found] == [(FindingKind.MISSING_NAME, True)]
    assert second.name in found[0].shard and str(shard) in found[0].detail
    tools.repair(group, to=tmp_path / "new")
    assert _shard(tmp_path / "new").read_bytes() == data
    assert tools.repair(group, backup=tmp_path / "backup").n_restored == 1
    assert shard.read_bytes() == data and _findings(group) == []


def test_name_that_one_of_several_shards_may_have_lost_is_not_guessed(group: Path, tmp_path: Path) -> None:
    shard = _shard(group)
    other = shard.with_name(shard.name[:-1] + "0")
    shard.rename(shard.with_name(SILLY))
    other.unlink()
    assert [(one.kind, one.recoverable) for one in _findings(group)] == [(FindingKind.MISSING_NAME, False)]
    tools.repair(group, backup=tmp_path / "backup")
    assert not os.path.lexists(shard) and not os.path.lexists(other)


def test_old_state_that_is_still_open_is_no_damage(group: Path) -> None:
    shard = _shard(group)
    shard.with_name(SILLY).write_bytes(b"old")
    assert [one.kind for one in _findings(group)] == [FindingKind.FOREIGN_FILE]
