# venv_2022.py - a virtual environment with zarr-python 2, made once
# SPDX-License-Identifier: MIT
"""zarr 2.18 and zarr 3 have the same name, so zarr 2.18 is installed in ``build/``, for the same version of Python."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("zarr2.py")

# zarr 2.18 imports one of its test modules to read a storage transformer, which needs pytest and fsspec.
PINS = {
    "2.18.7": ("zarr==2.18.7", "numcodecs<0.16", "numpy", "fsspec", "pytest<8"),
    "2.14.2": ("zarr==2.14.2", "numcodecs<0.14", "numpy<2", "fsspec", "pytest<8", "setuptools<81"),
}


class Zarr2:
    """An interpreter with zarr-python 2."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def run(self, *arguments: object) -> None:
        """Run `zarr2.py`."""
        done = subprocess.run(
            [self._python, SCRIPT, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=_environment(),
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]


def zarr2(version: str) -> Zarr2:
    """Return an interpreter with this version of zarr. Skip the test if PyPI cannot be reached, except under CI."""
    build = ROOT / "build"
    try:
        build.mkdir(exist_ok=True)
    except OSError:
        build = Path(tempfile.gettempdir())
    tag = f"{sys.implementation.cache_tag}-{os.getuid()}"
    folder = build / f"zarr-{version}-{tag}"
    with open(build / f"zarr-{version}-{tag}.lock", "w") as lock:  # several workers of pytest-xdist
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _make(folder, version)
    return Zarr2(folder / "bin" / "python")


def _make(folder: Path, version: str) -> None:
    python = str(folder / "bin" / "python")
    has_pip = importlib.util.find_spec("pip") is not None  # making another pip takes longer than the rest
    venv.create(folder, clear=True, with_pip=not has_pip, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
    done = subprocess.run(
        [
            *pip,
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
            "--prefer-binary",
            *PINS[version],
        ],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    if done.returncode == 0:
        (folder / "complete").touch()
        return
    reason = f"cannot install zarr {version}: {done.stderr.strip()[-1000:]}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _environment() -> dict[str, str]:
    """Return the environment without PYTHONPATH: the packages of the tests and those of zarr 2 exclude each other."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**ours, "ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}
