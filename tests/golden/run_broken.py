# run_broken.py - read and update every broken shard in every way, with limited memory
# SPDX-License-Identifier: MIT
"""`tests/engine/test_broken.py` runs this program in a separate process: ``run_broken.py GROUP``.

A crash, a hang or a huge allocation must not stop the other tests, and must name the case: the name of each case is
printed before it runs. The address space is limited to little more than the imports take.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from golden import streams
from golden.make_broken import BAD_BYTES, BAD_ENTRY, FILL, WORDS, Layout, nested
from golden.sweeps import run_sweeps
from helpers import OtherMemoryStore, ours, zarrs_view
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

import shardcodec

HERE = Path(__file__).parent
KINDS = {name: getattr(shardcodec, name) for name in ("ShardFormatError", "ChecksumError", "CodecError")}
ROOM_NBYTES = 512 << 20
Json = dict[str, Any]
Failures = list[str]


def load() -> list[Json]:
    made: list[Json] = json.loads((HERE / "broken" / "cases.json").read_text())
    return made


def limit_memory() -> None:
    """Leave memory for the shards and for a few threads, but not for the sizes that a damaged shard claims."""
    if os.environ.get("SHARDCODEC_TEST_SANITIZER"):
        return  # a sanitizer itself reserves terabytes of address space
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# ---- one case, in many ways


def key_of(case: Json) -> str:
    return "/".join(["c", *["0"] * len(case["shape"])])


def metadata(case: Json) -> bytes:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": case["array"],
        "data_type": case.get("data_type", "uint8"),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": case["shape"]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": ord(FILL[0]),
        "codecs": [case["codec"]],
        "attributes": {},
    }
    return json.dumps(document).encode()


def put(store: Any, key: str, data: bytes | None) -> None:
    """Store or delete an object as the store does, without the event loop of zarr, which takes a millisecond for each call."""
    if isinstance(store, MemoryStore):
        store._store_dict.pop(key, None)
        if data is not None:
            store._store_dict[key] = default_buffer_prototype().buffer.from_bytes(data)
        return
    path = Path(store.root) / key
    path.unlink(missing_ok=True)
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def get(store: Any, key: str) -> bytes | None:
    if isinstance(store, MemoryStore):
        buffer = store._store_dict.get(key)
        return None if buffer is None else bytes(buffer.to_bytes())
    path = Path(store.root) / key
    return path.read_bytes() if path.exists() else None


class Ways:
    """Arrays over three kinds of stores, opened once for each metadata document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[bytes, dict[str, Any]] = {}
        self._direct: dict[int, Any] = {}

    def direct(self, array: Any) -> Any:
        """Return a handle on one of these arrays whose accesses do not go through zarr's event loop."""
        if id(array) not in self._direct:
            self._direct[id(array)] = shardcodec.attach(zarrs_view(array))
        return self._direct[id(array)]

    def of(self, case: Json) -> dict[str, Any]:
        document = metadata(case)
        if document not in self.arrays:
            stores = {
                "files": LocalStore(self.folder / str(len(self.arrays))),
                "memory": MemoryStore(),
                "requests": OtherMemoryStore(),
            }
            for store in stores.values():
                put(store, "zarr.json", document)
            self.arrays[document] = {name: ours(store) for name, store in stores.items()}
        return self.arrays[document]


def spec_of(case: Json) -> Any:
    document = case["codec"]["configuration"]
    return shardcodec.ShardSpec(
        tuple(case["shape"]),
        tuple(case["inner"]),
        "uint8",
        ord(FILL[0]),
        document["codecs"],
        document["index_codecs"],
        document["index_location"],
    )


Selection = tuple[slice, ...]


def boxes(case: Json) -> list[Selection]:
    """Return the box of each inner chunk in the array; for a nested shard, of each of its own inner chunks."""
    if not case["shape"]:
        return [()]
    corners = product((0, 2), (0, 2))
    edges = case["array"]
    return [(slice(r, min(r + 2, edges[0])), slice(c, min(c + 2, edges[1]))) for r, c in corners]


def text(outcome: str, box: Selection) -> bytes:
    """Return the elements of an inner chunk with this text that lie inside the box."""
    if not box:
        return outcome.encode()
    n = [max(0, s.stop - s.start) for s in box]
    return np.frombuffer(outcome.encode(), "u1").reshape(2, 2)[: n[0], : n[1]].tobytes()


def is_text(outcome: str) -> bool:
    return "Error" not in outcome


