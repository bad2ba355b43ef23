# test_new_hierarchy.py - `repair --to` and `compact --to` write whole hierarchies
# SPDX-License-Identifier: MIT
"""Groups without arrays, consolidated metadata and documents that cannot be parsed are in the new hierarchy too."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, files_below, quiet
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from shardcodec.errors import ShardFileError
from shardcodec.option_sources import current_options
from shardcodec.storage.files import FileStore
from shardcodec.tools import compact, convert, new_hierarchy, repair, verify
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.hierarchy_copy import HierarchyCopy
from shardcodec.tools.memory import MemoryBudget
from shardcodec.tools.monitor import Monitor
from shardcodec.tools.new_hierarchy import NewHierarchy

NO_CHECKSUM = {"index_codecs": [zarr.codecs.BytesCodec()]}


def hierarchy(folder: Path, zarr_format: Any = 3, *, consolidated: bool = True) -> None:
    """Make the groups "empty", "sub" and "sub/deep", and arrays "a" and "sub/b", without index checksums."""
    with quiet():
        group = zarr.create_group(folder, zarr_format=zarr_format, attributes={"title": "old"})
        group.create_group("empty", attributes={"n": 1})
        group.create_group("sub").create_group("deep")
        for name in ("a", "sub/b"):
            how: dict[str, Any] = {"chunks": (4, 3)}
            if zarr_format == 3:
                sharding = zarr.codecs.ShardingCodec(chunk_shape=(4, 3), **NO_CHECKSUM)
                how = {"chunks": (8, 12), "serializer": sharding, "compressors": None}
            array = group.create_array(name, shape=(16, 24), dtype="i4", **how)
            array[...] = np.arange(384).reshape(16, 24)
        if consolidated:
            zarr.consolidate_metadata(folder)


def nodes(folder: Path, *, consolidated: bool) -> dict[str, Any]:
    """Return the metadata of all nodes, from the consolidated metadata or without them."""
    with quiet():
        group = zarr.open_group(folder, mode="r", use_consolidated=consolidated)
        found = {name: node.metadata.to_dict() for name, node in group.members(max_depth=None)}
    for document in found.values():
        document.pop("consolidated_metadata", None)
    return {**found, "": dict(group.attrs)}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("work", [repair, compact])
def test_groups_without_arrays_are_copied(tmp_path: Path, work: Any, zarr_format: int) -> None:
    hierarchy(tmp_path / "g.zarr", zarr_format)
    work(tmp_path / "g.zarr", to=tmp_path / "h.zarr")
    for consolidated in (True, False):
        found = nodes(tmp_path / "h.zarr", consolidated=consolidated)
        if work is not compact:  # it adds index checksums
            assert found == nodes(tmp_path / "g.zarr", consolidated=False)
        assert set(found) == {"", "a", "empty", "sub", "sub/b", "sub/deep"}
    with quiet():
        assert (zarr.open_group(tmp_path / "h.zarr")["sub/b"][...] == np.arange(384).reshape(16, 24)).all()


@pytest.mark.parametrize("work", [repair, compact])
def test_object_of_one_shard_must_be_new(tmp_path: Path, work: Any) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    shard = tmp_path / "a.zarr/c/0/0"
    (tmp_path / "taken").write_bytes(b"x")
    with pytest.raises(FileExistsError, match="expected a new path, but it exists"):
        work(shard, to=tmp_path / "taken")
    work(shard, to=tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == shard.read_bytes()


def test_group_without_any_array_is_copied(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "g.zarr", attributes={"n": 5}).create_group("sub")
    repair(tmp_path / "g.zarr", to=tmp_path / "h.zarr")
    assert zarr.open_group(tmp_path / "h.zarr").attrs["n"] == 5
    assert [name for name, _ in zarr.open_group(tmp_path / "h.zarr").members()] == ["sub"]


def test_consolidated_metadata_have_the_index_checksum(tmp_path: Path) -> None:
    hierarchy(tmp_path / "g.zarr")
    compact(tmp_path / "g.zarr", to=tmp_path / "h.zarr")
    found = nodes(tmp_path / "h.zarr", consolidated=True)
    assert found == nodes(tmp_path / "h.zarr", consolidated=False)
    for name in ("a", "sub/b"):
        (sharding,) = found[name]["codecs"]
        assert [codec["name"] for codec in sharding["configuration"]["index_codecs"]] == ["bytes", "crc32c"]
        with quiet():
            group = zarr.open_group(tmp_path / "h.zarr", use_consolidated=True)
            assert (group[name][...] == np.arange(384).reshape(16, 24)).all()
    assert verify(tmp_path / "h.zarr").n_findings == 0


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_of_one_array_name_no_other(tmp_path: Path, zarr_format: int) -> None:
    hierarchy(tmp_path / "g.zarr", zarr_format)
    repair(tmp_path / "g.zarr", only="sub/b", to=tmp_path / "h.zarr")
    found = nodes(tmp_path / "h.zarr", consolidated=True)
    assert set(found) == {"", "sub", "sub/b"}
    assert found == nodes(tmp_path / "h.zarr", consolidated=False)


@pytest.mark.parametrize("text", ["{", "[1]", '{"zarr_format": 3, "node_type": "array", "codecs": 5}'])
def test_broken_document_is_copied(tmp_path: Path, text: str) -> None:
    hierarchy(tmp_path / "g.zarr")
    create(tmp_path / "g.zarr/broken")[...] = 1
    (tmp_path / "g.zarr/broken/zarr.json").write_text(text)
    compact(tmp_path / "g.zarr", to=tmp_path / "h.zarr")
    assert (tmp_path / "h.zarr/broken/zarr.json").read_text() == text
    assert (tmp_path / "h.zarr/broken/c/1/1").read_bytes() == (tmp_path / "g.zarr/broken/c/1/1").read_bytes()
    assert verify(tmp_path / "h.zarr", only="a").n_findings == 0


def test_index_checksum_is_not_claimed_for_shards_that_are_copied(tmp_path: Path) -> None:
    """The tools do not read shards of a rectilinear grid, so their indexes stay without a checksum."""
    hierarchy(tmp_path / "g.zarr", consolidated=False)
    file = tmp_path / "g.zarr/a/zarr.json"
    document = json.loads(file.read_text())
    document["chunk_grid"] = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[8, 8], [12, 12]]},
    }
    file.write_text(json.dumps(document))
    (array,) = verify(tmp_path / "g.zarr", only="a").arrays
    assert array.problem is None  # one shape after all
    document["chunk_grid"]["configuration"]["chunk_shapes"] = [[8, 4, 4], [12, 12]]
    file.write_text(json.dumps(document))
    compact(tmp_path / "g.zarr", to=tmp_path / "h.zarr")
    assert json.loads((tmp_path / "h.zarr/a/zarr.json").read_text()) == document


@pytest.mark.parametrize("work", [repair, compact])
def test_documents_come_last_and_that_of_the_root_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any
) -> None:
    """A run that is killed leaves no array that lacks shards. Metadata that belong to no array come after all else, too."""
    hierarchy(tmp_path / "g.zarr")
    for name in ("notes/.zattrs", "notes/1", "notes/2", "zoo/.zattrs", "zoo/1", "1", "sub/deep/1"):
        (tmp_path / "g.zarr" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "g.zarr" / name).write_bytes(b"{}")
    order: list[str] = []
    present: list[set[str]] = []
    put, copy = NewHierarchy.put, NewHierarchy.copy

    def noted_put(self: NewHierarchy, name: str, *more: Any, **how: Any) -> None:
        present.append(set(files_below(tmp_path / "h.zarr")))
        order.append(name)
        put(self, name, *more, **how)

    def noted_copy(self: NewHierarchy, store: Any, key: str, name: str, *more: Any, **how: Any) -> int | None:
        order.append(name)
        return copy(self, store, key, name, *more, **how)

    monkeypatch.setattr(NewHierarchy, "put", noted_put)
    monkeypatch.setattr(NewHierarchy, "copy", noted_copy)
    work(tmp_path / "g.zarr", to=tmp_path / "h.zarr", threads=1)
    documents = {name for name in set(files_below(tmp_path / "g.zarr")) if name.endswith("zarr.json")}
    assert present[0] == set(files_below(tmp_path / "g.zarr")) - documents and len(documents) == 6
    assert order[-8].endswith(".zattrs") and order[-7].endswith(".zattrs")
    assert set(order[-6:]) == documents and order[-1] == "zarr.json"
    assert order.index("sub/zarr.json") > max(
        order.index("sub/b/zarr.json"), order.index("sub/deep/zarr.json")
    )


def test_repeated_copy_of_an_object_is_compared_with_the_first(tmp_path: Path) -> None:
    """A task of dask that runs twice finds the object of the first run; any other object in its place is an error."""
    hierarchy(tmp_path / "g.zarr")
    budget, options = MemoryBudget(None), current_options()
    to = HierarchyCopy(tmp_path / "h.zarr", None, budget, tmp_path / "g.zarr", options, job="run")
    (array,) = find_arrays(tmp_path / "g.zarr", array="a")
    key = next(iter(array.listed_keys()))
    nbytes = to.objects.copy(array, key)
    assert nbytes > 0 and to.objects.copy(array, key) == nbytes
    (copied,) = (one for one in (tmp_path / "h.zarr/a").rglob("*") if one.is_file())
    copied.write_bytes(bytes(nbytes))
    with pytest.raises(FileExistsError):
        to.objects.copy(array, key)
    assert copied.read_bytes() == bytes(nbytes)


@pytest.mark.parametrize("tool", [convert, repair, compact])
def test_documents_that_an_older_listing_does_not_have_are_seen(tool: Any, tmp_path: Path) -> None:
    """Clients of NFS and fsspec keep listings, so a place that another node has just filled may be listed as empty."""

    class ListedBefore(WrapperStore[MemoryStore]):
        async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
            for key in ():
                yield key

    hierarchy(tmp_path / "old")
    destination = MemoryStore()
    zarr.create_group(destination, attributes={"owner": "another node"})
    arguments = (ListedBefore(destination),) if tool is convert else ()
    named = {} if tool is convert else {"to": ListedBefore(destination)}
    with pytest.raises(FileExistsError, match="it has metadata"):
        tool(tmp_path / "old", *arguments, **named)
    assert zarr.open_group(destination, mode="r").attrs["owner"] == "another node"


@pytest.mark.parametrize("tool", [convert, repair, compact])
def test_older_listing_of_a_network_file_system_is_not_trusted(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of a local folder is never older than a document, so only there no document is looked for."""
    hierarchy(tmp_path / "old")
    zarr.create_group(tmp_path / "new", attributes={"owner": "another node"})
    monkeypatch.setattr(FileStore, "is_prompt", False)
    monkeypatch.setattr(new_hierarchy, "_has_files", lambda folder: False)
    arguments, named = ((tmp_path / "new",), {}) if tool is convert else ((), {"to": tmp_path / "new"})
    with pytest.raises(FileExistsError, match="it has metadata"):
        tool(tmp_path / "old", *arguments, **named)
    assert zarr.open_group(tmp_path / "new", mode="r").attrs["owner"] == "another node"


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".zgroup"])
def test_any_name_of_a_document_ends_a_conversion(name: str, kind: str, tmp_path: Path) -> None:
    """Another program that begins a hierarchy at the place during the run is noticed before the documents are written."""
    hierarchy(tmp_path / "old")
    new = tmp_path / "new"

    class Other(Monitor):
        """A monitor that makes the file, the folder or the link as soon as a shard is stored."""

        def advance(self, n: int = 1) -> None:
            if kind == "link":
                with suppress(FileExistsError):
                    (new / name).symlink_to("gone")
            else:
                {"file": Path.touch, "folder": Path.mkdir}[kind](new / name, exist_ok=True)

    is_link = (kind, name) == ("link", "zarr.json")
    with pytest.raises(
        ShardFileError if is_link else FileExistsError, match="missing file" if is_link else "it has metadata"
    ):
        convert(tmp_path / "old", new, monitor=Other())
    assert os.path.lexists(new / name) and not (new / "a/zarr.json").exists()


