# test_inflate.py - our deflate decoder compared with Python's zlib
# SPDX-License-Identifier: MIT
"""The engine accepts the streams that zlib accepts, with the same result, and refuses those that zlib refuses.

Raw deflate streams are put into a zlib wrapping with the checksum of zlib's own result. So a damaged stream is refused
for its damage and not for its checksum.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator

import codec_battery as battery
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcodec import _native as native

HEADER = b"\x78\x9c"
STRATEGIES = {
    "default": zlib.Z_DEFAULT_STRATEGY,
    "filtered": zlib.Z_FILTERED,
    "huffman": zlib.Z_HUFFMAN_ONLY,
    "rle": zlib.Z_RLE,
    "fixed": zlib.Z_FIXED,
}
FLUSHES = [zlib.Z_FULL_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK]
ROOM = 1 << 17
SKEWED = random.Random(3)
PAYLOADS = battery.PAYLOADS | {
    "nothing": b"",
    "longest match": bytes(258 * 3),
    "far": battery.PAYLOADS["noise"] + bytes(29_767) + battery.PAYLOADS["noise"],
    "long codes": bytes(min(int(SKEWED.expovariate(0.08)), 255) for _ in range(40_000)),
    # Longer than the part in which two symbols are decoded at once: short matches, single literals, pairs of literals.
    "short matches": (np.sin(np.arange(20_000) / 300) * 900 + 1000).astype("<u2").tobytes()
    + bytes(SKEWED.choice(b"abcd") if SKEWED.random() < 0.9 else SKEWED.randrange(256) for _ in range(20_000)),
    "fibonacci": b"".join(bytes([i]) * n for i, n in enumerate(
        (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765)
    )),
}  # fmt: skip


def deflate(data: bytes, level: int = 6, wbits: int = 15, strategy: int = 0) -> bytes:
    c = zlib.compressobj(level, wbits=-wbits, strategy=strategy)
    return c.compress(data) + c.flush()


def zlib_content(stream: bytes) -> bytes | None:
    """Return zlib's result for a complete raw stream, or None if zlib refuses it."""
    d = zlib.decompressobj(-15)
    try:
        content = d.decompress(stream)
    except zlib.error:
        return None
    return content if d.eof and not d.unused_data else None


def wrapped(stream: bytes, content: bytes | None) -> bytes:
    return HEADER + stream + zlib.adler32(content or b"").to_bytes(4, "big")


def check_same(stream: bytes, room: int = ROOM) -> bool:
    """Check that our result equals zlib's; return True if both accept the stream."""
    content = zlib_content(stream)
    if content is not None and len(content) > room:
        content = None
    assert battery.outcome("zlib", wrapped(stream, content), room) == content
    return content is not None


class Bits:
    """A stream written by hand: numbers with the lowest bit first, codes with the first bit first."""

    def __init__(self) -> None:
        self.bits: list[int] = []

    def number(self, value: int, n: int) -> Bits:
        self.bits += [value >> i & 1 for i in range(n)]
        return self

    def code(self, text: str) -> Bits:
        self.bits += [int(bit) for bit in text]
        return self

    def fixed(self, symbol: int) -> Bits:
        """Append a literal or length in the fixed code."""
        if symbol < 144:
            return self.code(f"{0x30 + symbol:08b}")
        if symbol < 256:
            return self.code(f"{0x190 + symbol - 144:09b}")
        if symbol < 280:
            return self.code(f"{symbol - 256:07b}")
        return self.code(f"{0xC0 + symbol - 280:08b}")

    def to_bytes(self) -> bytes:
        padded = self.bits + [0] * (-len(self.bits) % 8)
        return np.packbits(np.array(padded, "u1"), bitorder="little").tobytes()


def dynamic(litlen: dict[int, int], offsets: dict[int, int], n_litlen: int = 257, n_offset: int = 1) -> Bits:
    """Return the header of a last block with these code lengths, each written with 4 bits."""
    out = Bits().number(1, 1).number(2, 2).number(n_litlen - 257, 5).number(n_offset - 1, 5).number(15, 4)
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        out.number(4 if symbol < 16 else 0, 3)
    for lengths, n in ((litlen, n_litlen), (offsets, n_offset)):
        for symbol in range(n):
            out.code(f"{lengths.get(symbol, 0):04b}")
    return out


# ---------------------------------------------------------------- valid streams


