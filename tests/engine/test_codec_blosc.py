# test_codec_blosc.py - the codec "blosc": containers of Blosc1, read and written by our own code
# SPDX-License-Identifier: MIT
"""Both directions compared with C-Blosc (through numcodecs), and headers that no Blosc1 encoder writes."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

import codec_battery as battery
import numcodecs.blosc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairs import pairs

from shardcodec import _native as native

COMPRESSORS = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]
SHUFFLES = ["noshuffle", "shuffle", "bitshuffle"]
TYPESIZES = [1, 2, 3, 4, 7, 8, 12, 16, 17, 255]
SIZES = [1, 7, 127, 128, 129, 255, 1000, 4095, 6151, 32_769, 70_001]
HEADER = struct.Struct("<BBBBIII")
STORED, UNKNOWN, NO_SPLIT = 0x02, 0x08, 0x10

DATA = {
    "walk": np.random.default_rng(3).integers(-3, 4, 40_000).cumsum().astype("<i2").tobytes(),
    "ramp": (np.arange(20_000, dtype="<u4") * 3).tobytes(),
    "noise": np.random.default_rng(4).bytes(80_000),
}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate context for each call, as zarr does; with threads, C-Blosc would order blocks by chance."""
    monkeypatch.setattr(numcodecs.blosc, "use_threads", False)


def c_blosc(compressor: str, shuffle: str, typesize: int, level: int, blocksize: int = 0) -> numcodecs.Blosc:
    return numcodecs.Blosc(compressor, level, SHUFFLES.index(shuffle), blocksize, typesize=typesize)


def container(flags: int, typesize: int, nbytes: int, blocksize: int, body: bytes, version: int = 2) -> bytes:
    return HEADER.pack(version, 1, flags, typesize, nbytes, blocksize, HEADER.size + len(body)) + body


def with_blocks(flags: int, typesize: int, nbytes: int, blocksize: int, blocks: list[list[bytes]]) -> bytes:
    """Return a container of blocks, each a list of encoded parts."""
    bodies = [b"".join(len(part).to_bytes(4, "little") + part for part in parts) for parts in blocks]
    at = HEADER.size + 4 * len(blocks)
    starts = [at + sum(map(len, bodies[:i])) for i in range(len(blocks))]
    return container(
        flags, typesize, nbytes, blocksize, struct.pack(f"<{len(starts)}I", *starts) + b"".join(bodies)
    )


def patched(stream: bytes, **fields: int) -> bytes:
    """Return the container with changed fields in its header."""
    names = ["version", "lz_version", "flags", "typesize", "nbytes", "blocksize", "cbytes"]
    values = dict(zip(names, HEADER.unpack_from(stream), strict=True)) | fields
    return HEADER.pack(*values.values()) + stream[HEADER.size :]


# ---------------------------------------------------------------- C-Blosc, both directions


def check_both_directions(
    data: bytes, compressor: str, shuffle: str, typesize: int, level: int, blocksize: int
) -> None:
    theirs = c_blosc(compressor, shuffle, typesize, level, blocksize)
    stream = theirs.encode(data)
    assert native.codec_decode("blosc", stream, len(data)) == data
    ours = native.codec_encode(
        "blosc",
        data,
        level=level,
        compressor=compressor,
        shuffle=shuffle,
        typesize=typesize,
        blocksize=blocksize,
    )
    assert theirs.decode(ours) == data
    assert native.codec_decode("blosc", ours, len(data)) == data
    # Block size, splits and flags equal C-Blosc's. The version of the compressor decides if a chunk is stored raw.
    assert ours[2] | STORED == stream[2] | STORED
    assert ours[3:12] == stream[3:12]


