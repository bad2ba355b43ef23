# test_memory_budget.py - the tools keep to the memory that the caller permits
# SPDX-License-Identifier: MIT
"""A shard of any size is read block by block; what must be in memory as a whole and does not fit is refused, and named.

Nor does the memory grow with the number of shards. `bench/suite_tools.py` measures the time.
"""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, store_of
from resident import run_measuring
from tool_sources import get, put

import shardcodec
from shardcodec import ShardSpec, tools
from shardcodec.access.opened_shard import NativeShard, read_runs
from shardcodec.cli.app import run
from shardcodec.options import resolve
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.hierarchy_copy import CopyPlace, CopyWriter, holds_whole_shards
from shardcodec.tools.memory import MemoryBudget

pytestmark = pytest.mark.slow

MIB = 1 << 20
CODECS = [zarr.codecs.Crc32cCodec()]


def large(folder: Path, n: int = 12) -> Any:
    """Write an array of one shard of 4 x n inner chunks of 1 MiB with checksums; the first chunk was replaced by appending."""
    how: dict[str, Any] = {"shape": (4, n * MIB), "shards": (4, n * MIB), "chunks": (1, MIB), "fill_value": 0}
    array = create(folder, dtype="u1", compressors=CODECS, **how)
    array[...] = np.broadcast_to(np.arange(1, 5, dtype="u1")[:, None], array.shape)
    with shardcodec.enable(write_strategy="append", compact=False):
        zarr.open_array(folder)[0, :MIB] = np.full(MIB, 9, "u1")
    return array


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the resident memory is read from /proc")
def test_resident_memory_stays_in_the_budget(tmp_path: Path) -> None:
    """A shard of 48 MiB is verified, compared, repaired and packed with 12 MiB."""
    for n, name in ((1, "small"), (12, "large")):
        large(tmp_path / f"{name}.zarr", n)
        large(tmp_path / f"{name}-copy.zarr", n)
        flip(tmp_path / f"{name}.zarr/c/0/0", 2 * MIB + 100)
    results = run_measuring(
        """
        from shardcodec import tools

        folder, memory = Path(os.environ["FOLDER"]), 12 << 20

        def runs(name):
            array, copy = folder / f"{name}.zarr", folder / f"{name}-copy.zarr"
            how = {"memory": memory, "threads": 8}
            yield "decode", lambda: tools.verify(array, level="decode", **how).n_findings
            yield "against", lambda: tools.verify(copy, against=copy, memory=memory, threads=1).n_findings
            to = folder / f"{name}-new.zarr"
            yield "repair", lambda: tools.repair(array, to=to, copy=copy, **how).n_lost_chunks
            yield "in place", lambda: tools.repair(array, backup=folder / f"{name}-old", **how).n_lost_chunks
            yield "order", lambda: tools.compact(to, order="lexicographic", memory=memory).n_packed
            yield "pack", lambda: tools.compact(copy, min_dead=0, memory=memory).n_packed

        for _, one in runs("small"):
            one()
        print(json.dumps([[name, *peak_of(one)] for name, one in runs("large")]))
        """,
        FOLDER=str(tmp_path),
    )
    assert {name: result for name, result, _ in results} == {
        "decode": 1,
        "against": 0,
        "repair": 0,
        "in place": 1,
        "order": 1,
        "pack": 1,
    }
    assert all(nbytes <= 12 * MIB for _, _, nbytes in results), results


def traced_peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that Python's allocators held at a time."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [
    pytest.param(CODECS[0], id="crc32c"),
    pytest.param(zarr.codecs.ZstdCodec(), id="zstd"),
])  # fmt: skip
@pytest.mark.nightly
def test_shard_of_many_inner_chunks_and_a_lost_index(tmp_path: Path, codec: Any) -> None:
    n = 1 << 12
    array = create(
        tmp_path / "a.zarr",
        shape=(4 * n,),
        shards=(4 * n,),
        chunks=(4,),
        dtype="u1",
        compressors=[codec],
        fill_value=0,
    )
    array[...] = np.arange(4 * n)
    file = tmp_path / "a.zarr/c/0"
    for behind in (1000, 5000):
        flip(file, file.stat().st_size - behind)
    memory = 600 * n + (300 << 10)
    works: list[Callable[[], Any]] = [
        lambda: tools.verify(tmp_path / "a.zarr", memory=memory, threads=1),
        lambda: tools.repair(tmp_path / "a.zarr", dry_run=True, memory=memory),
    ]
    for number, work in enumerate(works):
        work()
        peaks = [
            traced_peak(work) for _ in range(3)
        ]  # tables of the interpreter, and other threads, may grow meanwhile
        assert min(peaks) < memory + MIB, (number, peaks)


