# test_survey.py - what of a damaged shard is whole
# SPDX-License-Identifier: MIT
"""Each damaged shard of docs/robustness.md gets its kind, valid ones pass, and random damage neither hides nor loses chunks."""

from __future__ import annotations

import errno
import json
import os
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import Original, case_spec, cases_of, inside, known
from golden.make_broken import Case, cases, nested, sound_cases
from helpers import RAW, WORDS, assemble, create, letters, letters_spec
from reference import crc32c
from spec_json import CRC, LITTLE
from zarr.codecs import Crc32cCodec

import shardcodec
from shardcodec import tools
from shardcodec.access.opened_shard import NativeShard
from shardcodec.access.shard_object import open_object
from shardcodec.options import resolve
from shardcodec.storage.kinds import object_at
from shardcodec.tools.chunk_check import ChunkCheck, Level
from shardcodec.tools.findings import FindingKind
from shardcodec.tools.survey import Survey, survey

PAGE = Path(__file__).resolve().parents[2] / "docs" / "robustness.md"
CASES = {case.name: case for case in cases() if case.shard is not None}
VALID = {case.name for case in sound_cases() if case.shard is not None} | {"outside-the-array-checked"}


def look(shard: bytes, spec: Any, level: Level = Level.DECODE, **more: Any) -> Survey:
    return survey(NativeShard(None, shard), "c/0", ChunkCheck(spec, resolve()), level, **more)


def look_at(case: Case, level: Level = Level.DECODE) -> Survey:
    assert case.shard is not None
    return look(bytes.fromhex(case.shard), case_spec(case), level, is_inside=inside(case))


def errors(found: Survey) -> list[Any]:
    return [finding for finding in found.findings if not finding.is_warning]


def is_found(found: Survey) -> np.ndarray[Any, Any]:
    return np.asarray(found.places[:, 0] != np.uint64(2**64 - 1))


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", sorted(VALID))
def test_valid_shard_is_whole(name: str, level: Level) -> None:
    found = look_at(CASES[name], level)
    assert found.is_whole and not found.is_lost.any(), found.findings


class Ranges(NativeShard):
    """Bytes that only `range` reads."""

    def __init__(self, data: Any) -> None:
        super().__init__(None, data)

    def checksums(self, ranges: Any, max_nbytes: int) -> None:
        return None


class BadDisk(Ranges):
    """Bytes of which a range cannot be read."""

    def __init__(self, data: Any, low: int, high: int, code: int = errno.EIO) -> None:
        super().__init__(data)
        self._low, self._high, self._code = low, high, code

    def range(self, offset: int, nbytes: int) -> Any:
        if offset < self._high and offset + nbytes > self._low:
            raise OSError(self._code, os.strerror(self._code))
        return super().range(offset, nbytes)


def test_inner_chunk_on_a_bad_part_of_the_disk_is_lost_alone() -> None:
    shard, spec = letters(checksums=True), letters_spec(codecs=[*RAW, CRC])
    check = ChunkCheck(spec, resolve())
    found = survey(BadDisk(shard, 5, 6), "c/0", check, Level.DECODE)
    assert [one.kind for one in errors(found)] == [FindingKind.UNREADABLE]
    assert found.is_lost.sum() == 1 and is_found(found).sum() == is_found(look(shard, spec)).sum() - 1
    with pytest.raises(PermissionError):
        survey(BadDisk(shard, 5, 6, errno.EACCES), "c/0", check, Level.DECODE)


class BadSums(BadDisk):
    """The same, of a file: checksums are computed by the engine."""

    def checksums(self, ranges: Any, max_nbytes: int) -> Any:
        raise OSError(self._code, os.strerror(self._code))


