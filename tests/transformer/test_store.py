# test_store.py - `ShardingStorageTransformer`
# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers import RecordingStore, assemble
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spec_json import CHECKED_INDEX
from transformer_stores import KINDS, PROTOTYPE, below, buffer, keys, names, value, values
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import MemoryStore, ObjectStore, StorePath

from shardcodec.transformer import KeyLayout, ShardingStorageTransformer


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return ShardingStorageTransformer(below(request.param, tmp_path / "store"), (2, 3))


# ---- a dictionary


class Twin(dict[str, bytes]):
    """A dictionary of chunks and other values, the reference for the transformer."""

    def below(self, prefix: str) -> list[str]:
        return sorted(key for key in self if key.startswith(prefix))

    def names(self, folder: str) -> list[str]:
        return sorted({key[len(folder) :].split("/")[0] for key in self if key.startswith(folder)})


CHUNKS = [f"c/{i}/{j}" for i in range(5) for j in range(4)]
PREFIXES = ["", "c/", "c/1/", "c/3/", "z", "c/1", "g/"]
DATA = st.one_of(st.binary(max_size=4), st.binary(min_size=20, max_size=40))
KEYS = st.sampled_from([*CHUNKS, "zarr.json", "g/zarr.json"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, DATA),
        st.tuples(st.just("set many"), st.dictionaries(KEYS, DATA, max_size=8)),
        st.tuples(st.just("set if"), KEYS, DATA),
        st.tuples(st.just("set part"), KEYS, st.integers(-3, 8), DATA),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("erase values"), st.lists(KEYS, max_size=8)),
        st.tuples(st.just("delete dir"), st.sampled_from(["c", "c/1", "c/4/", "g", "c/1/2"])),
    ),
    max_size=14,
)


async def play(store: Any, twin: Twin, step: tuple[Any, ...]) -> None:
    match step:
        case ("set", key, data):
            twin[key] = data
            await store.set(key, buffer(data))
        case ("set many", items):
            twin.update(items)
            await store.set_many([(key, buffer(data)) for key, data in items.items()])
        case ("set if", key, data):
            twin.setdefault(key, data)
            await store.set_if_not_exists(key, buffer(data))
        case ("set part", key, start, data):
            old = twin.get(key)
            at = start if start >= 0 else len(old or b"") + start
            if at < 0 or at > len(old or b""):
                with pytest.raises(ValueError, match=key):
                    await store.set_partial_values([(key, start, data)])
            else:
                old = old or b""
                twin[key] = old[:at] + data + old[at + len(data) :]
                await store.set_partial_values([(key, start, data)])
        case ("delete", key):
            twin.pop(key, None)
            await store.delete(key)
        case ("erase values", several):
            for key in several:
                twin.pop(key, None)
            await store.erase_values(several)
        case ("delete dir", folder):
            for key in twin.below(folder.removesuffix("/") + "/"):
                del twin[key]
            await store.delete_dir(folder)


# A store of files keeps and lists the folders of deleted objects. A store without conditional deletes keeps a shard without
# chunks and lists its folder.
LEAVES_FOLDERS = ("local", "conditional", "stack")


