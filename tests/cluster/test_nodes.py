"""Nodes on this machine: links as fast as they were asked to be, cut and mended, and nothing left of them."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reference.cluster import ClusterError
from reference.cluster.nodes import SWITCH, Availability, Nodes, link_model, link_rate
from reference.errors import BadInput
from reference.networks import flat_ring_time

from ..processes import gone, wait_until
from . import traffic
from .test_lifetime import Owner

pytestmark = pytest.mark.alone

RATE = "200 Mb/s"


@pytest.fixture(scope="module")
def here() -> None:
    """A machine that can have nodes."""
    if not (found := Nodes.available()):
        pytest.skip(found.why_not)


@pytest.fixture(scope="module")
def two(here: None) -> Iterator[Nodes]:
    with Nodes(2, RATE) as made:
        yield made


def output(made: Nodes, node: int, *argv: str) -> str:
    """What a program writes that runs on a node, and ends there by itself."""
    read, write = os.pipe()
    run = made.start(node, argv, stdout=write, stderr=write)
    os.close(write)
    with open(read) as file:
        text = file.read()
    assert run.wait(60) == 0, text
    return text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200 Mb/s", 25e6),
        ("200Mbit", 25e6),
        ("25 MB/s", 25e6),
        ("1.5 Gbit/s", 187.5e6),
        ("100 kbps", 12.5e3),
        ("800000 bit/s", 1e5),
    ],
)
def test_a_rate_is_written_as_people_write_it(text: str, rate: float) -> None:
    assert link_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "200", "200 M", "200 mb/s", "-1 Mb/s", "1e3 Mb/s", "200 Mb/h", 200e6, None]
)
def test_what_is_no_rate_is_refused(text: object) -> None:
    with pytest.raises(BadInput, match="is no rate of a link"):
        link_rate(text)


@pytest.mark.parametrize("text", ["0 Mb/s", "1 b/s", "200 GB/s"])
def test_a_rate_that_no_link_has_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="from '100 kb/s' to '100 Gb/s'"):
        link_rate(text)


def test_the_model_of_a_link_has_its_rate_and_its_bucket() -> None:
    model = link_model("200 Mb/s", 1e-4)
    assert (model.alpha, model.beta, model.burst) == (1e-4, 25e6, 50e3)  # 2 ms
    assert model.time(1448) == 1e-4 + 1514 / 25e6
    assert link_model("1 Mb/s", 0).burst == 4096  # more than a packet
    assert model.buffer > 1 << 16 or sys.platform != "linux"


@pytest.mark.parametrize("count", [0, -1, 33])
def test_a_count_of_nodes_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(BadInput, match=f"1 to 32 nodes, not {count}"):
        Nodes(count, RATE)


def test_a_machine_without_linux_or_iproute2_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "tc" else f"/sbin/{name}")
    assert Nodes.available() == Availability("nodes need `tc`, which the package iproute2 has")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not Nodes.available()
    assert "Linux" in Nodes.available().why_not and "darwin" in Nodes.available().why_not


def test_a_kernel_that_lacks_a_kind_of_link_is_told_how_to_get_it(two: Nodes) -> None:
    with pytest.raises(ClusterError, match=r"`ip` can't make links here: .*[Uu]nknown.*modprobe -a veth bridge"):
        two._run(0, "ip", "link add name other type nosuchkind")


FORBID = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
ASK = "from reference.cluster.nodes import Nodes; print(Nodes.available().why_not)"


def test_a_kernel_that_forbids_namespaces_is_named_with_what_allows_them(here: None) -> None:
    asked = subprocess.run([*FORBID, sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert "No space left on device" in asked.stdout  # as the kernel calls it
    assert "`sudo sysctl user.max_user_namespaces=10000` allows them" in asked.stdout


def test_a_program_runs_on_its_node_and_ends_as_it_ends_anywhere(two: Nodes) -> None:
    assert output(two, 1, "sh", "-c", "echo $A; ls /sys/class/net; cat /proc/net/dev | wc -l").split() == [
        "eth0",
        "lo",
        "4",
    ]
    assert two.start(0, ["sh", "-c", "exit 3"]).wait(60) == 3
    asleep = two.start(0, ["sleep", "99"], environment={"A": "b"})
    assert asleep.poll() is None
    with pytest.raises(TimeoutError, match=r"`sleep` still runs after 0\.1 s"):
        asleep.wait(0.1)
    asleep.kill(signal.SIGTERM)
    assert (asleep.wait(60), asleep.poll()) == (-signal.SIGTERM, -signal.SIGTERM)
    asleep.kill()


def test_what_cannot_be_started_is_refused(two: Nodes) -> None:
    with pytest.raises(BadInput, match=r"`no-such-program` can't be started on a node: .*No such file"):
        two.start(0, ["no-such-program"])
    for use in (two.address, two.cut, lambda node: two.slow(node, RATE), lambda node: two.start(node, ["true"])):
        with pytest.raises(BadInput, match="there is no node 2: there are 0 to 1"):
            use(2)


def test_a_node_reaches_the_other_nodes_and_nothing_else(two: Nodes) -> None:
    answer = "import socket, sys; sys.exit(socket.socket().connect_ex((sys.argv[1], 9)))"
    codes = {to: two.start(0, [sys.executable, "-c", answer, to]).wait(60) for to in (two.address(1), "192.0.2.1")}
    assert [os.strerror(code) for code in codes.values()] == ["Connection refused", "Network is unreachable"]
    assert output(two, 0, "sh", "-c", "ls /proc | grep -c '^[0-9]'") <= "5"


def test_two_torchruns_take_as_long_as_the_formulas_say(two: Nodes, tmp_path: Path, patience: float) -> None:
    """At least as long, less what a bucket holds. At most twice: packets have headers, ranks wait for processors."""
    log = (tmp_path / "log").open("w+")
    runs = [
        two.start(
            node,
            [*two.torchrun(node, ranks=2), traffic.__file__, tmp_path / "found.json"],
            stdout=log,
            stderr=log,
            environment={"OMP_NUM_THREADS": "1"},
        )
        for node in range(two.count)
    ]
    assert [run.wait(240) for run in runs] == [0, 0], log.seek(0) or log.read()
    found, rate = json.loads((tmp_path / "found.json").read_text()), link_rate(RATE)
    paper = {
        "ping_pong": 2 * traffic.SIZE / rate,
        "all_reduce": flat_ring_time(2, 2, traffic.SIZE, intra=(0.0, math.inf), inter=(0.0, rate)),
    }
    assert found["correct"]
    for what, time_on_paper in paper.items():
        assert 0.95 < found[what] / time_on_paper < 2 * patience, (what, found[what], time_on_paper)


STREAM = """
import socket, sys, time
sock = socket.create_connection((sys.argv[1], 5000))
while True: sock.sendall(bytes(10_000))
"""
SINK = """
import socket, sys, time
with socket.create_server(("", 5000)) as server:
    print("listens", flush=True)
    sock, _ = server.accept()