def test_bad_part_of_the_disk_loses_one_inner_chunk_at_level_checksum() -> None:
    shard, spec = letters(checksums=True), letters_spec(codecs=[*RAW, CRC])
    check = ChunkCheck(spec, resolve())
    found = survey(BadSums(shard, 5, 6), "c/0", check, Level.CHECKSUM)
    assert [one.kind for one in errors(found)] == [FindingKind.UNREADABLE] and found.is_lost.sum() == 1
    with pytest.raises(PermissionError):
        survey(BadSums(shard, 5, 6, errno.EACCES), "c/0", check, Level.CHECKSUM)


def summary(found: Survey) -> tuple[Any, ...]:
    counts = (found.n_findings, found.nbytes, found.data_nbytes, found.verified_nbytes)
    return found.findings, counts, found.places.tolist(), found.is_lost.tolist()


@pytest.mark.nightly
def test_engine_finds_in_a_file_what_is_found_in_memory(tmp_path: Path) -> None:
    """The engine computes checksums of files in one call; bytes in memory are checked one by one."""
    store, key, _ = object_at(tmp_path / "shard", None, None)
    for name, one, data in cases_of(200, seed=11):
        (tmp_path / "shard").write_bytes(data)
        view = open_object(store, key)
        assert view is not None
        check = ChunkCheck(one.spec, resolve())
        found = survey(view, "c/0", check, Level.CHECKSUM)
        view.close()
        assert summary(found) == summary(look(data, one.spec, Level.CHECKSUM)), name


def test_empty_object_has_no_negative_offset() -> None:
    (finding,) = look(b"", letters_spec()).findings
    assert (finding.kind, finding.offset) == (FindingKind.TRUNCATED_TAIL, 0)


