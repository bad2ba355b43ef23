# test_crc32c.py - the checksum: every variant against published values and a bitwise reference
# SPDX-License-Identifier: MIT
"""All variants run the same tests: results must not depend on the variant, the alignment or the split of the data."""

from __future__ import annotations

import ctypes
import inspect
import json
import mmap
import os
import pickle
import platform
import random
import runpy
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import reference
from helpers import in_child
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcodec import _native as native

Bytes = npt.NDArray[np.uint8]

CSRC = Path(__file__).parents[2] / "csrc"
IMPLS = native.crc32c_implementations()
IN_ORDER_OF_CHOICE = [
    "vpclmulqdq_crc32x8",
    "vpclmulqdq_crc32x4",
    "vpclmulqdq",
    "vpclmulqdq_avx2",
    "pclmulqdq",
    "sse42",
    "armv8",
    "portable",
]
# Variants that are faster only on some of the processors that can run them.
SUITS = {"vpclmulqdq_crc32x8": "zen5", "vpclmulqdq_crc32x4": "zen4"}

# Sizes at which variants change their method: one stream, one masked block, three streams, the last sum, folding, an
# aligned start, rounds of 128 and of 512 words in three streams; folding beside four and eight streams, with parts of
# 3072 and 768, of 4096 and 1024, and, in blocks of 32, of 2048 and 512 bytes; beside three streams, in blocks of 16,
# with parts of 1280 and 320 bytes.
THRESHOLDS = [16, 24, 64, 96, 128, 512, 768, 1024, 1536, 3072, 4096, 4096 + 64, 6144, 12288, 24576]
THRESHOLDS += [512 + 3072 * long + 768 * short for long in (1, 2) for short in (0, 1, 2, 3)]
THRESHOLDS += [512 + 4096 * long + 1024 * short for long in (1, 2) for short in (0, 1, 2, 3)]
THRESHOLDS += [128 + 1280 * long + 320 * short for long in (0, 1, 2) for short in (0, 1, 2, 3, 4)]
THRESHOLDS += [256 + 2048 * long + 512 * short for long in (0, 1, 2) for short in (0, 1, 2, 3, 4)]
SIZES = sorted(
    {n + d for n in THRESHOLDS for d in (-65, -64, -9, -8, -1, 0, 1, 7, 8, 23, 63, 64) if n + d >= 0}
)

BLOB = random.Random(20).randbytes(max(SIZES))


def step(register: int, byte: int) -> int:
    """Advance by one byte, bit by bit, as in the definition."""
    register ^= byte
    for _ in range(8):
        register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


# Entry n is the checksum of the first n bytes of BLOB.
PREFIXES = [register ^ 0xFFFFFFFF for register in accumulate(BLOB, step, initial=0xFFFFFFFF)]

READ_PDU = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000"
)
PUBLISHED = [
    pytest.param(b"", 0x00000000, id="nothing"),
    pytest.param(b"123456789", 0xE3069283, id="check value"),
    pytest.param(bytes(32), 0x8A9136AA, id="RFC 3720, zeros"),
    pytest.param(b"\xff" * 32, 0x62A8AB43, id="RFC 3720, ones"),
    pytest.param(bytes(range(32)), 0x46DD794E, id="RFC 3720, ascending"),
    pytest.param(bytes(range(31, -1, -1)), 0x113FDB5C, id="RFC 3720, descending"),
    pytest.param(READ_PDU, 0xD9963A56, id="RFC 3720, read command"),
]

every_impl = pytest.mark.parametrize("impl", IMPLS)


def at_alignment(nbytes: int, alignment: int) -> Bytes:
    """Return a new buffer that starts `alignment` bytes after a cache line."""
    room = np.zeros(nbytes + 128, dtype=np.uint8)
    first = (alignment - room.ctypes.data) % 64
    return room[first : first + nbytes]


def placed(data: bytes, alignment: int) -> Bytes:
    buffer = at_alignment(len(data), alignment)
    buffer[:] = np.frombuffer(data, dtype=np.uint8)
    return buffer


# ---- values


@every_impl
@pytest.mark.parametrize(("data", "expected"), PUBLISHED)
def test_published_values_are_computed(impl: str, data: bytes, expected: int) -> None:
    assert native.crc32c(data, impl=impl) == expected


def test_bitwise_reference_equals_the_one_for_shards() -> None:
    assert [reference.crc32c(BLOB[:n]) for n in (0, 1, 9, 500)] == [PREFIXES[n] for n in (0, 1, 9, 500)]


