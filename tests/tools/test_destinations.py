# test_destinations.py - the four functions that write a new hierarchy do the same
# SPDX-License-Identifier: MIT
"""`convert`, `repair` and `compact` with `to`, and `convert_2022`: the same destinations, objects, consolidated metadata and memory."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, bytes_of_files, create, memory_object_store, quiet
from resident import run_measuring
from spec_json import array_2022
from tool_sources import COPIES, by_convert, write_2022
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath

from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert
from shardcodec.tools.new_hierarchy import check_apart
from shardcodec.transformer import convert_2022, open_2022

VALUES = np.arange(21 * 13, dtype="int32").reshape(21, 13)
# Axes with names, and a mask, as xarray has them.
MASKED = {"_ARRAY_DIMENSIONS": ["y", "x"], "units": "m"}


def make_v3(folder: Path) -> None:
    with quiet():
        zarr.create_group(folder, attributes={"title": "old"}).create_group("g", attributes={"n": 1})
    how = {"shape": VALUES.shape, "chunks": (4, 3), "shards": (8, 9)}
    attributes = {"_FillValue": 7, "units": "m"}
    create(folder / "g/a", dimension_names=["y", "x"], fill_value=7, attributes=attributes, **how)[...] = (
        VALUES
    )


def make_2022(folder: Path) -> None:
    document = array_2022() | {"fill_value": 7, "attributes": MASKED}
    write_2022(folder, {"g/a": document}, {"": {"title": "old"}, "g": {"n": 1}})
    with quiet():
        open_2022(folder, "g/a", mode="r+")[...] = VALUES


class Way(NamedTuple):
    """One of the four functions, a source for it, and the folder of the source in which other objects are copied."""

    run: Callable[..., Any]
    make: Callable[[Path], None]
    others: str = ""

    def __repr__(self) -> str:
        return self.run.__name__


def by_convert_2022(old: Any, new: Any) -> Any:
    return convert_2022(old, new)


def refuses(way: Way, old: Any, to: Any, error: type[Exception], text: str) -> None:
    """Check that a place is refused, by a dry run too."""
    for how in ({}, {"dry_run": True}) if way.run is not by_convert_2022 else ({},):
        with pytest.raises(error, match=text):
            way.run(old, to, **how)


V3 = [Way(run, make_v3) for run in COPIES.values()]
FOUR = pytest.mark.parametrize(
    "way",
    [*V3, Way(by_convert_2022, make_2022, "data/root/"), Way(by_convert, make_2022, "data/root/")],
    ids=repr,
)


def in_store(store: Any, prefix: str, folder: Path) -> Any:
    """Put the files of a folder into a store of zarr."""
    buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    objects = {f"{prefix}{name}": buffer(data) for name, data in bytes_of_files(folder).items()}
    store._store_dict.update(objects)
    return StorePath(store, prefix.rstrip("/")) if prefix else store


def is_whole(place: Any) -> bool:
    with quiet():
        group = zarr.open_group(place, mode="r")
        assert dict(group.attrs) == {"title": "old"} and dict(group["g"].attrs) == {"n": 1}
        array = group["g/a"]
        assert array.metadata.dimension_names == ("y", "x")
        assert dict(array.attrs)["units"] == "m"
        return bool((array[...] == VALUES).all())


def empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def link_to_empty(folder: Path) -> Path:
    (folder / "link").symlink_to(empty(folder).name)
    return folder / "link"


def in_a_group(folder: Path) -> Path:
    zarr.create_group(folder / "group")
    return folder / "group/sub/new"


FREE: dict[str, Callable[[Path], Any]] = {
    "new": lambda folder: folder / "new",
    "a longer name": lambda folder: folder / "old2",
    "below": lambda folder: folder / "not/there/new",
    "empty": empty, "link to empty": link_to_empty, "in a group": in_a_group,
    "store": lambda folder: LocalStore(folder / "new"),
    "memory": lambda _: MemoryStore(), "other": lambda _: OtherMemoryStore(), "obstore": lambda _: memory_object_store(),
    "below in memory": lambda _: StorePath(MemoryStore(), "some/place"),
    "url": lambda folder: f"file://{folder}/new",  # `convert_2022` made a folder with the name "file:"
    "url of fsspec": lambda folder: f"memory:/{folder}/new",
    "fsspec": lambda folder: FsspecStore.from_url(f"memory:/{folder}/store"),
}  # fmt: skip


@FOUR
@pytest.mark.parametrize("kind", FREE)
def test_free_place_is_a_destination(way: Way, kind: str, tmp_path: Path) -> None:
    way.make(tmp_path / "old")
    to = FREE[kind](tmp_path)
    if way in V3:
        way.run(tmp_path / "old", to, dry_run=True)
    way.run(tmp_path / "old", to)
    assert is_whole(to)


@FOUR
@pytest.mark.parametrize(
    "kind", ["file", "files", "hierarchy", "chunks", "the source", "link to it", "memory"]
)
def test_place_with_something_is_refused(way: Way, kind: str, tmp_path: Path) -> None:
    """`convert_2022` took a group, and a folder in which only its own arrays were not."""
    way.make(tmp_path / "old")
    to: Any = tmp_path / "new"
    if kind == "file":
        to.write_text("x")
    elif kind == "files":
        to.mkdir()
        (to / "notes").write_text("x")
    elif kind == "hierarchy":
        zarr.create_group(to)
    elif kind == "chunks":
        (to / "g/a/c").mkdir(parents=True)
        (to / "g/a/c/0").write_text("of an interrupted run")
    elif kind == "the source":
        to = tmp_path / "old"
    elif kind == "link to it":
        to.symlink_to("old")
    else:
        to = MemoryStore()
        zarr.create_group(to)
    before = bytes_of_files(tmp_path)
    refuses(way, tmp_path / "old", to, FileExistsError, "expected a new p")
    assert bytes_of_files(tmp_path) == before


@FOUR
@pytest.mark.parametrize("kind", ["zip", "memory", "local", "array", "group", "text"])
def test_place_that_cannot_be_written_is_refused(way: Way, kind: str, tmp_path: Path) -> None:
    """`convert` reported each shard as a failure, `repair` and `compact` wrote to a read-only LocalStore; `convert_2022` took the others."""
    way.make(tmp_path / "old")
    places: dict[str, Callable[[], Any]] = {
        "zip": lambda: tmp_path / "new.zip",
        "memory": lambda: MemoryStore(read_only=True),
        "local": lambda: StorePath(LocalStore(tmp_path, read_only=True), "new"),
        "array": lambda: create(MemoryStore()),
        "group": lambda: zarr.create_group(MemoryStore()),
        "text": lambda: b"new",
    }
    before = bytes_of_files(tmp_path)
    error = TypeError if kind in ("array", "group", "text") else ValueError
    refuses(way, tmp_path / "old", places[kind](), error, r"expected a (folder|path)|read-only")
    assert bytes_of_files(tmp_path) == before


@FOUR
@pytest.mark.parametrize("kind", ["path", "store path", "memory"])
@pytest.mark.parametrize("around", ["2022", "v3", "v2"])
def test_place_inside_an_array_or_a_hierarchy_of_2022_is_refused(
    way: Way, kind: str, around: str, tmp_path: Path
) -> None:
    """A folder at the key of a chunk damaged the array around it. Only `convert_2022`, only at the root of a store, knew the 2022 format."""
    way.make(tmp_path / "old")
    if around == "2022":
        make_2022(tmp_path / "other")
    else:
        create(tmp_path / "other", own=True, shards=None, zarr_format=int(around[1]))
    below = "other/data/root/new" if around == "2022" else "other/c/3"
    to: Any = {
        "path": tmp_path / below,
        "store path": StorePath(LocalStore(tmp_path / "other"), below[6:]),
    }.get(kind)
    if kind == "memory":
        in_store(store := MemoryStore(), "x/other/", tmp_path / "other")
        to = StorePath(store, f"x/{below}")
    before = bytes_of_files(tmp_path)
    text = "another format" if around == "2022" else "outside of the array"
    refuses(way, tmp_path / "old", to, FileExistsError, text)
    assert bytes_of_files(tmp_path) == before


@pytest.mark.parametrize("way", V3, ids=repr)
@pytest.mark.parametrize("kind", ["path", "memory"])
def test_place_in_a_group_of_v2_is_free_wherever_the_group_lies(way: Way, kind: str, tmp_path: Path) -> None:
    """The innermost node counts. Groups of Zarr v2 are looked for only if there is an array above them."""
    way.make(tmp_path / "old")
    create(tmp_path / "array", own=True, shards=None)
    zarr.create_group(tmp_path / "array/x/group", zarr_format=2)
    to: Any = tmp_path / "array/x/group/y/new"
    if kind == "memory":
        in_store(store := MemoryStore(), "", tmp_path / "array")
        to = StorePath(store, "x/group/y/new")
    way.run(tmp_path / "old", to)


@FOUR
@pytest.mark.parametrize(
    "kind", ["path", "link", "chunk", "url", "urls", "store", "store path", "fsspec", "obstore"]
)
def test_place_inside_the_source_is_refused(way: Way, kind: str, tmp_path: Path) -> None:
    way.make(tmp_path / "old")
    (tmp_path / "link").symlink_to("old")
    before = bytes_of_files(tmp_path)
    to = {
        "path": lambda: tmp_path / "old/new",
        "link": lambda: tmp_path / "link/data/new",
        "chunk": lambda: tmp_path / "old/g/a/c/new",
        "url": lambda: f"FILE://{tmp_path}/old/new",
        "urls": lambda: f"file://{tmp_path}/old/new",
        "store": lambda: LocalStore(tmp_path / "old/new"),
        "store path": lambda: StorePath(LocalStore(tmp_path), "old/new"),
        "fsspec": lambda: FsspecStore.from_url(f"file://{tmp_path}/old/new"),
        "obstore": lambda: StorePath(
            ObjectStore(pytest.importorskip("obstore").store.LocalStore(tmp_path)), "link/new"
        ),
    }[kind]()
    old = f"file://{tmp_path}/old" if kind == "urls" and way in V3 else tmp_path / "old"
    refuses(way, old, to, ValueError, "outside of the source")
    assert bytes_of_files(tmp_path) == before


@FOUR
@pytest.mark.parametrize("kind", ["path", "link", "url", "store", "store path"])
def test_place_that_contains_the_source_is_refused(way: Way, kind: str, tmp_path: Path) -> None:
    way.make(tmp_path / "x/y/old")
    (tmp_path / "link").symlink_to("x/y/old")
    before = bytes_of_files(tmp_path)
    old = tmp_path / ("link" if kind == "link" else "x/y/old")
    places: dict[str, Any] = {"store": LocalStore(tmp_path / "x"), "url": f"file://{tmp_path}/x"}
    places["store path"] = StorePath(LocalStore(tmp_path), "x")
    refuses(way, old, places.get(kind, tmp_path / "x"), ValueError, "outside of the source")
    assert bytes_of_files(tmp_path) == before


@pytest.mark.parametrize("way", V3, ids=repr)
@pytest.mark.parametrize(("old", "new"), [("a", "a/b"), ("a/b", "a"), ("a", "a/c/0/0")])
def test_places_inside_each_other_in_one_store_are_refused(
    way: Way, old: str, new: str, tmp_path: Path
) -> None:
    way.make(tmp_path / "old")
    store = MemoryStore()
    source = in_store(store, f"{old}/", tmp_path / "old")
    before = set(store._store_dict)
    for to in (StorePath(store, new), StorePath(store.with_read_only(False), new)):
        refuses(way, source, to, ValueError, "outside of the source")
    assert set(store._store_dict) == before
    for apart in (StorePath(store, f"{old}b"), MemoryStore()):
        way.run(source, apart)
        assert is_whole(apart)


@pytest.mark.parametrize("way", V3, ids=repr)
def test_url_and_store_of_one_service_are_compared(way: Way, tmp_path: Path) -> None:
    """A URL was only compared with a URL, and a store of a service by its whole address."""
    way.make(tmp_path / "old")
    to = f"memory:/{tmp_path}/x"
    way.run(tmp_path / "old", f"{to}/a")
    below = FsspecStore.from_url(f"{to}/a/b")
    for source, new in [
        (f"{to}/a", below),
        (FsspecStore.from_url(f"{to}/a"), f"{to}/a/b"),
        (f"{to}/a", f"{to}/a/b"),
    ]:
        refuses(way, source, new, ValueError, "outside of the source")
    way.run(f"{to}/a", FsspecStore.from_url(f"{to}/ab"))
    assert is_whole(f"{to}/ab")


def test_places_in_one_bucket_are_compared() -> None:
    store = pytest.importorskip("obstore").store
    key = {"region": "x", "access_key_id": "a", "secret_access_key": "b"}
    inside = ObjectStore(store.S3Store("bucket", prefix="a/b", region="x", skip_signature=True))
    for new in ("s3://bucket/a/b", "s3a://bucket/a/b", inside, StorePath(inside, "c")):
        with pytest.raises(ValueError, match="outside of the source"):
            check_apart("s3://bucket/a", new, key)
    for new in ("s3://bucket/ab", "s3://other/a/b", "gs://bucket/a/b"):
        check_apart("s3://bucket/a", new, key if new.startswith("s3") else None)


@pytest.mark.parametrize("how", [{}, {"only": "g/a"}], ids=str)
def test_store_with_a_hierarchy_of_2022_is_refused_with_what_to_do(how: Any, tmp_path: Path) -> None:
    """It was an array without a shape."""
    make_2022(tmp_path / "old")
    store = LocalStore(tmp_path / "old")
    with pytest.raises(UnsupportedError, match=r"/old: .* got one of the 2022 format: .* convert_2022"):
        convert(store, tmp_path / "new", **how)
    assert not (tmp_path / "new").exists()
    convert_2022(store, tmp_path / "new")
    assert (zarr.open_array(tmp_path / "new/g/a", mode="r")[...] == VALUES).all()


@pytest.mark.parametrize(("old", "new"), [("g", "g/b"), ("g/a", "g"), ("g", "elsewhere")])
def test_hierarchy_of_2022_gets_no_new_one(old: str, new: str, tmp_path: Path) -> None:
    """It fills its store: metadata and chunks of one node are at two places of it."""
    make_2022(tmp_path / "old")
    store = MemoryStore()
    in_store(store, "", tmp_path / "old")
    before = set(store._store_dict)
    with pytest.raises(ValueError, match="outside of the source"):
        convert_2022(StorePath(store, old), StorePath(store, new))
    assert set(store._store_dict) == before
    with pytest.raises(ValueError, match="outside of the source"):
        convert(tmp_path / "old" / old, tmp_path / "old/elsewhere")


@FOUR
def test_other_objects_and_links_are_copied(way: Way, tmp_path: Path) -> None:
    """`convert_2022` left them out without a word."""
    way.make(tmp_path / "old")
    others = tmp_path / "old" / way.others
    wanted = {"g/table": bytes(range(256)) * 9000, "g/.hidden": b"h", "g/empty": b"", "g/a/notes": b"n"}
    for name, data in wanted.items():
        (others / name).parent.mkdir(parents=True, exist_ok=True)
        (others / name).write_bytes(data)
    (tmp_path / "elsewhere").write_bytes(b"linked")
    (others / "g/link").symlink_to(tmp_path / "elsewhere")
    (others / "g/.shardcodec-0123456789abcdef-x").write_bytes(b"of a killed writer")
    (others / "job.json").write_text(
        '{\n "format": "shardcodec plan"}'
    )  # those of the 2022 format were copied
    way.run(tmp_path / "old", tmp_path / "new")
    assert is_whole(tmp_path / "new")
    found = bytes_of_files(tmp_path / "new")
    extra = {
        name: data for name, data in found.items() if not name.startswith("g/a/c") and "zarr.json" not in name
    }
    assert extra == wanted | {"g/link": b"linked"}
    assert not (tmp_path / "new/g/link").is_symlink()


@FOUR
@pytest.mark.filterwarnings("ignore:1 object that convert_2022 does not copy:RuntimeWarning")
def test_link_to_nothing_is_left_and_all_else_is_written(way: Way, tmp_path: Path) -> None:
    """One foreign link to nothing ended a copy of terabytes; test_unread_objects.py checks that reports name it."""
    way.make(tmp_path / "old")
    (tmp_path / "old" / way.others / "g/link").symlink_to("not-here")
    way.run(tmp_path / "old", tmp_path / "new")
    assert is_whole(tmp_path / "new")
    assert not (tmp_path / "new/g/link").is_symlink()


@FOUR
def test_masks_are_kept(way: Way, tmp_path: Path) -> None:
    way.make(tmp_path / "old")
    way.run(tmp_path / "old", tmp_path / "new")
    document = json.loads((tmp_path / "new/g/a/zarr.json").read_text())
    assert (document["fill_value"], document["attributes"]["_FillValue"]) == (7, 7)
    assert document["dimension_names"] == ["y", "x"]


@FOUR
def test_documents_are_written_last(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardcodec.tools import backup, new_hierarchy

    written: list[str] = []
    write = backup.put_object

    def noted(blocks: Any, nbytes: int, store: Any, key: str, **how: Any) -> None:
        written.append(store.path(key))
        write(blocks, nbytes, store, key, **how)

    for module in (backup, new_hierarchy):
        monkeypatch.setattr(module, "put_object", noted)
    way.make(tmp_path / "old")
    (tmp_path / "old" / way.others / "g/table").write_bytes(b"t")
    way.run(tmp_path / "old", tmp_path / "new")
    names = [Path(path).relative_to(tmp_path / "new").as_posix() for path in written if "/a/c/" not in path]
    assert names == ["g/table", "g/a/zarr.json", "g/zarr.json", "zarr.json"]


def consolidated_source(folder: Path, zarr_format: Any, where: list[str]) -> None:
    with quiet():
        group = zarr.create_group(folder, zarr_format=zarr_format)
        group.create_group("sub").create_group("deep", attributes={"n": 1})
        for name in ("a", "sub/b"):
            how: dict[str, Any] = {"shards": (8, 8)} if zarr_format == 3 else {}
            group.create_array(name, shape=(16, 16), chunks=(4, 4), dtype="i4", **how)[...] = 5
        for path in where:
            zarr.consolidate_metadata(LocalStore(folder), path=path or None)


def consolidated(folder: Path, group: str, zarr_format: int) -> Any:
    """Return the consolidated metadata of a group; None if it has none."""
    name = "zarr.json" if zarr_format == 3 else ".zmetadata"
    if not (folder / group / name).exists():
        return None
    document = json.loads((folder / group / name).read_text())
    found = document.get("consolidated_metadata") if zarr_format == 3 else document
    if found is None:
        return None
    for one in found["metadata"].values():  # zarr-python 3 adds members that mean nothing
        for name in ("consolidated_metadata",) if zarr_format == 2 else ("storage_transformers",):
            one.pop(name, None)
    return found["metadata"]


@pytest.mark.parametrize("way", V3, ids=repr)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("where", [[], [""], ["sub"], ["sub", ""]], ids=["none", "root", "sub", "both"])
def test_consolidated_groups_stay_consolidated(
    way: Way, zarr_format: int, where: list[str], tmp_path: Path
) -> None:
    """`convert` kept only the root, and its groups had no empty metadata of their own, as zarr-python writes them."""
    consolidated_source(tmp_path / "old", zarr_format, where)
    way.run(tmp_path / "old", tmp_path / "new")
    new_format = 3 if way.run is by_convert else zarr_format
    for group in ("", "sub", "sub/deep"):
        found = consolidated(tmp_path / "new", group, new_format)
        assert (found is not None) == (group in where), group
    # zarr itself, on the new documents, writes the same
    with quiet():
        before = {one: consolidated(tmp_path / "new", one, new_format) for one in where}
        for one in where:
            zarr.consolidate_metadata(LocalStore(tmp_path / "new"), path=one or None)
        assert before == {one: consolidated(tmp_path / "new", one, new_format) for one in where}
        for one in where:
            names = {
                name for name, _ in zarr.open_group(tmp_path / "new" / one, mode="r").members(max_depth=None)
            }
            assert names == ({"b", "deep"} if one else {"a", "sub", "sub/b", "sub/deep"})


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the resident memory is read from /proc")
def test_large_objects_are_copied_block_by_block(tmp_path: Path) -> None:
    """`convert_2022` read each object as a whole."""
    for make, name in ((make_v3, "v3"), (make_2022, "2022")):
        make(tmp_path / name)
    (tmp_path / "v3/g/large").write_bytes(bytes(64 << 20))
    (tmp_path / "2022/data/root/g/large").write_bytes(bytes(64 << 20))
    # an array without shards: each of its chunks is an object
    plain = array_2022(shape=(64 << 20,), chunk_shape=(64 << 20,)) | {
        "data_type": "|u1",
        "storage_transformers": [],
    }
    plain.pop("compressor")
    (tmp_path / "2022/meta/root/g/plain.array.json").write_text(json.dumps(plain))
    (tmp_path / "2022/data/root/g/plain").mkdir()
    (tmp_path / "2022/data/root/g/plain/c0").write_bytes(bytes(64 << 20))
    results = run_measuring(
        """
        from shardcodec.tools import compact, convert, repair
        from shardcodec.transformer import convert_2022

        folder, memory = Path(os.environ["FOLDER"]), 16 << 20
        works = {
            "convert": lambda to: convert(folder / "v3", to, memory=memory, threads=2),
            "repair": lambda to: repair(folder / "v3", to=to, memory=memory, threads=2),
            "compact": lambda to: compact(folder / "v3", to=to, memory=memory, threads=2),
            "convert_2022": lambda to: convert_2022(folder / "2022", to, threads=2),
        }
        print(json.dumps({name: peak_of(lambda: work(folder / name) and None)[1] for name, work in works.items()}))
        """,
        FOLDER=str(tmp_path),
    )
    # the first one also imports what all of them need
    assert all(nbytes <= 24 << 20 for nbytes in results.values()), results
    assert (tmp_path / "convert_2022/g/plain/c/0").stat().st_size == 64 << 20


def stopped(old: Path, new: Any) -> None:
    """Begin a conversion that is interrupted after some shards."""

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_2022(old, new, progress=stop)


@pytest.mark.parametrize("kind", ["folder", "memory", "whole"])
def test_overwrite_repeats_a_conversion(kind: str, tmp_path: Path) -> None:
    make_2022(tmp_path / "old")
    (tmp_path / "old/data/root/g/table").write_bytes(b"t")
    to: Any = MemoryStore() if kind == "memory" else tmp_path / "new"
    if kind == "whole":
        convert_2022(tmp_path / "old", to)
    else:
        stopped(tmp_path / "old", to)
    with pytest.raises(FileExistsError, match="expected a new p"):
        convert_2022(tmp_path / "old", to)
    convert_2022(tmp_path / "old", to, overwrite=True)
    assert is_whole(to)


@pytest.mark.parametrize("name", ["notes", "g/notes", "g/b/zarr.json", "g/a/notes"])
def test_overwrite_keeps_what_no_conversion_writes(name: str, tmp_path: Path) -> None:
    make_2022(tmp_path / "old")
    stopped(tmp_path / "old", tmp_path / "new")
    (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "new" / name).write_bytes(b"of a user")
    before = bytes_of_files(tmp_path / "new")
    with pytest.raises(FileExistsError, match=name):
        convert_2022(tmp_path / "old", tmp_path / "new", overwrite=True)
    assert bytes_of_files(tmp_path / "new") == before


@pytest.mark.parametrize("kind", ["link", "folder", "job"])
def test_overwrite_touches_no_other_hierarchy(kind: str, tmp_path: Path) -> None:
    """It followed links below the destination, and replaced the arrays there; it also took the place of a running job."""
    make_2022(tmp_path / "old")
    make_v3(tmp_path / "precious")
    (tmp_path / "new").mkdir()
    if kind == "link":
        (tmp_path / "new/g").symlink_to(tmp_path / "precious/g")
    elif kind == "folder":
        (tmp_path / "new/g/a").mkdir(parents=True)
        (tmp_path / "new/g/a/c").symlink_to(tmp_path / "precious/g/a/c")
    else:
        (tmp_path / "new/.shardcodec-job").write_text('{"job": "x", "plan": null}')
    before = bytes_of_files(tmp_path)
    with pytest.raises(FileExistsError, match="a symbolic link" if kind != "job" else "another conversion"):
        convert_2022(tmp_path / "old", tmp_path / "new", overwrite=True)
    assert bytes_of_files(tmp_path) == before


@pytest.mark.parametrize(
    "path", ["zarr.json", "x/.zarray", ".shardcodec-x", "a\\b", "..", "x/../y", "x//y", "a\0b"]
)
def test_name_that_no_node_can_have_is_refused(path: str, tmp_path: Path) -> None:
    make_2022(tmp_path / "old")
    with pytest.raises(ValueError, match="expected"):
        convert_2022(tmp_path / "old", tmp_path / "new", path="g", dst_path=path)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", [".zarray", ".shardcodec-x"])
def test_source_with_a_name_that_no_node_can_have_is_refused(name: str, tmp_path: Path) -> None:
    """`convert_2022` wrote it."""
    make_2022(tmp_path / "old")
    (tmp_path / f"old/meta/root/g/{name}.group.json").write_text('{"attributes": {}}')
    for run in (by_convert, by_convert_2022):
        with pytest.raises(ValueError, match="expected the path of an array or a group"):
            run(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_objects_that_cannot_be_copied_are_named(tmp_path: Path) -> None:
    """`convert` lists them in its report; `convert_2022` has none and left them out without a word."""
    make_2022(tmp_path / "old")
    below = tmp_path / "old/data/root/g"
    left = {
        "g/zarr.json": below / "zarr.json",
        "g/a/c/0/1": below / "a/c/0/1",
        "meta/root/g/x": tmp_path / "old/meta/root/g/x",
    }
    for path in (*left.values(), below / "x"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    report = convert(tmp_path / "old", tmp_path / "by convert").others
    assert {one.name for one in report.left} == set(left)
    with pytest.warns(RuntimeWarning, match="3 objects") as warned:
        convert_2022(tmp_path / "old", tmp_path / "new")
    assert all(f"{one.name}: {one.reason}" in str(warned[0].message) for one in report.left)
    assert is_whole(tmp_path / "new") and not (tmp_path / "new/meta").exists()
    assert (tmp_path / "new/g/x").read_text() == "1"
    with warnings.catch_warnings():  # a program that wants all or nothing
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning):
            convert_2022(tmp_path / "old", tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_overwrite_of_the_source_is_refused(tmp_path: Path) -> None:
    make_2022(tmp_path / "old")
    before = bytes_of_files(tmp_path)
    with pytest.raises(FileExistsError, match="another format"):
        convert_2022(tmp_path / "old", tmp_path / "old", overwrite=True)
    assert bytes_of_files(tmp_path) == before
