# test_in_place.py - an update in place is killed or fails at each call that changes the file system
# SPDX-License-Identifier: MIT
"""The undo journal makes an update in place atomic.

As in test_faults.py, a kill or an error happens at each system call of one write. Then shardcodec's readers see the
whole old shard or the whole new one. Zarr and TensorStore see the same after the shard has been rolled back.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from faults.scenes import (
    LARGE,
    SIDE,
    SMALL,
    Scene,
    calls_of,
    check_error_at_every_call,
    check_kill_at_every_call,
    check_kill_inside_every_write,
    each_of,
    each_with_every_error,
    faults_in_each_call,
    was_killed,
    with_fault,
)
from helpers import descriptor, drop_capabilities, files_below, in_child, ours, quiet, shard_path, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec import native
from shardcodec.storage import file_systems

CHAINS: dict[str, Any] = {
    "raw": [BytesCodec()],
    "crc": [BytesCodec(), Crc32cCodec()],
    "zstd": [BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
}
# The write: parts of stored inner chunks ("slots"); two stored chunks and an absent one ("mixed"); a chunk is
# erased.
BOXES = {
    "slots": np.s_[SIDE + 1 : 2 * SIDE + 2, 2 : SIDE + 2],
    "mixed": np.s_[: SIDE + 2, 2 : SIDE + 2],
    "erased": np.s_[SIDE : 2 * SIDE, : 2 * SIDE],
}


@dataclass(frozen=True)
class Case:
    chain: str
    box: str
    grid: int = SMALL
    location: str = "end"
    durability: str = "rename"
    direct: bool = True

    def __str__(self) -> str:
        way = "" if self.direct else "-buffered"
        return f"{self.chain}-{self.box}-{self.location}-{self.grid}-{self.durability}{way}"


CASES = [
    *(Case(chain, "slots", location=location) for chain in CHAINS for location in ("end", "start")),
    *(Case(chain, "mixed", location=location) for chain in ("raw", "zstd") for location in ("end", "start")),
    Case("raw", "slots", durability="fsync"),
    Case("zstd", "slots", LARGE),
    Case("zstd", "slots", LARGE, "start", "fsync"),
    Case("zstd", "mixed", durability="fsync"),
    Case("crc", "mixed", location="start", durability="fsync"),
    Case("raw", "mixed", direct=False),
    # the append is an index only; without direct appends the index is overwritten in place
    Case("crc", "erased", LARGE, "start"),
    Case("crc", "erased", LARGE, durability="fsync", direct=False),
]
QUICK = {Case("raw", "slots"), Case("zstd", "mixed", location="start"), Case("crc", "erased", LARGE, "start")}
assert set(CASES) >= QUICK


@pytest.fixture(autouse=True)
def _probe_file_systems_again(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(file_systems, "_known", {})
    with descriptor(tmp_path) as fd:
        if not file_systems.is_local(fd):
            pytest.skip("shardcodec does not update files in place on this file system")
    case = getattr(request.node, "callspec", None)
    if case is not None and not getattr(case.params.get("case"), "direct", True):
        monkeypatch.setattr(file_systems, "DIRECT_TYPES", frozenset())


class Shard(Scene):
    """One shard with one absent inner chunk, and a write that touches some of the others."""

    has_journals = True

    def __init__(self, folder: Path, case: Case) -> None:
        side = case.grid * SIDE
        # random bytes do not compress, so each new chunk fits its slot
        old = np.random.default_rng(0).integers(0, 2**31 - 1, (side, side), dtype=np.int32)
        old[:SIDE, SIDE : 2 * SIDE] = -1
        super().__init__(folder, old, CHAINS[case.chain], case.location)
        self.spec = shardcodec.ShardSpec.from_metadata(self.handle().metadata.to_dict())
        self.options = {"write_strategy": "in_place", "durability": case.durability, "compact": False}
        self.box = BOXES[case.box]
        self.new[self.box] = -1 if case.box == "erased" else 1000

    def seen(self) -> str:
        """Return what shardcodec's readers see. All of them must see the same."""
        return self.once(self._seen)

    def _seen(self) -> str:
        found = self.handle()[...]
        assert (shardcodec.open_array(self.folder / "a")[...] == found).all()
        with shardcodec.open_shard(self.shard, None, self.spec) as shard:
            assert (shard.read_region() == found).all()
            coords = list(np.ndindex(shard.grid_shape))
            chunks = shard.read_chunks(coords)
        for (r, c), chunk in zip(coords, chunks, strict=True):
            assert (chunk == found[r * SIDE : (r + 1) * SIDE, c * SIDE : (c + 1) * SIDE]).all()
        return self.which(found)

    def check(self) -> str:
        """Check that other readers see the same as shardcodec's after the shard has been rolled back."""
        before, outcome = self.state(), self.seen()
        new = set(files_below(self.folder / "a")) - set(self.bytes)
        assert all(name.startswith("c/0/.shardcodec-undo-") for name in new), (
            "expected no new key but a journal"
        )
        with shardcodec.open_shard(self.shard, None, self.spec, mode="r+") as shard:
            shard.roll_back()
        assert os.stat(self.shard).st_nlink == 1
        assert sorted(self.bytes) == files_below(self.folder / "a"), "the store must list no new key"
        if self.state() != before:
            assert self.seen() == outcome
        assert self.which(self.view_of_other_readers()) == outcome
        return outcome

    def check_no_litter(self) -> None:
        """Check that neither the folder of the shard nor the one beside the hierarchy has a temporary name."""
        assert sorted(self.bytes) == files_below(self.folder / "a")
        assert [p.name for p in self.folder.iterdir()] == ["a"]


