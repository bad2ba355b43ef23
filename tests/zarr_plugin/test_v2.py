# test_v2.py - arrays of Zarr format 2, compared with zarr's own pipelines
# SPDX-License-Identifier: MIT
"""Native codecs of numcodecs give the same elements as zarr, for reading and writing; zarr does the rest."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.core.codec_pipeline as zarr_pipelines
from helpers import ZARR_IS_31, bits, object_of, ours, put_object, quiet, store_of, zarrs_view
from numcodecs.checksum32 import CRC32C
from zarr.storage import MemoryStore

import shardcodec
from shardcodec import tools

SHAPE, CHUNKS = (10, 7), (4, 3)

CODECS: dict[str, Any] = {
    "none": None,
    "blosc": numcodecs.Blosc(),
    "blosc-zstd-auto": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.AUTOSHUFFLE),
    "blosc-lz4hc-bit": numcodecs.Blosc("lz4hc", 5, numcodecs.Blosc.BITSHUFFLE),
    "blosc-blosclz": numcodecs.Blosc("blosclz", 9, numcodecs.Blosc.SHUFFLE, 512),
    "blosc-zlib": numcodecs.Blosc("zlib", 1, numcodecs.Blosc.NOSHUFFLE),
    "zstd": numcodecs.Zstd(3),
    "zstd-checksum": numcodecs.Zstd(1, checksum=True),
    "gzip": numcodecs.GZip(6),
    "zlib": numcodecs.Zlib(-1),
    "lz4": numcodecs.LZ4(),
    "crc32c": CRC32C(),
}

# Codecs whose bytes do not depend on the version of a library.
IDENTICAL = ("none", "blosc", "blosc-lz4hc-bit", "lz4", "crc32c")

DTYPES: list[Any] = [
    *("|b1", "|i1", ">i4", "<u8", "<f2", ">f8", "<c8", ">c16", "|S5", "<U3", ">U3", "|V4", "<M8[ns]", ">m8[3s]", "|S300"),
    [("a", "<i4"), ("b", "<f8")],
    [("a", ">i2"), ("b", "|S3"), ("c", ">c8")],
]  # fmt: skip

# Every codec with some data types, and some codecs with every data type; the others are slow together, and each has one order by day.
CASES = [
    pytest.param(
        codec, dtype, order, marks=[pytest.mark.slow, *[pytest.mark.nightly] * ((i + j + k) % 2)] * is_slow
    )
    for i, codec in enumerate(CODECS)
    for j, dtype in enumerate(DTYPES)
    for k, order in enumerate("CF")
    for is_slow in [codec not in IDENTICAL[:2] and dtype not in (">i4", "|S5")]
]

PIPELINES = [
    f"zarr.core.codec_pipeline.{name}"
    for name in ("BatchedCodecPipeline", "FusedCodecPipeline")
    if hasattr(zarr_pipelines, name)
]


def elements(dtype: Any, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return elements of random bits; of text and truth values only valid ones."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind in "bU":
        numbers = rng.integers(0, 2 if dtype.kind == "b" else 900, shape)
        return numbers.astype(dtype)
    n = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.integers(1, 100, n, dtype=np.uint8).tobytes(), dtype).reshape(shape)


def create_v2(store: Any, *, own: bool = False, **arguments: Any) -> Any:
    """Create an array of 4 x 3 ragged chunks; strict, or with zarr's pipeline for `own`."""
    given: dict[str, Any] = {
        "shape": SHAPE,
        "chunks": CHUNKS,
        "dtype": "<i4",
        "compressors": None,
        "filters": None,
    }
    with quiet():
        array = zarr.create_array(store, zarr_format=2, **(given | arguments))
    return array if own else shardcodec.attach(array, strict=True)


def stored(store: MemoryStore) -> dict[str, bytes]:
    """Return the chunks of an array, by key."""
    return {key: value.to_bytes() for key, value in store._store_dict.items() if not key.startswith(".")}


# ---- the same elements and bytes


