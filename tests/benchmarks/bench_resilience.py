"""What a save costs training: ours, behind training and at once, beside `torch.distributed.checkpoint.async_save`.

The demo model trains on 4 ranks by DDP, as `rankwise train` does it, and saves at every 10th step. A round is 10 steps
and one save of the first of them, to its end: what is not written when the round is over is waited for, so that no
program leaves its work to the next one. The programs take their rounds in turns, on the same ranks and the same model;
a round takes as long as on its slowest rank; medians over several starts of the ranks. `without` saves nothing: what
the others take longer is what a save costs. Ours has checksums, one folder that appears when all is on the disk, and
an old one that goes then; torch's has none of these, and gets a new folder for each save. The floor is the barest code
that could: a rank copies a quarter of what all hold, and a thread writes it and waits for the disk, without a checksum,
a name or a word to another rank.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import rows
import torch
import torch.distributed as dist
from rows import Row

from reference.cluster import Cluster
from reference.config import TrainConfig
from reference.parallelize import DataParallelism, Plan
from reference.resilience.preemption import StopNotice
from reference.saves import Boundary, Saves
from reference.train import Training
from reference.zero import checkpoint

RANKS, EVERY, ROUNDS = 4, 10, 11
LIMIT = 0.05  # of the time of ten steps
IMPORTS = ("torch._dynamo", "torch.distributed.checkpoint", "reference.train")
NAMES = ("without", "behind training", "at once", "torch async_save", "floor")


def measure(report: Callable[[Row], None]) -> None:
    """All programs, and what a save costs of ten steps."""
    starts = [on_new_ranks(ROUNDS) for _ in range(rows.STARTS)]
    found = rows.medians(rows.joined(starts))
    without = found["without"]
    cost = {name: max(0.0, found[name] - without) for name in NAMES[1:]}
    report(rows.plain(f"{EVERY} steps of the demo, {RANKS} ranks, without a save", without, "s"))
    ours = cost["behind training"]
    report(rows.below("a save behind training, of these steps' time", 100 * ours / without, 100 * LIMIT, "%"))
    report(rows.plain("the floor: a copy that a thread writes", 100 * cost["floor"] / without, "%"))
    report(rows.faster("a save behind training, against torch's async_save", ours, cost["torch async_save"], "s"))
    report(rows.faster("a save behind training, against one at once", ours, cost["at once"], "s"))


def on_new_ranks(rounds: int) -> dict[str, list[float]]:
    """Of each program, the seconds of its rounds."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Cluster(RANKS, preload=IMPORTS) as cluster:
        return rows.of_ranks(cluster.run(on_rank, Path(folder), rounds))


def on_rank(folder: Path, rounds: int) -> dict[str, list[float]]:
    """The seconds of each program's rounds on this rank."""
    group = dist.group.WORLD
    training = Training(TrainConfig(), group, torch.device("cpu"), Plan(DataParallelism.DDP))
    where = training.form, training.optimizer
    training.group = peer = rows.plain_gloo()  # nothing that is said of a save is watched, ours or torch's
    boundary = Boundary(Saves(folder / "background", every=10**9, in_background=True), training, 10**9, StopNotice())
    taken = 0

    def steps(after: Callable[[], object]) -> None:
        nonlocal taken
        for number, _, _ in training.steps(taken, taken + EVERY):
            taken = number + 1
            after()

    def without() -> None:
        steps(lambda: None)

    def behind() -> None:
        boundary.save(taken)
        steps(lambda: boundary(taken))
        boundary.finish()

    def at_once() -> None:
        checkpoint.save(folder / "at once", *where, taken, {}, peer)
        steps(lambda: None)

    def torchs() -> None:
        from torch.distributed.checkpoint import async_save

        state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        saved = async_save(state, checkpoint_id=folder / f"torch {taken}", process_group=peer)
        steps(lambda: None)
        saved.result()

    def floor() -> None:
        room = torch.cat([x.flatten().chunk(RANKS)[group.rank()] for x in held(training)])
        thread = Thread(target=write, args=(folder / f"floor {group.rank()}", room))
        thread.start()
        steps(lambda: None)
        thread.join()

    def between() -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            for old in folder.glob("torch *"):
                shutil.rmtree(old)
        dist.barrier()

    programs = dict(zip(NAMES, (without, behind, at_once, torchs, floor), strict=True))
    return rows.interleaved(programs, rounds, between)


def held(training: Training) -> list[torch.Tensor]:
    """Masters and moments, which every rank has whole."""
    masters = [part.master.detach() for part in training.form.parts]
    moments = [training.optimizer.state[part.master] for part in training.form.parts]
    return masters + [state[name] for state in moments for name in ("exp_avg", "exp_avg_sq")]


def write(path: Path, room: torch.Tensor) -> None:
    """Write a file, and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(room.numpy())
        os.fsync(file.fileno())


if __name__ == "__main__":
    rows.main("resilience", measure)
