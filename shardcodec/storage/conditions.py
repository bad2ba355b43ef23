# conditions.py - probe whether the server behind an obstore honours the conditions of a write
# SPDX-License-Identifier: MIT
"""Find out, once for each place where objects are stored, whether a write fails there if its condition does not hold.

An obstore can be configured without conditions (S3: ``conditional_put="disabled"``). A service may not implement them, and
a proxy may remove their headers; both then answer as if the condition had held. Many services honour only the conditions of
reads, so only a write can tell: `check` sends a probe before the first conditional write to a place.
"""

from __future__ import annotations

import asyncio
import os
import re
import warnings
import weakref
from typing import Any

__all__ = [
    "advise",
    "check",
    "has_suffixes",
    "is_known",
    "known_reason",
    "names_missing_bucket",
    "note_refusal",
    "note_suffix",
    "refuses",
    "says_not_allowed",
    "says_not_implemented",
    "warn",
    "warn_of",
    "was_beyond_end",
    "was_repeated",
    "without_retries",
]

# An entity tag, and for GCS a generation, that no object has.
NEVER = {"e_tag": f'"{"0" * 32}"', "version": "1"}

# A reason why conditional writes to a store are not safe.
NO_TAGS = "the server, or a proxy before it, does not name the states of objects (strong entity tags)"

# What a service says that refuses the request because of its condition.
REFUSES = (
    "the service answers 501 (not implemented) to a write with a condition, so objects are stored without one; "
    "conditional_put='disabled' of the store says so from the start"
)
NOT_IMPLEMENTED = re.compile(r"status code: 501|<Code>NotImplemented</Code>")
# HTTP statuses that may be about the condition, and may be about the request.
PERHAPS_REFUSED = re.compile(r"status code: (?:400|403|405)")
# HTTP statuses by which a server says that it does not take a range from the end.
NO_SUFFIX = "400|405|416|501"
REFUSED_SUFFIX = re.compile(rf"status code: (?:{NO_SUFFIX})|HTTP error: 416|Range Not Satisfiable")

# Matches an error of obstore that has sent a request more than once.
REPEATED = re.compile(r"after [1-9][0-9]* retries")
BEYOND_END = re.compile(r"\b416\b")  # the HTTP status
MISSING_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|specified (bucket|container) does not exist", re.I
)

_checked: set[bytes] = set()
_told: set[tuple[bytes, str]] = set()
_suffixes: dict[bytes, bool] = {}

# For each event loop the lock of its probe: concurrent writes send one. An `asyncio.Lock` works on one event loop only.
_probing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


async def check(store: Any, key: str) -> None:
    """Find out whether a place honours conditions; warn if not. Only the first call for a place asks the server.

    The probe is an empty object under a new name beside `key`, on the condition that the object, which does not exist, is in
    a certain state. A server that honours conditions stores nothing, so the permission to write is enough, and nothing
    remains. Any other server stores the probe, which is deleted at once. A probe under the name of an existing object would
    overwrite that object; a put-if-absent, the other condition, cannot fail without an object.
    """
    if is_known(store):
        return
    place = _place(store)
    async with _probing.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if place in _checked:
            return
        try:
            reason = await _reason_against(store, key)
        except Exception as error:
            advise(error)
            raise
        _checked.add(place)
    if reason is not None:
        warn(store, reason)


def is_known(store: Any) -> bool:
    """Return True if `check` needs no request."""
    return type(store).__name__ == "MemoryStore" or _place(store) in _checked


def known_reason(store: Any) -> str | None:
    """Return the known reason why conditional writes to a place are not safe; None if none is known."""
    place = _place(store)
    return next((reason for told, reason in _told if told == place), None)


def refuses(store: Any) -> bool:
    """Return True if the service is known to refuse writes with a condition."""
    return (_place(store), REFUSES) in _told


def note_refusal(store: Any) -> None:
    """Remember that the service refuses writes with a condition, and warn."""
    _checked.add(_place(store))
    warn(store, REFUSES)


def says_not_implemented(error: Exception) -> bool:
    """Return True if a service has answered 501: it does not have what the request asks for, and never will."""
    return NOT_IMPLEMENTED.search(str(error)) is not None


