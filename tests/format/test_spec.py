# test_spec.py - specs as values: codecs, the metadata around them, grids, equality, repr
# SPDX-License-Identifier: MIT
"""Values that a spec accepts or refuses, the path in its errors, and equality of specs."""

from __future__ import annotations

import ast
import copy
import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spec_checks import AT, NAMESPACE, refused, shard
from spec_json import BIG, CRC, LITTLE, metadata, named, sharding, transpose

import shardcodec
from shardcodec import errors
from shardcodec.errors import SpecError, UnsupportedError
from shardcodec.format import checks
from shardcodec.format import codecs as codec_module
from shardcodec.format.codecs import (
    Blosc,
    Bytes,
    Crc32c,
    Gzip,
    Lz4,
    Zlib,
    Zstd,
)
from shardcodec.format.spec import ChainSpec, ShardSpec

# --- the codecs ---


@pytest.mark.parametrize(
    ("data", "codec", "written"),
    [
        (LITTLE, Bytes("little"), LITTLE),
        (BIG, Bytes("big"), BIG),
        (named("zstd"), Zstd(0, False), named("zstd", level=0, checksum=False)),
        (named("zstd", level=-5, checksum=True), Zstd(-5, True), ...),
        (named("gzip", level=9), Gzip(9), ...),
        (CRC, Crc32c(), ...),
        (named("numcodecs.zlib"), Zlib(1), named("numcodecs.zlib", level=1)),
        (named("numcodecs.zlib", level=-1), Zlib(6), named("numcodecs.zlib", level=6)),
        (named("numcodecs.lz4", acceleration=3), Lz4(3), ...),
        (named("numcodecs.zstd", level=3), Zstd(3), named("zstd", level=3, checksum=False)),
        (named("numcodecs.gzip"), Gzip(1), named("gzip", level=1)),
        (named("numcodecs.crc32c", location="end"), Crc32c(), CRC),
        (named("numcodecs.zlib", id="zlib", level=2), Zlib(2), named("numcodecs.zlib", level=2)),
        (
            named("blosc", cname="lz4hc", clevel=9, shuffle="bitshuffle", typesize=2, blocksize=64),
            Blosc("lz4hc", 9, "bitshuffle", 2, 64),
            ...,
        ),
        (
            named("numcodecs.blosc", shuffle=-1),
            Blosc("lz4", 5, "bitshuffle", 1, 0),
            named("blosc", cname="lz4", clevel=5, shuffle="bitshuffle", typesize=1, blocksize=0),
        ),
        (
            named("numcodecs.blosc", cname="zstd", shuffle=2, typesize=8),
            Blosc("zstd", 5, "bitshuffle", 8, 0),
            named("blosc", cname="zstd", clevel=5, shuffle="bitshuffle", typesize=8, blocksize=0),
        ),
    ],
    ids=str,
)
def test_codec_survives_json(data: Any, codec: Any, written: Any) -> None:
    codecs = [data] if codec.kind == "array -> bytes" else [LITTLE, data]
    spec = ChainSpec((4,), "i4", 0, codecs)
    assert spec.codecs[-1] == codec
    assert spec.to_json()[-1] == (data if written is ... else written)
    assert eval(repr(codec), vars(codec_module)) == codec


@pytest.mark.parametrize(
    ("dtype", "shuffle", "typesize"),
    [
        ("u1", "bitshuffle", 1),
        ("f8", "shuffle", 8),
        ("U100", "shuffle", 400),
        ([("a", "i4"), ("b", "i1")], "shuffle", 5),
    ],
    ids=str,
)
def test_blosc_defaults_depend_on_the_itemsize(dtype: Any, shuffle: str, typesize: int) -> None:
    """zarr does the same if the JSON has no shuffle or typesize."""
    fill = () if isinstance(dtype, list) else ""
    zero = (0, 0) if isinstance(dtype, list) else fill if dtype == "U100" else 0
    spec = ChainSpec((4,), dtype, zero, [LITTLE, named("blosc", cname="lz4", clevel=1)])
    assert spec.codecs[1] == Blosc("lz4", 1, shuffle, typesize, 0)


