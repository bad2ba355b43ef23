# test_tool_2022.py - `shardcodec.tools.convert` on arrays of the 2022 format
# SPDX-License-Identifier: MIT
"""`convert` on arrays that zarr-python 2.18.7 has written: the same elements and attributes as those of `convert_2022`."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import shardcodec
from shardcodec.compat import swaps_for_filters
from shardcodec.errors import UnsupportedError
from shardcodec.tools import convert
from shardcodec.transformer import convert_2022

from .cases_2022 import BY_NAME
from .checks_2022 import NAMES, assert_same, expected

pytestmark = pytest.mark.filterwarnings("ignore")

# Elements of varying size, and what the installed zarr would misread: only `convert_2022` copies these.
NOT_BY_TOOL = ("type-str", "type-bytes", *(["filter-delta-big-F"] if not swaps_for_filters() else []))


ALWAYS = ("plain", "codec-gzip", "codec-bz2", "stack", "dots", *NOT_BY_TOOL)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.nightly) for name in NAMES]
)
def test_array_in_other_shards(made: Path, tmp_path: Path, name: str) -> None:
    case = BY_NAME[name]
    if name in NOT_BY_TOOL:
        with pytest.raises(UnsupportedError):
            convert(made / "h" / name, tmp_path / "new.zarr")
        return
    report = convert(made / "h" / name, tmp_path / "new.zarr", shards=1 << 20, level="checksum")
    assert report.is_complete
    found = shardcodec.attach(zarr.open_array(tmp_path / "new.zarr", mode="r"))
    assert_same(found[...], expected(made, name), case)
    assert dict(found.attrs) == dict(convert_2022(made / "h", tmp_path / "twin", path=name).attrs)
    (one,) = report.arrays
    # The engine has no filter of big-endian elements, so such chunks are decoded and encoded again.
    is_foreign = name.startswith(("codec-bz2", "codec-lzma", "filter-delta-big"))
    if found.shape and case.per_shard:
        assert one.method == ("encode" if is_foreign else "move"), one.reason


def test_group(made: Path, tmp_path: Path) -> None:
    report = convert(made / "h", tmp_path / "new.zarr", only=["plain", "codec-gzip"])
    assert [one.name for one in report.arrays] == ["codec-gzip", "plain"]
    for name in ("plain", "codec-gzip"):
        found = zarr.open_array(tmp_path / "new.zarr", path=name, mode="r")
        assert_same(found[...], expected(made, name), BY_NAME[name])
