# test_types.py - what a type checker finds in programs that call shardcodec
# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
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
with shardcodec.options(durability="fsync", cache="1GiB", strict=True):
    pass
tools.verify("a.zarr", level="decode")
tools.convert("a.zarr", "b.zarr", shards=[4, 4], only="t*", codecs=["zstd", {"name": "crc32c"}], level="compare")
spec = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 0)
shardcodec.open_shard(b"", None, spec, mode="r+").write_encoded([(0, 0)], [b""], strategy="append")
shardcodec.create_array("a.zarr", shape=(4, 4), shards=(4, 4), chunks=(2, 2), dtype="u1", dimension_names=("y", "x"))
spec.to_metadata((8, 8), dimension_names=("y", "x"))
"""
# Each of these lines has one mistake. `enable(**defaults: Any)` and `level: str` accepted them, so it appeared when the job ran.
WRONG = """
import shardcodec
from shardcodec import kv, tools, transformer
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
tools.convert("a.zarr", "b.zarr", level="comp")
tools.plan_writes("a.zarr", workers=2, align="chunk")
kv.ShardedKeyValueStore("a", grid_shape=(4,), index_codecs=["bytes"], index_location="strat")
shardcodec.create_array("a.zarr", shape=(4, 4), chunk=(2, 2), dtype="u1")
spec.to_metadata((8, 8), dimension_name=("y", "x"))
transformer.ShardingStorageTransformer("a.zarr", (2, 2), index_location="strat")
kv.ShardedKeyValueStore("a", grid_shape=(4,), index_codecs=["bytes"]).read_many(["0"], byte_range=[None])
"""


def mypy_errors(folder: Path) -> dict[int, str]:
    """Return the errors of `mypy --strict` in the program, by line."""
    done = run(folder, "mypy", "--strict", "--cache-dir", str(folder / "cache"))
    return {
        int(n): text for n, text in re.findall(r"^program.py:(\d+): error: (.*)", done.stdout, re.MULTILINE)
    }


def pyright_errors(folder: Path) -> dict[int, str]:
    """Return the errors of pyright, with its default rules; editors such as VS Code show them."""
    done = run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1: one["message"] for one in found if one["severity"] == "error"}


CHECKERS = {"mypy": mypy_errors, "pyright": pyright_errors}


def run(folder: Path, checker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(checker, reason=f"{checker} is not installed")
    command = [sys.executable, "-m", checker, *arguments, "program.py"]
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checker_finds_misspelt_options_and_values(checker: str, tmp_path: Path) -> None:
    errors = CHECKERS[checker]
    (tmp_path / "program.py").write_text(RIGHT)
    assert not errors(tmp_path)
    (tmp_path / "program.py").write_text(WRONG)
    found = errors(tmp_path)
    assert found.keys() == set(range(6, len(WRONG.splitlines()) + 1)), found
