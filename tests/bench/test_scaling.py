# test_scaling.py - how cost grows with cores: the model finds the costs that a time consists of, and the parts of the program run
# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Import = Callable[[str], ModuleType]

BENCH = Path(__file__).resolve().parents[2] / "bench"
POINTS = [(1, 1), (1, 2), *((2, threads) for threads in (1, 2, 4, 8, 16, 32, 64))]


def times(serial: float, parallel: float, wake: float) -> dict[tuple[int, int], float]:
    return {(c, t): serial + parallel / min(c, t) + wake * (t - 1) for c, t in POINTS}


@pytest.mark.parametrize(
    ("serial", "parallel", "wake"), [(0.01, 0.2, 1e-5), (0, 0.3, 0), (0.1, 0, 2e-4), (0.02, 0.02, 1e-4)]
)
def test_model_finds_the_costs(serial: float, parallel: float, wake: float, bench: Import) -> None:
    found = bench("model").fit(times(serial, parallel, wake))
    assert (found.serial, found.parallel, found.wake) == pytest.approx((serial, parallel, wake), abs=1e-9)
    assert found.error < 1e-6
    assert found.seconds(2, 8) == pytest.approx(times(serial, parallel, wake)[2, 8])


def test_model_has_no_negative_cost(bench: Import) -> None:
    """Two cores that are more than twice as fast as one would give a negative serial part."""
    found = bench("model").fit({(1, 1): 1.0, (2, 2): 0.4, (2, 4): 0.39})
    assert min(found.serial, found.parallel, found.wake) >= 0
    assert 0.05 < found.error < 0.5


def document(serial: float, parallel: float, wake: float, bandwidth: float) -> dict[str, Any]:
    measured = times(serial, parallel, wake)
    rows = [
        {
            "group": f"threads on {cores} cores",
            "name": "read, zstd 1",
            "nbytes": 10**8,
            "peers": {
                str(t): {"seconds": [1e3, seconds]} for (c, t), seconds in measured.items() if c == cores
            },
        }
        for cores in (1, 2)
    ]
    copies = {"1": {"seconds": [2 * 10**8 / bandwidth]}}
    return {"rows": [*rows, {"group": "memory", "name": "copies", "nbytes": 10**8, "peers": copies}]}


@pytest.mark.parametrize(
    ("costs", "bandwidth", "reason", "cores"),
    [
        ((0.01, 0.99, 0), 1e15, "the serial part", 101),  # Amdahl: half as much each where n = 1 + 1 / 0.01
        ((0, 1, 0), 1e15, "nothing below 1,024 cores", 1024),
        (
            (0, 1, 1e-4),
            1e15,
            "wake-ups of threads",
            100,
        ),  # n / (1 + 1e-4 n (n - 1)) is n / 2 where n (n - 1) = 10,000
        ((0, 1, 0), 8e8, "memory bandwidth", 1024),
    ],
)
def test_first_limit_is_named(
    costs: tuple[float, float, float], bandwidth: float, reason: str, cores: int, bench: Import
) -> None:
    limit = bench("model").limits(document(*costs, bandwidth), "read, zstd 1")
    assert (limit.reason, limit.shared) == (reason, cores)
    assert limit.memory == pytest.approx(bandwidth / 1e8)  # one core moves 10^8 bytes in a second


def test_power_of_a_number(bench: Import) -> None:
    exponent = bench("model").exponent
    assert exponent({str(n): {"seconds": [3.0 * n]} for n in (10, 100, 1000)}) == pytest.approx(1)
    assert exponent({"1000": {"seconds": [7.0]}, "10": {"seconds": [7.0]}}) == pytest.approx(0)


