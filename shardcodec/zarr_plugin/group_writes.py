# group_writes.py - blocks in which partial writes are gathered, so that each shard is written once
# SPDX-License-Identifier: MIT
"""`group_writes`, and the blocks that are open in this process; what they gather is in `group`."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from types import TracebackType

from ..compat import is_zarrs_loop, on_zarrs_loop
from . import process_exit
from .group import Group

__all__ = ["active", "group_writes"]


class _Blocks:
    """The blocks that are open, and what is gathered while any is."""

    def __init__(self) -> None:
        self.mutex = (
            threading.RLock()
        )  # a garbage collection in it may close a generator, and so leave a block
        self.open: list[group_writes] = []
        self.threads: list[threading.Thread] = []  # that entered them
        self.group: Group | None = None
        self.leaving: set[asyncio.Task[None]] = set()

    def enter(self, block: group_writes) -> None:
        with self.mutex:
            if self.open and not (block.flush_on_error and all(other.flush_on_error for other in self.open)):
                raise RuntimeError(
                    "group_writes(flush_on_error=False) drops what was gathered, so no other block may be open beside it"
                )
            if not block.flush_on_error and self.group is not None and not self.group.is_empty:
                raise RuntimeError(
                    "group_writes(flush_on_error=False) could drop what an interrupted block has left: store that first, "
                    "with an empty `with group_writes(): pass`"
                )
            self.open.append(block)
            self.threads.append(threading.current_thread())
            if self.group is None:
                self.group = Group()
            self._adjust(self.group)

    def leave(self, block: group_writes) -> Group | None:
        """Return what is to be stored now; None in a child that was forked inside the block."""
        with self.mutex:
            if block not in self.open:
                return None
            del self.threads[self.open.index(block)]
            self.open.remove(block)
            if self.group is not None:
                self._adjust(self.group)
            return self.group

    def close(self, group: Group, *, drop: bool) -> bool:
        """End what `leave` returned, unless other blocks go on with it; False when there is something to be stored."""
        with self.mutex:
            if self.open or self.group is not group:
                return True
            if not group.close(drop=drop):
                return False
            self.group = None
            return True

    def end(self) -> None:
        """Store what is gathered, because the process ends; what is written from now on is stored at once."""
        why: object = "group_writes(flush_on_error=False) was not left"
        try:
            process_exit.wait_for([*self.threads])
            with self.mutex:
                group = self.group
                may_store = all(block.flush_on_error for block in self.open)
                self._abandon()
            while group is not None and may_store:
                on_zarrs_loop(group.settle())
                if self.close(group, drop=False):
                    return
        except BaseException as error:  # noqa: BLE001  # an interrupt too: no code is left that could catch it
            why = str(error) or repr(error)
        self.give_up(why)

    def _abandon(self) -> None:
        """Take blocks for left whose ends come too late."""
        self.open.clear()
        self.threads.clear()
        if self.group is not None:
            self._adjust(self.group)

    def give_up(self, why: object = "the interpreter is past storing them") -> None:
        """Report what is gathered still, and drop it."""
        with self.mutex:
            self._abandon()
            names = [] if self.group is None else self.group.names()
            if self.group is not None:
                self.close(self.group, drop=True)
        if names:
            process_exit.fail(process_exit.unstored(names, why))

    def _adjust(self, group: Group) -> None:
        group.is_closing = not self.open
        group.max_nbytes = min((block.max_bytes for block in self.open), default=0)


_blocks = _Blocks()
_is_watched = False  # whether the end of this process is known to be ours


def _end() -> None:
    _blocks.end()


def _watch() -> None:
    """Store what is gathered when the process ends; registered late, so done early."""
    global _is_watched
    if not _is_watched:
        _is_watched = True
        process_exit.at_the_end(_end)


@atexit.register
def _give_up() -> None:
    """Report blocks that were entered after `_end`; registered early, so done late."""
    _blocks.give_up()


def active() -> Group | None:
    """Return what is gathered in this process; None when no block is open."""
    return _blocks.group


class group_writes:  # noqa: N801  # used as a function is
    """Gather partial writes of zarr arrays and write each shard once.

    In the block, assignments to arrays on shardcodec's pipeline, in any store and from any thread of this process, are
    kept in memory, where reads through that pipeline see them; so are chunks that are set in a
    `ShardingStorageTransformer`, and erased there, and inner chunks given to `Shard.write_chunks`, whose handles store them
    before they read, as key-value stores, `open_array` and `chunk_state` do with what was gathered of their shards. Each shard is written once, with the strategy and
    durability that hold for it, when the block ends, or before that when the memory is used up. Neighbouring elements
    that other processes write meanwhile are kept: only what was assigned here is changed.

    Parameters
    ----------
    max_bytes : int
        Memory for what is gathered: decoded inner chunks, as far as they were touched. When it is used up, shards that
        are complete are written, then those that have been left alone longest. Encoding takes memory of its own.
    flush_on_error : bool
        Whether what was assigned before an exception is written when it leaves the block; it is, without the block. With
        False it is dropped, apart from what the memory budget has forced out before.

    Raises
    ------
    GroupWriteError
        At the end of the block, or at an assignment that used up the memory: some shards could not be written;
        ``written`` and ``unwritten`` list them. At the end of the block the latter are dropped.
    RuntimeError
        A block without ``async`` was entered on zarr's event loop, which it would wait for at its end.

    Notes
    -----
    Blocks may be nested and may overlap in several threads: they gather together, and the end of each writes all that there
    is. Only one with ``flush_on_error=False`` has to be alone: another one beside it is a RuntimeError.

    Other pipelines, stores and processes see the writes when they are stored. Inside the block arrays must not be resized,
    overwritten or deleted. A child process forked inside starts with nothing gathered. In a coroutine
    ``async with`` waits without blocking the event loop. What a block that was never left has gathered is stored when the
    process ends; if that fails, a message on stderr names arrays and numbers of shards, and the exit status is 120.

    Examples
    --------
    >>> with shardcodec.group_writes():
    ...     for i in range(array.shape[0]):
    ...         array[i] = plane(i)
    """

    def __init__(self, max_bytes: int = 256 << 20, *, flush_on_error: bool = True) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes must be an int, not {type(max_bytes).__name__}")
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, got {max_bytes}")
        self.max_bytes = max_bytes
        self.flush_on_error = bool(flush_on_error)

    def __enter__(self) -> None:
        if is_zarrs_loop():
            raise RuntimeError(
                "group_writes on zarr's event loop would wait for that loop at its end: use `async with group_writes()`"
            )
        _blocks.enter(self)
        _watch()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group = _blocks.leave(self)
        if group is None:
            return
        if is_zarrs_loop():  # the garbage collector closes a generator in any thread
            task = asyncio.ensure_future(self._end(group, failed=kind is not None, keep=True))
            _blocks.leaving.add(task)
            task.add_done_callback(_blocks.leaving.discard)
            return
        try:
            on_zarrs_loop(self._end(group, failed=kind is not None))
        except BaseException as failure:
            if process_exit.is_ending():
                _blocks.give_up(failure)
            raise

    async def __aenter__(self) -> None:
        _blocks.enter(self)
        _watch()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit and asyncio._get_running_loop() is None:
            self.__exit__(kind, error, trace)  # the coroutine is closed, and no event loop would resume it
            return
        group = _blocks.leave(self)
        if group is not None:
            await self._end(group, failed=kind is not None)

    async def _end(self, group: Group, *, failed: bool, keep: bool = False) -> None:
        """Store what was gathered, or drop it.

        After an error it is dropped, unless the caller could not learn of it (`keep`). After a cancellation or an interrupt
        it is kept as well: the next block, or the end of the process, stores it.
        """
        if failed and not self.flush_on_error:
            _blocks.close(group, drop=True)
            return
        try:
            await group.settle()
            while not _blocks.close(group, drop=False):
                await group.settle()  # an assignment that was under way has come in
        except Exception:
            if not keep and not process_exit.is_ending():
                _blocks.close(group, drop=True)
            raise


def _forget() -> None:
    global _blocks
    _blocks = _Blocks()


# A forked child has none of its parent's assignments: the parent stores them.
os.register_at_fork(after_in_child=_forget)
