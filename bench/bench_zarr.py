"""Time small operations: reads of an inner chunk, a box, a plane and an element, and writes of a box."""

from __future__ import annotations

from typing import Any

import harness
import pytest
import suite
from conftest import SIZES
from peers import Peer

ROWS = suite.rows(SIZES, ["small", "partial"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def bench_zarr(benchmark: Any, context: suite.Context, peer: Peer, row: suite.Row) -> None:
    harness.bench(benchmark, context, peer, row)
