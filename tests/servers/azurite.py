# azurite.py - Azure Blob Storage on this machine, for tests
# SPDX-License-Identifier: MIT
"""`Azurite` is Microsoft's emulator in another process (npm package `azurite`), on loopback, with its objects in memory.

`AzureContainer` is one of its containers, behind a `Proxy`. The program is found on PATH or by ``SHARDCODEC_TEST_AZURITE``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from servers.clients import quick_client
from servers.proxy import Proxy

# Account and key of the emulator; every installation has the same, so they are no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-12-02"

START_SECONDS = 60


def program() -> str | None:
    """Return the path of the emulator, or None."""
    return os.environ.get("SHARDCODEC_TEST_AZURITE") or shutil.which("azurite-blob")


def missing_for_azure() -> str | None:
    """Return the reason why there is no Azure server, or None."""
    return None if program() else "azurite-blob is not installed (npm install azurite)"


class Azurite:
    """The emulator, started at once and stopped by `close`."""

    def __init__(self) -> None:
        found = program()
        assert found is not None
        command = [
            found,
            "--blobPort",
            "0",
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ]
        # it logs every request, and would fill a pipe; `close` closes the file
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.port = self._announced()
        self._numbers = itertools.count()

    def _announced(self) -> int:
        """Wait for the port, which the emulator chooses."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            self._log.seek(0)
            if at := re.search(r"listens on http://127\.0\.0\.1:(\d+)", self._log.read()):
                return int(at[1])
            time.sleep(0.05)
        self.close()
        raise AssertionError(f"azurite did not start within {START_SECONDS} s")

    def make_container(self) -> str:
        """Create an empty container, and return its name."""
        name = f"container-{next(self._numbers)}"
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = f"x-ms-date:{now}\nx-ms-version:{VERSION}"
        resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        text = "PUT" + "\n" * 12 + f"{headers}\n{resource}"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(
            "PUT",
            f"/{ACCOUNT}/{name}?restype=container",
            headers={
                "x-ms-date": now,
                "x-ms-version": VERSION,
                "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        answer = connection.getresponse()
        assert answer.status == 201, (answer.status, answer.read())
        connection.close()
        return name

    def close(self) -> None:
        """Stop the process."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class AzureContainer:
    """A container, and the proxy in front of it; has the interface of `servers.s3.S3Bucket`."""

    def __init__(self, server: Azurite, proxy: Proxy) -> None:
        self.name = server.make_container()
        self.proxy = proxy
        self._server = server

    def store(self, *, direct: bool = False) -> Any:
        """Return a new obstore that uses the proxy or, for a second writer, reaches the server `direct`."""
        return azure_store(self._server.port if direct else self.proxy.port, self.name)

    def names(self) -> list[str]:
        """Return the names of all objects, without the proxy."""
        return sorted(meta["path"] for meta in self.store(direct=True).list().collect())


def azure_store(port: int, container: str) -> Any:
    """Return an obstore of a container."""
    from obstore.store import AzureStore

    return AzureStore(
        container,
        account_name=ACCOUNT,
        account_key=KEY,
        endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}",
        **quick_client(),
    )


@contextmanager
def azurite() -> Iterator[Azurite]:
    server = Azurite()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def azure_container(server: Azurite) -> Iterator[AzureContainer]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield AzureContainer(server, proxy)
