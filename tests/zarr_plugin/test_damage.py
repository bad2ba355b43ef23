# test_damage.py - stores that answer wrongly, and shards that are wrong, near and far
# SPDX-License-Identifier: MIT
"""What comes over a network is trusted no more than a file: every answer is measured, every entry checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    gap_of,
    letters,
    ours,
    random_array,
    text_of,
)
from spec_json import metadata, sharding, transpose, zstd
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore

import shardcodec

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
INDEX_NBYTES = 16 * 8 + 4


@pytest.fixture(autouse=True)
def index_and_ranges() -> Iterator[None]:
    """As for shards that are too large to be fetched whole."""
    with gap_of(0):
        yield


class LyingStore(WrapperStore):  # type: ignore[type-arg]
    """Answers requests for a range with what `lie` makes of the truth."""

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
def test_a_short_answer(n: int) -> None:
    array = lying(lambda buffer, wanted: buffer[:n] if hasattr(wanted, "start") else buffer)
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 2]
    assert raised.value.shard == "c/0/0"


def test_no_answer_for_a_range_of_an_object_that_is_there() -> None:
    array = lying(lambda buffer, wanted: None if hasattr(wanted, "start") else buffer)
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 2]
    assert raised.value.shard == "c/0/0" and raised.value.offset is not None


def test_an_object_that_goes_between_its_index_and_its_chunks() -> None:
    """Then it is missing, which is what a read a moment later would have said."""

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


def test_an_answer_that_is_too_long() -> None:
    array = letters_in(RangelessStore(MemoryStore()), letters())
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 3]
    assert raised.value.shard == "c/0/0"


@pytest.mark.parametrize("n", [0, 1, INDEX_NBYTES - 1])
def test_an_index_that_is_cut(n: int) -> None:
    array = lying(lambda buffer, wanted: buffer if hasattr(wanted, "start") else buffer[:n])
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[1, 2]
    assert raised.value.shard == "c/0/0" and raised.value.nbytes == n


def test_errors_of_the_store_pass() -> None:
    def fail(buffer: Any, wanted: Any) -> Any:
        raise ConnectionResetError("gone")

    array = lying(fail)
    with pytest.raises(ConnectionResetError, match="gone"):
        array[1, 2]


# ---- hostile shards are refused alike, wherever they are


def letters_in(store: Any, blob: bytes, *, at_start: bool = False) -> Any:
    codec = ShardingCodec(
        chunk_shape=(2, 2), codecs=[BytesCodec()], index_location="start" if at_start else "end"
    )
    zarr.create_array(
        store, shape=(4, 4), chunks=(4, 4), dtype="uint8", fill_value=46, serializer=codec, compressors=None
    )
    value = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(blob)
    zarr.core.sync.sync(store.set("c/0/0", value))
    return ours(store)


def stored(array: Any) -> bytes:
    prototype = zarr.core.buffer.default_buffer_prototype()
    return bytes(zarr.core.sync.sync(array.store.get("c/0/0", prototype)).to_bytes())


REMOTE = [MemoryStore, OtherMemoryStore]


@LOCATIONS
@pytest.mark.parametrize("kind", REMOTE)
def test_letters(kind: Any, at_start: bool) -> None:
    array = letters_in(kind(), letters(at_start=at_start), at_start=at_start)
    assert text_of(array[...]) == LETTERS
    assert array[:2, 2:].tobytes() == b"one."


OUT_OF_BOUNDS = [(84, 4), (2**63, 4), (2**64 - 2, 4), (0, 2**62), (0, ABSENT), (ABSENT, 3)]
OF_WRONG_LENGTH = [(0, 3), (0, 5), (9, 0), (0, 0)]
bad_entries = pytest.mark.parametrize("bad", OUT_OF_BOUNDS + OF_WRONG_LENGTH)


def with_bad_entry(kind: Any, bad: tuple[int, int], *, at_start: bool = False) -> Any:
    """Inner chunk (0, 1) is bad, the others are good."""
    first = 68 * at_start
    entries = [(first, 4), bad, (first + 8, 4), (first + 12, 4)]
    return letters_in(kind(), assemble(b"zeroone.two.tres", entries, at_start=at_start), at_start=at_start)


@pytest.mark.parametrize(("kind", "gap"), [*((kind, 0) for kind in REMOTE), (OtherMemoryStore, 1 << 20)])
@pytest.mark.parametrize("selection", [np.s_[...], np.s_[:2, 2:], np.s_[1, 3], np.s_[::3, ::3]])
@bad_entries
def test_a_bad_entry_is_an_error_where_it_is_read(
    kind: Any, gap: int, bad: tuple[int, int], selection: Any
) -> None:
    array = with_bad_entry(kind, bad)
    with gap_of(gap), pytest.raises(shardcodec.ShardFormatError) as raised:
        array[selection]
    assert raised.value.shard == "c/0/0" and raised.value.chunk_coords == (0, 1)


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("bad", OUT_OF_BOUNDS)
def test_a_bad_entry_matters_everywhere(kind: Any, bad: tuple[int, int]) -> None:
    """Without checksums in inner chunks nothing else would tell that the object lost its first bytes."""
    array = with_bad_entry(kind, bad)
    for selection in (np.s_[2:, :2], np.s_[3, 3]):
        with pytest.raises(shardcodec.ShardFormatError):
            array[selection]


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("bad", OF_WRONG_LENGTH)
def test_a_wrong_length_does_not_matter_elsewhere(kind: Any, bad: tuple[int, int]) -> None:
    array = with_bad_entry(kind, bad)
    assert array[2:, :2].tobytes() == b"two."
    assert array[3, 3] == ord("s")


@pytest.mark.parametrize("kind", REMOTE)
@pytest.mark.parametrize("bad", OUT_OF_BOUNDS)
def test_a_bad_entry_stops_an_update(kind: Any, bad: tuple[int, int]) -> None:
    array = with_bad_entry(kind, bad)
    before = stored(array)
    for selection in (np.s_[3, 3], np.s_[2:]):
        with pytest.raises(shardcodec.ShardFormatError) as raised:
            array[selection] = 1
        assert raised.value.chunk_coords == (0, 1)
    assert stored(array) == before


@pytest.mark.parametrize("kind", REMOTE)
def test_an_entry_in_an_index_at_the_start(kind: Any) -> None:
    """At the end a store that does not tell sizes would not show it to a partial read."""
    array = with_bad_entry(kind, (66, 4), at_start=True)
    for selection in (np.s_[...], np.s_[1, 3]):
        with pytest.raises(shardcodec.ShardFormatError) as raised:
            array[selection]
        assert raised.value.chunk_coords == (0, 1)


class AskedTooMuch(Exception):
    """What `test_a_huge_entry` must not see."""


def test_a_huge_entry_is_not_asked_for() -> None:
    """Four bytes are due: a claim of 2^62 is refused before any store tries to send them."""

    def refuse(buffer: Any, wanted: Any) -> Any:
        if getattr(wanted, "end", 0) > 1 << 20:
            raise AskedTooMuch(wanted)
        return buffer

    store = LyingStore(MemoryStore())
    array = letters_in(store, assemble(b"zeroone.two.tres", [(0, 4), (0, 2**62), (8, 4), (12, 4)]))
    store.lie = refuse
    with pytest.raises(shardcodec.ShardFormatError):
        array[1, 3]


@pytest.mark.parametrize("kind", REMOTE)
def test_zstd_of_letters(kind: Any) -> None:
    spec = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 46, [{"name": "bytes"}, zstd()])
    blob = shardcodec.encode(np.frombuffer(b"zeroone.two.tres", "u1").reshape(4, 4), spec)
    codec = ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec(), ZstdCodec(level=1)])
    store = kind()
    zarr.create_array(
        store, shape=(4, 4), chunks=(4, 4), dtype="uint8", fill_value=46, serializer=codec, compressors=None
    )
    value = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(blob)
    zarr.core.sync.sync(store.set("c/0/0", value))
    array = ours(store)
    assert (
        array[1:3, 1:3].tobytes()
        == np.frombuffer(b"zeroone.two.tres", "u1").reshape(4, 4)[1:3, 1:3].tobytes()
    )


def test_a_lost_head_is_seen_in_a_partial_read() -> None:
    """The first bytes of a shard were lost. Its index is whole, and every inner chunk is three bytes off; the last one
    reaches into the index. A suffix request does not tell the size of the object, so a partial read through a store
    with requests of its own once returned the shifted bytes."""
    array = letters_in(LyingStore(MemoryStore()), letters()[3:])
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[2:, 2:]
    assert raised.value.chunk_coords == (1, 1)


# ---------------------------------------------------------------- metadata that zarr lets pass


@pytest.mark.parametrize(
    "access", [lambda a: a[0, 0], lambda a: a.__setitem__(..., 1)], ids=["read", "write"]
)
def test_shards_that_their_inner_chunks_do_not_divide_are_refused(access: Any) -> None:
    """zarr 3.4 compares inner chunks with the shard before a transpose, and of such an array it silently stores nothing."""
    text = json.dumps(metadata(transpose(1, 0), sharding(chunk_shape=[2, 6]))).encode()
    array = ours(MemoryStore({"zarr.json": default_buffer_prototype().buffer.from_bytes(text)}), strict=False)
    with pytest.raises(shardcodec.SpecError, match="6 does not divide shard size 4") as caught:
        access(array)
    assert (caught.value.axis, caught.value.actual, caught.value.limit) == (1, 6, 4)
