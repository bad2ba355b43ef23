# test_durable_documents.py - with durability="fsync": documents and folders are synced before a write is acknowledged
# SPDX-License-Identifier: MIT
"""zarr does not sync what it writes: after a power cut a new array had a zarr.json of 0 bytes above durable shards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, ours

import shardcodec
from shardcodec import ShardSpec, ShardWriter, native
from shardcodec.storage import new_object, synced_documents
from shardcodec.tools import convert


class Syncs(list[str]):
    """The paths that were synced since the last look, below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{os.path.realpath(folder)}/"

    def note(self, path: str) -> None:
        self.append(path)

    def take(self) -> set[str]:
        found = {path.removeprefix(self._folder) for path in self if path.startswith(self._folder)}
        assert len(found) == sum(path.startswith(self._folder) for path in self)  # each of them once
        self.clear()
        return found


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    found = Syncs(tmp_path)
    monkeypatch.setattr(synced_documents, "native", engine_with(found.note))
    return found


def engine_with(sync_path: Callable[[str], None]) -> Any:
    """Return the module `native` with another function that syncs a path."""
    engine = SimpleNamespace(**vars(native.load()) | {"sync_path": sync_path})
    return SimpleNamespace(load=lambda: engine)


def spec_of(array: Any) -> ShardSpec:
    return ShardSpec.from_metadata(array.metadata.to_dict())


def handle(array: Any) -> None:
    with shardcodec.open_shard(array.store_path, "c/0/0", spec_of(array), mode="r+") as shard:
        shard.write_chunks([(0, 0)], np.ones((1, 4, 3), np.int32))


def writer(array: Any) -> None:
    with ShardWriter(array.store.root / array.path / "c/0/0", spec_of(array)) as new:
        new.write_chunk((0, 0), np.ones((4, 3), np.int32))


WRITES: dict[str, Callable[[Any], Any]] = {
    "part": lambda array: array.__setitem__((1, 1), 1),
    "whole": lambda array: array.__setitem__(slice(None), 1),
    "attached": lambda array: shardcodec.attach(array).__setitem__((1, 1), 1),
    "zarr": lambda array: array.__setitem__(([1, 2], [1, 2]), 1),
    "handle": handle,
    "writer": writer,
}


@pytest.mark.parametrize("how", WRITES)
def test_documents_are_synced_up_to_the_root(tmp_path: Path, syncs: Syncs, how: str) -> None:
    group = zarr.create_group(tmp_path / "root", attributes={"a": 1})
    array = create(group.store, name="group/array")
    assert not syncs
    with shardcodec.options(durability="fsync"):
        WRITES[how](array)
    documents = {"root/zarr.json", "root/group/zarr.json", "root/group/array/zarr.json"}
    folders = {"root", "root/group", "root/group/array", "root/group/array/c"}
    assert syncs.take() == documents | folders


def test_a_document_is_synced_again_when_it_has_changed(tmp_path: Path, syncs: Syncs) -> None:
    group = zarr.create_group(tmp_path / "root")
    array = create(group.store, name="array")
    with shardcodec.options(durability="fsync"):
        array[1, 1] = 1
        syncs.clear()
        array[1, 2] = 1
        array[1] = 1
        assert not syncs
        array.attrs["units"] = "K"
        array[1, 2] = 2
        assert syncs.take() == {"root/array/zarr.json", "root/array"}
        array.resize((40, 24))
        array[39, 1] = 1  # in a new folder
        assert syncs.take() == {"root/array/zarr.json", "root/array", "root/array/c"}
        group.attrs["title"] = "x"
        array[1, 2] = 3
        assert syncs.take() == {"root/zarr.json", "root"}
        create(group.store, name="array", overwrite=True)[1, 1] = 1
        assert {"root", "root/array", "root/array/zarr.json", "root/array/c"} == syncs.take()


