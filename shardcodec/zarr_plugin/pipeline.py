# pipeline.py - the codec pipeline that zarr calls
# SPDX-License-Identifier: MIT
"""`ShardCodecPipeline`: the entry for every array, of Zarr format 2 or 3, sharded or not.

zarr makes a pipeline when it opens an array, from the metadata and the store of the array. The engine executes each request
as a whole. A request that the engine does not support is executed by the pipeline that zarr itself would use, with equal
results; under the option ``strict`` it is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace as replaced
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Self, Unpack

from zarr.abc.codec import Codec, CodecPipeline
from zarr.registry import register_pipeline

from .. import native
from ..access.array_read import read_request
from ..access.array_request import Request
from ..access.array_write import write_request
from ..access.buffer import active_buffer
from ..access.read import is_damage, is_staged
from ..compat import (
    ArrayMetadata,
    StorePath,
    codecs_of,
    config,
    get_result,
    own_pipeline,
    own_pipeline_class,
    write_order,
)
from ..errors import ShardError, UnsupportedError, name_shard
from ..option_sources import PIPELINE_KEY, PIPELINE_PATH, Resolver, is_direct
from ..options import NOTHING, OptionChoices, Options
from ..statistics import stats
from ..storage import forks, turns
from ..storage.kinds import introduce, store_of
from ..storage.renamed_store import originals
from ..storage.retry import Patience
from .array_codecs import Kind, kind_of
from .request import Refusal, prepare

if TYPE_CHECKING:
    from ..access.buffer.buffered import LayoutGuard
    from .direct_access import MemoisedAccess
from .own_writes import write_own
from .small_reader import SmallReader

__all__ = ["ShardCodecPipeline"]


class ShardCodecPipeline(CodecPipeline):
    """Codec pipeline over native code; zarr makes it for each array.

    Select it with `shardcodec.enable`, or with
    ``zarr.config.set({"codec_pipeline.path": "shardcodec.ShardCodecPipeline"})`` before an array is opened.

    Parameters
    ----------
    metadata : ArrayV2Metadata or ArrayV3Metadata
        Metadata of the array.
    store : Store
        Store of the array.
    attached : mapping, optional
        Options of this array, see `shardcodec.attach`.

    Notes
    -----
    `zarr.abc.codec.CodecPipeline` documents the methods; the docstrings here add what differs.

    Examples
    --------
    >>> with zarr.config.set({"codec_pipeline.path": "shardcodec.ShardCodecPipeline"}):
    ...     array = zarr.open_array("a.zarr")
    >>> array[0].tolist()
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, metadata: ArrayMetadata, store: Any, attached: Mapping[str, Any] = NOTHING) -> None:
        self._metadata = metadata
        self._store = store
        introduce(store)
        self._usual = store, store_of(store)
        self._attached = dict(attached)
        self._own = own_pipeline(metadata)
        self._is_plain = not self._own.supports_partial_encode
        self._kind: Kind | None = None
        self._reason = ""
        self._order = next((write_order(c) for c in codecs_of(metadata) if hasattr(c, "index_codecs")), {})
        try:
            self._kind = kind_of(metadata)
        except Refusal as why:
            self._reason = str(why)
        self._resolver = Resolver({**self._order, **self._attached})
        at = self._usual[1]
        self._guard: LayoutGuard | None = None
        self._small_reader: SmallReader | None = None
        if self._kind and at.path("") is not None and at.is_prompt:
            self._small_reader = SmallReader(self._kind, store, at)

    @cached_property
    def direct(self) -> MemoisedAccess:
        """Access to the array without zarr's event loop, for `attach`."""
        from .direct_access import MemoisedAccess

        return MemoisedAccess(self._kind, *self._usual, self._resolver, is_plain=self._is_plain)

    def _guard_of(self, target: Any) -> LayoutGuard | None:
        """Return the guard of this array, which `target` is an object of, for blocks of `group_writes`."""
        if self._guard is None and type(target) is StorePath and store_of(target.store).describes_arrays:
            from ..access.buffer.array_guard import ArrayGuard

            n_parts = self._metadata.encode_chunk_key((0,) * len(self._metadata.shape)).count("/") + 1
            folder = "/".join(target.path.split("/")[:-n_parts])
            self._guard = ArrayGuard(self._metadata, store_of(target.store), folder)
        return self._guard

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Any:
        """Return zarr's own pipeline, because the engine needs metadata and store of the array.

        Parameters
        ----------
        codecs : iterable of Codec
            The codecs of the array.

        Returns
        -------
        CodecPipeline
        """
        return own_pipeline_class().from_codecs(codecs)

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Self:
        """Return the pipeline of an array.

        Parameters
        ----------
        array_metadata : ArrayV2Metadata or ArrayV3Metadata
            Metadata of the array.
        store : Store
            Store of the array.

        Returns
        -------
        ShardCodecPipeline

        Raises
        ------
        NotImplementedError
            The array has another Zarr format, or the extension module cannot be loaded; zarr then uses its own pipeline.
        """
        if not isinstance(array_metadata, ArrayMetadata):
            raise NotImplementedError("expected an array of Zarr format 2 or 3")
        native.load()
        _serve_directly()
        return cls(array_metadata, store)

    def evolve_from_array_spec(self, array_spec: Any) -> Self:
        """Return this pipeline unchanged, because it has the metadata of the array already.

        Parameters
        ----------
        array_spec : ArraySpec
            Not used.

        Returns
        -------
        ShardCodecPipeline
        """
        return self

    def __iter__(self) -> Iterator[Codec]:
        return iter(self._own)  # type: ignore[call-overload,no-any-return]

    def __getattr__(self, name: str) -> Any:
        # zarr's pipelines have further public attributes (codecs, array_bytes_codec, ...), more with each version
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._own, name)

    @property
    def supports_partial_decode(self) -> bool:
        """True if inner chunks can be read one by one."""
        return self._own.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """True if inner chunks can be written one by one."""
        return self._own.supports_partial_encode

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Check that the codecs fit the array, with zarr's own pipeline.

        Parameters
        ----------
        shape : tuple of int
            Shape of the array.
        dtype : ZDType
            Data type of the array.
        chunk_grid : ChunkGrid
            Chunk grid of the array.

        Raises
        ------
        ValueError
            The codecs do not fit.
        """
        self._own.validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)

    def compute_encoded_size(self, byte_length: int, array_spec: Any) -> int:
        """Return the size of an encoded chunk, if the codecs have a fixed size.

        Parameters
        ----------
        byte_length : int
            Size of the decoded chunk in bytes.
        array_spec : ArraySpec
            Shape and data type of the chunk.

        Returns
        -------
        int
            Size in bytes.

        Raises
        ------
        NotImplementedError
            The size depends on the elements.
        """
        return self._own.compute_encoded_size(byte_length, array_spec)

    async def decode(self, chunk_bytes_and_specs: Iterable[Any]) -> Iterable[Any]:
        """Decode chunks in memory, with zarr's own pipeline.

        Parameters
        ----------
        chunk_bytes_and_specs : iterable of (Buffer or None, ArraySpec)
            The encoded chunks.

        Returns
        -------
        iterable of (NDBuffer or None)
            The decoded chunks.
        """
        return await self._own.decode(chunk_bytes_and_specs)

    async def encode(self, chunk_arrays_and_specs: Iterable[Any]) -> Iterable[Any]:
        """Encode chunks in memory, with zarr's own pipeline.

        Parameters
        ----------
        chunk_arrays_and_specs : iterable of (NDBuffer or None, ArraySpec)
            The decoded chunks.

        Returns
        -------
        iterable of (Buffer or None)
            The encoded chunks.
        """
        return await self._own.encode(chunk_arrays_and_specs)

    @property
    def declined(self) -> str:
        """Why the engine cannot do the work of this array; empty if it can."""
        return "" if self._kind else self._reason

    async def read(self, batch_info: Iterable[Any], out: Any, drop_axes: tuple[int, ...] = ()) -> Any:
        """Read the selected elements of chunks into `out`.

        Parameters
        ----------
        batch_info : iterable of tuple
            For each chunk: its object, spec, selection of the chunk, selection of `out`, and a flag that is not used.
        out : NDBuffer
            The array of the whole request.
        drop_axes : tuple of int
            Axes of the selections that `out` does not have.

        Returns
        -------
        tuple of dict
            For each chunk whether its object exists.

        Raises
        ------
        ShardFormatError, ChecksumError, CodecError
            A chunk or shard is damaged.
        UnsupportedError
            The engine does not support the request, under the option ``strict``.
        """
        if turns.is_over():
            await turns.next_turn()
        batch = originals(list(batch_info))
        if not batch:
            return ()
        buffer = active_buffer()
        patience = None
        if self._small_reader is not None and len(batch) == 1 and buffer is None and not drop_axes:
            try:
                exists = self._small_reader.read(batch[0], out, self._options(any_threads=True))
            except OSError as error:
                exists, patience = None, Patience.after(error)
            if exists is not None:
                return (get_result(not exists),)
        options = self._options()
        try:
            request = self._prepare(batch, out, drop_axes)
        except Refusal as why:
            self._left_to_zarr(why, options)
            await self._flush(batch)
            return await self._own.read(forks.own_batch(batch), out, drop_axes)
        reads = read_request(request, options, patience) if buffer is None else buffer.read(request, options)
        try:
            missing = await reads
        except ShardError as error:
            _name_shard(error, batch[0][0])
            raise
        return tuple(get_result(position in missing) for position in range(len(batch)))

    async def write(self, batch_info: Iterable[Any], value: Any, drop_axes: tuple[int, ...] = ()) -> None:
        """Write elements of `value` into the selected parts of chunks.

        Parameters
        ----------
        batch_info : iterable of tuple
            For each chunk: its object, spec, selection of the chunk, selection of `value`, and True if the selection ends where the array does.
        value : NDBuffer
            The array of the whole request, or one element.
        drop_axes : tuple of int
            Axes of the selections that `value` does not have.

        Raises
        ------
        ValueError
            The store is read-only.
        ShardFormatError, ChecksumError, CodecError
            A part of a chunk or shard that must be kept is damaged; the object is unchanged.
        LockError
            Another process held the lock of a shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        UnsupportedError
            The engine does not support the request, under the option ``strict``.
        """
        if turns.is_over():
            await turns.next_turn()
        items = list(batch_info)
        batch = originals(items, writing=True)
        if not batch:
            return
        options = self._options()
        buffer = active_buffer()
        guard = None if buffer is None else self._guard_of(items[0][0])
        try:
            request = self._prepare(batch, value, drop_axes)
        except Refusal as why:
            self._left_to_zarr(why, options)
            await self._flush(batch)
            await write_own(
                forks.own_batch(batch), lambda part: self._own.write(part, value, drop_axes), options
            )
            return
        try:
            if buffer is None:
                await self._store_request(request, options, items[0][0])
            else:
                await buffer.write(request, options, guard)
        except ShardError as error:
            _name_shard(error, batch[0][0])
            raise

    async def _store_request(self, request: Request, options: Options, target: Any) -> None:
        """Store a request. A damaged object does not matter if all its elements within the array are new."""
        try:
            await write_request(request, options)
        except (ShardError, OSError) as error:
            # bz2 raises OSError for malformed bytes
            may_be_damage = is_damage(error) or (isinstance(error, OSError) and is_staged(request.items))
            within = await self._within_the_array(request, target) if may_be_damage else None
            if within is None:
                raise
            await write_request(within, options)

    async def _within_the_array(self, request: Request, target: Any) -> Request | None:
        """Return a request whose items know the edge of the array; None if they know it already, or none is at the edge.

        zarr tells the edge for slices only. It is read from the store, because the array may have grown since it was opened.
        """
        guard = self._guard_of(target)
        if guard is None or any(item.inside is not None for item in request.items):
            return None
        layout = await guard.look()
        items = []
        for item in request.items:
            inside = layout.inside(item.key)
            is_edge = inside is not None and all(n > 0 for n in inside) and inside != tuple(item.chain.shape)
            items.append(item._replace(inside=inside) if is_edge else item)
        has_edge = any(item.inside is not None for item in items)
        return replaced(request, items=items) if has_edge else None

    @staticmethod
    async def _flush(batch: list[Any]) -> None:
        """Flush the buffered writes of these objects, before zarr's own pipeline reads or writes them."""
        buffer = active_buffer()
        if buffer is not None:
            for target in (item[0] for item in batch if isinstance(item[0], StorePath)):
                await buffer.flush_with_values(store_of(target.store), [target.path])

    def _prepare(self, batch: list[Any], buffer: Any, drop_axes: tuple[int, ...]) -> Request:
        if self._kind is None:
            raise Refusal(self._reason)
        kind = self._kind
        return prepare(batch, buffer, drop_axes, kind.dtype, kind.chain, self._usual, is_plain=self._is_plain)

    def _options(self, *, any_threads: bool = False) -> Options:
        return self._resolver.resolve(any_threads=any_threads)

    @staticmethod
    def _left_to_zarr(why: Refusal, options: Options) -> None:
        if options.strict:
            raise UnsupportedError(f"left to zarr's own pipeline: {why}") from None
        stats.fallback(str(why))

    def with_options(self, **choices: Unpack[OptionChoices]) -> Self:
        """Return a pipeline of the same array with more options attached.

        Parameters
        ----------
        **choices
            Options, see `shardcodec.options`; they must be checked already.

        Returns
        -------
        ShardCodecPipeline
        """
        return type(self)(self._metadata, self._store, {**self._attached, **choices})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardCodecPipeline):
            return NotImplemented
        return bool(self._own == other._own and self._attached == other._attached)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self._attached.items()))))

    def __repr__(self) -> str:
        return f"ShardCodecPipeline({self._own!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # an environment without shardcodec, where an array is sent to, gets zarr's own pipeline
        return _restorer(), ((self._own, self._metadata, self._store, self._attached),)


