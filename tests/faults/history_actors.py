# history_actors.py - the processes of a recorded history: what they write, read, pack and erase
# SPDX-License-Identifier: MIT
"""Each actor is a forked process that repeats one job until it is killed or stopped."""

from __future__ import annotations

import importlib.util
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from faults.histories import ERASED, FIRST, Recorder, contents
from helpers import caches_of, ours, quiet
from servers.s3 import s3_store
from workers import forked

import shardcodec
from shardcodec import native, tools

__all__ = [
    "Job",
    "Site",
    "compact",
    "erase",
    "make_array",
    "read",
    "read_stock",
    "settled_view",
    "start",
    "write_groups",
    "write_parts",
    "write_shards",
]

CODECS: dict[str, Any] = {"raw": None, "crc32c": [{"name": "crc32c"}], "zstd": "auto"}
LOCK_SECONDS = 120.0
# A file may be so young and be in a cache: longer than a tick of its clock, and so short that readers often use the cache.
GRAIN_NS = 10_000_000
REST_SECONDS = 0.6  # of a writer at most, beside caches
N_ROWS = 2  # of inner chunks in a shard, so that two orders of them differ


@dataclass(frozen=True)
class Site:
    """Where the array is, and how it is divided.

    Parameters
    ----------
    folders : list of Path
        Mounts of one folder; an actor uses one of them.
    bucket : tuple of ports and str, optional
        Instead: the ports of a server, one with faults for actors and one without, and a bucket.
    shard_chunks, chunk : int
        Inner chunks of a shard, and elements of an inner chunk.
    hot : int, optional
        Most writes go to the first inner chunks of the array, this many, so that the others keep their values for long.
    strategies : tuple of str
        The write strategies.
    packs : bool
        True if a shard may be packed or written whole while others read, and be removed when it is empty.
    cache : str or int
        The bound of the cache of inner chunks of each actor.
    disturb : callable, optional
        Makes a connection of some actor fail.
    """

    folders: list[Path]
    bucket: tuple[int, int, str] | None = None
    codecs: str = "raw"
    n_shards: int = 2
    shard_chunks: int = 8
    chunk: int = 4096
    hot: int | None = None
    strategies: tuple[str, ...] = ("in_place", "in_place", "append", "replace")
    packs: bool = True
    cache: str | int = 0
    disturb: Callable[[random.Random], None] | None = None

    @property
    def n_chunks(self) -> int:
        return self.n_shards * self.shard_chunks

    @property
    def n_columns(self) -> int:
        return self.shard_chunks // N_ROWS

    def store(self, actor: int, *, direct: bool = False) -> Any:
        """Return what an actor opens; `direct`: without faults of the connection."""
        if self.bucket is None:
            return self.folders[actor % len(self.folders)] / "a"
        *ports, bucket = self.bucket
        return zarr.storage.ObjectStore(s3_store(ports[direct], bucket))

    def selection(self, first: int, n: int) -> tuple[int, slice]:
        """Return the elements of inner chunks that follow one another in a row."""
        row, column = divmod(first, self.n_columns)
        return row, slice(column * self.chunk, (column + n) * self.chunk)

    def chunks_of_shard(self, shard: int) -> list[int]:
        return list(range(shard * self.shard_chunks, (shard + 1) * self.shard_chunks))

    def rows_of_shard(self, shard: int) -> slice:
        return slice(shard * N_ROWS, (shard + 1) * N_ROWS)

    def some_chunks(self, chance: random.Random) -> list[int]:
        """Return inner chunks that follow one another in a row."""
        first = chance.randrange(self.n_chunks)
        if self.hot is not None and chance.random() < 0.95:
            first = chance.randrange(self.hot)
        width = chance.randrange(1, self.n_columns - first % self.n_columns + 1)
        return list(range(first, first + width))

    def elements(self, value: int, chunks: list[int]) -> Any:
        return contents([value] * len(chunks), chunks, self.chunk).reshape(-1)


def make_array(site: Site) -> None:
    with quiet():
        array = zarr.create_array(
            site.store(0, direct=True),
            shape=(site.n_shards * N_ROWS, site.n_columns * site.chunk),
            chunks=(1, site.chunk),
            shards=(N_ROWS, site.n_columns * site.chunk),
            dtype="int64",
            compressors=CODECS[site.codecs],
            fill_value=ERASED,
        )
    own = shardcodec.attach(array, strict=True)
    own[...] = site.elements(FIRST, list(range(site.n_chunks))).reshape(array.shape)


# ---- jobs


