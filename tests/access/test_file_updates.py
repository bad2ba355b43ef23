# test_file_updates.py - partial writes of files: what is kept, when a shard is packed, which damage stops a write
# SPDX-License-Identifier: MIT
"""A partial write changes only the inner chunks that it covers."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import (
    ABSENT,
    assemble,
    bits,
    chunk_bytes,
    create,
    entries_of,
    files_below,
    letters,
    ours,
    random_array,
    shard_path,
    text_of,
    zarrs_view,
)
from spec_json import sharding
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec.access import write

ZSTD = ZstdCodec(level=1)


def letters_array(folder: Path, *, at_start: bool = False, checksums: bool = False, blob: bytes = b"") -> Any:
    """Make an array of one shard of 4 x 4 letters, stored as given."""
    inner = [BytesCodec(), Crc32cCodec()] if checksums else [BytesCodec()]
    codec = ShardingCodec(chunk_shape=(2, 2), codecs=inner, index_location="start" if at_start else "end")
    zarr.create_array(
        folder, shape=(4, 4), chunks=(4, 4), dtype="uint8", fill_value=46, serializer=codec, compressors=None
    )
    if blob:
        (folder / "c/0").mkdir(parents=True)
        (folder / "c/0/0").write_bytes(blob)
    return ours(folder)


@pytest.mark.parametrize("at_start", [False, True])
def test_untouched_chunks_keep_their_offsets(tmp_path: Path, at_start: bool) -> None:
    array = letters_array(tmp_path / "a", at_start=at_start, blob=letters(at_start=at_start))
    old = shard_path(array).read_bytes()
    array[:2, 2:] = 49
    new = shard_path(array).read_bytes()
    before, after = entries_of(old, 4, at_start=at_start), entries_of(new, 4, at_start=at_start)
    assert after == before  # the new chunk has the size of the old one and takes its slot
    assert len(new) == len(old)
    assert text_of(zarrs_view(array)[...]) == "zero 1111 two. tres"


def test_partly_written_chunk_is_merged_with_the_rest(tmp_path: Path) -> None:
    array = letters_array(tmp_path / "a", blob=letters())
    array[1:3, 1:3] = 95
    assert text_of(zarrs_view(array)[...]) == "zer_ on_. t_o. _res"


def test_carried_chunks_are_copied_and_not_encoded_again(tmp_path: Path) -> None:
    """The carried chunk starts with a skippable frame, which our encoder never writes."""
    inner = [BytesCodec(), ZSTD]
    codec = ShardingCodec(chunk_shape=(2, 2), codecs=inner)
    create(
        tmp_path,
        own=True,
        shape=(4, 4),
        chunks=(4, 4),
        dtype="uint8",
        fill_value=46,
        serializer=codec,
        shards=None,
    )
    array = ours(tmp_path)
    array[...] = random_array((4, 4), "u1")
    blob = shard_path(array).read_bytes()
    frame = chunk_bytes(blob, entries_of(blob, 4)[0])
    odd = b"\x50\x2a\x4d\x18\x03\x00\x00\x00odd" + frame
    shard_path(array).write_bytes(
        assemble(odd + frame, [(0, len(odd)), (len(odd), len(frame)), *[(ABSENT, ABSENT)] * 2])
    )
    array[3, 3] = 1
    new = shard_path(array).read_bytes()
    entries = entries_of(new, 4)
    assert chunk_bytes(new, entries[0]) == odd
    assert chunk_bytes(new, entries[1]) == frame


def test_header_and_gaps_stay_but_the_footer_goes(tmp_path: Path) -> None:
    """The bytes after the last inner chunk are dropped: a table of values there would be wrong after the update.

    They once stayed if the new inner chunk had the size of the old one, and only then.
    """
    blob = assemble(b"HEADzeroone.GAPtwo.tresTAIL", [(4, 4), (8, 4), (15, 4), (19, 4)])
    array = letters_array(tmp_path / "a", blob=blob)
    array[:2, :2] = 49
    new = shard_path(array).read_bytes()
    assert new[:-68] == b"HEAD1111one.GAPtwo.tres"
    assert entries_of(new, 4) == [(4, 4), (8, 4), (15, 4), (19, 4)]


def test_chunk_of_another_size_is_placed_after_all_others(tmp_path: Path) -> None:
    """The old bytes stay, so a reader that holds the old index finds the old chunk."""
    array = create(tmp_path / "a", shape=(4, 4), shards=(4, 4), chunks=(2, 2), compressors=ZSTD)
    array[...] = random_array((4, 4), array.dtype)
    old = shard_path(array).read_bytes()
    array[:2, :2] = 1
    new = shard_path(array).read_bytes()
    before, after = entries_of(old, 4), entries_of(new, 4)
    assert after[1:] == before[1:]
    assert after[0][0] == len(old) - 68
    assert new[: len(old) - 68] == old[:-68]


def test_shared_range_survives_an_update_of_one_chunk(tmp_path: Path) -> None:
    blob = assemble(b"zero", [(0, 4)] * 4)
    array = letters_array(tmp_path / "a", blob=blob)
    array[0, 0] = 90
    assert text_of(zarrs_view(array)[...]) == "Zero zero zero zero"


def test_shard_with_more_than_half_dead_bytes_is_packed(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shape=(4, 4), shards=(4, 4), chunks=(2, 2), compressors=ZSTD)
    expected = random_array((4, 4), array.dtype)
    array[...] = expected
    whole = shard_path(array).stat().st_size
    sizes = []
    for seed in range(40):
        array[:2, :2] = expected[:2, :2] = random_array((2, 2), array.dtype, seed)
        sizes.append(shard_path(array).stat().st_size)
    assert max(sizes) <= 3 * whole
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert (zarrs_view(array)[...] == expected).all()


def test_shard_with_erased_chunks_is_packed(tmp_path: Path) -> None:
    array = letters_array(tmp_path / "a", blob=letters())
    array[:2] = 46
    array[2:, :2] = 46
    assert shard_path(array).read_bytes() == assemble(b"tres", [*[(ABSENT, ABSENT)] * 3, (0, 4)])


# ---- damage stops an update


@pytest.mark.parametrize("blob", [b"", b"short", letters()[:-1], letters()[:-1] + b"\0"])
def test_unreadable_index_stops_an_update_but_not_an_overwrite(tmp_path: Path, blob: bytes) -> None:
    array = letters_array(tmp_path / "a", blob=blob or b"x")
    shard_path(array).write_bytes(blob)
    with pytest.raises((shardcodec.ShardFormatError, shardcodec.ChecksumError)) as raised:
        array[0, 0] = 90
    assert raised.value.shard == "c/0/0"
    assert shard_path(array).read_bytes() == blob
    array[...] = 90  # a full overwrite repairs the shard
    assert (zarrs_view(array)[...] == 90).all()


def test_damaged_chunk_stops_a_merge_but_not_an_overwrite(tmp_path: Path) -> None:
    blob = bytearray(letters(checksums=True))
    blob[9] ^= 1
    array = letters_array(tmp_path / "a", checksums=True, blob=bytes(blob))
    with pytest.raises(shardcodec.ChecksumError) as raised:
        array[0, 3] = 90
    assert raised.value.chunk_coords == (0, 1)
    assert shard_path(array).read_bytes() == bytes(blob)
    array[:2, 2:] = 90  # overwritten completely, so its old bytes are not read
    assert text_of(zarrs_view(array)[...]) == "zero ZZZZ two. tres"


def test_unsharded_chunks_are_merged_and_damage_stops_the_merge(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shards=None, chunks=(8, 12), compressors=[Crc32cCodec()])
    array[...] = 5
    array[2, 3] = 6
    assert zarrs_view(array)[2, 3] == 6 and (zarrs_view(array)[3:] == 5).all()
    blob = bytearray(shard_path(array).read_bytes())
    blob[7] ^= 1
    shard_path(array).write_bytes(blob)
    with pytest.raises(shardcodec.ChecksumError):
        array[0, 0] = 7
    assert shard_path(array).read_bytes() == bytes(blob)


def test_nested_shards_are_merged_whole(tmp_path: Path) -> None:
    inner = ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec(), Crc32cCodec()])
    codec = ShardingCodec(chunk_shape=(4, 4), codecs=[inner])
    zarr.create_array(
        tmp_path, shape=(8, 8), chunks=(8, 8), dtype="uint8", fill_value=0, serializer=codec, compressors=None
    )
    array = ours(tmp_path)
    expected = random_array((8, 8), "uint8")
    array[...] = expected
    array[3:5, 1:7] = expected[3:5, 1:7] = 200
    assert bits(zarrs_view(array)[...]) == bits(expected)


# ---- damage: carried inner chunks must be valid, replaced ones need not be

# after the end, over the end of the index, beyond what 64 bits hold, and into the index
OUTSIDE = [(900, 4), (16 + 68, 4), (2**64 - 4, 8), (16, 4)]
OF_WRONG_LENGTH = [(0, 5), (0, 3), (5, 0)]


@pytest.mark.parametrize("bad", [*OUTSIDE, (ABSENT, 4), (0, ABSENT), *OF_WRONG_LENGTH])
@pytest.mark.parametrize("selection", [(slice(0, 2), slice(0, 2)), (slice(2, 4), slice(0, 4)), (3, 3)])
def test_bad_carried_entry_stops_the_update(tmp_path: Path, bad: Any, selection: Any) -> None:
    """Uncompressed inner chunks of a wrong length were once copied unchanged: the update made a new file with a valid
    checksum of a shard that no reader could read."""
    blob = assemble(b"zeroone.two.tres", [(0, 4), bad, (8, 4), (12, 4)])
    array = letters_array(tmp_path / "a", blob=blob)
    inode = shard_path(array).stat().st_ino
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[selection] = 49
    assert raised.value.chunk_coords == (0, 1) and raised.value.shard == "c/0/0"
    assert shard_path(array).read_bytes() == blob and shard_path(array).stat().st_ino == inode
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]


@pytest.mark.parametrize("bad", [OUTSIDE[0], (ABSENT, 4), *OF_WRONG_LENGTH, (14, 4)])
@pytest.mark.parametrize("at_start", [False, True])
def test_bad_entry_is_repaired_by_writing_the_whole_chunk(tmp_path: Path, bad: Any, at_start: bool) -> None:
    first = 68 if at_start else 0
    entries = [(first, 4), bad, (first + 8, 4), (first + 12, 4)]
    array = letters_array(
        tmp_path / "a", at_start=at_start, blob=assemble(b"zeroone.two.tres", entries, at_start=at_start)
    )
    with pytest.raises(shardcodec.ShardFormatError):
        array[0, 2] = 49
    if bad not in OF_WRONG_LENGTH:  # all other entries may be shifted too: needs the option
        with pytest.raises(shardcodec.ShardFormatError):
            array[:2, 2:] = 49
    with shardcodec.options(allow_in_index=True):
        array[:2, 2:] = 49
    assert text_of(array[...]) == text_of(zarrs_view(array)[...]) == "zero 1111 two. tres"


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@pytest.mark.parametrize("at_start", [False, True])
def test_bad_entry_is_repaired_by_erasing_the_chunk(tmp_path: Path, strategy: str, at_start: bool) -> None:
    """An update of the shard's own file takes a bad entry for an absent one, and would find nothing to erase."""
    first = 68 if at_start else 0
    entries = [(first, 4), OUTSIDE[0], (first + 8, 4), (first + 12, 4)]
    blob = assemble(b"zeroone.two.tres", entries, at_start=at_start)
    array = letters_array(tmp_path / "a", at_start=at_start, blob=blob)
    with shardcodec.options(allow_in_index=True, write_strategy=strategy):
        array[:2, 2:] = 46  # the fill value
    assert text_of(array[...]) == text_of(zarrs_view(array)[...]) == "zero .... two. tres"


