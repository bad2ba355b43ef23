# checksum.py - CRC-32C for Python
# SPDX-License-Identifier: MIT
"""CRC-32C (Castagnoli), the checksum of shard indexes and of the `crc32c` codec.

`crc32c` is the extension's own function: a call costs no more than it must.
"""

from __future__ import annotations

from ._native import crc32c, crc32c_combine, crc32c_copy

__all__ = ["crc32c", "crc32c_combine", "crc32c_copy"]
