# test_damaged_index.py - what repair believes, and what it counts
# SPDX-License-Identifier: MIT
"""A damaged index proves nothing by itself; a repaired shard is decoded before it counts; what is not there is lost."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversions import elements
from damage import ZSTD
from helpers import checked
from spec_json import LITTLE
from tool_sources import CONTENT

import shardcodec
from shardcodec import ShardSpec
from shardcodec.access.opened_shard import NativeShard
from shardcodec.tools import repair, verify
from shardcodec.tools.repair import one_shard, shards_of_array
from shardcodec.tools.repair.report import RepairAction


@pytest.mark.parametrize("has_copy", [False, True], ids=["no copy", "copy"])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["full", "sparse"])
@pytest.mark.parametrize(("low", "high"), [(80, 128), (0, 132), (16, 32)])
def test_absent_entry_of_a_damaged_index_is_no_proof_of_absence(
    tmp_path: Path, low: int, high: int, is_sparse: bool, has_copy: bool
) -> None:
    """Bytes of 0xFF over entries of an index read as absent: `repair` reported "restored completely" for an empty shard."""
    content = CONTENT.copy()
    if is_sparse:
        content[4:8, :6] = -1
    for name in ("a.zarr", "copy.zarr"):
        checked(tmp_path / name)[...] = content
    path = tmp_path / "a.zarr/c/0/0"
    data = bytearray(path.read_bytes())
    n = 16 * 8 + 4
    data[len(data) - n + low : len(data) - n + high] = b"\xff" * (high - low)
    path.write_bytes(data)
    copy = tmp_path / "copy.zarr" if has_copy else None
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=copy)
    after = elements(tmp_path / "b.zarr")
    lost = {at for one in report.shards for at in one.lost}
    wrong = {
        (i, j)
        for i in range(2)
        for j in range(4)
        if (
            after[4 * i : 4 * i + 4, 3 * j : 3 * j + 3] != content[4 * i : 4 * i + 4, 3 * j : 3 * j + 3]
        ).any()
    }
    assert wrong <= lost and report.n_lost_chunks == len(lost)
    if has_copy or high - low < 100:
        assert not lost and report.n_restored == 1


@pytest.mark.parametrize("damage", [
    lambda data: data[:-16], lambda data: data[:-48], lambda data: data + bytes(16),
    lambda data: data + b"\xff" * 16, lambda data: data + b"\xff" * 32, lambda data: data + bytes(range(16)),
], ids=["16 cut", "48 cut", "16 zeros", "16 ones", "32 ones", "16 others"])  # fmt: skip
@pytest.mark.parametrize("n_rows", [8, 4], ids=["full", "sparse"])
def test_index_without_checksum_is_not_read_one_entry_off(tmp_path: Path, damage: Any, n_rows: int) -> None:
    """After a cut of 16 bytes each entry was read in the place of its neighbour, and 15 of 16 inner chunks went there."""
    spec = ShardSpec((8, 8), (2, 2), "uint16", 0, [LITTLE, "crc32c"], [LITTLE])
    content = np.arange(1, 65, dtype=np.uint16).reshape(8, 8)
    content[n_rows:] = 0
    path = tmp_path / "shard"
    path.write_bytes(damage(bytes(shardcodec.encode(content, spec))))
    report = repair(path, spec=spec, to=tmp_path / "new")
    assert report.n_damaged == 1
    (one,) = report.shards
    if not (tmp_path / "new").exists():
        assert one.n_lost >= 16 * n_rows // 8
        return
    with shardcodec.open_shard(tmp_path / "new", None, spec) as shard:
        found, present = shard.read_region(), shard.state()
    assert one.n_kept == present.sum()
    for at in np.ndindex(4, 4):
        box = tuple(slice(2 * i, 2 * i + 2) for i in at)
        assert at in one.lost or (found[box] == content[box]).all(), at


def with_crc(payload: bytes) -> bytes:
    return payload + struct.pack("<I", int(shardcodec.native.load().crc32c(payload)))


@pytest.mark.parametrize("way", ["to", "in place"])
def test_shifted_inner_chunk_with_a_right_checksum_must_decode_too(tmp_path: Path, way: str) -> None:
    """Behind an insertion, inner chunks were found by their crc32c alone: `repair` wrote a shard that no program decodes."""
    spec = ShardSpec((8,), (2,), "uint16", 0, [LITTLE, ZSTD, "crc32c"], [LITTLE, "crc32c"])
    data = np.arange(1, 9, dtype=np.uint16)
    shard = bytes(shardcodec.encode(data, spec))
    with shardcodec.open_shard(shard, None, spec) as handle:
        third = int(handle.index[2][0])
    end = len(shard) - spec.index_nbytes
    half = (end - third) // 2
    damaged = with_crc(b"\x07" * (half - 4)) * 2  # what zstd cannot decode, twice
    path = tmp_path / "shard"
    path.write_bytes(shard[:third] + b"inserted" + damaged + shard[end:])
    how = {"to": tmp_path / "new"} if way == "to" else {"backup": tmp_path / "old"}
    (one,) = repair(path, spec=spec, **how).shards
    assert (one.n_kept, one.lost) == (2, ((2,), (3,)))
    result = tmp_path / "new" if way == "to" else path
    assert verify(result, spec=spec, level="decode").n_findings == 0
    with shardcodec.open_shard(result, None, spec) as handle:
        assert handle.read_region().tolist() == [1, 2, 3, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("way", ["to", "in place"])
def test_inner_chunk_that_is_damaged_after_the_survey_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Each inner chunk of a repaired shard is decoded as it is written, also if the disk gives other bytes the second time."""
    array = checked(tmp_path / "a.zarr")
    array[...] = CONTENT
    path = tmp_path / "a.zarr/c/0/0"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    opened = NativeShard.range
    is_surveyed = []
    original = one_shard.user_parts

    def bad_range(self: Any, offset: int, nbytes: int) -> Any:
        found = bytearray(opened(self, offset, nbytes))
        if is_surveyed and nbytes > 100:
            found[-1] ^= 1
        return bytes(found)

    def surveyed(*arguments: Any) -> Any:
        found = original(*arguments)
        is_surveyed.append(True)
        return found

    monkeypatch.setattr(one_shard, "user_parts", surveyed)
    monkeypatch.setattr(NativeShard, "range", bad_range)
    how = {"to": tmp_path / "b.zarr"} if way == "to" else {"backup": tmp_path / "old"}
    shards = repair(tmp_path / "a.zarr", threads=1, **how).shards
    (one,) = [one for one in shards if one.shard == str(path)]
    assert one.action is RepairAction.UNREADABLE and "now it is damaged" in one.detail
    assert path.read_bytes() == data
    assert not (tmp_path / "b.zarr/c/0/0").exists()
    assert one.n_lost == (8 if way == "to" else 0)


