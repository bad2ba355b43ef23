"""Compare all peers over HTTP with latency: requests, bytes, seconds.

    python bench/remote.py                     512^3 uint16, shards 256^3, inner chunks 32^3, 20 ms
    python bench/remote.py --quick             128^3: shows that the harness works
    python bench/remote.py --codec raw --latency 50
    python bench/remote.py --bandwidth 125     MB/s that all answers share; by default no limit

Files are served by nginx on loopback, behind a proxy that delays and counts (see web.py). Arrays are opened before
anything is counted. The results of each peer are checked first. Then come the rounds, interleaved; a peer that needs seconds
for one read has only one turn. Requests and bytes do not depend on the load of the machine; seconds do.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import data
import floor
import machine
import numpy as np
import peers
import program
import web
from data import Array, Box, Case

OURS = "shardcodec"

# Requests at a time of TensorStore: what it allows itself, and as many as zarr, which asks for 10 ranges each of as many objects
# as its `async.concurrency` says. zarrista has no bound.
TENSORSTORE_REQUESTS = (32, 320)

# A peer that takes longer in a row has no second turn.
SLOW_SECONDS = 1.5


# ---------------------------------------------------------------------------------------------------------
# peers


class Remote(peers.Peer):
    """One way to read an array at a URL."""

    def open_url(self, url: str) -> Any:
        raise NotImplementedError


class OverObstore(Remote):
    """zarr.Array, one pipeline, zarr's ObjectStore."""

    needs: tuple[str, ...] = ("obstore",)
    index_cache = 0  # the other peers keep none
    concurrency = TENSORSTORE_REQUESTS[-1] // 10  # its own default is 10

    def __init__(self, base: peers.Zarr, suffix: str = "") -> None:
        self.base = base
        self.name = base.name + suffix
        self.is_rival = base.is_rival

    def why_not(self) -> str | None:
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        return self.base.why_not()

    @contextmanager
    def turn(self) -> Iterator[None]:
        import zarr

        settings = {"async.concurrency": self.concurrency, "shardcodec.index_cache": self.index_cache}
        with self.base.turn(), zarr.config.set(settings):
            yield

    def store(self, url: str) -> Any:
        from obstore.store import HTTPStore
        from zarr.storage import ObjectStore

        return ObjectStore(HTTPStore.from_url(url, client_options={"allow_http": True}), read_only=True)

    def open_url(self, url: str) -> Any:
        import zarr

        return zarr.open_array(self.store(url), mode="r")

    def read(self, array: Any, box: Box) -> Array:
        return self.base.read(array, box)


class KeptIndexes(OverObstore):
    """shardcodec with the default index cache; its reads follow others of the same shards."""

    index_cache = 64 << 20


class OverFsspec(OverObstore):
    """The same over fsspec and aiohttp."""

    needs = ("fsspec", "aiohttp")

    def store(self, url: str) -> Any:
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(url, read_only=True)


class TensorStore(Remote):
    """TensorStore's own HTTP driver; no cache pool, because a benchmark would then time the cache."""

    package = "tensorstore"

    def __init__(self, n_requests: int) -> None:
        self.n_requests = n_requests
        self.name = f"tensorstore ({n_requests} at a time)"

    def open_url(self, url: str) -> Any:
        import tensorstore

        context = {
            "cache_pool": {"total_bytes_limit": 0},
            "data_copy_concurrency": {"limit": peers.N_THREADS},
            "http_request_concurrency": {"limit": self.n_requests},
        }
        spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": f"{url}/"}, "context": context}
        return tensorstore.open(spec, open=True).result()

    def read(self, array: Any, box: Box) -> Array:
        return np.asarray(array[box].read(order="C").result())


class Zarrista(Remote):
    """zarrista's asynchronous arrays over obstore."""

    name = "zarrista"
    package = "zarrista"

    def open_url(self, url: str) -> Any:
        import zarrista
        from obstore.store import HTTPStore

        store = HTTPStore.from_url(url, client_options={"allow_http": True})

        async def opened() -> Any:
            return await zarrista.AsyncArray.open(store)

        return asyncio.run(opened())

    def read(self, array: Any, box: Box) -> Array:
        async def run() -> Any:
            return await array.retrieve_array_subset(box)

        return np.asarray(asyncio.run(run()).to_numpy())


