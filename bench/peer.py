"""One way to work with an array, as each row of the suite calls it; `peers.py` has one class for each library."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from data import Array, Box, Case


class Peer:
    """One way to work with an array."""

    name = ""
    package = ""
    is_rival = True  # not us, and not the floor
    can_update = True
    can_index = False  # takes index arrays and masks
    can_gather = False  # can buffer writes and store them at once
    gives_values = True  # else its results are not those of the array
    group: str | tuple[str, ...] | None = None  # takes part in rows of this group, or these, only

    def why_not(self) -> str | None:
        """Return why this peer cannot run here, or None."""
        return None if importlib.util.find_spec(self.package) else f"{self.package} is not installed"

    def joins(self, group: str) -> bool:
        """Return whether this peer takes part in the rows of a group."""
        return self.group is None or group in ((self.group,) if isinstance(self.group, str) else self.group)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Return a context for all work of this peer, for peers that need settings of the whole process."""
        yield

    def settings(self) -> dict[str, Any]:
        """Return zarr's configuration for this peer, for other processes than this one."""
        return {}

    def open(self, path: Path, case: Case) -> Any:
        raise NotImplementedError

    def open_keeping(self, path: Path, case: Case, nbytes: int) -> Any:
        """Open an array with a cache of so many decoded bytes, and with one thread for each call, if this peer has such settings."""
        return self.open(path, case)

    def read(self, array: Any, box: Box) -> Array:
        raise NotImplementedError

    def write(self, array: Any, box: Box, values: Array) -> None:
        raise NotImplementedError

    def resize(self, array: Any, shape: Sequence[int]) -> Any:
        """Return a handle on the array with another shape."""
        raise NotImplementedError

    def gathering(self, array: Any) -> AbstractContextManager[Any]:
        """Buffer writes until the end of a block; yield the array to write to."""
        raise NotImplementedError

    def select(self, array: Any, how: str, selection: Any) -> Array:
        """Read by index arrays: `how` is "oindex" or "vindex"."""
        raise NotImplementedError

    def store(self, array: Any, how: str, selection: Any, values: Array) -> None:
        raise NotImplementedError

    def read_many(self, array: Any, boxes: Sequence[Box]) -> Array:
        """Read boxes of one shape, in the best way for many of them."""
        return np.stack([self.read(array, box) for box in boxes])

    def read_rows(self, array: Any, boxes: Sequence[Box]) -> Array:
        """Read boxes of one axis and of several lengths, one behind the other, in the best way for many of them."""
        return np.concatenate([self.read(array, box) for box in boxes])
