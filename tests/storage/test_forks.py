# test_forks.py - stores in forked processes
# SPDX-License-Identifier: MIT
"""A forked child opens the files and clients of its parent's stores again, or says at once that it cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import in_child, quiet
from zarr.codecs.numcodecs import BZ2
from zarr.storage import FsspecStore, LoggingStore, MemoryStore, ObjectStore, ZipStore

import shardcodec
from shardcodec.format import spec as spec_module
from shardcodec.storage import forks, process_locks
from shardcodec.storage.kinds import store_of
from shardcodec.zarr_plugin import setting as setting_module

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")

VALUES = np.arange(64 * 64, dtype="uint16").reshape(64, 64)
LAYOUTS: dict[str, dict[str, Any]] = {
    "shards": {"chunks": (8, 8), "shards": (32, 32)},
    "plain": {"chunks": (8, 8)},
    "left to zarr": {"chunks": (8, 8), "compressors": BZ2()},
}


def make(store: Any, layout: str = "shards") -> None:
    with quiet():
        zarr.create_array(store, data=VALUES, **LAYOUTS[layout])


@pytest.fixture
def enabled() -> Iterator[None]:
    shardcodec.enable()
    yield
    shardcodec.disable()


def zipped(folder: Path, layout: str = "shards") -> Any:
    with ZipStore(folder / "a.zip", mode="w") as store:
        make(store, layout)
    return ZipStore(folder / "a.zip", mode="r")


def silent(store: Any) -> Any:
    """Return a logging store that logs nothing.

    A log handler that writes a file, as pytest's own to ``os.devnull``, holds the lock of Python's buffer of that file during
    the write. Python does not make this lock again in a child, so a child that is forked at this moment waits for ever at its
    first record.
    """
    return LoggingStore(store, log_level="CRITICAL")


def read_boxes(read: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(40):
        i, j = (int(n) for n in random.integers(0, 50, 2))
        assert (read((slice(i, i + 14), slice(j, j + 9))) == VALUES[i : i + 14, j : j + 9]).all()


def read_in_children(read: Any) -> None:
    """Read random boxes in this process and in two children at the same time."""
    read_boxes(read, 8)  # a child must not wait for an import of another thread
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            in_child(lambda: read_boxes(read, seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    read_boxes(read, 9)
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("wrap", [None, silent])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_children_open_a_zip_file_again(layout: str, wrap: Any, enabled: None, tmp_path: Path) -> None:
    """Processes that share the position of an open file read wrong values, also through a wrapper of the store.

    The wrapper logs nothing: a fork beside a thread that writes a log is safe in no Python program.
    """
    store = zipped(tmp_path, layout)
    store = store if wrap is None else wrap(store)
    read_in_children(zarr.open_array(store, mode="r").__getitem__)
    if layout != "left to zarr":
        read_in_children(shardcodec.open_array(store).__getitem__)


def test_child_opens_the_zip_file_of_a_shard_again(tmp_path: Path) -> None:
    store = zipped(tmp_path)
    with process_locks.table().hold(store_of(store).lock_names(["c/0/1"])):
        pass  # a writer of the parent; the handle took the new lock table of a child for a change
    spec = shardcodec.ShardSpec.from_metadata(zarr.open_array(store, mode="r").metadata.to_dict())
    shard = shardcodec.open_shard(store, "c/0/1", spec)

    def read(box: Any) -> Any:
        i, j = box[0].start // 2, box[1].start // 2
        assert (shard.read_region(np.s_[i : i + 5, j : j + 4]) == VALUES[i : i + 5, 32 + j : 36 + j]).all()
        return VALUES[box]

    read_in_children(read)


def test_zip_file_that_is_written_is_refused_in_a_child(enabled: None, tmp_path: Path) -> None:
    store = ZipStore(tmp_path / "a.zip", mode="w")
    make(store)
    array = zarr.open_array(store, mode="r+")
    array[0, 0] = 0

    def work() -> None:
        for use in (lambda: array[0], lambda: array.__setitem__(0, 1)):
            with pytest.raises(RuntimeError, match=r"a\.zip.*forked.*open for writing.*spawn"):
                use()

    in_child(work)
    assert array[0, 1] == 1
    store.close()


def test_zip_file_that_a_child_opens_itself_is_its_own(enabled: None, tmp_path: Path) -> None:
    def work() -> None:
        store = ZipStore(tmp_path / "a.zip", mode="w")
        make(store)
        array = zarr.open_array(store, mode="r+")
        array[:4] = 5
        assert (array[3] == 5).all()
        store.close()

    forks.note(MemoryStore())
    in_child(work)


@pytest.mark.slow
def test_child_writes_although_another_thread_named_the_process_at_the_fork(tmp_path: Path) -> None:
    """Temporary names contain facts of the process, which its first write determines under a mutex; strace makes this slow.

    A child that was forked meanwhile waited for ever at its own first write.
    """
    strace = shutil.which("strace") or pytest.skip("strace is not installed")
    log = tmp_path / "log"
    code = f"""
