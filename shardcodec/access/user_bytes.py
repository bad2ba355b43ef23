# user_bytes.py - what a shard holds besides inner chunks and index: header, footer, and where chunks may begin
# SPDX-License-Identifier: MIT
"""Header and footer of a shard.

    index at the end     [header][inner chunks, gaps][footer][index]
    index at the start   [index][header][inner chunks, gaps][footer]

The *header* precedes the first inner chunk, the *footer* follows the last one. Nothing in the format marks them. So every
write of ours that stores or keeps a header, a footer or an alignment leaves a mark that tells which they are
(csrc/plan/sc_write_tail.c); readers pass over it. Without a mark they can only be guessed, and the bytes of an inner chunk that was
erased at either end look just like them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import native
from .placement import (
    ABSENT,
    DEAD_SHARE,
    PACK,
    Gone,
    NewSizes,
    Placement,
    Sums,
    aligned,
    new_sizes,
    place,
    sum_up,
    within,
)

__all__ = [
    "MAX_ALIGNMENT",
    "Extents",
    "Kept",
    "UserBytes",
    "check_alignment",
    "extents",
    "find",
    "guess_alignment",
    "kept_alignment",
    "lay_out",
    "marked_footer",
]

MAX_ALIGNMENT = 1 << 30

# csrc/plan/sc_write_tail.c
MAGIC = b"shardcodec tail\1"
MARK = struct.Struct("<16s4QLL")

# Zeros in front of the index, fewer than a block, are what was needed to end with a block.
BLOCK_NBYTES = 4096
# Of a shard without inner chunks: bytes that are looked through for a mark at a time.
SEARCH_NBYTES = 1 << 20

Entries = np.ndarray[Any, np.dtype[np.uint64]]


class UserBytes(NamedTuple):
    """What a write does about header, footer and alignment: it keeps them.

    Attributes
    ----------
    footer : buffer or None
        A new footer, in place of the old one.
    alignment : int or None
        Inner chunks that are written or moved begin at a multiple of this. None: as it is.
    dead_share : float
        As for `placement.place`.
    """

    footer: Any = None
    alignment: int | None = None
    dead_share: float = DEAD_SHARE


class Extents(NamedTuple):
    """Offsets: the header is [first, chunks), inner chunks lie in [chunks, footer), the footer is [footer, end)."""

    first: int
    chunks: int
    footer: int
    end: int


def check_alignment(alignment: Any) -> int:
    """Return the alignment.

    Raises
    ------
    ValueError
        It is no power of two of at most 1 GiB.
    """
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"alignment must be a power of two from 1 to {MAX_ALIGNMENT}, got {alignment!r}")
    return int(alignment)


def extents(sums: Sums, shard_nbytes: int, index_nbytes: int, index_at_start: bool) -> Extents:
    """Find header and footer of a shard, the sums of its index being known; without any inner chunk all is header."""
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    return Extents(first, sums.first, sums.end, end) if sums.n_stored else Extents(first, end, end, end)


class Kept(NamedTuple):
    """Header, footer and alignment of a shard.

    Attributes
    ----------
    where : Extents
    footer : bytes
    alignment : int
        That of a mark, or one that can be told from the gaps between inner chunks; else 1.
    is_marked : bool
        Whether there is a mark.
    """

    where: Extents
    footer: Any
    alignment: int
    is_marked: bool = False

    @property
    def header_nbytes(self) -> int:
        """Size of the header."""
        return self.where.chunks - self.where.first

    @property
    def has_any(self) -> bool:
        """Whether there is anything to mark."""
        return bool(self.header_nbytes or len(self.footer) or self.alignment > 1)


def _mark(at: int, end: int, header_nbytes: int, footer_nbytes: int, alignment: int) -> bytes:
    """Make the mark that lies at offset `at`, of a footer that ends at `end`."""
    told = MARK.pack(MAGIC, at, end, header_nbytes, footer_nbytes, alignment, 0)[:-4]
    return told + native.load().crc32c(told).to_bytes(4, "little")  # type: ignore[no-any-return]


def marked_footer(at: int, header_nbytes: int, footer: Any, alignment: int) -> bytes:
    """Return what follows the last inner chunk of a new shard, which ends at `at`: mark and footer; nothing without user bytes."""
    data = bytes(footer)
    if not header_nbytes and not data and alignment == 1:
        return b""
    end = at + MARK.size + len(data)
    return _mark(at, end, header_nbytes, len(data), alignment) + data


def find(
    entries: Entries,
    shard_nbytes: int,
    index_nbytes: int,
    index_at_start: bool,
    read: Callable[[int, int], bytes],
) -> Kept | None:
    """Find header and footer, by the mark if there is one; None where inner chunks lie in the index.

    Parameters
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2), C order
        The index.
    shard_nbytes, index_nbytes, index_at_start
        As for `extents`.
    read : callable
        Returns bytes of the object: offset, size.
    """
    sums = sum_up(entries)
    where = extents(sums, shard_nbytes, index_nbytes, index_at_start)
    if not where.first <= where.chunks <= where.footer <= where.end:
        return None
    is_bare = not sums.n_stored
    found, tail = _search(where, read) if is_bare else _mark_behind(where, read)
    if found is not None:
        header, footer, alignment = found
        where = Extents(where.first, where.first + header, where.end - footer, where.end)
        return Kept(where, tail[len(tail) - footer :], alignment, is_marked=True)
    if is_bare:
        return Kept(where, b"", 1)
    if len(tail) < BLOCK_NBYTES and not any(tail):
        return Kept(where._replace(footer=where.end), b"", _padded_to(sums))
    return Kept(where, tail, _padded_to(sums))


Mark = tuple[int, int, int]  # size of the header, size of the footer, alignment
Read = Callable[[int, int], bytes]


def _mark_behind(where: Extents, read: Read) -> tuple[Mark | None, bytes]:
    """Look for the mark behind the last inner chunk; also return all that lies there."""
    tail = read(where.footer, where.end - where.footer) if where.footer < where.end else b""
    return _find_mark(tail, where.footer, where), tail


def _search(where: Extents, read: Read) -> tuple[Mark | None, bytes]:
    """Look for the mark of a shard without inner chunks, from the end on, some bytes at a time; also return what follows it."""
    high = where.end
    while high - where.first >= MARK.size:
        low = max(where.first, high - SEARCH_NBYTES)
        found = _find_mark(read(low, high - low), low, where)
        if found is not None:
            return found, read(where.end - found[1], found[1])
        high = low + MARK.size - 1 if low > where.first else where.first
    return None, b""


def _find_mark(part: bytes, low: int, where: Extents) -> Mark | None:
    """Look for a mark that counts in a part of what no inner chunk lies in; the last one that does."""
    at = len(part)
    while (at := part.rfind(MAGIC, 0, at + len(MAGIC) - 1)) >= 0:
        if at + MARK.size <= len(part):
            _, own, end, header, footer, alignment, checksum = MARK.unpack_from(part, at)
            fits = own == low + at and end == where.end and footer <= end - own - MARK.size
            fits = fits and header <= min(own, where.chunks) - where.first and alignment <= MAX_ALIGNMENT
            fits = fits and not alignment & (alignment - 1)  # 0 or a power of two: no other is ever written
            if fits and native.load().crc32c(part[at : at + MARK.size - 4]) == checksum:
                return header, footer, max(1, alignment)
    return None


def _padded_to(sums: Sums) -> int:
    """The alignment that gaps between inner chunks can only come from; 1 where there are none such."""
    alignment = guess_alignment(sums)
    return alignment if sums.n_stored > 1 and sums.nbytes_bits % alignment else 1


def kept_alignment(found: Kept, entries: Entries) -> int:
    """Return what an update that keeps the alignment keeps: that of the mark, else one that all inner chunks have."""
    return found.alignment if found.is_marked else guess_alignment(sum_up(entries))


def guess_alignment(sums: Sums) -> int:
    """Return 4096 or 512 where that divides the offset of every inner chunk, else 1."""
    return next((n for n in (4096, 512) if sums.n_stored and not sums.offset_bits % n), 1)


def place_between(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    user: Kept,
    *,
    new_nbytes: NewSizes,
    dead_share: float,
) -> Placement:
    """Decide as `placement.place` does, behind the header, which is carried too; the footer comes behind the new inner chunks."""
    where = user.where
    body = place(
        entries,
        replaced,
        shard_nbytes=max(where.footer, where.chunks),
        index_nbytes=where.chunks,
        index_at_start=True,  # seen from here, the shard begins behind its header and ends before its footer
        new_nbytes=new_nbytes,
        dead_share=dead_share,
        alignment=user.alignment,
    )
    return replace(body, carries=_with_header(body.carries, where))


def _with_header(carries: Entries, where: Extents) -> Entries:
    if where.chunks == where.first:
        return carries
    header = [[where.first, where.chunks - where.first, where.first]]
    return np.concatenate([np.array(header, dtype=np.uint64), carries])


def lay_out(
    entries: Entries,
    sizes: Mapping[int, int],
    gone: Gone,
    where: Extents,
    user: UserBytes,
) -> Placement:
    """Decide where all inner chunks go, sizes of the new ones being known.

    Parameters
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2)
        The old index, checked; no inner chunk reaches into the index.
    sizes : mapping
        From the positions that are written to the sizes of their encoded inner chunks, in the order in which they are
        laid out.
    gone : ndarray of intp
        Positions of those that go.
    where : Extents
    user : UserBytes
        Its alignment is known.

    Returns
    -------
    Placement
        Every new inner chunk has its entry; `data_offset` is where they end, and the footer goes.
    """
    replaced = np.zeros(len(entries), dtype=np.bool_)
    replaced[np.fromiter(sizes, dtype=np.intp, count=len(sizes))] = True
    replaced[gone] = True
    alignment = user.alignment or 1
    body = _body(entries, replaced, where, user, new_sizes(sizes, len(entries)) if sizes else None)
    carries = _with_header(body.carries, where)
    placed = body.entries.copy()
    end = body.data_offset
    for position, nbytes in sizes.items():
        if placed[position, 0] == ABSENT or placed[position, 1] != nbytes:
            start = aligned(end, alignment) if nbytes else end  # what has no bytes needs no gap
            placed[position] = start, nbytes
            end = start + nbytes
    return Placement(carries, placed, end, body.compact)


def _body(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    where: Extents,
    user: UserBytes,
    new_nbytes: NewSizes,
) -> Placement:
    """Place what is kept between header and footer, with nothing dead beside either: whoever knows no mark would take it for them."""
    alignment = user.alignment or 1

    def settled(dead_share: float) -> Placement:
        # seen from here, the shard begins behind its header and ends before its footer
        return place(
            entries,
            replaced,
            shard_nbytes=where.footer,
            index_nbytes=where.chunks,
            index_at_start=True,
            new_nbytes=new_nbytes,
            dead_share=dead_share,
            alignment=alignment,
        )

    body = settled(user.dead_share)
    left = sum_up(body.entries)
    if not body.compact and not (left.n_stored and left.first == aligned(where.chunks, alignment)):
        body = settled(PACK)  # what is dead there would be taken for a part of the header
    if body.compact:
        return body
    end = left.end if left.n_stored else where.chunks
    carries = np.array([[where.chunks, end - where.chunks, where.chunks]], dtype=np.uint64)
    return Placement(carries, within(body.entries, end), end, compact=False)
