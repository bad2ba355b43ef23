# test_read_again.py - reads of a file that a writer is changing, and of one that is damaged
# SPDX-License-Identifier: MIT
"""One rule for all readers (`storage.retry.retry`): a file is read again only while a writer changes it."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import checked, ours
from kv_stores import key, open_kv
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import shardcodec
from shardcodec import ShardSpec, native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.index_scan import scan_files
from shardcodec.access.read import ObjectSelection, read
from shardcodec.access.regions import whole
from shardcodec.errors import ChecksumError, ShardError, ShardFormatError
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.option_sources import current_options
from shardcodec.storage import retry as retry_module
from shardcodec.storage.retry import Patience, retry
from shardcodec.tools import compact, inspect, verify
from shardcodec.transformer import ShardingStorageTransformer

CONTENT = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)
PROTOTYPE = default_buffer_prototype()


def make(folder: Path) -> tuple[Path, ShardSpec]:
    """Return the path of a shard with its index at the start, and its encoding."""
    array = checked(folder / "a.zarr", at_start=True)
    array[...] = CONTENT
    return folder / "a.zarr/c/0/1", ShardSpec.from_metadata(array.metadata.to_dict())


def array_of(path: Path, spec: ShardSpec) -> Any:
    array = ours(path.parents[2])
    return array.oindex[[0, 3], array.chunks[1] :]


def chunks_of_handle(path: Path, spec: ShardSpec) -> Any:
    return shardcodec.open_shard(path, None, spec).read_chunks([(0, 0)])


def state_of_handle(path: Path, spec: ShardSpec) -> Any:
    return shardcodec.open_shard(path, None, spec).state()


def kv(path: Path, spec: ShardSpec) -> ShardedKeyValueStore:
    codecs = [codec.to_json() for codec in spec.index_codecs]
    return open_kv(path, spec.grid_shape, index_location="start", index_codecs=codecs)


def value(path: Path, spec: ShardSpec) -> Any:
    return kv(path, spec)[key(0, 0)]


def values(path: Path, spec: ShardSpec) -> Any:
    return [(one.state, one.value) for one in kv(path, spec).read_many([key(0, 0), key(0, 1)])]


def transformer(path: Path, spec: ShardSpec) -> ShardingStorageTransformer:
    codecs = [codec.to_json() for codec in spec.index_codecs]
    return ShardingStorageTransformer(
        path.parents[2], spec.grid_shape, index_codecs=codecs, index_location="start"
    )


def chunk_of_transformer(path: Path, spec: ShardSpec) -> Any:
    return sync(transformer(path, spec).get(f"c/0/{spec.grid_shape[1]}", PROTOTYPE))


def size_of_chunk(path: Path, spec: ShardSpec) -> Any:
    return sync(transformer(path, spec).getsize(f"c/0/{spec.grid_shape[1]}"))


def sizes(path: Path, spec: ShardSpec) -> Any:
    return scan_files(compiled(spec.chain), [str(path)], ["c/0/1"], current_options())


READERS = [
    array_of,
    chunks_of_handle,
    state_of_handle,
    value,
    values,
    chunk_of_transformer,
    size_of_chunk,
    sizes,
]


def check_by_verify(path: Path, spec: ShardSpec) -> None:
    assert verify(path, spec=spec).n_findings == 0


def check_by_inspect(path: Path, spec: ShardSpec) -> None:
    assert inspect(path, spec=spec).n_findings == 0


def check_by_compact(path: Path, spec: ShardSpec) -> None:
    assert compact(path, spec=spec, dry_run=True).n_failed == 0


def findings_of_verify(path: Path, spec: ShardSpec) -> int:
    return verify(path.parents[2]).n_findings


def findings_of_inspect(path: Path, spec: ShardSpec) -> int:
    return inspect(path.parents[2]).n_findings


TOOLS = [check_by_verify, check_by_inspect, check_by_compact]


def damaged(blob: bytes) -> bytes:
    """Flip a bit of the index."""
    return blob[:5] + bytes([blob[5] ^ 1]) + blob[6:]


class Reads:
    """Counts the native calls that read shards; looks at the state of a file do not count."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        names: Sequence[str] = ("read", "scan", "read_encoded", "OpenShard"),
    ) -> None:
        self.n = 0
        module = native.load()
        for name in names:
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(chain: Any, *arguments: Any, **keywords: Any) -> Any:
            self.n += chain is not None
            return call(chain, *arguments, **keywords)

        return counting


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the pauses by calls of functions that the test appends; without one, nothing happens meanwhile."""
    steps: list[Any] = []

    def sleep(seconds: float) -> None:
        if steps:
            steps.pop(0)()

    monkeypatch.setattr(retry_module, "time", SimpleNamespace(**vars(time) | {"sleep": sleep}))
    return steps


@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_shard_that_no_writer_changes_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any
) -> None:
    """A key-value store read every damaged shard three times."""
    path, spec = make(tmp_path)
    path.write_bytes(damaged(path.read_bytes()))
    os.utime(path, ns=(1, 1))
    reads = Reads(monkeypatch)
    with shardcodec.options(index_cache=0), pytest.raises(ShardError):
        reader(path, spec)
    assert reads.n == 1


@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_shard_that_was_just_changed_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[Any], reader: Any
) -> None:
    """The writer may have ended between the read and the look at the file; that it stands still shows the damage."""
    path, spec = make(tmp_path)
    path.write_bytes(damaged(path.read_bytes()))
    reads = Reads(monkeypatch)
    with shardcodec.options(index_cache=0), pytest.raises(ShardError):
        reader(path, spec)
    assert reads.n == 2


@pytest.mark.parametrize("reader", [*READERS, *TOOLS])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_shard_that_is_being_changed_is_read_again(
    tmp_path: Path, pauses: list[Any], reader: Any, n_steps: int
) -> None:
    """A listing through the transformer, `chunk_state` and the look of a handle at the index did not read again."""
    path, spec = make(tmp_path)
    whole = path.read_bytes()
    expected = reader(path, spec)
    for step in range(n_steps):
        torn = damaged(whole) + bytes(
            step + 1
        )  # each step changes the size, and with it the state of the file
        pauses.append(lambda torn=torn: path.write_bytes(torn))
    pauses.append(lambda: path.write_bytes(whole))
    path.write_bytes(damaged(whole))
    with shardcodec.options(index_cache=0):
        found = reader(path, spec)
    if isinstance(expected, np.ndarray):
        assert np.array_equal(found, expected)
    assert not pauses


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (ShardError, KeyError, OSError) as error:
        return type(error)


@pytest.mark.parametrize("reader", [*READERS, findings_of_verify, findings_of_inspect])
def test_a_torn_shard_that_is_deleted_before_the_look_at_its_state_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Any
) -> None:
    """Beside an append and a deletion, `verify` reported entries out of bounds of a shard that was not there any more."""
    path, spec = make(tmp_path)
    torn = damaged(path.read_bytes())
    path.unlink()
    with shardcodec.options(index_cache=0):
        expected = outcome(lambda: reader(path, spec))
        path.write_bytes(torn)
        look = retry_module._state_of

        def deleting(name: str) -> Any:
            path.unlink(missing_ok=True)
            return look(name)

        monkeypatch.setattr(retry_module, "_state_of", deleting)
        found = outcome(lambda: reader(path, spec))
    assert not path.exists()
    assert np.array_equal(found, expected) if isinstance(expected, np.ndarray) else found == expected


def test_a_kept_handle_opens_a_file_again_that_was_changed_long_ago(tmp_path: Path) -> None:
    """The file of a handle was updated in place after its first read: its index no longer fits."""
    path, spec = make(tmp_path)
    with shardcodec.open_shard(path, None, spec) as shard:
        first = shard.read_chunks([(0, 0)])
        with shardcodec.open_shard(path, None, spec, mode="r+", compact=False) as other:
            other.write_chunks([(0, 0)], first + 1, strategy="append")
        raw = bytearray(path.read_bytes())
        offset, nbytes = (int(n) for n in shard.index[0, 0])
        raw[offset : offset + nbytes] = bytes(nbytes)
        path.write_bytes(raw)
        os.utime(path, ns=(1, 1))
        assert np.array_equal(shard.read_chunks([(0, 0)]), first + 1)


def test_a_kept_handle_reads_a_damaged_inner_chunk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spec = make(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(1, 1))
    with shardcodec.open_shard(path, None, spec) as shard:
        last = np.argwhere(shard.index[..., 0] == shard.index[..., 0].max())
        reads = Reads(monkeypatch, ["OpenShard"])
        with pytest.raises(ChecksumError):
            shard.read_chunks(last)
        assert reads.n == 0, "the handle was opened again"


# ---- the loop itself


def test_an_error_that_proves_a_change_is_retried_without_a_file() -> None:
    """A store of requests shows that an object was replaced; replaced for ever, the error comes through."""
    n = 0

    def work() -> None:
        nonlocal n
        n += 1
        raise ShardFormatError("replaced", changed=True)

    with pytest.raises(ShardFormatError):
        retry(work)
    assert n == 1 + len(retry_module.CHANGE_PAUSES)


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), ValueError("no"), ShardError("no")])
def test_other_errors_are_raised_at_once(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "new"
    path.write_bytes(b"")
    n = 0

    def work() -> None:
        nonlocal n
        n += 1
        raise error

    with pytest.raises(type(error)):
        retry(work, str(path))
    assert n == 1


def test_the_thread_of_an_event_loop_does_not_wait(tmp_path: Path) -> None:
    """It passes a `Patience` of 0 seconds, gets the error, and repeats the read in another thread."""
    path = tmp_path / "new"
    path.write_bytes(b"")
    with pytest.raises(ShardFormatError):
        Patience(0).pause(ShardFormatError("torn"), str(path))
    assert Patience().pause(ShardFormatError("torn"), str(path)) > 0


@pytest.mark.parametrize(("other", "expected"), [(False, "the new file"), (True, "no file")])
def test_a_file_that_was_stale_is_not_believed_to_be_missing(
    tmp_path: Path, other: bool, expected: str
) -> None:
    """The server has forgotten the replaced file, and this client does not know the new one yet. The elements would be those
    of a missing shard.
    """
    stale, path = str(tmp_path / "0"), str(tmp_path / ("1" if other else "0"))
    results = iter(["no file", "no file", "the new file"])
    is_stale = True

    def work() -> str:
        nonlocal is_stale
        if is_stale:
            is_stale = False
            raise OSError(errno.ESTALE, "stale", stale)
        return next(results)

    def must_repeat(result: str, patience: Patience) -> bool:
        return result == "no file" and patience.misses([path])

    assert retry(work, again=must_repeat) == expected
    assert not Patience().misses([path])


def test_reads_and_scans_do_not_believe_that_a_stale_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spec = make(tmp_path)
    chain, engine, calls = compiled(spec.chain), native.load(), []

    def stale_then_missing(name: str) -> Callable[..., Any]:
        whole = getattr(engine, name)
        states = iter(["stale", "missing"])

        def call(*arguments: Any, **how: Any) -> Any:
            state = next(states, "there")
            calls.append(f"{name}: {state}")
            if state == "stale":
                raise OSError(errno.ESTALE, "stale", str(path))
            if state == "missing":
                path.rename(tmp_path / "hidden")
            try:
                return whole(*arguments, **how)
            finally:
                if state == "missing":
                    (tmp_path / "hidden").rename(path)

        return call

    monkeypatch.setattr(
        native, "load", lambda: SimpleNamespace(**vars(engine) | {n: stubs[n] for n in stubs})
    )
    stubs = {name: stale_then_missing(name) for name in ("read", "scan")}
    out = np.empty(spec.shard_shape, spec.dtype)
    item = ObjectSelection(str(path), chain, whole(spec.shard_shape), str(path))
    assert read([item], out, range(out.ndim), current_options()) == []
    assert (out == CONTENT[: out.shape[0], -out.shape[1] :]).all()
    assert (scan_files(chain, [str(path)], ["0"], current_options()) > 0).all()
    assert calls == [
        f"{name}: {state}" for name in ("read", "scan") for state in ("stale", "missing", "there")
    ]
