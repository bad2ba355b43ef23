# byte_scale.py - numbers of bytes as text, and along an axis of a picture
# SPDX-License-Identifier: MIT
"""Numbers of bytes in units of 1024, the same in texts and in pictures."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["BINARY_UNITS", "byte_scale", "format_nbytes"]

BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
# Most steps between the ticks of an axis.
MOST_STEPS = 8


def format_nbytes(nbytes: float, digits: int = 3) -> str:
    """Return a number of bytes for readers, such as ``1.5 MiB``."""
    if nbytes < 1024:
        return f"{int(nbytes)} B"
    value = float(nbytes)
    for unit in BINARY_UNITS:
        value /= 1024
        if value < 1024 or unit == BINARY_UNITS[-1]:
            break
    return f"{value:.{digits if value < 1000 else max(digits, 4)}g} {unit}"


def byte_scale(low: float, high: float) -> tuple[Any, Any]:
    """Return locator and formatter of matplotlib for an axis of bytes: ticks at round numbers in units of 1024."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step = 2 ** max(0, math.ceil(math.log2(max(high - low, 1) / MOST_STEPS)))
    digits = max(3, math.ceil(math.log10(max(high, 1) / step)) + 1)  # enough to tell two ticks apart
    return MultipleLocator(step), FuncFormatter(lambda nbytes, _: format_nbytes(nbytes, digits))
