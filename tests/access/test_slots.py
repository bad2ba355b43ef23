# test_slots.py - several threads and processes write one shard together
# SPDX-License-Identifier: MIT
"""`ShardWriter.create`, `join` and `commit`: no locks, no lost chunk, no litter after an abort."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    ABSENT,
    RAW,
    create,
    entries_of,
    files_below,
    letters,
    letters_spec,
    number_spec,
    numbers,
    run_checked,
    run_python,
    text_of,
    zarrs_view,
)
from spec_json import CRC, LITTLE, named
from workers import in_threads

import shardcodec
from shardcodec import ShardSpec, ShardWriter, native

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["end", "start"])
CODECS = [LITTLE, CRC]
ALL = [(0, 0), (0, 1), (1, 0), (1, 1)]


def cell(array: np.ndarray[Any, Any], at: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return array[at[0] * 8 : at[0] * 8 + 8, at[1] * 8 : at[1] * 8 + 8]


def write_as_rank(token: bytes, rank: int, n_ranks: int) -> list[list[int]]:
    """Write every n-th inner chunk in a separate process; return the positions that it reports."""
    code = f"""
        import json
        import numpy as np
        from shardcodec import ShardWriter
        array = np.random.default_rng(5).integers(1, 50, (32, 48), dtype=np.uint16)
        with ShardWriter.join({token!r}) as part:
            for i, (r, c) in enumerate(np.ndindex(*part.grid_shape)):
                if i % {n_ranks} == {rank}:
                    part.write_chunk((r, c), array[r * 8 : r * 8 + 8, c * 8 : c * 8 + 8])
        print(json.dumps(part.present.tolist()))
    """
    return json.loads(run_checked(code).stdout)  # type: ignore[no-any-return]


def names_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# ---- several writers


def test_processes_write_one_shard(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    at_start = True
    token = ShardWriter.create(path, number_spec(CODECS, at_start=at_start))
    assert files_below(tmp_path) != ["shard"]
    with ThreadPoolExecutor(2) as pool:
        present = list(pool.map(lambda rank: write_as_rank(token, rank, 2), range(2)))
    assert not path.exists()
    ShardWriter.join(token).commit(np.concatenate(present))
    assert names_below(tmp_path) == ["shard"]
    blob = path.read_bytes()
    assert (shardcodec.decode(blob, number_spec(CODECS, at_start=at_start)) == numbers()).all()
    assert all(offset % 4096 == 0 for offset, _ in entries_of(blob, 24, at_start=at_start))


@pytest.mark.threads
@pytest.mark.parametrize("durability", ["rename", "fsync"])
def test_threads_write_one_shard(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "new/folder/shard"
    token = ShardWriter.create(path, number_spec(CODECS), alignment=1, durability=durability)
    part = ShardWriter.join(token)
    array = numbers()

    def run(rank: int) -> None:
        mine = [at for i, at in enumerate(np.ndindex(4, 6)) if i % 4 == rank]
        part.write_chunks(mine, np.array([cell(array, at) for at in mine]))

    in_threads(4, run)
    part.commit(part.present)
    blob = path.read_bytes()
    assert len(blob) == 24 * 132 + number_spec(CODECS).index_nbytes
    assert (shardcodec.decode(blob, number_spec(CODECS)) == array).all()


def test_slots_follow_the_order(tmp_path: Path) -> None:
    token = ShardWriter.create(tmp_path / "s", letters_spec(), alignment=1, order="colexicographic")
    part = ShardWriter.join(pickle.loads(pickle.dumps(token)))
    for at, word in zip(ALL, (b"aaaa", b"bbbb", b"cccc", b"dddd"), strict=True):
        part.write_encoded(at, word)
    part.commit(ALL)
    assert (tmp_path / "s").read_bytes()[:16] == b"aaaaccccbbbbdddd"


@LOCATIONS
def test_header_and_footer_are_written(tmp_path: Path, at_start: bool) -> None:
    spec = letters_spec(at_start=at_start)
    token = ShardWriter.create(tmp_path / "s", spec, header=b"header", order="lexicographic")
    part = ShardWriter.join(token)
    part.write_encoded((0, 1), b"text")
    part.write_encoded((1, 0), b"gone")
    part.commit([(0, 1)], footer=b"footer")
    shard = shardcodec.open_shard(tmp_path / "s", None, spec)
    assert shard.header.rstrip(b"\0") == b"header"
    assert shard.footer == b"footer"
    assert text_of(shard.read_region()) == ".... text .... ...."
    assert shard.alignment == 4096
    assert b"gone" not in shard.tobytes()


def test_unfinished_file_is_not_listed_in_the_hierarchy(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    before = files_below(tmp_path / "a.zarr")
    spec = ShardSpec.from_metadata(array.metadata.to_dict())
    token = ShardWriter.create(tmp_path / "a.zarr/c/0/0", spec)
    assert files_below(tmp_path / "a.zarr") == before
    with ShardWriter.join(token) as part:
        part.write_chunk((0, 0), np.full((4, 3), 9, "int32"))
        assert (zarrs_view(array)[...] == 1).all()
    ShardWriter.join(token).commit(part.present)
    assert names_below(tmp_path / "a.zarr") == sorted(["c", "c/0", "c/1", *before])
    assert os.listdir(tmp_path) == ["a.zarr"]
    values = zarrs_view(array)[...]
    assert (values[:4, :3] == 9).all()
    assert (values[4:8, :12] == -1).all()


# ---- absent chunks, aborts and kills


def test_chunks_that_no_rank_declares_are_absent(tmp_path: Path) -> None:
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    with ShardWriter.join(token) as part:
        part.write_chunk((0, 0), np.full((2, 2), 46, np.uint8))
        part.write_chunk((0, 1), np.full((2, 2), 65, np.uint8))
        part.write_chunk((1, 1), np.full((2, 2), 66, np.uint8))
    assert part.present.tolist() == [[0, 1], [1, 1]]
    ShardWriter.join(token).commit([(1, 1)])
    entries = entries_of((tmp_path / "s").read_bytes(), 4)
    assert [n for _, n in entries] == [ABSENT, ABSENT, ABSENT, 4]
    assert ShardWriter.create(tmp_path / "t", letters_spec(), write_empty_chunks=True)


def test_shard_without_chunks_is_written(tmp_path: Path) -> None:
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    with ShardWriter.join(token) as part:
        pass
    assert part.present.shape == (0, 2)
    ShardWriter.join(token).commit(part.present)
    assert (shardcodec.decode((tmp_path / "s").read_bytes(), letters_spec()) == 46).all()


def test_abort_keeps_the_old_shard(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(letters())
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    other = ShardWriter.join(token)
    ShardWriter.join(token).abort()
    assert names_below(tmp_path) == ["s"]
    assert (tmp_path / "s").read_bytes() == letters()
    with pytest.raises(FileNotFoundError):
        ShardWriter.join(token)
    other.write_encoded((0, 0), b"lost")
    other.close()
    assert names_below(tmp_path) == ["s"]


def test_second_commit_is_refused(tmp_path: Path) -> None:
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    late = ShardWriter.join(token)
    ShardWriter.join(token).commit([])
    with pytest.raises(FileNotFoundError):
        ShardWriter.join(token)
    with pytest.raises(FileNotFoundError):
        late.commit([])
    with pytest.raises(ValueError, match="closed"):
        late.commit([])


def test_commit_is_repeated_after_a_lock_timeout(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"old")
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    with ShardWriter.join(token) as part:
        part.write_encoded((1, 1), b"kept")
    lock = native.load().FileLock()
    assert lock.try_acquire(str(tmp_path / "s")) == "held"
    with shardcodec.options(lock_timeout=0.01), pytest.raises(shardcodec.LockError):
        ShardWriter.join(token).commit(part.present)
    lock.release()
    assert (tmp_path / "s").read_bytes() == b"old"
    ShardWriter.join(token).commit(part.present)
    assert text_of(shardcodec.decode((tmp_path / "s").read_bytes(), letters_spec())) == ".... .... .... kept"


def test_killed_rank_leaves_its_chunks_absent(tmp_path: Path) -> None:
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    code = f"""
        import os, signal
        from shardcodec import ShardWriter
        part = ShardWriter.join({token!r})
        part.write_encoded((0, 0), b"lost")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_python(code).returncode == -9
    assert not (tmp_path / "s").exists()
    part = ShardWriter.join(token)
    part.write_encoded((1, 1), b"kept")
    part.commit(part.present)
    assert text_of(shardcodec.decode((tmp_path / "s").read_bytes(), letters_spec())) == ".... .... .... kept"