# ---- kills


@each_of(CASES, QUICK)
def test_kill_at_any_call_leaves_the_old_or_the_new_shard(tmp_path: Path, case: Case) -> None:
    check_kill_at_every_call(Shard(tmp_path, case))


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case("raw", "slots"), Case("zstd", "mixed", location="start")], ids=str)
def test_next_write_rolls_back_with_any_strategy(tmp_path: Path, case: Case) -> None:
    """The next write rolls the shard back without a request, whatever its strategy."""
    scene = Shard(tmp_path, case)
    calls = calls_of(scene)
    for strategy in ("replace", "append", "in_place"):
        for n in range(len(calls)):
            with_fault(scene, n, "kill")
            expected = scene.new if scene.seen() == "new" else scene.old
            expected = expected.copy()
            expected[-SIDE:, -SIDE:] = expected[-SIDE, 0] = 5
            with shardcodec.options(write_strategy=strategy, threads=1):
                array = ours(scene.folder / "a")
                array[-SIDE:, -SIDE:] = 5
                array[-SIDE, 0] = 5
            assert (zarrs_view(array)[...] == expected).all(), (strategy, calls[n])
            scene.restore()


def test_next_write_settles_a_shard_that_it_does_not_lock(tmp_path: Path) -> None:
    """With locks of threads only, no lock settles the shard: the look does, before the index is read."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    for n in range(len(calls_of(scene))):
        with_fault(scene, n, "kill")
        expected = (scene.new if scene.seen() == "new" else scene.old).copy()
        expected[-SIDE, 0] = 5
        with shardcodec.options(locking="thread", threads=1):
            ours(scene.folder / "a")[-SIDE, 0] = 5
        assert (zarrs_view(ours(scene.folder / "a"))[...] == expected).all()
        scene.restore()


@each_of(CASES)
def test_kill_inside_any_write_leaves_the_old_or_the_new_shard(tmp_path: Path, case: Case) -> None:
    check_kill_inside_every_write(Shard(tmp_path, case), (0, 1, 30, 100, 4096))


@pytest.mark.slow
def test_kill_during_roll_back_is_rolled_back_by_the_next_writer(tmp_path: Path) -> None:
    """Settling is idempotent: it can be interrupted and repeated."""
    scene = Shard(tmp_path, Case("raw", "mixed"))
    calls = calls_of(scene)
    last = max(n for n, call in enumerate(calls) if call == "futimens")
    for n in range(100):
        status, _ = with_fault(scene, last, "kill")
        assert was_killed(status)
        assert scene.seen() == "old"
        status, _ = with_fault(scene, n, "kill")
        if not was_killed(status):
            break
        assert scene.seen() in ("old", "new")
        assert scene.check() in ("old", "new")
        scene.check_next_write()
        scene.restore()
    assert n > len(calls)


@pytest.mark.parametrize("how", ["array[...]", "shard.read_region()"])
def test_read_beside_a_killed_writer_returns_the_old_elements(tmp_path: Path, how: str) -> None:
    """The reader opens the shard and reads its index. Then a writer dies inside its slots. Then the reader
    continues.
    """
    strace = shutil.which("strace") or pytest.skip("strace is not installed")
    scene = Shard(tmp_path, Case("raw", "slots"))
    # the first pwrite is the journal
    _, slots = (n for n, call in enumerate(calls_of(scene)) if call == "pwrite")
    program = f"""
