# __init__.py - the tools
# SPDX-License-Identifier: MIT
"""Tools over arrays, groups and single shards. Their results are records with `to_json`; the command `shardcodec` prints them."""

__all__: list[str] = []
