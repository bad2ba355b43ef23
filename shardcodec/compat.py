# compat.py - the only module that uses zarr's internals and handles the differences between its versions
# SPDX-License-Identifier: MIT
"""A common interface to zarr 3.1.6 to 3.4; only this module imports from ``zarr.core``, which zarr declares private."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import numcodecs  # type: ignore[import-untyped]
import numpy as np
import zarr
import zarr.abc.codec as zarr_codecs
import zarr.codecs.sharding as zarr_sharding
import zarr.core.codec_pipeline as zarr_pipelines
from numcodecs.registry import codec_registry  # type: ignore[import-untyped]
from zarr.abc.codec import CodecPipeline
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.array import AsyncArray, parse_array_metadata
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype, cpu, default_buffer_prototype
from zarr.core.config import Config
from zarr.core.config import config as _zarrs_config
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.core.sync import _get_loop, _runner, sync
from zarr.core.sync import loop as _zarrs_loop
from zarr.dtype import parse_dtype
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path

from . import native
from .arguments import LONG_DOCUMENT, has_long_list, shortened
from .errors import ShardError, SpecError

__all__ = [
    "IN_MEMORY",
    "READS_SHARDS_OF_STRUCTS",
    "SETTINGS_OF_ARRAYS",
    "ArrayConfig",
    "ArrayMetadata",
    "ArraySpec",
    "ArrayV3Metadata",
    "Caller",
    "CodecPipeline",
    "FsspecStore",
    "LocalStore",
    "MemoryStore",
    "ObjectStore",
    "OffsetByteRequest",
    "RangeByteRequest",
    "Store",
    "StorePath",
    "SuffixByteRequest",
    "WrapperStore",
    "ZipStore",
    "array_spec",
    "as_numpy",
    "batched_pipeline",
    "buffer_from",
    "chunk_shape_of",
    "coalescing",
    "codecs_of",
    "config",
    "data_type_of",
    "default_buffer_prototype",
    "default_spec",
    "dtype_of",
    "evolve",
    "fills_missing_chunks",
    "foreign_codec",
    "get_result",
    "has_loop_to_itself",
    "has_task_per_call",
    "has_usual_buffers",
    "inner_codecs_of",
    "is_buffer",
    "is_regular",
    "is_repaired",
    "is_sharding",
    "is_synchronous",
    "is_transpose",
    "is_zarrs_loop",
    "max_workers",
    "memory_identity",
    "metadata_from",
    "naming_document",
    "on_zarrs_loop",
    "open_with_any_grid",
    "options_of_zarr",
    "own_pipeline",
    "own_pipeline_class",
    "parse_dtype",
    "pipeline_of",
    "pipelines_of_arrays",
    "quiet",
    "refusal_of",
    "replaced_part",
    "spec_with",
    "store_by_fsspec",
    "stored_document",
    "submit",
    "swaps_for_filters",
    "unwrap",
    "watch_deletions",
    "with_empty_chunks",
    "with_pipeline",
    "wrapped",
    "write_order",
    "zip_again",
]


T = TypeVar("T")
ArrayMetadata = ArrayV2Metadata | ArrayV3Metadata
config: Config = _zarrs_config

# The values of zarr's configuration on which an open array depends, in the dictionary `config.config`: `config.get` is slow.
SETTINGS_OF_ARRAYS = ("buffer", "ndbuffer", "threading", "shardcodec")

# Buffers in the memory of this process, which the engine needs. zarr looks up its default in its configuration at each call.
IN_MEMORY: BufferPrototype = cpu.buffer_prototype
READS_SHARDS_OF_STRUCTS: bool = not zarr.__version__.startswith("3.1.")  # which hashes the fill value


def own_pipeline_class() -> type[CodecPipeline]:
    """Return zarr's best pipeline: the fused one where it exists (3.3 and later)."""
    return getattr(zarr_pipelines, "FusedCodecPipeline", None) or zarr_pipelines.BatchedCodecPipeline


def codecs_of(metadata: ArrayMetadata) -> tuple[Any, ...]:
    """Return the codec objects of an array; zarr makes one codec of the filters and the compressor of a v2 array."""
    if isinstance(metadata, ArrayV2Metadata):
        return (V2Codec(filters=metadata.filters, compressor=metadata.compressor),)
    return metadata.codecs


