# test_open_arrays.py - `open_arrays` shows which code does the work of each array
# SPDX-License-Identifier: MIT
from __future__ import annotations

import gc
import json
import textwrap
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import pytest
import zarr
from helpers import run_checked

import shardcodec
from shardcodec.tools.doctor.process_facts import check_process
from shardcodec.tools.doctor.report import Status
from shardcodec.zarr_plugin.open_arrays import OpenArray


def described(path: Path) -> list[OpenArray]:
    return [array for array in shardcodec.open_arrays() if str(path) in array.name]


def test_array_opened_before_enable_stays_with_zarr_and_is_shown(tmp_path: Path) -> None:
    old = zarr.create_array(tmp_path / "old", shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="uint8")
    with shardcodec.enable():
        new = zarr.create_array(tmp_path / "new", shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="uint8")
    found = {Path(array.name).name: array for array in described(tmp_path)}
    assert found["old"].reason == "opened without shardcodec's pipeline" and not found["old"].is_native
    assert (
        found["new"].pipeline == "ShardCodecPipeline" and found["new"].is_native and not found["new"].reason
    )
    attached = shardcodec.attach(old)
    assert sorted(array.is_native for array in described(tmp_path / "old")) == [False, True]
    del old, new, attached


def test_array_left_to_zarr_says_why(tmp_path: Path) -> None:
    with shardcodec.enable():
        array = zarr.create_array(
            tmp_path / "numbers",
            shape=(4,),
            chunks=(2,),
            dtype="i4",
            compressors=numcodecs.BZ2(),
            zarr_format=2,
        )
    (found,) = described(tmp_path)
    assert found.pipeline == "ShardCodecPipeline" and not found.is_native
    assert found.reason
    array[:] = 1
    assert found.reason in shardcodec.stats()["fallbacks"]


def test_repr_is_a_table_with_a_line_for_each_array(tmp_path: Path) -> None:
    kept = [zarr.create_array(tmp_path / name, shape=(4,), chunks=(2,), dtype="uint8") for name in "ab"]
    found = shardcodec.open_arrays()
    lines = repr(found).splitlines()
    assert len(lines) == len(found)
    assert sum(str(tmp_path) in line and line.startswith("zarr") for line in lines) == len(kept)


def test_array_that_is_gone_is_not_shown(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="uint8")
    assert len(described(tmp_path)) == 1
    del array
    gc.collect()  # a free-threaded Python frees an object that several threads have used only then
    assert described(tmp_path) == []


def test_array_that_is_not_complete_is_not_shown(tmp_path: Path) -> None:
    """Another thread may be opening an array, or its constructor has failed; `stats` once raised AttributeError then."""
    array = zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="uint8")
    incomplete = object.__new__(zarr.AsyncArray)
    assert len(described(tmp_path)) == 1
    del array, incomplete


def test_stats_and_its_repr_list_the_arrays(tmp_path: Path) -> None:
    old = zarr.create_array(tmp_path / "old", shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="uint8")
    with shardcodec.enable():
        new = zarr.open_array(tmp_path / "old")
    listed = [array for array in shardcodec.stats()["arrays"] if str(tmp_path) in array.name]
    assert listed == described(tmp_path) and sorted(array.is_native for array in listed) == [False, True]
    lines = [line for line in repr(shardcodec.stats).splitlines() if str(tmp_path) in line]
    assert sorted(line.split()[0] for line in lines) == ["native", "zarr"]
    del old, new


def test_weak_proxy_of_a_dead_object_does_no_harm(tmp_path: Path) -> None:
    class Gone:
        pass

    proxy = weakref.proxy(gone := Gone())
    del gone
    array = zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="uint8")
    assert len(described(tmp_path)) == 1
    del array, proxy


PIPELINE, VARIABLE = "shardcodec.ShardCodecPipeline", "ZARR_CODEC_PIPELINE__PATH"
OTHER = "zarr.core.codec_pipeline.BatchedCodecPipeline"


def replace_pipeline() -> None:
    """Set another pipeline for good, as the constructor of a package does."""
    zarr.config.set({"codec_pipeline.path": OTHER})


