# url_stores.py - the zarr store that a URL leads to
# SPDX-License-Identifier: MIT
"""`store_at`: the store that a URL leads to, opened by obstore where it can, else by zarr's own parser; and its name without secrets."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..compat import ObjectStore, store_by_fsspec

__all__ = ["PlacedOptions", "is_url", "placed_options", "split_url", "store_at", "target_name"]

# The schemes that obstore opens, with its names of them. obstore is preferred, because its stores name the states of
# objects, so partial writes can be conditional. Without obstore, and for other schemes, zarr's own parser uses fsspec.
BY_OBSTORE = {
    "s3": "s3",
    "s3a": "s3a",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "adl": "adl",
    "azure": "azure",
    "abfs": "abfs",
    "abfss": "abfss",
    "http": "http",
    "https": "https",
}
SAME_SERVICE = (("s3", "s3a"), ("gs", "gcs"), ("az", "adl", "azure", "abfs", "abfss"))
FILES = ("file", "local")
# Options of obstore's clients. obstore panics if it gets one of them as an option of the store.
CLIENT_OPTIONS = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "timeout",
        "user_agent",
    )
)
WITHOUT_OBSTORE = (
    "install obstore (preferred), or fsspec with its package for this scheme (s3fs, gcsfs, adlfs, aiohttp)"
)


def is_url(value: Any) -> bool:
    """Return True for a string that zarr reads as a URL and not as a path."""
    return isinstance(value, str) and "://" in value


class PlacedOptions(dict[str, Any]):
    """Options for the first URL among some places (paths, URLs, stores, None), and for other URLs of the same service.

    TypeError: none of the places is a URL.
    """

    def __init__(self, options: Mapping[str, Any], places: Iterable[Any]) -> None:
        super().__init__(options)
        given = [place for place in places if place is not None]
        self.service: str | None = next((_service(place) for place in given if is_url(place)), None)
        if self.service is None:
            kinds = " and a ".join(dict.fromkeys(type(place).__name__ for place in given))
            raise TypeError(f"storage_options: expected them only with a URL, got a {kinds}")

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacedOptions, (dict(self), [self.service])

    def of(self, place: Any) -> dict[str, Any] | None:
        """Return the options for a place; None for another service, a path or a store."""
        return dict(self) if is_url(place) and _service(place) == self.service else None


def placed_options(options: Mapping[str, Any] | None, *places: Any) -> Mapping[str, Any] | None:
    """Return options that reach only the first URL among these places, and other URLs of the same service."""
    return None if options is None else PlacedOptions(options, places)


def _service(url: str) -> str:
    """Return the scheme of a URL; for HTTP also the host. URLs of one service have the same result."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    name = next((names[0] for names in SAME_SERVICE if scheme in names), scheme)
    return f"{name}://{rest.partition('/')[0] if name in ('http', 'https') else ''}"


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of the folder that has an object, and the name of the object; ValueError if it names none."""
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith((":/", "://")):
        raise ValueError(f"expected the URL of an object, such as 's3://bucket/a/c/0/0', got {url!r}")
    return folder, name


def store_at(url: str, options: Mapping[str, Any] | None = None) -> Any:
    """Open the zarr store whose root is a URL; the path of a ``file://`` URL.

    options: for obstore, the arguments of ``obstore.store.from_url`` and those in its ``client_options``; otherwise, those of
    the fsspec file system. ImportError: no package for this scheme is installed. ValueError: the scheme is unknown, the URL is
    malformed, or the store refuses the options.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    chosen = dict(options or {})
    if scheme in FILES:
        if chosen:
            raise ValueError(f"storage_options: expected none for a file, got {sorted(chosen)}")
        return rest
    if scheme in BY_OBSTORE and importlib.util.find_spec("obstore") is not None:
        return ObjectStore(_obstore_at(f"{BY_OBSTORE[scheme]}://{rest}", chosen))
    try:
        return store_by_fsspec(url, chosen)
    except ImportError as error:
        raise ImportError(f"cannot open {_shown(url)!r}: {error}; {WITHOUT_OBSTORE}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"cannot open {_shown(url)!r} with the options {sorted(chosen)}: {_first_line(error)}"
        ) from error


def _obstore_at(url: str, options: dict[str, Any]) -> Any:
    import obstore
    from obstore.store import HTTPStore, from_url

    if "?" in url or "#" in url:
        raise ValueError(
            f"expected a URL without a query, to which keys can be appended, got {_shown(url)!r}"
        )
    scheme = url.partition("://")[0]
    client = {"allow_http": True} if scheme == "http" else {}
    client |= {name: options[name] for name in options if name in CLIENT_OPTIONS}
    options = {name: options[name] for name in options if name not in CLIENT_OPTIONS}
    if client:
        options["client_options"] = client | dict(options.get("client_options") or {})
    # `from_url` maps the host names of some services to S3 or Azure, which need credentials
    opener = HTTPStore.from_url if scheme in ("http", "https") else from_url
    try:
        return opener(url, **options)
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # of Rust, for options with unexpected names
        if not is_panic and not isinstance(error, obstore.exceptions.BaseError | TypeError | ValueError):
            raise
        raise ValueError(
            f"cannot open {_shown(url)!r} with the options {sorted(options)}: {_first_line(error)}. Options are the "
            "arguments of obstore.store.from_url, such as region, endpoint, skip_signature (not those of s3fs), "
            "client_options"
        ) from error


def _shown(url: str) -> str:
    """Return a URL for messages, without user information and query, which may be secret."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    if scheme.lower() in ("http", "https"):
        place = place.rpartition("@")[2]  # az: the container is before the "@"
    return f"{scheme}://{place}{slash}{path}"


def target_name(*target: Any, path: Any = "", **keywords: Any) -> str:
    """Return the name of an array that a caller gives as a path, a URL, a store or a zarr array, and a path in it, for `names_array`."""
    first, *rest = target or [keywords.get("array", keywords.get("store", ""))]
    place = os.fspath(first) if isinstance(first, str | os.PathLike) else getattr(first, "store_path", first)
    shown = _shown(place) if isinstance(place, str) and is_url(place) else str(place)
    below = rest[0] if rest else path
    return "/".join([shown, *([below] if isinstance(below, str) and below else [])])


def _first_line(error: BaseException) -> str:
    """Return the first line of an error; further lines of obstore show its configuration."""
    return str(error).partition("\n")[0]
