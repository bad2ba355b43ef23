# damage.py - damaged shards for the tests of verify and repair
# SPDX-License-Identifier: MIT
"""Shards of a table of arrays, and random damages to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from golden.make_broken import Case
from spec_json import LITTLE

import shardcodec
from shardcodec import ShardSpec

__all__ = ["Original", "case_spec", "cases_of", "damaged", "inside", "known", "originals"]

FILL = 255


def case_spec(case: Case) -> ShardSpec:
    """Return the encoding of a shard of golden/broken."""
    options = case.codec["configuration"]
    where = options["codecs"], options["index_codecs"], options["index_location"]
    return ShardSpec(case.shape, case.inner, "uint8", ord("."), *where)


def inside(case: Case) -> Any:
    """Return which inner chunks of a case have elements of its array; None for all."""
    if case.array == case.shape:
        return None
    spec = case_spec(case)
    flags = np.zeros(spec.grid_shape, dtype=np.bool_)
    flags[tuple(slice(0, -(-n // size)) for n, size in zip(case.array, case.inner, strict=True))] = True
    return flags.reshape(-1)


@dataclass(frozen=True)
class Original:
    """A shard before the damage.

    Attributes
    ----------
    name : str
    spec : ShardSpec
    shard : bytes
    states : tuple of mapping
        From positions of inner chunks to their encoded bytes, now and before each append.
    """

    name: str
    spec: ShardSpec
    shard: bytes
    states: tuple[Mapping[int, bytes], ...]

    def __str__(self) -> str:
        return self.name


def spec_of(codecs: list[Any], *, at_start: bool = False, shape: tuple[int, ...] = (16, 24)) -> ShardSpec:
    inner = (4,) * len(shape)
    location: Any = "start" if at_start else "end"
    return ShardSpec(shape, inner, "uint16", FILL, codecs, [LITTLE, "crc32c"], location)


ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}


def content(spec: ShardSpec, n_kept: int, seed: int) -> np.ndarray[Any, Any]:
    """Return elements that compress; inner chunks from number `n_kept` on are absent."""
    rng = np.random.default_rng(seed)
    array = np.full(spec.shard_shape, FILL, dtype=np.uint16)
    positions = rng.permutation(spec.n_chunks)[:n_kept]
    for position in positions.tolist():
        at = np.unravel_index(position, spec.grid_shape)
        box = tuple(slice(int(i) * n, (int(i) + 1) * n) for i, n in zip(at, spec.chunk_shape, strict=True))
        array[box] = rng.integers(0, 1 << rng.integers(1, 16), spec.chunk_shape)
    return array


def chunks_of(spec: ShardSpec, shard: bytes) -> dict[int, bytes]:
    """Return the encoded inner chunks of an undamaged shard, by position."""
    handle = shardcodec.open_shard(shard, None, spec)
    coords = np.argwhere(handle.state())
    where = np.ravel_multi_index(tuple(coords.T), spec.grid_shape).tolist()
    encoded = handle.read_encoded(coords)
    return {position: data for position, data in zip(where, encoded, strict=True) if data is not None}


def made(name: str, spec: ShardSpec, *, n_kept: int | None = None, order: str = "morton") -> Original:
    array = content(spec, spec.n_chunks if n_kept is None else n_kept, seed=len(name))
    shard = shardcodec.encode(array, spec, order=order)
    return Original(name, spec, shard, (chunks_of(spec, shard),))


def appended(one: Original) -> Original:
    """Return the shard after an append: new inner chunks and a new index behind the old one."""
    spec, old = one.spec, one.states[0]
    entries = np.array(shardcodec.open_shard(one.shard, None, spec).index).reshape(-1, 2)
    newer = made(one.name + " appended", spec).states[0]
    shard, state = one.shard, dict(old)
    for position in sorted(newer)[:5]:
        entries[position] = len(shard), len(newer[position])
        shard += newer[position]
        state[position] = newer[position]
    index = np.empty(spec.index_nbytes, dtype=np.uint8)
    shardcodec.native.load().store_index(_chain(spec), entries, index)
    return replace(one, name=one.name + " appended", shard=shard + index.tobytes(), states=(state, old))


def _chain(spec: ShardSpec) -> Any:
    from shardcodec.access.compiled_chains import compiled

    return compiled(spec.chain)


def originals() -> list[Original]:
    """Return shards whose inner chunks have checksums, one for each kind."""
    raw, zstd = [LITTLE, "crc32c"], [LITTLE, ZSTD, "crc32c"]
    found = [
        made("raw", spec_of(raw)),
        made("raw start", spec_of(raw, at_start=True)),
        made("raw some", spec_of(raw), n_kept=13, order="lexicographic"),
        made("zstd", spec_of(zstd)),
        made("zstd some", spec_of(zstd), n_kept=9),
        made("zstd start", spec_of(zstd, at_start=True), order="colexicographic"),
        made("zstd long", spec_of(zstd, shape=(256,))),
        made("gzip", spec_of([LITTLE, GZIP])),
        made("blosc", spec_of([LITTLE, BLOSC, "crc32c"]), order="lexicographic"),
    ]
    return [*found, appended(found[0]), appended(found[4])]


def damaged(one: Original, rng: random.Random) -> bytes:
    """Return the shard with one random damage, or two."""
    while True:
        data = bytearray(one.shard)
        n_damages = rng.choice((1, 1, 1, 2))
        for _ in range(n_damages):
            if data:
                _damage(data, one.spec, rng)
        is_cut = one.spec.index_location == "end" and len(data) < len(one.shard)
        if (is_cut and n_damages == 1) or not _has_exchanged(one, data):
            return bytes(data)


def _has_exchanged(one: Original, data: bytes | bytearray) -> bool:
    """Return True if a whole inner chunk lies exactly where another one is looked for, so that no checksum shows it."""
    everything = {chunk for state in one.states for chunk in state.values()}
    return any(
        found in everything - {chunk} for chunk, places in _places(one, data).values() for found in places
    )


def _places(one: Original, data: bytes | bytearray) -> dict[int, tuple[bytes, tuple[bytes, bytes]]]:
    """Return each inner chunk, and the bytes in its place and where it is after a change of the size before it."""
    entries = np.array(shardcodec.open_shard(one.shard, None, one.spec).index).reshape(-1, 2)
    shift = len(data) - len(one.shard)
    found = {}
    for position, chunk in one.states[0].items():
        offset, nbytes = entries[position].tolist()
        other = max(0, offset + shift)
        found[position] = chunk, (bytes(data[offset : offset + nbytes]), bytes(data[other : other + nbytes]))
    return found


def known(one: Original, data: bytes) -> set[int]:
    """Return the positions of intact inner chunks that the index proves: it is whole, and they are where it says.

    After a change of the size they may also be shifted by it, if two chunks are. Of one size, each of these may be its neighbour
    if another one behind the first of them is damaged. If another chunk is where one is looked for, nothing is proved: the bytes
    do not say from where bytes were lost.
    """
    n, is_at_end = one.spec.index_nbytes, one.spec.index_location == "end"
    if (data[-n:] != one.shard[-n:]) if is_at_end else (data[:n] != one.shard[:n]):
        return set()
    if _has_exchanged(one, data):
        return set()
    places = _places(one, data)
    offsets = {position: one.shard.index(chunk) for position, (chunk, _) in places.items()}
    own = {position for position, (chunk, (here, _)) in places.items() if here == chunk}
    moved = {position for position, (chunk, (_, there)) in places.items() if there == chunk} - own
    first = min((offsets[position] for position in moved), default=0)
    has_others = any(offsets[position] > first for position in set(places) - own - moved)
    is_proved = not has_others or len({len(places[position][0]) for position in moved}) > 1
    return own | (moved if len(moved) > 1 and is_proved else set())


def _damage(data: bytearray, spec: ShardSpec, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    n = min(len(data) - at, 1 + int(rng.expovariate(1 / 60)))
    kinds = (
        "bytes",
        "bytes",
        "noise",
        "zeros",
        "ones",
        "cut tail",
        "cut head",
        "cut",
        "insert",
        "append",
        "index",
    )
    match rng.choice(kinds):
        case "bytes":
            data[at] ^= rng.choice((1 << rng.randrange(8), rng.randrange(1, 256)))
        case "noise" | "zeros" | "ones" as kind:
            data[at : at + n] = {"noise": rng.randbytes(n), "zeros": bytes(n), "ones": b"\xff" * n}[kind]
        case "cut tail":
            del data[at if rng.random() < 0.3 else max(0, len(data) - n) :]
        case "cut head":
            del data[:n]
        case "cut":
            del data[at : at + n]
        case "insert":
            data[at:at] = rng.randbytes(n)
        case "append":
            data += rng.randbytes(n)
        case "index":
            first = 0 if spec.index_location == "start" else max(0, len(data) - spec.index_nbytes)
            for _ in range(rng.choice((1, 2, 3))):
                data[min(len(data) - 1, first + rng.randrange(spec.index_nbytes))] ^= rng.randrange(1, 256)


def cases_of(n: int, seed: int) -> Iterator[tuple[str, Original, bytes]]:
    """Yield `n` damaged shards, the same for the same seed."""
    kinds = originals()
    for i in range(n):
        rng = random.Random(f"{seed}-{i}")
        one = kinds[i % len(kinds)]
        yield f"{one.name} {seed}-{i}", one, damaged(one, rng)
