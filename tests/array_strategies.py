# array_strategies.py - zarr arrays of several shards with ragged edges, drawn and stored for property tests
"""Shared by the property tests of the zarr plug-in: drawing an array, storing the twin's shards, and checking
shards.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from packaging.version import Version
from reference import ShardMeta, decode_shard, encode_shard
from shard_strategies import Array, Layout, assert_same_bits, layouts
from spec_json import metadata, named


def load_engine() -> Any:
    """Return the package, or None if the extension is not built. Any other defect raises."""
    found = importlib.util.find_spec("shardcodec") and importlib.util.find_spec("shardcodec._native")
    is_built = found is not None and not str(found.origin).endswith(".py")
    return importlib.import_module("shardcodec") if is_built else None


shardcodec = load_engine()
needs_engine = pytest.mark.skipif(shardcodec is None, reason="shardcodec is not built")
no_deadline = settings(deadline=None, suppress_health_check=list(HealthCheck))
ORDERS = ("morton", "lexicographic", "colexicographic")


seeds = st.integers(0, 2**32 - 1)
out_layouts = st.sampled_from(["C", "F", "gaps"])
ZARR = "zarr.core.codec_pipeline.BatchedCodecPipeline"
OURS = "shardcodec.ShardCodecPipeline"


class SomeArray(NamedTuple):
    layout: Layout
    shape: tuple[int, ...]

    def document(self) -> bytes:
        document = metadata(
            named("sharding_indexed", **self.layout.meta.configuration),
            shape=list(self.shape),
            data_type=self.layout.data_type,
            chunk_grid=named("regular", chunk_shape=list(self.layout.meta.shape)),
            fill_value=self.layout.fill_json,
        )
        return json.dumps(document).encode()

    def shards(self) -> Iterator[tuple[str, tuple[slice, ...]]]:
        """Yield the key of each shard and the part of the array it holds."""
        extents = self.layout.meta.shape
        counts = [range(-(-n // extent)) for n, extent in zip(self.shape, extents, strict=True)]
        for coords in itertools.product(*counts):
            key = "/".join(["c", *map(str, coords)])
            yield key, tuple(slice(c * n, c * n + n) for c, n in zip(coords, extents, strict=True))


@st.composite
def some_arrays(draw: st.DrawFn) -> SomeArray:
    layout = draw(layouts())
    extents = layout.meta.shape
    assume(math.prod(extents) <= 600)
    shape = tuple(draw(st.integers(1, 2 * extent + 1)) for extent in extents)
    assume(math.prod(shape) <= 4000)
    return SomeArray(layout, shape)


# Every test runs with zarr's own pipeline in a fifth of the cases: what fails there too is a fault of the test.
pipelines = st.sampled_from([OURS] * 4 + [ZARR])


@contextmanager
def selected(pipeline: str) -> Iterator[None]:
    """Make zarr open arrays with this pipeline. Shardcodec's is strict, so that the engine handles every selection
    itself.
    """
    import zarr

    with zarr.config.set({"codec_pipeline.path": pipeline, "shardcodec.strict": True}):
        yield


@contextmanager
def stored(array: SomeArray, kind: str) -> Iterator[tuple[Any, Any]]:
    """Create an empty array in a store. Yield the store, and a function that returns an object as bytes or None.

    kind: memory, local, or cached: local, with a cache into which few inner chunks fit.
    """
    import zarr

    if kind == "memory":
        buffer = zarr.buffer.cpu.Buffer if hasattr(zarr, "buffer") else zarr.core.buffer.cpu.Buffer
        objects: dict[str, Any] = {"zarr.json": buffer.from_bytes(array.document())}
        yield zarr.storage.MemoryStore(objects), lambda k: objects[k].to_bytes() if k in objects else None
        return
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kind == "cached" and shardcodec is not None:
            from helpers import caches_of

            stack.enter_context(caches_of(0))
            stack.enter_context(shardcodec.options(cache=3000))
        (root / "zarr.json").write_bytes(array.document())
        yield (
            zarr.storage.LocalStore(root),
            lambda k: (root / k).read_bytes() if (root / k).exists() else None,
        )


def opened(store: Any, order: str = "C") -> Any:
    import zarr

    config: Any = {"order": order}
    return zarr.open_array(store, mode="r+", config=config)


def padded(part: Array, meta: ShardMeta) -> Array:
    """Extend the part of a shard that is in the array to the whole shard."""
    whole = np.full(meta.shape, meta.fill_value, dtype=meta.dtype)
    whole[tuple(slice(n) for n in part.shape)] = part
    return whole


def is_exact(pipeline: str) -> bool:
    """Return True if the pipeline keeps all bits, but for the payload of a NaN in empty chunks, which ours and zarr ignore.

    zarr ignores the sign of a zero there, too.
    """
    return pipeline == OURS


def assume_writable(pipeline: str, array: SomeArray) -> None:
    """Discard arrays of rank 0 with a zarr before 3.4, which cannot write them in shards (SC-39)."""
    import zarr

    assume(array.shape != () or pipeline == OURS or Version(zarr.__version__) >= Version("3.4"))


def assert_same(pipeline: str, actual: Any, expected: Array) -> None:
    if is_exact(pipeline):
        if expected.dtype.kind == "f":
            is_nan = np.isnan(expected)
            assert (np.isnan(actual) == is_nan).all()
            actual, expected = np.where(is_nan, 0, actual), np.where(is_nan, 0, expected)
        assert_same_bits(actual, expected)
    else:
        np.testing.assert_array_equal(actual, expected)


def put_shards(store: Any, kind: str, array: SomeArray, content: Array, order: str) -> None:
    meta = array.layout.meta
    for key, box in array.shards():
        blob = encode_shard(padded(content[box], meta), meta, order)
        if blob is None:
            continue
        if kind == "memory":
            store._store_dict[key] = type(store._store_dict["zarr.json"]).from_bytes(blob)
        else:
            path = Path(store.root, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(blob)


def check_shards(pipeline: str, get: Any, array: SomeArray, content: Array) -> None:
    meta = array.layout.meta
    for key, box in array.shards():
        part = content[box]
        decoded = decode_shard(get(key), meta)
        assert_same(pipeline, decoded[tuple(slice(n) for n in part.shape)], part)
