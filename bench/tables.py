"""The tables of README.md and docs/performance.md, and figures of docs/alternatives.md, made from bench/results/*.json.

    python bench/tables.py            compare; status 1 if a page has other figures than the results
    python bench/tables.py --write    put the figures of the results into the pages

A result is what `run.py --json` writes. A table is found in its page by its first line.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import round_trip_tables
import scaling_tables
from report import first_lines, line_of, short

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results")
Json = dict[str, Any]

# Times within 1 % of the shortest are bold too. Files that are more than 3 % larger than ours are named.
TIE = 1.01
LARGER = 1.03
NAMES = {"python": "Python", "tensorstore": "TensorStore", "shardcodec attach": "`attach`"}
YARDSTICKS = ("floor", "copies")


@dataclass(frozen=True)
class Line:
    """A line of a table: its label, and the rows (group, name) whose times stand in each cell."""

    label: str
    rows: tuple[tuple[str, str], ...]
    instead: dict[str, str] = field(
        default_factory=dict
    )  # the peer whose times stand in a column, if it is another one


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    page: str
    result: str  # a file of results/
    corner: str  # the first cell of the first line
    columns: dict[str, str]  # label and peer
    lines: tuple[Line, ...]
    unit: float = 1e-3  # seconds


def columns(*peers: str) -> dict[str, str]:
    return {NAMES.get(peer, peer): peer for peer in peers}


PAGE, README, ALTERNATIVES = "docs/performance.md", "README.md", "docs/alternatives.md"
WHOLE, TINY, SMALL, LOADER = "whole array", "tiny inner chunks", "small reads", "loader"
PARTIAL, INDEX, TOOLS, TASKS, FILTERS = "partial writes", "index arrays", "tools", "end to end", "codecs"
OTHERS = ("zarr fused", "zarrs", "tensorstore", "zarrista")
CODECS = {
    "uncompressed": "raw",
    "zstd 1": "zstd 1",
    "blosc lz4 shuffle": "blosc lz4 shuffle",
    "gzip 1": "gzip 1",
}
TWO = {"uncompressed": "raw", "zstd 1": "zstd 1"}


def whole(text: str, *codecs: str) -> tuple[tuple[str, str], ...]:
    return tuple((WHOLE, f"{text}, {codec}") for codec in codecs)


FILTER_CHAINS = (
    "shuffle + zlib",
    "fletcher32",
    "delta",
    "fixedscaleoffset",
    "bitround",
    "quantize",
    "astype",
    "packbits",
    "scale_offset + cast_value",
    "bz2, staged",
)
STRINGS = "1,000,000 strings"


def of_chain(chain: str, layout: str, *what: str) -> tuple[tuple[str, str], ...]:
    return tuple((FILTERS, f"{chain}, {layout}, {text}") for text in what)


def plane(codec: str) -> tuple[tuple[str, str], ...]:
    return tuple((SMALL, f"plane across axis {axis}, {codec}") for axis in range(3))


WITHOUT_ZARR = {
    "`open_array`": "open_array",
    "its index cached": "open_array, cached index",
    "TensorStore": "tensorstore",
    "its index cached ": "tensorstore, cache",
    "zarrista": "zarrista",
    "its index cached  ": "zarrista, cached index",
    "floor": "floor",
}

# The rows of the group `again` that have three caches, by their labels; and those that reuse little or nothing.
AGAIN = {
    "200 crops of 32³, zstd": "crops of 32^3, zstd 1",
    "the same, Blosc": "crops of 32^3, blosc lz4 shuffle",
    "60 crops of 64³, zstd": "crops of 64^3, zstd 1",
    "the same, Blosc ": "crops of 64^3, blosc lz4 shuffle",
    "400 rows of CSR, chunks of 8,192, a slice each": "400 rows, small chunks, a slice each",
    "the same, chunks of 125,000": "400 rows, large chunks, a slice each",
    "2,048 rows of CSR, chunks of 8,192, 256 in a call": "2,048 rows, small chunks, in batches",
    "the same, chunks of 125,000 ": "2,048 rows, large chunks, in batches",
    "800 popular tiles, 8 threads, zstd": "800 popular tiles, 8 callers, zstd 1",
    "the same, Blosc  ": "800 popular tiles, 8 callers, blosc lz4 shuffle",
    "48 points of a time series, zstd": "48 points of a time series, zstd 1",
    "61 rolling windows, zstd": "61 rolling windows, zstd 1",
}
SCANS = {
    "8 shards, once each (50 %), zstd / Blosc": ("shards one after another", 50),
    "8 slabs of 32 planes, once each (10 %), zstd / Blosc": ("slabs one after another", 10),
}

TABLES = (
    Table(
        README,
        "arrays",
        "",
        columns("shardcodec", *OTHERS),
        (
            Line("read, uncompressed / zstd", whole("read", "raw", "zstd 1")),
            Line("write, uncompressed / zstd", whole("write", "raw", "zstd 1")),
            Line("read, Blosc / gzip", whole("read", "blosc lz4 shuffle", "gzip 1")),
            Line("one plane, zstd", plane("zstd 1")[:1]),
            Line(
                "one inner chunk changed, zstd (`append`)",
                ((PARTIAL, "one inner chunk, zstd 1"),),
                {"shardcodec": "shardcodec append"},
            ),
            Line("one inner chunk read, zstd", ((SMALL, "one inner chunk, zstd 1"),)),
            Line(
                "the same without `zarr.Array` (`open_array`)",
                ((LOADER, "one inner chunk, zstd 1"),),
                {"shardcodec": "open_array", "zarr fused": "", "zarrs": ""},
            ),
            Line("write, gzip", whole("write", "gzip 1")),
        ),
    ),
    Table(
        PAGE,
        "arrays",
        "512³ uint16, shards 256³, inner chunks 32³",
        columns("shardcodec", *OTHERS, "floor"),
        tuple(
            Line(f"{what}, {label}", whole(what, codec))
            for label, codec in CODECS.items()
            for what in ("read", "write")
        ),
    ),
    Table(
        PAGE,
        "arrays",
        "256³ uint8, shards 128³",
        columns("shardcodec", "zarrs", "tensorstore", "zarrista", "floor"),
        tuple(
            Line(
                f"inner {n}³, read / write, {label}",
                tuple((TINY, f"{n}^3, {what}, {codec}") for what in ("read", "write")),
            )
            for n in (8, 4)
            for label, codec in TWO.items()
        ),
    ),
    Table(
        PAGE,
        "arrays",
        "small reads from the 512³ above",
        columns("shardcodec", *OTHERS, "floor"),
        (
            *(
                Line(f"{text.replace('^3', '³')}, {label}", ((SMALL, f"{text}, {codec}"),))
                for text in ("one inner chunk", "box of 40^3")
                for label, codec in TWO.items()
            ),
            *(Line(f"one plane (axis 0 / 1 / 2), {label}", plane(codec)) for label, codec in TWO.items()),
            Line(
                "one element of a shard of 10⁶ inner chunks",
                ((SMALL, "one element of 1,000,000 inner chunks"),),
            ),
        ),
    ),
    Table(
        PAGE,
        "arrays",
        "the same without `zarr.Array`",
        WITHOUT_ZARR,
        tuple(
            Line(f"{label}, {codec_label}", ((LOADER, f"{text}, {codec}"),))
            for label, text in (
                ("one inner chunk", "one inner chunk"),
                ("1,000 boxes of 40³", "1,000 boxes of 40^3"),
            )
            for codec_label, codec in TWO.items()
        ),
    ),
    Table(
        PAGE,
        "arrays",
        "524,288 × 256 uint16, inner chunks of 64 rows",  # noqa: RUF001
        columns("shardcodec", "zarr fused", "zarrs", "tensorstore"),
        (
            Line(
                "1,000 rows by index array in any order, uncompressed / zstd 1",
                tuple((INDEX, f"1,000 rows, any order, {codec}") for codec in TWO.values()),
            ),
            Line("the same rows written, zstd 1", ((INDEX, "1,000 rows written, zstd 1"),)),
            Line(
                "1,000 planes of the 512³, with repeats, uncompressed",
                ((INDEX, "1,000 planes, repeated, any order, raw"),),
            ),
        ),
    ),
    Table(
        PAGE,
        "again",
        "read again, caches of 10 / 50 / 100 %",
        {
            "no cache": "open_array, cached index",
            "`cache`": "open_array, cache",
            "TensorStore": "tensorstore, cache",
            "copies from memory": "copies",
        },
        (
            *(
                Line(label.strip(), tuple(("again", f"{row}, cache of {n} %") for n in (10, 50, 100)))
                for label, row in AGAIN.items()
            ),
            *(
                Line(
                    label,
                    tuple(
                        ("again", f"{row}, {codec}, cache of {n} %")
                        for codec in ("zstd 1", "blosc lz4 shuffle")
                    ),
                )
                for label, (row, n) in SCANS.items()
            ),
        ),
    ),
    Table(
        PAGE,
        "tools",
        "seconds",
        {
            "shardcodec": "shardcodec",
            "TensorStore": "tensorstore",
            "loop over shards through zarr (fused)": "zarr fused",
        },
        tuple(
            Line(label, ((TOOLS, row),))
            for label, row in (
                (
                    "format 3 without shards to shards, uncompressed, moved",
                    "convert v3 without shards, moved, raw",
                ),
                ("the same with zstd 1, moved", "convert v3 without shards, moved, zstd 1"),
                (
                    "the same, encoded again (inner chunks of 64³)",
                    "convert v3 without shards, encoded, zstd 1",
                ),
                ("format 2 (Blosc) to shards, moved", "convert v2, moved, blosc"),
                ("the same, encoded again", "convert v2, encoded, blosc"),
                ("shards of 256³ to 512³, uncompressed, moved", "reshard, moved, raw"),
                ("shards of 256³ to 512³, zstd 1, moved", "reshard, moved, zstd 1"),
            )
        ),
        unit=1,
    ),
    Table(
        PAGE,
        "arrays",
        "small writes into the 512³ above",
        {
            "in place": "shardcodec in place",
            "append": "shardcodec append",
            "replace": "shardcodec",
            **columns(*OTHERS),
        },
        tuple(
            Line(label, ((PARTIAL, row),))
            for label, row in (
                ("one inner chunk, uncompressed", "one inner chunk, raw"),
                ("one inner chunk, zstd 1", "one inner chunk, zstd 1"),
                ("box of 40³ in 1 shard, zstd 1", "box of 40^3 in 1 shard, zstd 1"),
                ("box of 40³ in 8 shards, zstd 1", "box of 40^3 in 8 shards, zstd 1"),
            )
        ),
    ),
    Table(
        PAGE,
        "codecs",
        "256³, shards 128³, inner chunks 32³: read / write",
        columns("shardcodec", "zarr batched", "zarr fused", "zarrs"),
        (
            *(Line(chain, of_chain(chain, "sharded", "read", "write")) for chain in FILTER_CHAINS),
            Line("10⁶ strings, zstd", of_chain(STRINGS, "sharded", "read", "write")),
        ),
    ),
    Table(
        PAGE,
        "codecs",
        "the same without shards: read / write / one chunk written",
        columns("shardcodec", "zarr batched", "zarr fused", "zarrs"),
        (
            *(
                Line(chain, of_chain(chain, "plain", "read", "write", "one inner chunk written"))
                for chain in FILTER_CHAINS
            ),
        ),
    ),
    Table(
        PAGE,
        "tasks",
        "milliseconds",
        columns("shardcodec", "shardcodec attach", "zarr batched", *OTHERS),
        tuple(
            Line(label, ((TASKS, row),))
            for label, row in (
                ("256 random crops of 40³, 4 workers, forked", "256 crops of 40^3, 4 workers, fork"),
                ("the same, spawned", "256 crops of 40^3, 4 workers, spawn"),
                ("`xarray.open_zarr(chunks={})`, mean over time", "xarray, mean over time"),
                ("the same, time series of a point", "xarray, time series of a point"),
                ("the same, climatology by month", "xarray, climatology by month"),
                ("50 days appended by `to_zarr`", "xarray, 50 days appended by to_zarr"),
                ("50 days appended without xarray", "50 days appended without xarray"),
                ("`dask.array.to_zarr` of the 512³, threads", "dask to_zarr, threads, zstd 1"),
                ("the same, processes of `distributed`", "dask to_zarr, processes, zstd 1"),
            )
        ),
    ),
)


# ---------------------------------------------------------------------------------------------------------
# figures


@cache
def result(name: str) -> Json:
    return json.loads((RESULTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def peers_of(document: Json, row: tuple[str, str]) -> Json:
    """Return the results of the peers in a row; KeyError if the result does not have it."""
    for entry in document["rows"]:
        if (entry["group"], entry["name"]) == row:
            return entry["peers"]  # type: ignore[no-any-return]
    raise KeyError(f"the result has no row {row}")


def needed(name: str) -> dict[tuple[str, str], set[str]]:
    """Return the rows that the pages have of a result, and the peers of each."""
    found: dict[tuple[str, str], set[str]] = {}
    for table in TABLES:
        for line in table.lines if table.result == name else ():
            for row in line.rows:
                peers = {line.instead.get(peer, peer) for peer in table.columns.values()}
                found.setdefault(row, {"shardcodec"}).update(peers)
    return found


def larger(peers: Json, name: str) -> float:
    """Return how many times larger the files of a writer are than ours."""
    peer = peers[name]
    if "stored_to_ours" in peer:
        return float(peer["stored_to_ours"])
    ours = peers.get("shardcodec", {}).get("stored_nbytes")
    return peer["stored_nbytes"] / ours if ours and "stored_nbytes" in peer else 1.0


def cells_of(table: Table, line: Line, row: tuple[str, str]) -> list[str]:
    """Return the texts of one row in all columns; the shortest times are bold."""
    peers = peers_of(result(table.result), row)
    names = [line.instead.get(peer, peer) for peer in table.columns.values()]
    times = {name: median(peers[name]["seconds"]) for name in names if peers.get(name, {}).get("seconds")}
    shortest = min(time for name, time in times.items() if name not in YARDSTICKS)
    texts = []
    for name in names:
        if name not in times:
            texts.append("")
            continue
        text = short(times[name] / table.unit)
        if name not in YARDSTICKS and times[name] <= TIE * shortest:
            text = f"**{text}**"
        if (ratio := larger(peers, name)) > LARGER:
            text += f" (+{100 * (ratio - 1):.0f} % file)"
        texts.append(text)
    return texts


def labels_of(table: Table) -> list[str]:
    return [table.corner, *(label.strip() for label in table.columns)]


def render(table: Table) -> str:
    """Return the table in Markdown."""
    lines = [first_lines(labels_of(table))]
    for line in table.lines:
        rows = [cells_of(table, line, row) for row in line.rows]
        cells = [" / ".join(texts) if any(texts) else "" for texts in zip(*rows, strict=True)]
        lines.append(line_of([line.label, *cells]))
    return "".join(lines)


# ---------------------------------------------------------------------------------------------------------
# pages


def with_table(text: str, first: str, table: str) -> str:
    """Return a page with this table in place of the one with the same first lines."""
    start = text.find(first)
    if start < 0:
        raise LookupError(f"no table begins with {first!r}")
    end = start + len(first)
    while text.startswith("|", end):
        end = text.index("\n", end) + 1
    return text[:start] + table + text[end:]


def with_block(text: str, name: str, block: str) -> str:
    """Return a page with this text between two comments that name it."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise LookupError(f"{PAGE} has no place {name!r}")
    return f"{before}{start}\n{block}\n{end}{after}"


