"""The naive twin: a `sharding_indexed` codec that is slow and obvious.

It does everything that the engine does with one shard, one inner chunk after the other, with NumPy and one library
call per codec. It shares no code with `shardcodec`, so a result on which both agree was derived twice. Rules carry
their number in the list of requirements (SC-20 ... SC-63).

A shard is described by plain metadata::

    ShardMeta(
        configuration={"chunk_shape": [2, 3], "codecs": [...], "index_codecs": [...]},
        shape=(4, 6),
        dtype=np.dtype("int16"),
        fill_value=0,
    )

Limits: a whole shard fits in memory; numcodecs has every codec; no variable-length types.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numcodecs  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Coords = tuple[int, ...]
Codecs = Sequence[Mapping[str, Any]]

ABSENT = 2**64 - 1
SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
CHECKSUMS = {"crc32c", "numcodecs.fletcher32", "numcodecs.crc32", "numcodecs.adler32"}


class ShardMeta(NamedTuple):
    """The arguments of the codec: its `configuration`, the shape of the shard, native dtype, fill value."""

    configuration: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill_value: Any
    clip: bool = False

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return tuple(self.configuration["chunk_shape"])

    @property
    def grid(self) -> tuple[int, ...]:
        """Return the number of inner chunks along each axis. SC-2 and SC-4: the same rank, without remainder (but
        SC-75).
        """
        inner = self.chunk_shape
        if len(inner) != len(self.shape):
            raise ValueError(f"chunk_shape {inner} against a shard of shape {self.shape}")
        if any(c < 1 or (s % c and not self.clip) for s, c in zip(self.shape, inner, strict=True)):
            raise ValueError(f"chunk_shape {inner} does not divide shard shape {self.shape}")
        return tuple(-(-s // c) for s, c in zip(self.shape, inner, strict=True))

    @property
    def index_at_start(self) -> bool:
        """Return True for "start". SC-10: "start" or "end", which is the default."""
        location = self.configuration.get("index_location", "end")
        if location not in ("start", "end"):
            raise ValueError(f"index_location {location!r}")
        return bool(location == "start")


class MalformedShard(ValueError):
    """The stored bytes contradict the metadata."""


# ---------------------------------------------------------------------------------------------------------
# bytes -> bytes


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), one byte at a time, as RFC 3720 defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _add_crc32c(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(4, "little")


def _strip_crc32c(blob: bytes) -> bytes:
    data, stored = blob[:-4], blob[-4:]
    if len(blob) < 4 or crc32c(data) != int.from_bytes(stored, "little"):  # SC-25, SC-32
        raise MalformedShard(f"crc32c of {len(data)} bytes does not match")
    return data


def _blosc_encode(data: bytes, conf: Mapping[str, Any]) -> bytes:
    # The library takes the type size from the items of its argument.
    typesize = conf["typesize"]
    items = np.frombuffer(data, dtype=f"V{typesize}" if len(data) % typesize == 0 else "u1")
    shuffle, blocksize = SHUFFLES[conf["shuffle"]], conf.get("blocksize", 0)
    codec = numcodecs.Blosc(conf["cname"], conf["clevel"], shuffle, blocksize)
    return bytes(codec.encode(items))


def _bytes_encode(data: bytes, codec: Mapping[str, Any]) -> bytes:
    name, conf = codec["name"], codec.get("configuration", {})
    match name:
        case "crc32c":
            return _add_crc32c(data)
        case "zstd":
            return bytes(numcodecs.Zstd(conf["level"], conf.get("checksum", False)).encode(data))
        case "gzip":
            return gzip.compress(data, conf["level"], mtime=0)
        case "blosc":
            return _blosc_encode(data, conf)
        case "numcodecs.zlib":
            return zlib.compress(data, conf.get("level", 1))
    return bytes(_of_numcodecs(codec).encode(data))


def _bytes_decode(blob: bytes, codec: Mapping[str, Any]) -> bytes:
    match codec["name"]:
        case "crc32c":
            return _strip_crc32c(blob)
        case "zstd":
            return bytes(numcodecs.Zstd().decode(blob))
        case "gzip":
            return gzip.decompress(blob)
        case "blosc":
            return bytes(numcodecs.Blosc().decode(blob))
        case "numcodecs.zlib":
            return zlib.decompress(blob)
    try:
        return bytes(_of_numcodecs(codec).decode(blob))
    except (RuntimeError, ValueError, IndexError) as error:  # the last two: too short for a checksum
        raise MalformedShard(str(error)) from error


def _of_numcodecs(codec: Mapping[str, Any]) -> Any:
    return numcodecs.get_codec(
        {"id": codec["name"].removeprefix("numcodecs."), **codec.get("configuration", {})}
    )


# ---------------------------------------------------------------------------------------------------------
# array -> bytes, and the chain around it


def _stored_dtype(dtype: np.dtype[Any], conf: Mapping[str, Any]) -> np.dtype[Any]:
    endian = conf.get("endian")
    if endian is None:
        if dtype.newbyteorder("S") != dtype:  # SC-9: several bytes need an order
            raise ValueError(f"codec 'bytes' needs an endian for {dtype}")
        return dtype
    return dtype.newbyteorder("<" if endian == "little" else ">")  # SC-23


def _split(codecs: Codecs) -> tuple[Codecs, Mapping[str, Any], Codecs]:
    """Split into array -> array codecs, exactly one array -> bytes codec, and bytes -> bytes codecs. SC-6."""
    rank = {"transpose": 0, "bytes": 1, "sharding_indexed": 1}
    kinds = [rank.get(codec["name"], 2) for codec in codecs]
    if kinds != sorted(kinds) or kinds.count(1) != 1:
        raise ValueError(f"codecs in impossible order: {[c['name'] for c in codecs]}")
    at = kinds.index(1)
    return codecs[:at], codecs[at], codecs[at + 1 :]


def _encode_chain(array: Array, codecs: Codecs, fill: Any, order: str, write_empty: bool) -> bytes | None:
    transposes, serializer, rest = _split(codecs)
    for codec in transposes:
        array = array.transpose(codec["configuration"]["order"])
    conf = serializer.get("configuration", {})
    if serializer["name"] == "sharding_indexed":  # SC-38: a shard within an inner chunk
        nested = ShardMeta(conf, array.shape, array.dtype, fill)  # SC-5: the shape after the transposes
        data = encode_shard(array, nested, order, write_empty)
        if data is None:
            return None
    else:
        data = array.astype(_stored_dtype(array.dtype, conf)).tobytes()
    for codec in rest:
        data = _bytes_encode(data, codec)
    return data


def _decode_chain(
    blob: bytes, codecs: Codecs, wanted: npt.NDArray[np.bool_], dtype: np.dtype[Any], fill: Any
) -> Array:
    """Decode to the shape of `wanted`, a mask: elements outside of it need not be valid in nested shards."""
    transposes, serializer, rest = _split(codecs)
    for codec in reversed(rest):
        blob = _bytes_decode(blob, codec)
    for codec in transposes:
        wanted = wanted.transpose(codec["configuration"]["order"])
    conf = serializer.get("configuration", {})
    if serializer["name"] == "sharding_indexed":
        array = _decode_masked(blob, ShardMeta(conf, wanted.shape, dtype, fill), wanted)
    else:
        stored = _stored_dtype(dtype, conf)
        expected = wanted.size * dtype.itemsize
        if len(blob) != expected:  # SC-31
            raise MalformedShard(f"decodes to {len(blob)} bytes, not to {expected}")
        array = np.frombuffer(blob, dtype=stored).reshape(wanted.shape).astype(dtype)
    for codec in reversed(transposes):
        array = array.transpose(np.argsort(np.array(codec["configuration"]["order"], dtype=int)))
    return array


# ---------------------------------------------------------------------------------------------------------
# the index


def _index_nbytes(spec: ShardMeta) -> int:
    """Return the size of the index: 16 bytes per inner chunk and 4 per checksum (SC-21). SC-8: no codec of variable
    size.
    """
    names = [codec["name"] for codec in spec.configuration["index_codecs"]]  # SC-7: required
    if not set(names) <= {"transpose", "bytes", "crc32c"}:
        raise ValueError(f"index codecs {names}")
    return 16 * int(np.prod(spec.grid, dtype=object)) + 4 * names.count("crc32c")


def _index_offset(spec: ShardMeta, shard_nbytes: int) -> int:
    nbytes = _index_nbytes(spec)
    if shard_nbytes < nbytes:  # SC-26: also for an object of 0 bytes
        raise MalformedShard(f"{shard_nbytes} bytes cannot hold an index of {nbytes}")
    return 0 if spec.index_at_start else shard_nbytes - nbytes


def read_index(blob: bytes, spec: ShardMeta) -> Array:
    """Return the pairs (offset, nbytes) of a shard: uint64, shape (*grid, 2). SC-20, SC-24.

    If inner chunks have no checksum, only the pairs show that a shard lost its first bytes, so all pairs must be
    valid.
    """
    at = _index_offset(spec, len(blob))
    stored = blob[at : at + _index_nbytes(spec)]
    everything = np.ones((*spec.grid, 2), dtype=bool)
    index = _decode_chain(stored, spec.configuration["index_codecs"], everything, np.dtype(np.uint64), 0)
    if CHECKSUMS.isdisjoint(codec["name"] for codec in spec.configuration["codecs"]):
        for coords in itertools.product(*(range(n) for n in spec.grid)):
            _range_of(index, coords, blob, spec)
    return index


def _range_of(index: Array, coords: Coords, blob: bytes, spec: ShardMeta) -> tuple[int, int] | None:
    """Return offset and size of an inner chunk, or None. Python's integers do not overflow."""
    offset, nbytes = (int(v) for v in index[coords])
    if offset == ABSENT and nbytes == ABSENT:  # SC-27, SC-28: both
        return None
    if offset == ABSENT or nbytes == ABSENT:
        raise MalformedShard(f"inner chunk {coords} is half empty: {offset}, {nbytes}")
    if offset + nbytes > len(blob):  # SC-22: offsets count from the first byte; SC-29
        raise MalformedShard(f"inner chunk {coords} at {offset}, {nbytes} bytes, of an object of {len(blob)}")
    index_at, index_nbytes = _index_offset(spec, len(blob)), _index_nbytes(spec)
    if nbytes and offset < index_at + index_nbytes and index_at < offset + nbytes:  # SC-33
        raise MalformedShard(f"inner chunk {coords} at {offset}, {nbytes} bytes, overlaps the index")
    return offset, nbytes


