# __init__.py - the analysis of damaged shards
# SPDX-License-Identifier: MIT
"""The analysis of damaged shards: find the index, recognise inner chunks, and prove their positions."""
