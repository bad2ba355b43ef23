# nested_shard.py - a shard that is a chunk of another shard, held open as one
# SPDX-License-Identifier: MIT
"""Shards in shards, in one file.

Index and chunks have to come from one state of the file that all of them lie in, and that is only known where the file is held
open. So a shard within a shard is a window on the outer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import native
from ..access.index_check import check_index
from ..access.placement import ABSENT
from ..access.read import index_too_short
from ..options import Options

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Entries", "Opened", "Window", "check_entries"]

Entries = np.ndarray[Any, np.dtype[np.uint64]]


class Opened(Protocol):
    """A shard, or nothing, as it was found; see `access.shard_object.OpenObject`."""

    @property
    def missing(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def check(self) -> None: ...

    def entries(self, *, check: bool) -> Entries: ...

    def entry(self, position: int) -> tuple[int, int] | None: ...

    def range(self, offset: int, nbytes: int) -> bytes: ...

    def close(self) -> None: ...


def check_entries(chain: Chain, entries: Entries, nbytes: int, options: Options) -> None:
    """Check some entries of the index of an object of that size.

    Raises
    ------
    ShardFormatError
        One cannot be true; ``.entry`` is which of those given.
    """
    n = int(chain.index_nbytes)
    first = 0 if chain.index_at_start else max(0, nbytes - n)
    native.load().index_check(entries, nbytes, first, n, allow_in_index=options.allow_in_index)


class Window:
    """A shard that is a chunk of an opened one, which is closed with it.

    Parameters
    ----------
    chain
        Compiled chain of the inner shard.
    outer : Opened
    place : tuple of int or None
        Offset and size in the outer one; None where it is not there.
    key : str
        How errors name it.
    options : Options
    """

    def __init__(
        self, chain: Chain, outer: Opened, place: tuple[int, int] | None, key: str, options: Options
    ) -> None:
        self._chain = chain
        self._outer = outer
        self._options = options
        self.missing = place is None
        self._first, self.nbytes = place or (0, 0)
        if self.missing:
            return
        n = int(chain.index_nbytes)
        if self.nbytes < n:  # before memory is taken for what the user promises
            raise index_too_short(key, self.nbytes, n)
        self._entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        stored = self.range(0 if chain.index_at_start else self.nbytes - n, n)
        native.load().load_index(chain, stored, self._entries)
        check_index(chain, self._entries, self.nbytes, options)

    def check(self) -> None:
        """Nothing: that was done when it was opened."""

    def entries(self, *, check: bool) -> Entries:
        if check:
            check_entries(self._chain, self._entries, self.nbytes, self._options)
        return self._entries

    def entry(self, position: int) -> tuple[int, int] | None:
        own = self._entries[position : position + 1]
        check_entries(self._chain, own, self.nbytes, self._options)
        offset, nbytes = own[0].tolist()
        return None if offset == ABSENT else (offset, nbytes)

    def range(self, offset: int, nbytes: int) -> bytes:
        return self._outer.range(self._first + offset, nbytes)

    def close(self) -> None:
        self._outer.close()
