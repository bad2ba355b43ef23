# test_stream.py - shards written inner chunk by inner chunk
# SPDX-License-Identifier: MIT
"""`ShardWriter`: its layout, other readers of it, and what an aborted or killed writer leaves."""

from __future__ import annotations

import signal
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    ABSENT,
    LETTERS,
    RAW,
    WORDS,
    entries_of,
    files_below,
    letters,
    letters_spec,
    number_spec,
    numbers,
    run_python,
    text_of,
)
from hypothesis import given
from hypothesis import strategies as st
from reference import decode_shard
from shard_strategies import Layout, assert_same_bits, layouts, random_array
from spec_json import CRC, LITTLE, zstd
from workers import in_threads

import shardcodec
from shardcodec import ShardSpec, ShardWriter, native
from shardcodec.access.inner_chunks import coordinates

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["end", "start"])
CODECS = [LITTLE, zstd(), CRC]
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def word(i: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(WORDS[i], dtype=np.uint8).reshape(2, 2)


def pieces(
    array: np.ndarray[Any, Any], shape: tuple[int, ...]
) -> dict[tuple[int, ...], np.ndarray[Any, Any]]:
    grid = tuple(n // c for n, c in zip(array.shape, shape, strict=True))
    return {
        at: array[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, shape, strict=True))]
        for at in np.ndindex(*grid)
    }


# ---- layout


@LOCATIONS
def test_chunks_are_stored_in_the_order_of_the_calls(at_start: bool) -> None:
    writer = ShardWriter(None, letters_spec(at_start=at_start))
    for i in (2, 0, 3, 1):
        writer.write_chunk(PLACES[i], word(i))
    blob = writer.commit()
    assert text_of(shardcodec.decode(blob, letters_spec(at_start=at_start))) == LETTERS
    assert sorted(range(4), key=lambda i: entries_of(blob, 4, at_start=at_start)[i]) == [2, 0, 3, 1]


def test_batch_is_laid_out_in_the_chosen_order() -> None:
    writer = ShardWriter(None, letters_spec(), order="lexicographic")
    writer.write_chunks(PLACES[::-1], np.stack([word(i) for i in (3, 2, 1, 0)]))
    assert writer.commit() == letters()


@LOCATIONS
def test_header_footer_and_alignment_are_written(at_start: bool) -> None:
    spec = number_spec(CODECS, at_start=at_start)
    writer = ShardWriter(None, spec, header=b"HEAD" * 9, alignment=512)
    array = numbers()
    for at, chunk in pieces(array, (8, 8)).items():
        writer.write_chunk(at, chunk)
        assert writer.nbytes % 512 == 0
    writer.footer = b"the last word"
    blob = writer.commit()
    entries = entries_of(blob, 24, at_start=at_start)
    n = spec.index_nbytes
    assert all(offset % 512 == 0 for offset, _ in entries)
    body = blob[n:] if at_start else blob[:-n]
    assert body.startswith(b"HEAD" * 9)
    assert body.endswith(b"the last word")
    last = max(offset + nbytes for offset, nbytes in entries)
    assert blob[last + 56 : last + 69] == b"the last word"  # after the mark
    used = np.zeros(len(blob), dtype=bool)
    for offset, nbytes in entries:
        used[offset : offset + nbytes] = True
    first = n if at_start else 0
    used[first : first + 36] = used[last : last + 69] = True
    used[:n] |= at_start
    used[len(blob) - n :] |= not at_start
    assert not np.frombuffer(blob, dtype=np.uint8)[~used].any(), "a gap holds bytes other than zero"
    assert (shardcodec.decode(blob, spec) == array).all()


