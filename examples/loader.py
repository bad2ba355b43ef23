# loader.py - random crops of a large array, for training, read by worker processes
# SPDX-License-Identifier: MIT
"""A data set in the manner of PyTorch, and a loader with worker processes that stands for PyTorch's.

    python examples/loader.py [ARRAY] [--torch]

`RandomCrops` has the three methods that ``torch.utils.data.DataLoader`` looks for; torch itself is needed for --torch only.
The one that matters is ``__getitems__``: torch hands it the indices of a whole batch, and one call of `read_boxes` reads
them, so that crops which lie side by side share the opening of files and the decoding of chunks. `shardcodec.ShardOrder`
chooses the crops of each batch: those of one shard come close together. With torch:

    crops = RandomCrops("brain.zarr", (64, 64, 64), 10_000)
    order = shardcodec.ShardOrder(crops.array, crops.starts, batch=16)
    loader = torch.utils.data.DataLoader(crops, batch_sampler=order, num_workers=4)

Each worker gets the data set pickled and opens the array for itself. It uses one thread, because there are several
workers. At the end each crop is compared with the elements that zarr reads.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shardcodec


class RandomCrops:
    """Boxes of one shape from random places of an array; crop number i is always the same.

    Parameters
    ----------
    path : str or Path
        A Zarr v3 array.
    shape : sequence of int
        Of a crop.
    length : int
        Number of crops.
    seed : int
        Another seed gives other places.
    """

    def __init__(self, path: str | Path, shape: Sequence[int], length: int, *, seed: int = 0) -> None:
        self.array = shardcodec.open_array(path, threads=1)
        self.shape = tuple(shape)
        last = np.subtract(self.array.shape, self.shape)
        self.starts = np.random.default_rng(seed).integers(0, last + 1, (length, len(last)))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """Read the crops of a batch at once."""
        return list(self.array.read_boxes(self.starts[list(indices)], self.shape))


_crops: Any = None


def _begin_worker(crops: RandomCrops) -> None:
    global _crops
    _crops = crops


def _read_batch(indices: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.stack(_crops.__getitems__(indices))


def batches(
    crops: RandomCrops, parts: Iterable[Sequence[int]], n_workers: int
) -> Iterator[np.ndarray[Any, Any]]:
    """Read crops in worker processes; yield batches."""
    with multiprocessing.get_context("spawn").Pool(n_workers, _begin_worker, (crops,)) as pool:
        yield from pool.imap(_read_batch, parts)


def batches_of_torch(
    crops: RandomCrops, parts: Iterable[Sequence[int]], n_workers: int
) -> Iterator[np.ndarray[Any, Any]]:
    """Read crops with PyTorch's loader; yield batches."""
    from torch.utils.data import DataLoader

    loader = DataLoader(crops, batch_sampler=parts, num_workers=n_workers, multiprocessing_context="spawn")
    yield from (batch.numpy() for batch in loader)


def n_wrong(
    path: str | Path, crops: RandomCrops, parts: Iterable[Sequence[int]], read: list[np.ndarray[Any, Any]]
) -> int:
    """Return the number of crops that differ from what zarr reads without shardcodec."""
    import zarr

    source = zarr.open_array(path, mode="r")
    wrong = 0
    for indices, batch in zip(parts, read, strict=True):
        for index, crop in zip(indices, batch, strict=True):
            box = tuple(slice(at, at + n) for at, n in zip(crops.starts[index], crops.shape, strict=True))
            wrong += not np.array_equal(crop, source[box])
    return wrong


def example_array(folder: Path) -> Path:
    """A volume of 192 x 192 x 192 in shards of 96 x 96 x 96."""
    import zarr

    values = np.arange(192**3, dtype="uint32").reshape(192, 192, 192) // 7 % 4096
    path = folder / "volume.zarr"
    with shardcodec.enable():
        zarr.create_array(
            path,
            data=values.astype("uint16"),
            chunks=(32, 32, 32),
            shards=(96, 96, 96),
            compressors=zarr.codecs.ZstdCodec(level=1),
        )
    return path


def main() -> None:
    """Time some batches and compare them with the array."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("array", nargs="?", help="a Zarr v3 array; default: a small one that is made up")
    parser.add_argument("--crops", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--torch", action="store_true", help="read with PyTorch's loader")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.array or example_array(Path(folder))
        shape = [min(40, extent) for extent in shardcodec.open_array(path).shape]
        crops = RandomCrops(path, shape, arguments.crops)
        parts = shardcodec.ShardOrder(crops.array, crops.starts, window=4, batch=arguments.batch)
        begin = time.perf_counter()
        read = list((batches_of_torch if arguments.torch else batches)(crops, parts, arguments.workers))
        seconds = time.perf_counter() - begin
        total = sum(batch.nbytes for batch in read)
        wrong = n_wrong(path, crops, parts, read)
        print(
            f"{len(crops)} crops of {tuple(shape)}: {total / 1e6:.0f} MB in {seconds:.2f} s, workers' start included; "
            f"{wrong} differ from the array"
        )
        if wrong:
            sys.exit("WRONG: a crop differs from what zarr reads")


if __name__ == "__main__":
    main()
