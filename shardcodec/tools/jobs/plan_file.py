# plan_file.py - a plan in a file
# SPDX-License-Identifier: MIT
"""`PlanFile`: what a job does, in one JSON file, which all its workers read."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...storage.kinds import placed_options
from ...storage.whole_file import put_file, remove_part
from ..convert.plan import ConvertPlan

__all__ = ["PlanFile"]

_FORMAT = "shardcodec plan"
_VERSION = 1


@dataclass(frozen=True)
class PlanFile:
    """A plan, and how its places are opened.

    Attributes
    ----------
    path : str
        The file.
    plan : ConvertPlan
    source, destination : str
        Absolute paths, or URLs.
    n_parts : int
        Parts into which the units of the plan are divided.
    storage_options : mapping or None
        Options of the stores of URLs.
    job : str
        Name of the job, which no other plan has.
    """

    path: str
    plan: ConvertPlan
    source: str
    destination: str
    n_parts: int = 1
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    job: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self) -> None:
        """Write the file.

        Raises
        ------
        FileExistsError
            There is a file already.
        """
        data = {
            "format": _FORMAT,
            "version": _VERSION,
            "operation": "convert",
            "job": self.job,
            "source": self.source,
            "destination": self.destination,
            "n_parts": self.n_parts,
            "storage_options": None if self.storage_options is None else dict(self.storage_options),
            "plan": self.plan.to_json(),
        }
        data["checksum"] = _checksum(data)
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"{self.path}: expected a file in a folder that exists, but there is no {folder}"
            )
        text = f"{json.dumps(data, indent=1)}\n".encode()
        remove_part(self.path)
        # options of a store may be secret
        is_private = bool(self.storage_options)
        if os.path.lexists(self.path) or not put_file(
            self.path, [text], sync=True, may_replace=False, is_private=is_private
        ):
            raise FileExistsError(f"{self.path}: expected a new file, but it exists")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PlanFile:
        """Read a plan.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        ValueError
            It is not a plan of this version, or it was damaged or edited.
        """
        name = os.fspath(path)
        with open(name, encoding="utf-8") as file:
            try:
                data = json.load(file)
            except ValueError as error:
                raise ValueError(f"{name}: expected a plan of shardcodec: {error}") from error
        found = (data.get("format"), data.get("version")) if isinstance(data, dict) else None
        if found != (_FORMAT, _VERSION):
            raise ValueError(f"{name}: expected a plan of shardcodec, version {_VERSION}, got {found}")
        if data.get("checksum") != (actual := _checksum(data)):
            raise ValueError(
                f"{name}: the plan was damaged or edited: expected the checksum {data.get('checksum')}, got {actual}; make a new plan"
            )
        try:
            return cls(
                name,
                ConvertPlan.from_json(data["plan"]),
                data["source"],
                data["destination"],
                int(data["n_parts"]),
                placed_options(data["storage_options"], data["source"], data["destination"]),
                data["job"],
            )
        except KeyError as error:
            raise ValueError(f"{name}: the plan has no {error}") from error


def _checksum(data: Mapping[str, Any]) -> str:
    """Return a hash of the members of a plan, without that of the hash itself."""
    text = json.dumps({name: value for name, value in data.items() if name != "checksum"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