@every_impl
def test_sizes_around_every_threshold_are_correct(impl: str) -> None:
    wrong = [n for n in [*range(300), *SIZES] if native.crc32c(BLOB[:n], impl=impl) != PREFIXES[n]]
    assert not wrong


@every_impl
@pytest.mark.parametrize(
    "nbytes", [1, 7, 8, 63, 64, 65, 100, 200, 1000, 1024, 1100, 3100, 4095, 4096, 4250, 12400]
)
def test_every_alignment_gives_the_same_value(impl: str, nbytes: int) -> None:
    found = {native.crc32c(placed(BLOB[:nbytes], a), impl=impl) for a in range(64)}
    assert found == {PREFIXES[nbytes]}


@every_impl
@pytest.mark.parametrize("nbytes", [300, 1500])
def test_every_split_gives_the_same_value(impl: str, nbytes: int) -> None:
    blob = BLOB[:nbytes]
    for cut in range(nbytes + 1):
        first = native.crc32c(blob[:cut], impl=impl)
        assert native.crc32c(blob[cut:], first, impl=impl) == PREFIXES[nbytes], cut


@every_impl
def test_extending_by_no_bytes_changes_nothing(impl: str) -> None:
    assert native.crc32c(b"", 0xDEADBEEF, impl=impl) == 0xDEADBEEF


def test_every_form_of_call_gives_the_same_value() -> None:
    """A call with one argument takes a shorter path."""
    first, both = PREFIXES[100], PREFIXES[300]
    assert (
        native.crc32c(BLOB[:100]) == native.crc32c(data=BLOB[:100]) == native.crc32c(BLOB[:100], 0) == first
    )
    assert native.crc32c(BLOB[100:300], first) == native.crc32c(BLOB[100:300], value=first) == both
    assert native.crc32c(BLOB[100:300], first, impl="portable") == both
    assert native.crc32c(impl=None, value=first, data=BLOB[100:300]) == both
    assert str(inspect.signature(native.crc32c)) == "(data, value=0, *, impl=None)"
    assert pickle.loads(pickle.dumps(native.crc32c)) is native.crc32c


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((), {}),
        ((b"", 0, "portable"), {}),
        ((b"",), {"start": 1}),
        ((b"", "0"), {}),
        (("text",), {}),
        ((), {"value": 1}),
    ],
)
def test_bad_calls_are_refused(args: Any, keywords: Any) -> None:
    with pytest.raises(TypeError):
        native.crc32c(*args, **keywords)


def test_buffer_is_released() -> None:
    """No form of call keeps a reference to the object or its buffer."""
    data = bytearray(100)
    before = sys.getrefcount(data)
    for _ in range(10):
        assert native.crc32c(data) == native.crc32c(data, 0, impl="portable")
        with pytest.raises(ValueError):
            native.crc32c(data, impl="none")
    assert sys.getrefcount(data) == before
    data.append(0)


