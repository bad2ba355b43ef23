# read.py - parts of many objects into one array
# SPDX-License-Identifier: MIT
"""Reading.

One call, whatever the number of objects: the engine opens local files itself, takes bytes in memory as they are, and
fills in what does not exist.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import cancel, native
from ..errors import ShardError, ShardFormatError
from ..options import Options
from ..storage import index_cache
from ..storage.retry import Patience
from .regions import PLAIN_KINDS, Box, Parts, Points, as_void, n_touched
from .staged import chunks as staged_chunks
from .staged import read as staged_read

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "ATTEMPTS",
    "INLINE_NBYTES",
    "INLINE_OBJECTS",
    "MAX_GAP_NBYTES",
    "ReadItem",
    "decoded_nbytes",
    "explain",
    "index_too_short",
    "is_changing",
    "leaves_the_thread",
    "read",
    "read_nbytes",
    "slice_reader",
]

# Local files: bytes that are cheaper to read than to ask the kernel twice.
MAX_GAP_NBYTES = 16 << 10

# How often a read is begun while somebody changes the file, and how young a change has to be for that.
ATTEMPTS = 5
CHANGING_SECONDS = 2.0

# Work up to this many decoded bytes is done on an event loop itself: a hop to another thread would cost more.
INLINE_NBYTES = 1 << 20
# And so many objects: to open one takes as long as to decode some ten thousand bytes.
INLINE_OBJECTS = 16

# Which inner chunks so many points touch takes longer to count than the way to another thread and back.
MANY_POINTS = 1 << 14

# As much is decoded by one thread: waking another one would take as long.
SLICES_NBYTES = 256 << 10


class ReadItem(NamedTuple):
    """Parts of one object.

    Attributes
    ----------
    chain
        The compiled chain of the object.
    source : str, buffer or None
        A local path; the object's bytes; None for an object that is known not to exist.
    box : Box, Boxes, Lists or Points
    key : str
        How errors name the object.
    """

    chain: Chain
    source: Any
    box: Parts
    key: str


def leaves_the_thread(chain: Chain) -> bool:
    """Whether the chain's codecs wait for an event loop, which must not be the thread's own."""
    return chain.stage is not None and not chain.stage.one_by_one


def decoded_nbytes(chain: Chain, parts: Parts) -> int:
    """Bytes that are decoded for parts of an object: whole inner chunks, and the index.

    Where codecs need an event loop themselves, more than is decoded inline. For very many points no less than that.
    """
    if leaves_the_thread(chain):
        return INLINE_NBYTES + 1
    if not chain.is_shard:
        return int(math.prod(chain.shape) * chain.itemsize)
    inner = int(math.prod(chain.inner.shape) * chain.itemsize)
    many = isinstance(parts, Points) and len(parts.froms[0]) > MANY_POINTS
    n = int(chain.n_chunks) if many else n_touched(parts, chain)
    return n * inner + int(chain.index_nbytes)


def read_nbytes(chain: Chain, parts: Parts) -> int:
    """The same for a read: of chunks that are stored as they are only the rows are read between those that are wanted."""
    inner: Any = chain.inner if chain.is_shard else chain
    plain = chain.is_shard and inner.fixed_nbytes == inner.nbytes
    if not plain or not isinstance(parts, Box) or inner.perm != tuple(range(len(inner.shape))):
        return decoded_nbytes(chain, parts)
    shape = list(inner.shape)
    for i, axis in enumerate(chain.perm):
        shape[i] = min(shape[i], parts.count[axis])
        if shape[i] > 1:
            break
    return int(n_touched(parts, chain) * math.prod(shape) * chain.itemsize + chain.index_nbytes)


def explain(error: ShardError, items: Sequence[Any]) -> ShardError:
    """Say in terms of keys and grid positions what the engine says in numbers of a plan."""
    position = error.shard
    if not isinstance(position, int) or not 0 <= position < len(items):
        return error
    item = items[position]
    context: dict[str, Any] = {"shard": item.key}
    grid_shape = item.chain.grid_shape
    if error.entry is not None and item.chain.inner is not None and error.entry < item.chain.n_chunks:
        context["chunk_coords"] = (
            tuple(int(i) for i in np.unravel_index(error.entry, grid_shape)) if grid_shape else ()
        )
    error.shard = None
    return error.with_context(**context)


def index_too_short(key: str, nbytes: int, index_nbytes: int) -> ShardFormatError:
    """Return the error for an object that cannot hold its index."""
    error = ShardFormatError(
        f"object is too short to hold its index: expected at least {index_nbytes} bytes, got {nbytes}",
        nbytes=nbytes,
        limit=index_nbytes,
    )
    return error.with_context(shard=key)


def read(
    items: Sequence[ReadItem],
    out: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    patience: Patience | None = None,
) -> list[int]:
    """Read parts of objects into an array.

    Parameters
    ----------
    items : sequence of ReadItem
        Their parts do not overlap in the array. Each object is opened once and each inner chunk decoded once, so all
        that is wanted of an object belongs into one item.
    out : ndarray
        Destination; any strides. Its dtype is the one the chains were compiled for.
    axes : sequence of int
        Which axis of `out` each axis of the chunks is; -1 for an axis that it lacks. Points need none.
    patience : Patience, optional
        How long to wait for files that another client replaces: a thread that runs an event loop must not at all.

    Returns
    -------
    list of int
        Positions of items whose object does not exist: their parts hold the fill value.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        An object is damaged; of several faults the one in the first item. `out` is unspecified then.
    OSError
        A file could not be read.
    """
    plan = [(item.chain, item.source, item.box) for item in items]
    how: dict[str, Any] = {
        "n_threads": options.threads,
        "max_gap_nbytes": MAX_GAP_NBYTES,
        "allow_in_index": options.allow_in_index,
        "cancel": cancel.current(),
    }
    native_how = how
    if not (in_stages := staged_chunks.is_staged(items)):
        kept = index_cache.shared(options.index_cache, options.open_files)
        native_how = how | {"cache": None if kept is None else kept.native, "immutable": options.immutable}
    patience = patience or Patience()
    attempt = 1
    while True:
        try:
            if in_stages:
                missing, _ = staged_read.read(plan, out, axes, staging_nbytes=options.staging_nbytes, **how)
            else:
                missing, _ = native.load().read(plan, as_void(out), axes, **native_how)
        except ShardError as error:
            if attempt == ATTEMPTS or not _is_changing(error, items):
                raise explain(error, items) from error.__cause__
            attempt += 1
        except OSError as error:
            patience.wait(error)
        else:
            if not missing or not patience.misses(items[i].source for i in missing):
                return missing  # type: ignore[no-any-return]


def slice_reader(chain: Chain, dtype: np.dtype[Any], options: Options, **of_array: Any) -> Any:
    """Make the native reader of small boxes; with more about an array, of those in its files.

    Returns
    -------
    SliceReader, ArraySlices or None
        None where memory or chunks are not of the usual kind. Whatever fails there should be tried again with `read`.
    """
    if chain.stage is not None or dtype.kind not in PLAIN_KINDS:
        return None
    kept = index_cache.shared(options.index_cache, options.open_files)
    how = {
        "max_nbytes": SLICES_NBYTES,
        "max_gap_nbytes": MAX_GAP_NBYTES,
        "allow_in_index": options.allow_in_index,
        "cache": None if kept is None else kept.native,
        "immutable": options.immutable,
        **of_array,
    }
    module = native.load()
    return module.ArraySlices(chain, dtype=dtype, **how) if of_array else module.SliceReader(chain, **how)


def _is_changing(error: ShardError, items: Sequence[ReadItem]) -> bool:
    position = error.shard
    source = items[position].source if isinstance(position, int) and position < len(items) else None
    return isinstance(source, str) and is_changing(source)


def is_changing(path: str) -> bool:
    """Tell whether a fault may be that of a moment: in a file that was changed in place just now.

    A writer that appends lets a file shrink to its new end, and overwrites an index at the start, or inner chunks: who
    reads between two looks at such a file sees bytes of two states.
    """
    try:
        return abs(time.time() - os.stat(path).st_mtime) < CHANGING_SECONDS
    except OSError:
        return False
