# test_attached.py - arrays without zarr's event loop, of `attach` and of `enable`, compared with zarr's own arrays
# SPDX-License-Identifier: MIT
"""Results, types, memory orders, errors and stored objects are those of a plain `zarr.Array` on zarr's own pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
import zarr
from array_ways import STRUCT, elements, new_array, same
from helpers import (
    KINDS_OF_STORE,
    ZARR_IS_31,
    OtherMemoryStore,
    bits,
    create,
    keys_of,
    object_of,
    on_pipeline,
    put_object,
    python_calls,
    quiet,
    random_array,
    store_of,
    zarrs_view,
)
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec
from zarr.core.sync import sync
from zarr.storage import MemoryStore, StorePath, WrapperStore

import shardcodec
from shardcodec.compat import pipeline_of
from shardcodec.zarr_plugin import direct_methods
from shardcodec.zarr_plugin.attach import AttachedArray
from shardcodec.zarr_plugin.direct_access import MemoisedAccess

SHAPE = (13, 22)
LAYOUTS: dict[str, Any] = {
    "sharded": {"shards": (8, 12), "chunks": (4, 3)},
    "one shard": {"shards": (16, 24), "chunks": (4, 4), "compressors": "auto"},
    "no shards": {"shards": None, "chunks": (5, 7)},
    "v2 keys": {"shards": (8, 12), "chunks": (8, 12), "chunk_key_encoding": {"name": "v2", "separator": "."}},
}


# Objects of 8 elements with a checksum at their end.
LAYOUTS_1D: dict[str, Any] = {
    "sharded": {"shards": (8,), "chunks": (4,)},
    "no shards": {"chunks": (8,), "compressors": [Crc32cCodec()]},
}

Serve = Callable[..., Any]


class SlowStore(WrapperStore):  # type: ignore[type-arg]
    """A store of requests, the next `set` of which takes some seconds."""

    seconds = 0.0

    async def set(self, key: str, value: Any) -> None:
        seconds, self.seconds = self.seconds, 0.0
        await asyncio.sleep(seconds)
        await self._store.set(key, value)


@contextlib.contextmanager
def raised_after(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def direct(array: Any, **choices: Any) -> Any:
    """Return a plain `zarr.Array` with the option, as libraries open it; its methods must be replaced."""
    return zarr.Array(shardcodec.attach(array, **choices).async_array)


@pytest.fixture(autouse=True, scope="module")
def _replaced_methods() -> Iterator[None]:
    direct_methods.replace()
    yield
    direct_methods.restore()


@pytest.fixture(params=[shardcodec.attach, direct], ids=["attach", "direct"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """Function that returns an array that does without zarr's event loop."""
    return request.param


def pair(
    folder: Path | None, dtype: Any, layout: str, *, is_direct: bool, **arguments: Any
) -> tuple[Any, Any]:
    """Create two arrays with equal values: one with zarr's pipeline, and one that is attached, or direct."""
    is_struct = dtype == STRUCT
    if is_struct and ZARR_IS_31:
        layout = "no shards"
    made = []
    for name in ("zarrs", "ours"):
        store: Any = {} if folder is None else folder / name
        chosen = {**LAYOUTS[layout], "shape": SHAPE, "dtype": "str" if dtype == "string" else np.dtype(dtype)}
        chosen["fill_value"] = None if is_struct or dtype == "string" else np.ones((), dtype)[()]
        if layout == "v2 keys" and folder is None:
            chosen["config"] = {"write_empty_chunks": True}
        made.append(create(store, own=True, **(chosen | arguments)))
    zarrs, ours = made
    values = elements(dtype, (9, 22))
    zarrs[:9], ours[:9] = values, values
    return zarrs, (direct if is_direct else shardcodec.attach)(ours)


def outcome(work: Callable[[], Any]) -> Any:
    """Return everything that a caller sees of a result, or the type and text of the error."""
    try:
        with quiet():
            found = work()
    except Exception as error:  # compared
        return type(error), str(error)
    array = np.asarray(found)
    text = bits(array) if array.dtype.kind not in "OT" else str(array.tolist())
    return type(found), array.dtype, array.shape, array.flags.c_contiguous, array.flags.f_contiguous, text


