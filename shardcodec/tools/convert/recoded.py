# recoded.py - inner chunks that zarr's codecs encode
# SPDX-License-Identifier: MIT
"""`RecodedChunks`: elements of a type that the engine does not have, such as strings, encoded for new inner chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ...format.byte_document import byte_document
from ...format.spec import ChainSpec
from ..foreign_chunks import ForeignChunks
from .layout import chunks_of
from .source import Coords, EncodedChunks, SourceArray

__all__ = ["RecodedChunks"]


class RecodedChunks(EncodedChunks):
    """The elements of a source as encoded chunks of a new array.

    Parameters
    ----------
    source : SourceArray
    document : mapping
        The ``zarr.json`` of the new array.
    """

    def __init__(self, source: SourceArray, document: Mapping[str, Any]) -> None:
        foreign = ForeignChunks.of(document)
        if foreign is None:
            raise UnsupportedError(f"{source.place}: zarr does not have the data type {source.data_type}")
        chain = ChainSpec.from_metadata(byte_document(document).document)
        self._source, self._foreign, self._chunk = source, foreign, chunks_of(chain)
        self._perm = chain.perm if chain.sharding is not None else tuple(range(chain.ndim))
        self._values = source.elements()

    def joined(self, coords: Coords, most_nbytes: int) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        for at in coords:
            data = self._encoded(tuple(at.tolist()))
            if data is not None:
                yield at[None], [len(data)], data

    def _encoded(self, at: tuple[int, ...]) -> bytes | None:
        """Return an encoded chunk; None if all its elements have the fill value."""
        fill = self._foreign.fill
        chunk = np.full(self._chunk, fill, fill.dtype)
        low = [i * size for i, size in zip(at, self._chunk, strict=True)]
        n = [
            min(size, limit - a) for a, size, limit in zip(low, self._chunk, self._source.shape, strict=True)
        ]
        chunk[tuple(map(slice, n))] = self._values[
            tuple(slice(a, a + k) for a, k in zip(low, n, strict=True))
        ]
        stored = chunk.transpose(self._perm)
        return self._foreign.encode(stored if stored.flags.c_contiguous else stored.copy())
