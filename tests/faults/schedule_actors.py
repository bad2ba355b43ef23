# schedule_actors.py - the processes whose file calls are scheduled: what each does, and what it may leave
# SPDX-License-Identifier: MIT
"""`KINDS`: the actors. `Scene`: the files of one schedule. `Op.perform`: a part of the work of an actor, in its process.

All of them work on one shard of 2 x 2 inner chunks. Each write has a value that no other one has, and stores it in all elements of some
inner chunks, or of the upper halves or the lower halves. So an inner chunk is a pair of values, and a shard is four pairs.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import zarr
from faults.crash_checks import JOURNAL, Layout, layouts_of
from helpers import quiet
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec.tools import compact, repair, verify

__all__ = ["FIRST", "KINDS", "LAYOUTS", "STARTS", "Kind", "Op", "Scene", "State", "Template", "pairs_of"]

SIDE, N_CHUNKS = 8, 4  # elements along an axis of an inner chunk; inner chunks of a shard
SHAPE = (2 * SIDE, 2 * SIDE)
ABSENT, FIRST, TORN = -1, 0, -2
Pair = tuple[int, int]
State = tuple[Pair, ...]
FULL: State = ((FIRST, FIRST),) * N_CHUNKS
EMPTY: State = ((ABSENT, ABSENT),) * N_CHUNKS

CHAINS: dict[str, Any] = {
    "raw": [BytesCodec()],
    "crc": [BytesCodec(), Crc32cCodec()],
    "zstd": [BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
}
# chain of codecs, place of the index
LAYOUTS = ["raw-end", "crc-end", "raw-start", "zstd-start"]
# "pending": a writer in place was killed when it had overwritten some bytes. "stale": a journal without its marker, which a power cut may
# leave. "link": the shard is a link to a file.
STARTS = ["stored", "missing", "pending", "stale", "link"]
# The value that each actor writes; some write the same.
CHUNKS = [(0, 3), (0, 1), (2, 3), (0, 1, 3)]
SHARD = "a/c/0/0"
# The shard of the sweeper.
OTHER = "a/c/0/1"


def box_of(chunk: int, half: int | None = None) -> tuple[slice, slice]:
    """Return the elements of an inner chunk, or of its upper (0) or lower (1) half."""
    row, column = divmod(chunk, 2)
    first, n = row * SIDE, SIDE
    if half is not None:
        first, n = first + half * SIDE // 2, SIDE // 2
    return slice(first, first + n), slice(column * SIDE, (column + 1) * SIDE)


def pairs_of(values: np.ndarray[Any, Any]) -> State:
    """Return what a reader has seen of each inner chunk; `TORN` for a half with several values."""

    def value_of(chunk: int, half: int) -> int:
        part = values[box_of(chunk, half)]
        first = int(part[0, 0])
        return first if (part == first).all() else TORN

    return tuple((value_of(chunk, 0), value_of(chunk, 1)) for chunk in range(N_CHUNKS))


# ---------------------------------------------------------------- the files of a schedule


class Template(NamedTuple):
    """The files from which a scene begins, made once: documents, the shard, another shard, and how they are read."""

    document: bytes
    shard: bytes
    layout: Layout


def make_template(folder: Path, layout: str) -> Template:
    """Make an array with a shard that has dead bytes, so that there is something to pack. It starts threads of zarr."""
    chain, location = layout.split("-")
    place = folder / "a"
    codec: Any = ShardingCodec(chunk_shape=(SIDE, SIDE), codecs=CHAINS[chain], index_location=location)  # type: ignore[arg-type]
    with quiet():
        zarr.create_array(
            place,
            shape=(SHAPE[0], 2 * SHAPE[1]),
            chunks=SHAPE,
            dtype="int32",
            fill_value=ABSENT,
            serializer=codec,
            compressors=None,
        )
    layouts = layouts_of(folder)
    (found,) = layouts.values()
    for value in (FIRST + 5, FIRST):
        write(found, folder / SHARD, range(N_CHUNKS), value, strategy="append", may_pack=False)
    return Template((place / "zarr.json").read_bytes(), (folder / SHARD).read_bytes(), found)


class Scene:
    """The folder of one schedule: an array with one shard, which is in the state `start`."""

    def __init__(self, folder: Path, template: Template, start: str) -> None:
        self.folder, self.layout, self.start = folder, template.layout, start
        self.shard = folder / SHARD
        self._template = template

    @property
    def first_state(self) -> State:
        return EMPTY if self.start == "missing" else FULL

    def make(self) -> None:
        """Make the files. Nothing else is in the folders, so whatever appears later is of the actors."""
        os.makedirs(self.shard.parent)
        (self.folder / "a/zarr.json").write_bytes(self._template.document)
        if self.start == "missing":
            return
        target = self.shard
        if self.start == "link":
            target = self.folder / "target"
            os.symlink("../../../target", self.shard)
        target.write_bytes(self._template.shard)
        if self.start in ("pending", "stale"):
            self._leave_journal(is_pending=self.start == "pending")

    def make_other(self) -> None:
        """Make the shard of a sweeper, and stand in the way of its folder for temporary names: it searches the folder of the shards."""
        (self.folder / OTHER).write_bytes(self._template.shard)
        (self.folder / ".a.shardcodec").touch()

    def _leave_journal(self, *, is_pending: bool) -> None:
        """As a writer in place does that is killed when it has overwritten a part of the shard; csrc/io/sc_undo_impl.h has the format."""
        status = self.shard.stat()
        n = status.st_size // 3
        blob = self.shard.read_bytes()
        old = blob[n : 2 * n]
        other = bytes(byte ^ 0x55 for byte in old)
        if is_pending:
            self.shard.write_bytes(blob[:n] + other + blob[2 * n :])
        begun = status.st_mtime_ns + 1
        os.utime(self.shard, ns=(begun, begun))
        journal = struct.pack("<8s4Q", b"scundo\0\1", status.st_ino, status.st_size, begun, 1)
        journal += struct.pack("<2Q", n, n) + (old if is_pending else other)
        place = self.shard.with_name(f"{JOURNAL}{status.st_ino:x}")
        place.write_bytes(journal + struct.pack("<I", google_crc32c.value(journal)))
        if is_pending:
            os.link(self.shard, f"{place}.shard")

    def lasting_names(self) -> set[str]:
        """Return the names that may be there when all work has ended."""
        names = {"a/zarr.json", SHARD} | {name for name in self.names() if name.startswith("backup/")}
        if self.start == "link":
            names.add("target")
        if (self.folder / OTHER).exists():
            names |= {OTHER, ".a.shardcodec"}
        return names

    def names(self) -> set[str]:
        """Return the files below the folder, and the folder for temporary names."""
        names = set()
        for top, folders, files in os.walk(self.folder):
            here = os.path.relpath(top, self.folder)
            names |= {os.path.normpath(os.path.join(here, name)) for name in files}
            names |= {name for name in folders if name.endswith(".shardcodec")}
        return names


# ---------------------------------------------------------------- the work


@contextmanager
def opened(layout: Layout, path: Path, mode: Any = "r+") -> Iterator[shardcodec.Shard]:
    with shardcodec.open_shard(str(path), None, layout.spec, mode=mode) as shard:
        yield shard


def coords(chunks: Any) -> list[tuple[int, int]]:
    return [divmod(chunk, 2) for chunk in chunks]


def write(
    layout: Layout, path: Path, chunks: Any, value: int, *, strategy: str, may_pack: bool = True
) -> None:
    with shardcodec.options(write_strategy=strategy, compact=may_pack), opened(layout, path) as shard:  # type: ignore[arg-type]
        shard.write_chunks(coords(chunks), np.full((len(chunks), SIDE, SIDE), value, dtype="int32"))


def write_through_array(
    scene: Scene, chunks: Any, value: int, *, strategy: str, half: int | None = None
) -> None:
    """Temporary names are beside the hierarchy then, also if the shard is a link to a file outside of it."""
    array = shardcodec.open_array(scene.folder / "a", mode="r+")
    with shardcodec.options(write_strategy=strategy):  # type: ignore[arg-type]
        array[box_of(chunks[0], half)] = value


def read(scene: Scene) -> State:
    with opened(scene.layout, scene.shard, "r") as shard:
        return pairs_of(shard.read_region())


def erase(scene: Scene, chunks: Any, strategy: str) -> None:
    with shardcodec.options(write_strategy=strategy), opened(scene.layout, scene.shard) as shard:  # type: ignore[arg-type]
        shard.erase(coords(chunks))


def settle(scene: Scene) -> None:
    with opened(scene.layout, scene.shard) as shard:
        shard.roll_back()


def twin(scene: Scene) -> State:
    """Read as a program does that opens the shard once and knows the format only."""
    try:
        blob = scene.shard.read_bytes()
    except FileNotFoundError:
        return EMPTY
    return twins_state(scene.layout, blob)


# Results of the twin, which is slow, by layout and bytes.
_known: dict[tuple[int, bytes], State] = {}


def twins_state(layout: Layout, blob: bytes) -> State:
    key = id(layout), blob
    if key not in _known:
        view = layout.twins_view(blob)
        assert len(view) == 4 * SHAPE[0] * SHAPE[1], "the twin cannot read the shard"
        if len(_known) > 4096:
            _known.clear()
        _known[key] = pairs_of(np.frombuffer(view, dtype="int32").reshape(SHAPE))
    return _known[key]


def pack(scene: Scene, order: Any) -> None:
    report = compact(scene.folder / "a", min_dead=0.0, order=order, threads=1)
    failed = [one for one in report.shards if one.detail]
    assert all("another writer" in one.detail for one in failed), failed


def sweep(scene: Scene) -> None:
    """Update another shard in place, then replace it: the first time each searches the folder for names of dead writers."""
    for value, strategy in ((FIRST + 6, "in_place"), (FIRST + 7, "replace")):
        write(scene.layout, scene.folder / OTHER, [0], value, strategy=strategy, may_pack=False)


# ---------------------------------------------------------------- the actors


@dataclass(frozen=True)
class Op:
    """A part of the work of an actor.

    work: it gets the scene, inner chunks and a value. chunks, half: what it writes. is_erase: it makes them absent.
    """

    work: Callable[[Scene, tuple[int, ...], int], State | None]
    chunks: tuple[int, ...] = ()
    half: int | None = None
    is_erase: bool = False
    value: int = 0

    def perform(self, scene: Scene) -> State | None:
        return self.work(scene, self.chunks, self.value)

    def effect(self, state: State) -> State:
        """Return the state after this work as a whole."""
        if not self.chunks:
            return state
        new = list(state)
        for chunk in self.chunks:
            if self.is_erase:
                new[chunk] = (ABSENT, ABSENT)
            elif self.half is None:
                new[chunk] = (self.value, self.value)
            else:
                pair = list(state[chunk])
                pair[self.half] = self.value
                new[chunk] = (pair[0], pair[1])
        return tuple(new)


@dataclass(frozen=True)
class Kind:
    """An actor. `ops` makes its work for the actor of a number.

    only_replaces: readers that know no journal see its old file or its new one. needs_replace: it is such a reader. needs_other: it
    writes another shard of the folder. needs_peace: nobody may write beside it. writes: it does.
    """

    name: str
    ops: Callable[[int], list[Op]]
    only_replaces: bool = False
    needs_replace: bool = False
    needs_other: bool = False
    needs_peace: bool = False

    @property
    def writes(self) -> bool:
        return self.name in ("compact", "order") or any(op.chunks for op in self.ops(0))


def _values(number: int) -> Iterator[int]:
    return itertools.count(100 * (number + 1))


def writer(strategy: str, *, may_pack: bool = True, n: int = 1) -> Callable[[int], list[Op]]:
    """Return writes of some inner chunks. They do not lie side by side, so an update in place makes a call for each."""

    def work(scene: Scene, chunks: tuple[int, ...], value: int) -> None:
        write(scene.layout, scene.shard, chunks, value, strategy=strategy, may_pack=may_pack)

    def ops(number: int) -> list[Op]:
        return [Op(work, CHUNKS[number], value=value) for value in itertools.islice(_values(number), n)]

    return ops


def half_writer(strategy: str) -> Callable[[int], list[Op]]:
    """Return a write of one half of an inner chunk, through the array; actors of even numbers write upper halves."""

    def work(scene: Scene, chunks: tuple[int, ...], value: int) -> None:
        write_through_array(scene, chunks, value, strategy=strategy, half=value // 100 % 2)

    return lambda number: [Op(work, (1,), half=(number + 1) % 2, value=next(_values(number)))]


def write_whole(scene: Scene, chunks: tuple[int, ...], value: int) -> None:
    write(scene.layout, scene.shard, chunks, value, strategy="replace")


def whole_writer(number: int) -> list[Op]:
    return [Op(write_whole, tuple(range(N_CHUNKS)), value=next(_values(number)))]


def eraser(chunks: tuple[int, ...], strategy: str = "replace") -> Callable[[int], list[Op]]:
    def work(scene: Scene, chunks: tuple[int, ...], value: int) -> None:
        erase(scene, chunks, strategy)

    return lambda number: [Op(work, chunks, is_erase=True)]


def looks(work: Callable[[Scene], State | None], n: int = 1) -> Callable[[int], list[Op]]:
    return lambda number: [Op(lambda scene, chunks, value: work(scene))] * n


def repairer(scene: Scene) -> None:
    report = repair(scene.folder / "a", backup=scene.folder / "backup", threads=1)
    assert not any(one.action == "failed" for one in report.shards), report


def verifier(scene: Scene) -> None:
    """Beside writers it may find an update in place that is not finished, or a temporary name beside a shard, but no damage."""
    kinds = verify(scene.folder / "a", level="decode", threads=1).kinds
    assert set(kinds) <= {"pending journal", "foreign file"}, kinds


KINDS = {
    kind.name: kind
    for kind in [
        Kind("replace", writer("replace"), only_replaces=True),
        Kind("append", writer("append", may_pack=False)),
        Kind("in_place", writer("in_place", may_pack=False)),
        Kind("in_place2", writer("in_place", may_pack=False, n=2)),
        Kind("half", half_writer("replace"), only_replaces=True),
        Kind("half_in_place", half_writer("in_place")),
        Kind("whole", whole_writer, only_replaces=True),
        Kind("erase", eraser((1, 2), "append")),
        Kind("delete", eraser(tuple(range(N_CHUNKS))), only_replaces=True),
        Kind("reader", looks(read, 2), only_replaces=True),
        Kind("twin", looks(twin, 2), only_replaces=True, needs_replace=True),
        Kind("settle", looks(settle), only_replaces=True),
        Kind("compact", looks(lambda scene: pack(scene, None)), only_replaces=True),
        Kind("order", looks(lambda scene: pack(scene, "colexicographic")), only_replaces=True),
        Kind("sweep", looks(sweep), only_replaces=True, needs_other=True),
        Kind("verify", looks(verifier), only_replaces=True),
        Kind("repair", looks(repairer), only_replaces=True, needs_peace=True),
    ]
}
