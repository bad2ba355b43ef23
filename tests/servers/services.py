# services.py - the object stores of tests, by name
# SPDX-License-Identifier: MIT
"""`service` starts a server, "s3" (moto) or "azure" (Azurite, at night).

`bucket_of` makes one of its buckets, behind a proxy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from servers.azurite import AzureContainer, Azurite, azure_container, azurite, missing_for_azure
from servers.s3 import S3Bucket, S3Server, missing_for_s3, s3_bucket, s3_server

Server = S3Server | Azurite
Bucket = S3Bucket | AzureContainer

SERVICES = ["s3", pytest.param("azure", marks=pytest.mark.nightly)]


@contextmanager
def service(name: str) -> Iterator[Server]:
    """Run a server; skip the test if it is not installed."""
    missing = missing_for_s3() if name == "s3" else missing_for_azure()
    if missing is not None:
        pytest.skip(missing)
    with s3_server() if name == "s3" else azurite() as running:
        yield running


def bucket_of(server: Server) -> AbstractContextManager[Bucket]:
    """Make an empty bucket or container."""
    return s3_bucket(server) if isinstance(server, S3Server) else azure_container(server)
