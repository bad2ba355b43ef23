"""Turn the JSON of run.py into Markdown.

python bench/report.py result.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

import program

OURS, FLOOR = "shardcodec", "floor"
OUR_HANDLES = (
    "open_array",
    "open_array r+",
    "open_array, cached index",
    "open_array, cache",
    "open_array, open files",
    "open_array, immutable",
)
YARDSTICKS = (FLOOR, "empty pipeline", "fill", "one pread", "copies", "find")
LARGER = 1.03


def is_ours(name: str) -> bool:
    """Return whether a peer is shardcodec, in any of its forms."""
    return name == OURS or name.startswith(OURS + " ") or name in OUR_HANDLES


def is_rival(name: str) -> bool:
    return not is_ours(name) and name not in YARDSTICKS


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def short(value: float) -> str:
    """Return a number with two or three significant digits, as the pages have them."""
    if value >= 1000:
        return str(round(value, 3 - len(str(int(value))))).removesuffix(".0")
    if value >= 10:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def first_lines(labels: list[str]) -> str:
    """Return the first two lines of a table of a page."""
    return line_of(labels) + f"|{'---|' * len(labels)}\n"


def line_of(cells: list[str]) -> str:
    """Return a line of a table."""
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"


def medians(row: dict[str, Any]) -> dict[str, float]:
    return {name: median(peer["seconds"]) for name, peer in row["peers"].items() if peer["seconds"]}


def fastest_rival(times: dict[str, float]) -> str | None:
    rivals = {name: t for name, t in times.items() if is_rival(name)}
    return min(rivals, key=rivals.__getitem__) if rivals else None


def too_large(row: dict[str, Any], name: str) -> bool:
    """Return whether the files of a writer are more than 3 % larger than ours (than the smallest, if ours are missing)."""
    sizes = {n: peer["stored_nbytes"] for n, peer in row["peers"].items() if "stored_nbytes" in peer}
    if name not in sizes or name == OURS:
        return False
    return bool(sizes[name] > LARGER * sizes.get(OURS, min(sizes.values())))


def cell(row: dict[str, Any], name: str, times: dict[str, float]) -> str:
    """Return milliseconds, ratio to the floor, and marks: bold for the fastest other peer, a dagger for larger files."""
    if name not in times:
        return "failed" if "failed" in row["peers"].get(name, {}) else ""
    text = number(1e3 * times[name])
    if name == fastest_rival(times):
        text = f"**{text}**"
    if FLOOR in times and name != FLOOR:
        text += f" ({number(times[name] / times[FLOOR])})"
    return text + (" †" if too_large(row, name) else "")


def verdict(times: dict[str, float]) -> str:
    """Compare each form of shardcodec with the fastest other peer; a time that is not shorter is a loss."""
    rival = fastest_rival(times)
    ours = {name: times[rival] / t for name, t in times.items() if rival is not None and is_ours(name)}
    if not ours:
        return ""
    said = [
        ("" if name == OURS else f"{name.removeprefix(OURS + ' ')} ")
        + (f"{ratio:.2f}x" if ratio > 1 else f"**LOSS** {ratio:.2f}x")
        for name, ratio in ours.items()
    ]
    return f"{', '.join(said)} against {rival}"


def table(header: list[str], body: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def peer_names(rows: list[dict[str, Any]]) -> list[str]:
    found = dict.fromkeys(name for row in rows for name in row["peers"])
    return [
        *(n for n in found if n == OURS),
        *(n for n in found if is_ours(n) and n != OURS),
        *(n for n in found if is_rival(n)),
        *(n for n in found if n in YARDSTICKS),
    ]


def times_table(rows: list[dict[str, Any]]) -> str:
    names = peer_names(rows)
    body = []
    for row in rows:
        times = medians(row)
        cells = [cell(row, name, times) for name in names]
        spare = row["disturbance"]
        body.append([row["name"], *cells, verdict(times), "" if spare is None else f"{spare:.2f}"])
    return table(["median ms (x floor)", *names, "verdict", "disturbance"], body)


def tails_table(rows: list[dict[str, Any]]) -> str:
    """Return the 99th percentiles of the operations, and the growth of memory in one turn."""
    names = [n for n in peer_names(rows) if any("p99" in row["peers"].get(n, {}) for row in rows)]
    body = [[row["name"], *(tail_cell(row["peers"].get(n, {})) for n in names)] for row in rows]
    return table(["99th percentile ms (memory MiB)", *names], body) if names else ""


def tail_cell(peer: dict[str, Any]) -> str:
    return f"{number(1e3 * peer['p99'])} ({peer['peak_nbytes'] / 2**20:.0f})" if "p99" in peer else ""


def sizes_table(rows: list[dict[str, Any]]) -> str:
    names = peer_names(rows)
    body = []
    for row in rows:
        stored = {
            n: p["stored_nbytes"] / row["nbytes"] for n, p in row["peers"].items() if "stored_nbytes" in p
        }
        if stored:
            body.append([row["name"], *(f"{stored[n]:.3f}" if n in stored else "" for n in names)])
    return table(["stored / decoded bytes", *names], body) if body else ""


def profile_table(rows: list[dict[str, Any]]) -> str:
    """Return the share of each package in the samples of running threads, and what the share of shardcodec consists of."""
    found = [(row["name"], peer, facts) for row in rows for peer, facts in row.get("profile", {}).items()]
    packages = dict.fromkeys(package for _, _, facts in found for package in facts["shares"])
    packages.pop(OURS, None)
    body = [
        [
            *(name, peer, str(facts["samples"])),
            *(percent(facts["shares"].get(package)) for package in (OURS, *packages)),
            ", ".join(f"{function} {percent(share)}" for function, share in facts["functions"].items()),
        ]
        for name, peer, facts in found
    ]
    header = ["share of running threads", "peer", "samples", OURS, *packages, "functions of shardcodec"]
    return table(header, body) if body else ""


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def memory_table(found: list[dict[str, Any]]) -> str:
    names = peer_names([{"peers": {entry["peer"]: None for entry in found}}])
    operations = dict.fromkeys(entry["operation"] for entry in found)
    cells = {(e["operation"], e["peer"]): memory_cell(e) for e in found}
    body = [[operation, *(cells.get((operation, n), "") for n in names)] for operation in operations]
    return table(["peak growth / array (MiB beyond it)", *names], body)


def memory_cell(entry: dict[str, Any]) -> str:
    """Return memory beside the result: scratch and caches. For a small result it is the larger part."""
    growth, nbytes = entry["growth_nbytes"], entry["array_nbytes"]
    return f"{growth / nbytes:.2f} ({(growth - nbytes) / 2**20:+.1f})"


def failures(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"- {row['name']}: {name}: {peer['failed'].splitlines()[0]}"
        for row in rows
        for name, peer in row["peers"].items()
        if "failed" in peer
    ]


def machine_text(document: dict[str, Any]) -> str:
    facts = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    where = f"{facts['cpu']}, {facts['cpus_used']} of {facts['cpus']} processors, {facts['memory_gib']} GiB"
    system = f"Linux {facts['kernel']}, {facts['file_system']}, huge pages {facts['huge_pages']}"
    how = f"{document['threads']} threads each, {document['rounds']} rounds, page cache warm, no fsync"
    lines = [
        f"{where}, {system}; {how}.",
        f"Versions: {versions}.",
        f"Load average before: {facts['load']:.2f}, after: {document['load_after']:.2f}.",
    ]
    if document["warning"]:
        lines.append(f"**{document['warning']}**")
    lines += [f"Left out: {name} ({reason})." for name, reason in document["missing"].items()]
    return "\n\n".join(lines) + "\n"


LEGEND = """\
Times are medians; in brackets, how many times the floor. Bold: the fastest rival. †: files more than 3 % larger than
ours, so that less work was done. Disturbance: processors that other programs used meanwhile; figures of a row with
more than 0.1 deserve another run. The 99th percentile is that of single operations; a row of one operation in a turn has as many as
turns. Memory: the growth at its peak during one more turn, in the process of the benchmark; the group memory measures in processes
that do nothing else.
"""


def render(document: dict[str, Any]) -> str:
    parts = [machine_text(document), LEGEND]
    for group in dict.fromkeys(row["group"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["group"] == group]
        parts += [
            f"### {group.capitalize()}\n",
            times_table(rows),
            tails_table(rows),
            sizes_table(rows),
            profile_table(rows),
        ]
    if document["memory"]:
        parts += ["### Memory\n", memory_table(document["memory"])]
        parts.append("A read's growth includes its result; the source of a write existed before.\n")
    failed = failures(document["rows"])
    if failed:
        parts += ["### Failed\n", "\n".join(failed) + "\n"]
    return "\n".join(part for part in parts if part)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: bench/report.py RESULT, a file that bench/run.py has written with --json\n")
        return 2
    document = program.load(Path(arguments[0]))
    if (
        missing := {"threads", "rounds", "missing", "warning", "load_after", "rows", "memory"}
        - document.keys()
    ):
        sys.stderr.write(
            f"{arguments[0]}: expected a result of bench/run.py, but it has no {', '.join(sorted(missing))}\n"
        )
        return 2
    sys.stdout.write(render(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
