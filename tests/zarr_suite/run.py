#!/usr/bin/env python3
# run.py - zarr-python's own tests, with another codec pipeline under them
# SPDX-License-Identifier: MIT
"""Run the tests of the installed zarr release through shardcodec.

The tests come from zarr's source distribution on PyPI, fetched once and only unpacked; zarr itself is the installed
one. `sets.toml` lists the tests, `known.toml` the expected failures; README.md explains the rest. Arguments after
``--`` go to pytest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import zarr
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "zarr-suite"
OURS = "shardcodec.ShardCodecPipeline"
CODEC = "shardcodec.ShardingCodec"

SETS = {"parity": ["parity"], "core": ["parity", "other"], "ci": ["parity", "other"]}
# tests/test_properties.py takes most of the time: half of it with zarr's own 300 examples.
EXAMPLES = {"parity": 300, "core": 300, "ci": 50}

# Those test requirements of zarr that the sets import. The others are for S3, coverage, timing and documentation.
NEEDED = {
    "fsspec",
    "hypothesis",
    "numpydoc",
    "obstore",
    "pytest",
    "pytest-asyncio",
    "pytest-xdist",
    "tomlkit",
}


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; arguments after ``--`` become `pytest`."""
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description="Run zarr's own tests through another codec pipeline.")
    add = parser.add_argument
    add("--set", choices=sorted(SETS), default="ci", help="which tests (ci: core, fewer examples)")
    add("--pipeline", default=OURS, metavar="PATH", help="dotted path of the class (%(default)s)")
    codec = (
        "select shardcodec's sharding codec: in the configuration, which counts when an array is opened again"
    )
    codec += ", or under each of zarr's names too"
    add("--codec", nargs="?", const="reopened", choices=["reopened", "everywhere"], help=codec)
    add(
        "--attach", action="store_true", help="pass every array that the tests make through shardcodec.attach"
    )
    without = "the package installed is the one without its engine: its `enable` leaves all work to zarr's own pipeline"
    add("--without-engine", action="store_true", help=without)
    add("-n", default="auto", metavar="N", help="processes, for pytest-xdist (%(default)s)")
    add("--junit", type=Path, metavar="FILE", help="write a JUnit report")
    add("--cache", type=Path, default=CACHE, metavar="DIR", help="for zarr's sources (%(default)s)")
    add("--requirements", action="store_true", help="print the requirements of the tests for pip, and stop")
    options = parser.parse_args(argv[:cut])
    options.pytest = argv[cut + 1 :]
    if options.without_engine:
        options.pipeline = zarr.config.get("codec_pipeline.path")
    return options


def unpack(archive: Path, target: Path) -> None:
    """Unpack the tests and their settings, atomically for concurrent runs."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, tarfile.open(archive) as tar:
        wanted = [m for m in tar if m.name.split("/")[1:2] in (["tests"], ["pyproject.toml"])]
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4 and newer
        tar.extractall(scratch, wanted)
        (unpacked,) = Path(scratch).iterdir()
        unpacked.rename(target)


def source(version: str, cache: Path) -> Path:
    """Return the folder with the tests of this zarr release."""
    folder = cache.resolve() / f"zarr-{version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        chosen = ["--no-deps", "--no-binary", "zarr", "--dest", download, f"zarr=={version}"]
        # standard output is the list of requirements
        subprocess.run(pip + chosen, check=True, stdout=sys.stderr)
        (archive,) = Path(download).glob("zarr-*.tar.gz")
        unpack(archive, folder)
    return folder


def requirements(folder: Path) -> list[str]:
    """Return the requirements of zarr's tests, with zarr's own version limits."""
    groups = tomllib.loads((folder / "pyproject.toml").read_text())["dependency-groups"]
    lines = [line for group in ("test", "remote-tests") for line in groups[group] if isinstance(line, str)]
    found = {Requirement(line).name: line for line in lines}
    missing = NEEDED - found.keys()
    if missing:
        raise SystemExit(f"zarr's test requirements no longer name {', '.join(sorted(missing))}")
    return [found[name] for name in sorted(NEEDED)]


def select(name: str, version: str, folder: Path) -> list[str]:
    """Return the tests of a set as arguments for pytest."""
    tables = tomllib.loads((HERE / "sets.toml").read_text())
    entries = {test: limits for table in SETS[name] for test, limits in tables[table].items()}
    present = [
        test
        for test, limits in entries.items()
        if limits == "*" or SpecifierSet(limits).contains(version, prereleases=True)
    ]
    missing = [test for test in present if not (folder / test.partition("::")[0]).is_file()]
    if missing:
        raise SystemExit(f"zarr {version} does not have {', '.join(missing)}: correct sets.toml")
    return sorted(present)


def environment(options: argparse.Namespace, tests: list[str]) -> dict[str, str]:
    """Return the environment of pytest: zarr's configuration, and the settings of the plug-in."""
    settings = {
        "pipeline": options.pipeline,
        "ours": options.pipeline == OURS,
        "codec": CODEC if options.codec else None,
        "attach": options.attach,
        "without_engine": options.without_engine,
        "codec_everywhere": options.codec == "everywhere",
        "known": str(HERE / "known.toml"),
        "tests": tests,
        "whole": not options.pytest,
        "examples": EXAMPLES[options.set],
    }
    env = dict(os.environ, SHARDCODEC_SUITE=json.dumps(settings))
    env["ZARR_CODEC_PIPELINE__PATH"] = options.pipeline
    if options.codec:
        env["ZARR_CODECS__SHARDING_INDEXED"] = CODEC
    env["HYPOTHESIS_PROFILE"] = "ci"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH")]))
    return env


def command(options: argparse.Namespace, tests: list[str]) -> list[str]:
    """Return the pytest command with zarr's settings, without its reports and timing."""
    call = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-o", "addopts=", "-p", "plugin"]
    call += ["-p", "no:cacheprovider", "--tb=short", "-rfE", "-n", options.n, "--dist", "worksteal"]
    # A test that hangs ends the run with a trace of every thread. The slowest test takes about 20 s on an idle
    # machine.
    call += ["-o", "faulthandler_timeout=300", "-o", "faulthandler_exit_on_timeout=true"]
    if options.junit:
        call.append(f"--junitxml={options.junit.resolve()}")
    return [*call, *tests, *options.pytest]


def main(argv: list[str]) -> int:
    """Fetch, select and run the tests. Return pytest's exit code."""
    options = parse(argv)
    version = importlib.metadata.version("zarr")
    folder = source(version, options.cache)
    if options.requirements:
        print("\n".join(requirements(folder)))
        return 0
    tests = select(options.set, version, folder)
    call, env = command(options, tests), environment(options, tests)
    return subprocess.run(call, cwd=folder, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
