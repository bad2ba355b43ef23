# test_codec_gzip.py - the codecs "gzip" and "zlib": one deflate with two wrappings
# SPDX-License-Identifier: MIT
"""The engine reads what Python's gzip module reads: it tolerates the same padding and refuses the same streams."""

from __future__ import annotations

import gzip
import zlib

import codec_battery as battery
import numcodecs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import _native as native

TEXT = b"(0, 1) (1, 0)"
FHCRC, FEXTRA, FNAME, FCOMMENT, RESERVED = 2, 4, 8, 16, 32


def raw_deflate(data: bytes) -> bytes:
    c = zlib.compressobj(6, wbits=-15)
    return c.compress(data) + c.flush()


def member(
    data: bytes, flags: int = 0, fields: bytes = b"", crc: int | None = None, length: int | None = None
) -> bytes:
    """Build a gzip member by hand (RFC 1952)."""
    header = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\x00\xff" + fields
    if flags & FHCRC:
        header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    crc = zlib.crc32(data) if crc is None else crc
    length = len(data) if length is None else length
    return header + raw_deflate(data) + crc.to_bytes(4, "little") + length.to_bytes(4, "little")


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("name", ["gzip", "zlib"])
@pytest.mark.parametrize("kind", battery.PAYLOADS)
@pytest.mark.parametrize("level", range(10))
def test_round_trip_keeps_data(name: str, kind: str, level: int) -> None:
    battery.check_round_trip(name, battery.PAYLOADS[kind], level=level)


@pytest.mark.parametrize("name", ["gzip", "zlib"])
@pytest.mark.parametrize("level", [0, 1, 6])
def test_noise_and_empty_data_fit_the_bound(name: str, level: int) -> None:
    for data in (b"", *(battery.random.Random(n).randbytes(n) for n in (63, 16_383, 65_536, 200_001))):
        battery.check_round_trip(name, data, level=level)


@pytest.mark.parametrize("name", ["gzip", "zlib"])
@pytest.mark.parametrize("level", [-2, -1, 10])
def test_level_out_of_range_is_refused(name: str, level: int) -> None:
    with pytest.raises((ValueError, SystemError)):
        native.codec_encode(name, TEXT, level=level)


@pytest.mark.parametrize("level", [1, 2, 3, 6, 9])
def test_equal_levels_give_files_of_about_equal_size(level: int) -> None:
    """With zlib-ng's own level 1 the data would be 29 % larger."""
    data = battery.field(32_768)
    assert len(native.codec_encode("zlib", data, level=level)) <= 1.08 * len(zlib.compress(data, level))


@pytest.mark.parametrize("name", ["gzip", "zlib"])
def test_truncation_at_every_byte_is_refused(name: str) -> None:
    # a gzip file without members is valid and empty
    stream = native.codec_encode(name, TEXT * 20)
    battery.check_every_cut_is_refused(name, stream, len(TEXT) * 20, start=name == "gzip")


@pytest.mark.parametrize("name", ["gzip", "zlib"])
@pytest.mark.parametrize("kind", ["text", "field", "ramp"])
def test_mutated_streams_do_not_crash(name: str, kind: str) -> None:
    data = battery.PAYLOADS[kind][:4000]
    battery.check_survives_mutations(name, native.codec_encode(name, data, level=6), len(data))


@pytest.mark.parametrize("name", ["gzip", "zlib"])
@pytest.mark.parametrize("stream", [b"(0, 1)", raw_deflate(TEXT), b"\x1f\x8b", b"\x78"])
def test_other_bytes_are_refused(name: str, stream: bytes) -> None:
    battery.refuses(name, stream)


# ---------------------------------------------------------------- gzip


@pytest.mark.parametrize("kind", battery.PAYLOADS)
def test_python_and_numcodecs_read_gzip(kind: str) -> None:
    data = battery.PAYLOADS[kind]
    ours = native.codec_encode("gzip", data, level=5)
    assert gzip.decompress(ours) == data
    assert numcodecs.GZip().decode(ours) == data
    for stream in (gzip.compress(data, 9), numcodecs.GZip(1).encode(data)):
        assert native.codec_decode("gzip", stream, len(data)) == data


def test_gzip_header_has_no_time() -> None:
    assert native.codec_encode("gzip", TEXT)[4:8] == bytes(4)


