# test_stream_memory.py - memory of streams: which bytes are copied, and which memory is used again
# SPDX-License-Identifier: MIT
"""Raw frames go to the file from the queue, memory is kept between updates, and frames are encoded while others are stored."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import resource
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import descriptor, random_array, store_of, zarrs_view
from live_frames import frames_of, image_array
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec import native, tools
from shardcodec.live import target as target_module
from shardcodec.live.frame_queue import FrameMemory, StreamLimits, StreamQueue
from shardcodec.live.order import FrameOrder, make
from shardcodec.live.record import StreamRecord
from shardcodec.live.target import Frame, FrameTarget, handle_on
from shardcodec.storage import file_systems

Values = np.ndarray[Any, Any]

MIB = 1 << 20
BLOCK = (64, 32)  # a frame of 4096 bytes


@pytest.fixture
def direct(tmp_path: Path) -> None:
    """Skip where appends do not bypass the page cache."""
    with descriptor(tmp_path) as fd:
        if not file_systems.appends_directly(str(tmp_path / "shard"), fd):
            pytest.skip("no direct appends here")


def target_of(array: Any, axes: tuple[int, ...] = (0,)) -> FrameTarget:
    """Return the target of a stream into an array."""
    return FrameTarget(handle_on(array, None, writes=True, write_strategy="append"), axes)


def new_array(folder: Path, shape: tuple[int, int], n: int = 24, in_chunk: int = 1, **arguments: Any) -> Any:
    """Create an array of one shard."""
    layout = {"shape": (n, *shape), "shards": (n, *shape), "chunks": (in_chunk, *shape), "compressors": None}
    return image_array(folder, **(layout | arguments))


def slots_with(frames: Values, shift: int = 0) -> Values:
    """Return frames in the memory of a queue; or so many bytes behind its beginning."""
    memory = FrameMemory(frames.nbytes + MIB, frames[0].nbytes)
    slots = memory.slots(frames.shape[1:], frames.dtype)
    assert slots.ctypes.data % 4096 == 0
    if shift:
        slots = (
            slots.reshape(-1).view("uint8")[shift:][: frames.nbytes].view(frames.dtype).reshape(frames.shape)
        )
    slots[: len(frames)] = frames
    return slots


def store(
    target: FrameTarget, slots: Values, first: int, n: int, places: Any = None, encodes: bool = False
) -> None:
    """Store n frames that lie in the slots of their numbers."""
    numbers = range(first, first + n)
    update = target.prepare([Frame(i, places[i] if places else (i,), slots, i, i, 0.0) for i in numbers])
    target.store(target.encoded(update) if encodes else update)


@pytest.mark.usefixtures("direct")
def test_raw_frames_are_appended_from_the_memory_of_the_queue(tmp_path: Path) -> None:
    """They were copied three times, each time into new memory."""
    shape, engine = (512, 1024), native.load()
    frames = random_array((12, *shape), "uint16")
    array = new_array(tmp_path / "a", shape)
    slots, target = slots_with(frames), target_of(array)
    store(target, slots, 0, 2)
    engine.set_memory_fault(1 << 62)
    store(target, slots, 2, 8)
    *_, peak = engine.end_memory_fault()
    assert peak < MIB // 4
    assert (zarrs_view(array)[:10] == frames[:10]).all()


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("codec", [None, "auto"])
@pytest.mark.parametrize("in_chunk", [(1, 1), (2, 1), (4, 1), (1, 3), (2, 3)])
def test_shards_do_not_depend_on_where_frames_lie_and_when_they_are_encoded(
    tmp_path: Path, in_chunk: tuple[int, int], codec: Any
) -> None:
    """One is written from the memory of the queue, or its frames are encoded ahead; the other one not."""
    frames = frames_of(24, BLOCK)
    places = list(np.ndindex(8, 3))
    shards = []
    for shift in (0, 64):
        layout = {"shape": (8, 3, *BLOCK), "shards": (8, 3, *BLOCK), "chunks": (*in_chunk, *BLOCK)}
        array = image_array(tmp_path / str(shift), **layout, compressors=codec)
        target, slots, first = target_of(array, (0, 1)), slots_with(frames, shift), 0
        for n in (3, 6, 1, 2, 6, 1, 5):
            store(target, slots, first, n, places, encodes=codec is not None and not shift)
            first += n
        shards.append((tmp_path / str(shift) / "c/0/0/0/0").read_bytes())
        assert (zarrs_view(array)[...] == frames.reshape(8, 3, *BLOCK)).all()
        assert tools.verify(tmp_path / str(shift), level="decode").n_findings == 0
    assert shards[0] == shards[1]


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("nbytes", [0, 4096, 2 * 4096])
def test_append_from_the_memory_of_the_queue_that_falls_short_is_undone(tmp_path: Path, nbytes: int) -> None:
    """The first bytes come from the queue, and the rest from the memory of the engine: a short write ends in either of them."""
    frames, engine = frames_of(6, BLOCK), native.load()
    array = new_array(tmp_path / "a", BLOCK)
    slots, target = slots_with(frames), target_of(array)
    store(target, slots, 0, 2)
    before = (tmp_path / "a/c/0/0/0").read_bytes()
    engine.set_fault(1 << 62, "count")
    store(target, slots, 2, 2)
    call = engine.end_fault().index("pwrite_once")
    after = (tmp_path / "a/c/0/0/0").read_bytes()
    engine.set_fault(call, "short", nbytes)
    with pytest.raises(OSError, match="No space left"):
        store(target, slots, 4, 2)
    engine.end_fault()
    assert (tmp_path / "a/c/0/0/0").read_bytes() == after != before
    store(target, slots, 4, 2)
    assert (zarrs_view(array)[:6] == frames).all()


def take(memory: FrameMemory) -> int | None:
    slot = memory.free_slot()
    if slot is not None:
        make(memory.taking(slot))
    return slot


def test_frames_that_follow_each_other_lie_in_slots_that_do() -> None:
    memory = FrameMemory(8 * 64, 64)
    assert [take(memory) for _ in range(5)] == [0, 1, 2, 3, 4]
    memory.give([0, 1, 2])
    assert [take(memory) for _ in range(2)] == [0, 1]
    memory.give([3, 4])
    assert [take(memory) for _ in range(3)] == [2, 3, 4]
    memory.give([0, 1])
    assert [take(memory) for _ in range(5)] == [0, 1, 5, 6, 7]
    assert take(memory) is None and memory.is_full
    memory.give([6])
    assert take(memory) == 6


def test_memory_of_the_queue_is_used_again(tmp_path: Path) -> None:
    memory = FrameMemory(10_000, 190)
    slots = memory.slots((5, 19), np.dtype("uint16"))
    assert memory.n_slots == 52 and slots.shape == (52, 5, 19)
    assert [take(memory) for _ in range(3)] == [0, 1, 2]
    memory.give([1])
    assert take(memory) == 1 and take(memory) == 3
    slots[...] = np.arange(52).reshape(52, 1, 1)
    assert (slots[51] == 51).all()
    with pytest.raises(ValueError, match="for one frame"):
        FrameMemory(100, 190)


def test_frames_that_do_not_follow_each_other_in_memory_wait_for_the_next_update(tmp_path: Path) -> None:
    """They would be copied. So slots that are used again in a circle would cost a copy of each frame."""
    target = target_of(image_array(tmp_path / "a", in_chunk=2))
    limits = StreamLimits(max_delay=0, n_frames=8, by_shard=False, grow_every=None)
    record = StreamRecord(target.folder, target.options, {"axes": [0]})
    order = FrameOrder((40,), None, 0, grows=False)
    queue = StreamQueue(target, order, record, limits)
    slots = FrameMemory(20 * 192, 192).slots((12, 8), np.dtype("uint16"))
    for row in (12, 13, 14, 15, 16, 0, 1, 2, 3, 4, 9, 5, 7, 8, 10, 11):
        make(queue.pushing(slots, row, row, None, 0.0)[1])
    updates = []
    while queue.n_frames:
        frames = queue.next_update(1.0, is_full=False)
        assert isinstance(frames, list)
        updates.append([frame.row for frame in frames])
        queue.mark_stored(frames)
    # the first at the end of an inner chunk; the third has no four frames side by side
    assert updates == [[12, 13, 14, 15], [16, 0, 1, 2, 3, 4, 9, 5], [7, 8, 10, 11]]


def encoded_frames(n: int) -> Values:
    """Return frames of 2 MiB that no codec makes smaller."""
    return random_array((n, 1024, 1024), "uint16")


@pytest.mark.skipif("SHARDCODEC_TEST_SANITIZER" in os.environ, reason="sanitizers have their own memory")
def test_memory_of_an_update_serves_the_next_one(tmp_path: Path) -> None:
    """Each update got new memory, whose pages cost about as much as a copy of all frames."""
    frames = encoded_frames(4)
    array = new_array(tmp_path / "a", (1024, 1024), 64, compressors=ZstdCodec(level=1))
    faults = []
    with shardcodec.stream(array, max_frames=4) as stream:
        for _ in range(16):
            stream.append(frames)
            stream.flush()
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    n_pages = frames.nbytes // 4096
    assert faults[-1] - faults[7] < 8 * n_pages // 4


def test_closed_streams_keep_no_memory(tmp_path: Path) -> None:
    frames, engine = encoded_frames(3), native.load()

    def work(name: str) -> None:
        array = new_array(tmp_path / name, (1024, 1024), compressors=ZstdCodec(level=1))
        with shardcodec.stream(array, max_frames=1) as stream:
            for _ in range(4):
                stream.append(frames)

    work("a")  # one-time allocations
    engine.set_memory_fault(1 << 62)
    work("b")
    gc.collect()
    _, _, nbytes, _ = engine.end_memory_fault()
    assert nbytes < MIB


def test_next_update_is_encoded_while_one_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk waited for the processors, and they waited for the disk."""
    may_store, n_encoded = threading.Event(), itertools.count(1)
    second = threading.Event()
    real_store, real_encode = FrameTarget.store, target_module.encode_ahead

    def wait_and_store(self: FrameTarget, update: Any, *check: Any) -> None:
        assert update.chunks is not None
        assert may_store.wait(60)
        real_store(self, update, *check)

    def encode(request: Any, options: Any) -> Any:
        if next(n_encoded) == 2:
            second.set()
        return real_encode(request, options)

    monkeypatch.setattr(FrameTarget, "store", wait_and_store)
    monkeypatch.setattr(target_module, "encode_ahead", encode)
    array = image_array(tmp_path / "a", in_chunk=2)
    with shardcodec.stream(array, max_frames=4, threads=2) as stream:
        stream.append(frames_of(40))
        assert second.wait(60)
        may_store.set()
    assert (array[...] == frames_of(40)).all()
    assert stream.stored == 40


