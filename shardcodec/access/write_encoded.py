# write_encoded.py - inner chunks that are encoded already, written into shards
# SPDX-License-Identifier: MIT
"""Writing without encoding: a shard as a map from positions to bytes.

Inner chunks that somebody else has encoded (another process, another codec than ours, another shard) are laid into a
shard as they are; the rest of the shard is carried over as in every partial write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import cancel, native
from ..errors import UnsupportedError
from ..options import Options
from ..storage import index_cache
from ..storage.requests import OwnBytes
from .old_shard import Looker, run
from .placement import ABSENT, Gone, new_sizes
from .user_bytes import Extents, Kept, UserBytes, find, kept_alignment, lay_out

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["NOTHING", "EncodedItem", "check_size", "ordered", "write_encoded"]

NOTHING: Gone = np.empty(0, dtype=np.intp)


class EncodedItem(NamedTuple):
    """Encoded inner chunks for one shard.

    Attributes
    ----------
    chain
        The compiled chain of the shard.
    path : str or None
        A local file; None when the new object is to come back as bytes.
    old : buffer or None
        The old object where it is not in a file.
    chunks : mapping
        From positions in the index to buffers, which are stored as they are, laid out in the order of the mapping.
    key : str
        How errors name the shard.
    gone : ndarray of intp
        Positions of inner chunks that are absent from now on: each once, and none that `chunks` names.
    user : UserBytes or None
        What becomes of header and footer. None: they are bytes like all others that no inner chunk refers to.
    old_fd : int or None
        The old shard in a file, opened (and locked) by the caller; `file_locks.NO_FILE`: the caller has found none, and
        one that is there by now must not be replaced; None: it is opened here.
    complete : bool
        Inner chunks that are not named are absent from now on. The old object is not looked at.
    """

    chain: Chain
    path: str | None
    old: Any
    chunks: Mapping[int, Any]
    key: str
    gone: Gone = NOTHING
    user: UserBytes | None = None
    old_fd: int | None = None
    complete: bool = False


def write_encoded(
    items: Sequence[EncodedItem],
    options: Options,
    *,
    keep_empty: bool = False,
    staging: str | None = None,
    exist: list[int] | None = None,
    versions: dict[int, bytes] | None = None,
) -> list[Any]:
    """Write encoded inner chunks into shards; those that are not named stay as they are.

    Sizes are not looked at: see `check_size`. A shard all of whose inner chunks are named is not read.

    Parameters
    ----------
    items : sequence of EncodedItem
        Each shard once.
    keep_empty : bool
        Make an object also where no inner chunk is left.
    staging, exist
        As for `write.write`.
    versions : dict, optional
        For a single item: gets under 0 what names the state of the file that was made; empty where there is none.

    Returns
    -------
    list
        For each item without a path its new bytes, a buffer; None where no inner chunk is left, so that the object is
        to be deleted. With a path always None.

    Raises
    ------
    UnsupportedError
        Inner chunks cannot be reached one by one: codecs follow the sharding.
    ShardFormatError, ChecksumError
        The old shard is damaged where it would have been carried over; it is as it was.
    OSError
        A file could not be written; the old one is as it was. Items before it may have been written.
    """
    engine = native.load()
    for item in items:
        if not item.chain.is_shard:
            raise UnsupportedError(
                f"shard {item.key!r}: codecs that follow the sharding hide its inner chunks", shard=item.key
            )

    def call(plan: list[tuple[Any, ...]]) -> Any:
        return engine.write_encoded(
            plan,
            keep_empty=keep_empty,
            sync=options.durability == "fsync",
            staging=staging,
            n_threads=options.threads,
            cancel=cancel.current(),
            versions=versions,
        )

    try:
        return run(items, _keeps, _described, call, options, exist)
    finally:
        index_cache.drop(item.path for item in items if item.path is not None)


def _keeps(item: EncodedItem) -> bool:
    """Tell whether the old shard counts."""
    if item.complete:
        return False
    return bool(item.user is not None or len(item.chunks) + len(item.gone) != item.chain.n_chunks)


def _described(looker: Looker, position: int) -> tuple[Any, ...]:
    item = looker.items[position]
    old, footer = _old_object(looker, position) if _keeps(item) else (looker.unread(position), None)
    return (item.chain, item.path, list(item.chunks), _buffers(item), old, footer)


def _buffers(item: EncodedItem) -> list[Any]:
    """The given inner chunks; copies of those in the old object's memory, of which the new object is made."""
    if not isinstance(item.old, OwnBytes):
        return list(item.chunks.values())

    def is_apart(chunk: Any) -> bool:
        empty = memoryview(chunk).nbytes == 0
        return empty or not np.may_share_memory(np.frombuffer(chunk, dtype=np.uint8), item.old)

    return [chunk if is_apart(chunk) else bytes(chunk) for chunk in item.chunks.values()]


