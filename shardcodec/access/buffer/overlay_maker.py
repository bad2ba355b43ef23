# overlay_maker.py - makes a new object from a stored one and the overlay over it
# SPDX-License-Identifier: MIT
"""`OverlayMaker`: flushes the overlay of one object with `storage.replace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...options import Options
from ...storage.locks import NO_FILE
from ...storage.runner import Runner
from ...storage.store import Made, Stored
from ..read import ReadItem, read
from ..regions import Boxes, whole
from ..write import WriteItem, write
from .overlay import Array, Overlay

__all__ = ["OverlayMaker"]


class OverlayMaker:
    """A `Maker` of one object from its stored elements and its buffered ones.

    One native call encodes the inner chunks and writes them. If the stored object is damaged where it is needed, `make`
    raises, and the object stays as it is.

    Parameters
    ----------
    overlay : Overlay
        The buffered elements.
    key : str
        Name of the object in errors.
    path : str or None
        The file of the object; None if the object is not a file.
    staging : callable
        Returns the folder for temporary files; called only if there is a path.
    options : Options
        Options of the write.
    write_empty : bool
        Store inner chunks that equal the fill value.
    """

    keeps_emptied = True

    def __init__(
        self,
        overlay: Overlay,
        key: str,
        path: str | None,
        staging: Callable[[], str | None],
        options: Options,
        *,
        write_empty: bool,
    ) -> None:
        self._overlay = overlay
        self._key = key
        self._path = path
        self._staging = staging
        self._options = options
        self._write_empty = write_empty

    def begin(self) -> None:
        """Do nothing: the elements are known."""

    def needs_old(self, position: int) -> bool:
        return not self._overlay.is_complete

    def nbytes(self, position: int) -> int:
        if self._path is not None:
            return 0  # the engine writes the file as it encodes
        chain = self._overlay.chain
        return math.prod(chain.shape) * int(chain.itemsize)

    async def make(self, stored: Sequence[Stored], runner: Runner) -> Made:
        (old,) = stored
        return await runner.call(self._write, old, inline=False)

    def _write(self, old: Stored) -> Made:
        chain, path, key = self._overlay.chain, self._path, self._key

        def read_old(boxes: Boxes, out: Array) -> None:
            read([ReadItem(chain, self._source(old), boxes, key)], out, range(out.ndim), self._options)

        positions, chunks = self._overlay.chunks(read_old)
        if chain.is_shard:
            item = WriteItem(chain, path, old.data, self._overlay.boxes(positions), key, old.fd, positions)
        else:
            item = WriteItem(chain, path, None, whole(chain.shape), key, old.fd)
        result = write(
            [item],
            chunks,
            range(chunks.ndim),
            self._options,
            write_empty=self._write_empty,
            keep_empty=old.keeps_empty,
            staging=None if path is None else self._staging(),
            retry_appeared=False,
        )
        return Made(result.objects, result.appeared, is_stored=path is not None)

    def _source(self, old: Stored) -> Any:
        """Return the stored object for a read: a buffer, the descriptor of the locked file, or the path of the file."""
        if self._path is None:
            return old.data
        if old.fd is None:
            return self._path
        return None if old.fd == NO_FILE else old.fd