def data_type_of(dtype: np.dtype[Any], fill: Any) -> tuple[Any, Any]:
    """Return the ``data_type`` and ``fill_value`` of a ``zarr.json``, in the spelling that this version of zarr reads.

    Versions differ for structs: the name is ``structured`` in 3.1 and ``struct`` in 3.3 and later.
    """
    with quiet():  # zarr warns about data types outside of the specification
        kind = parse_dtype(dtype, zarr_format=3)
        return kind.to_json(zarr_format=3), kind.to_json_scalar(fill, zarr_format=3)


def refusal_of(document: Mapping[str, Any], *, is_group: bool = False) -> str | None:
    """Return why this version of zarr cannot open an array, or a group, with such metadata; None if it can, or has too many codecs. Nothing is read."""
    try:
        if len(str(document)) > LONG_DOCUMENT and has_long_list(document):
            return None
        with quiet(), zarr.config.set({"array.rectilinear_chunks": True}):
            place, data = StorePath(MemoryStore()), copy.deepcopy(dict(document))
            (zarr.AsyncGroup if is_group else AsyncArray).from_dict(place, data)
    except Exception as error:  # noqa: BLE001 - codecs of third parties may raise any exception
        return f"{type(error).__name__}: {shortened(str(error))}"
    return None


def inner_codecs_of(document: Mapping[str, Any]) -> tuple[Any, tuple[int, ...], Any, Any] | None:
    """Return codecs, shape, data type and fill value of the innermost chunks of a ``zarr.json`` or a ``.zarray``.

    None if this version of zarr does not have the data type or a codec.
    """
    try:
        with quiet():
            metadata = metadata_from(copy.deepcopy(dict(document)))
            codecs, shape, dtype = codecs_of(metadata), chunk_shape_of(metadata), _zdtype_of(metadata)
            while any(map(is_sharding, codecs)):
                sharding: Any = next(filter(is_sharding, codecs))
                codecs, shape = tuple(sharding.codecs), tuple(sharding.chunk_shape)
    except Exception:  # noqa: BLE001 - codecs of third parties may raise any exception
        return None
    fill = dtype.default_scalar() if metadata.fill_value is None else metadata.fill_value
    return None if shape is None else (codecs, shape, dtype, fill)


def dtype_of(metadata: ArrayMetadata) -> np.dtype[Any]:
    """Return the data type of an array in numpy, in the byte order of its metadata."""
    dtype: np.dtype[Any] = _zdtype_of(metadata).to_native_dtype()
    return dtype


def _zdtype_of(metadata: ArrayMetadata) -> Any:
    return metadata.dtype if isinstance(metadata, ArrayV2Metadata) else metadata.data_type


def own_pipeline(metadata: ArrayMetadata) -> CodecPipeline:
    """Return the pipeline that zarr itself would use for an array.

    Only its method to evolve it as a whole makes the fused pipeline synchronous. For the other one codecs are evolved here, one
    by one: before 3.2, zarr does not evolve the pipeline, and that method fails for a single sharding codec.
    """
    config: Any = {"order": metadata.order} if isinstance(metadata, ArrayV2Metadata) else {}
    spec = ArraySpec(
        shape=chunk_shape_of(metadata) or (1,) * len(metadata.shape),  # rectilinear: as zarr does
        dtype=_zdtype_of(metadata),
        fill_value=metadata.fill_value,
        config=ArrayConfig.from_dict(config),
        prototype=default_buffer_prototype(),
    )
    pipeline = own_pipeline_class()
    if pipeline is zarr_pipelines.BatchedCodecPipeline:
        return pipeline.from_codecs([codec for codec, _ in evolve(codecs_of(metadata), spec)])
    made = pipeline.from_codecs(codecs_of(metadata))  # zarr's warnings about the codecs, once
    with quiet():
        return made.evolve_from_array_spec(array_spec=spec)


def batched_pipeline(codecs: Iterable[Any]) -> CodecPipeline:
    """Return a pipeline that runs codecs as coroutines, many chunks at a time."""
    with quiet():
        return zarr_pipelines.BatchedCodecPipeline.from_codecs(codecs)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings that zarr gave when the array was opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def open_with_any_grid(base: Any) -> Any:
    """Open an array for reading. zarr 3.2 and newer read a rectilinear grid if they are asked to."""
    with quiet(), zarr.config.set({"array.rectilinear_chunks": True}):
        return zarr.open_array(base, mode="r")


