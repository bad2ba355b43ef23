"""Compare all peers where each open and each read of a file costs a round trip, as on a cluster's file system.

    python bench/round_trips.py                       256^3 uint16, shards 128^3, inner chunks 32^3; 0 us to 10 ms
    python bench/round_trips.py --delays 50,2000 --rows plane --codecs raw
    python bench/round_trips.py --delays 0 --cold     the page cache does not have the files; nothing else is delayed
    python bench/round_trips.py --delay-writes        the other calls of a writer cost a round trip, too

A preloaded library delays the calls (tests/mounts/round_trip.c), each independently of the others; bytes cost nothing. For each
delay a new process runs all peers, interleaved. The results of each peer are compared with the values before it is timed.
Every peer has its best settings for such a file system: TensorStore 32 reads at a time, zarr 64 objects at a time, the Rust
crates 16 threads. shardcodec has its default options, without known indexes, with its index cache, and with an array of `attach`. "zarr alone"
is zarr with a pipeline that does nothing, so nothing behind `zarr.Array` can be faster than it and the fastest reader without zarr
one after the other: that sum is the floor, unless another pipeline of zarr is faster still.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import data
import machine
import numpy as np
import peers
import program
from data import Array, Box, Case
from remote import rows as read_rows

SHIM = Path(__file__).resolve().parents[1] / "tests" / "mounts" / "round_trip.c"
DELAYS_US = (0, 50, 200, 2000, 10000)
CODECS = ("raw", "zstd 1")
WRITE = "whole array written"
MANY = "boxes of 40^3, one after the other"
READS_AT_A_TIME = 32
RUST_THREADS = 16

# Small reads are repeated in a turn: the first one after a turn of another peer waits for its own code and data.
SMALL_NBYTES = 1 << 20
SMALL_TURNS = 20

# A peer that takes longer in a row has no second turn.
SLOW_SECONDS = 2.0
# A peer that takes longer in a turn has failed.
MAX_SECONDS = 10.0


class Ours(peers.ShardCodec):
    """shardcodec, which reads each index again."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        import zarr

        with super().turn(), zarr.config.set({"shardcodec.index_cache": 0}):
            yield


class OursKnown(peers.ShardCodec):
    """shardcodec with its index cache, as is its default; the turn that checks the values fills it."""

    name = "shardcodec (indexes known)"


class OursAttached(Ours, peers.ShardCodecAttach):
    """shardcodec through an array of `attach`, which reads each index again."""

    name = "shardcodec attach"


class ZarrAlone(peers.EmptyPipeline):
    """See `peers.EmptyPipeline`."""

    name = "zarr alone"


class TensorStore(peers.TensorStore):
    """TensorStore with more reads at a time."""

    def context(self) -> dict[str, Any]:
        return super().context() | {"file_io_concurrency": {"limit": READS_AT_A_TIME}}


class ManyObjects:
    """zarr with more objects at a time; for pipelines of zarr and zarrs."""

    def settings(self) -> dict[str, Any]:
        settings = super().settings()  # type: ignore[misc]
        return {**settings, "async.concurrency": 64, "threading.max_workers": RUST_THREADS}


class ZarrBatched(ManyObjects, peers.ZarrBatched):
    """See `ManyObjects`."""


class ZarrFused(ManyObjects, peers.ZarrFused):
    """See `ManyObjects`."""


class Zarrs(ManyObjects, peers.Zarrs):
    """See `ManyObjects`."""


ALL: tuple[peers.Peer, ...] = (
    Ours(),
    OursKnown(),
    OursAttached(),
    ZarrAlone(),
    ZarrBatched(),
    ZarrFused(),
    Zarrs(),
    TensorStore(),
    peers.Zarrista(),
)
OURS = (Ours.name, OursKnown.name, OursAttached.name, ZarrAlone.name)
WITHOUT_ZARR = (TensorStore.name, peers.Zarrista.name)


# ---------------------------------------------------------------------------------------------------------
# one delay, in a process with the preloaded library


def is_cold() -> bool:
    return "ROUND_TRIP_COLD" in os.environ


