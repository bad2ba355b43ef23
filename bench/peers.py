"""All implementations that read and write sharded arrays, behind one small interface, each with its best settings.

Each class describes its settings. All peers read the same files and write the same metadata; none syncs to the disk.
Handles are opened outside of the timed part.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import floor
import numpy as np
from data import Array, Box, Case
from peer import Peer

N_THREADS = int(os.environ.get("BENCH_THREADS", "2"))

# zarrs and zarrista set the size of their pool at its first use; zarr when it starts its loop.
os.environ.setdefault("RAYON_NUM_THREADS", str(N_THREADS))


class Zarr(Peer):
    """zarr.Array over one codec pipeline."""

    package = "zarr"
    pipeline = ""
    can_index = True

    def why_not(self) -> str | None:
        module, _, name = self.pipeline.rpartition(".")
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            return str(error)
        return None

    def settings(self) -> dict[str, Any]:
        return {
            "codec_pipeline.path": self.pipeline,
            "codec_pipeline.max_workers": N_THREADS,
            "threading.max_workers": N_THREADS,
        }

    @contextmanager
    def turn(self) -> Iterator[None]:
        import zarr

        with zarr.config.set(self.settings()), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # zarrs warns if it falls back for a whole array
            warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
            yield

    def open(self, path: Path, case: Case) -> Any:
        import zarr

        return zarr.open_array(path, mode="r+")

    def read(self, array: Any, box: Box) -> Array:
        return np.asarray(array[box])

    def write(self, array: Any, box: Box, values: Array) -> None:
        array[box] = values

    def resize(self, array: Any, shape: Sequence[int]) -> Any:
        array.resize(tuple(shape))
        return array

    def select(self, array: Any, how: str, selection: Any) -> Array:
        return np.asarray(getattr(array, how)[selection])

    def store(self, array: Any, how: str, selection: Any, values: Array) -> None:
        getattr(array, how)[selection] = values


class ShardCodec(Zarr):
    """shardcodec, through the same zarr.Array as the other pipelines."""

    name = "shardcodec"
    pipeline = "shardcodec.ShardCodecPipeline"
    is_rival = False
    can_gather = True

    @contextmanager
    def gathering(self, array: Any) -> Iterator[Any]:
        import shardcodec

        with shardcodec.group_writes():
            yield array


class ShardCodecAttach(ShardCodec):
    """shardcodec through an array of `attach`, a `zarr.Array` that does without zarr's event loop for boxes."""

    name = "shardcodec attach"
    group = ("small reads", "partial writes", "small writes", "loader", "zarr v2", "end to end")

    def open(self, path: Path, case: Case) -> Any:
        import shardcodec

        return shardcodec.attach(super().open(path, case))


class ShardCodecEngine(ShardCodec):
    """shardcodec through ``engine="shardcodec"`` of xarray, without `enable`."""

    name = "shardcodec engine"
    group = "end to end"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "codec_pipeline.path": ZarrBatched.pipeline}


class ShardCodecOneThread(ShardCodec):
    """shardcodec with one thread."""

    name = "shardcodec one thread"
    group = "limits"

    @contextmanager
    def turn(self) -> Iterator[None]:
        import shardcodec

        with super().turn(), shardcodec.options(threads=1):
            yield


class ShardCodecWorker(ShardCodec):
    """shardcodec's `convert` with one worker process of dask."""

    name = "shardcodec 1 worker"
    group = "end to end"

    def why_not(self) -> str | None:
        return (
            super().why_not() if importlib.util.find_spec("distributed") else "distributed is not installed"
        )


class ShardCodecWorkers(ShardCodecWorker):
    """shardcodec's `convert` with two worker processes of dask."""

    name = "shardcodec 2 workers"


class ShardCodecAppend(ShardCodec):
    """shardcodec with the write strategy `append`."""

    name = "shardcodec append"
    group = "partial writes"

    @contextmanager
    def turn(self) -> Iterator[None]:
        import shardcodec

        with super().turn(), shardcodec.options(write_strategy="append"):
            yield


class ShardCodecInPlace(ShardCodec):
    """shardcodec with the write strategy `in_place`."""

    name = "shardcodec in place"
    group = "partial writes"

    @contextmanager
    def turn(self) -> Iterator[None]:
        import shardcodec

        with super().turn(), shardcodec.options(write_strategy="in_place"):
            yield


