# signalled_streams.py - a stream whose appends signals interrupt, in a process that may be killed
# SPDX-License-Identifier: MIT
"""The work of one process of `tests/live/test_random_streams.py`; new processes can import this module."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from typing import Any

import numpy as np

import shardcodec

N_FRAMES = 60


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
