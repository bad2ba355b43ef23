# test_user_bytes.py - header, footer and alignment after each kind of update
# SPDX-License-Identifier: MIT
"""Header and footer were guessed from gaps, and 34 of these 64 combinations lost them; now every write marks them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import pairs
from spec_json import LITTLE, named

import shardcodec
from shardcodec import native
from shardcodec.access.user_bytes import MAGIC, MARK

SHAPE, CHUNK = (6, 8), (2, 2)
PLACES = [(0, 0), (2, 1), (1, 3)]
ALIGNMENTS = [1, 64, 512, 4096]
HEADER, FOOTER = b"my header", b"\0footer\0"
ABSENT = 2**64 - 1


def spec_of(location: str) -> Any:
    return shardcodec.ShardSpec(SHAPE, CHUNK, "int32", -1, [LITTLE], [LITTLE, named("crc32c")], location)


def chunk(number: int) -> Any:
    return np.full((1, *CHUNK), number, "int32")


def made(
    path: Path, spec: Any, n: int, alignment: int, header: bytes = HEADER, footer: bytes = FOOTER
) -> Any:
    """Write a shard with the first n places."""
    with shardcodec.ShardWriter(path, spec, header=header, footer=footer, alignment=alignment) as writer:
        for number, place in enumerate(PLACES[:n]):
            writer.write_chunk(place, chunk(number)[0])
    return shardcodec.open_shard(path, None, spec, mode="r+")


def in_place(shard: Any, place: Any, number: int) -> None:
    with shardcodec.options(write_strategy="in_place"):
        shard.write_chunks([place], chunk(number))


def append(shard: Any, place: Any, number: int) -> None:
    with shardcodec.options(write_strategy="append"):
        shard.write_chunks([place], chunk(number))


def keep(shard: Any, place: Any, number: int) -> None:
    shard.write_chunks([place], chunk(number), keep_user_bytes=True)


def keep_and_compact(shard: Any, place: Any, number: int) -> None:
    shard.compact()
    keep(shard, place, number)
    shard.compact()


UPDATES = {"append": append, "in place": in_place, "keep": keep, "compact": keep_and_compact}
updates = pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
locations = pytest.mark.parametrize("location", ["start", "end"])


def check(
    shard: Any, twin: dict[Any, int], alignment: int, header: bytes = HEADER, footer: bytes = FOOTER
) -> None:
    """Check user bytes, alignment and every inner chunk."""
    assert (shard.header, shard.footer, shard.alignment) == (header, footer, alignment)
    for place in np.ndindex(*shard.grid_shape):
        assert (shard.read_chunks([place]) == twin.get(place, -1)).all()
    offsets = shard.index.reshape(-1, 2)[:, 0]
    assert not np.any(offsets[offsets != ABSENT] % np.uint64(alignment))
    blob, n = shard.tobytes(), shard.spec.index_nbytes
    body = blob[n:] if shard.spec.index_location == "start" else blob[:-n]
    assert body.startswith(header)
    assert body.endswith(footer)  # where a program that knows the size of the footer looks


@pairs(
    "name, shape, location",
    list(UPDATES),
    list(itertools.product(ALIGNMENTS, range(4))),
    ["start", "end"],
)
def test_every_update_keeps_header_footer_and_alignment(
    tmp_path: Path, location: str, name: str, shape: tuple[int, int]
) -> None:
    """The shard begins with n inner chunks."""
    update, (alignment, n) = UPDATES[name], shape
    shard = made(tmp_path / "shard", spec_of(location), n, alignment)
    twin = {place: number for number, place in enumerate(PLACES[:n])}
    check(shard, twin, alignment)
    for number, place in enumerate([(0, 1), *PLACES, (2, 3)], 10):
        update(shard, place, number)
        twin[place] = number
        check(shard, twin, alignment)
    while len(twin) > 1:  # until one inner chunk is left
        place, _ = twin.popitem()
        strategy = "append" if update is append else "in_place" if update is in_place else "replace"
        shard.erase([place], strategy=strategy, keep_user_bytes=strategy == "replace" or None)
        check(shard, twin, alignment)


@locations
@pytest.mark.parametrize(("header", "footer"), [*itertools.product([b"", HEADER], [b"", FOOTER])])
def test_shard_without_chunks_keeps_header_and_footer(
    tmp_path: Path, location: str, header: bytes, footer: bytes
) -> None:
    """Its footer was read as a header, also after everything was erased with a new footer; `compact` deleted it."""
    shard = made(tmp_path / "shard", spec_of(location), 0, 64, header, footer)
    check(shard, {}, 64, header, footer)
    shard.compact()
    check(shard, {}, 64, header, footer)
    keep(shard, (1, 1), 7)
    check(shard, {(1, 1): 7}, 64, header, footer)
    shard.erase([(1, 1)], footer=b"another")
    check(shard, {}, 64, header, b"another")
    append(shard, (1, 2), 8)
    check(shard, {(1, 2): 8}, 64, header, b"another")


@locations
def test_long_footer_of_a_shard_without_chunks_is_found(tmp_path: Path, location: str) -> None:
    """The mark is before the footer, so it is searched from the end, block by block; here it lies across two blocks."""
    for n in ((1 << 20) - 56 - 20, (1 << 20) - 20, (5 << 19) + 3):
        footer = b"f" * n
        shard = made(tmp_path / "shard", spec_of(location), 0, 1, footer=footer)
        check(shard, {}, 1, footer=footer)


@locations
def test_slots_of_several_processes_keep_user_bytes(tmp_path: Path, location: str) -> None:
    spec = spec_of(location)
    token = shardcodec.ShardWriter.create(tmp_path / "shard", spec, header=HEADER, alignment=512)
    with shardcodec.ShardWriter.join(token) as part:
        part.write_chunk((0, 0), chunk(3)[0])
    shardcodec.ShardWriter.join(token).commit([(0, 0)], footer=FOOTER)
    shard = shardcodec.open_shard(tmp_path / "shard", None, spec, mode="r+")
    check(shard, {(0, 0): 3}, 512)
    append(shard, (1, 1), 4)
    check(shard, {(0, 0): 3, (1, 1): 4}, 512)


@locations
def test_shards_in_memory_and_group_writes_keep_user_bytes(tmp_path: Path, location: str) -> None:
    """Bytes in memory and a group of writes: each way to write keeps header, footer and alignment."""
    spec = spec_of(location)
    shard = made(tmp_path / "shard", spec, 1, 64)
    other = shardcodec.open_shard((tmp_path / "shard").read_bytes(), None, spec, mode="r+")
    keep(other, (1, 1), 5)
    check(other, {(0, 0): 0, (1, 1): 5}, 64)
    with shardcodec.options(write_strategy="append"):
        with shardcodec.group_writes():
            shard.write_chunks([(2, 2)], chunk(6))
            shard.write_chunks([(1, 2)], chunk(7))
        check(shard, {(0, 0): 0, (2, 2): 6, (1, 2): 7}, 64)


@updates
@locations
def test_without_user_bytes_no_mark_is_written(
    tmp_path: Path, location: str, update: Callable[..., None]
) -> None:
    """A new or a replaced shard has no bytes besides its inner chunks and index."""
    path = tmp_path / "shard"
    shard = made(path, spec_of(location), 3, 1, b"", b"")
    assert path.stat().st_size == 3 * 16 + shard.spec.index_nbytes
    shard.erase([PLACES[2]], strategy="replace", keep_user_bytes=True)
    if update in (keep, keep_and_compact):
        update(shard, (0, 1), 5)
        assert MAGIC not in path.read_bytes()
    assert (shard.header, shard.footer) == (b"", b"")


def with_mark(blob: bytes, at: int, **changes: int) -> bytes:
    """Return the shard with a changed mark whose checksum is valid."""
    names = ("magic", "own", "end", "header", "footer", "alignment", "checksum")
    fields = dict(zip(names, MARK.unpack_from(blob, at), strict=True)) | changes
    told = MARK.pack(*fields.values())[:-4]
    crc = changes.get("checksum", native.load().crc32c(told))
    return blob[:at] + told + int(crc).to_bytes(4, "little") + blob[at + MARK.size :]


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"own": 0}, {"own": 2**64 - 1}, {"end": 2**63}, {"header": 2**64 - 1}, {"header": 5000}, {"footer": 2**64 - 8},
        {"footer": 4000}, {"alignment": 3}, {"alignment": 2**31}, {"checksum": 1},
    ],
)  # fmt: skip
def test_impossible_mark_is_ignored(tmp_path: Path, n: int, changes: dict[str, int]) -> None:
    """The mark comes from disk, so it is compared with the shard: no byte outside the shard is read or written."""
    spec = spec_of("end")
    made(tmp_path / "shard", spec, n, 1)
    blob = (tmp_path / "shard").read_bytes()
    blob = with_mark(blob, blob.rindex(MAGIC), **changes)
    shard = shardcodec.open_shard(blob, None, spec, mode="r+")
    body = blob[: -spec.index_nbytes]
    end = len(HEADER) + 16 * n  # the end according to the gaps
    assert (shard.header, shard.footer) == ((HEADER, body[end:]) if n else (body, b""))
    keep(shard, (1, 1), 9)
    assert (shard.read_chunks([(1, 1)]) == 9).all()
