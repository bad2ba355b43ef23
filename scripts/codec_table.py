# codec_table.py - write the table of data types and codecs in docs/compatibility.md
# SPDX-License-Identifier: MIT
"""Ask the engine, for each codec and data type, whether it has native code; run this file after a change of a codec.

`tests/project/test_codec_table.py` compares the page with `table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardcodec import UnsupportedError
from shardcodec.format.codecs import ROWS
from shardcodec.format.spec import ChainSpec

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
BEGIN, END = "<!-- codecs: scripts/codec_table.py -->\n", "<!-- end of codecs -->\n"

# A heading, and data types of which the table shows one word if they all have the same.
TYPES: dict[str, tuple[Any, ...]] = {
    "bool": ("bool",),
    "integers": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "float16": ("float16",),
    "float32, float64": ("float32", "float64"),
    "complex": ("complex64", "complex128"),
    "times": ("datetime64[s]", "timedelta64[ns]"),
    "bytes and text of a fixed length": ("S5", "U5", "V5"),
    "structs": ([("a", "int16"), ("b", "float64")],),
    "strings and bytes of any length": ("string", "variable_length_bytes"),
}

# Codecs that zarr has and the engine does not; it says so itself.
OTHERS = (
    *("numcodecs.bz2", "numcodecs.lzma", "numcodecs.jenkins_lookup3", "numcodecs.pcodec", "numcodecs.zfpy"),
    *("scale_offset", "cast_value", "vlen-utf8", "vlen-bytes"),
)


def configuration_of(name: str, dtype: Any) -> dict[str, Any]:
    """Return a usual configuration; a codec that needs one has a line here."""
    text = np.dtype(dtype).str
    configurations: Mapping[str, dict[str, Any]] = {
        "numcodecs.delta": {"dtype": text},
        "numcodecs.fixedscaleoffset": {"offset": 0, "scale": 0.5, "dtype": text, "astype": "<i2"},
        "numcodecs.bitround": {"keepbits": 6},
        "numcodecs.quantize": {"digits": 1, "dtype": text},
        "numcodecs.astype": {"encode_dtype": "<i4", "decode_dtype": text},
        "transpose": {"order": [0]},
        "sharding_indexed": {"chunk_shape": [2], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                             "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
    }  # fmt: skip
    return configurations.get(name, {})


def is_native(name: str, kind: str, dtype: Any) -> bool:
    """Return True if the engine encodes chunks of this data type with this codec."""
    any_length = (
        dtype in TYPES["strings and bytes of any length"]
    )  # the engine does not have them with any codec
    fill = "" if any_length else np.zeros((), dtype)[()]
    codec = {"name": name, "configuration": configuration_of(name, "uint8" if any_length else dtype)}
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = {
        "array -> array": [codec, little],
        "array -> bytes": [codec],
        "bytes -> bytes": [little, codec],
    }[kind]
    if name == "bytes":
        codecs = [little]
    try:
        ChainSpec.from_json(codecs, shape=(4,), dtype=dtype, fill_value=fill)
    except UnsupportedError:
        return False
    return True


def word_of(name: str, kind: str, dtypes: tuple[Any, ...]) -> str:
    """Return the word of one cell."""
    native = {is_native(name, kind, dtype) for dtype in dtypes}
    if len(native) > 1:
        raise ValueError(f"{name}: the types {dtypes} need two columns")
    return "native" if native == {True} else "staged"


def table() -> str:
    """Return the table as Markdown."""
    kinds = {name: row.codec.kind for row in ROWS for name in row.names} | dict.fromkeys(
        OTHERS, "bytes -> bytes"
    )
    cells = {name: [word_of(name, kind, dtypes) for dtypes in TYPES.values()] for name, kind in kinds.items()}
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
