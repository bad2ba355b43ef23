# test_stale.py - stale file handles of NFS
# SPDX-License-Identifier: MIT
"""On NFS the open handle of a file that was replaced on the server answers ESTALE. The engine then opens the file
again.

The tests have no such server, so they replace the C library's `pread` by one that fails a few times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import LETTERS, letters

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static ssize_t
maybe(const char *name, int fd, void *buffer, size_t n, off_t offset)
{
    static int left = -1;
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, name);

    if (left < 0)
        left = atoi(getenv("N_STALE"));
    if (left > 0) {
        left--;
        errno = ESTALE;
        return -1;
    }
    return real(fd, buffer, n, offset);
}

ssize_t pread(int fd, void *buffer, size_t n, off_t offset) { return maybe("pread", fd, buffer, n, offset); }
ssize_t pread64(int fd, void *buffer, size_t n, off_t offset) { return maybe("pread64", fd, buffer, n, offset); }
"""

PROGRAM = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from helpers import letters_spec, text_of
from shardcodec import IndexCache
from shardcodec.access.regions import whole
from shardcodec.access.inner_chunks import compiled
from shardcodec.native import load

out = np.zeros((4, 4), np.uint8)
cache = IndexCache(1 << 16, max_open_files=4, _grain_ns=0)
try:
    _, done = load().read([(compiled(letters_spec().chain), sys.argv[1], whole((4, 4)))], out, (0, 1), cache=cache.native)
    print(text_of(out), done["opens"])
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
@pytest.mark.parametrize(
    ("n_stale", "said"), [(0, f"{LETTERS} 1"), (1, f"{LETTERS} 2"), (3, f"{LETTERS} 4"), (9, None)]
)
def test_stale_handle_is_opened_again(tmp_path: Path, n_stale: int, said: str | None) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True)
    (tmp_path / "letters").write_bytes(letters())
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "N_STALE": str(n_stale)}
    preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD", ""), str(shim)]))
    command = [
        sys.executable,
        str(program),
        str(tmp_path / "letters"),
        str(Path(__file__).resolve().parents[1]),
    ]
    done = subprocess.run(
        command, env=env | {"LD_PRELOAD": preload}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    if said is None:
        assert "Stale file handle" in done.stdout, "expected the error after the last attempt"
    else:
        assert done.stdout.strip() == said
