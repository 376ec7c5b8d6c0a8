"""From a rank's death to the next step: elastic training in a warm cluster, against torch's own elastic agent.

Both train the same model on four ranks, FSDP, and one rank kills itself after a step. Ours makes a new world of the
three that are left and fetches the state from memory. torch's agent (`torchrun --max-restarts`) ends all processes and
starts them again; they load the newest checkpoint from a disk, which is saved after each step. (Each start has a store
of its own: with the one that torch 2.13 keeps over restarts, new processes call the addresses of dead ones.)
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import rows
from rows import Row

HOUSE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOUSE))

import subprocess  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from reference.cluster import Cluster  # noqa: E402
from reference.config import TrainConfig  # noqa: E402
from reference.plan import DataParallelism, Plan  # noqa: E402
from reference.report import StepReport  # noqa: E402
from reference.resilience.elastic import as_many_as_divide, train_elastically  # noqa: E402
from reference.resilience.store import reach, serve  # noqa: E402
from reference.saves import Saves  # noqa: E402
from reference.train import train  # noqa: E402

RANKS, VICTIM, DEATH = 4, 2, 5
CONFIG = TrainConfig(steps=10, batch=12)
PLAN = Plan(data_parallel=DataParallelism.FSDP)
ROUNDS, BAR = 3, 5.0


def measure(report: Callable[[Row], None]) -> None:
    """Rounds of both, one after the other."""
    ours, theirs = [], []
    with Cluster(RANKS, preload=("torch._dynamo", "reference.resilience.elastic")) as cluster:
        for _ in range(ROUNDS):
            ours.append(elastic(cluster))
            theirs.append(agent())
    report(rows.faster("from death to the next step", statistics.median(ours), statistics.median(theirs), "s", BAR))


def elastic(cluster: Cluster) -> float:
    """Seconds, in a warm cluster."""
    store = serve()
    with tempfile.TemporaryDirectory() as folder:
        cluster.survive(on_rank, store.port, folder)
        return lost(Path(folder))


def on_rank(port: int, folder: str) -> None:
    """What a rank does."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    train_elastically(
        CONFIG,
        as_many_as_divide(CONFIG, PLAN),
        partial(reach, "127.0.0.1", port),
        f"rank {rank}",
        torch.device("cpu"),
        at_first=RANKS,
        after_step=lambda training, step: note(Path(folder), rank, step.step),
    )


def agent() -> float:
    """Seconds, with torch's agent, which looks ten times a second at its processes."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=1", "--monitor-interval=0.1"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, __file__, folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        subprocess.run(command, check=True, capture_output=True, cwd=HOUSE, env=environment)
        return lost(Path(folder))


def under_agent(folder: Path) -> None:
    """What a process of torch's agent does: resume where there is something to resume, and train."""
    dist.init_process_group("gloo")
    group, rank = dist.group.WORLD, dist.get_rank()
    saved = folder / "checkpoints"
    resume = saved.exists() and any(saved.iterdir())
    dist.barrier()
    saves = Saves(saved, every=1, resume=resume)

    def after(step: StepReport) -> None:
        if step.step > 1 or resume:  # the step before has been saved
            note(folder, rank, step.step - 1)

    train(CONFIG, group, torch.device("cpu"), PLAN, after, saves)
    dist.destroy_process_group()


def note(folder: Path, rank: int, step: int) -> None:
    """Write down when a rank has taken a step. The victim dies after its step, the first time."""
    died = folder / "died"
    if rank == VICTIM and step == DEATH and not died.exists():
        died.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    with (folder / f"steps-{rank}").open("a") as file:
        file.write(json.dumps([step, time.monotonic()]) + "\n")


def lost(folder: Path) -> float:
    """Seconds from the death until a rank has taken the next step that nobody had taken before."""
    died = float((folder / "died").read_text())
    steps = [json.loads(line) for file in folder.glob("steps-*") for line in file.read_text().splitlines()]
    return min(at for step, at in steps if step > DEATH and at > died) - died


if __name__ == "__main__":
    if "RANK" in os.environ:
        under_agent(Path(sys.argv[1]))
    else:
        rows.main("recovery", measure)
