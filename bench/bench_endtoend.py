"""Time whole tasks with xarray, dask and a loader, on small arrays."""

from __future__ import annotations

from typing import Any

import harness
import pytest
import suite
from conftest import SIZES
from peers import Peer

ROWS = suite.rows(suite.Sizes(2 * SIZES.shrink), ["endtoend"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def bench_endtoend(benchmark: Any, context: suite.Context, peer: Peer, row: suite.Row) -> None:
    harness.bench(benchmark, context, peer, row)
