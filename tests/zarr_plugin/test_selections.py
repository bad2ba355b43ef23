# test_selections.py - selections that only zarr takes, and those that are left to its pipeline
# SPDX-License-Identifier: MIT
"""All others are in `test_way_contract`. Fallbacks must give equal results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ZARR_IS_31, bits, create, quiet, random_array, zarrs_view
from numpy.lib import NumpyVersion
from zarr.core.buffer import default_buffer_prototype

import shardcodec

STRUCT = np.dtype([("a", "<u2"), ("b", "<f8"), ("c", "S3")])
needs_structs = pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 cannot write structs in shards")


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
