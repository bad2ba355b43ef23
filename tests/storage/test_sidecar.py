# test_sidecar.py - sizes of inner chunks that a file caches: never used for an object that has changed
# SPDX-License-Identifier: MIT
"""`chunk_state(..., cache=)` and the file behind it (PR-7)."""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create
from hypothesis import given
from hypothesis import strategies as st
from workers import in_processes

from shardcodec import chunk_state, native
from shardcodec.access import index_scan
from shardcodec.storage import files, object_store
from shardcodec.storage.sidecar import Sidecar

U64 = np.uint64


def numbers(*sizes: int) -> np.ndarray[Any, Any]:
    return np.array(sizes, dtype=U64)


# ---- arrays


@pytest.fixture
def read_indexes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files whose index is read. Young files are trusted too."""
    found: list[str] = []
    scan = index_scan.scan_files

    def noting(chain: Any, sources: Any, keys: Any, options: Any) -> Any:
        found.extend(keys)
        return scan(chain, sources, keys, options)

    monkeypatch.setattr(index_scan, "scan_files", noting)
    monkeypatch.setattr(files, "GRAIN_NS", -(10**12))
    return found


def state_of(array: Any, **how: Any) -> tuple[list[Any], list[Any]]:
    found = chunk_state(array, **how)
    return found.exists.tolist(), found.nbytes.tolist()


def test_index_is_read_again_only_after_a_change(tmp_path: Path, read_indexes: list[str]) -> None:
    array, cache = create(tmp_path / "a", shape=(64, 48)), tmp_path / "state"
    array[:30] = np.random.default_rng(1).integers(0, 3, (30, 48)) - 1
    plain = state_of(array)
    read_indexes.clear()
    assert state_of(array, cache=cache) == plain
    assert len(read_indexes) == 32
    read_indexes.clear()
    assert state_of(array, cache=cache) == plain
    assert state_of(array, cache=cache) == plain == state_of(array)
    del read_indexes[-32:]
    missing = [key for key in read_indexes if not (tmp_path / "a" / key).exists()]
    assert read_indexes == missing  # looking for a missing file costs as much as asking for its state
    array[40, 5] = 7  # a new shard, a changed one and an erased one
    array[0, 0] = 77
    array[16:24, 24:36] = -1
    read_indexes.clear()
    changed = state_of(array, cache=cache)
    assert {"c/5/0", "c/0/0", "c/2/2"} <= set(read_indexes) and "c/1/1" not in read_indexes
    assert changed == state_of(array) != plain
    assert state_of(array, region=np.s_[:9, :20], cache=cache) == state_of(array, region=np.s_[:9, :20])
    read_indexes.clear()
    assert state_of(array, cache=cache) == changed and "c/1/3" not in read_indexes


def test_young_files_and_hard_links_are_not_cached(
    tmp_path: Path, read_indexes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    array, cache = create(tmp_path / "a", shape=(16, 24)), tmp_path / "state"
    array[...] = 1
    os.link(tmp_path / "a/c/0/0", tmp_path / "second")
    for _ in range(2):
        read_indexes.clear()
        state_of(array, cache=cache)
    assert read_indexes == ["c/0/0"]
    monkeypatch.setattr(files, "GRAIN_NS", 10**12)
    read_indexes.clear()
    assert state_of(array, cache=cache) == state_of(array)
    assert len(read_indexes) == 8


def test_objects_are_cached_by_entity_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obstore = pytest.importorskip("obstore")
    from zarr.storage import ObjectStore

    from shardcodec.storage.object_store import ObjectStore as EntityStore

    monkeypatch.setattr(object_store, "LASTING", ("MemoryStore",))  # the tags last as long as this process
    asked: list[str] = []
    suffix = EntityStore.get_suffix

    def noting(self: Any, key: str, nbytes: int) -> Any:
        asked.append(key)
        return suffix(self, key, nbytes)

    monkeypatch.setattr(EntityStore, "get_suffix", noting)
    store = ObjectStore(obstore.store.MemoryStore())
    create(store, name="ab", shape=(16, 24))[...] = 1
    array, cache = create(store, name="a", shape=(16, 24)), tmp_path / "state"
    array[:8] = 1
    plain = state_of(array)
    for keys in (["a/c/0/0", "a/c/0/1"], []):
        asked.clear()
        assert state_of(array, cache=cache) == plain
        assert sorted(asked) == keys
    array[:8, :12] = 2
    array[8, 0] = 3
    array[:8, 12:] = -1
    asked.clear()
    assert state_of(array, cache=cache) == state_of(array) != plain
    assert sorted(asked)[:2] == ["a/c/0/0", "a/c/0/0"] and asked.count("a/c/0/1") <= 1
    monkeypatch.setattr(object_store, "LASTING", ())
    asked.clear()
    assert state_of(array, cache=cache) == state_of(array)
    assert asked.count("a/c/1/0") == 2


def test_file_of_another_array_is_ignored(
    tmp_path: Path, read_indexes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "state"
    one, other = create(tmp_path / "a", shape=(16, 24)), create(tmp_path / "b", shape=(16, 24))
    one[...] = 1
    for array in (one, other, one):
        assert chunk_state(array, cache=cache).exists.all() == (array is one)
    assert caplog.text.count("is about another array") == 2


@pytest.mark.parametrize("kind", ["cut", "flipped", "empty", "other", "folder"])
def test_damaged_file_warns_and_is_replaced(
    kind: str, tmp_path: Path, read_indexes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    array, cache = create(tmp_path / "a", shape=(16, 24)), tmp_path / "state"
    array[...] = 1
    plain = state_of(array, cache=cache)
    good = cache.read_bytes()
    bad = {
        "cut": [good[:n] for n in range(1, len(good), 37)],
        "flipped": [good[:n] + bytes([good[n] ^ 64]) + good[n + 1 :] for n in range(0, len(good), 23)],
        "empty": [b""],
        "other": [b"PK" + good, os.urandom(500)],
        "folder": [],
    }[kind]
    for data in bad:
        cache.write_bytes(data)
        assert state_of(array, cache=cache) == plain
        assert cache.read_bytes() == good
    if kind == "folder":
        cache.unlink()
        cache.mkdir()
        assert state_of(array, cache=cache) == plain
        assert "cannot write the cache" in caplog.text
    records = [record for record in caplog.records if record.name == "shardcodec"]
    assert len([r for r in records if "is ignored" in r.getMessage()]) == max(1, len(bad))
    assert all(record.levelno == logging.WARNING for record in records)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "state"}  # no litter


# ---- the file


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.tuples(
            st.text(max_size=8),
            st.lists(
                st.sampled_from([0, 1, 253, 254, 255, 65534, 2**32, 2**64 - 2, 2**64 - 1]),
                min_size=3,
                max_size=3,
            ),
        ),
        max_size=5,
    )
)
def test_stored_sizes_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("sidecar") / "state"
    written = Sidecar(path, "me", 3)
    for key, (stamp, sizes) in content.items():
        written.put(key, stamp, numbers(*sizes))
    written.save()
    assert path.exists() == bool(content)
    again = Sidecar(path, "me", 3)
    assert len(again) == len(content)
    for key, (stamp, sizes) in content.items():
        found = again.get(key, stamp)
        assert found is not None and found.tolist() == sizes
        assert again.get(key, stamp + ".") is None and again.get(key, None) is None
    again.save()
    assert len(Sidecar(path, "you", 3)) == 0


def test_impossible_sizes_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A valid checksum does not make the content valid: a wrong number of inner chunks, an endless compressed
    stream.
    """
    path = tmp_path / "state"
    first = Sidecar(path, "me", 1 << 20)
    first.put("a", "1", np.zeros(1 << 20, dtype=U64))
    first.save()
    other = Sidecar(path, "me", 3)
    assert other.get("a", "1") is None and "are damaged" in caplog.text
    data = path.read_bytes()
    for old, new in ((b'"1", 1, ', b'"1", 3, '), (b'"1", 1, ', b'"1", 8, '), (b'["a", ', b"[[1], ")):
        body = data[12:].replace(old, new)
        path.write_bytes(data[:8] + struct.pack("<I", native.load().crc32c(body)) + body)
        assert Sidecar(path, "me", 1 << 20).get("a", "1") is None


