# checksum.py - CRC-32C for Python
# SPDX-License-Identifier: MIT
"""CRC-32C (Castagnoli), the checksum of shard indexes and of the `crc32c` codec.

`crc32c` is the function of the extension itself, without a Python wrapper, which keeps a call fast.
"""

from __future__ import annotations

from ._native import crc32c, crc32c_combine, crc32c_copy

__all__ = ["crc32c", "crc32c_combine", "crc32c_copy"]