@pytest.mark.filterwarnings(
    "ignore::zarr.errors.UnstableSpecificationWarning" if not ZARR_IS_31 else "ignore:"
)
@pytest.mark.parametrize(("codec", "dtype", "order"), CASES, ids=lambda value: str(value)[:15])
def test_both_read_what_the_other_one_wrote(codec: str, dtype: Any, order: str) -> None:
    arguments = {
        "dtype": np.dtype(dtype),
        "compressors": CODECS[codec],
        "order": order,
        "chunk_key_encoding": {"name": "v2", "separator": {"C": ".", "F": "/"}[order]},
    }
    a, b = MemoryStore(), MemoryStore()
    values = elements(dtype)
    theirs, mine = create_v2(a, own=True, **arguments), create_v2(b, **arguments)
    theirs[...] = values
    mine[...] = values
    got = shardcodec.attach(theirs, strict=True)[...]
    assert got.dtype == theirs[...].dtype == np.dtype(dtype)
    assert got.flags.f_contiguous == theirs[...].flags.f_contiguous
    for path in PIPELINES:
        with zarr.config.set({"codec_pipeline.path": path}):
            assert bits(zarrs_view(mine)[...]) == bits(values) == bits(got)
    assert bits(shardcodec.open_array(a)[...].astype(dtype)) == bits(values)
    assert stored(a).keys() == stored(b).keys()
    if codec in IDENTICAL:
        assert stored(a) == stored(b)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4, 5)], ids=str)
