"""Compare all peers that write to S3 with latency: requests, bytes, seconds.

    python bench/object_writes.py              256^3 uint16, shards 128^3, inner chunks 32^3, 20 ms
    python bench/object_writes.py --quick      64^3: shows that the harness works
    python bench/object_writes.py --large      one new shard of 1 GiB in addition; needs 6 GiB of memory

The server is moto on this machine, behind a proxy that delays and counts (see web.py). Each row is prepared before anything is
counted: the array exists, whole or empty, and is open. After each turn the values are read back by zarr without the proxy. moto
is written in Python and has one process, so seconds contain its work; requests do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import data
import machine
import numpy as np
import peers
import program
import web
from data import Array, Box, Case

SERVERS = Path(__file__).resolve().parents[1] / "tests"
BUCKET_REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
OURS = "shardcodec"

# A peer that takes longer in a row has no second turn.
SLOW_SECONDS = 20.0


class Place:
    """An array in a bucket, and the ports of the server: with and without latency."""

    def __init__(self, bucket: str, path: str, port: int) -> None:
        self.bucket = bucket
        self.path = path
        self.port = port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def obstore(self) -> Any:
        """Return zarr's ObjectStore of the array's folder."""
        from obstore.store import S3Store
        from zarr.storage import ObjectStore

        store = S3Store(
            self.bucket,
            prefix=self.path,
            endpoint=self.endpoint,
            region=BUCKET_REGION,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": "300s"},
        )
        return ObjectStore(store)

    def s3fs(self) -> Any:
        """Return zarr's FsspecStore of the array's folder."""
        from zarr.storage import FsspecStore

        options = {"endpoint_url": self.endpoint, "client_kwargs": {"region_name": BUCKET_REGION}}
        return FsspecStore.from_url(f"s3://{self.bucket}/{self.path}", storage_options=options)


class OverObstore:
    """zarr.Array, one pipeline, zarr's ObjectStore."""

    needs = "obstore"

    def __init__(self, base: peers.Zarr, suffix: str = "") -> None:
        self.base = base
        self.name = base.name + suffix
        self.is_rival = base.is_rival
        self.turn = base.turn

    def why_not(self) -> str | None:
        missing = importlib.util.find_spec(self.needs) is None
        return f"{self.needs} is not installed" if missing else self.base.why_not()

    def open(self, place: Place) -> Any:
        import zarr

        return zarr.open_array(place.obstore(), mode="r+")

    def write(self, array: Any, boxes: list[Box], values: Array) -> None:
        """Write boxes, together where the peer offers that."""
        if len(boxes) > 1 and self.base.can_gather:
            with self.base.gathering(array) as gathering:
                for box in boxes:
                    self.base.write(gathering, box, values[box])
            return
        for box in boxes:
            self.base.write(array, box, values[box])


class OverS3fs(OverObstore):
    """The same over s3fs."""

    needs = "s3fs"

    def open(self, place: Place) -> Any:
        import zarr

        return zarr.open_array(place.s3fs(), mode="r+")


class TensorStore(OverObstore):
    """TensorStore's own S3 driver, without a cache pool."""

    needs = "tensorstore"

    def __init__(self, n_requests: int) -> None:
        super().__init__(peers.TensorStore(), f" ({n_requests} at a time)")  # type: ignore[arg-type]
        self.n_requests = n_requests

    def open(self, place: Place) -> Any:
        import tensorstore

        kvstore = {
            "driver": "s3",
            "bucket": place.bucket,
            "path": f"{place.path}/",
            "endpoint": place.endpoint,
            "aws_region": BUCKET_REGION,
            "aws_credentials": {"type": "environment"},
        }
        context = {
            "cache_pool": {"total_bytes_limit": 0},
            "data_copy_concurrency": {"limit": peers.N_THREADS},
            "s3_request_concurrency": {"limit": self.n_requests},
        }
        return tensorstore.open(
            {"driver": "zarr3", "kvstore": kvstore, "context": context}, open=True
        ).result()


CONTESTANTS: tuple[OverObstore, ...] = (
    OverObstore(peers.ShardCodec()),
    OverS3fs(peers.ShardCodec(), " (s3fs)"),
    OverObstore(peers.ZarrBatched()),
    OverObstore(peers.ZarrFused()),
    OverS3fs(peers.ZarrBatched(), " (s3fs)"),
    OverS3fs(peers.ZarrFused(), " (s3fs)"),
    OverObstore(peers.Zarrs()),
    TensorStore(32),
    TensorStore(320),
)


