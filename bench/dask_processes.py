"""Worker processes of dask.distributed, one thread each, for rows that work with dask."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any


def start(n: int) -> Any:
    """Return a client of new processes; its `close` ends them too."""
    from distributed import Client, LocalCluster

    # A second cluster needs another port of the dashboard than the default.
    cluster = LocalCluster(
        n_workers=n,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    )
    client = Client(cluster, set_as_default=False)
    close = client.close

    def close_both() -> None:
        close()
        cluster.close()

    client.close = close_both
    return client


def configure(settings: dict[str, Any], modules: Sequence[str] = ()) -> None:
    """In a worker: set the pipeline, and import what tasks need, so that no timed task has to."""
    import zarr

    zarr.config.set(settings)
    for name in modules:
        importlib.import_module(name)
