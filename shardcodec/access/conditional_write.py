# conditional_write.py - partial writes to stores that several writers share
# SPDX-License-Identifier: MIT
"""Updates under a condition.

An object store has no locks, but it can refuse to exchange an object that is not in the state any more in which it was
read. So an update reads the object, makes the new one, and stores it under that condition; when somebody else was
faster, it begins anew with what is there now. Of all who try at a time one succeeds, so the others wait a random while
before they try again, longer each time. Nothing is ever lost, and nobody waits for a writer that has died.

There is no deleting under a condition. An update that leaves nothing but fill value therefore stores a shard without
inner chunks instead of deleting it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from ..errors import LockError
from ..options import Options
from ..storage.requests import Answer, Changed, ConditionalRemote
from ..storage.tasks import all_of, to_its_end
from .read import INLINE_NBYTES, leaves_the_thread
from .write import WriteItem, write

__all__ = ["exchange", "update"]

# Seconds until the first new try, on average half of it; doubled each time, up to the most.
FIRST_WAIT = 0.01
LONGEST_WAIT = 1.0

Renew = Callable[[Sequence[int], Sequence[Answer | None]], Awaitable[list[Any]]]


async def update(
    items: Sequence[WriteItem],
    value: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    remote: ConditionalRemote,
    n_requests: int,
    *,
    write_empty: bool = False,
) -> None:
    """Write boxes of an array into objects of a store, each as if nobody else wrote meanwhile.

    Parameters
    ----------
    items : sequence of WriteItem
        Without paths and old objects; their keys are those of the store. Each object once.
    value, axes, write_empty
        As for `write`.
    remote : ConditionalRemote
    n_requests : int
        Requests at a time.

    Raises
    ------
    LockError
        For ``options.lock_timeout`` seconds others have been faster every time. Other items may have been written.
    ShardFormatError, ChecksumError, CodecError
        An old object is damaged; it is as it was.
    Exception
        Whatever the store raises.
    """

    async def renew(chosen: Sequence[int], olds: Sequence[Answer | None]) -> list[Any]:
        return await _renewed([items[i] for i in chosen], olds, value, axes, options, write_empty)

    await exchange([item.key for item in items], renew, options, remote, n_requests)


async def exchange(
    keys: Sequence[str], renew: Renew, options: Options, remote: ConditionalRemote, n_requests: int
) -> None:
    """Exchange objects of a store for new ones that are made from them, each as if nobody else wrote meanwhile.

    Parameters
    ----------
    keys : sequence of str
        Each object once.
    renew : callable
        Coroutine function: from positions of keys and what is stored there to new objects; None where there was none
        and shall be none. It may be asked several times.
    remote, n_requests
        As for `update`.

    Raises
    ------
    LockError
        As `update`.
    """
    limit = asyncio.Semaphore(n_requests)

    async def get(i: int) -> Answer | None:
        async with limit:
            return await remote.get(keys[i])

    async def put(i: int, old: Answer | None, new: Any) -> bool:
        if new is None:  # there is nothing, and nothing to store
            return True
        async with limit:
            try:
                await remote.put(keys[i], new, old)
            except Changed:
                return False
        return True

    left = list(range(len(keys)))
    deadline = time.monotonic() + options.lock_timeout
    n_tries = 0
    while left:
        n_tries += 1
        olds = await all_of(get(i) for i in left)
        news = await renew(left, olds)
        done = await all_of(put(*each) for each in zip(left, olds, news, strict=True))
        olds = news = []  # before others are fetched
        left = [i for i, is_done in zip(left, done, strict=True) if not is_done]
        if left and time.monotonic() >= deadline:
            key = keys[left[0]]
            raise LockError(
                f"shard {key!r}: others changed it during each of {n_tries} attempts to update it "
                f"within {options.lock_timeout:g} s",
                shard=key,
                n_tries=n_tries,
            )
        if left:
            await asyncio.sleep(random.uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(n_tries, 10))))


async def _renewed(
    items: Sequence[WriteItem],
    olds: Sequence[Answer | None],
    value: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    write_empty: bool,
) -> list[Any]:
    """Make the new objects; None where there was none and would be nothing in it."""
    work = [
        item._replace(old=None if old is None else old.data) for item, old in zip(items, olds, strict=True)
    ]

    def run() -> list[Any]:
        news = write(work, value, axes, options, write_empty=write_empty)
        emptied = [i for i, new in enumerate(news) if new is None and work[i].old is not None]
        again = write([work[i] for i in emptied], value, axes, options, keep_empty=True)
        for i, new in zip(emptied, again, strict=True):
            news[i] = new
        return news

    nbytes = sum(math.prod(item.chain.shape) * int(item.chain.itemsize) for item in items)
    if nbytes <= INLINE_NBYTES and not any(leaves_the_thread(item.chain) for item in items):
        return run()
    return await to_its_end(asyncio.to_thread(run))
