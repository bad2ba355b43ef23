# test_convert_hdf5.py - convert: datasets of HDF5 that Zarr v3 has no type for, structs with gaps, unlimited dimensions
# SPDX-License-Identifier: MIT
"""One dataset without a data type of Zarr v3 does not stop the conversion of its file; the report names it."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from helpers import quiet

import shardcodec
from shardcodec.cli.app import run
from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert, run_part, verify
from shardcodec.tools.convert import hdf5_source
from shardcodec.tools.convert.convert import plan_convert

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

VALUES = np.arange(12.0).reshape(3, 4)


def stored(new: Path, path: str) -> Any:
    with quiet():  # zarr 3.1 cannot read shards of structs itself
        return shardcodec.attach(zarr.open_array(new / path, mode="r"))[...]


@pytest.mark.parametrize("text", ["hello", "", "é"])
def test_single_text_equals_its_copy(text: str, tmp_path: Path) -> None:
    """`verify --against` compared 16 bytes of the text with the element, and called every single text different."""
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.create_dataset("text", data=text, dtype=h5py.string_dtype())
    convert(tmp_path / "old.h5", tmp_path / "new")
    assert verify(tmp_path / "new", against=tmp_path / "old.h5").n_findings == 0
    with quiet():
        zarr.open_array(tmp_path / "new/text", mode="r+")[...] = "other"
    assert verify(tmp_path / "new", against=tmp_path / "old.h5").kinds == {"different": 1}


def time_type(file: Any) -> None:
    space = h5py.h5s.create_simple((3,))
    h5py.h5d.create(file["uns"].id, b"odd", h5py.h5t.UNIX_D32LE, space)


def odd_integers(file: Any) -> None:
    kind = h5py.h5t.NATIVE_INT32.copy()
    kind.set_size(3)
    h5py.h5d.create(file["uns"].id, b"odd", kind, h5py.h5s.create_simple((3,)))


TEXT_TABLE = [("names", h5py.string_dtype()), ("score", "f4")]
ODD: dict[str, Callable[[Any], Any]] = {
    "a table with text": lambda file: file.create_dataset("uns/odd", data=np.array([("a", 1)], TEXT_TABLE)),
    "a table of references": lambda file: file.create_dataset("uns/odd", (2,), [("group", h5py.ref_dtype)]),
    "a table of lists": lambda file: file.create_dataset("uns/odd", (2,), [("x", h5py.vlen_dtype("f8"))]),
    "a table of arrays": lambda file: file.create_dataset("uns/odd", (2,), [("x", "f4", (3,))]),
    "no elements": lambda file: file.create_dataset("uns/odd", data=h5py.Empty("f4")),
    "no text": lambda file: file.create_dataset("uns/odd", data=h5py.Empty(h5py.string_dtype())),
    "references": lambda file: file.create_dataset("uns/odd", (1,), h5py.ref_dtype),
    "regions": lambda file: file.create_dataset("uns/odd", (1,), h5py.regionref_dtype),
    "lists": lambda file: file.create_dataset("uns/odd", (2,), h5py.vlen_dtype("i4")),
    "lists of text": lambda file: file.create_dataset("uns/odd", (2,), h5py.vlen_dtype(h5py.string_dtype())),
    "arrays": lambda file: file.create_dataset("uns/odd", (2,), np.dtype(("f4", (3,)))),
    "long doubles": lambda file: file.create_dataset("uns/odd", (2,), "longdouble"),
    "times": time_type,
    "integers of 3 bytes": odd_integers,
}


@pytest.mark.parametrize("kind", ODD)
def test_dataset_without_a_type_is_left_out_and_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One such dataset was the end of the whole file: of most MATLAB files, of NWB and h5ad."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = VALUES
        file["uns/even"] = np.arange(3)
        file["uns"].attrs["column-order"] = ["even", "odd"]
        ODD[kind](file)
    assert run(["convert", str(tmp_path / "a.h5"), str(tmp_path / "new"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (left,) = report["left_arrays"]
    assert left["name"] == "uns/odd" and left["problem"] and not left["is_unreadable"]
    assert report["is_complete"]
    assert (stored(tmp_path / "new", "X") == VALUES).all()
    with quiet():
        assert sorted(zarr.open_group(tmp_path / "new/uns", mode="r").array_keys()) == ["even"]
    ((missing,),) = (one.findings for one in verify(tmp_path / "new", against=tmp_path / "a.h5").shards)
    assert missing.array == "uns/odd" and f"`convert` leaves it out: {left['problem']}" in missing.detail
    for how in ({"only": "uns/odd"}, {"only": "uns/od*"}):  # nothing else was asked for
        with pytest.raises(UnsupportedError, match="uns/odd"):
            convert(tmp_path / "a.h5", tmp_path / "none", **how)
    with pytest.raises(UnsupportedError, match="uns/odd"):
        convert(tmp_path / "a.h5/uns/odd", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_plan_names_what_is_left_out_and_its_parts_go_on(tmp_path: Path) -> None:
    """The reports of the parts, and that of a job that was resumed, did not name it."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = VALUES
        ODD["lists"](file.create_group("uns").file)
    planned = plan_convert(str(tmp_path / "a.h5"), str(tmp_path / "new"), str(tmp_path / "job.json"), parts=1)
    assert [one.name for one in planned.left_arrays] == ["uns/odd"]
    part = run_part(str(tmp_path / "job.json"), 0)
    assert part.is_complete and part.left_arrays == planned.left_arrays
    for resume in (False, True):
        done = convert(
            str(tmp_path / "a.h5"), str(tmp_path / "job"), job=str(tmp_path / "kept.json"), resume=resume
        )
        assert done.is_complete and done.left_arrays == planned.left_arrays


