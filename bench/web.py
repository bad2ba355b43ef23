"""A web server on loopback behind a proxy that delays and counts, to measure reads over a network without a network.

    client  <---- 10 ms ----  proxy  <----  nginx, files of a folder
            ----- 10 ms ---->

The proxy (`delay.c`) is a separate process. It passes on each piece of a stream after a fixed delay, in both directions.
So each request takes one round trip, however many are under way, and a long answer is not slowed down. With a bandwidth,
all answers share one line. A new connection costs another round trip. `tc netem` on the loopback device would delay all
other programs of the machine too, and cannot count. Requests are counted by the ends of their heads, bytes as they leave
for the client, heads of answers included, in the same way for all peers.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

COMPILER = os.environ.get("CC", "cc")
HOW_TO_GET_NGINX = "nginx is not installed (Debian, Ubuntu: apt-get install nginx-light)"

CONFIGURATION = """
daemon off; master_process off; worker_processes 1; worker_rlimit_nofile 16384; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_timeout 600; keepalive_requests 10000000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


class Traffic(NamedTuple):
    """Requests and bytes that went through the proxy."""

    requests: int
    nbytes: int
    connections: int


def nginx() -> str | None:
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def why_not() -> str | None:
    if nginx() is None:
        return HOW_TO_GET_NGINX
    return None if shutil.which(COMPILER) else f"there is no C compiler {COMPILER!r}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Web:
    """Server and proxy; a context manager."""

    def __init__(self, root: Path, folder: Path, round_trip: float, bandwidth: float = 0.0) -> None:
        self.root = root
        self.folder = folder
        self.round_trip = round_trip  # seconds
        self.bandwidth = bandwidth  # bytes a second; 0: no limit
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
        allow_open_files()
        configuration = self.folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=self.folder, root=self.root, port=behind))
        try:
            self._processes.append(
                subprocess.Popen([program, "-p", str(self.folder), "-e", "stderr", "-c", str(configuration)])
            )
            await_port(behind)
            command = [str(self.proxy()), str(behind), str(self.round_trip), str(self.bandwidth)]
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

    def proxy(self) -> Path:
        """Compile the proxy."""
        program = self.folder / "delay"
        source = Path(__file__).with_name("delay.c")
        subprocess.run([COMPILER, "-std=c11", "-O2", "-o", str(program), str(source)], check=True)
        return program

    def traffic(self) -> Traffic:
        """Return the traffic since the last call."""
        proxy = self._processes[-1]
        assert proxy.stdin is not None and proxy.stdout is not None
        proxy.stdin.write("\n")
        proxy.stdin.flush()
        return Traffic(*json.loads(proxy.stdout.readline()))


def allow_open_files() -> None:
    """Raise the limit of open files: clients keep connections open, and the proxy needs two files for each."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