@pairs("typesize, compressor, shuffle", TYPESIZES, COMPRESSORS, SHUFFLES)
def test_c_blosc_agrees(compressor: str, shuffle: str, typesize: int) -> None:
    for level, blocksize in [(1, 0), (5, 0), (9, 0), (0, 0), (4, 200), (3, 4096)]:
        # the highest level of zstd is slow
        sizes = SIZES[:8] if compressor == "zstd" and level == 9 else SIZES
        for data, n in itertools.product(DATA.values(), sizes):
            check_both_directions(data[:n], compressor, shuffle, typesize, level, blocksize)


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in (1, 2, 3))])
def test_c_blosc_agrees_on_chunks_of_many_blocks(compressor: str, shuffle: str, turn: int) -> None:
    """Each level meets each size of elements: with one compressor or shuffle by day, with all at night."""
    data, typesizes = battery.field(550_001) + b"x", (1, 2, 8, 32)
    turn += COMPRESSORS.index(compressor) + SHUFFLES.index(shuffle)
    for number, level in enumerate((1, 3, 5, 6, 8)):
        check_both_directions(data, compressor, shuffle, typesizes[(turn + number) % 4], level, 0)


@pytest.mark.parametrize("distance", [1, 2, 255, 256, 257, 8190, 8191, 8192, 8193, 73_726, 73_727, 73_728])
def test_blosclz_matches_of_all_distances_and_lengths_are_decoded(distance: int) -> None:
    """The encoder is that of C-Blosc2, or our own in a build with the libraries of the system."""
    noise = np.random.default_rng(distance).bytes(distance + 40)
    for n in (3, 4, 5, 6, 8, 9, 10, 263, 264, 265, 519, 2000):
        repeated = (noise[:distance] * (n // distance + 2))[: distance + n]
        for end in range(0, 40, 13):
            data = repeated + noise[distance : distance + end]
            check_both_directions(data, "blosclz", "noshuffle", 1, 9, 1 << 18)
    ours = native.codec_encode("blosc", b"abcdefgh" * 2000, compressor="blosclz", typesize=1, level=9)
    assert len(ours) < 200


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kind", battery.PAYLOADS)
def test_round_trip_keeps_data(compressor: str, kind: str) -> None:
    for shuffle in SHUFFLES:
        battery.check_round_trip(
            "blosc", battery.PAYLOADS[kind], level=5, compressor=compressor, shuffle=shuffle, typesize=2
        )


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_empty_chunk_is_only_a_header(shuffle: str) -> None:
    ours = native.codec_encode("blosc", b"", compressor="lz4", shuffle=shuffle, typesize=4, level=5)
    assert ours == c_blosc("lz4", shuffle, 4, 5).encode(b"")
    assert native.codec_decode("blosc", ours, 0) == b""


def test_bytes_after_the_last_element_survive_bitshuffle() -> None:
    """C-Blosc2's decoder loses them if the number of elements is a multiple of 8."""
    data = DATA["walk"][: 8 * 100 * 3 + 2]
    stream = c_blosc("lz4", "bitshuffle", 3, 5).encode(data)
    assert not stream[2] & STORED
    assert native.codec_decode("blosc", stream, len(data)) == data


@pytest.mark.parametrize("params", [{"level": 10}, {"level": -1}, {"typesize": 0}, {"typesize": 256}])
def test_parameters_out_of_range_are_refused(params: dict[str, int]) -> None:
    with pytest.raises((ValueError, SystemError)):
        native.codec_encode("blosc", b"abc", **params)


# ---------------------------------------------------------------- unusual but valid


def test_blocks_may_be_in_any_order() -> None:
    """C-Blosc's threads write blocks in the order in which they finish."""
    stream = with_blocks(NO_SPLIT | 1 << 5, 1, 6, 2, [[b"ab"], [b"cd"], [b"ef"]])
    starts = struct.unpack_from("<3I", stream, HEADER.size)
    swapped = bytearray(stream)
    struct.pack_into("<3I", swapped, HEADER.size, starts[2], starts[0], starts[1])
    assert native.codec_decode("blosc", stream, 6) == b"abcdef"
    assert native.codec_decode("blosc", bytes(swapped), 6) == b"efabcd"


def test_large_elements_are_not_split_without_the_flag() -> None:
    """Such containers are older than the flag that forbids splitting."""
    data = DATA["ramp"]
    stream = c_blosc("lz4", "shuffle", 17, 5).encode(data)
    assert stream[2] & NO_SPLIT
    assert native.codec_decode("blosc", patched(stream, flags=stream[2] & ~NO_SPLIT), len(data)) == data


def test_stored_chunk_is_not_shuffled_for_any_flags() -> None:
    for compressor in range(8):
        assert (
            native.codec_decode("blosc", container(STORED | 1 | compressor << 5, 2, 4, 4, b"abcd"), 4)
            == b"abcd"
        )


# ---------------------------------------------------------------- malformed

GOOD = with_blocks(NO_SPLIT | 1 << 5, 2, 300, 200, [[b"ab" * 100], [b"cd" * 50]])


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"", "header"),
        (GOOD[:15], "header"),
        (patched(GOOD, version=0), "format"),
        (patched(GOOD, version=1), "format"),
        (patched(GOOD, version=5), "Blosc2"),
        (patched(GOOD, lz_version=2), "compressor"),
        (patched(GOOD, flags=GOOD[2] | UNKNOWN), "flags"),
        (patched(GOOD, flags=GOOD[2] | 5), "flags"),
        (patched(GOOD, flags=NO_SPLIT | 2 << 5), "snappy"),
        (patched(GOOD, flags=NO_SPLIT | 5 << 5), "compressor"),
        (patched(GOOD, flags=GOOD[2] | STORED), "stored"),
        (patched(GOOD, typesize=0), "typesize"),
        (patched(GOOD, cbytes=len(GOOD) - 1), "as long"),
        (patched(GOOD, cbytes=len(GOOD) + 1), "as long"),
        (GOOD + b"\0", "as long"),
        (GOOD[:-1], "as long"),
        (patched(GOOD, nbytes=2**31 - 16), "size"),
        (patched(GOOD, nbytes=2**32 - 1), "size"),
        (patched(GOOD, blocksize=0), "block size"),
        (patched(GOOD, blocksize=301), "block size"),
        (patched(GOOD, blocksize=2**32 - 1), "block size"),
        (patched(GOOD, blocksize=1), "too short"),
        (with_blocks(1 << 5, 2, 401, 401, [[bytes(200), bytes(200)]]), "multiple"),
        (with_blocks(NO_SPLIT | 1 << 5, 2, 300, 300, [[bytes(301)]]), "larger"),
        (with_blocks(NO_SPLIT | 1 << 5, 2, 300, 300, [[bytes(299)]]), "block"),
        (with_blocks(NO_SPLIT | 4 << 5, 2, 300, 300, [[b""]]), "frame"),
    ],
)
def test_malformed_containers_are_refused(stream: bytes, why: str) -> None:
    battery.refuses("blosc", stream, match=why)


