# __init__.py - public names of the key-value store
# SPDX-License-Identifier: MIT
"""One shard as a key-value store, compatible with TensorStore's driver `zarr3_sharding_indexed` (``docs/key-value.md``)."""

from __future__ import annotations

from .keys import KeyRange
from .listing import KeyList
from .results import FAILED, NO_VALUE, PENDING, UNNAMED, ConflictError, ReadResult, Stamp
from .spec import StoreSpec
from .store import ShardedKeyValueStore
from .transaction import Transaction
from .transaction_view import BoundStore

__all__ = [
    "FAILED",
    "NO_VALUE",
    "PENDING",
    "UNNAMED",
    "BoundStore",
    "ConflictError",
    "KeyList",
    "KeyRange",
    "ReadResult",
    "ShardedKeyValueStore",
    "Stamp",
    "StoreSpec",
    "Transaction",
]
