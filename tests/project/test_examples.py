# test_examples.py - the example programs that need only the package
# SPDX-License-Identifier: MIT
"""Each example is run like a user runs it; it checks its own results."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from numcodecs import Zstd

import shardcodec
from shardcodec import tools
from shardcodec.access.user_bytes import MARK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *arguments: Path | str) -> str:
    paths = [str(Path(shardcodec.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "examples" / name), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_minmax_footer_example_runs(tmp_path: Path) -> None:
    told = run("minmax_footer.py", tmp_path / "table.zarr")
    assert told.count("rows, found with") == 3 and "reads the same columns" in told
    table = zarr.open_group(tmp_path / "table.zarr", mode="r")  # opened with zarr alone
    assert "vlen-utf8" in str(table["station"].metadata.to_dict()["codecs"])
    assert {str(name) for name, _ in table.members(max_depth=None)} == {
        "time", "level", "station", "hits", "hits/ends", "hits/values"
    }  # fmt: skip
    assert table["hits/ends"][-1] == table["hits/values"].shape[0]


def test_range_query_reads_only_indexes_and_footers(tmp_path: Path) -> None:
    """The example counts the bytes it reads; this count is compared with the bytes that the engine fetched."""
    example = runpy.run_path(str(ROOT / "examples" / "minmax_footer.py"))
    rows, spec = 300_000, example["SHARD"]
    column = zarr.create_array(
        tmp_path, name="time", shape=rows, shards=(spec,), chunks=(example["CHUNK"],), dtype="f8"
    )
    values = np.sort(np.random.default_rng(0).uniform(0, 1e6, rows))
    example["write_column"](tmp_path, column, values)
    before = shardcodec.stats()
    first, end, n_read = example["rows_between"](column, 1e5, 2e5)
    after = shardcodec.stats()
    assert first <= np.searchsorted(values, 1e5) and end >= np.searchsorted(values, 2e5, "right")
    assert end - first < 0.2 * rows
    n_shards, per_shard = -(-rows // spec), spec // example["CHUNK"]
    assert n_read == n_shards * ((16 * per_shard + 4) + (8 + 16 * per_shard))
    assert after["bytes_fetched"] - before["bytes_fetched"] == n_read + n_shards * MARK.size


def test_batches_of_sparse_rows_equal_numpy(tmp_path: Path) -> None:
    """The page on data loaders runs the program itself."""
    example = runpy.run_path(str(ROOT / "examples" / "csr.py"))
    rows = example["Rows"](example["example_matrix"](tmp_path, 300, 90))
    indices, data = rows.indices[...], rows.data[...]
    order = shardcodec.ShardOrder(rows.data, rows.starts, batch=64)
    batches = [(part, rows.__getitems__(part)) for part in order]
    assert len(rows) == 300 and len(batches) == 5
    runs = list(rows.mixed_runs(20, run=32, n_runs=3, seed=5))
    assert sorted(np.concatenate([part for part, _ in runs])) == list(range(300))
    assert max(len(part) for part, _ in runs) == 20
    assert all(len(set(part // 32)) <= 3 for part, _ in runs)
    batches += runs
    for part, batch in batches:
        for expected in (example["from_memory"](rows, indices, data, part), example["by_slices"](rows, part)):
            assert example["equal"](batch, expected)
            assert [one.dtype for one in batch] == [one.dtype for one in expected]
    batch[2][7] += 1
    assert not example["equal"](batch, expected)
    assert rows[5][0].tolist() == [0, rows.indptr[6] - rows.indptr[5]]


def test_tiff_shard_example_runs(tmp_path: Path) -> None:
    assert "still both" in run("tiff_shard.py", tmp_path / "image.zarr")
    assert (tmp_path / "image.zarr" / "c" / "0" / "0").read_bytes()[:4] == b"II*\0"


def test_hdf5_shard_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    assert run("hdf5_shard.py", tmp_path).count("still both") == 2
    assert (tmp_path / "deflate.zarr/c/0/0").read_bytes()[:8] == b"\x89HDF\r\n\x1a\n"


def hdf5_file(path: Path, layout: str, dtype: str) -> np.ndarray:
    """Write an HDF5 file with the dataset "group/d" of 50 x 70 numbers; of the chunked ones one chunk is not stored."""
    h5py = pytest.importorskip("h5py")
    values = np.arange(50 * 70).reshape(50, 70).astype(dtype)
    how = {"deflate": {"compression": "gzip"}}.get(layout, {})
    with h5py.File(path, "w") as file:
        group = file.create_group("group")
        if layout == "contiguous":
            group["d"] = values
            return values
        if layout == "zstd":  # h5py has no zstd, so each chunk is stored as encoded bytes
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((16, 20))
            plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
            space = h5py.h5s.create_simple(values.shape)
            h5py.h5d.create(group.id, b"d", h5py.h5t.py_create(values.dtype), space, plist)
        else:
            group.create_dataset("d", values.shape, dtype, chunks=(16, 20), **how)
        for y, x in np.ndindex(4, 4):
            where = np.s_[16 * y : 16 * y + 16, 20 * x : 20 * x + 20]
            if (y, x) == (1, 2):
                values[where] = 0
            elif layout == "zstd":
                chunk = np.zeros((16, 20), dtype)
                chunk[: 50 - 16 * y, : 70 - 20 * x] = values[where]
                group["d"].id.write_direct_chunk((16 * y, 20 * x), Zstd(level=3).encode(chunk.tobytes()))
            else:
                group["d"][where] = values[where]
    return values


@pytest.mark.parametrize("dtype", ["<u2", ">f8"])
@pytest.mark.parametrize("layout", ["contiguous", "chunked", "deflate", "zstd"])
def test_index_makes_an_hdf5_file_a_shard(tmp_path: Path, layout: str, dtype: str) -> None:
    path, folder = tmp_path / "old.h5", tmp_path / "a.zarr"
    values = hdf5_file(path, layout, dtype)
    before = path.read_bytes()
    example = runpy.run_path(str(ROOT / "examples" / "hdf5_shard.py"))
    with quiet():
        example["add_index"](path, "group/d", folder)
        assert path.read_bytes().startswith(before)
        assert (zarr.open_array(folder, mode="r")[...] == values).all()
        with shardcodec.enable(strict=True):
            assert (zarr.open_array(folder, mode="r")[...] == values).all()
    if layout != "zstd" or importlib.util.find_spec("hdf5plugin") is not None:
        if layout == "zstd":
            importlib.import_module("hdf5plugin")
        assert (example["read_hdf5"](path, "group/d") == values).all()
    report = tools.verify(folder, level="decode")
    assert (report.n_findings, report.arrays[0].n_shards) == (0, 1)


@pytest.mark.interop
@pytest.mark.parametrize("layout", ["contiguous", "chunked", "zstd"])
def test_tensorstore_reads_an_hdf5_file_with_an_index(tmp_path: Path, layout: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    path, folder = tmp_path / "old.h5", tmp_path / "a.zarr"
    values = hdf5_file(path, layout, "<u2")
    runpy.run_path(str(ROOT / "examples" / "hdf5_shard.py"))["add_index"](path, "group/d", folder)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    assert (tensorstore.open(spec).result().read().result() == values).all()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"chunks": (4, 4), "shuffle": True}, "expected no filter, deflate or zstd, got shuffle"),
        (
            {"chunks": (4, 4), "compression": "gzip", "fletcher32": True},
            "expected no filter, deflate or zstd",
        ),
        ({"external": [("raw.bin", 0, 256)]}, "not in one piece of this file"),
        ({"dtype": "S4"}, "expected a dataset of numbers"),
    ],
)
def test_hdf5_layout_that_is_no_shard_is_told(
    tmp_path: Path, how: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)  # for raw.bin
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("d", (8, 8), **({"dtype": "i4"} | how))[...] = 1
    before = (tmp_path / "a.h5").read_bytes()
    example = runpy.run_path(str(ROOT / "examples" / "hdf5_shard.py"))
    with pytest.raises(ValueError, match=text):
        example["add_index"](tmp_path / "a.h5", "d", tmp_path / "a.zarr")
    assert (tmp_path / "a.h5").read_bytes() == before and not (tmp_path / "a.zarr").exists()


def test_why_example_runs(tmp_path: Path) -> None:
    """It ends with an error if shardcodec loses an element or an array differs from what was written."""
    rows = [line.split(" | ") for line in run("why.py", tmp_path).splitlines()[2:]]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert rows[0][2].rstrip(" |") == "0"


@pytest.mark.nightly
@pytest.mark.interop
def test_tensorstore_loses_nothing_as_the_page_on_alternatives_says() -> None:
    pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    assert run("why.py", "--writers", "TensorStore").splitlines()[2:] == ["| TensorStore | 0 | 0 of 5 |"]