@pytest.mark.parametrize("start", [0, 15, 20, 23, len(GOOD) - 3, len(GOOD), len(GOOD) + 1, 2**31, 2**32 - 1])
def test_block_outside_the_container_is_refused(start: int) -> None:
    stream = bytearray(GOOD)
    struct.pack_into("<I", stream, HEADER.size, start)
    battery.refuses("blosc", bytes(stream), match="block")


@pytest.mark.parametrize("size", [101, 201, 2**31, 2**32 - 1])
def test_part_larger_than_its_content_is_refused(size: int) -> None:
    stream = bytearray(GOOD)
    struct.pack_into("<I", stream, len(GOOD) - 104, size)
    battery.refuses("blosc", bytes(stream), match="larger")


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_truncation_at_every_byte_is_refused(compressor: str, shuffle: str) -> None:
    data = battery.PAYLOADS["runs"][:900]
    stream = c_blosc(compressor, shuffle, 4, 5).encode(data)
    assert not stream[2] & STORED
    battery.check_every_cut_is_refused("blosc", stream, len(data))
    for n in range(HEADER.size, len(stream)):
        # the same with the true size in the header, so that the blocks are checked too
        battery.refuses("blosc", patched(stream[:n], cbytes=n), len(data))


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_mutated_containers_do_not_crash(compressor: str, shuffle: str) -> None:
    data = battery.PAYLOADS["runs"][:3600]
    stream = c_blosc(compressor, shuffle, 4, 5, 1024).encode(data)
    battery.check_survives_mutations("blosc", stream, len(data), 1000)
    honest = (
        patched(damaged, cbytes=len(damaged))
        for damaged in battery.mutations(stream, 1500)
        if len(damaged) >= 16
    )
    assert sum(battery.outcome("blosc", damaged, len(data)) is None for damaged in honest) > 200