def axis_parts(extent: int) -> st.SearchStrategy[Any]:
    ends = st.none() | st.integers(-extent - 3, extent + 3)
    slices = st.builds(slice, ends, ends, st.sampled_from([None, None, 1, 2, 5, -1]))
    integers = st.integers(-extent - 1, extent)
    lists = st.lists(st.integers(0, extent - 1), min_size=1, max_size=3)
    rare = st.sampled_from([True, None, 1.5, "a", np.bool_(True), slice(1.5), slice(np.int64(1), 4)])
    return st.one_of(slices, slices, integers, integers.map(np.int64), lists, rare)


@st.composite
def selections(draw: st.DrawFn) -> Any:
    parts = [draw(axis_parts(extent)) for extent in SHAPE[: draw(st.integers(0, 2))]]
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), ...)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


dtypes, layouts_ = (
    st.sampled_from(["i2", ">u4", "f8", "c16", "?", "S3", "U2", "M8[s]", STRUCT, "string"]),
    st.sampled_from(sorted(LAYOUTS)),
)


@pytest.mark.slow
@given(st.data(), dtypes, layouts_, st.booleans(), st.sampled_from("CF"), st.booleans())
def test_reads_equal_zarrs(
    tmp_path_factory: Any, data: Any, dtype: Any, layout: str, in_memory: bool, order: str, is_direct: bool
) -> None:
    folder = None if in_memory else tmp_path_factory.mktemp("reads")
    with quiet():
        zarrs, ours = pair(folder, dtype, layout, is_direct=is_direct, config={"order": order})
    for _ in range(4):
        selection = data.draw(selections())
        assert outcome(lambda: ours[selection]) == outcome(lambda: zarrs[selection])  # noqa: B023
        basic = [outcome(lambda: array.get_basic_selection(selection)) for array in (ours, zarrs)]  # noqa: B023
        assert basic[0] == basic[1]


@pytest.mark.slow
@given(st.data(), dtypes, layouts_, *[st.booleans()] * 5)
def test_writes_equal_zarrs(
    tmp_path_factory: Any,
    data: Any,
    dtype: Any,
    layout: str,
    in_memory: bool,
    empty: bool,
    grouped: bool,
    is_direct: bool,
    is_basic: bool,
) -> None:
    folder = None if in_memory else tmp_path_factory.mktemp("writes")
    with quiet():
        zarrs, ours = pair(folder, dtype, layout, is_direct=is_direct, config={"write_empty_chunks": empty})
    for seed in range(2):
        selection = data.draw(selections())
        try:
            shape = np.empty(SHAPE)[selection].shape
        except (IndexError, TypeError):
            shape = ()
        kind = data.draw(st.sampled_from(["array", "scalar", "rank 0", "broadcast", "cast", "list", "other"]))
        value: Any = elements(dtype, shape, seed)
        if kind == "scalar":
            value = value.ravel()[0] if value.size else 7
        elif kind == "rank 0":
            value = elements(dtype, ())
        elif kind == "broadcast":
            value = elements(dtype, (1, *shape)[-1:])
        elif kind == "cast":
            value = elements("i4", shape, seed)
        elif kind == "list":
            value = value.tolist()
        elif kind == "other":
            value = "a"

        def assign(array: Any, selection: Any = selection, value: Any = value) -> int:
            getattr(array, "set_basic_selection" if is_basic else "__setitem__")(selection, value)
            return 0

        def grouped_assign(assign: Any = assign) -> int:
            with shardcodec.group_writes():
                return int(assign(ours))

        # zarr's own pipeline fails for some index arrays, the engine does not
        parts = selection if isinstance(selection, tuple) else (selection,)
        twin = on_pipeline(zarrs) if any(type(part) is list for part in parts) else zarrs
        expected = outcome(functools.partial(assign, twin))
        assert outcome(grouped_assign if grouped else lambda: assign(ours))[:1] == expected[:1]
        if expected[0] is not int:
            break  # zarr may have stored a part of the values
        assert outcome(lambda: ours[...]) == outcome(lambda: zarrs[...])
    else:
        assert keys_of(ours.store) == keys_of(zarrs.store)


# ---- zarr's way is not taken where it is not needed, and is taken where it is


@pytest.fixture
def no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every access through zarr fail."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("expected an access without zarr's event loop")

    for name in ("_get_selection", "_set_selection"):
        monkeypatch.setattr(zarr.AsyncArray, name, fail)


