# test_open_errors.py - errors of open_array and create_array name the array and say what to do
# SPDX-License-Identifier: MIT
"""None of the errors of `open_array` named the array; the commonest was that of an xarray data set, whose path is that of a group.

Later: with 200 arrays open, "axis 0: expected -16 <= index < 16, got 99" did not say which of them, nor did the other errors of
selections, values, destinations and frames, nor a wrong `mode=`; a damaged shard that zarr read through the pipeline was "shard 'c/0/0'".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet, run_checked

import shardcodec
from shardcodec import ShardError, SpecError, UnsupportedError, tools

DAMAGES: dict[str, Any] = {
    "no JSON": "{",
    "a list": "[]",
    "no shape": {"shape": None},
    "another format": {"zarr_format": 4},
    "an unknown data type": {"data_type": "float33"},
    "an unknown codec": {"codecs": [{"name": "nothing"}]},
    "a negative shape": {"shape": [-1]},
    "an unknown grid": {"chunk_grid": {"name": "hexagons"}},
    "a bad fill value": {"fill_value": "much"},
    "no node type": {"node_type": "leaf"},
}


def hierarchy(root: Any, zarr_format: Any = 3, n: int = 2) -> Any:
    group = zarr.open_group(root, mode="w", zarr_format=zarr_format)
    for number in range(n):
        group.create_array(f"heat{number}", shape=(16,), chunks=(4,), dtype="f4")[:] = np.arange(16)
    return group


@pytest.mark.parametrize("damage", DAMAGES)
def test_error_names_the_array(tmp_path: Path, damage: str) -> None:
    hierarchy(tmp_path / "needle.zarr")
    document = tmp_path / "needle.zarr/heat0/zarr.json"
    change = DAMAGES[damage]
    text = change if isinstance(change, str) else json.dumps(json.loads(document.read_text()) | change)
    document.write_text(text)
    with pytest.raises(ShardError) as caught:
        shardcodec.open_array(tmp_path / "needle.zarr/heat0")
    assert caught.value.array == str(tmp_path / "needle.zarr/heat0")
    assert str(caught.value).startswith(f"array {caught.value.array!r}: ")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("kind", ["path", "memory"])
def test_group_is_called_a_group_and_its_arrays_are_named(
    tmp_path: Path, zarr_format: int, consolidated: bool, kind: str
) -> None:
    root: Any = tmp_path / "set.zarr" if kind == "path" else zarr.storage.MemoryStore()
    hierarchy(root, zarr_format, n=8)
    if consolidated:
        zarr.consolidate_metadata(root)
    with pytest.raises((SpecError, FileNotFoundError), match=r"group.*'heat0'.*3 more.*path='heat0'"):
        shardcodec.open_array(root)
    assert shardcodec.open_array(root, "heat0").shape == (16,)


def test_arrays_of_inner_groups_are_named(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "a").create_group("inner").create_array("heat", shape=(1,), dtype="i4")
    with pytest.raises(SpecError, match="path='inner/heat'"):
        shardcodec.open_array(tmp_path / "a")
    zarr.open_group(tmp_path / "empty")
    with pytest.raises(SpecError, match="`path=`"):
        shardcodec.open_array(tmp_path / "empty")


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w"])
def test_mode_in_the_place_of_the_path_is_pointed_out(tmp_path: Path, mode: str) -> None:
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="i4")
    with pytest.raises(FileNotFoundError) as caught:
        shardcodec.open_array(tmp_path / "a", mode)
    assert f"mode={mode!r}" in str(caught.value)


def test_zarr_is_not_recommended_where_it_refuses_too(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="i4")
    document = json.loads((tmp_path / "a/zarr.json").read_text())
    (tmp_path / "a/zarr.json").write_text(json.dumps(document | {"codecs": [{"name": "nothing"}]}))
    with pytest.raises(UnsupportedError, match="zarr cannot open it either") as caught:
        shardcodec.open_array(tmp_path / "a")
    assert "zarr.open_array" not in str(caught.value)


def test_array_that_is_not_created_is_named(tmp_path: Path) -> None:
    lzma = pytest.importorskip("numcodecs.zarr3").LZMA()
    with quiet(), pytest.raises(UnsupportedError) as caught:
        shardcodec.create_array(tmp_path, "needle", shape=(4,), dtype="i4", compressors=[lzma])
    assert caught.value.array == str(tmp_path / "needle")
    assert not (tmp_path / "needle").exists()


def test_enable_names_arrays_that_were_opened_before(tmp_path: Path) -> None:
    """They go on with zarr's own pipeline, which takes no locks."""
    code = f"""
        import warnings, zarr, shardcodec
        array = zarr.create_array({str(tmp_path / "early")!r}, shape=(4,), dtype="i4")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shardcodec.enable()
            late = zarr.create_array({str(tmp_path / "late")!r}, shape=(4,), dtype="i4")
            shardcodec.enable(threads=2)
        print(*(one.message for one in caught))
    """
    said = run_checked(code).stdout
    assert said.count("early") == 1 and "attach" in said and "late" not in said