@pytest.mark.parametrize("work", [repair, compact])
def test_document_that_changes_during_a_run_is_copied_as_it_was(work: Any, tmp_path: Path) -> None:
    """The documents were read once to find the shards and once more to copy them: of an array that was enlarged in between, the copy had
    the new shape without the new shards, so their elements had the fill value, and the report was clean.
    """
    hierarchy(tmp_path / "old", consolidated=False)

    class Other(Monitor):
        """A monitor that appends to the second array as soon as a shard of the first one is done."""

        def advance(self, n: int = 1) -> None:
            array = zarr.open_array(tmp_path / "old/sub/b", mode="r+")
            if array.shape == (16, 24):
                array.append(np.full((8, 24), 7, "i4"))

    work(tmp_path / "old", to=tmp_path / "new", monitor=Other())
    assert zarr.open_array(tmp_path / "old/sub/b", mode="r").shape == (24, 24)
    with quiet():
        copied = zarr.open_array(tmp_path / "new/sub/b", mode="r")
    assert copied.shape == (16, 24) and (copied[...] == np.arange(384).reshape(16, 24)).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("work", [repair, compact])
def test_documents_are_read_once(work: Any, zarr_format: int, tmp_path: Path) -> None:
    """Each is a request, of an object store a round trip."""
    hierarchy(tmp_path / "old", zarr_format, consolidated=False)
    asked: Counter[str] = Counter()

    class Counting(WrapperStore[LocalStore]):
        async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
            asked[key] += key.endswith((".json", ".zarray", ".zgroup", ".zattrs"))
            return await super().get(key, *arguments, **named)

    work(Counting(LocalStore(tmp_path / "old")), to=tmp_path / "new")
    stored = {name for name in files_below(tmp_path / "old") if name in files_below(tmp_path / "new")}
    assert {name: asked[name] for name in stored if asked[name]} == {
        name: 1 for name in stored if name.rpartition("/")[2].startswith((".z", "zarr.json"))
    }
