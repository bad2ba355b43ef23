# folder_machine.py - the base class of Hypothesis' state machines on files
# SPDX-License-Identifier: MIT
"""A state machine with a folder for each run, which is deleted at its end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine

from shardcodec.storage import file_systems

__all__ = ["FolderMachine"]


class FolderMachine(RuleBasedStateMachine):
    """A state machine that works in `folder`, which exists after `begin`."""

    folder: Path

    def begin(self, *, direct: bool) -> None:
        """Create the folder. Without `direct`, no file system counts as one with direct appends."""
        self.folder = Path(tempfile.mkdtemp())
        self._types, self._known = file_systems.DIRECT_TYPES, dict(file_systems._known)
        if not direct:
            file_systems.DIRECT_TYPES = frozenset()
        file_systems._known.clear()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            file_systems.DIRECT_TYPES = self._types
            file_systems._known.clear()
            file_systems._known.update(self._known)
            shutil.rmtree(self.folder)
