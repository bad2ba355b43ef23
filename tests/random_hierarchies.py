# random_hierarchies.py - random hierarchies of Zarr v2 and v3, as users have them
# SPDX-License-Identifier: MIT
"""`Hierarchy` writes one with zarr, without the package's code: all data types, fill values, codecs, grids, attributes, links, other files."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
import zarr.codecs as codecs
import zarr.codecs.numcodecs as filters_of_v3
from helpers import quiet
from zarr.core.dtype import VariableLengthBytes

NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "complex64", "complex128")
TIMES = ("M8[ns]", "M8[s]", "M8[D]", "m8[ns]", "m8[us]")
TEXTS = ("<U5", "S4", "V6", "str", "bytes")
STRUCT = [("a", "<i4"), ("b", "<f8"), ("s", "S3")]
NAMES = ("a", "c", "0", "x y", "ünï", "a.b", "t", "lat", ".h")
WORDS = ("", "a", "ünïcødé", "日本", "a\nb", "NaN", "naïve", "zzzzz")
MEMBERS = {"must_understand": False, "list": [1, None, {"": "ü"}], "n": 2**70}


def value_of(pick: random.Random, depth: int = 0) -> Any:
    """Return a random value of JSON, with those that Python writes and JSON does not have."""
    plain = [None, True, 0, -0.0, 1.0, 1, 2**70, -(2**63), 1e300, 5e-324, *WORDS, float("nan"), float("-inf")]
    if depth > 2 or pick.random() < 0.6:
        return pick.choice(plain)
    if pick.random() < 0.5:
        return [value_of(pick, depth + 1) for _ in range(pick.randint(0, 3))]
    return {pick.choice(WORDS): value_of(pick, depth + 1) for _ in range(pick.randint(0, 3))}


def attributes_of(pick: random.Random) -> dict[str, Any]:
    names = ("", "units", "ünits", "nested", "scale", "title")
    return {pick.choice(names): value_of(pick) for _ in range(pick.choice((0, 1, 1, 2, 4)))}


def elements_of(pick: random.Random, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return random elements of a type, with the values that are special."""
    n = int(np.prod(shape, dtype=int))
    rng = np.random.default_rng(pick.getrandbits(32))
    if dtype in ("str", "bytes", "<U5"):
        words = [pick.choice(WORDS) for _ in range(n)]
        if dtype == "bytes":
            values = np.empty(n, object)
            values[:] = [word.encode() for word in words]
            return values.reshape(shape)
        return np.array(words, np.dtypes.StringDType() if dtype == "str" else dtype).reshape(shape)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if pick.random() < 0.3:  # few values, so that chunks may have the fill value
        return np.zeros(n, dtype).reshape(shape)
    raw = rng.integers(0, 256, n * dtype.itemsize, dtype=np.uint8)
    if dtype.kind in "SV":  # a struct has any bits, a text no zeros between
        raw = raw if dtype.names else rng.integers(1, 100, n * dtype.itemsize, dtype=np.uint8)
    values = np.frombuffer(raw.tobytes(), dtype).copy()
    if dtype.kind in "fc" and n:
        specials = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5], dtype)
        at = rng.random(n) < 0.5
        values[at] = rng.choice(specials, int(at.sum()))
    if dtype.kind in "mM" and n:
        values[rng.random(n) < 0.2] = "NaT"
    return values.reshape(shape)


