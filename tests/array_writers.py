# array_writers.py - functions of processes that write to one array through handles of their own
# SPDX-License-Identifier: MIT
"""A spawned process imports its function by name, so these are not in the file of their tests."""

from __future__ import annotations

import numpy as np

import shardcodec


def append_blocks(path: str, number: int, n_blocks: int, n_rows: int) -> list[tuple[int, ...]]:
    """Append blocks of rows, each of a number that no other has; return the shapes."""
    array = shardcodec.open_array(path, mode="r+")
    return [
        array.append(np.full((n_rows, array.shape[1]), 1000 * number + block)) for block in range(n_blocks)
    ]


def write_squares(path: str, number: int, n_writers: int) -> None:
    """Write every `n_writers`-th square of 2 x 3 elements, one by one."""
    array = shardcodec.open_array(path, mode="r+")
    grid = [(row, column) for row in range(array.shape[0] // 2) for column in range(array.shape[1] // 3)]
    for row, column in grid[number::n_writers]:
        array[2 * row : 2 * row + 2, 3 * column : 3 * column + 3] = 100 * row + column


def set_attributes(path: str, number: int, n: int) -> None:
    """Set attributes that no other process sets, one by one."""
    array = shardcodec.open_array(path, mode="r+")
    for i in range(n):
        array.attrs[f"{number}-{i}"] = i
