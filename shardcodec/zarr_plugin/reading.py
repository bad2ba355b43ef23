# reading.py - a request for elements, carried out
# SPDX-License-Identifier: MIT
"""Reading through zarr's stores.

Files and buffers of this process go to the engine as one call. From any other store the bytes are fetched with
asynchronous requests (`access.remote`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..access.reader import ReadItem, read
from ..access.remote import fetch
from ..options import Options
from ..storage.aio import to_its_end
from .remote import limits_for, remote_for
from .requests import Request
from .stores import index_names, is_direct, is_local, is_memory, local_path, stored_bytes

__all__ = ["run"]


async def run(request: Request, options: Options) -> set[int]:
    """Fill the request's array; return the positions of objects that do not exist."""
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
    elif request.is_small:
        missing = read(items, request.array, request.axes, options)
    else:
        missing = await to_its_end(asyncio.to_thread(read, items, request.array, request.axes, options))
    return {request.positions[i] for i in missing}
