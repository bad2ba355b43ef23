# renamed_store.py - views that show objects of another store under other names
# SPDX-License-Identifier: MIT
"""`RenamedStore`: a store that shows the objects of another one under other names; `original` leads from it to them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ..compat import Store as AnyStore
from ..compat import StorePath
from .store import check_store_writable

__all__ = ["RenamedStore", "original", "originals"]


class RenamedStore(AnyStore):
    """A view of a store, with metadata of the view, whose chunks have other names in the store behind it, `base`.

    Requests for chunks go to the store behind, so the engine still opens files and buffers, and locks and caches know an object
    by one name.
    """

    base: AnyStore

    @abstractmethod
    def located(self, key: str) -> str | None:
        """Return the name of a chunk in the store behind; None if the key is not that of a chunk."""


def original(target: StorePath) -> StorePath:
    """Return the place of an object in the store behind all views."""
    while isinstance(target.store, RenamedStore):
        key = target.store.located(target.path)
        target = StorePath(target.store.base, target.path if key is None else key)
    return target


def originals(batch: Sequence[Any], *, writing: bool = False) -> list[Any]:
    """Return a batch of zarr with every object in the store behind all views.

    ValueError: the batch is for a write, and the view is read-only. The store behind may be writable.
    """
    if not batch or not isinstance(getattr(batch[0][0], "store", None), RenamedStore):
        return batch if isinstance(batch, list) else list(batch)
    if writing:
        check_store_writable(batch[0][0].store)
    return [(original(target), *rest) for target, *rest in batch]
