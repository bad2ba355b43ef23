# statistics.py - counters of reads, writes and fallbacks of this process
# SPDX-License-Identifier: MIT
"""Counters that are always on; they cost a few additions per call. `shardcodec.stats` shows them, with the arrays of the process.

The engine counts its own work. The surfaces add their requests to stores and each fallback to zarr's own pipeline.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import Any

from . import native
from .mounts import names_of_devices

__all__ = ["Statistics", "stats"]

logger: logging.Logger = logging.getLogger("shardcodec")

# Reasons contain names and shapes of the user's data, so there may be many. Beyond this number they are counted together.
MAX_KINDS = 100


class Statistics:
    """Counters of this process; call the object to read them."""

    def __init__(self) -> None:
        # No mutex: a signal handler would wait for ever for what it has interrupted. `Counter.update` counts in one call of C.
        self._fallbacks: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._logged: set[str] = set()
        self._lock_scopes: dict[str, str] = {}
        self._disk: Counter[str] = Counter()

    def __call__(self) -> dict[str, Any]:
        """Return the counters since the process began, or since `reset`.

        Returns
        -------
        dict
            A copy; later work does not change it. ``requests``: reads of ranges from files and stores.
            ``bytes_fetched``: bytes of these ranges. ``bytes_used``: encoded bytes of the inner chunks that were read.
            ``bytes_fetched`` also counts indexes, gaps, and old inner chunks that a write changes in part;
            ``bytes_used`` also counts shards in memory. ``opens``: files opened for reading. ``chunks_decoded``,
            ``chunks_filled`` (absent ones), ``chunks_encoded``: inner chunks. ``bytes_written``: to files and buffers.
            ``index_hits``, ``index_misses``: lookups in index caches. ``file_hits``: opens that a cache of open files
            made unnecessary. ``chunk_hits``, ``chunk_misses``, ``chunk_evictions``: of decoded inner chunks (option ``cache``); ``chunk_bytes``: bytes
            of those that are cached now. ``disk_hits``, ``disk_misses``: inner chunks that were read from ``cache_dir``, and those that
            were requested and put there; ``disk_bytes_read``, ``disk_bytes_written``: their encoded bytes. ``disk_errors``:
            calls of this cache that failed, as on a full disk; the reads went on without it. ``fallbacks``: for each reason the number of fallbacks to zarr's own pipeline.
            ``reads_at_depth``: of the requests, those to files while more threads read than decode.
            ``io_latency``: for each file system, named by its mount point, the estimated cost of a call in seconds. The name
            is followed by the number of the device if several are mounted on one folder, as ``"/data (0:52)"``.
            ``strategy_refused``: for each write strategy and file system, such as ``"append on nfs4"``, the number of
            updates that did not use the strategy there. ``lock_scopes``: for each mount on which this process has locked a
            shard, such as ``"/data (nfs4)"``, how far its locks reach: ``"cluster"`` (other nodes), ``"node"``,
            ``"none"`` or ``"unknown"``. `reset` keeps these entries.
        """
        done = native.load().totals()
        done["requests"] = done.pop("reads")
        done["bytes_fetched"] = done.pop("bytes_read")
        done["reads_at_depth"] = done.pop("deep_reads")
        done["chunk_bytes"] = native.load().chunks_total()
        costs = native.load().latencies()
        done["io_latency"] = {name: costs[device] for device, name in names_of_devices(costs).items()}
        names = ("hits", "misses", "bytes_read", "bytes_written", "errors")
        done |= {f"disk_{name}": self._disk[name] + done.get(f"disk_{name}", 0) for name in names}
        done["fallbacks"] = dict(self._fallbacks)
        done["strategy_refused"] = dict(self._refused)
        done["lock_scopes"] = dict(self._lock_scopes)
        return done  # type: ignore[no-any-return]

    def reset(self) -> None:
        """Set all counters to zero; the estimates of ``io_latency`` stay."""
        native.load().totals_reset()
        self._fallbacks.clear()
        self._refused.clear()
        self._disk.clear()

    def disk_cache(self, **counts: int) -> None:
        """Count work of the cache on a local disk.

        Parameters
        ----------
        **counts : int
            See the names with ``disk_`` in `__call__`.
        """
        self._disk.update(counts)

    def fallback(self, reason: str) -> None:
        """Count a fallback to zarr's own pipeline, and log each reason once.

        Parameters
        ----------
        reason : str
            Why zarr's own pipeline does the work.
        """
        if reason not in self._fallbacks and len(self._fallbacks) >= MAX_KINDS:
            reason = "other reasons"
        self._fallbacks.update((reason,))
        if reason in self._logged or len(self._logged) > 2 * MAX_KINDS:
            return
        self._logged.add(reason)
        logger.info("left to zarr's own pipeline: %s", reason)

    def refused(self, strategy: str, file_system: str) -> None:
        """Count an update that did not use a write strategy, because it is not proven safe on the file system.

        Parameters
        ----------
        strategy : str
            The write strategy.
        file_system : str
            Type of the file system.
        """
        self._refused.update((f"{strategy} on {file_system}",))

    def lock_scope(self, point: str, file_system: str, scope: str) -> None:
        """Note how far locks reach on a mount.

        Parameters
        ----------
        point, file_system : str
            Folder and type of the mount.
        scope : str
            See ``lock_scopes`` in `__call__`.
        """
        self._lock_scopes[f"{point} ({file_system})"] = scope

    def __repr__(self) -> str:
        return "<shardcodec.stats: call it>"

    def _begin_child(self) -> None:
        """Reset the counters in a forked child."""
        self._fallbacks = Counter()
        self._refused = Counter()
        self._disk = Counter()
        if (module := native.loaded()) is not None:
            module.totals_reset()


stats: Statistics = Statistics()

os.register_at_fork(after_in_child=stats._begin_child)