def test_new_folder_with_the_inode_of_a_removed_one_is_synced(
    tmp_path: Path, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ext4 gives the inode of a removed folder to the next one, so device and inode took the new folder for the old one."""
    stat = os.stat

    def same_inode(path: Any, *arguments: Any, **keywords: Any) -> os.stat_result:
        found = stat(path, *arguments, **keywords)
        if os.fspath(path) == str(tmp_path / "root/array"):
            return os.stat_result((found.st_mode, 77, *found[2:]))
        return found

    monkeypatch.setattr(synced_documents.os, "stat", same_inode)
    group = zarr.create_group(tmp_path / "root")
    with shardcodec.options(durability="fsync"):
        create(group.store, name="array")[1, 1] = 1
        syncs.clear()
        create(group.store, name="array", overwrite=True)[1, 1] = 1
    assert {"root", "root/array", "root/array/zarr.json", "root/array/c"} == syncs.take()


def test_documents_of_format_2_are_synced(tmp_path: Path, syncs: Syncs) -> None:
    group = zarr.create_group(tmp_path / "root", zarr_format=2, attributes={"a": 1})
    array = create(group.store, name="array", zarr_format=2, shards=None, attributes={"b": 1})
    zarr.consolidate_metadata(group.store, zarr_format=2)
    with shardcodec.options(durability="fsync"):
        array[:] = 1
    documents = {
        "root/.zgroup",
        "root/.zattrs",
        "root/.zmetadata",
        "root/array/.zarray",
        "root/array/.zattrs",
    }
    assert syncs.take() == {*documents, "root", "root/array"}


def test_nothing_is_synced_without_the_option(tmp_path: Path, syncs: Syncs) -> None:
    array = create(tmp_path / "array")
    array[1, 1] = 1
    array[:] = 1
    with shardcodec.group_writes():
        array[1, 1] = 2
    assert not syncs


def test_a_failed_sync_is_an_error_and_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = create(tmp_path / "array")
    calls: list[str] = []

    def fail(path: str) -> None:
        calls.append(path)
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(synced_documents, "native", engine_with(fail))
    for _ in range(2):
        with shardcodec.options(durability="fsync"), pytest.raises(OSError, match="Input"):
            array[1, 1] = 1
    assert calls == [f"{os.path.realpath(tmp_path)}/array/zarr.json"] * 2


def test_folders_of_other_users_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = create(tmp_path / "array")
    real = synced_documents.native.load().sync_path

    def sync(path: str) -> None:
        if not path.startswith(str(tmp_path / "array")):
            raise PermissionError(13, "Permission denied", path)
        real(path)

    monkeypatch.setattr(synced_documents, "native", engine_with(sync))
    with shardcodec.options(durability="fsync"):
        array[1, 1] = 1
    assert ours(tmp_path / "array")[1, 1] == 1


@pytest.mark.parametrize("above", [False, True])
def test_documents_of_other_users_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: bool
) -> None:
    """Each durable write below a document without permission was stored, and reported as failed; `repair` in place ended."""
    zarr.create_group(tmp_path / "g")
    array = create(tmp_path / "g/a")
    refused = f"{os.path.realpath(tmp_path)}/g/{'' if above else 'a/'}zarr.json"

    asked = []

    def sync_path(path: str) -> None:
        asked.append(path)
        if path == refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(synced_documents, "native", engine_with(sync_path))
    with shardcodec.options(durability="fsync"):
        array[...] = 5
    assert (array[...] == 5).all() and refused in asked


@pytest.mark.parametrize("durability", ["rename", "fsync"])
def test_documents_of_a_conversion_and_all_its_folders_are_synced(
    tmp_path: Path, syncs: Syncs, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents were synced twice, when they were stored and once more by their names: two round trips for each array."""
    create(tmp_path / "old", name="group/array")[:] = 1
    put_file = new_object.put_file

    def put(path: str, *arguments: Any, sync: bool, **how: Any) -> bool:
        is_stored = put_file(path, *arguments, sync=sync, **how)
        if sync:  # on disk when it has its name
            syncs.note(os.path.realpath(path))
        return is_stored

    monkeypatch.setattr(new_object, "put_file", put)
    with shardcodec.options(durability=durability):
        convert(tmp_path / "old", tmp_path / "new", shards=(16, 24))
    below = [path.removeprefix(f"{os.path.realpath(tmp_path)}/") for path in syncs]
    documents = {"new/zarr.json", "new/group/zarr.json", "new/group/array/zarr.json"}
    assert {"new", "new/group", *documents} <= set(below)
    assert [below.count(path) for path in documents] == [1, 1, 1] and below[-1] == "new/zarr.json"
    assert ("new/group/array/c" in below) == (durability == "fsync")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_document_that_is_stored_durably_is_not_synced_once_more(
    tmp_path: Path, syncs: Syncs, zarr_format: int
) -> None:
    """Those above it, and the other one of Zarr v2 beside it, may be those of zarr, which syncs none."""
    group = zarr.create_group(tmp_path / "root", zarr_format=zarr_format)
    how: dict[str, Any] = {"shards": None, "attributes": {"n": 1}} if zarr_format == 2 else {}
    create(group.store, name="array", zarr_format=zarr_format, **how)
    with shardcodec.options(durability="fsync"):
        shardcodec.open_array(tmp_path / "root/array", mode="r+").attrs["unit"] = "K"
    of_v2 = {"root/.zgroup", "root/.zattrs", "root/array/.zarray", "root/array"}
    assert syncs.take() == {"root", *(of_v2 if zarr_format == 2 else ["root/zarr.json"])}
