# test_packbits.py - the codec "packbits" of zarr-extensions, exchanged with zarrs
# SPDX-License-Identifier: MIT
"""zarrs has this codec and zarr does not, but zarrs' pipeline needs zarr's metadata: a class that only has the name stands in for it.

Known defects of zarrs 0.2.3 are left out: it extends the sign of a wide integer only to the end of a byte, stores no number of padding bits
for elements of which all bits are stored, and forgets `first_bit` when it reads a part of a chunk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from spec_json import Json, named, typed_metadata, zstd
from zarr.abc.codec import ArrayBytesCodec

import shardcodec

pytest.importorskip("zarrs", reason="zarrs is not installed")
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

SHAPE, SHARD, CHUNK = (13, 20), (8, 12), (4, 6)
CASES: list[tuple[str, Json]] = [
    *(("bool", {"padding_encoding": padding}) for padding in ("none", "first_byte", "last_byte")),
    *(("uint8", {"first_bit": first, "last_bit": last}) for first, last in ((0, 0), (0, 6), (2, 4), (7, 7))),
    *(("uint16", {"last_bit": last, "padding_encoding": "first_byte"}) for last in (0, 8, 11, 14)),
    ("int16", {"first_bit": 3, "last_bit": 12}),
    ("int8", {"first_bit": 1, "last_bit": 5}),
    ("uint32", {"first_bit": 5, "last_bit": 30, "padding_encoding": "last_byte"}),
    ("uint64", {"first_bit": 1}),
    ("int64", {}),
    ("float16", {"first_bit": 3}),
    ("float32", {"first_bit": 13}),
    ("float64", {"first_bit": 29, "padding_encoding": "last_byte"}),
    ("complex64", {"first_bit": 16}),
]


@dataclass(frozen=True)
class Named(ArrayBytesCodec):
    """The codec for zarr's metadata; it cannot run."""

    configuration: Any = None
    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Any) -> Named:
        return cls(data.get("configuration"))

    def to_dict(self) -> Any:
        return named("packbits", **(self.configuration or {}))

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: Any) -> int:
        return input_byte_length

    async def _decode_single(self, *_: Any) -> Any:
        raise NotImplementedError

    async def _encode_single(self, *_: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def zarrs_pipeline() -> Iterator[None]:
    from zarr import registry

    registry.register_codec("packbits", Named)
    try:
        with zarr.config.set(
            {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
        ):
            yield
    finally:
        # versions differ in the name of this table
        tables = [table for name, table in vars(registry).items() if name.endswith("codec_registries")]
        del tables[0]["packbits"]


def stored(folder: Path, dtype: str, configuration: Json, sharded: bool) -> Path:
    codecs: list[Any] = [named("packbits", **configuration), *([zstd()] if sharded else [])]
    document = typed_metadata(dtype, codecs, SHAPE, CHUNK, SHARD if sharded else None)
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps(document))
    return folder


def values_of(dtype: str, configuration: Json) -> np.ndarray[Any, Any]:
    """Return elements that the codec keeps."""
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return rng.integers(0, 2, SHAPE).astype(dtype)
    real = np.dtype(dtype) if dtype != "complex64" else np.dtype("f4")
    n_bits = 8 * real.itemsize
    first, last = configuration.get("first_bit", 0), configuration.get("last_bit", n_bits - 1)
    raw = rng.integers(0, 1 << n_bits, (*SHAPE[:1], SHAPE[1] * (2 if dtype == "complex64" else 1)), "u8")
    raw &= np.uint64((1 << last + 1) - (1 << first))
    if real.kind == "i" and last < n_bits - 1:
        raw &= np.uint64((1 << last) - 1)  # positive
    return raw.astype(f"u{real.itemsize}").view(dtype)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("dtype", "configuration"), CASES, ids=str)
@pytest.mark.usefixtures("zarrs_pipeline")
def test_zarrs_and_shardcodec_read_each_other(
    tmp_path: Path, dtype: str, configuration: Json, sharded: bool
) -> None:
    values = values_of(dtype, configuration)
    theirs = zarr.open_array(stored(tmp_path / "a", dtype, configuration, sharded), mode="r+")
    assert type(theirs.async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline"
    ours = shardcodec.open_array(stored(tmp_path / "b", dtype, configuration, sharded), mode="r+")
    for array in theirs, ours:
        array[...] = values
        array[3:9, 5:17] = values[4:10, 2:14]
    expected = values.copy()
    expected[3:9, 5:17] = values[4:10, 2:14]
    for place in "a", "b":
        assert shardcodec.open_array(tmp_path / place)[...].tobytes() == expected.tobytes()
        whole = np.s_[:8, :12] if sharded else np.s_[:12, :18]  # of whole chunks
        box = whole if "first_bit" in configuration else np.s_[:, :]
        assert (
            np.ascontiguousarray(zarr.open_array(tmp_path / place)[box]).tobytes() == expected[box].tobytes()
        )
        part = np.ascontiguousarray(shardcodec.open_array(tmp_path / place)[2:11, 3:15])
        assert part.tobytes() == np.ascontiguousarray(expected[2:11, 3:15]).tobytes()
    if not sharded:
        keys = sorted(
            path.relative_to(tmp_path / "a") for path in (tmp_path / "a/c").rglob("*") if path.is_file()
        )
        assert keys
        for key in keys:
            assert (tmp_path / "a" / key).read_bytes() == (tmp_path / "b" / key).read_bytes()


def test_zarr_says_that_it_does_not_have_the_codec(tmp_path: Path) -> None:
    place = stored(tmp_path / "a", "uint8", {}, False)
    with pytest.raises(Exception, match="packbits"):
        zarr.open_array(place)
    shardcodec.open_array(place, mode="r+")[...] = 1
    assert (shardcodec.open_array(place)[...] == 1).all()
