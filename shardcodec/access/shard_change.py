# shard_change.py - change the inner chunks of one shard in any store, from what is stored
# SPDX-License-Identifier: MIT
"""Change a `ShardObject`: take its lock, look at the stored shard, decide, store the new shard.

The change may depend on the stored shard: on a condition, or on the inner chunks that exist. So the caller passes a function
that decides, and it is called under the object's lock. A store with conditional puts has no lock against other processes: if
another writer was faster, the function is called again with the newer shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from ..errors import ShardError
from ..options import Options
from ..storage.file_locks import NO_FILE, roll_back
from ..storage.runner import Runner
from ..storage.store import UNCHANGED, Outcome, StoredObject
from .encoded_chunks import ordered
from .opened_shard import NO_OBJECT, NativeShard, content_generation
from .placement import Gone
from .read import with_key
from .shard_object import ShardObject
from .user_bytes import UserBytes
from .write import NOTHING, EncodedItem, write_objects

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Change", "RollBack", "ShardMaker", "ShardPlace", "StoredShard", "change", "change_all"]


class Change(NamedTuple):
    """A change of one shard. Inner chunks that it does not name are carried, unless it is `complete`.

    chunks: from positions to new encoded bytes, in the order in which they are stored. gone: positions of inner chunks that
    become absent, each once, and none that `chunks` names. complete: inner chunks that are not in `chunks` become absent; the
    old object is not read. keep_empty: store a shard without inner chunks, which is deleted by default. user: new header,
    footer and alignment; None: header and footer are treated as dead bytes.
    """

    chunks: Mapping[int, Any]
    gone: Gone = NOTHING
    complete: bool = False
    keep_empty: bool = False
    user: UserBytes | None = None

    @classmethod
    def of(cls, chunks: Mapping[int, Any], grid_shape: Sequence[int], order: str) -> Self:
        """Make a change from one mapping from positions to new encoded bytes, or None to make an inner chunk absent.

        order: that in which the new inner chunks are stored.
        """
        coming = [position for position, chunk in chunks.items() if chunk is not None]
        sequence = ordered(coming, grid_shape, order)
        gone = [position for position, chunk in chunks.items() if chunk is None]
        return cls({position: chunks[position] for position in sequence}, np.array(gone, dtype=np.intp))

    def item(self, place: ShardPlace, chain: Chain, old: StoredObject) -> EncodedItem:
        """Return the item of a write that makes this change."""
        return EncodedItem(
            chain,
            place.path,
            old.data,
            self.chunks,
            place.key,
            self.gone,
            self.user,
            old_file=old.file,
            complete=self.complete,
        )


class ShardPlace(Protocol):
    """The attributes of a `ShardObject` that a `ShardMaker` needs."""

    @property
    def key(self) -> str: ...

    @property
    def path(self) -> str | None: ...

    @property
    def staging(self) -> str | None: ...


class StoredShard:
    """The stored object, for the function that decides on a change. It is opened at the first use of `shard`."""

    def __init__(self, target: ShardPlace, chain: Chain, options: Options, old: StoredObject) -> None:
        self._target = target
        self._chain = chain
        self._options = options
        self._old = old
        self._shard: NativeShard | None = None

    @property
    def shard(self) -> NativeShard:
        """The stored shard with its index; ``.missing`` is True if the object does not exist."""
        if self._shard is None:
            source = self._old.data
            if self._target.path is not None and self._old.file is not NO_FILE:
                # without a descriptor the file is locked in this process only
                source = self._target.path if self._old.file is None else self._old.file.fd
            try:
                self._shard = NativeShard(self._chain, source, self._options)
            except ShardError as error:
                raise with_key(error, self._chain, self._target.key) from None
        return self._shard

    @property
    def generation(self) -> bytes:
        """Generation of the stored object."""
        if self._old.state is not None:
            return self._old.state
        if self._target.path is None:
            return content_generation(self._old.data)
        return self.shard.generation

    def close(self) -> None:
        """Close the stored shard if it is open."""
        if self._shard is not None:
            self._shard.close()


Decide = Callable[[StoredShard], Change]


class ShardMaker:
    """A `Maker` of shards with other inner chunks.

    changes: for each object its place, its compiled chain and the function that decides; see `change`. blind: as for `change`.
    """

    keeps_emptied = True

    def __init__(
        self, changes: Sequence[tuple[ShardPlace, Chain, Decide]], options: Options, *, blind: bool = False
    ) -> None:
        self._changes = changes
        self._options = options
        self._blind = blind
        self._new_bytes: dict[int, Any] = {}

    def begin(self) -> None:
        """Do nothing: the decisions are made when the stored shards are known."""

    def needs_old(self, position: int) -> bool:
        return not self._blind

    def nbytes(self, position: int) -> int:
        """Return 0: all objects are made together."""
        return 0

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        return await runner.call(self.make_all, stored, inline=False)

    def make_all(self, stored: Sequence[StoredObject]) -> Outcome:
        """Make the new objects, in a thread that may block. The states of files are known: the engine stores them."""
        objects: list[Any] = []
        appeared: list[int] = []
        states: dict[int, bytes | None] = {}
        for i, old in enumerate(stored):
            place, chain, decide = self._changes[old.position]
            with closing(StoredShard(place, chain, self._options, old)) as shard:
                change = decide(shard)
            is_file = place.path is not None
            outcome = write_objects(
                [change.item(place, chain, old)],
                self._options,
                keep_empty=old.keeps_empty or change.keep_empty,
                staging=place.staging,
                retry_appeared=False,
            )
            objects += outcome.objects
            appeared += [i] * len(outcome.appeared)
            states[old.position] = (outcome.states[0] or NO_OBJECT) if is_file else None
            if not is_file and old.state is None:
                self._new_bytes[old.position] = outcome.objects[0]
        return Outcome(objects, appeared, is_stored=self._changes[0][0].path is not None, states=states)

    def generation(self, position: int) -> bytes:
        """Return the generation of a new object whose bytes identify its state."""
        return content_generation(self._new_bytes[position])


class RollBack:
    """A `Maker` that rolls back the unfinished in-place update of a dead writer in the file `path`, and changes nothing else."""

    keeps_emptied = True

    def __init__(self, path: str) -> None:
        self._path = path

    def begin(self) -> None:
        """Do nothing."""

    def needs_old(self, position: int) -> bool:
        return True

    def nbytes(self, position: int) -> int:
        return 0

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        if stored[0].file is None:  # no lock was taken, which would have rolled it back
            await runner.call(roll_back, self._path, inline=False)
        return Outcome([UNCHANGED], is_stored=True)


def change(
    target: ShardObject, chain: Chain, decide: Decide, options: Options, *, blind: bool = False
) -> bytes:
    """Change the inner chunks of a shard in one atomic write; return the generation of the new object.

    The generation is `NO_OBJECT` if none is left, `UNKNOWN` if the store does not identify states.

    decide: takes the `StoredShard`, which may be missing, and returns the `Change`. It is called under the lock of the object,
    and again if another writer was faster. If it raises, the shard is unchanged and `change` raises the same error. blind: the
    stored shard is not read, which saves a request; `decide` must then return a `complete` change and must not use its
    argument.
    """
    maker = ShardMaker([(target, chain, decide)], options, blind=blind)
    state = target.update(maker, options)
    return maker.generation(0) if state is None else state


def change_all(changes: Sequence[tuple[ShardObject, Chain, Decide]], options: Options) -> list[bytes]:
    """Change several shards of one realm (`ShardObject.realm`), either all or none; return their generations.

    changes: at least one; for each shard the arguments `target`, `chain` and `decide` of `change`. All targets have the same
    realm, which is not None: this is not checked. Entries of one outer shard have its generation.
    """
    maker = ShardMaker(changes, options)
    states = changes[0][0].update_all([target for target, _, _ in changes], maker, options)
    return [maker.generation(i) if state is None else state for i, state in enumerate(states)]
