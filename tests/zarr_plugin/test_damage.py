# test_damage.py - wrong answers of stores and damaged shards, local and remote
# SPDX-License-Identifier: MIT
"""An answer from a network is trusted no more than a file: the length of each answer and each entry are checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    LETTERS,
    OtherMemoryStore,
    assemble,
    checked,
    create,
    entries_of,
    gap_of,
    letters,
    object_of,
    ours,
    put_object,
    random_array,
    text_of,
)
from spec_json import metadata, sharding, transpose
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import shardcodec
from shardcodec.zarr_plugin import pipeline

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
INDEX_NBYTES = 16 * 8 + 4


@pytest.fixture(autouse=True)
def index_and_ranges() -> Iterator[None]:
    """Make shards count as too large to be fetched whole."""
    with gap_of(0):
        yield


class LyingStore(WrapperStore):  # type: ignore[type-arg]
    """A store that passes each answer to a range request through `lie`."""

    lie: Any = None

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        buffer = await super().get(key, prototype, byte_range)
        if byte_range is None or self.lie is None or "c/" not in key:
            return buffer
        return self.lie(buffer, byte_range)


def lying(lie: Any) -> Any:
    store = LyingStore(MemoryStore())
    array = checked(store)
    array[...] = random_array((16, 24), "int32")
    store.lie = lie
    return array


@pytest.mark.parametrize("n", [0, 1, 5])
def test_short_answer_is_an_error(n: int) -> None:
    array = lying(lambda buffer, wanted: buffer[:n] if hasattr(wanted, "start") else buffer)
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 2]
    assert raised.value.shard == "c/0/0"


def test_missing_answer_for_a_stored_object_is_an_error() -> None:
    array = lying(lambda buffer, wanted: None if hasattr(wanted, "start") else buffer)
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 2]
    assert raised.value.shard == "c/0/0" and raised.value.offset is not None


def test_object_deleted_during_a_read_reads_as_missing() -> None:
    """A read that starts a moment later finds no object either."""

    def delete(buffer: Any, wanted: Any) -> Any:
        if hasattr(wanted, "start"):
            return None
        array.store._store._store_dict.pop("c/0/0", None)
        return buffer

    array = lying(delete)
    assert (array[:4, 1:5] == -1).all()


class RangelessStore(WrapperStore):  # type: ignore[type-arg]
    """A server that ignores ranges and sends the whole object."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        return await super().get(key, prototype, None if hasattr(byte_range, "start") else byte_range)


def test_long_answer_is_an_error() -> None:
    array = letters_in(RangelessStore(MemoryStore()), letters())
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 3]
    assert raised.value.shard == "c/0/0"


@pytest.mark.parametrize("n", [0, 1, INDEX_NBYTES - 1])
def test_truncated_index_is_an_error(n: int) -> None:
    array = lying(lambda buffer, wanted: buffer if hasattr(wanted, "start") else buffer[:n])
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 2]
    assert raised.value.shard == "c/0/0" and raised.value.nbytes == n


def test_errors_of_the_store_pass_unchanged() -> None:
    def fail(buffer: Any, wanted: Any) -> Any:
        raise ConnectionResetError("gone")

    array = lying(fail)
    with pytest.raises(ConnectionResetError, match="gone"):
        array[1, 2]


# ---- every kind of store refuses the same damaged shards


def letters_in(store: Any, blob: bytes, *, at_start: bool = False) -> Any:
    codec = ShardingCodec(
        chunk_shape=(2, 2), codecs=[BytesCodec()], index_location="start" if at_start else "end"
    )
    zarr.create_array(
        store, shape=(4, 4), chunks=(4, 4), dtype="uint8", fill_value=46, serializer=codec, compressors=None
    )
    put_object(store, "c/0/0", blob)
    return ours(store)


REMOTE = [MemoryStore, OtherMemoryStore]


@LOCATIONS
@pytest.mark.parametrize("kind", REMOTE)
def test_undamaged_shard_is_read(kind: Any, at_start: bool) -> None:
    array = letters_in(kind(), letters(at_start=at_start), at_start=at_start)
    assert text_of(array[...]) == LETTERS
    assert array[:2, 2:].tobytes() == b"one."


