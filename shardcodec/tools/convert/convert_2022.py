# convert_2022.py - a hierarchy of the 2022 format as a new one of Zarr v3, shard by shard
# SPDX-License-Identifier: MIT
"""`convert_2022`: write a hierarchy of the 2022 format as a new one of Zarr v3, shard by shard.

An encoded inner chunk has the same bytes in the 2022 format and in Zarr v3. So each shard is copied: its inner chunks in
the order of their offsets, without the gaps between them, and a new index.

Source: requirement ST-18.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from ...access.inner_chunks import coordinates
from ...access.placement import ABSENT
from ...access.shard import Shard
from ...access.shard_object import shard_object
from ...arguments import checked
from ...compat import on_zarrs_loop
from ...errors import ShardFormatError, UnsupportedError
from ...format.array_document import encoded_document, json_object
from ...format.chunk_keys import key_encoding
from ...option_sources import current_options
from ...options import Durability, Options, check
from ...readable import format_count
from ...storage.kinds import object_at
from ...transformer.legacy_2022.open import open_converted
from ..capped import Capped
from ..job_mark import has_claim
from ..memory import MemoryBudget, MemoryShare
from ..monitor import Monitor, passes_on_signals
from ..names import is_own_name, node_path
from ..new_hierarchy import NewHierarchy, check_apart
from ..other_objects import ObjectCounts, OtherObject, OtherObjects, count_objects
from ..rewrite import copy_chunks, stored_runs
from ..shard_threads import in_order
from .source_2022 import LegacyPlan, Source2022, collected

__all__ = ["convert_2022"]

Progress = Callable[[int, int], Any]


# Bytes of encoded inner chunks that each thread holds at a time.
PIECE_NBYTES = 16 << 20

# From this number of shards on, one listing replaces a request for each shard that may be absent.
LISTING_SHARDS = 4096


@passes_on_signals
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
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Convert an array, or all arrays of a group, from the 2022 format to Zarr v3; no inner chunk is decoded.

    Parameters
    ----------
    src : path-like, zarr store, StorePath, Array or Group
        The source, a hierarchy of the 2022 format.
    dst : path-like, URL, zarr store or StorePath
        The destination, a hierarchy of Zarr v3, which need not exist.
    path : str
        Path of the array or group in the source.
    dst_path : str, optional
        Its path in the destination; the same as `path` by default.
    index_checksum : bool
        Add a crc32c to the index of each shard, which the 2022 format does not have.
    overwrite : bool
        First remove an array at the destination, or what an earlier conversion of the same source has written, also an interrupted
        one. Without it nothing may be there but an empty folder.
    progress : callable, optional
        Called with the number of objects that are copied and the number of all objects of the array, without others.
    threads : int, optional
        Number of shards that are copied at a time.
    durability : {"rename", "fsync"}, optional
        Durability of each file, as in `shardcodec.options`.
    storage_options : mapping, optional
        Only if `dst` is a URL; as for `shardcodec.tools.convert`.

    Returns
    -------
    zarr.Array or zarr.Group
        The converted array or group, opened.

    Raises
    ------
    SpecError, UnsupportedError
        The metadata is wrong, or Zarr v3 cannot express it; nothing was written.
    FileExistsError
        There is something at the destination; with `overwrite`, something else. Or it is in an array or a hierarchy of the 2022 format.
    FileNotFoundError
        The source has no such array or group.
    TypeError, ValueError
        An argument is wrong; source and destination are inside each other.
    ShardFormatError, ChecksumError
        The index of a shard is damaged, or an uncompressed inner chunk has an impossible size. The
        destination has no metadata of this array.

    Notes
    -----
    Objects that belong to no array are copied as they are. A `RuntimeWarning` names those that cannot be copied, before anything is
    written. Bytes of shards to which no index entry refers (replaced inner chunks,
    headers, footers) are not copied. Memory is bounded by `threads` times 16 MiB or the largest inner chunk, and by whole objects for
    a destination that takes only those.

    Each converted shard is consistent. The array is consistent only if no other writer changes the source during the conversion.

    Examples
    --------
    >>> transformer.convert_2022("old.zr3", "new.zarr", path="volume")  # doctest: +SKIP
    """
    options = current_options(argument=check({"threads": threads, "durability": durability}))
    source = Source2022(src, path)
    new_path = (path.replace("\\", "/") if dst_path is None else dst_path).strip("/")
    new = NewHierarchy(dst, storage_options, path=new_path)
    check_apart(source.base, new.store_path)
    if overwrite:
        new.check_around()
    else:
        new.check_free("after an interrupted conversion repeat it with overwrite=True")
    nodes = list(source.nodes())
    for part in source.left.values():
        raise OSError(f"group {part.name!r}: {part.reason}")
    plans = {node: source.plan(node, index_checksum) for node, is_array in nodes if is_array}
    documents = {
        node: plans[node].document if is_array else _group(source.attributes(node))
        for node, is_array in nodes
    }
    for node in documents:
        node_path(node)
    others, monitor = source.others(), Monitor()
    _warn_of(count_objects(others, monitor, options.threads))
    if overwrite:
        _make_room(new, documents, others)
    budget = MemoryBudget(None)
    for node, plan in plans.items():
        _copy_array(plan, new, node, options, progress)
    new.copy_others(others, budget, options, monitor, may_replace=False)
    stored = {node: {"zarr.json": encoded_document(document)} for node, document in documents.items()}
    new.write_documents(stored, may_replace=False)
    return open_converted(new.store_path)


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _warn_of(counts: ObjectCounts) -> None:
    """Warn of the objects that are left out."""
    if not counts.n_left:
        return
    left = Capped.of(f"{one.name}: {one.reason}" for one in counts.left)
    left.n = counts.n_left
    warnings.warn(
        f"{format_count(counts.n_left, 'object')} that convert_2022 does not copy: {left.text('; ', end='; ')}",
        RuntimeWarning,
        stacklevel=4,
    )


