#!/usr/bin/env python3
# run.py - xarray's own Zarr tests, through shardcodec and through zarr alone
# SPDX-License-Identifier: MIT
"""Run the Zarr tests of the installed xarray through shardcodec: with its pipeline, and with its engine for xarray.

Some of them fail without shardcodec too, since xarray's wheel lacks a part of their requirements. So failed tests
run again without shardcodec, and a test that then passes is a fault of shardcodec. Arguments after ``--`` go to
pytest.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = "shardcodec.ShardCodecPipeline"
# How the tests use shardcodec: the pipeline of all arrays, and the class that xarray calls for `engine="zarr"`.
WAYS: dict[str, tuple[str | None, str | None]] = {
    "pipeline": (OURS, None),
    "engine": (None, "shardcodec.zarr_plugin.xarray_engine:ShardCodecBackend"),
    "zarr alone": (None, None),
}
REQUIREMENTS = ("dask[array]", "fsspec", "pytest", "pytest-asyncio", "pytest-xdist", "xarray")

# One class of tests over memory and one over files; "all" adds others, which use the array in the same way.
SETS = {
    "ci": "TestZarrDictStore or TestZarrDirectoryStore or TestZarrRegionAuto or TestZarrDatatreeIO",
    "all": "zarr",
}


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; arguments after ``--`` become `pytest`."""
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description="Run xarray's own Zarr tests through shardcodec.")
    add = parser.add_argument
    add("--set", choices=sorted(SETS), default="ci", help="which tests (%(default)s)")
    add("--way", action="append", choices=["pipeline", "engine"], help="how shardcodec is chosen (both)")
    add("-n", default="auto", metavar="N", help="processes, for pytest-xdist (%(default)s)")
    add("--requirements", action="store_true", help="print the requirements of the tests for pip, and stop")
    options = parser.parse_args(argv[:cut])
    options.pytest = argv[cut + 1 :]
    return options


def failures(tests: Sequence[str], options: argparse.Namespace, way: str) -> set[str]:
    """Run tests in one of `WAYS` and return those that fail."""
    pipeline, engine = WAYS[way]
    spec = importlib.util.find_spec("xarray")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parents[1]
    env = {name: value for name, value in os.environ.items() if name != "ZARR_CODEC_PIPELINE__PATH"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), env.get("PYTHONPATH")]))
    if pipeline is not None:
        env["ZARR_CODEC_PIPELINE__PATH"] = pipeline
    with tempfile.TemporaryDirectory() as scratch:
        env["SHARDCODEC_XARRAY_SUITE"] = json.dumps(
            {
                "report": f"{scratch}/report",
                "pipeline": pipeline,
                "engine": engine,
                "every_format": options.set == "all",
            }
        )
        call = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), "--rootdir", str(folder)]
        call += ["-p", "plugin", "-p", "no:cacheprovider", "-q", "--tb=short", "-n", options.n]
        code = subprocess.run([*call, *tests, *options.pytest], cwd=folder, env=env, check=False).returncode
        if code not in (0, 1):
            raise SystemExit(f"pytest ended with status {code}")
        return set(json.loads(Path(scratch, "report").read_text()))


def main(argv: list[str]) -> int:
    """Run the tests, and run the failed ones again. Return an exit code."""
    options = parse(argv)
    if options.requirements:
        print("\n".join(REQUIREMENTS))
        return 0
    files = ["xarray/tests/test_backends.py", "xarray/tests/test_backends_datatree.py"]
    faults = 0
    for way in options.way or ("pipeline", "engine"):
        failed = failures([*files, "-k", SETS[options.set]], options, way)
        ours = failed - failures(sorted(failed), options, "zarr alone") if failed else failed
        print(f"{way}: {len(failed)} tests fail with shardcodec, {len(ours)} of them only with it")
        for test in sorted(ours):
            print(f"FAILED only with shardcodec's {way}: {test}")
        faults += len(ours)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
