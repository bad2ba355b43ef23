# test_shard.py - one shard as a map from grid positions to inner chunks
# SPDX-License-Identifier: MIT
"""`open_shard` on files, bytes and zarr's stores: each test runs on every kind of store that it applies to."""

from __future__ import annotations

from collections.abc import Callable
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
    OtherMemoryStore,
    RecordingStore,
    assemble,
    checked,
    entries_of,
    files_below,
    letters,
    letters_index_nbytes,
    letters_spec,
    put_object,
    text_of,
    zarrs_view,
)
from hypothesis import given
from hypothesis import strategies as st
from reference import decode_shard
from shard_strategies import Layout, assert_same_bits, layouts, random_array, selections
from zarr.storage import LocalStore, MemoryStore, StorePath

import shardcodec
from shardcodec import ShardSpec, ShardWriter, open_shard

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["end", "start"])
LOOSE = [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]
ALL = [(0, 0), (0, 1), (1, 0), (1, 1)]

Opener = Callable[..., Any]


@pytest.fixture(
    params=["file", "folder", "bytes", "LocalStore", "MemoryStore", "StorePath", "other", "obstore"]
)
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that stores the bytes of a shard and opens it; None stores no object."""

    def stored(store: Any, blob: bytes | None) -> Any:
        if blob is not None:
            put_object(store, "c/0", blob)
        return store

    def opened(blob: bytes | None, spec: Any, mode: str = "r+", **choices: Any) -> Any:
        if request.param in ("file", "folder"):
            (tmp_path / "c").mkdir()
            if blob is not None:
                (tmp_path / "c/0").write_bytes(blob)
            if request.param == "folder":
                return open_shard(tmp_path, "c/0", spec, mode=mode, **choices)
            return open_shard(str(tmp_path / "c/0"), None, spec, mode=mode, **choices)
        if request.param == "bytes":
            if blob is None:
                pytest.skip("bytes always exist")
            return open_shard(blob, "c/0", spec, mode=mode, **choices)
        if request.param == "LocalStore":
            return open_shard(stored(LocalStore(tmp_path), blob), "c/0", spec, mode=mode, **choices)
        if request.param == "StorePath":
            return open_shard(StorePath(stored(MemoryStore(), blob), "c"), "0", spec, mode=mode, **choices)
        if request.param == "obstore":
            obstore = pytest.importorskip("obstore")
            store = zarr.storage.ObjectStore(obstore.store.MemoryStore())
            return open_shard(stored(store, blob), "c/0", spec, mode=mode, **choices)
        store = MemoryStore() if request.param == "MemoryStore" else OtherMemoryStore()
        return open_shard(stored(store, blob), "c/0", spec, mode=mode, **choices)

    return opened


def padded(at_start: bool = False) -> bytes:
    """Return a shard with a header, two inner chunks with a gap between them, and a footer."""
    first = letters_index_nbytes() if at_start else 0
    entries = [(first + 6, 4), (ABSENT, ABSENT), (ABSENT, ABSENT), (first + 13, 4)]
    return assemble(b"header" + WORDS[0] + b"gap" + WORDS[3] + b"footer", entries, at_start=at_start)


# ---- properties


@LOCATIONS
def test_index_state_gaps_and_user_bytes_are_shown(put: Opener, at_start: bool) -> None:
    shard = put(padded(at_start), letters_spec(at_start=at_start), "r")
    first = letters_index_nbytes() if at_start else 0
    assert shard.exists
    assert shard.nbytes == len(padded())
    assert shard.index.shape == (2, 2, 2)
    assert shard.index.dtype == np.uint64
    assert shard.index.reshape(-1, 2).tolist() == [
        list(e) for e in entries_of(padded(at_start), 4, at_start=at_start)
    ]
    assert shard.state().tolist() == [[True, False], [False, True]]
    assert shard.gaps() == [(first, 6), (first + 10, 3), (first + 17, 6)]
    assert shard.overlaps() == []
    assert (shard.header, shard.footer) == (b"header", b"footer")
    assert shard.tobytes() == padded(at_start)
    with pytest.raises(ValueError, match="read-only"):
        shard.index[0, 0] = 1


def test_absent_object_has_no_chunks(put: Opener) -> None:
    shard = put(None, letters_spec(), "r")
    assert not shard.exists
    assert shard.nbytes == 0
    assert (shard.index == ABSENT).all()
    assert not shard.state().any()
    assert shard.gaps() == shard.overlaps() == []
    assert shard.header == shard.footer == shard.tobytes() == b""
    assert shard.read_encoded(ALL) == [None] * 4
    assert (shard.read_chunks(ALL) == 46).all()
    assert (shard.read_region() == 46).all()


def test_overlapping_chunks_are_named(put: Opener) -> None:
    blob = assemble(b"abcdef", [(0, 4), (2, 4), (ABSENT, ABSENT), (ABSENT, ABSENT)])
    assert put(blob, letters_spec(), "r").overlaps() == [((0, 0), (0, 1))]


# ---- reading


@LOCATIONS
def test_encoded_chunks_are_read(put: Opener, at_start: bool) -> None:
    shard = put(padded(at_start), letters_spec(at_start=at_start), "r")
    assert shard.read_encoded([(1, 1), (0, 1), (0, 0), (1, 1)]) == [WORDS[3], None, WORDS[0], WORDS[3]]
    assert shard.read_encoded([]) == []
    assert shard.read_encoded(np.empty((0, 2), dtype=int)) == []


def test_byte_ranges_are_read_inside_the_shard_only(put: Opener) -> None:
    shard = put(padded(), letters_spec(), "r")
    assert shard.read_range(0, 10) == b"header" + WORDS[0]
    assert shard.read_range(len(padded()), 0) == b""
    for offset, nbytes in ((-1, 2), (0, -1), (1, len(padded()))):
        with pytest.raises(ValueError, match="expected a range inside its"):
            shard.read_range(offset, nbytes)


def test_chunks_are_decoded_into_any_memory_layout(put: Opener) -> None:
    shard = put(letters(), letters_spec(), "r")
    chunks = shard.read_chunks([(1, 0), (0, 1)])
    assert [chunk.tobytes() for chunk in chunks] == [WORDS[2], WORDS[1]]
    for out in (np.zeros((2, 2, 2), np.uint8, order="F"), np.zeros((4, 4, 2), np.uint8)[::2, ::-2]):
        assert shard.read_chunks([(1, 0), (0, 1)], out=out) is out
        assert [chunk.tobytes() for chunk in out] == [WORDS[2], WORDS[1]]


@pytest.mark.parametrize(
    "selection", [None, np.s_[1:3, 1:4], np.s_[2], np.s_[..., 3], np.s_[::3, ::2], np.s_[1:1]]
)
def test_regions_equal_decode(put: Opener, selection: Any) -> None:
    for blob in (letters(), padded()):
        shard = (
            put(blob, letters_spec(), "r") if blob == letters() else open_shard(blob, None, letters_spec())
        )
        expected = shardcodec.decode(blob, letters_spec(), selection)
        assert (shard.read_region(selection) == expected).all()
        out = np.zeros(expected.shape, dtype=np.uint8)
        assert shard.read_region(selection, out=out) is out
        assert (out == expected).all()


def test_handle_keeps_reading_the_opened_shard(tmp_path: Path) -> None:
    """A shard that is replaced meanwhile stays the one that was opened, until `refresh`."""
    path = tmp_path / "shard"
    path.write_bytes(letters())
    shard = open_shard(path, None, letters_spec())
    assert shard.exists
    with ShardWriter(path, letters_spec()) as writer:
        writer.write_encoded((0, 0), b"new!")
    assert shard.read_encoded(ALL) == list(WORDS)
    assert text_of(shard.read_region()) == LETTERS
    assert shard.refresh().read_encoded(ALL) == [b"new!", None, None, None]


def test_remote_shard_is_read_by_index_and_ranges() -> None:
    store = RecordingStore(MemoryStore())
    put_object(store, "s", letters())
    shard = open_shard(store, "s", letters_spec())
    # the first range also proves the size of the object
    assert shard.read_encoded([(0, 0), (0, 1)]) == [WORDS[0], WORDS[1]]
    assert shard.read_encoded([(1, 1)]) == [WORDS[3]]
    assert store.requests == [("s", "last 68"), ("s", (0, 84)), ("s", (12, 16))]


@given(layouts(), st.integers(0, 2**32 - 1), st.data())
def test_random_reads_and_writes_equal_the_reference(layout: Layout, seed: int, data: st.DataObject) -> None:
    meta = layout.meta
    spec = ShardSpec.from_json(
        meta.configuration, shard_shape=meta.shape, dtype=meta.dtype, fill_value=meta.fill_value
    )
    array = random_array(meta, meta.shape, seed)
    shard = open_shard(shardcodec.encode(array, spec), None, spec, mode="r+")
    selection = data.draw(selections(meta.shape))
    assert_same_bits(shard.read_region(selection), np.asarray(array[selection]))
    coords = data.draw(st.lists(st.sampled_from(list(np.ndindex(*spec.grid_shape))), max_size=5, unique=True))
    chunks = shard.read_chunks(coords)
    for at, chunk in zip(coords, chunks, strict=True):
        where = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, spec.chunk_shape, strict=True))
        assert_same_bits(chunk, array[where])
        array[where] = array[where][(..., *[slice(None, None, -1)] * array.ndim)]
    flipped = np.array([c[(..., *[slice(None, None, -1)] * array.ndim)] for c in chunks], dtype=meta.dtype)
    shard.write_chunks(coords, flipped.reshape(chunks.shape))
    if shard.tobytes():
        assert_same_bits(decode_shard(shard.tobytes(), meta), array)


# ---- writing


@LOCATIONS
def test_writes_keep_the_other_chunks(put: Opener, at_start: bool) -> None:
    spec = letters_spec(at_start=at_start)
    shard = put(letters(at_start=at_start), spec)
    shard.write_encoded([(0, 1)], [b"1111"])
    assert text_of(shard.read_region()) == "zero 1111 two. tres"
    shard.write_chunks([(1, 1), (0, 0)], np.frombuffer(b"33330000", np.uint8).reshape(2, 2, 2))
    assert text_of(shard.read_region()) == "0000 1111 two. 3333"
    shard.erase([(1, 0), (1, 0)])
    assert text_of(shard.read_region()) == "0000 1111 .... 3333"
    shard.write_chunks([(0, 0)], np.full((1, 2, 2), 46, np.uint8))
    assert shard.state().tolist() == [[False, True], [False, True]]
    shard.write_chunks([(0, 0)], np.full((1, 2, 2), 46, np.uint8), write_empty_chunks=True)
    assert shard.state().tolist() == [[True, True], [False, True]]
    assert text_of(shardcodec.decode(shard.tobytes(), spec)) == ".... 1111 .... 3333"


def test_damaged_chunk_can_be_erased(put: Opener) -> None:
    """No update drops a damaged chunk silently, but the caller may erase it; then the shard can be written again."""
    bad = assemble(b"zeroone.", [(0, 4), (4, 4), (ABSENT, ABSENT), (90, 4)])
    shard = put(bad, letters_spec())
    for update in (lambda: shard.write_encoded([(1, 0)], [b"2222"]), lambda: shard.erase([(0, 0)])):
        with pytest.raises(shardcodec.ShardFormatError) as caught:
            update()
        assert caught.value.chunk_coords == (1, 1)
    with pytest.raises(shardcodec.ShardFormatError):  # the damage may mean that all other entries are shifted
        shard.erase([(1, 1)])
    with shardcodec.options(allow_in_index=True):
        shard.erase([(1, 1)])
    shard.write_encoded([(1, 0)], [b"2222"])
    assert text_of(shard.read_region()) == "zero one. 2222 ...."


def test_first_chunk_creates_the_shard(put: Opener) -> None:
    shard = put(None, letters_spec())
    shard.write_encoded([(1, 0)], [b"made"])
    assert shard.exists
    assert text_of(shard.read_region()) == ".... .... made ...."


def test_erased_shard_has_no_chunks(put: Opener) -> None:
    shard = put(letters(), letters_spec())
    shard.erase(ALL)
    assert not shard.state().any()
    assert (shard.read_region() == 46).all()


def test_erased_file_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(letters())
    shard = open_shard(tmp_path, "shard", letters_spec(), mode="r+")
    shard.erase(ALL)
    assert not shard.exists
    assert files_below(tmp_path) == []


@LOCATIONS
def test_header_and_footer_are_kept_on_request(put: Opener, at_start: bool) -> None:
    shard = put(padded(at_start), letters_spec(at_start=at_start))
    shard.write_encoded([(0, 1), (1, 0)], [b"1111", b"2222"], keep_user_bytes=True)
    assert (shard.header, shard.footer) == (b"header", b"footer")
    assert text_of(shard.read_region()) == "zero 1111 2222 tres"
    shard.write_encoded([(1, 1)], [b"3333"], footer=b"another one, longer")
    assert (shard.header, shard.footer) == (b"header", b"another one, longer")
    assert shard.compact() == 3
    assert (shard.header, shard.footer) == (b"header", b"another one, longer")
    assert text_of(shard.read_region()) == "zero 1111 2222 3333"
    assert [n for _, n in shard.gaps()] == [6, 56 + 19]
    assert shard.compact() == 0


@LOCATIONS
@pytest.mark.parametrize("strategy", ["replace", "append"])
def test_each_write_strategy_keeps_chunks_and_user_bytes(
    tmp_path: Path, at_start: bool, strategy: str
) -> None:
    spec = ShardSpec((64, 64), (16, 16), "uint8", 0, LOOSE, index_location="start" if at_start else "end")
    rng = np.random.default_rng(4)
    array = rng.integers(1, 9, (64, 64), dtype=np.uint8)
    with ShardWriter(tmp_path / "s", spec, header=b"head", footer=b"foot") as writer:
        writer.write_chunks([(0, 0), (3, 3)], np.stack([array[:16, :16], array[48:, 48:]]))
    expected = np.zeros_like(array)
    expected[:16, :16], expected[48:, 48:] = array[:16, :16], array[48:, 48:]
    shard = open_shard(tmp_path, "s", spec, mode="r+")
    for step in range(10):
        r, c = rng.integers(0, 4, 2)
        chunk = rng.integers(1, 2 + 20 * step, (1, 16, 16), dtype=np.uint8)
        keep = step < 4
        if step % 5 == 3:
            shard.erase([(r, c)], strategy=strategy, keep_user_bytes=keep)
            chunk[...] = 0
        else:
            shard.write_chunks([(r, c)], chunk, strategy=strategy, keep_user_bytes=keep)
        expected[r * 16 : r * 16 + 16, c * 16 : c * 16 + 16] = chunk[0]
        assert (shard.read_region() == expected).all()
        assert (shardcodec.decode((tmp_path / "s").read_bytes(), spec) == expected).all()
        assert not keep or (shard.header, shard.footer) == (b"head", b"foot")
    with pytest.raises(ValueError, match="write_strategy"):
        shard.erase([(0, 0)], strategy="hope")


def test_footer_is_dropped_without_keep_user_bytes(put: Opener) -> None:
    shard = put(padded(), letters_spec())
    shard.write_encoded([(0, 1)], [b"1111"])
    assert shard.footer == b""
    assert text_of(shard.read_region()) == "zero 1111 .... tres"


@LOCATIONS
def test_alignment_is_not_guessed_from_one_inner_chunk(at_start: bool) -> None:
    """Offset 0 of one chunk is a multiple of every alignment, so an update once padded all other chunks to 4096."""
    spec = letters_spec(at_start=at_start)
    writer = ShardWriter(None, spec)
    writer.write_encoded((0, 0), b"zero")
    shard = open_shard(writer.commit(), None, spec, mode="r+")
    assert shard.alignment == 1
    before = shard.nbytes
    shard.write_encoded([(0, 1)], [b"one."], keep_user_bytes=True)
    assert (shard.nbytes, shard.alignment) == (before + 4, 1)


@LOCATIONS
@pytest.mark.parametrize("codecs", [RAW, LOOSE], ids=["fixed", "loose"])
def test_alignment_is_kept(at_start: bool, codecs: Any) -> None:
    spec = ShardSpec((64, 64), (16, 16), "uint8", 0, codecs, index_location="start" if at_start else "end")
    array = np.random.default_rng(0).integers(1, 9, (64, 64), dtype=np.uint8)
    writer = ShardWriter(None, spec, alignment=512, header=b"x" * 700, footer=b"foot")
    for at in np.ndindex(4, 3):
        writer.write_chunk(at, array[at[0] * 16 : at[0] * 16 + 16, at[1] * 16 : at[1] * 16 + 16])
    shard = open_shard(writer.commit(), None, spec, mode="r+")
    assert shard.alignment == 512
    for at in [(0, 3), (1, 1), (2, 3), (3, 3), (1, 3)]:
        chunk = np.random.default_rng(at[0]).integers(1, 200, (1, 16, 16), dtype=np.uint8)
        shard.write_chunks([at], chunk, keep_user_bytes=True)
        assert (shard.read_chunks([at]) == chunk).all()
        assert shard.alignment == 512
    before = shard.nbytes
    shard.erase([(0, 0), (0, 1)], keep_user_bytes=True)
    assert shard.nbytes < before, "the erased first chunk must not become a header"
    shard.erase([(2, 0), (1, 1)], keep_user_bytes=True)
    assert shard.compact() > 0
    assert shard.alignment == 512
    assert shard.header.rstrip(b"\0") == b"x" * 700
    assert shard.footer == b"foot"
    assert (shard.read_chunks([(3, 2)])[0] == array[48:, 32:48]).all()


def test_footer_alone_makes_an_object(put: Opener) -> None:
    shard = put(None, letters_spec())
    shard.write_encoded([], [], footer=b"just this")
    assert shard.exists
    assert shard.header + shard.footer == b"just this"


# ---- shards of zarr arrays


@LOCATIONS
def test_shards_of_zarr_arrays_are_read_and_written(tmp_path: Path, at_start: bool) -> None:
    array = checked(tmp_path / "a", at_start=at_start)
    values = np.arange(16 * 24, dtype="int32").reshape(16, 24)
    zarrs_view(array)[...] = values
    spec = ShardSpec.from_metadata(array.metadata.to_dict())
    shard = open_shard(array.store_path, "c/1/0", spec, mode="r+")
    assert (shard.read_region() == values[8:, :12]).all()
    shard.write_chunks([(0, 1)], np.full((1, 4, 3), 7, "int32"))
    values[8:12, 3:6] = 7
    assert (zarrs_view(array)[...] == values).all()
    shard.erase([(1, 1)])
    values[12:, 3:6] = -1
    assert (zarrs_view(array)[...] == values).all()


def test_transpose_before_sharding_is_applied() -> None:
    before = [{"name": "transpose", "configuration": {"order": [1, 0]}}]
    spec = ShardSpec((4, 6), (3, 2), "uint8", 0, RAW, before=before)
    array = np.arange(1, 25, dtype=np.uint8).reshape(4, 6)
    shard = open_shard(shardcodec.encode(array, spec), None, spec)
    assert shard.grid_shape == (2, 2)
    assert (shard.read_region(np.s_[1:, 2:]) == array[1:, 2:]).all()
    assert (shard.read_chunks([(1, 0)])[0] == array.T[3:, :2]).all()


# ---- damage


@pytest.mark.parametrize("kind", ["checksum", "range", "half", "short"])
def test_damage_is_reported_with_its_position(put: Opener, kind: str) -> None:
    blob = letters(checksums=True)
    spec = letters_spec(codecs=[*RAW, "crc32c"])
    entries = entries_of(blob, 4)
    if kind == "short":
        blob = blob[-60:]
    elif kind == "checksum":
        blob = bytes([blob[0] ^ 1]) + blob[1:]
    elif kind == "range":
        blob = assemble(blob[:-68], [(8 * len(blob), 8), *entries[1:]])
    else:
        blob = assemble(blob[:-68], [(0, ABSENT), *entries[1:]])
    shard = put(blob, spec)
    if kind == "short":
        with pytest.raises(shardcodec.ShardFormatError, match="too short"):
            _ = shard.index
        return
    error = shardcodec.ChecksumError if kind == "checksum" else shardcodec.ShardFormatError
    for read in (lambda: shard.read_chunks(ALL), lambda: shard.read_region(np.s_[:2, :2])):
        with pytest.raises(error) as caught:
            read()
        assert caught.value.chunk_coords == (0, 0)
        assert caught.value.shard.endswith("c/0")
    assert (shard.read_chunks(ALL[1:])[2] == shard.read_region(np.s_[2:, 2:])).all()
    if kind == "checksum":
        shard.check()
        return
    for read in (shard.check, shard.state, shard.gaps, lambda: shard.header):
        with pytest.raises(error, match=r"inner chunk \(0, 0\)"):
            read()
    before = shard.tobytes()
    with pytest.raises(error):
        shard.erase([(1, 1)])
    assert shard.refresh().tobytes() == before


# ---- arguments


def test_bad_arguments_are_refused(put: Opener) -> None:
    shard = put(letters(), letters_spec())
    with pytest.raises(IndexError):
        shard.read_encoded([(0, 2)])
    with pytest.raises(IndexError):
        shard.read_chunks([(0,)])
    with pytest.raises(ValueError, match=r"out: expected shape \(4, 2, 2\), got \(3, 2, 2\)"):
        shard.read_chunks(ALL, out=np.zeros((3, 2, 2), np.uint8))
    with pytest.raises(TypeError, match="out: expected dtype uint8, got int8"):
        shard.read_region(out=np.zeros((4, 4), np.int8))
    with pytest.raises(ValueError, match="second time"):
        shard.write_encoded([(0, 0), (0, 0)], [b"aaaa", b"bbbb"])
    with pytest.raises(ValueError, match="expected 1 items, one for each position, got 2"):
        shard.write_encoded([(0, 0)], [b"aaaa", b"bbbb"])
    with pytest.raises(ValueError, match="got 5"):
        shard.write_encoded([(0, 0)], [b"aaaaa"])
    with pytest.raises(ValueError, match="power of two"):
        shard.write_encoded([(0, 0)], [b"aaaa"], alignment=3)
    with pytest.raises(TypeError):
        shard.write_encoded([(0, 0)], [b"aaaa"], colour="red")
    assert shard.tobytes() == letters()


def test_read_only_handle_refuses_writes(put: Opener) -> None:
    shard = put(letters(), letters_spec(), "r")
    for write in (
        lambda: shard.erase(ALL),
        lambda: shard.write_encoded([(0, 0)], [b"aaaa"]),
        lambda: shard.write_chunks([(0, 0)], np.zeros((1, 2, 2), np.uint8)),
        shard.compact,
    ):
        with pytest.raises(ValueError, match="reading only"):
            write()
