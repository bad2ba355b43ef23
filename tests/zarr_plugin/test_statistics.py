# test_statistics.py - shardcodec.stats(), and the log of fallbacks to zarr's pipeline
# SPDX-License-Identifier: MIT
"""Counters equal the work that was done. Each reason for a fallback is logged once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import create, in_child, letters, letters_spec, ours, run_python

import shardcodec
from shardcodec import _native, mounts, statistics
from shardcodec.statistics import MAX_KINDS, Statistics


@pytest.fixture(autouse=True)
def local_disk() -> Iterator[None]:
    """The numbers of calls are those of a local disk, also on a busy machine."""
    with shardcodec.options(io_latency=0.0):
        yield


@pytest.fixture(autouse=True)
def fresh() -> None:
    shardcodec.stats.reset()


def test_reads_and_writes_are_counted(tmp_path: Path) -> None:
    array = create(tmp_path, fill_value=0)
    array[0:8, 0:6] = 5
    done = shardcodec.stats()
    assert done["chunks_encoded"] == 4
    assert done["bytes_written"] == 4 * 48 + 8 * 16 + 4
    shardcodec.stats.reset()
    with shardcodec.options(index_cache=0):
        array[...]
    done = shardcodec.stats()
    assert done["opens"] == 4, "`opens` counts missing shards too"
    assert done["chunks_decoded"] == 4
    assert done["bytes_used"] == 4 * 48
    assert done["bytes_fetched"] == 4 * 48 + 8 * 16 + 4
    assert done["requests"] == 2
    assert done["index_hits"] == done["index_misses"] == done["file_hits"] == 0


def test_shards_in_memory_are_not_fetched() -> None:
    shardcodec.decode(letters(), letters_spec())
    done = shardcodec.stats()
    assert (done["requests"], done["bytes_fetched"], done["bytes_used"], done["chunks_decoded"]) == (
        0,
        0,
        16,
        4,
    )


def test_missing_chunks_are_counted() -> None:
    spec = letters_spec()
    blob = shardcodec.encode(np.full((4, 4), 46, np.uint8), spec)
    half = shardcodec.encode(np.tile(np.array([1, 1, 46, 46], np.uint8), (4, 1)), spec)
    shardcodec.decode(blob, spec)
    assert shardcodec.stats()["chunks_decoded"] == 0
    shardcodec.decode(half, spec)
    done = shardcodec.stats()
    assert (done["chunks_decoded"], done["chunks_filled"]) == (2, 2)


def test_fallbacks_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    statistics = Statistics()
    with caplog.at_level(logging.INFO, logger="shardcodec"):
        for reason in ("first", "second", "first"):
            statistics.fallback(reason)
    assert statistics()["fallbacks"] == {"first": 2, "second": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "left to zarr's own pipeline: first",
        "left to zarr's own pipeline: second",
    ]
    statistics.reset()
    assert statistics()["fallbacks"] == {}
    statistics.fallback("first")
    assert len(caplog.records) == 2, "`reset` must not repeat the log of a reason"


def test_too_many_reasons_are_counted_together() -> None:
    statistics = Statistics()
    for i in range(3 * MAX_KINDS):
        statistics.fallback(f"array of shape ({i},)")
    fallbacks = statistics()["fallbacks"]
    assert len(fallbacks) <= MAX_KINDS + 1
    assert sum(fallbacks.values()) == 3 * MAX_KINDS
    assert fallbacks["other reasons"] == 2 * MAX_KINDS


def test_fallback_of_an_array_gives_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Foreign(shardcodec.ShardingCodec):
        pass

    create(tmp_path)[...] = 3
    import zarr
    from zarr.registry import register_codec

    register_codec("sharding_indexed", Foreign)
    name = f"{Foreign.__module__}.{Foreign.__qualname__}"
    with (
        zarr.config.set({"codecs.sharding_indexed": name}),
        caplog.at_level(logging.INFO, logger="shardcodec"),
    ):
        array = ours(tmp_path, strict=False)
        assert array[0, 0] == array[1, 1] == 3
    (reason,) = shardcodec.stats()["fallbacks"]
    assert "Foreign" in reason
    assert shardcodec.stats()["fallbacks"][reason] == 2
    assert sum(reason in record.getMessage() for record in caplog.records) == 1


def test_estimates_are_named_as_lock_scopes_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, a mount with bytes that are no UTF-8 made the call raise; a space was shown as the kernel escapes it."""
    table = tmp_path / "mountinfo"
    table.write_bytes(b"50 1 0:40 / /a\\040b rw - nfs srv:/a rw\n51 1 0:41 / /byte\xff rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", str(table))
    monkeypatch.setattr(_native, "latencies", lambda: {os.makedev(0, 40): 0.25, os.makedev(0, 41): 0.5})
    assert shardcodec.stats()["io_latency"] == {"/a b": 0.25, os.fsdecode(b"/byte\xff"): 0.5}


@pytest.mark.threads
def test_forked_child_counts_on_its_own() -> None:
    shardcodec.decode(letters(), letters_spec())
    statistics.stats.fallback("of the parent")

    def child() -> None:
        done = shardcodec.stats()
        assert done["chunks_decoded"] == 0
        assert done["fallbacks"] == {}

    in_child(child)
    assert shardcodec.stats()["chunks_decoded"] == 4


def test_fork_does_not_load_the_extension() -> None:
    code = """
    import os, sys, warnings
    import shardcodec
    pid = os.fork()
    if pid == 0:
        os._exit("shardcodec._native" in sys.modules)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert run_python(code).returncode == 0
