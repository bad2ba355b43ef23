# hdf5_shard.py - an HDF5 file that is a shard of a Zarr array as well
# SPDX-License-Identifier: MIT
"""An index behind an HDF5 file makes it a shard: its inner chunks are the chunks of a dataset, where HDF5 has stored them.

    [HDF5: superblock, tree of the chunks, chunks of the dataset][index]

h5py, and every other program with the HDF5 library, reads the file as before, because the library stops at the end that the
superblock names. zarr reads the dataset as an array of one shard. No inner chunk is copied or decoded. An update of a dataset
without compression under `write_strategy="in_place"` leaves all chunks where HDF5 expects them. (An HDF5 program that opens the
file for writing may cut off the index; it has a checksum, so zarr then reports an error. Add it again.)

Works for contiguous and chunked datasets of numbers, without filters, with deflate (gzip), or with zstd (needs `hdf5plugin`).
An HDF5 file can be the shard of one of its datasets.

    pip install h5py hdf5plugin
    python examples/hdf5_shard.py [folder]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr

import shardcodec

DEFLATE, ZSTD = 1, 32015  # numbers that the HDF Group has given to the filters
ABSENT = 2**64 - 1
CONTIGUOUS_CHUNK = 1 << 17  # bytes of an inner chunk of a contiguous dataset, at most


def compressors_of(dataset: h5py.Dataset) -> list[dict[str, Any]]:
    """Return the codecs of Zarr that do the same as the filters of a dataset."""
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    if not filters:
        return []
    number, _, values, name = filters[0]
    if len(filters) == 1 and number == DEFLATE:
        return [{"name": "numcodecs.zlib", "configuration": {"level": values[0]}}]
    if len(filters) == 1 and number == ZSTD:
        return [{"name": "zstd", "configuration": {"level": values[0] if values else 3, "checksum": False}}]
    raise ValueError(f"{dataset.name}: expected no filter, deflate or zstd, got {name.decode()}")


def chunk_shape_of(dataset: h5py.Dataset) -> tuple[int, ...]:
    """Return the shape of the chunks; a contiguous dataset is cut into equal parts along its first axis."""
    if dataset.chunks is not None:
        return tuple(dataset.chunks)
    rows, *rest = dataset.shape
    row_nbytes = prod(rest) * dataset.dtype.itemsize
    n = max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * row_nbytes <= CONTIGUOUS_CHUNK))
    return (n, *rest)


def entries_of(dataset: h5py.Dataset, chunk: tuple[int, ...]) -> np.ndarray:
    """Return offset and size of each chunk in the file; both 2^64-1 for one that is not stored."""
    grid = [-(-n // size) for n, size in zip(dataset.shape, chunk, strict=True)]
    entries = np.full((*grid, 2), ABSENT, dtype=np.uint64)
    if dataset.chunks is not None:
        for i in range(dataset.id.get_num_chunks()):
            info = dataset.id.get_chunk_info(i)
            if info.filter_mask:
                raise ValueError(
                    f"{dataset.name}: the chunk at {info.chunk_offset} was stored without a filter"
                )
            at = tuple(offset // size for offset, size in zip(info.chunk_offset, chunk, strict=True))
            entries[at] = info.byte_offset, info.size
    elif (first := dataset.id.get_offset()) is not None:
        nbytes = prod(chunk) * dataset.dtype.itemsize
        for i in range(grid[0]):
            entries[i] = first + i * nbytes, nbytes
    elif dataset.id.get_storage_size():
        raise ValueError(f"{dataset.name}: the elements are not in one piece of this file")
    return entries


def add_index(path: Path, name: str, folder: Path) -> zarr.Array:
    """Make an HDF5 file the shard of a new array in `folder`; a link with its old name leads to it.

    Parameters
    ----------
    path : Path
        The HDF5 file. No program has it open.
    name : str
        The dataset.
    folder : Path
        The new array.
    """
    with h5py.File(path, "r") as file:
        dataset = file[name]
        if (
            dataset.dtype.kind not in "iufb"
            or not dataset.shape
            or not prod(dataset.shape)
            or file.userblock_size
        ):
            raise ValueError(
                f"{path}: expected a dataset of numbers, with elements, in a file without a user block"
            )
        shape, dtype, fill_value = dataset.shape, dataset.dtype, dataset.fillvalue
        compressors, chunk = compressors_of(dataset), chunk_shape_of(dataset)
        entries = entries_of(dataset, chunk)
    shard = tuple(-(-n // size) * size for n, size in zip(shape, chunk, strict=True))
    order = "big" if dtype.byteorder == ">" else "little"
    array = zarr.create_array(
        folder,
        shape=shape,
        shards=shard,
        chunks=chunk,
        dtype=dtype.newbyteorder("="),
        fill_value=fill_value,
        serializer=zarr.codecs.BytesCodec(endian=order),
        compressors=compressors or None,
    )
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    index = shardcodec.ChainSpec(spec.index_shape, "uint64", ABSENT, spec.index_codecs)
    with open(path, "ab") as file:
        file.write(shardcodec.encode(entries, index))
        file.flush()
        os.fsync(file.fileno())
    place = folder.joinpath("c", *("0" for _ in shape))
    place.parent.mkdir(parents=True)
    shutil.move(path, place)
    path.symlink_to(place.resolve())
    return array


def read_hdf5(path: Path, name: str) -> np.ndarray:
    """Read a dataset as a program that knows nothing of shards."""
    with h5py.File(path, "r") as file:
        return file[name][...]


def main(folder: Path) -> None:
    """Store an image in each layout, and read and change it both ways."""
    try:
        import hdf5plugin
    except ImportError:
        print("hdf5plugin is not installed, so zstd is left out")
        zstd = {}
    else:
        zstd = {"zstd": {"chunks": (64, 100), **hdf5plugin.Zstd(clevel=5)}}
    layouts: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "chunked": {"chunks": (64, 100)},
        "deflate": {"chunks": (64, 100), "compression": "gzip", "compression_opts": 4},
        **zstd,
    }
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.indices((512, 768))
    for layout, how in layouts.items():
        image = (40 * y + x // 8).astype("u2")
        path = folder / f"{layout}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("image", data=image, **how)
        nbytes = path.stat().st_size
        array = add_index(path, "image", folder / f"{layout}.zarr")
        print(f"{layout}: {nbytes} bytes of HDF5 and an index of {path.stat().st_size - nbytes} bytes")
        assert (array[...] == image).all()
        assert (read_hdf5(path, "image") == image).all()
        if layout in ("contiguous", "chunked"):
            with shardcodec.enable(write_strategy="in_place"):
                changed = zarr.open_array(folder / f"{layout}.zarr")
                changed[100:140, 200:300] = image[100:140, 200:300] = 65535
            assert (zarr.open_array(folder / f"{layout}.zarr")[...] == image).all()
            assert (read_hdf5(path, "image") == image).all()
            print("  changed through zarr, and still both")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
