# test_broken.py - the matrix of damaged shards in golden/broken, each group in its own process
# SPDX-License-Identifier: MIT
"""Requirements SC-20 to SC-45 and SC-62: a damaged shard raises the documented error or gives the right elements.

Each shard is read whole, by inner chunk and by element, and updated in part, through files, memory, a store of
requests, and `decode`; files are updated with each write strategy. Address space and time are limited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from golden import make_broken, run_broken, streams

import shardcodec

TESTS = Path(__file__).resolve().parents[1]
BROKEN = TESTS / "golden" / "broken"


def test_fixtures_equal_their_recipe() -> None:
    assert json.loads((BROKEN / "cases.json").read_text()) == json.loads(
        json.dumps([asdict(case) for case in make_broken.cases()])
    )
    assert sorted(path.name for path in BROKEN.iterdir()) == ["cases.json", "streams.json"]


def test_every_codec_has_a_stream() -> None:
    names = [made["name"] for made in streams.load()]
    assert names == [name for name, _, _ in streams.recipes()]


def test_every_requirement_has_a_case() -> None:
    covered = {rule for case in make_broken.cases() for rule in case.rules.split()}
    # tested elsewhere: SC-30 limits memory, SC-38 is the group "nested"; fill values and variable lengths are no damage
    assert covered >= {f"SC-{n}" for n in (*range(20, 30), *range(31, 38), 39, 41, 42, 43, 62)}


@pytest.mark.native
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, marks=[pytest.mark.nightly] * group.endswith("other half"))
        for group in run_broken.GROUPS
    ],
)
def test_broken_shards_raise_documented_errors(group: str) -> None:
    if os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread":
        pytest.skip("runs in one thread, and slowly")
    paths = [str(Path(shardcodec.__file__).parents[1]), str(TESTS), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-P", str(TESTS / "golden" / "run_broken.py"), group],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    last = run.stdout.rstrip().rpartition("\n")[2]
    assert run.returncode == 0, f"exit status {run.returncode} at {last!r}\n{run.stderr[-4000:]}"
