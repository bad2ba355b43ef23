# nested_shard.py - a shard that is a chunk of another opened shard
# SPDX-License-Identifier: MIT
"""Nested shards in one file.

Index and chunks must come from one state of the file. Only an open file descriptor guarantees this. So an inner shard
is read through the opened outer shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..access.placement import ABSENT
from ..access.read import index_too_short
from ..access.remote_index import check_entries, checked_entries, decode_index, must_be_sound
from ..options import Options

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Entries", "OpenedShard", "Window"]

Entries = np.ndarray[Any, np.dtype[np.uint64]]


class OpenedShard(Protocol):
    """An opened shard, which may be absent; see `access.opened_shard.OpenObject`."""

    @property
    def missing(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def check(self) -> None: ...

    def entries(self, *, check: bool) -> Entries: ...

    def entry(self, position: int) -> tuple[int, int] | None: ...

    def range(self, offset: int, nbytes: int) -> bytes: ...

    def close(self) -> None: ...


class Window:
    """A shard that is a chunk of an opened shard. `close` closes the outer shard, too.

    Parameters
    ----------
    chain
        Compiled chain of the inner shard.
    outer : OpenedShard
        The outer shard.
    place : tuple of int or None
        Offset and size in the outer shard, in bytes; None if the inner shard is absent.
    key : str
        Key of the inner shard, for errors.
    options : Options
        Options of the read.
    """

    def __init__(
        self, chain: Chain, outer: OpenedShard, place: tuple[int, int] | None, key: str, options: Options
    ) -> None:
        self._chain = chain
        self._outer = outer
        self._options = options
        self.missing = place is None
        self._first, self.nbytes = place or (0, 0)
        if self.missing:
            return
        n = int(chain.index_nbytes)
        if self.nbytes < n:  # before bytes outside of the shard are read
            raise index_too_short(key, self.nbytes, n)
        stored = self.range(0 if chain.index_at_start else self.nbytes - n, n)
        self._entries = decode_index(chain, stored, key)
        if must_be_sound(chain, options):
            check_entries(chain, self._entries, self.nbytes, options)

    def check(self) -> None:
        """Do nothing: the index was checked when the shard was opened."""

    def entries(self, *, check: bool) -> Entries:
        if check:
            check_entries(self._chain, self._entries, self.nbytes, self._options)
        return self._entries

    def entry(self, position: int) -> tuple[int, int] | None:
        own = checked_entries(self._chain, self._entries, [position], self.nbytes, self._options)
        offset, nbytes = own[0].tolist()
        return None if offset == ABSENT else (offset, nbytes)

    def range(self, offset: int, nbytes: int) -> bytes:
        return self._outer.range(self._first + offset, nbytes)

    def close(self) -> None:
        self._outer.close()
