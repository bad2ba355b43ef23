# test_beside_writers.py - verify and compact while another program writes
# SPDX-License-Identifier: MIT
"""A shard that another program is changing may look damaged for a moment: the tools look again, as readers do."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import checked, python_environment
from tool_sources import CONTENT

import shardcodec
from shardcodec import ShardSpec
from shardcodec.tools import compact, verify


class Torn:
    """Opens a shard: the first looks find it between two steps of a writer, the others find it whole."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, module: str, n_torn: int) -> None:
        self._path, self._n_torn, self.n_looks = path, n_torn, 0
        self._whole = path.read_bytes()
        used = importlib.import_module(f"shardcodec.tools.{module}")
        self._open = used.open_object
        monkeypatch.setattr(used, "open_object", self)

    def __call__(self, store: Any, key: str) -> Any:
        if key.endswith("c/0/1"):
            self.n_looks += 1
            is_torn = self.n_looks <= self._n_torn
            torn = self._whole[:100] + bytes([self._whole[100] ^ 1]) + self._whole[101:]
            self._path.write_bytes(torn if is_torn else self._whole)
        return self._open(store, key)


@pytest.mark.parametrize("n_torn", [1, 2])
def test_tools_look_again_at_a_shard_that_is_being_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_torn: int
) -> None:
    """Between two steps of a writer, `verify` reported damage that there was not, and `compact` failed."""
    checked(tmp_path / "a.zarr", at_start=True)[...] = CONTENT
    path = tmp_path / "a.zarr/c/0/1"
    with monkeypatch.context() as patch:
        Torn(path, patch, "verify.verify_shards", n_torn)
        assert verify(tmp_path / "a.zarr", level="decode").n_findings == 0
    with monkeypatch.context() as patch:
        Torn(path, patch, "compact", n_torn)
        assert compact(tmp_path / "a.zarr").n_failed == 0


def test_damage_that_stays_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked(tmp_path / "a.zarr", at_start=True)[...] = CONTENT
    path = tmp_path / "a.zarr/c/0/1"
    torn = Torn(path, monkeypatch, "verify.verify_shards", 100)
    assert verify(tmp_path / "a.zarr").n_findings == 1
    assert torn.n_looks <= 5
    long_ago = time.time() - 100
    damaged = path.read_bytes()
    monkeypatch.undo()
    path.write_bytes(damaged)
    os.utime(path, (long_ago, long_ago))
    assert verify(tmp_path / "a.zarr").n_findings == 1


@pytest.mark.slow
def test_no_damage_is_reported_beside_an_appending_writer(tmp_path: Path) -> None:
    """An append overwrites an index at the start: 3,004 of 27,257 checks beside it reported damage."""
    spec = ShardSpec((64,), (4,), "uint8", 0, ["bytes", "crc32c"], index_location="start")
    path = tmp_path / "shard"
    path.write_bytes(shardcodec.encode(np.arange(1, 65, dtype=np.uint8), spec))

    code = f"""
import time, numpy as np, shardcodec
spec = shardcodec.ShardSpec((64,), (4,), "uint8", 0, ["bytes", "crc32c"], index_location="start")
end, i = time.monotonic() + 4, 0
with shardcodec.options(write_strategy="append"):
    while time.monotonic() < end:
        with shardcodec.open_shard({str(path)!r}, None, spec, mode="r+") as shard:
            shard.write_chunks([(i % 16,)], np.full((1, 4), i % 250 + 1, np.uint8))
        i += 1
"""
    found, n = 0, 0
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], env=python_environment(SHARDCODEC_COMPACT="0")
    ) as writer:
        while writer.poll() is None:
            found += verify(path, spec=spec).n_findings
            found += compact(path, spec=spec, dry_run=True).n_failed
            n += 1
    assert writer.returncode == 0 and n and not found
