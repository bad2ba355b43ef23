# test_fetch.py - encoded inner chunks, read by the native OpenShard
# SPDX-License-Identifier: MIT
"""Encoded inner chunks are returned as bytes of the file, with any gaps between them; used entries are checked."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ABSENT, WORDS, assemble, entries_of, letters, letters_spec
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import ChecksumError, ShardFormatError, _native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.records import PlanItem
from shardcodec.access.regions import Box

CHAIN = compiled(letters_spec().chain)
BODY = b"".join(WORDS)


def opaque_chain(n_chunks: int = 4, *, at_start: bool = False) -> Any:
    """Return the chain of a shard with inner chunks of any size."""
    leaf = {"shape": (1,), "itemsize": 1, "swap": (), "perm": (0,), "fill": b"\0", "ops": (), "opaque": True}
    index = {"at_start": at_start, "big_endian": False, "n_checksums": 1}
    return _native.Chain(**(leaf | {"shape": (n_chunks,), "opaque": False}), inner=leaf, index=index)


def fetch_all(shard: Any, positions: Sequence[int], **arguments: Any) -> list[bytes | str | None]:
    """Fetch chunks by position, in as many calls as needed."""
    wanted = np.array(positions, dtype=np.uint64)
    found: list[bytes | str | None] = []
    while len(wanted):
        places = np.empty((len(wanted), 2), dtype=np.uint64)
        data, n = shard.fetch(wanted, places, **({"max_nbytes": 1 << 20} | arguments))
        memory = memoryview(data)
        for offset, nbytes in places[:n].tolist():
            if offset == ABSENT:
                found.append(None if nbytes == ABSENT else "elsewhere")
            else:
                found.append(bytes(memory[offset : offset + nbytes]))
        assert n >= 1
        wanted = wanted[n:]
    return found


def test_garbage_collection_of_a_cycle_closes_the_file(tmp_path: Path) -> None:
    """The collector clears attributes of a member of a cycle before the member is deallocated."""
    path = tmp_path / "shard"
    path.write_bytes(letters())
    for _ in range(3):
        chain = compiled(letters_spec().chain)
        cycle: list[Any] = [
            _native.OpenShard(chain, str(path)),
            _native.OpenShard(chain, str(path), _native.Cache(0)),
        ]
        cycle.append(cycle)
        del cycle, chain
    gc.collect()
    fds = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    assert str(path) not in [os.readlink(fd) for fd in fds if os.path.lexists(fd)]


@pytest.fixture(params=["file", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function that makes a source of bytes."""

    def source(blob: bytes) -> Any:
        if request.param == "memory":
            return blob
        path = tmp_path / "shard"
        path.write_bytes(blob)
        return str(path)

    return source


@pytest.mark.parametrize("at_start", [False, True])
def test_chunks_are_returned_as_stored(where: Any, at_start: bool) -> None:
    chain = compiled(letters_spec(at_start=at_start).chain)
    shard = _native.OpenShard(chain, where(letters(at_start=at_start)))
    assert not shard.missing
    assert shard.nbytes == 84
    assert fetch_all(shard, [0, 1, 2, 3]) == list(WORDS)
    assert fetch_all(shard, [3, 0, 0]) == [WORDS[3], WORDS[0], WORDS[0]]
    assert fetch_all(shard, []) == []


def test_index_is_returned(where: Any) -> None:
    blob = letters()
    shard = _native.OpenShard(CHAIN, where(blob))
    entries = np.empty((4, 2), dtype=np.uint64)
    shard.entries(entries, check=True)
    assert [tuple(e) for e in entries.tolist()] == entries_of(blob, 4)


def test_absent_chunk_is_none_and_missing_shard_has_no_index(where: Any, tmp_path: Path) -> None:
    blob = assemble(b"zero", [(0, 4), (ABSENT, ABSENT), (ABSENT, ABSENT), (ABSENT, ABSENT)])
    assert fetch_all(_native.OpenShard(CHAIN, where(blob)), [1, 0]) == [None, b"zero"]
    for source in (None, str(tmp_path / "nowhere")):
        shard = _native.OpenShard(CHAIN, source)
        assert shard.missing
        with pytest.raises(ValueError, match="missing, closed"):
            fetch_all(shard, [0])


@pytest.mark.parametrize("blob", [b"", b"abc", letters(), b"?" * 200])
def test_an_object_with_any_content_is_opened_without_a_chain(where: Any, blob: bytes) -> None:
    """The tools read shards whose index is damaged: they invented a spec with an index that accepts any bytes."""
    shard = _native.OpenShard(None, where(blob))
    assert not shard.missing and shard.nbytes == len(blob)
    assert shard.range(0, len(blob)) == blob
    with pytest.raises(ValueError, match="expected an open shard with an index"):
        shard.entry(0)
    with pytest.raises(ValueError, match="expected a range inside"):
        shard.range(0, len(blob) + 1)
    shard.close()
    with pytest.raises(ValueError, match="expected an open shard with all its bytes"):
        shard.range(0, 0)