def append_and_flush(stream: Any, frames: Values) -> None:
    stream.append(frames)
    stream.flush()


@pytest.mark.filterwarnings("ignore:.*cannot be appended to:RuntimeWarning")
def test_frames_of_whole_shards_are_not_encoded_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All encoded inner chunks of a shard would be in memory at the same time, where it is otherwise encoded while it is stored."""
    monkeypatch.delattr(target_module, "encode_ahead")
    array = image_array(store_of("other", tmp_path / "a"))
    with shardcodec.stream(array) as stream:
        stream.append(frames_of(40))
    assert (array[...] == frames_of(40)).all()


def test_updates_that_fail_while_others_are_encoded_are_tried_again_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_store, has_failed = FrameTarget.store, threading.Event()

    def fail_at_first(self: FrameTarget, update: Any, *check: Any) -> None:
        if not has_failed.is_set():
            raise OSError("no room")
        real_store(self, update, *check)

    monkeypatch.setattr(FrameTarget, "store", fail_at_first)
    array = image_array(tmp_path / "a", in_chunk=2)
    with shardcodec.stream(array, max_frames=4, threads=2, queue=60 * 192) as stream:
        with pytest.raises(shardcodec.StreamError, match="no room"):
            append_and_flush(stream, frames_of(40))
        while stream._queue.n_busy:
            time.sleep(0.001)
        assert [frame.number for frame in stream._queue.waiting()] == list(range(stream.position))
        has_failed.set()
        stream.append(frames_of(40 - stream.position, first=stream.position))
        stream.flush()
    assert (array[...] == frames_of(40)).all()


def full_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let updates of the arrays of a name fail after a while, so that the next one is encoded meanwhile."""
    real_store = FrameTarget.store

    def fail(self: FrameTarget, update: Any, *check: Any) -> None:
        if name in repr(self.folder):
            time.sleep(0.2)
            raise OSError(28, "No space left on device")
        real_store(self, update, *check)

    monkeypatch.setattr(FrameTarget, "store", fail)


