# __init__.py - what other programs store about the nodes of a hierarchy
# SPDX-License-Identifier: MIT
"""What other programs store about the nodes of a hierarchy: `convention.py` is the interface, each other module one convention."""
