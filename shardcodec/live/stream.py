# stream.py - frames of a running instrument into arrays
# SPDX-License-Identifier: MIT
"""`stream`: frames that come one after the other are stored in the background, and can be read after each update."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, overload

import numpy as np

from .. import native
from ..access.array import Array, document_of
from ..access.box_reader import name_of_handle
from ..arguments import checked
from ..errors import StreamError, names_array
from ..options import Durability
from ..readable import format_nbytes, format_ranges, parse_nbytes
from .frame_queue import FrameMemory, StreamLimits, StreamQueue
from .order import FrameOrder, Positions, axes_of
from .record import NAME, StreamRecord, read_record
from .target import FrameTarget, handle_on, seconds_of
from .writers import Full, StreamWriters

__all__ = ["Stream", "StreamGroup", "StreamStats", "stream"]

# Bytes of the frames of one update. An append takes at most twice as many (`access.placement.APPEND_NBYTES`).
UPDATE_NBYTES = 32 << 20

AFTER_UPDATE, WITH_SHARD = "after each update", "when a shard is full"


@dataclass(frozen=True)
class StreamStats:
    """Counters of a stream since its start.

    Parameters
    ----------
    frames_queued, bytes_queued : int
        Frames that wait, and their size in bytes.
    frames_stored, bytes_stored : int
        Frames whose update has ended, and their decoded size in bytes.
    frames_dropped, bytes_dropped : int
        Frames that were dropped because the queue was full.
    updates : int
        Updates that have ended.
    slowest_update : float
        Seconds of the slowest update.
    """

    frames_queued: int
    bytes_queued: int
    frames_stored: int
    bytes_stored: int
    frames_dropped: int
    bytes_dropped: int
    updates: int
    slowest_update: float


@overload
def stream(
    arrays: list[Any] | tuple[Any, ...],
    axis: Any = ...,
    *,
    start: int | None = ...,
    positions: Iterable[Any] | None = ...,
    resume: bool = ...,
    grow_every: int | None = ...,
    max_delay: str | float = ...,
    max_frames: int | None = ...,
    queue: str | int = ...,
    full: Full = ...,
    copy: bool = ...,
    durability: Durability | None = ...,
    threads: int | None = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> StreamGroup: ...


@overload
def stream(
    arrays: Any,
    axis: Any = ...,
    *,
    start: int | None = ...,
    positions: Iterable[Any] | None = ...,
    resume: bool = ...,
    grow_every: int | None = ...,
    max_delay: str | float = ...,
    max_frames: int | None = ...,
    queue: str | int = ...,
    full: Full = ...,
    copy: bool = ...,
    durability: Durability | None = ...,
    threads: int | None = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> Stream: ...


@checked
def stream(
    arrays: Any,
    axis: Any = 0,
    *,
    start: int | None = None,
    positions: Iterable[Any] | None = None,
    resume: bool = False,
    grow_every: int | None = None,
    max_delay: str | float = "50ms",
    max_frames: int | None = None,
    queue: str | int = "256MiB",
    full: Full = "block",
    copy: bool = True,
    durability: Durability | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Stream | StreamGroup:
    """Begin to store frames that come one after the other. `append` returns at once; threads encode and store the frames.

    Parameters
    ----------
    arrays : path, URL, zarr Store, zarr Array or Array, or a list of them
        The array that takes the frames. Several arrays, such as positions or levels of a pyramid, get a stream each; their streams
        share threads and the queue.
    axis : int or str, or a sequence of them
        The axis along which frames come, as a number or the name of a dimension. Several axes: in order of acquisition, the slowest
        first. A frame has the other axes.
    start : int, optional
        Number of the first frame; those before it need not exist. Default: 0, or the end of an array that grows.
    positions : iterable of int or of tuple of int, optional
        Place of each frame along the axes, from frame 0 on. Default: C order.
    resume : bool
        Go on behind the last frame whose update had ended in an earlier stream; the number of this frame is `Stream.position`. An array
        without an earlier stream is begun.
    grow_every : int, optional
        The first axis has no end: after so many frames, and at each `flush`, the shape in the metadata is set to what is stored. Default:
        the shape is fixed, and frames that are not stored have the fill value.
    max_delay : str or float
        Time until the update of a frame begins at the latest, while the writer keeps up: ``"50ms"``, or seconds. Frames that come
        meanwhile are stored in the same update.
    max_frames : int, optional
        Most frames of an update. Default: 32 MiB of frames, and at least an inner chunk.
    queue : str or int
        Memory for frames that wait, in bytes.
    full : {"block", "raise", "drop"}
        What `append` does while the queue is full: wait, raise `StreamFullError`, or drop the frame and count it. The place of a
        dropped frame stays empty.
    copy : bool
        Copy frames. With False, the caller does not change an array that it has given before `flush` returns.
    durability : {"rename", "fsync"}, optional
        As in `shardcodec.options`. With "fsync", the frames of an update are on the disk when it ends.
    threads : int, optional
        As in `shardcodec.options`: threads of an update.
    storage_options : mapping, optional
        Only with URLs, as for `open_array`.

    Returns
    -------
    Stream or StreamGroup
        A context manager; a `StreamGroup` for a list of arrays.

    Raises
    ------
    FileNotFoundError, SpecError, UnsupportedError
        As for `open_array`.
    TypeError, ValueError
        An argument is invalid; an array is opened for reading only; or it has frames of an earlier stream, and neither `resume` nor
        `start` says what to do.

    Warns
    -----
    RuntimeWarning
        Shards cannot be appended to in this store: frames can be read when their shard is full.

    Notes
    -----
    A process that is killed loses the frames that wait, and no frame whose update has ended. The object ``shardcodec-stream.json``
    beside the metadata of the array says how many these are. One stream at a time writes into an array.

    Examples
    --------
    >>> array = zarr.create_array("run.zarr", shape=(2, 4, 4), chunks=(1, 4, 4), dtype="uint8")
    >>> with shardcodec.stream("run.zarr", axis=0) as frames:
    ...     taken = [frames.append(np.full((4, 4), number + 7, "uint8")) for number in range(2)]
    >>> array[:, 0, 0].tolist()
    [7, 8]
    """
    is_group = isinstance(arrays, list | tuple)
    chosen: Sequence[Any] = arrays if is_group else [arrays]
    if not chosen:
        raise ValueError("arrays: expected at least one array, got an empty list")
    for name, value in (("start", start), ("grow_every", grow_every), ("max_frames", max_frames)):
        least = 0 if name == "start" else 1
        if value is not None and value < least:
            raise ValueError(f"{name}: expected a number of {least} or more, got {value}")
    if grow_every is not None and positions is not None:
        raise ValueError(
            "grow_every: expected None with `positions`, because the first axis grows in C order"
        )
    delay, nbytes = seconds_of(max_delay, "max_delay"), parse_nbytes(queue, "queue")
    options = {
        "write_strategy": "append",
        "durability": durability,
        "threads": threads,
    }
    handles = [handle_on(each, storage_options, writes=True, **options) for each in chosen]
    targets = [_target_of(each, axis) for each in handles]
    _check_different(targets)
    memory = FrameMemory(nbytes, max(target.frame_nbytes for target in targets))
    queues = []
    for target, places in zip(targets, Positions.copies(positions, len(targets)), strict=True):
        limits = _limits(target, memory, delay, max_frames, grow_every)
        queues.append(_queue_of(target, places, limits, start, resume=resume))
    for each in queues:  # after all checks
        each.begin()
    writers = StreamWriters(
        queues, memory, min(sum(queue.n_threads for queue in queues), targets[0].options.threads)
    )

    def begin() -> Stream | StreamGroup:
        writers.start()
        streams = [Stream(each, writers, memory, full, copy, ends_threads=not is_group) for each in queues]
        return StreamGroup(streams, writers) if is_group else streams[0]

    begun: Stream | StreamGroup = native.load().call_or_undo(begin, lambda *_: writers.end())
    return begun


@names_array(name_of_handle)
def _target_of(array: Array, axis: Any) -> FrameTarget:
    return FrameTarget(array, axes_of(axis, array.ndim, document_of(array)))


def _check_different(targets: Sequence[FrameTarget]) -> None:
    """Raise ValueError if an array is given twice: its second stream would take it over from the first one."""
    seen: set[str] = set()
    for target in targets:
        (name,) = target.folder.store.lock_names([target.folder.prefix + NAME])
        if name in seen:
            raise ValueError(f"arrays: expected different arrays, got {target.folder!r} twice")
        seen.add(name)


@names_array(lambda target, *_: repr(target.folder))
def _limits(
    target: FrameTarget, memory: FrameMemory, delay: float, max_frames: int | None, grow_every: int | None
) -> StreamLimits:
    """Decide how many frames are stored together; warn if shards are stored as a whole."""
    n = max_frames or max(UPDATE_NBYTES // target.frame_nbytes, math.prod(target.chunk_extents))
    by_shard = not target.is_readable_after_update()
    if by_shard:
        in_shard = math.prod(target.shard_extents)
        if in_shard > memory.n_slots:
            raise ValueError(
                f"queue: expected room for the {in_shard} frames of a shard, which is stored as a whole in this store, got room for "
                f"{memory.n_slots} frames; choose shards with fewer frames, or a larger queue"
            )
        warnings.warn(
            f"{target.folder!r}: shards cannot be appended to in this store, so they are stored as a whole: up to {in_shard} frames of "
            f"each shard ({format_nbytes(in_shard * target.frame_nbytes)}) are in memory alone, and cannot be read, until the shard is "
            "full, or until `flush` or `close`",
            RuntimeWarning,
            stacklevel=5,
        )
    return StreamLimits(delay, max(1, min(n, memory.n_slots)), by_shard, grow_every)


@names_array(lambda target, *_, **__: repr(target.folder))
def _queue_of(
    target: FrameTarget,
    positions: Positions | None,
    limits: StreamLimits,
    start: int | None,
    *,
    resume: bool,
) -> StreamQueue:
    """Return the queue of a stream, which has not begun yet."""
    extents = tuple(target.array.shape[axis] for axis in target.axes)
    grows = limits.grow_every is not None
    n_inner = math.prod(extents[1:])
    if 0 in extents[1:] or (not grows and not extents[0]):
        raise ValueError(f"array {target.folder!r}: expected room for frames, got shape {target.array.shape}")
    facts = {"axes": list(target.axes), "positions": positions is not None, "grows": grows}
    earlier = read_record(target.folder)
    number = extents[0] * n_inner if grows else 0
    if earlier is not None and resume:
        other = {name: earlier.get(name) for name in facts}
        if other != facts:
            raise ValueError(f"resume: expected a stream as the earlier one, {other}, got {facts}")
        number = earlier["frames"]
    elif start is not None:
        number = start
    elif earlier is not None and earlier["frames"] > (number if grows else 0):
        raise ValueError(
            f"array {target.folder!r}: it has {earlier['frames']} frames of an earlier stream ({NAME}); use resume=True to go on behind "
            "them, or start=0 to write over them"
        )
    record = StreamRecord(target.folder, target.options, facts)
    return StreamQueue(target, FrameOrder(extents, positions, number, grows=grows), record, limits)


def _name_of_stream(stream: Stream, *_: Any, **__: Any) -> str:
    return repr(stream._queue.target.folder)


class Stream:
    """Takes the frames of one array; made by `stream`.

    Several threads may append; each frame gets the next number. After a fork, only the parent may use it. A stream that is not closed
    is stored when the interpreter ends.

    Parameters
    ----------
    queue, writers, memory, full, copy, ends_threads
        As `stream` makes them; `ends_threads` is False in a group.

    Attributes
    ----------
    readable : {"after each update", "when a shard is full"}
        When other processes can read frames.

    Examples
    --------
    >>> array = zarr.create_array("run.zarr", shape=(2, 4, 4), chunks=(1, 4, 4), dtype="uint8")
    >>> with shardcodec.stream("run.zarr", axis=0) as frames:
    ...     taken = frames.append(np.ones((4, 4), "uint8"))
    ...     frames.flush()
    ...     readable = int(array[0, 0, 0])
    >>> taken, readable
    (1, 1)
    """

    def __init__(
        self,
        queue: StreamQueue,
        writers: StreamWriters,
        memory: FrameMemory,
        full: Full,
        copy: bool,
        *,
        ends_threads: bool,
    ) -> None:
        self._queue = queue
        self._writers = writers
        self._full = full
        self._copies = copy
        self._ends_threads = ends_threads
        self._dtype = queue.target.array.dtype
        self._shape = queue.target.frame_shape
        self._slots = memory.slots(self._shape, self._dtype)
        self.readable = WITH_SHARD if queue.stores_shards else AFTER_UPDATE

    @property
    def position(self) -> int:
        """Number of the next frame."""
        return self._queue.order.number

    @property
    def stored(self) -> int:
        """Number of the first frame whose update has not ended; all before it are stored, or were dropped."""
        return self._queue.n_published

    @property
    def stats(self) -> StreamStats:
        """Counters since the start of the stream."""
        queued, stored, dropped, updates, slowest = self._writers.stats(self._queue)
        nbytes = self._queue.target.frame_nbytes
        return StreamStats(
            queued,
            queued * nbytes,
            stored,
            stored * nbytes,
            dropped,
            dropped * nbytes,
            updates,
            slowest,
        )

    @names_array(_name_of_stream)
    def append(self, frames: Any) -> int:
        """Take a frame, or several with one more axis in front.

        Parameters
        ----------
        frames : array_like
            Its shape is that of the array without the axes of the stream. Another data type is cast if NumPy's rule ``"same_kind"``
            permits it, and Python integers if the array has their values.

        Returns
        -------
        int
            Number of frames that were taken; fewer than were given if some were dropped.

        Raises
        ------
        StreamError
            Frames that were taken before could not be stored (``numbers``); they wait, and the writer tries again. This frame was not
            taken.
        StreamFullError
            With ``full="raise"``: the queue is full. This frame was not taken.
        IndexError
            The array has no room for a further frame.
        TypeError, ValueError
            The frame has another shape or data type; or the stream is closed.
        """
        self._writers.check_process()
        values = np.asarray(frames)
        if values.shape == self._shape:
            values = values[np.newaxis]
        elif values.shape[1:] != self._shape or values.ndim != len(self._shape) + 1:
            raise ValueError(
                f"frames: expected shape {self._shape}, or one more axis in front, got {values.shape}"
            )
        is_python = values.dtype.kind == "O" or not hasattr(frames, "dtype")
        if is_python and self._dtype.kind in "iu" and values.dtype.kind in "fiuO":
            values = self._as_integers(frames, values)
        elif not np.can_cast(values.dtype, self._dtype, "same_kind"):
            raise TypeError(f"frames: expected {self._dtype}, got {values.dtype}")
        is_given = not self._copies and values.dtype == self._dtype
        n_taken = 0
        for i in range(len(values)):
            if is_given:
                n_taken += self._writers.push(self._queue, values, i, None, self._full)
            else:  # cast before, because a warning or an error of it is Python code
                frame = values[i : i + 1].astype(self._dtype, copy=False)
                n_taken += self._writers.push(self._queue, frame, 0, self._slots, self._full)
        return n_taken

    def _as_integers(self, frames: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return Python integers, to which NumPy gives a type that it chooses, as elements of the array; TypeError: one does not fit."""
        given = values.dtype
        if given.kind == "f":  # NumPy's choice for integers if some are too large for int64
            values = np.asarray(frames, dtype=object).reshape(values.shape)
        try:
            numbers = (
                [*map(operator.index, values.flat)]
                if values.dtype.kind == "O"
                else [int(values.min(initial=0)), int(values.max(initial=0))]
            )
        except TypeError:
            raise TypeError(f"frames: expected {self._dtype}, got {given}") from None
        limits = np.iinfo(self._dtype)
        if wrong := [number for number in numbers if not limits.min <= number <= limits.max]:
            raise TypeError(
                f"frames: cannot represent {wrong[0]} as {self._dtype}, expected integers from {limits.min} to {limits.max}"
            )
        return values.astype(self._dtype)

    def flush(self) -> None:
        """Store all frames that were taken, and return when readers can see them.

        Where shards are stored as a whole, the last ones are stored with the frames that are there.

        Raises
        ------
        StreamError
            Frames could not be stored (``numbers``). They wait, and the writer tries again.
        ValueError
            The stream is closed.
        """
        self._writers.check_process()
        self._writers.flush(self._queue)

    def close(self) -> None:
        """Store all frames that were taken, and end the stream. A second call does nothing.

        Raises
        ------
        StreamError
            Frames could not be stored (``numbers``), and are given up.

        Notes
        -----
        An exception of a signal handler, as Ctrl-C, ends the wait. Its notes then have the numbers of the frames that are given up.
        """
        if self._queue.is_closed and (self._writers.has_ended or not self._ends_threads):
            return
        self._writers.check_process()
        native.load().call_or_undo(self._close, self._give_up)

    def _close(self) -> None:
        if not self._queue.is_closed:
            self._writers.flush(self._queue, is_last=True)
            self._writers.end_record(self._queue)
            if late := self._writers.give_up(self._queue):
                raise StreamError(
                    f"array {self._queue.target.folder!r}: {len(late)} frames came while the stream was being closed and are not "
                    f"stored, with the numbers {format_ranges(late)}",
                    numbers=tuple(late),
                )
        if self._ends_threads:
            self._writers.end()

    def _give_up(self, error: BaseException, is_again: bool) -> None:
        """Drop the frames that are not stored because of an error, which then names them; a second interrupt ends the wait for updates."""
        self._writers.give_up(self._queue, waits=not is_again)
        given_up = sorted(self._queue.given_up)
        note = (
            f"array {self._queue.target.folder!r}: {len(given_up)} frames were taken and are not stored, with the numbers "
            f"{format_ranges(given_up)}"
        )
        if given_up and not isinstance(error, StreamError) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        if self._ends_threads:
            self._writers.end(waits=not is_again)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close([self], error)

    def __repr__(self) -> str:
        return f"<Stream {self._queue.target.folder!r} position={self.position} stored={self.stored}>"


