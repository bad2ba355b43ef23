# test_convert_errors.py - convert: damaged sources, verification, metadata that cannot be kept, links
# SPDX-License-Identifier: MIT
"""A fault of the source or of the new hierarchy is named with its path, and nothing invalid is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from conversions import SQUARE as VALUES
from conversions import elements
from conversions import square_source as source
from helpers import quiet
from monitors import StopAfter
from tool_sources import edit
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from zarr.storage import ZipStore

import shardcodec
from shardcodec.cli.app import run
from shardcodec.compat import READS_SHARDS_OF_STRUCTS
from shardcodec.options import resolve
from shardcodec.tools import convert
from shardcodec.tools.convert import array_conversion
from shardcodec.tools.convert.destination import NewArray
from shardcodec.tools.convert.open_source import open_source


def damage(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("compressor", [numcodecs.Zlib(), numcodecs.LZ4(), numcodecs.Zstd()], ids=str)
def test_damaged_chunk_that_zarr_decodes_is_named(compressor: Any, tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "old",
        shape=(32, 32),
        chunks=(8, 8),
        dtype="int32",
        zarr_format=2,
        filters=[numcodecs.BZ2()],  # a codec without native code
        compressors=compressor,
    )
    array[...] = VALUES
    (tmp_path / "old" / "2.2").write_bytes(b"\xff" * 60)
    report = convert(tmp_path / "old", tmp_path / "new", shards=(16, 16))
    assert (report.n_written, report.n_failed) == (3, 1)
    assert f"{tmp_path}/old/2.2' at (2, 2)" in report.failures[0].detail


def test_damaged_object_of_an_hdf5_file_is_named_with_its_elements(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(8, 8), compression="gzip")
        found = file["x"].id.get_chunk_info_by_coord((16, 16))
    data = bytearray((tmp_path / "old.h5").read_bytes())
    data[found.byte_offset : found.byte_offset + found.size] = b"\xff" * found.size
    (tmp_path / "old.h5").write_bytes(data)
    report = convert(tmp_path / "old.h5", tmp_path / "new", shards=(8, 8))
    assert (report.n_written, report.n_failed) == (15, 1)
    assert f"{tmp_path}/old.h5/x: elements from (16, 16) to (24, 24)" in report.failures[0].detail


@pytest.mark.parametrize("check", ["checksum", "compare"])
def test_verification_finds_a_moved_chunk_with_a_wrong_checksum(check: str, tmp_path: Path) -> None:
    source(tmp_path / "old", compressors=[Crc32cCodec()])
    damage(tmp_path / "old" / "c" / "2" / "2")
    report = convert(tmp_path / "old", tmp_path / "new", shards=(16, 16), level=check)
    assert report.n_failed == 1


HOW: dict[str, dict[str, Any]] = {
    "moved": {},
    "encoded": {"codecs": ["zstd", "crc32c"]},
    "piece by piece": {"chunks": (4, 4), "codecs": ["zstd", "crc32c"], "memory": 1200, "threads": 1},
}


@pytest.mark.parametrize("check", ["checksum", "compare"])
@pytest.mark.parametrize(
    "spoil", [lambda path: damage(path, 10), lambda path: path.unlink()], ids=["changed", "gone"]
)
@pytest.mark.parametrize("name", HOW)
def test_verification_finds_a_shard_that_is_not_stored_as_it_was_written(
    check: str, spoil: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "old", compressors=[Crc32cCodec()])
    original = array_conversion.ArrayConversion._verify

    def spoil_and_verify(self: Any, coords: Any, written: Any) -> None:
        if coords == (1, 1):
            spoil(tmp_path / "new/c/1/1")
        original(self, coords, written)

    monkeypatch.setattr(array_conversion.ArrayConversion, "_verify", spoil_and_verify)
    report = convert(tmp_path / "old", tmp_path / "new", shards=(16, 16), level=check, **HOW[name])
    assert report.arrays[0].streamed == (name == "piece by piece")
    assert [one.shard for one in report.failures] == [str(tmp_path / "new/c/1/1")]
    assert not report.is_complete and not (tmp_path / "new/zarr.json").exists()


@pytest.mark.parametrize("check", ["checksum", "compare"])
@pytest.mark.parametrize("name", HOW)
def test_verification_permits_shards_with_nothing_but_the_fill_value(
    check: str, name: str, tmp_path: Path
) -> None:
    array = source(tmp_path / "old", fill_value=-1)
    array[16:, 16:] = -1
    report = convert(tmp_path / "old", tmp_path / "new", shards=(16, 16), level=check, **HOW[name])
    assert report.is_complete
    assert not (tmp_path / "new" / "c" / "1" / "1").exists()
    assert (elements(tmp_path / "new") == array[...]).all()


@pytest.mark.parametrize("text", ["{", "[]", '{"zarr_format": 2}', "[" * 100000], ids=lambda text: text[:20])
@pytest.mark.parametrize(("zarr_format", "name"), [(2, ".zarray"), (3, "zarr.json")])
def test_invalid_metadata_are_named(
    text: str, zarr_format: int, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_group(tmp_path / "old", zarr_format=zarr_format)
    source(tmp_path / "old" / "x", zarr_format=zarr_format)
    (tmp_path / "old" / "x" / name).write_text(text)
    assert run(["convert", "--fail-fast", str(tmp_path / "old"), str(tmp_path / "new")]) == 3
    assert str(tmp_path / "old" / "x") in capsys.readouterr().err
    # one object stops nothing: by default the array is left out, and the report names it
    assert run(["convert", str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert str(tmp_path / "old" / "x") in capsys.readouterr().out
    assert not (tmp_path / "new" / "x").exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"a": "\udcff"}'.encode("utf-8", "surrogateescape")], ids=str
)
def test_invalid_attributes_are_no_wrong_argument(
    text: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_group(tmp_path / "old", zarr_format=2)
    source(tmp_path / "old" / "x", zarr_format=2)
    for place in (tmp_path / "old" / "x", tmp_path / "old"):
        (place / ".zattrs").write_bytes(text if isinstance(text, bytes) else text.encode())
        assert run(["convert", "--fail-fast", str(tmp_path / "old"), str(tmp_path / "new")]) == 3
        told = capsys.readouterr().err
        assert ".zattrs" in told and f" {place}: " in told
        (place / ".zattrs").unlink()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("member", "value"),
    [("attributes", []), ("dimension_names", ["x"]), ("dimension_names", [1, 2]), ("dimension_names", "xy")],
    ids=str,
)
def test_invalid_members_are_named_and_not_copied(
    member: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_group(tmp_path / "old")
    source(tmp_path / "old" / "x")
    edit(tmp_path / "old/x/zarr.json", **{member: value})
    assert run(["convert", "--fail-fast", str(tmp_path / "old"), str(tmp_path / "new")]) == 3
    told = capsys.readouterr().err
    assert str(tmp_path / "old" / "x") in told and member in told
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("names", [["x"], [1, 2], "xy"], ids=str)
def test_wrong_names_of_axes_make_no_array_that_zarr_refuses(names: Any, tmp_path: Path) -> None:
    array = source(tmp_path / "old", zarr_format=2)
    array.attrs.update({"_ARRAY_DIMENSIONS": names, "unit": "m"})
    convert(tmp_path / "old", tmp_path / "new", shards=(16, 16))
    new = zarr.open_array(tmp_path / "new", mode="r")
    assert new.attrs["unit"] == "m"
    assert new.attrs["_ARRAY_DIMENSIONS"] == names  # they are no names of axes, so they stay as they are


@pytest.mark.parametrize("fill", [None, (7, float("nan"))])
def test_structured_array_of_format_2_can_be_read_with_zarr(fill: Any, tmp_path: Path) -> None:
    dtype = np.dtype([("a", "<i4"), ("b", "<f8")])
    values = np.ones(32, dtype)
    with quiet():
        old = zarr.create_array(
            tmp_path / "old",
            shape=40,
            chunks=8,
            dtype=dtype,
            zarr_format=2,
            fill_value=None if fill is None else np.array(fill, dtype)[()],
        )
        old[:32] = values
    for name, how in {"moved": {}, "encoded": {"chunks": (4,)}}.items():
        report = convert(tmp_path / "old", tmp_path / name, shards=(16,), **how)
        assert report.arrays[0].method == ("move" if name == "moved" else "encode")
        # the report said nothing of it
        assert any("shards of structs" in note for note in report.arrays[0].notes) != READS_SHARDS_OF_STRUCTS
        with quiet():
            new = zarr.open_array(tmp_path / name, mode="r")
            assert new.dtype == dtype
            # zarr 3.1.6 opens the array, but its own pipeline cannot read any shard of structs
            found = shardcodec.attach(new)[...]
        assert (found[:32] == values).all()
        expected = np.zeros(8, dtype) if fill is None else np.full(8, np.array(fill, dtype))
        assert found[32:].tobytes() == expected.tobytes()


def test_attributes_of_a_group_without_arrays_in_a_zip_file(tmp_path: Path) -> None:
    store = ZipStore(tmp_path / "old.zip", mode="w")
    zarr.create_group(store, path="group", attributes={"a": 1})
    store.close()
    convert(tmp_path / "old.zip" / "group", tmp_path / "new")
    assert dict(zarr.open_group(tmp_path / "new", mode="r").attrs) == {"a": 1}


def test_links_of_an_hdf5_file_lead_to_arrays(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["y"] = VALUES + 1
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["x"] = VALUES
        file["hard"] = file["x"]
        file["soft"] = h5py.SoftLink("/x")
        file["external"] = h5py.ExternalLink("other.h5", "/y")
    convert(tmp_path / "old.h5", tmp_path / "new")
    found = dict(zarr.open_group(tmp_path / "new", mode="r").arrays())
    assert sorted(found) == ["external", "hard", "soft", "x"]


def test_links_that_lead_in_a_circle_or_to_nothing(tmp_path: Path) -> None:
    """One external link to a file that was not copied too refused the whole file."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["group/x"] = VALUES
        file["group/top"] = h5py.SoftLink("/")
        file["group/again"] = file["group"]
        file["lost"] = h5py.ExternalLink("missing.h5", "/y")
        file["group/gone"] = h5py.SoftLink("/nothing")
    with pytest.raises(FileNotFoundError, match=r"old.h5/lost: .*the link leads to nothing"):
        convert(tmp_path / "old.h5", tmp_path / "new", only=["lost", "group/x"])
    assert not (tmp_path / "new").exists()
    for name, only, lost in (("new", (), ["group/gone", "lost"]), ("part", "group/*", ["group/gone"])):
        report = convert(tmp_path / "old.h5", tmp_path / name, only=only)
        assert report.is_complete
        assert [part.name for part in report.left_arrays] == lost
        found = zarr.open_group(tmp_path / name, mode="r")
        assert sorted(name for name, _ in found.members(max_depth=None)) == ["group", "group/x"]
    assert run(["convert", str(tmp_path / "old.h5"), str(tmp_path / "cli")]) == 1


