"""Common parts of the programs that measure: options, which are checked first, the choice of peers and rows, and the end of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Contestant(Protocol):
    name: str

    def why_not(self) -> str | None:
        """Return why this peer cannot run here, or None."""


P = TypeVar("P", bound=Contestant)


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def names_of(text: str, known: Collection[str]) -> list[str]:
    """Return names with commas between them. A known name may have commas itself; the longest one counts: "open_array, cache"."""
    parts, found = names(text), []
    while parts:
        n = next((n for n in range(len(parts), 1, -1) if ", ".join(parts[:n]) in known), 1)
        found.append(", ".join(parts[:n]))
        del parts[:n]
    return found


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a type of argparse: names with commas between them. A misspelt one would leave out what it means without a word."""
    all_names = list(dict.fromkeys(known))

    def parse(text: str) -> list[str]:
        found = names_of(text, all_names)
        if unknown := [name for name in found if name not in all_names]:
            raise argparse.ArgumentTypeError(
                f"expected some of {', '.join(all_names)}; got {', '.join(unknown)}"
            )
        return found

    return parse


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, got {text!r}")
    return Path(text)


def file_to_write(text: str) -> Path:
    """Return the path of a result. It is written at the end, and an hour of measuring would be lost if it could not be."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text!r}")
    return path


def load(path: Path) -> dict[str, Any]:
    """Return a stored result; end the program if the file has none."""
    try:
        document = json.loads(path.read_text())
        if not isinstance(document, dict) or "machine" not in document:
            raise ValueError('it has no "machine"')
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: expected a result that --json has written: {error}") from None
    return document


def parser(file: str, description: str | None, contestants: Iterable[Contestant]) -> argparse.ArgumentParser:
    """Return a parser with the options that all these programs have."""
    made = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog=f"bench/{Path(file).name}",
    )
    made.add_argument("--rounds", type=positive, default=5, help="timed turns of each peer per row (5)")
    made.add_argument("--rows", type=names, default=None, help="parts of the names of rows, e.g. box,shard")
    known = [peer.name for peer in contestants]
    made.add_argument("--peers", type=some_of(known), default=None, help=", ".join(known))
    made.add_argument("--folder", type=folder, default=None, help="where files are made (a temporary folder)")
    made.add_argument("--json", type=file_to_write, default=None)
    return made


def network_parser(
    file: str, description: str | None, contestants: Iterable[Contestant]
) -> argparse.ArgumentParser:
    """Return a parser for programs that use a server behind a proxy."""
    made = parser(file, description, contestants)
    made.add_argument("--quick", action="store_true", help="small arrays")
    made.add_argument("--latency", type=float, default=20.0, help="round trip in milliseconds (20)")
    return made


def chosen(contestants: Iterable[P], wanted: list[str] | None) -> list[P]:
    """Return the peers of these names (None: all) that can run here; name the others on stderr."""
    found = []
    for peer in contestants:
        reason = peer.why_not()
        if reason is not None:
            print(f"left out: {peer.name}: {reason}", file=sys.stderr)
        elif wanted is None or peer.name in wanted:
            found.append(peer)
    if not found:
        raise SystemExit("none of the chosen libraries can run here")
    return found


def is_chosen(row: str, parts: list[str] | None) -> bool:
    return parts is None or any(part in row for part in parts)


def run(compare: Callable[[argparse.Namespace, Path], dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Call `compare` with a temporary folder, write its result, and end the process."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as made:
        os.chmod(made, 0o755)  # a server may run as another user
        document = compare(arguments, Path(made))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))
    sys.stdout.flush()
    os._exit(0)  # threads of some peers cannot be joined
