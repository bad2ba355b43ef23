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
        row, column = crops.start(index)
        assert np.array_equal(crop, values[row : row + 7, column : column + 9])
        assert np.array_equal(crop, crops[index])
    other = loader.RandomCrops(tmp_path, (7, 9), 20, seed=1)
    assert [other.start(i) for i in range(20)] != [crops.start(i) for i in range(20)]
    with pytest.raises(IndexError):
        crops[20]


def test_loader_example_runs() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(EXAMPLE), "--crops", "24", "--batch", "8"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "24 crops of (40, 40, 40): 3 MB" in done.stdout
