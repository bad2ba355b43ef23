# test_jobs.py - jobs that are interrupted and resumed, and plans that are run in parts
# SPDX-License-Identifier: MIT
"""A finished shard is not written again, whatever ends a process; a part may run twice; a changed source is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
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
from shardcodec.tools.jobs.job_files import Ledger, PlanFile, ledger_folder, read_ledgers

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
    plan_convert(source, new, job, n_parts=2, shards=SHARDS)
    odd = Path(ledger_folder(str(job))) / "odd.jsonl"
    odd.parent.mkdir()
    makers = {"folder": odd.mkdir, "fifo": lambda: os.mkfifo(odd)}
    makers.get(kind, lambda: odd.symlink_to("/dev/null" if kind == "device" else "missing"))()
    run_part(job, 0)
    found = status(job)
    assert found.n_foreign_ledgers == 1 and found.parts_left == (1,)
    assert run_part(job, 1).is_complete


def test_source_that_changed_is_refused(source: Path, new: Path, job: Path) -> None:
    convert(source, new, shards=SHARDS, job=job, monitor=StopAfter(4), threads=1)
    with quiet():
        zarr.open_array(source, mode="r+")[0:16, 16:32] = 7
    with pytest.raises(ConflictError, match=r"the source of shard .* has changed since it was converted"):
        convert(source, new, shards=SHARDS, job=job, resume=True)
    assert not (new / "zarr.json").exists()


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
    planned = plan_convert(source, new, job, n_parts=5, shards=SHARDS, **how)
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
    plan_convert(source, new, job, n_parts=2, shards=SHARDS, **how)
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
    plan_convert(tmp_path / "g.zarr", new, job, n_parts=2, shards=(4, 4))
    run_part(job, 1)
    assert run_part(job, 0).is_complete
    made = zarr.open_group(new, mode="r")
    assert dict(made.attrs) == {"k": 1}
    for name in ("x[1]", "deep/y"):
        assert bits(made[name][...]) == bits(VALUES[40:48, 40:48].astype("u1"))


def test_part_with_a_changed_source_is_refused(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, n_parts=2, shards=SHARDS)
    with quiet():
        zarr.open_array(source, mode="r+").resize((72, 48))
    with pytest.raises(ConflictError, match="expected the source of the plan"):
        run_part(job, 0)
    with pytest.raises(ValueError, match="part: expected a number from 0 to 1, got 2"):
        run_part(job, 2)


def test_part_does_not_write_into_an_array_of_another_program(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, n_parts=2, shards=SHARDS)
    with quiet():
        zarr.create_array(new, shape=(4,), dtype="u1")[...] = 1
    before = files(new)
    with pytest.raises(FileExistsError, match="it has metadata"):
        run_part(job, 1)
    assert files(new) == before


def test_failed_part_runs_again(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, n_parts=1, shards=SHARDS, codecs=["gzip"])
    chunk = source / "c/7/5"
    good = chunk.read_bytes()
    chunk.write_bytes(good[:-2])
    report = run_part(job, 0)
    assert report.n_failed == 1 and report.n_written == N_SHARDS - 1 and not report.is_complete
    chunk.write_bytes(good)
    report = run_part(job, 0)
    assert report.n_written == 1 and report.is_complete
    check(new)


def test_plan_with_options_of_a_store_is_private(source: Path, new: Path, job: Path) -> None:
    plan_convert(source, new, job, n_parts=1)
    with pytest.raises(FileExistsError, match="expected a new file"):
        plan_convert(source, new, job, n_parts=1)
    options = {"region": "x"}
    at_url = {"path": f"{job}.secret", "source": "s3://bucket/a.zarr", "storage_options": options}
    secret = dataclasses.replace(PlanFile.read(job), **at_url)
    secret.write()
    assert stat.S_IMODE(Path(secret.path).stat().st_mode) == 0o600
    assert PlanFile.read(secret.path) == secret


def held_command(*arguments: str, new: Path) -> subprocess.Popen[str]:
    """Start a command that waits in the middle of its work: when three shards are stored, until it has noticed a signal."""
    code = """
        import sys, time
        from pathlib import Path
        from shardcodec.cli.app import run
        from shardcodec.cli.stop_requests import StopRequests
        from shardcodec.tools.convert.work import GroupWork
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
    plan_convert(source, new, job, n_parts=1, shards=SHARDS, threads=1)
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
