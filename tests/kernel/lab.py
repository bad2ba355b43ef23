#!/usr/bin/env python3
# lab.py - runs in the kernel: a server of NFS, two nodes that are its clients, and rounds in which the network of one is cut
# SPDX-License-Identifier: MIT
"""The nodes are two name spaces of the network, with a host name each, so the kernel has two clients. A round, with one array for
each of its updates:

1. Node a updates inner chunk 0 of each array. The update of array i stops before its i-th call on files (stops.c).
2. By the kind of round, the network of node a is cut and the calls are made when it is back ("after") or at once ("within"); or only
   the answers are lost ("answer"); or the machine dies ("dies"); or the server is restarted ("restart").
3. Node b updates inner chunk 1 of each array: it waits until the lease of the locks of node a has ended.
4. The network is back, and the updates of node a end, with success or an error.
5. Both nodes update once more. What is left is read past the caches, from the server's own disk.

With "none" the updates do not stop, and nothing is cut. Readers of both nodes read all the time. They and the updates are recorded, to be checked outside (faults/histories.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from kernel.directed import N_ARRAYS, ROUNDS, Round

LEASE_SECONDS = 10  # the shortest that the server has
PATIENCE = 60.0
# Node b waits for a lock until the lease of node a has ended. NFS 3 has no lease: it waits until it gives up.
LOCK_SECONDS, LOCK_SECONDS_3 = 40.0, 25.0
N_LAST = 12  # of the calls of an update: those around its rename
SERVED = "/run/srv/x"  # on the server's own disk
OUT = Path("/run/out")

SETUP = f"""
for module in nfsd nfs nfsv3 nfsv4 ext4 veth sch_netem loop; do modprobe $module; done
for kind in tcp udp; do echo 32803 >/proc/sys/fs/nfs/nlm_${{kind}}port; done
mkdir -p /run/srv /run/netns /run/lock /run/records /run/rpc_pipefs /var/lib/nfs/v4recovery /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/rpc_pipefs
truncate -s 300M /run/disk && mkfs.ext4 -q /run/disk && mkdir -p /host/run/srv && mount -o loop /run/disk /host/run/srv
mkdir -p /host{SERVED} && chmod 777 /host{SERVED}
mount -t rpc_pipefs pipes /var/lib/nfs/rpc_pipefs && mount -t nfsd nfsd /proc/fs/nfsd
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
rpcbind -w && rpc.statd --no-notify
nfsdcld || true
echo {LEASE_SECONDS} >/proc/sys/fs/nfs/nlm_grace_period
"""
START = f"""
echo {LEASE_SECONDS} >/proc/fs/nfsd/nfsv4leasetime
echo {LEASE_SECONDS} >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd 4 -V 3 -V 4.0 -V 4.1 -V 4.2
"""
EXPORT = "exportfs -i -o rw,%s,fsid=0,insecure,no_subtree_check '*:/host/run/srv'; pgrep rpc.mountd >/dev/null || rpc.mountd"
# A node has its own services for the locks of NFS 3. The ports of lockd are those of the server, because the kernel registers the
# ports of all name spaces at one rpcbind.
NODE = """
touch /run/netns/{name} && unshare --net=/run/netns/{name} true
ip link add v{name} type veth peer name e0
ip link set e0 netns {name}
ip addr add 10.0.{i}.1/24 dev v{name} && ip link set v{name} up
nsenter --net=/run/netns/{name} sh -c 'ip link set lo up; ip addr add 10.0.{i}.2/24 dev e0; ip link set e0 up'
nsenter --net=/run/netns/{name} unshare --mount --uts sh -c 'hostname node{name}; mount -t tmpfs run /run; mount -t tmpfs state /var/lib/nfs
  mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak; rpcbind -w; rpc.statd --no-notify' >/dev/null 2>&1
