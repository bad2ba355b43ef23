# test_replaced.py - shards that another client of a network file system replaces
# SPDX-License-Identifier: MIT
"""A client that knows a file which another one has replaced is told ESTALE, or ENOENT for up to a second, and looks again.

On GlusterFS with two mounts 142 of 384 writes failed so while they locked the shard, and reads did too.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, ours, quiet, shard_path
from mounts.fuse import FILE_SYSTEM, Mount, mount
from workers import Workers, in_threads

import shardcodec
from shardcodec import native
from shardcodec.storage import file_systems, retry
from shardcodec.zarr_plugin.request import Refusal

pytestmark = pytest.mark.slow

SIDE, N = 8, 8  # elements and inner chunks along an axis
SHAPE = (SIDE * N, SIDE * N)

# Answers of a client that does not know yet that the file was replaced; getattr that says ENOENT means that there is none.
STALE = [
    ("open", errno.ESTALE),
    ("open", errno.ENOENT),
    ("read", errno.ESTALE),
    ("read", errno.ENOENT),
    ("getattr", errno.ESTALE),
]


def fill(folder: Path) -> None:
    array = create(
        folder / "a",
        shape=SHAPE,
        shards=SHAPE,
        chunks=(SIDE, SIDE),
        dtype="i4",
        compressors=None,
        fill_value=-1,
    )
    array[...] = 0


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Mount, Mount]]:
    """Two mounts as GlusterFS makes them."""
    as_gluster: dict[str, Any] = {"stale_handles": True, "stale_open": errno.ENOENT, "entry_seconds": 0.3}
    fill_in = tmp_path / "backing"
    fill_in.mkdir()
    fill(fill_in)
    with (
        mount(fill_in, tmp_path / "one", **as_gluster) as one,
        mount(fill_in, tmp_path / "other", **as_gluster) as other,
    ):
        yield one, other


def chunk(number: int) -> tuple[slice, slice]:
    row, column = divmod(number, N)
    return np.s_[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]


@pytest.mark.parametrize(
    "switches",
    [
        {},
        # a server that keeps removed files for those that have them open, and a client that remembers attributes
        {
            "stale_handles": False,
            "stale_open": 0,
            "attr_seconds": 0.3,
            "write_back": True,
            "settle_seconds": 0.01,
        },
    ],
    ids=["gluster", "late attributes"],
)
def test_writers_on_two_mounts_lose_no_update(two: tuple[Mount, Mount], switches: dict[str, Any]) -> None:
    n_writers = 4
    for mounted in two:
        mounted.set(**switches)

    def write(number: int) -> None:
        with quiet():
            array = ours(two[number % 2].path / "a", locking="process", lock_timeout=50.0, index_cache=0)
            for i in range(number, N * N, n_writers):
                array[chunk(i)] = i + 1

    Workers(n_writers, write).join()
    with mount(two[0].path.parent / "backing", two[0].path.parent / "third") as fresh:
        found = zarr.open_array(fresh.path / "a", mode="r")[::SIDE, ::SIDE]
        assert found.ravel().tolist() == list(range(1, N * N + 1))


def as_gluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the mounts of the tests for some of GlusterFS."""
    monkeypatch.setattr(file_systems, "OLD_NAME_TYPES", frozenset({FILE_SYSTEM}))
    monkeypatch.setitem(file_systems.LOCK_KINDS, FILE_SYSTEM, 3)


