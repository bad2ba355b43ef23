# test_foreign_types.py - data types and grids that the engine or zarr does not have
# SPDX-License-Identifier: MIT
"""Shards have no data type: tools check, repair, pack and move those of strings, of bfloat16, and of any other type.

The tools had raw bytes in place of int4 and bfloat16, which `packbits` refuses: verify then checked neither sizes nor elements,
and --against called an identical copy different.

`verify new --against rectilinear` ended with NotImplementedError of zarr, and one of a foreign data type refused a whole group.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import codec_rows
import numpy as np
import pytest
import zarr
from helpers import hide_ml_dtypes, quiet
from spec_json import Json, named, typed_metadata
from tool_sources import edit

import shardcodec
from shardcodec import SpecError, chunk_state, tools
from shardcodec.checksum import crc32c
from shardcodec.errors import UnsupportedError
from shardcodec.format.byte_document import byte_document
from shardcodec.format.codecs import COMPRESSORS, ROWS
from shardcodec.format.dtypes import parse_data_type
from shardcodec.format.ml_types import ML_NBYTES
from shardcodec.tools import compact, convert, inspect, repair, verify
from shardcodec.tools.convert.report import ConvertReport
from shardcodec.tools.hierarchy import find_arrays

NAMES = np.array([f"gauge {i} ä" * (500 if i == 3 else 1) for i in range(70)], dtype=object)
NAMES[16:24] = ""
# Bits of 0 to 6 in bfloat16.
BITS = np.array([0, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0], "<u2")[np.arange(72) % 7].reshape(12, 6)


def text(place: Any, name: str = "names", *, values: np.ndarray[Any, Any] = NAMES, **how: Any) -> Any:
    """Make an array of strings in a group."""
    how = {"dtype": "string", "chunks": (8,), **how}
    with quiet():
        group = zarr.open_group(place, mode="a", zarr_format=how.pop("zarr_format", 3))
        array = group.create_array(name, shape=values.shape, **how)
        array[...] = values
    return array


def bfloat16(place: Path, *, shards: Any = (8, 6), fill: Any = 0.0, data_type: str = "bfloat16") -> None:
    """Make an array as TensorStore does; zarr does not know the type, so the metadata get it afterwards."""
    with quiet():
        array = zarr.create_array(
            place,
            shape=BITS.shape,
            chunks=(4, 6),
            shards=shards,
            dtype="uint16",
            compressors=zarr.codecs.GzipCodec(),
        )
    array[...] = BITS
    edit(place / "zarr.json", data_type=data_type, fill_value=fill)


def bits(place: Path) -> np.ndarray[Any, Any]:
    """Return the bits of an array of a type of two bytes, through zarr; the metadata are changed for that."""
    edit(place / "zarr.json", data_type="uint16", fill_value=0)
    with quiet():
        return np.asarray(zarr.open_array(place, mode="r")[...])


def names(place: Any, name: str = "names") -> list[str]:
    with quiet():
        return [str(one) for one in np.asarray(zarr.open_group(place, mode="r")[name][...]).reshape(-1)]


def methods(report: ConvertReport) -> dict[str, str]:
    assert report.is_complete and not report.failures
    return {one.name: one.method for one in report.arrays}


def flip(shard: Path, at: int) -> None:
    data = bytearray(shard.read_bytes())
    data[at] ^= 0x55
    shard.write_bytes(data)


def is_sharded(place: Path, shape: tuple[int, ...]) -> bool:
    (array,) = find_arrays(place)
    return array.spec is not None and array.spec.shard_shape == shape


def test_torn_shard_of_strings_is_found(tmp_path: Path) -> None:
    """Issue 30, 22: `verify` said "no damage found" beside a torn shard of station names."""
    text(tmp_path / "g.zarr", shards=(32,))
    assert not verify(tmp_path / "g.zarr", level="decode").n_findings
    shard = tmp_path / "g.zarr/names/c/1"
    os.truncate(shard, shard.stat().st_size - 20)
    report = verify(tmp_path / "g.zarr", level="index")
    assert report.kinds == {"truncated tail": 1}


@pytest.mark.parametrize("dtype", ["string", "variable_length_bytes"])
def test_damaged_inner_chunk_of_strings_is_found_by_decoding(tmp_path: Path, dtype: str) -> None:
    """Zarr's codecs decode what the engine does not; a checksum behind them is checked by the engine."""
    values = NAMES if dtype == "string" else np.array([one.encode() for one in NAMES], dtype=object)
    text(tmp_path / "g.zarr", values=values, dtype=dtype, shards=(32,))
    crc = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    text(tmp_path / "g.zarr", "sums", values=values, dtype=dtype, shards=(32,), compressors=crc)
    for name in "names", "sums":
        flip(tmp_path / f"g.zarr/{name}/c/1", 1)
    assert verify(tmp_path / "g.zarr").kinds == {"bad inner checksum": 1}
    report = verify(tmp_path / "g.zarr", level="decode")
    assert report.kinds == {"bad inner checksum": 1, "decode error": 1}
    assert [one.findings[0].chunk for one in report.shards] == [(0,), (0,)]


