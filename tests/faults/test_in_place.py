# test_in_place.py - updates in place that are killed, or that fail, at any of the calls that change a file system
# SPDX-License-Identifier: MIT
"""The undo journal: an update in place is one step, whatever happens.

As in test_faults.py the calls of one write are counted, and each of them is the last one or fails. Then shardcodec's readers
see the whole old shard or the whole new one; so do zarr and TensorStore when the shard has been settled.
"""

from __future__ import annotations

import ctypes
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
    each_of,
    each_with_every_error,
    fail_at_every_call,
    fault_in,
    is_killed_at_every_call,
    is_torn_in_every_write,
    was_killed,
    with_fault,
)
from helpers import descriptor, files_below, in_child, ours, quiet, shard_path, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec import native
from shardcodec.storage import file_system

CHAINS: dict[str, Any] = {
    "raw": [BytesCodec()],
    "crc": [BytesCodec(), Crc32cCodec()],
    "zstd": [BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
}
# What is written: inner chunks that all have their slots, a part of them; two of them and one that was absent; one is erased
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
    # what is appended: nothing but an index; where there is no way to do that, it is overwritten in its place
    Case("crc", "erased", LARGE, "start"),
    Case("crc", "erased", LARGE, durability="fsync", direct=False),
]
QUICK = {Case("raw", "slots"), Case("zstd", "mixed", location="start"), Case("crc", "erased", LARGE, "start")}
assert set(CASES) >= QUICK


@pytest.fixture(autouse=True)
def _own_mind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_system, "_known", {})
    with descriptor(tmp_path) as fd:
        if not file_system.is_local(fd):
            pytest.skip("nothing is updated in place on this file system")
    case = getattr(request.node, "callspec", None)
    if case is not None and not getattr(case.params.get("case"), "direct", True):
        monkeypatch.setattr(file_system, "DIRECT_TYPES", frozenset())


class Shard(Scene):
    """One shard, one of whose inner chunks is absent, and a write that touches some of the others."""

    has_journals = True

    def __init__(self, folder: Path, case: Case) -> None:
        side = case.grid * SIDE
        # nothing that could be compressed, so whatever is new has its place
        old = np.random.default_rng(0).integers(0, 2**31 - 1, (side, side), dtype=np.int32)
        old[:SIDE, SIDE : 2 * SIDE] = -1
        super().__init__(folder, old, CHAINS[case.chain], case.location)
        self.spec = shardcodec.ShardSpec.from_metadata(self.handle().metadata.to_dict())
        self.options = {"write_strategy": "in_place", "durability": case.durability, "compact": False}
        self.box = BOXES[case.box]
        self.new[self.box] = -1 if case.box == "erased" else 1000

    def seen(self) -> str:
        """What shardcodec's readers see: all of them the same."""
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
        """That, and that the others see the same once it is settled."""
        unsettled, outcome = self.state(), self.seen()
        assert sorted(self.bytes) == files_below(self.folder / "a"), "nothing shows up in the store"
        with shardcodec.open_shard(self.shard, None, self.spec, mode="r+") as shard:
            shard.settle()
        assert os.stat(self.shard).st_nlink == 1
        if self.state() != unsettled:
            assert self.seen() == outcome
        assert self.which(self.others_view()) == outcome
        return outcome

    def check_no_litter(self) -> None:
        """No litter; the folder for journals goes when the process ends."""
        native.load().leave_staging()
        assert [p.name for p in self.folder.rglob("*") if "a" not in p.relative_to(self.folder).parts] in (
            [],
            [".a.shardcodec"],
        )


# ---- kills


@each_of(CASES, QUICK)
def test_killed_at_every_call(tmp_path: Path, case: Case) -> None:
    is_killed_at_every_call(Shard(tmp_path, case))


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case("raw", "slots"), Case("zstd", "mixed", location="start")], ids=str)
def test_the_next_write_settles(tmp_path: Path, case: Case) -> None:
    """Without anybody asking for it, and whatever its strategy."""
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


@each_of(CASES)
def test_killed_inside_every_write(tmp_path: Path, case: Case) -> None:
    is_torn_in_every_write(Shard(tmp_path, case), (0, 1, 30, 100, 4096))


@pytest.mark.slow
def test_killed_while_it_is_settled(tmp_path: Path) -> None:
    """Settling may be done as often as it takes."""
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
def test_a_writer_that_begins_during_a_read(tmp_path: Path, how: str) -> None:
    """The reader has opened the shard and read its index; then a writer dies inside its slots; then the reader goes on."""
    strace = shutil.which("strace") or pytest.skip("strace is not installed")
    scene = Shard(tmp_path, Case("raw", "slots"))
    _, slots = (n for n, call in enumerate(calls_of(scene)) if call == "pwrite")  # the first is the journal
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
        pytest.skip("strace may not delay calls here")
    assert scene.shard.read_bytes() != scene.bytes["c/0/0"], "a part of it is new"
    assert (np.load(tmp_path / "found.npy") == scene.old).all()


