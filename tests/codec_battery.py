# codec_battery.py - checks that every native codec must pass
# SPDX-License-Identifier: MIT
"""Payloads, and checks that the tests of each native codec run on it.

A decoder reads bytes from disk. So the rule of all checks on damaged streams is the same: the decoder raises
`CodecError`, or returns bytes, never more than allowed; nothing else may happen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from shardcodec import _native as native
from shardcodec.errors import CodecError

IS_SYSTEM_BUILD = native.library_version("blosc2") is None


def field(n_items: int, noise: float = 3.0) -> bytes:
    """Return a smooth uint16 field with noise, like the data of detectors and models."""
    x = np.arange(n_items)
    values = 2000 + 900 * np.sin(x / 400) + np.random.default_rng(7).normal(0, noise, n_items)
    return values.astype("<u2").tobytes()


PAYLOADS = {
    "one byte": b"x",
    "index": bytes(range(64)),
    "text": b"(0, 1) " * 37,
    "zeros": bytes(5000),
    "noise": random.Random(1).randbytes(3001),
    "ramp": np.arange(3000, dtype="<u4").tobytes(),
    "field": field(20_000),
    "runs": b"".join(bytes([i % 251]) * (i % 700) for i in range(250)),
}


def outcome(name: str, stream: bytes, max_nbytes: int) -> bytes | None:
    """Return the decoded bytes, or None if the decoder refuses the stream."""
    try:
        decoded = native.codec_decode(name, stream, max_nbytes)
    except CodecError:
        return None
    assert len(decoded) <= max_nbytes
    return decoded


def refuses(name: str, stream: bytes, max_nbytes: int = 1 << 16, match: str | None = None) -> None:
    with pytest.raises(CodecError, match=match) as caught:
        native.codec_decode(name, stream, max_nbytes)
    assert caught.value.codec == name


def check_round_trip(name: str, data: bytes, **params: object) -> bytes:
    """Check that the encoded form of `data` decodes to it, with any sufficient room. Return the encoded form."""
    stream = native.codec_encode(name, data, **params)
    for room in (len(data), len(data) + 1, 2 * len(data) + 1000):
        assert native.codec_decode(name, stream, room) == data
    if data:
        for room in {0, len(data) // 2, len(data) - 1}:
            refuses(name, stream, room)
    return stream


def check_every_cut_is_refused(name: str, stream: bytes, max_nbytes: int, start: int = 0) -> None:
    for n in range(start, len(stream)):
        refuses(name, stream[:n], max_nbytes)


def mutations(stream: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield copies of `stream` with a few bytes changed, moved, removed, repeated or cut off."""
    rng = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(stream)
        for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
            i = rng.randrange(len(damaged))
            match rng.randrange(6):
                case 0:
                    damaged[i] ^= 1 << rng.randrange(8)
                case 1 | 2:
                    damaged[i] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
                case 3:
                    damaged[i : i + 4] = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)).to_bytes(4, "little")
                case 4:
                    damaged[i : i + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
                case _:
                    damaged = damaged[: i + 1] if rng.random() < 0.2 else damaged + damaged[i : i + 32]
        yield bytes(damaged)


def check_survives_mutations(name: str, stream: bytes, max_nbytes: int, count: int = 2000) -> None:
    """Check that no mutation crashes the decoder or exceeds the limit, and that more than 5 % of them are refused."""
    refused = sum(outcome(name, damaged, max_nbytes) is None for damaged in mutations(stream, count))
    assert refused > count // 20