ALL: tuple[Remote, ...] = (
    OverObstore(peers.ShardCodec()),
    KeptIndexes(peers.ShardCodec(), " (indexes known)"),
    OverFsspec(peers.ShardCodec(), " (fsspec)"),
    OverObstore(peers.ZarrBatched()),
    OverObstore(peers.ZarrFused()),
    OverFsspec(peers.ZarrFused(), " (fsspec)"),
    OverObstore(peers.Zarrs()),
    *(TensorStore(n) for n in TENSORSTORE_REQUESTS),
    Zarrista(),
)


# ---------------------------------------------------------------------------------------------------------
# rows


def rows(case: Case) -> dict[str, Box]:
    edge, shard, inner = case.shape[0], case.shard[0], case.inner[0]

    def cube(start: int, extent: int) -> Box:
        return (slice(start, start + extent),) * 3

    askew = shard // 4 + 3
    plane = edge // 3
    everything = slice(0, edge)
    return {
        "one inner chunk": cube(shard // inner // 2 * inner, inner),
        "box of 40^3": cube(askew, inner + inner // 4),
        "corner of 8 shards": cube(shard - inner * 5 // 8, inner + inner // 4),
        "plane, axis 0": (slice(plane, plane + 1), everything, everything),
        "plane, axis 1": (everything, slice(plane, plane + 1), everything),
        "plane, axis 2": (everything, everything, slice(plane, plane + 1)),
        "one shard": cube(0, shard),
        "whole array": case.whole,
    }


# ---------------------------------------------------------------------------------------------------------
# measuring


def measure(
    server: web.Web, contestants: list[Remote], arrays: dict[str, Any], box: Box, expected: Array, rounds: int
) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    running = []
    for peer in contestants:
        if isinstance(arrays[peer.name], str):
            results[peer.name] = {"failed": arrays[peer.name]}
            continue
        try:
            with peer.turn():
                if isinstance(peer, KeptIndexes):
                    peer.read(arrays[peer.name], box)
                server.traffic()
                actual = peer.read(arrays[peer.name], box)
            traffic = server.traffic()
            if actual.dtype != expected.dtype or not np.array_equal(actual, expected):
                raise AssertionError(f"{peer.name} gives other values")
            del actual
        except Exception as error:  # noqa: BLE001 (the failure of a peer is a result)
            results[peer.name] = {"failed": f"{type(error).__name__}: {error}"[:200]}
            continue
        results[peer.name] = {"requests": traffic.requests, "bytes": traffic.nbytes, "seconds": []}
        running.append(peer)
    for number in range(rounds):
        first = number % max(1, len(running))
        for peer in running[first:] + running[:first]:
            seconds = results[peer.name]["seconds"]
            if seconds and seconds[0] > SLOW_SECONDS:
                continue
            machine.take_memory_back(expected.nbytes)
            with peer.turn():
                start = time.perf_counter()
                result = peer.read(arrays[peer.name], box)
                seconds.append(time.perf_counter() - start)
            del result
            server.traffic()
    return results


def opened(peer: Remote, url: str) -> Any:
    try:
        with peer.turn():
            return peer.open_url(url)
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"[:200]


# Allowed ratios of ours to those of another peer.
MOST = {"requests": 1.0, "bytes": 1.25, "seconds": 1.1}


def verdict(results: dict[str, dict[str, Any]], ours: str, rivals: list[str]) -> list[str]:
    """Return two comparisons: with the fastest other peer, and each quantity with the peer that needs least of it."""
    running = {name: results[name] for name in rivals if "failed" not in results.get(name, {"failed": ""})}
    if "failed" in results[ours] or not running:
        return []
    least = {quantity: min(running, key=lambda name: value_of(running[name], quantity)) for quantity in MOST}
    fastest = dict.fromkeys(MOST, least["seconds"])
    lines = []
    for what, against in (("fastest", fastest), ("least of each", least)):
        told = []
        for quantity, most in MOST.items():
            rival = against[quantity]
            ratio = value_of(results[ours], quantity) / value_of(results[rival], quantity)
            name = "" if what == "fastest" else f" ({rival})"
            told.append(f"{ratio:.2f} of the {quantity}{name}" + ("" if ratio <= most else " **more**"))
        whom = f"the fastest, {fastest['seconds']}" if what == "fastest" else f"the {what}"
        lines.append(f"against {whom}: {', '.join(told)}")
    better = [name for name in running if is_better(running[name], results[ours])]
    lines.append(
        f"fewer requests for no more bytes, or fewer bytes for no more requests: {', '.join(better) or 'none'}"
    )
    return lines


def is_better(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether traffic is less in one quantity and not more in the other; a hundredth, for heads, is ignored."""
    requests = one["requests"] - other["requests"]
    nbytes = one["bytes"] - other["bytes"]
    margin = other["bytes"] // 100
    return (requests < 0 and nbytes <= margin) or (requests <= 0 and nbytes < -margin)


def value_of(result: dict[str, Any], quantity: str) -> float:
    return float(median(result["seconds"]) if quantity == "seconds" else result[quantity])


def table(name: str, results: dict[str, dict[str, Any]], ours: str) -> str:
    """Return the table of the three quantities of all peers, and the ratios of ours to them."""
    lines = [
        f"\n### {name}\n",
        "| | requests | MB | ms | ours: requests, bytes, seconds |",
        "|---|---|---|---|---|",
    ]
    for peer, result in results.items():
        if "failed" in result:
            lines.append(f"| {peer} | failed: {result['failed']} | | | |")
            continue
        milliseconds = 1e3 * median(result["seconds"])
        parts = ""
        if "failed" not in results.get(ours, {"failed": ""}):
            parts = ", ".join(f"{value_of(results[ours], q) / value_of(result, q):.2f}" for q in MOST)
        lines.append(
            f"| {peer} | {result['requests']} | {result['bytes'] / 1e6:.3f} | {milliseconds:.0f} | {parts} |"
        )
    return "\n".join(lines) + "\n"


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    case = data.big(128 if arguments.quick else 512).with_codec(arguments.codec)
    contestants = program.chosen(ALL, arguments.peers)
    writer = peers.available(["zarr fused", "zarr batched"])[0][-1]
    values = data.load_field(case, folder)
    path = case.create(folder / "www" / "array")
    with writer.turn():
        writer.write(writer.open(path, case), case.whole, values)
    document: dict[str, Any] = {"machine": machine.facts(folder), "latency": arguments.latency, "rows": {}}
    document |= {"bandwidth": arguments.bandwidth, "codec": arguments.codec}
    with web.Web(folder / "www", folder, arguments.latency / 1e3, arguments.bandwidth * 1e6) as server:
        arrays = {peer.name: opened(peer, f"{server.url}/array") for peer in contestants}
        rivals = [peer.name for peer in contestants if peer.is_rival]
        for name, box in rows(case).items():
            if not program.is_chosen(name, arguments.rows):
                continue
            results = measure(server, contestants, arrays, box, values[box], arguments.rounds)
            document["rows"][name] = results
            print(table(name, results, OURS))
            for line in verdict(results, OURS, rivals) if OURS in results else ():
                print(f"{line}  ")
            print(f"load {os.getloadavg()[0]:.2f}", flush=True)
    return document


def parse() -> argparse.Namespace:
    parser = program.network_parser(__file__, __doc__, ALL)
    parser.add_argument(
        "--concurrency", type=int, default=OverObstore.concurrency, help="zarr's async.concurrency (32)"
    )
    parser.add_argument("--bandwidth", type=float, default=0.0, help="MB/s of all answers (0: unbounded)")
    parser.add_argument("--codec", choices=tuple(floor.CODECS), default="zstd 1")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    OverObstore.concurrency = arguments.concurrency
    if reason := web.why_not():
        print(f"skipped: {reason}")
        return
    program.run(compare, arguments)


if __name__ == "__main__":
    main()
