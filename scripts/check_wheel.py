# check_wheel.py - install a wheel into a bare environment, without a compiler and without an index, and use it there
# SPDX-License-Identifier: MIT
"""`make wheels` and `make bare` run this program: `check_wheel.py WHEEL [--wheelhouse FOLDER] [--demo] [--tests ...]`.

The interpreter that runs it makes the environment. It needs nothing beside the standard library, so it also runs in the
root of another system (`scripts/check-in-root`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_NBYTES = 2_500_000
MIN_TESTS = 200
# The blocks of the README, the demo and the tests need these; the wheel does not.
TOOLS = ("pytest>=9", "pytest-asyncio", "hypothesis", "xarray", "nibabel>=5.3")
# Fast tests of a codec, of reads and writes, of locks and of the pipeline.
TESTS = (
    "tests/engine/test_codec_lz4.py",
    "tests/kv/test_store.py",
    "tests/storage/test_locks.py",
    "tests/zarr_plugin/test_options.py",
    "tests/test_project.py::test_readme_code_runs",
    "tests/project/test_wheel.py",
)


def system(version: str, machine: str) -> list[str]:
    """Return the options of pip for another Python and another architecture; pip wants each older glibc by name."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)] + [
        f"manylinux2014_{machine}"
    ]
    return ["--python-version", version, *(word for one in platforms for word in ("--platform", one))]


def download(wheel: Path, wheelhouse: Path, target: list[str]) -> None:
    """Fill a folder with the wheels of all requirements; those that it has are not fetched again."""
    wheelhouse.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
         "--find-links", wheelhouse, "--dest", wheelhouse, *target, wheel, *TOOLS],
        check=True,
    )  # fmt: skip


class Bare:
    """A virtual environment in which a command finds no program but those of the environment."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)  # tests of permissions run as another user
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.programs = folder / "venv" / "bin"
        (folder / "home").mkdir()
        self.folder = folder
        self.environment = {
            "PATH": str(self.programs),
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONSAFEPATH": "1",
            "HYPOTHESIS_PROFILE": "quick",
            "PIP_CONFIG_FILE": os.devnull,
        }
        for compiler in ("cc", "gcc", "clang", "c++"):
            if found := shutil.which(compiler, path=self.environment["PATH"]):
                raise SystemExit(f"expected an environment without a compiler, found {found}")

    def run(self, *arguments: str | Path, folder: Path | None = None) -> str:
        """Run Python in the environment and return its output; show each line when it comes."""
        print("$ python", *arguments, flush=True)
        told = []
        with subprocess.Popen(
            [self.programs / "python", "-u", *arguments], cwd=folder or self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                told.append(line)
        if process.returncode != 0:
            raise SystemExit(f"python {' '.join(map(str, arguments))} failed")
        return "".join(told)

    def install(self, wheelhouse: Path, *wanted: str | Path) -> None:
        self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
                 "--only-binary", ":all:", "--find-links", wheelhouse, *wanted)  # fmt: skip


def check(wheel: Path, wheelhouse: Path, tests: list[str], with_demo: bool) -> None:
    """Install the wheel, then the tools; run the command, the demo and the tests; end the program at the first failure."""
    nbytes = wheel.stat().st_size
    if nbytes > MAX_NBYTES:
        raise SystemExit(f"{wheel.name}: expected at most {MAX_NBYTES} bytes, got {nbytes}")
    with tempfile.TemporaryDirectory() as folder:
        bare = Bare(Path(folder))
        bare.install(wheelhouse, wheel)
        bare.run("-m", "shardcodec")
        bare.run(ROOT / "scripts" / "import_time.py")
        bare.install(wheelhouse, *TOOLS)
        if with_demo:
            bare.run(ROOT / "examples" / "demo.py")
        told = bare.run(
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not nightly",
            *tests,
            folder=ROOT,
        )
    passed = re.search(r"(\d+) passed", told)
    if passed is None or int(passed[1]) < MIN_TESTS:
        raise SystemExit(f"expected at least {MIN_TESTS} passed tests, got: {told.splitlines()[-1]}")


def main() -> None:
    """Check what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--wheelhouse", type=Path, help="wheels of all requirements; without it they are fetched"
    )
    parser.add_argument(
        "--fetch", nargs=2, metavar=("PYTHON", "MACHINE"), help="only fill the folder, for this system"
    )
    parser.add_argument("--demo", action="store_true", help="run examples/demo.py too")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="arguments for pytest")
    parser.add_argument("--also", nargs="+", default=[], help="more of them")
    given = parser.parse_args()
    wheel, wheelhouse = given.wheel.resolve(), given.wheelhouse
    if given.fetch:
        download(wheel, wheelhouse, system(*given.fetch))
        return
    if wheelhouse is None:
        wheelhouse = ROOT / "build" / "wheelhouse" / "{}.{}".format(*sys.version_info)
        download(wheel, wheelhouse, [])
    check(wheel, wheelhouse.resolve(), [*given.tests, *given.also], given.demo)


if __name__ == "__main__":
    main()
