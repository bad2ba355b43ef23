# __init__.py - pictures of arrays and shards
# SPDX-License-Identifier: MIT
"""Pictures of arrays and shards, from plain data. matplotlib is imported when a picture is drawn, and not before."""

__all__: list[str] = []
