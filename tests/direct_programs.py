# direct_programs.py - random programs of selections and assignments on two equal arrays, one of them with the option `direct`
# SPDX-License-Identifier: MIT
"""Each step is done on both arrays, which are on the package's pipeline: results, errors, warnings and stored objects are equal.

A program is a function of its seed and its number alone. `Program.run` ends at its first difference, and tells the steps before it.

    python tests/direct_programs.py --seed 1 --count 1000
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import math
import pickle
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.core.dtype import VariableLengthBytes
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore, ZipStore

TESTS = Path(__file__).resolve().parent
if str(TESTS) not in sys.path:  # a program of its own
    sys.path.insert(0, str(TESTS))

from helpers import (  # noqa: E402
    ZARR_IS_31,
    OtherMemoryStore,
    caches_of,
    keys_of,
    memory_object_store,
    object_of,
    put_object,
    quiet,
)
from random_hierarchies import FLOATS, NUMBERS, STRUCT, TEXTS, TIMES, elements_of, layout_of  # noqa: E402
from random_selections import KINDS, METHODS, Choice, Shape, keywords, value_for  # noqa: E402

import shardcodec  # noqa: E402

MOST_ELEMENTS = 150
DTYPES = (*NUMBERS, *FLOATS, *TIMES, *TEXTS, "str", STRUCT, STRUCT)
# without `strict`, which refuses steps of zarr's index arrays that the direct access takes as slices
OPTIONS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"threads": 1}, {"index_cache": 0})
# Bounds of the cache of inner chunks, which one of both arrays has: none or one of a few inner chunks fits into the small ones.
CACHES = (0, 500, 1500, 1 << 20)
GRAIN_NS = 10_000_000  # longer than a tick of the file system's clock


# ---- the two arrays


def new_fsspec(place: Path) -> Any:
    """Return a store in the memory of fsspec, whose objects every file system of the process has."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # type: ignore[import-untyped]
    from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

    return FsspecStore(AsyncFileSystemWrapper(MemoryFileSystem()), path=str(place))


STORES: dict[str, Callable[[Path], Any]] = {
    "local": LocalStore,
    "memory": lambda _: MemoryStore(),
    "other": lambda _: OtherMemoryStore(),
    "wrapped": lambda place: WrapperStore(LocalStore(place)),
    "zip": lambda place: ZipStore(place, mode="w"),
}
STORES |= {"obstore": lambda _: memory_object_store()} if importlib.util.find_spec("obstore") else {}
STORES |= {"fsspec": new_fsspec} if importlib.util.find_spec("fsspec") else {}
WEIGHTS = {"local": 4, "memory": 4}


class Layout(NamedTuple):
    """An array as it was written at first."""

    dtype: Any
    path: str
    objects: dict[str, bytes]
    about: str

    @property
    def orders(self) -> str:
        """Memory orders to draw from; in order F zarr 3.1 itself stores texts of any length at wrong places."""
        return "C" if ZARR_IS_31 and self.dtype in ("str", "bytes") else "CF"


