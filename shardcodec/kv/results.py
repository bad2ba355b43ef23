# results.py - results and generations of the key-value store
# SPDX-License-Identifier: MIT
"""Results of a key-value store, and generations with a meaning of their own."""

from __future__ import annotations

from typing import NamedTuple

from ..access.shard_object import NO_OBJECT, UNKNOWN
from ..errors import ConflictError

__all__ = ["FAILED", "NO_VALUE", "PENDING", "UNNAMED", "ConflictError", "ReadResult", "Stamp"]

# Generation of a shard that does not exist. As a condition of a write: the entry must be absent.
NO_VALUE = NO_OBJECT
# Generation in the stamp of a write that changed nothing because its condition did not hold.
FAILED = b""
# Generation of every existing shard in a store that does not identify states of its objects.
UNNAMED = UNKNOWN
# Generation of a buffered write in an open transaction; no stored state has it.
PENDING = b"\x06"


class Stamp(NamedTuple):
    """A state of the shard, and the time at which the shard was in that state.

    Attributes
    ----------
    generation : bytes
        Identifies the state of the whole shard. `NO_VALUE`: the shard does not exist. `UNNAMED`: the store does not
        identify states of its objects. `FAILED` (empty): the condition of a write did not hold. `PENDING`: a buffered
        write of a transaction.
    time : float
        Seconds since the epoch.
    """

    generation: bytes
    time: float


class ReadResult(NamedTuple):
    """The result of a read.

    Attributes
    ----------
    state : {"value", "missing", "unspecified"}
        ``"unspecified"``: the shard still has the generation that the caller gave as ``if_not_equal``.
    value : bytes
        The value; empty unless `state` is ``"value"``.
    stamp : Stamp
        State of the shard from which the value was read.
    """

    state: str
    value: bytes
    stamp: Stamp
