# live_frames.py - arrays for streams, and the frames that go into them
# SPDX-License-Identifier: MIT
"""Shared by the tests of streams, and imported by the processes that they start."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from helpers import quiet

import shardcodec

__all__ = ["NUMBER", "append_until_killed", "follow", "frame_of", "frames_of", "image_array"]

NUMBER = struct.Struct("=q")


def frame_of(number: int, shape: tuple[int, ...] = (12, 8), dtype: Any = "uint16") -> np.ndarray[Any, Any]:
    """Return a frame that shows its number in every element; each seventh one is dark, as the fill value."""
    size = int(np.prod(shape))
    if number % 7 == 3:
        return np.zeros(shape, dtype)
    return (np.arange(size) + 1000 * (number + 1)).reshape(shape).astype(dtype)


def frames_of(n: int, shape: tuple[int, ...] = (12, 8), first: int = 0) -> np.ndarray[Any, Any]:
    """Return frames as `frame_of` does."""
    numbers = np.arange(first, first + n).reshape(n, *(1 for _ in shape))
    frames = np.arange(int(np.prod(shape))).reshape(shape) + 1000 * (numbers + 1)
    return np.where(numbers % 7 == 3, 0, frames).astype("uint16")


def image_array(store: Any, n: int = 40, *, in_shard: int = 10, in_chunk: int = 1, **arguments: Any) -> Any:
    """Create an array of n frames of 12 x 8."""
    defaults: dict[str, Any] = {
        "shape": (n, 12, 8),
        "shards": (in_shard, 12, 8),
        "chunks": (in_chunk, 12, 8),
        "dtype": "uint16",
        "fill_value": 0,
    }
    with quiet():
        return zarr.create_array(store, **(defaults | arguments))


def append_until_killed(path: Path, report: int, **arguments: Any) -> None:
    """Go on with a stream, and report after each frame how many frames are stored."""
    frames: Any = shardcodec.stream(path, resume=True, **arguments)
    shape = frames._shape
    while True:
        number = frames.position
        frames.append(frame_of(number, shape))
        os.write(report, NUMBER.pack(frames.stored))


def follow(path: str, connection: Any) -> None:
    """Send the number of each frame of a stream with the time when it was read; -1 for a wrong one."""
    connection.send(("begun", time.time()))
    for (number,), frame in shardcodec.tail(path, timeout=30, poll="2ms"):
        is_right = bool((frame == frame_of(number)).all())
        connection.send((number if is_right else -1, time.time()))
    connection.close()
