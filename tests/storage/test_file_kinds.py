# test_file_kinds.py - names of shards that are not regular files
# SPDX-License-Identifier: MIT
"""A FIFO, a socket or a device in the place of a shard: every operation refuses it, without waiting and without
replacing it.

Symbolic links are followed; an erase removes the link. The tests make all nodes themselves, in folders of their
own.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import checked, create, files_below, shard_path
from spec_json import CRC, LITTLE
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import ShardFileError, ShardSpec, ShardWriter, native
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import file_systems, lock_reach
from shardcodec.storage.sidecar import Sidecar
from shardcodec.transformer import ShardingStorageTransformer, convert_2022, open_2022

SPEC = ShardSpec((8, 12), (4, 3), "int32", -1, [LITTLE])


def make_socket(path: Path) -> None:
    """Create the node of a socket, which stays after the socket is closed."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{os.open(path.parent, os.O_PATH)}/{path.name}")


def make_device(path: Path, mode: int, device: int) -> None:
    try:
        os.mknod(path, mode | 0o600, device)
    except PermissionError:
        pytest.skip("needs root to make device nodes")


KINDS: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "socket": make_socket,
    "character device": lambda path: make_device(path, stat.S_IFCHR, os.makedev(1, 3)),
    # a number for local use has no driver, so opening the device fails
    "block device": lambda path: make_device(path, stat.S_IFBLK, os.makedev(240, 0)),
}


@pytest.fixture(params=["itself", "through a link"])
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Create an array of one shard, whose name is free or a link to a free name."""
    array = create(tmp_path / "a", shape=(8, 12))
    place = shard_path(array)
    place.parent.mkdir(parents=True)
    if request.param == "through a link":
        place.symlink_to(tmp_path / "target")
    return array


def written_by(way: str, array: Any) -> None:
    value = -1 if way == "erase" else 5
    box: Any = np.s_[1:3, 1:3] if way == "partial" else ...
    array[box] = value


def stream(path: Path) -> None:
    with ShardWriter(path, SPEC) as writer:
        writer.write_chunk((0, 0), np.zeros((4, 3), "int32"))


def values_of(path: str | Path) -> ShardedKeyValueStore:
    return ShardedKeyValueStore(path, grid_shape=(2, 4), index_codecs=[LITTLE, CRC])


OPERATIONS: dict[str, Callable[[Any, Path], Any]] = {
    "read": lambda array, path: array[...],
    "read an element": lambda array, path: array[3, 3],
    "write all": lambda array, path: written_by("all", array),
    "write a part": lambda array, path: written_by("partial", array),
    "erase": lambda array, path: written_by("erase", array),
    "chunk_state": lambda array, path: shardcodec.chunk_state(array),
    "open_shard": lambda array, path: shardcodec.open_shard(path, None, SPEC).state(),
    "change a shard": lambda array, path: shardcodec.open_shard(path, None, SPEC, mode="r+").write_chunks(
        [(0, 0)], np.zeros((1, 4, 3), "int32")
    ),
    "settle": lambda array, path: shardcodec.open_shard(path, None, SPEC, mode="r+").roll_back(),
    "open_array": lambda array, path: shardcodec.open_array(Path(array.store.root))[2:5, 2:5],
    "ShardWriter": lambda array, path: stream(path),
    "ShardWriter.create": lambda array, path: ShardWriter.create(path, SPEC),
    "key-value read": lambda array, path: values_of(path).get(bytes(8)),
    "key-value write": lambda array, path: values_of(path).__setitem__(bytes(8), b"x"),
    "transformer read": lambda array, path: sync(
        ShardingStorageTransformer(array.store, (2, 4)).get("c/0/0", default_buffer_prototype())
    ),
    "transformer write": lambda array, path: sync(
        ShardingStorageTransformer(array.store, (2, 4)).set("c/0/0", cpu.Buffer.from_bytes(bytes(48)))
    ),
    "lock": lambda array, path: native.load().FileLock().try_acquire(str(path)),
}


@pytest.mark.parametrize("locking", ["process", "thread"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_not_regular_are_refused(array: Any, kind: str, locking: str) -> None:
    """The error names the file, and the node stays."""
    path = shard_path(array)
    KINDS[kind](path.resolve())
    before = path.stat()
    for name, operation in OPERATIONS.items():
        with shardcodec.options(locking=locking), pytest.raises(ShardFileError) as caught:
            operation(array, path)
        assert caught.value.kind == kind, name
        assert f"got a {kind}" in str(caught.value), name
        assert str(path) in str(caught.value) or str(path.resolve()) in str(caught.value), name
        assert isinstance(caught.value, OSError)
    assert (path.stat().st_mode, path.stat().st_ino) == (before.st_mode, before.st_ino)


@pytest.mark.parametrize("locking", ["process", "thread"])
def test_folder_in_the_place_of_a_shard_is_refused(array: Any, locking: str) -> None:
    """Through a link to a folder each write raised `LockError` after ``lock_timeout``, and an erase could remove the link."""
    path = shard_path(array)
    path.resolve().mkdir()
    was_link = path.is_symlink()
    with shardcodec.options(locking=locking, lock_timeout=0.1):
        for read in ("read", "read an element", "chunk_state", "open_shard", "open_array", "key-value read"):
            with pytest.raises(ShardFileError, match="got a folder") as caught:
                OPERATIONS[read](array, path)
            assert caught.value.kind == "folder"
        written_by("erase", array)
        for way in ("all", "partial"):
            with pytest.raises((IsADirectoryError, ShardFileError)):
                written_by(way, array)
    assert (path.is_symlink(), path.is_dir()) == (was_link, True)


def test_node_as_metadata_is_refused(array: Any, tmp_path: Path) -> None:
    """`chunk_state` opened the array with zarr, which waited for ever."""
    metadata = Path(array.store.root) / "zarr.json"
    metadata.unlink()
    os.mkfifo(metadata)
    for read in (shardcodec.open_array, shardcodec.chunk_state):
        with pytest.raises(ShardFileError, match="FIFO"):
            read(metadata.parent)


def test_chunk_state_refuses_a_node_as_cache(array: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cache")
    with pytest.raises(ShardFileError, match="FIFO"):
        shardcodec.chunk_state(array, cache=tmp_path / "cache")


@pytest.mark.parametrize("locking", ["process", "thread"])
def test_nodes_as_whole_objects_are_refused(tmp_path: Path, locking: str) -> None:
    """Arrays without shards, and arrays that zarr's own code encodes."""
    array = create(tmp_path / "a", shape=(8, 12), shards=None, chunks=(8, 12))
    path = shard_path(array)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with shardcodec.options(locking=locking):
        for operation in (
            lambda: array[...],
            lambda: written_by("all", array),
            lambda: written_by("erase", array),
        ):
            with pytest.raises(ShardFileError, match="FIFO"):
                operation()
    assert path.is_fifo()


