# codec_classes.py - one class per codec, as immutable data
# SPDX-License-Identifier: MIT
"""One frozen dataclass per codec that shardcodec implements; `format/codecs.py` has `Sharding` and the table of all.

A codec checks its own values at construction. ``resolve`` checks the values that depend on the array (its rank,
its dtype, the shape of a shard) and replaces omitted values by their defaults. It returns the codec that runs.

Source: Zarr v3 codecs `bytes`, `transpose`, `blosc`, `gzip`, `zstd`, `crc32c`; for the codecs of numcodecs, the names
of zarr-python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from ..errors import UnsupportedError
from .checks import as_int, as_int_tuple, show, unsupported, wrong
from .dtypes import DType, swap_fields
from .ml_types import element_kind, n_bits

__all__ = [
    "Adler32",
    "Blosc",
    "Bytes",
    "Checksum",
    "Codec",
    "CodecLike",
    "Crc32",
    "Crc32c",
    "Crc32cAtStart",
    "Endian",
    "Fletcher32",
    "Gzip",
    "JenkinsLookup3",
    "Lz4",
    "RegistryPackBits",
    "Shape",
    "Shuffle",
    "Transpose",
    "Zlib",
    "Zstd",
]

Endian = Literal["little", "big"]
Kind = Literal["array -> array", "array -> bytes", "bytes -> bytes"]
Shape = tuple[int, ...]

BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC_MAX_TYPESIZE = 255
_PADDINGS = ("none", "first_byte", "last_byte")
_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1


@dataclass(frozen=True)
class Codec:
    """Base class of all codecs."""

    json_name: ClassVar[str]
    kind: ClassVar[Kind] = "bytes -> bytes"

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        """Check the codec against its input array; return it with omitted values filled in."""
        return self

    def configuration(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def encoded_nbytes(self, nbytes: int) -> int | None:
        """Return the size of encoded data of `nbytes` bytes; None if it depends on the data."""
        return None

    def detects_damage(self) -> bool:
        """Return True if decoding fails after any bit of the encoded bytes has changed."""
        return False

    def native(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the row in the engine's table (csrc/codecs/sc_codec.h), and the parameters."""
        raise UnsupportedError(f"no native code for codec {self.json_name}", codec=self.json_name)

    def to_json(self) -> dict[str, Any]:
        """Return the codec as a JSON object; the short form, a bare name, is read but never written."""
        configuration = self.configuration()
        if not configuration and not self.json_name.startswith(
            "numcodecs."
        ):  # zarr opens none of these without it
            return {"name": self.json_name}
        return {"name": self.json_name, "configuration": configuration}


CodecLike = Codec | Mapping[str, Any] | str


