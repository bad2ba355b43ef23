# test_json_reports.py - the JSON of all reports, compared with stored samples
# SPDX-License-Identifier: MIT
"""Programs read the JSON of the tools, so a change of the records must not change it.

``tests/golden/reports.json`` has the report of each tool over a hierarchy with damaged, missing and left-out things.
``python tests/tools/test_json_reports.py`` writes it anew; then look at each difference.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardcodec
from shardcodec import ShardSpec, tools
from shardcodec.checksum import crc32c
from shardcodec.tools.advise.access_pattern import parse_access
from shardcodec.tools.advise.report import AdviseReport, Trial, TrialAccess

SAMPLES = Path(__file__).resolve().parents[1] / "golden/reports.json"
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
VALUES = np.arange(64, dtype="<i4").reshape(8, 8)


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of an array of 8 x 8 elements without shards, with changes."""
    chunks = {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}
    keys = {"name": "default", "configuration": {"separator": "/"}}
    array = {
        "zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "int32", "chunk_grid": chunks,
        "chunk_key_encoding": keys, "fill_value": 0, "codecs": [BYTES], "attributes": {},
    }  # fmt: skip
    return array | changes


def put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def write_chunks(path: Path, spec: ShardSpec, values: Any) -> None:
    """Write all inner chunks of a shard of 4 x 4 elements."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = list(np.ndindex(2, 2))
    chunks = np.stack([values[2 * y : 2 * y + 2, 2 * x : 2 * x + 2] for y, x in at])
    with shardcodec.open_shard(path, None, spec, mode="r+") as handle:
        handle.write_chunks(at, chunks)


def with_dead_bytes(shard: bytes) -> bytes:
    """Return a shard with 100 bytes before its last inner chunk that no entry names."""
    index = np.frombuffer(shard[-68:-4], "<u8").copy().reshape(4, 2)
    last = index[3, 0]
    index[3, 0] += 100
    return (
        shard[:last]
        + bytes(100)
        + shard[last:-68]
        + index.tobytes()
        + crc32c(index.tobytes()).to_bytes(4, "little")
    )


def make(root: Path) -> None:
    """Make a hierarchy, a copy of it before its damage, and another one that is whole."""
    inner: list[Any] = [BYTES, CRC]
    spec = ShardSpec((4, 4), (2, 2), "int32", 0, inner, inner, "end")
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [2, 2], "codecs": inner, "index_codecs": inner, "index_location": "end",
        },
    }  # fmt: skip
    for name in ("a", "copy", "whole"):
        put(root / name / "zarr.json", {"zarr_format": 3, "node_type": "group"})
        put(root / name / "image/zarr.json", document(codecs=[sharding], dimension_names=["y", "x"]))
        for at in np.ndindex(2, 2):
            y, x = (4 * i for i in at)
            write_chunks(root / name / f"image/c/{at[0]}/{at[1]}", spec, VALUES[y : y + 4, x : x + 4])
        put(root / name / "plain/zarr.json", document())
        for at in np.ndindex(2, 2):
            y, x = (4 * i for i in at)
            put(root / name / f"plain/c/{at[0]}/{at[1]}", VALUES[y : y + 4, x : x + 4].tobytes())
        put(root / name / "table.csv", b"1,2\n")
    damaged = root / "a"
    shard = bytearray((damaged / "image/c/0/1").read_bytes())
    shard[5] ^= 1
    put(damaged / "image/c/0/1", bytes(shard))
    put(damaged / "image/c/1/0", (damaged / "image/c/1/0").read_bytes()[:50])
    put(damaged / "image/c/1/1", with_dead_bytes((damaged / "image/c/1/1").read_bytes()))
    put(damaged / "image/c/notes.txt", b"by hand")
    put(damaged / "plain/c/1/1", b"")
    put(damaged / "broken/zarr.json", b'{"zarr_format": 3, "node_type": "array"}')
    put(damaged / "strange/zarr.json", document(codecs=[BYTES, {"name": "unheard_of"}]))
    put(damaged / "strange/c/0/0", b"abc")
    put(damaged / "lost/zarr.json", b"{")
    os.mkfifo(damaged / "pipe")


def proposals() -> AdviseReport:
    """Return proposals, and the members of a trial of one."""
    access = parse_access("1,:,:", (64, 64, 64))
    found = tools.advise((64, 64, 64), "uint16", [access], present=((8, 8, 8), (64, 64, 64)))
    trial = Trial((8, 8, 8), (64, 64, 64), (64, 64, 64), 2.0, (TrialAccess("1,:,:", 0.5, 1.0, 8192.0),))
    return replace(found, proposals=found.proposals[:1], trials=(trial,))


def run_all(root: Path) -> dict[str, Any]:
    """Return the report of each tool, or the text of its error."""
    source, whole, copy = root / "a", root / "whole", root / "copy"
    manifest, job = root / "old.sha256", root / "job.json"
    calls: dict[str, Callable[[], Any]] = {
        "inspect": lambda: tools.inspect(source, threads=1),
        "verify": lambda: tools.verify(source, level="decode", threads=1),
        "verify, first finding": lambda: tools.verify(source, fail_fast=True, threads=1),
        "verify, manifest": lambda: tools.verify(copy, manifest=manifest, threads=1),
        "verify, since": lambda: tools.verify(source, since=manifest, threads=1),
        "verify, against": lambda: tools.verify(source, against=copy, threads=1),
        "compact, dry run": lambda: tools.compact(source, dry_run=True, threads=1),
        "compact, to": lambda: tools.compact(source, to=root / "compacted", threads=1),
        "repair, dry run": lambda: tools.repair(source, dry_run=True, threads=1),
        "repair, to": lambda: tools.repair(source, to=root / "repaired", threads=1),
        "repair, copy": lambda: tools.repair(source, to=root / "restored", copy=copy, threads=1),
        "convert, dry run": lambda: tools.convert(
            source, root / "new", shards=(8, 8), exclude="strange", dry_run=True, threads=1
        ),
        "convert, damaged": lambda: tools.convert(
            source, root / "new", shards=(8, 8), exclude="strange", threads=1
        ),
        "convert, refused": lambda: tools.convert(source, root / "new", shards=(8, 8), threads=1),
        "convert, part": lambda: tools.convert(source, root / "part", exclude=["image", "plain"], threads=1),
        "plan": lambda: tools.plan_convert(copy, root / "by part", job, parts=2, shards=(4, 4), threads=1),
        "run part": lambda: tools.run_part(job, 0, threads=1),
        "status": lambda: tools.status(job),
        "advise": proposals,
        "doctor": lambda: tools.doctor(whole),
    }
    found = {}
    for name, call in calls.items():
        try:
            report = call()
        except (shardcodec.ShardError, OSError, ValueError) as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        found[name] = report.to_json()
        if name != "doctor":
            found[name]["text"] = list(report.lines())
    # what it finds depends on the machine: only the members
    checks = sorted({member for check in found["doctor"]["checks"] for member in check})
    found["doctor"] = found["doctor"] | {"checks": checks}
    text = json.dumps(found).replace(os.path.realpath(root), "ROOT").replace(str(root), "ROOT")
    told: dict[str, Any] = json.loads(text)
    return told


def lines(value: Any, indent: str = "") -> str:
    """Return JSON in which what fits into a line has one line."""
    text = json.dumps(value)
    if len(indent) + len(text) <= 120 or not isinstance(value, dict | list):
        return text
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {lines(one, inner)}" for name, one in value.items()]
    else:
        parts = [lines(one, inner) for one in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    rows = f",\n{inner}".join(parts)
    return f"{ends[0]}\n{inner}{rows}\n{indent}{ends[1]}"


@pytest.fixture(scope="module")
def reports() -> dict[str, Any]:
    return sample()


def sample() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # its length must not depend on the run
        root = Path(folder)
        make(root)
        return run_all(root)


EXPECTED: dict[str, Any] = json.loads(SAMPLES.read_text()) if SAMPLES.exists() else {}


@pytest.mark.parametrize("name", EXPECTED)
def test_report_is_as_it_was(name: str, reports: dict[str, Any]) -> None:
    assert reports[name] == EXPECTED[name]


def test_all_reports_have_a_sample(reports: dict[str, Any]) -> None:
    assert list(reports) == list(EXPECTED)


if __name__ == "__main__":
    SAMPLES.write_text(lines(sample()) + "\n")
    sys.stdout.write(f"{SAMPLES}\n")