@every_impl
def test_each_bit_changes_the_value(impl: str) -> None:
    """One wrong bit anywhere gives another value, and all of these differ: a CRC guarantees this at such a length."""
    message = bytearray(BLOB[:1200])
    found = {native.crc32c(message, impl=impl)}
    for bit in range(8 * len(message)):
        message[bit // 8] ^= 1 << bit % 8
        found.add(native.crc32c(message, impl=impl))
        message[bit // 8] ^= 1 << bit % 8
    assert len(found) == 8 * len(message) + 1


@every_impl
@given(data=st.binary(max_size=5000), start=st.integers(0, 2**32 - 1))
def test_google_crc32c_agrees(impl: str, data: bytes, start: int) -> None:
    google = pytest.importorskip("google_crc32c")
    assert native.crc32c(data, start, impl=impl) == google.extend(start, data)


@every_impl
@given(seed=st.integers(0, 2**32), nbytes=st.integers(5000, 300_000))
@settings(max_examples=30)
def test_google_crc32c_agrees_on_long_messages(impl: str, seed: int, nbytes: int) -> None:
    google = pytest.importorskip("google_crc32c")
    data = random.Random(seed).randbytes(nbytes)
    assert native.crc32c(data, impl=impl) == google.value(data)


def test_chosen_variant_gives_the_same_values() -> None:
    wrong = [n for n in [*range(300), *SIZES, 20_000] if native.crc32c(BLOB[:n]) != PREFIXES[n]]
    assert not wrong


# ---- copying


def check_copy(impl: str | None, nbytes: int, to: int, of: int) -> None:
    """Copy into the middle of a buffer of 0xA5 and check every byte of it."""
    room = at_alignment(nbytes + 256, to)
    room[:] = 0xA5
    source = placed(BLOB[:nbytes], of)
    middle = room[128 : 128 + nbytes]
    assert native.crc32c_copy(middle, source, impl=impl) == PREFIXES[nbytes]
    assert middle.tobytes() == BLOB[:nbytes]
    assert (room[:128] == 0xA5).all()
    assert (room[128 + nbytes :] == 0xA5).all()


@every_impl
def test_copy_around_every_threshold_is_exact(impl: str) -> None:
    for nbytes in [*range(200), *SIZES]:
        check_copy(impl, nbytes, to=0, of=0)


@every_impl
@pytest.mark.parametrize("nbytes", [5, 63, 64, 100, 1000, 1100, 4250, 12400])
def test_copy_at_every_alignment_is_exact(impl: str, nbytes: int) -> None:
    for to in range(64):
        check_copy(impl, nbytes, to, of=(37 * to + 11) % 64)


def test_copy_with_the_chosen_variant_is_exact() -> None:
    for nbytes in (0, 1, 64, 1000, 20_000):
        check_copy(None, nbytes, to=16, of=3)


@every_impl
def test_copy_extends_a_value(impl: str) -> None:
    out = bytearray(700)
    assert native.crc32c_copy(out, BLOB[300:1000], PREFIXES[300], impl=impl) == PREFIXES[1000]


# ---- joining


@given(data=st.binary(max_size=400), cut=st.integers(0, 400))
def test_combine_joins_two_parts(data: bytes, cut: int) -> None:
    a, b = data[:cut], data[cut:]
    assert native.crc32c_combine(native.crc32c(a), native.crc32c(b), len(b)) == native.crc32c(data)


def generator() -> SimpleNamespace:
    """Run csrc/kernels/gen_crc32c_tables.py, which is not part of the package.

    It is not imported: a __pycache__ beside it would make its folder newer than the wheel.
    """
    return SimpleNamespace(**runpy.run_path(str(CSRC / "kernels" / "gen_crc32c_tables.py")))


def test_header_has_the_present_constants() -> None:
    header = (CSRC / "kernels" / "sc_crc32c_tables.h").read_text()
    assert header == "\n".join(generator().sections()) + "\n", "`make tables` writes the header"


@pytest.mark.parametrize(
    "nbytes", [0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**61 - 1, 2**61, 2**63, 2**64 - 2, 2**64 - 1]
)
def test_combine_accepts_lengths_beyond_memory(nbytes: int) -> None:
    """Compute the first part times x to the number of following bits, by squaring and multiplying without shortcuts."""
    maths = generator()
    power, square, bits = 1, 2, 8 * nbytes
    while bits:
        if bits & 1:
            power = maths.multiply(power, square)
        square = maths.multiply(square, square)
        bits >>= 1
    shifted = maths.multiply(maths.mirror(0x12345678, 32), power)
    assert native.crc32c_combine(0x12345678, 0x9ABCDEF0, nbytes) == maths.mirror(shifted, 32) ^ 0x9ABCDEF0


# ---- choice of the variant

REPORT = """
import json, sys
from shardcodec import _native as native
blob = sys.stdin.buffer.read()
sizes = json.loads(sys.argv[1])
out = bytearray(len(blob))
print(json.dumps({
    "chosen": native.crc32c_chosen(),
    "impls": native.crc32c_implementations(),
    "features": native.cpu_features(),
    "values": [native.crc32c(blob[:n]) for n in sizes],
    "copied": [native.crc32c_copy(out, blob[:n]) for n in sizes],
    "out_is_right": out == blob,
}))
"""


def report_under(override: str | None) -> Any:
    """Run a new interpreter with SHARDCODEC_CPU set, because the variant is chosen at import."""
    environment = {k: v for k, v in os.environ.items() if k != "SHARDCODEC_CPU"}
    if override is not None:
        environment["SHARDCODEC_CPU"] = override
    sizes = [*range(300), *SIZES, len(BLOB)]
    done = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(sizes)],
        input=BLOB, capture_output=True, check=True, env=environment,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["values"] == [PREFIXES[n] for n in sizes]
    assert report["copied"] == report["values"]
    assert report["out_is_right"]
    return report


def first_that_suits(report: Any) -> str:
    used = report["features"]["used"]
    return next(name for name in report["impls"] if SUITS.get(name) is None or SUITS[name] in used)


def test_variants_are_listed_in_the_order_of_choice() -> None:
    assert [name for name in IN_ORDER_OF_CHOICE if name in IMPLS] == IMPLS
    assert IMPLS[-1] == "portable"


def test_first_suitable_variant_is_chosen() -> None:
    report = report_under(None)
    assert report["chosen"] == first_that_suits(report)
    assert report["features"]["used"] == report["features"]["detected"]
    assert report["features"]["override"] is None


def test_portable_variant_can_be_forced() -> None:
    report = report_under("portable")
    assert report["chosen"] == "portable"
    assert report["impls"] == ["portable"]
    assert report["features"]["used"] == []
    assert report["features"]["override_valid"]


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="features of x86")
@pytest.mark.parametrize("override", ["sse42", "sse42,pclmul", " sse42 , pclmul "])
def test_features_of_x86_can_be_restricted(override: str) -> None:
    """Without pclmul the streams are joined by other code; `report_under` checks the values of both."""
    wanted = {name.strip() for name in override.split(",")}
    detected = set(native.cpu_features()["detected"])
    if not wanted <= detected:
        pytest.skip(f"this processor lacks {wanted - detected}")
    report = report_under(override)
    assert report["chosen"] == "sse42"
    assert report["impls"] == ["sse42", "portable"]
    assert set(report["features"]["used"]) == wanted
    assert report["features"]["override_valid"]


