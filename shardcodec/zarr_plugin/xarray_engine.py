# xarray_engine.py - `engine="shardcodec"` for xarray
# SPDX-License-Identifier: MIT
"""The backend that xarray finds under the name ``shardcodec``: its own Zarr backend, with attached arrays.

xarray decodes times, masks and coordinates, and finds groups and consolidated metadata. Only the arrays differ: each is the
result of `shardcodec.attach`, which is pickled with its pipeline, so workers need no call of `enable`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar

from xarray import Dataset, DataTree
from xarray.backends.common import _normalize_path, datatree_from_dict_with_io_cleanup
from xarray.backends.zarr import ZarrBackendEntrypoint, ZarrStore
from zarr import Array

from ..options import check
from .attach import attach

__all__ = ["ShardCodecBackend"]


class _AttachedStore(ZarrStore):
    """A group as xarray's Zarr backend sees it, whose arrays use shardcodec."""

    # Set after `__init__`, whose parameters differ between versions of xarray.
    options: Mapping[str, Any] = {}

    @property
    def members(self) -> dict[str, Any]:
        """The arrays and groups of the group. An array is attached at the first look, in the dictionary that xarray keeps."""
        members: dict[str, Any] = super().members
        for name, node in members.items():
            if type(node) is Array:
                members[name] = attach(node, **self.options)
        return members


class ShardCodecBackend(ZarrBackendEntrypoint):
    """Open Zarr data sets with shardcodec: ``xarray.open_dataset(path, engine="shardcodec")``.

    Parameters are those of xarray's engine ``"zarr"``, and `options`: a mapping with options of shardcodec for the arrays, see
    `shardcodec.options`. Data sets, errors and warnings are those of the engine ``"zarr"``. It works with `open_dataset`,
    `open_mfdataset`, `open_datatree` and `open_groups`. xarray never chooses it by itself.

    Examples
    --------
    >>> xarray.open_dataset("heat.zarr", engine="shardcodec", options={"threads": 4})  # doctest: +SKIP
    """

    description = "Open zarr files with shardcodec"
    url = ""
    # xarray reads the names of the keywords from here, so that `open_dataset` need not repeat those of each version.
    open_dataset_parameters: ClassVar[tuple[str, ...] | None] = (
        *(
            name
            for name in inspect.signature(ZarrBackendEntrypoint.open_dataset).parameters
            if name != "self"
        ),
        "options",
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return False: without `engine` xarray's own backend opens the data set."""
        return False

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: Any,
        *,
        store: Any = None,
        options: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Dataset:
        """Open a group as a data set.

        Parameters
        ----------
        filename_or_obj : str, path or store
            As for the engine ``"zarr"``.
        store : ZarrStore, optional
            A store of xarray that is open; its arrays stay as they are.
        options : mapping, optional
            Options of shardcodec for the arrays.
        **keywords
            As for the engine ``"zarr"``.

        Returns
        -------
        xarray.Dataset

        Raises
        ------
        TypeError, ValueError
            The name or the value of an option is invalid, or as the engine ``"zarr"`` raises.
        """
        if store is None:
            store = _opened(_AttachedStore.open_group, filename_or_obj, keywords)
            store.options = check(dict(options or {}))
        return super().open_dataset(filename_or_obj, store=store, **keywords)

    def open_groups_as_dict(  # type: ignore[override]
        self, filename_or_obj: Any, *, options: Mapping[str, Any] | None = None, **keywords: Any
    ) -> dict[str, Dataset]:
        """Open a group and those below it, see `open_dataset`.

        Parameters
        ----------
        filename_or_obj : str, path or store
            As for the engine ``"zarr"``.
        options : mapping, optional
            Options of shardcodec for the arrays.
        **keywords
            As for the engine ``"zarr"``.

        Returns
        -------
        dict of str to xarray.Dataset
            The data sets; the names are paths, relative to `group` if it is given.
        """
        choices = check(dict(options or {}))
        group = keywords.pop("group", None)
        root = PurePosixPath("/", group or "")
        stores = _opened(_AttachedStore.open_store, filename_or_obj, keywords | {"group": str(root)})
        datasets = {}
        for path, store in stores.items():
            store.options = choices
            name = PurePosixPath(path).relative_to(root) if group else path
            datasets[str(name)] = self.open_dataset(filename_or_obj, store=store, **keywords)
        return datasets

    def open_datatree(self, filename_or_obj: Any, **keywords: Any) -> DataTree:
        """Open a hierarchy as a tree, see `open_groups_as_dict`. xarray's own method does not hand `options` on.

        Parameters
        ----------
        filename_or_obj : str, path or store
            As for the engine ``"zarr"``.
        **keywords
            Those of `open_groups_as_dict`.

        Returns
        -------
        xarray.DataTree
        """
        return datatree_from_dict_with_io_cleanup(self.open_groups_as_dict(filename_or_obj, **keywords))


def _opened(method: Any, place: Any, keywords: Mapping[str, Any]) -> Any:
    """Call a constructor of a store of xarray with those of the keywords that it knows; the others are for decoding."""
    known = inspect.signature(method).parameters
    # Without `consolidated` the constructors do not look for consolidated metadata, but the engine "zarr" does.
    given = {"consolidated": None} | {name: value for name, value in keywords.items() if name in known}
    return method(_normalize_path(place), **given)
