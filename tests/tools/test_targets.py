# test_targets.py - how tools find arrays and shards, and the names that they refuse
# SPDX-License-Identifier: MIT
"""Arrays and shards are found in folders, zip files, URLs and zarr stores, key by key.

An HDF5 file with a group named ``..`` made `convert` write beside the destination, over other arrays.

Names also come from listings of stores, from entries of zip files, from plans and from arguments.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    OtherMemoryStore,
    bytes_of_files,
    create,
    gap_of,
    letters,
    letters_spec,
    memory_object_store,
    quiet,
    store_of,
)
from servers.http_objects import serving
from spec_json import LITTLE
from tool_sources import COPIES, add_unknown_codec, by_convert, by_repair, edit, write_array
from zarr.storage import MemoryStore, ZipStore

from shardcodec import ShardSpec, SpecError, UnsupportedError, chunk_state, open_array, tools
from shardcodec.cli.app import run
from shardcodec.format.chunk_keys import KeyEncoding
from shardcodec.tools import compact, convert, inspect, plan_convert, repair, verify
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.jobs.job_files import PlanFile
from shardcodec.tools.names import node_path
from shardcodec.tools.targets import ForeignObject


def hierarchy(store: Any) -> Any:
    """Make a group with an array at its root and one in a subgroup; of each, two of four shards exist."""
    with quiet():
        group = zarr.create_group(store, overwrite=False)
    for parent, name in ((group, "a"), (group.create_group("sub"), "b")):
        array = create(parent.store, name=f"{parent.path}/{name}".lstrip("/"))
        array[:8] = 7
    return group


def keys(array: Any) -> list[str]:
    return sorted(shard.relative for shard in array.shards())


def test_group_has_all_arrays_below_it(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    found = list(find_arrays(tmp_path / "g.zarr"))
    assert [one.name for one in found] == ["a", "sub/b"]
    assert [keys(one) for one in found] == [["c/0/0", "c/0/1"]] * 2
    assert found[1].place == str(tmp_path / "g.zarr/sub/b")
    assert found[0].shard_grid == (2, 2) and found[0].n_grid_shards == 4


def test_zip_store_that_is_not_open_yet(tmp_path: Path) -> None:
    """Before zarr 3.2 a `ZipStore` does not open itself for a listing: AttributeError, also for the new hierarchy of a conversion."""
    hierarchy(tmp_path / "g.zarr")
    new = ZipStore(tmp_path / "new.zip", mode="w")
    assert tools.convert(tmp_path / "g.zarr", new).is_complete
    new.close()

    def zipped() -> ZipStore:
        return ZipStore(tmp_path / "new.zip", mode="r")

    assert tools.verify(tmp_path / "g.zarr", against=zipped()).n_findings == 0
    assert tools.verify(zipped(), against=tmp_path / "g.zarr").n_findings == 0
    assert [one.name for one in tools.inspect(zipped()).arrays] == [
        one.name for one in find_arrays(tmp_path / "g.zarr")
    ]
    assert open_array(zipped(), path="sub/b").shape == zarr.open_array(tmp_path / "g.zarr/sub/b").shape


@pytest.mark.parametrize("name", ["sub/b", "/sub/b/"])
def test_one_array_of_a_group(tmp_path: Path, name: str) -> None:
    hierarchy(tmp_path / "g.zarr")
    (one,) = find_arrays(tmp_path / "g.zarr", array=name)
    assert one.name == "sub/b"
    with pytest.raises(FileNotFoundError, match="has no array 'c'"):
        list(find_arrays(tmp_path / "g.zarr", array="c"))


def test_path_of_an_array_in_a_group(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    (one,) = find_arrays(tmp_path / "g.zarr/sub/b")
    assert one.name == "" and keys(one) == ["c/0/0", "c/0/1"]
    with pytest.raises(ValueError, match="is an array, got 'b'"):
        list(find_arrays(tmp_path / "g.zarr/sub/b", array="b"))


def test_path_of_a_shard_finds_its_array(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    (one,) = find_arrays(tmp_path / "g.zarr/sub/b/c/0/1")
    (shard,) = one.shards()
    assert shard.coords == (0, 1) and one.n_grid_shards == 1
    assert shard.name == str(tmp_path / "g.zarr/sub/b/c/0/1")
    with shard.open() as handle:
        assert (handle.read_region() == 7).all()


@pytest.mark.parametrize(("path", "error", "text"), [
    ("a/c/1/1", FileNotFoundError, "does not exist"),
    ("a/c/2/0", ValueError, r"expected the key of a shard, such as 'c/0/0'.*\(2, 2\) shards, got 'c/2/0'"),
    ("a/c/0", ValueError, "got 'c/0'"),
    ("other", FileNotFoundError, "'other' is neither an array nor a shard of the group"),
])  # fmt: skip
def test_wrong_path_inside_a_hierarchy_is_told(tmp_path: Path, path: str, error: Any, text: str) -> None:
    hierarchy(tmp_path / "g.zarr")
    with pytest.raises(error, match=text):
        list(find_arrays(tmp_path / "g.zarr" / path))


def test_path_without_any_document_is_told(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(letters())
    with pytest.raises(FileNotFoundError, match=r"neither it nor a folder above has a zarr\.json"):
        list(find_arrays(tmp_path / "shard"))


def test_shard_without_its_array_needs_a_spec(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(letters())
    (one,) = find_arrays(tmp_path / "shard", spec=letters_spec())
    (shard,) = one.shards()
    assert shard.coords is None
    assert shard.open().read_encoded([(0, 0)]) == [b"zero"]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        list(find_arrays(tmp_path / "other", spec=letters_spec()))


@pytest.mark.parametrize("name", ["data.zip", "data.ozx", "data"])
def test_zip_file_and_a_path_into_it(name: str, tmp_path: Path) -> None:
    """A zip file is known by its content: OME-Zarr names it `.ozx`, and users give it any name."""
    store = zarr.storage.ZipStore(tmp_path / name, mode="w")
    hierarchy(store)
    store.close()
    assert [keys(one) for one in find_arrays(tmp_path / name)] == [["c/0/0", "c/0/1"]] * 2
    (one,) = find_arrays(tmp_path / name / "sub/b")
    assert keys(one) == ["c/0/0", "c/0/1"]
    (shard,) = next(find_arrays(tmp_path / name / "a/c/0/1")).shards()
    assert (shard.open().read_region() == 7).all()


@pytest.mark.parametrize("is_whole", [True, False])
def test_shard_that_has_the_bytes_of_a_zip_file_is_a_shard(is_whole: bool, tmp_path: Path) -> None:
    """Raw chunks may be anything, so the folders above a file are looked at too."""
    hierarchy(tmp_path / "g.zarr")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as file:
        file.writestr("readme", "text")
    data = (tmp_path / "some.zip").read_bytes()
    (tmp_path / "g.zarr/a/c/0/1").write_bytes(data if is_whole else data[:20])
    (one,) = find_arrays(tmp_path / "g.zarr/a/c/0/1")
    assert keys(one) == ["c/0/1"]


def test_damaged_zip_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match=r"a\.zip'?: expected a zip file"):
        list(find_arrays(tmp_path / "a.zip"))


@pytest.mark.parametrize("make", [zarr.storage.MemoryStore, memory_object_store])
def test_zarr_stores(make: Any) -> None:
    store = make()
    hierarchy(store)
    assert [keys(one) for one in find_arrays(store)] == [["c/0/0", "c/0/1"]] * 2
    (one,) = find_arrays(zarr.storage.StorePath(store, "sub/b/c/0/0"))
    assert keys(one) == ["c/0/0"]


class ListsInLoop(OtherMemoryStore):
    """Its listings need the running event loop before they are awaited, as those of icechunk 2.3."""

    def list_prefix(self, prefix: str) -> Any:
        asyncio.get_running_loop()
        return _Listing(super().list_prefix(prefix))


class _Listing:
    def __init__(self, keys: Any) -> None:
        self._keys = keys

    def __aiter__(self) -> Any:
        asyncio.get_running_loop()
        return self

    def __anext__(self) -> Any:
        asyncio.get_running_loop()
        return self._keys.__anext__()

    def aclose(self) -> Any:
        asyncio.get_running_loop()
        return self._keys.aclose()


class ListsDocuments(OtherMemoryStore):
    """Documents are among the names in a folder, and a key below one is an error, as in VirtualiZarr's ManifestStore."""

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        if "zarr.json/" in key:
            raise NotADirectoryError(key)
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize("kind", [ListsInLoop, ListsDocuments])
def test_every_tool_takes_a_store_of_another_library(kind: Any, tmp_path: Path) -> None:
    hierarchy(store := kind())
    assert [one.layout is not None for one in tools.inspect(store).arrays] == [True, True]
    assert [one.n_shards for one in tools.verify(store, level="decode").arrays] == [2, 2]
    assert tools.repair(store, dry_run=True).n_damaged == 0
    assert tools.compact(store, to=tmp_path / "packed").n_shards == 4
    assert tools.convert(store, tmp_path / "new").is_complete
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a", "sub", "zarr.json"]


