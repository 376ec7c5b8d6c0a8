"""Where in a step of a pipeline the gradients of replicas are summed.

A pipeline may have replicas, each for a part of the batch. A stage finds a part of its gradient in every micro-batch.
Gradients add up on this rank, and only their sum is sent: once in a step, when nothing more will be added. For each
stage that is another moment, and while its gradient travels, the rank computes for its other stages.

    F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1
                                | sum stage 2 over replicas
                                          | sum stage 0 over replicas

Where backward is split, the moment is that of the last W: I finds nothing that belongs to a weight.
"""

from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from reference.pipeline_parallel.schedule import Action, Kind


def run_and_reduce(
    line: Sequence[Action], compute: Callable[[Action], None], gradients: Mapping[int, Tensor], group: ProcessGroup
) -> None:
    """Compute what this rank is to compute in a step, and sum gradients over the replicas as early as can be.

    Args:
        line: this rank's actions, in order.
        compute: does one of them. Backward adds to the gradient of its stage.
        gradients: of each stage of this rank, by number. Afterwards the sum over micro-batches and replicas.
        group: the replicas of this rank, which all have the same line.
    """
    last = {action.stage: action for action in line if action.kind in (Kind.BACKWARD, Kind.WEIGHT)}
    works = []
    for action in line:
        compute(action)
        if action == last[action.stage]:
            works.append(dist.all_reduce(gradients[action.stage], group=group, async_op=True))
    for work in works:
        work.wait()