def test_chunks_not_given_or_empty_are_absent() -> None:
    writer = ShardWriter(None, letters_spec())
    writer.write_chunk((0, 1), word(1))
    writer.write_chunk((1, 1), np.full((2, 2), 46, dtype=np.uint8))
    assert [n for _, n in entries_of(writer.commit(), 4)] == [ABSENT, 4, ABSENT, ABSENT]
    writer = ShardWriter(None, letters_spec(), write_empty_chunks=True)
    writer.write_chunk((1, 1), np.full((2, 2), 46, dtype=np.uint8))
    assert [n for _, n in entries_of(writer.commit(), 4)] == [ABSENT, ABSENT, ABSENT, 4]


def test_shard_without_chunks_is_an_index() -> None:
    blob = ShardWriter(None, letters_spec(), footer=b"end").commit()
    assert blob[56:59] == b"end"  # after the mark
    assert (shardcodec.decode(blob, letters_spec()) == 46).all()


def test_encoded_chunks_are_stored_unchanged() -> None:
    spec = number_spec(CODECS)
    array = numbers()
    writer = ShardWriter(None, spec)
    for at, chunk in pieces(array, (8, 8)).items():
        writer.write_encoded(at, shardcodec.encode(chunk, spec.inner))
    assert (shardcodec.decode(writer.commit(), spec) == array).all()


@pytest.mark.parametrize("alignment", [1, 64])
def test_joined_chunks_are_stored_unchanged(alignment: int) -> None:
    spec = number_spec(CODECS)
    array = numbers()
    chunks = {at: shardcodec.encode(chunk, spec.inner) for at, chunk in pieces(array, (8, 8)).items()}
    writer = ShardWriter(None, spec, alignment=alignment, header=b"x")
    first, *others = chunks
    writer.write_encoded(first, chunks[first])
    writer.write_joined(others, [len(chunks[at]) for at in others], b"".join(chunks[at] for at in others))
    writer.write_joined([], [], b"")
    with pytest.raises(ValueError, match="second time"):
        writer.write_joined([first], [3], b"abc")
    blob = writer.commit()
    assert (shardcodec.decode(blob, spec) == array).all()
    shard = shardcodec.open_shard(blob, None, spec)
    assert shard.read_encoded(list(chunks)) == list(chunks.values())
    assert not (shard.index[..., 0] % alignment).any()


@pytest.mark.parametrize("sizes", [[4], [4, 5], [8, 0]])
def test_joined_chunks_of_wrong_sizes_are_refused(sizes: list[int]) -> None:
    writer = ShardWriter(None, letters_spec())
    with pytest.raises(ValueError, match="bytes"):
        writer.write_joined([(0, 0), (0, 1)], sizes, b"zeroone.")
    writer.write_joined([(0, 0), (0, 1)], [4, 4], b"zeroone.")


def test_other_byte_orders_and_types_are_cast() -> None:
    spec = number_spec(CODECS)
    array = numbers()
    writer = ShardWriter(None, spec)
    for i, (at, chunk) in enumerate(pieces(array, (8, 8)).items()):
        writer.write_chunk(
            at, [chunk, chunk.astype(">u2"), np.asfortranarray(chunk), chunk.astype("u1")][i % 4]
        )
    assert (shardcodec.decode(writer.commit(), spec) == array).all()


@given(layouts(), st.integers(0, 2**32 - 1), st.data())
def test_reference_reads_written_shards(layout: Layout, seed: int, data: st.DataObject) -> None:
    meta = layout.meta
    spec = ShardSpec.from_json(
        meta.configuration, shard_shape=meta.shape, dtype=meta.dtype, fill_value=meta.fill_value
    )
    array = random_array(meta, meta.shape, seed)
    parts = list(pieces(array, spec.chunk_shape).items())
    parts = data.draw(st.permutations(parts)) if len(parts) < 50 else parts
    writer = ShardWriter(
        None, spec, alignment=data.draw(st.sampled_from([1, 8, 64])), header=b"h" * (seed % 9)
    )
    half = len(parts) // 2
    for at, chunk in parts[:half]:
        writer.write_chunk(at, chunk)
    writer.write_chunks([at for at, _ in parts[half:]], np.array([chunk for _, chunk in parts[half:]]))
    assert_same_bits(decode_shard(writer.commit(), meta), array)


