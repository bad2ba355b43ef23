# test_mapping.py - `ChunkMapping`
# SPDX-License-Identifier: MIT
"""`ChunkMapping`: methods with the names of zarr-python 2, and their errors (ST-8, ST-12)."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import RecordingStore
from zarr.storage import MemoryStore

from shardcodec.transformer import ChunkMapping, KeyLayout, ShardingStorageTransformer


def mapping(store: Any = None, **how: Any) -> ChunkMapping:
    store = MemoryStore() if store is None else store
    return ChunkMapping(ShardingStorageTransformer(store, (2, 3), **how))


def test_mapping_is_a_dictionary() -> None:
    chunks = mapping()
    twin: dict[str, bytes] = {}
    for each in (chunks, twin):
        each["c/0/0"], each["c/0/1"], each["c/7/7"], each["other"] = b"a", b"", b"seven", b"o"
        each.update({"c/1/0": b"b", "c/1/1": b"c"})
        del each["c/0/0"]
        assert each.pop("c/1/1") == b"c" and each.setdefault("c/1/2", b"d") == b"d"
        with pytest.raises(KeyError):
            each["c/0/0"]
        for missing in ("c/0/0", "c/9/9", "nothing"):  # in an existing shard, in an absent shard, in no shard
            with pytest.raises(KeyError):
                del each[missing]
    assert dict(chunks) == twin and len(chunks) == len(twin) and list(chunks) == sorted(twin)
    assert "c/1/0" in chunks and "c/0/0" not in chunks and 3 not in chunks
    value = bytearray(b"mine")
    chunks["other"] = value
    value[:] = b"else"
    assert chunks["other"] == b"mine"
    chunks.clear()
    assert not chunks and not chunks.store.store._store_dict  # type: ignore[attr-defined]


def test_methods_of_the_draft() -> None:
    chunks = mapping(layout=KeyLayout.draft_2022(), path="a")
    key = "data/root/a/c{}/{}".format
    chunks.update({key(i, j): b"%d%d" % (i, j) * 2 for i in range(3) for j in range(4)})
    chunks["meta/root/a.array.json"] = b"{}"
    wanted = [
        (key(2, 3), (1, 2)),
        (key(5, 5), None),
        (key(0, 0), (-1, None)),
        ("meta/root/a.array.json", None),
    ]
    assert chunks.get_partial_values(wanted) == [b"32", None, b"0", b"{}"]
    chunks.set_partial_values([(key(0, 0), 2, b"xyz"), (key(4, 4), 0, b"new")])
    assert chunks[key(0, 0)] == b"00xyz" and chunks[key(4, 4)] == b"new"
    assert chunks.list_dir("data/root") == ([], ["data/root/a/"])
    assert chunks.list_dir("data/root/a/c1") == ([key(1, j) for j in range(4)], [])
    assert chunks.list_prefix("meta") == ["meta/root/a.array.json"]
    chunks.erase(key(9, 9))
    chunks.erase_values([key(0, 0), key(9, 9)])
    chunks.erase_prefix("data/root/a/c1")
    assert chunks.list() == sorted(
        [*(key(i, j) for i in (0, 2) for j in range(4) if i + j), key(4, 4), "meta/root/a.array.json"]
    )
    chunks.erase_prefix("data/root/a")
    assert list(chunks) == ["meta/root/a.array.json"]
    chunks[key(0, 0)] = b"again"
    chunks.rmdir("a")
    assert list(chunks) == []


def test_update_writes_each_shard_once_without_reading_complete_ones() -> None:
    below = RecordingStore(MemoryStore())
    chunks = mapping(below)
    chunks.update({f"c/{i}/{j}": b"x" for i in range(2) for j in range(6)})
    assert sorted(below.written) == ["c/0/0", "c/0/1"] and below.requests == []


LAYOUTS = [
    KeyLayout.v3(),
    KeyLayout.v3("."),
    KeyLayout.v2("/"),
    KeyLayout.draft_2022(),
    KeyLayout.draft_2022("."),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("paths", [["g/a"], ["g/a", "h/a"]])
def test_rename_and_rmdir_keep_neighbours(
    layout: KeyLayout, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group with an array moves to a path of the transformer or to another path; its neighbours stay."""
    monkeypatch.setattr("shardcodec.transformer.mapping.MOVED_TOGETHER", 5)
    below = RecordingStore(MemoryStore())
    chunks = mapping(below, layout=layout, path=paths)
    is_draft = bool(layout.folder)

    def node(path: str) -> dict[str, bytes]:
        meta = f"meta/root/{path}.array.json" if is_draft else f"{path}/zarr.json"
        found = {layout.key(path, (i, j)): b"%d%d" % (i, j) for i in range(3) for j in range(4)}
        return {meta: path[-1:].encode(), **found}

    group = "meta/root/{}.group.json" if is_draft else "{}/zarr.json"
    neighbours = {**node("ga"), **node("g2/a"), group.format("g2"): b"g2"}
    chunks.update({**node("g/a"), **neighbours, group.format("g"): b"g"})
    chunks.rename("g", "h")
    assert dict(chunks) == {**node("h/a"), **neighbours, group.format("h"): b"g"}
    assert (layout.key("h/a", (2, 3)) in below._store._store_dict) == (len(paths) == 1)
    chunks.rename("nothing", "else")
    chunks.rename("h/a", "g/a")
    assert dict(chunks) == {**node("g/a"), **neighbours, group.format("h"): b"g"}
    for src, dst in (("g", "g/b"), ("g/a", "g"), ("", "b"), ("g", ""), ("g", "g")):
        with pytest.raises(ValueError, match=r"root|below"):
            chunks.rename(src, dst)
    chunks.rmdir("g")
    chunks.rmdir("h")
    assert dict(chunks) == neighbours
    chunks.rmdir()
    assert not chunks


@pytest.mark.parametrize("wrong", [[], (), None, b"", 5], ids=repr)
def test_prefix_must_be_a_str(wrong: Any) -> None:
    chunks = mapping()
    chunks["c/0/0"] = b"a"
    with pytest.raises(TypeError, match=f"expected str, got {type(wrong).__name__}"):
        chunks.erase_prefix(wrong)
    assert list(chunks) == ["c/0/0"]


def test_erase_values_refuses_a_str() -> None:
    """The characters of a single key were taken for keys; with an array at the root, "c" can be the key of another object."""
    chunks = mapping()
    chunks["c"] = chunks["c/0/0"] = b"a"
    with pytest.raises(TypeError, match="several keys"):
        chunks.erase_values("c/0/0")
    assert list(chunks) == ["c", "c/0/0"]
