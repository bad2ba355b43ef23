# random_hierarchies.py - random hierarchies with lost documents, and a strict comparison of their copies
# SPDX-License-Identifier: MIT
"""`Hierarchy` writes a random hierarchy; `differences` compares a copy with the whole one, without the package's code."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from helpers import quiet

DOCUMENTS = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
DTYPES = ("int32", "uint8", "float64", "int16", "bool")


class Hierarchy:
    """A random hierarchy `whole`, and `old`, which has lost documents that its consolidated metadata or `whole` have."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.random = random.Random(seed)
        self.whole, self.old = folder / "whole", folder / "old"
        self.zarr_format: Any = self.random.choice((2, 3))
        self.is_consolidated = self.random.random() < 0.7
        self.lost: list[str] = []
        self.is_extended = False
        with quiet():
            self._write()
        shutil.copytree(self.whole, self.old)
        self._lose()

    def _write(self) -> None:
        pick = self.random
        group = zarr.create_group(
            self.whole, zarr_format=self.zarr_format, attributes={"root": pick.random()}
        )
        groups = [""]
        for number in range(pick.randint(0, 3)):
            path = f"{pick.choice(groups)}/g{number}".strip("/")
            group.create_group(path, attributes={"n": number} if pick.random() < 0.7 else {})
            groups.append(path)
        for number in range(pick.randint(1, 4)):
            self._write_array(group, f"{pick.choice(groups)}/a{number}".strip("/"), number)
        for number in range(pick.randint(0, 3)):
            name = pick.choice(("notes.txt", ".hidden", "table.bin", "deep/file.csv"))
            file = self.whole / pick.choice(groups) / f"{number}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pick.randbytes(pick.randint(0, 50)))
        if self.is_consolidated:
            zarr.consolidate_metadata(self.whole, zarr_format=self.zarr_format)
        for path in groups if self.zarr_format == 3 else ():
            if pick.random() < 0.3:
                self._extend(path)  # at the end, because not every zarr opens such a group

    def _write_array(self, group: Any, path: str, number: int) -> None:
        pick = self.random
        shape = tuple(pick.randint(1, 9) for _ in range(pick.randint(0, 3)))
        chunks = tuple(pick.randint(1, 4) for _ in shape)
        how: dict[str, Any] = {"chunks": chunks, "dtype": pick.choice(DTYPES)}
        if self.zarr_format == 3 and shape and pick.random() < 0.5:
            how["shards"] = tuple(size * pick.randint(1, 3) for size in chunks)
        if pick.random() < 0.3:
            how["compressors"] = None
        array = group.create_array(path, shape=shape, attributes={"array": number}, **how)
        values = np.array([pick.randint(0, 1) for _ in range(int(np.prod(shape)))] or [0])
        if pick.random() < 0.85:
            array[...] = values[: int(np.prod(shape))].reshape(shape).astype(how["dtype"])

    def _extend(self, path: str) -> None:
        self.is_extended = True
        extension = {"example": {"must_understand": False, "of": path}}
        file = self.whole / path / "zarr.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **extension}))
        if path and self.is_consolidated:
            root = json.loads((self.whole / "zarr.json").read_text())
            root["consolidated_metadata"]["metadata"][path] |= extension
            (self.whole / "zarr.json").write_text(json.dumps(root))

    def _lose(self) -> None:
        """Lose the documents of some nodes: of any node with consolidated metadata in the root, otherwise with the help of a copy."""
        names = sorted(
            str(file.relative_to(self.old))
            for file in self.old.rglob("*")
            if file.name in DOCUMENTS - {".zmetadata", ".zattrs"} and file.parent != self.old
        )
        for name in names:
            if self.random.random() < 0.3:
                self.lost.append(name)
                (self.old / name).unlink()


def nodes(root: Path) -> dict[str, dict[str, Any]]:
    """Return kind, attributes, extensions and elements of each node by its own document."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(root.rglob("*")):
        if file.name not in ("zarr.json", ".zarray", ".zgroup"):
            continue
        path = str(file.parent.relative_to(root))
        document = json.loads(file.read_text())
        beside = file.parent / ".zattrs"
        of_v2 = json.loads(beside.read_text()) if beside.exists() else {}
        elements = None
        if "shape" in document:
            with quiet():
                elements = zarr.open_array(file.parent, mode="r")[...]
        found[path] = {
            "attributes": document.get("attributes", of_v2),
            "extension": document.get("example"),
            "elements": elements,
        }
    return found


def objects(root: Path) -> dict[str, bytes]:
    """Return the objects that are neither documents nor in the folder of an array."""
    arrays = {
        file.parent
        for file in root.rglob("*")
        if file.name in ("zarr.json", ".zarray") and "shape" in json.loads(file.read_text())
    }
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in root.rglob("*")
        if file.is_file() and file.name not in DOCUMENTS and arrays.isdisjoint(file.parents)
    }


def differences(whole: Path, new: Path) -> Iterator[str]:
    """Yield what a copy does not have as the whole hierarchy has it, by name."""
    expected, actual = nodes(whole), nodes(new)
    for path in sorted({*expected, *actual}):
        one, other = expected.get(path), actual.get(path)
        if one is None or other is None:
            yield path
            continue
        for name in ("attributes", "extension"):
            if one[name] != other[name]:
                yield f"{path}: {name}: {one[name]} became {other[name]}"
        a, b = one["elements"], other["elements"]
        if (a is None) != (b is None) or (
            a is not None and (a.dtype != b.dtype or a.shape != b.shape or (a != b).any())
        ):
            yield f"{path}: elements"
    files, copied = objects(whole), objects(new)
    yield from (name for name in sorted({*files, *copied}) if files.get(name) != copied.get(name))
