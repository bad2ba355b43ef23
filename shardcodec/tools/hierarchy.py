# hierarchy.py - the hierarchy that a path leads to, and its arrays and groups
# SPDX-License-Identifier: MIT
"""`Hierarchy`: what a path leads to, found once: a group with the nodes in it, an array, or a shard of an array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder, SpareDocuments
from ..errors import SpecError, UnsupportedError, as_os_error
from ..format.spec import ShardSpec
from ..storage.kinds import object_at
from ..storage.store import LeftFolder
from .documents import Document, document_of, is_group
from .names import inner_path
from .nearest_node import nearest_node
from .stored_nodes import DamagedGroup, UnlistedGroup, nodes_below
from .targets import ArrayTarget, array_target, lone_shard

__all__ = ["ArrayNotFoundError", "Hierarchy", "find_arrays"]


class ArrayNotFoundError(FileNotFoundError):
    """A group has no array of this name."""


class UnreadableArrayError(SpecError):
    """The document of an array of a group is malformed or refused."""


class Hierarchy:
    """The object at a path: a group with the nodes in it, an array, or a shard.

    Each document is read once: a pass over all arrays, which yields them one by one, also notes the groups.

    Parameters
    ----------
    target, spec, storage_options, left, spare
        As for `find_arrays`, which has the errors, too.

    Attributes
    ----------
    folder : Folder
        The group, or the array; for a shard with a `spec` its store.
    rest : str
        Key of the shard in the folder; empty for a group or an array.
    document : mapping
        That of the group or the array; empty with a `spec`.
    is_group : bool
    found : dict
        From the path of each node to the names of the documents that a listing of its folder has; `OtherObjects` fills it.
    """

    def __init__(
        self,
        target: Any,
        storage_options: Mapping[str, Any] | None = None,
        *,
        spec: ShardSpec | None = None,
        left: list[LeftFolder] | None = None,
        spare: SpareDocuments | None = None,
    ) -> None:
        self.folder: Folder
        self.rest: str
        self.document: Document
        if spec is None:
            self.folder, self.rest, self.document = nearest_node(target, storage_options, spare)
        else:
            store, self.rest, _ = object_at(target, None, storage_options)
            self.folder, self.document = Folder(store, ""), {}
        self.is_group: bool = is_group(self.document)
        if self.is_group and self.rest:
            raise FileNotFoundError(
                f"{self.rest!r} is neither an array nor a shard of the group {self.folder!r}"
            )
        self.found: dict[str, set[str]] = {}
        self._spec, self._left = spec, left
        self._groups: list[tuple[str, Folder, Document]] | None = None

    def arrays(self, array: str | None = None) -> Iterator[ArrayTarget]:
        """Yield the arrays, as `find_arrays`."""
        if self.is_group:
            yield from self._all_arrays() if array is None else self._array(inner_path(array, "array"))
            return
        if array is not None:
            found = f"{self.folder!r} is an array" if self._spec is None else "the target is a single shard"
            raise ValueError(f"array: expected none, because {found}, got {array!r}")
        if self._spec is not None:
            _check_exists(self.folder, self.rest)
            yield lone_shard(self.folder, self.rest, self._spec)
            return
        whole = array_target("", self.folder, self.document)
        yield whole if not self.rest else _single(whole, self.rest)

    def groups(self) -> list[tuple[str, Folder, Document]]:
        """Return the group and the groups in it: path, folder and document; none for an array or a shard.

        A store without listings has only those of the consolidated metadata. A damaged group has `DamagedGroup.document`.
        """
        if self._groups is None:
            for _ in self._targets(""):
                pass
        assert self._groups is not None
        return self._groups

    def _targets(self, only: str | None = None) -> Iterator[ArrayTarget]:
        """Yield all nodes but groups that can be read, or the one with this path; the groups are known when all have been taken."""
        groups = [("", self.folder, self.document)] if self.is_group else []
        for path, below, node in nodes_below(self.folder, self.document, "", self._left) if groups else ():
            if isinstance(node, SpecError):
                if isinstance(node, DamagedGroup) and not isinstance(node, UnlistedGroup):
                    groups.append((path, below, node.document))
                if only in (None, path):
                    yield _damaged(path, below, node)
            elif is_group(node):
                groups.append((path, below, node))
            elif only in (None, path):
                yield array_target(path, below, node)
        self._groups = groups

    def _all_arrays(self) -> Iterator[ArrayTarget]:
        array = None
        if isinstance(damage := self.document.get("damage"), SpecError):
            yield _damaged("", self.folder, damage)
        for array in self._targets():
            yield array
        if array is None and not self.folder.store.supports_listing:
            raise UnsupportedError(
                f"group {self.folder!r}: the store cannot list its objects, and the group has no consolidated metadata; "
                "name an array, or consolidate the metadata"
            )

    def _array(self, name: str) -> Iterator[ArrayTarget]:
        """Yield one array; the nodes are listed only if its document is lost, or the store cannot list."""
        below = replace(self.folder, prefix=f"{self.folder.prefix}{name}/")
        try:
            document = document_of(below) if self.folder.store.supports_listing else None
        except (SpecError, OSError) as error:
            raise UnreadableArrayError(f"array {below!r}: the metadata cannot be read: {error}") from error
        if document is not None and not is_group(document):
            yield array_target(name, below, document)
            return
        found = list(self._targets(name))
        yield from found
        if not found:
            raise ArrayNotFoundError(f"the group {self.folder!r} has no array {name!r}")


def find_arrays(
    target: Any,
    *,
    array: str | None = None,
    spec: ShardSpec | None = None,
    storage_options: Mapping[str, Any] | None = None,
    left: list[LeftFolder] | None = None,
    spare: SpareDocuments | None = None,
) -> Iterator[ArrayTarget]:
    """Find the arrays that a path leads to.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array: the documents above the shard show which array. A path may lead
        into a zip file, as ``data.zip/images``.
    array : str, optional
        Only the array with this path in the group.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    left : list, optional
        Gets links to folders above, which are not followed.
    spare : SpareDocuments, optional
        Documents for nodes that have lost theirs, besides those of consolidated metadata.

    Yields
    ------
    ArrayTarget
        Arrays that are not sharded, or whose metadata are invalid, are included; ``problem`` says what is wrong.

    Raises
    ------
    FileNotFoundError
        The path leads to nothing, or not to an array, group or shard.
    SpecError
        The document of the target itself is malformed.
    ValueError, TypeError, ImportError
        An argument is invalid, or no package can open the URL.
    """
    return Hierarchy(target, storage_options, spec=spec, left=left, spare=spare).arrays(array)


def _damaged(name: str, folder: Folder, error: SpecError) -> ArrayTarget:
    """Return the target for a node whose document cannot be read."""
    return ArrayTarget(
        name,
        folder,
        {},
        problem=error.message,
        is_malformed=True,
        is_refused=bool(error.context.get("is_refused")),
        is_group=isinstance(error, DamagedGroup),
    )


def _single(array: ArrayTarget, rest: str) -> ArrayTarget:
    """Return the target for one shard of an array."""
    grid = array.shard_grid
    coords = None if array.keys is None else array.keys.coords(rest, len(grid))
    if array.problem is not None or not array.is_sharded:
        raise UnsupportedError(
            f"array {array.place}: {array.problem or 'expected shards, but it is not sharded'}"
        )
    if coords is None or any(i >= n for i, n in zip(coords, grid, strict=True)):
        assert array.keys is not None
        example = array.keys.key((0,) * len(grid))
        raise ValueError(
            f"expected the key of a shard, such as {example!r}, in the array {array.place} of {grid} shards, got {rest!r}"
        )
    key = array.folder.prefix + rest
    _check_exists(array.folder, key)
    return replace(array, only=(key, coords))


def _check_exists(folder: Folder, key: str) -> None:
    """Raise `FileNotFoundError` if an object does not exist."""
    try:
        with as_os_error(folder.store.describe, key):
            folder.store.wait(folder.store.size(key))
    except FileNotFoundError:
        raise FileNotFoundError(f"shard {folder.store.describe(key)!r} does not exist") from None