# ---------------------------------------------------------------------------------------------------------
# the shard


def chunk_order(grid: Sequence[int], order: str) -> list[Coords]:
    """Return all coordinates of a grid in the order in which a writer stores inner chunks. SC-50."""
    everything = list(itertools.product(*(range(n) for n in grid)))
    if order == "lexicographic":
        return everything
    if order == "colexicographic":
        return sorted(everything, key=lambda c: c[::-1])
    return sorted(everything, key=lambda c: _morton_code(c, grid))


def _morton_code(coords: Coords, grid: Sequence[int]) -> int:
    """Interleave the bits, axis 0 lowest. An axis whose bits are used up is skipped."""
    code, at = 0, 0
    for level in range(max(grid, default=1).bit_length()):
        for c, n in zip(coords, grid, strict=True):
            if level < (n - 1).bit_length():
                code |= (c >> level & 1) << at
                at += 1
    return code


def _boxes(spec: ShardMeta) -> Iterator[tuple[Coords, tuple[Any, ...]]]:
    """Yield each inner chunk and its slices. The final `...` keeps a view of rank 0 an array (SC-39).

    Slices that extend beyond the shard are cut off there, so a clipped inner chunk (SC-75) needs no special case.
    """
    inner = spec.chunk_shape
    for coords in chunk_order(spec.grid, "lexicographic"):
        yield coords, (*(slice(c * n, c * n + n) for c, n in zip(coords, inner, strict=True)), ...)


