# pictures.py - the pictures of the pages: charts of the tables, and shards as shardcodec draws them
# SPDX-License-Identifier: MIT
"""Write docs/pictures/*.svg. The numbers of the charts are those of the tables in the pages, which stay their only source.

    python scripts/pictures.py           write all pictures; needs matplotlib, nibabel and shardcodec
    python scripts/pictures.py --charts  only the charts, which need none of these

A picture has the colours of both themes: a viewer with a dark theme gets light text.
"""

from __future__ import annotations

import argparse
import html
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"

# ---------------------------------------------------------------- the tables of the pages

Row = tuple[str, dict[str, float]]
# Words with slashes between them, such as "read / write": the values of a cell have the same order.
SEVERAL = re.compile(r"[\w.³]+(?: / [\w.³]+)+")


def table(page: str, first: str) -> list[Row]:
    """Return the rows of the table whose first heading is `first`: a label, and the numbers by the headings of their columns.

    A cell with several numbers makes several rows.
    """
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(f"| {first} |")]
    if len(starts) != 1:
        raise ValueError(f"{page}: expected one table that begins with {first!r}, got {len(starts)}")
    headings = cells(lines[starts[0]])[1:]
    rows: list[Row] = []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        label, *values = cells(line)
        rows += split_row(label, dict(zip(headings, values, strict=True)))
    return rows


def cells(line: str) -> list[str]:
    """Return the cells of a line, without marks of Markdown."""
    return [re.sub(r"[*`]", "", cell).strip() for cell in line.strip().strip("|").split("|")]


def split_row(label: str, values: Mapping[str, str]) -> list[Row]:
    """Return one row for each number in the cells of a row."""
    numbers = {name: [number(part) for part in cell.split(" / ")] for name, cell in values.items() if cell}
    counts = {len(found) for found in numbers.values()}
    if len(counts) != 1:
        raise ValueError(f"{label}: expected equally many numbers in each cell, got {sorted(counts)}")
    (n,) = counts
    words = (
        [""]
        if n == 1
        else next(m[0].split(" / ") for m in SEVERAL.finditer(label) if m[0].count(" / ") == n - 1)
    )
    joined = " / ".join(words)
    return [
        (label.replace(joined, word) if n > 1 else label, {name: found[k] for name, found in numbers.items()})
        for k, word in enumerate(words)
    ]


def number(cell: str) -> float:
    """Return the number at the beginning of a cell; a note behind it is left out."""
    match = re.match(r"[\d.,]+", cell)
    if match is None:
        raise ValueError(f"expected a number, got {cell!r}")
    return float(match[0].replace(",", ""))


# ---------------------------------------------------------------- charts

