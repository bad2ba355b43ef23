# shard_change.py - change the inner chunks of one shard in any store, from what is stored
# SPDX-License-Identifier: MIT
"""Change a `ShardObject`: take its lock, look at the stored shard, decide, store the new shard.

The change may depend on the stored shard: on a condition, or on the inner chunks that exist. So the caller passes a function
that decides, and it is called under the object's lock. A store with conditional puts has no lock against other processes: if
another writer was faster, the function is called again with the newer shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from ..errors import ShardError
from ..options import Options
from ..storage.locks import NO_FILE, settle
from ..storage.runner import Runner
from ..storage.store import UNCHANGED, Outcome, Stored
from .opened_shard import NO_OBJECT, NativeShard, content_generation
from .placement import Gone
from .read import with_key
from .shard_object import ShardObject
from .user_bytes import UserBytes
from .write import NOTHING, EncodedItem, ordered, write_encoded

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Change", "Settlement", "ShardMaker", "ShardPlace", "StoredShard", "change", "change_all"]


class Change(NamedTuple):
    """A change of one shard. Inner chunks that it does not name are carried, unless it is `complete`.

    Attributes
    ----------
    chunks : mapping
        From positions of inner chunks to their new encoded bytes, in the order in which they are stored.
    gone : ndarray of intp
        Positions of inner chunks that become absent: each once, and none that `chunks` names.
    complete : bool
        Inner chunks that are not in `chunks` become absent. The old object is not read.
    keep_empty : bool
        Store a shard without inner chunks. By default the object is deleted if no inner chunk is left.
    user : UserBytes or None
        New header, footer and alignment. None: header and footer are treated as dead bytes.
    """

    chunks: Mapping[int, Any]
    gone: Gone = NOTHING
    complete: bool = False
    keep_empty: bool = False
    user: UserBytes | None = None

    @classmethod
    def of(cls, chunks: Mapping[int, Any], grid_shape: Sequence[int], order: str) -> Self:
        """Make a change from one mapping.

        Parameters
        ----------
        chunks : mapping
            From positions of inner chunks to their new encoded bytes, or None to make the inner chunk absent.
        grid_shape : sequence of int
            Number of inner chunks along each axis of the shard.
        order : {"morton", "colexicographic", "lexicographic"}
            Order in which the new inner chunks are stored.
        """
        coming = [position for position, chunk in chunks.items() if chunk is not None]
        sequence = ordered(coming, grid_shape, order)
        gone = [position for position, chunk in chunks.items() if chunk is None]
        return cls({position: chunks[position] for position in sequence}, np.array(gone, dtype=np.intp))


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

    def __init__(self, target: ShardPlace, chain: Chain, options: Options, old: Stored) -> None:
        self._target = target
        self._chain = chain
        self._options = options
        self._old = old
        self._shard: NativeShard | None = None

    @property
    def shard(self) -> NativeShard:
        """The stored shard with its index; ``.missing`` is True if the object does not exist.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index is damaged.
        """
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

    Parameters
    ----------
    changes : sequence of (ShardPlace, Chain, callable)
        For each object its place, its compiled chain and the function that decides; see `change`.
    options : Options
    blind : bool
        As for `change`, for all objects.
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

    async def make(self, stored: Sequence[Stored], runner: Runner) -> Outcome:
        return await runner.call(self.make_all, stored, inline=False)

    def make_all(self, stored: Sequence[Stored]) -> Outcome:
        """Make the new objects, in a thread that may block."""
        each = [self._make(old) for old in stored]
        return Outcome(
            [outcome.objects[0] for outcome in each],
            [i for i, outcome in enumerate(each) if outcome.appeared],
            is_stored=self._changes[0][0].path is not None,
            states={old.position: outcome.states[0] for old, outcome in zip(stored, each, strict=True)},
        )

    def _make(self, old: Stored) -> Outcome:
        """Make one object. Its state is known if it is a file, which the engine stores."""
        target, chain, decide = self._changes[old.position]
        found = StoredShard(target, chain, self._options, old)
        try:
            wanted = decide(found)
        finally:
            found.close()
        item = EncodedItem(
            chain,
            target.path,
            old.data,
            wanted.chunks,
            target.key,
            wanted.gone,
            wanted.user,
            old_file=old.file,
            complete=wanted.complete,
        )
        outcome = write_encoded(
            [item],
            self._options,
            keep_empty=old.keeps_empty or wanted.keep_empty,
            staging=target.staging,
            retry_appeared=False,
        )
        if target.path is None:
            if old.state is None:
                self._new_bytes[old.position] = outcome.objects[0]
            return outcome._replace(states={0: None})
        return outcome._replace(states={0: outcome.states[0] or NO_OBJECT})

    def generation(self, position: int) -> bytes:
        """Return the generation of a new object whose bytes identify its state."""
        return content_generation(self._new_bytes[position])


class Settlement:
    """A `Maker` that rolls back the unfinished in-place update of a dead writer, and changes nothing else.

    Parameters
    ----------
    path : str
        The file of the shard.
    """

    keeps_emptied = True

    def __init__(self, path: str) -> None:
        self._path = path

    def begin(self) -> None:
        """Do nothing."""

    def needs_old(self, position: int) -> bool:
        return True

    def nbytes(self, position: int) -> int:
        return 0

    async def make(self, stored: Sequence[Stored], runner: Runner) -> Outcome:
        if stored[0].file is None:  # no lock was taken, which would have rolled it back
            await runner.call(settle, self._path, inline=False)
        return Outcome([UNCHANGED], is_stored=True)


def change(
    target: ShardObject, chain: Chain, decide: Decide, options: Options, *, blind: bool = False
) -> bytes:
    """Change the inner chunks of a shard in one atomic write.

    Parameters
    ----------
    target : ShardObject
        The place of the shard; the object need not exist.
    chain : Chain
        Compiled chain of the shard.
    decide : callable
        Takes the stored object (`StoredShard`) and returns the `Change`. It is called under the lock of the object, and again if
        another writer was faster. If it raises, the shard stays as it is and `change` raises the same error.
    options : Options
    blind : bool
        True: the stored shard is not read, which saves a request. `decide` must then return a `complete` change and must not
        use its argument, which may show a missing shard.

    Returns
    -------
    bytes
        Generation of the new object; `NO_OBJECT` if none is left, `UNKNOWN` if the store does not identify states.

    Raises
    ------
    ValueError
        The store is read-only.
    UnsupportedError
        Codecs follow the sharding, so inner chunks cannot be reached one by one.
    ShardFormatError, ChecksumError
        The stored shard is damaged where it would be carried; it is unchanged.
    LockError
        Other writers held the lock, or were faster, for ``lock_timeout``.
    """
    maker = ShardMaker([(target, chain, decide)], options, blind=blind)
    state = target.update(maker, options)
    return maker.generation(0) if state is None else state


def change_all(changes: Sequence[tuple[ShardObject, Chain, Decide]], options: Options) -> list[bytes]:
    """Change several shards of one realm (`ShardObject.realm`), either all or none.

    Parameters
    ----------
    changes : sequence of (ShardObject, Chain, callable)
        For each shard the arguments `target`, `chain` and `decide` of `change`; at least one. All targets have the same
        realm, and it is not None: the caller makes sure of this, it is not checked here.
    options : Options

    Returns
    -------
    list of bytes
        The generation of each new object, as `change` returns it. Entries of one outer shard have its generation.

    Raises
    ------
    Exception
        As `change`; all shards are unchanged.
    """
    maker = ShardMaker(changes, options)
    states = changes[0][0].update_all([target for target, _, _ in changes], maker, options)
    return [maker.generation(i) if state is None else state for i, state in enumerate(states)]
