# test_store_questions.py - the check that only storage asks for the kind of a store
# SPDX-License-Identifier: MIT
"""`store_questions.questions_of_kind` finds what it should; `test_layers.py` runs it on the package."""

from __future__ import annotations

import pytest
from store_questions import questions_of_kind


@pytest.mark.parametrize(
    "question",
    [
        "type(x) is LocalStore",
        "type(x) == compat.MemoryStore",
        "type(x) in (LocalStore, MemoryStore)",
        "isinstance(x, FileStore)",
        "isinstance(x, zarr.storage.ObjectStore | Path)",
        "issubclass(type(x), ZarrStore)",
        "type(x).__name__ == 'LocalStore'",
        "x.__class__ is BytesStore",
        "is_local(x)",
        "stores.is_local(x)",
        "def is_memory(x): ...",
        "{LocalStore: 1}[type(x)]",
        "match x:\n    case MemoryStore(): ...",
        "from .compat import LocalStore as Local\ntype(x) is Local",
    ],
)
def test_a_question_for_the_kind_of_a_store_is_found(question: str) -> None:
    assert questions_of_kind(question)


@pytest.mark.parametrize(
    "code",
    [
        "from .compat import LocalStore\nLocalStore(path, read_only=True)",
        "store = sync(LocalStore.open(path))",
        "zarr.storage.MemoryStore()",
        "isinstance(x, Store)",
        "from ..storage.file_systems import is_local\nis_local(fd)",
        "'a LocalStore in a text'",
    ],
)
def test_code_may_create_a_store(code: str) -> None:
    assert not questions_of_kind(code)
