# test_how_to.py - the code blocks of the pages in docs/how-to run, and each page ends with its limitations
# SPDX-License-Identifier: MIT
"""Each page is one program: its Python and its bash blocks in their order, in an empty folder with a link to `examples`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import python_environment, without_end

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "how-to"
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name != "README.md")
NEEDS = {
    "start.md": ("xarray",),
    "text.md": ("pyarrow",),
    "live.md": ("xarray",),
    "xarray.md": ("xarray", "dask", "typer"),
    "dask.md": ("distributed",),
    "mpi.md": ("mpi4py",),
    "icechunk.md": ("icechunk",),
    "slurm.md": ("typer",),
    "after-a-crash.md": ("typer",),
    "choosing-shards.md": ("typer",),
    "plain-chunks.md": ("typer",),
}
# Jobs of several processes each, which take the time of ten other pages.
LONG = ("plain-chunks.md", "slurm.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def environment() -> dict[str, str]:
    """Return an environment in which `python` is this interpreter and imports what this process imports."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return python_environment(PATH=programs)


def program(page: str) -> str:
    """Return the blocks of a page as one Python program."""
    lines = ["import subprocess"]
    for language, code in BLOCK.findall((FOLDER / page).read_text(encoding="utf-8")):
        if "python3 -m venv" in code:  # it makes the reader's environment
            continue
        assert language in ("python", "bash"), f"{page}: tests run every block, but not {language!r}"
        lines.append(
            code
            if language == "python"
            else f"subprocess.run(['bash', '-euo', 'pipefail', '-c', {code!r}], check=True)"
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.nightly) if page in LONG else page for page in PAGES]
)
def test_page_runs(page: str, tmp_path: Path) -> None:
    env = environment()
    for package in NEEDS.get(page, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if page == "mpi.md" and shutil.which("mpiexec", path=env["PATH"]) is None:
        pytest.skip("mpiexec is not installed")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    file = tmp_path / "page.py"
    file.write_text(program(page), encoding="utf-8")
    done = subprocess.run(
        without_end(file) if page == "icechunk.md" else [sys.executable, str(file)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_page_ends_with_its_limitations(page: str) -> None:
    headings = re.findall(
        r"^#+ (.*)$", BLOCK.sub("", (FOLDER / page).read_text(encoding="utf-8")), re.MULTILINE
    )
    assert headings[-1] == "Limitations"


@pytest.mark.parametrize("page", sorted(NEEDS))
def test_page_names_what_it_needs(page: str) -> None:
    """A reader of the page on text was told by Python that pyarrow is missing."""
    text = " ".join(re.findall(r"pip install ([^`]*)`", (FOLDER / page).read_text(encoding="utf-8")))
    missing = [need for need in NEEDS[page] if {"typer": "cli"}.get(need, need) not in text]
    assert not missing, f"{page}: say `pip install ...` of {missing}"


def test_index_names_every_page() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
    assert named == set(PAGES)
