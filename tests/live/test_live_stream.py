# test_live_stream.py - two writers and four readers at the same time
# SPDX-License-Identifier: MIT
"""No reader sees a wrong value or fails, and no process needs more memory as time goes by. `make live` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_actors import installed_readers, problems, run

pytestmark = pytest.mark.slow


def test_two_writers_and_four_readers(tmp_path: Path) -> None:
    readers = installed_readers()
    results = run(tmp_path, 3, readers)
    assert {kind for kind, *_ in results} == {"writer", *readers}
    assert not problems(results)
