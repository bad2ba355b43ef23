# test_jobs.py - jobs that are resumed, parts of a plan, and the file of a job
# SPDX-License-Identifier: MIT
"""A finished shard is not written again, whatever ends a process; a part may run twice; a changed source is refused.

A finished job gives its file to the next one; an early error leaves nothing; hosts may number files differently.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bits, python_environment, quiet
from job_files import N_SHARDS, SHARDS, VALUES, check, files
from monitors import StopAfter

from shardcodec.cli.app import run
from shardcodec.errors import ConflictError
from shardcodec.tools import convert, plan_convert, run_part, status
from shardcodec.tools.convert.write_group import GroupWork
from shardcodec.tools.job_mark import MARK
from shardcodec.tools.jobs.job_files import Ledger, ledger_folder, read_ledgers
from shardcodec.tools.monitor import Incomplete

METHODS: list[dict[str, Any]] = [
    {},
    {"codecs": ["zstd", "crc32c"]},
    {"chunks": (4, 4), "memory": 3000, "threads": 1},
]


@pytest.mark.parametrize("how", METHODS)
def test_resumed_job_writes_no_finished_shard_again(
    how: dict[str, Any], source: Path, new: Path, job: Path
) -> None:
    first = convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(3), **how)
    assert not first.is_complete and 3 <= first.n_written < N_SHARDS
    assert not (new / "zarr.json").exists()
    before = files(new)
    with pytest.raises(FileExistsError, match="the job exists already"):
        convert(source, new, shards=SHARDS, job=job, **how)
    second = convert(source, new, shards=SHARDS, job=job, resume=True, **how)
    assert second.is_complete
    assert (second.n_written, second.n_skipped) == (N_SHARDS - first.n_written, first.n_written)
    after = files(new)
    assert {name: after[name] for name in before} == before
    assert len(after) == N_SHARDS - 1
    check(new)
    third = convert(source, new, shards=SHARDS, job=job, resume=True, **how)
    assert third.is_complete and third.n_written == 0 and files(new) == after


def test_resume_begins_a_job_that_does_not_exist(source: Path, new: Path, job: Path) -> None:
    assert convert(source, new, shards=SHARDS, job=job, resume=True).is_complete
    check(new)


def test_shard_that_was_changed_or_deleted_is_written_again(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job)
    (new / "zarr.json").unlink()  # as before the end: a finished job writes nothing
    (new / "c/1/1").unlink()
    data = bytearray((new / "c/2/2").read_bytes())
    facts = (new / "c/2/2").stat()
    data[-1] ^= 1  # the index; size, inode and time stay
    with (new / "c/2/2").open("r+b") as file:
        file.write(data)
    os.utime(new / "c/2/2", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    shutil.copyfile(new / "c/3/0", new / "copy")
    os.replace(new / "copy", new / "c/3/0")
    os.utime(new / "c/3/0", ns=(0, 0))
    report = convert(source, new, shards=SHARDS, job=job, resume=True)
    assert report.n_written == 3
    check(new)


def test_damaged_lines_of_a_ledger_do_not_count(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job)
    (ledger,) = Path(ledger_folder(str(job))).iterdir()
    lines = ledger.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + N_SHARDS + 1
    del lines[-1]  # that the metadata are written
    (new / "zarr.json").unlink()
    lines[3] = lines[3].replace(b'"nbytes":', b'"nbyteS":')
    lines[5] = b"\xff\n"
    lines[-1] = lines[-1][:-20]  # torn
    ledger.write_bytes(b"".join(lines))
    before = files(new)
    report = convert(source, new, shards=SHARDS, job=job, resume=True)
    assert (report.n_damaged_lines, report.n_written, report.n_skipped) == (3, 3, N_SHARDS - 3)
    assert sum(files(new)[name] == before[name] for name in before) >= len(before) - 3
    check(new)
    assert status(job).n_damaged_lines == 3


def test_ledger_tells_indexes_apart(source: Path, new: Path, job: Path) -> None:
    """The checksum was that of the index and its own checksum together, which is one number for all indexes of a size."""
    convert(source, new, shards=SHARDS, job=job)
    (ledger,) = Path(ledger_folder(str(job))).iterdir()
    records = [json.loads(line.rsplit(b" ", 1)[0]) for line in ledger.read_bytes().splitlines()]
    checksums = [record["index_crc"] for record in records if "index_crc" in record]
    assert len(checksums) == N_SHARDS
    assert len(set(checksums)) > N_SHARDS // 2


def test_ledger_of_another_plan_does_not_count(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job)
    (ledger,) = Path(ledger_folder(str(job))).iterdir()
    with Ledger(str(job), "another") as other:
        other.append({"array": "", "coords": [0, 0], "nbytes": 0, "state": None, "index_crc": None})
    assert read_ledgers(str(job), "another").n_foreign == 1
    assert status(job).n_foreign_ledgers == 1 and status(job).n_finished == N_SHARDS
    ledger.write_bytes(b"")
    assert status(job).n_finished == 0


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to nothing", "device"])
def test_entry_that_is_no_regular_file_is_left_out_of_the_ledgers(
    kind: str, source: Path, new: Path, job: Path
) -> None:
    plan_convert(source, new, job, parts=2, shards=SHARDS)
    odd = Path(ledger_folder(str(job))) / "odd.jsonl"
    odd.parent.mkdir()
    makers = {"folder": odd.mkdir, "fifo": lambda: os.mkfifo(odd)}
    makers.get(kind, lambda: odd.symlink_to("/dev/null" if kind == "device" else "missing"))()
    run_part(job, 0)
    found = status(job)
    assert found.n_foreign_ledgers == 1 and found.parts_left == (1,)
    assert run_part(job, 1).is_complete


def test_other_metadata_or_options_are_refused(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(4))
    with pytest.raises(
        ConflictError, match="expected the source and the options with which the job was begun"
    ):
        convert(source, new, shards=(32, 16), job=job, resume=True)
    with quiet():
        zarr.open_array(source, mode="r+").attrs["k"] = 1
    with pytest.raises(ConflictError, match="fingerprint"):
        convert(source, new, shards=SHARDS, job=job, resume=True)


def test_job_must_be_a_file_elsewhere_and_of_paths(source: Path, new: Path, job: Path) -> None:
    with pytest.raises(ValueError, match="expected a file outside of the new hierarchy"):
        convert(source, new, job=new / "job.json")
    with pytest.raises(TypeError, match="source: expected a path or a URL"):
        convert(VALUES, new, job=job)
    job.write_text("{}")
    with pytest.raises(ValueError, match="expected a plan of shardcodec"):
        convert(source, new, job=job, resume=True)
    with pytest.raises(ValueError, match="expected a plan of shardcodec"):
        status(job)


@pytest.mark.parametrize("how", METHODS[:2])
def test_parts_in_any_order_and_twice(how: dict[str, Any], source: Path, new: Path, job: Path) -> None:
    planned = plan_convert(source, new, job, parts=5, shards=SHARDS, **how)
    assert planned.dry_run and not new.exists()
    done = 0
    for part in (3, 0, 4, 1):
        report = run_part(job, part)
        assert not report.is_complete
        done += report.n_written
        assert status(job).n_finished == done
    assert status(job).parts_left == (2,) and not status(job).is_complete
    before = files(new)
    again = run_part(job, 3)
    assert again.n_written == 0 and again.n_skipped == again.n_shards > 0 and files(new) == before
    last = run_part(job, 2)
    assert last.is_complete and status(job).is_complete and status(job).parts_left == ()
    assert done + last.n_written == N_SHARDS
    check(new)
    assert run_part(job, 0).is_complete


@pytest.mark.parametrize("how", METHODS[:2])
def test_duplicate_parts_store_the_same_bytes(
    how: dict[str, Any], source: Path, new: Path, job: Path
) -> None:
    plan_convert(source, new, job, parts=2, shards=SHARDS, **how)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: run_part(job, part), [0, 0, 1, 1]))
    assert run_part(job, 0).is_complete  # whichever saw the last ledger line
    check(new)
    stored = {name: (new / name).read_bytes() for name in files(new)}
    shutil.rmtree(new)
    shutil.rmtree(ledger_folder(str(job)))
    run_part(job, 0)
    assert run_part(job, 1).is_complete
    assert {name: (new / name).read_bytes() for name in files(new)} == stored


def test_part_of_a_group(tmp_path: Path, new: Path, job: Path) -> None:
    with quiet():
        group = zarr.create_group(tmp_path / "g.zarr", attributes={"k": 1})
        for name in ("x[1]", "deep/y"):
            group.create_array(name, shape=(8, 8), chunks=(4, 4), dtype="u1")[...] = VALUES[40:48, 40:48]
    plan_convert(tmp_path / "g.zarr", new, job, parts=2, shards=(4, 4))
    run_part(job, 1)
    assert run_part(job, 0).is_complete
    made = zarr.open_group(new, mode="r")
    assert dict(made.attrs) == {"k": 1}
    for name in ("x[1]", "deep/y"):
        assert bits(made[name][...]) == bits(VALUES[40:48, 40:48].astype("u1"))


def test_part_with_a_changed_source_is_refused(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, parts=2, shards=SHARDS)
    with quiet():
        zarr.open_array(source, mode="r+").resize((72, 48))
    with pytest.raises(ConflictError, match="expected the source of the plan"):
        run_part(job, 0)
    with pytest.raises(ValueError, match="part: expected a number from 0 to 1, got 2"):
        run_part(job, 2)


def test_failed_part_runs_again(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, parts=1, shards=SHARDS, codecs=["gzip"])
    chunk = source / "c/7/5"
    good = chunk.read_bytes()
    chunk.write_bytes(good[:-2])
    report = run_part(job, 0)
    assert report.n_failed == 1 and report.n_written == N_SHARDS - 1 and not report.is_complete
    chunk.write_bytes(good)
    report = run_part(job, 0)
    assert report.n_written == 1 and report.is_complete
    check(new)


def held_command(*arguments: str, new: Path) -> subprocess.Popen[str]:
    """Start a command that waits in the middle of its work: when three shards are stored, until it has noticed a signal."""
    code = """
        import sys, time
        from pathlib import Path
        from shardcodec.cli.app import run
        from shardcodec.cli.stop_requests import StopRequests
        from shardcodec.tools.convert.write_group import GroupWork
        requests, original, begin = [], GroupWork.run, StopRequests.__enter__
        def noted(self):
            requests.append(self)
            return begin(self)
        def held(self, unit):
            while len(list(new.glob("c/*/*"))) >= 3 and not requests[-1].requested:
                time.sleep(0.01)
            return original(self, unit)
        StopRequests.__enter__, GroupWork.run = noted, held
        new = Path(sys.argv[1])
        sys.exit(run(sys.argv[2:]))
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code), str(new), *arguments],
        env=python_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_shards(new: Path, process: subprocess.Popen[str]) -> None:
    while len(files(new)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_leads_to_exit_code_4_and_the_job_goes_on(
    number: int, source: Path, new: Path, job: Path
) -> None:
    arguments = ["convert", str(source), str(new), "--shards", "16,16", "--threads", "1", "--job", str(job)]
    process = held_command(*arguments, new=new)
    wait_for_shards(new, process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 4, err
    assert "incomplete" in out and not (new / "zarr.json").exists()
    before = files(new)
    assert 3 <= len(before) < N_SHARDS - 1
    assert run([*arguments, "--resume"]) == 0
    assert {name: files(new)[name] for name in before} == before
    check(new)


@pytest.mark.slow
def test_signal_without_job_leads_to_exit_code_130(source: Path, new: Path) -> None:
    process = held_command("convert", str(source), str(new), "--shards", "16,16", "--threads", "1", new=new)
    wait_for_shards(new, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130 and not (new / "zarr.json").exists()


@pytest.mark.slow
def test_kill_leaves_whole_shards_and_the_job_goes_on(source: Path, new: Path, job: Path) -> None:
    arguments = ["convert", str(source), str(new), "--shards", "16,16", "--threads", "1", "--job", str(job)]
    process = held_command(*arguments, new=new)
    wait_for_shards(new, process)
    process.kill()
    process.communicate()
    finished = status(job).n_finished
    before = files(new)
    report = convert(source, new, shards=SHARDS, job=job, resume=True)
    assert report.is_complete and report.n_skipped == finished >= 2
    same = [name for name in before if files(new)[name] == before[name]]
    assert len(same) >= finished - 1  # one finished shard has no object
    check(new)
    assert not [
        file for file in new.rglob("*") if file.is_file() and file.name.startswith(".")
    ]  # no mark either


@pytest.mark.slow
def test_signal_ends_a_part_with_exit_code_4(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, parts=1, shards=SHARDS, threads=1)
    process = held_command("run-part", str(job), "0", "--threads", "1", new=new)
    wait_for_shards(new, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 4
    before = files(new)
    assert run(["status", str(job)]) == 4
    assert run(["run-part", str(job), "0"]) == 0
    assert run(["status", str(job)]) == 0
    assert {name: files(new)[name] for name in before} == before
    check(new)


@pytest.mark.slow
@pytest.mark.parametrize("codecs", ["zstd", None])
def test_memory_is_bounded(codecs: str | None, tmp_path: Path) -> None:
    """The data of one shard take 64 MiB, and the budget is 16 MiB."""
    with quiet():
        array = zarr.create_array(
            tmp_path / "a.zarr", shape=(4096, 2048), chunks=(128, 128), dtype="int64", compressors=None
        )
        array[...] = np.random.default_rng(0).integers(0, 2**60, (4096, 2048))
    code = """
        import json, resource, sys
        from shardcodec.tools import convert
        source, to, codecs, memory, dry_run = sys.argv[1:]
        how = {} if codecs == "None" else {"codecs": [codecs]}
        report = convert(
            source, to, shards=(4096, 2048), memory=int(memory), threads=2, dry_run=dry_run == "1", **how
        )
        print(json.dumps([report.memory_nbytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
    """

    def peak(memory: int, dry_run: bool) -> int:
        done = subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(code), str(tmp_path / "a.zarr"), str(tmp_path / f"{memory}"),
             str(codecs), str(memory), str(int(dry_run))],
            env=python_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        planned, found = json.loads(done.stdout)
        assert planned <= memory
        return int(found)

    budget = 16 << 20
    base = peak(budget, True)
    assert peak(budget, False) - base < budget + (8 << 20)
    with quiet():
        assert bits(zarr.open_array(tmp_path / str(budget), mode="r")[...]) == bits(array[...])


def left(job: Path) -> list[str]:
    """Return what is beside the source."""
    return sorted(path.name for path in job.parent.iterdir() if path.name != "a.zarr")


@pytest.mark.parametrize("resume", [False, True])
def test_finished_job_gives_its_file_to_the_next(resume: bool, source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job)
    other = new.with_name("c.zarr")
    report = convert(source, other, shards=SHARDS, job=job, resume=resume)
    assert report.is_complete and (report.n_written, report.n_skipped) == (N_SHARDS, 0)
    found = status(job)
    assert found.destination == str(other) and found.is_complete and found.n_foreign_ledgers == 0
    check(other)


def test_removed_destination_is_converted_again(source: Path, new: Path, job: Path) -> None:
    """The file of the finished job blocked it, and with `resume` its ledger did not fit."""
    convert(source, new, shards=SHARDS, job=job)
    for resume in (False, True):
        shutil.rmtree(new)
        report = convert(source, new, shards=SHARDS, job=job, resume=resume)
        assert report.is_complete and report.n_written >= N_SHARDS - 1  # one shard has no object
        check(new)


def test_finished_job_stays_if_the_next_cannot_begin(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job)
    with pytest.raises(FileExistsError, match=r"b\.zarr: expected a new path or an empty folder"):
        convert(source, new, shards=SHARDS, job=job)
    assert status(job).is_complete
    assert convert(source, new, shards=SHARDS, job=job, resume=True).n_skipped == N_SHARDS


def test_unfinished_job_keeps_its_file(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(4), threads=1)
    with pytest.raises(FileExistsError, match="the job exists already"):
        convert(source, new.with_name("c.zarr"), shards=SHARDS, job=job)
    with pytest.raises(ConflictError, match="fingerprint"):
        convert(source, new.with_name("c.zarr"), shards=SHARDS, job=job, resume=True)
    assert convert(source, new, shards=SHARDS, job=job, resume=True).is_complete


def test_file_that_is_not_a_job_stays(source: Path, new: Path, job: Path) -> None:
    job.write_text("my notes")
    with pytest.raises(FileExistsError, match="expected a new file for the job"):
        convert(source, new, shards=SHARDS, job=job)
    assert job.read_text() == "my notes" and not new.exists()


@pytest.mark.parametrize("has_job", [False, True])
@pytest.mark.parametrize("had_folder", [False, True])
def test_error_before_anything_is_written_leaves_nothing(
    has_job: bool, had_folder: bool, source: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    error: Exception, source: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    source: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

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
def test_hosts_may_number_files_differently(
    method: dict[str, Any], source: Path, new: Path, job: Path
) -> None:
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
def test_changed_source_is_refused(change: str, source: Path, new: Path, job: Path) -> None:
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
