# __init__.py - public names of the key-value store
# SPDX-License-Identifier: MIT
"""One shard as a key-value store, compatible with TensorStore's driver `zarr3_sharding_indexed` (``docs/key-value.md``)."""

from __future__ import annotations

from .keys import FAILED, NO_VALUE, PENDING, UNNAMED, ConflictError, KeyRange, ReadResult
from .store import ShardedKeyValueStore
from .transaction import Transaction

__all__ = [
    "FAILED",
    "NO_VALUE",
    "PENDING",
    "UNNAMED",
    "ConflictError",
    "KeyRange",
    "ReadResult",
    "ShardedKeyValueStore",
    "Transaction",
]
