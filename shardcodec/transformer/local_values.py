# local_values.py - values from shards in local files and in memory
# SPDX-License-Identifier: MIT
"""Read shards that the engine opens itself. A shard stays open while it is read, so index and chunks are of one state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..access.placement import ABSENT
from ..access.read import ATTEMPTS, is_changing
from ..errors import ShardError
from ..storage.waiting import retried
from .nested_shard import Entries, OpenedShard
from .values import ChunkRequest, read_and_close, with_keys

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["look_native", "read_native", "sizes_native"]


# Functions from the key of a shard to the opened shard, and to the path of its file (None: in memory).
Open = Callable[[str], OpenedShard]
FileOf = Callable[[str], str | None]


def read_native(
    chain: Chain, shards: Mapping[str, Sequence[ChunkRequest]], open_shard: Open, file_of: FileOf
) -> dict[int, Any]:
    """Read chunks as `read.read`, from shards that the engine opens itself."""
    found: dict[int, Any] = {}
    for shard, wanted in shards.items():
        work = functools.partial(_read, open_shard, shard, wanted)
        try:
            found.update(_retry_while_changing(file_of(shard), work))
        except ShardError as error:
            raise with_keys(error, chain, shard, wanted) from None
    return found


def sizes_native(chain: Chain, shards: Sequence[str], open_shard: Open, file_of: FileOf) -> Entries:
    """Return sizes of chunks as `read.read_sizes`, from shards that the engine opens itself."""

    def look(opened: OpenedShard) -> Any:
        return ABSENT if opened.missing else opened.entries(check=True)[:, 1]

    sizes = np.empty((len(shards), chain.n_chunks), dtype=np.uint64)
    for shard, out in zip(shards, sizes, strict=True):
        out[:] = look_native(chain, shard, open_shard, file_of, look)
    return sizes


def look_native(
    chain: Chain, shard: str, open_shard: Open, file_of: FileOf, look: Callable[[OpenedShard], Any]
) -> Any:
    """Call `look` with the opened shard and return its result; retry while a writer appends to its file."""

    def work() -> Any:
        opened = open_shard(shard)
        try:
            return look(opened)
        finally:
            opened.close()

    try:
        return _retry_while_changing(file_of(shard), work)
    except ShardError as error:
        raise with_keys(error, chain, shard) from None


def _read(open_shard: Open, shard: str, wanted: Sequence[ChunkRequest]) -> dict[int, Any]:
    return read_and_close(open_shard(shard), wanted)


def _retry_while_changing(path: str | None, work: Callable[[], Any]) -> Any:
    """Call `work`; retry after an error if the file of the shard has just been changed."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return retried(work)
        except ShardError:
            if attempt == ATTEMPTS or path is None or not is_changing(path):
                raise
    raise AssertionError
