# same_text.py - documents with the same text are parsed once
# SPDX-License-Identifier: MIT
"""`parsed_once`: a function of a metadata document whose result is kept for other documents with the same text.

A step of a tool asks an array for its layout, its codecs or its keys, and most arrays of a hierarchy differ in no more than their
name. Results are immutable, and made from a copy of the document, so a caller may change what it gave.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import ShardError

__all__ = ["parsed_once"]

R = TypeVar("R")

N_KEPT = 256
MAX_CHARACTERS = 1 << 18  # a grid may list the sizes of a million chunks


def _text_of(document: object) -> str | None:
    """Return the text of a document without its attributes; None if it is too long, or has values that JSON does not have."""
    if not isinstance(document, dict | Mapping):
        return None
    if isinstance(document.get("attributes"), dict | Mapping):
        document = {**document, "attributes": {}}
    try:
        text = json.dumps(document)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= MAX_CHARACTERS else None


def parsed_once(parse: Callable[..., R]) -> Callable[..., R]:
    """Return a function of a document, and of keywords, that is called once for each text. `parse` does not look at the attributes."""

    @functools.lru_cache(N_KEPT)
    def of_text(text: str, **keywords: Any) -> R:
        return parse(json.loads(text), **keywords)

    @functools.wraps(parse)
    def of_document(document: Any, **keywords: Any) -> R:
        text = _text_of(document)
        if text is not None:
            try:
                return of_text(text, **keywords)
            except (ShardError, RecursionError):
                pass  # the error shall quote the values as they were given
        return parse(document, **keywords)

    of_document.cache_clear = of_text.cache_clear  # type: ignore[attr-defined]
    return of_document
