# documents.py - the documents of an array: its shape and its attributes, as they are stored
# SPDX-License-Identifier: MIT
"""Change a document of an array under its lock, so that two writers who change it at the same time lose nothing.

zarr reads a document when it opens an array and later stores all of it again: of two processes that append, one loses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import names_array
from ..format.array_document import attributes_of, encoded_document, json_object
from ..format.dtypes import as_dtype
from ..format.fill_values import fill_bytes, fill_from_document, fill_scalar, fill_to_json
from ..format.ml_types import ML_NBYTES, ml_name
from ..options import Options
from ..storage.replace import replace
from ..storage.runner import BLOCKING, Runner, run_blocking
from ..storage.store import Outcome, Store, StoredObject
from .box_reader import Folder

__all__ = ["Attributes", "StoredDocument", "delete_objects", "replace_object", "type_for_zarr"]

Document = Mapping[str, Any]


class StoredDocument:
    """A document of a folder, parsed only if the stored bytes are not those that this object has read or stored last.

    In threads without an event loop.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder: Folder = folder
        self.key: str = folder.prefix + name
        self._known: tuple[bytes, Document] | None = None

    def read(self) -> Document | None:
        """Return the document; None if there is none."""
        return self.parsed(self.folder.get(self.key))

    def change(self, change: Callable[[Document | None], Document], options: Options) -> Document:
        """Replace the document by what `change` makes of the stored one, and return it; its values are those of JSON.

        change: it takes the stored document, or None if there is none, and may be called several times. If it raises, nothing is stored.
        It raises as `replace`.
        """
        maker = _DocumentMaker(self, change)
        run_blocking(replace(self.folder.store, [self.key], maker, options, BLOCKING))
        self._known = maker.new
        return maker.new[1]

    def parsed(self, stored: bytes | None) -> Document | None:
        """Return the document with these bytes."""
        if stored is None:
            return None
        known = self._known
        if known is None or known[0] != stored:
            known = self._known = stored, json_object(stored, self.folder.store.describe(self.key))
        return known[1]


def delete_objects(folder: Folder, names: Sequence[str], options: Options) -> None:
    """Delete objects of a folder, each under its lock, in a thread without an event loop."""
    if names:
        run_blocking(replace(folder.store, folder.keys(names), _Bytes(None), options, BLOCKING))


def replace_object(
    store: Store, key: str, data: bytes | None, check: Callable[[], None], options: Options
) -> None:
    """Replace an object by bytes, or delete it, in a thread without an event loop.

    `check` is called under the lock of the object; if it raises, the object does not change.
    """
    run_blocking(replace(store, [key], _Bytes(data, check), options, BLOCKING))


class _DocumentMaker:
    """The `Maker` of a changed document."""

    keeps_emptied = False

    def __init__(self, document: StoredDocument, change: Callable[[Document | None], Document]) -> None:
        self._document, self._change = document, change
        self.new: tuple[bytes, Document]

    def begin(self) -> None:
        """Do nothing: the change depends on the stored document alone."""

    def needs_old(self, position: int) -> bool:
        return True

    def nbytes(self, position: int) -> int:
        return 0

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        folder, key = self._document.folder, self._document.key
        path = folder.store.path(key)
        old = stored[0].data if path is None else _content(path)
        changed = self._change(self._document.parsed(None if old is None else bytes(old)))
        try:
            self.new = encoded_document(changed), changed
        except (TypeError, ValueError) as error:
            raise type(error)(f"array {folder!r}: expected values that JSON has: {error}") from error
        return Outcome([self.new[0]])


class _Bytes:
    """The `Maker` of objects with given bytes; None deletes them."""

    keeps_emptied = False

    def __init__(self, data: bytes | None, check: Callable[[], None] | None = None) -> None:
        self._data, self._check = data, check

    def begin(self) -> None:
        """Do nothing."""

    def needs_old(self, position: int) -> bool:
        return False

    def nbytes(self, position: int) -> int:
        return 0

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        if self._check is not None:
            await runner.call(self._check, inline=False)
        return Outcome([self._data] * len(stored))


def _content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None


