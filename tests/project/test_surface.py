# test_surface.py - the public surface, compared with a stored list
# SPDX-License-Identifier: MIT
"""A change of a public name is a commit that says so: it changes ``tests/golden/surface.txt``, too.

Write the list again with ``python tests/project/test_surface.py > tests/golden/surface.txt``. It has the public names with their bases,
parameters, kinds and defaults, the flags of the commands, the exit codes, and the options. The members of JSON reports are in
``tests/golden/reports.json``; `docs/versions.md` says what may change, and when.
"""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardcodec
from shardcodec import kv, tools
from shardcodec.arguments import FORMER_NAMES, FORMER_PARAMETERS
from shardcodec.options import NAMES as OPTIONS
from shardcodec.options import SWITCHES, Options, check, variable_of

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "golden" / "surface.txt"
NAMES = runpy.run_path(str(ROOT / "scripts/reference_names.py"))


def shown(default: Any) -> str:
    """Return a default in a form that does not depend on the machine or the version of Python."""
    if isinstance(default, dataclasses._HAS_DEFAULT_FACTORY_CLASS):  # type: ignore[attr-defined]
        return "<made>"
    return (
        repr(default)
        if isinstance(default, str | int | float | tuple | None)
        else f"<{type(default).__name__}>"
    )


def parameters(function: Any) -> str:
    """Return the parameters of a function, without annotations."""
    found = [
        one.replace(annotation=one.empty)
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "cls")
    ]
    words, is_keyword = [], False
    for one in found:
        if one.kind is one.VAR_POSITIONAL or (one.kind is one.KEYWORD_ONLY and not is_keyword):
            words += [] if one.kind is one.VAR_POSITIONAL else ["*"]
            is_keyword = True
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        words.append(f"{stars}{one.name}" + ("" if one.default is one.empty else f"={shown(one.default)}"))
        if one.kind is one.POSITIONAL_ONLY and not any(
            other.kind is other.POSITIONAL_ONLY for other in found[found.index(one) + 1 :]
        ):
            words.append("/")
    return f"({', '.join(words)})"


def documented_attributes(kind: type) -> list[str]:
    """Return the names in the section Attributes of a docstring: those that a constructor sets."""
    section = re.search(
        r"^Attributes\n-+\n(.*?)(?=^\w+\n-+\n|\Z)",
        inspect.cleandoc(kind.__doc__ or ""),
        re.MULTILINE | re.DOTALL,
    )
    found = re.findall(r"^(\w[\w, ]*?) :", section[1], re.MULTILINE) if section else []
    return [name for names in found for name in names.split(", ")]


def members(name: str, kind: type) -> Iterator[str]:
    """Yield the public members of a class, those of its bases in this package too."""
    ours = [base for base in kind.__mro__ if NAMES["is_ours"](base)]
    known = {
        one
        for base in ours
        for one in (*vars(base), *inspect.get_annotations(base), *documented_attributes(base))
    }
    for one in sorted(member for member in known if NAMES["is_for_callers"](kind, member)):
        value = inspect.getattr_static(kind, one, None)
        function = NAMES["function_of"](value)
        yield f"{name}.{one}" + (
            "" if function is None or isinstance(value, property) else parameters(function)
        )


def names_of(module: str) -> Iterator[str]:
    for one in NAMES["public_names"](module):
        name, thing = f"{module}.{one}", getattr(__import__(module, fromlist=["*"]), one)
        if not inspect.isclass(thing):
            yield name + (parameters(thing) if callable(thing) else "")
            continue
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
        own = "\nParameters\n" in inspect.cleandoc(thing.__doc__ or "")  # else functions make it
        yield f"{name}{parameters(thing) if own else ''}" + (f": {bases}" if bases else "")
        yield from members(name, thing)


def flags() -> Iterator[str]:
    import typer

    from shardcodec.cli.app import app

    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        for one in command.params:
            words = sorted({*one.opts, *one.secondary_opts})
            yield f"{name} {' '.join(words)}"


def surface() -> str:
    from shardcodec.cli.exit_code import ExitCode

    lines = ["# names", *(line for module in NAMES["MODULES"] for line in names_of(module))]
    lines += [
        "",
        "# options",
        *(f"{one.name}={shown(one.default)}" for one in dataclasses.fields(Options) if one.name in OPTIONS),
        "",
        "# environment variables for experts",
        *(
            f"{variable_of(one.name)}={shown(one.default)}"
            for one in dataclasses.fields(Options)
            if one.name in SWITCHES
        ),
    ]
    lines += ["", "# exit codes", *(f"{code.value} {code.name}" for code in ExitCode)]
    lines += ["", "# commands", *flags()]
    return "\n".join(lines) + "\n"