def rows(case: Case) -> dict[str, tuple[bool, list[Box]]]:
    """Return for each row whether the array exists before, and the boxes that are written."""
    shard, inner = case.shard[0], case.inner[0]

    def cube(start: int, extent: int) -> Box:
        return (slice(start, start + extent),) * 3

    chunks = [
        tuple(slice(int(i) * inner, (int(i) + 1) * inner) for i in index)
        for index in np.ndindex(*(n // inner for n in case.shard))
    ]
    return {
        "new array, whole": (False, [case.whole]),
        "array overwritten": (True, [case.whole]),
        "one inner chunk": (True, [cube(0, inner)]),
        "box of 40^3 in one shard": (True, [cube(3, inner + inner // 4)]),
        "box of 40^3 across 8 shards": (True, [cube(shard - inner * 5 // 8, inner + inner // 4)]),
        f"{len(chunks[::2])} of {len(chunks)} inner chunks of a shard, grouped or one by one": (
            True,
            chunks[::2],
        ),
    }


@contextmanager
def served(folder: Path, latency: float) -> Iterator[tuple[Any, web.Line]]:
    """Run moto and the proxy; yield the server and the proxy."""
    sys.path.insert(0, str(SERVERS))
    from servers.s3 import s3_server  # the server of the tests

    with s3_server() as server, web.Line(server.port, folder, latency / 1e3) as line:
        yield server, line


class Measurement:
    """The rows of one case."""

    def __init__(self, server: Any, line: web.Line, case: Case, values: Array) -> None:
        self.server = server
        self.line = line
        self.case = case
        self.values = values
        self.bucket = server.make_bucket()
        self._n = 0

    def new_place(self, is_filled: bool) -> Place:
        """Make an array, without latency."""
        self._n += 1
        place = Place(self.bucket, f"array-{self._n}", self.server.port)
        store = place.obstore().store
        store.put("zarr.json", json.dumps(self.case.metadata()).encode())
        if is_filled:
            OverObstore(peers.ShardCodec()).write(self.opened(place), [self.case.whole], self.old)
        return Place(self.bucket, place.path, self.line.port)

    @property
    def old(self) -> Array:
        return self.values[::-1]

    def opened(self, place: Place) -> Any:
        with peers.ShardCodec().turn():
            return OverObstore(peers.ShardCodec()).open(place)

    def one(self, peer: OverObstore, is_filled: bool, boxes: list[Box]) -> tuple[float, web.Traffic]:
        """Write once; return seconds and traffic."""
        place = self.new_place(is_filled)
        with peer.turn():
            array = peer.open(place)
            machine.take_memory_back(self.values.nbytes)
            self.line.traffic()
            start = time.perf_counter()
            peer.write(array, boxes, self.values)
            seconds = time.perf_counter() - start
        traffic = self.line.traffic()
        self.check(place, is_filled, boxes, peer.name)
        return seconds, traffic

    def check(self, place: Place, is_filled: bool, boxes: list[Box], name: str) -> None:
        expected = np.array(self.old) if is_filled else np.zeros_like(self.values)
        for box in boxes:
            expected[box] = self.values[box]
        direct = Place(self.bucket, place.path, self.server.port)
        with peers.ZarrBatched().turn():
            import zarr

            found = np.asarray(zarr.open_array(direct.obstore(), mode="r")[...])
        if not np.array_equal(found, expected):
            raise AssertionError(f"{name} stored other values")
        store = direct.obstore().store
        store.delete([entry["path"] for entry in store.list().collect()])

    def row(
        self, contestants: list[OverObstore], is_filled: bool, boxes: list[Box], rounds: int
    ) -> dict[str, dict[str, Any]]:
        results: dict[str, dict[str, Any]] = {}
        for number in range(rounds + 1):  # the first turn opens connections
            first = number % len(contestants)
            for peer in contestants[first:] + contestants[:first]:
                result = results.setdefault(peer.name, {"seconds": []})
                if "failed" in result or any(seconds > SLOW_SECONDS for seconds in result["seconds"]):
                    continue
                try:
                    seconds, traffic = self.one(peer, is_filled, boxes)
                except Exception as error:  # noqa: BLE001 (the failure of a peer is a result)
                    result["failed"] = f"{type(error).__name__}: {error}"[:200]
                    continue
                if number or seconds > SLOW_SECONDS:
                    result["seconds"].append(seconds)
                result |= {
                    "requests": traffic.requests,
                    "sent": traffic.sent_nbytes,
                    "received": traffic.nbytes,
                }
        return results


def table(name: str, results: dict[str, dict[str, Any]]) -> str:
    ours = results[OURS] if "failed" not in results.get(OURS, {"failed": ""}) else None
    lines = [
        f"\n### {name}\n",
        "| | requests | MB sent | MB received | ms | ours: requests, seconds |",
        "|---|---|---|---|---|---|",
    ]
    for peer, result in results.items():
        if "failed" in result:
            lines.append(f"| {peer} | failed: {result['failed']} | | | | |")
            continue
        seconds = median(result["seconds"])
        ratios = ""
        if ours is not None:
            ratios = f"{ours['requests'] / result['requests']:.2f}, {median(ours['seconds']) / seconds:.2f}"
        sent, received = result["sent"] / 1e6, result["received"] / 1e6
        lines.append(
            f"| {peer} | {result['requests']} | {sent:.2f} | {received:.2f} | {1e3 * seconds:.0f} | {ratios} |"
        )
    return "\n".join(lines) + "\n"


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    contestants = program.chosen(CONTESTANTS, arguments.peers)
    case = data.big(64 if arguments.quick else 256).with_codec(arguments.codec)
    document: dict[str, Any] = {"machine": machine.facts(folder), "latency": arguments.latency, "rows": {}}
    with served(folder, arguments.latency) as (server, line):
        measurement = Measurement(server, line, case, data.load_field(case, folder))
        plan = [(name, measurement, *row) for name, row in rows(case).items()]
        if arguments.large:
            large = replace(
                data.big(512), shape=(1024, 1024, 512), shard=(1024, 1024, 512), inner=(64, 64, 64)
            )
            values = np.tile(data.load_field(data.big(512), folder), (2, 2, 1))
            plan.append(
                ("new shard of 1 GiB", Measurement(server, line, large, values), False, [large.whole])
            )
        for name, measured, is_filled, boxes in plan:
            if not program.is_chosen(name, arguments.rows):
                continue
            document["rows"][name] = results = measured.row(contestants, is_filled, boxes, arguments.rounds)
            print(table(name, results))
            print(f"load {os.getloadavg()[0]:.2f}", flush=True)
    return document


def parse() -> argparse.Namespace:
    parser = program.network_parser(__file__, __doc__, CONTESTANTS)
    parser.add_argument("--large", action="store_true", help="one shard of 1 GiB too")
    parser.add_argument("--codec", default="zstd 1")
    return parser.parse_args()


def main() -> None:
    os.environ.update(KEYS)
    program.run(compare, parse())


if __name__ == "__main__":
    main()
