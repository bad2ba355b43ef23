#!/usr/bin/env python3
# run.py - packages that use zarr, with shardcodec and without it
# SPDX-License-Identifier: MIT
"""Compare what packages do with shardcodec and without it.

Two comparisons are made with the installed versions:

- The package's own tests that use zarr (`packages.toml`), where its archive on PyPI has tests. Tests that fail with shardcodec run
  again without it; one that then passes is a difference.
- `programs.py`: short programs for packages without such tests. Their results must be equal.

`copies.py` lets packages read copies of their data sets, which shardcodec's tools have made.

A difference that `packages.toml` explains is no fault. Arguments after ``--`` go to pytest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "package-suites"
OURS = "shardcodec.ShardCodecPipeline"
PACKAGES: dict[str, dict[str, Any]] = tomllib.loads((HERE / "packages.toml").read_text(encoding="utf-8"))
PROGRAMS = ("dask", "icechunk", "obstore", "s3fs", "xarray")
TOOLS = ("flask", "flask-cors", "moto[s3]", "pytest", "pytest-asyncio", "pytest-xdist")
COPIES = ("anndata", "icechunk", "ome_zarr", "spatialdata", "webknossos")
COPY_NEEDS = ("anndata", "icechunk", "ome-zarr", "spatialdata")
# What cannot be installed beside the others: webknossos 4 refuses the typing_extensions that anndata imports.
ALONE = {"webknossos": ("webknossos>=4", "zarr")}
PROGRAM_NEEDS = ("dask[array]", "icechunk", "obstore", "s3fs", "xarray")


class Outcome(NamedTuple):
    """The result of one run of pytest."""

    n_passed: int
    failed: set[str]


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; arguments after ``--`` become `pytest`."""
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description="Run tests and programs of packages that use zarr through shardcodec."
    )
    add = parser.add_argument
    add(
        "--package",
        action="append",
        choices=sorted(PACKAGES),
        help="the tests of this package only; may be repeated",
    )
    add("--programs-only", action="store_true", help="run `programs.py` alone")
    add("-n", default="auto", metavar="N", help="processes, for pytest-xdist (%(default)s)")
    add("--requirements", action="store_true", help="print the requirements for pip, and stop")
    options = parser.parse_args(argv[:cut])
    options.pytest = argv[cut + 1 :]
    return options


def requirements(options: argparse.Namespace) -> list[str]:
    """Return what the chosen tests and programs need."""
    chosen = [] if options.programs_only else options.package or sorted(PACKAGES)
    needs = {*TOOLS, *PROGRAM_NEEDS, *chosen, *(COPY_NEEDS if has_copies(options) else ())}
    return sorted(needs.union(*(PACKAGES[name]["needs"] for name in chosen)))


def has_copies(options: argparse.Namespace) -> bool:
    """Return True for a run with all packages, which are needed to read copies."""
    return not options.programs_only and not options.package


