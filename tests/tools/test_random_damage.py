# test_random_damage.py - verify and repair after random damage of random arrays
# SPDX-License-Identifier: MIT
"""`verify` finds each damage that a checksum shows, `repair` writes no wrong or undecodable shard, and its counts are true."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from random_damage import Scene, check_scene


def check_scenes(folder: Path, seed: str, n: int) -> None:
    failed = []
    for i in range(n):
        scene = Scene(f"{seed}-{i}")
        try:
            check_scene(folder / "scene", scene)
        except Exception as error:  # all are reported, to see the kinds
            failed.append(
                f"{type(error).__name__}: {error}"
                if isinstance(error, AssertionError)
                else f"{scene}: {error!r}"
            )
        shutil.rmtree(folder / "scene")
    assert not failed, f"{len(failed)} of {n}:\n" + "\n".join(failed[:40])


def test_random_damage_of_random_arrays(tmp_path: Path) -> None:
    check_scenes(tmp_path, "fixed", 60)


def test_lost_chunk_is_not_taken_for_an_old_one_at_the_other_place(tmp_path: Path) -> None:
    """A cut removed a whole inner chunk. A cut at the head explained all others, and one among dead bytes in the place of the lost one."""
    for name in ("2026-18-115", "2026-14-236"):
        check_scene(tmp_path / name, Scene(name))


def test_footer_of_the_size_of_inner_chunks_is_no_shift(tmp_path: Path) -> None:
    """One inner chunk had wrong bits. The whole one behind it was called lost: the marked footer was taken for inserted bytes."""
    check_scene(tmp_path, Scene("2026-2-57"))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_thousands_of_random_damages(tmp_path: Path, part: int) -> None:
    """Repeat the examples of a run with its SEED. In one test they took longer than a test may on a busy machine."""
    check_scenes(tmp_path, f"{os.environ.get('SEED', '0')}-{part}", 250)
