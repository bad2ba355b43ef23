# metadata.py - the 2022 format: what is known of an array
# SPDX-License-Identifier: MIT
"""The 2022 format: a draft of Zarr v3 that zarr-python 2.14 to 2.18 writes with ``ZARR_V3_EXPERIMENTAL_API=1``.

    zarr.json                        the hierarchy: the format, and the suffix of metadata keys
    meta/root/<path>.group.json      attributes of a group; optional
    meta/root/<path>.array.json      an array
    data/root/<path>/c3/9            its chunks; with a sharding storage transformer its shards

Source: zarr-specs, ``core-protocol-v3.0-dev`` of 2022 and its storage transformer ``sharding``; zarr-python 2.14.2 to
2.18.7, ``meta.py`` and ``_storage/v3_storage_transformers.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["COMPRESSORS", "DType", "LegacyArray"]

DType = np.dtype[Any]

COMPRESSORS = ("gzip", "zlib", "blosc", "lz4", "bz2", "lzma", "zstd")


@dataclass(frozen=True)
class LegacyArray:
    """Metadata of an array of the 2022 format.

    dtype: in the byte order of the stored elements. fill: None: elements that were never written have no defined value.
    filters, compressor: configurations of numcodecs, filters in the order of encoding. stack: chunks per shard of each sharding
    transformer; the last one is next to the store. attributes: without the one in which zarr-python stores filters. document:
    the complete array.json.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    separator: str
    order: str
    dtype: DType
    fill: Any
    filters: tuple[Mapping[str, Any], ...]
    compressor: Mapping[str, Any] | None
    stack: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def is_sharded(self) -> bool:
        """True if the array has a sharding transformer."""
        return bool(self.stack)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of the array region in one object, in elements."""
        shape = np.array(self.chunk_shape, dtype=object)
        for per_shard in self.stack:
            shape = shape * np.array(per_shard, dtype=object)
        return tuple(int(extent) for extent in shape)

    def with_changes(self, shape: tuple[int, ...], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document with another shape and other attributes."""
        kept = {"filters": list(self.filters)} if self.filters else {}
        return {**self.document, "shape": list(shape), "attributes": {**kept, **attributes}}