def _old_object(looker: Looker, position: int) -> tuple[tuple[Any, ...] | None, Any]:
    """What is kept of the old object, and the footer."""
    item = looker.items[position]

    @functools.cache
    def replaced() -> np.ndarray[Any, np.dtype[np.bool_]]:
        mask = np.zeros(item.chain.n_chunks, dtype=np.bool_)
        mask[np.fromiter(item.chunks, dtype=np.intp, count=len(item.chunks))] = True
        mask[item.gone] = True
        return mask

    def sizes() -> np.ndarray[Any, np.dtype[np.uint64]]:
        return new_sizes(_sizes(item), item.chain.n_chunks)

    if item.user is not None:
        return _laid_out(looker, position, replaced)
    # what goes needs no slots
    news = sizes if item.chunks else lambda: None
    return looker.shard(position, replaced, replaced, news, item.gone, reuse=True), None


def _sizes(item: EncodedItem) -> dict[int, int]:
    return {p: memoryview(chunk).nbytes for p, chunk in item.chunks.items()}


def _laid_out(
    looker: Looker, position: int, unread: Callable[[], np.ndarray[Any, np.dtype[np.bool_]]]
) -> tuple[tuple[Any, ...], Any]:
    """The same where the item says what becomes of header and footer: every place is settled here. What there is of them is marked."""
    item = looker.items[position]
    chain, user = item.chain, item.user
    old = looker.index(position, unread)
    first = chain.index_nbytes if chain.index_at_start else 0
    entries = np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64)
    found: Kept | None = Kept(Extents(first, first, first, first), b"", 1)
    if old is not None:
        entries = old.entries
        found = find(entries, old.nbytes, chain.index_nbytes, chain.index_at_start, old.read)
    if found is None:
        raise UnsupportedError(
            f"shard {item.key!r}: inner chunks that lie in the index leave no header and footer to keep",
            shard=item.key,
        )
    alignment = user.alignment or kept_alignment(found, entries)
    placement = lay_out(entries, _sizes(item), item.gone, found.where, user._replace(alignment=alignment))
    footer = found.footer if user.footer is None else memoryview(user.footer).cast("B")
    new = found._replace(footer=footer, alignment=user.alignment or found.alignment)
    marked = new._replace(alignment=alignment) if new.has_any else None
    if old is not None:
        return old.described(placement, user=marked), footer
    told = None if marked is None else (0, footer, alignment)
    return (None, None, None, None, placement.entries, placement.data_offset, None, None, told), footer


def check_size(chain: Chain, position: int, nbytes: int) -> None:
    """Refuse an encoded inner chunk of a size that none of this shard can have.

    Raises
    ------
    ValueError
    """
    due = chain.inner.fixed_nbytes
    if due is not None and nbytes != due:
        coords = (
            tuple(int(i) for i in np.unravel_index(position, chain.grid_shape)) if chain.grid_shape else ()
        )
        raise ValueError(
            f"inner chunk {coords}: {nbytes} bytes given, but every encoded inner chunk has {due}"
        )


def ordered(positions: Sequence[int], grid_shape: Sequence[int], order: str) -> list[int]:
    """Sort positions of inner chunks into the sequence in which a writer lays them out."""
    if order == "lexicographic" or len(positions) < 2:
        return sorted(positions)
    wanted = np.asarray(positions, dtype=np.int64)
    coords = np.unravel_index(wanted, tuple(grid_shape))
    first = [int(axis.min()) for axis in coords]
    last = [int(axis.max()) for axis in coords]
    box = np.empty(int(np.prod([b - a + 1 for a, b in zip(first, last, strict=True)])), dtype=np.uint64)
    native.load().order(box, grid_shape, order, first, last)
    return [int(position) for position in box[np.isin(box, wanted.astype(np.uint64))]]
