"""torchft: replicas that agree, step by step, on who takes part; one may die and come back, while the others continue.

    python -m reference.frameworks.adapters.with_torchft ddp FOLDER

Each replica has a `Manager`, which asks a lighthouse for a quorum. `ddp` is a run in which nothing happens. In `death`
replica 1 dies after half of the steps and another one takes its place: it gets the weights of replica 0, which has
trained alone meanwhile, with its own half of each batch. In `diloco` each replica trains by itself, and after
five steps they take an outer step together, on which they agree first. torchft makes groups of its own, which no tap
hears.
"""

import multiprocessing
import os
import sys
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from reference.frameworks import on_rank
from reference.frameworks.plain import OUTER_MOMENTUM, OUTER_RATE, Course

REPLICAS = 2


def replica(number: int, address: str, feature: str, folder: str, life: int = 0) -> None:
    """Train until all steps are taken, by this replica or by others; write `NUMBER.json`."""
    course = Course()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = course.model()
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1 if feature == "death" else REPLICAS,
        use_async_quorum=feature != "diloco",
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["opt"])),
        state_dict=lambda: {"model": model.state_dict(), "opt": optimizer.state_dict()},
        init_sync=False,  # all begin with the same weights: else the first step counts one replica alone
        replica_id=f"replica_{number}_",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=address,
        timeout=timedelta(seconds=30),
    )
    if feature == "diloco":
        leave(folder, number, island(course, number, model, manager), manager)
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, course.optimizer(model.parameters()))
    found, took_part = [], []
    while (step := manager.current_step()) < course.steps:
        if feature == "death" and number == 1 and life == 0 and step == course.steps // 2:
            os._exit(1)
        tokens, targets = course.read(step, number, REPLICAS)
        optimizer.zero_grad()
        loss = course.loss(wrapped(tokens), targets)
        loss.backward()
        optimizer.step()
        if manager.current_step() > step:
            found.append(loss.item())
            took_part.append(manager.num_participants())
    weights = sum(parameter.square().sum().item() for parameter in model.parameters())
    if feature == "death" and number == 1:
        found = [None]  # a part of the run is not its own
    leave(folder, number, {"losses": found, "took_part": took_part, "weights": weights}, manager)


def island(course: Course, number: int, model: torch.nn.Module, manager: Manager) -> dict[str, list[float]]:
    """Train in rounds."""
    inner, found = course.optimizer(model.parameters()), []
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    with DiLoCo(manager, [model], inner, outer, sync_every=course.inner_steps):
        for step in range(course.steps):
            tokens, targets = course.read(step, number, REPLICAS)
            inner.zero_grad()
            loss = course.loss(model(tokens), targets)
            loss.backward()
            inner.step()  # a hook of it counts, and takes the outer step
            found.append(loss.item())
    return {"losses": found}


def leave(folder: str, number: int, said: dict[str, Any], manager: Manager) -> None:
    """Write what was found, and end."""
    on_rank.write(folder, on_rank.unheard(said, ("torchft-nightly",)), rank=number)
    manager.shutdown(wait=False)
    os._exit(0)


def main(feature: str, folder: str) -> None:
    """Start the lighthouse and both replicas; and a third, in the place of the one that dies."""
    least = REPLICAS if feature == "diloco" else 1  # else one that is early is a quorum, and its round is taken back
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=least, join_timeout_ms=2000, heartbeat_timeout_ms=5000
    )
    spawn = multiprocessing.get_context("spawn")

    def start(number: int, life: int = 0) -> multiprocessing.Process:
        process = spawn.Process(target=replica, args=(number, lighthouse.address(), feature, folder, life))
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