while data := sock.recv(1 << 16): print(len(data), flush=True)
"""


@pytest.fixture
def stream(two: Nodes, tmp_path: Path) -> Iterator[Path]:
    """A file that gets a line, with a number of bytes, for all that comes from node 1 to node 0."""
    log = tmp_path / "log"
    with log.open("w") as file:
        sink = two.start(0, [sys.executable, "-c", SINK], stdout=file)
        wait_until(lambda: "listens" in log.read_text(), 60)
        source = two.start(1, [sys.executable, "-c", STREAM, two.address(0)])
        wait_until(lambda: "listens" not in log.read_text().split()[-1], 60)
        yield log
        for run in (source, sink):
            run.kill()
            run.wait(60)


def rate_of(log: Path, seconds: float) -> float:
    """Bytes per second that come in for a while."""

    def arrived() -> int:
        text = log.read_text()
        return sum(map(int, text[: text.rfind("\n")].split()[1:]))

    before, begin = arrived(), time.monotonic()
    time.sleep(seconds)
    return (arrived() - before) / (time.monotonic() - begin)


def test_a_link_slows_down_is_cut_and_mended_while_it_carries_data(two: Nodes, stream: Path, patience: float) -> None:
    least = 0.6 / patience
    assert least < rate_of(stream, 1) / link_rate(RATE) < 1.1
    for end in (1, 0):
        two.slow(end, "10 Mb/s")
        wait_until(lambda: least < rate_of(stream, 1) / link_rate("10 Mb/s") < 1.5, 30)
        two.slow(end, "100 Mb/s")
    two.cut(1)
    for end in (1, 0):
        two.slow(end, RATE)
    time.sleep(0.5)
    assert rate_of(stream, 0.5) == 0
    two.mend(1)
    wait_until(lambda: rate_of(stream, 0.5) > least * link_rate(RATE), 30)
    assert rate_of(stream, 1) < 1.1 * link_rate(RATE)


START = """
    import os, signal, subprocess, sys, time
    from reference.cluster.nodes import Nodes
    def say(word): print(word, flush=True)
