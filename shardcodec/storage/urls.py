# urls.py - the zarr store that a URL leads to
# SPDX-License-Identifier: MIT
"""Open the store of a URL, such as ``s3://bucket/images.zarr``.

obstore is preferred, because its stores name the states of objects, so partial writes can be conditional. Without obstore,
and for schemes that it does not know, zarr's own parser opens the store with fsspec. A ``file://`` URL is a path.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from ..compat import ObjectStore, store_by_fsspec

__all__ = ["is_url", "split_url", "store_at"]

# The schemes that obstore opens, with the names that it has for them.
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
FILES = ("file", "local")
WITHOUT_OBSTORE = (
    "install obstore (preferred), or fsspec with its package for this scheme (s3fs, gcsfs, adlfs, aiohttp)"
)


def is_url(value: Any) -> bool:
    """Return True for a string that zarr takes for a URL and not for a path."""
    return isinstance(value, str) and "://" in value


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of the folder that has an object, and the name of the object.

    Raises
    ------
    ValueError
        The URL names no object.
    """
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith((":/", "://")):
        raise ValueError(f"expected the URL of an object, such as 's3://bucket/a/c/0/0', got {url!r}")
    return folder, name


def store_at(url: str, options: Mapping[str, Any] | None = None) -> Any:
    """Open the zarr store whose root is a URL.

    Parameters
    ----------
    url : str
    options : mapping, optional
        For obstore the arguments of ``obstore.store.from_url``; else those of the file system of fsspec.

    Returns
    -------
    zarr store, or str
        The path of a ``file://`` URL.

    Raises
    ------
    ImportError
        Neither obstore nor the package of fsspec for this scheme is installed.
    ValueError
        The scheme is unknown, the URL is malformed, or the store refuses the options.
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
    if scheme == "http":
        options = options | {
            "client_options": {"allow_http": True} | dict(options.get("client_options") or {})
        }
    # `from_url` takes the host names of some services for S3 or Azure, which need credentials
    opener = HTTPStore.from_url if scheme in ("http", "https") else from_url
    try:
        return opener(url, **options)
    except (obstore.exceptions.BaseError, TypeError, ValueError) as error:
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


def _first_line(error: Exception) -> str:
    """Return what an error says, without the further lines of obstore, which show its configuration."""
    return str(error).partition("\n")[0]
