# import_time.py - print how much processor time `import shardcodec` adds to `import zarr`
# SPDX-License-Identifier: MIT
"""`import_time.py [RUNS]`: import zarr and then shardcodec in new processes, and print the processor time of each step.

The best and the median of all runs are shown. Times differ from run to run, so nothing fails here:
`tests/project/test_import.py` bounds the modules that are loaded.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys

LIMIT_MS = 30
STEPS = ("import zarr", "import shardcodec", "shardcodec.enable()")
PROGRAM = "\n".join(
    ["import time", *(f"{step}; print(1000 * time.process_time())" for step in ("pass", *STEPS))]
)


def main() -> None:
    """Print one line for each step. The first run only compiles the modules."""
    n_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    runs = []
    for _ in range(n_runs + 1):
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM], check=True, capture_output=True, text=True
        )
        ends = [float(line) for line in done.stdout.split()]
        runs.append([end - begin for begin, end in itertools.pairwise(ends)])
    del runs[0]
    for step, times in zip(STEPS, zip(*runs, strict=True), strict=True):
        print(f"{min(times):6.1f} ms  (median {statistics.median(times):5.1f})  {step}")
    ours = [sum(run[1:]) for run in runs]
    print(f"{min(ours):6.1f} ms  (median {statistics.median(ours):5.1f})  more than zarr; at most {LIMIT_MS}")


if __name__ == "__main__":
    main()
