# _native.pyi - types of the extension module
# SPDX-License-Identifier: MIT
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

from typing_extensions import Buffer

Order: TypeAlias = Literal["morton", "lexicographic", "colexicographic"]
Ints: TypeAlias = Sequence[int]
SwapFields: TypeAlias = Sequence[tuple[int, int, int]]
# (chain, source, start, count, step or None, at)
BoxParts: TypeAlias = tuple[Ints, Ints, Ints | None, Ints]
ManyBoxes: TypeAlias = tuple[Buffer]
Points: TypeAlias = tuple[int, Sequence[Buffer], Buffer | None]
Lists: TypeAlias = tuple[Ints, Ints, Ints | None, Ints, Sequence[Buffer | None], Sequence[Buffer | None]]
Parts: TypeAlias = BoxParts | ManyBoxes | Points | Lists
ReadPlanItem: TypeAlias = tuple[Chain, Any, Parts]
# (source, nbytes, entries, carries, new entries, data offset)
OldObject: TypeAlias = tuple[
    Any,
    int | None,
    Buffer | None,
    Buffer | None,
    Buffer | None,
    int | None,
    tuple[int, int, int] | None,
    str | None,
]
# (chain, path, start, count, step or None, at, old)
WritePlanItem: TypeAlias = tuple[Chain, str | None, Parts, OldObject | None]
# (chain, path, positions, buffers, old, footer)
EncodedPlanItem: TypeAlias = tuple[
    Chain, str | None, Ints, Sequence[Buffer | None], OldObject | None, Buffer | None
]

CODECS: dict[str, int]
COMPRESSORS: tuple[str, ...]
SHUFFLES: tuple[str, ...]

class Cancelled(Exception): ...

@final
class Bytes:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class View: ...

@final
class Sorted: ...

@final
class Swap: ...

@final
class Batch: ...

@final
class Chain:
    inner: Chain | None
    shape: tuple[int, ...]
    perm: tuple[int, ...]
    grid_shape: tuple[int, ...]
    stage: Any
    def __init__(
        self,
        *,
        shape: Ints,
        itemsize: int,
        swap: SwapFields,
        perm: Ints,
        fill: bytes,
        ops: Sequence[tuple[str, Mapping[str, Any]]],
        inner: Chain | Mapping[str, Any] | None = None,
        index: Mapping[str, Any] | None = None,
        opaque: bool = False,
        stage: Any = None,
    ) -> None: ...
    def set_index(
        self, *, at_start: bool, big_endian: bool, n_checksums: int, perm: Ints | None = None
    ) -> None: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def is_shard(self) -> bool: ...
    @property
    def is_opaque(self) -> bool: ...
    @property
    def n_chunks(self) -> int: ...
    @property
    def fill(self) -> bytes: ...
    @property
    def fixed_nbytes(self) -> int | None: ...
    @property
    def index_nbytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def index_checksums(self) -> int: ...
    @property
    def index_at_start(self) -> bool: ...

@final
class Encoded: ...