def new_layout(pick: random.Random) -> Layout:
    """Write a random array into memory; without codecs and shards if zarr cannot have it or cannot write it."""
    dtype: Any = pick.choice(DTYPES)
    extents = (0, 1, 1, 2, 3, 5, 7, 9, 17, 40)
    shape = tuple(pick.choice(extents) for _ in range(pick.choice((0, 1, 1, 2, 2, 2, 3, 4))))
    while math.prod(shape) > MOST_ELEMENTS:
        shape = tuple(pick.choice(extents) for _ in shape)
    zarr_format: Any = pick.choice((2, 3, 3, 3))
    how = layout_of(pick, zarr_format, dtype, shape)
    given: Any = VariableLengthBytes() if dtype == "bytes" else dtype if dtype == "str" else np.dtype(dtype)
    if zarr_format == 2 and isinstance(given, np.dtype) and pick.random() < 0.3:
        given = given.newbyteorder(">")
    if dtype in (*NUMBERS, *FLOATS, *TIMES) and pick.random() < 0.6:
        how["fill_value"] = elements_of(pick, dtype, (1,))[0]
    path = pick.choice(("", "a", "g/a"))
    values = elements_of(pick, dtype, shape)
    arguments = {"shape": shape, "dtype": given, "zarr_format": zarr_format, "name": path or None}
    plain = {name: how[name] for name in ("chunks", "fill_value", "chunk_key_encoding") if name in how}
    is_empty = pick.random() < 0.1
    for each in (how, plain):
        store = MemoryStore()
        try:
            array = zarr.create_array(store, **arguments, **each)
            if not is_empty:
                array[...] = values
            break
        except Exception:
            is_empty = is_empty or each is plain
    objects = {key: object_of(store, key) or b"" for key in keys_of(store)}
    return Layout(dtype, path, objects, f"{arguments} {each}")


class Side:
    """One of both arrays, in a store of its own."""

    def __init__(self, place: Path, kind: str, objects: dict[str, bytes], options: dict[str, Any]) -> None:
        self.place = place
        self.options = {**options, "direct": place.name == "direct"}
        self.cache = 0
        self.store = STORES[kind](place)
        for key, data in objects.items():
            put_object(self.store, key, data)
        if kind == "zip":
            self.store.close()
            self.store = ZipStore(place, mode="r", read_only=True)
        self.array: Any = None

    @contextmanager
    def used(self, settings: dict[str, Any]) -> Iterator[list[Any]]:
        """Set the option, and collect warnings."""
        with (
            warnings.catch_warnings(record=True) as caught,
            zarr.config.set(settings),
            shardcodec.enable(children=False, cache=self.cache, **self.options),
        ):
            warnings.simplefilter("always")
            yield caught

    def text(self, told: object) -> str:
        """Return a text without the place of the store and without addresses."""
        text = str(told).replace(str(self.place), "PLACE")
        return re.sub(r"memory:(?://)?\d+|(?<=at )0x[0-9a-f]+", "ADDRESS", text)

    def outcome(self, work: Callable[[Side], Any]) -> Any:
        """Return the facts of a result, or of an error."""
        try:
            return facts(work(self))
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            return "error", type(error).__qualname__, self.text(error), self.text(notes)

    def do(self, step: Step, settings: dict[str, Any]) -> Any:
        """Return the outcome of a step, and the warnings."""
        with self.used(settings) as caught:
            outcome = self.outcome(step.work)
        # Python shows an equal warning once
        return outcome, sorted({(one.category.__name__, self.text(one.message)) for one in caught})

    def objects(self) -> dict[str, bytes]:
        return {key: object_of(self.store, key) or b"" for key in keys_of(self.store)}


def facts(found: Any) -> Any:
    """Return all that a caller sees of a result."""
    if type(found) in (list, tuple):
        return [facts(one) for one in found]
    if not isinstance(found, np.ndarray | np.generic):
        return type(found).__name__, repr(found)
    kind = "numpy", type(found).__name__, f"{found.dtype!r} {found.dtype.byteorder}", found.shape
    is_text = found.dtype.hasobject or found.dtype.kind == "T"
    bits = repr(found.tolist()) if is_text else found.tobytes().hex()
    # the strides of an axis of one element say nothing
    strides = [step for step, n in zip(found.strides, found.shape, strict=True) if n > 1 and found.size]
    flags = found.flags
    return *kind, flags.c_contiguous, flags.f_contiguous, flags.writeable, strides, bits


# ---- programs


class Step(NamedTuple):
    """An action on each side, and its text for a reader."""

    kind: str
    text: str
    work: Callable[[Side], Any]


def told(*parts: object) -> str:
    return " ".join(" ".join(map(repr, parts)).split())


