# test_depth.py - many reads at a time where a call costs a round trip (csrc/plan/sc_depth.h)
# SPDX-License-Identifier: MIT
"""Depth is forced with the option ``io_latency``, so results do not depend on the machine. A preloaded library that delays
each open and read (tests/mounts/round_trip.c) shows that reads do wait at the same time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from delays import run_delayed
from helpers import bits, create, in_child, ours, run_checked, shard_path
from workers import in_threads

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.format.spec import ChainSpec
from shardcodec.storage.indexes import IndexCache

pytestmark = pytest.mark.threads

DEEP: dict[str, Any] = {"io_latency": 1.0, "io_depth": 9, "threads": 2}
FLAT: dict[str, Any] = {"io_latency": 0.0, "threads": 2}

CODECS: dict[str, Any] = {
    "raw": None,
    "zstd": zarr.codecs.ZstdCodec(level=1),
    "crc": zarr.codecs.Crc32cCodec(),
}


def array_of(folder: Path, codec: str = "zstd", **options: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return an array of 12 shards with 27 inner chunks each, some absent, and its values."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 50, (24, 24, 18)).astype("u2")
    values[8:16, 3:9, 2:11] = 0
    values[:12, 12:18] = 0
    array = create(
        folder,
        shape=values.shape,
        dtype="u2",
        shards=(12, 12, 6),
        chunks=(4, 4, 2),
        compressors=CODECS[codec],
        fill_value=0,
    )
    array[...] = values
    return ours(folder, **options), values


def selections(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return a random box with steps, or index lists."""
    if rng.random() < 0.3:
        return tuple(rng.integers(0, n, rng.integers(1, 9)) for n in shape)
    box = []
    for n in shape:
        start, stop = sorted(rng.integers(0, n + 1, 2).tolist())
        box.append(slice(start, max(stop, start + 1), int(rng.integers(1, 4))))
    return tuple(box)


# ---- results


@pytest.mark.parametrize("codec", list(CODECS))
@pytest.mark.parametrize("index_cache", [0, 1 << 20])
def test_deep_reads_return_what_numpy_returns(tmp_path: Path, codec: str, index_cache: int) -> None:
    array, values = array_of(tmp_path / "a", codec)
    rng = np.random.default_rng(5)
    shardcodec.stats.reset()
    for _ in range(25):
        selection = selections(rng, values.shape)
        with shardcodec.options(**DEEP, index_cache=index_cache):
            if isinstance(selection[0], slice):
                assert bits(array[selection]) == bits(values[selection])
            else:
                assert bits(array.oindex[selection]) == bits(values[np.ix_(*selection)])
    assert shardcodec.stats()["reads_at_depth"] > 0


def test_handles_and_scans_read_deep(tmp_path: Path) -> None:
    array, values = array_of(tmp_path / "a")
    with shardcodec.options(**DEEP):
        reader = shardcodec.open_array(tmp_path / "a")
        assert bits(reader[...]) == bits(values)
        assert bits(reader[3:5, 2:7, 1:9]) == bits(values[3:5, 2:7, 1:9])
        deep = shardcodec.chunk_state(array)
    with shardcodec.options(**FLAT):
        flat = shardcodec.chunk_state(array)
    assert bits(deep.nbytes) == bits(flat.nbytes) and not flat.exists.all()


def test_fetched_chunks_are_the_same_at_any_depth(shard_of_64: tuple[Path, Any]) -> None:
    """Where a call costs as much as all bytes of the shard, one read is enough."""
    folder, _ = shard_of_64
    chain = compiled(ChainSpec.from_metadata(json.loads((folder / "zarr.json").read_text())))
    positions = np.random.default_rng(1).permutation(64)[:14].astype(np.uint64)
    found = []
    for latency in (0.0, 21e-6, 1.0):
        shard = native.load().OpenShard(chain, str(folder / "c/0/0"))
        places = np.empty((14, 2), np.uint64)
        memory, n = shard.fetch(
            positions, places, max_nbytes=1 << 20, max_gap_nbytes=0, io_depth=6, io_latency=latency
        )
        found.append((n, bytes(memory), places.tobytes()))
        assert (shard.stats["deep_reads"] > 0) == (latency == 21e-6)
        assert latency < 1 or shard.stats["reads"] == 2, "the index, and everything else"
        shard.close()
    assert found[0] == found[1] == found[2] and found[0][0] == 14


