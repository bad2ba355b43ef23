# test_inspect.py - what is stored of arrays and shards
# SPDX-License-Identifier: MIT
"""`inspect` counts shards, inner chunks and bytes, and names damaged shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    KINDS_OF_STORE,
    assemble,
    create,
    letters,
    letters_index_nbytes,
    letters_spec,
    quiet,
    shard_path,
    store_of,
)
from spec_json import LITTLE
from tool_sources import write_array

import shardcodec
from shardcodec.access.shard_layout import KINDS, shard_layout, stored_order
from shardcodec.tools import inspect
from shardcodec.tools.inspect.array_report import ArrayReport, StoredRecord
from shardcodec.tools.inspect.size_distribution import Sizes


def one(target: Any, **how: Any) -> ArrayReport:
    (report,) = inspect(target, **how).arrays
    return report


def stored_of(target: Any, **how: Any) -> StoredRecord:
    stored = one(target, **how).stored
    assert stored is not None
    return stored


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_counts_of_an_array(kind: str, tmp_path: Path) -> None:
    """Shards of 8 x 12 with inner chunks of 4 x 3 and 8 inner chunks each; 4 bytes an element."""
    store = store_of(kind, tmp_path / "a.zarr")
    array = create(store)
    array[:8] = 5
    array[8:12, :3] = 6
    report = one(store)
    assert report.layout is not None and report.layout.shape == (16, 24)
    assert report.layout.shard_shape == (8, 12) and report.layout.chunk_shape == (4, 3)
    assert [codec["name"] for codec in report.layout.codecs] == ["bytes"]
    stored = report.stored
    assert stored is not None
    assert (stored.n_grid_shards, stored.n_shards, stored.n_grid_chunks, stored.n_chunks) == (4, 3, 32, 17)
    assert stored.chunk_nbytes == stored.decoded_nbytes == 17 * 48 and stored.ratio == 1
    assert stored.index_nbytes == 3 * (8 * 16 + 4)
    assert stored.shards.nbytes == stored.chunk_nbytes + stored.index_nbytes
    assert stored.shards.min_nbytes == 48 + 132 and stored.shards.max_nbytes == 8 * 48 + 132
    assert stored.orders == {"morton": 2, "any": 1}
    assert stored.dead_nbytes == stored.padding_nbytes == stored.unmarked_nbytes == 0
    assert stored.n_without_index_checksum == stored.n_damaged == stored.n_foreign == 0


def test_dead_bytes_after_an_append(tmp_path: Path) -> None:
    """The old inner chunk and the old index stay in the file."""
    array = create(tmp_path / "a.zarr")
    array[:8, :12] = 5
    with shardcodec.options(write_strategy="append", compact=False):
        array[:4, 6:9] = 6
    stored = stored_of(tmp_path / "a.zarr")
    size = shard_path(array).stat().st_size
    assert stored.dead_nbytes == 4096 - 7 * 48  # up to the next block
    kept = stored.chunk_nbytes + stored.index_nbytes
    assert kept + stored.dead_nbytes + stored.padding_nbytes == size and size % 4096 == 0
    assert (stored.n_with_footer, stored.unmarked_nbytes) == (0, 0)
    assert stored.orders == {"other": 1}


def test_header_footer_and_padding(tmp_path: Path) -> None:
    spec = shardcodec.ShardSpec((4, 4), (2, 2), "int32", 0, codecs=[LITTLE, "crc32c"])
    with shardcodec.ShardWriter(tmp_path / "s", spec, header=b"head", alignment=512) as writer:
        for at in ((0, 0), (0, 1)):
            writer.write_chunk(at, np.full((2, 2), 3, "int32"))
        writer.footer = b"the footer"
    stored = stored_of(tmp_path / "s", spec=spec)
    assert (stored.n_with_header, stored.n_with_footer) == (1, 1)
    assert (stored.header_nbytes, stored.footer_nbytes) == (4, 10)
    assert stored.padding_nbytes == 512 - 4 + 512 - 20 + 56  # and the mark
    assert stored.dead_nbytes == stored.unmarked_nbytes == 0
    assert stored.alignments == {512: 1}
    parts = stored.chunk_nbytes, stored.index_nbytes, stored.padding_nbytes, 4, 10
    assert sum(parts) == (tmp_path / "s").stat().st_size


def test_bytes_without_a_mark_are_not_called_dead(tmp_path: Path) -> None:
    body = b"????" + b"zero" + b"!!!!!!"
    entries = [(4, 4), *[(ABSENT, ABSENT)] * 3]
    (tmp_path / "s").write_bytes(assemble(body, entries))
    stored = stored_of(tmp_path / "s", spec=letters_spec())
    assert (stored.unmarked_nbytes, stored.dead_nbytes, stored.n_with_header) == (10, 0, 0)


def test_overlap_counts_each_byte_once(tmp_path: Path) -> None:
    entries = [(0, 8), (4, 4), (2, 4), (8, 4)]
    (tmp_path / "s").write_bytes(assemble(b"zeroone.tres", entries))
    stored = stored_of(tmp_path / "s", spec=letters_spec())
    assert stored.chunk_nbytes == 12 and stored.chunks.nbytes == 20 and stored.dead_nbytes == 0


@pytest.mark.parametrize("at_start", [False, True])
def test_kinds_of_bytes_add_up_to_the_shard(at_start: bool) -> None:
    n = letters_index_nbytes()
    first = n if at_start else 0
    entries = [(first + 3, 4), (first + 9, 4), (ABSENT, ABSENT), (first + 7, 0)]
    blob = assemble(b"..?zero..one.?", entries, at_start=at_start)
    spec = letters_spec(at_start=at_start)
    layout = shard_layout(spec, np.array(entries, np.uint64), len(blob), lambda low, k: blob[low : low + k])
    assert sum(layout.total(kind) for kind in KINDS) == len(blob)
    assert layout.ranges["dead"].tolist() == [[first + 7, 2]]
    assert layout.n_stored == 3


def test_no_checksum_of_the_index(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(letters(crc=False))
    assert stored_of(tmp_path / "s", spec=letters_spec(crc=False)).n_without_index_checksum == 1


@pytest.mark.parametrize(("by_offset", "order"), [
    ([0, 1, 2, 4, 5, 8], "lexicographic"), ([0, 4, 1, 5, 8, 12], "morton"),
    ([0, 4, 8, 12, 1], "colexicographic"), ([0, 1, 5], "any"), ([], "any"), ([5, 0], "other"),
])  # fmt: skip
def test_order_found(by_offset: list[int], order: str) -> None:
    assert stored_order(np.array(by_offset, np.int64), (4, 4)) == order


def test_damaged_shards_are_counted_and_named(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 5
    torn, wrong = shard_path(array), shard_path(array, "c/1/1")
    torn.write_bytes(torn.read_bytes()[:-1])
    wrong.write_bytes(b"short")
    report = one(tmp_path / "a.zarr")
    assert report.stored is not None
    assert (report.stored.n_shards, report.stored.n_damaged, report.stored.n_chunks) == (4, 2, 16)
    assert {damaged.shard for damaged in report.damaged} == {str(torn), str(wrong)}
    assert report.n_findings == 2
    messages = {damaged.shard: damaged.message for damaged in report.damaged}
    assert "too short" in messages[str(wrong)]
    stopped = one(tmp_path / "a.zarr", fail_fast=True)
    assert not stopped.is_complete and len(stopped.damaged) == 1


def test_entry_beyond_the_end_is_a_damaged_shard(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(assemble(b"zero", [(0, 4), (4, 400), *[(ABSENT, ABSENT)] * 2]))
    (damaged,) = one(tmp_path / "s", spec=letters_spec()).damaged
    assert damaged.shard == str(tmp_path / "s") and "(0, 1)" in damaged.message and "400" in damaged.message


def test_group_with_a_broken_and_a_plain_array(tmp_path: Path) -> None:
    with quiet():
        group = zarr.create_group(tmp_path / "g.zarr")
        group.create_array("plain", shape=(4,), chunks=(2,), dtype="i4")
        zarr.create_array(tmp_path / "g.zarr/v2", shape=(4,), chunks=(2,), dtype="i4", zarr_format=2)
    (tmp_path / "g.zarr/x").mkdir()
    (tmp_path / "g.zarr/x/zarr.json").write_text("[]")
    report = inspect(tmp_path / "g.zarr")
    plain, v2, x = report.arrays
    assert plain.layout is not None and plain.layout.shard_shape is None and plain.stored is None
    assert v2.layout is not None and v2.layout.zarr_format == 2 and v2.layout.codecs[0]["name"] == "bytes"
    assert x.problem is not None and x.layout is None
    assert report.n_findings == 1
    assert json.loads(json.dumps(report.to_json()))["arrays"][0]["layout"]["chunk_shape"] == [2]


def test_transposed_array_is_told_along_its_own_axes(tmp_path: Path) -> None:
    spec = shardcodec.ShardSpec(
        (4, 6),
        (3, 2),
        "uint8",
        0,
        ["bytes"],
        before=[{"name": "transpose", "configuration": {"order": [1, 0]}}],
    )
    write_array(tmp_path / "a", spec, (8, 12))
    layout = one(tmp_path / "a").layout
    assert layout is not None and layout.chunk_shape == (2, 3) and layout.shard_shape == (4, 6)


@pytest.mark.parametrize("high", [10, 3000, 2**40])
def test_percentiles_are_right_to_a_fifth_of_a_percent(high: int) -> None:
    numbers = np.random.default_rng(0).integers(0, high, 5000).astype(np.uint64)
    sizes = Sizes()
    for part in np.array_split(numbers, 7):
        sizes.add(part)
    found = sizes.summary()
    assert (found.n, found.nbytes) == (5000, int(numbers.sum()))
    assert (found.min_nbytes, found.max_nbytes) == (int(numbers.min()), int(numbers.max()))
    for share, told in ((5, found.p5_nbytes), (50, found.p50_nbytes), (95, found.p95_nbytes)):
        exact = int(np.percentile(numbers, share, method="inverted_cdf"))
        assert told is not None and exact * (1 - 1 / 512) - 1 <= told <= exact


def test_percentiles_of_equal_and_of_no_sizes() -> None:
    sizes = Sizes()
    assert sizes.summary().p50_nbytes is None
    sizes.add([123_457] * 3)
    assert sizes.summary().p5_nbytes == sizes.summary().p95_nbytes == 123_457


@pytest.mark.parametrize("member", ["codecs", "chunk_grid", "shape"])
@pytest.mark.parametrize("value", [True, 7, "x", {"a": 1}, None])
def test_malformed_member_is_a_problem_of_the_array(tmp_path: Path, member: str, value: Any) -> None:
    """Codecs that are no list ended the whole report with an error of Python, if zarr was to decode the array."""
    with quiet():
        array = zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype=str)
    array[:] = np.array(list("abcd"), dtype=object)
    document = json.loads((tmp_path / "a/zarr.json").read_text())
    document["codecs"].append(document["codecs"][0])
    (tmp_path / "a/zarr.json").write_text(json.dumps(document | {member: value}))
    assert one(tmp_path / "a").problem is not None
