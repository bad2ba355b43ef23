# test_stream.py - frames of a stream are stored in their order, on every kind of store
# SPDX-License-Identifier: MIT
"""A stream stores the elements of an array in memory, refuses wrong arguments, and reports its counters."""

from __future__ import annotations

import itertools
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import KINDS_OF_STORE, in_child, run_checked, store_of, zarrs_view
from live_frames import frame_of, frames_of, image_array

import shardcodec
from shardcodec import tools
from shardcodec.access.documents import _DocumentMaker
from shardcodec.cli.app import run as run_command
from shardcodec.live.frame_queue import FrameMemory
from shardcodec.live.record import NAME
from shardcodec.live.target import FrameTarget
from shardcodec.storage import file_systems


def stored_count(array: Any) -> int:
    """Return how many frames the first records of another process would find, as numpy sees the array now."""
    return sum(1 for _ in shardcodec.tail(array, timeout=0))


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
@pytest.mark.parametrize("in_chunk", [1, 5])
def test_frames_are_stored_in_order_on_each_store(tmp_path: Path, kind: str, in_chunk: int) -> None:
    array = image_array(store_of(kind, tmp_path / "a"), in_chunk=in_chunk)
    expected = frames_of(40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        stream: Any = shardcodec.stream(array, max_delay=0)
    with stream:
        for frame in expected[:17]:
            assert stream.append(frame) == 1
        assert stream.append(expected[17:]) == 23
        assert stream.position == 40
    assert (zarrs_view(array)[...] == expected).all()
    assert stream.stats.frames_stored == stream.stored == 40
    assert stream.stats.bytes_stored == expected.nbytes
    assert stream.stats.frames_queued == 0 < stream.stats.updates
    assert 0 < stream.stats.slowest_update < 60


@pytest.mark.parametrize("kind", ["other", "conditional"])
def test_store_without_append_gets_whole_shards_and_says_so(tmp_path: Path, kind: str) -> None:
    array = image_array(store_of(kind, tmp_path / "a"))
    with pytest.warns(RuntimeWarning, match="up to 10 frames of each shard"):
        stream: Any = shardcodec.stream(array, max_delay=0)
    with stream:
        assert stream.readable == "when a shard is full"
        stream.append(frames_of(10))
        while stream.stored < 10:
            assert stream.stats.frames_queued <= 10
        assert (array[:10] == frames_of(10)).all()
        stream.append(frames_of(5, first=10))
        assert stream.stored == 10 and not array[10:].any()
        stream.flush()
        assert (array[:15] == frames_of(15)).all()
    with pytest.raises(ValueError, match="room for the 10 frames of a shard"):
        shardcodec.stream(array, start=0, queue=5 * 192)


def test_shard_that_was_stored_in_part_is_stored_again_when_it_is_full(tmp_path: Path) -> None:
    """Its frames once waited until the stream was closed, because they were fewer than those of a shard."""
    array = image_array(store_of("other", tmp_path / "a"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with shardcodec.stream(array) as stream:
            stream.append(frames_of(13))
            stream.flush()
            stream.append(frames_of(7, first=13))
            while stream.stored < 20:
                pass
            stream.append(frames_of(4, first=20))
        with shardcodec.stream(array, resume=True) as stream:
            assert stream.position == 24
            stream.append(frames_of(6, first=24))
            while stream.stored < 30:
                pass
            assert (array[:30] == frames_of(30)).all()


def test_readers_see_frames_after_each_update(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    with shardcodec.stream(array, max_delay=0) as stream:
        assert stream.readable == "after each update"
        for number in range(25):
            stream.append(frame_of(number))
            stream.flush()
            assert stream.stored == number + 1
            assert (zarrs_view(array)[: number + 1] == frames_of(number + 1)).all()


@pytest.mark.parametrize("direct", [True, False])
def test_shards_are_appended_to_and_never_packed(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing moves inner chunks, and zarr, which opens a shard twice, would then read another one."""
    monkeypatch.setattr(file_systems, "_known", {})
    if not direct:
        monkeypatch.setattr(file_systems, "DIRECT_TYPES", frozenset())
    array = image_array(tmp_path / "a", in_shard=40, in_chunk=8, compressors=None)
    shard = tmp_path / "a/c/0/0/0"
    with shardcodec.stream(array, max_delay=0) as stream:
        stream.append(frame_of(0))
        stream.flush()
        inode, size = shard.stat().st_ino, 0
        for number in range(1, 40):
            stream.append(frame_of(number))
            stream.flush()
            assert shard.stat().st_ino == inode and shard.stat().st_size > size
            size = shard.stat().st_size
    assert (array[...] == frames_of(40)).all()


def test_dead_bytes_are_packed_after_the_stream(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", in_shard=40, in_chunk=8, compressors=None)
    with shardcodec.stream(array, max_delay=0, max_frames=1) as stream:
        stream.append(frames_of(40))
    shard = tmp_path / "a/c/0/0/0"
    before = shard.stat().st_size
    tools.compact(tmp_path / "a")
    assert frames_of(40).nbytes < shard.stat().st_size < before / 4
    assert (zarrs_view(array)[...] == frames_of(40)).all()
    with shardcodec.stream(array, start=39) as stream:
        stream.append(frame_of(5))
    assert (array[39] == frame_of(5)).all() and (array[:39] == frames_of(39)).all()


def test_frames_of_an_inner_chunk_are_stored_together(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", in_chunk=5)
    sizes: list[list[int]] = []
    prepare = FrameTarget.prepare

    def spy(self: FrameTarget, frames: Any) -> Any:
        sizes.append([frame.number for frame in frames])
        return prepare(self, frames)

    with (
        pytest.MonkeyPatch.context() as patch,
        shardcodec.stream(array, max_delay=60, max_frames=12) as stream,
    ):
        patch.setattr(FrameTarget, "prepare", spy)
        for number in range(33):
            stream.append(frame_of(number))
        stream.flush()
    sizes.sort()  # two threads may prepare frames
    assert [number for numbers in sizes for number in numbers] == list(range(33))
    assert all(len(numbers) <= 12 for numbers in sizes)
    assert all(numbers[0] % 5 == 0 for numbers in sizes)


def test_delay_stores_what_is_there(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", in_chunk=8, in_shard=8)
    with shardcodec.stream(array, max_delay="20ms") as stream:
        stream.append(frames_of(3))
        pause = threading.Event()
        while stream.stored < 3:
            pause.wait(0.001)
        assert (zarrs_view(array)[:3] == frames_of(3)).all()


def test_eight_positions_and_three_channels_in_order_of_acquisition(tmp_path: Path) -> None:
    """Axes in another order than those of the array: t, then p, then c."""
    shape = (8, 5, 3, 12, 8)
    array = zarr.create_array(
        tmp_path / "a",
        shape=shape,
        shards=(1, 4, 3, 12, 8),
        chunks=(1, 1, 1, 12, 8),
        dtype="uint16",
        dimension_names=("p", "t", "c", "y", "x"),
    )
    twin = np.zeros(shape, "uint16")
    with shardcodec.stream(array, axis=("t", "p", "c"), max_delay=0.001) as stream:
        for number, (t, p, c) in enumerate(itertools.product(range(5), range(8), range(3))):
            twin[p, t, c] = frame_of(number)
            stream.append(twin[p, t, c])
        with pytest.raises(IndexError, match="at most 120 frames"):
            stream.append(twin[0, 0, 0])
    assert (zarrs_view(array)[...] == twin).all()
    places = [
        place
        for place, frame in shardcodec.tail(tmp_path / "a")
        if (frame == twin[place[1], place[0], place[2]]).all()
    ]
    assert places == list(itertools.product(range(5), range(8), range(3)))


def test_eight_arrays_share_threads_and_memory(tmp_path: Path) -> None:
    arrays = [
        zarr.create_array(
            tmp_path / f"p{p}",
            shape=(6, 3, 12, 8),
            shards=(6, 3, 12, 8),
            chunks=(2, 1, 12, 8),
            dtype="uint16",
        )
        for p in range(8)
    ]
    twins = np.zeros((8, 6, 3, 12, 8), "uint16")
    with shardcodec.stream(arrays, axis=(0, 1), max_delay=0.002, queue=40 * 192) as streams:
        assert len(streams) == 8
        for number, (t, p, c) in enumerate(itertools.product(range(6), range(8), range(3))):
            twins[p, t, c] = frame_of(number)
            streams[p].append(twins[p, t, c])
        streams.flush()
        assert sum(each.stats.frames_stored for each in streams) == 144
    for array, twin in zip(arrays, twins, strict=True):
        assert (zarrs_view(array)[...] == twin).all()


def test_levels_of_a_pyramid_have_frames_of_different_sizes(tmp_path: Path) -> None:
    shapes = [(10, 16, 16), (10, 8, 8), (10, 4, 4), (10,)]
    arrays = [
        zarr.create_array(
            tmp_path / str(i), shape=shape, chunks=(1, *shape[1:]), shards=(5, *shape[1:]), dtype="float32"
        )
        for i, shape in enumerate(shapes)
    ]
    images = np.random.default_rng(1).random((10, 16, 16), "float32")
    with shardcodec.stream(arrays) as levels:
        for number, image in enumerate(images):
            for level in levels[:3]:
                level.append(image)
                image = image.reshape(len(image) // 2, 2, -1, 2).mean(axis=(1, 3))
            levels[3].append(number)
    assert (arrays[0][...] == images).all()
    np.testing.assert_allclose(arrays[2][...], images.reshape(10, 4, 4, 4, 4).mean(axis=(2, 4)), rtol=1e-5)
    assert arrays[3][...].tolist() == list(range(10))


def test_positions_give_the_place_of_each_frame(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "a", shape=(4, 6, 12, 8), shards=(2, 3, 12, 8), chunks=(1, 1, 12, 8), dtype="uint16"
    )
    places = [(t, z) for t in range(4) for z in ([0, 2, 4, 1, 3, 5] if t % 2 else range(5, -1, -1))]
    twin = np.zeros(array.shape, "uint16")
    with shardcodec.stream(array, axis=(0, 1), positions=iter(places), max_delay=0.001) as stream:
        for number, place in enumerate(places):
            twin[place] = frame_of(number)
            stream.append(twin[place])
        with pytest.raises(IndexError, match="`positions` has ended"):
            stream.append(twin[0, 0])
    assert (zarrs_view(array)[...] == twin).all()
    with pytest.raises(ValueError, match="expected `positions`"):
        list(shardcodec.tail(array))
    followed = list(shardcodec.tail(array, positions=places))
    assert [place for place, _ in followed] == places
    assert all((frame == twin[place]).all() for place, frame in followed)
    with (
        shardcodec.stream(array, axis=(0, 1), positions=[(0, 6)], start=0) as stream,
        pytest.raises(IndexError, match="inside of"),
    ):
        stream.append(twin[0, 0])


def test_last_frame_of_a_place_wins(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", in_chunk=5)
    with shardcodec.stream(array, positions=[3, 3, 4, 3], max_delay=60) as stream:
        stream.append(frames_of(4, first=20))
    assert (array[3] == frame_of(23)).all() and (array[4] == frame_of(22)).all()


def test_growing_array_is_never_longer_than_what_is_stored(tmp_path: Path) -> None:
    image_array(tmp_path / "a", 0, in_chunk=2)
    lengths = []
    with shardcodec.stream(tmp_path / "a", grow_every=4, max_delay=0) as stream:
        for number in range(23):
            stream.append(frame_of(number))
            while stream.stored <= number:
                pass
            array = zarr.open_array(tmp_path / "a")
            lengths.append(array.shape[0])
            assert (array[...] == frames_of(23)[: lengths[-1]]).all()
        stream.flush()
        assert zarr.open_array(tmp_path / "a").shape[0] == 23
        stream.append(frames_of(2, first=23))
    assert lengths == [4 * (n // 4) for n in range(1, 24)]
    array = zarr.open_array(tmp_path / "a")
    assert array.shape[0] == 25 and (array[...] == frames_of(25)).all()
    with shardcodec.stream(array, grow_every=1) as stream:  # a new stream goes on at the end
        assert stream.position == 25
        stream.append(frame_of(25))
    assert (zarr.open_array(tmp_path / "a")[...] == frames_of(26)).all()


def test_growing_array_has_complete_rows_only(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "a", shape=(0, 3, 12, 8), shards=(4, 3, 12, 8), chunks=(1, 1, 12, 8), dtype="uint16"
    )
    with shardcodec.stream(array, axis=(0, 1), grow_every=1) as stream:
        stream.append(frames_of(8))
    assert zarr.open_array(tmp_path / "a").shape[0] == 2
    with pytest.raises(ValueError, match="8 frames of an earlier stream"):
        shardcodec.stream(tmp_path / "a", axis=(0, 1), grow_every=1)
    with shardcodec.stream(tmp_path / "a", axis=(0, 1), grow_every=1, resume=True) as stream:
        assert stream.position == 8
        stream.append(frame_of(8))
    assert (zarr.open_array(tmp_path / "a")[...].reshape(9, 12, 8) == frames_of(9)).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_growth_parses_no_document(tmp_path: Path, zarr_format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame parsed its record and the metadata of the array three times, for one changed number."""
    how = {"shards": (100, 12, 8)} if zarr_format == 3 else {}
    zarr.create_array(
        tmp_path / "a", shape=(0, 12, 8), chunks=(1, 12, 8), dtype="uint16", zarr_format=zarr_format, **how
    )
    parsed: list[str] = []
    written: list[str] = []
    loads, make = json.loads, _DocumentMaker.make

    def counted(text: Any, **how: Any) -> Any:
        parsed.append(str(text))
        return loads(text, **how)

    async def writing(maker: _DocumentMaker, *arguments: Any) -> Any:
        written.append(maker._document.key)
        return await make(maker, *arguments)

    monkeypatch.setattr(_DocumentMaker, "make", writing)
    name = "zarr.json" if zarr_format == 3 else ".zarray"
    with shardcodec.stream(tmp_path / "a", grow_every=1, max_delay=0) as stream:
        stream.append(frame_of(0))
        stream.flush()
        monkeypatch.setattr(json, "loads", counted)
        written.clear()
        for number in range(1, 20):
            stream.append(frame_of(number))
            stream.flush()
        monkeypatch.setattr(json, "loads", loads)
        assert not parsed
        assert sorted(written) == sorted([NAME, name] * 19)
    assert (zarr.open_array(tmp_path / "a")[...] == frames_of(20)).all()


def test_growth_keeps_what_other_programs_have_changed(tmp_path: Path) -> None:
    """The metadata that a stream knows are those that it has stored; others are read again."""
    array = image_array(tmp_path / "a", 0, in_chunk=1)
    with shardcodec.stream(tmp_path / "a", grow_every=1, max_delay=0) as stream:
        for number in range(3):
            stream.append(frame_of(number))
            stream.flush()
            shardcodec.open_array(tmp_path / "a", mode="r+").attrs[str(number)] = (number,)
        shardcodec.open_array(tmp_path / "a", mode="r+").resize((10, *array.shape[1:]))
        stream.append(frame_of(3))
        stream.flush()
    stored = shardcodec.open_array(tmp_path / "a")
    assert stored.shape[0] == 10 and (stored[:4] == frames_of(4)).all()
    assert dict(stored.attrs) == {"0": [0], "1": [1], "2": [2]}


def test_resume_goes_on_behind_the_last_update(tmp_path: Path) -> None:
    image_array(tmp_path / "a", in_chunk=5)
    for _ in range(2):  # also after a stream without frames
        with shardcodec.stream(tmp_path / "a", resume=True) as stream:
            assert stream.position == 0
    for first in (0, 7, 14, 21):
        with shardcodec.stream(tmp_path / "a", resume=True) as stream:
            assert stream.position == first
            stream.append(frames_of(7, first=first))
    with pytest.raises(ValueError, match="28 frames of an earlier stream"):
        shardcodec.stream(tmp_path / "a")
    with pytest.raises(ValueError, match="expected a stream as the earlier one"):
        shardcodec.stream(tmp_path / "a", axis=1, resume=True)
    array = zarr.open_array(tmp_path / "a")
    assert (array[:28] == frames_of(28)).all() and not array[28:].any()
    with shardcodec.stream(array, start=30) as stream:
        stream.append(frame_of(30))
    assert (array[30] == frame_of(30)).all() and not array[28:30].any()


def test_second_stream_takes_an_array_over(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    first: Any = shardcodec.stream(array, max_delay=0)
    first.append(frames_of(3))
    first.flush()
    with shardcodec.stream(array, resume=True) as second:
        second.append(frames_of(2, first=3))
        second.flush()
        first.append(frame_of(30))
        with pytest.raises(shardcodec.StreamError, match="another one has begun"):
            first.flush()
        second.append(frame_of(5))
    with pytest.raises(shardcodec.StreamError):
        first.close()
    assert stored_count(array) == 6


def test_record_of_another_version_is_refused(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    (tmp_path / "a" / NAME).write_text('{"version": 2, "frames": 3}')
    with pytest.raises(ValueError, match="version 1, got version 2"):
        shardcodec.stream(array, resume=True)


def test_tools_take_the_record_for_no_damage(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    array = image_array(group.store_path / "a")
    with shardcodec.stream(array) as stream:
        stream.append(frames_of(25))
    for target in (
        "g",
        "g/a",
    ):  # the record was once a foreign file that could not be checked, so the exit code was 5
        report = tools.verify(tmp_path / target, level="decode")
        assert report.n_findings == report.n_unchecked == 0 and not report.kinds
        assert run_command(["verify", str(tmp_path / target)]) == 0
    assert tools.inspect(tmp_path / "g/a").arrays[0].foreign == ()
    tools.convert(tmp_path / "g", tmp_path / "copy")
    assert (zarr.open_array(tmp_path / "copy/a")[:25] == frames_of(25)).all()


@pytest.mark.parametrize("stored", ["", "[]", '{"version": 2}', '{"version": 1, "frames": "x", "axes": [0]}'])
def test_verify_finds_a_damaged_record(tmp_path: Path, stored: str) -> None:
    group = zarr.create_group(tmp_path / "g")
    array = image_array(group.store_path / "a")
    with shardcodec.stream(array) as stream:
        stream.append(frames_of(5))
    (tmp_path / "g/a" / NAME).write_text(stored)
    for target in ("g", "g/a"):
        report = tools.verify(tmp_path / target)
        assert report.kinds == {"unreadable": 1} and NAME in report.shards[0].shard
        with pytest.raises(ValueError, match=NAME):
            shardcodec.stream(array, resume=True)


@pytest.mark.threads
def test_several_threads_append(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", 400, in_shard=50)
    with shardcodec.stream(array, max_delay=0.001, queue=30 * 192) as stream:

        def work(number: int) -> None:
            for i in range(100):
                stream.append(np.full((12, 8), 1000 * number + i + 1, "uint16"))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = array[:, 0, 0]
    assert (array[...] == values[:, None, None]).all()
    for n in range(4):
        own = values[(values - 1) // 1000 == n]
        assert own.tolist() == list(range(1000 * n + 1, 1000 * n + 101))


def test_frames_without_a_copy(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", in_chunk=5)
    frames = frames_of(40)
    with shardcodec.stream(array, copy=False, max_delay=0.001) as stream:
        for frame in frames[:13]:
            stream.append(frame)
        stream.append(frames[13:])
        stream.flush()
        frames[...] = 0
    assert (array[...] == frames_of(40)).all()


def test_slots_are_never_copied(tmp_path: Path) -> None:
    """numpy copies silently where it cannot reshape: a copy of all slots would double the memory of the queue."""
    target = FrameTarget(shardcodec.open_array(image_array(tmp_path / "a").store_path, mode="r+"), (0,))
    slots = FrameMemory(1 << 20, 200).slots((12, 8), np.dtype("uint16"))
    places = np.arange(4).reshape(4, 1)
    block = target._block(slots, (2, 3, 4, 5), places)
    assert block is not None and np.shares_memory(block.array, slots)
    assert target._block(slots, (2, 3, 5, 4), places) is None
    assert np.shares_memory(target._boxes(slots, (2, 3, 5, 4), places).array, slots)


def test_stream_without_threads_stores_in_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    array = image_array(tmp_path / "a")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with shardcodec.stream(array, max_delay=0, queue=4 * 192) as stream:
        stream.append(frames_of(40))
    assert (array[...] == frames_of(40)).all()


def test_buffered_writes_do_not_hide_frames(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a", in_chunk=5)
    handle = shardcodec.open_array(tmp_path / "a", mode="r+")
    with shardcodec.group_writes():
        handle[:20] = 9
        with shardcodec.stream(array, max_delay=0) as stream:
            stream.append(frames_of(13))
            stream.flush()
            assert (zarrs_view(array)[:13] == frames_of(13)).all()
    assert (array[:13] == frames_of(13)).all() and (array[13:20] == 9).all()


def test_forked_child_is_refused(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    with shardcodec.stream(array) as stream:

        def work() -> None:
            for call in (stream.flush, stream.close, lambda: stream.append(frame_of(0))):
                with pytest.raises(RuntimeError, match="process"):
                    call()

        in_child(work)
        stream.append(frame_of(0))
    assert (array[0] == frame_of(0)).all()


@pytest.mark.slow
def test_stream_that_is_not_closed_is_stored_at_the_end_of_the_program(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    run_checked(
        f"""
        import numpy as np, shardcodec
        stream = shardcodec.stream({str(tmp_path / "a")!r}, max_delay=3600)
        stream.append(np.full((7, 12, 8), 5, "uint16"))
        """
    )
    assert (array[:7] == 5).all() and not array[7:].any()


@pytest.mark.parametrize("layout", ["v2", "plain", "start", "fsync"])
def test_other_layouts(tmp_path: Path, layout: str) -> None:
    arguments: dict[str, Any] = {
        "v2": {"zarr_format": 2, "shards": None, "chunks": (2, 12, 8)},
        "plain": {"shards": None, "chunks": (2, 6, 8)},
        "start": {"shards": {"shape": (10, 12, 8), "index_location": "start"}},
    }.get(layout, {})
    array = image_array(tmp_path / "a", **arguments)
    durability: Any = "fsync" if layout == "fsync" else None
    with shardcodec.stream(array, max_delay=0.001, durability=durability) as stream:
        assert stream.readable == "after each update"
        for frame in frames_of(40):
            stream.append(frame)
    assert (zarrs_view(array)[...] == frames_of(40)).all()


def test_handle_and_url_are_targets(tmp_path: Path) -> None:
    image_array(tmp_path / "a")
    handle = shardcodec.open_array(tmp_path / "a", mode="r+")
    with shardcodec.stream(handle) as stream:
        stream.append(frames_of(5))
    with shardcodec.stream(f"file://{tmp_path}/a", resume=True) as stream:
        stream.append(frames_of(5, first=5))
    assert (handle[:10] == frames_of(10)).all()
    assert repr(stream) == f"<Stream {tmp_path}/a position=10 stored=10>"


@pytest.mark.parametrize("opened", [shardcodec.open_array, lambda path: zarr.open_array(path, mode="r")])
def test_array_that_is_opened_for_reading_is_refused(tmp_path: Path, opened: Any) -> None:
    """A stream once wrote through a handle with mode "r"."""
    image_array(tmp_path / "a")
    with pytest.raises(ValueError, match=r"mode='r'|read-only"):
        shardcodec.stream(opened(tmp_path / "a"))
    assert not (tmp_path / "a" / NAME).exists()


@pytest.mark.parametrize("kind", ["S3", "U3", "V3"])
def test_short_elements_are_stored_from_memory_of_the_caller(tmp_path: Path, kind: str) -> None:
    """A single element of a text is a scalar without the zeros at its end, so that two of them made a shorter type: StreamError."""
    values = np.array([b"12", b"3\0\0", b"44", b"5"], "S3")
    values = values.view("V3") if kind == "V3" else values.astype(kind)
    array = zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype=kind)
    with shardcodec.stream(array, copy=False, max_delay="60s") as labels:
        for i in range(4):
            labels.append(values[i : i + 1])
    assert (zarrs_view(array)[...] == values).all()


def test_python_integers_are_elements_of_unsigned_arrays(tmp_path: Path) -> None:
    """numpy makes signed integers of them, which are not cast to unsigned ones."""
    for dtype in ("uint8", "uint64"):
        array = zarr.create_array(tmp_path / dtype, shape=(6,), chunks=(2,), dtype=dtype)
        with shardcodec.stream(array) as numbers:
            assert numbers.append(7) == 1 and numbers.append([0, 255]) == 2
            for wrong in (-1, [3, -2], np.int64(3), np.array([3])):
                with pytest.raises(TypeError, match=dtype):
                    numbers.append(wrong)
            if dtype == "uint8":
                with pytest.raises(TypeError, match="256"):
                    numbers.append([1, 256])
            assert numbers.position == 3
        assert array[:4].tolist() == [7, 0, 255, 0]


@pytest.mark.parametrize("dtype", ["uint64", ">u8"])
def test_integers_of_which_numpy_makes_floats_are_stored(tmp_path: Path, dtype: str) -> None:
    """No integer type of NumPy's choice has 0 and 2**64 - 1, so a list of them became floats and was refused."""
    rows = [[1, (1 << 64) - 1], [1 << 63, 0], [(1 << 63) + 1, 1]]
    array = zarr.create_array(tmp_path / "a", shape=(3, 2), chunks=(1, 2), dtype=dtype)
    with shardcodec.stream(array) as numbers:
        assert numbers.append(rows[0]) == 1 and numbers.append(rows[1:]) == 2
        for wrong in ([1.0, 2.0], [1, 1 << 64], [-1, 1 << 63], [[1, 0.5]]):
            with pytest.raises(TypeError, match=np.dtype(dtype).name):
                numbers.append(wrong)
    assert array[...].tolist() == rows


@pytest.mark.parametrize(("dtype", "wrong"), [
    ("int8", 128), ("int8", [[1, -129], [3, 4]]),
    ("int16", np.array([1, 1 << 15], dtype=object)),
    ("int64", 1 << 63), ("int64", [1, 1 << 70]), ("uint64", [1 << 64]),
    ("uint8", np.array([3, -1], dtype=object)), ("int16", [np.int64(1 << 20)]),
])  # fmt: skip
def test_python_integers_that_do_not_fit_are_refused(tmp_path: Path, dtype: str, wrong: Any) -> None:
    """NumPy's cast took 300 into int8 as 44, without a word."""
    shape = (12, *np.shape(wrong)[1:])
    array = zarr.create_array(tmp_path / "a", shape=shape, chunks=(2, *shape[1:]), dtype=dtype)
    limits = np.iinfo(dtype)
    with shardcodec.stream(array) as numbers:
        with pytest.raises(TypeError, match=f"cannot represent -?[0-9]+ as {dtype}, expected integers from"):
            numbers.append(wrong)
        assert numbers.position == 0
        for fits in (np.full(shape[1:], limits.max).tolist(), np.full(shape[1:], limits.min, dtype=object)):
            assert numbers.append(fits) == 1
        with pytest.raises(TypeError, match=f"expected {dtype}, got object"):
            numbers.append(np.full(shape[1:], 1.5, dtype=object))
    assert (array[:3] == np.array([limits.max, limits.min, 0]).reshape(3, *[1] * (len(shape) - 1))).all()


def test_close_names_frames_that_came_too_late(tmp_path: Path) -> None:
    """A frame of another thread, taken after the last update and before the end, was dropped without a word."""
    array = zarr.create_array(tmp_path / "a", shape=(9,), chunks=(1,), dtype="uint8")
    numbers: Any = shardcodec.stream(array, max_delay=60)
    end_record = numbers._writers.end_record
    numbers._writers.end_record = lambda queue: (end_record(queue), numbers.append([5, 6]))
    numbers.append([1, 2, 3])
    with pytest.raises(shardcodec.StreamError, match=r"2 frames came while .* numbers 3-4") as caught:
        numbers.close()
    assert caught.value.numbers == (3, 4) and array[:5].tolist() == [1, 2, 3, 0, 0]
    numbers.close()
