# test_switch.py - enable, disable, attach: their settings, and the return to the old ones
# SPDX-License-Identifier: MIT
"""enable and disable leave zarr's configuration as it was before."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, ours, run_python, zarrs_view

import shardcodec
from shardcodec.errors import UnsupportedError

PATH = "shardcodec.ShardCodecPipeline"


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Check that the configuration is the same after each test."""
    before = zarr.config.get("codec_pipeline.path"), zarr.config.get("shardcodec", None)
    yield
    shardcodec.disable()
    after = zarr.config.get("codec_pipeline.path"), zarr.config.get("shardcodec", None)
    zarr.config.reset()
    assert after == before


def pipeline_of(array: Any) -> Any:
    return array.async_array.codec_pipeline


def is_on() -> bool:
    array = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="u1")
    return isinstance(pipeline_of(array), shardcodec.ShardCodecPipeline)


def test_enable_and_disable() -> None:
    assert not is_on()
    shardcodec.enable()
    assert is_on()
    shardcodec.disable()
    assert not is_on()


def test_disable_without_enable_does_nothing() -> None:
    with zarr.config.set({"codec_pipeline.path": PATH}):
        shardcodec.disable()
        assert is_on()


def test_disable_undoes_every_enable() -> None:
    shardcodec.enable(threads=1)
    shardcodec.enable(threads=2, strict=True)
    shardcodec.enable()
    assert zarr.config.get("shardcodec.threads") == 2
    shardcodec.disable()
    assert not is_on()
    assert zarr.config.get("shardcodec", None) is None
    shardcodec.disable()


def test_disable_restores_the_users_configuration() -> None:
    with zarr.config.set({"codec_pipeline.path": PATH, "shardcodec.threads": 7}):
        with shardcodec.enable(threads=2):
            assert zarr.config.get("shardcodec.threads") == 2
        assert zarr.config.get("shardcodec.threads") == 7
        assert is_on()


def test_enable_for_a_block() -> None:
    with shardcodec.enable(strict=True):
        assert is_on()
        with shardcodec.enable(strict=False):
            assert zarr.config.get("shardcodec.strict") is False
        assert zarr.config.get("shardcodec.strict") is True
    assert not is_on()


def test_exception_ends_a_block() -> None:
    with pytest.raises(ZeroDivisionError), shardcodec.enable():
        _ = 1 // 0
    assert not is_on()


def test_disable_inside_a_block() -> None:
    with shardcodec.enable():
        shardcodec.disable()
        assert not is_on()
    assert not is_on()


def test_blocks_may_end_in_another_order() -> None:
    first = shardcodec.enable(threads=1)
    second = shardcodec.enable(threads=2)
    first.__exit__(None, None, None)
    assert is_on()
    assert zarr.config.get("shardcodec.threads") == 2
    second.__exit__(None, None, None)
    assert not is_on()
    assert zarr.config.get("shardcodec", None) is None


def test_disable_after_the_end_of_the_first_block() -> None:
    first = shardcodec.enable()
    shardcodec.enable()
    first.__exit__(None, None, None)
    shardcodec.disable()
    assert not is_on()


def test_invalid_option_does_not_enable() -> None:
    with pytest.raises(ValueError, match="threads"):
        shardcodec.enable(threads=0)
    with pytest.raises(TypeError, match="colour"):
        shardcodec.enable(colour="red")
    assert not is_on()


def test_options_apply_to_open_arrays() -> None:
    shardcodec.enable()
    array = zarr.create_array({}, shape=(2, 4), shards=(2, 4), chunks=(2, 2), dtype="u1")
    row = np.arange(4, dtype="u1")[None]  # broadcast values fall back to zarr
    shardcodec.enable(strict=True)
    with pytest.raises(shardcodec.UnsupportedError):
        array[0:2] = row
    with shardcodec.options(strict=False):
        array[0:2] = row
    assert array[...].tolist() == [[0, 1, 2, 3]] * 2