def test_named_type_in_an_hdf5_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["type"] = np.dtype("float32")
        file["x"] = VALUES
    convert(tmp_path / "old.h5", tmp_path / "new")
    assert (elements(tmp_path / "new" / "x") == VALUES).all()


def test_attributes_of_an_hdf5_file_that_the_user_named_name(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["x"] = VALUES
        file["x"].attrs.update({"NAME": "detector", "CLASS": "image"})
        file["scale"] = VALUES[0]
        file["scale"].make_scale("of x")
    convert(tmp_path / "old.h5", tmp_path / "new")
    assert dict(zarr.open_array(tmp_path / "new" / "x", mode="r").attrs) == {
        "NAME": "detector",
        "CLASS": "image",
    }
    assert not dict(zarr.open_array(tmp_path / "new" / "scale", mode="r").attrs)


def test_index_without_checksum_is_checked_before_chunks_move(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "old",
        shape=(16, 16),
        chunks=(16, 16),
        dtype="int32",
        serializer=ShardingCodec(chunk_shape=(8, 8), codecs=[BytesCodec()], index_codecs=[BytesCodec()]),
        compressors=None,
        filters=None,
    )
    array[...] = VALUES[:16, :16]
    path = tmp_path / "old" / "c" / "0" / "0"
    data = bytearray(path.read_bytes())
    data[-64:-48] = np.array(
        [2**64 - 1, 7], "<u8"
    ).tobytes()  # one half of an entry says that there is no chunk
    path.write_bytes(data)
    report = convert(tmp_path / "old", tmp_path / "new")
    assert report.arrays[0].method == "move"
    assert report.n_failed == 1
    assert os.path.basename(report.failures[0].shard) == "0"


@pytest.mark.parametrize("compressor", [numcodecs.Zstd(), numcodecs.Blosc()], ids=str)
def test_huge_sparse_file_is_refused_without_memory_for_it(compressor: Any, tmp_path: Path) -> None:
    with quiet():
        array = zarr.create_array(
            tmp_path / "old",
            shape=(32, 32),
            chunks=(8, 8),
            dtype="int32",
            zarr_format=2,
            compressors=compressor,
        )
        array[...] = VALUES
    os.truncate(tmp_path / "old" / "2.2", 1 << 40)
    report = convert(tmp_path / "old", tmp_path / "new", shards=(16, 16))
    assert (report.n_written, report.n_failed) == (3, 1)
    detail = report.failures[0].detail
    assert f"{tmp_path}/old/2.2" in detail and "got 1099511627776" in detail and "expected" in detail


@pytest.mark.parametrize("name", ["moved", "encoded"])
def test_shard_for_which_the_memory_does_not_suffice_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source(tmp_path / "old")
    written = NewArray.state

    def without_memory(self: Any, coords: Any) -> Any:
        if coords == (1, 0):
            raise MemoryError
        return written(self, coords)

    monkeypatch.setattr(NewArray, "state", without_memory)
    more = {"moved": [], "encoded": ["--codecs", "zstd,crc32c"]}[name]
    arguments = ["convert", str(tmp_path / "old"), str(tmp_path / "new"), "--shards", "16,16", *more]
    assert run(arguments) == 3
    told = capsys.readouterr().out
    assert f"{tmp_path}/new/c/1/0: not written: MemoryError" in told
    assert "3 shards written" in told


@pytest.mark.parametrize("error", [MemoryError(), PermissionError(13, "Permission denied")], ids=str)
def test_finished_shard_that_cannot_be_looked_at_is_named(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed job goes on with the other shards."""
    source(tmp_path / "old")
    how: dict[str, Any] = {"shards": (16, 16), "job": tmp_path / "job"}
    monitor = StopAfter(1)
    assert convert(tmp_path / "old", tmp_path / "new", monitor=monitor, threads=1, **how).is_stopped
    (first,) = sorted(path for path in (tmp_path / "new" / "c").rglob("*") if path.is_file())[:1]
    looked_at = NewArray.state

    def failing(self: Any, coords: Any) -> Any:
        if self.describe(coords) == str(first):
            raise error
        return looked_at(self, coords)

    with monkeypatch.context() as patched:
        patched.setattr(NewArray, "state", failing)
        report = convert(tmp_path / "old", tmp_path / "new", resume=True, **how)
    assert not report.is_complete
    assert [one.shard for one in report.failures] == [str(first)]
    assert convert(tmp_path / "old", tmp_path / "new", resume=True, **how).is_complete
    assert (elements(tmp_path / "new") == VALUES).all()


def test_dry_run_of_a_resumed_job_sees_its_own_destination(tmp_path: Path) -> None:
    source(tmp_path / "old")
    how: dict[str, Any] = {"shards": (16, 16), "job": tmp_path / "job"}
    convert(tmp_path / "old", tmp_path / "new", monitor=StopAfter(1), threads=1, **how)
    assert convert(tmp_path / "old", tmp_path / "new", resume=True, dry_run=True, **how).n_shards == 4


@pytest.mark.parametrize("n_chunks", [1, 63, 64, 65, 127, 128, 1000])
def test_estimate_looks_at_few_objects(n_chunks: int, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old", shape=(n_chunks,), chunks=(1,), dtype="u1")[...] = 1
    (opened,) = open_source(tmp_path / "old", resolve()).arrays
    looked_at = opened.object_nbytes(64)
    assert looked_at is not None and min(n_chunks, 32) <= looked_at[0] <= min(n_chunks, 64)


def test_scalar_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zarr.create_array(tmp_path / "s.zarr", shape=(), dtype="u1", zarr_format=3)[...] = 1
    assert run(["convert", str(tmp_path / "s.zarr"), str(tmp_path / "new.zarr"), "--dry-run"]) == 0
    assert "1 chunk of scalar, no shards" in capsys.readouterr().out
