# group_writes.py - blocks in which partial writes are buffered, so that each shard is written once
# SPDX-License-Identifier: MIT
"""`group_writes`, and the blocks that are open in this process. Their writes are in one `ProcessBuffer`."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread as pools
import contextlib
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Any, NamedTuple

from ...arguments import checked
from ...compat import is_zarrs_loop, on_zarrs_loop, submit, watch_deletions
from ...readable import as_nbytes
from . import active_buffer, set_active_buffer
from .process_buffer import ProcessBuffer

__all__ = [
    "call_before_pools_stop",
    "fail",
    "group_writes",
    "is_ending",
    "loss_message",
    "wait_for",
]


# Work at the end of a process, and a failure there that changes the exit status.
#
# Python ends a process in this order. First it calls the callbacks of `threading`, the last registered one first; one of them
# stops all thread pools. Then it waits for threads. Then it calls the callbacks of `atexit`; one of them stops zarr's event
# loop. A flush needs the pools and the loop, so it runs in a callback of `threading` that is registered after that of the
# pools.

# The key of a chunk at the end of a name, in the usual encodings: the part before it names the array.
_CHUNK_KEY = re.compile(r"[/.](c[/.])?\d+([/.]\d+)*$")


def call_before_pools_stop(work: Callable[[], None]) -> None:
    """Call a function when the process ends, before the thread pools stop; never if the process is ending already."""
    with contextlib.suppress(RuntimeError):
        threading._register_atexit(work)  # type: ignore[attr-defined]


def is_ending() -> bool:
    """Return True if thread pools take no more work."""
    return bool(pools._shutdown)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads that Python would wait for later, when they could no longer flush.

    The threads of a pool are skipped, because they wait for work until their pool stops.
    """
    for thread in set(threads) - {threading.current_thread(), threading.main_thread()}:
        if not thread.daemon and thread not in pools._threads_queues:
            thread.join()


def loss_message(names: Iterable[str], why: object) -> str:
    """Return the message about objects whose buffered writes are lost: their number for each array."""
    counts = Counter(_CHUNK_KEY.sub("", name) for name in names)
    arrays = ", ".join(f"{n} of {array!r}" for array, n in sorted(counts.items()))
    n = counts.total()
    return (
        f"shardcodec: {n} shard{'s' * (n != 1)} with writes of an open group_writes block "
        f"{'were' if n != 1 else 'was'} not stored when the process ended ({arrays}): {why}"
    )


def fail(message: str) -> None:
    """Write a message to stderr, and let the process end with status 120, the status for output that cannot be written."""
    try:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  # sys.stderr may be closed, missing or any object
        os.write(2, f"{message}\n".encode())
    sys.stdout = _FailingOutput(sys.stdout)


