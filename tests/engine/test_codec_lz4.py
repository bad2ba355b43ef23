# test_codec_lz4.py - the codec "lz4" of numcodecs: a size and one raw block
# SPDX-License-Identifier: MIT
"""The block stores neither its size nor a checksum, so only the size in front of it can be checked."""

from __future__ import annotations

import codec_battery as battery
import numcodecs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import _native as native


def framed(n: int, block: bytes) -> bytes:
    return n.to_bytes(4, "little") + block


def literals(data: bytes) -> bytes:
    """Return a block of up to 14 literals."""
    return bytes([len(data) << 4]) + data


@pytest.mark.parametrize("kind", battery.PAYLOADS)
@pytest.mark.parametrize("acceleration", [-1, 0, 1, 7, 65_537, 2**31 - 1])
def test_round_trip_keeps_data(kind: str, acceleration: int) -> None:
    data = battery.PAYLOADS[kind]
    stream = battery.check_round_trip("lz4", data, level=acceleration)
    assert int.from_bytes(stream[:4], "little") == len(data)


@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 65_535, 65_546, 65_547, 200_000])
def test_noise_of_any_size_fits_its_bound(n: int) -> None:
    battery.check_round_trip("lz4", battery.random.Random(n).randbytes(n))


def test_acceleration_increases_the_size() -> None:
    data = battery.field(30_000, noise=0)
    assert len(native.codec_encode("lz4", data, level=1)) < len(native.codec_encode("lz4", data, level=500))


def test_one_call_does_not_change_the_next() -> None:
    small, large = battery.field(400), battery.field(50_000)
    first = [native.codec_encode("lz4", data) for data in (small, large)]
    assert [native.codec_encode("lz4", data) for data in (small, large)] == first


@given(st.binary(max_size=14))
def test_block_made_by_hand_is_decoded(data: bytes) -> None:
    assert native.codec_decode("lz4", framed(len(data), literals(data)), len(data)) == data


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        framed(3, b""),
        framed(4, literals(b"abc")),
        framed(2, literals(b"abc")),
        framed(3, literals(b"abc")[:-1]),
        framed(3, literals(b"abc") + b"\0"),
        framed(0x7E000001, literals(b"abc")),
        framed(2**32 - 1, literals(b"abc")),
        framed(12, b"\x10a\x02\x00" + literals(b"bcdef")),
        framed(12, b"\x10a\x00\x00" + literals(b"bcdef")),
    ],
    ids=["empty", "no block", "too little", "too much", "cut", "extra byte", "beyond lz4", "negative",
         "match before the start", "distance 0"],
)  # fmt: skip
def test_malformed_streams_are_refused(stream: bytes) -> None:
    battery.refuses("lz4", stream)


def test_truncation_at_every_byte_is_refused() -> None:
    data = b"(0, 1) (1, 0) " * 20
    battery.check_every_cut_is_refused("lz4", native.codec_encode("lz4", data), len(data))


@pytest.mark.parametrize("kind", ["text", "field", "ramp"])
def test_mutated_streams_do_not_crash(kind: str) -> None:
    data = battery.PAYLOADS[kind][:4000]
    battery.check_survives_mutations("lz4", native.codec_encode("lz4", data), len(data))


@pytest.mark.parametrize("kind", battery.PAYLOADS)
@pytest.mark.parametrize("acceleration", [1, 20])
def test_numcodecs_agrees(kind: str, acceleration: int) -> None:
    data, theirs = battery.PAYLOADS[kind], numcodecs.LZ4(acceleration)
    assert theirs.decode(native.codec_encode("lz4", data, level=acceleration)) == data
    assert native.codec_decode("lz4", theirs.encode(data), len(data)) == data
