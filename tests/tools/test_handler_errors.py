# test_handler_errors.py - a handler of signals raises while a tool, or a read, works
# SPDX-License-Identifier: MIT
"""A program may have a timer whose handler raises an error. No tool may take it for the error of an object that cannot be read."""

from __future__ import annotations

import itertools
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from interrupts import Points

import shardcodec
from shardcodec.tools import convert, repair, verify


class Timeout(Exception):
    """The error of a handler of signals, as that of a timer."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come in a destructor
@pytest.mark.parametrize("error", [Timeout, TimeoutError])
@pytest.mark.parametrize(
    "work",
    [convert, lambda path, to: repair(path, to=to), lambda path, _: verify(path)],
    ids=["convert", "repair", "verify"],
)
def test_error_of_a_signal_handler_reaches_the_caller_of_a_tool(
    work: Any, error: type[Exception], tmp_path: Path
) -> None:
    """It was an object that cannot be read: `convert` left out an array and said that the copy was complete."""
    zarr.create_group(tmp_path / "h").create_array("a", data=np.arange(32), chunks=(2,), shards=(8,))

    def handler(*_: object) -> None:
        raise error("time is over")

    own = signal.signal(signal.SIGUSR1, handler)
    outcomes = []
    try:
        for number in itertools.count(1, 611):
            points = Points(number, lambda: signal.raise_signal(signal.SIGUSR1))
            try:
                with points:
                    work(tmp_path / "h", tmp_path / str(number))
            except error:
                outcomes.append("raised")
            else:
                outcomes.append("returned")
            assert signal.getsignal(signal.SIGUSR1) is handler
            if not points.is_reached:
                break
    finally:
        signal.signal(signal.SIGUSR1, own)
    assert outcomes.count("returned") == 1 and len(outcomes) > 5, outcomes


def test_error_of_a_signal_handler_reaches_the_caller_of_a_read(tmp_path: Path) -> None:
    """It was an `OSError` of the document, so that `except` of its class did not catch it."""
    zarr.create_group(tmp_path / "h").create_array("a", data=np.arange(32), chunks=(2,), shards=(8,))

    def handler(*_: object) -> None:
        raise Timeout

    own = signal.signal(signal.SIGUSR1, handler)
    try:
        for number in itertools.count(1, 7):
            points = Points(number, lambda: signal.raise_signal(signal.SIGUSR1))
            with points, suppress(Timeout):
                shardcodec.open_array(tmp_path / "h/a")
            if not points.is_reached:
                break
    finally:
        signal.signal(signal.SIGUSR1, own)
    assert number > 100
