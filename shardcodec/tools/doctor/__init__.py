# __init__.py - what this machine and a folder offer
# SPDX-License-Identifier: MIT
"""Say what this machine and a folder offer."""

__all__: list[str] = []