def rows_of_page() -> dict[str, tuple[str, str]]:
    """Return kind and what `repair` keeps, for each row of the table of `verify` in docs/robustness.md."""
    text = PAGE.read_text().partition("| shard | `verify` says | `repair` keeps |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: (kind, kept) for name, kind, kept in rows}


@pytest.mark.parametrize("from_end", [False, True])
def test_place_is_not_proved_where_old_inner_chunks_have_the_same_sizes(from_end: bool) -> None:
    """All inner chunks were replaced, each in a new place. The shard lost two places at its begin or at its end; nothing tells which."""
    spec, whole = letters_spec(codecs=[*RAW, CRC]), letters(checksums=True)
    old = b"".join(word.upper() + struct.pack("<I", crc32c(word.upper())) for word in WORDS)
    stored = old + whole[: len(old)]
    entries = [(len(old) + 8 * i, 8) for i in range(4)]
    found = look(assemble(stored[:-16] if from_end else stored[16:], entries), spec)
    assert {finding.kind for finding in errors(found)} == {FindingKind.LOST_HEAD}
    assert found.is_lost.all() and not is_found(found).any()


def in_dead_bytes(gap_before: int, gap_behind: int) -> bytes:
    """Return a shard without the second of its inner chunks, which had an old version among dead bytes in its shifted place."""
    first, second, third, fourth = (word * 25 for word in WORDS)
    parts = [
        word + struct.pack("<I", crc32c(word)) for word in (first, second, third, fourth, second.upper())
    ]
    size = len(parts[0])
    body = parts[0] + bytes(gap_before) + parts[4] + bytes(gap_behind)
    at = len(body)
    entries = [(0, size), (at, size), (at + size, size), (at + 2 * size, size)]
    return assemble(body[: at - gap_behind] + parts[2] + parts[3], entries)


@pytest.mark.parametrize("gaps", [(0, 0), (0, 52), (10, 0), (10, 52)], ids=str)
def test_old_inner_chunk_beside_other_dead_bytes_is_not_taken_for_the_lost_one(gaps: tuple[int, int]) -> None:
    """Old indexes, padding and slots that are not full stand between old inner chunks, so a gap of any size proves nothing."""
    spec = shardcodec.ShardSpec((20, 20), (10, 10), "uint8", 46, [*RAW, CRC], [LITTLE, CRC])
    found = look(in_dead_bytes(*gaps), spec)
    assert found.is_lost[1] and not is_found(found)[1]


def test_page_names_every_damaged_shard() -> None:
    assert set(rows_of_page()) == set(CASES) - VALID


@pytest.mark.parametrize("name", sorted(set(CASES) - VALID))
def test_damaged_shard_gets_the_kind_on_the_page(name: str) -> None:
    found = look_at(CASES[name])
    kind, kept = rows_of_page()[name]
    listed = errors(found)
    assert listed and len(listed) == found.n_findings
    assert {finding.kind for finding in listed} == {FindingKind(kind)}
    n = int(is_found(found).sum())
    assert f"{n} of {n + int(found.is_lost.sum())}" == kept
    assert all(
        finding.recoverable == (not found.is_lost.any()) for finding in listed if finding.chunk is None
    )
    assert all(finding.recoverable is not None and finding.shard == "c/0" for finding in listed)


@pytest.mark.parametrize(
    "name", sorted(name for name, case in CASES.items() if case.shape == case.array == (4, 4))
)
def test_damage_of_a_nested_shard_is_found_in_its_inner_chunk(name: str) -> None:
    made = nested(json.loads(json.dumps(asdict(CASES[name]))))
    spec = case_spec(Case(**made))
    found = look(bytes.fromhex(made["shard"]), spec)
    kind = {finding.kind for finding in errors(look_at(CASES[name]))}
    if name == "empty-object":  # an inner chunk of no bytes
        kind = {FindingKind.WRONG_SIZE}
    assert {finding.kind for finding in errors(found)} == kind
    assert {finding.chunk for finding in errors(found)} <= {(0, 0)}
    assert is_found(found)[1], "the other inner chunk is whole"


def test_index_level_reads_no_inner_chunk_of_a_whole_shard() -> None:
    ranges = []

    class Recorder(Ranges):
        def range(self, offset: int, nbytes: int) -> Any:
            ranges.append((offset, nbytes))
            return super().range(offset, nbytes)

    case = CASES["chunks-with-checksums"]
    assert case.shard is not None
    view = Recorder(bytes.fromhex(case.shard))
    found = survey(view, "c/0", ChunkCheck(case_spec(case), resolve()), Level.INDEX)
    assert ranges == [(32, 68)]
    assert (found.data_nbytes, found.verified_nbytes, found.unverifiable_nbytes) == (32, 0, 0)


def test_share_without_a_checksum_is_stated() -> None:
    checked, plain = look_at(CASES["chunks-with-checksums"]), look_at(CASES["sound"])
    assert (checked.data_nbytes, checked.verified_nbytes, checked.unverifiable_nbytes) == (32, 32, 0)
    assert (plain.data_nbytes, plain.verified_nbytes, plain.unverifiable_nbytes) == (16, 0, 16)


def test_many_findings_are_counted_and_not_listed() -> None:
    spec = shardcodec.ShardSpec((4096,), (1,), "uint8", 0, ["bytes", "crc32c"])
    shard = bytearray(
        shardcodec.encode((np.arange(4096) % 251 + 1).astype(np.uint8), spec, write_empty_chunks=True)
    )
    shard[: 4096 * 5 : 5] = bytes(4096)
    found = look(bytes(shard), spec)
    assert found.n_findings == 4096 and len(found.findings) == 1000


def check(name: str, one: Original, data: bytes) -> None:
    """Check that no inner chunk is taken for whole that is not, and that no known one is lost."""
    found = look(data, one.spec)
    got = np.flatnonzero(is_found(found)).tolist()
    inner = one.spec.inner
    ranges = {p: data[int(found.places[p, 0]) : int(found.places[p].sum())] for p in got}
    elements = {p: shardcodec.decode(chunk, inner).tobytes() for p, chunk in ranges.items()}
    states = [{p: shardcodec.decode(chunk, inner).tobytes() for p, chunk in s.items()} for s in one.states]
    assert any(elements.items() <= state.items() for state in states), f"{name}: wrong elements"
    assert known(one, data) <= set(got), f"{name}: {known(one, data) - set(got)} of {found.findings} are lost"
    if found.is_whole:
        assert any(elements == state for state in states), f"{name}: damage is not found"
    else:
        assert not any(found.is_lost[got]), name


STREAMS = {
    "zstd": {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
    "blosc": {
        "name": "blosc",
        "configuration": {
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": 4,
            "blocksize": 0,
        },
    },
}


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("codec", STREAMS)
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_no_inner_chunk_ends_with_bytes_of_the_next_one(codec: str, location: Any, is_long: bool) -> None:
    """The bytes of one inner chunk's end and of the next one's header were missing: the first decoded with bytes of the next one, and was kept.

    With zarr's default codecs, 40 missing bytes did so at 143 of 279 places. With the index at the start, `repair` also kept
    the first inner chunk that had lost bytes, wherever they were missing.
    """
    values = np.random.default_rng(0).integers(1, 1 << 30, (4, 16), dtype="i4")
    spec = shardcodec.ShardSpec(
        values.shape, (4, 4), "int32", 0, [LITTLE, STREAMS[codec]], index_location=location
    )
    shard = bytes(shardcodec.encode(values, spec))
    handle = shardcodec.open_shard(shard, None, spec)
    entries = np.array(handle.index).reshape(-1, 2).astype(int)
    ends = entries.sum(axis=1)
    low, high = int(entries[:, 0].min()), int(ends.max())
    chunks = [shard[a:b] for a, b in zip(entries[:, 0], ends, strict=True)]
    cuts = [[(at, n)] for n in (1, 2, 5, 17, 40) for at in range(low, high - n + 1, 1 if is_long else 4)]
    # near each border, where the few bytes of a header count
    cuts += [[(at, n)] for end in ends[:-1] for n in (2, 5, 40) for at in range(end - n, end + 1)]
    cuts += [[(at, 5), (at + 30, 17)] for at in range(low, high - 47, 1 if is_long else 4)]
    n_lost = 0
    for cut in cuts:
        data = bytearray(shard)
        for at, n in reversed(cut):
            del data[at : at + n]
        found = look(bytes(data), spec)
        kept = np.flatnonzero(is_found(found))
        for position in kept.tolist():
            offset, nbytes = found.places[position].tolist()
            assert data[offset : offset + nbytes] == chunks[position], (cut, position)
        assert found.is_lost.sum() == spec.n_chunks - len(kept), cut
        if len(cut) == 1:
            first, behind = cut[0][0], sum(cut[0])
            known = (ends <= first) | (entries[:, 0] >= behind)
            n_lost += known.sum() - len(kept)
            assert known.sum() - len(kept) <= 1, cut
    assert n_lost <= len(cuts) // 4


def test_random_damage_neither_hides_nor_loses_inner_chunks() -> None:
    for name, one, data in cases_of(150, seed=1):
        check(name, one, data)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3])
