# test_text.py - text and bytes of any length, by native code: compared with zarr and numcodecs
# SPDX-License-Identifier: MIT
"""Every array here is opened with ``strict``, so nothing is left to zarr's own pipeline; zarr reads what the engine writes, and the reverse."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import (
    KINDS_OF_STORE,
    ZARR_IS_31,
    assemble,
    chunk_bytes,
    entries_of,
    ours,
    quiet,
    store_of,
    zarrs_view,
)
from zarr.codecs import (
    BloscCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as of_numcodecs
from zarr.core.buffer.cpu import Buffer
from zarr.core.dtype import VariableLengthBytes
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import CodecError, native, open_array
from shardcodec.zarr_plugin.array_codecs import StagedKind, TextKind, kind_of

TEXTS = [
    "",
    "a",
    "Zürich",
    "日本語",
    "x" * 15,
    "y" * 16,
    "ü" * 8,
    "z" * 300,
    "a\0b",
    "🙂",
    "AAACCTGAGAAACCAT-1",
]
KINDS = ("string", "bytes")
ANY: dict[str, dict[str, Any]] = {
    "sharded": {"shape": (50,), "shards": (20,), "chunks": (5,)},
    "plain": {"shape": (50,), "chunks": (7,)},
    "planes": {"shape": (9, 14), "shards": (4, 6), "chunks": (2, 3)},
    "plain planes": {"shape": (9, 14), "chunks": (4, 5)},
    "turned": {
        "shape": (9, 14, 3),
        "shards": (4, 6, 3),
        "chunks": (2, 3, 1),
        "filters": [TransposeCodec(order=(2, 0, 1))],
    },
    "plain turned": {"shape": (9, 14), "chunks": (4, 5), "filters": [TransposeCodec(order=(1, 0))]},
    "index at start": {"shape": (20,), "shards": {"shape": (10,), "index_location": "start"}, "chunks": (5,)},
    "scalar": {"shape": (), "chunks": ()},
    "no codecs": {"shape": (50,), "shards": (20,), "chunks": (5,), "compressors": None},
    "checksums": {
        "shape": (50,),
        "shards": (20,),
        "chunks": (5,),
        "compressors": [ZstdCodec(level=1, checksum=True), Crc32cCodec()],
    },
    "gzip": {"shape": (50,), "chunks": (7,), "compressors": [GzipCodec(level=1)]},
    "blosc": {"shape": (50,), "chunks": (7,), "compressors": [BloscCodec(cname="lz4", typesize=1)]},
    "only a checksum": {"shape": (50,), "chunks": (7,), "compressors": [Crc32cCodec()]},
    "v2": {"shape": (50,), "chunks": (7,), "zarr_format": 2},
    "v2 planes": {"shape": (9, 14), "chunks": (4, 5), "zarr_format": 2, "order": "F"},
    "empty": {"shape": (0,), "chunks": (7,)},
}


def create(store: Any, kind: str, **arguments: Any) -> None:
    with quiet():
        zarr.create_array(store, dtype=str if kind == "string" else VariableLengthBytes(), **arguments)


def elements(kind: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    chosen = np.random.default_rng(seed).choice(np.array(TEXTS, dtype=object), size=shape)
    array = np.empty(shape, dtype=object)
    for at in np.ndindex(*shape):
        text = str(np.asarray(chosen)[at]) if shape else "Zürich"
        array[at] = text if kind == "string" else text.encode()
    return array if kind == "bytes" else array.astype(np.dtypes.StringDType())


def equal(found: Any, expected: Any) -> bool:
    found, expected = np.asarray(found), np.asarray(expected)
    return found.shape == expected.shape and found.astype(object).tolist() == expected.astype(object).tolist()


@pytest.fixture(params=[pytest.param((kind, name), id=f"{kind}, {name}") for kind in KINDS for name in ANY])
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    kind, name = request.param
    return kind, ANY[name]


def test_each_pipeline_reads_what_the_other_writes(case: tuple[str, dict[str, Any]]) -> None:
    kind, arguments = case
    store = MemoryStore()
    create(store, kind, **arguments)
    array = ours(store)
    assert isinstance(kind_of(array.metadata), TextKind)
    values = elements(kind, array.shape)
    array[...] = values
    assert equal(zarrs_view(array)[...], values)
    assert equal(array[...], values)
    if values.ndim:
        assert array[...].dtype == zarrs_view(array)[...].dtype
    values = elements(kind, arguments["shape"], 1)
    if (kind == "bytes" and values.ndim == 0) or (ZARR_IS_31 and arguments is ANY["plain turned"]):
        array[...] = values  # zarr 3.4 fails for the former; zarr 3.1 stores the latter in wrong order
    else:
        zarrs_view(array)[...] = values
    assert equal(array[...], values)
    for threads in (1, 3):
        handle = open_array(store, threads=threads)
        assert equal(handle[...], values)
        assert handle.fill_value == ("" if kind == "string" else b"")
        if values.size:
            at = tuple(n // 2 for n in values.shape)
            assert handle[at][()] == values[at]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", KINDS_OF_STORE)
def test_every_kind_of_store(kind: str, place: str, tmp_path: Path) -> None:
    store = store_of(place, tmp_path)
    create(store, kind, **ANY["planes"])
    array = ours(store)
    values = elements(kind, (9, 14))
    array[...] = values
    array[1:5, 3] = values[2:6, 4]
    values[1:5, 3] = values[2:6, 4].copy()
    assert equal(zarrs_view(array)[...], values) and equal(array[...], values)
    assert equal(open_array(store)[2:7:2, ::3], values[2:7:2, ::3])


LONG = ["", "y" * 16, "z" * 254, "z" * 255, "z" * 256, "z" * 300, "ü" * 127, "ü" * 128]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["planes", "plain turned"])
def test_long_texts_with_index_arrays(kind: str, name: str) -> None:
    """numpy 2.0 to 2.4 stored wrong elements or ended the process: long texts, index arrays along several axes, repeated values.

    Inner chunks without elements have a long fill value; inner chunks are merged with texts of 255 bytes, a limit of numpy's memory.
    """
    rng = np.random.default_rng(2)
    store = MemoryStore()
    fill = "f" * 40 if kind == "string" else b"f" * 40
    create(store, kind, fill_value=fill, **ANY[name])
    handle = open_array(store, mode="r+")
    expected = np.full(handle.shape, fill, dtype=object)
    out = np.empty(handle.shape, np.dtypes.StringDType() if kind == "string" else object)
    for step in range(60):
        rows, columns = (rng.permutation(n)[: rng.integers(1, 4)] for n in handle.shape)
        texts = rng.choice(LONG, (len(rows), len(columns)))
        objects = np.array([text if kind == "string" else text.encode() for text in texts.flat], dtype=object)
        values = objects.reshape(texts.shape).astype(out.dtype)
        if step % 3 == 0:
            handle.write((rows, columns), values, kind="orthogonal")
            expected[np.ix_(rows, columns)] = objects.reshape(texts.shape)
        elif step % 3 == 1:
            handle.write((rows, columns), values[0, 0], kind="orthogonal")
            expected[np.ix_(rows, columns)] = objects[0]
        else:
            n = min(len(rows), len(columns))
            handle.write((rows[:n], columns[:n]), values[0, 0], kind="coordinate")
            expected[rows[:n], columns[:n]] = objects[0]
        found = handle.read((rows, columns), kind="orthogonal")
        assert found.tolist() == expected[np.ix_(rows, columns)].tolist()
        n = min(len(rows), len(columns))
        found = handle.read((rows[:n], columns[:n]), kind="coordinate")
        assert found.tolist() == expected[rows[:n], columns[:n]].tolist()
        handle.read(..., out=out)
        assert out.tolist() == expected.tolist()


def test_texts_that_replace_others_keep_to_their_memory() -> None:
    """numpy 2.0 to 2.3.1 wrote past the end of an element of 255 bytes, so neighbours had other texts."""
    lengths = [0, 1, 15, 16, 254, 255, 256, 257, 300]
    target = np.empty(4, np.dtypes.StringDType())
    expected = [""] * 4
    rng = np.random.default_rng(0)
    for number in range(2000):
        place, text = int(rng.integers(4)), "abcd"[number % 4] * int(rng.choice(lengths))
        source, expected[place] = np.array([text], target.dtype), text
        native.load().copy_texts(source, np.zeros(1, np.int64), target, np.array([16 * place]))
        assert target.tolist() == expected


def test_copies_outside_of_an_array_are_refused() -> None:
    texts = np.array([["a", "b" * 20], ["c", "d"]], np.dtypes.StringDType())
    target = np.empty((2, 2), texts.dtype)
    copy = native.load().copy_texts
    every = np.arange(4) * 16
    copy(texts[::-1, ::-1], -every, target, every)
    assert target.ravel().tolist() == ["d", "c", "b" * 20, "a"]
    copy(texts, np.array([16]), target, every[1:])
    assert target.ravel().tolist() == ["d", *["b" * 20] * 3]
    for wrong in ([64], [-16], [8], [2**62]):
        for froms, tos in ((wrong, [0]), ([0], wrong)):
            with pytest.raises(ValueError, match="expected offsets of elements from 0 to 48 bytes"):
                copy(texts, np.array(froms), target, np.array(tos))
    with pytest.raises(ValueError, match="1 numbers of 8 bytes, got 16 bytes"):
        copy(texts, np.zeros(2, np.int64), target, np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="expected offsets"):
        copy(texts[:0], np.zeros(1, np.int64), target, np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="views of one"):
        copy(texts, every, texts.T, every)
    with pytest.raises(TypeError, match="StringDType"):
        copy(texts.astype(object), every, target, every)
    target.flags.writeable = False
    with pytest.raises(TypeError, match="write"):
        copy(texts, every, target, every)
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    with pytest.raises(ValueError, match="missing value"):
        copy(missing, np.array([16]), np.empty(1, texts.dtype), np.zeros(1, np.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_fill_value_are_not_stored(kind: str) -> None:
    store = MemoryStore()
    create(store, kind, **ANY["sharded"])
    array = ours(store)
    values = elements(kind, (50,), 3)
    array[...] = values
    array[...] = "" if kind == "string" else b""
    assert not [key for key in store._store_dict if "/c/" in f"/{key}"]
    assert equal(array[...], ["" if kind == "string" else b""] * 50)


@pytest.mark.parametrize("fill", ["missing", "Zürich"])
def test_fill_value_of_elements_that_are_not_stored(fill: str) -> None:
    for kind in KINDS:
        for name in ("sharded", "plain", "v2"):
            store = MemoryStore()
            create(store, kind, fill_value=fill if kind == "string" else fill.encode(), **ANY[name])
            array = ours(store)
            array[3:8] = elements(kind, (5,), 4)
            own = zarrs_view(array)[...]
            assert equal(array[...], own) and equal(open_array(store)[...], own)
            offsets, data = open_array(store).read_arrow()
            assert texts_of(offsets, data) == [
                text.encode() if kind == "string" else text for text in own.astype(object)
            ]


# ---- objects that are no text


@pytest.mark.parametrize("name", ["sharded", "plain", "v2"])
def test_none_and_zero_are_stored_as_empty_as_by_numcodecs(name: str) -> None:
    store = MemoryStore()
    create(store, "bytes", **ANY[name])
    array = ours(store)
    values = np.array([None, 0, b"a", b"", np.bytes_(b"b")] * 10, dtype=object)
    array[...] = values
    assert equal(zarrs_view(array)[...], [b"", b"", b"a", b"", b"b"] * 10)


@pytest.mark.parametrize("name", ["sharded", "plain"])
def test_element_of_another_type_is_refused_and_nothing_is_stored(name: str) -> None:
    store = MemoryStore()
    create(store, "bytes", **ANY[name])
    array = ours(store)
    array[...] = elements("bytes", (50,), 5)
    before = array[...]
    for wrong in ("text", 1.5, [1]):
        values = np.array([b"a"] * 50, dtype=object)
        values[30] = wrong
        # zarr raises a TypeError
        with pytest.raises(CodecError, match="expected bytes") as caught:
            array[...] = values
        assert isinstance(caught.value, TypeError)
        assert equal(array[20:], before[20:])


def test_lone_surrogate_is_refused() -> None:
    """It has no UTF-8; numpy refuses it, too."""
    store = MemoryStore()
    create(store, "string", **ANY["sharded"])
    array = ours(store)
    with pytest.raises(ValueError, match="surrogates"):
        array[:1] = np.array(["\ud800"], dtype=object)


# ---- damaged chunks


def text_bytes(*texts: bytes, n: int | None = None) -> bytes:
    """Return the elements as numcodecs stores them, with any number in front."""
    number = len(texts) if n is None else n
    parts = [number.to_bytes(4, "little")]
    for text in texts:
        parts += [len(text).to_bytes(4, "little"), text]
    return b"".join(parts)


MALFORMED = {
    "no bytes": (b"", "expected 4 bytes, got 0"),
    "fewer elements": (text_bytes(b"a", b"b"), "expected 3 elements, got 2"),
    "more elements": (text_bytes(b"a", b"b", b"c", b"d"), "expected 3 elements, got 4"),
    "huge number": (text_bytes(b"a", n=2**32 - 1), "expected 3 elements, got 4294967295"),
    "no lengths": (text_bytes(n=3), "expected 16 bytes, got 4"),
    "cut length": (text_bytes(b"a", b"bcdefg", n=3)[:-1] + b"", "element 1: expected 6 bytes, got 5"),
    "cut before a length": (
        text_bytes(b"abcd", b"ef", n=3) + b"\1\0",
        "element 2: expected 4 bytes of its length, got 2",
    ),
    "element beyond the end": (
        text_bytes(b"a", b"b", n=3) + b"\xff\xff\xff\xff",
        "element 2: expected 4294967295 bytes, got 0",
    ),
    "bytes behind": (text_bytes(b"a", b"b", b"c") + b"!", "expected 19 bytes, got 20"),
}
NOT_UTF8 = {
    "a byte": b"ab\xff",
    "overlong": b"\xc0\xaf",
    "overlong of three": b"\xe0\x80\xaf",
    "surrogate": b"\xed\xa0\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80",
    "cut": "日本語".encode()[:-1],
    "continuation": b"a\x80",
    "long": b"x" * 40 + b"\xe2\x28\xa1" + b"y" * 9,
}


def damaged(kind: str, data: bytes, *, sharded: bool = True, **arguments: Any) -> Any:
    """Return an array of 9 elements, in chunks of 3 without compression, whose second chunk has these bytes."""
    store = MemoryStore()
    arguments = {"shape": (9,), "chunks": (3,), "compressors": None} | arguments
    create(store, kind, **arguments, shards=(9,) if sharded else None)
    array = ours(store)
    array[...] = elements(kind, (9,))
    if not sharded:
        store._store_dict["c/1"] = Buffer.from_bytes(data)
        return array
    blob = store._store_dict["c/0"].to_bytes()
    chunks = [chunk_bytes(blob, entry) for entry in entries_of(blob, 3)]
    chunks[1] = data
    ends = list(itertools.accumulate(map(len, chunks)))
    entries = [(end - len(chunk), len(chunk)) for end, chunk in zip(ends, chunks, strict=True)]
    store._store_dict["c/0"] = Buffer.from_bytes(assemble(b"".join(chunks), entries))
    return array


@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "plain"])
@pytest.mark.parametrize(("data", "words"), MALFORMED.values(), ids=list(MALFORMED))
@pytest.mark.parametrize("kind", KINDS)
def test_malformed_chunk(kind: str, data: bytes, words: str, sharded: bool) -> None:
    """SC-46. numcodecs ignores bytes behind the last element; the engine does not, because no writer stores any."""
    array = damaged(kind, data, sharded=sharded)
    codec = "vlen-utf8" if kind == "string" else "vlen-bytes"
    reads = [lambda: array[...], lambda: array[4], lambda: open_array(array.store)[3:5]]
    reads += [lambda: open_array(array.store).read_arrow()]
    for read in reads:
        with pytest.raises(CodecError, match=re.escape(f"{codec}: {words}")) as caught:
            read()
        assert str(caught.value.shard).endswith("c/0" if sharded else "c/1")
        assert caught.value.codec == codec and caught.value.actual is not None
        if sharded:
            assert caught.value.chunk_coords == (1,)
    assert equal(array[:3], zarrs_view(array)[:3])


@pytest.mark.parametrize("text", NOT_UTF8.values(), ids=list(NOT_UTF8))
def test_text_that_is_not_utf8(text: bytes) -> None:
    data = text_bytes(b"a", "Zürich".encode(), text)
    array = damaged("string", data)
    for read in (
        lambda: array[...],
        lambda: array[3],
        lambda: open_array(array.store).read_arrow(slice(3, 4)),
    ):
        with pytest.raises(
            CodecError, match=rf"element 2: expected {len(text)} bytes of UTF-8, got \d+"
        ) as caught:
            read()
        assert caught.value.element == 2 and caught.value.chunk_coords == (1,)
    with pytest.raises(CodecError):
        array[4:5] = np.array(["x"], dtype=object)  # the other elements of the chunk must be kept
    assert damaged("bytes", data)[5] == text


@pytest.mark.parametrize("length", range(70))
def test_utf8_as_python_decodes_it(length: int) -> None:
    """Each text has a change at a random place; Python's decoder says whether it is still UTF-8."""
    random = np.random.default_rng(length)
    alphabet = [
        "a",
        "b",
        "é",
        "日",
        "🙂",
        "\0",
        "\x7f",
        "\x80",
        "\u07ff",
        "\u0800",
        "\ud7ff",
        "\ue000",
        "\U0010ffff",
    ]
    for _ in range(8):
        text = bytearray("".join(random.choice(alphabet, length)).encode())
        if text and random.random() < 0.8:
            text[random.integers(len(text))] = random.integers(256)
        array = damaged("string", text_bytes(b"", bytes(text), b"\xc3\xa9"))
        try:
            expected, place = bytes(text).decode(), None
        except UnicodeDecodeError as error:
            expected, place = "", error.start
        if place is None:
            assert array[4] == expected
        else:
            with pytest.raises(CodecError, match="UTF-8") as caught:
                array[4]
            assert caught.value.actual == place


