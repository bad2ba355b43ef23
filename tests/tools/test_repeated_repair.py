# test_repeated_repair.py - a repair in place that is killed and repeated, or meets another one
# SPDX-License-Identifier: MIT
"""After a kill between any two steps the next run stores what one run stores, and the only copy is never changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from faults.test_in_place import Case, Shard, kill_after_the_last_slot
from helpers import KINDS_OF_STORE, checked, store_of
from tool_sources import CONTENT, flipped, get, put
from zarr.storage import LocalStore, ObjectStore

import shardcodec
from shardcodec import ShardSpec
from shardcodec.options import resolve
from shardcodec.storage.undo_journal import pending_journal, read_journal
from shardcodec.tools import repair
from shardcodec.tools.backup import Backup
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.memory import MemoryBudget
from shardcodec.tools.repair.one_shard import ShardRepair
from shardcodec.tools.repair.report import RepairAction, RepairedShard
from shardcodec.tools.repair.shards_of_array import RepairTask, ShardRepairer

KEY = "c/0/1"


class Damaged(NamedTuple):
    """A damaged shard, and how to read its bytes."""

    target: Any
    read: Callable[[], bytes]
    task: RepairTask
    spec: ShardSpec | None = None


def in_array(
    kind: str, change: Callable[[bytes], bytes], folder: Path, *, with_copy: bool = False
) -> Damaged:
    store = store_of(kind, folder / "a.zarr")
    checked(store)[...] = CONTENT
    put(store, KEY, change(get(store, KEY)))
    copy = None
    if with_copy:
        copy = str(folder / "copy.zarr")
        checked(copy)[...] = CONTENT
    task = RepairTask(str(folder / "old"), copy, None, False)
    return Damaged(folder / "a.zarr" if kind == "local" else store, lambda: get(store, KEY), task)


def with_user_bytes(folder: Path) -> Damaged:
    spec, path = ShardSpec((8,), (2,), "uint8", 0, ["bytes", "crc32c"]), folder / "shard"
    with shardcodec.ShardWriter(path, spec, header=b"head", footer=b"foot", alignment=512) as writer:
        for i in range(4):
            writer.write_chunk((i,), np.full(2, i + 1, np.uint8))
    data = bytearray(path.read_bytes())
    data[512] ^= 1
    path.write_bytes(data)
    return Damaged(path, path.read_bytes, RepairTask(str(folder / "old"), None, None, False), spec)


def with_journal(folder: Path, *, is_damaged: bool) -> Damaged:
    folder.mkdir(exist_ok=True)
    scene = Shard(folder, Case("zstd", "slots"))
    kill_after_the_last_slot(scene)
    if is_damaged:  # an inner chunk that the update did not change
        with open(scene.shard, "r+b") as file:
            file.seek(3)
            file.write(bytes([file.read(1)[0] ^ 1]))
    task = RepairTask(str(folder / "old"), None, None, False)
    return Damaged(scene.folder / "a", scene.shard.read_bytes, task)


SCENES: dict[str, Callable[[Path], Damaged]] = {
    **{kind: lambda folder, kind=kind: in_array(kind, flipped(5), folder) for kind in KINDS_OF_STORE},  # type: ignore[misc]
    "from copy": lambda folder: in_array("local", flipped(5), folder, with_copy=True),
    "no index": lambda folder: in_array("local", lambda data: data[:-9], folder, with_copy=True),
    "nothing left": lambda folder: in_array("local", lambda data: b"torn", folder),
    "user bytes": with_user_bytes,
    "journal": lambda folder: with_journal(folder, is_damaged=False),
    "journal and damage": lambda folder: with_journal(folder, is_damaged=True),
}
STEPS: list[tuple[Any, str, str]] = [
    (Backup, "_write", "after"), (Backup, "make", "after"), (ShardRepairer, "_replace", "before"),
    (ShardRepair, "write_in_place", "before"), (ShardRepair, "write_in_place", "after"),
    (ShardRepair, "_check_result", "before"), (ShardRepairer, "_replace", "after"),
    (ShardRepairer, "_look", "after"),
]  # fmt: skip


class Killed(BaseException):
    """The process ends."""


def treat(one: Damaged) -> RepairedShard | None:
    """Repair in a new process, and return its result for the damaged shard."""
    (array,) = find_arrays(one.target, spec=one.spec)
    work = ShardRepairer(array, one.task, resolve(), MemoryBudget(None))
    found = [work._treat(shard).result for shard in array.shards()]
    damaged = [done for done in found if done is not None]
    return damaged[0] if damaged else None


def at_step(
    step: tuple[Any, str, str], act: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], bool]:
    """Call a function once at a step of a task; return a function that tells whether it was called."""
    owner, name, when = step
    original = getattr(owner, name)
    is_done = False

    def step_of_task(*arguments: Any) -> Any:
        nonlocal is_done
        is_first, is_done = not is_done, True
        if is_first and when == "before":
            act()
        found = original(*arguments)
        if is_first and when == "after":
            act()
        return found

    monkeypatch.setattr(owner, name, step_of_task)
    return lambda: is_done


@pytest.mark.parametrize("how", ["killed", "twice"])
@pytest.mark.parametrize(
    "scene",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name in ("memory", "other"))) for name in SCENES],
)
def test_disturbed_repair_stores_what_one_repair_stores(
    scene: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed at a step and run again, or another process repairs the shard at a step."""
    make = SCENES[scene]
    undisturbed = make(tmp_path / "undisturbed")
    assert treat(undisturbed) is not None
    n_steps = 0
    for number, step in enumerate(STEPS):
        folder = tmp_path / f"step-{number}"
        one = make(folder)
        damaged = one.read()

        def act(one: Damaged = one, damaged: bytes = damaged, folder: Path = folder) -> None:
            backup = [p for p in (folder / "old").rglob("*") if p.is_file() and p.read_bytes() == damaged]
            assert backup or one.read() == damaged, "the only copy was changed"
            if how == "killed":
                raise Killed
            treat(one)

        with monkeypatch.context() as patch:
            was_called = at_step(step, act, patch)
            try:
                treat(one)
            except Killed:
                treat(one)
            except FileExistsError:  # the other one was faster
                assert how == "twice"
        assert one.read() == undisturbed.read(), step
        n_steps += was_called()
        (kept,) = (p for p in (folder / "old").rglob("*") if p.is_file() and p.suffix != ".journal")
        assert kept.read_bytes() == damaged, step
    assert n_steps >= 5


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return in_array("local", flipped(5), tmp_path)


