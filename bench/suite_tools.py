"""Rows of the tools: conversions beside a copy loop and TensorStore, verify beside `cat`, compact beside `cp`, many shards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import data
import numpy as np
import peers
import suite
from data import Case
from peers import Peer
from suite import Context, Row

GROUP = "tools"
BLOSC_V2 = {
    "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "filters": None,
}
# Elements and encoded chunks that a conversion may hold; TensorStore gets a cache of this size.
MEMORY = 512 << 20
CONVERTERS = ("shardcodec", "zarr batched", "zarr fused", "tensorstore", "dask rechunk")


@dataclass(frozen=True)
class CaseChecked(Case):
    """The same field in shards whose inner chunks have a checksum."""

    def metadata(self) -> dict[str, Any]:
        """Return the zarr.json."""
        document = super().metadata()
        document["codecs"][0]["configuration"]["codecs"].append({"name": "crc32c"})
        return document

    def slug(self) -> str:
        return f"checked-{super().slug()}"


# ---- conversions


@dataclass(frozen=True)
class Convert(Row):
    """Converts an array to shards in an empty folder. Files are removed at once, so that they never reach the disk."""

    target: Case | None = None
    moves: bool = False  # shardcodec moves encoded chunks

    most_rounds: ClassVar[int] = 5

    def takes(self, peer: Peer) -> bool:
        return peer.name in CONVERTERS

    @property
    def made(self) -> Case:
        assert self.target is not None
        return self.target

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        try:
            result = self.operate(peer, prepared)
            if peer.name.startswith("shardcodec"):
                assert [one.method for one in result.arrays] == ["move" if self.moves else "encode"], result
            found = context.read_back(prepared[1], self.made)
            suite.assert_equal(peer, found, context.values(self.case))
            return {"stored_nbytes": data.stored_nbytes(prepared[1])}
        finally:
            self.finish(prepared)

    def prepare(self, context: Context, peer: Peer, number: int) -> tuple[Any, ...]:
        """Return source, destination, and what else `operate` of a subclass needs."""
        path = context.folder / f"converted-{peer.name.replace(' ', '-')}"
        if not peer.name.startswith("shardcodec"):  # which makes the array itself
            self.made.create(path)
        return context.source(self.case), path

    def operate(self, peer: Peer, prepared: Any) -> Any:
        source, path = prepared
        if peer.name == "shardcodec":
            return self._convert(source, path)
        if peer.name == "tensorstore":
            return _copy_in_tensorstore(source, path)
        if peer.name == "dask rechunk":
            return _rechunk(source, path, self.made)
        old, new = (peer.open(one, self.made) for one in (source, path))
        for box in _shards(self.made):
            new[box] = old[box]
        return None

    def _convert(self, source: Path, path: Path) -> Any:
        from shardcodec import tools

        how: dict[str, Any] = {"memory": MEMORY, "threads": peers.N_THREADS, "shards": self.made.shard}
        if not self.moves:
            how |= {"chunks": self.made.inner, "codecs": data.codec_chain(self.made.codec, 2)}
        report = tools.convert(source, path, **how)
        assert report.is_complete, report
        return report

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[1], ignore_errors=True)


def _shards(case: Case) -> list[data.Box]:
    counts = [-(-n // size) for n, size in zip(case.shape, case.shard, strict=True)]
    return [
        tuple(
            slice(i * n, min((i + 1) * n, limit))
            for i, n, limit in zip(at, case.shard, case.shape, strict=True)
        )
        for at in np.ndindex(*counts)
    ]


def _copy_in_tensorstore(source: Path, path: Path) -> None:
    import tensorstore

    context = tensorstore.Context(
        {
            "cache_pool": {"total_bytes_limit": MEMORY},
            "data_copy_concurrency": {"limit": peers.N_THREADS},
            "file_io_concurrency": {"limit": 2 * peers.N_THREADS},
            "file_io_sync": False,
        }
    )
    opened = []
    for one in (source, path):
        driver = "zarr3" if (one / "zarr.json").exists() else "zarr"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{one}/"}}
        opened.append(tensorstore.open(spec, open=True, context=context).result())
    opened[1][...] = opened[0]


def _rechunk(source: Path, path: Path, case: Case) -> None:
    import dask
    import dask.array as da
    import zarr

    with dask.config.set(scheduler="threads", num_workers=peers.N_THREADS):
        array = zarr.open_array(source, mode="r")
        old = da.from_zarr(
            array, chunks=array.shards or array.chunks
        )  # by inner chunks it takes many times longer
        da.to_zarr(old.rechunk(case.shard), zarr.open_array(path, mode="r+"))


# ---- verify and compact


@dataclass(frozen=True)
class Verify(Row):
    """Verifies all checksums of inner chunks; `cat` reads the same files and writes them to /dev/null."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in ("shardcodec", "cat")

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        found = self.operate(peer, prepared)
        if peer.name == "shardcodec":
            (array,) = found.arrays
            n_chunks = self.case.nbytes // (2 * int(np.prod(self.case.inner)))
            assert array.verified_nbytes == self.case.nbytes + 4 * n_chunks
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> tuple[Path, list[str]]:
        path = context.source(self.case)
        return path, sorted(str(file) for file in (path / "c").rglob("*") if file.is_file())

    def operate(self, peer: Peer, prepared: Any) -> Any:
        path, files = prepared
        if peer.name == "cat":
            return _run(["cat", *files])
        from shardcodec import tools

        report = tools.verify(path, level="checksum", threads=peers.N_THREADS)
        assert not report.n_findings, report
        return report


