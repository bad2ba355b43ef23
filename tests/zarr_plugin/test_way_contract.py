# test_way_contract.py - the same selections through every way to read and write an array, with numpy as the twin
# SPDX-License-Identifier: MIT
"""The contract of each way in `array_ways`, for each layout, data type and kind of store. A new way or layout is one row.

The ways are strict, so the engine itself does the work. An object of each array is not stored.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_ways import KINDS, STRUCT, WAYS, WRITERS, elements, key_of, new_array, same, stored
from helpers import KINDS_OF_STORE, ZARR_IS_31, bits, store_of
from templates import written_once
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import LocalStore

import shardcodec
from shardcodec.zarr_plugin import direct_methods

SHAPE = (13, 18)
ROWS, COLUMNS = np.array([True, False] * 6 + [True]), np.arange(18) > 11
MASK = np.random.default_rng(3).random(SHAPE) < 0.2
SELECTIONS: list[tuple[str, Any]] = [
    ("basic", ...),
    ("basic", ()),
    ("basic", -1),
    ("basic", (3, 4)),
    ("basic", (-4, slice(None))),
    ("basic", (..., -1)),
    ("basic", (slice(7, 9), ...)),
    ("basic", np.s_[:1, :1]),
    ("basic", np.s_[8:, :12]),  # whole objects at the edge
    ("basic", np.s_[4:8, 3:6]),  # one inner chunk
    ("basic", np.s_[2:11, 1:9]),
    ("basic", np.s_[1:12:3, ::4]),
    ("basic", np.s_[1::8, 2::13]),  # steps that leave out objects
    ("basic", np.s_[10:100, -5:]),
    ("basic", np.s_[4:4, :]),
    ("orthogonal", (np.array([7, 1, 4]), np.array([0, 16]))),
    ("orthogonal", ([12, 0, 5], [17, 3, 4, 11])),
    ("orthogonal", (3, np.array([0, 17]))),
    ("orthogonal", ([7, 1, 4], slice(1, 9, 2))),
    ("orthogonal", (slice(None, None, 3), [17, 3, 4])),
    ("orthogonal", (ROWS, np.array([0, 8]))),
    ("orthogonal", (ROWS, slice(None))),
    ("orthogonal", (ROWS, COLUMNS)),
    ("orthogonal", (5, 6)),
    ("coordinate", (np.array([9, 0, 3]), np.array([8, 0, 2]))),
    ("coordinate", ([0, 3, 9], [1, 1, 17])),
    ("coordinate", (np.array([[9, 0, 3], [4, 12, -1]]), np.array([[8, 0, 2], [2, -18, 17]]))),
    ("coordinate", np.ix_([7, 1, 12], [0, 17, 3, 4])),
    ("coordinate", (np.array([4, 5]), 7)),
    ("coordinate", (np.array([], dtype=int), np.array([], dtype=int))),
    ("mask", MASK),
    ("mask", np.zeros(SHAPE, dtype=bool)),
    ("block", (1, 1)),
    ("block", (slice(0, 2), 0)),
    ("block", (-1, slice(None))),
]
REPEATED = [
    ("orthogonal", (np.array([7, 4, 4]), np.array([16, 0, 0]))),
    ("coordinate", (np.array([9, 0, 9]), np.array([8, 0, 8]))),
]
SHARDS: dict[str, Any] = {"shards": (8, 12), "chunks": (4, 3)}
INNER = ShardingCodec(
    chunk_shape=(2, 3), codecs=[TransposeCodec(order=(1, 0)), BytesCodec(), ZstdCodec(level=1)]
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": SHARDS,
    "uncompressed": {**SHARDS, "compressors": None},
    "index at start": {
        "chunks": (8, 12),
        "serializer": ShardingCodec(
            chunk_shape=(4, 3), codecs=[BytesCodec(), Crc32cCodec()], index_location="start"
        ),
        "compressors": None,
    },
    "nested": {
        "chunks": (8, 12),
        "serializer": ShardingCodec(chunk_shape=(4, 6), codecs=[INNER]),
        "compressors": None,
    },
    "transposed": {
        "chunks": (12, 12),
        "filters": [TransposeCodec(order=(1, 0))],
        "serializer": ShardingCodec(chunk_shape=(3, 4)),
        "compressors": None,
    },
    "shards in a codec": {
        "chunks": (8, 12),
        "serializer": ShardingCodec(chunk_shape=(4, 6)),
        "compressors": [ZstdCodec()],
    },
    "staged": {**SHARDS, "compressors": [of_numcodecs.BZ2(level=1)]},
    "plain": {"chunks": (4, 5)},
    "other keys": {"chunks": (4, 5), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "keys of v2": {**SHARDS, "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "v2": {"chunks": (4, 5), "zarr_format": 2},
    "v2 in order F": {"chunks": (4, 5), "zarr_format": 2, "order": "F"},
}
OF_ZARR = ("pipeline", "codec", "direct", "attached")
# The coroutines have the requests of the others, and the codec is that of shards alone.
FEW = {"coroutines": ["sharded", "plain"], "codec": [*LAYOUTS][:7]}
writers = pytest.mark.parametrize("way", WRITERS)


def in_layouts(ways: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test with each way in its layouts; handles and engines need native codecs."""
    return pytest.mark.parametrize(
        ("way", "layout"),
        [
            (way, layout)
            for way in ways
            for layout in FEW.get(way, LAYOUTS)
            if layout != "staged" or way in (*OF_ZARR, "xarray")
        ],
    )


