# crash_checks.py - is what a crash has left old or new, for every reader, and can work go on?
# SPDX-License-Identifier: MIT
"""`Expected`: what each step of an operation leaves. `Checker`: compares a state with the steps around it.

Shards are read by shardcodec and by the twin (tests/reference.py), which follows the rules of the format alone, as stock zarr does. Beside
an undo journal the twin reads only what `Shard.roll_back` has restored. Of one in 16 different states a copy is verified and written to.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
import reference
from faults.crash_model import Record, State
from helpers import bytes_of_files

import shardcodec
from shardcodec.tools import verify

__all__ = ["Checker", "Disk", "Expected", "Layout", "expected_of", "is_temporary", "layouts_of"]

JOURNAL = ".shardcodec-undo-"
CONTINUED = 16  # one of so many states is also verified and written to

UNREADABLE = b"unreadable"
Values = bytes | None  # of a shard: its elements; of another file: its bytes; None: there is none
Expected = Mapping[str, Values]


def _fast_crc32c(data: bytes) -> int:
    return int(google_crc32c.value(bytes(data)))


assert _fast_crc32c(b"shardcodec") == reference.crc32c(b"shardcodec")
reference.crc32c = _fast_crc32c  # the checksum of the twin takes most of the time


class Layout(NamedTuple):
    """How the shards of one array are read."""

    spec: shardcodec.ShardSpec
    twin: reference.ShardMeta

    def twins_view(self, blob: bytes) -> bytes:
        try:
            return reference.decode_shard(blob, self.twin).tobytes()
        except (ValueError, RuntimeError):  # RuntimeError: of numcodecs
            return UNREADABLE

    def view(self, path: Path) -> bytes:
        try:
            with shardcodec.open_shard(str(path), None, self.spec) as shard:
                return bytes(shard.read_region(...).tobytes())
        except ValueError:
            return UNREADABLE


def layouts_of(folder: Path) -> dict[str, Layout]:
    """Return the layouts of the sharded arrays below a folder, by the path of the array."""
    found = {}
    for document in folder.rglob("zarr.json"):
        metadata = json.loads(document.read_text())
        if metadata["node_type"] == "array" and metadata["codecs"][0]["name"] == "sharding_indexed":
            shape = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
            dtype = np.dtype(metadata["data_type"])
            twin = reference.ShardMeta(
                metadata["codecs"][0]["configuration"], shape, dtype, metadata["fill_value"]
            )
            spec = shardcodec.ShardSpec.from_metadata(metadata)
            found[str(document.parent.relative_to(folder))] = Layout(spec, twin)
    return found


def is_temporary(path: str) -> bool:
    """True for names that are no keys: of staging folders, journals, and files that are being written, also by zarr."""
    return path.endswith(".partial") or any(part.startswith(".") for part in Path(path).parts)


def _layout_of(path: str, layouts: Mapping[str, Layout]) -> Layout | None:
    array, between, _ = path.partition("/c/")
    return layouts.get(array) if between else None


def expected_of(folder: Path, layouts: Mapping[str, Layout]) -> Expected:
    """Return what is below a folder when no writer is at work: all readers agree, but where a journal waits."""
    expected = {}
    for path, blob in bytes_of_files(folder).items():
        layout = _layout_of(path, layouts)
        if is_temporary(path):
            continue
        expected[path] = layout.view(folder / path) if layout else blob
        if layout and (folder / path).stat().st_nlink == 1:
            assert layout.twins_view(blob) == expected[path]
    return expected


class Disk:
    """A folder in which states are laid out, with the inodes of the record where they still exist: a journal names one."""

    def __init__(self, folder: Path, record: Record, files: Mapping[int, Path]) -> None:
        self.tree, self._vault = folder / "tree", folder / "vault"
        self._vault.mkdir(parents=True)
        for number, content in record.contents.items():
            place = self._vault / str(number)
            if number in files:
                files[number].rename(place)
            elif content is not None:
                place.touch()
        self._placed: dict[int, Path] = {}
        self._time = os.stat(folder).st_mtime_ns - 10**12

    def lay_out(self, state: State) -> None:
        for number, path in self._placed.items():
            if path.exists():
                os.rename(path, self._vault / str(number))
            else:  # a journal that was rolled back
                (self._vault / str(number)).touch()
        shutil.rmtree(self.tree, ignore_errors=True)
        self._placed = {}
        folders = {os.path.dirname(path) for path in state.paths} | {""}
        for folder in folders:
            os.makedirs(self.tree / folder, exist_ok=True)
        for path, number in sorted(state.paths.items(), key=lambda item: is_temporary(item[0])):
            place = self.tree / path
            if number in self._placed:
                os.link(self._placed[number], place)
                continue
            self._write(self._vault / str(number), state.contents[number])
            os.rename(self._vault / str(number), place)
            self._placed[number] = place

    def _write(self, path: Path, content: bytes) -> None:
        """Each state gets another time: a reader takes two files with equal inodes, sizes and times for one."""
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        os.write(fd, content)
        self._time += 1
        os.utime(fd, ns=(self._time, self._time))
        os.close(fd)


class Checker:
    """Checks the states of one operation; each different one once.

    Parameters
    ----------
    loose :
        True for files that are not whole before the step that makes them has returned.
    look :
        One more check of the folder.
    write :
        Write to a copy of the folder as the next writer does.
    """

    def __init__(
        self,
        disk: Disk,
        layouts: Mapping[str, Layout],
        steps: list[Expected],
        loose: Callable[[str], bool],
        look: Callable[[Path], object],
        write: Callable[[Path], None],
    ) -> None:
        self._disk, self._layouts, self._steps, self._write = disk, layouts, steps, write
        self._loose, self._look = loose, look
        self._known: dict[bytes, str] = {}
        self.n_different = 0

    def problem(self, state: State, n_acknowledged: int) -> str:
        """Return what is wrong with a state after this number of steps has returned; "" if nothing is."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(b"%d" % n_acknowledged)
        for path, number in sorted(state.paths.items()):
            digest.update(f"\0{path}\0{number}\0{len(state.contents[number])}\0".encode())
            digest.update(state.contents[number])
        key = digest.digest()
        if key not in self._known:
            self.n_different += 1
            try:
                self._check(state, n_acknowledged, key[0] % CONTINUED == 0)
                self._known[key] = ""
            except Exception as error:
                self._known[key] = f"{type(error).__name__}: {error}"
        return self._known[key]

    def _check(self, state: State, n: int, goes_on: bool) -> None:
        allowed = self._steps[n : n + 2]
        for path in {path for step in allowed for path in step}:
            if _layout_of(path, self._layouts) is None:
                number = state.paths.get(path)
                self._compare(path, None if number is None else state.contents[number], allowed, "is")
        for path in state.paths:
            known = is_temporary(path) or any(path in step for step in allowed)
            assert known, f"{path} has appeared"
        self._disk.lay_out(state)
        self._look(self._disk.tree)
        shards = [
            path for path in {path for step in allowed for path in step} if _layout_of(path, self._layouts)
        ]
        views = {path: self._shards_view(path) for path in shards}
        for path in shards:
            self._compare(path, views[path], allowed, "is read")
            self._settle(path)
            self._compare(path, self._twins_view(path), [{path: views[path]}], "is for the twin")
        documents = [f"{array}/zarr.json" for array in self._layouts]
        are_whole = all(
            state.contents.get(state.paths.get(path, -1)) in [step[path] for step in allowed if path in step]
            for path in documents
        )
        if goes_on and are_whole and UNREADABLE not in views.values():
            self._go_on()

    def _compare(self, path: str, value: Values, allowed: list[Expected], what: str) -> None:
        values = [step.get(path) for step in allowed]
        if value in values or (len(set(values)) > 1 and self._loose(path)):
            return
        size = (
            "missing"
            if value is None
            else "unreadable"
            if value == UNREADABLE
            else f"{len(value)} bytes, not old or new"
        )
        raise AssertionError(f"{path} {what} {size}")

    def _shards_view(self, path: str) -> Values:
        layout = self._layouts[path.partition("/c/")[0]]
        place = self._disk.tree / path
        return layout.view(place) if place.exists() else None

    def _twins_view(self, path: str) -> Values:
        layout = self._layouts[path.partition("/c/")[0]]
        place = self._disk.tree / path
        return layout.twins_view(place.read_bytes()) if place.exists() else None

    def _settle(self, path: str) -> None:
        """Roll back, as the next writer does first."""
        place = self._disk.tree / path
        if place.exists() and any(name.startswith(JOURNAL) for name in os.listdir(place.parent)):
            layout = self._layouts[path.partition("/c/")[0]]
            with shardcodec.open_shard(str(place), None, layout.spec, mode="r+") as shard:
                shard.roll_back()
            names = [
                p.name for p in place.parent.iterdir() if p.name == f"{JOURNAL}{place.stat().st_ino}.shard"
            ]
            assert not names, f"{names[0]} stays after the roll back"

    def _go_on(self) -> None:
        copy = self._disk.tree.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._disk.tree, copy)
        for array in self._layouts:
            report = verify(copy / array, level="decode")
            assert all(one.n_damaged == 0 for one in report.arrays), report
        self._write(copy)
