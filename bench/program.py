"""Common parts of remote.py, object_writes.py and round_trips.py: options, the choice of peers and rows, and the end of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Contestant(Protocol):
    name: str

    def why_not(self) -> str | None:
        """Return why this peer cannot run here, or None."""


P = TypeVar("P", bound=Contestant)


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def parser(file: str, description: str | None, contestants: Iterable[Contestant]) -> argparse.ArgumentParser:
    """Return a parser with the options that all these programs have."""
    made = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog=f"bench/{Path(file).name}",
    )
    made.add_argument("--rounds", type=int, default=5, help="timed turns of each peer per row (5)")
    made.add_argument("--rows", type=names, default=None, help="parts of the names of rows, e.g. box,shard")
    made.add_argument("--peers", type=names, default=None, help=", ".join(peer.name for peer in contestants))
    made.add_argument("--folder", type=Path, default=None, help="where files are made (a temporary folder)")
    made.add_argument("--json", type=Path, default=None)
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
    return found


def is_chosen(row: str, parts: list[str] | None) -> bool:
    return parts is None or any(part in row for part in parts)


def run(compare: Callable[[argparse.Namespace, Path], dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Call `compare` with a temporary folder, write its result, and end the process."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder:
        os.chmod(folder, 0o755)  # a server may run as another user
        document = compare(arguments, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))
    sys.stdout.flush()
    os._exit(0)  # threads of some peers cannot be joined
