# test_mutated_documents.py - no document, however wrong, ends a tool with an error of Python
# SPDX-License-Identifier: MIT
"""Documents of v2 that were exchanged ended `verify` with StopIteration, a scalar with a malformed ``zarr.json`` with TypeError.

The documents of a sound hierarchy are mutated: members are removed, get another type or come twice, texts are cut, documents
are exchanged; texts and structs have their own parsers. Each tool ends with a report, or with an error of shardcodec that names the place.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import ShardError
from shardcodec.tools import compact, convert, inspect, repair, verify

KINDS = "v2", "v3", "v2 consolidated", "v3 consolidated"
DOCUMENTS = "zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"
# Values of another type or range, in place of a member.
VALUES: list[Any] = [
    None,
    "3",
    [2**70],
    [-1],
    True,
    0,
    -1,
    3,
    2**70,
    1.5,
    "",
    "x",
    "NaN",
    [],
    [0],
    ["x", None],
    {},
    {"name": "x"},
    [[1, 2], [3]],
]


@cache
def sound(kind: str) -> dict[str, bytes]:
    """Return the files of a hierarchy."""
    zarr_format: Any = int(kind[1])
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder, "old")
        group = zarr.create_group(
            path, zarr_format=zarr_format, attributes={"units": "m", "n": [1, {"a": None}]}
        )
        sharded: dict[str, Any] = {"shards": (8, 4)} if zarr_format == 3 else {}
        group.create_array("a", shape=(10, 6), chunks=(4, 2), dtype="int32", **sharded)[...] = 1
        group.create_array("inner/plain", shape=(6,), chunks=(4,), dtype="float64", fill_value=float("nan"))[
            ...
        ] = 1
        group.create_array("inner/scalar", shape=(), chunks=(), dtype="uint8")[...] = 1
        group.create_array("text", shape=(4,), chunks=(2,), dtype="U5")[...] = np.array(list("abcd"))
        words = np.array(list("abcd"), dtype=object)
        group.create_array("inner/words", shape=(4,), chunks=(2,), dtype=str)[...] = words
        group.create_array("struct", shape=(4,), chunks=(2,), dtype=[("a", "<i4"), ("b", "<f8")])[...] = 1
        if "consolidated" in kind:
            zarr.consolidate_metadata(path)
        return {
            str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()
        }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all members of a document."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [place for key, one in members for place in ((*path, key), *places(one, (*path, key)))]


def mutated(draw: Any, stored: bytes) -> bytes:
    """Return another text of a document."""
    how = draw(st.sampled_from(("remove", "retype", "retype", "add", "twice", "cut", "whole")))
    document = json.loads(stored)
    if how == "cut":
        return stored[: draw(st.integers(0, len(stored) - 1))]
    if how == "whole":
        return json.dumps(draw(st.sampled_from(VALUES))).encode()
    where = places(document)
    if not where:
        return b"{}"
    *above, last = draw(st.sampled_from(where))
    holder = document
    for key in above:
        holder = holder[key]
    if how == "remove":
        del holder[last]
    elif how == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(("must_understand", "storage_transformers", "x")))] = draw(
            st.sampled_from(VALUES)
        )
    elif how == "twice" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))
    else:
        holder[last] = draw(st.sampled_from(VALUES))
    text = json.dumps(document)
    if how == "twice" and isinstance(document, dict) and len(text) > 2:
        name = draw(st.sampled_from(sorted(document)))
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(draw(st.sampled_from(VALUES)))}}}"
    return text.encode()


@st.composite
def hierarchies(draw: Any) -> dict[str, bytes]:
    """Draw the files of a hierarchy with wrong documents."""
    files = dict(sound(draw(st.sampled_from(KINDS))))
    documents = [name for name in files if name.rpartition("/")[2] in DOCUMENTS]
    for _ in range(draw(st.integers(1, 2))):
        one = draw(st.sampled_from(documents))
        if draw(st.integers(0, 3)):
            try:
                files[one] = mutated(draw, files[one])
            except ValueError:  # cut before
                files[one] = b"null"
        else:
            other = draw(st.sampled_from(documents))
            files[one], files[other] = files[other], files[one]
    return files


def error_of(work: Callable[[], object]) -> str | None:
    """Return the message of an error of shardcodec, or about an object with the name of a chunk; any other error passes."""
    try:
        work()
    except ShardError as error:
        return str(error)
    except ValueError as error:
        if "with the name of a chunk of the new array" not in str(error):
            raise
        return str(error)
    return None


@pytest.mark.slow
@given(files=hierarchies())
def test_wrong_documents_end_no_tool_with_an_error_of_python(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder, "old")
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        for work in (
            lambda: inspect(path),
            lambda: verify(path, level="decode"),
            lambda: repair(path, to=f"{folder}/repaired"),
            lambda: compact(path, to=f"{folder}/packed"),
            lambda: convert(path, f"{folder}/converted"),
        ):
            text = error_of(work)
            assert text is None or str(path) in text, text
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("v2", {"a/.zarray": "inner/.zgroup", "inner/.zgroup": "a/.zarray"}),
        ("v2", {"inner/plain/.zarray": "a/.zattrs"}),
        ("v3", {"inner/scalar/zarr.json": {"shape": [], "codecs": 3}}),
        ("v2", {"inner/words/.zarray": {"chunks": 2**70}}),
        ("v3", {"inner/words/zarr.json": {"codecs": 1.5}}),
        ("v3", {"inner/zarr.json": {"zarr_format": "3"}}),
        ("v3", {"zarr.json": {"zarr_format": ""}}),
        ("v3", {"inner/zarr.json": {"zarr_format": 3.0}}),
    ],
    ids=["exchanged", "attributes", "scalar", "chunks", "codecs", "format", "root", "float"],
)
def test_tools_name_a_wrong_document(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    old = tmp_path / "old"
    for name, data in sound(kind).items():
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_bytes(data)
    for name, new in changed.items():
        stored = sound(kind)
        text = stored[new] if isinstance(new, str) else json.dumps(json.loads(stored[name]) | new).encode()
        (old / name).write_bytes(text)
    report = verify(old)
    named = {one.shard for one in report.shards if one.n_findings}
    folders = {Path(name).parent.as_posix().removeprefix(".") for name in changed}
    assert any(str(old / folder) in shard for shard in named for folder in folders), report.shards
    for copied in (convert(old, tmp_path / "a"), repair(old, to=tmp_path / "b")):
        assert copied.is_complete and folders & {one.name for one in copied.left_arrays if one.is_unreadable}
