# demo.py - a real MRI series through zarr, once with its default pipeline and once with shardcodec
# SPDX-License-Identifier: MIT
"""Write and read a sharded, compressed Zarr v3 array of real data, prove that it is right, and time both ways.

The data are the functional MRI volumes that nibabel ships in its wheel for its own tests. Two volumes are too little
to measure, so they are repeated along time. An inner chunk holds one moment only, so that no compressor can see
the repetition: size and speed are those of the real voxels.

Run it with `make demo`.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import zarr

Array = npt.NDArray[np.int16]

REPEATS = 128  # of the two volumes: 256 moments, 144 MiB
SHARD = (32, 24, 96, 128)  # 32 moments, 18 MiB
INNER = (1, 12, 48, 64)  # an eighth of a volume, 72 KiB
ROUNDS = 5
N_RANDOM = 200

Action = Callable[[], Any]


def mri_series() -> Array:
    """Return the series of nibabel's example4d.nii.gz as (time, z, y, x), repeated along time."""
    path = Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"
    image = nibabel.load(path)
    volumes = np.ascontiguousarray(np.asanyarray(image.dataobj).T)
    series = np.tile(volumes, (REPEATS, 1, 1, 1))
    print(
        f"data     {path.name} of nibabel {nibabel.__version__}: {len(volumes)} MRI volumes of {volumes.shape[1:]}"
    )
    print(
        f"         {volumes.dtype} voxels, repeated {REPEATS} times along time: {series.nbytes / 2**20:.0f} MiB"
    )
    return series


@contextmanager
def default_pipeline() -> Iterator[None]:
    """Zarr as it is without us."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        yield


@contextmanager
def shardcodec_pipeline() -> Iterator[None]:
    """Switch on shardcodec, as the README does."""
    import shardcodec

    shardcodec.enable()
    try:
        yield
    finally:
        shardcodec.disable()


PIPELINES = {"zarr": default_pipeline, "shardcodec": shardcodec_pipeline}


def create(path: Path, series: Array) -> zarr.Array[Any]:
    """Create the array; its codecs run in the pipeline that is switched on now."""
    return zarr.create_array(
        store=path,
        shape=series.shape,
        dtype=series.dtype,
        shards=SHARD,
        chunks=INNER,
        compressors=zarr.codecs.ZstdCodec(level=1),
        overwrite=True,
    )


def inner_chunks(shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Return the same 200 random inner chunks for everyone."""
    rng = np.random.default_rng(877)
    grid = [n // c for n, c in zip(shape, INNER, strict=True)]
    corners = zip(*(rng.integers(0, n, N_RANDOM) for n in grid), strict=True)
    return [tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, INNER, strict=True)) for at in corners]


def actions(path: Path, series: Array) -> dict[str, Action]:
    """Return what is timed, for arrays that belong to the pipeline switched on now."""
    target = create(path, series)
    boxes = inner_chunks(series.shape)

    def write() -> None:
        target[...] = series

    return {
        "write": write,
        "full read": lambda: target[...],
        "slab read (one slice, all times)": lambda: target[:, 12],
        f"{N_RANDOM} random inner chunks": lambda: [target[box] for box in boxes],
    }


def prove(folder: Path, series: Array) -> None:
    """Read every array with every pipeline and compare all voxels with the source."""
    for writer in PIPELINES:
        for reader, pipeline in PIPELINES.items():
            with pipeline():
                array = zarr.open_array(folder / writer, mode="r")
                if not np.array_equal(array[...], series):
                    sys.exit(f"WRONG: written by {writer}, read by {reader}: not equal to the source")
                slab_equal = np.array_equal(array[:, 12], series[:, 12])
                if not slab_equal or not all(
                    np.array_equal(array[box], series[box]) for box in inner_chunks(series.shape)
                ):
                    sys.exit(f"WRONG: written by {writer}, read in part by {reader}: not equal to the source")
            print(f"proof    written by {writer}, read by {reader}: every voxel equals the source")


def measure(per_pipeline: dict[str, dict[str, Action]]) -> dict[str, dict[str, float]]:
    """Median seconds of every action. Rounds alternate between pipelines, so that noise meets both alike."""
    seconds: dict[str, dict[str, list[float]]] = {
        name: {action: [] for action in per_pipeline["zarr"]} for name in per_pipeline
    }
    for _ in range(ROUNDS):
        for action in per_pipeline["zarr"]:
            for name, todo in per_pipeline.items():
                begin = time.perf_counter()
                todo[action]()
                seconds[name][action].append(time.perf_counter() - begin)
    return {
        name: {action: statistics.median(s) for action, s in row.items()} for name, row in seconds.items()
    }


def report(medians: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    print(f"\n{f'seconds, median of {ROUNDS}':<34}{'zarr':>10}{'shardcodec':>12}{'ratio':>9}")
    for action, zarr_seconds in medians["zarr"].items():
        ours = medians["shardcodec"][action]
        print(f"{action:<34}{zarr_seconds:>10.3f}{ours:>12.3f}{zarr_seconds / ours:>8.1f}x")


def stored_nbytes(path: Path) -> int:
    """Sum the sizes of all files below."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main() -> None:
    """Run the demo."""
    series = mri_series()
    print(
        f"array    zarr {zarr.__version__}, Python {platform.python_version()}; shards {SHARD}, inner chunks {INNER}"
    )
    with tempfile.TemporaryDirectory(prefix="shardcodec-demo-") as name:
        folder = Path(name)
        per_pipeline = {}
        for writer, pipeline in PIPELINES.items():
            with pipeline():
                per_pipeline[writer] = actions(folder / writer, series)
            per_pipeline[writer]["write"]()
            percent = 100 * stored_nbytes(folder / writer) / series.nbytes
            print(f"stored   written by {writer}: zstd level 1, {percent:.1f} % of the voxels' size")
        prove(folder, series)
        report(measure(per_pipeline))


if __name__ == "__main__":
    main()