@pytest.mark.parametrize("kind", PAYLOADS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_streams_of_zlib_are_decoded(kind: str, strategy: str, level: int) -> None:
    data = PAYLOADS[kind]
    stream = wrapped(deflate(data, level, strategy=STRATEGIES[strategy]), data)
    for room in (len(data), len(data) + 1, len(data) + 400):
        assert native.codec_decode("zlib", stream, room) == data
    if data:
        battery.refuses("zlib", stream, len(data) - 1, match="more than")


@pytest.mark.parametrize("wbits", range(9, 16))
def test_every_window_size_is_decoded(wbits: int) -> None:
    data = PAYLOADS["far"]
    assert native.codec_decode("zlib", wrapped(deflate(data, 9, wbits), data), len(data)) == data


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(PAYLOADS)), st.integers(0, 6000), st.sampled_from(FLUSHES)),
        max_size=6,
    ),
    st.integers(0, 9),
)
def test_flushed_streams_are_decoded(parts: list[tuple[str, int, int]], level: int) -> None:
    c = zlib.compressobj(level, wbits=-15)
    stream, data = b"", b""
    for kind, n, flush in parts:
        data += PAYLOADS[kind][:n]
        stream += c.compress(PAYLOADS[kind][:n]) + c.flush(flush)
    assert native.codec_decode("zlib", wrapped(stream + c.flush(), data), len(data)) == data