class Attributes(MutableMapping[str, Any]):
    """The attributes of an array. They are read when the object is made; each change is stored at once.

    A change is made to the attributes that are stored by then, so it keeps those that another program has added.

    Parameters
    ----------
    folder : Folder
        The folder of the array.
    is_v2 : bool
        The attributes of Zarr v2 are a document of their own.
    options : Options, optional
        Options of the writes; None if the array may not be changed.

    Examples
    --------
    >>> attributes = shardcodec.open_array("a.zarr", mode="r+").attrs
    >>> attributes["unit"] = "K"
    >>> attributes.update(axis="z")
    >>> sorted(attributes)
    ['axis', 'unit']
    """

    def __init__(self, folder: Folder, *, is_v2: bool, options: Options | None) -> None:
        self._folder = folder
        self._is_v2 = is_v2
        self._options = options
        self._name = ".zattrs" if is_v2 else "zarr.json"
        self._values = self._of(folder.document(self._name))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError as error:
            error.add_note(f"array {self._folder!r}")
            raise

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        self[name]  # KeyError
        self._change(lambda values: {key: value for key, value in values.items() if key != name})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def update(self, *values: Any, **more: Any) -> None:
        """Set several attributes in one write.

        Parameters
        ----------
        *values, **more
            As for `dict.update`.
        """
        new = dict(*values, **more)
        self._change(lambda stored: {**stored, **new})

    def clear(self) -> None:
        """Remove all attributes in one write."""
        self._change(lambda stored: {})

    def __repr__(self) -> str:
        return f"Attributes({self._values!r})"

    @names_array(lambda attributes, *_: repr(attributes._folder))
    def _of(self, document: Document | None) -> Mapping[str, Any]:
        if self._is_v2:
            return document or {}
        return attributes_of(document or {})

    def _change(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        if self._options is None:
            raise ValueError(f"array {self._folder!r}: expected mode='r+' to change attributes, got mode='r'")

        def changed(document: Document | None) -> Document:
            new = change(self._of(document))
            if self._is_v2:
                return new
            if document is None:
                raise FileNotFoundError(
                    f"array {self._folder!r}: expected a zarr.json, but it has been deleted"
                )
            return {**document, "attributes": new}

        # the caller may change a list that it gave, so this document is not kept
        document = StoredDocument(self._folder, self._name).change(changed, self._options)
        self._values = json.loads(json.dumps(self._of(document)))  # as others read it: a tuple is a list


def type_for_zarr(value: Any) -> Any:
    """Return a data type for `zarr.create_array`: `value`, but for those of `ml_dtypes` an object that writes their documents.

    zarr does not have these types. The object lets it make a document, with zarr's defaults for integers of the same size; it
    is not registered, so zarr still cannot open the array.
    """
    if not _is_ml(value):
        return value
    from zarr.dtype import UInt8, UInt16

    dtype = as_dtype(value)
    of_zarr: Any = UInt16 if dtype.itemsize == 2 else UInt8

    class MLType(of_zarr):  # type: ignore[misc]
        dtype_cls = type(dtype)
        _zarr_v3_name = dtype.name

        def to_native_dtype(self) -> Any:
            return dtype

        def to_json(self, zarr_format: int) -> Any:
            return dtype.name if zarr_format == 3 else {"name": dtype.name, "object_codec_id": None}

        def cast_scalar(self, data: object) -> Any:
            return fill_scalar(dtype, fill_bytes(dtype, data))

        def default_scalar(self) -> Any:
            return fill_scalar(dtype, bytes(dtype.itemsize))

        def to_json_scalar(self, data: object, *, zarr_format: int) -> Any:
            return fill_to_json(dtype, fill_bytes(dtype, data))

        def from_json_scalar(self, data: object, *, zarr_format: int) -> Any:
            return fill_scalar(dtype, fill_from_document(dtype, data))

    return MLType()


def _is_ml(value: Any) -> bool:
    if isinstance(value, np.dtype):
        return ml_name(value) is not None
    return value in ML_NBYTES if isinstance(value, str) else getattr(value, "__module__", "") == "ml_dtypes"
