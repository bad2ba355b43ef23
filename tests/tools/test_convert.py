# test_convert.py - convert: kinds of sources, moves, groups, layouts
# SPDX-License-Identifier: MIT
"""The elements of the new array are those of the source, as zarr reads both. Moved chunks have the same bytes."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import SHAPE, VALUES, hierarchy, method, opened, same, source
from helpers import bits, quiet
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore, StorePath, ZipStore

import shardcodec
from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert
from shardcodec.tools.convert.choice_texts import parse_shape, parse_shards
from shardcodec.tools.convert.layout import parse_codec_list


def encoded(folder: Path) -> dict[tuple[int, ...], bytes]:
    """Return the encoded inner chunks of an array, by position in the grid of the whole array."""
    document = json.loads((folder / "zarr.json").read_text())
    spec = shardcodec.ShardSpec.from_metadata(document)
    counts = np.array(spec.shard_shape) // np.array(spec.chunk_shape)
    found = {}
    for file in (folder / "c").rglob("*"):
        if file.is_file():
            at = np.array([int(part) for part in file.relative_to(folder / "c").parts])
            with shardcodec.open_shard(file.parent, file.name, spec) as shard:
                for within in itertools.product(*map(range, spec.grid_shape)):
                    (data,) = shard.read_encoded([within])
                    if data is not None:
                        found[tuple((at * counts + within).tolist())] = bytes(data)
    return found


LAYOUTS: dict[str, dict[str, Any]] = {
    "v3 zstd": {},
    "v3 raw": {"compressors": None},
    "v3 checksum": {"compressors": [ZstdCodec(level=3), Crc32cCodec()]},
    "v3 blosc": {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "v3 big": {"serializer": BytesCodec(endian="big")},
    "v3 transposed": {"filters": [TransposeCodec(order=(2, 0, 1))]},
    "v3 sharded": {"shards": (8, 16, 8)},
    "v3 sharded raw": {"shards": (8, 32, 4), "compressors": None},
    "v3 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "v2 default": {"zarr_format": 2},
    "v2 raw": {"zarr_format": 2, "compressors": None},
    "v2 fortran": {"zarr_format": 2, "order": "F"},
    "v2 big": {"zarr_format": 2, "dtype": ">i4"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "shards": {"shards": (16, 16, 4)},
    "size": {"shards": 4096},
    "chunks": {"chunks": (5, 4, 7), "shards": (10, 16, 7)},
    "codecs": {"codecs": ["zstd", "crc32c"]},
    "little memory": {"chunks": (2, 3, 2), "shards": (20, 33, 8), "memory": 3000, "threads": 1},
}


# The others run at night.
ALWAYS = {("v3 zstd", name) for name in OPTIONS} | {(name, "defaults") for name in LAYOUTS}
ALWAYS |= {("v2 fortran", "little memory"), ("v3 transposed", "little memory"), ("v3 sharded raw", "chunks")}


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        pytest.param(*one, marks=[] if one in ALWAYS else [pytest.mark.nightly])
        for one in itertools.product(LAYOUTS, OPTIONS)
    ],
)
def test_elements_are_those_of_the_source(layout: str, options: str, tmp_path: Path) -> None:
    how = dict(LAYOUTS[layout])
    dtype = how.pop("dtype", "int32")
    source(tmp_path / "a.zarr", dtype=dtype, **how)
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", level="compare", **OPTIONS[options])
    new = same(tmp_path / "b.zarr")
    assert new.shards is not None and new.fill_value == -1
    assert method(report) == ("encode" if options in ("chunks", "codecs", "little memory") else "move")
    assert report.is_complete and report.n_failed == 0
    assert report.arrays[0].streamed == (options == "little memory")
    assert shardcodec.tools.verify(tmp_path / "b.zarr", level="decode").n_findings == 0


@pytest.mark.parametrize(
    "layout", ["v3 zstd", "v3 checksum", "v3 blosc", "v3 transposed", "v2 default", "v2 fortran"]
)
def test_chunks_are_moved_byte_by_byte(layout: str, tmp_path: Path) -> None:
    array = source(tmp_path / "a.zarr", **LAYOUTS[layout])
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(8, 16, 8))
    stored = encoded(tmp_path / "b.zarr")
    keys = [array.metadata.encode_chunk_key(at) for at in stored]
    assert [(tmp_path / "a.zarr" / key).read_bytes() for key in keys] == list(stored.values())
    assert report.n_moved_chunks == len(stored) == array.nchunks_initialized
    assert report.read_nbytes == sum(map(len, stored.values()))


def test_inner_chunks_are_moved_byte_by_byte(tmp_path: Path) -> None:
    source(tmp_path / "a.zarr", shards=(8, 16, 8))
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(20, 8, 4), level="checksum")
    assert method(report) == "move"
    assert encoded(tmp_path / "a.zarr") == encoded(tmp_path / "b.zarr")
    same(tmp_path / "b.zarr")


def test_transposed_shards_are_moved(tmp_path: Path) -> None:
    codec = zarr.codecs.ShardingCodec(chunk_shape=(4, 4, 8), codecs=[BytesCodec(), ZstdCodec()])
    with quiet():
        array = zarr.create(
            store=str(tmp_path / "a.zarr"), shape=SHAPE, chunks=(8, 16, 8), dtype="int32", fill_value=-1,
            zarr_format=3, codecs=[TransposeCodec(order=(2, 0, 1)), codec],
        )  # fmt: skip
        array[...] = VALUES
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(4, 32, 8))
    assert method(report) == "move" and report.arrays[0].chunk_shape == (4, 8, 4)
    same(tmp_path / "b.zarr")
    report = convert(
        tmp_path / "a.zarr", tmp_path / "c.zarr", chunks=(2, 4, 4), shards=(8, 36, 8), memory=6000, threads=1
    )
    assert report.arrays[0].streamed
    same(tmp_path / "c.zarr")


DTYPES = [
    "bool", "u1", "<i8", "<f2", "<c16", "<M8[ns]", "<m8[s]", "|S5", "<U3", "|V4",
    [("a", "<i2"), ("b", "<f8")],
]  # fmt: skip


@pytest.mark.parametrize("zarr_format", [2, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_data_types(dtype: Any, zarr_format: int, tmp_path: Path) -> None:
    kind = np.dtype(dtype)
    raw = np.random.default_rng(1).integers(65, 90, (6, 7, kind.itemsize), dtype="u1")
    values = raw.view(kind)[..., 0]
    if kind.kind == "U":
        values = raw[..., 0].astype(kind)
    if kind == np.dtype(bool):
        values = raw[..., 0] > 70
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            tmp_path / "a.zarr", shape=(6, 7), chunks=(2, 3), dtype=kind, zarr_format=zarr_format
        )
        array[...] = values
        for name, how in {"moved": {}, "encoded": {"chunks": (3, 2)}}.items():
            report = convert(tmp_path / "a.zarr", tmp_path / name, level="compare", **how)
            # zarr 3.1.6 can read neither shards of void elements nor the name of structs
            found = shardcodec.open_array(tmp_path / name) if kind.kind == "V" else opened(tmp_path / name)
            assert bits(found[...]) == bits(array[...]) == bits(values) and found.dtype == kind
            assert bits(np.asarray(found.fill_value)) == bits(np.asarray(array.fill_value))
        assert method(report) == "encode"


@pytest.mark.parametrize("value", [np.nan, -0.0, np.inf, 2.5])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_fill_values_keep_their_bits(value: float, zarr_format: int, tmp_path: Path) -> None:
    with quiet():
        array = zarr.create_array(
            tmp_path / "a.zarr",
            shape=(4, 4),
            chunks=(2, 2),
            dtype="f4",
            fill_value=value,
            zarr_format=zarr_format,
        )
    array[:2] = [[value, 1, 0.0, -0.0]] * 2
    for name, how in {"moved": {}, "encoded": {"chunks": (4, 1)}}.items():
        convert(tmp_path / "a.zarr", tmp_path / name, level="compare", **how)
        assert bits(opened(tmp_path / name)[...]) == bits(array[...])


def test_absent_chunks_stay_absent(tmp_path: Path) -> None:
    with quiet():
        array = zarr.create_array(
            tmp_path / "a.zarr", shape=(16, 16), chunks=(4, 4), dtype="u1", fill_value=3
        )
    array[:4, :4] = 1
    convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(8, 8))
    files = [file for file in (tmp_path / "b.zarr/c").rglob("*") if file.is_file()]
    assert [file.relative_to(tmp_path / "b.zarr").as_posix() for file in files] == ["c/0/0"]
    same(tmp_path / "b.zarr", array[...])


def test_array_without_axes_and_array_without_elements(tmp_path: Path) -> None:
    with quiet():
        for zarr_format in (2, 3):
            group = zarr.create_group(tmp_path / f"v{zarr_format}", zarr_format=zarr_format)
            group.create_array("scalar", shape=(), dtype="f8")[...] = 2.5
            group.create_array("empty", shape=(0, 5), chunks=(1, 5), dtype="i4")
    for zarr_format in (2, 3):
        convert(tmp_path / f"v{zarr_format}", tmp_path / f"new{zarr_format}", level="compare")
        new = zarr.open_group(tmp_path / f"new{zarr_format}", mode="r")
        assert new["scalar"][...] == 2.5 and new["empty"].shape == (0, 5)


def test_array_like_objects(tmp_path: Path) -> None:
    import dask.array

    for n, values in enumerate(
        [VALUES, dask.array.from_array(VALUES, chunks=(4, 8, 7)), np.asfortranarray(VALUES)]
    ):
        report = convert(values, tmp_path / f"{n}.zarr", level="compare")
        same(tmp_path / f"{n}.zarr")
        assert method(report) == "encode"
    assert report.arrays[0].chunk_shape == SHAPE


def test_xarray_keeps_names_of_axes(tmp_path: Path) -> None:
    import xarray

    values = xarray.DataArray(VALUES, dims=("z", "y", "x"), attrs={"unit": "m", "scale": np.float32(2)})
    convert(values, tmp_path / "a.zarr")
    new = same(tmp_path / "a.zarr")
    assert new.metadata.dimension_names == ("z", "y", "x")
    assert dict(new.attrs) == {"unit": "m", "scale": 2.0}


def test_codecs_that_only_zarr_has(tmp_path: Path) -> None:
    numcodecs = pytest.importorskip("zarr.codecs.numcodecs")
    with quiet():
        source(tmp_path / "a.zarr", compressors=[numcodecs.BZ2(level=1)])
        report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert method(report) == "encode"
    assert same(tmp_path / "b.zarr").chunks == (4, 8, 4)


def test_array_of_text_is_moved(tmp_path: Path) -> None:
    with quiet():
        group = zarr.create_group(tmp_path / "a.zarr")
        group.create_array("names", shape=(3,), dtype=str)[...] = np.array(["a", "bc", ""], dtype=object)
        source(StorePath(group.store, "data"))
        report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
        assert {one.name: one.method for one in report.arrays} == {"data": "move", "names": "move"}
        assert list(zarr.open_group(tmp_path / "b.zarr")["names"][...]) == ["a", "bc", ""]


@pytest.mark.parametrize(("name", "block"), [("a.h5", 0), ("a.nwb", 0), ("a.mat", 512), ("a", 2048)])
def test_hdf5_is_known_by_its_content(name: str, block: int, tmp_path: Path) -> None:
    """`.nwb`, `.h5ad`, `.loom`, `.ims` and `.mat` are HDF5 files too; MATLAB puts a block of its own in front."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / name, "w", userblock_size=block) as file:
        file["raw/one"] = VALUES
    convert(tmp_path / name, tmp_path / "new")
    same(tmp_path / "new", path="raw/one")
    convert(tmp_path / name / "raw/one", tmp_path / "one")
    same(tmp_path / "one")


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        one = file.create_dataset("raw/one", data=VALUES, chunks=(4, 8, 7), compression="gzip")
        one.attrs["unit"] = "m"
        one.attrs["matrix"] = np.eye(2)
        one.dims[0].label = "z"
        file["raw"].attrs["note"] = "text"
        file.create_dataset("two", data=np.arange(10.0))
    report = convert(tmp_path / "a.h5", tmp_path / "b.zarr", level="compare")
    assert {one.name: one.chunk_shape for one in report.arrays} == {"raw/one": (4, 8, 7), "two": (10,)}
    new = same(tmp_path / "b.zarr", path="raw/one")
    assert dict(new.attrs) == {"unit": "m", "matrix": [[1, 0], [0, 1]]}
    assert new.metadata.dimension_names == ("z", None, None)
    assert dict(zarr.open_group(tmp_path / "b.zarr")["raw"].attrs) == {"note": "text"}
    convert(tmp_path / "a.h5/two", tmp_path / "c.zarr")
    same(tmp_path / "c.zarr", np.arange(10.0))
    with pytest.raises(FileNotFoundError, match="expected a dataset or a group 'three'"):
        convert(tmp_path / "a.h5/three", tmp_path / "d.zarr")


