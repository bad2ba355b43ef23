# stand_in.py - what a zarr gets of us that we do not fit
# SPDX-License-Identifier: MIT
"""Stand-ins for the classes that our entry points name, made of what zarr promises to keep.

They leave all work to zarr. Without them a zarr which has moved one of its insides could open no array in any process
where shardcodec is installed, wanted or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import zarr
from zarr.abc.codec import Codec, CodecPipeline
from zarr.codecs import ShardingCodec

__all__ = ["ShardCodecPipeline", "ShardingCodec"]


class ShardCodecPipeline(CodecPipeline):
    """Leaves every array to zarr's own pipeline."""

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Any:
        """Return zarr's own pipeline, which its registry knows by a name that may have changed."""
        own = next(cls for cls in CodecPipeline.__subclasses__() if cls.__module__.startswith("zarr."))
        return own.from_codecs(codecs)

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Any:
        """Say so once.

        Raises
        ------
        NotImplementedError
            Always: zarr goes on with its own pipeline.
        """
        why = f"shardcodec does not fit zarr {zarr.__version__} and leaves the work to it; `shardcodec.enable` tells why"
        warnings.warn(why, RuntimeWarning, stacklevel=2)
        raise NotImplementedError(why)


ShardCodecPipeline.__module__ = "shardcodec"
