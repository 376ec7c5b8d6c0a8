"""The doctor finds this machine fit, and says what to do where one is not."""

import re
import shutil
from itertools import combinations

import pytest

from rankwise.between_nodes import Links, tournament
from rankwise.commands import doctor
from rankwise.commands.doctor import State
from reference.cluster.nodes import Availability, Nodes


def test_this_machine_can_run_the_course(capsys):
    assert doctor.doctor() == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"(ok|note) +\S", line) for line in lines), lines
    assert any("4 ranks all-reduce to 6" in line for line in lines)
    assert any("Python 3." in line for line in lines)
    assert sum("nodes" in line and "links of a chosen speed" in line for line in lines) == 1


def test_what_is_missing_comes_with_a_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "2.6.0" if name == "torch" else missing(name))
    torch, *others = doctor.packages()
    assert (torch.state, "2.11" in torch.remedy) == (State.NOTE, True)
    assert all(finding.state is State.WRONG and "pip install" in finding.remedy for finding in others)


def missing(name: str) -> str:
    raise doctor.PackageNotFoundError(name)


def test_ranks_that_do_not_work_are_wrong(monkeypatch):
    monkeypatch.setattr(doctor, "total", lambda: 1 / 0)
    (finding,) = doctor.ranks()
    assert finding.state is State.WRONG
    assert "division by zero" in finding.remedy


@pytest.mark.parametrize(("why_not", "state"), [("", State.OK), ("nodes need `tc`", State.NOTE)])
def test_nodes_are_there_or_the_reason_is(why_not: str, state: State, monkeypatch):
    monkeypatch.setattr(Nodes, "available", lambda: Availability(why_not))
    (finding,) = doctor.nodes()
    assert (finding.state, finding.remedy) == (state, why_not)


def test_little_shared_memory_is_noted(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    assert "--shm-size" in doctor.shared_memory().remedy


def links(rates: dict[tuple[int, int], float], late: dict[int, float], n: int = 4) -> Links:
    """Of n nodes: 100 MB/s and 0.1 ms, but for these pairs (from, to) and for these nodes."""
    rate = [[rates.get((a, b), 1e8) if a != b else 0.0 for b in range(n)] for a in range(n)]
    latency = [[max(late.get(a, 1e-4), late.get(b, 1e-4)) if a != b else 0.0 for b in range(n)] for a in range(n)]
    return Links(tuple("abcdefgh"[:n]), tuple(map(tuple, rate)), tuple(map(tuple, latency)))


def of_node(node: int, rate: float, n: int = 4) -> dict[tuple[int, int], float]:
    """All ways to and from a node."""
    return {(a, b): rate for a in range(n) for b in range(n) if node in (a, b)}


SLOW = {
    "nothing": (links({}, {}), []),
    "a node": (links(of_node(2, 1e7), {}), ["c is slow: 10 MB/s at best, and the median node has 100 MB/s"]),
    "what a node sends": (
        links({(2, b): 1e7 for b in range(4)}, {}),
        ["c is slow: 10 MB/s at best, and the median node has 100 MB/s"],
    ),
    "one way of a pair": (
        links({(1, 3): 2e7}, {}),
        ["the way from b to d is slow: 20 MB/s, and with other nodes both reach 100 MB/s"],
    ),
    "answers": (links({}, {0: 5e-3}), ["a answers late: 5 ms, and the median node takes 0.1 ms"]),
    "two nodes, of which none can be blamed": (links(of_node(1, 1e7, 2), {}, 2), []),
}


@pytest.mark.parametrize(("measured", "said"), SLOW.values(), ids=SLOW)
def test_what_is_slow_between_nodes_is_named(measured: Links, said: list[str]):
    assert [*measured.slow()] == said


@pytest.mark.parametrize("n", range(2, 9))
def test_in_a_tournament_each_two_meet_once_and_no_node_is_in_two_pairs(n: int):
    rounds = [*tournament(n)]
    assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == [*combinations(range(n), 2)]
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) == n - 1 + n % 2
