# test_direct_methods.py - the switch `direct` replaces methods of zarr's class, and only as long as it is wanted
# SPDX-License-Identifier: MIT
"""The results are compared in test_attached.py; here is who is served, and when the methods are zarr's own."""

from __future__ import annotations

import contextlib
import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, python_calls, python_environment, quiet, switched

import shardcodec
from shardcodec.zarr_plugin import direct_methods
from shardcodec.zarr_plugin.direct_access import DirectAccess

KINDS = ("basic", "orthogonal", "coordinate", "mask")
NAMES = (
    "__getitem__",
    "__setitem__",
    *(f"{verb}_{kind}_selection" for verb in ("get", "set") for kind in KINDS),
)
ZARRS_OWN = {name: zarr.Array.__dict__[name] for name in NAMES}


def are_zarrs_own() -> bool:
    return all(zarr.Array.__dict__[name] is method for name, method in ZARRS_OWN.items())


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    shardcodec.disable()
    assert are_zarrs_own()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The selections that took zarr's way, by the method of its array."""
    calls: list[str] = []
    for name in ("_get_selection", "_set_selection"):
        own = getattr(zarr.AsyncArray, name)

        def count(*arguments: Any, _own: Any = own, _name: str = name, **others: Any) -> Any:
            calls.append(_name)
            return _own(*arguments, **others)

        monkeypatch.setattr(zarr.AsyncArray, name, count)
    return calls


def use(array: Any) -> None:
    array[0, :4] = 7
    array.set_basic_selection((1, slice(0, 4)), 8)
    assert array[0, :4].tolist() == [7] * 4 and array.get_basic_selection((1, 2)) == 8


def test_methods_are_replaced_while_enable_demands_it(tmp_path: Path, counted: list[str]) -> None:
    create(tmp_path)
    with shardcodec.enable():
        use(zarr.open_array(tmp_path))
        assert not counted and not are_zarrs_own()
    assert are_zarrs_own()
    with switched(direct=False), shardcodec.enable():
        use(zarr.open_array(tmp_path))
        assert len(counted) == 4 and are_zarrs_own()


def test_methods_are_replaced_for_the_first_array(tmp_path: Path) -> None:
    """Before, `enable` loaded the module that replaces them, in programs that open no array, too."""
    create(tmp_path)
    code = f"""
import sys, zarr, shardcodec
shardcodec.enable()
own, name = zarr.Array.__getitem__, "shardcodec.zarr_plugin.direct_methods"
assert name not in sys.modules
zarr.open_array({str(tmp_path)!r})
assert zarr.Array.__getitem__ is not own
shardcodec.disable()
assert zarr.Array.__getitem__ is own
"""
    subprocess.run([sys.executable, "-c", code], env=python_environment(), check=True)


def test_declined_and_failed_selections_are_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zarr's brackets call a method that is replaced, too, so the same was tried twice."""
    create(tmp_path)
    asked = []
    for name in ("read", "write"):
        own = getattr(DirectAccess, name)

        def count(access: Any, selection: Any, *others: Any, _own: Any = own) -> Any:
            found = _own(access, selection, *others)
            asked.append(found is None or found is False)
            return found

        monkeypatch.setattr(DirectAccess, name, count)
    with shardcodec.enable():
        array = zarr.open_array(tmp_path)
        with pytest.raises(Exception, match="out of bounds"):
            array[..., 99]
        with pytest.raises(Exception, match="out of bounds"):
            array[..., 99] = 1
        assert asked == [True, True]


def test_configuration_of_zarr_demands_it_too(tmp_path: Path, counted: list[str]) -> None:
    create(tmp_path)
    with zarr.config.set({"codec_pipeline.path": "shardcodec.ShardCodecPipeline"}):
        array = zarr.open_array(tmp_path)
        use(array)
        assert not counted
    with shardcodec.options(direct=False):
        use(array)
    assert len(counted) == 4