def test_a_missing_object_is_opened_without_a_chain(tmp_path: Path) -> None:
    for source in (None, str(tmp_path / "nowhere")):
        shard = _native.OpenShard(None, source)
        assert shard.missing and not shard.state
        with pytest.raises(ValueError, match="missing"):
            shard.range(0, 0)


def test_fetched_bytes_belong_to_the_index_that_was_read(tmp_path: Path) -> None:
    path, other = tmp_path / "shard", tmp_path / "other"
    path.write_bytes(letters())
    shard = _native.OpenShard(CHAIN, str(path))
    other.write_bytes(b"?" * 200)
    os.replace(other, path)
    assert fetch_all(shard, [0, 1, 2, 3]) == list(WORDS)


def test_closed_shard_refuses_fetches(where: Any) -> None:
    shard = _native.OpenShard(CHAIN, where(letters()))
    shard.close()
    shard.close()
    with pytest.raises(ValueError, match="closed"):
        fetch_all(shard, [0])


def test_entries_are_checked_when_they_are_used(where: Any) -> None:
    entries = [(0, 4), (4, 4000), (8, 4), (12, 4)]
    shard = _native.OpenShard(CHAIN, where(assemble(BODY, entries)))
    assert fetch_all(shard, [0, 2], allow_in_index=True) == [WORDS[0], WORDS[2]]
    for positions in ([0, 1], [0, 2]):  # inner chunks have no checksums, so all entries are checked
        with pytest.raises(ShardFormatError, match="4000 bytes at offset 4"):
            fetch_all(shard, positions)
    with pytest.raises(ShardFormatError, match="4000 bytes at offset 4") as info:
        fetch_all(shard, [0, 1], allow_in_index=True)
    assert (info.value.entry, info.value.nbytes, info.value.limit) == (1, 4000, 84)
    with pytest.raises(ShardFormatError):
        shard.entries(np.empty((4, 2), dtype=np.uint64), check=True)


@pytest.mark.parametrize("entry", [(0, ABSENT), (ABSENT, 4), (2**64 - 2, 4), (16, 4), (10, 8)])
def test_impossible_entries_are_refused(where: Any, entry: tuple[int, int]) -> None:
    shard = _native.OpenShard(CHAIN, where(assemble(BODY, [(0, 4), entry, (8, 4), (12, 4)])))
    with pytest.raises(ShardFormatError) as info:
        fetch_all(shard, [1])
    assert info.value.entry == 1


def test_chunk_sizes_are_checked_only_for_codecs_of_fixed_size(where: Any) -> None:
    """Raw inner chunks have one size; inner chunks of foreign codecs have any size."""
    blob = assemble(BODY, [(0, 3), (3, 4), (7, 0), (7, 9)])
    with pytest.raises(ShardFormatError, match="expected a chunk of 4 bytes, got 3"):
        fetch_all(_native.OpenShard(CHAIN, where(blob)), [0])
    shard = _native.OpenShard(opaque_chain(), where(blob))
    assert fetch_all(shard, range(4)) == [BODY[:3], BODY[3:7], b"", BODY[7:]]


def test_damaged_index_is_refused(where: Any) -> None:
    blob = bytearray(letters())
    blob[20] ^= 1
    with pytest.raises(ChecksumError):
        _native.OpenShard(CHAIN, where(bytes(blob)))
    with pytest.raises(ShardFormatError, match="too short"):
        _native.OpenShard(CHAIN, where(letters()[:50]))


def test_chunks_outside_a_fetched_range_are_elsewhere() -> None:
    entries = np.array([[0, 4], [4, 4], [ABSENT, ABSENT], [12, 4]], dtype=np.uint64)
    part = _native.Fetched(CHAIN, entries, BODY[2:12], 2, fill_absent=False)
    shard = _native.OpenShard(CHAIN, part)
    assert fetch_all(shard, range(4)) == ["elsewhere", WORDS[1], None, "elsewhere"]
    assert not shard.fills_absent
    assert _native.OpenShard(CHAIN, _native.Fetched(CHAIN, entries, None, 0, fill_absent=True)).fills_absent
    assert _native.OpenShard(CHAIN, letters()).fills_absent


def test_max_nbytes_bounds_one_fetch(where: Any) -> None:
    shard = _native.OpenShard(CHAIN, where(letters()))
    positions, places = np.arange(4, dtype=np.uint64), np.empty((4, 2), dtype=np.uint64)
    for budget, n in ((0, 1), (1, 1), (7, 1), (8, 2), (15, 3), (16, 4)):
        assert shard.fetch(positions, places, max_nbytes=budget)[1] == n
    assert fetch_all(shard, [0, 1, 2, 3], max_nbytes=1) == list(WORDS)


