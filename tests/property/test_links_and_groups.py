# test_links_and_groups.py - shards that are symbolic links, inside and outside of blocks of group_writes
# SPDX-License-Identifier: MIT
"""Random writes and erasures through files, links to one target and dangling links. Every reader sees the twin's
values.

The links of one array point to the shards of another array, so that zarr's own pipeline reads the targets too. The
twin holds an array for each file and applies the table of links in `docs/durability.md` to one write after the
other. A block must show and store the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from folder_machine import FolderMachine
from helpers import files_below, ours, quiet, zarrs_view
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import shardcodec
from shardcodec.errors import ShardFileError

FILL = -1
N, CHUNK = 6, 2  # elements of a shard and of an inner chunk
N_SHARDS = {"a": 4, "b": 2}  # shards of "a" may be links to shards of "b"

File = tuple[str, int]

shards = st.sampled_from([(name, i) for name, n in N_SHARDS.items() for i in range(n)])
spans = st.tuples(st.integers(0, N - 1), st.integers(1, N)).map(lambda p: slice(p[0], min(N, p[0] + p[1])))
numbers_of_links = st.integers(0, N_SHARDS["a"] - 1)
numbers_of_targets = st.integers(0, N_SHARDS["b"] - 1)
budgets = st.sampled_from([0, 2 * N * 4, 1 << 20, 1 << 20])
strategies = st.sampled_from(["replace", "append", "in_place"])


class LinksAndGroups(FolderMachine):
    @initialize(
        direct=st.booleans(),
        leads=st.lists(st.none() | numbers_of_targets, min_size=4, max_size=4),
        there=st.sets(shards, max_size=4),
        max_bytes=st.none() | budgets,
    )
    def create(self, direct: bool, leads: list[int | None], there: set[File], max_bytes: int | None) -> None:
        self.begin(direct=direct)
        self.files: dict[File, np.ndarray[Any, Any]] = {}
        self.leads: dict[int, int] = {}
        self.arrays: dict[str, Any] = {}
        self.block: Any = None
        self.next = 0
        for name, n in N_SHARDS.items():
            with quiet():
                zarr.create_array(
                    self.folder / name,
                    shape=(n * N,),
                    shards=(N,),
                    chunks=(CHUNK,),
                    dtype="i4",
                    fill_value=FILL,
                )
            (self.folder / name / "c").mkdir()
            self.arrays[name] = ours(self.folder / name)
        spec = self.arrays["a"].metadata.to_dict()
        self.spec = shardcodec.ShardSpec.from_metadata(spec)
        for i, target in enumerate(leads):
            if target is not None:
                self.link(i, target)
        for name, i in sorted(there):
            self.write((name, i), slice(0, N), "replace")
        if max_bytes is not None:
            self.open_block(max_bytes)

    def path(self, shard: File) -> Path:
        return self.folder / shard[0] / "c" / str(shard[1])

    # ---- the twin

    def file_of(self, shard: File) -> File:
        name, i = shard
        return ("b", self.leads[i]) if name == "a" and i in self.leads else shard

    def stored(self, shard: File) -> np.ndarray[Any, Any]:
        return self.files.get(self.file_of(shard), np.full(N, FILL, "i4"))

    def expected(self, name: str) -> np.ndarray[Any, Any]:
        return np.concatenate([self.stored((name, i)) for i in range(N_SHARDS[name])])

    def put(self, shard: File, span: slice, value: Any) -> None:
        new = self.stored(shard).copy()
        new[span] = value
        exists = self.file_of(shard) in self.files
        is_link = self.file_of(shard) != shard
        if (new == FILL).all():
            if exists and is_link:
                del self.leads[shard[1]]
            elif exists:
                del self.files[shard]
            return
        if is_link and not exists:
            del self.leads[shard[1]]
        self.files[self.file_of(shard)] = new

    # ---- writes

    def value(self) -> int:
        self.next += 1000
        return self.next

    @rule(shard=shards, span=spans, strategy=strategies)
    def write(self, shard: File, span: slice, strategy: str) -> None:
        value = self.value() + np.arange(span.stop - span.start, dtype="i4")
        self.assign(shard, span, strategy, value)

    @rule(shard=shards, span=spans | st.just(slice(0, N)), strategy=strategies)
    def erase(self, shard: File, span: slice, strategy: str) -> None:
        self.assign(shard, span, strategy, FILL)

    def assign(self, shard: File, span: slice, strategy: str, value: Any) -> None:
        name, i = shard
        with shardcodec.options(write_strategy=strategy):
            self.arrays[name][i * N + span.start : i * N + span.stop] = value
        self.put(shard, span, value)

    @rule(name=st.sampled_from(sorted(N_SHARDS)), erases=st.booleans())
    def write_all(self, name: str, erases: bool) -> None:
        value = FILL if erases else self.value()
        self.arrays[name][:] = value
        for i in range(N_SHARDS[name]):
            self.put((name, i), slice(0, N), value)

    @rule(shard=shards, chunk=st.integers(0, N // CHUNK - 1), strategy=strategies)
    def write_through_a_handle(self, shard: File, chunk: int, strategy: str) -> None:
        value = self.value()
        with (
            shardcodec.options(write_strategy=strategy),
            shardcodec.open_shard(self.folder / shard[0], f"c/{shard[1]}", self.spec, mode="r+") as handle,
        ):
            handle.write_chunks([(chunk,)], np.full((1, CHUNK), value, "i4"))
        self.put(shard, slice(chunk * CHUNK, (chunk + 1) * CHUNK), value)

    # ---- blocks

    @precondition(lambda self: self.block is None)
    @rule(max_bytes=budgets)
    def open_block(self, max_bytes: int) -> None:
        self.block = shardcodec.group_writes(max_bytes=max_bytes)
        self.block.__enter__()

    @precondition(lambda self: self.block is not None)
    @rule()
    def leave_block(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    def teardown(self) -> None:
        if getattr(self, "block", None) is not None:
            self.leave_block()
        super().teardown()

    # ---- users' changes of files

    @precondition(lambda self: self.block is None)
    @rule(i=numbers_of_links, k=numbers_of_targets)
    def link(self, i: int, k: int) -> None:
        path = self.path(("a", i))
        path.unlink(missing_ok=True)
        path.symlink_to(self.path(("b", k)))
        self.files.pop(("a", i), None)
        self.leads[i] = k

    @precondition(lambda self: self.block is None)
    @rule(k=numbers_of_targets)
    def remove_target(self, k: int) -> None:
        self.path(("b", k)).unlink(missing_ok=True)
        self.files.pop(("b", k), None)

    # ---- reads

    @invariant()
    def every_reader_agrees_with_the_twin(self) -> None:
        if not hasattr(self, "spec"):
            return
        for name, array in self.arrays.items():
            expected = self.expected(name)
            broken = [i for i in range(N_SHARDS[name]) if self.leads_nowhere((name, i))]
            if not broken:
                assert array[:].tolist() == expected.tolist()
            for i in range(N_SHARDS[name]) if broken else ():
                span = slice(i * N, (i + 1) * N)
                if i not in broken:
                    assert array[span].tolist() == expected[span].tolist()
                elif self.block is None:
                    with pytest.raises(ShardFileError, match="link to a missing file"):
                        array[span]
            if self.block is None:  # zarr takes a link to nothing for an absent shard
                assert zarrs_view(array)[:].tolist() == expected.tolist()

    def leads_nowhere(self, shard: File) -> bool:
        """Return True for a link without its file; buffered writes may lie over it."""
        return self.path(shard).is_symlink() and not self.path(shard).exists()

    @rule(shard=shards)
    def read_shard(self, shard: File) -> None:
        name, i = shard
        if self.leads_nowhere(shard):
            return
        expected = self.stored(shard).reshape(-1, CHUNK)
        assert (
            shardcodec.open_array(self.folder / name)[i * N : (i + 1) * N].tolist()
            == expected.ravel().tolist()
        )
        handle = shardcodec.open_shard(self.folder / name, f"c/{i}", self.spec)
        assert handle.read_chunks([(k,) for k in range(N // CHUNK)]).tolist() == expected.tolist()

    @invariant()
    def links_and_files_agree_with_the_twin(self) -> None:
        if not hasattr(self, "spec") or self.block is not None:
            return
        found = {i for i in range(N_SHARDS["a"]) if self.path(("a", i)).is_symlink()}
        assert found == set(self.leads)
        names = {f"{name}/c/{i}" for name, i in self.files} | {f"a/c/{i}" for i in self.leads}
        assert set(files_below(self.folder)) == names | {"a/zarr.json", "b/zarr.json"}


TestLinksAndGroups = LinksAndGroups.TestCase
TestLinksAndGroups.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
