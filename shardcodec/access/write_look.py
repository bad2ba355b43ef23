# write_look.py - the first step of a write: look at the objects that it changes
# SPDX-License-Identifier: MIT
"""`look`: the first step of a write (`write.write_objects`).

It reads, under the caller's lock, what the next steps need to know of the old objects: a frozen record for each.

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

import numpy as np

from .. import native
from ..errors import ShardError, ShardFileError
from ..options import Options
from ..statistics import stats
from ..storage import absent
from ..storage.concurrent_calls import call_each
from ..storage.file_locks import NO_FILE
from ..storage.file_systems import OpenFile, appends, appends_directly, is_local, name_of
from .placement import Facts, may_overwrite, way_to_append
from .read import explain, index_too_short, is_damage
from .records import MISSING, EncodedItem, Item, OldObject
from .user_bytes import find

__all__ = ["copied_nbytes", "explain_error", "look"]


def look(
    items: Sequence[Item],
    options: Options,
    files: contextlib.ExitStack,
    declined: AbstractSet[int] = frozenset(),
) -> list[OldObject | None]:
    """Look at the old objects of items; None for an item that does not need its old object.

    files: closes the descriptors that are opened here. declined: positions of items whose file cannot be appended to, as an
    earlier attempt has shown. Raises for a damaged index, or an entry that is needed.
    """
    return call_each(lambda i: _look_at(items[i], options, files, i in declined), range(len(items)))


def _look_at(
    item: Item, options: Options, files: contextlib.ExitStack, has_declined: bool
) -> OldObject | None:
    if not item.keeps_old:
        return MISSING if item.old_file is NO_FILE else None
    old = _open(item, files, has_declined)
    if old.source is None or not item.chain.is_shard:
        return old
    try:
        return _load(item, old, options, has_declined)
    except ShardError as error:
        if not is_damage(error) or not item.spares_old:
            raise
        return None  # nothing of it is needed


def _open(item: Item, files: contextlib.ExitStack, has_declined: bool) -> OldObject:
    """Find the old object of an item, and open it if the caller has not."""
    if item.path is None:
        return MISSING if item.old is None else OldObject(item.old, memoryview(item.old).nbytes)
    file = item.old_file
    if file is NO_FILE:
        return MISSING
    if file is None:
        fd = _open_file(item.path)
        if fd < 0:
            absent.check(item.path)
            return MISSING
        files.callback(os.close, fd)
        file = OpenFile.seen(fd)
        if file.n_links > 1:  # a caller with a lock has rolled the file back already
            native.load().roll_back(item.path, fd)
            file = OpenFile.seen(fd)
    elif has_declined:  # the attempt may have changed the times of the file
        file = OpenFile.seen(file.fd, file.mount_id, is_guarded=file.is_guarded)
    return OldObject(file.fd, file.nbytes, file)


def _open_file(path: str) -> int:
    """Open the file of an old object; -1 if there is none, also for a link to nothing, which a write replaces."""
    try:
        return int(native.load().open_file(path))
    except ShardFileError:
        if os.path.islink(path) and not os.path.exists(path):
            return -1
        raise


def _load(item: Item, old: OldObject, options: Options, has_declined: bool) -> OldObject:
    """Read and check the index of an old shard, and whatever else the placement needs."""
    chain = item.chain
    if old.nbytes < chain.index_nbytes:  # before memory is allocated for the index and for flags
        raise index_too_short(item.key, old.nbytes, chain.index_nbytes)
    stored = np.empty(chain.index_nbytes, dtype=np.uint8)  # its checksums follow the entries
    entries = stored[: 16 * chain.n_chunks].view(np.uint64).reshape(-1, 2)
    change = item.change()
    try:
        nbytes, n_bad = native.load().read_index(
            chain,
            old.source,
            stored,
            nbytes=old.nbytes,
            replaced=change.covered,
            allow_in_index=options.allow_in_index,
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
    if is_in_file and old.file is not None and not is_laid_out and not has_declined and not n_bad:
        n_new = int(np.count_nonzero(change.replaced)) - len(change.gone)
        facts = _facts_under_lock(item, options, old.file, n_new * chain.inner.nbytes)
    return old._replace(nbytes=nbytes, entries=entries, change=change, user=user, facts=facts)


def _facts_under_lock(item: Item, options: Options, file: OpenFile, new_nbytes: int) -> Facts | None:
    """Collect the facts of `facts_of`, and whether other writers are excluded; count what the file system refuses."""
    facts = facts_of(item, options, file, new_nbytes)
    if facts is None:
        return None
    if options.write_strategy == "append" and not facts.appends:
        stats.refused("append", name_of(file))
    if options.write_strategy == "in_place" and may_overwrite(facts):
        is_locked = item.old_file is not None or options.locking == "thread"
        if is_locked and is_local(file):
            return facts
        if is_locked:
            stats.refused("in_place", name_of(file))
        return facts._replace(is_exclusive=False)
    return facts


def facts_of(item: Item, options: Options, file: OpenFile, new_nbytes: int) -> Facts | None:
    """Collect the facts that decide how a shard, an open file, is updated in its own file; None: it must be replaced.

    new_nbytes: decoded bytes of the inner chunks that are to be written.
    """
    if options.write_strategy == "replace" or file.is_guarded:
        return None
    return Facts(
        index_nbytes=item.chain.index_nbytes,
        index_at_start=item.chain.index_at_start,
        index_checksum=item.chain.index_checksums > 0,
        new_nbytes=new_nbytes,
        n_links=file.n_links,
        appends=appends(file),
        direct=appends_directly(item.path, file),  # type: ignore[arg-type]  # an open file has a path
        sync=options.durability == "fsync",
    )


def copied_nbytes(item: Item, options: Options) -> int:
    """Estimate how many old bytes a write copies, without reading the index; see `work_nbytes`."""
    if item.old_file is NO_FILE or (item.path is None and item.old is None):
        return 0
    if item.path is None:
        return memoryview(item.old).nbytes
    if item.old_file is None:  # not opened yet
        return int(math.prod(item.chain.shape) * item.chain.itemsize)
    facts = facts_of(item, options, item.old_file, 0) if item.chain.is_shard else None
    if facts is not None:
        overwrites = options.write_strategy == "in_place" and may_overwrite(facts)
        if overwrites or way_to_append(facts) is not None:
            return 0
    return item.old_file.nbytes


def explain_error(
    error: ShardError, items: Sequence[Item], olds: Sequence[OldObject | None]
) -> ShardError | OSError:
    """Return an error of the engine in terms of the items.

    On a network file system the times of a file that was just written change later, when the server has set its own. So
    a file that seems to have changed is stale there: the caller looks again, under its lock.
    """
    position, is_changed = error.shard, getattr(error, "changed", False)
    old = olds[position] if is_changed and isinstance(position, int) else None
    error = explain(error, items)
    if old is None or old.file is None or is_local(old.file):
        return error
    return OSError(errno.ESTALE, str(error), items[position].path)  # type: ignore[index]
