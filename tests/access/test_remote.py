# test_remote.py - reads by requests: their number, their concurrency, and objects that change during a read
# SPDX-License-Identifier: MIT
"""`access.read_remote` over a store in memory that records requests and can change objects before it answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import LETTERS, WORDS, assemble, letters, letters_spec, text_of
from spec_json import LITTLE

import shardcodec
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.read import ObjectSelection
from shardcodec.access.read_remote import fetch, wants_whole
from shardcodec.access.regions import Box
from shardcodec.options import Options
from shardcodec.storage import indexes
from shardcodec.storage.budget import Limits
from shardcodec.storage.store import Answer, ObjectChanged

FAR = Limits(n_requests=4, max_gap_nbytes=0)
CHAIN = compiled(letters_spec().chain)
Request = tuple[str, Any]


class Store:
    """Objects in memory. With `tells`, answers report size and version, and requests can be bound to a version."""

    numbers = itertools.count()
    budget_name: str | None = None

    def __init__(self, objects: dict[str, bytes], *, tells: bool = False) -> None:
        self.number = next(self.numbers)
        self.objects = objects
        self.tells = tells
        self.requests: list[Request] = []
        self.n_now = self.n_most = 0
        self.before: Callable[[Request], Any] = lambda request: None

    async def get(self, key: str) -> Answer | None:
        return await self.answer(key, "all", 0, None)

    async def get_range(self, key: str, start: int, end: int, version: str | None = None) -> Answer | None:
        return await self.answer(key, (start, end), start, end, version)

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        return await self.answer(key, f"last {nbytes}", -nbytes, None)

    async def answer(
        self, key: str, wanted: Any, start: int, end: int | None, version: str | None = None
    ) -> Answer | None:
        self.requests.append((key, wanted))
        self.n_now += 1
        self.n_most = max(self.n_most, self.n_now)
        try:
            await asyncio.sleep(0)
            self.before((key, wanted))
        finally:
            self.n_now -= 1
        blob = self.objects.get(key)
        if blob is None:
            return None
        if version is not None and version != str(hash(blob)):
            raise ObjectChanged(key)
        data = np.frombuffer(blob[start:end], "u1")
        return Answer(data, len(blob), str(hash(blob))) if self.tells else Answer(data)


TELLS = pytest.mark.parametrize("tells", [False, True], ids=["bytes only", "size and version"])


def read(store: Store, keys: list[str], rows: slice = np.s_[:4], limits: Limits = FAR, **options: Any) -> Any:
    """Read rows of shards of letters, one shard below the other."""
    start, stop, _ = rows.indices(4)
    n = stop - start
    out = np.zeros((len(keys) * n, 4), "u1")
    items = [
        ObjectSelection(key, CHAIN, Box((start, 0), (n, 4), None, (i * n, 0))) for i, key in enumerate(keys)
    ]
    missing = asyncio.run(
        fetch(items, out, (0, 1), Options(threads=2, **options), store, limits, names=names_in(store, keys))
    )
    return out, missing


def names_in(store: Store, keys: list[str]) -> list[str]:
    """Return names of objects; each store has a number, so no test shares them with another."""
    return [f"{store.number}/{key}" for key in keys]


def shouting(blob: bytes) -> bytes:
    return blob.replace(b"zero", b"ZERO").replace(b"one.", b"ONE.")


# ---- whole shards


def chain_of(shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: str = "uint8") -> Any:
    return compiled(shardcodec.ShardSpec(shape, chunk_shape, dtype, 0, [LITTLE]).chain)


@pytest.mark.parametrize(
    ("shape", "chunk_shape", "n_wanted", "is_whole"),
    [
        ((1 << 20,), (1 << 10,), 1, True),  # the rest has fewer bytes than a round trip is worth
        ((1 << 21,), (1 << 10,), 1, False),
        ((1 << 21,), (1 << 10,), 1024, True),  # half of the shard; the other half is just worth a round trip
        ((1 << 24,), (1 << 20,), 12, False),
        ((1 << 24,), (1 << 20,), 13, True),  # four fifths
        ((1 << 26,), (1 << 20,), 64, True),
        ((1 << 27,), (1 << 20,), 128, False),  # the whole of a large shard: concurrent ranges
        ((1 << 27,), (1 << 27,), 1, False),
    ],
)
def test_shard_is_fetched_whole_if_the_rest_is_small(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...], n_wanted: int, is_whole: bool
) -> None:
    assert wants_whole(chain_of(shape, chunk_shape), n_wanted, Limits(1)) is is_whole


def test_chunk_without_shard_is_fetched_whole() -> None:
    chain = chain_of((1 << 27,), (1 << 20,)).inner
    assert wants_whole(chain, 1, Limits(1))


# ---- requests


@TELLS
def test_part_of_a_shard_takes_index_and_range(tells: bool) -> None:
    store = Store({"a": letters()}, tells=tells)
    out, missing = read(store, ["a"], np.s_[:2])
    assert out.tobytes() == text_as_rows("zero", "one.") and missing == []
    end = 8 if tells else 84  # proves that the object is as long as all entries require
    assert store.requests == [("a", "last 68"), ("a", (0, end))]


def text_as_rows(left: str, right: str) -> bytes:
    return (left[:2] + right[:2] + left[2:] + right[2:]).encode()


@TELLS
def test_index_at_the_start_takes_a_range_request(tells: bool) -> None:
    chain = compiled(letters_spec(at_start=True).chain)
    store = Store({"a": letters(at_start=True)}, tells=tells)
    out = np.zeros((2, 4), "u1")
    item = ObjectSelection("a", chain, Box((2, 0), (2, 4), None, (0, 0)))
    assert asyncio.run(fetch([item], out, (0, 1), Options(threads=1), store, FAR)) == []
    assert out.tobytes() == text_as_rows("two.", "tres")
    assert store.requests == [("a", (0, 68)), ("a", (76, 84))]


@TELLS
@pytest.mark.parametrize("is_back", [True, False], ids=["back", "erased"])
def test_object_that_is_missing_for_one_request_is_not_damaged(tells: bool, is_back: bool) -> None:
    """Erased after its index was read, and stored again with the same bytes by a write whose answer was lost: it was a `ShardFormatError`."""
    blob = letters()
    store = Store({"a": blob}, tells=tells)

    def erase_for_a_moment(request: Request) -> None:
        if isinstance(request[1], tuple) and len(store.requests) == 2:
            del store.objects["a"]
        elif is_back:
            store.objects["a"] = blob

    store.before = erase_for_a_moment
    out, missing = read(store, ["a"], np.s_[:2])
    expected = text_as_rows("zero", "one.") if is_back else b"." * 8
    assert out.tobytes() == expected and missing == ([] if is_back else [0])


def test_shards_are_read_concurrently_within_the_limit_of_requests() -> None:
    keys = [f"{i}" for i in range(20)]
    store = Store({key: letters() for key in keys if key not in ("3", "17")})
    out, missing = read(store, keys, np.s_[:2])
    assert missing == [3, 17]
    for i in range(20):
        expected = b"." * 8 if i in missing else text_as_rows("zero", "one.")
        assert out[2 * i : 2 * i + 2].tobytes() == expected
    assert store.n_most == FAR.n_requests
    assert len(store.requests) == 20 + 18
    kinds = [isinstance(wanted, tuple) for _, wanted in store.requests]
    assert True in kinds[:15] and False in kinds[-15:]  # indexes and ranges are mixed


def test_concurrent_calls_share_the_limit_of_their_store() -> None:
    """Eight reads at a time made eight times as many requests as one."""
    keys = [f"{i}" for i in range(4)]
    store = Store({key: letters() for key in keys})
    store.budget_name = f"store {store.number}"

    async def one() -> str:
        out = np.zeros((16, 4), "u1")
        items = [
            ObjectSelection(key, CHAIN, Box((0, 0), (4, 4), None, (4 * i, 0))) for i, key in enumerate(keys)
        ]
        await fetch(items, out, (0, 1), Options(threads=2), store, FAR)
        return " ".join(text_of(out[4 * i : 4 * i + 4]) for i in range(4))

    async def several() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(8)))

    assert asyncio.run(several()) == [" ".join([LETTERS] * 4)] * 8
    assert store.n_most == FAR.n_requests


def test_limit_of_one_request_is_kept() -> None:
    keys = [f"{i}" for i in range(6)]
    store = Store({key: letters() for key in keys})
    out, _ = read(store, keys, limits=Limits(n_requests=1, read_nbytes=1))
    assert all(text_of(out[4 * i : 4 * i + 4]) == LETTERS for i in range(6))
    assert store.n_most == 1


def test_whole_shard_counts_in_the_budget_as_the_larger_of_data_and_index() -> None:
    """Eight shards of 32 MiB fill the budget of 256 MiB; with their indexes added, the eighth had to wait.

    Here the index is larger than the data.
    """
    keys = [f"{i}" for i in range(8)]
    for n_together in (8, 7):
        store = Store({key: letters() for key in keys})
        out, _ = read(store, keys, limits=Limits(n_requests=8, read_nbytes=n_together * 68))
        assert all(text_of(out[4 * i : 4 * i + 4]) == LETTERS for i in range(8))
        assert store.n_most == n_together and len(store.requests) == 8


# ---- objects that change between index and ranges


@pytest.mark.parametrize(("tells", "moved"), [(True, False), (True, True), (False, True)])
def test_replaced_object_is_read_again(tells: bool, moved: bool) -> None:
    """With versions always; without versions if the bytes do not fit the old index."""
    new = shouting(letters())
    if moved:
        places = [(2**64 - 1, 2**64 - 1), (0, 4), (4, 4), (2**64 - 1, 2**64 - 1)]
        new = assemble(b"ONE.two.", places)
    store = Store({"a": letters()}, tells=tells)

    def exchange(request: Request) -> None:
        if isinstance(request[1], tuple):
            store.objects["a"] = new

    store.before = exchange
    out, missing = read(store, ["a"], np.s_[2:] if moved else np.s_[:2])
    assert missing == []
    assert out.tobytes() == (text_as_rows("two.", "....") if moved else text_as_rows("ZERO", "ONE."))
    assert [wanted for _, wanted in store.requests].count("last 68") == 2


def test_object_that_is_always_replaced_is_fetched_whole() -> None:
    store = Store({"a": letters()}, tells=True)
    n = 0

    def exchange(request: Request) -> None:
        nonlocal n
        if isinstance(request[1], tuple):
            n += 1  # one byte more in front
            store.objects["a"] = assemble(b"x" * n + b"".join(WORDS), [(n + 4 * i, 4) for i in range(4)])

    store.before = exchange
    out, _ = read(store, ["a"], np.s_[:2])
    assert out.tobytes() == text_as_rows("zero", "one.")
    assert store.requests[-1] == ("a", "all")
    assert len(store.requests) == 3 * 2 + 1


@TELLS
def test_object_deleted_during_the_read_is_missing(tells: bool) -> None:
    store = Store({"a": letters()}, tells=tells)
    store.before = lambda request: store.objects.clear() if isinstance(request[1], tuple) else None
    out, missing = read(store, ["a"], np.s_[:2])
    assert missing == [0] and out.tobytes() == b"." * 8


@TELLS
def test_damage_is_reported_if_the_index_is_unchanged(tells: bool) -> None:
    store = Store({"a": letters()[3:]}, tells=tells)
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        read(store, ["a"], np.s_[2:])
    assert raised.value.shard == "a" and raised.value.chunk_coords == (1, 1)
    assert [wanted for _, wanted in store.requests].count("last 68") == (1 if tells else 2)


@TELLS
def test_lost_head_is_detected_by_a_read_of_another_inner_chunk(tells: bool) -> None:
    """Only the entry of the last inner chunk is wrong, and the first two are read; once that returned wrong bytes."""
    store = Store({"a": letters()[3:]}, tells=tells)
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        read(store, ["a"], np.s_[:2])
    assert raised.value.shard == "a" and raised.value.chunk_coords == (1, 1)
    assert read(store, ["a"], np.s_[:2], allow_in_index=True)[0].tobytes() == text_as_rows("oone", ".two")


def test_object_shorter_than_its_index_raises() -> None:
    for n in (0, 5, 67):
        store = Store({"a": letters()[-n:] if n else b""}, tells=True)
        with pytest.raises(shardcodec.ShardFormatError) as raised:
            read(store, ["a"], np.s_[:2])
        assert (raised.value.nbytes, raised.value.limit) == (n, 68)


# ---- cached indexes


def test_index_is_cached_with_its_version() -> None:
    store = Store({"a": letters()}, tells=True)
    for _ in range(2):
        out, _ = read(store, ["a"], np.s_[:2])
        assert out.tobytes() == text_as_rows("zero", "one.")
    assert store.requests == [("a", "last 68"), ("a", (0, 8)), ("a", (0, 8))]


@pytest.mark.parametrize("rows", [np.s_[:2], np.s_[2:]])
def test_cached_index_of_a_replaced_object_is_refreshed(rows: slice) -> None:
    store = Store({"a": letters()}, tells=True)
    read(store, ["a"], rows)
    store.objects["a"] = assemble(b"ONE.two.", [(2**64 - 1, 2**64 - 1), (0, 4), (4, 4), (2**64 - 1,) * 2])
    out, _ = read(store, ["a"], rows)
    assert out.tobytes() == (text_as_rows("....", "ONE.") if rows.stop == 2 else text_as_rows("two.", "...."))
    del store.objects["a"]
    assert read(store, ["a"], rows)[1] == [0]


def test_cached_index_is_confirmed_if_no_range_is_requested() -> None:
    """No request for a range would show that the object was replaced."""
    absent = (2**64 - 1, 2**64 - 1)
    store = Store({"a": assemble(b"twotres.", [absent, absent, (0, 4), (4, 4)])}, tells=True)
    for _ in range(2):
        assert read(store, ["a"], np.s_[:2])[0].tobytes() == b"." * 8
    store.objects["a"] = letters()
    assert read(store, ["a"], np.s_[:2])[0].tobytes() == text_as_rows("zero", "one.")


def test_index_without_version_is_cached_only_if_immutable() -> None:
    store = Store({"a": letters()})
    for _ in range(2):
        read(store, ["a"], np.s_[:2])
    assert [wanted for _, wanted in store.requests] == ["last 68", (0, 84)] * 2
    store.requests.clear()
    for _ in range(3):
        read(store, ["a"], np.s_[:2], immutable=True)
    assert [wanted for _, wanted in store.requests] == ["last 68", (0, 84), (0, 76), (0, 76)]
    store.requests.clear()
    indexes.forget(names_in(store, ["a"]))  # as every writer does
    read(store, ["a"], np.s_[:2], immutable=True)
    assert [wanted for _, wanted in store.requests] == ["last 68", (0, 84)]
    read(store, ["a"], np.s_[:2], immutable=True, index_cache=0)
    assert len(store.requests) == 4


def test_wrong_option_immutable_is_detected_by_bytes_that_do_not_fit() -> None:
    store = Store({"a": letters()})
    read(store, ["a"], np.s_[:2], immutable=True)
    store.objects["a"] = assemble(b"ONE.two.", [(2**64 - 1, 2**64 - 1), (0, 4), (4, 4), (2**64 - 1,) * 2])
    assert read(store, ["a"], np.s_[2:], immutable=True)[0].tobytes() == text_as_rows("two.", "....")


def test_index_of_a_whole_shard_is_cached() -> None:
    store = Store({"a": letters()}, tells=True)
    near = Limits(n_requests=4)
    for _ in range(2):
        out, _ = read(store, ["a"], np.s_[:2], near)
        assert out.tobytes() == text_as_rows("zero", "one.")
    assert store.requests == [("a", "all"), ("a", (0, 8))]
    read(store, ["a"], np.s_[:4], near)
    assert store.requests[-1] == ("a", "all")


def test_requests_and_bytes_are_counted() -> None:
    store = Store({"a": letters()}, tells=True)
    before = shardcodec.stats()
    for _ in range(2):
        read(store, ["a"], np.s_[:2])
    done = {name: n - before[name] for name, n in shardcodec.stats().items() if isinstance(n, int)}
    assert (done["requests"], done["bytes_fetched"], done["bytes_used"]) == (3, 68 + 8 + 8, 16)
    assert (done["index_hits"], done["index_misses"], done["chunks_decoded"]) == (1, 1, 4)


# ---- failures


class Lost(Exception):
    """An error of the store."""


@pytest.mark.parametrize("at", ["all", "last 68", (0, 84)])
def test_error_of_the_store_is_raised_after_all_requests_have_ended(at: Any) -> None:
    keys = [f"{i}" for i in range(20)]
    store = Store({key: letters() for key in keys})

    def fail(request: Request) -> None:
        if request == ("5", at):
            raise Lost(request)

    store.before = fail
    with pytest.raises(Lost):
        read(store, keys, np.s_[:4] if at == "all" else np.s_[:2])
    assert store.n_now == 0
    assert len(store.requests) < 38
