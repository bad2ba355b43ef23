# http_objects.py - a small object store behind HTTP
# SPDX-License-Identifier: MIT
"""A server of objects in memory: GET with ranges, HEAD, PUT and DELETE, with entity tags and conditions on them.

It implements enough of HTTP for obstore's HTTPStore and fsspec, and enough of S3 for its S3Store, without
signatures and lists.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
NO_KEYS = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"


class Objects:
    """The objects of a server, and a record of its requests: (method, path, range)."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.n_refused = 0  # requests whose condition failed
        self.checks_conditions = True
        self.status_of_writes = 200
        self.missing_bucket = (
            "none"  # requests below this path get the answer of S3 for a bucket that does not exist
        )
        self.has_ranges = True
        self.status_of_suffixes = 206  # of ranges from the end of an object; 200: all of it
        self.status_of_conditions = 200  # of writes with a condition
        self.status_of_head = 200
        self.url = ""

    def chunk_requests(self) -> list[tuple[str, str | None]]:
        return [(path, wanted) for method, path, wanted in self.requests if "/c/" in path]


def tag(blob: bytes) -> str:
    return f'"{hashlib.md5(blob).hexdigest()}"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: Objects

    def log_message(self, *unused: Any) -> None:
        """Log nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def holds(self, blob: bytes | None) -> bool:
        """Return True if the conditions of the request hold."""
        wanted, unwanted = self.headers["If-Match"], self.headers["If-None-Match"]
        holds = wanted is None or (blob is not None and tag(blob) == wanted)
        holds &= unwanted != "*" or blob is None
        holds |= not self.objects.checks_conditions
        self.objects.n_refused += not holds
        return holds

    def do_GET(self) -> None:
        with self.objects.mutex:
            self.objects.requests.append((self.command, self.path, self.headers["Range"]))
            blob = self.objects.blobs.get(self.path)
        if self.path.startswith(self.objects.missing_bucket):
            self.answer(404, NO_BUCKET)
        elif self.path.partition("?")[2].startswith("list-type=2"):
            self.answer(200, NO_KEYS)
        elif blob is None:
            self.answer(404)
        elif not self.holds(blob):
            self.answer(412)
        elif self.command == "HEAD" and self.objects.status_of_head != 200:
            self.answer(self.objects.status_of_head)
        elif (self.headers["Range"] or "").startswith("bytes=-") and self.objects.status_of_suffixes not in (
            200,
            206,
        ):
            self.answer(self.objects.status_of_suffixes)
        elif (
            self.headers["Range"] is None
            or not self.objects.has_ranges
            or (self.headers["Range"].startswith("bytes=-") and self.objects.status_of_suffixes == 200)
        ):
            self.answer(200, blob, ETag=tag(blob), Accept_Ranges="bytes")
        else:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start = int(first) if first else max(0, len(blob) - int(last))
            end = min(len(blob), int(last) + 1 if first and last else len(blob))
            if start >= end:
                self.answer(416, Content_Range=f"bytes */{len(blob)}")
            else:
                place = f"bytes {start}-{end - 1}/{len(blob)}"
                self.answer(206, blob[start:end], ETag=tag(blob), Content_Range=place)

    do_HEAD = do_GET  # noqa: N815 (so http.server calls it)

    def do_PUT(self) -> None:
        blob = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith(self.objects.missing_bucket):
            self.answer(404, NO_BUCKET)
            return
        is_conditional = self.headers["If-Match"] or self.headers["If-None-Match"]
        if is_conditional and self.objects.status_of_conditions != 200:
            self.answer(self.objects.status_of_conditions)
            return
        if self.objects.status_of_writes != 200:
            self.answer(self.objects.status_of_writes)
            return
        with self.objects.mutex:
            holds = self.holds(self.objects.blobs.get(self.path))
            if holds:
                self.objects.blobs[self.path] = blob
        self.answer(200 if holds else 412, ETag=tag(blob))

    def do_DELETE(self) -> None:
        with self.objects.mutex:
            self.objects.blobs.pop(self.path, None)
        self.answer(204)


@contextmanager
def serving() -> Iterator[Objects]:
    """Run a server on loopback."""
    objects = Objects()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"objects": objects}))
    server.daemon_threads = True
    objects.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield objects
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
