# test_stream_programs.py - random programs with streams, compared with an array in memory
# SPDX-License-Identifier: MIT
"""Frames, flushes, dropped frames, and ends of the process without `close`, after which the stream is resumed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import zarr
from folder_machine import FolderMachine
from helpers import quiet, zarrs_view
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from live_frames import frame_of

import shardcodec
from shardcodec import tools

pytestmark = pytest.mark.slow

T, P, C, Y, X = 7, 4, 3, 4, 3


class StreamPrograms(FolderMachine):
    """Axes of the array: p, t, c, y, x; frames come by t, then p, then c."""

    @initialize(
        direct=st.booleans(),
        shard_t=st.sampled_from([1, 4, 8]),
        chunk=st.sampled_from([(1, 1, 1), (1, 2, 1), (1, 1, 3), (2, 2, 3)]),
        grows=st.booleans(),
        codec=st.sampled_from(["auto", None]),
    )
    def create(self, direct: bool, shard_t: int, chunk: Any, grows: bool, codec: Any) -> None:
        self.begin(direct=direct)
        self.grows = grows
        shard_t = max(shard_t, chunk[1])
        with quiet():
            zarr.create_array(
                self.folder / "a",
                shape=(P, 0 if grows else T, C, Y, X),
                shards=(2, shard_t, 3, Y, X),
                chunks=(*chunk, Y, X),
                dtype="uint16",
                compressors=codec,
            )
        self.twin = np.zeros((P, T, C, Y, X), "uint16")
        self.n = self.n_sure = 0
        self.stream: Any = None

    def teardown(self) -> None:
        if getattr(self, "stream", None) is not None:
            self.stream.close()
        super().teardown()

    def place(self, number: int) -> tuple[int, int, int]:
        t, rest = divmod(number, P * C)
        p, c = divmod(rest, C)
        return p, t, c

    @precondition(lambda self: hasattr(self, "n") and self.stream is None)
    @rule(
        delay=st.sampled_from([0, 0.0005, 3600]),
        max_frames=st.sampled_from([None, 1, 5]),
        room=st.sampled_from([2, 9, 1000]),
        grow_every=st.integers(1, 20),
        copy=st.booleans(),
    )
    def open(self, delay: float, max_frames: int | None, room: int, grow_every: int, copy: bool) -> None:
        self.stream = shardcodec.stream(
            self.folder / "a",
            axis=(1, 0, 2),
            resume=True,
            grow_every=grow_every if self.grows else None,
            max_delay=delay,
            max_frames=max_frames,
            queue=room * 64,
            copy=copy,
        )
        assert self.n_sure <= self.stream.position <= self.n
        self.n = self.n_sure = self.stream.position

    @precondition(lambda self: getattr(self, "stream", None) is not None)
    @rule(n=st.integers(1, 15), together=st.booleans())
    def append(self, n: int, together: bool) -> None:
        n = min(n, T * P * C - self.n)
        frames = [frame_of(self.n + i, (Y, X)) for i in range(n)]
        for i, frame in enumerate(frames):
            self.twin[self.place(self.n + i)] = frame
        if together and n:
            assert self.stream.append(np.stack(frames)) == n
        else:
            assert all(self.stream.append(frame) == 1 for frame in frames)
        self.n += n

    @precondition(lambda self: getattr(self, "stream", None) is not None)
    @rule(n=st.integers(1, 5))
    def drop(self, n: int) -> None:
        """Let frames meet a full queue."""
        n = min(n, T * P * C - self.n)
        writers, queue = self.stream._writers, self.stream._queue
        with writers._mutex:
            for _ in range(n):
                self.twin[self.place(self.n)] = 0
                for change, *arguments in queue.dropping():
                    change(*arguments)
                self.n += 1

    @precondition(lambda self: getattr(self, "stream", None) is not None)
    @rule()
    def flush(self) -> None:
        self.stream.flush()
        assert self.stream.stored == self.n
        self.n_sure = self.n

    @precondition(lambda self: getattr(self, "stream", None) is not None)
    @rule()
    def close(self) -> None:
        self.stream.close()
        self.stream, self.n_sure = None, self.n

    @precondition(lambda self: getattr(self, "stream", None) is not None)
    @rule(wait=st.booleans())
    def kill(self, wait: bool) -> None:
        """End the threads as a kill between two updates does; `test_stream_kills.py` kills within them."""
        if wait:
            threading.Event().wait(0.002)
        self.n_sure = max(self.n_sure, self.stream.stored)
        self.stream._writers.end()
        assert self.n_sure <= self.stream.stored
        self.stream = None

    def read_by_zarr(self) -> Any:
        """Read with zarr, which reports a wrong checksum if an index grows while it reads its end, see `docs/durability.md`."""
        array = zarrs_view(zarr.open_array(self.folder / "a"))
        for _ in range(20):
            try:
                return array[...]
            except ValueError as error:
                if self.stream is None or "checksum" not in str(error):
                    raise
        raise AssertionError("zarr could not read the array in 20 attempts")

    @invariant()
    def what_is_stored_is_right(self) -> None:
        if not hasattr(self, "n"):
            return
        n = self.n_sure if self.stream is None else max(self.n_sure, self.stream.stored)
        own = shardcodec.open_array(self.folder / "a")[...]
        for values in own, self.read_by_zarr():
            rows = values.shape[1]
            if self.grows:
                assert rows * P * C <= self.n
            for number in range(min(n, rows * P * C)):
                at = self.place(number)
                assert (values[at] == self.twin[at]).all(), number
        if self.stream is None:
            assert tools.verify(self.folder / "a", level="decode").n_findings == 0


TestStreamPrograms = StreamPrograms.TestCase
TestStreamPrograms.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