import json, os, sys
import numpy as np
import shardcodec
array = shardcodec.open_array({str(tmp_path / "a")!r}, threads=1)
spec = shardcodec.ShardSpec.from_metadata(json.load(open({str(tmp_path / "a/zarr.json")!r})))
shard = shardcodec.open_shard({str(scene.shard)!r}, None, spec)
sys.stdin.readline()
np.save({str(tmp_path / "found.npy")!r}, {how})
"""
    inject = ["-f", "-o", str(tmp_path / "log"), "-P", str(scene.shard), "-e", "trace=pread64"]
    inject += ["-e", "inject=pread64:delay_enter=1000000:when=2"]
    reader = subprocess.Popen(
        [strace, *inject, sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert reader.stdin is not None
    reader.stdin.write(b"go\n")
    reader.stdin.close()
    while reader.poll() is None and b"pread64" not in read_if_there(tmp_path / "log"):
        time.sleep(0.01)
    status, told = with_fault(scene, slots, "torn", 100)
    assert was_killed(status), told
    if reader.wait(60):
        pytest.skip("strace has no permission to delay calls here")
    assert scene.shard.read_bytes() != scene.bytes["c/0/0"], "the killed writer changed no byte of the shard"
    assert (np.load(tmp_path / "found.npy") == scene.old).all()


def read_if_there(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


# ---- errors


@pytest.mark.filterwarnings("ignore:.*cannot be locked:RuntimeWarning")
@each_with_every_error(CASES, QUICK)
def test_error_at_any_call_raises_or_takes_the_fallback(tmp_path: Path, case: Case, error: int) -> None:
    check_error_at_every_call(Shard(tmp_path, case), error)


@each_of(CASES)
def test_short_write_is_continued(tmp_path: Path, case: Case) -> None:
    scene = Shard(tmp_path, case)
    for call, _, told in faults_in_each_call(
        scene, "short", lambda call: (1, 100) if call == "pwrite" else ()
    ):
        assert scene.check() == "new", (call, told)


@pytest.mark.slow
def test_each_case_makes_its_system_calls(tmp_path: Path) -> None:
    """Check the system calls of each case above."""
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_systems, "_known", {})
            if not case.direct:
                patch.setattr(file_systems, "DIRECT_TYPES", frozenset())
            scene = Shard(folder, case)
            calls = calls_of(scene)
            with descriptor(scene.shard) as fd:
                direct = file_systems.appends_directly(str(scene.shard), fd)
        assert "link" in calls and "linkat" not in calls, (case, calls)
        assert ("fdatasync" in calls) == (case.durability == "fsync")
        assert ("fallocate" in calls) == (
            case.box == "mixed" and case.location == "end" and case.direct and direct
        )
        assert calls.count("unlink") == 2, "expected an unlink of the journal and one of the marker"


@pytest.mark.parametrize("box", ["slots", "mixed"])
def test_journal_is_on_disk_before_the_shard_changes(tmp_path: Path, box: str) -> None:
    """With ``durability="fsync"`` its bytes, and then its name; without the second fsync a power cut left new bytes and no journal."""
    scene = Shard(tmp_path, Case("raw", box, durability="fsync"))
    calls = calls_of(scene)
    written = calls[calls.index("link") : calls.index("fdatasync")]
    at = written.index("rename")
    assert [call for call in written[:at] if call in ("pwrite", "fsync")] == ["pwrite", "fsync"]
    assert written[at + 1 : at + 3] == ["fsync", "pwrite"]
    removed = calls.index("unlink")
    assert calls[removed : removed + 3] == ["unlink", "fsync", "unlink"]


# ---- damaged and foreign journals


def kill_after_the_last_slot(scene: Shard) -> tuple[Path, bytes, bytes]:
    """Kill a write after its last slot. Return the path and the bytes of its journal, and the bytes of the shard."""
    calls = calls_of(scene)
    last = max(n for n, call in enumerate(calls) if call == "futimens")
    status, told = with_fault(scene, last, "kill")
    assert was_killed(status), told
    inode = scene.shard.stat().st_ino
    (journal,) = (p for p in scene.folder.rglob(f".shardcodec-undo-{inode:x}"))
    return journal, journal.read_bytes(), scene.shard.read_bytes()


def with_checksum(body: bytes) -> bytes:
    return body + struct.pack("<I", native.load().crc32c(body))


def test_torn_journal_is_discarded(tmp_path: Path) -> None:
    """A kill cannot tear the journal, but a power cut can if nothing is synced."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, shard = kill_after_the_last_slot(scene)
    assert scene.seen() == "old"
    for n in (*range(0, len(good), 7), len(good) - 1):
        journal.write_bytes(good[:n])
        assert scene.seen() == "new"
        damaged = bytearray(good)
        damaged[n] ^= 0x10
        journal.write_bytes(damaged)
        assert scene.seen() == "new"
    journal.write_bytes(good)
    assert scene.seen() == "old"
    journal.write_bytes(good[:-1])
    assert scene.check() == "new"
    assert scene.shard.read_bytes() == shard
    scene.check_next_write()


