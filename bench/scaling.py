"""Measure how cost grows with cores, threads, size and number of shards, and count what threads share.

    python bench/scaling.py --json scaling.json                            all parts, about four minutes
    python bench/scaling.py --json scaling.json --parts cores,hops         some; the others of the file stay
    python bench/scaling.py --json scaling.json --parts objects --objects 1000,10000,1000000
    python bench/scaling.py --json scaling.json --shrink 8 --rounds 1      a trial

Parts: `cores` (1 and 2 cores, 1 to 64 threads), `size` (arrays of 0.5 to 256 MiB), `hops` (threads of Python, which share the GIL),
`objects` (10^3 and more shards), `bandwidth` (what copies of memory reach), `calls` (system calls, with strace), `counts` (locks and
atomic operations, with an engine that `make prepare-tsan` builds). `calls` and `counts` count, so a busy machine does not matter.

Each part runs in processes of its own, bound to its cores. The file has the form of `run.py --json`: the number of threads, bytes or
shards stands where a peer stands. `model.py` fits a model to it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
import machine
import memory
import numpy as np
import program
from data import Case

Json = dict[str, Any]

CODECS = ("raw", "zstd 1")
THREADS = (1, 2, 4, 8, 16, 32, 64)
EDGES = (64, 128, 256, 512)
OBJECTS = (1_000, 10_000, 100_000)
# An element of a shard of the many: a few hundred bytes, so that the cost of a shard is not that of its bytes.
SHARD, CHUNK = 64, 16
MARK = "/scaling-mark"
ENGINE = Path(f"build/special/tsan-{sys.version_info.major}.{sys.version_info.minor}")
COUNTERS = (
    "locks",
    "locks that waited",
    "waits",
    "wake-ups",
    "threads started",
    "atomic updates",
    "atomic loads",
    "atomic stores",
)


# ---------------------------------------------------------------------------------------------------------
# operations


def folder_of(where: Path, case: Case) -> Path:
    """Return an array that holds the field of a case; it is made once."""
    import shardcodec

    path = where / case.slug()
    if not path.exists():
        shardcodec.open_array(case.create(path), mode="r+")[...] = data.load_field(case, where)
        data.wait_until_old(path)
    return path


def operations(where: Path, edge: int, codec: str) -> dict[str, Callable[[int], Callable[[], Any]]]:
    """Return for each name a function of the number of threads that returns the work. No work goes through zarr."""
    import shardcodec

    case = data.big(edge).with_codec(codec)
    path, values = folder_of(where, case), data.load_field(case, where)
    target = where / f"target-{case.slug()}"

    def read(threads: int) -> Callable[[], Any]:
        array = shardcodec.open_array(path, threads=threads)
        return lambda: array[...]

    def write(threads: int) -> Callable[[], Any]:
        shutil.rmtree(target, ignore_errors=True)
        array = shardcodec.open_array(case.create(target), mode="r+", threads=threads)

        def run() -> None:
            array[...] = values

        return run

    return {f"read, {codec}": read, f"write, {codec}": write}


def seconds_of(work: Callable[[], Any], nbytes: int) -> float:
    if nbytes >= 16 << 20:
        machine.take_memory_back(nbytes)
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    del result
    return seconds


def row(group: str, name: str, nbytes: int, peers: dict[str, list[float]], **facts: Any) -> Json:
    return {
        "group": group,
        "name": name,
        "nbytes": nbytes,
        **facts,
        "peers": {key: {"seconds": seconds} for key, seconds in peers.items()},
    }


# ---------------------------------------------------------------------------------------------------------
# parts: each runs in a process that is bound to `cores`


def cores(options: Json) -> list[Json]:
    """Time whole arrays with several numbers of threads."""
    where, edge, n_cores = Path(options["folder"]), options["edge"], options["cores"]
    numbers = [n for n in THREADS if n_cores > 1 or n <= 2]
    nbytes = data.big(edge).nbytes
    rows = []
    for codec in CODECS:
        for name, with_threads in operations(where, edge, codec).items():
            work = {n: with_threads(n) for n in numbers}
            peers: dict[str, list[float]] = {str(n): [] for n in numbers}
            with_threads(2)()  # brings in code and pages
            for _ in range(options["rounds"]):
                for n in numbers:
                    peers[str(n)].append(seconds_of(work[n], nbytes))
            rows.append(
                row(f"threads on {n_cores} cores", name, nbytes, peers, inner_chunks=(edge // 32) ** 3)
            )
    return rows


def size(options: Json) -> list[Json]:
    """Time whole arrays of several sizes."""
    where = Path(options["folder"])
    peers: dict[str, dict[str, list[float]]] = {}
    for edge in [edge for edge in EDGES if edge <= options["edge"]]:
        nbytes = data.big(edge).nbytes
        for codec in CODECS:
            for name, with_threads in operations(where, edge, codec).items():
                work = with_threads(options["cores"])
                work()
                seconds = [seconds_of(work, nbytes) for _ in range(options["rounds"])]
                peers.setdefault(name, {})[str(nbytes)] = seconds
    return [row("size", name, 0, of_sizes) for name, of_sizes in peers.items()]


def hops(options: Json) -> list[Json]:
    """Time small reads by threads of Python: each reads inner chunks by itself, in its own thread of the engine."""
    import shardcodec

    where, edge = Path(options["folder"]), options["edge"]
    rows = []
    for codec in CODECS:
        case = data.big(edge).with_codec(codec)
        array = shardcodec.open_array(folder_of(where, case), threads=1)
        starts = np.random.default_rng(7).integers(0, edge // 32, (256, 3)) * 32
        boxes = [tuple(slice(int(at), int(at) + 32) for at in start) for start in starts]
        peers: dict[str, list[float]] = {}
        for n in [n for n in THREADS if options["cores"] > 1 or n <= 2]:
            per_thread = max(1, options["reads"] // n)
            peers[str(n)] = [read_in_threads(array, boxes, n, per_thread) for _ in range(options["rounds"])]
        nbytes = 32**3 * 2
        rows.append(
            row(f"Python threads on {options['cores']} cores", f"one inner chunk, {codec}", nbytes, peers)
        )
    return rows


def read_in_threads(array: Any, boxes: list[Any], n_threads: int, per_thread: int) -> float:
    """Return the seconds of one read, while `n_threads` threads read at the same time: elapsed time over all reads."""
    start = threading.Barrier(n_threads + 1)

    def read(first: int) -> None:
        start.wait()
        for i in range(per_thread):
            array[boxes[(first + i) % len(boxes)]]

    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        futures = [pool.submit(read, 17 * i) for i in range(n_threads)]
        start.wait()
        begin = time.perf_counter()
        for future in futures:
            future.result()
        return (time.perf_counter() - begin) / (n_threads * per_thread)


def objects(options: Json) -> list[Json]:
    """Time what looks at each shard of an array of very many small shards, and measure its memory."""
    import shardcodec
    from shardcodec import tools

    where = Path(options["folder"])
    tasks: dict[str, Callable[[Path], Any]] = {
        "open_array": shardcodec.open_array,
        "read one element": lambda path: shardcodec.open_array(path)[5:6],
        "chunk_state": shardcodec.chunk_state,
        "inspect": lambda path: tools.inspect(path, threads=2),
        "verify, indexes": lambda path: tools.verify(path, level="index", threads=2),
        "verify, checksums": lambda path: tools.verify(path, level="checksum", threads=2),
    }
    peers: dict[str, dict[str, Json]] = {}
    for n in options["objects"]:
        path = many_shards(where, n)
        for name in options["tasks"] or tasks:
            work = functools.partial(tasks[name], path)
            seconds: list[float] = []
            nbytes = [
                memory.growth(lambda work=work, seconds=seconds: seconds.append(seconds_of(work, 0)))
                for _ in range(3 if n <= 10_000 else 1)
            ]
            peers.setdefault(name, {})[str(n)] = {"seconds": seconds, "peak_nbytes": max(nbytes)}
        shutil.rmtree(path)
    return [
        {"group": "objects", "name": name, "nbytes": 0, "peers": of_numbers}
        for name, of_numbers in peers.items()
    ]


def many_shards(where: Path, n: int) -> Path:
    """Make an array of `n` shards of some hundred bytes, one file each."""
    codecs = [data.LITTLE, {"name": "crc32c"}]
    case = Case((SHARD * n,), (SHARD,), (CHUNK,), "uint16", "crc32c", codecs=codecs)
    import shardcodec

    path = case.create(where / f"shards-{n}")
    shardcodec.open_array(path, mode="r+")[:SHARD] = np.arange(1, SHARD + 1, dtype="uint16")
    content = (path / "c/0").read_bytes()
    for i in range(1, n):
        file = os.open(path / f"c/{i}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, content)
        os.close(file)
    return path


def bandwidth(options: Json) -> list[Json]:
    """Time copies of memory by one process, and by two at the same time; each copies its own array."""
    nbytes = options["bandwidth_mib"] << 20
    peers = {}
    for n in (1, 2)[: options["cores"]]:
        command = [sys.executable, __file__, "--copy", str(nbytes), str(options["rounds"] * 4)]
        copies = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(n)]
        peers[str(n)] = [float(copy.communicate()[0]) / n for copy in copies]
    return [row("memory", "copies", nbytes, peers)]


def copy_memory(nbytes: int, rounds: int) -> float:
    """Return the median seconds of a copy."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# ---------------------------------------------------------------------------------------------------------
