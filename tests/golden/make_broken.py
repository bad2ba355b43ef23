# make_broken.py - the recipe of broken/: damaged shards and the expected result of each
# SPDX-License-Identifier: MIT
"""Damaged shards, and valid but unusual ones, made by hand.

Run it to write ``broken/cases.json``: for each case the metadata of the shard, its bytes in hex, and the expected result
of every inner chunk: its text or a kind of error. A test compares the file with this recipe, so neither can change alone.

The valid shard of letters has four inner chunks of 2 x 2 bytes, "zero", "one.", "two." and "tres":

    offset   0     4     8     12    16                            80
             zero  one.  two.  tres  | 4 pairs (offset, nbytes) | crc32c |      84 bytes

Nothing here uses the code under test.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reference import crc32c
from spec_json import BIG, BYTE, CRC, LITTLE, Json, sharding, transpose

HERE = Path(__file__).parent
ABSENT = 2**64 - 1
NONE = (ABSENT, ABSENT)
WORDS = ("zero", "one.", "two.", "tres")
BODY = "".join(WORDS).encode()
FILL = "...."

Entry = tuple[int, int]

# The expected result of an inner chunk: its text, or one of these errors.
BAD_ENTRY = "ShardFormatError at entry"  # also stops an update that would carry the inner chunk
BAD_BYTES = "ShardFormatError"
BAD_CHECKSUM = "ChecksumError"


@dataclass(frozen=True)
class Layout:
    """The layout of the shard of a case: shapes, codecs and index."""

    at_start: bool = False
    index_checksums: int = 1
    big_endian: bool = False
    transposed: bool = False
    chunk_checksum: bool = False
    shape: tuple[int, ...] = (4, 4)
    inner: tuple[int, ...] = (2, 2)

    @property
    def n_chunks(self) -> int:
        n = 1
        for whole, part in zip(self.shape, self.inner, strict=True):
            n *= whole // part
        return n

    @property
    def index_nbytes(self) -> int:
        return 16 * self.n_chunks + 4 * self.index_checksums

    def codec(self) -> Json:
        """Return the codec as it is in zarr.json."""
        index_codecs = [transpose(*range(len(self.shape), -1, -1))] if self.transposed else []
        index_codecs += [BIG if self.big_endian else LITTLE, *[CRC] * self.index_checksums]
        codecs = [BYTE, CRC] if self.chunk_checksum else [BYTE]
        return sharding(self.inner, codecs, index_codecs, "start" if self.at_start else "end")

    def index(self, entries: Sequence[Entry]) -> bytes:
        """Return an index of these entries, valid or not."""
        if self.transposed:  # a grid of 2 x 2 with the pair as last axis, all axes reversed
            words = [entries[2 * i + j][k] for k in (0, 1) for j in (0, 1) for i in (0, 1)]
        else:
            words = [word for entry in entries for word in entry]
        stored = struct.pack(f"{'>' if self.big_endian else '<'}{len(words)}Q", *words)
        for _ in range(self.index_checksums):
            stored += struct.pack("<I", crc32c(stored))
        return stored

    def shard(self, body: bytes, entries: Sequence[Entry]) -> bytes:
        index = self.index(entries)
        return index + body if self.at_start else body + index

    def chunk(self, word: str) -> bytes:
        raw = word.encode()
        return raw + struct.pack("<I", crc32c(raw)) if self.chunk_checksum else raw

    def sound(self) -> bytes:
        """Return a valid shard of the four words, one after the other."""
        return self.shard(b"".join(self.chunk(word) for word in WORDS), self.entries())

    def entries(self) -> list[Entry]:
        first, n = (self.index_nbytes if self.at_start else 0), len(self.chunk("zero"))
        return [(first + i * n, n) for i in range(4)]


@dataclass(frozen=True)
class Case:
    """A shard and its expected results.

    Attributes
    ----------
    rules : str
        Numbers of the requirements.
    shard : str or None
        Bytes in hex; None if there is no object.
    chunks : list of str
        Expected result of each inner chunk, in C order: its text or a kind of error.
    index : str
        Kind of the error that every read of the shard raises; empty if the index can be read.
    numbers : dict
        Attributes of the error of the lowest damaged inner chunk.
    array : tuple of int
        Shape of the array; smaller than the shard if the shard extends beyond it.
    refused : bool
        Inner chunks have no checksum and an entry reaches outside the object or into the index: every read of the shard
        and every update of a part of it raises the error of the lowest such entry.
    """

    name: str
    rules: str
    note: str
    codec: Json
    shard: str | None
    chunks: list[str]
    index: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 4)
    inner: tuple[int, ...] = (2, 2)
    array: tuple[int, ...] = (4, 4)
    refused: bool = False


END, START = Layout(), Layout(at_start=True)
PLAIN, PLAIN_START = Layout(index_checksums=0), Layout(at_start=True, index_checksums=0)
CHECKED = Layout(chunk_checksum=True)


def case(
    name: str,
    rules: str,
    note: str,
    shard: bytes | None,
    chunks: Sequence[str] = WORDS,
    layout: Layout = END,
    **more: Any,
) -> Case:
    stored = None if shard is None else shard.hex()
    return Case(
        name,
        rules,
        note,
        layout.codec(),
        stored,
        list(chunks),
        shape=layout.shape,
        inner=layout.inner,
        **({"array": layout.shape} | more),
    )


def unreadable(
    name: str, rules: str, note: str, shard: bytes, index: str, layout: Layout = END, **more: Any
) -> Case:
    """Return a case in which no part of the shard can be read."""
    return case(name, rules, note, shard, [index] * layout.n_chunks, layout, index=index, **more)


def second(bad: Entry, layout: Layout = END, body: bytes = BODY) -> bytes:
    """Return the valid shard with another entry for its second inner chunk."""
    entries = layout.entries()
    return layout.shard(body, [entries[0], bad, *entries[2:]])


def bad_second(name: str, rules: str, note: str, bad: Entry, layout: Layout = END) -> Case:
    """Return a case in which the second entry is impossible."""
    numbers = {"offset": bad[0], "nbytes": bad[1]}
    is_there = bad[0] == 4 and bad[1] < 8  # a valid range, but not of the size of an inner chunk
    if is_there:
        numbers = {"expected": 4, "actual": bad[1]}
    chunks = [WORDS[0], BAD_ENTRY, *WORDS[2:]]
    refused = not is_there and not layout.chunk_checksum
    body = b"".join(layout.chunk(word) for word in WORDS)
    shard = second(bad, layout, body)
    return case(name, rules, note, shard, chunks, layout, numbers=numbers, refused=refused)


def flipped(shard: bytes, at: int, mask: int = 16) -> bytes:
    out = bytearray(shard)
    out[at] ^= mask
    return bytes(out)


def sound_cases() -> Iterator[Case]:
    """Yield valid shards, some of them unusual: a reader that refuses one of these is wrong."""
    for name, layout in {
        "sound": END,
        "sound-start": START,
        "index-without-checksum": PLAIN,
        "index-with-two-checksums": Layout(index_checksums=2),
        "index-big-endian": Layout(big_endian=True),
        "index-transposed": Layout(transposed=True),
        "chunks-with-checksums": CHECKED,
    }.items():
        yield case(name, "SC-20 SC-21 SC-22 SC-23 SC-24", "a valid shard", layout.sound(), layout=layout)
    yield case("no-object", "SC-27", "no object: all fill value", None, [FILL] * 4)
    yield case(
        "all-absent", "SC-27", "an index with only absent entries", END.shard(b"", [NONE] * 4), [FILL] * 4
    )
    yield case(
        "some-absent",
        "SC-28",
        "present and absent inner chunks",
        second(NONE),
        [WORDS[0], FILL, *WORDS[2:]],
    )
    gaps = [(4, 4), (10, 4), (16, 4), (20, 4)]
    body = b"HEADzero..one...two.tresFOOT"
    yield case("gaps-header-footer", "SC-34", "bytes to which no entry refers", END.shard(body, gaps))
    yield case(
        "any-order",
        "SC-34",
        "inner chunks in another order",
        END.shard(b"trestwo.one.zero", [(12, 4), (8, 4), (4, 4), (0, 4)]),
    )
    yield case(
        "shared-range",
        "SC-35",
        "two inner chunks share their bytes",
        END.shard(BODY, [(0, 4), (4, 4), (0, 4), (12, 4)]),
        ["zero", "one.", "zero", "tres"],
    )
    yield case(
        "overlapping-ranges",
        "SC-35",
        "inner chunks overlap partly",
        END.shard(b"zerone.tres", [(0, 4), (3, 4), (5, 4), (7, 4)]),
        ["zero", "one.", "e.tr", "tres"],
    )
    yield case(
        "trailing-bytes-start", "SC-42", "extra bytes after a shard with its index at the start",
        START.sound() + b"more", layout=START,
    )  # fmt: skip
    yield case("edge", "SC-37", "the array ends inside an inner chunk", END.sound(), array=(3, 3))
    scalar = Layout(shape=(), inner=())
    yield case("rank-0", "SC-39", "a shard without axes", scalar.shard(b"x", [(0, 1)]), ["x"], scalar)


def index_cases() -> Iterator[Case]:
    """Yield shards whose index cannot be read or must not be trusted."""
    sound, start = END.sound(), START.sound()
    for name, at in {"pair": 20, "checksum": 83}.items():
        yield unreadable(
            f"index-bit-flipped-{name}",
            "SC-25",
            f"a flipped bit in a {name} of the index",
            flipped(sound, at),
            BAD_CHECKSUM,
        )
    yield unreadable(
        "index-bit-flipped-start", "SC-25", "a flipped bit in an index at the start", flipped(start, 8), BAD_CHECKSUM, START
    )  # fmt: skip
    yield unreadable("empty-object", "SC-26", "an object of 0 bytes", b"", BAD_BYTES, numbers={"nbytes": 0})
    yield unreadable(
        "shorter-than-index", "SC-26", "30 bytes, but the index alone has 68", sound[-30:], BAD_BYTES,
        numbers={"nbytes": 30, "limit": 68},
    )  # fmt: skip
    yield unreadable(
        "one-byte-short", "SC-26", "67 bytes, but the index has 68", start[:67], BAD_BYTES, START,
        numbers={"nbytes": 67, "limit": 68},
    )  # fmt: skip
    yield unreadable("tail-cut", "SC-26", "the last byte is missing", sound[:-1], BAD_CHECKSUM)
    yield unreadable("trailing-bytes", "SC-42", "a byte after the index", sound + b"!", BAD_CHECKSUM)
    yield unreadable("wrong-location", "SC-41", "the index is at the other end", sound, BAD_CHECKSUM, START)
    yield unreadable("wrong-location-end", "SC-41", "the same with the ends exchanged", start, BAD_CHECKSUM)
    yield case(
        "wrong-location-no-checksum",
        "SC-41",
        "the index is at the other end and has no checksum: the bounds of its entries show it",
        PLAIN.sound(),
        [BAD_ENTRY] * 4,
        PLAIN_START,
        refused=True,
    )
    scalar = Layout(shape=(), inner=())
    flipped_scalar = flipped(scalar.shard(b"x", [(0, 1)]), 3)
    yield unreadable(
        "rank-0-flipped",
        "SC-25 SC-39",
        "a flipped bit in a shard without axes",
        flipped_scalar,
        BAD_CHECKSUM,
        scalar,
    )
    yield unreadable(
        "rank-0-empty", "SC-26 SC-39", "an object of 0 bytes for a shard without axes", b"", BAD_BYTES, scalar
    )


def entry_cases() -> Iterator[Case]:
    """Yield shards in which an entry is impossible."""
    half = "SC-28 SC-62"
    yield bad_second("only-offset-absent", half, "offset 2^64-1, nbytes not", (ABSENT, 4))
    yield bad_second("only-nbytes-absent", half, "nbytes 2^64-1, offset not", (4, ABSENT))
    bounds = "SC-29 SC-30 SC-62"
    yield bad_second("beyond-the-end", bounds, "a range after the end of the object", (900, 4))
    yield bad_second("at-the-end", bounds, "a range that starts where the object ends", (84, 4))
    yield bad_second(
        "partly-beyond", bounds, "a range that ends one byte after the end of the object", (81, 4)
    )
    yield bad_second("offset-2^63", bounds, "an offset that is negative as a signed number", (2**63, 4))
    yield bad_second("wrap-around-offset", bounds, "offset + nbytes = 2", (2**64 - 2, 4))
    yield bad_second("wrap-around-nbytes", bounds, "offset + nbytes = 0", (4, 2**64 - 4))
    yield bad_second("nbytes-2^40", bounds, "a claim of 1 TiB", (4, 2**40))
    yield bad_second("nbytes-2^62", bounds, "a claim of 4 EiB", (4, 2**62))
    yield bad_second(
        "beyond-the-end-start",
        bounds,
        "a range after the end of the object, index at the start",
        (900, 4),
        START,
    )
    yield bad_second(
        "beyond-the-end-checked",
        bounds,
        "a range after the end of the object, inner chunks have checksums",
        (900, 8),
        CHECKED,
    )
    length = "SC-31"
    yield bad_second("too-short", length, "3 bytes instead of 4", (4, 3))
    yield bad_second("too-long", length, "5 bytes instead of 4", (4, 5))
    yield bad_second("zero-length", "SC-31 SC-63", "0 bytes instead of 4", (4, 0))
    index = "SC-33"
    yield bad_second("into-the-index", index, "the last two bytes belong to the index", (14, 4))
    yield bad_second("inside-the-index", index, "all bytes belong to the index", (20, 4))
    yield bad_second("inside-the-checksum", index, "the bytes are the checksum of the index", (80, 4))
    yield bad_second("into-the-index-start", index, "the first two bytes belong to the index", (66, 4), START)
    numbers = {"offset": 12, "nbytes": 4}
    lost = ["oone", ".two", ".tre", BAD_ENTRY]
    yield case(
        "lost-head",
        index,
        "the first three bytes are missing; index and checksum are intact, and only the last entry shows it",
        END.sound()[3:],
        lost,
        numbers=numbers,
        refused=True,
    )
    yield case(
        "lost-head-checked",
        index,
        "the first three bytes are missing; the checksums of the inner chunks show it",
        CHECKED.sound()[3:],
        [BAD_CHECKSUM] * 3 + [BAD_ENTRY],
        CHECKED,
    )
    relative = START.shard(BODY, [(4 * i, 4) for i in range(4)])
    numbers = {"offset": 0, "nbytes": 4}
    yield case(
        "offsets-from-the-data",
        "SC-22 SC-33",
        "offsets that do not count the index at the start",
        relative,
        [BAD_ENTRY] * 4,
        START,
        numbers=numbers,
        refused=True,
    )
    yield case(
        "tail-cut-start",
        "SC-43",
        "the last six bytes are missing after an index at the start",
        START.sound()[:-6],
        [*WORDS[:2], BAD_ENTRY, BAD_ENTRY],
        START,
        numbers={"offset": 76, "nbytes": 4},
        refused=True,
    )
    checked = Layout(at_start=True, chunk_checksum=True)
    yield case(
        "tail-cut-start-checked",
        "SC-43",
        "the last ten bytes are missing; complete inner chunks with checksums can be read",
        checked.sound()[:-10],
        [*WORDS[:2], BAD_ENTRY, BAD_ENTRY],
        checked,
        numbers={"offset": 84, "nbytes": 8},
    )
    yield case(
        "no-checksum-flip",
        "SC-29",
        "the highest bit of an offset is flipped, and there is no checksum",
        flipped(PLAIN.sound(), 16 + 16 + 7, 128),
        [WORDS[0], BAD_ENTRY, *WORDS[2:]],
        PLAIN,
        numbers={"offset": 2**63 + 4, "nbytes": 4},
        refused=True,
    )
    outside = [(0, 4), (4, 4), (900, 4), (ABSENT, 7)]
    yield case(
        "outside-the-array",
        "SC-36",
        "bad entries of inner chunks outside the array: a shard does not know the shape of the array",
        PLAIN.shard(BODY, outside),
        [*WORDS[:2], BAD_ENTRY, BAD_ENTRY],
        PLAIN,
        array=(2, 4),
        numbers={"offset": 900, "nbytes": 4},
        refused=True,
    )
    checked_outside = Layout(index_checksums=0, chunk_checksum=True)
    yield case(
        "outside-the-array-checked",
        "SC-36",
        "the same with checksums of inner chunks: those inside the array can be read",
        checked_outside.shard(b"".join(map(checked_outside.chunk, WORDS)), [(0, 8), (8, 8), *outside[2:]]),
        [*WORDS[:2], BAD_ENTRY, BAD_ENTRY],
        checked_outside,
        array=(2, 4),
        numbers={"offset": 900, "nbytes": 4},
    )


def chunk_cases() -> Iterator[Case]:
    """Yield shards with damaged bytes in an inner chunk; they are noticed only when this inner chunk is read."""
    sound = CHECKED.sound()
    chunks = [WORDS[0], BAD_CHECKSUM, *WORDS[2:]]
    yield case(
        "chunk-bit-flipped", "SC-32", "a flipped bit in an inner chunk", flipped(sound, 9), chunks, CHECKED
    )
    yield case(
        "chunk-checksum-flipped",
        "SC-32",
        "a flipped bit in its checksum",
        flipped(sound, 13),
        chunks,
        CHECKED,
    )


def cases() -> list[Case]:
    return [*sound_cases(), *index_cases(), *entry_cases(), *chunk_cases()]


def nested(inner: Json) -> Json:
    """Return a case with this shard as the first inner chunk of another shard, whose second inner chunk is valid."""
    shard = None if inner["shard"] is None else bytes.fromhex(inner["shard"])
    layout = Layout(shape=(4, 8), inner=(4, 4))
    codec = layout.codec()
    codec["configuration"]["codecs"] = [inner["codec"]]
    sound = sound_shard_for(inner["codec"])
    n = 0 if shard is None else len(shard)
    entries = [NONE if shard is None else (0, n), (n, len(sound))]
    blob = layout.shard((shard or b"") + sound, entries)
    return inner | {
        "name": f"{inner['name']}, nested",
        "codec": codec,
        "shard": blob.hex(),
        "shape": [4, 8],
        "inner": [4, 4],
        "array": [4, 8],
    }


def sound_shard_for(codec: Json) -> bytes:
    """Return the shard of letters in the layout of a codec."""
    checked_start = Layout(at_start=True, chunk_checksum=True)
    for layout in (END, START, PLAIN, PLAIN_START, CHECKED, checked_start, Layout(index_checksums=2), Layout(big_endian=True),
                   Layout(transposed=True)):  # fmt: skip
        if layout.codec() == codec:
            return layout.sound()
    raise ValueError(f"no layout for {codec}")


def main() -> None:
    made = [asdict(c) for c in cases()]
    text = ",\n".join(json.dumps(c) for c in made)
    (HERE / "broken" / "cases.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
