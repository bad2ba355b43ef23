# __init__.py - sizes of chunks and shards
# SPDX-License-Identifier: MIT
"""Advise sizes of chunks and shards."""

__all__: list[str] = []
