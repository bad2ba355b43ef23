"""The engine compared with the naive twin: same metadata, same data and same selections give equal bits.

Hypothesis draws a shard (rank, shapes, data type, codecs, index), data with empty inner chunks, and operations on
it. `TestShard` tests `shardcodec.encode` and `decode`. `TestArray` tests zarr arrays of several shards with ragged
edges through shardcodec's pipeline. The array tests also run with zarr's own pipeline: if they fail there too, the
test is wrong and not the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_strategies import (
    ORDERS,
    SomeArray,
    assert_same,
    assume_writable,
    check_shards,
    is_exact,
    needs_engine,
    no_deadline,
    opened,
    out_layouts,
    padded,
    pipelines,
    put_shards,
    seeds,
    selected,
    shardcodec,
    some_arrays,
    stored,
)
from hypothesis import assume, event, given
from hypothesis import strategies as st
from reference import (
    ABSENT,
    MalformedShard,
    ShardMeta,
    decode_shard,
    empty_shard,
    encode_shard,
    read_index,
    update_shard,
)
from shard_strategies import (
    Array,
    Layout,
    assert_same_bits,
    empty_like,
    layouts,
    random_array,
    random_items,
    selections,
)


def engine_spec(layout: Layout) -> Any:
    meta = layout.meta
    return shardcodec.ShardSpec.from_json(
        meta.configuration, shard_shape=meta.shape, dtype=meta.dtype, fill_value=meta.fill_value
    )


# ---------------------------------------------------------------------------------------------------------
# one shard, no zarr


@needs_engine
class TestShard:
    @no_deadline
    @given(layout=layouts(), seed=seeds, order=st.sampled_from(ORDERS))
    def test_twin_decodes_shards_of_the_engine(self, layout: Layout, seed: int, order: str) -> None:
        array = random_array(layout.meta, layout.meta.shape, seed)
        blob = shardcodec.encode(array, engine_spec(layout), order=order)
        assert_same_bits(decode_shard(blob, layout.meta), array)

    @no_deadline
    @given(layouts(compress=False), seeds, st.sampled_from(ORDERS), st.booleans())
    def test_uncompressed_shards_are_equal_bytes(
        self, layout: Layout, seed: int, order: str, write_empty: bool
    ) -> None:
        array = random_array(layout.meta, layout.meta.shape, seed)
        blob = shardcodec.encode(array, engine_spec(layout), order=order, write_empty_chunks=write_empty)
        assert blob == (encode_shard(array, layout.meta, order, write_empty) or empty_shard(layout.meta))

    @no_deadline
    @given(layout=layouts(), seed=seeds, how=out_layouts)
    def test_memory_layout_of_the_input_does_not_change_the_shard(
        self, layout: Layout, seed: int, how: str
    ) -> None:
        array = random_array(layout.meta, layout.meta.shape, seed)
        strided = empty_like(array, how)
        strided[...] = array
        spec = engine_spec(layout)
        assert shardcodec.encode(strided, spec) == shardcodec.encode(array, spec)

    @no_deadline
    @given(st.data(), layouts(), seeds, st.sampled_from(ORDERS), st.booleans())
    def test_engine_decodes_shards_of_the_twin(
        self, data: st.DataObject, layout: Layout, seed: int, order: str, write_empty: bool
    ) -> None:
        array = random_array(layout.meta, layout.meta.shape, seed)
        blob = encode_shard(array, layout.meta, order, write_empty)
        assume(blob is not None)
        selection = data.draw(st.one_of(st.none(), selections(layout.meta.shape)))
        expected = np.asarray(array if selection is None else array[selection])
        spec = engine_spec(layout)
        assert_same_bits(shardcodec.decode(blob, spec, selection), expected)
        out = empty_like(expected, data.draw(out_layouts))
        shardcodec.decode(bytearray(blob or b""), spec, selection, out=out)
        assert_same_bits(out, expected)

    @no_deadline
    @given(st.data(), layouts(compress=False), seeds)
    def test_engine_and_twin_refuse_the_same_damage(
        self, data: st.DataObject, layout: Layout, seed: int
    ) -> None:
        """Compared without compressors only, since codec libraries differ in the damage that they accept."""
        blob = encode_shard(random_array(layout.meta, layout.meta.shape, seed), layout.meta)
        assume(blob is not None)
        broken = data.draw(broken_copies(blob or b""))
        selection = data.draw(st.one_of(st.just(...), selections(layout.meta.shape)))
        try:
            expected = decode_shard(broken, layout.meta, selection)
        except MalformedShard:
            event("refused")
            with pytest.raises(shardcodec.errors.ShardError):
                shardcodec.decode(broken, engine_spec(layout), selection)
        else:
            event("accepted")
            actual = shardcodec.decode(broken, engine_spec(layout), selection)
            if layout.data_type == "bool":  # 0xff is true, and NumPy decides if a copy makes it 0x01
                np.testing.assert_array_equal(actual, expected)
            else:
                assert_same_bits(actual, expected)


@st.composite
def broken_copies(draw: st.DrawFn, blob: bytes) -> bytes:
    """Cut or lengthen the bytes, or change a few of them, mostly near an end, where the index is."""
    kind = draw(st.sampled_from(["cut tail", "cut head", "longer", "flip", "flip", "ones"]))
    n = draw(st.integers(1, min(len(blob), 40)))
    event(kind)
    if kind == "cut tail":
        return blob[:-n]
    if kind == "cut head":
        return blob[n:]
    if kind == "longer":
        return blob + bytes(n)
    broken = bytearray(blob)
    at = draw(st.integers(0, len(blob) - 1))
    if kind == "ones":
        broken[at : at + 8] = b"\xff" * len(broken[at : at + 8])
    else:
        broken[at] ^= draw(st.integers(1, 255))
    return bytes(broken)


# ---------------------------------------------------------------------------------------------------------
# zarr arrays of several shards


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["local", "memory", "cached"])
class TestArray:
    @no_deadline
    @given(pipelines, st.data(), some_arrays(), seeds, st.sampled_from(ORDERS), st.sampled_from("CF"))
    def test_read_equals_numpy(
        self,
        kind: str,
        pipeline: str,
        data: st.DataObject,
        array: SomeArray,
        seed: int,
        order: str,
        memory: str,
    ) -> None:
        expected = random_array(array.layout.meta, array.shape, seed)
        with selected(pipeline), stored(array, kind) as (store, _):
            put_shards(store, kind, array, expected, order)
            opened_array = opened(store, memory)
            assert_same(pipeline, opened_array[...], expected)
            for _ in range(3):
                selection = data.draw(selections(array.shape))
                assert_same(pipeline, opened_array[selection], np.asarray(expected[selection]))

    @no_deadline
    @given(pipelines, st.data(), some_arrays(), seeds)
    def test_any_sequence_of_writes_equals_numpy(
        self, kind: str, pipeline: str, data: st.DataObject, array: SomeArray, seed: int
    ) -> None:
        """After any sequence of writes the twin decodes the shards to NumPy's values."""
        assume_writable(pipeline, array)
        meta = array.layout.meta
        model = np.full(array.shape, meta.fill_value, dtype=meta.dtype)
        with selected(pipeline), stored(array, kind) as (store, get):
            target = opened(store)
            for step in range(data.draw(st.integers(1, 5))):
                selection, value = data.draw(some_writes(array, seed + step, finite=not is_exact(pipeline)))
                model[selection] = value
                target[selection] = value
                probe = data.draw(selections(array.shape))
                assert_same(pipeline, target[probe], np.asarray(model[probe]))
            check_shards(pipeline, get, array, model)
            assert_same(pipeline, opened(store, "F")[...], model)

    @no_deadline
    @given(pipelines, st.data(), some_arrays(), seeds)
    def test_update_of_shards_of_the_twin_keeps_other_chunks(
        self, kind: str, pipeline: str, data: st.DataObject, array: SomeArray, seed: int
    ) -> None:
        """One write over shards of the twin, compared with the twin's own update of each shard."""
        assume_writable(pipeline, array)
        meta = array.layout.meta
        finite = not is_exact(pipeline)
        before = random_array(meta, array.shape, seed, finite)
        selection, value = data.draw(some_writes(array, seed + 1, finite))
        after = before.copy()
        after[selection] = value
        with selected(pipeline), stored(array, kind) as (store, get):
            put_shards(store, kind, array, before, "lexicographic")
            opened(store)[selection] = value
            check_shards(pipeline, get, array, after)
            if is_exact(pipeline):
                check_neighbours(get, array, before, after, selection)


