"""`Nodes`: several machines on this one, each with a network of its own, joined by links of a chosen speed. No root.

Linux gives a process a network of its own (a namespace). Each node has one, with a virtual cable (veth) from its
`eth0` into a switch (a bridge), and a token bucket (`tc qdisc ... tbf`) at both ends of the cable, so that each
direction carries the chosen rate and no more. What runs there sends real packets through the kernel's TCP:
https://man7.org/linux/man-pages/man8/tc-tbf.8.html. `machine` has the processes behind it.
"""

import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Self

from ..errors import BadInput
from ..trace import TCP_ON_ETHERNET, Link
from .errors import ClusterError

MAX_NODES = 32
DEVICE = "eth0"  # of the link, on each node
PORT = 29500  # of torchrun's rendezvous, on node 0
_NETWORK = "10.77.0."
SWITCH = f"{_NETWORK}254"  # address of the machine that joins the nodes
_START, _GONE = 60.0, 10.0  # seconds in which nodes must be there, and gone
_BURST, _LEAST_BURST = (
    2e-3,
    4096,
)  # what passes at full speed after a pause: seconds of the rate; bytes, over one packet
_QUEUE, _LEAST_QUEUE = 0.2, 1 << 20  # what may wait for a link before packets are lost: seconds of the rate; bytes
_UNITS = {"bit": 1.0, "b": 1.0, "byte": 8.0, "B": 8.0}
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
KILL = 9  # signal.SIGKILL, a name that Windows does not have
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMG]?)(bit|byte|b|B)(?:s?/s|ps|s)?\s*")
_SLOWEST, _FASTEST = 1e5, 1e11  # bits per second
_CLOSED = "the nodes are closed, or gone"
_BOOT = """
import sys
sys.path[:] = {path!r}
from reference.cluster.machine import main
main({owner}, {controls!r})
"""


def link_rate(text: str) -> float:
    """The rate of a link in bytes per second.

    Args:
        text: such as "200 Mb/s", "200Mbit", "1 Gb/s" (b and bit: bits) or "25 MB/s" (B: bytes). M is a million.

    Raises:
        BadInput: this is no rate, or one that no link here can have.
    """
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise BadInput(f"{text!r} is no rate of a link: write it as '200 Mb/s', '1 Gb/s' (bits) or '25 MB/s' (bytes)")
    amount, prefix, unit = found.groups()
    bits = float(amount) * _PREFIXES[prefix] * _UNITS[unit]
    if not _SLOWEST <= bits <= _FASTEST:
        raise BadInput(f"a link of {text!r} can't be had: from '100 kb/s' to '100 Gb/s' it can")
    return bits / 8


def link_model(text: str, alpha: float) -> Link:
    """The link of a node as a replay takes it: its rate and its token bucket, what TCP sends besides a message, and how
    much of one it buffers (`net.ipv4.tcp_wmem`).

    Args:
        text: its rate, as for `link_rate`.
        alpha: what a message takes however small it is, in seconds, as measured: a model of the kernel has none.

    Raises:
        BadInput: this is no rate.
    """
    rate = link_rate(text)
    *_, buffer = Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split() if sys.platform == "linux" else "0"
    return Link(f"a link of {text}", alpha, rate, _burst(rate), TCP_ON_ETHERNET, float(buffer))


def _burst(rate: float) -> float:
    """Bytes of a link's token bucket."""
    return max(_BURST * rate, _LEAST_BURST)


@dataclass(frozen=True)
class Availability:
    """Whether nodes can be had on this machine: true or false, and why not in one sentence."""

    why_not: str = ""

    def __bool__(self) -> bool:
        return not self.why_not