def _filled(spec: ShardMeta, shape: tuple[int, ...]) -> Array:
    """Return an array of the fill value in native order, bit by bit. SC-44."""
    return np.full(shape, np.asarray(spec.fill_value, dtype=spec.dtype), dtype=spec.dtype)


def _assemble(chunks: Mapping[Coords, bytes], spec: ShardMeta, order: str) -> bytes | None:
    """Concatenate encoded inner chunks, with the index before or after them."""
    return _with_index(chunks, spec, order) if chunks else None  # SC-52: nothing to store


def empty_shard(spec: ShardMeta) -> bytes:
    """Return a shard in which every inner chunk is absent: only an index. SC-27."""
    return _with_index({}, spec, "lexicographic")


def _with_index(chunks: Mapping[Coords, bytes], spec: ShardMeta, order: str) -> bytes:
    index = np.full((*spec.grid, 2), ABSENT, dtype=np.uint64)
    offset = _index_nbytes(spec) if spec.index_at_start else 0  # SC-54
    body = b""
    for coords in chunk_order(spec.grid, order):
        if coords in chunks:
            index[coords] = offset, len(chunks[coords])
            offset += len(chunks[coords])
            body += chunks[coords]
    stored = _encode_chain(index, spec.configuration["index_codecs"], 0, order, True)
    assert stored is not None and len(stored) == _index_nbytes(spec)
    return stored + body if spec.index_at_start else body + stored