"""


def sh(script: str, *, check: bool = True) -> str:
    """Run commands of the small system, which has the tools of NFS."""
    command = ["chroot", "/proc/1/root", "sh", "-ec" if check else "-c", script]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"failed in the kernel: {script}\n{done.stdout}{done.stderr}")
    return done.stdout


class Node:
    """One client: its network, its mount, and a process that works there."""

    def __init__(self, name: str, number: int, program: list[str]) -> None:
        self.name, self._number, self._program = name, number, program
        self._process: subprocess.Popen[str] | None = None
        sh(NODE.format(name=name, i=number))

    def _here(self, command: str) -> str:
        return (
            f"nsenter --net=/run/netns/{self.name} unshare --uts sh -c 'hostname node{self.name}; {command}'"
        )

    def mount(self, version: str, options: str, folder: str) -> None:
        """Mount the folder of the server anew."""
        if version == "cifs":
            given = f"username=root,password=p,vers=3.1.1,nosharesock{',' + options if options else ''}"
            sh(f"umount -f -l /host{folder} 2>/dev/null; mkdir -p /host{folder}", check=False)
            sh(
                self._here(
                    f"mount -i -t cifs -o {given},ip=10.0.{self._number}.1 //10.0.{self._number}.1/x /host{folder}"
                )
            )
            return
        served = "/host/run/srv/x" if version == "3" else "/x"
        given = f"vers={version},nosharecache{',' + options if options else ''}"
        sh(f"umount -f -l /host{folder} 2>/dev/null; mkdir -p /host{folder}", check=False)
        sh(self._here(f"mount -t nfs -o {given} 10.0.{self._number}.1:{served} /host{folder}"))

    def start(self) -> None:
        """Start the process. It is ready when it answers."""
        words = " ".join(self._program)
        self._process = subprocess.Popen(
            ["chroot", "/proc/1/root", "sh", "-c", self._here(f"exec chroot /host {words}")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def tell(self, what: str, **arguments: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of node {self.name} has ended")
        return json.loads(line)

    def ask(self, what: str, **arguments: Any) -> Any:
        self.tell(what, **arguments)
        return self.answer()

    def end(self) -> None:
        """Kill the process."""
        assert self._process is not None
        # it may be the child of a shell; it would go on, and read the empty folder below the mount
        os.killpg(self._process.pid, signal.SIGKILL)

    def die(self, folder: str) -> None:
        """Kill all that the machine has, while its network is cut; the server is not told."""
        assert self._process is not None
        self.end()
        sh(f"umount -f -l /host{folder}", check=False)
        self._process.wait()

    def cut(self) -> None:
        sh(f"nsenter --net=/run/netns/{self.name} ip link set e0 down")

    def join(self) -> None:
        sh(f"nsenter --net=/run/netns/{self.name} ip link set e0 up")

    def mute(self) -> None:
        """Drop what the node sends; what is sent to it arrives."""
        sh(f"nsenter --net=/run/netns/{self.name} tc qdisc replace dev e0 root netem loss 100%")

    def unmute(self) -> None:
        sh(f"nsenter --net=/run/netns/{self.name} tc qdisc del dev e0 root")

    def delay(self, ms: float) -> None:
        """Delay what the node sends, by half of a round trip each way."""
        for enter, device in ((f"nsenter --net=/run/netns/{self.name}", "e0"), ("", f"v{self.name}")):
            sh(f"{enter} tc qdisc del dev {device} root 2>/dev/null", check=False)
            if ms:
                sh(f"{enter} tc qdisc add dev {device} root netem delay {ms / 2}ms")

    def delay_requests(self, ms: float) -> None:
        sh(f"nsenter --net=/run/netns/{self.name} tc qdisc replace dev e0 root netem delay {ms}ms")

    def delay_answers(self, ms: float) -> None:
        sh(f"tc qdisc replace dev v{self.name} root netem delay {ms}ms")


# A server of SMB, whose only share is that of the server of NFS.
SAMBA = """
modprobe cifs
mkdir -p /run/samba/private
cat >/run/samba/smb.conf <<'END'
[global]
server role = standalone server
disable netbios = yes
smb ports = 445
private dir = /run/samba/private
lock directory = /run/samba
state directory = /run/samba
cache directory = /run/samba
pid directory = /run/samba
ncalrpc dir = /run/samba/ncalrpc
log file = /run/samba/log
[x]
path = /host/run/srv/x
read only = no
END
printf 'p\np\n' | smbpasswd -c /run/samba/smb.conf -s -a root
smbd -D -s /run/samba/smb.conf
until ss -ltn | grep -q :445; do sleep 0.1; done
"""


def restart_server(*, notifies: bool = True) -> None:
    """Restart the server. notifies: tell the clients of NFS 3, which then lock again what they had locked; NFS 4 needs no notice."""
    # the lock daemon does not restart, because the nodes use it too; so the server is told to forget the locks of NFS 3
    sh("echo /host/run/srv >/proc/fs/nfsd/unlock_filesystem; rpc.nfsd 0; sleep 0.5;" + START)
    if notifies:
        sh("sm-notify -f -d >/run/notify 2>&1 &", check=False)


# ---- rounds


class Watch(threading.Thread):
    """Looks at the names of shards on the server's own disk all the time, and counts how often one is missing."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(daemon=True)
        self._paths = paths
        self._missing: set[str] = set()
        self._is_over = False
        self.n_missing = 0

    def run(self) -> None:
        while not self._is_over:
            missing = {path for path in self._paths if not os.path.lexists(path)}
            self.n_missing += len(missing - self._missing)
            self._missing = missing
            time.sleep(0.003)

    def end(self) -> int:
        self._is_over = True
        self.join()
        return self.n_missing


