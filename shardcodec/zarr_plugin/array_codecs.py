# array_codecs.py - what kind of array the engine is given: from zarr's metadata to compiled chains
# SPDX-License-Identifier: MIT
"""Two kinds of arrays.

`NativeKind`: every codec has native code. `StagedKind`: a sharded array with codecs that have none. There the shard
part stays native as far as it can be reached:

    codecs within the shards        inner chunks are fetched natively and decoded by zarr's codec objects, one by one
    codecs around the sharding      the object is one chunk; our `ShardingCodec` decodes the shard in their midst

Chunks of a rectilinear grid differ in shape, and each shape has a chain of its own; the last ones are kept.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..access.chunk_codec import compiled, staged_shard, staged_whole
from ..compat import ArrayV3Metadata, foreign_codec, is_sharding, is_transpose, quiet, replaced_part
from ..errors import ShardError, SpecError, UnsupportedError
from ..format.chain_spec import ChainSpec
from ..format.spec import ShardSpec
from .codec import ShardingCodec
from .foreign_codecs import ZarrCodecs
from .request import Declined

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["MAX_CHAINS", "Kind", "NativeKind", "StagedKind", "kind_of"]

# Chains of one array that are kept, by shape and byte order: a rectilinear grid may have any number of shapes.
MAX_CHAINS = 64


class Kind:
    """What all kinds have.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the elements, in either byte order.
    chain : callable
        From the shape of a chunk and whether memory is in native byte order to the compiled chain; raises `Declined`.
    """

    dtype: Any
    chain: Callable[[tuple[int, ...], bool], Chain]

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.chain = functools.lru_cache(MAX_CHAINS)(self._checked_chain)

    def _checked_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        try:
            return self._make_chain(shape, native_order)
        except ShardError as error:
            if isinstance(error, SpecError) and _is_indivisible(error):
                raise
            raise Declined(str(error)) from error

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        raise NotImplementedError


class NativeKind(Kind):
    """An array of whose codecs the engine knows all."""

    def __init__(self, metadata: ArrayV3Metadata) -> None:
        # JSON has one NaN; the fill value itself has its bits
        self._spec = replace(ChainSpec.from_metadata(metadata.to_dict()), fill_value=metadata.fill_value)
        super().__init__(self._spec.dtype)

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        spec = self._spec if self._spec.shape == shape else self._spec.with_shape(shape)
        return compiled(spec, native_order)


class StagedKind(Kind):
    """A sharded array with codecs that have no native code."""

    def __init__(self, metadata: ArrayV3Metadata) -> None:
        super().__init__(metadata.data_type.to_native_dtype())
        self._zdtype = metadata.data_type
        self._fill_value = metadata.fill_value
        place = next(i for i, codec in enumerate(metadata.codecs) if is_sharding(codec))
        sharding: Any = metadata.codecs[place]
        self._sharding = sharding
        if foreign := foreign_codec(sharding.index_codecs):
            raise Declined(f"codec class {foreign} for an index")
        self._before = metadata.codecs[:place]
        self._after = metadata.codecs[place + 1 :]
        self._inner = self._codecs(sharding.codecs, sharding.chunk_shape)

    def _codecs(self, codecs: Any, shape: tuple[int, ...]) -> ZarrCodecs:
        return ZarrCodecs(codecs, tuple(shape), self._zdtype, self._fill_value)

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        if self._after or not all(is_transpose(codec) for codec in self._before):
            return staged_whole(shape, self._codecs(self._around(), shape))
        config = self._sharding.to_dict()["configuration"]
        nbytes = self.dtype.itemsize
        spec = ShardSpec(  # for its geometry: the elements are opaque
            shape,
            config["chunk_shape"],
            f"V{nbytes}",
            bytes(nbytes),
            ["bytes"],
            config["index_codecs"],
            config["index_location"],
            before=[codec.to_dict() for codec in self._before],
        )
        return staged_shard(spec, self._inner)

    def _around(self) -> list[Any]:
        """All codecs, with our sharding codec for zarr's."""
        with quiet():
            ours = ShardingCodec.from_dict(self._sharding.to_dict())
        return [*self._before, ours, *self._after]


def _is_indivisible(error: SpecError) -> bool:
    """Tell whether a shard's shape is no multiple of its inner chunks', or is one too often for any index.

    zarr (3.4 still) does not see the first where a transpose stands before the sharding: it stores nothing, silently.
    At the second it runs out of memory.
    """
    return "chunk_shape" in (error.path or "") and error.limit is not None


def _after_sharding(codecs: Sequence[Any]) -> str:
    """Names of the codecs that hide a shard's inner chunks."""
    place = next((i for i, codec in enumerate(codecs) if is_sharding(codec)), len(codecs))
    return ", ".join(str(codec.to_dict()["name"]) for codec in codecs[place + 1 :])


@functools.lru_cache(256)
def _say_once(text: str) -> None:
    logging.getLogger("shardcodec").info(text)


def kind_of(metadata: ArrayV3Metadata) -> Kind:
    """Tell of which kind an array is.

    Raises
    ------
    Declined
        Its chunks are zarr's business: no shards, and codecs that are not native; or a sharding codec of somebody else;
        or one of zarr's, in which somebody has replaced a function (in a test, or to watch it).
    """
    if replaced := replaced_part(metadata.codecs):
        raise Declined(f"{replaced} has been replaced")
    if names := _after_sharding(metadata.codecs):
        _say_once(f"codecs after sharding_indexed ({names}): every access reads or writes whole shards")
    foreign = foreign_codec(metadata.codecs)
    reason = f"codec class {foreign}"
    if not foreign:
        try:
            return NativeKind(metadata)
        except (SpecError, UnsupportedError) as error:
            reason = str(error)
    if not any(is_sharding(codec) for codec in metadata.codecs):
        raise Declined(reason)
    try:
        return StagedKind(metadata)
    except Exception as error:  # codecs that are not ours may refuse in any way
        raise Declined(f"{reason}; {error}") from error
