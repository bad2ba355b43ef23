# __init__.py - convert arrays to shards
# SPDX-License-Identifier: MIT
"""Convert arrays of any kind to sharded arrays of Zarr v3."""

__all__: list[str] = []
