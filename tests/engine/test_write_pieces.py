# test_write_pieces.py - files written in large pieces, several at a time, where a call waits (csrc/plan/sc_write_file.c)
# SPDX-License-Identifier: MIT
"""The option ``io_latency`` tells the engine that calls wait. A preloaded library (tests/mounts/writes.c) records the writes and
holds them until several are pending, so no result depends on the speed of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from delays import count_delayed, run_with_held_writes
from helpers import bits, bytes_of_files, ours, shard_path

import shardcodec
from shardcodec import native

pytestmark = pytest.mark.threads

MIB = 1 << 20
SLOW: dict[str, Any] = {"io_latency": 1.0, "threads": 2}
FAST: dict[str, Any] = {"io_latency": 0.0, "threads": 2}

Array = np.ndarray[Any, Any]


def new_array(
    folder: Path,
    shape: tuple[int, int],
    shard: tuple[int, int] = (2048, 2048),
    chunk: tuple[int, int] = (64, 1024),
    index_location: str = "end",
    codecs: Any = None,
) -> Any:
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=chunk,
        codecs=codecs or [zarr.codecs.BytesCodec()],
        index_location=index_location,  # type: ignore[arg-type]
    )
    zarr.create_array(
        folder, shape=shape, dtype="u1", chunks=shard, serializer=codec, compressors=None, fill_value=0
    )
    return ours(folder)


def n_writes(array: Any, box: Any, values: Array, **options: Any) -> int:
    """Write a box and return the number of write calls."""
    with shardcodec.options(**options):
        native.load().set_fault(0, "count")
        array[box] = values
        return native.load().end_fault().count("pwrite")


def noise(shape: tuple[int, int]) -> Array:
    return np.random.default_rng(0).integers(0, 256, shape).astype("u1")


# ---- the calls


@pytest.mark.parametrize("n_shards", [1, 4])
@pytest.mark.parametrize("index_location", ["end", "start"])
def test_files_are_written_in_large_pieces(tmp_path: Path, index_location: str, n_shards: int) -> None:
    """Shards of 4 MiB in batches of 512 KiB: 8 calls for each and one for the index, or 4 pieces of 1 MiB and the rest."""
    values = noise((n_shards * 2048, 2048))
    n = {}
    for name, how in (("slow", SLOW), ("fast", FAST)):
        array = new_array(tmp_path / name, values.shape, index_location=index_location)
        n[name] = n_writes(array, ..., values, **how)
    assert bytes_of_files(tmp_path / "slow") == bytes_of_files(tmp_path / "fast")
    rest = 1 if index_location == "end" else 2
    assert n == {"fast": 9 * n_shards, "slow": (4 + rest) * n_shards}


@pytest.mark.parametrize(
    ("side", "latency", "n_each"),
    [(2048, 150e-6, 9), (2048, 410e-6, 5), (1024, 90e-6, 3), (1024, 200e-6, 2)],
    ids=["large and quick", "large and slow", "small and local", "small and quick"],
)
def test_pieces_of_large_files_pay_only_for_slower_calls(
    tmp_path: Path, side: int, latency: float, n_each: int
) -> None:
    """Eight shards of 4 MiB at 50 us per call took 29 ms in pieces and 15 without: their copies and new memory cost more than the calls."""
    values = noise((2 * side, 2 * side))
    array = new_array(tmp_path / "a", values.shape, shard=(side, side))
    assert n_writes(array, ..., values, io_latency=latency, threads=2) == 4 * n_each
    assert bits(array[...]) == bits(values)


IN_NEW_FOLDERS = """
import os
os.environ.update({how})
import numpy as np, zarr, shardcodec
shardcodec.enable(threads=2, strict=True)
zarr.open_array(folder, mode="r+")[...] = np.random.default_rng(0).integers(0, 256, (12 << 11, 2048)).astype("u1").reshape({shape})
"""


@pytest.mark.slow
def test_making_folders_does_not_count_as_slow_calls(tmp_path: Path, delays: str) -> None:
    """The first shard of a new folder took up to ten calls, which were counted as three: 8 shards of 4 MiB at 50 us per call
    took 44 ms in some runs, and in others, with pieces, 60.

    A busy machine may delay the first two files, so one of five runs has to make the calls of a run without pieces.
    """
    shape = (12, 1, 1, 1, 2048, 2048)

    def count(name: str, how: dict[str, str]) -> int:
        codec = zarr.codecs.ShardingCodec(
            chunk_shape=(1, 1, 1, 1, 64, 1024), codecs=[zarr.codecs.BytesCodec()]
        )
        zarr.create_array(
            tmp_path / name,
            shape=shape,
            dtype="u1",
            chunks=(1, *shape[1:]),
            serializer=codec,
            compressors=None,
        )
        code = IN_NEW_FOLDERS.format(how=how, shape=shape)
        return count_delayed(code, delays, tmp_path / name, 200)["writes"][0]

    flat = count("flat", {"SHARDCODEC_IO_LATENCY": "0"})
    assert any(count(f"measured {i}", {}) == flat for i in range(5))
    assert count("pieces", {"SHARDCODEC_IO_LATENCY": "1"}) < flat


@pytest.mark.parametrize("how", [{"threads": 1, "io_depth": 1}, {"threads": 8}], ids=["one thread", "many"])
def test_pieces_need_no_more_threads_than_encode(tmp_path: Path, how: Any) -> None:
    """No thread joins for the writes: the threads that encode also write the pieces."""
    array = new_array(tmp_path / "a", (2048, 2048))
    assert n_writes(array, ..., noise((2048, 2048)), **SLOW | how) == 5


def test_a_part_of_a_shard_is_added_in_pieces(tmp_path: Path) -> None:
    """New chunks of another size go behind the ones that are kept."""
    codecs = [zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec(level=1)]
    n = {}
    for name, how in (("slow", SLOW), ("fast", FAST)):
        array = new_array(tmp_path / name, (4096, 2048), shard=(4096, 2048), codecs=codecs)
        array[...] = noise((4096, 2048)) % 16
        n[name] = n_writes(array, np.s_[:2000], noise((2000, 2048)) // 4, **how)
        assert bits(array[:2000]) == bits(noise((2000, 2048)) // 4)
        assert bits(array[2000:]) == bits((noise((4096, 2048)) % 16)[2000:])
    assert bytes_of_files(tmp_path / "slow") == bytes_of_files(tmp_path / "fast")
    assert n["slow"] <= 6 < 8 <= n["fast"]


def test_a_large_index_is_written_by_one_call(tmp_path: Path) -> None:
    """The thread of the shard writes its index of 16 MiB alone, so each piece of it was a round trip after the other."""
    values = noise((1, 2 * MIB))
    n = {}
    for name, how in (("slow", SLOW), ("fast", FAST)):
        array = new_array(tmp_path / name, values.shape, shard=values.shape, chunk=(1, 2))
        n[name] = n_writes(array, ..., values, **how)
        assert bits(array[...]) == bits(values)
    assert n["slow"] <= 4, "three pieces of inner chunks at most, and the index"
    assert bytes_of_files(tmp_path / "slow") == bytes_of_files(tmp_path / "fast")


@pytest.mark.parametrize("index_location", ["end", "start"])
@pytest.mark.parametrize("most", [4, 256], ids=["small", "incompressible"])
def test_large_inner_chunks_are_stored_as_without_pieces(
    tmp_path: Path, index_location: str, most: int
) -> None:
    """An inner chunk of 4 MiB is written without a copy, except its first and last bytes: they share a piece with its neighbours."""
    values = noise((4096, 4096)) & (most - 1)
    codecs = [zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec(level=1)]
    for name, how in (("slow", SLOW), ("fast", FAST)):
        array = new_array(
            tmp_path / name,
            values.shape,
            shard=values.shape,
            chunk=(1024, 4096),
            index_location=index_location,
            codecs=codecs,
        )
        n = n_writes(array, ..., values, **how)
        assert n <= 10
        assert bits(array[...]) == bits(values)
    assert bytes_of_files(tmp_path / "slow") == bytes_of_files(tmp_path / "fast")


# ---- several pending writes

WRITE = """
import numpy as np, zarr, shardcodec
from shardcodec.options import override
codec = zarr.codecs.ShardingCodec(chunk_shape=(64, 1024))
array = zarr.create_array(folder, shape=shape, dtype="u1", chunks=shard, serializer=codec, compressors=None, fill_value=0)
values = np.random.default_rng(0).integers(0, 256, shape, "u1")
with override({"io_latency": 1.0, "threads": threads}):
    shardcodec.attach(array)[...] = values
