# shard_order.py - the order in which a training reads boxes of an array
# SPDX-License-Identifier: MIT
"""`ShardOrder`: a random order of boxes that visits one shard after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arguments import checked
from .split_by_object import as_coordinates, check_boxes

__all__ = ["ShardOrder"]


class ShardOrder:
    """A random order of boxes in which those of one shard lie close together: a sampler for training.

    Experimental: it may change in a minor version (``docs/versions.md``).

    The shards are visited in random order, `window` of them at a time, and the boxes of these shards are mixed. So few shards
    are in use at a time, and a shard is used in one part of an epoch only. A box belongs to the shard of its first element.

    Iterating gives the numbers of boxes, or lists of them with `batch`: it is a `sampler` or a `batch_sampler` of PyTorch's
    ``DataLoader``, which needs no other code of PyTorch. The order depends on the arguments and the epoch alone, so it is the
    same in all processes.

    Parameters
    ----------
    array : Array, zarr.Array
        The array, or another object with its attributes `shape`, `shards` and `chunks`; an array without shards is visited chunk
        by chunk.
    starts : array_like of int, shape (n, ndim)
        First element of each box, as for `Array.read_boxes`.
    window : int
        Number of shards whose boxes are mixed. More of them are closer to a shuffle of all boxes.
    batch : int, optional
        Number of boxes in a list; the last list may be shorter. Default: no lists.
    seed : int
        Another seed gives another order.
    rank, world : int
        Number of this process and number of processes that share an epoch. Each has other shards and the same number of boxes; a
        shard at the border between two processes has boxes of both. If n is not a multiple of `world`, up to ``world - 1``
        boxes are repeated, as with PyTorch's ``DistributedSampler``.

    Raises
    ------
    IndexError
        A box begins outside the array.
    TypeError, ValueError
        An argument has another type, or is out of range.

    Examples
    --------
    >>> array = shardcodec.create_array({}, shape=(8, 8), shards=(4, 8), chunks=(2, 2), dtype="f4")
    >>> starts = [(row, 0) for row in range(8)]
    >>> order = shardcodec.ShardOrder(array, starts, window=1, batch=2, seed=7)
    >>> for epoch in range(2):
    ...     order.set_epoch(epoch)
    ...     print(list(order))
    [[1, 2], [0, 3], [5, 4], [7, 6]]
    [[1, 0], [3, 2], [5, 6], [7, 4]]
    >>> order.set_epoch(1, start=3)
    >>> len(order), list(order)
    (1, [[7, 4]])
    """

    @checked
    def __init__(
        self,
        array: Any,
        starts: Any,
        *,
        window: int = 8,
        batch: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        at_least_one = {"window": window, "batch": 1 if batch is None else batch, "world": world}
        for name, value in at_least_one.items():
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not 0 <= rank < world:
            raise ValueError(f"rank: expected 0 to {world - 1}, because world is {world}, got {rank}")
        if seed < 0:
            raise ValueError(f"seed: expected a number that is not negative, got {seed}")
        self._window, self._batch, self._seed, self._rank, self._world = window, batch, seed, rank, world
        self._shards = _numbers_of_shards(array, starts)
        self._epoch = self._start = 0

    @checked
    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of an epoch, and where to begin.

        Parameters
        ----------
        epoch : int
            Number of the epoch. Iterating twice without this call gives the same order twice.
        start : int
            How many boxes, or lists of them, are left out, because they were used before an interruption.

        Raises
        ------
        ValueError
            A number is negative, or the epoch is shorter.
        """
        n = len(self) + self._start
        if epoch < 0:
            raise ValueError(f"epoch: expected a number that is not negative, got {epoch}")
        if not 0 <= start <= n:
            raise ValueError(f"start: expected 0 to {n}, the length of an epoch, got {start}")
        self._epoch, self._start = epoch, start

    def __len__(self) -> int:
        return -(-self._n_boxes // (self._batch or 1)) - self._start

    @property
    def _n_boxes(self) -> int:
        """Number of boxes of this process in an epoch, the same for all processes."""
        return -(-len(self._shards) // self._world)

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        if self._batch is None:
            return iter(order[self._start :].tolist())
        firsts = range(self._start * self._batch, len(order), self._batch)
        return (order[first : first + self._batch].tolist() for first in firsts)

    def _order(self) -> np.ndarray[Any, Any]:
        """Return the numbers of the boxes of this process in the order of the epoch."""
        rng = np.random.default_rng((self._seed, self._epoch))
        n = len(self._shards)
        places = rng.permutation(self._shards.max(initial=-1) + 1)[self._shards]
        shuffled = rng.permutation(n)
        by_shard = shuffled[np.argsort(places[shuffled], kind="stable")]
        first = self._rank * n // self._world
        own = by_shard[first : first + self._n_boxes]
        windows = (places[own] - places[own[:1]]) // self._window
        mixed = rng.permutation(len(own))
        return own[mixed[np.argsort(windows[mixed], kind="stable")]]


def _numbers_of_shards(array: Any, starts: Any) -> np.ndarray[Any, Any]:
    """Return the number of the shard of each box, among the shards in which boxes begin."""
    shape = tuple(array.shape)
    at = as_coordinates(starts, len(shape), "starts")
    check_boxes(at, np.zeros(len(shape), dtype=np.int64), shape)
    extents = np.array(array.shards or array.chunks, dtype=np.int64)
    grid = np.array(shape, dtype=np.int64) // extents + 1  # a box without elements may begin at the end
    _, numbers = np.unique(np.ravel_multi_index(tuple((at // extents).T), tuple(grid)), return_inverse=True)
    return numbers
