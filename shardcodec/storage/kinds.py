# kinds.py - from a path, a URL, bytes or a zarr store to the store of shards
# SPDX-License-Identifier: MIT
"""From a path, a URL, bytes or a zarr store to the store of shards.

A subclass may do anything in its methods, so only zarr's own classes count as files, memory or object stores.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import compat
from ..compat import ObjectStore, StorePath, on_zarrs_loop, store_by_fsspec, unwrap
from ..compat import Store as AnyStore
from . import object_names
from .event_loop import in_thread
from .files import FileStore, check_name, introduce_files, is_introduced
from .memory_store import BytesStore, MemoryStore
from .store import Store, check_store_writable
from .whole_file import put_file

__all__ = [
    "ZIP_SUFFIXES",
    "PlacedOptions",
    "RenamedStore",
    "at_url",
    "file_above",
    "introduce",
    "introduce_async",
    "is_url",
    "is_zarr_store",
    "is_zip",
    "locate",
    "object_at",
    "original",
    "originals",
    "placed_options",
    "put_object",
    "readable_at",
    "service_of",
    "split_url",
    "store_at",
    "store_of",
    "target_name",
    "zip_at",
]


# ---------------------------------------------------------------- the zarr store that a URL leads to

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


def target_name(*target: Any, path: Any = "", name: Any = None, **keywords: Any) -> str:
    """Return the name of an array that a caller gives as a path, a URL, a store or a zarr array, and a path in it, for `names_array`."""
    keys = "path_or_store", "array", "store"
    first, *rest = target or [next((keywords[key] for key in keys if key in keywords), "")]
    place = os.fspath(first) if isinstance(first, str | os.PathLike) else getattr(first, "store_path", first)
    shown = _shown(place) if isinstance(place, str) and is_url(place) else str(place)
    below = name if name is not None else rest[0] if rest else path
    return "/".join([shown, *([below] if isinstance(below, str) and below else [])])


def _first_line(error: BaseException) -> str:
    """Return the first line of an error; further lines of obstore show its configuration."""
    return str(error).partition("\n")[0]


# ---------------------------------------------------------------- views that show objects of another store under other names


class RenamedStore(AnyStore):
    """A view of a store, with metadata of the view, whose chunks have other names in the store behind it, `base`.

    Requests for chunks go to the store behind, so the engine still opens files and buffers, and locks and caches know an object
    by one name.
    """

    base: AnyStore

    @abstractmethod
    def located(self, key: str) -> str | None:
        """Return the name of a chunk in the store behind; None if the key is not that of a chunk."""


def original(target: StorePath) -> StorePath:
    """Return the place of an object in the store behind all views."""
    while isinstance(target.store, RenamedStore):
        key = target.store.located(target.path)
        target = StorePath(target.store.base, target.path if key is None else key)
    return target


def originals(batch: Sequence[Any], *, writing: bool = False) -> list[Any]:
    """Return a batch of zarr with every object in the store behind all views.

    ValueError: the batch is for a write, and the view is read-only. The store behind may be writable.
    """
    if not batch or not isinstance(getattr(batch[0][0], "store", None), RenamedStore):
        return batch if isinstance(batch, list) else list(batch)
    if writing:
        check_store_writable(batch[0][0].store)
    return [(original(target), *rest) for target, *rest in batch]


# ---------------------------------------------------------------- the kind of a store

# Names of zip files; `.ozx` is that of OME-Zarr.
ZIP_SUFFIXES = (".zip", ".ozx")
# The first entry of a zip file, or the end of one without entries.
_ZIP_BEGINS = (b"PK\3\4", b"PK\5\6")

# The kinds that the engine reads itself. Any other class, and any subclass, is a store of requests.
KINDS: dict[type, Callable[[Any], Store]] = {
    compat.LocalStore: FileStore,
    compat.MemoryStore: MemoryStore,
}


def store_of(base: Any) -> Store:
    """Return the store for a zarr store."""
    kind = KINDS.get(type(base))
    if kind is not None:
        return kind(base)
    return _store_of_requests(base)


def _store_of_requests(base: Any) -> Store:
    # imported here, because most processes use files or memory
    if type(base) is compat.ObjectStore:
        from .object_store import ObjectStore

        return ObjectStore(base)
    from .zarr_store import ZarrStore

    inner = unwrap(base)
    return ZarrStore(base) if inner is base else ZarrStore(base, store_of(inner))


def locate(target: StorePath) -> tuple[Store, str]:
    """Return the store that has an object, and the object's key there, behind all views."""
    target = original(target)
    return store_of(target.store), target.path


