# __init__.py - the analysis of damaged shards
# SPDX-License-Identifier: MIT
"""Find the index and the inner chunks of a shard that is damaged."""