def matlab(file: Any) -> list[str]:
    """A file of MATLAB 7.3: cells are references into ``#refs#``, no elements are the shape of none."""
    file["image"] = VALUES
    file["image"].attrs["MATLAB_class"] = np.bytes_(b"double")
    file["#refs#/a"] = np.frombuffer("text".encode("utf-16-le"), "<u2")[:, None]
    file["cells"] = np.array([[file["#refs#/a"].ref]], h5py.ref_dtype)
    file["struct/gain"] = np.array([[2.0]])
    file["empty"] = np.array([0, 0], "u8")
    file["empty"].attrs["MATLAB_empty"] = np.uint8(1)
    return ["cells"]


def nwb(file: Any) -> list[str]:
    """Electrodes of NWB: a table of columns, one of which has references to groups."""
    table = file.create_group("general/extracellular_ephys/electrodes")
    file.create_group("general/extracellular_ephys/shank0")
    table["id"] = np.arange(2)
    table["location"] = np.array(["CA1", "CA3"], h5py.string_dtype())
    table["group"] = np.array([file["general/extracellular_ephys/shank0"].ref] * 2, h5py.ref_dtype)
    table.attrs["colnames"] = ["location", "group"]
    file["acquisition/series/data"] = VALUES
    file["acquisition/series/data"].attrs["unit"] = "volts"
    spans = file.create_dataset(
        "intervals/epochs/timeseries", (1,), [("idx_start", "i4"), ("timeseries", h5py.ref_dtype)]
    )
    spans.attrs["description"] = "of epochs"
    return ["general/extracellular_ephys/electrodes/group", "intervals/epochs/timeseries"]


def h5ad(file: Any) -> list[str]:
    """A file of AnnData after ``rank_genes_groups``, with records of text and a None."""
    file.attrs["encoding-type"] = "anndata"
    file["X"] = VALUES
    records = np.array([("g1", "g2"), ("g3", "g4")], [("0", h5py.string_dtype()), ("1", h5py.string_dtype())])
    file.create_dataset("uns/rank_genes_groups/names", data=records)
    file["uns/rank_genes_groups/scores"] = np.zeros(2, [("0", "f4"), ("1", "f4")])
    file["uns/log1p/base"] = h5py.Empty("f4")
    file["uns/log1p/base"].attrs["encoding-type"] = "null"
    return ["uns/log1p/base", "uns/rank_genes_groups/names"]


