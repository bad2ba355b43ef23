# test_transformer_docs.py - the page about the storage transformer tells the truth
# SPDX-License-Identifier: MIT
from __future__ import annotations

import re
from pathlib import Path

import pytest
import zarr

PAGE = Path(__file__).resolve().parents[2] / "docs" / "storage-transformer.md"


def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(snippet, PAGE.name, "exec"), names)
    files = sorted(
        str(path.relative_to("temperature.zarr")) for path in Path("temperature.zarr/c").rglob("*/*")
    )
    assert "2 files instead of 64: `c/0/0` and `c/0/1`" in text
    assert files == ["c/0/0", "c/0/1"]
    array = zarr.open_array(names["store"], mode="r")  # type: ignore[arg-type]
    assert array.nchunks_initialized == 64
    assert array.shards is None
