# test_type_table.py - each cell of the table of data types and codecs, in each format
# SPDX-License-Identifier: MIT
"""Each combination of the table in `docs/compatibility.md` is opened, written and read: by the way that its cell names, with zarr's results."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ZARR_IS_31, bits, on_pipeline, quiet, zarr_has_codec

import shardcodec
from shardcodec.errors import SpecError, UnsupportedError
from shardcodec.zarr_plugin.array_codecs import NativeKind, StagedKind, TextKind

pytestmark = pytest.mark.skipif(
    ZARR_IS_31, reason="the table is of the newest zarr; 3.1 cannot open all of its arrays"
)
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "codec_table.py"))
KINDS: dict[str, str] = SCRIPT["kinds"]()


def cells() -> dict[str, dict[str, str]]:
    """Return the words of the page by codec and heading."""
    page = SCRIPT["PAGE"].read_text()
    lines = page[page.index(SCRIPT["BEGIN"]) + len(SCRIPT["BEGIN"]) : page.index(SCRIPT["END"])].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


CELLS = cells()


def same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind in "OT":
        return [*map(str, one)] == [*map(str, other)]
    return one.dtype == other.dtype and bits(one) == bits(other)


def check_with_open_array(place: Path, values: Any) -> None:
    """Zarr does not have the data type or the codec, so `open_array` is the only way."""
    shardcodec.open_array(place, mode="r+")[...] = values
    array = shardcodec.open_array(place)
    assert array.dtype == values.dtype and same(array[...], values) and same(array[3:6], values[3:6])


def check_with_zarr(place: Path, values: Any, kind: type | None) -> None:
    """Compare with zarr what our pipeline does; `kind` is that of the array, None if zarr's own pipeline must do the work."""
    with quiet():
        own = zarr.open_array(place, mode="r+")
        array = on_pipeline(own, strict=kind is not None)
        used = array.async_array.codec_pipeline._kind
        assert type(used) is (type(None) if kind is None else kind), (place.name, used)
        own[...] = values
        expected = own[...]
        assert same(array[...], expected) and same(array[3:6], expected[3:6])
        array[...] = values[::-1]
        array[1:3] = values[1:3]
        written = array[...]
        assert same(own[...], written)
        own[...] = values[::-1]
        own[1:3] = values[1:3]
        assert same(own[...], written)


def check(name: str, word: str, dtype: Any, layout: str, place: Path) -> None:
    values = SCRIPT["values_of"](dtype)
    if word == "native" and (SCRIPT["is_ml"](dtype) or not zarr_has_codec(name)):
        check_with_open_array(place, values)
        return
    if word == "native":
        kind: type = TextKind if SCRIPT["is_text"](dtype) else NativeKind
        if kind is TextKind and name == "sharding_indexed" and layout == "shards":
            kind = StagedKind  # shards in shards have zarr's codecs of text
        check_with_zarr(place, values, kind)
        return
    is_shard = layout == "shards" or name == "sharding_indexed"
    if word == "staged":
        check_with_zarr(place, values, StagedKind if is_shard else None)
        return
    assert word == "none"
    # in Zarr v2 a filter takes whatever numpy converts, such as numbers for `packbits`
    assert layout == "v2" or is_refused_by_zarr(place, values)
    with pytest.raises((UnsupportedError, SpecError)):
        shardcodec.open_array(place)


def is_refused_by_zarr(place: Path, values: Any) -> bool:
    try:
        with quiet():
            array = on_pipeline(zarr.open_array(place, mode="r+"))
            array[...] = values
            array[...]
    except Exception:  # zarr and codecs of third parties raise any exception
        return True
    return False


def check_row(name: str, folder: Path, *, every: bool) -> None:
    """Check the cells of a codec: with every data type of a heading, or with the first and the last one."""
    assert set(CELLS) == set(KINDS)
    n_opened = 0
    for heading, dtypes in SCRIPT["TYPES"].items():
        chosen = dtypes if every else dtypes[:1] + dtypes[1:][-1:]
        for dtype, layout in itertools.product(chosen, SCRIPT["LAYOUTS"]):
            document = SCRIPT["document_of"](name, KINDS[name], dtype, layout)
            if document is None:
                continue
            place = SCRIPT["stored"](document, folder / f"{n_opened}-{layout}")
            word = CELLS[name][heading]
            if word == "some staged":
                word = "staged" if SCRIPT["zarr_has"](name, KINDS[name], dtype, layout) else "none"
            check(name, word, dtype, layout, place)
            n_opened += 1
    assert n_opened > len(SCRIPT["TYPES"])


@pytest.mark.parametrize("name", KINDS)
def test_array_of_each_cell_takes_the_way_that_the_table_says(name: str, tmp_path: Path) -> None:
    # codecs of bytes do not see the data type, so two of a heading suffice by day
    check_row(name, tmp_path, every=KINDS[name] != "bytes -> bytes")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "bytes -> bytes"])
def test_all_data_types_of_each_cell(name: str, tmp_path: Path) -> None:
    check_row(name, tmp_path, every=True)
