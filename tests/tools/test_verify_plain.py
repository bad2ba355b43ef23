# test_verify_plain.py - verify and repair arrays without shards
# SPDX-License-Identifier: MIT
"""`verify` of an xarray set said "no damage found; 3 arrays were not verified" while half a chunk of a coordinate was missing.

Chunks of arrays without shards, of Zarr v3 and v2, are verified and repaired as the one inner chunk of a shard without an index.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import KINDS_OF_STORE, bytes_of_files, quiet, store_of
from tool_sources import change, flipped, write_2022
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

from shardcodec.cli.app import run
from shardcodec.tools import repair, verify
from shardcodec.tools.verify.report import VerifyReport

V3 = {
    "raw": [], "crc32c": [Crc32cCodec()], "zstd": [ZstdCodec()],
    "zstd with checksum": [ZstdCodec(checksum=True)],
    "gzip": [GzipCodec()], "blosc": [BloscCodec()],
    "zstd, crc32c": [ZstdCodec(), Crc32cCodec()],
}  # fmt: skip
V2: dict[str, Any] = {
    "raw": None,
    "zstd": numcodecs.Zstd(),
    "blosc": numcodecs.Blosc(),
    "lz4": numcodecs.LZ4(),
    "zlib": numcodecs.Zlib(),
    "bz2": numcodecs.BZ2(),  # zarr decodes it
}
VALUES = np.random.default_rng(0).integers(0, 1000, (10, 7)).astype("i4")


def v3(store: Any, codecs: str = "zstd", name: str | None = None, values: Any = VALUES, **how: Any) -> Any:
    with quiet():
        array = zarr.create_array(
            store, name=name, shape=values.shape, chunks=how.pop("chunks", (4, 4)), dtype=values.dtype,
            serializer=BytesCodec(), compressors=V3[codecs] or None, **how,
        )  # fmt: skip
        array[...] = values
    return array


def v2(store: Any, codec: str = "zstd", name: str | None = None, values: Any = VALUES, **how: Any) -> Any:
    with quiet():
        array = zarr.create_array(
            store, name=name, shape=values.shape, chunks=how.pop("chunks", (4, 4)), dtype=values.dtype,
            compressors=V2[codec], zarr_format=2, **how,
        )  # fmt: skip
        array[...] = values
    return array


def found(report: VerifyReport) -> list[tuple[str, str]]:
    """Return kind and last parts of the key of each finding."""
    listed = [one for shard in report.shards for one in shard.findings]
    return sorted((one.kind.value, "/".join(one.shard.split("/")[-2:])) for one in listed)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("level", ["index", "checksum", "decode"])
@pytest.mark.parametrize(("make", "codecs", "key"), [
    *((v3, codecs, "c/1/0") for codecs in V3), *((v2, codec, "1.0") for codec in V2),
])  # fmt: skip
def test_chunk_of_which_half_is_missing_is_found(
    make: Any, codecs: str, key: str, level: Any, tmp_path: Path
) -> None:
    array = make(tmp_path / "a.zarr", codecs)
    report = verify(tmp_path / "a.zarr", level=level)
    (one,) = report.arrays
    assert (report.n_findings, one.problem, one.n_shards, one.is_sharded) == (0, None, 6, False)
    assert report.n_unchecked == 0 and report.n_documents >= 1
    change(array.store, key, half)
    report = verify(tmp_path / "a.zarr", level=level)
    size_is_known = codecs in ("raw", "crc32c")
    assert report.n_findings == (size_is_known or level != "index")
    if report.n_findings:
        ((kind, name),) = found(report)
        assert name.endswith(key[-3:]) and kind in ("truncated tail", "bad inner checksum", "decode error")
        assert run(["verify", str(tmp_path / "a.zarr"), "--level", level]) == 1


@pytest.mark.parametrize(("codecs", "level", "n"), [
    ("raw", "decode", 0), ("crc32c", "checksum", 1), ("zstd, crc32c", "checksum", 1), ("gzip", "checksum", 1),
    ("zstd with checksum", "checksum", 1), ("blosc", "checksum", 0),
])  # fmt: skip
def test_a_changed_byte_is_found_where_codecs_have_checksums(
    codecs: str, level: Any, n: int, tmp_path: Path
) -> None:
    values = np.random.default_rng(1).integers(0, 2**31, (64, 64)).astype("i4")
    array = v3(tmp_path / "a.zarr", codecs, values=values, chunks=(64, 64))
    change(array.store, "c/0/0", flipped(-9))
    report = verify(tmp_path / "a.zarr", level=level)
    assert report.n_findings == n
    (one,) = report.arrays
    assert bool(one.unverifiable_nbytes) == (codecs in ("raw", "blosc"))


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_stores_of_any_kind(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path / "a.zarr")
    array = v3(store)
    assert verify(store).n_findings == 0
    change(array.store, "c/0/1", half)
    assert found(verify(store, level="decode"))[0][1] == "0/1"


@pytest.mark.parametrize(("separator", "key"), [(".", "2.1"), ("/", "2/1")])
def test_names_of_v2_chunks(separator: Any, key: str, tmp_path: Path) -> None:
    how = {"chunk_key_encoding": {"name": "v2", "separator": separator}}
    array = v2(tmp_path / "a.zarr", **how)
    assert (tmp_path / "a.zarr" / key).exists()
    (tmp_path / "a.zarr" / "7.7").write_bytes(b"outside")
    (tmp_path / "a.zarr" / "notes").mkdir()
    (tmp_path / "a.zarr" / "notes/0.0").write_bytes(b"text")
    change(array.store, key, half)
    report = verify(tmp_path / "a.zarr")
    assert report.n_findings == 1 and report.kinds["foreign file"] == 2
    assert {part.name for part in report.unchecked} == {"7.7", "notes/0.0"}


@pytest.mark.parametrize("make", [v3, v2])
def test_arrays_of_rank_0_and_without_elements(make: Any, tmp_path: Path) -> None:
    array = make(tmp_path / "scalar.zarr", values=np.array(7.0), chunks=())
    make(tmp_path / "empty.zarr", values=np.zeros((0, 3)), chunks=(2, 3))
    report = verify(tmp_path / "scalar.zarr", level="decode")
    assert (report.n_findings, report.arrays[0].n_shards, report.n_unchecked) == (0, 1, 0)
    assert verify(tmp_path / "empty.zarr").arrays[0].n_shards == 0
    change(array.store, "c" if make is v3 else "0", half)
    assert verify(tmp_path / "scalar.zarr").n_findings == 1


def test_text_is_decoded(tmp_path: Path) -> None:
    with quiet():
        array = zarr.create_array(
            tmp_path / "a.zarr", shape=(4,), chunks=(2,), dtype="string", compressors=None
        )
        array[:] = np.array(["a", "bb", "ccc", "d"], dtype=object)
    assert verify(tmp_path / "a.zarr").n_findings == 0
    change(array.store, "c/1", half)
    assert found(verify(tmp_path / "a.zarr")) == [("decode error", "c/1")]


def test_what_cannot_be_checked_is_said_and_the_exit_code_is_5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    v3(tmp_path / "a.zarr")
    file = tmp_path / "a.zarr/zarr.json"
    document = json.loads(file.read_text())
    document["codecs"].append({"name": "no.such", "configuration": {}})
    file.write_text(json.dumps(document))
    report = verify(tmp_path / "a.zarr")
    assert report.kinds == {"unsupported": 1} and report.n_unchecked == 1
    assert run(["verify", str(tmp_path / "a.zarr")]) == 5
    assert "1 part could not be checked" in capsys.readouterr().out


def test_hierarchy_of_the_2022_format_is_not_verified(tmp_path: Path) -> None:
    """It was said to be unreadable, with all its objects beside it."""
    write_2022(tmp_path / "old", {})
    (tmp_path / "old/data/x").write_bytes(b"x")
    report = verify(tmp_path / "old")
    assert (report.kinds, report.n_findings, report.n_unchecked) == ({"unsupported": 1}, 0, 1)
    assert "shardcodec convert" in str(report) and run(["verify", str(tmp_path / "old")]) == 5


def test_objects_that_nobody_decodes_are_not_verified(tmp_path: Path) -> None:
    """An array of pickled objects; numcodecs is not asked to run what is stored."""
    (tmp_path / "a.zarr").mkdir()
    document = {
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|O", "fill_value": None, "order": "C",
    }  # fmt: skip
    document |= {"filters": [{"id": "pickle", "protocol": 5}], "compressor": None}
    (tmp_path / "a.zarr/.zarray").write_text(json.dumps(document))
    (tmp_path / "a.zarr/0").write_bytes(b"no pickle")
    report = verify(tmp_path / "a.zarr", level="decode")
    assert (report.n_findings, report.n_unchecked) == (0, 1)


def test_rectilinear_grid_is_not_verified(tmp_path: Path) -> None:
    pytest.importorskip("zarr", minversion="3.2")
    with quiet(), zarr.config.set({"array.rectilinear_chunks": True}):
        zarr.create_array(tmp_path / "a.zarr", shape=(6,), chunks=[[2, 4]], dtype="i4")[...] = 1
    report = verify(tmp_path / "a.zarr")
    assert "rectilinear" in str(report.arrays[0].problem) and report.n_unchecked == 1


def test_sample_memory_and_threads(tmp_path: Path) -> None:
    v3(tmp_path / "a.zarr", values=np.zeros((200, 200), "i4") + 1)
    (first,) = verify(tmp_path / "a.zarr", sample=0.1).arrays
    assert 0 < first.n_shards < 2500 and first.n_shards + first.n_not_sampled == 2500
    assert verify(tmp_path / "a.zarr", threads=4) == verify(tmp_path / "a.zarr", threads=1)
    assert verify(tmp_path / "a.zarr", memory=1 << 20).n_findings == 0
    with pytest.raises(ValueError, match="memory: expected at least"):
        verify(tmp_path / "a.zarr", memory=100)


def test_manifest_skips_chunks_that_have_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shardcodec.storage.files as files

    monkeypatch.setattr(files, "GRAIN_NS", 0)  # the times of new files identify their states, too
    with quiet():
        zarr.create_group(tmp_path / "g.zarr")
    array = v3(tmp_path / "g.zarr", name="a")
    v2(tmp_path / "g.zarr", name="b")
    manifest = str(tmp_path / "m")
    verify(tmp_path / "g.zarr", manifest=manifest)
    report = verify(tmp_path / "g.zarr", since=manifest)
    assert [(one.n_shards, one.n_unchanged) for one in report.arrays] == [(0, 6), (0, 6)]
    change(array.store, "a/c/1/0", half)
    os.unlink(tmp_path / "g.zarr/b/1.1")
    assert verify(tmp_path / "g.zarr", since=manifest).kinds == {"decode error": 1, "missing shard": 1}


@pytest.mark.parametrize("make", [v3, v2])
def test_elements_are_compared(make: Any, tmp_path: Path) -> None:
    array = make(tmp_path / "a.zarr")
    other = v3(tmp_path / "b.zarr", chunks=(3, 5))
    assert verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr").n_findings == 0
    other[9, 6] += 1
    assert [kind for kind, _ in found(verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr"))] == [
        "different"
    ]
    os.unlink(tmp_path / "a.zarr" / ("c/0/0" if make is v3 else "0.0"))
    kinds = [kind for kind, _ in found(verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr"))]
    assert kinds == ["different", "missing shard"]
    assert array.shape == other.shape


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("make", [v3, v2])
def test_damaged_chunk_is_taken_from_a_copy(make: Any, same: bool, in_place: bool, tmp_path: Path) -> None:
    array = make(tmp_path / "a.zarr")
    (make if same else v3)(tmp_path / "b.zarr", chunks=(4, 4) if same else (10, 3))
    key = "c/1/1" if make is v3 else "1.1"
    old = (tmp_path / "a.zarr" / key).read_bytes()
    change(array.store, key, half)
    with_copy: dict[str, Any] = {"copy": tmp_path / "b.zarr"}
    planned = repair(tmp_path / "a.zarr", dry_run=True, **with_copy)
    assert (planned.n_damaged, planned.n_restored, planned.n_lost_chunks) == (1, 1, 0)
    where = {"backup": tmp_path / "old"} if in_place else {"to": tmp_path / "c.zarr"}
    report = repair(tmp_path / "a.zarr", **where, **with_copy)
    assert (report.n_shards, report.n_damaged, report.n_restored) == (6, 1, 1)
    result = tmp_path / ("a.zarr" if in_place else "c.zarr")
    assert verify(result, level="decode", against=tmp_path / "b.zarr").n_findings == 0
    np.testing.assert_array_equal(zarr.open_array(result, mode="r")[...], VALUES)
    if same:
        assert (result / key).read_bytes() == old
    if in_place:
        assert (tmp_path / "old" / key).read_bytes() == half(old)


def test_damaged_chunk_without_a_copy_is_lost(tmp_path: Path) -> None:
    array = v3(tmp_path / "a.zarr")
    change(array.store, "c/1/1", half)
    before = bytes_of_files(tmp_path / "a.zarr")
    report = repair(tmp_path / "a.zarr", backup=tmp_path / "old")
    assert (report.n_damaged, report.n_restored, report.n_lost_chunks) == (1, 0, 1)
    assert bytes_of_files(tmp_path / "a.zarr") == before
    assert run(["repair", str(tmp_path / "a.zarr"), "--to", str(tmp_path / "new.zarr")]) == 1
    assert not (tmp_path / "new.zarr/c/1/1").exists() and (tmp_path / "new.zarr/c/1/0").exists()


def test_damaged_chunk_of_an_empty_part_of_the_copy_is_removed(tmp_path: Path) -> None:
    array = v3(tmp_path / "a.zarr")
    v3(tmp_path / "b.zarr", values=VALUES * 0, chunks=(5, 7))
    change(array.store, "c/1/1", half)
    report = repair(tmp_path / "a.zarr", backup=tmp_path / "old", copy=tmp_path / "b.zarr")
    assert report.n_restored == 1 and not (tmp_path / "a.zarr/c/1/1").exists()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_missing_chunk_is_taken_from_a_copy(same: bool, in_place: bool, tmp_path: Path) -> None:
    v3(tmp_path / "a.zarr")
    v3(tmp_path / "b.zarr", chunks=(4, 4) if same else (10, 3))
    (tmp_path / "a.zarr/c/1/1").unlink()
    assert verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr").kinds == {"missing shard": 1}
    where = {"backup": tmp_path / "old"} if in_place else {"to": tmp_path / "c.zarr"}
    report = repair(tmp_path / "a.zarr", copy=tmp_path / "b.zarr", **where)
    assert (report.n_damaged, report.n_restored) == (1, 1)
    result = tmp_path / ("a.zarr" if in_place else "c.zarr")
    np.testing.assert_array_equal(zarr.open_array(result, mode="r")[...], VALUES)


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("kind", ["link", "folder"])
def test_chunk_that_cannot_be_opened_is_taken_from_a_copy(kind: str, same: bool, tmp_path: Path) -> None:
    """The look for chunks that only the copy has ended both commands: exit code 3, and a new hierarchy without metadata."""
    v3(tmp_path / "a.zarr")
    v3(tmp_path / "b.zarr", chunks=(4, 4) if same else (10, 3))
    chunk = tmp_path / "a.zarr/c/1/1"
    chunk.unlink()
    if kind == "link":
        chunk.symlink_to(tmp_path / "nothing")
    else:
        chunk.mkdir()
    assert verify(tmp_path / "a.zarr", against=tmp_path / "b.zarr").kinds == {"unreadable": 1}
    report = repair(tmp_path / "a.zarr", to=tmp_path / "c.zarr", copy=tmp_path / "b.zarr")
    assert (report.n_damaged, report.n_restored) == (1, 1)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "c.zarr", mode="r")[...], VALUES)


def _damage_of_entry(path: Path, name: str) -> None:
    """Change a byte of an entry that a zip file stores as it is."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        entry = file.getinfo(name)
    data[entry.header_offset + 30 + len(name) + 9] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["a/c/1/1", "a/zarr.json"])
