# recognise.py - recognise encoded inner chunks without an index
# SPDX-License-Identifier: MIT
"""Recognise encoded inner chunks without an index.

Chunks of a fixed size follow one another. The end of a zstd, gzip, zlib or blosc stream is known from its bytes; a ``crc32c``
behind it adds 4 bytes. A stream is a chunk only if it decodes to one, so other bytes are not mistaken for chunks.
"""

from __future__ import annotations

import errno
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ...access.opened_shard import NativeShard, OpenedShard
from ...format.codecs import Blosc, Checksum, Gzip, Zlib, Zstd
from ...format.spec import ChainSpec
from ..chunk_check import ChunkCheck, Level
from ..memory import BLOCK_NBYTES, UNLIMITED, MemoryShare
from .index_layout import Entries, is_absent

__all__ = [
    "HEADER_NBYTES",
    "Slot",
    "Slots",
    "can_recognise",
    "has_chunks_between",
    "has_header",
    "has_sizes_in_headers",
    "is_complete",
    "recognise",
]

_ZSTD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b\x08"
_BLOSC = b"\x02"
_BLOSC_HEAD_NBYTES = 16
# The largest header of a frame of zstd; that of blosc is smaller.
HEADER_NBYTES = 18


class Slot(NamedTuple):
    """A range that holds an inner chunk; `is_whole` is False if its bytes are damaged."""

    offset: int
    nbytes: int
    is_whole: bool


@dataclass(frozen=True)
class Slots:
    """The inner chunks of a range, in the order of their offsets.

    Attributes
    ----------
    chunks : tuple of Slot
    fills_range : bool
        True if the slots fill the whole range, so that no chunk is missing.
    """

    chunks: tuple[Slot, ...]
    fills_range: bool


class _Window:
    """Bytes [low, high) of an object, read in large blocks."""

    def __init__(self, view: OpenedShard, low: int, high: int, share: MemoryShare) -> None:
        self._view, self.high, self.share = view, high, share
        self._low, self._block = low, b""

    @classmethod
    def of(cls, data: Any) -> Self:
        """Return the window of a chunk that is in memory."""
        window = cls(NativeShard(None, b""), 0, len(data), UNLIMITED)
        window._block = data
        return window

    def bytes(self, offset: int, nbytes: int) -> bytes:
        """Return up to `nbytes` bytes, fewer at the end of the range."""
        nbytes = min(nbytes, self.high - offset)
        if nbytes <= 0:
            return b""
        start = offset - self._low
        if start < 0 or start + nbytes > len(self._block):
            size = min(max(nbytes, self.share.block_nbytes), self.high - offset)
            self._low, self._block, start = offset, bytes(self._view.range(offset, size)), 0
        return self._block[start : start + nbytes]


# Maps an offset and the maximum decoded size of an inner chunk to the end of the stream; None without a stream.
_End = Callable[[_Window, int, int], int | None]


def can_recognise(check: ChunkCheck) -> bool:
    """Return True if inner chunks of these codecs can be recognised."""
    spec = check.spec
    return (
        check.decodes
        and not spec.chain.is_clipped
        and (spec.inner.fixed_nbytes is not None or _stream_of(spec.inner) is not None)
    )


def recognise(view: OpenedShard, low: int, high: int, check: ChunkCheck) -> Slots | None:
    """Find the inner chunks in bytes [low, high) of a shard, without the index; None if they cannot be recognised."""
    spec = check.spec
    if not can_recognise(check):
        return None
    if spec.inner.fixed_nbytes is not None:
        return _fixed_slots(view, low, high, spec.inner.fixed_nbytes, check)
    stream = _stream_of(spec.inner)
    return (
        None if stream is None else _stream_slots(_Window(view, low, high, check.share), low, check, *stream)
    )


