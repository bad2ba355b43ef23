"""Workloads: which arrays there are, and which boxes of them are read or written in which order.

Each file in workloads/ is one workload. `suite.py` has a class for each kind of row, and each peer of `peers.py` replays it.
README.md describes the format.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from data import Array, Box, Case
from suite import Read, ReadCold, ReadTogether, ReadWarm, Row, Select, Store, Update, Write, WriteEach
from suite_again import ReadAgain, ReadRowsAgain

FOLDER = Path(__file__).with_name("workloads")
Json = dict[str, Any]

# Members of a file, an array, a row, a set of boxes, and a selection by index arrays.
FILE = {"about", "group", "checker", "may_refuse", "codecs", "arrays", "rows"}
ARRAY = {"shape", "shards", "chunks", "dtype", "values", "zarr_format", "codecs", "writer"}
ROW = {
    "name",
    "group",
    "arrays",
    "codecs",
    "do",
    "boxes",
    "select",
    "peers",
    "without",
    "caches",
    "callers",
    "batch",
}
BOXES = {"random", "planes", "corner", "chunks", "shape", "aligned", "axis", "seed", "order", "repeat"}
BOXES |= {"shards", "popular", "points", "windows", "step", "rows", "length"}
SELECT = {"rows", "planes", "points", "mask", "seed", "order"}


class WorkloadError(ValueError):
    """A workload file that cannot be understood."""


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> Json:
    """Return the content of a file; unknown members are refused, because a misspelt one would change what is measured."""
    try:
        document: Json = json.loads((FOLDER / f"{name}.json").read_text())
    except ValueError as error:
        raise WorkloadError(f"{name}: expected JSON: {error}") from None
    _check(document, FILE, name, {"group", "codecs", "arrays", "rows"})
    for label, array in document["arrays"].items():
        where = f"{name}: array {label}"
        _check(array, ARRAY, where, {"shape", "chunks", "dtype"})
        _check_names(array.get("codecs", ()), document["codecs"], f"{where}: codecs")
    for row in document["rows"]:
        _check(row, ROW, f"{name}: row {row.get('name')}", {"name", "do"})
        where = f"{name}: row {row['name']}"
        _check_names([row["do"]], KINDS, f"{where}: do")
        _check(row, ROW, where, KINDS[row["do"]].needs)
        for members in ("arrays", "codecs"):
            _check_names(row.get(members, ()), document[members], f"{where}: {members}")
    return document


def _check(
    members: Json, known: set[str], where: str, needed: set[str] | frozenset[str] = frozenset()
) -> None:
    if unknown := members.keys() - known:
        raise WorkloadError(f"{where}: unknown members {sorted(unknown)}; expected some of {sorted(known)}")
    if missing := needed - members.keys():
        raise WorkloadError(f"{where}: missing members {sorted(missing)}")


def _check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise WorkloadError(f"{where}: expected some of {', '.join(known)}; got {', '.join(unknown)}")


def rows(name: str, shrink: int = 1) -> list[Row]:
    """Return the rows of a workload, those of one array and codec together, because its files are kept until the next one.

    shrink: each array has about `shrink`**3 times fewer elements than the file says, and boxes are `shrink` times fewer.
    """
    document = load(name)
    return [
        _row(document, entry, case, label, shrink)
        for label, array in document["arrays"].items()
        for codec in array.get("codecs", document["codecs"])
        for case in [_case(document, array, codec, shrink)]
        for described in document["rows"]
        for entry in ({**described, "cache": percent} for percent in described.get("caches", [0]))
        if label in entry.get("arrays", document["arrays"]) and codec in entry.get("codecs", [codec])
    ]


# ---------------------------------------------------------------------------------------------------------
# arrays


def _case(document: Json, array: Json, codec: str, shrink: int) -> Case:
    chunks = tuple(array["chunks"])
    shape, shards = smaller(tuple(array["shape"]), tuple(array.get("shards", chunks)), chunks, shrink)
    return Case(
        shape,
        shards,
        chunks,
        array["dtype"],
        codec,
        values=array.get("values", "waves"),
        zarr_format=array.get("zarr_format", 3),
        codecs=document["codecs"][codec],
    )


def smaller(
    shape: tuple[int, ...], shards: tuple[int, ...], chunks: tuple[int, ...], factor: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and shards of an array with about `factor`**3 times fewer elements, and with the same chunks.

    Only axes with several chunks shrink. An array with shards keeps their number, and at least two chunks in each along an axis.
    """
    is_sharded = shards != chunks
    outer = shards if is_sharded else shape
    axes = [axis for axis in range(len(shape)) if outer[axis] > chunks[axis]]
    if factor == 1 or not axes:
        return shape, shards
    by = factor ** (3 / len(axes))
    small = list(outer)
    for axis in axes:
        small[axis] = max(2, int(outer[axis] / by) // chunks[axis]) * chunks[axis]
    if not is_sharded:
        return tuple(small), shards
    return tuple(n * -(-size // shard) for n, size, shard in zip(small, shape, shards, strict=True)), tuple(
        small
    )


# ---------------------------------------------------------------------------------------------------------
# boxes


def boxes_of(how: Any, case: Case, shrink: int = 1) -> tuple[Box, ...]:
    """Return the boxes that a row describes: "whole", a list of [start, stop] pairs for each axis, or a rule."""
    if how == "whole":
        return (case.whole,)
    if isinstance(how, list):
        return tuple(tuple(slice(*pair) for pair in box) for box in how)
    _check(how, BOXES, "boxes")
    rules = [rule for rule in BOX_RULES if rule in how]
    if len(rules) != 1:
        raise WorkloadError(f"boxes: expected one of {', '.join(BOX_RULES)}, got {how}")
    boxes = list(BOX_RULES[rules[0]](how, case, shrink))
    match how.get("order", "drawn"):
        case "ascending":
            boxes.sort(key=lambda box: [s.start for s in box])
        case "shuffled":
            np.random.default_rng(how.get("seed", 0)).shuffle(boxes)
        case "drawn":
            pass
        case other:
            raise WorkloadError(f"boxes: expected the order drawn, ascending or shuffled, got {other!r}")
    return tuple(boxes) * how.get("repeat", 1)


def _random(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield boxes at random places; aligned: at multiples of their shape."""
    rng = np.random.default_rng(how.get("seed", 7))
    for _ in range(max(1, how["random"] // shrink)):
        starts = [
            int(rng.integers(0, n - size + 1)) for n, size in zip(case.shape, how["shape"], strict=True)
        ]
        if how.get("aligned", False):
            starts = [start // size * size for start, size in zip(starts, how["shape"], strict=True)]
        yield tuple(slice(start, start + size) for start, size in zip(starts, how["shape"], strict=True))


def _planes(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield planes of thickness 1 at random places along an axis."""
    axis = how["axis"]
    for at in np.random.default_rng(how.get("seed", 8)).integers(0, case.shape[axis], how["planes"]):
        yield (*case.whole[:axis], slice(int(at), int(at) + 1), *case.whole[axis + 1 :])


def _corner(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield the box whose centre is where the first shards, or chunks, meet."""
    yield tuple(
        slice(at - size // 2, at - size // 2 + size)
        for at, size in zip(case.shard, how["corner"], strict=True)
    )


def _tiled(case: Case, shape: Iterable[int]) -> Iterator[Box]:
    """Yield boxes that cover the array, in the order of C."""
    for start in itertools.product(*(range(0, n, size) for n, size in zip(case.shape, shape, strict=True))):
        yield tuple(slice(at, at + size) for at, size in zip(start, shape, strict=True))


def _chunks(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield each inner chunk, in the order of C."""
    return _tiled(case, case.inner)


def _shards(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield each shard, in the order of C."""
    return _tiled(case, case.shard)


def _popular(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield tiles; the n-th most popular one is drawn in proportion to 1 / n (Zipf)."""
    rng = np.random.default_rng(how.get("seed", 7))
    tiles = list(_tiled(case, how["shape"]))
    weights = 1 / rng.permutation(np.arange(1, len(tiles) + 1))
    for number in rng.choice(len(tiles), max(1, how["popular"] // shrink), p=weights / weights.sum()):
        yield tiles[number]


def _points(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield all elements along an axis at random points of the others."""
    rng = np.random.default_rng(how.get("seed", 7))
    for _ in range(max(1, how["points"] // shrink)):
        point = [slice(at, at + 1) for at in (int(rng.integers(0, n)) for n in case.shape)]
        yield (*point[: how["axis"]], case.whole[how["axis"]], *point[how["axis"] + 1 :])


def _windows(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield windows of so many planes along an axis, each some planes behind the one before."""
    axis, size = how["axis"], how["windows"]
    for at in range(0, case.shape[axis] - size + 1, how["step"]):
        yield (*case.whole[:axis], slice(at, at + size), *case.whole[axis + 1 :])


def _rows(how: Json, case: Case, shrink: int) -> Iterator[Box]:
    """Yield random rows of a sparse matrix, whose elements lie one behind the other; `length` is their mean."""
    rng = np.random.default_rng(how.get("seed", 7))
    (size,) = case.shape
    ends = np.cumsum(1 + rng.poisson(how["length"], size // how["length"]))
    ends = ends[ends <= size]
    for number in rng.choice(len(ends) - 1, min(max(1, how["rows"] // shrink), len(ends) - 1), replace=False):
        yield (slice(int(ends[number]), int(ends[number + 1])),)


BOX_RULES: dict[str, Callable[[Json, Case, int], Iterator[Box]]] = {
    "random": _random,
    "planes": _planes,
    "corner": _corner,
    "chunks": _chunks,
    "shards": _shards,
    "popular": _popular,
    "points": _points,
    "windows": _windows,
    "rows": _rows,
}


def selection_of(how: Json, case: Case) -> tuple[str, Any]:
    """Return "oindex" or "vindex", and the index arrays or the mask."""
    _check(how, SELECT, "select")
    rng = np.random.default_rng(how["seed"])
    if "points" in how:
        return "vindex", tuple(rng.integers(0, n, how["points"]) for n in case.shape)
    if "mask" in how:
        return "vindex", rng.random(case.shape, dtype=np.float32) < how["mask"]
    n = case.shape[0]
    if "planes" in how:  # with repeats
        positions: Array = rng.integers(0, n, how["planes"])
    else:
        positions = rng.choice(n, min(how["rows"], n // 2), replace=False)
    if how.get("order") == "ascending":
        positions = np.sort(positions)
    return "oindex", (positions, *case.whole[1:])


# ---------------------------------------------------------------------------------------------------------
# rows


@dataclass(frozen=True)
class Kind:
    """A class of suite.py, and how it is given its boxes."""

    row: type[Row]
    members: Callable[[Json, Case, int], Json]
    needs: frozenset[str] = frozenset({"boxes"})


def _boxes(entry: Json, case: Case, shrink: int) -> Json:
    return {"boxes": boxes_of(entry["boxes"], case, shrink)}


def _box(entry: Json, case: Case, shrink: int) -> Json:
    (box,) = boxes_of(entry["boxes"], case, shrink)
    return {"box": box}


def _selection(entry: Json, case: Case, shrink: int) -> Json:
    how, selection = selection_of(entry["select"], case)
    return {"how": how, "selection": selection}


def _again(entry: Json, case: Case, shrink: int) -> Json:
    how = {"cache_nbytes": case.nbytes * entry["cache"] // 100, "n_callers": entry.get("callers", 1)}
    return {**_boxes(entry, case, shrink), **how}


KINDS = {
    "read": Kind(Read, _boxes),
    "read cold": Kind(ReadCold, _boxes),
    "read warm": Kind(ReadWarm, _boxes),
    "read together": Kind(ReadTogether, _boxes),
    "write": Kind(Write, lambda entry, case, shrink: {}, frozenset()),
    "write each": Kind(WriteEach, _boxes),
    "write gathered": Kind(WriteEach, lambda *how: {**_boxes(*how), "gathered": True}),
    "update": Kind(Update, _box),
    "select": Kind(Select, _selection, frozenset({"select"})),
    "store": Kind(Store, _selection, frozenset({"select"})),
    "read again": Kind(ReadAgain, _again, frozenset({"boxes", "caches"})),
    "read rows again": Kind(
        ReadRowsAgain,
        lambda entry, *how: {**_again(entry, *how), "batch": entry["batch"]},
        frozenset({"boxes", "caches", "batch"}),
    ),
}


def _row(document: Json, entry: Json, case: Case, label: str, shrink: int) -> Row:
    kind = KINDS[entry["do"]]
    members = kind.members(entry, case, shrink)
    name = entry["name"].format(
        array=label,
        codec=case.codec,
        cache=entry["cache"],
        chunks=f"{n_chunks(case):,}",
        boxes=f"{len(members.get('boxes', ())):,}",
    )
    who = {key: tuple(entry[key]) for key in ("peers", "without") if key in entry}
    who |= {"writer": document["arrays"][label].get("writer", ""), "checker": document.get("checker", "")}
    who["may_refuse"] = tuple(document.get("may_refuse", ()))
    return kind.row(entry.get("group", document["group"]), name, case, **members, **who)


def n_chunks(case: Case) -> int:
    """Return the number of inner chunks of an array."""
    return int(np.prod([-(-n // size) for n, size in zip(case.shape, case.inner, strict=True)]))
