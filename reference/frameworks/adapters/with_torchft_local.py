"""torchft's DiLoCo: replicas that train by themselves, and after five steps take an outer step on which they agree.

    python -m reference.frameworks.adapters.with_torchft_local diloco FOLDER

It hooks into the inner optimizer: `step` counts, and at the end of a round the model has the outer step. A round on
which they do not agree is taken back.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator

import torch
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

from reference.frameworks import on_rank
from reference.frameworks.adapters.torchft_member import PACKAGES, REPLICAS, member
from reference.frameworks.plain import OUTER_MOMENTUM, OUTER_RATE, Course
from reference.trace.tap import Recorder


def island(number: int, address: str, folder: str) -> None:
    """Train in rounds; write `NUMBER.json`."""
    course = Course()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, recorder = course.model(), Recorder(number)
    manager = member(
        recorder,
        address,
        store,
        REPLICAS,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        use_async_quorum=False,
    )
    inner = course.optimizer(model.parameters())
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)

    def losses() -> Iterator[float]:
        for step in range(course.steps):
            tokens, targets = course.read(step, number, REPLICAS)
            inner.zero_grad()
            loss = course.loss(model(tokens), targets)
            loss.backward()
            inner.step()
            yield loss.item()

    with DiLoCo(manager, [model], inner, outer, sync_every=course.inner_steps):
        found = on_rank.gauged(losses(), PACKAGES, recorder)
    on_rank.write(folder, found, rank=number)
    manager.shutdown(wait=False)
    os._exit(0)


def main(folder: str) -> None:
    """Start the lighthouse and the replicas. One that is early is no quorum: its round would be taken back."""
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=2000, heartbeat_timeout_ms=5000
    )
    spawn = multiprocessing.get_context("spawn")
    islands = [spawn.Process(target=island, args=(number, lighthouse.address(), folder)) for number in range(REPLICAS)]
    for process in islands:
        process.start()
    for process in islands:
        process.join()
    lighthouse.shutdown()


if __name__ == "__main__":
    main(sys.argv[2])