def test_zarrs_variable_selects_the_pipeline() -> None:
    code = """
        import zarr
        array = zarr.create_array({}, shape=(4,), shards=(4,), chunks=(2,), dtype="u1")
        print(type(array.async_array.codec_pipeline).__name__)
    """
    done = run_python(code, ZARR_CODEC_PIPELINE__PATH=PATH)
    # zarr finds a class that is not imported only through the entry point of an installed package
    if "BadConfigError" in done.stderr or "KeyError" in done.stderr:
        pytest.skip("shardcodec is not installed, only importable")
    assert done.stdout == "ShardCodecPipeline\n", done.stderr


# ---- attach


def test_attach_is_independent_of_enable() -> None:
    array = create({}, own=True)
    attached = shardcodec.attach(array, threads=1)
    assert isinstance(pipeline_of(attached), shardcodec.ShardCodecPipeline)
    assert not isinstance(pipeline_of(array), shardcodec.ShardCodecPipeline)
    attached[:4] = 3
    assert (array[:4] == 3).all()
    assert attached.metadata == array.metadata


def test_attach_accepts_an_asynchronous_array() -> None:
    array = create({}, own=True)
    attached = shardcodec.attach(array.async_array)
    assert type(attached) is type(array.async_array)
    assert isinstance(attached.codec_pipeline, shardcodec.ShardCodecPipeline)


def test_attached_options_are_pickled() -> None:
    array = shardcodec.attach(create({}), threads=1, durability="fsync", strict=True)
    copy = pickle.loads(pickle.dumps(pipeline_of(array)))
    assert copy == pipeline_of(array)
    assert (copy._options().threads, copy._options().durability, copy._options().strict) == (1, "fsync", True)


def test_attached_options_rank_between_block_and_configuration() -> None:
    array = shardcodec.attach(create({}, own=True), order="colexicographic")
    with shardcodec.enable(order="lexicographic"):
        assert pipeline_of(array)._options().order == "colexicographic"
        with shardcodec.options(order="morton"):
            assert pipeline_of(array)._options().order == "morton"


def test_attach_again_keeps_earlier_options() -> None:
    array = shardcodec.attach(create({}, own=True), order="colexicographic", threads=1)
    again = shardcodec.attach(array, threads=2, strict=True)
    chosen = pipeline_of(again)._options()
    assert (chosen.order, chosen.strict) == ("colexicographic", True)


@pytest.mark.parametrize("choices", [{"threads": 0}, {"order": "z"}])
def test_attach_refuses_invalid_values(choices: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(choices))):
        shardcodec.attach(create({}, own=True), **choices)


@pytest.mark.parametrize("value", [None, np.zeros(3), "array"], ids=["None", "numpy", "str"])
def test_attach_refuses_other_objects(value: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a zarr\.Array or zarr\.AsyncArray"):
        shardcodec.attach(value)


def test_attach_refuses_unknown_options() -> None:
    with pytest.raises(TypeError, match="colour"):
        shardcodec.attach(create({}, own=True), colour="red")


def test_metadata_are_equal_in_every_pipeline() -> None:
    """Runtime options never reach the metadata."""
    store: dict[str, Any] = {}
    array = shardcodec.attach(create(store), threads=1, order="colexicographic", durability="fsync")
    array[...] = 5
    text = bytes(store["zarr.json"].to_bytes()).decode()
    assert "colexicographic" not in text and "fsync" not in text and "shardcodec" not in text
    assert (zarrs_view(array)[...] == 5).all()


@pytest.mark.parametrize("name", ["ShardingCodec._decode_partial_single", "_ShardIndex.get_chunk_slice"])
def test_patched_function_of_zarr_falls_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The check runs when an array is opened: a program that replaces a function of zarr expects it to be called."""
    array = create({})
    monkeypatch.setattr(f"zarr.codecs.sharding.{name}", lambda *_: None)
    with pytest.raises(UnsupportedError, match=f"{name} has been replaced"):
        ours(array.store)[0, 0] = 1
    monkeypatch.undo()
    ours(array.store)[0, 0] = 1
    assert array[0, 0] == 1


def test_enable_shows_its_options_and_state() -> None:
    """The last expression of a notebook's cell is shown."""
    call = shardcodec.enable(threads=2, order="lexicographic")
    assert repr(call) == "<shardcodec.enable(threads=2, order='lexicographic'), active>"
    shardcodec.disable()
    assert repr(call) == "<shardcodec.enable(threads=2, order='lexicographic'), undone>"