class Checker:
    """Runs operations and compares their results with the expected ones."""

    def __init__(self, case: Json, way: str, direct: Callable[[Any], Any] = lambda array: array) -> None:
        self.case, self.way, self.direct = case, way, direct
        self.is_nested = case["inner"] == [4, 4]
        self.failures: Failures = []
        self.before: list[Any] | None = None  # the results of the inner chunks before an update

    def note(self, what: str) -> None:
        self.failures.append(f"{self.case['name']}, {self.way}: {what}")

    def due_error(self, outcomes: list[str]) -> str:
        """Return the kind of the error of a read of these inner chunks together; empty if no error is expected."""
        if self.case["index"]:
            return str(self.case["index"])
        if self.case["refused"]:
            return "ShardFormatError"
        entries = [o for o in outcomes if o == BAD_ENTRY] if not self.is_nested else []
        errors = entries or [o for o in outcomes if not is_text(o)]
        return errors[0].partition(" ")[0] if errors else ""

    def run(self, what: str, due: str, work: Callable[[], Any], k: int | None = None) -> Any:
        """Run the operation and note a wrong outcome; return its result, or None after any error."""
        try:
            result = work()
        except shardcodec.ShardError as error:
            if not due:
                self.note(f"{what}: {error!r}")
            elif not isinstance(error, KINDS[due]):
                self.note(f"{what}: {type(error).__name__} instead of {due}: {error}")
            else:
                self.check_numbers(what, error, k)
            return None
        except Exception as error:
            self.note(f"{what}: {type(error).__name__}: {error}")
            return None
        if due:
            self.note(f"{what}: no {due}")
            return None
        return result

    def check_numbers(self, what: str, error: Any, k: int | None) -> None:
        numbers = {n: getattr(error, n) for n in self.case["numbers"]}
        if self.case["refused"] and k is not None:
            if numbers != self.case["numbers"]:
                self.note(f"{what}: {numbers} instead of {self.case['numbers']}")
        elif k is not None and self.case["chunks"].index(self.case["chunks"][k]) == k:
            if self.way == "requests" and error.actual == self.case["numbers"].get("nbytes"):
                pass  # the size of the object is unknown, but the length alone shows that the entry is wrong
            elif numbers != self.case["numbers"]:
                self.note(f"{what}: {numbers} instead of {self.case['numbers']}")
        if self.is_nested:
            if error.chunk_coords != (0, 0):
                self.note(f"{what}: the error names inner chunk {error.chunk_coords}")
        elif not self.case["index"] and k is not None:
            if self.case["refused"]:
                k = self.case["chunks"].index(BAD_ENTRY)
            grid = (2, 2) if self.case["shape"] else ()
            coords = tuple(int(i) for i in np.unravel_index(k, grid)) if grid else ()
            if error.chunk_coords != coords:
                self.note(f"{what}: the error names inner chunk {error.chunk_coords} instead of {coords}")
        if error.shard not in (key_of(self.case), ""):
            self.note(f"{what}: the error names the shard {error.shard!r}")

    # ---- reading

    def read(self, source: Callable[[Any], Any]) -> None:
        outcomes, where = self.case["chunks"], boxes(self.case)
        for k, (outcome, box) in enumerate(zip(outcomes, where, strict=True)):
            if box and any(s.stop <= s.start for s in box):
                continue
            due = self.due_error([outcome])
            got = self.run(f"inner chunk {k}", due, lambda box=box: source(box), k)
            if got is not None and np.asarray(got).tobytes() != text(outcome, box):
                self.note(f"inner chunk {k}: {np.asarray(got).tobytes()!r}")
            corner = tuple(s.start for s in box)
            got = self.run(f"element of {k}", due, lambda corner=corner: source(corner), k)
            if got is not None and np.asarray(got).tobytes() != text(outcome, box)[:1]:
                self.note(f"element of {k}: {np.asarray(got).tobytes()!r}")
        inside = [o for o, b in zip(outcomes, where, strict=True) if all(s.stop > s.start for s in b)]
        got = self.run("all", self.due_error(inside), lambda: source(...))
        if got is not None:
            for k, box in enumerate(where):
                if is_text(outcomes[k]) and np.asarray(got)[box].tobytes() != text(outcomes[k], box):
                    self.note(f"all, of which {k}: {np.asarray(got)[box].tobytes()!r}")
        if self.is_nested:
            right = np.block(
                [
                    [np.frombuffer(WORDS[2 * r + c].encode(), "u1").reshape(2, 2) for c in (0, 1)]
                    for r in (0, 1)
                ]
            )
            got = self.run("neighbour", "", lambda: source(np.s_[:, 4:]))
            if got is not None and np.asarray(got).tobytes() != right.tobytes():
                self.note(f"neighbour: {np.asarray(got).tobytes()!r}")

    # ---- updating

    def update(self, array: Any, shard: bytes | None) -> None:
        """Update each inner chunk as a whole, then one element of it."""
        if self.is_nested:
            self.update_box(array, shard, np.s_[1, 6], [], b"#")
            self.update_box(array, shard, np.s_[:, 4:], [], b"#" * 16)
            self.update_box(array, shard, np.s_[0, 0], self.case["chunks"], b"#")
            self.update_box(array, shard, np.s_[:, :4], [], b"#" * 16, heals=True)
            return
        outcomes, where = self.case["chunks"], boxes(self.case)
        for k, box in enumerate(where):
            if box and any(s.stop <= s.start for s in box):
                continue
            others = [o for i, o in enumerate(outcomes) if i != k and o == BAD_ENTRY]
            whole = not box or all(s.stop - s.start == 2 for s in box)
            n = len(text("####" if box else "#", box))
            mine = [] if whole else [outcomes[k]]
            covers_all = self.case["shape"] == []
            self.update_box(array, shard, box, [*others, *mine], b"#" * n, heals=covers_all)
            if box:
                entries = [o for o in outcomes if o == BAD_ENTRY]
                corner = tuple(s.start for s in box)
                self.update_box(array, shard, corner, [*entries, outcomes[k]], b"#")

    def update_box(
        self,
        array: Any,
        shard: bytes | None,
        box: Any,
        matter: list[str],
        value: bytes,
        *,
        heals: bool = False,
    ) -> None:
        """Update a box and compare everything with the expected result.

        `matter`: results of the inner chunks that must be valid for this update. `heals`: the old index is not needed.
        """
        what = f"update of {box}"
        key = key_of(self.case)
        put(array.store, key, shard)
        due = self.due_error(matter)
        if heals or (self.is_nested and not matter):
            due = ""
        if self.before is None:
            self.before = self.values(array)
        self.run(what, due, lambda: array.__setitem__(box, ord("#")))
        if due:
            if get(array.store, key) != shard:
                self.note(f"{what}: the object has changed")
            return
        got = self.run(f"{what}, read again", "", lambda: array[box])
        if got is not None and np.asarray(got).tobytes() != value:
            self.note(f"{what}: {np.asarray(got).tobytes()!r} instead of {value!r}")
        for k, (old, new) in enumerate(zip(self.before, self.values(array), strict=True)):
            if old != new and not self.is_inside(k, box):
                self.note(f"{what}: inner chunk {k} gave {old!r} and gives {new!r}")

    def is_inside(self, k: int, box: Any) -> bool:
        """Return True if the update touches this inner chunk."""
        cells = np.zeros(self.case["array"], bool)
        cells[box] = True
        where = boxes(self.case)[k]
        return bool(cells[where].any())

    def values(self, array: Any) -> list[Any]:
        """Return the result of every inner chunk now; errors by the name of their class."""

        looked_at = self.direct(array)

        def value(box: Selection) -> Any:
            try:
                return np.asarray(looked_at[box]).tobytes()
            except shardcodec.ShardError as error:
                return type(error).__name__

        return [value(box) for box in boxes(self.case)]