@pytest.mark.parametrize(
    ("data", "path", "words"),
    [
        (named("bytes", endian="middle"), "endian", "expected little or big, got 'middle'"),
        (named("bytes", endian=None), "endian", "expected a value, got null"),
        (named("bytes", endian=[]), "endian", "expected little or big, got []"),
        (named("transpose", order=[0, 0]), "order", "expected a permutation of 0 to 1, got (0, 0)"),
        (named("transpose", order=[1, 2]), "order", "expected a permutation of 0 to 1, got (1, 2)"),
        (named("transpose", order=[0, -1]), "order", "expected a permutation"),
        (named("transpose", order="C"), "order", "expected an array, got 'C'"),
        (named("transpose", order=[1.0, 0]), "order[0]", "expected an integer, got 1.0"),
        (named("transpose", order=[2, 1, 0]), "order", "expected 2 axes, as the array has, got 3"),
        (named("zstd", level=23), "level", "expected at most 22, got 23"),
        (named("zstd", level=-131073), "level", "expected at least -131072, got -131073"),
        (named("zstd", level="1"), "level", "expected an integer, got '1'"),
        (named("zstd", checksum=1), "checksum", "expected true or false, got 1"),
        (named("zstd", window=1), "window", "unknown key; expected one of level, checksum"),
        (named("gzip", level=10), "level", "expected at most 9, got 10"),
        (named("gzip", level=-1), "level", "expected at least 0, got -1"),
        (named("crc32c", endian="big"), "endian", "unknown key; expected no keys"),
        (
            named("blosc", cname="brotli"),
            "cname",
            "expected one of blosclz, lz4, lz4hc, zlib, zstd, got 'brotli'",
        ),
        (named("blosc", shuffle=1), "shuffle", "expected one of noshuffle, shuffle, bitshuffle, got 1"),
        (named("blosc", clevel=10), "clevel", "expected at most 9, got 10"),
        (named("blosc", typesize=0), "typesize", "expected at least 1, got 0"),
        (named("blosc", blocksize=-1), "blocksize", "expected at least 0, got -1"),
        (named("blosc", typesize=None), "typesize", "expected a value, got null"),
        (named("numcodecs.zlib", level=10), "level", "expected at most 9, got 10"),
        (named("numcodecs.zlib", id="gzip"), "id", "expected zlib, got 'gzip'"),
        (
            named("numcodecs.lz4", acceleration=2**31),
            "acceleration",
            "expected at most 2147483647, got 2147483648",
        ),
        (named("numcodecs.blosc", shuffle=3), "shuffle", "expected at most 2, got 3"),
        (named("numcodecs.crc32c", location="middle"), "location", "expected start or end, got 'middle'"),
    ],
    ids=str,
)
def test_wrong_codec_is_refused(data: Any, path: str, words: str) -> None:
    first = data["name"] in ("bytes", "transpose")
    codecs = [data, *([LITTLE] if data["name"] == "transpose" else [])] if first else [LITTLE, data]
    refused(metadata(*codecs), f"codecs[{0 if first else 1}].configuration.{path}", words)
    inside = metadata(sharding(codecs=codecs))
    refused(inside, f"{AT}.codecs[{0 if first else 1}].configuration.{path}", words)