@pytest.mark.parametrize(
    "change",
    [
        {"magic": b"scundo\0\2"},
        {"inode": 1},
        {"nbytes": 10**6},
        {"nbytes": 2**63},
        {"n": 2**60},
        {"n": 2},
        {"n": 0},
        {"offset": 2**64 - 1},
        {"offset": 2**63},
        {"offset": 100_000},
        {"size": 2**64 - 1},
        {"size": 1},
    ],
    ids=str,
)
def test_journal_with_impossible_fields_is_discarded(tmp_path: Path, change: dict[str, Any]) -> None:
    """The checksum is right, but a field is impossible. The shard stays as it is."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, shard = kill_after_the_last_slot(scene)
    magic, inode, nbytes, begun, n, offset, size = struct.unpack_from("<8sQQqQQQ", good)
    said = {
        "magic": magic,
        "inode": inode,
        "nbytes": nbytes,
        "begun": begun,
        "n": n,
        "offset": offset,
        "size": size,
    }
    head = struct.pack("<8sQQqQQQ", *(said | change).values())
    assert with_checksum(good[:-4]) == good
    journal.write_bytes(with_checksum(head + good[len(head) : -4]))
    assert scene.check() == "new"
    assert scene.shard.read_bytes() == shard
    scene.check_next_write()


@pytest.mark.parametrize("shift", [0, -1])
def test_journal_with_overlapping_runs_is_discarded(shift: int, tmp_path: Path) -> None:
    """The checksum is right, but the second run begins inside the first one; with a shift of 0 it begins right behind it."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, shard = kill_after_the_last_slot(scene)
    n, offset, size = struct.unpack_from("<32x3Q", good)
    half = size // 2
    pairs = struct.pack("<4Q", offset, half, offset + half + shift, size - half)
    bodies = good[32 + 8 + 16 * n : -4]
    others = good[32 + 8 + 16 : 32 + 8 + 16 * n]
    head = good[:32] + struct.pack("<Q", n + 1)
    journal.write_bytes(with_checksum(head + pairs + others + bodies))
    assert scene.check() == ("new" if shift else "old")
    assert (scene.shard.read_bytes() == shard) == bool(shift)
    scene.check_next_write()