# ---------------------------------------------------------------- blosclz, decoded by our own code


def blosclz(stream: bytes, nbytes: int) -> bytes:
    return with_blocks(NO_SPLIT, 1, nbytes, nbytes, [[stream]])


def match(distance: int, length: int) -> bytes:
    """Return the control bytes of a match of 3 bytes or more."""
    far = distance >= 8192
    high, low = (31, 255) if far else divmod(distance - 1, 256)
    extension = b"" if length < 9 else b"\xff" * ((length - 9) // 255) + bytes([(length - 9) % 255])
    tail = (distance - 8192).to_bytes(2, "big") if far else b""
    return bytes([min(length - 2, 7) << 5 | high]) + extension + bytes([low]) + tail


def literals(data: bytes) -> bytes:
    return b"".join(bytes([len(data[i : i + 32]) - 1]) + data[i : i + 32] for i in range(0, len(data), 32))


@given(
    st.binary(min_size=1, max_size=100),
    st.lists(
        st.tuples(
            st.integers(1, 80_000),
            st.one_of(st.integers(3, 40), st.integers(41, 3000)),
            st.binary(max_size=70),
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_blosclz_equals_a_simple_decoder(first: bytes, steps: list[tuple[int, int, bytes]]) -> None:
    out, stream = bytearray(first), bytearray(literals(first))
    for distance, length, data in steps:
        distance = min(distance, len(out), 8192 + 65_535)
        for _ in range(length):
            out.append(out[-distance])
        out += data
        stream += match(distance, length) + literals(data)
    if len(stream) < len(out):  # a container may not hold a larger stream
        assert native.codec_decode("blosc", blosclz(bytes(stream), len(out)), len(out)) == bytes(out)


@pytest.mark.parametrize("distance", [8191, 8192, 8193, 8447, 70_000, 8192 + 65_535])
def test_blosclz_far_matches_are_decoded(distance: int) -> None:
    data = DATA["noise"][:distance]
    stream = (
        literals(data) + match(distance, 20_000)
        if distance > 20_000
        else literals(data) + match(distance, 5000)
    )
    expected = data + (data * 4)[: 20_000 if distance > 20_000 else 5000]
    assert native.codec_decode("blosc", blosclz(stream, len(expected)), len(expected)) == expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda s: s[:-1],
        lambda s: s + b"\x00",
        lambda s: s + b"\x00x",
        lambda _: b"\x00a" + match(2, 299),
        lambda _: b"\x00a" + match(1, 300),
        lambda _: b"\x00a" + match(1, 298),
        lambda _: b"\x00a\xe0" + b"\xff" * 200,
        lambda _: b"\x00a" + match(9000, 299),
        lambda _: b"\x1fabc",
    ],
    ids=["empty", "cut", "extra control byte", "extra byte", "before the start", "too long", "too short",
         "endless length", "far before the start", "literals cut"],
)  # fmt: skip
def test_malformed_blosclz_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    good = b"\x00a" + match(1, 299)
    assert native.codec_decode("blosc", blosclz(good, 300), 300) == b"a" * 300
    battery.refuses("blosc", blosclz(spoil(good), 300), match="blosclz")
