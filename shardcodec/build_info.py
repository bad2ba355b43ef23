# build_info.py - facts about the build and the machine
# SPDX-License-Identifier: MIT
"""Facts for bug reports."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import native
from .options import available_cpus

__all__ = ["build_info"]

LIBRARIES = ("zstd", "lz4", "zlib-ng", "blosc2")


def build_info() -> dict[str, Any]:
    """Return facts about the build and the machine, for bug reports.

    Returns
    -------
    dict
        ``version``: of shardcodec. ``build``: how the extension module was compiled: ``libraries`` ("bundled" or "system"),
        ``abi3``, ``optimised``, ``assertions``, ``sanitizer``, ``compiler``. ``gil``: False if this process runs without the
        GIL. ``libraries``: versions of the linked codec libraries. ``cpu``: detected and used
        features of the processor, and the value of ``SHARDCODEC_CPU``. ``crc32c``: the used variant and the usable ones.
        ``cpus``: number of processors that this process may use. ``python``, ``platform``, ``zarr``, ``numpy``: versions.

    Raises
    ------
    UnsupportedError
        The extension module cannot be loaded.
    """
    engine = native.load()
    return {
        "version": _version("shardcodec"),
        "build": engine.build_facts(),
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "libraries": {name: engine.library_version(name) for name in LIBRARIES},
        "cpu": engine.cpu_features(),
        "crc32c": {"used": engine.crc32c_chosen(), "usable": engine.crc32c_implementations()},
        "cpus": available_cpus(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "zarr": _version("zarr"),
        "numpy": _version("numpy"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