@pytest.mark.parametrize("offset", [*range(1, 34), 258, 300, 32_768])
def test_matches_of_every_length_and_offset_are_decoded(offset: int) -> None:
    """A pattern of `offset` bytes is repeated and cut after every length that a match can have."""
    pattern = random.Random(offset).randbytes(offset)
    for length in range(3, 259):
        data = (pattern * (length // offset + 2))[: offset + length]
        for behind in (b"", bytes(400)):
            content = data + behind
            assert native.codec_decode("zlib", wrapped(deflate(content), content), len(content)) == content
        if offset > 300 and length > 20:
            break


def test_one_stream_does_not_affect_the_next() -> None:
    """Decoding tables are kept between streams: fixed, dynamic and stored blocks follow each other in every order."""
    text = PAYLOADS["text"]
    streams = [
        wrapped(deflate(text, level, strategy=s), text) for level, s in ((6, 4), (6, 0), (0, 0), (6, 2))
    ]
    for first in streams:
        for second in streams:
            assert native.codec_decode("zlib", first, len(text)) == text
            assert native.codec_decode("zlib", second, len(text)) == text


def test_refused_code_does_not_affect_the_next_stream() -> None:
    text = PAYLOADS["text"]
    good = wrapped(deflate(text, strategy=zlib.Z_FIXED), text)
    for bad in (dynamic({256: 1, 0: 1, 1: 1}, {}), dynamic({256: 1, 0: 1}, {0: 2})):
        assert native.codec_decode("zlib", good, len(text)) == text
        battery.refuses("zlib", wrapped(bad.to_bytes(), b""))
        assert native.codec_decode("zlib", good, len(text)) == text


# ---------------------------------------------------------------- limits of the format


@pytest.mark.parametrize(
    ("stream", "accepted"),
    [
        (Bits().number(1, 1).number(1, 2).fixed(256), True),
        (Bits().number(1, 1).number(3, 2).number(0, 40), False),
        (Bits().number(0, 1).number(1, 2).fixed(256), False),
        (Bits().number(1, 1).number(0, 2).number(0, 5).number(0, 16).number(0xFFFF, 16), True),
        (Bits().number(1, 1).number(0, 2).number(0, 5).number(1, 16).number(0xFFFF, 16).number(7, 8), False),
        (Bits().number(1, 1).number(0, 2).number(0, 5).number(2, 16).number(0xFFFD, 16).number(7, 8), False),
        (Bits().number(1, 1).number(1, 2).fixed(65).fixed(257).code("00000").fixed(256), True),
        (Bits().number(1, 1).number(1, 2).fixed(65).fixed(257).code("00001").fixed(256), False),
        (Bits().number(1, 1).number(1, 2).fixed(65).fixed(286).code("00000").fixed(256), False),
        (Bits().number(1, 1).number(1, 2).fixed(65).fixed(287).code("00000").fixed(256), False),
        (Bits().number(1, 1).number(1, 2).fixed(65).fixed(257).code("11110").fixed(256), False),
        (Bits().number(1, 1).number(1, 2).fixed(65).fixed(257).code("11111").fixed(256), False),
        (dynamic({256: 1}, {}).code("0"), True),
        (dynamic({256: 1}, {}).code("1").number(0, 30), False),
        (dynamic({256: 2}, {}).code("00"), False),
        (dynamic({0: 1, 256: 1}, {}).code("01"), True),
        (dynamic({0: 1}, {}).code("0"), False),
        (dynamic({0: 1, 1: 1, 256: 1}, {}).code("01"), False),
        (dynamic({0: 1, 256: 2, 257: 2}, {}, 258).code("011010"), False),
        (dynamic({0: 1, 256: 2, 257: 2}, {0: 1}, 258).code("011010"), True),
        (dynamic({0: 1, 256: 2, 257: 2}, {0: 1}, 258).code("011110"), False),
        (dynamic({0: 1, 256: 2, 257: 2}, {0: 2}, 258).code("0110010"), False),
        (dynamic({0: 1, 256: 2, 257: 2}, {0: 1, 1: 1, 2: 1}, 258, 3).code("010"), False),
        (dynamic({0: 1, 256: 1}, {}, 286, 30).code("01"), True),
        (dynamic({0: 1, 256: 1}, {}, 287).code("01"), False),
        (dynamic({0: 1, 256: 1}, {}, 257, 31).code("01"), False),
        (dynamic({i: min(i + 1, 15) for i in range(15)} | {256: 15}, {}).code("1" * 14 + "0" + "1" * 15), True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("room", [100, ROOM])
def test_handmade_streams_are_accepted_or_refused(stream: Bits, accepted: bool, room: int) -> None:
    assert check_same(stream.to_bytes(), room) == accepted


def test_repeats_of_code_lengths_may_not_overrun() -> None:
    head = Bits().number(1, 1).number(2, 2).number(0, 5).number(0, 5).number(15, 4)
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        head.number({1: 1, 16: 2, 18: 2}.get(symbol, 0), 3)
    zeros = Bits().code("11").number(127, 7).code("11").number(107, 7)  # 138 + 118
    for body, accepted in (
        (Bits().code("000"), True),  # two lengths of 1, then the end of the block
        (Bits().code("010").number(0, 2 + 40), False),  # one length of 1, repeated three more times
        (Bits().code("11").number(0, 7 + 40), False),
    ):
        stream = Bits()
        stream.bits = head.bits + zeros.bits + body.bits
        assert check_same(stream.to_bytes()) == accepted
    # repeats a length that does not exist
    assert not check_same(head.code("10").number(0, 2 + 400).to_bytes())


def complete_code(rng: random.Random, n: int, longest: int = 15) -> list[int]:
    """Return the lengths of a complete code of n symbols: the leaves of a tree that is split at random."""
    leaves = [0]
    while len(leaves) < n:
        at = rng.choice([i for i, depth in enumerate(leaves) if depth < longest])
        leaves[at] += 1
        leaves.append(leaves[at])
    rng.shuffle(leaves)
    return leaves


@pytest.mark.parametrize("seed", range(60))
def test_complete_and_incomplete_codes_are_judged_like_zlib(seed: int) -> None:
    """A changed code length makes a code over- or undersubscribed: both decoders must draw the same line."""
    rng = random.Random(seed)
    n_litlen, n_offset = rng.choice((2, 3, 17, 60, 200, 285)), rng.choice((1, 2, 3, 13, 30))
    symbols = [*rng.sample(range(256), min(n_litlen, 256) - 1), 256]
    symbols += rng.sample(range(257, 286), max(0, n_litlen - 256))
    litlen = dict(zip(symbols, complete_code(rng, len(symbols)), strict=True))
    offsets = dict(enumerate(complete_code(rng, n_offset))) if n_offset > 1 else {0: 1}
    body = [rng.randrange(2) for _ in range(2000)]
    verdicts = []
    for change in (None, 1, -1, 15):
        for code, symbol in ((litlen, rng.choice(symbols)), (offsets, rng.randrange(n_offset))):
            lengths = dict(code)
            if change is not None:
                lengths[symbol] = min(15, max(0, lengths[symbol] + change))
            stream = dynamic(
                lengths if code is litlen else litlen,
                lengths if code is offsets else offsets,
                max(257, max(symbols) + 1),
                n_offset,
            )
            stream.bits += body
            out = stream.to_bytes()
            decoder = zlib.decompressobj(-15)
            try:
                content = decoder.decompress(out)
                end = len(out) - len(decoder.unused_data) if decoder.eof else len(out)
            except zlib.error:
                end = len(out)
            for cut in (end, end - 1, len(out)):
                verdicts.append(check_same(out[:cut]))
            for room in (0, 1, 300) if end < len(out) else ():
                check_same(out[:end], min(room, len(content)))
    assert not all(verdicts)


@pytest.mark.parametrize("n_before", [1, 2, 7, 8, 15, 16, 300, 4000, 32_767])
@pytest.mark.parametrize("n_behind", [0, 400])
def test_offset_before_the_first_byte_is_refused(n_before: int, n_behind: int) -> None:
    """The offset is tested in the slow loop and in the fast one, which runs while both buffers have many bytes left."""
    bases = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097,
             6145, 8193, 12289, 16385, 24577]  # fmt: skip
    for offset, accepted in ((n_before, True), (n_before + 1, False)):
        symbol = max(i for i, base in enumerate(bases) if base <= offset)
        stream = Bits().number(1, 1).number(1, 2)
        for i in range(n_before):
            stream.fixed(i * 7 % 256)
        stream.fixed(257).code(f"{symbol:05b}").number(offset - bases[symbol], max(0, symbol // 2 - 1))
        for _ in range(n_behind):
            stream.fixed(65)
        for room in (n_before + 3 + n_behind, ROOM):
            assert check_same(stream.fixed(256).to_bytes(), room) == accepted
            del stream.bits[-7:]


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 65_535])
def test_stored_block_at_the_end_of_input_or_output_is_decoded(n: int) -> None:
    data = random.Random(n).randbytes(n)
    for n_before in (0, 600):
        before = b"a" * n_before
        stream = Bits()
        if before:
            stream.number(0, 1).number(1, 2)
            for byte in before:
                stream.fixed(byte)
            stream.fixed(256)
        stream.number(1, 1).number(0, 2)
        stream.bits += [0] * (-len(stream.bits) % 8)
        stored = stream.to_bytes() + n.to_bytes(2, "little") + (n ^ 0xFFFF).to_bytes(2, "little") + data
        content = before + data
        assert native.codec_decode("zlib", wrapped(stored, content), len(content)) == content
        assert check_same(stored, len(content))
        if content:
            assert not check_same(stored, len(content) - 1)
        for n_cut in range(1, min(len(stored), 6)):
            assert not check_same(stored[:-n_cut], len(content))


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("kind", ["text", "field", "runs", "fibonacci", "noise"])
@pytest.mark.parametrize("level", [0, 1, 6])
def test_truncation_at_every_byte_is_refused(kind: str, level: int) -> None:
    data = PAYLOADS[kind][-1500:]
    stream = deflate(data, level)
    for n in range(len(stream)):
        battery.refuses("zlib", wrapped(stream[:n], data), len(data) + 400)


def damaged(stream: bytes, count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for _ in range(count):
        out = bytearray(stream)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(rng.choice((len(out), min(len(out), 80))))
            out[at] ^= 1 << rng.randrange(8)
        yield bytes(out)


@pytest.mark.parametrize("kind", ["text", "field", "ramp", "runs", "fibonacci", "long codes"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_streams_with_changed_bits_are_judged_like_zlib(kind: str, strategy: str) -> None:
    data = PAYLOADS[kind][:6000]
    stream = deflate(data, strategy=STRATEGIES[strategy])
    accepted = sum(check_same(changed) for changed in damaged(stream, 150, seed=len(stream)))
    assert accepted < 150


@pytest.mark.parametrize("kind", ["short matches", "long codes"])
@pytest.mark.parametrize("level", [1, 6])
def test_long_damaged_and_cut_streams_are_judged_like_zlib(kind: str, level: int) -> None:
    """The streams are long enough for decoding two symbols at once, and the damage is early enough to meet it."""
    stream = deflate(PAYLOADS[kind], level)
    assert len(stream) > 2 << 13
    accepted = sum(check_same(changed) for changed in damaged(stream, 200, seed=level))
    assert accepted < 200
    for n in random.Random(level).sample(range(len(stream)), 100):
        assert not check_same(stream[:n])


@settings(max_examples=300)
@given(
    st.sampled_from([2, 3, 4, 5]), st.binary(min_size=1, max_size=300), st.sampled_from([0, 10, 1000, ROOM])
)
def test_noise_is_judged_like_zlib(head: int, noise: bytes, room: int) -> None:
    """The blocks start as fixed or dynamic ones, as the last block or not."""
    check_same(bytes([noise[0] & 0xF8 | head]) + noise[1:], room)


# ---------------------------------------------------------------- without special instructions

PORTABLE = """
import random, zlib
from shardcodec import _native as native

assert native.cpu_features()["used"] == ()
rng = random.Random(1)
for n in (0, 1, 300, 5000, 70_000):
    for data in (rng.randbytes(n), bytes(n), bytes(rng.choice(b"(0, 1)") for _ in range(n)), bytes(range(40)) * (n // 40)):
        for level in (0, 1, 6, 9):
            assert native.codec_decode("zlib", zlib.compress(data, level), len(data)) == data
"""


def test_portable_code_decodes() -> None:
    environment = {**os.environ, "SHARDCODEC_CPU": "portable"}
    subprocess.run([sys.executable, "-c", PORTABLE], env=environment, check=True)
