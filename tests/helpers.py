# helpers.py - shards assembled by hand, arrays on every store, and stores that record requests
# SPDX-License-Identifier: MIT
"""Shared by the tests of the engine and of the zarr plug-in.

A shard of letters is easier to check than one of numbers: `letters` puts four inner chunks of 2 x 2 bytes, named
"zero", "one.", "two." and "three", into a shard of 4 x 4.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import importlib
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from reference import crc32c
from spec_json import CRC, LITTLE
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.registry import get_codec_class
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import shardcodec
from shardcodec.format.array_document import parse_document, spec_of
from shardcodec.storage import budget, indexes

ABSENT = 2**64 - 1
# Tests set switches as they set options; in programs only environment variables set them.
options_module: Any = importlib.import_module("shardcodec.options")
options_module._settable.update(options_module.SWITCHES)
WORDS = (b"zero", b"one.", b"two.", b"tres")
RAW = [{"name": "bytes"}]
ZARR_IS_31 = zarr.__version__.startswith("3.1.")

Entry = tuple[int, int]


# ---- shards assembled by hand


def index_bytes(entries: Sequence[Entry], *, crc: bool = True) -> bytes:
    """Return an index as it is stored: little-endian pairs, by default with a checksum."""
    stored = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return stored + struct.pack("<I", crc32c(stored)) if crc else stored


def assemble(body: bytes, entries: Sequence[Entry], *, at_start: bool = False, crc: bool = True) -> bytes:
    """Return a shard of these bytes and this index. The offsets are not checked."""
    index = index_bytes(entries, crc=crc)
    return index + body if at_start else body + index


def entries_of(blob: bytes, n: int, *, at_start: bool = False, crc: bool = True) -> list[Entry]:
    """Return the index of a shard of n inner chunks, without checks."""
    nbytes = 16 * n + 4 * crc
    stored = blob[:nbytes] if at_start else blob[len(blob) - nbytes :]
    numbers = struct.unpack(f"<{2 * n}Q", stored[: 16 * n])
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def chunk_bytes(blob: bytes, entry: Entry) -> bytes:
    offset, nbytes = entry
    assert offset + nbytes <= len(blob)
    return blob[offset : offset + nbytes]


def letters_spec(*, at_start: bool = False, crc: bool = True, codecs: Any = RAW, fill: int = 46) -> Any:
    """Return a spec for shards of letters. "." is the fill value."""
    index_codecs = [LITTLE, CRC] if crc else [LITTLE]
    return shardcodec.ShardSpec(
        (4, 4), (2, 2), "uint8", fill, codecs, index_codecs, "start" if at_start else "end"
    )


def letters_index_nbytes(*, crc: bool = True) -> int:
    return 64 + 4 * crc


def letters(*, at_start: bool = False, crc: bool = True, checksums: bool = False) -> bytes:
    """Return a shard of the four words, one after the other."""
    stored = [word + struct.pack("<I", crc32c(word)) if checksums else word for word in WORDS]
    first = letters_index_nbytes(crc=crc) if at_start else 0
    entries = []
    for blob in stored:
        entries.append((first, len(blob)))
        first += len(blob)
    return assemble(b"".join(stored), entries, at_start=at_start, crc=crc)


def text_of(array: np.ndarray[Any, Any]) -> str:
    """Return the inner chunks of an array of 4 x 4 letters as words."""
    chunks = [array[r : r + 2, c : c + 2].tobytes().decode() for r in (0, 2) for c in (0, 2)]
    return " ".join(chunks)


LETTERS = " ".join(word.decode() for word in WORDS)


def number_spec(codecs: Any, *, at_start: bool = False) -> shardcodec.ShardSpec:
    """Return the spec for a shard of `numbers`: 4 x 6 inner chunks of 8 x 8."""
    location: Any = "start" if at_start else "end"
    return shardcodec.ShardSpec((32, 48), (8, 8), "uint16", 0, codecs, index_location=location)


def numbers() -> np.ndarray[Any, Any]:
    """Return 32 x 48 random numbers, always the same."""
    return np.random.default_rng(5).integers(1, 50, (32, 48), dtype=np.uint16)


def random_array(shape: Sequence[int], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return elements of any bits except NaN, in C order."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(tuple(shape)).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, tuple(shape)).astype(dtype)
    return rng.integers(1, 100, tuple(shape)).astype(dtype)


def bits(array: Any) -> bytes:
    """Return the bytes of an array's elements in C order."""
    return np.asarray(array).tobytes()


