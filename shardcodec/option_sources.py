# option_sources.py - the options in force, from all sources
# SPDX-License-Identifier: MIT
"""`current_options` and `Resolver`: what every entrance calls, so that none forgets zarr's configuration.

`options` has the other sources and does not import zarr, so that `import shardcodec` stays cheap.
"""

from __future__ import annotations

import json
import os
from typing import Any

from donfig.config_obj import merge  # type: ignore[import-untyped]

from .compat import config, max_workers, options_of_zarr
from .options import NOTHING, Choices, Options, active, available_cpus, environment, resolve

__all__ = [
    "PIPELINE_KEY",
    "PIPELINE_PATH",
    "RECORD",
    "Resolver",
    "current_options",
    "inherited_variables",
    "settings_without_calls",
    "variable_of_setting",
]

# The setting of zarr by which it chooses the pipeline of an array, and the value that `enable` gives it.
PIPELINE_KEY = "codec_pipeline.path"
PIPELINE_PATH = "shardcodec.ShardCodecPipeline"

# The environment variable in which `enable` records the variables that it has set, as JSON. So a child can tell them from those
# of the user.
RECORD = "SHARDCODEC_ENABLED"


def variable_of_setting(key: str) -> str:
    """Return the environment variable from which zarr's configuration takes a value when zarr is imported."""
    return f"{config.env_prefix}{key.upper().replace('.', '__')}"


def settings_without_calls() -> dict[str, Any]:
    """Return zarr's configuration as a process gets it that starts now: from defaults, files and environment variables."""
    return dict(merge(*config.defaults, config.collect()))


def inherited_variables() -> dict[str, str]:
    """Return the environment variables that `enable` has set, in this process or in one that started it."""
    try:
        record = json.loads(os.environ.get(RECORD) or "{}")
    except ValueError:
        record = {}
    pairs = record.items() if isinstance(record, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str) and os.environ.get(name) == value}


def current_options(*, argument: Choices = NOTHING, attached: Choices = NOTHING) -> Options:
    """Return the value of every option at this moment, from the sources in the head of `options`.

    Parameters
    ----------
    argument, attached : mapping
        Options that `check` has parsed: those of a call, and those of an array.

    Returns
    -------
    Options

    Raises
    ------
    TypeError, ValueError
        A name or a value in the configuration or the environment is invalid.
    """
    return resolve(argument=argument, attached=attached, config=options_of_zarr(), max_workers=max_workers())


class Resolver:
    """A memoised `current_options`, recomputed only when a source has changed.

    Parameters
    ----------
    attached, argument : mapping
        Options that `check` has parsed: those attached to an array, and those passed when a reader was opened.
    """

    def __init__(self, attached: Choices = NOTHING, *, argument: Choices = NOTHING) -> None:
        self._attached = attached
        self._argument = argument
        self._known: tuple[tuple[Any, ...], int, Options] | None = None

    def resolve(self, *, any_threads: bool = False) -> Options:
        """Return the value of every option at this moment; memoised.

        Parameters
        ----------
        any_threads : bool
            True if the caller does not need a current value of ``threads``. The number of available processors, which may
            change at run time, is then not determined again.

        Returns
        -------
        Options

        Raises
        ------
        TypeError, ValueError
            A name or a value in the configuration or the environment is invalid.
        """
        config, most = options_of_zarr(), max_workers()
        said = (config, active(), most, environment())
        known = self._known
        if any_threads and known is not None and known[0] == said:
            return known[2]
        n_cpus = available_cpus()
        if known is not None and known[:2] == (said, n_cpus):
            return known[2]
        found = resolve(
            argument=self._argument,
            attached=self._attached,
            config=config,
            max_workers=most,
            n_cpus=n_cpus,
        )
        self._known = said, n_cpus, found
        return found
