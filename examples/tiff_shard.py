# tiff_shard.py - a shard of a Zarr array that is a TIFF file as well
# SPDX-License-Identifier: MIT
"""The header of a shard makes it a file of another format: here a tiled TIFF, whose tiles are the inner chunks.

    [header: TIFF header, tags, offsets and sizes of tiles][inner chunks = tiles][index]

Any viewer of TIFF shows the image; zarr and all others read the array as always. The inner chunks are raw, so all have one
size, and each update under `write_strategy="in_place"` leaves them where the header says. (Another writer may move them: then
the header is gone or wrong, and the array still right.) `docs/user-bytes.md` explains.

    python examples/tiff_shard.py [folder]
"""

from __future__ import annotations

import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import shardcodec

SHAPE, TILE = (512, 768), (128, 256)
SHORT, LONG = 3, 4


def tiff_header(shape: tuple[int, int], tile: tuple[int, int], bits: int, first: int) -> bytes:
    """Make the head of an uncompressed, tiled TIFF whose tiles follow each other from offset `first` on."""
    n = (shape[0] // tile[0]) * (shape[1] // tile[1])
    nbytes = tile[0] * tile[1] * bits // 8
    n_tags = 12
    lists = 8 + 2 + 12 * n_tags + 4  # behind the tags: offsets of the tiles, then their sizes
    tags = [
        (256, LONG, 1, shape[1]),  # width
        (257, LONG, 1, shape[0]),  # length
        (258, SHORT, 1, bits),  # bits per sample
        (259, SHORT, 1, 1),  # no compression
        (262, SHORT, 1, 1),  # 0 is black
        (277, SHORT, 1, 1),  # one sample per pixel
        (284, SHORT, 1, 1),
        (322, LONG, 1, tile[1]),
        (323, LONG, 1, tile[0]),
        (324, LONG, n, lists if n > 1 else first),
        (325, LONG, n, lists + 4 * n if n > 1 else nbytes),
        (339, SHORT, 1, 1),  # unsigned integers
    ]
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags))
    head += b"".join(struct.pack("<HHII", *tag) for tag in tags) + struct.pack("<I", 0)
    return (
        head
        + struct.pack(f"<{n}I", *(first + i * nbytes for i in range(n)))
        + struct.pack(f"<{n}I", *[nbytes] * n)
    )


def read_tiff(path: Path) -> np.ndarray:
    """Read such a file as one who knows nothing of shards."""
    data = path.read_bytes()
    assert data[:4] == b"II*\0"
    (at,) = struct.unpack_from("<I", data, 4)
    (n_tags,) = struct.unpack_from("<H", data, at)
    tags = {}
    for i in range(n_tags):
        tag, kind, count = struct.unpack_from("<HHI", data, at + 2 + 12 * i)
        size = {SHORT: "H", LONG: "I"}[kind]
        place = at + 10 + 12 * i
        if struct.calcsize(f"<{count}{size}") > 4:
            (place,) = struct.unpack_from("<I", data, place)
        tags[tag] = struct.unpack_from(f"<{count}{size}", data, place)
    (width,), (length,), (tile_width,), (tile_length,) = (tags[tag] for tag in (256, 257, 322, 323))
    image = np.empty((length, width), dtype=f"<u{tags[258][0] // 8}")
    corners = [(y, x) for y in range(0, length, tile_length) for x in range(0, width, tile_width)]
    for (y, x), offset, nbytes in zip(corners, tags[324], tags[325], strict=True):
        tile = np.frombuffer(data, image.dtype, nbytes // image.itemsize, offset)
        image[y : y + tile_length, x : x + tile_width] = tile.reshape(tile_length, tile_width)
    return image


def main(folder: Path) -> None:
    """Make an array of one shard that is a TIFF, change it, and look at it both ways."""
    array = zarr.create_array(
        folder,
        shape=SHAPE,
        shards=SHAPE,
        chunks=TILE,
        dtype="u2",
        compressors=None,
        fill_value=0,
        overwrite=True,
    )
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    y, x = np.indices(SHAPE)
    image = (40 * y + 20 * x).astype("u2")

    first = len(tiff_header(SHAPE, TILE, 16, 0))
    path = folder / "c" / "0" / "0"
    with shardcodec.ShardWriter(path, spec, header=tiff_header(SHAPE, TILE, 16, first)) as writer:
        for i, j in np.ndindex(*spec.grid_shape):  # in this order TIFF counts its tiles
            tile = image[i * TILE[0] : (i + 1) * TILE[0], j * TILE[1] : (j + 1) * TILE[1]]
            writer.write_chunk((i, j), tile)
    assert (zarr.open_array(folder)[...] == image).all()
    assert (read_tiff(path) == image).all()
    print(f"{path}: {path.stat().st_size} bytes, a shard and a TIFF")

    with shardcodec.enable(write_strategy="in_place"):
        changed = zarr.open_array(folder)
        changed[100:140, 200:300] = image[100:140, 200:300] = 65535
    assert (zarr.open_array(folder)[...] == image).all()
    assert (read_tiff(path) == image).all()
    print("changed through zarr, and still both")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch) / "image.zarr")
