# declared_machine.py - programs, headers and libraries of declared Debian packages, without the others of this machine
# SPDX-License-Identifier: MIT
"""Make a folder `bin` for PATH that shows what a new machine has after `apt-get install PACKAGE...`, and nothing else.

    declared_machine.py FOLDER PACKAGE...

A new machine has the essential and the required packages of Debian, those named, all that they depend on, and Python.
The compilers in `bin` search headers and libraries of these packages only. Needs dpkg, but no root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

COMPILER = re.compile(r"([\w.-]+-)?(gcc|g\+\+|cpp|cc|c\+\+|c89|c99)(-[\d.]+)?")
PROGRAMS = tuple(Path(folder) for folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin"))
LIBRARIES = ("/usr/include", "/usr/lib", "/lib", "/lib64")
FIELDS = ("binary:Package", "Essential", "Priority", "Pre-Depends", "Depends", "Provides", "db:Status-Status")
# gcc itself looks for libraries beside its own files, so the wrapper refuses those that no package has.
WRAPPER = """#!/bin/bash
has() {{ for file in {root}/usr/lib/{{,*/,gcc/*/*/}}$1; do [[ ! -e $file ]] || return 0; done; return 1; }}
for argument; do
    case $argument in
        -l?*)
            has "lib${{argument#-l}}.so" || has "lib${{argument#-l}}.a" ||
                {{ echo "${{0##*/}}: $argument: no declared package has it; the list packages of .ci/run lacks it" >&2; exit 1; }} ;;
        -print-file-name=*) has "${{argument#*=}}" || {{ echo "${{argument#*=}}"; exit; }} ;;
    esac
done
exec {compiler} --sysroot={root} "$@"
"""


def relations(text: str) -> list[list[str]]:
    """Return the names in a field such as `libc6 (>= 2.34), awk | mawk`, alternatives together."""
    return [
        [re.sub(r"[\s(:].*", "", one.strip()) for one in group.split("|")]
        for group in text.split(",")
        if group.strip()
    ]


def installed_packages() -> dict[str, dict[str, str]]:
    """Return the fields of each installed package, by its name without architecture."""
    form = "\t".join(f"${{{field}}}" for field in FIELDS) + "\n"
    done = subprocess.run(["dpkg-query", "-W", f"-f={form}"], check=True, capture_output=True, text=True)
    rows = [dict(zip(FIELDS, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
    return {
        row["binary:Package"].partition(":")[0]: row for row in rows if row["db:Status-Status"] == "installed"
    }


def with_dependencies(names: Iterable[str], packages: dict[str, dict[str, str]]) -> set[str]:
    """Return the names, and all packages that they depend on. A missing package stops the program."""
    providers: dict[str, list[str]] = {}
    for name, fields in packages.items():
        for provided in [[name], *relations(fields["Provides"])]:
            providers.setdefault(provided[0], []).append(name)
    found: set[str] = set()
    left = list(names)
    if missing := [name for name in left if name not in packages]:
        raise SystemExit(f"declared_machine.py: not installed: {', '.join(missing)}")
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for alternatives in relations(packages[name]["Pre-Depends"]) + relations(packages[name]["Depends"]):
            present = [provider for one in alternatives for provider in providers.get(one, ())]
            left += present[:1]
    return found


def files_of(names: Iterable[str], packages: dict[str, dict[str, str]]) -> Iterator[Path]:
    """Yield the files of packages, with merged /usr under their new names."""
    listed = [packages[name]["binary:Package"] for name in names]
    done = subprocess.run(["dpkg-query", "-L", *listed], check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        path = Path(line)
        if path.is_absolute() and path.exists() and not path.is_dir():
            yield path.parent.resolve() / path.name


def is_of_compiler(path: Path) -> bool:
    """Return whether a compiler or a linker reads this file."""
    kind = path.suffix in (".h", ".a", ".o") or ".so" in path.suffixes or "include" in path.parts
    return kind and any(path.is_relative_to(folder) for folder in LIBRARIES)


def link(path: Path, target: Path) -> None:
    """Make a link, unless there is one of this name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)


def write_program(path: Path, text: str) -> None:
    """Write an executable script."""
    path.write_text(text)
    path.chmod(0o755)


def main(folder: Path, names: list[str]) -> None:
    """Make the folder anew."""
    packages = installed_packages()
    base = [
        name
        for name, fields in packages.items()
        if fields["Essential"] == "yes" or fields["Priority"] == "required"
    ]
    declared = with_dependencies([*base, *names], packages)
    shutil.rmtree(folder, ignore_errors=True)
    root, programs = folder / "root", folder / "bin"
    programs.mkdir(parents=True)
    files = set(files_of(declared, packages))
    for path in files:
        if path.parent in PROGRAMS:
            link(programs / path.name, path)
        elif is_of_compiler(path):
            link(root / path.relative_to("/"), path)
    # Names such as cc, which belong to no package.
    for path in (path for place in PROGRAMS for path in place.iterdir()):
        if path.is_symlink() and os.readlink(path).startswith("/etc/alternatives/"):
            target = path.resolve()
            if target in files:
                link(programs / path.name, target)
    for path in list(programs.iterdir()):
        if COMPILER.fullmatch(path.name):
            compiler = path.resolve()
            path.unlink()
            write_program(
                path, WRAPPER.format(root=shlex.quote(str(root)), compiler=shlex.quote(str(compiler)))
            )
    print(f"{folder}: {len(declared)} packages, {len(list(programs.iterdir()))} programs")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
