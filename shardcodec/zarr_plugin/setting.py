# setting.py - the active calls of `enable`, as one setting
# SPDX-License-Identifier: MIT
"""The active calls of `enable`, as one setting of zarr's configuration and of the environment."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ..compat import config
from ..option_sources import (
    ENABLED_KEY,
    PIPELINE_KEY,
    PIPELINE_PATH,
    is_direct,
    selector_of_new_process,
    settings_without_calls,
    source_of,
    variable_of_setting,
)
from .children import ChildVariables, variables_of

__all__ = ["CALL", "setting"]


# The name of what selects the pipeline while a call of `enable` is active.
CALL = "shardcodec.enable()"


class _Setting:
    """The active calls of `enable`, as one setting of zarr's configuration and of the environment.

    Both are made again when a call is added or undone. So calls can be undone in any order, and after the last one they are
    those from before the first one.
    """

    def __init__(self) -> None:
        # A fork waits for it: under it a thread may hold the lock of zarr's configuration, which is not made again in a child.
        self.mutex = threading.RLock()
        self._calls: list[Any] = []
        self._active: Any = None  # a context of zarr's `config.set`
        self._variables = ChildVariables()
        self._warned: str | None = None
        # Told whether methods of zarr are replaced; its module is loaded for the first array.
        self.follow_direct: Callable[[bool], None] | None = None
        os.register_at_fork(
            before=self.mutex.acquire,
            after_in_parent=self.mutex.release,
            after_in_child=self.mutex.release,
        )

    def add(self, call: Any) -> None:
        """Add a call."""
        with self.mutex:
            if self._calls:  # otherwise a variable may be meant for other processes
                self.look()
            self._warned = None
            self._calls.append(call)
            self._apply()

    def has(self, call: Any) -> bool:
        """Return True if a call is active."""
        return call in self._calls

    def selector(self) -> str | None:
        """Return what selects shardcodec's pipeline here: a call, a file or a variable; None if nothing does."""
        return CALL if self._calls else selector_of_new_process()

    def look(self, *, stacklevel: int = 4) -> None:
        """Warn, once for each setting, if another program has replaced the pipeline of a call, a file or a variable.

        zarr tells nothing of a change, so this is called where shardcodec's code runs in any case.
        """
        path = config.get(PIPELINE_KEY)
        if path in (PIPELINE_PATH, self._warned) or (selector := self.selector()) is None:
            return
        self._warned = path
        text = (
            f"{PIPELINE_KEY}={path} ({source_of(PIPELINE_KEY)}) has replaced the pipeline of {selector}: arrays that "
            "were opened since then do not use shardcodec, and parallel writers may lose updates; see "
            "docs/how-to/other-packages.md"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel)

    def remove(self, call: Any) -> bool:
        """Undo one call; return False if it is not active."""
        with self.mutex:
            if call not in self._calls:
                return False
            self.look()
            self._calls.remove(call)
            self._apply()
            return True

    def clear(self) -> list[Any]:
        """Undo all calls, also those of the process that started this one; return those of this process."""
        with self.mutex:
            if self._calls:
                self.look()
            calls, self._calls = self._calls, []
            self._apply()
            _forget(self._variables.drop_inherited())
            return calls

    def _apply(self) -> None:
        if self._active is not None:
            self._active.__exit__(None, None, None)
            self._active = None
        if self._calls:
            values = {f"shardcodec.{name}": value for name, value in _options_of(self._calls).items()}
            self._active = config.set({PIPELINE_KEY: PIPELINE_PATH, **values})
        if self.follow_direct is not None:
            self.follow_direct(bool(self._calls) and is_direct())
        calls = [call for call in self._calls if call.children]
        self._variables.put(variables_of(_options_of(calls)) if calls else {})


def _options_of(calls: list[Any]) -> dict[str, Any]:
    return {name: value for call in calls for name, value in call.defaults.items()}


def _forget(variables: Mapping[str, str]) -> None:
    """Take back what zarr's configuration has from variables that have just been removed from the environment."""
    if not variables:
        return
    if variable_of_setting(ENABLED_KEY) in variables:
        variables = {**variables, variable_of_setting(PIPELINE_KEY): PIPELINE_PATH}
    fresh = settings_without_calls()
    for section in ("codec_pipeline", "shardcodec"):
        present = config.config.get(section, {})
        for name in list(present):
            if variables.get(variable_of_setting(f"{section}.{name}")) != str(present[name]):
                continue
            if name in fresh.get(section, {}):
                present[name] = fresh[section][name]
            else:
                del present[name]
        if not present:
            config.config.pop(section, None)


setting: _Setting = _Setting()
