# test_encoded.py - inner chunks that are already encoded, put into shards
# SPDX-License-Identifier: MIT
"""Shards of letters are put together from words; inner chunks that are not named keep their bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    ABSENT,
    LETTERS,
    RAW,
    WORDS,
    assemble,
    chunk_bytes,
    entries_of,
    letters,
    letters_index_nbytes,
    letters_spec,
    text_of,
)
from hypothesis import given
from hypothesis import strategies as st

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.encoded_chunks import check_size, ordered
from shardcodec.access.records import ChunkBytes, PlanItem
from shardcodec.access.shard_change import Change
from shardcodec.access.write import EncodedItem, write_objects
from shardcodec.options import resolve

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["end", "start"])
LOOSE = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]


def chain(**keywords: Any) -> Any:
    return compiled(letters_spec(**keywords).chain)


def write(old: Any, chunks: dict[int, Any], keep_empty: bool = False, **keywords: Any) -> Any:
    wanted = Change.of(chunks, (), "lexicographic") if None in chunks.values() else Change(chunks)
    item = EncodedItem(chain(**keywords), None, old, wanted.chunks, "c/0", wanted.gone)
    (result,) = write_objects([item], resolve(), keep_empty=keep_empty).objects
    return None if result is None else bytes(result)


def shown(blob: Any, **keywords: Any) -> str:
    return text_of(shardcodec.decode(blob, letters_spec(**keywords)))


# ---- a new shard


@LOCATIONS
def test_chunks_are_laid_out_in_the_given_order(at_start: bool) -> None:
    blob = write(None, {2: WORDS[2], 0: WORDS[0], 3: WORDS[3], 1: WORDS[1]}, at_start=at_start)
    assert shown(blob, at_start=at_start) == LETTERS
    first = letters_index_nbytes() if at_start else 0
    assert blob[first : first + 16] == WORDS[2] + WORDS[0] + WORDS[3] + WORDS[1]
    assert [o - first for o, _ in entries_of(blob, 4, at_start=at_start)] == [4, 12, 0, 8]


@LOCATIONS
def test_chunks_that_are_not_given_are_absent(at_start: bool) -> None:
    blob = write(None, {1: WORDS[1], 2: None}, at_start=at_start)
    assert shown(blob, at_start=at_start) == ".... one. .... ...."
    assert len(blob) == letters_index_nbytes() + 4


def test_shard_without_chunks_is_no_object() -> None:
    assert write(None, {}) is None
    assert write(None, {0: None, 1: None, 2: None, 3: None}) is None
    assert write(letters(), {0: None, 1: None, 2: None, 3: None}) is None
    assert write(None, {}, keep_empty=True) == assemble(b"", [(ABSENT, ABSENT)] * 4)


def test_chunks_of_any_size_are_stored_unchanged() -> None:
    """The key-value view of shards has no fixed sizes; a value of zero bytes is a value."""
    blob = write(None, {0: b"", 1: b"x" * 70000, 3: memoryview(b"ab")})
    entries = entries_of(blob, 4)
    assert [n for _, n in entries] == [0, 70000, ABSENT, 2]
    assert chunk_bytes(blob, entries[1]) == b"x" * 70000
    assert chunk_bytes(blob, entries[3]) == b"ab"


# ---- an old shard


@LOCATIONS
@pytest.mark.parametrize("replaced", [{1: b"1111"}, {1: b"1111", 3: None}, {0: None}, {}])
def test_other_chunks_stay(at_start: bool, replaced: dict[int, Any]) -> None:
    blob = write(letters(at_start=at_start), replaced, at_start=at_start)
    words = [word.decode() for word in WORDS]
    for i, word in replaced.items():
        words[i] = "...." if word is None else word.decode()
    assert shown(blob, at_start=at_start) == " ".join(words)


def test_slot_of_the_same_size_is_reused() -> None:
    blob = write(letters(), {2: b"2222"})
    assert len(blob) == len(letters())
    assert entries_of(blob, 4) == entries_of(letters(), 4)


def test_carried_chunks_keep_their_offsets() -> None:
    old = write(None, {0: b"aaaa", 1: b"bbbbb", 2: b"cc"}, codecs=LOOSE)
    new = write(old, {1: b"BBB"}, codecs=LOOSE)
    before, after = entries_of(old, 4), entries_of(new, 4)
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1] == (11, 3)


def test_shard_with_every_chunk_given_is_not_read() -> None:
    assert shown(write(b"rubbish", dict(enumerate(WORDS)))) == LETTERS


def test_damaged_entry_of_another_chunk_stops_the_write(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    bad = assemble(b"zeroone.", [(0, 4), (4, 4), (ABSENT, ABSENT), (90, 4)])
    path.write_bytes(bad)
    item = EncodedItem(chain(), str(path), None, {0: b"0000"}, "c/7")
    with pytest.raises(shardcodec.ShardFormatError, match=r"shard 'c/7'") as caught:
        write_objects([item], resolve())
    assert caught.value.chunk_coords == (1, 1)
    assert path.read_bytes() == bad
    assert [p.name for p in tmp_path.iterdir()] == ["shard"]


def test_old_object_shorter_than_an_index_is_refused() -> None:
    with pytest.raises(shardcodec.ShardFormatError, match="too short"):
        write(b"abc", {0: b"0000"})


# ---- files


@pytest.mark.threads
@LOCATIONS
@pytest.mark.parametrize("threads", [1, 4])
def test_many_files_are_written_in_one_call(tmp_path: Path, at_start: bool, threads: int) -> None:
    spec = shardcodec.ShardSpec(
        (64, 64), (1, 1), "uint8", 0, codecs=RAW, index_location="start" if at_start else "end"
    )
    rng = np.random.default_rng(1)
    shards = [rng.integers(1, 255, (64, 64), dtype=np.uint8) for _ in range(6)]
    for part in (range(0, 4096, 2), range(1, 4096, 2)):
        items = [
            EncodedItem(
                compiled(spec.chain),
                str(tmp_path / f"c/{i}"),
                None,
                {p: shard.reshape(-1)[p : p + 1] for p in part},
                str(i),
            )
            for i, shard in enumerate(shards)
        ]
        assert write_objects(items, resolve(argument={"threads": threads})).objects == [None] * 6
    for i, shard in enumerate(shards):
        assert (shardcodec.decode((tmp_path / f"c/{i}").read_bytes(), spec) == shard).all()


@LOCATIONS
@pytest.mark.parametrize(
    ("n_chunks", "step"), [(300, 1), (300, 3), (300, 150)], ids=["all but one", "dense", "sparse"]
)
def test_slots_in_files_are_written_among_copied_bytes(
    tmp_path: Path, at_start: bool, n_chunks: int, step: int
) -> None:
    """Many slots are merged with the copied bytes in memory; a few are written one by one.

    The old shard has its inner chunks in random order, and some cross the pieces in which bytes are copied. The new
    inner chunks are in random order too: some have the old size, some another size, and some are erased.
    """
    rng = np.random.default_rng(step)
    sizes = rng.integers(1, 9000, n_chunks)
    old = {int(i): rng.bytes(int(sizes[i])) for i in rng.permutation(n_chunks)}
    spec = shardcodec.ShardSpec(
        (n_chunks,), (1,), "uint8", 0, LOOSE, index_location="start" if at_start else "end"
    )
    path = tmp_path / "shard"

    def put(chunks: dict[int, Any]) -> bytes:
        wanted = Change.of(chunks, spec.grid_shape, "lexicographic")
        order = {p: chunks[p] for p in chunks if chunks[p] is not None}
        item = EncodedItem(compiled(spec.chain), str(path), None, order, "c/0", wanted.gone)
        write_objects([item], resolve())
        return path.read_bytes()

    before = put(old)
    new: dict[int, Any] = {int(i): rng.bytes(int(sizes[i])) for i in rng.permutation(n_chunks - 1)[::step]}
    changed = dict(list(new.items())[1::7])
    new |= {i: value + b"longer" for i, value in changed.items()} | dict.fromkeys(list(new)[3::11])
    after = put(new)
    old_entries, entries = (entries_of(blob, n_chunks, at_start=at_start) for blob in (before, after))
    for i in range(n_chunks):
        value = new.get(i, old[i])
        assert (None if entries[i] == (ABSENT, ABSENT) else chunk_bytes(after, entries[i])) == value
        if value is not None and len(value) == len(old[i]):
            assert entries[i] == old_entries[i]


@LOCATIONS
@pytest.mark.parametrize("gone", [{0}, {3}, {0, 3}, {0, 1, 3}])
def test_erased_chunks_at_either_end_do_not_become_header_or_footer(
    tmp_path: Path, at_start: bool, gone: set[int]
) -> None:
    """Packing to an alignment can make the object longer. Packing was then skipped, and a dead first inner chunk became
    a part of the header."""
    path, spec = tmp_path / "shard", letters_spec(at_start=at_start)
    with shardcodec.ShardWriter(path, spec, header=b"head") as writer:
        writer.footer = b"foot"
        for position, word in enumerate(WORDS):
            writer.write_encoded(divmod(position, 2), word)
    shard = shardcodec.open_shard(path, None, spec, mode="r+")
    shard.erase([divmod(position, 2) for position in gone], alignment=64)
    assert shard.header.rstrip(b"\0") == b"head"  # the padding that aligns the first inner chunk counts too
    assert shard.footer == b"foot"
    left = [None if position in gone else word for position, word in enumerate(WORDS)]
    assert [
        None if v is None else bytes(v) for v in shard.read_encoded([divmod(i, 2) for i in range(4)])
    ] == left


@LOCATIONS
def test_bytes_left_by_overlapping_chunks_do_not_become_a_footer(tmp_path: Path, at_start: bool) -> None:
    """The remaining chunks share bytes, so packing them would need more space than the object has."""
    first = letters_index_nbytes() if at_start else 0
    body = bytes(range(65, 85))
    pairs = [(first, 2), (first + 2, 16), (first + 2, 16), (first + 18, 2)]
    path = tmp_path / "shard"
    path.write_bytes(assemble(body, pairs, at_start=at_start))
    shard = shardcodec.open_shard(path, None, letters_spec(at_start=at_start, codecs=LOOSE), mode="r+")
    assert (shard.header, shard.footer) == (b"", b"")
    shard.erase([(0, 0), (1, 1)], keep_user_bytes=True)
    assert shard.footer == b""
    assert [bytes(v) for v in shard.read_encoded([(0, 1), (1, 0)])] == [body[2:18]] * 2


def test_file_without_chunks_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(letters())
    item = EncodedItem(chain(), str(path), None, {}, "", np.arange(4))
    assert write_objects([item], resolve()).objects == [None]
    assert not path.exists()


@given(st.data())
def test_any_sequence_of_writes_equals_a_dict(data: st.DataObject) -> None:
    at_start = data.draw(st.booleans())
    state: dict[int, bytes] = {}
    blob = None
    for _ in range(data.draw(st.integers(1, 5))):
        chunks = data.draw(
            st.dictionaries(st.integers(0, 3), st.one_of(st.none(), st.binary(max_size=40)), max_size=4)
        )
        blob = write(blob, chunks, at_start=at_start, codecs=LOOSE)
        state = {p: c for p, c in (state | chunks).items() if c is not None}
        found = {}
        if blob is not None:
            entries = entries_of(blob, 4, at_start=at_start)
            found = {p: chunk_bytes(blob, e) for p, e in enumerate(entries) if e[0] != ABSENT}
        assert found == state


# ---- arguments


@pytest.mark.parametrize("position", [4, -1, 2**64])
def test_positions_outside_the_shard_are_refused(position: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        native.load().write([PlanItem(chain(), None, None, ChunkBytes([position], [b"x"]))])


def test_engine_refuses_inconsistent_arguments() -> None:
    engine = native.load()
    with pytest.raises(ValueError, match="expected 2 buffers, one per position, got 1"):
        engine.write([PlanItem(chain(), None, None, ChunkBytes([0, 1], [b"x"]))])
    with pytest.raises(TypeError):
        engine.write([PlanItem(chain(), b"path", None, ChunkBytes([0], [b"x"]))])
    leaf = compiled(shardcodec.ChainSpec((4,), "uint8", 0, ["bytes"]))
    with pytest.raises(ValueError, match="one by one"):
        engine.write([PlanItem(leaf, None, None, ChunkBytes([0], [b"x"]))])


def test_codecs_after_sharding_are_refused() -> None:
    spec = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 0, codecs=RAW, after=["crc32c"])
    with pytest.raises(shardcodec.UnsupportedError, match="'c/1'"):
        write_objects([EncodedItem(compiled(spec.chain), None, None, {0: b"abcd"}, "c/1")], resolve())


def test_sizes_are_checked_if_the_codecs_fix_them() -> None:
    check_size(chain(), 3, 4)
    check_size(chain(codecs=LOOSE), 3, 400)
    with pytest.raises(ValueError, match=r"inner chunk \(1, 1\): expected 4 bytes, .* got 5"):
        check_size(chain(), 3, 5)


@pytest.mark.parametrize("grid", [(1,), (5,), (4, 4), (3, 7), (2, 3, 5), ()])
@pytest.mark.parametrize("order", ["morton", "lexicographic", "colexicographic"])
def test_ordered_subset_equals_part_of_the_whole_order(grid: tuple[int, ...], order: str) -> None:
    n = int(np.prod(grid))
    whole = np.empty(n, dtype=np.uint64)
    native.load().order(whole, grid, order)
    rng = np.random.default_rng(n)
    for k in {0, 1, n // 2, n}:
        some = rng.permutation(n)[:k].tolist()
        assert ordered(some, grid, order) == [p for p in whole.tolist() if p in some]