@pytest.mark.parametrize("write", [matlab, nwb, h5ad])
def test_files_of_matlab_nwb_and_scanpy(write: Callable[[Any], list[str]], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        expected = write(file)
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert report.is_complete
    assert sorted(one.name for one in report.left_arrays) == expected
    with h5py.File(tmp_path / "a.h5") as file:
        for array in report.arrays:
            values = file[array.name].asstr()[...] if array.dtype == "string" else file[array.name][...]
            assert np.array_equal(stored(tmp_path / "new", array.name), values)


def test_undefined_fill_value_is_the_default(tmp_path: Path) -> None:
    """It was a traceback of h5py, which `--exclude` of the dataset did not help."""
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    undefine = ctypes.CDLL(h5py.h5p.__file__).H5Pset_fill_value
    undefine.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    assert undefine(created.id, h5py.h5t.NATIVE_INT32.id, None) == 0
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple((3,))
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, created)
        h5py.Dataset(made)[...] = [4, 5, 6]
        with pytest.raises(RuntimeError):
            _ = file["x"].fillvalue
    assert convert(tmp_path / "a.h5", tmp_path / "new").is_complete
    assert stored(tmp_path / "new", "x").tolist() == [4, 5, 6]
    with quiet():
        assert zarr.open_array(tmp_path / "new/x", mode="r").fill_value == 0


PADDED = np.dtype([("flag", "u1"), ("time", "<u8"), ("value", "<u2")], align=True)
STRUCTS = {
    "gaps": PADDED,
    "gap at the end": np.dtype({"names": ["a"], "formats": ["<u2"], "offsets": [0], "itemsize": 7}),
    "another order": np.dtype({"names": ["a", "b"], "formats": ["<u4", ">u2"], "offsets": [2, 0]}),
    "nested": np.dtype([("id", "u1"), ("inner", PADDED)], align=True),
    "text and times": np.dtype([("name", "S3"), ("value", "c16"), ("ok", "?")], align=True),
}


@pytest.mark.parametrize("shards", [None, 1 << 20])
@pytest.mark.parametrize("kind", STRUCTS)
def test_struct_with_gaps_is_packed(kind: str, shards: int | None, tmp_path: Path) -> None:
    """Each C struct with fields of several sizes has gaps, which no metadata of Zarr v3 can describe."""
    table = np.zeros(5, STRUCTS[kind])
    table.view("u1")[...] = np.arange(table.nbytes) % 2
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"] = table
    report = convert(tmp_path / "a.h5", tmp_path / "new", shards=shards, level="compare")
    assert report.is_complete and not report.left_arrays
    new = stored(tmp_path / "new", "t")
    assert new.dtype.itemsize < table.dtype.itemsize or kind == "another order"
    assert new.tolist() == table.tolist()
    with quiet():  # zarr 3.1 cannot read shards of structs
        if shards is None:
            assert zarr.open_array(tmp_path / "new/t", mode="r")[...].tolist() == table.tolist()


def test_names_of_an_enumeration_are_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=[0, 1, 0], dtype=h5py.enum_dtype({"off": 0, "on": 1}, "i1"))
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert stored(tmp_path / "new", "x").tolist() == [0, 1, 0]
    assert any("'on': 1" in note for note in report.arrays[0].notes)


def write_unequal(path: Path) -> None:
    """Write a file as netCDF4 has it, whose variables on one unlimited dimension are stored to different lengths."""
    with h5py.File(path, "w") as file:
        time = file.create_dataset("time", data=np.arange(4.0), maxshape=(None,), fillvalue=-1)
        time.make_scale("time")
        x = file.create_dataset("x", data=np.arange(3))
        x.make_scale("x")
        for name, n, fill in (("full", 6, -1), ("late", 4, -5), ("never", 0, -7), ("sub/inner", 2, 9)):
            chunks = {"maxshape": (None, 3), "chunks": (2, 3), "fillvalue": fill}
            made = file.create_dataset(name, data=np.arange(3.0 * n).reshape(n, 3), **chunks)
            made.dims[0].attach_scale(time)
            made.dims[1].attach_scale(x)
            made.attrs["_FillValue"] = np.array([fill], "f8")
        text = file.create_dataset("text", data=["a", "b"], maxshape=(None,), dtype=h5py.string_dtype())
        text.dims[0].attach_scale(time)


