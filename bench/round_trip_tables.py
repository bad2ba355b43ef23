"""The tables of docs/performance.md on file systems whose calls cost a round trip, made from the result of round_trips.py."""

from __future__ import annotations

from statistics import median
from typing import Any

from report import first_lines, line_of, short

Json = dict[str, Any]

OURS, ATTACHED = "shardcodec", "shardcodec attach"
NOT_OTHERS = (OURS, ATTACHED, "shardcodec (indexes known)", "zarr alone")
NAMES = {"tensorstore": "TensorStore"}
CODECS = ("raw", "zstd 1")
DELAYS = {"50 us": "50 µs", "200 us": "200 µs", "2000 us": "2 ms", "10000 us": "10 ms"}
COLD = "0 us, cold"
ROWS = {
    "one inner chunk": "one inner chunk",
    "box of 40³": "box of 40^3",
    "corner of 8 shards": "corner of 8 shards",
    "plane, axis 0": "plane across axis 0",
    "plane, axis 2": "plane across axis 2",
    "one shard": "one shard",
    "whole array": "whole array",
}
WRITTEN = {"whole array written": "whole array written"}
MANY = {"100 boxes of 40³, one after the other": "boxes of 40^3, one after the other"}


def milliseconds(document: Json, group: str, name: str) -> dict[str, float]:
    """Return the medians of the peers in a row; LookupError if the result does not have it."""
    for row in document["rows"]:
        if (row["group"], row["name"]) == (group, name):
            return {
                peer: 1e3 * median(of["seconds"]) for peer, of in row["peers"].items() if of.get("seconds")
            }
    raise LookupError(f"the result has no row {name!r} of {group!r}")


def bold(texts: dict[str, tuple[float, str]]) -> list[str]:
    """Return the texts, the one with the shortest time bold."""
    shortest = min(time for time, _ in texts.values())
    return [f"**{text}**" if time == shortest else text for time, text in texts.values()]


def fastest_other(times: dict[str, float]) -> str:
    others = {name: time for name, time in times.items() if name not in NOT_OTHERS}
    return min(others, key=others.__getitem__)


def delayed(document: Json) -> str:
    """Return the table of delays: ours / the fastest other."""
    lines = [first_lines(["delay of a call", *DELAYS.values()])]
    for codec in CODECS:
        for label, name in (ROWS | WRITTEN).items():
            cells = []
            for group in DELAYS:
                times = milliseconds(document, group, f"{codec}: {name}")
                pair = {key: (times[key], short(times[key])) for key in (OURS, fastest_other(times))}
                cells.append(" / ".join(bold(pair)))
            lines.append(line_of([f"{label}, {codec}", *cells]))
    return "".join(lines)


def cold(document: Json) -> str:
    """Return the table of a cold page cache: ours, an array of `attach`, and the fastest other with its name."""
    labels = [f"{codec}: shardcodec | `attach` | fastest other" for codec in CODECS]
    lines = [first_lines(["cold page cache", *" | ".join(labels).split(" | ")])]
    for label, name in (ROWS | MANY | WRITTEN).items():
        cells = []
        for codec in CODECS:
            times = milliseconds(document, COLD, f"{codec}: {name}")
            other = fastest_other(times)
            named = bold({key: (times[key], short(times[key])) for key in (OURS, ATTACHED, other)})
            cells += [*named[:2], f"{named[2]} ({NAMES.get(other, other)})"]
        lines.append(line_of([label, *cells]))
    return "".join(lines)
