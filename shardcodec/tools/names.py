# names.py - the names that a tool writes
# SPDX-License-Identifier: MIT
"""`node_path`, `object_name`: every name that a tool writes passes one of them, before the first write. `inner_path`: of an argument.

Names come from HDF5 files, entries of zip files, listings of stores, consolidated metadata, plans and arguments. A name such as
``..`` would lead out of the new hierarchy, and one such as ``zarr.json`` would hide its metadata.
"""

from __future__ import annotations

from .documents import DOCUMENTS

__all__ = ["OWN_PREFIX", "inner_path", "is_own_name", "node_path", "object_name"]

# How all names begin that shardcodec makes beside the objects of a hierarchy: marks, temporary files, journals.
OWN_PREFIX = ".shardcodec-"
# How the name of a staging folder ends; it begins with a dot.
STAGING_SUFFIX = ".shardcodec"


def node_path(*parts: str) -> str:
    """Join the path of an array or a group in a hierarchy, and check it.

    Parameters
    ----------
    *parts : str
        Paths; an empty one is that of the root.

    Raises
    ------
    ValueError
        A name in it is empty, consists of periods only (``.``, ``..``), is reserved for metadata or for shardcodec, or has a null
        byte, or a backslash, which zarr takes for a slash.
    """
    path = "/".join(filter(None, parts))
    for name in path.split("/") if path else ():
        problem = _problem(name)
        if problem is None and "\\" in name:
            problem = "has a backslash, which zarr takes for a slash"
        if problem is None and (name in DOCUMENTS or name.startswith(OWN_PREFIX)):
            problem = "is reserved"
        if problem is not None:
            raise ValueError(
                f"expected the path of an array or a group that can be written, got {path!r}: the name {name!r} {problem}; rename "
                "it, or choose other arrays"
            )
    return path


def object_name(name: str) -> str:
    """Return the name of an object below the root of a hierarchy after a check.

    Raises
    ------
    ValueError
        A part of it is empty, as in an absolute name, or consists of periods only, or has a null byte.
    """
    for part in name.split("/"):
        if (problem := _problem(part)) is not None:
            raise ValueError(
                f"expected the name of an object that can be written, got {name!r}: {part!r} {problem}; rename it, or leave out "
                "what is not of an array (--only-arrays, in Python only_arrays)"
            )
    return name


def inner_path(path: str, argument: str) -> str:
    """Return the path of an array in a group, without slashes around it.

    Parameters
    ----------
    path : str
    argument : str
        Name of the argument, for the error.

    Raises
    ------
    ValueError
        It leads elsewhere.
    """
    name = path.strip("/")
    for part in name.split("/"):
        if (problem := _problem(part)) is not None:
            raise ValueError(
                f"{argument}: expected the path of an array in the group, got {path!r}: {part!r} {problem}"
            )
    return name


def is_own_name(name: str) -> bool:
    """Return True for an object that shardcodec has made for its own work, such as a temporary file or the mark of a job."""
    *folders, last = name.split("/")
    if last.startswith(OWN_PREFIX):
        return True
    return any(
        one.startswith(OWN_PREFIX) or (one.startswith(".") and one.endswith(STAGING_SUFFIX))
        for one in folders
    )


def _problem(name: str) -> str | None:
    """Return why no folder can have a file of this name; None if one can."""
    if not name:
        return "is empty"
    if not name.strip("."):
        return "consists of periods only"
    return "has a null byte" if "\0" in name else None
