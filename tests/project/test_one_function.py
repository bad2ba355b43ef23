# test_one_function.py - each job is done by one function
# SPDX-License-Identifier: MIT
"""The table "One function for one job" of docs/architecture.md: what a job is made of stands in the file of its function only.

A row of `ONLY_IN` has the job, a pattern, and the files that may contain it. A job that no pattern shows has a test of its own,
whose docstring is the job.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardcodec"

# fmt: off
ONLY_IN: list[tuple[str, str, set[str]]] = [
    ("merge near ranges of an object", r"(?i)[<>]=? (limits\.)?_?(max|free)_gap", {"storage/ranges.py"}),
    ("find inner chunks that lie one after the other", r"offset (==|!=) end\b|0\] != ends\[", {"tools/rewrite.py"}),
    ("read inner chunks of one shard, near ones together", r"merged\[1:\]|for \w+ in range\(0, len\(where\)", {"access/opened_shard.py"}),
    ("the limits of requests", r"async\.concurrency\"|sharding_coalesce|\bcoalescing\(", {"storage/budget.py", "compat.py"}),
    ("hold a part of a limit that calls to one store share", r"asyncio\.(Bounded)?Semaphore\(|Budget\(\), Budget\(", {"storage/budget.py", "access/buffer/process_buffer.py"}),
    ("read again while a writer changes the object", r"st_mtime_ns, found\.st_ino|\bCHANGING_SECONDS\b|\bATTEMPTS\b|[^_]\bchange_pause\(|_PAUSES\[", {"storage/retry.py", "access/write.py"}),
    ("open the bytes of an object whose index may be damaged", r"OpenShard\(None", {"access/opened_shard.py"}),
    ("read a shard inside a shard", r"self\._(first|offset) \+ offset, nbytes", {"access/opened_shard.py"}),
    ("store a file that appears when it is whole", r"\bos\.(link|replace|renames?)\(|\.hardlink_to\(|\bNewFile\(", {"storage/whole_file.py", "access/shard_writer.py", "access/slot_writer.py", "storage/lock_reach.py"}),
    ("write a new hierarchy whose documents come last", r"def (write_documents|check_free|copy_array|claim|check_apart)\(", {"tools/new_hierarchy.py", "tools/job_mark.py"}),
    ("make consolidated metadata", r"[\"'](must_understand|kind)[\"']: (False|\"inline\").*metadata", {"tools/consolidated.py"}),
    ("keep a part of a hierarchy consistent", r"\"(multiscales|column-order|wells)\"", {"tools/conventions/ome_zarr.py", "tools/conventions/anndata.py", "tools/conventions/plates.py", "tools/conventions/spatialdata.py"}),
    ("copy an object as it is", r"^ +put_object\($|COPY_NBYTES", {"tools/backup.py"}),
    ("store an object block by block in any store", r"= Upload\(", {"storage/new_object.py", "access/shard_writer.py"}),
    ("copy encoded inner chunks to a new shard", r"\.write_joined\(", {"tools/rewrite.py"}),
    ("prove the size of an object", r"end - 1, (0, )?1\)|minimum - 1, 1", {"access/consistent_read.py"}),
    ("say which elements of an object a call reads or writes", r"class (ReadItem|Part|ObjectSelection)\b|^Parts\b", {"access/read.py"}),
    ("look at an open file", r"os\.fstat\(", {"storage/file_systems.py", "mounts.py", "tools/convert/zarr_source.py"}),
    ("say what a write has done", r"class (Made|WriteResult|WriteOutcome|Outcome)\b", {"storage/store.py"}),
    ("run a function in a thread from a coroutine", r"asyncio\.to_thread\(|run_in_executor\(", {"storage/event_loop.py"}),
    ("start threads that work on shards or files", r"threading\.Thread\(|\bThreadPoolExecutor(\(|\):)|start_new_thread", {"storage/worker_threads.py", "storage/event_loop.py", "cli/stop_requests.py", "tools/jobs/dask_run.py"}),
    ("work on shards, in threads and on dask", r"\bWorkerThreads\[|client\.submit\(|\.register_plugin\(|\(WorkerPlugin\)", {"access/read_indexes.py", "tools/shard_threads.py", "tools/jobs/dask_run.py", "tools/jobs/dask_workers.py", "storage/concurrent_calls.py", "access/staged/read.py", "access/prefetch.py", "zarr_plugin/children.py", "live/writers.py"}),
    ("work on the shards of several arrays", r"\b_?pool\.results\(", {"tools/run_over_arrays.py"}),
    ("list the first of many and count all", r"len\(\w+(\.\w+)*\) < (\w+\.)?(most|LISTED|NAMED)\b", {"tools/capped.py"}),
    ("read the sizes of the inner chunks of many shards", r"\.load\(\)\.scan\(|[^.]\.scan\($|\.load_sizes\(", {"access/index_scan.py", "transformer/read.py"}),
    ("read the indexes of many shards, where damage is a result", r"class ShardIndex\b|shardcodec-index", {"access/read_indexes.py"}),
    ("parse a basic selection", r"\.indices\(|PySlice_AdjustIndices\(|\bis Ellipsis\b", {"access/selection.py", "binding/slices.pxi"}),
    ("change a document of an array that exists", r"class \w*DocumentMaker\b", {"access/documents.py"}),
    ("write awaited and in a thread without an event loop", r"def \w+_blocking\(", {"storage/runner.py", "storage/replace.py", "access/array_write.py", "access/buffer/__init__.py"}),
    ("store elements, or buffer them in a block of `group_writes`", r"\.write_quickly\(", {"access/buffer/__init__.py", "access/buffer/process_buffer.py"}),
    ("keep elements of one object until they are stored", r"\bOverlay\(", {"access/buffer/buffered.py"}),
]
# fmt: on


def jobs_of_page() -> list[str]:
    """Return the first column of the table."""
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.split("## One function for one job", 1)[1].split("\n## ", 1)[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][1:]


def files_with(pattern: str) -> set[str]:
    """Return the Python and Cython files of the package with a line that matches."""
    sources = [path for path in PACKAGE.rglob("*.p*") if path.suffix in (".py", ".pyx", ".pxi")]
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in sources
        if any(re.search(pattern, line) for line in path.read_text().splitlines())
    }


def test_each_job_of_the_table_has_a_check() -> None:
    own = {value.__doc__ for name, value in globals().items() if name.startswith("test_")}
    checked = {job for job, _, _ in ONLY_IN} | {text.strip().rstrip(".") for text in own if text}
    jobs = jobs_of_page()
    assert len(set(jobs)) == len(jobs) > 0
    assert not set(jobs) - checked, "add a check"
    assert not {job for job, _, _ in ONLY_IN} - set(jobs), "add a row to docs/architecture.md"


@pytest.mark.parametrize(("job", "pattern", "files"), ONLY_IN, ids=[job for job, _, _ in ONLY_IN])
def test_job_is_done_in_its_file_only(job: str, pattern: str, files: set[str]) -> None:
    found = files_with(pattern)
    assert found, f"nothing matches {pattern!r}, so this checks nothing"
    assert not found - files, f"{job}: use the function in the table of docs/architecture.md"
