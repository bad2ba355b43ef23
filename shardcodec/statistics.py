# statistics.py - counters of reads, writes and fallbacks of this process
# SPDX-License-Identifier: MIT
"""`shardcodec.stats`: counters that are always on and cost a few additions per call.

The engine counts its own work; the surfaces add the requests that they make through a store, and each fallback to zarr's
own pipeline.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import Any

from . import native

__all__ = ["Statistics", "stats"]

logger = logging.getLogger("shardcodec")

# Reasons contain names and shapes of the user's data; kinds beyond this number are counted together.
MAX_KINDS = 100


class Statistics:
    """Counters of this process; see `__call__`."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._fallbacks: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._told: set[str] = set()

    def __call__(self) -> dict[str, Any]:
        """Return the counters since the process began, or since `reset`.

        Returns
        -------
        dict
            ``requests``: reads of ranges, of files or from stores; ``bytes_fetched`` by them; ``bytes_used``, encoded
            bytes that were decoded (what else was fetched are indexes and gaps; buffers in memory are used without
            being fetched); ``opens`` of files for reading; inner chunks ``chunks_decoded``, ``chunks_filled`` because
            they were missing, and ``chunks_encoded``; ``bytes_written`` to files and buffers; ``index_hits`` and
            ``index_misses`` of index caches; ``file_hits``, opens that a cache of open files spared; ``fallbacks``:
            for each reason how often zarr's own pipeline did the work; ``strategy_refused``: for each write strategy and
            file system, such as ``"append on nfs4"``, how often an update did not use the strategy there.
        """
        done = native.load().totals()
        done["requests"] = done.pop("reads")
        done["bytes_fetched"] = done.pop("bytes_read")
        with self._mutex:
            done["fallbacks"] = dict(self._fallbacks)
            done["strategy_refused"] = dict(self._refused)
        return done  # type: ignore[no-any-return]

    def reset(self) -> None:
        """Set all counters to zero."""
        native.load().totals_reset()
        with self._mutex:
            self._fallbacks.clear()
            self._refused.clear()

    def fallback(self, reason: str) -> None:
        """Count a fallback to zarr's own pipeline, and log each reason once."""
        with self._mutex:
            if reason not in self._fallbacks and len(self._fallbacks) >= MAX_KINDS:
                reason = "other reasons"
            self._fallbacks[reason] += 1
            if reason in self._told or len(self._told) > 2 * MAX_KINDS:
                return
            self._told.add(reason)
        logger.info("left to zarr's own pipeline: %s", reason)

    def refused(self, strategy: str, file_system: str) -> None:
        """Count an update without a write strategy that is not proven safe on its file system."""
        with self._mutex:
            self._refused[f"{strategy} on {file_system}"] += 1

    def __repr__(self) -> str:
        return "<shardcodec.stats: call it>"

    def _begin_child(self) -> None:
        """Reset the counters in a forked child, and the mutex, which threads of the parent may have held."""
        self._mutex = threading.Lock()
        self._fallbacks = Counter()
        self._refused = Counter()
        if (module := native.loaded()) is not None:
            module.totals_reset()


stats = Statistics()

os.register_at_fork(after_in_child=stats._begin_child)
