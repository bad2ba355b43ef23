# fsspec_clients.py - a file system of fsspec for tests; needs fsspec, which `make test-oldest` lacks
# SPDX-License-Identifier: MIT

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped]

__all__ = ["Client"]


class Client(AsyncFileSystem):  # type: ignore[misc]
    """A file system whose client works only in the process that has made it, as one with connections."""

    protocol = "client"
    cachable = False

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(folder=folder, **options)
        self.folder = folder
        self.process = os.getpid()

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **unused: Any) -> bytes:
        assert self.process == os.getpid()
        data = (Path(self.folder) / path).read_bytes()
        return data[start if start is None or start >= 0 else max(0, len(data) + start) : end]

    async def _info(self, path: str, **unused: Any) -> dict[str, Any]:
        return {"name": path, "size": (Path(self.folder) / path).stat().st_size, "type": "file"}