def test_codecs_that_neither_has_are_named(tmp_path: Path) -> None:
    text(tmp_path / "g.zarr", shards=(32,))
    document = json.loads((tmp_path / "g.zarr/names/zarr.json").read_text())
    document["codecs"][0]["configuration"]["codecs"] = [{"name": "no.such"}, {"name": "crc32c"}]
    edit(tmp_path / "g.zarr/names/zarr.json", codecs=document["codecs"])
    report = verify(tmp_path / "g.zarr", level="decode")
    assert report.kinds["unsupported"] == 1
    assert (
        report.kinds["bad inner checksum"] == 8
    )  # the chunks have none, so the checksum that the metadata name is wrong


def test_inspect_and_chunk_state_of_strings(tmp_path: Path) -> None:
    array = text(tmp_path / "g.zarr", shards=(32,))
    (report,) = inspect(tmp_path / "g.zarr").arrays
    assert report.problem is None and report.stored is not None and report.layout is not None
    assert (report.layout.dtype, report.layout.fill_value) == ("string", "")
    assert (report.stored.n_chunks, report.stored.ratio) == (8, None)  # [16:24] is empty, as the fill value
    state = chunk_state(array)
    assert state.exists.sum() == 8 and state.nbytes.sum() == report.stored.chunks.nbytes


def test_repair_takes_strings_from_what_is_whole_and_from_a_copy(tmp_path: Path) -> None:
    text(tmp_path / "g.zarr", shards=(32,))
    shutil.copytree(tmp_path / "g.zarr", tmp_path / "copy.zarr")
    text(tmp_path / "other.zarr", chunks=(10,))
    torn, flipped = (tmp_path / f"g.zarr/names/c/{i}" for i in (1, 0))
    os.truncate(torn, torn.stat().st_size - 20)
    flip(flipped, 1)
    report = repair(tmp_path / "g.zarr", to=tmp_path / "alone.zarr")
    assert (report.n_damaged, report.n_lost_chunks) == (
        2,
        1,
    )  # the streams behind the lost index are recognised
    for copy in "copy.zarr", "other.zarr":
        report = repair(tmp_path / "g.zarr", to=tmp_path / f"from-{copy}", copy=tmp_path / copy)
        assert report.n_lost_chunks == 0
        assert names(tmp_path / f"from-{copy}") == list(NAMES)
    report = repair(tmp_path / "g.zarr", backup=tmp_path / "backup", copy=tmp_path / "copy.zarr")
    assert names(tmp_path / "g.zarr") == list(NAMES)


def test_copy_with_other_foreign_codecs_is_not_taken_as_it_is(tmp_path: Path) -> None:
    """Codecs that the engine does not have are compared by their metadata: two arrays of them looked equal."""
    text(tmp_path / "g.zarr", shards=(32,), compressors=zarr.codecs.GzipCodec(level=1))
    text(tmp_path / "copy.zarr", shards=(32,), compressors=zarr.codecs.ZstdCodec(level=3))
    flip(tmp_path / "g.zarr/names/c/0", 20)
    report = repair(tmp_path / "g.zarr", to=tmp_path / "new.zarr", copy=tmp_path / "copy.zarr")
    assert report.n_lost_chunks == 0
    assert not verify(tmp_path / "new.zarr", level="decode").n_findings
    assert names(tmp_path / "new.zarr") == list(NAMES)


