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


# False: a signal is ignored. The system may deliver it to another thread of the process, which runs late; Python then calls the handler in
# the main thread behind the statement that has stopped the timer, and the process ended with the exception.
is_raising = False


def raise_stop(*_: Any) -> None:
    if is_raising:
        raise Stop


def append_some(frames: Any, chance: random.Random) -> None:
    """Append frames until a signal comes at a random moment."""
    global is_raising
    try:
        is_raising = True
        signal.setitimer(signal.ITIMER_REAL, chance.choice([1e-5, 5e-5, 2e-4, 2e-3]))
        while frames.position < N_FRAMES:
            number = frames.position
            frames.append(frame_of(number))
            if chance.random() < 0.03:
                frames.flush()
    finally:
        is_raising = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def stream(path: str, seed: int, is_last: bool, arguments: dict[str, Any]) -> None:
    """Go on with a stream; kill the process at a random moment unless it is the last one."""
    chance = random.Random(seed)
    if not is_last:
        delay = chance.choice([0.003, 0.01, 0.03, 0.1])
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    frames = shardcodec.stream(path, resume=True, **arguments)
    signal.signal(signal.SIGALRM, raise_stop)
    while frames.position < N_FRAMES:
        with contextlib.suppress(Stop):
            append_some(frames, chance)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    frames.close()
