"""The reference implementation is compared with zarr's own pipeline and TensorStore, so that the engine can be
compared with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from packaging.version import Version
from reference import MalformedShard, ShardMeta, decode_shard, encode_shard, read_index, update_shard
from spec_json import BIG, CRC, GZIP, LITTLE, blosc, config, metadata, named, sharding, transpose, zstd

zarr = pytest.importorskip("zarr", minversion="3.1")

ZSTD = zstd(checksum=True)
LZ4 = named("numcodecs.lz4", acceleration=1)
ZLIB = named("numcodecs.zlib", level=1)
NESTED = sharding([2, 1], [BIG, CRC])
NESTED_START = sharding([1, 2], [LITTLE], [BIG], "start")

CASES: dict[str, tuple[Any, tuple[int, ...], str, Any]] = {
    "plain": (config([2, 2], [LITTLE]), (4, 6), "int16", 7),
    "start": (config([2, 2], [LITTLE], index_location="start"), (4, 6), "int16", 7),
    "big": (config([2, 3], [BIG]), (4, 6), "float64", np.nan),
    "no-index-crc": (config([2, 3], [LITTLE], [LITTLE]), (4, 6), "uint32", 1),
    "two-index-crcs": (config([2, 3], [LITTLE, CRC], [BIG, CRC, CRC]), (4, 6), "uint32", 1),
    "index-order-f": (config([2, 3], [LITTLE], [transpose(2, 1, 0), LITTLE, CRC]), (4, 6), "uint8", 1),
    "index-order-201": (config([1, 2], [LITTLE], [transpose(2, 0, 1), BIG], "start"), (4, 6), "uint8", 1),
    "index-order-120": (config([1, 2], [LITTLE], [transpose(1, 2, 0), LITTLE, CRC]), (4, 6), "uint8", 1),
    "transposed": (config([2, 3], [transpose(1, 0), LITTLE]), (4, 6), "complex64", 1 + 2j),
    "transposed-3d": (config([1, 2, 3], [transpose(2, 0, 1), BIG, CRC]), (2, 4, 3), "int64", -1),
    "transposed-twice": (
        config([1, 2, 3], [transpose(2, 0, 1), transpose(0, 2, 1), LITTLE]), (2, 4, 3), "int8", -1
    ),
    "zstd": (config([2, 3], [LITTLE, ZSTD]), (4, 6), "float32", -0.0),
    "gzip": (config([2, 3], [LITTLE, GZIP, CRC]), (4, 6), "bool", True),
    "blosc-lz4": (config([2, 3], [LITTLE, blosc("lz4", "shuffle", 4)]), (4, 6), "int32", 0),
    "blosc-zstd": (config([2, 3], [LITTLE, blosc("zstd", "bitshuffle", 2)]), (4, 6), "uint16", 0),
    "lz4": (config([2, 3], [LITTLE, LZ4]), (4, 6), "int32", 0),
    "zlib": (config([2, 3], [LITTLE, ZLIB]), (4, 6), "int32", 0),
    "nested": (config([4, 2], [NESTED]), (8, 6), "int16", 3),
    "nested-start": (config([2, 4], [transpose(1, 0), NESTED_START, ZSTD], index_location="start"), (4, 8), "int16", 3),
    "rank-0": (config([], [LITTLE, CRC]), (), "int32", 5),
    "rank-1": (config([1], [LITTLE]), (7,), "uint64", 5),
    "rank-4": (config([1, 2, 1, 3], [LITTLE, ZSTD]), (2, 2, 3, 3), "uint8", 0),
    "datetime": (config([2], [BIG]), (6,), "datetime64[s]", np.datetime64("NaT", "s")),
}  # fmt: skip

SECONDS = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
DATA_TYPES = {"datetime64[s]": SECONDS}


def meta(name: str) -> ShardMeta:
    configuration, shape, dtype, fill = CASES[name]
    return ShardMeta(configuration, shape, np.dtype(dtype), np.array(fill, dtype=dtype)[()])


def fill_json(spec: ShardMeta) -> Any:
    kind, fill = spec.dtype.kind, spec.fill_value
    if kind == "c":
        return [float(fill.real), float(fill.imag)]
    if kind == "f":
        return "NaN" if np.isnan(fill) else float(fill)
    return "NaT" if kind == "M" else fill.item()


def array_metadata(spec: ShardMeta, data_type: Any) -> bytes:
    """Return the zarr.json of an array of one shard."""
    document = metadata(
        named("sharding_indexed", **spec.configuration),
        shape=list(spec.shape),
        data_type=data_type,
        chunk_grid=named("regular", chunk_shape=list(spec.shape)),
        fill_value=fill_json(spec),
    )
    return json.dumps(document).encode()


def sample(spec: ShardMeta, seed: int = 1) -> np.ndarray[Any, Any]:
    """Return random values in some inner chunks and fill values in the others, so that every case has absent chunks."""
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 2 if spec.dtype.kind == "b" else 100, spec.shape).astype(spec.dtype)
    keep = np.array(rng.integers(0, 2, spec.grid))
    keep.flat[0] = 1
    for axis, extent in enumerate(spec.chunk_shape):
        keep = keep.repeat(extent, axis)
    return np.where(keep, array, spec.fill_value).astype(spec.dtype)


class OneShard:
    """A folder with an array of exactly one shard."""

    def __init__(self, path: Path, spec: ShardMeta, data_type: Any) -> None:
        self.path = path
        self.object = path.joinpath("c", *["0"] * len(spec.shape))
        self.object.parent.mkdir(parents=True, exist_ok=True)
        (path / "zarr.json").write_bytes(array_metadata(spec, data_type))

    def put(self, blob: bytes | None) -> None:
        if blob is not None:
            self.object.write_bytes(blob)

    def get(self) -> bytes | None:
        return self.object.read_bytes() if self.object.exists() else None


@pytest.fixture(params=CASES)
def spec(request: pytest.FixtureRequest) -> ShardMeta:
    return meta(request.param)


@pytest.fixture
def shard(tmp_path: Path, spec: ShardMeta) -> OneShard:
    return OneShard(tmp_path, spec, DATA_TYPES.get(str(spec.dtype), str(spec.dtype)))


@pytest.fixture(autouse=True)
def zarrs_pipeline() -> Iterator[None]:
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        yield


def is_sharded_in(codecs: Any) -> bool:
    return any(codec["name"] == "sharding_indexed" for codec in codecs)


def skip_if_unsupported_by_zarr(spec: ShardMeta) -> None:
    if spec.shape == () and Version(zarr.__version__) < Version("3.4"):
        pytest.skip("this zarr cannot write a sharded array of rank 0 (SC-39)")


def skip_if_unsupported_by_tensorstore(spec: ShardMeta) -> Any:
    tensorstore = pytest.importorskip("tensorstore")
    text = json.dumps(spec.configuration)
    if "numcodecs." in text or spec.dtype.kind == "M":
        pytest.skip("TensorStore does not have this codec or data type")
    if is_sharded_in(spec.configuration["codecs"][:-1]):
        pytest.skip("TensorStore accepts no bytes -> bytes codec after sharding (SC-14)")
    return tensorstore


def open_tensorstore(tensorstore: Any, path: Path) -> Any:
    kvstore = {"driver": "file", "path": str(path)}
    return tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True).result()


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestZarr:
    def test_zarr_reads_shards_of_the_reference(self, spec: ShardMeta, shard: OneShard) -> None:
        array = sample(spec)
        shard.put(encode_shard(array, spec))
        assert same(np.asarray(zarr.open_array(shard.path, mode="r")[...]), array)

    def test_reference_reads_shards_of_zarr(self, spec: ShardMeta, shard: OneShard) -> None:
        skip_if_unsupported_by_zarr(spec)
        array = sample(spec)
        zarr.open_array(shard.path, mode="r+")[...] = array
        assert same(decode_shard(shard.get(), spec), array)

    def test_bytes_equal_zarrs_in_morton_order(self, spec: ShardMeta, shard: OneShard) -> None:
        skip_if_unsupported_by_zarr(spec)
        if "gzip" in json.dumps(spec.configuration):
            pytest.skip("the gzip header depends on the writer")
        array = sample(spec)
        zarr.open_array(shard.path, mode="r+")[...] = array
        assert encode_shard(array, spec, "morton") == shard.get()

    def test_zarr_and_reference_read_each_others_updates(self, spec: ShardMeta, shard: OneShard) -> None:
        skip_if_unsupported_by_zarr(spec)
        before, after = sample(spec, 1), sample(spec, 2)
        selection = tuple(slice(n // 3, None, 2) for n in spec.shape)
        expected = before.copy()
        expected[selection] = after[selection]
        blob = encode_shard(before, spec)
        shard.put(update_shard(blob, spec, selection, after[selection]))
        array = zarr.open_array(shard.path, mode="r+")
        assert same(np.asarray(array[...]), expected)
        shard.put(blob)
        corner = tuple(slice(n // 3, None) for n in spec.shape)
        array[corner] = expected[corner]
        assert same(decode_shard(shard.get(), spec), expected)

    def test_array_of_fill_value_is_not_stored(self, spec: ShardMeta, shard: OneShard) -> None:
        skip_if_unsupported_by_zarr(spec)
        array = np.full(spec.shape, spec.fill_value, dtype=spec.dtype)
        zarr.open_array(shard.path, mode="r+")[...] = array
        assert encode_shard(array, spec) is None
        assert shard.get() is None
        assert same(decode_shard(None, spec), array)

    def test_empty_chunks_are_stored_on_request(self, spec: ShardMeta, shard: OneShard) -> None:
        array = np.full(spec.shape, spec.fill_value, dtype=spec.dtype)
        blob = encode_shard(array, spec, write_empty=True)
        assert blob is not None
        assert (read_index(blob, spec) != reference.ABSENT).all()
        shard.put(blob)
        assert same(np.asarray(zarr.open_array(shard.path, mode="r")[...]), array)

    def test_shard_of_an_index_alone_reads_as_fill_value(self, spec: ShardMeta, shard: OneShard) -> None:
        blob = reference.empty_shard(spec)
        shard.put(blob)
        expected = np.full(spec.shape, spec.fill_value, dtype=spec.dtype)
        assert same(np.asarray(zarr.open_array(shard.path, mode="r")[...]), expected)
        assert same(decode_shard(blob, spec), expected)


class TestTensorStore:
    def test_tensorstore_reads_shards_of_the_reference(self, spec: ShardMeta, shard: OneShard) -> None:
        tensorstore = skip_if_unsupported_by_tensorstore(spec)
        array = sample(spec)
        shard.put(encode_shard(array, spec))
        assert same(open_tensorstore(tensorstore, shard.path).read().result(), array)

    def test_reference_reads_shards_of_tensorstore(self, spec: ShardMeta, shard: OneShard) -> None:
        tensorstore = skip_if_unsupported_by_tensorstore(spec)
        array = sample(spec)
        open_tensorstore(tensorstore, shard.path).write(array).result()
        assert same(decode_shard(shard.get(), spec), array)

    def test_bytes_equal_tensorstores_in_c_order(self, spec: ShardMeta, shard: OneShard) -> None:
        tensorstore = skip_if_unsupported_by_tensorstore(spec)
        text = json.dumps(spec.configuration)
        if any(name in text for name in ("gzip", "blosc", "zstd")):
            pytest.skip("TensorStore has another build of the compressor")
        array = sample(spec)
        open_tensorstore(tensorstore, shard.path).write(array).result()
        assert encode_shard(array, spec, "lexicographic") == shard.get()

    def test_tensorstore_reads_an_update(self, spec: ShardMeta, shard: OneShard) -> None:
        tensorstore = skip_if_unsupported_by_tensorstore(spec)
        before, after = sample(spec, 1), sample(spec, 2)
        selection = tuple(slice(n // 2, None) for n in spec.shape)
        expected = before.copy()
        expected[selection] = after[selection]
        shard.put(update_shard(encode_shard(before, spec), spec, selection, after[selection]))
        assert same(open_tensorstore(tensorstore, shard.path).read().result(), expected)


PAIR = ShardMeta(config([2], [LITTLE, CRC]), (6,), np.dtype("uint16"), np.uint16(0))
PAIR_BLOB = encode_shard(np.array([1, 2, 0, 0, 5, 6], dtype="uint16"), PAIR) or b""


def with_entry(coords: tuple[int, ...], offset: int, nbytes: int) -> bytes:
    """Return PAIR_BLOB with one entry replaced and a valid index checksum."""
    index = read_index(PAIR_BLOB, PAIR)
    index[coords] = offset, nbytes
    pairs = index.astype("<u8").tobytes()
    return PAIR_BLOB[: -len(pairs) - 4] + pairs + reference.crc32c(pairs).to_bytes(4, "little")


class TestRules:
    def test_crc32c_gives_the_values_of_rfc_3720(self) -> None:
        assert reference.crc32c(b"123456789") == 0xE3069283
        assert reference.crc32c(bytes(32)) == 0x8A9136AA

    def test_morton_order_of_three_by_five_is_known(self) -> None:
        flat = [5 * a + b for a, b in reference.chunk_order((3, 5), "morton")]
        assert flat == [0, 5, 1, 6, 10, 11, 2, 7, 3, 8, 12, 13, 4, 9, 14]

    @pytest.mark.parametrize("grid", [(4, 4), (5, 2), (1, 7), (2, 3, 4), (1, 1, 1), (8,), (3, 1, 6, 2)])
    def test_morton_order_equals_zarr(self, tmp_path: Path, grid: tuple[int, ...]) -> None:
        """Inner chunks have one byte, so the body of zarr's shard shows its order."""
        spec = ShardMeta(config([1] * len(grid), [LITTLE]), grid, np.dtype("uint8"), np.uint8(0))
        shard = OneShard(tmp_path, spec, "uint8")
        array = np.arange(1, 1 + np.prod(grid), dtype="uint8").reshape(grid)
        zarr.open_array(shard.path, mode="r+")[...] = array
        body = bytes(int(array[c]) for c in reference.chunk_order(grid, "morton"))
        assert (shard.get() or b"").startswith(body)

    def test_offsets_count_from_the_first_byte_of_the_object(self) -> None:
        array = np.arange(1, 7, dtype="uint16")
        at_start = PAIR._replace(configuration={**PAIR.configuration, "index_location": "start"})
        for spec, first in ((PAIR, 0), (at_start, 52)):
            index = read_index(encode_shard(array, spec) or b"", spec)
            assert index.tolist() == [[first, 8], [first + 8, 8], [first + 16, 8]]

    @pytest.mark.parametrize(
        ("offset", "nbytes"),
        [
            (reference.ABSENT, 8),
            (0, reference.ABSENT),
            (0, 2**63),
            (2**64 - 2, 8),
            (9, 8),
            (17, 8),
            (0, 7),
            (0, 9),
            (4, 8),
            (0, 0),
        ],
        ids=lambda v: str(v) if v < 100 else f"2^{v.bit_length()}",
    )
    def test_bad_entry_is_refused_where_it_is_used(self, offset: int, nbytes: int) -> None:
        blob = with_entry((0,), offset, nbytes)
        with pytest.raises(MalformedShard):
            decode_shard(blob, PAIR)
        assert decode_shard(blob, PAIR, slice(4, 6)).tolist() == [5, 6]

    def test_bad_entry_of_a_nested_shard_fails_the_whole_inner_chunk(self) -> None:
        outer = config([2], [sharding([1], [LITTLE], [LITTLE])])
        spec = ShardMeta(outer, (4,), np.dtype("uint8"), np.uint8(0))
        blob = bytearray(encode_shard(np.arange(1, 5, dtype="uint8"), spec) or b"")
        blob[2 + 16 + 8] = 9  # nbytes of the second entry in the index of the first inner shard
        for selection in (slice(0, 1), slice(1, 2)):
            with pytest.raises(MalformedShard):
                decode_shard(bytes(blob), spec, selection)
        assert decode_shard(bytes(blob), spec, slice(2, 4)).tolist() == [3, 4]

    def test_bad_carried_entry_stops_an_update(self) -> None:
        with pytest.raises(MalformedShard, match="half empty"):
            update_shard(with_entry((0,), 0, reference.ABSENT), PAIR, 5, 9)

    def test_full_overwrite_repairs_the_shard(self) -> None:
        blob = update_shard(b"\0", PAIR, ..., 7)
        assert decode_shard(blob, PAIR).tolist() == [7] * 6

    def test_update_keeps_the_bytes_of_other_chunks(self) -> None:
        zstd = PAIR._replace(configuration={**PAIR.configuration, "codecs": [LITTLE, GZIP]})
        blob = encode_shard(np.arange(1, 7, dtype="uint16"), zstd) or b""
        offset, nbytes = read_index(blob, zstd)[2]
        marked = blob[: offset + 4] + b"\1" + blob[offset + 5 :]  # the time in a gzip header is ignored
        after = update_shard(marked, zstd, slice(0, 1), 9) or b""
        new_offset, new_nbytes = read_index(after, zstd)[2]
        assert after[new_offset : new_offset + new_nbytes] == marked[offset : offset + nbytes]

    @pytest.mark.parametrize("cut", range(1, len(PAIR_BLOB) + 1))
    def test_cut_shard_is_refused(self, cut: int) -> None:
        with pytest.raises(MalformedShard):
            decode_shard(PAIR_BLOB[:-cut], PAIR)

    def test_shard_without_its_first_bytes_is_refused(self) -> None:
        """SC-33: the index and its checksum are intact, so only the overlap with the index shows the damage."""
        with pytest.raises(MalformedShard, match="overlaps the index"):
            decode_shard(PAIR_BLOB[3:], PAIR, slice(4, 6))

    def test_chunks_may_share_bytes_and_leave_gaps(self) -> None:
        assert decode_shard(with_entry((1,), 0, 8), PAIR).tolist() == [1, 2, 1, 2, 5, 6]
