# __init__.py - jobs that are interrupted, resumed, or run in parts
# SPDX-License-Identifier: MIT
"""A job is a plan in a file, and ledgers that say which shards are finished."""

__all__: list[str] = []
