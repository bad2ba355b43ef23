# index_layout.py - the bytes of an index: decode them, test entries, and correct one damaged byte
# SPDX-License-Identifier: MIT
"""The index of a shard as bytes and as entries, without the shard.

`bad_entries` applies the rules of the engine (`_native.index_check`) to all entries, and does not stop at the first bad one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import native
from ...access.compiled_chains import byte_map
from ...access.placement import ABSENT
from ...errors import ShardError
from ...format.spec import ShardSpec

__all__ = [
    "bad_entries",
    "correct_one_byte",
    "decode_entries",
    "encode_entries",
    "index_offset",
    "is_absent",
    "wrong_sizes",
]

Entries = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

CHECKSUM_NBYTES = 4
# CRC-32C (Castagnoli), bits reversed: RFC 3720, appendix B.4.
_POLYNOMIAL = 0x82F63B78
# Maximum size of an index in which a damaged byte is searched; the search takes about a microsecond for each byte.
MAX_CORRECTED_NBYTES = 4 << 20


def index_offset(spec: ShardSpec, nbytes: int) -> int:
    """Return the offset of the index in a shard of `nbytes` bytes; negative if the shard is too short."""
    if spec.index_location == "start":
        return 0 if nbytes >= spec.index_nbytes else nbytes - spec.index_nbytes
    return nbytes - spec.index_nbytes


def decode_entries(spec: ShardSpec, stored: Any, *, check: bool = True) -> Entries | None:
    """Decode the ``spec.index_nbytes`` bytes of an index to shape (n_chunks, 2); None if a checksum is wrong.

    Without `check`, any bytes are decoded.
    """
    if check or not spec.n_index_checksums:
        entries = np.empty((spec.n_chunks, 2), dtype=np.uint64)
        try:
            native.load().load_index(byte_map(spec), stored, entries)
        except ShardError:
            return None
        return entries
    bare = np.frombuffer(stored, dtype=np.uint8)[: 16 * spec.n_chunks]
    return decode_entries(_without_checksums(spec), bare)


def _without_checksums(spec: ShardSpec) -> ShardSpec:
    kept = [codec for codec in spec.index_codecs if codec.json_name != "crc32c"]
    return ShardSpec(
        spec.stored_shape,
        spec.chunk_shape,
        spec.dtype,
        spec.fill_value,
        spec.codecs,
        kept,
        spec.index_location,
        clip=spec.clip,
    )


def encode_entries(spec: ShardSpec, entries: Entries) -> bytes:
    """Encode an index, with its checksums."""
    stored = np.empty(spec.index_nbytes, dtype=np.uint8)
    native.load().store_index(byte_map(spec), entries, stored)
    return stored.tobytes()


def is_absent(entries: Entries) -> Flags:
    """Return flags of the absent entries: both numbers are 2^64-1."""
    return np.asarray((entries[:, 0] == ABSENT) & (entries[:, 1] == ABSENT))


def bad_entries(entries: Entries, nbytes: int, index_at: int, index_nbytes: int) -> Flags:
    """Return flags of the impossible entries: half absent, outside of the object of `nbytes` bytes, or in the index."""
    offset, size = entries[:, 0], entries[:, 1]
    limit = np.uint64(nbytes)
    outside = (size > limit) | (offset > limit - np.minimum(size, limit))
    half = (offset == ABSENT) != (size == ABSENT)
    end = offset + np.where(outside, np.uint64(0), size)
    low, high = np.uint64(max(index_at, 0)), np.uint64(max(index_at + index_nbytes, 0))
    in_index = ~outside & (size > 0) & (offset < high) & (end > low)
    return np.asarray((outside | half | in_index) & ~is_absent(entries))


def wrong_sizes(entries: Entries, fixed_nbytes: int | None) -> Flags:
    """Return flags of the present entries with a size that the codecs cannot make; `fixed_nbytes` is None for any size but 0."""
    size = entries[:, 1]
    wrong = size == 0 if fixed_nbytes is None else size != np.uint64(fixed_nbytes)
    return np.asarray(wrong & ~is_absent(entries))


def correct_one_byte(stored: Any) -> bytes | None:
    """Correct an index with one little-endian CRC-32C at its end; None unless exactly one damaged byte explains the checksum.

    With c(x) for the checksum of x, c(x) ^ c(y) depends only on x ^ y, and an error e in byte p changes the register to
    table[e], which the bytes behind p then advance. The search goes backward: each step takes back one zero byte and
    compares the register with the table.
    """
    data = bytearray(stored)
    n = len(data) - CHECKSUM_NBYTES
    if n > MAX_CORRECTED_NBYTES:
        return None
    expected = int.from_bytes(data[n:], "little")
    difference = expected ^ int(native.load().crc32c(memoryview(data)[:n]))
    corrections: list[tuple[int, int]] = []
    for k in range(CHECKSUM_NBYTES):  # a damaged byte of the checksum itself
        if difference & ~(0xFF << 8 * k) == 0:
            corrections.append((n + k, difference >> 8 * k))
    table = _table()
    error_of = {value: error for error, value in enumerate(table) if error}
    first_of = {value >> 24: error for error, value in enumerate(table)}
    register = difference
    for p in range(n - 1, -1, -1):
        if register in error_of:
            corrections.append((p, error_of[register]))
        # take back one zero byte: forward is register = table[register & 255] ^ (register >> 8)
        low = first_of[register >> 24]
        register = ((register ^ table[low]) << 8 | low) & 0xFFFFFFFF
    if len(corrections) != 1:
        return None
    place, error = corrections[0]
    data[place] ^= error
    return bytes(data)


def _table() -> list[int]:
    """Return the checksum register after each byte value, starting from a register of zero."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table
