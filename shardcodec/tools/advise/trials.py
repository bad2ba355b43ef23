# trials.py - trials of a proposal on a sample of the array
# SPDX-License-Identifier: MIT
"""Trials of a proposal on a sample of the array."""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...access.array_reader import ArrayReader
from ...access.box_reader import ArrayObjects, folder_at
from ...access.compiled_chains import compiled
from ...errors import UnsupportedError
from ...format.chunk_keys import key_encoding
from ...format.codecs import Transpose
from ...format.spec import ChainSpec, ShardSpec
from ...option_sources import current_options
from ...options import options
from ...statistics import stats
from ..monitor import Monitor
from ..targets import ArrayTarget
from .access_pattern import AccessPattern
from .report import Proposal, Trial, TrialAccess

__all__ = ["SAMPLE_NBYTES", "try_proposal"]


Ints = tuple[int, ...]

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