def test_compact_packs_strings(tmp_path: Path) -> None:
    text(tmp_path / "g.zarr", shards=(32,))
    shard = tmp_path / "g.zarr/names/c/0"
    data = shard.read_bytes()
    entries = np.frombuffer(data[-68:-4], "<u8").reshape(4, 2).copy()
    at = int(entries[3, 0])
    entries[3, 0] += 300
    index = entries.tobytes()
    shard.write_bytes(data[:at] + bytes(300) + data[at:-68] + index + crc32c(index).to_bytes(4, "little"))
    report = compact(tmp_path / "g.zarr")
    assert report.n_packed == 1 and shard.read_bytes() == data
    assert names(tmp_path / "g.zarr") == list(NAMES)


def test_against_compares_strings(tmp_path: Path) -> None:
    text(tmp_path / "g.zarr", shards=(32,))
    text(tmp_path / "v2.zarr", dtype=str, zarr_format=2, chunks=(11,))
    assert not verify(tmp_path / "g.zarr", against=tmp_path / "v2.zarr").n_findings
    with quiet():
        zarr.open_group(tmp_path / "v2.zarr")["names"][40] = "another"
    report = verify(tmp_path / "g.zarr", against=tmp_path / "v2.zarr")
    (shard,) = report.shards
    assert "1 of 32 elements" in shard.findings[0].detail and "(40,)" in shard.findings[0].detail


def test_bfloat16_is_decoded_compared_and_moved(tmp_path: Path) -> None:
    bfloat16(tmp_path / "a.zarr")
    assert not verify(tmp_path / "a.zarr", level="decode").n_findings
    (report,) = inspect(tmp_path / "a.zarr").arrays
    assert report.foreign_codec is None and report.layout is not None and report.layout.dtype == "bfloat16"
    assert methods(convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(12, 6))) == {"": "move"}
    assert is_sharded(tmp_path / "b.zarr", (12, 6))
    report = convert(tmp_path / "a.zarr", tmp_path / "c.zarr", chunks=(3, 3), shards=(6, 6), codecs=["zstd"])
    assert methods(report) == {"": "encode"}
    for name in "b.zarr", "c.zarr":
        assert not verify(tmp_path / name, against=tmp_path / "a.zarr").n_findings
        assert json.loads((tmp_path / name / "zarr.json").read_text())["data_type"] == "bfloat16"
        np.testing.assert_array_equal(bits(tmp_path / name), BITS)
    flip(tmp_path / "a.zarr/c/0/0", 20)
    assert verify(tmp_path / "a.zarr").n_findings == 1  # gzip has a checksum


@pytest.mark.parametrize(
    ("fill", "stored"), [(1.0, 0x3F80), ("0x4040", 0x4040), ("NaN", 0x7FC0), (1.004, 0x3F81)]
)
def test_fill_value_of_bfloat16_is_compared_by_its_bits(tmp_path: Path, fill: Any, stored: int) -> None:
    bfloat16(tmp_path / "a.zarr", fill=fill)
    with quiet():
        shutil.rmtree(tmp_path / "a.zarr/c")
        full = zarr.create_array(
            tmp_path / "b.zarr", shape=BITS.shape, chunks=(12, 6), dtype="uint16", fill_value=7
        )
        full[...] = stored
    edit(tmp_path / "b.zarr/zarr.json", data_type="bfloat16", fill_value=fill)
    convert(tmp_path / "b.zarr", tmp_path / "shards.zarr")
    assert not verify(tmp_path / "shards.zarr", against=tmp_path / "a.zarr").n_findings