class Program:
    """A program; `kinds` counts its steps by kind."""

    def __init__(self, folder: Path, seed: str, number: int) -> None:
        self.random = pick = random.Random(f"{seed}/{number}")
        self.layout = new_layout(pick)
        cache = pick.choice(CACHES)
        kinds = [kind for kind in STORES for _ in range(WEIGHTS.get(kind, 1))]
        self.kind = "local" if cache and pick.random() < 0.5 else pick.choice(kinds)  # where it is used
        options = pick.choice(OPTIONS)
        self.direct, self.usual = (
            Side(folder / name, self.kind, self.layout.objects, options) for name in ("direct", "usual")
        )
        pick.choice((self.direct, self.usual)).cache = cache
        # of several requests at once, any one may fail first
        self.settings: dict[str, Any] = {
            "array.order": pick.choice(self.layout.orders),
            "async.concurrency": 1,
        }
        self.has_equal_bytes = True
        self.is_damaged = False
        self.kinds: Counter[str] = Counter()

    def run(self) -> str:
        """Do the steps; return the first difference, or an empty text."""
        done = [f"{self.kind} store, {self.usual.options}, {self.layout.about}"]
        step = self.open(mode="r" if self.kind == "zip" else "r+")
        for _ in range(self.random.randint(10, 30)):
            self.kinds[step.kind] += 1
            done.append(f"{step.kind}: {step.text}")
            if wrong := self.differences(step):
                return "\n  ".join((*done, wrong))
            if self.usual.array is None:
                return ""
            step = self.draw()
        return ""

    def differences(self, step: Step) -> str:
        direct, usual = (side.do(step, self.settings) for side in (self.direct, self.usual))
        if repr(direct) != repr(usual):
            return f"direct: {direct}\n  usual:  {usual}"
        if step.kind == "read" or self.kind == "zip":
            return ""
        if self.is_damaged and "error" in repr(usual):
            self.usual.array = None  # the end: which objects a failing write has stored before is not fixed
            return ""
        stored, expected = (side.objects() for side in (self.direct, self.usual))
        if stored.keys() != expected.keys():
            return f"objects: direct {sorted(stored)}, usual {sorted(expected)}"
        wrong = [key for key, data in stored.items() if data != expected[key]]
        return f"bytes of {wrong}" if wrong and self.has_equal_bytes else ""

    def draw(self) -> Step:
        """Return a random step."""
        array = self.usual.array
        steps: list[tuple[int, Callable[[], Step]]] = [(40, self.read), (30, self.write), (4, self.grouped)]
        steps += [(2, self.in_loop), (3, self.reading_threads), (3, self.open), (2, self.pickled)]
        steps += [(2, self.configure), (2, self.set)]
        # only reads of files that have not just changed use the cache of inner chunks
        steps += [(30 if self.direct.cache or self.usual.cache else 3, self.wait)]
        if array.shape:
            steps += [(3, self.resize), (2, self.append)]
        if self.kind != "zip":
            steps += [(2, self.damage), (3, self.delete)]
            if array.shape and array.size and hasattr(array.metadata.chunk_grid, "chunk_shape"):
                steps += [(3, self.writing_threads)]
        weights, ways = zip(*steps, strict=True)
        (way,) = self.random.choices(ways, weights)
        return way()

    # ---- reads and writes

    def choice(self) -> tuple[Choice, Shape]:
        """Return a random choice, and the shape of what it selects, or a random shape if it fails."""
        pick, array = self.random, self.usual.array
        method = pick.choice(("[]", "[]", "[]", "[]", "basic", *METHODS))
        kind = pick.choice(METHODS[method]) if pick.random() < 0.93 else pick.choice(list(KINDS))
        selection = KINDS[kind](pick, array.shape)
        choice = Choice(method, selection)
        with self.usual.used(self.settings):
            try:
                shape = np.shape(choice.read(array))
            except Exception:
                shape = pick.choice(((), (2,), array.shape))
        return choice._replace(more=keywords(pick, shape, array.dtype)), shape

    def read(self) -> Step:
        choice, _ = self.choice()
        if self.random.random() < 0.04:
            as_dtype = self.random.choice((None, "f4", object))
            return Step("read", told("asarray", as_dtype), lambda side: np.asarray(side.array, as_dtype))
        text = told(choice.method, choice.selection, choice.more())
        return Step("read", text, lambda side: choice.read(side.array))

    def write(self) -> Step:
        choice, shape = self.choice()
        array = self.usual.array
        is_scalar = choice.repeats(array.shape)
        value = value_for(self.random, self.layout.dtype, shape, array.fill_value, is_scalar=is_scalar)
        text = told(choice.method, choice.selection, choice.more(), value)
        return Step("write", text, lambda side: choice.write(side.array, value))

    def several(self) -> list[Step]:
        return [self.random.choice((self.read, self.write))() for _ in range(self.random.randint(1, 4))]

    def grouped(self) -> Step:
        steps, limit = self.several(), self.random.choice(({}, {}, {"max_bytes": 0}))
        fails = self.random.random() < 0.1

        def work(side: Side) -> Any:
            with shardcodec.group_writes(**limit):
                found = [side.outcome(step.work) for step in steps]
                if fails:
                    raise KeyError("of the block")
                return found

        return Step("group", told(limit, fails, [step.text for step in steps]), work)

    def in_loop(self) -> Step:
        """Return a step in a coroutine of another event loop than zarr's, as in a notebook."""
        steps = self.several()

        async def coroutine(side: Side) -> Any:
            return [side.outcome(step.work) for step in steps]

        return Step(
            "event loop", told([step.text for step in steps]), lambda side: asyncio.run(coroutine(side))
        )

    def reading_threads(self) -> Step:
        # fewer threads than zarr's pool has, because codecs in Python need another one of it for each write
        steps = [self.read() for _ in range(3)]

        def work(side: Side) -> Any:
            with ThreadPoolExecutor(3) as pool:
                return list(pool.map(lambda step: side.outcome(step.work), steps))

        return Step("threads", told([step.text for step in steps]), work)

    def writing_threads(self) -> Step:
        """Return a step whose threads write boxes along the first axis, of different objects or of different inner chunks."""
        array = self.usual.array
        objects = array.shards or array.chunks
        extents = self.random.choice((objects, objects, array.chunks))
        # the order of inner chunks in a shard is that of the threads
        self.has_equal_bytes &= extents == objects
        boxes = [slice(at, at + extents[0]) for at in range(0, array.shape[0], extents[0])][:3]
        shapes = [(min(box.stop, array.shape[0]) - box.start, *array.shape[1:]) for box in boxes]
        values = [elements_of(self.random, self.layout.dtype, shape) for shape in shapes]

        def work(side: Side) -> Any:
            def write(box: slice, value: Any) -> Any:
                side.array[box] = value
                return side.array[box]

            with ThreadPoolExecutor(3) as pool:
                pairs = zip(boxes, values, strict=True)
                return list(pool.map(lambda pair: side.outcome(lambda _: write(*pair)), pairs))

        return Step("writing threads", told(boxes, values), work)

    # ---- changes of the array

    def resize(self) -> Step:
        shape = tuple(max(0, n + self.random.choice((-4, -1, 0, 1, 3))) for n in self.usual.array.shape)
        return Step("resize", told(shape), lambda side: side.array.resize(shape))

    def append(self) -> Step:
        pick, shape = self.random, list(self.usual.array.shape)
        axis = pick.randrange(len(shape))
        shape[axis] = pick.choice((0, 1, 3))
        values = elements_of(pick, self.layout.dtype, tuple(shape) if pick.random() < 0.9 else (2, *shape))
        return Step("append", told(values, axis), lambda side: side.array.append(values, axis=axis))

    def open(self, mode: Any = None) -> Step:
        pick = self.random
        mode = mode or pick.choice(("r", "r") if self.kind == "zip" else ("r+", "r+", "r+", "r"))
        config = {"order": pick.choice(self.layout.orders), "write_empty_chunks": pick.random() < 0.3}
        given: dict[str, Any] = {"mode": mode, "config": pick.choice((None, config))}

        def work(side: Side) -> None:
            side.array = zarr.open_array(side.store, path=self.layout.path, **given)

        return Step("open", told(given), work)

    def configure(self) -> Step:
        config = {
            "order": self.random.choice(self.layout.orders),
            "write_empty_chunks": self.random.random() < 0.5,
        }

        def work(side: Side) -> None:
            side.array = side.array.with_config(config)

        return Step("config", told(config), work)

    def set(self) -> Step:
        """Change zarr's configuration and the options for the steps that follow."""
        self.settings = {**self.settings, "array.order": self.random.choice(self.layout.orders)}
        options = self.random.choice(OPTIONS)
        for side in (self.direct, self.usual):
            side.options = {**options, "direct": side.options["direct"]}
        return Step("setting", told(self.settings, options), lambda side: side.array[...])

    def wait(self) -> Step:
        """Return a read that is done three times after a pause, so that the files count as stable."""
        step = self.read()

        def work(side: Side) -> Any:
            time.sleep(1.5 * GRAIN_NS / 1e9)
            return [side.outcome(step.work) for _ in range(3)]

        return Step("wait", step.text, work)

    def pickled(self) -> Step:
        def work(side: Side) -> None:
            side.array = pickle.loads(pickle.dumps(side.array))
            side.store = side.array.store

        return Step("pickle", "", work)

    def a_chunk(self) -> str:
        """Return the key of an object that is not a document; "" if there is none."""
        documents = (".json", ".zarray", ".zgroup", ".zattrs")
        return self.random.choice(
            [key for key in sorted(self.usual.objects()) if not key.endswith(documents)] or [""]
        )

    def delete(self) -> Step:
        if not (key := self.a_chunk()):
            return self.read()
        return Step("delete", key, lambda side: sync(writable(side.store).delete(key)))

    def damage(self) -> Step:
        pick, key = self.random, self.a_chunk()
        data = self.usual.objects().get(key, b"")
        if not data or not self.has_equal_bytes:
            return self.read()
        self.is_damaged = True
        at = pick.randrange(len(data))
        changed = data[:at] + (
            b"" if pick.random() < 0.3 else bytes([data[at] ^ 1 << pick.randrange(8)]) + data[at + 1 :]
        )
        return Step("damage", f"{key} at {at}", lambda side: put_object(writable(side.store), key, changed))


