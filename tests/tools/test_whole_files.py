# test_whole_files.py - manifests and plans appear when they are whole
# SPDX-License-Identifier: MIT
"""A killed run blocks no other one, also with the same number of a process; a full disk is one sentence and leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below

from shardcodec import tools
from shardcodec.cli.app import run
from shardcodec.storage.whole_file import NewWholeFile, put_file
from shardcodec.tools.jobs.job_files import PlanFile


def array(place: Path) -> Path:
    zarr.create_array(place, shape=(40,), chunks=(5,), shards=(20,), dtype="int32")[...] = np.arange(40)
    return place


def killed(work: str, folder: Path) -> None:
    """Run a program that is killed when its file is not whole yet."""
    program = f"""
import os, signal
from shardcodec import tools
from shardcodec.storage.whole_file import NewWholeFile
from shardcodec.tools.verify import against
NewWholeFile.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
{work}
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=folder, check=False)
    assert done.returncode == -signal.SIGKILL


def test_killed_manifest_does_not_block_the_next_run_and_is_removed(tmp_path: Path) -> None:
    """Issue 30, 11: the unfinished manifest was NAME.PID.part. In a container each run has the same number."""
    array(tmp_path / "a.zarr")
    out = tmp_path / "out"
    out.mkdir()
    killed(f"tools.verify({str(tmp_path / 'a.zarr')!r}, manifest={str(out / 'file')!r})", tmp_path)
    (left,) = files_below(out)
    assert left.startswith(".shardcodec-") and str(os.getpid()) not in left.split("-")
    put_file(str(out / "other"), [b""])
    program = "from shardcodec import tools; import sys; tools.verify(sys.argv[1], manifest=sys.argv[2])"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-P", "-c", program, str(tmp_path / "a.zarr"), str(out / "file")], check=True
        )
    assert files_below(out) == ["file", "other"]


def test_leftover_of_an_earlier_version_is_removed(tmp_path: Path) -> None:
    array(tmp_path / "a.zarr")
    for name in "plan", "manifest":
        (tmp_path / f"{name}.{os.getpid()}.part").touch()
    tools.plan_convert(tmp_path / "a.zarr", tmp_path / "new.zarr", tmp_path / "plan", parts=1)
    tools.verify(tmp_path / "a.zarr", manifest=str(tmp_path / "manifest"))
    assert sorted(one for one in os.listdir(tmp_path) if one != "a.zarr") == ["manifest", "plan"]


def test_stopped_manifest_leaves_nothing(tmp_path: Path) -> None:
    file = NewWholeFile(str(tmp_path / "file"))
    Path(file.name).write_bytes(b"half")
    file.abort()
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("is_private", [False, True])
def test_file_of_a_name_that_exists_is_not_replaced(tmp_path: Path, is_private: bool) -> None:
    path = str(tmp_path / "file")
    assert put_file(path, [b"a", b"bc"], may_replace=False, is_private=is_private)
    assert not put_file(path, [b"other"], may_replace=False, is_private=is_private)
    assert (tmp_path / "file").read_bytes() == b"abc" and files_below(tmp_path) == ["file"]
    if is_private:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_error_of_a_caller_leaves_the_old_file(tmp_path: Path) -> None:
    def blocks() -> Any:
        yield b"new"
        raise ZeroDivisionError

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        put_file(str(tmp_path / "file"), blocks())
    assert (tmp_path / "file").read_bytes() == b"old" and files_below(tmp_path) == ["file"]


def test_file_that_its_caller_reads_and_refuses_leaves_the_old_one(tmp_path: Path) -> None:
    """A copy that differs from the object gets no name; see `Backup`."""
    (tmp_path / "file").write_bytes(b"old")

    def check(name: str) -> None:
        assert Path(name).read_bytes() == b"new" and (tmp_path / "file").read_bytes() == b"old"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put_file(str(tmp_path / "file"), [b"n", b"ew"], check=check)
    assert (tmp_path / "file").read_bytes() == b"old" and files_below(tmp_path) == ["file"]


def test_options_of_stores_in_a_plan_are_private(tmp_path: Path) -> None:
    array(tmp_path / "a.zarr")
    new = tmp_path / "new.zarr"
    tools.plan_convert(tmp_path / "a.zarr", new, tmp_path / "plan", parts=1)
    assert stat.S_IMODE((tmp_path / "plan").stat().st_mode) != 0o600
    at_url = {
        "path": str(tmp_path / "secret"),
        "source": "s3://bucket/a.zarr",
        "storage_options": {"key": "x"},
    }
    secret = dataclasses.replace(PlanFile.read(tmp_path / "plan"), **at_url)
    secret.write()
    assert PlanFile.read(secret.path) == secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert json.loads((tmp_path / "secret").read_text())["storage_options"] == {"key": "x"}
    with pytest.raises(FileExistsError, match="expected a new file"):
        secret.write()
    with pytest.raises(FileNotFoundError, match="there is no"):
        tools.plan_convert(tmp_path / "a.zarr", new, tmp_path / "no/plan", parts=1)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to mount a small tmpfs")
def test_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest on a full disk ended with a traceback of SQLite."""
    source = array(tmp_path / "a.zarr")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], check=False
    ).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        (small / "filler").write_bytes(bytes(12 << 10))
        for command in (
            ["verify", str(source), "--manifest", str(small / "file")],
            [
                "plan",
                str(source),
                str(tmp_path / "new.zarr"),
                str(small / "file"),
                "--parts",
                "2",
                "--shards",
                "20",
            ],
            ["convert", str(source), str(tmp_path / "new.zarr"), "--job", str(small / "file")],
        ):
            with open(small / "more", "wb", buffering=0) as file:  # the last bytes
                try:
                    while file.write(bytes(512)):
                        pass
                except OSError:
                    pass
            assert run(command) == 3
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and "file" in error and "Traceback" not in error
            assert files_below(small) == ["filler", "more"]
        assert not (tmp_path / "new.zarr").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)
