# tool_sources.py - the tools that write a new hierarchy, and what the tests of all tools do to objects and documents
# SPDX-License-Identifier: MIT
"""Shared by the tests of the tools. `COPIES` has each tool that writes a new hierarchy, so that one test is for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from helpers import checked
from spec_json import Json, hierarchy_2022
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from shardcodec import ShardSpec
from shardcodec.tools import compact, convert, repair

__all__ = [
    "CONTENT", "COPIES", "add_unknown_codec", "by_compact", "by_convert", "by_repair", "change", "copies", "edit", "filled", "flip", "flipped", "get", "objects_of",
    "put", "write_2022", "write_array",
]  # fmt: skip

CONTENT = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)


def by_convert(old: Any, new: Any, **how: Any) -> Any:
    return convert(old, new, **how)


def by_repair(old: Any, new: Any, **how: Any) -> Any:
    return repair(old, to=new, **how)


def by_compact(old: Any, new: Any, **how: Any) -> Any:
    return compact(old, to=new, **how)


COPIES: dict[str, Callable[..., Any]] = {"convert": by_convert, "repair": by_repair, "compact": by_compact}


def copies(old: Any, folder: Path, **how: Any) -> Iterator[tuple[Path, Any]]:
    """Copy a hierarchy with each tool; yield the new place and the report of a complete copy."""
    for name, copy in COPIES.items():
        report = copy(old, folder / name, **how)
        assert report.is_complete, name
        yield folder / name, report


def filled(store: Any, **how: Any) -> Any:
    """Create an array as `checked` does, with elements."""
    array = checked(store, **how)
    array[...] = CONTENT
    return array


# ---- objects of a store of zarr


def get(store: Any, key: str) -> bytes:
    found = sync(store.get(key, default_buffer_prototype()))
    assert found is not None
    return bytes(found.to_bytes())


def put(store: Any, key: str, data: bytes) -> None:
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


def change(store: Any, key: str, make: Callable[[bytes], bytes]) -> None:
    """Replace an object by what a function makes of its bytes."""
    put(store, key, make(get(store, key)))


def flipped(at: int) -> Callable[[bytes], bytes]:
    """Return a function that changes one bit of some bytes."""
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


def flip(store: Any, key: str, at: int = 5) -> None:
    """Change one bit of an object."""
    change(store, key, flipped(at))


def objects_of(store: Any) -> dict[str, bytes]:
    """Return all objects of a store."""

    async def collected() -> dict[str, bytes]:
        keys = [key async for key in store.list()]
        return {key: (await store.get(key, default_buffer_prototype())).to_bytes() for key in keys}

    return sync(collected())


# ---- documents


def edit(document: Path, **members: Any) -> None:
    """Change members of a JSON document."""
    document.write_text(json.dumps(json.loads(document.read_text()) | members))


def add_unknown_codec(array: Path) -> None:
    """Add a codec that no program has to those of the inner chunks."""
    document = json.loads((array / "zarr.json").read_text())
    document["codecs"][0]["configuration"]["codecs"].append({"name": "no.such", "configuration": {}})
    (array / "zarr.json").write_text(json.dumps(document))


def write_array(folder: Path, spec: ShardSpec, shape: tuple[int, ...], **how: Any) -> None:
    """Write the metadata of an array whose shards have an encoding."""
    folder.mkdir(parents=True)
    (folder / "zarr.json").write_text(json.dumps(spec.to_metadata(shape, **how)))


def write_2022(folder: Path, arrays: Mapping[str, Json], groups: Mapping[str, Json] | None = None) -> None:
    """Write the documents of a hierarchy of the 2022 format: those of its arrays, and attributes of groups, by default of the root."""
    documents = {f"{path}.array.json": document for path, document in arrays.items()}
    given = {"": {}} if groups is None else groups
    documents |= {f"{path}.group.json": {"attributes": attributes} for path, attributes in given.items()}
    for name, document in documents.items():
        path = folder / "meta" / (f"root/{name}" if not name.startswith(".") else f"root{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
        (folder / "data" / path.parent.relative_to(folder / "meta")).mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(hierarchy_2022()))
