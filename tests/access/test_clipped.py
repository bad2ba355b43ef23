# test_clipped.py - inner chunks that are cut off at the end of their shard (draft 1.1), with clip=True
# SPDX-License-Identifier: MIT
"""A `chunk_shape` that does not divide the shard is refused, unless the caller passes `clip=True` (SC-75)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_strategies import no_deadline, out_layouts, seeds
from helpers import ABSENT, RAW, OtherMemoryStore, entries_of, put_object
from hypothesis import example, given
from hypothesis import strategies as st
from reference import Coords, ShardMeta, decode_shard, empty_shard, encode_shard, update_shard
from shard_strategies import Layout, assert_same_bits, configurations, empty_like, random_array, selections
from spec_json import LITTLE

import shardcodec
from shardcodec import ChainSpec, ShardSpec, ShardWriter, open_array, open_shard
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import Box
from shardcodec.access.selection import parse_selection
from shardcodec.access.write import Elements, WriteItem, write_objects
from shardcodec.errors import ChecksumError, CodecError, ShardFormatError, SpecError, UnsupportedError
from shardcodec.options import resolve

TWELVE = np.arange(1, 13, dtype="u1")
WORDS = r"inner chunk size 5 does not divide shard size 12 on axis 0; .*clip=True"


def twelve(**keywords: Any) -> ShardSpec:
    """Return the spec of the example in the requirements: 12 elements in inner chunks of 5."""
    return ShardSpec((12,), (5,), "u1", 0, **({"codecs": RAW, "clip": True} | keywords))


@st.composite
def clipped(draw: st.DrawFn, compress: bool = True) -> Layout:
    """Draw a shard with an axis that is not divided evenly; inner chunks may be larger than the shard."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, (13, 7, 5)[ndim - 1])) for _ in range(ndim))
    inner = tuple(draw(st.integers(1, n + 2)) for n in shape)
    axis = draw(st.integers(0, ndim - 1))
    if not any(n % c for n, c in zip(shape, inner, strict=True)):
        inner = (*inner[:axis], shape[axis] + 1, *inner[axis + 1 :])
    data_type = draw(st.sampled_from(["uint8", "int16", "float32", "complex64"]))
    dtype = np.dtype(data_type)
    configuration = draw(configurations(inner, inner, dtype.itemsize, depth=0, compress=compress))
    fill = draw(st.sampled_from([0, 7]))
    return Layout(data_type, fill, ShardMeta(configuration, shape, dtype, dtype.type(fill), clip=True))


def spec_of(layout: Layout) -> ShardSpec:
    meta = layout.meta
    return ShardSpec.from_json(
        meta.configuration, shard_shape=meta.shape, dtype=meta.dtype, fill_value=meta.fill_value, clip=True
    )


# ---- compared with the reference implementation


def test_index_has_an_entry_for_each_started_chunk() -> None:
    """The draft's reference implementation stores 5, 5 and 2 bytes."""
    spec = twelve()
    blob = shardcodec.encode(TWELVE, spec)
    assert spec.grid_shape == (3,)
    assert spec.index_nbytes == 3 * 16 + 4
    assert entries_of(blob, 3) == [(0, 5), (5, 5), (10, 2)]
    assert blob[:12] == TWELVE.tobytes()
    assert len(blob) == 64


@pytest.mark.parametrize("at_start", [False, True], ids=["end", "start"])
def test_chunk_larger_than_the_shard_is_one_clipped_chunk(at_start: bool) -> None:
    spec = ShardSpec((3,), (5,), "u1", 0, RAW, index_location="start" if at_start else "end", clip=True)
    blob = shardcodec.encode(TWELVE[:3], spec)
    assert entries_of(blob, 1, at_start=at_start) == [(20 if at_start else 0, 3)]
    assert bytes(shardcodec.decode(blob, spec)) == b"\1\2\3"


@no_deadline
@given(st.data(), clipped(), seeds, st.sampled_from(["morton", "lexicographic"]), st.booleans())
def test_engine_reads_what_the_reference_encodes(
    data: st.DataObject, layout: Layout, seed: int, order: str, write_empty: bool
) -> None:
    array = random_array(layout.meta, layout.meta.shape, seed)
    blob = encode_shard(array, layout.meta, order, write_empty) or empty_shard(layout.meta)
    selection = data.draw(st.one_of(st.none(), selections(layout.meta.shape)))
    expected = np.asarray(array if selection is None else array[selection])
    assert_same_bits(shardcodec.decode(blob, spec_of(layout), selection), expected)
    assert_same_bits(open_shard(blob, None, spec_of(layout)).read_region(selection), expected)
    out = empty_like(expected, data.draw(out_layouts))
    shardcodec.decode(blob, spec_of(layout), selection, out=out)
    assert_same_bits(out, expected)


