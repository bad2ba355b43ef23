# values.py - requests for chunks, and their values from an opened shard
# SPDX-License-Identifier: MIT
"""Common parts of all read paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..access.inner_chunks import coordinates
from ..errors import ShardError
from .byte_ranges import cut
from .nested_shard import Opened

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Bad", "Wanted", "explained", "read_opened"]


class Wanted(NamedTuple):
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


def explained(error: ShardError, chain: Chain, shard: str, key: str | None = None) -> ShardError:
    """Return an error of the engine with the keys of shard and chunk in place of numbers."""
    if isinstance(error.shard, str):
        return error
    context: dict[str, Any] = {"shard": shard}
    if error.entry is not None and error.entry < chain.n_chunks:
        context["chunk_coords"] = coordinates(error.entry, chain.grid_shape)
    if key is not None:
        context["chunk_key"] = key
    error.shard = None
    if key is not None:
        error = type(error)(f"chunk {key!r}: {error.message}", **error.context)
    return error.with_context(**context)


class Bad(Exception):
    """A `ShardError` of one chunk, with the key of that chunk."""

    def __init__(self, error: ShardError, key: str | None) -> None:
        self.error, self.key = error, key


def about(error: ShardError, wanted: Sequence[Wanted]) -> Bad:
    """Return the error as `Bad`, with the key of its chunk if that chunk was requested."""
    return Bad(error, next((part.key for part in wanted if part.position == error.entry), None))


def read_opened(opened: Opened, wanted: Sequence[Wanted]) -> dict[int, Any]:
    """Read chunks, or parts of them, and close the shard.

    Returns
    -------
    dict
        From `Wanted.number` to bytes, without absent chunks.

    Raises
    ------
    ShardError
        Bytes could not be read.
    Bad
        The entry of a requested chunk is wrong, or any entry is wrong and the chunks have no checksums.
    """
    found: dict[int, Any] = {}
    try:
        try:
            opened.check()
        except ShardError as error:
            raise about(error, wanted) from None
        for part in [] if opened.missing else wanted:
            try:
                entry = opened.entry(part.position)
            except ShardError as error:
                error.entry = part.position
                raise Bad(error, part.key) from None
            if entry is not None:
                start, nbytes = cut(part.request, entry[1])
                found[part.number] = opened.range(entry[0] + start, nbytes) if nbytes else b""
    finally:
        opened.close()
    return found
