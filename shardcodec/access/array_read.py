# array_read.py - read elements of one array from many objects
# SPDX-License-Identifier: MIT
"""Read a `Request`: one native call for files and memory, requests for any other store (`access.read_remote`)."""

from __future__ import annotations

from ..compat import has_loop_to_itself
from ..errors import ShardError
from ..options import Options
from ..storage.event_loop import in_thread
from ..storage.retry import Patience
from .array_request import Request
from .read import ObjectSelection, path_of, read

__all__ = ["read_request"]

# Bytes that one thread decodes in about 10 ms, and the bound for all threads: a read that is alone on a loop may take so long.
ALONE_NBYTES = 12 << 20
MAX_ALONE_NBYTES = 64 << 20


async def read_request(request: Request, options: Options, patience: Patience | None = None) -> set[int]:
    """Read the elements of a request into its array; return the `positions` of missing objects, whose elements have the fill value.

    patience: that of an earlier attempt on the event loop, which could not wait.
    """
    if not request.items:
        return set()
    store, items = request.store, request.items
    if not store.is_near:
        from .read_remote import read_far  # here, because most processes read files or memory

        limits = store.limits(request.spec)
        missing = await read_far(store, items, request.array, request.axes, options, limits)
    else:
        items = [ObjectSelection(item.key, item.chain, item.box, store.source(item.key)) for item in items]
        work = items, request.array, request.axes, options
        inline = patience is None and store.is_prompt
        if inline and (request.is_small or _may_stay(request, options)):
            try:
                missing = read(*work, Patience(0))
                return {request.positions[i] for i in missing}
            except (OSError, ShardError) as error:
                patience = Patience.after(error, path_of(error, ((item.key, item.source) for item in items)))
        missing = await in_thread(read, *work, patience)
    return {request.positions[i] for i in missing}


def _may_stay(request: Request, options: Options) -> bool:
    """Return True if a read that is not small may still run on the event loop, because no other task waits for the loop.

    A change of threads costs half a millisecond, 5 % of a plane of 512^3.
    """
    limit = min(ALONE_NBYTES * options.threads, MAX_ALONE_NBYTES)
    native = all(item.chain.stage is None for item in request.items)
    return native and request.fits_into(limit) and has_loop_to_itself()
