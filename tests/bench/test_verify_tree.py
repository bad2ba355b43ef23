# test_verify_tree.py - the benchmark of verify beside cat, on a small data set
# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from shardcodec import tools

pytest.importorskip("typer", reason="the command needs typer")


def test_data_set_is_half_in_shards_and_verified_as_a_whole(
    bench: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = bench("verify_tree")
    monkeypatch.setattr(program, "SIDE", 16)
    monkeypatch.setattr(program, "DROP", tmp_path / "absent")  # the page cache of this machine stays
    found = program.compare(tmp_path, 2, 1)
    assert [row["name"] for row in found["rows"]] == ["warm"]
    assert all(len(peer["seconds"]) == 1 for peer in found["rows"][0]["peers"].values())
    report = tools.verify(tmp_path / "tree.zarr", level="checksum")
    assert [one.is_sharded for one in report.arrays].count(True) == 3 == len(report.arrays) / 2
    assert all(one.n_shards for one in report.arrays) and report.n_findings == report.n_unchecked == 0


def test_failed_command_is_an_error(bench: Callable[[str], ModuleType]) -> None:
    with pytest.raises(SystemExit, match="exit code 7"):
        bench("verify_tree").timed(["sh", "-c", "exit 7"], cold=False)