def test_one_block_is_held_at_a_time() -> None:
    class Zeros(NativeShard):
        def range(self, offset: int, nbytes: int) -> Any:
            return bytes(nbytes)

    entries = np.array([[i * 1000, 1000] for i in range(4096)], dtype=np.uint64)

    def work() -> None:
        for _, data in read_runs(Zeros(None, b""), entries, np.arange(4096), MIB):
            assert len(data) == 1000

    assert MIB * 0.9 < traced_peak(work) < 1.9 * MIB


def test_fewer_threads_work_if_memory_is_short() -> None:
    spec = ShardSpec((8, MIB), (1, MIB), "u1", 0, ["bytes", "crc32c"])
    assert MemoryBudget(None).share(spec, "a", 8).n_threads == 8
    assert MemoryBudget(64 * MIB).share(spec, "a", 8).n_threads == 8
    shared = MemoryBudget(8 * MIB).share(spec, "a", 8)
    assert shared.n_threads == 2 and MIB < shared.block_nbytes < 2 * MIB
    assert MemoryBudget(4 * MIB).share(spec, "a", 8).n_threads == 1
    # a store that takes whole objects only: with a bound, one shard is in memory at a time
    assert MemoryBudget(64 * MIB).share(spec, "a", 8, holds_whole=True).n_threads == 1
    assert MemoryBudget(None).share(spec, "a", 8, holds_whole=True).n_threads == 8


@pytest.mark.parametrize("kind", ["local", "memory", "other", "conditional"])
def test_stores_that_hold_a_new_shard_in_memory(kind: str, tmp_path: Path) -> None:
    store, to = store_of(kind, tmp_path / "a.zarr"), store_of(kind, tmp_path / "b.zarr")
    create(store)
    (array,) = find_arrays(store)
    assert holds_whole_shards(array, None) == (kind != "local")
    new = CopyWriter(CopyPlace(to), MemoryBudget(None), resolve())
    assert holds_whole_shards(array, new) == (kind in ("memory", "other"))


@pytest.mark.parametrize("work", [tools.verify, tools.repair, tools.compact])
def test_inner_chunk_that_does_not_fit_is_told_before_work_starts(tmp_path: Path, work: Any) -> None:
    large(tmp_path / "a.zarr", 1)
    how = {"dry_run": True} if work is not tools.verify else {}
    with pytest.raises(
        ValueError,
        match=r"memory: expected at least 3\.\d+ MiB for a shard of .*a\.zarr, whose index has 4 entries and "
        r"whose inner chunks have 1 MiB, got 2 MiB",
    ):
        work(tmp_path / "a.zarr", memory=2 * MIB, **how)


@pytest.mark.parametrize(
    ("memory", "error"),
    [(0, ValueError), (-5, ValueError), (1.5, TypeError), (b"1MiB", TypeError), ("much", ValueError)],
)
@pytest.mark.parametrize("work", [tools.verify, tools.repair, tools.compact])
def test_wrong_memory_is_told(tmp_path: Path, work: Any, memory: Any, error: Any) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    with pytest.raises(error, match="memory: expected a"):
        work(tmp_path / "a.zarr", memory=memory)


def test_stored_inner_chunk_larger_than_the_memory_is_named(tmp_path: Path) -> None:
    """Zeros compress well, and a damaged entry claims most of the object: it is not read, and nothing is changed."""
    array = create(tmp_path / "a.zarr", compressors=[zarr.codecs.GzipCodec()])
    array[...] = 1
    file = tmp_path / "a.zarr/c/0/0"
    spec = ShardSpec.from_metadata(array.metadata.to_dict())
    index = shardcodec.ChainSpec(spec.index_shape, "uint64", 2**64 - 1, spec.index_codecs)
    entries = np.full(spec.index_shape, 2**64 - 1, np.uint64)
    entries[1, 2], entries[1, 3] = (0, 2 * MIB), (3 * MIB - 10, 10)
    file.write_bytes(bytes(3 * MIB) + shardcodec.encode(entries, index))
    before = file.read_bytes()
    report = tools.verify(tmp_path / "a.zarr", memory=MIB)
    (shard,) = report.shards
    assert [one.kind.value for one in shard.findings] == ["unreadable"]
    text = r"shard '.*c/0/0': inner chunk \(1, 2\) has 2 MiB, more than the .* that `memory` leaves for it"
    assert_matches(text, shard.findings[0].detail)
    (repaired,) = tools.repair(tmp_path / "a.zarr", backup=tmp_path / "old", memory=MIB).shards
    assert repaired.action.value == "unreadable"
    assert_matches(text, repaired.detail)
    (packed,) = tools.compact(tmp_path / "a.zarr", to=tmp_path / "b.zarr", memory=MIB).shards
    assert packed.action.value == "failed"
    assert_matches(text, packed.detail)
    assert file.read_bytes() == before and not (tmp_path / "b.zarr/c/0/0").exists()
    assert tools.verify(tmp_path / "a.zarr", memory=8 * MIB).kinds == {"decode error": 2}


