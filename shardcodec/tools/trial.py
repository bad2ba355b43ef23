# trial.py - measure proposals of `advise` on a sample of the array
# SPDX-License-Identifier: MIT
"""`try_proposal`: write a sample of an array in other shapes to a temporary folder, and read it as the patterns say.

Reads are warm: the files have just been written. So times compare the work of the processor, and `AccessCost` has the
requests and bytes that count on slow storage.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zarr

from ..access.array_reader import ArrayReader, open_array
from ..errors import UnsupportedError
from ..format.codecs import Transpose
from ..format.spec import ChainSpec, ShardSpec
from ..options import options
from ..statistics import stats
from ..zarr_plugin.enable import attach
from .access_pattern import AccessPattern
from .advise_report import Proposal, Trial, TrialAccess
from .array_target import ArrayTarget
from .monitor import Monitor

__all__ = ["SAMPLE_NBYTES", "try_proposal"]

# Elements of the sample, in bytes, and reads of each pattern.
SAMPLE_NBYTES = 64 << 20
N_READS = 15

Ints = tuple[int, ...]


def try_proposal(
    array: ArrayTarget,
    proposal: Proposal,
    accesses: Sequence[AccessPattern],
    *,
    sample_nbytes: int = SAMPLE_NBYTES,
    threads: int | None = None,
    monitor: Monitor | None = None,
) -> Trial:
    """Measure a proposal.

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
        It is asked between two reads whether to stop.

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
        _write(source, _spec(array, proposal), shape, folder)
        stored = sum(file.stat().st_size for file in Path(folder, "c").rglob("*") if file.is_file())
        reader = open_array(folder, threads=threads)
        found = [_measure(reader, one, shape, monitor) for one in accesses]
    nbytes = math.prod(shape) * source.dtype.itemsize
    ratio = nbytes / stored if stored else math.inf
    return Trial(proposal.chunk_shape, proposal.shard_shape, shape, ratio, tuple(found))


def sample_shape(shape: Ints, chunk: Ints, itemsize: int, nbytes: int) -> Ints:
    """Return the shape of a sample: the axis with the most inner chunks is halved until the sample is small enough."""
    sample = list(shape)
    while math.prod(sample) * itemsize > nbytes:
        axis = max(range(len(sample)), key=lambda i: sample[i] / chunk[i])
        if sample[axis] <= chunk[axis]:
            break
        sample[axis] = max(chunk[axis], sample[axis] // 2)
    return tuple(sample)


def _spec(array: ArrayTarget, proposal: Proposal) -> ShardSpec:
    """Return the encoding of the proposed shards, with the codecs of the array."""
    chain = ChainSpec.from_metadata(array.document)
    if array.spec is not None and array.foreign_codec is None:
        codecs = array.spec.codecs
    elif chain.sharding is None:
        codecs = chain.codecs
    else:
        raise UnsupportedError(
            f"array {array.place}: shardcodec does not have the codec {array.foreign_codec}"
        )
    # the order of the axes belongs to the old shapes
    kept = [codec for codec in codecs if not isinstance(codec, Transpose)]
    return ShardSpec(proposal.shard_shape, proposal.chunk_shape, chain.dtype, chain.fill_value, kept)


def _write(source: ArrayReader, spec: ShardSpec, shape: Ints, folder: str) -> None:
    Path(folder, "zarr.json").write_text(json.dumps(spec.to_metadata(shape)), encoding="utf-8")
    array: Any = attach(zarr.open_array(folder, mode="r+"))
    # no other process writes to this folder, so locks between nodes are not needed
    with options(locking="thread"):
        array[...] = source[tuple(slice(n) for n in shape)]


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
