# read.py - read parts of many objects into one array
# SPDX-License-Identifier: MIT
"""Read parts of files and of objects in memory with one native call, for any number of objects.

The engine opens local files itself, reads bytes in memory where they are, and fills the parts of missing objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from ..errors import ChecksumError, CodecError, ShardError, ShardFormatError
from ..options import Options
from ..storage import indexes
from ..storage.budget import MAX_GAP_NBYTES
from ..storage.indexes import IndexCache
from ..storage.retry import Patience, retry
from .inner_chunks import coordinates, element_coordinates
from .regions import Box, Points, Selection, as_void, covers, has_buffer_format, n_touched

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "INLINE_NBYTES",
    "INLINE_OBJECTS",
    "ObjectSelection",
    "decoded_nbytes",
    "explain",
    "index_too_short",
    "is_damage",
    "leaves_the_thread",
    "path_of",
    "plan_reader",
    "read",
    "read_nbytes",
    "slice_reader",
    "with_key",
]


# Work up to this many decoded bytes runs on an event loop itself, because a change of threads would cost more.
INLINE_NBYTES = 1 << 20
# The same for the number of objects: to open one takes as long as to decode ten thousand bytes.
INLINE_OBJECTS = 16

# From this number of points on, to count the touched inner chunks costs more than a change of threads.
MANY_POINTS = 1 << 14

# Up to this many bytes one thread decodes alone, because to wake another one would take as long.
SLICES_NBYTES = 256 << 10


class ObjectSelection(NamedTuple):
    """The elements of one object that a call reads or writes. A tuple, because a small read would notice the time to make a dataclass.

    key: key of the object, or its name in errors. source, for `read`: the path of a local file, or the descriptor of an open
    one; the bytes of the object; None for a missing object. inside, for a write: extents of the part of the object that lies
    within the array; None: the whole object does, or it is not known. Elements beyond it are kept if the old object is not
    damaged, because another process may have appended them. ends_at_edge, for a write: the box has all elements of the object
    that lie within the array, and elements beyond its shape, from before the array was made smaller, are not kept. So zarr
    writes chunks without shards.
    """

    key: str
    chain: Chain
    box: Selection
    source: Any = None
    ends_at_edge: bool = False
    inside: tuple[int, ...] | None = None

    @property
    def covers(self) -> bool:
        """True if the box is the whole chunk."""
        return covers(self.box, self.chain.shape)

    @property
    def replaces(self) -> bool:
        """True if a write does not depend on the stored object."""
        return self.ends_at_edge or self.covers


def is_staged(items: Sequence[Any]) -> bool:
    """Return True if the items need codecs without native code. Only the first is looked at: all are of one array."""
    return bool(items) and items[0].chain.stage is not None


def leaves_the_thread(chain: Chain) -> bool:
    """Return True if the codecs of the chain wait for an event loop, so they must not run in the thread of one."""
    return chain.stage is not None and not chain.stage.one_by_one


def decoded_nbytes(chain: Chain, selection: Selection) -> int:
    """Return the number of bytes that are decoded for parts of an object: whole inner chunks, and the index.

    The result is an upper bound for very many points, and more than `INLINE_NBYTES` if the codecs need an event loop.
    """
    if leaves_the_thread(chain):
        return INLINE_NBYTES + 1
    if not chain.is_shard:
        return int(math.prod(chain.shape) * chain.itemsize)
    inner = int(math.prod(chain.inner.shape) * chain.itemsize)
    many = isinstance(selection, Points) and len(selection.froms[0]) > MANY_POINTS
    n = int(chain.n_chunks) if many else n_touched(selection, chain)
    return n * inner + int(chain.index_nbytes)


def read_nbytes(chain: Chain, selection: Selection) -> int:
    """Return the bytes that a read decodes, as `decoded_nbytes`; of raw inner chunks only the rows within the box count."""
    inner: Any = chain.inner if chain.is_shard else chain
    plain = chain.is_shard and inner.is_plain
    if not plain or not isinstance(selection, Box) or inner.perm != tuple(range(len(inner.shape))):
        return decoded_nbytes(chain, selection)
    shape = list(inner.shape)
    for i, axis in enumerate(chain.perm):
        shape[i] = min(shape[i], selection.count[axis])
        if shape[i] > 1:
            break
    return int(n_touched(selection, chain) * math.prod(shape) * chain.itemsize + chain.index_nbytes)


def explain(error: ShardError, items: Sequence[Any]) -> ShardError:
    """Return an error of the engine with keys and grid positions instead of numbers of a plan."""
    position = error.shard
    if not isinstance(position, int) or not 0 <= position < len(items):
        return error
    return with_key(error, items[position].chain, items[position].key)


def with_key(error: ShardError, chain: Chain, key: str) -> ShardError:
    """Return an error about one object with its key and the grid position of the inner chunk, unless it has a key."""
    if isinstance(error.shard, str):
        return error
    context: dict[str, Any] = {"shard": key}
    if error.entry is not None and chain.inner is not None and error.entry < chain.n_chunks:
        context["chunk_coords"] = coordinates(error.entry, chain.grid_shape)
    if (element := element_coordinates(error.element, chain)) is not None:
        context["element_coords"] = element
    error.shard = None
    return error.with_context(**context)


def is_damage(error: Exception) -> bool:
    """Return True if an error says that stored bytes are damaged: not for a file that changes, or that cannot be read."""
    is_about_bytes = isinstance(error, ShardFormatError | ChecksumError | CodecError)
    return is_about_bytes and not getattr(error, "changed", False)


def index_too_short(key: str, nbytes: int, index_nbytes: int) -> ShardFormatError:
    """Return the error for an object that cannot hold its index."""
    error = ShardFormatError(
        f"object is too short to hold its index: expected at least {index_nbytes} bytes, got {nbytes}",
        nbytes=nbytes,
        limit=index_nbytes,
    )
    return error.with_context(shard=key)


def _native_settings(options: Options) -> dict[str, Any]:
    return {
        "n_threads": options.threads,
        "max_gap_nbytes": MAX_GAP_NBYTES,
        "allow_in_index": options.allow_in_index,
        **options.io_rules,
    }


def _with_cache(options: Options, cache: IndexCache | None) -> dict[str, Any]:
    of_cache = {"cache": None if cache is None else cache.native, "immutable": options.immutable}
    return _native_settings(options) | of_cache


def plan_reader(options: Options, cache: IndexCache | None) -> Any:
    """Return a native reader for many calls; its errors name positions in a plan. cache: decoded indexes."""
    return native.load().PlanReader(**_with_cache(options, cache))


def read(
    items: Sequence[ObjectSelection],
    out: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    patience: Patience | None = None,
) -> list[int]:
    """Read parts of objects into an array; return the positions of items whose object does not exist, which get the fill value.

    items: each object once, so that each inner chunk is decoded once; they do not overlap in the array. out: of the dtype for
    which the chains were compiled. axes: for each axis of the chunks the axis of `out`, -1 for none; ignored for points.
    patience: in a thread that runs an event loop ``Patience(0)``. The first damaged item is reported; then the content of `out`
    is unspecified.
    """
    in_stages = is_staged(items)
    plan = [(item.chain, item.source, item.box) for item in items]

    def work() -> list[int]:
        try:
            if not in_stages:
                how = _with_cache(options, indexes.of_options(options)) | {"cancel": native.current()}
                return list(native.load().read(plan, as_void(out), axes, **how)[0])
            from .staged import read as staged_read  # here, because most arrays have only native codecs

            how = _native_settings(options) | {"cancel": native.current()}
            return staged_read.read(plan, out, axes, staging_nbytes=options.staging_nbytes, **how)[0]
        except ShardError as error:
            raise explain(error, items) from error.__cause__

    return retry(
        work,
        lambda error: path_of(error, ((item.key, item.source) for item in items)),
        again=lambda missing, patience: patience.misses(items[i].source for i in missing),
        patience=patience,
    )


def slice_reader(chain: Chain, dtype: np.dtype[Any], options: Options, **of_array: Any) -> Any:
    """Return the native fast path for small boxes; None if this chain or dtype (that of the memory) has none.

    of_array: files and geometry of an array (`_native.ArraySlices`); without them the reader gets paths of files. After an error
    of the reader call `read`, whose error names the object.
    """
    if chain.stage is not None or not has_buffer_format(dtype):
        return None
    kept = indexes.of_options(options)
    how = {
        "max_nbytes": SLICES_NBYTES,
        "max_gap_nbytes": MAX_GAP_NBYTES,
        "allow_in_index": options.allow_in_index,
        "cache": None if kept is None else kept.native,
        "immutable": options.immutable,
        **options.io_rules,
        **of_array,
    }
    module = native.load()
    return module.ArraySlices(chain, dtype=dtype, **how) if of_array else module.SliceReader(chain, **how)


def path_of(error: Exception, sources: Iterable[tuple[str, Any]]) -> str | None:
    """Return the file of the object that an error names, for `retry`; `sources` are pairs of a key and a source of `read`."""
    key = getattr(error, "shard", None)
    return next((source for name, source in sources if name == key and isinstance(source, str)), None)
