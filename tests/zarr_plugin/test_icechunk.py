# test_icechunk.py - several sessions of icechunk, as docs/how-to/icechunk.md describes them
# SPDX-License-Identifier: MIT
"""Locks do not join sessions: each is a copy of its own. icechunk refuses conflicting commits, but not conflicting forks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec

icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")


@pytest.fixture
def repository(tmp_path: Path) -> Any:
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="int32")
    session.commit("an empty array")
    return made


def write(store: Any, rows: slice, value: int) -> None:
    with shardcodec.enable():
        zarr.open_array(store, path="a")[rows] = value


def stored(repository: Any) -> list[int]:
    store = repository.readonly_session("main").store
    column: np.ndarray[Any, Any] = zarr.open_array(store, path="a", mode="r")[:, 0]  # type: ignore[assignment]
    return column.tolist()  # type: ignore[no-any-return]


def test_second_commit_of_a_changed_shard_is_refused(repository: Any) -> None:
    one, two = repository.writable_session("main"), repository.writable_session("main")
    write(one.store, slice(0, 4), 1)
    write(two.store, slice(4, 8), 2)
    one.commit("upper half")
    with pytest.raises(icechunk.ConflictError):
        two.commit("lower half")
    assert stored(repository) == [1] * 4 + [0] * 4


def test_merged_forks_of_one_shard_keep_one_of_them(repository: Any) -> None:
    """If this fails, icechunk has become safer: update docs/how-to/icechunk.md."""
    session = repository.writable_session("main")
    one, two = session.fork(), session.fork()
    write(one.store, slice(0, 4), 1)
    write(two.store, slice(4, 8), 2)
    session.merge(one, two)
    session.commit("both halves")
    assert stored(repository) in ([1] * 4 + [0] * 4, [0] * 4 + [2] * 4)


def test_forks_with_shards_of_their_own_lose_nothing(repository: Any) -> None:
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="b", shape=(16, 8), shards=(8, 8), chunks=(4, 4), dtype="int32")
    session.commit("two shards")
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for number, fork in enumerate(forks):
        with shardcodec.enable():
            zarr.open_array(fork.store, path="b")[8 * number : 8 * number + 8] = number + 1
    session.merge(*forks)
    session.commit("both")
    store = repository.readonly_session("main").store
    assert (zarr.open_array(store, path="b", mode="r")[...] == np.repeat([1, 2], 8)[:, None]).all()