def advise(error: Exception) -> None:
    """Add to an error of a write with a condition what to do if the service refuses only the condition."""
    if PERHAPS_REFUSED.search(str(error)):
        error.add_note(
            "this write has a condition (If-Match); if the service takes writes without one, open the store with "
            "conditional_put='disabled': then updates of other processes may be lost"
        )


def says_not_allowed(error: Exception) -> bool:
    """Return True if a server has answered 405, for which obstore raises the error of a missing object."""
    return "status code: 405" in str(error)


def has_suffixes(store: Any) -> bool | None:
    """Return True if the server of a place takes ranges from the end of an object, False if it refuses them; None: not known."""
    return _suffixes.get(_place(store))


def note_suffix(store: Any, refusal: Exception | None) -> None:
    """Remember that a server has answered a range from the end, or refused it and then answered one from the start."""
    import obstore

    if refusal is None:
        _suffixes[_place(store)] = True
    elif isinstance(refusal, obstore.exceptions.NotSupportedError) or REFUSED_SUFFIX.search(str(refusal)):
        _suffixes[_place(store)] = False


def without_retries(store: Any) -> Any:
    """Return an obstore of the same place that sends each request once; the store itself if it cannot be made again.

    obstore repeats a request that is answered with 501 ten times, for a minute.
    """
    try:
        arguments, keywords = store.__getnewargs_ex__()
        return type(store)(*arguments, **{**keywords, "retry_config": {"max_retries": 0}})
    except Exception:  # noqa: BLE001 - a probe that is repeated costs time only
        return store


def warn(store: Any, reason: str) -> None:
    """Warn that writers in other processes can lose updates; once for each place and reason."""
    warn_of(_place(store), _shown(store), reason)


def warn_of(place: bytes, shown: str, reason: str) -> None:
    """Warn as `warn` does, about a place that is not an obstore."""
    if (place, reason) in _told:
        return
    _told.add((place, reason))
    warnings.warn(
        f"partial writes to {shown} are not safe from writers in other processes, whose updates may be lost: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


async def _reason_against(store: Any, key: str) -> str | None:
    """Send the probe; return why conditions do not work, or None. Other errors pass: the write itself would raise them."""
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
    except errors.GenericError as error:
        if says_not_implemented(error):
            return REFUSES
        raise
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
    """Send the probe, and repeat it if its answer was cut, because obstore does not repeat a request whose answer has begun.

    Both have the same name, so that at most one object is left to delete.
    """
    import obstore

    try:
        await obstore.put_async(without_retries(store), name, b"", mode=NEVER)
    except obstore.exceptions.GenericError as error:
        if was_repeated(error) or says_not_implemented(error):
            raise
        await obstore.put_async(store, name, b"", mode=NEVER)


def names_missing_bucket(error: Exception) -> bool:
    """Return True if a service answered that the bucket or container does not exist; obstore has no error for that."""
    return MISSING_BUCKET.search(str(error)) is not None


def was_repeated(error: Exception) -> bool:
    """Return True if obstore sent the request more than once before it raised this error."""
    return REPEATED.search(str(error)) is not None


def was_beyond_end(error: Exception) -> bool:
    """Return True if the service has refused a range because the object ends before it."""
    return BEYOND_END.search(str(error)) is not None


def _place(store: Any) -> bytes:
    """Return a digest of the settings of an obstore. Copies of one store, such as those of a worker's tasks, have the same."""
    import hashlib  # here, because it loads OpenSSL

    settings = [type(store).__name__, str(getattr(store, "prefix", None)), str(getattr(store, "url", None))]
    for name in ("config", "client_options"):
        settings.append(repr(sorted((getattr(store, name, None) or {}).items())))
    return hashlib.blake2b("\n".join(settings).encode()).digest()  # the configuration may hold secrets


def _shown(store: Any) -> str:
    """Return the name of a store for messages, without secrets."""
    config = getattr(store, "config", None) or {}
    names = ("endpoint", "bucket", "account_name", "container_name")
    shown = ", ".join(f"{name}={config[name]!r}" for name in names if name in config)
    return f"{type(store).__name__}({shown})"
