# convert.py - copy an array of the 2022 format to shards of Zarr v3
# SPDX-License-Identifier: MIT
"""Copy an array of the 2022 format to shards of Zarr v3.

Convert arrays of the 2022 format to Zarr v3.

An encoded inner chunk has the same bytes in both formats. So each shard is copied: its inner chunks in the order of
their offsets, without the gaps between them, and a new index. The metadata of an array is written last: after an
interruption the destination has objects, but no metadata that refers to them.

Source: requirement ST-18.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import zarr

from ...access.inner_chunks import coordinates
from ...access.opened_shard import shard_object
from ...access.placement import ABSENT
from ...access.shard import Shard
from ...access.shard_writer import ShardWriter
from ...arguments import checked
from ...compat import Store, StorePath, buffer_from, default_buffer_prototype, quiet, sync
from ...errors import ShardFormatError, UnsupportedError
from ...format.metadata import KeyEncoding
from ...format.spec import ShardSpec
from ...option_sources import current_options
from ...options import Durability, Options, check
from ...storage.files import open_file, staging_for
from ...storage.kinds import store_of
from ...storage.store import check_store_writable
from ...storage.waiting import WorkerThreads
from ...storage.whole_file import put_file, sync_documents
from ...zarr_plugin.enable import attach
from .metadata import LegacyArray, array_key, data_prefix, normalized, parse_json
from .open import as_store, check_understood, legacy_store, naming
from .translate import to_v3

__all__ = [
    "Destination",
    "Source2022",
    "convert_2022",
    "destination_v3",
    "put",
]


# ---------------------------------------------------------------- the hierarchy of Zarr v3 that receives converted arrays
#
# Write a converted array so that a reader sees all of it or nothing: chunks first, metadata last.
#
# An array that is replaced is removed in the opposite order.


def put(target: StorePath, data: Any, *, durable: bool) -> None:
    """Store an object in one step; `durable` waits until a file and its name are on disk."""
    path = store_of(target.store).path(target.path)
    if path is None:
        sync(target.set(buffer_from(default_buffer_prototype(), data)))
        return
    put_file(path, [data], sync=durable, staging=staging_for(path))
    if durable:
        sync_documents([os.path.realpath(path)])


def _get(store: Store, key: str) -> bytes | None:
    buffer = sync(store.get(key, prototype=default_buffer_prototype()))
    return None if buffer is None else buffer.to_bytes()


def _keys(store: Store, prefix: str) -> list[str]:
    """List the keys below a folder; an empty list if the store does not support listing."""

    async def listed() -> list[str]:
        return [key async for key in store.list_prefix(prefix)]

    return sync(listed()) if store.supports_listing else []


class Destination:
    """A hierarchy of Zarr v3."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @staticmethod
    def _metadata(path: str) -> str:
        return f"{path}/zarr.json" if path else "zarr.json"

    def check_free(self, path: str, *, overwrite: bool) -> None:
        """Check that an array can be written at a path; nothing is removed, see `clear`.

        Parameters
        ----------
        path : str
            Path of the new array in the store; "" for the root.
        overwrite : bool
            Permit an array, which `clear` removes, and chunks without metadata, as an aborted conversion leaves them.

        Raises
        ------
        FileExistsError
            The store has metadata at the path, or any key below it. With `overwrite`: it has metadata of another node
            than an array, or, without metadata, a key that is not a chunk key. Keys that the store cannot list are not
            checked.
        UnsupportedError
            With `overwrite`: an array exists, and the store cannot list or delete.
        """
        stored = _get(self.store, self._metadata(path))
        if stored is not None:
            if parse_json(stored, self._metadata(path)).get("node_type") != "array" or not overwrite:
                raise FileExistsError(f"{self._metadata(path)!r} exists already in {self.store}")
            if not (self.store.supports_listing and self.store.supports_deletes):
                reason = "overwrite=True needs a store that can list and delete"
                raise UnsupportedError(f"{self._metadata(path)!r} exists already in {self.store}; {reason}")
            return
        prefix = f"{path}/" if path else ""
        for key in _keys(self.store, prefix):
            if not overwrite or not key.startswith((f"{prefix}c/", f"{prefix}c.")):
                reason = "overwrite=True removes only arrays and chunks without metadata"
                raise FileExistsError(f"{key!r} exists already in {self.store}; {reason}")

    def check_group(self, path: str) -> None:
        """Check that a group can be written at a path; raise FileExistsError if it has metadata of another node."""
        stored = _get(self.store, self._metadata(path))
        if stored is not None and parse_json(stored, self._metadata(path)).get("node_type") != "group":
            raise FileExistsError(f"an array exists already in {self.store}: {self._metadata(path)!r}")

    def clear(self, path: str, *, overwrite: bool) -> None:
        """Remove all keys at and below a path, the metadata first; do nothing without `overwrite`.

        The caller has called `check_free`. Without metadata at the path, keys that the store cannot list stay.
        """
        if not overwrite:
            return
        prefix = f"{path}/" if path else ""
        if _get(self.store, self._metadata(path)) is not None:
            sync(self.store.delete(self._metadata(path)))
            sync(self.store.delete_dir(path))
        for key in _keys(self.store, prefix):
            sync(self.store.delete(key))

    def key(self, path: str, document: Mapping[str, Any], coords: tuple[int, ...]) -> str:
        """Return the key in the store of a chunk of an array; `document` is the array's zarr.json, parsed."""
        key = KeyEncoding.from_metadata(document).key(coords)
        return f"{path}/{key}" if path else key

    def finish(self, path: str, document: Mapping[str, Any], *, sync: bool) -> None:
        """Store a node's zarr.json, which makes the node visible to readers; `sync` waits until it is on disk."""
        data = json.dumps(document, indent=2).encode()
        put(StorePath(self.store, self._metadata(path)), data, durable=sync)

    def finish_group(self, path: str, attributes: Mapping[str, Any], *, sync: bool) -> None:
        """Store a group's zarr.json, unless the path has one; `sync` waits until it is on disk."""
        if _get(self.store, self._metadata(path)) is None:
            self.finish(path, {"zarr_format": 3, "node_type": "group", "attributes": attributes}, sync=sync)


