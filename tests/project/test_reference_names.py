# test_reference_names.py - the reference has the types that public functions return
# SPDX-License-Identifier: MIT
"""A public function returns an exported type or one that callers only read. A type that is not exported has an entry of its own."""

from __future__ import annotations

import inspect
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardcodec import tools
from shardcodec.tools.verify.verify import ShardFindings

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = runpy.run_path(str(SCRIPTS / "reference_names.py"))
# These are configured through JSON; the classes show what was parsed.
PARSED = {
    "shardcodec.format.codec_classes.Bytes",
    "shardcodec.format.codec_classes.Codec",
    "shardcodec.format.codec_classes.RegistryPackBits",
    "shardcodec.format.codecs.Sharding",
}
# A call returns objects of these types. Callers read them, and never make one or need the name of its type.
READ = {
    "shardcodec.access.documents.Attributes",
    "shardcodec.kv.keys.Stamp",
    "shardcodec.kv.store.BoundStore",
    "shardcodec.live.stream.StreamGroup",
    "shardcodec.live.stream.StreamStats",
    "shardcodec.readable.OpenArray",
    "shardcodec.readable.OpenArrays",
}


def dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def public() -> dict[str, Any]:
    modules = {name: __import__(name, fromlist=["*"]) for name in NAMES["MODULES"]}
    return {f"{m}.{name}": getattr(modules[m], name) for m in modules for name in NAMES["public_names"](m)}


def results(thing: Any) -> list[type]:
    """Return the classes of the package that a function or the methods of a class return."""
    if not inspect.isclass(thing):
        return list(NAMES["types_in"](thing))
    members = inspect.getmembers_static(thing, lambda value: NAMES["function_of"](value) is not None)
    calls = [value for name, value in members if NAMES["is_for_callers"](thing, name)]
    return [kind for call in calls for kind in NAMES["results_of"](NAMES["function_of"](call))]


PUBLIC = public()
EXPORTED = {dotted(value) for value in PUBLIC.values() if inspect.isclass(value)}


def test_results_are_found() -> None:
    assert [kind.__name__ for kind in results(PUBLIC["shardcodec.open_arrays"])] == ["OpenArrays"]
    assert "SlotWriter" in [kind.__name__ for kind in results(PUBLIC["shardcodec.ShardWriter"])]
    assert ShardFindings in NAMES["types_in"](tools.VerifyReport)


@pytest.mark.parametrize("name", PUBLIC)
def test_type_of_a_result_is_exported(name: str) -> None:
    missing = {dotted(kind) for kind in results(PUBLIC[name])} - EXPORTED - PARSED - READ
    assert not missing, f"export the types that {name} returns, or give them a name that begins with _"


def test_every_type_in_a_result_has_an_entry_with_a_docstring() -> None:
    entries = {name for module in NAMES["MODULES"] for name in NAMES["unexported_types"](module)}
    assert dotted(ShardFindings) in entries and entries >= PARSED | READ
    for name in entries:
        module, _, kind = name.rpartition(".")
        assert inspect.getdoc(getattr(__import__(module, fromlist=["*"]), kind)), name


GROUPED = """Do.

Parameters
----------
dtype, fill_value
    As in `X`, see ``docs/format.md``.

    More.
first, last : int, keyword-only
    Numbers.
threads : optional
    A number.

Returns
-------
a, b
    Results.
"""
SEPARATED = """Do.

Parameters
----------
dtype
    As in `X`, see [format](../format.html).

    More.
fill_value
    As in `X`, see [format](../format.html).

    More.
first : int
    Numbers.
last : int
    Numbers.
threads
    A number.

Returns
-------
a, b
    Results.
"""


def test_parameters_with_one_description_get_a_type_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the docstring has no type, the reference takes it from the signature: that of the first name, for all of them."""
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))  # type: ignore[arg-type]
    separated = runpy.run_path(str(SCRIPTS / "griffe_docstrings.py"))["separated"]
    assert separated(GROUPED) == SEPARATED
    assert separated("One line.") == "One line."
