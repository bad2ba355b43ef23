# test_format_2022.py - arrays of the 2022 format, with the zarr-python that writes them
# SPDX-License-Identifier: MIT
"""`open_2022` and `convert_2022` on what zarr-python 2.18.7 has written, and zarr-python 2.18.7 on what they have."""

from __future__ import annotations

import importlib.util
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
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec.errors import ShardError
from shardcodec.transformer import convert_2022, open_2022

from .cases_2022 import BY_NAME, CASES, Case, to_file
from .venv_2022 import Zarr2, zarr2

pytestmark = pytest.mark.filterwarnings("ignore")

ZARR_IS_31 = zarr.__version__.startswith("3.1.")
MISREAD = ["type-struct-big", "filter-delta-big-F"] if ZARR_IS_31 else []
NAMES = [case.name for case in CASES if case.name not in MISREAD]


@pytest.fixture(scope="session")
def zarr_2_18() -> Zarr2:
    return zarr2("2.18.7")


@pytest.fixture(scope="session")
def made(zarr_2_18: Zarr2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hierarchy ``h`` of all cases, and for each what zarr 2.18.7 reads."""
    folder = tmp_path_factory.mktemp("made")
    zarr_2_18.run("make", folder, *(case.name for case in CASES))
    return folder


@pytest.fixture
def hierarchy(made: Path, tmp_path: Path) -> Path:
    """A copy to write to."""
    return Path(shutil.copytree(made / "h", tmp_path / "h"))


def expected(folder: Path, name: str) -> np.ndarray[Any, Any]:
    return np.load(folder / f"{name}.npy", allow_pickle=False)


def assert_same(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], case: Case) -> None:
    """Bit by bit, but for the byte order in memory. What zarr 2 fills strings with need not be a string."""
    if case.dtype is object:
        found = to_file(found.astype(object))
        wanted = np.where(
            np.char.startswith(wanted, "int"),
            to_file(np.array([b"" if "bytes" in case.name else ""], object))[0],
            wanted,
        )
    assert found.shape == wanted.shape
    assert found.astype(wanted.dtype).tobytes() == wanted.tobytes()


def zarrs_own(folder: Any, name: str) -> Any:
    """The same array with zarr's own pipeline."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        return zarr.open_array(folder, path=name, mode="r")


def zarr_fails(case: Case) -> bool:
    """zarr 3.1 cannot read part of a shard of structs, or of bytes that mean nothing."""
    return ZARR_IS_31 and np.dtype(case.dtype).kind == "V"


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("name", NAMES)
def test_reads_what_zarr_2_reads(made: Path, name: str) -> None:
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
def test_reads_from_other_stores(made: Path, name: str, kind: str) -> None:
    array = open_2022(store_of(made / "h", kind), name, mode="r", strict=True)
    assert_same(array[...], expected(made, name), BY_NAME[name])


class OtherStore(MemoryStore):
    """Reached by asynchronous calls only, since a subclass may do anything."""


def store_of(folder: Path, kind: str) -> Any:
    buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    objects = {str(p.relative_to(folder)): buffer(p.read_bytes()) for p in folder.rglob("*") if p.is_file()}
    return (MemoryStore if kind == "memory" else OtherStore)(objects)


def test_files_are_read_by_the_engine(made: Path) -> None:
    """`strict` forbids zarr's pipeline, but not requests to the store."""
    array = open_2022(made / "h", "plain", mode="r")
    asked = []
    array.store.base.get = lambda *given: asked.append(given)  # type: ignore[method-assign]
    assert_same(array[...], expected(made, "plain"), BY_NAME["plain"])
    assert not asked


def test_other_ways_to_the_same_array(made: Path) -> None:
    wanted = expected(made, "plain")
    array = open_2022(made / "h", "plain", mode="r")
    copy = pickle.loads(pickle.dumps(array))
    assert np.array_equal(copy[...], wanted)
    assert np.array_equal(shardcodec.open_array(array.store, "plain")[...], wanted)
    state = shardcodec.chunk_state(array)
    assert not state.exists[0, 0]  # deleted
    assert state.exists[1, 1]
    assert not state.exists[-1, -1]  # in a shard that is missing
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    shard = shardcodec.open_shard(array.store, "plain/c/0/0", spec)
    assert shard.gaps()
    assert np.array_equal(shard.read_region(), wanted[:8, :9])


def test_a_group(made: Path) -> None:
    group = open_2022(made / "h", "group", mode="r")
    assert dict(group.attrs) == {"kind": "made by zarr 2"}
    assert [name for name, _ in group.members(max_depth=None)] == ["within", "within/array"]
    assert np.array_equal(group["within/array"][...], expected(made, "group/within/array"))
    top = open_2022(made / "h", mode="r")
    if not MISREAD:
        assert {case.name.partition("/")[0] for case in CASES} == set(top.keys())


def test_names_of_dimensions(made: Path) -> None:
    assert open_2022(made / "h", "plain", mode="r").metadata.dimension_names == ("y", "x")


@pytest.mark.parametrize("name", ["nothing", "plain/c", "group/nothing"])
def test_what_is_not_there(made: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        open_2022(made / "h", name)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="zarr 2.14 needs numpy 1, which is not for this Python"
)
def test_what_zarr_2_14_has_written(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    names = [name for name in NAMES if "codec-zstd" not in name]  # which it does not know
    zarr2("2.14.2").run("make", folder, *names)
    for name in names:
        array = open_2022(folder / "h", name, mode="r", strict=True)
        assert_same(array[...], expected(folder, name), BY_NAME[name])


# ---------------------------------------------------------------- writing


def changed_box(case: Case) -> tuple[slice, ...]:
    return tuple(slice(n // 5, n - n // 4) for n in case.shape)


@pytest.fixture(scope="session")
def updated(made: Path, zarr_2_18: Zarr2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hierarchy to all arrays of which we have written, and for each what zarr 2.18.7 reads then."""
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
def test_zarr_2_reads_what_we_write(made: Path, updated: Path, name: str) -> None:
    case, wanted = BY_NAME[name], expected(made, name)
    new = case.data(5)[changed_box(case)]
    wanted[changed_box(case)] = to_file(new) if case.dtype is object else new
    found = expected(updated, name)
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()
    assert json.loads((updated / "attributes.json").read_text())[name]["changed"] == name


def test_zeros_are_stored_where_absent_means_anything(hierarchy: Path) -> None:
    """With a fill value of null zarr 2 takes the elements of an absent chunk from wherever memory is."""
    array = open_2022(hierarchy, "fill-null")
    array[...] = 0
    assert shardcodec.chunk_state(array).exists.all()


def test_index_keeps_its_form(hierarchy: Path) -> None:
    """No checksum, little-endian, C order, at the end."""
    array = open_2022(hierarchy, "plain")
    array[:8, :9] = 7  # the fill value: no chunk of the first shard is left
    assert not (hierarchy / "data/root/plain/c0/0").exists()
    array[0:4, 3:6] = 1
    stored = (hierarchy / "data/root/plain/c0/0").read_bytes()
    index = np.frombuffer(stored[-16 * 6 :], dtype="<u8").reshape(2, 3, 2)
    assert index[0, 1].tolist() == [0, len(stored) - 16 * 6]
    assert (np.delete(index.reshape(6, 2), 1, axis=0) == 2**64 - 1).all()


@pytest.mark.parametrize("name", ["plain", "unsharded", "codec-bz2"])
def test_writes_to_memory(made: Path, name: str) -> None:
    case, store = BY_NAME[name], store_of(made / "h", "memory")
    open_2022(store, name, strict=True)[...] = case.data(3)
    assert_same(open_2022(store, name)[...], case.data(3), case)


def test_read_only(hierarchy: Path) -> None:
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


def test_shape_and_attributes_are_written_back(hierarchy: Path, zarr_2_18: Zarr2, tmp_path: Path) -> None:
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
    assert document["attributes"]["filters"][0]["id"] == "delta"  # without them nobody could read it
    assert document["storage_transformers"]
    group = open_2022(hierarchy, "group")
    group.attrs["b"] = 2
    assert dict(open_2022(hierarchy, "group").attrs) == {"kind": "made by zarr 2", "b": 2}


def test_nothing_else_is_written_back(hierarchy: Path) -> None:
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


# ---------------------------------------------------------------- converting


@pytest.fixture(scope="session")
def converted(made: Path, zarr_2_18: Zarr2, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``v3`` and ``back``, both of all cases, and for each what zarr 2.18.7 reads of the latter."""
    folder = tmp_path_factory.mktemp("converted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            convert_2022(made / "h", folder / "v3", path=name)
        for name in NAMES:
            convert_2022(folder / "v3", folder / "back", path=name, to="2022")
    zarr_2_18.run("read", folder / "back", folder, *NAMES)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_converted(made: Path, converted: Path, name: str) -> None:
    case, wanted = BY_NAME[name], expected(made, name)
    if not zarr_fails(case):
        assert_same(zarrs_own(converted / "v3", name)[...], wanted, case)
    metadata = json.loads((converted / "v3" / name / "zarr.json").read_text())
    if case.per_shard:
        (sharding,) = metadata["codecs"]
        assert [codec["name"] for codec in sharding["configuration"]["index_codecs"]] == ["bytes", "crc32c"]
    found = expected(converted, name)
    if case.dtype is not object:
        assert_same(found, wanted, case)


@pytest.mark.parametrize("name", [name for name in NAMES if BY_NAME[name].speaks_tensorstore])
def test_tensorstore_reads_what_was_converted(made: Path, converted: Path, name: str) -> None:
    if importlib.util.find_spec("tensorstore") is None:
        pytest.skip("tensorstore is not installed")
    import tensorstore

    case = BY_NAME[name]
    if np.dtype(case.dtype).kind not in "biufc":
        pytest.skip("TensorStore has no such data type")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(converted / "v3" / name)}}
    found = tensorstore.open(spec, read=True).result().read().result()
    assert_same(np.asarray(found), expected(made, name), case)


def encoded(folder: Path, array: Any, key: str) -> list[bytes | None]:
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    shard = shardcodec.open_shard(folder, key, spec)
    return shard.read_encoded(list(np.ndindex(shard.grid_shape)))


@pytest.mark.parametrize("name", ["plain", "codec-gzip", "stack", "dots"])
def test_inner_chunks_are_copied_as_they_are(made: Path, converted: Path, name: str) -> None:
    old, new = open_2022(made / "h", name, mode="r"), zarr.open_array(converted / "v3", path=name)
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
            converted / "v3" / name, new, there
        )


def test_a_whole_hierarchy(made: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    group = convert_2022(
        made / "h", tmp_path / "v3", path="group", dst_path="a/b", progress=lambda *n: calls.append(n)
    )
    assert dict(group.attrs) == {"kind": "made by zarr 2"}
    assert np.array_equal(group["within/array"][...], expected(made, "group/within/array"))
    assert calls[-1] == (len(calls), len(calls))
    back = convert_2022(
        zarr.open_group(tmp_path / "v3", path="a/b"), tmp_path / "h2", to="2022", dst_path="c"
    )
    assert np.array_equal(back["within/array"][...], expected(made, "group/within/array"))
    assert dict(back.attrs) == {"kind": "made by zarr 2"}


@pytest.mark.parametrize("kind", ["memory", "subclass"])
def test_from_and_to_other_stores(made: Path, tmp_path: Path, kind: str) -> None:
    target: Any = MemoryStore()
    convert_2022(store_of(made / "h", kind), target, path="plain", index_checksum=False)
    array = convert_2022(target, tmp_path / "h", path="plain", to="2022")
    assert np.array_equal(array[...], expected(made, "plain"))
    assert array.metadata.dimension_names == ("y", "x")


@pytest.mark.parametrize(
    ("name", "to"), [("plain", "v3"), ("dots", "v3"), ("one-axis", "2022"), ("dots", "2022")]
)
@pytest.mark.parametrize("kind", ["folder", "subclass"])
def test_only_shards_that_a_listing_shows_are_looked_for(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, to: str, kind: str
) -> None:
    monkeypatch.setattr("shardcodec.transformer.convert.LISTING_SHARDS", 1)
    calls: list[tuple[int, int]] = []
    if to == "2022":
        convert_2022(made / "h", tmp_path / "v3", path=name)
    source = made / "h" if to == "v3" else tmp_path / "v3"
    given = source if kind == "folder" else store_of(source, kind)
    array = convert_2022(given, tmp_path / "out", path=name, to=to, progress=lambda *n: calls.append(n))
    assert np.array_equal(array[...], expected(made, name))
    files = [p for p in (made / "h/data/root" / name).rglob("*") if p.is_file()]
    assert calls == [(i + 1, len(files)) for i in range(len(files))]


def test_deleting_through_the_view(hierarchy: Path) -> None:
    group = open_2022(hierarchy, "group")
    del group["within"]
    assert not [p for p in hierarchy.rglob("*") if "within" in str(p)]
    assert open_2022(hierarchy, "plain").shape == (21, 13)


def test_keys_of_the_view(made: Path) -> None:
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


# ---------------------------------------------------------------- conversions that end early


def test_metadata_come_last(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for source, target, to in (
        (made / "h", tmp_path / "v3", "v3"),
        (tmp_path / "whole", tmp_path / "h", "2022"),
    ):
        if to == "2022":
            convert_2022(made / "h", source, path="plain")
        with pytest.raises(KeyboardInterrupt):
            convert_2022(source, target, path="plain", to=to, progress=stop)
        assert not [p for p in target.rglob("*.json") if "plain" in str(p)]
        with pytest.raises(FileExistsError, match="overwrite"):
            convert_2022(source, target, path="plain", to=to)
        array = convert_2022(source, target, path="plain", to=to, overwrite=True, durability="fsync")
        assert np.array_equal(array[...], expected(made, "plain"))
        with pytest.raises(FileExistsError, match="plain"):
            convert_2022(source, target, path="plain", to=to)
        assert np.array_equal(
            convert_2022(source, target, path="plain", to=to, overwrite=True)[...], array[...]
        )


def test_overwriting_takes_nothing_but_the_array(made: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        convert_2022(made / "h", tmp_path, path="plain", dst_path="", overwrite=True)
    zarr.create_group(tmp_path / "v3", path="plain")
    with pytest.raises(FileExistsError, match="plain"):
        convert_2022(made / "h", tmp_path / "v3", path="plain", overwrite=True)
    with pytest.raises(FileExistsError, match="another format"):
        convert_2022(made / "h", made / "h", path="plain", dst_path="copy")
    with pytest.raises(FileExistsError, match="hierarchy of Zarr v3"):
        convert_2022(
            convert_2022(made / "h", tmp_path / "w", path="plain", dst_path=""), tmp_path / "w", to="2022"
        )
    with pytest.raises(FileExistsError, match="within the array"):
        convert_2022(
            tmp_path / "w", shutil.copytree(made / "h", tmp_path / "h"), dst_path="plain/x", to="2022"
        )
    with pytest.raises(ValueError, match="letters"):
        convert_2022(tmp_path / "w", tmp_path / "h", dst_path="ü", to="2022")


@pytest.mark.parametrize(
    ("entry", "value", "text"),
    [(1, 3, "fewer|3 bytes"), (0, 2**40, "inner chunk"), (0, 2**64 - 1, "inner chunk")],
)
def test_a_damaged_index_stops_a_conversion(
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
