# test_random_streams.py - random streams with signals at random moments, kills and resumes
# SPDX-License-Identifier: MIT
"""No frame that counts is wrong, and no call hangs. `make nightly` runs 300 of them."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec.live.record import NAME

N_FRAMES = 60
SECONDS = 90  # more than any process needs, also on a busy machine


class Stop(Exception):
    pass


def frame_of(number: int) -> np.ndarray[Any, Any]:
    return np.full((4, 4), number + 1, "uint16")


def raise_stop(*_: Any) -> None:
    raise Stop


def append_all(frames: Any, chance: random.Random) -> None:
    """Append frames while signals come at random moments."""
    while frames.position < N_FRAMES:
        with contextlib.suppress(Stop):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.choice([1e-5, 5e-5, 2e-4, 2e-3]))
                while frames.position < N_FRAMES:
                    number = frames.position
                    frames.append(frame_of(number))
                    if chance.random() < 0.03:
                        frames.flush()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)


def stream(path: str, seed: int, is_last: bool, arguments: dict[str, Any]) -> None:
    """Go on with a stream; kill the process at a random moment unless it is the last one."""
    chance = random.Random(seed)
    if not is_last:
        delay = chance.choice([0.003, 0.01, 0.03, 0.1])
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    frames = shardcodec.stream(path, resume=True, **arguments)
    signal.signal(signal.SIGALRM, raise_stop)
    with contextlib.suppress(Stop):  # the last signal may come behind `suppress`
        append_all(frames, chance)
    append_all(frames, chance)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    frames.close()


def check(path: Path, order: list[int] | None, *, is_whole: bool) -> None:
    """All frames that the record counts are in the array as they were given."""
    record = path / NAME
    n = json.loads(record.read_text())["frames"] if record.exists() else 0
    array = zarr.open_array(path, mode="r")
    n_shown = n if order is not None or is_whole else min(n, array.shape[0])
    places = (order or list(range(N_FRAMES)))[:n_shown]
    stored = array[...][places] if places else np.zeros((0, 4, 4))
    assert (stored == np.arange(1, n_shown + 1).reshape(-1, 1, 1)).all()
    assert n == N_FRAMES or not is_whole


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
    context.set_forkserver_preload([__name__, "zarr", "shardcodec"])
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
        assert process.exitcode == 0 or (process.exitcode == -signal.SIGKILL and not is_last)
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