# ---- arrays


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore zarr's warnings of data types without a specification and of sharding beside other codecs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def switched(**switches: Any) -> Iterator[None]:
    """Set switches by their environment variables, which are read once outside of tests."""
    variables = {options_module.variable_of(name): str(value) for name, value in switches.items()}
    try:
        with mock.patch.dict(os.environ, variables):
            options_module.environment.cache_clear()
            yield
    finally:
        options_module.environment.cache_clear()


def on_pipeline(array: Any, **options: Any) -> Any:
    """Return a handle on an array whose accesses all go through zarr to shardcodec's pipeline, as with `enable`."""
    return zarr.Array(shardcodec.attach(array.async_array, **options))


def create(store: Any, *, own: bool = False, **arguments: Any) -> Any:
    """Create a zarr array with shardcodec's pipeline, which never falls back (`strict`), or with zarr's for `own`.

    By default it has shards of 8 x 12 with inner chunks of 4 x 3, uncompressed.
    """
    defaults: dict[str, Any] = {
        "shape": (16, 24),
        "shards": (8, 12),
        "chunks": (4, 3),
        "dtype": "int32",
        "fill_value": -1,
        "compressors": None,
    }
    with quiet():
        array = zarr.create_array(store, **(defaults | arguments))
    return array if own else on_pipeline(array, strict=True)


def checked(store: Any, *, at_start: bool = False, **arguments: Any) -> Any:
    """Create an array of 16 x 24 in shards of 8 x 12, whose inner chunks have zstd and a checksum. It is strict."""
    codec = ShardingCodec(
        chunk_shape=(4, 3),
        codecs=[BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
        index_location="start" if at_start else "end",
    )
    defaults: dict[str, Any] = {"shape": (16, 24), "chunks": (8, 12), "dtype": "int32", "fill_value": -1}
    with quiet():
        array = zarr.create_array(
            store, serializer=codec, compressors=None, filters=None, **(defaults | arguments)
        )
    return on_pipeline(array, strict=True)


def zarrs_view(array: Any) -> Any:
    """Open the same array with zarr's own pipeline, without any code of shardcodec."""
    with quiet():
        # "r" needs a read-only copy of the store, which a zip file cannot make
        return zarr.open_array(array.store, path=array.path, mode="r" if array.store.read_only else "r+")


def ours(store: Any, *, mode: str = "r+", strict: bool = True, **options: Any) -> Any:
    """Open an existing array with shardcodec's pipeline."""
    with quiet():
        return on_pipeline(zarr.open_array(store, mode=mode), strict=strict, **options)


def stored_values(array: Any) -> np.ndarray[Any, Any]:
    """Return the elements that zarr's own pipeline reads."""
    values: np.ndarray[Any, Any] = zarrs_view(array)[...]
    return values


def tensorstores_view(folder: Path) -> Any:
    """Return what TensorStore reads, or None if it is not installed."""
    try:
        import tensorstore
    except ImportError:
        return None
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, read=True, open=True).result().read().result()


def shard_path(array: Any, key: str = "c/0/0") -> Path:
    """Return the file of a shard of an array in a LocalStore."""
    return Path(array.store.root) / array.path / key


@contextmanager
def small_disk(folder: Path, nbytes: int) -> Iterator[None]:
    """Mount a file system of this size at the folder; skip the test if mounting is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def files_below(folder: Path) -> list[str]:
    """Return the relative names of all files in a folder, hidden ones too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def bytes_of_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder by their relative names."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- stores


# Each one uses another code path to read, write and update.
KINDS_OF_STORE = ("local", "memory", "other", "conditional")