def destination_v3(store: Store) -> Destination:
    """Return a hierarchy of Zarr v3 for new arrays.

    Raises
    ------
    FileExistsError
        The store has a hierarchy of the 2022 format.
    """
    stored = _get(store, "zarr.json")
    if stored is not None and parse_json(stored, "zarr.json").get("zarr_format") != 3:
        raise FileExistsError(
            f"expected a hierarchy of Zarr v3 or an empty store, got another format in {store}"
        )
    return Destination(store)


# ---------------------------------------------------------------- `convert_2022`: copy arrays of the 2022 format to Zarr v3

Progress = Callable[[int, int], Any]

# Bytes of encoded inner chunks that each thread holds at a time, if the destination is written piece by piece.
PIECE_NBYTES = 16 << 20

# From this number of shards on, one listing replaces a request for each shard that may be absent.
LISTING_SHARDS = 4096


@checked
def convert_2022(
    src: Any,
    dst: Any,
    *,
    path: str = "",
    dst_path: str | None = None,
    index_checksum: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
    durability: Durability | None = None,
) -> Any:
    """Convert an array, or all arrays of a group, from the 2022 format to Zarr v3; no inner chunk is decoded.

    Parameters
    ----------
    src : path-like, zarr store, StorePath, Array or Group
        The source, a hierarchy of the 2022 format.
    dst : path-like, zarr store or StorePath
        The destination, a hierarchy of Zarr v3, which need not exist.
    path : str
        Path of the array or group in the source.
    dst_path : str, optional
        Its path in the destination; the same as `path` by default.
    index_checksum : bool
        Add a crc32c to the index of each shard, which the 2022 format does not have.
    overwrite : bool
        Remove an array at the destination first. Without it the destination must be empty, also of the chunks of an
        interrupted conversion.
    progress : callable, optional
        Called with the number of objects that are copied and the number of all objects of the array.
    threads : int, optional
        Number of shards that are copied at a time.
    durability : {"rename", "fsync"}, optional
        Durability of each file, as in `shardcodec.options`.

    Returns
    -------
    zarr.Array or zarr.Group
        The converted array or group, opened.

    Raises
    ------
    SpecError, UnsupportedError
        The metadata is wrong, or Zarr v3 cannot express it; nothing was written.
    FileExistsError
        The destination is not empty, or it is a hierarchy of another format.
    FileNotFoundError
        The source has no such array or group.
    TypeError, ValueError
        An argument is wrong.
    ShardFormatError, ChecksumError
        The index of a shard is damaged, or an uncompressed inner chunk has an impossible size. The
        destination has no metadata of this array.

    Notes
    -----
    Bytes to which no index entry refers (replaced inner chunks, headers, footers) are not copied. Memory is bounded by `threads`
    times 16 MiB or the largest inner chunk, if the destination is a local folder; otherwise by `threads` times a whole shard.
    Each converted shard is consistent. The array is consistent only if no other writer changes the source during the conversion.

    Examples
    --------
    >>> shardcodec.transformer.convert_2022("old.zr3", "new.zarr", path="volume")
    """
    options = current_options(argument=check({"threads": threads, "durability": durability}))
    source = Source2022(src, path)
    base, prefix = as_store(dst)
    check_store_writable(base)
    place = normalized(f"{prefix}/{path if dst_path is None else dst_path}")
    target = destination_v3(base)
    nodes = list(source.nodes())
    plans = [
        (source.plan(node, index_checksum), normalized(f"{place}/{node}"))
        for node, is_array in nodes
        if is_array
    ]
    for _, at in plans:
        target.check_free(at, overwrite=overwrite)
    groups = [
        (source.attributes(node), normalized(f"{place}/{node}")) for node, is_array in nodes if not is_array
    ]
    for _, at in groups:
        target.check_group(at)
    for plan, at in plans:
        target.clear(at, overwrite=overwrite)
        _copy_all(plan, target, at, options, progress)
        target.finish(at, plan.document, sync=options.durability == "fsync")
    for attributes, at in sorted(groups, key=lambda group: -len(group[1])):  # the innermost first
        target.finish_group(at, attributes, sync=options.durability == "fsync")
    with quiet():
        made = zarr.open(store=base, path=place, mode="r+", zarr_format=3)
    return attach(made) if isinstance(made, zarr.Array) else made


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class _Plan:
    """A plan to copy one array.

    ``document`` is the metadata of the copy. ``here`` and ``there`` describe the shards of source and destination as
    maps from positions to encoded bytes, None for an array without shards. ``fixed_nbytes`` is the size of every
    inner chunk, None if it varies.
    """

    store: Store
    document: Mapping[str, Any]
    keys: Callable[[tuple[int, ...]], str]
    grid_shape: tuple[int, ...]
    here: ShardSpec | None
    there: ShardSpec | None
    fixed_nbytes: int | None
    prefix: str


