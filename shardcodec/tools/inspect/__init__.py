# __init__.py - what arrays and shards have
# SPDX-License-Identifier: MIT
"""Inspect arrays, groups and single shards."""

__all__: list[str] = []
