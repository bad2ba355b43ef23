# prefetch.py - read ahead into the cache of inner chunks
# SPDX-License-Identifier: MIT
"""`Prefetch`: a thread that reads the inner chunks of boxes, so that a later read finds them decoded in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..storage.worker_threads import WorkerThreads
from .split_by_object import box_rows

if TYPE_CHECKING:
    from .array_reader import ArrayReader

__all__ = ["Prefetch", "chunks_of_boxes"]

# Decoded bytes of the inner chunks of one read: few enough that closing waits only for some milliseconds of decoding.
GROUP_NBYTES = 8 << 20

# A thread that waits looks so often whether another one has closed it.
_WAIT_SECONDS = 0.1

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def chunks_of_boxes(begin: Numbers, count: Numbers, chunk: tuple[int, ...]) -> Numbers:
    """Return the grid positions of the inner chunks that boxes touch, each once, those of a shard together if boxes are."""
    is_there = np.broadcast_to(count, begin.shape).all(axis=1)
    count = count if count.ndim == 1 else count[is_there]
    coords, _ = box_rows(begin[is_there], count, np.array(chunk, dtype=np.int64))
    _, first = np.unique(coords, axis=0, return_index=True)
    return coords[np.sort(first)]


class Prefetch:
    """Inner chunks of an array that a thread reads into the cache; made by `Array.prefetch`.

    Experimental: it may change in a minor version (``docs/versions.md``).

    The thread ends with the ``with`` block, or with this object.

    Parameters
    ----------
    array : Array
        The array, with a cache of inner chunks.
    coords : ndarray of int, shape (n, ndim)
        Grid positions of inner chunks over the whole array.

    Examples
    --------
    >>> array = shardcodec.open_array("a.zarr", cache="1MiB")
    >>> with array.prefetch([(0, 0)], (2, 2)) as ahead:
    ...     ahead.wait()
    >>> array.read_boxes([(0, 0)], (2, 2)).shape
    (1, 2, 2)
    """

    def __init__(self, array: ArrayReader, coords: Numbers) -> None:
        self._is_closed = False
        n = max(1, GROUP_NBYTES // (math.prod(array.chunks) * array.dtype.itemsize))
        self._threads = WorkerThreads[None](1, "shardcodec-prefetch").__enter__()
        self._calls = [
            self._threads.submit(_read, array, coords[i : i + n]) for i in range(0, len(coords), n)
        ]

    def wait(self) -> None:
        """Wait until all inner chunks have been read, or `close` was called.

        Raises
        ------
        ShardFormatError, ChecksumError, CodecError, OSError
            An object is damaged or cannot be read.
        """
        for call in self._calls:
            while not call.is_done and not self._is_closed:
                self._threads.next_finished(_WAIT_SECONDS)
            if call.is_done:
                call.result()

    def close(self) -> None:
        """Read no more; return when the thread has ended. Reads do not need what was left out."""
        self._is_closed = True
        self._threads.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _read(array: ArrayReader, coords: Numbers) -> None:
    """Read one element of each inner chunk.

    Of a local file, a second read keeps those that are decoded block by block at first, as those of Blosc.
    """
    for _ in range(2 if array._folder.store.is_near else 1):
        array.read_boxes(coords * np.array(array.chunks), (1,) * array.ndim)