def array_spec(shape: tuple[int, ...], dtype: Any, fill_value: Any, *, write_empty: bool) -> ArraySpec:
    """Return the spec of a chunk in this process's memory, C order."""
    config = ArrayConfig.from_dict({"order": "C", "write_empty_chunks": write_empty})
    return ArraySpec(shape, dtype, fill_value, config, default_buffer_prototype())


@functools.cache
def swaps_for_filters() -> bool:
    """Return True if codecs before a big-endian `bytes` get elements in native order, which is so from 3.2 on."""
    prototype = default_buffer_prototype()
    spec = array_spec((1,), parse_dtype(np.dtype("int16"), zarr_format=3), np.int16(0), write_empty=False)
    codec, _ = next(evolve([BytesCodec(endian="big")], spec))
    (decoded,) = sync(codec.decode([(prototype.buffer.from_bytes(b"\0\1"), spec)]))
    return bool(decoded.as_numpy_array().view(np.int16)[0] == 1)


def evolve(codecs: Iterable[Any], spec: ArraySpec) -> Iterator[tuple[Any, ArraySpec]]:
    """Evolve each codec for its input array; yield it with the spec of that array."""
    for codec in codecs:
        fitted = codec.evolve_from_array_spec(array_spec=spec)
        yield fitted, spec
        spec = fitted.resolve_metadata(spec)


def is_synchronous(codec: Any) -> bool:
    """Return True if a codec can be called without an event loop; from 3.3 on, zarr has a rule for that."""
    if (rule := getattr(zarr_codecs, "_codec_supports_sync", None)) is not None:
        return bool(rule(codec))
    return not is_sharding(codec) and all(hasattr(codec, name) for name in ("_decode_sync", "_encode_sync"))


def is_sharding(codec: Any) -> bool:
    """Return True if a codec is the sharding codec, zarr's or ours."""
    return isinstance(codec, ShardingCodec) and not _is_foreign(codec)


def is_transpose(codec: Any) -> bool:
    """Return True if a codec is zarr's transpose."""
    return type(codec) is TransposeCodec


def _is_foreign(codec: Any) -> bool:
    module = type(codec).__module__
    if isinstance(codec, numcodecs.abc.Codec):
        return not module.startswith("numcodecs.")
    return module != "shardcodec" and not module.startswith("zarr.codecs")


def _within(codec: Any) -> Iterator[Any]:
    """Yield the codecs within a codec: those of a shard and its index; the filters and the compressor of a v2 array."""
    for name in ("codecs", "index_codecs", "filters"):
        yield from getattr(codec, name, None) or ()
    if isinstance(codec, V2Codec) and codec.compressor is not None:
        yield codec.compressor


def foreign_codec(codecs: Iterable[Any]) -> str | None:
    """Return the name of a codec class of a third party, or None; such a class may redefine a known codec name."""
    for codec in codecs:
        if _is_foreign(codec):
            return f"{type(codec).__module__}.{type(codec).__qualname__}"
        if found := foreign_codec(_within(codec)):
            return found
    return None


# The members of zarr's and numcodecs' codec classes, and of zarr's index reader, at the import of this module.
_MADE_OF = {
    cls: {name: value for name, value in vars(cls).items() if callable(value) or hasattr(value, "__get__")}
    for cls in (
        *filter(inspect.isclass, vars(zarr.codecs).values()),
        *codec_registry.values(),
        zarr_sharding._ShardIndex,
        V2Codec,
    )
}


def replaced_part(codecs: Iterable[Any]) -> str | None:
    """Return the name of a replaced (monkey-patched) member of a codec class of zarr or numcodecs, or None."""
    for codec in codecs:
        classes = (*type(codec).__mro__, *([zarr_sharding._ShardIndex] if is_sharding(codec) else ()))
        for cls in classes:
            for name, value in _MADE_OF.get(cls, {}).items():
                if vars(cls).get(name) is not value:
                    return f"{cls.__module__}.{cls.__qualname__}.{name}"
        if found := replaced_part(_within(codec)):
            return found
    return None