def test_system_calls_between_marks_are_counted(bench: Import, tmp_path: Path) -> None:
    scaling = bench("scaling")
    mark = f'12 openat(AT_FDCWD, "{scaling.MARK}", O_RDONLY) = -1 ENOENT'
    log = [
        "1 read(3)",
        mark,
        "1 pread64(4) = 8",
        "2 futex(0x1) <unfinished ...>",
        "2 <... futex resumed>) = 0",
    ]
    log += ["1 pread64(4) = 8", mark, "1 close(3)", mark, "1 close(3)", mark]
    (tmp_path / "log").write_text("\n".join(log))
    names = [{"name": "a", "inner_chunks": 1}, {"name": "b", "inner_chunks": 4}]
    first, second = scaling.count_calls(tmp_path / "log", names, 1)
    assert first["system calls"] == 3 and first["kinds"] == {"futex": 1, "pread64": 2}
    assert second["system calls"] == 0.25


def test_results_of_another_machine_are_not_mixed(bench: Import) -> None:
    facts = {"cpu": "a", "cpus_used": 2, "memory_gib": 8, "kernel": "6"}
    old = {"machine": facts, "shrink": 1}
    is_same = bench("scaling").is_same
    assert is_same(old, {"machine": {**facts, "load": 3.0}, "shrink": 1})
    assert not is_same(old, {"machine": {**facts, "cpu": "b"}, "shrink": 1})
    assert not is_same(old, {"machine": facts, "shrink": 2})


def run_scaling(path: Path, *arguments: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    common = ["--json", str(path), "--folder", str(path.parent), "--shrink", "8", "--rounds", "1"]
    command = [sys.executable, "-W", "ignore", str(BENCH / "scaling.py"), *common, *arguments]
    subprocess.run(command, env=environment, check=True, timeout=250)
    return json.loads(path.read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
def test_model_is_fitted_to_measured_times(tmp_path: Path, bench: Import) -> None:
    found = run_scaling(tmp_path / "scaling.json", "--parts", "cores,hops,bandwidth", "--bandwidth-mib", "1")
    model = bench("model")
    for group in model.SERIAL:
        assert len(model.fits(found, group)) >= 2
        assert all(model.limits(found, name, group).reason for name in model.fits(found, group))


@pytest.mark.slow
def test_parts_are_added_to_a_result(tmp_path: Path) -> None:
    path = tmp_path / "scaling.json"
    run_scaling(path, "--parts", "size,objects", "--objects", "5", "--tasks", "open_array,chunk_state")
    found = run_scaling(path, "--parts", "objects", "--objects", "20", "--tasks", "chunk_state")
    rows = {row["name"]: row["peers"] for row in found["rows"] if row["group"] == "objects"}
    assert {name: set(peers) for name, peers in rows.items()} == {
        "open_array": {"5"},
        "chunk_state": {"5", "20"},
    }
    assert [row for row in found["rows"] if row["group"] == "size"], "a run keeps the rows of earlier ones"
    assert all(min(peer["seconds"]) > 0 for row in found["rows"] for peer in row["peers"].values())
    assert not [name for name in os.listdir(tmp_path) if name != path.name], "files are left"


@pytest.mark.slow
def test_system_calls_of_a_small_read_are_few(tmp_path: Path) -> None:
    strace = shutil.which("strace") or pytest.skip("strace is not installed")
    if subprocess.run([strace, "-o", os.devnull, "true"], check=False, capture_output=True).returncode:
        pytest.skip("strace has no permission to trace")
    found = run_scaling(tmp_path / "scaling.json", "--parts", "calls")
    (one,) = [entry for entry in found["calls"] if entry["name"] == "one inner chunk, raw"]
    assert 1 <= one["kinds"]["pread64"] <= 2, "its index, and its bytes"
    assert one["system calls"] < 10


@pytest.mark.slow
def test_library_that_counts_compiles(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("no C compiler is installed")
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(tmp_path / "counts.so")]
    subprocess.run([*command, str(BENCH / "counts.c"), "-ldl"], check=True)
    program = "import ctypes; n = (ctypes.c_uint64 * 8)(); ctypes.CDLL(None).counts_take(n); print(sum(n))"
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "counts.so")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n", "no engine, nothing to count"
