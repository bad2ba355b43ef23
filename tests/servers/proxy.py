# proxy.py - an HTTP proxy that makes faults, between a client and a real server
# SPDX-License-Identifier: MIT
"""A `Proxy` forwards requests to one server. A `Fault` changes the handling of some requests while the proxy runs.

The connections to the client and to the server are independent, so each can be cut at a different time:

    client          proxy          server
      | -- request -->|               |        CUT_BEFORE: cut here; the server sees nothing
      |               |-- request --> |        CUT_WITHIN: cut in the middle of the body; the server gets a part of it
      |               |<-- answer --- |        CUT_AFTER: cut here; the server has done its work, the answer is lost
      |<- half of it -|               |        CUT_ANSWER: cut in the middle of the answer's body
"""

from __future__ import annotations

import enum
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

# Headers of one connection, which are not forwarded.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection"}


class What(enum.Enum):
    """The change that a fault makes to a request."""

    CUT_BEFORE = "cut the connection before the server gets the request"
    CUT_WITHIN = "cut both connections in the middle of the request's body"
    CUT_AFTER = "cut the connection before the client gets the answer"
    CUT_ANSWER = "cut the connection in the middle of the answer's body"
    DELAY = "wait before the request is passed on"
    REFUSE = "answer with an error; the server gets nothing"
    REFUSE_AFTER = "pass the request on, then answer with an error instead"
    STRIP = "remove headers of the request and of the answer"


@dataclass
class Fault:
    """One fault, for matching requests.

    Attributes
    ----------
    method : str
        Regular expression for the whole method.
    path : str
        Regular expression for a part of the path.
    times : int or None
        Number of requests to change; None for all.
    status : int
        Status of the answer of REFUSE and REFUSE_AFTER.
    seconds : float
        Delay of DELAY.
    headers : tuple of str
        Headers that STRIP removes. A server that does not see ``Range`` answers with the whole object.
    n_done : int
        Number of requests changed so far.
    """

    what: What
    method: str = ".*"
    path: str = ""
    times: int | None = None
    status: int = 503
    seconds: float = 0.0
    headers: tuple[str, ...] = ()
    n_done: int = 0

    def fits(self, method: str, path: str) -> bool:
        is_left = self.times is None or self.n_done < self.times
        return is_left and bool(re.fullmatch(self.method, method)) and bool(re.search(self.path, path))


class Seen(NamedTuple):
    """A request that reached the proxy. `status` is that of the server, or None if the server was not asked or the
    answer was cut.
    """

    method: str
    path: str
    status: int | None


@dataclass
class State:
    """The state that all threads of a proxy share."""

    host: str
    port: int
    mutex: threading.Lock = field(default_factory=threading.Lock)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def take(self, method: str, path: str) -> list[Fault]:
        """Return the faults for a request, and count them."""
        with self.mutex:
            found = [fault for fault in self.faults if fault.fits(method, path)]
            for fault in found:
                fault.n_done += 1
        return found


class Answer(NamedTuple):
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State

    def log_message(self, *unused: Any) -> None:
        """Log nothing."""

    def run(self) -> None:
        faults = {fault.what: fault for fault in self.state.take(self.command, self.path)}
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if What.DELAY in faults:
            time.sleep(faults[What.DELAY].seconds)
        answer = None
        if What.CUT_WITHIN in faults:
            self.ask(body[: len(body) // 2], len(body), ())
        elif What.CUT_BEFORE not in faults and What.REFUSE not in faults:
            answer = self.ask(body, len(body), faults[What.STRIP].headers if What.STRIP in faults else ())
        with self.state.mutex:
            self.state.seen.append(Seen(self.command, self.path, None if answer is None else answer.status))
        refusal = faults.get(What.REFUSE) or faults.get(What.REFUSE_AFTER)
        if refusal is not None:
            answer = Answer(refusal.status, "Refused by the proxy", [], b"")
        if answer is None or What.CUT_AFTER in faults:
            self.cut()
        else:
            self.pass_on(answer, is_cut=What.CUT_ANSWER in faults)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = run  # noqa: N815 (so http.server calls it)

    def ask(self, body: bytes, nbytes: int, stripped: tuple[str, ...]) -> Answer | None:
        """Forward a request. If the body is shorter than announced, return None and close the connection."""
        dropped = HOP_BY_HOP | {name.lower() for name in stripped}
        connection = http.client.HTTPConnection(self.state.host, self.state.port, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in dropped:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            if len(body) < nbytes:
                return None
            answer = connection.getresponse()
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in dropped]
            return Answer(answer.status, answer.reason, headers, answer.read())
        finally:
            connection.close()

    def pass_on(self, answer: Answer, *, is_cut: bool) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers:
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: len(answer.body) // 2] if is_cut else answer.body)
        else:
            self.end_headers()
        if is_cut:
            self.cut()

    def cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *unused: Any) -> None:
        """Ignore clients that have closed the connection."""


class Proxy:
    """A proxy on loopback, which runs while its context is entered.

    Attributes
    ----------
    port : int
        Port of the proxy.
    seen : list of Seen
        All requests, in the order in which they were completed.
    """

    def __init__(self, host: str, port: int) -> None:
        self._state = State(host, port)
        self._server = Server(("127.0.0.1", 0), type("Handler", (Handler,), {"state": self._state}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.port: int = self._server.server_address[1]

    @property
    def seen(self) -> list[Seen]:
        return self._state.seen

    def n_seen(self, method: str, path: str = "") -> int:
        """Count requests that match the patterns, as for a `Fault`."""
        return sum(Fault(What.DELAY, method, path).fits(one.method, one.path) for one in self.seen)

    def add(self, what: What, method: str = ".*", path: str = "", **choices: Any) -> Fault:
        """Add a fault from now on."""
        fault = Fault(what, method, path, **choices)
        with self._state.mutex:
            self._state.faults.append(fault)
        return fault

    @contextmanager
    def fault(self, what: What, method: str = ".*", path: str = "", **choices: Any) -> Iterator[Fault]:
        """Add a fault for a block."""
        fault = self.add(what, method, path, **choices)
        try:
            yield fault
        finally:
            with self._state.mutex:
                self._state.faults.remove(fault)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