@pytest.mark.parametrize("at_start", [False, True])
def test_entries_inside_the_index_need_an_option(tmp_path: Path, at_start: bool) -> None:
    """No writer makes such entries on purpose, but an update can keep what the option makes readable."""
    first = 68 if at_start else 0
    entries = [(first, 4), (66, 4) if at_start else (14, 4), (first + 8, 4), (first + 12, 4)]
    blob = assemble(b"zeroone.two.tres", entries, at_start=at_start)
    array = letters_array(tmp_path / "a", at_start=at_start, blob=blob)
    for attempt in (lambda: array[...], lambda: array.__setitem__((3, 3), 49)):
        with pytest.raises(shardcodec.ShardFormatError, match="index"):
            attempt()
    with shardcodec.options(allow_in_index=True):
        word = array[:2, 2:].tobytes()
        assert word == (blob[66:70] if at_start else blob[14:18])
        array[3, 3] = 49
        assert shard_path(array).read_bytes() != blob
    assert array[:2, 2:].tobytes() == word  # the copy lies outside the new index
    assert zarrs_view(array)[2:, :].tobytes() == b"twtro.e1"


def test_entries_inside_a_nested_index_need_an_option() -> None:
    spec = shardcodec.ShardSpec((4, 4), (2, 4), "uint8", 46, [sharding([1, 4])])
    inner = assemble(b"abcd", [(0, 4), (2, 4)])
    blob = assemble(inner, [(ABSENT, ABSENT), (0, len(inner))])
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        shardcodec.decode(blob, spec)
    assert raised.value.level == 1
    with shardcodec.options(allow_in_index=True):
        assert shardcodec.decode(blob, spec)[2:].tobytes() == b"abcdcd\0\0"


