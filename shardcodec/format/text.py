# text.py - arrays of text, and of bytes of any length
# SPDX-License-Identifier: MIT
"""`text_array`: the encoding of an array whose elements have any length.

An element has no fixed size, so a `ChainSpec` cannot have it. Shards, indexes, transposes and codecs of bytes do not depend on
that: the spec here has one byte in place of each element, and `bytes` in place of `vlen-utf8` or `vlen-bytes`.

Source: zarr-extensions, data types ``string`` and ``bytes``, codecs ``vlen-utf8`` and ``vlen-bytes``; zarr-python, whose name for
``bytes`` is ``variable_length_bytes``; numcodecs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .checks import as_items, bounded_depth, parse_named, show, unsupported, within, wrong
from .codecs import Filter, RegistryPackBits, Shuffle
from .dtypes import DType
from .spec import ChainSpec
from .zarray_members import TEXT_CODECS, document_in_v3

__all__ = ["TextArray", "text_array", "text_dtype"]

# Data types, also by the name of zarr-extensions, and their codecs.
_SERIALIZERS = {data_type: codec for codec, data_type in TEXT_CODECS.items()} | {"bytes": "vlen-bytes"}


class TextArray(NamedTuple):
    """An array of text (str) or of bytes.

    document: a ``zarr.json`` of the same chunks, with one byte in place of each element. fill_value: a str or bytes.
    """

    is_text: bool
    document: Mapping[str, Any]
    fill_value: Any

    @property
    def dtype(self) -> DType:
        """The data type of the elements in numpy, as in zarr."""
        return text_dtype(self.is_text)

    def spec(self, clip: bool = False) -> ChainSpec:
        """Return the encoding of an object, with one byte in place of each element.

        Raises
        ------
        SpecError, UnsupportedError
            As for ``ChainSpec.from_metadata``; also for codecs after a sharding, shards in shards, and filters of bytes that need whole
            elements.
        """
        spec = ChainSpec.from_metadata(self.document, clip=clip)
        chunk = spec if spec.inner is None else spec.inner
        if spec.inner is not None and (spec.bytes_codecs or chunk.sharding is not None):
            unsupported("codecs", "expected texts in shards that are neither nested nor encoded as a whole")
        for codec in (*spec.codecs, *chunk.codecs):
            if isinstance(codec, Filter | RegistryPackBits | Shuffle):
                unsupported("codecs", f"expected no {codec.json_name} with texts", codec=codec.json_name)
        return spec


def text_dtype(is_text: bool) -> DType:
    """Return the data type of texts, or of bytes: StringDType where numpy has it, else objects."""
    if is_text and hasattr(np.dtypes, "StringDType"):
        return np.dtypes.StringDType()
    return np.dtype(object)


@bounded_depth("metadata")
def text_array(document: Mapping[str, Any]) -> TextArray | None:
    """Return the encoding of an array of text or bytes; None for arrays of other elements.

    Raises
    ------
    SpecError, UnsupportedError
        The document is invalid, or the engine does not have a codec.
    """
    stored: Mapping[str, Any] | None = document
    if document.get("zarr_format") == 2:
        stored = document_in_v3(document, {})
    if stored is None or not isinstance(stored.get("data_type"), str | Mapping):
        return None
    name, _ = parse_named(stored["data_type"])
    if name not in _SERIALIZERS:
        return None
    with within("codecs"):
        codecs = _with_bytes(as_items(stored.get("codecs"), ""), _SERIALIZERS[name])
    with within("fill_value"):
        fill = _fill(stored.get("fill_value"), name == "string")
    return TextArray(
        name == "string", {**stored, "data_type": "uint8", "fill_value": 0, "codecs": codecs}, fill
    )


def _with_bytes(codecs: Sequence[Any], serializer: str) -> list[Any]:
    """Return codecs with `bytes` in place of the serializer, also in a sharding."""
    result: list[Any] = []
    for codec in codecs:
        name, configuration = parse_named(codec)
        if name == "sharding_indexed" and "codecs" in configuration:
            inner = _with_bytes(as_items(configuration["codecs"], "codecs"), serializer)
            result.append({"name": name, "configuration": {**configuration, "codecs": inner}})
        elif name == "bytes" or (name == serializer and configuration):
            unsupported(
                "", f"expected {serializer} for elements of any length, got {show(codec)}", codec=name
            )
        else:
            result.append({"name": "bytes"} if name == serializer else codec)
    return result


def _fill(value: object, is_text: bool) -> str | bytes:
    if is_text:
        if not isinstance(value, str):
            wrong("", f"expected a string, got {show(value)}", actual=value)
        return value
    if isinstance(value, list | tuple):
        try:
            return bytes(value)
        except (TypeError, ValueError):
            wrong("", f"expected bytes, got {show(value)}", actual=value)
    if not isinstance(value, str):
        wrong("", f"expected base64, got {show(value)}", actual=value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        wrong("", f"expected base64, got {show(value)}", actual=value)