class _FailingOutput:
    """An output that fails when the interpreter flushes it for the last time.

    No other failure at that time changes the exit status.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        if sys.is_finalizing() or _is_worker():
            raise RuntimeError("shardcodec could not store all writes of a group_writes block")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_worker() -> bool:
    """Return True if `multiprocessing` started this process. It flushes the output itself, and does not finalize."""
    module = sys.modules.get("multiprocessing")
    return module is not None and module.parent_process() is not None


class _OpenBlock(NamedTuple):
    """A block, and the thread that entered it."""

    block: group_writes
    thread: threading.Thread


class _Blocks:
    """The open blocks of this process, and their buffer.

    The buffer outlives the last block if the flush at its end was interrupted.
    """

    def __init__(self) -> None:
        # reentrant: a garbage collection under the mutex may close a generator, which leaves its block
        self._mutex = threading.RLock()
        self._open: list[_OpenBlock] = []
        self._stop_watching: Callable[[], None] = lambda: None
        self.buffer = None
        self.ends: set[Any] = set()  # strong references: an event loop holds only weak ones

    @property
    def buffer(self) -> ProcessBuffer | None:
        return active_buffer()

    @buffer.setter
    def buffer(self, buffer: ProcessBuffer | None) -> None:
        set_active_buffer(buffer)

    def enter(self, block: group_writes) -> None:
        """Open a block; RuntimeError if a block that may drop buffered writes would not be alone, or in a signal handler.

        The end of the block waits for zarr's event loop. It would wait for ever if this thread has a mutex of the buffer.
        """
        if self._mutex._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "a signal handler has interrupted the begin or the end of a block of group_writes: let the handler set a flag, and "
                "write when the interrupted statement has returned"
            )
        if self.buffer is not None:
            self.buffer.check_not_interrupted()
        with self._mutex:
            if self._open and not (block.flush_on_error and self._all_flush_on_error()):
                raise RuntimeError(
                    "a block of group_writes(flush_on_error=False) may drop buffered writes, so no other block may be "
                    "open at the same time: leave the open block first"
                )
            if not block.flush_on_error and self.buffer is not None and not self.buffer.is_empty:
                raise RuntimeError(
                    "group_writes(flush_on_error=False) could drop the buffered writes of an interrupted block: store "
                    "them first, with an empty `with group_writes(): pass`"
                )
            self._open.append(_OpenBlock(block, threading.current_thread()))
            if self.buffer is None:
                self.buffer = ProcessBuffer()
                self._stop_watching = watch_deletions(_deleting, _describing)
            self._adjust()

    def leave(self, block: group_writes) -> ProcessBuffer | None:
        """Close a block; return the buffer to flush, or None in a child process that was forked inside of the block."""
        with self._mutex:
            mine = next((entry for entry in self._open if entry.block is block), None)
            if mine is None:
                return None
            self._open.remove(mine)
            self._adjust()
            return self.buffer

    def close(self, buffer: ProcessBuffer, *, drop: bool) -> bool:
        """Close the buffer that `leave` returned, unless other blocks use it; return False if it must be flushed first."""
        with self._mutex:
            if self._open or self.buffer is not buffer:
                return True
            if not buffer.close(drop=drop):
                return False
            self.buffer = None
            self._stop_watching()
            return True

    def end(self) -> None:
        """Flush the buffer when the process ends; later writes are stored at once."""
        why: object = "group_writes(flush_on_error=False) was not left"
        try:
            wait_for([entry.thread for entry in self._open])
            with self._mutex:
                buffer = self.buffer
                may_flush = self._all_flush_on_error()
                self._abandon()
            while buffer is not None and may_flush:
                on_zarrs_loop(buffer.flush())
                if self.close(buffer, drop=False):
                    return
        except BaseException as error:  # noqa: BLE001  # also an interrupt: no caller is left to catch it
            why = str(error) or repr(error)
        self.give_up(why)

    def give_up(self, why: object = "the interpreter can no longer store them") -> None:
        """Drop the buffered writes and report them."""
        with self._mutex:
            self._abandon()
            names = [] if self.buffer is None else self.buffer.names()
            if self.buffer is not None:
                self.close(self.buffer, drop=True)
        if names:
            fail(loss_message(names, why))

    def _all_flush_on_error(self) -> bool:
        return all(entry.block.flush_on_error for entry in self._open)

    def _abandon(self) -> None:
        """Close blocks whose ends come too late."""
        self._open.clear()
        self._adjust()

    def _adjust(self) -> None:
        """Give the buffer the smallest budget of all open blocks."""
        if self.buffer is not None:
            self.buffer.is_closing = not self._open
            self.buffer.max_nbytes = min((entry.block.max_bytes for entry in self._open), default=0)


def _deleting(store: Any, prefix: str) -> AbstractAsyncContextManager[None]:
    buffer = active_buffer()
    return nullcontext() if buffer is None else buffer.deleting(store, prefix)


def _describing(store: Any, document: str) -> AbstractAsyncContextManager[None]:
    buffer = active_buffer()
    return nullcontext() if buffer is None else buffer.describing(store, document)


_blocks = _Blocks()
_has_exit_callback = False


def _end() -> None:
    _blocks.end()


def _register_exit_callback() -> None:
    """Let the buffer be flushed when the process ends.

    The callbacks of `threading` are called in reverse order, so this one is registered after that of the thread pools.
    """
    global _has_exit_callback
    if not _has_exit_callback:
        _has_exit_callback = True
        call_before_pools_stop(_end)


@atexit.register
def _give_up() -> None:
    """Report blocks that were entered after `_end`."""
    _blocks.give_up()


class group_writes:  # noqa: N801  # used like a function
    """Buffer partial writes of zarr arrays in memory, and write each shard once.

    In the block, assignments to arrays on shardcodec's pipeline are buffered, in any store and from any thread of this
    process. Reads through that pipeline see them. Chunks that are set or erased in a `ShardingStorageTransformer` are
    buffered, too, and so are inner chunks given to `Shard.write_chunks`. A handle on a shard, a key-value store,
    `open_array` and `chunk_state` first store the buffered writes of the shards that they read. Each shard is written once,
    with its write strategy and durability: at the end of the block, or earlier if the buffer exceeds the memory budget.
    Only assigned elements change; neighbouring elements that other processes write in the meantime are kept.

    Parameters
    ----------
    max_bytes : int or str
        Memory budget in bytes, or as ``"1GiB"``, for the decoded inner chunks with buffered elements. When it is exceeded, complete shards
        are stored first, then those not written for longest. Encoding takes memory of its own.
    flush_on_error : bool
        If an exception leaves the block, store what was assigned before it, as without the block. False drops it, except
        what was stored earlier because of the memory budget.

    Raises
    ------
    GroupWriteError
        At the end of the block, or at an assignment that exceeds the memory budget: some shards could not be stored.
        ``written`` and ``unwritten`` list them. At the end of the block, the writes of the latter are dropped.
    RuntimeError
        A block without ``async`` was entered on zarr's event loop. Its end would wait for that loop.

    Notes
    -----
    Blocks may be nested and may overlap in several threads. They share one buffer, and the end of each block stores all
    buffered writes. A block with ``flush_on_error=False`` must be the only one; a second block raises RuntimeError.

    Other pipelines, stores and processes see the writes when they are stored. If an array is deleted or made anew in the
    block, through any zarr store of this process, its earlier writes are void. If another process has done so, the flush notices
    that the array is gone, has another layout or has become smaller; it drops such writes and warns. A child process that is forked in the block starts with an empty buffer. In a coroutine,
    ``async with`` waits without blocking the event loop. The buffered writes of a block that was never left are stored when
    the process ends. If that fails, a message on stderr names arrays and numbers of shards, and the exit status is 120.

    Examples
    --------
    >>> with shardcodec.enable():
    ...     array = zarr.open_array("a.zarr")
    >>> with shardcodec.group_writes():
    ...     for row in range(4):
    ...         array[row] = row
    >>> array[:, 0].tolist()
    [0, 1, 2, 3]
    """

    @checked
    def __init__(self, max_bytes: int | str = 256 << 20, *, flush_on_error: bool = True) -> None:
        max_bytes = as_nbytes(max_bytes, "max_bytes")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int):
            raise TypeError(f"expected an int as max_bytes, got {type(max_bytes).__name__}")
        if max_bytes < 0:
            raise ValueError(f"expected max_bytes >= 0, got {max_bytes}")
        self.max_bytes = max_bytes
        self.flush_on_error: bool = bool(flush_on_error)

    def __enter__(self) -> None:
        if is_zarrs_loop():
            raise RuntimeError(
                "group_writes was entered on zarr's event loop, for which its end would wait: "
                "use `async with group_writes()`"
            )
        _blocks.enter(self)
        _register_exit_callback()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        buffer = _blocks.leave(self)
        if buffer is None:
            return
        # the garbage collector closes a generator in any thread, and at any point
        if is_zarrs_loop() or buffer.interrupted_name() is not None:
            self._end_in_task(buffer, failed=kind is not None)
            return
        try:
            on_zarrs_loop(self._end(buffer, failed=kind is not None))
        except BaseException as failure:
            if is_ending():
                _blocks.give_up(failure)
            raise

    async def __aenter__(self) -> None:
        _blocks.enter(self)
        _register_exit_callback()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_closed = kind is GeneratorExit  # a coroutine that is closed must not wait for anything
        if is_closed and asyncio._get_running_loop() is None:
            self.__exit__(kind, error, trace)
            return
        buffer = _blocks.leave(self)
        if buffer is None:
            return
        if is_closed:
            self._end_in_task(buffer, failed=True)
            return
        await self._end(buffer, failed=kind is not None)

    def _end_in_task(self, buffer: ProcessBuffer, *, failed: bool) -> None:
        """End a block in a new task, because this code cannot wait for it."""
        begin: Any = submit if asyncio._get_running_loop() is None else asyncio.ensure_future
        task = begin(self._end(buffer, failed=failed, keep=True))
        _blocks.ends.add(task)
        task.add_done_callback(_blocks.ends.discard)

    async def _end(self, buffer: ProcessBuffer, *, failed: bool, keep: bool = False) -> None:
        """Flush the buffer, or drop its writes after an exception if `flush_on_error` is False.

        Writes that cannot be stored are dropped. They are kept if no caller learns of the error (`keep`), and after a
        cancellation or an interrupt: then the next block, or the end of the process, stores them.
        """
        if failed and not self.flush_on_error:
            _blocks.close(buffer, drop=True)
            return
        try:
            await buffer.flush()
            while not _blocks.close(buffer, drop=False):
                await buffer.flush()  # a write that was in progress has been buffered since
        except Exception:
            if not keep and not is_ending():
                _blocks.close(buffer, drop=True)
            raise


def _reset_in_child() -> None:
    global _blocks
    _blocks = _Blocks()


# A forked child has no buffered writes: its parent stores them.
os.register_at_fork(after_in_child=_reset_in_child)
