# test_selections.py - selections, shapes and data types through zarr, compared with NumPy and zarr's own pipeline
# SPDX-License-Identifier: MIT
"""`strict` is on, so the engine handles supported selections itself. Fallbacks must give equal results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ZARR_IS_31, bits, create, ours, quiet, random_array, zarrs_view
from numpy.lib import NumpyVersion
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import shardcodec

SHAPES = [
    ((16, 24), (8, 12), (4, 3)),
    ((15, 25), (8, 12), (4, 3)),  # ragged edges
    ((1, 1), (8, 12), (4, 3)),  # smaller than one inner chunk
    ((16, 24), None, (5, 7)),  # no shards
]


def pair(store: Any, **arguments: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    array = create(store, **arguments)
    values = np.full(array.shape, array.fill_value, array.dtype)
    return array, values


SELECTIONS = [
    np.s_[...],
    np.s_[:],
    np.s_[0],
    np.s_[-1],
    np.s_[0, 0],
    np.s_[..., -1],
    np.s_[:1, :1],
    np.s_[::2, ::3],
    np.s_[1::5, 2::13],
    np.s_[3:12, 5:20],
    np.s_[3:12:4, 7],
    np.s_[8:16, 12:24],
    np.s_[5:5],
]


@pytest.mark.parametrize(("shape", "shards", "chunks"), SHAPES)
@pytest.mark.parametrize("store", ["local", "memory"])
def test_basic_selections_equal_numpy(
    store: str, shape: Any, shards: Any, chunks: Any, tmp_path: Path
) -> None:
    where: Any = tmp_path if store == "local" else MemoryStore()
    array, values = pair(where, shape=shape, shards=shards, chunks=chunks)
    for number, selection in enumerate(SELECTIONS):
        try:
            part = random_array(values[selection].shape, "int32", seed=number)
        except IndexError:
            continue
        array[selection] = values[selection] = part if part.ndim else int(part)
        assert bits(array[selection]) == bits(values[selection])
        assert bits(array[...]) == bits(values)
    assert bits(zarrs_view(array)[...]) == bits(values)


@pytest.mark.parametrize("value", [7, np.int32(7), np.int64(7), np.array(7), np.array(7, ">i4")])
def test_scalars_are_stored_in_every_element(value: Any) -> None:
    array, values = pair({})
    for selection in (np.s_[3:12, 5:20], np.s_[0, 0], np.s_[8:16, :12], np.s_[::3], np.s_[...]):
        array[selection] = values[selection] = value
        assert bits(zarrs_view(array)[...]) == bits(values)


@pytest.mark.parametrize("shards", [(), None])
def test_rank_0_array_equals_numpy(shards: Any, tmp_path: Path) -> None:
    array = create(tmp_path, shape=(), shards=shards, chunks=(), fill_value=7)
    assert array[...] == 7 and array[()] == 7
    array[...] = 3
    assert array[()] == 3 and zarrs_view(array)[()] == 3
    assert (tmp_path / "c").is_file()
    array[()] = 7
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_axis_of_length_zero_equals_numpy(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = create(tmp_path, shape=shape, shards=(4,) * len(shape), chunks=(2,) * len(shape))
    assert array[...].shape == shape
    array[...] = 5
    assert not (tmp_path / "c").exists()
    array.resize(tuple(n + 3 for n in shape))
    array[...] = 5
    assert (zarrs_view(array)[...] == 5).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_result_has_the_requested_memory_order(order: Any) -> None:
    array = create({}, config={"order": order})
    values = random_array(array.shape, "int32")
    array[...] = np.asfortranarray(values)
    assert bits(array[...]) == bits(values)
    result = array[2:14, 3:20]
    if not ZARR_IS_31:  # zarr 3.1 ignores it
        assert result.flags.f_contiguous == (order == "F")
    assert bits(result) == bits(values[2:14, 3:20])


@pytest.mark.parametrize("kind", ["i2", "u8", "f4", "c16", "M8[s]", "U3"])
@pytest.mark.parametrize("codec", ["little", "big"])
@pytest.mark.parametrize("byte_order", "<>")
def test_byte_order_equals_zarrs(kind: str, codec: Any, byte_order: str) -> None:
    dtype = np.dtype(kind).newbyteorder(byte_order)  # type: ignore[arg-type]
    array = create({}, dtype=dtype, fill_value=np.zeros((), dtype)[()], serializer=BytesCodec(endian=codec))
    raw = random_array((16, 24), "int32")
    values = raw.astype("U3").astype(dtype) if kind == "U3" else raw.astype(kind).astype(dtype)
    array[...] = values
    assert bits(np.asarray(array[...]).astype(dtype)) == bits(values)
    array[1:9, 2:20] = values[1:9, 2:20].astype(np.dtype(kind).newbyteorder())
    array[0, 0] = values[0, 0]
    assert bits(np.asarray(zarrs_view(array)[...]).astype(dtype)) == bits(values)
    assert bits(np.asarray(array[::2, 3]).astype(dtype)) == bits(values[::2, 3])


@pytest.mark.parametrize("data_type", ["bool", "float16", "S5", "V4", "m8[ms]"])
def test_data_type_equals_zarrs(data_type: str) -> None:
    dtype = np.dtype(data_type)
    rng = np.random.default_rng(0)
    values = np.frombuffer(rng.bytes(384 * dtype.itemsize), dtype="u1")
    values = (values & 1 if dtype.kind == "b" else values | 1).view(dtype).reshape(16, 24).copy()
    with quiet():
        array = create({}, dtype=dtype, fill_value=np.zeros((), dtype)[()])
        array[...] = values
        array[3, 3:9] = values[3, 3:9]
        assert bits(array[...]) == bits(values)
        if not (ZARR_IS_31 and dtype.kind == "V"):  # zarr 3.1 itself cannot read these from shards
            assert bits(zarrs_view(array)[...]) == bits(values)


STRUCT = np.dtype([("a", "<u2"), ("b", "<f8"), ("c", "S3")])
needs_structs = pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 cannot write structs in shards")


@needs_structs
def test_structs_equal_zarrs() -> None:
    with quiet():
        array = create({}, dtype=STRUCT, fill_value=np.zeros((), STRUCT)[()])
        values = np.zeros((16, 24), STRUCT)
        values["a"] = random_array((16, 24), "u2")
        values["b"] = random_array((16, 24), "f8")
        array[...] = values
        array[2:4] = values[2:4]
        assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])


@needs_structs
def test_one_field_of_structs_falls_back_to_zarr() -> None:
    with quiet():
        array = create({}, own=True, dtype=STRUCT, fill_value=np.zeros((), STRUCT)[()])
        values = np.zeros((16, 24), STRUCT)
        values["a"] = random_array((16, 24), "u2")
        array[...] = values
        attached = shardcodec.attach(array)

        def outcome(source: Any) -> Any:
            try:
                return bits(source.get_basic_selection(np.s_[3:9], fields="a"))
            except Exception as error:
                return type(error)

        assert outcome(attached) == outcome(array)


# ---- index arrays

INDEX_ARRAYS: dict[str, Any] = {
    "vindex": (lambda a: a.vindex, ([0, 9, 3, 9], [1, 20, 1, 4])),
    "vindex, sorted": (lambda a: a.vindex, ([0, 3, 9], [1, 1, 20])),
    "mask": (lambda a: a.vindex, np.arange(384).reshape(16, 24) % 7 == 0),
    "oindex, one axis": (lambda a: a.oindex, ([1, 9, 12], slice(2, 20))),
    "oindex, the other axis": (lambda a: a.oindex, (slice(None, None, 3), [20, 3, 4])),
    "oindex, both": (lambda a: a.oindex, ([9, 1], [20, 3, 4])),
    "oindex, integer": (lambda a: a.oindex, (3, [1, 20, 13])),
    "oindex, mask": (lambda a: a.oindex, (np.arange(16) % 3 == 0, slice(None))),
    "oindex, masks": (lambda a: a.oindex, (np.arange(16) % 3 == 0, np.arange(24) > 3)),
    "fancy": (lambda a: a, ([0, 9, 3], [1, 20, 1])),
}


@pytest.mark.parametrize("case", INDEX_ARRAYS)
@pytest.mark.parametrize("store", ["local", "memory"])
def test_index_arrays_equal_numpy(case: str, store: str, tmp_path: Path) -> None:
    view, selection = INDEX_ARRAYS[case]
    where: Any = tmp_path if store == "local" else MemoryStore()
    array = create(where, own=True)
    array[...] = random_array((16, 24), "int32")
    strict = shardcodec.attach(array, strict=True)
    expected = view(array)[selection]
    assert bits(view(strict)[selection]) == bits(expected)
    view(strict)[selection] = expected + 1
    assert bits(view(array)[selection]) == bits(expected + 1)
    view(strict)[selection] = 0
    assert not np.asarray(view(array)[selection]).any()


@pytest.mark.parametrize("kind", ["i2", "u8", "i4"])
def test_index_arrays_of_any_integer_type(kind: str) -> None:
    array = shardcodec.attach(create({}, own=True), strict=True)
    values = random_array((16, 24), "int32")
    array[...] = values
    rows = np.array([9, 1, 12], kind)
    if kind == "u8" and NumpyVersion(np.__version__) < "2.2.0":
        pytest.skip("zarr refuses unsigned 64-bit index arrays with numpy before 2.2")
    try:
        assert bits(array.oindex[rows, 3:5]) == bits(values[[9, 1, 12], 3:5])
    except shardcodec.UnsupportedError:
        assert ZARR_IS_31 and kind == "u8"  # zarr 3.1 makes floats of them


# ---- fallbacks to zarr's pipeline


def test_block_selections_run_in_the_engine() -> None:
    array, values = pair({})
    array[...] = values[...] = random_array((16, 24), "int32")
    assert bits(array.blocks[1, 0]) == bits(
        values[8:, :12] if array.blocks[1, 0].shape == (8, 12) else values[4:8, :3]
    )
    array.blocks[0] = 5
    assert bits(array[...]) == bits(zarrs_view(array)[...])


def test_third_party_codec_falls_back_to_zarr() -> None:
    numcodecs = pytest.importorskip("zarr.codecs.numcodecs")
    with quiet():
        array = create({}, own=True, compressors=[numcodecs.BZ2(level=1)])
        values = random_array((16, 24), "int32")
        attached = shardcodec.attach(array)
        attached[...] = values
        attached[3, 3:9] = values[3, 3:9] = 8
        assert bits(attached[...]) == bits(values) == bits(array[...])
        assert shardcodec.attach(array, strict=True)[3, 3] == 8


def test_texts_of_any_length() -> None:
    with quiet():
        array = create({}, own=True, dtype=str, fill_value="")
        attached = shardcodec.attach(array)
        attached[0, :3] = np.array(["a", "bcd", ""], dtype=object)
        assert list(attached[0, :4]) == ["a", "bcd", "", ""]
        assert list(array[0, :4]) == ["a", "bcd", "", ""]
        assert shardcodec.attach(array, strict=True)[0, 1] == "bcd"


def test_buffers_outside_of_numpy_fall_back_to_zarr() -> None:
    """A prototype of other buffers, for example on a GPU, is passed to zarr's pipeline."""
    array = create({}, own=True)
    values = random_array((16, 24), "int32")
    array[...] = values
    prototype = default_buffer_prototype()

    class Elsewhere(prototype.nd_buffer):  # type: ignore[name-defined,misc]
        def as_ndarray_like(self) -> Any:
            return memoryview(np.ascontiguousarray(self._data))

    from zarr.core.buffer import BufferPrototype

    other = BufferPrototype(buffer=prototype.buffer, nd_buffer=Elsewhere)
    with pytest.raises(shardcodec.UnsupportedError, match="numpy"):
        shardcodec.attach(array, strict=True).get_basic_selection(np.s_[2:9], prototype=other)


