# conditions.py - whether the server behind an obstore looks at the conditions of a write
# SPDX-License-Identifier: MIT
"""Find out, once for each place where objects are stored, whether a write fails there if its condition does not hold.

An obstore can be configured to know no conditions (S3: ``conditional_put="disabled"``). A service may not implement them, and
a proxy may remove their headers; both then answer as if the condition had held. Only a write can tell, because many services
look at conditions of reads alone. `check` therefore sends one before the first conditional write to a place.
"""

from __future__ import annotations

import asyncio
import os
import re
import warnings
import weakref
from typing import Any

__all__ = ["check", "is_known", "known_reason", "names_missing_bucket", "warn", "warn_of", "was_repeated"]

# An entity tag, and for GCS a generation, that no object has.
NEVER = {"e_tag": f'"{"0" * 32}"', "version": "1"}

# A reason against a store.
NO_TAGS = "the server, or a proxy before it, does not name the states of objects (strong entity tags)"

# Where obstore says in an error that it has sent a request more than once.
REPEATED = re.compile(r"after [1-9][0-9]* retries")
MISSING_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist", re.I
)

_checked: set[bytes] = set()
_told: set[tuple[bytes, str]] = set()

# For each event loop the lock of its probe: concurrent writes send one. An `asyncio.Lock` works on one event loop only.
_probing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


async def check(store: Any, key: str) -> None:
    """Find out whether a place looks at conditions; warn if not. Only the first call for a place asks the server.

    The probe is an empty object under a new name beside `key`, to be stored only if the object of that name, which does not
    exist, is in a certain state. A server that looks at conditions stores nothing, so the user needs no permission but the
    one to write there, and nothing is left. Any other server stores the probe, which is deleted at once. A probe under the name
    of an existing object would overwrite that object; a put-if-absent, the other condition, cannot fail without an object.

    Parameters
    ----------
    store : obstore store
    key : str
        Name of the object that is about to be written.
    """
    if is_known(store):
        return
    place = _place(store)
    async with _probing.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if place in _checked:
            return
        reason = await _reason_against(store, key)
        _checked.add(place)
    if reason is not None:
        warn(store, reason)


def is_known(store: Any) -> bool:
    """Return True if `check` needs no request."""
    return type(store).__name__ == "MemoryStore" or _place(store) in _checked


def known_reason(store: Any) -> str | None:
    """Return why conditional writes to a place are not safe, as far as it has been found out; None if they are."""
    place = _place(store)
    return next((reason for told, reason in _told if told == place), None)


def warn(store: Any, reason: str) -> None:
    """Warn that writers in other processes can lose updates; once for each place and reason."""
    warn_of(_place(store), _shown(store), reason)


def warn_of(place: bytes, shown: str, reason: str) -> None:
    """Warn as `warn`, of a place that is not an obstore."""
    if (place, reason) in _told:
        return
    _told.add((place, reason))
    warnings.warn(
        f"partial writes to {shown} are not safe from writers in other processes, whose updates may be lost: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


async def _reason_against(store: Any, key: str) -> str | None:
    """Send the probe. Errors that say nothing of conditions pass: the write itself would meet them."""
    import obstore

    errors = obstore.exceptions
    folder, _, _ = key.rpartition("/")
    name = f"{folder}/.shardcodec-probe-{os.urandom(8).hex()}".lstrip("/")
    try:
        await _send(store, name)
    except (errors.PreconditionError, errors.AlreadyExistsError, FileNotFoundError):
        return None
    except (NotImplementedError, errors.NotSupportedError):
        return "the store is configured to know no conditions (conditional_put)"
    except errors.PermissionDeniedError:
        return "whether the server looks at conditions could not be found out, because it forbids the probe"
    reason = "the server, or a proxy before it, does not look at the conditions of writes"
    try:
        await obstore.delete_async(store, name)
    except FileNotFoundError:
        pass
    except errors.BaseError:
        reason += f"; the empty object {name!r} was left there because it cannot be deleted"
    return reason


async def _send(store: Any, name: str) -> None:
    """Send the probe, and once more if its answer was cut: obstore does not repeat a request whose answer has begun.

    Both have the same name, so that at most one object is left to delete.
    """
    import obstore

    try:
        await obstore.put_async(store, name, b"", mode=NEVER)
    except obstore.exceptions.GenericError as error:
        if was_repeated(error):
            raise
        await obstore.put_async(store, name, b"", mode=NEVER)


def names_missing_bucket(error: Exception) -> bool:
    """Tell whether a service answered that the bucket or container does not exist; obstore has no error for that."""
    return MISSING_BUCKET.search(str(error)) is not None


def was_repeated(error: Exception) -> bool:
    """Tell whether obstore has sent the request more than once before it raised this error."""
    return REPEATED.search(str(error)) is not None


def _place(store: Any) -> bytes:
    """Name what an obstore leads to, and how: equal for copies of one store, as each task of a worker has its own."""
    import hashlib  # here, because it loads OpenSSL

    settings = [type(store).__name__, str(getattr(store, "prefix", None))]
    for name in ("config", "client_options"):
        settings.append(repr(sorted((getattr(store, name, None) or {}).items())))
    return hashlib.blake2b("\n".join(settings).encode()).digest()  # the configuration may hold secrets


def _shown(store: Any) -> str:
    """Name a store for a message, without secrets."""
    config = getattr(store, "config", None) or {}
    names = ("endpoint", "bucket", "account_name", "container_name")
    shown = ", ".join(f"{name}={config[name]!r}" for name in names if name in config)
    return f"{type(store).__name__}({shown})"
