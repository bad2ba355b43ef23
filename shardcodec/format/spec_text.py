# spec_text.py - specs as an expression of Python, and as text for people
# SPDX-License-Identifier: MIT
"""``repr`` of a spec evaluates to an equal one; ``print`` shows its shapes and codecs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..readable import Fact, format_nbytes
from .dtypes import dtype_repr
from .fill_values import fill_repr

__all__ = ["chain_facts", "shard_facts", "spec_repr"]


def spec_repr(spec: Any, names: Iterable[str]) -> str:
    """Return an expression that evaluates to an equal spec; numpy's repr of dtypes and scalars does not."""
    special = {"dtype": dtype_repr(spec.dtype), "fill_value": fill_repr(spec.dtype, spec.fill)}
    values = (f"{name}={special.get(name) or repr(getattr(spec, name))}" for name in names)
    return f"{type(spec).__name__}({', '.join(values)})"


def chain_facts(spec: Any) -> Iterator[Fact]:
    """Yield the facts of a `ChainSpec`."""
    yield "", "chunk"
    yield "shape", f"{_shape(spec.shape)}, {format_nbytes(spec.nbytes)} decoded"
    yield "elements", f"{spec.dtype}, fill value {spec.fill_value}"
    yield "codecs", _codecs(spec.codecs)


def shard_facts(spec: Any) -> Iterator[Fact]:
    """Yield the facts of a `ShardSpec`."""
    yield "", "shard"
    yield "shape", f"{_shape(spec.shard_shape)}, {format_nbytes(spec.chain.nbytes)} decoded"
    chunks = f"{spec.n_chunks} of {_shape(spec.chunk_shape)}, {format_nbytes(spec.inner.nbytes)} decoded"
    yield "inner chunks", chunks
    yield "elements", f"{spec.dtype}, fill value {spec.fill_value}"
    for name, codecs in (("before", spec.before), ("codecs", spec.codecs), ("after", spec.after)):
        if codecs or name == "codecs":
            yield name, _codecs(codecs)
    size = format_nbytes(spec.index_nbytes)
    yield "index", f"{size} at the {spec.index_location}, {_codecs(spec.index_codecs)}"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) if shape else "one element"


def _codecs(codecs: Iterable[Any]) -> str:
    """Return the names of codecs with their configuration."""
    shown = []
    for codec in codecs:
        configuration = codec.to_json().get("configuration") or {}
        values = ", ".join(f"{name}={value}" for name, value in configuration.items())
        shown.append(codec.json_name + (f"({values})" if values else ""))
    return ", ".join(shown) or "none"