# ---- files


def test_nothing_is_visible_before_commit(tmp_path: Path) -> None:
    path = tmp_path / "c" / "0"
    writer = ShardWriter(path, letters_spec())
    for i, at in enumerate(PLACES):
        writer.write_chunk(at, word(i))
        assert files_below(tmp_path) == []
    assert writer.commit() is None
    assert path.read_bytes() == letters()
    assert files_below(tmp_path) == ["c/0"]


@pytest.mark.parametrize("durability", ["rename", "fsync"])
def test_old_shard_is_replaced_and_its_mode_kept(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with ShardWriter(path, letters_spec(), durability=durability) as writer:
        for i, at in enumerate(PLACES):
            writer.write_chunk(at, word(i))
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == letters()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert files_below(tmp_path) == ["shard"]


def test_exception_aborts_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"old")
    writer = ShardWriter(path, letters_spec())
    with pytest.raises(IndexError), writer:
        writer.write_chunks([(0, 0), (9, 9)], np.stack([word(0), word(1)]))
    assert path.read_bytes() == b"old"
    assert files_below(tmp_path) == ["shard"]
    with pytest.raises(ValueError, match="committed or aborted"):
        writer.write_chunk((0, 1), word(1))
    with pytest.raises(ValueError, match="committed or aborted"):
        writer.commit()
    writer.abort()


@LOCATIONS
def test_commit_is_repeated_after_a_lock_timeout(tmp_path: Path, at_start: bool) -> None:
    """Hours of streaming were lost because another process had locked the old shard for a minute."""
    path = tmp_path / "shard"
    path.write_bytes(b"old")
    with shardcodec.options(lock_timeout=0.01):
        writer = ShardWriter(path, letters_spec(at_start=at_start), footer=b"a footer that is longer")
    writer.write_chunk((0, 0), word(0))
    lock = native.load().FileLock()
    assert lock.try_acquire(str(path)) == "held"
    with pytest.raises(shardcodec.LockError):
        writer.commit()
    assert path.read_bytes() == b"old"
    lock.release()
    writer.write_chunk((0, 1), word(1))
    writer.footer = b"end"
    writer.commit()
    shard = shardcodec.open_shard(path, None, letters_spec(at_start=at_start))
    assert shard.footer == b"end"
    assert text_of(shard.read_region()) == f"{LETTERS[:9]} .... ...."
    assert files_below(tmp_path) == ["shard"]


def test_dropped_writer_leaves_no_file(tmp_path: Path) -> None:
    ShardWriter(tmp_path / "shard", letters_spec(), header=b"abc")
    assert files_below(tmp_path) == []


def test_folder_in_place_of_the_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    with pytest.raises(IsADirectoryError):
        ShardWriter(tmp_path / "shard", letters_spec())


