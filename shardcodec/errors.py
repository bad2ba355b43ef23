# errors.py - exceptions about shards, with their numbers as attributes
# SPDX-License-Identifier: MIT
"""Exceptions of shardcodec.

Every number in a message is also an attribute, so that no tool has to parse text. Arguments of the wrong
type or range raise `TypeError`, `ValueError` or `IndexError`; the `OSError` of a store passes through
unchanged; a failed allocation is a `MemoryError`.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, Self, TypeVar

__all__ = [
    "ChecksumError",
    "CodecError",
    "ConflictError",
    "ElementTypeError",
    "GroupWriteError",
    "LockError",
    "LockScopeError",
    "LockScopeWarning",
    "ShardError",
    "ShardFileError",
    "ShardFormatError",
    "SpecError",
    "StreamError",
    "StreamFullError",
    "UnsupportedError",
    "as_os_error",
    "name_array",
    "name_shard",
    "names_array",
    "os_error_of",
]


P = ParamSpec("P")
R = TypeVar("R")


class ShardError(Exception):
    """Base of all errors of shardcodec.

    Parameters
    ----------
    message : str
        What was expected and what was found.
    **context
        Numbers and names in the message; each becomes an attribute. The attributes below always exist and are
        None unless given; further ones may be added.

    Attributes
    ----------
    shard : str or int
        Key of the shard, or its position in a batch.
    chunk_coords : tuple of int
        Position of the inner chunk in the shard's grid.
    entry : int
        Number of the inner chunk, in C order over the grid.
    level : int
        0 for the shard itself, 1 for a shard nested in one of its inner chunks, and so on.
    offset, nbytes : int
        The range that an index claims, or the size of stored data, in bytes.
    limit
        The bound that was exceeded.
    expected, actual
        Two values that should be equal.
    codec : str
        Name of a codec, as in Zarr metadata.
    element : int
        The element that a codec cannot encode or decode, counted in the order in which the inner chunk stores its elements.
    element_coords : tuple of int
        The same by axis of the inner chunk.
    path : str
        Place in the JSON metadata, such as ``codecs[0].configuration.chunk_shape[1]``.
    array : str
        The array that was opened.
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
    element: int | None = None
    element_coords: tuple[int, ...] | None = None
    path: str | None = None
    array: str | None = None

    def __init__(self, message: str = "", /, **context: Any) -> None:
        # The message goes into `args` and the context into __dict__, because BaseException.__reduce__ gives exactly
        # these two to pickle and copy.
        super().__init__(message)
        for name, value in context.items():
            # None at class level is a declared attribute; any other value is a method or part of the protocol.
            if getattr(type(self), name, None) is not None or name.startswith("_"):
                raise TypeError(
                    f"expected a free name for an attribute of the error, got {name!r}, which is reserved"
                )
            setattr(self, name, value)

    @property
    def message(self) -> str:
        """The message, without the attributes."""
        return str(self.args[0]) if self.args else ""

    @property
    def context(self) -> dict[str, Any]:
        """The attributes that were given, for logs and JSON output."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def with_context(self, **context: Any) -> Self:
        """Return a new error that also names the place.

        Lower layers know numbers and upper layers know keys, hence ``raise error.with_context(shard=key) from error``.

        Parameters
        ----------
        **context
            Attributes of the new error. `array`, `shard` and `chunk_coords` are also prepended to the message, except a shard
            without a name, which is in memory.

        Returns
        -------
        ShardError
            An error of the same class.

        Examples
        --------
        >>> error = shardcodec.ShardFormatError("index is short", nbytes=3)
        >>> str(error.with_context(shard="c/0/1"))
        "shard 'c/0/1': index is short"
        """
        text = self.message
        if context.get("element_coords") is not None:
            text = text.replace(f"element {self.element}:", f"element {tuple(context['element_coords'])}:", 1)
        if context.get("chunk_coords") is not None:
            text = f"inner chunk {tuple(context['chunk_coords'])}: {text}"
        if context.get("shard") not in (None, ""):
            text = f"shard {context['shard']!r}: {text}"
        if context.get("array") is not None:
            text = f"array {context['array']!r}: {text.removeprefix(f'array {self.array!r}: ')}"
        error = type(self)(text, **(self.context | context))
        for note in getattr(self, "__notes__", ()):
            error.add_note(note)
        return error


# ValueError is a second base if zarr raises a plain ValueError for the same fault, so that code written for zarr works.


class ShardFormatError(ShardError, ValueError):
    """The bytes of a shard contradict its metadata: invalid sizes, offsets or index entries."""


class ShardFileError(ShardError, OSError):
    """The path of a shard is not a regular file but, for example, a FIFO or a device (``kind``).

    It was neither read nor written. Also an `OSError`.
    """


class ChecksumError(ShardError, ValueError):
    """The checksum of the bytes (``actual``) differs from the stored one (``expected``)."""


class CodecError(ShardError, ValueError):
    """A codec (``codec``) cannot decode or encode its input."""


class ElementTypeError(CodecError, TypeError):
    """A codec cannot encode an element because of its type, such as a number in an array of text.

    Also a `TypeError`, which zarr raises.
    """


class SpecError(ShardError, ValueError):
    """Metadata violates the specification; ``path`` is the place in the JSON."""


class UnsupportedError(ShardError, NotImplementedError):
    """A feature that may be valid but that shardcodec does not implement.

    Also a `NotImplementedError`, so that zarr continues with its own code.
    """


class LockError(ShardError, TimeoutError):
    """The lock of a shard was not obtained in time; nothing was written, and a retry is safe.

    Also a `TimeoutError`, so that code that retries after timeouts handles it.
    """


class LockScopeError(ShardError):
    """With ``locking="cluster"``: writers on other nodes would not be excluded; nothing was written.

    ``mount`` and ``file_system`` name the mount (None for other stores), ``scope`` says how far its locks reach, and
    ``reason`` names the option or the property that decides.
    """


class LockScopeWarning(RuntimeWarning):
    """Shardcodec's writers on other nodes, or in other processes, are not excluded; given once for each mount."""