def has_chunks_between(
    view: OpenedShard, low: int, high: int, entries: Entries, places: Entries, check: ChunkCheck
) -> bool:
    """Return True if bytes [low, high), without the index, have an inner chunk that no entry names.

    `entries` are the possible entries, `places` those of whole inner chunks; both have shape (n_chunks, 2) and are absent
    elsewhere. If the codecs do not permit to recognise inner chunks, any bytes may be one.
    """
    live = places if can_recognise(check) else np.concatenate([entries, places])
    live = live[~is_absent(live)]
    fixed, begin = check.spec.inner.fixed_nbytes, low
    for offset, nbytes in [*live[np.argsort(live[:, 0], kind="stable")].tolist(), (high, 0)]:
        end = min(offset, high)
        if begin < end and not can_recognise(check):
            return True
        # chunks of a fixed size follow what is before them, or end at what is behind them
        for first in {begin, begin if fixed is None else begin + max(0, end - begin) % fixed}:
            if first < end and _has_chunk(view, first, end, check):
                return True
        begin = max(begin, offset + nbytes)
    return False


def _has_chunk(view: OpenedShard, low: int, high: int, check: ChunkCheck) -> bool:
    """Return True if a whole inner chunk is in a range, or the disk cannot read some of its bytes."""
    try:
        slots = recognise(view, low, high, check)
    except OSError as error:
        if error.errno != errno.EIO:  # other errors may be temporary
            raise
        return True
    return slots is not None and any(slot.is_whole for slot in slots.chunks)


def _fixed_slots(view: OpenedShard, low: int, high: int, nbytes: int, check: ChunkCheck) -> Slots:
    window = _Window(view, low, high, check.share)
    chunks = []
    for offset in range(low, high - nbytes + 1, nbytes):
        problem = check.problem(0, window.bytes(offset, nbytes), Level.DECODE)
        chunks.append(Slot(offset, nbytes, problem is None))
        if len(chunks) > check.spec.n_chunks:
            return Slots(tuple(chunks), False)
    return Slots(tuple(chunks), not (high - low) % nbytes)


def _stream_of(inner: ChainSpec) -> tuple[bytes, _End, int] | None:
    """Return the magic bytes of an encoded chunk, the function that finds its end, and the size of checksums behind it."""
    codecs = list(inner.bytes_codecs)
    n_checksums = 0
    while codecs and isinstance(codecs[-1], Checksum) and not codecs[-1].at_start:
        codecs.pop()
        n_checksums += 1
    match codecs[-1] if codecs else None:
        case Zstd():
            return _ZSTD, _end_of_zstd, 4 * n_checksums
        case Gzip():
            return _GZIP, _end_of_gzip, 4 * n_checksums
        case Zlib():
            return b"", _end_of_zlib, 4 * n_checksums
        case Blosc():
            return _BLOSC, _end_of_blosc, 4 * n_checksums
    return None


def _stream_slots(
    window: _Window, low: int, check: ChunkCheck, magic: bytes, end_of: _End, n_behind: int
) -> Slots:
    chunks: list[Slot] = []
    fills = True
    offset = low
    most = check.spec.inner.nbytes if check.can_decode else sys.maxsize
    while offset < window.high:
        end = end_of(window, offset, most) if window.bytes(offset, len(magic)) == magic else None
        nbytes = 0 if end is None else end + n_behind - offset
        fits = 0 < nbytes <= min(window.high - offset, window.share.free_nbytes or nbytes)
        if fits and check.problem(0, window.bytes(offset, nbytes), Level.DECODE) is None:
            chunks.append(Slot(offset, nbytes, True))
            offset += nbytes
            if len(chunks) > check.spec.n_chunks:
                return Slots(tuple(chunks), False)
            continue
        fills = False
        following = _next(window, offset + 1, magic)
        if following is None:
            break
        offset = following
    return Slots(tuple(chunks), fills)


def _next(window: _Window, offset: int, magic: bytes) -> int | None:
    """Return the next offset of the magic bytes of a stream; None if there is none, or the stream has no magic bytes."""
    while magic and offset < window.high:
        n = window.share.block_nbytes
        block = window.bytes(offset, n)
        at = block.find(magic)
        if at >= 0:
            return offset + at
        if len(block) < n:
            return None
        offset += len(block) - len(magic) + 1
    return None


def has_sizes_in_headers(inner: ChainSpec) -> bool:
    """Return True if encoded chunks have headers that `is_complete` understands."""
    return bool(inner.bytes_codecs) and isinstance(inner.bytes_codecs[-1], Zstd | Blosc)


