"""What Slurm runs on each node, under a stand-in: its environment and `scontrol`, on two nodes of this machine."""

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from reference.cluster import Nodes

from .conftest import OPTIONS, RECORDED, ROOT, ended, losses

BATCH, ON_NODE = "docs/machines/train.sbatch", "docs/machines/on_slurm_node.sh"


def program(folder: Path, name: str, text: str) -> None:
    """Put a program of this name there."""
    file = folder / name
    file.write_text("#!/bin/bash\n" + textwrap.dedent(text))
    file.chmod(0o755)


def stand_in(folder: Path, *hosts: str) -> str:
    """A PATH on which `scontrol` writes out a list of nodes."""
    lines = "\n".join(hosts)
    program(folder, "scontrol", f'[ "$*" = "show hostnames short[0-1]" ] && echo "{lines}"\n')
    return f"{folder}:{os.environ['PATH']}"


def environment_of(node: int, path: str) -> dict[str, str]:
    """What srun gives a task."""
    return {
        "PATH": path,
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "short[0-1]",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": str(node),
        "SLURM_CPUS_PER_TASK": "2",
        "RANKS_PER_NODE": "2",
    }


def test_the_environment_becomes_torchruns_arguments(tmp_path: Path) -> None:
    path = stand_in(tmp_path, "gpu01", "gpu02")
    program(tmp_path, "torchrun", 'echo "$OMP_NUM_THREADS $@"\n')
    done = subprocess.run(
        [ROOT / ON_NODE, "-m", "reference.train", "--steps", "20"],
        cwd=tmp_path,  # where no .venv is
        env=environment_of(1, path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "1",
        "--nnodes=2",
        "--node-rank=1",
        "--nproc-per-node=2",
        "--master-addr=gpu01",
        "--master-port=29956",  # 29500 + 456
        *("-m", "reference.train", "--steps", "20"),
    ]


def test_outside_of_a_job_it_says_what_is_missing(tmp_path: Path) -> None:
    path = stand_in(tmp_path, "gpu01")
    done = subprocess.run([ROOT / ON_NODE], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "SLURM_JOB_NODELIST: unbound variable" in done.stderr


@pytest.mark.parametrize(("gpus", "ranks"), [({"SLURM_GPUS_ON_NODE": "8"}, "8"), ({}, "2")])
def test_the_batch_script_starts_one_task_on_each_node(tmp_path: Path, gpus: dict[str, str], ranks: str) -> None:
    program(tmp_path, "srun", 'echo "$RANKS_PER_NODE $@"\n')
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / BATCH, "--steps", "20"], cwd=ROOT, env={"PATH": path} | gpus, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [ranks, "--kill-on-bad-exit=1", ON_NODE, "-m", "reference.train", "--steps", "20"]
    directives = [line for line in (ROOT / BATCH).read_text().splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=2" in directives and "#SBATCH --ntasks-per-node=1" in directives


@pytest.mark.long
def test_two_nodes_of_slurm_train_as_one_process_does(
    two: Nodes, tmp_path: Path, text: Path, right: list[float]
) -> None:
    path = stand_in(tmp_path, two.address(0), two.address(1))
    log, said = tmp_path / "losses", tmp_path / "said"
    words = [str(ROOT / ON_NODE), RECORDED, str(log), *OPTIONS, "--data", str(text), "--data-parallel", "hsdp"]
    with said.open("w") as out:
        runs = [
            two.start(node, words, stdout=out, stderr=out, environment=environment_of(node, path)) for node in range(2)
        ]
    assert "4 ranks, cpu" in ended(runs, said)
    assert "warning" not in said.read_text()
    assert losses(log) == pytest.approx(right, rel=1e-10)


def nodes_of_slurm() -> int:
    """How many nodes a Slurm has that answers here."""
    if not shutil.which("sinfo"):
        return 0
    listed = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"], capture_output=True, text=True
    )
    return len(set(listed.stdout.split()))


@pytest.mark.long
@pytest.mark.skipif(nodes_of_slurm() < 2, reason="no Slurm with two idle nodes answers here")
def test_slurm_itself_trains_as_one_process_does(tmp_path: Path, text: Path, right: list[float]) -> None:
    said = tmp_path / "said"
    command = ["sbatch", "--wait", f"--output={said}", "--cpus-per-task=2", BATCH, *OPTIONS, "--data", str(text)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + said.read_text()
    assert "4 ranks, cpu" in said.read_text()
    shown = [float(loss) for loss in re.findall(r"^step .* loss ([\d.]+)", said.read_text(), re.M)]
    assert shown == pytest.approx(right, abs=1e-3)  # three digits are shown
