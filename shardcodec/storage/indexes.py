# indexes.py - caches of shard indexes of local files and remote objects; a file with sizes of inner chunks
# SPDX-License-Identifier: MIT
"""Caches of shard indexes of local files and remote objects; a file with the sizes of inner chunks.

The engine compares an opened local file with its state when the index was read. A remote index is cached with the state of
its object (the entity tag), which a request for ranges then requires. Either way a hit is as reliable as a new read of the
index. If the store does not identify states, an index is cached only if the user declares objects ``immutable``.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import struct
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from ..arguments import checked
from ..errors import ShardFileError
from ..options import Options
from .files import check_name, open_file
from .whole_file import put_file

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "IndexCache",
    "RemoteIndex",
    "Sidecar",
    "drop",
    "forget",
    "get",
    "put",
    "shared",
    "ticket",
]

# Maximum number of shared caches, one for each pair of the options `index_cache` and `open_files`; each has its own bound.
MAX_SHARED = 8


class IndexCache:
    """A cache of decoded shard indexes with a bound in bytes; it evicts the least recently used index first.

    Threads and arrays may share a cache. It is empty in a forked child and after unpickling.

    Parameters
    ----------
    max_bytes : int
        Bound in bytes of all cached indexes, 16 bytes for each inner chunk of a shard; 0 caches none.
    max_open_files : int
        Number of local files that stay open between calls. A call then checks that the name still leads to the open
        file, instead of opening it; this is faster on network file systems. 0 keeps none open.

    Raises
    ------
    ValueError
        A size is negative.

    Notes
    -----
    An index of more than 256 KiB is cached at its second read. An index is not cached if its file was changed less than
    two seconds before the read, because the times of the file could not reveal another change.

    Examples
    --------
    >>> cache = shardcodec.IndexCache(2**20)
    >>> arrays = [shardcodec.open_array("a.zarr", index_cache=cache) for _ in range(2)]
    >>> [int(array[0, 1]) for array in arrays]
    [1, 1]
    """

    @checked
    def __init__(self, max_bytes: int, *, max_open_files: int = 0, _grain_ns: int | None = None) -> None:
        if not (0 <= max_bytes < 2**63 and 0 <= max_open_files < 2**31):
            raise ValueError(
                f"expected sizes from 0 to 2^63 - 1 and 2^31 - 1, got max_bytes={max_bytes}, max_open_files={max_open_files}"
            )
        self._arguments = (max_bytes, max_open_files, _grain_ns)
        grain = {} if _grain_ns is None else {"grain_ns": _grain_ns}
        self._cache = native.load().Cache(max_bytes, max_open_files, **grain)
        self._mutex = threading.Lock()
        self._n_drops = 0
        with _all_mutex:
            _all.add(self)

    @property
    def max_bytes(self) -> int:
        """Bound in bytes of all cached indexes."""
        return self._arguments[0]

    @property
    def native(self) -> Any:
        """The native cache."""
        return self._cache

    def ticket(self) -> int:
        """Return a number for `put`. The caller takes it before it fetches an index.

        Returns
        -------
        int
            Number of removals from the cache so far.
        """
        return self._n_drops

    def get(self, key: str, chain: Chain) -> np.ndarray[Any, Any] | None:
        """Return the cached index of an object that is not a local file, without a check that it is still current.

        The module's `get` includes the state of the object in `key`, so that a caller can detect a stale index.
        The engine itself looks up local files.

        Parameters
        ----------
        key : str
            Name of the object, unique among all stores of the process.
        chain
            The compiled chain of the shard.

        Returns
        -------
        ndarray of uint64, shape (n_chunks, 2), or None
            Offset and size of each inner chunk in bytes, in C order over the stored grid; both 2^64-1 for an absent one.
            It is a read-only view of cached memory, which stays valid after an eviction. None if the cache has no index of
            this object, or one of another size or encoding than the chain has.
        """
        index = self._cache.get(key, chain)
        return None if index is None else np.frombuffer(index, dtype=np.uint64).reshape(-1, 2)

    def put(self, key: str, chain: Chain, entries: np.ndarray[Any, Any], ticket: int) -> None:
        """Cache a copy of a decoded index whose checksum was verified.

        Does nothing if any object was dropped since the ticket was taken, because the index may be stale.

        Parameters
        ----------
        key : str
            Name of the object, as for `get`.
        chain
            The compiled chain of the shard.
        entries : ndarray of uint64, shape (n_chunks, 2)
            Offset and size of each inner chunk in bytes.
        ticket : int
            Result of `ticket` from before the index was fetched.
        """
        with self._mutex:
            if ticket == self._n_drops:
                self._cache.put(key, chain, entries)

    def drop(self, keys: Iterable[str]) -> None:
        """Remove the indexes of objects that a writer has changed.

        Parameters
        ----------
        keys : iterable of str
            Names of the objects; local files are named by their paths.
        """
        with self._mutex:
            for key in keys:
                self._n_drops += 1
                self._cache.drop(key)

    def clear(self) -> None:
        """Empty the cache."""
        with self._mutex:
            self._n_drops += 1
            self._cache.clear()

    def info(self) -> dict[str, int]:
        """Return bounds, current sizes, and counters since the creation of the cache.

        Returns
        -------
        dict of str to int
            ``max_nbytes``, ``nbytes`` and ``n_indexes``: bound and size of the cached indexes in bytes, and their number.
            ``hits``, ``misses``, ``evictions``: counters of indexes. ``max_files``, ``n_files``: bound and number of open
            files. ``file_hits``, ``file_misses``: counters of open files.
        """
        return dict(self._cache.info())

    def __repr__(self) -> str:
        return f"IndexCache({self._arguments[0]}, max_open_files={self._arguments[1]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


def _again(max_bytes: int, max_open_files: int, grain_ns: int | None) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files, _grain_ns=grain_ns)


_all: weakref.WeakSet[IndexCache] = weakref.WeakSet()
_all_mutex = threading.RLock()  # reentrant, because garbage collection may run a destructor at any point


@functools.lru_cache(maxsize=MAX_SHARED)
def _shared(max_bytes: int, max_open_files: int) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files)


def shared(max_bytes: int, max_open_files: int) -> IndexCache | None:
    """Return the cache with these bounds that all calls of this process share; None if both are 0."""
    return _shared(max_bytes, max_open_files) if max_bytes or max_open_files else None


def drop(keys: Iterable[str]) -> None:
    """Remove the indexes of changed objects from every cache of this process; `keys` as for `IndexCache.drop`."""
    keys = list(keys)
    with _all_mutex:
        caches = list(_all)
    for cache in caches:
        cache.drop(keys)


# ---------------------------------------------------------------- indexes of remote objects, with the states of the objects

# Maximum number of objects with a remembered state; the cache bounds the indexes themselves.
MAX_STATES = 1 << 16


@dataclass(frozen=True, eq=False)
class RemoteIndex:
    """An index, and the state of its object as the store reported it.

    nbytes: size of the object, if it is known. state: its name; see `storage.store.Answer`. is_sound: the size of
    the object is known to fit all entries. is_confirmed: False if the index comes from the cache and the object may have
    changed since.
    """

    entries: np.ndarray[Any, Any]
    nbytes: int | None
    state: Any
    is_sound: bool = False
    is_confirmed: bool = True

    def matches(self, other: RemoteIndex) -> bool:
        """Return True if state and entries are equal, so that both indexes seem to be of one state of the object."""
        return bool(self.state == other.state and np.array_equal(self.entries, other.entries))


_states: OrderedDict[str, tuple[int | None, Any, bool]] = OrderedDict()
_states_mutex = threading.Lock()


def _begin_child() -> None:
    """Replace the mutexes in a forked child, because threads of the parent may have held them.

    The native caches empty themselves.
    """
    global _all_mutex, _states_mutex
    _all_mutex = threading.RLock()
    _states_mutex = threading.Lock()
    for cache in list(_all):
        cache._mutex = threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


def _cache_of(options: Options, state: Any, cache: IndexCache | None) -> IndexCache | None:
    """Return the cache for an index; None if a reader could not detect that the index is stale."""
    if state is None and not options.immutable:
        return None
    return shared(options.index_cache, options.open_files) if cache is None else cache


def _name_of_state(name: str, state: Any) -> str:
    """Return the name of an index with its state, so that the index of another state is never found."""
    return name if state is None else f"{name}\0{state}"


def ticket(options: Options, cache: IndexCache | None = None) -> int:
    """Return a number for `put` of the same cache; take it before fetching an index."""
    cache = shared(options.index_cache, options.open_files) if cache is None else cache
    return 0 if cache is None else cache.ticket()


def get(name: str, chain: Chain, options: Options, cache: IndexCache | None = None) -> RemoteIndex | None:
    """Return the index of an object, or None if it is not cached.

    `name` is unique among all stores of the process. `cache` is searched instead of the cache of the options.
    """
    with _states_mutex:
        remembered = _states.get(name)
        if remembered is None:
            return None
        _states.move_to_end(name)
    nbytes, state, is_sound = remembered
    cache = _cache_of(options, state, cache)
    entries = None if cache is None else cache.get(_name_of_state(name, state), chain)
    if entries is None:
        return None
    return RemoteIndex(entries, nbytes, state, is_sound, is_confirmed=options.immutable)


def put(
    name: str,
    chain: Chain,
    index: RemoteIndex,
    options: Options,
    since: int,
    cache: IndexCache | None = None,
) -> None:
    """Cache an index with a checked checksum, if a later call can use it; `since` is the `ticket` of the same cache."""
    cache = _cache_of(options, index.state, cache)
    if cache is None:
        return
    cache.put(_name_of_state(name, index.state), chain, index.entries, since)
    with _states_mutex:
        _states[name] = index.nbytes, index.state, index.is_sound
        _states.move_to_end(name)
        while len(_states) > MAX_STATES:
            _states.popitem(last=False)


def forget(names: Iterable[str]) -> None:
    """Remove the indexes and states of remote objects that were written; `drop` is for local files."""
    names = list(names)
    with _states_mutex:
        for name in names:
            _states.pop(name, None)
    drop(names)


# ---------------------------------------------------------------- a cache file for the sizes of inner chunks

# The sizes of an object are stored with its lasting state (size and entity tag, or size and times of a file). A caller
# passes the current one, so stale sizes are never used. A file that is lost, damaged, or of another array only costs the
# requests that it would have saved.
#
#     "shardst1"  crc32c of all that follows, 4 bytes  size of the table, 4 bytes
#     table: JSON {"of": .., "objects": [[key, state, itemsize, nbytes], ..]}
#     of each object in turn: a zlib stream of nbytes bytes: the sizes + 1 (0: absent), the lowest byte of all sizes first
#
# The file is always replaced as a whole, so the last of several concurrent writers determines its content.
MAGIC = b"shardst1"
HEAD = struct.Struct("<8sII")

# Larger files are neither written nor read.
MAX_NBYTES = 256 << 20

Sizes = np.ndarray[Any, np.dtype[np.uint64]]

_log = logging.getLogger("shardcodec")


class _PackedSizes(NamedTuple):
    """The compressed sizes of one shard's inner chunks, and the state of the object that they belong to."""

    state: str
    itemsize: int
    packed: bytes


