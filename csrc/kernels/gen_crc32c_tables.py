# gen_crc32c_tables.py - print sc_crc32c_tables.h, the constants of all CRC-32C variants
# SPDX-License-Identifier: MIT
"""Print ``sc_crc32c_tables.h``: ``python csrc/kernels/gen_crc32c_tables.py > csrc/kernels/sc_crc32c_tables.h``.

The header is committed so that a build needs no Python and a reader can look at the numbers; a unit test
holds it to what this script prints.

The mathematics
---------------
A message is a polynomial over GF(2): its first bit is the coefficient of the highest power of x. Bytes count
their lowest bit first, so a little-endian word loaded from memory holds the polynomial *mirrored*:

    32-bit word: bit i is the coefficient of x^(31 - i)
    64-bit word: bit i is the coefficient of x^(63 - i)

The running CRC of a message M is ``M * x^32 mod P``, kept mirrored in 32 bits. Two facts carry everything:

    (A * x^n + B) mod P == ((A mod P) * (x^n mod P) + B) mod P

so a part of a message can be moved past n later bits by one multiplication with the constant x^n mod P; and
x has an inverse, because P has the term 1, so n may be negative.

Where the odd exponents come from
---------------------------------
A carry-less multiplication knows nothing of mirrored words. For 64-bit words a and b that stand for A and B,
bit k of the 128-bit product gathers the terms x^(63 - i) * x^(63 - j) with i + j == k, which is x^(126 - k);
read as a mirrored 128-bit word, bit k means x^(127 - k). The product therefore stands for A * B * x: one x
too many. A constant K kept in the low 32 bits of a 64-bit word stands for K * x^32 there: 32 more.

*Fold* a 128-bit word (low half H first in the message, then L) past D bits:

    (H * x^64 + L) * x^D  =  H * K1 * x^33 + L * K2 * x^33,   K1 = x^(D + 31),   K2 = x^(D - 33)

*Shift* a CRC past n bits: both factors are 32-bit words in 64-bit lanes, so read as one 64-bit message word
(bit k means x^(63 - k); the terms are x^(62 - k)) the product stands for C * K * x; the crc32 instruction,
or the table step, then multiplies by x^32 and reduces:

    C * x^n  =  (C * K * x) * x^32,   K = x^(n - 33)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

POLYNOMIAL = 0x1EDC6F41  # Castagnoli, without the term x^32
ORDER = (1 << 31) - 1  # P is (x + 1) times a primitive polynomial of degree 31: x^ORDER mod P is 1

N_SLICES = 16  # portable: bytes per step
SHIFT_WORDS = 256  # three streams: shifts by 0..SHIFT_WORDS words of 64 bits
LONG_WORDS = 512  # three streams: words per stream in one round of a long message
FOLD_BLOCKS = 16  # vpclmulqdq: 64-byte blocks that one finish can take
FOLD_ACCUMULATORS = 8
# vpclmulqdq_crc32x4, x8: streams beside the accumulators, a word of each per block of 64 bytes
MIX_STREAMS = (4, 8)
MIX_NARROW = ((1, 3), (2, 4))  # pclmulqdq, vpclmulqdq_avx2: lanes of a block and streams beside
MIX_LONG_ROUNDS = 4  # of all these: rounds between two joins, in a long message


def mirror(value: int, bits: int) -> int:
    """Exchange bit i with bit ``bits - 1 - i``."""
    return int(f"{value:0{bits}b}"[::-1], 2)


def multiply(a: int, b: int) -> int:
    """Product of two polynomials of degree below 32, modulo P; bit i is the coefficient of x^i."""
    product = 0
    for i in range(32):
        if b >> i & 1:
            product ^= a << i
    for i in range(62, 31, -1):
        if product >> i & 1:
            product ^= (1 << 32 | POLYNOMIAL) << (i - 32)
    return product


def x_to(n: int) -> int:
    """x^n mod P as a mirrored 32-bit word; n may be negative."""
    result, square, n = 1, 2, n % ORDER
    while n:
        if n & 1:
            result = multiply(result, square)
        square = multiply(square, square)
        n >>= 1
    return mirror(result, 32)


def slice_tables() -> list[list[int]]:
    """Table k maps a byte to its CRC when k zero bytes follow it."""
    mirrored = mirror(POLYNOMIAL, 32)
    first = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (mirrored if crc & 1 else 0)
        first.append(crc)
    tables = [first]
    while len(tables) < N_SLICES:
        tables.append([crc >> 8 ^ first[crc & 0xFF] for crc in tables[-1]])
    return tables


def fold_pair(distance: int) -> tuple[int, int]:
    """Constants that fold one 128-bit word past ``distance`` bits, for its low and its high half."""
    return x_to(distance + 31), x_to(distance - 33)


def finish_pairs() -> Iterator[int]:
    """One pair per 128-bit lane: each lane goes straight to the place of the last one."""
    for lane in range(4 * FOLD_BLOCKS - 1, -1, -1):
        yield from fold_pair(128 * lane)


def mix_constants(streams: int, rounds: int, block: int = 64) -> Iterator[int]:
    """Joins, one pair per stream; then the pair that folds past the streams and one round of blocks."""
    blocks_nbytes = block * FOLD_ACCUMULATORS
    stream_nbytes = 8 * FOLD_ACCUMULATORS * rounds
    for stream in range(streams):
        behind = (streams - 1 - stream) * stream_nbytes + blocks_nbytes * rounds
        lane = stream % (block // 16)
        yield from (x_to(8 * (behind - block + 16 * lane + 8) - 33), 0)
    yield from fold_pair(8 * (streams * stream_nbytes + blocks_nbytes))


def rows(values: Iterable[int], indent: str = "    ", per_row: int = 8) -> str:
    """Lay out 32-bit constants in rows."""
    words = [f"0x{value:08X}," for value in values]
    return "\n".join(indent + " ".join(words[i : i + per_row]) for i in range(0, len(words), per_row))


def array(comment: str, declaration: str, body: str) -> str:
    """One constant array with its comment."""
    return f"/* {comment} */\nstatic const {declaration} = {{\n{body}\n}};\n"


def sections() -> Iterator[str]:
    """Yield the parts of the header, in order."""
    yield (
        "/* sc_crc32c_tables.h - constants of the CRC-32C variants; printed by gen_crc32c_tables.py, do not edit\n"
        " *\n"
        " * Every constant is a power of x modulo the Castagnoli polynomial, mirrored into 32 bits;\n"
        " * the script derives them and says where the exponents come from.\n"
        " * SPDX-License-Identifier: MIT */\n"
        "#ifndef SC_CRC32C_TABLES_H\n#define SC_CRC32C_TABLES_H\n\n#include <stdint.h>\n\n"
        "/* The script lays the rows out. */\n/* clang-format off */\n"
    )
    yield array(
        "Portable code: entry [k][b] is the CRC of byte b followed by k zero bytes.",
        f"uint32_t crc32c_slices[{N_SLICES}][256]",
        "\n".join(f"    {{\n{rows(table, ' ' * 8)}\n    }}," for table in slice_tables()),
    )
    yield array(
        "Shift a CRC past 2^k bits: x^(2^k - 33), k = 0..30. x^(2^31 - 1) is 1, so no larger k is needed.",
        "uint32_t crc32c_shift_pow2[31]",
        rows(x_to((1 << k) - 33) for k in range(31)),
    )
    yield (
        "/* Three streams: words per stream of a long round, and the longest stream of a short one. */\n"
        f"#define CRC32C_LONG_WORDS {LONG_WORDS}\n#define CRC32C_SHORT_WORDS {SHIFT_WORDS // 2}\n"
    )
    yield array(
        "Shift a CRC past w words of 64 bits: x^(64 w - 33).",
        f"uint32_t crc32c_shift_words[{SHIFT_WORDS + 1}]",
        rows(x_to(64 * w - 33) for w in range(SHIFT_WORDS + 1)),
    )
    yield (
        "/* The same for one and for two streams of a long round. */\n"
        f"#define CRC32C_SHIFT_LONG 0x{x_to(64 * LONG_WORDS - 33):08X}u\n"
        f"#define CRC32C_SHIFT_LONG_TWICE 0x{x_to(128 * LONG_WORDS - 33):08X}u\n"
    )
    low, high = fold_pair(512 * FOLD_ACCUMULATORS)
    yield (
        f"/* Folding: past {FOLD_ACCUMULATORS} blocks of 64 bytes, for the low and the high half of a lane. */\n"
        f"#define CRC32C_FOLD_LOW 0x{low:08X}u\n#define CRC32C_FOLD_HIGH 0x{high:08X}u\n"
    )
    yield (f"/* 64-byte blocks that one finish takes. */\n#define CRC32C_FINISH_BLOCKS {FOLD_BLOCKS}\n")
    yield array(
        "Folding: the lanes of the last blocks, each past all that follow it; (low, high) per 128-bit lane.",
        f"_Alignas(64) uint64_t crc32c_finish[{8 * FOLD_BLOCKS}]",
        rows(finish_pairs()),
    )
    yield (
        "/* Folding beside streams: rounds of both between two joins, in a long part and in a short one. Of either, and of\n"
        " * either number of streams: shift each stream to the first word of its lane in the last block, one 128-bit lane\n"
        " * per stream, four to a block; then, as above, fold past the streams and one round of blocks, for the low and the\n"
        " * high half. */\n"
        f"#define CRC32C_MIX_LONG_ROUNDS {MIX_LONG_ROUNDS}\n#define CRC32C_MIX_SHORT_ROUNDS 1"
    )
    for streams in MIX_STREAMS:
        for name, rounds in (("long", MIX_LONG_ROUNDS), ("short", 1)):
            yield (
                f"static const _Alignas(64) uint64_t crc32c_mix{streams}_{name}[{2 * streams + 2}] = {{\n"
                f"{rows(mix_constants(streams, rounds))}\n}};"
            )
    yield "\n/* The same in blocks of one lane or two; first: past a round alone. */"
    for lanes, streams in MIX_NARROW:
        fold = rows(fold_pair(128 * lanes * FOLD_ACCUMULATORS))
        yield f"static const _Alignas(16) uint64_t crc32c_fold_lanes{lanes}[2] = {{\n{fold}\n}};"
        for name, rounds in (("long", MIX_LONG_ROUNDS), ("short", 1)):
            yield (
                f"static const _Alignas(32) uint64_t crc32c_mix{streams}_lanes{lanes}_{name}[{2 * streams + 2}] = {{\n"
                f"{rows(mix_constants(streams, rounds, block=16 * lanes))}\n}};"
            )
    yield ""
    yield array(
        "Undo k zero bytes that were appended to a message: x^(-8 k - 33).",
        "uint32_t crc32c_unshift_bytes[64]",
        rows(x_to(-8 * k - 33) for k in range(64)),
    )
    yield "#endif"


if __name__ == "__main__":
    print("\n".join(sections()))