WIDTH, LEFT, RIGHT = 460, 96, 64
BAR, STEP = 11, 15
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 14px }
.label { font-weight: 600 }
.ours { fill: #0072b2 } .other { fill: #9aa1a9 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #56b4e9 } .other { fill: #6e7681 } }
</style>"""
OURS = ("shardcodec", "in place", "append", "replace", "attach", "open_array")


class Chart:
    """A chart of horizontal bars in one column, which a phone shows without scaling its text too far down."""

    def __init__(self, alt: str) -> None:
        self._alt, self._parts, self._y = alt, [], 0

    def title(self, *lines: str) -> None:
        """Add lines of text: a title, and what it means."""
        self._y += 10 if self._parts else 0
        for k, line in enumerate(lines):
            self._y += 18
            style = "title" if k == 0 else "note"
            self._parts.append(f'<text class="{style}" x="0" y="{self._y}">{html.escape(line)}</text>')
        self._y += 7

    def bars(self, label: str, values: Mapping[str, float], form: str = "{:g}") -> None:
        """Add one bar for each value; the longest takes all of the width."""
        if label:
            self._y += 18
            self._parts.append(f'<text class="label" x="0" y="{self._y}">{html.escape(label)}</text>')
            self._y += 6
        longest = max(values.values()) or 1
        for name, value in values.items():
            width = max(round((WIDTH - LEFT - RIGHT) * value / longest, 1), 1)
            kind = "ours" if name.startswith(OURS) else "other"
            base = self._y + BAR - 1
            self._parts.append(
                f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">{html.escape(name)}</text>'
                f'<rect class="{kind}" x="{LEFT}" y="{self._y}" width="{width:g}" height="{BAR}" rx="2"/>'
                f'<text x="{LEFT + width + 5:g}" y="{base}">{form.format(value)}</text>'
            )
            self._y += STEP
        self._y += 2

    def svg(self) -> str:
        """Return the picture."""
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._y + 6}" role="img" width="{WIDTH}">\n'
            f"<title>{html.escape(self._alt)}</title>\n{STYLE}\n{body}\n</svg>\n"
        )


def first() -> str:
    """Return the picture of the first page."""
    chart = Chart(
        "Elements lost by parallel writers, and times of reads and writes, of shardcodec and other libraries"
    )
    lost = [
        (name, row["elements lost of 65,536"])
        for name, row in table("docs/alternatives.md", "four processes write with")
    ]
    chart.title("Elements lost, of 65,536", "Four processes write regions that share shards.")
    chart.bars("", dict(lost), "{:,.0f}")
    chart.title("Time in milliseconds", "512³ uint16, shards 256³, inner chunks 32³, zstd, two threads.")
    whole = dict(table("docs/performance.md", "512³ uint16, shards 256³, inner chunks 32³"))
    small = dict(table("docs/performance.md", "small reads from the 512³ above"))
    writes = dict(table("docs/performance.md", "small writes into the 512³ above"))
    chart.bars("read the array", without_floor(whole["read, zstd 1"]))
    chart.bars("write the array", without_floor(whole["write, zstd 1"]))
    chart.bars("read one plane", without_floor(small["one plane (axis 0), zstd 1"]))
    chart.bars("read one inner chunk", without_floor(small["one inner chunk, zstd 1"]))
    changed = writes["one inner chunk, zstd 1"]
    ours = {"shardcodec": changed["append"]}
    chart.bars(
        "change one inner chunk (append)",
        ours | {name: ms for name, ms in changed.items() if not name.startswith(OURS)},
    )
    return chart.svg()


def without_floor(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the libraries, without the lower bound."""
    return {name: ms for name, ms in values.items() if name != "floor"}


def chart_of(page: str, heading: str, title: Sequence[str]) -> str:
    """Return the chart of a whole table."""
    chart = Chart(f"{title[0]}: the numbers are in the table")
    chart.title(*title)
    for label, values in table(page, heading):
        chart.bars(label, values)
    return chart.svg()


# The charts of the gallery: the first heading of a table in docs/performance.md, and the title.
CHARTS = {
    "whole-arrays": ("512³ uint16, shards 256³, inner chunks 32³", "Whole arrays, milliseconds", "512³ uint16, shards 256³, inner chunks 32³, two threads"),
    "tiny-chunks": ("256³ uint8, shards 128³", "Tiny inner chunks, milliseconds", "256³ uint8, shards 128³, two threads"),
    "small-reads": ("small reads from the 512³ above", "Small reads, milliseconds", "from 512³ uint16, shards 256³, inner chunks 32³"),
    "small-writes": ("small writes into the 512³ above", "Small writes, milliseconds", "into 512³ uint16, shards 256³, inner chunks 32³"),
    "whole-tasks": ("milliseconds", "Whole tasks, milliseconds", "data loaders, xarray and dask"),
}  # fmt: skip


def charts() -> dict[str, str]:
    """Return the charts by the names of their files."""
    made = {"first.svg": first()}
    for name, (heading, *title) in CHARTS.items():
        made[f"{name}.svg"] = chart_of("docs/performance.md", heading, title)
    return made


# ---------------------------------------------------------------- arrays and shards, drawn by shardcodec

# What matplotlib draws in black follows the theme; it names no colour where it fills with black.
THEME = """<style>
:root { --ink: #1f2328; --dead: #000000 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dead: #f0e442 } }
svg { fill: var(--dead) }
text { fill: var(--ink) }
</style>"""
INK = ("#000000", "#262626")


def drawings() -> dict[str, str]:
    """Return the pictures of an array and of one of its shards: an MRI volume, changed by two appends."""
    import matplotlib
    import nibabel
    import numpy as np
    import zarr

    import shardcodec

    source = Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"
    volume = np.ascontiguousarray(np.asanyarray(nibabel.load(source).dataobj).T[0])  # (z, y, x)
    settings = {"svg.fonttype": "none", "svg.hashsalt": "shardcodec", "font.family": "sans-serif"}
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(settings), shardcodec.enable():
        path = Path(folder, "mri.zarr")
        array = zarr.create_array(
            path,
            shape=volume.shape,
            shards=(12, 48, 64),
            chunks=(4, 12, 16),
            dtype=volume.dtype,
            fill_value=0,
        )
        array[...] = np.where(volume > 60, volume, 0)  # the air around the head is not stored
        shardcodec.chunk_state(path).plot(Path(folder, "map.svg"))
        spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
        with shardcodec.options(write_strategy="append"):
            array[0:4, 12:36, 16:48] = volume[0:4, 12:36, 16:48] // 2
            array[4:8, 12:24, 16:48] = volume[4:8, 12:24, 16:48] // 2
        shardcodec.open_shard(path, "c/0/0/0", spec).plot(Path(folder, "shard.svg"))
        return {
            name: themed(Path(folder, name).read_text(encoding="utf-8")) for name in ("map.svg", "shard.svg")
        }


def themed(svg: str) -> str:
    """Return a picture of matplotlib without its background, its date and its fixed ink."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\bfill: #ffffff", "fill: none", svg)  # the background
    for color in INK:
        svg = re.sub(rf"(fill|stroke): {color}", r"\1: var(--ink)", svg)
    start = svg.index(">", svg.index("<svg")) + 1
    return svg[:start] + "\n" + THEME + svg[start:]


def texts(svg: str) -> list[str]:
    """Return the texts in a picture, which do not depend on the version of matplotlib."""
    return [html.unescape(text) for text in re.findall(r"<text\b[^>]*>(.*?)</text>", svg, re.DOTALL)]


def write(made: Mapping[str, str]) -> Iterable[str]:
    """Store pictures; yield the names of those that have changed."""
    FOLDER.mkdir(exist_ok=True)
    for name, svg in made.items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != svg:
            path.write_text(svg, encoding="utf-8")
            yield name


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--charts", action="store_true", help="only the charts of tables")
    given = parser.parse_args()
    for name in write(charts() if given.charts else charts() | drawings()):
        print(f"wrote docs/pictures/{name}")


if __name__ == "__main__":
    main()
