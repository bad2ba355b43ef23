# spec_checks.py - checks and strategies for the tests of `shardcodec.format`
# SPDX-License-Identifier: MIT
"""Specs from the JSON of `spec_json`, refusals, and strategies for data types and elements."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import pytest
from spec_json import config

from shardcodec.errors import SpecError
from shardcodec.format import codecs as codec_module
from shardcodec.format.spec import ChainSpec, ShardSpec


def shard(shard_shape: Any = (4, 6), dtype: Any = "int32", fill_value: Any = 0, **changes: Any) -> ShardSpec:
    return ShardSpec.from_json(config(**changes), shard_shape=shard_shape, dtype=dtype, fill_value=fill_value)


def refused(data: dict[str, Any], path: str, *words: str, **numbers: Any) -> None:
    """Expect `SpecError` at ``path``, with these words in the message and these attributes."""
    with pytest.raises(SpecError) as caught:
        ChainSpec.from_metadata(data)
    error = caught.value
    assert error.path == path
    assert str(error).startswith(f"{path}: ")
    for word in words:
        assert word in str(error)
    for name, value in numbers.items():
        assert getattr(error, name) == value


AT = "codecs[0].configuration"

# Names that the repr of a spec needs to be evaluated.
NAMESPACE = {**vars(codec_module), "ShardSpec": ShardSpec, "ChainSpec": ChainSpec}


def stored_json(array: Any) -> dict[str, Any]:
    from zarr.core.buffer import default_buffer_prototype

    buffer = asyncio.run(array.store.get("zarr.json", default_buffer_prototype()))
    return dict(json.loads(buffer.to_bytes()))


fixed_dtypes = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    npst.complex_number_dtypes(endianness="=", sizes=(64, 128)),
    npst.unicode_string_dtypes(endianness="=", min_len=1, max_len=4),
    npst.byte_string_dtypes(endianness="=", min_len=1, max_len=4),
    npst.datetime64_dtypes(endianness="="),
    npst.timedelta64_dtypes(endianness="="),
    st.builds(lambda n: np.dtype(f"V{n}"), st.integers(1, 9)),
)
any_dtypes = st.recursive(
    fixed_dtypes,
    lambda inner: npst.array_dtypes(subtype_strategy=inner, allow_subarrays=True),
    max_leaves=6,
).filter(lambda dtype: dtype.subdtype is None and 0 < dtype.itemsize < 4096)


def counted_bytes(n: int) -> bytes:
    """Return bytes in which neighbours differ, so that an exchange of two bytes is noticed."""
    return bytes(i % 251 + 1 for i in range(n))


def element_bytes(dtype: np.dtype[Any]) -> st.SearchStrategy[bytes]:
    """Draw the bits of any value of the type. All bits are values, except for booleans and text."""
    if dtype.subdtype is not None:
        n = dtype.itemsize // dtype.subdtype[0].itemsize
        return st.lists(element_bytes(dtype.subdtype[0]), min_size=n, max_size=n).map(b"".join)
    if dtype.names is not None:
        return st.tuples(*(element_bytes(dtype[name]) for name in dtype.names)).map(b"".join)
    if dtype.kind == "b":
        return st.sampled_from([b"\0", b"\1"])
    if dtype.kind == "U":
        n = dtype.itemsize // 4
        return st.text(max_size=n).map(lambda text: np.array(text, dtype).tobytes())
    return st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)


elements = any_dtypes.flatmap(lambda dtype: st.tuples(st.just(dtype), element_bytes(dtype)))