def restored(state: tuple[Any, ...]) -> ShardCodecPipeline:
    """Return the pipeline that was pickled; `state` begins with zarr's own pipeline of its array."""
    if config.get(PIPELINE_KEY) == PIPELINE_PATH:
        _serve_directly()
    return ShardCodecPipeline(*state[1:])


def _serve_directly() -> None:
    """Replace methods of zarr unless the switch ``direct`` forbids it."""
    if is_direct():
        from . import direct_methods

        direct_methods.replace()


class _Deferred:
    """A call that is made when it is unpickled, so that the pickled bytes name only what every environment has."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call[0], self._call[1:]

    def __call__(self, state: tuple[Any, ...]) -> ShardCodecPipeline:
        return restored(state)  # for a copy, which needs no pickle


@cache
def _restorer() -> _Deferred:
    """Return `restored` for where it can be imported, else the function that takes zarr's own pipeline."""
    import pydoc  # few programs pickle arrays

    found = _Deferred(pydoc.locate, f"{__name__}.restored")
    return _Deferred(next, _Deferred(filter, None, [found, operator.itemgetter(0)]))


def _name_shard(error: ShardError, target: Any) -> None:
    if isinstance(target, StorePath):
        name_shard(error, store_of(target.store).describe)


# zarr's registry and configuration identify a class by module and name; users write "shardcodec.ShardCodecPipeline"
ShardCodecPipeline.__module__ = "shardcodec"
register_pipeline(ShardCodecPipeline)