@dataclass(frozen=True)
class Transpose(Codec):
    """A permutation of the axes: stored axis i is axis ``order[i]``."""

    json_name: ClassVar[str] = "transpose"
    kind: ClassVar[Kind] = "array -> array"

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        order = as_int_tuple(self.order, "order")
        object.__setattr__(self, "order", order)
        if sorted(order) != list(range(len(order))):
            reason = f"expected a permutation of 0 to {len(order) - 1}, got {show(order)}"
            wrong("order", reason, actual=order)

    def resolve(self, shape: Shape, dtype: DType) -> Transpose:
        if len(self.order) != len(shape):
            reason = f"expected {len(shape)} axes, as the array has, got {len(self.order)}"
            wrong("order", reason, expected=len(shape), actual=len(self.order))
        return self

    def apply(self, shape: Shape) -> Shape:
        """Return the shape after this codec."""
        return tuple(shape[axis] for axis in self.order)

    def configuration(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes


@dataclass(frozen=True)
class Bytes(Codec):
    """The elements in C order; ``endian`` is None for elements without a byte order."""

    json_name: ClassVar[str] = "bytes"
    kind: ClassVar[Kind] = "array -> bytes"

    endian: Endian | None = None

    def __post_init__(self) -> None:
        if self.endian not in ("little", "big", None):
            wrong("endian", f"expected little or big, got {show(self.endian)}", actual=self.endian)

    def resolve(self, shape: Shape, dtype: DType) -> Bytes:
        if not swap_fields(dtype):
            return Bytes()
        if self.endian is None and dtype.names is not None:
            return Bytes("little")  # zarr before 3.2 omitted it for structs
        if self.endian is None:
            wrong("endian", f"expected little or big for elements of type {dtype}, got none", actual=None)
        return self

    def configuration(self) -> dict[str, Any]:
        return {} if self.endian is None else {"endian": self.endian}

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes


@dataclass(frozen=True)
class RegistryPackBits(Codec):
    """Some bits of each element, without gaps, from ``first_bit`` to ``last_bit``; None: from the lowest, to the highest.

    numcodecs has another codec of this name, `PackBits`.
    """

    json_name: ClassVar[str] = "packbits"
    kind: ClassVar[Kind] = "array -> bytes"

    padding_encoding: str = "none"
    first_bit: int | None = None
    last_bit: int | None = None
    # bytes and bits of a number, and whether it has a sign
    number: tuple[int, int, bool] = field(default=(1, 8, False), repr=False)

    def __post_init__(self) -> None:
        if self.padding_encoding not in _PADDINGS:
            known = ", ".join(_PADDINGS)
            reason = f"expected one of {known}, got {show(self.padding_encoding)}"
            wrong("padding_encoding", reason, actual=self.padding_encoding)
        for name in ("first_bit", "last_bit"):
            if getattr(self, name) is not None:
                value = as_int(getattr(self, name), name, minimum=0, maximum=_INT32_MAX)
                object.__setattr__(self, name, value)
        if self.last_bit is not None and self.last_bit < (self.first_bit or 0):
            reason = f"expected at least first_bit, {self.first_bit}, got {self.last_bit}"
            wrong("last_bit", reason, actual=self.last_bit, limit=self.first_bit)

    def resolve(self, shape: Shape, dtype: DType) -> RegistryPackBits:
        kind = element_kind(dtype)
        if kind not in "biufc":
            reason = f"expected numbers or truth values for {self.json_name}, got {dtype}"
            unsupported("", reason, codec=self.json_name)
        n_parts = 2 if kind == "c" else 1  # the parts of a complex number are two numbers
        n = 1 if kind == "b" else n_bits(dtype) // n_parts
        self.check_bits(n, str(dtype))
        return replace(
            self,
            first_bit=self.first_bit or None,
            last_bit=None if self.last_bit == n - 1 else self.last_bit,
            number=(dtype.itemsize // n_parts, n, kind == "i"),
        )

    def check_bits(self, n: int, data_type: str) -> None:
        """Refuse bits that elements of `n` bits do not have."""
        for name in ("first_bit", "last_bit"):
            value = getattr(self, name)
            if value is not None and value >= n:
                reason = f"expected at most {n - 1} for {data_type}, got {value}"
                wrong(name, reason, actual=value, limit=n - 1)

    def configuration(self) -> dict[str, Any]:
        given = {
            "padding_encoding": self.padding_encoding,
            "first_bit": self.first_bit,
            "last_bit": self.last_bit,
        }
        return {key: value for key, value in given.items() if value not in ("none", None)}

    def encoded_nbytes(self, nbytes: int) -> int:
        first, last = self._range()
        n_stored = nbytes // self.number[0] * (last - first + 1)
        return (n_stored + 7) // 8 + (self.padding_encoding != "none")

    def native(self) -> tuple[str, dict[str, Any]]:
        first, last = self._range()
        nbytes, n, is_signed = self.number
        parameters = {"typesize": nbytes, "n_bits": n, "is_signed": is_signed}
        return "bit_fields", parameters | {
            "first_bit": first,
            "last_bit": last,
            "padding": self.padding_encoding,
        }

    def _range(self) -> tuple[int, int]:
        """Return the first and the last stored bit."""
        return self.first_bit or 0, self.number[1] - 1 if self.last_bit is None else self.last_bit


@dataclass(frozen=True)
class Checksum(Codec):
    """Base class of the codecs that add a checksum of four bytes, after the data or in front of them."""

    @property
    def at_start(self) -> bool:
        """True if the checksum is in front of the data."""
        return getattr(self, "location", "end") == "start"

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes + 4

    def detects_damage(self) -> bool:
        return True

    def native(self) -> tuple[str, dict[str, Any]]:
        return self.json_name.removeprefix("numcodecs."), {"at_start": self.at_start} if self.at_start else {}


@dataclass(frozen=True)
class Crc32c(Checksum):
    """CRC-32C after the data."""

    json_name: ClassVar[str] = "crc32c"


@dataclass(frozen=True)
class Fletcher32(Checksum):
    """The checksum of HDF5 and netCDF4 after the data."""

    json_name: ClassVar[str] = "numcodecs.fletcher32"


@dataclass(frozen=True)
class _PlacedChecksum(Checksum):
    location: Literal["start", "end"] = "start"

    def __post_init__(self) -> None:
        if self.location not in ("start", "end"):
            wrong("location", f"expected start or end, got {show(self.location)}", actual=self.location)


@dataclass(frozen=True)
class Crc32(_PlacedChecksum):
    """The checksum of gzip."""

    json_name: ClassVar[str] = "numcodecs.crc32"


@dataclass(frozen=True)
class Adler32(_PlacedChecksum):
    """The checksum of zlib."""

    json_name: ClassVar[str] = "numcodecs.adler32"


@dataclass(frozen=True)
class Crc32cAtStart(Checksum):
    """CRC-32C in front of the data, which only numcodecs has."""

    json_name: ClassVar[str] = "numcodecs.crc32c"
    location: Literal["start"] = "start"


@dataclass(frozen=True)
class JenkinsLookup3(Checksum):
    """The checksum of HDF5's metadata after the data."""

    json_name: ClassVar[str] = "numcodecs.jenkins_lookup3"


@dataclass(frozen=True)
class Shuffle(Codec):
    """The first bytes of all elements, then the second ones, and so on; an ``elementsize`` of None is the itemsize, as in zarr."""

    json_name: ClassVar[str] = "numcodecs.shuffle"

    elementsize: int | None = None

    def __post_init__(self) -> None:
        if self.elementsize is not None:
            value = as_int(self.elementsize, "elementsize", minimum=0, maximum=_UINT32_MAX)
            object.__setattr__(self, "elementsize", value)

    def resolve(self, shape: Shape, dtype: DType) -> Shuffle:
        return self if self.elementsize is not None else Shuffle(dtype.itemsize)

    def check_input(self, nbytes: int | None) -> None:
        """Refuse data of another size than whole elements, or of unknown size: zarr would fail at each write."""
        if (
            self.elementsize is None
            or self.elementsize <= 1
            or (nbytes is not None and nbytes % self.elementsize == 0)
        ):
            return
        size = "of any size" if nbytes is None else f"of {nbytes} bytes"
        reason = f"expected data of whole elements of {self.elementsize} bytes, got data {size}"
        unsupported("elementsize", reason, codec=self.json_name)

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes

    def native(self) -> tuple[str, dict[str, Any]]:
        return "shuffle", {"typesize": max(1, self.elementsize or 0)}


@dataclass(frozen=True)
class Zstd(Codec):
    """Zstandard frames; level 0 is the library's default."""

    json_name: ClassVar[str] = "zstd"

    level: int = 0
    checksum: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_int(self.level, "level", minimum=-131072, maximum=22))
        if not isinstance(self.checksum, bool):
            wrong("checksum", f"expected true or false, got {show(self.checksum)}", actual=self.checksum)

    def detects_damage(self) -> bool:
        return self.checksum

    def native(self) -> tuple[str, dict[str, Any]]:
        return "zstd", {"level": self.level, "checksum": self.checksum}


@dataclass(frozen=True)
class Gzip(Codec):
    """Gzip members."""

    json_name: ClassVar[str] = "gzip"

    level: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_int(self.level, "level", minimum=0, maximum=9))

    def native(self) -> tuple[str, dict[str, Any]]:
        return "gzip", {"level": self.level}


