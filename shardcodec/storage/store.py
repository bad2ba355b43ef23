# store.py - the base class of stores, its records and its answers
# SPDX-License-Identifier: MIT
"""The base class of stores, its records and its answers.

There are four kinds: files (`storage.files`), memory (`storage.files`), object stores with entity tags
(`storage.object_store`) and any other zarr store (`storage.zarr_store`). They differ in how a range is read, in what
identifies a state of an object, and in how an object is replaced without losing another writer's work. They differ nowhere
else, and no code outside this folder asks for the kind of a store. `storage.kinds` finds the kind of a zarr store.

To replace an object, callers use `storage.replace.replace`, which calls `Store.exchange`.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from ..compat import IN_MEMORY, buffer_from, on_zarrs_loop
from ..errors import LockError
from ..options import Options
from . import file_locks, object_names
from .budget import Limits, limits_of_zarr
from .file_systems import OpenFile
from .object_names import LeftFolder
from .runner import run_blocking

if TYPE_CHECKING:
    from .retry import Patience
    from .runner import Runner

__all__ = [
    "GROUP_NBYTES",
    "NO_OBJECT",
    "UNCHANGED",
    "UNKNOWN",
    "Answer",
    "Contest",
    "LeftFolder",
    "Maker",
    "ObjectChanged",
    "Outcome",
    "OwnBytes",
    "Remote",
    "Replacement",
    "Store",
    "StoredObject",
    "StreamedObject",
    "check_store_writable",
    "group_of",
    "state_bytes",
]

T = TypeVar("T")


# Besides its bytes, an `Answer` may have the size of the object and the name of its state (an entity tag). A later request can
# be bound to that state, so a reader detects an object that was replaced between two requests, instead of mixing old and new
# bytes.


class OwnBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of an object in memory with a single owner, so that a new object may reuse and overwrite it."""

    @classmethod
    def of_size(cls, nbytes: int) -> OwnBytes:
        """Return an uninitialised array of this many bytes."""
        return np.empty(nbytes, dtype=np.uint8).view(cls)


class Answer(NamedTuple):
    """The answer to a request.

    data: the requested bytes, as far as the object has them. nbytes: size of the whole object, if the store reports it.
    state: name of this state of the object, if the store reports it and can bind a request to it; else None.
    """

    data: Any
    nbytes: int | None = None
    state: Any = None


class ObjectChanged(Exception):
    """The object is no longer in the state that a request was bound to."""


class Remote(Protocol):
    """The requests of a store. Each returns None for an object that does not exist, and raises the store's errors.

    budget_name: calls with one name share their limits (`storage.budget`); None: each call has its limits.
    """

    @property
    def budget_name(self) -> str | None: ...

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; raise `ObjectChanged` if it is not in the state `state`."""

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one."""


# Names of states, as bytes. These two name the state of a missing object, and any state in a store that does not identify
# states. Two other names are equal only if the object has not changed.
NO_OBJECT: Final = b"\x02"
UNKNOWN: Final = b"\x04"

# Marks an object of `Outcome.objects` that stays unchanged.
UNCHANGED: Final = object()

# Decoded bytes of the objects that are encoded together, where their encoded bytes are held in memory.
GROUP_NBYTES = 128 << 20


# The pause of a writer after another writer was faster: at most the first one, in seconds, then twice as long each time.
FIRST_WAIT = 0.01
LONGEST_WAIT = 1.0


class Replacement(NamedTuple):
    """One object that a write replaces: its position among the objects of the write, its key in the store, its name for locks."""

    position: int
    key: str
    name: str


class StoredObject(NamedTuple):
    """The stored object that a write replaces.

    position: that among the objects of the write. file: for a file, its entry in `file_locks.FileLocks.held`; the engine reads and
    replaces the file itself. data: its bytes, if it is not a file; None if it does not exist or the new object does not depend
    on it. state: None if the bytes or the file identify the state. keeps_empty: the store cannot delete the object safely: an
    object without inner chunks must be stored in its place.
    """

    position: int
    file: OpenFile | None = None
    data: Any = None
    state: bytes | None = None
    keeps_empty: bool = False