@pytest.mark.parametrize(
    ("data", "place", "codec"),
    [
        (named("numcodecs.bz2", level=1), "", "numcodecs.bz2"),
        (named("numcodecs.lzma"), "", "numcodecs.lzma"),
        ("vlen-utf8", "", "vlen-utf8"),
        (named("x" * 1000), "", "x" * 1000),
        (named("blosc", cname="snappy"), ".configuration.cname", "blosc"),
        (named("numcodecs.blosc", cname="snappy"), ".configuration.cname", "blosc"),
        (
            named("numcodecs.jenkins_lookup3", initval=1),
            ".configuration.initval",
            "numcodecs.jenkins_lookup3",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_unsupported_codec_is_named(data: Any, place: str, codec: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        ChainSpec.from_metadata(metadata(sharding(codecs=[LITTLE, data])))
    assert caught.value.codec == codec
    assert caught.value.path == f"{AT}.codecs[1]{place}"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("dtype", ["int16", "float64", "complex64", "U2", "M8[s]"])
def test_elements_of_several_bytes_need_a_byte_order(dtype: str) -> None:
    with pytest.raises(SpecError) as caught:
        ChainSpec((4,), dtype, "" if dtype == "U2" else 0, ["bytes"])
    assert caught.value.path == "codecs[0].configuration.endian"


def test_structs_without_a_byte_order_are_little_endian() -> None:
    """zarr up to 3.1 dropped the byte order when it wrote structs."""
    assert ChainSpec((4,), [("a", "i4")], (0,), ["bytes"]).codecs == (Bytes("little"),)
    assert ChainSpec((4,), [("a", "i1")], (0,), ["bytes"]).codecs == (Bytes(),)


@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "S4", "V4"])
def test_byte_order_of_single_bytes_is_dropped(dtype: str) -> None:
    fill = bytes(4) if dtype[0] in "SV" else 0
    assert ChainSpec((4,), dtype, fill, [BIG]) == ChainSpec((4,), dtype, fill, [LITTLE])
    assert ChainSpec((4,), dtype, fill, [BIG]).to_json() == [{"name": "bytes"}]


# --- the metadata around the codecs ---


@pytest.mark.parametrize(
    "key", ["zarr_format", "node_type", "shape", "data_type", "chunk_grid", "fill_value", "codecs"]
)
def test_missing_metadata_is_refused(key: str) -> None:
    refused(metadata(**{key: ...}), key, "missing")


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"zarr_format": 4}, "zarr_format", "expected 3, got 4"),
        ({"zarr_format": 3.0}, "zarr_format", "expected 3, got 3.0"),
        ({"dimension_names": ["a", 5]}, "dimension_names[1]", "expected a string or null, got 5"),
        ({"dimension_names": ["a"]}, "dimension_names", "expected 2 names"),
        ({"dimension_names": "ab"}, "dimension_names", "expected an array"),
        ({"node_type": "group"}, "node_type", "expected 'array', got 'group'"),
        ({"shape": [10, -1]}, "shape[1]", "expected at least 0, got -1"),
        ({"shape": [10]}, "chunk_grid.configuration.chunk_shape", "expected 1 axes, as the array has, got 2"),
        ({"fill_value": None}, "fill_value", "expected an integer, got None"),
        ({"fill_value": 2**31}, "fill_value", "expected at most 2147483647, got 2147483648"),
        ({"data_type": "complex64", "fill_value": [0, "x"]}, "fill_value[1]", "got 'x'"),
        ({"data_type": named("raw_bytes")}, "data_type.configuration.length_bytes", "missing"),
        ({"chunk_grid": "regular"}, "chunk_grid.configuration.chunk_shape", "missing"),
        (
            {"chunk_grid": named("regular", chunk_shape=[4, 0])},
            "chunk_grid.configuration.chunk_shape[1]",
            "expected at least 1, got 0",
        ),
        (
            {"chunk_grid": named("regular", chunk_shape=[4, 6], x=1)},
            "chunk_grid.configuration.x",
            "unknown key",
        ),
    ],
    ids=str,
)
def test_wrong_metadata_is_refused(changes: dict[str, Any], path: str, words: str) -> None:
    refused(metadata(**changes), path, words)


def test_unknown_metadata_is_ignored_only_if_it_need_not_be_understood() -> None:
    data = metadata(
        extra={"must_understand": False, "name": "x"}, dimension_names=["a", None], storage_transformers=[]
    )
    assert ShardSpec.from_metadata(data) == ShardSpec.from_metadata(metadata())
    refused(metadata(extra={"must_understand": True}), "extra", "unknown key")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"storage_transformers": [{"name": "x"}]}, "storage_transformers"),
        ({"chunk_grid": named("irregular")}, "chunk_grid"),
        ({"data_type": "string", "fill_value": ""}, "data_type"),
    ],
    ids=str,
)
def test_unsupported_metadata_is_named(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        ChainSpec.from_metadata(metadata(**changes))
    assert caught.value.path == path
    assert path in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "zarr", 3])