class ShardHandle(ShardCodec):
    """shardcodec without zarr.Array: inner chunks are written by handles of shards, arrays are one shard."""

    name = "shardcodec open_shard"
    group = "small writes"

    def open(self, path: Path, case: Case) -> Any:
        import json

        import shardcodec

        spec = shardcodec.ShardSpec.from_metadata(json.loads((path / "zarr.json").read_text()))
        key = "/".join(["c", *("0" for _ in case.shape)])
        return shardcodec.open_shard(path, key, spec, mode="r+", threads=N_THREADS), case.inner

    def write(self, array: Any, box: Box, values: Array) -> None:
        shard, inner = array
        shard.write_chunks([tuple(s.start // n for s, n in zip(box, inner, strict=True))], values[None])


class EmptyPipeline(Zarr):
    """zarr.Array over a pipeline that does nothing, which measures zarr.Array itself."""

    name = "empty pipeline"
    pipeline = "empty_pipeline.EmptyPipeline"
    is_rival = False
    gives_values = False
    group = ("limits", "cached index")


class Fill(Peer):
    """Fills new memory, as much as a read returns."""

    name = "fill"
    package = "numpy"
    is_rival = False
    gives_values = False
    group = "limits"

    def open(self, path: Path, case: Case) -> Any:
        return case

    def read(self, array: Any, box: Box) -> Array:
        return np.full(array.shape, 1, dtype=array.dtype)  # np.zeros would not touch it


class ZarrBatched(Zarr):
    """The pipeline that zarr uses by default."""

    name = "zarr batched"
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"


class ZarrFused(Zarr):
    """zarr's faster pipeline, from 3.3 on."""

    name = "zarr fused"
    pipeline = "zarr.core.codec_pipeline.FusedCodecPipeline"


class DaskRechunkWorkers(ZarrBatched):
    """dask's rechunk with `to_zarr`, in two worker processes, over zarr's pipeline."""

    name = "dask rechunk 2 workers"
    group = "end to end"

    def why_not(self) -> str | None:
        return (
            super().why_not() if importlib.util.find_spec("distributed") else "distributed is not installed"
        )


class Zarrs(Zarr):
    """zarrs-python: the Rust pipeline under zarr.Array. Boxes are slices, because with integers it falls back to Python."""

    name = "zarrs"
    pipeline = "zarrs.ZarrsCodecPipeline"


class TensorStore(Peer):
    """TensorStore itself, without zarr.

    No cache pool, because a benchmark would then time the cache. No fsync, because no other peer does it. The source of
    a write may be referenced instead of copied.
    """

    name = "tensorstore"
    package = "tensorstore"
    cache_nbytes = 0
    can_index = True
    can_gather = True

    def context(self) -> dict[str, Any]:
        """Return its limits."""
        return {
            "cache_pool": {"total_bytes_limit": self.cache_nbytes},
            "data_copy_concurrency": {"limit": N_THREADS},
            "file_io_concurrency": {"limit": 2 * N_THREADS},
            "file_io_sync": False,
        }

    def open(self, path: Path, case: Case) -> Any:
        return self._open_with(path, self.context())

    def open_keeping(self, path: Path, case: Case, nbytes: int) -> Any:
        limits = {"cache_pool": {"total_bytes_limit": nbytes}, "data_copy_concurrency": {"limit": 1}}
        return self._open_with(path, {**self.context(), **limits})

    def _open_with(self, path: Path, context: dict[str, Any]) -> Any:
        import tensorstore

        driver = "zarr3" if (path / "zarr.json").exists() else "zarr"
        kvstore = {"driver": "file", "path": f"{path}/"}
        return tensorstore.open(
            {"driver": driver, "kvstore": kvstore, "context": context}, open=True
        ).result()

    def read_many(self, array: Any, boxes: Sequence[Box]) -> Array:
        return np.stack(self._read_batch(array, boxes))

    def _read_batch(self, array: Any, boxes: Sequence[Box]) -> list[Array]:
        import tensorstore

        with tensorstore.Batch() as batch:
            reads = [array[box].read(order="C", batch=batch) for box in boxes]
        return [read.result() for read in reads]

    def read_rows(self, array: Any, boxes: Sequence[Box]) -> Array:
        return np.concatenate(self._read_batch(array, boxes))  # one oindex takes twice as long

    def read(self, array: Any, box: Box) -> Array:
        return np.asarray(array[box].read(order="C").result())

    def write(self, array: Any, box: Box, values: Array) -> None:
        array[box].write(values, can_reference_source_data_indefinitely=True).result()

    def resize(self, array: Any, shape: Sequence[int]) -> Any:
        return array.resize(exclusive_max=list(shape)).result()

    @contextmanager
    def gathering(self, array: Any) -> Iterator[Any]:
        import tensorstore

        with tensorstore.Transaction() as transaction:
            yield array.with_transaction(transaction)

    def select(self, array: Any, how: str, selection: Any) -> Array:
        return np.asarray(getattr(array, how)[selection].read(order="C").result())

    def store(self, array: Any, how: str, selection: Any, values: Array) -> None:
        target = getattr(array, how)[selection]
        target.write(values, can_reference_source_data_indefinitely=True).result()


class XarrayTensorStore(TensorStore):
    """TensorStore through xarray-tensorstore."""

    name = "xarray-tensorstore"
    package = "xarray_tensorstore"
    group = "end to end"


class Zarrista(Peer):
    """zarrista: another binding of the Rust crate, without zarr."""

    name = "zarrista"
    package = "zarrista"

    def open(self, path: Path, case: Case) -> Any:
        import zarrista
        from zarrista.store import FilesystemStore

        return zarrista.Array.open(FilesystemStore(path))

    def read(self, array: Any, box: Box) -> Array:
        return np.asarray(array.retrieve_array_subset(box).to_numpy())

    def write(self, array: Any, box: Box, values: Array) -> None:
        array.store_array_subset(box, np.ascontiguousarray(values))


class OpenArray(Peer):
    """`shardcodec.open_array`; indexes are read again each time."""

    name = "open_array"
    package = "shardcodec"
    is_rival = False
    group = "loader"
    cache_nbytes = 0

    def open(self, path: Path, case: Case) -> Any:
        import shardcodec

        return shardcodec.open_array(path, threads=N_THREADS, index_cache=self.cache_nbytes)

    def read(self, array: Any, box: Box) -> Array:
        return np.asarray(array[box])

    def read_many(self, array: Any, boxes: Sequence[Box]) -> Array:
        shape = [s.stop - s.start for s in boxes[0]]
        return np.asarray(array.read_boxes([[s.start for s in box] for box in boxes], shape))

    def read_rows(self, array: Any, boxes: Sequence[Box]) -> Array:
        starts = [[s.start for s in box] for box in boxes]
        return np.asarray(array.read_boxes(starts, [[s.stop - s.start for s in box] for box in boxes]))


class OpenArrayWriter(OpenArray):
    """`shardcodec.open_array` for reads and writes, with its usual cache of indexes."""

    name = "open_array r+"
    group = ("small reads", "partial writes", "small writes")
    can_gather = True

    def gathering(self, array: Any) -> AbstractContextManager[Any]:
        return ShardCodec().gathering(array)

    def open(self, path: Path, case: Case) -> Any:
        import shardcodec

        return shardcodec.open_array(path, mode="r+", threads=N_THREADS)

    def write(self, array: Any, box: Box, values: Array) -> None:
        array[box] = values


class OpenArrayCached(OpenArray):
    """The same with a cache of indexes."""

    name = "open_array, cached index"
    group = ("loader", "cached index", "again")
    cache_nbytes = 64 << 20

    def open_keeping(self, path: Path, case: Case, nbytes: int) -> Any:
        import shardcodec

        return shardcodec.open_array(path, threads=1, index_cache=self.cache_nbytes, cache=0)


class OpenArrayChunks(OpenArrayCached):
    """The same with a cache of decoded inner chunks, which no other array uses."""

    name = "open_array, cache"
    group = "again"

    def open_keeping(self, path: Path, case: Case, nbytes: int) -> Any:
        import shardcodec

        cache = shardcodec.IndexCache(self.cache_nbytes, max_chunk_bytes=nbytes)
        return shardcodec.open_array(path, threads=1, index_cache=cache)


class Copies(Peer):
    """Copies of boxes of an array in memory: the least that a cache of everything can cost."""

    name = "copies"
    package = "zarr"
    is_rival = False
    group = "again"

    def open(self, path: Path, case: Case) -> Any:
        import zarr

        return np.asarray(zarr.open_array(path, mode="r")[...])

    def read(self, array: Any, box: Box) -> Array:
        return np.array(array[box])

    def read_rows(self, array: Any, boxes: Sequence[Box]) -> Array:
        return np.concatenate([array[box] for box in boxes])


class OpenArrayKept(OpenArrayCached):
    """The same, and files stay open; each read checks that the name still leads to the same, unchanged file."""

    name = "open_array, open files"
    group = "cached index"

    def open(self, path: Path, case: Case) -> Any:
        from shardcodec.options import override

        with override({"open_files": 16}):
            return super().open(path, case)


class OpenArrayImmutable(OpenArray):
    """The same with `immutable` files: a file stays open and is not checked again."""

    name = "open_array, immutable"
    group = "cached index"

    def open(self, path: Path, case: Case) -> Any:
        import shardcodec
        from shardcodec.options import override

        with override({"open_files": 16}):
            return shardcodec.open_array(path, threads=N_THREADS, index_cache=64 << 20, immutable=True)


class OnePread(Peer):
    """The least that any reader in Python needs: one system call, and one array around its result."""

    name = "one pread"
    package = "numpy"
    is_rival = False
    group = "cached index"

    def open(self, path: Path, case: Case) -> Any:
        (stored,) = (p for p in (path / "c").rglob("*") if p.is_file())
        n = case.shard[0] // case.inner[0]
        entries = np.fromfile(stored, "<u8", 2 * n, offset=stored.stat().st_size - 16 * n - 4)
        return stored.open("rb", buffering=0), entries[::2].tolist(), case.inner[0], np.dtype(case.dtype)

    def read(self, array: Any, box: Box) -> Array:
        stored, offsets, extent, dtype = array
        at = box[0].start
        offset = offsets[at // extent] + at % extent * dtype.itemsize
        return np.frombuffer(os.pread(stored.fileno(), dtype.itemsize, offset), dtype)


class TensorStoreCached(TensorStore):
    """TensorStore with a cache of indexes and chunks, compared with the files, as is its default."""

    name = "tensorstore, cache"
    group = ("loader", "cached index", "again")
    cache_nbytes = 64 << 20


class ZarristaCached(Zarrista):
    """zarrista with its cache of indexes, which does not look at the files again."""

    name = "zarrista, cached index"
    group = ("loader", "cached index")

    def open(self, path: Path, case: Case) -> Any:
        array = super().open(path, case)
        return array, array.shard_cache(), case.inner

    def read(self, array: Any, box: Box) -> Array:
        array, cache, inner = array
        at = [s.start // extent for s, extent in zip(box, inner, strict=True)]
        if any((s.stop - 1) // extent != c for s, extent, c in zip(box, inner, at, strict=True)):
            return super().read(array, box)  # the cache serves single inner chunks only
        chunk = np.asarray(array.retrieve_subchunk(at, shard_cache=cache).to_numpy())
        return chunk[
            tuple(
                slice(s.start - c * extent, s.stop - c * extent)
                for s, extent, c in zip(box, inner, at, strict=True)
            )
        ]


class DaskRechunk(ZarrBatched):
    """dask's rechunk with `to_zarr`, in threads, over zarr's pipeline."""

    name = "dask rechunk"
    group = "tools"

    def why_not(self) -> str | None:
        return super().why_not() if importlib.util.find_spec("dask") else "dask is not installed"


class Program(Peer):
    """A program of the system, which a row calls by its name."""

    group = "tools"

    def why_not(self) -> str | None:
        return None if shutil.which(self.name) else f"{self.name} is not installed"


class Cat(Program):
    """It reads files, 128 KiB at a time, and writes them to /dev/null."""

    name = "cat"


class Cp(Program):
    """It copies files, without sharing blocks."""

    name = "cp"


class Find(Program):
    """It lists files and their sizes."""

    name = "find"
    is_rival = False


class Floor(Peer):
    """floor.c: reads boxes, writes whole arrays."""

    name = "floor"
    package = "blosc2"
    is_rival = False
    can_update = False
    can_index = True  # rows along the first axis

    def why_not(self) -> str | None:
        if floor.archive() is None:
            return "blosc2 with its static library is not installed"
        try:
            floor.library()
        except (OSError, subprocess.CalledProcessError) as error:
            return f"floor.c does not build: {error}"
        return None

    def open(self, path: Path, case: Case) -> Any:
        return path, case

    def read(self, array: Any, box: Box) -> Array:
        path, case = array
        return floor.read(path, case, box, N_THREADS)

    def select(self, array: Any, how: str, selection: Any) -> Array:
        path, case = array
        return floor.read_rows(path, case, selection[0], N_THREADS)

    def write(self, array: Any, box: Box, values: Array) -> None:
        path, case = array
        floor.write(path, case, values, N_THREADS)


ALL: tuple[Peer, ...] = (
    ShardCodec(),
    ShardCodecAttach(),
    ShardCodecEngine(),
    ZarrBatched(),
    ZarrFused(),
    Zarrs(),
    TensorStore(),
    XarrayTensorStore(),
    Zarrista(),
    Floor(),
    ShardCodecAppend(),
    ShardCodecInPlace(),
    ShardCodecOneThread(),
    ShardCodecWorker(),
    ShardCodecWorkers(),
    DaskRechunkWorkers(),
    ShardHandle(),
    EmptyPipeline(),
    OpenArray(),
    OpenArrayWriter(),
    OpenArrayCached(),
    OpenArrayChunks(),
    Copies(),
    OpenArrayKept(),
    OpenArrayImmutable(),
    OnePread(),
    TensorStoreCached(),
    ZarristaCached(),
    Fill(),
    DaskRechunk(),
    Cat(),
    Cp(),
    Find(),
)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, for libraries that a peer does not choose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def available(names: list[str] | None = None) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers that can run here (of those named) and, for each of the others, the reason."""
    peers, missing = [], {}
    for peer in ALL:
        if names and peer.name not in names:
            continue
        reason = peer.why_not()
        if reason is None:
            peers.append(peer)
        else:
            missing[peer.name] = reason
    return peers, missing
