# figures.py - figures of matplotlib, and their files
# SPDX-License-Identifier: MIT
"""New figures, the files in which they are saved, their colours, and an axis of bytes.

`pyplot` is not used, so no window opens and no backend is chosen.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..readable import format_nbytes

__all__ = ["COLORS", "SUFFIXES", "Ints", "Numbers", "byte_scale", "check_file", "new_figure", "save"]

SUFFIXES = (".png", ".svg")

# The colours of Okabe and Ito, which colour-blind people can tell apart, and greys.
COLORS = {
    "inner chunks": "#0072B2",
    "next": "#56B4E9",
    "index": "#E69F00",
    "header": "#009E73",
    "footer": "#CC79A7",
    "padding": "#D9D9D9",
    "unmarked": "#999999",
    "dead": "#000000",
    "absent": "#EEEEEE",
    "shard border": "#D55E00",
}

Ints = tuple[int, ...]
Numbers = np.ndarray[Any, Any]


def check_file(file: str | os.PathLike[str]) -> Path:
    """Return the path of a picture.

    Raises
    ------
    ValueError
        Its suffix is not .png or .svg.
    """
    path = Path(file)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"file: expected the name of a picture that ends with {' or '.join(SUFFIXES)}, got {str(file)!r}"
        )
    return path


def new_figure(width: float, height: float, layout: Any = "compressed") -> Any:
    """Return an empty figure; sizes in inches, `layout` as matplotlib names it.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib (extra plot); install it with: pip install matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout=layout)


def save(figure: Any, file: str | os.PathLike[str] | None) -> Any:
    """Save a figure if `file` is not None; return the figure."""
    if file is not None:
        # a long title may be wider than the figure
        figure.savefig(check_file(file), dpi=150, bbox_inches="tight", pad_inches=0.1)
    return figure


# Maximum number of steps between the ticks of an axis.
MAX_STEPS = 8


def byte_scale(low: float, high: float) -> tuple[Any, Any]:
    """Return locator and formatter of matplotlib for an axis of bytes: ticks at round numbers in units of 1024."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step = 2 ** max(0, math.ceil(math.log2(max(high - low, 1) / MAX_STEPS)))
    digits = max(3, math.ceil(math.log10(max(high, 1) / step)) + 1)  # enough to tell two ticks apart
    return MultipleLocator(step), FuncFormatter(lambda nbytes, _: format_nbytes(nbytes, digits))
