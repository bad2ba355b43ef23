# options.py - run-time options and their sources
# SPDX-License-Identifier: MIT
"""Run-time options: they change how the engine works, never the meaning of the stored bytes.

The first of these sources that has a value for an option determines it:

1. the argument of a call,
2. the innermost ``with shardcodec.options(...)`` around it,
3. the options attached to the array (by `shardcodec.attach`, or pickled with it),
4. zarr's configuration, key ``shardcodec.<name>``, which `shardcodec.enable` or zarr's environment variable
   ``ZARR_SHARDCODEC__<NAME>`` sets,
5. the environment variable ``SHARDCODEC_<NAME>`` (``SHARDCODEC_NUM_THREADS`` for ``threads``), read once per process,
6. the default.

Switches are for experts; only their environment variables set them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

__all__ = [
    "NAMES",
    "ORDERS",
    "SWITCHES",
    "Durability",
    "OptionChoices",
    "Options",
    "Order",
    "Setting",
    "WriteStrategy",
    "active",
    "available_cpus",
    "check",
    "environment",
    "flag",
    "in_force",
    "options",
    "override",
    "resolve",
    "settings",
    "thread_limits",
    "variable_of",
]

Choices = Mapping[str, Any]

Order = Literal["morton", "lexicographic", "colexicographic"]
ORDERS: tuple[Order, ...] = get_args(Order)
Durability = Literal["rename", "fsync"]
WriteStrategy = Literal["replace", "append", "in_place"]
Locking = Literal["process", "thread", "cluster"]

NOTHING: Choices = MappingProxyType({})

_active: ContextVar[Choices] = ContextVar("shardcodec.options", default=NOTHING)


@dataclass(frozen=True, kw_only=True)
class Options:
    """One value for every option and for every switch.

    The docstring of `options` describes the options. The switches are for experts: only environment variables set them, which
    ``docs/options.md`` lists.
    """

    threads: int
    order: Order = "morton"
    durability: Durability = "rename"
    write_strategy: WriteStrategy = "replace"
    strict: bool = False
    index_cache: int = 64 << 20
    cache: int = 0
    cache_dir: str | None = None
    immutable: bool = False
    locking: Locking = "process"

    compact: bool = True
    allow_in_index: bool = False
    cache_dir_bytes: int = 16 << 30
    open_files: int = 0
    io_depth: int | Literal["auto"] = "auto"
    io_latency: float | Literal["auto"] = "auto"
    lock_timeout: float = 60.0
    direct: bool = True
    staging_nbytes: int = 64 << 20

    @property
    def io_rules(self) -> dict[str, Any]:
        """The arguments of the engine for ``io_depth`` and ``io_latency``."""
        return {
            "io_depth": 0 if self.io_depth == "auto" else self.io_depth,
            "io_latency": None if self.io_latency == "auto" else self.io_latency,
        }


class OptionChoices(TypedDict, total=False):
    """Options as keywords of a call, for type checkers; None leaves an option unchanged."""

    threads: int | None
    order: Order | None
    durability: Durability | None
    write_strategy: WriteStrategy | None
    strict: bool | None
    index_cache: int | str | None
    cache: int | str | None
    cache_dir: str | os.PathLike[str] | None
    immutable: bool | None
    locking: Locking | None


NAMES = tuple(OptionChoices.__annotations__)
SWITCHES = tuple(field.name for field in fields(Options) if field.name not in NAMES)
# The names that a call or zarr's configuration may give. Tests add those of switches.
_settable = set(NAMES)


def _one_of(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"expected one of {', '.join(map(repr, allowed))}, got {value!r}")
        return str(value)

    return parse


# Limits of the engine's integers, checked here so that the error names the option and the number.
_MAX_COUNT, _MAX_NBYTES = 2**31 - 1, 2**63 - 1


def _number(least: int, most: int, of_text: Callable[[str], int] = int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        try:
            number = of_text(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = least - 1
        if isinstance(value, bool) or number < least:
            raise ValueError(f"expected a number of at least {least}, got {value!r}")
        if number > most:
            raise ValueError(f"expected a number of at most {most}, got {value!r}")
        return number

    return parse


def _size(text: str) -> int:
    from .readable import parse_nbytes  # here, because hardly an import of the package needs it

    return int(text) if text.isdigit() else parse_nbytes(text)


def _seconds(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(value, bool) or not number >= 0:
        raise ValueError(f"expected a number of at least 0, got {value!r}")
    return number


def _finite_seconds(value: object) -> float:
    number = _seconds(value)
    if math.isinf(number):
        raise ValueError(f"expected a finite number of at least 0, got {value!r}")
    return number


def _folder(value: object) -> str:
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str):
        raise ValueError(f"expected the path of a folder, got {value!r}")
    if not path or "\0" in path or "://" in path:
        raise ValueError(f"expected the path of a local folder, got {path!r}")
    return os.path.abspath(os.path.expanduser(path))


def _auto_or(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    def parse_either(value: object) -> Any:
        if isinstance(value, str) and value == "auto":
            return value
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or 'auto'") from None

    return parse_either


def flag(value: object) -> bool:
    """Return the meaning of a flag, also of one as text; anything else is a `ValueError`."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    result = words.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(result, bool | int) or result not in (True, False):
        raise ValueError(f"expected true or false, got {value!r}")
    return bool(result)


