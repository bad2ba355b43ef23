# random_damage.py - random damages of random arrays, and what repair must have made of them
# SPDX-License-Identifier: MIT
"""`Scene`: an array of one shard in a random layout, a random damage of its object, and perhaps a copy.

`check_scene` compares `verify` and `repair` with a reader that shares no code with them (`reference.py`).
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from helpers import quiet
from reference import ABSENT, ShardMeta, decode_shard, read_index
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec import ShardSpec
from shardcodec.tools import repair, verify
from shardcodec.tools.findings import FindingKind
from shardcodec.tools.repair.report import RepairAction, RepairedShard

__all__ = ["Scene", "check_scene"]

FILL = 7
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}
INDEX = [LITTLE, CRC]

Array = np.ndarray[Any, Any]
Coords = tuple[int, ...]


def nested(codecs: list[Any], index_codecs: list[Any]) -> dict[str, Any]:
    return {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [2, 2], "codecs": codecs, "index_codecs": index_codecs},
    }


# Codecs of inner chunks, and whether all damage of them shows.
CODECS: dict[str, tuple[list[Any], bool]] = {
    "raw": ([LITTLE], False),
    "raw crc32c": ([LITTLE, CRC], True),
    "zstd": ([LITTLE, ZSTD], False),
    "zstd crc32c": ([LITTLE, ZSTD, CRC], True),
    "blosc": ([LITTLE, BLOSC], False),
    "blosc crc32c": ([LITTLE, BLOSC, CRC], True),
    "gzip": ([LITTLE, GZIP], True),
    "shards": ([nested([LITTLE, CRC], INDEX)], True),
    "shards zstd": ([nested([LITTLE, ZSTD], INDEX)], False),
    "shards, no checksum": ([nested([LITTLE], [LITTLE])], False),
}


@dataclass
class Scene:
    """One array of one shard before and after its damage; the same for the same name."""

    name: str
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.name)
        self.codecs = rng.choice(sorted(CODECS))
        codecs, self.has_checksum = CODECS[self.codecs]
        self.has_index_checksum = rng.random() < 0.7
        self.at_start = rng.random() < 0.3
        inner = rng.choice([(4, 4), (2, 4), (4, 4), (6, 8)])
        grid = rng.choice([(3, 4), (2, 2), (4, 4), (1, 5), (1, 1)])
        shape = (inner[0] * grid[0], inner[1] * grid[1])
        # an array whose last inner chunks are outside, in one case of four
        self.array_shape = tuple(n - rng.randrange(n // 2) if rng.random() < 0.25 else n for n in shape)
        location: Any = "start" if self.at_start else "end"
        index_codecs: list[Any] = INDEX if self.has_index_checksum else [LITTLE]
        self.spec = ShardSpec(shape, inner, "uint16", FILL, codecs, index_codecs, location)
        configuration = {
            "chunk_shape": list(inner),
            "codecs": codecs,
            "index_codecs": index_codecs,
            "index_location": location,
        }
        self.meta = ShardMeta(configuration, shape, np.dtype("uint16"), FILL)
        self.boxes = {
            at: tuple(
                slice(i * n, min((i + 1) * n, limit))
                for i, n, limit in zip(at, inner, self.array_shape, strict=True)
            )
            for at in np.ndindex(*grid)
            if all(i * n < limit for i, n, limit in zip(at, inner, self.array_shape, strict=True))
        }
        self.elements, self.present = self._content(inner, grid)
        self.order = rng.choice(["morton", "morton", "lexicographic", "random"])
        self.user = {}
        if rng.random() < 0.15:
            self.user = {
                "header": rng.randbytes(rng.randrange(40)),
                "footer": rng.randbytes(rng.randrange(40)),
            }
        self.shard = self._encoded()
        self.has_older_state = not self.at_start and not self.user and rng.random() < 0.1
        if self.has_older_state:
            self._append()
        self.damages: list[str] = []
        self.data = self.damaged(self.shard, self.damages)

    def __str__(self) -> str:
        index = f"index at the {'start' if self.at_start else 'end'}, {'' if self.has_index_checksum else 'no '}checksum"
        return (
            f"{self.name}: {self.codecs}, {index}, {len(self.present)} of {self.spec.n_chunks} in {self.order} order, "
            f"{self.spec.grid_shape} of {self.spec.chunk_shape} in {self.array_shape}, {'appended, ' * self.has_older_state}"
            f"{len(self.shard)} bytes, {'; '.join(self.damages)}"
        )

    # ---- the array

    def _content(self, inner: Coords, grid: Coords) -> tuple[Array, list[Coords]]:
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        elements = np.full(self.spec.shard_shape, FILL, np.uint16)
        n = len(self.boxes)
        n_present = self.rng.choice([n, n, n, self.rng.randrange(n + 1), min(n, 1)])
        present = sorted(self.rng.sample(sorted(self.boxes), n_present))
        for at in present:
            top = 1 << int(rng.integers(4, 16))
            box = tuple(slice(i * k, (i + 1) * k) for i, k in zip(at, inner, strict=True))
            elements[box] = rng.integers(8, 8 + top, inner)
        return elements, present

    def _encoded(self) -> bytes:
        writer = shardcodec.ShardWriter(None, self.spec, **self.user)
        for at in self._sorted(self.present):
            writer.write_chunk(at, self._chunk(at))
        return bytes(writer.commit())

    def _chunk(self, at: Coords) -> Array:
        box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.spec.chunk_shape, strict=True))
        return np.ascontiguousarray(self.elements[box])

    def _sorted(self, present: list[Coords]) -> list[Coords]:
        if self.order == "random":
            return self.rng.sample(present, len(present))
        numbers = np.empty(self.spec.n_chunks, np.uint64)
        shardcodec.native.load().order(numbers, self.spec.grid_shape, self.order)
        rank = {
            tuple(map(int, np.unravel_index(int(position), self.spec.grid_shape))): i
            for i, position in enumerate(numbers.tolist())
        }
        return sorted(present, key=lambda at: rank[at])

    def _append(self) -> None:
        """Write some inner chunks again, behind the shard, and then the new index."""
        entries = read_index(self.shard, self.meta).reshape(-1, 2).copy()
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        for at in self.rng.sample(sorted(self.boxes), min(2, len(self.boxes))):
            box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.spec.chunk_shape, strict=True))
            self.elements[box] = rng.integers(8, 5000, self.spec.chunk_shape)
            data = bytes(shardcodec.encode(self._chunk(at), self.spec.inner))
            position = int(np.ravel_multi_index(at, self.spec.grid_shape))
            entries[position] = len(self.shard), len(data)
            self.shard += data
            self.present = sorted({*self.present, at})
        stored = struct.pack(f"<{entries.size}Q", *entries.reshape(-1).tolist())
        if self.has_index_checksum:
            stored += struct.pack("<I", int(shardcodec.native.load().crc32c(stored)))
        self.shard += stored

    # ---- the damage

    def damaged(self, shard: bytes, notes: list[str]) -> bytes:
        """Return the shard with one or two damages, and note them."""
        data = bytearray(shard)
        while bytes(data) == shard:
            for _ in range(self.rng.choice((1, 1, 1, 2))):
                if data:
                    notes.append(self._damage(data))
        return bytes(data)

    def _damage(self, data: bytearray) -> str:
        rng, n = self.rng, self.spec.index_nbytes
        where = rng.choice(("anywhere", "index", "index", "chunks"))
        low, high = 0, len(data)
        if where == "index":
            low, high = (0, min(n, high)) if self.at_start else (max(0, high - n), high)
        elif where == "chunks":
            low, high = (min(n, high - 1), high) if self.at_start else (0, max(1, high - n))
        at = rng.randrange(low, high)
        if rng.random() < 0.4:  # on a boundary of entries, or of inner chunks of a fixed size
            unit = rng.choice((16, 16, self.spec.inner.fixed_nbytes or 16))
            at = min(high - 1, low + (at - low) // unit * unit)
        nbytes = min(len(data) - at, self._size())
        kind = rng.choice(("flip", "run", "run", "cut", "cut tail", "cut head", "insert", "append", "swap"))
        pattern = rng.choice(("zeros", "ones", "random"))
        filler = {"zeros": bytes(nbytes), "ones": b"\xff" * nbytes, "random": rng.randbytes(nbytes)}[pattern]
        ranges = {  # from which byte to which byte the filler replaces the data
            "run": (at, at + nbytes, filler),
            "cut": (at, at + nbytes, b""),
            "cut tail": (max(0, len(data) - nbytes), len(data), b""),
            "cut head": (0, nbytes, b""),
            "insert": (at, at, filler),
            "append": (len(data), len(data), filler),
        }
        if kind in ranges:
            first, end, new = ranges[kind]
            data[first:end] = new
            return f"{kind} of {nbytes} bytes at {first} ({where}, {pattern})"
        if kind == "swap":
            return self._swap(data, at, rng.randrange(low, high), nbytes)
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            data[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
        return f"bits of {where}"

    def _swap(self, data: bytearray, at: int, other: int, nbytes: int) -> str:
        if self.rng.random() < 0.5:
            other = at + (other - at) // 16 * 16
        first, second = sorted((at, max(0, other)))
        nbytes = min(nbytes, second - first, len(data) - second)
        a, b = data[first : first + nbytes], data[second : second + nbytes]
        data[first : first + nbytes], data[second : second + nbytes] = b, a
        return f"swap of {nbytes} bytes at {first} and {second}"

    def _size(self) -> int:
        rng = self.rng
        fixed = self.spec.inner.fixed_nbytes or 48
        return rng.choice(
            (16, 16 * rng.randrange(1, 8), fixed, 4, 8, rng.randrange(1, 4), 1 + int(rng.expovariate(1 / 80)))
        )

    # ---- the reference

    def read(self, data: bytes | None) -> dict[Coords, bytes | None]:
        """Return the elements of each inner chunk as the reference reads them; None for an error."""
        return {at: self._read_box(data, box) for at, box in self.boxes.items()}

    def read_whole(self, data: bytes) -> dict[Coords, bytes | None]:
        """Do as `read`; None also for an error in a part of an inner chunk beyond the array."""
        found = self.read(data)
        for at in found:
            box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.spec.chunk_shape, strict=True))
            if self._read_box(data, box) is None:
                found[at] = None
        return found

    def _read_box(self, data: bytes | None, box: tuple[slice, ...]) -> bytes | None:
        try:
            return decode_shard(data, self.meta, box).tobytes()
        except Exception:  # a decoder of numcodecs may raise anything
            return None

    @property
    def right(self) -> dict[Coords, bytes]:
        """The elements of each inner chunk."""
        return {at: self.elements[box].tobytes() for at, box in self.boxes.items()}

    def cropped(self, at: Coords, to: Coords) -> bytes:
        """Return the elements that an inner chunk would have in the place of another one, which may reach beyond the array."""
        sizes = (slice(0, box.stop - box.start) for box in self.boxes[to])
        return self._chunk(at)[tuple(sizes)].tobytes()

    @property
    def index_is_intact(self) -> bool:
        """True if the damage is only in the bytes outside of the index, and has not moved it."""
        n = self.spec.index_nbytes
        if len(self.data) != len(self.shard):
            return False
        return self.data[:n] == self.shard[:n] if self.at_start else self.data[-n:] == self.shard[-n:]

    @property
    def chunks_are_intact(self) -> bool:
        """True if the damage is only in the index, or at the end of the object."""
        n = self.spec.index_nbytes
        return self.data[n:] == self.shard[n:] if self.at_start else self.data.startswith(self.shard[:-n])

    def read_with_true_index(self) -> dict[Coords, bytes | None]:
        """Return the elements of each inner chunk of the damaged bytes under the index before the damage, if it has not moved."""
        n = self.spec.index_nbytes
        low = len(self.shard) - n
        if len(self.data) == len(self.shard):
            return self.read(
                self.shard[:n] + self.data[n:] if self.at_start else self.data[:low] + self.shard[low:]
            )
        if not self.at_start and len(self.data) > low and self.shard[low:].startswith(self.data[low:]):
            return self.read(self.data[:low] + self.shard[low:])  # only its end is missing
        return {}

    def is_untouched(self, at: Coords) -> bool:
        """Return True if the bytes of an inner chunk are in their place: decoders differ in what they accept."""
        low, n = map(int, read_index(self.shard, self.meta)[at])
        return low == ABSENT or self.data[low : low + n] == self.shard[low : low + n]

    def write(self, folder: Path, data: bytes | None) -> Path:
        """Write the array with an object as its shard; return the path of that."""
        path = folder / "c" / "0" / "0"
        path.parent.mkdir(parents=True)
        (folder / "zarr.json").write_text(json.dumps(self.spec.to_metadata(self.array_shape)))
        if data is not None:
            path.write_bytes(data)
        return path


def check_scene(folder: Path, scene: Scene) -> None:
    """Verify and repair one damaged array, in a way that the name of the scene decides; raise `AssertionError` with it."""
    rng = random.Random(f"{scene.name} way")
    path = scene.write(folder / "a.zarr", scene.data)
    copy, of_copy = _copy(folder / "copy.zarr", scene, rng)
    in_place = rng.random() < 0.4
    how: dict[str, Any] = {"backup": folder / "old"} if in_place else {"to": folder / "new.zarr"}
    with quiet():
        findings = verify(folder / "a.zarr", level="decode")
        planned = repair(folder / "a.zarr", copy=copy, dry_run=True)
        report = repair(folder / "a.zarr", copy=copy, **how)
        result = path if in_place else folder / "new.zarr/c/0/0"
        left = verify(result.parents[2], level="decode").n_findings
    after = result.read_bytes() if result.exists() else None
    kinds = {one.kind for shard in findings.shards for one in shard.findings}
    try:
        _check(scene, findings.n_findings, kinds, report, planned, left, after, of_copy)
    except AssertionError as error:
        raise AssertionError(
            f"{scene}; {'in place' if in_place else 'to'}, copy: {of_copy if of_copy is None else sum(v is not None for v in of_copy.values())}: {error}; {report.shards}"
        ) from error


def _copy(
    folder: Path, scene: Scene, rng: random.Random
) -> tuple[Path | None, dict[Coords, bytes | None] | None]:
    """Make a copy; return its path and the elements that the reference reads of it."""
    match rng.choice(("none", "none", "equal", "damaged", "other layout")):
        case "none":
            return None, None
        case "equal":
            scene.write(folder, scene.shard)
            return folder, dict(scene.right)
        case "damaged":
            data = scene.damaged(scene.shard, [])
            scene.write(folder, data)
            return folder, scene.read_whole(data)
    with quiet():
        made = zarr.create_array(
            folder, shape=scene.array_shape, chunks=(3, 5), dtype="uint16", fill_value=FILL
        )
        made[...] = scene.elements[tuple(map(slice, scene.array_shape))]
    return folder, dict(scene.right)


def _check(
    scene: Scene,
    n_findings: int,
    kinds: set[FindingKind],
    report: Any,
    planned: Any,
    n_left: int,
    after: bytes | None,
    of_copy: dict[Coords, bytes | None] | None,
) -> None:
    right, damaged = scene.right, scene.read(scene.data)
    wrong_before = {at for at in right if damaged[at] != right[at]}
    # whole inner chunks in the place of others: no checksum shows them
    silent = {at for at in wrong_before if damaged[at] is not None}
    is_checked = scene.has_checksum and scene.has_index_checksum
    if is_checked and wrong_before - silent:
        assert n_findings, "damage is not found"
    if is_checked and silent and not scene.index_is_intact and not n_findings:
        raise AssertionError("damage is not found")
    if not n_findings:
        assert not report.n_damaged
        return
    assert report.n_damaged == 1
    (done,) = report.shards
    (plan,) = planned.shards
    counts = done.action, done.n_kept, done.n_from_copy, done.n_lost
    assert counts == (plan.action, plan.n_kept, plan.n_from_copy, plan.n_lost), f"dry run: {plan}"
    assert len(done.lost) == done.n_lost and set(done.lost) <= set(right)
    if done.action is RepairAction.LEFT:
        assert done.n_lost and after in (None, scene.data)
        assert (
            of_copy is None
            or not any(of_copy[at] == right[at] for at in done.lost)
            or _is_torn(of_copy, right)
        )
        return
    assert done.action is RepairAction.REPAIRED, done
    assert after is not None
    assert not n_left, "the repaired shard is damaged"
    found = scene.read(after)
    assert None not in found.values(), "the reference cannot read the repaired shard"
    _check_counts(scene, done, after)
    is_older = FindingKind.TORN_APPEND in kinds and scene.has_older_state
    wrong = {at for at in right if found[at] != right[at]} - set(done.lost)
    wrong -= {at for at in wrong if _is_excused(scene, at, silent, damaged, found, of_copy)}
    assert not wrong or is_older, f"{sorted(wrong)} are wrong, and not reported as lost"
    if of_copy is not None:
        missed = {at for at in done.lost if of_copy[at] == right[at]}
        assert not missed or _is_torn(of_copy, right), f"{sorted(missed)} of the copy are lost"
    if scene.has_index_checksum and scene.index_is_intact:
        known = {at for at in right if damaged[at] == right[at] and scene.is_untouched(at)}
        assert not known & set(done.lost), f"{sorted(known & set(done.lost))} are lost, and whole"
    if is_checked:
        assert done.is_restored == (not done.n_lost)


def _is_torn(of_copy: dict[Coords, bytes | None], right: dict[Coords, bytes]) -> bool:
    """Return True for a copy that is damaged too: what its own index does not prove is not taken."""
    return any(of_copy[at] != right[at] for at in right)


def _is_excused(
    scene: Scene,
    at: Coords,
    silent: set[Coords],
    damaged: dict[Coords, bytes | None],
    found: dict[Coords, bytes | None],
    of_copy: dict[Coords, bytes | None] | None,
) -> bool:
    """Return True if nothing in the stored bytes shows that the elements of an inner chunk are wrong."""
    if of_copy is not None and (
        found[at] == of_copy[at] or (not scene.has_checksum and _is_torn(of_copy, scene.right))
    ):
        return True  # the copy is damaged, and does not show it
    if not scene.has_checksum and not scene.chunks_are_intact:
        return True
    if scene.has_index_checksum and found[at] == scene.read_with_true_index().get(at):
        return True  # the index is rebuilt as it was, and a whole inner chunk is exactly in the place of another one
    if (
        not scene.has_index_checksum
        and any(note.startswith("swap") for note in scene.damages)
        and any(
            found[at] == scene.cropped(b, at) and found[b] == scene.cropped(at, b) for b in found if b != at
        )
    ):
        return True  # two exchanged entries
    if (
        len(scene.damages) > 1
        and len(scene.data) < len(scene.shard)
        and scene.spec.inner.fixed_nbytes is not None
        and not scene.at_start
        and scene.data.endswith(scene.shard[-scene.spec.index_nbytes :])
        and any(found[at] == scene.cropped(b, at) for b in found if b != at)
    ):
        return True  # a cut of a whole inner chunk and an insertion, before the index, are the same bytes as one shorter cut
    if at in silent and found[at] == damaged[at]:
        # a whole inner chunk is exactly in the place of another one
        n = scene.spec.index_nbytes
        if scene.user or (scene.at_start and scene.data[:n] == scene.shard[:n]):
            return True  # behind a footer nothing shows how many bytes are missing
        return scene.index_is_intact or (not scene.has_index_checksum and len(scene.data) == len(scene.shard))
    return False


def _check_counts(scene: Scene, done: RepairedShard, after: bytes) -> None:
    index = read_index(after, scene.meta).reshape(*scene.meta.grid, 2)
    present = {at for at in scene.boxes if int(index[at][0]) != ABSENT}
    assert not present & set(done.lost), "a lost inner chunk is present"
    assert done.n_kept <= len(present) <= done.n_kept + done.n_from_copy, (done, len(present))
