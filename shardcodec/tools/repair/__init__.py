# __init__.py - repair damaged shards
# SPDX-License-Identifier: MIT
"""Repair damaged shards."""

__all__: list[str] = []
