# test_notebook.py - the tutorial, as a page and as a notebook
# SPDX-License-Identifier: MIT
"""The notebook is made from the page. Its cells run one after the other, as Jupyter runs them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import python_environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/notebook.py"))
NOTEBOOK = ROOT / "docs/tutorial.ipynb"


def test_notebook_is_that_of_the_page() -> None:
    made = SCRIPT["notebook"]((ROOT / "docs/tutorial.md").read_text(encoding="utf-8"))
    assert NOTEBOOK.read_text(encoding="utf-8") == SCRIPT["text_of"](made), "run: python scripts/notebook.py"
    kinds = [cell["cell_type"] for cell in made["cells"]]
    assert kinds[0] == kinds[-1] == "markdown" and kinds.count("code") > 5


@pytest.mark.slow
def test_cells_of_the_notebook_run(tmp_path: Path) -> None:
    for package in ("nibabel", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    program = tmp_path / "tutorial.py"
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    program.write_text("\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "native  ShardCodecPipeline" in done.stdout and "CodecError shard 'c/1/0/0/0'" in done.stdout
