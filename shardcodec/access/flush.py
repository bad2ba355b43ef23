# flush.py - what was gathered of one object, stored
# SPDX-License-Identifier: MIT
"""From `Gathered` to an object: one call encodes the inner chunks and lays them into the shard.

The caller holds the locks of the object.
"""

from __future__ import annotations

from typing import Any

from ..options import Options
from ..storage.file_locks import NO_FILE
from .overlay import Array, Gathered
from .read import ReadItem, read
from .regions import Boxes, whole
from .write import WriteItem, write

__all__ = ["flush"]


def flush(
    gathered: Gathered,
    path: str | None,
    old: Any,
    key: str,
    options: Options,
    *,
    write_empty: bool,
    keep_empty: bool = False,
    old_fd: int | None = None,
    staging: str | None = None,
    exist: list[int] | None = None,
) -> Any:
    """Store what was gathered.

    Parameters
    ----------
    path : str or None
        A local file; None when the new object is to come back as bytes.
    old : buffer or None
        The old object where it is not in a file.
    key : str
        How errors name the object.
    write_empty, keep_empty, old_fd, staging, exist
        As for `access.write.write` and `WriteItem`.

    Returns
    -------
    buffer or None
        As for one item of `access.write.write`.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        The old object is damaged where it is needed; it is as it was.
    OSError
        A file could not be read or written; the old one is as it was.
    """
    chain = gathered.chain
    source = old if path is None else path if old_fd is None else None if old_fd == NO_FILE else old_fd

    def read_old(boxes: Boxes, out: Array) -> None:
        read([ReadItem(chain, source, boxes, key)], out, range(out.ndim), options)

    positions, chunks = gathered.chunks(read_old)
    if chain.is_shard:
        item = WriteItem(chain, path, old, gathered.boxes(positions), key, old_fd, positions)
    else:
        item = WriteItem(chain, path, None, whole(chain.shape), key, old_fd)
    return write(
        [item],
        chunks,
        range(chunks.ndim),
        options,
        write_empty=write_empty,
        keep_empty=keep_empty,
        staging=staging,
        exist=exist,
    )[0]
