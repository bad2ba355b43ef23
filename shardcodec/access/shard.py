# shard.py - one shard as a map from places in its grid to inner chunks
# SPDX-License-Identifier: MIT
"""`Shard`: what is in one shard, and changes to it.

Coordinates count inner chunks along the axes of the index, which are those of the shard behind transposes that precede
the sharding codec; only `Shard.read_region` speaks of elements of the array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..options import NOTHING, Options, Resolver, check, resolve
from ..storage.file_locks import settle
from . import chunk_overlay
from .chunk_codec import compiled, destination
from .encode_decode import parse_selection
from .inner_chunks import as_chunks, coordinates, distinct, encode_chunks, position_array, positions
from .placement import ABSENT, DEAD_SHARE, sum_up
from .shard_change import Change, Found, change
from .shard_object import ShardObject
from .snapshot import Snapshot
from .user_bytes import UserBytes, check_alignment, guess_alignment, kept_alignment
from .write_encoded import check_size

__all__ = ["Shard"]

Array = np.ndarray[Any, Any]


class Shard:
    """One shard; made by `shardcodec.open_shard`.

    What is read belongs together: the shard is looked at once, at first use, and stays that one when it is replaced
    meanwhile. `refresh` looks again, and so does each write through this handle.

    An object that does not exist is a shard without inner chunks. Use as a context manager closes it.

    A handle is for one thread at a time. Threads that work at the same time open a handle each: a write through one shared
    handle makes it look again, so the parts of another thread's read could belong to different states of the shard.
    """

    def __init__(
        self, target: ShardObject, spec: ShardSpec, mode: str = "r", choices: Mapping[str, Any] = NOTHING
    ) -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}")
        if not isinstance(spec, ShardSpec):
            raise TypeError(f"spec is a ShardSpec, not {type(spec).__name__}")
        if not spec.supports_partial_access:
            raise UnsupportedError(
                f"shard {target.key!r}: codecs that follow the sharding hide its inner chunks",
                shard=target.key,
            )
        self._object = target
        self._spec = spec
        self._mode = mode
        self._choices = check(dict(choices))
        self._resolver = Resolver(argument=self._choices)
        self._chain = compiled(spec.chain)
        self._is_clipped = spec.chain.is_clipped
        self._seen = Snapshot(target, spec, self._chain, self._resolver)

    # ---- what it is

    @property
    def spec(self) -> ShardSpec:
        """How the shard is encoded."""
        return self._spec

    @property
    def key(self) -> str:
        """Name of the object."""
        return self._object.key

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of inner chunks along each axis."""
        return self._spec.grid_shape

    @property
    def exists(self) -> bool:
        """Whether there is an object."""
        return self._seen.exists

    @property
    def nbytes(self) -> int:
        """Size of the object; 0 where there is none."""
        return self._seen.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._object, self._spec, self._mode, self._choices)

    def __repr__(self) -> str:
        return f"<Shard {self.key!r} of {self.grid_shape} inner chunks of {self._spec.chunk_shape}>"

    # ---- the index

    @property
    def index(self) -> Array:
        """The index as it is stored, its checksum checked.

        An array of uint64, shape ``(*grid_shape, 2)``, read-only: offset and size of each inner chunk, both 2^64-1 where
        one is absent. Other entries may be wrong; `check` tells.
        """
        entries = self._seen.entries(check=False).reshape(*self.grid_shape, 2)
        entries.flags.writeable = False
        return entries

    def check(self) -> None:
        """Check every entry of the index: that its range lies inside the object, and not in the index.

        Raises
        ------
        ShardFormatError
            One is wrong.
        """
        self._seen.entries(check=True)

    def state(self) -> Array:
        """Tell which inner chunks are stored: an array of bool over the grid."""
        entries = self._seen.entries(check=True)
        return np.asarray(entries[:, 0] != ABSENT).reshape(self.grid_shape)

    def gaps(self) -> list[tuple[int, int]]:
        """List ranges (offset, size) that neither an inner chunk nor the index covers, ascending.

        Header and footer are among them.
        """
        return self._seen.gaps()

    def overlaps(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """List pairs of inner chunks that share bytes, by their coordinates."""
        return [(self._coords(a), self._coords(b)) for a, b in self._seen.overlaps()]

    # ---- user bytes

    @property
    def header(self) -> bytes:
        """The user's bytes before the first inner chunk; behind the index, where that is at the start."""
        found = self._seen.user_bytes()
        return b"" if found is None else self._seen.range(found.where.first, found.where.chunks)

    @property
    def footer(self) -> bytes:
        """The user's bytes behind the last inner chunk; before the index, where that is at the end."""
        found = self._seen.user_bytes()
        return b"" if found is None else found.footer

    @property
    def alignment(self) -> int:
        """What a mark says (`docs/user-bytes.md`); else 4096 or 512 where every inner chunk begins at a multiple of that; else 1."""
        found = self._seen.user_bytes()
        entries = self._seen.entries(check=True)
        return guess_alignment(sum_up(entries)) if found is None else kept_alignment(found, entries)

    # ---- reading

    def read_range(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the object, whatever they mean.

        Raises
        ------
        ValueError
            The range is not inside it.
        """
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(f"{nbytes} bytes at offset {offset} are not inside the shard of {self.nbytes}")
        return self._seen.range(offset, offset + nbytes)

    def read_encoded(self, coords: Any) -> list[bytes | None]:
        """Read inner chunks as they are stored.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)

        Returns
        -------
        list of bytes
            None for an inner chunk that is absent.

        Raises
        ------
        ShardFormatError
            An entry of the index cannot be true.
        """
        where = positions(coords, self.grid_shape)
        return self._seen.read(lambda: self._seen.encoded(where))

    def read_chunks(self, coords: Any, out: Array | None = None) -> Array:
        """Read and decode inner chunks; absent ones hold the fill value.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
        out : ndarray, optional
            Destination of shape ``(n, *chunk_shape)`` and the spec's dtype; any strides, either byte order.

        Raises
        ------
        ShardFormatError, ChecksumError, CodecError
            An inner chunk is damaged; ``.chunk_coords`` says which.
        UnsupportedError
            One is clipped, so of another shape.
        """
        where = positions(coords, self.grid_shape)
        self._refuse_clipped(where)
        shape = (len(where), *self._spec.chunk_shape)
        out, chain = self._destination(out, shape, self._spec.inner)
        self._seen.read(lambda: self._seen.decode(where, chain, out, self._options()))
        return out

    def read_region(self, selection: Any = None, out: Array | None = None) -> Array:
        """Read elements of the shard; those of absent inner chunks are the fill value.

        Parameters
        ----------
        selection : optional
            Integers, slices with positive step, an ellipsis, or a tuple of them. Default: all.
        out : ndarray, optional
            Destination, of the selection's shape and the spec's dtype.

        Raises
        ------
        IndexError
            The selection is not of this kind, or leaves the shard.
        ShardFormatError, ChecksumError, CodecError
            An inner chunk is damaged; ``.chunk_coords`` says which.
        """
        box, axes, shape = parse_selection(selection, self._spec.shard_shape)
        out, chain = self._destination(out, shape, self._spec.chain)
        if 0 not in box.count:
            self._seen.read(lambda: self._seen.fill(box, axes, chain, out, self._options()))
        return out

    def _refuse_clipped(self, where: list[int]) -> None:
        """Refuse inner chunks that are clipped where many of one shape are asked for or given."""
        sizes, limits = self._spec.chunk_shape, self._spec.stored_shape
        for coords in map(self._coords, where) if self._is_clipped else ():
            if any((c + 1) * size > limit for c, size, limit in zip(coords, sizes, limits, strict=True)):
                raise UnsupportedError(
                    f"shard {self.key!r}: inner chunk {coords} is clipped; `read_region` reads it, `read_encoded` and "
                    "`write_encoded` take it as it is stored",
                    shard=self.key,
                    chunk_coords=coords,
                )

    def _destination(self, out: Array | None, shape: tuple[int, ...], spec: Any) -> tuple[Array, Any]:
        out, native_order = destination(out, shape, self._spec.dtype)
        return out, compiled(spec, native_order)

    # ---- writing

    def write_chunks(self, coords: Any, chunks: Any, *, write_empty_chunks: bool = False, **how: Any) -> None:
        """Encode and store inner chunks; all others stay as they are.

        In a block of `shardcodec.group_writes` they are kept in memory, unless `how` says anything, and stored when the
        block ends, or before the shard is read or changed otherwise through any handle.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Each place once.
        chunks : array_like, shape (n, *chunk_shape)
        write_empty_chunks : bool
            Store inner chunks that equal the fill value bit by bit, which are otherwise made absent.
        **how
            As for `write_encoded`.
        """
        where = positions(coords, self.grid_shape)
        self._refuse_clipped(where)
        array, native_order = as_chunks(chunks, self._spec.dtype, self._spec.chunk_shape, len(where))
        self._check_places(where)
        options = self._options()
        shard = self._chain if native_order else compiled(self._spec.chain, native_order)
        if not how and chunk_overlay.take(
            self._object, shard, where, array, options, write_empty=write_empty_chunks
        ):
            self.refresh()
            return
        chain = compiled(self._spec.inner, native_order)
        encoded = encode_chunks(
            chain,
            array,
            options,
            shard=self.key,
            where=where,
            grid_shape=self.grid_shape,
            write_empty=write_empty_chunks,
        )
        self._write(self._change(where, encoded), **how)

    def write_encoded(self, coords: Any, chunks: Any, **how: Any) -> None:
        """Store inner chunks that are encoded already; all others stay as they are.

        The object changes in one step, after every entry that is carried over has been checked.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Each place once.
        chunks : sequence of bytes-like
            None makes an inner chunk absent.
        footer : bytes-like, optional
            A new footer, stored in the same step.
        keep_user_bytes : bool, optional
            Keep header, footer and alignment. Default: when `footer` or `alignment` is given. If not, they are bytes
            that nothing refers to; they stay until they are packed away.
        alignment : int, optional
            Inner chunks that are written begin at a multiple of this. Default with `keep_user_bytes`: as found.
        strategy : {"replace", "append", "in_place"}, optional
            As the option ``write_strategy``, for this call. What keeps header and footer replaces the object.

        Raises
        ------
        ValueError
            The shard was opened for reading, an inner chunk is named twice, or has a size that none can have.
        ShardFormatError, ChecksumError
            The shard is damaged where it would have been carried over; it is as it was.
        LockError
            Another process writes to it, and did not end in time.
        """
        where = positions(coords, self.grid_shape)
        chunks = list(chunks)
        if len(chunks) != len(where):
            raise ValueError(f"{len(where)} places, but {len(chunks)} chunks")
        for position, data in zip(where, chunks, strict=True):
            if data is not None:
                check_size(self._chain, position, memoryview(data).nbytes)
        self._check_places(where)
        self._write(self._change(where, chunks), **how)

    def erase(self, coords: Any, **how: Any) -> None:
        """Make inner chunks absent; without any left, and no footer given, the object is deleted.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
        **how
            As for `write_encoded`.
        """
        self._write(Change({}, distinct(position_array(coords, self.grid_shape))), **how)

    def settle(self) -> None:
        """Undo what a writer left that was killed during an update in place; nothing where there is nothing to undo.

        Every write does that first, and shardcodec's readers see the old shard meanwhile. Others do not: this is for them.

        Raises
        ------
        ValueError
            The shard was opened for reading.
        OSError
            The old bytes could not be restored. They are in the journal still.
        LockError
            Another process writes to it, and did not end in time.
        """
        self._check_mode()
        path = self._object.path
        if path is None:
            return

        def make(fd: int | None, _: bool) -> bool:
            if fd is None:  # there are no locks, so nobody has looked yet
                settle(path)
            return True

        try:
            self._object.update(make, self._options())
        finally:
            self.refresh()

    def compact(self) -> int:
        """Pack inner chunks together, header and footer kept; return how many bytes that saved."""
        before = self.refresh().nbytes
        if self.exists:
            self._write(Change({}, keep_empty=True), keep_user_bytes=True, dead_share=0.0)
        return before - self.nbytes

    def _change(self, where: list[int], chunks: Sequence[Any]) -> Change:
        return Change.of(dict(zip(where, chunks, strict=True)), self.grid_shape, self._options().order)

    def _write(
        self,
        wanted: Change,
        *,
        footer: Any = None,
        keep_user_bytes: bool | None = None,
        alignment: int | None = None,
        strategy: str | None = None,
        dead_share: float | None = None,
    ) -> None:
        self._check_mode()
        options = self._options(write_strategy=strategy)
        if dead_share is None:
            dead_share = DEAD_SHARE if options.compact else math.inf
        if keep_user_bytes is None:
            keep_user_bytes = footer is not None or alignment is not None
        if alignment is not None:
            check_alignment(alignment)

        def decide(_found: Found) -> Change:
            self.refresh()
            user = UserBytes(footer, alignment, dead_share) if keep_user_bytes else None
            return wanted._replace(keep_empty=wanted.keep_empty or bool(footer), user=user)

        chunk_overlay.settle(self._object)
        try:
            change(self._object, self._chain, decide, options)
        finally:
            self.refresh()

    def _check_mode(self) -> None:
        """Refuse to write to a handle that is for reading."""
        if self._mode == "r":
            raise ValueError(f"shard {self.key!r} was opened for reading only")

    def _check_places(self, where: list[int]) -> None:
        """Refuse to write to a handle that is for reading, or to one place twice."""
        self._check_mode()
        if len(set(where)) != len(where):
            twice = next(p for i, p in enumerate(where) if p in where[:i])
            raise ValueError(f"inner chunk {self._coords(twice)} is given a second time")

    # ---- the handle

    def refresh(self) -> Self:
        """Look at the object again; return the shard itself."""
        self.close()
        return self

    def close(self) -> None:
        """Let go of the object; the next use looks at it again."""
        self._seen.drop()

    def tobytes(self) -> bytes:
        """Return the whole object; empty where there is none."""
        return self._seen.range(0, self.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _options(self, **choices: Any) -> Options:
        if not choices:
            return self._resolver.resolve(NOTHING, None)
        return resolve(argument=self._choices | check(choices))

    def _coords(self, position: int) -> tuple[int, ...]:
        return coordinates(position, self.grid_shape)