# ---- out=


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_read_into_out_of_any_layout(layout: str) -> None:
    array, values = pair({})
    array[...] = values[...] = random_array((16, 24), "int32")
    memory = np.zeros((16, 48), "int32")
    target = {
        "C": np.zeros((9, 24), "int32"),
        "F": np.zeros((9, 24), "int32", order="F"),
        "strided": memory[2:11, ::2],
    }
    out = target[layout]
    buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
    array.get_basic_selection(np.s_[2:11], out=buffer)
    assert bits(out) == bits(values[2:11])
    assert (memory[:, 1::2] == 0).all()


# ---- other chains


def test_transposes_and_nested_shards_equal_zarrs(tmp_path: Path) -> None:
    inner = ShardingCodec(
        chunk_shape=(2, 3), codecs=[TransposeCodec(order=(1, 0)), BytesCodec(), ZstdCodec(level=1)]
    )
    codec = ShardingCodec(chunk_shape=(4, 6), codecs=[inner], index_location="start")
    with quiet():
        zarr.create_array(
            tmp_path,
            shape=(15, 25),
            chunks=(8, 12),
            dtype="int32",
            serializer=codec,
            compressors=None,
            fill_value=0,
        )
    array = ours(tmp_path)
    values = random_array((15, 25), "int32")
    array[...] = values
    array[3:11, 5:7] = values[3:11, 5:7] = 0
    assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])
    assert bits(array[1::3, 24]) == bits(values[1::3, 24])


