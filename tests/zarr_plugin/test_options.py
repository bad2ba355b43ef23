# test_options.py - precedence of the places that set options, and invalid options
# SPDX-License-Identifier: MIT
"""Options: precedence, names and values, threads and processors."""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import run_checked, run_python

import shardcodec

options_module = importlib.import_module("shardcodec.options")
resolve = options_module.resolve


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read the environment again, since it is read once per process."""
    for name in list(os.environ):
        if name.startswith("SHARDCODEC_") and name != "SHARDCODEC_CPU":
            monkeypatch.delenv(name)
    cached = options_module.environment, options_module._cgroup_quota  # a test may patch the names
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


# ---- precedence


def test_each_place_overrides_the_weaker_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve().order == "morton"
    monkeypatch.setenv("SHARDCODEC_ORDER", "colexicographic")
    options_module.environment.cache_clear()
    assert resolve().order == "colexicographic"
    layers: dict[str, Any] = {"config": {"order": "lexicographic"}}
    assert resolve(**layers).order == "lexicographic"
    layers["attached"] = {"order": "morton"}
    assert resolve(**layers).order == "morton"
    with shardcodec.options(order="colexicographic"):
        assert resolve(**layers).order == "colexicographic"
        layers["argument"] = {"order": "lexicographic"}
        assert resolve(**layers).order == "lexicographic"


def test_each_option_is_resolved_on_its_own() -> None:
    with shardcodec.options(strict=True):
        chosen = resolve(argument={"threads": 3}, attached={"strict": False, "durability": "fsync"})
    assert chosen == options_module.Options(threads=3, durability="fsync", strict=True)


def test_inner_block_overrides_until_its_end() -> None:
    with shardcodec.options(order="lexicographic", threads=2):
        with shardcodec.options(order="colexicographic"):
            assert (resolve().order, resolve().threads) == ("colexicographic", 2)
        assert resolve().order == "lexicographic"
    assert resolve().order == "morton"


def test_exception_ends_a_block() -> None:
    with pytest.raises(ZeroDivisionError), shardcodec.options(strict=True):
        _ = 1 // 0
    assert not resolve().strict


def test_none_leaves_an_option_unchanged() -> None:
    with shardcodec.options(order="lexicographic"), shardcodec.options(order=None):
        assert resolve().order == "lexicographic"


def test_false_overrides_true() -> None:
    with shardcodec.options(strict=True), shardcodec.options(strict=False):
        assert not resolve().strict


def test_block_does_not_apply_to_other_threads() -> None:
    seen: list[bool] = []
    with shardcodec.options(strict=True):
        thread = threading.Thread(target=lambda: seen.append(resolve().strict))
        thread.start()
        thread.join()
    assert seen == [False]


# ---- names and values


@pytest.mark.parametrize("use", [shardcodec.options, shardcodec.enable])
def test_unknown_option_is_refused(use: Any) -> None:
    with pytest.raises(TypeError, match=r"no option 'thread'.*threads"), use(thread=1):
        pass
    shardcodec.disable()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # values that overflow in the engine raised an OverflowError there, without the name of the option
        ("threads", 2**40),
        ("index_cache", 2**70),
        ("cache", "much"),
        ("open_files", 2**40),
        ("cache_dir", ""),
        ("cache_dir", b"/tmp"),
        ("cache_dir", "s3://bucket"),
        ("cache_dir", "a\0b"),
        ("cache_dir_bytes", -1),
        ("staging_nbytes", 2**70),
        ("lock_timeout", 2**2000),
        ("io_depth", 0),
        ("io_depth", "deep"),
        ("io_depth", 2**40),
        ("io_latency", -1),
        ("io_latency", "slow"),
        ("io_latency", float("nan")),
        ("io_latency", float("inf")),
        ("io_latency", "inf"),
        ("threads", 0),
        ("threads", -1),
        ("threads", 1.5),
        ("threads", True),
        ("threads", "many"),
        ("threads", ""),
        ("order", "z"),
        ("order", 1),
        ("order", ["morton"]),
        ("durability", "sync"),
        ("strict", "perhaps"),
        ("strict", 2),
        ("strict", [True]),
        ("write_strategy", "apend"),
        ("compact", "maybe"),
        ("allow_in_index", 2),
        ("immutable", "perhaps"),
        ("direct", "perhaps"),
        ("locking", "node"),
    ],
)
def test_invalid_value_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name), shardcodec.options(**{name: value}):
        pass


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("threads", "3", 3),
        ("threads", np.int64(3), 3),
        ("io_depth", "8", 8),
        ("io_depth", "auto", "auto"),
        ("io_latency", "0.002", 0.002),
        ("io_latency", 1, 1.0),
        ("io_latency", "auto", "auto"),
        ("lock_timeout", "inf", float("inf")),
        ("strict", "yes", True),
        ("strict", "FALSE", False),
        ("strict", 1, True),
        ("strict", "0", False),
        ("cache_dir", Path("/tmp/x"), "/tmp/x"),
        ("cache_dir", "/tmp/../x", "/x"),
        ("cache_dir_bytes", "0", 0),
    ],
)
def test_values_may_be_text_or_numpy_scalars(name: str, given: Any, meant: Any) -> None:
    with shardcodec.options(**{name: given}):
        value = getattr(resolve(), name)
    assert value == meant and type(value) is type(meant)


def test_options_are_compared_and_printed_as_values() -> None:
    options = options_module.Options(threads=2)
    assert eval(repr(options), {"Options": options_module.Options}) == options
    with pytest.raises(AttributeError):
        options.threads = 3  # type: ignore[misc]


def test_each_option_has_a_parser() -> None:
    """An option without one was refused as unknown, in a message that listed it as expected."""
    different = sorted(set(options_module._PARSERS) ^ {*options_module.NAMES, *options_module.SWITCHES})
    assert not different, f"_PARSERS of shardcodec/options.py: add or remove {different}"


def test_page_has_a_row_for_each_option() -> None:
    """Before the fix, `allow_in_index` had none."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "options.md").read_text()
    rows = sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    variables = map(options_module.variable_of, options_module.SWITCHES)
    wanted = sorted([*options_module.NAMES, *variables])
    assert rows == wanted, f"the tables of docs/options.md: add or remove {sorted(set(rows) ^ set(wanted))}"


