# compare_robustness.py - how each implementation handles the shards in broken/: the tables of docs/robustness.md
# SPDX-License-Identifier: MIT
"""Run every implementation on every shard of ``broken/cases.json`` and print tables in Markdown.

    PYTHONPATH=tests python -P tests/golden/compare_robustness.py [PEER ...]

Each call runs in a separate process with limited time and address space, so a crash or a hang becomes an entry of the
table. Nothing is timed.

Reading: the whole shard, then one element of a damaged inner chunk (of the second one if none is damaged). Updating:
one element of a valid inner chunk; then our own reader shows how the damaged one has changed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pickle
import re
import resource
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from golden.make_broken import FILL
from golden.run_broken import boxes, is_text, key_of, load, metadata, spec_of, text
from interop.peers import PEERS, US, Box, Peer, Zarrista

import shardcodec

SECONDS = 20
ROOM_NBYTES = 2 << 30
Json = dict[str, Any]


ALL: list[Peer] = [US, *PEERS, Zarrista()]
PACKAGES = {"shardcodec": "shardcodec", "zarr": "zarr", "zarr-fused": "zarr"}


# ---- one call in a separate process


@dataclass(frozen=True)
class Answer:
    """The outcome of a call: a value, an error (its class and message), or the end of the process."""

    kind: str  # "value", "error", "panic", "crash", "hang"
    value: bytes = b""
    says: str = ""


def ask(work: Callable[[], Any]) -> Answer:
    """Call in a forked child, in which no peer has started threads."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        silence()
        limit_memory()
        os.write(write_end, pickle.dumps(attempt(work)))
        os._exit(0)
    os.close(write_end)
    ready, _, _ = select.select([read_end], [], [], SECONDS)
    told = os.read(read_end, 1 << 16) if ready else b""
    os.close(read_end)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if told:
        answer: Answer = pickle.loads(told)
        return answer
    if not ready:
        return Answer("hang", says=f"no answer in {SECONDS} s")
    return Answer(
        "crash", says=signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
    )


def attempt(work: Callable[[], Any]) -> Answer:
    try:
        result = work()
    except BaseException as error:  # a panic of Rust is not an Exception
        kind = "panic" if type(error).__name__ == "PanicException" else "error"
        return Answer(kind, says=f"{type(error).__name__}: {str(error)[:300]}")
    return Answer("value", b"" if result is None else np.asarray(result).tobytes())


