# __init__.py - the public names of the storage transformer
# SPDX-License-Identifier: MIT
"""The sharding storage transformer of the Zarr v3 draft of 2022: a store of chunks over a zarr store of shards.

`open_2022` and `convert_2022` read and convert arrays that zarr-python 2 wrote with its own transformer.
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
