# machine.py - boots a kernel as a process, and runs one program in it
# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kernel.root import Missing, root

__all__ = ["Missing", "compiled", "run_in_kernel"]

HERE = Path(__file__).resolve().parent
MEMORY = "1200M"
KERNEL = "usr/bin/linux.uml"
BOOT_SECONDS = 120.0  # it takes one, if the machine is idle


def compiled(folder: Path, name: str) -> Path:
    """Compile a library of this folder that is preloaded."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Missing("there is no C compiler")
    library = folder / f"{name}.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / f"{name}.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


def run_in_kernel(
    program: list[str],
    folder: Path,
    seconds: float,
    told: Callable[[str], None],
    packages: tuple[str, ...] = (),
) -> None:
    """Boot the kernel, run a program of this machine in it as on this machine, and stop it.

    folder: the only one that the program can change, below /run/out. told: called with each line of its output. seconds: then the
    kernel is killed, and `TimeoutError` is raised. packages: further ones that its system needs. `Missing` is raised if it does not even begin the program.
    """
    system = root(packages)
    state = compiled(folder, "extended_state")
    (folder / "command").write_text("\n".join(program))
    environment = os.environ | {"LD_PRELOAD": str(state), "TMPDIR": str(folder)}
    arguments = ["root=/dev/root", "rootfstype=hostfs", f"rootflags={system}", "ro", f"mem={MEMORY}"]
    arguments += [
        "init=/init",
        f"FIRST_PROGRAM={HERE / 'init.sh'}",
        f"OUT={folder}",
        "con=null",
        "con0=null,fd:1",
        "quiet",
    ]
    kernel = subprocess.Popen(
        ["timeout", "--signal=KILL", str(seconds), str(system / KERNEL), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert kernel.stdout is not None
    last = ""
    boot = threading.Timer(BOOT_SECONDS, lambda: (folder / "started").exists() or _kill(kernel))
    boot.start()
    try:
        for line in kernel.stdout:
            last = line.rstrip()
            told(last)
    finally:
        boot.cancel()
        _kill(kernel)
        kernel.wait()
    if not (folder / "started").exists():
        raise Missing(f"the kernel does not start here: {last!r}")
    if not (folder / "ended").exists():
        raise TimeoutError(f"the kernel did not end its program within {seconds:g} s, or has crashed")


def _kill(kernel: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(kernel.pid, signal.SIGKILL)


if __name__ == "__main__":
    run_in_kernel(sys.argv[2:], Path(sys.argv[1]), 600, print)
