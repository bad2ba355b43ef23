# old_shard.py - look at the old objects before a write
# SPDX-License-Identifier: MIT
"""Look: the first step of a write (`write_objects`).

`look` reads, under the caller's lock, what the next steps need to know of the old objects: a frozen record for each.

A file is opened once, and everything is read through this descriptor. So a writer that replaces the file meanwhile cannot
mix two objects. A writer that changes the file in place changes its size or its times, which the engine compares before
the new object gets the name. A missing object is created under the condition that it is still missing then.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .. import native
from ..errors import ShardError, ShardFileError
from ..options import Options
from ..statistics import stats
from ..storage.file_systems import appends, appends_directly, is_local, name_of
from ..storage.locks import NO_FILE
from ..storage.waiting import call_each
from .placement import Entries, Facts, may_overwrite, way_to_append
from .read import explain, index_too_short
from .user_bytes import HeaderFooter, find
from .write_items import ChunkChange, EncodedItem, Item
from .write_plan import FileStamp

__all__ = ["OldObject", "OldShard", "copied_nbytes", "explain_error", "look"]


class OldObject(NamedTuple):
    """An old object.

    Attributes
    ----------
    source : int, buffer or None
        Descriptor of the file, or the bytes of the object. None for a missing object.
    nbytes : int
    stamp : FileStamp or None
        None: the object is not in a file.
    """

    source: Any
    nbytes: int
    stamp: FileStamp | None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a range of the object."""
        if isinstance(self.source, int):
            return os.pread(self.source, nbytes, offset)
        return bytes(memoryview(self.source).cast("B")[offset : offset + nbytes])


class OldShard(NamedTuple):
    """An old shard with its index.

    Attributes
    ----------
    source, nbytes, stamp
        As for `OldObject`. The stamp is older than the index.
    entries : ndarray of uint64, shape (n_chunks, 2)
        The index, checked.
    change : ChunkChange
        The inner chunks that the write changes.
    user : HeaderFooter or None
        Header and footer; None: not needed, or inner chunks lie in the index.
    facts : Facts or None
        The facts that decide how the shard is updated in its own file; None: it must be replaced.
    """

    source: Any
    nbytes: int
    stamp: FileStamp | None
    entries: Entries
    change: ChunkChange
    user: HeaderFooter | None
    facts: Facts | None


Old: TypeAlias = OldObject | OldShard | None

MISSING = OldObject(None, 0, None)


def look(
    items: Sequence[Item],
    options: Options,
    files: contextlib.ExitStack,
    declined: AbstractSet[int] = frozenset(),
) -> list[Old]:
    """Look at the old objects of some items.

    Parameters
    ----------
    items : sequence of WriteItem or EncodedItem
    options : Options
        ``allow_in_index``, ``write_strategy``, ``durability`` and ``locking`` count.
    files : ExitStack
        Closes the descriptors that are opened here.
    declined : set of int
        Positions of items whose file cannot be appended to, as an earlier attempt has shown.

    Returns
    -------
    list
        For each item its old object; None if the item does not need it.

    Raises
    ------
    ShardFormatError, ChecksumError
        An index is damaged, or one of the entries that are needed.
    OSError
        A file could not be read.
    """
    return call_each(lambda i: _look_at(items[i], options, files, i in declined), range(len(items)))


def _look_at(item: Item, options: Options, files: contextlib.ExitStack, has_declined: bool) -> Old:
    if not item.keeps_old:
        return MISSING if item.old_fd == NO_FILE else None
    old = _open(item, files)
    if old.source is None or not item.chain.is_shard:
        return old
    return _load(item, old, options, has_declined)