@pytest.mark.parametrize("name", ["zstd", "gzip", "numcodecs.zlib"])
def test_few_bytes_that_claim_to_be_many(name: str) -> None:
    """A kilobyte of zstd may stand for gigabytes; the limit depends on the number of elements and of encoded bytes."""
    encoded = {
        "zstd": lambda data: numcodecs.Zstd(level=1).encode(data),
        "gzip": lambda data: gzip.compress(data, 9),
        "numcodecs.zlib": lambda data: zlib.compress(data, 9),
    }[name](bytes(64 << 20))
    with quiet():
        compressor = {"zstd": ZstdCodec, "gzip": GzipCodec, "numcodecs.zlib": of_numcodecs.Zlib}[name]()
    array = damaged("string", encoded, compressors=[compressor])
    with pytest.raises(CodecError, match="expected"):
        array[4]


@pytest.mark.parametrize("name", ["zstd", "gzip", "blosc"])
def test_long_texts_that_compress_well(name: str) -> None:
    """The decoded size is not known before: it is claimed by the stream, or found by trying."""
    compressor = {"zstd": ZstdCodec(), "gzip": GzipCodec(), "blosc": BloscCodec(typesize=1)}[name]
    store = MemoryStore()
    create(store, "string", shape=(6,), shards=(6,), chunks=(2,), compressors=[compressor])
    array = ours(store)
    values = np.array(["x" * (1 << 20), "", "日本" * 100_000, "a" * 15, "ab" * 70_000, "c"], dtype=object)
    array[...] = values
    assert equal(array[...], values) and equal(zarrs_view(array)[...], values)


