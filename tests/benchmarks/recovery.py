"""From a rank's death to the next step: elastic training in a warm cluster.

Four ranks train with FSDP, and one kills itself after a step. The three that are left make a new world, fetch the state
from memory, and go through the step that was under way.
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

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from reference.cluster import Cluster  # noqa: E402
from reference.config import TrainConfig  # noqa: E402
from reference.plan import DataParallelism, Plan  # noqa: E402
from reference.resilience.elastic import as_many_as_divide, train_elastically  # noqa: E402
from reference.resilience.store import reach, serve  # noqa: E402

RANKS, VICTIM, DEATH = 4, 2, 5
CONFIG = TrainConfig(steps=10, batch=12)
PLAN = Plan(data_parallel=DataParallelism.FSDP)
ROUNDS = 5


def measure(report: Callable[[Row], None]) -> None:
    """One death a round."""
    with Cluster(RANKS, preload=("torch._dynamo", "reference.resilience.elastic")) as cluster:
        seconds = statistics.median(elastic(cluster) for _ in range(ROUNDS))
    report(rows.plain("from death to the next step", seconds, "s"))


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
    rows.main("recovery", measure)
