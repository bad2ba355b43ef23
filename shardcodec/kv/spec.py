# spec.py - layout of a key-value store, and its JSON
# SPDX-License-Identifier: MIT
"""`Layout` and `StoreSpec`: the checked layout of a key-value store, and its JSON in the form of TensorStore's driver.

Source: TensorStore, kvstore driver `zarr3_sharding_indexed`, "JSON specification"; requirements KV-1 to KV-5.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..access.compiled_chains import staged_shard
from ..format.checks import as_int, as_items, as_mapping, bounded_depth, show, unsupported, within, wrong
from ..format.spec import ShardSpec

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["DRIVERS", "Layout", "StoreSpec", "parse"]

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

# Members of the driver "file". The options of its writes are accepted and ignored.
_FILE_MEMBERS = frozenset(
    {"driver", "path", "context"}
    | {f"file_io_{what}" for what in ("concurrency", "locking", "memmap", "mode", "sync")}
)


@dataclass(frozen=True)
class Layout:
    """Grid and index of a shard whose inner chunks are arbitrary bytes; other fields of `spec` are not used."""

    spec: ShardSpec

    @classmethod
    def of(cls, grid_shape: Any, index_codecs: Any, index_location: Any) -> Layout:
        """Check the arguments of the constructor of a store, and return their layout; ``.path`` of a SpecError names the wrong value."""
        with within("grid_shape"):
            shape = tuple(
                as_int(extent, f"[{axis}]", minimum=1) for axis, extent in enumerate(as_items(grid_shape, ""))
            )
            if len(shape) > MAX_RANK:
                reason = f"expected at most {MAX_RANK} axes, got {len(shape)}"
                wrong("", reason, actual=len(shape), limit=MAX_RANK)
            if math.prod(shape) > MAX_ENTRIES:
                reason = f"expected at most {MAX_ENTRIES} entries, got {math.prod(shape)} in {shape}"
                wrong("", reason, actual=math.prod(shape), limit=MAX_ENTRIES)
        location = index_location
        if not isinstance(location, str) or location not in ("end", "start"):
            wrong(
                "index_location",
                f"expected 'end' or 'start', got {show(index_location)}",
                actual=index_location,
            )
        return cls(ShardSpec(shape, (1,) * len(shape), "uint8", 0, ["bytes"], index_codecs, index_location))

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of entries along each axis."""
        return self.spec.grid_shape

    def chain(self) -> Chain:
        """Return the compiled chain, which neither encodes nor decodes values."""
        return staged_shard(self.spec, None)

    def to_json(self) -> dict[str, Any]:
        """Return the members of the JSON that describe the layout."""
        return {
            "grid_shape": list(self.grid_shape),
            "index_codecs": [codec.to_json() for codec in self.spec.index_codecs],
            "index_location": self.spec.index_location,
        }


