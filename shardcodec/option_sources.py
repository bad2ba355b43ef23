# option_sources.py - the options in force, from all sources
# SPDX-License-Identifier: MIT
"""`current_options` and `Resolver`: what every entrance calls, so that none forgets zarr's configuration.

`options` has the other sources and does not import zarr, so that `import shardcodec` stays cheap.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from donfig.config_obj import canonical_name, collect_env, collect_yaml, merge  # type: ignore[import-untyped]

from .compat import config, max_workers, options_of_zarr
from .options import (
    NOTHING,
    Choices,
    Options,
    Setting,
    active,
    available_cpus,
    environment,
    flag,
    resolve,
    settings,
)

__all__ = [
    "ENABLED_KEY",
    "PIPELINE_KEY",
    "PIPELINE_PATH",
    "RECORD",
    "Resolver",
    "current_options",
    "inherited_variables",
    "is_direct",
    "selector_of_new_process",
    "settings_in_force",
    "settings_without_calls",
    "source_of",
    "source_of_new_process",
    "variable_of_setting",
]

# The setting of zarr by which it chooses the pipeline of an array, and the value that `enable` gives it.
PIPELINE_KEY = "codec_pipeline.path"
PIPELINE_PATH = "shardcodec.ShardCodecPipeline"

# The setting of ours by which variables and files select this pipeline. zarr's own setting would break every environment that has
# zarr and not shardcodec; this one means nothing there.
ENABLED_KEY = "shardcodec.enabled"

# The environment variable in which `enable` records the variables that it has set, as JSON. So a child can tell them from those
# of the user.
RECORD = "SHARDCODEC_ENABLED"


def variable_of_setting(key: str) -> str:
    """Return the environment variable from which zarr's configuration takes a value when zarr is imported."""
    return f"{config.env_prefix}{key.upper().replace('.', '__')}"


def settings_without_calls() -> dict[str, Any]:
    """Return zarr's configuration as a process gets it that starts now: from defaults, files and environment variables."""
    found = dict(merge(*config.defaults, config.collect()))
    return dict(merge(found, {"codec_pipeline": {"path": _last_source(PIPELINE_KEY)[1]}}))


def inherited_variables() -> dict[str, str]:
    """Return the environment variables that `enable` has set, in this process or in one that started it."""
    try:
        record = json.loads(os.environ.get("SHARDCODEC_ENABLED") or "{}")
    except ValueError:
        record = {}
    pairs = record.items() if isinstance(record, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str) and os.environ.get(name) == value}


_ABSENT = object()


def source_of(key: str) -> str:
    """Return what has set a setting of zarr's configuration: a file, a variable, a call in this process, or the default."""
    value = _value_in(config.config, key)
    source, told = _last_source(key)
    return source if told == value else "a call in this process"


def source_of_new_process(key: str) -> str:
    """Return what sets a setting of zarr's configuration in a process that starts now."""
    return _last_source(key)[0]


def selector_of_new_process() -> str | None:
    """Return the file or variable that selects shardcodec's pipeline in a process that starts now; None if none does."""
    source, path = _last_source(PIPELINE_KEY)
    return source if path == PIPELINE_PATH else None


def settings_in_force() -> dict[str, Setting]:
    """Return the value and the source of every option in this process.

    Raises
    ------
    TypeError, ValueError
        An option in the configuration or the environment is invalid.
    """
    return {
        name: setting._replace(source=source_of(f"shardcodec.{name}"))
        if setting.source == "zarr.config"
        else setting
        for name, setting in settings(options_of_zarr(), max_workers()).items()
    }


def _last_source(key: str) -> tuple[str, Any]:
    last = "default", _value_in(merge(*config.defaults), key)
    for source, chosen in _sources():
        if (value := _value_in(chosen, key)) is not _ABSENT:
            last = source, value
    return last


def _sources() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the files and the variables that zarr reads when it is imported, and what they set; later ones win.

    Raises
    ------
    ValueError
        `ENABLED_KEY` is set to a value that is neither true nor false.
    """
    found = list(_as_written())
    is_enabled = _is_enabled(merge(*(chosen for _, chosen in found)))
    for source, chosen in found:
        if is_enabled and _is_enabled(chosen) and _value_in(chosen, PIPELINE_KEY) is _ABSENT:
            chosen = merge(chosen, {"codec_pipeline": {"path": PIPELINE_PATH}})
        yield source, chosen


def _is_enabled(chosen: Any) -> bool:
    value = _value_in(chosen, ENABLED_KEY)
    try:
        return value is not _ABSENT and flag(value)
    except ValueError as error:
        raise ValueError(f"zarr.config shardcodec:enabled: {error}") from None


def _as_written() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in config.paths:
        names = sorted(os.listdir(path)) if os.path.isdir(path) and os.access(path, os.R_OK) else [""]
        for name in names:
            file = os.path.join(path, name) if name else path
            if os.path.isfile(file) and (not name or file.lower().endswith((".json", ".yaml", ".yml"))):
                for chosen in collect_yaml(paths=[file]):
                    yield f"file {file}", chosen
    inherited = inherited_variables()
    own = variable_of_setting(PIPELINE_KEY)
    for name, value in sorted(os.environ.items(), key=lambda variable: variable[0].upper() == own):
        if name.startswith(config.env_prefix):  # a pipeline that a variable names wins over ENABLED_KEY
            by = ", by enable() in this process or the one that started it" if name in inherited else ""
            yield f"environment variable {name}{by}", collect_env(config.env_prefix, env={name: value})


def _value_in(chosen: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(chosen, Mapping) or (part := canonical_name(part, chosen)) not in chosen:
            return _ABSENT
        chosen = chosen[part]
    return chosen


def _follow_files_and_variables() -> None:
    """Select the pipeline where a file or a variable says so. zarr imports this module before it looks up its first pipeline."""
    if not _is_enabled(config.config):
        return
    as_read = _value_in(merge(*config.defaults, config.collect()), PIPELINE_KEY)
    if as_read == config.get(PIPELINE_KEY) and _last_source(PIPELINE_KEY)[1] == PIPELINE_PATH:
        config.set({PIPELINE_KEY: PIPELINE_PATH})  # else a call in this process has chosen another one


_follow_files_and_variables()


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


def is_direct() -> bool:
    """Return the switch ``direct``; no option is looked at.

    Raises
    ------
    ValueError
        An option or a switch in the environment is invalid.
    """
    return bool(environment().get("direct", Options.direct))


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
