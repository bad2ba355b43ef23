# test_cache_stores.py - the index cache by key, as used for object stores, and as an option of arrays
# SPDX-License-Identifier: MIT
"""`storage.index_cache` without files; for files see test_cache.py."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from helpers import create, letters_spec, ours, shard_path

import shardcodec
from shardcodec import IndexCache
from shardcodec.access.compiled_chains import compiled
from shardcodec.storage import indexes

# ---- objects of other stores


def test_index_is_put_and_found_by_key() -> None:
    chain = compiled(letters_spec().chain)
    entries = np.arange(8, dtype=np.uint64).reshape(4, 2)
    cache = IndexCache(1 << 16)
    assert cache.get("s3://bucket/c/0", chain) is None
    cache.put("s3://bucket/c/0", chain, entries, cache.ticket())
    kept = cache.get("s3://bucket/c/0", chain)
    assert kept is not None
    assert kept.tolist() == entries.tolist()
    assert not kept.flags.writeable
    assert cache.get("s3://bucket/c/0", compiled(letters_spec(crc=False).chain)) is None, (
        "the index layout must match"
    )
    cache.drop(["s3://bucket/c/0"])
    assert cache.get("s3://bucket/c/0", chain) is None
    assert kept.tolist() == entries.tolist(), "dropping an index must not change a copy in use"


def test_index_fetched_before_a_write_is_not_cached_after_it() -> None:
    chain = compiled(letters_spec().chain)
    entries = np.zeros((4, 2), np.uint64)
    cache = IndexCache(1 << 16)
    ticket = cache.ticket()
    indexes.drop(["key"])
    cache.put("key", chain, entries, ticket)
    assert cache.get("key", chain) is None


def test_state_lasts_while_the_index_is_equal() -> None:
    """Inner chunks are kept under the number of an index. Each whole read puts the index again: it keeps its number if it is equal."""
    chain = compiled(letters_spec().chain)
    entries = np.arange(8, dtype=np.uint64).reshape(4, 2)
    cache = IndexCache(1 << 16, max_chunk_bytes=1000)
    assert cache.native.state("key", chain) == 0
    states = []
    for index in (entries, entries.copy(), entries + np.uint64(1), entries):
        cache.put("key", chain, index, cache.ticket())
        states.append(cache.native.state("key", chain))
    assert states[0] == states[1] != 0
    assert len(set(states)) == 3, (
        "an index that is another one meanwhile has another number when it comes back"
    )
    cache.drop(["key"])
    assert cache.native.state("key", chain) == 0


def test_names_with_a_zero_byte_are_different_keys() -> None:
    """As C strings they would end at the zero byte, and two states of an object would be confused."""
    chain = compiled(letters_spec().chain)
    cache = IndexCache(1 << 16)
    for n in range(3):
        cache.put(f"object\0state {n}", chain, np.full((4, 2), n, np.uint64), cache.ticket())
    for n in range(3):
        kept = cache.get(f"object\0state {n}", chain)
        assert kept is not None
        assert (kept == n).all()
    assert cache.get("object", chain) is None
    cache.drop(["object\0state 1"])
    assert cache.get("object\0state 1", chain) is None
    assert cache.get("object\0state 2", chain) is not None


# ---- through zarr


def test_option_switches_the_cache_off(tmp_path: Path) -> None:
    create(tmp_path)[...] = 1
    settled(shard_path(ours(tmp_path)))
    on, off = ours(tmp_path), ours(tmp_path, index_cache=0)
    on[0, 0]
    before = shardcodec.stats()
    on[0, 0]
    assert shardcodec.stats()["index_hits"] == before["index_hits"] + 1
    off[0, 0]
    after = shardcodec.stats()
    assert after["index_hits"] == before["index_hits"] + 1
    assert after["index_misses"] == before["index_misses"]


def settled(path: Path) -> None:
    """Wait until the default grain has passed."""
    while time.time() - path.stat().st_ctime < 2.1:
        time.sleep(0.1)


def test_write_by_this_process_is_visible_at_once(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[...] = 1
    for value in range(5):
        array[0, 0] = value
        assert array[0, 0] == value
        with shardcodec.options(immutable=True, open_files=4):
            assert array[0, 0] == value


@pytest.mark.parametrize("name", ["index_cache", "open_files"])
def test_negative_sizes_are_refused_as_options(name: str) -> None:
    with (
        pytest.raises(ValueError, match=f"{name}: expected a number of at least 0"),
        shardcodec.options(**{name: -1}),
    ):
        pass
