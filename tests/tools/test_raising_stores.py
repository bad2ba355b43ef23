# test_raising_stores.py - stores of a user's own whose errors have no class of their own
# SPDX-License-Identifier: MIT
"""A bare RuntimeError for one object, or for the listing of one folder, is a finding and ends no tool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

from shardcodec.tools import compact, convert, inspect, repair, verify


class RaisingStore(WrapperStore[MemoryStore]):
    """A store of a user's own, which raises a bare RuntimeError for one object, or for the listing of one folder."""

    get_of: str | None = None
    list_of: str | None = None

    async def get(self, key: str, *args: Any, **keywords: Any) -> Any:
        if key == self.get_of:
            raise RuntimeError(f"no connection: {key}")
        return await super().get(key, *args, **keywords)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        if prefix.strip("/") == self.list_of:
            raise RuntimeError("no connection")
        async for name in super().list_dir(prefix):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        if prefix.strip("/") == self.list_of:
            raise RuntimeError("no connection")
        async for key in super().list_prefix(prefix):
            yield key


@pytest.mark.parametrize(
    "raises",
    [
        {"get_of": "a/c/1"},
        {"get_of": "a/zarr.json"},
        {"get_of": "inner/zarr.json"},
        {"get_of": "zarr.json"},
        {"list_of": "inner"},
    ],
    ids=str,
)
def test_runtime_error_of_a_store_ends_no_tool(raises: dict[str, str], tmp_path: Path) -> None:
    """Each tool ended at the first of them; errors of stores with classes of their own were findings."""
    store, whole = MemoryStore(), MemoryStore()
    for base in (store, whole):
        group = zarr.create_group(base)
        for name in ("a", "inner/b"):
            group.create_array(name, shape=(32,), chunks=(2,), shards=(8,), dtype="int32")[...] = 1
    raising = RaisingStore(store)
    vars(raising).update(raises)
    report = verify(raising)
    assert "unreadable" in report.kinds and "RuntimeError: no connection" in str(report.to_json())
    verify(whole, against=raising)
    inspect(raising)
    for done in (
        compact(raising, to=tmp_path / "packed"),
        repair(raising, to=tmp_path / "repaired"),
        convert(raising, tmp_path / "converted"),
    ):
        assert "no connection" in str(done.to_json())
    assert repair(whole, to=tmp_path / "whole", copy=raising).is_complete
