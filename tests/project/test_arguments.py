# test_arguments.py - wrong arguments of public functions
# SPDX-License-Identifier: MIT
"""Wrong arguments raise errors that name the argument, what is expected and what was given. Before, they were errors of the code
that used them first (`'<' not supported`), or were taken for something else: a string for a list of letters, {} for False."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec import arguments, kv, options, tools, transformer
from shardcodec.access.array import ArrayKeywords
from shardcodec.options import NAMES, OptionChoices

ODD = object()
# At most one of these has the type of a parameter.
VALUES: list[Any] = [
    ODD,
    "",
    "t*",
    b"x",
    -1,
    1.5,
    True,
    [],
    ["t*"],
    [None],
    {},
    {"a": 1},
    (1.5, 2),
    np.zeros(2),
    print,
    1j,
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a group of two arrays."""
    group = zarr.create_group(tmp_path / "group.zarr")
    for name in ("temperature", "wind"):
        group.create_array(name, shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="int32")[:] = 7
    monkeypatch.chdir(tmp_path)
    return tmp_path


SPEC = shardcodec.ShardSpec((4, 4), (2, 2), "int32", 0)
VALUES_OF_ARRAY = np.ones((4, 4), dtype="int32")
SHAPE_AND_TYPE: dict[str, Any] = {
    "shape": (8, 8),
    "dtype": "int32",
    "accesses": [tools.parse_access("1,:", (8, 8))],
}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "inspect": (tools.inspect, {"target": "group.zarr"}),
    "verify": (tools.verify, {"target": "group.zarr"}),
    "compact": (tools.compact, {"target": "group.zarr", "dry_run": True}),
    "repair": (tools.repair, {"target": "group.zarr", "dry_run": True}),
    "convert": (tools.convert, {"source": "group.zarr", "destination": "new.zarr", "dry_run": True}),
    "plan_convert": (
        tools.plan_convert,
        {"source": "group.zarr", "destination": "new.zarr", "file": "job", "parts": 2},
    ),
    "doctor": (tools.doctor, {"target": "group.zarr"}),
    "run_part": (tools.run_part, {"file": "job", "part": 0}),
    "status": (tools.status, {"file": "job"}),
    "plan_writes": (tools.plan_writes, {"array": "group.zarr/wind", "workers": 2}),
    "advise": (tools.advise, SHAPE_AND_TYPE),
    "parse_access": (tools.parse_access, {"text": "1,:", "shape": (8, 8)}),
    "open_array": (shardcodec.open_array, {"store": "group.zarr", "path": "wind"}),
    "stream": (shardcodec.stream, {"arrays": "group.zarr/wind"}),
    "tail": (shardcodec.tail, {"array": "group.zarr/wind"}),
    "open_shard": (shardcodec.open_shard, {"store": "group.zarr", "key": "wind/c/0/0", "spec": SPEC}),
    "ShardWriter": (shardcodec.ShardWriter, {"store": None, "spec": SPEC}),
    "encode": (shardcodec.encode, {"array": VALUES_OF_ARRAY, "spec": SPEC}),
    "decode": (shardcodec.decode, {"buffer": shardcodec.encode(VALUES_OF_ARRAY, SPEC), "spec": SPEC}),
    "group_writes": (shardcodec.group_writes, {}),
    "chunk_state": (shardcodec.chunk_state, {"array": "group.zarr/wind"}),
    "IndexCache": (shardcodec.IndexCache, {"max_bytes": 100}),
    "ShardOrder": (
        shardcodec.ShardOrder,
        {
            "array": shardcodec.open_array(zarr.create_array({}, shape=(8,), chunks=(2,), dtype="i4").store),
            "starts": [[0]],
        },
    ),
    "Transaction": (kv.Transaction, {}),
    "ShardingStorageTransformer": (
        transformer.ShardingStorageTransformer,
        {"store": zarr.storage.MemoryStore(), "chunks_per_shard": (2, 2)},
    ),
    "open_2022": (transformer.open_2022, {"store": "group.zarr"}),
    "convert_2022": (transformer.convert_2022, {"src": "group.zarr", "dst": "new.zarr"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_refused(name: str, folder: Path) -> None:
    function, given = CALLS[name]
    inner = function.__init__ if inspect.isclass(function) else function
    hints = get_type_hints(inspect.unwrap(inner), localns=vars(arguments))
    n_refused = 0
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD or (rule := arguments._rule(hint)) is None:
            continue
        for value in VALUES:
            if any(test(value) for test in rule.tests):
                continue
            with pytest.raises(
                (TypeError, ValueError), match=rf"^(array '[^']*': )?{parameter.name}: expected .*, got "
            ):
                function(**{**given, parameter.name: value})
            n_refused += 1
    assert n_refused >= 10
    assert os.listdir(folder) == ["group.zarr"]


def shard() -> shardcodec.Shard:
    return shardcodec.open_shard("group.zarr", "wind/c/0/0", SPEC, mode="r+")


def store() -> kv.ShardedKeyValueStore:
    return kv.ShardedKeyValueStore("new", grid_shape=(4, 4), index_codecs=SPEC.index_codecs)


ONE = np.ones((1, 2, 2), dtype="int32")
# Parameters that take many types, so the functions themselves check them.
CHECKED_BY_HAND: dict[str, tuple[str, Callable[[Any], Any], Sequence[Any]]] = {
    "read_chunks": (
        "coords",
        lambda value: shard().read_chunks(value),
        [ODD, "t*", None, 1, {"a": 1}, [(0, 1.5)]],
    ),
    "read_encoded": ("coords", lambda value: shard().read_encoded(value), [ODD, "t*", None, 1, {}]),
    "erase": ("coords", lambda value: shard().erase(value), [ODD, "t*", None, 1, {}]),
    "write_chunks": (
        "chunks",
        lambda value: shard().write_chunks([(0, 0)], value),
        [ODD, "t*", None, [1.5], [[1], [1, 2]]],
    ),
    "write_encoded": (
        "chunks",
        lambda value: shard().write_encoded([(0, 0)], value),
        [ODD, "t*", None, 1, ["t*"], [1]],
    ),
    "footer": ("footer", lambda value: shard().erase([(0, 0)], footer=value), [ODD, "t*", 1, [1]]),
    "header": (
        "header",
        lambda value: shardcodec.ShardWriter(None, SPEC, header=value),
        [ODD, "t*", None, 1],
    ),
    "footer of a writer": (
        "footer",
        lambda value: shardcodec.ShardWriter(None, SPEC, footer=value),
        [ODD, "t*", 1],
    ),
    "alignment": (
        "alignment",
        lambda value: shardcodec.ShardWriter(None, SPEC, alignment=value),
        [ODD, "4", 1.5, 3, 0],
    ),
    "write_chunk": (
        "coords",
        lambda value: shardcodec.ShardWriter(None, SPEC).write_chunk(value, ONE[0]),
        [ODD, "t*", None, 1],
    ),
    "sizes": (
        "sizes",
        lambda value: shardcodec.ShardWriter(None, SPEC).write_joined([(0, 0)], value, b"abc"),
        [ODD, "t*", None, [1.5], [-1], [[1], [1, 2]]],
    ),
    "data": (
        "data",
        lambda value: shardcodec.ShardWriter(None, SPEC).write_encoded((0, 0), value),
        [ODD, "t*", None, 1],
    ),
    "buffer": ("buffer", lambda value: shardcodec.decode(value, SPEC), [ODD, "t*", None, 1]),
    "lenient": (
        "lenient",
        lambda value: shardcodec.ShardSpec.from_metadata({}, lenient=value),
        [ODD, 1, {}, None],
    ),
    "clip": (
        "clip",
        lambda value: shardcodec.ShardSpec((4,), (2,), "uint8", 0, clip=value),
        [ODD, 1, {}, None],
    ),
    "before": (
        "before",
        lambda value: shardcodec.ShardSpec((4,), (2,), "uint8", 0, before=value),
        [ODD, 1, "transpose"],
    ),
    "chain": ("chain", shardcodec.ShardSpec.from_chain, [ODD, SPEC, None, {}]),
    "inclusive_min": ("inclusive_min", kv.KeyRange, [ODD, 1, None, ["a"]]),
    "if_not_equal": (
        "if_not_equal",
        lambda value: store().read(b"\0" * 8, if_not_equal=value),
        [ODD, "t*", 1, ONE],
    ),
    "if_equal": (
        "if_equal",
        lambda value: store().write(b"\0" * 8, b"", if_equal=value),
        [ODD, "t*", 1, ONE],
    ),
    "keys": ("keys", lambda value: store().read_many(value), [ODD, "t*", b"12345678", 1, None]),
    "byte_ranges": (
        "byte_ranges",
        lambda value: store().read_many([], byte_ranges=value),
        [ODD, "t*", 1],
    ),
    "dtype": ("dtype", lambda value: tools.advise(**{**SHAPE_AND_TYPE, "dtype": value}), ["unit8", ODD, 1]),
    "children": ("children", lambda value: shardcodec.enable(children=value), [ODD, "no", 1, None, []]),
    "queue": (
        "queue",
        lambda value: shardcodec.stream("group.zarr/wind", queue=value),
        ["3 apples", "", 0, "0MiB"],
    ),
    "axis": ("axis", lambda value: shardcodec.stream("group.zarr/wind", value), ["time", 2, 1.5, []]),
    "strip_prefix_length": (
        "strip_prefix_length",
        lambda value: store().list(strip_prefix_length=value),
        [ODD, "1", 1.5],
    ),
}


@pytest.mark.parametrize("name", CHECKED_BY_HAND)
def test_wrong_values_of_any_type_are_refused(name: str, folder: Path) -> None:
    parameter, call, values = CHECKED_BY_HAND[name]
    for value in values:
        with pytest.raises(
            (TypeError, ValueError, IndexError), match=rf"^(array '[^']*': )?{parameter}\b.*: expected "
        ):
            call(value)


@pytest.mark.parametrize(
    "given",
    [
        {"max_files": "3"},
        {"max_files": 0},
        {"memory": "much"},
        {"chunk_nbytes": 1.5},
    ],
)
def test_bounds_are_checked_by_advise(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises((TypeError, ValueError), match=f"^{name}: expected .*, got "):
        tools.advise(**SHAPE_AND_TYPE, bounds=tools.Bounds(**given))


def test_string_for_a_list_of_patterns_is_one_pattern(folder: Path) -> None:
    """It was taken for its letters, and * chose every array."""
    report = tools.convert("group.zarr", "new.zarr", only="temp*")
    assert [one.name for one in report.arrays] == ["temperature"]
    assert sorted(zarr.open_group("new.zarr", mode="r")) == ["temperature"]


def test_list_is_a_shape(folder: Path) -> None:
    report = tools.convert("group.zarr", "new.zarr", shards=[8, np.int64(8)], chunks=np.array([4, 4]))
    assert [(one.chunk_shape, one.shard_shape) for one in report.arrays] == [((4, 4), (8, 8))] * 2


@pytest.mark.parametrize("name", NAMES)
def test_option_is_named_in_its_error(name: str) -> None:
    texts = () if name == "cache_dir" else ("x",)  # any text may be a folder
    for value in (ODD, b"x", [], [1], {}, (1, 2), np.zeros(2), 1j, *texts):
        for call in (
            shardcodec.options(**{name: value}).__enter__,
            lambda v=value: shardcodec.enable(**{name: v}),
        ):
            with pytest.raises(ValueError, match=rf"^option {name}: expected "):
                call()


def test_choices_for_type_checkers_are_those_of_the_program() -> None:
    hints = get_type_hints(OptionChoices)
    different = sorted(set(hints) ^ set(NAMES))
    assert tuple(hints) == NAMES, f"NAMES: those of OptionChoices in the same order; different: {different}"
    for name, hint in hints.items():
        rule = arguments._rule(hint)
        assert rule is not None and any(test(None) for test in rule.tests)
        for word in rule.words:
            with options(**{name: word}):
                pass


def test_keywords_of_a_new_array_are_those_of_zarr() -> None:
    """Type checkers find a misspelt one; zarr 3.1 does not have all of them."""
    of_zarr = set(inspect.signature(zarr.create_array).parameters) - {
        "store",
        "name",
        "data",
        "storage_options",
    }
    known = set(get_type_hints(ArrayKeywords))
    assert of_zarr <= known, f"add {sorted(of_zarr - known)} to ArrayKeywords in shardcodec/access/array.py"


# ---- the checks themselves


@arguments.checked
def example(
    flag: bool,
    n: int,
    share: float = 0.5,
    *,
    word: Literal["a", "b"] = "a",
    shape: Sequence[int] | None = None,
    place: str | os.PathLike[str] | None = None,
    facts: Mapping[str, Any] | None = None,
    call: Callable[[int], None] | None = None,
    anything: Any = None,
) -> int:
    return n


def test_right_types_pass() -> None:
    assert example(True, 1) == 1
    assert (
        example(np.True_, np.int64(2), 1, word="b", shape=(1, 2), place=Path("a"), facts={}, call=print) == 2
    )
    assert example(flag=False, n=3, share=np.float32(1), shape=np.array([1, 2]), place="a", anything=ODD) == 3
    assert example(False, 4, shape=[], anything="x") == 4


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"flag": 1}, "flag: expected True or False, got 1"),
        ({"n": True}, "n: expected a whole number, got True"),
        ({"n": np.array([1])}, "n: expected a whole number, got array"),
        ({"n": "1"}, "n: expected a whole number, got '1'"),
        ({"share": "1"}, "share: expected a number, got '1'"),
        ({"word": 1}, "word: expected one of 'a', 'b', got 1"),
        ({"shape": "12"}, "shape: expected a sequence of whole numbers, got '12'"),
        ({"shape": (1, 1.5)}, "shape: expected a sequence of whole numbers, got (1, 1.5)"),
        ({"place": b"a"}, "place: expected a string or a path, got b'a'"),
        ({"facts": [1]}, "facts: expected a mapping, got [1]"),
        ({"call": 1}, "call: expected a function, got 1"),
    ],
)
def test_wrong_types_are_named(given: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError) as found:
        example(**{"flag": True, "n": 1, **given})
    assert str(found.value).startswith(error)


def test_unknown_word_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="word: expected one of 'a', 'b', got 'c'"):
        example(True, 1, word="c")  # type: ignore[arg-type]


def test_errors_show_the_beginning_of_a_long_value() -> None:
    with pytest.raises(TypeError) as found:
        example("x" * 100_000, 1)  # type: ignore[arg-type]
    assert len(str(found.value)) < 200


def test_other_mistakes_are_errors_of_python() -> None:
    with pytest.raises(TypeError, match=r"example\(\) got an unexpected keyword argument 'm'"):
        example(True, 1, m=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        example(True)  # type: ignore[call-arg]