def test_setting_that_replaces_an_active_enable_is_named_and_reported_once(tmp_path: Path) -> None:
    """iohub sets the pipeline when it is made; its arrays were then served by another one, without a word."""
    with shardcodec.enable():
        replace_pipeline()
        array = zarr.create_array(tmp_path / "a", shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="uint8")
        with pytest.warns(
            RuntimeWarning, match=f"codec_pipeline.path={OTHER} .*a call in this process"
        ) as said:
            arrays = shardcodec.open_arrays()
        (found,) = (one for one in arrays if str(tmp_path) in one.name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once
            assert found in shardcodec.stats()["arrays"]
        assert len(said) == 1 and said[0].filename == __file__
        assert found.pipeline == "BatchedCodecPipeline" and not found.is_native
        assert f"codec_pipeline.path={OTHER} by a call in this process" in found.reason
        with shardcodec.enable():  # it wins again
            again = zarr.open_array(tmp_path / "a")
            assert sorted(one.is_native for one in described(tmp_path)) == [False, True]
            assert "before enable(), or while" in next(
                one.reason for one in described(tmp_path) if one.reason
            )
            (check,) = (one for one in check_process() if one.name == "pipeline")
            assert check.status is Status.NOTE and f"{tmp_path}/a" in check.text
    del array, again


@pytest.mark.parametrize(
    "end",
    [
        lambda call: call.__exit__(None, None, None),
        lambda _: shardcodec.disable(),
        lambda _: shardcodec.enable(),
    ],
)
def test_replaced_pipeline_is_reported_where_a_call_begins_or_ends(end: Callable[[Any], object]) -> None:
    call = shardcodec.enable()
    replace_pipeline()
    with pytest.warns(RuntimeWarning, match="has replaced the pipeline of shardcodec.enable") as said:
        end(call)
    (found,) = (
        one for one in said if "has replaced the pipeline" in str(one.message)
    )  # others warn of this process
    assert found.filename == __file__
    shardcodec.disable()
    assert zarr.config.get("codec_pipeline.path") != "shardcodec.ShardCodecPipeline"


def test_change_that_ends_before_the_block_is_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*has replaced the pipeline")
        with shardcodec.enable(), zarr.config.set({"codec_pipeline.path": OTHER}):
            pass
        shardcodec.open_arrays()


REPLACED = """
    import json, sys, warnings
    import zarr, shardcodec
    from shardcodec.tools.doctor.doctor import check_process

    def doctor():
        (check,) = (one for one in check_process() if one.name == "pipeline")
        return check.status, check.text, check.details.get("others", []), check.advice

    make = {"shape": (8, 8), "shards": (4, 4), "chunks": (2, 2), "dtype": "uint8", "overwrite": True}
    native = zarr.create_array(FOLDER + "/native", **make)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with zarr.config.set({"codec_pipeline.path": OTHER}):
            array = zarr.create_array(FOLDER + "/a", **make)
            during = doctor()
            (reason,) = (one.reason for one in shardcodec.open_arrays() if not one.is_native)
            shardcodec.stats()
    print(json.dumps({"during": during, "after": doctor(), "reason": reason, "said": [str(one.message) for one in said]}))
"""


@pytest.mark.parametrize("way", [VARIABLE, "ZARR_SHARDCODEC__ENABLED", "path", "enabled"])
def test_arrays_with_another_pipeline_are_named_where_no_call_has_selected_it(
    way: str, tmp_path: Path
) -> None:
    """Without a call of `enable`, as after `shardcodec enable --for env`, the other pipeline was not named, and no warning came."""
    folder = tmp_path / "config"
    folder.mkdir()
    if not way.startswith("ZARR_"):
        text = f"codec_pipeline: {{path: {PIPELINE}}}" if way == "path" else "shardcodec: {enabled: true}"
        (folder / "shardcodec.yaml").write_text(text)
        variables, selector = {"ZARR_CONFIG": str(folder)}, f"file {folder}/shardcodec.yaml"
    else:
        variables = {way: PIPELINE if way == VARIABLE else "1"}
        selector = f"environment variable {way}"
    code = f"FOLDER, OTHER = {str(tmp_path)!r}, {OTHER!r}\n" + textwrap.dedent(REPLACED)
    told = json.loads(run_checked(code, **variables).stdout)
    status, text, others, advice = told["during"]
    assert status == "note" and f"which has replaced shardcodec's ({selector})" in text
    assert [name.rpartition("/")[2] for name in others] == ["a"] and others[0] in text
    assert advice.startswith("Call shardcodec.enable(). Open these arrays again")
    assert (
        f"codec_pipeline.path={OTHER} by a call in this process has replaced that of {selector}"
        in told["reason"]
    )
    (said,) = told["said"]  # once
    assert f"has replaced the pipeline of {selector}: arrays" in said
    status, text, others, advice = told["after"]
    assert status == "note" and f"zarr uses {PIPELINE} ({selector})" in text
    assert [name.rpartition("/")[2] for name in others] == ["a"] and advice.startswith("Open these")
