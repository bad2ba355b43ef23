# cluster.py - the cluster that runs a job, if the user has chosen one
# SPDX-License-Identifier: MIT
"""`chosen_cluster`: this process or dask. `open_workers` imports dask, which is optional, at the first use."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...storage.kinds import is_url
from ..monitor import Monitor

if TYPE_CHECKING:
    from .dask_workers import DaskWorkers

__all__ = ["chosen_cluster", "default_job", "open_workers"]


def chosen_cluster(dask: Any, places: Mapping[str, Any]) -> Any:
    """Return the address or the client of the cluster that does the work; None for this process.

    Parameters
    ----------
    dask : str, distributed.Client, bool or None
        What the user has given. True: the client that the program uses. None or False: this process.
    places : mapping
        Absolute places, by the name of the argument.

    Raises
    ------
    TypeError
        The workers cannot open a place.
    ValueError
        The program uses no client.
    """
    if dask is None or dask is False:
        return None
    for name, place in places.items():
        if not isinstance(place, str):
            raise TypeError(
                f"{name}: expected a path or a URL, which the workers of dask can open, got {type(place).__name__}"
            )
    if dask is not True:
        return dask
    found = _dask().active_client()
    if found is None:
        raise ValueError("dask: expected a client that this program uses by default, but there is none")
    return found


def default_job(destination: str) -> str:
    """Return the file of the plan beside a local destination.

    Raises
    ------
    ValueError
        The destination is a URL.
    """
    if is_url(destination):
        raise ValueError(
            f"job: expected a file for the plan, which all workers reach, because {destination} is not a local path"
        )
    return f"{destination}.job.json"


def open_workers(
    cluster: Any, *, threads: int | None, memory: int | None, monitor: Monitor
) -> AbstractContextManager[DaskWorkers | None]:
    """Open a cluster in a with block; see `dask_workers`. Without one the block gets None.

    Raises
    ------
    ImportError
        distributed is not installed.
    """
    if cluster is None:
        return nullcontext()
    found: AbstractContextManager[DaskWorkers | None] = _dask().dask_workers(
        cluster, threads=threads, memory=memory, monitor=monitor
    )
    return found


def _dask() -> ModuleType:
    try:
        from . import dask_workers
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
            raise
        raise ImportError(
            "dask: workers need the package distributed (extra dask); install it with: pip install 'distributed>=2025.5'"
        ) from error
    return dask_workers
