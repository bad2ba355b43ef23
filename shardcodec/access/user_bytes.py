# user_bytes.py - header and footer of a shard, and the alignment of its inner chunks
# SPDX-License-Identifier: MIT
"""Header and footer of a shard.

    index at the end     [header][inner chunks, gaps][footer][index]
    index at the start   [index][header][inner chunks, gaps][footer]

The *header* precedes the first inner chunk, the *footer* follows the last one. Nothing in the format marks them. So every
write of shardcodec that stores or keeps a header, a footer or an alignment leaves a mark that describes them
(csrc/plan/sc_write_commit.c); readers ignore it. Without a mark they can only be guessed: the bytes of an inner chunk that was
erased at the start or at the end look the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import native
from ..arguments import show
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
    "HeaderFooter",
    "UserBytes",
    "check_alignment",
    "extents",
    "find",
    "lay_out",
    "marked_footer",
]

MAX_ALIGNMENT = 1 << 30

# csrc/plan/sc_write_commit.c
MAGIC = b"shardcodec tail\1"
MARK = struct.Struct("<16s4QLL")

# Fewer zeros than a block in front of the index are the padding of a write that ends with a block.
BLOCK_NBYTES = 4096
# Bytes of one read in the search for a mark, in a shard without inner chunks.
SEARCH_NBYTES = 1 << 20

Entries = np.ndarray[Any, np.dtype[np.uint64]]


class UserBytes(NamedTuple):
    """The header, footer and alignment that a write keeps or sets.

    footer: a new one, in place of the old one. alignment: inner chunks that are written or moved begin at a multiple of this;
    None: it does not change. dead_share: as for `placement.place`.
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
    """Return an alignment; ValueError if it is not a power of two from 1 to 2^30."""
    is_whole = isinstance(alignment, int | np.integer) and not isinstance(alignment, bool)
    number = int(alignment) if is_whole else 0
    if not 1 <= number <= MAX_ALIGNMENT or number & (number - 1):
        raise ValueError(
            f"alignment: expected a power of two from 1 to {MAX_ALIGNMENT}, got {show(alignment)}"
        )
    return number


def extents(sums: Sums, shard_nbytes: int, index_nbytes: int, index_at_start: bool) -> Extents:
    """Return where header and footer of a shard are, from the sums of its index; without inner chunks all bytes are header."""
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    return Extents(first, sums.first, sums.end, end) if sums.n_stored else Extents(first, end, end, end)


class HeaderFooter(NamedTuple):
    """Header, footer and alignment of a shard.

    alignment: from the mark, or guessed from the gaps between inner chunks; else 1. mark_at: offset of the mark; None if the
    shard has none.
    """

    where: Extents
    footer: Any
    alignment: int
    mark_at: int | None = None

    @property
    def is_marked(self) -> bool:
        """True if the shard has a mark."""
        return self.mark_at is not None

    @property
    def header_nbytes(self) -> int:
        """Size of the header."""
        return self.where.chunks - self.where.first

    @property
    def has_any(self) -> bool:
        """True if there is anything to mark."""
        return bool(self.header_nbytes or len(self.footer) or self.alignment > 1)


def _mark(at: int, end: int, header_nbytes: int, footer_nbytes: int, alignment: int) -> bytes:
    """Return the mark at offset `at`, for a footer that ends at `end`."""
    fields = MARK.pack(MAGIC, at, end, header_nbytes, footer_nbytes, alignment, 0)[:-4]
    return fields + native.load().crc32c(fields).to_bytes(4, "little")  # type: ignore[no-any-return]


def marked_footer(at: int, header_nbytes: int, footer: Any, alignment: int) -> bytes:
    """Return mark and footer of a new shard, whose inner chunks end at `at`; empty without header, footer and alignment."""
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
) -> HeaderFooter | None:
    """Find header and footer, by the mark if there is one; None: inner chunks lie in the index.

    entries: the index, shape (n_chunks, 2), C order. read: returns bytes of the object, given offset and size.
    """
    sums = sum_up(entries)
    where = extents(sums, shard_nbytes, index_nbytes, index_at_start)
    if not where.first <= where.chunks <= where.footer <= where.end:
        return None
    is_bare = not sums.n_stored
    mark, tail = _search(where, read) if is_bare else _mark_behind(where, read)
    if mark is not None:
        header, footer, alignment, mark_at = mark
        where = Extents(where.first, where.first + header, where.end - footer, where.end)
        return HeaderFooter(where, tail[len(tail) - footer :], alignment, mark_at)
    if is_bare:
        return HeaderFooter(where, b"", 1)
    if len(tail) < BLOCK_NBYTES and not any(tail):
        return HeaderFooter(where._replace(footer=where.end), b"", _padded_to(sums))
    return HeaderFooter(where, tail, _padded_to(sums))


