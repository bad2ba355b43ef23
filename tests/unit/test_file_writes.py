# test_file_writes.py - what a write does to files: names, modes, links, litter, and the bytes it keeps
# SPDX-License-Identifier: MIT
"""Writes through zarr's LocalStore, looked at from outside, in the folder."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    assemble,
    bits,
    chunk_bytes,
    create,
    entries_of,
    files_below,
    letters,
    ours,
    random_array,
    shard_path,
    text_of,
    zarrs_view,
)
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import shardcodec

ZSTD = zarr.codecs.ZstdCodec(level=1)
DURABILITY = pytest.mark.parametrize("durability", ["rename", "fsync"])


def letters_array(folder: Path, *, at_start: bool = False, checksums: bool = False, blob: bytes = b"") -> Any:
    """An array of one shard of 4 x 4 letters, stored as given."""
    inner = [BytesCodec(), Crc32cCodec()] if checksums else [BytesCodec()]
    codec = ShardingCodec(chunk_shape=(2, 2), codecs=inner, index_location="start" if at_start else "end")
    zarr.create_array(
        folder, shape=(4, 4), chunks=(4, 4), dtype="uint8", fill_value=46, serializer=codec, compressors=None
    )
    if blob:
        (folder / "c/0").mkdir(parents=True)
        (folder / "c/0/0").write_bytes(blob)
    return ours(folder)


# ---- names


@DURABILITY
def test_first_write_makes_folders_and_nothing_else(tmp_path: Path, durability: str) -> None:
    array = create(tmp_path / "a")
    with shardcodec.options(durability=durability):
        array[:8, :12] = 5
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]
    assert (zarrs_view(array)[:8, :12] == 5).all()


@DURABILITY
def test_rewriting_leaves_no_litter(tmp_path: Path, durability: str) -> None:
    array = create(tmp_path / "a")
    with shardcodec.options(durability=durability):
        for value in range(4):
            array[...] = value
            array[3:5, 2:20] = value + 10
    assert files_below(tmp_path / "a") == ["c/0/0", "c/0/1", "c/1/0", "c/1/1", "zarr.json"]


async def test_zarrs_listings_show_only_what_is_stored(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    array = create(group.store, name="a")
    array[...] = 1
    array[1, 1] = 2
    names = sorted([name async for name in group.store.list()])
    assert names == ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1", "a/zarr.json", "zarr.json"]
    assert sorted([name async for name in group.store.list_dir("a")]) == ["c", "zarr.json"]
    assert sorted([name async for name in group.store.list_dir("a/c/0")]) == ["0", "1"]


def test_members_of_a_group_are_its_arrays(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    create(group.store, name="a")[...] = 1
    assert [name for name, _ in group.members(max_depth=None)] == ["a"]


def test_an_emptied_shard_is_deleted(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 5
    array[:8, :12] = -1
    assert files_below(tmp_path / "a") == ["c/0/1", "c/1/0", "c/1/1", "zarr.json"]
    array[8:12, :12] = -1
    assert shard_path(array, "c/1/0").exists()
    array[12:, :12] = -1
    assert not shard_path(array, "c/1/0").exists()


def test_writing_nothing_over_nothing_makes_nothing(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = -1
    array[0, 0] = -1
    assert files_below(tmp_path / "a") == ["zarr.json"]
    assert not (tmp_path / "a/c").exists()


def test_write_empty_chunks_keeps_the_shard(tmp_path: Path) -> None:
    array = create(tmp_path / "a", config={"write_empty_chunks": True})
    array[:4, :3] = -1
    entries = entries_of(shard_path(array).read_bytes(), 8)
    assert [n for _, n in entries] == [48] + [ABSENT] * 7
    assert (zarrs_view(array)[...] == -1).all()


# ---- modes and links


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o2660])
@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0]])
def test_mode_bits_are_kept(tmp_path: Path, mode: int, selection: Any) -> None:
    array = create(tmp_path / "a")
    array[:8, :12] = 5
    shard_path(array).chmod(mode)
    array[selection] = 6
    assert stat.S_IMODE(shard_path(array).stat().st_mode) == mode
    assert (array[selection] == 6).all()


def test_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    before = os.umask(0o027)
    try:
        array[:8, :12] = 5
    finally:
        os.umask(before)
    assert stat.S_IMODE(shard_path(array).stat().st_mode) == 0o640


@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0]])
def test_a_symbolic_link_is_followed(tmp_path: Path, selection: Any) -> None:
    array = create(tmp_path / "a")
    array[:8, :12] = 5
    target = tmp_path / "elsewhere/shard"
    target.parent.mkdir()
    shutil.move(shard_path(array), target)
    shard_path(array).symlink_to(target)
    array[selection] = 6
    assert shard_path(array).is_symlink()
    assert files_below(tmp_path / "elsewhere") == ["shard"]
    assert (zarrs_view(array)[selection] == 6).all()
    assert bits(array[7, 3:]) == bits(zarrs_view(array)[7, 3:])


def test_a_relative_link_in_a_linked_folder_is_followed(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 5
    shutil.move(tmp_path / "a/c/0", tmp_path / "zero")
    (tmp_path / "a/c/0").symlink_to("../../zero")
    shutil.move(tmp_path / "zero/0", tmp_path / "zero/shard")
    (tmp_path / "zero/0").symlink_to("shard")
    array[0, 0] = 6
    assert (tmp_path / "zero/0").is_symlink() and (tmp_path / "a/c/0").is_symlink()
    assert files_below(tmp_path / "zero") == ["0", "1", "shard"]
    assert zarrs_view(array)[0, 0] == 6 and zarrs_view(array)[0, 1] == 5


def test_a_dangling_link_is_an_absent_shard(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    shard_path(array).parent.mkdir(parents=True)
    shard_path(array).symlink_to(tmp_path / "nowhere/at/all")
    assert (array[...] == -1).all()
    array[0, 0] = 6
    assert array[0, 0] == 6 and zarrs_view(array)[0, 0] == 6


def test_another_hard_link_keeps_the_old_bytes(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[:8, :12] = 5
    backup = tmp_path / "backup"
    os.link(shard_path(array), backup)
    before = backup.read_bytes()
    array[0, 0] = 6
    array[:8, :12] = 7
    array[:8, :12] = -1
    assert backup.read_bytes() == before
    assert not shard_path(array).exists()


# ---- what stands in the way


@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0]])
def test_a_folder_in_the_place_of_a_shard(tmp_path: Path, selection: Any) -> None:
    array = create(tmp_path / "a")
    shard_path(array).mkdir(parents=True)
    (shard_path(array) / "precious").write_text("data")
    with pytest.raises(OSError) as raised:
        array[selection] = 6
    assert raised.value.errno == errno.EISDIR
    assert files_below(tmp_path / "a") == ["c/0/0/precious", "zarr.json"]


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    (tmp_path / "a/c").write_text("in the way")
    assert (array[...] == -1).all()
    with pytest.raises(OSError) as raised:
        array[0, 0] = 6
    assert raised.value.errno == errno.ENOTDIR
    assert files_below(tmp_path / "a") == ["c", "zarr.json"]


@contextmanager
def nobody() -> Iterator[Path]:
    """A folder of a user who is not root, and that user: permissions do not bind root."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() != 0:
        yield folder
    else:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)
    subprocess.run(["chmod", "-R", "u+rwX", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0], np.s_[...]])
