# test_random_streams.py - random streams with signals at random moments, kills and resumes
# SPDX-License-Identifier: MIT
"""No frame that counts is wrong, and no call hangs. `make nightly` runs 300 of them."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from signalled_streams import N_FRAMES, stream

from shardcodec.live.record import NAME

SECONDS = 90  # more than any process needs, also on a busy machine


def check(path: Path, order: list[int] | None, *, is_whole: bool) -> None:
    """All frames that the record counts are in the array as they were given."""
    record = path / NAME
    n = json.loads(record.read_text())["frames"] if record.exists() else 0
    array = zarr.open_array(path, mode="r")
    n_shown = n if order is not None or is_whole else min(n, array.shape[0])
    places = (order or list(range(N_FRAMES)))[:n_shown]
    stored = array[...][places] if places else np.zeros((0, 4, 4))
    wrong = np.flatnonzero((stored != np.arange(1, n_shown + 1).reshape(-1, 1, 1)).any(axis=(1, 2)))
    assert not wrong.size, f"{path}: frames {wrong} of {n_shown} are wrong"
    assert n == N_FRAMES or not is_whole, f"{path}: {n} of {N_FRAMES} frames"


def run(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    path, grows = folder / f"{seed}", chance.random() < 0.4
    order = None if grows or chance.random() < 0.5 else chance.sample(range(N_FRAMES), N_FRAMES)
    layout: dict[str, Any] = {"chunks": (chance.choice([1, 3]), 4, 4)}
    if chance.random() < 0.7:
        layout["shards"] = (layout["chunks"][0] * chance.choice([2, 7, 30]), 4, 4)
    zarr.create_array(path, shape=(0 if grows else N_FRAMES, 4, 4), dtype="uint16", **layout)
    arguments: dict[str, Any] = {
        "grow_every": chance.choice([1, 4, 10]) if grows else None,
        "positions": order,
        "copy": chance.random() < 0.7,
        "queue": chance.choice([64, 640, "1MiB"]),
        "max_delay": chance.choice([0, "1ms", "20ms"]),
    }
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["signalled_streams", "zarr", "shardcodec"])
    n_kills = chance.choice([0, 1, 2, 3])
    for number in range(n_kills + 1):
        is_last = number == n_kills
        process = context.Process(target=stream, args=(str(path), chance.getrandbits(32), is_last, arguments))
        process.start()
        process.join(SECONDS)
        hangs = process.is_alive()
        process.kill()
        process.join()
        assert not hangs, f"seed {seed}: process {number} of {n_kills + 1} does not end"
        ended = process.exitcode
        assert ended == 0 or (ended == -signal.SIGKILL and not is_last), f"seed {seed}: exit code {ended}"
        check(path, order, is_whole=is_last)


@pytest.mark.slow
def test_some_random_streams(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 400, 30))
def test_random_streams(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 30):
        run(tmp_path, seed)