def test_server_without_ranges_is_read_in_whole_objects(tmp_path: Path) -> None:
    """Arrays with small shards were read, and all tools failed with an error of obstore."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    hierarchy(tmp_path / "g.zarr")
    with serving() as objects:
        objects.has_ranges = False
        objects.blobs |= {f"/{name}": data for name, data in bytes_of_files(tmp_path).items()}
        url = f"{objects.url}/g.zarr/a"
        with gap_of(0):
            assert (open_array(url)[:8] == 7).all()
        assert tools.inspect(url).arrays[0].stored.n_shards == 2
        assert tools.verify(url, level="decode").arrays[0].n_damaged == 0
        tools.compact(url, to=tmp_path / "packed")
        tools.convert(url, tmp_path / "new")
        for copy in ("packed", "new"):
            assert (open_array(tmp_path / copy)[:] == open_array(tmp_path / "g.zarr/a")[:]).all()
        assert chunk_state(url).exists.sum() == chunk_state(tmp_path / "g.zarr/a").exists.sum()


def test_options_of_a_store_do_not_reach_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were refused for a path beside a URL, and given to a store of another service."""
    hierarchy(tmp_path / "g.zarr")
    shutil.copytree(tmp_path / "g.zarr", tmp_path / "copy.zarr")
    seen: list[Any] = []

    def store_at(url: str, options: Any = None) -> Any:
        seen.append((url.partition(":")[0], options))
        return str(tmp_path / url.partition("://x/")[2])

    monkeypatch.setattr("shardcodec.storage.kinds.store_at", store_at)
    local, copy, options = str(tmp_path / "g.zarr"), "x/copy.zarr", {"region": "here"}
    for target, other in (
        (local, f"s3://{copy}"),
        (f"s3://{copy}", local),
        ("s3://x/g.zarr", f"gs://{copy}"),
    ):
        seen.clear()
        assert tools.verify(target, against=other, storage_options=options).n_findings == 0
        assert tools.repair(target, copy=other, dry_run=True, storage_options=options).n_damaged == 0
        assert {repr(given) for scheme, given in seen if scheme == "s3"} == {repr(options)}
        assert {repr(given) for scheme, given in seen if scheme == "gs"} <= {"None"}
    with pytest.raises(TypeError, match="expected them only with a URL"):
        tools.verify(local, against=local, storage_options=options)