def test_elements_that_cannot_be_compared_are_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `ml_dtypes` the bits of a fill value in fewer than 16 bits are not known, so an absent chunk cannot be compared."""
    hide_ml_dtypes(monkeypatch)
    bfloat16(tmp_path / "a.zarr", data_type="complex_float8_e5m2", fill=[1.5, 0.0])
    shutil.copytree(tmp_path / "a.zarr", tmp_path / "b.zarr")
    report = verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr", level="decode")
    assert report.kinds == {} and report.arrays[0].n_shards == 2  # equal bytes are equal elements
    other = next(
        path for path in sorted((tmp_path / "b.zarr").rglob("*")) if path.name.isdigit() and path.is_file()
    )
    data = bytearray(other.read_bytes())
    data[0] ^= 1
    other.write_bytes(data)
    report = verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr", level="decode")
    assert report.kinds == {"different": 1} and report.arrays[0].n_shards == 2
    assert "cannot be compared" in report.shards[0].findings[0].detail
    with pytest.raises(
        UnsupportedError, match=r"does not encode complex_float8_e5m2: inner chunks of .* differ"
    ):
        convert(tmp_path / "a.zarr", tmp_path / "c.zarr", chunks=(2, 6))
    assert methods(convert(tmp_path / "a.zarr", tmp_path / "c.zarr", shards=(12, 6))) == {"": "move"}


@pytest.mark.interop
@pytest.mark.parametrize("data_type", ["bfloat16", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_arrays_of_tensorstore(tmp_path: Path, data_type: str, driver: str) -> None:
    """TensorStore reads what `convert` makes of its own types, of Zarr v2 and v3."""
    ts = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    dtype = ts.dtype(data_type).numpy_dtype
    values = (np.arange(72).reshape(12, 6) % 7).astype(dtype)
    schema = {"dtype": data_type, "domain": {"shape": [12, 6]}, "chunk_layout": {"chunk": {"shape": [4, 3]}}}
    place = {"driver": "file", "path": str(tmp_path / "a.zarr")}
    array = ts.open({"driver": driver, "kvstore": place, "schema": schema, "create": True}).result()
    array[...] = values
    report = convert(tmp_path / "a.zarr", tmp_path / "moved.zarr", shards=(8, 6), level="compare")
    assert methods(report) == {"": "move"}
    report = convert(
        tmp_path / "a.zarr", tmp_path / "encoded.zarr", chunks=(2, 2), shards=(8, 6), level="compare"
    )
    assert methods(report) == {"": "encode"}
    for name in "moved.zarr", "encoded.zarr":
        place = {"driver": "file", "path": str(tmp_path / name)}
        new = ts.open({"driver": "zarr3", "kvstore": place}).result()
        assert new.dtype.name == data_type and new.chunk_layout.write_chunk.shape == (8, 6)
        np.testing.assert_array_equal(new.read().result().astype(float), values.astype(float))


@pytest.mark.parametrize("how", [{"zarr_format": 2, "dtype": str}, {}, {"shards": (16,)}])
def test_strings_get_the_new_layout(tmp_path: Path, how: dict[str, Any]) -> None:
    """Issue 30, 22: `convert --shards` copied the old layout of strings and said that it was complete."""
    text(tmp_path / "g.zarr", **how)
    text(
        tmp_path / "g.zarr",
        "scalar",
        values=np.array("one", dtype=object),
        **{**how, "chunks": "auto", "shards": None},
    )
    report = convert(tmp_path / "g.zarr", tmp_path / "a.zarr", shards=(32,), level="compare", only="names")
    assert methods(report) == {"names": "move"} and report.n_moved_chunks == 8
    report = convert(
        tmp_path / "g.zarr", tmp_path / "b.zarr", shards=4096, codecs=["zstd", "crc32c"], level="compare"
    )
    assert methods(report) == {"names": "zarr", "scalar": "move"}
    report = convert(
        tmp_path / "g.zarr", tmp_path / "c.zarr", chunks=(5,), shards=(20,), only="names", level="compare"
    )
    assert methods(report) == {"names": "zarr"}
    for name, shards, chunks in ("a", (32,), (8,)), ("b", (72,), (8,)), ("c", (20,), (5,)):
        new = zarr.open_array(tmp_path / f"{name}.zarr/names", mode="r")
        assert (new.shards, new.chunks, list(new[...])) == (shards, chunks, list(NAMES))
        copy, old = tmp_path / f"{name}.zarr", tmp_path / "g.zarr"
        assert not verify(copy, level="decode", against=old, only="names").n_findings
    assert names(tmp_path / "b.zarr", "scalar") == ["one"]


def test_strings_beside_an_array_with_other_axes_keep_their_chunks(tmp_path: Path) -> None:
    text(tmp_path / "g.zarr")
    text(tmp_path / "g.zarr", "sharded", shards=(16,))
    with quiet():
        zarr.open_group(tmp_path / "g.zarr")["names"][60:] = ""  # a chunk of fill values, and one at the edge
        zarr.create_array(tmp_path / "g.zarr", name="X", data=np.ones((8, 8)), chunks=(4, 4))
    report = convert(tmp_path / "g.zarr", tmp_path / "a.zarr", shards=(8, 8), level="compare")
    assert methods(report) == {"X": "move", "names": "move", "sharded": "move"}
    assert not verify(tmp_path / "a.zarr", against=tmp_path / "g.zarr").n_findings
    assert names(tmp_path / "a.zarr") == [*NAMES[:60], *[""] * 10]
    assert zarr.open_array(tmp_path / "a.zarr/sharded").shards == (16,)


def test_job_of_strings_is_resumed(tmp_path: Path) -> None:
    text(tmp_path / "g.zarr")
    job = tmp_path / "job.json"
    assert methods(convert(tmp_path / "g.zarr", tmp_path / "a.zarr", shards=(16,), job=job)) == {
        "names": "move"
    }
    report = convert(tmp_path / "g.zarr", tmp_path / "a.zarr", shards=(16,), job=job, resume=True)
    assert (report.n_skipped, report.n_written) == (5, 0)


def test_layout_that_nothing_can_make_is_refused(tmp_path: Path) -> None:
    """A type that only moves as bytes gets another layout as far as its chunks stay, or is refused; never the old one."""
    bfloat16(tmp_path / "g.zarr/a", data_type="no_such_type", shards=None)
    zarr.open_group(tmp_path / "g.zarr", mode="a")
    with pytest.raises(
        UnsupportedError, match=r"does not encode no_such_type: .* choose other arrays with --only"
    ):
        convert(tmp_path / "g.zarr", tmp_path / "b.zarr", chunks=(2, 2))
    assert not (tmp_path / "b.zarr").exists()
    assert methods(convert(tmp_path / "g.zarr", tmp_path / "b.zarr", shards=(8, 6))) == {"a": "move"}
    np.testing.assert_array_equal(bits(tmp_path / "b.zarr/a"), BITS)
    edit(tmp_path / "g.zarr/a/zarr.json", chunk_grid={"name": "no_such_grid"})
    with pytest.raises(
        UnsupportedError, match="expected chunks that can be moved or decoded for the new layout"
    ):
        convert(tmp_path / "g.zarr", tmp_path / "c.zarr", shards=(8, 6))


def test_objects_of_zarr_v2_are_named_as_left(tmp_path: Path) -> None:
    """Pickled objects have no data type in Zarr v3. They must not stop the other arrays of their group."""
    text(tmp_path / "g.zarr", zarr_format=2, dtype=str)
    text(tmp_path / "g.zarr", "packed", zarr_format=2, dtype=str)
    text(tmp_path / "g.zarr", "pickled", zarr_format=2, dtype=str)
    numcodecs = pytest.importorskip("numcodecs")
    edit(tmp_path / "g.zarr/pickled/.zarray", filters=[{"id": "pickle", "protocol": 5}])
    shutil.rmtree(tmp_path / "g.zarr/packed")
    text(tmp_path / "g.zarr", "packed", zarr_format=2, dtype=str, compressors=numcodecs.BZ2())
    report = convert(tmp_path / "g.zarr", tmp_path / "a.zarr", shards=(32,))
    assert methods(report) == {"names": "move", "packed": "zarr"}
    assert [one.name for one in report.left_arrays] == ["pickled"]
    assert names(tmp_path / "a.zarr") == names(tmp_path / "a.zarr", "packed") == list(NAMES)
    with pytest.raises(UnsupportedError, match="pickled"):
        convert(tmp_path / "g.zarr", tmp_path / "b.zarr", only="pickled")
    shutil.copytree(tmp_path / "g.zarr/pickled", tmp_path / "g.zarr/more")
    with pytest.raises(UnsupportedError, match=r"more: .*; pickled: .*; choose other arrays"):
        convert(tmp_path / "g.zarr", tmp_path / "b.zarr", exclude=["names", "packed"])
    assert not (tmp_path / "b.zarr").exists()


def test_xarray_masks_the_same_strings(tmp_path: Path) -> None:
    """In Zarr v2 xarray masks strings that are the fill value; 0, as zarr-python 2 writes it, and null mask none."""
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset({"n": ("x", np.array(["a", "", "c"], dtype=object))})
    with quiet():
        data.to_zarr(tmp_path / "a.zarr", zarr_format=2, consolidated=False)
    for number, fill in enumerate([None, "", 0]):
        edit(tmp_path / "a.zarr/n/.zarray", fill_value=fill)
        convert(tmp_path / "a.zarr", tmp_path / f"{number}.zarr")
        with quiet():
            old, new = (
                [one != one for one in xarray.open_zarr(tmp_path / name, consolidated=False).n.values]
                for name in ("a.zarr", f"{number}.zarr")
            )
        assert old == new == [False, fill == "", False]


def test_strings_of_hdf5(tmp_path: Path) -> None:
    """One column of names, as in every AnnData file, stopped the conversion of the whole file."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = np.arange(70)
        for name, how in ("names", {}), ("chunked", {"chunks": (30,), "compression": "gzip"}):
            file.create_dataset(f"obs/{name}", data=list(NAMES), dtype=h5py.string_dtype(), **how)
        file["title"] = "one"
        file.create_dataset("none", shape=(0,), dtype=h5py.string_dtype())
    report = convert(tmp_path / "a.h5", tmp_path / "a.zarr", shards=4096, level="compare")
    strings = {"obs/chunked": "zarr", "obs/names": "zarr", "title": "zarr", "none": "zarr"}
    assert methods(report) == {"X": "encode", **strings}
    assert names(tmp_path / "a.zarr", "obs/names") == names(tmp_path / "a.zarr", "obs/chunked") == list(NAMES)
    assert names(tmp_path / "a.zarr", "title") == ["one"] and names(tmp_path / "a.zarr", "none") == []
    assert not verify(tmp_path / "a.zarr", level="decode").n_findings


