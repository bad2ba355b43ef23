# test_option_sources.py - every entrance obeys every source of options
# SPDX-License-Identifier: MIT
"""zarr's configuration (`enable`), blocks of `options` and arguments, in all entrances; tools in threads and processes too."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import checked, quiet, shard_path
from kv_stores import key, open_kv
from transformer_stores import buffer
from zarr.storage import LocalStore

import shardcodec
from shardcodec import LockScopeError, ShardSpec, ShardWriter, option_sources
from shardcodec.options import Options
from shardcodec.tools import compact, convert, inspect, plan_convert, repair, run_part, verify
from shardcodec.tools.compact import CompactTask
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.jobs.shard_work import ArrayPlace, ShardWorker
from shardcodec.transformer import ShardingStorageTransformer

PACKAGE = Path(shardcodec.__file__).parent
CONTENT = np.arange(16 * 24, dtype="int32").reshape(16, 24)
FIXED = ShardSpec((8, 12), (4, 3), "int32", -1, [{"name": "bytes", "configuration": {"endian": "little"}}])

Entrance = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an array whose first shard has dead bytes and whose last one is damaged, a store, and a plan."""
    array = checked(tmp_path / "a.zarr")
    array[...] = CONTENT
    with shardcodec.open_shard(
        tmp_path / "a.zarr", "c/0/0", spec(tmp_path), mode="r+", compact=False
    ) as shard:
        shard.erase([(1, 1)])
    last = shard_path(array, "c/1/1")
    data = bytearray(last.read_bytes())
    data[0] ^= 1
    last.write_bytes(data)
    values(tmp_path).write(key(0, 0), b"value")
    (tmp_path / "fixed").write_bytes(shardcodec.encode(CONTENT[:8, :12], FIXED))
    plan(tmp_path, "planned")
    return tmp_path


def first(folder: Path) -> Path:
    return folder / "a.zarr/c/0/0"


def spec(folder: Path) -> ShardSpec:
    return ShardSpec.from_metadata(json.loads((folder / "a.zarr/zarr.json").read_text()))


def values(folder: Path) -> Any:
    return open_kv(folder / "values")


def plan(folder: Path, name: str) -> Any:
    return plan_convert(
        folder / "a.zarr", folder / f"{name}.zarr", folder / f"{name}.json", parts=1, shards=(8, 24)
    )


