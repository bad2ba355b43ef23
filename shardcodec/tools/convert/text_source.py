# text_source.py - columns of text that another library decodes
# SPDX-License-Identifier: MIT
"""`TextSource`: strings of any length as a source. They become an array of the data type ``string``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...format.byte_document import byte_document
from ...format.dtypes import DType, parse_data_type
from .object_source import chunks_of_object
from .source import Ints, SourceArray

__all__ = ["TEXT", "TextSource", "string_source_fields"]

# Stands for text of any length where xarray's mask is made.
TEXT: DType = np.dtype("U65536")


@dataclass(frozen=True, eq=False)
class TextSource(SourceArray):
    """An array-like object whose elements are strings."""

    values: Any = None

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        raise NotImplementedError("strings are read with `elements`")

    def elements(self) -> Any:
        return self.values

    @property
    def objects_shape(self) -> None:
        return None


def string_source_fields(values: Any, strings: Any, fill: str = "") -> dict[str, Any]:
    """Return the fields of a source that have to do with its elements: `values` has the shape and perhaps chunks, `strings` the elements."""
    shape = tuple(int(n) for n in values.shape)
    stored = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "string",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "vlen-utf8"}, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}],
    }
    as_bytes = byte_document(stored)
    dtype = parse_data_type(as_bytes.document["data_type"])
    return {
        "shape": shape,
        "dtype": dtype,
        "fill_value": np.zeros((), dtype)[()],
        "chunks": chunks_of_object(values),
        "bytes": as_bytes,
        "values": strings,
    }