def store_of(kind: str, folder: Path) -> Any:
    """Create an empty store of one of these kinds. Skip the test if the store is not installed."""
    if kind == "conditional":
        return memory_object_store()
    return {"local": lambda: LocalStore(folder), "memory": MemoryStore, "other": OtherMemoryStore}[kind]()


def memory_object_store() -> Any:
    """Create an ObjectStore in memory, with conditional puts. Skip the test if obstore is not installed."""
    obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
    return zarr.storage.ObjectStore(obstore.MemoryStore())


def put_object(store: Any, key: str, data: bytes) -> None:
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


def object_of(store: Any, key: str) -> bytes | None:
    """Return the bytes of an object, or None if it is missing."""
    found = sync(store.get(key, default_buffer_prototype()))
    return None if found is None else found.to_bytes()


def keys_of(store: Any) -> list[str]:
    """Return the keys of all objects in a store."""

    async def listed() -> list[str]:
        return sorted([key async for key in store.list()])

    keys: list[str] = sync(listed())
    return keys


class OtherMemoryStore(MemoryStore):
    """A subclass may override any method, so it counts as another kind of store."""


class ForbiddingStore(WrapperStore[Any]):
    """A bucket that may be read and not listed: it forbids to read what does not exist (403), with an error of its client."""

    @staticmethod
    def error(what: str) -> Exception:
        kind = type("PermissionDeniedError", (Exception,), {"__module__": "obstore.exceptions"})
        return kind(f"403 Forbidden: {what}")

    async def get(self, key: str, *args: Any, **keywords: Any) -> Any:
        found = await super().get(key, *args, **keywords)
        if found is None:
            raise self.error(key)
        return found

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        raise self.error(prefix)
        yield prefix

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        raise self.error(prefix)
        yield prefix


@contextmanager
def caches_of(grain_ns: int) -> Iterator[None]:
    """Let all calls share new caches, for which a file counts as stable when it is so old."""

    def shared(max_bytes: int, max_open_files: int, max_chunk_bytes: int) -> shardcodec.IndexCache:
        bounds: dict[str, int] = {"max_open_files": max_open_files, "max_chunk_bytes": max_chunk_bytes}
        return shardcodec.IndexCache(max_bytes, **bounds, _grain_ns=grain_ns)  # type: ignore[arg-type]

    before = indexes._shared
    indexes._shared = functools.lru_cache(maxsize=indexes.MAX_SHARED)(shared)
    try:
        yield
    finally:
        indexes._shared = before


@contextmanager
def gap_of(nbytes: int) -> Iterator[None]:
    """Set the value of a request to remote stores in bytes. With 0, small shards are read like large ones."""
    with mock.patch.object(budget, "coalescing", return_value=(nbytes, 16 << 20)):
        yield


@contextmanager
def merging(gap_nbytes: int, nbytes: int) -> Iterator[None]:
    """Set zarr's largest gap and largest merged range. Before 3.3 zarr had no such settings: then set what stands for them."""
    names = "array.sharding_coalesce_max_gap_bytes", "array.sharding_coalesce_max_bytes"
    if zarr.config.get(names[0], None) is not None:
        with zarr.config.set(dict(zip(names, (gap_nbytes, nbytes), strict=True))):
            yield
    else:
        with mock.patch.object(budget, "coalescing", return_value=(gap_nbytes, nbytes)):
            yield


