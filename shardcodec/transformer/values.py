# values.py - requests for chunks, and their values from an opened shard
# SPDX-License-Identifier: MIT
"""Common parts of all read paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..access.read import with_key
from ..errors import ShardError
from .byte_ranges import cut
from .nested_shard import OpenedShard

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ChunkRequest", "read_and_close", "with_keys"]


class ChunkRequest(NamedTuple):
    """A request for one chunk.

    Attributes
    ----------
    number : int
        Index of the value in the result.
    key : str
        Key of the chunk.
    position : int
        Position of the chunk in the index of its shard.
    request
        Bytes of the chunk to read, see `byte_ranges`; None for the whole chunk.
    """

    number: int
    key: str
    position: int
    request: Any


def with_keys(error: ShardError, chain: Chain, shard: str, wanted: Sequence[ChunkRequest] = ()) -> ShardError:
    """Return an error of the engine with the key of the shard, and with the key of the chunk if it is in `wanted`.

    An error that concerns an outer shard, or that names its chunk already, is returned unchanged.
    """
    error = with_key(error, chain, shard)
    if error.shard != shard or hasattr(error, "chunk_key"):
        return error  # the error of a shard around this one, or complete
    key = next((part.key for part in wanted if part.position == error.entry), None)
    if key is None:
        return error
    return type(error)(f"chunk {key!r}: {error.message}", **error.context | {"chunk_key": key})


def read_and_close(opened: OpenedShard, wanted: Sequence[ChunkRequest]) -> dict[int, Any]:
    """Read the stored bytes of chunks, or ranges of them, and close the shard, also after an error.

    Parameters
    ----------
    opened : OpenedShard
        The shard, which may be absent.
    wanted : sequence of ChunkRequest
        Chunks of this shard.

    Returns
    -------
    dict
        From `ChunkRequest.number` to bytes, encoded as they are in the shard. An absent chunk has no item.

    Raises
    ------
    ShardError
        Bytes could not be read, or the entry of a requested chunk is wrong. Without checksums of the chunks, a wrong
        entry of any chunk is an error, because the others are doubtful too; the option ``allow_in_index`` permits it.
    """
    found: dict[int, Any] = {}
    try:
        opened.check()
        for part in [] if opened.missing else wanted:
            try:
                entry = opened.entry(part.position)
            except ShardError as error:
                error.entry = part.position
                raise
            if entry is not None:
                start, nbytes = cut(part.request, entry[1])
                found[part.number] = opened.range(entry[0] + start, nbytes) if nbytes else b""
    finally:
        opened.close()
    return found