# ---- offsets and bytes


def texts_of(offsets: Any, data: Any) -> list[bytes]:
    return [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("name", ["sharded", "planes", "plain turned", "v2 planes", "scalar", "empty"])
@pytest.mark.parametrize("kind", KINDS)
def test_read_arrow(kind: str, name: str) -> None:
    store = MemoryStore()
    create(store, kind, **ANY[name])
    array = ours(store)
    values = elements(kind, array.shape, 6)
    array[...] = values
    handle = open_array(store)
    selections: list[Any] = [(..., "brackets")]
    if array.ndim == 2:
        selections += [((slice(1, 8, 3), 5), "basic"), (([8, 0, 3], [2, 2, 13]), "coordinate")]
        selections += [(([8, 0, 3], slice(None, None, 4)), "orthogonal"), (np.s_[2:2, :], "basic")]
    for selection, way in selections:
        expected = handle.read(selection, kind=way)
        offsets, data = handle.read_arrow(selection, kind=way)
        assert offsets.dtype == np.int64 and data.dtype == np.uint8 and offsets[0] == 0
        assert texts_of(offsets, data) == stored_texts(expected)
    size = [min(3, n) for n in array.shape]
    starts = [[n - k for n, k in zip(array.shape, size, strict=True)], [0] * array.ndim] * 2
    offsets, data = handle.read_arrow_boxes(starts, size)  # boxes overlap
    assert texts_of(offsets, data) == stored_texts(handle.read_boxes(starts, size))
    offsets, data = handle.read_arrow_boxes(starts[:0], size)
    assert offsets.tolist() == [0] and data.shape == (0,)


def stored_texts(values: Any) -> list[bytes]:
    flat = values.astype(object).ravel().tolist()
    return [text.encode() if isinstance(text, str) else text for text in flat]


def test_read_arrow_refuses_numbers() -> None:
    store = MemoryStore()
    zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
    handle = open_array(store)
    for read in (handle.read_arrow, lambda: handle.read_arrow_boxes([[0]], (2,))):
        with pytest.raises(shardcodec.UnsupportedError, match="any length"):
            read()


# ---- handles


def test_handle_writes_and_grows(tmp_path: Path) -> None:
    create(LocalStore(tmp_path), "string", **ANY["sharded"])
    handle = open_array(tmp_path, mode="r+")
    handle[3:6] = ["a", "Zürich", "日本語"]
    handle.write_boxes([[0], [40]], [["x", "y"], ["z", ""]])
    handle.append(["one", "two"])
    assert handle.shape == (52,)
    values = handle[...]
    assert values[[0, 1, 3, 4, 5, 40, 50, 51]].tolist() == [
        "x",
        "y",
        "a",
        "Zürich",
        "日本語",
        "z",
        "one",
        "two",
    ]
    assert handle.read_boxes([[3], [49]], (3,)).tolist() == [["a", "Zürich", "日本語"], ["", "one", "two"]]
    assert handle.read_chunks([[0], [10]])[1].tolist()[:2] == ["one", "two"]
    handle.resize((4,))
    assert equal(zarrs_view(zarr.open_array(tmp_path))[...], ["x", "y", "", "a"])


def test_create_array_of_text(tmp_path: Path) -> None:
    names = np.array(["a", "Zürich", ""], dtype=np.dtypes.StringDType())
    handle = shardcodec.create_array(tmp_path / "a", data=names, chunks=(2,))
    assert equal(handle[...], names) and equal(zarr.open_array(tmp_path / "a")[...], names)


def test_buffered_writes(tmp_path: Path) -> None:
    create(LocalStore(tmp_path), "string", **ANY["planes"])
    array = ours(tmp_path)
    values = elements("string", (9, 14), 7)
    with shardcodec.group_writes():
        for row in range(9):
            array[row] = values[row]
        assert equal(array[3], values[3])
    assert equal(zarrs_view(array)[...], values)


def test_chunks_that_do_not_divide_the_shard(tmp_path: Path) -> None:
    create(LocalStore(tmp_path), "string", shape=(12,), shards=(12,), chunks=(4,))
    document = json.loads((tmp_path / "zarr.json").read_text())
    document["codecs"][0]["configuration"]["chunk_shape"] = [5]
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    handle = open_array(tmp_path, mode="r+", clip=True)
    values = elements("string", (12,), 8)
    handle[...] = values
    handle[10:11] = ["last"]
    values[10] = "last"
    assert equal(handle[...], values) and equal(handle[9:12], values[9:12])


# ---- what is left to zarr's codecs


def test_nested_shards_and_codecs_around_them_stay_staged() -> None:
    store = MemoryStore()
    inner = ShardingCodec(chunk_shape=(2,), codecs=[VLenUTF8Codec(), ZstdCodec()])
    with quiet():
        zarr.create_array(
            store,
            shape=(16,),
            chunks=(8,),
            dtype=str,
            serializer=ShardingCodec(chunk_shape=(4,), codecs=[inner]),
            compressors=None,
        )
    array = ours(store)
    assert isinstance(kind_of(array.metadata), StagedKind)
    values = elements("string", (16,), 9)
    array[...] = values
    assert equal(array[...], values)
    with pytest.raises(shardcodec.UnsupportedError, match="nested"):
        open_array(store)


# ---- threads


def test_threads_read_and_write_one_array(tmp_path: Path) -> None:
    create(LocalStore(tmp_path), "string", shape=(4000,), shards=(1000,), chunks=(100,))
    values = elements("string", (4000,), 10)
    array = ours(tmp_path, threads=3)
    with ThreadPoolExecutor(4) as pool:
        parts = [slice(1000 * i, 1000 * (i + 1)) for i in range(4)]
        list(pool.map(lambda part: array.__setitem__(part, values[part]), parts))
        handle = open_array(tmp_path, threads=3)
        shared = np.empty((4000,), np.dtypes.StringDType())
        for found in pool.map(lambda part: handle.read(part, out=shared[part]), parts * 4):
            assert found.shape == (1000,)
    assert equal(shared, values) and equal(array[...], values)
