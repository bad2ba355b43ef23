# ml_types.py - the data types of the package ml_dtypes
# SPDX-License-Identifier: MIT
"""The data types that numpy has only with the package `ml_dtypes`: bfloat16, float8 in all kinds, int4 and the like.

The package is optional: it is imported when a caller or a document names such a type. An element takes two bytes (bfloat16) or
one; of an element with fewer than 8 bits the upper bits of its byte are ignored.

Source: zarr-extensions, ``data-types``; TensorStore, driver ``zarr3``.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from .checks import unsupported

__all__ = [
    "COMPLEX_NBYTES",
    "ML_NBYTES",
    "element_kind",
    "ml_bits",
    "ml_dtype",
    "ml_dtypes",
    "ml_kind",
    "ml_name",
    "n_bits",
    "refuse_complex",
]

DType = np.dtype[Any]

# Bytes of an element.
ML_NBYTES: dict[str, int] = {
    "bfloat16": 2,
    **dict.fromkeys(("int2", "int4", "uint2", "uint4"), 1),
    **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3"), 1),
    **dict.fromkeys(("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}
# Complex numbers with names of zarr-extensions: of the floats above, and of those that numpy has.
COMPLEX_NBYTES: dict[str, int] = {
    **{f"complex_{name}": 2 * nbytes for name, nbytes in ML_NBYTES.items() if "float" in name},
    **{f"complex_float{bits}": bits // 4 for bits in (16, 32, 64)},
}


def ml_dtypes(name: str) -> Any:
    """Return the package; raise `UnsupportedError` that names it and the data type `name` if it is not installed."""
    try:
        import ml_dtypes as module
    except ImportError:
        reason = (
            f"data type {name} needs the package ml_dtypes, which is not installed: pip install ml-dtypes"
        )
        unsupported("", reason, data_type=name)
    return module


def ml_dtype(name: str) -> DType:
    """Return the dtype of a name in `ML_NBYTES`; `UnsupportedError`: the package is missing or too old."""
    module = ml_dtypes(name)
    scalar = getattr(module, name, None)
    if scalar is None:
        reason = f"data type {name} needs a newer version of ml_dtypes than {module.__version__}"
        unsupported("", reason, data_type=name)
    dtype: DType = np.dtype(scalar)
    return dtype


def ml_name(dtype: DType) -> str | None:
    """Return the name of a data type of `ML_NBYTES`; None for any other one."""
    is_ml = dtype.type.__module__ == "ml_dtypes" and dtype.name in ML_NBYTES
    return dtype.name if is_ml else None


def element_kind(dtype: DType) -> str:
    """Return numpy's letter for the kind of an element. `ml_dtypes` itself reports most of its types as void."""
    name = ml_name(dtype)
    if name is None:
        return dtype.kind
    return ml_kind(name)


def n_bits(dtype: DType) -> int:
    """Return the bits of an element that have a meaning."""
    name = ml_name(dtype)
    return 8 * dtype.itemsize if name is None else ml_bits(name)


def ml_kind(name: str) -> str:
    """Return numpy's letter for the kind of a data type of `ML_NBYTES`."""
    return "f" if "float" in name else "u" if name.startswith("u") else "i"


def ml_bits(name: str) -> int:
    """Return the bits that have a meaning, of a data type of `ML_NBYTES`."""
    return int(re.findall(r"\d+", name)[0])


def refuse_complex(name: str) -> NoReturn:
    """Raise `UnsupportedError` for a name in `COMPLEX_NBYTES`."""
    part = name.removeprefix("complex_")
    reason = f"shardcodec does not implement data type {name}, because numpy has no complex numbers of {part}"
    if part in ("float32", "float64"):
        reason = f"shardcodec implements data type {name} only by its other name, complex{2 * int(part[5:])}"
    unsupported("", reason, data_type=name)