@dataclass(frozen=True)
class StoreSpec:
    """The parsed JSON of a store.

    Parameters
    ----------
    base : str, StoreSpec or None
        Path of a local file; an entry of another store, whose `path` is its key; None if the JSON has no base.
    layout : Layout
        Grid and index.
    path : bytes
        Common start of all keys.
    cache_pool : int or None
        Limit of the index cache in bytes.
    data_copy_concurrency : int or None
        Number of threads.
    """

    base: str | StoreSpec | None
    layout: Layout
    path: bytes
    cache_pool: int | None
    data_copy_concurrency: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of the store, which `parse` accepts. `base` must not be None.

        Returns
        -------
        dict
            A specification for TensorStore's driver ``zarr3_sharding_indexed``.

        Raises
        ------
        SpecError
            `path`, the common start of the keys, here or in a base, is not UTF-8, so JSON cannot hold it.
        """
        base = (
            self.base.to_json() if isinstance(self.base, StoreSpec) else {"driver": "file", "path": self.base}
        )
        spec: dict[str, Any] = {"driver": DRIVERS[0], "base": base, **self.layout.to_json()}
        if self.path:
            spec["path"] = _path_to_json(self.path)
        if self.cache_pool is not None:
            spec["cache_pool"] = {"total_bytes_limit": self.cache_pool}
        if self.data_copy_concurrency is not None:
            spec["data_copy_concurrency"] = {"limit": self.data_copy_concurrency}
        return spec


def parse(spec: Any, *, needs_base: bool = True) -> StoreSpec:
    """Parse the JSON of a store. UnsupportedError: the base uses a driver other than "file" and this one."""
    with bounded_depth(""):
        return _parse(spec, needs_base, {})


def _parse(spec: Any, needs_base: bool, context: Mapping[str, Any]) -> StoreSpec:
    members = as_mapping(spec, "")
    driver = members.get("driver")
    if driver not in DRIVERS:
        wrong("driver", f"expected {show(DRIVERS[0])}, got {show(driver)}", actual=driver)
    _refuse_extra(members, _MEMBERS)
    if "base" in members and "kvstore" in members:
        wrong("kvstore", "expected either base or kvstore, which is another name of base, got both")
    name = "kvstore" if "kvstore" in members else "base"
    for required in ("grid_shape", "index_codecs", *([name] if needs_base else [])):
        if required not in members:
            wrong(required, "missing required key")
    path = members.get("path", "")
    if not isinstance(path, str):
        wrong("path", f"expected a string, got {show(path)}", actual=path)
    context = {**context, **as_mapping(members.get("context", {}), "context")}
    return StoreSpec(
        base=_parse_base(members[name], name, context) if name in members else None,
        layout=Layout.of(
            members["grid_shape"], members["index_codecs"], members.get("index_location", "end")
        ),
        path=path.encode(),
        cache_pool=_resource(members, context, "cache_pool", "total_bytes_limit", 0),
        data_copy_concurrency=_resource(members, context, "data_copy_concurrency", "limit", 1),
    )


def _refuse_extra(members: Mapping[str, Any], known: Collection[str]) -> None:
    extra = sorted(str(name) for name in members if name not in known)
    if extra:
        wrong("", f"Object includes extra members: {', '.join(map(show, extra))}", actual=extra)


def _parse_base(base: Any, name: str, context: Mapping[str, Any]) -> str | StoreSpec:
    with within(name):
        if isinstance(base, str):
            url = urlsplit(base)
            if url.scheme != "file" or url.netloc or url.query or url.fragment or "|" in base:
                reason = f"expected a URL file:///..., got {show(base)}; pass the store itself as base"
                unsupported("", reason, base=base)
            return unquote(url.path)
        members: Mapping[str, Any] = as_mapping(base, "")
        if members.get("driver") in DRIVERS:
            return _parse(members, True, context)
        if members.get("driver") != "file":
            reason = (
                f"expected 'file' or {show(DRIVERS[0])}, got {show(members.get('driver'))}; "
                "pass the store itself as base"
            )
            unsupported("driver", reason, driver=members.get("driver"))
        path = members.get("path")
        if not isinstance(path, str) or not path:
            wrong("path", f"expected the path of a file, got {show(path)}", actual=path)
        _refuse_extra(members, _FILE_MEMBERS)
        return path


def _resource(
    members: Mapping[str, Any], context: Mapping[str, Any], name: str, number: str, least: int
) -> int | None:
    """Return a limit from a resource of TensorStore's context; None if no limit is set."""
    with within(name):
        resource = as_mapping(_defined(members.get(name, name), context, name), "")
        _refuse_extra(resource, (number,))
        limit = resource.get(number)
        # "shared" stands for the threads of the process, the default
        is_set = limit is not None and not (limit == "shared" and least)
        return as_int(limit, number, minimum=least) if is_set else None


def _defined(value: Any, context: Mapping[str, Any], name: str) -> Any:
    """Follow references to a resource, ``name`` or ``name#id``, to its definition in the context."""
    seen: set[str] = set()
    while isinstance(value, str):
        if value != name and not value.startswith(f"{name}#"):
            wrong("", f"expected {show(name)} or a reference '{name}#...', got {show(value)}", actual=value)
        if value not in context:
            return {} if value == name else wrong("", f"Resource not defined: {show(value)}", actual=value)
        if value in seen:
            wrong("", f"expected a resource, got {show(value)}, which refers to itself", actual=value)
        seen.add(value)
        value = context[value]
    return value


def _path_to_json(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        wrong("path", f"expected UTF-8, which JSON can hold, got {path!r}", actual=path)
