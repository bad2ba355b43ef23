# test_codec_zstd.py - the codec "zstd": frames of every valid kind are read, one kind is written
# SPDX-License-Identifier: MIT
"""Frames that numcodecs does not write are built by hand (RFC 8878)."""

from __future__ import annotations

import codec_battery as battery
import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import _native as native

MAGIC = bytes.fromhex("28b52ffd")
WINDOW_1K = b"\x00"


def block(data: bytes, *, last: bool) -> bytes:
    """Return a raw block."""
    return (len(data) << 3 | last).to_bytes(3, "little") + data


def frame_without_size(*parts: bytes) -> bytes:
    """Return a frame of a streaming writer, which does not store the decoded size."""
    blocks = [block(part, last=part is parts[-1]) for part in parts]
    return MAGIC + b"\x00" + WINDOW_1K + b"".join(blocks)


def frame_with_size(data: bytes, claimed: int | None = None) -> bytes:
    """Return a frame of one segment and one raw block, with the content size in one byte."""
    size = len(data) if claimed is None else claimed
    return MAGIC + b"\x20" + bytes([size]) + block(data, last=True)


def skippable_frame(data: bytes) -> bytes:
    return bytes.fromhex("5a2a4d18") + len(data).to_bytes(4, "little") + data


def content_size(frame: bytes) -> int | None:
    """Return the content size in the header of a frame."""
    descriptor = frame[4]
    is_single = bool(descriptor & 0x20)
    width = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0:
        return None
    return int.from_bytes(frame[start : start + width], "little") + (256 if width == 2 else 0)


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("kind", battery.PAYLOADS)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("level", [-50, -1, 0, 1, 3, 9, 22])
def test_round_trip_keeps_data(kind: str, level: int, checksum: bool) -> None:
    battery.check_round_trip("zstd", battery.PAYLOADS[kind], level=level, checksum=checksum)


@pytest.mark.parametrize("n", [0, 1, 255, 256, 65_535, 65_791, 65_792, 300_000])
def test_written_frame_has_its_content_size(n: int) -> None:
    frame = native.codec_encode("zstd", bytes(n), level=1)
    assert frame[:4] == MAGIC
    assert content_size(frame) == n


@pytest.mark.parametrize("checksum", [False, True])
def test_checksum_is_written_only_on_request(checksum: bool) -> None:
    plain, frame = (native.codec_encode("zstd", b"abc", checksum=flag) for flag in (False, checksum))
    assert bool(frame[4] & 4) == checksum
    assert len(frame) == len(plain) + 4 * checksum


def test_level_0_is_the_default_level_3() -> None:
    data = battery.field(4000)
    assert native.codec_encode("zstd", data, level=0) == native.codec_encode("zstd", data, level=3)


def test_parameters_of_one_call_do_not_affect_the_next() -> None:
    data = battery.field(4000)
    first = native.codec_encode("zstd", data, level=1)
    native.codec_encode("zstd", data, level=9, checksum=True)
    assert native.codec_encode("zstd", data, level=1) == first


# ---------------------------------------------------------------- reading


def test_frames_without_a_size_are_read() -> None:
    assert native.codec_decode("zstd", frame_without_size(b"(0, 1) ", b"(1, 0)"), 13) == b"(0, 1) (1, 0)"


def test_block_of_one_repeated_byte_is_read() -> None:
    assert (
        native.codec_decode(
            "zstd", MAGIC + b"\x20\x07" + (7 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"z", 7
        )
        == b"z" * 7
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["size", "no size", "skippable", "zstd"]), st.binary(max_size=200)),
        min_size=1,
    )
)
def test_several_frames_are_read(parts: list[tuple[str, bytes]]) -> None:
    write = {
        "size": frame_with_size,
        "no size": frame_without_size,
        "skippable": skippable_frame,
        "zstd": lambda data: native.codec_encode("zstd", data, checksum=True),
    }
    stream = b"".join(write[kind](data) for kind, data in parts)
    content = b"".join(data for kind, data in parts if kind != "skippable")
    assert native.codec_decode("zstd", stream, len(content)) == content


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"(0, 1)",
        MAGIC,
        frame_with_size(b"abc", claimed=4),
        frame_with_size(b"abc", claimed=2),
        frame_with_size(b"abc")[:-1],
        frame_with_size(b"abc") + b"\x00",
        skippable_frame(b"abc")[:-1],
        MAGIC + b"\x28\x03" + block(b"abc", last=True),
        MAGIC + b"\x20\x03" + block(b"abc", last=False),
        MAGIC + b"\x20\x03" + (3 << 3 | 3 << 1 | 1).to_bytes(3, "little") + b"abc",
        MAGIC + b"\x21\x01\x03" + block(b"abc", last=True),
    ],
    ids=["empty", "text", "magic", "too little", "too much", "cut", "extra byte", "cut skippable",
         "reserved bit", "no last block", "reserved block", "dictionary"],
)  # fmt: skip
def test_malformed_streams_are_refused(stream: bytes) -> None:
    battery.refuses("zstd", stream)