def test_children_inherit_it(tmp_path: Path) -> None:
    create(tmp_path)
    code = f"import zarr; zarr.open_array({str(tmp_path)!r})[0]; import shardcodec; print(shardcodec.open_arrays().direct)"
    with shardcodec.enable():
        done = subprocess.run(
            [sys.executable, "-c", code], env=python_environment(), capture_output=True, text=True, check=True
        )
    assert done.stdout == "on\n"


@pytest.mark.parametrize("of_subclass", [False, True])
def test_other_arrays_pay_five_calls_of_python(tmp_path: Path, of_subclass: bool) -> None:
    """Two methods of zarr, of which one calls the other, look at the pipeline; zarr's own work for a small read is some 150 calls."""

    class Mine(zarr.Array):  # type: ignore[type-arg]
        pass

    create(tmp_path)
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        array = zarr.open_array(tmp_path)
    array = Mine(array.async_array) if of_subclass else array

    def write() -> None:
        array[0, :4] = 1

    with quiet(), shardcodec.enable():
        for work in (lambda: array[0, :4], write):
            called = [name for name in python_calls(work) if name.startswith("shardcodec.")]
            assert 0 < len(called) <= 5
            assert all(name.startswith("shardcodec.zarr_plugin.direct_methods.") for name in called)


def test_other_arrays_are_not_touched(tmp_path: Path, counted: list[str]) -> None:
    class Mine(zarr.Array):  # type: ignore[type-arg]
        pass

    zarrs = create(tmp_path / "zarrs", own=True)
    create(tmp_path / "ours")
    with pytest.warns(RuntimeWarning, match="opened before"):
        call = shardcodec.enable()
    with call:
        use(zarrs)
        assert len(counted) == 4
        use(Mine(zarr.open_array(tmp_path / "ours").async_array))
        assert len(counted) == 8


def test_methods_that_are_not_known_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def getitem(self: Any, selection: Any, more: Any = None) -> Any:
        return ZARRS_OWN["__getitem__"](self, selection)

    create(tmp_path)
    monkeypatch.setattr(zarr.Array, "__getitem__", getitem)
    with shardcodec.enable():
        array = zarr.open_array(tmp_path)
        assert zarr.Array.__dict__["__getitem__"] is getitem
        assert array[0, 0] == -1
        told = repr(shardcodec.open_arrays())
        assert "direct: off: zarr.Array.__getitem__ has the parameters ('self', 'selection', 'more')" in told
    monkeypatch.undo()


def test_method_that_another_program_has_replaced_meanwhile_stays_its_own(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path)
    with shardcodec.enable():
        array = zarr.open_array(tmp_path)
        ours = zarr.Array.__getitem__

        def theirs(self: Any, selection: Any) -> Any:
            return ours(self, selection)

        zarr.Array.__getitem__ = theirs  # type: ignore[method-assign]
        assert array[0, 0] == -1 and not counted
    assert zarr.Array.__getitem__ is theirs
    assert array[0, 0] == -1 and counted  # ours, which theirs calls, takes zarr's way
    zarr.Array.__getitem__ = ZARRS_OWN["__getitem__"]  # type: ignore[method-assign]


def test_open_arrays_says_whether_it_is_on(tmp_path: Path) -> None:
    create(tmp_path)
    assert shardcodec.open_arrays().direct == "off: no array was opened with it"
    with switched(direct=False), shardcodec.enable():
        assert shardcodec.open_arrays().direct == "off: SHARDCODEC_DIRECT forbids it"
    with shardcodec.enable():
        array = zarr.open_array(tmp_path)
        assert shardcodec.open_arrays().direct == "on"
    assert array[0, 0] == -1


def test_documentation_and_signature_are_zarrs() -> None:
    with shardcodec.enable():
        direct_methods.replace()
        for name, method in ZARRS_OWN.items():
            ours = zarr.Array.__dict__[name]
            assert ours is not method and ours.__doc__ == method.__doc__ and ours.__wrapped__ is method
    assert direct_methods.unknown() == ""


