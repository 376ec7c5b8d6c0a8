"""`rankwise train` and `rankwise trace` with --nodes and --link, as a person meets them."""

import re
import sys
from pathlib import Path

import pytest

from rankwise.cli import run
from rankwise.training import device_on_nodes
from reference.cluster import Nodes
from reference.cluster.nodes import Availability
from reference.models.data import python_text

available = Nodes.available()
on_nodes = pytest.mark.skipif(not available, reason=f"no nodes here: {available.why_not}")

PROGRAM = "import torch, torch.distributed as dist\ndef main():\n    dist.all_reduce(torch.ones(1000))\n"
WHY = "nodes are made of Linux's namespaces, and this system is darwin"


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """A short training."""
    path = tmp_path / "short.txt"
    path.write_bytes(python_text()[:20_000].tobytes())
    return ["train", "--model", "tiny", "--steps", "2", "--batch", "4", "--sequence", "16", "--data", str(path)]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A trace of a small program."""
    monkeypatch.setattr(sys, "path", sys.path.copy())  # the command puts the program's folder on it
    (tmp_path / "program.py").write_text(PROGRAM)
    return ["trace", str(tmp_path / "program.py"), "--out", str(tmp_path / "out")]


BAD = [
    (["--link", "200Mbit"], "--link 200Mbit is the rate of a node's link: say --nodes 2, too"),
    (["--nodes", "3"], "4 ranks can't be divided by 3 nodes"),
    (["--nodes", "0"], "4 ranks can't be divided by 0 nodes"),
    (["--nodes", "-2"], "4 ranks can't be divided by -2 nodes"),
    (["--nodes", "2", "--link", "fast"], "'fast' is no rate of a link"),
    (["--nodes", "2", "--link", "1 b/s"], "from '100 kb/s' to '100 Gb/s'"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
@pytest.mark.parametrize("command", ["small", "traced"])
def test_what_cannot_be_is_said_in_one_line(
    command: str, options: list[str], said: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture
) -> None:
    assert run([*request.getfixturevalue(command), *options]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@on_nodes
def test_a_training_says_where_its_ranks_are(small: list[str], capsys: pytest.CaptureFixture) -> None:
    assert run([*small, "--nodes", "2", "--link", "200Mbit"]) == 0
    said = capsys.readouterr()
    assert "4 ranks on 2 nodes with links of 200Mbit, cpu" in said.out
    assert "held-out loss" in said.out
    assert said.err == ""


@on_nodes
def test_tensor_parallelism_across_nodes_is_warned_of(small: list[str], capsys: pytest.CaptureFixture) -> None:
    assert run([*small, "--nodes", "2", "--tensor-parallel", "4"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "warning: tensor parallelism crosses nodes: ranks 0, 1, 2, 3 are on node 0 and node 1" in line
    assert "no more than the 2 ranks of a node" in line


@on_nodes
def test_a_trace_says_what_went_over_the_links(traced: list[str], capsys: pytest.CaptureFixture) -> None:
    """A ring of 4 ranks: of all that each sends, 2 · 3/4 of 4000 B, one rank's crosses from each node to the next."""
    assert run([*traced, "--nodes", "2", "--link", "200Mbit"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"node \d: .*", out) == [
        f"node {node}: 6,000 B sent to other nodes, over a link of 200Mbit" for node in range(2)
    ]


@pytest.mark.parametrize("command", ["small", "traced"])
def test_where_no_nodes_can_be_had_it_runs_without_and_says_why(
    command: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = request.getfixturevalue(command)
    monkeypatch.setattr(Nodes, "available", lambda: Availability(WHY))
    assert run([*words, "--ranks", "2", "--nodes", "2"]) == 0
    said = capsys.readouterr()
    assert said.err == f"rankwise: without nodes: {WHY}\n"
    assert "rank" in said.out and not re.search(r"^node|on 2 nodes", said.out, re.M)


def test_ranks_on_nodes_compute_on_cpus(small: list[str], capsys: pytest.CaptureFixture) -> None:
    assert device_on_nodes("auto") == "cpu"
    assert run([*small, "--nodes", "2", "--device", "cuda"]) == 2
    assert "--nodes has ranks that compute on the CPU: leave out --device cuda" in capsys.readouterr().err