def test_shard_that_is_not_as_its_backup_is_an_error_that_names_both_files(
    damaged: Damaged, tmp_path: Path
) -> None:
    """Another writer has damaged it in another way since an earlier run."""
    path = tmp_path / "a.zarr" / KEY
    assert treat(damaged) is not None
    old = (tmp_path / "old" / KEY).read_bytes()
    data = flipped(5)((tmp_path / "a.zarr/c/0/0").read_bytes())
    path.write_bytes(data)
    with pytest.raises(FileExistsError, match=rf"{path}: .* its backup {tmp_path}/old/{KEY}"):
        treat(damaged)
    assert path.read_bytes() == data and (tmp_path / "old" / KEY).read_bytes() == old


def test_write_after_the_backup_is_not_lost(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was repaired, though its damaged bytes, which the writer had changed, were in no backup."""
    make, path, before = Backup.make, tmp_path / "a.zarr" / KEY, damaged.read()
    later = before[:5] + bytes([before[5] ^ 7]) + before[6:]

    def make_and_write(backup: Backup) -> bool:
        made = make(backup)
        path.write_bytes(later)
        return made

    monkeypatch.setattr(Backup, "make", make_and_write)
    (done,) = repair(damaged.target, backup=tmp_path / "old", threads=1).shards
    assert (
        done.action is RepairAction.UNREADABLE
        and "another writer has changed it since the backup" in done.detail
    )
    assert path.read_bytes() == later and (tmp_path / "old" / KEY).read_bytes() == before


def test_later_run_takes_a_repaired_shard_for_whole(damaged: Damaged) -> None:
    for action in (RepairAction.REPAIRED, None):
        done = treat(damaged)
        assert (None if done is None else done.action) is action


def test_run_of_one_process_goes_on_after_a_kill(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refused, because the shard had a backup already."""
    before = damaged.read()

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ShardRepair, "write_in_place", killed)
        with pytest.raises(Killed):
            repair(damaged.target, backup=tmp_path / "old", threads=1)
    assert damaged.read() == before
    report = repair(damaged.target, backup=tmp_path / "old")
    assert [one.action for one in report.shards] == [RepairAction.REPAIRED]
    assert (tmp_path / "old" / KEY).read_bytes() == before