@no_deadline
@given(clipped(), seeds)
def test_reference_reads_what_the_engine_encodes(layout: Layout, seed: int) -> None:
    array = random_array(layout.meta, layout.meta.shape, seed)
    assert_same_bits(decode_shard(shardcodec.encode(array, spec_of(layout)), layout.meta), array)


@no_deadline
@given(clipped(compress=False), seeds, st.sampled_from(["morton", "colexicographic"]), st.booleans())
def test_uncompressed_bytes_equal_the_reference(
    layout: Layout, seed: int, order: str, write_empty: bool
) -> None:
    array = random_array(layout.meta, layout.meta.shape, seed)
    blob = shardcodec.encode(array, spec_of(layout), order=order, write_empty_chunks=write_empty)
    assert blob == (encode_shard(array, layout.meta, order, write_empty) or empty_shard(layout.meta))


@no_deadline
@given(st.data(), clipped(), seeds, st.sampled_from(["replace", "append", "in_place"]))
def test_partial_write_equals_the_reference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, layout: Layout, seed: int, strategy: str
) -> None:
    meta, spec = layout.meta, spec_of(layout)
    path = tmp_path_factory.mktemp("shard") / "c"
    blob = encode_shard(random_array(meta, meta.shape, seed), meta)
    if blob is not None:
        path.write_bytes(blob)
    selection = data.draw(selections(meta.shape))
    box, axes, shape = parse_selection(selection, meta.shape)
    value = random_array(meta, meta.shape, seed + 1)[selection].reshape(shape)
    options = resolve(argument={"write_strategy": strategy})
    write_objects(
        [WriteItem(compiled(spec.chain), str(path), None, box, "c")],
        options,
        Elements(value, axes, write_empty=False),
    )
    updated = update_shard(blob, meta, selection, value)
    if updated is None:
        assert not path.exists()
    else:
        assert_same_bits(decode_shard(path.read_bytes(), meta), decode_shard(updated, meta))


def test_full_overwrite_of_a_clipped_chunk_does_not_read_it() -> None:
    """Only elements inside the shard count, so a write of them repairs a damaged chunk at the edge."""
    spec = twelve(codecs=[*RAW, "crc32c"])
    blob = bytearray(shardcodec.encode(TWELVE, spec))
    blob[19] ^= 1  # in the last inner chunk
    item = WriteItem(compiled(spec.chain), None, bytes(blob), Box((10,), (2,), None, (0,)), "c")
    with pytest.raises(ChecksumError):
        shardcodec.decode(blob, spec, slice(10, 12))
    (new,) = write_objects([item], resolve(), Elements(TWELVE[:2], (0,), write_empty=False)).objects
    assert bytes(shardcodec.decode(new, spec)) == TWELVE[:10].tobytes() + b"\1\2"


# ---- refused input


def test_clipped_shape_needs_the_option() -> None:
    with pytest.raises(SpecError, match=WORDS) as caught:
        twelve(clip=False)
    assert caught.value.path == "chunk_shape[0]"
    config = twelve().to_json()
    keywords: dict[str, Any] = {"shard_shape": (12,), "dtype": "u1", "fill_value": 0}
    with pytest.raises(SpecError, match=WORDS):
        ShardSpec.from_json(config, **keywords)
    assert ShardSpec.from_json(config, **keywords, clip=True) == twelve()
    with pytest.raises(SpecError, match=WORDS):
        ChainSpec.from_json([config], shape=(12,), dtype="u1", fill_value=0)
    assert ChainSpec.from_json([config], shape=(12,), dtype="u1", fill_value=0, clip=True) == twelve().chain
    metadata = twelve().to_metadata((12,))
    with pytest.raises(SpecError, match=WORDS):
        ShardSpec.from_metadata(metadata)
    assert ShardSpec.from_metadata(metadata, clip=True) == twelve()


def test_clip_has_no_effect_on_shards_that_divide_evenly() -> None:
    plain, clip = (ShardSpec((12,), (4,), "u1", 0, RAW, clip=flag) for flag in (False, True))
    assert plain == clip
    assert hash(plain) == hash(clip)
    assert not clip.chain.is_clipped
    assert compiled(clip.chain).stage is None
    assert plain.to_json() == clip.to_json()


