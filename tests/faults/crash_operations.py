# crash_operations.py - the operations whose crash states are enumerated
# SPDX-License-Identifier: MIT
"""Each operation makes a start and then takes steps. A step is acknowledged when it returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from faults.crash_model import MODELS
from faults.scenes import with_fault
from helpers import ours, quiet
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec.storage.whole_file import put_file
from shardcodec.tools import compact, convert, repair, verify
from shardcodec.tools.jobs.job_files import Ledger, read_ledgers

__all__ = ["OPERATIONS", "Operation"]

Step = Callable[[Path], object]

SIDE, GRID = 16, 3  # elements along an axis of an inner chunk, inner chunks along an axis of a shard: 3 pages
CHAINS: dict[str, Any] = {
    "raw": [BytesCodec()],
    "crc": [BytesCodec(), Crc32cCodec()],
    "zstd": [BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
}


@dataclass(frozen=True)
class Operation:
    """An operation in a folder, and the models that it is checked under.

    loose: names of files, or ends of names, that may be in part before their step has returned: documents that zarr writes, ledgers.
    direct: appends bypass the page cache where the file system allows it. look: one more check of each state.
    """

    name: str
    prepare: Step
    steps: tuple[Step, ...]
    options: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = MODELS
    loose: tuple[str, ...] = ()
    direct: bool = False
    look: Step = lambda folder: None


def new_array(folder: Path, chain: str = "raw", location: Any = "end", name: str = "a") -> None:
    """An array of two shards, without elements."""
    side = SIDE * GRID
    codec = ShardingCodec(chunk_shape=(SIDE, SIDE), codecs=CHAINS[chain], index_location=location)
    with quiet():
        zarr.create_array(
            folder / name,
            shape=(2 * side, side),
            chunks=(side, side),
            dtype="int32",
            fill_value=-1,
            serializer=codec,
            compressors=None,
        )


def values(seed: int, shape: tuple[int, ...] = (2 * SIDE * GRID, SIDE * GRID)) -> Any:
    """Random numbers do not compress, so an inner chunk fits the slot of any other."""
    return np.random.default_rng(seed).integers(0, 2**31 - 1, shape, dtype=np.int32)


def stored_array(folder: Path, chain: str = "raw", location: str = "end") -> None:
    """The same with elements, but for one inner chunk."""
    new_array(folder, chain, location)
    old = values(0)
    old[:SIDE, SIDE : 2 * SIDE] = -1
    ours(folder / "a")[...] = old


def write(folder: Path, seed: int, box: Any) -> None:
    array = ours(folder / "a")
    array[box] = values(seed, array[box].shape)


# Parts of four inner chunks, one of which is absent; parts of stored ones; both shards; the rest of the first shard.
MIXED = np.s_[1 : SIDE + 2, 2 : SIDE + 2]
SLOTS = np.s_[SIDE + 1 : 2 * SIDE + 2, 2 : SIDE + 2]
BOTH = np.s_[2 * SIDE : 4 * SIDE, :]


def updates() -> list[Operation]:
    """Two updates, one after the other, by each strategy."""
    found = []
    ways = [
        ("replace", "end", False),
        ("append", "end", True),
        ("append", "end", False),
        ("append", "start", False),
    ]
    ways += [("in_place", "end", True), ("in_place", "end", False), ("in_place", "start", False)]
    for strategy, location, direct in ways:
        for chain in CHAINS:
            for durability in ("fsync", "rename"):
                boxes = (SLOTS, MIXED) if strategy == "in_place" else (MIXED, SLOTS)
                models = MODELS if durability == "fsync" else ("kill",)
                if direct and durability == "fsync":
                    models = ("kill", "ext4", "xfs")  # no direct appends elsewhere
                found.append(
                    Operation(
                        f"{strategy}{'-direct' * direct}-{location}-{chain}-{durability}",
                        partial(stored_array, chain=chain, location=location),
                        tuple(partial(write, seed=n + 1, box=box) for n, box in enumerate(boxes)),
                        {"write_strategy": strategy, "durability": durability, "compact": False},
                        models,
                        direct=direct,
                    )
                )
    return found


def write_group(folder: Path) -> None:
    array = ours(folder / "a")
    with shardcodec.group_writes():
        for row in range(0, array.shape[0], SIDE):
            array[row : row + SIDE, SIDE : 2 * SIDE] = values(row, (SIDE, SIDE))


def erase(folder: Path) -> None:
    ours(folder / "a")[: SIDE * GRID] = -1


def write_new(folder: Path) -> None:
    new_array(folder, "crc", name="g/a")
    array = ours(folder / "g/a")
    array[...] = values(3)


def change_attributes(folder: Path, value: int) -> None:
    shardcodec.open_array(folder / "a", mode="r+").attrs["value"] = value


def append_rows(folder: Path) -> None:
    shardcodec.open_array(folder / "a", mode="r+").append(values(4, (SIDE, SIDE * GRID)))


def with_dead_bytes(folder: Path) -> None:
    stored_array(folder, "crc")
    with shardcodec.options(write_strategy="append", compact=False):
        for n in range(3):
            write(folder, n, MIXED)


def damaged(folder: Path) -> None:
    stored_array(folder, "crc")
    with open(folder / "a/c/0/0", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"???")


def repair_in_place(folder: Path) -> None:
    repair(folder / "a", backup=folder / "backup")


def check_backup(folder: Path) -> None:
    """A shard is not repaired before there is a whole backup of it."""
    shard = folder / "a/c/0/0"
    if not shard.read_bytes().endswith(b"???"):
        size = shard.stat().st_size
        found = [path.read_bytes() for path in (folder / "backup").rglob("*") if path.is_file()]
        assert any(len(one) == size and one.endswith(b"???") for one in found), "repaired without a backup"


class _KilledInPlace:
    """An update in place that is killed at its last call but two: the slots are overwritten, and the journal is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self) -> None:
        write(self.folder, 7, SLOTS)