def test_missing_shards_are_filled(tmp_path: Path) -> None:
    array, values = array_of(tmp_path / "a")
    shard_path(array, "c/1/0/2").unlink()
    values[12:, :12, 12:] = 0
    with shardcodec.options(**DEEP):
        assert bits(array[...]) == bits(values)


# ---- failures


@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_failure_is_reported(tmp_path: Path, seed: int) -> None:
    array, _ = array_of(tmp_path / "a", "crc")
    for key in ("c/0/1/1", "c/1/0/0", "c/1/1/2"):
        path = shard_path(array, key)
        data = bytearray(path.read_bytes())
        for at in np.random.default_rng(seed).integers(0, len(data) - 27 * 16 - 4, 12):
            data[at] ^= 1
        path.write_bytes(data)
    told = []
    for how in (FLAT, *[DEEP] * 5):
        with shardcodec.options(**how, index_cache=0), pytest.raises(shardcodec.ShardError) as caught:
            array[...]
        told.append((type(caught.value), caught.value.shard, caught.value.entry, str(caught.value)))
    assert told[0][1] == "c/0/1/1"
    assert set(told) == {told[0]}


# ---- limits


def read_natively(folder: Path, n_rows: int = 256, **how: Any) -> tuple[np.ndarray[Any, Any], dict[str, int]]:
    """Read rows of one shard of 64 inner chunks of 4 KiB with the engine; return the array and the counters."""
    chain = compiled(ChainSpec.from_metadata(json.loads((folder / "zarr.json").read_text())))
    out = np.zeros((n_rows, 1024), "u1")
    box = (0, 0), (n_rows, 1024), None, (0, 0)
    _, counters = native.load().read(
        [(chain, str(folder / "c/0/0"), box)], out, (0, 1), n_threads=2, group_nbytes=8192, **how
    )
    return out, counters