def stored(folder: Path) -> dict[str, bytes]:
    """Return all shards: neither the copies that `repair` makes first, nor the mark of a conversion."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("a.zarr", "stored.zarr", "new.zarr/c", "planned.zarr/c", "values", "fixed")
        for path in ([folder / name] if (folder / name).is_file() else sorted((folder / name).rglob("*")))
        if path.is_file()
    }


# ---- entrances that write


def write_by_zarr(folder: Path) -> None:
    with shardcodec.enable(), quiet():
        zarr.open_array(folder / "a.zarr", mode="r+")[:4] = 7


def write_attached(folder: Path) -> None:
    with quiet():
        shardcodec.attach(zarr.open_array(folder / "a.zarr", mode="r+"))[:4] = 7


def write_by_handle(folder: Path, **choices: Any) -> None:
    with shardcodec.open_shard(folder / "a.zarr", "c/0/0", spec(folder), mode="r+", **choices) as shard:
        shard.erase([(0, 0)])


def write_shard(folder: Path) -> None:
    with ShardWriter(first(folder), spec(folder)) as writer:
        writer.write_chunk((0, 0), CONTENT[:4, :3])


def write_shard_together(folder: Path) -> None:
    token = ShardWriter.create(folder / "fixed", FIXED)
    with ShardWriter.join(token) as part:
        part.write_chunk((0, 0), CONTENT[:4, :3])
    ShardWriter.join(token).commit([(0, 0)])


def write_value(folder: Path) -> None:
    values(folder).write(key(0, 0), b"other")


def write_by_transformer(folder: Path) -> None:
    store = ShardingStorageTransformer(LocalStore(folder / "stored.zarr"), (2, 2))
    asyncio.run(store.set("c/0/0", buffer(b"chunk")))


def check(report: Any) -> None:
    """Raise an error for the shards that a tool could not change because of the locks."""
    failures = getattr(report, "failures", None) or getattr(report, "shards", ())
    details = [one.detail for one in failures if one.detail]
    if details:
        assert all("locking='cluster'" in detail for detail in details), details
        raise LockScopeError(details[0])


def pack(folder: Path) -> None:
    check(compact(folder / "a.zarr", min_dead=0, threads=2))


def pack_in_order(folder: Path) -> None:
    check(compact(folder / "a.zarr", min_dead=0, order="lexicographic", threads=2))


def repair_in_place(folder: Path) -> None:
    check(repair(folder / "a.zarr", backup=folder / "old", threads=2))


def convert_array(folder: Path) -> None:
    check(convert(folder / "a.zarr", folder / "new.zarr", shards=(8, 24), threads=2))


def run_plan(folder: Path) -> None:
    check(run_part(folder / "planned.json", 0, threads=2))


WRITERS: list[Entrance] = [
    write_by_zarr,
    write_attached,
    write_by_handle,
    write_shard,
    write_shard_together,
    write_value,
    write_by_transformer,
    pack,
    pack_in_order,
    repair_in_place,
    convert_array,
    run_plan,
]


# ---- entrances that read, and those without files


def read_by_zarr(folder: Path) -> Any:
    with shardcodec.enable(), quiet():
        return zarr.open_array(folder / "a.zarr", mode="r")[:4]


def read_attached(folder: Path) -> Any:
    with quiet():
        return shardcodec.attach(zarr.open_array(folder / "a.zarr", mode="r"))[:4]


def read_array(folder: Path) -> Any:
    return shardcodec.open_array(folder / "a.zarr")[:4]


def read_by_handle(folder: Path) -> Any:
    with shardcodec.open_shard(folder / "a.zarr", "c/0/0", spec(folder)) as shard:
        return shard.read_chunks([(0, 0)])


def read_value(folder: Path) -> Any:
    return values(folder).read(key(0, 0))


def read_state(folder: Path) -> Any:
    with quiet():
        return shardcodec.chunk_state(zarr.open_array(folder / "a.zarr", mode="r"))


def encode_and_decode(folder: Path) -> Any:
    return shardcodec.decode(shardcodec.encode(CONTENT[:8, :12], spec(folder)), spec(folder))


def verify_array(folder: Path) -> Any:
    return verify(folder / "a.zarr")


def verify_against(folder: Path) -> Any:
    return verify(folder / "a.zarr", against=folder / "a.zarr")


def inspect_array(folder: Path) -> Any:
    return inspect(folder / "a.zarr")


def plan_array(folder: Path) -> Any:
    return plan(folder, "other")


READERS: list[Entrance] = [
    read_by_zarr,
    read_attached,
    read_array,
    read_by_handle,
    read_value,
    read_state,
    encode_and_decode,
    verify_array,
    verify_against,
    inspect_array,
    plan_array,
]


# ---- what is in force


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Return a list that gets all options that are resolved from here on."""
    found = []

    def resolve(**sources: Any) -> Options:
        found.append(importlib.import_module("shardcodec.options").resolve(**sources))
        return found[-1]

    monkeypatch.setattr(option_sources, "resolve", resolve)
    return found


@pytest.mark.parametrize("entrance", WRITERS + READERS)
def test_configuration_of_zarr_is_in_force(entrance: Entrance, folder: Path, resolved: list[Options]) -> None:
    resolved.clear()
    with shardcodec.enable(lock_timeout=7.5, threads=3), zarr.config.set({"threading.max_workers": 2}):
        entrance(folder)
    assert resolved
    assert {one.lock_timeout for one in resolved} == {7.5}
    assert {one.threads for one in resolved} <= {1, 2}


@pytest.mark.parametrize("entrance", WRITERS + READERS)
def test_block_of_options_wins(entrance: Entrance, folder: Path, resolved: list[Options]) -> None:
    resolved.clear()
    with shardcodec.enable(lock_timeout=7.5), shardcodec.options(lock_timeout=8.5):
        entrance(folder)
    assert resolved
    assert {one.lock_timeout for one in resolved} == {8.5}