Mark = tuple[int, int, int, int]  # size of the header, size of the footer, alignment, offset of the mark
Read = Callable[[int, int], bytes]


def _mark_behind(where: Extents, read: Read) -> tuple[Mark | None, bytes]:
    """Look for the mark behind the last inner chunk; also return all bytes there."""
    tail = read(where.footer, where.end - where.footer) if where.footer < where.end else b""
    return _find_mark(tail, where.footer, where), tail


def _search(where: Extents, read: Read) -> tuple[Mark | None, bytes]:
    """Look for the mark of a shard without inner chunks, backwards from its end; also return the bytes behind the mark."""
    high = where.end
    while high - where.first >= MARK.size:
        low = max(where.first, high - SEARCH_NBYTES)
        mark = _find_mark(read(low, high - low), low, where)
        if mark is not None:
            return mark, read(where.end - mark[1], mark[1])
        high = low + MARK.size - 1 if low > where.first else where.first
    return None, b""


def _find_mark(part: bytes, low: int, where: Extents) -> Mark | None:
    """Return the last valid mark in a part of the shard that has no inner chunks."""
    at = len(part)
    while (at := part.rfind(MAGIC, 0, at + len(MAGIC) - 1)) >= 0:
        if at + MARK.size <= len(part):
            _, own, end, header, footer, alignment, checksum = MARK.unpack_from(part, at)
            fits = own == low + at and end == where.end and footer <= end - own - MARK.size
            fits = fits and header <= min(own, where.chunks) - where.first and alignment <= MAX_ALIGNMENT
            # 0 or a power of two: other values are never written
            fits = fits and not alignment & (alignment - 1)
            if fits and native.load().crc32c(part[at : at + MARK.size - 4]) == checksum:
                return header, footer, max(1, alignment), own
    return None


def _padded_to(sums: Sums) -> int:
    """Return the alignment that explains the gaps between inner chunks; 1 if there are no such gaps."""
    alignment = next((n for n in (4096, 512) if sums.n_stored and not sums.offset_bits % n), 1)
    return alignment if sums.n_stored > 1 and sums.nbytes_bits % alignment else 1


def place_between(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    user: HeaderFooter,
    *,
    new_nbytes: NewSizes,
    dead_share: float,
) -> Placement:
    """Place inner chunks as `placement.place`, between the header, which is carried too, and the footer behind the new ones."""
    where = user.where
    body = place(
        entries,
        replaced,
        shard_nbytes=max(where.footer, where.chunks),
        index_nbytes=where.chunks,
        index_at_start=True,  # for `place`, the shard begins behind its header and ends before its footer
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
    """Place all inner chunks of a shard, the sizes of the new ones being known.

    `data_offset` of the result is the end of the inner chunks, where the footer goes. entries: the checked old index; no inner
    chunk reaches into it. sizes: from positions of new inner chunks to their encoded sizes, in the order in which they are
    stored. gone: positions of inner chunks that become absent. The alignment of `user` is not None.
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
            start = aligned(end, alignment) if nbytes else end  # an inner chunk without bytes needs no gap
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
    """Place the carried inner chunks between header and footer.

    No dead bytes lie beside either: a reader that does not know the mark would take them for header or footer.
    """
    alignment = user.alignment or 1

    def place_body(dead_share: float) -> Placement:
        # for `place`, the shard begins behind its header and ends before its footer
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

    body = place_body(user.dead_share)
    sums = sum_up(body.entries)
    if not body.compact and not (sums.n_stored and sums.first == aligned(where.chunks, alignment)):
        body = place_body(PACK)  # dead bytes there would look like a part of the header
    if body.compact:
        return body
    end = sums.end if sums.n_stored else where.chunks
    carries = np.array([[where.chunks, end - where.chunks, where.chunks]], dtype=np.uint64)
    return Placement(carries, within(body.entries, end), end, compact=False)
