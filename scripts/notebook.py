# notebook.py - the tutorial as a notebook
# SPDX-License-Identifier: MIT
"""Write docs/tutorial.ipynb: the text of docs/tutorial.md as cells of text, and its Python blocks as cells of code.

    python scripts/notebook.py

The page is the source. Links of the notebook lead to the pages beside it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a page."""
    parts = BLOCK.split(page)  # text and code by turns
    cells = [
        cell(number, text.strip("\n"), is_code=number % 2 == 1)
        for number, text in enumerate(parts)
        if text.strip()
    ]
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def cell(number: int, text: str, *, is_code: bool) -> dict[str, Any]:
    """Return one cell; its identifier stays if others change their text."""
    made = {"id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    if is_code:
        return {"cell_type": "code", "execution_count": None, "outputs": [], **made}
    return {"cell_type": "markdown", **made}


def text_of(made: dict[str, Any]) -> str:
    """Return a notebook as it is stored."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the notebook."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (DOCS / "tutorial.ipynb").write_text(text_of(notebook(page)), encoding="utf-8")


if __name__ == "__main__":
    main()