@given(st.lists(st.tuples(st.binary(max_size=100), st.integers(0, 9)), min_size=1, max_size=5))
def test_members_and_padding_are_read(parts: list[tuple[bytes, int]]) -> None:
    stream = b"".join(member(data) + bytes(padding) for data, padding in parts)
    content = b"".join(data for data, _ in parts)
    assert gzip.decompress(stream) == content
    assert native.codec_decode("gzip", stream, len(content)) == content


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (FNAME, b"chunk\0"),
        (FCOMMENT, b"a comment\0"),
        (FEXTRA, b"\x03\x00abc"),
        (FHCRC, b""),
        (FEXTRA | FNAME | FCOMMENT | FHCRC, b"\x03\x00abcchunk\0a comment\0"),
    ],
)
def test_optional_header_fields_are_skipped(flags: int, fields: bytes) -> None:
    assert native.codec_decode("gzip", member(TEXT, flags, fields), len(TEXT)) == TEXT


@pytest.mark.parametrize(
    "stream",
    [
        member(TEXT, crc=zlib.crc32(TEXT) ^ 1),
        member(TEXT, length=len(TEXT) + 1),
        member(TEXT) + member(TEXT, crc=0),
        member(TEXT) + b"x",
        member(TEXT) + bytes(3) + b"x",
        b"\0" + member(TEXT),
        member(TEXT, RESERVED),
        member(TEXT, FNAME, b"without end"),
        zlib.compress(TEXT),
    ],
    ids=["checksum", "length", "second checksum", "garbage", "garbage after padding", "padding before",
         "reserved flag", "endless name", "zlib"],
)  # fmt: skip
def test_malformed_gzip_is_refused(stream: bytes) -> None:
    battery.refuses("gzip", stream)


@pytest.mark.parametrize("flags", [FEXTRA, FEXTRA | FHCRC, FEXTRA | FNAME])
@pytest.mark.parametrize("n_more", [0, 1, 2, 3, 65_532])
def test_extra_field_that_ends_behind_its_input_is_refused(flags: int, n_more: int) -> None:
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\0\xff"
    stream = head + (3 + n_more).to_bytes(2, "little") + b"abc"
    battery.refuses("gzip", stream, match="cut" if n_more else None)


def test_match_before_the_start_of_a_member_is_refused() -> None:
    """A match of length 3 at distance 1: the output has bytes of the member before, but none of this member."""
    reaching = b"\x1f\x8b\x08\0" + bytes(4) + b"\0\xff" + b"\x03\x02\x00"
    trailer = zlib.crc32(b"ccc").to_bytes(4, "little") + (3).to_bytes(4, "little")
    battery.refuses("gzip", member(b"abc") + reaching + trailer, match="beyond the start")


def test_wrong_header_checksum_is_refused() -> None:
    stream = bytearray(member(TEXT, FHCRC))
    stream[4] ^= 1
    battery.refuses("gzip", bytes(stream))


# ---------------------------------------------------------------- zlib


@pytest.mark.parametrize("kind", battery.PAYLOADS)
def test_python_and_numcodecs_read_zlib(kind: str) -> None:
    data = battery.PAYLOADS[kind]
    ours = native.codec_encode("zlib", data, level=5)
    assert zlib.decompress(ours) == data
    assert numcodecs.Zlib().decode(ours) == data
    assert native.codec_decode("zlib", numcodecs.Zlib(1).encode(data), len(data)) == data


@pytest.mark.parametrize("wbits", range(9, 16))
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED])
def test_every_window_and_strategy_is_read(wbits: int, strategy: int) -> None:
    data = battery.field(20_000)
    c = zlib.compressobj(6, wbits=wbits, strategy=strategy)
    assert native.codec_decode("zlib", c.compress(data) + c.flush(), len(data)) == data


def test_preset_dictionary_is_refused() -> None:
    c = zlib.compressobj(6, zdict=b"(0, 1)")
    battery.refuses("zlib", c.compress(TEXT) + c.flush(), match="dictionary")


@pytest.mark.parametrize("behind", [b"\0", b"x", zlib.compress(TEXT)])
def test_bytes_after_a_zlib_stream_are_refused(behind: bytes) -> None:
    battery.refuses("zlib", zlib.compress(TEXT) + behind, match="behind")


def test_wrong_adler_checksum_is_refused() -> None:
    stream = bytearray(zlib.compress(TEXT))
    stream[-1] ^= 1
    battery.refuses("zlib", bytes(stream))
