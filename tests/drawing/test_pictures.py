# test_pictures.py - maps of arrays, layouts of shards, and HTML for notebooks
# SPDX-License-Identifier: MIT
"""The numbers behind the pictures are compared with numpy, and the pictures are drawn at 10 and at a million inner chunks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    KINDS_OF_STORE,
    assemble,
    create,
    letters,
    letters_spec,
    quiet,
    shard_path,
    store_of,
)

import shardcodec
from shardcodec.access.shard_layout import KINDS
from shardcodec.drawing.array_figure import array_figure
from shardcodec.drawing.figures import byte_scale
from shardcodec.drawing.layout_figure import _covered, layout_figure
from shardcodec.drawing.map_figure import ChunkMap, map_figure
from shardcodec.readable import facts_table
from shardcodec.tools import inspect
from shardcodec.tools.hierarchy import find_arrays
from shardcodec.tools.inspect.array_picture import ArrayPicture

PNG = b"\x89PNG\r\n\x1a\n"


def sizes_of(grid: tuple[int, ...], absent: float = 0.3) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 1000, grid).astype(np.uint64)
    sizes[rng.random(grid) < absent] = ABSENT
    return sizes


def full_map(sizes: np.ndarray[Any, Any], **how: Any) -> ChunkMap:
    shape = tuple(10 * n - 3 for n in sizes.shape)
    found = ChunkMap(shape, (10,) * sizes.ndim, (0,) * sizes.ndim, sizes.shape, **how)
    for at in range(0, sizes.shape[0], 3):  # in blocks, as shards come
        found.add((at, *[0] * (sizes.ndim - 1)), sizes[at : at + 3])
    return found


def test_plane_of_few_inner_chunks_has_a_cell_for_each() -> None:
    sizes = sizes_of((5, 7))
    found = full_map(sizes)
    assert found.axes == (0, 1)
    assert (found.n_stored == (sizes != ABSENT)).all() and (found.n_grid == 1).all()
    assert np.array_equal(found.mean_nbytes, np.where(sizes == ABSENT, np.nan, sizes), equal_nan=True)
    assert found.edges(0).tolist() == [0, 10, 20, 30, 40, 47]


def test_other_axes_are_averaged() -> None:
    sizes = sizes_of((4, 6, 5))
    found = full_map(sizes)
    assert found.axes == (1, 2) and (found.n_grid == 4).all()
    stored = sizes != ABSENT
    assert (found.n_stored == stored.sum(axis=0)).all()
    assert (found.nbytes == np.where(stored, sizes, 0).sum(axis=0)).all()
    assert found.hidden() == "; mean along axis 0"


def test_axes_with_one_inner_chunk_are_shown_last() -> None:
    assert ChunkMap((9, 9, 9), (3, 3, 9), (0, 0, 0), (3, 3, 1)).axes == (0, 1)
    assert ChunkMap((9, 9, 9), (9, 3, 9), (0, 0, 0), (1, 3, 1)).axes == (1, 2)


def test_cells_cover_several_inner_chunks_of_a_large_grid() -> None:
    sizes = sizes_of((23, 9))
    found = full_map(sizes, max_cells=5)  # 5 and 2 inner chunks for each cell
    assert found.n_stored.shape == (5, 5)
    stored = np.pad(sizes != ABSENT, ((0, 2), (0, 1)))
    assert (found.n_stored == stored.reshape(5, 5, 5, 2).sum(axis=(1, 3))).all()
    assert found.n_grid.sum() == 23 * 9 and found.n_grid[-1, -1] == 3
    assert found.edges(0).tolist() == [0, 50, 100, 150, 200, 227]


def test_region_ignores_inner_chunks_outside_of_it() -> None:
    sizes = sizes_of((6, 6), absent=0)
    found = ChunkMap((60, 60), (10, 10), (2, 3), (3, 2))
    found.add((0, 0), sizes)
    assert (found.nbytes == sizes[2:5, 3:5]).all()
    assert found.edges(0).tolist() == [20, 30, 40, 50]


def test_array_of_rank_0_has_one_cell() -> None:
    found = ChunkMap((), (), (), ())
    found.add((), np.array(12, np.uint64))
    assert found.total_stored == 1 and found.mean_nbytes.item() == 12
    assert map_figure(found, "scalar").axes


def test_map_has_axes_in_elements_and_borders_of_shards() -> None:
    found = ChunkMap((40, 30), (10, 10), (0, 0), (4, 3), (20, 30), ["time", None])
    found.add((0, 0), sizes_of((4, 3)))
    figure = map_figure(found, "a map")
    panel = figure.axes[0]
    assert (panel.get_ylabel(), panel.get_xlabel()) == ("time (elements)", "axis 1 (elements)")
    assert panel.get_xlim() == (0, 30) and panel.get_ylim() == (40, 0)
    assert "of 12 inner chunks exist" in panel.get_title()
    assert [line.get_ydata()[0] for line in panel.lines if line.get_linewidth() > 1] == [20]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["absent", "border of a shard"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("grid", [(2, 5), (1000, 1000)])
def test_map_of_ten_and_of_a_million_inner_chunks(tmp_path: Path, grid: tuple[int, int], suffix: str) -> None:
    found = full_map(sizes_of(grid))
    figure = map_figure(found, "a map")
    assert max(found.n_stored.shape) <= 400
    file = tmp_path / f"map{suffix}"
    figure.savefig(file)
    check_picture(file)
    assert file.stat().st_size < 2 << 20


@pytest.mark.parametrize(
    ("grid", "shard"), [((100, 45), True), ((45, 100), True), ((5000, 5000), True), ((9, 36), False)]
)
def test_title_and_scale_are_inside_of_the_figure(grid: tuple[int, int], shard: bool) -> None:
    sizes = sizes_of((10, 5), absent=0)
    sizes[0, 0] = ABSENT
    steps = tuple(-(-n // cells) for n, cells in zip(grid, sizes.shape, strict=True))
    found = ChunkMap(grid, steps, (0, 0), sizes.shape, max_cells=4)  # cells that exist in part: two panels
    found.add((0, 0), sizes)
    one = ChunkMap(grid, steps, (0, 0), sizes.shape)
    one.add((0, 0), sizes)
    places = np.array([[0, 0, 8]])
    below = (3000, {"inner chunks": places[:, 1:]}, places, 1, "c/0") if shard else None
    for each in (found, one):
        figure = array_figure(each, "a map", below)
        figure.draw_without_rendering()
        whole = figure.bbox
        for panel in figure.axes:
            inside = panel.title.get_window_extent()
            assert inside.y1 <= whole.y1 and inside.x0 >= whole.x0, panel.get_title()
            assert panel.get_tightbbox().x1 <= whole.x1 + 1


def test_narrow_panel_is_in_the_middle_with_its_scale_beside_it() -> None:
    found = ChunkMap((100, 45), (10, 9), (0, 0), (10, 5))
    found.add((0, 0), sizes_of((10, 5), absent=0))
    places = np.array([[0, 0, 8]])
    figure = array_figure(found, "a map", (3000, {"inner chunks": places[:, 1:]}, places, 1, "c/0"))
    figure.draw_without_rendering()
    panel = figure.axes[0].get_window_extent()
    assert abs((panel.x0 + panel.x1) / 2 - figure.bbox.width / 2) < 0.1 * figure.bbox.width
    (scale,) = figure.axes[0].child_axes
    assert 0 < scale.get_window_extent().x0 - panel.x1 < panel.width / 4


def test_pictures_have_the_units_of_the_texts() -> None:
    found = ChunkMap((20, 20), (10, 10), (0, 0), (2, 2))
    found.add((0, 0), np.array([[1000, 5000], [9000, 20000]], np.uint64))
    places = np.array([[0, 0, 3000]])
    figure = array_figure(found, "a map", (20000, {"inner chunks": places[:, 1:]}, places, 1, "c/0"))
    figure.draw_without_rendering()
    panel, kinds, order = figure.axes
    assert [text.get_text() for text in kinds.get_legend().get_texts()] == ["inner chunks (2.93 KiB)"]
    assert {"0 B", "4 KiB", "16 KiB"} <= {text.get_text() for text in order.get_xticklabels()}
    (scale,) = panel.child_axes
    assert {"8 KiB", "16 KiB"} <= {text.get_text() for text in scale.get_yticklabels()}


@pytest.mark.parametrize("high", [0, 1, 7, 9, 1000, 1025, 10**6, 2**40 + 1])
def test_ticks_of_bytes_are_few_and_differ(high: int) -> None:
    for low in (0, 10**7):
        locator, text = byte_scale(low, low + high)
        ticks = [at for at in locator.tick_values(low, low + high) if low <= at <= low + high]
        texts = [text(at, 0) for at in ticks]
        assert len(set(texts)) == len(texts) <= 9 and (texts or not high)


@pytest.mark.parametrize("shape", [(0, 100), (100, 0), (0,), (3, 0, 3)])
def test_picture_of_an_empty_array_has_a_note(shape: tuple[int, ...], tmp_path: Path) -> None:
    n = len(shape)
    create(tmp_path / "a.zarr", shape=shape, shards=(20,) * n, chunks=(10,) * n)
    inspect(tmp_path / "a.zarr", plot=tmp_path / "a.png")
    check_picture(tmp_path / "a.png")
    for handle in (shardcodec.open_array(tmp_path / "a.zarr"), shardcodec.chunk_state(tmp_path / "a.zarr")):
        (panel,) = handle.plot(tmp_path / "b.svg").axes
        assert [text.get_text() for text in panel.texts] == [
            f"the array has no elements: its shape is {shape}"
        ]


def check_picture(file: Path) -> None:
    if file.suffix == ".png":
        assert file.read_bytes().startswith(PNG)
    else:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.parametrize("n", [9, 10**6])
def test_layout_of_few_and_of_a_million_inner_chunks(tmp_path: Path, n: int) -> None:
    places = np.stack([np.random.default_rng(0).permutation(n), np.arange(n) * 10, np.full(n, 8)], axis=1)
    ranges = {
        "inner chunks": places[:, 1:],
        "dead": np.stack([np.arange(n) * 10 + 8, np.full(n, 2)], axis=1),
        "index": np.array([[10 * n, 16 * n]]),
        "footer": np.empty((0, 2), int),
    }
    figure = layout_figure(26 * n, ranges, places, n, "c/0/0")
    kinds, order = figure.axes
    told = [text.get_text().partition(" (")[0] for text in kinds.get_legend().get_texts()]
    assert told == ["inner chunks", "dead", "index"]
    assert kinds.get_xlim() == order.get_xlim() == (0, 26 * n)
    assert order.get_xlabel() == "offset in the shard (bytes)"
    figure.savefig(tmp_path / "layout.png")
    check_picture(tmp_path / "layout.png")


def test_bytes_in_columns_add_up() -> None:
    ranges = np.array([[30, 5], [0, 10], [12, 1]])
    assert _covered(ranges, np.array([0, 5, 12.5, 32, 40])).tolist() == [5, 5.5, 2.5, 3]


# ---- handles


@pytest.mark.parametrize("kind", KINDS_OF_STORE)
def test_array_reader_draws_the_same_as_chunk_state(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path / "a.zarr")
    create(store)[:9, 5:] = 5
    reader = shardcodec.open_array(store)
    from shardcodec.access.array_reader import map_of_array
    from shardcodec.access.pictures import map_of_state

    found = map_of_array(reader._objects, reader._spec, reader._options)
    expected = map_of_state(shardcodec.chunk_state(store))
    assert (found.n_stored == expected.n_stored).all() and (found.nbytes == expected.nbytes).all()
    assert found.shape == expected.shape == (16, 24)
    assert found.shard_shape == expected.shard_shape == (8, 12)


def test_plot_saves_the_picture_and_returns_the_figure(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[:9, 5:] = 5
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    handles = [
        shardcodec.open_array(tmp_path / "a.zarr"),
        shardcodec.chunk_state(tmp_path / "a.zarr"),
        shardcodec.open_shard(tmp_path / "a.zarr", "c/0/0", spec),
        shardcodec.open_shard(tmp_path / "a.zarr", "c/no", spec),
    ]
    for n, handle in enumerate(handles):
        file = tmp_path / f"{n}.png"
        assert handle.plot(file).axes
        check_picture(file)
        with pytest.raises(ValueError, match=r"ends with \.png or \.svg, got .*\.jpg"):
            handle.plot(tmp_path / "a.jpg")


def test_plot_of_an_array_that_is_not_sharded_is_refused(tmp_path: Path) -> None:
    with quiet():
        zarr.create_array(tmp_path / "a.zarr", shape=(4,), chunks=(2,), dtype="i4")
    reader = shardcodec.open_array(tmp_path / "a.zarr")
    with pytest.raises(shardcodec.UnsupportedError, match="it is not sharded"):
        reader.plot()
    assert "chunks" in reader._repr_html_()


def test_matplotlib_is_imported_by_plot_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    state = shardcodec.chunk_state(tmp_path / "a.zarr")
    assert state._repr_html_()
    with pytest.raises(
        ImportError, match=r"matplotlib \(extra plot\); install it with: pip install matplotlib"
    ):
        state.plot()


def test_html_of_a_shard_shows_its_inner_chunks() -> None:
    entries = [(0, 4), (ABSENT, ABSENT), (4, 4), (8, 4)]
    shard = shardcodec.open_shard(assemble(b"zeroone.tres", entries), None, letters_spec())
    text = shard._repr_html_()
    assert "3 of 4" in text
    root = ElementTree.fromstring(text)
    colors = [one.get("fill") for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(colors) == 3 and len(set(colors)) == 2  # two in one row, then a run of equal ones


def test_html_of_a_damaged_shard_tells_the_error() -> None:
    shard = shardcodec.open_shard(letters()[:-1], None, letters_spec())
    text = shard._repr_html_()
    ElementTree.fromstring(text)
    assert "error" in text


def test_html_escapes_names() -> None:
    text = facts_table("<script>", [("a&b", "<i>")])
    assert "<script>" not in text and "&lt;script&gt;" in text and "a&amp;b" in text


# ---- inspect


def test_inspect_draws_one_array_and_the_shard_with_the_most_dead_bytes(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 5
    with shardcodec.options(write_strategy="append", compact=False):
        array[8:12, 12:15] = 6
    (report,) = inspect(tmp_path / "a.zarr", plot=tmp_path / "a.svg").arrays
    assert report.stored is not None and report.stored.dead_nbytes
    check_picture(tmp_path / "a.svg")


def test_picture_of_one_shard_is_its_part_of_the_array(tmp_path: Path) -> None:
    from shardcodec.tools.hierarchy import find_arrays
    from shardcodec.tools.inspect.array_picture import ArrayPicture

    create(tmp_path / "a.zarr", shape=(14, 24))[...] = 5
    (array,) = find_arrays(tmp_path / "a.zarr/c/1/1")
    found = ArrayPicture(array, tmp_path / "a.png")._map
    assert (found.first, found.grid_shape) == ((2, 4), (2, 4))
    inspect(tmp_path / "a.zarr/c/1/1", plot=tmp_path / "a.png")
    check_picture(tmp_path / "a.png")


def test_picture_of_several_arrays_is_refused(tmp_path: Path) -> None:
    with quiet():
        group = zarr.create_group(tmp_path / "g.zarr")
    for name in ("a", "b"):
        create(group.store, name=name)[...] = 1
    with pytest.raises(ValueError, match="expected a single array, got a, b"):
        inspect(tmp_path / "g.zarr", plot=tmp_path / "a.png")
    inspect(tmp_path / "g.zarr", only="b", plot=tmp_path / "b.png")
    check_picture(tmp_path / "b.png")


def test_picture_of_an_array_without_shards(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")
    inspect(tmp_path / "a.zarr", plot=tmp_path / "a.png")
    check_picture(tmp_path / "a.png")


def test_kinds_of_bytes_have_colours() -> None:
    from shardcodec.drawing.figures import COLORS

    assert set(KINDS) <= set(COLORS)
    assert len({COLORS[kind] for kind in KINDS}) == len(KINDS)


def test_shard_that_is_damaged_is_not_drawn(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 5
    shard_path(array).write_bytes(b"?")
    inspect(tmp_path / "a.zarr", plot=tmp_path / "a.png")
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    with pytest.raises(shardcodec.ShardFormatError, match="too short"):
        shardcodec.open_shard(tmp_path / "a.zarr", "c/0/0", spec).plot()


@pytest.mark.parametrize(
    ("axes", "label"),
    [
        (("time", "lat"), ("lat (elements)", "time (elements)")),
        (("2", 0), ("axis 2 (elements)", "time (elements)")),
    ],
)
def test_inspect_plots_the_chosen_axes(axes: tuple[Any, ...], label: tuple[str, str], tmp_path: Path) -> None:
    """One half of an array along time was not written, and the picture showed one grey mean."""
    with quiet():
        array = zarr.create_array(
            tmp_path / "a.zarr", shape=(8, 8, 8), chunks=(1, 4, 4), shards=(4, 8, 8), dtype="u1",
            dimension_names=["time", "lat", None],
        )  # fmt: skip
    array[:4] = 1
    (target,) = find_arrays(tmp_path / "a.zarr")
    picture = ArrayPicture(target, tmp_path / "a.svg", axes)
    assert picture._map.axes == ((0, 1) if "lat" in axes else (0, 2))
    inspect(tmp_path / "a.zarr", plot=tmp_path / "a.svg", plot_axes=axes)
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert (picture._map.label(1), picture._map.label(0)) == label


@pytest.mark.parametrize("axes", ["depth", "0,0", "0,1,2", "", "-1", "3"])
def test_axes_that_an_array_does_not_have_are_refused(axes: str, tmp_path: Path) -> None:
    with quiet():
        zarr.create_array(
            tmp_path / "a.zarr",
            shape=(8, 8, 8),
            chunks=(1, 4, 4),
            shards=(4, 8, 8),
            dtype="u1",
            dimension_names=list("xyz"),
        )
    with pytest.raises(
        ValueError, match=r"plot_axes: expected one or two different axes of 3, .* \(x, y, z\)"
    ):
        inspect(tmp_path / "a.zarr", plot=tmp_path / "a.svg", plot_axes=axes.split(","))
    with pytest.raises(ValueError, match="plot_axes: expected `plot`"):
        inspect(tmp_path / "a.zarr", plot_axes=["x"])