_PARSERS: dict[str, Callable[[object], Any]] = {
    "threads": _number(1, _MAX_COUNT),
    "order": _one_of(*ORDERS),
    "durability": _one_of(*get_args(Durability)),
    "write_strategy": _one_of(*get_args(WriteStrategy)),
    "compact": flag,
    "strict": flag,
    "allow_in_index": flag,
    "index_cache": _number(0, _MAX_NBYTES, _size),
    "cache": _number(0, _MAX_NBYTES, _size),
    "cache_dir": _folder,
    "cache_dir_bytes": _number(0, _MAX_NBYTES, _size),
    "open_files": _number(0, _MAX_COUNT),
    "immutable": flag,
    "io_depth": _auto_or(_number(1, _MAX_COUNT)),
    "io_latency": _auto_or(_finite_seconds),
    "locking": _one_of(*get_args(Locking)),
    "lock_timeout": _seconds,
    "direct": flag,
    "staging_nbytes": _number(1, _MAX_NBYTES, _size),
}


def check(choices: Choices, *, where: str = "option ") -> dict[str, Any]:
    """Return the parsed values of the options that are not None.

    Raises
    ------
    TypeError
        A name is not the name of an option.
    ValueError
        A value is invalid for its option.
    """
    parsed = {}
    for name, value in choices.items():
        if name not in _settable:
            raise TypeError(
                f"{where}{name}: set the environment variable {variable_of(name)} instead, before the program starts"
                if name in SWITCHES
                else f"shardcodec has no option {name!r}; expected one of {', '.join(NAMES)}"
            )
        if value is None:
            continue
        try:
            parsed[name] = _PARSERS[name](value)
        except ValueError as error:
            raise ValueError(f"{where}{name}: {error}") from None
    return parsed


