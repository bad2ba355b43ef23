# target.py - the array that takes the frames of a stream
# SPDX-License-Identifier: MIT
"""`FrameTarget`: stores frames in one update of an array, also beyond its shape, and tells whether an update is readable at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..access.array import Array, grow, objects_of, open_array, reopened
from ..access.array_request import Request
from ..access.array_write import NewChunks, encode_ahead, write_request_blocking
from ..access.box_reader import ArrayObjects, Folder
from ..access.buffer import flush_names, is_any_buffered
from ..access.placement import Facts, way_to_append
from ..access.regions import Box
from ..arguments import show
from ..compat import ArrayConfig, spec_with
from ..errors import UnsupportedError
from ..mounts import Descriptor
from ..options import Options, check, override
from ..storage.file_systems import appends, appends_directly

__all__ = ["Frame", "FrameTarget", "handle_on", "seconds_of"]

Ints = tuple[int, ...]
Values = np.ndarray[Any, Any]

# Extent of an axis without an edge.
_NO_EDGE = 1 << 62

_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


class Frame(NamedTuple):
    """A frame in the queue: ``source[row]``. slot: its part of the memory of the queue. time: when it came, in seconds."""

    number: int
    place: Ints
    source: Values
    row: int
    slot: int
    time: float

    def follows(self, other: Frame) -> bool:
        """Return True if the frame lies behind another one in memory."""
        return self.source is other.source and self.row == other.row + 1


class FrameUpdate(NamedTuple):
    """Frames that are ready to be stored. chunks: their encoded inner chunks; None: they are encoded when they are stored."""

    request: Request
    chunks: NewChunks | None


class FrameTarget:
    """An array that takes frames. axes: those of the stream, slowest first."""

    def __init__(self, array: Array, axes: Ints) -> None:
        self.array = array
        self.axes = axes
        self.options: Options
        self._objects, self.options = objects_of(array)
        self._spec = spec_with(ArrayConfig.from_dict({"write_empty_chunks": True}))
        self._others = tuple(axis for axis in range(array.ndim) if axis not in axes)
        self.frame_shape: tuple[int, ...] = tuple(array.shape[axis] for axis in self._others)
        self.frame_nbytes: int = int(np.prod(self.frame_shape, dtype=np.int64)) * array.dtype.itemsize
        self.chunk_extents: tuple[int, ...] = tuple(array.chunks[axis] for axis in axes)
        self.shard_extents: tuple[int, ...] = tuple((array.shards or array.chunks)[axis] for axis in axes)
        if array.dtype.hasobject or array.dtype.kind == "T":
            raise UnsupportedError(f"array {array!r}: expected elements of a fixed size for a stream")
        if not self.frame_nbytes:
            raise ValueError(f"array {array!r}: expected frames with elements, got shape {self.frame_shape}")

    @property
    def folder(self) -> Folder:
        """The objects of the array."""
        return self._objects.folder

    def prepare(self, frames: Sequence[Frame]) -> FrameUpdate:
        """Collect frames in one update."""
        source, indexes = _joined(frames)
        places = np.array([frame.place for frame in frames], dtype=np.int64)
        return FrameUpdate(self._block(source, indexes, places) or self._boxes(source, indexes, places), None)

    def encoded(self, update: FrameUpdate) -> FrameUpdate:
        """Encode the inner chunks of an update, if it has all their frames. Other frames may be stored meanwhile."""
        return update._replace(chunks=encode_ahead(update.request, self.options))

    def store(self, update: FrameUpdate, check: Callable[[], None] | None = None) -> None:
        """Store frames in one update of each object that they touch; `check` and errors as for `write_request_blocking`."""
        request = update.request
        if is_any_buffered():  # the buffer would store older elements over the frames
            flush_names(self.folder.store.lock_names([item.key for item in request.items]))
        write_request_blocking(request, self.options, update.chunks, check)

    def grow(self, extent: int, check: Callable[[], None]) -> None:
        """Make the array at least `extent` elements long along the first axis of the stream; `check` as for `grow` of arrays."""
        if extent > self.array.shape[self.axes[0]]:
            grow(self.array, self.axes[0], extent, check)

    @property
    def encodes_ahead(self) -> bool:
        """True if frames are encoded before their objects are locked: their codecs take time, and they are appended."""
        chain = self._objects.chain
        return chain.is_shard and chain.inner.fixed_nbytes is None and chain.stage is None

    def is_readable_after_update(self) -> bool:
        """Return True if an update costs little more than its frames; False: shards must be replaced as a whole."""
        objects, chain = self._objects, self._objects.chain
        store = objects.folder.store
        folder = store.path(objects.folder.prefix + "zarr.json")
        if not chain.is_shard or (folder is None and store.is_near):
            return True
        if folder is None:
            return False
        with Descriptor(folder.rpartition("/")[0]) as fd:
            facts = Facts(
                index_nbytes=chain.index_nbytes,
                index_at_start=chain.index_at_start,
                index_checksum=chain.index_checksums > 0,
                new_nbytes=0,
                n_links=1,
                appends=appends(fd),
                direct=appends_directly(folder, fd),
                sync=self.options.durability == "fsync",
            )
        return way_to_append(facts) is not None

    def _block(self, source: Values, indexes: Ints, places: Values) -> Request | None:
        """Return the request of frames that fill a box in C order and lie one behind the other in memory; None for others.

        The engine then knows which inner chunks are new as a whole.
        """
        low = places.min(axis=0)
        counts = tuple((places.max(axis=0) - low + 1).tolist())
        n, first = len(indexes), indexes[0]
        if n != np.prod(counts) or indexes != tuple(range(first, first + n)):
            return None
        if (np.ravel_multi_index(tuple((places - low).T), counts) != np.arange(n)).any():
            return None
        values = source[first : first + n].reshape(counts + self.frame_shape)
        start, count, of_values = [0] * self.array.ndim, [0] * self.array.ndim, [0] * self.array.ndim
        for number, axis in enumerate((*self.axes, *self._others)):
            of_values[axis] = number
            count[axis] = values.shape[number]
        for axis, at in zip(self.axes, low.tolist(), strict=True):
            start[axis] = at
        box = Box(tuple(start), tuple(count), None, (0,) * self.array.ndim)
        return self._request(self._objects_at(places).items(box), tuple(of_values), values)

    def _boxes(self, source: Values, indexes: Ints, places: Values) -> Request:
        """Return the request of frames at any places, each of them a box."""
        begin = np.zeros((len(indexes), self.array.ndim), dtype=np.int64)
        begin[:, self.axes] = places
        count = np.ones(self.array.ndim, dtype=np.int64)
        count[list(self._others)] = self.frame_shape
        items = self._objects_at(places).items_of_boxes(begin, count, indexes)
        values = source.reshape((len(source), *count.tolist()))
        return self._request(items, tuple(range(1, self.array.ndim + 1)), values)

    def _objects_at(self, places: Values) -> ArrayObjects:
        """Return the objects of the array, which know its edge; along the axes of frames beyond the shape there is none."""
        shape = list(self.array.shape)
        if any(
            last >= shape[axis] for axis, last in zip(self.axes, places.max(axis=0).tolist(), strict=True)
        ):
            for axis in self.axes:
                shape[axis] = _NO_EDGE
        return replace(self._objects, shape=tuple(shape))

    def _request(self, items: Sequence[Any], axes: Ints, values: Values) -> Request:
        return Request(
            self.folder.store, items, range(len(items)), axes, values, self._spec, names_paths=True
        )


def _joined(frames: Sequence[Frame]) -> tuple[Values, Ints]:
    """Return one array that has all frames, and their positions in it. Frames of different arrays are copied into a new one."""
    source = frames[0].source
    if all(frame.source is source for frame in frames):
        return source, tuple(frame.row for frame in frames)
    # parts and no elements: those of a text are scalars, which lose zeros at their end
    return np.concatenate([frame.source[frame.row : frame.row + 1] for frame in frames]), tuple(
        range(len(frames))
    )


def handle_on(
    target: Any, storage_options: Mapping[str, Any] | None, *, writes: bool, **choices: Any
) -> Array:
    """Return a handle on an array that the user names: a path, a URL, a store, a zarr array or a handle."""
    mode: Any = "r+" if writes else "r"
    chosen = {**check(choices), "compact": False}  # packing moves inner chunks under the hands of readers
    with override(chosen):
        if isinstance(target, Array):
            return reopened(target, mode, choices.get("threads"))
        place = getattr(target, "store_path", target)
        return open_array(place, mode=mode, threads=choices.get("threads"), storage_options=storage_options)


def seconds_of(value: str | float, name: str) -> float:
    """Return a duration in seconds: a number of them, or a text such as ``50ms``."""
    if not isinstance(value, str) and 0 <= value < math.inf:  # the text of a small number has an exponent
        return float(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value))
    factor = None if match is None else _SECONDS.get(match[2])
    if match is None or factor is None:
        raise ValueError(f"{name}: expected seconds, or a text such as '50ms' or '2s', got {show(value)}")
    return float(match[1]) * factor
