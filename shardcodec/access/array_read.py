# array_read.py - read parts of one array from many objects
# SPDX-License-Identifier: MIT
"""Read a `Request`: one native call for files and memory, requests for any other store (`access.read_remote`)."""

from __future__ import annotations

from ..compat import has_loop_to_itself
from ..options import Options
from ..storage.waiting import Patience, in_thread
from .array_request import Request
from .read import ReadItem, read

__all__ = ["read_request"]

# Bytes that one thread decodes in about 10 ms, and the bound for all threads: a read that is alone on a loop may take so long.
ALONE_NBYTES = 12 << 20
MOST_ALONE_NBYTES = 64 << 20


async def read_request(request: Request, options: Options, patience: Patience | None = None) -> set[int]:
    """Read the elements of a request into its array.

    Parameters
    ----------
    request : Request
    options : Options
    patience : Patience, optional
        That of an earlier attempt on the event loop, which could not wait.

    Returns
    -------
    set of int
        Positions (`Request.positions`) of objects that do not exist; their elements have the fill value.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        An object is damaged.
    """
    if not request.parts:
        return set()
    store, parts = request.store, request.parts
    if not store.is_near:
        from .read_remote import fetch  # here, because most processes read files or memory

        items = [ReadItem(part.chain, None, part.box, part.key) for part in parts]
        names = store.index_names([part.key for part in parts])
        limits = store.limits(request.spec)
        missing = await fetch(items, request.array, request.axes, options, store, limits, names=names)
    else:
        items = [ReadItem(part.chain, store.source(part.key), part.box, part.key) for part in parts]
        work = items, request.array, request.axes, options
        inline = patience is None and store.is_prompt
        if inline and (request.is_small or _may_stay(request, options)):
            try:
                missing = read(*work, Patience(0))
                return {request.positions[i] for i in missing}
            except OSError as error:
                patience = Patience.after(error)
        missing = await in_thread(read, *work, patience)
    return {request.positions[i] for i in missing}


def _may_stay(request: Request, options: Options) -> bool:
    """Return True if a read that is not small may still run on the event loop, because no other task waits for the loop.

    A change of threads costs half a millisecond, 5 % of a plane of 512^3.
    """
    limit = min(ALONE_NBYTES * options.threads, MOST_ALONE_NBYTES)
    native = all(part.chain.stage is None for part in request.parts)
    return native and request.fits_into(limit) and has_loop_to_itself()