async def compare(store: Any, twin: Twin, *, leaves_folders: bool) -> None:
    assert await keys(store) == sorted(twin)
    for prefix in PREFIXES:
        assert await keys(store, prefix) == twin.below(prefix)
    for folder in ("", "c/", "c/1/", "g/", "c/7/"):
        listed = await names(store, folder)
        empty = [name for name in listed if name not in twin.names(folder)]
        assert sorted({*listed} - {*empty}) == twin.names(folder)
        assert leaves_folders or not empty
        for name in empty:
            assert await keys(store, f"{folder}{name}/") == []
    wanted = [*CHUNKS, "zarr.json", "g/zarr.json"]
    assert await values(store, [(key, None) for key in wanted]) == [twin.get(key) for key in wanted]
    for key in ("c/0/0", "c/2/2", "zarr.json"):
        assert await store.exists(key) == (key in twin)
        assert await value(store, key) == twin.get(key)
        if key in twin:
            assert await store.getsize(key) == len(twin[key])
    assert await store.getsize_prefix("c") == sum(len(twin[key]) for key in twin.below("c/"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("location", ["end", "start"])
def test_random_operations_match_a_dictionary(
    kind: str, location: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=max(5, settings().max_examples // 4))
    @given(STEPS)
    @example([("set", "c/0/0", b""), ("delete", "c/0/0")])
    def run(steps: list[tuple[Any, ...]]) -> None:
        async def go() -> None:
            inner = below(kind, tmp_path_factory.mktemp("twin") / "store")
            store = ShardingStorageTransformer(
                inner, (2, 3), index_location=location, index_codecs=CHECKED_INDEX
            )
            twin = Twin()
            for step in steps:
                await play(store, twin, step)
            await compare(store, twin, leaves_folders=kind in LEAVES_FOLDERS)

        asyncio.run(go())

    run()


async def test_shard_without_chunks_is_deleted(store: Any) -> None:
    await store.set("c/3/4", buffer(b"last"))
    assert await keys(store.store) == ["c/1/1"]
    await store.delete("c/3/3")  # absent
    assert await value(store, "c/3/4") == b"last"
    await store.delete("c/3/4")
    await store.delete("c/3/4")
    # a store without conditional deletes keeps a shard without chunks
    if type(store.store) is ObjectStore:
        assert await keys(store) == []
        await store.delete_dir("c")
    assert await keys(store.store) == []
    assert not await store.exists("c/3/4")
    with pytest.raises(FileNotFoundError):
        await store.getsize("c/3/4")


async def test_empty_value_exists(store: Any) -> None:
    await store.set("c/0/0", buffer(b""))
    assert await store.exists("c/0/0")
    assert await value(store, "c/0/0") == b""
    assert await keys(store) == ["c/0/0"]


# ---- ranges


REQUESTS = [
    (None, b"hello world!"),
    (RangeByteRequest(2, 5), b"llo"),
    (RangeByteRequest(10, 110), b"d!"),
    (RangeByteRequest(50, 60), b""),
    (RangeByteRequest(3, 3), b""),
    (OffsetByteRequest(4), b"o world!"),
    (OffsetByteRequest(400), b""),
    (SuffixByteRequest(4), b"rld!"),
    (SuffixByteRequest(400), b"hello world!"),
    (SuffixByteRequest(0), b""),
    ((4, None), b"o world!"),
    ((-4, None), b"rld!"),
    ((-4, 4), b"rld!"),
    ((-4, 2), b"rl"),
    ((-14, 5), b"hel"),
    ((-20, 5), b""),
    ((10, 100), b"d!"),
    ((2, 3), b"llo"),
]


async def test_range_ends_with_its_chunk(store: Any) -> None:
    """zarr 2.18 returned bytes of the next chunk, of the previous chunk or of the index for ranges beyond a chunk.

    The transformer refused (-4, 2), which zarr 2.18 accepts.
    """
    await store.set_many(
        [(f"c/0/{i}", buffer(text)) for i, text in enumerate([b"before", b"hello world!", b"after"])]
    )
    for request, expected in REQUESTS:
        if not isinstance(request, tuple):
            assert await value(store, "c/0/1", request) == expected
    assert await values(store, [("c/0/1", request) for request, _ in REQUESTS]) == [e for _, e in REQUESTS]
    await store.set("other", buffer(b"hello world!"))
    for request, expected in REQUESTS:
        if expected:  # stores differ in ranges beyond the end of a value
            assert await values(store, [("other", request)]) == [expected]


@pytest.mark.parametrize(
    "request_",
    [
        RangeByteRequest(-1, 3),
        RangeByteRequest(5, 2),
        OffsetByteRequest(-1),
        SuffixByteRequest(-2),
        (-4, -2),
        (0, -1),
    ],
)
async def test_invalid_ranges_raise(request_: Any) -> None:
    store = ShardingStorageTransformer(MemoryStore(), (2,))
    with pytest.raises(ValueError, match="byte"):
        await store.get_partial_values(PROTOTYPE, [("c/0", request_)])
    with pytest.raises(TypeError, match="byte_range"):
        await store.get("c/0", PROTOTYPE, (0, 1))
    with pytest.raises(TypeError, match="byte_range"):
        await store.get("c/0", PROTOTYPE, "all")


async def test_read_of_many_values_takes_two_calls() -> None:
    inner = RecordingStore(MemoryStore())
    store = ShardingStorageTransformer(inner, (2, 2))
    chunks = [(f"c/{i}/{j}", buffer(f"{i},{j}".encode() * 3)) for i in range(6) for j in range(6) if i != j]
    await store.set_many([*chunks, ("zarr.json", buffer(b"{}"))])
    inner.forget()
    wanted = [
        ("c/5/4", None),
        ("c/0/1", (3, 3)),
        ("c/0/0", None),
        ("zarr.json", None),
        ("c/0/1", None),
        ("c/2/5", SuffixByteRequest(1)),
        ("c/8/8", None),
        ("c/5/4", (0, 1)),
        ("nothing", None),
    ]
    found = await values(store, wanted)
    assert found == [b"5,45,45,4", b"0,1", None, b"{}", b"0,10,10,1", b"5", None, b"5", None]
    assert len(inner.calls) == 2
    (_, first), (_, second) = inner.calls
    indexes = [(f"c/{shard}", "last 64") for shard in ("0/0", "1/2", "2/2", "4/4")]
    assert sorted(first) == [*indexes, ("nothing", "all"), ("zarr.json", "all")]
    assert [key for key, _ in second] == ["c/2/2", "c/0/0", "c/1/2"]  # ranges of a shard are joined


@pytest.mark.parametrize(
    ("calls", "wanted"), [(2, ["c/0/0"]), (1, ["c/9/9"]), (1, [f"c/{i}/{j}" for i in (0, 1) for j in (0, 1)])]
)
async def test_number_of_calls_of_a_read(calls: int, wanted: list[str]) -> None:
    inner = RecordingStore(MemoryStore())
    store = ShardingStorageTransformer(inner, (2, 2))
    await store.set_many([(f"c/{i}/{j}", buffer(b"abc")) for i in (0, 1) for j in (0, 1)])
    inner.forget()
    found = await values(store, [(key, None) for key in wanted])
    assert found == [None if key == "c/9/9" else b"abc" for key in wanted]
    assert len(inner.calls) == calls


async def test_number_of_calls_of_writes() -> None:
    inner = RecordingStore(MemoryStore())
    store = ShardingStorageTransformer(inner, (2, 2))
    whole = [(f"c/{i}/{j}", buffer(b"abc")) for i in (0, 1) for j in (0, 1)]
    await store.set_many(whole)
    assert inner.calls == [("set", "c/0/0")]  # a shard that is written completely is not read
    inner.forget()
    await asyncio.gather(*(store.set(*each) for each in whole))
    assert inner.calls == [("set", "c/0/0")]  # concurrent changes are written together
    inner.forget()
    await store.set("c/0/1", buffer(b"x"))
    assert inner.calls == [("get", [("c/0/0", "all")]), ("set", "c/0/0")]
    inner.forget()
    await store.delete("c/5/5")
    assert inner.calls == [("get", [("c/2/2", "all")])]
    inner.forget()
    await store.delete_dir("c")
    assert not inner.requests


# ---- layouts


@pytest.mark.parametrize(
    ("layout", "chunk", "shard"),
    [
        (KeyLayout.v3(), "a/c/96/18", "a/c/3/9"),
        (KeyLayout.v3("."), "a/c.96.18", "a/c.3.9"),
        (KeyLayout.v2(), "a/96.18", "a/3.9"),
        (KeyLayout.draft_2022(), "data/root/a/c96/18", "data/root/a/c3/9"),
        (KeyLayout.draft_2022("."), "data/root/a/c96.18", "data/root/a/c3.9"),
    ],
)
async def test_layouts_map_chunks_to_shards(layout: KeyLayout, chunk: str, shard: str) -> None:
    inner = MemoryStore()
    store = ShardingStorageTransformer(inner, (32, 2), path="a", layout=layout)
    other = chunk.replace("/a/", "/b/") if "/a/" in chunk else chunk.replace("a/", "b/", 1)
    for key in (chunk, other, "meta/root/a.array.json"):
        await store.set(key, buffer(key.encode()))
    assert await keys(inner) == sorted([shard, other, "meta/root/a.array.json"])
    assert await keys(store) == sorted([chunk, other, "meta/root/a.array.json"])
    folder, name = chunk.rsplit("/", 1)
    assert await names(store, folder) == [name]
    assert await value(inner, other) == other.encode()
    await store.delete_dir(folder)
    assert await keys(inner) == sorted({other, "meta/root/a.array.json"} - {folder})


@pytest.mark.parametrize(
    ("layout", "folders"),
    [
        (KeyLayout.v3("."), ["a/c.1", "a/x", "a/c.1.0", "a/c."]),
        (KeyLayout.v2("."), ["a/1", "a/x", "a/1.0", "a/1.0/2"]),
        (KeyLayout.draft_2022("."), ["data/root/a/c1", "data/root/a/c", "data/root/a/c1.0"]),
        (KeyLayout.v3("/"), ["a/c/x", "a/c/01", "a/c/1/0/0", "a/c1"]),
        (KeyLayout.v2("/"), ["a/x", "a/01", "a/1/0/0"]),
    ],
)
async def test_deleting_a_folder_without_chunks_erases_none(layout: KeyLayout, folders: list[str]) -> None:
    """`delete_dir("a/c.1")` erased the whole array, though the keys of its chunks have no such folder."""
    store = ShardingStorageTransformer(MemoryStore(), (2, 2), path="a", layout=layout)
    chunks = sorted(layout.key("a", (i, j)) for i in range(3) for j in range(3))
    for key in chunks:
        await store.set(key, buffer(key.encode()))
    for folder in folders:
        await store.delete_dir(folder)
        assert await keys(store) == chunks, folder


async def test_array_without_axes() -> None:
    inner = MemoryStore()
    store = ShardingStorageTransformer(inner, ())
    await store.set("c", buffer(b"scalar"))
    assert await value(store, "c") == b"scalar"
    assert (await value(inner, "c")) == assemble(b"scalar", [(0, 6)], crc=False)
    assert await keys(store) == ["c"]
    assert await names(store, "") == ["c"]


async def test_several_arrays_below_a_path() -> None:
    inner = MemoryStore()
    store = ShardingStorageTransformer(StorePath(inner, "group"), (2,), path=["a", "b"])
    for key in ("group/a/c/1", "group/b/c/2", "group/x/c/3", "a/c/1"):
        await store.set(key, buffer(b"1"))
    assert await keys(inner) == ["a/c/1", "group/a/c/0", "group/b/c/1", "group/x/c/3"]
    assert await keys(store) == ["a/c/1", "group/a/c/1", "group/b/c/2", "group/x/c/3"]


def test_wrong_arguments_raise(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(
        tmp_path, (2, 2), path="/a/", index_location="start", durability="fsync"
    )
    assert (store.paths, store.chunks_per_shard, store.index_location) == (("a",), (2, 2), "start")
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert hash(again) == hash(store)
    assert store != ShardingStorageTransformer(tmp_path, (2, 2), path="a")
    named_twice = ShardingStorageTransformer(MemoryStore(), (2,), path=["a", "a/"])
    assert named_twice.paths == ("a",)  # duplicates are dropped, else chunks would be listed twice
    with pytest.raises(TypeError, match="layout: expected a KeyLayout, got 'v2'"):
        ShardingStorageTransformer(tmp_path, (2, 2), layout="v2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no option"):
        ShardingStorageTransformer(tmp_path, (2, 2), nonsense=1)
    with pytest.raises(ValueError, match="no array"):
        ShardingStorageTransformer(tmp_path, (2, 2), path=[])
    with pytest.raises(ValueError, match="read-only"):
        ShardingStorageTransformer(MemoryStore(read_only=True), (2,), read_only=False)
    for wrong in ((0, 2), (-1,), "ab"):
        with pytest.raises((TypeError, ValueError), match="chunks_per_shard"):
            ShardingStorageTransformer(tmp_path, wrong)  # type: ignore[arg-type]


# ---- read-only, wrong values


async def test_read_only_store_refuses_writes(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(tmp_path, (2,))
    await store.set("c/0", buffer(b"abc"))
    closed = store.with_read_only(True)
    assert closed.read_only
    assert await value(closed, "c/0") == b"abc"
    for work in (
        lambda: closed.set("c/0", buffer(b"")),
        lambda: closed.delete("c/0"),
        lambda: closed.delete_dir("c"),
        lambda: closed.set_partial_values([("c/0", 0, b"")]),
        lambda: closed.set_many([("c/0", buffer(b""))]),
        closed.clear,
    ):
        with pytest.raises(ValueError, match="read-only"):
            await work()
    await closed.with_read_only(False).set("c/0", buffer(b"new"))
    assert await value(store, "c/0") == b"new"


async def test_wrong_values_raise() -> None:
    store = ShardingStorageTransformer(MemoryStore(), (2,))
    with pytest.raises(TypeError, match="Buffer"):
        await store.set("c/0", b"bytes")
    await store.set("c/0", buffer(b"abc"))
    for parts in ([(0, b"ab"), (1, b"x")], [(4, b"x")], [(-4, b"x")], [(1, b""), (-3, b"zz")]):
        with pytest.raises(ValueError, match="'c/0'"):
            await store.set_partial_values([("c/0", *part) for part in parts])
    with pytest.raises(TypeError):
        await store.set_partial_values([("c/0", 0.0, b"x")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="'c/1'"):
        await store.set_partial_values([("c/0", 0, b"x"), ("c/1", 1, b"x")])
    assert await value(store, "c/0") == b"abc"
    await store.set_partial_values(
        [("c/0", 3, b"def"), ("c/0", 0, buffer(b"A")), ("c/1", 0, b"1"), ("z", 0, b"9")]
    )
    assert await values(store, [("c/0", None), ("c/1", None), ("z", None)]) == [b"Abcdef", b"1", b"9"]
    await store.set_partial_values(
        [("c/0", 4, b"YZ"), ("c/0", 0, b"WX"), ("c/0", 2, b"--")]
    )  # adjacent, no overlap
    assert await value(store, "c/0") == b"WX--YZ"