@pytest.mark.parametrize("source", [shardcodec.enable, shardcodec.options])
@pytest.mark.parametrize("write", WRITERS)
def test_nothing_is_written_without_the_locks_that_are_asked_for(
    write: Entrance, source: Any, folder: Path
) -> None:
    """`enable(locking="cluster")` protected only arrays of zarr; a block did not reach the threads of the tools."""
    before = stored(folder)
    with source(locking="cluster"), pytest.raises(LockScopeError):
        write(folder)
    assert stored(folder) == before


@pytest.mark.parametrize("write", WRITERS)
def test_block_of_options_permits_what_the_configuration_forbids(write: Entrance, folder: Path) -> None:
    before = stored(folder)
    with shardcodec.enable(locking="cluster"), shardcodec.options(locking="process"):
        write(folder)
    assert stored(folder) != before


def test_argument_permits_what_the_configuration_forbids(folder: Path) -> None:
    before = stored(folder)
    with shardcodec.enable(locking="cluster"):
        write_by_handle(folder, locking="process")
    assert stored(folder) != before


def test_sent_options_are_in_force_in_other_processes(folder: Path) -> None:
    """A worker opens shards with what the main process has resolved, not with its own sources."""
    (array,) = find_arrays(folder / "a.zarr")
    place = ArrayPlace.of(array, str(folder / "a.zarr"), None, None)
    sent = Options(threads=1, locking="cluster")
    before = stored(folder)
    worker = ShardWorker(place, CompactTask(0, None, False, False), sent, n_threads=1, memory=1 << 30)
    ((_, done),) = worker.run([("c/0/0", (0, 0))], 60.0).results
    assert "locking='cluster'" in done.result.detail
    assert stored(folder) == before


# ---- single entrances


def test_order_of_an_encoded_shard() -> None:
    layout = ShardSpec((4, 4), (2, 1), "u1", 0, [{"name": "bytes"}])
    values = np.arange(1, 17, dtype="u1").reshape(4, 4)
    wanted = {order: shardcodec.encode(values, layout, order=order) for order in ("morton", "lexicographic")}
    assert wanted["morton"] != wanted["lexicographic"]
    with shardcodec.enable(order="lexicographic"):
        assert shardcodec.encode(values, layout) == wanted["lexicographic"]
        assert shardcodec.encode(values, layout, order="morton") == wanted["morton"]
        with shardcodec.options(order="morton"):
            assert shardcodec.encode(values, layout) == wanted["morton"]


def test_options_of_an_open_array(folder: Path) -> None:
    with shardcodec.enable(index_cache=1 << 20, io_latency=0.25, threads=2):
        chosen = shardcodec.open_array(folder / "a.zarr")._options
        assert (chosen.index_cache, chosen.io_latency, chosen.threads) == (1 << 20, 0.25, 2)
        assert shardcodec.open_array(folder / "a.zarr", index_cache=4096)._options.index_cache == 4096
        with shardcodec.options(index_cache=8192):
            assert shardcodec.open_array(folder / "a.zarr")._options.index_cache == 8192


def test_open_key_value_store_sees_a_change(folder: Path, resolved: list[Options]) -> None:
    """Reads of single values remember the options; they looked only at blocks for a change."""
    store = values(folder)
    assert store[key(0, 0)] == b"value"
    for seconds in (7.5, 8.5):
        resolved.clear()
        with zarr.config.set({"shardcodec.lock_timeout": seconds}):
            assert store[key(0, 0)] == b"value"
            assert store[key(0, 0)] == b"value"
        assert [one.lock_timeout for one in resolved] == [seconds]


# ---- no other way

# Modules that read zarr's configuration, and why.
MAY_READ_CONFIGURATION = {
    "option_sources.py": "is the one place that all entrances call",
    "__main__.py": "prints each option with its source",
    "tools/doctor/process_facts.py": "prints each option with its source",
    "kv/entries.py": "looks for a change only",
    "storage/event_loop.py": "has as many threads as zarr",
}


def imported_names(path: Path) -> Iterator[str]:
    """Yield the names that a module imports from `options` and `compat`, as ``options.resolve``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").rpartition(".")[2]
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def users_of(*names: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not set(names).isdisjoint(imported_names(path))
    }


def test_options_are_resolved_in_one_module() -> None:
    """Any other module could forget a source."""
    assert users_of("options.resolve") == {"option_sources.py"}
    assert users_of("compat.options_of_zarr", "compat.max_workers") == set(MAY_READ_CONFIGURATION)
