# convert.py - `convert_2022`: shards from one format to the other, inner chunks as they are
# SPDX-License-Identifier: MIT
"""Between the 2022 format and Zarr v3.

An encoded inner chunk is the same bytes in both, so shards are copied: inner chunks in the order in which they lie, without
the gaps between them, and an index of the other kind. Metadata comes last. What is interrupted leaves objects that
no metadata refers to.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import zarr

from ..access.placement import ABSENT
from ..access.shard import Shard
from ..access.stream import ShardWriter
from ..errors import ShardFormatError
from ..format.keys import KeyEncoding
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from ..zarr_plugin.compat import (
    Store,
    StorePath,
    buffer_from,
    default_buffer_prototype,
    max_workers,
    options_of_zarr,
    quiet,
    sync,
)
from ..zarr_plugin.shards import shard_object
from ..zarr_plugin.stores import check_writable, is_local, local_path
from ..zarr_plugin.switch import attach
from .backward import from_v3
from .destination import Destination, destination_2022, destination_v3, put
from .legacy import LegacyArray, array_key, data_prefix, normalized, parse_array
from .opened import as_store, check_understood, legacy_store, naming, open_2022
from .translate import Sharding, outer_sharding, to_v3

__all__ = ["convert_2022"]

Progress = Callable[[int, int], Any]

# Encoded bytes of a shard that are held at a time by each thread, where the destination takes them piece by piece.
PIECE_NBYTES = 16 << 20

# From so many shards on, one listing is worth it: what it does not show need not be asked for.
LISTING_SHARDS = 4096


def convert_2022(
    src: Any,
    dst: Any,
    *,
    path: str = "",
    dst_path: str | None = None,
    to: str = "v3",
    index_checksum: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
    durability: str | None = None,
) -> Any:
    """Convert an array, or all arrays of a group, between the 2022 format and Zarr v3; no inner chunk is decoded.

    Parameters
    ----------
    src : path-like, zarr store, StorePath, Array or Group
        The source: for ``to="v3"`` a hierarchy of the 2022 format, for ``to="2022"`` one of Zarr v3.
    dst : path-like, zarr store or StorePath
        Where the other hierarchy is, or will be.
    path, dst_path : str
        Of the array or group in its hierarchy; `dst_path` is `path` where it is not given.
    to : {"v3", "2022"}
    index_checksum : bool
        Give the index of shards of Zarr v3 a crc32c, which the 2022 format does not have.
    overwrite : bool
        Remove what is in the place of an array first. Without it that must be free, also of what an interrupted
        conversion has left.
    progress : callable, optional
        Called with the number of objects that have been copied, and of all of the array.
    threads : int, optional
        Shards that are copied at a time.
    durability : {"rename", "fsync"}, optional

    Returns
    -------
    zarr.Array or zarr.Group
        What has been made, opened.

    Raises
    ------
    SpecError, UnsupportedError
        The metadata is wrong, or says what the other format cannot: nothing has been written.
    FileExistsError
        The place is taken, or the destination is a hierarchy of another format.
    ShardFormatError, ChecksumError
        The index of a shard is damaged, or an inner chunk that is not compressed has a size which none can have. The
        destination has no metadata of this array.

    Notes
    -----
    Bytes that no index refers to (replaced inner chunks, headers, footers) are left behind. Memory is bounded by `threads` times
    16 MiB or the largest inner chunk, where the destination is a local file; a whole shard elsewhere. Other writers
    must not change the source meanwhile: each shard is consistent in itself, the array is not.

    Examples
    --------
    >>> shardcodec.transformer.convert_2022("old.zr3", "new.zarr", path="volume")
    >>> shardcodec.transformer.convert_2022("new.zarr", "back.zr3", path="volume", to="2022")
    """
    if to not in ("v3", "2022"):
        raise ValueError(f"to must be 'v3' or '2022', not {to!r}")
    options = resolve(
        argument=check({"threads": threads, "durability": durability}),
        config=options_of_zarr(),
        max_workers=max_workers(),
    )
    source: _Source2022 | _SourceV3 = _Source2022(src, path) if to == "v3" else _SourceV3(src, path)
    base, prefix = as_store(dst)
    check_writable(base)
    place = normalized(f"{prefix}/{path if dst_path is None else dst_path}")
    target: Destination = destination_v3(base) if to == "v3" else destination_2022(base)
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
    if to == "2022":
        return open_2022(base, place)
    with quiet():
        made = zarr.open(store=base, path=place, mode="r+", zarr_format=3)
    return attach(made) if isinstance(made, zarr.Array) else made


# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class _Plan:
    """How an array is copied.

    ``document`` is the metadata of the copy; ``here`` and ``there`` describe shards without regard to what is in their
    inner chunks, None for an array that is not sharded; ``fixed_nbytes`` is the size of each inner chunk, where all have one.
    """

    store: Store
    document: Mapping[str, Any]
    keys: Callable[[tuple[int, ...]], str]
    grid_shape: tuple[int, ...]
    here: ShardSpec | None
    there: ShardSpec | None
    fixed_nbytes: int | None
    prefix: str


def _carrier(sharding: Sharding, index_codecs: Any = None, index_location: str = "end") -> ShardSpec:
    """A shard as a map from positions to bytes of any size."""
    grid = [a // b for a, b in zip(sharding.shard_shape, sharding.chunk_shape, strict=True)]
    if index_codecs is None:
        index_codecs, index_location = sharding.index_codecs, sharding.index_location
    location: Any = index_location
    return ShardSpec(grid, [1] * len(grid), "uint8", 0, ["bytes", "gzip"], index_codecs, location)


def _grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-extent // step) for extent, step in zip(shape, chunk, strict=True))


class _Source2022:
    """A hierarchy of the 2022 format."""

    def __init__(self, src: Any, path: str) -> None:
        self._view, prefix = legacy_store(src, read_only=not isinstance(src, Store | StorePath))
        self._path = normalized(f"{prefix}/{path}")

    def _at(self, node: str) -> str:
        return normalized(f"{self._path}/{node}")

    def nodes(self) -> Iterator[tuple[str, bool]]:
        """Yield paths within the source and whether there is an array; the metadata of all are looked at."""
        if self._array(""):
            yield "", True
            return
        if sync(self._view.group(self._path)) is None:
            raise FileNotFoundError(f"there is neither an array nor a group {self._path!r} in {self._view}")
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
        """Return the attributes of a group."""
        return sync(self._view.group(self._at(node))) or {}

    def plan(self, node: str, index_checksum: bool) -> _Plan:
        """Describe the conversion of an array."""
        path = self._at(node)
        array = self._array(node)
        if array is None:
            raise FileNotFoundError(f"there is no array {path!r} in {self._view}")
        with naming(array_key(path, self._view.suffix)):
            document = to_v3(array, index_checksum=index_checksum, names=True)
            check_understood(document)
            shown = to_v3(array)
            here = there = None
            if array.is_sharded:
                here = _carrier(_sharding(shown))
                there = _carrier(_sharding(document))
        prefix, separator = f"{data_prefix(path)}c", array.separator

        def key(coords: tuple[int, ...]) -> str:
            return prefix + separator.join(map(str, coords or (0,)))

        fixed = None
        if array.compressor is None and not array.filters and len(array.stack) == 1:
            fixed = math.prod(array.chunk_shape) * array.dtype.itemsize
        grid = _grid(array.shape, array.shard_shape)
        return _Plan(self._view.base, document, key, grid, here, there, fixed, data_prefix(path))


class _SourceV3:
    """A hierarchy of Zarr v3."""

    def __init__(self, src: Any, path: str) -> None:
        self._store, prefix = as_store(src, read_only=True)
        self._path = normalized(f"{prefix}/{path}")

    def _node(self, node: str) -> Any:
        with quiet():
            mode: Any = "r+" if not self._store.read_only else "r"
            return zarr.open(
                store=self._store, path=normalized(f"{self._path}/{node}"), mode=mode, zarr_format=3
            )

    def nodes(self) -> Iterator[tuple[str, bool]]:
        """Yield paths within the source and whether there is an array."""
        top = self._node("")
        yield "", isinstance(top, zarr.Array)
        if isinstance(top, zarr.Group):
            with quiet():
                members = top.members(max_depth=None)
            for name, member in members:
                yield name, isinstance(member, zarr.Array)

    def attributes(self, node: str) -> Mapping[str, Any]:
        """Return the attributes of a group."""
        return dict(self._node(node).attrs)

    def plan(self, node: str, index_checksum: bool) -> _Plan:
        """Describe the conversion of an array."""
        path = normalized(f"{self._path}/{node}")
        name = f"{path}/zarr.json" if path else "zarr.json"
        buffer = sync(self._store.get(name, prototype=default_buffer_prototype()))
        if buffer is None:
            raise FileNotFoundError(f"there is no {name} in {self._store}")
        metadata = json.loads(buffer.to_bytes())
        with naming(name):
            check_understood(metadata)
            document = from_v3(metadata)
            array = parse_array(document)
            keys = KeyEncoding.from_metadata(metadata)
            sharding = outer_sharding(metadata)
            here = there = None
            if sharding is not None:
                here, there = _carrier(sharding), _carrier(_sharding(to_v3(array)))
        fixed = None
        if array.compressor is None and not array.filters and len(array.stack) == 1:
            fixed = math.prod(array.chunk_shape) * array.dtype.itemsize

        def key(coords: tuple[int, ...]) -> str:
            return f"{path}/{keys.key(coords)}" if path else keys.key(coords)

        grid = _grid(array.shape, array.shard_shape)
        return _Plan(self._store, document, key, grid, here, there, fixed, f"{path}/" if path else "")


def _sharding(metadata: Mapping[str, Any]) -> Sharding:
    sharding = outer_sharding(metadata)
    assert sharding is not None
    return sharding


async def _collected(keys: Any) -> list[str]:
    return [key async for key in keys]


# ---------------------------------------------------------------- copying


def _copy_all(plan: _Plan, target: Destination, at: str, options: Options, progress: Progress | None) -> None:
    """Copy all objects, several at a time; after an error nothing new is begun."""
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
    with ThreadPoolExecutor(options.threads, "shardcodec-convert") as pool:
        running: set[Future[None]] = set()
        try:
            while True:
                for where in work:
                    running.add(pool.submit(copy, where))
                    if len(running) >= 2 * options.threads:
                        break
                if not running:
                    break
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
                    done += 1
                    if progress is not None:
                        progress(done, total)
        except BaseException:
            failed.set()
            raise


def _existing(plan: _Plan) -> list[tuple[int, ...]]:
    """Positions of objects that may exist, in order: those that a listing shows, or all."""
    n = math.prod(plan.grid_shape)
    if n < LISTING_SHARDS or not plan.store.supports_listing:
        return [_coords(i, plan.grid_shape) for i in range(n)]
    present = set(sync(_collected(plan.store.list_prefix(plan.prefix))))
    return [where for where in map(_position_of(plan), sorted(present)) if where is not None]


def _position_of(plan: _Plan) -> Callable[[str], tuple[int, ...] | None]:
    """From keys to positions in the grid; None for what is no chunk of it."""

    def position(key: str) -> tuple[int, ...] | None:
        numbers = "".join(c if c.isdecimal() else " " for c in key.removeprefix(plan.prefix)).split()
        where = tuple(int(number) for number in numbers if len(number) < 20)
        if len(where) != len(plan.grid_shape) or any(
            a >= b for a, b in zip(where, plan.grid_shape, strict=True)
        ):
            return None
        return where if plan.keys(where) == key else None

    return position


def _coords(i: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    coords: list[int] = []
    for extent in reversed(grid):
        i, rest = divmod(i, extent)
        coords.insert(0, rest)
    return tuple(coords)


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
                at = _coords(i, grid)
                raise ShardFormatError(
                    f"shard {shard.key!r}: inner chunk {at}: {entries[i, 1]} bytes stored where {plan.fixed_nbytes} are due",
                    shard=shard.key,
                    chunk_coords=at,
                    expected=plan.fixed_nbytes,
                    actual=int(entries[i, 1]),
                )
    if not present:
        return
    path = local_path(target) if is_local(target.store) else None
    assert plan.there is not None
    with contextlib.ExitStack() as stack:
        writer = ShardWriter(path, plan.there, durability=options.durability)
        stack.callback(writer.abort)
        for part in _pieces(entries[present].tolist()):
            some = present[part]
            offset, nbytes = int(entries[some[0], 0]), int(entries[some, 1].sum())
            coords = [_coords(i, grid) for i in some]
            writer.write_joined(coords, entries[some, 1], shard.read_range(offset, nbytes))
        made = writer.commit()
    if path is None:
        sync(target.set(buffer_from(default_buffer_prototype(), made)))


def _pieces(entries: list[tuple[int, int]]) -> Iterator[slice]:
    """Inner chunks that lie one behind the other, some at a time."""
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
    buffer = sync(store.get(key, prototype=default_buffer_prototype()))
    if buffer is not None:
        put(target, buffer.to_bytes(), durable=options.durability == "fsync")