SHAPE, SHARD, CHUNK = (13, 20), (8, 12), (4, 6)


def document_of(data_type: Any, codecs: list[Json], sharded: bool) -> Json:
    return typed_metadata(data_type, codecs, SHAPE, CHUNK, SHARD if sharded else None)


def stored(place: Path, document: Json) -> np.ndarray[Any, Any]:
    """Write an array; return its elements."""
    place.mkdir()
    (place / "zarr.json").write_text(json.dumps(document))
    array = shardcodec.open_array(place, mode="r+")
    values = (np.arange(260).reshape(SHAPE) % 2).astype(array.dtype)
    array[...] = values
    return values


PACKED = [("int4", {}), ("int4", {"last_bit": 2}), ("uint2", {"padding_encoding": "first_byte"})]
PACKED += [("bfloat16", {"first_bit": 4}), ("float6_e3m2fn", {}), ("float8_e5m2", {})]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("data_type", "configuration"), PACKED, ids=str)
def test_tools_decode_packed_types(
    tmp_path: Path, data_type: str, configuration: Json, sharded: bool
) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    place = tmp_path / "a.zarr"
    codecs = [named("packbits", **configuration), named("crc32c")]
    values = stored(place, document_of(data_type, codecs, sharded))
    (report,) = tools.inspect(place).arrays
    assert report.foreign_codec is None and report.layout is not None
    assert report.layout.dtype == data_type and "moved as bytes" not in str(report)
    assert tools.verify(place, level="decode").n_unchecked == 0

    shutil.copytree(place, tmp_path / "same.zarr")
    assert tools.verify(place, against=tmp_path / "same.zarr").n_findings == 0
    for name, choices in (
        ("moved.zarr", {}),
        ("packed.zarr", {"chunks": (5, 5), "shards": (10, 10)}),
        ("plain.zarr", {"codecs": ("bytes", "zstd")}),
    ):
        new = tmp_path / name
        assert tools.convert(place, new, **choices).n_failed == 0
        array = shardcodec.open_array(new)
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(array[...], values)
        assert ("packbits" in (new / "zarr.json").read_text()) == (name != "plain.zarr")
        assert tools.verify(new, level="decode", against=place).n_findings == 0
    tools.convert(tmp_path / "plain.zarr", tmp_path / "again.zarr", codecs=("packbits",), chunks=(5, 5))
    np.testing.assert_array_equal(shardcodec.open_array(tmp_path / "again.zarr")[...], values)
    other = shardcodec.open_array(tmp_path / "same.zarr", mode="r+")
    other[3, 3] = 1 - other[3, 3]
    assert tools.verify(place, against=tmp_path / "same.zarr").n_findings == 1