@dataclass(frozen=True)
class Job:
    """The state of one actor."""

    site: Site
    recorder: Recorder
    chance: random.Random
    actor: int
    must_stop: Callable[[], bool]

    def open_array(self, mode: str = "r+") -> Any:
        """Open the array; a handle of `open_array` has the options of this moment."""
        store = self.site.store(self.actor)
        if self.chance.random() < 0.5:
            with quiet():
                return shardcodec.open_array(store, mode=mode)  # type: ignore[arg-type]
        return ours(store, mode=mode)

    def turns(self, most: int) -> Iterator[int]:
        """Yield numbers until it is time to open the array again."""
        for i in range(self.chance.randrange(1, most)):
            if self.must_stop():
                return
            yield i

    @contextmanager
    def options(self) -> Iterator[None]:
        """Choose the strategy and other options of some writes."""
        with shardcodec.options(
            write_strategy=self.chance.choice(self.site.strategies),
            durability="fsync" if self.chance.random() < 0.02 else "rename",
            compact=self.site.packs and self.chance.random() < 0.5,
        ):
            yield

    def may_fail(self, error: Exception) -> bool:
        """Return True for an error of a connection that is disturbed."""
        if self.site.disturb is None:
            return False
        from obstore.exceptions import BaseError

        # the tools raise an error of a client as an OSError
        return isinstance(error, BaseError | shardcodec.GroupWriteError) or isinstance(
            error.__cause__, BaseError
        )

    @contextmanager
    def tries(self) -> Iterator[None]:
        """Acknowledge what is written in the block. Connections with faults may raise errors."""
        try:
            yield
        except Exception as error:
            if not self.may_fail(error):
                raise
            self.recorder.forget()
        else:
            self.recorder.end()
        self.rest(0)

    def rest(self, seconds: float) -> None:
        """Sleep for at most so long; longer beside caches, so that they have time to be used."""
        most = max(seconds, REST_SECONDS if self.site.cache else 0)
        if most:
            time.sleep(self.chance.random() * most)


def write_parts(job: Job) -> None:
    """Write inner chunks, one or more of a row."""
    with job.options():
        array = job.open_array()
        for _ in job.turns(30):
            chunks = job.site.some_chunks(job.chance)
            where = job.site.selection(chunks[0], len(chunks))
            value = job.recorder.begin(chunks)
            with job.tries():
                array[where] = job.site.elements(value, chunks)


def write_shards(job: Job) -> None:
    """Write whole shards, one or all of them in one request."""
    with job.options():
        array = job.open_array()
        for _ in job.turns(5):
            if job.chance.random() < 0.7:
                shard = job.chance.randrange(job.site.n_shards)
                chunks, rows = job.site.chunks_of_shard(shard), job.site.rows_of_shard(shard)
            else:
                chunks, rows = list(range(job.site.n_chunks)), slice(None)
            value = job.recorder.begin(chunks)
            with job.tries():
                array[rows] = job.site.elements(value, chunks).reshape(
                    -1, job.site.n_columns * job.site.chunk
                )
            job.rest(0.03)


def write_groups(job: Job) -> None:
    """Write inner chunks in blocks of `group_writes`; each is acknowledged when its block ends."""
    with job.options():
        array = job.open_array()
        for _ in job.turns(6):
            left = list(range(job.site.n_chunks))
            job.chance.shuffle(left)
            with job.tries(), shardcodec.group_writes():
                for chunk in left[: job.chance.randrange(1, 6)]:
                    value = job.recorder.begin([chunk])
                    array[job.site.selection(chunk, 1)] = job.site.elements(value, [chunk])


def erase(job: Job) -> None:
    """Erase inner chunks, and sometimes all of a shard, which removes it. The first one of a shard stays if shards must."""
    with job.options():
        array = job.open_array()
        for _ in job.turns(6):
            if job.site.packs and job.chance.random() < 0.3:
                shard = job.chance.randrange(job.site.n_shards)
                chunks, where = job.site.chunks_of_shard(shard), job.site.rows_of_shard(shard)
            else:
                chunks = job.site.some_chunks(job.chance)
                if not job.site.packs:
                    chunks = [one for one in chunks if one % job.site.shard_chunks]
                where = job.site.selection(chunks[0], len(chunks)) if chunks else None
            if chunks:
                job.recorder.begin(chunks, erase=True)
                with job.tries():
                    array[where] = ERASED
            job.rest(0.03)


def compact(job: Job) -> None:
    """Pack the shards, which changes no element."""
    for order in ("lexicographic", "colexicographic", None):
        if job.must_stop():
            return
        try:
            report = tools.compact(_text(job.site.store(job.actor)), min_dead=0.0, order=order)  # type: ignore[arg-type]
        except Exception as error:
            if not job.may_fail(error):
                raise
        else:
            job.recorder.packed(report.n_packed)
        job.rest(0.02)


