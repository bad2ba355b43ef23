# process_statistics.py - `shardcodec.stats`: the counters of this process, and its arrays
# SPDX-License-Identifier: MIT
"""`shardcodec.stats` adds the arrays of this process to the counters of `statistics`.

The counters are below all surfaces and know nothing of zarr's arrays; the list of arrays is made when it is asked for.
"""

from __future__ import annotations

from typing import Any

from .. import statistics
from .open_arrays import open_arrays

__all__ = ["ProcessStatistics", "stats"]


class ProcessStatistics:
    """Counters and arrays of this process; call the object to read them."""

    def __call__(self) -> dict[str, Any]:
        """Return the counters since the process began, or since `reset`, and the arrays that exist now.

        Returns
        -------
        dict
            A copy; later work does not change it. ``arrays``: the result of `open_arrays`, which says for each zarr array of
            this process which code does its work. The other entries are those of `statistics.Statistics.__call__`.
        """
        return statistics.stats() | {"arrays": open_arrays()}

    def reset(self) -> None:
        """Set all counters to zero; the estimates of ``io_latency`` stay."""
        statistics.stats.reset()

    def __repr__(self) -> str:
        return f"<shardcodec.stats: call it for the counters>\n{open_arrays()!r}"


stats = ProcessStatistics()