def layout_of(pick: random.Random, zarr_format: int, dtype: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return random chunks, shards and codecs."""
    chunks = tuple(pick.choice((1, 2, 3, 4)) for _ in shape)
    shards = tuple(n * pick.randint(1, 3) for n in chunks)
    how: dict[str, Any] = {"chunks": chunks}
    is_number = dtype in (*NUMBERS, *FLOATS)
    if zarr_format == 2:
        how["chunk_key_encoding"] = {"name": "v2", "separator": pick.choice("./")}
        compressors = (
            None,
            "auto",
            numcodecs.Blosc(),
            numcodecs.Zlib(),
            numcodecs.LZ4(),
            numcodecs.BZ2(),
            numcodecs.GZip(),
            numcodecs.Zstd(),
            numcodecs.LZMA(),
        )
        how["compressors"] = pick.choice(compressors)
        how["order"] = pick.choice("CF")
        if is_number and dtype != "bool" and pick.random() < 0.3:
            of_ints = [numcodecs.Delta(dtype)] if dtype in NUMBERS else []
            choices = [
                *of_ints,
                numcodecs.Shuffle(np.dtype(dtype).itemsize),
                numcodecs.CRC32(),
                numcodecs.Fletcher32(),
            ]
            how["filters"] = [pick.choice(choices)]
        return how
    names = (("default", "/"), ("default", "."), ("v2", "/"), ("v2", "."))
    name, separator = pick.choice(names[:1] * 3 + names)
    how["chunk_key_encoding"] = {"name": name, "separator": separator}
    how |= codecs_of_v3(pick, dtype, shape)
    if shape and pick.random() < 0.5:
        where = pick.choice(("start", "end", "end"))
        how["shards"] = {"shape": shards, "index_location": where} if where == "start" else shards
        if pick.random() < 0.2 and "str" != dtype != "bytes":
            del how["shards"]
            inner = codecs.ShardingCodec(chunk_shape=chunks, index_location=where)
            outer = codecs.ShardingCodec(chunk_shape=shards, codecs=[inner])
            how["chunks"] = tuple(2 * n for n in shards)
            how |= {"serializer": outer, "compressors": None, "filters": None}
    elif (
        shape and pick.random() < 0.3 and "rectilinear_chunks" in zarr.config.get("array") and 0 not in shape
    ):
        zarr.config.set({"array.rectilinear_chunks": True})
        how["chunks"] = [[1, n - 1] if n > 1 else [n] for n in shape]
    return how


def codecs_of_v3(pick: random.Random, dtype: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    how: dict[str, Any] = {}
    chain = pick.choice((None, "auto", "zstd", "blosc", "gzip", "crc32c", "zstd+crc32c", "lz4", "bz2"))
    made = {
        "zstd": codecs.ZstdCodec,
        "blosc": codecs.BloscCodec,
        "gzip": codecs.GzipCodec,
        "crc32c": codecs.Crc32cCodec,
        "lz4": filters_of_v3.LZ4,
        "bz2": filters_of_v3.BZ2,
    }
    how["compressors"] = chain if chain in (None, "auto") else [made[one]() for one in chain.split("+")]
    if len(shape) > 1 and pick.random() < 0.25:
        how["filters"] = [codecs.TransposeCodec(order=tuple(pick.sample(range(len(shape)), len(shape))))]
    elif dtype in NUMBERS[1:] and pick.random() < 0.3:
        how["filters"] = [filters_of_v3.Delta(dtype=np.dtype(dtype).str)]
    if dtype in (*NUMBERS, *FLOATS, *TIMES, "<U5") and pick.random() < 0.25:
        how["serializer"] = codecs.BytesCodec(endian="big")
    return how


class Hierarchy:
    """A random hierarchy in the folder `whole`. `arrays` and `groups` are the paths of its nodes."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.random = pick = random.Random(seed)
        self.whole = folder / "whole"
        self.zarr_format: Any = pick.choice((2, 3, 3))
        self.is_consolidated = pick.random() < 0.6
        self.is_stale = False
        self.is_extended = False
        self.arrays: dict[str, Any] = {}  # the data type of each
        self.groups: list[str] = []
        with quiet():
            self._write()

    def _write(self) -> None:
        pick = self.random
        if pick.random() < 0.05:
            self._write_array("", 0)
            return
        zarr.create_group(self.whole, zarr_format=self.zarr_format, attributes=attributes_of(pick))
        self.groups.append("")
        for _ in range(pick.randint(0, 3)):
            if path := self._new_path():
                attributes = attributes_of(pick)
                zarr.create_group(self.whole, path=path, zarr_format=self.zarr_format, attributes=attributes)
                self.groups.append(path)
        for number in range(pick.randint(1, 5)):
            if path := self._new_path():
                self._write_array(path, number)
        for number in range(pick.randint(0, 3)):
            self._write_file(number)
        self._finish()

    def _finish(self) -> None:
        """Make links, consolidated metadata and extensions."""
        pick = self.random
        kind = pick.choice(("file", "node", "nothing", "above", *[""] * 9))
        if kind in ("file", "node", "nothing"):
            self._link(kind)
        if self.is_consolidated:
            zarr.consolidate_metadata(self.whole, zarr_format=self.zarr_format)
            self._consolidate_as_they_are()
            if pick.random() < 0.15:
                self._make_stale()
        for path in self.groups if self.zarr_format == 3 else ():
            if pick.random() < 0.2:
                self.is_extended = True  # at the end, because not every zarr opens such a group
                file = self.whole / path / "zarr.json"
                file.write_text(json.dumps({**json.loads(file.read_text()), "example": MEMBERS}))
        if self.is_consolidated and not self.is_stale:
            self._consolidate_as_they_are()
        if kind == "above":  # at the end, because zarr lists such a hierarchy for ever
            self._link(kind)

    def _new_path(self) -> str:
        """Return the path of a node that is not there yet; "" if the random name is taken."""
        name = self.random.choice(NAMES) + self.random.choice(("", "", "1", "2"))
        path = f"{self.random.choice(self.groups)}/{name}".strip("/")
        return "" if path in self.groups or path in self.arrays else path

    # ---- arrays

    def _write_array(self, path: str, number: int) -> None:
        pick = self.random
        dtype: Any = pick.choice((*NUMBERS, *FLOATS, *FLOATS, *TIMES, *TEXTS, "struct"))
        dtype = STRUCT if dtype == "struct" else dtype
        shape = tuple(pick.choice((0, 1, 2, 5, 7, 9)) for _ in range(pick.choice((0, 1, 1, 2, 2, 3, 4))))
        how = layout_of(pick, self.zarr_format, dtype, shape)
        given: Any = (
            VariableLengthBytes() if dtype == "bytes" else np.dtype(dtype) if dtype == STRUCT else dtype
        )
        if self.zarr_format == 2 and dtype in (*NUMBERS, *FLOATS, *TIMES, "<U5") and pick.random() < 0.3:
            given = np.dtype(dtype).newbyteorder(">")
        if isinstance(given, np.dtype) or dtype not in ("str", "bytes"):
            fill = elements_of(pick, dtype, (1,))[0] if pick.random() < 0.5 else None
            how |= {} if fill is None or dtype in ("V6", STRUCT) else {"fill_value": fill}
        elif pick.random() < 0.5:
            how["fill_value"] = pick.choice(WORDS).encode() if dtype == "bytes" else pick.choice(WORDS)
        attributes = attributes_of(pick)
        if shape and pick.random() < 0.4:
            names = [pick.choice(("t", "lat", "ü", "x y")) for _ in shape]
            if self.zarr_format == 2:
                attributes["_ARRAY_DIMENSIONS"] = names
            else:
                how["dimension_names"] = [name if pick.random() < 0.8 else None for name in names]
        arguments = {
            "shape": shape,
            "dtype": given,
            "attributes": attributes,
            "zarr_format": self.zarr_format,
        }
        place = {"store": self.whole, "name": path or None}
        try:
            array = zarr.create_array(**place, **arguments, **how)
        except (ValueError, TypeError, NotImplementedError):  # this zarr does not have it
            for name in ("filters", "serializer", "compressors", "shards"):
                how.pop(name, None)
            array = zarr.create_array(**place, **arguments, **how, overwrite=True)
        self.arrays[path] = dtype
        self._edit(self.whole / path, dtype)
        try:
            self._fill(zarr.open_array(self.whole, path=path or None, mode="r+"), dtype)
        except Exception:  # codecs that cannot hold the elements: an array of the plain codecs
            for name in ("filters", "serializer", "compressors", "shards"):
                how.pop(name, None)
            array = zarr.create_array(**place, **arguments, **how, overwrite=True)
            self._fill(array, dtype)

    def _edit(self, folder: Path, dtype: Any) -> None:
        """Write what zarr's functions do not: NaN with a payload as the fill value, an extension of an array, no fill value."""
        pick = self.random
        file = folder / ("zarr.json" if self.zarr_format == 3 else ".zarray")
        document = json.loads(file.read_text())
        if self.zarr_format == 3 and dtype in ("float16", "float32", "float64") and pick.random() < 0.3:
            # Python before 3.14 loses the payload of a NaN of float16, so zarr does
            bits = {"float16": "0x7e00", "float32": "0xffc00001", "float64": "0x7ff8000000000123"}
            document["fill_value"] = bits[dtype]
        if self.zarr_format == 2 and pick.random() < 0.15 and dtype != "bytes":
            document["fill_value"] = None
        if self.zarr_format == 3 and pick.random() < 0.1:
            document["example"] = MEMBERS
        file.write_text(json.dumps(document))
        with suppress(Exception):
            zarr.open_array(folder, mode="r")[...]
            return
        document.pop("example", None)  # this zarr refuses the extension
        file.write_text(json.dumps(document))

    def _fill(self, array: Any, dtype: Any) -> None:
        pick, shape = self.random, array.shape
        kind = pick.random()
        if kind < 0.15 or (dtype == "bytes" and not shape):  # zarr does not write a scalar of bytes
            return
        if kind < 0.7 or not shape or 0 in shape:
            array[...] = elements_of(pick, dtype, shape)
            return
        for _ in range(pick.randint(1, 3)):
            starts = [pick.randrange(n) for n in shape]
            box = tuple(slice(at, pick.randint(at + 1, n)) for at, n in zip(starts, shape, strict=True))
            array[box] = elements_of(pick, dtype, tuple(one.stop - one.start for one in box))

    # ---- what is beside the arrays

    def _write_file(self, number: int) -> None:
        pick = self.random
        name = pick.choice(("notes.txt", ".hidden", "table ü.bin", "deep/file.csv", "empty"))
        folder = self.whole / pick.choice((*self.groups, *self.arrays)) / f"f{number}"
        if pick.random() < 0.2:
            folder.mkdir(parents=True, exist_ok=True)  # an empty folder
            return
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pick.randbytes(pick.choice((0, 10, 3000))))

    def _link(self, kind: str) -> None:
        """Make a link to a file, to a node, to nothing, or to a folder above."""
        pick = self.random
        link = self.whole / pick.choice(self.groups) / "link"
        target = {"nothing": "nowhere", "above": "."}.get(kind)
        if kind == "file":
            (self.whole.parent / "outside.txt").write_text("of a link")
            target = os.path.relpath(self.whole.parent / "outside.txt", link.parent)
        elif kind == "node" and self.arrays:
            target = os.path.relpath(self.whole / pick.choice(list(self.arrays)), link.parent)
        link.symlink_to(target or "nowhere")

    def _make_stale(self) -> None:
        """Change a node behind the consolidated metadata."""
        self.is_stale = True
        path = self.random.choice((*self.groups, *self.arrays))
        zarr.open(self.whole, path=path or None, mode="r+", use_consolidated=False).attrs["later"] = (
            "ü" if path in self.arrays else 1
        )

    def _consolidate_as_they_are(self) -> None:
        """Write the documents into the consolidated metadata; zarr leaves out extensions, and bits of NaN."""
        if self.zarr_format == 2:
            return
        file = self.whole / "zarr.json"
        root = json.loads(file.read_text())
        for path, old in root["consolidated_metadata"]["metadata"].items():
            kept = {name: old[name] for name in ("consolidated_metadata",) if name in old}
            root["consolidated_metadata"]["metadata"][path] = {
                **json.loads((self.whole / path / "zarr.json").read_text()),
                **kept,
            }
        file.write_text(json.dumps(root))
