# test_format_2022.py - arrays of the 2022 format, compared with the zarr-python that writes them
# SPDX-License-Identifier: MIT
"""`open_2022` on arrays of zarr-python 2.18.7, and zarr-python 2.18.7 on arrays that `open_2022` has changed
(ST-19).
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import shardcodec
from shardcodec.transformer import convert_2022, open_2022

from .cases_2022 import BY_NAME, CASES, Case, to_file
from .checks_2022 import MISREAD, NAMES, assert_same, expected, store_of, zarr_fails, zarrs_own
from .venv_2022 import Zarr2, zarr2

pytestmark = pytest.mark.filterwarnings("ignore")


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("name", NAMES)
def test_read_equals_zarr_2(made: Path, name: str) -> None:
    case, wanted = BY_NAME[name], expected(made, name)
    array = open_2022(made / "h", name, mode="r", strict=True)
    assert array.shape == case.shape
    assert_same(array[...], wanted, case)
    assert_same(
        array[tuple(slice(1, n - 1, 2) for n in case.shape)],
        wanted[tuple(slice(1, n - 1, 2) for n in case.shape)],
        case,
    )
    if not zarr_fails(case):
        assert_same(zarrs_own(array.store, name)[...], wanted, case)


@pytest.mark.parametrize("name", ["plain", "order-F", "dots", "no-axes", "stack", "codec-bz2"])
@pytest.mark.parametrize("kind", ["memory", "subclass"])
def test_read_from_other_stores_equals_zarr_2(made: Path, name: str, kind: str) -> None:
    array = open_2022(store_of(made / "h", kind), name, mode="r", strict=True)
    assert_same(array[...], expected(made, name), BY_NAME[name])


def test_engine_reads_files_itself(made: Path) -> None:
    """`strict` forbids zarr's pipeline, and the test forbids requests to the store."""
    array = open_2022(made / "h", "plain", mode="r")
    asked = []
    array.store.base.get = lambda *given: asked.append(given)  # type: ignore[method-assign]
    assert_same(array[...], expected(made, "plain"), BY_NAME["plain"])
    assert not asked


def test_shards_transformer_and_state_agree(made: Path) -> None:
    wanted = expected(made, "plain")
    array = open_2022(made / "h", "plain", mode="r")
    copy = pickle.loads(pickle.dumps(array))
    assert np.array_equal(copy[...], wanted)
    assert np.array_equal(shardcodec.open_array(array.store, "plain")[...], wanted)
    state = shardcodec.chunk_state(array)
    assert not state.exists[0, 0]  # deleted
    assert state.exists[1, 1]
    assert not state.exists[-1, -1]  # in an absent shard
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    shard = shardcodec.open_shard(array.store, "plain/c/0/0", spec)
    assert shard.gaps()
    assert np.array_equal(shard.read_region(), wanted[:8, :9])


def test_group_opens_its_arrays(made: Path) -> None:
    group = open_2022(made / "h", "group", mode="r")
    assert dict(group.attrs) == {"kind": "made by zarr 2"}
    assert [name for name, _ in group.members(max_depth=None)] == ["within", "within/array"]
    assert np.array_equal(group["within/array"][...], expected(made, "group/within/array"))
    top = open_2022(made / "h", mode="r")
    if not MISREAD:
        assert {case.name.partition("/")[0] for case in CASES} == set(top.keys())


def test_dimension_names_are_those_of_xarray(made: Path) -> None:
    assert open_2022(made / "h", "plain", mode="r").metadata.dimension_names == ("y", "x")


@pytest.mark.parametrize("name", ["nothing", "plain/c", "group/nothing"])
def test_missing_array_is_an_error(made: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        open_2022(made / "h", name)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="zarr 2.14 needs numpy 1, which does not support this Python"
)
def test_arrays_of_zarr_2_14_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    names = [name for name in NAMES if "codec-zstd" not in name]  # zarr 2.14 has no zstd
    zarr2("2.14.2").run("make", folder, *names)
    for name in names:
        array = open_2022(folder / "h", name, mode="r", strict=True)
        assert_same(array[...], expected(folder, name), BY_NAME[name])


