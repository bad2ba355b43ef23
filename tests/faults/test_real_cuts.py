# test_real_cuts.py - what a power cut leaves on ext4, XFS and btrfs is what their models permit
# SPDX-License-Identifier: MIT
"""The models of crash_model.py are rules that were read out of documents and code. Here real file systems are asked."""

from __future__ import annotations

import os
import random
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from faults.crash_membership import permits
from faults.crash_model import MODELS, State, choices
from faults.loop_devices import formatted, mounted
from faults.real_cuts import Calls, after_the_cut, copy_of_device, shut_down

SYSTEMS = ("ext4", "xfs", "btrfs")
N_FOLDERS = 12  # of one cut; each has a record of its own
N_CUTS, N_CUTS_AT_NIGHT = 3, 200


class Cut:
    """The records of one cut, and the files that it has left."""

    def __init__(self, image: Path, folder: Path, seed: str) -> None:
        chance = random.Random(seed)
        self.calls: list[Calls] = []
        folders = [folder / str(number) for number in range(N_FOLDERS)]
        with mounted(image, folder), open(folder / "outside", "wb") as outside:
            for one in folders:
                shutil.rmtree(one, ignore_errors=True)
                Calls.prepare(one, chance)
            os.sync()
            try:
                for one in folders:
                    self.calls.append(Calls(one, chance, outside.fileno()))
                for calls in chance.sample(self.calls, len(self.calls)):
                    calls.make(chance.randint(1, 9))
                device = self._cut(image, folder)
            finally:
                for calls in self.calls:
                    calls.close()
        with mounted(device, folder):
            self.states = [after_the_cut(one) for one in folders]

    @staticmethod
    def _cut(image: Path, folder: Path) -> Path:
        """Return the device that is mounted after the cut."""
        try:
            shut_down(folder)
        except OSError:  # btrfs
            return copy_of_device(image)
        return image

    def contradictions(self, model: str) -> list[str]:
        """Return the records after which the model does not permit the files that are there."""
        return [
            f"{calls.told}: {[(path, number, len(state.contents[number])) for path, number in state.paths.items()]}"
            for calls, state in zip(self.calls, self.states, strict=True)
            if not permits(calls.record, len(calls.record.events), model, state)
        ]


def runs() -> list[Any]:
    """Of btrfs a few cuts with a fixed seed: its model lacks some chains of renames (docs/testing.md, "Limitations")."""
    few = [pytest.param(system, N_CUTS, "1", id=f"{system}-few") for system in SYSTEMS]
    seed = os.environ.get("SEED", "2")
    many = [
        pytest.param(system, N_CUTS_AT_NIGHT, seed, marks=pytest.mark.nightly, id=f"{system}-many")
        for system in ("ext4", "xfs")
    ]
    return [*few, *many]


@pytest.mark.slow
@pytest.mark.parametrize(("system", "n_cuts", "seed"), runs())
def test_power_cut_leaves_what_the_model_permits(tmp_path: Path, system: str, n_cuts: int, seed: str) -> None:
    """The first models were contradicted: by a truncation after a direct write (all), and by names that btrfs logs before others."""
    image, folder = formatted(tmp_path, system)
    for number in range(n_cuts):
        cut = Cut(image, folder, f"{seed}/{number}")
        assert not cut.contradictions(system), f"seed {seed}, cut {number}"
        assert system == "btrfs" or not cut.contradictions("pessimistic"), f"seed {seed}, cut {number}"


@pytest.mark.slow
@pytest.mark.parametrize(("system", "model"), [("ext4", "kill"), ("xfs", "kill"), ("btrfs", "ext4")])
def test_model_that_is_too_strict_is_contradicted(tmp_path: Path, system: str, model: str) -> None:
    """A cut loses what was not synced, and btrfs writes a synced name before earlier ones."""
    image, folder = formatted(tmp_path, system)
    assert any(Cut(image, folder, f"3/{number}").contradictions(model) for number in range(20))


@pytest.mark.parametrize("model", MODELS)
def test_each_state_of_a_model_is_permitted_and_another_is_not(tmp_path: Path, model: str) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        Calls.prepare(folder, chance)
        with open(tmp_path / "outside", "wb") as outside:
            calls = Calls(folder, chance, outside.fileno())
            calls.make(7)
            calls.close()
        n_events = len(calls.record.events)
        assert permits(calls.record, n_events, "kill", after_the_cut(folder)), calls.told
        for state in islice(choices(calls.record, n_events, model, seed), 20):
            assert permits(calls.record, n_events, model, state), (seed, calls.told)
            assert not permits(calls.record, n_events, model, State({**state.paths, "e": 1}, state.contents))
            for path, number in state.paths.items():
                changed = state.contents[number][:-1] + b"\0\1"  # no call has written these bytes
                assert not permits(
                    calls.record, n_events, model, State(state.paths, {**state.contents, number: changed})
                ), path