def test_zip_file_as_source(tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        source(store, name="level0")
    report = convert(tmp_path / "a.zip/level0", tmp_path / "b.zarr")
    assert method(report) == "move"
    same(tmp_path / "b.zarr")


def test_stores_in_memory(tmp_path: Path) -> None:
    old, new = MemoryStore(), MemoryStore()
    source(old)
    assert method(convert(old, new, shards=(8, 16, 8), level="compare")) == "move"
    same(new)
    again = MemoryStore()
    convert(
        new,
        StorePath(again, "below"),
        chunks=(4, 4, 4),
        shards=(20, 32, 8),
        memory=20000,
        threads=1,
        level="compare",
    )
    same(again, path="below")


def test_object_store(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    from zarr.storage import ObjectStore

    old, new = ObjectStore(obstore.store.MemoryStore()), ObjectStore(obstore.store.MemoryStore())
    source(old)
    report = convert(old, new, shards=(8, 16, 8), level="compare")
    assert method(report) == "move"
    same(new)
    again = ObjectStore(obstore.store.MemoryStore())
    convert(new, again, chunks=(5, 33, 7), level="compare")
    same(again)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_group_keeps_attributes_names_of_axes_and_levels(zarr_format: int, tmp_path: Path) -> None:
    hierarchy(tmp_path / "a.zarr", zarr_format)
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert [one.name for one in report.arrays] == ["0", "1"]
    with quiet():
        old = zarr.open_group(tmp_path / "a.zarr", mode="r")
        new = zarr.open_consolidated(tmp_path / "b.zarr", zarr_format=3)
    assert dict(new.attrs) == dict(old.attrs)
    assert dict(new["labels/empty"].attrs) == {"k": [1, None]}
    for level in ("0", "1"):
        assert new[level].metadata.dimension_names == ("z", "y", "x")
        mask = (
            {"_FillValue": 0} if zarr_format == 2 else {}
        )  # for xarray, which takes it from the fill value in v2
        assert dict(new[level].attrs) == {"level": int(level), **mask}
        assert bits(new[level][...]) == bits(old[level][...])
        assert new[level].shards is not None
    consolidated = json.loads((tmp_path / "b.zarr/zarr.json").read_text())["consolidated_metadata"][
        "metadata"
    ]
    assert sorted(consolidated) == ["0", "1", "labels", "labels/empty"]
    for name, document in consolidated.items():
        if document["node_type"] == "group":  # as zarr-python writes it
            assert document.pop("consolidated_metadata")["metadata"] == {}
        assert document == json.loads((tmp_path / "b.zarr" / name / "zarr.json").read_text())


def test_like_takes_shapes_and_codecs(tmp_path: Path) -> None:
    source(tmp_path / "a.zarr")
    source(tmp_path / "like.zarr", shards=(4, 8, 4), chunks=(2, 4, 2), compressors=BloscCodec(cname="zstd"))
    convert(tmp_path / "a.zarr", tmp_path / "b.zarr", like=tmp_path / "like.zarr")
    new, like = same(tmp_path / "b.zarr"), opened(tmp_path / "like.zarr")
    assert (new.shards, new.chunks) == (like.shards, like.chunks)
    assert new.metadata.codecs == like.metadata.codecs


def test_default_shard_is_as_large_as_allowed(tmp_path: Path) -> None:
    report = convert(
        np.zeros((4096, 4096), "u1"), tmp_path / "a.zarr", chunks=(64, 64), shards=1 << 20, dry_run=True
    )
    assert report.arrays[0].shard_shape == (1024, 1024)
    assert report.n_shards == 16


@pytest.mark.parametrize(("how", "text"), [
    ({"chunks": (4, 4)}, "chunks: expected 3 positive numbers"),
    ({"shards": (5, 8, 4)}, "shards: expected a multiple of the inner chunk, 4, along axis 0"),
    ({"memory": 100, "chunks": (1, 1, 1)}, "memory: expected at least"),
    ({"memory": 100}, "memory: expected at least"),
    ({"level": "all"}, "level: expected one of"),
    ({"resume": True}, "resume: expected `job`"),
    ({"codecs": ["no-such-codec"]}, "does not implement codec 'no-such-codec'"),
])  # fmt: skip
def test_wrong_arguments_leave_nothing(how: dict[str, Any], text: str, tmp_path: Path) -> None:
    source(tmp_path / "a.zarr")
    with pytest.raises((ValueError, UnsupportedError), match=text):
        convert(tmp_path / "a.zarr", tmp_path / "b.zarr", **how)
    assert not (tmp_path / "b.zarr").exists()


def test_source_that_is_no_hierarchy_is_refused(tmp_path: Path) -> None:
    source(tmp_path / "a.zarr", shards=(8, 16, 8))
    with pytest.raises(TypeError, match="expected a path, a URL, a zarr store or an object"):
        convert(5, tmp_path / "b.zarr")
    with pytest.raises(ValueError, match="got one shard"):
        convert(tmp_path / "a.zarr/c/0/1/0", tmp_path / "c.zarr")


def test_texts_of_shapes_sizes_and_codecs() -> None:
    assert parse_shape("4,5x6") == (4, 5, 6)
    assert parse_shards("512MiB") == 512 << 20
    assert parse_shards("16,32") == (16, 32)
    assert parse_codec_list("zstd, crc32c") == ("zstd", "crc32c")
    assert parse_codec_list("none") == ()
    assert parse_codec_list('[{"name": "gzip"}]') == ({"name": "gzip"},)
    for wrong in ("", "a", "0,1", "-3"):
        with pytest.raises(ValueError, match="expected a shape"):
            parse_shape(wrong)
    with pytest.raises(ValueError, match="JSON list"):
        parse_codec_list("[zstd")
