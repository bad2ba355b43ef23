# codec.py - the sharding codec, for arrays on zarr's own pipeline
# SPDX-License-Identifier: MIT
"""`ShardingCodec`: zarr's class, with native code inside.

zarr looks it up by name when it opens an array (``codecs.sharding_indexed`` in its configuration). The parent class handles
whatever the engine cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.codecs import ShardingCodec as ZarrShardingCodec
from zarr.registry import register_codec

from ..access.array_read import read_request
from ..access.array_request import Request
from ..access.array_write import write_request, write_request_blocking
from ..access.compiled_chains import compiled, memory_order
from ..access.read import ObjectSelection, read
from ..access.regions import Box, whole
from ..access.selection import parse_selection
from ..access.write import Elements, WriteItem, write_objects
from ..compat import StorePath, as_numpy, buffer_from, foreign_codec, write_order
from ..errors import ShardError
from ..option_sources import current_options
from ..options import Options
from ..storage import process_locks, turns
from ..storage.event_loop import in_thread
from ..storage.kinds import introduce_async, is_zarr_store, locate
from ..storage.runner import ON_LOOP
from ..storage.store import Outcome, Store, check_store_writable
from .request import array_axes

if TYPE_CHECKING:
    from ..format.spec import ChainSpec

__all__ = ["ShardingCodec"]


class ShardingCodec(ZarrShardingCodec):
    """Sharding codec over native code.

    Takes the arguments of `zarr.codecs.ShardingCodec`, and is equal to one that was made with the same.

    Examples
    --------
    >>> with zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
    ...     array = zarr.open_array("a.zarr")
    >>> array[0].tolist()
    [0, 1, 2, 3, 4, 5]
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ZarrShardingCodec):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(ZarrShardingCodec))

    def __hash__(self) -> int:
        return super().__hash__()

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
        return await in_thread(self._decode_sync, shard_bytes, shard_spec)

    def _encode_sync(self, shard_array: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        values = None if job is None else job.values(shard_array, shard_spec.shape)
        if job is None or values is None:
            return super()._encode_sync(shard_array, shard_spec)  # type: ignore[misc]
        item = WriteItem(job.chain, None, None, whole(shard_spec.shape), "")
        (result,) = job.write(item, values, tuple(range(values.ndim))).objects
        return None if result is None else buffer_from(shard_spec.prototype, result)

    async def _encode_single(self, shard_array: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        if job is None or job.values(shard_array, shard_spec.shape) is None:
            return await super()._encode_single(shard_array, shard_spec)
        return await in_thread(self._encode_sync, shard_array, shard_spec)

    def _decode_partial_sync(self, byte_getter: Any, selection: Any, shard_spec: Any) -> Any:
        job = self._job(shard_spec)
        box = None if job is None else job.box(byte_getter, selection)
        if job is None or box is None:
            return super()._decode_partial_sync(byte_getter, selection, shard_spec)  # type: ignore[misc]
        return job.read_box(box)

    async def _decode_partial_single(self, byte_getter: Any, selection: Any, shard_spec: Any) -> Any:
        if turns.is_over():
            await turns.next_turn()
        await introduce_async(byte_getter)
        job = self._job(shard_spec)
        box = None if job is None else job.box(byte_getter, selection, by_requests=True)
        if job is None or box is None:
            return await super()._decode_partial_single(byte_getter, selection, shard_spec)
        out = job.empty(box.shape)
        missing = await read_request(job.request(box, out), job.options)
        return None if missing else job.wrapped(out)

    def _encode_partial_sync(self, byte_setter: Any, value: Any, selection: Any, shard_spec: Any) -> None:
        job = self._job(shard_spec)
        box = None if job is None else job.box(byte_setter, selection)
        values = None if job is None or box is None else job.values(value, box.shape)
        if job is None or box is None or values is None:
            with process_locks.table().hold(_lock_names(byte_setter)):
                super()._encode_partial_sync(byte_setter, value, selection, shard_spec)  # type: ignore[misc]
            return
        check_store_writable(byte_setter.store)
        write_request_blocking(job.request(box, values), job.options)

    async def _encode_partial_single(
        self, byte_setter: Any, value: Any, selection: Any, shard_spec: Any
    ) -> None:
        if turns.is_over():
            await turns.next_turn()
        await introduce_async(byte_setter)
        job = self._job(shard_spec)
        box = None if job is None else job.box(byte_setter, selection, by_requests=True)
        values = None if job is None or box is None else job.values(value, box.shape)
        if job is None or box is None or values is None:
            async with process_locks.table().hold_async(await _lock_names_async(byte_setter)):
                await super()._encode_partial_single(byte_setter, value, selection, shard_spec)
            return
        check_store_writable(byte_setter.store)  # a view may be read-only though its store is not
        await write_request(job.request(box, values), job.options)

    def _job(self, shard_spec: Any) -> _ShardKind | None:
        """Return what the engine needs for shards of this kind; None if it does not support them."""
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
            return _ShardKind(self, shard_spec, spec, dtype)
        except (ShardError, TypeError, ValueError):
            return None

    def _chain_spec(self, shape: tuple[int, ...], dtype: np.dtype[Any], fill: bytes) -> ChainSpec | None:
        from ..format.spec import ChainSpec  # here, for the same reason as in `access.inner_chunks`

        value = np.frombuffer(fill, dtype=dtype)[0]
        try:
            return ChainSpec(shape, dtype, value, [self.to_dict()])
        except ShardError:
            return None


def _lock_names(target: Any) -> list[str]:
    """Return the names for locks of a write by zarr's own code; none if the shard is not an object of a store."""
    if not isinstance(target, StorePath):
        return []
    store, key = locate(target)
    return store.lock_names([key])


async def _lock_names_async(target: Any) -> list[str]:
    """Return the names as `_lock_names`, without blocking the event loop."""
    inline = not isinstance(target, StorePath) or locate(target)[0].is_prompt
    return await ON_LOOP.call(_lock_names, target, inline=inline)


@dataclass(frozen=True, slots=True, eq=False)
class _ShardBox:
    """A box of a shard in a store, and the axes and shape of the selected elements."""

    store: Store
    key: str
    box: Box
    axes: tuple[int, ...]
    shape: tuple[int, ...]


class _ShardKind:
    """Shards of one kind: the compiled chain and the options of the moment."""

    def __init__(self, codec: ShardingCodec, shard_spec: Any, spec: ChainSpec, dtype: np.dtype[Any]) -> None:
        self.shard_spec = shard_spec
        self.spec = spec
        self.dtype = dtype
        self.chain = compiled(spec, memory_order(dtype, spec.dtype) is not False, any_nan=True)
        self.options: Options = current_options(attached=write_order(codec))

    def empty(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if self.shard_spec.order == "F":
            return np.empty(shape, dtype=self.dtype, order="F")
        return np.empty(shape, dtype=self.dtype)

    def wrapped(self, array: np.ndarray[Any, Any]) -> Any:
        return self.shard_spec.prototype.nd_buffer.from_ndarray_like(array)

    def values(self, buffer: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
        """Return the array behind a buffer; None if the engine cannot use it."""
        array = as_numpy(buffer)
        if array is None or array.dtype != self.dtype or array.shape not in ((), shape):
            return None
        return array

    def box(self, target: Any, selection: Any, *, by_requests: bool = False) -> _ShardBox | None:
        """Return the box of a basic selection; None if the engine cannot handle it, or a store needs requests."""
        if array_axes(selection) is None or type(target) is not StorePath or not is_zarr_store(target.store):
            return None
        store, key = locate(target)
        store = store.with_prototype(self.shard_spec.prototype)
        if not store.is_near and not by_requests:
            return None
        try:
            box, axes, shape = parse_selection(selection, self.spec.shape)
        except IndexError:
            return None
        return None if 0 in box.count else _ShardBox(store, key, box, axes, shape)

    def request(self, box: _ShardBox, array: np.ndarray[Any, Any]) -> Request:
        """Return the request that reads a box into an array, or writes it from one."""
        axes = box.axes if array.ndim else (-1,) * self.chain_rank  # a scalar stands for every element
        return Request(
            box.store, [ObjectSelection(box.key, self.chain, box.box)], [0], axes, array, self.shard_spec
        )

    def read(self, source: Any, box: Box, out: Any, axes: tuple[int, ...], key: str = "") -> bool:
        return not read([ObjectSelection(key, self.chain, box, source)], out, axes, self.options)

    def read_box(self, box: _ShardBox) -> Any:
        """Read the elements of a box into a new buffer of zarr (`NDBuffer`); None if the object does not exist.

        Reads in this thread. The store must be near: `box` returns no other one without `by_requests`.
        """
        out = self.empty(box.shape)
        exists = self.read(box.store.source(box.key), box.box, out, box.axes, box.key)
        return self.wrapped(out) if exists else None

    def write(self, item: WriteItem, values: Any, axes: Any) -> Outcome:
        if values.ndim == 0:
            axes = (-1,) * self.chain_rank
        empty = bool(self.shard_spec.config.write_empty_chunks)
        return write_objects([item], self.options, Elements(values, axes, empty))

    @property
    def chain_rank(self) -> int:
        return len(self.chain.shape)


ShardingCodec.__module__ = "shardcodec"
register_codec("sharding_indexed", ShardingCodec)
