# old_shard.py - objects of which something is kept: looked at, described to the engine, written in groups
# SPDX-License-Identifier: MIT
"""What an update needs to know of the old object, and that it still is what was looked at.

A file is opened once, and everything that is read of it comes through that descriptor: whoever replaces the file
meanwhile cannot mix two objects. Whoever changes it in place changes its size or its times, which are compared before
the new object gets the name. An object that does not exist is made under the condition that it still does not when it
gets its name; when another writer was quicker, the item is done again, as an update of what that writer made.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Self

import numpy as np

from .. import native
from ..errors import ShardError
from ..options import Options
from ..statistics import stats
from ..storage.file_locks import NO_FILE
from ..storage.file_system import appends, appends_directly, is_local, name_of
from ..storage.requests import OwnBytes
from .placement import (
    DEAD_SHARE,
    Facts,
    Gone,
    NewSizes,
    Placement,
    may_overwrite,
    place,
    place_behind,
    place_in_slots,
    way_to_append,
)
from .read import explain, index_too_short
from .user_bytes import Kept, find, place_between

__all__ = ["Looker", "OldIndex", "copied_nbytes", "run"]

# Objects whose old indexes and descriptors are held at a time, and the bytes that these indexes may take.
GROUP_UPDATES = 256
GROUP_NBYTES = 64 << 20

# How often something may appear between our look and our write, having disappeared before the look.
ATTEMPTS = 32

# How the engine makes a new object in memory of the old one's memory, where only the rest needs memory of its own.
ONTO = "onto"

# What `write` of the engine takes for an object that did not exist when it was looked at.
NOTHING_YET = (None, None, None, None, None, None, None, None, None)


class OldIndex(NamedTuple):
    """An old shard's index, and where it came from.

    Attributes
    ----------
    source : int or buffer
        Descriptor of the file, open until the looker closes; or the object's bytes.
    nbytes : int
        Of the object.
    entries : ndarray of uint64, shape (n_chunks, 2)
    stamp : tuple or None
        A file's size, mtime_ns and ctime_ns before the index was read.
    n_bad : int
        Inner chunks that go whose entries are bad: absent here, but not in what is stored.
    """

    source: Any
    nbytes: int
    entries: np.ndarray[Any, np.dtype[np.uint64]]
    stamp: tuple[int, int, int] | None
    n_bad: int

    def described(
        self, placement: Placement, append: str | None = None, user: Kept | None = None
    ) -> tuple[Any, ...]:
        """Put it in the form that the engine takes, with what is kept of it, or how it is appended to.

        Parameters
        ----------
        append : str, optional
            How it is appended to; `ONTO`: the new object is made of its memory.
        user : Kept, optional
            Header and footer, which are kept and marked.
        """
        return (
            self.source,
            self.nbytes,
            self.entries,
            placement.carries if append in (None, ONTO) else None,
            placement.entries,
            placement.data_offset,
            self.stamp,
            append,
            None if user is None else (user.header_nbytes, user.footer, user.alignment),
        )

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a range of the object."""
        if isinstance(self.source, int):
            return os.pread(self.source, nbytes, offset)
        return bytes(memoryview(self.source).cast("B")[offset : offset + nbytes])