@dataclass(frozen=True, slots=True)
class StreamedObject:
    """A new object of at most `nbytes` bytes that is made while it is stored.

    pieces: returns an asynchronous generator of buffers, whose concatenation is the object; no buffer at all means no object.
    """

    pieces: Callable[[], AsyncGenerator[Any, None]]
    nbytes: int


class Outcome(NamedTuple):
    """The result of one attempt to write objects: made by the engine or a `Maker`, completed by the store.

    objects: for each object a buffer, or a tuple of buffers to concatenate; None to delete the object; `UNCHANGED`. If the
    store `takes_parts`, also a `StreamedObject` for an object that does not depend on the stored one. None for a file that the
    engine has stored. Empty after the store has stored them. is_stored: the engine has stored the files already.

    appeared: positions of files that were missing when their locks were taken, and that another writer has created since; they
    are not written. states: from positions to the names of new states, unless bytes identify them. remaining: objects that have
    not been replaced yet. contended: name of an object that another writer was faster to change. pause: seconds to wait before
    the next attempt. has_moved: a name leads to another object by now, so the locks must be taken again.
    """

    objects: Sequence[Any] = ()
    appeared: Sequence[int] = ()
    is_stored: bool = False
    states: Mapping[int, bytes | None] = MappingProxyType({})
    remaining: Sequence[Replacement] = ()
    contended: str | None = None
    pause: float = 0.0
    has_moved: bool = False

    @property
    def is_undisturbed(self) -> bool:
        """True if no other writer or client disturbed the attempt."""
        return self.contended is None and not self.pause and not self.has_moved


class Maker(Protocol):
    """Makes new objects from stored ones. All of it may be called several times."""

    def begin(self) -> None:
        """Decide what the write contains. `Store.exchange` calls it when the locks are held."""

    def needs_old(self, position: int) -> bool:
        """Return True if the new object depends on the stored one."""

    def nbytes(self, position: int) -> int:
        """Return the memory that a new object may take, in bytes."""

    @property
    def keeps_emptied(self) -> bool:
        """True if an emptied shard is stored without inner chunks where the store cannot delete; if not, that is an error."""

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        """Make the new objects; any error leaves the stored objects as they are."""


