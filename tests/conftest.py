# conftest.py - how hard the property tests try, and what no test may leave behind
# SPDX-License-Identifier: MIT
"""Hypothesis profiles, chosen by the environment variable HYPOTHESIS_PROFILE.

======  ==========================================================================================
quick   10 examples, the same each time: for sanitizers, under which everything is many times slower
fixed   100 examples, the same each time: the default, so that a result depends on the code alone
random  100 random examples: for `make nightly`, which prints the seed
long    2,000 random examples: for the property tests at night, or after a change of the engine
======  ==========================================================================================
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=10, derandomize=True, deadline=None)
settings.register_profile("fixed", max_examples=100, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", max_examples=100, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def _copy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, however deep; a tenth of what copy.deepcopy takes."""
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in settings.items()}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of settings that are not what they were, with their new values."""
    found = []
    for key in {**before, **after}:
        old, new = before.get(key, "nothing"), after.get(key, "nothing")
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{key}.{name}" for name in _changed(old, new)]
        elif old != new:
            found.append(f"{key} = {new!r}")
    return found


@pytest.fixture(autouse=True, scope="session")
def _appends_in_containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests of appends run on the file system of the tests even where it is a local one that is not proved, as the
    overlay of a container.
    """
    from shardcodec.storage import file_system

    with pytest.MonkeyPatch.context() as patch:
        fd = os.open(tmp_path_factory.getbasetemp(), os.O_RDONLY)
        if file_system.is_local(fd):
            patch.setattr(file_system, "APPEND_TYPES", file_system.APPEND_TYPES | {file_system.name_of(fd)})
        os.close(fd)
        yield


@pytest.fixture(autouse=True)
def _leaves_no_setting() -> Iterator[None]:
    """Each test leaves zarr's configuration, in which the pipeline is chosen, and our options as it found them, and no block of
    `group_writes` open.

    First of all fixtures, hence torn down after them. A test that leaks is failed by name, and zarr's configuration
    is put back, so that the ones after it tell of themselves.
    """
    zarr, shardcodec = sys.modules.get("zarr"), sys.modules.get("shardcodec")
    if (
        zarr is None or shardcodec is None
    ):  # nobody has imported them, so nothing is known of what they start with
        yield
        return
    active = sys.modules["shardcodec.options"].active
    config, options = _copy(zarr.config.config), active()
    yield
    is_open = sys.modules["shardcodec.zarr_plugin.group_writes"].active() is not None
    if zarr.config.config == config and active() == options and not is_open:
        return
    left = _changed(config, zarr.config.config) + _changed(options, active())
    left += ["an open block of group_writes"] if is_open else []
    shardcodec.disable()
    zarr.config.config.clear()
    zarr.config.config.update(config)
    pytest.fail(f"the test leaves these settings: {', '.join(left)}")