def test_a_folder_that_is_read_only(selection: Any) -> None:
    with nobody() as folder:
        array = create(folder / "a")
        array[:8, :12] = 5
        before = shard_path(array).read_bytes()
        shard_path(array).parent.chmod(0o555)
        with pytest.raises(PermissionError) as raised:
            array[selection] = 6
        assert raised.value.filename == str(shard_path(array))
        with pytest.raises(PermissionError):
            array[:8, :12] = -1
        assert shard_path(array).read_bytes() == before
        assert files_below(folder / "a") == ["c/0/0", "zarr.json"]


def test_a_shard_that_may_not_be_read() -> None:
    with nobody() as folder:
        array = create(folder / "a")
        array[:8, :12] = 5
        shard_path(array).chmod(0)
        with pytest.raises(PermissionError):
            array[0, 0]
        with pytest.raises(PermissionError):
            array[0, 0] = 6
        array[:8, :12] = 7  # a full overwrite does not read
        assert stat.S_IMODE(shard_path(array).stat().st_mode) == 0
        shard_path(array).chmod(0o600)
        assert (array[:8, :12] == 7).all()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not possible here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("whole", [True, False])
def test_no_space_left(tiny: Path, whole: bool) -> None:
    array = create(tiny / "a", shape=(256, 256), shards=(256, 256), chunks=(64, 64), dtype="u2", fill_value=0)
    values = random_array((256, 256), "u2")
    array[...] = values
    before = shard_path(array).read_bytes()
    with pytest.raises(OSError) as raised:
        array[... if whole else np.s_[:200]] = 3
    assert raised.value.errno == errno.ENOSPC
    assert shard_path(array).read_bytes() == before
    assert files_below(tiny / "a") == ["c/0/0", "zarr.json"]
    used = shutil.disk_usage(tiny).used
    array[...] = 0
    assert shutil.disk_usage(tiny).used < used
    array[...] = 3
    assert (array[...] == 3).all()


