# shard_change.py - one shard, wherever it is, gets other inner chunks, decided while nobody else changes it
# SPDX-License-Identifier: MIT
"""Changing a `ShardObject`: the lock, the look at what is there, the decision, the new object.

What is stored may depend on what is there (a condition, inner chunks that exist), and that is only known under the object's
lock. So the decision is a function that is called there; whoever holds no lock, because the store exchanges objects
under a condition, calls it again when somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from ..errors import ShardError
from ..options import Options
from ..storage.file_locks import NO_FILE
from ..storage.temp_folder import staging_for
from .placement import Gone
from .read import ReadItem, explain
from .shard_object import NO_OBJECT, NativeShard, Part, ShardObject
from .user_bytes import UserBytes
from .write_encoded import NOTHING, EncodedItem, ordered, write_encoded

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Change", "Found", "Maker", "Place", "change", "change_all"]


class Change(NamedTuple):
    """What becomes of a shard.

    Attributes
    ----------
    chunks, gone
        As in `EncodedItem`.
    complete : bool
        Inner chunks that are not named are absent from now on, and the old object does not matter.
    keep_empty : bool
        Make an object also where no inner chunk is left.
    user : UserBytes or None
        As in `EncodedItem`.
    """

    chunks: Mapping[int, Any]
    gone: Gone = NOTHING
    complete: bool = False
    keep_empty: bool = False
    user: UserBytes | None = None

    @classmethod
    def of(cls, chunks: Mapping[int, Any], grid_shape: Sequence[int], order: str) -> Self:
        """Make one of a mapping in which None stands for what goes; the others are laid out in that order."""
        coming = [position for position, chunk in chunks.items() if chunk is not None]
        sequence = ordered(coming, grid_shape, order)
        gone = [position for position, chunk in chunks.items() if chunk is None]
        return cls({position: chunks[position] for position in sequence}, np.array(gone, dtype=np.intp))


class Place(Protocol):
    """Where a shard is, as far as who makes the new one has to know; see `ShardObject`."""

    @property
    def key(self) -> str: ...

    @property
    def path(self) -> str | None: ...


class Found:
    """The old object, as the decision sees it; nothing is read of it unless it is asked."""

    def __init__(
        self, target: Place, chain: Chain, options: Options, old: Any, generation: bytes | None
    ) -> None:
        self._target = target
        self._chain = chain
        self._options = options
        self._old = old
        self._generation = generation
        self._shard: NativeShard | None = None

    @property
    def shard(self) -> NativeShard:
        """The old shard, its index read.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index is damaged.
        """
        if self._shard is None:
            source = self._old
            if self._target.path is not None and not isinstance(source, int):
                source = self._target.path  # locked in this process only
            elif self._target.path is not None and source == NO_FILE:
                source = None
            try:
                self._shard = NativeShard(self._chain, source, self._options)
            except ShardError as error:
                error.shard = 0
                raise explain(error, [ReadItem(self._chain, None, None, self._target.key)]) from None  # type: ignore[arg-type]
        return self._shard

    @property
    def generation(self) -> bytes:
        """What names the state of the old object."""
        return self.shard.generation if self._generation is None else self._generation

    def close(self) -> None:
        """Let go of it."""
        if self._shard is not None:
            self._shard.close()


Decide = Callable[[Found], Change]


class Maker:
    """Makes the new object of one target.

    Parameters
    ----------
    target : Place
    chain
        Compiled chain of the shard.
    decide : callable
        As for `change`.
    options : Options
    staging : str, optional
        Folder for temporary names, where it is known.
    """

    def __init__(
        self, target: Place, chain: Chain, decide: Decide, options: Options, staging: str | None = None
    ) -> None:
        self._target = target
        self._chain = chain
        self._decide = decide
        self._options = options
        self._staging = staging
        self._generation: bytes | None = None
        self.versions: dict[int, bytes] = {}

    def look(self, generation: bytes) -> None:
        """As a `Look`."""
        self._generation = generation

    def make(self, old: Any, keep_empty: bool) -> Any:
        """As a `Make`."""
        found = Found(self._target, self._chain, self._options, old, self._generation)
        try:
            wanted = self._decide(found)
        finally:
            found.close()
        path, keep = self._target.path, keep_empty or wanted.keep_empty
        item = EncodedItem(
            self._chain,
            path,
            old,
            wanted.chunks,
            self._target.key,
            wanted.gone,
            wanted.user,
            complete=wanted.complete,
        )
        if path is None:
            return write_encoded([item], self._options, keep_empty=keep)[0]
        exist: list[int] = []
        write_encoded(
            [item._replace(old=None, old_fd=old)],
            self._options,
            keep_empty=keep,
            staging=self._staging or staging_for(path),
            exist=exist,
            versions=self.versions,
        )
        return not exist


def change(
    target: ShardObject, chain: Chain, decide: Decide, options: Options, *, blind: bool = False
) -> bytes:
    """Give a shard other inner chunks.

    Parameters
    ----------
    target : ShardObject
    chain
        Compiled chain of the shard.
    decide : callable
        From what was `Found` to the `Change`; it may be asked several times, and raise to leave all as it is.
    options : Options
    blind : bool
        `decide` does not look at what was found, and its changes are complete.

    Returns
    -------
    bytes
        Generation of the new object; `NO_OBJECT` where none is left, `UNKNOWN` where the store names none.
    """
    maker = Maker(target, chain, decide, options)
    generation = target.update(maker.make, options, maker.look, blind=blind)
    if target.path is not None:
        return maker.versions.get(0) or NO_OBJECT
    return generation


def change_all(targets: list[tuple[ShardObject, Any, Decide]], options: Options) -> list[bytes]:
    """Change shards of one realm, all or none; as `change`, for (target, chain, decide) each."""
    makers = [Maker(*each, options) for each in targets]
    parts = [
        Part(target, maker.make, maker.look) for maker, (target, _, _) in zip(makers, targets, strict=True)
    ]
    return targets[0][0].update_all(parts, options)
