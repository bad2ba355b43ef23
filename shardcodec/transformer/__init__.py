# __init__.py - the public names of the storage transformer
# SPDX-License-Identifier: MIT
"""Shards below, chunks above: the sharding storage transformer of the Zarr v3 draft of 2022, over any zarr store."""

from __future__ import annotations

from .keys import KeyLayout

__all__ = ["KeyLayout"]
