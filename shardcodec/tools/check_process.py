# check_process.py - facts about this process and the installation
# SPDX-License-Identifier: MIT
"""The facts of `doctor` about the process: versions, variants for the processor, threads and why, pipeline, options."""

from __future__ import annotations

from collections.abc import Iterator

from ..build_info import build_info, unknown_variables
from ..compat import config, max_workers, options_of_zarr
from ..options import Setting, settings, thread_limits
from .check import Check, Status

__all__ = ["check_process"]

PIPELINE = "shardcodec.ShardCodecPipeline"


def check_process() -> Iterator[Check]:
    """Yield facts about this process. An invalid option is a problem, not an error."""
    facts = build_info()
    versions = {"shardcodec": facts["version"]} | {name: facts[name] for name in ("python", "zarr", "numpy")}
    versions |= facts["libraries"]
    text = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield Check("versions", Status.OK, text, None, {**versions, "platform": facts["platform"]})
    yield _processor(facts)
    try:
        found = settings(options_of_zarr(), max_workers())
    except (TypeError, ValueError) as error:
        yield Check(
            "options", Status.PROBLEM, str(error), "Correct this option: every read and write fails with it."
        )
    else:
        yield _threads(found["threads"].value, found["threads"].source)
        yield _options(found)
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


def _options(found: dict[str, Setting]) -> Check:
    changed = {name: one.value for name, one in found.items() if one.source != "default"}
    text = ", ".join(f"{name}={found[name].value} ({found[name].source})" for name in changed)
    text = text or "all have their defaults"
    if unknown := unknown_variables():
        text += f"; nothing reads {', '.join(unknown)}"
        meant = [f"{one} for {variable}" for variable, one in unknown.items() if one is not None]
        advice = f"Correct or remove these environment variables{': ' * bool(meant)}{', '.join(meant)}."
        return Check("options", Status.NOTE, text, advice, changed)
    return Check("options", Status.OK, text, None, changed)


def _threads(threads: int, source: str) -> Check:
    limits = {**thread_limits(), "zarr's threading.max_workers": max_workers()}
    told = ", ".join(f"{name} {'-' if limit is None else limit}" for name, limit in limits.items())
    text = f"{threads} by {source} ({told})"
    details = {"threads": threads, "source": source, "limits": limits}
    machine = limits["machine"] or 1
    if threads < machine:
        advice = "Fewer threads than processors: on a cluster, ask the scheduler for more, or set the option threads."
        return Check("threads", Status.NOTE, text, advice, details)
    return Check("threads", Status.OK, text, None, details)


def _pipeline() -> Check:
    path = config.get("codec_pipeline.path")
    if path == PIPELINE or path.startswith("shardcodec."):
        return Check("pipeline", Status.OK, f"zarr uses {path}", None, {"path": path})
    advice = f"Call shardcodec.enable() in each program, or set ZARR_CODEC_PIPELINE__PATH={PIPELINE}."
    text = f"zarr uses {path} in a new process"
    return Check("pipeline", Status.NOTE, text, advice, {"path": path})
