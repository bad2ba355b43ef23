# __init__.py - what other programs store about the nodes of a hierarchy
# SPDX-License-Identifier: MIT
"""Metadata of other programs about the nodes of a hierarchy: `convention.py` has the interface, and each other module has one convention."""