@final
class Cancel:
    def __init__(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def stopped(self) -> bool: ...

@final
class CachedIndex:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Cache:
    def __init__(self, max_nbytes: int, max_files: int = 0, grain_ns: int = 2000000000) -> None: ...
    def get(self, name: str, chain: Chain) -> CachedIndex | None: ...
    def put(self, name: str, chain: Chain, entries: Buffer) -> None: ...
    def drop(self, name: str) -> None: ...
    def clear(self) -> None: ...
    def info(self) -> dict[str, int]: ...

@final
class Fetched:
    def __init__(
        self, chain: Chain, entries: Buffer, data: Buffer | None, first: int, *, fill_absent: bool
    ) -> None: ...

@final
class OpenShard:
    def __init__(self, chain: Chain, source: Any, cache: Cache | None = None) -> None: ...
    def close(self) -> None: ...
    @property
    def missing(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def version(self) -> bytes: ...
    def positions(self, first: int, end: int) -> Positions: ...
    def entry(self, position: int, *, allow_in_index: bool = False) -> tuple[int, int] | None: ...
    @property
    def fills_absent(self) -> bool: ...
    @property
    def stats(self) -> dict[str, int]: ...
    def entries(self, out: Buffer, *, check: bool = False, allow_in_index: bool = False) -> None: ...
    def fetch(
        self,
        positions: Buffer,
        places: Buffer,
        *,
        max_nbytes: int,
        max_gap_nbytes: int = 65536,
        allow_in_index: bool = False,
    ) -> tuple[Buffer, int]: ...
    def range(self, offset: int, nbytes: int) -> bytes: ...

@final
class Positions:
    def __init__(self, grid_shape: tuple[int, ...], first: int, end: int, bits: bytes) -> None: ...
    def __len__(self) -> int: ...
    @property
    def grid_shape(self) -> tuple[int, ...]: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def bits(self) -> bytes: ...
    def position(self, rank: int) -> int: ...
    def find(self, key: bytes) -> int | None: ...
    def key(self, skip: int, rank: int) -> bytes: ...
    def packed(self, skip: int, first: int, n: int, step: int) -> bytes: ...
    def keys(self, skip: int, first: int, n: int, step: int) -> Iterator[bytes]: ...

@final
class KeyIterator:
    def __iter__(self) -> KeyIterator: ...
    def __next__(self) -> bytes: ...
    def __length_hint__(self) -> int: ...

def index_positions(chain: Chain, entries: Buffer, first: int, end: int) -> Positions: ...
def read_encoded(
    chain: Chain, path: bytes, position: int, cache: Cache | None = None, *, allow_in_index: bool = False
) -> bytes | None: ...
def cpu_features() -> dict[str, Any]: ...
def crc32c_implementations() -> list[str]: ...
def crc32c_chosen() -> str: ...
def crc32c(data: Buffer, value: int = 0, *, impl: str | None = None) -> int: ...
def crc32c_copy(dst: Buffer, src: Buffer, value: int = 0, *, impl: str | None = None) -> int: ...
def crc32c_combine(a: int, b: int, nbytes_b: int) -> int: ...
def order(
    out: Buffer, grid_shape: Ints, name: Order = "morton", first: Ints | None = None, last: Ints | None = None
) -> int: ...
def index_decode(data: Buffer, out: Buffer, *, big_endian: bool = False) -> None: ...
def index_encode(entries: Buffer, out: Buffer, *, big_endian: bool = False) -> None: ...
def index_check(
    entries: Buffer,
    shard_nbytes: int,
    index_offset: int,
    index_nbytes: int,
    *,
    allow_in_index: bool = False,
) -> None: ...
def index_sums(
    entries: Buffer, dropped: Buffer | None = None, left: Buffer | None = None
) -> tuple[int, int, int, int, int, int]: ...
def index_overlaps(entries: Buffer, *, capacity: int = 1024) -> tuple[list[tuple[int, int]], int]: ...
def index_gaps(
    entries: Buffer, shard_nbytes: int, index_offset: int, index_nbytes: int, *, capacity: int = 1024
) -> tuple[list[tuple[int, int]], int]: ...
def strided_copy(
    dst: Buffer,
    dst_offset: int,
    dst_strides: Ints,
    src: Buffer,
    src_offset: int,
    src_strides: Ints,
    shape: Ints,
    itemsize: int,
    swap: SwapFields = (),
) -> None: ...
def copy_elements(dst: Buffer, src: Buffer) -> None: ...
def fill(dst: Buffer, dst_offset: int, strides: Ints, shape: Ints, pattern: Buffer) -> None: ...
def all_equal(data: Buffer, pattern: Buffer) -> bool: ...
def swap_items(buffer: Buffer, itemsize: int, swap: SwapFields) -> None: ...
def codec_encode(name: str, data: Buffer, **params: Any) -> bytes: ...
def codec_decode(name: str, data: Buffer, max_nbytes: int, **params: Any) -> bytes: ...
def read(
    items: Sequence[ReadPlanItem],
    out: Buffer,
    axes: Ints,
    *,
    n_threads: int = 1,
    max_gap_nbytes: int = 65536,
    group_nbytes: int = 262144,
    allow_in_index: bool = False,
    cache: Cache | None = None,
    immutable: bool = False,
    cancel: Cancel | None = None,
) -> tuple[list[int], dict[str, int]]: ...

class SliceReader:
    def __init__(
        self,
        chain: Chain,
        *,
        max_nbytes: int,
        max_gap_nbytes: int = 65536,
        allow_in_index: bool = False,
        cache: Cache | None = None,
        immutable: bool = False,
    ) -> None: ...
    def read(self, path: str, chunk_selection: Any, array_selection: Any, out: Buffer) -> bool | None: ...

class ChunkSlices:
    def __init__(self, chain: Chain) -> None: ...
    def take(
        self,
        chunk_selection: Any,
        array_selection: Any,
        array: Buffer,
        place: Callable[[int], Buffer],
    ) -> bool: ...

class ArraySlices(SliceReader):
    def __init__(
        self,
        chain: Chain,
        *,
        shape: Ints,
        folder: str,
        separator: str,
        empty: Callable[[tuple[int, ...], Any], Buffer],
        dtype: Any,
        max_nbytes: int,
        max_gap_nbytes: int = 65536,
        allow_in_index: bool = False,
        cache: Cache | None = None,
        immutable: bool = False,
    ) -> None: ...
    def get(self, selection: Any) -> Any: ...

def read_index(
    chain: Chain, source: Any, out: Buffer, *, replaced: Buffer | None = None, allow_in_index: bool = False
) -> int | None: ...
def plan_ranges(
    chain: Chain,
    entries: Buffer,
    parts: Parts,
    out: Buffer,
    axes: Ints,
    *,
    shard_nbytes: int | None = None,
    max_gap_nbytes: int,
    max_nbytes: int,
    allow_in_index: bool = False,
) -> list[tuple[int, int]]: ...
def scan(
    chain: Chain,
    sources: Sequence[Any],
    sizes: Buffer,
    *,
    n_threads: int = 1,
    allow_in_index: bool = False,
    cancel: Cancel | None = None,
) -> None: ...
def store_index(chain: Chain, entries: Buffer, out: Buffer) -> None: ...
def load_index(chain: Chain, stored: Buffer, out: Buffer) -> None: ...
def write(
    items: Sequence[WritePlanItem],
    value: Buffer,
    axes: Ints,
    *,
    order: Order = "morton",
    write_empty: bool = False,
    keep_empty: bool = False,
    sync: bool = False,
    allow_in_index: bool = False,
    staging: str | None = None,
    n_threads: int = 1,
    unit_nbytes: int = 524288,
    cancel: Cancel | None = None,
) -> tuple[list[Bytes | None], dict[str, int], tuple[list[int], list[int]]]: ...
def write_encoded(
    items: Sequence[EncodedPlanItem],
    *,
    keep_empty: bool = False,
    sync: bool = False,
    staging: str | None = None,
    n_threads: int = 1,
    unit_nbytes: int = 524288,
    cancel: Cancel | None = None,
    versions: dict[int, bytes] | None = None,
) -> tuple[list[Bytes | None], dict[str, int], tuple[list[int], list[int]]]: ...

APPEND_WAYS: dict[str, int]
UPDATE_WAYS: dict[str, tuple[int, bool]]

def direct_append_works(folder: str) -> bool: ...

FAULTS: dict[str, int]

def set_fault(n: int, action: str, value: int = 0) -> None: ...
def set_memory_fault(n: int, and_all_after: bool = False) -> None: ...
def end_memory_fault() -> tuple[int, int, int]: ...
def end_fault() -> list[str]: ...

LOCK_OUTCOMES: dict[int, str]

@final
class FileLock:
    def __init__(self) -> None: ...
    def try_acquire(self, path: str) -> str: ...
    def release(self) -> None: ...
    @property
    def fd(self) -> int: ...
    @property
    def n_links(self) -> int: ...

def leave_staging() -> None: ...
def settle(path: str, fd: int) -> bool: ...
def file_locks_held() -> int: ...

@final
class NewFile:
    def __init__(
        self,
        path: str,
        *,
        staging: str | None = None,
        shared: bool = False,
        temp: str | None = None,
        n_made: int = 0,
    ) -> None: ...
    @property
    def place(self) -> tuple[str, str | None, str | None, int]: ...
    def write(self, data: Buffer, offset: int) -> None: ...
    def truncate(self, nbytes: int) -> None: ...
    def commit(self, *, sync: bool = False, only_new: bool = False) -> bool: ...
    def leave(self, *, sync: bool = False) -> None: ...
    def abort(self) -> None: ...

def pool_size() -> int: ...
def library_version(library: str) -> str | None: ...
