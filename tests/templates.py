# templates.py - hierarchies that several tests need, written once in each process
# SPDX-License-Identifier: MIT
"""zarr writes a small data set in 100 ms or more; its files are copied in a tenth of that."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["keep_in", "written_once"]

_folder: list[Path] = []


def keep_in(folder: Path) -> None:
    """Name the folder for the templates; before that, and in programs that are no tests, nothing is kept."""
    _folder[:] = [folder]


def written_once(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function, whose first argument is the path of a new hierarchy, write it once for each choice of the others.

    Later calls copy the files and return the same object, which no test may change.
    """
    made: dict[str, Any] = {}

    @functools.wraps(make)
    def copied(place: Path, *arguments: Any, **choices: Any) -> Any:
        if not _folder:
            return make(place, *arguments, **choices)
        key = repr((arguments, sorted(choices.items())))
        template = _folder[0] / f"{make.__module__}-{make.__name__}-{len(made)}"
        if key not in made:
            made[key] = template, make(template, *arguments, **choices)
        template, result = made[key]
        # as new files, whose times are those of now
        shutil.copytree(template, place, copy_function=shutil.copyfile, dirs_exist_ok=True)
        return result

    return copied