@dataclass(frozen=True)
class Zlib(Codec):
    """A zlib stream, as numcodecs writes it."""

    json_name: ClassVar[str] = "numcodecs.zlib"

    level: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_int(self.level, "level", minimum=0, maximum=9))

    def native(self) -> tuple[str, dict[str, Any]]:
        return "zlib", {"level": self.level}


@dataclass(frozen=True)
class Lz4(Codec):
    """The decoded size in four bytes and one LZ4 block, as numcodecs writes them."""

    json_name: ClassVar[str] = "numcodecs.lz4"

    acceleration: int = 1

    def __post_init__(self) -> None:
        value = as_int(self.acceleration, "acceleration", minimum=-_INT32_MAX, maximum=_INT32_MAX)
        object.__setattr__(self, "acceleration", value)

    def native(self) -> tuple[str, dict[str, Any]]:
        return "lz4", {"level": self.acceleration}


@dataclass(frozen=True)
class Blosc(Codec):
    """A Blosc 1 container; a ``typesize`` or ``shuffle`` of None follows from the itemsize, as in zarr."""

    json_name: ClassVar[str] = "blosc"

    cname: str = "zstd"
    clevel: int = 5
    shuffle: str | None = None
    typesize: int | None = None
    blocksize: int = 0

    def __post_init__(self) -> None:
        if self.cname == "snappy":
            known = ", ".join(BLOSC_COMPRESSORS)
            unsupported(
                "cname", f"expected one of {known}, got snappy, which is not supported", codec="blosc"
            )
        if self.cname not in BLOSC_COMPRESSORS:
            known = ", ".join(BLOSC_COMPRESSORS)
            wrong("cname", f"expected one of {known}, got {show(self.cname)}", actual=self.cname)
        if self.shuffle is not None and self.shuffle not in BLOSC_SHUFFLES:
            known = ", ".join(BLOSC_SHUFFLES)
            wrong("shuffle", f"expected one of {known}, got {show(self.shuffle)}", actual=self.shuffle)
        for name, low, high in (("clevel", 0, 9), ("typesize", 1, _INT32_MAX), ("blocksize", 0, _INT32_MAX)):
            if getattr(self, name) is not None:
                value = as_int(getattr(self, name), name, minimum=low, maximum=high)
                object.__setattr__(self, name, value)

    def resolve(self, shape: Shape, dtype: DType) -> Blosc:
        typesize = dtype.itemsize if self.typesize is None else self.typesize
        shuffle = self.shuffle or ("bitshuffle" if dtype.itemsize == 1 else "shuffle")
        return replace(self, typesize=typesize, shuffle=shuffle)

    def native(self) -> tuple[str, dict[str, Any]]:
        # c-blosc stores the typesize in one byte; a larger one becomes 1
        typesize = self.typesize if self.typesize is not None else 1
        return "blosc", {
            "level": self.clevel,
            "compressor": self.cname,
            "shuffle": self.shuffle,
            "typesize": typesize if typesize <= _BLOSC_MAX_TYPESIZE else 1,
            "blocksize": self.blocksize,
        }
