# __init__.py - pictures of arrays and shards
# SPDX-License-Identifier: MIT
"""Pictures of arrays and shards, from plain data. matplotlib is imported only when a picture is drawn."""

__all__: list[str] = []