class NodeProcess:
    """A program that runs on a node. It ends with its node, at the latest; if this object is forgotten, it runs on."""

    def __init__(self, channel: socket.socket, command: str) -> None:
        self._channel, self._command = channel, command
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None while it runs."""
        if self.returncode is None and select.select([self._channel], [], [], 0)[0]:
            self._hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it, once it has ended.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds.
        """
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise TimeoutError(f"`{self._command}` still runs after {timeout:g} s")
            self._hear()
        return self.returncode

    def kill(self, number: int = KILL) -> None:
        """Send a signal to it and to its session; one that ends it, unless told otherwise."""
        if self.poll() is None:
            try:
                self._channel.send(bytes([number]))
            except OSError:
                self._hear()

    def _hear(self) -> None:
        """How it ended: as its node said or, where the node is gone, killed."""
        self.returncode = _message(self._channel).get("ended", -KILL)
        self._channel.close()


class Nodes:
    """N machines on this one, joined by a switch, with a link of the same rate to each.

        with Nodes(2, link="200 Mb/s") as nodes:
            runs = [nodes.start(node, [*nodes.torchrun(node, ranks=2), "train.py"]) for node in range(2)]
            nodes.slow(1, "20 Mb/s")
            print([run.wait() for run in runs])

    A node sees the files of this machine, and no process but its own. It reaches the other nodes by `address(node)`
    and nothing else. When the owner closes the nodes, ends, or is killed, every process on them is killed with all
    its descendants, and the networks are gone.

    Args:
        nodes: how many, 1 to 32.
        link: rate of each node's link in each direction, such as "200 Mb/s": see `link_rate`.

    Raises:
        BadInput: a rate or a count that cannot work.
        ClusterError: this machine can't have nodes, with the reason.
    """

    def __init__(self, nodes: int, link: str) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise BadInput(f"there can be 1 to {MAX_NODES} nodes, not {nodes}")
        rate = link_rate(link)
        if missing := _missing():
            raise ClusterError(missing)
        self.count = nodes
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(nodes + 1)]
        self._controls = [ours for ours, _ in pairs]
        try:
            self._end = _guarded(self, self._controls, [theirs for _, theirs in pairs])
        except OSError as error:  # no more processes or files, or a Linux older than 5.3
            raise ClusterError(f"nodes can't be started: {error}") from None
        try:
            self._wire([self._pid(control) for control in self._controls])
            for node in range(nodes):
                self._limit(node, rate)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def available() -> Availability:
        """Whether nodes can be had here: by making one, which is gone when this returns."""
        try:
            Nodes(1, "1 Gb/s").close()
        except ClusterError as error:
            return Availability(str(error))
        return Availability()

    def address(self, node: int) -> str:
        """Where the other nodes find this one: an IPv4 address."""
        return f"{_NETWORK}{self.known(node) + 1}"

    def start(
        self,
        node: int,
        argv: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = 1,
        stderr: int | IO[Any] = 2,
    ) -> NodeProcess:
        """Start a program on a node, in the caller's working directory.

        Args:
            node: 0 to n-1.
            argv: the program and its arguments.
            environment: added to the caller's, and to the names of the link that gloo and NCCL must use.
            stdin, stdout, stderr: open files, or descriptors of such; by default nothing, and the caller's own.

        Raises:
            BadInput: there is no such node, or no such program.
            ClusterError: the nodes are closed, or gone.
        """
        return self._start(self.known(node) + 1, argv, environment, (stdin, stdout, stderr))

    def start_on_switch(self, argv: Sequence[str | os.PathLike[str]]) -> NodeProcess:
        """Start a program on the machine that joins the nodes, which they reach by `SWITCH`: a store, a scheduler.

        Raises:
            BadInput, ClusterError: as `start`.
        """
        return self._start(0, argv, {}, (subprocess.DEVNULL, 1, 2))

    def torchrun(self, node: int, ranks: int, port: int = PORT) -> list[str]:
        """The beginning of a command that starts `ranks` ranks on this node, of as many on each: add the script to it.

        Args:
            node: 0 to n-1; ranks are numbered node after node.
            ranks: on each node.
            port: of the rendezvous on node 0; another one for each run at the same time.
        """
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={self.count}", f"--node-rank={self.known(node)}", f"--nproc-per-node={ranks}"),
            *(f"--master-addr={self.address(0)}", f"--master-port={port}"),
        ]

    def cut(self, node: int) -> None:
        """Pull the cable of a node: packets are lost in both directions, connections wait."""
        self._run(0, "ip", f"link set dev port{self.known(node)} down")

    def mend(self, node: int) -> None:
        """Plug the cable in again. TCP notices when it next tries, later the longer the cut was."""
        self._run(0, "ip", f"link set dev port{self.known(node)} up")

    def slow(self, node: int, rate: str) -> None:
        """Give the link of a node another rate from now on, slower or faster, in both directions.

        Raises:
            BadInput: this is no rate.
        """
        self._limit(self.known(node), link_rate(rate))

    def namespaces(self) -> list[IO[bytes]]:
        """What a process enters to be on a node, as open files: the users of all nodes, then each node's network.

        Raises:
            ClusterError: the nodes are closed, or gone.
        """
        return [self._namespace(0, "user"), *(self._namespace(node + 1, "net") for node in range(self.count))]

    def close(self) -> None:
        """Kill all that runs on the nodes, and wait until it is gone."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def known(self, node: int) -> int:
        """The number of a node that there is. Raises BadInput for another one."""
        if node not in range(self.count):
            raise BadInput(f"there is no node {node}: there are 0 to {self.count - 1}")
        return node

    def _pid(self, control: socket.socket) -> int:
        """The pid of a first process, as the switch sees it, once it is there."""
        control.settimeout(_START)
        try:
            said = _message(control)
        except TimeoutError:
            raise ClusterError(f"the nodes did not come up within {_START:g} s") from None
        if "ready" not in said:
            raise ClusterError(_forbidden(said.get("failed", "its process ended")))
        return said["ready"]

    def _wire(self, pids: list[int]) -> None:
        """Lay a cable from each node to the switch."""
        cables = [
            line
            for node, pid in enumerate(pids[1:])
            for line in (
                f"link add name port{node} type veth peer name eth0 netns {pid}",
                f"link set dev port{node} master switch up",
            )
        ]
        bridge = (
            "link set dev lo up",
            "link add name switch type bridge",
            f"address add {SWITCH}/24 dev switch",
            "link set dev switch up",
        )
        self._run(0, "ip", *bridge, *cables)
        for node in range(self.count):
            address = f"address add {self.address(node)}/24 dev eth0"
            self._run(node + 1, "ip", "link set dev lo up", address, "link set dev eth0 up")

    def _limit(self, node: int, rate: float) -> None:
        """Let a node's link carry `rate` bytes per second in each direction.

        A new bucket, since what waits in the old one may be larger than the new one ever holds: it would wait, and all
        behind it, forever. What waited is lost, and TCP sends it again.
        """
        queue = max(_QUEUE * rate, _LEAST_QUEUE)
        bucket = f"tbf rate {rate * 8:.0f}bit burst {_burst(rate):.0f} limit {queue:.0f}"
        for machine, device in ((node + 1, "eth0"), (0, f"port{node}")):
            self._run(machine, "tc", *(f"qdisc replace dev {device} root {kind}" for kind in ("pfifo", bucket)))

    def _run(self, machine: int, program: str, *lines: str) -> None:
        """Let `ip` or `tc` do what the lines say, on the switch (0) or a node (its number, plus 1)."""
        with tempfile.TemporaryFile() as commands, tempfile.TemporaryFile() as answer:
            commands.write("\n".join(lines).encode())
            commands.seek(0)
            argv = [_tool(program), "-batch", "-"]
            if code := self._start(machine, argv, {}, (commands, answer, answer)).wait(_START):
                answer.seek(0)
                why = answer.read().decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
                hint = "; `sudo modprobe -a veth bridge sch_tbf` may add it" if "nknown" in why[0] else ""
                raise ClusterError(f"`{program}` can't make links here: {why[0]}{hint}")

    def _start(
        self,
        machine: int,
        argv: Sequence[str | os.PathLike[str]],
        environment: Mapping[str, str],
        files: tuple[int | IO[Any], ...],
    ) -> NodeProcess:
        command = [os.fspath(word) for word in argv]
        names = {f"{library}_SOCKET_IFNAME": DEVICE for library in ("GLOO", "NCCL", "TP")}
        plan = {"argv": command, "environment": {**os.environ, **names, **environment}, "directory": os.getcwd()}
        with open(os.devnull, "r+b") as nothing:
            channel = self._ask(machine, plan, [nothing if file == subprocess.DEVNULL else file for file in files])
        said = _message(channel)
        if "started" in said:
            return NodeProcess(channel, command[0])
        channel.close()
        if "failed" in said:
            raise BadInput(f"`{command[0]}` can't be started on a node: {said['failed']}")
        raise ClusterError(_CLOSED)

    def _namespace(self, machine: int, kind: str) -> IO[bytes]:
        with self._ask(machine, {"namespace": kind}, []) as channel:
            _, fds, _, _ = socket.recv_fds(channel, 1, 1)
        if not fds:
            raise ClusterError(_CLOSED)
        return os.fdopen(fds[0], "rb")

    def _ask(self, machine: int, request: dict[str, Any], files: Sequence[int | IO[Any]]) -> socket.socket:
        """Send a request with files to a first process. Returns the channel on which it answers."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = [file if isinstance(file, int) else file.fileno() for file in (theirs, *files)]
        try:
            socket.send_fds(self._controls[machine], [json.dumps(request).encode()], fds)
        except OSError as error:
            ours.close()
            raise ClusterError(f"{_CLOSED}: {error.strerror}") from None
        finally:
            theirs.close()
        return ours