@pytest.mark.parametrize("name", ML_NBYTES)
def test_integers_stand_for_packed_types(name: str) -> None:
    """Name and bits are enough, so the tools need no `ml_dtypes`; the engine stores the same bytes for both."""
    parsed = byte_document(document_of(name, [named("packbits")], True))
    assert parsed.codec is None and parsed.data_type == name and parsed.has_fill
    assert parse_data_type(parsed.document["data_type"]).itemsize == ML_NBYTES[name]
    too_many = document_of(name, [named("packbits", last_bit=16)], True)
    with pytest.raises(SpecError, match=f"at most .* for {name}, got 16"):
        byte_document(too_many)


def test_tools_need_no_ml_dtypes_for_packed_types(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    place = tmp_path / "a.zarr"
    stored(place, document_of("int4", [named("packbits")], False))
    (place / "c/0/0").write_bytes(b"123")
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from shardcodec import tools\n"
        "report = tools.verify(sys.argv[1], level='decode')\n"
        "assert (report.n_findings, report.n_unchecked) == (1, 0), str(report)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(place)], check=True, timeout=120)


def rows() -> list[Any]:
    """Return a case for each codec of fixed size and each type in which the tests compare it with zarr; `bytes` and packed types too."""
    every = [
        pytest.param(row.name, *case.values[1:], id=case.id, marks=case.marks)
        for row in codec_rows.ROWS
        for case in codec_rows.cases_of(row)
        if row.name not in COMPRESSORS
    ]
    every += [pytest.param("packbits", {}, name, id=f"packbits-{name}") for name in ML_NBYTES]
    return [*every, pytest.param("bytes", {"endian": "little"}, "int16", id="bytes-int16")]


@pytest.mark.parametrize(("name", "configuration", "dtype"), rows())
def test_tools_forget_no_codec(tmp_path: Path, name: str, configuration: Json, dtype: str) -> None:
    """Verify finds a plain chunk of a wrong size, whatever the codec."""
    if dtype in ML_NBYTES:
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    kind = next(row.codec.kind for row in ROWS if name in row.names)
    codec, serializer = named(name, **configuration), named("bytes", endian="little")
    codecs = {
        "array -> array": [codec, serializer],
        "array -> bytes": [codec],
        "bytes -> bytes": [serializer, codec],
    }
    place = tmp_path / "a.zarr"
    stored(place, document_of(dtype, codecs[kind], False))
    assert tools.verify(place).n_unchecked == 0
    path = place / "c/0/0"
    path.write_bytes(path.read_bytes()[:-1])
    report = tools.verify(place)
    assert report.n_findings == 1 and report.n_unchecked == 0, str(report)


LITTLE = [{"name": "bytes", "configuration": {"endian": "little"}}]
needs_grids = pytest.mark.skipif(
    "rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only"
)


def group(path: Path, data_type: str, fill: Any, grid: dict[str, Any]) -> Path:
    """Make a group with an array `r` that has this grid, and a regular one."""
    with quiet():
        zarr.create_group(path).create_array("a", shape=(8,), chunks=(4,), dtype="int32")[...] = 1
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [6], "data_type": data_type, "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill, "codecs": LITTLE,
    }  # fmt: skip
    (path / "r/c").mkdir(parents=True)
    (path / "r/zarr.json").write_text(json.dumps(document))
    return path