def test_clip_survives_repr_pickle_and_another_shape() -> None:
    spec = twelve()
    assert repr(spec).endswith("index_location='end', clip=True)")
    assert pickle.loads(pickle.dumps(spec)).grid_shape == (3,)
    assert spec.with_shard_shape((13,)).grid_shape == (3,)
    assert ShardSpec.from_chain(spec.chain.with_shape((16,))).grid_shape == (4,)


def test_rectilinear_grid_has_clipped_shards() -> None:
    metadata = twelve().to_metadata((22,))
    metadata["chunk_grid"] = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[10, 12]]},
    }
    with pytest.raises(SpecError, match=WORDS):
        ShardSpec.from_metadata(metadata)
    for shape, grid in ((10, 2), (12, 3)):
        spec = ShardSpec.from_metadata(metadata, shard_shape=(shape,), clip=True)
        assert spec.grid_shape == (grid,)
        assert bytes(shardcodec.decode(shardcodec.encode(TWELVE[:shape], spec), spec)) == bytes(
            TWELVE[:shape]
        )


def test_transpose_before_sharding_clips_the_stored_axes() -> None:
    array = np.arange(35, dtype="u1").reshape(5, 7)
    before = [{"name": "transpose", "configuration": {"order": [1, 0]}}]
    # stored as (7, 5): axis 0 is clipped
    spec = ShardSpec((5, 7), (3, 5), "u1", 0, RAW, before=before, clip=True)
    assert spec.grid_shape == (3, 1)
    blob = shardcodec.encode(array, spec)
    assert entries_of(blob, 3) == [(0, 15), (15, 15), (30, 5)]
    assert blob[30:35] == bytes(array[:, 6])
    np.testing.assert_array_equal(shardcodec.decode(blob, spec, np.s_[1:4, 2:]), array[1:4, 2:])


def test_nested_shards_and_codecs_after_sharding_are_refused() -> None:
    nested = ShardSpec((5,), (1,), "u1", 0, RAW).to_json()
    with pytest.raises(UnsupportedError, match="clipped inner chunks cannot contain shards"):
        twelve(codecs=[nested])
    inner = ShardSpec((4,), (3,), "u1", 0, RAW, clip=True)
    with pytest.raises(UnsupportedError, match="a nested shard cannot have clip=True"):
        ShardSpec((12,), (4,), "u1", 0, [inner.sharding])
    with pytest.raises(SpecError, match="not nested"):
        ShardSpec((12,), (4,), "u1", 0, [inner.to_json()], clip=True)
    with pytest.raises(UnsupportedError, match="no codecs after sharding_indexed"):
        shardcodec.encode(TWELVE, twelve(after=["crc32c"]))


def test_grid_too_large_for_an_index_is_refused() -> None:
    with pytest.raises(SpecError, match="inner chunks in one shard"):
        ShardSpec((2**31 + 1,), (2,), "u1", 0, RAW, clip=True)


# ---- damage


@pytest.mark.parametrize("nbytes", [0, 1, 3, 5])
def test_chunk_of_the_wrong_size_is_refused(nbytes: int) -> None:
    """A chunk stored whole, as version 1.0 stores it at the edge of an array, is not read as a clipped one."""
    blob = bytearray(shardcodec.encode(TWELVE, twelve(index_codecs=[LITTLE])))
    blob[-8:] = nbytes.to_bytes(8, "little")
    blob[-16:-8] = (0).to_bytes(8, "little")
    spec = twelve(index_codecs=[LITTLE])
    with pytest.raises((ShardFormatError, CodecError)) as caught:
        shardcodec.decode(blob, spec)
    assert caught.value.chunk_coords == (2,)
    assert bytes(shardcodec.decode(blob, spec, slice(10))) == TWELVE[:10].tobytes()


def test_checksum_error_names_the_clipped_chunk() -> None:
    spec = twelve(codecs=[*RAW, "crc32c"])
    blob = bytearray(shardcodec.encode(TWELVE, spec))
    blob[19] ^= 1
    with pytest.raises(ChecksumError, match=r"inner chunk \(2,\)") as caught:
        shardcodec.decode(blob, spec)
    assert caught.value.chunk_coords == (2,)
    assert caught.value.entry == 2


def test_absent_chunks_read_as_the_fill_value() -> None:
    spec = twelve(codecs=RAW)
    blob = shardcodec.encode(np.where(TWELVE > 10, 0, TWELVE).astype("u1"), spec)
    assert entries_of(blob, 3)[2] == (ABSENT, ABSENT)
    assert shardcodec.decode(blob, spec)[10:].tolist() == [0, 0]