"""
DETACHED = "setsid sleep 99 & nohup sleep 99 >/dev/null 2>&1 & trap '' TERM INT HUP; echo now; sleep 99"
INSTANTS = {
    "while the nodes come up": "subprocess.Popen.wait = None; say('now'); n = Nodes(8, '1 Gb/s'); time.sleep(99)",
    "with detached programs": f"n = Nodes(2, '1 Gb/s'); n.start(1, ['sh', '-c', {DETACHED!r}]); time.sleep(99)",
    "with another process that holds its sockets": """
        n = Nodes(2, '1 Gb/s')
        n.start(0, ['sleep', '99'])
        subprocess.Popen(['sleep', '20'], env={}, pass_fds=[control.fileno() for control in n._controls])
        say('now')
        time.sleep(99)
    """,
}


def inside(namespaces: set[str]) -> list[int]:
    """The processes that are in one of these networks."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/net") in namespaces:
                found.append(int(name))
    return found


@pytest.mark.parametrize("instant", INSTANTS)
def test_nothing_is_left_of_nodes_whose_owner_is_killed(here: None, instant: str, patience: float) -> None:
    owner = Owner(textwrap.dedent(START) + textwrap.dedent(INSTANTS[instant]))
    owner.says("now")
    time.sleep(0.2)
    networks = set()
    for pid in owner.alive():
        with contextlib.suppress(OSError):
            networks.add(os.readlink(f"/proc/{pid}/ns/net"))
    members = inside(networks - {os.readlink("/proc/self/ns/net")})
    assert len(members) > 3 or instant == "while the nodes come up"
    owner.kill()
    assert owner.seconds_to_silence() < 1.0 * patience
    wait_until(lambda: gone(members))


@pytest.mark.parametrize("end", ["pass", "n.close()", "del n", "os.kill(n._end.peek()[2][0].pid, signal.SIGKILL)"])
def test_nothing_is_left_of_nodes_that_end_otherwise(here: None, end: str, patience: float) -> None:
    program = f"n = Nodes(2, '1 Gb/s'); n.start(1, ['sleep', '99']); {end}; say('now')"
    owner = Owner(textwrap.dedent(START) + program)
    owner.says("now")
    assert owner.process.wait(60) == 0
    assert owner.seconds_to_silence() < 1.0 * patience


def test_closed_nodes_start_nothing_and_their_programs_are_killed(here: None) -> None:
    made = Nodes(2, RATE)
    files = len(os.listdir("/proc/self/fd"))
    run = made.start(0, ["sleep", "99"])
    made.close()
    made.close()
    assert run.wait(60) == -signal.SIGKILL
    assert len(os.listdir("/proc/self/fd")) == files - 3
    with pytest.raises(ClusterError, match="the nodes are closed, or gone"):
        made.start(0, ["true"])


NO_ROOT = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
CAPABILITIES = "print(*[line for line in open('/proc/self/status') if 'CapEff' in line])"


def test_nodes_need_no_root(here: None) -> None:
    command = [*NO_ROOT, sys.executable, "-c", f"{CAPABILITIES}; {ASK}"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["CapEff:", "0" * 16]


def test_a_server_on_the_switch_reaches_itself(two: Nodes) -> None:
    """torch's store is its own client, too: it gives up after half a minute, and takes all others along."""
    talk = f"""
        import socket
        server = socket.create_server(({SWITCH!r}, 0))
        socket.create_connection(server.getsockname(), timeout=10)
    """
    assert two.start_on_switch([sys.executable, "-c", textwrap.dedent(talk)]).wait(60) == 0