@pytest.mark.parametrize("has_copy", [False, True], ids=["no copy", "copy"])
@pytest.mark.parametrize("way", ["to", "in place", "dry run"])
def test_shard_that_cannot_be_read_is_taken_from_the_copy_or_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, has_copy: bool
) -> None:
    """The new hierarchy did not have the shard, and the report said "0 lost"."""
    for name in ("a.zarr", "copy.zarr"):
        checked(tmp_path / name)[...] = CONTENT
    before = (tmp_path / "a.zarr/c/0/1").read_bytes()
    original = shards_of_array.open_object

    def refusing(store: Any, key: str) -> Any:
        if (store.path(key) or "").endswith("a.zarr/c/0/1"):
            raise OSError(errno.EIO, "Input/output error", key)
        return original(store, key)

    monkeypatch.setattr(shards_of_array, "open_object", refusing)
    ways: dict[str, dict[str, Any]] = {
        "to": {"to": tmp_path / "b.zarr"},
        "in place": {"backup": tmp_path / "old"},
        "dry run": {"dry_run": True},
    }
    report = repair(tmp_path / "a.zarr", copy=tmp_path / "copy.zarr" if has_copy else None, **ways[way])
    (one,) = report.shards
    assert (tmp_path / "a.zarr/c/0/1").read_bytes() == before
    if not has_copy or way == "in place":
        assert (one.action, one.n_lost) == (RepairAction.UNREADABLE, 8)
        assert "Input/output error" in one.detail
        return
    assert (one.action, one.n_from_copy, one.n_lost) == (RepairAction.REPAIRED, 8, 0)
    if way == "to":
        assert (elements(tmp_path / "b.zarr") == CONTENT).all()