# ---------------------------------------------------------------- writing


def changed_box(case: Case) -> tuple[slice, ...]:
    return tuple(slice(n // 5, n - n // 4) for n in case.shape)


@pytest.fixture(scope="session")
def updated(made: Path, zarr_2_18: Zarr2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with arrays that shardcodec has changed, and with the values that zarr 2.18.7 then reads of
    each.
    """
    folder = tmp_path_factory.mktemp("updated")
    shutil.copytree(made / "h", folder / "h")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in (BY_NAME[name] for name in NAMES):
            array = open_2022(folder / "h", case.name, strict=True)
            array[changed_box(case)] = case.data(5)[changed_box(case)]
            array.attrs["changed"] = case.name
    zarr_2_18.run("read", folder / "h", folder, *NAMES)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_zarr_2_reads_updated_arrays(made: Path, updated: Path, name: str) -> None:
    case, wanted = BY_NAME[name], expected(made, name)
    new = case.data(5)[changed_box(case)]
    wanted[changed_box(case)] = to_file(new) if case.dtype is object else new
    found = expected(updated, name)
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()
    assert json.loads((updated / "attributes.json").read_text())[name]["changed"] == name


def test_zeros_are_stored_without_a_fill_value(hierarchy: Path) -> None:
    """With a fill value of null, zarr 2 returns uninitialised memory for an absent chunk."""
    array = open_2022(hierarchy, "fill-null")
    array[...] = 0
    assert shardcodec.chunk_state(array).exists.all()


def test_update_keeps_the_form_of_the_index(hierarchy: Path) -> None:
    """The index has no checksum, is little-endian, in C order and at the end."""
    array = open_2022(hierarchy, "plain")
    array[:8, :9] = 7  # the fill value: the first shard becomes empty
    assert not (hierarchy / "data/root/plain/c0/0").exists()
    array[0:4, 3:6] = 1
    stored = (hierarchy / "data/root/plain/c0/0").read_bytes()
    index = np.frombuffer(stored[-16 * 6 :], dtype="<u8").reshape(2, 3, 2)
    assert index[0, 1].tolist() == [0, len(stored) - 16 * 6]
    assert (np.delete(index.reshape(6, 2), 1, axis=0) == 2**64 - 1).all()


@pytest.mark.parametrize("name", ["plain", "unsharded", "codec-bz2", "no-axes"])
@pytest.mark.parametrize("kind", ["memory", "subclass"])
def test_update_in_other_stores(made: Path, name: str, kind: str) -> None:
    case, store, wanted = BY_NAME[name], store_of(made / "h", kind), expected(made, name)
    box = changed_box(case)
    wanted[box] = case.data(3)[box]
    open_2022(store, name, strict=True)[box] = case.data(3)[box]
    assert_same(open_2022(store, name)[...], wanted, case)


def test_array_without_elements_is_read_and_written(hierarchy: Path, tmp_path: Path) -> None:
    path = hierarchy / "meta/root/plain.array.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shape": [0, 5]}))
    assert open_2022(hierarchy, "plain")[...].shape == (0, 5)
    assert convert_2022(hierarchy, tmp_path / "v3", path="plain")[...].shape == (0, 5)


def test_xarray_finds_dimension_names(made: Path, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    for name in ("zarr.json", "meta/root/plain.array.json", "data/root/plain"):
        copy = shutil.copytree if (made / "h" / name).is_dir() else shutil.copy
        (tmp_path / "h" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(made / "h" / name, tmp_path / "h" / name)
    convert_2022(tmp_path / "h", tmp_path / "v3")
    for store in (open_2022(tmp_path / "h", mode="r").store, tmp_path / "v3"):
        plain = xarray.open_zarr(store, consolidated=False).plain
        assert plain.dims == ("y", "x")
        assert plain.attrs["title"] == "plain"
        elements = expected(made, "plain")
        if store == tmp_path / "v3":  # the copy has the fill value as xarray's mask of missing elements
            elements = np.where(elements == 7, np.nan, elements)
        assert np.array_equal(plain.values, elements, equal_nan=True)


def test_read_only_array_refuses_writes(hierarchy: Path) -> None:
    before = (hierarchy / "data/root/plain/c0/0").read_bytes()
    for array in (
        open_2022(hierarchy, "plain", mode="r"),
        open_2022(LocalStore(hierarchy), "plain", mode="r"),
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="read-only"):
            array.attrs["a"] = 1
    assert (hierarchy / "data/root/plain/c0/0").read_bytes() == before
    with pytest.raises(ValueError, match="mode"):
        open_2022(hierarchy, "plain", mode="w")


def test_resize_and_attributes_are_stored_for_zarr_2(
    hierarchy: Path, zarr_2_18: Zarr2, tmp_path: Path
) -> None:
    wanted = open_2022(hierarchy, "filter-delta")[...]
    array = open_2022(hierarchy, "filter-delta")
    array.attrs.update({"a": [1, {"b": None}]})
    array.resize((10, 30))
    assert open_2022(hierarchy, "filter-delta").shape == (10, 30)
    zarr_2_18.run("read", hierarchy, tmp_path, "filter-delta")
    found = expected(tmp_path, "filter-delta")
    assert np.array_equal(found[:, :13], wanted[:10])
    assert (found[:, 15:] == 7).all()
    document = json.loads((hierarchy / "meta/root/filter-delta.array.json").read_text())
    assert document["attributes"]["a"] == [1, {"b": None}]
    assert document["attributes"]["filters"][0]["id"] == "delta"  # needed to decode the array
    assert document["storage_transformers"]
    group = open_2022(hierarchy, "group")
    group.attrs["b"] = 2
    assert dict(open_2022(hierarchy, "group").attrs) == {"kind": "made by zarr 2", "b": 2}


def test_other_changes_of_metadata_are_refused(hierarchy: Path) -> None:
    array = open_2022(hierarchy, "filter-delta")
    with pytest.raises(shardcodec.UnsupportedError, match="filters"):
        array.attrs["filters"] = []
    group = open_2022(hierarchy)
    with pytest.raises(shardcodec.UnsupportedError, match="convert_2022"):
        group.create_array("new", shape=(3,), dtype="i4")
    changed = {**array.metadata.to_dict(), "fill_value": 8}
    buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(json.dumps(changed).encode())
    with pytest.raises(shardcodec.UnsupportedError, match="fill_value"):
        zarr.core.sync.sync(array.store.set("filter-delta/zarr.json", buffer))


# ---------------------------------------------------------------- the view as a store


def test_delete_through_the_view_removes_a_chunk(hierarchy: Path) -> None:
    group = open_2022(hierarchy, "group")
    del group["within"]
    assert not [p for p in hierarchy.rglob("*") if "within" in str(p)]
    assert open_2022(hierarchy, "plain").shape == (21, 13)


def test_view_lists_the_keys_of_a_v3_array(made: Path) -> None:
    async def listed(keys: Any) -> set[str]:
        return {key async for key in keys}

    view = open_2022(made / "h", "plain", mode="r").store
    shown = zarr.core.sync.sync(listed(view.list_prefix("dots/")))
    stored = {p.name for p in (made / "h/data/root/dots").iterdir()}
    assert shown == {"dots/zarr.json"} | {f"dots/c.{name[1:]}" for name in stored}
    everything = zarr.core.sync.sync(listed(view.list()))
    assert {f"{name}/zarr.json" for name in NAMES} <= everything
    assert "plain/c/0/0" in everything
    assert all(zarr.core.sync.sync(view.exists(key)) for key in shown)
    assert zarr.core.sync.sync(listed(view.list_dir("dots"))) == {key.removeprefix("dots/") for key in shown}
    assert {"zarr.json", "c"} == zarr.core.sync.sync(listed(view.list_dir("plain")))