def test_bad_arguments_are_refused() -> None:
    shard = _native.OpenShard(CHAIN, letters())
    with pytest.raises(ValueError, match="no such inner chunk"):
        fetch_all(shard, [4])
    with pytest.raises(ValueError, match="expected a buffer of 8 numbers of 8 bytes, got 32"):
        shard.fetch(np.zeros(4, np.uint64), np.zeros((2, 2), np.uint64), max_nbytes=1)
    with pytest.raises(ValueError, match="only a shard"):
        _native.OpenShard(CHAIN.inner, b"")


def test_opaque_chain_is_not_decoded() -> None:
    chain = opaque_chain()
    assert chain.is_opaque
    assert not CHAIN.is_opaque
    assert chain.inner is not None
    assert chain.inner.fixed_nbytes is None
    out = np.empty(4, np.uint8)
    with pytest.raises(ValueError, match="no native code"):
        _native.read([(chain, letters(), ((0,), (4,), None, (0,)))], out, (0,))
    with pytest.raises(ValueError, match="no native code"):
        _native.write([PlanItem(chain, None, Box((0,), (4,), None, (0,)))], out, (0,))


def test_nearby_chunks_share_a_read(tmp_path: Path) -> None:
    """A gap up to the limit is read too, but not returned."""
    path = tmp_path / "shard"
    body = b"AA" + b"x" * 10 + b"BBB" + b"y" * 5000 + b"C"
    path.write_bytes(assemble(body, [(0, 2), (12, 3), (5015, 1), (13, 2)]))

    def reads(max_gap_nbytes: int) -> int:
        shard = _native.OpenShard(opaque_chain(), str(path))
        before = shard.stats["reads"]
        found = fetch_all(shard, range(4), max_gap_nbytes=max_gap_nbytes)
        assert found == [b"AA", b"BBB", b"C", b"BB"]
        return int(shard.stats["reads"] - before)

    assert [reads(gap) for gap in (0, 10, 4999, 5000)] == [3, 2, 2, 1]


@pytest.mark.threads
def test_groups_and_gaps_follow_the_cost_of_a_call(tmp_path: Path) -> None:
    """Before the fix, chunks side by side were one read of 16 MiB, whatever a call cost, so no reads waited at the same time. The
    last one lies behind a gap of 100 kB."""
    body = np.random.default_rng(0).bytes(512 << 15) + bytes(100_000) + b"end"
    entries = [(i << 15, 1 << 15) for i in range(512)] + [((512 << 15) + 100_000, 3)]
    path = tmp_path / "shard"
    path.write_bytes(assemble(body, entries))
    positions = np.random.default_rng(1).permutation(513).astype(np.uint64)

    def reads(latency: float, depth: int = 0) -> tuple[int, int]:
        """Return the number of reads, and of those at depth."""
        shard = _native.OpenShard(opaque_chain(513), str(path))
        before = shard.stats["reads"]
        found = fetch_all(shard, positions.tolist(), max_nbytes=32 << 20, io_latency=latency, io_depth=depth)
        assert found == [
            body[offset:][:nbytes] for offset, nbytes in (entries[i] for i in positions.tolist())
        ]
        return int(shard.stats["reads"] - before), int(shard.stats["deep_reads"])

    assert reads(0.0) == reads(19e-6) == reads(1.0, depth=1) == (2, 0)
    assert reads(100e-6) == (65, 65), "256 KiB at least"
    assert reads(2e-3) == (19, 19), "1 MB is worth a call: 30 chunks"
    assert reads(10e-3) == (9, 9), "2 MiB is the share of one of 32 threads"
    assert reads(2e-3, depth=2) == (18, 18), "the share of a thread in the price of a call is worth the gap"


@given(data=st.data())
def test_any_layout_is_fetched(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Overlaps, gaps, empty and absent chunks, any order of positions, any budget."""
    body = bytes(range(256)) * 2
    ranges = st.tuples(st.integers(0, 500), st.integers(0, 300)).filter(lambda r: sum(r) <= len(body))
    entries = data.draw(st.lists(ranges | st.just((ABSENT, ABSENT)), min_size=1, max_size=12))
    positions = data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=20))
    blob = assemble(body, entries)
    path = tmp_path_factory.mktemp("fetch") / "shard"
    path.write_bytes(blob)
    wanted = [None if entries[i][0] == ABSENT else body[entries[i][0] :][: entries[i][1]] for i in positions]
    limits = {
        "max_nbytes": data.draw(st.integers(0, 2000)),
        "max_gap_nbytes": data.draw(st.integers(0, 600)),
    }
    for source in (str(path), blob, memoryview(blob)):
        assert fetch_all(_native.OpenShard(opaque_chain(len(entries)), source), positions, **limits) == wanted


def test_source_may_have_any_address_and_item_size() -> None:
    """A buffer at an odd address, and one whose items are larger than one byte."""
    padded = np.frombuffer(b"?" + letters(), dtype=np.uint8)[1:]
    assert fetch_all(_native.OpenShard(CHAIN, padded), [2]) == [WORDS[2]]
    words = np.frombuffer(letters(), dtype="<u4")
    assert fetch_all(_native.OpenShard(CHAIN, words), [2]) == [WORDS[2]]