def test_switch_that_is_given_as_an_option_names_its_variable() -> None:
    code = """
        import zarr, shardcodec
        array = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="u1")
        calls = (
            shardcodec.enable,
            lambda **given: shardcodec.options(**given).__enter__(),
            lambda **given: shardcodec.attach(array, **given),
            lambda **given: shardcodec.open_shard(b"", None, shardcodec.ShardSpec((4,), (2,), "u1", 0), **given),
        )
        for call in calls:
            try:
                call(lock_timeout=5)
            except TypeError as error:
                print(error)
        zarr.config.set({"shardcodec.lock_timeout": 5})
        try:
            shardcodec.attach(array)[0]
        except TypeError as error:
            print(error)
    """
    told = "set the environment variable SHARDCODEC_LOCK_TIMEOUT instead, before the program starts"
    lines = [f"option lock_timeout: {told}"] * 4 + [f"zarr.config shardcodec:lock_timeout: {told}"]
    assert run_checked(code).stdout.splitlines() == lines


def test_variables_set_switches() -> None:
    code = "from shardcodec.options import resolve; print(resolve().lock_timeout, resolve().compact, resolve().io_latency)"
    values = {"SHARDCODEC_LOCK_TIMEOUT": "inf", "SHARDCODEC_COMPACT": "no", "SHARDCODEC_IO_LATENCY": "1e-05"}
    assert run_checked(code, **values).stdout == "inf False 1e-05\n"


