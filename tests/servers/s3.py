# s3.py - a real S3 server for tests, reached through a proxy that makes faults
# SPDX-License-Identifier: MIT
"""`S3Server` is moto in another process, on loopback. `S3Bucket` is one of its buckets, behind a `Proxy`."""

from __future__ import annotations

import http.client
import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers.clients import quick_client
from servers.proxy import Proxy

# moto reads the region here and checks no signature.
SIGNED = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def missing_for_s3() -> str | None:
    """Return the reason why there is no S3 server, or None."""
    names = [
        name for name in ("obstore", "moto", "flask", "flask_cors") if importlib.util.find_spec(name) is None
    ]
    return f"{names[0]} is not installed" if names else None


class S3Server:
    """moto, started with the first bucket and stopped by `close`."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("s3_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"moto did not start: exit code {self._process.wait()}"
        self.port = int(line)
        self._numbers = itertools.count()

    def make_bucket(self) -> str:
        """Create an empty bucket, and return its name."""
        name = f"bucket-{next(self._numbers)}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{name}", headers={"Authorization": SIGNED})
        assert connection.getresponse().status == 200
        connection.close()
        return name

    def close(self) -> None:
        """Stop the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class S3Bucket:
    """A bucket, and the proxy in front of it."""

    def __init__(self, server: S3Server, proxy: Proxy) -> None:
        self.name = server.make_bucket()
        self.proxy = proxy
        self._server = server

    def store(self, *, direct: bool = False, bucket: str | None = None, **config: str) -> Any:
        """Return a new obstore that uses the proxy or, for a second writer, reaches the server `direct`."""
        port = self._server.port if direct else self.proxy.port
        return s3_store(port, bucket or self.name, **config)

    def names(self) -> list[str]:
        """Return the names of all objects, without the proxy."""
        return sorted(meta["path"] for meta in self.store(direct=True).list().collect())


def s3_store(port: int, bucket: str, **config: str) -> Any:
    """Return an obstore of a bucket."""
    from obstore.store import S3Store

    return S3Store(
        bucket,
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        virtual_hosted_style_request=False,
        **quick_client(),
        **config,
    )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def s3_bucket(server: S3Server) -> Iterator[S3Bucket]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield S3Bucket(server, proxy)
