# figures.py - figures of matplotlib, without its global state
# SPDX-License-Identifier: MIT
"""Make and save figures. `pyplot` is not used, so no window opens and no backend is chosen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["COLORS", "SUFFIXES", "check_file", "new_figure", "save"]

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
            f"expected the name of a picture that ends with {' or '.join(SUFFIXES)}, got {str(file)!r}"
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
    """Save a figure, if there is a file, and return it."""
    if file is not None:
        # a long title may be wider than the figure
        figure.savefig(check_file(file), dpi=150, bbox_inches="tight", pad_inches=0.1)
    return figure
