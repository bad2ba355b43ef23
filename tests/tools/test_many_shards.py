# test_many_shards.py - arrays of very many small shards
# SPDX-License-Identifier: MIT
"""Memory does not grow with the number of shards. `bench/suite_tools.py` measures the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import create
from resident import run_measuring

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
    found = run_measuring(
        """
        from shardcodec import tools

        folder, found = Path(os.environ["FOLDER"]), []
        for name in ("few", "many"):
            for tool, how in ((tools.inspect, {}), (tools.verify, {"level": "index"})):
                found.append(peak_of(lambda: tool(folder / f"{name}.zarr", threads=2, **how).n_findings))
        print(json.dumps(found))
        """,
        seconds=600,
        FOLDER=str(tmp_path),
    )
    assert [n for n, _ in found] == [0, 0, 0, 0]
    assert all(nbytes < 8 * MIB for _, nbytes in found[2:]), found