@every_impl
def test_every_variant_can_be_forced_by_its_name(impl: str) -> None:
    """A name once set only its own feature bit: SHARDCODEC_CPU=vpclmulqdq, which needs more, gave portable code."""
    report = report_under(impl)
    assert report["chosen"] == impl
    assert report["features"]["override_valid"]


@pytest.mark.skipif("vpclmulqdq" not in IMPLS, reason="no 512-bit multiplication")
def test_streams_beside_folding_are_used_only_on_zen() -> None:
    """Without the features zen4 and zen5, only folding is used."""
    assert report_under("sse42,pclmul,avx512,vpclmulqdq")["chosen"] == "vpclmulqdq"


@pytest.mark.skipif(platform.machine() not in {"aarch64", "arm64"}, reason="features of ARM")
def test_features_of_arm_can_be_restricted() -> None:
    if "armv8_crc" not in native.cpu_features()["detected"]:
        pytest.skip("this processor lacks armv8_crc")
    assert report_under("armv8_crc")["chosen"] == "armv8"


@pytest.mark.parametrize("override", ["sse24", "portable,", "SSE42", "portable;sse42", "portable," * 40])
def test_misspelt_override_is_reported_and_ignored(override: str) -> None:
    features = report_under(override)["features"]
    assert not features["override_valid"]
    assert features["used"] == features["detected"]
    assert override.startswith(features["override"])


def test_empty_override_is_ignored() -> None:
    features = report_under("")["features"]
    assert features["override"] is None and features["override_valid"]


@pytest.mark.parametrize("impl", ["", "fast", "SSE42"])
def test_unknown_variant_is_refused(impl: str) -> None:
    with pytest.raises(ValueError):
        native.crc32c(b"x", impl=impl)


# ---- memory outside the buffer


def work_between_guards(impl: str) -> None:
    PAGE = mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = mmap.mmap(-1, 4 * PAGE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert protect(first, PAGE, 0) == 0 and protect(first + 3 * PAGE, PAGE, 0) == 0
    inside = memoryview(pages)[PAGE : 3 * PAGE]
    for n in [*range(1300), *range(4090, 4240), *range(4600, 4740), *range(5600, 2 * PAGE, 37), 2 * PAGE]:
        for part in (inside[:n], inside[len(inside) - n :]):
            out = bytearray(n)
            assert native.crc32c(part, impl=impl) == native.crc32c_copy(out, part, impl=impl)
            native.crc32c_copy(part, out, impl=impl)


@every_impl
@pytest.mark.skipif(not hasattr(os, "fork"), reason="mprotect")
def test_no_byte_outside_is_touched(impl: str) -> None:
    """The buffer lies between two protected pages, in a child process, because a fault is a SIGSEGV."""
    in_child(lambda: work_between_guards(impl))


# ---- generated constants


def test_committed_header_equals_the_generated_one() -> None:
    printed = "\n".join(generator().sections()) + "\n"
    assert (CSRC / "kernels" / "sc_crc32c_tables.h").read_text() == printed
