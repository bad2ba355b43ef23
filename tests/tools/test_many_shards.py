# test_many_shards.py - arrays of very many small shards
# SPDX-License-Identifier: MIT
"""Memory does not grow with the number of shards. `bench/suite_tools.py` measures the time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import create, run_python

N_SHARDS = 100_000
MIB = 1 << 20


def small_shards(path: Path, n: int) -> None:
    """Make an array of `n` shards of 10 KiB."""
    array = create(
        path,
        shape=(8 * n, 640),
        shards=(8, 640),
        chunks=(4, 80),
        dtype="u2",
        fill_value=0,
        compressors=[zarr.codecs.Crc32cCodec()],
    )
    array[:8] = np.random.default_rng(0).integers(1, 60000, (8, 640), dtype="u2")
    data = (path / "c/0/0").read_bytes()
    for i in range(1, n):
        (path / f"c/{i}").mkdir()
        (path / f"c/{i}/0").write_bytes(data)


@pytest.mark.nightly
def test_memory_of_a_hundred_thousand_shards(tmp_path: Path) -> None:
    small_shards(tmp_path / "few.zarr", 1000)
    small_shards(tmp_path / "many.zarr", N_SHARDS)
    done = run_python(
        """
        import json, os
        from pathlib import Path
        from shardcodec import tools

        def peak():
            lines = Path("/proc/self/status").read_text().splitlines()
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

        folder, found = Path(os.environ["FOLDER"]), []
        for name in ("few", "many"):
            for work in (tools.inspect, lambda path: tools.verify(path, level="index", threads=2)):
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
                before = peak()
                report = work(folder / f"{name}.zarr")
                found.append((report.n_findings, peak() - before))
        print(json.dumps(found))
        """,
        FOLDER=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [n for n, _ in found] == [0, 0, 0, 0]
    assert all(nbytes < 8 * MIB for _, nbytes in found[2:]), found
