# test_convert_2022.py - arrays of the 2022 format converted to Zarr v3
# SPDX-License-Identifier: MIT
"""`convert_2022` on arrays that zarr-python 2.18.7 has written."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import shardcodec
from shardcodec.errors import ShardError, SpecError, UnsupportedError
from shardcodec.tools.convert import convert_2022 as shard_by_shard
from shardcodec.transformer import convert_2022, open_2022

from .cases_2022 import BY_NAME
from .checks_2022 import NAMES, assert_same, expected, store_of, zarr_fails, zarrs_own

pytestmark = pytest.mark.filterwarnings("ignore")


# ---------------------------------------------------------------- converting


@pytest.fixture(scope="session")
def converted(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Zarr v3 hierarchy of all cases."""
    folder = tmp_path_factory.mktemp("converted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            convert_2022(made / "h", folder, path=name)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_converted_array_has_the_same_values(made: Path, converted: Path, name: str) -> None:
    case, wanted = BY_NAME[name], expected(made, name)
    assert_same(shardcodec.attach(zarr.open_array(converted, path=name, mode="r"))[...], wanted, case)
    if not zarr_fails(case):
        assert_same(zarrs_own(converted, name)[...], wanted, case)
    metadata = json.loads((converted / name / "zarr.json").read_text())
    if case.per_shard:
        (sharding,) = metadata["codecs"]
        assert [codec["name"] for codec in sharding["configuration"]["index_codecs"]] == ["bytes", "crc32c"]


@pytest.mark.parametrize("name", [name for name in NAMES if BY_NAME[name].speaks_tensorstore])
def test_tensorstore_reads_converted_arrays(made: Path, converted: Path, name: str) -> None:
    if importlib.util.find_spec("tensorstore") is None:
        pytest.skip("tensorstore is not installed")
    import tensorstore

    case = BY_NAME[name]
    if np.dtype(case.dtype).kind not in "biufc":
        pytest.skip("TensorStore does not have this data type")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(converted / name)}}
    found = tensorstore.open(spec, read=True).result().read().result()
    assert_same(np.asarray(found), expected(made, name), case)


def encoded(folder: Path, array: Any, key: str) -> list[bytes | None]:
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    shard = shardcodec.open_shard(folder, key, spec)
    return shard.read_encoded(list(np.ndindex(shard.grid_shape)))


@pytest.mark.parametrize("name", ["plain", "codec-gzip", "stack", "dots"])
def test_inner_chunks_are_copied_without_decoding(made: Path, converted: Path, name: str) -> None:
    old, new = open_2022(made / "h", name, mode="r"), zarr.open_array(converted, path=name)
    separator = BY_NAME[name].separator
    stored = sorted((made / "h/data/root" / name).rglob("c*"))
    files = [path for path in stored if path.is_file()] + [
        p for p in (made / "h/data/root" / name).rglob("[0-9]*") if p.is_file()
    ]
    assert files
    for path in files:
        coords = path.relative_to(made / "h/data/root" / name).as_posix()[1:]
        there = f"c{separator}{coords}"
        assert encoded(made / "h/data/root" / name, old, f"c{coords}") == encoded(
            converted / name, new, there
        )


