"""Time the reading of whole arrays, for each codec and for tiny inner chunks."""

from __future__ import annotations

from typing import Any

import harness
import pytest
import suite
from conftest import SIZES
from peers import Peer

ROWS = [row for row in suite.rows(SIZES, ["whole", "tiny"]) if isinstance(row, suite.Read)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def bench_read(benchmark: Any, context: suite.Context, peer: Peer, row: suite.Row) -> None:
    harness.bench(benchmark, context, peer, row)
