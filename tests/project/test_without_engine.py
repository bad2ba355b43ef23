# test_without_engine.py - the wheel for all platforms, which leaves the work to zarr
# SPDX-License-Identifier: MIT
"""A library shall list shardcodec as a dependency and call `enable` on every platform.

The wheel is built from a copy of the tree where no C program can be compiled, and used by a Python that lacks what Windows lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import shardcodec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MAX_NBYTES = 400_000
PAGES = ("README.md", "LICENSE", "NOTICES", "pyproject.toml", "setup.py")

# Python on Windows has none of these.
WINDOWS = """
import os
import sys
import zarr  # and the packages that it imports
for name in ("register_at_fork", "fork", "geteuid", "sched_getaffinity", "pread", "preadv", "pwrite", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
os.process_cpu_count = os.cpu_count  # as there: on Linux Python 3.13 asks for the affinity
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
import shardcodec
"""


def build(tree: Path, folder: Path, kind: str = "wheel") -> subprocess.CompletedProcess[str]:
    """Build as pip does, where no C program can be compiled."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=tree, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONSAFEPATH": "1", "CC": "false", "SHARDCODEC_ENGINE": ""},
    )  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    tree = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "shardcodec", tree / "shardcodec", ignore=ignored)
    for page in PAGES:
        shutil.copy(ROOT / page, tree)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = build(tree, folder)
    assert done.returncode == 0, done.stderr
    assert "shardcodec: building the wheel without the engine: " in done.stderr
    assert "shardcodec needs a C compiler" in done.stderr
    return folder / done.stdout.splitlines()[-1]


def test_editable_installation_without_a_compiler_fails(tree: Path, tmp_path: Path) -> None:
    """A developer must not go on without the engine."""
    done = build(tree, tmp_path, "editable")
    assert done.returncode != 0 and "shardcodec needs a C compiler" in done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(code: str, site: Path) -> list[str]:
    ours = ("SHARDCODEC_", "ZARR_SHARDCODEC", "ZARR_CODEC_PIPELINE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=site, check=False, capture_output=True, text=True,
        env=environment | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def command(arguments: str, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardcodec", *arguments.split()], cwd=site, check=False, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"},
    )  # fmt: skip


def test_wheel_is_small_and_of_every_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl") and wheel.stat().st_size <= MAX_NBYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert "[zarr.codec_pipeline]" in points and "[xarray.backends]" not in points
    assert not [name for name in names if name.endswith((".so", ".pyx", ".c", ".json"))]


def test_enable_warns_once_and_leaves_the_work_to_zarr(site: Path) -> None:
    code = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    before = zarr.config.get("codec_pipeline.path")
    with shardcodec.enable(threads=2), shardcodec.options(order="morton"):
        array = zarr.create_array({}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
        array[:] = range(8)
    shardcodec.enable()
    assert zarr.config.get("codec_pipeline.path") == before and not [name for name in os.environ if name.startswith("ZARR_")]
    shardcodec.disable()
    ((_, pipeline, is_native, reason),) = shardcodec.open_arrays()
(one,) = said
assert list(array[2:5]) == [2, 3, 4] and not is_native and "without its engine" in reason
print(one.category.__name__, one.filename, one.message)
print(type(array.async_array.codec_pipeline).__name__ == pipeline)
print(shardcodec.open_arrays())
"""
    said, same, table = run(WINDOWS + code, site)
    assert said.startswith(
        "RuntimeWarning <string> shardcodec cannot load its extension module and leaves the work to zarr: "
    )
    assert f"is the package without its engine, for {sys.platform.capitalize()}" in said and same == "True"
    assert table.startswith("zarr ") and "without its engine" in table


def test_wrong_options_are_errors_on_every_platform(site: Path) -> None:
    code = """
for wrong in ({"threads": 0}, {"thread": 1}):
    try:
        shardcodec.enable(**wrong)
    except (TypeError, ValueError) as error:
        print(error)
"""
    number, name = run(WINDOWS + code, site)
    assert "threads" in number and "thread" in name


def test_every_public_name_can_be_imported_and_says_why_it_cannot_be_called(site: Path) -> None:
    code = """
from typing import Optional
from shardcodec import *
assert not isinstance(3, Array | ShardSpec) and Optional[Shard]
calls = [
    lambda: enable(strict=True), lambda: open_array("a.zarr"), lambda: Shard(b""), lambda: tools.verify("a.zarr"),
    lambda: kv.ShardedKeyValueStore("shard"), lambda: stats(), lambda: stats.reset(), lambda: build_info(),
    lambda: attach(zarr.create_array({}, shape=(8,), chunks=(2,), dtype="i4")), lambda: ShardSpec.from_json({}),
]
for call in calls:
    try:
        call()
    except UnsupportedError as error:
        print(error)
print(*(name for name in shardcodec.__all__ if isinstance(globals()[name], type) and globals()[name].__module__ == "shardcodec"))
"""
    *said, left_out = run("import warnings; warnings.simplefilter('ignore')\n" + WINDOWS + code, site)
    assert len(said) == 10 and all("without its engine, for " in one for one in said)
    assert {"Array", "attach", "kv", "open_array", "stats", "tools"} <= set(left_out.split())
    assert not {"UnsupportedError", "Options", "enable"} & set(left_out.split())


@pytest.mark.parametrize(
    "selected", ["ZARR_SHARDCODEC__ENABLED=1", "ZARR_CODEC_PIPELINE__PATH=shardcodec.ShardCodecPipeline"]
)
def test_variables_of_a_cluster_harm_nothing(site: Path, selected: str) -> None:
    """They are set for all programs of an environment, also those of a Python that has no engine."""
    code = f"""
import os
name, _, value = "{selected}".partition("=")
os.environ[name] = value
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import zarr
    for _ in range(2):
        array = zarr.create_array({{}}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")
        array[:] = 7
print(array[3], type(array.async_array.codec_pipeline).__module__.partition(".")[0])
print(*{{str(one.message) for one in said if "shardcodec" in str(one.message)}}, sep="|")
"""
    values, said = run(code, site)
    assert values == "7 zarr"
    assert said.startswith("shardcodec cannot load its extension module") and "|" not in said


@pytest.mark.parametrize(("arguments", "code"), [("", 1), ("--json", 1), ("verify no.zarr", 3)])
def test_command_says_why(site: Path, arguments: str, code: int) -> None:
    done = command(arguments, site)
    assert done.returncode == code and done.stderr.count("\n") == 1
    assert "without its engine, for " in done.stderr


def test_command_prints_the_version(site: Path) -> None:
    done = command("--version", site)
    assert done.stdout == f"shardcodec {shardcodec.__version__}\n" and not done.stderr
