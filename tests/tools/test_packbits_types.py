# test_packbits_types.py - the tools with types of `ml_dtypes` in packbits, and with every codec
# SPDX-License-Identifier: MIT
"""The tools had raw bytes in place of int4 and bfloat16, which `packbits` refuses: verify then checked neither sizes nor elements,
and --against called an identical copy different.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import codec_rows
import numpy as np
import pytest
from spec_json import Json, named, typed_metadata

import shardcodec
from shardcodec import SpecError, tools
from shardcodec.format.byte_document import byte_document
from shardcodec.format.codecs import COMPRESSORS, ROWS
from shardcodec.format.dtypes import parse_data_type
from shardcodec.format.ml_types import ML_NBYTES

SHAPE, SHARD, CHUNK = (13, 20), (8, 12), (4, 6)


def document_of(data_type: Any, codecs: list[Json], sharded: bool) -> Json:
    return typed_metadata(data_type, codecs, SHAPE, CHUNK, SHARD if sharded else None)


def stored(place: Path, document: Json) -> np.ndarray[Any, Any]:
    """Write an array; return its elements."""
    place.mkdir()
    (place / "zarr.json").write_text(json.dumps(document))
    array = shardcodec.open_array(place, mode="r+")
    values = (np.arange(260).reshape(SHAPE) % 2).astype(array.dtype)
    array[...] = values
    return values


PACKED = [("int4", {}), ("int4", {"last_bit": 2}), ("uint2", {"padding_encoding": "first_byte"})]
PACKED += [("bfloat16", {"first_bit": 4}), ("float6_e3m2fn", {}), ("float8_e5m2", {})]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("data_type", "configuration"), PACKED, ids=str)
def test_tools_decode_packed_types(
    tmp_path: Path, data_type: str, configuration: Json, sharded: bool
) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    place = tmp_path / "a.zarr"
    codecs = [named("packbits", **configuration), named("crc32c")]
    values = stored(place, document_of(data_type, codecs, sharded))
    (report,) = tools.inspect(place).arrays
    assert report.foreign_codec is None and report.layout is not None
    assert report.layout.dtype == data_type and "moved as bytes" not in str(report)
    assert tools.verify(place, level="decode").n_unchecked == 0

    shutil.copytree(place, tmp_path / "same.zarr")
    assert tools.verify(place, against=tmp_path / "same.zarr").n_findings == 0
    for name, choices in (
        ("moved.zarr", {}),
        ("packed.zarr", {"chunks": (5, 5), "shards": (10, 10)}),
        ("plain.zarr", {"codecs": ("bytes", "zstd")}),
    ):
        new = tmp_path / name
        assert tools.convert(place, new, **choices).n_failed == 0
        array = shardcodec.open_array(new)
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(array[...], values)
        assert ("packbits" in (new / "zarr.json").read_text()) == (name != "plain.zarr")
        assert tools.verify(new, level="decode", against=place).n_findings == 0
    tools.convert(tmp_path / "plain.zarr", tmp_path / "again.zarr", codecs=("packbits",), chunks=(5, 5))
    np.testing.assert_array_equal(shardcodec.open_array(tmp_path / "again.zarr")[...], values)
    other = shardcodec.open_array(tmp_path / "same.zarr", mode="r+")
    other[3, 3] = 1 - other[3, 3]
    assert tools.verify(place, against=tmp_path / "same.zarr").n_findings == 1


@pytest.mark.parametrize("name", ML_NBYTES)
def test_integers_stand_for_packed_types(name: str) -> None:
    """Name and bits are enough, so the tools need no `ml_dtypes`; the engine stores the same bytes for both."""
    parsed = byte_document(document_of(name, [named("packbits")], True))
    assert parsed.codec is None and parsed.data_type == name and parsed.has_fill
    assert parse_data_type(parsed.document["data_type"]).itemsize == ML_NBYTES[name]
    too_many = document_of(name, [named("packbits", last_bit=16)], True)
    with pytest.raises(SpecError, match=f"at most .* for {name}, got 16"):
        byte_document(too_many)


def test_tools_need_no_ml_dtypes_for_packed_types(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    place = tmp_path / "a.zarr"
    stored(place, document_of("int4", [named("packbits")], False))
    (place / "c/0/0").write_bytes(b"123")
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from shardcodec import tools\n"
        "report = tools.verify(sys.argv[1], level='decode')\n"
        "assert (report.n_findings, report.n_unchecked) == (1, 0), str(report)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(place)], check=True, timeout=120)


def rows() -> list[Any]:
    """Return a case for each codec of fixed size and each type in which the tests compare it with zarr; `bytes` and packed types too."""
    every = [
        pytest.param(row.name, *case.values[1:], id=case.id, marks=case.marks)
        for row in codec_rows.ROWS
        for case in codec_rows.cases_of(row)
        if row.name not in COMPRESSORS
    ]
    every += [pytest.param("packbits", {}, name, id=f"packbits-{name}") for name in ML_NBYTES]
    return [*every, pytest.param("bytes", {"endian": "little"}, "int16", id="bytes-int16")]


@pytest.mark.parametrize(("name", "configuration", "dtype"), rows())
def test_tools_forget_no_codec(tmp_path: Path, name: str, configuration: Json, dtype: str) -> None:
    """Verify finds a plain chunk of a wrong size, whatever the codec."""
    if dtype in ML_NBYTES:
        pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    kind = next(row.codec.kind for row in ROWS if name in row.names)
    codec, serializer = named(name, **configuration), named("bytes", endian="little")
    codecs = {
        "array -> array": [codec, serializer],
        "array -> bytes": [codec],
        "bytes -> bytes": [serializer, codec],
    }
    place = tmp_path / "a.zarr"
    stored(place, document_of(dtype, codecs[kind], False))
    assert tools.verify(place).n_unchecked == 0
    path = place / "c/0/0"
    path.write_bytes(path.read_bytes()[:-1])
    report = tools.verify(place)
    assert report.n_findings == 1 and report.n_unchecked == 0, str(report)