class Contest:
    """The bounds of successive disturbed attempts: pauses while clients replace files, and a deadline against other writers."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._begun = time.monotonic()  # this attempt
        self._deadline = self._begun + options.lock_timeout
        self.patience: Patience = file_locks.patience_of(options)
        self.n_lost: int = 0  # attempts in which another writer was faster

    def postpone(self, seconds: float) -> None:
        """Add time in which this writer did not contend."""
        self._begun += seconds
        self._deadline += seconds

    def check_file(self, path: str) -> None:
        """Raise `LockError` when other processes have created and removed a file for too long."""
        file_locks.check_deadline(self._deadline, path, self._options)

    def lose(self, key: str) -> float:
        """Note that another writer was faster to change an object; return the seconds to wait, or raise LockError after the deadline."""
        self.n_lost += 1
        now = time.monotonic()
        if now >= self._deadline:
            raise LockError(
                f"shard {key!r}: expected to update it within {self._options.lock_timeout:g} s, but other writers changed it "
                f"during each of {self.n_lost} attempts; nothing was written, so try again or raise SHARDCODEC_LOCK_TIMEOUT",
                shard=key,
                n_tries=self.n_lost,
            )
        longest = min(LONGEST_WAIT, max(FIRST_WAIT, now - self._begun) * 2 ** min(self.n_lost, 10))
        pause = random.uniform(0, longest)
        self._begun = now + pause
        return pause


class Store(ABC):
    """A place of objects, each with a key: the base class of all kinds of stores. `base` is the zarr store that holds them.

    A kind defines the abstract members. The others have the answers of a store that is read with requests and cannot name the
    states of its objects; a kind overrides those that differ.
    """

    prototype: Any = IN_MEMORY

    def __init__(self, base: Any) -> None:
        self._given = base  # names objects, also where the store cannot be used
        self._base = base

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def with_prototype(self, prototype: Any) -> Store:
        """Return this store, or a copy of it, whose requests to a zarr store ask for buffers of these classes."""
        if prototype == self.prototype:
            return self
        store = copy.copy(self)
        store.prototype = prototype
        return store

    @property
    def is_near(self) -> bool:
        """True if the engine reads objects itself, from `source`; if not, they are read with requests."""
        return False

    @property
    @abstractmethod
    def is_prompt(self) -> bool:
        """True if calls take no network round trip, so small work may run on an event loop."""

    @property
    def identifies_states(self) -> bool:
        """True if answers of requests name the state of an object, and requests can be bound to a state."""
        return False

    @property
    def has_unique_states(self) -> bool:
        """True if no two contents of an object ever have states of one name."""
        return False

    @property
    def realm(self) -> Hashable:
        """Objects of stores with one realm are replaced together, all or none; None if the store cannot do that."""
        return None

    @property
    def place(self) -> Any:
        """An object that is another one after all objects have moved, so that their paths are others."""
        return self._given

    @property
    def describes_arrays(self) -> bool:
        """True if the documents in the store are those of the arrays that are opened in it."""
        return True

    def says_missing(self, error: Exception) -> bool:
        """Return True if an error of a request says that the place of all objects does not exist."""
        return isinstance(error, FileNotFoundError)

    @property
    def is_read_only(self) -> bool:
        """True if the store refuses writes."""
        return bool(self._base.read_only)

    def check_writable(self) -> None:
        """Raise `ValueError` if the store is read-only."""
        check_store_writable(self._base)

    def limits(self, spec: Any = None) -> Limits:
        """Return the limits of requests; `spec` is that of a chunk of an array, if there is one."""
        return limits_of_zarr(spec, near=self.is_near)

    def source(self, key: str) -> Any:
        """Return what the engine reads, if the store is near: the path of a file, or a buffer; None for a missing object."""
        raise NotImplementedError("the objects of this store are read with requests")

    def path(self, key: str) -> str | None:
        """Return the path of the file that is the object; None if objects are not files."""
        return None

    def staging(self, key: str) -> str | None:
        """Return the folder for temporary files beside the file of an object; None if there is none."""
        return None

    def is_link(self, key: str) -> bool:
        """Return True if a symbolic link leads to the object."""
        return False

    def sync(self, keys: Sequence[str]) -> None:  # noqa: B027 - what a request has stored is on disk
        """Wait until files that were stored, and the documents above them, are on disk."""

    @abstractmethod
    def lock_names(self, keys: Sequence[str]) -> list[str]:
        """Return the names of objects for locks. Two stores for one place return equal names."""

    def index_names(self, keys: Sequence[str]) -> list[str]:
        """Return the names of objects for caches of indexes. No other store returns them."""
        return object_names.index_names(self._given, keys)

    def describe(self, key: str) -> str:
        """Return the name of an object for messages, without a call of the store's own ``__str__``."""
        return object_names.describe(self._given, key)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the coroutines below in a thread without an event loop, and return its result."""
        return run_blocking(work) if self.is_near else on_zarrs_loop(work)  # type: ignore[no-any-return]

    @property
    def budget_name(self) -> str | None:
        """Name of the store, whose limits of requests all calls share."""
        return object_names.store_name(self._given)

    @abstractmethod
    async def get(self, key: str) -> Answer | None:
        """Return all of an object; None if it does not exist."""

    @abstractmethod
    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; raise `ObjectChanged` if it is not in the state `state`."""

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one, by its size and then the range: two requests."""
        try:
            size = await self.size(key)
        except FileNotFoundError:
            return None
        return await self.get_range(key, max(0, size - nbytes), size)

    @abstractmethod
    async def size(self, key: str) -> int:
        """Return the size of an object in bytes; raise `FileNotFoundError` if it does not exist."""

    @property
    def supports_listing(self) -> bool:
        """True if `keys` and `names` work."""
        return bool(self._base.supports_listing)

    @property
    def lists_all(self) -> bool:
        """True if `keys` yields every object; a virtual store may make objects that it does not list, as that of tifffile."""
        return True

    def keys(
        self,
        prefix: str,
        *,
        with_folders: bool = False,
        left: list[LeftFolder] | None = None,
    ) -> Iterator[str]:
        """Yield the keys below a folder in any order; `prefix` is empty or ends with a slash.

        `with_folders`: also those of folders, with a slash at the end, if the store has folders of its own. `left`: gets the
        folders that are not entered, such as those without permission; without it they are errors.
        """
        return object_names.zarr_keys(self._base, prefix, left)

    def listed(
        self,
        prefix: str,
        *,
        with_folders: bool = False,
        all_of_them: bool = False,
        left: list[LeftFolder] | None = None,
    ) -> Iterator[str] | None:
        """Return the keys below a folder, as `keys`; None if the store does not list them: some have `names` only, as that of VirtualiZarr.

        `all_of_them`: also None unless each key that is not there is that of an object that does not exist.
        """
        if not self.supports_listing or (all_of_them and not self.lists_all):
            return None
        keys = iter(self.keys(prefix, with_folders=with_folders, left=left))
        try:
            first = list(itertools.islice(keys, 1))
        except NotImplementedError:
            return None
        return itertools.chain(first, keys)

    def names(
        self, prefix: str, left: list[LeftFolder] | None = None, *, with_files: bool = False
    ) -> list[str]:
        """Return the names of the folders in a folder, in ascending order; names of objects may be among them, and are `with_files`.

        `left`: gets those that lead to a folder above, which are not among the names.
        """
        return object_names.zarr_names(self._base, prefix)

    @property
    def has_lasting_states(self) -> bool:
        """True if there are names of states that are valid in all processes."""
        return False

    def states_of(self, keys: Sequence[str]) -> list[str | None] | None:
        """Return the lasting states of objects; None if only a listing shows them (`states`)."""
        return None

    async def states(self, prefix: str) -> dict[str, str | None] | None:
        """List objects with their lasting states; None if a listing does not show them."""
        return None

    def lasting_state(self, nbytes: int, state: Any) -> str | None:
        """Return the lasting state of an object from its size and its state in an answer; None if these do not show it."""
        return None

    @abstractmethod
    async def exchange(
        self,
        replacements: Sequence[Replacement],
        maker: Maker,
        options: Options,
        runner: Runner,
        contest: Contest,
    ) -> Outcome:
        """Replace objects once; the caller holds their locks in this process and repeats for those that are left."""

    async def exclusion(self, key: str) -> tuple[str, str]:
        """Return how far writers of an object exclude each other, as `file_systems.LockScope` has it; it may send a probe.

        LockScopeError: writers in other processes are not excluded; ``.reason`` says why.
        """
        raise NotImplementedError("only stores of requests are asked")

    @property
    def takes_parts(self) -> bool:
        """True if `put_parts` holds only a few parts of a large object in memory."""
        return False

    async def put_parts(self, key: str, new: StreamedObject) -> bytes | None:
        """Replace an object, without a condition, by one that is made meanwhile; return the name of the new state.

        Readers see the old object or the new one. After an error of the iterator or of the store, the old object stays. None:
        there were no pieces, and nothing was stored. By default the new object is collected in memory.
        """
        data = bytearray()
        async for piece in new.pieces():
            data += piece
        if not data:
            return None
        await self._base.set(key, buffer_from(self.prototype, data))
        return UNKNOWN

    async def put_empty(self, key: str) -> None:
        """Store an object without bytes, whatever is stored."""
        await self._base.set(key, buffer_from(self.prototype, b""))

    def forget(self, keys: Collection[str]) -> None:
        """Drop cached indexes of objects that have been written; nothing if indexes are not cached or are compared with the object."""
        return


def check_store_writable(store: Any) -> None:
    """Raise ValueError if a zarr store is read-only."""
    if store.read_only:
        raise ValueError("store was opened in read-only mode and does not support writing")


def group_of(replacements: Sequence[Replacement], maker: Maker) -> int:
    """Return the number of objects, from the first on, whose new bytes fit into memory together; at least one."""
    total = 0
    for n, replacement in enumerate(replacements):
        total += maker.nbytes(replacement.position)
        if n and total > GROUP_NBYTES:
            return n
    return len(replacements)


def state_bytes(state: Any) -> bytes:
    """Return the name of a state as bytes, from the state that a store reported."""
    return UNKNOWN if state is None else json.dumps(state, sort_keys=True).encode()
