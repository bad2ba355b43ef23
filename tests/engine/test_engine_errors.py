# test_engine_errors.py - hostile shards are refused with exact numbers, from every source of bytes
# SPDX-License-Identifier: MIT
"""Requirements SC-20 to SC-45 for single shards, through `decode`, a file, and a store in memory."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    LETTERS,
    RAW,
    WORDS,
    assemble,
    entries_of,
    letters,
    letters_spec,
    ours,
    random_array,
    text_of,
)
from reference import crc32c
from spec_json import CRC, LITTLE, config, named, zstd
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import ChecksumError, CodecError, ShardError, ShardFormatError, ShardSpec, decode, encode

BODY = b"".join(WORDS)
ENTRIES = [(0, 4), (4, 4), (8, 4), (12, 4)]
FULL = np.s_[...]
KEY = "c/0/0"


class Ways:
    """One shard of letters, read in three ways."""

    def __init__(
        self, folder: Path, *, at_start: bool = False, crc: bool = True, checksums: bool = False
    ) -> None:
        inner = [BytesCodec(), Crc32cCodec()] if checksums else [BytesCodec()]
        index = [BytesCodec(), Crc32cCodec()] if crc else [BytesCodec()]
        codec = ShardingCodec(
            chunk_shape=(2, 2),
            codecs=inner,
            index_codecs=index,
            index_location="start" if at_start else "end",
        )
        self.stores: list[Any] = [LocalStore(folder), MemoryStore()]
        for store in self.stores:
            zarr.create_array(
                store,
                shape=(4, 4),
                chunks=(4, 4),
                dtype="u1",
                fill_value=46,
                serializer=codec,
                compressors=None,
            )
        codecs = [*RAW, CRC] if checksums else RAW
        self.spec = letters_spec(at_start=at_start, crc=crc, codecs=codecs)

    def readers(self, blob: bytes) -> list[Any]:
        """Return functions from a selection to elements."""
        for store in self.stores:
            value = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(blob)
            zarr.core.sync.sync(store.set(KEY, value))
        arrays = [ours(store) for store in self.stores]
        return [lambda s: decode(blob, self.spec, s), arrays[0].__getitem__, arrays[1].__getitem__]

    def refused(self, blob: bytes, kind: type[ShardError], *selections: Any, **numbers: Any) -> None:
        for read, selection in itertools.product(self.readers(blob), selections):
            with pytest.raises(kind) as raised:
                read(selection)
            error = raised.value
            assert {name: getattr(error, name) for name in numbers} == numbers
            assert error.shard in (KEY, "")

    def accepted(self, blob: bytes, expected: str) -> None:
        for read in self.readers(blob):
            assert text_of(read(FULL)) == expected
            assert read(np.s_[1, 3]) == ord(expected[8])


@pytest.fixture
def ways(tmp_path: Path) -> Ways:
    return Ways(tmp_path)


# ---- the index as a whole (SC-21 to SC-27, SC-41, SC-42)


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("n", [0, 1, 15, 67])
def test_object_shorter_than_its_index_is_refused(n: int, at_start: bool, tmp_path: Path) -> None:
    ways = Ways(tmp_path, at_start=at_start)
    ways.refused(letters(at_start=at_start)[:n], ShardFormatError, FULL, np.s_[0, 0], nbytes=n, limit=68)


@pytest.mark.parametrize("at_start", [False, True])
def test_any_flipped_bit_of_the_index_is_refused(at_start: bool, tmp_path: Path) -> None:
    spec = letters_spec(at_start=at_start)
    blob = letters(at_start=at_start)
    first = 0 if at_start else 16
    for at in range(first, first + 68):
        broken = bytearray(blob)
        broken[at] ^= 1 << at % 8
        with pytest.raises(ChecksumError) as raised:
            decode(broken, spec, np.s_[0, 0])
        stored = struct.unpack("<I", broken[first + 64 : first + 68])[0]
        assert raised.value.expected == stored
        assert raised.value.actual == crc32c(bytes(broken[first : first + 64]))
    Ways(tmp_path, at_start=at_start).refused(bytes(broken), ChecksumError, FULL, np.s_[0, 0], codec="crc32c")


def test_trailing_bytes_are_refused_after_an_index_at_the_end(tmp_path: Path) -> None:
    Ways(tmp_path / "a").refused(letters() + b"!", ChecksumError, FULL, np.s_[0, 0])
    Ways(tmp_path / "b", at_start=True).accepted(letters(at_start=True) + b"more", LETTERS)


def test_index_is_read_at_the_location_in_the_metadata(tmp_path: Path) -> None:
    Ways(tmp_path / "a", at_start=True).refused(letters(), ChecksumError, FULL, np.s_[0, 0])
    Ways(tmp_path / "b").refused(letters(at_start=True), ChecksumError, FULL, np.s_[0, 0])
    Ways(tmp_path / "c", crc=False, at_start=True).refused(letters(crc=False), ShardFormatError, FULL)


def test_missing_first_bytes_are_noticed(ways: Ways) -> None:
    """Index and checksum are intact, but the last inner chunk now overlaps the index (SC-33)."""
    ways.refused(letters()[3:], ShardFormatError, FULL, np.s_[3, 3], entry=3, offset=12, nbytes=4)


def test_empty_index_and_absent_object_read_as_fill_value(ways: Ways) -> None:
    ways.accepted(assemble(b"", [(ABSENT, ABSENT)] * 4), ".... .... .... ....")
    assert (ours(ways.stores[1])[FULL] == 46).all()


def test_flipped_bit_without_checksum_is_found_by_the_bounds(tmp_path: Path) -> None:
    blob = bytearray(letters(crc=False))
    blob[16 + 16 + 7] ^= 0x80  # the offset of entry 1
    Ways(tmp_path, crc=False).refused(
        bytes(blob), ShardFormatError, FULL, np.s_[0, 3], entry=1, offset=2**63 + 4
    )


# ---- entries (SC-28 to SC-31, SC-33 to SC-36)

BAD = [
    (84, 4),
    (80, 8),
    (83, 2),
    (2**63, 4),
    (2**64 - 2, 4),
    (0, 2**62),
    (4, 2**64 - 4),
    (ABSENT, 4),
    (4, ABSENT),
    (14, 4),  # into the index
    (16, 4),
    (20, 4),
]


@pytest.mark.parametrize("bad", BAD)
def test_impossible_entry_is_refused(ways: Ways, bad: tuple[int, int]) -> None:
    blob = assemble(BODY, [(0, 4), bad, (8, 4), (12, 4)])
    selections = (FULL, np.s_[0, 2], np.s_[::3, ::3])
    offset, nbytes = bad
    ways.refused(
        blob,
        ShardFormatError,
        *selections,
        entry=1,
        chunk_coords=(0, 1),
        offset=offset,
        nbytes=nbytes,
        limit=84,
    )
    for read in ways.readers(blob):  # entries of chunks that are not wanted cannot be trusted either
        with pytest.raises(ShardFormatError):
            read(np.s_[2:, 2:])
        with shardcodec.options(allow_in_index=True):
            assert read(np.s_[2:, 2:]).tobytes() == b"tres"


@pytest.mark.parametrize("bad", [(0, 3), (0, 5), (0, 0), (7, 0)])
def test_entry_of_the_wrong_length_is_refused(ways: Ways, bad: tuple[int, int]) -> None:
    blob = assemble(BODY, [(0, 4), bad, (8, 4), (12, 4)])
    ways.refused(
        blob,
        ShardFormatError,
        FULL,
        np.s_[0, 2],
        np.s_[:2, 2:],
        entry=1,
        chunk_coords=(0, 1),
        actual=bad[1],
        expected=4,
    )


def test_entry_inside_an_index_at_the_start_is_refused(tmp_path: Path) -> None:
    blob = assemble(BODY, [(68, 4), (66, 4), (76, 4), (80, 4)], at_start=True)
    Ways(tmp_path, at_start=True).refused(blob, ShardFormatError, FULL, np.s_[0, 2], entry=1, offset=66)


def test_gaps_overlaps_and_shared_ranges_are_accepted(ways: Ways) -> None:
    ways.accepted(assemble(b"HEAD" + BODY + b"FOOT", [(4, 4), (8, 4), (12, 4), (16, 4)]), LETTERS)
    ways.accepted(assemble(b"zerone.", [(0, 4), (3, 4), (0, 4), (1, 4)]), "zero one. zero eron")


def test_tail_cut_off_after_an_index_at_the_start_is_refused(tmp_path: Path) -> None:
    """Every read fails; with `allow_in_index` the inner chunks before the cut are readable (SC-43)."""
    ways = Ways(tmp_path, at_start=True)
    blob = letters(at_start=True)[:-6]
    ways.refused(blob, ShardFormatError, FULL, np.s_[3, 3], np.s_[:2, :2], limit=78)
    for read in ways.readers(blob):
        with shardcodec.options(allow_in_index=True):
            assert read(np.s_[:2, :2]).tobytes() == b"zero"
            assert read(np.s_[:2]).tobytes() == b"zeonroe."


def test_truncation_at_every_byte_is_refused(tmp_path: Path) -> None:
    for at_start in (False, True):
        spec = letters_spec(at_start=at_start)
        blob = letters(at_start=at_start)
        for n in range(len(blob)):
            with pytest.raises((ShardFormatError, ChecksumError)):
                decode(blob[:n], spec)


# ---- inner chunks (SC-31, SC-32)


def test_checksum_is_verified_on_partial_reads_too(tmp_path: Path) -> None:
    ways = Ways(tmp_path, checksums=True)
    for at in range(8, 16):
        blob = bytearray(letters(checksums=True))
        blob[at] ^= 16
        stored = struct.unpack("<I", blob[12:16])[0]
        numbers = {
            "expected": stored,
            "actual": crc32c(bytes(blob[8:12])),
            "chunk_coords": (0, 1),
            "codec": "crc32c",
        }
        ways.refused(bytes(blob), ChecksumError, FULL, np.s_[0, 2], np.s_[1, 3], **numbers)


COMPRESSED = [
    zstd(),
    named("gzip", level=1),
    named("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4),
]


@pytest.mark.parametrize("codec", COMPRESSED, ids=lambda codec: codec["name"])
def test_malformed_compressed_data_is_refused(codec: Any) -> None:
    configuration = dict(codec["configuration"])
    if codec["name"] == "blosc":
        configuration["blocksize"] = 0
    spec = ShardSpec((4, 4), (2, 2), "int32", 0, [LITTLE, named(codec["name"], **configuration)])
    array = random_array((4, 4), "int32")
    blob = encode(array, spec, order="lexicographic")
    entries = entries_of(blob, 4)
    offset, nbytes = entries[1]
    frame = blob[offset : offset + nbytes]
    for broken in (b"\0" * nbytes, frame[:-1], frame[: nbytes // 2], frame[:1], b""):
        moved = [*entries]
        moved[1] = (len(blob) - 68, len(broken))
        bad = assemble(blob[:-68] + broken, moved)
        for selection in (FULL, np.s_[0, 3]):
            with pytest.raises((CodecError, ShardFormatError)) as raised:
                decode(bad, spec, selection)
            assert raised.value.entry == 1 and raised.value.chunk_coords == (0, 1)
            if isinstance(raised.value, CodecError):
                assert raised.value.codec == codec["name"]
        assert decode(bad, spec, np.s_[3, 3]) == array[3, 3]


@pytest.mark.parametrize("n", [3, 5, 4096])
def test_decoded_size_must_equal_the_chunk_size(n: int) -> None:
    spec = ShardSpec((4, 4), (2, 2), "uint8", 0, [*RAW, zstd()])
    wrong = encode(np.ones((2 * n,), "u1"), ShardSpec((2 * n,), (n,), "uint8", 0, [*RAW, zstd()]))
    offset, nbytes = entries_of(wrong, 2)[0]
    blob = assemble(wrong[offset : offset + nbytes], [(0, nbytes)] * 4)
    for selection in (FULL, np.s_[0, 0]):
        with pytest.raises(ShardFormatError) as raised:
            decode(blob, spec, selection)
        assert raised.value.entry == 0 and raised.value.expected == 4


def test_fault_in_a_nested_shard_is_reported_with_its_level() -> None:
    spec = ShardSpec(
        (4, 12), (2, 6), "uint8", 7, [named("sharding_indexed", **config(chunk_shape=[1, 3], codecs=RAW))]
    )
    inner = assemble(b"abcdef", [(0, 3), (3, 3), (0, 3), (900, 3)])
    blob = assemble(inner, [(ABSENT, ABSENT), (0, len(inner)), *[(ABSENT, ABSENT)] * 2])
    for selection in (FULL, np.s_[1, 10], np.s_[0, 6:9]):
        with pytest.raises(ShardFormatError, match="nested") as raised:
            decode(blob, spec, selection)
        error = raised.value
        assert (error.entry, error.chunk_coords, error.level, error.offset) == (1, (0, 1), 1, 900)
    with shardcodec.options(allow_in_index=True):
        assert decode(blob, spec, np.s_[0, 6:9]).tobytes() == b"abc"


# ---- several faults


def many_chunks(order: str) -> tuple[ShardSpec, bytes]:
    """Return 8 x 8 inner chunks of 16 KiB each, so that several threads and groups take part."""
    spec = ShardSpec((1024, 1024), (128, 128), "uint8", 0, [*RAW, CRC])
    return spec, encode(random_array((1024, 1024), "u1"), spec, order=order)


def array_of_file(folder: Path, data: bytes) -> Any:
    """Return an array of one shard of `many_chunks`, which is this file."""
    codec = ShardingCodec(chunk_shape=(128, 128), codecs=[BytesCodec(), Crc32cCodec()])
    zarr.create_array(
        folder,
        shape=(1024, 1024),
        chunks=(1024, 1024),
        dtype="u1",
        fill_value=0,
        serializer=codec,
        compressors=None,
    )
    (folder / "c/0").mkdir(parents=True)
    (folder / KEY).write_bytes(data)
    return ours(folder)


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize("order", ["lexicographic", "colexicographic", "morton"])
@pytest.mark.parametrize("faults", [(5, 6), (8, 3), (63, 40, 12), (1, 8), (2, 16)])
def test_lowest_failing_chunk_is_reported(
    where: str, order: str, faults: tuple[int, ...], tmp_path: Path
) -> None:
    """The lowest in C order over the grid, for any order in the file and any number of threads."""
    spec, blob = many_chunks(order)
    broken = bytearray(blob)
    entries = entries_of(blob, 64)
    for entry in faults:
        broken[entries[entry][0]] ^= 1
    array = array_of_file(tmp_path, broken)
    for threads, _ in itertools.product((1, 4), range(3)):
        with pytest.raises(ChecksumError) as raised, shardcodec.options(threads=threads):
            array[FULL] if where == "file" else decode(broken, spec)
        assert raised.value.entry == min(faults)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_lowest_failing_shard_is_reported(where: str, tmp_path: Path) -> None:
    store: Any = LocalStore(tmp_path) if where == "file" else MemoryStore()
    codec = ShardingCodec(chunk_shape=(64, 64), codecs=[BytesCodec(), Crc32cCodec()])
    zarr.create_array(
        store,
        shape=(1024, 256),
        chunks=(128, 128),
        dtype="u1",
        fill_value=0,
        serializer=codec,
        compressors=None,
    )
    array = ours(store)
    array[FULL] = random_array((1024, 256), "u1")
    for key in ("c/5/1", "c/2/1", "c/7/0"):
        buffer = zarr.core.sync.sync(store.get(key, zarr.core.buffer.default_buffer_prototype()))
        broken = bytearray(buffer.to_bytes())
        broken[100] ^= 1
        zarr.core.sync.sync(store.set(key, type(buffer).from_bytes(bytes(broken))))
    for threads, _ in itertools.product((1, 4), range(5)):
        with pytest.raises(ChecksumError) as raised, shardcodec.options(threads=threads):
            array[FULL]
        assert raised.value.shard == "c/2/1"


@pytest.mark.parametrize("faults", [(9, 2), (3, 8), (63, 40, 12)])
def test_lowest_failing_chunk_of_an_update_is_reported(faults: tuple[int, ...], tmp_path: Path) -> None:
    _, blob = many_chunks("morton")
    broken = bytearray(blob)
    for entry in faults:
        broken[entries_of(blob, 64)[entry][0]] ^= 1
    array = array_of_file(tmp_path, broken)
    for threads, _ in itertools.product((1, 4), range(3)):
        with pytest.raises(ChecksumError) as raised, shardcodec.options(threads=threads):
            array[::2, ::2] = 1
        assert raised.value.entry == min(faults)
        assert (tmp_path / KEY).read_bytes() == bytes(broken)


BLOSC = named("blosc", cname="lz4", clevel=5, shuffle="noshuffle", typesize=1, blocksize=0)
TOO_LARGE = 2**31


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("codec", "limit"), [(BLOSC, 2**31 - 17), (named("numcodecs.lz4"), 0x7E000000)], ids=["blosc", "lz4"]
)
@pytest.mark.parametrize("way", ["encode", "handle", "writer"])
def test_inner_chunk_beyond_the_limit_of_a_codec_is_refused(
    tmp_path: Path, way: str, codec: Any, limit: int, nested: bool
) -> None:
    """It raised MemoryError on any machine. The elements take no memory here: they are one element, broadcast."""
    inner = [named("bytes"), codec]
    if nested:
        inner = [named("sharding_indexed", chunk_shape=[TOO_LARGE], codecs=inner, index_codecs=[LITTLE, CRC])]
    spec = ShardSpec((2 * TOO_LARGE,), (TOO_LARGE,), "uint8", 0, inner, [LITTLE, CRC])
    ones = np.broadcast_to(np.uint8(1), (2, TOO_LARGE))
    shard = shardcodec.open_shard(tmp_path, "c", spec, mode="r+")
    ways = {
        "encode": lambda: encode(np.broadcast_to(np.uint8(1), spec.shard_shape), spec),
        "handle": lambda: shard.write_chunks([(0,), (1,)], ones),
        "writer": lambda: shardcodec.ShardWriter(tmp_path / "d", spec).write_chunk((0,), ones[0]),
    }
    with pytest.raises(CodecError, match=f"cannot encode {TOO_LARGE} bytes, .* at most {limit}") as raised:
        ways[way]()
    error = raised.value
    assert (error.nbytes, error.limit, error.chunk_coords) == (TOO_LARGE, limit, (0,))
    assert bool(error.shard) == (way != "encode")


def test_partial_write_beyond_the_limit_of_a_codec_is_refused() -> None:
    shape = (TOO_LARGE,)
    array = zarr.create_array({}, shape=shape, chunks=shape, dtype="u1", compressors=BloscCodec(typesize=1))
    array = shardcodec.attach(array)
    with pytest.raises(CodecError, match=f"shard 'c/0': blosc: cannot encode {TOO_LARGE} bytes"):
        array[:4] = 1


def test_hostile_grid_takes_no_memory() -> None:
    """Sizes are compared before anything is allocated (SC-15, SC-30)."""
    spec = ShardSpec((2**30,), (1,), "uint8", 0, RAW)
    for selection in (np.s_[5], np.s_[:10]):
        with pytest.raises(ShardFormatError) as raised:
            decode(bytes(1000), spec, selection)
        assert raised.value.nbytes == 1000
