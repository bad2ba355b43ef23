# test_kernel.py - the parts of the program with a kernel that need none (`make test-kernel` runs it)
# SPDX-License-Identifier: MIT

from __future__ import annotations

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
def test_update_stops_before_the_call_that_was_chosen(tmp_path: Path) -> None:
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
    def update():
        fd = os.open(folder + "/new", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"new")
        os.rename(folder + "/new", folder + "/shard")
    stops.stops_begin(7, 3)
    thread = threading.Thread(target=update)
    thread.start()
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