@contextlib.contextmanager
def options(**choices: Unpack[OptionChoices]) -> Iterator[None]:
    """Set options for a block of code; they also apply to arrays that are already open.

    Parameters
    ----------
    **choices
        The options below; None leaves an option unchanged. They apply to this thread (or asyncio task) and its calls of zarr, not
        to threads of other libraries, such as dask's; use `enable` or `attach` for those.

    Other Parameters
    ----------------
    threads : int
        Threads of one call, including the calling thread. Default: the processors that the affinity and the cgroup
        quota of this process permit. zarr's ``threading.max_workers``, if set, is an upper bound.
    order : {"morton", "lexicographic", "colexicographic"}
        Order of the inner chunks in shards that are written whole.
    durability : {"rename", "fsync"}
        ``"rename"``: after a killed process, the old or the new object is complete. ``"fsync"``: also after a power cut.
    write_strategy : {"replace", "append", "in_place"}
        How a part of a local shard is written. ``"replace"``: into a new file with the old bytes, which replaces the old
        file. ``"append"``: to the end of the same file, so only new bytes are written; if this is unsafe or impossible, as
        ``"replace"``. ``"in_place"``: inner chunks whose new encoding fits their old place are overwritten under an undo
        journal, and the others are appended; readers other than shardcodec may see a torn write (``docs/durability.md``).
    strict : bool
        Raise `UnsupportedError` instead of a fallback to zarr's own pipeline.
    index_cache : int or str
        Bytes of decoded shard indexes that this process keeps between calls, such as ``"64MiB"``; 0 keeps none. Calls with the same number
        share one cache. Each use compares the index of a local file with the file, so it is never stale. The default of
        64 MiB holds the indexes of some thousand usual shards, or of four shards with a million inner chunks.
    cache : int or str
        Bytes of decoded inner chunks that this process keeps between calls, such as ``"2GiB"``; 0 keeps none. Arrays with the same
        numbers of ``index_cache`` and ``cache`` share one cache. It is as current as the indexes, so it needs the
        option ``index_cache``, and nothing of a local file is cached while the file is younger than two seconds, except with
        ``immutable``. A read of a part of a shard uses and fills it; chunks that would be copied from a local file as they are, and
        those that are shards themselves, are not cached. Those of remote objects are cached by their entity tag in S3, Google
        Cloud Storage and Azure; in other stores only with ``immutable``.
    cache_dir : path-like
        Folder of a local disk in which encoded inner chunks and indexes of remote objects are kept between calls, for all
        processes of this user; by default none are kept. It is made if it is missing. It must belong to the user, and no
        other user may write to it. Objects are kept by their entity tag in S3, Google Cloud Storage and Azure, through
        zarr's ``ObjectStore``; in other stores only with ``immutable``. Each call compares the tag with one request for an
        object, unless it requests other bytes of it.
    immutable : bool
        A promise of the user that stored objects do not change while this process runs. Only then are the indexes of
        objects cached that are neither local files nor in stores with entity tags (zarr's ``ObjectStore``), and open files
        are used without a check that their name still leads to them. With ``cache_dir`` the promise includes the time since
        an earlier process has put the bytes of an object there: they are used without a request.
    locking : {"process", "thread", "cluster"}
        The writers that a writer excludes from its shards: shardcodec's writers in all processes (as far as locks reach on
        the file system), or only those of this process. ``"cluster"``: as ``"process"``, but it is an error
        (`LockScopeError`) if the locks do not reach other nodes or if this cannot be told.

    Raises
    ------
    TypeError, ValueError
        A name or a value is invalid. The message for a switch names its environment variable.

    Examples
    --------
    >>> array = shardcodec.attach(zarr.open_array("a.zarr"))
    >>> with shardcodec.options(threads=1, durability="fsync"):
    ...     array[...] = 7
    """
    with override(check(choices)):
        yield


@contextlib.contextmanager
def override(parsed: Choices) -> Iterator[None]:
    """Set options and switches for a block, with values that `check` would return."""
    token = _active.set({**_active.get(), **parsed})
    try:
        yield
    finally:
        _active.reset(token)


def in_force(resolved: Options) -> AbstractContextManager[None]:
    """Set all options for a block, in a thread or process that does a part of some work, to those of the whole work.

    Parameters
    ----------
    resolved : Options
        What the process that began the work has resolved.

    Returns
    -------
    context manager
    """
    return override(vars(resolved))


# Returns the choices of the `options` blocks around the caller; the same object until a block begins or ends. It is no function
# of Python, because each small read calls it.
active: Callable[[], Choices] = _active.get


