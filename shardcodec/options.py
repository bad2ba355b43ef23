# options.py - what a user may choose at run time, and where each choice comes from
# SPDX-License-Identifier: MIT
"""Run-time options: how work is done, never what is stored.

A value is looked for in this order, and the first place that has it counts:

1. the argument of a call,
2. the innermost ``with shardcodec.options(...)`` around it,
3. what is attached to the array (`shardcodec.attach`, or pickled with it),
4. zarr's configuration, key ``shardcodec.<name>``: `shardcodec.enable` sets it, as does the environment variable
   ``ZARR_SHARDCODEC__<NAME>`` of zarr,
5. the environment variable ``SHARDCODEC_<NAME>`` (``SHARDCODEC_NUM_THREADS`` for ``threads``),
6. the default.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["Options", "Resolver", "active", "available_cpus", "check", "options", "resolve"]

Choices = Mapping[str, Any]

NOTHING: Choices = MappingProxyType({})

_active: ContextVar[Choices] = ContextVar("shardcodec.options", default=NOTHING)


@dataclass(frozen=True, kw_only=True)
class Options:
    """One value for every option.

    Parameters
    ----------
    threads : int
        Threads of one call, the calling one included. Default: the processors that this process may use, as its
        affinity and its cgroup quota say. zarr's ``threading.max_workers``, where set, is an upper bound.
    order : {"morton", "lexicographic", "colexicographic"}
        Sequence of the inner chunks in shards that are written whole.
    durability : {"rename", "fsync"}
        ``"rename"``: a killed process leaves the old or the new object, whole. ``"fsync"``: a power cut too.
    write_strategy : {"replace", "append", "in_place"}
        How a part of a local shard is written. ``"replace"``: into a new file with the old bytes, which takes the place of
        the old one. ``"append"``: into the file itself, behind its bytes, at the cost of what is new; where that is not safe
        or not possible, as ``"replace"``. ``"in_place"``: inner chunks whose new encoding fits where the old one is are
        overwritten there, under an undo journal, and the others appended; readers that are not shardcodec's may see half of
        that (``docs/durability.md``).
    compact : bool
        Pack a shard, when a part of it is written and half of its bytes belong to no inner chunk any more.
    strict : bool
        Raise `UnsupportedError` where zarr's own pipeline would have to take over.
    allow_in_index : bool
        Accept inner chunks whose bytes overlap the shard's index, and use the others of a shard with an entry that cannot
        be true. The format does not forbid the first, but no writer makes them, and a shard whose first bytes were lost
        looks like that. So where inner chunks have no checksum, every read of the shard is an error unless this is set.
    index_cache : int
        Bytes of decoded shard indexes that this process keeps between calls; 0 keeps none. Calls with the same number
        share one cache. Those of local files are compared with the file at each use, so the default of 64 MiB, the
        indexes of some thousand usual shards or of four with a million inner chunks, cannot show anything old.
    open_files : int
        Local files that stay open between calls, for network file systems where opening is slow; 0 is none.
    immutable : bool
        The user's word that stored objects do not change while this process runs. Indexes of objects that are
        neither in local files nor in stores with entity tags (zarr's ``ObjectStore``) are kept only then, and files that
        are open are not asked for their names any more.
    locking : {"process", "thread"}
        Whom a writer excludes from the shards that it writes: shardcodec's writers in all processes (where the file
        system has locks), or those of this process only.
    lock_timeout : float
        Seconds to wait for a shard that another process writes; then `LockError`.
    staging_nbytes : int
        Bytes of inner chunks, encoded and decoded, that are held at a time where codecs take part that are not
        native. One inner chunk for each thread is held in any case.
    """

    threads: int
    order: str = "morton"
    durability: str = "rename"
    write_strategy: str = "replace"
    compact: bool = True
    strict: bool = False
    allow_in_index: bool = False
    index_cache: int = 64 << 20
    open_files: int = 0
    immutable: bool = False
    locking: str = "process"
    lock_timeout: float = 60.0
    staging_nbytes: int = 64 << 20


NAMES = tuple(field.name for field in fields(Options))


def _one_of(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(map(repr, allowed))}, got {value!r}")
        return str(value)

    return parse


# What the engine counts with: refused here, a larger number is named; there it would only be too large.
_MAX_COUNT, _MAX_NBYTES = 2**31 - 1, 2**63 - 1


def _number(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        try:
            number = int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = least - 1
        if isinstance(value, bool) or number < least:
            raise ValueError(f"expected a number of at least {least}, got {value!r}")
        if number > most:
            raise ValueError(f"expected a number of at most {most}, got {value!r}")
        return number

    return parse


def _seconds(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(value, bool) or not number >= 0:
        raise ValueError(f"expected a number of at least 0, got {value!r}")
    return number


def _flag(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    result = words.get(value.lower()) if isinstance(value, str) else value
    if result not in (True, False):
        raise ValueError(f"expected true or false, got {value!r}")
    return bool(result)


_PARSERS: dict[str, Callable[[object], Any]] = {
    "threads": _number(1, _MAX_COUNT),
    "order": _one_of("morton", "lexicographic", "colexicographic"),
    "durability": _one_of("rename", "fsync"),
    "write_strategy": _one_of("replace", "append", "in_place"),
    "compact": _flag,
    "strict": _flag,
    "allow_in_index": _flag,
    "index_cache": _number(0, _MAX_NBYTES),
    "open_files": _number(0, _MAX_COUNT),
    "immutable": _flag,
    "locking": _one_of("process", "thread"),
    "lock_timeout": _seconds,
    "staging_nbytes": _number(1, _MAX_NBYTES),
}


def check(choices: Choices, *, where: str = "option ") -> dict[str, Any]:
    """Return the choices that were made (not None), parsed.

    Raises
    ------
    TypeError
        A name is not that of an option.
    ValueError
        A value is not one it can have.
    """
    parsed = {}
    for name, value in choices.items():
        if name not in _PARSERS:
            raise TypeError(f"shardcodec has no option {name!r}; there are {', '.join(NAMES)}")
        if value is None:
            continue
        try:
            parsed[name] = _PARSERS[name](value)
        except ValueError as error:
            raise ValueError(f"{where}{name}: {error}") from None
    return parsed


@contextlib.contextmanager
def options(**choices: Any) -> Iterator[None]:
    """Set options for a piece of code, effective at once, also for arrays that are open already.

    Parameters
    ----------
    **choices
        Attributes of `Options`; None leaves one as it is. They hold for this thread (or asyncio task) and for what
        it asks of zarr, not for threads that others start, such as dask's: for those there are `enable` and `attach`.

    Examples
    --------
    >>> with shardcodec.options(threads=1, durability="fsync"):
    ...     array[...] = values
    """
    token = _active.set({**_active.get(), **check(choices)})
    try:
        yield
    finally:
        _active.reset(token)


def active() -> Choices:
    """Return what `options` blocks around the caller say: the same object as long as none is entered or left."""
    return _active.get()


def resolve(
    *,
    argument: Choices = NOTHING,
    attached: Choices = NOTHING,
    config: Choices = NOTHING,
    max_workers: int | None = None,
    n_cpus: int | None = None,
) -> Options:
    """Settle every option.

    Parameters
    ----------
    argument, attached, config : mapping
        Values from a call, from an array, and from zarr's configuration. The first two have been checked.
    max_workers : int, optional
        Upper bound of ``threads``.
    n_cpus : int, optional
        What `available_cpus` returned just now.
    """
    chosen = {
        **_environment(),
        **check(config, where="zarr.config shardcodec:"),
        **attached,
        **_active.get(),
        **argument,
    }
    threads = chosen.pop("threads", None) or n_cpus or available_cpus()
    if max_workers is not None:
        threads = max(1, min(threads, max_workers))
    return Options(threads=threads, **chosen)


class Resolver:
    """`resolve` for who asks again and again: what was found last holds as long as everybody says the same.

    Parameters
    ----------
    attached, argument : mapping
        Options of an array, and of a handle, checked.
    """

    def __init__(self, attached: Choices = NOTHING, *, argument: Choices = NOTHING) -> None:
        self._attached = attached
        self._argument = argument
        self._known: tuple[tuple[Any, ...], int, Options] | None = None

    def resolve(self, config: Choices, max_workers: int | None, *, any_threads: bool = False) -> Options:
        """Settle every option; with `any_threads` without a look at the processors, whose number may change too.

        `config` must not change later.
        """
        said = (config, _active.get(), max_workers, _environment())
        known = self._known
        if any_threads and known is not None and known[0] == said:
            return known[2]
        n_cpus = available_cpus()
        if known is not None and known[:2] == (said, n_cpus):
            return known[2]
        found = resolve(
            argument=self._argument,
            attached=self._attached,
            config=config,
            max_workers=max_workers,
            n_cpus=n_cpus,
        )
        self._known = said, n_cpus, found
        return found


@functools.cache
def _environment() -> dict[str, Any]:
    given = {}
    for name in NAMES:
        variable = f"SHARDCODEC_{'NUM_THREADS' if name == 'threads' else name.upper()}"
        if value := os.environ.get(variable):
            try:
                given[name] = _PARSERS[name](value)
            except ValueError as error:
                raise ValueError(f"environment variable {variable}: {error}") from None
    return given


def available_cpus() -> int:
    """Processors that this process may use: the smaller of its affinity and its cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
    quota = _cgroup_quota()
    return cpus if quota is None else max(1, min(cpus, quota))


@functools.cache
def _cgroup_quota() -> int | None:
    """Whole processors that the cgroup (version 2, then 1) grants, rounded up; None without a limit."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else -(-int(limit) // int(period))
    with contextlib.suppress(OSError, ValueError):
        limit_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return None if limit_us <= 0 else -(-limit_us // period_us)
    return None
