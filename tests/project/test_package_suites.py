# test_package_suites.py - the lists of tests/package_suites agree
# SPDX-License-Identifier: MIT
"""`make package-suites` takes half an hour; these are the faults that can be found without it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import python_environment

pytestmark = pytest.mark.slow

SUITES = Path(__file__).resolve().parents[1] / "package_suites"


def test_requirements_name_every_package() -> None:
    run = runpy.run_path(str(SUITES / "run.py"))
    needs = run["requirements"](run["parse"]([]))
    assert {"anndata", "dask", "ome-zarr", "virtualizarr", "icechunk", "obstore", "s3fs", "xarray"} <= set(
        needs
    )
    fewer = run["requirements"](run["parse"](["--programs-only"]))
    assert {"icechunk", "obstore", "s3fs", "xarray"} <= set(fewer) and "anndata" not in fewer


def test_programs_are_those_that_the_runner_names() -> None:
    run, programs = (runpy.run_path(str(SUITES / name)) for name in ("run.py", "programs.py"))
    assert tuple(programs["PROGRAMS"]) == run["PROGRAMS"]


def test_copies_are_those_that_the_runner_names() -> None:
    run, copies = (runpy.run_path(str(SUITES / name)) for name in ("run.py", "copies.py"))
    assert tuple(copies["PROGRAMS"]) == run["COPIES"]
    needs = run["requirements"](run["parse"]([]))
    assert set(run["COPY_NEEDS"]) <= set(needs)


def test_page_names_every_package() -> None:
    page = (SUITES.parents[1] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    run = runpy.run_path(str(SUITES / "run.py"))
    missing = [name for name in (*run["PACKAGES"], *run["PROGRAMS"]) if f"| {name} |" not in page]
    assert not missing


def test_failed_tests_are_found_again_below_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment in a checkout: pytest names tests from the folder of the checkout's settings."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "test_some.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    run = runpy.run_path(str(SUITES / "run.py"))
    monkeypatch.setitem(run["run_tests"].__globals__, "sources", lambda _: folder)
    options = run["parse"](["-n", "0"])
    first = run["run_tests"]("some", ["test_some.py"], options, None)
    assert (first.n_passed, first.failed) == (1, {"test_some.py::test_bad"})
    again = run["run_tests"]("some", sorted(first.failed), options, None)
    assert (again.n_passed, again.failed) == (0, first.failed)


def test_results_of_a_program_are_equal_with_both_pipelines() -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    found = []
    for pipeline in ("", "shardcodec.ShardCodecPipeline"):
        chosen = {"ZARR_CODEC_PIPELINE__PATH": pipeline} if pipeline else {}
        done = subprocess.run(
            [sys.executable, "-P", str(SUITES / "programs.py"), "obstore"],
            env=python_environment(**chosen),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert [one.pop("is_native") for one in found] == [False, True]
    assert found[0] == found[1] and len(found[0]) == 16