@pytest.mark.parametrize("call", ["flush", "close"])
def test_error_names_the_frames_of_all_updates_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The frames of a second update were not named, and after `close` their slots were lost for the other streams of a group."""
    arrays = [image_array(tmp_path / name, in_chunk=2) for name in "xy"]
    full_disk(monkeypatch, "x")
    group = shardcodec.stream(arrays, max_frames=4, threads=2, max_delay=60, queue=8 * 192)
    group[0].append(frames_of(8))
    with pytest.raises(shardcodec.StreamError) as caught:
        getattr(group[0], call)()
    assert caught.value.numbers == tuple(range(8))
    if call == "close":
        assert group[0].stats.frames_queued == 0
        for first in range(0, 40, 8):
            group[1].append(frames_of(8, first=first))
            group[1].flush()
        assert (arrays[1][...] == frames_of(40)).all()
        group.close()
    else:
        with pytest.raises(shardcodec.StreamError):
            group.close()


def delay_first_encode(monkeypatch: pytest.MonkeyPatch) -> None:
    real_encode, n_encoded = target_module.encode_ahead, itertools.count()

    def encode(request: Any, options: Any) -> Any:
        if next(n_encoded) == 0:
            time.sleep(0.3)
        return real_encode(request, options)

    monkeypatch.setattr(target_module, "encode_ahead", encode)


def test_newest_frame_of_a_place_stays_if_an_older_one_is_encoded_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update that was ready first was stored first."""
    delay_first_encode(monkeypatch)
    array = image_array(tmp_path / "a", 4)
    with shardcodec.stream(
        array, positions=[0, 1, 2, 3] * 2, max_frames=4, threads=2, max_delay=60
    ) as stream:
        stream.append(frames_of(8))
    assert (array[...] == frames_of(4, first=4)).all()