@pytest.mark.usefixtures("no_loop")
@pytest.mark.parametrize("kind", KINDS_OF_STORE)
@pytest.mark.parametrize("dtype", ["int32", "string", "bytes"])
def test_basic_selections_do_without_zarrs_way(serve: Serve, tmp_path: Path, dtype: str, kind: str) -> None:
    """Texts have native codecs, but the engine takes them in stages; only zarr's codecs need zarr's way."""
    array = serve(new_array(store_of(kind, tmp_path), (16, 24), dtype, **LAYOUTS["sharded"]))
    array[...] = values = elements(dtype, (16, 24))
    array[3:5, 7] = values[3:5, 7] = values[0, 0]
    array[-1, ..., np.int64(3)] = values[-1, 3] = values[8, 8]
    for selection in (..., (), 3, (3, 4), (-1, ...), np.s_[::3, 5], np.s_[2:9, -3:], (np.int64(3), 4)):
        assert same(array[selection], values[selection])
    assert array[2:2].shape == (0, 24) and same(np.asarray(array), values)


@pytest.mark.usefixtures("no_loop")
@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_lists_and_masks_do_without_zarrs_way(serve: Serve, tmp_path: Path, kind: str) -> None:
    array = serve(new_array(store_of(kind, tmp_path), SHAPE, **LAYOUTS["sharded"]))
    array[...] = values = np.arange(13 * 22, dtype="i4").reshape(SHAPE)
    rows, mask = np.array([7, 1, 9]), values % 7 == 3
    for array_part, own_part in (
        ((rows, slice(2, 9, 3)), np.s_[rows, 2:9:3]),
        (([0, 12], [5, 21]), np.ix_([0, 12], [5, 21])),
    ):
        assert same(array.oindex[array_part], values[own_part])
        assert same(array.get_orthogonal_selection(array_part), values[own_part])
        array.oindex[array_part] = values[own_part] = 5
    assert same(array[[12, 3]], values[[12, 3]])
    assert same(array[mask], values[mask]) and same(array.vindex[mask], values[mask])
    points = np.array([[9, 0], [3, 12]]), np.array([8, 0])
    assert same(array.vindex[points], values[points]) and same(array[points], values[points])
    array.vindex[points] = values[points] = np.array([[1, 2], [3, 4]], "i4")
    array.set_mask_selection(mask, -1)
    values[mask] = -1
    assert same(array[...], values)


@pytest.mark.usefixtures("no_loop")
def test_grouped_writes_of_inner_chunks_need_no_event_loop_after_the_first(
    serve: Serve, tmp_path: Path
) -> None:
    array = serve(create(tmp_path, own=True, shape=(8, 12)))
    with shardcodec.group_writes():
        for i in range(0, 8, 4):
            for j in range(0, 12, 3):
                array[i : i + 4, j : j + 3] = i + j
    assert array[4, 9] == 13
    assert array[0:4, 0:3].sum() == 0


@pytest.mark.usefixtures("no_loop")
def test_grouped_writes_across_shards_need_no_event_loop(serve: Serve, tmp_path: Path) -> None:
    """Only a write within one shard was buffered in the thread; any other one went through zarr's event loop."""
    array = serve(create(tmp_path, own=True))
    with shardcodec.group_writes():
        array[3:13, 1:20] = 7
        array[0:2, :] = 5
        assert (tmp_path / "c").exists() is False


def test_small_accesses_take_few_calls_of_python(serve: Serve, tmp_path: Path) -> None:
    """A function costs more than its instructions where other work has emptied the caches of the processor."""
    array = serve(create(tmp_path, own=True))
    array[...] = 4
    handle, value = shardcodec.open_array(tmp_path), np.full((4, 3), 5, "i4")
    assert len(python_calls(lambda: handle[4:8, 3:6])) <= 3
    assert len(python_calls(lambda: array[4:8, 3:6])) <= 6

    def assign() -> None:
        array[4:8, 3:6] = value

    with shardcodec.group_writes():
        assert len(python_calls(assign)) <= 50


def test_reads_in_a_block_see_buffered_writes(serve: Serve, tmp_path: Path) -> None:
    array = serve(create(tmp_path, own=True))
    array[...] = 1
    with shardcodec.group_writes():
        array[0, 0] = 5
        assert array[0, 0] == 5
        assert array[0:2, 0].tolist() == [5, 1]
        assert array[15, 23] == 1
        assert zarrs_view(array)[0, 0] == 1
    assert zarrs_view(array)[0, 0] == 5


