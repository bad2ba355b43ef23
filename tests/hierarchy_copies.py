# hierarchy_copies.py - random hierarchies through all copies, and a strict comparison without the package's code
# SPDX-License-Identifier: MIT
"""Random hierarchies of Zarr v2 and v3 go through all copies; zarr reads both, and each difference must be named by the report.

`differences` compares a copy with the whole hierarchy: nodes, members of documents, elements bit by bit, other files byte by byte.
`check` runs all copies of a hierarchy, `verify --against` for each of them, and `verify` of a copy with one planted difference.

    python tests/hierarchy_copies.py --seed 1 --count 100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import zarr

TESTS = Path(__file__).resolve().parent
if str(TESTS) not in sys.path:  # a program of its own
    sys.path.insert(0, str(TESTS))

from helpers import quiet  # noqa: E402
from random_hierarchies import Hierarchy  # noqa: E402

from shardcodec.errors import ShardError, UnsupportedError  # noqa: E402
from shardcodec.tools import compact, convert, repair, verify  # noqa: E402

DOCUMENTS = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}


# ---------------------------------------------------------------- what a copy must have


def walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders below a root, also those of links, and the names of their files; a loop of links is not entered."""
    above = {os.path.realpath(root)}

    def enter(folder: Path, path: str, above: set[str]) -> Iterator[tuple[str, list[str]]]:
        entries = sorted(folder.iterdir())
        yield path, [one.name for one in entries if one.is_file()]
        for one in entries:
            real = os.path.realpath(one)
            if one.is_dir() and real not in above:
                yield from enter(one, f"{path}/{one.name}".strip("/"), {*above, real})

    yield from enter(root, "", above)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class Node(NamedTuple):
    """The facts about a node that zarr and the documents give."""

    members: dict[str, str]
    elements: Any


def read_nodes(root: Path) -> dict[str, Node]:
    """Return the nodes of a hierarchy, read by zarr one by one without consolidated metadata."""
    found: dict[str, Node] = {}
    for path, names in walk(root):
        name = next((one for one in ("zarr.json", ".zarray", ".zgroup") if one in names), None)
        if name is None:
            continue
        document = json.loads((root / path / name).read_text())
        beside = root / path / ".zattrs"
        attributes = document.get("attributes", json.loads(beside.read_text()) if beside.exists() else {})
        members = {f"attribute {key!r}": canonical(one) for key, one in attributes.items()}
        members["extension"] = canonical(document.get("example"))
        members["zarr_format"] = canonical(document["zarr_format"])
        elements = None
        if "shape" in document:
            with quiet():
                array, elements = read_array(root / path)
            members |= {"shape": str(array.shape), "dtype": str(dtype_of(array.dtype))}
            members["fill value"] = (
                "any" if document["fill_value"] is None else bits_of(array.fill_value, array.dtype)
            )
            given = document.get("dimension_names", attributes.get("_ARRAY_DIMENSIONS"))
            members["names"] = canonical(given if given and any(given) else None)
        found[path] = Node(members, elements)
    return found


def read_array(folder: Path) -> tuple[Any, Any]:
    """Return an array of zarr and its elements; their text is the reason if zarr opens the array and cannot read it."""
    array = zarr.open_array(folder, mode="r")
    try:
        elements = array[...]
    except Exception as error:
        return array, f"zarr cannot read it: {error!r}"
    # a scalar of text is only as long as its text
    is_text = array.dtype.kind in "OTSU"
    return array, np.asarray(
        elements, object if array.dtype.kind == "O" else array.dtype
    ) if is_text else np.asarray(elements)


def dtype_of(dtype: Any) -> Any:
    return dtype if dtype.kind in "OT" else dtype.newbyteorder("=")


def bits_of(elements: Any, dtype: Any) -> str:
    """Return elements as text, which is equal for equal bits of equal types in native order."""
    if dtype.kind in "OT":
        return repr(np.asarray(elements, object).tolist())
    return np.asarray(elements, dtype).astype(dtype_of(dtype)).tobytes().hex()