@st.composite
def some_writes(draw: st.DrawFn, array: SomeArray, seed: int, finite: bool) -> tuple[Any, Any]:
    """Draw the selection and the values: random items, one scalar, or the fill value, which erases."""
    meta = array.layout.meta
    selection = draw(st.one_of(st.just(...), selections(array.shape)))
    shape = np.empty(array.shape, dtype=bool)[selection].shape
    match draw(st.sampled_from(["items", "items", "F", "one", "fill"])):
        case "fill":
            return selection, meta.fill_value
        case "one":
            return selection, random_items(np.random.default_rng(seed), (1,), meta.dtype, finite)[0]
        case how:
            items = random_items(np.random.default_rng(seed), shape, meta.dtype, finite)
            return selection, items.copy(order="F") if how == "F" else items


def check_neighbours(get: Any, array: SomeArray, before: Array, after: Array, selection: Any) -> None:
    """Check that the same inner chunks exist as after the twin's update, and those outside the selection kept their
    bytes.
    """
    meta = array.layout.meta
    written = np.zeros(array.shape, dtype=bool)
    written[selection] = True
    for key, box in array.shards():
        old = encode_shard(padded(before[box], meta), meta)
        touched = padded(written[box], meta._replace(dtype=np.dtype(bool), fill_value=False))
        twin = update_shard(old, meta, touched, padded(after[box], meta)[touched])
        found = stored_chunks(get(key), meta)
        assert found.keys() == stored_chunks(twin, meta).keys(), key
        if not touched.any():
            assert get(key) == old, key
        for coords, kept in stored_chunks(old, meta).items():
            inside = tuple(slice(c * n, c * n + n) for c, n in zip(coords, meta.chunk_shape, strict=True))
            assert touched[inside].any() or found[coords] == kept, (key, coords)


def stored_chunks(blob: bytes | None, meta: ShardMeta) -> dict[tuple[int, ...], bytes]:
    """Return the encoded bytes of the inner chunks that exist."""
    if blob is None:
        return {}
    index = read_index(blob, meta)
    found = {}
    for coords in np.ndindex(*meta.grid):
        offset, nbytes = (int(v) for v in index[coords])
        if offset != ABSENT:
            found[coords] = blob[offset : offset + nbytes]
    return found