def test_replaced_shard_that_has_another_name_is_not_updated(
    two: tuple[Mount, Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GlusterFS an acknowledged update was lost: its client led to the old shard for a second, and told nothing.

    Usually the old file is gone, and the lock says so. This one had another name: here of the user, in the run that found it of a
    writer that was killed between the second name of a new shard and the removal of the first one.
    """
    as_gluster(monkeypatch)
    for mounted in two:
        mounted.set(stale_handles=False, stale_open=0, entry_seconds=1.0)
    one, other = (ours(mounted.path / "a", index_cache=0) for mounted in two)
    for number in range(1, 4):
        assert other[0, 0] == one[0, 0]  # the client knows the name now
        kept = two[0].path.parent / "backing/a/c/0/0"
        os.link(kept, f"{kept}.kept{number}")
        one[chunk(2 * number)] = number
        other[chunk(2 * number + 1)] = number
    with mount(two[0].path.parent / "backing", two[0].path.parent / "third") as fresh:
        found = zarr.open_array(fresh.path / "a", mode="r")[::SIDE, ::SIDE]
        assert found.ravel()[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_temporary_files_are_in_no_folder_that_another_client_may_remove(
    two: tuple[Mount, Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of GlusterFS removes a folder in which another client has just made a file: `FileNotFoundError` of a rename."""
    as_gluster(monkeypatch)
    array = ours(two[0].path / "a")
    array[0, 0] = 5
    assert array[0, 0] == 5
    assert not two[0].calls()["mkdir"] and not two[0].calls()["rmdir"]
    shard = two[0].path / "a/c/0/0"
    assert [path.name for path in shard.parent.iterdir()] == [shard.name]


def test_readers_on_the_other_mount_see_the_old_or_the_new_shard(two: tuple[Mount, Mount]) -> None:
    writer, reader = two
    done = threading.Event()
    n_reads = [0, 0, 0]

    def check(number: int, values: Any) -> None:
        assert values.min() == values.max() >= 0, np.unique(values)
        n_reads[number] += 1

    def work(number: int) -> None:
        if number == 3:
            try:
                array = ours(writer.path / "a")
                begun = time.monotonic()
                value = 0
                while time.monotonic() < begun + 1.2:
                    value += 1
                    array[...] = value
                    array[0, 0] = value  # in part: replaced as well
            finally:
                done.set()
        while not done.is_set():
            if number == 0:
                check(0, ours(reader.path / "a")[...])
            elif number == 1:
                check(1, shardcodec.open_array(reader.path / "a")[: SIDE + 1, :SIDE])
            elif number == 2:
                spec = shardcodec.ShardSpec.from_metadata(
                    zarr.open_array(reader.path / "a", mode="r").metadata.to_dict()
                )
                shard = shardcodec.open_shard(reader.path / "a", "c/0/0", spec)
                check(2, shard.read_chunks([(0, 0), (N - 1, N - 1)]))

    in_threads(4, work)
    assert min(n_reads) > 2


@pytest.mark.parametrize("strategy", ["append", "replace"])
def test_times_that_settle_later_stop_no_write(two: tuple[Mount, Mount], strategy: str) -> None:
    """A server replaces the times that a client has given a file by its own; 34 of 200 appends took that for a foreign write."""
    two[0].set(settle_seconds=0.02, write_back=True)
    array = ours(two[0].path / "a", write_strategy=strategy)
    for i in range(30):
        array[chunk(i)] = i
        time.sleep(0.002 * (i % 4))
    assert array[::SIDE, ::SIDE].ravel()[:30].tolist() == list(range(30))


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Mount]:
    (tmp_path / "backing").mkdir()
    fill(tmp_path / "backing")
    with mount(tmp_path / "backing", tmp_path / "one") as mounted:
        yield mounted


@pytest.mark.parametrize(("call", "code"), [*STALE, ("setlk", errno.ESTALE), ("setlk", errno.ENOENT)])
def test_a_write_begins_again(one: Mount, call: str, code: int) -> None:
    array = ours(one.path / "a")
    assert array[0, 0] == 0
    one.fail(call, code, times=12, name="0")
    array[0, 0] = 5
    assert one.failed()[call] == 12
    assert array[0, 0] == 5


@pytest.mark.parametrize("is_new", [False, True], ids=["replaced", "new"])
def test_a_write_whose_temporary_file_vanishes_begins_again(one: Mount, is_new: bool) -> None:
    """It was a `FileNotFoundError` of the shard, although its folder is there: another client had removed the staging folder."""
    array = ours(one.path / "a")
    if is_new:
        shard_path(array).unlink()
    one.fail("link" if is_new else "rename", errno.ENOENT, times=2)
    array[0, 0] = 5
    assert one.failed()["link" if is_new else "rename"] == 2
    assert array[0, 0] == 5


def decline(*_: Any) -> Any:
    raise Refusal("for a test")


@pytest.mark.parametrize(
    ("call", "code"), [("open", errno.ESTALE), ("read", errno.ESTALE), ("read", errno.ENOENT)]
)
def test_a_write_that_is_left_to_zarr_begins_again(one: Mount, call: str, code: int) -> None:
    """It failed with ESTALE. After ENOENT zarr took the shard for absent, and all but the new elements would have been lost."""
    array = ours(one.path / "a", strict=False)
    array._async_array.codec_pipeline._prepare = decline
    one.fail(call, code, times=12, name="0")
    array[0, 0] = 5
    assert one.failed()[call] == 12
    expected = np.zeros(SHAPE, "i4")
    expected[0, 0] = 5
    assert (array[...] == expected).all()


@pytest.mark.parametrize(("call", "code"), STALE)
@pytest.mark.parametrize("how", ["zarr", "open_array", "open_shard", "chunk_state"])
def test_a_read_begins_again(one: Mount, call: str, code: int, how: str) -> None:
    array = ours(one.path / "a")
    array[0, 0] = 5
    small = shardcodec.open_array(one.path / "a")
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    shard = shardcodec.open_shard(one.path / "a", "c/0/0", spec)
    one.fail(call, code, times=20, name="0")
    if how == "zarr":
        assert array[0, 0] == 5
    elif how == "open_array":
        assert small[0, 0] == 5
    elif how == "open_shard":
        assert shard.read_chunks([(0, 0)])[0, 0, 0] == 5
    else:
        assert shardcodec.chunk_state(array).exists.all()
    assert one.failed()[call] == 20 or call == "read"  # the kernel may have the bytes


def test_errors_of_a_shard_that_is_read_in_ranges(one: Mount) -> None:
    """The shard has 1 MiB, and is wanted as a whole: ranges of 256 KiB are read at the same time, before its index."""
    shape = (512, 512)
    array = create(
        one.path / "b", shape=shape, shards=shape, chunks=(64, 64), dtype="i4", compressors=None, fill_value=0
    )
    values = np.arange(512 * 512, dtype="i4").reshape(shape)
    array[...] = values
    for _ in range(5):
        array = ours(one.path / "b")
        with shardcodec.options(io_latency=100e-6, index_cache=0):
            one.fail("read", errno.EIO, after=1, name="0")
            with pytest.raises(OSError, match="Input/output error") as caught:
                array[...]
            assert caught.value.filename == str(shard_path(array))
            one.heal()
            one.fail("read", errno.ESTALE, times=2, after=1, name="0")
            assert (array[...] == values).all()
            one.heal()


def test_the_lock_call_itself_may_find_the_file_replaced(tmp_path: Path) -> None:
    fill(tmp_path)
    array = ours(tmp_path / "a")
    native.load().set_fault(0, "count")
    array[0, 0] = 1
    calls = native.load().end_fault()
    native.load().set_fault(calls.index("lock") + 1, "error", errno.ESTALE)
    array[0, 0] = 2
    assert native.load().end_fault().count("lock") == 2
    assert array[0, 0] == 2


def test_a_reader_gives_up_after_a_while(one: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry.Patience.__init__, "__defaults__", (0.2,))
    array = ours(one.path / "a")
    one.fail("open", errno.ESTALE, name="0")
    begun = time.monotonic()
    with pytest.raises(OSError, match="Stale") as caught:
        array[0, 0]
    assert caught.value.filename == str(shard_path(array))
    assert "times in 0.2 s" in caught.value.__notes__[0]
    assert time.monotonic() - begun >= 0.2


def test_a_shard_that_does_not_exist_is_not_waited_for(one: Mount) -> None:
    array = ours(one.path / "a")
    shard_path(array).unlink()
    before = one.calls()["lookup"]
    assert array[0, 0] == -1
    assert one.calls()["lookup"] - before < 10


async def test_the_event_loop_does_not_wait(one: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small read is done on the event loop; once its file is stale it goes on in a thread."""
    with quiet():
        shardcodec.enable()
        try:
            array = await zarr.api.asynchronous.open_array(store=one.path / "a", mode="r+")
        finally:
            shardcodec.disable()
    sleepers = []

    class Clock:
        monotonic, perf_counter = time.monotonic, time.perf_counter

        @staticmethod
        def sleep(seconds: float) -> None:
            sleepers.append(threading.get_ident())
            time.sleep(seconds)

    monkeypatch.setattr(retry, "time", Clock)
    one.fail("open", errno.ESTALE, times=60, name="0")
    assert (await array.getitem((0, 0))) == 0
    assert one.failed()["open"] == 60
    assert sleepers and threading.get_ident() not in sleepers
    one.fail("open", errno.ESTALE, times=60, name="0")
    sleepers.clear()
    await array.setitem((0, 0), 3)
    assert not sleepers
    assert (await array.getitem((0, 0))) == 3


async def test_the_event_loop_asks_a_slow_file_system_nothing(
    one: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole write in a block looked for links on it, and the codec alone for the kind of the file system."""
    askers = []

    def noted(ask: Any) -> Any:
        return lambda path: (askers.append(threading.get_ident()), ask(path))[1]

    with quiet(), zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
        through_codec = await zarr.api.asynchronous.open_array(store=one.path / "a", mode="r+")
        shardcodec.enable()
        try:
            array = await zarr.api.asynchronous.open_array(store=one.path / "a", mode="r+")
        finally:
            shardcodec.disable()
    monkeypatch.setattr(os.path, "islink", noted(os.path.islink))
    monkeypatch.setattr(file_systems, "is_prompt", noted(file_systems.is_prompt))
    await through_codec.getitem((0, 0))
    assert askers and threading.get_ident() not in askers
    askers.clear()
    async with shardcodec.group_writes():
        await array.setitem((0, 0), 3)
        await array.setitem((slice(None), slice(None)), 4)
    assert askers and threading.get_ident() not in askers
