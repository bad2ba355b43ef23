# read_request.py - a request for elements, carried out
# SPDX-License-Identifier: MIT
"""Reading through zarr's stores.

Files and buffers of this process go to the engine as one call. From any other store the bytes are fetched with
asynchronous requests (`access.read_remote`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..access.chunk_codec import memory_order
from ..access.read import ReadItem, read, slice_reader
from ..access.read_remote import fetch
from ..compat import StorePath, as_numpy, has_loop_to_itself
from ..errors import ShardError
from ..options import Options
from ..storage.retry import Patience
from ..storage.tasks import in_thread
from .array_codecs import Kind
from .remotes import limits_for, remote_for
from .request import Declined, Request
from .stores import index_names, is_direct, is_local, is_memory, is_prompt, local_path, stored_bytes

__all__ = ["Shortcut", "run"]

# What one thread decodes in about 10 ms, and all threads of a call at most: so long a loop that nobody else uses may stand.
ALONE_NBYTES = 12 << 20
MOST_ALONE_NBYTES = 64 << 20

# Chunk shapes of one array whose readers are kept: a rectilinear grid may have any number.
MAX_READERS = 64


class Shortcut:
    """Small reads of one local file, all that many programs ever make: one native call, and little before it.

    What is no box of slices, or more work than an event loop should do by itself, is left to `run`; so is what fails,
    for `run` says which inner chunk of which object is to blame, and begins again where a file is just being changed.
    """

    def __init__(self, kind: Kind, store: Any) -> None:
        self._kind = kind
        self._store = store
        self._prefix = f"{store.root}/"
        self._known: tuple[Options | None, dict[Any, Any]] = None, {}

    def read(self, item: Any, buffer: Any, options: Options) -> bool | None:
        """Return whether the object of a batch's only item exists; None when nothing has been done.

        Of the options the number of threads does not count.
        """
        target, spec, chunk_selection, array_selection, _ = item
        array = as_numpy(buffer)
        if array is None or type(target) is not StorePath or target.store is not self._store:
            return None
        settled, readers = self._known
        if settled is not options:
            self._known = options, (readers := {})
        key = spec.shape, array.dtype
        reader = readers.get(key, self)
        if reader is self:
            if len(readers) == MAX_READERS:
                readers.clear()
            reader = readers[key] = self._reader(*key, options)
        if reader is None:
            return None
        try:
            exists: bool | None = reader.read(
                self._prefix + target.path, chunk_selection, array_selection, array
            )
        except ShardError:
            return None
        return exists

    def _reader(self, shape: tuple[int, ...], dtype: Any, options: Options) -> Any:
        native_order = memory_order(dtype, self._kind.dtype)
        if native_order is None:
            return None
        try:
            return slice_reader(self._kind.chain(shape, native_order), dtype, options)
        except Declined:
            return None


async def run(request: Request, options: Options, patience: Patience | None = None) -> set[int]:
    """Fill the request's array; return the positions of objects that do not exist.

    `patience` continues that of an attempt on the event loop, which must not wait.
    """
    if not request.parts:
        return set()
    if is_local(request.store):
        sources: Sequence[Any] = [local_path(part.target) for part in request.parts]
    elif is_memory(request.store):
        sources = [stored_bytes(part.target, part.spec.prototype) for part in request.parts]
    else:
        sources = [None] * len(request.parts)
    items = [
        ReadItem(part.chain, source, part.box, part.target.path)
        for part, source in zip(request.parts, sources, strict=True)
    ]
    if not is_direct(request.store):
        spec = request.parts[0].spec
        remote, limits = remote_for(request.store, spec.prototype), limits_for(request.store, spec)
        names = index_names([part.target for part in request.parts])
        missing = await fetch(items, request.array, request.axes, options, remote, limits, names=names)
    else:
        work = items, request.array, request.axes, options
        inline = patience is None and is_prompt(request.store)
        if inline and (request.is_small or _may_stay(request, options)):
            try:
                missing = read(*work, Patience(0))
                return {request.positions[i] for i in missing}
            except OSError as error:
                patience = Patience.after(error)
        missing = await in_thread(read, *work, patience)
    return {request.positions[i] for i in missing}


def _may_stay(request: Request, options: Options) -> bool:
    """Tell whether a read is done on the event loop although it is not small.

    The way to another thread and back costs half a millisecond, 5 % of a plane of 512^3. zarr's own loop stands still for
    nobody when the call is the only one.
    """
    limit = min(ALONE_NBYTES * options.threads, MOST_ALONE_NBYTES)
    native = all(part.chain.stage is None for part in request.parts)
    return native and request.fits_into(limit) and has_loop_to_itself()
