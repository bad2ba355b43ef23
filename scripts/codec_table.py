# codec_table.py - write the table of data types and codecs in docs/compatibility.md
# SPDX-License-Identifier: MIT
"""Ask the engine, for each codec and data type, whether it has native code, and zarr about the others; run this file after a change of a codec.

It needs `ml_dtypes` and the newest zarr. `tests/project/test_codec_table.py` compares the page with `table`, and
`tests/zarr_plugin/test_type_table.py` opens an array for each cell and format.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardcodec import SpecError, UnsupportedError
from shardcodec.compat import data_type_of
from shardcodec.format.codecs import ROWS
from shardcodec.format.dtypes import as_dtype, swap_fields
from shardcodec.format.ml_types import ML_NBYTES
from shardcodec.format.spec import ChainSpec
from shardcodec.format.text import text_array

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
BEGIN, END = "<!-- codecs: scripts/codec_table.py -->\n", "<!-- end of codecs -->\n"

# A heading, and data types of which the table shows one word if they all have the same.
TYPES: dict[str, tuple[Any, ...]] = {
    "bool": ("bool",),
    "integers": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "float16": ("float16",),
    "float32, float64": ("float32", "float64"),
    "complex": ("complex64", "complex128"),
    "times, with any unit": ("datetime64[s]", "timedelta64[ns]", "datetime64[25us]"),
    "bytes and text of a fixed length": ("S5", "U5", "V5"),
    "structs, also nested": (
        [("a", "int16"), ("b", "float64")],
        [("a", "int16"), ("b", [("c", "float32"), ("d", "S3")])],
    ),
    "bfloat16": ("bfloat16",),
    "float8, float6, float4, int4, int2": tuple(name for name in ML_NBYTES if name != "bfloat16"),
    "strings of any length": ("string",),
    "bytes of any length": ("variable_length_bytes",),
}
# The codecs of text and bytes of any length, in both formats.
TEXT = {"string": "vlen-utf8", "variable_length_bytes": "vlen-bytes"}

# Codecs that zarr has and the engine does not; it says so itself.
OTHERS = {
    **dict.fromkeys(("numcodecs.bz2", "numcodecs.lzma"), "bytes -> bytes"),
    **dict.fromkeys(("numcodecs.pcodec", "numcodecs.zfpy", "vlen-utf8", "vlen-bytes"), "array -> bytes"),
}
# Ways to store an array: of Zarr v3 with shards and without, and of Zarr v2.
LAYOUTS = ("shards", "chunks", "v2")


def kinds() -> dict[str, str]:
    """Return the names of all codecs of the table, with their kinds."""
    native = {name: row.codec.kind for row in ROWS for name in row.names}
    return native | {name: kind for name, kind in OTHERS.items() if name not in native}


def is_text(dtype: Any) -> bool:
    """Return True for elements of any length."""
    return isinstance(dtype, str) and dtype in TEXT


def is_ml(dtype: Any) -> bool:
    """Return True for a type of `ml_dtypes`."""
    return isinstance(dtype, str) and dtype in ML_NBYTES


def configuration_of(name: str, dtype: Any) -> dict[str, Any]:
    """Return a usual configuration; a codec that needs one has a line here."""
    # numcodecs names neither text nor the types of ml_dtypes; an integer stands for them
    text = f"<u{ML_NBYTES.get(dtype, 1)}" if is_text(dtype) or is_ml(dtype) else as_dtype(dtype).str
    configurations: Mapping[str, dict[str, Any]] = {
        "numcodecs.delta": {"dtype": text},
        "numcodecs.fixedscaleoffset": {"offset": 0, "scale": 0.5, "dtype": text, "astype": "<i2"},
        "numcodecs.bitround": {"keepbits": 6},
        "bitround": {"keepbits": 6},
        "numcodecs.quantize": {"digits": 1, "dtype": text},
        "numcodecs.astype": {"encode_dtype": "<i4", "decode_dtype": text},
        "transpose": {"order": [0]},
        "cast_value": {"data_type": "int32"},
        "sharding_indexed": {"chunk_shape": [2], "codecs": [serializer_of(dtype)],
                             "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
    }  # fmt: skip
    return configurations.get(name, {})


def serializer_of(dtype: Any) -> dict[str, Any]:
    """Return the codec that makes bytes of elements without another one."""
    if is_text(dtype):
        return {"name": TEXT[dtype]}
    has_order = bool(swap_fields(as_dtype(dtype)))
    return {"name": "bytes", **({"configuration": {"endian": "little"}} if has_order else {})}


def chain_of(name: str, kind: str, dtype: Any) -> list[dict[str, Any]]:
    """Return the codecs of a chunk of Zarr v3: this one, and what it needs."""
    codec = {"name": name, "configuration": configuration_of(name, dtype)}
    if name == "bytes":
        codec = {"name": "bytes"} if is_text(dtype) else serializer_of(dtype)
    return {
        "array -> array": [codec, serializer_of(dtype if is_text(dtype) else "int64")],  # elements may change
        "array -> bytes": [codec],
        "bytes -> bytes": [serializer_of(dtype), codec],
    }[kind]


def document_of(name: str, kind: str, dtype: Any, layout: str) -> dict[str, Any] | None:
    """Return the metadata of an array of 8 elements in chunks of 4; None if Zarr v2 has no such codec."""
    if layout == "v2":
        return _document_of_v2(name, kind, dtype)
    if is_text(dtype):
        data_type, fill = dtype, ""
    elif is_ml(dtype):
        data_type, fill = dtype, 0
    else:
        data_type, fill = data_type_of(np.dtype(dtype), np.zeros((), dtype)[()])
    codecs = chain_of(name, kind, dtype)
    if layout == "shards":
        index = [{"name": "bytes", "configuration": {"endian": "little"}}]
        shard = {"chunk_shape": [4], "codecs": codecs, "index_codecs": index, "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": shard}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8 if layout == "shards" else 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }


def _document_of_v2(name: str, kind: str, dtype: Any) -> dict[str, Any] | None:
    ids = {name: name for name in TEXT.values()} | {"bytes": None}
    codec_id = name.removeprefix("numcodecs.") if name.startswith("numcodecs.") else ids.get(name, "")
    # in Zarr v2 the filter of text is the first, so another filter gets bytes; it also says which of the two types the elements have
    if codec_id == "" or (is_text(dtype) and (name == "bytes" or kind == "array -> array")):
        return None
    if is_text(dtype) and name in TEXT.values() and name != TEXT[dtype]:
        return None
    if is_text(dtype):
        stored: Any = "|O"
    else:
        stored = (
            dtype
            if is_ml(dtype)
            else np.dtype(dtype).str
            if np.dtype(dtype).names is None
            else _fields(dtype)
        )
    filters = [{"id": TEXT[dtype]}] if is_text(dtype) and name not in TEXT.values() else []
    codec = {"id": codec_id, **configuration_of(name, dtype)}
    if kind != "bytes -> bytes" and codec_id is not None:
        filters = [*filters, codec]
    return {
        "zarr_format": 2,
        "shape": [8],
        "chunks": [4],
        "dtype": stored,
        "fill_value": "" if is_text(dtype) else None,
        "order": "C",
        "filters": filters or None,
        "compressor": codec if kind == "bytes -> bytes" else None,
    }


def _fields(dtype: Any) -> list[Any]:
    kind = np.dtype(dtype)
    return [
        [name, kind[name].str if kind[name].names is None else _fields(kind[name])]
        for name in kind.names or ()
    ]


def values_of(dtype: Any) -> Any:
    """Return 8 elements, of which none is the fill value, and which every codec that has the type keeps."""
    numbers = np.arange(1, 9)
    if is_text(dtype):
        texts = ["a" * n for n in numbers]
        return np.array(texts if dtype == "string" else [text.encode() for text in texts], dtype=object)
    kind = as_dtype(dtype)
    if kind.names is not None:
        return np.ones(8, kind)
    if is_ml(dtype):
        return np.ones(8, "f4").astype(kind)
    if kind.kind in "biufcmM":
        return (numbers % 2 if kind.kind == "b" else numbers).astype(kind)
    return np.array([b"ab"] * 8).astype(kind)


def stored(document: Mapping[str, Any], folder: Path) -> Path:
    """Store the metadata of an array in a new folder."""
    folder.mkdir(parents=True)
    (folder / (".zarray" if document["zarr_format"] == 2 else "zarr.json")).write_text(json.dumps(document))
    return folder


def is_native(name: str, kind: str, dtype: Any) -> bool:
    """Return True if the engine encodes chunks of this data type with this codec."""
    try:
        if is_text(dtype):
            array = text_array(document_of(name, kind, dtype, "chunks") or {})
            assert array is not None
            array.spec()
            return True
        fill = 0 if is_ml(dtype) else np.zeros((), dtype)[()]
        ChainSpec.from_json(chain_of(name, kind, dtype), shape=(4,), dtype=dtype, fill_value=fill)
    except (SpecError, UnsupportedError):  # filters refuse the byte in place of a text with either
        return False
    return True


def zarr_has(name: str, kind: str, dtype: Any, layout: str = "shards") -> bool:
    """Return True if zarr stores and reads chunks of this data type with this codec."""
    import zarr

    document = document_of(name, kind, dtype, layout)
    assert document is not None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            array = zarr.open_array(stored(document, Path(folder) / "a"), mode="r+")
            array[...] = values_of(dtype)
            array[...]
        except Exception:  # noqa: BLE001 - zarr and codecs of third parties raise any exception
            return False
    return True


def word_of(name: str, kind: str, dtypes: tuple[Any, ...]) -> str:
    """Return the word of one cell."""
    native = {is_native(name, kind, dtype) for dtype in dtypes}
    if len(native) > 1:
        raise ValueError(f"{name}: the types {dtypes} need two columns")
    if native == {True}:
        return "native"
    known = {zarr_has(name, kind, dtype) for dtype in dtypes}
    return "staged" if known == {True} else "none" if known == {False} else "some staged"


def table() -> str:
    """Return the table as Markdown."""
    cells = {
        name: [word_of(name, kind, dtypes) for dtypes in TYPES.values()] for name, kind in kinds().items()
    }
    lines = [f"| codec | {' | '.join(TYPES)} |", "|---" * (len(TYPES) + 1) + "|"]
    lines += [f"| `{name}` | {' | '.join(words)} |" for name, words in cells.items()]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the present table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