def _encode_chunk(chunk: Array, spec: ShardMeta, order: str, write_empty: bool) -> bytes | None:
    # tobytes() compares bits: equal NaNs are empty, -0.0 is not 0.0 (SC-51)
    if not write_empty and chunk.tobytes() == _filled(spec, chunk.shape).tobytes():
        return None
    return _encode_chain(chunk, spec.configuration["codecs"], spec.fill_value, order, write_empty)


def encode_shard(
    array: Array, spec: ShardMeta, order: str = "lexicographic", write_empty: bool = False
) -> bytes | None:
    """Encode a whole shard. Return None if all inner chunks are empty.

    The array has the full shape of the shard, also at the edge of an array, where the rest holds the fill value: so
    inner chunks outside are omitted (SC-53) and those partly outside are whole (SC-37).
    """
    array = np.asarray(array, dtype=spec.dtype)
    assert array.shape == spec.shape
    chunks = {}
    for coords, box in _boxes(spec):
        data = _encode_chunk(array[box], spec, order, write_empty)
        if data is not None:
            chunks[coords] = data  # SC-63: present, even with no bytes
    return _assemble(chunks, spec, order)


def decode_shard(blob: bytes | None, spec: ShardMeta, selection: Any = ...) -> Array:
    """Decode the elements of a basic NumPy selection. None is an object that does not exist.

    If inner chunks have checksums, entries outside of the selection are not checked (SC-36). Gaps, shared ranges
    and any order of the inner chunks are valid (SC-34, SC-35).
    """
    if blob is None:
        return np.asarray(_filled(spec, spec.shape)[selection], dtype=spec.dtype)
    return np.asarray(_decode_masked(blob, spec, _mask(spec, selection))[selection], dtype=spec.dtype)


def _decode_masked(blob: bytes, spec: ShardMeta, wanted: npt.NDArray[np.bool_]) -> Array:
    array = _filled(spec, spec.shape)
    index = read_index(blob, spec)
    for coords, box in _boxes(spec):
        if wanted[box].any():
            _decode_into(array[box], blob, index, coords, spec, wanted[box])
    return array


def _decode_into(
    target: Array, blob: bytes, index: Array, coords: Coords, spec: ShardMeta, wanted: npt.NDArray[np.bool_]
) -> None:
    found = _range_of(index, coords, blob, spec)
    if found is not None:
        stored = blob[found[0] : found[0] + found[1]]
        codecs = spec.configuration["codecs"]
        target[...] = _decode_chain(stored, codecs, wanted, spec.dtype, spec.fill_value)


def _mask(spec: ShardMeta, selection: Any) -> npt.NDArray[np.bool_]:
    mask = np.zeros(spec.shape, dtype=bool)
    mask[selection] = True
    return mask


def _fixed_nbytes(spec: ShardMeta, size: int, otherwise: int) -> int:
    """Return the length of an encoded inner chunk of `size` elements if the codecs determine it, else `otherwise`."""
    names = [codec["name"] for codec in spec.configuration["codecs"]]
    if not set(names) <= {"transpose", "bytes", "crc32c"}:
        return otherwise
    return size * spec.dtype.itemsize + 4 * names.count("crc32c")


def update_shard(
    blob: bytes | None,
    spec: ShardMeta,
    selection: Any,
    value: Any,
    order: str = "lexicographic",
    write_empty: bool = False,
) -> bytes | None:
    """Return the shard after `array[selection] = value`.

    Inner chunks outside of the selection keep their encoded bytes (SC-55). Each of them is checked first (SC-58),
    its length too if the codecs determine it (SC-31). Inner chunks that the selection covers are not read, so a
    complete overwrite repairs a broken shard (SC-56).
    """
    covered = _mask(spec, selection)
    if covered.all():
        blob = None
    index = None if blob is None else read_index(blob, spec)  # SC-57: unreadable, nothing is written
    array = _filled(spec, spec.shape)
    chunks: dict[Coords, bytes] = {}
    for coords, box in _boxes(spec):
        if blob is None or index is None or covered[box].all():
            continue
        if covered[box].any():
            _decode_into(array[box], blob, index, coords, spec, np.ones_like(covered[box]))
        elif (found := _range_of(index, coords, blob, spec)) is not None:
            if found[1] != _fixed_nbytes(spec, array[box].size, found[1]):
                raise MalformedShard(f"inner chunk {coords} has {found[1]} bytes")
            chunks[coords] = blob[found[0] : found[0] + found[1]]
    array[selection] = value
    for coords, box in _boxes(spec):
        if covered[box].any():
            data = _encode_chunk(array[box], spec, order, write_empty)
            if data is not None:
                chunks[coords] = data
    return _assemble(chunks, spec, order)
