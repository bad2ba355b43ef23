# test_loader_example.py - examples/loader.py runs and returns the stored data
# SPDX-License-Identifier: MIT
"""The example as a program, and its data set as a class."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, random_array

import shardcodec

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "loader.py"


@pytest.fixture(scope="module")
def loader() -> Any:
    spec = importlib.util.spec_from_file_location("loader_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_crops_equal_the_stored_data(loader: Any, tmp_path: Path) -> None:
    values = random_array((30, 41), "int32")
    create(tmp_path, shape=(30, 41))[...] = values
    crops = loader.RandomCrops(tmp_path, (7, 9), 20)
    assert len(crops) == 20
    batch = crops.__getitems__(list(range(20)))
    for index, crop in enumerate(batch):
        row, column = crops.starts[index]
        assert np.array_equal(crop, values[row : row + 7, column : column + 9])
        assert np.array_equal(crop, crops[index])
    other = loader.RandomCrops(tmp_path, (7, 9), 20, seed=1)
    assert (other.starts != crops.starts).any()
    with pytest.raises(IndexError):
        crops[20]


def run_example(*arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(EXAMPLE), "--crops", "24", "--batch", "8", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wrong_crops_are_counted(loader: Any, tmp_path: Path) -> None:
    create(tmp_path, shape=(30, 41))[...] = random_array((30, 41), "int32")
    crops = loader.RandomCrops(tmp_path, (7, 9), 20)
    parts = list(shardcodec.ShardOrder(crops.array, crops.starts, batch=8))
    read = [np.stack(crops.__getitems__(part)) for part in parts]
    assert loader.n_wrong(tmp_path, crops, parts, read) == 0
    read[1][3, 6, 8] += 1
    assert loader.n_wrong(tmp_path, crops, parts, read) == 1


def test_loader_example_runs() -> None:
    told = run_example()
    assert "24 crops of (40, 40, 40): 3 MB" in told and "; 0 differ from the array" in told


def test_loader_of_torch_reads_the_same() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert "; 0 differ from the array" in run_example("--torch")
