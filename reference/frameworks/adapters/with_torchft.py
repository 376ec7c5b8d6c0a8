"""torchft: replicas that agree, step by step, on who takes part; one may die and come back, while the others continue.

    python -m reference.frameworks.adapters.with_torchft ddp FOLDER

Each replica has a `Manager`, which asks a lighthouse for a quorum. `ddp` is a run in which nothing happens. In `death`
replica 1 dies after half of the steps and another one takes its place: it gets the weights of replica 0, which has
trained alone meanwhile, with its own half of each batch.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier

from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Optimizer
from torchft.coordination import LighthouseServer

from reference.frameworks import on_rank
from reference.frameworks.adapters.torchft_member import PACKAGES, REPLICAS, member
from reference.frameworks.plain import Course
from reference.trace.tap import Recorder


def replica(number: int, address: str, feature: str, folder: str, ready: Barrier, life: int = 0) -> None:
    """Train until all steps are taken, by this replica or by others; write `NUMBER.json`.

    The first two are `ready` together: a quorum is of those who have been heard of, and one would be enough.
    """
    course = Course()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, recorder = course.model(), Recorder(number)
    manager = member(
        recorder,
        address,
        store,
        REPLICAS if feature == "ddp" else 1,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["opt"])),
        state_dict=lambda: {"model": model.state_dict(), "opt": optimizer.state_dict()},
    )
    if life == 0:
        ready.wait()
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, course.optimizer(model.parameters()))
    took_part = []

    def losses() -> Iterator[float]:
        while (step := manager.current_step()) < course.steps:
            if feature == "death" and number == 1 and life == 0 and step == course.steps // 2:
                os._exit(1)
            tokens, targets = course.read(step, number, REPLICAS)
            optimizer.zero_grad()
            loss = course.loss(wrapped(tokens), targets)
            loss.backward()
            optimizer.step()
            if manager.current_step() > step:
                took_part.append(manager.num_participants())
                yield loss.item()

    found = on_rank.gauged(losses(), PACKAGES, recorder)
    if feature == "death":
        found["marks"] = []  # what a step says depends on who is there
        found["losses"] = found["losses"] if number == 0 else [None]  # a part of the run is not its own
    weights = sum(parameter.square().sum().item() for parameter in model.parameters())
    on_rank.write(folder, found | {"took_part": took_part, "weights": weights}, rank=number)
    manager.shutdown(wait=False)
    os._exit(0)


def main(feature: str, folder: str) -> None:
    """Start the lighthouse and both replicas; and a third, in the place of the one that dies."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=5000)
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(REPLICAS)

    def start(number: int, life: int = 0) -> multiprocessing.Process:
        process = spawn.Process(target=replica, args=(number, lighthouse.address(), feature, folder, ready, life))
        process.start()
        return process

    first, second = start(0), start(1)
    if feature == "death":
        second.join()
        second = start(1, life=1)
    for process in (first, second):
        process.join()
    lighthouse.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
