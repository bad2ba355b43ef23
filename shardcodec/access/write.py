# write.py - boxes of one array into many objects
# SPDX-License-Identifier: MIT
"""Writing.

An object that is written whole is made beside the old one, then renamed. A box that does not cover an object needs the rest
of the old object: every entry of the old index is checked first, so that damage stops the update, and inner chunks outside
the box are carried over as encoded bytes, never decoded. They are copied into a new object or, if the option
``write_strategy`` and the object allow it, stay where they are.

The caller holds the locks of the objects (`storage.locks`). The steps of a write: `write_objects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..options import Options
from .old_shard import copied_nbytes
from .read import decoded_nbytes
from .write_items import Elements, WriteItem
from .write_objects import WriteResult, write_objects

__all__ = ["WriteItem", "moved_nbytes", "write"]


def write(
    items: Sequence[WriteItem],
    value: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    *,
    write_empty: bool = False,
    keep_empty: bool = False,
    staging: str | None = None,
    retry_appeared: bool = True,
) -> WriteResult:
    """Write parts of an array.

    Parameters
    ----------
    items : sequence of WriteItem
        Each object once.
    value : ndarray
        Source; any strides.
    axes : sequence of int
        The axis of `value` for each axis of the chunks; -1 for an axis along which it is repeated.
    write_empty : bool
        Store chunks that equal the fill value.
    keep_empty : bool
        Make an object even if nothing but fill value is left.
    staging : str, optional
        Folder for temporary names (`storage.files`).
    retry_appeared : bool
        Update objects that appeared after the look, instead of returning their positions in `WriteResult.appeared`. Right
        for a caller without locks on files.

    Returns
    -------
    WriteResult

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        The old object is damaged where it would have been carried over; it is unchanged.
    OSError
        A file could not be written; the old one is unchanged. Items before it may have been written.
    """
    return write_objects(
        items,
        options,
        Elements(value, axes, write_empty),
        keep_empty=keep_empty,
        staging=staging,
        retry_appeared=retry_appeared,
    )


def moved_nbytes(item: WriteItem, options: Options) -> int:
    """Estimate how many bytes are encoded and copied when an item is written."""
    copied = copied_nbytes(item, options) if item.keeps_old else 0
    return copied + decoded_nbytes(item.chain, item.box)
