# test_chunk_state.py - which inner chunks exist
# SPDX-License-Identifier: MIT
"""`chunk_state` compared with the elements of the arrays, on every kind of store."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    ForbiddingStore,
    OtherMemoryStore,
    RecordingStore,
    assemble,
    create,
    entries_of,
    object_of,
    put_object,
    quiet,
    shard_path,
)
from servers.http_objects import serving
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import chunk_state
from shardcodec.access.index_scan import ChunkState


class ListedStore(RecordingStore):
    """Count list requests."""

    lists = 0

    def list_prefix(self, prefix: str) -> Any:
        self.lists += 1
        return super().list_prefix(prefix)


@pytest.fixture(params=["LocalStore", "MemoryStore", "other", "recording"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    kinds = {
        "LocalStore": lambda: LocalStore(tmp_path),
        "MemoryStore": MemoryStore,
        "other": OtherMemoryStore,
        "recording": lambda: RecordingStore(MemoryStore()),
    }
    return kinds[request.param]()


def cells(values: np.ndarray[Any, Any], chunk: tuple[int, ...], fill: Any) -> np.ndarray[Any, Any]:
    """Return for each inner chunk whether it has an element other than the fill value."""
    grid = tuple(-(-n // c) for n, c in zip(values.shape, chunk, strict=True))
    out = np.zeros(grid, dtype=bool)
    for at in np.ndindex(*grid):
        part = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunk, strict=True))]
        out[at] = (part != fill).any()
    return out


def sparse(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.02, rng.integers(1, 99, shape), -1).astype("int32")


def test_state_equals_the_array(store: Any) -> None:
    array = create(store, name="a", shape=(30, 50))
    values = sparse((30, 50))
    array[...] = values
    state = chunk_state(array)
    assert (state.exists == cells(values, (4, 3), -1)).all()
    assert state.first == (0, 0)
    assert state.chunk_shape == (4, 3)
    assert ((state.nbytes == 48) == state.exists).all()
    assert (state.nbytes[~state.exists] == 0).all()
    assert list(state.iter_existing()) == [tuple(at) for at in np.argwhere(state.exists).tolist()]
    for region in state.regions():
        assert (values[region] != -1).any()
    again = chunk_state(store, "a")
    assert (again.exists == state.exists).all()


@pytest.mark.parametrize(
    "region",
    [
        np.s_[5:20, 7:33],
        np.s_[:1],
        np.s_[29, 49],
        np.s_[..., 12:13],
        np.s_[0:0],
        np.s_[8:8, 3:],
        np.s_[3:29:5],
    ],
)
def test_state_of_a_region_equals_the_array(tmp_path: Path, region: Any) -> None:
    array = create(tmp_path / "a", shape=(30, 50))
    values = sparse((30, 50))
    array[...] = values
    whole = chunk_state(array)
    part = chunk_state(array, region=region)
    chosen = np.zeros((30, 50), dtype=bool)
    chosen[region] = True
    rows, columns = np.flatnonzero(chosen.any(axis=1)) // 4, np.flatnonzero(chosen.any(axis=0)) // 3
    if not chosen.any():
        assert part.exists.size == 0
        assert list(part.iter_existing()) == []
        return
    box = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert (part.exists == whole.exists[box]).all()
    assert (part.nbytes == whole.nbytes[box]).all()
    assert list(part.iter_existing()) == [at for at in whole.iter_existing() if part_has(part, at)]


def part_has(part: Any, at: tuple[int, ...]) -> bool:
    return all(0 <= i - f < n for i, f, n in zip(at, part.first, part.exists.shape, strict=True))


def test_state_with_a_transpose_before_the_sharding(tmp_path: Path) -> None:
    with quiet():
        array = create(
            tmp_path / "a",
            own=True,
            shape=(20, 30, 4),
            chunks=(8, 8, 4),
            filters=[TransposeCodec(order=(2, 0, 1))],
            serializer=ShardingCodec(chunk_shape=(2, 4, 4), codecs=[BytesCodec()]),
            shards=None,
        )
    values = sparse((20, 30, 4))
    array[...] = values
    state = chunk_state(array)
    assert state.chunk_shape == (4, 4, 2)
    assert (state.exists == cells(values, (4, 4, 2), -1)).all()


def test_sizes_with_the_index_at_the_start(tmp_path: Path) -> None:
    with quiet():
        array = create(
            tmp_path / "a",
            own=True,
            shape=(32, 32),
            chunks=(16, 16),
            dtype="uint8",
            serializer=ShardingCodec(chunk_shape=(4, 4), index_location="start"),
            fill_value=0,
            shards=None,
        )
    array[:13, :] = np.random.default_rng(0).integers(0, 255, (13, 32))
    state = chunk_state(array)
    for s in itertools.product((0, 1), repeat=2):
        file = shard_path(array, f"c/{s[0]}/{s[1]}")
        entries = (
            [n for _, n in entries_of(file.read_bytes(), 16, at_start=True)]
            if file.exists()
            else [ABSENT] * 16
        )
        part = np.s_[s[0] * 4 : s[0] * 4 + 4, s[1] * 4 : s[1] * 4 + 4]
        assert state.nbytes[part].ravel().tolist() == [0 if n == ABSENT else n for n in entries]


def test_progress_is_reported(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shape=(64, 48))
    array[40:, :] = 1
    told: list[tuple[int, int]] = []
    chunk_state(array, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (32, 32)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.nightly
def test_ten_thousand_shards_in_bounded_memory(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shape=(100 * 32, 100 * 64), shards=(32, 64), chunks=(2, 2), dtype="int8")
    array[:2, :128] = 1
    done: list[int] = []
    state = chunk_state(array, progress=lambda n, total: done.append(n) if total == 10_000 else None)
    assert done[-1] == 10_000 and len(done) > 10
    assert state.exists.shape == (1600, 3200) and state.exists.sum() == state.exists[0, :64].sum() == 64
    with held_at_most(16 << 20):  # the coordinates of all inner chunks take 80 MB
        assert sum(1 for _ in state.iter_existing()) == 64


def test_iteration_holds_few_coordinates() -> None:
    exists = np.ones((1, 1000, 2000), bool)
    state = ChunkState(exists, exists.astype("uint64"), (5, 6, 7), (1, 1, 1))
    with held_at_most(16 << 20):
        found = state.iter_existing()
        assert next(found) == (5, 6, 7)
        assert list(itertools.islice(found, 1998, 2000)) == [(5, 6, 2006), (5, 7, 7)]


@contextmanager
def held_at_most(nbytes: int) -> Iterator[None]:
    """Check the peak of the memory that Python and NumPy allocate in a block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= nbytes
    finally:
        tracemalloc.stop()


