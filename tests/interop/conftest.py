# conftest.py - who takes part, and who reads what whom has written
# SPDX-License-Identifier: MIT
"""Fixtures: `peer`, and `writer` with `reader` for both directions between the peer and us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .peers import PEERS, US, Peer


@pytest.fixture(params=PEERS, ids=lambda peer: peer.name)
def peer(request: pytest.FixtureRequest) -> Any:
    """Each other implementation."""
    reason = request.param.missing()
    if reason:
        pytest.skip(reason)
    return request.param


@pytest.fixture(params=["from-us", "to-us"])
def pair(request: pytest.FixtureRequest, peer: Peer) -> tuple[Peer, Peer]:
    """Writer and reader, in both directions."""
    return (US, peer) if request.param == "from-us" else (peer, US)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where an array may be laid; it does not exist yet."""
    return tmp_path / "array"
