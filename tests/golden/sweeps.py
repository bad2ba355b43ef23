# sweeps.py - damage at every position, compared with the reference implementation
# SPDX-License-Identifier: MIT
"""Shards cut at every byte, at either end, and indexes in which each word takes each critical value.

The expected result is that of `tests/reference.py`, which is slow and simple.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from golden.make_broken import FILL, Layout, case, nested
from reference import MalformedShard, ShardMeta, decode_shard, update_shard

import shardcodec

Json = dict[str, Any]
LAYOUTS = {
    "end": Layout(),
    "start": Layout(at_start=True),
    "end, no checksum": Layout(index_checksums=0),
    "start, no checksum": Layout(at_start=True, index_checksums=0),
    "chunks with checksums": Layout(chunk_checksum=True),
}
CRITICAL = (0, 1, 3, 5, 13, 16, 60, 63, 64, 76, 79, 80, 81, 2**32 + 4, 2**63 - 1, 2**63, 2**64 - 4, 2**64 - 1)
SELECTIONS = (np.s_[...], np.s_[0, 0], np.s_[:2, 2:4], np.s_[3, 0:4:3])


def shards() -> Iterator[tuple[str, Json, bytes]]:
    """Yield name, codec and bytes of every damaged shard."""
    for name, layout in LAYOUTS.items():
        yield from cuts(name, layout.codec(), layout.sound())
        if layout.index_checksums == 0:
            yield from words(name, layout)
    for name in ("end", "start"):
        layout = LAYOUTS[name]
        whole = nested(asdict(case("sound", "", "", layout.sound(), layout=layout)))
        yield from cuts(f"{name}, nested", whole["codec"], bytes.fromhex(whole["shard"]))


def cuts(name: str, codec: Json, sound: bytes) -> Iterator[tuple[str, Json, bytes]]:
    for n in range(len(sound)):
        yield f"{name}, cut to {n}", codec, sound[:n]
    for n in range(1, len(sound)):
        yield f"{name}, without the first {n}", codec, sound[n:]


def words(name: str, layout: Layout) -> Iterator[tuple[str, Json, bytes]]:
    sound = layout.sound()
    first = 0 if layout.at_start else len(sound) - layout.index_nbytes
    for word in range(8):
        at = first + 8 * word
        for value in CRITICAL:
            bad = sound[:at] + value.to_bytes(8, "little") + sound[at + 8 :]
            yield f"{name}, word {word} is {value}", layout.codec(), bad


def run_sweeps(folder: Path) -> Iterator[str]:
    from golden.run_broken import Ways, get, put

    ways = Ways(folder)
    for what, codec, blob in shards():
        print(what, flush=True)
        shape = (4, 8) if "nested" in what else (4, 4)
        document = codec["configuration"]
        meta = ShardMeta(document, shape, np.dtype("u1"), ord(FILL[0]))
        spec = shardcodec.ShardSpec.from_json(
            codec, shard_shape=shape, dtype="uint8", fill_value=ord(FILL[0])
        )
        for selection in SELECTIONS:
            due = result(lambda s=selection: decode_shard(blob, meta, s).tobytes())  # noqa: B023
            got = result(lambda s=selection: shardcodec.decode(blob, spec, s).tobytes())  # noqa: B023
            if got != due:
                yield f"{what}: {selection} gives {got!r} instead of {due!r}"
        made = {"codec": codec, "shape": list(shape), "inner": document["chunk_shape"], "array": list(shape)}
        array = ways.direct(ways.of(made)["files"])
        put(array.store, "c/0/0", blob)
        new = result(lambda: update_shard(blob, meta, (1, 1), ord("#")))  # noqa: B023
        done = result(lambda: array.__setitem__((1, 1), ord("#")))  # noqa: B023
        stored = get(array.store, "c/0/0") or b""
        if (new is None) != (done is None and stored == blob):
            yield f"{what}: an update was {'refused' if new else 'done'}"
        elif new is not None:
            for selection in SELECTIONS:
                due = result(lambda s=selection: decode_shard(new, meta, s).tobytes())  # noqa: B023
                got = result(lambda s=selection: shardcodec.decode(stored, spec, s).tobytes())  # noqa: B023
                if got != due:
                    yield f"{what}: after an update {selection} gives {got!r} instead of {due!r}"


def result(work: Any) -> Any:
    """Return the bytes, "done" if there are none, None for an error of ours; other exceptions are raised."""
    try:
        out = work()
    except (shardcodec.ShardError, MalformedShard):
        return None
    return "done" if out is None else out
