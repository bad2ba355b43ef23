# option_sources.py - the options in force, from all sources
# SPDX-License-Identifier: MIT
"""`current_options` and `Resolver`: what every entrance calls, so that none forgets zarr's configuration.

`options` has the other sources and does not import zarr, so that `import shardcodec` stays cheap.
"""

from __future__ import annotations

from typing import Any

from .compat import max_workers, options_of_zarr
from .options import NOTHING, Choices, Options, active, available_cpus, environment, resolve

__all__ = ["Resolver", "current_options"]


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