class Looker:
    """Looks at old objects; what it opens is closed with it.

    Parameters
    ----------
    items : sequence
        Each has a `chain`, a `path` or None, an `old` or None, an `old_fd` (None; or `NO_FILE`), and a `key`.
    options : Options
        ``allow_in_index``, ``write_strategy``, ``durability`` and ``compact`` count.
    declined : set of int
        Positions of items whose file does not let itself be appended to, as has turned out.
    """

    def __init__(
        self, items: Sequence[Any], options: Options, declined: AbstractSet[int] = frozenset()
    ) -> None:
        self.items = items
        self.options = options
        self.declined = declined
        self._stack = contextlib.ExitStack()
        self._fds: dict[int, int] = {}  # of old objects, by position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def whole(self, position: int) -> tuple[Any, ...] | None:
        """Describe an old object that is one chunk."""
        source, _, stamp = self._source(position)
        if source is None:
            return self.none(position)
        return (source, None, None, None, None, 0, stamp, None, None)

    def index(
        self, position: int, unread: Callable[[], np.ndarray[Any, np.dtype[np.bool_]]]
    ) -> OldIndex | None:
        """Read and check the index of an old shard; None without one.

        Parameters
        ----------
        unread
            Returns those inner chunks, as flags, of which nothing old remains, so that their entries may be damaged.
            Asked for only when there is a shard that can hold its index: a flag for each of a thousand million inner
            chunks is much, for an object of a few bytes.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index is damaged, or one of the entries that matter.
        """
        item = self.items[position]
        chain = item.chain
        source, nbytes, stamp = self._source(position)
        if source is None:
            return None
        if nbytes < chain.index_nbytes:  # before memory is taken for what the metadata promises
            raise index_too_short(item.key, nbytes, chain.index_nbytes)
        stored = np.empty(chain.index_nbytes, dtype=np.uint8)  # its checksums follow the entries
        entries = stored[: 16 * chain.n_chunks].view(np.uint64).reshape(-1, 2)
        try:
            shard_nbytes, n_bad = native.load().read_index(
                chain, source, stored, replaced=unread(), allow_in_index=self.options.allow_in_index
            )
        except ShardError as error:
            error.shard = position
            raise explain(error, self.items) from None
        return OldIndex(source, shard_nbytes, entries, stamp, n_bad)

    def shard(
        self,
        position: int,
        replaced: Callable[[], np.ndarray[Any, np.dtype[np.bool_]]],
        unread: Callable[[], np.ndarray[Any, np.dtype[np.bool_]]],
        new_nbytes: Callable[[], NewSizes],
        gone: Gone | None = None,
        *,
        reuse: bool = False,
    ) -> tuple[Any, ...] | None:
        """Describe an old shard and what a partly rewritten one keeps of it.

        Parameters
        ----------
        replaced, new_nbytes
            Return what `placement.place` wants; called only when there is a shard.
        unread
            As for `index`.
        gone : ndarray of intp, optional
            Positions of those among `replaced` that are known to be absent from now on.
        reuse : bool
            The new object may be made of the old one's memory if that is `OwnBytes`.
        """
        chain = self.items[position].chain
        old = self.index(position, unread)
        if old is None:
            return self.none(position)
        flags = replaced()
        sizes = {
            "shard_nbytes": old.nbytes,
            "index_nbytes": chain.index_nbytes,
            "index_at_start": chain.index_at_start,
            "dead_share": DEAD_SHARE if self.options.compact else math.inf,
        }
        if self.options.write_strategy == "replace" or self.items[position].path is None:
            placed = place(old.entries, flags, new_nbytes=new_nbytes(), **sizes)
            first = chain.index_nbytes if chain.index_at_start else 0
            reuse = reuse and isinstance(old.source, OwnBytes) and placed.only_packs(first)
            return old.described(placed, ONTO if reuse else None)
        user = find(old.entries, old.nbytes, chain.index_nbytes, chain.index_at_start, old.read)
        if user is not None:
            sizes["user_nbytes"] = user.header_nbytes + len(user.footer)
        facts = self._facts(position, old, int(np.count_nonzero(flags)) - (0 if gone is None else len(gone)))
        way = None if facts is None else way_to_append(facts)
        if facts is not None and self.options.write_strategy == "in_place":
            if self._may_overwrite(position, old, facts) and (
                placement := place_in_slots(old.entries, flags, way=way, gone=gone, **sizes)
            ):
                return old.described(placement, "in_place" if way is None else f"in_place+{way}", user)
        elif (
            way is not None and (placement := place_behind(old.entries, flags, way=way, **sizes)) is not None
        ):
            return old.described(placement, way, user)
        sizes.pop("user_nbytes", None)
        if user is None:
            return old.described(place(old.entries, flags, new_nbytes=new_nbytes(), **sizes))
        placed = place_between(
            old.entries, flags, user, new_nbytes=new_nbytes(), dead_share=sizes["dead_share"]
        )
        return old.described(placed, None, user)

    def _facts(self, position: int, old: OldIndex, n_new: int) -> Facts | None:
        """What decides how a shard is updated in its own file; None: it is to be replaced."""
        item = self.items[position]
        # where an entry is bad, what is written cannot be compared with what is stored
        if item.path is None or position in self.declined or old.n_bad:
            return None
        facts = facts_of(item, self.options, old.source, n_new * item.chain.inner.nbytes)
        if facts is not None and not facts.appends and self.options.write_strategy == "append":
            stats.refused("append", name_of(old.source))
        return facts

    def _may_overwrite(self, position: int, old: OldIndex, facts: Facts) -> bool:
        """Tell whether a shard may be updated in place: also, nobody else may be at it."""
        locked = self.items[position].old_fd is not None or self.options.locking == "thread"
        if not locked or not may_overwrite(facts):
            return False
        if not (local := is_local(old.source)):
            stats.refused("in_place", name_of(old.source))
        return local

    def none(self, position: int) -> tuple[Any, ...] | None:
        """Describe that there is no old object."""
        return None if self.items[position].path is None else NOTHING_YET

    def unread(self, position: int) -> tuple[Any, ...] | None:
        """Describe an old object of which nothing is kept: all that counts is whether the caller knows that there is none."""
        return self.none(position) if self.items[position].old_fd == NO_FILE else None

    def explained(self, error: ShardError) -> ShardError | OSError:
        """Explain an error of the engine.

        On a network file system the times of a file that was just written settle later, when the server has set its own. A
        file that seems to have been changed has gone stale there: the caller looks again, under its lock.
        """
        position, is_changed = error.shard, getattr(error, "changed", False)
        fd = self._fds.get(position) if is_changed and isinstance(position, int) else None
        error = explain(error, self.items)
        if fd is None or is_local(fd):
            return error
        return OSError(errno.ESTALE, str(error), self.items[position].path)  # type: ignore[index]

    def _source(self, position: int) -> tuple[Any, int, tuple[int, int, int] | None]:
        """Find the old object: a descriptor or a buffer (None: there is none), its size, and a file's stamp."""
        item = self.items[position]
        if item.path is None:
            return (None, 0, None) if item.old is None else (item.old, memoryview(item.old).nbytes, None)
        fd = item.old_fd
        if fd == NO_FILE:
            return None, 0, None
        if fd is None:
            fd = native.load().open_file(item.path)
            if fd < 0:
                return None, 0, None
            self._stack.callback(os.close, fd)
            if os.fstat(fd).st_nlink > 1:  # whoever locks a file has seen to that
                native.load().settle(item.path, fd)
        self._fds[position] = fd
        found = os.fstat(fd)
        return fd, found.st_size, (found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def facts_of(item: Any, options: Options, fd: int, new_nbytes: int) -> Facts | None:
    """Collect what decides how a shard, an open file, is updated in itself; None: it is to be replaced.

    Parameters
    ----------
    fd : int
        Descriptor of the shard.
    new_nbytes : int
        Decoded bytes of the inner chunks that are to be written.
    """
    if options.write_strategy == "replace":
        return None
    return Facts(
        index_nbytes=item.chain.index_nbytes,
        index_at_start=item.chain.index_at_start,
        index_checksum=item.chain.index_checksums > 0,
        new_nbytes=new_nbytes,
        n_links=os.fstat(fd).st_nlink,
        appends=appends(fd),
        direct=appends_directly(item.path, fd),
        sync=options.durability == "fsync",
    )


def copied_nbytes(item: Any, options: Options) -> int:
    """Estimate how many bytes are copied when a part of an object is written. Little is asked to find out.

    Parameters
    ----------
    item
        As for `Looker`.
    """
    if item.old_fd == NO_FILE or (item.path is None and item.old is None):
        return 0
    if item.path is None:
        return memoryview(item.old).nbytes
    if item.old_fd is None:  # not opened yet
        return int(math.prod(item.chain.shape) * item.chain.itemsize)
    facts = facts_of(item, options, item.old_fd, 0) if item.chain.is_shard else None
    if facts is not None:
        overwrites = options.write_strategy == "in_place" and may_overwrite(facts)
        if overwrites or way_to_append(facts) is not None:
            return 0
    return os.fstat(item.old_fd).st_size


def run(
    items: Sequence[Any],
    keeps: Callable[[Any], bool],
    describe: Callable[[Looker, int], tuple[Any, ...]],
    call: Callable[[list[tuple[Any, ...]]], tuple[list[Any], Any, tuple[list[int], list[int]]]],
    options: Options,
    exist: list[int] | None = None,
) -> list[Any]:
    """Write items, as many at a time as their old indexes allow.

    Parameters
    ----------
    items : sequence
        As for `Looker`, each object once.
    keeps : callable
        Whether something of an item's old object may be kept.
    describe : callable
        Makes an item's entry of the engine's plan, given a looker for these items and its position.
    call : callable
        Runs a plan: what the engine's `write` returns.
    options : Options
        Of how old objects are read.
    exist : list, optional
        Gets the positions of items that were to be made but exist: nothing has been done with them. Without it they
        are done again here.

    Returns
    -------
    list
        Results, by item.
    """
    results: list[Any] = [None] * len(items)
    for group in _groups(items, keeps):
        attempts = 0
        declined: set[int] = set()
        while group:  # again for what others have made meanwhile: it exists now
            if attempts == ATTEMPTS:
                raise FileExistsError(
                    errno.EEXIST, "made and removed by others all the time", items[group[0]].path
                )
            attempts += 1
            some = [items[position] for position in group]
            with Looker(some, options, {i for i, at in enumerate(group) if at in declined}) as looker:
                try:
                    made, _, (there, refused) = call([describe(looker, i) for i in range(len(some))])
                except ShardError as error:
                    raise looker.explained(error) from error.__cause__
            for position, result in zip(group, made, strict=True):
                results[position] = result
            declined |= {group[i] for i in refused}
            appeared = [group[i] for i in there]
            if exist is not None:
                exist += appeared
                appeared = []
            group = [*appeared, *(group[i] for i in refused)]
    return results


def _groups(items: Sequence[Any], keeps: Callable[[Any], bool]) -> Iterator[list[int]]:
    group: list[int] = []
    updates = nbytes = 0
    for position, item in enumerate(items):
        if keeps(item):
            index_nbytes = 3 * item.chain.index_nbytes  # old, new, and what is computed on the way
            if updates and (updates == GROUP_UPDATES or nbytes + index_nbytes > GROUP_NBYTES):
                yield group
                group, updates, nbytes = [], 0, 0
            updates += 1
            nbytes += index_nbytes
        group.append(position)
    if group:
        yield group
