# test_many_codecs.py - documents of arrays with very many codecs
# SPDX-License-Identifier: MIT
"""The work on a document grows with the number of its codecs, not with its square.

Each codec was compared with all filters before it: a document of 100,000 codecs kept a tool busy for minutes. Calls are counted,
because times depend on the machine.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardcodec
from shardcodec import ChainSpec, ShardError
from shardcodec.compat import refusal_of
from shardcodec.format.checks import check_keys

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [0]}}


def v3(codecs: list[Any]) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "int32",
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs,
        "attributes": {},
    }


def v2(filters: list[Any]) -> dict[str, Any]:
    members = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i4", "fill_value": 0, "order": "C"}
    return {**members, "filters": filters, "compressor": None}


def shard(codecs: list[Any], index: list[Any] | None = None) -> list[Any]:
    configuration = {"chunk_shape": [1], "codecs": codecs, "index_codecs": index or [LITTLE]}
    return [{"name": "sharding_indexed", "configuration": configuration}]


def nested(levels: int) -> list[Any]:
    return functools.reduce(lambda codecs, _: shard(codecs), range(levels), [LITTLE])


DOCUMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "compressors": lambda n: v3([LITTLE] + [CRC] * n),
    "filters": lambda n: v3([DELTA] * n + [LITTLE]),
    "transposes": lambda n: v3([TRANSPOSE] * n + [LITTLE]),
    "in shards": lambda n: v3(shard([DELTA] * n + [LITTLE] + [CRC] * n)),
    "of the index": lambda n: v3(shard([LITTLE], [LITTLE] + [CRC] * n)),
    "after shards": lambda n: v3(shard([LITTLE]) + [CRC] * n),
    "nested shards": lambda n: v3(nested(n // 10)),
    "Zarr v2": lambda n: v2([{"id": "delta", "dtype": "<i4"}] * n),
}


def n_calls(work: Callable[[], Any]) -> int:
    """Return how many functions a call calls, also those of C."""
    n = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    except ShardError:
        pass  # the engine has a limit, which is told at the end
    finally:
        sys.setprofile(None)
    return n


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("way", ["parse", "open"])
def test_work_grows_with_the_number_of_codecs(name: str, way: str, tmp_path: Path) -> None:
    def calls(n: int) -> int:
        document = DOCUMENTS[name](n)
        if way == "parse":
            return n_calls(lambda: ChainSpec.from_metadata(document))
        path = tmp_path / str(n)
        path.mkdir()
        (path / ("zarr.json" if document["zarr_format"] == 3 else ".zarray")).write_text(json.dumps(document))
        return n_calls(lambda: shardcodec.open_array(path))

    calls(100)  # imports
    few, more, most = (calls(n) for n in (200, 400, 800))
    assert most - more < 2.2 * (more - few) + 100


@pytest.mark.parametrize("name", ["compressors", "filters", "in shards", "of the index", "after shards"])
def test_zarr_is_not_asked_about_very_many_codecs(name: str) -> None:
    """Its parser copies all codecs before each one: the advice in an error of 100,000 codecs took half a minute."""
    document = {**DOCUMENTS[name](10), "data_type": "unknown"}
    assert refusal_of(document) is not None
    many = {**DOCUMENTS[name](10_000), "data_type": "unknown"}
    assert refusal_of(many) is None
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": many}}}
    assert refusal_of(group, is_group=True) is None


def test_many_unknown_members_are_compared_with_the_known_ones_alone() -> None:
    """Each one was looked up in a list of all: 40,000 of them took half a minute."""
    members = [f"x{n}" for n in range(60_000)]
    begun = time.perf_counter()
    check_keys(dict.fromkeys(members), "", optional=members)
    assert time.perf_counter() - begun < 5