# ---- symbolic links


@pytest.fixture
def linked(tmp_path: Path) -> Any:
    """Create an array of one shard, which is a link to a file in another folder."""
    array = checked(tmp_path / "a", shape=(8, 12))
    array[...] = 1
    shard_path(array).rename(tmp_path / "target")
    shard_path(array).symlink_to(os.path.relpath(tmp_path / "target", shard_path(array).parent))
    return array


@pytest.mark.parametrize("locking", ["process", "thread"])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@pytest.mark.parametrize("way", ["partial", "all"])
def test_write_follows_a_link(linked: Any, tmp_path: Path, way: str, strategy: str, locking: str) -> None:
    shutil.copy(tmp_path / "target", tmp_path / "before")
    with shardcodec.options(write_strategy=strategy, locking=locking):
        written_by(way, linked)
    assert shard_path(linked).is_symlink()
    assert (tmp_path / "target").read_bytes() == shard_path(linked).read_bytes()
    assert (tmp_path / "target").read_bytes() != (tmp_path / "before").read_bytes()
    assert (linked[1:3, 1:3] == 5).all()
    assert linked[7, 11] == (1 if way == "partial" else 5)
    assert shardcodec.chunk_state(linked).exists.all()
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]


def test_stream_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    stream(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert shardcodec.open_shard(tmp_path / "target", None, SPEC).state().sum() == 1


@pytest.mark.parametrize("locking", ["process", "thread"])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_erase_removes_the_link(linked: Any, tmp_path: Path, strategy: str, locking: str) -> None:
    """The target of the link stays, and later writes do not touch it."""
    before = (tmp_path / "target").read_bytes()
    with shardcodec.options(write_strategy=strategy, locking=locking):
        written_by("erase", linked)
        assert not os.path.lexists(shard_path(linked))
        linked[0:2, 0:2] = 7
    assert (tmp_path / "target").read_bytes() == before
    assert not shard_path(linked).is_symlink()
    assert linked[3, 3] == -1 and linked[1, 1] == 7


@pytest.mark.parametrize("locking", ["process", "thread"])
@pytest.mark.parametrize("way", ["partial", "all", "stream", "erase"])
def test_dangling_link_is_refused_by_reads(tmp_path: Path, way: str, locking: str) -> None:
    """An archive of DataLad without its content must not read as fill values. A write replaces it by a file. An erase does nothing."""
    array = create(tmp_path / "a", shape=(8, 12))
    path = shard_path(array)
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "nothing")
    with shardcodec.options(locking=locking):
        for read in ("read", "read an element", "chunk_state", "open_shard", "open_array", "key-value read"):
            with pytest.raises(ShardFileError, match="got a link to a missing file") as caught:
                OPERATIONS[read](array, path)
            assert caught.value.kind == "link to a missing file"
        stream(path) if way == "stream" else written_by(way, array)
    assert path.is_symlink() == (way == "erase")
    assert path.exists() == (way != "erase")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("locking", ["process", "thread"])