def is_zarr_store(value: Any) -> bool:
    """Return True for an instance of zarr's class of stores. A mock's ``__class__`` does not count."""
    return issubclass(type(value), compat.Store)


def at_url(target: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the store or the path that a URL leads to; return any other target unchanged.

    TypeError: there are options, but the target is not a URL. Raises also as `store_at`.
    """
    if isinstance(storage_options, PlacedOptions):
        storage_options = storage_options.of(target)
    if is_url(target):
        return store_at(check_name(target), storage_options)
    if storage_options is not None:
        raise TypeError(f"storage_options: expected them only with a URL, got a {type(target).__name__}")
    return target


def readable_at(target: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the result of `at_url`; for a path to a zip file or into one, the zip store and the path in it."""
    place = at_url(target, storage_options)
    if isinstance(place, str | os.PathLike) and "\0" not in os.fspath(place):
        file, rest = file_above(os.path.abspath(os.fspath(place)))
        if file and is_zip(file):
            return StorePath(zip_at(file), rest)
    return place


def file_above(path: str) -> tuple[str, str]:
    """Return the regular file at an absolute path or above it, and the rest of the path.

    Both are empty if the nearest existing name is not a regular file.
    """
    file, rest = path, ""
    while True:
        try:
            mode = os.stat(file).st_mode
        except OSError:
            mode = 0
        if mode:
            return (file, rest) if stat.S_ISREG(mode) else ("", "")
        file, name = os.path.split(file)
        if not name:
            return "", ""
        rest = f"{name}/{rest}" if rest else name


def is_zip(path: str) -> bool:
    """Return True for a regular file that is a zip file by its content or by its name."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        if path.lower().endswith(ZIP_SUFFIXES):
            return True
        with open(path, "rb") as file:
            return file.read(4) in _ZIP_BEGINS and zipfile.is_zipfile(file)
    except OSError:
        return False


def zip_at(path: str) -> Any:
    """Open a zip file for reading, as a zarr store; ValueError if it is not a zip file."""
    store = compat.ZipStore(path, mode="r")
    try:
        on_zarrs_loop(store._ensure_open())
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path!r}: expected a zip file: {error}") from error
    return store


def object_at(
    store: Any, key: str | None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, str, str]:
    """Return the store, the key and the name for errors of an object.

    store: a folder, or the file itself if `key` is None or ""; a URL of either; the bytes of the object; any zarr store or
    StorePath. key: for bytes only a name for errors. TypeError: another type, or options without a URL. ValueError: the key has
    a null byte, or a store comes without a key. Raises also as `store_at`.
    """
    if is_url(store):
        if isinstance(storage_options, PlacedOptions):
            storage_options = storage_options.of(store)
        url, name = (store, key) if key else split_url(store)
        place = at_url(url, storage_options)
        store, key = (place, name) if key or is_zarr_store(place) else (f"{place}/{name}", None)
    else:
        at_url(store, storage_options)
    if isinstance(store, StorePath):
        store, key = store.store, "/".join(filter(None, (store.path, key)))
    check_name(key or "")
    if isinstance(store, compat.Store):
        if not key:
            raise ValueError(f"key: expected the key of the shard in the store, got {key!r}")
        introduce(store)
        target = original(StorePath(store, key))
        return store_of(target.store), target.path, key
    if isinstance(store, str | os.PathLike):
        path = check_name(os.path.abspath(os.path.join(os.fspath(store), key) if key else os.fspath(store)))
        folder, name = os.path.split(str(path))
        return FileStore(folder), name, key or str(path)
    try:
        return BytesStore(memoryview(store).cast("B")), key or "", key or ""
    except TypeError:
        raise TypeError(
            f"store: expected a path, bytes or a zarr store, got {type(store).__name__}"
        ) from None


def service_of(base: Any) -> tuple[Any, str] | None:
    """Return what tells the service of a store of requests from others, None for local files, and the path of its root there.

    None for any other store, such as zarr's own.
    """
    store = unwrap(base)
    if isinstance(store, compat.FsspecStore):
        system = getattr(store.fs, "sync_fs", None) or store.fs  # zarr wraps systems without coroutines
        options = {name: value for name, value in system.storage_options.items() if name != "asynchronous"}
        service = (type(system), system.storage_args, options)
        return (None if "file" in system.protocol else service), str(store.path)
    if not isinstance(store, ObjectStore):
        return None
    client = store.store
    root = str(getattr(client, "prefix", None) or "")
    if type(client).__name__ == "LocalStore":
        return None, root
    settings = getattr(client, "config", None)
    if settings is None:  # memory
        return client, root
    return (type(client), *map(settings.get, ("bucket", "endpoint", "account_name", "container_name"))), root


def introduce(base: Any) -> None:
    """Memoise the name of a zarr store and, for a LocalStore, whether its file system is local; open a zip file.

    Callers open an array or a shard. Later reads and writes then need no system calls for these facts.
    """
    base = unwrap(base)
    # before zarr 3.2, it does not open itself
    if compat.ZipStore in type(base).__mro__ and not base._is_open:
        base._sync_open()
    object_names.store_name(base)
    if type(base) is compat.LocalStore:
        introduce_files(base)


async def introduce_async(target: Any) -> None:
    """Call `introduce` in a thread for the LocalStore of a StorePath, if its file system is not known yet; ignore the rest.

    An object whose array was not opened then makes no blocking system calls on the event loop.
    """
    if not isinstance(target, StorePath):
        return
    base = unwrap(target.store)
    if type(base) is compat.LocalStore and not is_introduced(base):
        await in_thread(introduce, base)


# ---------------------------------------------------------------- a new object in a store of any kind


def put_object(
    blocks: Iterator[Any],
    nbytes: int,
    store: Store,
    key: str,
    *,
    sync: bool = False,
    above: bool = True,
    may_replace: bool = False,
    before_store: Callable[[], None] | None = None,
) -> None:
    """Store a new object in any store, block by block; a file of the name may exist only with `may_replace`.

    Parameters
    ----------
    blocks : iterator of buffer
    nbytes : int
        Size of the object.
    store, key
        Its place.
    sync : bool
        A file and its name are on disk when this returns.
    above : bool
        With `sync`, the documents above the file are, too.
    may_replace : bool
        Replace another object of this name.
    before_store : callable, optional
        Called when all blocks were taken, just before the object appears; it may raise.

    Raises
    ------
    FileExistsError
        There is a file of this name.
    """
    path = store.path(key)
    if path is None and not nbytes:  # an upload without bytes stores nothing
        store.check_writable()
        if before_store is not None:
            before_store()
        store.wait(store.put_empty(key))
        return
    if path is None:
        from .upload import Upload

        upload = Upload(store, key, nbytes)
        try:
            offset = 0
            for block in blocks:
                upload.write(block, offset)
                offset += memoryview(block).nbytes
            if before_store is not None:
                before_store()
            upload.commit()
        finally:
            upload.abort()
        return
    if not put_file(
        path,
        blocks,
        sync=sync,
        may_replace=may_replace,
        staging=store.staging(key),
        before_commit=before_store,
    ):
        raise FileExistsError(f"{path}: expected no file of this name; choose an empty folder")
    if sync and above:
        store.sync([key])
