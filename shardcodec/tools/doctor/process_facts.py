# process_facts.py - facts about this process and the installation
# SPDX-License-Identifier: MIT
"""`check_process`: facts about this process and the installation, each with one line of advice if something should change."""

from __future__ import annotations

from collections.abc import Iterator

from ...build_info import build_info, unknown_variables
from ...compat import config, max_workers, pipelines_of_arrays
from ...option_sources import (
    PIPELINE_KEY,
    PIPELINE_PATH,
    selector_of_new_process,
    settings_in_force,
    source_of,
)
from ...options import Setting, thread_limits
from ...readable import format_nbytes
from ...storage import disk_cache
from .report import Check, Status

__all__ = ["check_process"]


def check_process(*, clear_cache: bool = False) -> Iterator[Check]:
    """Yield facts about this process. An invalid option is a problem, not an error.

    Parameters
    ----------
    clear_cache : bool
        Empty the folder of the option ``cache_dir`` before its size is taken.

    Yields
    ------
    Check
    """
    facts = build_info()
    versions = {"shardcodec": facts["version"]} | {name: facts[name] for name in ("python", "zarr", "numpy")}
    versions |= facts["libraries"]
    text = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield Check("versions", Status.OK, text, None, {**versions, "platform": facts["platform"]})
    yield _processor(facts)
    try:
        options = settings_in_force()
    except (TypeError, ValueError) as error:
        yield Check(
            "options", Status.PROBLEM, str(error), "Correct this option: every read and write fails with it."
        )
    else:
        yield _threads(options["threads"].value, options["threads"].source)
        yield _options(options)
        if options["cache_dir"].value is not None:
            yield _disk_cache(options["cache_dir"].value, options["cache_dir_bytes"].value, clear=clear_cache)
    yield _pipeline()


def _processor(facts: dict[str, object]) -> Check:
    cpu, crc32c = facts["cpu"], facts["crc32c"]
    assert isinstance(cpu, dict)
    assert isinstance(crc32c, dict)
    text = f"{' '.join(cpu['used']) or 'no special instructions'}; checksums by {crc32c['used']}"
    details = {**cpu, "crc32c": crc32c}
    if cpu["override"]:
        text += f"; SHARDCODEC_CPU={cpu['override']} restricts {' '.join(cpu['detected'])}"
        advice = "Remove SHARDCODEC_CPU from the environment, unless you test with it."
        return Check("processor", Status.NOTE, text, advice, details)
    return Check("processor", Status.OK, text, None, details)


def _options(options: dict[str, Setting]) -> Check:
    changed = {name: setting.value for name, setting in options.items() if setting.source != "default"}
    text = ", ".join(f"{name}={options[name].value} ({options[name].source})" for name in changed)
    text = text or "all have their defaults"
    if unknown := unknown_variables():
        text += f"; nothing reads {', '.join(unknown)}"
        meant = [f"{name} for {variable}" for variable, name in unknown.items() if name is not None]
        advice = f"Correct or remove these environment variables{': ' * bool(meant)}{', '.join(meant)}."
        return Check("options", Status.NOTE, text, advice, changed)
    return Check("options", Status.OK, text, None, changed)


def _disk_cache(folder: str, max_nbytes: int, *, clear: bool) -> Check:
    try:
        if clear:
            disk_cache.clear(folder)
        n, nbytes = disk_cache.usage(folder)
    except OSError as error:
        advice = "Choose a folder of your own on a local disk, or remove the option cache_dir."
        return Check("cache", Status.NOTE, f"{folder} cannot be used: {error}", advice, {"path": folder})
    text = f"{folder}: {n} objects, {format_nbytes(nbytes)} of {format_nbytes(max_nbytes)}"
    return Check(
        "cache",
        Status.OK,
        text + " (cleared)" * clear,
        None,
        {"path": folder, "objects": n, "nbytes": nbytes, "max_nbytes": max_nbytes},
    )


def _threads(threads: int, source: str) -> Check:
    limits = {**thread_limits(), "zarr's threading.max_workers": max_workers()}
    listed = ", ".join(f"{name} {'-' if limit is None else limit}" for name, limit in limits.items())
    text = f"{threads} by {source} ({listed})"
    details = {"threads": threads, "source": source, "limits": limits}
    machine = limits["machine"] or 1
    if threads < machine:
        advice = "Fewer threads than processors: on a cluster, ask the scheduler for more, or set the option threads."
        return Check("threads", Status.NOTE, text, advice, details)
    return Check("threads", Status.OK, text, None, details)


def _pipeline() -> Check:
    path, source = config.get(PIPELINE_KEY), source_of(PIPELINE_KEY)
    details = {"path": path, "source": source}
    text = f"zarr uses {path} ({source})"
    selector = selector_of_new_process()
    if path != PIPELINE_PATH and selector is not None:
        text += f", which has replaced shardcodec's ({selector})"
    if (path == PIPELINE_PATH or selector is not None) and (others := _arrays_with_another_pipeline()):
        text += f"; arrays of this process that use another one: {', '.join(others)}"
        advice = "Open these arrays again, or use shardcodec.attach (docs/how-to/other-packages.md)."
        if path != PIPELINE_PATH:
            advice = f"Call shardcodec.enable(). {advice}"
        return Check("pipeline", Status.NOTE, text, advice, details | {"others": others})
    if path == PIPELINE_PATH:
        return Check("pipeline", Status.OK, text, None, details)
    advice = "Call shardcodec.enable() in each program, or run `shardcodec enable` once for the environment."
    if source != "default":
        advice = f"Remove this setting, or call shardcodec.enable() after it: {source}."
    return Check("pipeline", Status.NOTE, text, advice, details)


def _arrays_with_another_pipeline() -> list[str]:
    own = PIPELINE_PATH.rpartition(".")[2]
    return sorted({name for name, pipeline in pipelines_of_arrays() if type(pipeline).__name__ != own})
