"""Time the writing of whole arrays into empty folders. The extra info has their sizes."""

from __future__ import annotations

from typing import Any

import harness
import pytest
import suite
from conftest import SIZES
from peers import Peer

ROWS = [row for row in suite.rows(SIZES, ["whole", "tiny"]) if isinstance(row, suite.Write)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def bench_write(benchmark: Any, context: suite.Context, peer: Peer, row: suite.Row) -> None:
    harness.bench(benchmark, context, peer, row)
