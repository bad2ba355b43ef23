# test_pages.py - the snippets of the pages in docs/ run
# SPDX-License-Identifier: MIT
"""The code of each page runs as printed; the test provides the names that a page assumes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import python_environment, quiet
from servers.s3 import missing_for_s3, s3_server
from spec_json import array_2022

from shardcodec.transformer import open_2022

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def run(page: str, names: dict[str, Any]) -> None:
    """Run the snippets of a page, one after the other."""
    found = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found
    for number, snippet in enumerate(found):
        exec(compile(snippet, f"{page}, snippet {number}", "exec"), names)


@pytest.mark.parametrize(
    "page", ["index.md", "guide.md", "options.md", "tools.md", "cluster.md", "gallery.md"]
)
def test_page_for_users_runs(page: str, tmp_path: Path) -> None:
    """In a new process, because the pages switch shardcodec on."""
    if page == "gallery.md":
        for package in ("matplotlib", "nibabel"):
            pytest.importorskip(package, reason=f"{package} is not installed")
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "page.py"
    program.write_text("\n".join(snippets), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# The array of the page, and a spec of its shards. The rest of the page runs after it.
BEFORE_OBJECT_STORES = """
import warnings

import numpy as np
import zarr
from obstore.store import S3Store

import shardcodec

warnings.simplefilter("error")
VALUES = np.arange(64 * 64, dtype="uint16").reshape(64, 64)
group = zarr.create_group(zarr.storage.ObjectStore(S3Store("bucket", prefix="images.zarr")))
made = group.create_array("raw", data=VALUES, shards=(32, 32), chunks=(8, 8), dimension_names=("y", "x"))
spec = shardcodec.ShardSpec.from_metadata(made.metadata.to_dict())
del made  # enable() warns of arrays that are open
"""
AFTER_OBJECT_STORES = """
assert (raw[:] == VALUES).all() and state.exists.all()
assert (shard.read_chunks([(3, 0)])[0] == VALUES[24:32, :8]).all()
assert (array[:] == VALUES).all() and (data["raw"].values == VALUES).all()
assert type(array.async_array.codec_pipeline).__name__ == "ShardCodecPipeline"
"""


def test_object_stores_page_runs(tmp_path: Path) -> None:
    """On moto's S3: obstore takes its address from the environment. No warning is given."""
    pytest.importorskip("xarray", reason="xarray is not installed")
    if missing := missing_for_s3():
        pytest.skip(missing)
    snippets = re.findall(
        r"```python\n(.*?)```", (DOCS / "object-stores.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(snippets) == 3
    with s3_server() as server:
        code = "\n".join([BEFORE_OBJECT_STORES, *snippets, AFTER_OBJECT_STORES])
        program = tmp_path / "page.py"
        code = code.replace("bucket", server.make_bucket()).replace("/scratch/me", str(tmp_path))
        program.write_text(code, encoding="utf-8")
        there = {"AWS_ENDPOINT": f"http://127.0.0.1:{server.port}", "AWS_ALLOW_HTTP": "true"}
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        done = subprocess.run(
            [sys.executable, program.name],
            cwd=tmp_path,
            env=python_environment(**there, **keys),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def indented_code(text: str) -> list[str]:
    """Return the indented blocks of a page that are Python; a drawing is not."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in re.findall(r"(?<=\n\n)(?: {4}.*\n+)+", outside):
        try:
            ast.parse(textwrap.dedent(block))
        except SyntaxError:
            continue
        found.append(block)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_is_fenced(page: str) -> None:
    """Tests run fenced blocks only."""
    assert not indented_code((ROOT / page).read_text(encoding="utf-8"))


def test_storage_transformer_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run("storage-transformer.md", names)
    folder = Path("temperature.zarr")
    files = sorted(str(path.relative_to(folder)) for path in (folder / "c").rglob("*/*"))
    assert "2 files instead of 64: `c/0/0` and `c/0/1`" in (DOCS / "storage-transformer.md").read_text()
    assert files == ["c/0/0", "c/0/1"]
    array = zarr.open_array(names["store"], mode="r")
    assert array.nchunks_initialized == 64
    assert array.shards is None


def test_format_2022_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("old.zr3/meta/root/group")
    folder.mkdir(parents=True)
    document = array_2022(shape=(250, 9), chunk_shape=(10, 3), chunks_per_shard=(5, 3))
    (folder / "volume.array.json").write_text(json.dumps(document))
    values = np.arange(250 * 9).reshape(250, 9)
    open_2022("old.zr3", "group/volume")[...] = values
    run("format-2022.md", {})
    values[100:200] = 0
    with quiet():
        assert (zarr.open_array("new.zarr", path="group/volume")[:] == values).all()


def test_format_page_shows_the_bytes_of_its_example() -> None:
    """The page shows the bytes of its example as a dump too."""
    names: dict[str, Any] = {}
    run("format.md", names)
    dump = re.findall(r"^    \d+ +((?:[0-9a-f]{2} +)+)", (DOCS / "format.md").read_text(), re.MULTILINE)
    assert bytes.fromhex("".join(dump)) == names["shard"]


def test_user_bytes_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run("user-bytes.md", names)
    shard = names["shard"]
    assert (shard.header[:3], shard.footer, shard.alignment) == (b"...", b"...", 4096)
    assert shard.state().tolist() == [[False, True], [False, True]]