def test_update_is_not_stored_before_an_earlier_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of the later one would be replaced by an older frame of its place, when the earlier one is tried again."""
    delay_first_encode(monkeypatch)
    real_store, calls = FrameTarget.store, itertools.count()

    def fail_once(self: FrameTarget, update: Any, *check: Any) -> None:
        if next(calls) == 0:
            raise OSError("no room")
        real_store(self, update, *check)

    monkeypatch.setattr(FrameTarget, "store", fail_once)
    array = image_array(tmp_path / "a", 4)
    with shardcodec.stream(
        array, positions=[0, 1, 2, 3] * 2, max_frames=4, threads=2, max_delay=60
    ) as stream:
        stream.append(frames_of(8))
        with pytest.raises(shardcodec.StreamError, match="no room") as caught:
            stream.flush()
        assert caught.value.numbers == tuple(range(8)) and stream.stored == 0
        stream.flush()
    assert (array[...] == frames_of(4, first=4)).all()


def test_flush_returns_while_another_thread_appends(tmp_path: Path) -> None:
    """It waited until no update was under way, which never came."""
    array = image_array(tmp_path / "a", 1_000_000, in_shard=1000)
    ends = threading.Event()

    def append_for_ever() -> None:
        frames = frames_of(8)
        while not ends.is_set():
            stream.append(frames)

    with shardcodec.stream(array, threads=2, max_frames=4, queue=64 * 192, max_delay=0) as stream:
        thread = threading.Thread(target=append_for_ever)
        thread.start()
        flush = threading.Thread(target=stream.flush)
        while not stream.stored:
            time.sleep(0.001)
        flush.start()
        flush.join(30)
        has_returned = not flush.is_alive()
        ends.set()
        thread.join()
        flush.join()
    assert has_returned


@pytest.mark.parametrize("order", ["morton", "lexicographic"])
def test_shards_in_shards_do_not_depend_on_when_they_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """The order of their inner chunks was not told to the encoder."""
    frames, shards = random_array((8, 64, 32), "uint16"), []
    inner = ShardingCodec(chunk_shape=(1, 16, 8), codecs=[BytesCodec(), ZstdCodec(level=1)])
    for is_ahead in (True, False):
        monkeypatch.setattr(FrameTarget, "encodes_ahead", is_ahead)
        path = tmp_path / str(is_ahead)
        serializer = ShardingCodec(chunk_shape=(2, 64, 32), codecs=[inner])
        layout: dict[str, Any] = {"shape": frames.shape, "chunks": frames.shape, "dtype": "uint16"}
        zarr.create_array(path, **layout, serializer=serializer, compressors=None)
        with (
            shardcodec.options(order=order),
            shardcodec.stream(path, max_frames=8, threads=2, max_delay=60) as stream,
        ):
            stream.append(frames)
        shards.append((path / "c/0/0/0").read_bytes())
    assert shards[0] == shards[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_error_of_the_encoder_names_shard_and_inner_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """It named neither of them where frames are encoded ahead."""
    array = image_array(tmp_path / "a", in_chunk=2)
    stream: Any = shardcodec.stream(array, threads=threads, max_frames=4, max_delay=60)
    stream.append(frames_of(2))
    stream.flush()
    real_load = native.load

    def failing(plan: Any, *arguments: Any, **rules: Any) -> Any:
        error = shardcodec.ShardError("the encoder says no")
        error.shard, error.entry = (1, None) if plan[0].chain.inner is None else (0, 2)  # type: ignore[assignment]
        raise error

    class Engine:
        write = staticmethod(failing)

        def __getattr__(self, name: str) -> Any:
            return getattr(real_load(), name)

    monkeypatch.setattr(native, "load", Engine)
    stream.append(frames_of(4, first=2))
    with pytest.raises(shardcodec.StreamError) as caught:
        stream.close()
    monkeypatch.undo()
    assert f"shard '{tmp_path / 'a/c/0/0/0'}': inner chunk (2, 0, 0): the encoder says no" in str(
        caught.value
    )


def device_memory() -> Values:
    """Return memory of the kernel that can be read, but not pinned, as that of many cameras; skip if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "[vvar]" in line:
            page = (ctypes.c_ubyte * 4096).from_address(int(line.split("-")[0], 16))
            reader, writer = os.pipe()
            try:
                os.write(writer, page)
            except OSError:
                break
            finally:
                os.close(reader)
                os.close(writer)
            return np.frombuffer(page, dtype="uint8").reshape(64, 64)
    pytest.skip("no readable page of the kernel")