def test_only_inner_chunks_of_the_array_count(tmp_path: Path) -> None:
    """A shard at the edge of an array was reported with as many lost inner chunks as its whole grid has."""
    array = checked(tmp_path / "a.zarr", shape=(10, 24))
    array[...] = CONTENT[:10]
    path = tmp_path / "a.zarr/c/1/0"
    data = path.read_bytes()
    path.write_bytes(b"torn")
    (one,) = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr").shards
    assert (one.n_kept, one.n_lost, one.lost) == (0, 4, tuple((0, j) for j in range(4)))
    path.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:])
    (one,) = repair(tmp_path / "a.zarr", to=tmp_path / "c.zarr").shards
    assert (one.n_kept, one.n_lost) == (3, 1)


def plain(n: int, index_codecs: list[Any] | None = None, location: Any = "end") -> ShardSpec:
    """Return a shard of `n` inner chunks of 16 bytes with a crc32c, and an index without one."""
    return ShardSpec((4 * n,), (4,), "uint16", 0, [LITTLE, "crc32c"], index_codecs or [LITTLE], location)


def wrong_and_lost(
    folder: Path, spec: ShardSpec, damaged: bytes, content: Any, **how: Any
) -> tuple[Any, Any, Any]:
    """Repair a shard; return the inner chunks that are wrong in the result, those reported as lost, and the report."""
    (folder / "shard").write_bytes(damaged)
    (one,) = repair(folder / "shard", spec=spec, to=folder / "new", **how).shards
    found = np.zeros_like(content)
    if (folder / "new").exists():
        with shardcodec.open_shard(folder / "new", None, spec) as shard:
            found = shard.read_region()
    size = spec.chunk_shape[0]
    wrong = {(i,) for i in range(spec.n_chunks) if (found != content)[i * size : (i + 1) * size].any()}
    return wrong, set(one.lost), one


@pytest.mark.parametrize("present", [(7,), (0,), (8, 9), tuple(range(12))], ids=str)
@pytest.mark.parametrize("at", [0, 3, 8, 12])
@pytest.mark.parametrize("n_inserted", [1, 3])
def test_bytes_of_ones_inserted_into_an_index_without_checksum_shift_no_inner_chunk(
    tmp_path: Path, n_inserted: int, at: int, present: tuple[int, ...]
) -> None:
    """They read as absent entries; `repair` always took them for appended, and put inner chunks into other places."""
    spec = plain(12)
    content = np.zeros(48, np.uint16)
    for i in present:
        content[4 * i : 4 * i + 4] = 100 + i
    shard = bytes(shardcodec.encode(content, spec))
    index = len(shard) - spec.index_nbytes + 16 * at
    damaged = shard[:index] + b"\xff" * 16 * n_inserted + shard[index:]
    (tmp_path / "shard").write_bytes(damaged)
    if not verify(tmp_path / "shard", spec=spec, level="decode").n_findings:
        # bytes of 0xFF before the index, or before its first absent entries, are dead ones: each entry is right
        assert at <= min(present)
        return
    wrong, lost, one = wrong_and_lost(tmp_path, spec, damaged, content)
    assert wrong <= lost and len(lost) == one.n_lost
    assert one.n_kept == 12 or len(present) < 12, "only one place has so many absent entries"


@pytest.mark.parametrize("codecs", [[LITTLE, ZSTD, "crc32c"], [LITTLE, "crc32c"]], ids=["zstd", "raw"])
def test_index_at_the_start_that_lost_its_last_entries_moves_no_inner_chunk(
    tmp_path: Path, codecs: list[Any]
) -> None:
    """The inner chunks were found as far behind their offsets as the last whole one is, so each was read as another one."""
    spec = ShardSpec((20,), (4,), "uint16", 0, codecs, [LITTLE], "start")
    content = np.arange(1, 21, dtype=np.uint16)
    shard = bytes(shardcodec.encode(content, spec))
    damaged = shard[:48] + b"\xff" * 48 + shard[48:]
    wrong, lost, _ = wrong_and_lost(tmp_path, spec, damaged, content)
    assert wrong == lost == {(i,) for i in range(5)}


