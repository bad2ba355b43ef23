# _native.py - what `import shardcodec._native` finds where the extension module is missing
# SPDX-License-Identifier: MIT
"""Raise the reason why there is no extension module, and say what to type.

Python looks for extension modules before source files, so this file runs only where ``_native.*.so`` is missing: in a
checkout that is not built, in the wheel for all platforms (setup.py), or with a Python for which the package was not built.
"""

import platform
import sys
from pathlib import Path

_folder = Path(__file__).parent
if _folder.with_name("setup.py").exists() or _folder.joinpath("_native.pyx").exists():
    _reason = (
        f"{_folder} is the source of shardcodec, where it is not built: build it with `pip install -e {_folder.parent}`, "
        "or start Python in another folder to find what is installed"
    )
elif not _folder.joinpath("zarr_plugin").exists():
    _reason = (
        f"{_folder} is the package without its engine, for {platform.platform()} and {sys.implementation.name} "
        f"{sys.version.partition(' ')[0]}: the engine needs 64-bit Linux and a wheel for this Python, or a C compiler where "
        f"`{sys.executable} -m pip install --force-reinstall --no-cache-dir --no-binary shardcodec shardcodec` can build it"
    )
else:
    _reason = (
        f"{_folder} has none for {sys.implementation.name} {sys.version.partition(' ')[0]}: "
        f"install shardcodec again, with `{sys.executable} -m pip`"
    )
raise ImportError(_reason, name=__name__)