@dataclass(frozen=True)
class Compact(Row):
    """Packs shards with dead bytes into a new hierarchy; `cp` copies them as they are."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in ("shardcodec", "cp")

    def _loose(self, context: Context) -> Path:
        """Return a copy of the array in which each shard was appended to, so that it has dead bytes."""
        slug = f"loose-{self.case.slug()}"
        if slug not in context.sources:
            import zarr

            import shardcodec
            from shardcodec.options import override

            path = Path(shutil.copytree(context.source(self.case), context.folder / slug))
            with shardcodec.enable(write_strategy="append"), override({"compact": False}):
                array = zarr.open_array(path, mode="r+")
                for box in _shards(self.case):
                    part = tuple(
                        slice(s.start, s.start + n) for s, n in zip(box, self.case.inner, strict=True)
                    )
                    array[part] = context.values(self.case)[part]
            assert data.stored_nbytes(path) > data.stored_nbytes(context.source(self.case))
            context.sources[slug] = path
        return context.sources[slug]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        try:
            found = self.operate(peer, prepared)
            if peer.name == "shardcodec":
                assert found.n_packed == found.n_shards and found.freed_nbytes > 0, found
            suite.assert_equal(peer, context.read_back(prepared[1], self.case), context.values(self.case))
            return {"stored_nbytes": data.stored_nbytes(prepared[1])}
        finally:
            self.finish(prepared)

    def prepare(self, context: Context, peer: Peer, number: int) -> tuple[Path, Path]:
        return self._loose(context), context.folder / f"packed-{peer.name}"

    def operate(self, peer: Peer, prepared: Any) -> Any:
        path, new = prepared
        if peer.name == "cp":
            return _run(["cp", "-r", "--reflink=never", str(path), str(new)])
        from shardcodec import tools

        return tools.compact(path, min_dead=0, to=new, threads=peers.N_THREADS)

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[1], ignore_errors=True)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


# ---- many shards


@dataclass(frozen=True)
class ManyShards(Row):
    """Looks at the index of each of many small shards; `find` lists the files and their sizes."""

    tool: str = "inspect"

    most_rounds: ClassVar[int] = 3

    def takes(self, peer: Peer) -> bool:
        return peer.name in ("shardcodec", "find")

    @property
    def n_shards(self) -> int:
        return self.case.shape[0] // self.case.shard[0]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        found = self.operate(peer, self.prepare(context, peer, 0))
        if peer.name == "shardcodec":
            (array,) = found.arrays
            stored = array.stored if self.tool == "inspect" else array
            assert stored.n_shards == self.n_shards and not found.n_findings, found
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Path:
        """Return the array. All its shards are copies of the first one, which is the quickest way to make so many."""
        slug = self.case.slug()
        if slug not in context.sources:
            path = self.case.create(context.folder / f"many-{slug}")
            with context.writer.turn():
                box = tuple(slice(0, n) for n in self.case.shard)
                values = np.random.default_rng(15).integers(1, 60000, self.case.shard, dtype=np.uint16)
                context.writer.write(context.writer.open(path, self.case), box, values)
            shard = (path / "c" / "0" / "0").read_bytes()
            for number in range(1, self.n_shards):
                (path / "c" / str(number)).mkdir()
                (path / "c" / str(number) / "0").write_bytes(shard)
            context.sources[slug] = path
        return context.sources[slug]

    def operate(self, peer: Peer, prepared: Any) -> Any:
        if peer.name == "find":
            return _run(["find", str(prepared), "-type", "f", "-printf", "%s %p\\n"])
        from shardcodec import tools

        if self.tool == "inspect":
            return tools.inspect(prepared, threads=peers.N_THREADS)
        return tools.verify(prepared, level="index", threads=peers.N_THREADS)


def rows(edge: int) -> list[Row]:
    """Return the rows: conversions, verify and compact of a uint16 cube, and tools on many shards of 10 KiB.

    BENCH_TOOLS_EDGE replaces the edge of the cube (1024: 2 GiB), BENCH_SHARDS the number of small shards.
    """
    n_shards = int(os.environ.get("BENCH_SHARDS", "100000" if edge >= 512 else "500"))
    edge = int(os.environ.get("BENCH_TOOLS_EDGE", str(edge)))
    shape, shard, chunk = (edge,) * 3, (edge // 2,) * 3, (edge // 8,) * 3
    small = (edge // 16,) * 3
    found: list[Row] = []
    for codec in ("raw", "zstd 1"):
        plain = Case(shape, chunk, chunk, "uint16", codec)
        moved = Case(shape, shard, chunk, "uint16", codec)
        encoded = Case(shape, shard, small, "uint16", codec)
        found += [
            Convert(GROUP, f"convert v3 without shards, moved, {codec}", plain, moved, moves=True),
            Convert(GROUP, f"convert v3 without shards, encoded, {codec}", plain, encoded),
        ]
    blosc = "blosc lz4 shuffle"
    v2 = Case(shape, chunk, chunk, "uint16", blosc, zarr_format=2, codecs=BLOSC_V2)
    to_v3 = Case(shape, shard, chunk, "uint16", blosc)
    found.append(Convert(GROUP, "convert v2, moved, blosc", v2, to_v3, moves=True))
    found.append(Convert(GROUP, "convert v2, encoded, blosc", v2, Case(shape, shard, small, "uint16", blosc)))
    for codec in ("raw", "zstd 1"):
        old = Case(shape, (edge // 4,) * 3, small, "uint16", codec)
        new = Case(shape, shard, small, "uint16", codec)
        found.append(Convert(GROUP, f"reshard, moved, {codec}", old, new, moves=True))
    found += [
        Verify(GROUP, "verify checksums", CaseChecked(shape, shard, small, "uint16", "raw")),
        Compact(GROUP, "compact", data.big(edge).with_codec("raw")),
    ]
    many = CaseChecked((8 * n_shards, 640), (8, 640), (4, 80), "uint16", "raw")
    return [
        *found,
        ManyShards(GROUP, f"inspect {n_shards:,} shards", many, "inspect"),
        ManyShards(GROUP, f"verify the indexes of {n_shards:,} shards", many, "verify"),
    ]