def machine_text(document: Json) -> str:
    facts = document["machine"]
    versions = ", ".join(
        f"{NAMES.get(name, name)} {facts['versions'][name]}"
        for name in ("python", "zarr", "zarrs", "zarrista", "tensorstore")
        if name in facts["versions"]
    )
    system = f"Linux {facts['kernel'].partition('-')[0]}, {facts['file_system']}"
    return f"{document['threads']} threads on {facts['cpus_used']} cores of an {facts['cpu']} with {system}: {versions}."


def times_of(document: Json, row: tuple[str, str], *peers: str) -> list[str]:
    """Return the milliseconds of peers in a row."""
    return [short(1e3 * median(peers_of(document, row)[peer]["seconds"])) for peer in peers]


def gzip_written(document: Json) -> str:
    row = (WHOLE, "write, gzip 1")
    ours, theirs = times_of(document, row, "shardcodec", "zarrs")
    share = 100 * (larger(peers_of(document, row), "zarrs") - 1)
    return f"it took {theirs} ms where shardcodec took {ours}, with files that are {share:.0f} % larger"


def tree_verified(document: Json) -> str:
    (cat, ours), (warm_cat, warm) = (
        [median(peers_of(document, ("verify", pages))[peer]["seconds"]) for peer in ("cat", "shardcodec")]
        for pages in ("cold", "warm")
    )
    return (
        f"The command takes {ours:.1f} s for {document['nbytes'] / 2**30:.1f} GiB of a data set, half of it without shards, from a cold page cache; "
        f"`cat` {cat:.1f} s. From a warm one: {warm:.1f} s, and `cat` {warm_cat:.1f} s"
    )


