# __init__.py - the public names of the storage transformer
# SPDX-License-Identifier: MIT
"""Shards below, chunks above: the sharding storage transformer of the Zarr v3 draft of 2022, over any zarr store.

And arrays that zarr-python 2 wrote with its own: `open_2022`, `convert_2022`.
"""

from __future__ import annotations

from .keys import KeyLayout
from .legacy_2022.convert import convert_2022
from .legacy_2022.open import open_2022
from .mapping import ChunkMapping
from .store import INDEX_2022, ShardingStorageTransformer

__all__ = [
    "INDEX_2022",
    "ChunkMapping",
    "KeyLayout",
    "ShardingStorageTransformer",
    "convert_2022",
    "open_2022",
]