def test_unlimited_dimensions_are_filled_up(tmp_path: Path) -> None:
    """xarray could not open the copy: its variables had other lengths along one axis."""
    write_unequal(tmp_path / "a.nc")
    report = convert(tmp_path / "a.nc", tmp_path / "new", shards={"time": 4}, level="compare")
    shapes = {one.name: one.shape for one in report.arrays}
    assert shapes == {
        "full": (6, 3),
        "late": (6, 3),
        "never": (6, 3),
        "sub/inner": (6, 3),
        "text": (6,),
        "time": (6,),
        "x": (3,),
    }
    assert stored(tmp_path / "new", "late").tolist() == [
        *np.arange(12.0).reshape(4, 3).tolist(),
        *[[-5] * 3] * 2,
    ]
    assert stored(tmp_path / "new", "text").tolist() == ["a", "b", "", "", "", ""]
    assert stored(tmp_path / "new", "time").tolist() == [0, 1, 2, 3, -1, -1]
    noted = {one.name for one in report.arrays if any("unlimited" in note for note in one.notes)}
    assert noted == {*shapes} - {"full", "x"}
    with quiet(), xarray.open_zarr(tmp_path / "new", consolidated=False) as new:
        assert new["never"].isnull().all() and new["late"].notnull().sum() == 12
    assert not verify(tmp_path / "new", against=tmp_path / "a.nc").n_findings


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_filled_up_copy_equals_what_xarray_reads(engine: str, tmp_path: Path) -> None:
    netcdf = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    pytest.importorskip("h5netcdf", reason="h5netcdf is not installed")
    with netcdf.Dataset(tmp_path / "a.nc", "w") as file:
        for name, n in (("time", None), ("x", 3), ("letters", 2)):
            file.createDimension(name, n)
        file.createVariable("time", "f8", ("time",))[0:6] = np.arange(6)
        file.createVariable("full", "f4", ("time", "x"), fill_value=-1)[0:6] = np.arange(18).reshape(6, 3)
        file.createVariable("late", "f4", ("time", "x"))[0:4] = 7  # with the fill value of netCDF
        file.createVariable("never", "i4", ("time",), fill_value=-7)
        if engine == "netcdf4":  # h5netcdf 1.8 does not fill up arrays of letters
            file.createVariable("text", "S1", ("time", "letters"))[0:2] = np.array(
                [[b"a", b"b"], [b"c", b"d"]]
            )
        file.createGroup("sub").createVariable("deep", "i8", ("time",))[0:2] = 1
    assert convert(tmp_path / "a.nc", tmp_path / "new").is_complete
    for group in (None, "sub"):
        with (
            quiet(),
            xarray.open_dataset(tmp_path / "a.nc", engine=engine, group=group) as old,
            xarray.open_zarr(tmp_path / "new", group=group, consolidated=False) as new,
        ):
            xarray.testing.assert_equal(old.load(), new.load())


