# history_places.py - the storage on which histories are recorded, the actors there, and what is promised to readers
# SPDX-License-Identifier: MIT
"""`PLACES` maps a name to a `Place`. One that this machine cannot make raises `Missing`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults import history_actors as actors
from faults.histories import Rules
from faults.history_actors import Job, Site
from mounts.network_kinds import CACHE_SECONDS, KINDS, Missing
from servers.proxy import What
from servers.s3 import missing_for_s3, s3_bucket, s3_server

__all__ = ["PLACES", "READERS", "Place"]

Work = Callable[[Job], None]

PART_WRITERS: tuple[Work, ...] = (*[actors.write_parts] * 3, actors.write_groups)
WRITERS: tuple[Work, ...] = (*PART_WRITERS, actors.write_shards, actors.erase, actors.compact)
READERS: tuple[Work, ...] = (actors.read, actors.read, actors.read)

ORDERED = Rules()
# A reader of inner chunks with a checksum may see the new ones before an update in place ends, and then the old ones again.
BESIDE_UPDATES_IN_PLACE = Rules(is_ordered=False)
CACHED = Rules(stale=int(CACHE_SECONDS * 1e9))
# A write whose answer was lost is made again, also after another write of the same inner chunk.
LOST_ANSWERS = Rules(is_ordered=False, late=True)


@dataclass(frozen=True)
class Place:
    """A kind of storage.

    Parameters
    ----------
    open_site : callable
        Takes an empty folder; a context with the site of the array.
    has_signals : bool
        True if actors are killed from outside too, and not only by themselves at a call that changes the file system.
    in_ci : bool
        True if the tests of each commit run it.
    """

    open_site: Callable[[Path], AbstractContextManager[Site]]
    rules: Rules = ORDERED
    work: tuple[Work, ...] = (*WRITERS, *READERS)
    has_signals: bool = True
    in_ci: bool = True

    @property
    def settle_seconds(self) -> float:
        """How long a cache may show an older state at the end."""
        return self.rules.stale / 1e9


def _local(codecs: str) -> Callable[[Path], AbstractContextManager[Site]]:
    @contextmanager
    def open_site(folder: Path) -> Iterator[Site]:
        yield Site([folder], codecs=codecs, hot=2)

    return open_site


@contextmanager
def _large(folder: Path) -> Iterator[Site]:
    """Inner chunks of 512 KiB, whose bytes take long to write."""
    strategies = ("in_place", "in_place", "in_place", "replace")
    yield Site([folder], n_shards=1, shard_chunks=4, chunk=1 << 16, hot=1, strategies=strategies)


@contextmanager
def _beside_stock_readers(folder: Path) -> Iterator[Site]:
    yield Site([folder], strategies=("replace", "append"), packs=False)


def _two_mounts(kind: str, **choices: int) -> Callable[[Path], AbstractContextManager[Site]]:
    @contextmanager
    def open_site(folder: Path) -> Iterator[Site]:
        with KINDS[kind](folder) as mounts:
            yield Site([mounts.one, mounts.two], **choices)  # type: ignore[arg-type]

    return open_site


def _s3(*, has_faults: bool) -> Callable[[Path], AbstractContextManager[Site]]:
    @contextmanager
    def open_site(folder: Path) -> Iterator[Site]:
        if (missing := missing_for_s3()) is not None:
            raise Missing(missing)
        with s3_server() as server, s3_bucket(server) as bucket:
            kinds = (What.CUT_BEFORE, What.CUT_WITHIN, What.CUT_AFTER, What.REFUSE, What.REFUSE_AFTER)

            def disturb(chance: random.Random) -> None:
                if chance.random() < 0.5:
                    bucket.proxy.add(chance.choice(kinds), "PUT", r"c/\d+/0$", times=1)
                elif chance.random() < 0.5:
                    bucket.proxy.add(What.CUT_ANSWER, "GET", r"c/\d+/0$", times=1)

            ports = (bucket.proxy.port, server.port) if has_faults else (server.port, server.port)
            yield Site([], (*ports, bucket.name), chunk=512, disturb=disturb if has_faults else None)

    return open_site


MANY = {"chunk": 512, "n_shards": 2, "shard_chunks": 16, "hot": 8}
# One shard: an actor that kills itself asks for no second lock, which GlusterFS 10.3 would not survive (docs/cluster.md).
MANY_IN_ONE = {"chunk": 512, "n_shards": 1, "shard_chunks": 32, "hot": 8}

PLACES: dict[str, Place] = {
    "local-raw": Place(_local("raw")),
    "local-zstd": Place(_local("zstd"), in_ci=False),
    "local-crc32c": Place(_local("crc32c"), BESIDE_UPDATES_IN_PLACE),
    "local-large": Place(_large, work=(actors.write_parts, actors.write_parts, *READERS), in_ci=False),
    # an eraser would free the end of a file, where another inner chunk may go before a reader opens the file again
    "stock-readers": Place(
        _beside_stock_readers, work=(*PART_WRITERS, actors.read_stock, actors.read_stock, actors.read)
    ),
    "ext4": Place(_two_mounts("ext4"), in_ci=False),
    "xfs": Place(_two_mounts("XFS"), in_ci=False),
    "btrfs": Place(_two_mounts("btrfs"), in_ci=False),
    "fuse": Place(_two_mounts("FUSE, the server has the locks", **MANY), CACHED),
    "glusterfs": Place(_two_mounts("GlusterFS", **MANY_IN_ONE), CACHED, has_signals=False, in_ci=False),
    "s3": Place(_s3(has_faults=False), Rules(late=True)),
    "s3-faults": Place(_s3(has_faults=True), LOST_ANSWERS, in_ci=False),
}
