# tail.py - frames of a stream as they become readable
# SPDX-License-Identifier: MIT
"""`tail`: follows a stream, in any process that can read the array."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..access.array import Array, objects_of
from ..arguments import checked
from ..errors import names_array
from ..storage.retry import retry
from ..storage.url_stores import target_name
from .order import FrameOrder, Positions
from .record import read_record
from .target import handle_on, seconds_of

__all__ = ["tail"]

Ints = tuple[int, ...]


@names_array(target_name)
@checked
def tail(
    array: Any,
    start: int = 0,
    *,
    positions: Iterable[Any] | None = None,
    timeout: str | float | None = None,
    poll: str | float = "20ms",
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Ints, np.ndarray[Any, Any]]]:
    """Yield the frames of a stream in their order, as they become readable.

    Parameters
    ----------
    array : path, URL, zarr Store, zarr Array or Array
        The array into which `stream` writes, here or in another process.
    start : int
        Number of the first frame.
    positions : iterable, optional
        As for `stream`, if the stream has them.
    timeout : str or float, optional
        Seconds to wait for a frame. Default: no limit.
    poll : str or float
        Seconds between two looks.
    storage_options : mapping, optional
        Only with a URL, as for `open_array`.

    Yields
    ------
    place : tuple of int
        Place of the frame along the axes of the stream.
    frame : ndarray
        Its elements. A frame that was dropped has the fill value.

    Raises
    ------
    TimeoutError
        No frame came in `timeout` seconds.
    FileNotFoundError, SpecError, UnsupportedError, ShardFormatError, ChecksumError, CodecError
        As for `open_array` and its reads.
    TypeError, ValueError
        An argument is invalid, or the stream has positions that are not given.

    Notes
    -----
    The iteration ends when the stream is closed and all of its frames were yielded. After the end of the process that writes, without
    `close`, it waits for a stream that resumes.

    Examples
    --------
    >>> array = zarr.create_array("run.zarr", shape=(2, 4, 4), chunks=(1, 4, 4), dtype="uint8")
    >>> with shardcodec.stream("run.zarr", axis=0) as frames:
    ...     taken = [frames.append(np.full((4, 4), number + 7, "uint8")) for number in range(2)]
    >>> for place, frame in shardcodec.tail("run.zarr", timeout="10s"):
    ...     print(place, frame.max())
    (0,) 7
    (1,) 8
    """
    if start < 0:
        raise ValueError(f"start: expected a number that is not negative, got {start}")
    limit = None if timeout is None else seconds_of(timeout, "timeout")
    handle = handle_on(array, storage_options, writes=False)
    return _Follower(handle, start, positions, limit, seconds_of(poll, "poll")).frames()


class _Follower:
    """Follows the stream of one array from the frame `number` on."""

    def __init__(self, array: Array, number: int, positions: Any, timeout: float | None, poll: float) -> None:
        self._array = array
        self._folder = objects_of(array)[0].folder
        self._number = number
        self._positions = positions
        self._timeout = timeout
        self._poll = poll
        self._n_readable = 0
        self._is_open = True
        self._order: FrameOrder | None = None
        self._axes: Ints = ()

    def frames(self) -> Iterator[tuple[Ints, np.ndarray[Any, Any]]]:
        """Yield frames until the stream has ended."""
        seen = time.monotonic()
        while self._is_open or self._number < self._n_readable:
            if self._number >= self._n_readable:
                self._look()
            if self._number < self._n_readable:
                yield self._next()
                seen = time.monotonic()
            elif self._is_open:
                self._wait(seen)

    def _wait(self, seen: float) -> None:
        if self._timeout is not None and time.monotonic() - seen >= self._timeout:
            raise TimeoutError(
                f"array {self._folder!r}: expected frame {self._number} within {self._timeout:g} s, but {self._n_readable} frames "
                "are readable and the stream is not closed"
            )
        time.sleep(self._poll)

    def _look(self) -> None:
        """Find out how many frames are readable now."""
        record = retry(lambda: read_record(self._folder))
        if record is None:
            return
        if self._order is None:
            self._begin(record)
        n = record["frames"]
        if record["grows"] and n > self._n_readable:
            self._array.refresh()
            assert self._order is not None
            n = min(n, self._array.shape[self._axes[0]] * self._order.n_inner)
        self._n_readable, self._is_open = n, bool(record["open"])

    def _begin(self, record: Mapping[str, Any]) -> None:
        if record["positions"] and self._positions is None:
            raise ValueError(
                f"array {self._folder!r}: expected `positions`, because the frames do not come in C order"
            )
        self._axes = tuple(record["axes"])
        extents = tuple(self._array.shape[axis] for axis in self._axes)
        (positions,) = Positions.copies(self._positions if record["positions"] else None, 1)
        self._order = FrameOrder(extents, positions, self._number, grows=bool(record["grows"]))

    def _next(self) -> tuple[Ints, np.ndarray[Any, Any]]:
        assert self._order is not None
        self._number, place = self._order.take()
        self._number += 1
        selection: list[Any] = [slice(None)] * self._array.ndim
        for axis, at in zip(self._axes, place, strict=True):
            selection[axis] = at
        return place, self._array.read(tuple(selection), kind="basic")
