# build_info.py - facts about the build and the machine
# SPDX-License-Identifier: MIT
"""Facts for bug reports."""

from __future__ import annotations

import difflib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import native
from .options import NAMES, SWITCHES, available_cpus, variable_of

__all__ = ["build_info", "unknown_variables"]

LIBRARIES = ("zstd", "lz4", "zlib-ng", "blosc2")

PREFIX = "SHARDCODEC_"
# Environment variables with this prefix that set no option; those for users first.
CPU_VARIABLE = "SHARDCODEC_CPU"
OTHER_VARIABLES = frozenset(
    {
        CPU_VARIABLE,  # csrc/base/sc_cpu.c
        PREFIX + "ENABLED",  # option_sources.py
        *(PREFIX + name for name in ("ABI3", "COVERAGE", "DEBUG", "ENGINE", "LIBS", "SANITIZE")),  # setup.py
        *(PREFIX + name for name in ("INTEROP_PIPELINE", "PACKAGE_SUITE", "SUITE", "XARRAY_SUITE")),  # tests
        *(
            PREFIX + name for name in ("TEST_AZURITE", "TEST_KERNELS", "TEST_SANITIZER", "TEST_SHARD_MIB")
        ),  # tests
    }
)


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

    Examples
    --------
    >>> info = shardcodec.build_info()
    >>> sorted(info["libraries"])  # doctest: +SKIP
    ['blosc', 'lz4', 'zlib-ng', 'zstd']
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


def unknown_variables() -> dict[str, str | None]:
    """Return the environment variables that begin with ``SHARDCODEC_`` but that nothing reads, such as misspelt ones.

    Returns
    -------
    dict
        For each variable the one that may be meant, or None.
    """
    known = {variable_of(name) for name in NAMES + SWITCHES} | {CPU_VARIABLE}
    found: dict[str, str | None] = {}
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known | OTHER_VARIABLES:
            names = [name.removeprefix(PREFIX) for name in known]  # all would be close with the prefix
            meant = difflib.get_close_matches(variable.removeprefix(PREFIX), names, n=1)
            found[variable] = PREFIX + meant[0] if meant else None
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
