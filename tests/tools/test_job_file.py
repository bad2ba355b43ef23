# test_job_file.py - when the file of a job stays, and which state of a source a job knows
# SPDX-License-Identifier: MIT
"""A finished job gives its file to the next one; an early error leaves nothing; hosts may number files differently."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from job_files import N_SHARDS, SHARDS, VALUES, check, files, source_array
from monitors import StopAfter

from shardcodec.errors import ConflictError
from shardcodec.tools import convert, status
from shardcodec.tools.convert.work import GroupWork
from shardcodec.tools.job_mark import MARK
from shardcodec.tools.jobs.job_files import Ledger, ledger_folder, read_ledgers
from shardcodec.tools.monitor import Incomplete


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    return source_array(tmp_path / "a.zarr"), tmp_path / "b.zarr", tmp_path / "job.json"


def left(job: Path) -> list[str]:
    """Return what is beside the source."""
    return sorted(path.name for path in job.parent.iterdir() if path.name != "a.zarr")


@pytest.mark.parametrize("resume", [False, True])
def test_finished_job_gives_its_file_to_the_next(resume: bool, places: tuple[Path, Path, Path]) -> None:
    source, new, job = places
    convert(source, new, shards=SHARDS, job=job)
    other = new.with_name("c.zarr")
    report = convert(source, other, shards=SHARDS, job=job, resume=resume)
    assert report.is_complete and (report.n_written, report.n_skipped) == (N_SHARDS, 0)
    found = status(job)
    assert found.destination == str(other) and found.is_complete and found.n_foreign_ledgers == 0
    check(other)


def test_removed_destination_is_converted_again(places: tuple[Path, Path, Path]) -> None:
    """The file of the finished job blocked it, and with `resume` its ledger did not fit."""
    source, new, job = places
    convert(source, new, shards=SHARDS, job=job)
    for resume in (False, True):
        shutil.rmtree(new)
        report = convert(source, new, shards=SHARDS, job=job, resume=resume)
        assert report.is_complete and report.n_written >= N_SHARDS - 1  # one shard has no object
        check(new)


def test_finished_job_stays_if_the_next_cannot_begin(places: tuple[Path, Path, Path]) -> None:
    source, new, job = places
    convert(source, new, shards=SHARDS, job=job)
    with pytest.raises(FileExistsError, match=r"b\.zarr: expected a new path or an empty folder"):
        convert(source, new, shards=SHARDS, job=job)
    assert status(job).is_complete
    assert convert(source, new, shards=SHARDS, job=job, resume=True).n_skipped == N_SHARDS


def test_unfinished_job_keeps_its_file(places: tuple[Path, Path, Path]) -> None:
    source, new, job = places
    convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(4), threads=1)
    with pytest.raises(FileExistsError, match="the job exists already"):
        convert(source, new.with_name("c.zarr"), shards=SHARDS, job=job)
    with pytest.raises(ConflictError, match="fingerprint"):
        convert(source, new.with_name("c.zarr"), shards=SHARDS, job=job, resume=True)
    assert convert(source, new, shards=SHARDS, job=job, resume=True).is_complete


def test_file_that_is_not_a_job_stays(places: tuple[Path, Path, Path]) -> None:
    source, new, job = places
    job.write_text("my notes")
    with pytest.raises(FileExistsError, match="expected a new file for the job"):
        convert(source, new, shards=SHARDS, job=job)
    assert job.read_text() == "my notes" and not new.exists()


@pytest.mark.parametrize("has_job", [False, True])
@pytest.mark.parametrize("had_folder", [False, True])
def test_error_before_anything_is_written_leaves_nothing(
    has_job: bool, had_folder: bool, places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new, job = places
    if had_folder:
        new.mkdir()
    how: dict[str, Any] = {"shards": SHARDS, "job": job if has_job else None}
    with monkeypatch.context() as patch:
        patch.setattr(GroupWork, "run", lambda self, unit: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(source, new, **how)
    assert left(job) == (["b.zarr"] if had_folder else []) and not (had_folder and list(new.iterdir()))
    assert convert(source, new, **how).is_complete
    check(new)


@pytest.mark.parametrize("error", [OSError("no space"), Incomplete("lost")])
def test_job_that_has_written_or_can_go_on_stays(
    error: Exception, places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new, job = places
    original = GroupWork.run
    n_left = 0 if isinstance(error, Incomplete) else 1

    def failing(self: GroupWork, unit: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise error
        return original(self, unit)

    with monkeypatch.context() as patch:
        patch.setattr(GroupWork, "run", failing)
        with pytest.raises(type(error)):
            convert(source, new, shards=SHARDS, job=job, threads=1)
    assert job.exists() and (new / MARK).exists()
    report = convert(source, new, shards=SHARDS, job=job, resume=True)
    assert report.is_complete and (report.n_skipped > 0) == isinstance(error, OSError)
    check(new)


def test_objects_of_another_program_stay_after_an_early_error(
    places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new, job = places

    def failing(self: GroupWork, unit: Any) -> Any:
        (new / "c").mkdir()
        (new / "c/0").write_bytes(b"theirs")
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(GroupWork, "run", failing)
        with pytest.raises(OSError, match="no space"):
            convert(source, new, shards=SHARDS, job=job, threads=1)
    assert (new / "c/0").read_bytes() == b"theirs" and job.exists()


def renumber(folder: Path) -> None:
    """Give each file a new inode; size, time and content stay, as on a host that numbers them differently."""
    for file in list(folder.rglob("*")):
        if file.is_file():
            copy = file.with_name(f"{file.name}.copy")
            shutil.copy2(file, copy)
            assert copy.stat().st_ino != file.stat().st_ino
            copy.replace(file)


@pytest.mark.parametrize("method", [{}, {"codecs": ["zstd", "crc32c"]}])
def test_hosts_may_number_files_differently(method: dict[str, Any], places: tuple[Path, Path, Path]) -> None:
    source, new, job = places
    first = convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(4), threads=1, **method)
    renumber(source)
    renumber(new)
    before = files(new)
    report = convert(source, new, shards=SHARDS, job=job, resume=True, **method)
    assert report.is_complete and report.n_skipped == first.n_written >= 4
    assert {name: files(new)[name] for name in before if name != MARK} == before
    check(new)


def test_hosts_may_number_an_hdf5_file_differently(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    (tmp_path / "in").mkdir()
    source, new, job = tmp_path / "in/a.h5", tmp_path / "b.zarr", tmp_path / "job.json"
    with h5py.File(source, "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(8, 8))
    convert(f"{source}/x", new, shards=SHARDS, job=job, monitor=StopAfter(4), threads=1)
    renumber(source.parent)
    assert convert(f"{source}/x", new, shards=SHARDS, job=job, resume=True).n_skipped >= 4
    check(new)


@pytest.mark.parametrize("change", ["time", "size"])
def test_changed_source_is_refused(change: str, places: tuple[Path, Path, Path]) -> None:
    source, new, job = places
    convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(4), threads=1)
    lines = [
        line.rpartition(" ")[0]
        for line in next(Path(ledger_folder(str(job))).iterdir()).read_text().splitlines()
    ]
    row, column = json.loads(lines[-1])["coords"]
    file = source / f"c/{2 * row}/{2 * column}"
    facts = file.stat()
    if change == "time":
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    else:
        file.write_bytes(file.read_bytes() + b"\0")
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(ConflictError, match="has changed since it was converted"):
        convert(source, new, shards=SHARDS, job=job, resume=True)


def test_threads_that_append_first_at_the_same_time_have_one_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each opened a file; one of the files had no header then, so its records were those of another plan."""
    job, n = str(tmp_path / "job"), 8
    barrier = threading.Barrier(n)
    make = os.makedirs

    def slow(*arguments: Any, **keywords: Any) -> None:
        make(*arguments, **keywords)
        threading.Event().wait(0.05)

    monkeypatch.setattr(os, "makedirs", slow)
    with Ledger(job, "f") as ledger:

        def append(i: int) -> None:
            barrier.wait(10)
            ledger.append({"unit": i})

        threads = [threading.Thread(target=append, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    read = read_ledgers(job, "f")
    assert sorted(line["unit"] for line in read.lines) == list(range(n))
    assert (read.n_damaged, read.n_foreign, len(files(Path(ledger_folder(job))))) == (0, 0, 1)


def test_a_ledger_whose_header_could_not_be_written_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk all later records went into a file without a header, which counts as that of another plan."""
    job, write = str(tmp_path / "job"), os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with Ledger(job, "f") as ledger:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space left"):
            ledger.append({"unit": 0})
        monkeypatch.setattr(os, "write", write)
        ledger.append({"unit": 1})
    assert [line["unit"] for line in read_ledgers(job, "f").lines] == [1]