OUT_OF_BOUNDS = [(84, 4), (2**63, 4), (2**64 - 2, 4), (0, 2**62), (0, ABSENT), (ABSENT, 3)]
OF_WRONG_LENGTH = [(0, 3), (0, 5), (9, 0), (0, 0)]
bad_entries = pytest.mark.parametrize("bad", OUT_OF_BOUNDS + OF_WRONG_LENGTH)


def with_bad_entry(kind: Any, bad: tuple[int, int], *, at_start: bool = False) -> Any:
    """Store a shard whose entry of inner chunk (0, 1) is bad. The others are good."""
    first = 68 * at_start
    entries = [(first, 4), bad, (first + 8, 4), (first + 12, 4)]
    return letters_in(kind(), assemble(b"zeroone.two.tres", entries, at_start=at_start), at_start=at_start)


@pytest.mark.parametrize(("kind", "gap"), [*((kind, 0) for kind in REMOTE), (OtherMemoryStore, 1 << 20)])
@pytest.mark.parametrize("selection", [np.s_[...], np.s_[:2, 2:], np.s_[1, 3], np.s_[::3, ::3]])
@bad_entries
def test_bad_entry_is_an_error_for_its_chunk(
    kind: Any, gap: int, bad: tuple[int, int], selection: Any
) -> None:
    array = with_bad_entry(kind, bad)
    with gap_of(gap), pytest.raises(shardcodec.ShardFormatError) as raised:
        array[selection]
    assert raised.value.shard == "c/0/0" and raised.value.chunk_coords == (0, 1)


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("bad", OUT_OF_BOUNDS)
def test_entry_outside_of_the_shard_is_an_error_for_every_chunk(kind: Any, bad: tuple[int, int]) -> None:
    """Without checksums of inner chunks, only this shows that the object lost its first bytes."""
    array = with_bad_entry(kind, bad)
    for selection in (np.s_[2:, :2], np.s_[3, 3]):
        with pytest.raises(shardcodec.ShardFormatError):
            array[selection]


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("bad", OF_WRONG_LENGTH)
def test_wrong_length_is_an_error_for_its_chunk_only(kind: Any, bad: tuple[int, int]) -> None:
    array = with_bad_entry(kind, bad)
    assert array[2:, :2].tobytes() == b"two."
    assert array[3, 3] == ord("s")


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("bad", OUT_OF_BOUNDS)
def test_bad_entry_stops_an_update(kind: Any, bad: tuple[int, int]) -> None:
    array = with_bad_entry(kind, bad)
    before = object_of(array.store, "c/0/0")
    for selection in (np.s_[3, 3], np.s_[2:]):
        with pytest.raises(shardcodec.ShardFormatError) as raised:
            array[selection] = 1
        assert raised.value.chunk_coords == (0, 1)
    assert object_of(array.store, "c/0/0") == before


@pytest.mark.parametrize("kind", REMOTE)
def test_entry_over_the_index_at_the_start_is_an_error(kind: Any) -> None:
    """With the index at the end, a partial read through a store that reports no sizes would not notice it."""
    array = with_bad_entry(kind, (66, 4), at_start=True)
    for selection in (np.s_[...], np.s_[1, 3]):
        with pytest.raises(shardcodec.ShardFormatError) as raised:
            array[selection]
        assert raised.value.chunk_coords == (0, 1)


class HugeRequest(Exception):
    """Raised by the store in `test_huge_entry_is_not_requested`."""


def test_huge_entry_is_not_requested() -> None:
    """The chunk has four bytes. An entry that claims 2^62 bytes is refused before any request."""

    def refuse(buffer: Any, wanted: Any) -> Any:
        if getattr(wanted, "end", 0) > 1 << 20:
            raise HugeRequest(wanted)
        return buffer

    store = LyingStore(MemoryStore())
    array = letters_in(store, assemble(b"zeroone.two.tres", [(0, 4), (0, 2**62), (8, 4), (12, 4)]))
    store.lie = refuse
    with pytest.raises(shardcodec.ShardFormatError):
        array[1, 3]