@pytest.fixture
def shard_of_64(tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    """Inner chunks that are stored without compression, and followed by a checksum so that they are not read in place."""
    values = np.random.default_rng(0).integers(0, 256, (256, 1024)).astype("u1")
    array = create(
        tmp_path / "b",
        shape=values.shape,
        dtype="u1",
        shards=values.shape,
        chunks=(64, 64),
        compressors=CODECS["crc"],
        fill_value=0,
    )
    array[...] = values
    return tmp_path / "b", values


@pytest.mark.parametrize("bound", [1, 9000, 20_000, 1 << 20])
def test_bytes_in_flight_are_bounded(shard_of_64: tuple[Path, np.ndarray[Any, Any]], bound: int) -> None:
    folder, values = shard_of_64
    out, counters = read_natively(folder, io_depth=16, io_latency=21e-6, io_nbytes=bound)
    assert bits(out) == bits(values)
    assert counters["deep_reads"] == 32, "each group of two inner chunks is read at depth"
    assert 2 * 4100 <= counters["peak_nbytes"] <= max(bound, 2 * 4100)


@pytest.mark.parametrize(
    "how", [{"io_latency": 0.0}, {"io_latency": 19e-6}, {"io_latency": 1.0, "io_depth": 1}]
)
def test_cheap_calls_and_depth_1_add_no_threads(
    shard_of_64: tuple[Path, np.ndarray[Any, Any]], how: dict[str, Any]
) -> None:
    out, counters = read_natively(shard_of_64[0], **how)
    assert bits(out) == bits(shard_of_64[1])
    assert counters["deep_reads"] == 0 and counters["peak_nbytes"] == 0


def test_readers_are_shared_by_calls_and_limited(tmp_path: Path) -> None:
    array, values = array_of(tmp_path / "a")

    def read(_: int) -> None:
        with shardcodec.options(io_latency=1.0, io_depth=100, threads=2):
            for _ in range(3):
                assert bits(array[...]) == bits(values)

    in_threads(6, read)
    assert native.load().pool_size() <= 128 + 255


def test_depth_bounds_all_threads_of_a_call(tmp_path: Path) -> None:
    """Also if it is known before the call that the file system waits."""
    run_checked(
        f"""
        import numpy as np, shardcodec, zarr
        from shardcodec import native
        from shardcodec.options import override
        array = zarr.create_array({str(tmp_path / "a")!r}, shape=(40, 8), dtype="u1", shards=(1, 8), chunks=(1, 4))
        array = shardcodec.attach(array, threads=2, index_cache=0)
        with override({{"io_latency": 1.0, "io_depth": 9}}):
            for _ in range(3):
                array[...] = 1
                assert (array[...] == 1).all()
        assert native.load().pool_size() <= 8, native.load().pool_size()
        """
    )


@pytest.mark.parametrize("depth", ["auto", 1000])
def test_more_threads_than_a_run_has_places_for(tmp_path: Path, depth: Any) -> None:
    """The lists of a run have 256 places; a machine may have more processors."""
    create(tmp_path / "a", shape=(600, 8), dtype="u2", shards=(1, 8), chunks=(1, 4), fill_value=0)
    array = ours(tmp_path / "a")
    values = np.arange(4800, dtype="u2").reshape(600, 8)
    with shardcodec.options(io_latency=1.0, io_depth=depth, threads=1000, index_cache=0):
        array[...] = values
        assert bits(array[...]) == bits(values)
        array[:, 1:] = 3
        values[:, 1:] = 3
        assert bits(array[...]) == bits(values)


def test_forked_child_reads_deep(tmp_path: Path) -> None:
    array, values = array_of(tmp_path / "a")

    def read() -> None:
        with shardcodec.options(**DEEP):
            assert bits(array[...]) == bits(values)

    read()
    in_child(read)
    read()


# ---- delayed calls


READ = """
import json, time, zarr, shardcodec
from shardcodec.options import override
shardcodec.enable(threads=2, index_cache=0, strict=True)
array = zarr.open_array(folder, mode="r")
seconds = []
for how in ({"io_depth": 1}, {}, {}):
    with override(how):
        begin = time.perf_counter()
        array[...]
        seconds.append(time.perf_counter() - begin)
done = shardcodec.stats()
print(json.dumps([seconds, done["reads_at_depth"], max(done["io_latency"].values())]))
"""


@pytest.mark.slow
def test_reads_wait_at_the_same_time(tmp_path: Path, delays: str) -> None:
    """12 small shards take 24 calls: 12 one after the other in two threads, 2 with all shards at a time."""
    array_of(tmp_path / "a")
    (flat, *deep), n_reads, latency = json.loads(run_delayed(READ, delays, tmp_path / "a", 20_000))
    assert flat > 12 * 0.02
    assert min(deep) < 0.7 * flat
    assert n_reads >= 12
    assert latency > 0.01


SECOND = """
import json, os, zarr, shardcodec
from shardcodec import native
native.load().seed_latency(os.stat(folder).st_dev, 2e-6)
shardcodec.enable(threads=2, index_cache=0, strict=True)
array = zarr.open_array(folder, mode="r")
array[...]
before = shardcodec.stats()
array[...]
after = shardcodec.stats()
print(json.dumps([max(before["io_latency"].values()), before["requests"], after["requests"] - before["requests"]]))
"""


@pytest.mark.slow
def test_the_second_read_of_a_mount_that_has_become_slow_knows_it(tmp_path: Path, delays: str) -> None:
    """Only opens and small reads were timed, and the estimate rose by a step for each of them: so shards that are read with
    large calls were read one call after the other, dozens of times."""
    values = np.arange(1 << 20, dtype="u4").reshape(1024, 1024)
    array = create(
        tmp_path,
        shape=(1024, 1024),
        dtype="u4",
        shards=(1024, 1024),
        chunks=(256, 256),
        compressors=None,
        fill_value=0,
    )
    array[...] = values
    latency, n_first, n_second = json.loads(run_delayed(SECOND, delays, tmp_path, 10_000))
    assert latency > 0.005
    assert n_first > 16
    assert n_second == 1, "at 10 ms the shard is read with one call"


INTERRUPTED = """
import signal, threading, time, os, zarr, shardcodec
from shardcodec.options import override
os.environ["SHARDCODEC_IO_DEPTH"] = "4"
shardcodec.enable(threads=2, index_cache=0, strict=True)
array = zarr.open_array(folder, mode="r")
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    for _ in range(8):
        array[...]
    print("not interrupted")
except KeyboardInterrupt:
    print(time.perf_counter() - begin)
with override({"io_depth": 64}):
    print(int(array[...].sum()))
"""


@pytest.mark.slow
def test_ctrl_c_stops_a_delayed_read(tmp_path: Path, delays: str) -> None:
    """The whole read takes 36 calls of 0.1 s by 4 threads, eight times: 7 s."""
    _, values = array_of(tmp_path / "a")
    seconds, total = run_delayed(INTERRUPTED, delays, tmp_path / "a", 100_000).split()
    assert float(seconds) < 2.0
    assert int(total) == values.sum()


def test_estimates_are_listed_by_mount_point(tmp_path: Path) -> None:
    run_checked(
        f"""
        import os
        import shardcodec
        from shardcodec import native
        device = os.stat({str(tmp_path)!r}).st_dev
        native.load().seed_latency(device, 0.004)
        native.load().seed_latency(device, 7.0)  # only the first counts
        (mount, seconds), = shardcodec.stats()["io_latency"].items()
        assert mount == f"{{os.major(device)}}:{{os.minor(device)}}" or os.stat(mount).st_dev == device, mount
        assert 0.0039 < seconds < 0.0041, seconds
        native.load().reset_latencies()
        assert not shardcodec.stats()["io_latency"]
        """
    )


LARGE = """
import json, os
import numpy as np
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.format.spec import ChainSpec
from shardcodec.storage.indexes import IndexCache

chain = compiled(ChainSpec.from_metadata(json.load(open(os.path.join(folder, "zarr.json")))))
path, box, out = os.path.join(folder, "c/0/0"), ((0, 0), (1024, 1024), None, (0, 0)), np.empty((1024, 1024), "u1")
cache = IndexCache(1 << 20, max_open_files=4)

def read():
    native.load().read([(chain, path, box)], out, (0, 1), cache=cache.native, immutable=True, io_depth=1)

read()
native.load().reset_latencies()
native.load().seed_latency(os.stat(folder).st_dev, 0.1)
for _ in range(2000):
    read()
    (latency,) = native.load().latencies().values()
    if latency < 5e-3:
        break
assert 1e-6 < latency < 5e-3, latency
"""


def test_estimate_falls_where_all_reads_are_large(tmp_path: Path) -> None:
    """Only small reads lowered it, but large ones raise it. So it stayed high where files stay open and indexes are known."""
    values = np.ones((1024, 1024), "u1")
    array = create(
        tmp_path,
        shape=values.shape,
        dtype="u1",
        shards=values.shape,
        chunks=(512, 512),
        compressors=None,
        fill_value=0,
    )
    array[...] = values
    run_checked(f"folder = {str(tmp_path)!r}\n" + LARGE)


# ---- small shards


def test_small_shards_are_read_with_one_call(tmp_path: Path) -> None:
    """The bytes of the shard cost less than the call for its index; with a known index only the inner chunks are read."""
    array, values = array_of(tmp_path / "a")
    for latency, is_whole in ((1.0, True), (0.0, False)):
        with shardcodec.options(**{**DEEP, "io_latency": latency}, index_cache=0):
            shardcodec.stats.reset()
            assert bits(array[...]) == bits(values)
            done = shardcodec.stats()
            assert (done["requests"] == 12) == is_whole, done


def test_shards_larger_than_a_call_is_worth_are_read_in_parts(shard_of_64: tuple[Path, Any]) -> None:
    """The shard has 263 KB; half a byte per nanosecond of the call is the limit."""
    folder, values = shard_of_64
    for latency, n_reads in ((400e-6, 33), (600e-6, 1)):
        out, counters = read_natively(folder, io_depth=16, io_latency=latency, io_nbytes=8192 * 16)
        assert bits(out) == bits(values) and counters["reads"] == n_reads


def test_shard_that_is_wanted_as_a_whole_is_read_in_ranges_without_its_index_first(
    shard_of_64: tuple[Path, Any],
) -> None:
    """A range is what a call is worth, 75 KB here, or a little more; at most eight ranges, or decoding would wait for too many bytes."""
    folder, values = shard_of_64
    how = {"io_depth": 16, "io_latency": 150e-6, "io_nbytes": 1 << 20}
    out, counters = read_natively(folder, **how)
    assert bits(out) == bits(values) and counters["reads"] == counters["deep_reads"] == 3
    nbytes = (folder / "c/0/0").stat().st_size
    assert counters["peak_nbytes"] == nbytes
    for other in ({"n_rows": 192}, {"io_latency": 50e-6}, {"io_nbytes": 200_000}):
        out, counters = read_natively(folder, **how | other)
        assert bits(out) == bits(values[: out.shape[0]])
        assert counters["reads"] > 3 and counters["peak_nbytes"] < nbytes


def test_flat_run_reads_no_ranges_of_more_than_its_share_of_memory(shard_of_64: tuple[Path, Any]) -> None:
    """In a flat run no thread waits for room, so each of its two threads may have half of it."""
    folder, values = shard_of_64
    for io_nbytes, is_whole in ((600_000, True), (300_000, False)):
        out, counters = read_natively(folder, io_depth=1, io_latency=150e-6, io_nbytes=io_nbytes)
        assert bits(out) == bits(values)
        assert counters["deep_reads"] == 0 and (counters["reads"] == 3) == is_whole


@pytest.mark.parametrize("cut", [0, 1, 4, 1000, 200_000])
def test_torn_shard_that_is_read_in_ranges_is_refused_as_others_are(
    shard_of_64: tuple[Path, Any], cut: int
) -> None:
    folder, _ = shard_of_64
    path = folder / "c/0/0"
    os.truncate(path, path.stat().st_size - cut)
    if not cut:
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    told = set()
    for latency in (0.0, 150e-6):
        with pytest.raises(shardcodec.ShardError) as caught:
            read_natively(folder, io_depth=16, io_latency=latency, io_nbytes=1 << 20)
        told.add((type(caught.value), caught.value.entry, str(caught.value)))
    assert len(told) == 1


def test_first_of_several_ranges_that_fail_is_reported(shard_of_64: tuple[Path, Any]) -> None:
    """The file is empty when its three ranges are read, and was whole when it was opened."""
    folder, _ = shard_of_64
    path = folder / "c/0/0"
    cache = IndexCache(1, max_open_files=1)
    how = {"io_depth": 16, "io_latency": 150e-6, "cache": cache.native, "immutable": True}
    assert read_natively(folder, **how)[1]["reads"] == 3
    first = -(-path.stat().st_size // 3)
    os.truncate(path, 0)
    for _ in range(10):
        with pytest.raises(shardcodec.ShardError, match=f"expected {first} bytes .* got 0 bytes"):
            read_natively(folder, **how)


@pytest.mark.parametrize("cut", [0, 3, 100, 435, 436, 600])
def test_small_damaged_shards_are_refused_as_others_are(tmp_path: Path, cut: int) -> None:
    array, _ = array_of(tmp_path / "a", "crc")
    path = shard_path(array, "c/1/0/1")
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:cut])
    told = set()
    for how in (FLAT, DEEP):
        with shardcodec.options(**how, index_cache=0), pytest.raises(shardcodec.ShardError) as caught:
            array[...]
        told.add((type(caught.value), str(caught.value)))
    assert len(told) == 1