def nested_codec(codecs: list[Any]) -> dict[str, Any]:
    configuration = {"chunk_shape": [2], "codecs": codecs, "index_codecs": [LITTLE], "index_location": "end"}
    return {"name": "sharding_indexed", "configuration": configuration}


@pytest.mark.parametrize(
    "codecs",
    [[LITTLE, "crc32c"], [LITTLE, ZSTD], [nested_codec([LITTLE, "crc32c"])]],
    ids=["raw", "zstd", "shards"],
)
def test_absent_entry_of_an_index_without_checksum_is_in_doubt_beside_an_unnamed_inner_chunk(
    tmp_path: Path, codecs: list[Any]
) -> None:
    """Of a shard with another damage too, `repair` reported the inner chunk as absent, and the others as all there were."""
    spec = ShardSpec((16,), (4,), "uint16", 0, codecs, [LITTLE])
    content = np.arange(1, 17, dtype=np.uint16)
    content[8:12] = 0
    shard = bytearray(shardcodec.encode(content, spec))
    with shardcodec.open_shard(bytes(shard), None, spec) as handle:
        second = tuple(map(int, handle.index[1]))
    (tmp_path / "sparse").write_bytes(shard[: second[0]] + b"\x01" * second[1] + shard[sum(second) :])
    (one,) = repair(tmp_path / "sparse", spec=spec, to=tmp_path / "kept").shards
    assert one.lost == ((1,),), "without unnamed inner chunks an absent entry is believed"
    shard[len(shard) - 16 :] = b"\xff" * 16  # the entry of the last inner chunk
    path = tmp_path / "dead"
    path.write_bytes(shard)
    report = verify(path, spec=spec, level="decode")
    assert report.n_findings == 0, "an update in place leaves such a shard too"
    assert report.kinds == ({} if len(codecs) == 1 else {"unreferenced inner chunks": 1})
    shard[second[0] : sum(second)] = b"\x01" * second[1]
    wrong, lost, one = wrong_and_lost(tmp_path, spec, bytes(shard), content)
    assert wrong == {(1,), (3,)} and lost == {(1,), (2,), (3,)}
    assert "unreferenced inner chunks" in {finding.kind for finding in one.findings}


def test_dead_bytes_of_updates_are_no_damage(tmp_path: Path) -> None:
    """Inner chunks that updates have replaced or removed stay as dead bytes; a full shard has no warning either."""
    spec = plain(4)
    content = np.arange(1, 17, dtype=np.uint16)
    shard = bytes(shardcodec.encode(content, spec))
    end = len(shard) - spec.index_nbytes
    newer = bytes(shardcodec.encode(np.full(4, 99, np.uint16), spec.inner))
    index = np.frombuffer(shard[end:], dtype="<u8").reshape(4, 2).copy()
    index[1] = len(shard), len(newer)
    path = tmp_path / "shard"
    path.write_bytes(shard + newer + index.tobytes())
    report = verify(path, spec=spec, level="decode")
    assert (report.n_findings, report.kinds) == (0, {})
    index[2] = 2**64 - 1
    path.write_bytes(shard + newer + index.tobytes())
    report = verify(path, spec=spec, level="decode")
    assert (report.n_findings, report.kinds) == (0, {"unreferenced inner chunks": 1})


def test_damaged_entry_of_an_index_without_checksum_moves_no_other_inner_chunk(tmp_path: Path) -> None:
    """Of a shard without its first bytes the last entry was damaged too: all inner chunks were read as their neighbours."""
    spec = ShardSpec((16,), (4,), "uint16", 0, [LITTLE, ZSTD, "crc32c"], [LITTLE])
    content = np.arange(1, 17, dtype=np.uint16)
    damaged = bytearray(shardcodec.encode(content, spec))
    damaged[-16:-8] = bytes(8)
    wrong, lost, _ = wrong_and_lost(tmp_path, spec, bytes(damaged[3:]), content)
    assert wrong == lost == {(0,), (1,), (2,), (3,)}