# ---- what a partial write keeps


@pytest.mark.parametrize("at_start", [False, True])
def test_untouched_chunks_stay_where_they_are(tmp_path: Path, at_start: bool) -> None:
    array = letters_array(tmp_path / "a", at_start=at_start, blob=letters(at_start=at_start))
    old = shard_path(array).read_bytes()
    array[:2, 2:] = 49
    new = shard_path(array).read_bytes()
    before, after = entries_of(old, 4, at_start=at_start), entries_of(new, 4, at_start=at_start)
    assert after == before  # the new chunk is as large as the old one, and takes its place
    assert len(new) == len(old)
    assert text_of(zarrs_view(array)[...]) == "zero 1111 two. tres"


def test_part_of_a_chunk_is_merged_with_the_rest(tmp_path: Path) -> None:
    array = letters_array(tmp_path / "a", blob=letters())
    array[1:3, 1:3] = 95
    assert text_of(zarrs_view(array)[...]) == "zer_ on_. t_o. _res"


def test_encoded_bytes_are_copied_and_not_encoded_again(tmp_path: Path) -> None:
    """What is carried has a skippable frame in front, which no encoder of ours would make."""
    inner = [BytesCodec(), zarr.codecs.ZstdCodec(level=1)]
    codec = ShardingCodec(chunk_shape=(2, 2), codecs=inner)
    zarr.create_array(
        tmp_path,
        shape=(4, 4),
        chunks=(4, 4),
        dtype="uint8",
        fill_value=46,
        serializer=codec,
        compressors=None,
    )
    array = ours(tmp_path)
    array[...] = random_array((4, 4), "u1")
    blob = shard_path(array).read_bytes()
    frame = chunk_bytes(blob, entries_of(blob, 4)[0])
    odd = b"\x50\x2a\x4d\x18\x03\x00\x00\x00odd" + frame
    shard_path(array).write_bytes(
        assemble(odd + frame, [(0, len(odd)), (len(odd), len(frame)), *[(ABSENT, ABSENT)] * 2])
    )
    array[3, 3] = 1
    new = shard_path(array).read_bytes()
    entries = entries_of(new, 4)
    assert chunk_bytes(new, entries[0]) == odd
    assert chunk_bytes(new, entries[1]) == frame


def test_headers_and_gaps_stay_while_chunks_keep_their_places(tmp_path: Path) -> None:
    blob = assemble(b"HEADzeroone.two.tresGAP.", [(4, 4), (8, 4), (12, 4), (16, 4)])
    array = letters_array(tmp_path / "a", blob=blob)
    array[:2, :2] = 49
    new = shard_path(array).read_bytes()
    assert new[:24] == b"HEAD1111one.two.tresGAP."
    assert entries_of(new, 4) == [(4, 4), (8, 4), (12, 4), (16, 4)]


def test_a_chunk_of_another_size_goes_behind_all_others(tmp_path: Path) -> None:
    """And the old bytes stay: a reader that holds the old index finds the old chunk."""
    array = create(tmp_path / "a", shape=(4, 4), shards=(4, 4), chunks=(2, 2), compressors=ZSTD)
    array[...] = random_array((4, 4), array.dtype)
    old = shard_path(array).read_bytes()
    array[:2, :2] = 1
    new = shard_path(array).read_bytes()
    before, after = entries_of(old, 4), entries_of(new, 4)
    assert after[1:] == before[1:]
    assert after[0][0] == len(old) - 68
    assert new[: len(old) - 68] == old[:-68]


def test_shared_ranges_survive_an_update_of_one(tmp_path: Path) -> None:
    blob = assemble(b"zero", [(0, 4)] * 4)
    array = letters_array(tmp_path / "a", blob=blob)
    array[0, 0] = 90
    assert text_of(zarrs_view(array)[...]) == "Zero zero zero zero"


