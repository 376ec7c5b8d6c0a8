"""The page on torchrun, typed on two nodes of this machine: two ranks on each, and one process's losses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reference.cluster import Nodes

from .conftest import LIMIT, OPTIONS, RECORDED, ROOT, ended, losses

PAGE = (ROOT / "docs/machines/torchrun.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^torchrun .*--node-rank.*$", PAGE, re.M)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def typed(command: str, nodes: Nodes) -> list[str]:
    """The words of a command of the page, with what a test can't have: names of machines, and a PATH."""
    words = command.replace("node0", nodes.address(0)).split()
    return [sys.executable, "-m", "torch.distributed.run", *words[1:]]


def test_the_page_has_a_command_for_each_node_and_one_for_its_links() -> None:
    ranks = [re.search(r"--node-rank=(\d)", command)[1] for command in COMMANDS]
    assert ranks == ["0", "1", "0"]
    assert COMMANDS[0].replace("--node-rank=0", "--node-rank=1") == COMMANDS[1]


@pytest.mark.long
def test_two_nodes_train_as_one_process_does(two: Nodes, tmp_path: Path, text: Path, right: list[float]) -> None:
    log, said = tmp_path / "losses", tmp_path / "said"
    runs = []
    with said.open("w") as out:
        for node, command in enumerate(COMMANDS[:2]):
            *begin, _, _ = (word for word in typed(command, two) if word not in ("--steps", "20"))
            words = [*begin, RECORDED, str(log), *OPTIONS, "--data", str(text), "--data-parallel", "fsdp"]
            runs.append(two.start(node, words, stdout=out, stderr=out, environment=ONE_THREAD))
    assert "4 ranks, cpu" in ended(runs, said)
    assert "warning" not in said.read_text()
    assert losses(log) == pytest.approx(right, rel=1e-10)


@pytest.mark.long
def test_tensor_parallelism_across_nodes_gets_one_line_that_names_it(two: Nodes, tmp_path: Path, text: Path) -> None:
    said = tmp_path / "said"
    with said.open("w") as out:
        runs = []
        for node in range(2):
            words = [*two.torchrun(node, ranks=1, port=29510), "-m", "reference.train", *OPTIONS, "--data", str(text)]
            words += ["--tensor-parallel", "2"]
            runs.append(two.start(node, words, stdout=out, stderr=out, environment=ONE_THREAD))
    lines = [line for line in ended(runs, said).splitlines() if "warning:" in line]
    assert len(lines) == 1
    assert "tensor parallelism crosses nodes: ranks 0, 1 are on node 0 and node 1" in lines[0]


@pytest.mark.long
def test_ranks_that_torchrun_starts_anew_resume_from_what_was_saved(
    tmp_path: Path, text: Path, right: list[float]
) -> None:
    """Rank 1 kills itself after step 2, once. What comes after equals a run that nothing happened to."""
    log, folder = tmp_path / "losses", str(tmp_path / "saved")
    agent = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    words = [RECORDED, str(log), *OPTIONS, "--data", str(text), "--data-parallel", "fsdp"]
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *agent, *words, "--save", folder, "--save-every", "1"],
        env={**os.environ, **ONE_THREAD, "DIES_AFTER": "2"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert run.returncode == 0, run.stderr
    assert "resuming after step" in run.stdout
    assert losses(log)[-1] == pytest.approx(right[-1], rel=1e-10)


@pytest.mark.alone
@pytest.mark.long
def test_the_doctor_names_a_slow_node(tmp_path: Path) -> None:
    if not (found := Nodes.available()):
        pytest.skip(found.why_not)
    said = tmp_path / "said"
    rankwise = [sys.executable, "-m", "rankwise", "doctor"]
    with Nodes(3, "200 Mb/s") as nodes, said.open("w") as out:
        nodes.slow(1, "20 Mb/s")
        runs = [
            nodes.start(
                node,
                [*nodes.torchrun(node, ranks=1), "--no-python", *rankwise],
                stdout=out,
                stderr=out,
                environment=ONE_THREAD,
            )
            for node in range(3)
        ]
        assert [run.wait(LIMIT) for run in runs] == [0, 0, 0], said.read_text()
    lines = said.read_text().splitlines()
    pairs = {tuple(re.findall(r"node \d", line)): line for line in lines if line.startswith("ok")}
    assert list(pairs) == [("node 0", "node 1"), ("node 0", "node 2"), ("node 1", "node 2")]
    there, back = (float(rate) for rate in re.findall(r"([\d.]+) MB/s", pairs["node 0", "node 2"]))
    assert 15 < min(there, back) <= max(there, back) < 27  # 200 Mb/s are 25 MB/s, headers and all
    notes = [line for line in lines if line.startswith("note")]  # on a busy machine of another node, too
    assert any("node 1 is slow: 2." in note for note in notes), notes
