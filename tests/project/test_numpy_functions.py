# test_numpy_functions.py - the numbers by which the binding calls functions of NumPy's C API
# SPDX-License-Identifier: MIT
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = "numpy/__multiarray_api.h"
FUNCTIONS = {
    "NUMPY_FEATURE_VERSION": "PyArray_GetNDArrayCFeatureVersion",
    "NUMPY_LOAD": "NpyString_load",
    "NUMPY_PACK": "NpyString_pack",
    "NUMPY_ACQUIRE": "NpyString_acquire_allocator",
    "NUMPY_RELEASE": "NpyString_release_allocator",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_number_is_that_of_the_installed_header(name: str) -> None:
    """The binding is built without the header; a wrong number is a crash."""
    binding = (ROOT / "shardcodec/binding/text.pxi").read_text()
    header = (Path(np.get_include()) / HEADER).read_text()
    used = re.search(rf"^    {name} = (\d+)$", binding, re.MULTILINE)
    defined = re.search(
        rf"^#define {FUNCTIONS[name]} \\\n.*\\\n\s*PyArray_API\[(\d+)\]", header, re.MULTILINE
    )
    assert used is not None and defined is not None
    assert used[1] == defined[1]
