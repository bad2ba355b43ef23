# chunk_check.py - is the encoded inner chunk whole?
# SPDX-License-Identifier: MIT
"""`ChunkCheck`: verifies the bytes of inner chunks, one by one, without the shard around them."""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from .. import native
from ..access.compiled_chains import compiled
from ..access.inner_chunks import coordinates, decode_chunks
from ..access.opened_shard import OpenedShard, read_runs
from ..errors import ChecksumError, ShardError
from ..format.byte_document import ByteDocument
from ..format.codecs import Crc32c, Gzip, Zlib
from ..format.spec import ChainSpec, ShardSpec
from ..options import Options
from .damage.index_layout import CHECKSUM_NBYTES
from .findings import FindingKind
from .foreign_chunks import ForeignChunks
from .memory import UNLIMITED, MemoryShare
from .targets import ArrayTarget

__all__ = ["ChunkCheck", "Level", "Problem", "has_checksum"]

Entries = np.ndarray[Any, np.dtype[np.uint64]]
Decode = Callable[[Any], object]


LevelName = Literal["index", "checksum", "decode"]


class Level(enum.StrEnum):
    """How much of a shard is checked. Each level includes those before it."""

    INDEX = "index"  # checksum and entries of the index
    CHECKSUM = "checksum"  # every checksum that the data have
    DECODE = "decode"  # decode every inner chunk

    @property
    def rank(self) -> int:
        """A higher level has a higher rank."""
        return list(Level).index(self)


class Problem(NamedTuple):
    """Why an inner chunk is damaged; `nested` is as for `Finding`."""

    kind: FindingKind
    detail: str
    nested: tuple[tuple[int, ...], ...] = ()


def has_checksum(inner: ChainSpec) -> bool:
    """Return True if damage of an encoded chunk shows: a codec has a checksum, or in a nested shard index and chunks have."""
    if any(isinstance(codec, Gzip | Zlib) for codec in inner.bytes_codecs) or inner.has_checksum:
        return True
    if inner.sharding is None:
        return False
    nested = ShardSpec.from_chain(inner)
    return bool(nested.n_index_checksums) and has_checksum(nested.inner)