def test_wrong_checksum_is_refused() -> None:
    frame = bytearray(native.codec_encode("zstd", b"(0, 1)", checksum=True))
    frame[-1] ^= 1
    battery.refuses("zstd", bytes(frame), match="checksum")


def test_giant_size_or_window_takes_no_memory() -> None:
    battery.refuses("zstd", MAGIC + b"\xe0" + (2**62).to_bytes(8, "little") + block(b"abc", last=True))
    widest = MAGIC + b"\x00" + b"\xff" + block(b"abc", last=True)
    assert battery.outcome("zstd", widest, 3) in (None, b"abc")


def test_truncation_at_every_byte_is_refused() -> None:
    battery.check_every_cut_is_refused(
        "zstd", native.codec_encode("zstd", b"(0, 1) " * 40, checksum=True), 280
    )


@pytest.mark.parametrize("kind", ["text", "field", "ramp"])
@pytest.mark.parametrize("level", [1, 19])
def test_mutated_streams_do_not_crash(kind: str, level: int) -> None:
    data = battery.PAYLOADS[kind][:4000]
    stream = native.codec_encode("zstd", data, level=level, checksum=level == 1)
    battery.check_survives_mutations("zstd", stream, len(data))


# ---------------------------------------------------------------- numcodecs


@pytest.mark.parametrize("kind", battery.PAYLOADS)
@pytest.mark.parametrize(("level", "checksum"), [(0, False), (1, True), (-7, False), (15, False)])
def test_numcodecs_agrees(kind: str, level: int, checksum: bool) -> None:
    data, theirs = battery.PAYLOADS[kind], numcodecs.Zstd(level, checksum)
    ours = native.codec_encode("zstd", data, level=level, checksum=checksum)
    assert theirs.decode(ours) == data
    stream = theirs.encode(data)
    assert native.codec_decode("zstd", stream, len(data)) == data
    assert content_size(ours) == content_size(stream)


def test_tiny_chunk_does_not_depend_on_earlier_chunks() -> None:
    """The content of a chunk selects the search method, and the context keeps the last choice."""
    rng = np.random.default_rng(8)
    repeating = np.repeat(rng.integers(0, 200, 64, dtype="u1"), 8).tobytes()
    chance = rng.poisson(20, 512).astype("u1").tobytes()
    alone = {data: native.codec_encode("zstd", data, level=1) for data in (repeating, chance)}
    for data in (repeating, chance, chance, repeating, repeating[:300], chance, repeating):
        written = native.codec_encode("zstd", data, level=1)
        assert written == alone.get(data, written)
        assert numcodecs.Zstd(1).decode(written) == data
    assert len(alone[chance]) < 0.75 * len(chance), (
        "literals must be compressed although no matches are searched"
    )


@pytest.mark.parametrize("nbytes", [256, 512, 1000])
def test_every_period_of_a_tiny_chunk_is_found(nbytes: int) -> None:
    """The check for repetition once tested half of the distances: chunks with a period of 101 bytes got no matches."""
    rng = np.random.default_rng(101)
    for period in range(1, nbytes // 2):
        once = rng.integers(0, 256, period, dtype="u1").tobytes()
        data = (once * nbytes)[:nbytes]
        ours = len(native.codec_encode("zstd", data, level=1))
        assert ours <= len(numcodecs.Zstd(1).encode(data)) + 16, period


@pytest.mark.parametrize("nbytes", [1, 11, 12, 13, 64, 127, 128, 1023, 1024, 1025])
def test_tiny_chunks_at_level_1_are_read_by_numcodecs(nbytes: int) -> None:
    """They are searched for longer matches than zstd's level 1; one context is used for both kinds in turn."""
    for kind in battery.PAYLOADS:
        data = (battery.PAYLOADS[kind] * 40)[:nbytes]
        ours = native.codec_encode("zstd", data, level=1, checksum=False)
        assert numcodecs.Zstd(1).decode(ours) == data
        assert native.codec_decode("zstd", ours, len(data)) == data
        if nbytes > 1024:
            assert ours == numcodecs.Zstd(1).encode(data)
