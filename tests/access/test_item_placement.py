# test_item_placement.py - the three steps of a write: look, place, execute
# SPDX-License-Identifier: MIT
"""`place_item` is arithmetic: the tests make the records that `look` would return, and need no file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import entries_of, letters, letters_spec

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.placement import Facts
from shardcodec.access.records import MISSING, ONTO, Elements, OldObject
from shardcodec.access.regions import Box, whole
from shardcodec.access.user_bytes import Extents, HeaderFooter, UserBytes
from shardcodec.access.write import EncodedItem, WriteItem, write_objects
from shardcodec.access.write_look import look
from shardcodec.access.write_place import place_item
from shardcodec.options import resolve
from shardcodec.storage.file_locks import NO_FILE, hold
from shardcodec.storage.file_systems import OpenFile
from shardcodec.storage.store import OwnBytes

CHAIN = compiled(letters_spec().chain)
ONE_CHUNK = Box((0, 0), (2, 2), None, (0, 0))
ELEMENTS = Elements(np.full((2, 2), ord("x"), "u1"), (0, 1), write_empty=False)
FILE = OpenFile(7, 84, 1, 2)
FACTS = Facts(
    index_nbytes=68,
    index_at_start=False,
    index_checksum=True,
    new_nbytes=4,
    n_links=1,
    appends=True,
    direct=False,
    sync=False,
)


def options(**chosen: Any) -> Any:
    return resolve(argument=chosen)


def item(path: str | None = "c/0", box: Any = ONE_CHUNK, **fields: Any) -> WriteItem:
    return WriteItem(CHAIN, path, None, box, "c/0", **fields)


def old_shard(source: Any = 7, facts: Facts | None = None, user: HeaderFooter | None = None) -> OldObject:
    return OldObject(
        source, len(letters()), FILE, np.array(entries_of(letters(), 4), "u8"), item().change(), user, facts
    )


def planned(old: Any, **chosen: Any) -> Any:
    return place_item(item(), old, options(**chosen), ELEMENTS)


def test_missing_object_must_still_be_missing_at_commit() -> None:
    assert planned(MISSING).old is MISSING
    assert place_item(item(path=None), MISSING, options(), ELEMENTS).old is None
    assert planned(None).old is None


def test_object_of_one_chunk_is_compared_with_what_was_seen() -> None:
    old = OldObject(7, 84, FILE)
    plan = planned(old)
    assert (plan.old, plan.placement, plan.way) == (old, None, None)


def test_shard_without_facts_is_replaced() -> None:
    plan = planned(old_shard(), write_strategy="append")
    assert plan.way is None
    assert plan.old.file == FILE
    assert plan.placement.carries.tolist() == [[0, 16, 0]]


@pytest.mark.parametrize(
    ("facts", "strategy", "way"),
    [
        ({}, "append", "leap"),
        ({"direct": True}, "append", "direct"),
        ({"n_links": 2}, "append", None),
        ({}, "in_place", "in_place+leap"),
        ({"appends": False}, "in_place", "in_place"),
        ({"is_exclusive": False}, "in_place", None),
        ({"is_exclusive": False}, "append", "leap"),
    ],
)
def test_facts_decide_the_way(facts: dict[str, Any], strategy: str, way: str | None) -> None:
    plan = planned(old_shard(facts=FACTS._replace(**facts)), write_strategy=strategy)
    assert plan.way == way
    assert (len(plan.placement.carries) == 0) == (way is not None)


def test_only_own_memory_is_reused() -> None:
    own = OwnBytes.of_size(len(letters()))
    own[:] = np.frombuffer(letters(), "u1")
    assert planned(old_shard(own)).way == ONTO
    assert planned(old_shard(bytes(own))).way is None


def test_header_and_footer_of_a_replaced_shard_are_carried() -> None:
    blob = letters()
    user = HeaderFooter(Extents(0, 0, 16, len(blob) - 68), b"", 512, mark_at=16)
    assert planned(old_shard(user=user)).user is user
    encoded = EncodedItem(CHAIN, "c/0", None, {0: b"wxyz"}, "c/0", user=UserBytes(footer=b"foot"))
    plan = place_item(encoded, old_shard(user=user), options(), None)
    assert bytes(plan.chunks.footer) == b"foot"
    assert (plan.user.alignment, bytes(plan.user.footer)) == (512, b"foot")


def test_inner_chunks_in_the_index_leave_no_header() -> None:
    encoded = EncodedItem(CHAIN, "c/0", None, {0: b"wxyz"}, "c/0", user=UserBytes())
    with pytest.raises(shardcodec.UnsupportedError, match="lie in the index"):
        place_item(encoded, old_shard(), options(), None)


def test_complete_item_is_not_looked_at(tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    with contextlib.ExitStack() as files:
        items = [
            item(path, whole((4, 4))),
            item(path, whole((4, 4)), old_file=NO_FILE),
            item(path),
            EncodedItem(CHAIN, path, None, {}, "c/0", complete=True),
        ]
        assert look(items, options(), files) == [None, MISSING, MISSING, None]


def test_flags_are_not_allocated_for_an_object_without_room_for_its_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metadata may claim a billion inner chunks for an object of a few bytes."""
    monkeypatch.setattr(WriteItem, "change", lambda _: pytest.fail("flags for all inner chunks"))
    short = item(None)._replace(old=b"short")
    with contextlib.ExitStack() as files, pytest.raises(shardcodec.ShardFormatError, match="at least 68"):
        look([short], options(), files)


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_change_by_a_program_without_locks_is_noticed_from_the_lock_on(tmp_path: Path, strategy: str) -> None:
    """Also before the index is read: the state that is compared before the commit is that under the lock."""
    path = tmp_path / "shard"
    path.write_bytes(letters())
    with hold([str(path)], options()) as (file,):
        with path.open("r+b") as other:
            other.write(b"?")
        changed = path.read_bytes()
        with pytest.raises(shardcodec.ShardError, match="changed") as raised:
            write_objects([item(str(path), old_file=file)], options(write_strategy=strategy), ELEMENTS)
    assert raised.value.changed
    assert path.read_bytes() == changed


def test_result_names_appeared_objects_and_states_of_files(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_bytes(letters())
    items = [item(str(there), old_file=NO_FILE), item(str(absent), old_file=NO_FILE)]
    result = write_objects(items, options(), ELEMENTS, retry_appeared=False)
    assert result.objects == [None, None]
    assert result.appeared == [0]
    assert there.read_bytes() == letters()
    outcome = write_objects([EncodedItem(CHAIN, str(there), None, {0: b"wxyz"}, "c/0")], options())
    shard = native.load().OpenShard(CHAIN, str(there))
    assert outcome.states == {0: shard.state}
    shard.close()