def test_public_surface_is_the_stored_one() -> None:
    pytest.importorskip("typer")
    now, stored = surface().splitlines(), STORED.read_text(encoding="utf-8").splitlines()
    gone, new = [one for one in stored if one not in now], [one for one in now if one not in stored]
    assert now == stored, (
        f"gone: {gone}; new: {new}. If callers shall see this change, say so in the commit and write the list again: {__doc__}"
    )


def test_former_names_say_the_new_ones(tmp_path: Path) -> None:
    array = shardcodec.create_array(tmp_path, shape=(4,), chunks=(4,), dtype="u1")
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    store = kv.ShardedKeyValueStore(str(tmp_path / "shard"), grid_shape=(2,), index_codecs=codecs)
    former = {
        (array, "get_selection"): "read",
        (store, "read_many_sync"): "read_many",
        (store.transaction(), "commit_sync"): "commit",
    }
    for (handle, name), new in former.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is {new} now$"):
            getattr(handle, name)
    with pytest.raises(AttributeError, match=r"no attribute 'commit_sync'$"):
        array.commit_sync  # type: ignore[attr-defined]  # noqa: B018


def test_former_parameters_say_the_new_ones() -> None:
    takers: dict[str, Callable[..., Any]] = {
        "n_parts": tools.plan_convert, "name": shardcodec.create_array, "path": shardcodec.ShardWriter,
        "path_or_store": shardcodec.open_array, "array": tools.inspect, "exactly": tools.convert, "level": tools.verify,
        "only_arrays": tools.verify, "verify": tools.convert,
    }  # fmt: skip
    for name, new in FORMER_PARAMETERS.items():
        take = takers[name]
        with pytest.raises(
            TypeError, match=f"{name}: {take.__name__} has no such parameter: it is {re.escape(new)} now$"
        ):
            take(**{name: 2})


def test_former_flags_say_the_new_ones(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    from shardcodec.cli.app import FORMER_FLAGS, run

    for name, new in FORMER_FLAGS.items():
        assert run(["verify", "a", f"{name}=x"]) == 2
        assert f"{name} {new}" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    words = [word for line in flags() for word in line.split()[1:]]
    assert not FORMER_FLAGS.keys() & set(words)


def test_place_of_an_array_is_a_store_and_a_path(tmp_path: Path) -> None:
    shardcodec.create_array(tmp_path, "g/a", shape=(4,), chunks=(2,), dtype="u1")[1] = 7
    for place in ((tmp_path, "g/a"), (tmp_path / "g", "a"), (tmp_path / "g/a",)):
        assert shardcodec.open_array(*place)[1] == 7
    assert shardcodec.create_array({}, path="a", shape=(4,), dtype="u1").shape == (4,)


def test_sizes_are_numbers_or_texts_everywhere(tmp_path: Path) -> None:
    """`stream` and one option took a text, all others a number of bytes alone."""
    array = shardcodec.create_array(tmp_path / "a", shape=(8,), chunks=(2,), shards=(4,), dtype="u1")
    array[...] = 1
    for name in ("index_cache", "cache"):
        assert check({name: "2MiB"}) == {name: 2 << 20}
    assert shardcodec.group_writes("1 MiB").max_bytes == 1 << 20
    assert shardcodec.IndexCache("1MiB", max_chunk_bytes="3MB").max_bytes == 1 << 20
    assert tools.Bounds(chunk_nbytes="64KiB", memory="1GiB") == tools.Bounds(
        chunk_nbytes=1 << 16, memory=1 << 30
    )
    assert shardcodec.open_array(tmp_path / "a", index_cache="1MiB")[3] == 1
    runs: dict[str, Callable[..., Any]] = {
        "inspect": tools.inspect, "verify": tools.verify, "compact": tools.compact,
        "repair": partial(tools.repair, dry_run=True), "convert": lambda path, **how: tools.convert(path, tmp_path / "b", shards=(8,), **how),
    }  # fmt: skip
    for run in runs.values():
        run(tmp_path / "a", memory="64MiB")
        with pytest.raises(ValueError, match="memory: expected a size such as 512MiB or 4GB, got 'much'"):
            run(tmp_path / "a", memory="much")


def test_docstrings_of_experimental_names_say_so() -> None:
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| experimental: (.*?) \|", page, re.MULTILINE)
    names = re.findall(r"`(shardcodec\.[\w.]+)`", row)
    assert len(names) == 5
    for name in names:
        assert "Experimental: it may change in a minor version" in (pydoc.locate(name).__doc__ or ""), name


def test_pages_and_examples_use_the_new_names() -> None:
    pages = [
        path
        for folder in ("docs", "examples", "bench")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".ipynb")
    ]
    former = re.compile(rf"\.({'|'.join(FORMER_NAMES)})\b")
    found = {
        path.name: former.findall(path.read_text(encoding="utf-8")) for path in [*pages, ROOT / "README.md"]
    }
    assert not {name: names for name, names in found.items() if names}


if __name__ == "__main__":
    sys.stdout.write(surface())