class ChunkCheck:
    """Verifies inner chunks of the shards of one array.

    Parameters
    ----------
    spec : ShardSpec
        The encoding of the shards.
    options : Options
    share : MemoryShare
        Memory for the indexes and data of one shard.
    can_decode : bool
        False if the engine does not have all codecs of the inner chunks.
    decode : callable, optional
        Decodes an inner chunk with other codecs, and raises any exception if it is damaged.
    is_plain : bool
        True for an array without shards: its objects are inner chunks without an index, see `ArrayTarget.plain`.

    Attributes
    ----------
    has_checksum : bool
        Every damaged bit of an inner chunk shows.
    nested : ChunkCheck or None
        For the shards that are the inner chunks; None if these are not shards.
    """

    def __init__(
        self,
        spec: ShardSpec,
        options: Options,
        *,
        share: MemoryShare = UNLIMITED,
        can_decode: bool = True,
        decode: Decode | None = None,
        is_plain: bool = False,
    ) -> None:
        self.spec = spec
        self.share = share
        self.can_decode = can_decode
        self.is_plain = is_plain
        codecs = spec.inner.bytes_codecs
        self._ends_with_crc32c = bool(codecs) and isinstance(codecs[-1], Crc32c)
        self._options = options
        self._decode_foreign = decode
        # of inner chunks that cannot be decoded only a checksum at their end counts
        self.has_checksum: bool = has_checksum(spec.inner) if self.decodes else _has_last_checksum(spec.inner)
        self.nested: ChunkCheck | None = self._of_nested()

    @classmethod
    def of(
        cls,
        spec: ShardSpec,
        found: ByteDocument | None,
        options: Options,
        share: MemoryShare = UNLIMITED,
        *,
        is_plain: bool = False,
    ) -> Self:
        """Return the check for objects of an array; zarr's codecs decode what the engine does not."""
        if found is None or found.codec is None:
            return cls(spec, options, share=share, is_plain=is_plain)
        foreign = ForeignChunks.of(found.stored)
        decode = None if foreign is None else foreign.decode
        return cls(spec, options, share=share, can_decode=False, decode=decode, is_plain=is_plain)

    @classmethod
    def of_array(cls, array: ArrayTarget, options: Options, share: MemoryShare = UNLIMITED) -> Self:
        """Return the check for the shards of an array, or for its chunks if it has no shards."""
        return cls.of(array.object_spec, array.bytes, options, share, is_plain=array.is_plain)

    @property
    def decodes(self) -> bool:
        """True if inner chunks can be decoded, by the engine or by zarr's codecs."""
        return self.can_decode or self._decode_foreign is not None

    def _of_nested(self) -> ChunkCheck | None:
        inner = self.spec.inner
        if inner.sharding is None or inner.bytes_codecs:
            return None
        return ChunkCheck(
            ShardSpec.from_chain(inner),
            self._options,
            share=self.share,
            can_decode=self.can_decode,
            decode=self._decode_foreign,
        )

    def is_checked(self, level: Level) -> bool:
        """Return True if inner chunks are read and verified at a level."""
        if level is Level.DECODE:
            return self.decodes or self._ends_with_crc32c
        return level is Level.CHECKSUM and self.has_checksum

    def reads_chunks(self, level: Level) -> bool:
        """Return True if the bytes of inner chunks are read at a level; of chunks without shards also those without a checksum."""
        is_opaque = self.is_plain and not (self.can_decode and self.spec.inner.fixed_nbytes is not None)
        return self.is_checked(level) or (level is Level.CHECKSUM and is_opaque)

    def size_problem(self, nbytes: int) -> Problem | None:
        """Return what is wrong with the size of an encoded chunk; of most codecs only 0 bytes are wrong."""
        expected = self.spec.inner.fixed_nbytes if self.can_decode else None
        if nbytes == expected or (expected is None and nbytes):
            return None
        kind = FindingKind.WRONG_SIZE if nbytes > (expected or 0) else FindingKind.TRUNCATED_TAIL
        return Problem(kind, f"expected a chunk of {expected or 'more than 0'} bytes, got {nbytes}")

    def problem(self, position: int, data: Any, level: Level) -> Problem | None:
        """Verify one inner chunk.

        Parameters
        ----------
        position : int
            Its position in the index.
        data : buffer
            Its encoded bytes.
        level : Level
            With CHECKSUM a chunk is decoded only if its checksum is inside of other codecs.

        Returns
        -------
        Problem or None
            None if nothing is wrong with it.
        """
        if self._ends_with_crc32c and (level is Level.CHECKSUM or not self.can_decode):
            problem = _crc32c_problem(data)
            if problem is not None or level is Level.CHECKSUM:
                return problem
        if level is not Level.INDEX and self.decodes:
            return self._decode(position, data)
        return None

    def checksum_problems(
        self, view: OpenedShard, entries: Entries, positions: Any
    ) -> dict[int, Problem] | None:
        """Verify inner chunks whose last codec is crc32c, all in one call.

        Parameters
        ----------
        view : OpenedShard
            The shard.
        entries : ndarray of uint64, shape (n_chunks, 2)
            Those of `positions` are possible: their ranges lie inside the object.
        positions : array of int

        Returns
        -------
        dict or None
            The problem of each damaged inner chunk; None if they must be read one by one: the codecs, the store or a part
            of the disk that cannot be read want that.
        """
        if not self._ends_with_crc32c:
            return None
        sizes = entries[positions, 1]
        short = positions[sizes < CHECKSUM_NBYTES]
        where = positions[sizes >= CHECKSUM_NBYTES]
        where = where[np.argsort(entries[where, 0], kind="stable")]
        try:
            sums = view.checksums(entries[where], self.share.block_nbytes)
        except OSError as error:
            if error.errno != errno.EIO:  # others may go away
                raise
            return None
        if sums is None:
            return None
        problems = {int(position): _too_short(int(entries[position, 1])) for position in short}
        # an update in place may have come between two pieces of a chunk, which are read one after the other
        suspects = where[sums[:, 0] != sums[:, 1]]
        for position, data in read_runs(view, entries, suspects, self.share.block_nbytes):
            if isinstance(data, OSError):
                return None
            problem = _crc32c_problem(data)
            if problem is not None:
                problems[position] = problem
        return problems

    def _decode(self, position: int, data: Any) -> Problem | None:
        if self._decode_foreign is not None:
            return _foreign_problem(self._decode_foreign, data)
        inner = self._inner(position)
        out = np.empty((1, *inner.shape), inner.dtype)
        try:
            decode_chunks(compiled(inner), [data], out, self._options)
        except ChecksumError as error:
            return Problem(FindingKind.BAD_INNER_CHECKSUM, error.message)
        except ShardError as error:
            return Problem(FindingKind.DECODE_ERROR, error.message)
        return None

    def _inner(self, position: int) -> ChainSpec:
        """Return the encoding of an inner chunk, which is smaller if it is clipped."""
        spec = self.spec
        if not spec.chain.is_clipped:
            return spec.inner
        coords = coordinates(position, spec.grid_shape)
        sizes = zip(coords, spec.chunk_shape, spec.stored_shape, strict=True)
        shape = tuple(min(size, limit - i * size) for i, size, limit in sizes)
        return spec.inner if shape == spec.chunk_shape else spec.inner.with_shape(shape)


def _has_last_checksum(inner: ChainSpec) -> bool:
    """Return True if a checksum follows the codecs that the engine does not have, in a nested shard those of its chunks."""
    if inner.sharding is None or inner.bytes_codecs:
        return bool(inner.bytes_codecs) and isinstance(inner.bytes_codecs[-1], Crc32c)
    nested = ShardSpec.from_chain(inner)
    return bool(nested.n_index_checksums) and _has_last_checksum(nested.inner)


def _foreign_problem(decode: Decode, data: Any) -> Problem | None:
    try:
        decode(data)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a codec raises for damaged bytes
        return Problem(FindingKind.DECODE_ERROR, f"{type(error).__name__}: {error}")
    return None


def _crc32c_problem(data: Any) -> Problem | None:
    view = memoryview(data)
    if view.nbytes < CHECKSUM_NBYTES:
        return _too_short(view.nbytes)
    stored = int.from_bytes(view[-CHECKSUM_NBYTES:], "little")
    computed = int(native.load().crc32c(view[:-CHECKSUM_NBYTES]))
    return None if stored == computed else _wrong_checksum(stored, computed)


def _too_short(nbytes: int) -> Problem:
    detail = f"expected at least the {CHECKSUM_NBYTES} bytes of a checksum, got {nbytes}"
    return Problem(FindingKind.BAD_INNER_CHECKSUM, detail)


def _wrong_checksum(stored: int, computed: int) -> Problem:
    detail = f"checksum of the chunk: expected {stored:#010x} (stored), got {computed:#010x} (computed)"
    return Problem(FindingKind.BAD_INNER_CHECKSUM, detail)
