# advise.py - shapes of shards and inner chunks for the way an array is read
# SPDX-License-Identifier: MIT
"""`advise`: proposals for the shapes of shards and inner chunks, from arithmetic over patterns of access.

The inner chunk is chosen first. A candidate has along each axis a power of two, or the whole axis, and a size near the
target. Its cost is the bytes that the patterns read, with a surcharge for each request. The shard is then the number of
inner chunks along each axis for which the patterns touch the fewest shards, within the bounds.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..access.array_reader import ArrayReader
from ..access.box_reader import ArrayObjects, folder_at
from ..access.inner_chunks import compiled
from ..arguments import checked, show
from ..errors import UnsupportedError
from ..format.codecs import Transpose
from ..format.metadata import key_encoding
from ..format.spec import ChainSpec, ShardSpec
from ..option_sources import current_options
from ..options import options
from ..readable import format_nbytes
from ..statistics import stats
from .advise_report import AccessCost, AdviseReport, Bounds, Proposal, Trial, TrialAccess
from .monitor import Monitor
from .report import Record
from .targets import ArrayTarget

__all__ = [
    "SAMPLE_NBYTES",
    "AccessCost",
    "AccessPattern",
    "AdviseReport",
    "Bounds",
    "Proposal",
    "Trial",
    "TrialAccess",
    "advise",
    "fitting_access",
    "parse_access",
    "try_proposal",
]


Ints = tuple[int, ...]


# ---------------------------------------------------------------- how a program reads an array


@dataclass(frozen=True)
class AccessPattern(Record):
    """Boxes of one shape, at any positions, that a program reads.

    Parameters
    ----------
    text : str
        The pattern as the user wrote it.
    box : tuple of int
        Shape of the box, in elements.
    weight : float
        How often it is read, in relation to the other patterns.

    Examples
    --------
    >>> planes = tools.AccessPattern("planes", (1, 512, 512), weight=2.0)
    >>> planes.box, planes.weight
    ((1, 512, 512), 2.0)
    """

    text: str
    box: Ints
    weight: float

    def touched(self, shape: Ints, cells: Any) -> Any:
        """Return the mean number of cells that a box touches; every position of the box is equally likely.

        Parameters
        ----------
        shape : tuple of int
            Shape of the array, in elements.
        cells : tuple of int, or ndarray of shape (..., ndim)
            Shapes of cells, such as inner chunks or shards.

        Returns
        -------
        float or ndarray
        """
        sizes = np.asarray(cells, float)
        n, box = np.asarray(shape, float), np.asarray(self.box, float)
        all_cells = np.ceil(n / sizes)
        # a box begins anywhere in a cell, so it reaches (box - 1) / size cells further
        mean_cells = np.minimum((box - 1) / sizes + 1, all_cells)
        return np.where(box >= n, all_cells, mean_cells).prod(axis=-1)

    @property
    def n_elements(self) -> int:
        """Number of elements of a box."""
        return math.prod(self.box)


@checked
def parse_access(text: str, shape: Sequence[int], names: Sequence[str | None] = ()) -> AccessPattern:
    """Parse a pattern such as ``1,:,:``, ``1,64,64@3`` or ``time=1``: numbers of elements or all, then a weight.

    Parameters
    ----------
    text : str
        The pattern: a number of elements or a colon, which means all, for each axis; or for axes by name, and all of the others.
    shape : sequence of int
        Shape of the array, in elements.
    names : sequence of str, optional
        Names of its axes.

    Returns
    -------
    AccessPattern

    Raises
    ------
    ValueError
        The text is malformed, or it does not fit the shape or the names.

    Examples
    --------
    >>> tools.parse_access("time=1@3", (1000, 512, 512), ["time", "y", "x"]).box
    (1, 512, 512)
    """
    if shape and min(shape) < 1:
        raise ValueError(f"access: expected an array with elements, got shape {tuple(shape)}")
    body, _, weight = text.partition("@")
    extents = _extents(body, names) if shape else []
    if extents is None or len(extents) != len(shape):
        raise ValueError(
            f"access: expected {len(shape)} numbers or colons, one for each axis, or names of axes, such as time=1, got {text!r}"
        )
    box = []
    for axis, (word, n) in enumerate(zip(extents, shape, strict=True)):
        extent = n if word == ":" else int(word) if re.fullmatch(r"[0-9]+", word) else 0
        if not 1 <= extent <= n:
            raise ValueError(
                f"access: expected a number from 1 to {n} or ':' for axis {axis}, got {word!r} in {text!r}"
            )
        box.append(extent)
    try:
        number = float(weight) if weight else 1.0
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(f"access: expected a positive weight after '@', got {weight!r} in {text!r}")
    return AccessPattern(text, tuple(box), number)


def _extents(body: str, names: Sequence[str | None]) -> list[str] | None:
    """Return the word of each axis; None if the text names another axis."""
    words = [word.strip() for word in body.split(",")]
    if "=" not in body:
        return words
    by_name = {name.strip(): extent.strip() for name, _, extent in (word.partition("=") for word in words)}
    if len(by_name) < len(words) or not by_name.keys() <= set(names):
        return None
    return [":" if name is None else by_name.get(name, ":") for name in names]


def fitting_access(text: str, shape: Ints, names: Sequence[str | None]) -> AccessPattern | None:
    """Parse a pattern for one of many arrays: None if it has other axes; a box that is larger than the array is cut to it."""
    body, at, weight = text.partition("@")
    extents = _extents(body, names)
    if extents is None or len(extents) != len(shape):
        return None
    cut = (
        str(min(int(word), n)) if word.isdecimal() and int(word) else word
        for word, n in zip(extents, shape, strict=True)
    )
    return replace(parse_access(f"{','.join(cut)}{at}{weight}", shape), text=text)


# ---------------------------------------------------------------- proposals

# The cost of a request in addition to its bytes: the bytes that a service sends in the time of one answer.
REQUEST_NBYTES = 1 << 20
# Inner chunks may be smaller or larger than the target by these factors.
SMALLEST, LARGEST = 0.25, 2.0
N_PROPOSALS = 3
MAX_CANDIDATES = 200_000


@checked
def advise(
    shape: Sequence[int],
    dtype: Any,
    accesses: Sequence[AccessPattern],
    bounds: Bounds | None = None,
    *,
    present: tuple[Ints, Ints] | None = None,
    chunk_shape: Sequence[int] | None = None,
) -> AdviseReport:
    """Propose shapes of shards and inner chunks.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array, in elements.
    dtype : dtype
        Data type of an element.
    accesses : sequence of AccessPattern
        How the array is read; at least one pattern.
    bounds : Bounds, optional
        Target sizes and limits.
    present : tuple of two tuples of int, optional
        Shapes of the inner chunks and of the shards that the array has now, for comparison.
    chunk_shape : sequence of int, optional
        Shape of an inner chunk that is given; only the shards are proposed.

    Returns
    -------
    AdviseReport

    Raises
    ------
    ValueError
        No pattern is given, the array has no elements, or the bounds exclude all shapes.

    Examples
    --------
    >>> planes = tools.parse_access("1,:,:", (1000, 512, 512))
    >>> best = tools.advise((1000, 512, 512), "uint16", [planes]).proposals[0]
    >>> best.chunk_shape, best.shard_shape, best.n_files
    ((1, 512, 512), (1000, 512, 512), 1)
    """
    shape, bounds = tuple(int(n) for n in shape), bounds or Bounds()
    bounds.check()
    try:
        itemsize = np.dtype(dtype).itemsize
    except TypeError as error:
        raise TypeError(f"dtype: expected a data type, got {show(dtype)}: {error}") from None
    if not shape or min(shape) < 1 or not accesses:
        raise ValueError(
            f"shape, accesses: expected an array with elements and at least one access, got shape {shape} and "
            f"{len(accesses)} accesses"
        )
    _check_bounds(shape, itemsize, bounds)
    proposals: list[Proposal] = []
    costs: set[float] = set()
    chunks = _chunk_shapes(shape, itemsize, accesses, bounds) if chunk_shape is None else [tuple(chunk_shape)]
    for chunk in chunks:
        shard = _shard_shape(shape, chunk, itemsize, accesses, bounds)
        if shard is None:
            continue
        proposal = _proposal(shape, chunk, shard, itemsize, accesses, bounds)
        cost = float(f"{proposal.cost_nbytes:.4g}")
        if cost not in costs:  # the first of equal proposals, such as with two axes exchanged
            costs.add(cost)
            proposals.append(proposal)
        if len(proposals) == N_PROPOSALS:
            break
    if not proposals:
        raise ValueError(
            f"no shapes fit: expected at most {bounds.max_files} shards of at most {format_nbytes(bounds.largest_shard)}, and "
            f"at least {bounds.writers} of them; change max_files, shard_nbytes, memory or writers"
        )
    proposals.sort(key=lambda proposal: proposal.cost_nbytes)
    now = None if present is None else _proposal(shape, *present, itemsize, accesses, bounds)
    return AdviseReport(shape, str(np.dtype(dtype)), bounds, now, tuple(proposals))


def _check_bounds(shape: Ints, itemsize: int, bounds: Bounds) -> None:
    """Raise `ValueError` if `max_files` shards cannot hold the array, or are fewer than the writers."""
    total = math.prod(shape) * itemsize
    if bounds.max_files is not None and bounds.max_files * bounds.largest_shard < total:
        raise ValueError(
            f"max_files: expected at least {-(-total // bounds.largest_shard)} shards of at most "
            f"{format_nbytes(bounds.largest_shard)} (shard_nbytes and memory) for {format_nbytes(total)}, got {bounds.max_files}; "
            "allow more shards or larger ones"
        )
    if bounds.max_files is not None and bounds.max_files < bounds.writers:
        raise ValueError(
            f"max_files: expected at least one shard for each of {bounds.writers} writers, got {bounds.max_files}"
        )


# ---- inner chunks


def _chunk_shapes(
    shape: Ints, itemsize: int, accesses: Sequence[AccessPattern], bounds: Bounds
) -> Iterator[Ints]:
    """Yield shapes of inner chunks, the cheapest first."""
    candidates = _candidates(shape)
    nbytes = candidates.prod(axis=1) * itemsize
    target = min(bounds.chunk_nbytes, math.prod(shape) * itemsize, bounds.largest_shard)
    fits = (nbytes >= SMALLEST * target) & (nbytes <= min(LARGEST * target, bounds.largest_shard))
    candidates, nbytes = candidates[fits], nbytes[fits]
    costs = np.zeros(len(candidates))
    for access in accesses:
        n = access.touched(shape, candidates)
        costs += access.weight * n * (nbytes / bounds.ratio + REQUEST_NBYTES)
    # of equal costs, the size nearest to the target, then the most compact shape
    order = np.lexsort((candidates.sum(axis=1), np.abs(np.log(nbytes / target)), np.round(costs, -3)))
    for at in order.tolist():
        yield tuple(candidates[at].tolist())


def _candidates(shape: Ints) -> np.ndarray[Any, Any]:
    """Return all shapes of powers of two and whole axes; if there are very many, with fewer powers."""
    for step in itertools.count(1):
        axes = [sorted({*(2**k for k in range(0, n.bit_length(), step) if 2**k < n), n}) for n in shape]
        if math.prod(map(len, axes)) <= MAX_CANDIDATES:
            break
    grids = np.meshgrid(*axes, indexing="ij")
    return np.stack([grid.reshape(-1) for grid in grids], axis=1)


# ---- shards


def _shard_shape(
    shape: Ints, chunk: Ints, itemsize: int, accesses: Sequence[AccessPattern], bounds: Bounds
) -> Ints | None:
    """Return the shape of a shard of such inner chunks; None if the bounds exclude all."""
    counts = _candidates(tuple(-(-n // size) for n, size in zip(shape, chunk, strict=True)))
    shards = counts * np.array(chunk)
    n_files = np.prod([-(-n // shards[:, axis]) for axis, n in enumerate(shape)], axis=0)
    fits = (shards.astype(float).prod(axis=1) * itemsize <= bounds.largest_shard) & (
        n_files >= bounds.writers
    )
    if bounds.max_files is not None:
        fits &= n_files <= bounds.max_files
    shards, n_files = shards[fits], n_files[fits]
    if not len(shards):
        return None
    touched = np.zeros(len(shards))
    for access in accesses:
        touched += access.weight * access.touched(shape, shards)
    # fewest shards for each access, then fewest files
    best = np.lexsort((n_files, np.round(touched, 6)))[0]
    return tuple(shards[best].tolist())


# ---- costs


def _proposal(
    shape: Ints,
    chunk: Ints,
    shard: Ints,
    itemsize: int,
    accesses: Sequence[AccessPattern],
    bounds: Bounds,
) -> Proposal:
    chunk_nbytes, shard_nbytes = math.prod(chunk) * itemsize, math.prod(shard) * itemsize
    costs = tuple(_cost(access, shape, chunk, shard, itemsize, bounds.ratio) for access in accesses)
    weights = sum(access.weight for access in accesses)
    mean = sum(
        access.weight * (cost.read_nbytes + REQUEST_NBYTES * cost.n_requests)
        for access, cost in zip(accesses, costs, strict=True)
    )
    n_chunks = math.prod(-(-n // size) for n, size in zip(shard, chunk, strict=True))
    return Proposal(
        chunk,
        shard,
        chunk_nbytes,
        shard_nbytes,
        math.prod(-(-n // size) for n, size in zip(shape, shard, strict=True)),
        n_chunks,
        16 * n_chunks + 4,
        int(shard_nbytes * (1 + 1 / bounds.ratio)),
        costs,
        mean / weights,
    )


def _cost(
    access: AccessPattern, shape: Ints, chunk: Ints, shard: Ints, itemsize: int, ratio: float
) -> AccessCost:
    n_chunks, n_shards = float(access.touched(shape, chunk)), float(access.touched(shape, shard))
    decoded = n_chunks * math.prod(chunk)
    return AccessCost(
        access.text,
        n_chunks,
        n_shards,
        n_chunks + n_shards,
        decoded * itemsize / ratio,
        min(1.0, access.n_elements / decoded),
        (access.n_elements + math.prod(chunk)) * itemsize * 1.0,
    )


# ---------------------------------------------------------------- trials on a sample of the array

# Default size of the sample without encoding.
SAMPLE_NBYTES = 64 << 20
# Reads of each pattern.
N_READS = 15


def try_proposal(
    array: ArrayTarget,
    proposal: Proposal,
    accesses: Sequence[AccessPattern],
    *,
    sample_nbytes: int = SAMPLE_NBYTES,
    threads: int | None = None,
    monitor: Monitor | None = None,
) -> Trial:
    """Write a sample of an array in the proposed shapes to a temporary folder, and time reads of it.

    The files have just been written, so the times compare the work of the processor. `AccessCost` has the requests and bytes
    that count on slow storage.

    Parameters
    ----------
    array : ArrayTarget
        The array; its first elements along each axis are the sample.
    proposal : Proposal
        The shapes.
    accesses : sequence of AccessPattern
        The patterns; a box that is larger than the sample is cut to it.
    sample_nbytes : int
        Size of the sample without encoding, in bytes.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    monitor : Monitor, optional
        Checked between two reads for a request to stop.

    Returns
    -------
    Trial

    Raises
    ------
    UnsupportedError
        shardcodec cannot read the array.
    """
    monitor = monitor or Monitor()
    source = ArrayReader(array.folder, threads, None, False)
    shape = sample_shape(source.shape, proposal.chunk_shape, source.dtype.itemsize, sample_nbytes)
    with tempfile.TemporaryDirectory(prefix="shardcodec-advise-") as folder:
        _write_sample(source, _proposed_spec(array, proposal), shape, folder)
        stored = sum(file.stat().st_size for file in Path(folder, "c").rglob("*") if file.is_file())
        reader = ArrayReader(folder_at(folder, ""), threads, None, False)
        measured = [_measure(reader, access, shape, monitor) for access in accesses]
    nbytes = math.prod(shape) * source.dtype.itemsize
    ratio = nbytes / stored if stored else math.inf
    return Trial(proposal.chunk_shape, proposal.shard_shape, shape, ratio, tuple(measured))


def sample_shape(shape: Ints, chunk: Ints, itemsize: int, nbytes: int) -> Ints:
    """Return the shape of a sample: the axis with the most inner chunks is halved until the sample is small enough."""
    sample = list(shape)
    while math.prod(sample) * itemsize > nbytes:
        axis = max(range(len(sample)), key=lambda i: sample[i] / chunk[i])
        if sample[axis] <= chunk[axis]:
            break
        sample[axis] = max(chunk[axis], sample[axis] // 2)
    return tuple(sample)


def _proposed_spec(array: ArrayTarget, proposal: Proposal) -> ShardSpec:
    """Return the encoding of the proposed shards, with the codecs of the array."""
    chain = ChainSpec.from_metadata(array.document)
    if array.spec is not None and array.foreign_codec is None:
        codecs = array.spec.codecs
    elif chain.sharding is None:
        codecs = chain.codecs
    else:
        raise UnsupportedError(
            f"array {array.place}: expected codecs of shardcodec, got {array.foreign_codec}; convert the array first"
        )
    # the order of the axes belongs to the old shapes
    kept = [codec for codec in codecs if not isinstance(codec, Transpose)]
    return ShardSpec(proposal.shard_shape, proposal.chunk_shape, chain.dtype, chain.fill_value, kept)


def _write_sample(source: ArrayReader, spec: ShardSpec, shape: Ints, folder: str) -> None:
    document = spec.to_metadata(shape)
    Path(folder, "zarr.json").write_text(json.dumps(document), encoding="utf-8")
    grid = [-(-n // size) for n, size in zip(shape, spec.shard_shape, strict=True)]
    whole = [n * size for n, size in zip(grid, spec.shard_shape, strict=True)]
    values = np.full(whole, spec.fill_value, spec.dtype)
    sample = tuple(slice(n) for n in shape)
    values[sample] = source[sample]
    chain = compiled(spec.chain)
    objects = ArrayObjects(folder_at(folder, ""), key_encoding(document), shape, chain, spec.dtype)
    # no other process writes to this folder, so locks between nodes are not needed
    with options(locking="thread"):
        objects.write((0,) * len(shape), values, set(np.ndindex(*grid)), current_options())


def _measure(reader: ArrayReader, access: AccessPattern, shape: Ints, monitor: Monitor) -> TrialAccess:
    chance = random.Random(0)
    box = [min(n, limit) for n, limit in zip(access.box, shape, strict=True)]
    seconds = []
    before = stats()
    for _ in range(N_READS):
        monitor.check()
        start = [chance.randint(0, limit - n) for n, limit in zip(box, shape, strict=True)]
        selection = tuple(slice(s, s + n) for s, n in zip(start, box, strict=True))
        begin = time.perf_counter()
        reader[selection]
        seconds.append(time.perf_counter() - begin)
    after = stats()
    done = {name: (after[name] - before[name]) / N_READS for name in ("requests", "bytes_fetched")}
    return TrialAccess(access.text, statistics.median(seconds), done["requests"], done["bytes_fetched"])
