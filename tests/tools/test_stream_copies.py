# test_stream_copies.py - tools on an array whose growing stream was killed
# SPDX-License-Identifier: MIT
"""Frames that are stored beyond the shape, and that the record counts, belong to the array.

Copies left them out but carried the record, so a resume in the copy left a hole; `verify` called their objects foreign.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from templates import written_once

import shardcodec
from shardcodec import tools

N_FRAMES = 25


@written_once
def write_stream(folder: Path, **arguments: Any) -> None:
    """Write an array with a stream, and copy it in between, as a kill leaves it."""
    zarr.create_array(folder / "running", shape=(0, 8, 8), chunks=(1, 8, 8), dtype="uint16", **arguments)
    with shardcodec.stream(folder / "running", grow_every=10, max_frames=1, max_delay=0) as frames:
        for number in range(N_FRAMES):
            frames.append(np.full((8, 8), number + 1, "uint16"))
            while frames.stored <= number:
                pass
        shutil.copytree(folder / "running", folder / "killed")


def killed_stream(folder: Path, **arguments: Any) -> Path:
    """Return an array as it is after a kill, with a shape of 20 frames and a record that counts 25."""
    write_stream(folder, **arguments)
    assert zarr.open_array(folder / "killed").shape == (20, 8, 8)
    return folder / "killed"


@pytest.mark.parametrize("copy", [
    tools.convert,
    lambda source, to: tools.convert(source, to, chunks=(2, 4, 8), shards=(6, 8, 8)),
    lambda source, to: tools.compact(source, to=to),
    lambda source, to: tools.repair(source, to=to),
], ids=["convert", "convert to other shards", "compact", "repair"])  # fmt: skip
@pytest.mark.parametrize(
    "layout",
    [{"shards": (10, 8, 8)}, {"shards": (50, 8, 8)}, {}, {"zarr_format": 2}],
    ids=["many shards", "one shard", "plain", "v2"],
)
def test_stream_resumes_in_a_copy_without_a_hole(
    tmp_path: Path, layout: dict[str, Any], copy: Callable[[Path, Path], Any]
) -> None:
    source, to = killed_stream(tmp_path, **layout), tmp_path / "copy"
    copy(source, to)
    assert tools.verify(to).n_findings == 0
    with shardcodec.stream(to, grow_every=10, resume=True) as frames:
        assert frames.position == N_FRAMES
    array = zarr.open_array(to)
    assert array.shape[0] == N_FRAMES and array[:, 0, 0].tolist() == list(range(1, N_FRAMES + 1))


@pytest.mark.parametrize("in_shard", [10, 50])
def test_verify_checks_frames_beyond_the_shape(tmp_path: Path, in_shard: int) -> None:
    source = killed_stream(tmp_path, shards=(in_shard, 8, 8))
    assert tools.verify(source).n_findings == 0
    shard = source / f"c/{20 // in_shard}/0/0"
    data = bytearray(shard.read_bytes())
    data[-8] ^= 255  # in the index
    shard.write_bytes(data)
    assert tools.verify(source).n_findings == 1


@pytest.mark.parametrize("frames", [-1, "25", 10])
def test_record_that_counts_nothing_beyond_the_shape_changes_nothing(tmp_path: Path, frames: Any) -> None:
    source = killed_stream(tmp_path, shards=(10, 8, 8))
    record = source / "shardcodec-stream.json"
    record.write_text(record.read_text().replace('"frames": 25', f'"frames": {frames!r}'.replace("'", '"')))
    tools.convert(source, tmp_path / "copy")
    assert zarr.open_array(tmp_path / "copy").shape[0] == 20


def test_frames_of_a_stream_that_has_ended_are_those_of_the_shape(tmp_path: Path) -> None:
    """The record of a closed stream made an array longer again that its owner had cut: `convert` filled it up."""
    killed_stream(tmp_path, shards=(10, 8, 8))
    array = zarr.open_array(tmp_path / "running")
    assert array.shape[0] == N_FRAMES
    array.resize((7, 8, 8))
    tools.convert(tmp_path / "running", tmp_path / "copy")
    assert zarr.open_array(tmp_path / "copy").shape[0] == 7
    assert tools.verify(tmp_path / "running").n_findings == 0


@pytest.mark.parametrize("copy", [
    tools.convert,
    lambda source, to: tools.compact(source, to=to),
    lambda source, to: tools.repair(source, to=to),
], ids=["convert", "compact", "repair"])  # fmt: skip
def test_last_row_that_a_closed_stream_has_not_filled_is_copied(
    tmp_path: Path, copy: Callable[[Path, Path], Any]
) -> None:
    """A stream along two axes counts whole rows in the shape; the frames of the last one were left out, and a resume left a hole."""
    source, to = tmp_path / "source", tmp_path / "copy"
    zarr.create_array(source, shape=(0, 3, 8, 8), chunks=(1, 1, 8, 8), shards=(4, 3, 8, 8), dtype="uint16")
    with shardcodec.stream(source, (0, 1), grow_every=3) as frames:
        for number in range(N_FRAMES):
            frames.append(np.full((8, 8), number + 1, "uint16"))
    assert zarr.open_array(source).shape[0] == N_FRAMES // 3
    copy(source, to)
    with shardcodec.stream(to, (0, 1), grow_every=3, resume=True) as frames:
        assert frames.position == N_FRAMES
        for number in range(N_FRAMES, 27):
            frames.append(np.full((8, 8), number + 1, "uint16"))
    assert zarr.open_array(to)[..., 0, 0].ravel().tolist() == list(range(1, 28))


def test_verify_checks_the_last_row_of_a_closed_stream(tmp_path: Path) -> None:
    zarr.create_array(
        tmp_path / "a", shape=(0, 3, 8, 8), chunks=(1, 1, 8, 8), shards=(1, 3, 8, 8), dtype="uint16"
    )
    with shardcodec.stream(tmp_path / "a", (0, 1), grow_every=3) as frames:
        for _ in range(N_FRAMES):
            frames.append(np.ones((8, 8), "uint16"))
    shard = tmp_path / "a/c/8/0/0/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert tools.verify(tmp_path / "a").n_findings == 1