def test_killed_writer_leaves_the_old_shard(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(letters())
    code = f"""
        import os, signal
        from shardcodec import ShardSpec, ShardWriter, native
        writer = ShardWriter({str(path)!r}, ShardSpec((4, 4), (2, 2), "uint8", 46, ["bytes"]))
        for at in {PLACES}:
            writer.write_encoded(at, b"gone")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_python(code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.read_bytes() == letters()


def test_failed_chunk_can_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed chunk once counted as written, so the shard could be committed without it."""

    class Full:
        def write(self, data: Any, offset: int) -> None:
            raise OSError(28, "No space left on device")

    writer = ShardWriter(tmp_path / "shard", letters_spec())
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_sink", Full())
        with pytest.raises(OSError, match="No space"):
            writer.write_chunk((0, 0), word(0))
        with pytest.raises(OSError, match="No space"):
            writer.write_encoded((0, 1), WORDS[1])
    writer.write_chunk((0, 0), word(0))
    writer.write_encoded((0, 1), WORDS[1])
    writer.commit()
    blob = (tmp_path / "shard").read_bytes()
    assert text_of(shardcodec.decode(blob, letters_spec())) == "zero one. .... ...."


@pytest.mark.threads
def test_threads_write_one_shard(tmp_path: Path) -> None:
    spec = number_spec(CODECS)
    array = numbers()
    parts = list(pieces(array, (8, 8)).items())

    def work(number: int) -> None:
        for at, chunk in parts[number::4]:
            writer.write_chunk(at, chunk)

    with ShardWriter(tmp_path / "shard", spec, threads=2) as writer:
        in_threads(4, work)
    assert (shardcodec.decode((tmp_path / "shard").read_bytes(), spec) == array).all()


# ---- arguments


def test_chunk_given_twice_is_refused() -> None:
    writer = ShardWriter(None, letters_spec())
    writer.write_chunk((0, 1), word(1))
    with pytest.raises(ValueError, match=r"inner chunk \(0, 1\) is given a second time"):
        writer.write_encoded((0, 1), b"abcd")
    with pytest.raises(ValueError, match=r"inner chunk \(0, 1\) is given a second time"):
        writer.write_chunks([(0, 0), (0, 1)], np.zeros((2, 2, 2), dtype=np.uint8))
    writer.write_chunk((0, 0), word(0))
    with pytest.raises(ValueError, match=r"inner chunk \(1, 1\) is given a second time"):
        writer.write_chunks([(1, 1), (1, 1)], np.zeros((2, 2, 2), dtype=np.uint8))
    assert text_of(shardcodec.decode(writer.commit(), letters_spec())) == "zero one. .... ...."


@pytest.mark.parametrize(
    ("coords", "error"),
    [
        ((0, 2), IndexError),
        ((-1, 0), IndexError),
        ((0,), IndexError),
        ((0, 0, 0), IndexError),
        ((0.0, 0.0), TypeError),
        ((True, False), TypeError),
        (("a", "b"), TypeError),
    ],
)
def test_invalid_positions_are_refused(coords: Any, error: type[Exception]) -> None:
    writer = ShardWriter(None, letters_spec())
    with pytest.raises(error):
        writer.write_chunk(coords, word(0))
    with pytest.raises(error):
        writer.write_encoded(coords, b"abcd")


def test_values_of_wrong_shape_or_type_are_refused() -> None:
    writer = ShardWriter(None, letters_spec())
    with pytest.raises(ValueError, match="shape"):
        writer.write_chunk((0, 0), np.zeros((2, 3), dtype=np.uint8))
    with pytest.raises(TypeError):
        writer.write_chunk((0, 0), np.zeros((2, 2), dtype=np.int32))
    with pytest.raises(ValueError, match="got 3"):
        writer.write_encoded((0, 0), b"abc")
    with pytest.raises(ValueError, match="shape"):
        writer.write_chunks(PLACES, np.zeros((3, 2, 2), dtype=np.uint8))
    with pytest.raises(IndexError):
        writer.write_chunks([(0, 0), (1,)], np.zeros((2, 2, 2), dtype=np.uint8))
    writer.write_chunks([], np.zeros((0, 2, 2), dtype=np.uint8))
    assert (shardcodec.decode(writer.commit(), letters_spec()) == 46).all()


@pytest.mark.parametrize("alignment", [0, 3, -4, 2**31, 4096.0, "512"])
def test_invalid_alignment_is_refused(alignment: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"alignment: expected a (power of two|whole number)"):
        ShardWriter(None, letters_spec(), alignment=alignment)


def test_codecs_after_sharding_are_refused() -> None:
    with pytest.raises(shardcodec.UnsupportedError):
        ShardWriter(None, ShardSpec((4, 4), (2, 2), "uint8", 0, RAW, after=["crc32c"]))


def test_rank_0_shard_has_one_chunk() -> None:
    assert coordinates(0, ()) == ()
    writer = ShardWriter(None, ShardSpec((), (), "uint8", 0, RAW))
    writer.write_chunk((), np.uint8(7))
    assert shardcodec.decode(writer.commit(), writer.spec) == 7