def test_codecs_after_the_sharding_encode_whole_objects(tmp_path: Path) -> None:
    codec = ShardingCodec(chunk_shape=(4, 6))
    with quiet():
        zarr.create_array(
            tmp_path,
            shape=(16, 24),
            chunks=(8, 12),
            dtype="int32",
            serializer=codec,
            compressors=[ZstdCodec(level=1)],
        )
    array = ours(tmp_path)
    values = random_array((16, 24), "int32")
    array[...] = values
    array[3, 5] = values[3, 5] = 0
    assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])


@pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 has regular grids only")
def test_rectilinear_grid_equals_numpy(tmp_path: Path) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}), quiet():
        try:
            zarr.create_array(tmp_path, shape=(10, 12), shards=[[4, 6], [6, 6]], chunks=(2, 3), dtype="int32")
        except (TypeError, ValueError, NotImplementedError) as error:
            pytest.skip(f"this zarr cannot create the array: {error}")
        array = ours(tmp_path)
        values = random_array((10, 12), "int32")
        array[...] = values
        array[3:5, 5:7] = values[3:5, 5:7] = 0
        assert bits(array[...]) == bits(values) == bits(zarrs_view(array)[...])


def test_values_are_broadcast(tmp_path: Path) -> None:
    """NumPy's rule, which zarr follows. Such values were refused as too small."""
    array = shardcodec.attach(create(tmp_path), strict=False)
    with quiet():
        array[0:4, :] = np.arange(24, dtype="int32")[None]
    assert (zarrs_view(array)[0:4, :] == np.arange(24)).all()


def test_step_may_exceed_the_array(tmp_path: Path) -> None:
    # zarr 3.1 makes index arrays of an integer and a step
    array = shardcodec.attach(create(tmp_path), strict=False)
    array[...] = random_array((16, 24), "int32")
    expected = zarrs_view(array)[...]
    assert (array[0 : 8 : 2**70, 3] == expected[0:1, 3]).all()
    assert (array[3 :: 2**62, :: 2**62] == expected[3:4, 0:1]).all()
