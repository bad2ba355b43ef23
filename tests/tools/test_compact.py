# test_compact.py - pack and order shards
# SPDX-License-Identifier: MIT
"""`compact` removes dead bytes, orders inner chunks and adds index checksums; the elements stay."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import elements
from helpers import KINDS_OF_STORE, bytes_of_files, create, quiet, shard_path, store_of
from spec_json import LITTLE
from tool_sources import CONTENT, write_array

import shardcodec
from shardcodec import ShardSpec
from shardcodec.cli.app import run
from shardcodec.options import resolve
from shardcodec.storage import file_locks
from shardcodec.tools import compact, inspect, verify


def loose(store: Any) -> Any:
    """Make an array with dead bytes in its first shard."""
    array = create(store)
    array[...] = CONTENT + 1
    with shardcodec.open_shard(store, "c/0/0", spec_of(array), mode="r+", compact=False) as shard:
        shard.write_encoded([(0, 0)], [CONTENT[:4, :3].tobytes()], keep_user_bytes=False)
        shard.erase([(1, 1)])
    return array


def spec_of(array: Any) -> ShardSpec:
    return ShardSpec.from_metadata(array.metadata.to_dict())


def stored(target: Any) -> Any:
    return inspect(target).arrays[0].stored


def test_new_hierarchy_without_a_shard_that_failed_has_no_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looked complete: the elements of the damaged shard were read as fill value."""
    loose(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr/c/0/1"
    path.write_bytes(path.read_bytes()[:-1])
    report = compact(tmp_path / "a.zarr", to=tmp_path / "b.zarr")
    assert report.n_failed == 1 and not report.is_complete
    assert not (tmp_path / "b.zarr/zarr.json").exists() and (tmp_path / "b.zarr/c/0/0").exists()
    assert run(["compact", str(tmp_path / "a.zarr"), "--to", str(tmp_path / "c.zarr")]) == 1
    assert "no metadata were written" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
@pytest.mark.parametrize("order", [None, "lexicographic"])
def test_dead_bytes_are_removed_in_any_store(kind: str, order: str | None, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path / "a.zarr")
    loose(store)
    before = elements(store)
    dead = stored(store).dead_nbytes
    assert dead > 0
    report = compact(store, min_dead=0, order=order)
    assert report.n_packed == (1 if order is None else 4) and report.freed_nbytes >= dead
    after = stored(store)
    assert after.dead_nbytes == 0 and (elements(store) == before).all()
    if order is not None:
        assert after.orders.get("morton", 0) == 0
    assert compact(store, min_dead=0, order=order).n_packed == 0
    assert verify(store, level="decode").n_findings == 0


def test_shards_with_few_dead_bytes_stay(tmp_path: Path) -> None:
    loose(tmp_path / "a.zarr")
    before = bytes_of_files(tmp_path)
    assert compact(tmp_path / "a.zarr", min_dead=0.9).n_packed == 0
    assert bytes_of_files(tmp_path) == before


@pytest.mark.parametrize(
    ("how", "n"),
    [({"min_dead": 0}, 1), ({"order": "colexicographic"}, 4)],
)
def test_dry_run_changes_nothing(tmp_path: Path, how: dict[str, Any], n: int) -> None:
    loose(tmp_path / "a.zarr")
    before = bytes_of_files(tmp_path)
    report = compact(tmp_path / "a.zarr", dry_run=True, **how)
    assert report.dry_run and report.n_packed == n and bytes_of_files(tmp_path) == before


def test_new_hierarchy_has_all_shards(tmp_path: Path) -> None:
    loose(tmp_path / "a.zarr")
    before = bytes_of_files(tmp_path / "a.zarr")
    report = compact(tmp_path / "a.zarr", min_dead=0, to=tmp_path / "b.zarr")
    assert report.n_packed == 1 and bytes_of_files(tmp_path / "a.zarr") == before
    assert stored(tmp_path / "b.zarr").dead_nbytes == 0
    assert (elements(tmp_path / "b.zarr") == elements(tmp_path / "a.zarr")).all()
    (one,) = report.shards
    assert one.new_nbytes == (tmp_path / "b.zarr/c/0/0").stat().st_size


@pytest.mark.parametrize("location", ["start", "end"])
def test_index_checksum_is_added_in_a_new_array(tmp_path: Path, location: Any) -> None:
    spec = ShardSpec((8, 12), (4, 3), "int32", -1, [LITTLE], [LITTLE], location)
    write_array(tmp_path / "a.zarr", spec, (16, 24), attributes={"a": 1})
    with quiet():
        zarr.open_array(tmp_path / "a.zarr")[...] = CONTENT
    assert (
        compact(tmp_path / "a.zarr/c/0/0", to=tmp_path / "shard").n_packed == 0
    )  # its metadata do not change
    assert compact(tmp_path / "a.zarr").n_packed == 0
    assert compact(tmp_path / "a.zarr", to=tmp_path / "b.zarr", dry_run=True).n_packed == 4
    report = compact(tmp_path / "a.zarr", to=tmp_path / "b.zarr")
    assert report.n_packed == 4
    assert stored(tmp_path / "a.zarr").n_without_index_checksum == 4
    assert stored(tmp_path / "b.zarr").n_without_index_checksum == 0
    assert (elements(tmp_path / "b.zarr") == CONTENT).all()
    with quiet():
        new = zarr.open_array(tmp_path / "b.zarr", mode="r")
    assert dict(new.attrs) == {"a": 1}
    assert verify(tmp_path / "b.zarr", level="decode", against=tmp_path / "a.zarr").n_findings == 0


def test_damaged_shard_is_not_changed(tmp_path: Path) -> None:
    array = loose(tmp_path / "a.zarr")
    path = shard_path(array)
    path.write_bytes(path.read_bytes()[:-1])
    before = bytes_of_files(tmp_path)
    report = compact(tmp_path / "a.zarr", min_dead=0)
    assert (report.n_packed, report.n_failed) == (0, 1) and "shardcodec verify" in report.shards[0].detail
    assert bytes_of_files(tmp_path) == before


@pytest.mark.parametrize("order", [None, "colexicographic"])
def test_header_footer_and_alignment_stay(tmp_path: Path, order: str | None) -> None:
    spec, path = ShardSpec((8,), (2,), "uint8", 0, ["bytes"]), tmp_path / "shard"
    with shardcodec.ShardWriter(path, spec, header=b"head", footer=b"foot", alignment=64) as writer:
        for i in (2, 0, 1, 3):
            writer.write_chunk((i,), np.full(2, i + 1, np.uint8))
    with shardcodec.open_shard(path, None, spec, mode="r+") as shard:
        shard.erase([(1,)], keep_user_bytes=True)
    assert compact(path, spec=spec, min_dead=0, order=order).n_failed == 0
    with shardcodec.open_shard(path, None, spec) as shard:
        assert (shard.header, shard.footer, shard.alignment) == (b"head", b"foot", 64)
        assert shard.read_region().tolist() == [1, 1, 0, 0, 3, 3, 4, 4]
    if order is not None:
        assert inspect(path, spec=spec).arrays[0].stored.orders == {"any": 1}  # type: ignore[union-attr]


def test_writer_between_read_and_replacement_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = loose(tmp_path / "a.zarr")
    module = importlib.import_module("shardcodec.tools.compact")
    original = module.copy_chunks

    def copy(*arguments: Any) -> None:
        original(*arguments)
        array[...] = 5

    monkeypatch.setattr(module, "copy_chunks", copy)
    report = compact(tmp_path / "a.zarr/c/0/0", order="colexicographic")
    assert report.n_failed == 1 and "another writer has changed it" in report.shards[0].detail
    assert (elements(tmp_path / "a.zarr") == 5).all()


def test_shard_that_is_deleted_meanwhile_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compact` had seen the shard, and stored one without inner chunks after another writer had deleted it."""
    loose(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr/c/0/0"
    module = importlib.import_module("shardcodec.access.shard")
    monkeypatch.setattr(
        module, "flush_buffered", lambda place: path.unlink(missing_ok=True)
    )  # before the lock is taken
    compact(tmp_path / "a.zarr", min_dead=0.0)
    assert not path.exists()


@pytest.mark.parametrize("threads", [1, 3])
def test_signal_handler_that_compacts_a_shard_gets_its_error_at_once(tmp_path: Path, threads: int) -> None:
    """It had interrupted a write into the shard, and its threads waited until `lock_timeout` for the lock of this write."""
    loose(tmp_path / "a.zarr")
    path = str(tmp_path / "a.zarr/c/0/0")
    begin = time.monotonic()
    with file_locks.hold([path], resolve()):
        report = compact(tmp_path / "a.zarr", threads=threads, order="colexicographic")
    assert time.monotonic() - begin < resolve().lock_timeout / 2
    assert report.n_failed == 1 and "from a signal handler" in report.shards[0].detail


@pytest.mark.parametrize(
    ("how", "text"),
    [({"min_dead": 2}, "min_dead: expected a share"), ({"order": "hilbert"}, "order: expected one of")],
)
def test_wrong_arguments(tmp_path: Path, how: dict[str, Any], text: str) -> None:
    loose(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=text):
        compact(tmp_path / "a.zarr", **how)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loose(tmp_path / "a.zarr")
    path = str(tmp_path / "a.zarr")
    assert run(["compact", path, "--min-dead", "1%", "--dry-run"]) == 0
    assert "1 would be packed, 0 failed" in capsys.readouterr().out
    (tmp_path / "a.zarr/c/0/0").write_bytes(b"torn")
    assert run(["compact", path]) == 1
    assert "not packed: the index or an entry is damaged" in capsys.readouterr().out
