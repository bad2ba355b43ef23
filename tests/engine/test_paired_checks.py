# test_paired_checks.py - debug builds check what they write before, and read it again
# SPDX-License-Identifier: MIT
"""A wrong place of an inner chunk, given to the engine: a release build writes it, and a build with checks ends.

The checks are in the builds of `make asan`, `make tsan` and `make test-system`, and not in the wheel.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardcodec import native

FACTS = native.load().build_facts()
HAS_CHECKS: bool = FACTS["checks"]

# A shard of four inner chunks of 16 bytes, two of which are kept. The other two get new bytes.
PROGRAM = """
import sys
import numpy as np
from shardcodec import ShardSpec, native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.placement import Placement
from shardcodec.access.records import ChunkBytes, OldObject, PlanItem

path, case = sys.argv[1:]
spec = ShardSpec((64,), (16,), "uint8", 0, ["bytes"], [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"])
chain, absent = compiled(spec.chain), 2**64 - 1
old = np.array([[0, 16], [16, 16], [absent] * 2, [absent] * 2], dtype=np.uint64)
old_bytes = bytes(range(32)) + bytes(spec.index_nbytes)
entries, carries = old.copy(), np.array([[0, 32, 0]], dtype=np.uint64)
at = 32
if case == "moved":  # an entry that does not lead to the bytes that were carried
    entries[1, 0] = 8
elif case == "outside":
    entries[1, 0] = 1 << 40
elif case == "longer":
    entries[0, 1] = 20
elif case == "overlap":  # the new inner chunks lie over a kept one
    at = 24
placement = Placement(carries, entries, at, compact=False)
item = PlanItem(chain, path if case == "file" else None, None, ChunkBytes([2, 3], [b"a" * 16, b"b" * 16]),
                OldObject(old_bytes, len(old_bytes), None, old) if case != "file" else None,
                placement if case != "file" else None)
native.load().write([item])
print("written")
"""


def written(tmp_path: Path, case: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "shard"), case]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_checks_are_in_sanitizer_and_debug_builds_alone() -> None:
    is_debug = FACTS["sanitizer"] is not None or not FACTS["optimised"]
    assert is_debug == HAS_CHECKS
    if os.environ.get("SHARDCODEC_TEST_SANITIZER"):
        assert HAS_CHECKS


@pytest.mark.parametrize("case", ["right", "file"])
def test_right_shard_is_written(tmp_path: Path, case: str) -> None:
    done = written(tmp_path, case)
    assert done.stdout == "written\n", done.stderr


@pytest.mark.parametrize(
    ("case", "rule", "entry"),
    [
        (
            "moved",
            "a new inner chunk overlaps no other one|a kept inner chunk has the bytes of the old one",
            1,
        ),
        ("outside", "an entry lies inside the shard and outside of the index", 1),
        ("longer", "a kept inner chunk has the size that it had", 0),
        ("overlap", "a new inner chunk overlaps no other one", 2),
    ],
)
def test_wrong_place_is_written_or_found(tmp_path: Path, case: str, rule: str, entry: int) -> None:
    done = written(tmp_path, case)
    if not HAS_CHECKS:
        assert done.stdout == "written\n", done.stderr
        return
    assert done.returncode == -signal.SIGABRT, done.stderr
    assert any(f"shardcodec: check failed: {one} (" in done.stderr for one in rule.split("|")), done.stderr
    assert f"shard in memory, inner chunk {entry}: offset " in done.stderr
