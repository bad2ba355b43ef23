# pipeline.py - the codec pipeline that zarr calls
# SPDX-License-Identifier: MIT
"""`ShardCodecPipeline`: the way in for every array, sharded or not.

zarr asks for a pipeline when an array is opened and gives it the array's metadata and store. Requests go to the engine
as a whole; one that the engine does not take goes to the pipeline that zarr itself would have used, with equal
results, or fails under the option ``strict``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from zarr.abc.codec import Codec, CodecPipeline

from .. import native
from ..compat import (
    ArrayV3Metadata,
    get_result,
    max_workers,
    options_of_zarr,
    own_pipeline,
    own_pipeline_class,
    write_order,
)
from ..errors import UnsupportedError
from ..options import NOTHING, Options, Resolver
from ..statistics import stats
from ..storage import turns
from ..storage.retry import Patience
from . import group_writes, read_request, write_request
from .array_codecs import Kind, kind_of
from .fallback import write_own
from .group import GatherShortcut
from .renamed_store import originals
from .request import Declined, Request, prepare
from .stores import introduce, is_local, is_prompt, lock_keys_async

__all__ = ["ShardCodecPipeline"]


class ShardCodecPipeline(CodecPipeline):
    """Codec pipeline over native code; made by zarr, not by hand.

    Select it with `shardcodec.enable`, or ``zarr.config.set({"codec_pipeline.path": "shardcodec.ShardCodecPipeline"})``
    before an array is opened.
    """

    def __init__(self, metadata: ArrayV3Metadata, store: Any, attached: Mapping[str, Any] = NOTHING) -> None:
        self._metadata = metadata
        self._store = store
        introduce(store)
        self._attached = dict(attached)
        self._own = own_pipeline(metadata)
        self._kind: Kind | None = None
        self._reason = ""
        self._order = next((write_order(c) for c in metadata.codecs if hasattr(c, "index_codecs")), {})
        try:
            self._kind = kind_of(metadata)
        except Declined as why:
            self._reason = str(why)
        self._resolver = Resolver({**self._order, **self._attached})
        self._shortcut: read_request.Shortcut | None = None
        if self._kind and is_local(store) and is_prompt(store):
            self._shortcut = read_request.Shortcut(self._kind, store)
        self._gathering = GatherShortcut(self._kind) if self._kind else None

    # ---- made by zarr

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Any:
        """Return zarr's own pipeline: without metadata and store there is nothing to gain."""
        return own_pipeline_class().from_codecs(codecs)

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Self:
        """Make the pipeline of an array.

        Raises
        ------
        NotImplementedError
            A Zarr v2 array, or the extension module cannot be loaded: zarr goes on with its own pipeline.
        """
        if not isinstance(array_metadata, ArrayV3Metadata):
            raise NotImplementedError("shardcodec is for Zarr v3 arrays")
        native.load()
        return cls(array_metadata, store)

    def evolve_from_array_spec(self, array_spec: Any) -> Self:
        """Return the pipeline as it is: it knows the array's metadata already."""
        return self

    # ---- what zarr asks about the chain of codecs: its own pipeline answers

    def __iter__(self) -> Iterator[Codec]:
        return iter(self._own)  # type: ignore[call-overload,no-any-return]

    def __getattr__(self, name: str) -> Any:
        # zarr's pipelines have further public attributes (codecs, array_bytes_codec, ...), more with each version
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._own, name)

    @property
    def supports_partial_decode(self) -> bool:
        """Whether inner chunks can be read alone."""
        return self._own.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether inner chunks can be written alone."""
        return self._own.supports_partial_encode

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Check the codecs against the array."""
        self._own.validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)

    def compute_encoded_size(self, byte_length: int, array_spec: Any) -> int:
        """Return the size of an encoded chunk where it is fixed."""
        return self._own.compute_encoded_size(byte_length, array_spec)

    async def decode(self, chunk_bytes_and_specs: Iterable[Any]) -> Iterable[Any]:
        """Decode chunks that are in memory."""
        return await self._own.decode(chunk_bytes_and_specs)

    async def encode(self, chunk_arrays_and_specs: Iterable[Any]) -> Iterable[Any]:
        """Encode chunks to memory."""
        return await self._own.encode(chunk_arrays_and_specs)

    # ---- the work

    async def read(self, batch_info: Iterable[Any], out: Any, drop_axes: tuple[int, ...] = ()) -> Any:
        """Read what a selection needs of each chunk into `out`.

        Raises
        ------
        ShardFormatError, ChecksumError, CodecError
            A chunk or shard is damaged.
        """
        if turns.is_over():
            await turns.next_turn()
        batch = originals(list(batch_info))
        if not batch:
            return ()
        group = group_writes.active()
        patience = None
        if self._shortcut is not None and len(batch) == 1 and group is None and not drop_axes:
            try:
                exists = self._shortcut.read(batch[0], out, self._options(any_threads=True))
            except OSError as error:
                exists, patience = None, Patience.after(error)
            if exists is not None:
                return (get_result(not exists),)
        options = self._options()
        try:
            request = self._prepare(batch, out, drop_axes)
        except Declined as why:
            self._left_to_zarr(why, options)
            await self._settle(batch)
            return await self._own.read(batch, out, drop_axes)
        reads = (
            read_request.run(request, options, patience) if group is None else group.read(request, options)
        )
        missing = await reads
        return tuple(get_result(position in missing) for position in range(len(batch)))

    async def write(self, batch_info: Iterable[Any], value: Any, drop_axes: tuple[int, ...] = ()) -> None:
        """Store `value`, a part of each chunk.

        Raises
        ------
        ValueError
            The store is read-only.
        ShardFormatError, ChecksumError, CodecError
            The rest of a chunk or shard, which had to be kept, is damaged; it is as it was.
        """
        if turns.is_over():
            await turns.next_turn()
        batch = originals(list(batch_info), writing=True)
        if not batch:
            return
        options = self._options()
        group = group_writes.active()
        shortcut = self._gathering if group is not None and len(batch) == 1 and not drop_axes else None
        if group is not None and shortcut and shortcut.gather(batch[0], value, options, group):
            await group.keep_within_budget()
            return
        try:
            request = self._prepare(batch, value, drop_axes)
        except Declined as why:
            self._left_to_zarr(why, options)
            await self._settle(batch)
            await write_own(batch, lambda part: self._own.write(part, value, drop_axes), options)
            return
        await (write_request.run(request, options) if group is None else group.write(request, options))

    @staticmethod
    async def _settle(batch: list[Any]) -> None:
        """Before zarr does it: store what is gathered of these objects."""
        group = group_writes.active()
        if group is not None:
            await group.settle(await lock_keys_async(_targets(batch)))

    def _prepare(self, batch: list[Any], buffer: Any, drop_axes: tuple[int, ...]) -> Request:
        if self._kind is None:
            raise Declined(self._reason)
        return prepare(batch, buffer, drop_axes, self._kind.dtype, self._kind.chain)

    def _options(self, *, any_threads: bool = False) -> Options:
        return self._resolver.resolve(options_of_zarr(), max_workers(), any_threads=any_threads)

    @staticmethod
    def _left_to_zarr(why: Declined, options: Options) -> None:
        if options.strict:
            raise UnsupportedError(f"left to zarr's own pipeline: {why}") from None
        stats.fallback(str(why))

    # ---- an array is compared and pickled with its pipeline

    def with_options(self, **choices: Any) -> Self:
        """Return the pipeline with options attached."""
        return type(self)(self._metadata, self._store, {**self._attached, **choices})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardCodecPipeline):
            return NotImplemented
        return bool(self._own == other._own and self._attached == other._attached)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self._attached.items()))))

    def __repr__(self) -> str:
        return f"ShardCodecPipeline({self._own!r})"

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._metadata, self._store, self._attached)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _targets(batch: list[Any]) -> list[Any]:
    return [item[0] for item in batch if hasattr(item[0], "store")]


# zarr's registry and configuration know a class by module and name: the name that users write
ShardCodecPipeline.__module__ = "shardcodec"