def test_scales_of_a_fixed_length_are_not_filled_up(tmp_path: Path) -> None:
    """The edges of bins are one more than the bins."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["edges"] = np.arange(5.0)
        file["edges"].make_scale("edges")
        file["counts"] = np.arange(4)
        file["counts"].dims[0].attach_scale(file["edges"])
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert {one.name: one.shape for one in report.arrays} == {"counts": (4,), "edges": (5,)}


NAN, INF = np.nan, np.inf
MISSING: dict[str, tuple[dict[str, Any], list[bool]]] = {
    "NaN and a number": ({"missing_value": np.array([NAN, -99])}, [0, 1, 1, 0, 0]),
    "NaN": ({"missing_value": NAN}, [0, 0, 1, 0, 0]),
    "NaN beside a mask": ({"missing_value": [NAN, -99.0], "_FillValue": -98.0}, [0, 1, 1, 1, 0]),
    "NaN in both": ({"missing_value": [NAN, -99.0, -98.0], "_FillValue": NAN}, [0, 1, 1, 1, 0]),
    "infinity": ({"missing_value": [INF, -99.0]}, [0, 1, 1, 0, 1]),
    "infinity beside a mask": ({"missing_value": [INF, NAN], "_FillValue": -98.0}, [0, 0, 1, 1, 1]),
    "numbers": ({"missing_value": [-98.0, -99.0]}, [0, 1, 1, 1, 0]),
}


@pytest.mark.parametrize("source", ["HDF5", "Zarr v2"])
@pytest.mark.parametrize("kind", MISSING)
def test_missing_value_that_json_does_not_have_keeps_its_mask(kind: str, source: str, tmp_path: Path) -> None:
    """NaN became a text, and beside a text xarray took all numbers for texts, so nothing was masked."""
    attributes, expected = MISSING[kind]
    values = np.array([1, -99, NAN, -98, INF], "f4")
    if source == "HDF5":
        with h5py.File(tmp_path / "old", "w") as file:
            file["v"], file["x"] = values, np.arange(5)
            file["x"].make_scale("x")
            file["v"].dims[0].attach_scale(file["x"])
            file["v"].attrs.update({name: np.array(value, "f4") for name, value in attributes.items()})
    else:
        with quiet():
            group = zarr.create_group(tmp_path / "old", zarr_format=2)
            given = {"_ARRAY_DIMENSIONS": ["x"], **{k: np.asarray(v).tolist() for k, v in attributes.items()}}
            group.create_array("v", shape=(5,), dtype="f4", fill_value=None, attributes=given)[...] = values
    convert(tmp_path / "old", tmp_path / "new")
    json.loads((tmp_path / "new/v/zarr.json").read_text(), parse_constant=pytest.fail)
    with quiet(), xarray.open_zarr(tmp_path / "new", consolidated=False) as new:
        assert new["v"].isnull().values.tolist() == list(map(bool, expected))


def test_chunks_that_do_not_exist_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`convert` read each chunk of a nearly empty dataset, and `verify --against` walked its grid: 250,000 shards took minutes."""
    file = tmp_path / "sparse.h5"
    struct = np.dtype([("a", "<i4"), ("b", "<f8")])
    with h5py.File(file, "w") as opened:
        a = opened.create_dataset("a", shape=(4000,), chunks=(4,), dtype="i4", fillvalue=-1)
        a[:4], a[400:404], a[3996:] = 1, 2, 3
        opened.create_dataset("s", shape=(40, 64), maxshape=(None, 64), chunks=(3, 5), dtype=struct)[5, 7] = (
            1,
            2,
        )
        opened.create_dataset("f", shape=(100, 9), chunks=(7, 2), dtype="f4", fillvalue=np.nan)[50:52, 3:] = 5
    original, reads = h5py.Dataset.__getitem__, []

    def counted(values: Any, *args: Any, **how: Any) -> Any:
        reads.append(args)
        return original(values, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(h5py.Dataset, "__getitem__", counted)
        report = convert(file, tmp_path / "new", shards={"a": (16,), "f": (14, 4)})
        stored = [one for one in (tmp_path / "new").rglob("*") if one.is_file() and one.name != "zarr.json"]
        assert report.n_written - report.n_empty == len(stored)
        assert not verify(tmp_path / "new", against=file).n_findings
        assert len(reads) < 60
    with h5py.File(file, "r+") as opened:
        for name in ("a", "s", "f"):
            new = zarr.open_array(tmp_path / "new" / name, mode="r")
            np.testing.assert_array_equal(new[...], opened[name][...])
        opened["a"][2000:2004] = 5
    assert verify(tmp_path / "new", against=file).kinds == {"missing shard": 1}


def tagged_bytes(file: Any) -> None:
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, 4)
    kind.set_tag(b"of another program")
    h5py.h5d.create(file.id, b"odd", kind, h5py.h5s.create_simple((2,)))


def links_to_one_another(file: Any) -> None:
    file["odd"], file["other"] = h5py.SoftLink("/other"), h5py.SoftLink("/odd")


def link_to_itself(file: Any) -> None:
    file["odd"] = h5py.SoftLink("/odd")


def link_to_the_root(file: Any) -> None:
    file["odd"] = file["/"]


