#!/usr/bin/env python3
"""`verify` of a data set beside `cat`, both as commands that begin with Python or a shell, from a cold and a warm page cache.

The data set has six arrays of float32, half of them without shards: zstd with its checksum, Blosc with crc32c, and raw, with crc32c
inside of shards. 256^3 elements are a unit; the default of 13 units for each array makes 4.2 GiB. Only root can empty the page cache.

    python bench/verify_tree.py --units 13 --rounds 7 --json result.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
import program

SIDE = 256
DROP = Path("/proc/sys/vm/drop_caches")
Json = dict[str, Any]


def make(folder: Path, units: int) -> None:
    """Write the arrays, and consolidate their metadata."""
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

    import shardcodec

    compressors: dict[str, list[Any]] = {
        "zstd": [ZstdCodec(level=1, checksum=True)],
        "blosc": [BloscCodec(cname="lz4"), Crc32cCodec()],
        "raw": [],
    }
    shape, inner = (SIDE * units, SIDE, SIDE), (SIDE // 4,) * 3
    values = np.random.default_rng(1).normal(1000, 30, (SIDE,) * 3).astype("float32")
    with shardcodec.enable(), warnings.catch_warnings(action="ignore"):
        group = zarr.open_group(folder, mode="w")
        for name, codecs in compressors.items():
            for shards in (None, (SIDE,) * 3):
                label = name if shards is None else f"{name} in shards"
                chosen = [*codecs, *([Crc32cCodec()] if shards and not codecs else [])]
                array = group.create_array(
                    label, shape=shape, chunks=inner, shards=shards, dtype="float32", compressors=chosen
                )
                for i in range(units):
                    array[SIDE * i : SIDE * (i + 1)] = np.roll(values, i)
        zarr.consolidate_metadata(group.store)


def timed(command: list[str], *, cold: bool) -> float:
    if cold:
        os.sync()
        DROP.write_text("3")
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)}: exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
        )
    return seconds


def compare(folder: Path, units: int, rounds: int) -> Json:
    """Return the times of both commands, which take turns."""
    tree = folder / "tree.zarr"
    make(tree, units)
    commands = {
        "cat": ["sh", "-c", 'find "$0" -type f -print0 | xargs -0 cat > /dev/null', str(tree)],
        "shardcodec": [sys.executable, "-P", "-m", "shardcodec", "verify", str(tree), "--level", "checksum"],
    }
    rows = []
    for pages in ("cold", "warm"):
        if pages == "cold" and not os.access(DROP, os.W_OK):
            print("left out: cold: only root can empty the page cache", file=sys.stderr)
            continue
        times: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 1):
            for name, command in commands.items():
                seconds = timed(command, cold=pages == "cold")
                if number:  # the first turn may compile modules
                    times[name].append(seconds)
        rows.append(
            {
                "group": "verify",
                "name": pages,
                "peers": {name: {"seconds": one} for name, one in times.items()},
            }
        )
    nbytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    return {"machine": machine.facts(folder), "nbytes": nbytes, "rounds": rounds, "rows": rows}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench/verify_tree.py"
    )
    parser.add_argument("--units", type=program.positive, default=13, help="units of each array (13)")
    parser.add_argument("--rounds", type=program.positive, default=5, help="timed turns of each command (5)")
    parser.add_argument(
        "--folder", type=program.folder, default=None, help="where the arrays are made (a temporary folder)"
    )
    parser.add_argument("--json", type=program.file_to_write, default=None)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-verify-", dir=given.folder) as made:
        document = compare(Path(made), given.units, given.rounds)
    print(f"{document['nbytes'] / 2**30:.2f} GiB")
    for row in document["rows"]:
        cat, ours = (median(row["peers"][name]["seconds"]) for name in ("cat", "shardcodec"))
        print(
            f"{row['name']}: cat {cat:.2f} s, verify {ours:.2f} s; the speed of verify is {cat / ours:.2f} of that of cat"
        )
    if given.json:
        given.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
