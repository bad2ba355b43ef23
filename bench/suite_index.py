"""Rows that select by index arrays: rows of a table, single elements, a mask; read, and written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import numpy as np
import suite
from data import Array, Case
from peers import Peer
from suite import Context, Row

GROUP = "index arrays"


@dataclass(frozen=True, eq=False)
class Select(Row):
    """Reads one selection of an open array repeatedly."""

    how: str = "oindex"
    selection: Any = ()

    def takes(self, peer: Peer) -> bool:
        return peer.can_index and peer.name != "floor"

    def expected(self, values: Array) -> Array:
        """Return the selection made by NumPy."""
        return np.asarray(values[self.in_numpy])

    @property
    def in_numpy(self) -> Any:
        if self.how == "vindex":
            return self.selection
        axes = zip(self.selection, self.case.shape, strict=True)
        return np.ix_(*(np.arange(n)[s] if isinstance(s, slice) else s for s, n in axes))

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        array = peer.open(context.source(self.case), self.case)
        suite.assert_equal(peer, self.operate(peer, array), self.expected(context.values(self.case)))
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        return peer.open(context.source(self.case), self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        return peer.select(prepared, self.how, self.selection)

    @property
    def nbytes(self) -> int:
        """Return the size of the result in bytes."""
        shape = np.empty(self.case.shape, np.void)[self.in_numpy].shape if self.how == "oindex" else None
        n = np.prod(shape) if shape is not None else np.empty(self.case.shape, bool)[self.selection].size
        return int(n) * np.dtype(self.case.dtype).itemsize


@dataclass(frozen=True, eq=False)
class SelectRows(Select):
    """As `Select`, for whole rows along the first axis, which the floor can read, too."""

    @classmethod
    def of(cls, name: str, case: Case, positions: Array) -> SelectRows:
        rest = tuple(slice(0, n) for n in case.shape[1:])
        return cls(GROUP, name, case, "oindex", (positions, *rest))

    def takes(self, peer: Peer) -> bool:
        return peer.can_index


@dataclass(frozen=True, eq=False)
class Store(Select):
    """Writes the same elements of an existing array repeatedly, with other values each time. Each peer has its own copy."""

    def takes(self, peer: Peer) -> bool:
        return peer.can_index and peer.can_update

    def _path(self, context: Context, peer: Peer) -> Path:
        slug = f"{self.name}-{peer.name}".replace(" ", "-").replace(",", "")
        if slug not in context.sources:
            source = context.source(self.case)
            context.sources[slug] = Path(shutil.copytree(source, context.folder / f"own-{slug}"))
        return context.sources[slug]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        expected = context.values(self.case).copy()
        expected[self.in_numpy] = prepared[1]
        suite.assert_equal(peer, context.read_back(self._path(context, peer), self.case), expected)
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        values = self.expected(context.values(self.case)) + np.array(number + 1, dtype=self.case.dtype)
        return peer.open(self._path(context, peer), self.case), values

    def operate(self, peer: Peer, prepared: Any) -> Any:
        array, values = prepared
        peer.store(array, self.how, self.selection, values)


def _chosen(n: int, extent: int) -> Array:
    return np.random.default_rng(11).choice(extent, min(n, extent // 2), replace=False)


def rows(edge: int) -> list[Row]:
    """Return the rows: 1,000 rows of a table; of a cube 10,000 elements, a hundredth by a mask, 1,000 planes."""
    found: list[Row] = []
    for codec in ("raw", "zstd 1"):
        table = data.table(edge).with_codec(codec)
        chosen = _chosen(1000, table.shape[0])
        for name, order in (("any order", chosen), ("ascending", np.sort(chosen))):
            found.append(SelectRows.of(f"1,000 rows, {name}, {codec}", table, order))
        cube = data.big(edge).with_codec(codec)
        rng = np.random.default_rng(12)
        points = tuple(rng.integers(0, n, 10_000) for n in cube.shape)
        found.append(Select(GROUP, f"10,000 elements, {codec}", cube, "vindex", points))
        mask = rng.random(cube.shape, dtype=np.float32) < 0.01
        found.append(Select(GROUP, f"mask of 1 %, {codec}", cube, "vindex", mask))
    for codec in suite.CODECS:
        cube = data.big(edge).with_codec(codec)
        planes = np.random.default_rng(14).integers(0, edge, 1000)
        for name, order in (("any order", planes), ("ascending", np.sort(planes))):
            found.append(SelectRows.of(f"1,000 planes, repeated, {name}, {codec}", cube, order))
    table = data.table(edge).with_codec("zstd 1")
    some = np.sort(_chosen(1000, table.shape[0]))
    found.append(
        Store(GROUP, "1,000 rows written, zstd 1", table, "oindex", (some, slice(0, table.shape[1])))
    )
    return found