# ---- errors of handles, and of what else opens arrays

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "outside": lambda reader, _: reader[99],
    "not an index": lambda reader, _: reader["a"],
    "not a slice": lambda reader, _: reader["a":"b"],
    "ragged list": lambda reader, _: reader[[[1], [1, 2]]],
    "kind": lambda reader, _: reader.read(0, kind="x"),
    "oindex": lambda reader, _: reader.oindex[[99]],
    "vindex": lambda reader, _: reader.vindex[[0], [99]],
    "blocks": lambda reader, _: reader.blocks[99],
    "read": lambda reader, _: asyncio.run(reader.read_async(99)),
    "out": lambda reader, _: reader.read(..., out=np.zeros(3)),
    "read_boxes": lambda reader, _: reader.read_boxes([(99, 0)], (1, 1)),
    "starts": lambda reader, _: reader.read_boxes("abc", (1, 1)),
    "boxes": lambda reader, _: reader.read_boxes([(0, 0)], None),
    "read_chunks": lambda reader, _: reader.read_chunks([(99, 0)]),
    "read_arrow": lambda reader, _: reader.read_arrow(),
    "copy": lambda reader, _: reader.__array__(copy=False),
    "read-only": lambda reader, _: reader.write(0, 1),
    "attribute": lambda reader, _: reader.attrs["scale"],
    "removed attribute": lambda _, writer: writer.attrs.__delitem__("scale"),
    "set outside": lambda _, writer: writer.write(99, 0),
    "write": lambda _, writer: asyncio.run(writer.write_async(99, 0)),
    "shape": lambda _, writer: writer.write(..., np.zeros(5)),
    "text": lambda _, writer: writer.write(..., "abc"),
    "complex": lambda _, writer: writer.write(0, 1j),
    "overflow": lambda _, writer: writer.write(0, 1 << 2000),
    "write_boxes": lambda _, writer: writer.write_boxes([(99, 0)], np.zeros((1, 1, 1))),
    "resize": lambda _, writer: writer.resize((1, 1, 1)),
    "resize to none": lambda _, writer: writer.resize(None),
    "append": lambda _, writer: writer.append(np.zeros(3)),
    "axis": lambda _, writer: writer.append(np.zeros((1, 8)), axis="t"),
    "frame": lambda reader, _: add_frame(reader, np.zeros(3)),
    "type of a frame": lambda reader, _: add_frame(reader, np.zeros(8, complex)),
    "stream along": lambda reader, _: shardcodec.stream(repr(reader).split()[1], axis="t"),
}


def add_frame(reader: Any, frame: Any) -> None:
    with shardcodec.stream(repr(reader).split()[1], start=0) as frames:
        frames.append(frame)


def told(error: BaseException) -> str:
    """Return the message and the notes of an error, as a traceback shows them."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("call", CALLS)
def test_errors_of_a_handle_name_the_array_once(tmp_path: Path, call: str) -> None:
    place = str(tmp_path / "needle")
    zarr.create_array(place, shape=(16, 8), chunks=(4, 4), shards=(8, 8), dtype="f4")[...] = 1
    reader, writer = shardcodec.open_array(place), shardcodec.open_array(place, mode="r+")
    with pytest.raises(
        (IndexError, KeyError, TypeError, ValueError, OverflowError, UnsupportedError)
    ) as caught:
        CALLS[call](reader, writer)
    assert told(caught.value).count(place) == 1
    assert (writer[...] == 1).all()


@pytest.mark.parametrize("mode", ["w", "a", 0, None])
def test_wrong_mode_names_the_array(tmp_path: Path, mode: Any) -> None:
    hierarchy(tmp_path / "needle.zarr")
    with pytest.raises((TypeError, ValueError), match="mode: expected one of 'r', 'r\\+'") as caught:
        shardcodec.open_array(tmp_path / "needle.zarr", "heat0", mode=mode)
    assert str(caught.value).startswith(f"array {str(tmp_path / 'needle.zarr/heat0')!r}: ")


@pytest.mark.parametrize("opens", [shardcodec.chunk_state, tools.verify, tools.inspect])
def test_other_functions_name_the_array_with_a_damaged_document(
    tmp_path: Path, opens: Callable[[Any], Any]
) -> None:
    hierarchy(tmp_path / "needle.zarr")
    (tmp_path / "needle.zarr/heat0/zarr.json").write_text("{")
    with pytest.raises(Exception) as caught:
        opens(tmp_path / "needle.zarr/heat0")
    assert str(tmp_path / "needle.zarr/heat0") in told(caught.value)


@pytest.mark.parametrize("attached", [False, True])
def test_error_of_a_damaged_shard_of_a_zarr_array_has_its_place(tmp_path: Path, attached: bool) -> None:
    group = zarr.create_group(tmp_path / "needle.zarr")
    group.create_array("heat", shape=(8,), shards=(8,), chunks=(4,), dtype="i4")[...] = 1
    shard = tmp_path / "needle.zarr/heat/c/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with shardcodec.enable():
        array = zarr.open_array(tmp_path / "needle.zarr", path="heat", mode="r+")
        array = shardcodec.attach(array) if attached else array
        for call in (lambda: array[...], lambda: array.__setitem__(0, 5)):
            with pytest.raises(ShardError) as caught:
                call()
            assert caught.value.shard == "heat/c/0" and told(caught.value).count(str(shard)) == 1
    with pytest.raises(ShardError) as caught:
        shardcodec.chunk_state(tmp_path / "needle.zarr", "heat")
    assert str(tmp_path / "needle.zarr/heat") in told(caught.value)


def test_attribute_that_is_missing_is_not_an_error_of_get(tmp_path: Path) -> None:
    attrs = shardcodec.create_array(tmp_path / "a", shape=(4,), dtype="i4").attrs
    assert attrs.get("scale") is None and "scale" not in attrs and attrs.pop("scale", 3) == 3
