# codec.py - the sharding codec alone, for who keeps zarr's own pipeline
# SPDX-License-Identifier: MIT
"""`ShardingCodec`: zarr's class, with native code inside.

zarr asks for it by name when it opens an array (``codecs.sharding_indexed`` in its configuration). What the engine
does not do is left to the parent class.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

import numpy as np
from zarr.codecs import ShardingCodec as ZarrShardingCodec

from ..access.chunk_codec import compiled, memory_order
from ..access.conditional_write import update
from ..access.read import INLINE_NBYTES, ReadItem, decoded_nbytes, read
from ..access.read_remote import fetch
from ..access.regions import Box, whole
from ..access.write import WriteItem, moved_nbytes, write
from ..compat import (
    Store,
    StorePath,
    as_numpy,
    buffer_from,
    foreign_codec,
    max_workers,
    options_of_zarr,
    write_order,
)
from ..errors import ShardError
from ..format.chain_spec import ChainSpec
from ..options import Options, resolve
from ..storage import file_locks, locks, turns
from ..storage.tasks import to_its_end
from .remotes import conditional_remote_for, limits_for, remote_for
from .selection import array_axes, to_box
from .stores import (
    check_writable,
    index_names,
    introduce_async,
    is_direct,
    is_local,
    is_prompt,
    local_path,
    lock_keys,
    lock_keys_async,
    staging,
    stored_bytes,
)

__all__ = ["ShardingCodec"]


class ShardingCodec(ZarrShardingCodec):
    """Sharding codec over native code.

    Takes the arguments of `zarr.codecs.ShardingCodec`, and is equal to one that was made with the same.

    Examples
    --------
    >>> zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"})
    """

    # ---- equal to the parent's instances: an array that was created has zarr's class, the same one re-opened has ours

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ZarrShardingCodec):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(ZarrShardingCodec))

    __hash__ = ZarrShardingCodec.__hash__

    # ---- one shard in memory

    def _decode_sync(self, shard_bytes: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        if job is None:
            return super()._decode_sync(shard_bytes, shard_spec)  # type: ignore[misc]
        out = job.empty(shard_spec.shape)
        job.read(shard_bytes.as_numpy_array(), whole(shard_spec.shape), out, tuple(range(out.ndim)))
        return job.wrapped(out)

    async def _decode_single(self, shard_bytes: Any, shard_spec: Any) -> Any:
        if self._job(shard_spec) is None:
            return await super()._decode_single(shard_bytes, shard_spec)
        return await to_its_end(asyncio.to_thread(self._decode_sync, shard_bytes, shard_spec))

    def _encode_sync(self, shard_array: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        values = None if job is None else job.values(shard_array, shard_spec.shape)
        if job is None or values is None:
            return super()._encode_sync(shard_array, shard_spec)  # type: ignore[misc]
        item = WriteItem(job.chain, None, None, whole(shard_spec.shape), "")
        result = job.write(item, values, tuple(range(values.ndim)))
        return None if result is None else buffer_from(shard_spec.prototype, result)

    async def _encode_single(self, shard_array: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        if job is None or job.values(shard_array, shard_spec.shape) is None:
            return await super()._encode_single(shard_array, shard_spec)
        return await to_its_end(asyncio.to_thread(self._encode_sync, shard_array, shard_spec))

    # ---- a part of a shard in a store

    def _decode_partial_sync(self, byte_getter: Any, selection: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        part = None if job is None else job.part(byte_getter, selection)
        if job is None or part is None:
            return super()._decode_partial_sync(byte_getter, selection, shard_spec)  # type: ignore[misc]
        return job.read_part(byte_getter, *part)

    async def _decode_partial_single(self, byte_getter: Any, selection: Any, shard_spec: Any) -> Any:
        if turns.is_over():
            await turns.next_turn()
        await introduce_async(byte_getter)
        job = self._job(shard_spec)
        part = None if job is None else job.part(byte_getter, selection, by_requests=True)
        if job is None or part is None:
            return await super()._decode_partial_single(byte_getter, selection, shard_spec)
        if not is_direct(byte_getter.store):
            return await job.fetch_part(byte_getter, *part)
        if is_prompt(byte_getter.store) and decoded_nbytes(job.chain, part[0]) <= INLINE_NBYTES:
            return job.read_part(byte_getter, *part)
        return await to_its_end(asyncio.to_thread(job.read_part, byte_getter, *part))

    def _encode_partial_sync(self, byte_setter: Any, value: Any, selection: Any, shard_spec: Any) -> None:
        job = self._job(shard_spec)
        part = None if job is None else job.part(byte_setter, selection)
        values = None if job is None or part is None else job.values(value, part[2])
        if job is None or part is None or values is None:
            with locks.table().hold(lock_keys(_objects(byte_setter))):
                super()._encode_partial_sync(byte_setter, value, selection, shard_spec)  # type: ignore[misc]
            return
        check_writable(byte_setter.store)
        (key,) = keys = lock_keys([byte_setter])
        with locks.table().hold(keys):
            if is_local(byte_setter.store):
                file_locks.update(
                    key,
                    job.options,
                    lambda fd: job.write_file(byte_setter, part[0], part[1], values, fd),
                    name=local_path(byte_setter),
                )
            else:
                job.write_memory(byte_setter, part[0], part[1], values)

    async def _encode_partial_single(
        self, byte_setter: Any, value: Any, selection: Any, shard_spec: Any
    ) -> None:
        if turns.is_over():
            await turns.next_turn()
        await introduce_async(byte_setter)
        job = self._job(shard_spec)
        part = None if job is None else job.part(byte_setter, selection, by_requests=True)
        values = None if job is None or part is None else job.values(value, part[2])
        direct = hasattr(byte_setter, "store") and is_direct(byte_setter.store)
        if job is not None and part is not None and values is not None and not direct:
            async with locks.table().hold_async(await lock_keys_async([byte_setter])):
                if await job.update_part(byte_setter, part[0], part[1], values):
                    return
            values = None
        if job is None or part is None or values is None:
            async with locks.table().hold_async(await lock_keys_async(_objects(byte_setter))):
                await super()._encode_partial_single(byte_setter, value, selection, shard_spec)
            return
        check_writable(byte_setter.store)
        prompt = is_prompt(byte_setter.store)

        async def run(work: Any, *arguments: Any) -> Any:
            if prompt and job.is_small(byte_setter, part[0], *arguments):
                return work(byte_setter, part[0], part[1], values, *arguments)
            return await to_its_end(
                asyncio.to_thread(work, byte_setter, part[0], part[1], values, *arguments)
            )

        (key,) = keys = await lock_keys_async([byte_setter])
        async with locks.table().hold_async(keys):
            if is_local(byte_setter.store):
                await file_locks.update_async(
                    key,
                    job.options,
                    lambda fd: run(job.write_file, fd),
                    name=local_path(byte_setter),
                    prompt=prompt,
                )
            else:
                await run(job.write_memory)

    # ---- the engine's view of an array spec

    def _job(self, shard_spec: Any) -> _Job | None:
        """Return what the engine needs for shards of this kind; None when it does not do them."""
        if foreign_codec((self,)):
            return None
        cache: dict[Any, ChainSpec | None] = self.__dict__.setdefault("_shardcodec_specs", {})
        dtype = shard_spec.dtype.to_native_dtype()
        try:
            fill = np.asarray(shard_spec.fill_value, dtype=dtype).tobytes()
            key = (shard_spec.shape, dtype, fill)
            if key not in cache:
                cache[key] = self._chain_spec(shard_spec.shape, dtype, fill)
            spec = cache[key]
            if spec is None:
                return None
            return _Job(self, shard_spec, spec, dtype)
        except (ShardError, TypeError, ValueError):
            return None

    def _chain_spec(self, shape: tuple[int, ...], dtype: np.dtype[Any], fill: bytes) -> ChainSpec | None:
        value = np.frombuffer(fill, dtype=dtype)[0]
        try:
            return ChainSpec(shape, dtype, value, [self.to_dict()])
        except ShardError:
            return None


def _objects(target: Any) -> list[StorePath]:
    """What to lock for a write that is left to zarr; nothing where the shard is not an object of a store."""
    return [target] if isinstance(target, StorePath) else []


class _Job:
    """Shards of one kind: the compiled chain and the options of the moment."""

    def __init__(self, codec: ShardingCodec, shard_spec: Any, spec: ChainSpec, dtype: np.dtype[Any]) -> None:
        self.shard_spec = shard_spec
        self.spec = spec
        self.dtype = dtype
        self.chain = compiled(spec, memory_order(dtype, spec.dtype) is not False)
        self.options: Options = resolve(
            attached=write_order(codec), config=options_of_zarr(), max_workers=max_workers()
        )

    def empty(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if self.shard_spec.order == "F":
            return np.empty(shape, dtype=self.dtype, order="F")
        return np.empty(shape, dtype=self.dtype)

    def wrapped(self, array: np.ndarray[Any, Any]) -> Any:
        return self.shard_spec.prototype.nd_buffer.from_ndarray_like(array)

    def values(self, buffer: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
        """The array behind a buffer when the engine can take it as it is."""
        array = as_numpy(buffer)
        if array is None or array.dtype != self.dtype or array.shape not in ((), shape):
            return None
        return array

    def part(
        self, target: Any, selection: Any, *, by_requests: bool = False
    ) -> tuple[Box, tuple[int, ...], tuple[int, ...]] | None:
        """Box, axes and shape of a basic selection in a store that the engine reaches itself, or by requests."""
        axes = array_axes(selection)
        if axes is None or type(target) is not StorePath:
            return None
        if not is_direct(target.store) and not (by_requests and issubclass(type(target.store), Store)):
            return None
        ranges = [
            range(*part.indices(extent)) if isinstance(part, slice) else range(part, part + 1)
            for part, extent in zip(selection, self.spec.shape, strict=True)
        ]
        shape = tuple(len(r) for r, axis in zip(ranges, axes, strict=True) if axis >= 0)
        box = to_box(selection, tuple(slice(0, n) for n in shape), axes, self.spec.shape)
        return None if box is None or 0 in box.count else (box, axes, shape)

    def read(self, source: Any, box: Box, out: Any, axes: tuple[int, ...], key: str = "") -> bool:
        return not read([ReadItem(self.chain, source, box, key)], out, axes, self.options)

    def read_part(self, target: Any, box: Box, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        """Return the selected elements; None when there is no such object."""
        local = is_local(target.store)
        source = local_path(target) if local else stored_bytes(target, self.shard_spec.prototype)
        out = self.empty(shape)
        return self.wrapped(out) if self.read(source, box, out, axes, target.path) else None

    async def fetch_part(self, target: Any, box: Box, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        """The same from a store that is reached by requests."""
        out = self.empty(shape)
        missing = await fetch(
            [ReadItem(self.chain, None, box, target.path)],
            out,
            axes,
            self.options,
            remote_for(target.store, self.shard_spec.prototype),
            limits_for(target.store, self.shard_spec),
            names=index_names([target]),
        )
        return None if missing else self.wrapped(out)

    async def update_part(self, target: Any, box: Box, axes: tuple[int, ...], values: Any) -> bool:
        """Store a part of a shard under a condition; False where the store knows none, or none is needed."""
        remote = conditional_remote_for(target.store)
        if remote is None or box.count == self.chain.shape:
            return False
        check_writable(target.store)
        item = WriteItem(self.chain, None, None, box, target.path)
        axes = axes if values.ndim else (-1,) * self.chain_rank
        empty = bool(self.shard_spec.config.write_empty_chunks)
        await update([item], values, axes, self.options, remote, 1, write_empty=empty)
        return True

    def write(self, item: WriteItem, values: Any, axes: Any, **choices: Any) -> Any:
        if values.ndim == 0:
            axes = (-1,) * self.chain_rank
        empty = bool(self.shard_spec.config.write_empty_chunks)
        return write([item], values, axes, self.options, write_empty=empty, **choices)[0]

    @property
    def chain_rank(self) -> int:
        return len(self.chain.shape)

    def is_small(self, target: Any, box: Box, old_fd: int | None = None) -> bool:
        """Tell whether a part of a shard can be written at once, on the event loop."""
        local = is_local(target.store)
        path = local_path(target) if local else None
        old = None if local else stored_bytes(target, self.shard_spec.prototype)
        item = WriteItem(self.chain, path, old, box, target.path, old_fd)
        return self.options.durability == "rename" and moved_nbytes(item, self.options) <= INLINE_NBYTES

    def write_file(
        self, target: Any, box: Box, axes: tuple[int, ...], values: Any, old_fd: int | None
    ) -> bool:
        """Store a part of a shard in a file; False when another writer has made the file meanwhile."""
        exist: list[int] = []
        item = WriteItem(self.chain, local_path(target), None, box, target.path, old_fd)
        self.write(item, values, axes, staging=staging(target.store), exist=exist)
        return not exist

    def write_memory(self, target: Any, box: Box, axes: tuple[int, ...], values: Any) -> None:
        """Store a part of a shard in a MemoryStore."""
        old = stored_bytes(target, self.shard_spec.prototype)
        result = self.write(WriteItem(self.chain, None, old, box, target.path), values, axes)
        if result is None:
            target.store.delete_sync(target.path)
        else:
            target.store.set_sync(target.path, buffer_from(self.shard_spec.prototype, result))


ShardingCodec.__module__ = "shardcodec"
