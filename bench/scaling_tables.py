"""The tables of the section "Scaling" of docs/performance.md, made from the result of scaling.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import model
from report import first_lines, line_of, short

Json = dict[str, Any]
Cells = list[list[str]]

MIB = 1 << 20
THREADS = ("1", "2", "4", "8", "16", "32", "64")
OBJECTS = {"1000": "10³", "10000": "10⁴", "100000": "10⁵", "1000000": "10⁶"}


def rows_of(document: Json, group: str) -> list[Json]:
    return [row for row in document.get("rows", []) if row["group"] == group]


def times(row: Json, keys: tuple[str, ...], unit: float) -> list[str]:
    peers = row["peers"]
    return [short(min(peers[key]["seconds"]) / unit) if key in peers else "" for key in keys]


def threads(document: Json) -> Cells:
    """Return milliseconds of whole arrays by the number of threads on two cores."""
    return [[row["name"], *times(row, THREADS, 1e-3)] for row in rows_of(document, "threads on 2 cores")]


def fitted(document: Json) -> Cells:
    """Return times on one and two cores, the fitted costs, and the limits."""
    lines = []
    for group in model.SERIAL:
        for name, costs in model.fits(document, group).items():
            measured, limit = model.times_of(document, group)[name], model.limits(document, name, group)
            one, two = measured[1, 1], measured[2, 2]
            lines.append(
                [
                    name if group == "threads" else f"{name}, by {group}",
                    f"{short(1e3 * one)} / {short(1e3 * two)}",
                    f"{100 * costs.serial / one:.1f} %",
                    f"{short(1e6 * costs.wake)} µs" if costs.wake else "0",
                    f"{100 * costs.error:.0f} %",
                    f"{max(1, limit.memory):.0f}",
                    f"{limit.shared:,}" if limit.shared < model.MOST_CORES else "more than 1,000",
                    limit.reason,
                ]
            )
    return lines


def python_threads(document: Json) -> Cells:
    """Return microseconds of one read while several threads of Python read."""
    return [
        [
            f"{row['name']}, {row['group'].rpartition(' on ')[2].replace('1 cores', '1 core')}",
            *times(row, THREADS, 1e-6),
        ]
        for n in (1, 2)
        for row in rows_of(document, f"Python threads on {n} cores")
    ]


def sizes(document: Json) -> Cells:
    """Return milliseconds of whole arrays by their size."""
    keys = tuple(str(2 * edge**3) for edge in (64, 128, 256, 512))
    return [[row["name"], *times(row, keys, 1e-3)] for row in rows_of(document, "size")]


def objects(document: Json) -> Cells:
    """Return seconds by the number of shards, how they grow, and the largest growth of memory."""
    lines = []
    for row in rows_of(document, "objects"):
        peers = row["peers"]
        grows = f"{model.exponent(peers):.2f}" if len(peers) > 1 else ""
        nbytes = peers[max(peers, key=int)]["peak_nbytes"]
        lines.append([row["name"], *times(row, tuple(OBJECTS), 1), grows, f"{nbytes / MIB:.0f}"])
    return lines


COUNTERS = ("locks", "locks that waited", "wake-ups", "atomic updates", "atomic loads")


def shared(document: Json) -> Cells:
    """Return what an inner chunk costs of things that threads share."""
    calls = {entry["name"]: entry for entry in document["calls"]}
    lines = []
    for entry in document["counts"]:
        counted = calls[entry["name"]]
        most = sorted(counted["kinds"], key=counted["kinds"].__getitem__, reverse=True)[:3]
        lines.append(
            [
                entry["name"],
                *(count(entry[key]) for key in COUNTERS),
                count(counted["system calls"]),
                ", ".join(f"`{kind}` {count(counted['kinds'][kind])}" for kind in most),
            ]
        )
    return lines


def count(value: float) -> str:
    return "0" if value == 0 else "< 0.001" if value < 0.001 else short(value)


# Name, first line, and lines of each table. Those in one paragraph of the page are measured by one part.
TABLES: tuple[tuple[str, list[str], Callable[[Json], Cells]], ...] = (
    (
        "shared",
        [
            "one inner chunk of",
            *COUNTERS,
            "system calls",
            "most of them",
        ],
        shared,
    ),
    ("threads", ["whole array, ms, by threads on 2 cores", *THREADS], threads),
    (
        "model",
        [
            "operation",
            "ms on 1 / 2 cores",
            "serial part",
            "a further thread",
            "largest error",
            "cores that use all memory bandwidth",
            "cores that do half as much as single ones",
            "what saturates first",
        ],
        fitted,
    ),
    ("python", ["one read, µs, by threads of Python", *THREADS], python_threads),
    ("sizes", ["whole array, ms, by size", "0.5 MiB", "4 MiB", "32 MiB", "256 MiB"], sizes),
    (
        "objects",
        ["s, by number of shards", *OBJECTS.values(), "power of the number", "MiB of memory"],
        objects,
    ),
)
NOT_YET = "Not measured yet: `make bench-scaling` on an idle machine.\n"


def blocks(document: Json) -> dict[str, str]:
    """Return the texts of the section by name; a part that was not measured has a sentence that says so."""
    texts = {"scaling machine": f"Measured on {machine(document)}\n"}
    for name, labels, cells_of in TABLES:
        try:
            cells = cells_of(document)
        except LookupError:
            cells = []
        texts[f"scaling {name}"] = first_lines(labels) + "".join(map(line_of, cells)) if cells else NOT_YET
    return texts


def machine(document: Json) -> str:
    """Return where it was measured, and whether other programs disturbed it."""
    facts, edge, rows = document["machine"], 512 // document["shrink"], document.get("rows", [])
    told = f"{edge}³ uint16, shards {edge // 2}³, inner chunks 32³; {facts['cpus_used']} cores of an {facts['cpu']}"
    told += f", Linux {facts['kernel'].partition('-')[0]}, {facts['file_system']}."
    others = max((row["disturbance"] or 0 for row in rows), default=0)
    if others > 0.1:
        told += f" Other programs used up to {others:.1f} cores meanwhile, so the times are too long; the counters are right."
    if rows_of(document, "memory"):
        reached = model.copy_bandwidth(document) / 1e9
        told += f" Copies of memory reach {reached:.1f} GB/s on all cores, read and written bytes together."
    return told