def test_memory_budget_counts_for_grouped_writes(serve: Serve, tmp_path: Path) -> None:
    array = serve(create(tmp_path, own=True))
    with shardcodec.group_writes(max_bytes=0):
        array[0:4, 0:3] = 5
        assert (zarrs_view(array)[0:4, 0:3] == 5).all()


def test_other_buffers_are_left_to_zarr(serve: Serve) -> None:
    array = serve(create({}, own=True))
    array[...] = 3
    with zarr.config.set({"ndbuffer": "tests.none.NDBuffer"}), pytest.raises(Exception, match="NDBuffer"):
        array[0]
    assert array[0, 0] == 3


def test_strict_refuses_what_zarr_would_do() -> None:
    array = shardcodec.attach(create({}, own=True), strict=True)
    pipeline = pipeline_of(array)
    pipeline._kind = None
    pipeline.direct = MemoisedAccess(None, *pipeline._usual, pipeline._resolver)
    with pytest.raises(shardcodec.UnsupportedError):
        array[0]
    with pytest.raises(shardcodec.UnsupportedError):
        array[0] = 1


def test_damage_is_reported_as_by_the_pipeline(serve: Serve, tmp_path: Path) -> None:
    array = create(tmp_path, own=True)
    array[...] = 7
    (tmp_path / "c/0/0").write_bytes(b"x" * 40)
    attached, other = serve(array), on_pipeline(array)
    for selection in ((0, 0), ...):
        assert outcome(lambda: attached[selection]) == outcome(lambda: other[selection])  # noqa: B023
        assert outcome(lambda: attached[selection])[0] is shardcodec.ShardFormatError  # noqa: B023


# ---- changes of the array


def test_resize_and_append_are_seen(serve: Serve, tmp_path: Path) -> None:
    array = serve(create(tmp_path, own=True))
    array[...] = 4
    assert array[15, 23] == 4
    array.resize((20, 30))
    assert array[...].shape == (20, 30)
    assert array[19, 29] == -1
    assert array[-1].shape == (30,)
    array[19] = 6
    array.append(np.full((2, 30), 8, "i4"))
    assert array[20:].tolist() == [[8] * 30] * 2
    array.resize((2, 2))
    assert array[...].tolist() == [[4, 4], [4, 4]]
    with pytest.raises(IndexError):
        array[2, 0]
    changed = array.update_attributes({"unit": "K"})
    assert changed.attrs["unit"] == "K"
    assert changed[0, 0] == 4


def test_moved_store_is_read_where_it_is(serve: Serve, tmp_path: Path) -> None:
    store = zarr.storage.LocalStore(tmp_path / "old")
    array = serve(create(store, own=True))
    array[...] = 4
    assert array[0, 0] == 4
    sync(store.move(tmp_path / "new"))
    assert array[0, 0] == 4


@pytest.mark.parametrize("write", ["basic", "orthogonal", "coordinate", "handle"])
def test_write_after_an_interrupted_one_stays(serve: Serve, write: str) -> None:
    """A signal handler ended the wait for a request and freed the lock; the request itself ended after the next write."""
    base = SlowStore(MemoryStore())
    array = serve(new_array(base, (64,), "i4", shards=(64,), chunks=(8,)))
    array[...] = 0
    handle = shardcodec.open_array(base, "a", mode="r+")
    acts = {
        "basic": lambda: array.set_basic_selection(slice(0, 4), 1),
        "orthogonal": lambda: array.set_orthogonal_selection([0, 3], 1),
        "coordinate": lambda: array.set_coordinate_selection([0, 3], 1),
        "handle": lambda: handle.write(slice(0, 4), 1),
    }
    base.seconds = 0.6
    with raised_after(0.2), pytest.raises(KeyboardInterrupt):
        acts[write]()
    array[32:36] = 2
    time.sleep(0.8)
    assert array[32:36].tolist() == [2] * 4 and array[0] in (0, 1)


