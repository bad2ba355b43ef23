# test_stale.py - stale file handles of NFS
# SPDX-License-Identifier: MIT
"""On NFS the open handle of a file that was replaced on the server answers ESTALE. The engine then opens the file
again. An open may go by the name that the client knows, to the file that is gone, until some call looks at the name.

The tests have no such server, so they replace calls of the C library by ones that fail a few times, or until that look.
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
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* The call that fails until the name is looked at, for files that a program has told by a look at "/stale/...". */
static int is_known_stale;

static int
fails(const char *call)
{
    const char *stale = getenv("STALE_CALL");

    errno = ESTALE;
    return is_known_stale && stale && !strcmp(stale, call);
}

static void
look(const char *path)
{
    is_known_stale = !strncmp(path, "/stale", 6);
}

/* A program with 64-bit offsets calls the second names. */
#define LOOKS_BY_NAME(name, type) \
    int name(const char *path, struct type *st) { NEXT(name); look(path); return next(path, st); }
#define LOOKS_BELOW(name, type) \
    int name(int fd, const char *path, struct type *st, int flags) { NEXT(name); if (*path) look(path); return next(fd, path, st, flags); }
#define LOOKS_AT_OPEN(name, type) \
    int name(int fd, struct type *st) { NEXT(name); return fails("fstat") ? -1 : next(fd, st); }

LOOKS_BY_NAME(stat, stat)
LOOKS_BY_NAME(stat64, stat64)
LOOKS_BELOW(fstatat, stat)
LOOKS_BELOW(fstatat64, stat64)
LOOKS_AT_OPEN(fstat, stat)
LOOKS_AT_OPEN(fstat64, stat64)

int
statx(int fd, const char *path, int flags, unsigned mask, struct statx *st)
{
    NEXT(statx);
    if (*path)
        look(path);
    return !*path && fails("statx") ? -1 : next(fd, path, flags, mask, st);
}

static ssize_t
maybe(const char *name, int fd, void *buffer, size_t n, off_t offset)
{
    static int left = -1;
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, name);

    if (fails("pread"))
        return -1;
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
from shardcodec.access.compiled_chains import compiled
from shardcodec.native import load

out = np.zeros((4, 4), np.uint8)
cache = IndexCache(1 << 16, max_open_files=4, _grain_ns=0)
try:
    _, done = load().read([(compiled(letters_spec().chain), sys.argv[1], whole((4, 4)))], out, (0, 1), cache=cache.native)
    print(text_of(out), done["opens"])
except OSError as error:
    print(error.strerror)
"""


LOOKS = """
import os, sys
sys.path.insert(0, sys.argv[2])
from helpers import letters_spec
from shardcodec.access.index_scan import scan_files
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import whole
from shardcodec.native import load
from shardcodec.option_sources import current_options
import numpy as np

path, chain = sys.argv[1], compiled(letters_spec().chain)
ways = {
    "read": lambda: load().read([(chain, path, whole((4, 4)))], np.zeros((4, 4), np.uint8), (0, 1))[1]["opens"],
    "scan": lambda: len(scan_files(chain, [path], ["c/0"], current_options())),
    "lock": lambda: load().FileLock().try_acquire(path),
    "open": lambda: os.close(load().open_file(path)),
}
ways["read"]()  # what is loaded at the first use looks at names
os.path.exists("/stale")
print(ways[sys.argv[3]]())
"""


def run_stale(tmp_path: Path, code: str, *arguments: str, **environment: str) -> str:
    """Run a program with the library, a shard and the folder of the tests; return what it prints."""
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler")
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True)
    (tmp_path / "letters").write_bytes(letters())
    program = tmp_path / "program.py"
    program.write_text(code)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "N_STALE": "0"} | environment
    preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD", ""), str(shim)]))
    tests = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, str(program), str(tmp_path / "letters"), tests, *arguments]
    done = subprocess.run(
        command, env=env | {"LD_PRELOAD": preload}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
@pytest.mark.parametrize(
    ("way", "call", "said"),
    [
        ("read", "fstat", "1"),
        ("read", "pread", "2"),
        ("scan", "fstat", "1"),
        ("scan", "pread", "1"),
        ("lock", "statx", "held"),
        ("open", "fstat", "None"),
    ],
)
def test_stale_name_is_looked_at_before_the_next_attempt(
    tmp_path: Path, way: str, call: str, said: str
) -> None:
    """Each attempt went by the cached name of NFS to the file that was gone: 4 of 6 reads failed after 100 attempts in 10 s."""
    assert run_stale(tmp_path, LOOKS, way, STALE_CALL=call) == said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")
@pytest.mark.parametrize(
    ("n_stale", "said"), [(0, f"{LETTERS} 1"), (1, f"{LETTERS} 2"), (3, f"{LETTERS} 4"), (9, None)]
)
def test_stale_handle_is_opened_again(tmp_path: Path, n_stale: int, said: str | None) -> None:
    told = run_stale(tmp_path, PROGRAM, N_STALE=str(n_stale))
    if said is None:
        assert "Stale file handle" in told, "expected the error after the last attempt"
    else:
        assert told == said