def test_damaged_entry_of_a_zip_file_is_found(name: str, tmp_path: Path) -> None:
    """The checksum of the zip file ended `verify` with the traceback of a `BadZipFile`."""
    zarr.create_group(tmp_path / "g.zarr")
    v3(tmp_path / "g.zarr/a")
    v3(tmp_path / "g.zarr/b")
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as file:
        for one in sorted((tmp_path / "g.zarr").rglob("*")):
            file.write(one, one.relative_to(tmp_path / "g.zarr"))
    assert run(["verify", str(tmp_path / "g.zip")]) == 0
    _damage_of_entry(tmp_path / "g.zip", name)
    report = verify(tmp_path / "g.zip")
    assert report.kinds == {"unreadable": 1}
    assert [one.name for one in report.arrays] == ["a", "b"]
    assert "the entry of the zip file is damaged: Bad CRC-32" in report.shards[0].findings[0].detail
    assert run(["convert", str(tmp_path / "g.zip"), str(tmp_path / "new")]) == (3 if name == "a/c/1/1" else 1)
    if name == "a/c/1/1":
        done = repair(tmp_path / "g.zip", to=tmp_path / "c.zarr", copy=tmp_path / "g.zarr")
        assert (done.n_damaged, done.n_restored) == (1, 1)
        assert verify(tmp_path / "c.zarr", against=tmp_path / "g.zarr").n_findings == 0