@pytest.mark.parametrize(
    ("location", "damage"),
    [("end", lambda data: data + bytes(range(1, 17))), ("start", lambda data: data[16:])],
    ids=["appended", "cut"],
)
def test_damaged_entry_outside_of_the_array_shows_that_an_index_without_checksum_is_shifted(
    tmp_path: Path, location: Any, damage: Any
) -> None:
    """No reader needs the last entry, so its damage was ignored, and each other one was read in the place of its neighbour."""
    spec = ShardSpec((16,), (4,), "uint16", 0, [LITTLE, ZSTD, "crc32c"], [LITTLE], location)
    path = tmp_path / "a.zarr/c/0"
    path.parent.mkdir(parents=True)
    (tmp_path / "a.zarr/zarr.json").write_text(json.dumps(spec.to_metadata((12,))))
    content = np.array([0] * 4 + [5, 6, 7, 8] + [0] * 8, np.uint16)
    path.write_bytes(damage(bytes(shardcodec.encode(content, spec))))
    (one,) = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr").shards
    found = elements(tmp_path / "b.zarr") if (tmp_path / "b.zarr/c/0").exists() else np.zeros(12, np.uint16)
    wrong = {(i,) for i in range(3) if (found != content[:12])[4 * i : 4 * i + 4].any()}
    assert wrong <= set(one.lost)


def test_rest_of_the_checksum_contradicts_exchanged_entries(tmp_path: Path) -> None:
    """The order of the inner chunks proved an index whose entries were exchanged, because a part of its checksum was missing."""
    spec = ShardSpec((4, 4), (2, 2), "uint16", 0, [LITTLE, "crc32c"], [LITTLE, "crc32c"])
    content = np.arange(1, 17, dtype=np.uint16).reshape(4, 4)
    writer = shardcodec.ShardWriter(None, spec)
    for at in ((0, 0), (1, 0), (0, 1), (1, 1)):
        writer.write_chunk(at, np.ascontiguousarray(content[2 * at[0] :, 2 * at[1] :][:2, :2]))
    data = bytearray(writer.commit())
    index = len(data) - spec.index_nbytes
    data[index + 16 : index + 48] = data[index + 32 : index + 48] + data[index + 16 : index + 32]
    path = tmp_path / "shard"
    path.write_bytes(data[:-3])
    (one,) = repair(path, spec=spec, dry_run=True).shards
    assert (one.n_kept, one.n_lost) == (0, 4)


def test_index_of_a_nested_shard_and_absent_entries_behind_it_are_no_index(tmp_path: Path) -> None:
    """After a cut, `repair` took them for the index of the shard, and reported other inner chunks as lost than that which was."""
    spec = ShardSpec((48,), (4,), "uint16", 0, [nested_codec([LITTLE])], [LITTLE])
    content = np.zeros(48, np.uint16)
    content[44:] = 1, 2, 3, 4
    wrong, lost, _ = wrong_and_lost(tmp_path, spec, bytes(shardcodec.encode(content, spec))[:-16], content)
    assert wrong == {(11,)} and wrong <= lost


def written(spec: ShardSpec, content: Any, order: list[int]) -> bytes:
    """Return a shard whose inner chunks were written in an order, as the threads of a writer may finish."""
    writer = shardcodec.ShardWriter(None, spec)
    size = spec.chunk_shape[0]
    for i in order:
        writer.write_chunk((i,), np.ascontiguousarray(content[size * i : size * (i + 1)]))
    return bytes(writer.commit())