def test_metadata_must_be_an_object(data: Any) -> None:
    with pytest.raises(SpecError, match="expected an object"):
        ChainSpec.from_metadata(data)


def test_array_without_shards_is_a_chain() -> None:
    spec = ChainSpec.from_metadata(metadata(transpose(1, 0), BIG, named("zstd", level=3), CRC))
    assert (spec.shape, spec.stored_shape, spec.nbytes) == ((4, 6), (6, 4), 96)
    assert (spec.sharding, spec.inner, spec.serializer) == (None, None, Bytes("big"))
    assert spec.bytes_codecs == (Zstd(3), Crc32c())
    with pytest.raises(SpecError, match="codecs: expected a sharding_indexed codec") as caught:
        ShardSpec.from_metadata(metadata(BIG))
    assert caught.value.path == "codecs"


def test_deep_nesting_is_refused() -> None:
    codecs: Any = [LITTLE]
    for _ in range(5000):
        codecs = [sharding(chunk_shape=[4, 6], codecs=codecs)]
    with pytest.raises(SpecError, match="nested too deeply"):
        ChainSpec.from_metadata(metadata(*codecs))
    data_type: Any = "int8"
    for _ in range(5000):
        data_type = named("struct", fields=[{"name": "a", "data_type": data_type}])
    with pytest.raises(SpecError, match="nested too deeply"):
        ChainSpec.from_metadata(metadata(data_type=data_type))


# --- rectilinear grids ---


def rectilinear(*chunk_shapes: Any, kind: Any = "inline") -> dict[str, Any]:
    return named("rectilinear", kind=kind, chunk_shapes=list(chunk_shapes))


def test_pr1_rectilinear_grid_is_read() -> None:
    grid = rectilinear([4, 2, [6, 2]], 6)
    spec = ShardSpec.from_metadata(metadata(chunk_grid=grid, shape=[15, 20]))
    assert spec.shard_shape == (4, 6)
    other = ShardSpec.from_metadata(metadata(chunk_grid=grid, shape=[15, 20]), shard_shape=(6, 6))
    assert other == spec.with_shard_shape((6, 6))
    assert (other.grid_shape, other.chunk_shape) == ((3, 2), (2, 3))
    assert spec.with_shard_shape((6, 6)).with_shard_shape((4, 6)) == spec
    for shape in (6, None, "66"):
        with pytest.raises(SpecError, match="shard_shape: expected an array, got"):
            spec.with_shard_shape(shape)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=r"^shape: expected an array, got"):
            spec.chain.with_shape(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grid", "path", "words"),
    [
        (rectilinear([4], 6, kind="external"), "kind", "expected inline, got 'external'"),
        (named("rectilinear", chunk_shapes=[4, 6]), "kind", "missing"),
        (rectilinear(4), "chunk_shapes", "expected 2 axes, as the array has, got 1"),
        (rectilinear([], 6), "chunk_shapes[0]", "expected at least one chunk size"),
        (rectilinear(0, 6), "chunk_shapes[0]", "expected at least 1, got 0"),
        (rectilinear([12, 0], 6), "chunk_shapes[0][1]", "expected at least 1, got 0"),
        (rectilinear([[4, 0]], 6), "chunk_shapes[0][0][1]", "expected at least 1, got 0"),
        (rectilinear([[4, 3, 1]], 6), "chunk_shapes[0][0]", "expected a size and a count"),
        (
            rectilinear([4, 4], 6),
            "chunk_shapes[0]",
            "expected chunk sizes with a sum of at least 10, the size of the axis, got 8",
        ),
        (rectilinear("46", 6), "chunk_shapes[0]", "expected an array"),
        (rectilinear([4.0, 8], 6), "chunk_shapes[0][0]", "expected an array, got 4.0"),
        (rectilinear([True, 12], 6), "chunk_shapes[0][0]", "expected an integer, got True"),
    ],
    ids=str,
)
def test_pr1_wrong_grids_are_refused(grid: Any, path: str, words: str) -> None:
    refused(metadata(chunk_grid=grid), f"chunk_grid.configuration.{path}", words)