def read_if_there(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


# ---- errors


@pytest.mark.filterwarnings("ignore:.*cannot be locked:RuntimeWarning")
@each_with_every_error(CASES, QUICK)
def test_errors_at_every_call(tmp_path: Path, case: Case, error: int) -> None:
    fail_at_every_call(Shard(tmp_path, case), error)


@each_of(CASES)
def test_short_writes(tmp_path: Path, case: Case) -> None:
    scene = Shard(tmp_path, case)
    for call, _, told in fault_in(scene, "short", lambda call: (1, 100) if call == "pwrite" else ()):
        assert scene.check() == "new", (call, told)


@pytest.mark.slow
def test_what_each_case_does(tmp_path: Path) -> None:
    """The cases above test what they say."""
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_system, "_known", {})
            if not case.direct:
                patch.setattr(file_system, "DIRECT_TYPES", frozenset())
            scene = Shard(folder, case)
            calls = calls_of(scene)
            with descriptor(scene.shard) as fd:
                direct = file_system.appends_directly(str(scene.shard), fd)
        assert "link" in calls and "linkat" not in calls, (case, calls)
        assert ("fdatasync" in calls) == (case.durability == "fsync")
        assert ("fallocate" in calls) == (
            case.box == "mixed" and case.location == "end" and case.direct and direct
        )
        assert calls.count("unlink") == 2, "journal and marker"


# ---- journals that nobody of ours has written


def left_behind(scene: Shard) -> tuple[Path, bytes, bytes]:
    """Kill a write after its last slot: the journal, what is in it, and the shard."""
    calls = calls_of(scene)
    last = max(n for n, call in enumerate(calls) if call == "futimens")
    status, told = with_fault(scene, last, "kill")
    assert was_killed(status), told
    inode = scene.shard.stat().st_ino
    (journal,) = (p for p in scene.folder.rglob(f".shardcodec-undo-{inode:x}"))
    return journal, journal.read_bytes(), scene.shard.read_bytes()


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", native.load().crc32c(body))


def test_a_torn_journal_is_discarded(tmp_path: Path) -> None:
    """No kill can tear it; but a power cut may, where nothing is synced."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, shard = left_behind(scene)
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
def test_journals_that_lie(tmp_path: Path, change: dict[str, Any]) -> None:
    """Its checksum is right, what it says cannot be: the shard stays as it is."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, good, shard = left_behind(scene)
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
    assert sealed(good[:-4]) == good
    journal.write_bytes(sealed(head + good[len(head) : -4]))
    assert scene.check() == "new"
    assert scene.shard.read_bytes() == shard
    scene.check_next_write()


def test_a_journal_of_another_file(tmp_path: Path) -> None:
    """The shard was replaced after the kill: its journal says nothing about the new one, and goes."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = left_behind(scene)
    other = scene.shard.with_name("other")
    other.write_bytes(scene.bytes["c/0/0"])
    os.replace(other, scene.shard)
    assert scene.seen() == "old"
    scene.write()
    assert scene.seen() == "new"
    assert not journal.exists()
    scene.check_no_litter()


def test_a_journal_that_may_not_be_read(tmp_path: Path) -> None:
    """Then the old bytes cannot be had: an error, not what is in the shard."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    journal, _, _ = left_behind(scene)
    journal.chmod(0)

    def read() -> None:
        if os.geteuid() == 0:
            drop_capabilities()
        with pytest.raises(PermissionError):
            journal.read_bytes()
        with pytest.raises(PermissionError):
            ours(scene.folder / "a")[...]

    in_child(read)


def drop_capabilities() -> None:
    """Root may read everything, by a capability of its own."""
    header = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")


# ---- files that are not overwritten


def in_place(scene: Shard) -> bool:
    inode = scene.shard.stat().st_ino
    scene.write()
    assert scene.seen() == "new"
    return scene.shard.stat().st_ino == inode


def test_several_names(tmp_path: Path) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    os.link(scene.shard, tmp_path / "b")
    assert scene.seen() == "old"
    assert not in_place(scene)
    assert (tmp_path / "b").read_bytes() == scene.bytes["c/0/0"]


def test_an_index_without_checksum(tmp_path: Path) -> None:
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


def test_other_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Shard(tmp_path, Case("raw", "slots"))
    assert in_place(scene)
    scene.restore()
    monkeypatch.setattr(file_system, "LOCAL_TYPES", frozenset())
    assert not in_place(scene)


def test_no_place_for_a_journal(tmp_path: Path) -> None:
    """Where the staging folder cannot be had, nothing is written into the hierarchy instead."""
    scene = Shard(tmp_path, Case("raw", "slots"))
    (tmp_path / ".a.shardcodec").write_text("in the way")
    assert not in_place(scene)
