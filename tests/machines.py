# machines.py - what Hypothesis' state machines on files share
# SPDX-License-Identifier: MIT
"""A folder for each run of a machine, gone with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine

from shardcodec.storage import file_system

__all__ = ["FolderMachine"]


class FolderMachine(RuleBasedStateMachine):
    """A machine at work in `folder`, which is there after `begin`."""

    folder: Path

    def begin(self, *, direct: bool) -> None:
        """Make the folder; without `direct`, file systems count as such on which no append is direct."""
        self.folder = Path(tempfile.mkdtemp())
        self._types, self._known = file_system.DIRECT_TYPES, dict(file_system._known)
        if not direct:
            file_system.DIRECT_TYPES = frozenset()
        file_system._known.clear()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            file_system.DIRECT_TYPES = self._types
            file_system._known.clear()
            file_system._known.update(self._known)
            shutil.rmtree(self.folder)
