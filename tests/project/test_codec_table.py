# test_codec_table.py - the tables of codecs in C, in Python and in the tests agree
# SPDX-License-Identifier: MIT
"""A codec that is forgotten in one of the tables fails here."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import codec_rows
import numcodecs
import numpy as np
import pytest
from golden import streams
from helpers import ZARR_IS_31
from interop import cases
from spec_json import named

from shardcodec import _native as native
from shardcodec.format import codecs as codec_module
from shardcodec.format.chain import lower
from shardcodec.format.codecs import COMPRESSORS, NUMCODECS, ROWS, parse_codecs, resolve_codecs
from shardcodec.format.spec import ChainSpec

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
EVERYWHERE = {"bytes", "transpose", "sharding_indexed"}


def names() -> set[str]:
    return {name for row in ROWS for name in row.names} - EVERYWHERE


def test_every_codec_is_compared_with_zarr() -> None:
    rows = {row.name for row in codec_rows.ROWS}
    assert rows == names(), f"tests/codec_rows.py: add or remove the rows of {sorted(rows ^ names())}"
    in_v2 = {row.name.removeprefix("numcodecs.") for row in codec_rows.ROWS if row.in_v2}
    assert in_v2 == set(NUMCODECS), f"tests/codec_rows.py: correct in_v2 of {sorted(in_v2 ^ set(NUMCODECS))}"


def test_python_and_c_have_the_same_codecs() -> None:
    lowered = set()
    for row in codec_rows.ROWS:
        for configuration in row.configurations:
            codec, serializer = named(row.name, **configuration), named("bytes", endian="little")
            kind = next(entry.codec.kind for entry in ROWS if row.name in entry.names)
            chains = {
                "array -> array": [codec, serializer],
                "array -> bytes": [codec],
                "bytes -> bytes": [serializer, codec],
            }
            parsed = parse_codecs(chains[kind], "codecs")
            resolved = resolve_codecs(parsed, (4, 6), np.dtype(row.dtypes[0]), "codecs")
            lowered |= {codec.native()[0] for codec in resolved if codec.json_name not in EVERYWHERE}
    big = named("cast_value", data_type="int16"), named("bytes", endian="big")
    lowered |= {name for name, _ in lower(ChainSpec((4, 6), "int32", 0, big))["ops"]}
    assert lowered == set(native.CODECS), (
        "only in SC_CODECS of csrc/codecs/sc_codec.h, or only in the classes of shardcodec/format as the rows of tests/codec_rows.py "
        f"use them (a codec without a row there counts as missing): {sorted(lowered ^ set(native.CODECS))}"
    )


def test_every_class_of_a_codec_can_be_imported_from_one_module() -> None:
    missing = {row.codec.__name__ for row in ROWS} - set(codec_module.__all__)
    assert not missing, f"add to __all__ of shardcodec/format/codecs.py: {sorted(missing)}"


def test_numcodecs_has_every_codec_of_v2() -> None:
    for name in NUMCODECS:
        assert name in numcodecs.registry.codec_registry


def compressors() -> set[str]:
    """Return the codecs for which step 5 of "How to add a codec" (CONTRIBUTING.md) asks for more tests."""
    rows = [row.codec for row in ROWS if row.codec.kind == "bytes -> bytes"]
    return {codec.json_name for codec in rows if codec.json_name in COMPRESSORS}


def test_every_compressor_has_the_tests_of_compressors() -> None:
    """Nothing noticed before if step 5 was left out: the new codec passed the other tests."""
    assert {"zstd", "numcodecs.lz4"} <= compressors()
    battery = [path.read_text() for path in (TESTS / "engine").glob("test_codec_*.py")]
    in_battery = "".join(text for text in battery if "codec_battery" in text)
    random = (TESTS / "shard_strategies.py").read_text()
    damaged = {row["codec"]["name"] for row in streams.load()}
    exchanged = {codec["name"] for case in cases.ALL for codec in case.codecs}
    for name in compressors():
        short = name.removeprefix("numcodecs.")
        assert f'"{name}"' in in_battery or f'"{short}"' in in_battery, f"tests/engine/test_codec_{short}.py"
        assert f'"{name}"' in random, f"tests/shard_strategies.py does not draw {name}"
        assert name in damaged, f"add {name} to tests/golden/streams.py and run it"
        # Other implementations know the registered codecs only.
        assert name.startswith("numcodecs.") or name in exchanged, (
            f"tests/interop/cases.py has no array with {name}"
        )


def test_pages_name_every_codec() -> None:
    """Step 8."""
    guarantees = (ROOT / "docs/guarantees.md").read_text().partition("\n## Native data and codecs\n")[2]
    changes = (ROOT / "CHANGELOG.md").read_text()
    for name in sorted({name.removeprefix("numcodecs.") for row in ROWS for name in row.names}):
        assert f"`{name}`" in guarantees.partition("\n## ")[0], f"docs/guarantees.md does not name {name}"
        assert re.search(rf"\b{name}\b", changes), f"CHANGELOG.md does not name {name}"


def test_page_has_the_present_table() -> None:
    """The words of what is not native are those of the newest zarr."""
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "codec_table.py"))
    page = script["PAGE"].read_text()
    assert normal(page) == normal(script["with_table"](page)), (
        "`make tables` writes the table with the newest zarr"
    )


def normal(page: str) -> str:
    return re.sub(r"some staged|staged|none", "-", page) if ZARR_IS_31 else page