# The sentences that have figures of a result, or name its machine: page, result, pattern, text.
SENTENCES = (
    (PAGE, "arrays", r"^Measured with .*$", lambda document: f"Measured with {machine_text(document)}"),
    (
        README,
        "arrays",
        r"(?<=; two threads, ).*?(?=, warm page cache)",
        lambda document: document["machine"]["cpu"].partition(" (")[0],
    ),
    (PAGE, "verify", r"The command takes .*?`cat` [\d.]+ s\..*?`cat` [\d.]+ s", tree_verified),
    (ALTERNATIVES, "arrays", r"it took [\d.]+ ms where shardcodec took .*? larger", gzip_written),
)


def pages() -> dict[Path, str]:
    """Return the pages as they should be."""
    texts = {page: (ROOT / page).read_text() for page in (README, PAGE, ALTERNATIVES)}
    for table in TABLES:
        texts[table.page] = with_table(texts[table.page], first_lines(labels_of(table)), render(table))
    more = {
        "round trips": round_trip_tables.delayed(result("round_trips")),
        "cold page cache": round_trip_tables.cold(result("cold")),
        **scaling_tables.blocks(result("scaling")),
    }
    for name, text in more.items():
        texts[PAGE] = with_block(texts[PAGE], name, text)
    for page, name, pattern, text_of in SENTENCES:
        texts[page], n = re.subn(pattern, text_of(result(name)), texts[page], flags=re.MULTILINE)
        if n != 1:
            raise LookupError(f"{page} has {n} places with {pattern!r}")
    return {ROOT / page: text for page, text in texts.items()}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        sys.stderr.write(f"bench/tables.py: expected no argument, or --write, got {' '.join(arguments)}\n")
        return 2
    stale = {path: text for path, text in pages().items() if path.read_text() != text}
    for path, text in stale.items():
        if "--write" in arguments:
            path.write_text(text)
        sys.stdout.write(
            f"{path.relative_to(ROOT)}: {'updated' if '--write' in arguments else 'other figures'}\n"
        )
    return int(bool(stale) and "--write" not in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
