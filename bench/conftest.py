"""Report the machine in the header and in the JSON, warn about load, and make one folder for a session.

`BENCH_EDGE` sets the size of the large arrays (256 here, 512 in run.py), `BENCH_THREADS` the threads of each peer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import peers
import pytest
import run
import suite

EDGE = int(os.environ.get("BENCH_EDGE", "256"))
SIZES = suite.Sizes(max(1, 512 // EDGE))


def pytest_report_header() -> list[str]:
    facts = machine.facts(Path.cwd())
    packages = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        f"machine: {facts['cpu']}, {facts['cpus_used']} of {facts['cpus']} processors, {facts['file_system']}",
        f"versions: {packages}",
        f"threads: {peers.N_THREADS}, load average: {facts['load']:.2f}",
    ]
    warning = machine.load_warning()
    return [*lines, f"WARNING: {warning}"] if warning else lines


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info["shardcodec_bench"] = machine.facts(Path.cwd())


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[suite.Context]:
    contestants, _ = peers.available()
    folder = tmp_path_factory.mktemp("bench")
    shared = suite.Context(folder, run.choose_writer(contestants), run.choose_checker(contestants))
    yield shared
    shared.close_kept()


@pytest.fixture(params=peers.ALL, ids=lambda peer: peer.name.replace(" ", "-"))
def peer(request: pytest.FixtureRequest) -> Iterator[peers.Peer]:
    chosen: peers.Peer = request.param
    reason = chosen.why_not()
    if reason is not None:
        pytest.skip(f"{chosen.name}: {reason}")
    with chosen.turn():
        yield chosen