def _make_room(new: NewHierarchy, documents: Mapping[str, Mapping[str, Any]], others: OtherObjects) -> None:
    """Remove what an earlier conversion of the same nodes has written, metadata first.

    Nothing is removed, and `FileExistsError` raised, if there is anything else, a link to another folder, or the mark of a job.
    """
    has_claim(new, "")
    if (link := new.linked_folder()) is not None:
        raise FileExistsError(
            f"{link}: expected a folder of the destination, but it is a symbolic link to another one"
        )
    paths = {node: f"{node}/" if node else "" for node in documents}
    existing = []
    for node in documents:
        if (stored := new.get(f"{paths[node]}zarr.json")) is None:
            continue
        if json_object(stored, f"{paths[node]}zarr.json").get("node_type") != documents[node]["node_type"]:
            raise FileExistsError(f"{new.place}: expected no other node, but it has {paths[node]}zarr.json")
        existing.append(node)
    if existing and not new.can_clear:
        raise UnsupportedError(
            f"{new.place}: {paths[existing[0]]}zarr.json exists already, and overwrite=True needs a store that can list and delete"
        )
    arrays = [node for node in documents if documents[node]["node_type"] == "array"]
    known = {other.name for other in others if isinstance(other, OtherObject)}
    known.update(f"{paths[node]}zarr.json" for node in documents)
    whole = tuple(paths[node] for node in existing if node in arrays)
    chunks = tuple(f"{paths[node]}c{separator}" for node in arrays for separator in "/.")
    names = list(new.names())
    for name in names:
        is_chunk = name.startswith((*whole, *chunks)) or any(name == f"{paths[node]}c" for node in arrays)
        if not is_chunk and name not in known and not is_own_name(name):
            raise FileExistsError(
                f"{new.place}: {name!r} exists already; overwrite=True removes only arrays and what an interrupted conversion leaves"
            )
    new.clear(sorted(names, key=lambda name: (name.rpartition("/")[2] != "zarr.json", name)))


def _copy_array(
    plan: LegacyPlan, new: NewHierarchy, node: str, options: Options, progress: Progress | None
) -> None:
    """Copy all objects of an array, several at a time. After the first error no other copy is started, and it is raised."""
    keys = key_encoding(plan.document)

    def copy(where: tuple[int, ...]) -> None:
        name = keys.key(where)
        _copy(plan, plan.keys(where), new, f"{node}/{name}" if node else name, options)

    coords = _existing(plan)
    with closing(in_order(coords, copy, options.threads, Monitor())) as copies:
        for done, _ in enumerate(copies, 1):
            if progress is not None:
                progress(done, len(coords))


def _copy(plan: LegacyPlan, key: str, new: NewHierarchy, name: str, options: Options) -> None:
    if plan.source is None or plan.destination is None:
        store, stored_key, _ = object_at(plan.store, key)
        durable = options.durability == "fsync"
        new.copy(store, stored_key, name, MemoryBudget(None), durable=durable, may_replace=False)
        return
    with Shard(shard_object(plan.store, key), plan.source) as shard:
        if not shard.exists:
            return
        shard.check()
        places = shard.index.reshape(-1, 2)
        present = [i for i in places[:, 0].argsort(kind="stable").tolist() if places[i, 0] != ABSENT]
        _check_sizes(plan, shard, present)
        if present:
            share = MemoryShare(1, PIECE_NBYTES)
            runs = stored_runs(shard.read_range, places, present, shard.grid_shape, shard.key, share)
            with new.writer(name, plan.destination, durability=options.durability) as writer:
                copy_chunks(writer, runs)


def _check_sizes(plan: LegacyPlan, shard: Shard, present: list[int]) -> None:
    """Raise `ShardFormatError` for an uncompressed inner chunk of another size than that of its elements."""
    sizes = shard.index.reshape(-1, 2)[:, 1].tolist()
    expected = plan.fixed_nbytes
    for i in present:
        if expected is not None and sizes[i] != expected:
            at = coordinates(i, shard.grid_shape)
            raise ShardFormatError(
                f"shard {shard.key!r}: inner chunk {at}: expected {expected} bytes, got {sizes[i]}",
                shard=shard.key,
                chunk_coords=at,
                expected=expected,
                actual=sizes[i],
            )


def _existing(plan: LegacyPlan) -> list[tuple[int, ...]]:
    """Return the grid positions of objects that may exist: those in a listing for large arrays, otherwise all."""
    n = math.prod(plan.grid_shape)
    if n < LISTING_SHARDS or not plan.store.supports_listing:
        return [coordinates(i, plan.grid_shape) for i in range(n)]
    present = set(on_zarrs_loop(collected(plan.store.list_prefix(plan.prefix))))
    return [where for where in map(_position_of(plan), sorted(present)) if where is not None]


def _position_of(plan: LegacyPlan) -> Callable[[str], tuple[int, ...] | None]:
    """Return a function from keys to positions in the grid; it returns None for a key that is not a chunk."""

    def position(key: str) -> tuple[int, ...] | None:
        numbers = "".join(c if c.isdecimal() else " " for c in key.removeprefix(plan.prefix)).split()
        where = tuple(int(number) for number in numbers if len(number) < 20)
        if len(where) != len(plan.grid_shape) or any(
            a >= b for a, b in zip(where, plan.grid_shape, strict=True)
        ):
            return None
        return where if plan.keys(where) == key else None

    return position
