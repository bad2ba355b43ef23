# new_object.py - a new object in a store of any kind
# SPDX-License-Identifier: MIT
"""`put_object`: store a new object, block by block, as a file or by requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .store import Store
from .whole_file import put_file

__all__ = ["put_object"]


def put_object(
    blocks: Iterator[Any],
    nbytes: int,
    store: Store,
    key: str,
    *,
    sync: bool = False,
    above: bool = True,
    may_replace: bool = False,
    before_store: Callable[[], None] | None = None,
) -> None:
    """Store a new object in any store, block by block; a file of the name may exist only with `may_replace`.

    Parameters
    ----------
    blocks : iterator of buffer
    nbytes : int
        Size of the object.
    store, key
        Its place.
    sync : bool
        A file and its name are on disk when this returns.
    above : bool
        With `sync`, the documents above the file are, too.
    may_replace : bool
        Replace another object of this name.
    before_store : callable, optional
        Called when all blocks were taken, just before the object appears; it may raise.

    Raises
    ------
    FileExistsError
        There is a file of this name.
    """
    path = store.path(key)
    if path is None and not nbytes:  # an upload without bytes stores nothing
        store.check_writable()
        if before_store is not None:
            before_store()
        store.wait(store.put_empty(key))
        return
    if path is None:
        from .upload import Upload

        upload = Upload(store, key, nbytes)
        try:
            offset = 0
            for block in blocks:
                upload.write(block, offset)
                offset += memoryview(block).nbytes
            if before_store is not None:
                before_store()
            upload.commit()
        finally:
            upload.abort()
        return
    if not put_file(
        path,
        blocks,
        sync=sync,
        may_replace=may_replace,
        staging=store.staging(key),
        before_commit=before_store,
    ):
        raise FileExistsError(f"{path}: expected no file of this name; choose an empty folder")
    if sync and above:
        store.sync([key])
