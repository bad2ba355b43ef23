# engine_protocol.py - a small twin of the draft of zarr's protocol for array engines
# SPDX-License-Identifier: MIT
"""The calls that zarr makes to an engine, as a protocol, and an array that sends its selections through one.

The releases of zarr that the tests run with have no engines. `docs/engine.md` names the draft.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from zarr.buffer.cpu import buffer_prototype

Kind = Literal["basic", "orthogonal", "coordinate", "mask", "block"]


@dataclass(frozen=True)
class SelectionRequest:
    """A selection as the user wrote it, how it is meant, and the shape and grid of its array."""

    kind: Kind
    selection: Any
    shape: tuple[int, ...]
    chunk_grid: Any


@runtime_checkable
class ArrayEngine(Protocol):
    """Reads and writes of one array."""

    def read_selection(
        self, request: SelectionRequest, *, prototype: Any, out: Any = None, fields: Any = None
    ) -> Any: ...

    def write_selection(
        self, request: SelectionRequest, value: Any, *, prototype: Any, fields: Any = None
    ) -> None: ...

    def with_metadata(self, metadata: Any) -> ArrayEngine: ...


@runtime_checkable
class AsyncArrayEngine(Protocol):
    """The same with coroutines."""

    async def read_selection(
        self, request: SelectionRequest, *, prototype: Any, out: Any = None, fields: Any = None
    ) -> Any: ...

    async def write_selection(
        self, request: SelectionRequest, value: Any, *, prototype: Any, fields: Any = None
    ) -> None: ...

    def with_metadata(self, metadata: Any) -> AsyncArrayEngine: ...


@runtime_checkable
class HierarchyEngine(Protocol):
    """Engines for the arrays in one store."""

    def array_engine(self, path: str, metadata: Any, config: Any = None) -> ArrayEngine: ...


@runtime_checkable
class AsyncHierarchyEngine(Protocol):
    """Engines with coroutines for the arrays in one store."""

    def array_engine(self, path: str, metadata: Any, config: Any = None) -> AsyncArrayEngine: ...


def coordinates_shape(selection: Any) -> tuple[int, ...]:
    """Return the shape of the result of coordinates; one element has one axis, as in zarr."""
    indices = selection if isinstance(selection, tuple) else (selection,)
    return np.broadcast_shapes(*(np.shape(index) for index in indices)) or (1,)


class EngineArray:
    """An array whose elements come from an engine, as zarr's `Array` in the draft.

    Coordinates with several axes are the array's work: the engine has one axis for them, in results, `out` and values.
    """

    def __init__(self, engine: Any, metadata: Any, prototype: Any = buffer_prototype) -> None:
        self.engine = engine
        self.metadata = metadata
        self.prototype = prototype

    def request(self, kind: Kind, selection: Any) -> SelectionRequest:
        return SelectionRequest(kind, selection, self.metadata.shape, None)

    def get(self, kind: Kind, selection: Any, *, out: Any = None, fields: Any = None) -> Any:
        values = self.engine.read_selection(
            self.request(kind, selection), prototype=self.prototype, out=out, fields=fields
        )
        return self.as_selected(kind, selection, values)

    def set(self, kind: Kind, selection: Any, value: Any, *, fields: Any = None) -> None:
        self.engine.write_selection(
            self.request(kind, selection),
            self.as_stored(kind, value),
            prototype=self.prototype,
            fields=fields,
        )

    async def get_async(self, kind: Kind, selection: Any) -> Any:
        values = await self.engine.read_selection(self.request(kind, selection), prototype=self.prototype)
        return self.as_selected(kind, selection, values)

    def set_async(self, kind: Kind, selection: Any, value: Any) -> Coroutine[Any, Any, None]:
        work: Coroutine[Any, Any, None] = self.engine.write_selection(
            self.request(kind, selection), self.as_stored(kind, value), prototype=self.prototype
        )
        return work

    def resized(self, metadata: Any) -> EngineArray:
        return EngineArray(self.engine.with_metadata(metadata), metadata, self.prototype)

    @staticmethod
    def as_selected(kind: Kind, selection: Any, values: Any) -> Any:
        if kind != "coordinate":
            return values
        assert values.ndim == 1
        return values.reshape(coordinates_shape(selection))

    @staticmethod
    def as_stored(kind: Kind, value: Any) -> Any:
        return value.reshape(-1) if kind == "coordinate" and isinstance(value, np.ndarray) else value


def write_row(engine: Any, row: int, shape: tuple[int, ...]) -> None:
    """Write a row through an engine. It is defined here since a spawned process imports it by name."""
    request = SelectionRequest("basic", row, shape, None)
    engine.write_selection(request, row, prototype=buffer_prototype)
