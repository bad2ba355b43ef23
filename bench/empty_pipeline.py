"""A codec pipeline that leaves the output as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zarr.registry import register_pipeline

from shardcodec import ShardCodecPipeline


class EmptyPipeline(ShardCodecPipeline):
    """Answers a read at once, so the time that remains is that of zarr.Array itself."""

    async def read(self, batch_info: Iterable[Any], out: Any, drop_axes: tuple[int, ...] = ()) -> Any:
        """Do nothing."""
        return ({"status": "present"},) * len(list(batch_info))


register_pipeline(EmptyPipeline)
