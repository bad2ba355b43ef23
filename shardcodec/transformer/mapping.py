# mapping.py - a zarr store as a dictionary, with the methods of the stores of zarr-python 2
# SPDX-License-Identifier: MIT
"""`ChunkMapping`: chunks for programs without an event loop.

Source: method names from `zarr._storage.store.StoreV3` of zarr-python 2.18; ST-8, ST-12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from ..arguments import as_buffer, checked
from ..compat import buffer_from, default_buffer_prototype, on_zarrs_loop
from .keys import as_path
from .store import ShardingStorageTransformer

__all__ = ["ChunkMapping"]

Keys = list[str]

# Number of values in memory while an array or a group is renamed.
MOVED_TOGETHER = 64


class ChunkMapping(MutableMapping[str, bytes]):
    """A dictionary of keys and values over a `ShardingStorageTransformer`.

    Experimental: it may change in a minor version (``docs/versions.md``).

    Parameters
    ----------
    store : ShardingStorageTransformer
        The transformer that does the work.

    Notes
    -----
    Each call blocks until it is done: do not use it in a thread that runs an event loop. Errors are those of the transformer.

    Examples
    --------
    >>> store = transformer.ShardingStorageTransformer("chunks.zarr", (32, 2))
    >>> chunks = transformer.ChunkMapping(store)
    >>> chunks["c/96/18"] = b"encoded"
    >>> chunks.get_partial_values([("c/96/18", (0, 4)), ("c/96/19", None)])
    [b'enco', None]
    """

    supports_efficient_get_partial_values = True

    def __init__(self, store: ShardingStorageTransformer) -> None:
        self.store = store

    def __repr__(self) -> str:
        return f"ChunkMapping({self.store!r})"

    @checked
    def __getitem__(self, key: str) -> bytes:
        (value,) = self.get_partial_values([(key, None)])
        if value is None:
            raise KeyError(key)
        return value

    @checked
    def __setitem__(self, key: str, value: Any) -> None:
        on_zarrs_loop(self.store.set(key, _buffer(value)))

    @checked
    def __delitem__(self, key: str) -> None:
        """Erase a value.

        Raises
        ------
        KeyError
            The value is absent.
        """
        if key not in self:
            raise KeyError(key)
        self.erase(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and on_zarrs_loop(self.store.exists(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def update(self, *given: Any, **more: Any) -> None:
        """Store many values and write each shard once. A shard whose chunks are all given is not read.

        Parameters
        ----------
        *given, **more
            Keys and values, as for ``dict.update``.
        """
        values = dict(*given, **more)
        on_zarrs_loop(self.store.set_many([(key, _buffer(value)) for key, value in values.items()]))

    def clear(self) -> None:
        """Erase everything, in the store below too."""
        on_zarrs_loop(self.store.clear())

    @checked
    def get_partial_values(self, key_ranges: Iterable[tuple[str, Any]]) -> Sequence[bytes | None]:
        """Return parts of values with two calls to the store below.

        Parameters
        ----------
        key_ranges : iterable of (str, (int, int or None) or None)
            A key with the start and the length of a part. A length of None means the rest, None instead of a pair all.

        Returns
        -------
        list of (bytes or None)
            In the order of the requests; None for an absent value.
        """
        values = on_zarrs_loop(self.store.get_partial_values(default_buffer_prototype(), key_ranges))
        return [None if value is None else value.to_bytes() for value in values]

    @checked
    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Overwrite parts of values and write each shard once.

        Parameters
        ----------
        key_start_values : iterable of (str, int, bytes-like)
            As for `ShardingStorageTransformer.set_partial_values`.

        Raises
        ------
        ValueError
            A part begins beyond the end of its value, or two parts overlap.
        """
        on_zarrs_loop(self.store.set_partial_values(key_start_values))

    @checked
    def erase(self, key: str) -> None:
        """Erase a value if it exists.

        Parameters
        ----------
        key : str
        """
        on_zarrs_loop(self.store.delete(key))

    def erase_values(self, keys: Iterable[str]) -> None:
        """Erase those of the values that exist and write each shard once.

        Parameters
        ----------
        keys : iterable of str

        Raises
        ------
        TypeError
            `keys` is one str.
        """
        on_zarrs_loop(self.store.erase_values(keys))

    def erase_prefix(self, prefix: str) -> None:
        """Erase all values below a folder.

        Parameters
        ----------
        prefix : str
            Name of the folder.
        """
        on_zarrs_loop(self.store.delete_dir(prefix))

    @checked
    def rmdir(self, path: str = "") -> None:
        """Erase an array or a group with all below it: metadata and chunks.

        Parameters
        ----------
        path : str
            Path of the array or group; "" erases everything.

        Raises
        ------
        ValueError
            The path has an empty part, or one of dots.
        """
        folders, files = self._node(path)
        for folder in folders:
            self.erase_prefix(folder)
        self.erase_values(files)

    @checked
    def rename(self, src_path: str, dst_path: str) -> None:
        """Move an array or a group with all below it. Values with the same keys at the new path are replaced.

        Values are moved in groups. An interrupted move has moved some of them and lost none. Values keep
        their bytes: under a path that is not one of the transformer's each chunk becomes an object.

        Parameters
        ----------
        src_path, dst_path : str
            The old and the new path.

        Raises
        ------
        ValueError
            A path is empty, or one lies below the other.
        """
        src, dst = as_path(src_path), as_path(dst_path)
        if not src or not dst:
            raise ValueError(f"rename: expected two paths below the root, got {src_path!r} and {dst_path!r}")
        if f"{src}/".startswith(f"{dst}/") or f"{dst}/".startswith(f"{src}/"):
            raise ValueError(
                f"rename: expected paths of which none is below the other, got {src!r} and {dst!r}"
            )
        (folders, files), (new_folders, new_files) = self._node(src), self._node(dst)
        moves = [move for move in zip(files, new_files, strict=True) if move[0] in self]
        for folder, new_folder in zip(folders, new_folders, strict=True):
            moves += [(key, new_folder + key[len(folder) :]) for key in self.list_prefix(folder)]
        while moves:
            batch, moves = moves[:MOVED_TOGETHER], moves[MOVED_TOGETHER:]
            values = self.get_partial_values([(key, None) for key, _ in batch])
            self.update(
                {new: value for (_, new), value in zip(batch, values, strict=True) if value is not None}
            )
            self.erase_values([key for key, _ in batch])

    def _node(self, path: str) -> tuple[Keys, Keys]:
        """Return (prefixes of the keys of an array or group, keys of its metadata outside of these)."""
        path = as_path(path)
        below = f"{path}/" if path else ""
        data = self.store.layout.folder
        if not data:
            return [below], []
        # the draft of 2022 keeps metadata in another tree: meta/root beside data/root
        meta = f"{data.replace('data', 'meta', 1)}/{path}"
        files = [f"{meta}.{kind}.json" for kind in ("array", "group")] if path else []
        return [f"{data.replace('data', 'meta', 1)}/{below}", f"{data}/{below}"], files

    def list(self) -> Keys:
        """Return all keys.

        Returns
        -------
        list of str
            Sorted.
        """
        return self.list_prefix("")

    @checked
    def list_prefix(self, prefix: str) -> Keys:
        """Return the keys with a prefix.

        Parameters
        ----------
        prefix : str

        Returns
        -------
        list of str
            Sorted.
        """

        async def listed() -> Keys:
            return [key async for key in self.store.list_prefix(prefix)]

        return sorted(on_zarrs_loop(listed()))

    @checked
    def list_dir(self, prefix: str) -> tuple[Keys, Keys]:
        """Return the contents of a folder.

        Parameters
        ----------
        prefix : str
            Name of the folder, with or without a slash at its end.

        Returns
        -------
        keys, prefixes : list of str
            Keys of values directly in the folder, and prefixes of folders in it, each with a slash at its end.
        """
        folder = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"

        async def listed() -> tuple[Keys, Keys]:
            names = [f"{folder}{name.rstrip('/')}" async for name in self.store.list_dir(folder)]
            keys = [name for name in names if await self.store.exists(name)]
            return sorted(keys), sorted(f"{name}/" for name in {*names} - {*keys})

        return on_zarrs_loop(listed())


def _buffer(value: Any) -> Any:
    return buffer_from(default_buffer_prototype(), bytes(as_buffer(value, "value")))
