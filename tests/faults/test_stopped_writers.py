# test_stopped_writers.py - a writer in place stops at each of its calls, and others work meanwhile
# SPDX-License-Identifier: MIT
"""The proof in csrc/io/sc_undo_write.c, case by case: readers, sweepers, packers and movers between any two calls of an update."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults.scenes import calls_of
from faults.test_in_place import Case, Shard, kill_after_the_last_slot
from helpers import in_child, ours
from workers import forked

import shardcodec
from shardcodec import native
from shardcodec.access.shard_object import open_object
from shardcodec.errors import ConflictError
from shardcodec.storage.undo_journal import pending_journal
from shardcodec.tools import compact, verify
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.rewrite import ShardUserBytes, replacing_writer

CASES = [Case("raw", "slots"), Case("raw", "mixed"), Case("zstd", "mixed", location="start")]


class TooFewCalls(Exception):
    """The process has ended before the call at which it was to stop."""


def stopped(scene: Shard, n: int) -> AbstractContextManager[Callable[[], None]]:
    """Stop a writer before its n-th call. The value of the context lets it go on to its end, which must succeed."""
    return stopped_in(scene.write, n)


@contextmanager
def stopped_in(write: Callable[[], None], n: int) -> Iterator[Callable[[], None]]:
    def work() -> None:
        native.load().set_fault(n, "stop")
        write()

    pid = forked(work)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise TooFewCalls(status)
    gone = False

    def go_on() -> None:
        nonlocal gone
        gone = True
        os.kill(pid, signal.SIGCONT)
        assert os.waitpid(pid, 0)[1] == 0

    try:
        yield go_on
    finally:
        if not gone:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def n_calls(scene: Shard) -> int:
    engine = native.load()
    engine.set_fault(0, "count")
    scene.write()
    made = engine.end_fault()
    scene.restore()
    return len(made)


def each_call(folder: Path, case: Case) -> Iterator[tuple[Shard, int]]:
    scene = Shard(folder, case)
    for n in range(n_calls(scene)):
        yield scene, n
        scene.restore()


def version_of(scene: Shard) -> bytes:
    shard = target_of(scene)
    view = open_object(shard.array.store, shard.key)
    assert view is not None
    try:
        return view.generation
    finally:
        view.close()


def begun_ns(journal: Path) -> int:
    return int(struct.unpack_from("<q", journal.read_bytes(), 24)[0])


# ---- readers


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reader_beside_a_stopped_writer_sees_the_old_shard_until_the_journal_is_gone(
    tmp_path: Path, case: Case
) -> None:
    """Whatever it sees, all of its bytes belong to one state; and what it sees never goes back from new to old."""
    seen = []
    for scene, n in each_call(tmp_path, case):
        with stopped(scene, n) as go_on:
            seen.append(scene.seen())
            go_on()
        assert scene.check() == "new"
    assert seen == sorted(seen, key=["old", "new"].index) and set(seen) == {"old", "new"}


def test_state_that_is_read_through_a_journal_has_the_version_of_the_old_state(tmp_path: Path) -> None:
    """The journal was loaded, then the file was identified: if the writer committed in between, old bytes had the new version.

    A packing or a conditional write of key-value stores took them for the present ones.
    """
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = kill_after_the_last_slot(scene)
    before = version_of(scene)
    _, inode, _, nbytes, mtime = struct.unpack("<4Qq", before)
    assert (inode, nbytes) == (scene.shard.stat().st_ino, len(scene.bytes["c/0/0"]))
    assert mtime == begun_ns(journal) != scene.shard.stat().st_mtime_ns
    with shardcodec.open_shard(scene.shard, None, scene.spec, mode="r+") as shard:
        shard.roll_back()
    assert version_of(scene) != before


# ---- programs that replace what they have read


def target_of(scene: Shard) -> Any:
    (array,) = find_arrays(scene.folder / "a")
    return array.shard((0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_shard_read_beside_a_writer_does_not_replace_what_was_written_since(
    tmp_path: Path, case: Case
) -> None:
    for scene, n in each_call(tmp_path, case):
        shard = target_of(scene)
        with stopped(scene, n) as go_on:
            view = open_object(shard.array.store, shard.key)
            assert view is not None
            before = scene.seen()
            go_on()
        try:
            with replacing_writer(shard, view, scene.spec, ShardUserBytes()):
                pass  # a shard without inner chunks
            assert before == "new", n
            assert (scene.handle()[...] == -1).all()
        except ConflictError:
            assert scene.check() == "new"
        finally:
            view.close()


@pytest.mark.parametrize("order", [None, "colexicographic"])
def test_shard_with_a_pending_journal_is_packed_in_its_old_state(tmp_path: Path, order: str | None) -> None:
    """The roll back, at the lock, looked like a change by another writer: the first run failed."""
    scene = Shard(tmp_path, Case("raw", "mixed"))
    kill_after_the_last_slot(scene)
    report = compact(scene.folder / "a", min_dead=0.0, order=order)
    assert (report.n_packed, report.n_failed) == (int(order is not None), 0)
    assert scene.check() == "old"


# ---- sweepers


@pytest.mark.slow
def test_removal_of_litter_takes_no_journal_of_a_living_writer(tmp_path: Path) -> None:
    """Another writer has no folder for temporary names, so it searches the folder of the shard for litter."""
    for scene, n in each_call(tmp_path, Case("raw", "slots")):
        sweep = sweeper(scene)
        with stopped(scene, n) as go_on:
            before = set(os.listdir(scene.shard.parent))
            in_child(sweep)
            assert set(os.listdir(scene.shard.parent)) == before
            assert scene.seen() in ("old", "new")
            go_on()
        assert scene.seen() == "new"


def sweeper(scene: Shard) -> Callable[[], None]:
    """Return work that searches the folder of the shard: another shard in it is replaced, without another place for the names."""
    other = scene.shard.with_name("other")
    other.write_bytes(scene.bytes["c/0/0"])
    (scene.folder / ".a.shardcodec").write_text("in the way")

    def sweep() -> None:
        with (
            shardcodec.options(write_strategy="replace"),
            shardcodec.open_shard(other, None, scene.spec, mode="r+") as shard,
        ):
            shard.erase([(0, 0)])

    return sweep


@pytest.mark.slow
@pytest.mark.parametrize("marked", [True, False])
def test_removal_of_litter_that_is_stopped_takes_no_journal_of_a_later_update(
    tmp_path: Path, marked: bool
) -> None:
    """It looked for the marker, then removed the journal of the update that had begun in between."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    last = [n for n, call in enumerate(calls_of(scene)) if call == "pwrite"][-1]
    n_removals = 0
    for n in range(100):
        gone = scene.shard.with_name("gone")
        gone.write_bytes(b"shard of a dead writer")
        inode = gone.stat().st_ino if marked else scene.shard.stat().st_ino
        journal = scene.shard.with_name(f".shardcodec-undo-{inode:x}")
        journal.write_bytes(b"litter")
        if marked:
            gone.rename(f"{journal}.shard")
        else:
            gone.unlink()
        try:
            with stopped_in(sweeper(scene), n) as go_on:
                n_removals += not journal.exists()
                with stopped_in(scene.write, last):
                    go_on()
                    assert scene.seen() in ("old", "new")
                assert scene.seen() in ("old", "new"), "after a kill"
        except TooFewCalls:
            break
        scene.restore()
    assert n > 5 and n_removals


