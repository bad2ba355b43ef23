# test_loading.py - the package without its extension, or with an incompatible zarr
# SPDX-License-Identifier: MIT
"""zarr imports our entry points in every process that opens an array: arrays must open even if an entry point fails."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import shardcodec
from shardcodec import _native

pytestmark = pytest.mark.slow

PACKAGE = Path(shardcodec.__file__).parent

# Prints the name of the pipeline, and the warnings of all arrays without repeats.
USE = """
import warnings
import numpy as np
import zarr

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        array = zarr.create_array({}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
        array[:] = np.arange(8)
        assert (array[1:7] == np.arange(1, 7)).all()
print(type(array.async_array.codec_pipeline).__name__)
print(*{str(w.message) for w in said if "shardcodec" in str(w.message) or "SHARDCODEC" in str(w.message)}, sep="|")
"""

# Simulates a future zarr that has moved a name: without our fallback, no array could be opened.
OTHER_ZARR = "import zarr.core.buffer\ndel zarr.core.buffer.default_buffer_prototype\n"


def run(code: str, **environment: str) -> list[str]:
    keep = {k: v for k, v in os.environ.items() if k not in ("SHARDCODEC_CPU", "ZARR_CODEC_PIPELINE__PATH")}
    command = [sys.executable, "-W", "error::ImportWarning", "-c", code]
    done = subprocess.run(command, env=keep | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SELECTED = {"ZARR_CODEC_PIPELINE__PATH": "shardcodec.ShardCodecPipeline"}


@pytest.fixture
def no_extension(tmp_path: Path) -> Path:
    """Make a folder for PYTHONPATH that contains the package without its extension."""
    if (PACKAGE.parent / "setup.py").exists():
        pytest.skip("the package is imported from the checkout; no wheel is installed")
    shutil.copytree(
        PACKAGE, tmp_path / "shardcodec", ignore=shutil.ignore_patterns("*.so", "*.pyx", "__pycache__")
    )
    for info in PACKAGE.parent.glob("shardcodec-*.dist-info"):
        shutil.copytree(info, tmp_path / info.name)
    return tmp_path


def test_zarr_works_alone_without_the_extension(no_extension: Path) -> None:
    pipeline, said = run(USE, PYTHONPATH=str(no_extension), **SELECTED)
    assert pipeline in ("FusedCodecPipeline", "BatchedCodecPipeline")
    assert said.startswith("shardcodec cannot load its extension module") and "|" not in said


ASK = """
import warnings
import zarr
import shardcodec

warnings.simplefilter("error")
before = zarr.config.get("codec_pipeline.path")
array = zarr.create_array({}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
for ask in (shardcodec.enable, lambda: shardcodec.enable(threads=2), lambda: shardcodec.attach(array)):
    try:
        ask()
    except shardcodec.UnsupportedError as error:
        print(error)
assert zarr.config.get("codec_pipeline.path") == before
array = zarr.create_array({}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
array[:] = 1
"""


@pytest.mark.parametrize("is_source", [False, True])
def test_enable_and_attach_say_why_the_extension_is_missing(no_extension: Path, is_source: bool) -> None:
    """`enable` once succeeded although zarr did all the work; only a warning at the first array said so."""
    if is_source:
        (no_extension / "shardcodec" / "_native.pyx").touch()
    said = run(ASK, PYTHONPATH=str(no_extension))
    assert len(said) == 3 and len(set(said)) == 1
    assert "cannot load its extension module: cannot import name '_native'" in said[0]
    assert (
        f"{no_extension}/shardcodec is its source: start Python in another folder" in said[0]
    ) == is_source


def test_source_folder_that_shadows_the_package_is_reported(no_extension: Path) -> None:
    """Python started in a checkout imports the source folder instead of the installed package."""
    (no_extension / "shardcodec" / "_native.pyx").touch()
    _, said = run(USE, PYTHONPATH=str(no_extension), **SELECTED)
    assert "start Python in another folder" in said


@pytest.mark.parametrize("selected", [{}, SELECTED], ids=["installed", "selected"])
def test_incompatible_zarr_works_alone(selected: dict[str, str]) -> None:
    """An ImportError in the entry point would prevent every user of the environment from opening arrays."""
    pipeline, said = run(OTHER_ZARR + USE, **selected)
    assert pipeline in ("FusedCodecPipeline", "BatchedCodecPipeline")
    assert bool(said) == bool(selected) and "|" not in said


@pytest.mark.parametrize("how", ["shardcodec.enable()", "from shardcodec import enable"])
def test_incompatible_zarr_is_named_in_the_error(how: str) -> None:
    code = f"{OTHER_ZARR}import shardcodec\ntry: {how}\nexcept ImportError as e: print(e)"
    (said,) = run(code)
    assert "does not fit" in said and "default_buffer_prototype" in said


def test_misspelt_choice_of_kernels_warns() -> None:
    _, said = run(USE, SHARDCODEC_CPU="sse43", **SELECTED)
    assert "SHARDCODEC_CPU: expected known features or variants, got 'sse43'" in said
    _, said = run(USE, SHARDCODEC_CPU="portable", **SELECTED)
    assert said == ""


def stub_names() -> dict[str, set[str]]:
    """Return the names that _native.pyi declares: of the module and of each class."""
    names: dict[str, set[str]] = {}
    for node in ast.parse((PACKAGE / "_native.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names[node.name] = set()
        elif isinstance(node, ast.AnnAssign) and node.value is None:  # with a value it is a type alias
            names[ast.unparse(node.target)] = set()
        elif isinstance(node, ast.ClassDef):
            inside = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AnnAssign))
            names[node.name] = {
                n.name if isinstance(n, ast.FunctionDef) else ast.unparse(n.target) for n in inside
            }
    return names


def public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_stub_matches_the_extension() -> None:
    """Five names of the extension were once missing in the stub."""
    stub = stub_names()
    own = {k: v for k, v in vars(_native).items() if getattr(v, "__module__", None) == _native.__name__}
    assert public(own) <= public(stub)
    assert all(hasattr(_native, name) for name in public(stub)), public(stub) - set(vars(_native))
    for name, cls in own.items():
        if isinstance(cls, type):
            assert public(vars(cls)) == public(stub[name]), name