def test_hierarchy_is_converted(made: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    group = convert_2022(
        made / "h", tmp_path / "v3", path="group", dst_path="a/b", progress=lambda *n: calls.append(n)
    )
    assert dict(group.attrs) == {"kind": "made by zarr 2"}
    assert np.array_equal(group["within/array"][...], expected(made, "group/within/array"))
    assert calls[-1] == (len(calls), len(calls))
    again = convert_2022(
        open_2022(made / "h", "group", mode="r"), tmp_path / "v3", dst_path="c", index_checksum=False
    )
    assert np.array_equal(again["within/array"][...], group["within/array"][...])


@pytest.mark.parametrize("kind", ["memory", "subclass"])
def test_conversion_between_other_stores(made: Path, kind: str) -> None:
    array = convert_2022(store_of(made / "h", kind), MemoryStore(), path="plain", index_checksum=False)
    assert np.array_equal(array[...], expected(made, "plain"))
    assert array.metadata.dimension_names == ("y", "x")


@pytest.mark.parametrize("name", ["plain", "dots", "one-axis"])
@pytest.mark.parametrize("kind", ["folder", "subclass"])
def test_conversion_requests_listed_shards_only(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(shard_by_shard, "LISTING_SHARDS", 1)
    calls: list[tuple[int, int]] = []
    source = made / "h" if kind == "folder" else store_of(made / "h", kind)
    array = convert_2022(source, tmp_path / "out", path=name, progress=lambda *n: calls.append(n))
    assert np.array_equal(array[...], expected(made, name))
    files = [p for p in (made / "h/data/root" / name).rglob("*") if p.is_file()]
    assert calls == [(i + 1, len(files)) for i in range(len(files))]


# ---------------------------------------------------------------- conversions that stop early


def test_metadata_are_written_last(made: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    source, target = made / "h", tmp_path / "v3"
    with pytest.raises(KeyboardInterrupt):
        convert_2022(source, target, path="plain", progress=stop)
    assert not [p for p in target.rglob("*.json") if "plain" in str(p)]
    with pytest.raises(FileExistsError, match="overwrite"):
        convert_2022(source, target, path="plain")
    array = convert_2022(source, target, path="plain", overwrite=True, durability="fsync")
    assert np.array_equal(array[...], expected(made, "plain"))
    with pytest.raises(FileExistsError, match="plain"):
        convert_2022(source, target, path="plain")
    assert np.array_equal(convert_2022(source, target, path="plain", overwrite=True)[...], array[...])


def test_overwrite_needs_a_store_that_can_list(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of the old array were deleted first; then the store said that it cannot delete a folder."""
    target = zarr.storage.MemoryStore()
    old = convert_2022(made / "h", target, path="plain")[...]
    monkeypatch.setattr(type(target), "supports_listing", False)
    with pytest.raises(UnsupportedError, match="list and delete"):
        convert_2022(made / "h", target, path="plain", overwrite=True)
    assert np.array_equal(zarr.open_array(target, path="plain", mode="r")[...], old)


def test_overwrite_deletes_only_the_array(made: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        convert_2022(made / "h", tmp_path, path="plain", dst_path="", overwrite=True)
    zarr.create_group(tmp_path / "v3", path="plain")
    with pytest.raises(FileExistsError, match="plain"):
        convert_2022(made / "h", tmp_path / "v3", path="plain", overwrite=True)
    with pytest.raises(ValueError, match="outside of the source"):
        convert_2022(made / "h", made / "h", path="plain", dst_path="copy")
    (tmp_path / "another").mkdir()
    (tmp_path / "another/zarr.json").write_bytes((made / "h/zarr.json").read_bytes())
    with pytest.raises(FileExistsError, match="another format"):
        convert_2022(made / "h", tmp_path / "another", path="plain", dst_path="copy")


def test_zarr_v3_source_is_refused(made: Path, tmp_path: Path) -> None:
    convert_2022(made / "h", tmp_path / "v3", path="plain", dst_path="")
    with pytest.raises(SpecError, match="final Zarr v3"):
        convert_2022(tmp_path / "v3", tmp_path / "again")


@pytest.mark.parametrize(
    ("entry", "value", "text"),
    [(1, 3, "fewer|expected 48 bytes, got 3"), (0, 2**40, "inner chunk"), (0, 2**64 - 1, "inner chunk")],
)
def test_damaged_index_stops_the_conversion(
    hierarchy: Path, tmp_path: Path, entry: int, value: int, text: str
) -> None:
    path = hierarchy / "data/root/codec-raw/c0/0"
    stored = bytearray(path.read_bytes())
    index = np.frombuffer(stored, dtype="<u8", offset=len(stored) - 96).reshape(6, 2)
    index[4, entry] = value
    path.write_bytes(stored)
    with pytest.raises(ShardError, match=text) as error:
        convert_2022(hierarchy, tmp_path / "v3", path="codec-raw")
    assert "codec-raw/c0/0" in str(error.value)
    assert not (tmp_path / "v3/codec-raw/zarr.json").exists()
    with pytest.raises(ShardError):
        open_2022(hierarchy, "codec-raw", strict=True)[...]
