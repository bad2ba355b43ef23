# test_staged.py - sharded arrays with codecs that have no native code
# SPDX-License-Identifier: MIT
"""The shard is native, the codecs are zarr's: each pipeline reads what the other one writes, bit by bit."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_ways import elements
from helpers import (
    KINDS_OF_STORE,
    OtherMemoryStore,
    RecordingStore,
    bits,
    chunk_bytes,
    entries_of,
    gap_of,
    ours,
    quiet,
    random_array,
    shard_path,
    store_of,
    zarrs_view,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from staged_codecs import AROUND, CHUNK, INNER, SHAPE, SHARD, Turned, TurnedAtOnce, make
from zarr.codecs import BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import UnsupportedError
from shardcodec.access.staged.read import run_on_threads


@pytest.fixture(params=KINDS_OF_STORE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Codecs that must be awaited once failed in object stores: small conditional updates ran on the event loop."""
    return store_of(request.param, tmp_path / "array")


def check_both_ways(array: Any, values: np.ndarray[Any, Any]) -> None:
    """Write and read the whole array and parts of it through one pipeline, and compare with the other one."""
    whole, other = (slice(None),) * values.ndim, zarrs_view(array)
    twin = np.full(values.shape, array.fill_value, dtype=values.dtype)
    steps = [whole, np.s_[3:9, 5:19], np.s_[4:8, 3:6], np.s_[::3, 7], np.s_[5, 6]]
    for turn, (writer, reader) in enumerate([(array, other), (other, array)]):
        for step in steps:
            part = np.roll(values, turn + 1)[step]
            writer[step] = twin[step] = part
            assert (
                bits(np.asarray(array[step], dtype=values.dtype))
                == np.asarray(twin[step], dtype=values.dtype).tobytes()
            )
        assert bits(np.asarray(reader[...], dtype=values.dtype)) == bits(twin)


@pytest.mark.parametrize("codecs", INNER)
def test_codecs_of_inner_chunks_agree_with_zarr(codecs: str) -> None:
    check_both_ways(make(MemoryStore(), INNER[codecs]()), random_array(SHAPE, "int32"))


@pytest.mark.parametrize("codecs", ["bz2", "awaited"])
def test_every_store_agrees_with_zarr(store: Any, codecs: str) -> None:
    check_both_ways(make(store, INNER[codecs]()), random_array(SHAPE, "int32"))


@pytest.mark.parametrize("around", AROUND)
def test_codecs_around_the_sharding_agree_with_zarr(store: Any, around: str) -> None:
    array = make(store, [BytesCodec(), ZstdCodec()], **AROUND[around])
    check_both_ways(array, random_array(array.shape, "int32"))


@pytest.mark.parametrize("around", AROUND)
def test_codecs_around_and_inside_the_sharding_agree_with_zarr(around: str) -> None:
    array = make(MemoryStore(), INNER["bz2"](), **AROUND[around])
    check_both_ways(array, random_array(array.shape, "int32"))


def test_codecs_after_the_sharding_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    from shardcodec.zarr_plugin import array_codecs

    array_codecs._log_once.cache_clear()
    with caplog.at_level("INFO", logger="shardcodec"):
        for _ in range(3):
            make(MemoryStore(), [BytesCodec()], after=[ZstdCodec(), Crc32cCodec()])[...] = 1
    assert [record.getMessage() for record in caplog.records] == [
        "codecs after sharding_indexed (zstd, crc32c): every access reads or writes whole shards"
    ]


@pytest.mark.parametrize("dtype", ["uint8", ">f8", "complex64", "bool", "datetime64[s]", "U3", "S5"])
def test_every_dtype_agrees_with_zarr(dtype: str) -> None:
    values = random_array(SHAPE, "int32").astype(dtype)
    with quiet():
        array = make(MemoryStore(), [BytesCodec(), Turned()], dtype=np.dtype(dtype), fill_value=values[0, 0])
    check_both_ways(array, values)