def has_header(inner: ChainSpec, head: Any, nbytes: int) -> bool:
    """Return True if an encoded chunk of `nbytes` bytes that begins with `head` has the header of a stream that decodes to the right size."""
    if not has_sizes_in_headers(inner) or len(head) <= len(_ZSTD):
        return False
    codec = inner.bytes_codecs[-1]
    expected: int | None = inner.nbytes
    for before in inner.codecs[: inner.codecs.index(codec)]:
        expected = None if expected is None else before.encoded_nbytes(expected)
    if isinstance(codec, Zstd):
        return bytes(head[: len(_ZSTD)]) == _ZSTD and expected is not None and _size_in_zstd(head) == expected
    return _end_of_blosc(_Window.of(head), 0, sys.maxsize) == nbytes and _size_in_blosc(head) == expected


def is_complete(inner: ChainSpec, data: Any) -> bool:
    """Return True if the headers of its last compressor show that an encoded chunk is one stream, and decodes to the right size.

    This finds missing bytes without decoding. False proves nothing: other codecs have no such headers.
    """
    if not has_header(inner, data, len(data)):
        return False
    is_zstd = isinstance(inner.bytes_codecs[-1], Zstd)
    return not is_zstd or _end_of_zstd(_Window.of(data), 0, sys.maxsize) == len(data)


def _size_in_zstd(data: Any) -> int | None:
    """Return the decoded size in the header of a frame; None if it has none."""
    flags = data[len(_ZSTD)]
    is_single = flags >> 5 & 1
    nbytes = (is_single, 2, 4, 8)[flags >> 6]
    at = len(_ZSTD) + 1 + (1 - is_single) + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(data[at : at + nbytes], "little")
    return None if not nbytes else size + 256 if nbytes == 2 else size


def _size_in_blosc(data: Any) -> int | None:
    return int.from_bytes(data[4:8], "little")


def _end_of_zstd(window: _Window, offset: int, most: int) -> int | None:
    """Walk over the headers of the blocks (RFC 8878, 3.1.1)."""
    head = window.bytes(offset + len(_ZSTD), 1)
    if not head:
        return None
    flags = head[0]
    is_single = flags >> 5 & 1
    size_field = (is_single, 2, 4, 8)[flags >> 6]
    at = offset + len(_ZSTD) + 1 + (1 - is_single) + (0, 1, 2, 4)[flags & 3] + size_field
    while True:
        head = window.bytes(at, 3)
        if len(head) < 3:
            return None
        block = int.from_bytes(head, "little")
        kind = block >> 1 & 3
        if kind == 3:
            return None
        at += 3 + (1 if kind == 1 else block >> 3)
        if block & 1:
            return at + (4 if flags >> 2 & 1 else 0)


def _end_of_gzip(window: _Window, offset: int, most: int) -> int | None:
    return _end_of_deflate(window, offset, 31)


def _end_of_zlib(window: _Window, offset: int, most: int) -> int | None:
    return _end_of_deflate(window, offset, 15)


def _end_of_deflate(window: _Window, offset: int, wbits: int) -> int | None:
    """Inflate the stream to find its end; the result is discarded."""
    stream = zlib.decompressobj(wbits)
    try:
        for data in _blocks(window, offset):
            offset += len(data)
            rest = data
            while rest and not stream.eof:
                stream.decompress(rest, window.share.block_nbytes)
                rest = stream.unconsumed_tail
            if stream.eof:
                return offset - len(stream.unused_data)
    except zlib.error:
        return None
    return None


def _blocks(window: _Window, offset: int, nbytes: int = 64 << 10) -> Iterator[bytes]:
    while data := window.bytes(offset, nbytes):
        yield data
        offset += len(data)


def _end_of_blosc(window: _Window, offset: int, most: int) -> int | None:
    """Return where a Blosc 1 stream at `offset` ends, from its header; None if the header is cut or not plausible.

    The header: version, codec version, flags, item size, decoded size, block size, encoded size. The decoded size may
    exceed `most` by 8 blocks of `BLOCK_NBYTES`. The end may lie behind the window.
    """
    head: Any = window.bytes(offset, _BLOSC_HEAD_NBYTES)
    if len(head) < _BLOSC_HEAD_NBYTES:
        return None
    size, encoded = int.from_bytes(head[4:8], "little"), int.from_bytes(head[12:16], "little")
    if encoded < _BLOSC_HEAD_NBYTES or size > most + 8 * BLOCK_NBYTES:
        return None
    return offset + encoded
