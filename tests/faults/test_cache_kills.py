# test_cache_kills.py - processes that fill one cache on the local disk are killed, while objects change
# SPDX-License-Identifier: MIT
"""Two readers share a folder with a small bound and are killed at random; a writer replaces the objects meanwhile.

Each element has the number of the object's state. A reader checks that all elements of one object are of one state, which is not older
than the last one that the writer had stored before the read began.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cached_stores import DATA, LAYOUTS, create_in, files_of
from helpers import python_environment
from servers.http_objects import serving

TESTS = Path(__file__).resolve().parents[1]
N_READERS = 2

READER = """
import random, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, shardcodec
from pathlib import Path
from cached_stores import DATA, bucket_of
from types import SimpleNamespace
from shardcodec.options import override

url, folder, bound, seed = sys.argv[2:6]
acknowledged = Path(folder).with_name("acknowledged")
random.seed(int(seed))
with override({"cache_dir": folder, "cache_dir_bytes": int(bound)}):
    array = shardcodec.open_array(bucket_of(SimpleNamespace(url=url)), "a")
    while True:
        least = int(acknowledged.read_text())
        starts = [random.randrange(n) for n in DATA.shape]
        box = tuple(slice(a, random.randint(a + 1, n)) for a, n in zip(starts, DATA.shape))
        states = array[box].astype(int) - DATA[box]
        for i in (slice(0, max(0, 12 - starts[0])), slice(max(0, 12 - starts[0]), None)):
            for j in (slice(0, max(0, 20 - starts[1])), slice(max(0, 20 - starts[1]), None)):
                for k in (slice(0, max(0, 20 - starts[2])), slice(max(0, 20 - starts[2]), None)):
                    part = states[i, j, k]
                    if part.size and (part.min() != part.max() or part.min() < least):
                        print("wrong", box, part.min(), part.max(), least, flush=True)
        counted = shardcodec.stats()
        print("read", counted["disk_hits"], counted["disk_errors"], flush=True)
        shardcodec.stats.reset()
"""


@pytest.mark.parametrize("layout", ["zstd", "raw", "plain"])
def test_killed_processes_leave_no_wrong_bytes(layout: str, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    seconds = 6.0
    folder, acknowledged, bound = tmp_path / "cache", tmp_path / "acknowledged", 80_000
    acknowledged.write_text("0")
    assert LAYOUTS[layout].get("shards", LAYOUTS[layout]["chunks"]) == (12, 20, 20)
    lines: list[str] = []
    n_kills = 0
    with serving() as server:
        create_in(server, layout)

        def start() -> subprocess.Popen[str]:
            numbers = str(bound), str(random.randrange(2**30))
            command = [sys.executable, "-P", "-c", READER, str(TESTS), server.url, str(folder), *numbers]
            return subprocess.Popen(command, env=python_environment(), stdout=subprocess.PIPE, text=True)

        readers = [start() for _ in range(N_READERS)]
        end, version = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < end or not n_kills:
                time.sleep(random.uniform(0.05, 0.4))
                if random.random() < 0.3:
                    version += 1
                    create_in(server, layout, DATA + np.uint16(version))
                    part = acknowledged.with_suffix(".part")
                    part.write_text(str(version))
                    part.rename(acknowledged)
                i = random.randrange(N_READERS)
                if random.random() < 0.15:
                    readers[i].send_signal(signal.SIGKILL)
                    lines += readers[i].communicate()[0].splitlines()
                    n_kills += 1
                    readers[i] = start()
        finally:
            for reader in readers:
                reader.kill()
                lines += reader.communicate()[0].splitlines()
    wrong = [line for line in lines if line.startswith("wrong")]
    assert not wrong, wrong[:5]
    reads = [line.split() for line in lines if line.startswith("read") and len(line.split()) == 3]
    assert n_kills > 0
    assert len(reads) < 30 or sum(int(hits) for _, hits, _ in reads) > 0, "on a busy machine few reads end"
    assert sum(file.stat().st_blocks * 512 for file in files_of(folder)) <= bound
    print(
        n_kills,
        "kills",
        version,
        "states",
        len(reads),
        "reads",
        sum(int(hits) for _, hits, _ in reads),
        "hits",
    )
