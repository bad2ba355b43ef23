# stand_in.py - a pipeline and a codec that leave all work to zarr
# SPDX-License-Identifier: MIT
"""Stand-ins for the classes of shardcodec's entry points. They use only public names of zarr and leave all work to zarr.

Without them, a zarr with changed internals could not open any array in a process where shardcodec is installed. The wheel without
the engine (setup.py) has no other pipeline.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import zarr
from zarr.abc.codec import Codec, CodecPipeline
from zarr.codecs import ShardingCodec

from . import native

__all__ = ["ShardCodecPipeline", "ShardingCodec"]


class ShardCodecPipeline(CodecPipeline):
    """A pipeline that leaves every array to zarr's own pipeline."""

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Any:
        """Return zarr's own pipeline; its class is found by its module, because its name may have changed.

        Parameters
        ----------
        codecs : iterable of Codec
            The codecs of the array.

        Returns
        -------
        CodecPipeline
        """
        own = next(cls for cls in CodecPipeline.__subclasses__() if cls.__module__.startswith("zarr."))
        return own.from_codecs(codecs)

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> Any:
        """Warn, and decline the array.

        Parameters
        ----------
        array_metadata, store
            Metadata and store of the array; not used.

        Raises
        ------
        NotImplementedError
            Always; zarr then continues with its own pipeline.
        """
        if native.missing() is not None:
            native.warn_missing()
            raise NotImplementedError
        why = f"shardcodec does not fit zarr {zarr.__version__} and leaves the work to it; `shardcodec.enable` raises the cause"
        warnings.warn(why, RuntimeWarning, stacklevel=2)
        raise NotImplementedError(why)


ShardCodecPipeline.__module__ = "shardcodec"

# Its warning shall appear where a file or a variable selects shardcodec, as `option_sources` does it with a zarr that fits.
if zarr.config.get("shardcodec.enabled", False) and zarr.config.get("codec_pipeline.path").startswith(
    "zarr."
):
    zarr.config.set({"codec_pipeline.path": "shardcodec.ShardCodecPipeline"})
