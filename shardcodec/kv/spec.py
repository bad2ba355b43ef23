# spec.py - what describes a store, in Python and in JSON
# SPDX-License-Identifier: MIT
"""The JSON of the driver, and the checks that hold for it and for the arguments of the constructor.

Source: TensorStore, kvstore driver `zarr3_sharding_indexed`, "JSON specification"; requirements KV-1 to KV-5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ..access.codec import staged_shard
from ..format.checks import as_int, as_items, as_mapping, bounded_depth, show, unsupported, within, wrong
from ..format.spec import ShardSpec

__all__ = ["DRIVERS", "Layout", "Parsed", "parse"]

DRIVERS = ("zarr3_sharding_indexed", "zarr_sharding_indexed")
MAX_RANK = 31
MAX_ENTRIES = 1 << 30

_MEMBERS = frozenset(
    {
        "driver",
        "base",
        "kvstore",
        "grid_shape",
        "index_codecs",
        "index_location",
        "path",
        "context",
        "cache_pool",
        "data_copy_concurrency",
    }
)


@dataclass(frozen=True)
class Layout:
    """Grid and index of a shard whose inner chunks are any bytes; of the spec only these count."""

    spec: ShardSpec

    @classmethod
    def of(cls, grid_shape: Any, index_codecs: Any, index_location: Any) -> Layout:
        """Check the parts of a layout.

        Parameters
        ----------
        grid_shape : iterable of int
        index_codecs : iterable
            As in metadata.
        index_location : {"end", "start"}

        Raises
        ------
        SpecError
            A value is wrong; ``.path`` says which.
        """
        with within("grid_shape"):
            shape = tuple(
                as_int(extent, f"[{axis}]", minimum=1) for axis, extent in enumerate(as_items(grid_shape, ""))
            )
            if len(shape) > MAX_RANK:
                wrong("", f"rank {len(shape)} is more than {MAX_RANK}", actual=len(shape), limit=MAX_RANK)
            if math.prod(shape) > MAX_ENTRIES:
                reason = f"{shape} has more than {MAX_ENTRIES} entries"
                wrong("", reason, actual=math.prod(shape), limit=MAX_ENTRIES)
        if index_location not in ("end", "start"):
            wrong(
                "index_location",
                f"expected 'end' or 'start', got {show(index_location)}",
                actual=index_location,
            )
        return cls(ShardSpec(shape, (1,) * len(shape), "uint8", 0, ["bytes"], index_codecs, index_location))

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Entries along each axis."""
        return self.spec.grid_shape

    def chain(self) -> Any:
        """Compile it: values are neither encoded nor decoded."""
        return staged_shard(self.spec, None)

    def to_json(self) -> dict[str, Any]:
        """Return the members of the JSON."""
        return {
            "grid_shape": list(self.grid_shape),
            "index_codecs": [codec.to_json() for codec in self.spec.index_codecs],
            "index_location": self.spec.index_location,
        }


@dataclass(frozen=True)
class Parsed:
    """A JSON, taken apart.

    Attributes
    ----------
    base : str, Parsed or None
        Path of a local file; an entry of another store; None: not given.
    layout : Layout
    path : bytes
    cache_pool, data_copy_concurrency : int or None
    """

    base: str | Parsed | None
    layout: Layout
    path: bytes
    cache_pool: int | None
    data_copy_concurrency: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON.

        Raises
        ------
        SpecError
            The path is no UTF-8, which JSON cannot hold.
        """
        base = self.base.to_json() if isinstance(self.base, Parsed) else {"driver": "file", "path": self.base}
        spec: dict[str, Any] = {"driver": DRIVERS[0], "base": base, **self.layout.to_json()}
        if self.path:
            spec["path"] = _path_to_json(self.path)
        if self.cache_pool is not None:
            spec["cache_pool"] = {"total_bytes_limit": self.cache_pool}
        if self.data_copy_concurrency is not None:
            spec["data_copy_concurrency"] = {"limit": self.data_copy_concurrency}
        return spec


def parse(spec: Any, *, needs_base: bool = True) -> Parsed:
    """Parse the JSON of a store.

    Raises
    ------
    SpecError
        A member is missing, wrong, or not one of the driver's.
    UnsupportedError
        The base is a driver that is none of ours.
    """
    with bounded_depth(""):
        return _parse(spec, needs_base)


def _parse(spec: Any, needs_base: bool) -> Parsed:
    members = as_mapping(spec, "")
    driver = members.get("driver")
    if driver not in DRIVERS:
        wrong("driver", f"expected {show(DRIVERS[0])}, got {show(driver)}", actual=driver)
    extra = sorted(str(name) for name in members if name not in _MEMBERS)
    if extra:
        wrong("", f"Object includes extra members: {', '.join(map(show, extra))}", actual=extra)
    if "base" in members and "kvstore" in members:
        wrong("kvstore", "another name of base, which is given too")
    name = "kvstore" if "kvstore" in members else "base"
    for required in ("grid_shape", "index_codecs", *([name] if needs_base else [])):
        if required not in members:
            wrong(required, "is missing")
    path = members.get("path", "")
    if not isinstance(path, str):
        wrong("path", f"expected a string, got {show(path)}", actual=path)
    return Parsed(
        base=_parse_base(members[name], name) if name in members else None,
        layout=Layout.of(
            members["grid_shape"], members["index_codecs"], members.get("index_location", "end")
        ),
        path=path.encode(),
        cache_pool=_resource(members, "cache_pool", "total_bytes_limit", 0),
        data_copy_concurrency=_resource(members, "data_copy_concurrency", "limit", 1),
    )


def _parse_base(base: Any, name: str) -> str | Parsed:
    with within(name):
        if isinstance(base, str):
            url = urlsplit(base)
            if url.scheme != "file" or url.netloc or url.query or url.fragment or "|" in base:
                unsupported("", f"of URLs only file:///... is known, not {show(base)}", base=base)
            return unquote(url.path)
        members: Mapping[str, Any] = as_mapping(base, "")
        if members.get("driver") in DRIVERS:
            return _parse(members, True)
        if members.get("driver") != "file":
            reason = (
                f"no base with driver {show(members.get('driver'))} is known; give the store itself as base"
            )
            unsupported("driver", reason, driver=members.get("driver"))
        path = members.get("path")
        if not isinstance(path, str) or not path:
            wrong("path", f"expected the name of a file, got {show(path)}", actual=path)
        return path


def _resource(members: Mapping[str, Any], name: str, number: str, least: int) -> int | None:
    """A limit among the resources of TensorStore's context; a reference to a shared one is no limit of ours."""
    value = members.get(name)
    if value is None or isinstance(value, str):
        return None
    with within(name):
        limit = as_mapping(value, "").get(number)
        return None if limit is None or limit == "shared" else as_int(limit, number, minimum=least)


def _path_to_json(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        wrong("path", f"{path!r} is no UTF-8 and has no JSON", actual=path)