@pytest.mark.parametrize("kind", REMOTE)
def test_damaged_zstd_stream_is_an_error_of_its_chunk(kind: Any) -> None:
    """The test of this name read a whole stream, and so none was damaged."""
    array = create(
        kind(),
        shape=(4, 4),
        shards=(4, 4),
        chunks=(2, 2),
        dtype="uint8",
        fill_value=0,
        compressors=ZstdCodec(level=1),
    )
    array[...] = 5
    blob = object_of(array.store, "c/0/0")
    assert blob is not None
    offset, _ = entries_of(blob, 4)[1]
    put_object(array.store, "c/0/0", blob[:offset] + bytes([blob[offset] ^ 1]) + blob[offset + 1 :])
    assert (array[2:] == 5).all()
    with pytest.raises(shardcodec.CodecError) as raised:
        array[...]
    assert raised.value.shard == "c/0/0" and raised.value.chunk_coords == (0, 1)


def test_partial_read_detects_lost_first_bytes() -> None:
    """The shard lost its first bytes: the index is whole, each inner chunk is three bytes off, and the last one
    overlaps the index. A suffix request does not report the size of the object, so a partial read through a store
    with its own requests returned the shifted bytes.
    """
    array = letters_in(LyingStore(MemoryStore()), letters()[3:])
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[2:, 2:]
    assert raised.value.chunk_coords == (1, 1)


@pytest.mark.parametrize("kind", [LocalStore, OtherMemoryStore])
def test_second_attempt_of_a_write_keeps_what_another_writer_has_stored(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists do not tell the edge of the array, so a damaged object there makes a second attempt, which stores all objects again."""
    monkeypatch.setattr("shardcodec.storage.file_locks.MAX_LOCKS", 1)
    monkeypatch.setattr(
        "shardcodec.storage.store.GROUP_NBYTES", 1
    )  # the first attempt stores object by object
    place = LocalStore(tmp_path) if kind is LocalStore else kind()
    array = create(place, shape=(10, 10), shards=(4, 4), chunks=(2, 2), dtype="int32")
    array[...] = 1
    put_object(place, "c/2/2", b"torn")
    others, attempts, store = [(4, 4), (4, 8), (8, 4)], [], pipeline.write_request

    def other_writer() -> None:
        found = shardcodec.open_array(place, mode="r+")
        assert [int(found[at]) for at in ((6, 6), (6, 8), (8, 6))] == [7, 7, 7]
        for at in others:
            found[at] = 5

    async def storing(request: Any, options: Any) -> None:
        attempts.append(request)
        if len(attempts) == 2:
            await asyncio.to_thread(other_writer)
        await store(request, options)

    monkeypatch.setattr(pipeline, "write_request", storing)
    array.oindex[[5, 6, 7, 8, 9], [6, 7, 8, 9]] = 7
    expected = np.ones((10, 10), "int32")
    expected[5:, 6:] = 7
    for at in others:
        expected[at] = 5
    assert len(attempts) == 2 and np.array_equal(array[...], expected)


# ---------------------------------------------------------------- metadata that zarr accepts


@pytest.mark.parametrize(
    "access", [lambda a: a[0, 0], lambda a: a.__setitem__(..., 1)], ids=["read", "write"]
)
def test_inner_chunks_that_do_not_divide_the_shard_are_refused(access: Any) -> None:
    """zarr 3.4 compares inner chunks with the shard before a transpose, and silently stores nothing of such an
    array.
    """
    text = json.dumps(metadata(transpose(1, 0), sharding(chunk_shape=[2, 6]))).encode()
    array = ours(MemoryStore({"zarr.json": default_buffer_prototype().buffer.from_bytes(text)}), strict=False)
    with pytest.raises(shardcodec.SpecError, match="6 does not divide shard size 4") as caught:
        access(array)
    assert (caught.value.axis, caught.value.actual, caught.value.limit) == (1, 6, 4)