def test_bad_configuration_names_its_place() -> None:
    with zarr.config.set({"shardcodec.order": "z"}), pytest.raises(ValueError, match=r"zarr.*order"):
        resolve(config={"order": "z"})


# ---- the environment


def test_environment_variables_set_options() -> None:
    code = """
        import importlib, shardcodec
        options = importlib.import_module("shardcodec.options").resolve()
        print(options.threads, options.order, options.durability, options.strict)
    """
    done = run_python(
        code,
        SHARDCODEC_NUM_THREADS="5",
        SHARDCODEC_ORDER="lexicographic",
        SHARDCODEC_DURABILITY="fsync",
        SHARDCODEC_STRICT="1",
    )
    assert done.stdout == "5 lexicographic fsync True\n", done.stderr


def test_empty_variable_is_ignored() -> None:
    done = run_python(
        "import importlib, shardcodec; print(importlib.import_module('shardcodec.options').resolve().order)",
        SHARDCODEC_NUM_THREADS="",
        SHARDCODEC_ORDER="",
    )
    assert done.stdout == "morton\n", done.stderr


def test_invalid_variable_is_named() -> None:
    code = """
        import shardcodec
        spec = shardcodec.ShardSpec((4,), (2,), "u1", 0, [{"name": "bytes"}])
        shardcodec.encode(1, spec)
    """
    done = run_python(code, SHARDCODEC_NUM_THREADS="lots")
    # importing succeeds; the message comes from the first use and names the variable
    assert "SHARDCODEC_NUM_THREADS" in done.stderr
    assert "lots" in done.stderr


def test_zarrs_variables_reach_an_array() -> None:
    code = """
        import zarr, shardcodec
        from shardcodec.zarr_plugin import pipeline
        shardcodec.enable()
        array = zarr.create_array({}, shape=(4,), shards=(4,), chunks=(2,), dtype="u1")
        chosen = array.async_array.codec_pipeline._options()
        print(chosen.threads, chosen.order)
    """
    done = run_python(code, ZARR_SHARDCODEC__THREADS="3", ZARR_SHARDCODEC__ORDER="lexicographic")
    assert done.stdout == "3 lexicographic\n", done.stderr


# ---- threads


def test_max_workers_is_an_upper_bound() -> None:
    assert resolve(argument={"threads": 8}, max_workers=2).threads == 2
    assert resolve(argument={"threads": 1}, max_workers=2).threads == 1
    assert resolve(argument={"threads": 8}, max_workers=0).threads == 1
    with zarr.config.set({"threading.max_workers": 3}):
        array = shardcodec.attach(
            zarr.create_array({}, shape=(4,), shards=(4,), chunks=(2,), dtype="u1"), threads=9
        )
        assert array.async_array.codec_pipeline._options().threads == 3


def test_default_is_the_number_of_available_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(options_module, "_cgroup_quota", lambda: None)
    assert resolve().threads == 6
    monkeypatch.setattr(options_module, "_cgroup_quota", lambda: 4)
    assert resolve().threads == 4
    monkeypatch.setattr(options_module, "_cgroup_quota", lambda: 64)
    assert resolve().threads == 6
    monkeypatch.setattr(options_module, "_cgroup_quota", lambda: 0)
    assert resolve().threads == 1


def test_default_without_affinity_is_the_number_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(options_module, "_cgroup_quota", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert options_module.available_cpus() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert options_module.available_cpus() == 1


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), OverflowError()])
def test_default_where_a_sandbox_refuses_to_tell_the_affinity(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Where the call is answered with EINVAL, Python asks with larger sets until it raises OverflowError."""

    def refused(_: int) -> set[int]:
        raise error

    monkeypatch.setattr(os, "sched_getaffinity", refused, raising=False)
    monkeypatch.setattr(options_module, "_cgroup_quota", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert options_module.available_cpus() == 5
