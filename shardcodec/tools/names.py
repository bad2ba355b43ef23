# names.py - the names that a tool writes, checked
# SPDX-License-Identifier: MIT
"""Names of nodes and objects, checked before a tool writes them.

They come from HDF5 files, entries of zip files, listings of stores, consolidated metadata, plans and arguments. A name such as
``..`` would lead out of the new hierarchy, and one such as ``zarr.json`` would hide its metadata. So every name that a tool
writes passes `node_path` or `object_name` before the first write.
"""

from __future__ import annotations

from .documents import DOCUMENTS

__all__ = ["OWN_PREFIX", "inner_path", "is_own_name", "node_path", "object_name", "problem_of"]

# Prefix of all names that shardcodec makes beside the objects of a hierarchy: marks, temporary files, journals.
OWN_PREFIX = ".shardcodec-"
# Suffix of the name of a staging folder, which begins with a dot.
STAGING_SUFFIX = ".shardcodec"


def node_path(*parts: str) -> str:
    """Join the path of an array or a group in a hierarchy; raise `ValueError` for a name that cannot be written.

    Such names are empty, consist of periods only (``.``, ``..``), are reserved for metadata or for shardcodec, or have a null byte or a
    backslash, which zarr reads as a slash.
    """
    path = "/".join(filter(None, parts))
    for name in path.split("/") if path else ():
        problem = problem_of(name)
        if problem is None and "\\" in name:
            problem = "has a backslash, which zarr reads as a slash"
        if problem is None and (name in DOCUMENTS or name.startswith(OWN_PREFIX)):
            problem = "is reserved"
        if problem is not None:
            raise ValueError(
                f"expected the path of an array or a group that can be written, got {path!r}: the name {name!r} {problem}; rename "
                "it, or choose other arrays"
            )
    return path


def object_name(name: str) -> str:
    """Return the name of an object below the root of a hierarchy; raise `ValueError` for one that leads elsewhere or has a null byte."""
    for step in name.split("/"):
        if (problem := problem_of(step)) is not None:
            raise ValueError(
                f"expected the name of an object that can be written, got {name!r}: {step!r} {problem}; rename it, or leave out "
                "objects that belong to no array (--exclude @objects)"
            )
    return name


def inner_path(path: str, argument: str) -> str:
    """Return the path of an array in a group, without slashes around it; `ValueError`, with the name of the argument, if it leads elsewhere."""
    name = path.strip("/")
    for step in name.split("/"):
        if (problem := problem_of(step)) is not None:
            raise ValueError(
                f"{argument}: expected the path of an array in the group, got {path!r}: {step!r} {problem}"
            )
    return name


def is_own_name(name: str) -> bool:
    """Return True for the name of a file that shardcodec needs only for a while: a temporary file, the mark of a job."""
    *folders, last = name.split("/")
    if last.startswith(OWN_PREFIX):
        return True
    return any(
        folder.startswith(OWN_PREFIX) or (folder.startswith(".") and folder.endswith(STAGING_SUFFIX))
        for folder in folders
    )


def problem_of(name: str) -> str | None:
    """Return why no folder can have a file of this name; None if one can."""
    if not name:
        return "is empty"
    if not name.strip("."):
        return "consists of periods only"
    return "has a null byte" if "\0" in name else None
