# copy_source.py - inner chunks from a copy of an array
# SPDX-License-Identifier: MIT
"""`CopySource`: inner chunks for `repair`, from a backup of the array or from the array that was its source.

If the copy has shards of the same encoding, their encoded inner chunks are taken after a check. From any other layout the
elements are read, and encoded anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from ...access.compiled_chains import compiled
from ...access.inner_chunks import coordinates, encode_chunks
from ...access.opened_shard import OpenedShard
from ...access.shard_object import open_object
from ...errors import ShardError, ShardFileError, ShardFormatError, as_os_error
from ...format.spec import ShardSpec
from ...options import Options
from ..chunk_check import ChunkCheck, Level
from ..convert.stored_objects import stored_positions
from ..damage.index_search import IndexStatus
from ..findings import FindingKind
from ..foreign_chunks import ForeignChunks, elements_of, type_of
from ..hierarchy import find_arrays
from ..memory import MemoryBudget
from ..survey import Survey, survey
from ..targets import ArrayTarget, ShardTarget

__all__ = ["ChunksOfCopy", "CopySource"]


class CopySource:
    """The copy of one array. Several threads may call it.

    Parameters
    ----------
    array : ArrayTarget
        The damaged array.
    source : path-like, URL or zarr store
        A group with an array of the same name, an array, or a shard for a single shard.
    options : Options
        ``threads`` is the number of threads that want to use the copy.
    storage_options : mapping, optional
        Only with a URL.
    budget : MemoryBudget
        Memory for the copy.

    Attributes
    ----------
    array : ArrayTarget
        The damaged array.
    n_threads : int
        Threads that can use the copy at the same time; fewer than wanted if memory is short.

    Raises
    ------
    ValueError
        The copy is the array itself, or has another shape or data type, or its inner chunks do not fit into memory.
    """

    def __init__(
        self,
        array: ArrayTarget,
        source: Any,
        options: Options,
        storage_options: Mapping[str, Any] | None,
        budget: MemoryBudget,
    ) -> None:
        self.array = array
        self.n_threads: int = options.threads
        self._options = replace(options, threads=1)
        if array.layout is None:
            found = next(find_arrays(source, spec=array.shard_spec, storage_options=storage_options))
        else:
            found = next(find_arrays(source, array=array.name or None, storage_options=storage_options))
        self._array = found
        if _identity(found) == _identity(array):
            raise ValueError(f"from: expected a copy, got the array itself, {array.place}")
        has_equal_shards = (
            found.is_readable and found.encoding == array.encoding and _shape(found) == _shape(array)
        )
        self._check: ChunkCheck | None = None
        self._foreign: ForeignChunks | None = None
        self._reader: Any = None
        if has_equal_shards:
            share = budget.share(found.object_spec, found.place, options.threads)
            self.n_threads = share.n_threads
            self._check = ChunkCheck.of_array(found, self._options, share)
        else:
            self._reader = _reader(array, found)
            self._foreign = _foreign_chunks(array)
            self.n_threads = budget.chunk_threads(found.place, self._reader, options.threads)

    def chunks(self, shard: ShardTarget) -> ChunksOfCopy:
        """Return the inner chunks of the copy for a shard; use it in a with block."""
        return ChunksOfCopy(shard, self._array, self._check, self._reader, self._foreign, self._options)

    def missing(self) -> Iterator[ShardTarget]:
        """Yield the shards of the damaged array that are not stored, and that the copy may have."""
        for coords in stored_positions(self._array, self.array):
            shard = self.array.shard(coords)
            if not shard.is_stored:
                yield shard


def _shape(array: ArrayTarget) -> tuple[int, ...] | None:
    return None if array.layout is None else array.counted_shape


def _identity(array: ArrayTarget) -> str:
    key = array.only[0] if array.only is not None else f"{array.folder.prefix}zarr.json"
    return array.store.lock_names([key])[0]


def _reader(array: ArrayTarget, other: ArrayTarget) -> Any:
    """Return the elements of the copy; raise `ValueError` if they are not those of the array."""
    reader = elements_of(other, 1)
    assert array.layout is not None
    expected = array.counted_shape, array.data_type
    found = tuple(reader.shape), type_of(other, reader)
    if found != expected:
        raise ValueError(
            f"{other.place}: expected an array of shape {expected[0]} and data type {expected[1]}, as {array.place} "
            f"has, got {found[0]} and {found[1]}"
        )
    return reader


def _foreign_chunks(array: ArrayTarget) -> ForeignChunks | None:
    """Return zarr's codecs that encode inner chunks of the array; None if the engine does it."""
    if array.foreign_codec is None or array.bytes is None:
        return None
    found = ForeignChunks.of(array.bytes.stored)
    is_fortran = (
        array.bytes.stored.get("order") == "F"
    )  # of Zarr v2; zarr's codec takes the order from elsewhere
    if found is None or found.shape != array.object_spec.chunk_shape or is_fortran:
        raise ValueError(
            f"from: expected a copy of {array.place} with the same shards, because neither shardcodec nor zarr encodes "
            f"{array.data_type} with the codec {array.foreign_codec}"
        )
    return found