def read_objects(root: Path, arrays: set[str]) -> dict[str, bytes]:
    """Return the files that are neither documents nor chunks."""
    found = {}
    for path, names in walk(root):
        for name in names:
            file = f"{path}/{name}".strip("/")
            if name in DOCUMENTS or any(is_chunk(file, one) for one in arrays):
                continue
            found[file] = (root / file).read_bytes()
    return found


def is_chunk(file: str, array: str) -> bool:
    inside = file.removeprefix(f"{array}/") if array else file
    if array and inside == file:
        return False
    parts = inside.replace(".", "/").split("/")
    return all(part.isdigit() or part == "c" for part in parts)


def differences(whole: Path, new: Path, takes: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each thing that a copy does not have as the whole hierarchy has it."""
    expected, actual = read_nodes(whole), read_nodes(new)
    for path in sorted({*expected, *actual}):
        one, other = expected.get(path), actual.get(path)
        if one is None:
            yield path, "is new"
        elif other is None:
            if takes(path):
                yield path, "is missing"
        else:
            yield from differences_of_node(path, one, other)
    arrays = {path for path, node in expected.items() if node.elements is not None}
    files, copied = read_objects(whole, arrays), read_objects(new, arrays)
    for name in sorted({*files, *copied}):
        if files.get(name) != copied.get(name) and (name in copied or takes(os.path.dirname(name))):
            yield name, "file"


def differences_of_node(path: str, one: Node, other: Node) -> Iterator[tuple[str, str]]:
    for name in sorted({*one.members, *other.members}):
        a, b = one.members.get(name), other.members.get(name)
        if a != b and name not in documented(one, other):
            yield path, f"{name}: {a} became {b}"
    a, b = one.elements, other.elements
    if isinstance(a, str):
        return  # zarr cannot read its own array
    if isinstance(b, str):
        yield path, b
    elif (a is None) != (b is None) or (a is not None and bits_of(a, a.dtype) != bits_of(b, b.dtype)):
        yield path, "elements"


def documented(one: Node, other: Node) -> set[str]:
    """Return the members that become others by the rules of the page on tools: names of axes of Zarr v2, and the mask of xarray."""
    if one.members.get("zarr_format") == other.members.get("zarr_format"):
        return set()
    found = {"zarr_format"}
    if one.members.get("fill value") == "any":
        found.add("fill value")
    if other.members.get("names", "null") != "null":  # they are compared themselves
        found |= {"attribute '_ARRAY_DIMENSIONS'"}
        found |= {f"attribute {name!r}" for name in ("_FillValue", "missing_value")}
    return found


def said(report: Any) -> str:
    """Return what a report says beside the names of the arrays that it has copied."""
    json_of = report.to_json()
    for name in ("source", "destination", "target", "to"):
        json_of.pop(name, None)
    if json_of["schema"] == "shardcodec.convert":
        json_of["arrays"] = [[f"{one['name']}: {note}" for note in one["notes"]] for one in json_of["arrays"]]
    return str(json_of)


# ---------------------------------------------------------------- all copies of a hierarchy


class Copy(NamedTuple):
    """One way of copying: the call, the arguments that choose nodes, and the nodes that it takes."""

    name: str
    call: Callable[[Path], Any]
    chosen: Mapping[str, Any] = MappingProxyType({})
    takes: Callable[[str], bool] = lambda path: True
    lost: Sequence[str] = ()  # nodes whose documents are lost, which the report must name


def copies_of(one: Hierarchy) -> Iterator[Copy]:
    pick, whole = one.random, one.whole
    yield Copy("convert", lambda to: convert(whole, to))
    size = pick.choice((1, 300, 4096))
    yield Copy(f"convert --shards {size}", lambda to: convert(whole, to, shards=size))
    rank = pick.randint(1, 3)
    chunks = tuple(pick.randint(1, 4) for _ in range(rank))
    shards = tuple(n * pick.randint(1, 3) for n in chunks)
    if any(getattr(node.elements, "ndim", 0) == rank for node in read_nodes(whole).values()):
        yield Copy(
            f"convert --chunks {chunks} --shards {shards}",
            lambda to: convert(whole, to, chunks=chunks, shards=shards),
        )
    yield Copy("repair --to", lambda to: repair(whole, to=to))
    torn, of_torn = damaged(one, "torn", chunks=True)
    yield Copy("repair --copy", lambda to: repair(torn, to=to, copy=whole), lost=of_torn)
    yield Copy("repair --backup", lambda to: repaired_in_place(torn, to, whole), lost=of_torn)
    if one.is_consolidated and not one.is_stale:
        old, lost = damaged(one, "old", chunks=False)
        yield Copy("convert of lost documents", lambda to: convert(old, to), lost=lost)
        yield Copy("repair of lost documents", lambda to: repair(old, to=to), lost=lost)
        yield Copy("compact of lost documents", lambda to: compact(old, to=to), lost=lost)
    yield Copy("compact --to", lambda to: compact(whole, to=to, min_dead=0))
    nodes = [path for path in (*one.groups, *one.arrays) if path]
    if "" in one.arrays or not nodes:
        return
    path = pick.choice(nodes)
    exclude = {"exclude": [path]}
    if not all(is_in(array, path) for array in one.arrays):
        yield Copy(
            "convert --exclude",
            lambda to: convert(whole, to, **exclude),
            exclude,
            lambda it: not is_in(it, path),
        )
    if any(is_in(array, path) for array in one.arrays):
        for exactly in (False, True) if path in one.arrays else (False,):
            only: dict[str, Any] = {"only": [path], "exclude": ["@needed"] * exactly}
            yield Copy(
                f"convert --only exactly={exactly}",
                lambda to, only=only: convert(whole, to, **only),
                only,
                lambda it: is_in(it, path),
            )


def repaired_in_place(torn: Path, to: Path, whole: Path) -> Any:
    """Repair a copy of a damaged hierarchy in place, from the whole one."""
    shutil.copytree(torn, to, symlinks=True)
    return repair(to, backup=f"{to}.backup", copy=whole)


def links_of(root: Path) -> set[str]:
    """Return the names of all links, also as those of folders."""
    names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink()]
    return {*names, *(f"{name}/" for name in names)}


def damaged(one: Hierarchy, name: str, *, chunks: bool) -> tuple[Path, list[str]]:
    """Return the hierarchy without some of its documents, and of its chunks and shards; and the nodes without a document."""
    old, lost = one.whole.parent / name, []
    shutil.copytree(one.whole, old, symlinks=True)
    for file in sorted(old.rglob("*")):
        inside = str(file.relative_to(old))
        if one.random.random() > 0.2 or file.is_symlink() or not file.is_file() or file.parent == old:
            continue
        if file.name in ("zarr.json", ".zarray", ".zgroup"):
            lost.append(os.path.dirname(inside))
        elif not (chunks and any(is_chunk(inside, array) for array in one.arrays)):
            continue
        file.unlink()
    return old, lost


def is_in(path: str, node: str) -> bool:
    return path == node or path.startswith(f"{node}/")


def check(folder: Path, seed: str) -> list[str]:
    """Copy one hierarchy in all ways; return the differences that no report names."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    warnings.simplefilter("ignore")
    one = Hierarchy(folder, seed)
    for number, copy in enumerate(copies_of(one)):
        try:
            new = folder / f"new{number}"
            wrong += [f"{seed}, {copy.name}: {each}" for each in check_copy(one, copy, new)]
        except Exception:
            wrong.append(f"{seed}, {copy.name}: {traceback.format_exc(limit=-6)}")
    return wrong


def check_copy(one: Hierarchy, copy: Copy, new: Path) -> Iterator[str]:
    try:
        report = copy.call(new)
    except (ShardError, ValueError) as error:
        # a layout that an array cannot have, and a choice of arrays that all cannot be converted, are refused before anything is written
        if ("--chunks" in copy.name or names_all_chosen(error, one, copy, new)) and not new.exists():
            return
        raise
    told = said(report)
    if not report.is_complete:
        yield f"it is not complete: {told}"
        return
    yield from (f"the lost document of {path!r} is not named" for path in copy.lost if repr(path) not in told)
    left = {each.name for each in report.left_arrays} | {each.name for each in report.others.left}
    found = list(differences(one.whole, new, copy.takes))
    is_in_place = copy.name == "repair --backup"
    if copy.name == "repair --copy" or is_in_place:  # the report says that it looks for no chunks of these
        found = [
            each
            for each in found
            if not (each[1] == "elements" and is_rectilinear(new / each[0]) and each[0] in left)
        ]
    for path, what in found:
        if what == "elements" or not (path in told if path else what.split(":")[0].split()[-1] in told):
            yield f"{path}: {what}; said: {told[:300]}"
    if is_in_place:  # it keeps the links, and consolidated metadata as they are
        left |= links_of(one.whole)
    compared = verify(new, against=one.whole, **copy.chosen)
    more = [each for each in findings(compared) if each[0] not in ("foreign file", "of zarr", "unsupported")]
    more = [
        each
        for each in more
        if not (each[0] == "unreadable" and any(each[2].split(":")[0].endswith(name) for name in left))
    ]
    if is_in_place and "stale metadata" in verify(one.whole).kinds:
        more = [each for each in more if each[0] != "stale metadata"]
    if more and not found:
        yield f"verify finds {more}"
    if not found and (unchecked := [each for each in compared.unchecked if each.name not in left]):
        yield f"verify has not checked {[(each.name, each.reason) for each in unchecked]}"
    if one.random.random() < 0.5:
        yield from check_planted(one, copy, new, found)


def names_all_chosen(error: Exception, one: Hierarchy, copy: Copy, new: Path) -> bool:
    """Return True if an error says that no chosen array can be converted, names each, and a conversion of all nodes leaves them out too."""
    if type(error) is not UnsupportedError or not copy.chosen:
        return False
    chosen = {path for path in one.arrays if copy.takes(path)}
    left = {each.name for each in convert(one.whole, new, dry_run=True).left_arrays}
    has_groups = "only" not in copy.chosen and any(path and copy.takes(path) for path in one.groups)
    return (
        chosen <= left
        and not has_groups
        and all(re.search(rf"[ /]{re.escape(path)}: ", str(error)) for path in chosen)
    )


# ---------------------------------------------------------------- planted differences


def is_rectilinear(folder: Path) -> bool:
    file = folder / "zarr.json"
    return file.exists() and "rectilinear" in str(json.loads(file.read_text()).get("chunk_grid"))


def findings(report: Any) -> list[tuple[str, str, str]]:
    """Return the findings; those on groups that this zarr does not open because of an extension are of kind "of zarr"."""
    return [
        (
            "of zarr" if "keyword argument 'example'" in each.detail else each.kind.value,
            each.array,
            f"{each.shard[-40:]}: {each.detail[:200]}",
        )
        for shard in report.shards
        for each in shard.findings
    ]


def check_planted(one: Hierarchy, copy: Copy, new: Path, known: list[Any]) -> Iterator[str]:
    """Change one thing in a copy, and let `verify` find it."""
    with quiet():
        before = read_nodes(new)
        array_paths = [
            path for path, node in before.items() if node.elements is not None and path in one.arrays
        ]
        if not array_paths:
            return
        path = one.random.choice(array_paths)
        what = one.random.choice(list(PLANTS))
        try:
            PLANTS[what](one.random, new / path)
        except Nothing:
            return
        after = read_nodes(new)
        own, other = before[path], after[path]
        has_fill = read_nodes(one.whole)[path].members["fill value"] != "any"  # Zarr v2 may have none
    if what == "missing chunk" and not has_fill:  # what the source does not store has any elements
        is_stored = stored_elements(one.whole / path)
        own, other = (each._replace(elements=each.elements[is_stored]) for each in (own, other))
    if list(differences_of_node(path, own, other)) and (has_fill or what != "fill value"):
        compared = verify(new, against=one.whole, **copy.chosen)
        kinds = findings(compared)
        if what in ("value", "missing chunk", "fill value") and path in {
            each.name for each in compared.unchecked
        }:
            return
        if not any(array == path and kind in ("different", "missing shard") for kind, array, _ in kinds):
            yield f"planted {what} in {path!r} is not found: {kinds}"


def stored_elements(folder: Path) -> Any:
    """Return a flag for each element of an array of Zarr v2, True if its chunk is stored."""
    document = json.loads((folder / ".zarray").read_text())
    separator = document.get("dimension_separator", ".")
    found = np.zeros(document["shape"], bool)
    grid = [-(-n // size) for n, size in zip(document["shape"], document["chunks"], strict=True)]
    for at in np.ndindex(*grid):
        box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, document["chunks"], strict=True))
        found[box] = (folder / (separator.join(map(str, at)) or "0")).is_file()
    return found


class Nothing(Exception):
    """This cannot be planted in this array."""


def plant_value(pick: random.Random, folder: Path) -> None:
    array = zarr.open_array(folder, mode="r+")
    if not array.size or array.dtype.kind == "V" or (array.dtype.kind == "O" and not array.shape):
        raise Nothing
    at = tuple(pick.randrange(n) for n in array.shape)
    old = np.asarray(array[...], array.dtype)[at]
    if array.dtype.kind == "O":
        box = tuple(slice(i, i + 1) for i in at) or ...
        array[box] = np.array([b"x" + old], object).reshape((1,) * len(at))
    elif array.dtype.kind in "TU":
        array[at] = f"x{old}"
    elif array.dtype.kind == "S":
        array[at] = b"x" if bytes(old) != b"x" else b"y"
    elif array.dtype.kind == "b":
        array[at] = not old
    else:
        raw = bytearray(np.asarray(old, array.dtype).tobytes())
        raw[pick.randrange(len(raw))] ^= 1 << pick.randrange(8)
        array[at] = np.frombuffer(bytes(raw), array.dtype)[0]


def plant_missing(pick: random.Random, folder: Path) -> None:
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and is_chunk(str(file.relative_to(folder)), "")
    ]
    if not files:
        raise Nothing
    pick.choice(files).unlink()


