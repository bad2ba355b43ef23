# test_flags.py - each command has the parameters of its function
# SPDX-License-Identifier: MIT
"""A parameter of a tool that the command lacks, or a flag with another default, would be noticed by a user only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from shardcodec import tools

typer = pytest.importorskip("typer")

# `advise` builds its arguments from texts, and `enable` and `disable` change the environment.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "compact": tools.compact, "convert": tools.convert, "doctor": tools.doctor, "inspect": tools.inspect,
    "plan": tools.plan_convert, "repair": tools.repair, "reshard": tools.convert, "run-part": tools.run_part,
    "status": tools.status, "verify": tools.verify,
}  # fmt: skip
# Parameters that the command and the function name differently.
RENAMED = {
    "path": "target", "metadata": "spec", "storage_option": "storage_options", "parts": "n_parts",
    "price_get": "prices", "price_put": "prices",
}  # fmt: skip
# Parameters of the command that turn one of the function off.
INVERTED = {"keep_going": "fail_fast", ("doctor", "dry_run"): "probe"}
ONLY_COMMAND = {"as_json", "jsonl", "progress", ("plan", "operation"), ("repair", "in_place")}
ONLY_FUNCTION = {"monitor", "on_shard", "on_array"}
# Flags that have another name than their parameter.
FLAGS = {"copy": "from", "as_json": "json", "n_parts": "parts"}


def commands() -> Any:
    from shardcodec.cli.app import app

    return typer.main.get_command(app).commands


def parameters(command: str) -> dict[str, Any]:
    """Return the parameters of a command that its function has, too, by their names there."""
    found = {}
    for one in commands()[command].params:
        if not ONLY_COMMAND & {one.name, (command, one.name)}:
            inverted = INVERTED.get((command, one.name), INVERTED.get(one.name))
            found[inverted or RENAMED.get(one.name, one.name)] = one
    return found


@pytest.mark.parametrize("command", FUNCTIONS)
def test_command_and_function_have_the_same_parameters(command: str) -> None:
    expected = inspect.signature(FUNCTIONS[command]).parameters.keys() - ONLY_FUNCTION
    assert parameters(command).keys() == expected


@pytest.mark.parametrize("command", FUNCTIONS)
def test_command_and_function_have_the_same_defaults(command: str) -> None:
    """A parameter without a default is an argument, one of several values may be repeated, and one of two values is a switch."""
    signature = inspect.signature(FUNCTIONS[command]).parameters
    for name, one in parameters(command).items():
        default, given = signature[name].default, one.default
        is_inverted = one.name in INVERTED or (command, one.name) in INVERTED
        if default is inspect.Parameter.empty:
            assert given in (None, 1), (name, given)
        elif default == () or name == "storage_options":
            assert given is None and one.multiple, name
        elif isinstance(default, bool):
            assert one.is_flag and given is (default ^ is_inverted), (name, given)
        else:
            assert given == default, (name, given)


@pytest.mark.parametrize("command", FUNCTIONS)
def test_flag_has_the_name_of_the_parameter(command: str) -> None:
    for one in commands()[command].params:
        if one.opts[0].startswith("--"):
            assert one.opts[0] == "--" + FLAGS.get(one.name, one.name).replace("_", "-")
