# errors.py - what can go wrong with a shard, as exceptions that carry their numbers
# SPDX-License-Identifier: MIT
"""Exceptions of shardcodec.

Every number in a message is also an attribute, so that no tool has to parse text. Arguments of the wrong
type or range stay `TypeError`, `ValueError` and `IndexError`; the `OSError` of a store passes through
untouched; memory that cannot be had is `MemoryError`.
"""

from __future__ import annotations

from typing import Any, Self

__all__ = [
    "ChecksumError",
    "CodecError",
    "ConflictError",
    "GroupWriteError",
    "LockError",
    "ShardError",
    "ShardFileError",
    "ShardFormatError",
    "SpecError",
    "UnsupportedError",
]


class ShardError(Exception):
    """Base of all errors of shardcodec.

    Parameters
    ----------
    message : str
        What was claimed, against what is true.
    **context
        Numbers and names behind the message; each becomes an attribute. Those below are always there and
        are None unless they were given; others may be added freely.

    Attributes
    ----------
    shard : str or int
        Key of the shard, or its position in a batch.
    chunk_coords : tuple of int
        Position of the inner chunk in the shard's grid.
    entry : int
        The same as a number: C order over the grid.
    level : int
        0 for the shard itself, 1 for a shard nested in one of its inner chunks, and so on.
    offset, nbytes : int
        The range that an index claims, or the size of something stored.
    limit
        The bound that was broken.
    expected, actual
        Two values that should have been equal.
    codec : str
        Name of a codec, as in Zarr metadata.
    path : str
        Place in the JSON metadata, such as ``codecs[0].configuration.chunk_shape[1]``.
    """

    shard: str | int | None = None
    chunk_coords: tuple[int, ...] | None = None
    entry: int | None = None
    level: int | None = None
    offset: int | None = None
    nbytes: int | None = None
    limit: Any = None
    expected: Any = None
    actual: Any = None
    codec: str | None = None
    path: str | None = None

    def __init__(self, message: str = "", /, **context: Any) -> None:
        # The message alone goes into `args`, the context lives in __dict__: that is what
        # BaseException.__reduce__ hands to pickle and copy, so neither needs help from us.
        super().__init__(message)
        for name, value in context.items():
            # None at class level is a declared attribute; all else is a method or part of the protocol.
            if getattr(type(self), name, None) is not None or name.startswith("_"):
                raise TypeError(f"{name!r} cannot be the name of a number of an error")
            setattr(self, name, value)

    @property
    def message(self) -> str:
        """The text, without the attributes."""
        return str(self.args[0]) if self.args else ""

    @property
    def context(self) -> dict[str, Any]:
        """The numbers and names that were given, for logs and JSON output."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def with_context(self, **context: Any) -> Self:
        """Return a new error that also says where this one happened.

        A shard and an inner chunk are put in front of the message (but not a shard without a name, which is in
        memory); all other names are only added as attributes. Lower layers know numbers, upper layers know keys, hence
        ``raise error.with_context(shard=key) from error``.

        Examples
        --------
        >>> str(ShardFormatError("index is short", nbytes=3).with_context(shard="c/0/1"))
        "shard 'c/0/1': index is short"
        """
        text = self.message
        if context.get("chunk_coords") is not None:
            text = f"inner chunk {tuple(context['chunk_coords'])}: {text}"
        if context.get("shard") not in (None, ""):
            text = f"shard {context['shard']!r}: {text}"
        error = type(self)(text, **(self.context | context))
        for note in getattr(self, "__notes__", ()):
            error.add_note(note)
        return error


# ValueError is the second base wherever zarr raises a plain ValueError for the same fault: what was written
# against zarr goes on working.


class ShardFormatError(ShardError, ValueError):
    """The bytes of a shard contradict its metadata: sizes, offsets, or an index that cannot be true."""


class ShardFileError(ShardError, OSError):
    """What is found under the name of a shard is no regular file, but for instance a FIFO or a device (``kind``).

    It was neither read nor written to. Also an `OSError`.
    """


class ChecksumError(ShardError, ValueError):
    """A stored checksum (``expected``) differs from that of the bytes (``actual``)."""


class CodecError(ShardError, ValueError):
    """A codec (``codec``) rejects its input, or cannot encode it."""


class SpecError(ShardError, ValueError):
    """Metadata breaks a rule of the specification; ``path`` says where in the JSON."""


class UnsupportedError(ShardError, NotImplementedError):
    """Valid, as far as can be told, but not something shardcodec does.

    Also a `NotImplementedError`, which is how zarr is told to go on with its own code.
    """


class LockError(ShardError, TimeoutError):
    """The lock of a shard was not obtained in time; nothing was written, and trying again later is safe.

    Also a `TimeoutError`, so that code which retries on time-outs covers it.
    """


class ConflictError(ShardError):
    """A transaction rests on a state of a shard (``expected``) that is not the present one (``actual``); nothing was written."""


class GroupWriteError(ShardError):
    """Of the shards that were to be stored together, some could not be.

    ``written`` and ``unwritten`` list their keys, ``failures`` maps the latter to exceptions; the first of those is the
    cause.
    """