def killed_in_place(folder: Path, chain: str) -> None:
    stored_array(folder, chain)
    with shardcodec.options(write_strategy="in_place", compact=False):
        scene: Any = _KilledInPlace(folder)
        n = 0
        while not (folder / "a/c/0").is_dir() or not _is_half_written(folder):
            status, told = with_fault(scene, n, "kill")
            assert status, f"the update has ended: {told!r}"
            n += 1


def _is_half_written(folder: Path) -> bool:
    names = os.listdir(folder / "a/c/0")
    if not any(name.startswith(".shardcodec-undo-") and not name.endswith(".shard") for name in names):
        return False
    kept = np.memmap(folder / "a/c/0/0", dtype="<i4", mode="r")
    old = values(0)[SIDE + 1, 2:SIDE]
    return not np.isin(old, kept).all()


def with_stale_journal(folder: Path) -> None:
    """A power cut may leave the journal of an update that has ended, without the marker: it says nothing."""
    killed_in_place(folder, "crc")
    (journal,) = [path for path in (folder / "a/c/0").glob(".shardcodec-undo-*") if path.suffix != ".shard"]
    stored = journal.read_bytes()
    settle(folder)
    with shardcodec.options(write_strategy="in_place", compact=False):
        write(folder, 8, SLOTS)
    assert f"{(folder / 'a/c/0/0').stat().st_ino:x}" == journal.name.rpartition("-")[2]
    journal.write_bytes(stored)


def settle(folder: Path) -> None:
    spec = shardcodec.ShardSpec.from_metadata(ours(folder / "a").metadata.to_dict())
    with shardcodec.open_shard(str(folder / "a/c/0/0"), None, spec, mode="r+") as shard:
        shard.roll_back()


def store_file(folder: Path, seed: int) -> None:
    blocks = [values(seed, (1500,)).tobytes(), values(seed + 1, (900,)).tobytes()]
    put_file(str(folder / "files/manifest"), blocks, sync=True)


def verify_to_manifest(folder: Path) -> None:
    verify(folder / "a", manifest=folder / "manifest")


LINES = [{"shard": n, "state": "x" * 1500} for n in range(6)]


def append_lines(folder: Path) -> None:
    with Ledger(str(folder / "job"), "fingerprint") as ledger:
        for line in LINES:
            ledger.append(line)


def check_lines(folder: Path) -> None:
    """Each line of a ledger that counts was written; nothing in a ledger is an error."""
    lines = read_ledgers(str(folder / "job"), "fingerprint").lines
    assert all(line in LINES for line in lines), lines


def convert_old(folder: Path) -> None:
    convert(folder / "old", folder / "new", shards=(2 * SIDE, 2 * SIDE))


def check_converted(folder: Path) -> None:
    """The document of the new array comes last."""
    document = folder / "new/zarr.json"
    if document.exists():
        assert (ours(folder / "new")[...] == values(1, (4 * SIDE, 2 * SIDE))).all()


def old_array(folder: Path) -> None:
    shape = (4 * SIDE, 2 * SIDE)
    with quiet():
        zarr.create_array(folder / "old", shape=shape, chunks=(SIDE, SIDE), dtype="int32")[...] = values(
            1, shape
        )


DURABLE: dict[str, Any] = {"durability": "fsync"}
OPERATIONS = [
    *updates(),
    Operation("new", partial(new_array, chain="crc"), (partial(write, seed=1, box=...),), DURABLE),
    Operation("new-part", partial(new_array, chain="zstd"), (partial(write, seed=1, box=MIXED),), DURABLE),
    Operation("whole", stored_array, (partial(write, seed=1, box=...),), DURABLE),
    Operation("two-shards", stored_array, (partial(write, seed=1, box=BOTH),), DURABLE),
    Operation("group", partial(stored_array, chain="zstd"), (write_group,), DURABLE),
    Operation("erase", stored_array, (erase,), DURABLE),
    Operation("new-array", lambda folder: None, (write_new,), DURABLE, loose=("zarr.json",)),
    Operation(
        "attributes",
        stored_array,
        (partial(change_attributes, value=1), partial(change_attributes, value=2)),
        DURABLE,
    ),
    Operation("append-rows", stored_array, (append_rows,), DURABLE),
    Operation("compact", with_dead_bytes, (lambda folder: compact(folder / "a"),)),
    Operation(
        "compact-order", with_dead_bytes, (lambda folder: compact(folder / "a", order="colexicographic"),)
    ),
    Operation("repair", damaged, (repair_in_place,), look=check_backup),
    Operation(
        "in_place-stale-journal",
        with_stale_journal,
        (partial(write, seed=9, box=SLOTS),),
        {"write_strategy": "in_place", "compact": False, **DURABLE},
    ),
    Operation("roll-back-raw", partial(killed_in_place, chain="raw"), (settle,)),
    Operation("roll-back-crc", partial(killed_in_place, chain="crc"), (settle,)),
    Operation("file", lambda folder: None, (partial(store_file, seed=1), partial(store_file, seed=2))),
    Operation("manifest", stored_array, (verify_to_manifest, verify_to_manifest)),
    Operation("ledger", lambda folder: None, (append_lines,), {}, MODELS[:3], (".jsonl",), look=check_lines),
    Operation("convert", old_array, (convert_old,), DURABLE, look=check_converted),
]
