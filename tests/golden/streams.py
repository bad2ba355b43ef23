# streams.py - compressed inner chunks that are cut and changed in many ways
# SPDX-License-Identifier: MIT
"""Streams of every compressor, made with numcodecs, and the expected results of their damaged copies.

``broken/streams.json`` has one encoded inner chunk of 16 x 16 int16 for each codec; run this file to write it. Versions
of a compressor write different bytes, so the file is not compared with its recipe, but a missing or undecodable stream
fails.

A damaged stream is put into a shard of two inner chunks, before a valid one. If the stream has no checksum, it may decode
to other elements; then a peer must decode the same ones: numcodecs, or libzstd in a build that is linked with it. If it has
one, it may only decode to the right elements (some bits have no meaning). If `crc32c` follows it, it must not decode at all.
"""

from __future__ import annotations

import ctypes
import gzip
import itertools
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
from codec_battery import IS_SYSTEM_BUILD
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
    """Return a field with some noise, which compresses, but not too well."""
    noise = np.random.default_rng(5).integers(0, 4, (16, 16))
    return (np.arange(256).reshape(16, 16) // 3 + noise).astype("<i2")


def recipes() -> Iterator[tuple[str, Json, bytes]]:
    """Yield name, codec as in zarr.json, and stream."""
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
    """Return the bytes that a peer decodes from a stream without a checksum; None if it refuses the stream."""
    if IS_SYSTEM_BUILD and name == "zstd":
        return system_zstd(stream)
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
    raise ValueError(f"no other decoder for {name}")


def system_zstd(stream: bytes) -> bytes | None:
    """Return the bytes that the libzstd of the system decodes; None if it refuses the stream."""
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    n = content().nbytes
    dst = ctypes.create_string_buffer(n)
    got = library.ZSTD_decompress(dst, ctypes.c_size_t(n), stream, ctypes.c_size_t(len(stream)))
    return dst.raw[:got] if got <= n else None


def damaged(stream: bytes, *, thorough: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the stream cut at every byte, with flipped bits (all bits near both ends), and with extreme numbers."""
    for n in range(len(stream)):
        yield f"cut to {n}", stream[:n]
    for at in range(len(stream)):
        is_head_or_tail = at < 48 or at >= len(stream) - 12
        masks = (1, 2, 4, 8, 16, 32, 64, 128, 255) if thorough and is_head_or_tail else (1 << at % 8,)
        for mask in masks:
            yield f"byte {at} ^ {mask}", stream[:at] + bytes([stream[at] ^ mask]) + stream[at + 1 :]
        for value in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f") if thorough else ():
            yield f"{value.hex()} at {at}", stream[:at] + value + stream[at + 4 :]
    yield "one more byte", stream + b"\0"
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
    # the checksum refuses all of them before they are decoded
    step = 8 if checked else 1
    for what, broken in [
        ("sound", stream),
        *itertools.islice(damaged(stream, thorough=not checked), 0, None, step),
    ]:
        n, behind = len(broken) + len(tail), len(stream) + len(tail)
        blob = layout.shard(broken + tail + stream + tail, [(0, n), (n, behind)])
        where = f"{name}{', crc32c' if checked else ''}, {what}"
        whole, part, other = (outcome(blob, spec, s) for s in (np.s_[:, :16], np.s_[5, 7], np.s_[:, 16:]))
        if other != raw:
            yield f"{where}: the valid inner chunk gives {other!r:.100}"
        # a partial read decodes some blocks, and checks only the framing of the others
        skips = name.startswith("blosc") and not checked
        if isinstance(part, str) != isinstance(whole, str) and not (skips and part == raw[174:176]):
            yield f"{where}: the whole read gives {whole!r:.100}, a partial one {part!r}"
        if isinstance(whole, bytes) and whole[174:176] != part:
            yield f"{where}: the whole and the partial read differ"
        if broken == stream:
            fault = "is refused" if whole != raw else ""
        elif checked:
            fault = (
                "no ChecksumError" if isinstance(whole, bytes) or (n > 4 and "Checksum" not in whole) else ""
            )
        elif isinstance(whole, str):
            fault = ""
        elif name in HAS_CHECKSUM:
            fault = "other elements, although the stream has a checksum" if whole != raw else ""
        elif IS_SYSTEM_BUILD and name.startswith("blosc zstd"):
            fault = ""  # numcodecs may have another version of libzstd, which makes other elements of a damaged stream
        else:
            fault = "other elements than numcodecs decodes" if whole != peer_decode(name, broken) else ""
        if fault:
            yield f"{where}: {fault}"


def outcome(blob: bytes, spec: Any, selection: Any) -> bytes | str:
    """Return the elements, or the text of our error; other exceptions are raised."""
    try:
        return bytes(shardcodec.decode(blob, spec, selection).tobytes())
    except shardcodec.ShardError as error:
        if error.chunk_coords != (0, 0):
            raise
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(make_streams())