def coalescing(spec: Any) -> tuple[int, int]:
    """Return zarr's options (3.3 and later) for merging ranges: largest gap and largest merged range, in bytes."""
    gap = getattr(spec.config, "sharding_coalesce_max_gap_bytes", 1 << 20)
    return gap, getattr(spec.config, "sharding_coalesce_max_bytes", 16 << 20)


def default_spec() -> Any:
    """Return a substitute for the spec of a chunk that has only zarr's configuration."""
    return spec_with(ArrayConfig.from_dict({}))


def spec_with(config: Any) -> Any:
    """Return a substitute for the spec of a chunk that has only the configuration of its array."""
    return SimpleNamespace(config=config)


def fills_missing_chunks(config: Any) -> bool:
    """Return True if a missing chunk is read as the fill value; from 3.2 on, the configuration can make it an error."""
    return getattr(config, "read_missing_chunks", True) is not False


def is_repaired(metadata: Any) -> bool:
    """Return True if zarr (3.4 and later) must store the metadata before chunks, because it has corrected them on reading."""
    return getattr(metadata, "_stored_document", None) is not None


def has_usual_buffers() -> bool:
    """Return True if zarr's default buffers are in the memory of this process."""
    chosen = config.config  # called often, and config.get() is slow
    return _are_in_memory(chosen.get("buffer"), chosen.get("ndbuffer"))


@functools.lru_cache(16)
def _are_in_memory(buffer: str, ndbuffer: str) -> bool:
    """Return True for the classes of `IN_MEMORY`; the arguments are the names of the classes in use."""
    return default_buffer_prototype() == IN_MEMORY


def get_result(missing: bool) -> Any:
    """Return the result of `CodecPipeline.read` for one chunk from 3.2 on; earlier versions ignore it."""
    return {"status": "missing" if missing else "present"}


def as_numpy(buffer: Any) -> np.ndarray[Any, Any] | None:
    """Return the numpy array of an NDBuffer, or None if it has none (a GPU buffer)."""
    array = buffer.as_ndarray_like()
    return array if isinstance(array, np.ndarray) else None


def buffer_from(prototype: Any, data: Any) -> Any:
    """Wrap bytes as a zarr Buffer.

    Bytes that no element of 8 bytes could be read from in place are copied: codecs such as ``cast_value`` panic on them.
    """
    array = np.frombuffer(data, dtype=np.uint8)
    if array.__array_interface__["data"][0] % 8:
        array = array.copy()
    return prototype.buffer.from_array_like(array)


def is_buffer(value: Any) -> bool:
    """Return True if a value is a zarr Buffer, which stores accept and return."""
    return isinstance(value, Buffer)


def memory_identity(store: MemoryStore) -> int:
    """Return the identity of a memory store; a read-only view has the identity of its store."""
    return id(getattr(store, "_store_dict", store))


def unwrap(store: Any) -> Any:
    """Return the store within wrappers (logging, latency, ...)."""
    return unwrap(store._store) if isinstance(store, WrapperStore) else store


def wrapped(store: Any, inner: Any) -> Any:
    """Return a store with the wrappers of another one, but with a new store within them."""
    if not isinstance(store, WrapperStore):
        return inner
    new = copy.copy(store)
    new._store = wrapped(store._store, inner)
    return new


def zip_again(store: ZipStore) -> ZipStore:
    """Return a zip store that has opened the file of another one again; the lock of that one may be held for ever."""
    new = object.__new__(type(store))
    new.__dict__ = {**vars(store), "_lock": threading.RLock(), "_is_open": False}
    new._sync_open()
    return new


class Caller:
    """The call in the main thread that waits in zarr's `sync` for the running task; a signal may interrupt it.

    zarr passes a call to its event loop and waits. Ctrl-C (or any signal whose handler raises) ends the wait, but zarr does
    not cancel the task, so it runs on without a caller.
    """

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame  # None: the caller had already gone

    @classmethod
    def of_this_task(cls) -> Caller | None:
        """Return the caller; None if it cannot be interrupted."""
        task = asyncio.current_task()
        runner: Any = None if task is None else task.get_coro()
        if getattr(runner, "cr_code", None) is not _runner.__code__ or runner.cr_frame is None:
            return None
        waited_for = runner.cr_frame.f_locals.get("coro")
        for thread, innermost in native.load().current_frames().items():
            for frame in _outwards(innermost):
                if frame.f_code is sync.__code__ and frame.f_locals.get("coro") is waited_for:
                    return cls(frame) if thread == threading.main_thread().ident else None
        return cls(None)

    def is_waiting(self) -> bool:
        """Return True if the caller still waits."""
        innermost = native.load().current_frames().get(threading.main_thread().ident)
        return self._frame is not None and self._frame in _outwards(innermost)


