# test_examples.py - the example programs that need nothing but the package
# SPDX-License-Identifier: MIT
"""Each is run as a user would run it; it checks its own results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import shardcodec

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, folder: Path) -> str:
    paths = [str(Path(shardcodec.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "examples" / name), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_minmax_footer(tmp_path: Path) -> None:
    assert run("minmax_footer.py", tmp_path / "table.zarr").count("rows, found with") == 3
    assert (tmp_path / "table.zarr" / "time" / "zarr.json").exists()


def test_tiff_shard(tmp_path: Path) -> None:
    assert "still both" in run("tiff_shard.py", tmp_path / "image.zarr")
    assert (tmp_path / "image.zarr" / "c" / "0" / "0").read_bytes()[:4] == b"II*\0"