class Lab:
    """The nodes and what was counted."""

    def __init__(self, python: str, tests: str, seed: int, seconds: float) -> None:
        library = "LD_PRELOAD=/run/out/stops.so"
        program = ["env", library, python, f"{tests}/kernel/node.py"]
        self._chance = random.Random(seed)
        sh(SETUP)
        self._export("no_root_squash")
        sh(START)
        self.a, self.b = Node("a", 1, program), Node("b", 2, program)
        for node in (self.a, self.b):
            node.start()
            node.answer()
        self._end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self._calls: list[str] = []  # of each update, before which it is stopped
        self._rare: list[str] = []  # the further calls of some
        self._first = True  # no update of the mount was stopped yet

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def run_mount(self, number: int, mount: dict[str, Any], kinds: list[str]) -> None:
        """Run rounds on one kind of mount; each has an array for each call of an update."""
        name = f"m{number}"
        at_server = f"{SERVED}/{name}"
        sh(f"mkdir -p /host{at_server} && chmod 777 /host{at_server} && mkdir -p /run/records/{name}")
        folders = {node: f"/run/{node.name}{number}" for node in (self.a, self.b)}
        if mount["version"] == "cifs" and not Path("/run/samba").exists():
            sh(SAMBA)
        for node, folder in folders.items():
            node.mount(mount["version"], mount["options"], folder)
            node.delay(0)
            node.ask("choose", locking="cluster", lock_seconds=self._lock_seconds)
        self._export(mount["export"])
        if not ROUNDS.keys() >= set(kinds):
            self._prepare(mount["name"], folders, name)
        for round_ in range(len(kinds)):
            kind = kinds[round_]
            if self.is_over and round_:
                break
            for node in folders:
                node.delay(mount["delay"])
            if kind in ROUNDS:
                self._directed(kind, name, folders)
                continue
            watch = Watch([f"{at_server}/x{i}/a/c/0/0" for i in range(self._n_arrays)])
            watch.start()
            told = self._round(kind, name, folders, number * 100 + round_)
            n_missing = watch.end()
            self.b.ask("last", folder=at_server)
            self.counts["names missing while a process has the shard open"] += n_missing
            print(
                f"{mount['name']}, {mount['delay']} ms, {kind}: {told}; {n_missing} names missing", flush=True
            )
        for node, folder in folders.items():
            node.ask("close")
            sh(f"umount -f -l /host{folder}", check=False)
            # a process remembers the kind of a mount, and the kernel may give its numbers to the next one
            node.end()
            node.start()
            node.answer()

    @property
    def _lock_seconds(self) -> float:
        return LOCK_SECONDS_3 if self.mounted["version"] == "3" else LOCK_SECONDS

    def _prepare(self, mount: str, folders: dict[Node, str], name: str) -> None:
        """Find the calls of an update, count its requests, and make an array for each call."""
        theirs = f"{folders[self.b]}/requests-{name}"
        self.b.ask("make", folder=f"{theirs}/calls", n=1)
        self._calls, self._rare = self.a.ask("measure", folder=f"{folders[self.a]}/requests-{name}/calls")
        for open_files in (0, 1):
            told = self.b.ask("requests", folder=f"{theirs}/{open_files}", n=20, open_files=open_files)
            what = f"requests per update, {mount}, open_files={open_files}"
            told.pop("DELEGRETURN", 0)  # what the server lends is its own choice
            self.counts[what] = sum(told.values())
            print(f"{what}: {self.counts[what]:g} {told}", flush=True)
        self._first = True
        # by a client, so that the lock file and the array have one owner, also where the server maps users
        self.b.ask("make", folder=f"{folders[self.b]}/{name}", n=self._n_arrays)

    def _export(self, option: str) -> None:
        sh("exportfs -ua; " + EXPORT % option)

    def _round(self, kind: str, name: str, folders: dict[Node, str], number: int) -> str:
        a, b, n = self.a, self.b, self._n_arrays
        for i, node in enumerate((a, b)):
            folder = f"{folders[node]}/{name}"
            node.ask(
                "open", folder=folder, n=n, records=f"/run/records/{name}", actor=(2 * number + i) * 1000
            )
        if (
            kind in ("none", "held") or self._chance.random() < 0.7
        ):  # then a node that replaces the shard gives the old one another name first
            (a if kind in ("none", "held") else self._chance.choice((a, b))).ask("hold")
        if kind == "none":
            return "; ".join(
                f"{node.name}: {self._updated(node, chunk)}" for chunk, node in enumerate((a, b, a, b))
            )
        last = self._calls[-N_LAST:]
        stops = [last[i % N_LAST] for i in range(n)] if kind == "held" else self._calls + self._more_stops()
        self._count_cuts(a.ask("update", chunk=0, stops=stops))
        if kind == "restart":
            restart_server()
            a.ask("go")
        elif kind == "answer":
            a.delay_answers(1500)
            a.ask("go")
            time.sleep(1.0)
            a.cut()
            a.delay_answers(0)
        else:
            a.cut()
            if kind in ("within", "held"):
                a.ask("go")
            if kind == "dies":
                a.die(folders[a])
                self.counts["deaths"] += 1
        by_b = self._updated(b, 1)
        self._come_back(kind, folders)
        by_a = ""
        if kind == "dies":
            a.ask(
                "open",
                folder=f"{folders[a]}/{name}",
                n=n,
                records=f"/run/records/{name}",
                actor=(2 * number) * 1000 + 500,
            )
        else:
            a.ask("go")
            by_a = self._told(a)
        for node, chunk in ((a, 2), (b, 3)):
            self._updated(node, chunk)
        return f"a: {by_a}; b: {by_b}"

    def _directed(self, kind: str, name: str, folders: dict[Node, str]) -> None:
        """Run a round of exact steps, with arrays of its own."""
        of_kind = f"{name}-{kind}"
        sh(
            f"mkdir -p /host{SERVED}/{of_kind} && chmod 777 /host{SERVED}/{of_kind} && mkdir -p /run/records/{of_kind}"
        )
        ours = [f"{folder}/{of_kind}" for folder in folders.values()]
        self.a.ask("make", folder=ours[0], n=N_ARRAYS)  # so node b does not know the names
        shards = [f"{SERVED}/{of_kind}/x{i}/a/c/0/0" for i in range(N_ARRAYS)]
        folder = folders[self.a]
        round_ = Round(
            (self.a, self.b),
            (ours[0], ours[1]),
            shards,
            f"/run/records/{of_kind}",
            restart_server,
            has_lease=self.mounted["version"] != "3",
            die=lambda: self.a.die(folder),
            revive=lambda: self._revive(folder),
        )
        ROUNDS[kind](round_)
        self.b.ask("last", folder=f"{SERVED}/{of_kind}")
        for node in folders:
            node.ask("close")
        self.counts[f"rounds of {kind}"] += 1
        for wrong in round_.wrong:
            self.counts[f"wrong in {kind}, {self.mounted['name']}: {wrong}"] += 1
        print(
            f"{self.mounted['name']}, {kind}: {'; '.join(round_.told)}",
            *round_.wrong,
            sep="\n    ",
            flush=True,
        )

    def _revive(self, folder: str) -> None:
        """Start the machine of node a again."""
        self.a.join()
        self.a.mount(self.mounted["version"], self.mounted["options"], folder)
        self.a.start()
        self.a.answer()
        self.a.ask("choose", locking="cluster", lock_seconds=self._lock_seconds)

    def _come_back(self, kind: str, folders: dict[Node, str]) -> None:
        if kind == "restart":
            return
        self.a.join()
        if kind == "dies":
            self._revive(folders[self.a])
        time.sleep(1.0)

    mounted: dict[str, Any]

    @property
    def _n_arrays(self) -> int:
        return len(self._calls) + len(self._rare)

    def _more_stops(self) -> list[str]:
        """Return the calls of some updates, in the first round of a mount; later, calls of the three steps with the fewest cuts."""
        more, self._first = (self._rare if self._first else []), False
        fewest = sorted(range(1, 9), key=lambda step: self.counts[f"cut in step {step}"])
        return more or [f"{fewest[i % 3]} 1" for i in range(len(self._rare))]

    def _count_cuts(self, stopped: list[str]) -> None:
        self.counts["cuts"] += len(stopped)
        for where in stopped:
            call, _, step = where.partition(" in ")
            self.counts[f"cut before {call}"] += 1
            self.counts[f"cut in {step or 'no step'}"] += 1

    def _updated(self, node: Node, chunk: int) -> str:
        node.ask("update", chunk=chunk, stops=None)
        return self._told(node)

    def _told(self, node: Node) -> str:
        """Wait for the updates of a node, and return what has become of them."""
        told = node.ask("join", seconds=PATIENCE)
        for _, outcome in told["outcomes"]:
            self.counts[outcome if outcome in ("acknowledged", "hangs") else f"error {outcome}"] += 1
        for error, n in told["errors"].items():
            self.counts[f"error {error}"] += n
        outcomes = Counter(outcome for _, outcome in told["outcomes"])
        failed = [f"{where}: {outcome}" for where, outcome in told["outcomes"] if outcome != "acknowledged"]
        return f"{outcomes['acknowledged']} of {self._n_arrays} {', '.join(failed)} {told['errors'] or ''}".rstrip()


def main() -> None:
    given = json.loads((OUT / "plan.json").read_text())
    lab = Lab(given["python"], given["tests"], given["seed"], given["seconds"])
    (OUT / "records").mkdir()
    for number, mount in enumerate(given["mounts"]):
        if lab.is_over and number:
            break
        lab.mounted = mount
        lab.run_mount(number, mount, mount["kinds"])
        sh(f"cp -r /run/records/m{number} /run/records/m{number}-* /run/out/records/", check=False)
        (OUT / "counts.json").write_text(json.dumps(lab.counts))


if __name__ == "__main__":
    sys.exit(main())
