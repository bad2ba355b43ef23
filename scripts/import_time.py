# import_time.py - print how much processor time `import shardcodec` adds to `import zarr`
# SPDX-License-Identifier: MIT
"""Run whole processes in turn, `import_time.py [RUNS]`, and print their processor time in user mode: the best of all runs.

Times differ from run to run, so nothing fails here: `tests/project/test_import.py` bounds the modules that are loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys

LIMIT_MS = 30
CASES = {
    "import zarr": "import zarr",
    "import zarr, shardcodec": "import zarr, shardcodec",
    "import zarr, shardcodec; shardcodec.enable()": "import zarr, shardcodec; shardcodec.enable()",
}


def user_ms(code: str) -> float:
    """Run code in a new process and return its processor time in user mode, in milliseconds."""
    process = subprocess.Popen([sys.executable, "-P", "-c", code])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python -c {code!r} failed")
    return used.ru_utime * 1000


def main() -> None:
    """Print one line for each case. The first round only compiles the modules."""
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rounds = [{name: user_ms(code) for name, code in CASES.items()} for _ in range(n_runs + 1)]
    times = {name: min(one[name] for one in rounds[1:]) for name in CASES}
    first = times["import zarr"]
    for name, time in times.items():
        print(f"{time:6.1f} ms, {time - first:+6.1f} ms  {name}  (best of {n_runs}; at most +{LIMIT_MS} ms)")


if __name__ == "__main__":
    main()