def writable(store: Any) -> Any:
    return store.with_read_only(False) if store.read_only else store


def check(seed: str, number: int, kinds: Counter[str]) -> str:
    """Run one program; return its difference, or an empty text."""
    has_rectilinear = "rectilinear_chunks" in zarr.config.get("array")
    settings = {"array.rectilinear_chunks": True} if has_rectilinear else {}  # `layout_of` sets it for good
    # the outer call looks for arrays that were opened before, which takes long
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet(),
        zarr.config.set(settings),
        shardcodec.enable(children=False),
        caches_of(GRAIN_NS),
    ):
        program = Program(Path(folder), seed, number)
        wrong = program.run()
    kinds.update(program.kinds)
    return wrong and f"--seed {seed} --first {number} --count 1: {wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    kinds: Counter[str] = Counter()
    n_wrong = 0
    for number in range(arguments.first, arguments.first + arguments.count):
        if wrong := check(arguments.seed, number, kinds):
            n_wrong += 1
            print(wrong, flush=True)
    hits = shardcodec.stats()["chunk_hits"]
    by_kind = ", ".join(f"{name} {n}" for name, n in kinds.most_common())
    print(
        f"{arguments.count} programs, {kinds.total()} steps ({by_kind}), {hits} hits, {n_wrong} differences"
    )
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
