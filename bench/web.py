"""A web server on loopback behind a proxy that delays and counts, to measure reads over a network without a network.

    client  <---- 10 ms ----  proxy  <----  nginx, files of a folder
            ----- 10 ms ---->

The proxy (`delay.c`) is a separate process. It passes on each piece of a stream after a fixed delay, in both directions.
So each request takes one round trip, however many are under way, and a long answer is not slowed down. With a bandwidth,
all answers share one line. A new connection costs another round trip. `tc netem` on the loopback device would delay all
other programs of the machine too, and cannot count. Requests are counted by their heads, bytes as they leave the proxy, heads
included, in the same way for all peers.
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
from typing import NamedTuple, Self

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
    """Requests, bytes of their answers and of themselves, and new connections."""

    requests: int
    nbytes: int
    connections: int
    sent_nbytes: int


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


class Line:
    """The proxy in front of a server on this machine; a context manager.

    Parameters
    ----------
    behind : int
        Port of the server.
    folder : Path
        Where the proxy is compiled.
    round_trip : float
        In seconds.
    bandwidth : float
        Bytes a second of all answers; 0: no limit.
    """

    def __init__(self, behind: int, folder: Path, round_trip: float, bandwidth: float = 0.0) -> None:
        self._command = [str(folder / "delay"), str(behind), str(round_trip), str(bandwidth)]
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        source = Path(__file__).with_name("delay.c")
        subprocess.run([COMPILER, "-std=c11", "-O2", "-o", self._command[0], str(source)], check=True)
        allow_open_files()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def traffic(self) -> Traffic:
        """Return the traffic since the last call."""
        assert self._process is not None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Traffic(*json.loads(self._process.stdout.readline()))


class Web:
    """nginx, which serves the files of a folder, behind a `Line`; a context manager."""

    def __init__(self, root: Path, folder: Path, round_trip: float, bandwidth: float = 0.0) -> None:
        self._root = root
        self._folder = folder
        self._behind = free_port()
        self._line = Line(self._behind, folder, round_trip, bandwidth)
        self._nginx: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._line.port}"

    def __enter__(self) -> Self:
        program = nginx()
        if program is None:
            raise FileNotFoundError(HOW_TO_GET_NGINX)
        allow_open_files()
        configuration = self._folder / "nginx.conf"
        configuration.write_text(
            CONFIGURATION.format(folder=self._folder, root=self._root, port=self._behind)
        )
        try:
            self._nginx = subprocess.Popen(
                [program, "-p", str(self._folder), "-e", "stderr", "-c", str(configuration)]
            )
            await_port(self._behind)
            self._line.__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self._line.__exit__()
        if self._nginx is not None:
            self._nginx.terminate()
            self._nginx.wait()

    def traffic(self) -> Traffic:
        """Return the traffic since the last call."""
        return self._line.traffic()


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