# ---- a program without locks changes the file between the look and the commit


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("what", ["a chunk", "nothing"])
def test_file_that_changes_after_the_look_is_not_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, at_start: bool, what: str
) -> None:
    """The bytes that the look has seen are those of another state, also if inode and size are the same."""
    first = 68 if at_start else 0
    entries = [(first, 4), (first + 4, 4), (first + 8, 4), (ABSENT, ABSENT)]
    blob = assemble(b"zeroone.two.", entries, at_start=at_start)
    array = letters_array(tmp_path / "a", at_start=at_start, blob=blob)
    changed = bytearray(blob)
    changed[first] = ord("Z")
    execute = write._execute

    def late(*arguments: Any) -> Any:
        with open(shard_path(array), "r+b") as file:
            file.seek(first)
            file.write(b"Z")
        return execute(*arguments)

    monkeypatch.setattr(write, "_execute", late)
    time.sleep(0.02)  # the times of a file have a coarse clock
    with (
        shardcodec.options(write_strategy=strategy),
        pytest.raises(shardcodec.ShardFormatError, match="changed while"),
    ):
        array[2:, 2:] = (
            49 if what == "a chunk" else 46
        )  # an absent chunk that gets the fill value stays absent
    assert shard_path(array).read_bytes() == bytes(changed)
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]
    monkeypatch.undo()
    array[2:, 2:] = 49
    assert text_of(zarrs_view(array)[...]) == "Zero one. two. 1111"