def test_store_is_listed_only_if_that_is_faster() -> None:
    """A few shards of very many were looked up in a list of all of them."""
    inner = ListedStore(MemoryStore())
    array = create(inner, shape=(80 * 8, 200 * 12))
    array[:8, :12] = 1
    inner.lists = 0
    assert chunk_state(array, region=np.s_[:, :12]).exists.sum() == 8
    assert inner.lists == 0
    assert chunk_state(array, region=np.s_[:, : 3 * 12]).exists.sum() == 8
    assert inner.lists == 1


def test_only_indexes_of_stored_shards_are_requested() -> None:
    store = RecordingStore(MemoryStore())
    array = create(store, shape=(8 * 20, 12 * 10))
    array[8:16, 12:24] = 1
    array[80:88, :] = 2
    store.forget()
    state = chunk_state(array)
    assert state.exists.sum() == 11 * 8
    assert sorted(store.requests) == sorted(
        [("c/1/1", "last 132"), *[(f"c/10/{i}", "last 132") for i in range(10)]]
    )


@pytest.mark.threads
def test_state_of_many_shards_equals_the_array(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shape=(2000,), shards=(8,), chunks=(2,))
    values = np.where(np.arange(2000) % 7 < 3, np.arange(2000), -1).astype("int32")
    array[...] = values
    for threads in (1, 4):
        state = chunk_state(tmp_path / "a", threads=threads)
        assert (state.exists == cells(values, (2,), -1)).all()


def test_state_of_a_rank_0_array(tmp_path: Path) -> None:
    with shardcodec.enable(), quiet():  # zarr 3.1 itself cannot write such an array
        array = create(
            tmp_path / "a",
            own=True,
            shape=(),
            chunks=(),
            serializer=ShardingCodec(chunk_shape=(), codecs=[BytesCodec()]),
            fill_value=0,
            shards=None,
        )
    assert not chunk_state(array).exists
    array[...] = 5
    state = chunk_state(array)
    assert state.exists.shape == ()
    assert list(state.iter_existing()) == [()]
    assert state.nbytes == 4