def test_all_that_xarray_and_dask_ask_is_served(tmp_path: Path, counted: list[str]) -> None:
    """Counted with xarray 2025 and 2026: all its indexers, and all selections of dask, are of kinds that need no way of zarr."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    pytest.importorskip("dask", reason="dask is not installed")
    values = np.arange(8 * 6 * 5, dtype="f4").reshape(8, 6, 5)
    data = xarray.Dataset({"t": (("z", "y", "x"), values)}, coords={"z": np.arange(8)})
    form = {"t": {"chunks": (2, 3, 5), "shards": (4, 6, 5)}}
    point = xarray.DataArray([1, 5], dims="p")
    with shardcodec.enable():
        data.to_zarr(tmp_path, consolidated=False, encoding=form)
        for chunks in (None, {}):
            found = xarray.open_dataset(tmp_path, engine="zarr", chunks=chunks, consolidated=False).t
            for selection in (
                {"z": 3},
                {"z": slice(1, 7, 2), "x": slice(None, None, -1)},
                {"z": [6, 1]},
                {"z": [6, 1], "y": [0, 4], "x": 2},
                {"z": point, "y": point},
            ):
                assert found.isel(selection).equals(data.t.isel(selection))
            assert found.sel(z=4).equals(data.t.sel(z=4))
        data.chunk(z=4, y=6, x=5).drop_encoding().to_zarr(tmp_path, mode="w", consolidated=False)
        data.to_zarr(tmp_path, append_dim="z", consolidated=False)
    assert not counted


def test_method_that_another_program_replaced_before_us_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`functools.wraps` gave it the signature of zarr's method, so it was taken for that, and not called any more."""
    create(tmp_path)
    own, calls = zarr.Array.get_orthogonal_selection, []

    @functools.wraps(own)
    def theirs(self: Any, *given: Any, **others: Any) -> Any:
        calls.append(given)
        return own(self, *given, **others)

    monkeypatch.setattr(zarr.Array, "get_orthogonal_selection", theirs)
    with shardcodec.enable():
        array = zarr.open_array(tmp_path)
        assert array.oindex[[0, 1], 0].tolist() == [-1, -1] and len(calls) == 1
        assert f"is a function of {__file__}" in shardcodec.open_arrays().direct
    monkeypatch.undo()


def test_attached_array_calls_methods_of_zarr_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = shardcodec.attach(create(tmp_path))
    own = zarr.Array.__getitem__
    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "__getitem__", lambda self, selection: "theirs")
        assert array[0.5,] == "theirs"
    assert zarr.Array.__getitem__ is own
    with pytest.raises(IndexError):
        array[0.5,]


def test_arrays_that_come_by_pickle_are_served(tmp_path: Path) -> None:
    """Only an array that was opened replaced the methods, so it was off in workers of dask and of pools."""
    create(tmp_path)
    code = """
import pickle, sys, zarr
array = pickle.load(sys.stdin.buffer)
import shardcodec
print(shardcodec.open_arrays().direct, array[0, 0])
"""
    with shardcodec.enable():
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=python_environment(),
            input=pickle.dumps(zarr.open_array(tmp_path)),
            capture_output=True,
            check=True,
        )
    assert done.stdout == b"on -1\n"


@pytest.mark.parametrize("fields", [0, np.array(["a", "b"]), ()])
def test_arguments_that_zarr_refuses_are_left_to_zarr(
    tmp_path: Path, counted: list[str], fields: Any
) -> None:
    create(tmp_path)
    with shardcodec.enable(), contextlib.suppress(IndexError):
        zarr.open_array(tmp_path).get_orthogonal_selection(([1, 2], 0), fields=fields)
    assert len(counted) == 1


