# test_types.py - what a type checker finds in programs that call shardcodec
# SPDX-License-Identifier: MIT

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RIGHT = """
import shardcodec
from shardcodec import tools

shardcodec.enable(threads=2, write_strategy="append", durability="fsync", locking="cluster")
with shardcodec.options(durability="fsync", lock_timeout=5.0, io_depth="auto"):
    pass
tools.verify("a.zarr", level="decode")
tools.convert("a.zarr", "b.zarr", shards=[4, 4], only="t*", codecs=["zstd", {"name": "crc32c"}], verify="full")
spec = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 0)
shardcodec.open_shard(b"", None, spec, mode="r+").write_encoded([(0, 0)], [b""], strategy="append")
"""
# Each of these lines has one mistake. `enable(**defaults: Any)` and `level: str` accepted them, so it appeared when the job ran.
WRONG = """
import shardcodec
from shardcodec import kv, tools
spec = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 0)
shard = shardcodec.open_shard(b"", None, spec)
shardcodec.enable(write_strategy="apend")
shardcodec.enable(thread=1)
shardcodec.options(durabilty="fsync")
shardcodec.options(order="mortn")
shardcodec.open_shard(b"", None, spec, mode="w")
shardcodec.open_shard(b"", None, spec, lockin="process")
shard.write_encoded([(0, 0)], [b""], strategy="apend")
shard.erase([(0, 0)], footr=b"")
shardcodec.ShardWriter("a", spec, order="mortn")
shardcodec.ShardWriter.create("a", spec, ordr="morton")
shardcodec.encode(b"", spec, order="mortn")
tools.verify("a.zarr", level="deep")
tools.repair("a.zarr", order="mortn", dry_run=True)
tools.convert("a.zarr", "b.zarr", verify="ful")
tools.plan_writes("a.zarr", workers=2, align="chunk")
kv.ShardedKeyValueStore("a", grid_shape=(4,), index_codecs=["bytes"], index_location="strat")
"""


def checked(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy", reason="mypy is not installed")
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"]
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_type_checker_finds_misspelt_options_and_values(tmp_path: Path) -> None:
    done = checked(tmp_path, RIGHT)
    assert done.returncode == 0, done.stdout
    done = checked(tmp_path, WRONG)
    lines = {int(n) for n in re.findall(r"^program.py:(\d+): error", done.stdout, re.MULTILINE)}
    assert lines == set(range(6, len(WRONG.splitlines()) + 1)), done.stdout
