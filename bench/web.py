"""A web server on loopback behind a proxy that delays and counts: what reading over a network costs, without one.

    client  <---- 10 ms ----  proxy  <----  nginx, files of a folder
            ----- 10 ms ---->

The proxy is a process of its own. Every piece of a stream is passed on so long after it came, in both directions, so a
request and its answer are a round trip apart and a long answer is not slowed down. Connections are made at once; a real
network would take another round trip for each. `tc netem` on the loopback device would delay every other program of the
machine too, and cannot count. Requests are counted by the ends of their heads (a GET has no body), bytes as they leave for
the client, heads of answers included: in the same way for everybody.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

PIECE_NBYTES = 256 << 10
HOW_TO_GET_NGINX = "nginx is not installed (Debian, Ubuntu: apt-get install nginx-light)"

CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 10000000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


class Traffic(NamedTuple):
    """What went through the proxy."""

    requests: int
    nbytes: int
    connections: int


def nginx() -> str | None:
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def why_not() -> str | None:
    return None if nginx() else HOW_TO_GET_NGINX


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Web:
    """Server and proxy, from `with` to its end."""

    def __init__(self, root: Path, folder: Path, round_trip: float) -> None:
        self.root = root
        self.folder = folder
        self.round_trip = round_trip
        self.port = 0
        self._processes: list[subprocess.Popen[Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        program = nginx()
        if program is None:
            raise FileNotFoundError(HOW_TO_GET_NGINX)
        behind = free_port()
        configuration = self.folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=self.folder, root=self.root, port=behind))
        try:
            self._processes.append(
                subprocess.Popen([program, "-p", str(self.folder), "-e", "stderr", "-c", str(configuration)])
            )
            await_port(behind)
            command = [sys.executable, __file__, str(behind), str(self.round_trip)]
            proxy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(proxy)
            assert proxy.stdout is not None
            self.port = int(proxy.stdout.readline())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def traffic(self) -> Traffic:
        """Return what went through since the last call."""
        proxy = self._processes[-1]
        assert proxy.stdin is not None and proxy.stdout is not None
        proxy.stdin.write("\n")
        proxy.stdin.flush()
        return Traffic(*json.loads(proxy.stdout.readline()))


def await_port(port: int, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


# ---------------------------------------------------------------------------------------------------------
# the proxy


class Proxy:
    def __init__(self, port: int, delay: float) -> None:
        self.port = port
        self.delay = delay
        self.clear()

    def clear(self) -> None:
        self.requests = self.nbytes = self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.port, limit=2 * PIECE_NBYTES)
            await asyncio.gather(self.pass_on(reader, back, True), self.pass_on(there, writer, False))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_request: bool
    ) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=512)
        await asyncio.gather(self.take(reader, pieces, is_request), self.give(pieces, writer, is_request))

    async def take(
        self, reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]], is_request: bool
    ) -> None:
        tail = b""
        while True:
            try:
                piece = await reader.read(PIECE_NBYTES)
            except ConnectionError:
                piece = b""
            if is_request:
                tail += piece
                self.requests += tail.count(b"\r\n\r\n")
                tail = tail[-3:]
            await pieces.put((time.monotonic() + self.delay, piece))
            if not piece:
                return

    async def give(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, is_request: bool
    ) -> None:
        while True:
            due, piece = await pieces.get()
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if not piece:
                writer.close()
                return
            if not is_request:
                self.nbytes += len(piece)
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:  # what is left is for nobody
                continue


async def run_proxy(port: int, delay: float) -> None:
    proxy = Proxy(port, delay)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2 * PIECE_NBYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    questions = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    while await questions.readline():
        print(json.dumps([proxy.requests, proxy.nbytes, proxy.connections]), flush=True)
        proxy.clear()


if __name__ == "__main__":
    asyncio.run(run_proxy(int(sys.argv[1]), float(sys.argv[2]) / 2))