def resolve(
    *,
    argument: Choices = NOTHING,
    attached: Choices = NOTHING,
    config: Choices = NOTHING,
    max_workers: int | None = None,
    n_cpus: int | None = None,
) -> Options:
    """Return the value of every option, from the sources in the head of this file.

    Other modules call `option_sources`, which knows zarr's configuration.

    Parameters
    ----------
    argument, attached, config : mapping
        Options of a call, of an array, and of zarr's configuration. `check` has parsed the first two.
    max_workers : int, optional
        Upper bound of ``threads``.
    n_cpus : int, optional
        Default of ``threads``, if the caller has called `available_cpus` already.

    Returns
    -------
    Options

    Raises
    ------
    TypeError, ValueError
        A name or a value in the configuration or the environment is invalid.
    """
    chosen = {
        **environment(),
        **check(config, where="zarr.config shardcodec:"),
        **attached,
        **_active.get(),
        **argument,
    }
    threads = chosen.pop("threads", None) or n_cpus or available_cpus()
    if max_workers is not None:
        threads = max(1, min(threads, max_workers))
    return Options(threads=threads, **chosen)


class Setting(NamedTuple):
    """The value of one option, and the source that determines it."""

    value: Any
    source: str


def settings(config: Choices = NOTHING, max_workers: int | None = None) -> dict[str, Setting]:
    """Return the value and the source of every option and switch, for an array without options of its own.

    Parameters
    ----------
    config : mapping
        The options in zarr's configuration.
    max_workers : int, optional
        zarr's ``threading.max_workers``, the upper bound of ``threads``.

    Returns
    -------
    dict of str to Setting

    Raises
    ------
    TypeError, ValueError
        A name or a value in the configuration or the environment is invalid.
    """
    sources = [
        ("shardcodec.options", _active.get()),
        ("zarr.config", check(config, where="zarr.config shardcodec:")),
        ("environment", environment()),
    ]
    found = {}
    for name, value in vars(resolve(config=config, max_workers=max_workers)).items():
        source = next((source for source, choices in sources if name in choices), "default")
        if source == "environment":
            source = f"environment variable {variable_of(name)}"
        found[name] = Setting(value, source)
    if max_workers is not None and found["threads"].value < resolve(config=config).threads:
        found["threads"] = Setting(found["threads"].value, "zarr.config threading.max_workers")
    return found


def variable_of(name: str) -> str:
    """Return the environment variable that sets an option or a switch."""
    return f"SHARDCODEC_{'NUM_THREADS' if name == 'threads' else name.upper()}"


@functools.cache
def environment() -> dict[str, Any]:
    """Return the options and switches that environment variables set, parsed."""
    given = {}
    for name, parse in _PARSERS.items():
        variable = variable_of(name)
        if value := os.environ.get(variable):
            try:
                given[name] = parse(value)
            except ValueError as error:
                raise ValueError(f"environment variable {variable}: {error}") from None
    return given


def available_cpus() -> int:
    """Return the number of processors that this process may use: the smaller of its affinity and its cgroup's quota."""
    cpus, quota = _affinity() or os.cpu_count() or 1, _cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))


def _affinity() -> int | None:
    """Return the number of processors that the affinity of this process permits; None where the system has none."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError, OverflowError):
        # A sandbox may refuse the call. Python then tries larger sets, until one overflows.
        return None


def thread_limits() -> dict[str, int | None]:
    """Return what bounds the default of ``threads``, in processors.

    Returns
    -------
    dict
        ``machine``: processors of the machine. ``affinity``: those that the affinity of this process permits; None where
        the system has none. ``cgroup quota``: the quota of its cgroup, rounded up; None without a limit.
    """
    return {"machine": os.cpu_count() or 1, "affinity": _affinity(), "cgroup quota": _cgroup_quota()}


@functools.cache
def _cgroup_quota() -> int | None:
    from . import cgroups  # the first call of the engine needs it, not the import

    return cgroups.cpu_quota()
