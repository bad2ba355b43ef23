# results.py - what the store answers
# SPDX-License-Identifier: MIT
"""Answers of a key-value store."""

from __future__ import annotations

from typing import NamedTuple

from ..access.shard_object import NO_OBJECT, UNKNOWN
from ..errors import ConflictError

__all__ = ["FAILED", "NO_VALUE", "PENDING", "UNNAMED", "ConflictError", "ReadResult", "Stamp"]

# Generation of what does not exist; as a condition: that there is no such entry.
NO_VALUE = NO_OBJECT
# Generation of the stamp of a write whose condition did not hold, so that nothing was changed.
FAILED = b""
# Generation of all that exists, where the store names no states of its objects.
UNNAMED = UNKNOWN
# Generation of what was written in a transaction that is not committed; no stored state ever has it.
PENDING = b"\x06"


class Stamp(NamedTuple):
    """A state of the shard, and when it was known to be that.

    Attributes
    ----------
    generation : bytes
        Names the state of the whole object; `NO_VALUE` where there is none, `UNNAMED` where the store names no states;
        `FAILED`, which is empty, after a write whose condition did not hold.
    time : float
        Seconds since the epoch.
    """

    generation: bytes
    time: float


class ReadResult(NamedTuple):
    """What was read.

    Attributes
    ----------
    state : {"value", "missing", "unspecified"}
        ``"unspecified"``: the shard still is of the generation that the caller did not want again.
    value : bytes
        Empty unless there is one.
    stamp : Stamp
    """

    state: str
    value: bytes
    stamp: Stamp
