# directed.py - rounds of exact steps, each of which loses data where one part of the protocol of updates is missing
# SPDX-License-Identifier: MIT
"""Each round has some arrays of its own, and needs no luck. What must be found if a part of the protocol is taken out:

| round | part | what is lost without it |
|---|---|---|
| `overtaken` | the fence (csrc/io/sc_guard.h, step 2) | the update of node b, which node a overwrites when its network is back |
| `restarted` | none alone: the server forgets its locks, and the nodes lock again | |
| `forgotten` | the check (step 5), on NFS 3; on NFS 4 the open shard is lost with the lock | the update of node b |
| `kept` | the look at the folder of the shard (step 3) | the update of node a, because node b starts from the file that it knows by name |
| `gap` | the reader's rule for a missing name (storage/absent.py) | readers get the fill value while a shard has no name |
| `died` | the same, and the writer's | the same for ever, because the machine has died in between |
| `resent` | the kept name (csrc/io/sc_kept.h) | the shard, with the update of node b, because the client of node a moves it away and removes it |
| `closed` | the name that a fence gives back before it removes the new file | the shard, because the client of node a has moved it away and removes it |
| `appended` | no part of it: it shows why `append` and `in_place` are not used here | |
| `documents` | the old file is renamed away before the new one gets its name, on SMB | the file |
| `stale` | the reader's rule for a file that is gone from the server | readers get an error |

On a mount whose locks stay on the node (`nolock`), `refused` shows that updates are refused, or warned of. A round returns what is
wrong; what is in the records is checked outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel.lab import Node

__all__ = ["N_ARRAYS", "ROUNDS", "Round"]

N_ARRAYS = 6
SECONDS = 20.0  # for the name of a shard to go
PATIENCE = 60.0
LATE_MS = 2500.0  # for the answers to node a, between the two requests of its rename
REQUEST_MS = 400.0  # for the requests of node a
RENAME = "renameat"
OPEN_NEW = "open 4"  # after those of the folder of the lock file, of the lock file and of the shard


class Round:
    """Two nodes and the arrays of one round.

    folders: the arrays of each node. shards: their paths on the server's disk. records: the folder of the records. restart: restarts the server. has_lease: locks end with a lease (NFS 4). die, revive: kill the machine of node a, and start it again.
    """

    def __init__(
        self,
        nodes: tuple[Node, Node],
        folders: tuple[str, str],
        shards: list[str],
        records: str,
        restart: Callable[..., None],
        *,
        has_lease: bool,
        die: Callable[[], None],
        revive: Callable[[], None],
    ) -> None:
        self.a, self.b = nodes
        self.folders, self._shards, self._records, self._actor = folders, shards, records, 0
        self.served = Path(shards[0]).parents[4]
        self.restart, self.die, self.revive = restart, die, revive
        self.has_lease = has_lease
        self.wrong: list[str] = []
        self.told: list[str] = []

    def open(self, node: Node) -> None:
        """Open the arrays on a node."""
        folder = self.folders[node is self.b]
        self._actor += 100
        node.ask("open", folder=folder, n=N_ARRAYS, records=self._records, actor=self._actor, reads=False)

    def read(self, node: Node, *, permitted: tuple[str, ...] = ()) -> None:
        """Read each array once. An error is wrong unless it is permitted."""
        errors = node.ask("read")
        self.told.append(f"{node.name} reads: {errors or 'well'}")
        self.wrong += [
            f"node {node.name}: {error}" for error in errors if not error.endswith(permitted or ("-",))
        ]

    def update(self, node: Node, chunk: int) -> list[str]:
        """Update an inner chunk of each array; return the errors."""
        node.ask("update", chunk=chunk, stops=None)
        return self.outcomes(node)

    def update_until(self, node: Node, chunk: int, call: str) -> None:
        """Update an inner chunk of each array; each update stops before its first call whose name begins so."""
        node.ask("update", chunk=chunk, stops=[call] * N_ARRAYS)

    def go(self, node: Node) -> list[str]:
        node.ask("go")
        return self.outcomes(node)

    def outcomes(self, node: Node) -> list[str]:
        told: Any = node.ask("join", seconds=PATIENCE)
        errors = [outcome for _, outcome in told["outcomes"] if outcome != "acknowledged"]
        where = {where for where, _ in told["outcomes"] if where}
        n = len(told["outcomes"]) - len(errors)
        self.told.append(f"{node.name} {sorted(where) or ''}: {n} of {N_ARRAYS} {', '.join(errors)}".rstrip())
        self.wrong += [f"node {node.name} hangs" for error in errors if error == "hangs"]
        return errors

    def expect_no_error(self, node: Node, errors: list[str]) -> None:
        self.wrong += [f"node {node.name}: {error} without a fault of the network" for error in errors]

    def missing(self) -> list[int]:
        """Return the arrays whose shard has no name on the server."""
        return [i for i, shard in enumerate(self._shards) if not Path(shard).exists()]

    def wait_for_missing_name(self) -> None:
        """Wait until the server has no name for a shard, and a little more: for others, too."""
        end = time.monotonic() + SECONDS
        while not self.missing():
            if time.monotonic() > end:
                self.wrong.append("no shard has lost its name, so the round says nothing")
                return
            time.sleep(0.005)
        time.sleep(LATE_MS / 4000)


def _open_known(round_: Round) -> None:
    """Open the arrays on both nodes. Each knows the names of the shards, and the shards have been updated before."""
    for node in (round_.a, round_.b):
        round_.open(node)
    for node, chunk in (
        (round_.b, 2),
        (round_.a, 3),
    ):  # the first update of a process asks the server for more
        round_.expect_no_error(node, round_.update(node, chunk))
    for node in (round_.a, round_.b):
        round_.read(node)


def overtaken(round_: Round) -> None:
    """Node a has done all but its rename when its network is cut; it goes on after node b has updated the shard."""
    a, b = round_.a, round_.b
    _open_known(round_)
    round_.update_until(a, 0, RENAME)
    a.cut()
    round_.update(b, 1)
    a.join()
    time.sleep(1.0)
    round_.go(a)


def restarted(round_: Round) -> None:
    """Node a has done all but its rename when the server is restarted; it goes on while node b waits for the lock."""
    a, b = round_.a, round_.b
    _open_known(round_)
    round_.update_until(a, 0, RENAME)
    round_.restart()
    b.ask("update", chunk=1, stops=None)
    time.sleep(2.0)
    round_.go(a)
    round_.outcomes(b)


def forgotten(round_: Round) -> None:
    """The lock of node a is lost when it has looked at the shard, and not yet made its new file. It makes it after the fence of node b.

    Node b renames when node a has read the old shard: only the check before its own rename tells node a of it.
    """
    a, b = round_.a, round_.b
    _open_known(round_)
    round_.update_until(a, 0, OPEN_NEW)
    if round_.has_lease:
        a.cut()
    else:
        round_.restart(notifies=False)  # a firewall may drop the notice by which clients of NFS 3 lock again
    round_.update_until(b, 1, RENAME)
    a.join()
    a.ask("go_until", call=RENAME, seconds=5.0)
    round_.go(b)
    round_.go(a)


def kept(round_: Round) -> None:
    """A process of node a keeps the old shards open, so their files live on as `.nfs...` while node b knows them by the old name."""
    a, b = round_.a, round_.b
    _open_known(round_)
    a.ask("hold")
    round_.expect_no_error(a, round_.update(a, 0))
    round_.expect_no_error(b, round_.update(b, 1))


def _into_gap(round_: Round) -> None:
    """Let the updates of node a give the old shards another name, and the answers come late."""
    a, b = round_.a, round_.b
    for node in (a, b):
        round_.open(node)  # node b does not know the names of the shards
    a.ask("hold")
    round_.update_until(a, 0, RENAME)
    a.delay_answers(LATE_MS)
    a.ask("go")
    round_.wait_for_missing_name()


def gap(round_: Round) -> None:
    """Node b reads while the shards have no name, because a process of node a has them open while they are replaced."""
    a, b = round_.a, round_.b
    _into_gap(round_)
    round_.read(b)
    a.delay_answers(0)
    round_.expect_no_error(a, round_.outcomes(a))


def died(round_: Round) -> None:
    """As `gap`, but the machine of node a dies in between; `repair` gives the shards their names again."""
    a, b = round_.a, round_.b
    _into_gap(round_)
    a.cut()
    round_.die()
    a.delay_answers(0)
    n_missing = len(round_.missing())
    round_.told.append(f"{n_missing} without a name")
    round_.read(b, permitted=("ShardFileError", "ShardFileError 116"))
    if not round_.has_lease:  # the locks of the dead machine stay until it is back
        errors = round_.update(b, 1)
        if len(errors) != N_ARRAYS:
            round_.wrong.append(f"expected {N_ARRAYS} updates of node b to fail, got {len(errors)}")
    b.ask("repair")
    round_.read(b)
    if round_.has_lease:
        round_.expect_no_error(b, round_.update(b, 2))
    round_.revive()


def resent(round_: Round) -> None:
    """The network of node a is cut when its client, because a process has the shards open, has sent the first of its two requests.

    That request arrives when the network is back, and moves a shard of node b away. The second one fails, and the client removes the file
    that no process has open any more.
    """
    a, b = round_.a, round_.b
    _open_known(round_)
    a.ask("hold")
    round_.update_until(a, 0, RENAME)
    a.delay_requests(REQUEST_MS)
    a.ask("go")
    if not a.ask("wait_in", function="nfs_sillyrename", seconds=SECONDS):
        round_.wrong.append("the client has not moved a shard, so the round says nothing")
    a.cut()
    a.delay_requests(0)
    a.ask("let_go")
    round_.update(b, 1)
    _come_back(round_)


def closed(round_: Round) -> None:
    """As `gap`, but the network of node a is cut between its two requests, and node b takes the lock before the second one arrives."""
    a, b = round_.a, round_.b
    _into_gap(round_)
    a.mute()
    time.sleep(LATE_MS / 1000)  # the answer to the first request arrives
    a.cut()
    a.delay_answers(0)
    a.ask("let_go")
    round_.update(b, 1)
    a.unmute()
    _come_back(round_)


def _come_back(round_: Round) -> None:
    """The network of node a is back, and its updates end. Each node finds the shards, and updates them."""
    a, b = round_.a, round_.b
    a.join()
    round_.outcomes(a)
    for chunk, node in ((2, b), (3, a), (4, b)):
        round_.read(node)
        round_.expect_no_error(node, round_.update(node, chunk))


def stale(round_: Round) -> None:
    """Node b knows the names of files that the server has removed."""
    a, b = round_.a, round_.b
    for node in (a, b):
        round_.open(node)
    for chunk in range(3):
        round_.read(b)
        round_.expect_no_error(a, round_.update(a, chunk))
        round_.read(b)


def appended(round_: Round) -> None:
    """Node a appends to a file, each time with one call whose last bytes say where the file ends, as an index does; node b looks at its end.

    A call becomes several requests, and the size of a file comes to another node before its bytes.
    """
    a, b = round_.a, round_.b
    n_torn = 0
    a.delay_requests(2.0)
    for nbytes, n in ((6_000, 500), (3 << 20, 12)):
        ours, theirs = (f"{folder}/appended{nbytes}" for folder in round_.folders)
        a.ask("append", path=ours, nbytes=nbytes, n=1, waits=True)
        a.ask("append", path=ours, nbytes=nbytes, n=n, waits=False)
        whole, torn = b.ask("ends", path=theirs, seconds=6.0)
        round_.told.append(f"{nbytes} bytes appended: {torn} of {whole + torn} looks found no end")
        n_torn += torn
    a.delay_requests(0)
    if not n_torn:
        round_.wrong.append("each look found the end, so `append` could be used")


def documents(round_: Round) -> None:
    """Node a replaces a file that a process of node b, or of its own, has open. On SMB the file was gone when the process closed it."""
    a, b = round_.a, round_.b
    ours, theirs = (f"{folder}/document" for folder in round_.folders)
    a.ask("put", path=ours, text="0")
    for text, (node, path) in (("1", (a, ours)), ("2", (b, theirs))):
        node.ask("hold_file", path=path)
        a.ask("put", path=ours, text=text)
        node.ask("let_go")
        time.sleep(1.0)
        stored = Path(round_.served, "document")
        if not stored.exists() or stored.read_text() != text:
            round_.wrong.append(
                f"the file that node {node.name} had open is {'not the new one' if stored.exists() else 'gone'}"
            )
    round_.told.append("replaced twice while it was open")


def refused(round_: Round) -> None:
    """The locks of the mount do not reach other nodes: `locking="cluster"` writes nothing, and `locking="process"` warns."""
    a = round_.a
    round_.open(a)
    errors = round_.update(a, 0)
    if errors != ["LockScopeError"] * N_ARRAYS:
        round_.wrong.append(f"expected LockScopeError for each update, got {errors}")
    round_.read(a)
    a.ask("choose", locking="process", lock_seconds=PATIENCE / 2)
    round_.expect_no_error(a, round_.update(a, 1))
    round_.told.append(f"warnings: {(warned := a.ask('warned'))}")
    if warned != ["LockScopeWarning"]:
        round_.wrong.append(f"expected LockScopeWarning, got {warned}")


ROUNDS: dict[str, Callable[[Round], None]] = {
    round_.__name__: round_
    for round_ in (
        overtaken,
        restarted,
        forgotten,
        kept,
        gap,
        died,
        resent,
        closed,
        appended,
        documents,
        stale,
        refused,
    )
}