def _message(channel: socket.socket) -> dict[str, Any]:
    """The next message; {} where there will be none."""
    try:
        return json.loads(channel.recv(1 << 16) or b"{}")
    except ConnectionError:
        return {}


def _guarded(nodes: Nodes, ours: list[socket.socket], theirs: list[socket.socket]) -> weakref.finalize:
    """Start the guard. What ends it, when called, when `nodes` is forgotten, or when this process exits."""
    owner = os.pidfd_open(os.getpid())
    fds = [sock.fileno() for sock in theirs]
    try:
        guard = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(path=sys.path, owner=owner, controls=fds)],
            pass_fds=[owner, *fds],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the owner's
        )
    finally:
        os.close(owner)
        for sock in theirs:
            sock.close()
    return weakref.finalize(nodes, _ended, guard, ours, os.getpid())


def _ended(guard: subprocess.Popen, controls: list[socket.socket], owner: int) -> None:
    """End all nodes, and wait until they are gone. In a fork of the owner, let go of them alone."""
    if os.getpid() == owner:
        try:
            controls[0].shutdown(socket.SHUT_RDWR)
            guard.wait(_GONE)
        except (OSError, subprocess.TimeoutExpired):
            guard.kill()
            guard.wait()
    for control in controls:
        control.close()


def _tool(name: str) -> str | None:
    """Where a program is. Some users' paths lack the directories of those that root uses."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


def _missing() -> str:
    """What this machine lacks that nodes need, in one sentence."""
    if sys.platform != "linux":
        return f"nodes are made of Linux's namespaces, and this system is {sys.platform}"
    lacking = " and ".join(f"`{name}`" for name in ("ip", "tc") if not _tool(name))
    return f"nodes need {lacking}, which the package iproute2 has" if lacking else ""


_PERMISSIONS = {
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "10000"),
}
"""Settings of some distributions that forbid namespaces: the value that does, and one that does not."""


def _forbidden(why: str) -> str:
    """That namespaces can't be had, and what would allow them."""
    for setting, (forbids, allows) in _PERMISSIONS.items():
        file = Path("/proc/sys", setting)
        if file.exists() and file.read_text().strip() == forbids:
            return f"nodes need namespaces ({why}): `sudo sysctl {setting.replace('/', '.')}={allows}` allows them"
    return f"nodes need namespaces ({why}): in a container, start it with --security-opt seccomp=unconfined"