@pytest.mark.parametrize("write", [tagged_bytes, links_to_one_another, link_to_itself, link_to_the_root])
def test_what_h5py_cannot_open_is_left_out_and_named(write: Callable[[Any], None], tmp_path: Path) -> None:
    """Links that lead to one another refused the whole file, and a group in itself was left out without a word."""
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["data"] = VALUES
        write(file)
    report = convert(tmp_path / "old.h5", tmp_path / "new")
    assert report.is_complete
    assert "odd" in [one.name.rstrip("/") for one in (*report.left_arrays, *report.others.left)]
    assert (stored(tmp_path / "new", "data") == VALUES).all()
    assert convert(tmp_path / "old.h5", tmp_path / "part", exclude=["odd", "other"]).is_complete


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Such a name refused the whole file, and that of an attribute became the text "b'...'"."""
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["data"] = VALUES
        space = h5py.h5s.create_simple((3,))
        dataset = h5py.h5d.create(file.id, b"caf\xe9", h5py.h5t.NATIVE_INT32, space)
        h5py.h5a.create(dataset, b"\xe9", h5py.h5t.NATIVE_INT32, h5py.h5s.create(h5py.h5s.SCALAR))
    convert(tmp_path / "old.h5", tmp_path / "new")
    with quiet():
        array = zarr.open_array(tmp_path / "new" / os.fsdecode(b"caf\xe9"), mode="r")
    assert array.shape == (3,) and dict(array.attrs) == {"é": 0}
    assert verify(tmp_path / "new", against=tmp_path / "old.h5").n_findings == 0


@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".shardcodec-job", "..", "a\\b"])
def test_name_that_zarr_cannot_have_is_left_out_and_named(name: str, tmp_path: Path) -> None:
    """It refused the whole file."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = VALUES
        file.create_group("sub").create_dataset(name, data=[1])
        file.create_group("in").create_group(name)["x"] = [1]
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert report.is_complete
    assert {one.name for one in report.left_arrays} == {f"sub/{name}", f"in/{name}"}
    assert all(repr(name) in one.reason for one in report.left_arrays)
    assert (stored(tmp_path / "new", "good") == VALUES).all()
    with quiet():
        assert sorted(dict(zarr.open_group(tmp_path / "new", mode="r").members(None))) == [
            "good",
            "in",
            "sub",
        ]
    assert not verify(tmp_path / "new", against=tmp_path / "a.h5", only="good").n_findings
    refusal = "consists of periods only" if name == ".." else "can be written"
    with pytest.raises(ValueError, match=refusal):
        convert(tmp_path / "a.h5", tmp_path / "none", only=["good", f"sub/{name}"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("n_checked", [1, 5, 1 << 16])
def test_text_that_is_not_utf8_is_left_out_and_named_with_its_element(
    n_checked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report named neither the dataset nor the element, and no other array of the file could be opened."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10)
        for name, encoding, bad in ("t", "utf-8", b"\xff"), ("s", "ascii", b"\xe9"):
            texts = file.create_dataset(name, (3, 4), h5py.string_dtype(encoding), chunks=(2, 2))
            texts[...] = b"a"
            texts[2, 1] = bad
        file.create_dataset("scalar", data=b"\xff", dtype=h5py.string_dtype())
        file.create_dataset("sound", data=["é", ""] * 5, dtype=h5py.string_dtype(), chunks=(3,))
    monkeypatch.setattr(hdf5_source, "_N_CHECKED", n_checked)
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert report.is_complete
    assert {one.name: one.reason for one in report.left_arrays} == {
        "t": "element (2, 1): expected text in UTF-8, got b'\\xff'",
        "s": "element (2, 1): expected text in ASCII, got b'\\xe9'",
        "scalar": "element (): expected text in UTF-8, got b'\\xff'",
    }
    assert stored(tmp_path / "new", "sound").tolist() == ["é", ""] * 5
    assert not verify(tmp_path / "new", against=tmp_path / "a.h5", only=["x", "sound"]).n_findings
    with pytest.raises(UnsupportedError, match=r"a\.h5/t: element \(2, 1\)"):
        convert(tmp_path / "a.h5", tmp_path / "none", only=["t", "x"])
    assert not (tmp_path / "none").exists()


def test_dataset_whose_external_raw_data_are_missing_is_left_out(tmp_path: Path) -> None:
    """It left the whole conversion incomplete, without metadata."""
    (tmp_path / "raw").write_bytes(np.arange(10, dtype="int32").tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10)
        file.create_dataset("e", (10,), "int32", external=[(str(tmp_path / "raw"), 0, 40)])
    convert(tmp_path / "a.h5", tmp_path / "whole")
    assert zarr.open_array(tmp_path / "whole/e", mode="r")[...].tolist() == list(range(10))
    (tmp_path / "raw").unlink()
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert report.is_complete
    assert [one.name for one in report.left_arrays] == ["e"]
    assert "external raw data cannot be read" in report.left_arrays[0].reason
    with pytest.raises(UnsupportedError, match=r"a\.h5/e: its external raw data cannot be read"):
        convert(tmp_path / "a.h5", tmp_path / "one", only="e")
    assert not verify(tmp_path / "new", against=tmp_path / "a.h5", only="x").n_findings


def test_scale_of_another_length_gives_no_name(tmp_path: Path) -> None:
    """xarray refused the copy: conflicting sizes for the dimension of this name."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones((4, 5))
        for axis, (name, values) in enumerate({"t": np.arange(3), "y": np.arange(5)}.items()):
            file[name] = values
            file[name].make_scale(name)
            file["x"].dims[axis].attach_scale(file[name])
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    notes = {one.name: one.notes for one in report.arrays}
    assert notes["x"] == ("axis 0 of 4 elements has no name, because its scale '/t' has 3 elements",)
    assert not notes["t"] and not notes["y"]
    with quiet():
        found = xarray.open_zarr(tmp_path / "new", consolidated=False)
    assert (found.x.dims[1], found.sizes["t"], found.sizes["y"]) == ("y", 3, 5)


REFERENCES = h5py.vlen_dtype(h5py.ref_dtype)
MALFORMED: dict[str, tuple[str, Any, Any]] = {
    "no lists": ("DIMENSION_LIST", [None] * 2, h5py.ref_dtype),
    "one reference": ("DIMENSION_LIST", None, h5py.ref_dtype),
    "numbers": ("DIMENSION_LIST", [1, 2], "i8"),
    "lists for more axes": ("DIMENSION_LIST", [[None]] * 5, REFERENCES),
    "labels that are numbers": ("DIMENSION_LABELS", [1, 2], "i8"),
    "labels for more axes": ("DIMENSION_LABELS", ["a"] * 5, h5py.string_dtype()),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_dimensions_give_no_names(kind: str, tmp_path: Path) -> None:
    """The HDF5 library, which was asked for the scales, ended the process with a signal."""
    name, given, dtype = MALFORMED[kind]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = VALUES
        own = file["x"].ref
        values = np.empty(np.shape(given)[:1], object)
        for at in np.ndindex(values.shape):
            one = given[at[0]] if at else given
            values[at] = np.array([own], h5py.ref_dtype) if one == [None] else own if one is None else one
        file["x"].attrs.create(name, values, dtype=dtype)
    report = convert(tmp_path / "a.h5", tmp_path / "new")
    assert report.is_complete and name in report.arrays[0].notes[0]
    assert (stored(tmp_path / "new", "x") == VALUES).all()


def test_scale_that_was_removed_gives_no_name(tmp_path: Path) -> None:
    """It refused the whole file, as a malformed list of the datasets of a scale."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = VALUES
        for axis, name in enumerate(("gone", "kept")):
            file.create_dataset(name, data=np.arange(VALUES.shape[axis]), maxshape=(None,)).make_scale(name)
            file["x"].dims[axis].attach_scale(file[name])
        del file["gone"]
        file["kept"].attrs["REFERENCE_LIST"] = np.arange(2)
    convert(tmp_path / "a.h5", tmp_path / "new")
    assert zarr.open_array(tmp_path / "new/x", mode="r").metadata.dimension_names == (None, "kept")
