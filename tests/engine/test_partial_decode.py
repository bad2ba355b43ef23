# test_partial_decode.py - boxes inside an inner chunk: what is read and decoded for them
# SPDX-License-Identifier: MIT
"""Without a checksum, only the touched rows of raw chunks or the touched Blosc blocks are read and decoded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, assemble, create, entries_of, ours, random_array
from hypothesis import given
from spec_json import CRC, LITTLE, named
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import shardcodec
from shardcodec import ChecksumError, CodecError, ShardFormatError, ShardSpec, decode, encode

SHAPE, INNER = (24, 40, 12), (12, 20, 12)


@pytest.fixture(autouse=True)
def local_disk() -> Iterator[None]:
    """The numbers of calls are those of a local disk, also on a busy machine."""
    with shardcodec.options(io_latency=0.0):
        yield


def blosc(shuffle: str = "shuffle", blocksize: int = 256, cname: str = "zstd", typesize: int = 4) -> Any:
    """Use zstd to get small blocks; for compressors that split, Blosc takes at least 64 KiB."""
    return named("blosc", cname=cname, clevel=5, shuffle=shuffle, typesize=typesize, blocksize=blocksize)


@st.composite
def selections(draw: st.DrawFn) -> tuple[Any, ...]:
    chosen: list[Any] = []
    for n in SHAPE:
        start = draw(st.integers(0, n - 1))
        stop = draw(st.integers(start + 1, n))
        chosen.append(
            draw(st.sampled_from([start, slice(start, stop, draw(st.integers(1, 5))), slice(None)]))
        )
    return tuple(chosen)


CHAINS = {
    "raw": [LITTLE],
    "big endian": [named("bytes", endian="big")],
    "raw, transposed": [named("transpose", order=[2, 0, 1]), LITTLE],
    "blosc": [LITTLE, blosc()],
    "blosc, transposed": [named("transpose", order=[1, 2, 0]), LITTLE, blosc("bitshuffle", 512)],
    "blosc, one block": [LITTLE, blosc("noshuffle", 0, "lz4")],
    "blosc in gzip": [LITTLE, blosc(blocksize=1000), named("gzip", level=1)],
    "blosc, checked": [LITTLE, blosc(), CRC],
}
VALUES = [random_array(SHAPE, "int32", seed) for seed in (1, 2)]
SPECS = {name: ShardSpec(SHAPE, INNER, "int32", 0, codecs) for name, codecs in CHAINS.items()}
BLOBS = {name: [encode(values, spec) for values in VALUES] for name, spec in SPECS.items()}


@pytest.mark.parametrize("chain", CHAINS)
@given(selection=selections())
def test_random_boxes_equal_numpy(chain: str, selection: tuple[Any, ...]) -> None:
    """Two shards are read in turn: the scratch memory of one must not be taken for the other's data."""
    for blob, values in zip(BLOBS[chain], VALUES, strict=True):
        assert np.array_equal(decode(blob, SPECS[chain], selection), values[selection])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Make an array with and one without shards, in files, where fewer bytes are read and not only decoded."""
    arrays = {}
    for kind, shards in (("shard", (24, 40, 12)), ("chunk", None)):
        folder = tmp_path_factory.mktemp(kind)
        arrays[kind] = create(
            folder, shape=SHAPE, shards=shards, chunks=INNER if shards else SHAPE, dtype="int32"
        )
        arrays[kind][...] = VALUES[0]
    return arrays


@pytest.mark.parametrize("kind", ["shard", "chunk"])
@given(selection=selections())
def test_random_boxes_of_a_file_equal_numpy(
    files: dict[str, Any], kind: str, selection: tuple[Any, ...]
) -> None:
    assert np.array_equal(files[kind][selection], VALUES[0][selection])


def read_bytes_of(work: Any) -> int:
    before = shardcodec.stats()["bytes_fetched"]
    work()
    return int(shardcodec.stats()["bytes_fetched"] - before)


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize(
    ("selection", "nbytes"),
    [
        (np.s_[5, 7], 2),
        # three rows of one inner chunk, from the first element to the last
        (np.s_[5:8, 3], 2 * (2 * 128 + 1)),
        (np.s_[5], 2 * 128 * 2),  # one row of two inner chunks
        (np.s_[100:200, :128], 2 * 128 * (28 + 72)),  # the end of one inner chunk, the start of another
        (np.s_[:128, :128], 2 * 128 * 128),
    ],
)
def test_only_wanted_rows_of_raw_chunks_are_read(
    tmp_path: Path, at_start: bool, selection: Any, nbytes: int
) -> None:
    """Inner chunks of 32 KiB are far apart, so that nothing is read only because it is near."""
    codec = ShardingCodec(
        chunk_shape=(128, 128), codecs=[BytesCodec()], index_location="start" if at_start else "end"
    )
    zarr.create_array(
        tmp_path,
        shape=(256, 256),
        chunks=(256, 256),
        dtype="int16",
        fill_value=0,
        serializer=codec,
        compressors=None,
    )
    values = random_array((256, 256), "int16")
    gap, n, first = 100_000, 2 * 128 * 128, 68 if at_start else 0
    body = b""
    entries = []
    for r, c in itertools.product((0, 128), (0, 128)):
        entries.append((first + len(body), n))
        body += values[r : r + 128, c : c + 128].astype("<i2").tobytes() + bytes(gap)
    (tmp_path / "c/0").mkdir(parents=True)
    (tmp_path / "c/0/0").write_bytes(assemble(body, entries, at_start=at_start))
    array = ours(tmp_path, index_cache=0)
    got: list[Any] = []
    assert read_bytes_of(lambda: got.append(array[selection])) == 68 + nbytes
    assert np.array_equal(got[0], values[selection])


def far_apart() -> tuple[Any, bytes]:
    """Return values, and a shard whose raw inner chunks are so far apart that no gap between them is read."""
    values = random_array((1024, 2048), "int16")
    body, entries = b"", []
    for r, c in itertools.product((0, 512), (0, 1024)):
        entries.append((len(body), 1 << 20))
        body += values[r : r + 512, c : c + 1024].astype("<i2").tobytes() + bytes(3 << 20)
    return values, assemble(body, entries)


@pytest.mark.parametrize("gives_sizes", [False, True])
def test_rows_of_raw_chunks_are_requested_if_the_store_gives_sizes(gives_sizes: bool) -> None:
    """If the store gives the size of the object, the index can be checked without the data. If not, inner chunks are
    requested whole, and one byte shows that the object is as long as its entries say."""
    if gives_sizes:
        obstore = pytest.importorskip("obstore.store")
        store: Any = zarr.storage.ObjectStore(obstore.MemoryStore())
    else:
        store = OtherMemoryStore()
    codec = ShardingCodec(chunk_shape=(512, 1024), codecs=[BytesCodec()])
    zarr.create_array(
        store,
        shape=(1024, 2048),
        chunks=(1024, 2048),
        dtype="int16",
        fill_value=0,
        serializer=codec,
        compressors=None,
    )
    values, blob = far_apart()
    zarr.core.sync.sync(
        store.set("c/0/0", zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(blob))
    )
    array = ours(store, index_cache=0)
    got: list[Any] = []
    for selection, rows, n_chunks in (
        (np.s_[5, 7], 2, 1),
        (np.s_[500:600, :1024], 2048 * 100, 2),
        (np.s_[9], 2048 * 2, 2),
    ):
        due = 68 + rows if gives_sizes else 68 + (n_chunks << 20) + 1
        assert read_bytes_of(lambda s=selection: got.append(array[s])) == due
        assert np.array_equal(got.pop(), values[selection])
    assert np.array_equal(array[::50, 3::7], values[::50, 3::7])
    assert np.array_equal(array.oindex[[3, 200, 5], [1, 130]], values[np.ix_([3, 200, 5], [1, 130])])


def test_row_of_an_unsharded_raw_chunk_is_read(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(512, 512), shards=None, chunks=(256, 512), dtype="int32")
    values = random_array((512, 512), "int32")
    array[...] = values
    got: list[Any] = []
    assert read_bytes_of(lambda: got.append(array[300])) == 512 * 4
    assert np.array_equal(got[0], values[300])


def test_small_read_of_a_raw_chunk_checks_its_size(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(256, 256), shards=(256, 256), chunks=(128, 128), dtype="int16")
    array[...] = random_array((256, 256), "int16")
    path = tmp_path / "c/0/0"
    blob = path.read_bytes()
    entries = entries_of(blob, 4)
    for entry in ((entries[0][0], entries[0][1] - 1), (entries[0][0], entries[0][1] + 1)):
        path.write_bytes(assemble(blob[:-68], [entry, *entries[1:]]))
        with pytest.raises(ShardFormatError):
            array[1, 1]


def test_raw_chunk_with_a_checksum_is_read_whole(tmp_path: Path) -> None:
    codec = ShardingCodec(chunk_shape=(128, 128), codecs=[BytesCodec(), Crc32cCodec()])
    zarr.create_array(
        tmp_path,
        shape=(128, 128),
        chunks=(128, 128),
        dtype="int16",
        fill_value=0,
        serializer=codec,
        compressors=None,
    )
    array = ours(tmp_path)
    array[...] = random_array((128, 128), "int16")
    path = tmp_path / "c/0/0"
    blob = bytearray(path.read_bytes())
    blob[30_000] ^= 1
    path.write_bytes(blob)
    with pytest.raises(ChecksumError):
        array[0, 0]


@pytest.mark.parametrize("cname", ["lz4", "zstd", "zlib"])
@pytest.mark.parametrize("checked", [False, True])
def test_only_the_blocks_of_a_box_are_decoded(cname: str, checked: bool) -> None:
    """The last block is damaged: boxes in other blocks are read, unless the inner chunk has a checksum."""
    codecs = [LITTLE, blosc("shuffle", 4096, cname), *([CRC] if checked else [])]
    spec = ShardSpec((128, 1024), (128, 1024), "int32", 0, codecs)
    values = np.arange(128 * 1024, dtype="int32").reshape(128, 1024) // 7
    blob = bytearray(encode(values, spec))
    last = last_block(blob, 4096 if cname == "zstd" else 1 << 16)
    blob[last + 4 : last + 16] = b"\xff" * 12
    kind = ChecksumError if checked else CodecError
    for selection in (np.s_[...], np.s_[127, 1023], np.s_[:, 250]):
        with pytest.raises(kind):
            decode(blob, spec, selection)
    for selection in (np.s_[0, 0], np.s_[:80], np.s_[1:100:7, 3]):
        if checked:
            with pytest.raises(kind):
                decode(blob, spec, selection)
        else:
            assert np.array_equal(decode(blob, spec, selection), values[selection])


def last_block(container: Any, blocksize: int) -> int:
    """Return the offset of the last block of a container."""
    nbytes, stored_blocksize = (int.from_bytes(container[at : at + 4], "little") for at in (4, 8))
    assert stored_blocksize == blocksize and nbytes % blocksize == 0
    at = 16 + 4 * (nbytes // blocksize - 1)
    return int.from_bytes(container[at : at + 4], "little")


def test_framing_of_all_blocks_is_checked() -> None:
    """The table of block offsets is checked for every block."""
    spec = ShardSpec((64, 256), (64, 256), "int32", 0, [LITTLE, blosc("shuffle", 4096)])
    blob = encode(np.arange(64 * 256, dtype="int32").reshape(64, 256) // 7, spec)
    last, start = last_block(blob, 4096), 16 + 4 * 15
    for at, value in ((start, 2**31), (start, 5), (last, 2**30), (last, 4097)):
        bad = blob[:at] + value.to_bytes(4, "little") + blob[at + 4 :]
        with pytest.raises(CodecError):
            decode(bad, spec, np.s_[0, 0])