def test_server_that_cannot_list_has_all_shards_of_the_grid(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    hierarchy(tmp_path / "g.zarr")
    with serving() as objects:
        objects.blobs |= {f"/{name}": data for name, data in bytes_of_files(tmp_path).items()}
        (one,) = find_arrays(f"{objects.url}/g.zarr/a")
        assert keys(one) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
        assert [shard.open().exists for shard in one.shards()] == [True, True, False, False]
        (one,) = find_arrays(f"{objects.url}/g.zarr/a/c/0/1")
        assert keys(one) == ["c/0/1"]
        with pytest.raises(UnsupportedError, match="cannot list its objects"):
            list(find_arrays(f"{objects.url}/g.zarr"))
        with quiet():
            zarr.consolidate_metadata(str(tmp_path / "g.zarr"))
        objects.blobs["/g.zarr/zarr.json"] = (tmp_path / "g.zarr/zarr.json").read_bytes()
        assert [one.name for one in find_arrays(f"{objects.url}/g.zarr")] == ["a", "sub/b"]
        assert [one.name for one in find_arrays(f"{objects.url}/g.zarr", array="sub/b")] == ["sub/b"]


def test_file_url_is_a_path(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    (one,) = find_arrays(f"file://{tmp_path}/g.zarr/a/c/0/1")
    assert keys(one) == ["c/0/1"]


def test_other_objects_in_the_folder_are_foreign(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    for name in ("c/0/0.tmp", "c/9/0", "c/00/1", "notes.txt"):
        path = tmp_path / "a.zarr" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"?")
    (one,) = find_arrays(tmp_path / "a.zarr")
    foreign = {o.key: o.reason for o in one.objects() if isinstance(o, ForeignObject)}
    assert sorted(foreign) == ["c/0/0.tmp", "c/00/1", "c/9/0", "notes.txt"]
    assert foreign["c/9/0"] == "it is outside the grid of shards (2, 2)"
    assert foreign["notes.txt"] == "its key is not the key of a shard"
    assert len(keys(one)) == 4


def test_keys_are_not_collected_before_the_first_is_used(tmp_path: Path) -> None:
    """Folders are read one after the other, so an array of any size needs little memory."""
    create(tmp_path / "a.zarr")[...] = 1
    (one,) = find_arrays(tmp_path / "a.zarr")
    shards = one.shards()
    first = next(shards)
    other = "c/1" if first.relative.startswith("c/0") else "c/0"
    for file in (tmp_path / "a.zarr" / other).iterdir():
        file.unlink()
    assert all(not shard.relative.startswith(other) for shard in shards)


def test_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    (tmp_path / "a.zarr/c/loop").symlink_to(tmp_path / "a.zarr")
    (one,) = find_arrays(tmp_path / "a.zarr")
    assert keys(one) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]


def test_chunks_of_an_array_without_shards_take_their_place(tmp_path: Path) -> None:
    with quiet():
        zarr.create_array(tmp_path / "a.zarr", shape=(4,), chunks=(2,), dtype="i4")[...] = 1
        zarr.create_array(tmp_path / "v2.zarr", shape=(4,), chunks=(2,), dtype="i4", zarr_format=2)[...] = 1
    for name in ("a.zarr", "v2.zarr"):
        (one,) = find_arrays(tmp_path / name)
        assert one.layout is not None and one.layout.shape == (4,)
        assert not one.is_sharded and one.problem is None and one.is_plain
        assert keys(one) == (["c/0", "c/1"] if name == "a.zarr" else ["0", "1"])
    with pytest.raises(UnsupportedError, match="it is not sharded"):
        list(find_arrays(tmp_path / "a.zarr/c/0"))


def test_broken_array_in_a_group_has_a_problem(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    (tmp_path / "g.zarr/a/zarr.json").write_text("{")
    edit(tmp_path / "g.zarr/sub/b/zarr.json", data_type="no_such_type")
    a, b = find_arrays(tmp_path / "g.zarr")
    assert a.problem is not None and "expected JSON" in a.problem
    assert b.problem is None and b.foreign_type == "no_such_type"
    with pytest.raises(SpecError, match="expected JSON"):
        list(find_arrays(tmp_path / "g.zarr/a"))


def test_inner_codec_without_native_code_hides_only_the_elements(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    add_unknown_codec(tmp_path / "a.zarr")
    (one,) = find_arrays(tmp_path / "a.zarr")
    assert one.foreign_codec == "no.such" and one.is_sharded
    assert next(one.shards()).open().state().all()


def test_codecs_after_the_sharding_are_a_problem(tmp_path: Path) -> None:
    spec = ShardSpec((4, 4), (2, 2), "uint8", 0, [LITTLE], after=["crc32c"])
    write_array(tmp_path / "a", spec, (8, 8))
    (one,) = find_arrays(tmp_path / "a")
    assert one.problem is not None and "hide their inner chunks" in one.problem
    with pytest.raises(UnsupportedError, match="hide their inner chunks"):
        one.shard((0, 0)).open()


@pytest.mark.parametrize(("keys", "key", "coords"), [
    (KeyEncoding(True, "/"), "c/1/20", (1, 20)), (KeyEncoding(True, "."), "c.1.20", (1, 20)),
    (KeyEncoding(False, "."), "1.20", (1, 20)), (KeyEncoding(False, "/"), "1/20", (1, 20)),
    (KeyEncoding(True, "/"), "c/1", None), (KeyEncoding(True, "/"), "c/1/2/3", None),
    (KeyEncoding(True, "/"), "c/1/02", None), (KeyEncoding(True, "/"), "c/1/-2", None),
    (KeyEncoding(True, "/"), "c/1/²", None), (KeyEncoding(True, "/"), "d/1/2", None),
    (KeyEncoding(False, "."), "c.1", None),
])  # fmt: skip
def test_position_of_a_key(keys: KeyEncoding, key: str, coords: Any) -> None:
    assert keys.coords(key, 2) == coords
    if coords is not None:
        assert keys.key(coords) == key


@pytest.mark.parametrize("keys", [KeyEncoding(True, "/"), KeyEncoding(False, ".")])
def test_position_of_the_only_key_of_rank_0(keys: KeyEncoding) -> None:
    assert keys.coords(keys.key(()), 0) == ()
    assert keys.coords("1", 0) is None


def test_zip_of_other_files_is_no_hierarchy(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("readme", "text")
    with pytest.raises(FileNotFoundError, match="expected a zarr group"):
        list(find_arrays(tmp_path / "a.zip"))


def test_many_shards_on_an_object_store_are_listed_in_pages() -> None:
    store = memory_object_store()
    array = create(store, shape=(1500,), shards=(1,), chunks=(1,), dtype="uint8", fill_value=0)
    array[...] = np.ones(1500, "uint8")
    (one,) = find_arrays(store)
    assert len(list(one.shards())) == 1500


CANNOT = "expected the path of an array or a group that can be written"
WRONG = [
    "..", ".", "...", "a/../b", "/a", "a//b", "a/", "x\0y", "a\\b", "zarr.json", "a/.zarray",
    ".shardcodec-job",
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_path_that_cannot_be_written(name: str) -> None:
    with pytest.raises(ValueError, match=CANNOT):
        node_path(name)


@pytest.mark.parametrize(
    "name", ["", "a", "a/b", "..a", "a..", ".hidden", "__categories", "c/0", "zarr", "é b"]
)
def test_path_that_can_be_written(name: str) -> None:
    assert node_path(name) == name


@pytest.mark.parametrize(
    "name", ["../victim.zarr", "zarr.json", "group/zarr.json", ".shardcodec-job", "a\\b"]
)
@pytest.mark.parametrize("is_group", [True, False])
def test_names_of_an_hdf5_file(name: str, is_group: bool, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fine"] = np.arange(10)
        if is_group:
            file.create_group(name)
        else:
            file[name] = np.arange(20)
    create(tmp_path / "victim.zarr")[...] = 5
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    left = name.removesuffix("/victim.zarr")
    with pytest.raises(ValueError, match=f"{CANNOT}|only: expected the path of an array"):
        convert(tmp_path / "a.h5", tmp_path / "b.zarr", only=[left])
    report = convert(tmp_path / "a.h5", tmp_path / "c.zarr")
    assert report.is_complete and [one.name for one in report.left_arrays] == [left]
    new = {path for path in (tmp_path / "c.zarr").rglob("*") if path.is_file()}
    assert {path.name for path in new} == {"zarr.json", "0"}
    assert {path: path.read_bytes() for path in {*tmp_path.rglob("*")} - new if path.is_file()} == before
    planned = plan_convert(tmp_path / "a.h5", tmp_path / "d.zarr", tmp_path / "plan.json", parts=1)
    assert [one.name for one in planned.left_arrays] == [left]
    assert convert(tmp_path / "a.h5", tmp_path / "e.zarr", only=["fine"]).is_complete


def listed(kind: str, folder: Path, name: str) -> Any:
    """Return a group with one array whose name an ordinary program does not make."""
    store = store_of("memory", folder)
    with quiet():
        group = zarr.create_group(store)
        group.create_array("x", data=np.arange(64), chunks=(8,), shards=(32,))
    items = {key.replace("x/", f"{name}/", 1): value for key, value in store._store_dict.items()}
    if kind == "memory":
        return MemoryStore(items)
    with zipfile.ZipFile(folder / "a.zip", "w") as file:
        for key, value in items.items():
            file.writestr(key, value.to_bytes())
    return folder / "a.zip"


@pytest.mark.parametrize("name", ["..", "a\\b", ".shardcodec-x"])
@pytest.mark.parametrize("kind", ["memory", "zip"])
@pytest.mark.parametrize("only_arrays", [True, False])
def test_names_of_a_listing(name: str, kind: str, only_arrays: bool, tmp_path: Path) -> None:
    source = listed(kind, tmp_path, name)
    assert [one.name for one in verify(source).arrays] == [name]  # to read it is harmless
    new = tmp_path / "to/b.zarr"
    for work in COPIES.values():
        with pytest.raises(ValueError, match=CANNOT):
            work(source, new, exclude=["@objects"] * only_arrays)
        assert not (tmp_path / "to").exists()


def test_backups_stay_in_their_folder(tmp_path: Path) -> None:
    source = listed("memory", tmp_path, "..")
    key = "../c/0"
    source._store_dict[key] = type(source._store_dict[key]).from_bytes(
        source._store_dict[key].to_bytes()[:-8]
    )
    with pytest.raises(ValueError, match=CANNOT):
        repair(source, backup=tmp_path / "outer/backup")
    assert not (tmp_path / "outer").exists()


@pytest.mark.parametrize("name", ["../other", "a/../../other", "."])
def test_array_outside_of_the_group_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zarr.create_group(tmp_path / "a.zarr").create_group("a")
    create(tmp_path / "other")[...] = 1
    for work in (inspect, verify, compact):
        with pytest.raises(ValueError, match="only: expected the path of an array in the group"):
            work(tmp_path / "a.zarr", only=name)
    for work in (by_convert, by_repair):
        with pytest.raises(ValueError, match="only: expected the path of an array in the group"):
            work(tmp_path / "a.zarr", tmp_path / "b.zarr", only=name)
    assert run(["verify", str(tmp_path / "a.zarr"), "--only", name]) == 2
    assert "only: expected the path of an array in the group" in capsys.readouterr().err
    assert not (tmp_path / "b.zarr").exists()


@pytest.mark.parametrize("member", ["arrays", "documents", "verbatim"])
def test_names_of_a_plan(member: str, tmp_path: Path) -> None:
    """A checksum protects a plan from accidents only."""
    with quiet():
        zarr.create_group(tmp_path / "a.zarr").create_array("x", data=np.arange(64), chunks=(8,))
    plan_convert(tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "plan.json", parts=1)
    data = json.loads((tmp_path / "plan.json").read_text())
    if member == "arrays":
        data["plan"]["arrays"][0]["name"] = "../x"
    elif member == "documents":
        data["plan"]["documents"]["../x"] = data["plan"]["documents"].pop("x")
    else:
        data["plan"]["verbatim"] = ["../x"]
    data["checksum"] = importlib.import_module("shardcodec.tools.jobs.job_files")._checksum(data)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=CANNOT):
        PlanFile.read(tmp_path / "plan.json")
