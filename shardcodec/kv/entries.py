# entries.py - read and write the entries of one shard by position
# SPDX-License-Identifier: MIT
"""`Entries`: the key-value store without keys.

All bytes that one call reads belong to one state of the object. Indexes come from the cache of the process. The cache
compares each index with its file, or binds requests to the state of the object (`storage.remote_indexes`). A read
that fails is retried with a fresh index, because a writer may have replaced the object meanwhile. A shard is reported
as damaged only if every attempt fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import native
from ..access.buffer import buffered_chunks
from ..access.inner_chunks import coordinates
from ..access.placement import ABSENT
from ..access.read import INLINE_NBYTES, with_key
from ..access.shard_change import Change, Found, change
from ..access.shard_object import OpenObject, ShardObject, cut_out, joined
from ..compat import options_of_zarr
from ..errors import ConflictError, ShardError
from ..option_sources import current_options
from ..options import Options, active
from ..storage import index_cache, locks
from ..storage.retry import retried
from .arguments import ByteRange
from .base_object import NestedObject, Renew
from .listing import flags_of, no_positions
from .spec import Layout
from .write_buffer import WriteBuffer

__all__ = ["Entries"]

T = TypeVar("T")

# Bytes of values in memory at a time while a batch is read.
FETCH_NBYTES = 64 << 20
# Files that an index cache keeps open: to check that a path still leads to an open file is cheaper than to open it.
OPEN_FILES = 32
MAX_TRIES = 3
ABSENT_OFFSET = int(ABSENT)


class Entries:
    """The entries of one shard.

    Parameters
    ----------
    target : ShardObject
        The shard.
    layout : Layout
        Grid and index of the shard.
    cache_nbytes : int or None
        Limit of the index cache in bytes; None stands for the option ``index_cache``.
    """

    def __init__(self, target: ShardObject, layout: Layout, cache_nbytes: int | None) -> None:
        self.target = target
        self.layout = layout
        self.chain = layout.chain()
        self._cache_nbytes = cache_nbytes
        self._is_prompt = target.is_prompt and not isinstance(target, NestedObject)
        self._path = None if target.path is None else os.fsencode(target.path)
        self._read = native.load().read_encoded
        # memoised for `value`: options of blocks and of zarr, index cache, allow_in_index; recomputed when the options change
        self._known: tuple[Any, Any, Any, bool] = (None, None, None, False)

    @property
    def key(self) -> str:
        """Name of the shard in errors."""
        return self.target.key

    @property
    def n(self) -> int:
        """Number of entries in a full shard."""
        return int(self.chain.n_chunks)

    @property
    def can_read_inline(self) -> bool:
        """True if a value can be read on the event loop.

        This needs a shard without network requests, without buffered writes, outside of other shards, and with a
        small index.
        """
        return (
            self._is_prompt
            and not buffered_chunks.has_buffered(self.target)
            and int(self.chain.index_nbytes) <= INLINE_NBYTES
        )

    def options(self) -> Options:
        """Return the options of a write.

        A shard with its index at the start is replaced. An erasure by an append could leave size and time of its file
        unchanged, and the generation would not show the change.
        """
        return current_options(argument={"write_strategy": "replace"} if self.chain.index_at_start else {})

    def cache(self, options: Options) -> index_cache.IndexCache | None:
        """Return the index cache; None if the cache is off."""
        nbytes = options.index_cache if self._cache_nbytes is None else self._cache_nbytes
        return index_cache.shared(nbytes, max(OPEN_FILES, options.open_files)) if nbytes else None

    def flush(self) -> None:
        """Store the writes that `group_writes` has buffered for the shard; for a nested shard the outer store does this."""
        if not isinstance(self.target, NestedObject):
            buffered_chunks.flush(self.target)

    # ---- reading

    def value(self, position: int) -> bytes | None:
        """Return a value; None if it is absent."""
        if self._path is not None:
            buffered_chunks.flush(self.target)
            choices, configured = active(), options_of_zarr()
            known = self._known
            if known[0] is not choices or known[1] != configured:
                options = current_options()
                kept = self.cache(options)
                known = choices, configured, None if kept is None else kept.native, options.allow_in_index
                self._known = known
            _, _, kept_indexes, allow = known
            try:
                return self._read(self.chain, self._path, position, kept_indexes, allow_in_index=allow)  # type: ignore[no-any-return]
            except (ShardError, OSError):
                pass  # `look` retries, as a writer may have replaced the object
        return self.look(lambda shard: self.value_in(shard, position))

    def look(self, work: Callable[[OpenObject], T], *, whole: bool = False) -> T:
        """Call `work` with the opened shard in its present state; retry if a writer replaces the shard meanwhile.

        Parameters
        ----------
        work : callable
            Takes an `OpenObject`. It may be called several times.
        whole : bool
            True if `work` reads all values, so that the object is fetched with one request.

        Returns
        -------
        object
            The result of `work`.

        Raises
        ------
        ShardFormatError, ChecksumError
            The shard is damaged.
        """
        self.flush()
        return retried(lambda: self._look(work, whole))

    def _look(self, work: Callable[[OpenObject], T], whole: bool) -> T:
        options = current_options()
        for tries_left in reversed(range(MAX_TRIES if self.target.is_near else MAX_TRIES + 1)):
            begin = self.target.open_whole if whole else self.target.open
            # the last attempt locks out writers of an object whose replacement cannot be detected otherwise
            held = contextlib.nullcontext() if tries_left or self.target.is_near else self._held()
            try:
                with held, contextlib.closing(begin(self.chain, options, self.cache(options))) as shard:
                    try:
                        return work(shard)
                    finally:
                        shard.confirm()
            except ConflictError:
                raise
            except ShardError as error:
                if not tries_left:
                    raise with_key(error, self.chain, self.key) from None
                if self.target.path is not None:
                    index_cache.drop([self.target.path])
        raise AssertionError("unreachable")

    def _held(self) -> contextlib.AbstractContextManager[None]:
        return locks.table().hold([self.target.identity])

    def value_in(self, shard: OpenObject, position: int, wanted: ByteRange | None = None) -> bytes | None:
        """Return a value of an opened shard, or a range of it; None if it is absent.

        Raises
        ------
        ValueError
            The value is shorter than the range.
        """
        found = None if shard.missing else shard.entry(position)
        if found is None:
            return None
        offset, nbytes = found if wanted is None else self._part(position, found, wanted)
        return bytes(shard.ranges([(offset, nbytes)])[0]) if nbytes else b""

    def nbytes_to_read(self, shard: OpenObject, position: int, wanted: ByteRange | None) -> int:
        """Return the number of bytes that a read of a value must look at.

        For an object in memory this is the whole object, because its generation is computed from all bytes.
        """
        if self._path is None:
            return 0 if shard.missing else shard.nbytes
        found = None if shard.missing else shard.entry(position)
        if found is None:
            return 0
        return found[1] if wanted is None else self._part(position, found, wanted)[1]

    def values_in(
        self,
        shard: OpenObject,
        positions: np.ndarray[Any, Any],
        parts: Sequence[ByteRange | None] | None = None,
    ) -> list[bytes | None]:
        """Return values, or ranges of them; None for absent ones. Ranges that are close are read together."""
        if parts is not None:
            wanted = [(p, part or (0, None)) for p, part in zip(positions.tolist(), parts, strict=True)]
            return self._parts_in(shard, wanted)
        found: list[bytes | None] = []
        if shard.missing:
            return [None] * len(positions)
        places = np.full((len(positions), 2), ABSENT, dtype=np.uint64)
        while len(found) < len(positions):
            done = len(found)
            data, n = shard.fetch(positions[done:], places[done:], FETCH_NBYTES)
            view = memoryview(data).cast("B")
            offsets, sizes = places[done : done + n].T.tolist()
            found += [
                None if offset == ABSENT_OFFSET else bytes(view[offset : offset + nbytes])
                for offset, nbytes in zip(offsets, sizes, strict=True)
            ]
        return found

    def _parts_in(self, shard: OpenObject, wanted: Sequence[tuple[int, ByteRange]]) -> list[bytes | None]:
        """Return ranges of values; None for absent ones. Ranges that are close are requested together."""
        if shard.missing:
            return [None] * len(wanted)
        entries = [shard.entry(position) for position, _ in wanted]
        places = [
            None if entry is None else self._part(position, entry, part)
            for entry, (position, part) in zip(entries, wanted, strict=True)
        ]
        asked = joined({place for place in places if place is not None and place[1]})
        data = [memoryview(part).cast("B") for part in shard.ranges(asked)]
        found = iter(cut_out([place for place in places if place is not None], asked, data))
        return [None if place is None else bytes(next(found)) for place in places]

    def cut(self, position: int, value: bytes, wanted: ByteRange | None) -> bytes:
        """Return a range of a buffered value.

        Raises
        ------
        ValueError
            The value is shorter than the range.
        """
        if wanted is None:
            return value
        first, nbytes = self._part(position, (0, len(value)), wanted)
        return value[first : first + nbytes]

    def _part(self, position: int, entry: tuple[int, int], wanted: ByteRange) -> tuple[int, int]:
        try:
            return part_of(*entry, wanted)
        except ValueError as error:
            at = coordinates(position, self.layout.grid_shape)
            raise ValueError(f"{error}: entry {at} of shard {self.key!r}") from None

    def present(self, shard: OpenObject, first: int, end: int) -> Any:
        """Return the positions of existing entries among [first, end) as native `Positions`."""
        return no_positions(self.layout.grid_shape) if shard.missing else shard.positions(first, end)

    def exist(self, shard: OpenObject) -> np.ndarray[Any, Any]:
        """Return one flag for each entry, True if it exists."""
        return flags_of(self.present(shard, 0, self.n), self.n)

    # ---- writing

    def store(self, pending: WriteBuffer, check: Callable[[Found], None] | None = None) -> bytes:
        """Store buffered writes in one atomic write.

        Parameters
        ----------
        pending : WriteBuffer
            The buffered writes.
        check : callable, optional
            Called with the stored shard while its lock is held. The shard stays unchanged if it raises.

        Returns
        -------
        bytes
            Generation of the shard after the write.
        """
        self.flush()
        try:
            blind = check is None and pending.covers(self.n)
            decide = self.decision(pending, check)
            return change(self.target, self.chain, decide, self.options(), blind=blind)
        except NothingToWrite as same:
            return same.generation

    def exchange(self, positions: Sequence[int], renew: Renew) -> bytes:
        """Replace values by new ones made from them, in one atomic write.

        Parameters
        ----------
        positions : sequence of int
            Positions of the entries, ascending.
        renew : callable
            Takes a position, its value (None if absent) and the generation of the shard; returns the new value. It
            may be called several times. The shard stays unchanged if it raises.

        Returns
        -------
        bytes
            Generation of the shard after the write.
        """

        def decide(found: Found) -> Change:
            chunks: dict[int, bytes | None] = {}
            for position in positions:
                try:
                    old = self.value_in(found.shard, position)
                except ShardError as error:
                    raise with_key(error, self.chain, self.key) from None
                new = renew(position, old, found.generation)
                if new is not None or old is not None:
                    chunks[position] = new
            return Change.of(chunks, self.layout.grid_shape, "lexicographic")

        self.flush()
        return change(self.target, self.chain, decide, self.options())

    def decision(
        self, pending: WriteBuffer, check: Callable[[Found], None] | None, *, keep: bool = False
    ) -> Callable[[Found], Change]:
        """Return a function from the stored shard to its change.

        The function raises `NothingToWrite` if there is nothing to write; with `keep` the old shard is stored again.
        """

        def decide(found: Found) -> Change:
            if check is not None:
                check(found)
            if pending.covers(self.n):
                return Change(pending.values(), complete=True)
            change = Change(pending.values(), pending.gone(lambda: self.exist(found.shard)))
            if not change.chunks and not len(change.gone) and not keep:
                raise NothingToWrite(found.generation)
            return change

        return decide


class NothingToWrite(Exception):
    """There is nothing to write, because the entries to delete do not exist."""

    def __init__(self, generation: bytes) -> None:
        super().__init__()
        self.generation = generation


def part_of(offset: int, nbytes: int, wanted: ByteRange) -> tuple[int, int]:
    """Return offset and size of a range of a value.

    Raises
    ------
    ValueError
        The value is shorter than the range (KV-23).
    """
    first, end = wanted
    start = nbytes + first if first < 0 else first
    stop = nbytes if end is None else end
    if not 0 <= start <= stop <= nbytes:
        shown = "?" if end is None else end
        raise ValueError(f"Requested byte range [{first}, {shown}) is not valid for value of size {nbytes}")
    return offset + start, stop - start
