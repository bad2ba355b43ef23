"""Rows of a shard as a key-value store, compared with TensorStore's driver; and the state of a thousand shards."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import data
import floor
import numpy as np
from peers import Peer
from suite import Context, Row

GROUP = "kv"
CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
CACHE_NBYTES = 1 << 28
VALUE_NBYTES = 1024


def key(*indices: int) -> bytes:
    return struct.pack(f">{len(indices)}I", *indices)


class Store(Protocol):
    """A shard as a key-value store of one implementation."""

    def get(self, k: bytes) -> bytes: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes]: ...

    def put_many(self, values: dict[bytes, bytes]) -> None: ...

    def keys(self) -> Sequence[bytes]: ...


class Ours:
    def __init__(self, path: Path, edge: int) -> None:
        from shardcodec.kv import ShardedKeyValueStore

        self.store = ShardedKeyValueStore(
            path, grid_shape=(edge, edge), index_codecs=CODECS, cache_pool=CACHE_NBYTES
        )
        self.get, self.keys = self.store.__getitem__, self.store.list

    def get_many(self, keys: Sequence[bytes]) -> list[bytes]:
        return [found.value for found in self.store.read_many(keys)]

    def put_many(self, values: dict[bytes, bytes]) -> None:
        with self.store.transaction() as t:
            for k, value in values.items():
                t[k] = value


class Theirs:
    def __init__(self, path: Path, edge: int) -> None:
        self.store = open_theirs(path, (edge, edge))
        self.get = self.store.__getitem__

    def get_many(self, keys: Sequence[bytes]) -> list[bytes]:
        import tensorstore

        with tensorstore.Batch() as batch:
            found = [self.store.read(k, batch=batch) for k in keys]
        return [f.result().value for f in found]

    def put_many(self, values: dict[bytes, bytes]) -> None:
        import tensorstore

        with tensorstore.Transaction() as t:
            store = self.store.with_transaction(t)
            for k, value in values.items():
                store[k] = value

    def keys(self) -> list[bytes]:
        return self.store.list().result()  # type: ignore[no-any-return]


class Bare:
    """No shard: measures only what Python needs for a list of all keys."""

    def __init__(self, edge: int) -> None:
        self.keys: Any = lambda: floor.keys(edge)

    def get(self, k: bytes) -> bytes:
        return k

    def get_many(self, keys: Sequence[bytes]) -> list[bytes]:
        raise NotImplementedError

    put_many = get_many


def open_theirs(path: Path, grid_shape: Sequence[int]) -> Any:
    import tensorstore

    spec = {
        "driver": "zarr3_sharding_indexed",
        "base": {"driver": "file", "path": str(path)},
        "grid_shape": list(grid_shape),
        "index_codecs": CODECS,
        "context": {"cache_pool": {"total_bytes_limit": CACHE_NBYTES}, "file_io_sync": False},
    }
    return tensorstore.KvStore.open(spec).result()


def shard_of(n: int, value_nbytes: int) -> bytes:
    """Make a shard of n values, one after the other; each begins with its number."""
    from shardcodec import native

    values = np.zeros((n, value_nbytes), dtype=np.uint8)
    values.view(np.uint8)[:, : min(8, value_nbytes)] = (
        np.arange(n, dtype=np.uint64).view(np.uint8).reshape(n, 8)[:, : min(8, value_nbytes)]
    )
    entries = np.empty((n, 2), dtype=np.uint64)
    entries[:, 0], entries[:, 1] = np.arange(n) * value_nbytes, value_nbytes
    index = entries.tobytes()
    return values.tobytes() + index + struct.pack("<I", native.load().crc32c(index))


@dataclass(frozen=True, eq=False)
class KeyValue(Row):
    """Operations on one shard of edge x edge values. Each implementation has its own file and handle."""

    edge: int = 100
    value_nbytes: int = VALUE_NBYTES
    n: int = 0
    work: Callable[[Store, Sequence[bytes]], Any] = lambda _store, _keys: None
    strategy: str = "replace"

    def takes(self, peer: Peer) -> bool:
        return peer.name in ("shardcodec", "tensorstore") or (peer.name == "floor" and self.work is list_all)

    @property
    def chosen(self) -> list[bytes]:
        """Return keys in random order, the same for all peers."""
        every = [key(i, j) for i in range(self.edge) for j in range(self.edge)]
        return random.Random(3).sample(every, self.n or len(every))

    def _store(self, context: Context, peer: Peer) -> Store:
        slug = f"kv-{self.name}-{peer.name}".replace(" ", "-").replace(",", "")
        if slug not in context.sources:
            folder = context.folder / slug
            folder.mkdir()
            (folder / "shard").write_bytes(shard_of(self.edge**2, self.value_nbytes))
            context.sources[slug] = folder
            data.wait_until_old(folder, context.age)
        path = context.sources[slug] / "shard"
        if peer.name == "floor":
            return Bare(self.edge)
        return Ours(path, self.edge) if peer.name == "shardcodec" else Theirs(path, self.edge)

    def _option(self) -> AbstractContextManager[Any]:
        import shardcodec

        return shardcodec.options(write_strategy=self.strategy)

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        store = self._store(context, peer)
        with self._option():
            found = self.work(store, self.chosen)
        if isinstance(found, list):
            numbers = {
                k: i for i, k in enumerate(key(i, j) for i in range(self.edge) for j in range(self.edge))
            }
            if self.value_nbytes >= 8 and len(found[0]) == self.value_nbytes:
                assert [struct.unpack_from("<Q", v)[0] for v in found] == [numbers[k] for k in self.chosen]
            else:
                assert sorted(found) == list(numbers)
        else:
            for k in self.chosen:
                assert store.get(k) == k * (self.value_nbytes // len(k))
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        store = self._store(context, peer)
        for k in (key(0, 0), key(0, 1), key(0, 2)):
            store.get(k)  # its index is known
        return store, self.chosen

    def operate(self, peer: Peer, prepared: Any) -> Any:
        with self._option():
            return self.work(*prepared)

    @property
    def nbytes(self) -> int:
        return (self.n or self.edge**2) * self.value_nbytes


def read_one_by_one(store: Store, keys: Sequence[bytes]) -> list[bytes]:
    get = store.get
    return [get(k) for k in keys]


def read_batch(store: Store, keys: Sequence[bytes]) -> list[bytes]:
    return store.get_many(keys)


def write(store: Store, keys: Sequence[bytes]) -> None:
    store.put_many({k: k * (VALUE_NBYTES // len(k)) for k in keys})


def list_all(store: Store, keys: Sequence[bytes]) -> Sequence[bytes]:
    return store.keys()


@dataclass(frozen=True, eq=False)
class States(Row):
    """Finds the existing inner chunks of 1,000 shards with 4,096 each; TensorStore lists the keys of every shard."""

    n_shards: tuple[int, int, int] = (10, 10, 10)

    def takes(self, peer: Peer) -> bool:
        return peer.name in ("shardcodec", "tensorstore")

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        import zarr

        if "kv-states" not in context.sources:
            folder = context.folder / "kv-states"
            zarr.create_array(
                folder,
                shape=tuple(16 * n for n in self.n_shards),
                shards=(16, 16, 16),
                chunks=(1, 1, 1),
                dtype="uint8",
                compressors=None,
            )
            blob = shard_of(4096, 1)
            for at in np.ndindex(*self.n_shards):
                path = folder / "c" / "/".join(map(str, at))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(blob)
            context.sources["kv-states"] = folder
        folder = context.sources["kv-states"]
        if peer.name == "shardcodec":
            return folder
        return [
            open_theirs(folder / "c" / "/".join(map(str, at)), (16, 16, 16))
            for at in np.ndindex(*self.n_shards)
        ]

    def operate(self, peer: Peer, prepared: Any) -> Any:
        if peer.name == "shardcodec":
            import shardcodec

            return int(shardcodec.chunk_state(prepared).exists.sum())
        futures = [store.list() for store in prepared]
        return sum(len(f.result()) for f in futures)

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        n = self.operate(peer, self.prepare(context, peer, 0))
        assert n == 4096 * int(np.prod(self.n_shards)), n
        return {}

    @property
    def nbytes(self) -> int:
        return 16 * 4096 * int(np.prod(self.n_shards))


def rows(sizes: Any) -> list[Row]:
    """Return the rows: 10,000 values of 1 KiB, 1,000 writes in a transaction, a million keys, a thousand shards.

    The floor of the list is the time that Python needs for a million bytes objects (floor_keys.c).
    """
    case = data.big(sizes.edge)
    edge = round(sizes.n_items**0.5)
    found: list[Row] = [
        KeyValue(GROUP, "10,000 reads of 1 KiB", case, work=read_one_by_one),
        KeyValue(GROUP, "10,000 reads of 1 KiB in a batch", case, work=read_batch),
        KeyValue(GROUP, "1,000 reads of 1 KiB in a batch", case, n=1000, work=read_batch),
        KeyValue(GROUP, "transaction of 1,000 writes", case, n=1000, work=write),
        KeyValue(GROUP, "transaction of 1,000 writes, append", case, n=1000, work=write, strategy="append"),
        KeyValue(GROUP, f"list of {edge**2:,} keys", case, edge=edge, value_nbytes=1, work=list_all),
    ]
    n_shards = (10, 10, 10) if sizes.edge >= 512 else (4, 4, 4)
    found.append(States(GROUP, f"chunk state of {np.prod(n_shards):,} shards", case, n_shards))
    return found
