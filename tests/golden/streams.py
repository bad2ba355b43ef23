# streams.py - compressed inner chunks, cut and altered in every way
# SPDX-License-Identifier: MIT
"""Streams of every compressor, as numcodecs makes them, and what must come of their damaged copies.

``broken/streams.json`` holds one encoded inner chunk of 16 x 16 int16 for each codec; running this file wrote it. Compressors make other bytes from version to version, so nothing compares the file with its recipe, but a missing or
undecodable stream fails.

A damaged stream is put into a shard of two inner chunks, before a sound one. Without a checksum of its own it may decode to
other elements; then numcodecs must find the same ones. Where the format has one, it may decode to the right elements (some
bits mean nothing). With `crc32c` behind it, it may not decode at all.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
from golden.make_broken import Layout
from reference import crc32c
from spec_json import CRC, LITTLE, blosc, named, zstd

import shardcodec

HERE = Path(__file__).parent
FILE = HERE / "broken" / "streams.json"
SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
BLOCK_NBYTES = 128
HAS_CHECKSUM = ("gzip", "numcodecs.zlib", "zstd with a checksum")
Json = dict[str, Any]


def content() -> np.ndarray[Any, np.dtype[np.int16]]:
    """A field with some noise: compressible, but not too well."""
    noise = np.random.default_rng(5).integers(0, 4, (16, 16))
    return (np.arange(256).reshape(16, 16) // 3 + noise).astype("<i2")


def recipes() -> Iterator[tuple[str, Json, bytes]]:
    """Name, codec as in zarr.json, and the stream."""
    data = content()
    raw = data.tobytes()
    yield "zstd", zstd(3, checksum=False), bytes(numcodecs.Zstd(3).encode(raw))
    yield "zstd with a checksum", zstd(3, checksum=True), bytes(numcodecs.Zstd(3, checksum=True).encode(raw))
    yield "gzip", named("gzip", level=6), gzip.compress(raw, 6, mtime=0)
    yield "numcodecs.zlib", named("numcodecs.zlib", level=6), zlib.compress(raw, 6)
    lz4 = named("numcodecs.lz4", acceleration=1)
    yield "numcodecs.lz4", lz4, bytes(numcodecs.LZ4().encode(raw))
    for cname in ("blosclz", "lz4", "lz4hc", "zstd", "zlib"):
        for shuffle, number in SHUFFLES.items():
            codec = blosc(cname, shuffle, 2, blocksize=BLOCK_NBYTES)
            yield (
                f"blosc {cname} {shuffle}",
                codec,
                bytes(numcodecs.Blosc(cname, 5, number, BLOCK_NBYTES).encode(data)),
            )


def make_streams() -> None:
    made = [{"name": n, "codec": c, "stream": s.hex()} for n, c, s in recipes()]
    FILE.write_text("[\n" + ",\n".join(json.dumps(m) for m in made) + "\n]\n")


def load() -> list[Json]:
    made: list[Json] = json.loads(FILE.read_text())
    return made


def peer_decode(name: str, stream: bytes) -> bytes | None:
    """What numcodecs makes of a stream without a checksum; None where it refuses it."""
    try:
        match name.partition(" ")[0]:
            case "blosc":
                return bytes(numcodecs.Blosc().decode(stream))
            case "numcodecs.lz4":
                return bytes(numcodecs.LZ4().decode(stream))
            case "zstd":
                return bytes(numcodecs.Zstd().decode(stream))
    except (RuntimeError, ValueError):
        return None
    raise ValueError(f"nobody to ask about {name}")


def damaged(stream: bytes, *, thorough: bool) -> Iterator[tuple[str, bytes]]:
    """Every cut; flipped bits, all of them at both ends; runs of bytes at their extremes."""
    for n in range(len(stream)):
        yield f"cut to {n}", stream[:n]
    for at in range(len(stream)):
        is_head_or_tail = at < 48 or at >= len(stream) - 12
        masks = (1, 2, 4, 8, 16, 32, 64, 128, 255) if thorough and is_head_or_tail else (1 << at % 8,)
        for mask in masks:
            yield f"byte {at} ^ {mask}", stream[:at] + bytes([stream[at] ^ mask]) + stream[at + 1 :]
        for value in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f") if thorough else ():
            yield f"{value.hex()} at {at}", stream[:at] + value + stream[at + 4 :]
    yield "a byte more", stream + b"\0"
    yield "twice", stream + stream


def run_streams(folder: Path) -> Iterator[str]:
    for made in load():
        stream = bytes.fromhex(made["stream"])
        yield from run_stream(made, stream, checked=False)
        yield from run_stream(made, stream, checked=True)


def run_stream(made: Json, stream: bytes, *, checked: bool) -> Iterator[str]:
    name = made["name"]
    codecs = [LITTLE, made["codec"], *([CRC] if checked else [])]
    spec = shardcodec.ShardSpec((16, 32), (16, 16), "int16", 0, codecs)
    raw = content().tobytes()
    tail = crc32c(stream).to_bytes(4, "little") if checked else b""
    layout = Layout(shape=(2,), inner=(1,))
    print(name, "checked" if checked else "", flush=True)
    for what, broken in [("sound", stream), *damaged(stream, thorough=not checked)]:
        n, behind = len(broken) + len(tail), len(stream) + len(tail)
        blob = layout.shard(broken + tail + stream + tail, [(0, n), (n, behind)])
        where = f"{name}{', crc32c' if checked else ''}, {what}"
        whole, part, other = (outcome(blob, spec, s) for s in (np.s_[:, :16], np.s_[5, 7], np.s_[:, 16:]))
        if other != raw:
            yield f"{where}: the neighbour gives {other!r:.100}"
        skips = (
            name.startswith("blosc") and not checked
        )  # a part needs some blocks, and sees the others' framing alone
        if isinstance(part, str) != isinstance(whole, str) and not (skips and part == raw[174:176]):
            yield f"{where}: all gives {whole!r:.100}, a part {part!r}"
        if isinstance(whole, bytes) and whole[174:176] != part:
            yield f"{where}: all and a part differ"
        if broken == stream:
            fault = "is refused" if whole != raw else ""
        elif checked:
            fault = (
                "no ChecksumError" if isinstance(whole, bytes) or (n > 4 and "Checksum" not in whole) else ""
            )
        elif isinstance(whole, str):
            fault = ""
        elif name in HAS_CHECKSUM:
            fault = "other elements, in spite of a checksum" if whole != raw else ""
        else:
            fault = "other elements than numcodecs finds" if whole != peer_decode(name, broken) else ""
        if fault:
            yield f"{where}: {fault}"


def outcome(blob: bytes, spec: Any, selection: Any) -> bytes | str:
    """Elements, or the error; what is no error of ours goes up."""
    try:
        return bytes(shardcodec.decode(blob, spec, selection).tobytes())
    except shardcodec.ShardError as error:
        if error.chunk_coords != (0, 0):
            raise
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(make_streams())
