# test_in_place.py - the write strategy "in_place": when it applies, what it leaves in the file, what it costs readers
# SPDX-License-Identifier: MIT
"""For kills, errors and journals see tests/faults/test_in_place.py; for concurrent readers test_live_readers.py."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, descriptor, files_below, ours, quiet, shard_path, zarrs_view
from hypothesis import given
from hypothesis import strategies as st
from system_calls import MARK, calls_of
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec.access.placement import ABSENT, Facts, may_overwrite, place_in_slots
from shardcodec.storage import file_systems

RAW: list[Any] = [BytesCodec()]
CRC = [*RAW, Crc32cCodec()]
ZSTD = [*RAW, ZstdCodec(level=1)]
ZSTD_CRC = [*ZSTD, Crc32cCodec()]


@pytest.fixture(autouse=True)
def _local(tmp_path: Path) -> None:
    with descriptor(tmp_path) as fd:
        if not file_systems.is_local(fd):
            pytest.skip("this file system does not support updates in place")


def make(folder: Path, codecs: list[Any], location: str = "end", **options: Any) -> Any:
    """Make an array of one shard of 4 x 4 inner chunks, full of random numbers that do not compress."""
    with quiet():
        create(
            folder,
            own=True,
            shape=(32, 32),
            chunks=(32, 32),
            fill_value=0,
            serializer=ShardingCodec(chunk_shape=(8, 8), codecs=codecs, index_location=location),
            shards=None,
        )
    array = ours(folder, **options)
    array[...] = noise((32, 32))
    return array


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(1, 2**31 - 1, shape, dtype=np.int32)


def inode_and_size(array: Any) -> tuple[int, int]:
    found = shard_path(array).stat()
    return found.st_ino, found.st_size


def spec_of(array: Any) -> shardcodec.ShardSpec:
    return shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())


# ---- slots

USUAL: dict[str, Any] = {
    "index_nbytes": 148,
    "index_at_start": False,
    "index_checksum": True,
    "new_nbytes": 1 << 20,
    "n_links": 1,
    "appends": True,
    "direct": True,
    "sync": False,
}


@pytest.mark.parametrize(
    ("facts", "may"),
    [
        ({}, True),
        ({"sync": True}, True),
        ({"index_nbytes": 10**6, "index_at_start": True}, True),
        ({"n_links": 2}, False),
        ({"index_checksum": False}, False),
        ({"new_nbytes": 65 << 20}, False),
    ],
    ids=str,
)
def test_may_overwrite_depends_on_the_facts(facts: dict[str, Any], may: bool) -> None:
    assert may_overwrite(Facts(**(USUAL | facts))) == may


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.integers(0, 40), st.integers(0, 12))), min_size=1, max_size=12
    ),
    st.integers(0, 2**12 - 1),
    st.booleans(),
)
def test_slots_share_no_byte(chunks: list[Any], flags: int, at_start: bool) -> None:
    """Compared byte by byte with sets of offsets; inner chunks may overlap each other and the index."""
    index_nbytes, nbytes = 8, 60
    entries = np.array([(ABSENT, ABSENT) if c is None else c for c in chunks], dtype=np.uint64)
    replaced = np.array([flags >> i & 1 for i in range(len(chunks))], dtype=np.bool_)
    index = set(range(8) if at_start else range(nbytes - 8, nbytes))
    bytes_of = [set() if c is None else set(range(c[0], c[0] + c[1])) for c in chunks]
    found = place_in_slots(
        entries, replaced, way=None, shard_nbytes=nbytes, index_nbytes=index_nbytes, index_at_start=at_start
    )
    kept_in_index = any(not replaced[i] and bytes_of[i] & index for i in range(len(chunks)))
    assert (found is None) == kept_in_index
    if found is None:
        return
    for i, chunk in enumerate(chunks):
        if replaced[i] and not bytes_of[i] and chunk is not None:
            continue  # an entry of no bytes may be kept or not
        others: set[int] = set().union(*(bytes_of[j] for j in range(len(chunks)) if j != i), index)
        stays = chunk is not None and (not replaced[i] or not bytes_of[i] & others)
        assert (found.entries[i] == (entries[i] if stays else ABSENT)).all()


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize(
    ("codecs", "fits"), [(RAW, True), (CRC, True), (ZSTD_CRC, True), (ZSTD, False)], ids=str
)
def test_encoding_that_fits_its_slot_is_written_in_place(
    tmp_path: Path, codecs: list[Any], fits: bool, location: str
) -> None:
    """A smaller encoding fits only if a checksum shows a reader that it used the size of the old one."""
    array = make(tmp_path / "a", codecs, location, write_strategy="in_place")
    before = inode_and_size(array)
    expected = array[...]
    for value in (1, noise((8, 8), 1)):
        array[8:16, 8:16] = value
        expected[8:16, 8:16] = value
        assert (array[...] == expected).all()
        assert (zarrs_view(array)[...] == expected).all()
        assert inode_and_size(array)[0] == before[0]
        if fits and codecs is not ZSTD_CRC:
            assert inode_and_size(array) == before
        if not isinstance(value, int):
            break
        assert (inode_and_size(array) == before) == fits
    assert files_below(tmp_path) == ["a/c/0/0", "a/zarr.json"]


def test_chunk_that_grows_is_appended(tmp_path: Path) -> None:
    array = make(tmp_path / "a", ZSTD_CRC, write_strategy="in_place")
    with shardcodec.options(compact=False):
        array[8:16, 8:16] = 1
        before = inode_and_size(array)
        array[8:16, 8:24] = noise((8, 16), 2)  # one chunk has a slot, the other one outgrew its slot
    assert inode_and_size(array)[0] == before[0]
    assert inode_and_size(array)[1] > before[1]
    assert (zarrs_view(array)[8:16, 8:24] == noise((8, 16), 2)).all()


def test_shared_slot_is_not_overwritten(tmp_path: Path) -> None:
    """Two inner chunks refer to the same bytes: one is written, and the other keeps its value."""
    array = make(tmp_path / "a", RAW)
    path = shard_path(array)
    with shardcodec.open_shard(path, None, spec_of(array)) as shard:
        entries = shard.index.reshape(-1, 2).copy()
    entries[1] = entries[0]
    index = np.empty(spec_of(array).index_nbytes, dtype=np.uint8)
    shardcodec.native.load().store_index(shard._chain, entries, index)
    path.write_bytes(path.read_bytes()[: -len(index)] + index.tobytes())
    array = ours(tmp_path / "a", write_strategy="in_place")
    shared = array[:8, :8]
    assert (array[:8, 8:16] == shared).all()
    array[:8, :8] = 5
    assert (array[:8, :8] == 5).all()
    assert (array[:8, 8:16] == shared).all()
    assert (zarrs_view(array)[...] == array[...]).all()


# ---- how the strategy is chosen


def test_every_way_to_choose_in_place_works(tmp_path: Path) -> None:
    array = make(tmp_path / "a", RAW)
    inode, size = inode_and_size(array)
    attached = shardcodec.attach(array, write_strategy="in_place")
    pickle.loads(pickle.dumps(attached))[:8, :8] = 1
    with shardcodec.options(write_strategy="in_place"):
        array[:8, :8] = 2
    with shardcodec.open_shard(shard_path(array), None, spec_of(array), mode="r+") as shard:
        shard.write_chunks([(0, 0)], np.full((1, 8, 8), 3, dtype="int32"), strategy="in_place")
    assert inode_and_size(array) == (inode, size)
    assert (zarrs_view(array)[:8, :8] == 3).all()
    assert "in_place" not in json.dumps(array.metadata.to_dict())
    array[:8, :8] = 4
    assert inode_and_size(array)[0] != inode, "the default strategy replaces the file"


# ---- readers


def test_caches_and_open_handles_notice_updates_in_place(tmp_path: Path) -> None:
    """A cached index is not used after an update in place, even if two updates follow within one clock tick."""
    array = make(tmp_path / "a", ZSTD_CRC, write_strategy="in_place")
    cached = ours(tmp_path / "a", index_cache=1 << 20, open_files=4)
    lean = shardcodec.open_array(tmp_path / "a")
    written = [array[8:16, 8:16]]
    with shardcodec.open_shard(shard_path(array), None, spec_of(array)) as shard:
        for value in range(1, 30):
            # every third value does not compress and is appended, because it does not fit the slot
            written.append(np.full((8, 8), value) if value % 3 else noise((8, 8), value))
            array[8:16, 8:16] = written[-1]
            for found in (array[8:16, 8:16], cached[8:16, 8:16], lean[8:16, 8:16]):
                assert (found == written[-1]).all()
            # an open shard shows its state when it was opened, unless these bytes were overwritten
            found = shard.read_chunks([(1, 1)])[0]
            assert any((found == values).all() for values in written)
        assert (shard.refresh().read_chunks([(1, 1)])[0] == written[-1]).all()


@pytest.mark.parametrize(("codecs", "more"), [(CRC, 0), (RAW, 1)], ids=["crc", "raw"])
def test_readers_need_at_most_one_more_call(tmp_path: Path, codecs: list[Any], more: int) -> None:
    """With checksums a reader makes no extra call, without them one fstat; it never searches for a journal.

    `strace` makes calls slow, and a small shard of a slow file system would be read with one call.
    """
    make(tmp_path / "a", codecs)
    code = (
        MARK
        + f"""
os.environ["SHARDCODEC_IO_LATENCY"] = "0"
array = shardcodec.open_array({str(tmp_path / "a")!r}, index_cache=0)
array[:8, :8]
mark()
array[:8, :8]
mark()
"""
    )
    calls = calls_of(tmp_path, code, "%file,fstat,newfstatat,%desc")
    assert not [line for line in calls if "undo" in line or ".shardcodec" in line]
    names = [line.split("(")[0].split()[-1] for line in calls if "/mark" not in line]
    assert [name for name in names if not name.endswith("stat") and name != "newfstatat"] == [
        "openat",
        "pread64",
        "pread64",
        "close",
    ]
    assert len(names) == 5 + more