class Row:
    """One thing to read or write, of one case."""

    def __init__(self, name: str, case: Case, source: Path, values: Array) -> None:
        self.name = name
        self.case = case
        self.source = source
        self.values = values
        if name == MANY:
            n_boxes = 1000 if float(os.environ["ROUND_TRIP_US"]) <= 200 and not is_cold() else 100
            starts = np.random.default_rng(7).integers(0, case.shape[0] - 40, (n_boxes, 3))
            self.boxes: list[Box] = [tuple(slice(int(s), int(s) + 40) for s in start) for start in starts]
        elif name != WRITE:
            box = read_rows(case)[name]
            turns = SMALL_TURNS if float(os.environ["ROUND_TRIP_US"]) <= 200 else SMALL_TURNS // 4
            self.boxes = [box] * (turns if values[box].nbytes < SMALL_NBYTES and not is_cold() else 1)

    def forget(self) -> None:
        """Remove the files from the page cache."""
        for path in self.source.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def open(self, peer: peers.Peer) -> Any:
        if self.name != WRITE:
            return peer.open(self.source, self.case)
        path = self.source.parent / "written"
        shutil.rmtree(path, ignore_errors=True)
        return peer.open(self.case.create(path), self.case)

    def run(self, peer: peers.Peer, array: Any) -> Any:
        if self.name == WRITE:
            return peer.write(array, self.case.whole, self.values)
        start, parts = time.perf_counter(), []
        for box in self.boxes:
            parts.append(peer.read(array, box))
            if time.perf_counter() - start > MAX_SECONDS:
                raise TimeoutError(f"{len(parts)} of {len(self.boxes)} reads took {MAX_SECONDS:g} s")
        return parts

    def check(self, peer: peers.Peer, result: Any) -> None:
        if self.name == WRITE:
            import zarr

            written = zarr.open_array(self.source.parent / "written", mode="r")
            is_right = np.array_equal(written[...], self.values)
        else:
            is_right = all(
                np.array_equal(part, self.values[box]) for part, box in zip(result, self.boxes, strict=True)
            )
        if not is_right:
            raise AssertionError(f"{peer.name}: other values")


def measure(row: Row, contestants: list[peers.Peer], rounds: int) -> dict[str, Any]:
    """Return the seconds of each peer, or its failure."""
    results: dict[str, Any] = {}
    for number in range(rounds + 1):
        first = number % len(contestants)
        for peer in contestants[first:] + contestants[:first]:
            seconds = results.setdefault(peer.name, [])
            if isinstance(seconds, str) or (seconds and max(seconds) > SLOW_SECONDS):
                continue
            try:
                with peer.turn():
                    array = row.open(peer)
                    machine.take_memory_back(row.values.nbytes)
                    if is_cold():
                        row.forget()
                    start = time.perf_counter()
                    result = row.run(peer, array)
                    spent = time.perf_counter() - start
                if number == 0 and peer.name != ZarrAlone.name:
                    row.check(peer, result)
                del result
            except Exception as error:  # noqa: BLE001 (the failure of a peer is a result)
                results[peer.name] = f"{type(error).__name__}: {error}"[:200]
                continue
            if number or spent > SLOW_SECONDS:
                seconds.append(spent)
    return results


def run_one(arguments: argparse.Namespace, folder: Path) -> None:
    contestants = program.chosen(ALL, arguments.peers)
    document: dict[str, Any] = {}
    for codec in arguments.codecs:
        case = data.big(256).with_codec(codec)
        values = data.load_field(case, folder.parent)
        source = folder / case.slug()
        if not source.exists():
            with peers.ZarrBatched().turn():
                peers.ZarrBatched().write(
                    peers.ZarrBatched().open(case.create(source), case), case.whole, values
                )
            data.wait_until_old(source)
        for name in [*read_rows(case), MANY, WRITE]:
            if not program.is_chosen(name, arguments.rows):
                continue
            row = Row(name, case, source, values)
            able = [peer for peer in contestants if name != WRITE or peer.name != ZarrAlone.name]
            document[f"{codec}: {name}"] = measure(row, able, arguments.rounds)
    print(json.dumps(document))


# ---------------------------------------------------------------------------------------------------------
# all delays