def silence() -> None:
    """Discard standard error: panics and aborts write to it too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# ---- one case


def lay_out(case: Json, folder: Path) -> Path:
    """Write the array and its shard to a new folder; return the folder."""
    at = folder / case["name"]
    shard = at / key_of(case)
    shard.parent.mkdir(parents=True, exist_ok=True)
    (at / "zarr.json").write_bytes(metadata(case))
    if case["shard"] is not None:
        shard.write_bytes(bytes.fromhex(case["shard"]))
    return at


def inside(case: Json) -> list[int]:
    """Return the inner chunks that lie at least partly inside the array."""
    return [k for k, box in enumerate(boxes(case)) if all(s.stop > s.start for s in box)]


def corner(case: Json, k: int) -> Box:
    return tuple(slice(s.start, s.start + 1) for s in boxes(case)[k])


def damaged_chunk(case: Json) -> int | None:
    bad = [k for k in inside(case) if not is_text(case["chunks"][k])]
    return bad[0] if bad else None


def judge_reading(case: Json, answer: Answer, wanted: list[int], *, whole: bool) -> str:
    """Return one word for an answer; bold words are wrong answers."""
    if answer.kind in ("panic", "crash", "hang"):
        return f"**{answer.kind}**"
    is_bad = any(not is_text(case["chunks"][k]) for k in wanted)
    if answer.kind == "error":
        return "error" if is_bad else "**refused**"
    if is_bad:
        return "**accepted**"
    if whole:
        got = np.frombuffer(answer.value, "u1").reshape(case["array"])
        right = all(got[boxes(case)[k]].tobytes() == text(case["chunks"][k], boxes(case)[k]) for k in wanted)
    else:
        right = answer.value == text(case["chunks"][wanted[0]], boxes(case)[wanted[0]])[:1]
    return "right" if right else "**wrong**"


def reading(peer: Peer, case: Json, folder: Path) -> tuple[str, Answer]:
    at = lay_out(case, folder)
    everything = tuple(slice(0, n) for n in case["array"])
    k = damaged_chunk(case)
    k = min(1, len(case["chunks"]) - 1) if k is None else k
    whole = ask(lambda: peer.read(at, everything))
    part = ask(lambda: peer.read(at, corner(case, k)))
    words = (
        judge_reading(case, whole, inside(case), whole=True),
        judge_reading(case, part, [k], whole=False),
    )
    said = whole if whole.kind != "value" else part
    return words[0] if words[0] == words[1] else " / ".join(words), said


def updating(peer: Peer, case: Json, folder: Path) -> tuple[str, Answer]:
    """Write another inner chunk; return what happened to the damaged one."""
    at = lay_out(case, folder)
    shard = at / key_of(case)
    before = shard.read_bytes()
    bad = damaged_chunk(case)
    assert bad is not None
    others = [k for k in inside(case) if k != bad]
    sound = next((k for k in others if is_text(case["chunks"][k])), others[0])
    box = corner(case, sound)
    answer = ask(lambda: peer.write(at, box, np.full([1] * len(box), ord("#"), "u1")))
    after = shard.read_bytes() if shard.exists() else b""
    if answer.kind != "value":
        word = answer.kind if answer.kind == "error" else f"**{answer.kind}**"
        return (word if after == before else f"{word}, **changed**"), answer
    return fate(case, after, bad), answer


def fate(case: Json, after: bytes, bad: int) -> str:
    try:
        now = bytes(shardcodec.decode(after, spec_of(case), boxes(case)[bad]).tobytes())
    except shardcodec.ChecksumError:
        return "carried"  # the bytes are unchanged, and their checksum still shows the damage
    except shardcodec.ShardError:
        return "**carried**"
    return "**emptied**" if now == FILL.encode() else "**laundered**"


# ---- the tables


def has_neighbours(case: Json) -> bool:
    return damaged_chunk(case) is not None and case["shard"] is not None and len(inside(case)) > 1


def table(peers: list[Peer], cases: list[Json], run: Any) -> list[tuple[Json, dict[str, Answer]]]:
    print("| shard | " + " | ".join(peer.name for peer in peers) + " |")
    print("|---" * (len(peers) + 1) + "|")
    said = []
    for case in cases:
        cells, answers = [], {}
        for peer in peers:
            with tempfile.TemporaryDirectory() as name:
                word, answers[peer.name] = run(peer, case, Path(name))
            cells.append(word)
        print(f"| {case['name']} | " + " | ".join(cells) + " |", flush=True)
        said.append((case, answers))
    return said


def quotations(said: list[tuple[Json, dict[str, Answer]]], names: list[str]) -> None:
    for case, answers in said:
        if case["name"] in names:
            print(f"\n{case['name']} ({case['note']}):\n")
            for peer, answer in answers.items():
                line = re.sub(r"/[^ \"]*/c/", "c/", " ".join(answer.says.split()))
                print(f"- {peer}: " + (f"`{line}`" if line else f"the bytes `{answer.value.hex(' ')}`"))


def version(peer: Peer) -> str:
    package = PACKAGES.get(peer.name, peer.name)
    try:
        return f"{peer.name} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return peer.name


QUOTED = [
    "index-bit-flipped-pair",
    "shorter-than-index",
    "only-offset-absent",
    "partly-beyond",
    "wrap-around-nbytes",
    "nbytes-2^40",
    "too-short",
    "lost-head",
    "chunk-bit-flipped",
]


def main(names: list[str]) -> None:
    import tensorstore  # noqa: F401  # imported once, before the forks
    import zarrs  # noqa: F401

    peers = [peer for peer in ALL if not names or peer.name in names]
    for peer in peers:
        if peer.missing():
            print(f"{peer.name} is left out: {peer.missing()}", file=sys.stderr)
    peers = [peer for peer in peers if not peer.missing()]
    print(", ".join(version(peer) for peer in peers) + "\n")
    cases = load()
    sound = [case for case in cases if damaged_chunk(case) is None]
    print("### Unusual but valid shards\n")
    table(peers, sound, reading)
    print("\n### Reading: the whole shard / one element of the damaged inner chunk\n")
    said = table(peers, [case for case in cases if case not in sound], reading)
    print("\n### Updating one element of another inner chunk\n")
    table(peers, [case for case in cases if has_neighbours(case)], updating)
    print("\n### What they say")
    quotations(said, QUOTED)


if __name__ == "__main__":
    main(sys.argv[1:])
