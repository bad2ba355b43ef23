# __init__.py - the public names of the storage transformer
# SPDX-License-Identifier: MIT
"""The sharding storage transformer of the Zarr v3 draft of 2022: a store of chunks over a zarr store of shards.

`open_2022` and `convert_2022` read and convert arrays that zarr-python 2 wrote with its own transformer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .keys import KeyLayout
from .legacy_2022.open import open_2022
from .mapping import ChunkMapping
from .store import ShardingStorageTransformer

__all__ = [
    "ChunkMapping",
    "KeyLayout",
    "ShardingStorageTransformer",
    "convert_2022",
    "open_2022",
]

if TYPE_CHECKING:
    from ..tools.convert.convert_2022 import convert_2022


def __getattr__(name: str) -> Any:
    """Import `convert_2022` at its first use: it is one of the tools, which import this package."""
    if name != "convert_2022":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = importlib.import_module("..tools.convert.convert_2022", __name__).convert_2022
    globals()[name] = value
    return value
