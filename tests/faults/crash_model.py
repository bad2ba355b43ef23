# crash_model.py - a file system in memory: which files may be there after a kill or a power cut
# SPDX-License-Identifier: MIT
"""Replays the record of an operation (crash_record.c) and makes the states that a crash may leave.

A record is a start, which counts as durable, and a list of events. After each number of events the machine may stop. What it leaves
depends on the model:

kill         The process is killed, the system goes on. All events so far have happened, and of a write that the kill
             interrupts a part that ends between two pages. A direct write is never cut.
ext4, xfs    Power cut. Changes of names reach the disk in their order: some first ones of them, at least those up to the last
             one that concerns a file or folder that was synced later (fdatasync: up to the creation of the file). Pages of
             4096 bytes that no sync of their file followed are written in any order, each in any of its states since the
             last sync, and sectors of 512 bytes of one page in different states. A file has any size that it had since
             its last sync, or one between two such sizes at the end of a page. New bytes that are not written are zero. The
             size that a direct write makes is on the disk only if its bytes are. The two names have the same rules here; they
             differ in what shardcodec does on them.
btrfs        As ext4, but pages are never torn (they are not overwritten), and a sync makes only those names durable that
             concern the synced file, until they are changed again, or that are in the synced folder. Of the others some first
             ones are. A change that concerns a file or folder which was synced at any time is in the log, and a later sync of any
             file writes the log: such a change may be there before others, with its old and its new name apart; and if the file
             was not synced before, the file that it replaces may be gone without it.
pessimistic  Names are durable after a sync of their folder alone, and any subset of the other changes of names is, also of
             a rename between two folders one half. Sizes and pages as in ext4, and no rule for direct writes.

In all models a file that was synced has its bytes and its size, unless it is synced once more after it has lost its last name; a
change of names within one folder happens as a whole, and a sector of 512 bytes is written as a whole. Times, modes, owners and
attributes are not modelled, nor are writes of other processes, errors of the disk, or a disk that acknowledges a sync that it has
not done. test_real_cuts.py compares the models with the file systems.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["MODELS", "Record", "State", "choices", "final_state", "read_record", "snapshot"]

PAGE, SECTOR = 4096, 512
MODELS = ("kill", "ext4", "xfs", "btrfs", "pessimistic")
CREATE, WRITE, SIZE, SYNC, LINK, UNLINK, RENAME, EXCHANGE, MARK = range(1, 10)
_ENTRY = struct.Struct("=IIQQQQQIIII")
ROOT = 0

Names = dict[tuple[int, str], int]
Part = tuple[int, str, int | None]  # in this folder this name leads to this file, or to none


class Event(NamedTuple):
    """One call. Files are numbers of the record, not inodes: an inode may be used again."""

    kind: int
    file: int = -1
    offset: int = 0
    data: bytes = b""
    is_direct: bool = False
    is_data_sync: bool = False
    parts: tuple[Part, ...] = ()
    touched: frozenset[int] = frozenset()


@dataclass
class Record:
    """The files at the start, by number, with None for folders; their names; and what happened then."""

    contents: dict[int, bytes | None]
    names: Names
    inodes: dict[int, int]
    events: list[Event] = field(default_factory=list)

    def acknowledged(self, n_events: int) -> int:
        """How many steps of the operation had returned when this number of events had happened."""
        return sum(event.kind == MARK for event in self.events[:n_events])


class State(NamedTuple):
    """The files after a crash, by path, and their bytes by number."""

    paths: Mapping[str, int]
    contents: Mapping[int, bytes]


# ---- the record


def snapshot(folder: Path) -> Record:
    """Return a record without events of the files that are in a folder now."""
    record = Record({ROOT: None}, {}, {ROOT: folder.stat().st_ino})
    numbers = {folder: ROOT}
    by_inode: dict[int, int] = {}
    for path in sorted(folder.rglob("*")):
        inode = path.stat().st_ino
        number = by_inode.setdefault(inode, len(record.contents))
        numbers[path] = number
        record.names[numbers[path.parent], path.name] = number
        record.contents[number] = None if path.is_dir() else path.read_bytes()
        record.inodes[number] = inode
    return record


def read_record(start: Record, log: bytes) -> Record:
    """Return the record of a log that began at `start`. Calls on files elsewhere are left out."""
    reader = LogReader(start)
    at = 0
    while at < len(log):
        entry = _ENTRY.unpack_from(log, at)
        at += _ENTRY.size
        strings = []
        for nbytes in entry[7:10]:
            strings.append(log[at : at + nbytes])
            at += nbytes
        reader.add(*entry[:7], strings[0].decode(), strings[1].decode(), strings[2])
    return reader.record


class LogReader:
    def __init__(self, start: Record) -> None:
        self.record = Record(dict(start.contents), dict(start.names), dict(start.inodes))
        self.known = {inode: number for number, inode in start.inodes.items()}
        self.names = dict(start.names)
        self.n_files = len(start.contents)

    def add(
        self,
        kind: int,
        flag: int,
        inode: int,
        other: int,
        folder_inode: int,
        to_inode: int,
        offset: int,
        name: str,
        to_name: str,
        data: bytes,
    ) -> None:
        events, known = self.record.events, self.known
        if kind == MARK:
            events.append(Event(MARK))
            return
        if kind in (WRITE, SIZE, SYNC):
            if inode in known:
                is_direct, is_data_sync = kind == WRITE and bool(flag), kind == SYNC and bool(flag)
                events.append(Event(kind, known[inode], offset, data, is_direct, is_data_sync))
            return
        folder, to_folder = known.get(folder_inode), known.get(to_inode)
        if kind == CREATE and (folder is not None or other in known):
            known[inode] = self.n_files
            self.record.inodes[self.n_files] = inode
            self.record.contents[self.n_files] = None if flag else b""
            self.n_files += 1
        if kind == CREATE and folder is None and inode in known:
            events.append(Event(CREATE, known[inode], touched=frozenset({known[inode]})))
        elif folder is not None or to_folder is not None:
            self._add_names(kind, known.get(inode), known.get(other), folder, to_folder, name, to_name)

    def _add_names(
        self,
        kind: int,
        file: int | None,
        other: int | None,
        folder: int | None,
        to_folder: int | None,
        name: str,
        to_name: str,
    ) -> None:
        parts: list[Part] = []
        if folder is not None:
            left = {CREATE: file, LINK: file, EXCHANGE: other}.get(kind)
            parts.append((folder, name, left))
        if to_folder is not None:
            parts.append((to_folder, to_name, file))
        touched = {folder, to_folder, file, other}
        for part in parts:
            touched.add(self.names.get(part[:2]))
        apply(self.names, parts)
        number = -1 if file is None else file
        whole = frozenset(one for one in touched if one is not None)
        self.record.events.append(Event(kind, number, parts=tuple(parts), touched=whole))


def apply(names: Names, parts: Iterator[Part] | list[Part] | tuple[Part, ...]) -> None:
    for folder, name, file in parts:
        if file is None:
            names.pop((folder, name), None)
        else:
            names[folder, name] = file


def _after(content: bytes, event: Event) -> bytes:
    """Return the bytes of a file after a write or a change of its size."""
    if event.kind == SIZE:
        return content[: event.offset].ljust(event.offset, b"\0")
    end = event.offset + len(event.data)
    return content[: event.offset].ljust(event.offset, b"\0") + event.data + content[end:]


def state_of(names: Names, contents: Mapping[int, bytes | None]) -> State:
    """Return what can be reached from the folder of the record."""
    below: dict[int, list[tuple[str, int]]] = {}
    for (folder, name), file in names.items():
        below.setdefault(folder, []).append((name, file))
    paths, found = {}, {}
    waiting = [(ROOT, "")]
    while waiting:
        folder, prefix = waiting.pop()
        for name, file in below.get(folder, ()):
            content = contents[file]
            if content is None:
                waiting.append((file, f"{prefix}{name}/"))
            else:
                paths[prefix + name] = file
                found[file] = content
    return State(paths, found)


def final_state(record: Record) -> State:
    """Return the state after all events: the caller compares it with the files, so a call that was not recorded shows."""
    return Replay(record, len(record.events)).present()


# ---- the replay


class Replay:
    """A record up to a number of events: what is there, and for each file its states since its last sync."""

    def __init__(self, record: Record, n_events: int) -> None:
        self.record, self.n_events = record, n_events
        self.steps: dict[int, list[tuple[bytes, Event | None]]] = {
            file: [(content, None)] for file, content in record.contents.items() if content is not None
        }
        self.changes: list[tuple[int, Event]] = []  # of names
        self.lost: set[int] = set()  # numbers of syncs of files that had no name any more
        names, had_names = dict(record.names), set(record.names.values())
        history = {file: list(steps) for file, steps in self.steps.items()}
        for at, event in enumerate(record.events[:n_events]):
            if event.kind in (WRITE, SIZE):
                steps = self.steps[event.file]
                steps.append((_after(steps[-1][0], event), event))
                history[event.file].append(steps[-1])
            elif event.kind == SYNC and event.file in self.steps:
                if event.file not in had_names or event.file in names.values():
                    self.steps[event.file] = [(self.steps[event.file][-1][0], None)]
                else:  # btrfs may then forget its earlier syncs, too
                    self.lost.add(at)
                    self.steps[event.file] = list(history[event.file])
            elif event.parts:
                self.changes.append((at, event))
                apply(names, event.parts)
                had_names.update(names.values())

    def present(self) -> State:
        names = dict(self.record.names)
        for _, event in self.changes:
            apply(names, event.parts)
        return state_of(names, self._contents({file: steps[-1][0] for file, steps in self.steps.items()}))

    def _contents(self, of_files: Mapping[int, bytes]) -> dict[int, bytes | None]:
        return {**self.record.contents, **of_files}

    def interrupted(self) -> Iterator[State]:
        """Yield the states in which the next call, a write, was cut between two pages."""
        events = self.record.events
        event = events[self.n_events] if self.n_events < len(events) else None
        if event is None or event.kind != WRITE or event.is_direct:
            return
        before = self.steps[event.file][-1][0]
        now = self.present()
        for cut in range(PAGE - event.offset % PAGE, len(event.data), PAGE):
            part = _after(before, event._replace(data=event.data[:cut]))
            yield State(
                now.paths, {f: part if f == event.file else content for f, content in now.contents.items()}
            )

    # ---- names

    def names_of(self, model: str, chance: random.Random) -> Names:
        names = dict(self.record.names)
        if model == "pessimistic":
            for at, event in self.changes:
                for folder in dict.fromkeys(part[0] for part in event.parts):
                    if self.is_synced(at, folder) or chance.random() < 0.5:
                        apply(names, [part for part in event.parts if part[0] == folder])
            return names
        least = self.first_open() if model != "btrfs" else 0
        cut = chance.randint(least, len(self.changes))
        if model != "btrfs":
            for _, event in self.changes[:cut]:
                apply(names, event.parts)
            return names
        for is_durable, part in self.btrfs_parts(cut):
            if is_durable or chance.random() < 0.5:
                apply(names, [part])
        return names

    def btrfs_parts(self, cut: int) -> Iterator[tuple[bool, Part]]:
        """Yield what changes of names may have done on the disk, and whether that is certain, if the first `cut` changes are there."""
        names = dict(self.record.names)
        for number, (at, event) in enumerate(self.changes):
            of_file = any(
                self.is_synced(at, file) for file in event.touched - {part[0] for part in event.parts}
            )
            may_be_logged = self.may_be_logged(event)
            for part in event.parts:
                is_durable = number < cut or self.is_synced(at, part[0])
                if not is_durable and may_be_logged and self._may_vanish(at, event, part, names):
                    yield False, (*part[:2], None)
                is_durable = is_durable or (of_file and not self._is_changed_again(number, part))
                if is_durable or of_file or may_be_logged:
                    yield is_durable, part
            apply(names, event.parts)

    def _may_vanish(self, at: int, event: Event, part: Part, names: Names) -> bool:
        """True if a file that was not synced takes a name: the log then loses the old file of this name, and has no new one."""
        was_synced = any(one.kind == SYNC and one.file == event.file for one in self.record.events[:at])
        return part[2] is not None and part[:2] in names and not was_synced

    def _is_changed_again(self, number: int, part: Part) -> bool:
        return any(part[:2] == later[:2] for _, event in self.changes[number + 1 :] for later in event.parts)

    def may_be_logged(self, event: Event) -> bool:
        """True if a file or folder of this event was synced at any time: btrfs then logs it, and may write it before others."""
        events = self.record.events[: self.n_events]
        return any(one.kind == SYNC and one.file in event.touched for one in events)

    def is_synced(self, at: int, file: int) -> bool:
        """True if a sync of this file or folder followed an event."""
        return any(
            event.kind == SYNC and event.file == file and not event.is_data_sync and number not in self.lost
            for number, event in enumerate(self.record.events[at + 1 : self.n_events], at + 1)
        )

    def concerns_a_sync(self, at: int, event: Event) -> bool:
        """True if a file or folder that this event concerns was synced later."""
        return any(self.is_synced(at, file) for file in event.touched)

    def first_open(self) -> int:
        """Return how many changes of names are on the disk with a journal that is written in order."""
        for number in range(len(self.changes), 0, -1):
            at, event = self.changes[number - 1]
            if self.concerns_a_sync(at, event):
                return number
        return 0

    # ---- bytes

    def content_of(self, file: int, model: str, chance: random.Random) -> bytes:
        """Return bytes that the disk may have."""
        steps = self.steps[file]
        if len(steps) == 1:
            return steps[0][0]
        latest = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))  # the share of pages in their last state
        number, nbytes = self._size_of(steps, chance)
        pages = []
        for at in range(0, nbytes, PAGE):
            oldest = oldest_state(steps, number, at) if model != "pessimistic" else 0
            known = self._states_of_page(steps[oldest:], at)
            chosen = known[-1] if chance.random() < latest else chance.choice(known)
            if model != "btrfs" and len(known) > 1 and chance.random() < 0.2:
                chosen = _torn(chosen, known, chance)
            pages.append(chosen)
        return b"".join(pages)[:nbytes]

    def _size_of(self, steps: list[tuple[bytes, Event | None]], chance: random.Random) -> tuple[int, int]:
        """Return the number of a state, and a size that the file has on the disk if that state has set it."""
        sizes = [len(content) for content, _ in steps]
        number = chance.randrange(len(sizes))
        nbytes = sizes[number]
        event = steps[number][1]
        if number and event and event.kind == WRITE and not event.is_direct and chance.random() < 0.5:
            least = min(sizes[number - 1], nbytes)
            nbytes = min(nbytes, -(-chance.randint(least, nbytes) // PAGE) * PAGE)
        return number, nbytes

    @staticmethod
    def _states_of_page(steps: list[tuple[bytes, Event | None]], at: int) -> list[bytes]:
        return list(dict.fromkeys(content[at : at + PAGE].ljust(PAGE, b"\0") for content, _ in steps))


def _torn(page: bytes, known: list[bytes], chance: random.Random) -> bytes:
    other = chance.choice(known)
    mask = chance.getrandbits(PAGE // SECTOR)
    sectors = range(PAGE // SECTOR)
    return b"".join((other if mask >> k & 1 else page)[k * SECTOR : (k + 1) * SECTOR] for k in sectors)


def oldest_state(steps: list[tuple[bytes, Event | None]], number: int, at: int) -> int:
    """Return the first state that a page may have if the file has the size of state `number`.

    A size that a direct write has made is on the disk only if its bytes are, and so is each later size.
    """
    oldest = 0
    for step, ((before, _), (_, event)) in enumerate(pairwise(steps[: number + 1]), 1):
        if event and event.is_direct:
            end = event.offset + len(event.data)
            oldest = step if len(before) < end and event.offset <= at < end else oldest
    return oldest


def choices(record: Record, n_events: int, model: str, seed: int, first: int = 0) -> Iterator[State]:
    """Yield states that this number of events may leave, from number `first` on: without an end, but for "kill".

    They are the same for each record of the same calls and the same seed.
    """
    replay = Replay(record, n_events)
    if model == "kill":
        yield from islice(chain([replay.present()], replay.interrupted()), first, None)
        return
    for number in count(first):
        chance = random.Random(f"{seed}/{model}/{n_events}/{number}")
        names = replay.names_of(model, chance)
        contents = {file: replay.content_of(file, model, chance) for file in replay.steps}
        yield state_of(names, replay._contents(contents))
