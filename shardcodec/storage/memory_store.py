# memory_store.py - stores of objects in the memory of this process
# SPDX-License-Identifier: MIT
"""Objects that are buffers of this process. The engine reads them where they are, and returns new ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ..compat import buffer_from
from ..options import Options
from . import object_names
from .runner import Runner
from .store import UNCHANGED, Answer, Contest, Maker, Outcome, Replacement, Store, StoredObject, group_of

__all__ = ["BytesStore", "MemoryStore"]


class MemoryStore(Store):
    """Objects of zarr's MemoryStore."""

    is_near = True
    is_prompt = True

    @property
    def realm(self) -> Hashable:
        """Objects of one memory store are replaced together."""
        return object_names.memory_name(self._base)

    def source(self, key: str) -> Any:
        """Return an object as an array of bytes, without a copy; None if it does not exist."""
        buffer = self._base.get_sync(key, prototype=self.prototype)
        return None if buffer is None else buffer.as_numpy_array()

    def lock_names(self, keys: Sequence[str]) -> list[str]:
        """Return names that a read-only view of the store shares."""
        prefix = object_names.memory_name(self._base)
        return [f"{prefix}/{key}" for key in keys]

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""
        data = self.source(key)
        return None if data is None else Answer(np.frombuffer(data, dtype=np.uint8))

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return a range of an object."""
        data = self.source(key)
        return None if data is None else Answer(np.frombuffer(data, dtype=np.uint8)[start:end])

    async def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        data = self.source(key)
        if data is None:
            raise FileNotFoundError(key)
        return memoryview(data).nbytes

    async def exchange(
        self,
        replacements: Sequence[Replacement],
        maker: Maker,
        options: Options,
        runner: Runner,
        contest: Contest,
    ) -> Outcome:
        """Replace objects; all of a group or, after an error, none."""
        maker.begin()
        n = group_of(replacements, maker)
        group = replacements[:n]
        stored = [
            StoredObject(
                replacement.position,
                data=self.source(replacement.key) if maker.needs_old(replacement.position) else None,
            )
            for replacement in group
        ]
        outcome = await maker.make(stored, runner)
        for replacement, new in zip(group, outcome.objects, strict=True):
            if new is not UNCHANGED:
                self._put(replacement.key, new)
        return Outcome(remaining=replacements[n:])

    def _put(self, key: str, new: Any) -> None:
        if new is None:
            self._base.delete_sync(key)
        else:
            self._base.set_sync(key, buffer_from(self.prototype, new))


class BytesStore(MemoryStore):
    """One object with given bytes, under any key. A write creates new bytes and leaves the given ones alone."""

    def __init__(self, data: Any) -> None:
        self.data: Any = data

    def __reduce__(self) -> tuple[Any, ...]:
        return BytesStore, (None if self.data is None else bytes(self.data),)

    @property
    def realm(self) -> None:
        """Return None: there is one object."""

    def source(self, key: str) -> Any:
        """Return the bytes."""
        return self.data

    def lock_names(self, keys: Sequence[str]) -> list[str]:
        """Return a name that no other object has."""
        return [f"object:{id(self)}" for _ in keys]

    index_names = lock_names

    @property
    def supports_listing(self) -> bool:
        """Return False: any key leads to the one object."""
        return False

    def describe(self, key: str) -> str:
        """Return the key."""
        return key

    def check_writable(self) -> None:
        """Do nothing: new bytes can always be created."""

    def _put(self, key: str, new: Any) -> None:
        self.data = new