def test_file_keeps_recently_used_objects_within_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "state"
    rng = np.random.default_rng(0)
    kept = Sidecar(path, "me", 100, max_nbytes=4000)
    for i in range(60):
        kept.put(f"c/{i}", "stamp", rng.integers(0, 255, 100).astype(U64))
    assert kept.get("c/3", "stamp") is not None
    kept.save()
    assert 2000 < path.stat().st_size <= 4000
    again = Sidecar(path, "me", 100, max_nbytes=4000)
    assert all(again.get(f"c/{i}", "stamp") is not None for i in (3, 50, 59))  # the last ones used
    assert again.get("c/4", "stamp") is None
    assert len(Sidecar(path, "me", 100, max_nbytes=1000)) == 0
    again.keep_only({"c/59"})
    again.save()
    assert len(Sidecar(path, "me", 100)) == 1
    tiny = Sidecar(tmp_path / "tiny", "me", 100, max_nbytes=10)
    tiny.put("a", "1", numbers(*range(100)))
    tiny.save()
    assert len(Sidecar(tmp_path / "tiny", "me", 100)) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
def test_one_of_several_writers_wins(tmp_path: Path) -> None:
    path = tmp_path / "state"

    def write(number: int) -> None:
        for turn in range(30):
            kept = Sidecar(path, "me", 50)
            for i in range(20):
                found = kept.get(f"c/{i}", "stamp")
                assert found is None or found.tolist() == [i] * 50
                kept.put(f"c/{i}", "stamp", numbers(*[i] * 50))
            kept.put(f"{number}", f"{turn}", numbers(*[turn] * 50))
            kept.save()

    in_processes(4, write)
    found = Sidecar(path, "me", 50)
    assert all(found.get(f"c/{i}", "stamp") is not None for i in range(20))
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