def test_ranks_orders_and_separators(
    shape: tuple[int, ...], separator: str, order: str, tmp_path: Path
) -> None:
    arguments = {
        "shape": shape,
        "chunks": (2,) * len(shape),
        "dtype": ">i2",
        "order": order,
        "compressors": numcodecs.Zlib(),
        "chunk_key_encoding": {"name": "v2", "separator": separator},
    }
    values = elements(">i2", shape)
    theirs = create_v2(tmp_path / "a", own=True, **arguments)
    theirs[...] = values
    mine = create_v2(tmp_path / "b", **arguments)
    mine[...] = values
    assert (ours(tmp_path / "a")[...] == values).all()
    assert (zarrs_view(mine)[...] == values).all()
    names = {str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*")}
    assert names == {str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*")}
    assert (shardcodec.open_array(tmp_path / "a")[...] == values).all()


def test_several_codecs_of_bytes_are_a_chain() -> None:
    """From the second codec on, the input is bytes, so the automatic shuffle is another one."""
    filters = [CRC32C(), numcodecs.Blosc("lz4", 5, numcodecs.Blosc.AUTOSHUFFLE)]
    a, b = MemoryStore(), MemoryStore()
    values = elements("<i4", (40, 30))
    for store, own in ((a, True), (b, False)):
        chain = {"filters": filters, "compressors": numcodecs.LZ4(), "shape": (40, 30), "chunks": (20, 30)}
        array = create_v2(store, own=own, **chain)
        array[...] = values
    assert stored(a) == stored(b)
    assert bits(ours(a)[...]) == bits(values)


# ---- selections and updates


def test_partial_write_keeps_the_elements_beyond_the_edge(tmp_path: Path) -> None:
    """A chunk at the edge is stored whole, and an array that has grown shows what is there."""
    array = create_v2(tmp_path, fill_value=3)
    array[...] = 5
    assert (tmp_path / "2.2").stat().st_size == 4 * 12
    array.resize((12, 9))
    array[10:12, 7] = 8
    with quiet():
        shown = zarr.open_array(tmp_path)[...]
    assert (shown[:10, :7] == 5).all() and (shown[10:, 7] == 8).all()
    assert (shown[10:, :7] == 3).all() and (shown[:, 8] == 3).all()


def test_group_writes_buffers_chunks(tmp_path: Path) -> None:
    array = create_v2(tmp_path, compressors=numcodecs.Blosc())
    values = elements("<i4")
    with shardcodec.group_writes():
        for i in range(10):
            array[i] = values[i]
        assert not (tmp_path / "0.0").exists()
        assert bits(array[...]) == bits(values)
    assert bits(zarrs_view(array)[...]) == bits(values)


# ---- missing chunks


FILLS = [
    ("<f8", None),
    ("<f8", float("nan")),
    (">f4", -0.0),
    ("<i4", 7),
    ("|b1", True),
    ("<c16", 1 + 2j),
    ("|S5", b"ab"),
    ("<U3", "xyz"),
    (">U3", None),
    ("|V4", b"abcd"),
    ("<M8[ns]", None),
    (">M8[s]", 5),
    ("<m8[us]", None),
    ([("a", "<i4"), ("t", "<M8[s]")], None),
    ([("a", ">i4"), ("b", ">f8")], (3, 1.5)),
]


@pytest.mark.parametrize(("dtype", "fill"), FILLS, ids=lambda value: str(value)[:20])
def test_missing_and_empty_chunks_equal_zarrs(dtype: Any, fill: Any) -> None:
    dtype = np.dtype(dtype)
    value = np.array(fill, dtype)[()] if dtype.names and fill is not None else fill
    for write_empty in (False, True):
        arguments = {"dtype": dtype, "fill_value": value, "config": {"write_empty_chunks": write_empty}}
        a, b = MemoryStore(), MemoryStore()
        theirs, mine = create_v2(a, own=True, **arguments), create_v2(b, **arguments)
        empty = theirs[...]
        assert bits(mine[...]) == bits(empty)
        assert bits(shardcodec.open_array(b)[...].astype(dtype)) == bits(empty)
        for array in (theirs, mine):
            array[:4, :3] = elements(dtype, (4, 3))
            array[4:8] = empty[0, 0]
        assert stored(a) == stored(b)
        assert bits(mine[...]) == bits(theirs[...])
        for array in (theirs, mine):
            array[:4, :3] = empty[0, 0]
        assert stored(a) == stored(b)


# ---- damage


@pytest.mark.parametrize("kind", ["local", "memory", "other"])
@pytest.mark.parametrize("codec", ["blosc", "blosc-zlib", "zstd", "gzip", "zlib", "lz4", "crc32c", "none"])
def test_truncated_chunk_is_an_error_that_names_it(codec: str, kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)
    array = create_v2(store, compressors=CODECS[codec], shape=(40, 30), chunks=(20, 30))
    values = elements("<i4", (40, 30))
    array[...] = values
    whole = object_of(store, "1.0")
    cuts = sorted({0, 1, 3, 4, 15, 16, 17, 20, len(whole) // 2, len(whole) - 5, len(whole) - 1})
    for cut in cuts:
        put_object(store, "1.0", whole[:cut])
        with pytest.raises(shardcodec.ShardError, match=r"1\.0") as caught:
            array[...]
        assert isinstance(caught.value, ValueError) and str(caught.value.shard).endswith("1.0")
        if codec not in ("none", "crc32c") and cut:  # no bytes are a valid gzip stream of nothing
            assert isinstance(caught.value, shardcodec.CodecError)
            assert caught.value.codec is not None
        with pytest.raises(shardcodec.ShardError, match=r"1\.0"):
            array[21, 3] = 5
        assert object_of(store, "1.0") == whole[:cut]
        assert bits(array[:20]) == bits(values[:20])


@pytest.mark.parametrize("codec", ["blosc", "zstd", "lz4", "zlib"])
def test_changed_byte_gives_an_error_or_elements(codec: str) -> None:
    """No byte of a chunk can crash the reader; a codec without a checksum may give other elements."""
    store = MemoryStore()
    array = create_v2(store, compressors=CODECS[codec], shape=(20, 30), chunks=(20, 30))
    array[...] = np.arange(600).reshape(20, 30) // 7
    whole = object_of(store, "0.0")
    errors = []
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        for value in (0x00, 0xFF, whole[at] ^ 0x10):
            put_object(store, "0.0", whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                assert array[...].shape == (20, 30)
            except shardcodec.ShardError as error:
                errors.append(str(error))
    assert len(errors) > 10
    assert all("0.0" in text for text in errors)


# ---- what zarr does


class TwiceZlib(numcodecs.Zlib):
    """A codec of a third party with the name of a codec of numcodecs."""


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "bz2": ({"compressors": numcodecs.BZ2()}, "bz2"),
    "delta of other elements": (
        {"filters": [numcodecs.Delta("<u4")], "compressors": numcodecs.Zlib()},
        "int32",
    ),
    "delta in another byte order": ({"dtype": ">i4", "filters": [numcodecs.Delta("<i4")]}, "big-endian"),
    "lookup3 with a start": (
        {"filters": [numcodecs.JenkinsLookup3(initval=7)], "compressors": numcodecs.Zlib()},
        "initval",
    ),
    "third party": ({"compressors": TwiceZlib()}, "TwiceZlib"),
    "two byte orders": ({"dtype": [("a", "<i4"), ("b", ">i4")]}, "one byte order"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_zarr_does_what_is_not_native(name: str, tmp_path: Path) -> None:
    arguments, reason = FOREIGN[name]
    array = create_v2(tmp_path, own=True, **arguments)
    mine = shardcodec.attach(array)
    values = elements(array.dtype)
    mine[...] = values
    assert bits(mine[2:9]) == bits(zarrs_view(array)[2:9]) == bits(values[2:9])
    assert any(reason in why for why in shardcodec.stats()["fallbacks"])
    with pytest.raises(shardcodec.UnsupportedError, match=reason):
        shardcodec.attach(array, strict=True)[...]
    if name != "third party":
        with pytest.raises(shardcodec.UnsupportedError, match=rf"{reason}.*zarr\.open_array") as refusal:
            shardcodec.open_array(tmp_path)
        assert ("shardcodec convert" in str(refusal.value)) == (name != "two byte orders")


def test_copy_that_the_refusal_names_is_native(tmp_path: Path) -> None:
    array = create_v2(tmp_path / "old.zarr", own=True, compressors=numcodecs.BZ2(1))
    values = elements(array.dtype)
    array[...] = values
    with pytest.raises(shardcodec.UnsupportedError, match="make a native copy with `shardcodec convert`"):
        shardcodec.open_array(tmp_path / "old.zarr")
    tools.convert(tmp_path / "old.zarr", tmp_path / "new.zarr")
    assert (shardcodec.open_array(tmp_path / "new.zarr")[...] == values).all()


def test_array_of_objects_is_native_only_with_a_codec_of_text_or_bytes(tmp_path: Path) -> None:
    with quiet(), shardcodec.enable():
        array = zarr.create_array(tmp_path, shape=(4,), chunks=(2,), dtype="str", zarr_format=2)
        array[...] = ["a", "bc", "", "ä"]
        assert list(array[...]) == list(zarr.open_array(tmp_path)[...]) == ["a", "bc", "", "ä"]
    assert list(shardcodec.open_array(tmp_path)[...]) == ["a", "bc", "", "ä"]
    document = json.loads((tmp_path / ".zarray").read_bytes())
    (tmp_path / ".zarray").write_text(json.dumps({**document, "filters": [{"id": "json2"}]}))
    with pytest.raises(shardcodec.UnsupportedError, match=r"\|O.*zarr cannot open it either"):
        shardcodec.open_array(tmp_path)


@pytest.mark.parametrize("name", ["encode", "decode"])
def test_replaced_function_of_numcodecs_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = create_v2({}, own=True, compressors=numcodecs.Zlib())
    array[...] = 3
    calls = []
    function = getattr(numcodecs.Zlib, name)

    def recorded(self: Any, *arguments: Any) -> Any:
        calls.append(name)
        return function(self, *arguments)

    monkeypatch.setattr(numcodecs.Zlib, name, recorded)
    mine = shardcodec.attach(array)
    mine[...] = 4
    assert (mine[...] == 4).all()
    assert calls


# ---- handles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    array = create_v2(
        tmp_path / "g" / "a", compressors=numcodecs.Blosc(), order="F", dtype=">i4", fill_value=-1
    )
    array[:8, :6] = elements(">i4", (8, 6))
    return tmp_path


def test_open_array_has_the_properties_of_the_array(folder: Path) -> None:
    reader = shardcodec.open_array(folder, "g/a")
    assert (reader.shape, reader.chunks, reader.shards, reader.fill_value) == (SHAPE, CHUNKS, None, -1)
    assert reader.dtype == np.dtype("=i4")
    assert (pickle.loads(pickle.dumps(reader))[...] == zarr.open_array(folder / "g" / "a")[...]).all()


def test_open_array_without_metadata_names_both_documents(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither a zarr\.json nor a \.zarray"):
        shardcodec.open_array(tmp_path)


def test_open_array_names_the_document_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / ".zarray").write_text("{")
    with pytest.raises(shardcodec.SpecError, match=r"\.zarray: expected JSON"):
        shardcodec.open_array(tmp_path)


def test_enable_applies_to_arrays_of_format_2(tmp_path: Path) -> None:
    with shardcodec.enable(strict=True), quiet():
        array = zarr.create_array(tmp_path, shape=(16, 24), chunks=(8, 12), dtype="int32", zarr_format=2)
        assert isinstance(array.async_array.codec_pipeline, shardcodec.ShardCodecPipeline)
        array[...] = 5
        assert (zarr.open_array(tmp_path)[...] == 5).all()
    assert (zarr.open_array(tmp_path)[...] == 5).all()