class ConflictError(ShardError):
    """A transaction read a state of a shard (``expected``) that is no longer current (``actual``); nothing was written."""


class GroupWriteError(ShardError):
    """A block of `group_writes` could not store some of its shards.

    ``written`` and ``unwritten`` list the names of shards; ``failures`` maps the unwritten ones to their exceptions, the first
    of which is the cause.
    """


class StreamError(ShardError):
    """The writer of a `stream` could not store frames, or another stream has taken over its array.

    ``numbers`` lists the frames that are in the queue and not stored; the cause is the error of the writer. They stay in the queue,
    and the writer tries again after the error was raised, until the stream is closed.
    """


class StreamFullError(StreamError):
    """The queue of a stream with ``full="raise"`` had no room for a frame, which was not taken (``numbers`` has its number)."""


# The status of HTTP of a request that the service does not permit.
_FORBIDDEN = 403
# Packages whose errors are about data or arguments.
_NO_CLIENTS = frozenset({"builtins", "numcodecs", "numpy", "shardcodec", "zarr"}) | sys.stdlib_module_names


class as_os_error:  # noqa: N801
    """Raise an error of the client of a store as an `OSError`, as `os_error_of` returns it; `name` returns what was read."""

    __slots__ = ("_arguments", "_name")

    def __init__(self, name: Callable[..., str] = str, *arguments: Any) -> None:
        self._name, self._arguments = name, arguments

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        translated = os_error_of(error, self._name(*self._arguments))
        if translated is not error:
            raise translated from error


def os_error_of(error: Exception, place: str = "") -> Exception:
    """Return the `OSError` for an error of the client of a store; each client has classes of its own (obstore, botocore, icechunk).

    Errors of Python, zarr, shardcodec and of handlers of signals are returned unchanged. `place` names what was read.
    """
    is_no_client = isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _NO_CLIENTS
    if is_no_client or is_of_signal_handler(error):
        return error
    text = str(error).partition("\n\nDebug source:")[0] or "no message"
    name = type(error).__name__
    is_forbidden = "PermissionDenied" in name or getattr(error, "status", None) == _FORBIDDEN
    return (PermissionError if is_forbidden else OSError)(f"{place and f'{place}: '}{name}: {text}")


def is_of_signal_handler(error: BaseException) -> bool:
    """Return True if a handler of the program, such as one that ends what takes too long, has raised an error."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = filter(callable, map(signal.getsignal, signal.valid_signals()))
    functions = (getattr(handler, "func", handler) for handler in handlers)
    codes = [
        getattr(one, "__code__", None) or getattr(type(one).__call__, "__code__", None) for one in functions
    ]
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def name_shard(error: ShardError, describe: Callable[[str], str]) -> None:
    """Add the whole name of a shard to an error that has its key, which does not say in which of many arrays it is.

    describe: it makes the name of a key.
    """
    if isinstance(error.shard, str) and not error.shard.startswith("/"):  # a path is its whole name
        name = describe(error.shard)
        if name not in "\n".join([str(error), *getattr(error, "__notes__", ())]):
            error.add_note(f"shard {name!r}")


def name_array(error: Exception, name: str) -> None:
    """Put the name of an array in front of the message of an error, or in a note, unless the error has it."""
    known = [str(error), *getattr(error, "__notes__", ())]
    if isinstance(error, ShardError):
        error.array = error.array or name
    if not name or any(
        text.startswith("array ") or repr(name) in text or ("/" in name and name in text) for text in known
    ):
        return
    text = f"array {name!r}"
    is_plain = type(error) in (IndexError, TypeError, ValueError, OverflowError) and len(error.args) == 1
    if is_plain or isinstance(error, ShardError):
        error.args = (f"{text}: {known[0]}",)
    else:  # other classes keep more than a message in `args`
        error.add_note(text)


def names_array(name_of: Callable[..., str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for functions whose errors name the array; `name_of` makes its name of the same arguments."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                name_array(error, name_of(*args, **kwargs))
                raise

        return call

    return decorated