def run_cases(cases: list[Json], folder: Path) -> Iterator[str]:
    ways = Ways(folder)
    for case in cases:
        shard = None if case["shard"] is None else bytes.fromhex(case["shard"])
        for way, array in ways.of(case).items():
            print(case["name"], way, flush=True)
            checker = Checker(case, way, ways.direct)
            put(array.store, key_of(case), shard)
            checker.read(array.__getitem__)
            checker.update(array, shard)
            yield from checker.failures
        if shard is not None and case["array"] == case["shape"]:
            print(case["name"], "decode", flush=True)
            checker = Checker(case, "decode")
            spec = spec_of(case)
            checker.read(lambda selection: shardcodec.decode(shard, spec, selection))  # noqa: B023
            yield from checker.failures


# ---- cases that are not in the table


def run_huge(folder: Path) -> Iterator[str]:
    """Read 1000 bytes as a shard of 2^30 inner chunks: nothing of that size may be allocated (SC-15, SC-30)."""
    ways = Ways(folder)
    for layout in (Layout(shape=(2**30,), inner=(1,)), Layout(at_start=True, shape=(2**30,), inner=(1,))):
        case = {
            "name": "huge grid",
            "codec": layout.codec(),
            "shape": list(layout.shape),
            "inner": list(layout.inner),
            "array": list(layout.shape),
            "chunks": [],
            "index": BAD_BYTES,
            "numbers": {"nbytes": 1000, "limit": layout.index_nbytes},
            "refused": False,
        }
        for way, array in ways.of(case).items():
            print(case["name"], way, flush=True)
            checker = Checker(case, way)
            put(array.store, "c/0", bytes(1000))
            for selection in (5, np.s_[7:4000], np.s_[::1000]):
                checker.run("read", BAD_BYTES, lambda: array[selection])  # noqa: B023
                checker.run("update", BAD_BYTES, lambda: array.__setitem__(selection, 1))  # noqa: B023
            if get(array.store, "c/0") != bytes(1000):
                checker.note("the object has changed")
            yield from checker.failures
        checker = Checker(case, "decode")
        checker.run("read", BAD_BYTES, lambda: shardcodec.decode(bytes(1000), spec_of(case), 5))  # noqa: B023
        yield from checker.failures