def test_pr2_inner_chunks_must_divide_every_edge() -> None:
    data = metadata(chunk_grid=rectilinear([4, [3, 2]], 6))
    refused(data, f"{AT}.chunk_shape[0]", "inner chunk size 2 does not divide shard size 3 on axis 0")
    turned = metadata(transpose(1, 0), sharding(chunk_shape=[3, 2]), chunk_grid=rectilinear([4, [3, 2]], 6))
    refused(turned, "codecs[1].configuration.chunk_shape[1]", "does not divide shard size 3 on axis 1")


def test_pr2_runs_are_not_expanded() -> None:
    data = metadata(chunk_grid=rectilinear([[4, 10**18]], 6))
    assert ShardSpec.from_metadata(data).shard_shape == (4, 6)


# --- specs as values ---


EQUAL = [
    (shard(), shard()),
    (shard(fill_value=1), shard(fill_value=1.0)),
    (shard(dtype=">i4"), shard(dtype="<i4")),
    (shard(dtype="f4", fill_value=float("nan")), shard(dtype="f4", fill_value="0x7fc00000")),
    (shard(codecs=["bytes"], dtype="u1"), shard(codecs=[BIG], dtype="u1")),
]
DIFFERENT = [
    shard(),
    shard((8, 6)),
    shard(chunk_shape=[1, 3]),
    shard(dtype="uint32"),
    shard(fill_value=1),
    shard(codecs=[BIG]),
    shard(codecs=[LITTLE, CRC]),
    shard(index_codecs=[LITTLE]),
    shard(index_location="start"),
    shard(dtype="f4", fill_value=0.0),
    shard(dtype="f4", fill_value=-0.0),
    shard(dtype="f4", fill_value="NaN"),
    shard(dtype="f4", fill_value="0x7fc00001"),
    dataclasses.replace(shard(), after=["crc32c"]),
    dataclasses.replace(shard(chunk_shape=[2, 2]), before=[transpose(1, 0)]),
]


@pytest.mark.parametrize(("one", "two"), EQUAL, ids=str)
def test_equal_specs_have_equal_hashes(one: ShardSpec, two: ShardSpec) -> None:
    assert one == two
    assert hash(one) == hash(two)
    assert one.chain == two.chain


def test_different_specs_are_not_equal() -> None:
    assert len(set(DIFFERENT)) == len(DIFFERENT)
    for i, one in enumerate(DIFFERENT):
        assert [one == two for two in DIFFERENT] == [i == j for j in range(len(DIFFERENT))]


@pytest.mark.parametrize("spec", DIFFERENT, ids=str)
def test_spec_survives_pickle_copy_and_repr(spec: ShardSpec) -> None:
    assert spec.inner and spec.chain  # cached properties must not matter
    for twin in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), dataclasses.replace(spec)):
        assert twin == spec
        assert twin.fill == spec.fill
    assert eval(repr(spec), NAMESPACE) == spec
    assert eval(repr(spec.chain), NAMESPACE) == spec.chain


def test_repr_is_readable() -> None:
    assert repr(shard(dtype="f4", fill_value="NaN")) == (
        "ShardSpec(shard_shape=(4, 6), chunk_shape=(2, 3), dtype='float32', fill_value='NaN', "
        "codecs=(Bytes(endian='little'),), index_codecs=(Bytes(endian='little'), Crc32c()), index_location='end')"
    )
    assert repr(ChainSpec((2,), "M8[ns]", 5, [LITTLE, CRC])) == (
        "ChainSpec(shape=(2,), dtype='datetime64[ns]', fill_value=5, codecs=(Bytes(endian='little'), Crc32c()))"
    )


