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
    keep = {
        k: v
        for k, v in os.environ.items()
        if k not in ("SHARDCODEC_CPU", "ZARR_SHARDCODEC__ENABLED", "ZARR_CODEC_PIPELINE__PATH")
    }
    command = [sys.executable, "-W", "error::ImportWarning", "-c", code]
    env = keep | {"PYTHONSAFEPATH": "1"} | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SELECTED = {"ZARR_SHARDCODEC__ENABLED": "1"}


@pytest.fixture
def no_extension(tmp_path: Path) -> Path:
    """Make a folder for PYTHONPATH that contains the package without its extension."""
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
for ask in (lambda: shardcodec.enable(strict=True), lambda: shardcodec.attach(array), shardcodec.enable):
    try:
        ask()
    except (shardcodec.UnsupportedError, RuntimeWarning) as error:
        print(error)
assert zarr.config.get("codec_pipeline.path") == before
array = zarr.create_array({}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
array[:] = 1
"""


SOURCE = "is the source of shardcodec, where it is not built: build it with `pip install -e {}`"
INSTALLED = "has none for cpython 3."


@pytest.mark.parametrize("is_source", [False, True])
def test_enable_and_attach_say_why_the_extension_is_missing(no_extension: Path, is_source: bool) -> None:
    """`enable` once succeeded although zarr did all the work; only a warning at the first array said so."""
    if is_source:
        (no_extension / "shardcodec" / "_native.pyx").touch()
    said = run(ASK, PYTHONPATH=str(no_extension))
    assert len(said) == 3 and said[0] == said[1] and "and leaves the work to zarr" in said[2]
    why = SOURCE.format(no_extension) if is_source else INSTALLED
    assert f"cannot load its extension module: {no_extension}/shardcodec {why}" in said[0]
    assert f"{no_extension}/shardcodec {why}" in said[2]


def test_source_folder_that_shadows_the_package_is_reported(no_extension: Path) -> None:
    """Python started in a checkout imports the source folder instead of the installed package."""
    (no_extension / "shardcodec" / "_native.pyx").touch()
    _, said = run(USE, PYTHONPATH=str(no_extension), **SELECTED)
    assert SOURCE.format(no_extension) in said


USES = [
    "from shardcodec import tools",
    "import shardcodec.checksum",
    "shardcodec.open_array(array.store)",
    "shardcodec.open_shard(array.store, 'shard', spec)",
    "shardcodec.chunk_state(array)",
    "shardcodec.encode(array[:4].astype('u1'), spec)",
    "shardcodec.kv.ShardedKeyValueStore('shard', grid_shape=(2,), index_codecs=spec.index_codecs)",
    "shardcodec.ShardWriter('shard', spec)",
]
USE_ONE = """
import shardcodec, zarr
array = zarr.create_array({{}}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
try:
    spec = shardcodec.ShardSpec((4,), (2,), "uint8", 0, codecs=["bytes"])
    {}
except (ImportError, shardcodec.UnsupportedError) as error:
    print(error)
"""


@pytest.mark.parametrize("statement", USES)
def test_uses_say_what_to_type_without_the_extension(no_extension: Path, statement: str) -> None:
    """They once said `No module named 'shardcodec._native'`, or that shardcodec does not fit zarr."""
    (no_extension / "setup.py").touch()
    (said,) = run(USE_ONE.format(statement), PYTHONPATH=str(no_extension))
    assert SOURCE.format(no_extension) in said and "zarr" not in said


COMMANDS = [
    "",
    "--json",
    "inspect --help",
    "verify no.zarr",
    "doctor .",
    "advise --help",
    "convert",
    "plan",
    "status",
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_commands_say_what_to_type_beside_the_sources(no_extension: Path, arguments: str) -> None:
    """In a checkout, `python -m shardcodec verify` finds the sources before the installed package; it ended in a traceback."""
    (no_extension / "setup.py").touch()
    command = [sys.executable, "-m", "shardcodec", *arguments.split()]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        command, cwd=no_extension, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == (1 if arguments in ("", "--json") else 3)
    (line,) = done.stderr.splitlines()
    assert line.startswith("shardcodec: ") and SOURCE.format(no_extension) in line


def test_help_is_printed_without_the_extension(no_extension: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(no_extension), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "shardcodec", "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and "Commands: advise, compact" in done.stdout
    assert INSTALLED in done.stderr and "Traceback" not in done.stderr


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


def test_editable_installation_puts_the_checkout_on_the_path() -> None:
    """A program in the folder that contains the checkout imported the checkout as an empty package: no attribute 'enable'.

    setuptools' own finder comes after `sys.path`, where Python takes a folder of this name for a package without `__init__.py`.
    """
    text = (Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
    assert 'OPTIONS = {"editable_wheel": {"mode": "compat"}}' in text and "options=OPTIONS" in text