def _open(item: Item, files: contextlib.ExitStack) -> OldObject:
    """Find the old object of an item, and open it if the caller has not."""
    if item.path is None:
        return MISSING if item.old is None else OldObject(item.old, memoryview(item.old).nbytes, None)
    fd = item.old_fd
    if fd == NO_FILE:
        return MISSING
    if fd is None:
        fd = _open_file(item.path)
        if fd < 0:
            return MISSING
        files.callback(os.close, fd)
        if os.fstat(fd).st_nlink > 1:  # a caller with a lock has settled the file already
            native.load().settle(item.path, fd)
    found = os.fstat(fd)
    return OldObject(fd, found.st_size, FileStamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def _open_file(path: str) -> int:
    """Open the file of an old object; -1 if there is none, also for a link to nothing, which a write replaces."""
    try:
        return int(native.load().open_file(path))
    except ShardFileError:
        if os.path.islink(path) and not os.path.exists(path):
            return -1
        raise


def _load(item: Item, old: OldObject, options: Options, has_declined: bool) -> OldShard:
    """Read and check the index of an old shard, and whatever else the placement needs."""
    chain = item.chain
    if old.nbytes < chain.index_nbytes:  # before memory is allocated for the index and for flags
        raise index_too_short(item.key, old.nbytes, chain.index_nbytes)
    stored = np.empty(chain.index_nbytes, dtype=np.uint8)  # its checksums follow the entries
    entries = stored[: 16 * chain.n_chunks].view(np.uint64).reshape(-1, 2)
    change = item.change()
    try:
        nbytes, n_bad = native.load().read_index(
            chain, old.source, stored, replaced=change.covered, allow_in_index=options.allow_in_index
        )
    except ShardError as error:
        error.shard = 0
        raise explain(error, [item]) from None
    user, facts = None, None
    is_laid_out = isinstance(item, EncodedItem) and item.user is not None
    is_in_file = item.path is not None and options.write_strategy != "replace"
    if is_laid_out or is_in_file:
        user = find(entries, nbytes, chain.index_nbytes, chain.index_at_start, old.read)
    # the engine cannot compare what it writes with what is stored if entries are bad: absent in `entries` only
    if is_in_file and not is_laid_out and not has_declined and not n_bad:
        n_new = int(np.count_nonzero(change.replaced)) - len(change.gone)
        facts = _facts_under_lock(item, options, old.source, n_new * chain.inner.nbytes)
    return OldShard(old.source, nbytes, old.stamp, entries, change, user, facts)


def _facts_under_lock(item: Item, options: Options, fd: int, new_nbytes: int) -> Facts | None:
    """Collect the facts of `facts_of`, and whether other writers are excluded; count what the file system refuses."""
    facts = facts_of(item, options, fd, new_nbytes)
    if facts is None:
        return None
    if options.write_strategy == "append" and not facts.appends:
        stats.refused("append", name_of(fd))
    if options.write_strategy == "in_place" and may_overwrite(facts):
        is_locked = item.old_fd is not None or options.locking == "thread"
        if is_locked and is_local(fd):
            return facts
        if is_locked:
            stats.refused("in_place", name_of(fd))
        return facts._replace(is_exclusive=False)
    return facts


def facts_of(item: Item, options: Options, fd: int, new_nbytes: int) -> Facts | None:
    """Collect the facts that decide how a shard, an open file, is updated in its own file; None: it must be replaced.

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
        direct=appends_directly(item.path, fd),  # type: ignore[arg-type]  # an open file has a path
        sync=options.durability == "fsync",
    )


def copied_nbytes(item: Item, options: Options) -> int:
    """Estimate how many bytes are copied when a part of an object is written. No index is read for that."""
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


def explain_error(error: ShardError, items: Sequence[Item], olds: Sequence[Old]) -> ShardError | OSError:
    """Return an error of the engine in terms of the items.

    On a network file system the times of a file that was just written change later, when the server has set its own. So
    a file that seems to have changed is stale there: the caller looks again, under its lock.
    """
    position, is_changed = error.shard, getattr(error, "changed", False)
    old = olds[position] if is_changed and isinstance(position, int) else None
    error = explain(error, items)
    if old is None or not isinstance(old.source, int) or is_local(old.source):
        return error
    return OSError(errno.ESTALE, str(error), items[position].path)  # type: ignore[index]