# ---- one shard, inner chunk by inner chunk


def edges(spec: ShardSpec) -> Iterator[Coords]:
    yield from np.ndindex(*spec.grid_shape)


def test_open_shard_reads_and_writes_except_clipped_blocks(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(shardcodec.encode(TWELVE, twelve()))
    with open_shard(path, None, twelve(), mode="r+") as shard:
        assert shard.state().tolist() == [True] * 3
        assert shard.read_encoded([(2,)]) == [b"\x0b\x0c"]
        assert shard.read_chunks([(1,)]).tolist() == [[6, 7, 8, 9, 10]]
        with pytest.raises(UnsupportedError, match=r"inner chunk \(2,\) is clipped"):
            shard.read_chunks(list(edges(twelve())))
        with pytest.raises(UnsupportedError, match=r"inner chunk \(2,\) is clipped"):
            shard.write_chunks([(2,)], np.zeros((1, 5), "u1"))
        shard.write_chunks([(0,)], np.full((1, 5), 9, "u1"))
        shard.write_encoded([(2,)], [b"\7\7"])
        assert shard.read_region().tolist() == [9] * 5 + [6, 7, 8, 9, 10] + [7, 7]
        shard.erase([(1,)])
        assert shard.read_region(slice(4, 11)).tolist() == [9, 0, 0, 0, 0, 0, 7]


def test_shard_writer_refuses_clipped_shards(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="clipped"):
        ShardWriter(tmp_path / "c", twelve())
    with pytest.raises(UnsupportedError):
        ShardWriter.create(tmp_path / "c", twelve())
    assert not list(tmp_path.iterdir())


# ---- arrays


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an array of 20 elements in shards of 12."""
    (tmp_path / "zarr.json").write_text(json.dumps(twelve().to_metadata((20,))))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0").write_bytes(shardcodec.encode(TWELVE, twelve()))
    second = np.r_[TWELVE[:8] + 12, np.zeros(4, "u1")].astype("u1")
    (tmp_path / "c/1").write_bytes(shardcodec.encode(second, twelve()))
    return tmp_path


def test_open_array_reads_clipped_shards(folder: Path) -> None:
    with pytest.raises(SpecError, match=WORDS):
        open_array(folder)
    array = open_array(folder, clip=True)
    everything = np.arange(1, 21, dtype="u1")
    for reader in (array, pickle.loads(pickle.dumps(array))):
        np.testing.assert_array_equal(reader[...], everything)
        np.testing.assert_array_equal(reader[3:17:3], everything[3:17:3])
        np.testing.assert_array_equal(reader.read_boxes([[3], [10], [14]], (6,))[:, 5], [9, 16, 20])
    with pytest.raises(UnsupportedError, match="clipped to their shards"):
        array.read_chunks([[0]])
    (folder / "c/1").unlink()
    assert array[11:14].tolist() == [12, 0, 0]


def test_open_array_reads_clipped_shards_from_a_store_of_requests(folder: Path) -> None:
    store = OtherMemoryStore()
    for name in ("zarr.json", "c/0", "c/1"):
        put_object(store, name, (folder / name).read_bytes())
    np.testing.assert_array_equal(open_array(store, clip=True)[3:19:2], np.arange(4, 20, 2))


def test_chunk_at_the_array_edge_is_not_clipped_to_the_array(folder: Path) -> None:
    """Inner chunk (1,) of the second shard holds elements 17 to 21 of an array of 20; chunk (2,) is absent."""
    assert entries_of((folder / "c/1").read_bytes(), 3) == [(0, 5), (5, 5), (ABSENT, ABSENT)]


@pytest.mark.parametrize("own", [False, True])
def test_zarr_refuses_clipped_metadata_before_any_codec(folder: Path, own: bool) -> None:
    """zarr cannot open such an array, so `attach` and `enable` need no option `clip`."""
    config = {"codecs.sharding_indexed": "shardcodec.ShardingCodec"} if own else {}
    with zarr.config.set(config), pytest.raises(ValueError, match="divisible"):
        zarr.open_array(folder, mode="r")


@example(threads=1, staging=1)
@given(threads=st.integers(1, 4), staging=st.integers(1, 64))
@no_deadline
def test_small_memory_budget_and_threads_give_equal_results(threads: int, staging: int) -> None:
    with shardcodec.options(threads=threads, staging_nbytes=staging):
        blob = shardcodec.encode(TWELVE, twelve())
        assert bytes(shardcodec.decode(blob, twelve())) == bytes(TWELVE)
