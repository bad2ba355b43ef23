# test_unread_objects.py - one object or folder that cannot be read does not end a tool
# SPDX-License-Identifier: MIT
"""A user verified a whole disk as another user than root: `lost+found` ended it, and a damaged shard was not found.

An archive tier refused one object (403), whose error is not an `OSError` but one of obstore; a socket of an editor and a link to
nothing lay beside the arrays. Each tool goes on, names what it could not read, and `repair` takes it from a copy.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ForbiddingStore, as_user, python_environment, quiet
from tool_sources import copies
from zarr.storage import MemoryStore, WrapperStore

import shardcodec
from shardcodec.cli.app import run
from shardcodec.errors import as_os_error
from shardcodec.tools import compact, convert, inspect, repair, verify

DAMAGED = "a/c/1"


def hierarchy(path: Path, *, zarr_format: Any = 3) -> Path:
    """Make a group with two arrays, one of them in a group; `a` has shards, or in Zarr v2 chunks."""
    how: dict[str, Any] = {"shards": (8,)} if zarr_format == 3 else {}
    with quiet():
        group = zarr.create_group(path, zarr_format=zarr_format)
        for name in ("a", "inner/b"):
            array = group.create_array(
                name, shape=(32,), chunks=(8,) if not how else (2,), dtype="int32", **how
            )
            array[...] = np.arange(1, 33)
    return path


def cut(path: Path) -> None:
    """Damage a shard."""
    path.write_bytes(path.read_bytes()[:-5])
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["lost+found", "inner/lost+found", "a/lost+found"])
def test_folder_without_permission_is_named_and_left(name: str, zarr_format: int, tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old", zarr_format=zarr_format)
    shard = path / (DAMAGED if zarr_format == 3 else "a/1")
    cut(shard)
    (path / name).mkdir(mode=0)

    def work() -> None:
        report = verify(path)
        named = [one for shard in report.shards for one in shard.findings if "lost+found" in one.shard]
        assert [one.kind for one in named] == ["unreadable"], report.shards
        assert any(one.shard == str(shard) for one in report.shards)
        inspect(path)
        assert run(["inspect", str(path)]) == (1 if zarr_format == 3 or not name.startswith("a") else 0)
        fixed = repair(path, to=tmp_path / "fixed")
        assert fixed.n_damaged == 1 and fixed.n_unreadable
        shard.unlink()
        for _, done in copies(path, tmp_path):
            assert done.left.n_unreadable
            assert "lost+found" in str(done.left_arrays) + str(done.others.left)
        assert run(["convert", str(path), str(tmp_path / "cli")]) == 1

    as_user(work)


def test_shards_in_a_closed_folder_come_from_the_copy(tmp_path: Path) -> None:
    """The listing shows the folder and not its shards; none of them may be taken for missing."""
    path, copy = hierarchy(tmp_path / "old"), hierarchy(tmp_path / "copy")
    (path / "a/c").chmod(0)

    def work() -> None:
        assert verify(path).arrays[0].n_damaged == 4
        assert inspect(path).arrays[0].stored.n_damaged == 4
        report = repair(path, to=tmp_path / "new", copy=copy)
        assert report.n_restored == 4 and not report.n_lost_chunks
        assert compact(path, to=tmp_path / "packed").n_failed == 4
        assert convert(path, tmp_path / "converted").n_failed

    try:
        as_user(work)
    finally:
        (path / "a/c").chmod(0o755)
    assert (zarr.open_array(tmp_path / "new/a")[...] == np.arange(1, 33)).all()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # its name has 100 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("spoil", [fifo, unix_socket, to_nothing, to_itself])
@pytest.mark.parametrize("name", ["x.json", "inner/x", "a/x"])
def test_foreign_object_without_bytes_ends_no_tool(spoil: Any, name: str, tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    spoil(path / name)
    cut(path / DAMAGED)
    report = verify(path)
    assert {one.shard for one in report.shards if one.n_findings} == {str(path / DAMAGED), str(path / name)}
    assert inspect(path).n_findings == 1
    assert repair(path, to=tmp_path / "fixed").n_damaged == 1
    (path / DAMAGED).unlink()
    for new, done in copies(path, tmp_path):
        assert [one.name for one in done.others.left] == [name] and not os.path.lexists(new / name)
        assert done.others.n_unreadable == 1 or spoil is not to_nothing
    if spoil is to_nothing:
        for command in ("repair", "compact"):
            assert run([command, str(path), "--to", str(tmp_path / f"by {command}")]) == 1


def test_errors_of_clients_of_stores_become_os_errors() -> None:
    """Each client has classes of its own; nine places of the tools caught `OSError` alone."""

    class RefusedError(Exception):
        pass

    RefusedError.__module__ = "icechunk.session"
    with (
        pytest.raises(OSError, match=r"c/0: RefusedError: access denied$") as caught,
        as_os_error(str, "c/0"),
    ):
        raise RefusedError("access denied\n\nDebug source:\nmany lines")
    assert isinstance(caught.value.__cause__, RefusedError)
    for error in (
        KeyError("a"),
        ValueError("a"),
        FileNotFoundError("a"),
        zarr.errors.NodeTypeValidationError("a"),
    ):
        with pytest.raises(type(error)), as_os_error():
            raise error


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("group", ["", "inner"])
@pytest.mark.parametrize("text", ['{"zarr_for', "[]", '{"zarr_format": 3}', None])
def test_damaged_or_refused_document_of_a_group_hides_no_array(
    text: str | None, group: str, zarr_format: int, tmp_path: Path
) -> None:
    """That of the root ended each tool; that of another group hid its arrays, and a damaged shard in it was not found.

    Later `convert` named two members that stood for it in memory, as if the document had them. It opened that of the root once more,
    for the format of 2022, and raised the error of the system if it was refused.
    """
    path = hierarchy(tmp_path / "old", zarr_format=zarr_format)
    document = path / group / ("zarr.json" if zarr_format == 3 else ".zgroup")
    document.chmod(0) if text is None else document.write_text(text)
    shard = path / ("inner/b/c/1" if zarr_format == 3 else "inner/b/1")
    stored = shard.read_bytes()

    def work() -> None:
        cut(shard)
        report = verify(path)
        assert {one.array for one in report.shards if one.n_findings} == {group, "inner/b"}
        assert {one.name for one in inspect(path).arrays} == {"a", group, "inner/b"}
        assert repair(path, dry_run=True).n_damaged == 1
        shard.write_bytes(stored)
        for new, done in copies(path, tmp_path):
            assert [one.name for one in done.left_arrays if one.is_unreadable] == [group]
            assert not done.notes
            assert (zarr.open_array(new / "inner/b", mode="r")[...] == np.arange(1, 33)).all()

    as_user(work)


def test_shard_of_the_copy_that_cannot_be_read_is_lost_and_ends_no_repair(tmp_path: Path) -> None:
    path, copy = hierarchy(tmp_path / "old"), hierarchy(tmp_path / "copy")
    for name in (DAMAGED, "inner/b/c/2"):
        (path / name).write_bytes(b"nothing")
        os.utime(path / name, (1e9, 1e9))
    (copy / DAMAGED).chmod(0)

    def work() -> None:
        report = repair(path, to=tmp_path / "new", copy=copy)
        assert (report.n_damaged, report.n_restored, report.n_lost_chunks) == (2, 1, 4)

    as_user(work)


@pytest.mark.parametrize("name", ["a/zarr.json", "inner/b/zarr.json"])
@pytest.mark.parametrize("spoil", ["refused", "damaged"])
def test_document_of_the_copy_that_cannot_be_read_ends_no_repair(
    spoil: str, name: str, tmp_path: Path
) -> None:
    """One array of the copy that no one may read ended the repair of all others. With its name it is an error, as before."""
    path, copy = hierarchy(tmp_path / "old"), hierarchy(tmp_path / "copy")
    for shard in (DAMAGED, "inner/b/c/2"):
        (path / shard).write_bytes(b"nothing")
    if name.startswith("inner"):  # lost here, too
        (path / name).unlink()
    (copy / name).chmod(0) if spoil == "refused" else (copy / name).write_text("{")

    def work() -> None:
        report = repair(path, to=tmp_path / "new", copy=copy)
        assert report.is_complete and report.n_damaged in (1, 2)
        assert [one for one in report.notes if "copy" in one and repr(name.rpartition("/")[0]) in one]
        assert report.n_lost_chunks == (4 if name.startswith("a") else 0)
        if name.startswith("a"):
            with pytest.raises(shardcodec.SpecError, match="copy/a: the metadata cannot be read"):
                repair(path, to=tmp_path / "one", copy=copy, array="a")

    as_user(work)


def test_manifest_has_arrays_whose_names_are_not_utf8(tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    os.rename(path / "a", os.fsencode(path) + b"/a\xff")
    for name in ("m", "m.sha256"):
        assert verify(path, manifest=tmp_path / name).n_documents
        assert not verify(path, since=tmp_path / name).n_findings
    os.remove(os.fsencode(path) + b"/a\xff/c/1")
    assert verify(path, since=tmp_path / "m").kinds == {"missing shard": 1}
    shutil.rmtree(os.fsencode(path) + b"/a\xff")
    assert verify(path, since=tmp_path / "m").kinds == {"missing shard": 4}


def test_closed_standard_output_leaves_the_exit_code(tmp_path: Path) -> None:
    """`shardcodec verify data.zarr >&-` in a script, which needs the exit code only, was a traceback with the code 3."""
    path = hierarchy(tmp_path / "old")
    command = f"{shlex.quote(sys.executable)} -P -m shardcodec verify {shlex.quote(str(path))} >&-"
    for expected in (0, 1):
        done = subprocess.run(
            command, shell=True, stderr=subprocess.PIPE, check=False, env=python_environment()
        )
        assert (done.returncode, done.stderr) == (expected, b"")
        cut(path / DAMAGED)


class FailsAfter(WrapperStore[MemoryStore]):
    """A store whose service refuses an object after some reads, with an error of its own class."""

    left = 1000
    name = "a/c/1/0"

    async def get(self, key: str, *args: Any, **keywords: Any) -> Any:
        if key == self.name:
            self.left -= 1
            if self.left < 0:
                raise type("GenericError", (Exception,), {"__module__": "obstore.exceptions"})("body error")
        return await super().get(key, *args, **keywords)


@pytest.mark.parametrize("to", [False, True])
def test_compact_goes_on_after_a_read_that_fails_at_any_step(to: bool, tmp_path: Path) -> None:
    """The histories with a service that breaks connections ended `compact` when the read broke while the new shard was made."""
    n_failed, elements = 0, np.arange(1, 33).reshape(8, 4)
    for n in range(12):
        store = FailsAfter(MemoryStore())
        array = zarr.create_array(store, name="a", shape=(8, 4), shards=(4, 4), chunks=(2, 2), dtype="int32")
        array[...] = elements
        store.left = n
        report = compact(store, order="colexicographic", min_dead=0.0, to=tmp_path / f"{n}" if to else None)
        was_read, store.left = store.left >= 0, 1000
        n_failed += not was_read
        assert [one.shard for one in report.shards if one.action == "failed"] == (
            [] if was_read else [store.name]
        )
        assert np.array_equal(zarr.open_array(store, path="a", mode="r")[...], elements)
    assert 3 <= n_failed < n


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_folder_in_place_of_a_shard_comes_from_the_copy(zarr_format: int, tmp_path: Path) -> None:
    """The file in the folder was in the way of the shard in the new hierarchy, and ended the repair of all arrays."""
    path, copy = (hierarchy(tmp_path / name, zarr_format=zarr_format) for name in ("old", "copy"))
    shard = "a/c/1" if zarr_format == 3 else "a/1"
    (path / shard).unlink()
    (path / shard).mkdir()
    (path / shard / "file").write_text("text")
    report = repair(path, to=tmp_path / "new", copy=copy)
    assert report.is_complete and report.n_restored == 1
    assert [one.name for one in report.others.left] == [f"{shard}/file"]
    assert verify(tmp_path / "new", against=copy).n_findings == 0


class Refusing(WrapperStore[Any]):
    """A store that refuses all objects of a group, as a bucket with a policy of its own for a prefix."""

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if key.startswith("inner/"):
            raise PermissionError(f"403: {key}")
        return await super().get(key, *args, **kwargs)


def test_refused_group_ends_no_tool(tmp_path: Path) -> None:
    """The consolidated metadata have its arrays; the record of a stream, for which a tool looks in each, was one more refused object."""
    store = MemoryStore()
    with quiet():
        group = zarr.create_group(store)
        for name in ("a", "inner/b"):
            group.create_array(name, shape=(32,), chunks=(2,), shards=(8,), dtype="int32")[...] = 1
        zarr.consolidate_metadata(store)
    refusing = Refusing(store)
    assert {shard.array for shard in verify(refusing).shards} >= {"inner", "inner/b"}
    assert inspect(refusing).n_findings
    assert repair(refusing, to=tmp_path / "new").n_damaged == 4
    assert compact(refusing, to=tmp_path / "packed").n_failed == 4
    assert {one.array for one in convert(refusing, tmp_path / "converted").failures} == {"inner/b"}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_bucket_that_forbids_what_does_not_exist_ends_no_tool(zarr_format: int, tmp_path: Path) -> None:
    """An array of Zarr v2 was not found there, because the bucket forbids its `zarr.json`, nor read by `open_array`."""
    path = hierarchy(tmp_path / "old", zarr_format=zarr_format)
    (path / (DAMAGED if zarr_format == 3 else "a/1")).unlink()
    bucket = ForbiddingStore(zarr.storage.LocalStore(path))
    assert list(shardcodec.open_array(bucket, "a")[:2]) == [1, 2]
    report = verify(bucket, array="a")
    missing = [one for one in report.shards if one.shard.endswith("/1")]
    assert [each.kind for one in missing for each in one.findings] == ["unreadable"]
    assert inspect(bucket, array="a").arrays[0].name == "a"
    assert convert(bucket, tmp_path / "new", array="a").n_failed == 1
    assert repair(bucket, to=tmp_path / "repaired", array="a").n_damaged == 1
    assert compact(bucket, to=tmp_path / "packed", array="a").n_failed == 1
