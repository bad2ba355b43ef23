# snapshot.py - one state of a shard, for all reads of a `Shard` until it is dropped
# SPDX-License-Identifier: MIT
"""`Snapshot`: the state of its object that a `Shard` sees. Inner chunks are given by positions, not by coordinates.

The first read opens the object, and all later reads use the same `OpenedShard`. After `drop`, the next read opens the
object in its present state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import native
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..option_sources import Resolver
from ..options import Options
from ..storage.retry import DAMAGE, retry
from .buffer import flush_buffered
from .inner_chunks import decode_chunks
from .opened_shard import OpenedShard
from .placement import ABSENT
from .read import ObjectSelection, read, with_key
from .regions import Box, touched
from .shard_layout import header_and_footer
from .shard_object import ShardObject
from .user_bytes import HeaderFooter

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Snapshot"]

# Encoded bytes that one call fetches.
FETCH_NBYTES = 64 << 20
# Inner chunks that one call fetches.
FETCH_CHUNKS = 1 << 16

Array = np.ndarray[Any, Any]

T = TypeVar("T")


class Snapshot:
    """One state of a shard: opened at first use, and kept until `drop`. A missing object counts as a shard without inner chunks."""

    def __init__(self, target: ShardObject, spec: ShardSpec, chain: Chain, resolver: Resolver) -> None:
        self._object = target
        self._spec = spec
        self._chain = chain
        self._resolver = resolver
        self._view: OpenedShard | None = None

    def drop(self) -> None:
        """Forget the object."""
        self._view = None  # the last reference closes it, because another thread may be reading it

    def _opened(self) -> OpenedShard:
        if self._view is None:
            self._view = retry(self._open, self._object.path)
        return self._view

    def _open(self) -> OpenedShard:
        flush_buffered(self._object)
        view: OpenedShard = self._try(self._object.open, self._chain, self._resolver.resolve())
        return view

    @property
    def exists(self) -> bool:
        """True if the object exists."""
        return not self._opened().missing

    @property
    def nbytes(self) -> int:
        """Size of the object in bytes; 0 if it does not exist."""
        view = self._opened()
        return 0 if view.missing else view.nbytes

    def entries(self, *, check: bool) -> Array:
        """Return the index, one row for each position; with `check`, raise if an entry is wrong."""
        view = self._opened()
        if view.missing:
            return np.full((self._spec.n_chunks, 2), ABSENT, dtype=np.uint64)
        return self._try(view.entries, check=check)  # type: ignore[no-any-return]

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges (offset, nbytes) outside of the inner chunks and the index, in ascending order."""
        size, n = self.nbytes, self._spec.index_nbytes
        at = 0 if self._spec.index_location == "start" else max(size - n, 0)
        return self._report("index_gaps", size, at, n)

    def overlaps(self) -> list[tuple[int, int]]:
        """Return pairs of positions whose inner chunks share bytes."""
        return self._report("index_overlaps")

    def _report(self, name: str, *arguments: int) -> list[Any]:
        if not self.exists:
            return []
        entries = self.entries(check=True)
        capacity = 2 * len(entries) + 2  # an upper bound
        report, _ = getattr(native.load(), name)(entries, *arguments, capacity=capacity)
        return report  # type: ignore[no-any-return]

    def user_bytes(self) -> HeaderFooter | None:
        """Return where the header is, the footer and the alignment, from the mark; without a mark they are guessed.

        None if the object does not exist, or if inner chunks lie in the index. The result has the offsets of the
        header, not its bytes. Raises ShardFormatError or ChecksumError if the index or an entry is damaged.
        """
        if not self.exists:
            return None
        read = lambda low, n: self.range(low, low + n)  # noqa: E731
        return header_and_footer(self._spec, self.entries(check=True), self.nbytes, read)

    def range(self, low: int, high: int) -> bytes:
        """Return bytes [low, high) of the object."""
        if low >= high:
            return b""
        return self._try(self._opened().range, low, high - low)  # type: ignore[no-any-return]

    def fetch(self, where: Any) -> Iterator[tuple[Array, Any, Array]]:
        """Fetch inner chunks in batches; yield their positions, a buffer, and their entries in this buffer."""
        return self._fetch(self._opened(), where)

    def _fetch(self, view: OpenedShard, where: Any) -> Iterator[tuple[Array, Any, Array]]:
        rest = np.asarray(where, dtype=np.uint64)
        while len(rest):
            group = rest[:FETCH_CHUNKS]
            places = np.full((len(group), 2), ABSENT, dtype=np.uint64)
            data, n = (
                (b"", len(group)) if view.missing else self._try(view.fetch, group, places, FETCH_NBYTES)
            )
            yield group[:n], data, places[:n]
            rest = rest[n:]

    def encoded(self, where: list[int]) -> list[bytes | None]:
        """Return the encoded bytes of inner chunks; None for an absent one."""
        chunks: list[bytes | None] = []
        for _, data, places in self.fetch(where):
            chunks += [None if chunk is None else bytes(chunk) for chunk in _slices(data, places)]
        return chunks

    def decode(self, where: list[int], chain: Chain, out: Array, options: Options) -> None:
        """Decode inner chunks into the rows of `out`; `chain` is that of the inner chunks."""
        done = 0
        for part, data, places in self.fetch(where):
            try:
                decode_chunks(chain, list(_slices(data, places)), out[done : done + len(part)], options)
            except ShardError as error:
                if isinstance(error.shard, int):
                    error.entry, error.shard = int(part[error.shard]), 0
                raise with_key(error, self._chain, self._object.key) from None
            done += len(part)

    def fill(self, box: Box, axes: tuple[int, ...], chain: Chain, out: Array, options: Options) -> None:
        """Read a box of elements into `out`; `chain` is that of the shard."""

        def fill(source: Any) -> None:
            read([ObjectSelection(self._object.key, chain, box, source)], out, axes, options)

        view = self._opened()
        if view.missing:
            fill(None)
            return
        self._try(view.check)
        engine = native.load()
        stored = self._try(view.entries, check=False)
        fill(engine.Fetched(chain, stored, None, 0, fill_absent=True))
        positions = np.flatnonzero(touched(box, chain.perm, chain.inner.shape, chain.grid_shape))
        for group, data, places in self._fetch(view, positions):
            entries = np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64)
            entries[group] = places
            fill(engine.Fetched(chain, entries, data, 0, fill_absent=False))

    def read(self, work: Callable[[], T]) -> T:
        """Call `work`, which reads; after an error, repeat it with a file that is opened again if a writer may have changed it."""
        if self._object.path is None:
            return work()
        self._opened()
        is_again = False

        def attempt() -> T:
            nonlocal is_again
            if is_again:
                self.drop()
                self._view = self._open()
            is_again = True
            try:
                return work()
            except DAMAGE as error:
                if self._view is not None and not getattr(error, "changed", False):
                    self._view.confirm(failed=True)
                raise

        return retry(attempt, self._object.path)

    def _try(self, work: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return work(*arguments, **keywords)
        except ShardError as error:
            raise with_key(error, self._chain, self._object.key) from None


def _slices(data: Any, places: Array) -> Iterator[memoryview | None]:
    """Yield the parts of a buffer that hold inner chunks; None for an absent one."""
    view = memoryview(data).cast("B")
    for offset, nbytes in places.tolist():
        yield None if offset == nbytes == 2**64 - 1 else view[offset : offset + nbytes]
