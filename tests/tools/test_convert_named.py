# test_convert_named.py - what convert does not keep, and says so
# SPDX-License-Identifier: MIT
"""Codecs, grids and layouts that differ from those of the source, or from what the user wanted, are in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import VALUES, same, source
from helpers import ZARR_IS_31, quiet

from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert, inspect
from shardcodec.tools.convert.layout import parse_codec_list


@pytest.mark.parametrize(("kind", "name", "wanted"), [("Zlib", "zlib", "gzip"), ("LZ4", "lz4", "zstd")])
def test_codecs_that_others_cannot_read_are_named(kind: str, name: str, wanted: str, tmp_path: Path) -> None:
    """Chunks of Zarr v2 are moved with codecs of numcodecs, which TensorStore does not read; the report said nothing."""
    numcodecs = pytest.importorskip("numcodecs")
    with quiet():
        source(tmp_path / "old", zarr_format=2, compressors=getattr(numcodecs, kind)())
    (one,) = convert(tmp_path / "old", tmp_path / "new", dry_run=True).arrays
    (note,) = one.notes
    assert f"numcodecs.{name}" in note
    assert note.endswith(f"--codecs {wanted}")
    (one,) = convert(tmp_path / "old", tmp_path / "new", codecs=parse_codec_list(wanted)).arrays
    assert one.notes == ()
    same(tmp_path / "new")
    assert f'"name": "{wanted}"' in (tmp_path / "new/zarr.json").read_text()


@pytest.mark.parametrize("kind", ["Fletcher32", "CRC32", "Adler32"])
def test_zarr_opens_arrays_with_checksums_of_v2(kind: str, tmp_path: Path) -> None:
    """A codec of numcodecs without a configuration had none in the new metadata, and zarr did not open the array."""
    numcodecs = pytest.importorskip("numcodecs")
    with quiet():
        source(tmp_path / "old", zarr_format=2, filters=[getattr(numcodecs, kind)()])
        convert(tmp_path / "old", tmp_path / "new")
    same(tmp_path / "new")


def test_text_that_zarr_decodes_keeps_its_fill_value(tmp_path: Path) -> None:
    """Its elements were right, and the fill value of the new array was the empty text."""
    numcodecs = pytest.importorskip("numcodecs")
    with quiet():
        how: dict[str, Any] = {"zarr_format": 2, "compressors": numcodecs.BZ2(), "fill_value": "naïve"}
        old = zarr.create_array(tmp_path / "old", shape=(4,), chunks=(2,), dtype="str", **how)
        old[:2] = np.array(["a", ""], dtype=object)
        convert(tmp_path / "old", tmp_path / "new")
        new = zarr.open_array(tmp_path / "new", mode="r")
    assert new.fill_value == "naïve" and new[...].tolist() == ["a", "", "naïve", "naïve"]


def test_codecs_that_are_not_kept_are_named(tmp_path: Path) -> None:
    """`scale_offset` and `cast_value` were replaced by zstd in silence, and each element took four times the bytes."""
    codecs = pytest.importorskip("zarr.codecs")
    if not hasattr(codecs, "CastValue"):
        pytest.skip("this zarr has no cast_value")
    many = {"encode": [(float(i), i) for i in range(1000, 1257)]}  # the engine has up to 256
    for name, scalar_map, lost in (
        ("native", None, ()),
        (
            "many",
            many,
            (
                "codecs of the source that are not kept: scale_offset, cast_value; elements are stored as float64 with bytes, zstd",
            ),
        ),
    ):
        filters = [
            codecs.ScaleOffset(offset=5.0, scale=10.0),
            codecs.CastValue(data_type="int16", scalar_map=scalar_map),
        ]
        with quiet():
            array = zarr.create_array(tmp_path / name, shape=(10,), chunks=(5,), dtype="f8", filters=filters)
            array[...] = np.arange(10) / 10 + 5
        (one,) = convert(tmp_path / name, tmp_path / f"{name}-new").arrays
        assert one.notes == lost
        same(tmp_path / f"{name}-new", np.asarray(array[...]))


def test_rectilinear_grid_is_said(tmp_path: Path) -> None:
    """`inspect` showed the first size as the shape of all chunks; `convert` copied the objects and blamed the data type."""
    path = tmp_path / "old"
    with quiet():
        array = zarr.create_array(path, shape=(30, 4), chunks=(10, 4), dtype="int32")
        array[...] = np.arange(120).reshape(30, 4)
    if not ZARR_IS_31:
        with quiet(), zarr.config.set({"array.rectilinear_chunks": True}):
            array = zarr.create_array(
                path, shape=(30, 4), chunks=[[10, 15, 5], [4]], dtype="int32", overwrite=True
            )
            array[...] = np.arange(120).reshape(30, 4)
    else:  # it has no such grid, so only the metadata have one
        document = json.loads((path / "zarr.json").read_text())
        grid = {"kind": "inline", "chunk_shapes": [[10, 15, 5], 4]}
        document["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
        (path / "zarr.json").write_text(json.dumps(document))
    layout = inspect(path).arrays[0].layout
    assert layout is not None
    assert layout.chunk_shape is None
    assert layout.grid_sizes == ((10, 15, 5), (4,))
    if ZARR_IS_31:
        assert "rectilinear" in convert(path, tmp_path / "copy").arrays[0].reason
        with pytest.raises(UnsupportedError, match="rectilinear"):
            convert(path, tmp_path / "new", chunks=(5, 2), shards=(20, 4))
        return
    (one,) = convert(path, tmp_path / "new", chunks=(5, 2), shards=(20, 4)).arrays
    assert one.method == "encode"
    assert "the grid of the source is rectilinear, with chunks of ((10, 15, 5), (4,))" in one.notes[0]
    assert same(tmp_path / "new", np.arange(120, dtype="int32").reshape(30, 4)).shards == (20, 4)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("how", ["shapes", "like"])
def test_arrays_with_other_axes_keep_their_layout(zarr_format: int, how: str, tmp_path: Path) -> None:
    """A data set of xarray has coordinates of one axis beside variables of three; shapes for these refused the whole group."""
    sources = {
        "v": {"data": VALUES, "chunks": (4, 8, 4)},
        "x": {"data": np.arange(33.0), "chunks": (8,)},
        "crs": {"data": np.array(7)},
    }
    if zarr_format == 3:
        sources["sharded"] = {"data": VALUES[0], "chunks": (4, 7), "shards": (16, 7)}
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=zarr_format)
        for name, one in sources.items():
            group.create_array(name, **one)
    shapes: dict[str, Any] = {"chunks": (5, 4, 7), "shards": (10, 16, 7)}
    if how == "like":
        with quiet():
            source(tmp_path / "like", **shapes)
        shapes = {"like": tmp_path / "like"}
    dry = convert(tmp_path / "old", tmp_path / "new", **shapes, dry_run=True)
    report = convert(tmp_path / "old", tmp_path / "new", **shapes, verify="full")
    for found in (dry, report):
        notes = {one.name: one.notes for one in found.arrays}
        assert notes["v"] == ()
        assert "the array keeps its layout" in notes["x"][0]
        assert all(notes[name] for name in notes if name in ("x", "sharded"))
    for name, one in sources.items():
        new = same(tmp_path / "new", one["data"], name)
        if name == "v":
            assert (new.chunks, new.shards) == ((5, 4, 7), (10, 16, 7))
        else:
            assert new.shards == one.get("shards")
            assert new.chunks == one.get("chunks", ())
    wrong = {"chunks": (5, 4, 7, 1)} if how == "shapes" else shapes
    with pytest.raises(ValueError, match="expected"):
        convert(tmp_path / "old", tmp_path / "wrong", **wrong, only=["x", "crs"])


@pytest.mark.parametrize("must_understand", [False, True])
def test_extensions_of_groups_are_kept(must_understand: bool, tmp_path: Path) -> None:
    """Further members of the `zarr.json` of a group vanished without a word, those that must be understood too."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", attributes={"k": 1})
        group.create_array("g/a", shape=(8,), chunks=(4,), dtype="int32")[...] = np.arange(8)
        zarr.consolidate_metadata(tmp_path / "old")
    extension = {"must_understand": must_understand, "value": 1}
    for name in ("zarr.json", "g/zarr.json"):
        document = json.loads((tmp_path / "old" / name).read_text())
        (tmp_path / "old" / name).write_text(json.dumps({**document, "example": extension}))
    convert(tmp_path / "old", tmp_path / "new")
    for name in ("zarr.json", "g/zarr.json"):
        document = json.loads((tmp_path / "new" / name).read_text())
        assert document["example"] == extension
    assert json.loads((tmp_path / "new/zarr.json").read_text())["attributes"] == {"k": 1}


