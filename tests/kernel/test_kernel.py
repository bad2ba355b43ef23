# test_kernel.py - the parts of the program with a kernel that need none (`make test-kernel` runs it)
# SPDX-License-Identifier: MIT

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from faults.histories import ERASED, Recorder, contents
from kernel import root, run
from kernel.machine import Missing, compiled

CHUNKS = list(range(run.N_CHUNKS))


def test_machine_without_debootstrap_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDCODEC_TEST_KERNELS", str(tmp_path))
    monkeypatch.setattr(root.shutil, "which", lambda name: None)
    with pytest.raises(Missing, match=r"debootstrap|needs root|x86-64"):
        root.root()


@pytest.mark.parametrize("value", ["new", "old", "fill"])
def test_lost_update_and_fill_value_are_counted(tmp_path: Path, value: str) -> None:
    folder = tmp_path / "m0/3"
    folder.mkdir(parents=True)
    writer, reader = Recorder(folder, 1), Recorder(folder, 2)
    written = writer.begin([0])
    writer.end()
    seen = np.array([{"new": written, "old": 0, "fill": ERASED}[value]] + [0] * (run.N_CHUNKS - 1))
    reader.read(reader_begin := int(writer._rows["end"][0]) + 1, CHUNKS, contents(seen, CHUNKS, 512))
    reader.read(reader_begin, CHUNKS, contents(seen, CHUNKS, 512), is_last=True)
    counts, wrong = run.check(tmp_path)
    assert (counts["lost"] > 0, counts["missing"]) == (value == "old", 2 * (value == "fill"))
    assert bool(wrong) == (value != "new")


def test_each_seed_begins_with_another_mount() -> None:
    """Ten minutes are enough for four or five mounts, so the last ones of a fixed order never ran."""
    given = argparse.Namespace(only=None, delay=None, kinds=["none"])
    first = {
        run.plan(argparse.Namespace(**vars(given), seed=seed))[0]["name"] for seed in range(len(run.MOUNTS))
    }
    assert first == set(run.MOUNTS)
    (nolock,) = [
        mount
        for mount in run.plan(argparse.Namespace(**vars(given), seed=0))[: len(run.MOUNTS)]
        if mount["name"] == "3-nolock"
    ]
    assert nolock["kinds"] == ["refused"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
@pytest.mark.parametrize("begin", ["stops_begin(7, 3)", "stops_begin_before(7, b'rename', 1)"])
def test_update_stops_before_the_call_that_was_chosen(tmp_path: Path, begin: str) -> None:
    """Calls of another thread in the same array do not count: a reader was stopped in place of the update."""
    try:
        library = compiled(tmp_path, "stops")
    except Missing as reason:
        pytest.skip(str(reason))
    (tmp_path / "x7").mkdir()
    program = f"""
    import ctypes, os, threading, time
    stops = ctypes.CDLL(None)
    stops.stops_call.restype = ctypes.c_char_p
    folder = {str(tmp_path / "x7")!r}
    begun = threading.Event()
    has_read = threading.Event()
    def update():
        stops.{begin}
        fd = os.open(folder + "/new", os.O_CREAT | os.O_WRONLY)
        begun.set()
        has_read.wait()
        os.write(fd, b"new")
        os.rename(folder + "/new", folder + "/shard")
    thread = threading.Thread(target=update)
    thread.start()
    begun.wait()
    for _ in range(5):
        os.close(os.open(folder + "/new", os.O_RDONLY))
    has_read.set()
    while not stops.stops_is_stopped(7):
        time.sleep(0.01)
    print(os.listdir(folder), [stops.stops_call(7, i).decode() for i in (1, 2, 3)])
    stops.stops_end(7)
    thread.join()
    print(os.listdir(folder))
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert told == ["['new'] ['open', 'write', 'rename']", "['shard']"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
def test_calls_are_told_with_their_steps(tmp_path: Path) -> None:
    """Step 8 was never cut: the calls were counted in an update with fewer of them than those of a round have."""
    try:
        library = compiled(tmp_path, "stops")
    except Missing as reason:
        pytest.skip(str(reason))
    (tmp_path / "x7/.shardcodec").mkdir(parents=True)
    (tmp_path / "x7/.shardcodec/old").touch()
    (tmp_path / "x7/a/c/0").mkdir(parents=True)
    (tmp_path / "x7/a/c/0/0").write_bytes(b"old")
    program = f"""
    import ctypes, fcntl, os, struct, threading, time
    stops = ctypes.CDLL(None)
    array = {str(tmp_path / "x7")!r}
    shard = array + "/a/c/0/0"
    def lock(fd, kind):  # F_OFD_SETLK
        fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", kind, 0, 0, 1, 0))
    def update():
        stops.stops_begin_before(7, b"8", 1)
        at = os.open(array + "/.shardcodec", os.O_RDONLY)
        held = os.open("lock", os.O_RDWR | os.O_CREAT, dir_fd=at)
        lock(held, fcntl.F_WRLCK)
        os.unlink("old", dir_fd=at)
        old = os.open(shard, os.O_RDONLY)
        os.pread(old, 3, 0)
        new = os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=at)
        os.pread(old, 3, 0)
        os.write(new, b"new")
        os.close(new)
        os.close(old)
        os.pread(held, 1, 0)
        os.rename("new", shard, src_dir_fd=at)
        lock(held, fcntl.F_UNLCK)
    thread = threading.Thread(target=update)
    thread.start()
    while not stops.stops_is_stopped(7):
        time.sleep(0.01)
    print([stops.stops_step(7, i) for i in range(1, stops.stops_count(7) + 1)], open(shard).read())
    stops.stops_end(7)
    thread.join()
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert told == "[1, 1, 1, 2, 3, 3, 4, 4, 4, 4, 6, 5, 7, 8] new\n"