def test_spec_is_made_from_python_values() -> None:
    spec = ShardSpec([4, 6], np.array([2, 3]), np.int32, np.int64(7), [Bytes("big"), "crc32c", CRC])
    assert spec.shard_shape == (4, 6)
    assert all(type(n) is int for n in spec.shard_shape + spec.chunk_shape)
    assert spec.fill_value == np.int32(7)
    assert type(spec.fill_value) is np.int32
    assert spec.index_codecs == (Bytes("little"), Crc32c())
    assert spec.inner.fixed_nbytes == 2 * 3 * 4 + 8
    assert spec.chain.fixed_nbytes is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.index_location = "start"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (((4, 0), (2, 3), "i4", 0), "shard_shape[1]"),
        (((4, 6), (2, 4), "i4", 0), "chunk_shape[1]"),
        (((4, 6), (2, 3), "i4", None), "fill_value"),
        (((4, 6), (2, 3), "S0", b""), "dtype"),
        (((4, 6), (2, 3), "i4", 0, ["bytes"]), "codecs[0].configuration.endian"),
        (((4, 6), (2, 3), "i4", 0, [LITTLE], ["bytes"]), "index_codecs[0].configuration.endian"),
        (((4, 6), (2, 3), "i4", 0, [LITTLE], [LITTLE], "middle"), "index_location"),
    ],
    ids=str,
)
def test_wrong_python_values_are_refused(arguments: tuple[Any, ...], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        ShardSpec(*arguments)
    assert caught.value.path == path


def test_codecs_in_the_wrong_place_are_refused() -> None:
    with pytest.raises(SpecError, match="transpose takes an array"):
        ShardSpec((4, 6), (2, 3), "u1", 0, ["bytes"], after=[transpose(1, 0)])
    with pytest.raises(SpecError, match="crc32c takes bytes"):
        ShardSpec((4, 6), (2, 3), "u1", 0, ["bytes"], before=["crc32c"])
    with pytest.raises(SpecError, match="second array -> bytes codec"):
        ShardSpec((4, 6), (2, 3), "u1", 0, ["bytes"], before=["bytes"])


@pytest.mark.parametrize(
    ("codecs", "checksum"),
    [
        ([LITTLE], False),
        ([LITTLE, CRC], True),
        ([LITTLE, named("zstd", level=1)], False),
        ([LITTLE, named("zstd", checksum=True)], True),
    ],
    ids=str,
)
def test_has_checksum_depends_on_the_codecs(codecs: Any, checksum: bool) -> None:
    assert shard(codecs=codecs).inner.has_checksum is checksum


def test_to_metadata_checks_the_rank() -> None:
    with pytest.raises(SpecError, match="expected 2 axes, as the chunks have, got 1"):
        shard().to_metadata((4,))
    written = shard().to_metadata((4, 6), attributes={"a": 1}, dimension_names=["x", None])
    assert (written["attributes"], written["dimension_names"]) == ({"a": 1}, ["x", None])


def test_specs_import_only_numpy() -> None:
    """A spec can be made without zarr installed; `ml_dtypes` is imported for its own data types alone."""
    imported = set()
    for path in [*Path(checks.__file__).parent.glob("*.py"), Path(errors.__file__)]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
    assert imported - set(sys.stdlib_module_names) <= {"numpy", "ml_dtypes"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("zstdd", "; is 'zstd' meant?"),
        ("numcodecs.shufle", "; is 'numcodecs.shuffle' meant?"),
        ("numcodecs.lzma", ""),  # another codec, and not lz4
        ("z" * 10**6, ""),
    ],
)
def test_misspelt_codec_is_named_with_the_one_that_may_be_meant(name: str, meant: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        shardcodec.ShardSpec((4,), (2,), "uint8", 0, [LITTLE, name])
    text = f"codecs[1]: shardcodec does not implement codec {checks.show(name)}{meant}"
    assert str(caught.value) == text
