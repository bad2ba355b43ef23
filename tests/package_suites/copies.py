# copies.py - data sets that packages write, copied as a whole and in part, and read by the same packages
# SPDX-License-Identifier: MIT
"""Write a data set through one package, copy it with `convert`, `repair` and `compact`, and let the package compare the copies.

Any difference is an `AssertionError`. A part must be a data set for the package, too, and have the elements of the whole.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shardcodec import tools

RANDOM = np.random.default_rng(0)


def copies(old: Path, **layout: Any) -> Iterator[Path]:
    """Yield copies of a whole hierarchy: converted, and that one repaired and packed to new places."""
    new, repaired, packed = (old.with_name(f"{old.name}-{name}") for name in ("new", "repaired", "packed"))
    tools.convert(old, new, **layout)
    yield new
    tools.repair(new, to=repaired)
    yield repaired
    tools.compact(new, to=packed)
    yield packed


def part(old: Path, name: str, **how: Any) -> Path:
    """Return the place of a part."""
    new = old.with_name(f"{old.name}-{name}")
    tools.convert(old, new, **how)
    return new


# ---- the packages


def table() -> Any:
    """Return counts of cells with categories, text, and matrices."""
    import pandas
    import scipy.sparse
    from anndata import AnnData

    n, genes = 3000, 200
    counts = scipy.sparse.random(n, genes, 0.2, format="csr", dtype="f4", random_state=0)
    kinds = pandas.Categorical(RANDOM.choice(["a", "b", "c"], n))
    cells = pandas.DataFrame({"kind": kinds, "size": RANDOM.random(n)}, index=[f"cell {i}" for i in range(n)])
    names = pandas.DataFrame(
        {"symbol": [f"G{i}" for i in range(genes)]}, index=[f"gene {i}" for i in range(genes)]
    )
    layers = {"dense": counts.toarray()}
    return AnnData(
        counts, cells, names, layers=layers, obsm={"pca": RANDOM.random((n, 50))}, uns={"method": {"k": 3}}
    )


def anndata(folder: Path) -> None:
    """Tables of AnnData in both formats of Zarr."""
    import anndata as ad
    from anndata.tests.helpers import assert_equal

    data = table()
    for zarr_format in (2, 3):
        old = folder / f"v{zarr_format}"
        with ad.settings.override(zarr_write_format=zarr_format):
            data.write_zarr(old)
        for copy in copies(old, shards=8 << 20):
            assert_equal(ad.read_zarr(copy), data)
        dense = ad.read_zarr(part(old, "dense", only="layers/dense"))
        assert (dense.layers["dense"] == data.layers["dense"]).all()
        assert (dense.obs_names == data.obs_names).all() and (dense.var_names == data.var_names).all()
        assert list(dense.obs.columns) == [] and dense.X is None
        some = ad.read_zarr(part(old, "some", only=["X/data", "obs/kind"]))
        assert (some.X != data.X).nnz == 0
        assert (some.obs["kind"] == data.obs["kind"]).all() and list(some.obs.columns) == ["kind"]
        rest = ad.read_zarr(part(old, "rest", exclude=["X", "obs/size", "obsm"]))
        assert list(rest.obs.columns) == ["kind"] and not rest.obsm
        assert rest.uns["method"]["k"] == 3


def ome_zarr(folder: Path) -> None:
    """Images with labels, in both formats of OME-Zarr."""
    import zarr
    from ome_zarr.format import FormatV04, FormatV05
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    from ome_zarr.writer import write_image, write_labels

    def seen(place: Path) -> list[list[Any]]:
        location = parse_url(place)
        assert location is not None
        return [[np.asarray(level) for level in node.data] for node in Reader(location)() if node.data]

    image = RANDOM.integers(0, 500, (2, 8, 512, 512)).astype("u2")
    for form in (FormatV04(), FormatV05()):
        old = folder / f"v{form.version}"
        group = zarr.open_group(old, mode="w", zarr_format=form.zarr_format)
        write_image(image, group, axes="czyx", fmt=form)
        write_labels((image[0] > 250).astype("u1"), group, "cells", axes="zyx", fmt=form)
        whole = seen(old)
        assert len(whole) == 2
        for copy in copies(old, chunks={"z": 1, "y": 128, "x": 128}, shards={"z": 8, "y": 512, "x": 512}):
            for one, other in zip(seen(copy), whole, strict=True):
                assert all(map(np.array_equal, one, other)) and len(one) == len(other)
        levels = sorted(name for name, node in group.members() if isinstance(node, zarr.Array))
        (small,) = seen(part(old, "level", only=levels[1]))
        assert len(small) == 1 and np.array_equal(small[0], whole[0][1])
        image_only = seen(part(old, "image", exclude="labels"))
        assert len(image_only) == 1 and len(image_only[0]) == len(levels)
        tools.repair(old, to=folder / f"level-{form.version}", only=levels[0])
        (large,) = seen(folder / f"level-{form.version}")
        assert len(large) == 1 and np.array_equal(large[0], image)


def spatialdata(folder: Path) -> None:
    """Images, labels, points, shapes and a table of SpatialData."""
    import spatialdata as sd
    from spatialdata.datasets import blobs
    from spatialdata.testing import assert_spatial_data_objects_are_identical

    data, old = blobs(length=512), folder / "blobs"
    data.write(old)
    data = sd.read_zarr(old)
    for copy in copies(old, shards=1 << 20):
        assert_spatial_data_objects_are_identical(sd.read_zarr(copy), data)
    images = sd.read_zarr(part(old, "images", only="images"))
    assert set(images.images) == set(data.images) and not images.labels and not images.tables
    check_places(old, data)
    rest = sd.read_zarr(part(old, "rest", exclude=["images", "labels/blobs_labels", "shapes/blobs_circles"]))
    assert not rest.images and set(rest.labels) == set(data.labels) - {"blobs_labels"}
    assert set(rest.shapes) == set(data.shapes) - {"blobs_circles"} and set(rest.points) == set(data.points)
    assert set(rest.tables) == set(data.tables)


def check_places(old: Path, data: Any) -> None:
    """Compare the extents of images and labels whose first level is left out."""
    import spatialdata as sd
    from spatialdata.transformations import Affine, Scale, Sequence, set_transformation

    places = {
        "first": Scale([3.0, 2.0], axes=("x", "y")),
        "second": Affine([[0, 2, 5], [1, 0, 7], [0, 0, 1]], input_axes=("x", "y"), output_axes=("x", "y")),
    }
    places["third"] = Sequence(list(places.values()))
    for element in (data.images["blobs_multiscale_image"], data.labels["blobs_multiscale_labels"]):
        for name, place in places.items():
            set_transformation(element, place, name, write_to_sdata=data)
    small = sd.read_zarr(part(old, "small", exclude="*_multiscale_*/s0"))
    for name in ("global", *places):
        for kind in ("images", "labels"):
            (whole, less) = (
                getattr(each, kind)[
                    f"blobs_multiscale_{kind.removesuffix('s') if kind == 'images' else kind}"
                ]
                for each in (data, small)
            )
            assert len(less) == len(whole) - 1
            extents = [sd.get_extent(each, coordinate_system=name) for each in (whole, less)]
            assert extents[0] == extents[1], (name, kind, extents)


def webknossos(folder: Path) -> None:
    """Two layers with two magnifications of webknossos."""
    import webknossos as wk

    values = RANDOM.integers(0, 255, (128, 128, 128)).astype("u1")
    old = folder / "old"
    written = wk.Dataset(old, voxel_size=(1, 1, 1))
    for name, category, more in (
        ("color", wk.COLOR_CATEGORY, {"dtype": "uint8"}),
        ("cells", wk.SEGMENTATION_CATEGORY, {"dtype": "uint32", "largest_segment_id": 255}),
    ):
        layer = written.add_layer(name, category, data_format="zarr3", **more)
        for mag, step in (("1", 1), ("2", 2)):
            view = layer.add_mag(mag, chunk_shape=(32, 32, 32), shard_shape=(64, 64, 64))
            view.write(values[::step, ::step, ::step].astype(more["dtype"]), allow_resize=True)
    for copy in copies(old, shards={"*/1": (1, 128, 128, 128)}):
        read = wk.Dataset.open(copy)
        assert list(read.layers) == ["color", "cells"]
        for name in read.layers:
            for mag in ("1", "2"):
                views = (each.get_layer(name).get_mag(mag) for each in (written, read))
                assert np.array_equal(*(view.read() for view in views))
    for name, how, layers in (
        ("color", {"only": "color"}, {"color": ["1", "2"]}),
        ("mags", {"only": ["color/2", "cells/1"]}, {"color": ["2"], "cells": ["1"]}),
        ("rest", {"exclude": ["color", "cells/1"]}, {"cells": ["2"]}),
    ):
        read = wk.Dataset.open(part(old, name, **how))
        assert {each: [str(mag) for mag in read.get_layer(each).mags] for each in read.layers} == layers
        for each, mags in layers.items():
            for mag in mags:
                views = (data.get_layer(each).get_mag(mag) for data in (written, read))
                assert np.array_equal(*(view.read() for view in views))


def icechunk(folder: Path) -> None:
    """A data set of xarray in a repository of icechunk, copied to a folder."""
    import xarray as xr
    from icechunk import Repository, local_filesystem_storage

    folder.mkdir(exist_ok=True)
    heat = RANDOM.random((365, 36, 40), "f4")
    data = xr.Dataset(
        {
            "tas": (("time", "lat", "lon"), heat, {"grid_mapping": "crs"}),
            "pr": (("time", "lat", "lon"), heat),
            "crs": ((), 1),
        },
        coords={
            "time": ("time", np.arange(365), {"bounds": "bounds"}),
            "lat": np.arange(36.0),
            "lon": np.arange(40.0),
        },
    )
    data["bounds"] = ("time", "ends"), np.zeros((365, 2))
    repository = Repository.create(local_filesystem_storage(str(folder / "repository")))
    session = repository.writable_session("main")
    data.to_zarr(session.store, zarr_format=3, consolidated=False, encoding={"tas": {"chunks": (73, 36, 40)}})
    session.commit("first")
    store = repository.readonly_session("main").store
    old = xr.open_zarr(store, consolidated=False).load()
    tools.convert(store, folder / "new", shards={"time": 365})
    assert xr.open_zarr(folder / "new", consolidated=False).load().identical(old)
    tools.convert(store, folder / "part", only="tas")
    assert xr.open_zarr(folder / "part", consolidated=False).load().identical(old.drop_vars("pr"))


PROGRAMS: dict[str, Callable[[Path], None]] = {
    program.__name__: program for program in (anndata, icechunk, ome_zarr, spatialdata, webknossos)
}


def main() -> None:
    """Run one program."""
    with tempfile.TemporaryDirectory() as folder:
        PROGRAMS[sys.argv[1]](Path(folder))
    print(f"copies {sys.argv[1]}: equal")


if __name__ == "__main__":
    main()