@pytest.mark.parametrize("kind", ["checksum", "half", "short", "range"])
def test_damaged_index_is_an_error(store: Any, kind: str) -> None:
    if kind == "range" and type(store) not in (LocalStore, MemoryStore):
        pytest.skip("this store does not report the size of an object")
    array = create(store, name="a")
    array[...] = 1
    good = object_of(store, "a/c/1/0")
    assert good is not None
    bad = {
        "checksum": good[:-1] + bytes([good[-1] ^ 1]),
        "half": assemble(good[:-132], [(0, ABSENT), *entries_of(good, 8)[1:]]),
        "range": assemble(good[:-132], [(2**40, 48), *entries_of(good, 8)[1:]]),
        "short": good[-100:],
    }[kind]
    put_object(store, "a/c/1/0", bad)
    error = shardcodec.ChecksumError if kind == "checksum" else shardcodec.ShardFormatError
    with pytest.raises(error, match="c/1/0") as caught:
        chunk_state(array)
    if kind in ("half", "range"):
        assert caught.value.chunk_coords == (0, 0)
    assert chunk_state(array, region=np.s_[:8]).exists.all()


def test_array_without_shards_is_refused(tmp_path: Path) -> None:
    with quiet():
        plain = zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1")
        hidden = zarr.create_array(
            tmp_path / "b", shape=(4,), chunks=(2,), dtype="u1", serializer=ShardingCodec(chunk_shape=(1,))
        )
    with pytest.raises(shardcodec.UnsupportedError, match="shards"):
        chunk_state(plain)
    with pytest.raises(shardcodec.UnsupportedError, match="hide"):
        chunk_state(hidden)
    with pytest.raises(ValueError, match="no path"):
        chunk_state(plain, "c")
    with pytest.raises(TypeError, match="int"):
        chunk_state(3)
    with pytest.raises(IndexError):
        chunk_state(create(tmp_path / "d"), region=np.s_[::-1])


def test_repr_counts_inner_chunks_and_bytes(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "a", shape=(8, 8), shards=(8, 8), chunks=(2, 2), dtype="uint8", compressors=None
    )
    array[:4, :4] = 1
    state = chunk_state(array)
    assert (
        repr(state) == f"<ChunkState: 4 of 16 inner chunks of (2, 2) exist, {int(state.nbytes.sum())} bytes>"
    )


def test_http_server_is_not_listed(tmp_path: Path) -> None:
    """zarr takes obstore's HTTPStore for a store with listings, but a usual server has none."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    array = create(tmp_path / "a.zarr", shape=(100,), shards=(1,), chunks=(1,))
    array[::3] = 1
    with serving() as objects:
        for path in (tmp_path / "a.zarr").rglob("*"):
            if path.is_file():
                objects.blobs[f"/{path.relative_to(tmp_path)}"] = path.read_bytes()
        state = shardcodec.chunk_state(f"{objects.url}/a.zarr")
    assert np.flatnonzero(state.exists).tolist() == list(range(0, 100, 3))


def test_bucket_that_forbids_what_does_not_exist() -> None:
    """zarr looks for `.zarray` beside `zarr.json`, and raised the 403 of the bucket; a listing was one more error."""
    store = MemoryStore()
    array = zarr.create_array(store, name="a", shape=(100,), shards=(1,), chunks=(1,), dtype="int32")
    array[...] = np.arange(1, 101)
    assert chunk_state(ForbiddingStore(store), "a").exists.all()
    with pytest.raises(PermissionError, match=r"b/zarr\.json: PermissionDeniedError: 403 Forbidden"):
        chunk_state(ForbiddingStore(store), "b")


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("fill_value", "x" * 40_000),
        ("data_type", {f"k{i}": i for i in range(3000)}),
        ("codecs", [{"name": "y" * 40_000}]),
        ("storage_transformers", list(range(5000))),
        ("node_type", "group"),
    ],
)
def test_error_of_a_wrong_document_is_short_and_names_the_array(
    tmp_path: Path, member: str, value: Any
) -> None:
    """zarr quotes all of the value, up to 38,000 characters, and does not say which document is wrong."""
    zarr.create_array(tmp_path / "a.zarr", shape=(8,), chunks=(2,), shards=(4,), dtype="int32")
    document = tmp_path / "a.zarr/zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), member: value}))
    with pytest.raises((shardcodec.SpecError, shardcodec.UnsupportedError), match=r"a\.zarr'?: ") as found:
        shardcodec.chunk_state(tmp_path / "a.zarr")
    assert len(str(found.value)) < 500 + len(str(tmp_path))