def test_journal_of_a_replaced_shard_is_discarded(tmp_path: Path) -> None:
    """The shard is replaced after the kill. The journal does not apply to the new file and is deleted."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = kill_after_the_last_slot(scene)
    other = scene.shard.with_name("other")
    other.write_bytes(scene.bytes["c/0/0"])
    os.replace(other, scene.shard)
    assert scene.seen() == "old"
    scene.write()
    assert scene.seen() == "new"
    assert not journal.exists()
    scene.check_no_litter()


def test_read_raises_if_the_journal_is_unreadable(tmp_path: Path) -> None:
    """Without the journal the old bytes are unknown. The read raises and does not return the bytes of the shard."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = kill_after_the_last_slot(scene)
    journal.chmod(0)

    def read() -> None:
        if os.geteuid() == 0:
            drop_capabilities()
        with pytest.raises(PermissionError):
            journal.read_bytes()
        with pytest.raises(PermissionError):
            ours(scene.folder / "a")[...]

    in_child(read)


# ---- files that are replaced instead


def updates_in_place(scene: Shard) -> bool:
    inode = scene.shard.stat().st_ino
    scene.write()
    assert scene.seen() == "new"
    return scene.shard.stat().st_ino == inode


def test_shard_with_several_names_is_replaced(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    os.link(scene.shard, tmp_path / "b")
    assert scene.seen() == "old"
    assert not updates_in_place(scene)
    assert (tmp_path / "b").read_bytes() == scene.bytes["c/0/0"]


def test_shard_without_index_checksum_is_replaced(tmp_path: Path) -> None:
    with quiet():
        zarr.create_array(
            tmp_path / "a",
            shape=(8, 8),
            chunks=(8, 8),
            dtype="int32",
            fill_value=-1,
            serializer=ShardingCodec(
                chunk_shape=(SIDE, SIDE), codecs=[BytesCodec()], index_codecs=[BytesCodec()]
            ),
            compressors=None,
        )
    array = ours(tmp_path / "a", write_strategy="in_place")
    array[...] = 1
    inode = shard_path(array).stat().st_ino
    array[:SIDE] = 2
    assert shard_path(array).stat().st_ino != inode


def test_shard_on_an_unknown_file_system_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    assert updates_in_place(scene)
    scene.restore()
    monkeypatch.setattr(file_systems, "LOCAL_TYPES", frozenset())
    assert not updates_in_place(scene)


def test_shard_is_replaced_if_there_is_no_place_for_a_journal(tmp_path: Path) -> None:
    """The name of the marker is taken by another file, which has come with a copy of the folder: it stays."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    taken = scene.shard.with_name(f".shardcodec-undo-{scene.shard.stat().st_ino:x}.shard")
    taken.write_text("in the way")
    os.link(taken, tmp_path / "another name")  # else it is the litter of a dead writer
    assert not updates_in_place(scene)
    assert taken.read_text() == "in the way"


def test_shard_is_updated_in_place_if_the_folder_beside_the_hierarchy_cannot_be_made(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    (tmp_path / ".a.shardcodec").write_text("in the way")
    assert updates_in_place(scene)