def _text(store: Any) -> Any:
    return str(store) if isinstance(store, Path) else store


# ---- readers


def read(job: Job) -> None:
    """Read all inner chunks with shardcodec, in one of its ways."""
    ways = [_by_zarr, _by_handle, *([] if job.site.bucket else [_by_shards])]
    _look(job, job.chance.choice(ways)(job.site, job.site.store(job.actor)), 40)


def read_stock(job: Job) -> None:
    """Read with zarr, zarrs or TensorStore, which may fail while a shard changes; then the read is repeated."""
    ways = [_by_stock_zarr]
    ways += [way for package, way in OTHERS.items() if importlib.util.find_spec(package)]
    how = job.chance.choice(ways)(job.site, job.site.store(job.actor))
    _look(job, how, 20, may_fail=lambda error: True)


def _look(
    job: Job, how: Callable[[Any], Any], most: int, may_fail: Callable[[Exception], bool] | None = None
) -> None:
    """Read all inner chunks, or some of a row, and record them."""
    for _ in job.turns(most):
        chunks: list[int] = list(range(job.site.n_chunks))
        where: Any = ...
        if job.chance.random() < 0.8:
            chunks = job.site.some_chunks(job.chance)
            where = job.site.selection(chunks[0], len(chunks))
        begin = time.monotonic_ns()
        try:
            elements = how(where)
        except Exception as error:
            if not (may_fail or job.may_fail)(error):
                raise
            job.recorder.failed(begin)
            continue
        job.recorder.read(begin, chunks, np.asarray(elements).reshape(len(chunks), job.site.chunk))


def _by_zarr(site: Site, store: Any) -> Callable[[Any], Any]:
    array = ours(store, mode="r")
    return lambda where: array[where]


def _by_handle(site: Site, store: Any) -> Callable[[Any], Any]:
    array = shardcodec.open_array(store)
    return lambda where: array[where]


def _by_shards(site: Site, store: Path) -> Callable[[Any], Any]:
    spec = shardcodec.ShardSpec.from_metadata(zarr.open_array(store, mode="r").metadata.to_dict())

    def of_all_shards(where: Any) -> Any:
        parts = []
        for i in range(site.n_shards):
            with shardcodec.open_shard(store / f"c/{i}/0", None, spec) as shard:
                parts.append(shard.read_region())
        return np.concatenate(parts)[where]

    return of_all_shards


def _by_stock_zarr(site: Site, store: Any) -> Callable[[Any], Any]:
    with quiet():
        array = zarr.open_array(store, mode="r")
    return lambda where: array[where]


def _by_zarrs(site: Site, store: Any) -> Callable[[Any], Any]:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return _by_stock_zarr(site, store)


def _by_tensorstore(site: Site, store: Path) -> Callable[[Any], Any]:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store)}}
    array = tensorstore.open(spec, read=True, open=True).result()
    return lambda where: array[where].read().result()


OTHERS = {"zarrs": _by_zarrs, "tensorstore": _by_tensorstore}


# ---- processes


def start(
    work: Callable[[Job], None], site: Site, records: Path, actor: int, seed: int, *, has_faults: bool
) -> int:
    """Fork an actor and return its process id. With `has_faults`, it kills itself at a random call that changes the file system."""

    def run() -> None:
        try:
            chance = random.Random(f"{seed} {actor}")
            job = Job(site, Recorder(records, actor), chance, actor, (records / "stop").exists)
            if has_faults:
                action = chance.choice(["kill", "kill", "torn"])
                native.load().set_fault(
                    chance.randrange(chance.choice([60, 600, 6000])), action, chance.choice([0, 1, 100, 2048])
                )
            with (
                caches_of(GRAIN_NS) if site.cache else nullcontext(),
                shardcodec.options(threads=1, lock_timeout=LOCK_SECONDS, cache=site.cache),
            ):
                while not job.must_stop():
                    work(job)
                    (records / f"{actor}.hits").write_text(str(shardcodec.stats()["chunk_hits"]))
        except BaseException:
            (records / f"{actor}.error").write_text(f"{work.__name__}: {traceback.format_exc()}")
            raise

    return forked(run)


def settled_view(store: Any) -> Any:
    """Roll back what killed writers have left, and return the array of stock zarr."""
    with quiet():
        array = zarr.open_array(store, mode="r+")
    if isinstance(store, Path):
        spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
        for path in sorted(store.glob("c/*/0")):
            shardcodec.open_shard(path, None, spec, mode="r+").roll_back()
    return array
