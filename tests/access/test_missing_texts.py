# test_missing_texts.py - missing texts, and bytes that are no text, in writes
# SPDX-License-Identifier: MIT
"""A handle stores missing texts as zarr does, or refuses them.

They became words: a StringDType with a missing value, or a Series of pandas, was stored as "None", "nan" or "<NA>".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec import CodecError, open_array

if not hasattr(np.dtypes, "StringDType"):
    pytest.skip("needs NumPy 2", allow_module_level=True)

NAN = float("nan")
String = np.dtypes.StringDType
VALUES = {
    "None": np.array(["a", None, "b"], String(na_object=None)),
    "nan": np.array(["a", NAN, "b"], String(na_object=NAN)),
    "text for missing": np.array(["a", "NA", "b"], String(na_object="NA")),
    "not missing": np.array(["a", "c", "b"], String(na_object=NAN)),
    "objects": np.array(["a", None, "b"], object),
    "objects with nan": np.array(["a", NAN, "b"], object),
    "list": ["a", None, "b"],
    "times": np.array(["2020-01-01", "NaT", "2020-01-02"], "M8[D]"),
}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"dtype": String(), "fill_value": "old"},
    "shards": {"dtype": String(), "fill_value": "old", "shards": (3,), "chunks": (1,)},
    "Zarr v2": {"dtype": String(), "fill_value": "old", "zarr_format": 2},
    "fixed length": {"dtype": "U10", "fill_value": "old"},
    "fixed bytes": {"dtype": "S10", "fill_value": b"old"},
}


def by_assignment(path: Path, values: Any) -> None:
    open_array(path, mode="r+")[:] = values


def by_boxes(path: Path, values: Any) -> None:
    boxes = values[None] if isinstance(values, np.ndarray) else [values]
    open_array(path, mode="r+").write_boxes([(0,)], boxes)


def by_append(path: Path, values: Any) -> None:
    array = open_array(path, mode="r+")
    array.resize((0,))
    array.append(values)


def by_zarr(path: Path, values: Any) -> None:
    zarr.open_array(path, mode="r+")[:] = values


def stored(path: Path, kind: str, values: Any, write: Callable[[Path, Any], None]) -> Any:
    """Return what a write stores; the type of its error if it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        zarr.create_array(path, **{"shape": (3,), "chunks": (3,), **KINDS[kind]})
        try:
            write(path, values)
        except (TypeError, ValueError, RuntimeError) as error:
            return "refused", isinstance(error, TypeError)
        return zarr.open_array(path, mode="r")[:].tolist()


@pytest.mark.parametrize("write", [by_assignment, by_boxes, by_append])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VALUES)
def test_missing_texts_are_stored_as_zarr_stores_them(
    name: str, kind: str, write: Callable[[Path, Any], None], tmp_path: Path
) -> None:
    # zarr gives texts without shards to its codec as they are; elsewhere it stores the words of numpy
    own = "text" if kind in ("shards", "Zarr v2") else kind
    expected = stored(tmp_path / "zarr", own, VALUES[name], by_zarr)
    assert stored(tmp_path / "handle", kind, VALUES[name], write) == expected


@pytest.mark.parametrize("kind", ["shards", "fixed length", "fixed bytes"])
@pytest.mark.parametrize("missing", [None, "NA"])
@pytest.mark.parametrize("way", ["Series", "Index", "Categorical", "string"])
def test_missing_texts_of_pandas_are_refused(way: str, missing: Any, kind: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")

    def made(texts: list[Any]) -> Any:
        return pandas.Series(texts, dtype="string") if way == "string" else getattr(pandas, way)(texts)

    missing = pandas.NA if missing == "NA" else missing
    values = made(["a", missing, "b"])
    assert stored(tmp_path / "missing", kind, values, by_assignment) == ("refused", True)
    texts = stored(tmp_path / "whole", kind, made(["a", "c", "b"]), by_assignment)
    assert np.array(texts).astype("U").tolist() == ["a", "c", "b"]


@pytest.mark.filterwarnings("ignore")  # data types without a specification
@pytest.mark.parametrize("kind", ["text", "shards", "Zarr v2"])
@pytest.mark.parametrize("way", ["attached", "handle", "group_writes"])
def test_bytes_that_are_not_utf8_are_refused(way: str, kind: str, tmp_path: Path) -> None:
    """numpy before 2.5 casts bytes to StringDType unchecked: they were stored, and no program could read the array any more."""
    array: Any = zarr.create_array(tmp_path, **{"shape": (3,), "chunks": (3,), **KINDS[kind]})
    array = shardcodec.attach(array) if way == "attached" else open_array(tmp_path, mode="r+")
    block = shardcodec.group_writes() if way == "group_writes" else nullcontext()
    with pytest.raises((CodecError, TypeError), match="UTF-8"), block:
        array[:] = np.array([b"d", b"\xff", b"\xed\xa0\x80"])
    assert array[:].tolist() == ["old", "old", "old"]
    array[1:2] = np.array(["é".encode()])
    assert array[:].tolist() == ["old", "é", "old"]
