# record.py - the record beside an array: how many frames of its stream are stored
# SPDX-License-Identifier: MIT
"""`StreamRecord`: the object ``shardcodec-stream.json`` of an array, with the number of frames whose update has ended.

Which inner chunks exist does not tell it: the last one may have some of its frames, a dropped frame leaves none, and those of dark
frames equal the fill value. The record is replaced after each update, so after a kill it never counts a frame that is not stored.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ..access.box_reader import Folder
from ..access.documents import StoredDocument
from ..arguments import show
from ..errors import SpecError, StreamError
from ..format.array_document import json_object
from ..options import Options

__all__ = ["NAME", "StreamRecord", "counted_shape", "problem_of", "read_record"]

# Without a dot at its beginning, so that copies of the array have it.
NAME = "shardcodec-stream.json"
VERSION = 1


def read_record(folder: Folder) -> Mapping[str, Any] | None:
    """Return the record of an array; None if no stream has written to it. ValueError: it is of another version, or malformed."""
    record = folder.document(NAME)
    if record is None:
        return None
    if (problem := problem_of(record)) is not None:
        raise ValueError(f"{folder!r}: {problem}")
    return record


def problem_of(record: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a record; None if `stream` can read it."""
    version = record.get("version")
    if version != VERSION:
        return f"expected a {NAME} of version {VERSION}, got version {version}"
    for name, kind in (("frames", int), ("axes", list)):
        if not isinstance(record.get(name), kind):
            return f"{NAME}: expected {name} of type {kind.__name__}, got {show(record.get(name))}"
    return None


def counted_shape(folder: Folder, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape that has all frames which the record of an array counts.

    A stream with `grow_every` stores frames before the shape counts them. After a kill they lie beyond the shape, until another
    stream resumes. After its end that is so for the frames of a last row that is not complete. A record that `stream` cannot read
    counts nothing, nor does one after whose end the shape was changed.
    """
    # a virtual store takes no stream, and may refuse a key that it does not know
    stored = folder.get(folder.prefix + NAME) if shape and folder.store.lists_all else None
    try:
        record = {} if stored is None else json_object(stored, NAME)
    except SpecError:
        record = {}
    axes = record.get("axes")
    if record.get("grows") is not True or problem_of(record) is not None:
        return tuple(shape)
    if not axes or not all(type(axis) is int and 0 <= axis < len(shape) for axis in axes):
        return tuple(shape)
    n_inner = max(1, math.prod(shape[axis] for axis in axes[1:]))
    if record.get("open") is not True and record["frames"] // n_inner != shape[axes[0]]:
        return tuple(shape)
    extent = max(shape[axes[0]], -(-record["frames"] // n_inner))
    return tuple(extent if axis == axes[0] else n for axis, n in enumerate(shape))


class StreamRecord:
    """The record as one stream keeps it.

    facts: members that do not change: ``axes``, numbers of axes; ``positions``, True if the order is not C order; ``grows``.
    """

    def __init__(self, folder: Folder, options: Options, facts: Mapping[str, Any]) -> None:
        self._folder, self._options = folder, options
        self._document = StoredDocument(folder, NAME)
        self._facts = facts
        self._stream = secrets.token_hex(8)

    def begin(self, n_frames: int) -> None:
        """Take the array over from an earlier stream, whose updates are errors from now on."""
        self._put(n_frames, is_open=True, begins=True)

    def check(self) -> None:
        """Raise StreamError if another stream has taken the array over.

        An update calls it under the locks of the objects that it writes: a program may stop at any moment, and go on when another
        one has stored its frames.
        """
        self._check(self._document.read())

    def publish(self, n_frames: int, *, is_open: bool = True) -> None:
        """Store the number of frames; StreamError: another stream has taken the array over."""
        self._put(n_frames, is_open=is_open)

    def _put(self, n_frames: int, *, is_open: bool, begins: bool = False) -> None:
        def changed(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
            if not begins:
                self._check(stored)
            return {
                "version": VERSION,
                "stream": self._stream,
                "frames": n_frames,
                "open": is_open,
                **self._facts,
            }

        self._document.change(changed, self._options)

    def _check(self, stored: Mapping[str, Any] | None) -> None:
        if stored is None:
            raise StreamError(
                f"array {self._folder!r}: expected the {NAME} of this stream, but it does not exist any more; the array was removed or "
                "made again: begin a new stream"
            )
        if stored.get("stream") != self._stream:
            raise StreamError(
                f"array {self._folder!r}: expected to be its only stream, but another one has begun since; of two programs that stream "
                "into one array, stop the older one"
            )