def run_stream_updates(folder: Path) -> Iterator[str]:
    """Check that a damaged stream stops an update of its own inner chunk, and is carried by an update of the other."""
    ways = Ways(folder)
    layout = Layout(shape=(2,), inner=(1,))
    for made in streams.load():
        stream = bytes.fromhex(made["stream"])
        if made["name"].startswith("numcodecs"):
            continue  # their names differ between zarr versions
        codec = Layout(shape=(16, 32), inner=(16, 16)).codec()
        codec["configuration"]["codecs"] = [streams.LITTLE, made["codec"]]
        case = {"codec": codec, "shape": [16, 32], "array": [16, 32], "data_type": "int16"}
        array = ways.of(case)["files"]
        for what, broken in (
            ("cut", stream[: len(stream) // 2]),
            ("of 0 bytes", b""),
            ("of zeros", bytes(len(stream))),
        ):
            print(made["name"], what, flush=True)
            n = len(broken)
            blob = layout.shard(broken + stream, [(0, n), (n, len(stream))])
            put(array.store, "c/0/0", blob)
            try:
                array[3, 3] = 7
                yield f"{made['name']}, {what}: updated nevertheless"
            except (shardcodec.CodecError, shardcodec.ShardFormatError) as error:
                if error.chunk_coords != (0, 0) or get(array.store, "c/0/0") != blob:
                    yield f"{made['name']}, {what}: {error!r}, or the object has changed"
            array[3, 19] = 7
            expected = streams.content()
            expected[3, 3] = 7
            if array[:, 16:].tobytes() != expected.tobytes():
                yield f"{made['name']}, {what}: the other inner chunk is wrong after an update"
            if broken not in (get(array.store, "c/0/0") or b""):
                yield f"{made['name']}, {what}: was not carried unchanged"
            array[:, :16] = 9
            if (array[:, :16] != 9).any():
                yield f"{made['name']}, {what}: cannot be replaced"


def run_updates_of_files(cases: list[Json], folder: Path, strategy: str) -> Iterator[str]:
    """Check that the other write strategies change only the updated inner chunks of a damaged file, or nothing."""
    ways = Ways(folder)
    with shardcodec.options(write_strategy=strategy):
        for case in cases:
            if case["shard"] is None:
                continue
            print(case["name"], strategy, flush=True)
            checker = Checker(case, strategy, ways.direct)
            checker.update(ways.of(case)["files"], bytes.fromhex(case["shard"]))
            yield from checker.failures


def nested_cases() -> list[Json]:
    return [nested(case) for case in load() if case["shape"] == case["array"] == [4, 4]]


def half(first: int) -> list[Json]:
    """Return each second case: one half is updated with one strategy by day, and with the other one at night."""
    return [*load(), *nested_cases()][first::2]


GROUPS: dict[str, Callable[[Path], Iterator[str]]] = {
    "flat": lambda folder: run_cases(load(), folder),
    "nested": lambda folder: run_cases(nested_cases(), folder),
    "append": lambda folder: run_updates_of_files(half(0), folder, "append"),
    "in place": lambda folder: run_updates_of_files(half(1), folder, "in_place"),
    "append, other half": lambda folder: run_updates_of_files(half(1), folder, "append"),
    "in place, other half": lambda folder: run_updates_of_files(half(0), folder, "in_place"),
    "sweeps": run_sweeps,
    "huge": run_huge,
    "streams": streams.run_streams,
    "stream updates": run_stream_updates,
}


def main(group: str) -> int:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        warm = zarr.create_array(MemoryStore(), shape=(4,), chunks=(2,), dtype="u1")
        warm[...] = 1  # starts the event loop and its threads
        limit_memory()
        failures = list(GROUPS[group](Path(name)))
    print("\n".join(failures), file=sys.stderr)
    return len(failures) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