@pytest.mark.parametrize(
    "index", [np.array([1], "u8"), np.array([15, 1], "u2"), np.array([-1]), np.array([-1], "i1")]
)
def test_positions_that_zarr_refuses_or_changes_are_left_to_zarr(
    tmp_path: Path, index: np.ndarray[Any, Any]
) -> None:
    create(tmp_path)
    outcomes: list[Any] = []
    for is_direct in (False, True):
        positions = index.copy()
        with switched(direct=is_direct), shardcodec.enable():
            try:
                outcomes.append(zarr.open_array(tmp_path).oindex[positions, 0].tolist())
            except (IndexError, TypeError, ValueError) as error:
                outcomes.append(repr(error))
        outcomes.append(positions.tolist())
    assert outcomes[:2] == outcomes[2:]


@pytest.mark.parametrize(
    ("n_rows", "selection"),
    [
        (9, (slice(None, None, "a"), np.array([False, True, False]), ...)),
        (0, (np.array([], bool), slice(None, None, 0))),
    ],
)
def test_bad_slice_beside_a_mask_is_left_to_zarr(tmp_path: Path, n_rows: int, selection: Any) -> None:
    """The parser of basic selections raised its own error, and so did that of orthogonal ones."""
    create(tmp_path, shape=(n_rows, 3, 5), chunks=(4, 3, 5), shards=(8, 3, 5))
    errors = []
    for is_direct in (False, True):
        with switched(direct=is_direct), shardcodec.enable():
            array = zarr.open_array(tmp_path)
            with pytest.raises((IndexError, TypeError, ValueError)) as caught:
                array.oindex[selection] = 1
            errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_threads_that_open_the_first_arrays_replace_the_methods_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The later thread took the methods of the earlier one for zarr's, and they stayed after `disable`."""
    own = dict(zarr.Array.__dict__)
    unknown = direct_methods.unknown
    both = threading.Barrier(2, timeout=0.2)

    def unknown_in_both() -> str:
        with contextlib.suppress(threading.BrokenBarrierError):  # one of them at a time
            both.wait()
        return unknown()

    monkeypatch.setattr(direct_methods, "unknown", unknown_in_both)
    threads = [threading.Thread(target=direct_methods.replace) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert zarr.Array.__dict__["__getitem__"] is not own["__getitem__"]
    direct_methods.restore()
    assert dict(zarr.Array.__dict__) == own


def test_bad_slice_in_a_small_read_is_left_to_zarr(tmp_path: Path) -> None:
    """The quick way for small reads raised its own error, where zarr looks at the array first."""
    create(tmp_path)
    errors = []
    for is_direct in (False, True):
        with switched(direct=is_direct), shardcodec.enable():
            array = zarr.open_array(tmp_path)
            with pytest.raises((TypeError, ValueError)) as caught:
                array[slice(None, 3, 1.5), ..., np.array([8.0, 9.0, 11.0])]
            errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_steps_keep_what_a_smaller_array_left_in_its_chunk(tmp_path: Path) -> None:
    """An edge chunk had one element within the array, and a step chose it. zarr updates such a chunk; it was written anew."""
    rows = {}
    for is_direct in (False, True):
        with switched(direct=is_direct), shardcodec.enable():
            array = zarr.create_array(
                tmp_path / str(is_direct), shape=(2, 8), chunks=(2, 3), dtype="i4", fill_value=0
            )
            array[:] = 7
            array.resize((1, 8))
            array[::2] = 0
            array.resize((2, 8))
            rows[is_direct] = array[:].tolist()
    assert rows[True] == rows[False] == [[0] * 8, [7] * 8]


@pytest.mark.filterwarnings("error::zarr.errors.UnstableSpecificationWarning")
def test_access_does_not_warn(tmp_path: Path) -> None:
    """Some data types warn when their metadata become a document; zarr's way does so at the opening alone."""
    with quiet():
        zarr.create_array(tmp_path, shape=(4,), chunks=(2,), dtype="S3")
    with shardcodec.enable():
        with quiet():
            array = zarr.open_array(tmp_path)
        array[0:2] = b"a"
        assert array[1] == b"a"