def test_litter_of_a_killed_creator_is_removed(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")
    code = f"""
        import os, signal
        from shardcodec import ShardSpec, ShardWriter, native
        spec = ShardSpec((8, 12), (4, 3), "int32", -1, [{LITTLE!r}])
        ShardWriter.create({str(tmp_path / "a.zarr/c/0/0")!r}, spec)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_python(code)
    assert done.returncode == -9, done.stderr
    assert len(os.listdir(tmp_path / ".a.zarr.shardcodec")) == 1
    spec = ShardSpec((8, 12), (4, 3), "int32", -1, [LITTLE])
    token = ShardWriter.create(tmp_path / "a.zarr/c/0/0", spec)
    ShardWriter.join(token).abort()
    assert os.listdir(tmp_path) == ["a.zarr"]


# ---- arguments


def test_chunk_given_twice_is_refused(tmp_path: Path) -> None:
    token = ShardWriter.create(tmp_path / "s", letters_spec())
    part, other = ShardWriter.join(token), ShardWriter.join(token)
    part.write_encoded((0, 1), b"aaaa")
    with pytest.raises(ValueError, match=r"\(0, 1\) is given a second time"):
        part.write_encoded((0, 1), b"bbbb")
    with pytest.raises(ValueError, match=r"\(1, 0\) is given a second time"):
        part.write_chunks([(1, 0), (1, 0)], np.zeros((2, 2, 2), np.uint8))
    other.write_encoded((0, 1), b"cccc")
    other.close()
    with pytest.raises(ValueError, match=r"\(0, 1\) was written by two ranks"):
        part.commit(np.concatenate([part.present, other.present]))
    part.commit(part.present)


def test_chunks_of_wrong_size_or_position_are_refused(tmp_path: Path) -> None:
    part = ShardWriter.join(ShardWriter.create(tmp_path / "s", letters_spec()))
    with pytest.raises(ValueError, match="got 5"):
        part.write_encoded((0, 0), b"aaaaa")
    with pytest.raises(IndexError):
        part.write_encoded((0, 2), b"aaaa")
    with pytest.raises(IndexError):
        part.write_chunk((0,), np.zeros((2, 2), np.uint8))
    with pytest.raises(ValueError, match="shape"):
        part.write_chunk((0, 0), np.zeros((2, 2, 1), np.uint8))
    with pytest.raises(IndexError):
        part.commit([(4, 4)])
    assert part.present.size == 0
    part.close()
    part.close()
    with pytest.raises(ValueError, match="closed"):
        part.write_encoded((0, 0), b"aaaa")
    assert part.spec == letters_spec()


def test_codecs_of_variable_size_and_bad_alignment_are_refused(tmp_path: Path) -> None:
    gzip = [*RAW, named("gzip", level=1)]
    for spec in (letters_spec(codecs=gzip), ShardSpec((4, 4), (2, 2), "u1", 0, RAW, after=["crc32c"])):
        with pytest.raises(shardcodec.UnsupportedError, match="fixed size"):
            ShardWriter.create(tmp_path / "s", spec)
    with pytest.raises(ValueError, match="power of two"):
        ShardWriter.create(tmp_path / "s", letters_spec(), alignment=100)
    assert names_below(tmp_path) == []


@pytest.mark.parametrize("token", [b"", b"{}", b"[]", b'{"format": "other"}', b"\xff\xfe", "text", None, 7])
def test_invalid_token_is_refused(token: Any) -> None:
    with pytest.raises(ValueError, match="expected a token"):
        ShardWriter.join(token)