def test_members_that_zarr_v3_has_no_place_for_are_named(tmp_path: Path) -> None:
    """Unknown members of `.zgroup` and `.zarray` are not those of Zarr v3; nothing said that they are gone."""
    with quiet():
        group = zarr.create_group(tmp_path / "old", zarr_format=2)
        group.create_array("a", shape=(8,), chunks=(4,), dtype="int32")[...] = np.arange(8)
    for name in (".zgroup", "a/.zarray"):
        document = json.loads((tmp_path / "old" / name).read_text())
        (tmp_path / "old" / name).write_text(json.dumps({**document, "example": 1}))
    report = convert(tmp_path / "old", tmp_path / "new")
    named = "the new metadata do not have example, which Zarr v2 does not define"
    assert report.notes == (f"group /: {named}",)
    assert named in report.arrays[0].notes


def test_documents_of_zarr_v2_beside_an_array_that_is_copied_whole(tmp_path: Path) -> None:
    """The array is copied object by object; the documents of Zarr v2 beside its `zarr.json` vanished."""
    with quiet():
        group = zarr.create_group(tmp_path / "old")
        group.create_array("a", shape=(8,), chunks=(4,), dtype="int32")[...] = np.arange(8)
    document = json.loads((tmp_path / "old/a/zarr.json").read_text())
    (tmp_path / "old/a/zarr.json").write_text(json.dumps({**document, "codecs": [{"name": "example.codec"}]}))
    (tmp_path / "old/a/.zattrs").write_text('{"unit": "m"}')
    (tmp_path / "old/a/.zarray").write_text("{}")
    report = convert(tmp_path / "old", tmp_path / "new")
    assert report.arrays[0].method == "copy"
    assert (tmp_path / "new/a/.zattrs").read_text() == '{"unit": "m"}'
    assert [one.name for one in report.others.left] == ["a/.zarray"]