class ChunksOfCopy:
    """The inner chunks of the copy for one shard."""

    def __init__(
        self,
        shard: ShardTarget,
        array: ArrayTarget,
        check: ChunkCheck | None,
        reader: Any,
        foreign: ForeignChunks | None,
        options: Options,
    ) -> None:
        self._shard, self._check, self._reader, self._options = shard, check, reader, options
        self._foreign = foreign
        self._view: OpenedShard | None = None
        self._survey: Survey | None = None
        self._error: OSError | None = None
        if check is not None:
            if array.only is not None:
                key = array.only[0]
            else:
                assert shard.coords is not None
                key = array.shard(shard.coords).key
            try:
                self._view = open_object(array.store, key)
                if self._view is not None:
                    self._survey = survey(self._view, key, check, Level.INDEX)
            except OSError as error:
                self._error = error
            if self._survey is not None:
                found = self._survey.index
                if found.status is IndexStatus.ELSEWHERE and found.kind is FindingKind.TORN_APPEND:
                    # the state before an append: a newer inner chunk may be among the bytes behind it
                    self._survey.is_lost[:] = True

    def close(self) -> None:
        """Close the shard of the copy."""
        if self._view is not None:
            self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def encoded(self, position: int) -> bytes | None:
        """Return an encoded inner chunk; None if the copy has none there, so that its elements have the fill value.

        Raises
        ------
        ShardError
            The inner chunk of the copy is damaged too.
        """
        if self._error is not None:
            raise ShardFileError(f"the copy cannot be read: {self._error}")
        try:
            with as_os_error():
                return self._read(position)
        except ShardError:
            raise
        except OSError as error:
            raise ShardFileError(f"the copy cannot be read: {error}") from error

    def _read(self, position: int) -> bytes | None:
        """Return an encoded inner chunk, as `encoded`."""
        if self._check is None:
            return self._encode(position)
        if self._view is None or self._survey is None:
            return None
        if self._survey.is_lost[position]:
            raise ShardFormatError(f"inner chunk {position} of the copy is damaged too", entry=position)
        offset, nbytes = (int(number) for number in self._survey.places[position])
        if nbytes == 2**64 - 1:
            return None
        data = bytes(self._view.range(offset, nbytes))
        problem = self._check.problem(position, data, Level.DECODE)
        if problem is not None:
            raise ShardFormatError(
                f"inner chunk {position} of the copy is damaged too: {problem.detail}", entry=position
            )
        return data

    def _encode(self, position: int) -> bytes | None:
        """Read the elements of an inner chunk, and encode them; elements outside of the array are the fill value."""
        spec = self._shard.array.object_spec
        assert self._reader is not None and self._shard.coords is not None
        at = coordinates(position, spec.grid_shape)
        low = [0] * spec.ndim
        size = [0] * spec.ndim
        for stored, axis in enumerate(spec.chain.perm):
            low[axis] = (
                self._shard.coords[axis] * spec.shard_shape[axis] + at[stored] * spec.chunk_shape[stored]
            )
            size[axis] = spec.chunk_shape[stored]
        foreign = self._foreign
        dtype, fill = (spec.dtype, spec.fill_value) if foreign is None else (foreign.fill.dtype, foreign.fill)
        chunk = np.full(size, fill, dtype)
        box = tuple(
            slice(a, min(a + n, limit)) for a, n, limit in zip(low, size, self._reader.shape, strict=True)
        )
        if any(part.stop <= part.start for part in box):
            return None
        chunk[tuple(slice(0, part.stop - part.start) for part in box)] = self._reader[box]
        chunk = chunk.transpose(spec.chain.perm)
        if foreign is not None:
            return foreign.encode(np.ascontiguousarray(chunk))
        return self._encoded(spec, chunk, position)

    def _encoded(self, spec: ShardSpec, chunk: np.ndarray[Any, Any], position: int) -> bytes | None:
        (data,) = encode_chunks(
            compiled(spec.inner),
            np.ascontiguousarray(chunk).reshape(1, *chunk.shape),  # numpy gives a chunk of rank 0 an axis
            self._options,
            shard=self._shard.name,
            where=[position],
            grid_shape=spec.grid_shape,
        )
        return None if data is None else bytes(data)