RAW = [LITTLE, "crc32c"]
EXCHANGES = {
    "two": {0: 2, 2: 0},
    "pairs": {0: 2, 1: 3, 2: 0, 3: 1},
    "three in a cycle": {0: 1, 1: 2, 2: 0},
}


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize(("codecs", "low", "high"), [
    (RAW, 0, 8), (RAW, 0, 16), ([LITTLE, ZSTD, "crc32c"], 0, 8), ([LITTLE, ZSTD, "crc32c"], 8, 16),
    ([LITTLE, ZSTD, "crc32c"], 0, 16),
], ids=["raw offsets", "raw entries", "zstd offsets", "zstd lengths", "zstd entries"])  # fmt: skip
@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=list(EXCHANGES))
def test_checksum_of_the_index_takes_exchanged_entries_back(
    tmp_path: Path, exchange: dict[int, int], codecs: list[Any], low: int, high: int, n: int, location: Any
) -> None:
    """Inner chunks of one size are whole under the entries of each other; if these made an order, `repair` took it as a proof."""
    spec = ShardSpec((64 * n,), (64,), "uint16", 0, codecs, RAW, location)
    content = np.zeros((n, 64), np.uint16)
    for i in range(n):
        content[i, : 4 * i + 4] = np.random.default_rng(i).integers(1, 1 << 16, 4 * i + 4)
    shard = written(spec, content.reshape(-1), [exchange.get(i, i) for i in range(n)])
    index = 0 if location == "start" else len(shard) - spec.index_nbytes
    damaged = bytearray(shard)
    for to, source in exchange.items():
        to, source = index + 16 * to, index + 16 * source
        damaged[to + low : to + high] = shard[source + low : source + high]
    wrong, lost, one = wrong_and_lost(tmp_path, spec, bytes(damaged), content.reshape(-1))
    assert (wrong, lost, one.n_kept) == (set(), set(), n)


@pytest.mark.parametrize("order", [(2, 1, 0, 3), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("has_checksum", [False, True], ids=["no checksum", "checksum"])
def test_exchanged_offsets_of_nested_shards_are_not_believed(
    tmp_path: Path, has_checksum: bool, order: tuple[int, ...]
) -> None:
    """Nested shards are not recognised without their entries: those of an index with a wrong checksum are lost."""
    inner = nested_codec(RAW if has_checksum else [LITTLE])
    spec = ShardSpec((16,), (4,), "uint16", 0, [inner], RAW)
    content = np.arange(1, 17, dtype=np.uint16)
    shard = written(spec, content, list(order))
    index = len(shard) - spec.index_nbytes
    damaged = bytearray(shard)
    damaged[index : index + 8], damaged[index + 32 : index + 40] = (
        shard[index + 32 : index + 40],
        shard[index : index + 8],
    )
    wrong, lost, _ = wrong_and_lost(tmp_path, spec, bytes(damaged), content)
    assert wrong == lost == {(0,), (1,), (2,), (3,)}


@pytest.mark.parametrize("present", [(0, 3), (1, 2, 5)], ids=str)
def test_checksum_of_the_index_takes_an_entry_back_from_an_absent_inner_chunk(
    tmp_path: Path, present: tuple[int, ...]
) -> None:
    """All recognised inner chunks had an entry, so no other place was tried, and all were lost."""
    spec = plain(8, RAW)
    content = np.zeros(32, np.uint16)
    for i in present:
        content[4 * i : 4 * i + 4] = 100 + i
    shard = written(spec, content, list(present))
    index = len(shard) - spec.index_nbytes
    damaged = bytearray(shard)
    first, last = index + 16 * present[0], index + 16 * 7
    damaged[first : first + 16], damaged[last : last + 16] = (
        shard[last : last + 16],
        shard[first : first + 16],
    )
    wrong, lost, one = wrong_and_lost(tmp_path, spec, bytes(damaged), content)
    assert (wrong, lost, one.n_kept) == (set(), set(), len(present))


@pytest.mark.parametrize("index_codecs", [RAW, [LITTLE]], ids=["checksum", "no checksum"])
@pytest.mark.parametrize("order", [(0, 1, 3, 2), (0, 1, 2, 4, 3), (0, 1, 2, 3, 5, 4)], ids=str)
def test_two_or_three_entries_agree_with_an_order_by_chance(
    tmp_path: Path, order: tuple[int, ...], index_codecs: list[Any]
) -> None:
    """They proved that the inner chunks of the destroyed entries lie in it too, and two came in the place of each other."""
    n = len(order)
    spec = plain(n, index_codecs)
    content = np.arange(1, 4 * n + 1, dtype=np.uint16)
    shard = written(spec, content, list(order))
    n_destroyed = 32 + spec.index_nbytes - 16 * n
    damaged = shard[:-n_destroyed] + b"\x55" * n_destroyed
    wrong, lost, _ = wrong_and_lost(tmp_path, spec, damaged, content)
    assert {(order[-1],), (order[-2],)} <= lost and wrong <= lost
