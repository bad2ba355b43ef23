# kv_stores.py - keys and key-value stores as tests write them
# SPDX-License-Identifier: MIT
"""Shared by the tests of `shardcodec.kv`."""

from __future__ import annotations

import struct
from typing import Any

from spec_json import CHECKED_INDEX

from shardcodec.kv import ShardedKeyValueStore

__all__ = ["key", "open_kv"]


def key(*indices: int) -> bytes:
    """Return the key of an entry at this grid position."""
    return struct.pack(f">{len(indices)}I", *indices)


def open_kv(base: Any, grid_shape: Any = (2, 3), **how: Any) -> ShardedKeyValueStore:
    """Open a store with a checked index at the end, unless `how` says otherwise."""
    return ShardedKeyValueStore(base, **({"grid_shape": grid_shape, "index_codecs": CHECKED_INDEX} | how))