@pytest.mark.parametrize("layout", ["sharded", "no shards"])
def test_old_handle_keeps_what_others_appended_to_a_damaged_object(serve: Serve, layout: str) -> None:
    """A list that covered an object up to the old end replaced it, with the elements behind it, which were whole."""
    store = MemoryStore()
    array = serve(new_array(store, (10,), "i4", **LAYOUTS_1D[layout]))
    array[...] = 1
    new = zarr.open_array(store, path="a")
    new.resize((16,))
    new[10:] = 77
    stored = bytearray(object_of(store, "a/c/1") or b"")
    stored[-1] ^= 1
    put_object(store, "a/c/1", bytes(stored))
    with pytest.raises(Exception, match=r"checksum|crc32c|Stored and computed"):
        array.oindex[[8, 9]] = 5
    assert object_of(store, "a/c/1") == bytes(stored)


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_mock_of_a_store_is_left_to_zarr(serve: Serve, tmp_path: Path, kind: str) -> None:
    """The pipeline leaves it to zarr, because it may answer anything; programs count and replace its calls."""
    array = serve(new_array(store_of(kind, tmp_path), SHAPE, **LAYOUTS["sharded"]))
    array[...] = 1
    mock = AsyncMock(wraps=array.store, spec=type(array.store))
    pipeline = pipeline_of(array)
    assert pipeline.direct.of(array.async_array) is not None
    for base in (mock, OtherMemoryStore()):  # the second one is not the store of the pipeline
        other = copy.copy(array.async_array)
        object.__setattr__(other, "store_path", StorePath(base, "a"))
        assert other.codec_pipeline is pipeline and pipeline.direct.of(other) is None
        assert pipeline.direct.of(array.async_array) is not None
    made = type(pipeline)(array.metadata, mock)
    other = copy.copy(array.async_array)
    object.__setattr__(other, "store_path", StorePath(mock, "a"))
    assert made.direct.of(other) is None


def test_changed_shard_is_read_again(serve: Serve, tmp_path: Path) -> None:
    array = serve(create(tmp_path, own=True))
    for value in range(1, 4):
        zarrs_view(array)[0:4] = value
        assert array[0, 0] == value
        array[0, 0] = -value
        assert zarrs_view(array)[0, 0] == -value


def test_options_apply_at_once(serve: Serve, tmp_path: Path) -> None:
    array = serve(create(tmp_path, own=True))
    array[...] = 4

    def threads() -> int:
        access = pipeline_of(array).direct.of(array.async_array)
        return int(access._options.threads)

    before = threads()
    with shardcodec.options(threads=before + 1):
        assert threads() == before + 1
        with shardcodec.options(threads=before + 2):
            assert threads() == before + 2
    assert threads() == before
    with zarr.config.set({"shardcodec.threads": before + 3}):
        assert threads() == before + 3
        zarr.config.set({"shardcodec.threads": before + 4})  # zarr changes the same dictionary in place
        assert threads() == before + 4
    with shardcodec.enable(threads=before + 5):
        assert threads() == before + 5
    with zarr.config.set({"threading.max_workers": 1}):
        assert threads() == 1
    assert threads() == before
    with shardcodec.options(threads=1):
        assert array[0, 0] == 4
    with shardcodec.options(index_cache=0):
        assert array[0, 0] == 4
    with zarr.config.set({"shardcodec.threads": "many"}), pytest.raises(ValueError, match="threads"):
        array[0, 0]


def test_corrected_metadata_are_stored_before_the_first_write(serve: Serve, tmp_path: Path) -> None:
    """Since 3.4, zarr reads a chunk size of 0 as a valid one, and stores the correction before it stores chunks."""
    create(tmp_path, own=True, shape=(3,), shards=None, chunks=(3,))
    document = tmp_path / "zarr.json"
    document.write_text(re.sub(r'("chunk_shape": \[\s*)3', r"\g<1>0", document.read_text()))
    with quiet():
        array = serve(zarr.open_array(tmp_path, mode="r+"))
    if array.chunks == (0,):
        with pytest.raises(ZeroDivisionError):
            array[...] = 5
        pytest.skip("this zarr does not correct a chunk size of 0")
    array[...] = 5
    assert '"chunk_shape": [0' not in re.sub(r"\s+", " ", document.read_text()).replace("[ ", "[")
    assert (zarrs_view(array)[...] == 5).all()


