# __init__.py - check the objects of arrays
# SPDX-License-Identifier: MIT
"""Verify arrays, groups and single shards."""

__all__: list[str] = []