@pytest.mark.usefixtures("direct")
def test_frames_in_memory_that_cannot_be_pinned_are_copied(tmp_path: Path) -> None:
    """A write past the page cache refuses such memory, so the frames of a camera without ``copy`` could not be stored."""
    frame = device_memory()
    array = new_array(tmp_path / "a", (64, 64), 8, dtype="uint8")
    with shardcodec.stream(array, copy=False, max_frames=2, max_delay=60) as stream:
        stream.append(np.full((64, 64), 1, "uint8"))
        stream.flush()
        inode = (tmp_path / "a/c/0/0/0").stat().st_ino
        stream.append(frame)
        stream.flush()
        stream.append(np.full((64, 64), 3, "uint8"))
    values = zarrs_view(array)[...]
    assert (values[0] == 1).all() and (values[2] == 3).all() and stream.stored == 3
    assert (tmp_path / "a/c/0/0/0").stat().st_ino == inode
    assert tools.verify(tmp_path / "a", level="decode").n_findings == 0


@pytest.mark.skipif("SHARDCODEC_TEST_SANITIZER" in os.environ, reason="sanitizers have their own memory")
def test_kept_memory_follows_the_sizes_of_updates(tmp_path: Path) -> None:
    """Memory of sizes that no update needs any more took all places, so each update got new memory again."""
    frames = np.random.default_rng(0).integers(0, 1 << 16, (4, 1024, 1024), "uint16")
    native.load().keep_memory(64 * MIB)
    try:
        for n in range(16):  # fills the places
            small = new_array(tmp_path / f"s{n}", (640 + 16 * n, 1024), compressors=ZstdCodec(level=1))
            with shardcodec.stream(small, max_frames=1) as stream:
                stream.append(frames[:2, : 640 + 16 * n])
        array = new_array(tmp_path / "a", (1024, 1024), 64, compressors=ZstdCodec(level=1))
        faults = []
        with shardcodec.stream(array, max_frames=4, threads=2) as stream:
            for _ in range(16):
                stream.append(frames)
                stream.flush()
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    finally:
        native.load().keep_memory(-64 * MIB)
    assert faults[-1] - faults[7] < 8 * (frames.nbytes // 4096) // 4


def test_forked_child_keeps_no_memory_of_the_streams_of_its_parent(tmp_path: Path) -> None:
    """It kept all that they had kept, and as much again of its own, for ever."""
    array = new_array(tmp_path / "a", (1024, 1024), compressors=ZstdCodec(level=1))
    frames = np.random.default_rng(0).integers(0, 1 << 16, (8, 1024, 1024), "uint16")
    with shardcodec.stream(array, max_frames=8, threads=2) as stream:
        for _ in range(3):
            stream.append(frames)
            stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
            child = os.fork()
        if not child:
            engine = native.load()
            before = resident_nbytes()
            engine.keep_memory(-(1 << 40))
            os._exit(before - resident_nbytes() > MIB)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_bytes_of_frames_that_are_encoded_ahead_are_counted_once(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a", (64, 64), compressors=ZstdCodec(level=1))
    frames = random_array((16, 64, 64), "uint16")
    with shardcodec.stream(array, max_frames=8, threads=2, max_delay=60) as stream:
        stream.append(frames[:8])
        stream.flush()
        shard = tmp_path / "a/c/0/0/0"
        before, nbytes_before = shardcodec.stats()["bytes_written"], shard.stat().st_size
        stream.append(frames[8:])
        stream.flush()
        nbytes = shardcodec.stats()["bytes_written"] - before
        added = shard.stat().st_size - nbytes_before
    assert added // 2 < nbytes <= added


def test_limit_of_kept_memory_is_given_back_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative limit would stop all streams of the process from keeping memory. Large updates keep no more than an append has."""
    amounts: list[int] = []
    real_load = native.load

    class Engine:
        keep_memory = staticmethod(amounts.append)

        def __getattr__(self, name: str) -> Any:
            return getattr(real_load(), name)

    monkeypatch.setattr(native, "load", Engine)
    array = new_array(tmp_path / "a", (1024, 2048), 64, compressors=ZstdCodec(level=1))
    stream: Any = shardcodec.stream(array, max_frames=32, queue="128MiB", threads=2)
    stream.close()
    stream._writers.end()
    assert amounts[0] == 2 * 2 * (64 << 20) and sum(amounts) == 0 and min(amounts) == -amounts[0]
