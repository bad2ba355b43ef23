# conftest.py - the effort of property tests, checks that no test leaves settings behind, and a library that delays calls
# SPDX-License-Identifier: MIT
"""Hypothesis profiles, chosen by the environment variable HYPOTHESIS_PROFILE.

======  ==========================================================================================
quick   10 examples, the same each time: for sanitizers, under which everything is many times slower
fixed   30 examples, the same each time: the default, so that a result depends on the code alone
random  100 random examples: for `make nightly`, which prints the seed
long    2,000 random examples: for the property tests at night, or after a change of the engine
======  ==========================================================================================

``--half first`` and ``--half second`` divide the tests between two versions of Python, for CI: most of them depend little on the
version, and `make test` and `make nightly` run all with each. Folders that one version runs alone are named with ``--whole``.
"""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from templates import keep_in

settings.register_profile("quick", max_examples=10, derandomize=True, deadline=None)
settings.register_profile("fixed", max_examples=30, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("random", max_examples=100, deadline=None, print_blob=True)
settings.register_profile("long", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A job in the background of a shell begins with SIGINT ignored, and so would the programs that tests send it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pandas imports pyarrow where it is installed. Its allocator takes dozens of locks at a fork, and ThreadSanitizer ends a process
# in which one thread has 64.
if os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread":
    sys.modules["pyarrow"] = None  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--half",
        choices=("first", "second"),
        help="run one half of the tests; the second half has those marked slow",
    )
    parser.addoption(
        "--whole", action="append", default=[], help="run all tests below this path in spite of --half"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    half = config.getoption("--half")
    if half is None:
        return
    whole = [Path(path).resolve() for path in config.getoption("--whole")]

    def is_chosen(item: pytest.Item) -> bool:
        if any(item.path.is_relative_to(path) for path in whole):
            return True
        for marker, its_half in (("native", "first"), ("slow", "second")):
            if item.get_closest_marker(marker):
                return half == its_half
        return zlib.crc32(item.nodeid.encode()) % 2 == (half == "second")

    left_out = [item for item in items if not is_chosen(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_chosen(item)]


@pytest.fixture(params=["local", "memory", "other", "conditional"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An empty store of each kind (`helpers.KINDS_OF_STORE`); a module with other kinds has a fixture of its own."""
    from helpers import store_of

    return store_of(request.param, tmp_path)


def _copy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Copy nested settings, in a tenth of the time of copy.deepcopy."""
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in settings.items()}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of changed settings with their new values."""
    found = []
    for key in {**before, **after}:
        old, new = before.get(key, "nothing"), after.get(key, "nothing")
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{key}.{name}" for name in _changed(old, new)]
        elif old != new:
            found.append(f"{key} = {new!r}")
    return found


def _variables() -> dict[str, str]:
    """Return the environment variables of zarr and of shardcodec."""
    return {name: value for name, value in os.environ.items() if name.startswith(("ZARR_", "SHARDCODEC_"))}


@pytest.fixture(autouse=True, scope="session")
def _appends_in_containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Test direct appends on the file system of the tests, even if it is a local one without proof, such as a
    container's overlay.
    """
    from shardcodec.storage import file_systems

    with pytest.MonkeyPatch.context() as patch:
        fd = os.open(tmp_path_factory.getbasetemp(), os.O_RDONLY)
        if file_systems.is_local(fd):
            patch.setattr(
                file_systems, "APPEND_TYPES", file_systems.APPEND_TYPES | {file_systems.name_of(fd)}
            )
        os.close(fd)
        yield


@pytest.fixture(autouse=True, scope="session")
def _templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    keep_in(tmp_path_factory.mktemp("templates"))


@pytest.fixture(scope="session")
def delays(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that delays calls (tests/mounts/round_trip.c)."""
    from delays import build_library

    return build_library(tmp_path_factory.mktemp("delays"))


@pytest.fixture(scope="module")
def prepared_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An interpreter that starts programs by a fork (tests/prepared_python.py); tests of other modules may count processes."""
    from prepared_python import PreparedPython

    python = PreparedPython(tmp_path_factory.mktemp("programs"))
    yield python
    python.end()


@pytest.fixture(autouse=True)
def _leaves_no_setting() -> Iterator[None]:
    """Check that each test leaves zarr's configuration and shardcodec's options unchanged and no block of
    `group_writes` open.

    This fixture is set up first, so it is torn down last. A test that leaks fails by name. Zarr's configuration is
    restored, so that later tests report only their own leaks.
    """
    zarr, shardcodec = sys.modules.get("zarr"), sys.modules.get("shardcodec")
    if zarr is None or shardcodec is None:  # not imported yet, so the initial settings are unknown
        yield
        return
    active = sys.modules["shardcodec.options"].active
    config, options, variables = _copy(zarr.config.config), active(), _variables()
    yield
    blocks = sys.modules.get("shardcodec.access.buffer")
    is_open = blocks is not None and blocks.active_buffer() is not None
    if (zarr.config.config, active(), _variables()) == (config, options, variables) and not is_open:
        return
    left = _changed(config, zarr.config.config) + _changed(options, active())
    left += _changed(variables, _variables())
    left += ["an open block of group_writes"] if is_open else []
    shardcodec.disable()
    zarr.config.config.clear()
    zarr.config.config.update(config)
    pytest.fail(f"the test leaves these settings: {', '.join(left)}")