def test_a_thousand_random_damages(seed: int) -> None:
    for name, one, data in cases_of(1000, seed):
        check(name, one, data)


@pytest.mark.parametrize("n_cut", range(1, 5))
def test_cut_checksum_of_the_index_loses_nothing(n_cut: int) -> None:
    _, one, _ = next(cases_of(1, seed=0))
    found = look(one.shard[:-n_cut], one.spec)
    assert not found.is_lost.any() and [finding.kind for finding in found.findings] == [
        FindingKind.TRUNCATED_TAIL
    ]


def compressed_shard(*, order: str, is_sparse: bool) -> tuple[bytes, shardcodec.ShardSpec]:
    """Return a shard of 64 inner chunks of different sizes; read from a wrong byte, most of its entries are possible."""
    spec = shardcodec.ShardSpec((64, 64, 64), (16, 16, 16), "uint16", 0, [LITTLE, "zstd"])
    values = np.random.default_rng(7).integers(0, 1000, (64, 64, 64)).astype("u2")
    values[:16] %= 5
    if is_sparse:
        values[16:48, :32] = 0
    return bytes(shardcodec.encode(values, spec, order=order)), spec


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("order", ["morton", "lexicographic"])
def test_damage_of_several_bytes_of_the_index_is_not_taken_for_a_cut(order: str, is_sparse: bool) -> None:
    """Entries that are read from a wrong byte are possible, each on its own; they were taken for those of a cut index."""
    shard, spec = compressed_shard(order=order, is_sparse=is_sparse)
    n = spec.index_nbytes
    for low, high in [
        (-2, None),
        (-4, None),
        (-20, -4),
        (-500, -498),
        (-500, -492),
        (-n, -n + 8),
        (-n, -n + 32),
    ]:
        damaged = np.frombuffer(shard, "u1").copy()
        damaged[low:high] ^= 255
        (finding,) = [one for one in errors(look(damaged.tobytes(), spec)) if one.chunk is None]
        assert finding.kind is FindingKind.BAD_INDEX_CHECKSUM, (low, high, finding)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("order", ["morton", pytest.param("lexicographic", marks=pytest.mark.nightly)])
