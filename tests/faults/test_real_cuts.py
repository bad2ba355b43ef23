# test_real_cuts.py - what a power cut leaves on ext4, XFS and btrfs is what their models permit
# SPDX-License-Identifier: MIT
"""The models of crash_model.py are rules that were read out of documents and code. Here real file systems are asked."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from faults.crash_membership import permits
from faults.loop_devices import mounted
from faults.real_cuts import Calls, after_the_cut, copy_of_device, shut_down

SYSTEMS = ("ext4", "xfs", "btrfs")
N_FOLDERS = 12  # of one cut; each has a record of its own


class Cut:
    """The records of one cut, and the files that it has left."""

    def __init__(self, image: Path, folder: Path, system: str, seed: str) -> None:
        chance = random.Random(seed)
        self.calls: list[Calls] = []
        folders = [folder / str(number) for number in range(N_FOLDERS)]
        with mounted(image, folder), open(folder / "outside", "wb") as outside:
            for one in folders:
                shutil.rmtree(one, ignore_errors=True)
                Calls.prepare(one, chance)
            os.sync()
            device = image
            try:
                for one in folders:
                    self.calls.append(Calls(one, chance, outside.fileno()))
                for calls in chance.sample(self.calls, len(self.calls)):
                    calls.make(chance.randint(1, 9))
                if system == "btrfs":
                    device = copy_of_device(image)
                else:
                    shut_down(folder)
            finally:
                for calls in self.calls:
                    calls.close()
        with mounted(device, folder):
            self.states = [after_the_cut(one) for one in folders]

    def contradictions(self, model: str) -> list[str]:
        """Return the records whose files the model does not permit."""
        return [
            f"{calls.told}: {[(path, number, len(state.contents[number])) for path, number in state.paths.items()]}"
            for calls, state in zip(self.calls, self.states, strict=True)
            if not permits(calls.record, len(calls.record.events), model, state)
        ]
