# check_reproducible.py - build the wheel twice, in folders of different names, and compare the bytes
# SPDX-License-Identifier: MIT
"""`make reproducible` runs this program: `check_reproducible.py FOLDER`.

The two trees are copies of one source distribution. Their wheels must have one digest, so that anybody can build a release again
and compare. Without SOURCE_DATE_EPOCH, build_wheels.py takes the time of the commit for the times in the wheel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from build_wheels import make_sdist, source_date

NAMES = ("one", "another-folder/of a longer name")


def build(sdist: Path, folder: Path) -> Path:
    """Return the wheel of an unpacked copy of the sdist."""
    folder.mkdir(parents=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    subprocess.run([sys.executable, tree / "scripts/build_wheels.py", folder / "dist"], check=True, cwd=tree)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of the members whose bytes, times or modes differ."""
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:
        members = [
            {i.filename: (i.CRC, i.date_time, i.external_attr) for i in wheel.infolist()}
            for wheel in (one, two)
        ]
    return sorted(
        name for name in members[0].keys() | members[1].keys() if members[0].get(name) != members[1].get(name)
    )


def main() -> None:
    """Build twice; end with an error if the wheels differ."""
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", source_date())
    sdist = make_sdist(folder)
    wheels = [build(sdist, folder / name) for name in NAMES]
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    if digests[0] != digests[1]:
        raise SystemExit(
            f"expected equal wheels, got differences in {differences(*wheels)}, or in their order"
        )
    print(f"{wheels[0].name}: built twice, sha256 {digests[0]}")


if __name__ == "__main__":
    main()