def _outer_shard(document: Mapping[str, Any]) -> ShardSpec:
    """Return a spec that treats the inner chunks of the outermost shards as bytes of any size, so that none is decoded."""
    sharding = document["codecs"][0]["configuration"]
    shard_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    grid = [a // b for a, b in zip(shard_shape, sharding["chunk_shape"], strict=True)]
    return ShardSpec(grid, [1] * len(grid), "uint8", 0, ["bytes", "gzip"], sharding["index_codecs"])


def _grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-extent // step) for extent, step in zip(shape, chunk, strict=True))


class Source2022:
    """A hierarchy of the 2022 format."""

    def __init__(self, src: Any, path: str) -> None:
        self._view, prefix = legacy_store(src, read_only=not isinstance(src, Store | StorePath))
        self._path = normalized(f"{prefix}/{path}")

    def _at(self, node: str) -> str:
        return normalized(f"{self._path}/{node}")

    def nodes(self) -> Iterator[tuple[str, bool]]:
        """Yield each array and group as (path below the source, True for an array); parses the metadata of all arrays.

        Raises
        ------
        FileNotFoundError
            There is neither an array nor a group at the path of the source.
        """
        if self._array(""):
            yield "", True
            return
        if sync(self._view.group(self._path)) is None:
            raise FileNotFoundError(
                f"path: expected an array or a group in {self._view}, found neither at {self._path!r}"
            )
        yield from self._below("")

    def _below(self, node: str) -> Iterator[tuple[str, bool]]:
        yield node, False
        for name in sorted(sync(_collected(self._view.list_dir(self._at(node))))):
            child = normalized(f"{node}/{name}")
            if name == "zarr.json":
                continue
            if self._array(child):
                yield child, True
            elif sync(self._view.group(self._at(child))) is not None:
                yield from self._below(child)

    def _array(self, node: str) -> LegacyArray | None:
        with naming(array_key(self._at(node), self._view.suffix)):
            return sync(self._view.array(self._at(node)))  # type: ignore[no-any-return]

    def attributes(self, node: str) -> Mapping[str, Any]:
        """Return the attributes of a group; empty if it has none."""
        return sync(self._view.group(self._at(node))) or {}

    def keys_of(self, node: str) -> tuple[KeyEncoding, int]:
        """Return the encoding of the keys of the chunks of an array behind the letter "c", and its number of axes."""
        array = self._array(node)
        if array is None:
            raise FileNotFoundError(
                f"path: expected an array in {self._view}, found none at {self._at(node)!r}"
            )
        return KeyEncoding(False, array.separator), len(array.shape)

    def plan(self, node: str, index_checksum: bool) -> _Plan:
        """Describe the conversion of an array."""
        path = self._at(node)
        array = self._array(node)
        if array is None:
            raise FileNotFoundError(f"path: expected an array in {self._view}, found none at {path!r}")
        with naming(array_key(path, self._view.suffix)):
            document = to_v3(array, index_checksum=index_checksum, names=True)
            check_understood(document)
            here = there = None
            if array.is_sharded:
                here, there = _outer_shard(to_v3(array)), _outer_shard(document)
        prefix, separator = f"{data_prefix(path)}c", array.separator

        def key(coords: tuple[int, ...]) -> str:
            return prefix + separator.join(map(str, coords or (0,)))

        fixed = None
        if array.compressor is None and not array.filters and len(array.stack) == 1:
            fixed = math.prod(array.chunk_shape) * array.dtype.itemsize
        grid = _grid(array.shape, array.shard_shape)
        return _Plan(self._view.base, document, key, grid, here, there, fixed, data_prefix(path))


async def _collected(keys: Any) -> list[str]:
    return [key async for key in keys]


# ---------------------------------------------------------------- copying


def _copy_all(plan: _Plan, target: Destination, at: str, options: Options, progress: Progress | None) -> None:
    """Copy all objects of an array, several at a time. After the first error no other copy is started, and it is raised."""
    coords = _existing(plan)
    total, done = len(coords), 0
    failed = threading.Event()

    def copy(where: tuple[int, ...]) -> None:
        if failed.is_set():
            return
        try:
            _copy(
                plan, plan.keys(where), StorePath(target.store, target.key(at, plan.document, where)), options
            )
        except BaseException:
            failed.set()
            raise

    work = iter(coords)
    with WorkerThreads[None](options.threads, "shardcodec-convert") as threads:
        n_running = 0
        while True:
            for where in itertools.islice(work, 2 * options.threads - n_running):
                threads.submit(copy, where)
                n_running += 1
            if not n_running or (ended := threads.next_finished()) is None:
                break
            n_running -= 1
            ended.result()
            done += 1
            if progress is not None:
                progress(done, total)


def _existing(plan: _Plan) -> list[tuple[int, ...]]:
    """Return the grid positions of objects that may exist: those in a listing for large arrays, otherwise all."""
    n = math.prod(plan.grid_shape)
    if n < LISTING_SHARDS or not plan.store.supports_listing:
        return [coordinates(i, plan.grid_shape) for i in range(n)]
    present = set(sync(_collected(plan.store.list_prefix(plan.prefix))))
    return [where for where in map(_position_of(plan), sorted(present)) if where is not None]


def _position_of(plan: _Plan) -> Callable[[str], tuple[int, ...] | None]:
    """Return a function from keys to positions in the grid; it returns None for a key that is no chunk."""

    def position(key: str) -> tuple[int, ...] | None:
        numbers = "".join(c if c.isdecimal() else " " for c in key.removeprefix(plan.prefix)).split()
        where = tuple(int(number) for number in numbers if len(number) < 20)
        if len(where) != len(plan.grid_shape) or any(
            a >= b for a, b in zip(where, plan.grid_shape, strict=True)
        ):
            return None
        return where if plan.keys(where) == key else None

    return position


def _copy(plan: _Plan, key: str, target: StorePath, options: Options) -> None:
    if plan.here is None or plan.there is None:
        _copy_object(plan.store, key, target, options)
        return
    with Shard(shard_object(plan.store, key), plan.here) as shard:
        if shard.exists:
            _copy_shard(shard, plan, target, options)


def _copy_shard(shard: Shard, plan: _Plan, target: StorePath, options: Options) -> None:
    shard.check()
    entries = shard.index.reshape(-1, 2)
    present = [i for i in entries[:, 0].argsort(kind="stable").tolist() if entries[i, 0] != ABSENT]
    grid = shard.grid_shape
    if plan.fixed_nbytes is not None:
        for i in present:
            if entries[i, 1] != plan.fixed_nbytes:
                at = coordinates(i, grid)
                raise ShardFormatError(
                    f"shard {shard.key!r}: inner chunk {at}: expected {plan.fixed_nbytes} bytes, got {entries[i, 1]}",
                    shard=shard.key,
                    chunk_coords=at,
                    expected=plan.fixed_nbytes,
                    actual=int(entries[i, 1]),
                )
    if not present:
        return
    path = store_of(target.store).path(target.path)
    assert plan.there is not None
    with contextlib.ExitStack() as stack:
        writer = ShardWriter(path, plan.there, durability=options.durability)
        stack.callback(writer.abort)
        for part in _pieces(entries[present].tolist()):
            some = present[part]
            offset, nbytes = int(entries[some[0], 0]), int(entries[some, 1].sum())
            coords = [coordinates(i, grid) for i in some]
            writer.write_joined(coords, entries[some, 1], shard.read_range(offset, nbytes))
        made = writer.commit()
    if path is None:
        sync(target.set(buffer_from(default_buffer_prototype(), made)))


def _pieces(entries: list[tuple[int, int]]) -> Iterator[slice]:
    """Group consecutive entries of a list, so that each group is one range of bytes in the shard.

    Parameters
    ----------
    entries : list of (int, int)
        Offset and nbytes of existing inner chunks, by ascending offset; not empty.

    Yields
    ------
    slice
        A group, as a slice of `entries`. Its inner chunks follow one another without gaps and have at most `PIECE_NBYTES`
        bytes together; a larger inner chunk is a group of its own.
    """
    first = total = 0
    end = None
    for i, (offset, nbytes) in enumerate(entries):
        if i > first and (offset != end or total + nbytes > PIECE_NBYTES):
            yield slice(first, i)
            first, total = i, 0
        end = offset + nbytes
        total += nbytes
    yield slice(first, len(entries))


def _copy_object(store: Store, key: str, target: StorePath, options: Options) -> None:
    path = store_of(store).path(key)
    if path is not None and (opened := open_file(path)) is not None:
        opened.close()  # zarr would take a folder or a link to nothing for an object that does not exist
    buffer = sync(store.get(key, prototype=default_buffer_prototype()))
    if buffer is not None:
        put(target, buffer.to_bytes(), durable=options.durability == "fsync")