class Sidecar:
    """A file with the sizes of the inner chunks of an array's shards, for `chunk_state`; without offsets it serves no read.

    identity: name of the array and of the layout of its indexes; a file of another identity is ignored. max_nbytes: bound of
    the file; the least recently used objects are evicted first. ShardFileError: the path is a FIFO, a socket or a device.
    """

    def __init__(
        self, path: str | os.PathLike[str], identity: str, n_chunks: int, max_nbytes: int = MAX_NBYTES
    ) -> None:
        # a link stays one when the file is replaced
        self._path = os.path.realpath(check_name(os.fspath(path)))
        self._identity = identity
        self._n_chunks = n_chunks
        self._max_nbytes = max_nbytes
        self._is_changed = False
        self._kept: dict[str, _PackedSizes] = {}  # the most recently used last
        try:
            self._kept = self._load()
        except ShardFileError:
            raise
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            self._is_changed = True  # `save` replaces the file
            _log.warning("%s: expected a cache file, this one is ignored: %s", self._path, error)

    def _load(self) -> dict[str, _PackedSizes]:
        """Read the file; raise an error if it is not a cache of this array. Without a file the cache is empty."""
        if os.path.isdir(self._path):
            raise ValueError("it is a folder")
        if (opened := open_file(self._path)) is None:
            return {}
        with opened as file:
            data = file.read(self._max_nbytes + 1)
        if len(data) > self._max_nbytes:
            raise ValueError(f"it has more than {self._max_nbytes} bytes")
        if len(data) < HEAD.size:
            raise ValueError(f"it has {len(data)} bytes")
        magic, crc, n_table = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("it is another kind of file")
        if crc != native.load().crc32c(memoryview(data)[12:]):
            raise ValueError("its checksum is wrong")
        begin = HEAD.size + n_table
        table = json.loads(data[HEAD.size : begin])
        if table["of"] != self._identity:
            raise ValueError("it is about another array")
        cached = {}
        for key, state, itemsize, nbytes in table["objects"]:
            cached[str(key)] = _PackedSizes(str(state), int(itemsize), data[begin : begin + nbytes])
            begin += nbytes
        return cached

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str, state: str | None) -> Sizes | None:
        """Return the sizes of an object's inner chunks, 2^64-1 for an absent one; None if not cached for this state."""
        packed = self._kept.get(key)
        if packed is None or state is None or packed.state != state:
            return None
        sizes = self._unpack(packed)
        if sizes is None:
            _log.warning("%s: the sizes of %r are damaged and are ignored", self._path, key)
            del self._kept[key]
            self._is_changed = True
            return None
        self._kept[key] = self._kept.pop(key)
        return sizes

    def _unpack(self, sizes: _PackedSizes) -> Sizes | None:
        """Return the sizes of inner chunks; None if the compressed sizes are damaged."""
        nbytes = sizes.itemsize * self._n_chunks
        if sizes.itemsize not in (1, 2, 4, 8):
            return None
        try:
            data = zlib.decompressobj().decompress(sizes.packed, nbytes + 1)
        except zlib.error:
            return None
        if len(data) != nbytes:
            return None
        planes = np.frombuffer(data, dtype=np.uint8).reshape(sizes.itemsize, self._n_chunks)
        numbers = np.ascontiguousarray(planes.T).view(f"<u{sizes.itemsize}").reshape(-1)
        return numbers.astype(np.uint64) - np.uint64(1)  # 0 becomes 2^64-1

    def put(self, key: str, state: str | None, sizes: Sizes) -> None:
        """Cache the sizes of an object's inner chunks in memory, until `save`; 2^64-1 stands for an absent one.

        Do nothing without a state, because stale sizes could not be detected.
        """
        if state is None:
            return
        numbers = sizes + np.uint64(1)
        highest = int(numbers.max(initial=0))
        itemsize = next(n for n in (1, 2, 4, 8) if highest < 1 << 8 * n)
        planes = numbers.astype(f"<u{itemsize}").view(np.uint8).reshape(-1, itemsize).T
        self._kept.pop(key, None)
        self._kept[key] = _PackedSizes(state, itemsize, zlib.compress(planes.tobytes(), 1))
        self._is_changed = True

    def keep_only(self, keys: Container[str]) -> None:
        """Remove the sizes of all objects except `keys`, the objects that still exist, from the cache."""
        for key in [key for key in self._kept if key not in keys]:
            del self._kept[key]
            self._is_changed = True

    def save(self) -> None:
        """Write the cache to its file if the cache has changed since it was loaded or saved.

        A new file replaces the old one in one step, so readers see one of the two; it is not synced to disk. The cached
        sizes that another process has saved meanwhile are lost. If the file cannot be written, the error is logged and
        not raised, the old file stays, and the next `save` does nothing unless the cache changes again.
        """
        if not self._is_changed:
            return
        self._is_changed = False
        chosen, table = self._chosen()
        body = b"".join([struct.pack("<I", len(table)), table, *(kept.packed for _, kept in chosen)])
        crc = native.load().crc32c(body)
        try:
            if not os.path.isdir(os.path.dirname(self._path)):
                raise FileNotFoundError("its folder does not exist")
            put_file(self._path, [MAGIC + struct.pack("<I", crc), body])
        except (OSError, ShardFileError) as error:
            _log.warning("cannot write the cache %s: %s", self._path, error)

    def _chosen(self) -> tuple[list[tuple[str, _PackedSizes]], bytes]:
        """Return the objects to write, the most recently used first, and their table as JSON.

        Objects that do not fit into ``max_nbytes`` are left out.
        """
        last_first = list(reversed(self._kept.items()))
        rows = [json.dumps([key, kept.state, kept.itemsize, len(kept.packed)]) for key, kept in last_first]
        head, tail = f'{{"of": {json.dumps(self._identity)}, "objects": [', "]}"
        nbytes = itertools.accumulate(
            (len(row) + 2 + len(kept.packed) for row, (_, kept) in zip(rows, last_first, strict=True)),
            initial=HEAD.size + len(head) + len(tail),
        )
        n = max(0, sum(total <= self._max_nbytes for total in nbytes) - 1)
        return last_first[:n], (head + ", ".join(rows[:n]) + tail).encode()
