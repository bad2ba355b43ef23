# index_check.py - indexes that were fetched: is every entry inside the object, and outside of the index?
# SPDX-License-Identifier: MIT
"""The check of a whole index, for shards that are reached by requests; of files and memory the engine does it.

An object that lost its first bytes still has a sound index, which leads to wrong bytes. Where inner chunks have checksums,
these tell. Where they have none, perhaps only one entry of the whole index tells: the one that reaches too far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..options import Options
from .placement import sum_up

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["check_index", "must_be_sound", "reach"]

# No object is larger; stands for a size that is not known.
MAX_OBJECT_NBYTES = 2**63 - 1

Entries = np.ndarray[Any, np.dtype[np.uint64]]


def must_be_sound(chain: Chain, options: Options) -> bool:
    """Tell whether one wrong entry makes all inner chunks doubtful."""
    return bool(chain.needs_sound_index) and not options.allow_in_index


def check_index(chain: Chain, entries: Entries, nbytes: int | None, options: Options) -> None:
    """Check all entries of an index, as far as the size of the object is known, where `must_be_sound`.

    Raises
    ------
    ShardFormatError
        One cannot be true; ``.entry`` says which.
    """
    if must_be_sound(chain, options):
        size, n = MAX_OBJECT_NBYTES if nbytes is None else nbytes, int(chain.index_nbytes)
        native.load().index_check(entries, size, 0 if chain.index_at_start else size - n, n)


def reach(chain: Chain, entries: Entries) -> int:
    """Return how long the object must be, if all entries are true: an index at the end follows the last inner chunk."""
    return sum_up(entries).end + (0 if chain.index_at_start else int(chain.index_nbytes))