def changing(
    change: Callable[[random.Random, dict[str, Any]], None],
) -> Callable[[random.Random, Path], None]:
    """Return a function that changes a document."""

    def plant(pick: random.Random, folder: Path) -> None:
        is_v2 = (folder / ".zarray").exists()
        if is_v2 and change is not change_attribute:
            raise Nothing
        file = folder / (".zattrs" if is_v2 else "zarr.json")
        document = json.loads(file.read_text()) if file.exists() else {}
        holder = {"attributes": document} if is_v2 else document
        change(pick, holder)
        file.write_text(json.dumps(document))

    return plant


def change_attribute(pick: random.Random, document: dict[str, Any]) -> None:
    attributes = document.setdefault("attributes", {})
    if attributes and pick.random() < 0.5:
        del attributes[pick.choice(sorted(attributes))]
    else:
        attributes["planted"] = pick.choice((None, float("nan"), "ü"))


def change_fill_value(pick: random.Random, document: dict[str, Any]) -> None:
    old = document["fill_value"]
    others = {bool: not old, int: 1, float: 2.5, str: ""}
    if type(old) not in others or isinstance(document["data_type"], dict):
        raise Nothing
    document["fill_value"] = others[type(old)] if old != others[type(old)] else 0 if type(old) is int else 1.5
    if document["data_type"] == "string":
        document["fill_value"] = f"{old}x"
    elif isinstance(old, str):
        document["fill_value"] = 3.5 if document["data_type"].startswith("float") else old
    if document["fill_value"] == old:
        raise Nothing


def change_names(pick: random.Random, document: dict[str, Any]) -> None:
    if not document["shape"]:
        raise Nothing
    old = document.get("dimension_names") or [None] * len(document["shape"])
    document["dimension_names"] = [f"{old[0]}x", *old[1:]]


def change_extension(pick: random.Random, document: dict[str, Any]) -> None:
    if "example" not in document:
        raise Nothing
    document["example"] = {"must_understand": False}


PLANTS: dict[str, Callable[[random.Random, Path], None]] = {
    "value": plant_value,
    "missing chunk": plant_missing,
    "attribute": changing(change_attribute),
    "fill value": changing(change_fill_value),
    "names": changing(change_names),
    "extension": changing(change_extension),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    n_wrong = 0
    for number in range(arguments.first, arguments.first + arguments.count):
        with tempfile.TemporaryDirectory() as folder:
            for each in check(Path(folder), f"{arguments.seed}-{number}"):
                n_wrong += 1
                print(each, flush=True)
    print(f"{arguments.count} hierarchies, {n_wrong} differences that no report names")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