# ---- movers


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pending_journal_moves_with_the_hierarchy(tmp_path: Path, case: Case) -> None:
    """It lay beside the hierarchy, so one that was renamed showed half an update, and `verify` found nothing."""
    for scene, n in each_call(tmp_path, case):
        with stopped(scene, n):
            pass  # and killed
        expected = scene.seen()
        moved = tmp_path / "another/b"
        moved.parent.mkdir(exist_ok=True)
        os.rename(tmp_path / "a", moved)
        assert scene.which(shardcodec.open_array(moved)[...]) == expected, n
        pending = pending_journal(str(moved / "c/0/0"))
        assert verify(moved).kinds == ({} if pending is None else {"pending journal": 1})
        with shardcodec.options(write_strategy="append"):
            ours(moved)[-1, -1] = 5
        wanted = (scene.new if expected == "new" else scene.old).copy()
        wanted[-1, -1] = 5
        assert (shardcodec.open_array(moved)[...] == wanted).all(), n
        os.rename(moved, tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_writer_ends_its_update_in_a_hierarchy_that_is_moved_meanwhile(tmp_path: Path, case: Case) -> None:
    """It removes its journal where the journal is. If it cannot go on there, it restores the old shard there."""
    for scene, n in each_call(tmp_path, case):
        if n == 0:
            continue  # it has not even opened the shard
        with stopped(scene, n) as go_on:
            with shardcodec.open_shard(scene.shard, None, scene.spec) as shard:
                assert shard.exists  # a reader that has opened it before
                os.rename(tmp_path / "a", tmp_path / "b")
                assert scene.which(shard.read_region()) in ("old", "new")
            go_on()
        found = scene.which(shardcodec.open_array(tmp_path / "b")[...])
        # an append, or a replacement, opens the shard by its path, and then makes a new one there
        assert found == "new" or (tmp_path / "a/c/0/0").exists(), n
        assert found in ("old", "new") and not list((tmp_path / "b").rglob(".shardcodec-undo-*")), n
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        os.rename(tmp_path / "b", tmp_path / "a")


# ---- copies


@pytest.mark.parametrize("copy", ["copytree", "cp -a", "cp -r"])
def test_copy_with_a_pending_journal_is_a_finding(tmp_path: Path, copy: str) -> None:
    """The journal names the file that was copied, so no reader can tell to which shard of the copy it belongs."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    kill_after_the_last_slot(scene)
    if copy == "copytree":
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    else:
        assert os.system(f"{copy} {tmp_path}/a {tmp_path}/b") == 0
    report = verify(tmp_path / "b")
    assert report.kinds == {"pending journal": 1} and report.n_findings == 1
    assert verify(tmp_path / "a").kinds == {"pending journal": 1} and scene.check() == "old"

    def write() -> None:  # it removes litter first
        with shardcodec.options(write_strategy="in_place"):
            ours(tmp_path / "b")[-1, -1] = 5

    in_child(write)
    assert verify(tmp_path / "b").kinds == {"pending journal": 1}, "the finding stays"


# ---- journals of earlier versions, and of other users


def as_before(scene: Shard, journal: Path) -> Path:
    """Put journal and marker beside the hierarchy, where earlier versions had them; return the folder."""
    staging = scene.folder / ".a.shardcodec"
    staging.mkdir()
    for name in (journal.name, f"{journal.name}.shard"):
        os.rename(journal.with_name(name), staging / name)
    return staging


def test_journal_of_an_earlier_version_is_rolled_back(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "mixed"))
    journal, _, _ = kill_after_the_last_slot(scene)
    staging = as_before(scene, journal)
    assert pending_journal(str(scene.shard)) == str(staging / journal.name)
    assert scene.check() == "old"
    assert not staging.exists()
    scene.check_next_write()


def test_journal_of_a_shard_that_is_gone_is_removed_from_the_folder_of_an_earlier_version(
    tmp_path: Path,
) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = kill_after_the_last_slot(scene)
    staging = as_before(scene, journal)
    (staging / ".shardcodec-undo-7").write_bytes(b"a journal without its marker")
    scene.shard.unlink()
    scene.shard.write_bytes(scene.bytes["c/0/0"])
    with shardcodec.options(write_strategy="replace"):
        ours(tmp_path / "a")[0, 0] = 1
    assert not staging.exists()


def test_journal_of_another_user_beside_the_hierarchy_does_not_count(tmp_path: Path) -> None:
    """Other users may write to the folder of the hierarchy, such as /tmp."""
    if os.geteuid():
        pytest.skip("needs root, to give a file to another user")
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = kill_after_the_last_slot(scene)
    staging = as_before(scene, journal)
    os.chown(staging / journal.name, 12345, -1)
    assert pending_journal(str(scene.shard)) is None
    assert scene.check() == "new"


# ---- a folder shared by a group


GROUP = 20000


def as_user(user: int, work: Callable[[], None]) -> None:
    os.setgroups([GROUP])
    os.setgid(GROUP)
    os.setuid(user)
    os.umask(0o002)
    work()


def set_all(folder: Path, value: int) -> None:
    with shardcodec.options(write_strategy="in_place", threads=1):
        ours(folder / "a")[:8, :8] = value


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder of a group, with a shard of one member."""
    if os.geteuid():
        pytest.skip("needs root, to act as two users")
    warm = Shard(tmp_path, Case("raw", "slots"))
    warm.write()  # now all modules are loaded: other users cannot read those of root
    set_all(tmp_path, 1)
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        os.chmod(name, 0o755)
        folder = Path(name) / "shared"
        folder.mkdir()
        Shard(folder, Case("raw", "slots"))
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 20001, GROUP)
            path.chmod(0o2775 if path.is_dir() else 0o664)
        yield folder


@pytest.mark.slow
def test_member_of_a_group_rolls_back_the_update_of_another_member(shared: Path) -> None:
    """A member who does not own the shard may not set its times, and the roll back failed with EPERM."""

    def die(n: int) -> None:
        native.load().set_fault(n, "kill")
        set_all(shared, 1000)

    for n in range(100):
        pid = forked(lambda n=n: as_user(20001, lambda: die(n)))
        if os.waitpid(pid, 0)[1] == 0:
            break
        in_child(lambda n=n: as_user(20002, lambda: set_all(shared, n)))
        assert (shardcodec.open_array(shared / "a")[:8, :8] == n).all()
        os.chown(shared / "a/c/0/0", 20001, GROUP)  # it was replaced; the next round is in place again
    assert n > 10
