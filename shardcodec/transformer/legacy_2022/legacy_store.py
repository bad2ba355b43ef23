# legacy_store.py - a view of a 2022 hierarchy as a hierarchy of Zarr v3
# SPDX-License-Identifier: MIT
"""`LegacyStore`: the zarr store behind `open_2022`.

    key in the view                    key in the store below
    <path>/zarr.json                   translated from meta/root/<path>.array.json, or .group.json
    <path>/c/3/9, <path>/c.3.9         data/root/<path>/c3/9, data/root/<path>/c3.9
    <path>/0 (an array without axes)   data/root/<path>/c0

A write to ``zarr.json`` can change attributes and shape of the translated document, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import zarr

from ...compat import (
    ArrayV3Metadata,
    Store,
    buffer_from,
    default_buffer_prototype,
    naming_document,
    on_zarrs_loop,
    quiet,
    swaps_for_filters,
)
from ...errors import ShardError, UnsupportedError
from ...format.array_document import json_object
from ...format.checks import unsupported
from ...storage.kinds import introduce
from ...storage.renamed_store import RenamedStore
from .legacy_keys import array_key, data_prefix, group_key
from .metadata import LegacyArray
from .parse import parse_array, parse_group
from .to_v3 import to_v3

__all__ = ["LegacyStore", "check_understood", "naming"]

METADATA = re.compile(r"(?:(.*)/)?zarr\.json", re.DOTALL)
CHUNK = re.compile(r"(?:(.*)/)?c([/.])(\d+(?:\2\d+)*)", re.DOTALL)
SCALAR = re.compile(r"(?:(.*)/)?0", re.DOTALL)
STORED_CHUNK = re.compile(r"data/root/(?:(.*)/)?c(\d+(?:/\d+)*|\d+(?:\.\d+)+)", re.DOTALL)


class LegacyStore(RenamedStore):
    """A view of a store of the 2022 format for zarr 3; `open_2022` creates it.

    base: the store with the hierarchy at its root. suffix: that of metadata keys, from the zarr.json of the hierarchy.
    """

    def __init__(self, base: Store, suffix: str, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only or base.read_only)
        self.base = base
        introduce(base)
        self.suffix = suffix
        self._is_open = True

    def located(self, key: str) -> str | None:
        """Return the key of a chunk in the store below; None if `key` is not a chunk key."""
        if match := CHUNK.fullmatch(key):
            return f"{data_prefix(match[1] or '')}c{match[3]}"
        if match := SCALAR.fullmatch(key):
            return f"{data_prefix(match[1] or '')}c0"
        return None

    def _shown(self, key: str) -> str | None:
        """Return the key in this view of an object in the store below; None if the view hides it."""
        if match := STORED_CHUNK.fullmatch(key):
            prefix = f"{match[1]}/" if match[1] else ""
            return f"{prefix}c{'.' if '.' in match[2] else '/'}{match[2]}"
        for kind in ("array", "group"):
            end = f".{kind}{self.suffix}"
            if key == f"meta/root{end}":
                return "zarr.json"
            if key.startswith("meta/root/") and key.endswith(end):
                return f"{key.removeprefix('meta/root/').removesuffix(end)}/zarr.json"
        return None

    async def _read(self, key: str) -> Mapping[str, Any] | None:
        buffer = await self.base.get(key, prototype=default_buffer_prototype())
        return None if buffer is None else json_object(buffer.to_bytes(), key)

    async def array(self, path: str) -> LegacyArray | None:
        """Return the metadata of an array, or None if it does not exist. Raises as `parse.parse_array`."""
        document = await self._read(array_key(path, self.suffix))
        return None if document is None else parse_array(document)

    def array_at(self, path: str) -> LegacyArray | None:
        """Return the same in a thread without an event loop; errors name the document."""
        with naming(array_key(path, self.suffix)):
            return on_zarrs_loop(self.array(path))  # type: ignore[no-any-return]

    def document_in_v3(self, path: str, array: LegacyArray, *, index_checksum: bool) -> dict[str, Any]:
        """Return the zarr.json of a copy of an array, with the names of its axes.

        Raises
        ------
        UnsupportedError
            Zarr v3 cannot express it, or the installed zarr would misread it.
        """
        with naming(array_key(path, self.suffix)):
            document = to_v3(array, index_checksum=index_checksum, names=True)
            check_understood(document)
        return document

    def chunk_folder(self, path: str) -> str:
        """Return the common start of the keys of the chunks of an array in the store below, without "c"."""
        return data_prefix(path)

    async def group(self, path: str) -> Mapping[str, Any] | None:
        """Return the attributes of a group; None if no group has this path. A folder without a document is a group without attributes."""
        document = await self._read(group_key(path, self.suffix))
        if document is not None:
            return parse_group(document)
        async for _ in self.base.list_dir(f"meta/root/{path}".rstrip("/")):
            return {}
        return None

    async def _synthesized(self, path: str) -> bytes | None:
        """Return the zarr.json of an array or a group; None if there is neither."""
        array = await self.array(path)
        if array is not None:
            return json.dumps(shown_metadata(array)).encode()
        attributes = await self.group(path)
        if attributes is None:
            return None
        return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()

    async def _change(self, path: str, data: bytes) -> None:
        new = json_object(data, f"{path}/zarr.json")
        array = await self.array(path)
        if array is None:
            await self._change_group(path, new)
            return
        shape, attributes = tuple(new["shape"]), dict(new["attributes"])
        same: dict[str, Any] = {"shape": list(array.shape), "attributes": {}}
        with quiet():
            was = ArrayV3Metadata.from_dict({**shown_metadata(array), **same}).to_dict()
            now = ArrayV3Metadata.from_dict({**new, **same}).to_dict()
        if was != now or len(shape) != len(array.shape):
            changed = sorted(name for name in {*was, *now} if was.get(name) != now.get(name)) or ["shape"]
            raise UnsupportedError(
                f"array {path!r} of the 2022 format: expected a change of shape or attributes, got {', '.join(changed)}",
                path=changed[0],
            )
        if array.filters and "filters" in attributes:
            raise UnsupportedError(
                f"array {path!r} of the 2022 format: the attribute 'filters' holds its filters and cannot be changed",
                path="attributes.filters",
            )
        document = array.with_changes(shape, attributes)
        parse_array(document)
        await self._store(array_key(path, self.suffix), document)

    async def _change_group(self, path: str, new: Mapping[str, Any]) -> None:
        if new.get("node_type") != "group" or await self.group(path) is None:
            raise UnsupportedError(
                f"cannot create {path!r} in a hierarchy of the 2022 format; convert the hierarchy to Zarr v3 with "
                "`convert_2022` and create it there"
            )
        await self._store(group_key(path, self.suffix), {"attributes": new.get("attributes", {})})

    async def _store(self, key: str, document: Mapping[str, Any]) -> None:
        data = json.dumps(document, indent=4, sort_keys=True).encode()  # the format of zarr-python 2
        await self.base.set(key, buffer_from(default_buffer_prototype(), data))

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same view that refuses writes if `read_only`."""
        base = self.base
        if base.read_only and not read_only:
            base = base.with_read_only(False)
        return type(self)(base, self.suffix, read_only=read_only)

    async def _open(self) -> None:
        self._is_open = True

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Return an object or a part of it; None if it is absent."""
        if match := METADATA.fullmatch(key):
            data = await self._synthesized(match[1] or "")
            return None if data is None else buffer_from(prototype, _part(data, byte_range))
        located = self.located(key)
        return None if located is None else await self.base.get(located, prototype, byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return objects or parts of them; None for absent ones."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return True if the object exists."""
        if match := METADATA.fullmatch(key):
            return await self._synthesized(match[1] or "") is not None
        located = self.located(key)
        return located is not None and await self.base.exists(located)

    async def set(self, key: str, value: Any) -> None:
        """Store a chunk, or a zarr.json with new attributes or another shape; UnsupportedError for any other key or change."""
        self._check_writable()
        if match := METADATA.fullmatch(key):
            await self._change(match[1] or "", value.to_bytes())
            return
        located = self.located(key)
        if located is None:
            raise UnsupportedError(f"expected the key of a chunk or of a zarr.json, got {key!r}")
        await self.base.set(located, value)

    async def delete(self, key: str) -> None:
        """Delete a chunk or a metadata document; `delete_dir` deletes an array or a group."""
        self._check_writable()
        if match := METADATA.fullmatch(key):
            for name in (array_key, group_key):
                await self.base.delete(name(match[1] or "", self.suffix))
        elif (located := self.located(key)) is not None:
            await self.base.delete(located)

    async def delete_dir(self, prefix: str) -> None:
        """Delete an array or a group with all below it, metadata first."""
        self._check_writable()
        path = prefix.strip("/")
        await self.delete(f"{path}/zarr.json" if path else "zarr.json")
        for root in ("meta/root", "data/root"):
            await self.base.delete_dir(f"{root}/{path}".rstrip("/"))

    @property
    def supports_writes(self) -> bool:
        return self.base.supports_writes

    @property
    def supports_deletes(self) -> bool:
        return self.base.supports_deletes

    @property
    def supports_listing(self) -> bool:
        return self.base.supports_listing

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys with a prefix."""
        folder = prefix.rpartition("/")[0]
        own = f"{folder}/zarr.json" if folder else "zarr.json"
        if own.startswith(prefix) and await self.exists(own):
            yield own
        for root in ("meta/root", "data/root"):
            async for key in self.base.list_prefix(f"{root}/{folder}".rstrip("/") + "/"):
                shown = self._shown(key)
                if shown is not None and shown.startswith(prefix) and shown != own:
                    yield shown

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a path."""
        path = prefix.strip("/")
        seen = {"zarr.json"} if await self.exists(f"{path}/zarr.json" if path else "zarr.json") else set()
        async for name in self.base.list_dir(f"meta/root/{path}".rstrip("/")):
            for kind in ("array", "group"):
                name = name.removesuffix(f".{kind}{self.suffix}")
            seen.add(name.rstrip("/"))
        async for name in self.base.list_dir(f"data/root/{path}".rstrip("/")):
            if match := re.fullmatch(r"c(\d*|\d+(?:\.\d+)+)/?", name):
                seen.add(f"c.{match[1]}" if "." in match[1] else "c")
        for name in sorted(seen):
            yield name

    def close(self) -> None:
        """Close this store and the one below."""
        self.base.close()
        super().close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LegacyStore) and (self.base, self.suffix) == (other.base, other.suffix)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"2022:{self.base}"

    def __repr__(self) -> str:
        return f"LegacyStore({self.base!r})"


