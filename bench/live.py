"""Compare writers of frames that come one after the other.

    python bench/live.py                                   512 x 512 and 2048 x 2048, raw, zstd 1, Blosc lz4: about twenty minutes
    python bench/live.py --quick                           shows that the harness works
    python bench/live.py --parts speed --frames 200 --rounds 1                 frames/s alone, about five minutes
    python bench/live.py --sizes 512 --codecs raw --chunks 1 --parts kills     20 kills of each writer, about three minutes
    python bench/live.py --sizes 512 --kills 5             about six minutes
    python bench/live.py --sizes 2048 --frames 100 --chunks 1 --parts speed

Needed besides zarr: acquire-zarr (`pip install acquire-zarr`); without it, its column is left out. Each turn has a process of its own, and the
peers take turns. Three parts:

speed   all frames as fast as the writer takes them: frames/s until `close` has returned, `append` in ms, growth of resident memory
delay   50 frames/s: seconds from the begin of `append` until another process reads the frame with zarr
kills   SIGKILL at a random moment: frames that `append` has taken, those that can be read, those that are lost, and of these the ones that the
        writer had reported as stored

The frames/s are those that the benchmark of ome-writers calls "write": frames one by one, as fast as possible, and the close. Its backends are a fixed list,
to which no other package can add one, so acquire-zarr is called directly.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
import program

PEERS = ("shardcodec", "acquire-zarr", "zarr fused")
CODECS = ("raw", "zstd", "lz4")
PARTS = ("speed", "delay", "kills")
RATE = 50.0
N_IMAGES = 8


@dataclass(frozen=True)
class Live:
    """Frames of one size in one layout. chunk: frames of an inner chunk."""

    size: int
    codec: str
    chunk: int
    n: int

    @property
    def shard(self) -> int:
        """Frames of a shard."""
        return 96 if self.size <= 512 else 32

    @property
    def name(self) -> str:
        return f"{self.size}^2 {self.codec}, chunks of {self.chunk}"

    def images(self) -> list[np.ndarray[Any, Any]]:
        """Return some images: a smooth field and the noise of a camera, 12 bits."""
        y, x = np.mgrid[: self.size, : self.size] / self.size
        field = 1500 + 900 * np.sin(9 * x + 5 * y) * np.cos(7 * y)
        rng = np.random.default_rng(self.size)
        return [
            (field + 40 * rng.standard_normal(field.shape)).clip(1, 4095).astype("uint16")
            for _ in range(N_IMAGES)
        ]

    def zarr_codecs(self) -> Any:
        from zarr.codecs import BloscCodec, ZstdCodec

        if self.codec == "raw":
            return None
        if self.codec == "zstd":
            return ZstdCodec(level=1)
        return BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=2)

    def create(self, path: Path) -> Any:
        import zarr

        n = -(-self.n // self.shard) * self.shard
        return zarr.create_array(
            path,
            shape=(n, self.size, self.size),
            shards=(self.shard, self.size, self.size),
            chunks=(self.chunk, self.size, self.size),
            dtype="uint16",
            fill_value=0,
            compressors=self.zarr_codecs(),
        )


# ---------------------------------------------------------------- the writers: append, close, stored


class Ours:
    def __init__(self, path: Path, live: Live) -> None:
        import shardcodec

        live.create(path)
        self._stream: Any = shardcodec.stream(path)
        self.append, self.close = self._stream.append, self._stream.close

    def stored(self) -> int:
        return int(self._stream.stored)


class Acquire:
    def __init__(self, path: Path, live: Live) -> None:
        import acquire_zarr as aqz

        kinds = aqz.DimensionType
        axes = [("t", kinds.TIME, 0, live.chunk, live.shard // live.chunk)]
        axes += [(name, kinds.SPACE, live.size, live.size, 1) for name in "yx"]
        dimensions = [
            aqz.Dimension(name=name, kind=kind, array_size_px=n, chunk_size_px=chunk, shard_size_chunks=shard)
            for name, kind, n, chunk, shard in axes
        ]
        compression = None
        if live.codec != "raw":
            codec = aqz.CompressionCodec.BLOSC_LZ4
            compressor = aqz.Compressor.BLOSC1
            if live.codec == "zstd":  # newer releases have zstd itself, others only within Blosc
                codec = getattr(aqz.CompressionCodec, "ZSTD", aqz.CompressionCodec.BLOSC_ZSTD)
                compressor = getattr(aqz.Compressor, "ZSTD", compressor)
            shuffle = int(not hasattr(aqz.Compressor, "ZSTD") or live.codec != "zstd")
            compression = aqz.CompressionSettings(
                compressor=compressor, codec=codec, level=1, shuffle=shuffle
            )
        array = aqz.ArraySettings(
            output_key="", dimensions=dimensions, data_type=aqz.DataType.UINT16, compression=compression
        )
        threads = int(os.environ.get("BENCH_THREADS", "2"))
        settings = aqz.StreamSettings(
            store_path=str(path), arrays=[array], overwrite=True, max_threads=threads
        )
        self._stream = aqz.ZarrStream(settings)
        self.append, self.close = self._stream.append, self._stream.close

    def stored(self) -> int:
        return 0  # it does not say


class Fused:
    """zarr, which gets whole shards: a frame at a time would write the shard again for each frame."""

    def __init__(self, path: Path, live: Live) -> None:
        import zarr

        if importlib.util.find_spec("zarr.core.codec_pipeline") is not None:
            from zarr.core import codec_pipeline

            if hasattr(codec_pipeline, "FusedCodecPipeline"):
                zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"})
        live.create(path)
        self._array = zarr.open_array(path, mode="r+")
        self._frames = np.empty((live.shard, live.size, live.size), "uint16")
        self._n = self._done = 0

    def append(self, frame: Any) -> None:
        self._frames[self._n - self._done] = frame
        self._n += 1
        if self._n - self._done == len(self._frames):
            self.close()

    def close(self) -> None:
        if self._n > self._done:
            self._array[self._done : self._n] = self._frames[: self._n - self._done]
        self._done = self._n

    def stored(self) -> int:
        return self._done


WRITERS: dict[str, Any] = {"shardcodec": Ours, "acquire-zarr": Acquire, "zarr fused": Fused}


# ---------------------------------------------------------------- in the process of a writer


def write_fast(peer: str, path: Path, live: Live) -> dict[str, Any]:
    """Append all frames as fast as possible; the first frames of another array make threads and buffers."""
    from memory import Peak

    images = live.images()
    small = Live(64, live.codec, live.chunk, live.shard)
    writer = WRITERS[peer](path / "warm", small)
    for _ in range(small.n):
        writer.append(small.images()[0])
    writer.close()
    peak = Peak()
    writer = WRITERS[peer](path / "a", live)
    times = np.empty(live.n)
    begin = time.perf_counter()
    for number in range(live.n):
        before = time.perf_counter()
        writer.append(images[number % N_IMAGES])
        times[number] = time.perf_counter() - before
    writer.close()
    seconds = time.perf_counter() - begin
    growth = peak.stop()
    check(path / "a", live, images)
    return {
        "frames_per_s": live.n / seconds,
        "median_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
        "memory_mib": growth / 2**20,
        "stored_mib": sum(p.stat().st_size for p in (path / "a").rglob("*") if p.is_file()) / 2**20,
    }


def check(path: Path, live: Live, images: list[np.ndarray[Any, Any]]) -> None:
    import zarr

    array = zarr.open_array(path, mode="r")
    for number in (0, live.n // 2, live.n - 1):
        if not (array[number] == images[number % N_IMAGES]).all():
            raise AssertionError(f"frame {number} is wrong")


def write_numbered(peer: str, path: Path, live: Live, rate: float) -> None:
    """Append frames that begin with their number plus 1; print number, time and stored frames of each. Until the kill, or n frames."""
    images = live.images()
    writer = WRITERS[peer](path / "a", live)
    begin = time.time()
    for number in range(live.n):
        if rate:
            time.sleep(max(0.0, begin + number / rate - time.time()))
        frame = images[number % N_IMAGES]
        frame[0, 0] = number + 1
        at = time.time()
        writer.append(frame)
        sys.stdout.write(f"{number} {at!r} {writer.stored()}\n")
        sys.stdout.flush()
    sys.stdin.readline()  # the parent has read what it wanted
    writer.close()


# ---------------------------------------------------------------- in the parent


def in_process(mode: str, peer: str, path: Path, live: Live, **streams: Any) -> subprocess.Popen[str]:
    job = json.dumps({"mode": mode, "peer": peer, "path": str(path), "live": asdict(live)})
    return subprocess.Popen([sys.executable, __file__, "--job", job], text=True, **streams)


def speed(peer: str, path: Path, live: Live) -> dict[str, Any]:
    process = in_process("fast", peer, path, live, stdout=subprocess.PIPE)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{peer} ended with {process.returncode}")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def readable_frames(path: Path, first: int, n: int) -> list[bool]:
    """Open the array anew with zarr, and return which of n frames can be read; one by one if not all can."""
    import zarr

    def look(at: int, count: int) -> list[bool]:
        numbers = array[at : at + count, 0, 0]
        return [i < len(numbers) and int(numbers[i]) == at + i + 1 for i in range(count)]

    with contextlib.suppress(Exception):  # no metadata yet
        array = zarr.open_array(path, mode="r")
        with contextlib.suppress(Exception):  # a shard without an index
            return look(first, n)
        found = []
        for number in range(first, first + n):
            try:
                found += look(number, 1)
            except Exception:  # noqa: BLE001
                found.append(False)
        return found
    return [False] * n


def delay(peer: str, path: Path, live: Live) -> dict[str, Any]:
    """Read each frame as soon as possible. A frame that is not readable 5 s after the last one was appended counts as never."""
    import zarr  # noqa: F401  # else the first frame waits for it

    process = in_process("paced", peer, path, live, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    seconds: list[float] = []
    appended: list[float] = []
    os.set_blocking(process.stdout.fileno(), False)
    rest, last = b"", time.time() + 60
    while len(seconds) < live.n and time.time() < last + 5:
        with contextlib.suppress(BlockingIOError):
            rest += os.read(process.stdout.fileno(), 1 << 16)
        *lines, rest = rest.split(b"\n")
        for line in lines:
            appended.append(float(line.split()[1]))
            last = appended[-1]
        first, n_waiting = len(seconds), len(appended) - len(seconds)
        readable = readable_frames(path / "a", first, n_waiting) if n_waiting else []
        now = time.time()
        for number in range(first, first + [*readable, False].index(False)):
            seconds.append(now - appended[number])
        time.sleep(0.001)
    with contextlib.suppress(BrokenPipeError):  # the writer has failed
        process.stdin.write("\n")
        process.stdin.close()
    if process.wait():
        raise RuntimeError(f"{peer} ended with {process.returncode}")
    n_never = live.n - len(seconds)
    found = {"readable_before_close": len(seconds), "frames": live.n}
    if seconds:
        found |= {"median_s": median(seconds), "longest_s": max(seconds)}
    return found | {"never": n_never}


def kills(peer: str, path: Path, live: Live, n_kills: int) -> dict[str, Any]:
    chance = random.Random(7)
    total: dict[str, int] = {"kills": n_kills, "appended": 0, "readable": 0, "lost": 0, "stored_and_lost": 0}
    for number in range(n_kills):
        folder = path / f"kill{number}"
        process = in_process("endless", peer, folder, live, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(chance.uniform(0.2, 1.0))
        process.send_signal(signal.SIGKILL)
        lines = [line for line in (first + process.stdout.read()).split("\n")[:-1] if line.count(" ") == 2]
        process.wait()
        if not lines:
            raise RuntimeError(f"{peer} appended nothing")
        n, stored = len(lines), int(lines[-1].split()[2])
        readable = readable_frames(folder / "a", 0, n)
        total["appended"] += n
        total["readable"] += sum(readable)
        total["lost"] += n - sum(readable)
        total["stored_and_lost"] += stored - sum(readable[:stored])
        shutil.rmtree(folder, ignore_errors=True)
    return total


def take_turns(
    part: str, live: Live, peers: list[str], rounds: int, folder: Path, n_kills: int
) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {peer: [] for peer in peers}
    for number in range(rounds if part == "speed" else 1):
        first = number % len(peers)
        for peer in peers[first:] + peers[:first]:
            path = Path(tempfile.mkdtemp(dir=folder))
            try:
                if part == "kills":
                    found[peer].append(kills(peer, path, live, n_kills))
                else:
                    found[peer].append({"speed": speed, "delay": delay}[part](peer, path, live))
            except Exception as error:  # noqa: BLE001 (the failure of a peer is a result)
                found[peer].append({"failed": f"{type(error).__name__}: {error}"})
            finally:
                shutil.rmtree(path, ignore_errors=True)
                os.sync()
    return found


def text_of(results: list[dict[str, Any]]) -> str:
    """Return the medians of the rounds as text."""
    if any("failed" in result for result in results):
        return str(next(result["failed"] for result in results if "failed" in result))
    return "  ".join(f"{name} {median(result[name] for result in results):.4g}" for name in results[0])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few frames")
    parser.add_argument("--sizes", default="512,2048")
    parser.add_argument("--codecs", type=program.some_of(CODECS), default=list(CODECS))
    parser.add_argument("--chunks", default="1,8", help="frames of an inner chunk")
    parser.add_argument("--frames", type=program.positive, default=500)
    parser.add_argument("--rounds", type=program.positive, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parts", type=program.some_of(PARTS), default=list(PARTS))
    parser.add_argument("--peers", type=program.some_of(PEERS), default=list(PEERS))
    parser.add_argument("--folder", type=program.folder, default=None)
    parser.add_argument("--json", type=program.file_to_write, default=None)
    parser.add_argument("--job", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def do_job(job: dict[str, Any]) -> None:
    path, live = Path(job["path"]), Live(**job["live"])
    path.mkdir(parents=True, exist_ok=True)
    if job["mode"] == "fast":
        sys.stdout.write(json.dumps(write_fast(job["peer"], path, live)) + "\n")
    else:
        write_numbered(job["peer"], path, live, RATE if job["mode"] == "paced" else 0.0)


def main() -> None:
    arguments = parse()
    if arguments.job is not None:
        do_job(json.loads(arguments.job))
        return
    peers = [
        peer for peer in arguments.peers if peer != "acquire-zarr" or importlib.util.find_spec("acquire_zarr")
    ]
    n = 100 if arguments.quick else arguments.frames
    rounds, n_kills = (1, 2) if arguments.quick else (arguments.rounds, arguments.kills)
    document: dict[str, Any] = {"rows": []}
    with tempfile.TemporaryDirectory(prefix="bench-live-", dir=arguments.folder) as folder:
        document["machine"] = machine.facts(Path(folder))
        for size in map(int, arguments.sizes.split(",")):
            for codec in arguments.codecs:
                for chunk in map(int, arguments.chunks.split(",")):
                    for part in arguments.parts:
                        # 50 frames/s of 8 MiB are more than a disk takes; the process is killed within a second
                        live = Live(size, codec, chunk, {"speed": n, "delay": 150, "kills": 2000}[part])
                        if part != "speed" and size > 512:
                            continue
                        found = take_turns(part, live, peers, rounds, Path(folder), n_kills)
                        document["rows"].append({"part": part, **asdict(live), "peers": found})
                        print(f"{part}: {live.name}")
                        for peer, results in found.items():
                            print(f"    {peer:13} {text_of(results)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
