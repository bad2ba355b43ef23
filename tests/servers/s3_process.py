# s3_process.py - moto's S3 in another process; started by s3.py
# SPDX-License-Identifier: MIT
"""Print the port, then serve until standard input is closed.

The parent holds the other end of standard input, so the server stops with the parent, even if that is killed. moto compares
the ETag of a conditional PUT and stores the object in two steps, so requests at objects are done one after the other here.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

_one_request = threading.Lock()
_answer = S3Response._key_response


def _answer_alone(self: S3Response, request: Any, full_url: str) -> Any:
    """Answer a request whose body has arrived."""
    with _one_request:
        return _answer(self, request, full_url)


def main() -> None:
    S3Response._key_response = _answer_alone  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