RECTILINEAR = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 4]]}}
REGULAR = {"name": "regular", "configuration": {"chunk_shape": [3]}}


@pytest.mark.parametrize("data_type", ["bfloat16", "int4", "float8_e4m3"])
def test_one_with_a_foreign_type_comes_along_as_it_is(data_type: str, tmp_path: Path) -> None:
    path = group(tmp_path / "old", data_type, 0, RECTILINEAR)
    (path / "r/c/0").write_bytes(b"abcd")
    report = convert(path, tmp_path / "new")
    assert report.is_complete
    assert (tmp_path / "new/r/c/0").read_bytes() == b"abcd"
    assert inspect(path).n_arrays == 2 and verify(path).n_unchecked
    assert repair(path, to=tmp_path / "repaired").left_arrays[0].name == "r"
    assert compact(path, to=tmp_path / "packed").is_complete


@needs_grids
def test_elements_are_compared_with_those_of_a_rectilinear_array(tmp_path: Path) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}), quiet():
        old = group(tmp_path / "old", "int32", 0, RECTILINEAR)
        new = group(tmp_path / "new", "int32", 0, REGULAR)
        for path in (old, new):
            zarr.open_array(path / "r", mode="r+")[...] = np.arange(6)
        assert not verify(new, against=old).n_findings
        (new / "r/c/1").unlink()
        assert verify(new, against=old).kinds == {"missing shard": 1}
        report = repair(new, to=tmp_path / "repaired", copy=old)
        assert report.n_restored == 1
        assert (zarr.open_array(tmp_path / "repaired/r", mode="r")[...] == np.arange(6)).all()
        assert verify(old, against=new).n_unchecked
