# test_steps.py - the steps of .ci/run
# SPDX-License-Identifier: MIT

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# `timeout` takes SIGALRM for the end of its time.
HANGS = """
import os, signal, threading

def test_hang():
    os.kill(int(os.environ["TIMEOUT_PID"]), signal.SIGALRM)
    threading.Event().wait()
"""


def run_bash(commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'set -euo pipefail; cd "{ROOT}"; {commands}'],
        env=os.environ | {"CI": "", "ONLY_STEPS": ""} | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(("only", "ran"), [("", ["a", "ab", "b"]), ("b", ["b"]), ("ab b", ["ab", "b"])])
def test_chosen_steps_run_alone(only: str, ran: list[str]) -> None:
    command = "bash -c 'echo ran $0 of ${ONLY_STEPS-all}'"
    steps = "; ".join(f"step {name} {command} {name}" for name in ("a", "ab", "b"))
    found = run_bash(f"source .ci/steps.sh; {steps}; finish", ONLY_STEPS=only)
    assert found.returncode == 0
    lines = [line for line in found.stdout.splitlines() if line.startswith("ran")]
    assert lines == [f"ran {name} of all" for name in ran]  # the commands do not see the choice


def test_choice_of_an_unknown_step_fails() -> None:
    found = run_bash("source .ci/steps.sh; step a echo; finish", ONLY_STEPS="a b")
    assert found.returncode == 1 and "no step has the name b" in found.stderr


@pytest.mark.slow
def test_step_that_hangs_shows_the_stacks_of_all_its_processes(tmp_path: Path) -> None:
    """The stacks of the controller of pytest-xdist, and of the worker."""
    (tmp_path / "test_hangs.py").write_text(HANGS)
    make = tmp_path / "make"
    pytest_call = f"'{sys.executable}' -m pytest -n 1 --rootdir=. -p no:cacheprovider test_hangs.py"
    # Like make, a parent of pytest: `timeout` sends its signal to its child twice, and the second would end the child at once.
    make.write_text(f"#!/bin/sh\nTIMEOUT_PID=$PPID {pytest_call}\nexit\n")
    make.chmod(0o755)
    commands = f'source "{ROOT}/.ci/steps.sh"; cd "{tmp_path}"; step tests "${{make_oldest[@]}}"; finish'
    found = run_bash(commands, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert found.returncode == 1
    # The two processes print at once, so names within their stacks are not whole.
    assert found.stdout.count("Aborted") == 2, found.stdout
    assert found.stdout.count("most recent call first") >= 2
    assert "tests: FAILED" in found.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs dpkg")
def test_undeclared_programs_headers_and_libraries_are_hidden(tmp_path: Path) -> None:
    """A fuzz target needed lz4.h, and `.ci/run` passed because the header lay on its machine."""
    packages = {"gcc", "libc6-dev"}
    for package in packages:
        if subprocess.run(["dpkg", "-s", package], capture_output=True, check=False).returncode:
            pytest.skip(f"{package} is not installed")
    machine = tmp_path / "machine"
    command = [sys.executable, str(ROOT / "scripts/declared_machine.py"), str(machine), *sorted(packages)]
    subprocess.run(command, check=True, capture_output=True)
    env = os.environ | {"PATH": str(machine / "bin")}
    (tmp_path / "program.c").write_text(
        "#include <math.h>\n#include <unistd.h>\nint main(void) { return getpid() < cos(0); }\n"
    )

    def compiles(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["gcc", "-o", str(tmp_path / "program"), str(tmp_path / "program.c"), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    done = compiles("-lm", "-pthread")
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0
    assert "the list packages of .ci/run lacks it" in compiles("-lno_such_library").stderr
    assert {"bash", "sed", "cc"} <= set(os.listdir(machine / "bin"))
    # Which other packages this machine has is not known, so what they bring is looked for.
    headers = {path.name for path in Path("/usr/include").glob("*.h")} - set(
        os.listdir(machine / "root/usr/include")
    )
    for header in sorted(headers)[:3]:
        (tmp_path / "program.c").write_text(f"#include <{header}>\nint main(void) {{ return 0; }}\n")
        assert f"{header}: No such file or directory" in compiles().stderr
    assert shutil.which("strace", path=env["PATH"]) is None  # nothing that these two packages need has it


def test_missing_package_stops_the_machine(tmp_path: Path) -> None:
    shutil.which("dpkg-query") or pytest.skip("needs dpkg")
    command = [
        sys.executable,
        str(ROOT / "scripts/declared_machine.py"),
        str(tmp_path / "machine"),
        "no-such-package",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "not installed: no-such-package" in done.stderr
