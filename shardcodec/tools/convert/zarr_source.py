# zarr_source.py - arrays of Zarr v2 and v3 as sources
# SPDX-License-Identifier: MIT
"""`ZarrSource`: an array that the engine reads. Its encoded chunks are objects, or inner chunks of shards."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import native
from ...access.array_reader import ArrayReader
from ...access.box_reader import Folder
from ...access.compiled_chains import compiled
from ...access.inner_chunks import position_array
from ...access.opened_shard import OpenedShard
from ...access.placement import ABSENT
from ...access.shard_object import StoreObject
from ...errors import ShardError, ShardFormatError, as_os_error
from ...format.chunk_keys import KeyEncoding
from ...format.spec import ChainSpec, ShardSpec
from ...options import Options
from ...storage.store import Store
from ..foreign_chunks import elements_of
from ..rewrite import runs
from ..targets import ArrayTarget
from .source import EncodedChunks, Encoding, Ints, SourceArray, file_state
from .stored_objects import Coords, StoredObjects

__all__ = ["ZarrSource", "chunk_places", "zarr_source"]

# Objects that are requested at a time from a store of requests.
MAX_REQUESTS = 32


@dataclass(frozen=True, eq=False)
class ZarrSource(SourceArray):
    """An array of Zarr v2 or v3, or of the 2022 format through its view.

    Attributes
    ----------
    folder : Folder
        Its objects.
    keys : KeyEncoding
        Their keys.
    chain : ChainSpec
        The encoding of one object.
    options : Options
    target : ArrayTarget or None
        The array, if it has a data type that the engine does not have.
    """

    folder: Folder = field(kw_only=True)
    keys: KeyEncoding = field(kw_only=True)
    chain: ChainSpec = field(kw_only=True)
    options: Options = field(kw_only=True)
    reader: ArrayReader = field(kw_only=True)
    target: ArrayTarget | None = field(default=None, kw_only=True)

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        if not start:
            out[...] = self.reader[()]
        elif out.size:
            parts = None if self.stored is None else self.stored.parts(start, out, self.fill_value)
            for first, part in [(start, out)] if parts is None else parts:
                self.reader.read_boxes([first], part.shape, part[None])

    def encoded(self) -> EncodedChunks:
        if self.chain.sharding is None:
            return _PlainChunks(self)
        return _InnerChunks(self, ShardSpec.from_chain(self.chain))

    def elements(self) -> Any:
        if self.target is None:
            raise NotImplementedError("this source has a data type that the engine reads")
        return elements_of(self.target)

    @property
    def objects_shape(self) -> Ints:
        return self.chain.shape

    @property
    def shard_shape(self) -> Ints | None:
        return None if self.chain.sharding is None else self.chain.shape

    def state(self, start: Ints, stop: Ints) -> str | None:
        """Return a hash of size and time of the files that store a box."""
        if self.folder.store.path("") is None:
            return None
        digest = hashlib.blake2b(digest_size=8)
        for coords, n_absent in self._in_box(start, stop):
            digest.update(b"-" * n_absent)
            if coords is None:
                continue
            try:
                digest.update(f"{file_state(str(self.folder.store.path(self.key(coords))))}\n".encode())
            except FileNotFoundError:
                digest.update(b"-")
        return digest.hexdigest()

    def _in_box(self, start: Ints, stop: Ints) -> Iterator[tuple[Ints | None, int]]:
        """Yield the objects of a box, each with the number of objects before it that a listing does not show, and the last ones."""
        box = None if not start or self.stored is None else self.stored.in_box(start, stop)
        ranges = [range(a // n, -(-b // n)) for a, b, n in zip(start, stop, self.chain.shape, strict=True)]
        if box is None:
            yield from ((coords, 0) for coords in itertools.product(*ranges))
            return
        at = 0
        for coords in map(tuple, box[0].tolist()):
            number = 0
            for i, axis in zip(coords, ranges, strict=True):
                number = number * len(axis) + i - axis.start
            yield coords, number - at
            at = number + 1
        yield None, box[1] - at

    def object_nbytes(self, most: int) -> tuple[int, int, int] | None:
        grid = [-(-n // size) for n, size in zip(self.shape, self.chain.shape, strict=True)]
        listed = None if self.stored is None else self.stored.coords
        total = math.prod(grid) if listed is None else len(listed)
        step = max(1, -(-total // most))
        n = nbytes = 0
        for number in range(0, total, step):
            at = listed[number] if listed is not None else np.unravel_index(number, grid) if grid else ()
            coords = tuple(int(i) for i in at)
            store, key = self.folder.store, self.key(coords)
            with (
                suppress(OSError),
                as_os_error(store.describe, key),
            ):  # the read names an object that is refused
                nbytes += store.wait(store.size(key))
            n += 1
        return n, nbytes, total

    def key(self, coords: Ints) -> str:
        """Return the key of the object at a position of the grid."""
        return self.folder.keys([self.keys.key(coords)])[0]


def zarr_source(
    name: str, folder: Folder, stored: Any, keys: KeyEncoding, options: Options, **known: Any
) -> ZarrSource:
    """Return the source for an array with the document `stored`; `known` are further fields.

    Raises `UnsupportedError` for an array that the engine cannot read.
    """
    chain = ChainSpec.from_metadata(stored)
    reader = ArrayReader(folder, options.threads, None, False, document=stored)
    encoding = Encoding(chain.codecs)
    if chain.sharding is not None:
        spec = ShardSpec.from_chain(chain)
        encoding = Encoding(spec.codecs, spec.before)
        if not spec.supports_partial_access:
            encoding = None  # type: ignore[assignment]
    return ZarrSource(
        name,
        repr(folder),
        reader.shape,
        reader.dtype,
        reader.fill_value,
        reader.chunks,
        encoding=encoding,
        folder=folder,
        keys=keys,
        chain=chain,
        options=options,
        reader=reader,
        stored=StoredObjects(folder, keys, reader.shape, chain.shape),
        **known,
    )


def chunk_places(chunks: Coords, counts: Ints, perm: Ints) -> tuple[Coords, Coords]:
    """Return the shards of chunks of the whole array, and the stored coordinates of the chunks in their shards.

    `counts` are the chunks of a shard along each axis of the array; stored axis i is axis ``perm[i]`` of the array.
    """
    shards, within = np.divmod(chunks, np.array(counts, dtype=np.int64))
    return shards, within[:, list(perm)]


def _existing(source: ZarrSource, chunks: Coords, objects: Coords) -> Coords:
    """Return the chunks whose objects a listing shows; all without a listing."""
    which = None if source.stored is None else source.stored.which(objects)
    return chunks if which is None else chunks[which]


class _PlainChunks(EncodedChunks):
    """Chunks that are whole objects."""

    def __init__(self, source: ZarrSource) -> None:
        self._source = source
        self._fixed = source.chain.fixed_nbytes
        # of codecs that only zarr has nothing is known, but a chunk should not be much larger than its elements
        self._most = compiled(source.chain).most_nbytes or 16 * source.chain.nbytes + (1 << 20)
        if source.bytes is not None and source.bytes.codec is not None:
            self._most = sys.maxsize  # a text may have any length

    def joined(self, coords: Coords, most_nbytes: int) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        store = self._source.folder.store
        positions = list(map(tuple, _existing(self._source, coords, coords).tolist()))
        if store.path("") is not None:
            yield from self._files(positions, most_nbytes)
            return
        fit = most_nbytes // max(1, self._source.chain.nbytes)
        n = 1 if store.is_near else max(1, min(MAX_REQUESTS, fit))
        for i in range(0, len(positions), n):
            batch = positions[i : i + n]
            for at, data in zip(batch, _objects(store, list(map(self._source.key, batch))), strict=True):
                if data is not None:
                    self._check(at, len(data))
                    yield np.array([at], dtype=np.int64), [len(data)], data

    def _files(
        self, positions: Sequence[Ints], most_nbytes: int
    ) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        """Read files into one buffer, and yield it whenever it is full."""
        store = self._source.folder.store
        buffer = np.empty(most_nbytes, np.uint8).data
        where: list[Ints] = []
        sizes: list[int] = []
        end = 0
        for at in positions:
            fd = native.load().open_file(str(store.path(self._source.key(at))))
            if fd < 0:
                continue
            try:
                nbytes = os.fstat(fd).st_size
                self._check(at, nbytes)
                if where and end + nbytes > len(buffer):
                    yield np.array(where, dtype=np.int64), sizes, buffer[:end]
                    where, sizes, end = [], [], 0
                if nbytes > len(buffer):
                    buffer = np.empty(nbytes, np.uint8).data
                self._fill(fd, at, buffer[end : end + nbytes])
            finally:
                os.close(fd)
            where.append(at)
            sizes.append(nbytes)
            end += nbytes
        if where:
            yield np.array(where, dtype=np.int64), sizes, buffer[:end]

    def _fill(self, fd: int, at: Ints, view: memoryview) -> None:
        done = 0
        while done < len(view):  # one call reads 2 GiB at most
            n = os.readv(fd, [view[done:]])
            if n == 0:
                self._check(at, done, len(view))
            done += n

    def _check(self, at: Ints, nbytes: int, expected: int | None = None) -> None:
        """Raise `ShardFormatError` for a size that the codecs do not make, or another one than expected."""
        expected = expected or self._fixed
        if 0 < nbytes <= self._most and expected in (None, nbytes):
            return
        key = self._source.key(at)
        sizes = f"{expected} bytes" if expected else f"1 to {self._most} bytes"
        raise ShardFormatError(
            f"chunk {self._source.folder.store.describe(key)!r} of {self._source.place}: expected {sizes}, got {nbytes}",
            shard=key,
            chunk_coords=at,
            expected=expected,
            actual=nbytes,
        )


def _objects(store: Store, keys: list[str]) -> list[Any]:
    """Return whole objects; None for one that does not exist."""
    if store.is_near:
        return [_data(store.wait(store.get(key))) for key in keys]

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*(store.get(key) for key in keys)))

    return list(map(_data, store.wait(all_of_them())))


def _data(answer: Any) -> Any:
    return None if answer is None else memoryview(answer.data).cast("B")


class _InnerChunks(EncodedChunks):
    """Inner chunks of shards."""

    def __init__(self, source: ZarrSource, spec: ShardSpec) -> None:
        self._source, self._spec = source, spec
        self._native = compiled(spec.chain)
        assert source.chunks is not None
        self._counts = tuple(a // b for a, b in zip(spec.shard_shape, source.chunks, strict=True))

    def joined(self, coords: Coords, most_nbytes: int) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        coords = _existing(self._source, coords, coords // np.array(self._counts, dtype=np.int64))
        shards, within = chunk_places(coords, self._counts, self._spec.chain.perm)
        positions = position_array(within, self._spec.grid_shape)
        for shard in sorted(set(map(tuple, shards.tolist()))):
            mine = (shards == np.array(shard)).all(axis=1)
            yield from self._of_shard(shard, positions[mine], coords[mine], most_nbytes)

    def _of_shard(
        self, shard: Ints, positions: np.ndarray[Any, Any], coords: Coords, most_nbytes: int
    ) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        store, key = self._source.folder.store, self._source.key(shard)
        name = store.describe(key)
        try:
            with closing(StoreObject(store, key, name).open(self._native, self._source.options)) as view:
                order = np.empty(0, np.intp) if view.missing else _by_offset(view, positions)
                while len(order):
                    places = np.empty((len(order), 2), dtype=np.uint64)
                    data, n = view.fetch(positions[order].astype(np.uint64), places, most_nbytes)
                    data = memoryview(data).cast("B")
                    for run in runs(places[:n], sys.maxsize):
                        first = int(places[run.start, 0])
                        last = first + int(places[run, 1].sum())
                        yield coords[order[:n][run]], places[run, 1].tolist(), data[first:last]
                    order = order[n:]
        except ShardError as error:
            raise error.with_context(shard=name) from error


def _by_offset(view: OpenedShard, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which of the positions have an inner chunk, in the order of the offsets."""
    view.check()
    offsets = view.entries(check=False)[positions, 0]
    order = np.argsort(offsets, kind="stable")
    return np.asarray(order[offsets[order] != ABSENT])
