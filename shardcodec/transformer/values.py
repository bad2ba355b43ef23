# values.py - what is wanted of chunks, and taken out of an opened shard
# SPDX-License-Identifier: MIT
"""What all ways of reading share."""

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
    """What is wanted of one chunk.

    Attributes
    ----------
    number : int
        Place in the result.
    key : str
        Of the chunk.
    position : int
        In the index.
    request
        Part of it, see `byte_ranges`.
    """

    number: int
    key: str
    position: int
    request: Any


def explained(error: ShardError, chain: Chain, shard: str, key: str | None = None) -> ShardError:
    """Say in keys what the engine says in numbers; what says so already stays."""
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
    """A `ShardError` that is about one chunk."""

    def __init__(self, error: ShardError, key: str | None) -> None:
        self.error, self.key = error, key


def about(error: ShardError, wanted: Sequence[Wanted]) -> Bad:
    """Name the chunk that an error is about, if it is wanted."""
    return Bad(error, next((part.key for part in wanted if part.position == error.entry), None))


def read_opened(opened: Opened, wanted: Sequence[Wanted]) -> dict[int, Any]:
    """Read chunks, or parts of them, and close the shard; nothing for chunks that do not exist.

    Raises
    ------
    ShardError
        Bytes could not be read.
    Bad
        The entry of a chunk cannot be true: of one that is wanted, or of any where nothing else tells that one is wrong.
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
