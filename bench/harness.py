"""Run a row of the suite as a benchmark of pytest-benchmark."""

from __future__ import annotations

from typing import Any

import pytest
from peers import Peer
from run import context_of
from suite import Context, Row

ROUNDS = 5


def bench(benchmark: Any, context: Context, peer: Peer, row: Row) -> None:
    """Check a row, then time row.operate(). The extra info has the number of operations if there are several."""
    if not row.takes(peer) or not peer.joins(row.group):
        pytest.skip(f"{peer.name} does not take part in this row")
    context = context_of(row, context)
    benchmark.group = row.name
    benchmark.extra_info.update(row.check(context, peer), bytes=row.nbytes, operations=row.operations)
    numbers = iter(range(1, 1000))

    def prepare() -> tuple[tuple[Peer, Any], dict[str, Any]]:
        return (peer, row.prepare(context, peer, next(numbers))), {}

    def finish(_peer: Peer, prepared: Any) -> None:
        row.finish(prepared)

    benchmark.pedantic(row.operate, setup=prepare, teardown=finish, rounds=min(ROUNDS, row.most_rounds))
    context.close_kept()
    context.drop_sources(row.case)