def shown_metadata(array: LegacyArray) -> dict[str, Any]:
    """Return the zarr.json of an array with the chunk keys of this view."""
    metadata = to_v3(array)
    if not array.shape:
        metadata["chunk_key_encoding"] = {"name": "v2", "configuration": {"separator": "/"}}
    elif len(array.shape) == 1:
        metadata["chunk_key_encoding"]["configuration"]["separator"] = "/"
    return metadata


def _part(data: bytes, byte_range: Any) -> bytes:
    if byte_range is None:
        return data
    if hasattr(byte_range, "suffix"):
        return data[max(0, len(data) - byte_range.suffix) :]
    start = byte_range.start if hasattr(byte_range, "start") else byte_range.offset
    return data[start : getattr(byte_range, "end", None)]


def check_understood(metadata: Mapping[str, Any]) -> None:
    """Raise UnsupportedError if the installed zarr would misread an array: zarr before 3.2 ignores some byte orders."""
    with quiet(), naming_document("array.json"):
        understood = ArrayV3Metadata.from_dict(dict(metadata)).to_dict()
    (endian, filtered), (kept, _) = _byte_order(metadata["codecs"]), _byte_order(understood["codecs"])
    if endian == "big" and (kept != endian or (filtered and not swaps_for_filters())):
        unsupported(
            "data_type", f"zarr {zarr.__version__} ignores that the elements are big-endian; update zarr"
        )


def _byte_order(codecs: Any) -> tuple[Any, bool]:
    """Return (byte order of the elements, True if filters come before the codec `bytes`)."""
    filtered = False
    for codec in codecs:
        given = codec.get("configuration", {})
        if codec["name"] == "sharding_indexed":
            return _byte_order(given["codecs"])
        if codec["name"] == "bytes":
            endian = given.get("endian")
            return getattr(endian, "value", endian), filtered
        filtered = filtered or codec["name"].startswith("numcodecs.")
    return None, filtered


@contextmanager
def naming(document: str) -> Iterator[None]:
    """Add the name of a document to errors raised inside of the block."""
    try:
        yield
    except ShardError as error:
        context = error.context | {"document": document}
        raise type(error)(f"{document}: {error.message}", **context) from error.__cause__
