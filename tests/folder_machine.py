# folder_machine.py - the base class of Hypothesis' state machines on files
# SPDX-License-Identifier: MIT
"""A state machine with a folder for each run, which is deleted at its end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine

from shardcodec.storage import file_system

__all__ = ["FolderMachine"]


class FolderMachine(RuleBasedStateMachine):
    """A state machine that works in `folder`, which exists after `begin`."""

    folder: Path

    def begin(self, *, direct: bool) -> None:
        """Create the folder. Without `direct`, no file system counts as one with direct appends."""
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