def test_more_than_half_dead_is_packed(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shape=(4, 4), shards=(4, 4), chunks=(2, 2), compressors=ZSTD)
    expected = random_array((4, 4), array.dtype)
    array[...] = expected
    whole = shard_path(array).stat().st_size
    sizes = []
    for seed in range(40):
        array[:2, :2] = expected[:2, :2] = random_array((2, 2), array.dtype, seed)
        sizes.append(shard_path(array).stat().st_size)
    assert max(sizes) <= 3 * whole
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert (zarrs_view(array)[...] == expected).all()


def test_emptied_chunks_are_packed_away(tmp_path: Path) -> None:
    array = letters_array(tmp_path / "a", blob=letters())
    array[:2] = 46
    array[2:, :2] = 46
    assert shard_path(array).read_bytes() == assemble(b"tres", [*[(ABSENT, ABSENT)] * 3, (0, 4)])


# ---- damage stops an update

N = 16  # bytes of four words


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([(0, 4), (4, 4), (8, 4), (N, 4)], "into the index"),
        ([(0, 4), (4, 4), (8, 4), (N + 68, 4)], "behind the end"),
        ([(0, 4), (4, 4), (8, 4), (2**64 - 4, 8)], "wrap-around"),
        ([(0, 4), (4, 4), (8, 4), (ABSENT, 4)], "half empty"),
        ([(0, 4), (4, 4), (8, 4), (0, ABSENT)], "half empty"),
    ],
)
def test_a_damaged_entry_that_would_be_carried(
    tmp_path: Path, entries: list[tuple[int, int]], what: str
) -> None:
    blob = assemble(b"zeroone.two.tres", entries)
    array = letters_array(tmp_path / "a", blob=blob)
    inode = shard_path(array).stat().st_ino
    with pytest.raises(shardcodec.ShardFormatError) as raised:
        array[0, 0] = 90
    assert raised.value.shard == "c/0/0"
    assert raised.value.chunk_coords == (1, 1)
    assert shard_path(array).read_bytes() == blob
    assert shard_path(array).stat().st_ino == inode
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]


@pytest.mark.parametrize("blob", [b"", b"short", letters()[:-1], letters()[:-1] + b"\0"])
def test_an_index_that_cannot_be_read(tmp_path: Path, blob: bytes) -> None:
    array = letters_array(tmp_path / "a", blob=blob or b"x")
    shard_path(array).write_bytes(blob)
    with pytest.raises((shardcodec.ShardFormatError, shardcodec.ChecksumError)) as raised:
        array[0, 0] = 90
    assert raised.value.shard == "c/0/0"
    assert shard_path(array).read_bytes() == blob
    array[...] = 90  # a full overwrite heals
    assert (zarrs_view(array)[...] == 90).all()


def test_a_damaged_chunk_that_would_be_merged(tmp_path: Path) -> None:
    blob = bytearray(letters(checksums=True))
    blob[9] ^= 1
    array = letters_array(tmp_path / "a", checksums=True, blob=bytes(blob))
    with pytest.raises(shardcodec.ChecksumError) as raised:
        array[0, 3] = 90
    assert raised.value.chunk_coords == (0, 1)
    assert shard_path(array).read_bytes() == bytes(blob)
    array[:2, 2:] = 90  # replaced whole, so what it held does not matter
    assert text_of(zarrs_view(array)[...]) == "zero ZZZZ two. tres"


def test_unsharded_chunks_keep_their_rest_or_stop(tmp_path: Path) -> None:
    array = create(tmp_path / "a", shards=None, chunks=(8, 12), compressors=[Crc32cCodec()])
    array[...] = 5
    array[2, 3] = 6
    assert zarrs_view(array)[2, 3] == 6 and (zarrs_view(array)[3:] == 5).all()
    blob = bytearray(shard_path(array).read_bytes())
    blob[7] ^= 1
    shard_path(array).write_bytes(blob)
    with pytest.raises(shardcodec.ChecksumError):
        array[0, 0] = 7
    assert shard_path(array).read_bytes() == bytes(blob)


def test_nested_shards_are_merged_whole(tmp_path: Path) -> None:
    inner = ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec(), Crc32cCodec()])
    codec = ShardingCodec(chunk_shape=(4, 4), codecs=[inner])
    zarr.create_array(
        tmp_path, shape=(8, 8), chunks=(8, 8), dtype="uint8", fill_value=0, serializer=codec, compressors=None
    )
    array = ours(tmp_path)
    expected = random_array((8, 8), "uint8")
    array[...] = expected
    array[3:5, 1:7] = expected[3:5, 1:7] = 200
    assert bits(zarrs_view(array)[...]) == bits(expected)
