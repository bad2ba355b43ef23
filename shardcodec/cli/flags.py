# flags.py - the flags of the parameters of tools
# SPDX-License-Identifier: MIT
"""`FLAGS`: for the name of each parameter that several tools have, its flag. `shardcodec.cli.tool_command` makes commands with them."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Callable, Mapping
from operator import not_
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer import Argument, BadParameter, Option

from ..format.spec import ShardSpec
from ..readable import parse_nbytes
from ..tools.convert.choice_texts import parse_rules
from ..tools.convert.layout import parse_codec_list
from .progress import ProgressKind

__all__ = ["DRY_RUN", "FLAGS", "KEEP_WRITING", "LAST", "Flag", "Rows", "parse_share"]


class Flag:
    """The flag of one parameter; name, type and default are those of the parameter.

    Parameters
    ----------
    text : str
        The help.
    *names : str
        Default: ``--`` and the name of the parameter. A positional parameter without names is an argument.
    value : callable, optional
        Makes the value for the tool from that of the user.
    kind : type, optional
        The type of the user's value, if it is another one than that of the parameter.
    default : object, optional
        The default of the command, if it is another one than that of the parameter.
    **style : object
        As for `typer.Option`: metavar, parser, min, show_default.
    """

    def __init__(
        self,
        text: str,
        *names: str,
        value: Callable[[Any], Any] = lambda given: given,
        kind: Any = None,
        default: Any = ...,
        **style: Any,
    ) -> None:
        self.value = value
        self._names = names
        self._kind, self._default = kind, default
        self._style = {"help": text, **style}

    def of(self, name: str, source: inspect.Parameter) -> inspect.Parameter:
        """Return the parameter of a command.

        Parameters
        ----------
        name : str
            The name of the parameter.
        source : inspect.Parameter
            The parameter of the tool that the flag is for.

        Returns
        -------
        inspect.Parameter
            Its default is an `Option` or an `Argument` of typer.
        """
        kind = self._kind or _kind_of(source.annotation)
        default = source.default if self._default is ... else self._default
        if default is source.empty:
            default = ...  # typer: required
        elif kind == list[str]:
            default = None
        elif kind is bool:
            default = self.value(default)  # a switch for the opposite of the parameter
        is_argument = source.kind is source.POSITIONAL_OR_KEYWORD and not self._names
        names = self._names or ("--" + name.replace("_", "-"),)
        info = Argument(default, **self._style) if is_argument else Option(default, *names, **self._style)
        annotation = kind | None if default is None else kind
        return inspect.Parameter(name, source.KEYWORD_ONLY, default=info, annotation=annotation)


# The flags of one command by the name of the parameter; several flags if the value is made from them.
Rows = Mapping[str, Flag | Mapping[str, Flag]]


def _kind_of(annotation: Any) -> Any:
    """Return the type of the user's value for a parameter with this annotation."""
    if get_origin(annotation) is Literal:
        return enum.StrEnum("Choice", {name.upper(): name for name in get_args(annotation)})
    for one in get_args(annotation) or (annotation,):
        if isinstance(one, type) and issubclass(one, bool | int | float | enum.Enum):
            return one
    return str


def _as_tuple(given: list[str] | None) -> tuple[str, ...]:
    """Return the values of a flag that may be repeated."""
    return tuple(given or ())


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


def _storage_options(given: list[str] | None) -> dict[str, Any] | None:
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


def _spec(file: str | None) -> ShardSpec | None:
    """Return the encoding of a shard from the ``zarr.json`` of its array."""
    if file is None:
        return None
    text = Path(file).read_text(encoding="utf-8")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--metadata {file}: expected JSON: {error}") from error
    return ShardSpec.from_metadata(document)


DRY_RUN = "Show what would be done, and change nothing."
KEEP_GOING = "--keep-going/--fail-fast"
KEEP_WRITING = Flag("Go on after a shard that cannot be written, or stop.", KEEP_GOING, value=not_)

# How a tool runs and what it prints: in the help of each command these flags come last, in this order.
LAST: Mapping[str, Flag] = {
    "spec": Flag(
        "zarr.json of the array, for a shard outside of its array.",
        "--metadata", metavar="FILE", kind=str, value=_spec,
    ),
    "storage_options": Flag(
        "Option of the store of a URL, such as region=eu-west-1 or skip_signature=true; may be repeated.",
        "--storage-option", metavar="NAME=VALUE", kind=list[str], value=_storage_options,
    ),
    "memory": Flag("Memory to use at most, such as 4GiB.", metavar="SIZE", parser=parse_nbytes),
    "threads": Flag("Threads to use.", metavar="N", min=1),
    "dask": Flag(
        "Let the workers of this dask scheduler, or N new processes, do the work. --memory and --threads are of one worker.",
        metavar="ADDRESS|local:N",
    ),
    "dry_run": Flag(DRY_RUN),
    "probe": Flag(DRY_RUN, "--dry-run", value=not_),
    "as_json": Flag("Print the report as one JSON document.", "--json", kind=bool, default=False),
    "jsonl": Flag("Print one JSON document a line, as results appear.", kind=bool, default=False),
    "progress": Flag(
        "Progress on standard error: lines, or nothing. auto: a bar on a terminal, in a file a line each minute.",
        kind=ProgressKind, default=ProgressKind.AUTO,
    ),
    "fail_fast": Flag("Go on after a finding, or stop at the first one.", KEEP_GOING, value=not_),
}  # fmt: skip

FLAGS: Mapping[str, Flag] = {
    "target": Flag("A group, an array or one shard: a path, a URL, or a path into a zip file.", metavar="PATH"),
    "source": Flag(
        "A group or an array of Zarr, or an HDF5 file: a path, a URL, or a path into a file.", metavar="SRC"
    ),
    "destination": Flag("The new hierarchy: a path or a URL; nothing may be there.", metavar="DST"),
    "file": Flag("The plan.", metavar="FILE"),
    "chunks": Flag(
        "Inner chunks: a shape such as 64,64,64; sizes by names of axes such as time=24,lat=90; or auto, for --access. ARRAY is "
        "a path or a pattern; may be repeated.",
        metavar="[ARRAY:]SHAPE", kind=list[str], value=lambda given: parse_rules("chunks", given or ()),
    ),
    "shards": Flag(
        "Largest shard, decoded, such as 512MiB; or as --chunks, such as time=240.",
        metavar="[ARRAY:]SIZE|SHAPE", kind=list[str], value=lambda given: parse_rules("shards", given or ()),
    ),
    "access": Flag(
        "A box that is read, such as '1,:,:' or time=1, for --chunks auto and --shards auto; may be repeated.",
        metavar="BOX[@WEIGHT]", kind=list[str], value=_as_tuple,
    ),
    "codecs": Flag(
        "Codecs of an inner chunk: names such as zstd,crc32c, or JSON.",
        metavar="LIST", value=lambda given: None if given is None else parse_codec_list(given),
    ),
    "like": Flag("Take shapes and codecs of this array.", metavar="ARRAY"),
    "only": Flag(
        "Only arrays and groups with this path, such as a or 'a/*'; copies also get the coordinates that they need. May be repeated.",
        metavar="NAME", kind=list[str], value=_as_tuple,
    ),
    "exclude": Flag(
        "Leave out these arrays and groups; @needed: what the arrays of --only need; @objects: what belongs to no array.",
        metavar="NAME", kind=list[str], value=_as_tuple,
    ),
    "level": Flag("Read new shards again: their checksums, or compare all with what was written.", value=str),
    **LAST,
}  # fmt: skip
