# s3_process.py - moto's S3 in another process; started by s3.py
# SPDX-License-Identifier: MIT
"""Print the port, then serve until standard input is closed.

The parent holds the other end of standard input, so the server stops with the parent, even if that is killed.
"""

from __future__ import annotations

import logging
import sys

from moto.server import ThreadedMotoServer


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