def environment(pipeline: str | None, **more: str) -> dict[str, str]:
    """Return the environment of a run with a pipeline, or with zarr's own."""
    env = {name: value for name, value in os.environ.items() if name != "ZARR_CODEC_PIPELINE__PATH"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH")]))
    env["PYTHONHASHSEED"] = (
        "0"  # parameters in sets: each process of pytest-xdist must collect the same order
    )
    return env | more | ({} if pipeline is None else {"ZARR_CODEC_PIPELINE__PATH": pipeline})


# ---- tests of packages


def sources(name: str) -> Path:
    """Return the folder that contains the tests of an installed package; fetch the source distribution once."""
    if PACKAGES[name].get("installed"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        return Path(spec.origin).parents[1]
    version = importlib.metadata.version(name)
    target = CACHE / f"{name}-{version}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
            ]
            subprocess.run([*command, "--dest", scratch, f"{name}=={version}"], check=True)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4 and newer
                tar.extractall(scratch)
            (unpacked,) = (path for path in Path(scratch).iterdir() if path.is_dir())
            unpacked.rename(target)
    return target


def run_tests(name: str, tests: Sequence[str], options: argparse.Namespace, pipeline: str | None) -> Outcome:
    """Run tests of a package."""
    folder = sources(name)
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"report": f"{scratch}/report", "pipeline": pipeline}
        call = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-p",
            "plugin",
            "-p",
            "no:cacheprovider",
            "-q",
            "--tb=short",
        ]
        # Names of tests begin in this folder, also if settings of pytest are found above it.
        call += ["-W", "ignore", "-n", options.n, f"--basetemp={scratch}/temp", f"--rootdir={folder}"]
        env = environment(pipeline, SHARDCODEC_PACKAGE_SUITE=json.dumps(settings))
        done = subprocess.run([*call, *tests, *options.pytest], cwd=folder, env=env, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{name}: pytest ended with status {done.returncode}")
        report = json.loads(Path(scratch, "report").read_text())
        return Outcome(report["n_passed"], set(report["failed"]))


def compare_tests(name: str, options: argparse.Namespace) -> int:
    """Run the tests of a package; return the number of differences that are not explained."""
    about = PACKAGES[name]
    select = ["-k", about["select"]] if "select" in about else []
    ours = run_tests(name, [*about["tests"], *select], options, OURS)
    only = ours.failed - run_tests(name, sorted(ours.failed), options, None).failed if ours.failed else set()
    known = about.get("known", {})
    version = importlib.metadata.version(name)
    print(
        f"{name} {version}: {ours.n_passed} passed, {len(ours.failed)} failed, {len(only)} only with shardcodec"
    )
    for test in sorted(only):
        print(f"  differs: {test}: {known.get(test, 'NOT EXPLAINED')}")
    if not ours.n_passed:
        print(f"  no test of {name} has passed")
    return len(only - set(known)) + (not ours.n_passed)


# ---- programs


def results(name: str, pipeline: str | None) -> dict[str, Any]:
    """Run a program of `programs.py`; return its results."""
    call = [sys.executable, "-P", str(HERE / "programs.py"), name]
    done = subprocess.run(call, env=environment(pipeline), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: the program ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compare_program(name: str) -> int:
    """Run a program with both pipelines; return 1 if its results differ."""
    ours, theirs = results(name, OURS), results(name, None)
    is_native = ours.pop("is_native") and not theirs.pop("is_native")
    equal = ours == theirs and is_native
    print(f"program {name}: {len(ours)} results are {'equal' if equal else f'DIFFERENT: {ours}, {theirs}'}")
    return not equal


def check_copies(name: str) -> int:
    """Run a program of `copies.py`; return 1 if a copy is not as the package has written it."""
    call = [python_with(name), "-P", "-W", "ignore", str(HERE / "copies.py"), name]
    env = environment(None)
    if name in ALONE:
        env["PYTHONPATH"] += os.pathsep + str(alone(name) / "ours")
    return int(subprocess.run(call, env=env, check=False).returncode != 0)


def alone(name: str) -> Path:
    """Return the environment of a package that has one of its own."""
    return CACHE / f"{name}-python{sys.version_info.major}.{sys.version_info.minor}"


def python_with(name: str) -> str:
    """Return a Python that has a package; make its own environment first, which links to the installed shardcodec."""
    if name not in ALONE:
        return sys.executable
    folder, made = alone(name), alone(name) / "made"
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *ALONE[name]]
        subprocess.run(install, check=True)
        (folder / "ours").mkdir()
        made.touch()
    spec = importlib.util.find_spec("shardcodec")
    assert spec is not None and spec.origin is not None
    link = folder / "ours" / "shardcodec"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(spec.origin).parent)
    return str(folder / "bin" / "python")


def main(argv: list[str]) -> int:
    """Run everything that was chosen; return an exit code."""
    options = parse(argv)
    if options.requirements:
        print("\n".join(requirements(options)))
        return 0
    packages = [] if options.programs_only else options.package or sorted(PACKAGES)
    names = ("shardcodec", "zarr", "numpy", *PROGRAMS, *packages)
    print(
        ", ".join(f"{name} {importlib.metadata.version(name)}" for name in dict.fromkeys(names)), flush=True
    )
    n_differences = sum(compare_tests(name, options) for name in packages)
    n_differences += sum(compare_program(name) for name in PROGRAMS)
    n_differences += sum(check_copies(name) for name in COPIES if has_copies(options))
    print(f"{n_differences} differences that are not explained")
    return 1 if n_differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