def test_cut_of_the_index_has_the_true_length(order: str, is_sparse: bool) -> None:
    shard, spec = compressed_shard(order=order, is_sparse=is_sparse)
    for n_cut in [*range(4, 24), 39, 100, 104, 108, 500]:
        (finding,) = [one for one in errors(look(shard[:-n_cut], spec)) if one.chunk is None]
        assert finding.kind is FindingKind.TRUNCATED_TAIL, (n_cut, finding)
        assert f"the last {n_cut} bytes of the object" in finding.detail, (n_cut, finding)


def test_any_damaged_byte_of_the_index_is_corrected() -> None:
    _, one, _ = next(cases_of(1, seed=0))
    for place in range(len(one.shard) - one.spec.index_nbytes, len(one.shard), 7):
        data = bytearray(one.shard)
        data[place] ^= 0x5A
        found = look(bytes(data), one.spec)
        assert not found.is_lost.any() and [one.kind for one in found.findings] == [
            FindingKind.BAD_INDEX_CHECKSUM
        ]


def test_lost_index_is_rebuilt_only_in_an_order_that_is_known() -> None:
    """Without the index nothing says in which order the writer laid out the inner chunks."""
    for _, one, _ in cases_of(9, seed=0):
        spec = one.spec
        if len(one.states[0]) < spec.n_chunks or spec.index_location == "start":
            continue
        shard = one.shard[: -spec.index_nbytes]
        data = shard + bytes(spec.index_nbytes)
        assert look(data, spec).is_lost.all(), str(one)
        order = "lexicographic" if str(one) == "blosc" else "morton"
        found = look(data, spec, order=order)
        assert not found.is_lost.any(), str(one)
        places = found.places.tolist()
        assert {p: shard[at : at + n] for p, (at, n) in enumerate(places)} == one.states[0]


def test_chunk_that_changed_between_two_reads_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of one inner chunk, read before and after an update in place, made a wrong checksum of a whole chunk."""
    array = create(
        tmp_path / "a.zarr",
        shape=(64,),
        shards=(64,),
        chunks=(8,),
        dtype="u1",
        fill_value=0,
        compressors=[Crc32cCodec()],
    )
    array[...] = np.arange(64)
    original = NativeShard.checksums

    def torn(self: Any, ranges: Any, max_nbytes: int) -> Any:
        found = original(self, ranges, max_nbytes)
        found[::2, 1] ^= 1
        return found

    monkeypatch.setattr(NativeShard, "checksums", torn)
    assert tools.verify(tmp_path / "a.zarr", level="checksum").n_findings == 0
    file = tmp_path / "a.zarr/c/0"
    blob = bytearray(file.read_bytes())
    blob[0] ^= 1
    file.write_bytes(blob)
    assert tools.verify(tmp_path / "a.zarr", level="checksum").n_findings == 1