import sys, threading, time
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
from helpers import create, in_child

array = create(Path({str(tmp_path / "a")!r}))
array[...] = 1
thread = threading.Thread(target=array.__setitem__, args=((0, 0), 2), daemon=True)
thread.start()
while thread.is_alive() and "ns/pid" not in Path({str(log)!r}).read_text():
    time.sleep(0.01)
assert thread.is_alive()
in_child(lambda: array.__setitem__((9, 0), 3))
thread.join()
assert (array[0, 0], array[9, 0]) == (2, 3)
"""
    inject = ["-f", "-o", str(log), "-P", "/proc/self/ns/pid", "-e", "trace=readlink,readlinkat"]
    inject += ["-e", "inject=readlink,readlinkat:delay_enter=1000000:when=1"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [strace, *inject, sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("strace has no permission to delay calls here")
    assert done.returncode == 0, done.stderr


def test_child_computes_a_property_that_another_thread_computed_at_the_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11 holds a lock of the class while a thread computes a cached property."""
    specs = [shardcodec.ShardSpec((8, 8), (4, 4), "uint16", 0) for _ in range(2)]
    entered, leave = threading.Event(), threading.Event()
    assign = spec_module.assign

    def slow(spec: Any, **members: Any) -> None:
        entered.set()
        leave.wait()
        assign(spec, **members)

    monkeypatch.setattr(spec_module, "assign", slow)
    thread = threading.Thread(target=lambda: specs[0].chain)
    thread.start()
    assert entered.wait(60)
    monkeypatch.undo()
    try:
        in_child(lambda: specs[1].chain)
    finally:
        leave.set()
        thread.join()


def test_child_enables_although_another_thread_did_at_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of zarr's configuration was held for ever in the child."""
    entered = threading.Event()
    lock = setting_module.config.config_lock

    def slow(values: dict[str, Any]) -> Any:
        with lock:
            entered.set()
            time.sleep(0.2)
        return contextlib.nullcontext()

    with monkeypatch.context() as patched:
        patched.setattr(setting_module, "config", SimpleNamespace(set=slow, get=setting_module.config.get))
        thread = threading.Thread(target=shardcodec.enable)
        thread.start()
        assert entered.wait(60)

        def work() -> None:
            patched.undo()
            shardcodec.enable()

        in_child(work)
        thread.join()
        shardcodec.disable()


def object_store(prefix: Path) -> Any:
    obstore = pytest.importorskip("obstore.store")
    return ObjectStore(obstore.LocalStore(prefix=str(prefix)))


def test_object_store_is_refused_in_a_child(enabled: None, tmp_path: Path) -> None:
    """obstore waits for ever for threads that exist only in the parent, also with a new client."""
    make(tmp_path)
    arrays = [
        shardcodec.open_array(object_store(tmp_path)),
        zarr.open_array(object_store(tmp_path), mode="r+"),
    ]
    boxes = [array[:2, :3].tolist() for array in arrays]
    assert boxes == [VALUES[:2, :3].tolist()] * 2

    def work() -> None:
        for use in (
            lambda: arrays[0][0],
            lambda: arrays[1][0],
            lambda: arrays[1].__setitem__(0, 1),
            lambda: shardcodec.open_array(object_store(tmp_path)),
        ):
            with pytest.raises(RuntimeError, match=r"forked.*obstore.*spawn"):
                use()

    in_child(work)
    assert arrays[1][0, 1] == 1


def test_object_store_that_no_parent_has_used_works_in_a_child(tmp_path: Path) -> None:
    make(tmp_path)
    code = f"""
import os, sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
from helpers import in_child
import zarr, shardcodec, obstore
from obstore.store import LocalStore
from zarr.storage import ObjectStore

def work():
    store = ObjectStore(LocalStore(prefix={str(tmp_path)!r}))
    assert shardcodec.open_array(store)[3, 4] == 3 * 64 + 4

in_child(work)
"""
    from helpers import run_checked

    pytest.importorskip("obstore")
    run_checked(code)


def test_icechunk_is_refused_in_a_child(enabled: None) -> None:
    icechunk = pytest.importorskip("icechunk")
    session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
    make(session.store)
    array = shardcodec.open_array(session.store)
    assert array[2, 3] == 131

    def work() -> None:
        with pytest.raises(RuntimeError, match=r"forked.*icechunk.*spawn"):
            array[2, 3]

    in_child(work)


def test_child_makes_clients_of_fsspec_again(tmp_path: Path) -> None:
    pytest.importorskip("fsspec.asyn", reason="fsspec is not installed")
    from fsspec_clients import Client

    make(tmp_path)
    store = FsspecStore(Client(str(tmp_path), asynchronous=True), read_only=True, path="")
    array = shardcodec.open_array(store)
    read_boxes(array.__getitem__, 1)
    in_child(lambda: read_boxes(array.__getitem__, 2))
