# shard_record.py - what is known of one finished shard
# SPDX-License-Identifier: MIT
"""`ShardRecord`: one line of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from ..report import Record
from .destination import ShardState
from .source import Ints

__all__ = ["ShardFailure", "ShardRecord"]


@dataclass(frozen=True)
class ShardRecord(Record):
    """One finished shard.

    Attributes
    ----------
    array : str
        Path of the array.
    coords : tuple of int
        Position in the grid of shards.
    nbytes, state, index_crc
        As in `ShardState`.
    source : str or None
        State of the source objects when they were read; None if the source does not tell it.
    n_moved : int
        Inner chunks that were moved without decoding.
    read_nbytes : int
        Encoded bytes that were moved, or decoded bytes that were read.
    """

    array: str
    coords: Ints
    nbytes: int
    state: str | None
    index_crc: int | None
    source: str | None = None
    n_moved: int = 0
    read_nbytes: int = 0

    @property
    def stored(self) -> ShardState:
        """What identifies the stored shard."""
        return ShardState(self.nbytes, self.state, self.index_crc)


@dataclass(frozen=True)
class ShardFailure(Record):
    """A shard that could not be written, or that was not stored as it was written.

    Attributes
    ----------
    array : str
        Path of the array.
    shard : str
        Path or key of the new shard.
    detail : str
        Why.
    """

    array: str
    shard: str
    detail: str