@pytest.fixture(autouse=True, scope="module")
def _end_of_replaced_methods() -> Iterator[None]:
    """Later tests of the same process had the methods of the way "direct"."""
    yield
    direct_methods.restore()


@written_once
def write(folder: Path, layout: str) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """Create the array; return its elements and the shape of a block."""
    values = np.random.default_rng(0).integers(1, 100, SHAPE, dtype="int32")
    values[8:, 12:] = -1
    array = new_array(folder, SHAPE, fill_value=-1, **LAYOUTS[layout])
    array[...] = values
    return values, array.shards or array.chunks


def check_read(found: Any, expected: Any, what: Any) -> None:
    assert (np.shape(found), found.dtype) == (expected.shape, expected.dtype), what
    assert bits(found) == bits(expected), what


# ---- reads


@in_layouts(WAYS)
def test_reads_equal_numpy(way: str, layout: str, tmp_path: Path) -> None:
    values, extents = write(tmp_path, layout)
    array, zarrs = WAYS[way](LocalStore(tmp_path)), zarr.open_array(tmp_path, path="a", mode="r")
    for kind, selection in [*SELECTIONS, *REPEATED]:
        if way != "xarray" or kind in ("basic", "orthogonal", "coordinate"):
            expected = values[key_of(kind, selection, SHAPE, extents)]
            found = array.get(kind, selection)
            check_read(found, expected, (kind, selection))
            if way in ("pipeline", "direct", "attached"):  # the class and the order are those of zarr
                theirs = getattr(zarrs, f"get_{kind}_selection")(selection)
                assert type(found) is type(theirs), (kind, selection)
                assert kind == "coordinate" or np.asarray(found).strides == np.asarray(theirs).strides, (
                    kind,
                    selection,
                )


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "staged"])
def test_boxes_and_chunks_of_a_handle_equal_numpy(layout: str, tmp_path: Path) -> None:
    """Boxes begin anywhere; chunks at the edge are padded with the fill value, and one of an object that is not stored has only it."""
    values, _ = write(tmp_path, layout)
    array = shardcodec.open_array(tmp_path, "a", mode="r+")
    assert array.shape == SHAPE
    starts = [(0, 0), (8, 11), (3, 5), (3, 5)]
    for found, (row, column) in zip(array.read_boxes(starts, (5, 7)), starts, strict=True):
        check_read(found, values[row : row + 5, column : column + 7], (row, column))
    shapes = [(5, 7), (1, 2), (0, 9), (10, 13)]
    parts = [values[i : i + n, j : j + m].ravel() for (i, j), (n, m) in zip(starts, shapes, strict=True)]
    check_read(array.read_boxes(starts, shapes), np.concatenate(parts), shapes)
    rows, columns = array.chunks
    padded = np.full((SHAPE[0] + rows, SHAPE[1] + columns), -1, "int32")
    padded[: SHAPE[0], : SHAPE[1]] = values
    places = [(-(-SHAPE[0] // rows) - 1, -(-SHAPE[1] // columns) - 1), (0, 0), (1, 1), (1, 1)]
    for found, (i, j) in zip(array.read_chunks(places), places, strict=True):
        check_read(found, padded[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns], (i, j))
    boxes = elements("int32", (3, 5, 7))
    array.write_boxes(starts[:3], boxes)
    values = values.copy()
    for box, (row, column) in zip(boxes, starts, strict=False):
        values[row : row + 5, column : column + 7] = box
    assert bits(stored(tmp_path)) == bits(values)


@pytest.mark.parametrize("way", ["pipeline", "direct", "attached", "handle", "coroutines"])
@pytest.mark.parametrize("layout", ["sharded", "plain", "v2 in order F"])
def test_out_is_read_into(way: str, layout: str, tmp_path: Path) -> None:
    """Memory of the caller in any order; what lies between its elements stays. An engine has one axis for coordinates."""
    values, extents = write(tmp_path, layout)
    array = WAYS[way](LocalStore(tmp_path))
    for kind, selection in SELECTIONS:
        expected = values[key_of(kind, selection, SHAPE, extents)]
        if expected.ndim < 2 or kind == "coordinate":
            continue
        around = np.zeros((*expected.shape, 3), "int32")
        for out in (np.zeros(expected.shape, "int32", order="F"), around[..., 1]):
            array.get(kind, selection, out=out)
            check_read(out, expected, (kind, selection))
        assert not around[..., ::2].any(), (kind, selection)


# ---- writes


@in_layouts(WRITERS)
def test_writes_equal_numpy(way: str, layout: str, tmp_path: Path) -> None:
    """Elements, a scalar, and the fill value. The whole array is compared, so an element outside of the selection is noticed."""
    expected, extents = write(tmp_path, layout)
    expected = expected.copy()
    array = WAYS[way](LocalStore(tmp_path))
    for number, (kind, selection) in enumerate(SELECTIONS):
        if ZARR_IS_31 and way == "codec" and kind == "orthogonal":
            continue  # zarr 3.1 cannot store them in shards
        key = key_of(kind, selection, SHAPE, extents)
        values = elements("int32", expected[key].shape, number)
        for value in (values, 1000 + number) if number % 4 else (-1, values):
            expected[key] = value
            array.set(kind, selection, value)
            check_read(array.get(kind, selection), expected[key], (kind, selection, value))
        if number % 4 == 3:
            assert bits(stored(tmp_path)) == bits(expected), f"after {SELECTIONS[number - 3 : number + 1]}"
    assert bits(stored(tmp_path)) == bits(expected)


@writers
@pytest.mark.parametrize("store", KINDS_OF_STORE)
def test_every_store_is_read_and_written(way: str, store: str, tmp_path: Path) -> None:
    place = store_of(store, tmp_path)
    new_array(place, SHAPE, fill_value=-1, **SHARDS)
    expected, array = np.full(SHAPE, -1, "int32"), WRITERS[way](place)
    for number, (kind, selection) in enumerate(SELECTIONS):
        key = key_of(kind, selection, SHAPE, (8, 12))
        expected[key] = number
        array.set(kind, selection, number)
        check_read(array.get(kind, selection), expected[key], (kind, selection))
    assert bits(stored(place)) == bits(expected)


@writers
def test_values_in_any_memory_are_stored(way: str, tmp_path: Path) -> None:
    """In order F, reversed, in the other byte order, of another type, and of rank 0."""
    new_array(tmp_path, SHAPE, fill_value=-1, **SHARDS)
    array, values = WRITERS[way](LocalStore(tmp_path)), elements("int32", (9, 12))
    for number, given in enumerate(
        (
            np.asfortranarray(values),
            values[::-1, ::-1],
            values.astype(">i4"),
            values.astype("i8"),
            np.array(7, ">i4"),
        )
    ):
        array.set("basic", np.s_[number : number + 9, 3:15], given)
        assert (stored(tmp_path)[number : number + 9, 3:15] == given).all()


# ---- data types, ranks

DTYPES: list[Any] = [
    *(
        "?",
        "i1",
        "i2",
        ">i2",
        "<u8",
        "f2",
        "f4",
        ">f8",
        "c8",
        ">c16",
        "M8[s]",
        ">M8[ns]",
        "m8[ms]",
        "S5",
        "U3",
        ">U3",
        "V4",
    ),
    STRUCT,
    "string",
    "bytes",
]
OF_TYPES: dict[str, Any] = {
    "sharded": SHARDS,
    "big-endian": {**SHARDS, "serializer": BytesCodec(endian="big")},
    "transposed": {"chunks": (4, 5), "filters": [TransposeCodec(order=(1, 0))]},
    "v2": {"chunks": (4, 5), "zarr_format": 2},
}
WHERE = [np.s_[...], np.s_[2:11, 1:9], np.s_[::2, 3], np.s_[5, 6]]


def can_have(dtype: Any, layout: str, way: str) -> bool:
    """Return False for what zarr does not have, or stores in the wrong order."""
    is_text, is_raw = dtype in ("string", "bytes"), dtype in ("V4", STRUCT)
    if ZARR_IS_31 and ((is_raw and layout != "v2") or (is_text and layout == "transposed")):
        return False
    return not (is_text and (layout == "big-endian" or way == "codec"))


@pytest.mark.parametrize("way", [way for way in WRITERS if way != "coroutines"])  # see FEW
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore")  # data types without a specification
def test_elements_of_every_data_type(dtype: Any, way: str, tmp_path: Path) -> None:
    """zarr reads what the way has written, and the reverse; values may have the other byte order."""
    for layout in filter(functools.partial(can_have, dtype, way=way), OF_TYPES):
        folder = tmp_path / layout
        theirs = new_array(folder, SHAPE, dtype, **OF_TYPES[layout])
        values, array = elements(dtype, SHAPE), WRITERS[way](LocalStore(folder))
        array.set("basic", np.s_[:, :], values)
        assert same(stored(folder), values), layout
        theirs[3:9] = values[3:9] = elements(dtype, (6, 18), seed=1)
        part = elements(dtype, (8, 18), seed=2)[:, ::2]
        array.set(
            "basic",
            np.s_[4:12, ::2],
            part.astype(part.dtype.newbyteorder()) if dtype not in ("string", "bytes") else part,
        )
        values[4:12, ::2] = part
        # one by one: numpy 2.0.0 spoils texts that lists select
        values[3, 5], values[0, 17] = points = elements(dtype, (2,), seed=3)
        array.set("coordinate", ([3, 0], [5, 17]), points)
        if not (ZARR_IS_31 and way == "codec"):
            values[1, 2:9], values[4, 2:9], values[10, 2:9] = rows = elements(dtype, (3, 7), seed=4)
            array.set("orthogonal", ([1, 4, 10], slice(2, 9)), rows)
        for where in WHERE:
            assert same(array.get("basic", where), values[where]), (layout, where)
        assert same(array.get("coordinate", ([3, 0], [5, 17])), points), layout
        if way == "handle":
            assert same(
                array.array.read_boxes([(1, 1), (0, 5)], (5, 7)),
                np.stack([values[1:6, 1:8], values[:5, 5:12]]),
            ), layout
        assert same(stored(folder), values), layout


@writers
@pytest.mark.parametrize("layout", [{"shards": ()}, {}, {"zarr_format": 2}], ids=str)
def test_array_of_rank_0(way: str, layout: dict[str, Any], tmp_path: Path) -> None:
    """Its only element is an object, which is deleted with the fill value."""
    if way == "codec" and ZARR_IS_31 and "shards" in layout:
        pytest.skip("zarr before 3.4 cannot write it")
    new_array(tmp_path, (), chunks=(), fill_value=7, **layout)
    array, name = WRITERS[way](LocalStore(tmp_path)), "a/0" if "zarr_format" in layout else "a/c"
    for value in (7, 3, 7):
        array.set("basic", (), value)
        assert array.get("basic", ()) == array.get("basic", ...) == stored(tmp_path) == value
        if way == "handle":
            assert array.array.read_boxes(np.empty((3, 0), int), ()).tolist() == [value] * 3
            array.array.write_boxes(np.empty((2, 0), int), [0, value + 1])
            assert stored(tmp_path) == value + 1
            for error, call in (
                (ValueError, lambda: array.array.append(1)),
                (TypeError, lambda: len(array.array)),
            ):
                with pytest.raises(error):
                    call()
            array.array.resize(())
            array.set("orthogonal", (), value)
        assert (tmp_path / name).exists() == (value != 7)


@writers
@pytest.mark.parametrize("layout", ["sharded", "plain", "v2"])
def test_axis_without_elements(way: str, layout: str, tmp_path: Path) -> None:
    array = new_array(tmp_path, (0, 18), fill_value=-1, **LAYOUTS[layout])
    before = sorted(tmp_path.rglob("*"))
    empty = WRITERS[way](LocalStore(tmp_path))
    empty.set("basic", ..., 5)
    assert empty.get("basic", ...).shape == (0, 18) and sorted(tmp_path.rglob("*")) == before
    if way == "handle":
        assert empty.array.read_boxes([[0, 1]], (0, 2)).shape == (1, 0, 2)
    array.resize((3, 18))
    grown = WRITERS[way](LocalStore(tmp_path))
    grown.set("basic", np.s_[:, 3:], 5)
    assert (stored(tmp_path)[:, 3:] == 5).all() and (grown.get("basic", np.s_[:, :3]) == -1).all()


# ---- the fill value


@in_layouts(WRITERS)
def test_object_of_fill_value_is_deleted(way: str, layout: str, tmp_path: Path) -> None:
    """Written in one piece and in parts, also where it was absent; the other objects stay."""
    values, (rows, columns) = write(tmp_path, layout)
    array, files = (
        WAYS[way](LocalStore(tmp_path)),
        sorted(path for path in tmp_path.rglob("*") if path.is_file()),
    )
    array.set("basic", np.s_[:rows, :columns], -1)
    left = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(left) == len(files) - 1
    for start in range(0, columns, 2):
        array.set("basic", np.s_[:rows, start : min(start + 2, columns)], start + 1)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files
    for row in range(rows):
        array.set("basic", np.s_[row, :columns], -1)
    array.set("basic", (0, 0), -1)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == left
    assert same(stored(tmp_path)[rows:], values[rows:])


# ---- refusals

REFUSED: list[tuple[str, Any]] = [
    ("basic", (slice(None, None, -1), 0)),
    ("basic", (slice(9, 3, -2), 0)),
    ("basic", 13),
    ("basic", (0, -19)),
    ("basic", (0, 0, 0)),
    ("basic", (..., ...)),
    ("basic", [1, 2]),
    ("basic", "x"),
    ("basic", 1.5),
    ("orthogonal", (np.array([0, 13]), 0)),
    ("orthogonal", (np.array([[2, 4], [6, 8]]), 0)),
    ("coordinate", (np.array([0, 1]),)),
    ("coordinate", ([0], [99])),
    ("mask", MASK[:5]),
    ("mask", (slice(None), slice(None))),
    ("block", (9, 0)),
    ("block", (slice(9, 12), 0)),
    ("block", (slice(0, 2, 2), 0)),
]
WRONG_VALUES: list[tuple[str, Any, Any]] = [
    ("basic", np.s_[0:2], "one"),
    ("basic", np.s_[0:4, 0:3], np.zeros((4, 4), "int32")),
    ("orthogonal", ([0, 1], [1, 2]), np.zeros((3, 2), "int32")),
    ("coordinate", ([9, 0, 3], [8, 0, 2]), np.zeros(4, "int32")),
    ("mask", MASK, np.zeros(3, "int32")),
]


@writers
@pytest.mark.parametrize("layout", ["sharded", "plain", "v2"])
def test_wrong_selections_and_values_change_nothing(way: str, layout: str, tmp_path: Path) -> None:
    values, _ = write(tmp_path, layout)
    array = WAYS[way](LocalStore(tmp_path))
    for kind, selection in REFUSED:
        with pytest.raises(IndexError):
            array.get(kind, selection)
        with pytest.raises(IndexError):
            array.set(kind, selection, 5)
    for kind, selection, value in WRONG_VALUES[
        : 1 if way in OF_ZARR else None
    ]:  # zarr takes a part of larger values
        with pytest.raises((ValueError, TypeError)):
            array.set(kind, selection, value)
    assert bits(stored(tmp_path)) == bits(values)


@writers
@pytest.mark.parametrize("store", KINDS_OF_STORE)
def test_read_only_store_refuses_writes_at_once(way: str, store: str, tmp_path: Path) -> None:
    """Also in a block of `group_writes`, which stores nothing before its end."""
    place = store_of(store, tmp_path)
    new_array(place, SHAPE, fill_value=-1, **SHARDS)[...] = values = elements("int32", SHAPE)
    array = WRITERS[way](place.with_read_only(True))
    check_read(array.get("basic", ...), values, way)
    for kind, selection in SELECTIONS:
        for block in (contextlib.nullcontext(), shardcodec.group_writes()):
            if kind in ("basic", "coordinate") and np.size(values[selection]):
                with block, pytest.raises(ValueError, match=r"read.only|mode="):
                    array.set(kind, selection, 5)
    assert bits(stored(place)) == bits(values)


def test_each_kind_of_selection_has_rows() -> None:
    assert {kind for kind, _ in SELECTIONS} == {kind for kind, _ in REFUSED} == set(KINDS)
