# renamed_store.py - stores that show objects of another store under other names
# SPDX-License-Identifier: MIT
"""Views of a store.

A view may make up metadata as it likes, but its chunks are objects of the store behind, byte for byte. So a request for
chunks goes to that store, under their names there: what is a file or a buffer for the engine stays one, and locks and
caches know an object by one name whichever way it is reached.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ..compat import Store, StorePath
from .store import check_store_writable

__all__ = ["RenamedStore", "original", "originals"]


class RenamedStore(Store):
    """A store whose chunks have other names in the store behind it.

    Attributes
    ----------
    base : Store
        The store behind.
    """

    base: Store

    @abstractmethod
    def located(self, key: str) -> str | None:
        """Return the name that a chunk has in the store behind; None for what is no chunk."""


def original(target: StorePath) -> StorePath:
    """Return the place of an object in the store that really has it."""
    while isinstance(target.store, RenamedStore):
        key = target.store.located(target.path)
        target = StorePath(target.store.base, target.path if key is None else key)
    return target


def originals(batch: Sequence[Any], *, writing: bool = False) -> list[Any]:
    """Return a batch of zarr's with every object where it really is.

    Raises
    ------
    ValueError
        Something is to be written, and the view is read-only: the store behind need not be.
    """
    if not batch or not isinstance(getattr(batch[0][0], "store", None), RenamedStore):
        return batch if isinstance(batch, list) else list(batch)
    if writing:
        check_store_writable(batch[0][0].store)
    return [(original(target), *rest) for target, *rest in batch]