@pytest.mark.parametrize("dtype", ["str", "bytes"])
def test_elements_of_variable_length_are_read_by_ranges(dtype: str) -> None:
    """Large shards in object stores are read like this. It failed: ranges were planned with a fixed element size."""
    store = RecordingStore(OtherMemoryStore())
    zdtype = str if dtype == "str" else zarr.dtype.VariableLengthBytes()
    with quiet():
        zarr.create_array(store, shape=SHAPE, shards=SHARD, chunks=CHUNK, dtype=zdtype)
    array, twin = ours(store), elements("string" if dtype == "str" else dtype, SHAPE).astype(object)
    array[...] = twin
    store.forget()
    with gap_of(0):
        assert np.array_equal(array[3:6, 2:7], twin[3:6, 2:7])
        assert np.array_equal(array.oindex[[1, 9], [0, 19]], twin[np.ix_([1, 9], [0, 19])])
        assert np.array_equal(array.vindex[[1, 9], [0, 19]], twin[[1, 9], [0, 19]])
        assert array[5, 7] == twin[5, 7]
    assert all(wanted != "all" for _, wanted in store.chunk_requests())


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("codecs", ["bz2", "awaited"])
def test_chunks_erased_in_part_hold_the_fill_value(store: Any, around: str, codecs: str) -> None:
    """Object stores have no conditional delete. If codecs followed the sharding, the old elements stayed."""
    array = make(store, INNER[codecs](), **AROUND[around])
    rows = AROUND[around].get("chunks", SHARD)[0]
    array[...] = 5
    array[0] = -1
    array[1:rows] = -1
    assert (array[:rows] == -1).all() and (array[rows:] == 5).all()
    assert (zarrs_view(array)[:rows] == -1).all()


@pytest.mark.parametrize("around", [{}, {"after": [Turned()]}])
def test_empty_chunks_are_stored_on_request(around: Any) -> None:
    stored = []
    for view in (lambda array: array, zarrs_view):
        store = MemoryStore()
        with zarr.config.set({"array.write_empty_chunks": True}):
            array = view(make(store, INNER["at once"](), **around))
        array[...] = -1
        stored.append(store._store_dict["c/0/0"].to_bytes())
    assert stored[0] == stored[1]


def test_partial_write_neither_decodes_nor_moves_other_chunks(tmp_path: Path) -> None:
    array = make(LocalStore(tmp_path / "a"), INNER["at once"]())
    array[...] = random_array(SHAPE, "int32")
    path, n = shard_path(array), 8
    old = path.read_bytes()
    Turned.n_decoded = Turned.n_encoded = 0
    array[0:4, 0:3] = 7  # one whole inner chunk
    assert (Turned.n_decoded, Turned.n_encoded) == (0, 1)
    array[0, 4] = 8  # one element of the next inner chunk
    assert (Turned.n_decoded, Turned.n_encoded) == (1, 2)
    new = path.read_bytes()
    before, after = entries_of(old, n), entries_of(new, n)
    assert before[2:] == after[2:]
    for entry in before[2:]:
        assert chunk_bytes(old, entry) == chunk_bytes(new, entry)


def test_partial_read_decodes_only_touched_chunks() -> None:
    array = make(MemoryStore(), INNER["at once"]())
    array[...] = random_array(SHAPE, "int32")
    Turned.n_decoded = 0
    assert array[3:5, 0].shape == (2,)
    assert Turned.n_decoded == 2


def test_partial_read_requests_only_touched_chunks() -> None:
    store = RecordingStore(OtherMemoryStore())
    array = make(store, INNER["at once"](), shape=(640, 640), chunks=(640, 640), inner=(160, 160))
    array[...] = random_array((640, 640), "int32")
    store.forget()
    assert array[0, 0] == random_array((640, 640), "int32")[0, 0]
    # index, inner chunk, and one byte that shows the length of the object
    assert len(store.chunk_requests()) == 3


@pytest.mark.parametrize("order", ["morton", "lexicographic", "colexicographic"])
def test_inner_chunks_follow_the_chosen_order(order: str) -> None:
    staged, native = MemoryStore(), MemoryStore()
    arrays = [make(staged, INNER["at once"]()), make(native, [BytesCodec()])]
    for array in arrays:
        with shardcodec.options(order=order):
            array[...] = random_array(SHAPE, "int32")
            array[1:7, 2:5] = 3
    indexes = [entries_of(store._store_dict["c/0/0"].to_bytes(), 8) for store in (staged, native)]
    offsets = [sorted(range(8), key=lambda i: index[i][0]) for index in indexes]
    assert offsets[0][-4:] == [i for i in offsets[1] if i in offsets[0][-4:]] or order != "morton"
    with shardcodec.options(order=order):
        for array in arrays:
            array[...] = random_array(SHAPE, "int32")
    first, second = (entries_of(store._store_dict["c/0/0"].to_bytes(), 8) for store in (staged, native))
    assert first == second


