# test_errors.py - the exceptions: their types, their attributes, and how they are copied and pickled
# SPDX-License-Identifier: MIT
"""Errors carry their numbers as attributes, and keep them when they are pickled and copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from shardcodec import errors
from shardcodec.errors import (
    ChecksumError,
    CodecError,
    LockError,
    ShardError,
    ShardFormatError,
    SpecError,
    UnsupportedError,
)

NUMBERS: list[tuple[type[ShardError], dict[str, Any]]] = [
    (ShardError, {}),
    (ShardFormatError, {"entry": 3, "chunk_coords": (0, 3), "offset": 2**64 - 2, "nbytes": 8, "limit": 1000}),
    (ChecksumError, {"shard": "c/0/1", "level": 1, "expected": 0xDEADBEEF, "actual": 0}),
    (CodecError, {"codec": "zstd", "library_code": -20, "detail": "cut short"}),
    (SpecError, {"path": "codecs[0].configuration.chunk_shape[1]", "actual": 3, "limit": 4}),
    (UnsupportedError, {"codec": "numcodecs.bz2"}),
    (LockError, {"shard": "c/0", "holder": 4711}),
]
each_error = pytest.mark.parametrize(("kind", "numbers"), NUMBERS, ids=[kind.__name__ for kind, _ in NUMBERS])


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (ShardFormatError, ValueError),
        (ChecksumError, ValueError),
        (CodecError, ValueError),
        (SpecError, ValueError),
        (UnsupportedError, NotImplementedError),
        (LockError, TimeoutError),
    ],
)
def test_errors_are_instances_of_the_types_that_zarr_raises(
    kind: type[ShardError], also: type[Exception]
) -> None:
    assert issubclass(kind, ShardError)
    assert issubclass(kind, also)


def test_only_lock_and_file_errors_are_oserrors() -> None:
    """A store's OSError passes unchanged, so our other errors must not look like one."""
    io = [
        name
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type) and issubclass(kind, OSError)
    ]
    assert io == ["LockError", "ShardFileError"]


@each_error
def test_numbers_are_attributes(kind: type[ShardError], numbers: dict[str, Any]) -> None:
    error = kind("entry claims too much", **numbers)
    assert str(error) == error.message == "entry claims too much"
    assert error.context == numbers
    for name, value in numbers.items():
        assert getattr(error, name) == value


def test_omitted_context_is_none() -> None:
    error = ShardFormatError("short", nbytes=3)
    assert (error.shard, error.chunk_coords, error.entry, error.level, error.offset) == (None,) * 5
    assert (error.limit, error.expected, error.actual, error.codec, error.path) == (None,) * 5


@each_error
@pytest.mark.parametrize(
    "travel",
    [copy.copy, copy.deepcopy, *(lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in range(2, 6))],
    ids=["copy", "deepcopy", *(f"pickle-{p}" for p in range(2, 6))],
)
def test_errors_survive_copy_and_pickle(kind: type[ShardError], numbers: dict[str, Any], travel: Any) -> None:
    error = kind("message", **numbers)
    error.add_note("seen by worker 3")
    twin = travel(error)
    assert twin is not error
    assert type(twin) is kind
    assert str(twin) == str(error)
    assert {name: getattr(twin, name) for name in numbers} == numbers
    assert twin.__notes__ == ["seen by worker 3"]


@each_error
def test_context_is_added_in_front_of_the_message(kind: type[ShardError], numbers: dict[str, Any]) -> None:
    error = kind("too short", **numbers)
    outer = error.with_context(chunk_coords=(1, 2)).with_context(shard="c/0/7", attempt=2)
    assert type(outer) is kind
    assert str(outer) == "shard 'c/0/7': inner chunk (1, 2): too short"
    assert outer.context == numbers | {"chunk_coords": (1, 2), "shard": "c/0/7", "attempt": 2}
    assert str(error) == "too short"
    assert error.context == numbers


def test_context_keeps_notes_and_survives_pickling() -> None:
    error = ChecksumError("stored 1, computed 2", expected=1, actual=2)
    error.add_note("bit 0 differs")
    outer = pickle.loads(pickle.dumps(error.with_context(shard="c/0")))
    assert outer.__notes__ == ["bit 0 differs"]
    assert (outer.shard, outer.expected, outer.actual) == ("c/0", 1, 2)
    assert str(outer) == "shard 'c/0': stored 1, computed 2"


def test_other_context_does_not_change_the_message() -> None:
    assert str(CodecError("bad frame").with_context(level=1, entry=0)) == "bad frame"


def test_shard_without_a_name_is_not_shown() -> None:
    """Messages once began with "shard '':"."""
    nameless = ShardFormatError("index is short").with_context(shard="", chunk_coords=(0, 1))
    assert str(nameless) == "inner chunk (0, 1): index is short"
    assert str(ShardFormatError("index is short").with_context(shard=0)) == "shard 0: index is short"


@pytest.mark.parametrize("name", ["args", "message", "with_context", "_private", "__class__"])
def test_reserved_names_are_refused_as_context(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        ShardError("x", **{name: 1})


def test_message_is_optional() -> None:
    assert str(ShardError()) == ShardError().message == ""