# After other tasks were seen on the event loop, it counts as shared for this many seconds.
CROWDED_SECONDS = 1.0

_crowded_until = 0.0


def has_loop_to_itself() -> bool:
    """Return True if the running task is the only one on zarr's event loop, and was for `CROWDED_SECONDS`.

    Then a thread waits in zarr's `sync` only for this task. Returns False for other event loops, which may have work that
    is not a task.
    """
    global _crowded_until
    task = asyncio.current_task()
    if len(asyncio.all_tasks()) > 1:
        _crowded_until = time.monotonic() + CROWDED_SECONDS
        return False
    runner: Any = None if task is None else task.get_coro()
    return getattr(runner, "cr_code", None) is _runner.__code__ and time.monotonic() >= _crowded_until


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those of its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def on_zarrs_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on zarr's event loop and wait for it. The thread of that loop must not call this."""
    return sync(work)


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on zarr's event loop."""
    return asyncio.run_coroutine_threadsafe(work, _get_loop())


def is_zarrs_loop() -> bool:
    """Return True if this thread runs zarr's event loop, so that it must not wait for that loop."""
    # this one raises nothing: an exception costs more than the rest of a small write's checks
    running = asyncio._get_running_loop()
    return running is not None and running is _zarrs_loop[0]


def has_task_per_call(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if every call is a separate task of the event loop, so that each call is the first of its task."""
    return loop is _zarrs_loop[0]  # from `sync`


def max_workers() -> int | None:
    """Return zarr's ``threading.max_workers``, or None if it is not set."""
    value = config.config.get("threading", {}).get("max_workers")  # called often, and config.get() is slow
    return int(value) if value else None


def options_of_zarr() -> dict[str, Any]:
    """Return the options in the section ``shardcodec`` of zarr's configuration, including its environment variables."""
    return {n: value for n, value in (config.config.get("shardcodec") or {}).items() if n != "enabled"}


def _async_array(array: Any) -> Any:
    return array if isinstance(array, AsyncArray) else array.async_array


def pipeline_of(array: Any) -> CodecPipeline:
    """Return the pipeline that an array uses."""
    return _async_array(array).codec_pipeline  # type: ignore[no-any-return]


def pipelines_of_arrays() -> Iterator[tuple[str, CodecPipeline]]:
    """Yield the name and the pipeline of each array of this process; several handles on one array come several times."""
    # Not `isinstance`: it asks each object for its `__class__`, and a weak proxy of a dead object raises then.
    for array in (thing for thing in gc.get_objects() if issubclass(type(thing), AsyncArray)):
        with contextlib.suppress(AttributeError):  # it is being made, or its constructor has failed
            yield str(array.store_path), pipeline_of(array)


def with_pipeline(array: Any, pipeline: CodecPipeline) -> Any:
    """Return a new handle on the same array that uses another pipeline."""
    new = copy.copy(_async_array(array))
    object.__setattr__(new, "codec_pipeline", pipeline)  # a frozen dataclass
    return new if isinstance(array, AsyncArray) else type(array)(new)


def with_empty_chunks(array: Any) -> Any:
    """Return a new handle on the same array that also stores chunks with nothing but the fill value."""
    old = _async_array(array)
    new = AsyncArray(metadata=old.metadata, store_path=old.store_path, config={"write_empty_chunks": True})
    return new if isinstance(array, AsyncArray) else type(array)(new)


def write_order(codec: Any) -> dict[str, Any]:
    """Return the order of a sharding codec of zarr 3.3 or later as an option; zarr writes "unordered" lexicographically."""
    order = getattr(codec, "subchunk_write_order", "morton")
    return {} if order == "morton" else {"order": "lexicographic" if order == "unordered" else order}


def store_by_fsspec(url: str, options: dict[str, Any]) -> Any:
    """Open the store of a URL with zarr's own parser, which uses fsspec."""
    return sync(make_store_path(url, storage_options=options or None)).store


def chunk_shape_of(metadata: ArrayMetadata) -> tuple[int, ...] | None:
    """Return the shape of a chunk (a shard, if the array is sharded); None if chunks have several shapes."""
    if isinstance(metadata, ArrayV2Metadata):
        return metadata.chunks
    return getattr(metadata.chunk_grid, "chunk_shape", None)


def is_regular(metadata: ArrayMetadata) -> bool:
    """Return True if all chunks of an array have the same shape."""
    return chunk_shape_of(metadata) is not None


def stored_document(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the document that zarr stores for an array, without its attributes."""
    name = ".zarray" if isinstance(metadata, ArrayV2Metadata) else "zarr.json"
    document: dict[str, Any] = json.loads(metadata.to_buffer_dict(IN_MEMORY)[name].to_bytes())
    return document


@contextlib.contextmanager
def naming_document(name: str) -> Iterator[None]:
    """Raise `SpecError` with a name for the errors of zarr's parser, which quote whole documents and do not say which."""
    try:
        yield
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, OSError | ShardError):
            raise
        why = f"{type(error).__name__}: {shortened(str(error))}"
        raise SpecError(f"{name}: zarr cannot read the metadata: {why}", path="") from None


def metadata_from(document: Mapping[str, Any]) -> ArrayMetadata:
    """Return the metadata of an array from its document, as zarr reads it."""
    with quiet():
        metadata: ArrayMetadata = parse_array_metadata({"attributes": {}, **document})
    return metadata


# The methods of a zarr store that delete objects; each takes a key or a prefix, or nothing for all objects.
_DELETIONS = ("delete", "delete_dir", "clear")


def watch_deletions(
    around: Callable[[Any, str], AbstractAsyncContextManager[None]],
    around_set: Callable[[Any, str], AbstractAsyncContextManager[None]],
) -> Callable[[], None]:
    """Run every deletion through a zarr store in a context manager, until the returned function is called.

    zarr tells a pipeline of no deletion, so methods of all classes of stores are replaced. `around` takes the store and the key
    or prefix without slashes at its ends, and `around_set` the key of a document of an array that is stored.
    """
    replaced = []
    for cls in _with_subclasses(Store):
        for name in (*_DELETIONS, "set"):
            original = vars(cls).get(name)
            if inspect.isfunction(original) and not getattr(original, "__isabstractmethod__", False):
                watched = _watched_set(original, around_set) if name == "set" else _watched(original, around)
                with contextlib.suppress(TypeError):  # a class of an extension module
                    setattr(cls, name, watched)
                    replaced.append((cls, name, original, watched))

    def stop() -> None:
        for cls, name, original, watched in replaced:
            if vars(cls).get(name) is watched:  # else another program has replaced it since
                setattr(cls, name, original)

    return stop


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    for subclass in list[type](cls.__subclasses__()):
        yield from _with_subclasses(subclass)


def _watched(original: Any, around: Callable[[Any, str], AbstractAsyncContextManager[None]]) -> Any:
    @functools.wraps(original)
    async def deletion(store: Any, *args: Any, **kwargs: Any) -> Any:
        prefix = next(iter((*args, *kwargs.values())), "")
        async with around(store, str(prefix).strip("/")):
            return await original(store, *args, **kwargs)

    return deletion


def _watched_set(original: Any, around: Callable[[Any, str], AbstractAsyncContextManager[None]]) -> Any:
    @functools.wraps(original)
    async def put(store: Any, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not key.endswith(("zarr.json", ".zarray")) or not _is_document_of_array(value):
            return await original(store, key, value, *args, **kwargs)
        async with around(store, key):
            return await original(store, key, value, *args, **kwargs)

    return put


def _is_document_of_array(value: Any) -> bool:
    try:
        return "shape" in json.loads(value.to_bytes())
    except (AttributeError, TypeError, ValueError):
        return False


def _renew_locks_of_properties() -> None:
    """Make the locks of all `functools.cached_property` of this package and of zarr again in a forked child.

    Python 3.11 holds a lock of the class while it computes such a property of any object, so a child that was forked at this
    moment would wait for ever.
    """
    classes = {
        found
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("shardcodec", "zarr")
        for found in list(vars(module).values())
        if isinstance(found, type)
    }
    for of in classes:
        for found in vars(of).values():
            if isinstance(found, functools.cached_property):
                vars(found)["lock"] = threading.RLock()


if sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks_of_properties)