def run_all(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    library = folder / "round_trip.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    document: dict[str, Any] = {
        "machine": machine.facts(folder),
        "delays_writes": arguments.delay_writes,
        "rows": [],
    }
    slow = folder / "slow"
    slow.mkdir()
    for delay in arguments.delays:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "ROUND_TRIP_FOLDER": str(slow),
            "ROUND_TRIP_US": str(delay),
            "RAYON_NUM_THREADS": str(RUST_THREADS),
            "ROUND_TRIP_STATS": "1",
            "ROUND_TRIP_WRITES": str(int(arguments.delay_writes)),
            **({"ROUND_TRIP_COLD": "1"} if arguments.cold else {}),
        }
        command = [sys.executable, "-W", "ignore", *sys.argv, "--one", "--folder", str(slow)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        results = json.loads(done.stdout.splitlines()[-1])
        if not results:
            raise SystemExit(f"no row has {' or '.join(arguments.rows)} in its name")
        document["rows"] += rows_of(f"{delay:g} us{', cold' * arguments.cold}", results)
        print(table(f"{delay:g} us{', writes too' * arguments.delay_writes}", results), flush=True)
    return document


def rows_of(group: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of one delay as run.py stores them; a peer without times has its failure."""
    return [
        {
            "group": group,
            "name": name,
            "peers": {
                peer: {"seconds": times} if isinstance(times, list) else {"seconds": [], "failed": str(times)}
                for peer, times in of_peers.items()
            },
        }
        for name, of_peers in results.items()
    ]


def shown(failure: Any) -> str:
    """Return a cell for a peer without a time."""
    if failure is None:
        return "-"
    return f"> {1e3 * MAX_SECONDS:.0f}" if "TimeoutError" in str(failure) else "failed"


def ratios(medians: dict[str, float]) -> tuple[float, float, float]:
    """Return ours divided by the fastest other and by the floor, and an array of `attach` divided by the fastest other."""
    rivals = {name: seconds for name, seconds in medians.items() if name not in OURS}
    if not rivals:
        return (float("nan"),) * 3
    alone = medians.get(ZarrAlone.name, float("nan"))  # without it there is no floor, as for writing
    floor = min(seconds + alone * (name in WITHOUT_ZARR) for name, seconds in rivals.items())
    ours, attached = (medians.get(name, float("nan")) for name in (Ours.name, OursAttached.name))
    fastest = min(rivals.values())
    return ours / fastest, ours / floor, attached / fastest


def table(title: str, results: dict[str, Any]) -> str:
    """Return the milliseconds of all peers, and ratios."""
    names = list(next(iter(results.values())))
    last = ("ours / fastest other", "ours / floor", "attach / fastest other")
    lines = [
        f"\n### {title}\n",
        f"| | {' | '.join((*names, *last))} |",
        "|---" * (len(names) + len(last) + 1) + "|",
    ]
    found = []
    for row, of_peers in results.items():
        medians = {
            name: median(times) for name, times in of_peers.items() if not isinstance(times, str) and times
        }
        cells = [
            f"{1e3 * medians[name]:.2f}" if name in medians else shown(of_peers.get(name)) for name in names
        ]
        found.append(ratios(medians))
        cells += [f"{ratio:.2f}{' **more**' if ratio > 1.1 else ''}" for ratio in found[-1]]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    won, _, won_attached = (sum(ratio < 1 for ratio in column) for column in zip(*found, strict=True))
    return "\n".join(
        [*lines, f"\nfaster than every other in {won} of {len(found)} rows, with attach in {won_attached}"]
    )


def delays(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers, such as 0,200, got {text!r}") from None


def parse() -> argparse.Namespace:
    parser = program.parser(__file__, __doc__, ALL)
    parser.add_argument("--delays", type=delays, default=list(DELAYS_US), help="in microseconds")
    parser.add_argument("--codecs", type=program.some_of(CODECS), default=list(CODECS))
    parser.add_argument(
        "--cold", action="store_true", help="remove the files from the page cache before each turn"
    )
    parser.add_argument(
        "--delay-writes",
        action="store_true",
        help="delay locks, writes, syncs, changes of names and closes too",
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if not arguments.one:
        program.run(run_all, arguments)
    run_one(arguments, arguments.folder)
    sys.stdout.flush()
    os._exit(0)  # threads of some peers cannot be joined


if __name__ == "__main__":
    main()
