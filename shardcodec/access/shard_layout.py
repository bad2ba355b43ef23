# shard_layout.py - what each byte of a shard belongs to
# SPDX-License-Identifier: MIT
"""`ShardLayout`: the ranges of a shard by what they hold, and the order of its inner chunks.

    [header][inner chunks, padding, dead bytes][mark and zeros][footer][index]

Header and footer are known by the mark of shardcodec's writers (`user_bytes`). Bytes before the first and after the last
inner chunk without a mark are *unmarked*: header, footer or dead bytes. *Padding* is the space that alignment leaves free,
and the mark with the zeros behind it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import native
from ..format.spec import ShardSpec
from ..options import ORDERS
from .placement import ABSENT
from .user_bytes import HeaderFooter, find

__all__ = ["KINDS", "ShardLayout", "header_and_footer", "layout_arguments", "shard_layout", "stored_order"]

Entries = np.ndarray[Any, np.dtype[np.uint64]]
Ranges = np.ndarray[Any, np.dtype[np.int64]]

# The contents of a range of bytes.
KINDS = ("inner chunks", "index", "header", "footer", "padding", "unmarked", "dead")

# Bytes behind the last inner chunk in which a mark is looked for; a footer is not read as a whole.
TAIL_NBYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class ShardLayout:
    """The ranges of one shard.

    n_stored: number of inner chunks that exist. ranges: for each of `KINDS` offsets and sizes, int64, shape (n, 2), ascending.
    No two ranges share a byte: of inner chunks that overlap, the second range has only the bytes that the first has not.
    alignment: from the mark; 1 without one. order: a name of the option ``order``; ``"any"`` if all of them agree, ``"other"``
    if none fits.
    """

    nbytes: int
    n_stored: int
    ranges: dict[str, Ranges]
    alignment: int
    order: str

    def total(self, kind: str) -> int:
        """Return the number of bytes of a kind."""
        return int(self.ranges[kind][:, 1].sum())


def header_and_footer(
    spec: ShardSpec, entries: Entries, nbytes: int, read: Callable[[int, int], bytes]
) -> HeaderFooter | None:
    """Return header and footer, known by the mark or guessed; None if inner chunks lie in the index. For the arguments see below."""
    return find(entries, nbytes, spec.index_nbytes, spec.index_location == "start", read)


def shard_layout(
    spec: ShardSpec, entries: Entries, nbytes: int, read: Callable[[int, int], bytes]
) -> ShardLayout:
    """Return the layout of a shard from its checked index, shape (n_chunks, 2); `read` returns bytes, given offset and size."""
    at_start = spec.index_location == "start"
    stored = np.flatnonzero(entries[:, 0] != ABSENT)
    by_offset = stored[np.lexsort((entries[stored, 1], entries[stored, 0]))]
    places = entries[by_offset].astype(np.int64)
    index_at = 0 if at_start else nbytes - spec.index_nbytes
    user = header_and_footer(spec, entries, nbytes, lambda low, n: read(low, min(n, TAIL_NBYTES)))
    parts = _split(places, index_at, spec.index_nbytes, nbytes, user)
    alignment = user.alignment if user is not None and user.is_marked else 1
    return ShardLayout(nbytes, len(stored), parts, alignment, stored_order(by_offset, spec.grid_shape))


def layout_arguments(shard: Any, title: str) -> tuple[int, dict[str, Any], Any, int, str]:
    """Return the arguments of `layout_figure` for a shard; raise if its index is invalid."""
    shard.check()
    entries = shard.index.reshape(-1, 2)
    stored = np.flatnonzero(entries[:, 0] != ABSENT)
    places = np.concatenate([stored[:, None], entries[stored].astype(np.int64)], axis=1)
    ranges: dict[str, Any] = {}
    if shard.exists:
        ranges = shard_layout(shard.spec, entries, shard.nbytes, shard.read_range).ranges
    return shard.nbytes, ranges, places, shard.spec.n_chunks, title


def _split(
    places: Ranges, index_at: int, index_nbytes: int, nbytes: int, user: HeaderFooter | None
) -> dict[str, Ranges]:
    """Return the ranges of each kind; `places` are the inner chunks by offset."""
    ends = np.maximum.accumulate(places.sum(axis=1)) if len(places) else np.empty(0, np.int64)
    before = np.concatenate([[0], ends[:-1]]).astype(np.int64) if len(places) else ends
    begins = np.maximum(places[:, 0], before)
    chunks = np.stack([begins, np.maximum(ends - begins, 0)], axis=1)
    parts = {kind: np.empty((0, 2), np.int64) for kind in KINDS}
    parts["inner chunks"] = chunks[chunks[:, 1] > 0]
    parts["index"] = np.array([[index_at, index_nbytes]], np.int64)
    if user is not None and user.mark_at is not None:
        where = user.where
        parts["header"] = _nonempty([[where.first, where.chunks - where.first]])
        parts["footer"] = _nonempty([[where.footer, where.end - where.footer]])
        parts["padding"] = _nonempty([[user.mark_at, where.footer - user.mark_at]])
    gaps = _gaps(np.concatenate(list(parts.values())), nbytes)
    if user is None:
        is_known = np.zeros(len(gaps), np.bool_)
    elif user.is_marked:
        is_known = (gaps[:, 1] < user.alignment) & (gaps.sum(axis=1) % user.alignment == 0)
        parts["padding"] = np.concatenate([parts["padding"], gaps[is_known]])
    else:
        is_known = (gaps[:, 0] < user.where.chunks) | (gaps[:, 0] >= (ends[-1] if len(ends) else 0))
        parts["unmarked"] = gaps[is_known]
    parts["dead"] = gaps[~is_known]
    return parts


def _nonempty(ranges: list[list[int]]) -> Ranges:
    return np.array([pair for pair in ranges if pair[1] > 0], np.int64).reshape(-1, 2)


def _gaps(taken: Ranges, nbytes: int) -> Ranges:
    """Return the ranges between ranges that do not overlap, except that inner chunks may lie in the index."""
    taken = taken[np.argsort(taken[:, 0], kind="stable")]
    ends = np.maximum.accumulate(taken.sum(axis=1))
    begins = np.concatenate([[0], ends])
    stops = np.concatenate([taken[:, 0], [nbytes]])
    gaps = np.stack([begins, stops - begins], axis=1)
    return gaps[gaps[:, 1] > 0]


def stored_order(by_offset: np.ndarray[Any, Any], grid_shape: tuple[int, ...]) -> str:
    """Return the name of the order in which inner chunks are stored; see `ShardLayout.order`.

    by_offset: positions of the existing inner chunks, in the order of their offsets.
    """
    fitting = [name for name in ORDERS if _is_ascending(_ranks(name, grid_shape)[by_offset])]
    if not fitting:
        return "other"
    return "any" if len(fitting) == len(ORDERS) else fitting[0]


def _is_ascending(values: np.ndarray[Any, Any]) -> bool:
    return bool((values[1:] > values[:-1]).all())


@functools.lru_cache(maxsize=6)
def _ranks(name: str, grid_shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the rank of each position in an order."""
    n = int(np.prod(grid_shape, dtype=np.int64))
    positions = np.empty(n, np.uint64)
    native.load().order(positions, grid_shape, name)
    ranks = np.empty(n, np.int64)
    ranks[positions.astype(np.int64)] = np.arange(n)
    return ranks