class StreamGroup(Sequence[Stream]):
    """The streams of several arrays, which share threads and a queue; made by `stream`.

    Parameters
    ----------
    streams, writers
        As `stream` makes them.

    Examples
    --------
    >>> for name in ("left.zarr", "right.zarr"):
    ...     array = zarr.create_array(name, shape=(2, 4, 4), chunks=(1, 4, 4), dtype="uint8")
    >>> with shardcodec.stream(["left.zarr", "right.zarr"], axis=0) as cameras:
    ...     taken = [camera.append(np.ones((4, 4), "uint8")) for camera in cameras]
    >>> taken
    [1, 1]
    """

    def __init__(self, streams: Sequence[Stream], writers: StreamWriters) -> None:
        self._streams = tuple(streams)
        self._writers = writers

    def __getitem__(self, number: Any) -> Any:
        return self._streams[number]

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams)

    def flush(self) -> None:
        """Store all frames that were taken; see `Stream.flush`."""
        for each in self._streams:
            each.flush()

    def close(self) -> None:
        """Close all streams; see `Stream.close`. The first error is raised after all were closed."""
        if self._writers.has_ended:
            return
        self._writers.check_process()
        native.load().call_or_undo(self._close, self._give_up)

    def _close(self) -> None:
        failure: StreamError | None = None
        for each in self._streams:
            try:
                each.close()
            except StreamError as error:  # the frames of the other streams are stored first
                failure = failure or error
        self._writers.end()
        if failure is not None:
            raise failure

    def _give_up(self, error: BaseException, is_again: bool) -> None:
        for each in self._streams:
            each._give_up(error, is_again)
        self._writers.end(waits=not is_again)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close([self], error)


def _close(streams: Sequence[Stream | StreamGroup], error: BaseException | None) -> None:
    """Close streams at the end of a block; an error of the block comes before one of the streams."""
    for each in streams:
        try:
            each.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))