def assert_matches(text: str, found: str | None) -> None:
    assert found is not None and re.search(text, found), found


@pytest.mark.parametrize("kind", ["memory", "conditional"])
def test_whole_shard_that_does_not_fit_is_refused_in_place(tmp_path: Path, kind: str) -> None:
    """In stores of requests a shard is replaced as a whole, so it has to fit; to a new folder it does not."""
    store = store_of(kind, tmp_path / "a.zarr")
    how: dict[str, Any] = {"shape": (4, MIB), "shards": (4, MIB), "chunks": (1, 64 << 10), "fill_value": 0}
    array = create(store, dtype="u1", compressors=CODECS, **how)
    array[...] = np.broadcast_to(np.arange(1, 5, dtype="u1")[:, None], array.shape)
    (packed,) = tools.compact(store, order="lexicographic", memory=MIB).shards
    text = r"shard 'c/0/0': it has 4 MiB, and this store needs all of it in memory, but `memory` is 1 MiB"
    assert packed.action.value == "failed"
    assert_matches(text, packed.detail)
    damaged = b"?" + get(store, "c/0/0")[1:]
    put(store, "c/0/0", damaged)
    (repaired,) = tools.repair(store, backup=tmp_path / "old", memory=MIB).shards
    assert repaired.action.value == "unreadable"
    assert_matches(text, repaired.detail)
    assert get(store, "c/0/0") == damaged
    other = store_of("other", tmp_path)  # it takes whole objects only
    (left,) = tools.repair(store, to=other, memory=MIB).shards
    assert_matches(text, left.detail)
    assert tools.repair(store, to=tmp_path / "new.zarr", memory=MIB).n_lost_chunks == 1
    assert tools.verify(tmp_path / "new.zarr").n_findings == 0


def test_commands_take_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large(tmp_path / "a.zarr", 1)
    for command in (["verify"], ["repair", "--dry-run"], ["compact", "--dry-run"]):
        arguments = [command[0], str(tmp_path / "a.zarr"), *command[1:]]
        assert run([*arguments, "--memory", "16MiB"]) == 0
        assert run([*arguments, "--memory", "1MiB"]) == 2
        assert "memory: expected at least" in capsys.readouterr().err
        assert run([*arguments, "--memory", "much"]) == 2
        capsys.readouterr()


N_SHARDS = 100_000
MIB = 1 << 20


def small_shards(path: Path, n: int) -> None:
    """Make an array of `n` shards of 10 KiB."""
    array = create(
        path,
        shape=(8 * n, 640),
        shards=(8, 640),
        chunks=(4, 80),
        dtype="u2",
        fill_value=0,
        compressors=[zarr.codecs.Crc32cCodec()],
    )
    array[:8] = np.random.default_rng(0).integers(1, 60000, (8, 640), dtype="u2")
    data = (path / "c/0/0").read_bytes()
    for i in range(1, n):
        (path / f"c/{i}").mkdir()
        (path / f"c/{i}/0").write_bytes(data)


@pytest.mark.nightly
def test_memory_of_a_hundred_thousand_shards(tmp_path: Path) -> None:
    small_shards(tmp_path / "few.zarr", 1000)
    small_shards(tmp_path / "many.zarr", N_SHARDS)
    found = run_measuring(
        """
        from shardcodec import tools

        folder, found = Path(os.environ["FOLDER"]), []
        for name in ("few", "many"):
            for tool, how in ((tools.inspect, {}), (tools.verify, {"level": "index"})):
                found.append(peak_of(lambda: tool(folder / f"{name}.zarr", threads=2, **how).n_findings))
        print(json.dumps(found))
        """,
        seconds=600,
        FOLDER=str(tmp_path),
    )
    assert [n for n, _ in found] == [0, 0, 0, 0]
    assert all(nbytes < 8 * MIB for _, nbytes in found[2:]), found