class RecordingStore(WrapperStore):  # type: ignore[type-arg]
    """A store that records each call to its base store: ("get", requests), ("set", key) or ("delete", key).

    A request is (key, "all" | "last n" | (start, end)). `get_partial_values` is one call with several requests.
    """

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, Any]] = []

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        self.calls.append(("get", [(key, wanted_of(byte_range))]))
        return await super().get(key, prototype, byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> Any:
        key_ranges = list(key_ranges)
        self.calls.append(("get", [(key, wanted_of(byte_range)) for key, byte_range in key_ranges]))
        return await super().get_partial_values(prototype, key_ranges)

    async def set(self, key: str, value: Any) -> None:
        self.calls.append(("set", key))
        await super().set(key, value)

    async def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        await super().delete(key)

    def forget(self) -> None:
        self.calls.clear()

    @property
    def requests(self) -> list[tuple[str, Any]]:
        return [request for call, requests in self.calls if call == "get" for request in requests]

    @property
    def written(self) -> list[str]:
        return [key for call, key in self.calls if call == "set"]

    def chunk_requests(self) -> list[tuple[str, Any]]:
        return [request for request in self.requests if not request[0].endswith("zarr.json")]


def wanted_of(byte_range: Any) -> Any:
    if isinstance(byte_range, SuffixByteRequest):
        return f"last {byte_range.suffix}"
    return (byte_range.start, byte_range.end) if isinstance(byte_range, RangeByteRequest) else "all"


# ---- processes


def python_environment(**environment: str) -> dict[str, str]:
    """Return the environment for another interpreter, which imports the same package."""
    paths = [str(Path(shardcodec.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}


def without_end(program: Path, *arguments: object) -> list[str]:
    """Return the command that runs a program with icechunk and leaves before Python ends.

    Then a thread of icechunk may still give objects back, without the GIL (pyo3-async-runtimes): one of 100 to 300 runs on a busy
    machine ended with a segmentation fault, after all its work.
    """
    code = "import os, runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__'); sys.stdout.flush(); os._exit(0)"
    return [sys.executable, "-P", "-c", code, str(program), *map(str, arguments)]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in another interpreter."""
    env = python_environment(**environment)
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def run_checked(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in another interpreter. The test fails if the code does."""
    done = run_python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done


def open_and_sum(data: bytes, variable: str) -> tuple[list[bool], float]:
    """Unpickle a data set of xarray and sum a variable; also return whether each of its arrays is native."""
    data_set = pickle.loads(data)
    total = float(data_set[variable].sum())
    return [array.is_native for array in shardcodec.open_arrays() if array.name.endswith(variable)], total


def write_and_read_row(array: Any, row: int) -> bytes:
    """Write and read a row. It is defined here since a spawned process imports it by name."""
    array[row] = row
    return bits(array[row])


def read_row(array: Any, row: int) -> bytes:
    """Read a row. It is defined here for the same reason."""
    return bits(array[row])


def python_calls(work: Callable[[], Any]) -> list[str]:
    """Return the functions of Python that some work calls, with their modules, after it has run three times."""
    for _ in range(3):
        work()
    called: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called[1:]  # without `work`


def hide_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package ml_dtypes be missing, also for documents that were parsed with it."""
    for parse in (parse_document, spec_of):
        parse.cache_clear()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)


def in_child(work: Any) -> None:
    """Run a function in a forked child. The test fails if the child raises or hangs."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside threads, which the tests intend
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read_end)
            faulthandler.register(signal.SIGUSR1, file=write_end)
            work()
            status = 0
        except BaseException as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(status)
    os.close(write_end)
    told = _wait_for(pid, read_end)
    assert told == "", told


def as_user(work: Callable[[], None]) -> None:
    """Call a function in a child that permissions bind."""

    def bound() -> None:
        if os.geteuid() == 0:
            drop_capabilities()
        work()

    in_child(bound)


def drop_capabilities() -> None:
    """Drop the capability by which root may read every file."""
    header = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capset")


def _wait_for(pid: int, read_end: int, seconds: float = 60.0) -> str:
    """Return the message of a child before its end. If it takes too long, kill it and return the stacks of its threads."""
    import select

    ready, _, _ = select.select([read_end], [], [], seconds)
    if ready:
        told = os.read(read_end, 4000).decode()
    else:
        told = f"the child did not end within {seconds} s\n"
        os.kill(pid, signal.SIGUSR1)
        while select.select([read_end], [], [], 1.0)[0] and (stack := os.read(read_end, 4000)):
            told += stack.decode()
        os.kill(pid, signal.SIGKILL)
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    return told or ("" if status == 0 else f"the child ended with status {status}")


def zarr_has_codec(name: str) -> bool:
    """Return True if zarr has a codec of this name."""
    try:
        get_codec_class(name)
    except Exception:  # KeyError, or an error of zarr's own in newer versions
        return False
    return True
