# clients.py - how the clients of tests connect
# SPDX-License-Identifier: MIT
from __future__ import annotations

from datetime import timedelta
from typing import Any


def quick_client() -> dict[str, Any]:
    """Return arguments of an obstore that gives up after 3 retries with short pauses."""
    return {
        "client_options": {"allow_http": True, "timeout": timedelta(seconds=20)},
        "retry_config": {
            "max_retries": 3,
            "retry_timeout": timedelta(seconds=20),
            "backoff": {
                "init_backoff": timedelta(milliseconds=10),
                "max_backoff": timedelta(milliseconds=50),
                "base": 2,
            },
        },
    }