def test_loop_of_links_is_an_error(array: Any, locking: str) -> None:
    path = shard_path(array)
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)
    for name, operation in OPERATIONS.items():
        if name in ("erase", "settle"):  # erase removes the name without opening it; settle finds no file
            continue
        with shardcodec.options(locking=locking), pytest.raises(OSError) as caught:
            operation(array, path)
        assert caught.value.errno == errno.ELOOP, name
    assert path.is_symlink()


# ---- null bytes


@pytest.mark.parametrize(
    "use",
    [
        lambda path: shardcodec.open_shard(path, None, SPEC).state(),
        lambda path: shardcodec.open_shard(Path(path).parent, Path(path).name, SPEC).state(),
        shardcodec.open_array,
        lambda path: ShardWriter(path, SPEC),
        lambda path: ShardWriter.create(path, SPEC),
        lambda path: values_of(path).get(bytes(8)),
        lambda path: values_of(path).__setitem__(bytes(8), b"x"),
        lambda path: native.load().FileLock().try_acquire(path),
        lambda path: native.load().roll_back(path, 0),
        lambda path: native.load().direct_append_works(path),
        lambda path: native.load().open_file(path),
        lambda path: native.load().remove_file(path),
        lambda path: native.load().NewFile(path),
        lambda path: native.load().NewFile(path.split("\0")[0], staging=path),
        lambda path: Sidecar(path, "", 1),
        shardcodec.chunk_state,
        lambda path: shardcodec.chunk_state(Path(path).parent, Path(path).name),
        open_2022,
        lambda path: open_2022(Path(path).parent, path=Path(path).name),
        lambda path: convert_2022(path, path.split("\0")[0] + "new"),
    ],
)
def test_path_with_a_null_byte_is_refused(tmp_path: Path, use: Callable[[str], Any]) -> None:
    """C would cut the path at the null byte and open another file."""
    with ShardWriter(tmp_path / "x", SPEC):
        pass
    before = (tmp_path / "x").read_bytes()
    with pytest.raises(ValueError, match="null byte"):
        use(str(tmp_path / "x\0y"))
    assert files_below(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == before


def test_key_with_a_null_byte_is_refused(tmp_path: Path) -> None:
    """Every store refuses such keys, since files cannot have them."""
    for store in (MemoryStore(), LocalStore(tmp_path)):
        with pytest.raises(ValueError, match="null byte"):
            shardcodec.open_shard(store, "x\0y", SPEC)
        with pytest.raises(ValueError, match="null byte"):
            shardcodec.open_array(store, "x\0y")


# ---- file descriptors


@contextmanager
def free_descriptors(n: int) -> Iterator[None]:
    """Limit the process to this number of additional file descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(n):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_file_system_is_looked_up_again_after_descriptors_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix the process took the file system for an unknown one, with neither appends nor updates in place, for ever."""
    monkeypatch.setattr(file_systems, "_names", {})
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        expected = file_systems.name_of(fd)
        file_systems._names.clear()
        with free_descriptors(0):
            file_systems.name_of(fd)
        assert file_systems.name_of(fd) == expected
    finally:
        os.close(fd)


def test_reach_of_locks_is_looked_up_again_after_descriptors_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix the reach of locks on this mount was unknown for ever, and `locking="cluster"` refused to write."""
    monkeypatch.setattr(lock_reach, "_known_scopes", {})
    (tmp_path / "shard").write_bytes(b"")
    lock = native.load().FileLock()
    assert lock.try_acquire(str(tmp_path / "shard")) == "held"
    try:
        with free_descriptors(0):
            lock_reach.check_held(lock, "shard", wants_cluster=False)
        assert not lock_reach._known_scopes
        lock_reach.check_held(lock, "shard", wants_cluster=False)
        (known,) = lock_reach._known_scopes.values()
        assert known.mount is not None
    finally:
        lock.release()


@pytest.mark.parametrize("locking", ["process", "thread"])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_error_without_free_descriptors_names_the_file(tmp_path: Path, strategy: str, locking: str) -> None:
    """The error names the file, whichever call found no free file descriptor."""
    array = create(tmp_path / "a", shape=(8, 12))
    array[...] = 1
    path = shard_path(array)
    stored = path.read_bytes()
    operations = {name: OPERATIONS[name] for name in OPERATIONS if not name.startswith("transformer")}
    for name, operation in operations.items():
        errors: list[OSError] = []
        for n in range(8):
            path.write_bytes(stored)
            with shardcodec.options(locking=locking, write_strategy=strategy, lock_timeout=0.1):
                try:
                    with free_descriptors(n):
                        operation(array, path)
                except OSError as error:
                    errors.append(error)
        for error in errors:
            assert error.errno == errno.EMFILE, (name, error)
            assert os.path.realpath(error.filename or "/").startswith(str(tmp_path / "a")), (name, error)
        # an erase with locks of this process opens no file
        assert errors or (name, locking) == ("erase", "thread"), name