def test_zarrs_event_loop_refuses_a_write(serve: Serve, tmp_path: Path) -> None:
    """The loop would wait for itself if a coroutine on it held the lock of a shard."""
    array = serve(create(tmp_path, own=True))

    async def assign() -> None:
        array[0, 0] = 1

    with pytest.raises(Exception, match="running loop"):
        sync(assign())
    asyncio.run(assign())
    assert array[0, 0] == 1


# ---- it is a zarr array


def test_attached_array_is_a_zarr_array(tmp_path: Path) -> None:
    plain = on_pipeline(create(tmp_path, own=True))
    array = shardcodec.attach(plain)
    assert isinstance(array, zarr.Array)
    assert repr(array) == repr(plain)
    assert array == plain
    assert plain == array
    assert array != shardcodec.attach(plain, threads=1)
    assert type(shardcodec.attach(array, threads=1)) is AttachedArray
    assert type(plain) is zarr.Array
    with pytest.raises(TypeError):
        hash(array)
    array[...] = random_array((16, 24), "int32")
    assert np.array_equal(array.oindex[[1, 3], :2], plain.oindex[[1, 3], :2])
    assert np.array_equal(array.vindex[[1, 3], [0, 2]], plain.vindex[[1, 3], [0, 2]])
    assert np.array_equal(array.blocks[0], plain.blocks[0])
    assert np.array_equal(array.get_basic_selection((3, 4)), plain.get_basic_selection((3, 4)))


def test_subclass_of_zarrs_array_keeps_its_class() -> None:
    class Mine(zarr.Array):  # type: ignore[type-arg]
        def __getitem__(self, selection: Any) -> Any:
            return "mine"

    assert shardcodec.attach(Mine(create({}, own=True).async_array))[0] == "mine"


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))])
def test_copies_are_attached(tmp_path: Path, clone: Callable[[Any], Any]) -> None:
    array = shardcodec.attach(create(tmp_path, own=True), order="colexicographic")
    array[...] = 4
    assert array[0, 0] == 4
    same = clone(array)
    assert type(same) is AttachedArray
    assert same == array
    assert same[0, 0] == 4
    assert pipeline_of(same)._options().order == "colexicographic"


def test_other_configuration_keeps_the_options(tmp_path: Path) -> None:
    array = shardcodec.attach(create(tmp_path, own=True), strict=True)
    array[...] = 4
    other = array.with_config({"write_empty_chunks": True, "order": "F"})
    assert pipeline_of(other) == pipeline_of(array)
    assert other[...].flags.f_contiguous
    assert array[...].flags.c_contiguous
    other[...] = -1
    assert (tmp_path / "c/1/1").exists()
    array[...] = -1
    assert not (tmp_path / "c/1/1").exists()


def test_another_process_unpickles_an_attached_array(tmp_path: Path) -> None:
    array = shardcodec.attach(create(tmp_path / "array", own=True))
    array[...] = 4
    (tmp_path / "pickled").write_bytes(pickle.dumps(array))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))[3, 3])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "4\n", done.stderr


@pytest.mark.slow
def test_dask_reads_and_writes_an_attached_array(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    array = shardcodec.attach(create(tmp_path / "a", own=True))
    array[...] = values = random_array((16, 24), "int32")
    lazy = da.from_array(array, chunks=(8, 12))
    assert np.array_equal(lazy[2:11, ::3].compute(), values[2:11, ::3])
    target = shardcodec.attach(create(tmp_path / "b", own=True))
    da.store(lazy, target, lock=False)
    assert np.array_equal(zarrs_view(target)[...], values)
    target[...] = 0
    da.to_zarr(lazy, target)
    assert np.array_equal(zarrs_view(target)[...], values)


def test_attached_asynchronous_array_reads_and_writes(tmp_path: Path) -> None:
    plain = create(tmp_path, own=True)
    array = shardcodec.attach(plain.async_array, order="colexicographic")
    values = random_array((16, 24), "int32")

    async def copy_through() -> Any:
        await array.setitem((slice(0, 16), slice(0, 24)), values)
        again = pickle.loads(pickle.dumps(array))
        assert pipeline_of(again) == pipeline_of(array)
        return await again.getitem((slice(2, 9), 3))

    assert np.array_equal(sync(copy_through()), values[2:9, 3])
    assert np.array_equal(plain[...], values)
    assert type(zarr.Array(array)) is zarr.Array
    assert type(shardcodec.attach(zarr.Array(array))) is AttachedArray
