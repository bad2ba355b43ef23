# test_looks.py - how often a call asks for the state of a file, counted by the kernel
# SPDX-License-Identifier: MIT
"""Each stat may be a round trip on a cluster, so a call asks once for each state that can have changed."""

from __future__ import annotations

import platform
import re
from collections import Counter
from pathlib import Path

import pytest
from system_calls import MARK, calls_of

pytestmark = pytest.mark.slow

KINDS = {
    "forced": r"statx\(.*AT_STATX_FORCE_SYNC",
    "file system": r"f?statfs\d*\(",
    "open": r"fstat\d*\(|newfstatat\(\d+, \"\"|fstatat64\(\d+, \"\"|statx\(\d+, \"\"",
    "name": r"l?stat\d*\(|newfstatat\(|fstatat64\(|statx\(",
}

# Linux gives a mount a number that it never uses again, so the kind of file system is asked once for each mount, not for each file.
HAS_LASTING_MOUNTS = tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 8)


def looks_of(tmp_path: Path, strategy: str, selection: str) -> dict[str, int]:
    """Return the looks of the second of two equal calls, by kind: the first makes what stays open, known or loaded."""
    code = (
        MARK
        + f"""
shardcodec.enable(threads=2, write_strategy={strategy!r})
array = zarr.create_array(os.path.abspath("a"), shape=(96, 32), shards=(32, 32), chunks=(8, 8), dtype="i4", fill_value=-1,
                          compressors=None, chunk_key_encoding={{"name": "v2"}})
array[:32] = np.arange(32 * 32).reshape(32, 32)
for number in (1, 2):
    if number == 2:
        mark()
    {selection}
mark()
"""
    )
    lines = calls_of(tmp_path, code, "%%stat,%%statfs,openat")
    calls = [line.partition(" ")[2].lstrip() for line in lines if "openat(" not in line]
    kinds = [next(kind for kind, form in KINDS.items() if re.match(form, call)) for call in calls]
    return dict(Counter(kinds))


def test_read_looks_when_it_opens_a_shard_and_after_the_last_byte(tmp_path: Path) -> None:
    """The second look proves that no update in place changed the inner chunks, which have no checksums, meanwhile."""
    assert looks_of(tmp_path, "replace", "array[8:16, 8:16]") == {"open": 2}


def test_append_looks_once_at_the_locked_file_and_once_before_it_writes(tmp_path: Path) -> None:
    """The names are resolved. Under the lock, the file and its name are looked at without a cache, and the file that is
    opened for writing must still be in the state that was seen.
    """
    expected = {"name": 2, "forced": 2, "open": 1}
    if not HAS_LASTING_MOUNTS:
        expected["file system"] = 1
    assert looks_of(tmp_path, "append", "array[8:16, 8:16] = number") == expected


def test_update_in_place_looks_also_at_what_it_has_just_changed(tmp_path: Path) -> None:
    """As an append; and at the time that it has set, the names of journal and marker, and the attributes of the new journal."""
    expected = {"name": 4, "forced": 2, "open": 3}
    if not HAS_LASTING_MOUNTS:
        expected["file system"] = 1
    assert looks_of(tmp_path, "in_place", "array[8:16, 8:16] = number") == expected


def test_replacement_looks_also_at_the_new_file_and_the_staging_folder(tmp_path: Path) -> None:
    """The name is looked at again for the attributes that the new file gets, and the old file before the new one takes its place.
    The staging folder and the hierarchy beside it show whether other users can exchange names there.
    """
    expected = {"name": 4, "forced": 2, "open": 3}
    assert looks_of(tmp_path, "replace", "array[8:16, 8:16] = number") == expected


@pytest.mark.parametrize("rows", ["32 * number:32 * number + 32", "32 * number:32 * number + 8"])
def test_new_shard_is_not_looked_at_after_it_was_made(tmp_path: Path, rows: str) -> None:
    """The name is looked at when it is resolved, when it cannot be opened, and when the new file is begun: it may be a link to
    nothing, a folder, or a stale name of a network file system.
    """
    assert looks_of(tmp_path, "replace", f"array[{rows}] = 5") == {"name": 4}
