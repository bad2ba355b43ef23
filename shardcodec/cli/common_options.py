# common_options.py - the options that several commands have
# SPDX-License-Identifier: MIT
"""Types of common options, for the signatures of commands: ``array: ArrayOption = None``; and their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from ..format.spec import ShardSpec
from ..readable import parse_nbytes
from .progress import ProgressKind

__all__ = [
    "ArrayOption",
    "DaskOption",
    "DryRunOption",
    "ExactlyOption",
    "ExcludeOption",
    "JsonLinesOption",
    "JsonOption",
    "KeepGoingOption",
    "MemoryOption",
    "MetadataOption",
    "OnlyArraysOption",
    "OnlyOption",
    "PathArgument",
    "ProgressOption",
    "StorageOption",
    "ThreadsOption",
    "parse_share",
    "spec_from",
    "storage_options_from",
]


PathArgument = Annotated[
    str,
    Argument(
        metavar="PATH", help="A group, an array or one shard: a path, a URL, or a path into a zip file."
    ),
]
ArrayOption = Annotated[
    str | None, Option("--array", metavar="NAME", help="Only this array of the group, by its path.")
]
OnlyOption = Annotated[
    list[str] | None,
    Option(
        "--only",
        metavar="PATTERN",
        help="Only arrays with such a path, such as 'a/*', and the coordinates that they need; may be repeated.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    Option("--exclude", metavar="PATTERN", help="Leave out such arrays and groups; may be repeated."),
]
ExactlyOption = Annotated[
    bool, Option("--exactly", help="Copy only arrays that are named, without the coordinates that they need.")
]
MetadataOption = Annotated[
    str | None,
    Option("--metadata", metavar="FILE", help="zarr.json of the array, for a shard outside of its array."),
]
StorageOption = Annotated[
    list[str] | None,
    Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Option of the store of a URL, such as region=eu-west-1 or skip_signature=true; may be repeated.",
    ),
]
OnlyArraysOption = Annotated[
    bool, Option("--only-arrays", help="Leave out objects that belong to no array, such as tables.")
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would be done, and change nothing.")]
MemoryOption = Annotated[
    int | None,
    Option("--memory", metavar="SIZE", parser=parse_nbytes, help="Memory to use at most, such as 4GiB."),
]
ThreadsOption = Annotated[int | None, Option("--threads", metavar="N", min=1, help="Threads to use.")]
DaskOption = Annotated[
    str | None,
    Option(
        "--dask",
        metavar="ADDRESS|local:N",
        help="Let the workers of this dask scheduler, or N new processes, do the work. --memory and --threads are of one worker.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print the report as one JSON document.")]
JsonLinesOption = Annotated[
    bool, Option("--jsonl", help="Print one JSON document a line, as results appear.")
]
ProgressOption = Annotated[
    ProgressKind,
    Option(
        "--progress",
        help="Progress on standard error: lines, or nothing. auto: a bar on a terminal, in a file a line each minute.",
    ),
]
KeepGoingOption = Annotated[
    bool, Option("--keep-going/--fail-fast", help="Go on after a finding, or stop at the first one.")
]


def parse_share(text: str | float) -> float:
    """Return a share from ``1%`` or ``0.01``."""
    given = str(text).strip()
    try:
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        raise BadParameter(f"expected a share such as 1% or 0.01, got {text!r}") from None
    if not 0 <= share <= 1:
        raise BadParameter(f"expected a share from 0 % to 100 %, got {text!r}")
    return share


def storage_options_from(given: list[str] | None) -> dict[str, Any] | None:
    """Return the options of a store from ``NAME=VALUE``; a value that is JSON, such as ``true`` or ``8``, is parsed."""
    if not given:
        return None
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise BadParameter(f"--storage-option: expected NAME=VALUE, got {one!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def spec_from(file: str | None) -> ShardSpec | None:
    """Return the encoding of a shard from the ``zarr.json`` of its array."""
    if file is None:
        return None
    text = Path(file).read_text(encoding="utf-8")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--metadata {file}: expected JSON: {error}") from error
    return ShardSpec.from_metadata(document)
