"""Reads of a second epoch: from a bucket through the cache on a local disk, and from local files.

    python bench/second_epoch.py [--rounds 7] [--latency 20]       needs moto and obstore

The server is moto on this machine, behind a proxy that delays and counts (see web.py). The first epoch has filled the cache (option
`cache_dir`). With `immutable` the second one needs no request. Both read the same objects, with indexes in memory, and files that have
not just changed. Arrays without compression are also read from local files with the codec crc32c. Medians, interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import data
import numpy as np
import object_writes
import program

import shardcodec

LAYOUTS = {
    "shards of 128^3, chunks of 32^3": ((128,) * 3, (32,) * 3),
    "shards of 64^3, chunks of 16^3": ((64,) * 3, (16,) * 3),
    "chunks of 64^3": ((64,) * 3, (64,) * 3),
}
CODECS = ("zstd 1", "blosc lz4 shuffle", "raw")
SHAPE = (128, 128, 256)
CROP, N_CROPS = 32, 100


CHECKED = [data.LITTLE, {"name": "crc32c"}]


class Row(NamedTuple):
    """Median seconds of each array, the one in the bucket first, and requests of an epoch from the bucket."""

    seconds: list[float]
    n_requests: int


def epochs() -> dict[str, Callable[[Any], Any]]:
    """Return functions that read an epoch of an array."""
    rng = np.random.default_rng(3)
    starts = np.stack([rng.integers(0, n - CROP + 1, N_CROPS) for n in SHAPE], axis=1)
    boxes = [tuple(slice(at, at + CROP) for at in start) for start in starts.tolist()]
    return {
        "whole": lambda array: array[...],
        f"{N_CROPS} crops of {CROP}^3 in a call": lambda array: array.read_boxes(starts, (CROP,) * 3),
        f"{N_CROPS} crops, a call each": lambda array: [array[box] for box in boxes],
    }


def measure(arrays: list[Any], epoch: Callable[[Any], Any], line: Any, rounds: int) -> Row:
    """Read the arrays in turn, the first one from the bucket; RuntimeError if they differ."""
    seconds: list[list[float]] = [[] for _ in arrays]
    n_requests = 0
    for number in range(rounds + 2):
        results = {}
        for which in sorted(range(len(arrays)), key=lambda which: (which + number) % len(arrays)):
            line.traffic()
            start = time.perf_counter()
            results[which] = epoch(arrays[which])
            seconds[which].append(time.perf_counter() - start)
            n_requests = line.traffic().requests if which == 0 else n_requests
        for which in range(1, len(arrays)):
            if not all(map(np.array_equal, results[0], results[which])):
                raise RuntimeError("the epochs differ")
    return Row([median(times[2:]) for times in seconds], n_requests)


def local_array(case: data.Case, folder: Path) -> Path:
    place = folder / f"{case.slug()}-{len(case.codecs or ())}"
    shardcodec.open_array(case.create(place), mode="r+")[...] = case.make_field()
    return place


def rows(latency: float, rounds: int) -> Iterator[tuple[str, str, str, Row]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        object_writes.served(Path(folder), latency) as (server, line),
    ):
        for (layout, (shard, chunk)), codec in itertools.product(LAYOUTS.items(), CODECS):
            case = data.Case(SHAPE, shard, chunk, "uint16", codec)
            places = [local_array(case, Path(folder))]
            if codec == "raw":
                places.append(local_array(replace(case, codecs=CHECKED), Path(folder)))
            bucket = server.make_bucket()
            store = object_writes.Place(bucket, "array", server.port).obstore().store
            for file in places[0].rglob("*"):
                if file.is_file():
                    store.put(str(file.relative_to(places[0])), file.read_bytes())
            data.wait_until_old(places[-1])
            delayed = object_writes.Place(bucket, "array", line.port).obstore()
            cache = Path(folder) / f"cache-{case.slug()}"
            with shardcodec.options(immutable=True, cache_dir=cache):
                arrays = [shardcodec.open_array(place) for place in (delayed, *places)]
            arrays[0][...]
            data.wait_until_old(cache)
            for name, epoch in epochs().items():
                yield layout, codec, name, measure(arrays, epoch, line, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=program.positive, default=7)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds of a request (20)")
    arguments = parser.parse_args()
    os.environ.update(object_writes.KEYS)
    print(
        "| array | codec | epoch | bucket with `cache_dir`, ms | local files, ms | local, crc32c, ms | ratios | requests |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for layout, codec, name, row in rows(arguments.latency, arguments.rounds):
        times = " | ".join([*(f"{1e3 * seconds:.3g}" for seconds in row.seconds), ""][:3])
        ratios = ", ".join(f"{row.seconds[0] / seconds:.2f}" for seconds in row.seconds[1:])
        print(f"| {layout} | {codec} | {name} | {times} | {ratios} | {row.n_requests} |", flush=True)


if __name__ == "__main__":
    main()
