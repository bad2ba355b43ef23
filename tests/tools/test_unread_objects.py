# test_unread_objects.py - what cannot be read, or leads in a circle, is named by each tool and ends none
# SPDX-License-Identifier: MIT
"""A user verified a whole disk as another user than root: `lost+found` ended it, and a damaged shard was not found.

An archive tier refused one object (403), whose error is not an `OSError` but one of obstore; a socket of an editor and a link to
nothing lay beside the arrays. Each tool goes on, names what it could not read, and `repair` takes it from a copy.

`here -> .` in a group made 41 arrays of one, and a repair of 840 files; with two such links no tool ended.

A folder that is one of those above it is named and left. A destination inside the source may be reached through another mount.

Arrays, objects and sentences on metadata were three lists, and a part of a plan named none of them.

A malformed document of one array ended `convert`, a group whose folder cannot be listed ended each tool, and a document of another
kind of node hid the nodes below it, while `verify` found nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ForbiddingStore, as_user, files_below, python_environment, quiet
from spec_json import array_2022
from tool_sources import COPIES, copies, edit, write_2022
from zarr.storage import MemoryStore, WrapperStore

import shardcodec
from shardcodec.cli.app import run
from shardcodec.errors import SpecError, as_os_error
from shardcodec.tools import compact, convert, inspect, plan_convert, repair, run_part, verify
from shardcodec.tools.capped import LISTED
from shardcodec.tools.left_parts import NOTHING_LEFT, LeftKind, LeftPart, LeftParts
from shardcodec.tools.monitor import Monitor
from shardcodec.tools.other_objects import copy_objects
from shardcodec.transformer.legacy_2022.open import open_2022

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
        RuntimeError("cannot be used in a forked process"),
        KeyError("a"),
        ValueError("a"),
        NotImplementedError("a"),
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
                repair(path, to=tmp_path / "one", copy=copy, only="a")

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
    report = verify(bucket, only="a")
    missing = [one for one in report.shards if one.shard.endswith("/1")]
    assert [each.kind for one in missing for each in one.findings] == ["unreadable"]
    assert inspect(bucket, only="a").arrays[0].name == "a"
    assert convert(bucket, tmp_path / "new", only="a").n_failed == 1
    assert repair(bucket, to=tmp_path / "repaired", only="a").n_damaged == 1
    assert compact(bucket, to=tmp_path / "packed", only="a").n_failed == 1


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@contextmanager
def mounted(source: Path, at: Path) -> Iterator[None]:
    at.mkdir(parents=True)
    subprocess.run(["mount", "--bind", source, at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


def check(path: Path, tmp_path: Path, names: set[str]) -> None:
    """Each tool sees the two arrays, and names what it has not followed."""
    report = verify(path)
    assert [one.name for one in report.arrays] == ["a", "inner/b"] and not report.n_findings
    assert {one.name for one in report.unchecked} == names
    looked = inspect(path)
    assert [one.name for one in looked.arrays] == ["a", "inner/b"]
    left = {text.partition(":")[0] + "/" for text in looked.left}
    left |= {f"{Path(one).relative_to(path)}/" for array in looked.arrays for one in array.foreign}
    assert left == names
    for new, done in copies(path, tmp_path):
        assert done.n_shards == (2 if new.name == "convert" else 8)
        assert {one.name for one in done.others.left} == names and not done.others.n_unreadable
        documents = [one for one in files_below(new) if one.endswith("zarr.json")]
        assert documents == ["a/zarr.json", "inner/b/zarr.json", "inner/zarr.json", "zarr.json"]


@pytest.mark.parametrize(
    "links",
    [
        {"here": "."},
        {"x": ".", "y": "."},
        {"inner/up": "..", "z": "inner/.."},
        {"a/me": "."},
        {"a/c/me": "../.."},
        {"inner/out": "../.."},  # to the folder around the hierarchy, in which the copy will be
    ],
    ids=str,
)
def test_link_to_a_folder_above_is_named_and_left(links: dict[str, str], tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    for name, to in links.items():
        (path / name).symlink_to(to)
    check(path, tmp_path, {f"{name}/" for name in links})
    assert run(["inspect", str(path)]) == 0


@needs_root
def test_mount_of_a_folder_above_is_named_and_left(tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    with mounted(path, path / "m"):
        check(path, tmp_path, {"m/"})


def test_links_to_other_folders_are_followed(tmp_path: Path) -> None:
    path, shared = hierarchy(tmp_path / "old"), hierarchy(tmp_path / "shared")
    (path / "c").symlink_to(shared / "a")
    (path / "d").symlink_to("a")
    assert [one.name for one in verify(path).arrays] == ["a", "c", "d", "inner/b"]
    assert convert(path, tmp_path / "new").is_complete
    assert (zarr.open_array(tmp_path / "new/d", mode="r")[...] == np.arange(1, 33)).all()


@needs_root
@pytest.mark.parametrize("below", ["", "inner"])
def test_destination_in_another_mount_of_the_source_is_refused(below: str, tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    with mounted(path / below, tmp_path / "mount"):
        for work in COPIES.values():
            with pytest.raises(ValueError, match="expected a place outside of the source"):
                work(path, tmp_path / "mount/new")
        with pytest.raises(ValueError, match="backup: expected a folder outside of"):
            repair(path, backup=tmp_path / "mount/backup")
        assert sorted(os.listdir(path / below)) == sorted(os.listdir(tmp_path / "mount"))
        assert not (tmp_path / "mount/new").exists()


@pytest.mark.parametrize("work", COPIES.values(), ids=COPIES)
def test_new_hierarchy_that_a_link_of_the_source_shows_is_not_copied_into_itself(
    work: Any, tmp_path: Path
) -> None:
    path = hierarchy(tmp_path / "old")
    (tmp_path / "out").mkdir()
    (path / "link").symlink_to(tmp_path / "out")
    new = tmp_path / "out/new"
    assert work(path, new).is_complete
    assert not (new / "link").exists()


VALUES = np.arange(16, dtype=np.int32) + 1
NAMES = "a", "g/b", "h/c"
DOCUMENT = {3: "zarr.json", 2: ".zarray"}


def three_arrays(place: Any, zarr_format: Any = 3, *, consolidated: bool = False) -> Any:
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
    """Return the arrays of a three_arrays, and whether their elements are right."""
    with quiet():
        group = zarr.open_group(place, mode="r", use_consolidated=False)
        return {
            name: bool((node[...] == VALUES).all())
            for name, node in group.members(max_depth=None)
            if isinstance(node, zarr.Array)
        }


def test_list_counts_what_it_does_not_list() -> None:
    many = [LeftPart.object(str(i), "x", is_unreadable=i % 2 == 0) for i in range(LISTED)]
    left = NOTHING_LEFT + many + LeftPart.notes("g", ["y"]) + (NOTHING_LEFT + many[:3])
    assert left.counts == {"object": LISTED + 3, "metadata": 1} and len(left.parts) == LISTED
    assert left.unreadable == {"object": LISTED // 2 + 2} and left.n_unreadable == LISTED // 2 + 2
    assert list(left.result_facts(would=False))[-1] == ("", "4 further parts left out")


def test_many_left_objects_are_counted_without_a_copy_of_the_list_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each object that was left out copied the list of up to 1,000 parts, so 20,000 of them copied twenty million."""
    n, n_added = 3 * LISTED + 5, []
    added = LeftParts.__add__

    def counted(self: LeftParts, more: Iterable[LeftPart]) -> LeftParts:
        n_added.append(len(new := list(more)))
        return added(self, new)

    monkeypatch.setattr(LeftParts, "__add__", counted)
    entries: Any = [LeftPart.object(str(i), "x", is_unreadable=i % 2 == 0) for i in range(n)]
    counts = copy_objects(entries, lambda entry: None, Monitor(), 1)
    assert counts.parts.counts == {"object": n} and counts.parts.n_unreadable == (n + 1) // 2
    assert [int(part.name) for part in counts.parts] == list(range(LISTED))
    assert n_added == [LISTED, LISTED, LISTED, 5]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_convert_goes_on_after_malformed_metadata(
    zarr_format: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = three_arrays(tmp_path / "old", zarr_format)
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
        convert(old, tmp_path / "other", only="g/b")


def test_array_with_a_codec_that_nobody_has_is_left_out(tmp_path: Path) -> None:
    old = three_arrays(tmp_path / "old", 2)
    edit(old / "g/b/.zarray", compressor={"id": "unknown"})
    report = convert(old, tmp_path / "new")
    assert [(one.name, one.is_unreadable) for one in report.left_arrays] == [("g/b", False)]
    assert arrays_of(tmp_path / "new") == {"a": True, "h/c": True}


def test_plan_names_what_is_left(tmp_path: Path) -> None:
    old = three_arrays(tmp_path / "old")
    edit(old / "g/b/zarr.json", shape="x")
    planned = plan_convert(str(old), str(tmp_path / "new"), tmp_path / "plan", parts=1)
    assert [(part.kind, part.name) for part in planned.left] == [(LeftKind.ARRAY, "g/b")]
    assert run_part(tmp_path / "plan", 0).is_complete
    assert arrays_of(tmp_path / "new") == {"a": True, "h/c": True} and not (tmp_path / "new/g/b").exists()


def test_metadata_of_arrays_are_in_the_list(tmp_path: Path) -> None:
    old = three_arrays(tmp_path / "old", 2)
    edit(old / "a/.zarray", of_nobody=1)
    (part,) = convert(old, tmp_path / "new").left
    assert (part.kind, part.name) == (LeftKind.OF_ARRAY, "a") and "of_nobody" in part.reason


@pytest.mark.parametrize("place", ["", "g", "g/b", "g/b/c"])
def test_folder_that_cannot_be_listed_ends_no_tool(place: str, tmp_path: Path) -> None:
    old = three_arrays(tmp_path / "old")
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
    store = Unlisted(three_arrays(MemoryStore(), consolidated=True))
    assert verify(store).kinds == {"unreadable": 2}  # the group, and the folder of the array in it
    assert {one.name for one in inspect(store).arrays} == {"a", "g", "g/b", "h/c"}
    for new, report in copies(store, tmp_path):
        assert [one.name for one in report.left_arrays if one.is_unreadable] == ["g"]
        assert arrays_of(new) == dict.fromkeys(NAMES, True)


@pytest.mark.parametrize("consolidated", [True, False])
def test_array_in_the_place_of_a_group_is_found_and_nothing_is_lost(
    consolidated: bool, tmp_path: Path
) -> None:
    old = three_arrays(tmp_path / "old", consolidated=consolidated)
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
    old = three_arrays(tmp_path / "old", consolidated=True)
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


def test_refused_document_is_not_replaced_by_that_of_the_other_format() -> None:
    """A bucket that may be listed answers 404 for what does not exist, so a document that it refuses is there, and says what the array is."""

    class RefusingStore(WrapperStore[Any]):
        async def get(self, key: str, *args: Any, **keywords: Any) -> Any:
            if key.endswith("zarr.json"):
                raise ForbiddingStore.error(key)
            return await super().get(key, *args, **keywords)

    store = MemoryStore()
    array = zarr.create_array(store, name="a", shape=(4,), chunks=(4,), dtype="int32", zarr_format=2)
    array[...] = 1
    with pytest.raises(PermissionError, match=r"a/zarr\.json: PermissionDeniedError"):
        shardcodec.open_array(RefusingStore(store), "a")
    assert shardcodec.open_array(ForbiddingStore(store), "a")[0] == 1