# counting


def counted_work(options: Json) -> list[tuple[str, int, Callable[[], Any]]]:
    """Return the name, the number of inner chunks, and the work of each operation that is counted, with two threads.

    Without threads that read ahead: strace makes each call as slow as on a network, and these threads would be all that is counted.
    """
    import shardcodec
    from shardcodec.options import override

    where, edge = Path(options["folder"]), options["edge"]
    works: list[tuple[str, int, Callable[[], Any]]] = []
    with override({"io_depth": 1}):
        for codec in CODECS:
            for name, with_threads in operations(where, edge, codec).items():
                works.append((name, (edge // 32) ** 3, with_threads(2)))
            array = shardcodec.open_array(folder_of(where, data.big(edge).with_codec(codec)), threads=2)
            read = functools.partial(array.__getitem__, (slice(0, 32),) * 3)
            works.append((f"one inner chunk, {codec}", 1, read))
    return works


def counts(options: Json) -> list[Json]:
    """Count locks and atomic operations per inner chunk. The process has the library of counts.c and an engine that calls it."""
    library = ctypes.CDLL(None)
    taken = (ctypes.c_uint64 * len(COUNTERS))()
    rows = []
    for name, n_chunks, work in counted_work(options):
        work()
        work()  # threads exist, indexes are known
        library.counts_take(taken)
        for _ in range(options["rounds"]):
            work()
        library.counts_take(taken)
        n = n_chunks * options["rounds"]
        rows.append(
            {
                "name": name,
                "inner_chunks": n_chunks,
                **{key: n_ / n for key, n_ in zip(COUNTERS, taken, strict=True)},
            }
        )
    return rows


def calls(options: Json) -> list[Json]:
    """Do the work between marks that `count_calls` finds in the log of strace."""
    names = []
    for name, n_chunks, work in counted_work(options):
        work()
        work()
        mark()
        for _ in range(options["rounds"]):
            work()
        mark()
        names.append({"name": name, "inner_chunks": n_chunks})
    return names


def mark() -> None:
    try:
        os.open(MARK, os.O_RDONLY)
    except FileNotFoundError:
        pass


def count_calls(log: Path, names: list[Json], rounds: int) -> list[Json]:
    """Return the system calls per inner chunk between each two marks."""
    between: list[list[str]] = [[]]
    for line in log.read_text().splitlines():
        if MARK in line:
            between.append([])
        elif match := re.match(r"\d+ +(\w+)\(", line):
            between[-1].append(match[1])
    rows = []
    for entry, called in zip(names, between[1::2], strict=True):
        n = entry["inner_chunks"] * rounds
        kinds = {kind: called.count(kind) / n for kind in sorted(set(called))}
        rows.append({**entry, "system calls": len(called) / n, "kinds": kinds})
    return rows


# ---------------------------------------------------------------------------------------------------------
# the run

TIMED = {"cores": cores, "size": size, "hops": hops, "objects": objects, "bandwidth": bandwidth}
COUNTED = {"calls": calls, "counts": counts}
PARTS = (*TIMED, *COUNTED)


def in_process(
    part: str, options: Json, before: list[str], environment: dict[str, str] | None = None
) -> list[Json]:
    """Run a part in a new process; return its rows."""
    command = [*before, sys.executable, __file__, "--one", part, json.dumps(options)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **(environment or {})}
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def run_part(part: str, arguments: argparse.Namespace, folder: Path) -> list[Json]:
    n_cores = machine.cpus()
    options: Json = {
        "folder": str(folder),
        "edge": max(64, 512 // arguments.shrink),
        "rounds": arguments.rounds,
        "cores": n_cores,
        "reads": max(64, 8192 // arguments.shrink**2),
        "objects": arguments.objects,
        "tasks": arguments.tasks,
        "bandwidth_mib": arguments.bandwidth_mib,
    }
    if part == "counts":
        return in_process(part, options | {"rounds": 3}, [], counting_environment(arguments.engine, folder))
    if part == "calls":
        log = folder / "strace.log"
        names = in_process(part, options | {"rounds": 3}, ["strace", "-f", "-o", str(log)])
        return count_calls(log, names, 3)
    if part in ("cores", "hops") and n_cores > 1:
        one = in_process(part, options | {"cores": 1}, [])
        return one + in_process(part, options, [])
    return in_process(part, options, [])


def counting_environment(engine: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a process with the library of counts.c and an engine that calls it."""
    if not list(engine.glob("shardcodec/_native*.so")):
        raise SystemExit(f"{engine} has no engine that is built with -fsanitize=thread: make prepare-tsan")
    library = folder / "counts.so"
    source = Path(__file__).with_name("counts.c")
    compiler = os.environ.get("CC", "cc")
    flags = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libtsan.so.2", "-o", str(library), str(source), "-ldl"]
    subprocess.run([compiler, *flags], check=True)
    return {"LD_PRELOAD": str(library), "PYTHONPATH": str(engine)}


def missing(part: str) -> str | None:
    """Return why a part cannot run here, or None."""
    if part == "calls" and shutil.which("strace") is None:
        return "strace is not installed"
    return None


def merged(old: Json, part: str, rows: list[Json]) -> Json:
    """Return a document with the rows of a part in place of its earlier ones; those of other numbers of shards stay."""
    if part in COUNTED:
        return {**old, part: rows}
    kept = {(entry["group"], entry["name"]): entry for entry in old.get("rows", [])}
    for entry in rows:
        before = kept.get((entry["group"], entry["name"]), {"peers": {}})
        kept[entry["group"], entry["name"]] = {**entry, "peers": before["peers"] | entry["peers"]}
    return {**old, "rows": list(kept.values())}


def is_same(old: Json, new: Json) -> bool:
    """Return whether two results may be in one file: they are of one machine, and of arrays of one size."""
    names = ("cpu", "cpus_used", "memory_gib", "kernel")
    machines = [[document["machine"][name] for name in names] for document in (old, new)]
    return machines[0] == machines[1] and bool(old["shrink"] == new["shrink"])


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench/scaling.py"
    )
    parser.add_argument("--json", type=program.file_to_write, required=True)
    parser.add_argument("--parts", type=program.some_of(PARTS), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--rounds", type=program.positive, default=5)
    parser.add_argument("--shrink", type=program.positive, default=1, help="divide the edge of arrays")
    parser.add_argument(
        "--objects", type=lambda text: [int(n) for n in text.split(",")], default=list(OBJECTS)
    )
    parser.add_argument("--tasks", type=program.names, default=[], help="of the part objects (all)")
    parser.add_argument(
        "--bandwidth-mib", type=int, default=128, help="size of the copies of the part bandwidth"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    )
    parser.add_argument("--engine", type=Path, default=ENGINE, help="for the part counts")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--copy"]:
        print(copy_memory(*map(int, arguments[1:])))
        return 0
    if arguments[:1] == ["--one"]:
        part, options = arguments[1], json.loads(arguments[2])
        os.sched_setaffinity(0, set(itertools.islice(sorted(os.sched_getaffinity(0)), options["cores"])))
        print(json.dumps({**TIMED, **COUNTED}[part](options)))
        return 0
    chosen = parse(arguments)
    document: Json = json.loads(chosen.json.read_text()) if chosen.json.exists() else {}
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=chosen.folder) as name:
        now = {"machine": machine.facts(Path(name)), "shrink": chosen.shrink, "rounds": chosen.rounds}
        document = {**document, **now} if document and is_same(document, now) else now
        for part in chosen.parts:
            if reason := missing(part):
                document.setdefault("missing", {})[part] = reason
                continue
            start, disturbance = time.monotonic(), machine.Disturbance()
            rows = run_part(part, chosen, Path(name))
            if part in TIMED:
                for entry in rows:
                    entry["disturbance"] = disturbance.value()
            document = merged(document, part, rows)
            chosen.json.write_text(json.dumps(document, indent=1) + "\n")
            print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