def test_update_can_be_appended(tmp_path: Path) -> None:
    """The write strategy is independent of the codecs."""
    array = make(LocalStore(tmp_path / "a"), INNER["bz2"](), shape=(64, 64), chunks=(64, 64), inner=(8, 8))
    twin = random_array((64, 64), "int32")
    array[...] = twin
    inode = shard_path(array).stat().st_ino
    with shardcodec.options(write_strategy="append"):
        array[3:20, 5] = twin[3:20, 5] = 4
        array[40:48, :8] = twin[40:48, :8] = -1
    assert shard_path(array).stat().st_ino == inode
    assert bits(array[...]) == bits(zarrs_view(array)[...]) == bits(twin)


def test_opens_requests_and_bytes_are_counted(tmp_path: Path) -> None:
    array = make(LocalStore(tmp_path / "a"), INNER["at once"]())
    array[...] = random_array(SHAPE, "int32")
    before = shardcodec.stats()
    assert array[0, 0] == random_array(SHAPE, "int32")[0, 0]
    after = shardcodec.stats()
    assert [after[name] - before[name] for name in ("opens", "requests", "bytes_used")] == [1, 2, 48]


def test_arrays_without_shards_are_left_to_zarr() -> None:
    with quiet():
        array = zarr.create_array(
            MemoryStore(), shape=(8,), chunks=(4,), dtype="int32", compressors=[of_numcodecs.BZ2(level=1)]
        )
    lenient, strict = shardcodec.attach(array), shardcodec.attach(array, strict=True)
    lenient[...] = 3
    assert np.all(lenient[...] == 3)
    with pytest.raises(UnsupportedError, match=r"numcodecs\.bz2"):
        strict[...]


# ---- random selections


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    parts: list[Any] = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        if draw(st.booleans()):
            parts.append(slice(start, draw(st.integers(start + 1, extent)), draw(st.integers(1, 9))))
        else:
            parts.append(start)
    return tuple(parts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_boxes_through_random_chains_equal_an_array(data: st.DataObject) -> None:
    """Either pipeline writes random boxes, with memory budgets from 1 byte to 1 MiB; the reference is a numpy array."""
    perm = data.draw(st.permutations(range(3)))
    codec = data.draw(st.sampled_from([Turned, TurnedAtOnce]))
    after = data.draw(st.sampled_from([(), (Turned(),)]))
    at = data.draw(st.sampled_from(["start", "end"]))
    shape, shard = (7, 11, 5), (4, 4, 4)
    array = make(
        MemoryStore(),
        [BytesCodec(), codec()],
        before=[TransposeCodec(order=tuple(perm))],
        after=after,
        shape=shape,
        chunks=shard,
        inner=(2, 4, 1),
        index_location=at,
    )
    other, twin = zarrs_view(array), np.full(shape, -1, dtype="int32")
    counter = itertools.count()
    budget = data.draw(st.sampled_from([1, 100, 1000, 1 << 20]))
    with shardcodec.options(staging_nbytes=budget, threads=data.draw(st.sampled_from([1, 3]))):
        for _ in range(data.draw(st.integers(1, 4))):
            box = data.draw(boxes(shape))
            values = np.asarray(twin[box]) * 0 + next(counter)
            twin[box] = values
            (array if data.draw(st.booleans()) else other)[box] = values
            seen = data.draw(boxes(shape))
            assert bits(array[seen]) == bits(twin[seen])
        assert bits(array[...]) == bits(other[...]) == bits(twin)


class Slow:
    """Codecs of which each chunk takes some milliseconds; see `ChunkCodecs`."""

    one_by_one = True


@pytest.mark.parametrize(("per_thread", "most"), [(2e-3, 4), (60.0, 1)])
def test_slow_codecs_get_threads_for_small_chunks(
    monkeypatch: pytest.MonkeyPatch, per_thread: float, most: int
) -> None:
    """Eight chunks of 8 KiB with bz2 took 1.5 times the time of zarr, because their bytes alone were not worth a thread."""
    threads: set[int] = set()
    done: list[int] = []

    def work(begin: int, end: int) -> None:
        threads.add(threading.get_ident())
        done.extend(range(begin, end))
        time.sleep(0.005)

    monkeypatch.setattr("shardcodec.access.staged.read.SECONDS_PER_THREAD", per_thread)
    codecs: Any = Slow()
    run_on_threads(8, work, codecs, 8192, 1 << 20, 4, None)
    assert sorted(done) == list(range(8))
    assert (len(threads) > 1) == (most > 1) and len(threads) <= most


def test_failure_of_the_first_of_small_chunks_is_raised() -> None:
    done: list[int] = []

    def work(begin: int, end: int) -> None:
        done.append(begin)
        raise ValueError(begin)

    codecs: Any = Slow()
    with pytest.raises(ValueError, match="0"):
        run_on_threads(8, work, codecs, 8192, 1 << 20, 4, None)
    assert done == [0]