def test_backup_that_is_not_equal_gets_no_name(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = damaged.read()
    sink = shardcodec.native.load().NewFile

    class Broken:
        def __init__(self, *arguments: Any, **choices: Any) -> None:
            self._sink = sink(*arguments, **choices)

        def write(self, data: Any, offset: int) -> None:
            self._sink.write(flipped(5)(bytes(data)), offset)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

    with monkeypatch.context() as patch:
        patch.setattr(shardcodec.native.load(), "NewFile", Broken)
        with pytest.raises(OSError, match="the copy differs from the object"):
            repair(damaged.target, backup=tmp_path / "old", threads=1)
    assert damaged.read() == before and not [p for p in (tmp_path / "old").rglob("*") if p.is_file()]


def test_journal_that_no_writer_would_use_has_no_old_bytes(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, mixture = kill_after_the_last_slot(scene)
    assert pending_journal(str(scene.shard)) == str(journal)
    saved = read_journal(good, len(mixture))
    assert saved is not None
    old = bytearray(mixture[: saved.nbytes])
    for offset, data in saved.runs:
        old[offset : offset + len(data)] = data
    assert scene.check() == "old" and scene.shard.read_bytes() == bytes(old)
    assert read_journal(good, saved.nbytes - 1) is None
    for n in range(0, len(good), 7):
        assert read_journal(good[:n], len(mixture)) is None
        assert read_journal(good[:n] + bytes([good[n] ^ 16]) + good[n + 1 :], len(mixture)) is None


def obstore_files(folder: Path) -> Any:
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    return ObjectStore(obstore.store.LocalStore(folder))


def linked_folder(folder: Path) -> str:
    (folder / "old").mkdir()
    (folder / "old/c").symlink_to(folder / "a.zarr/c")
    return "old"


def linked_file(folder: Path) -> str:
    (folder / "old/c/0").mkdir(parents=True)
    (folder / "old" / KEY).hardlink_to(folder / "a.zarr" / KEY)
    return "old"


@pytest.mark.parametrize(("place", "backup"), [
    pytest.param(lambda array: array / KEY, lambda _: "a.zarr", id="one shard"),
    pytest.param(lambda array: f"file://{array}", lambda _: "a.zarr", id="URL"),
    pytest.param(LocalStore, lambda _: "a.zarr", id="store"),
    pytest.param(obstore_files, lambda _: "a.zarr", id="store without paths"),
    pytest.param(lambda array: array, linked_folder, id="symbolic link"),
    pytest.param(lambda array: array, linked_file, id="hard link"),
])  # fmt: skip
def test_shard_itself_is_no_backup(
    place: Callable[[Path], Any], backup: Callable[[Path], str], damaged: Damaged, tmp_path: Path
) -> None:
    """The only copy was replaced."""
    before = damaged.read()
    refusals = r"but it is (the same file|a hierarchy)|expected a folder outside of"
    with pytest.raises((FileExistsError, ValueError), match=refusals):
        repair(place(tmp_path / "a.zarr"), backup=tmp_path / backup(tmp_path))
    assert damaged.read() == before


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_state_that_has_no_backup_is_not_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer changed the damaged object just before the repair took it; its state was lost in stores without files."""
    one = in_array(kind, flipped(5), tmp_path)
    later = flipped(5)(one.read())[:60] + b"\0" + one.read()[61:]
    chunks_of_plan = ShardRepair._plan

    def plan(self: ShardRepair, *arguments: Any) -> Any:
        if (tmp_path / "old" / KEY).exists() and one.read() != later:
            put(store_of("local", tmp_path / "a.zarr") if kind == "local" else one.target, KEY, later)
        return chunks_of_plan(self, *arguments)

    monkeypatch.setattr(ShardRepair, "_plan", plan)
    done = treat(one)
    assert done is not None and done.action is RepairAction.UNREADABLE and "another writer" in done.detail
    assert one.read() == later


@pytest.mark.parametrize("how", ["not readable", "nothing to sync"])
def test_folders_that_cannot_be_synced(
    how: str, damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder above that of the backups belongs to others, or fsync of a folder is invalid; the repair stopped."""
    open_file, fsync = os.open, os.fsync

    def opened(path: Any, *arguments: Any, **choices: Any) -> int:
        if how == "not readable" and path == str(tmp_path):
            raise PermissionError(errno.EACCES, "not readable", path)
        return open_file(path, *arguments, **choices)

    def synced(fd: int) -> None:
        if how == "nothing to sync" and stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "nothing to sync")
        fsync(fd)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", synced)
    done = treat(damaged)
    assert done is not None and done.action is RepairAction.REPAIRED


@pytest.mark.parametrize("durability", ["rename", "fsync"])
def test_copied_shards_have_the_durability_of_written_ones(
    durability: str, damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of whole shards never waited for the disk."""
    sink, seen = shardcodec.native.load().NewFile, {}

    class Seen:
        def __init__(self, path: str, **choices: Any) -> None:
            self._path, self._sink = path, sink(path, **choices)

        def commit(self, *, sync: bool = False, only_new: bool = False) -> bool:
            seen[Path(self._path).relative_to(tmp_path / "new").as_posix()] = sync
            return bool(self._sink.commit(sync=sync, only_new=only_new))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

    monkeypatch.setattr(shardcodec.native.load(), "NewFile", Seen)
    with shardcodec.options(durability=durability):
        repair(damaged.target, to=tmp_path / "new")
    assert seen["zarr.json"] and seen["c/0/0"] == (durability == "fsync")


@pytest.mark.parametrize("damage", [
    pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="index checksum"),
    pytest.param(lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], id="index entry"),
    pytest.param(lambda data: data + b"more", id="bytes behind the index"),
])  # fmt: skip
def test_repaired_shard_that_was_damaged_again_is_not_the_result(
    damage: Callable[[bytes], bytes], damaged: Damaged, tmp_path: Path
) -> None:
    """It was reported as repaired, because its index could be guessed."""
    assert treat(damaged) is not None
    put(store_of("local", tmp_path / "a.zarr"), KEY, damage(damaged.read()))
    with pytest.raises(FileExistsError, match="but it is another; nothing was changed"):
        treat(damaged)


def test_url_of_a_backup_is_refused(damaged: Damaged, tmp_path: Path) -> None:
    before = damaged.read()
    with pytest.raises(ValueError, match=r"backup: expected a local folder, got file://"):
        repair(damaged.target, backup=f"file://{tmp_path}/old")
    assert damaged.read() == before
