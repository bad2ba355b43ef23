# test_keys.py - keys of chunks and shards
# SPDX-License-Identifier: MIT
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardcodec
from shardcodec.errors import SpecError
from shardcodec.transformer.keys import ArrayKeys, KeyLayout, as_path

LAYOUTS = [
    KeyLayout.v3(),
    KeyLayout.v3("."),
    KeyLayout.v2(),
    KeyLayout.v2("/"),
    KeyLayout.draft_2022(),
    KeyLayout.draft_2022("."),
]


@pytest.mark.parametrize(
    ("layout", "chunk", "shard", "scalar"),
    [
        (KeyLayout.v3(), "a/c/96/18", "a/c/3/9", "a/c"),
        (KeyLayout.v3("."), "a/c.96.18", "a/c.3.9", "a/c"),
        (KeyLayout.v2(), "a/96.18", "a/3.9", "a/0"),
        (KeyLayout.v2("/"), "a/96/18", "a/3/9", "a/0"),
        (KeyLayout.draft_2022(), "data/root/a/c96/18", "data/root/a/c3/9", "data/root/a/c0"),
        (KeyLayout.draft_2022("."), "data/root/a/c96.18", "data/root/a/c3.9", "data/root/a/c0"),
    ],
)
def test_example_of_the_draft(layout: KeyLayout, chunk: str, shard: str, scalar: str) -> None:
    keys = ArrayKeys(layout, "a", (32, 2))
    assert keys.locate(chunk) == (shard, 0)
    assert keys.locate(layout.key("a", (127, 19))) == (shard, 63)
    assert keys.locate(layout.key("a", (96, 20))) == (layout.key("a", (3, 10)), 0)
    assert keys.shard(shard) == (3, 9)
    assert keys.chunk((3, 9), 63) == layout.key("a", (127, 19))
    assert ArrayKeys(layout, "a", ()).locate(scalar) == (scalar, 0)


@pytest.mark.parametrize(
    "key",
    [
        "a/zarr.json",
        "a/c",
        "a/c/1",
        "a/c/1/2/3",
        "a/c/1/02",
        "a/c/1/-2",
        "a/c/1/",
        "a/c//1",
        "a/c/1/٣",
        "a/c/1/x",
        "b/a/c/1/2",
        "ab/c/1/2",
        "c/1/2",
        "",
        "a/c/1/" + "9" * 5000,
    ],
)
def test_other_keys_are_not_chunk_keys(key: str) -> None:
    assert ArrayKeys(KeyLayout.v3(), "a", (2, 2)).locate(key) is None


@given(st.sampled_from(LAYOUTS), st.data())
def test_keys_and_positions_round_trip(layout: KeyLayout, data: st.DataObject) -> None:
    per_shard = data.draw(st.lists(st.integers(1, 5), max_size=3))
    path = data.draw(st.sampled_from(["", "a", "a/b"]))
    keys = ArrayKeys(layout, path, per_shard)
    shard = tuple(data.draw(st.integers(0, 30)) for _ in per_shard)
    chunks = [keys.chunk(shard, position) for position in range(keys.n_chunks)]
    assert len(set(chunks)) == keys.n_chunks
    assert [keys.locate(chunk) for chunk in chunks] == [
        (layout.key(path, shard), position) for position in range(keys.n_chunks)
    ]
    corner = [range(s * n, s * n + n) for s, n in zip(shard, per_shard, strict=True)]
    assert chunks == [layout.key(path, coords) for coords in itertools.product(*corner)]
    for cut in range(len(chunks[0]) + 1):
        prefix = chunks[0][:cut]
        fixed = keys.fixed(prefix)
        assert fixed is not None
        below = [chunk for chunk in chunks if chunk.startswith(prefix)]
        positions = set(keys.positions_below(fixed))
        assert layout.key(path, shard).startswith(keys.shards_below(fixed)) or not below
        assert {keys.locate(chunk)[1] for chunk in below} <= positions  # type: ignore[index]


@pytest.mark.parametrize(
    "layout",
    [make(separator) for make in (KeyLayout.v3, KeyLayout.v2, KeyLayout.draft_2022) for separator in "/."],
)
def test_prefixes_that_no_chunk_key_has_fix_nothing(layout: KeyLayout) -> None:
    """The text after the last separator was not checked: `c.1/` seemed to be a prefix of every chunk."""
    keys = ArrayKeys(layout, "a", (2, 2))
    for name in (
        "x",
        "x/",
        "01",
        "1x",
        "-1",
        f"0{layout.separator}1{layout.separator}",
        f"1{'/.'.replace(layout.separator, '')}",
    ):
        assert keys.fixed(keys.region + name) is None
    assert keys.fixed(keys.region + f"1{layout.separator}") == (1,)
    assert keys.fixed(keys.region + "1") == keys.fixed(keys.region) == keys.fixed("") == ()


@pytest.mark.parametrize("per_shard", [(0,), (2, -1), ("2",), 2, (1.5,)])
def test_chunks_per_shard_must_be_positive_integers(per_shard: object) -> None:
    with pytest.raises(SpecError, match="chunks_per_shard"):
        ArrayKeys(KeyLayout.v3(), "", per_shard)  # type: ignore[arg-type]


def test_wrong_paths_and_separators_raise() -> None:
    assert as_path("/a/b/") == "a/b"
    assert as_path("") == ""
    for path in ("a//b", "a/./b", ".."):
        with pytest.raises(ValueError, match="path"):
            as_path(path)
    with pytest.raises(ValueError, match="separator"):
        KeyLayout.draft_2022("-")


def test_package_imports_transformer_on_first_access() -> None:
    assert shardcodec.transformer.KeyLayout is KeyLayout
    with pytest.raises(AttributeError, match="nonsense"):
        _ = shardcodec.nonsense