assert (zarr.open_array(folder)[...] == values).all()
"""


def write(shape: tuple[int, int], shard: tuple[int, int] = (4096, 4096), threads: int = 2) -> str:
    return f"shape, shard, threads = {shape}, {shard}, {threads}\n{WRITE}"


@pytest.mark.parametrize("threads", [1, 2])
def test_pieces_of_one_shard_are_written_at_a_time(tmp_path: Path, held_writes: str, threads: int) -> None:
    """No write of a shard of 16 MiB ends before 12 wait. So the batches of 12 pieces are encoded while the first piece waits."""
    seen = run_with_held_writes(
        write((4096, 4096), threads=threads), held_writes, tmp_path / "a", together=12, nbytes=MIB
    )
    assert seen.together >= 12
    assert sorted(seen.calls) == [*((n * MIB, MIB) for n in range(16)), (16 * MIB, 4100)]


@pytest.mark.parametrize(
    ("block", "n_shards", "piece"),
    [
        (4096, 1, MIB),
        (3 << 16, 1, 6 * (3 << 16)),
        (4 * MIB, 1, 4 * MIB),
        (6 * MIB, 1, 3 * MIB),
        (64 * MIB, 1, 4 * MIB),
        (4 * MIB, 2, 4 * MIB),
        (4 * MIB, 16, MIB),
    ],
)
def test_pieces_are_multiples_of_blocks(
    tmp_path: Path, held_writes: str, block: int, n_shards: int, piece: int
) -> None:
    """A block that is too large for one piece, or for the memory of this many files, is divided."""
    shard = (4096 if n_shards < 16 else 512, 4096)
    code = write((shard[0] * n_shards, shard[1]), shard)
    seen = run_with_held_writes(code, held_writes, tmp_path / "a", block=block)
    assert all(offset % piece == 0 for offset, _ in seen.calls)
    assert sum(nbytes != piece for _, nbytes in seen.calls) == n_shards, "only the last one is smaller"
    assert max(nbytes for _, nbytes in seen.calls) == piece


@pytest.mark.slow
def test_pending_pieces_are_bounded(tmp_path: Path, held_writes: str) -> None:
    """Pieces of 4 MiB have half of the 64 MiB of a run: more are not begun while the first ones wait."""
    code = write((16384, 4096), (16384, 4096))
    seen = run_with_held_writes(code, held_writes, tmp_path / "a", together=7, more_seconds=1, block=4 * MIB)
    assert len(seen.calls) == 17
    # 8 pieces fill half of the 64 MiB; one of them may still be open, and another may become complete meanwhile
    assert 7 <= seen.together <= 9


# ---- failures


def test_the_lowest_damaged_chunk_is_named(tmp_path: Path) -> None:
    """Old inner chunks of a shard are damaged; the error names the first of them, whatever is written meanwhile."""
    codecs = [zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec()]
    array = new_array(tmp_path / "a", (4096, 1024), shard=(4096, 1024), codecs=codecs)
    array[...] = noise((4096, 1024))
    path = shard_path(array, "c/0/0")
    data = bytearray(path.read_bytes())
    for chunk in (23, 24, 40, 63):
        data[chunk * (65536 + 4) + 100] ^= 1
    path.write_bytes(data)
    told = set()
    for how in (FAST, *[SLOW] * 5):
        with shardcodec.options(**how), pytest.raises(shardcodec.ShardError) as caught:
            array[:, 1:] = 1
        told.add((caught.value.shard, caught.value.entry))
    assert told == {("c/0/0", 23)}
    assert path.read_bytes() == data
